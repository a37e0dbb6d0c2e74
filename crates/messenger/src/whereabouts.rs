//! Where the seats of a connection are, for whoever has something for it and holds no lock.
//!
//! Contract: one thread at a time moves seats; it says where they are now, and takes the connection's
//! [notice](crate::notice) and looks after that, on a seat that stays. What is sent to a seat that goes may be lost. So
//! whoever gave the notice before is seen by that look, and whoever gives it later finds the seats where they are.
//!
//! The words are parameters, so that `loom` can stand in for the hardware in the tests.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Slot on a worker that has no seat.
const NO_SLOT: usize = usize::MAX;

/// The operations that it needs of an atomic word.
pub(crate) trait Word {
    fn load(&self, order: Ordering) -> usize;
    fn store(&self, value: usize, order: Ordering);
}

impl Word for AtomicUsize {
    fn load(&self, order: Ordering) -> usize {
        AtomicUsize::load(self, order)
    }

    fn store(&self, value: usize, order: Ordering) {
        AtomicUsize::store(self, value, order);
    }
}

/// The seats of one connection.
#[derive(Debug)]
pub(crate) struct Whereabouts<W = AtomicUsize> {
    /// The worker that is told when no other is nearer.
    home: W,
    /// By worker: where it has its seat.
    slots: Box<[W]>,
}

impl Whereabouts {
    /// Without a seat yet, on so many workers.
    pub(crate) fn new(home: usize, workers: usize) -> Whereabouts {
        assert!(home < workers, "worker {home} of {workers} does not exist");
        let slots = (0..workers).map(|_| AtomicUsize::new(NO_SLOT)).collect();
        Whereabouts { home: AtomicUsize::new(home), slots }
    }
}

impl<W: Word> Whereabouts<W> {
    /// The worker that is told when no other is nearer.
    pub(crate) fn home(&self) -> usize {
        self.home.load(Ordering::Acquire)
    }

    /// Where this worker has its seat, if it has one.
    pub(crate) fn slot(&self, worker: usize) -> Option<usize> {
        let slot = self.slots[worker].load(Ordering::Acquire);
        (slot != NO_SLOT).then_some(slot)
    }

    /// Says which workers have seats, in which slots, the home first, and which have none any more.
    pub(crate) fn set(&self, seats: impl Iterator<Item = (usize, usize)>, gone: impl Iterator<Item = usize>) {
        gone.for_each(|worker| self.slots[worker].store(NO_SLOT, Ordering::Release));
        for (nth, (worker, slot)) in seats.enumerate() {
            self.slots[worker].store(slot, Ordering::Release);
            if nth == 0 {
                self.home.store(worker, Ordering::Release);
            }
        }
    }
}

#[cfg(test)]
mod tests;
