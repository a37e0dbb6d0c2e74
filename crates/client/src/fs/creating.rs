//! Files being made, of which the service knows already and this mount does not.
//!
//! Contract: a creation counts from before the service is asked until the file stands where this mount looks for it, with
//! its lease. Whoever looks for a file asks first whether one is being made, and looks then. So a file that is not found
//! while none is being made is one of which this mount has nothing: a recall of it may be answered so.
//!
//! The count is a parameter, so that `loom` can stand in for the hardware in the tests.

use std::sync::atomic::{AtomicU64, Ordering};

/// The operations that it needs of an atomic count.
pub(super) trait Count {
    fn load(&self, order: Ordering) -> u64;
    fn fetch_add(&self, by: u64, order: Ordering) -> u64;
    fn fetch_sub(&self, by: u64, order: Ordering) -> u64;
}

impl Count for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }

    fn fetch_add(&self, by: u64, order: Ordering) -> u64 {
        AtomicU64::fetch_add(self, by, order)
    }

    fn fetch_sub(&self, by: u64, order: Ordering) -> u64 {
        AtomicU64::fetch_sub(self, by, order)
    }
}

/// The files being made.
#[derive(Debug, Default)]
pub(super) struct Creations<C = AtomicU64> {
    under_way: C,
}

/// A creation under way, until this is dropped.
pub(super) struct Creation<'a, C: Count = AtomicU64>(&'a Creations<C>);

/// What a look for a file gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found<T> {
    /// The file.
    Here(T),
    /// It may be one that is being made.
    MayCome,
    /// This mount has nothing of it.
    Nowhere,
}

impl<C: Count> Creations<C> {
    /// A file is about to be made.
    pub fn begin(&self) -> Creation<'_, C> {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        Creation(self)
    }

    /// Looks for a file that the service says this mount has.
    pub fn find<T>(&self, look: impl FnOnce() -> Option<T>) -> Found<T> {
        let may_come = self.under_way.load(Ordering::Acquire) > 0;
        match look() {
            Some(file) => Found::Here(file),
            None if may_come => Found::MayCome,
            None => Found::Nowhere,
        }
    }
}

impl<C: Count> Drop for Creation<'_, C> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
