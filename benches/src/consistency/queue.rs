//! One I/O queue for a whole server, and the threads that take from it: GlusterFS's io-threads
//! (Figure 2.5 of the thesis).
//!
//! Contract: requests are taken in the order in which they came, and are carried out side by side,
//! so that they end in any order. A thread without work sleeps.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::{JoinHandle, Thread};

use messenger::sync::{ContentionMutex, LockTable};
use messenger::{Connection, Message};
use protocol::SessionId;

use super::place::{self, Hands, SharedPlace};

/// Name of the queue's lock in the table of locks.
pub(super) const QUEUE_LOCK: &str = "io queue";

/// A request, and who sent it.
pub(super) struct Job {
    pub(super) client: SessionId,
    pub(super) connection: Connection,
    pub(super) message: Message,
}

/// The queue.
pub(super) struct Queue(ContentionMutex<State>);

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Threads that found nothing to do.
    asleep: Vec<Thread>,
    is_closed: bool,
}

impl Queue {
    pub(super) fn new(locks: &LockTable) -> Queue {
        Queue(ContentionMutex::new(locks, QUEUE_LOCK, State::default()))
    }

    pub(super) fn push(&self, job: Job) {
        let mut state = self.0.lock();
        state.jobs.push_back(job);
        let thread = state.asleep.pop();
        drop(state);
        if let Some(thread) = thread {
            thread.unpark();
        }
    }

    /// The next job; `None` once the queue is closed and empty.
    fn take(&self) -> Option<Job> {
        loop {
            let mut state = self.0.lock();
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            if state.is_closed {
                return None;
            }
            state.asleep.push(std::thread::current());
            drop(state);
            std::thread::park();
            // Whoever woke it has taken it off the list; a wake-up without a reason has not.
            let this = std::thread::current().id();
            self.0.lock().asleep.retain(|thread| thread.id() != this);
        }
    }

    fn close(&self) {
        let mut state = self.0.lock();
        state.is_closed = true;
        state.asleep.drain(..).for_each(|thread| thread.unpark());
    }
}

/// The threads.
pub(super) struct IoThreads {
    queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
}

impl IoThreads {
    /// Starts them, with names that begin with `name`; `hands` makes what each has of its own.
    pub(super) fn start(
        name: &str,
        count: usize,
        queue: Arc<Queue>,
        place: &Arc<SharedPlace>,
        hands: impl Fn(usize) -> Hands,
    ) -> std::io::Result<IoThreads> {
        let mut pool = IoThreads { queue, threads: Vec::with_capacity(count) };
        for index in 0..count {
            let (queue, place, hands) = (Arc::clone(&pool.queue), Arc::clone(place), hands(index));
            let thread = std::thread::Builder::new().name(format!("{name}-{index}"));
            pool.threads.push(thread.spawn(move || work(&queue, &place, &hands))?);
        }
        Ok(pool)
    }
}

impl Drop for IoThreads {
    fn drop(&mut self) {
        self.queue.close();
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so; its requests run into their deadlines.
            let _ = thread.join();
        }
    }
}

fn work(queue: &Queue, place: &SharedPlace, hands: &Hands) {
    while let Some(Job { client, connection, message }) = queue.take() {
        place::serve(place, hands, client, &connection, message);
    }
}
