//! What changed of the monitor's state from one epoch to a later one.
//!
//! Contract: a value that is made by comparing two states, so that nothing that changed can be
//! missing from it, and applied to a state of the epoch that it begins with. It is what a
//! replicated log of the monitor's state carries: results, not requests, so whoever applies it
//! needs no clock and no rules. What changes without an epoch (answers of shards, which a restart
//! forgets) is in the next one. Bytes of one are not trusted ([`StateDelta::decode`],
//! [`Mismatch`]).

use crate::map::{Osd, Pg, Pool, SessionState};
use crate::state::{MonitorState, PgState};
use protocol::{ClusterId, DecodeError, Epoch, OsdId, PgId, PoolId, SessionId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Every so many epochs a delta carries a checksum of the whole state.
const EPOCHS_PER_HASH: u64 = 256;

/// Changes of a map's entries: the new one, or none if it is gone.
type Changes<K, V> = Vec<(K, Option<V>)>;

/// What changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateDelta {
    /// Of which cluster.
    pub cluster: ClusterId,
    /// The epoch of the state before.
    pub from: Epoch,
    /// The epoch of the state after.
    pub to: Epoch,
    osds: Changes<OsdId, Osd>,
    pools: Changes<PoolId, Pool>,
    pgs: Changes<PgId, (Pg, PgState)>,
    sessions: Changes<SessionId, (SessionState, Option<String>)>,
    last_session: SessionId,
    mds: Option<SocketAddr>,
    namespace: Option<u128>,
    /// CRC32C of the whole state after it, from time to time.
    hash: Option<u32>,
}

/// Why a delta does not fit a state. The state is then neither the old nor the new one: whoever has
/// it begins again from a whole one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// Of another cluster.
    #[error("a change of cluster {0:?} for a state of another one")]
    Cluster(ClusterId),
    /// It begins with another epoch, or leads back.
    #[error("a change from epoch {from} to {to} for a state of epoch {found}")]
    Epoch {
        /// Where it begins.
        from: Epoch,
        /// Where it ends.
        to: Epoch,
        /// Where the state is.
        found: Epoch,
    },
    /// The checksum of the whole state is another one.
    #[error("after the change to epoch {0} the state is not the one that it was made of")]
    Hash(Epoch),
}

impl StateDelta {
    /// What leads from one state of a cluster to a later one.
    pub fn between(old: &MonitorState, new: &MonitorState) -> Self {
        let hash = new.map.epoch.get().is_multiple_of(EPOCHS_PER_HASH).then(|| hash(new));
        Self {
            cluster: new.map.cluster,
            from: old.map.epoch,
            to: new.map.epoch,
            osds: changes(&old.map.osds, &new.map.osds),
            pools: changes(&old.map.pools, &new.map.pools),
            pgs: pg_changes(old, new),
            sessions: session_changes(old, new),
            last_session: new.map.last_session,
            mds: new.map.mds,
            namespace: new.namespace,
            hash,
        }
    }

    /// Makes the old state the new one. Whoever does not know where it comes from calls
    /// [`MonitorState::check_invariants`] after the last one: that looks at everything.
    ///
    /// # Errors
    /// See [`Mismatch`].
    pub fn apply(self, state: &mut MonitorState) -> Result<(), Mismatch> {
        let Self { cluster, from, to, .. } = self;
        if cluster != state.map.cluster {
            return Err(Mismatch::Cluster(cluster));
        }
        if from != state.map.epoch || to <= from {
            return Err(Mismatch::Epoch { from, to, found: state.map.epoch });
        }
        let map = &mut state.map;
        (map.epoch, map.last_session, map.mds) = (to, self.last_session, self.mds);
        state.namespace = self.namespace;
        change(&mut map.osds, self.osds);
        change(&mut map.pools, self.pools);
        for (id, now) in self.pgs {
            let (pg, own) = now.unzip();
            change(&mut map.pgs, [(id, pg)]);
            change(&mut state.pgs, [(id, own)]);
        }
        for (id, now) in self.sessions {
            let (session, name) = now.unzip();
            change(&mut map.sessions, [(id, session)]);
            change(&mut state.session_names, [(id, name.flatten())]);
        }
        match self.hash {
            Some(expected) if expected != hash(state) => Err(Mismatch::Hash(to)),
            _ => Ok(()),
        }
    }

    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        protocol::encode(self).to_vec()
    }

    /// Reads one.
    ///
    /// # Errors
    /// When the bytes are none.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        protocol::decode("change of the monitor's state", bytes)
    }
}

fn hash(state: &MonitorState) -> u32 {
    crc32c::crc32c(&protocol::encode(state))
}

