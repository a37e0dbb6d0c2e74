//! The monitor of the simulation: in-sync set, epochs, expiry; after the protocol's executable model.

use super::super::view::{PgView, SessionTable};
use super::pg_id;
use protocol::{Epoch, Profile, SessionId, ShardIndex, ShardSet};

pub const K: u32 = 2;

#[derive(Debug)]
pub struct Monitor {
    pub epoch: u64,
    pub map_sync: ShardSet,
    pub up: ShardSet,
    pub joining: ShardSet,
    pub active: bool,
    pub iss: ShardSet,
    lost: ShardSet,
    gone: ShardSet,
    forced: bool,
    pub peered: ShardSet,
    pub asked: ShardSet,
    pub table: SessionTable,
    /// Set when a member without its unsynced tail stayed: what was only reported may be gone.
    pub lost_tail: bool,
}

impl Monitor {
    pub fn new() -> Self {
        Self {
            epoch: 1,
            map_sync: ShardSet::first(3),
            up: ShardSet::first(3),
            joining: ShardSet::EMPTY,
            active: true,
            iss: ShardSet::first(3),
            lost: ShardSet::EMPTY,
            gone: ShardSet::EMPTY,
            forced: false,
            peered: ShardSet::EMPTY,
            asked: ShardSet::EMPTY,
            table: SessionTable::default(),
            lost_tail: false,
        }
    }

    pub fn view(&self) -> PgView {
        PgView {
            pg: pg_id(),
            epoch: Epoch::new(self.epoch),
            profile: Profile::new(2, 1, 512, 8192).expect("a profile"),
            in_sync: self.map_sync,
            joining: self.joining,
            active: self.active,
        }
    }

    fn propose(&mut self) {
        let able = self.iss.intersection(self.up).minus(self.gone);
        self.forced = able.minus(self.lost).len() < K;
        let wish = if self.forced { able } else { able.minus(self.lost) };
        (self.active, self.joining, self.peered) = (false, ShardSet::EMPTY, ShardSet::EMPTY);
        self.map_sync = if wish.len() >= K { wish } else { ShardSet::EMPTY };
        self.epoch += 1;
    }

    fn outsiders_changed(&mut self) {
        if !self.active {
            return self.propose();
        }
        self.joining = self.up.minus(self.iss).intersection(self.asked);
        self.epoch += 1;
    }

    pub fn peer(&mut self, i: ShardIndex) {
        self.peered = self.peered.with(i);
        if self.peered == self.map_sync {
            self.lost_tail |= self.forced && !self.lost.intersection(self.map_sync).is_empty();
            (self.iss, self.lost, self.active) = (self.map_sync, ShardSet::EMPTY, true);
            self.joining = self.up.minus(self.iss).intersection(self.asked);
            self.epoch += 1;
        }
    }

    fn changed(&mut self, i: ShardIndex) {
        if self.iss.contains(i) { self.propose() } else { self.outsiders_changed() }
    }

    pub fn mark_down(&mut self, i: ShardIndex) {
        (self.up, self.asked) = (self.up.without(i), self.asked.without(i));
        self.changed(i);
    }

    pub fn boot(&mut self, i: ShardIndex, lost: bool, blank: bool) {
        (self.up, self.asked) = (self.up.with(i), self.asked.without(i));
        self.lost = if lost { self.lost.with(i) } else { self.lost };
        self.gone = if blank { self.gone.with(i) } else { self.gone };
        self.changed(i);
    }

    pub fn ask_join(&mut self, i: ShardIndex) {
        self.asked = self.asked.with(i);
        self.outsiders_changed();
    }

    pub fn join(&mut self, i: ShardIndex) {
        (self.iss, self.asked) = (self.iss.with(i), self.asked.without(i));
        (self.gone, self.lost) = (self.gone.without(i), self.lost.without(i));
        self.map_sync = self.iss;
        self.outsiders_changed();
    }

    /// May this disk be lost? Never more than the code can bear.
    pub fn can_lose(&self, i: ShardIndex, blank: ShardSet) -> bool {
        let safe = |set: ShardSet| set.minus(self.gone).minus(blank).without(i).len() >= K;
        safe(self.iss) && (self.active || !self.peered.contains(i) || safe(self.map_sync))
    }

    pub fn expire(&mut self, session: SessionId) {
        self.table.live.remove(&session);
        self.table.dead.insert(session);
        self.outsiders_changed();
    }
}
