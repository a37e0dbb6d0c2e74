//! Locks on ranges of objects, local to one worker: who reads a stripe to change it, or decodes it,
//! keeps writes of the same stripes out until its own write is numbered or its read is complete.
//!
//! Contract: granted in the order asked, so nobody starves. Shared locks do not exclude each other.
//! Released on drop, as is a place in the queue.

use protocol::ObjectId;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::ops::Range;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// How a range is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// Beside other shared holders.
    Shared,
    /// Alone.
    Exclusive,
}

#[derive(Debug)]
struct Entry {
    ticket: u64,
    range: Range<u64>,
    mode: Mode,
    waker: Option<Waker>,
}

/// The locks of one worker.
#[derive(Debug, Default)]
pub(crate) struct RangeLocks {
    next_ticket: Cell<u64>,
    /// In the order asked; an entry is granted once no earlier one conflicts with it.
    objects: RefCell<HashMap<ObjectId, Vec<Entry>>>,
}

/// A lock, or a place in the queue for one.
#[derive(Debug)]
pub(crate) struct RangeGuard {
    locks: Rc<RangeLocks>,
    object: ObjectId,
    ticket: u64,
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        let mut objects = self.locks.objects.borrow_mut();
        let Some(entries) = objects.get_mut(&self.object) else { return };
        entries.retain(|entry| entry.ticket != self.ticket);
        entries.iter_mut().filter_map(|entry| entry.waker.take()).for_each(Waker::wake);
        if entries.is_empty() {
            objects.remove(&self.object);
        }
    }
}

fn conflict(a: &Entry, b: &Entry) -> bool {
    let overlap = a.range.start < b.range.end && b.range.start < a.range.end;
    overlap && (a.mode == Mode::Exclusive || b.mode == Mode::Exclusive)
}

impl RangeLocks {
    /// Does nobody hold or want any range of the object? Then a write that is numbered at once
    /// needs no lock.
    pub fn is_idle(&self, object: ObjectId) -> bool {
        let objects = self.objects.borrow();
        objects.is_empty() || !objects.contains_key(&object)
    }

    /// Waits for the range.
    pub async fn lock(
        self: &Rc<Self>,
        object: ObjectId,
        range: Range<u64>,
        mode: Mode,
    ) -> RangeGuard {
        let guard = self.enqueue(object, range, mode);
        poll_fn(|cx| self.poll_granted(cx, &guard)).await;
        guard
    }

    fn enqueue(self: &Rc<Self>, object: ObjectId, range: Range<u64>, mode: Mode) -> RangeGuard {
        let ticket = self.next_ticket.get();
        self.next_ticket.set(ticket + 1);
        let entry = Entry { ticket, range, mode, waker: None };
        self.objects.borrow_mut().entry(object).or_default().push(entry);
        RangeGuard { locks: Rc::clone(self), object, ticket }
    }

    fn poll_granted(&self, cx: &Context<'_>, guard: &RangeGuard) -> Poll<()> {
        let mut objects = self.objects.borrow_mut();
        let Some(entries) = objects.get_mut(&guard.object) else { return Poll::Ready(()) };
        let Some(at) = entries.iter().position(|entry| entry.ticket == guard.ticket) else {
            return Poll::Ready(());
        };
        let (earlier, rest) = entries.split_at_mut(at);
        if !earlier.iter().any(|entry| conflict(entry, &rest[0])) {
            return Poll::Ready(());
        }
        rest[0].waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use protocol::Gfid;

    fn object(n: u64) -> ObjectId {
        ObjectId { gfid: Gfid::of_inode(n), index: 0 }
    }

    fn granted(locks: &RangeLocks, guard: &RangeGuard) -> bool {
        locks.poll_granted(&Context::from_waker(Waker::noop()), guard).is_ready()
    }

    #[test]
    fn writers_wait_for_overlap_only() {
        let locks = Rc::new(RangeLocks::default());
        let first = locks.enqueue(object(1), 0..1024, Mode::Exclusive);
        let apart = locks.enqueue(object(1), 1024..2048, Mode::Exclusive);
        let over = locks.enqueue(object(1), 1000..1025, Mode::Shared);
        let other = locks.enqueue(object(2), 0..1024, Mode::Exclusive);
        assert!(granted(&locks, &first) && granted(&locks, &apart) && granted(&locks, &other));
        assert!(!granted(&locks, &over));
        drop(first);
        assert!(!granted(&locks, &over));
        drop(apart);
        assert!(granted(&locks, &over));
        drop(over);
        assert!(locks.is_idle(object(1)) && !locks.is_idle(object(2)));
    }

    proptest! {
        /// Against the definition: holders never conflict, and the oldest entry always holds.
        #[test]
        fn holders_never_conflict(asks in proptest::collection::vec((0u64..8, 1u64..4, any::<bool>(), 0usize..6), 1..40)) {
            let locks = Rc::new(RangeLocks::default());
            let mut all: Vec<(RangeGuard, Range<u64>, bool)> = Vec::new();
            for (start, length, shared, drop_at) in asks {
                let mode = if shared { Mode::Shared } else { Mode::Exclusive };
                all.push((locks.enqueue(object(1), start..start + length, mode), start..start + length, shared));
                if drop_at < all.len() && drop_at > 2 {
                    drop(all.remove(drop_at));
                }
                let held: Vec<usize> = (0..all.len()).filter(|&i| granted(&locks, &all[i].0)).collect();
                prop_assert!(held.contains(&0));
                for &i in &held {
                    for &j in held.iter().filter(|&&j| j < i) {
                        let (a, b) = (&all[i], &all[j]);
                        let overlap = a.1.start < b.1.end && b.1.start < a.1.end;
                        prop_assert!(!overlap || a.2 && b.2);
                    }
                }
            }
        }
    }
}
