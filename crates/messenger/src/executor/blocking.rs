//! Threads for work that blocks: file reads that miss the page cache, fsync, name look-ups.
//!
//! Contract: the number of threads follows the load, from none up to a maximum; a thread without
//! work for [`IDLE`] ends. A job that panics fails alone. Jobs wait in an unbounded queue: who
//! submits them bounds them.
//!
//! A thread that finds no job sleeps at once. A queue that spins and yields first, as `crossbeam`'s
//! channel does, costs more CPU than the sleep where jobs come one by one, as syncs do: the next
//! one is a sync and a client's turn away.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::executor::pool_size::PoolSize;
use crate::sync::contention_mutex::{ContentionMutex, LockTable};
use crate::sync::oneshot::{Receiver, oneshot};

/// How long a thread waits for work before it ends: longer than the gaps in a steady trickle of
/// requests.
pub const IDLE: Duration = Duration::from_secs(10);

/// A blocking job did not return a value: it panicked, or the runtime was shut down first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the blocking job panicked or was dropped at shutdown")]
pub struct JobFailed;

type Job = Box<dyn FnOnce() + Send>;

/// The pool of one runtime.
pub(crate) struct BlockingPool {
    name: String,
    idle: Duration,
    shared: Arc<Shared>,
    joins: ContentionMutex<Vec<std::thread::JoinHandle<()>>>,
}

struct Shared {
    /// Locked while a thread decides to end, so that no job is left to one that has gone.
    queue: ContentionMutex<Queue>,
    /// A job was queued, or no more will come.
    came: parking_lot::Condvar,
    pool_size: PoolSize,
    /// May change; at least 1.
    threads_max: AtomicUsize,
    panics: AtomicUsize,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// No more jobs come; those that are queued are still run.
    closed: bool,
}

impl BlockingPool {
    pub(crate) fn new(name: String, threads_max: usize, locks: &LockTable) -> BlockingPool {
        let shared = Shared {
            queue: ContentionMutex::new(locks, "blocking gate", Queue::default()),
            came: parking_lot::Condvar::new(),
            pool_size: PoolSize::default(),
            threads_max: AtomicUsize::new(threads_max.max(1)),
            panics: AtomicUsize::new(0),
        };
        BlockingPool {
            name,
            idle: IDLE,
            shared: Arc::new(shared),
            joins: ContentionMutex::new(locks, "blocking threads", Vec::new()),
        }
    }

    /// Runs `job` on some thread of the pool.
    pub(crate) fn run<T, F>(&self, job: F) -> Receiver<T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let (tx, rx) = oneshot();
        let job: Job = Box::new(move || {
            // Nobody to tell if the waiting task was aborted.
            let _ = tx.send(job());
        });
        let mut queue = self.shared.queue.lock();
        if !queue.closed {
            if self.shared.pool_size.comes(|| queue.jobs.push_back(job)) {
                self.grow(&mut queue);
            }
            drop(queue);
            // Whoever it wakes finds the lock free.
            self.shared.came.notify_one();
        }
        rx
    }

    /// From now on at most so many threads, at least one. Those that are too many end when they
    /// have run what they are at.
    pub(crate) fn set_threads_max(&self, threads_max: usize) {
        // Under the lock: no thread decides by two numbers, and jobs that wait get the new threads.
        let mut queue = self.shared.queue.lock();
        self.shared.threads_max.store(threads_max.max(1), SeqCst);
        for _ in 0..queue.jobs.len() {
            self.grow(&mut queue);
        }
        drop(queue);
        self.shared.came.notify_all();
    }

    /// Threads alive now.
    pub(crate) fn threads(&self) -> usize {
        self.shared.pool_size.threads()
    }

    /// Jobs that panicked so far.
    pub(crate) fn panics(&self) -> usize {
        self.shared.panics.load(SeqCst)
    }

    /// Lets the queued jobs finish and joins the threads. A job that never returns would hold this
    /// up.
    pub(crate) fn shutdown(&self) {
        self.close();
        let joins = std::mem::take(&mut *self.joins.lock());
        for join in joins {
            if join.thread().id() != std::thread::current().id() {
                // A pool thread catches its jobs' panics, so there is nothing in the result.
                let _ = join.join();
            }
        }
    }

    fn close(&self) {
        self.shared.queue.lock().closed = true;
        self.shared.came.notify_all();
    }

    /// Called with the queue locked, so that one thread at a time decides.
    fn grow(&self, queue: &mut Queue) {
        let threads = self.threads();
        if threads >= self.shared.threads_max.load(SeqCst) {
            return;
        }
        self.shared.pool_size.hired();
        let (shared, idle) = (Arc::clone(&self.shared), self.idle);
        let spawned = std::thread::Builder::new()
            .name(format!("{}-io", self.name))
            .spawn(move || serve(&shared, idle));
        match spawned {
            Ok(join) => {
                let mut joins = self.joins.lock();
                joins.retain(|join| !join.is_finished());
                joins.push(join);
            }
            Err(error) => {
                self.shared.pool_size.left();
                tracing::error!(%error, threads, "cannot start another I/O thread");
                // Without a single thread nobody would ever come for the jobs: let them fail
                // instead.
                while threads == 0 && queue.jobs.pop_front().is_some() {
                    self.shared.pool_size.ended();
                }
            }
        }
    }
}

