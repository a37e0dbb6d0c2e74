//! Threads for work that blocks: file reads that miss the page cache, fsync, name look-ups.
//!
//! Contract: the number of threads follows the load, from none up to a maximum; a thread without work for
//! [`IDLE`] ends. A job that panics fails alone. Jobs wait in an unbounded queue: who submits them bounds them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use crate::channel::{Receiver, oneshot};
use crate::lock::{ContentionMutex, LockTable};
use crate::staff::Staff;
use crossbeam::channel::{self, RecvTimeoutError};

/// How long a thread waits for work before it ends: longer than the gaps in a steady trickle of requests.
pub const IDLE: Duration = Duration::from_secs(10);

/// A blocking job did not return a value: it panicked, or the runtime was shut down first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the blocking job panicked or was dropped at shutdown")]
pub struct JobFailed;

type Job = Box<dyn FnOnce() + Send>;

/// The pool of one runtime.
pub(crate) struct BlockingPool {
    name: String,
    threads_max: usize,
    idle: Duration,
    sender: ContentionMutex<Option<channel::Sender<Job>>>,
    receiver: channel::Receiver<Job>,
    counts: Arc<Counts>,
    joins: ContentionMutex<Vec<std::thread::JoinHandle<()>>>,
}

struct Counts {
    /// Held while a job is queued and while a thread decides to end, so that no job is left to a thread that has gone.
    gate: ContentionMutex<()>,
    staff: Staff,
    panics: AtomicUsize,
}

impl BlockingPool {
    pub(crate) fn new(name: String, threads_max: usize, locks: &LockTable) -> BlockingPool {
        let (sender, receiver) = channel::unbounded();
        let counts = Counts {
            gate: ContentionMutex::new(locks, "blocking gate", ()),
            staff: Staff::default(),
            panics: AtomicUsize::new(0),
        };
        BlockingPool {
            name,
            threads_max: threads_max.max(1),
            idle: IDLE,
            sender: ContentionMutex::new(locks, "blocking sender", Some(sender)),
            receiver,
            counts: Arc::new(counts),
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
        let sender = self.sender.lock();
        if let Some(sender) = &*sender {
            let _gate = self.counts.gate.lock();
            let is_more_needed = self.counts.staff.comes(|| {
                // Cannot fail: the receiver lives as long as the pool.
                let _ = sender.send(job);
            });
            if is_more_needed {
                self.grow();
            }
        }
        rx
    }

    /// Threads alive now.
    pub(crate) fn threads(&self) -> usize {
        self.counts.staff.threads()
    }

    /// Jobs that panicked so far.
    pub(crate) fn panics(&self) -> usize {
        self.counts.panics.load(SeqCst)
    }

    /// Lets the queued jobs finish and joins the threads. A job that never returns would hold this up.
    pub(crate) fn shutdown(&self) {
        self.sender.lock().take();
        let joins = std::mem::take(&mut *self.joins.lock());
        for join in joins {
            if join.thread().id() != std::thread::current().id() {
                // A pool thread catches its jobs' panics, so there is nothing in the result.
                let _ = join.join();
            }
        }
    }

    /// Called with the gate held, so that one thread at a time decides.
    fn grow(&self) {
        let threads = self.threads();
        if threads >= self.threads_max {
            return;
        }
        self.counts.staff.hired();
        let (receiver, counts, idle) = (self.receiver.clone(), Arc::clone(&self.counts), self.idle);
        let spawned = std::thread::Builder::new()
            .name(format!("{}-io", self.name))
            .spawn(move || serve(&receiver, &counts, idle));
        match spawned {
            Ok(join) => {
                let mut joins = self.joins.lock();
                joins.retain(|join| !join.is_finished());
                joins.push(join);
            }
            Err(error) => {
                self.counts.staff.left();
                tracing::error!(%error, threads, "cannot start another I/O thread");
                // Without a single thread nobody would ever come for the jobs: let them fail instead.
                while threads == 0 && self.receiver.try_recv().is_ok() {
                    self.counts.staff.ended();
                }
            }
        }
    }
}

fn serve(receiver: &channel::Receiver<Job>, counts: &Counts, idle: Duration) {
    loop {
        match receiver.recv_timeout(idle) {
            Ok(job) => {
                if catch_unwind(AssertUnwindSafe(job)).is_err() {
                    counts.panics.fetch_add(1, SeqCst);
                    tracing::error!("a blocking job panicked");
                }
                counts.staff.ended();
            }
            Err(RecvTimeoutError::Timeout) => {
                let _gate = counts.gate.lock();
                if counts.staff.may_leave(receiver.is_empty()) {
                    return;
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                counts.staff.left();
                return;
            }
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
            let done: Vec<_> = gates.into_iter().map(|gate| pool.run(move || gate.recv_blocking())).collect();
            assert_eq!(pool.threads(), jobs.min(3), "{jobs} jobs that wait");
            open.into_iter().for_each(|gate| assert_eq!(gate.send(()), Ok(())));
            done.into_iter().for_each(|job| assert_eq!(job.recv_blocking(), Ok(Ok(()))));
            while pool.threads() > 0 {
                std::thread::yield_now();
            }
        }
        pool.shutdown();
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
