//! A sync that failed, and that nothing counts as durable after it.
//!
//! Contract: what fails together is synced by one thread at a time. The kernel may drop a page that
//! it could not write, tells that to one sync, and the next one finds nothing to write. So a sync
//! beside the one that fails could succeed for pages that are lost, before anyone can know. A sync
//! that begins after the failure is refused, and one that was overtaken by the failure of a write
//! counts as refused.
//!
//! Turn and flag are parameters, so that `loom` can stand in for the hardware in the tests.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Something that one thread has at a time.
pub(crate) trait Turn {
    fn with<R>(&self, f: impl FnOnce() -> R) -> R;
}

impl Turn for Mutex<()> {
    fn with<R>(&self, f: impl FnOnce() -> R) -> R {
        let _turn = self.lock();
        f()
    }
}

/// The operations that it needs of an atomic flag.
pub(crate) trait Flag {
    fn load(&self, order: Ordering) -> bool;
    fn store(&self, value: bool, order: Ordering);
}

impl Flag for AtomicBool {
    fn load(&self, order: Ordering) -> bool {
        AtomicBool::load(self, order)
    }

    fn store(&self, value: bool, order: Ordering) {
        AtomicBool::store(self, value, order);
    }
}

/// Why a sync makes nothing durable.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotSynced<E> {
    /// One before it, or a write, has failed.
    Poisoned,
    /// It did.
    Failed(E),
}

/// Whether syncs still mean something. The turn is a bare lock, unlike all else that threads share:
/// a role has one sync under way at a time as a rule, nobody waits, and there is one of these for
/// each open fragment.
#[derive(Debug, Default)]
pub(crate) struct Poison<T = Mutex<()>, F = AtomicBool> {
    turn: T,
    has_failed: F,
}

impl<T: Turn, F: Flag> Poison<T, F> {
    pub(crate) fn is_set(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// A write, or the sync of something else that this depends on, has failed.
    pub(crate) fn set(&self) {
        self.has_failed.store(true, Ordering::Release);
    }

    /// Syncs by `wait` what `begin` says is to be synced; `None`: nothing. An error of `begin`
    /// changes nothing, one of `wait` is the last.
    pub(crate) fn sync<M, E>(
        &self,
        begin: impl FnOnce() -> Result<Option<M>, E>,
        wait: impl FnOnce(M) -> Result<(), E>,
    ) -> Result<(), NotSynced<E>> {
        self.turn.with(|| {
            if self.is_set() {
                return Err(NotSynced::Poisoned);
            }
            let Some(what) = begin().map_err(NotSynced::Failed)? else { return Ok(()) };
            wait(what).map_err(|error| {
                self.set();
                NotSynced::Failed(error)
            })?;
            if self.is_set() { Err(NotSynced::Poisoned) } else { Ok(()) }
        })
    }
}

#[cfg(test)]
pub(crate) mod tests;