impl Drop for BlockingPool {
    fn drop(&mut self) {
        self.close();
    }
}

fn serve(shared: &Shared, idle: Duration) {
    while let Some(job) = next_job(shared, idle) {
        if catch_unwind(AssertUnwindSafe(job)).is_err() {
            shared.panics.fetch_add(1, SeqCst);
            tracing::error!("a blocking job panicked");
        }
        shared.pool_size.ended();
    }
}

/// Waits for a job; `None` if the thread has left the staff.
fn next_job(shared: &Shared, idle: Duration) -> Option<Job> {
    let mut queue = shared.queue.lock();
    let until = Instant::now() + idle;
    loop {
        // Those that stay, one at least, see to what is queued.
        if shared.pool_size.threads() > shared.threads_max.load(SeqCst) {
            shared.pool_size.left();
            return None;
        }
        if let Some(job) = queue.jobs.pop_front() {
            return Some(job);
        }
        if queue.closed {
            shared.pool_size.left();
            return None;
        }
        // A job that came at the last moment is there, and is taken.
        if !queue.wait_until(&shared.came, until)
            && shared.pool_size.may_leave(queue.jobs.is_empty())
        {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_follow_the_load_up_to_the_maximum_and_down_again() {
        let mut pool = BlockingPool::new("test".into(), 3, &LockTable::default());
        pool.idle = Duration::from_millis(10);
        assert_eq!(pool.threads(), 0, "none without work");
        for jobs in [1, 2, 3, 7] {
            let waiting: Vec<_> = (0..jobs).map(|_| oneshot::<()>()).collect();
            let (open, gates): (Vec<_>, Vec<_>) = waiting.into_iter().unzip();
            let done: Vec<_> = gates
                .into_iter()
                .map(|lock_queue| pool.run(move || lock_queue.recv_blocking()))
                .collect();
            assert_eq!(pool.threads(), jobs.min(3), "{jobs} jobs that wait");
            open.into_iter().for_each(|lock_queue| assert_eq!(lock_queue.send(()), Ok(())));
            done.into_iter().for_each(|job| assert_eq!(job.recv_blocking(), Ok(Ok(()))));
            while pool.threads() > 0 {
                std::thread::yield_now();
            }
        }
        pool.shutdown();
    }

    #[test]
    fn the_maximum_can_change_while_jobs_wait() {
        let pool = BlockingPool::new("test".into(), 1, &LockTable::default());
        let waiting: Vec<_> = (0..6).map(|_| oneshot::<()>()).collect();
        let (open, gates): (Vec<_>, Vec<_>) = waiting.into_iter().unzip();
        let done: Vec<_> =
            gates.into_iter().map(|gate| pool.run(move || gate.recv_blocking())).collect();
        assert_eq!(pool.threads(), 1, "all the others wait");
        pool.set_threads_max(4);
        assert_eq!(pool.threads(), 4);
        pool.set_threads_max(2);
        open.into_iter().for_each(|gate| assert_eq!(gate.send(()), Ok(())));
        done.into_iter().for_each(|job| assert_eq!(job.recv_blocking(), Ok(Ok(()))));
        while pool.threads() > 2 {
            std::thread::yield_now();
        }
        pool.set_threads_max(0);
        assert_eq!(pool.run(|| 7).recv_blocking(), Ok(7), "one stays");
        pool.shutdown();
    }

    #[test]
    fn what_is_queued_at_the_end_is_still_run() {
        let pool = BlockingPool::new("test".into(), 1, &LockTable::default());
        let (open, lock_queue) = oneshot::<()>();
        let first = pool.run(move || lock_queue.recv_blocking());
        let queued: Vec<_> = (0..3).map(|i| pool.run(move || i)).collect();
        pool.close();
        assert!(pool.run(|| 1).recv_blocking().is_err(), "too late");
        assert_eq!(open.send(()), Ok(()));
        assert_eq!(first.recv_blocking(), Ok(Ok(())));
        queued.into_iter().enumerate().for_each(|(i, job)| assert_eq!(job.recv_blocking(), Ok(i)));
        pool.shutdown();
        assert_eq!(pool.threads(), 0);
    }

    #[test]
    fn jobs_run_and_fail_alone() {
        let pool = BlockingPool::new("test".into(), 2, &LockTable::default());
        let failing = pool.run(|| panic!("expected by the test"));
        let results: Vec<_> = (0..50).map(|i| pool.run(move || i * 2)).collect();
        for (i, rx) in results.into_iter().enumerate() {
            assert_eq!(rx.recv_blocking(), Ok(i * 2));
        }
        assert!(failing.recv_blocking().is_err());
        assert!(pool.threads() <= 2);
        // A job that waits for another needs a thread of its own.
        let (tx, rx) = oneshot();
        let waits = pool.run(move || rx.recv_blocking());
        pool.run(move || tx.send(5));
        assert_eq!(waits.recv_blocking(), Ok(Ok(5)));
        pool.shutdown();
        assert_eq!(pool.panics(), 1);
        assert!(pool.run(|| 1).recv_blocking().is_err());
    }
}
