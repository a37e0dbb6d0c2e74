//! Timers of one worker: a heap of deadlines, cancelled by generation.
//!
//! Contract: a timer never fires early; it fires up to one millisecond late plus the length of the
//! loop turn, because the reactor's time-outs are whole milliseconds, rounded up.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use slab::Slab;

use crate::executor::worker::Worker;

/// The time allowed is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the time allowed is over")]
pub struct Elapsed;

struct Timer {
    generation: u64,
    waker: Option<Waker>,
    fired: bool,
}

/// The timers of one worker.
#[derive(Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Instant, usize, u64)>>,
    slots: Slab<Timer>,
    generation: u64,
}

impl Timers {
    /// The earliest deadline; possibly of a cancelled timer.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, _, _))| *at)
    }

    /// Collects the wakers of all timers due at `now`.
    pub(crate) fn fire(&mut self, now: Instant, woken: &mut Vec<Waker>) {
        while let Some(Reverse((at, slot, generation))) = self.heap.peek().copied() {
            if at > now {
                break;
            }
            self.heap.pop();
            if let Some(timer) =
                self.slots.get_mut(slot).filter(|timer| timer.generation == generation)
            {
                timer.fired = true;
                woken.extend(timer.waker.take());
            }
        }
    }

    fn insert(&mut self, at: Instant, waker: Waker) -> (usize, u64) {
        self.generation += 1;
        let slot = self.slots.insert(Timer {
            generation: self.generation,
            waker: Some(waker),
            fired: false,
        });
        self.heap.push(Reverse((at, slot, self.generation)));
        (slot, self.generation)
    }

    fn remove(&mut self, slot: usize) {
        self.slots.remove(slot);
        // Deadlines are usually cancelled long before they are due: without this the heap would
        // hold them all.
        if self.heap.len() > 2 * self.slots.len() + 64 {
            let slots = &self.slots;
            self.heap.retain(|Reverse((_, slot, generation))| {
                slots.get(*slot).is_some_and(|timer| timer.generation == *generation)
            });
        }
    }
}

/// Future of [`Worker::sleep`].
#[must_use = "futures do nothing unless polled"]
pub struct Sleep {
    worker: Worker,
    at: Instant,
    slot: Option<usize>,
}

impl Sleep {
    pub(crate) fn new(worker: Worker, at: Instant) -> Sleep {
        Sleep { worker, at, slot: None }
    }

    /// When it ends.
    pub fn deadline(&self) -> Instant {
        self.at
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let worker = self.worker.clone();
        let mut timers = worker.timers().borrow_mut();
        match self.slot {
            Some(slot) => {
                let timer = &mut timers.slots[slot];
                if timer.fired {
                    timers.remove(slot);
                    self.slot = None;
                    return Poll::Ready(());
                }
                if !timer.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                    timer.waker = Some(cx.waker().clone());
                }
                Poll::Pending
            }
            None if self.at <= Instant::now() => Poll::Ready(()),
            None => {
                let (slot, _) = timers.insert(self.at, cx.waker().clone());
                self.slot = Some(slot);
                Poll::Pending
            }
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.worker.timers().borrow_mut().remove(slot);
        }
    }
}

impl std::fmt::Debug for Sleep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sleep").field("at", &self.at).finish_non_exhaustive()
    }
}
