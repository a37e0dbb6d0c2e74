//! Reading a journal back after a restart.
//!
//! Contract: gives the longest unbroken sequence of valid entries from the oldest segment on, cuts
//! what is behind it, and syncs what it gives. First looks, then changes: a journal that is refused
//! is left as it was. What tells a torn tail from damage is that every entry and segment header
//! carries how far the journal was synced when it was written: an entry is missing, and any header
//! behind it says that it was synced.

use super::format::{
    ENTRY_ALIGN, ENTRY_HEADER_BYTES, EntryHeader, SEGMENT_HEADER_BYTES, SegmentHeader,
};
use super::format::{parse_segment_name, segment_path};
use super::{JournalError, Location, Lsn, Segment};
use crate::medium::{self, Dir, MediumFile, OpenMode};
use bytes::Bytes;
use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// What to do if synced entries are missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnDamage {
    /// Refuse to open: this OSD no longer holds everything it acknowledged.
    Refuse,
    /// Keep copies of the damaged segments as `<name>.damaged` and open with what stands before the
    /// damage. The caller must then count its shards as not in sync.
    SetAside,
}

/// An entry given back by [`super::Journal::open`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecoveredEntry {
    /// Where it is.
    pub location: Location,
    /// As appended.
    pub kind: u8,
    /// As appended.
    pub front: Bytes,
    /// As appended.
    pub data: Bytes,
}

/// Where the journal was cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TornTail {
    /// Number of the segment.
    pub segment: u64,
    /// Offset of the first byte cut, in bytes.
    pub offset: u64,
    /// The first entry that is missing.
    pub lsn: Lsn,
    /// What stands behind the cut says that the journal was synced up to here.
    pub synced: Lsn,
    /// Segments behind this one that were cut with it.
    pub later_segments: usize,
}

impl TornTail {
    /// Was something lost that had been synced? Only with [`OnDamage::SetAside`].
    pub fn is_damage(&self) -> bool {
        self.lsn <= self.synced
    }
}

/// What [`super::Journal::open`] found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Recovered {
    /// The entries, oldest first.
    pub entries: Vec<RecoveredEntry>,
    /// Where the journal was cut, if it had to be.
    pub torn: Option<TornTail>,
}

/// A journal read back and cut.
pub(super) struct Scan {
    pub(super) recovered: Recovered,
    /// Those that hold entries.
    pub(super) segments: VecDeque<Segment>,
    /// A number greater than any in use.
    pub(super) next_number: u64,
    pub(super) next_lsn: Lsn,
}

/// The part of a journal that is good, while it is read.
#[derive(Default)]
struct Good {
    entries: Vec<RecoveredEntry>,
    /// For each segment with a valid header: number, header, offset behind its last entry, its last
    /// entry.
    segments: Vec<(u64, SegmentHeader, u64, Lsn)>,
    next_lsn: Option<Lsn>,
}

/// Reads the journal in `dir` back; see the contract of the module.
pub(super) fn recover(dir: &Dir, on_damage: OnDamage) -> Result<Scan, JournalError> {
    let numbers = list(dir)?;
    let mut good = Good::default();
    let mut torn = None;
    for (i, &number) in numbers.iter().enumerate() {
        let path = segment_path(dir.path(), number);
        let bytes = read(dir, &path).map_err(|error| JournalError::io(&path, error))?;
        let header = SegmentHeader::decode(&bytes, &path)?.filter(|header| header.number == number);
        let Some(header) =
            header.filter(|header| good.next_lsn.is_none_or(|lsn| lsn == header.first_lsn))
        else {
            torn = Some(witness(dir, &numbers, i, 0, None, good.next_lsn.unwrap_or(1))?);
            break;
        };
        let (end, lsn, is_clean) = read_segment(&mut good, number, header, &bytes);
        // If the next segment goes on with the next entry nothing is missing, whatever follows the
        // last entry here.
        if !is_clean && first_lsn(dir, numbers.get(i + 1))? != Some(lsn) {
            torn = Some(witness(dir, &numbers, i, end, Some(header.incarnation), lsn)?);
            break;
        }
    }
    if let Some(tail) = torn {
        report(&tail, on_damage)?;
        cut(dir, &numbers, &tail, on_damage)?;
        good.segments.retain(|(number, ..)| {
            *number < tail.segment || (*number == tail.segment && tail.offset > 0)
        });
    }
    finish(dir, good, torn, numbers.last().map_or(1, |last| last + 1))
}

