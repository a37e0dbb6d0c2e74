//! The cluster map: what every daemon and client must agree on.
//!
//! Contract: a map is a value; whoever changes it makes a new one with a greater epoch. Receivers
//! treat the bytes as untrusted and check them with [`ClusterMap::decode`].

use protocol::{
    ClusterId, DecodeError, Epoch, ObjectId, OsdId, PgId, PoolId, Profile, SessionId, ShardIndex,
    ShardSet,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// One version of the map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterMap {
    /// The cluster.
    pub cluster: ClusterId,
    /// The version: grows by one with every change.
    pub epoch: Epoch,
    /// The storage daemons.
    pub osds: BTreeMap<OsdId, Osd>,
    /// The pools.
    pub pools: BTreeMap<PoolId, Pool>,
    /// The placement groups of all pools.
    pub pgs: BTreeMap<PgId, Pg>,
    /// Sessions that are live, or dead and not yet resolved everywhere. Those resolved or closed
    /// are gone from here.
    pub sessions: BTreeMap<SessionId, SessionState>,
    /// The greatest session id ever given out: an id above it is newer than this map, one below and
    /// absent is gone.
    pub last_session: SessionId,
    /// Where the metadata service listens.
    pub mds: Option<SocketAddr>,
}

/// A storage daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Osd {
    /// Where it listens, as told at its last boot.
    pub addr: Option<SocketAddr>,
    /// Number of cores, as told at its last boot.
    pub cores: u16,
    /// Answers heartbeats.
    pub up: bool,
    /// Holds data.
    pub is_in: bool,
    /// Share of data, in units of 1/65536; 65536 for one.
    pub weight: u32,
    /// Its machine.
    pub host: String,
    /// The random id of its disk; 0 before its first boot.
    pub fsid: u128,
    /// The operator has given that disk up: the next boot may be with another one, and ends this.
    pub replace: bool,
}

/// A pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// Unique name.
    pub name: String,
    /// Its code.
    pub profile: Profile,
    /// Number of PGs.
    pub pg_num: u32,
}

/// A placement group. Names follow the model of the write path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pg {
    /// The map epoch in which anything of this PG (or of a session's life) last changed. Attaches
    /// end with it.
    pub epoch: Epoch,
    /// The OSD of each shard, by shard number.
    pub acting: Vec<OsdId>,
    /// The in-sync set or, while not active, the set proposed for it.
    pub in_sync: ShardSet,
    /// Shards outside it that take part in new writes while they are rebuilt.
    pub joining: ShardSet,
    /// All members of the in-sync set have answered in this epoch.
    pub active: bool,
}

/// A session in the map.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SessionState {
    /// May write.
    Live,
    /// Fenced; its last writes are being decided.
    Dead,
}

impl ClusterMap {
    /// The map as bytes, for wire and disk.
    pub fn encode(&self) -> Vec<u8> {
        protocol::encode(self).to_vec()
    }

    /// A map from bytes.
    ///
    /// # Errors
    /// When the bytes are not a map.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        protocol::decode("cluster map", bytes)
    }

    /// The PG that holds an object of a pool, if the pool exists.
    pub fn pg_of(&self, pool: PoolId, object: ObjectId) -> Option<PgId> {
        let pool_info = self.pools.get(&pool)?;
        Some(PgId { pool, number: object.pg(pool_info.pg_num) })
    }

    /// The OSD that holds a shard.
    pub fn osd_of(&self, pg: PgId, shard: ShardIndex) -> Option<OsdId> {
        self.pgs.get(&pg)?.acting.get(usize::from(shard.get())).copied()
    }

    /// The shard of a PG that an OSD holds, if any.
    pub fn shard_of(&self, pg: PgId, osd: OsdId) -> Option<ShardIndex> {
        let at = self.pgs.get(&pg)?.acting.iter().position(|&o| o == osd)?;
        u8::try_from(at).ok().map(ShardIndex::new)
    }

    /// Shards of a PG whose OSDs are up.
    pub fn up_shards(&self, pg: PgId) -> ShardSet {
        let Some(info) = self.pgs.get(&pg) else { return ShardSet::EMPTY };
        let up = |osd: &OsdId| self.osds.get(osd).is_some_and(|o| o.up);
        (0u8..16)
            .zip(&info.acting)
            .filter(|(_, osd)| up(osd))
            .fold(ShardSet::EMPTY, |s, (i, _)| s.with(ShardIndex::new(i)))
    }

    /// Checks what must hold of every map: PGs and pools fit together, no epoch is ahead of the
    /// map's.
    ///
    /// # Errors
    /// Says what is wrong.
    pub fn check_invariants(&self) -> Result<(), String> {
        for (id, pool) in &self.pools {
            let numbers = self
                .pgs
                .range(PgId { pool: *id, number: 0 }..=PgId { pool: *id, number: u32::MAX });
            if pool.pg_num == 0 || !numbers.map(|(pg, _)| pg.number).eq(0..pool.pg_num) {
                return Err(format!("{id} does not have the PGs 0..{}", pool.pg_num));
            }
        }
        for (id, pg) in &self.pgs {
            let Some(pool) = self.pools.get(&id.pool) else {
                return Err(format!("pg {id} has no pool"));
            };
            let (shards, k) = (pool.profile.shards(), u32::from(pool.profile.k()));
            let members = pg.in_sync.union(pg.joining);
            let unknown = pg.acting.iter().any(|osd| !self.osds.contains_key(osd));
            if pg.acting.len() != usize::from(shards) || unknown {
                return Err(format!(
                    "pg {id} has the acting set {:?}, for {shards} shards",
                    pg.acting
                ));
            }
            if !members.minus(ShardSet::first(shards)).is_empty()
                || !pg.in_sync.intersection(pg.joining).is_empty()
            {
                return Err(format!(
                    "pg {id} has in_sync {:?} and joining {:?}",
                    pg.in_sync, pg.joining
                ));
            }
            if (pg.active || !pg.in_sync.is_empty()) && pg.in_sync.len() < k {
                return Err(format!("pg {id} has the in-sync set {:?}, below k = {k}", pg.in_sync));
            }
            if pg.epoch > self.epoch || pg.epoch == Epoch::default() {
                return Err(format!("pg {id} is of epoch {}, the map of {}", pg.epoch, self.epoch));
            }
        }
        match self.sessions.keys().next_back() {
            Some(last) if *last > self.last_session => {
                Err(format!("{last} is beyond {}", self.last_session))
            }
            _ => Ok(()),
        }
    }

    /// A pool by name.
    pub fn pool_named(&self, name: &str) -> Option<(PoolId, &Pool)> {
        self.pools.iter().find(|(_, p)| p.name == name).map(|(id, p)| (*id, p))
    }
}
