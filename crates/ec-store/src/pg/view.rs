//! What the cluster map says of one PG, as plain values: the machines know nothing of maps.

use protocol::{Epoch, PgId, Profile, SessionId, ShardIndex, ShardSet};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A PG as the map has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PgView {
    /// Which.
    pub pg: PgId,
    /// The map epoch in which the PG last changed. Attaches end with it.
    pub epoch: Epoch,
    /// Its pool's code.
    pub profile: Profile,
    /// The in-sync set or, while not active, the set proposed for it.
    pub in_sync: ShardSet,
    /// Shards outside it that take part in new writes while they are rebuilt.
    pub joining: ShardSet,
    /// All members of the in-sync set have answered in this epoch.
    pub active: bool,
}

impl PgView {
    /// Every shard that new writes go to.
    pub fn writers(&self) -> ShardSet {
        self.in_sync.union(self.joining)
    }

    /// All shards of the PG, whatever their state.
    pub fn all(&self) -> ShardSet {
        ShardSet::first(self.profile.shards())
    }
}

/// What the map says of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SessionStanding {
    /// May write.
    Live,
    /// Expired; its last writes are being decided.
    Dead,
    /// Resolved everywhere, or closed with everything stable.
    Gone,
    /// Newer than this map.
    Unknown,
}

/// The sessions of one map, shared by all PGs of it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SessionTable {
    /// Those that may write.
    pub live: BTreeSet<SessionId>,
    /// Those that are expired and not yet resolved everywhere.
    pub dead: BTreeSet<SessionId>,
    /// The greatest id ever given out.
    pub last: SessionId,
}

impl SessionTable {
    /// How many may have writes that not all shards have taken.
    pub fn unresolved(&self) -> u64 {
        (self.live.len() + self.dead.len()) as u64
    }

    /// What the map says of `session`.
    pub fn standing(&self, session: SessionId) -> SessionStanding {
        if self.live.contains(&session) {
            SessionStanding::Live
        } else if self.dead.contains(&session) {
            SessionStanding::Dead
        } else if session > self.last {
            SessionStanding::Unknown
        } else {
            SessionStanding::Gone
        }
    }
}

/// A PG as one of its shards sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardView {
    /// The PG.
    pub pg: PgView,
    /// Which shard of it is held here.
    pub me: ShardIndex,
    /// The sessions of the map.
    pub sessions: Arc<SessionTable>,
}

impl ShardView {
    /// Is this shard in the in-sync set (or proposed for it)?
    pub fn is_in_sync(&self) -> bool {
        self.pg.in_sync.contains(self.me)
    }

    /// Does this shard take part in new writes while it is rebuilt?
    pub fn is_joining(&self) -> bool {
        self.pg.joining.contains(self.me)
    }
}
