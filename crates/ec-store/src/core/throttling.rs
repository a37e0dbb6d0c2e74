//! How a core keeps the bounds of [`crate::throttle`] and of its journal: sessions are asked to
//! begin no more writes, syncs begin sooner.
//!
//! Contract: nothing is refused at a bound; what is on its way is taken. Whoever was asked to hold
//! is told when there is room again: after a trim, after applying, after a sync.

use super::{Core, Outlet, State};
use crate::throttle::Throttles;
use protocol::PgId;
use protocol::shard::AckMessage;

impl<O> State<O> {
    /// The flag that every acknowledgement must have, if a bound is reached.
    pub(super) fn hold(&mut self) -> u8 {
        let (journal, queue, commit) = self.bounds_reached();
        let is_over = journal || queue || commit;
        if is_over && !std::mem::replace(&mut self.is_holding, true) && !journal {
            let stats = &mut self.stats;
            *(if queue { &mut stats.holds_by_queue } else { &mut stats.holds_by_commit }) += 1;
        }
        if is_over { AckMessage::HOLD } else { 0 }
    }

    /// Those at which sessions hold: of the journal, of what is to be applied, of one sync.
    fn bounds_reached(&self) -> (bool, bool, bool) {
        let commit = self.sync.is_running() && self.is_commit_full();
        (self.store.journal.is_at_limit(), self.is_queue_full(), commit)
    }

    fn is_queue_full(&self) -> bool {
        self.queued_bytes >= self.throttles.queue_bytes_max
    }

    fn is_commit_full(&self) -> bool {
        self.store.bytes_to_sync() - self.sync_began_at >= self.throttles.committing_bytes_max
    }

    /// Something was done with this PG.
    pub(super) fn count_queued(&mut self, pg: PgId) {
        let Some(held) = self.shards.get_mut(&pg) else { return };
        let now = held.shard.queued_bytes();
        self.queued_bytes =
            self.queued_bytes - std::mem::replace(&mut held.queued_bytes, now) + now;
    }

    /// Asks for a sync that a bound makes due. Records that are not durable cannot be applied.
    pub(super) fn want_due_sync(&mut self) {
        if self.sync.is_running() || self.sync.wanted {
            return;
        }
        let is_commit_full = self.is_commit_full();
        self.stats.syncs_by_commit += u64::from(is_commit_full);
        let is_queue_stuck =
            || self.is_queue_full() && self.shards.values().any(|held| held.shard.is_unsynced());
        self.sync.wanted = is_commit_full || is_queue_stuck();
    }
}

impl<O: Outlet> Core<O> {
    /// Changes [`CoreConfig::throttles`](super::CoreConfig::throttles), at once.
    pub fn set_throttles(&self, throttles: Throttles) {
        self.shared.state.borrow_mut().throttles = throttles;
        self.end_hold();
        self.schedule_turn();
    }

    /// Once all bounds are kept again, sessions that were told to begin no more writes are told
    /// that they may.
    pub(super) fn end_hold(&self) {
        let mut state = self.shared.state.borrow_mut();
        if !state.is_holding || state.bounds_reached() != (false, false, false) {
            return;
        }
        let State { shards, touched, is_holding, .. } = &mut *state;
        *is_holding = false;
        for (pg, held) in shards {
            held.shard.acknowledge_all();
            touched.push(*pg);
        }
        drop(state);
        self.schedule_turn();
    }
}
