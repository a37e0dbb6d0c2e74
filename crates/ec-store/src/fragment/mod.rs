//! The fragment store: what one OSD holds of each object, a file that describes itself.
//!
//! Contract: [`FragmentStore`] belongs to one thread (a core) and caches open files; a
//! [`FragmentFile`] is one of them, shared and `Send`, so that what may wait (a cold read, a sync)
//! runs on another thread. No two stores of one process may have the same PG open. Offsets and
//! lengths are in fragment bytes and multiples of [`SECTOR_BYTES`].
//!
//! A fragment is the file `pg/<pool>.<pg hex>/<gfid hex>.<index>.<shard>`, sparse, little-endian:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 128 | header, see the module `header` |
//! | 128 | 4 x sectors | CRC table: for each sector of data its CRC32C, 0 = never written |
//! | next multiple of 1 MiB, or of what the header says | `Profile::fragment_bytes` | data |
//! | next multiple of 4096 | 2 x slots | where each slot lies, see the module `slots`; only if the header says so |
//! | next multiple as for data | | more places for slots |
//!
//! * A sector whose table entry is 0 is a hole and reads as zeros, whatever bytes the file has
//!   there. A CRC that computes to 0 is stored as 1 ([`sector_crc`]).
//! * **What is durable when.** A write puts data into the file at once; its table entries and the
//!   header stay in memory until [`FragmentFile::sync`], which writes them and then calls
//!   `fdatasync`. A crash in between leaves sectors that hold old bytes, or new bytes that fail the
//!   old CRC, never bytes that pass and are neither. So a journal record may be trimmed only after
//!   the sync that followed its application, and after a restart every record that is still in the
//!   journal must be applied again before (or overlaid while) its sectors are read. Changes that no
//!   record repeats, those of a rebuild, need [`FragmentFile::flush`] to survive the death of the
//!   process.
//! * **Direct writes.** [`FragmentFile::write_data_only`] puts bytes where nothing was written yet.
//!   They stay invisible (the entries are 0) until [`FragmentFile::publish`]. Use it only where no
//!   unapplied record of any kind touches the range: a punch applied later would take the bytes
//!   away.
//! * **Placed writes.** [`FragmentFile::place`] puts the bytes of whole slots into places of the
//!   file where none lies, over which of the old ones whatever lies; [`FragmentFile::point`] makes
//!   them the slots' bytes. The map that says where slots lie is written with the table and as
//!   late; records repeat what it lacks after a crash. A map that is wrong shows by the checksums
//!   of what is read.
//! * A deleted fragment's file is kept, empty, as `spare/<core>/<number>` for the next fragment:
//!   see the module `spare`.
//! * A full disk is [`FragmentError::Full`]; what was readable before stays readable, each sector
//!   old or new.
//! * After a failed `fdatasync` the file refuses every further sync
//!   ([`FragmentError::SyncFailed`]): the kernel may have dropped the pages, and a second sync that
//!   succeeds would mean nothing.

mod changes;
mod crc;
mod file;
mod header;
mod slots;
mod spare;
mod store;
mod table;

pub(crate) use crc::stored;
pub use crc::{JoinedCrc, sector_crc, sector_crcs};
pub use file::{FragmentFile, TakenPlaces};
pub(crate) use file::{space_of_range, sync_names};
pub use slots::{Placement, is_slot_size};
pub use store::{FragmentConfig, FragmentStore};

use crate::disk;
use protocol::ids::{ClusterId, Epoch, ObjectId, PgId, Profile, Seq, SessionId, ShardIndex};
use smallvec::SmallVec;
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

/// Checksums of a read that fit on the stack: 32 KiB of a fragment.
type Crcs = SmallVec<[u32; 64]>;

/// The unit of checksums, in bytes.
pub const SECTOR_BYTES: u64 = Profile::SECTOR_BYTES as u64;

/// Names one fragment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FragmentKey {
    /// The PG of the object.
    pub pg: PgId,
    /// The object.
    pub object: ObjectId,
    /// Which of its shards.
    pub shard: ShardIndex,
}

impl fmt::Display for FragmentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}.{}", self.pg, self.object, self.shard.get())
    }
}

/// The record that was applied last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct FragmentVersion {
    /// Its session.
    pub session: SessionId,
    /// Its number in the session's writes to the PG.
    pub seq: Seq,
    /// The epoch it was taken in.
    pub epoch: Epoch,
}

/// What an applied record says of the fragment.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Mark {
    /// The record.
    pub version: FragmentVersion,
    /// Where the object's user data ends as its writer knows it, in user bytes of the object. Kept
    /// if what is known is greater, except by a truncation, which sets it.
    pub logical_end: u64,
}

/// What a fragment says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FragmentStat {
    /// The profile it was made with.
    pub profile: Profile,
    /// The record that was applied last; all zero if none was.
    pub version: FragmentVersion,
    /// Where the object's user data ends as last told by a writer, in user bytes of the object.
    pub logical_end: u64,
    /// Disk space the file takes.
    pub allocated_bytes: u64,
}

/// May a read wait for the disk?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadMode {
    /// Take what the page cache holds, or say that it would block. Opening a file that is not open
    /// may still wait.
    NoWait,
    /// Wait for the disk.
    Blocking,
}

/// How a read ended, if not with an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadOutcome {
    /// The buffer holds the bytes, each sector checked or a hole.
    Read,
    /// There is no such fragment: the buffer holds zeros.
    Absent,
    /// Only with [`ReadMode::NoWait`]: the disk is needed, the buffer's contents are undefined.
    WouldBlock,
}

