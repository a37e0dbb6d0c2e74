//! Threads for work that blocks: file reads that miss the page cache, fsync, name look-ups.
//!
//! Contract: the number of threads follows the load, from none up to a maximum; a thread without
//! work for [`IDLE`] ends. A job that panics fails alone. Jobs wait in an unbounded queue: who
//! submits them bounds them. Which one is next follows from its traffic class
//! ([`crate::ClassQueue`]); those of one class begin in the order in which they came. A job that
//! runs is not interrupted.
//!
//! A thread that finds no job sleeps at once. A queue that spins and yields first, as `crossbeam`'s
//! channel does, costs more CPU than the sleep where jobs come one by one, as syncs do: the next
//! one is a sync and a client's turn away.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::executor::class_queue::{ClassOrder, ClassQueue};
use crate::executor::pool_size::PoolSize;
use crate::sync::contention_mutex::{ContentionMutex, LockTable};
use crate::sync::oneshot::{Receiver, oneshot};
use crate::telemetry::classes::{ClassMeter, ClassTable};
use crate::telemetry::operation::Began;
use crate::wire::frame::TrafficClass;

/// How long a thread waits for work before it ends: longer than the gaps in a steady trickle of
/// requests.
pub const IDLE: Duration = Duration::from_secs(10);

/// A blocking job did not return a value: it panicked, or the runtime was shut down first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the blocking job panicked or was dropped at shutdown")]
pub struct JobFailed;

/// Names of the operations that time how long jobs of each class wait for a thread.
const WAITS: [&str; 3] = ["io-queue-I", "io-queue-II", "io-queue-III"];

type Job = Box<dyn FnOnce() + Send>;

/// A job that waits.
struct Waiting {
    job: Job,
    bytes: usize,
    queued: Began,
}

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
    meter: ClassMeter,
}

struct Queue {
    jobs: ClassQueue<Waiting>,
    /// No more jobs come; those that are queued are still run.
    closed: bool,
}

impl BlockingPool {
    pub(crate) fn new(
        name: String,
        threads_max: usize,
        order: ClassOrder,
        locks: &LockTable,
        classes: &ClassTable,
    ) -> BlockingPool {
        let queue = Queue { jobs: ClassQueue::new(order), closed: false };
        let shared = Shared {
            queue: ContentionMutex::new(locks, "blocking gate", queue),
            came: parking_lot::Condvar::new(),
            pool_size: PoolSize::default(),
            threads_max: AtomicUsize::new(threads_max.max(1)),
            panics: AtomicUsize::new(0),
            meter: classes.meter("io", WAITS),
        };
        BlockingPool {
            name,
            idle: IDLE,
            shared: Arc::new(shared),
            joins: ContentionMutex::new(locks, "blocking threads", Vec::new()),
        }
    }

