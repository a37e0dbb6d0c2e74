//! The bytes of a journal on disk.
//!
//! Contract: pure conversion. A journal is a directory of segments `<number>.log`, 20 decimal
//! digits. A segment is a header and entries, each at a multiple of 8 bytes, little-endian. Segment
//! header:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 8 | magic `TREFJNL\0` |
//! | 8 | 4 | format version |
//! | 12 | 4 | zero |
//! | 16 | 8 | number |
//! | 24 | 8 | incarnation, drawn at random for each segment |
//! | 32 | 8 | lsn of its first entry |
//! | 40 | 8 | the journal was synced up to here when the segment was begun |
//! | 48 | 4 | 1: the file was a segment before, and what lies behind the last entry are bytes of that; else 0 |
//! | 52 | 8 | zero |
//! | 60 | 4 | CRC32C of bytes 0..60 |
//!
//! Entry, followed by front, data, and zeros to the next multiple of 8:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 4 | magic `TJE1` |
//! | 4 | 1 | kind |
//! | 5 | 3 | zero |
//! | 8 | 4 | front length |
//! | 12 | 4 | data length |
//! | 16 | 8 | incarnation of the segment: bytes of an older file in the same blocks are no entries |
//! | 24 | 8 | lsn |
//! | 32 | 8 | the journal was synced up to here when the entry was appended |
//! | 40 | 4 | CRC32C of the front |
//! | 44 | 4 | CRC32C of the data |
//! | 48 | 4 | zero |
//! | 52 | 4 | CRC32C of bytes 0..52 |

use super::{JournalError, Lsn};
use crate::superblock::{FORMAT_VERSION, FORMATS};
use std::path::{Path, PathBuf};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a segment header.
pub(super) const SEGMENT_HEADER_BYTES: u64 = size_of::<RawSegment>() as u64;
/// Bytes of an entry header.
pub(super) const ENTRY_HEADER_BYTES: u64 = size_of::<RawEntry>() as u64;
/// The greatest number that an entry has; a segment that begins beyond it is damaged. No journal
/// lives so long: at a million entries a second it takes 292,000 years.
pub(super) const LSN_MAX: Lsn = Lsn::MAX / 2;
/// Entries begin at multiples of this.
pub(super) const ENTRY_ALIGN: u64 = 8;

const SEGMENT_MAGIC: [u8; 8] = *b"TREFJNL\0";
const ENTRY_MAGIC: [u8; 4] = *b"TJE1";

const _: () = assert!(SEGMENT_HEADER_BYTES == 64 && ENTRY_HEADER_BYTES == 56);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawSegment {
    magic: [u8; 8],
    format: U32,
    zero: U32,
    number: U64,
    incarnation: U64,
    first_lsn: U64,
    synced: U64,
    reused: U32,
    reserved: [u8; 8],
    crc: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawEntry {
    magic: [u8; 4],
    kind: u8,
    zero: [u8; 3],
    front_bytes: U32,
    data_bytes: U32,
    incarnation: U64,
    lsn: U64,
    synced: U64,
    front_crc: U32,
    data_crc: U32,
    reserved: U32,
    crc: U32,
}

/// What a segment header says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SegmentHeader {
    pub(super) number: u64,
    pub(super) incarnation: u64,
    pub(super) first_lsn: Lsn,
    pub(super) synced: Lsn,
    /// What follows the last entry says nothing, unless it is of this incarnation.
    pub(super) is_reused: bool,
}

/// What an entry header says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct EntryHeader {
    pub(super) kind: u8,
    pub(super) front_bytes: u32,
    pub(super) data_bytes: u32,
    pub(super) incarnation: u64,
    pub(super) lsn: Lsn,
    pub(super) synced: Lsn,
    pub(super) front_crc: u32,
    pub(super) data_crc: u32,
}

/// Bytes an entry takes, with header and padding.
pub(super) const fn entry_bytes(front_bytes: usize, data_bytes: usize) -> u64 {
    (ENTRY_HEADER_BYTES + front_bytes as u64 + data_bytes as u64).next_multiple_of(ENTRY_ALIGN)
}

/// The file of a segment.
pub(super) fn segment_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:020}.log"))
}

/// The inverse of [`segment_path`]'s name.
pub(super) fn parse_segment_name(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".log")?;
    (digits.len() == 20).then(|| digits.parse().ok())?
}

