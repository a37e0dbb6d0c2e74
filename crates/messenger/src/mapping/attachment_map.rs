//! Where the attachments of a connection are, for whoever has something for it and holds no lock.
//!
//! Contract: one thread at a time moves attachments; it says where they are now, and takes the
//! connection's [notice](crate::sync::wake_once) and looks after that, on an attachment that stays.
//! What is sent to an attachment that goes may be lost. So whoever gave the notice before is seen
//! by that look, and whoever gives it later finds the attachments where they are.
//!
//! The words are parameters, so that `loom` can stand in for the hardware in the tests.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Slot on a worker that has no attachment.
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

/// The attachments of one connection.
#[derive(Debug)]
pub(crate) struct AttachmentMap<W = AtomicUsize> {
    /// The worker that is told when no other is nearer.
    home: W,
    /// By worker: where it has its attachment.
    slots: Box<[W]>,
}

impl AttachmentMap {
    /// Without an attachment yet, on so many workers.
    pub(crate) fn new(home: usize, workers: usize) -> AttachmentMap {
        assert!(home < workers, "worker {home} of {workers} does not exist");
        let slots = (0..workers).map(|_| AtomicUsize::new(NO_SLOT)).collect();
        AttachmentMap { home: AtomicUsize::new(home), slots }
    }
}

impl<W: Word> AttachmentMap<W> {
    /// The worker that is told when no other is nearer.
    pub(crate) fn home(&self) -> usize {
        self.home.load(Ordering::Acquire)
    }

    /// Where this worker has its attachment, if it has one.
    pub(crate) fn slot(&self, worker: usize) -> Option<usize> {
        let slot = self.slots[worker].load(Ordering::Acquire);
        (slot != NO_SLOT).then_some(slot)
    }

    /// Says which workers have attachments, in which slots, the home first, and which have none any
    /// more.
    pub(crate) fn set(
        &self,
        attachments: impl Iterator<Item = (usize, usize)>,
        gone: impl Iterator<Item = usize>,
    ) {
        gone.for_each(|worker| self.slots[worker].store(NO_SLOT, Ordering::Release));
        for (nth, (worker, slot)) in attachments.enumerate() {
            self.slots[worker].store(slot, Ordering::Release);
            if nth == 0 {
                self.home.store(worker, Ordering::Release);
            }
        }
    }
}

#[cfg(test)]
mod tests;
