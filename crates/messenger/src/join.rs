//! Futures side by side in one task.
//!
//! Contract: all are polled whenever the task is, so join a handful. Results come when all have ended.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

/// Runs two futures side by side in one task, both to their ends.
pub async fn join_both<A: Future, B: Future>(first: A, second: B) -> (A::Output, B::Output) {
    let (mut first, mut second) = (pin!(first), pin!(second));
    let (mut first_done, mut second_done) = (None, None);
    poll_fn(|cx| {
        poll_once(&mut first_done, first.as_mut(), cx);
        poll_once(&mut second_done, second.as_mut(), cx);
        match (first_done.take(), second_done.take()) {
            (Some(first), Some(second)) => Poll::Ready((first, second)),
            partly => {
                (first_done, second_done) = partly;
                Poll::Pending
            }
        }
    })
    .await
}

/// Polls a future unless it has given its result, and keeps that.
fn poll_once<F: Future>(done: &mut Option<F::Output>, future: Pin<&mut F>, cx: &mut Context<'_>) {
    if done.is_none()
        && let Poll::Ready(output) = future.poll(cx)
    {
        *done = Some(output);
    }
}

/// Runs futures side by side in one task; the results in the order of the futures.
pub async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    let mut done: Vec<Option<F::Output>> = running.iter().map(|_| None).collect();
    poll_fn(|cx| {
        let mut pending = false;
        for (future, slot) in running.iter_mut().zip(&mut done).filter(|(_, slot)| slot.is_none()) {
            match future.as_mut().poll(cx) {
                Poll::Ready(value) => *slot = Some(value),
                Poll::Pending => pending = true,
            }
        }
        if pending { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    done.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::task::Waker;

    /// Ready once the cell says so, with the number.
    async fn when(is_ready: &Cell<bool>, number: u64) -> u64 {
        poll_fn(|_| if is_ready.get() { Poll::Ready(number) } else { Poll::Pending }).await
    }

    #[test]
    fn joined_futures_keep_their_order() {
        let mut cx = Context::from_waker(Waker::noop());
        let (late, ready) = (Cell::new(false), Cell::new(true));
        let mut all = pin!(join_all((0..3).map(|number| when(if number == 0 { &late } else { &ready }, number))));
        assert!(all.as_mut().poll(&mut cx).is_pending());
        late.set(true);
        assert_eq!(all.as_mut().poll(&mut cx), Poll::Ready(vec![0, 1, 2]));
    }

    #[test]
    fn two_joined_futures_both_come_to_their_ends() {
        let mut cx = Context::from_waker(Waker::noop());
        let late = Cell::new(false);
        let mut both = pin!(join_both(when(&late, 1), std::future::ready(7)));
        assert!(both.as_mut().poll(&mut cx).is_pending());
        assert!(both.as_mut().poll(&mut cx).is_pending(), "what is ready is not polled again");
        late.set(true);
        assert_eq!(both.as_mut().poll(&mut cx), Poll::Ready((1, 7)));
    }
}
