//! Interleavings of whoever has jobs and threads that grow tired of waiting, with up to three
//! preemptions, by `loom`; and a thread that leaves carelessly, which must be caught.

use super::*;
use loom::sync::atomic::AtomicUsize as Modelled;
use loom::sync::{Arc, Mutex};
use loom::thread;

impl Count for Modelled {
    fn load(&self, order: Ordering) -> usize {
        Modelled::load(self, order)
    }

    fn fetch_add(&self, by: usize, order: Ordering) -> usize {
        Modelled::fetch_add(self, by, order)
    }

    fn fetch_sub(&self, by: usize, order: Ordering) -> usize {
        Modelled::fetch_sub(self, by, order)
    }
}

/// A pool of one or two threads, whose jobs do nothing.
struct Pool {
    /// As it is due: a thread looks at the queue with the lock queue held. Else it looks first, and
    /// takes the lock queue to leave.
    looks_under_the_gate: bool,
    lock_queue: Mutex<()>,
    pool_size: PoolSize<Modelled>,
    /// How many jobs wait.
    queue: Modelled,
    run: Modelled,
    hired: Mutex<Vec<thread::JoinHandle<()>>>,
}

impl Pool {
    fn submit(pool: &Arc<Pool>) {
        let lock_queue = pool.lock_queue.lock().expect("no panic");
        let is_more_needed = pool.pool_size.comes(|| {
            pool.queue.fetch_add(1, Ordering::AcqRel);
        });
        if is_more_needed && pool.pool_size.threads() < 2 {
            pool.pool_size.hired();
            let serving = Arc::clone(pool);
            pool.hired.lock().expect("no panic").push(thread::spawn(move || serving.serve()));
        }
        drop(lock_queue);
    }

    fn take(&self) -> bool {
        let some = |jobs: usize| jobs.checked_sub(1);
        self.queue.fetch_update(Ordering::AcqRel, Ordering::Acquire, some).is_ok()
    }

    fn is_empty(&self) -> bool {
        self.queue.load(Ordering::Acquire) == 0
    }

    /// A thread that is tired as soon as it finds nothing.
    fn serve(&self) {
        loop {
            if self.take() {
                self.run.fetch_add(1, Ordering::AcqRel);
                self.pool_size.ended();
                continue;
            }
            let early = self.is_empty();
            let _gate = self.lock_queue.lock().expect("no panic");
            let is_empty = if self.looks_under_the_gate { self.is_empty() } else { early };
            if self.pool_size.may_leave(is_empty) {
                return;
            }
        }
    }
}

/// Jobs come one after the other while threads leave as soon as they may; in the end every job has
/// run.
fn no_job_is_left(jobs: usize, preemptions: usize, looks_under_the_gate: bool) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let pool = Arc::new(Pool {
            looks_under_the_gate,
            lock_queue: Mutex::new(()),
            pool_size: PoolSize { threads: Modelled::new(0), jobs: Modelled::new(0) },
            queue: Modelled::new(0),
            run: Modelled::new(0),
            hired: Mutex::new(Vec::new()),
        });
        (0..jobs).for_each(|_| Pool::submit(&pool));
        let hired = std::mem::take(&mut *pool.hired.lock().expect("no panic"));
        hired.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert_eq!(pool.run.load(Ordering::Acquire), jobs, "a job is left, and no thread");
        assert_eq!((pool.pool_size.threads(), pool.pool_size.jobs.load(Ordering::Acquire)), (0, 0));
    });
}

#[test]
fn no_job_is_left_without_a_thread() {
    no_job_is_left(2, 3, true);
    // With three preemptions it takes ten seconds.
    no_job_is_left(3, 2, true);
}

#[test]
#[should_panic(expected = "a job is left")]
fn the_model_finds_a_thread_that_looks_before_it_takes_the_gate() {
    no_job_is_left(2, 3, false);
}

#[test]
fn one_more_thread_for_each_job_that_none_is_free_for() {
    let pool_size = super::PoolSize::<AtomicUsize>::default();
    assert!(pool_size.comes(|| {}), "nobody is there");
    pool_size.hired();
    assert!(pool_size.comes(|| {}), "the only one is busy");
    pool_size.hired();
    pool_size.ended();
    assert!(!pool_size.comes(|| {}), "one is free");
    assert!(!pool_size.may_leave(false) && pool_size.may_leave(true));
    assert_eq!(pool_size.threads(), 1);
}
