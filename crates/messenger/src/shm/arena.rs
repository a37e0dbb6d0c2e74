//! The memory of buffers that other processes may be lent: one file in memory, given out in parts.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::memory::{SharedMemory, discard, read_only};
use crate::io::buffer::PAGE_BYTES;
use crate::sync::contention_mutex::{ContentionMutex, LockTable};

/// Bytes of address space of an arena: several times what is on its way at once. They take memory
/// only where they were written and not given back.
pub(super) const ARENA_BYTES: usize = 1 << 30;

/// See the module.
#[derive(Debug)]
pub(crate) struct Arena {
    memory: SharedMemory,
    file: OwnedFd,
    /// What borrowers get.
    readable: OwnedFd,
    free: ContentionMutex<Ranges>,
}

impl Arena {
    /// # Errors
    /// What the kernel says: no descriptors, no address space.
    pub(super) fn new(locks: &LockTable) -> io::Result<Arc<Arena>> {
        let (memory, file) = SharedMemory::create("trefoil-buffers", ARENA_BYTES)?;
        let readable = read_only(&file)?;
        let free = ContentionMutex::new(locks, "buffer arena", Ranges::of(ARENA_BYTES));
        Ok(Arc::new(Arena { memory, file, readable, free }))
    }

    /// `len` zeros, whole pages; `None` if they are not free in one piece.
    pub(crate) fn take(self: &Arc<Self>, len: usize) -> Option<Extent> {
        debug_assert!(len.is_multiple_of(PAGE_BYTES));
        let at = self.free.lock().take(len)?;
        Some(Extent { arena: Arc::clone(self), at, len })
    }

    /// Where in it these bytes are, if they are.
    pub(super) fn place_of(&self, bytes: &[u8]) -> Option<usize> {
        self.memory.place_of(bytes)
    }

    pub(super) fn readable(&self) -> &OwnedFd {
        &self.readable
    }
}

/// A part of an arena, of one owner.
#[derive(Debug)]
pub(crate) struct Extent {
    arena: Arc<Arena>,
    at: usize,
    len: usize,
}

impl Extent {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.arena.memory.bytes(self.at, self.len)
    }

    pub(crate) fn as_mut_bytes(&mut self) -> &mut [u8] {
        // SAFETY: extents are disjoint, this one is borrowed exclusively, and its arena's mapping
        // is one to write.
        unsafe { self.arena.memory.bytes_mut(self.at, self.len) }
    }
}

impl Drop for Extent {
    fn drop(&mut self) {
        match discard(&self.arena.file, self.at, self.len) {
            Ok(()) => self.arena.free.lock().give_back(self.at, self.len),
            // Not zeros: never given out again.
            Err(error) => {
                tracing::warn!(%error, bytes = self.len, "shared memory cannot be given back")
            }
        }
    }
}

/// Free ranges: where each begins, and its length. No two touch.
#[derive(Debug)]
struct Ranges(BTreeMap<usize, usize>);

impl Ranges {
    fn of(len: usize) -> Ranges {
        Ranges(BTreeMap::from([(0, len)]))
    }

    /// The first that is long enough gives its beginning.
    fn take(&mut self, len: usize) -> Option<usize> {
        let (at, found) =
            self.0.iter().find(|(_, found)| **found >= len).map(|(at, found)| (*at, *found))?;
        self.0.remove(&at);
        if found > len {
            self.0.insert(at + len, found - len);
        }
        Some(at)
    }

    fn give_back(&mut self, mut at: usize, mut len: usize) {
        if let Some(behind) = self.0.remove(&(at + len)) {
            len += behind;
        }
        if let Some((before, its_len)) =
            self.0.range(..at).next_back().map(|(before, its_len)| (*before, *its_len))
            && before + its_len == at
        {
            (at, len) = (before, its_len + len);
        }
        self.0.insert(at, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_given_back_is_zero_again() {
        let arena = Arena::new(&LockTable::default()).expect("shared memory");
        let mut extent = arena.take(3 * PAGE_BYTES).expect("room");
        extent.as_mut_bytes().fill(7);
        assert_eq!(arena.place_of(&extent.as_bytes()[5..]), Some(5));
        drop(extent);
        let extent = arena.take(3 * PAGE_BYTES).expect("room");
        assert_eq!(arena.place_of(extent.as_bytes()), Some(0), "the same place");
        assert!(extent.as_bytes().iter().all(|byte| *byte == 0));
        assert_eq!(arena.place_of(&[1, 2, 3]), None);
        assert!(arena.take(ARENA_BYTES).is_none());
    }

    proptest! {
        #[test]
        fn ranges_are_disjoint_and_come_together_again(steps in proptest::collection::vec((any::<bool>(), 1usize..40), 0..200)) {
            let mut ranges = Ranges::of(100);
            let mut taken: Vec<(usize, usize)> = Vec::new();
            for (gives, len) in steps {
                if gives && !taken.is_empty() {
                    let (at, len) = taken.swap_remove(len % taken.len());
                    ranges.give_back(at, len);
                } else if let Some(at) = ranges.take(len) {
                    prop_assert!(at + len <= 100);
                    prop_assert!(taken.iter().all(|(other, its_len)| at + len <= *other || other + its_len <= at));
                    taken.push((at, len));
                }
            }
            taken.drain(..).for_each(|(at, len)| ranges.give_back(at, len));
            prop_assert_eq!(&ranges.0, &BTreeMap::from([(0, 100)]));
        }
    }
}
