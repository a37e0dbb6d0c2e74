//! What shared mappings may have done to the kernel's pages of a file: the kernel tells nothing of
//! them.
//!
//! Contract: part of the pure machine; errs towards "may have". A shared mapping that can be stored
//! to needs a handle that reads and writes, and a page that the kernel has read, or filled by
//! writing before the file was cut.

use super::InodeState;
use std::ops::Range;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Mapping {
    /// Handles open for reading and writing; a mapping keeps its handle.
    handles: u32,
    /// Up to here the kernel may have whole pages.
    filled_upto: u64,
}

impl InodeState {
    /// A handle that reads and writes was opened.
    pub fn may_be_mapped(&mut self) {
        self.mapping.handles += 1;
    }

    /// The end of `may_be_mapped`.
    pub fn no_longer_mapped(&mut self) {
        self.mapping.handles = self.mapping.handles.saturating_sub(1);
    }

    /// May there be stores that the kernel has not written back?
    pub fn may_hold_stores(&self) -> bool {
        self.mapping.handles > 0
    }

    /// The kernel fills pages up to here.
    pub fn pages_filled(&mut self, end: u64) {
        self.mapping.filled_upto = self.mapping.filled_upto.max(end);
    }

    /// The kernel has dropped its pages.
    pub(super) fn pages_dropped(&mut self) {
        self.mapping.filled_upto = 0;
    }

    /// Bytes between the end of the file and `to` that the kernel's last page may have from a store
    /// behind the end.
    pub fn stale_tail(&self, to: u64, page_bytes: u64) -> Option<Range<u64>> {
        let page = self.size - self.size % page_bytes;
        let is_cached = self.size > page && self.mapping.filled_upto > page;
        let end = to.min(page.saturating_add(page_bytes));
        if !is_cached || self.size >= end {
            return None;
        }
        // A page that a request under way fills has nothing from a store, or it is mapped and only
        // believed to be locked.
        let is_locked = self.locked.iter().any(|pages| pages.start < end && page < pages.end);
        (self.mapping.handles > 0 || !is_locked).then_some(self.size..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::Gfid;

    const PAGE: u64 = 4096;

    fn file(size: u64, filled_upto: u64) -> InodeState {
        let mut state = InodeState::new(Gfid::of_inode(5));
        state.size = size;
        state.pages_filled(filled_upto);
        state
    }

    #[test]
    fn what_lies_behind_the_end_in_its_page_is_cleared_up_to_where_the_file_grows() {
        assert_eq!(file(100, PAGE).stale_tail(3 * PAGE, PAGE), Some(100..PAGE));
        assert_eq!(file(100, PAGE).stale_tail(3000, PAGE), Some(100..3000));
        assert_eq!(file(100, PAGE).stale_tail(100, PAGE), None, "it does not grow over anything");
        assert_eq!(file(PAGE, 2 * PAGE).stale_tail(3 * PAGE, PAGE), None, "the end of a page");
        assert_eq!(
            file(PAGE + 1, PAGE).stale_tail(3 * PAGE, PAGE),
            None,
            "a page that the kernel does not have"
        );
        let mut dropped = file(100, PAGE);
        dropped.pages_dropped();
        assert_eq!(dropped.stale_tail(3 * PAGE, PAGE), None);
    }
}