/// Why a fragment cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FragmentError {
    /// Sectors fail their CRC: an erasure, to be rebuilt from other shards.
    #[error("fragment {key}: {} of the sectors read fail their checksum, the first at byte {}", sectors.len(), sectors.first().copied().unwrap_or(0) * SECTOR_BYTES)]
    Corrupt {
        /// Which fragment.
        key: FragmentKey,
        /// Numbers of the bad sectors within the fragment, ascending.
        sectors: Vec<u64>,
    },
    /// The header is damaged or is not this fragment's: all of it is an erasure; delete it and
    /// rebuild.
    #[error("fragment {key}: the header {what}")]
    BadHeader {
        /// Which fragment.
        key: FragmentKey,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The fragment was made with another profile than the pool has.
    #[error("fragment {key}: made with profile {found:?}, the pool has {expected:?}")]
    OtherProfile {
        /// Which fragment.
        key: FragmentKey,
        /// In its header.
        found: Profile,
        /// Asked for.
        expected: Profile,
    },
    /// The fragment belongs to another cluster.
    #[error("fragment {key}: belongs to cluster {found}")]
    OtherCluster {
        /// Which fragment.
        key: FragmentKey,
        /// In its header.
        found: ClusterId,
    },
    /// A range is not whole sectors, goes beyond the fragment, or has not one CRC for each sector:
    /// a mistake of the caller.
    #[error("fragment {key}: {offset}+{length} is no range of whole sectors within it")]
    BadRange {
        /// Which fragment.
        key: FragmentKey,
        /// First byte.
        offset: u64,
        /// Length in bytes.
        length: u64,
    },
    /// A direct write over sectors that were written before: a mistake of the caller, nothing was
    /// written.
    #[error("fragment {key}: direct write of {offset}+{length} over written sectors")]
    Written {
        /// Which fragment.
        key: FragmentKey,
        /// First byte.
        offset: u64,
        /// Length in bytes.
        length: u64,
    },
    /// The file system is full. What was readable stays so; free space and try again.
    #[error("fragment {key}: no space left: {source}")]
    Full {
        /// Which fragment.
        key: FragmentKey,
        /// What the system said.
        source: io::Error,
    },
    /// A sync failed earlier; the file must be rebuilt or its records applied again after a
    /// restart.
    #[error("fragment {key}: an earlier sync failed, its contents on disk are uncertain")]
    SyncFailed {
        /// Which fragment.
        key: FragmentKey,
    },
    /// Any other failure of one fragment.
    #[error("fragment {key}: {source}")]
    Io {
        /// Which fragment.
        key: FragmentKey,
        /// What the system said.
        source: io::Error,
    },
    /// A failure of the store's directories.
    #[error("fragment store {path}: {source}")]
    Store {
        /// Which directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl FragmentError {
    /// Wraps what the system said about one fragment.
    fn io(key: FragmentKey, source: io::Error) -> Self {
        if disk::is_full(&source) { Self::Full { key, source } } else { Self::Io { key, source } }
    }

    /// Is the fragment, or a part of it, lost, so that the other shards must give it back?
    pub fn is_erasure(&self) -> bool {
        matches!(self, Self::Corrupt { .. } | Self::BadHeader { .. } | Self::Io { .. })
    }

    /// Is the disk full?
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Full { .. })
    }
}

/// Of the space that a fragment's file takes, that of its data and of most of its checksums: all
/// but the block that every file has, for its header and the first checksums.
pub(crate) fn space_of_data(allocated_bytes: u64) -> u64 {
    allocated_bytes.saturating_sub(4096)
}

/// Compares bytes read from fragment offset `offset` with the checksums they should have; sectors
/// with entry 0 are made zeros. For bytes of direct writes, whose checksums the journal holds.
///
/// # Errors
/// [`FragmentError::Corrupt`] names every bad sector.
pub fn verify(
    key: FragmentKey,
    offset: u64,
    bytes: &mut [u8],
    crcs: &[u32],
) -> Result<(), FragmentError> {
    assert_eq!(
        bytes.len() as u64,
        crcs.len() as u64 * SECTOR_BYTES,
        "one checksum for each sector"
    );
    let mut found = Crcs::new();
    sector_crcs(bytes, &mut found);
    let mut bad = Vec::new();
    for (i, (sector, (&crc, found))) in
        bytes.chunks_exact_mut(SECTOR_BYTES as usize).zip(crcs.iter().zip(found)).enumerate()
    {
        if crc == 0 {
            sector.fill(0);
        } else if found != crc {
            bad.push(offset / SECTOR_BYTES + i as u64);
        }
    }
    if bad.is_empty() { Ok(()) } else { Err(FragmentError::Corrupt { key, sectors: bad }) }
}

/// A fragment range as sector numbers, checked.
fn sectors_of(
    key: FragmentKey,
    profile: Profile,
    offset: u64,
    length: u64,
) -> Result<Range<usize>, FragmentError> {
    let end = offset.checked_add(length).filter(|&end| end <= profile.fragment_bytes());
    match end {
        Some(end) if offset.is_multiple_of(SECTOR_BYTES) && end.is_multiple_of(SECTOR_BYTES) => {
            Ok((offset / SECTOR_BYTES) as usize..(end / SECTOR_BYTES) as usize)
        }
        _ => Err(FragmentError::BadRange { key, offset, length }),
    }
}

#[cfg(test)]
mod tests;