/// The first entry of a segment, if there is one with a valid header.
fn first_lsn(dir: &Dir, number: Option<&u64>) -> Result<Option<Lsn>, JournalError> {
    let Some(&number) = number else { return Ok(None) };
    let path = segment_path(dir.path(), number);
    let mut bytes = [0; SEGMENT_HEADER_BYTES as usize];
    let read = open(dir, &path).and_then(|file| medium::read_zero_filled(&*file, 0, &mut bytes));
    read.map_err(|error| JournalError::io(&path, error))?;
    Ok(SegmentHeader::decode(&bytes, &path)?.map(|header| header.first_lsn))
}

/// Takes the entries of a segment; returns the offset behind the last, the entry that should
/// follow, and whether nothing does: only zeros, or old bytes of a file that was used before.
fn read_segment(
    good: &mut Good,
    number: u64,
    segment: SegmentHeader,
    bytes: &[u8],
) -> (u64, Lsn, bool) {
    let mut lsn = segment.first_lsn;
    let mut offset = SEGMENT_HEADER_BYTES;
    loop {
        let rest = bytes.get(offset as usize..).unwrap_or_default();
        let header =
            EntryHeader::decode(rest, segment.incarnation).filter(|header| header.lsn == lsn);
        let Some((header, (front, data))) =
            header.and_then(|header| Some((header, header.payload(rest)?)))
        else {
            good.segments.push((number, segment, offset, lsn - 1));
            good.next_lsn = Some(lsn);
            let is_clean = rest.iter().all(|&byte| byte == 0)
                || segment.is_reused && !has_entry(rest, segment.incarnation);
            return (offset, lsn, is_clean);
        };
        good.entries.push(RecoveredEntry {
            location: Location { segment: number, offset, bytes: header.bytes(), lsn },
            kind: header.kind,
            front: Bytes::copy_from_slice(front),
            data: Bytes::copy_from_slice(data),
        });
        lsn += 1;
        offset += header.bytes();
    }
}

/// Is there a header of an entry of this incarnation?
fn has_entry(bytes: &[u8], incarnation: u64) -> bool {
    let mut places = (0..bytes.len()).step_by(ENTRY_ALIGN as usize);
    places.any(|at| EntryHeader::decode(&bytes[at..], incarnation).is_some())
}

/// Looks behind the place where entry `lsn` is missing for a header that says how far the journal
/// was synced.
fn witness(
    dir: &Dir,
    numbers: &[u64],
    index: usize,
    offset: u64,
    incarnation: Option<u64>,
    lsn: Lsn,
) -> Result<TornTail, JournalError> {
    let mut synced = 0;
    for (i, &number) in numbers.iter().enumerate().skip(index) {
        let path = segment_path(dir.path(), number);
        let bytes = read(dir, &path).map_err(|error| JournalError::io(&path, error))?;
        let header = SegmentHeader::decode(&bytes, &path)?;
        // The header of the segment in which the good part ends speaks of what is before the cut.
        if let Some(header) = header.filter(|_| i > index || offset == 0) {
            synced = synced.max(header.synced);
        }
        let known =
            if i == index { incarnation } else { None }.or(header.map(|header| header.incarnation));
        let start =
            if i == index { offset.max(SEGMENT_HEADER_BYTES) } else { SEGMENT_HEADER_BYTES };
        for at in (start..bytes.len() as u64).step_by(ENTRY_ALIGN as usize) {
            let rest = &bytes[at as usize..];
            // Without a valid segment header the entry has to vouch for itself.
            let Some(raw) = known.or_else(|| EntryHeader::peek_incarnation(rest)) else { continue };
            if let Some(entry) = EntryHeader::decode(rest, raw) {
                synced = synced.max(entry.synced);
            }
        }
    }
    let later_segments = numbers.len() - index - 1;
    Ok(TornTail { segment: numbers[index], offset, lsn, synced, later_segments })
}

