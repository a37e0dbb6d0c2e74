//! Who runs a connection, without anyone waiting: the lock of the mapping `handoff`.
//!
//! Contract: at most one thread is inside. Whoever finds the lock queue taken leaves a mark that
//! says why it came and goes on with other work; the holder takes all marks before it lets go and
//! does their work. So every cause is seen by a holder that entered, or looked at the marks, after
//! the cause was there: no edge is lost.
//!
//! States: free (0), held, held with marks. There are no marks without a holder. The word is a
//! parameter, so that `loom` can stand in for the hardware in the tests.

use std::sync::atomic::{AtomicU32, Ordering};

/// The bit of the holder; all others are marks.
const HELD: u32 = 1 << 31;

/// The operations that a lock queue needs of an atomic word.
pub(crate) trait Word {
    fn fetch_or(&self, bits: u32, order: Ordering) -> u32;
    fn swap(&self, bits: u32, order: Ordering) -> u32;
    fn compare_exchange(
        &self,
        current: u32,
        new: u32,
        done: Ordering,
        failed: Ordering,
    ) -> Result<u32, u32>;
}

impl Word for AtomicU32 {
    fn fetch_or(&self, bits: u32, order: Ordering) -> u32 {
        AtomicU32::fetch_or(self, bits, order)
    }

    fn swap(&self, bits: u32, order: Ordering) -> u32 {
        AtomicU32::swap(self, bits, order)
    }

    fn compare_exchange(
        &self,
        current: u32,
        new: u32,
        done: Ordering,
        failed: Ordering,
    ) -> Result<u32, u32> {
        AtomicU32::compare_exchange(self, current, new, done, failed)
    }
}

/// The lock queue of one connection.
#[derive(Debug)]
pub(crate) struct LockQueue<W = AtomicU32> {
    word: W,
}

impl Default for LockQueue {
    fn default() -> LockQueue {
        LockQueue { word: AtomicU32::new(0) }
    }
}

impl<W: Word> LockQueue<W> {
    /// Goes in with these reasons and becomes the holder, who is told what to do: these reasons,
    /// and marks that others left meanwhile. `None` if the lock queue is held: the reasons are now
    /// a mark for the holder.
    pub(crate) fn enter(&self, reasons: u32) -> Option<u32> {
        assert_eq!(reasons & HELD, 0, "reasons use the low bits");
        if self.word.compare_exchange(0, HELD, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            return Some(reasons);
        }
        if self.word.fetch_or(HELD | reasons, Ordering::AcqRel) & HELD != 0 {
            return None;
        }
        // The holder left in between.
        Some(self.take_marks())
    }

    /// Goes out; or, if there are marks, takes them and stays the holder. For the holder only.
    pub(crate) fn leave(&self) -> Option<u32> {
        if self.word.compare_exchange(HELD, 0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            return None;
        }
        Some(self.take_marks())
    }

    fn take_marks(&self) -> u32 {
        let marks = self.word.swap(HELD, Ordering::AcqRel);
        assert_ne!(marks & HELD, 0, "only the holder takes marks");
        marks & !HELD
    }
}

#[cfg(test)]
mod tests;
