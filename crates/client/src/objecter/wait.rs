//! Waiting among the tasks of one worker: notifications, numbers reached, bounded budgets.
//!
//! Contract: single-threaded (`Rc`, `Cell`), no clock, no I/O. Dropping a future that waits leaves
//! nothing behind that could block another.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Something changed: wakes whoever looks again.
#[derive(Debug, Default)]
pub(crate) struct Notify {
    version: Cell<u64>,
    waiting: RefCell<Vec<Waker>>,
}

impl Notify {
    /// Wakes everyone who waits.
    pub fn notify(&self) {
        self.version.set(self.version.get() + 1);
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        waiting.into_iter().for_each(Waker::wake);
    }

    /// How often it was notified.
    pub fn version(&self) -> u64 {
        self.version.get()
    }

    /// Ready once notified after `seen`; else the task is woken when it is.
    pub fn poll_changed(&self, cx: &Context<'_>, seen: u64) -> Poll<()> {
        if self.version.get() != seen {
            return Poll::Ready(());
        }
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Waits for a notification after `seen`.
    pub async fn changed(&self, seen: u64) {
        poll_fn(|cx| self.poll_changed(cx, seen)).await;
    }
}

/// A number that only grows, and those who wait for it to reach theirs.
#[derive(Debug, Default)]
pub(crate) struct Mark {
    reached: Cell<u64>,
    /// Sorted by number: marks are mostly waited for in order.
    waiting: RefCell<VecDeque<(u64, Waker)>>,
}

impl Mark {
    /// The number reached.
    pub fn get(&self) -> u64 {
        self.reached.get()
    }

    /// Raises it.
    pub fn reach(&self, number: u64) {
        if number <= self.reached.get() {
            return;
        }
        self.reached.set(number);
        let mut waiting = self.waiting.borrow_mut();
        while waiting.front().is_some_and(|(wanted, _)| *wanted <= number) {
            if let Some((_, waker)) = waiting.pop_front() {
                waker.wake();
            }
        }
    }

    /// Wakes everyone, to look at something else.
    pub fn wake_all(&self) {
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        waiting.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// Ready once the number is reached; else the task is woken when it is.
    pub fn poll_reached(&self, cx: &Context<'_>, number: u64) -> Poll<()> {
        if self.reached.get() >= number {
            return Poll::Ready(());
        }
        let mut waiting = self.waiting.borrow_mut();
        let at = waiting.partition_point(|(wanted, _)| *wanted <= number);
        let known = waiting
            .range(..at)
            .rev()
            .take_while(|(w, _)| *w == number)
            .any(|(_, w)| w.will_wake(cx.waker()));
        if !known {
            waiting.insert(at, (number, cx.waker().clone()));
        }
        Poll::Pending
    }
}

/// A bound on something in use at once, granted in the order asked.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: Cell<usize>,
    used: Cell<usize>,
    next_ticket: Cell<u64>,
    waiting: RefCell<VecDeque<(u64, Option<Waker>)>>,
}

/// A part of a [`Budget`] in use; given back on drop.
#[derive(Debug)]
pub(crate) struct Permit {
    budget: Rc<Budget>,
    amount: usize,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.budget.used.set(self.budget.used.get() - self.amount);
        self.budget.wake_first();
    }
}

/// A place in the queue of a [`Budget`]; left on drop.
struct Queued {
    budget: Rc<Budget>,
    ticket: u64,
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.budget.waiting.borrow_mut().retain(|(ticket, _)| *ticket != self.ticket);
        self.budget.wake_first();
    }
}

impl Budget {
    /// At most `limit` in use at once.
    pub fn new(limit: usize) -> Rc<Self> {
        let limit = Cell::new(limit);
        Rc::new(Self {
            limit,
            used: Cell::new(0),
            next_ticket: Cell::new(0),
            waiting: RefCell::default(),
        })
    }

    /// From now on at most so much: what is in use is not taken away.
    pub fn set_limit(&self, limit: usize) {
        self.limit.set(limit);
        self.wake_first();
    }

    /// What is in use.
    #[cfg(test)]
    pub fn used(&self) -> usize {
        self.used.get()
    }

    fn take(self: &Rc<Self>, amount: usize) -> Option<Permit> {
        let amount = amount.min(self.limit.get());
        let used = self.used.get() + amount;
        (used <= self.limit.get()).then(|| {
            self.used.set(used);
            Permit { budget: Rc::clone(self), amount }
        })
    }

    fn wake_first(&self) {
        if let Some((_, waker)) = self.waiting.borrow_mut().front_mut()
            && let Some(waker) = waker.take()
        {
            waker.wake();
        }
    }

