//! Which core of a server carries out the operations on a file.
//!
//! Contract: a file has one core for as long as anybody uses it, so that its operations are carried
//! out in the order in which they came, without a lock. Two ways, after "Per-core file allocation
//! method for eliminating the overhead of maintaining consistency between nodes in a distributed
//! file system" (Woohyung Han, Seoul National University, 2017):
//!
//! * [`CoreTable`]: its gfid-queue table (chapter 3): a file that is not in it is given the next
//!   core in turn. Even over any ids, but it must be looked up for each operation, by whoever
//!   receives one, and grows with the files.
//! * [`core_of`]: arithmetic, as Trefoil does it: nothing to look up or to share, and a client
//!   knows the answer too, so that it can send to the core at once. Even if ids are dealt out in
//!   turn.

use std::collections::HashMap;
use std::collections::hash_map::{DefaultHasher, Entry};
use std::hash::BuildHasherDefault;
use std::num::NonZeroUsize;

/// The core of a file, `0..cores`: its gfid modulo the cores.
pub const fn core_of(gfid: u128, cores: NonZeroUsize) -> usize {
    (gfid % cores.get() as u128) as usize
}

/// The thesis's gfid-queue table: cores in turn, in the order in which files are first used.
///
/// It has an entry for each file until [`CoreTable::forget`]: the thesis names no bound, and this
/// has none.
#[derive(Clone, Debug)]
pub struct CoreTable {
    cores: NonZeroUsize,
    next: usize,
    /// With fixed keys: the same files give the same table.
    by_gfid: HashMap<u128, usize, BuildHasherDefault<DefaultHasher>>,
}

impl CoreTable {
    /// An empty table over so many cores.
    pub fn new(cores: NonZeroUsize) -> CoreTable {
        CoreTable { cores, next: 0, by_gfid: HashMap::default() }
    }

    /// The core of a file, `0..cores`; the next one in turn if it has none.
    pub fn core(&mut self, gfid: u128) -> usize {
        match self.by_gfid.entry(gfid) {
            Entry::Occupied(entry) => *entry.get(),
            Entry::Vacant(entry) => {
                let core = *entry.insert(self.next);
                self.next = (self.next + 1) % self.cores.get();
                core
            }
        }
    }

    /// A file is gone, or nothing of it is under way: it is given a core anew when it comes back.
    pub fn forget(&mut self, gfid: u128) {
        self.by_gfid.remove(&gfid);
    }

    /// Files that have a core.
    pub fn len(&self) -> usize {
        self.by_gfid.len()
    }

    /// True if no file has one.
    pub fn is_empty(&self) -> bool {
        self.by_gfid.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cores(count: usize) -> NonZeroUsize {
        NonZeroUsize::new(count).expect("some")
    }

    proptest! {
        #[test]
        fn a_file_keeps_its_core_and_cores_get_files_in_turn(
            gfids in proptest::collection::vec(0u128..40, 1..200), count in 1usize..9,
        ) {
            let mut table = CoreTable::new(cores(count));
            let mut first = Vec::new();
            for gfid in gfids {
                let core = table.core(gfid);
                prop_assert!(core < count && core_of(gfid, cores(count)) < count);
                match first.iter().find(|(known, _)| *known == gfid) {
                    Some((_, known)) => prop_assert_eq!(core, *known),
                    None => {
                        prop_assert_eq!(core, first.len() % count, "cores in turn");
                        first.push((gfid, core));
                    }
                }
            }
            prop_assert_eq!(table.len(), first.len());
            first.iter().for_each(|(gfid, _)| table.forget(*gfid));
            prop_assert!(table.is_empty());
        }

        #[test]
        fn ids_in_turn_go_to_cores_in_turn(start in 0u128..u128::MAX / 2, count in 1usize..65) {
            let here = core_of(start, cores(count));
            prop_assert_eq!(core_of(start + 1, cores(count)), (here + 1) % count);
        }
    }
}
