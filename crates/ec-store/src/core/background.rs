//! Disk jobs that no client waits for: a few I/O threads at a time, so that the others are left to
//! clients. They are of class III, so that those that wait for a thread share it with clients' by
//! weight.
//!
//! Contract: a job holds its slot only while it runs on an I/O thread, never while it waits for
//! another shard; so slots cannot wait for each other.

use super::{Core, Outlet};
use messenger::{JobFailed, TrafficClass};

impl<O: Outlet> Core<O> {
    /// Changes [`CoreConfig::disk_threads`](super::CoreConfig::disk_threads): jobs that run are not
    /// interrupted.
    pub fn set_disk_threads(&self, threads: u64) {
        self.shared.disk_threads.set_max(threads);
    }

    /// Runs a job of a scrub, of rebuilding or of returning space on an I/O thread, once one of
    /// [`CoreConfig::disk_threads`](super::CoreConfig::disk_threads) is free. `bytes`: what it
    /// moves, as far as known.
    ///
    /// # Errors
    /// The job panicked.
    pub(super) async fn background<T: Send + 'static>(
        &self,
        bytes: usize,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JobFailed> {
        let _slot = self.shared.disk_threads.take().await;
        {
            let stats = &mut self.shared.state.borrow_mut().stats;
            stats.disk_jobs += 1;
            stats.disk_jobs_at_once = stats.disk_jobs_at_once.max(self.shared.disk_threads.taken());
        }
        self.shared.worker.blocking_as(TrafficClass::Background, bytes, job).await
    }
}
