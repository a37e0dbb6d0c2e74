//! What the cores of one disk do to it, as each of them knows of the others.
//!
//! Contract: a core counts what it wrote to a fragment before it says that so much less waits to be
//! placed ([`Usage::placed`]), and whoever adds both up looks at what waits first. So what moves
//! from one to the other meanwhile is counted twice, never not at all.
//!
//! The counts are parameters, so that `loom` can stand in for the hardware in the tests.

use std::sync::atomic::{AtomicU64, Ordering};

/// The operations that it needs of an atomic count.
pub(super) trait Count {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    fn fetch_add(&self, by: u64, order: Ordering) -> u64;
}

impl Count for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }

    fn store(&self, value: u64, order: Ordering) {
        AtomicU64::store(self, value, order);
    }

    fn fetch_add(&self, by: u64, order: Ordering) -> u64 {
        AtomicU64::fetch_add(self, by, order)
    }
}

/// What one core has done to its disk. Written by that core alone.
#[derive(Debug, Default)]
pub(super) struct CoreUse<C = AtomicU64> {
    /// Bytes ever written, to the journal and to fragments.
    written: C,
    /// At least the bytes that records take once they are in their place in fragments.
    unplaced: C,
}

/// What all of them have done.
#[derive(Debug)]
pub(super) struct Usage<C = AtomicU64> {
    cores: Box<[CoreUse<C>]>,
}

impl<C: Count> Usage<C> {
    pub fn new(cores: impl Iterator<Item = CoreUse<C>>) -> Self {
        Self { cores: cores.collect() }
    }

    pub fn cores(&self) -> usize {
        self.cores.len()
    }

    /// Bytes went to the journal of a core, which a fragment will need `placed` more for.
    pub fn journalled(&self, core: usize, bytes: u64, placed: u64) {
        self.cores[core].unplaced.fetch_add(placed, Ordering::Relaxed);
        self.wrote(core, bytes);
    }

    /// Bytes went to fragments of a core.
    pub fn wrote(&self, core: usize, bytes: u64) {
        self.cores[core].written.fetch_add(bytes, Ordering::Relaxed);
    }

    /// So much of a core is still to be placed; all else is in what it wrote.
    pub fn placed(&self, core: usize, unplaced: u64) {
        self.cores[core].unplaced.store(unplaced, Ordering::Release);
    }

    pub fn written(&self) -> u64 {
        self.cores.iter().map(|core| core.written.load(Ordering::Relaxed)).sum()
    }

    pub fn unplaced(&self) -> u64 {
        self.cores.iter().map(|core| core.unplaced.load(Ordering::Acquire)).sum()
    }

    /// At least the bytes that were written since [`Usage::written`] was this, and that are still
    /// to be placed.
    pub fn taken_since(&self, written: u64) -> u64 {
        let unplaced = self.unplaced();
        unplaced + (self.written() - written)
    }
}

#[cfg(test)]
mod tests;
