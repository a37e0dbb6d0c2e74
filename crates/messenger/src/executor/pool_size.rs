//! How many threads the I/O pool has, and whether that is enough.
//!
//! Contract: jobs come, and threads begin and leave, under one lock of the caller, the *lock
//! queue*; a job ends without it. A job that comes counts before it is queued, and until it has
//! run, so there are never fewer threads than queued and running jobs, but for those that
//! [`PoolSize::comes`] said must be hired. A thread leaves only if it sees, under the lock queue,
//! that nothing is queued. So no job is left to a thread that has gone.
//!
//! The counts are parameters, so that `loom` can stand in for the hardware in the tests.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The operations that it needs of an atomic count.
pub(crate) trait Count {
    fn load(&self, order: Ordering) -> usize;
    fn fetch_add(&self, by: usize, order: Ordering) -> usize;
    fn fetch_sub(&self, by: usize, order: Ordering) -> usize;
}

impl Count for AtomicUsize {
    fn load(&self, order: Ordering) -> usize {
        AtomicUsize::load(self, order)
    }

    fn fetch_add(&self, by: usize, order: Ordering) -> usize {
        AtomicUsize::fetch_add(self, by, order)
    }

    fn fetch_sub(&self, by: usize, order: Ordering) -> usize {
        AtomicUsize::fetch_sub(self, by, order)
    }
}

/// The threads of one pool and their work.
#[derive(Debug, Default)]
pub(crate) struct PoolSize<C = AtomicUsize> {
    threads: C,
    /// Jobs queued or running.
    jobs: C,
}

impl<C: Count> PoolSize<C> {
    /// Threads alive now.
    pub(crate) fn threads(&self) -> usize {
        self.threads.load(Ordering::SeqCst)
    }

    /// A job is queued by `queue`, under the lock queue. True: another thread is needed for it.
    pub(crate) fn comes(&self, queue: impl FnOnce()) -> bool {
        let jobs = self.jobs.fetch_add(1, Ordering::SeqCst) + 1;
        queue();
        jobs > self.threads()
    }

    /// A job has run, or failed, or was thrown away.
    pub(crate) fn ended(&self) {
        self.jobs.fetch_sub(1, Ordering::SeqCst);
    }

    /// A thread is about to begin; under the lock queue.
    pub(crate) fn hired(&self) {
        self.threads.fetch_add(1, Ordering::SeqCst);
    }

    /// A thread leaves, or did not begin; under the lock queue.
    pub(crate) fn left(&self) {
        self.threads.fetch_sub(1, Ordering::SeqCst);
    }

    /// A thread has waited long for work, and holds the lock queue. True: nothing is queued, and
    /// the thread has left.
    pub(crate) fn may_leave(&self, is_queue_empty: bool) -> bool {
        if is_queue_empty {
            self.left();
        }
        is_queue_empty
    }
}

#[cfg(test)]
mod tests;
