//! What a fragment file has been through since its last sync.
//!
//! Contract: a change is noted before it happens, with the file's lock held until it has; and what
//! a sync will count is asked with that lock held, before it waits for the disk. So it counts whole
//! changes only, all of which the disk is asked for, and a file is clean only if everything that
//! was noted is durable.
//!
//! The counts are parameters, so that `loom` can stand in for the hardware in the tests.

use std::sync::atomic::{AtomicU64, Ordering};

/// The operations that it needs of an atomic count.
pub(super) trait Count {
    fn load(&self, order: Ordering) -> u64;
    fn fetch_add(&self, by: u64, order: Ordering) -> u64;
    fn fetch_max(&self, to: u64, order: Ordering) -> u64;
    fn take_off(&self, by: u64, order: Ordering);
}

impl Count for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }

    fn fetch_add(&self, by: u64, order: Ordering) -> u64 {
        AtomicU64::fetch_add(self, by, order)
    }

    fn fetch_max(&self, to: u64, order: Ordering) -> u64 {
        AtomicU64::fetch_max(self, to, order)
    }

    fn take_off(&self, by: u64, order: Ordering) {
        let _ = self.fetch_update(order, order, |now| Some(now.saturating_sub(by)));
    }
}

/// The changes that a sync counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Upto {
    changes: u64,
    bytes: u64,
}

/// Changes of one file.
#[derive(Debug)]
pub(super) struct Changes<C = AtomicU64> {
    noted: C,
    /// Equal to `noted` when nothing waits for a sync.
    synced: C,
    unsynced_bytes: C,
}

impl Changes {
    /// Of a file that has just been made, or was opened.
    pub fn new(is_new: bool) -> Self {
        Self {
            noted: AtomicU64::new(u64::from(is_new)),
            synced: AtomicU64::default(),
            unsynced_bytes: AtomicU64::default(),
        }
    }
}

impl<C: Count> Changes<C> {
    /// The file changes, by so many bytes of data. With the lock held.
    pub fn note(&self, bytes: u64) {
        self.unsynced_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.noted.fetch_add(1, Ordering::AcqRel);
    }

    /// Does anything wait for a sync?
    pub fn is_dirty(&self) -> bool {
        self.noted.load(Ordering::Acquire) != self.synced.load(Ordering::Acquire)
    }

    /// Bytes of data written since the last sync.
    pub fn unsynced_bytes(&self) -> u64 {
        self.unsynced_bytes.load(Ordering::Relaxed)
    }

    /// What a sync counts that begins now. With the lock held.
    pub fn upto(&self) -> Upto {
        Upto { changes: self.noted.load(Ordering::Acquire), bytes: self.unsynced_bytes() }
    }

    /// A sync that began with this has succeeded.
    pub fn synced(&self, upto: Upto) {
        if self.synced.fetch_max(upto.changes, Ordering::AcqRel) < upto.changes {
            self.unsynced_bytes.take_off(upto.bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
