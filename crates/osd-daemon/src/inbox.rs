//! The queue of a role's owner task.
//!
//! Contract: any thread pushes, one task takes. The queue itself has no bound: nothing pushes more
//! than its connection may have in flight, so the connections' own limits bound it.

use messenger::Worker;
use messenger::sync::{ContentionMutex, LockTable};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// How often owners look at their deadlines: a small part of the shortest, the heartbeats' grace.
const TICK_EVERY: Duration = Duration::from_millis(100);

/// What an owner gets, beside what is its role's own.
pub(crate) trait OwnerEvent: Sized {
    /// Time has passed.
    const TICK: Self;

    /// Is it the last one?
    fn is_stop(&self) -> bool;
}

/// The queue; its clock begins at zero.
#[derive(Debug)]
pub(crate) struct Inbox<E> {
    began: Instant,
    queue: ContentionMutex<Queue<E>>,
}

#[derive(Debug)]
struct Queue<E> {
    events: Vec<(Duration, E)>,
    waker: Option<Waker>,
    stopped: bool,
}

impl<E: OwnerEvent> Inbox<E> {
    /// An empty queue, whose lock `locks` lists under `name`.
    pub fn new(locks: &LockTable, name: &'static str) -> Self {
        let queue = Queue { events: Vec::new(), waker: None, stopped: false };
        Self { began: Instant::now(), queue: ContentionMutex::new(locks, name, queue) }
    }

    /// Adds an event, with the time of its arrival. Does nothing after the last one.
    pub fn push(&self, event: E) {
        let mut queue = self.queue.lock();
        if queue.stopped {
            return;
        }
        queue.stopped = event.is_stop();
        let at = self.began.elapsed(); // read under the lock: times in the queue never go back
        queue.events.push((at, event));
        let waker = queue.waker.take();
        drop(queue);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// All that has arrived; waits for something.
    pub async fn take(&self) -> Vec<(Duration, E)> {
        poll_fn(|cx| {
            let mut queue = self.queue.lock();
            if queue.events.is_empty() {
                queue.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(std::mem::take(&mut queue.events))
        })
        .await
    }

    /// Has the last event been pushed?
    pub fn is_stopped(&self) -> bool {
        self.queue.lock().stopped
    }
}

/// Pushes ticks until the end.
pub(crate) async fn tick<E: OwnerEvent>(worker: Worker, inbox: Arc<Inbox<E>>) {
    while !inbox.is_stopped() {
        worker.sleep(TICK_EVERY).await;
        inbox.push(E::TICK);
    }
}