impl SegmentHeader {
    pub(super) fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES as usize] {
        let mut raw = RawSegment {
            magic: SEGMENT_MAGIC,
            format: FORMAT_VERSION.into(),
            zero: 0.into(),
            number: self.number.into(),
            incarnation: self.incarnation.into(),
            first_lsn: self.first_lsn.into(),
            synced: self.synced.into(),
            reused: u32::from(self.is_reused).into(),
            reserved: [0; 8],
            crc: 0.into(),
        };
        raw.crc = crc32c::crc32c(&raw.as_bytes()[..SEGMENT_HEADER_BYTES as usize - 4]).into();
        zerocopy::transmute!(raw)
    }

    /// The header of the segment in `path`, or `None` if there is no valid one.
    ///
    /// # Errors
    /// [`JournalError::OtherFormat`] if it is whole and of another version.
    pub(super) fn decode(bytes: &[u8], path: &Path) -> Result<Option<Self>, JournalError> {
        let Ok((raw, _)) = RawSegment::read_from_prefix(bytes) else { return Ok(None) };
        let crc = crc32c::crc32c(&bytes[..SEGMENT_HEADER_BYTES as usize - 4]);
        if raw.magic != SEGMENT_MAGIC || raw.crc.get() != crc {
            return Ok(None);
        }
        if !FORMATS.contains(&raw.format.get()) {
            let (path, found) = (path.to_path_buf(), raw.format.get());
            return Err(JournalError::OtherFormat { path, found, supported: FORMAT_VERSION });
        }
        if !(1..=LSN_MAX).contains(&raw.first_lsn.get()) {
            return Ok(None);
        }
        Ok(Some(Self {
            number: raw.number.get(),
            incarnation: raw.incarnation.get(),
            first_lsn: raw.first_lsn.get(),
            synced: raw.synced.get(),
            is_reused: raw.reused.get() != 0,
        }))
    }
}

impl EntryHeader {
    pub(super) fn encode(&self) -> [u8; ENTRY_HEADER_BYTES as usize] {
        let mut raw = RawEntry {
            magic: ENTRY_MAGIC,
            kind: self.kind,
            zero: [0; 3],
            front_bytes: self.front_bytes.into(),
            data_bytes: self.data_bytes.into(),
            incarnation: self.incarnation.into(),
            lsn: self.lsn.into(),
            synced: self.synced.into(),
            front_crc: self.front_crc.into(),
            data_crc: self.data_crc.into(),
            reserved: 0.into(),
            crc: 0.into(),
        };
        raw.crc = crc32c::crc32c(&raw.as_bytes()[..ENTRY_HEADER_BYTES as usize - 4]).into();
        zerocopy::transmute!(raw)
    }

    /// The header at the start of `bytes`, or `None` if there is no valid one of this incarnation.
    pub(super) fn decode(bytes: &[u8], incarnation: u64) -> Option<Self> {
        let (raw, _) = RawEntry::ref_from_prefix(bytes).ok()?;
        // The magic first: most offsets of a search fail here, without a checksum.
        if raw.magic != ENTRY_MAGIC
            || raw.incarnation.get() != incarnation
            || raw.crc.get() != crc32c::crc32c(&bytes[..ENTRY_HEADER_BYTES as usize - 4])
        {
            return None;
        }
        Some(Self {
            kind: raw.kind,
            front_bytes: raw.front_bytes.get(),
            data_bytes: raw.data_bytes.get(),
            incarnation,
            lsn: raw.lsn.get(),
            synced: raw.synced.get(),
            front_crc: raw.front_crc.get(),
            data_crc: raw.data_crc.get(),
        })
    }

    /// The incarnation that the entry at the start of `bytes` says it has; not checked.
    pub(super) fn peek_incarnation(bytes: &[u8]) -> Option<u64> {
        let (raw, _) = RawEntry::ref_from_prefix(bytes).ok()?;
        (raw.magic == ENTRY_MAGIC).then(|| raw.incarnation.get())
    }

    /// Bytes the entry takes.
    pub(super) fn bytes(&self) -> u64 {
        entry_bytes(self.front_bytes as usize, self.data_bytes as usize)
    }

    /// Front and data of the entry at the start of `bytes`, if they are all there and pass their
    /// checksums.
    pub(super) fn payload<'a>(&self, bytes: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
        let payload = bytes.get(ENTRY_HEADER_BYTES as usize..)?;
        let (front, rest) = payload.split_at_checked(self.front_bytes as usize)?;
        let data = rest.get(..self.data_bytes as usize)?;
        (crc32c::crc32c(front) == self.front_crc && crc32c::crc32c(data) == self.data_crc)
            .then_some((front, data))
    }
}