    /// Waits for its turn and for room. More than the whole budget counts as the whole budget.
    pub async fn acquire(self: &Rc<Self>, amount: usize) -> Permit {
        if self.waiting.borrow().is_empty()
            && let Some(permit) = self.take(amount)
        {
            return permit;
        }
        let ticket = self.next_ticket.get();
        self.next_ticket.set(ticket + 1);
        self.waiting.borrow_mut().push_back((ticket, None));
        let _queued = Queued { budget: Rc::clone(self), ticket };
        poll_fn(|cx| {
            let mut waiting = self.waiting.borrow_mut();
            if waiting.front().is_some_and(|(first, _)| *first == ticket)
                && let Some(permit) = self.take(amount)
            {
                return Poll::Ready(permit);
            }
            if let Some(entry) = waiting.iter_mut().find(|(t, _)| *t == ticket) {
                entry.1 = Some(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }
}

/// Runs two futures side by side in one task, both to their ends.
pub(crate) async fn join_both<A: Future, B: Future>(first: A, second: B) -> (A::Output, B::Output) {
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
pub(crate) async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
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
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn marks_wake_those_they_reach() {
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let cx = Context::from_waker(&waker);
        let mark = Mark::default();
        for number in [3, 1, 2, 3] {
            assert!(mark.poll_reached(&cx, number).is_pending());
        }
        mark.reach(2);
        assert_eq!(count.0.load(Ordering::Relaxed), 2);
        assert!(mark.poll_reached(&cx, 2).is_ready());
        assert!(mark.poll_reached(&cx, 3).is_pending());
        mark.wake_all();
        assert_eq!(count.0.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn budgets_are_granted_in_order_and_come_back() {
        let waker = Waker::from(Arc::new(Count::default()));
        let mut cx = Context::from_waker(&waker);
        let budget = Budget::new(10);
        let Poll::Ready(first) = pin!(budget.acquire(8)).poll(&mut cx) else {
            panic!("there is room")
        };
        let mut big = Box::pin(budget.acquire(50));
        assert!(big.as_mut().poll(&mut cx).is_pending());
        let mut small = pin!(budget.acquire(1));
        assert!(small.as_mut().poll(&mut cx).is_pending(), "not past the one that came first");
        drop(first);
        let Poll::Ready(permit) = big.as_mut().poll(&mut cx) else {
            panic!("the whole budget is free")
        };
        assert_eq!(budget.used(), 10);
        drop(permit);
        drop(big);
        assert!(small.as_mut().poll(&mut cx).is_ready());
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn who_gives_up_waiting_is_forgotten() {
        let waker = Waker::from(Arc::new(Count::default()));
        let mut cx = Context::from_waker(&waker);
        let budget = Budget::new(1);
        let Poll::Ready(held) = pin!(budget.acquire(1)).poll(&mut cx) else {
            panic!("there is room")
        };
        let mut gives_up = Box::pin(budget.acquire(1));
        assert!(gives_up.as_mut().poll(&mut cx).is_pending());
        let mut stays = pin!(budget.acquire(1));
        assert!(stays.as_mut().poll(&mut cx).is_pending());
        drop(gives_up);
        drop(held);
        assert!(stays.as_mut().poll(&mut cx).is_ready());
    }

    #[test]
    fn joined_futures_keep_their_order() {
        let waker = Waker::from(Arc::new(Count::default()));
        let mut cx = Context::from_waker(&waker);
        let notify = Notify::default();
        let wait = |n: u64| {
            let notify = &notify;
            async move {
                if n == 0 {
                    notify.changed(0).await;
                }
                n
            }
        };
        let mut all = pin!(join_all((0..3).map(wait)));
        assert!(all.as_mut().poll(&mut cx).is_pending());
        notify.notify();
        assert_eq!(all.as_mut().poll(&mut cx), Poll::Ready(vec![0, 1, 2]));
    }
    #[test]
    fn two_joined_futures_both_come_to_their_ends() {
        let waker = Waker::from(Arc::new(Count::default()));
        let mut cx = Context::from_waker(&waker);
        let notify = Notify::default();
        let mut both = pin!(join_both(notify.changed(0), std::future::ready(7)));
        assert!(both.as_mut().poll(&mut cx).is_pending());
        assert!(both.as_mut().poll(&mut cx).is_pending(), "what is ready is not polled again");
        notify.notify();
        assert_eq!(both.as_mut().poll(&mut cx).map(|(_, second)| second), Poll::Ready(7));
    }
}
