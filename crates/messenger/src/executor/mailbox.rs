//! What other threads ask of a worker, until its end.
//!
//! Contract: what was posted is taken by the worker, or dropped: by the worker that ends, or by
//! whoever posted it too late and finds that the worker has ended. Nothing stays in the queue, for
//! somebody may wait for it to be run or dropped. A post and the end both exchange the flag of the
//! [`sleep flag`](crate::sync::sleep_flag), the post between the queue and its look at whether the
//! worker has ended, the end between saying so and its last look at the queue. So one of them sees
//! the other. When the worker sleeps, and who wakes it, is `sleep flag`'s.
//!
//! Queue and flags are parameters, so that `loom` can stand in for the hardware in the tests.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam::queue::SegQueue;

use crate::sync::sleep_flag::{Flag, SleepFlag};

/// The operations that it needs of a queue between threads.
pub(crate) trait Queue<T> {
    fn push(&self, item: T);
    fn pop(&self) -> Option<T>;
    fn len(&self) -> usize;
    fn is_empty(&self) -> bool;
}

impl<T> Queue<T> for SegQueue<T> {
    fn push(&self, item: T) {
        SegQueue::push(self, item);
    }

    fn pop(&self) -> Option<T> {
        SegQueue::pop(self)
    }

    fn len(&self) -> usize {
        SegQueue::len(self)
    }

    fn is_empty(&self) -> bool {
        SegQueue::is_empty(self)
    }
}

/// The mailbox of one worker.
#[derive(Debug)]
pub(crate) struct Mailbox<T, Q = SegQueue<T>, F = AtomicBool> {
    queue: Q,
    sleep_flag: SleepFlag<F>,
    closed: F,
    items: PhantomData<fn(T)>,
}

impl<T> Default for Mailbox<T> {
    fn default() -> Mailbox<T> {
        Mailbox {
            queue: SegQueue::new(),
            sleep_flag: SleepFlag::default(),
            closed: AtomicBool::new(false),
            items: PhantomData,
        }
    }
}

impl<T, Q: Queue<T>, F: Flag> Mailbox<T, Q, F> {
    /// Gives the worker something, and wakes it if it sleeps. False: the worker has ended; then
    /// what is left is dropped.
    pub(crate) fn post(&self, item: T, wake: impl FnOnce()) -> bool {
        if self.closed.load(Ordering::SeqCst) {
            return false;
        }
        self.queue.push(item);
        if self.sleep_flag.wake() {
            wake();
        }
        if self.closed.load(Ordering::SeqCst) {
            // The worker may have looked at its queue for the last time before the push.
            while self.queue.pop().is_some() {}
            return false;
        }
        true
    }

    /// The next thing, in the order of posting.
    pub(crate) fn pop(&self) -> Option<T> {
        self.queue.pop()
    }

    /// How much is there now.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The worker wants to wait. True: it may, and will be woken; false: there is something.
    pub(crate) fn prepare_to_sleep(&self) -> bool {
        self.sleep_flag.prepare_to_sleep();
        self.queue.is_empty()
    }

    /// The worker does not wait any more.
    pub(crate) fn stay_awake(&self) {
        self.sleep_flag.stay_awake();
    }

    /// The worker ends. What it then finds in the queue it drops; it must look.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        // Not for waking: the exchange that has an order with that of a post.
        self.sleep_flag.stay_awake();
    }
}

#[cfg(test)]
mod tests;