    /// Runs `job` on some thread of the pool. `bytes`: what it moves, as far as known.
    pub(crate) fn run<T, F>(&self, class: TrafficClass, bytes: usize, job: F) -> Receiver<T>
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
            let waiting = Waiting { job, bytes, queued: self.shared.meter.queued(class) };
            if self.shared.pool_size.comes(|| queue.jobs.push(class, bytes, waiting)) {
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

    /// Jobs are served in this order from now on, those that wait included.
    pub(crate) fn set_order(&self, order: ClassOrder) {
        self.shared.queue.lock().jobs.set_order(order);
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
                while threads == 0
                    && let Some((class, _)) = queue.jobs.pop()
                {
                    self.shared.meter.dropped(class);
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
        if let Some((class, Waiting { job, bytes, queued })) = queue.jobs.pop() {
            shared.meter.served(class, bytes, queued);
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
    use crate::executor::class_queue::ClassWeights;
    use crate::telemetry::operation::OperationTable;

    fn pool_of(threads_max: usize) -> BlockingPool {
        let locks = LockTable::default();
        let classes = ClassTable::new(&locks, &OperationTable::default());
        BlockingPool::new(
            "test".into(),
            threads_max,
            ClassWeights::default().into(),
            &locks,
            &classes,
        )
    }

    impl BlockingPool {
        fn run_any<T: Send + 'static>(
            &self,
            job: impl FnOnce() -> T + Send + 'static,
        ) -> Receiver<T> {
            self.run(TrafficClass::Client, 0, job)
        }
    }

    /// One thread is held; `jobs` of (class, number) wait. In which order do they run?
    fn order_of(order: ClassOrder, jobs: &[(TrafficClass, usize)]) -> Vec<usize> {
        let pool = pool_of(1);
        pool.set_order(order);
        let (open, gate) = oneshot::<()>();
        let held = pool.run_any(move || gate.recv_blocking());
        while !pool.shared.queue.lock().jobs.is_empty() {
            std::thread::yield_now();
        }
        let ran = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let waiting: Vec<_> = jobs
            .iter()
            .map(|&(class, number)| {
                let ran = Arc::clone(&ran);
                pool.run(class, 4096, move || ran.lock().push(number))
            })
            .collect();
        assert_eq!(open.send(()), Ok(()));
        assert_eq!(held.recv_blocking(), Ok(Ok(())));
        waiting.into_iter().for_each(|job| assert_eq!(job.recv_blocking(), Ok(())));
        pool.shutdown();
        ran.lock().clone()
    }

    #[test]
    fn clients_do_not_wait_behind_a_queue_of_background_jobs() {
        use TrafficClass::{Background, Client, Control};
        let mut jobs: Vec<_> = (0..40).map(|number| (Background, number)).collect();
        jobs.extend((100..110).map(|number| (Client, number)));
        jobs.push((Control, 200));
        let arrival = order_of(ClassOrder::Arrival, &jobs);
        assert_eq!(arrival, jobs.iter().map(|(_, number)| *number).collect::<Vec<_>>());
        let shares = order_of(ClassWeights::default().into(), &jobs);
        assert_eq!(shares[0], 200, "class I is next");
        let place = |number| shares.iter().position(|n| *n == number).expect("all ran");
        let before = shares[..place(109)].iter().filter(|n| **n < 100).count();
        assert!((1..=4).contains(&before), "a fifth beside a full II: {shares:?}");
        assert!((100..110).map(place).is_sorted(), "in order: {shares:?}");
        assert!((0..40).map(place).is_sorted(), "in order: {shares:?}");
    }

    #[test]
    fn threads_follow_the_load_up_to_the_maximum_and_down_again() {
        let mut pool = pool_of(3);
        pool.idle = Duration::from_millis(10);
        assert_eq!(pool.threads(), 0, "none without work");
        for jobs in [1, 2, 3, 7] {
            let waiting: Vec<_> = (0..jobs).map(|_| oneshot::<()>()).collect();
            let (open, gates): (Vec<_>, Vec<_>) = waiting.into_iter().unzip();
            let done: Vec<_> = gates
                .into_iter()
                .map(|lock_queue| pool.run_any(move || lock_queue.recv_blocking()))
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
        let pool = pool_of(1);
        let waiting: Vec<_> = (0..6).map(|_| oneshot::<()>()).collect();
        let (open, gates): (Vec<_>, Vec<_>) = waiting.into_iter().unzip();
        let done: Vec<_> =
            gates.into_iter().map(|gate| pool.run_any(move || gate.recv_blocking())).collect();
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
        assert_eq!(pool.run_any(|| 7).recv_blocking(), Ok(7), "one stays");
        pool.shutdown();
    }

    #[test]
    fn what_is_queued_at_the_end_is_still_run() {
        let pool = pool_of(1);
        let (open, lock_queue) = oneshot::<()>();
        let first = pool.run_any(move || lock_queue.recv_blocking());
        let queued: Vec<_> = (0..3).map(|i| pool.run_any(move || i)).collect();
        pool.close();
        assert!(pool.run_any(|| 1).recv_blocking().is_err(), "too late");
        assert_eq!(open.send(()), Ok(()));
        assert_eq!(first.recv_blocking(), Ok(Ok(())));
        queued.into_iter().enumerate().for_each(|(i, job)| assert_eq!(job.recv_blocking(), Ok(i)));
        pool.shutdown();
        assert_eq!(pool.threads(), 0);
    }

    #[test]
    fn jobs_run_and_fail_alone() {
        let pool = pool_of(2);
        let failing = pool.run_any(|| panic!("expected by the test"));
        let results: Vec<_> = (0..50).map(|i| pool.run_any(move || i * 2)).collect();
        for (i, rx) in results.into_iter().enumerate() {
            assert_eq!(rx.recv_blocking(), Ok(i * 2));
        }
        assert!(failing.recv_blocking().is_err());
        assert!(pool.threads() <= 2);
        // A job that waits for another needs a thread of its own.
        let (tx, rx) = oneshot();
        let waits = pool.run_any(move || rx.recv_blocking());
        pool.run_any(move || tx.send(5));
        assert_eq!(waits.recv_blocking(), Ok(Ok(5)));
        pool.shutdown();
        assert_eq!(pool.panics(), 1);
        assert!(pool.run_any(|| 1).recv_blocking().is_err());
    }
}
