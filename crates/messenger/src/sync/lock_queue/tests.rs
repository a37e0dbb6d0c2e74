//! A few workers at one lock queue in every interleaving with at most three preemptions, by `loom`:
//! holders that stay as long as there are marks, and holders whose budget ends first; and lock
//! queues that go wrong, which must be caught.

use super::*;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU32 as Modelled;
use loom::thread;

impl Word for Modelled {
    fn fetch_or(&self, bits: u32, order: Ordering) -> u32 {
        Modelled::fetch_or(self, bits, order)
    }

    fn swap(&self, bits: u32, order: Ordering) -> u32 {
        Modelled::swap(self, bits, order)
    }

    fn compare_exchange(
        &self,
        current: u32,
        new: u32,
        done: Ordering,
        failed: Ordering,
    ) -> Result<u32, u32> {
        Modelled::compare_exchange(self, current, new, done, failed)
    }
}

/// A lock queue as workers use it.
trait Door: Default + Send + Sync + 'static {
    fn enter(&self, reasons: u32) -> Option<u32>;
    fn leave(&self) -> Option<u32>;
}

impl Default for LockQueue<Modelled> {
    fn default() -> Self {
        LockQueue { word: Modelled::new(0) }
    }
}

impl Door for LockQueue<Modelled> {
    fn enter(&self, reasons: u32) -> Option<u32> {
        LockQueue::enter(self, reasons)
    }

    fn leave(&self) -> Option<u32> {
        LockQueue::leave(self)
    }
}

/// The canary: it takes the marks before it lets go, but lets go without looking again.
#[derive(Default)]
struct Careless(LockQueue<Modelled>);

impl Door for Careless {
    fn enter(&self, reasons: u32) -> Option<u32> {
        self.0.enter(reasons)
    }

    fn leave(&self) -> Option<u32> {
        let marks = self.0.take_marks();
        if marks != 0 {
            return Some(marks);
        }
        self.0.word.swap(0, Ordering::AcqRel);
        None
    }
}

/// What arrived at a connection's socket, and what was read of it, under the lock queue alone.
struct Socket {
    arrived: Modelled,
    read: Modelled,
}

impl Default for Socket {
    fn default() -> Self {
        Socket { arrived: Modelled::new(0), read: Modelled::new(0) }
    }
}

impl Socket {
    /// Not one operation: the lock queue alone keeps another thread out, and makes this one see
    /// what it did.
    fn read_all(&self) {
        let read = self.read.load(Ordering::Relaxed) | self.arrived.load(Ordering::Acquire);
        self.read.store(read, Ordering::Relaxed);
    }
}

/// A connection that workers run.
trait Run: Default + Send + Sync + 'static {
    fn socket(&self) -> &Socket;

    /// What a worker does when its epoll set reports something.
    fn run(&self, reasons: u32);

    fn is_free(&self) -> bool;
}

/// Its holder stays as long as there are marks.
struct Patient<D> {
    door: D,
    socket: Socket,
    /// Threads inside.
    inside: Modelled,
}

impl<D: Door> Default for Patient<D> {
    fn default() -> Self {
        Patient { door: D::default(), socket: Socket::default(), inside: Modelled::new(0) }
    }
}

impl<D: Door> Run for Patient<D> {
    fn socket(&self) -> &Socket {
        &self.socket
    }

    fn is_free(&self) -> bool {
        self.door.enter(1).is_some()
    }

    /// Goes in or leaves a mark, reads until the socket is empty, and goes on for the marks of
    /// others.
    fn run(&self, reasons: u32) {
        let Some(mut reasons) = self.door.enter(reasons) else { return };
        loop {
            assert_ne!(reasons, 0, "nobody runs without a reason");
            assert_eq!(self.inside.swap(1, Ordering::Relaxed), 0, "two are inside");
            self.socket.read_all();
            self.inside.store(0, Ordering::Relaxed);
            match self.door.leave() {
                Some(marks) => reasons = marks,
                None => return,
            }
        }
    }
}

