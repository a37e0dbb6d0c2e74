//! What the monitor must not forget: the map, and the state of PGs and sessions that only it knows.
//!
//! Contract: a value, saved durably by a [`crate::ControlPlane`] before the map in it is published,
//! so that no daemon ever acts on a map that a restarted monitor would not know.

use crate::map::{ClusterMap, SessionState};
use protocol::{PgId, SessionId, ShardSet};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Everything of the monitor that survives its restart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MonitorState {
    /// The map as last published, or about to be.
    pub map: ClusterMap,
    /// Beside each PG of the map: what only the monitor knows.
    pub pgs: BTreeMap<PgId, PgState>,
    /// What clients call themselves, for the operator; of the sessions in the map.
    pub session_names: BTreeMap<SessionId, String>,
    /// The namespace of this cluster, from the first announcement of a metadata service on.
    pub namespace: Option<u128>,
}

/// The monitor's own knowledge of a PG. Names follow the model of the write path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PgState {
    /// The confirmed in-sync set (model: `iss`): these hold everything acknowledged. Never fewer
    /// than k.
    pub confirmed: ShardSet,
    /// Members that came back from a power loss, without their unsynced records, since the last
    /// activation.
    pub lost: ShardSet,
    /// Shards whose disk was replaced and that have not joined again.
    pub gone: ShardSet,
    /// The proposed set must do with members that are `lost`, as fewer than k others are there.
    pub forced: bool,
    /// Members of the proposed set that have answered in its epoch.
    pub peered: ShardSet,
    /// Shards outside the in-sync set that have asked to be written to.
    pub asked: ShardSet,
    /// The PG was active once. Until then it holds nothing, and a blank disk has lost nothing.
    pub begun: bool,
}

impl MonitorState {
    /// Checks what must hold of every state, however it came about.
    ///
    /// # Errors
    /// Says which invariant is broken, and where.
    pub fn check_invariants(&self) -> Result<(), String> {
        self.map.check_invariants()?;
        if !self.pgs.keys().eq(self.map.pgs.keys()) {
            return Err("the PGs of the map and those of the monitor differ".into());
        }
        if let Some(id) = self.session_names.keys().find(|id| !self.map.sessions.contains_key(id)) {
            return Err(format!("{id} has a name and is not in the map"));
        }
        for (&id, state) in &self.pgs {
            self.check_pg(id, state).map_err(|what| format!("pg {id}: {what}"))?;
        }
        Ok(())
    }

    fn check_pg(&self, id: PgId, state: &PgState) -> Result<(), String> {
        let (pg, k) = (&self.map.pgs[&id], u32::from(self.map.pools[&id.pool].profile.k()));
        let up = self.map.up_shards(id);
        if state.confirmed.len() < k {
            return Err(format!(
                "the confirmed in-sync set {:?} is below k = {k}",
                state.confirmed
            )); // Rule: IssFloor
        }
        if !pg.in_sync.minus(state.confirmed).is_empty() {
            return Err(format!(
                "{:?} is proposed, beyond the confirmed {:?}",
                pg.in_sync, state.confirmed
            )); // IssOnly
        }
        if pg.active
            && (pg.in_sync != state.confirmed
                || !state.begun
                || !state.peered.minus(pg.in_sync).is_empty())
        {
            return Err("it is active with a set that was never confirmed".into()); // Rule: Activate
        }
        if pg.active && !pg.in_sync.intersection(state.gone).is_empty() {
            return Err("a replaced disk is in sync".into()); // Rule: BlankCheck
        }
        if !pg.joining.minus(state.asked.intersection(up)).is_empty() {
            return Err("a shard is joining that has not asked or is down".into());
        }
        if !pg.in_sync.minus(up).is_empty() {
            return Err(format!("{:?} is in sync and only {up:?} is up", pg.in_sync));
        }
        if !state.asked.minus(up).is_empty() || !state.peered.minus(pg.in_sync).is_empty() {
            return Err("a shard that is down has asked, or one outside has peered".into());
        }
        Ok(())
    }

    /// Sessions that are dead and not yet resolved.
    pub fn dead_sessions(&self) -> impl Iterator<Item = SessionId> + '_ {
        self.map.sessions.iter().filter(|(_, s)| **s == SessionState::Dead).map(|(id, _)| *id)
    }
}
