//! A value handed over once, between any two threads or tasks, and waiting for a future on an
//! ordinary thread.
//!
//! Contract: [`Sender::send`] never blocks; a receiver learns of a dropped sender as [`Gone`]. Only
//! wakers are used, so a receiver may be polled on a worker, by another executor, or by
//! [`block_on`].

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use parking_lot::Mutex;

/// The other side went away before it sent a value: its task panicked, was aborted, or its runtime
/// has shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the task that was to answer is gone")]
pub struct Gone;

/// Under a bare mutex, unlike all else that threads share: a channel is made for each call, its two
/// ends touch it once or twice, and counting that in a table of locks would cost more than the
/// channel.
enum State<T> {
    Waiting(Option<Waker>),
    Sent(T),
    SenderGone,
    ReceiverGone,
}

/// The sending half of [`oneshot`].
pub struct Sender<T> {
    state: Option<Arc<Mutex<State<T>>>>,
}

/// The receiving half of [`oneshot`]: a future of the value.
pub struct Receiver<T> {
    state: Arc<Mutex<State<T>>>,
}

/// Makes a channel for one value.
pub fn oneshot<T>() -> (Sender<T>, Receiver<T>) {
    let state = Arc::new(Mutex::new(State::Waiting(None)));
    (Sender { state: Some(Arc::clone(&state)) }, Receiver { state })
}

impl<T> Sender<T> {
    /// Hands the value over; gives it back if nobody waits for it any more.
    pub fn send(mut self, value: T) -> Result<(), T> {
        let Some(state) = self.state.take() else { return Err(value) };
        let mut guard = state.lock();
        match std::mem::replace(&mut *guard, State::SenderGone) {
            State::Waiting(waker) => {
                *guard = State::Sent(value);
                drop(guard);
                if let Some(waker) = waker {
                    waker.wake();
                }
                Ok(())
            }
            other => {
                *guard = other;
                Err(value)
            }
        }
    }

    /// True once the receiver was dropped: the work can be skipped.
    pub fn is_abandoned(&self) -> bool {
        self.state.as_ref().is_none_or(|state| matches!(*state.lock(), State::ReceiverGone))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let Some(state) = self.state.take() else { return };
        let mut guard = state.lock();
        if let State::Waiting(waker) = &mut *guard {
            let waker = waker.take();
            *guard = State::SenderGone;
            drop(guard);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

impl<T> Receiver<T> {
    /// Blocks the calling thread for the value. For ordinary threads; on a worker it would stop the
    /// loop.
    ///
    /// # Errors
    /// [`Gone`] if the sender was dropped.
    pub fn recv_blocking(self) -> Result<T, Gone> {
        block_on(self)
    }
}

impl<T> Future for Receiver<T> {
    type Output = Result<T, Gone>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut guard = self.state.lock();
        match std::mem::replace(&mut *guard, State::SenderGone) {
            State::Waiting(Some(waker)) if waker.will_wake(cx.waker()) => {
                *guard = State::Waiting(Some(waker));
                Poll::Pending
            }
            State::Waiting(_) => {
                *guard = State::Waiting(Some(cx.waker().clone()));
                Poll::Pending
            }
            State::Sent(value) => Poll::Ready(Ok(value)),
            State::SenderGone | State::ReceiverGone => Poll::Ready(Err(Gone)),
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut guard = self.state.lock();
        let old = std::mem::replace(&mut *guard, State::ReceiverGone);
        drop(guard);
        drop(old); // a value never taken is dropped outside the lock: its own drop may be anything
    }
}

struct ThreadWaker(Thread);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on the calling thread, parked between wake-ups. For ordinary threads, never on a
/// worker.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(ThreadWaker(std::thread::current())));
    let mut cx = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_crosses_threads() {
        let (tx, rx) = oneshot();
        let thread = std::thread::spawn(move || rx.recv_blocking());
        assert_eq!(tx.send(7), Ok(()));
        assert_eq!(thread.join().expect("no panic"), Ok(7));
    }

    #[test]
    fn either_side_may_go() {
        let (tx, rx) = oneshot::<u8>();
        drop(tx);
        assert_eq!(block_on(rx), Err(Gone));
        let (tx, rx) = oneshot();
        drop(rx);
        assert!(tx.is_abandoned());
        assert_eq!(tx.send(3), Err(3));
    }
}