/// What differs between two sequences in the order of their keys: the new value, or none.
fn differences<K: Copy + Ord, V: PartialEq>(
    old: impl Iterator<Item = (K, V)>,
    new: impl Iterator<Item = (K, V)>,
) -> Changes<K, V> {
    let (mut old, mut found) = (old.peekable(), Vec::new());
    for (key, value) in new {
        while let Some((gone, _)) = old.next_if(|(other, _)| *other < key) {
            found.push((gone, None));
        }
        if old.next_if(|(other, _)| *other == key).is_none_or(|(_, before)| before != value) {
            found.push((key, Some(value)));
        }
    }
    found.extend(old.map(|(gone, _)| (gone, None)));
    found
}

fn owned<K, V, T>(changes: Changes<K, V>, make: impl Fn(V) -> T) -> Changes<K, T> {
    changes.into_iter().map(|(key, value)| (key, value.map(&make))).collect()
}

fn changes<K: Copy + Ord, V: PartialEq + Clone>(
    old: &BTreeMap<K, V>,
    new: &BTreeMap<K, V>,
) -> Changes<K, V> {
    let entries = |map| BTreeMap::iter(map).map(|(key, value): (&K, _)| (*key, value));
    owned(differences(entries(old), entries(new)), Clone::clone)
}

/// A PG is in both of a state's lists, or in neither.
fn pg_changes(old: &MonitorState, new: &MonitorState) -> Changes<PgId, (Pg, PgState)> {
    fn entries(state: &MonitorState) -> impl Iterator<Item = (PgId, (&Pg, &PgState))> {
        state.map.pgs.iter().zip(state.pgs.values()).map(|((id, pg), own)| (*id, (pg, own)))
    }
    owned(differences(entries(old), entries(new)), |(pg, own)| (pg.clone(), *own))
}

/// A session has a name or not; a name has a session.
fn session_changes(
    old: &MonitorState,
    new: &MonitorState,
) -> Changes<SessionId, (SessionState, Option<String>)> {
    fn entries(
        state: &MonitorState,
    ) -> impl Iterator<Item = (SessionId, (SessionState, Option<&String>))> {
        state
            .map
            .sessions
            .iter()
            .map(|(id, session)| (*id, (*session, state.session_names.get(id))))
    }
    owned(differences(entries(old), entries(new)), |(session, name)| (session, name.cloned()))
}

fn change<K: Ord, V>(map: &mut BTreeMap<K, V>, changes: impl IntoIterator<Item = (K, Option<V>)>) {
    for (key, value) in changes {
        match value {
            Some(value) => drop(map.insert(key, value)),
            None => drop(map.remove(&key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ExpectedOsd, PoolSpec, create_cluster};

    fn states() -> (MonitorState, MonitorState) {
        let pool = PoolSpec::new("data", 2, 1, 512, 8).expect("a profile");
        let old =
            create_cluster(ClusterId::new(1), &ExpectedOsd::first(4), &pool).expect("enough OSDs");
        let mut new = old.clone();
        new.map.epoch = Epoch::new(old.map.epoch.get() + 1);
        new.map.last_session = SessionId::new(9);
        new.map.sessions.insert(SessionId::new(9), SessionState::Live);
        new.session_names.insert(SessionId::new(9), "a client".into());
        (old, new)
    }

    #[test]
    fn a_change_is_small_and_fits_only_where_it_begins() {
        let (old, new) = states();
        let delta = StateDelta::between(&old, &new);
        assert!(delta.encode().len() < 64, "{} bytes", delta.encode().len());
        let mut copy = old.clone();
        delta.clone().apply(&mut copy).expect("it fits");
        assert_eq!(copy, new);
        let again = delta.clone().apply(&mut copy);
        assert!(matches!(again, Err(Mismatch::Epoch { .. })), "{again:?}");
        let mut other = old;
        other.map.cluster = ClusterId::new(2);
        assert!(matches!(delta.apply(&mut other), Err(Mismatch::Cluster(_))));
    }

    #[test]
    fn a_replica_that_differs_finds_out() {
        let (mut old, mut new) = states();
        let epoch = |n: u64| Epoch::new(n * EPOCHS_PER_HASH);
        (old.map.epoch, new.map.epoch) = (Epoch::new(epoch(1).get() - 1), epoch(1));
        let delta = StateDelta::between(&old, &new);
        let osd = *old.map.osds.keys().next().expect("an OSD");
        old.map.osds.get_mut(&osd).expect("an OSD").weight += 1;
        assert_eq!(delta.apply(&mut old), Err(Mismatch::Hash(epoch(1))));
    }
}
