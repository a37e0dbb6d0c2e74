//! Bounds on what a core has taken and not yet brought to its files, or to the disk: the throttles
//! of Ceph's FileStore, under their names.
//!
//! Contract: pure, no I/O, no clock. The numbers are of one core; [`Throttles::of_core`] makes them
//! from those of a whole daemon.

use crate::fragment::FragmentKey;
use std::collections::HashSet;

/// When changed fragment files begin to be written back: at whichever comes first. All are counted
/// since write-back began last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteBackStart {
    /// `filestore_wbthrottle_bytes_start_flusher`: bytes of changes. Default 128 MiB.
    pub bytes: u64,
    /// `filestore_wbthrottle_ios_start_flusher`: changes. Default 1,000,000.
    pub ios: u64,
    /// `filestore_wbthrottle_inodes_start_flusher`: changed files. Default 10,000.
    pub inodes: u64,
}

/// The bounds of one core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Throttles {
    /// `filestore_queue_max_bytes`: bytes of journalled writes that wait in memory to be applied;
    /// at the bound sessions are asked to begin no more writes. Default 100 MiB.
    pub queue_bytes_max: u64,
    /// `filestore_queue_committing_max_bytes`: bytes that wait for one sync. At the bound the sync
    /// begins without waiting for its interval; sessions are asked to begin no more writes while
    /// the sync before it still runs. Default 100 MiB.
    pub committing_bytes_max: u64,
    /// When write-back begins.
    pub write_back: WriteBackStart,
}

impl Default for Throttles {
    fn default() -> Self {
        let write_back = WriteBackStart { bytes: 128 << 20, ios: 1_000_000, inodes: 10_000 };
        Self { queue_bytes_max: 100 << 20, committing_bytes_max: 100 << 20, write_back }
    }
}

impl Throttles {
    /// The part of one of so many cores; every bound is at least 1.
    #[must_use]
    pub fn of_core(self, cores: u16) -> Self {
        let part = |whole: u64| (whole / u64::from(cores.max(1))).max(1);
        let WriteBackStart { bytes, ios, inodes } = self.write_back;
        Self {
            queue_bytes_max: part(self.queue_bytes_max),
            committing_bytes_max: part(self.committing_bytes_max),
            write_back: WriteBackStart { bytes: part(bytes), ios: part(ios), inodes: part(inodes) },
        }
    }
}

/// How often write-back began, by the bound that was reached first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WriteBacks {
    /// [`WriteBackStart::bytes`].
    pub by_bytes: u64,
    /// [`WriteBackStart::ios`].
    pub by_ios: u64,
    /// [`WriteBackStart::inodes`].
    pub by_inodes: u64,
}

/// Changes of fragment files since write-back began last.
#[derive(Debug, Default)]
pub(crate) struct Unflushed {
    bytes: u64,
    ios: u64,
    files: HashSet<FragmentKey>,
}

impl Unflushed {
    /// One change of a file.
    pub fn note(&mut self, key: FragmentKey, bytes: u64) {
        self.bytes += bytes;
        self.ios += 1;
        self.files.insert(key);
    }

    /// True: write-back is to begin now; it is counted, and nothing is unflushed any more.
    pub fn begin_if_due(&mut self, start: &WriteBackStart, counts: &mut WriteBacks) -> bool {
        let count = if self.bytes >= start.bytes {
            &mut counts.by_bytes
        } else if self.ios >= start.ios {
            &mut counts.by_ios
        } else if self.files.len() as u64 >= start.inodes {
            &mut counts.by_inodes
        } else {
            return false;
        };
        *count += 1;
        *self = Self::default();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::{Gfid, ObjectId, PgId, PoolId, ShardIndex};

    fn key(n: u64) -> FragmentKey {
        let object = ObjectId { gfid: Gfid::of_inode(n), index: 0 };
        FragmentKey {
            pg: PgId { pool: PoolId::new(1), number: 0 },
            object,
            shard: ShardIndex::new(0),
        }
    }

    #[test]
    fn each_bound_begins_a_write_back_of_its_own() {
        let start = WriteBackStart { bytes: 1000, ios: 10, inodes: 3 };
        let begins = |changes: &[(u64, u64)]| {
            let (mut unflushed, mut counts) = (Unflushed::default(), WriteBacks::default());
            for &(file, bytes) in changes {
                assert!(!unflushed.begin_if_due(&start, &mut counts), "too early");
                unflushed.note(key(file), bytes);
            }
            let begins = unflushed.begin_if_due(&start, &mut counts);
            assert!(!unflushed.begin_if_due(&start, &mut counts), "counted twice");
            begins.then_some(counts)
        };
        let none = WriteBacks::default();
        assert_eq!(begins(&[(1, 999), (2, 0)]), None);
        assert_eq!(begins(&[(1, 999), (1, 1)]), Some(WriteBacks { by_bytes: 1, ..none }));
        assert_eq!(begins(&[(1, 1); 10]), Some(WriteBacks { by_ios: 1, ..none }));
        assert_eq!(begins(&[(1, 1), (2, 1), (3, 1)]), Some(WriteBacks { by_inodes: 1, ..none }));
    }

    #[test]
    fn cores_share_the_bounds_of_a_daemon() {
        let core = Throttles::default().of_core(3);
        assert_eq!((core.queue_bytes_max, core.write_back.ios), ((100 << 20) / 3, 333_333));
        assert_eq!(
            Throttles { queue_bytes_max: 2, ..Throttles::default() }.of_core(64).queue_bytes_max,
            1
        );
    }
}