/// Each of `workers` threads sees something new arrive and runs; in the end all of it must have
/// been read.
fn no_arrival_is_lost<C: Run>(workers: u32) {
    let mut model = loom::model::Builder::new();
    // Three switches between threads where none had to be: more makes the model of three workers
    // take minutes.
    model.preemption_bound = Some(3);
    model.check(move || {
        let connection = Arc::new(C::default());
        let arrive = |connection: &C, worker: u32| {
            connection.socket().arrived.fetch_or(1 << worker, Ordering::AcqRel);
            connection.run(1 << worker);
        };
        let threads: Vec<_> = (1..workers)
            .map(|worker| {
                let connection = Arc::clone(&connection);
                thread::spawn(move || arrive(&connection, worker))
            })
            .collect();
        arrive(&connection, 0);
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        let read = connection.socket().read.load(Ordering::Relaxed);
        assert_eq!(read, (1 << workers) - 1, "something arrived and was never read");
        assert!(connection.is_free(), "the gate is free in the end");
    });
}

#[test]
fn two_workers_lose_nothing() {
    no_arrival_is_lost::<Patient<LockQueue<Modelled>>>(2);
}

#[test]
fn three_workers_lose_nothing() {
    no_arrival_is_lost::<Patient<LockQueue<Modelled>>>(3);
}

/// The reason of a worker that comes back after its budget has ended.
const AGAIN: u32 = 1 << 8;

/// Its holder takes the marks of others once only, then notes them and comes back later.
struct Budgeted<const NOTES: bool> {
    lock_queue: LockQueue<Modelled>,
    socket: Socket,
    /// What is known to have arrived and was not read yet; under the lock queue alone.
    readable: Modelled,
}

impl<const NOTES: bool> Default for Budgeted<NOTES> {
    fn default() -> Self {
        Budgeted {
            lock_queue: LockQueue::default(),
            socket: Socket::default(),
            readable: Modelled::new(0),
        }
    }
}

impl<const NOTES: bool> Run for Budgeted<NOTES> {
    fn socket(&self) -> &Socket {
        &self.socket
    }

    fn is_free(&self) -> bool {
        self.lock_queue.enter(1).is_some()
    }

    /// As `Attachment::run_or_mark` does it, with `PASSES_MAX` of one.
    fn run(&self, reasons: u32) {
        let mut reasons = reasons;
        loop {
            let Some(entered) = self.lock_queue.enter(reasons) else { return };
            self.turn(entered);
            let Some(marks) = self.lock_queue.leave() else { return };
            self.note(marks);
            while let Some(marks) = self.lock_queue.leave() {
                self.note(marks);
            }
            reasons = AGAIN;
        }
    }
}

impl<const NOTES: bool> Budgeted<NOTES> {
    fn note(&self, marks: u32) {
        if NOTES {
            self.readable
                .store(self.readable.load(Ordering::Relaxed) | (marks & !AGAIN), Ordering::Relaxed);
        }
    }

    fn turn(&self, reasons: u32) {
        if self.readable.load(Ordering::Relaxed) | (reasons & !AGAIN) != 0 {
            self.socket.read_all();
        }
        self.readable.store(0, Ordering::Relaxed);
    }
}

#[test]
fn a_budget_that_ends_loses_nothing() {
    no_arrival_is_lost::<Budgeted<true>>(2);
    no_arrival_is_lost::<Budgeted<true>>(3);
}

#[test]
#[should_panic(expected = "never read")]
fn the_model_finds_a_holder_that_notes_nothing() {
    no_arrival_is_lost::<Budgeted<false>>(2);
}

#[test]
#[should_panic(expected = "never read")]
fn the_model_finds_a_gate_that_forgets() {
    no_arrival_is_lost::<Patient<Careless>>(2);
}

#[test]
fn a_mark_is_taken_once() {
    let lock_queue = super::LockQueue::<AtomicU32>::default();
    assert_eq!(lock_queue.enter(1), Some(1));
    assert_eq!((lock_queue.enter(2), lock_queue.enter(4), lock_queue.enter(2)), (None, None, None));
    assert_eq!(lock_queue.leave(), Some(6));
    assert_eq!(lock_queue.leave(), None);
    assert_eq!(lock_queue.enter(8), Some(8));
}
