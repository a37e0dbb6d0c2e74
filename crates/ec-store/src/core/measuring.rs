//! What the fragments of a core take on the disk, for the operator: the disk may hold other things.
//!
//! Contract: decides nothing. A core looks at all its fragments again while something is written,
//! and spends a hundredth of the time on that at most; so the number is young where they are few.

use super::{Core, Outlet};
use messenger::TrafficClass;
use std::time::{Duration, Instant};

/// A core looks again no sooner.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// Nor before so many times as long are over as the last look took.
const PAUSE_TIMES: u32 = 100;
/// Space also comes back when nothing is written; then a core looks this often.
const PAUSE_IDLE: Duration = Duration::from_secs(60);

impl<O: Outlet> Core<O> {
    pub(super) async fn measures(self) {
        let mut seen = None;
        let mut last = Instant::now();
        loop {
            let began = Instant::now();
            let written = self.shared.state.borrow().store.space.disk_written();
            if seen != Some(written) || last.elapsed() >= PAUSE_IDLE {
                (seen, last) = (Some(written), began);
                let Some(bytes) = self.measure().await else { return };
                self.shared.state.borrow_mut().stats.stored_bytes = bytes;
            }
            self.shared.worker.sleep(PAUSE_MIN.max(began.elapsed() * PAUSE_TIMES)).await;
            if self.shared.state.borrow().stopped {
                return;
            }
        }
    }

    /// `None`: the core stops.
    async fn measure(&self) -> Option<u64> {
        let pgs: Vec<_> = self.shared.state.borrow().shards.keys().copied().collect();
        let mut sum = 0;
        for pg in pgs {
            let job = {
                let mut state = self.shared.state.borrow_mut();
                if state.stopped {
                    return None;
                }
                state.store.fragments.size_of_pg(pg)
            };
            match self.shared.worker.blocking_as(TrafficClass::Background, 0, job).await {
                Ok(Ok(bytes)) => sum += bytes,
                Ok(Err(error)) => tracing::debug!(%pg, %error, "cannot be measured"),
                Err(_) => tracing::warn!(%pg, "measuring ended in a panic"),
            }
        }
        Some(sum)
    }
}
