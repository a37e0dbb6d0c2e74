//! Disk space that a fragment has before it is written.
//!
//! Contract: space belongs to places of the file, not to what they hold. A reservation changes no
//! byte that anybody reads, and no checksum: what it covers stays a hole to readers. It goes with
//! the range's next punch or truncation, and is in no record: a fragment that is rebuilt has what
//! holds data, and nothing else.

use super::super::header::HEADER_BYTES;
use super::super::{FragmentError, SECTOR_BYTES, sectors_of};
use super::FragmentFile;
use crate::medium::Extent;
use std::ops::Range;

/// Blocks of the file systems that reserve: a part of one takes it whole.
const BLOCK_BYTES: u64 = 4096;

impl FragmentFile {
    /// Bytes of disk that a write of this range would still take, with its checksums; `None` if
    /// what holds the file cannot tell.
    ///
    /// # Errors
    /// `Io`, `BadRange`.
    pub fn missing(&self, range: Range<u64>) -> Result<Option<u64>, FragmentError> {
        let mut sum = 0;
        for part in self.space_of(range)?.into_iter().filter(|part| !part.is_empty()) {
            let missing = self.file.missing(part.start, part.end - part.start);
            let Some(missing) = missing.map_err(|error| self.io(error))? else { return Ok(None) };
            sum += missing;
        }
        Ok(Some(sum))
    }

    /// Bytes of disk that a range has, without its checksums; `None` if what holds the file cannot
    /// tell.
    ///
    /// # Errors
    /// `Io`, `BadRange`.
    pub fn taken(&self, range: Range<u64>) -> Result<Option<u64>, FragmentError> {
        let mut sum = 0;
        for part in self.space_of(range)?.into_iter().skip(1) {
            let length = part.end - part.start;
            let missing = self.file.missing(part.start, length).map_err(|error| self.io(error))?;
            let Some(missing) = missing else { return Ok(None) };
            sum += length - missing;
        }
        Ok(Some(sum))
    }

    /// Takes the space that a write of this range would take; `false`, with nothing done, if what
    /// holds the file cannot.
    ///
    /// # Errors
    /// `Full`: any part may have been taken. `Io`, `BadRange`.
    pub fn reserve(&self, range: Range<u64>) -> Result<bool, FragmentError> {
        let parts = self.space_of(range)?;
        self.changed(0);
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            let taken = self.file.extent(Extent::Allocate, part.start, part.end - part.start);
            if !taken.map_err(|error| self.io(error))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Where the checksums of a range lie in the file, and then the range, in whole blocks.
    fn space_of(&self, range: Range<u64>) -> Result<Vec<Range<u64>>, FragmentError> {
        let length = range.end.saturating_sub(range.start);
        let sectors = sectors_of(self.key, self.profile, range.start, length)?;
        let state = self.state.lock();
        let pieces = state.slots.pieces(range.start..range.start + length);
        let data = self.ranges(&state.slots, &pieces);
        let table = HEADER_BYTES + sectors.start as u64 * 4..HEADER_BYTES + sectors.end as u64 * 4;
        let parts = data.iter().map(|(at, within)| *at..*at + within.len() as u64);
        let whole = |part: Range<u64>| {
            part.start / BLOCK_BYTES * BLOCK_BYTES..part.end.next_multiple_of(BLOCK_BYTES)
        };
        Ok(std::iter::once(table).chain(parts).map(whole).collect())
    }
}

/// Bytes of disk that a range of a fragment takes that has none of its file yet, at most.
pub(crate) fn space_of_range(range: &Range<u64>) -> u64 {
    let blocks = |bytes: u64| bytes.next_multiple_of(BLOCK_BYTES) + BLOCK_BYTES;
    let length = range.end.saturating_sub(range.start);
    blocks(length) + blocks(length / SECTOR_BYTES * 4)
}

#[cfg(test)]
mod tests {
    use super::super::super::{FragmentKey, FragmentStore, Mark};
    use super::*;
    use protocol::ids::{ClusterId, Gfid, ObjectId, PgId, PoolId, Profile, ShardIndex};

    #[test]
    fn what_is_reserved_is_a_hole_until_it_is_written_and_goes_with_a_punch() {
        // Not in a temporary directory, which may be of a file system that does not reserve.
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let mut store = FragmentStore::open_alone(dir.path(), ClusterId::new(7)).unwrap();
        let pg = PgId { pool: PoolId::new(1), number: 0 };
        let object = ObjectId { gfid: Gfid::of_inode(5), index: 0 };
        let key = FragmentKey { pg, object, shard: ShardIndex::new(0) };
        let file = store.get_or_create(key, Profile::new(2, 1, 512, 4 << 20).unwrap()).unwrap();
        let range = 8192..1 << 20;
        let Some(before) = file.missing(range.clone()).unwrap() else { return };
        assert!(before >= (1 << 20) - 8192 && before <= space_of_range(&range));
        assert!(file.reserve(range.clone()).unwrap());
        assert_eq!(file.missing(range.clone()).unwrap(), Some(0));
        assert_eq!(file.taken(0..1 << 20).unwrap(), Some((1 << 20) - 8192));
        assert!(file.is_unwritten(0, 1 << 20).unwrap());
        assert!(file.data_extents(0, 10).unwrap().is_empty());
        let taken = file.stat().unwrap().allocated_bytes;
        file.write_data_only(65_536, &[7; 4096]).unwrap();
        file.sync().unwrap();
        let grown = file.stat().unwrap().allocated_bytes - taken;
        assert!(grown <= BLOCK_BYTES, "a block that lists extents at most, and not {grown}");
        file.punch(65_536, 131_072, Mark::default()).unwrap();
        assert_eq!(file.missing(range).unwrap(), Some(131_072));
        file.truncate(0, Mark::default()).unwrap();
        assert!(file.stat().unwrap().allocated_bytes <= 2 * BLOCK_BYTES);
    }
}