fn report(tail: &TornTail, on_damage: OnDamage) -> Result<(), JournalError> {
    let TornTail { segment, offset, lsn, synced, later_segments } = *tail;
    if !tail.is_damage() {
        tracing::warn!(
            segment,
            offset,
            lsn,
            later_segments,
            "torn journal tail cut: a crash came before its sync"
        );
        return Ok(());
    }
    tracing::error!(segment, offset, lsn, synced, "journal damaged: synced entries are missing");
    match on_damage {
        OnDamage::Refuse => Err(JournalError::Damaged { segment, offset, lsn, synced }),
        OnDamage::SetAside => Ok(()),
    }
}

/// Removes what is behind the good part, later segments first, durably.
fn cut(
    dir: &Dir,
    numbers: &[u64],
    tail: &TornTail,
    on_damage: OnDamage,
) -> Result<(), JournalError> {
    let keep_copies = tail.is_damage() && on_damage == OnDamage::SetAside;
    for &number in numbers.iter().rev().take_while(|&&number| number >= tail.segment) {
        let path = segment_path(dir.path(), number);
        let io = |error| JournalError::io(&path, error);
        if keep_copies {
            copy(dir, &path, &path.with_extension("log.damaged")).map_err(io)?;
        }
        if number > tail.segment || tail.offset == 0 {
            dir.medium().remove(&path).map_err(io)?;
            dir.sync().map_err(io)?;
        }
    }
    Ok(())
}

/// Shortens the good segments to their entries, removes those without any, and makes all of it
/// durable.
fn finish(
    dir: &Dir,
    good: Good,
    torn: Option<TornTail>,
    next_number: u64,
) -> Result<Scan, JournalError> {
    let mut segments = VecDeque::new();
    for (number, header, end, last_lsn) in good.segments {
        let path = segment_path(dir.path(), number);
        let io = |error| JournalError::io(&path, error);
        if last_lsn < header.first_lsn {
            dir.medium().remove(&path).map_err(io)?;
            continue;
        }
        let file = open(dir, &path).map_err(io)?;
        // Also lengthens by the padding that a cut within it took.
        file.set_len(end).map_err(io)?;
        // Flushed entries may be in the page cache only; from here on they count as synced.
        file.sync_data().map_err(io)?;
        segments.push_back(Segment {
            number,
            incarnation: header.incarnation,
            file,
            bytes: end,
            last_lsn,
            is_new: false,
        });
    }
    dir.sync().map_err(|error| JournalError::io(dir.path(), error))?;
    let recovered = Recovered { entries: good.entries, torn };
    Ok(Scan { recovered, segments, next_number, next_lsn: good.next_lsn.unwrap_or(1) })
}

fn open(dir: &Dir, path: &Path) -> io::Result<Arc<dyn MediumFile>> {
    dir.medium().open(path, OpenMode::Existing)
}

fn read(dir: &Dir, path: &Path) -> io::Result<Vec<u8>> {
    medium::read_all(&*open(dir, path)?)
}

fn copy(dir: &Dir, from: &Path, to: &Path) -> io::Result<()> {
    let bytes = read(dir, from)?;
    let file = dir.medium().open(to, OpenMode::Truncated)?;
    medium::write_counted(&*file, 0, &bytes).map_err(|(_, error)| error)
}

/// Numbers of the segments in `dir`, ascending.
fn list(dir: &Dir) -> Result<Vec<u64>, JournalError> {
    let io = |error: io::Error| JournalError::io(dir.path(), error);
    let mut numbers = Vec::new();
    for name in dir.medium().list(dir.path()).map_err(io)? {
        numbers.extend(name.map_err(io)?.to_str().and_then(parse_segment_name));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

const _: () = assert!(
    SEGMENT_HEADER_BYTES.is_multiple_of(ENTRY_ALIGN)
        && ENTRY_HEADER_BYTES.is_multiple_of(ENTRY_ALIGN)
);
