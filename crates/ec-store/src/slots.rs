//! How many things of one core are done at a time: shards that are rebuilt, background disk jobs.
//!
//! Contract: lives on one worker. The number may change while slots are taken: those that are too
//! many then are not taken away, only not given again.

use messenger::sync::Notify;
use std::cell::Cell;
use std::rc::Rc;

/// See the module.
#[derive(Debug)]
pub struct Slots {
    max: Cell<u64>,
    taken: Cell<u64>,
    changed: Notify,
}

impl Slots {
    /// So many; 0 counts as 1, as nothing would ever end without any.
    pub fn new(max: u64) -> Rc<Slots> {
        Rc::new(Slots { max: Cell::new(max.max(1)), taken: Cell::new(0), changed: Notify::new() })
    }

    /// From now on so many; as in [`Slots::new`].
    pub fn set_max(&self, max: u64) {
        self.max.set(max.max(1));
        self.changed.notify_all();
    }

    /// How many are taken.
    pub fn taken(&self) -> u64 {
        self.taken.get()
    }

    /// Waits for one.
    pub async fn take(self: &Rc<Self>) -> Slot {
        loop {
            let changed = self.changed.notified();
            if let Some(slot) = self.try_take() {
                return slot;
            }
            changed.await;
        }
    }

    fn try_take(self: &Rc<Self>) -> Option<Slot> {
        (self.taken.get() < self.max.get()).then(|| {
            self.taken.set(self.taken.get() + 1);
            Slot(Rc::clone(self))
        })
    }
}

/// One that is taken; free again when dropped.
#[derive(Debug)]
#[must_use = "dropping it gives it back at once"]
pub struct Slot(Rc<Slots>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.taken.set(self.0.taken.get() - 1);
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Waker};

    #[test]
    fn fewer_are_not_given_again_and_more_at_once() {
        let slots = Slots::new(2);
        let mut taken: Vec<_> = (0..2).filter_map(|_| slots.try_take()).collect();
        assert!(taken.len() == 2 && slots.try_take().is_none());
        slots.set_max(0);
        drop(taken.pop());
        assert!(slots.try_take().is_none(), "one is still taken, and is all there is");
        let mut waiting = pin!(slots.take());
        let mut context = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        slots.set_max(2);
        assert!(waiting.as_mut().poll(&mut context).is_ready());
        drop(taken);
        assert!(slots.try_take().is_some());
    }
}
