//! Backfill, the rebuilding of a shard that began on an empty disk: it pauses while the disk is
//! nearly full.
//!
//! Contract: what a shard missed while it was away is rebuilt all the same, as Ceph's recovery is,
//! for that only replaces what the other shards have, too; and a shard that sessions write to
//! already goes on, for their records wait for it. What was begun on an empty disk is remembered
//! until the process ends: what is left after that counts as missed.

use super::{Core, Outlet};
use protocol::PgId;
use protocol::monitor::Fullness;
use std::time::Duration;

/// How often a backfill that waits looks for space.
const LOOK_EVERY: Duration = Duration::from_millis(500);

impl<O: Outlet> Core<O> {
    /// Must the way back of this PG's shard wait for space?
    pub(super) fn pauses_backfill(&self, pg: PgId) -> bool {
        let state = self.shared.state.borrow();
        let shard =
            state.shards.get(&pg).map(|held| &held.shard).filter(|_| state.backfills.contains(&pg));
        let waits = shard.is_some_and(|shard| shard.is_returning() && !shard.view().is_joining());
        waits
            && !state.stopped
            && state.store.space.fullness(self.shared.ratios.get()) >= Fullness::BackfillFull
    }

    /// Waits while the disk is too full for the backfill of this PG, or until its epoch is over.
    pub async fn backfill_room(&self, pg: PgId) {
        let epoch = || self.view(pg).map(|view| view.pg.epoch);
        let began = epoch();
        while self.pauses_backfill(pg) && epoch() == began {
            if self.shared.state.borrow_mut().toofull.insert(pg) {
                tracing::warn!(%pg, "the disk is too full to rebuild a whole shard there: it waits");
            }
            self.shared.worker.sleep(LOOK_EVERY).await;
        }
        self.shared.state.borrow_mut().toofull.remove(&pg);
    }
}
