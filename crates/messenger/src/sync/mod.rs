//! Waiting and locking: [`ContentionMutex`] between threads, [`Notify`] and [`Semaphore`] between
//! the tasks of one worker.
//!
//! Contract: the local types are `Rc` based and cost no atomic operation; what they hand out is
//! given back on drop.

pub(crate) mod contention_mutex;
pub(crate) mod lock_queue;
pub(crate) mod oneshot;
pub(crate) mod sleep_flag;
pub(crate) mod wake_once;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

pub use crate::sync::contention_mutex::{
    ContentionGuard, ContentionMutex, LockStats, LockTable, SAMPLE_EVERY,
};
pub use crate::sync::oneshot::{Gone, Receiver, Sender, block_on, oneshot};

/// Wakes tasks of the same worker. Clones share the same waiters.
#[derive(Clone, Debug, Default)]
pub struct Notify {
    inner: Rc<NotifyInner>,
}

#[derive(Debug, Default)]
struct NotifyInner {
    version: Cell<u64>,
    waiters: RefCell<Vec<Waker>>,
}

impl Notify {
    /// A notifier nobody waits on yet.
    pub fn new() -> Notify {
        Notify::default()
    }

    /// Completes every [`Notify::notified`] future made before this call.
    pub fn notify_all(&self) {
        self.inner.version.set(self.inner.version.get() + 1);
        let waiters = std::mem::take(&mut *self.inner.waiters.borrow_mut());
        for waker in waiters {
            waker.wake();
        }
    }

    /// Completes at the next [`Notify::notify_all`] after this call. Make it before testing the
    /// condition waited for.
    pub fn notified(&self) -> Notified {
        Notified { inner: Rc::clone(&self.inner), version: self.inner.version.get() }
    }
}

/// Future of [`Notify::notified`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Notified {
    inner: Rc<NotifyInner>,
    version: u64,
}

impl Future for Notified {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.inner.version.get() != self.version {
            return Poll::Ready(());
        }
        let mut waiters = self.inner.waiters.borrow_mut();
        if !waiters.iter().any(|waker| waker.will_wake(cx.waker())) {
            waiters.push(cx.waker().clone());
        }
        Poll::Pending
    }
}

/// Bounds operations or bytes in flight among the tasks of one worker. Clones share the same
/// permits. First come, first served: a large request is not starved by small ones.
#[derive(Clone, Debug)]
pub struct Semaphore {
    inner: Rc<SemaphoreInner>,
}

#[derive(Debug)]
struct SemaphoreInner {
    total: u64,
    state: RefCell<SemaphoreState>,
}

#[derive(Debug)]
struct SemaphoreState {
    available: u64,
    next_ticket: u64,
    waiters: VecDeque<(u64, Option<Waker>)>,
}

impl Semaphore {
    /// A semaphore of `total` permits (operations or bytes).
    pub fn new(total: u64) -> Semaphore {
        let state = SemaphoreState { available: total, next_ticket: 0, waiters: VecDeque::new() };
        Semaphore { inner: Rc::new(SemaphoreInner { total, state: RefCell::new(state) }) }
    }

    /// Waits for `permits`. More than the total counts as all of it: such a request runs alone
    /// instead of never.
    pub fn acquire(&self, permits: u64) -> Acquire {
        Acquire {
            inner: Rc::clone(&self.inner),
            permits: permits.min(self.inner.total),
            ticket: None,
        }
    }

    /// Takes `permits` now, if nobody waits and they are free.
    pub fn try_acquire(&self, permits: u64) -> Option<Permit> {
        let permits = permits.min(self.inner.total);
        let mut state = self.inner.state.borrow_mut();
        if !state.waiters.is_empty() || state.available < permits {
            return None;
        }
        state.available -= permits;
        Some(Permit { inner: Rc::clone(&self.inner), permits })
    }

    /// Permits that are free now.
    pub fn available(&self) -> u64 {
        self.inner.state.borrow().available
    }

    /// How many tasks wait.
    pub fn waiting(&self) -> usize {
        self.inner.state.borrow().waiters.len()
    }
}

impl SemaphoreInner {
    fn wake_first(&self) {
        let waker = self.state.borrow_mut().waiters.front_mut().and_then(|(_, waker)| waker.take());
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Future of [`Semaphore::acquire`]. Dropping it gives up its place.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Acquire {
    inner: Rc<SemaphoreInner>,
    permits: u64,
    ticket: Option<u64>,
}

impl Future for Acquire {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit> {
        let inner = Rc::clone(&self.inner);
        let mut state = inner.state.borrow_mut();
        let first = match self.ticket {
            None => state.waiters.is_empty(),
            Some(ticket) => state.waiters.front().is_some_and(|(front, _)| *front == ticket),
        };
        if first && state.available >= self.permits {
            state.available -= self.permits;
            if self.ticket.take().is_some() {
                state.waiters.pop_front();
            }
            drop(state);
            inner.wake_first();
            return Poll::Ready(Permit { inner, permits: self.permits });
        }
        match self.ticket {
            None => {
                let ticket = state.next_ticket;
                state.next_ticket += 1;
                state.waiters.push_back((ticket, Some(cx.waker().clone())));
                self.ticket = Some(ticket);
            }
            Some(ticket) => {
                if let Some((_, waker)) =
                    state.waiters.iter_mut().find(|(other, _)| *other == ticket)
                {
                    *waker = Some(cx.waker().clone());
                }
            }
        }
        Poll::Pending
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        self.inner.state.borrow_mut().waiters.retain(|(other, _)| *other != ticket);
        self.inner.wake_first();
    }
}

/// Permits held; given back on drop.
#[derive(Debug)]
#[must_use = "dropping the permit gives it back at once"]
pub struct Permit {
    inner: Rc<SemaphoreInner>,
    permits: u64,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.inner.state.borrow_mut();
        state.available += self.permits;
        assert!(state.available <= self.inner.total, "more permits given back than taken");
        drop(state);
        self.inner.wake_first();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;

    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn semaphore_serves_in_order() {
        let semaphore = Semaphore::new(4);
        let held = semaphore.try_acquire(3).expect("free");
        let mut large = pin!(semaphore.acquire(100));
        let mut small = pin!(semaphore.acquire(1));
        assert!(poll(large.as_mut()).is_pending());
        assert!(poll(small.as_mut()).is_pending(), "must not overtake");
        assert_eq!(semaphore.waiting(), 2);
        drop(held);
        let Poll::Ready(all) = poll(large.as_mut()) else { panic!("permits are free") };
        assert_eq!(semaphore.available(), 0);
        drop(all);
        assert!(poll(small.as_mut()).is_ready());
        assert_eq!(semaphore.available(), 4);
    }

    #[test]
    fn notify_reaches_those_made_before() {
        let notify = Notify::new();
        let mut before = pin!(notify.notified());
        assert!(poll(before.as_mut()).is_pending());
        notify.notify_all();
        assert!(poll(before.as_mut()).is_ready());
        assert!(poll(pin!(notify.notified())).is_pending());
    }
}
