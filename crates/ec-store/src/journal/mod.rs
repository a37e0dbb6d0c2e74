//! The journal: what a core has accepted and not yet applied, an append-only log in segments.
//!
//! Contract: [`Journal`] belongs to one thread; [`SyncHandle`] and [`EntryReader`] are `Send` and
//! do the waiting elsewhere. Entries are opaque: a kind, front bytes and data bytes. An entry is
//!
//! 1. *appended* ([`Journal::append`]): in memory;
//! 2. *flushed* ([`Journal::flush`]): in the page cache, so that it survives the death of the
//!    process. Only now may it be acknowledged;
//! 3. *synced* ([`SyncHandle::run`], then [`Journal::synced`]): on the disk.
//!
//! Entries have numbers (lsn) 1, 2, 3 ... without gap. [`Journal::open`] gives back an unbroken
//! sequence that holds every synced entry, and every flushed one if the machine stayed up. It
//! always starts a new segment, so nothing is ever written behind a torn tail. Each entry says how
//! far the journal was synced when it was appended: an entry that is missing though a later one
//! says that it was synced is *damage* and refused ([`JournalError::Damaged`]); anything else that
//! is missing is the torn tail of a crash, and is cut.
//!
//! **Limits.** A journal is at its limit with `journal_bytes_max` ([`Journal::is_at_limit`]: its
//! owner asks for no more), and takes what [`Journal::allow_beyond`] allows in addition; then
//! [`JournalError::Full`] until [`Journal::trim`]. A full disk is [`JournalError::NoSpace`] and
//! leaves the journal usable. A failed sync poisons the journal: every later append, flush and sync
//! fails with [`JournalError::Poisoned`] until it is opened again.
//!
//! **Trimmed segments** are written again (`kept`), as long as [`Journal::keep_segments`] lets them
//! be kept.
//!
//! **Checkpoints.** Trimming removes whole segments, so what the owner must remember for ever has
//! to be repeated: when [`Journal::needs_checkpoint`] says so (a segment was begun), it calls
//! [`Journal::append_checkpoint`].
//!
//! **A full disk.** One segment is kept in reserve (`spare`) for the owner's own notes, without
//! which it cannot trim; trimming fills it up again.
//!
//! See the module `format` for the bytes on disk.

mod format;
mod kept;
mod recover;
mod spare;
mod sync;

pub use recover::{OnDamage, Recovered, RecoveredEntry, TornTail};
pub use sync::{EntryReader, SyncHandle};

use crate::disk;
use crate::medium::{self, Dir, MediumFile};
use crate::poison::Poison;
use bytes::Bytes;
use format::{ENTRY_ALIGN, EntryHeader, SEGMENT_HEADER_BYTES, SegmentHeader, entry_bytes};
use kept::Kept;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The number of an entry, from 1; 0 means none.
pub type Lsn = u64;

/// Data up to this length is copied into the batch; longer data is kept by reference and written
/// from where it is.
const COPY_BYTES_MAX: usize = 4096;

/// The limits of a journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JournalConfig {
    /// Size of a segment, and so the most an entry can have, in bytes. 32 MiB: small enough to trim
    /// often, large enough that starting one is rare.
    pub journal_segment_bytes: u64,
    /// Entries in the journal of one core, in bytes, beside what [`Journal::allow_beyond`] allows.
    /// 1 GiB is some seconds of writes at full speed.
    pub journal_bytes_max: u64,
    /// What to do if synced entries are missing.
    pub on_damage: OnDamage,
}

impl Default for JournalConfig {
    fn default() -> Self {
        Self {
            journal_segment_bytes: 32 << 20,
            journal_bytes_max: 1 << 30,
            on_damage: OnDamage::Refuse,
        }
    }
}

/// Where an entry is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Location {
    /// Number of its segment.
    pub segment: u64,
    /// Offset of its header in the segment, in bytes.
    pub offset: u64,
    /// Bytes it takes, with header and padding.
    pub bytes: u64,
    /// Its number.
    pub lsn: Lsn,
}

/// Why the journal cannot do something.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The limit is reached: apply entries, trim, and try again.
    #[error("journal holds {bytes} bytes, its limit is {bytes_max}")]
    Full {
        /// What it holds.
        bytes: u64,
        /// `journal_bytes_max`, and what is allowed beyond it.
        bytes_max: u64,
    },
    /// The entry does not fit in a segment: a mistake of the caller or of the configuration.
    #[error("an entry of {bytes} bytes does not fit in a segment of {bytes_max}")]
    TooLarge {
        /// Size of the entry.
        bytes: u64,
        /// What fits.
        bytes_max: u64,
    },
    /// The file system is full. Nothing was lost: free space and try again.
    #[error("journal {path}: no space left: {source}")]
    NoSpace {
        /// The segment.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A sync or a write failed earlier; what is on the disk is uncertain until the journal is
    /// opened again.
    #[error("journal {dir}: an earlier sync or write failed, restart this osd")]
    Poisoned {
        /// The journal.
        dir: PathBuf,
    },
    /// Entries that were synced are missing or fail their checksum.
    #[error(
        "journal segment {segment}: entry {lsn} at byte {offset} is damaged though entries up to {synced} were synced"
    )]
    Damaged {
        /// Number of the segment in which the entry should be.
        segment: u64,
        /// Where it should be.
        offset: u64,
        /// The first entry missing.
        lsn: Lsn,
        /// A later entry says that the journal was synced up to here.
        synced: Lsn,
    },
    /// Another version of this program wrote the segment.
    #[error("journal segment {path} has format {found}, this program reads format {supported}")]
    OtherFormat {
        /// The segment.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// What can be read.
        supported: u32,
    },
    /// No such entry: trimmed, or its bytes fail the checksum.
    #[error("journal segment {}: no valid entry {} at byte {}", at.segment, at.lsn, at.offset)]
    BadEntry {
        /// Where it should be.
        at: Location,
    },
    /// Any other failure.
    #[error("journal {path}: {source}")]
    Io {
        /// File or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl JournalError {
    fn io(path: &Path, source: io::Error) -> Self {
        let path = path.to_path_buf();
        if disk::is_full(&source) {
            Self::NoSpace { path, source }
        } else {
            Self::Io { path, source }
        }
    }
}

/// The journal of one core.
#[derive(Debug)]
pub struct Journal {
    dir: Dir,
    config: JournalConfig,
    /// Bytes that entries may take beyond `journal_bytes_max`.
    beyond_max: u64,
    /// Oldest first; the last is the one appended to.
    segments: VecDeque<Segment>,
    next_lsn: Lsn,
    /// Bytes appended since it was opened.
    appended_bytes: u64,
    synced: Lsn,
    batch: Batch,
    kept: Kept,
    keeps_segments: bool,
    needs_checkpoint: bool,
    poison: Arc<Poison>,
}

#[derive(Debug)]
struct Segment {
    number: u64,
    incarnation: u64,
    file: Arc<dyn MediumFile>,
    /// Bytes that hold entries, the header and what is appended and not yet flushed included.
    bytes: u64,
    /// The last entry in it, or before it if it has none.
    last_lsn: Lsn,
    /// Its name or its header may not be on the disk yet.
    is_new: bool,
}

/// Entries appended and not yet flushed; all belong to the newest segment.
#[derive(Debug, Default)]
struct Batch {
    /// Where the first goes.
    offset: u64,
    first_lsn: Lsn,
    bytes: u64,
    /// Headers, fronts, short data and padding of all, one behind the other.
    copied: Vec<u8>,
    /// Long data, and how much of `copied` goes before it.
    kept: Vec<(usize, Bytes)>,
}

impl Journal {
    /// Opens the journal in `dir`, made if missing, and gives back its entries, oldest first. All
    /// of them are then synced.
    ///
    /// # Errors
    /// `Damaged` (see [`OnDamage`]), `OtherFormat`, `NoSpace`, `Io`. Nothing has then changed on
    /// the disk, except that a new segment may have been begun.
    pub fn open(
        dir: impl Into<Dir>,
        config: JournalConfig,
    ) -> Result<(Self, Recovered), JournalError> {
        let dir = dir.into();
        dir.create().map_err(|error| JournalError::io(dir.path(), error))?;
        let recover::Scan { recovered, segments, next_number, next_lsn } =
            recover::recover(&dir, config.on_damage)?;
        let mut journal = Self {
            dir,
            config,
            beyond_max: 0,
            segments,
            next_lsn,
            appended_bytes: 0,
            synced: next_lsn - 1,
            batch: Batch::default(),
            kept: Kept::default(),
            keeps_segments: true,
            needs_checkpoint: false,
            poison: Arc::default(),
        };
        kept::remove_all(&journal.dir)
            .map_err(|error| JournalError::io(journal.dir.path(), error))?;
        journal.begin_segment(next_number, true)?;
        journal.refill_spare();
        Ok((journal, recovered))
    }

    /// Appends an entry. It is in memory only: [`Journal::flush`] before it is acknowledged. Its
    /// data is the concatenation of `data`; `data_crc` is the data's CRC32C if the caller knows it
    /// (trusted, not computed again).
    ///
    /// # Errors
    /// `Full`, `TooLarge`, `Poisoned`, and those of starting a segment (`NoSpace`, `Io`): the entry
    /// is not in the journal, which stays usable.
    pub fn append(
        &mut self,
        kind: u8,
        front: &[u8],
        data: &[Bytes],
        data_crc: Option<u32>,
    ) -> Result<Location, JournalError> {
        let data_bytes = data.iter().map(Bytes::len).sum();
        let bytes = entry_bytes(front.len(), data_bytes);
        self.check_limit(bytes)?;
        self.find_room(front.len(), data_bytes, false)?;
        Ok(self.append_here(kind, front, data, data_bytes, data_crc))
    }

    /// Appends the owner's checkpoint, also beyond `journal_bytes_max`, and clears
    /// [`Journal::needs_checkpoint`].
    ///
    /// # Errors
    /// As [`Journal::append`], without `Full`.
    pub fn append_checkpoint(
        &mut self,
        kind: u8,
        front: &[u8],
        data: &[Bytes],
    ) -> Result<Location, JournalError> {
        let location = self.append_exempt(kind, front, data)?;
        self.needs_checkpoint =
            self.segments.back().is_some_and(|segment| segment.number != location.segment);
        Ok(location)
    }

    /// Appends also beyond `journal_bytes_max`, and into the spare segment when the disk is full:
    /// for the owner's own notes, which let it trim. Few and small.
    ///
    /// # Errors
    /// As [`Journal::append`], without `Full`.
    pub fn append_exempt(
        &mut self,
        kind: u8,
        front: &[u8],
        data: &[Bytes],
    ) -> Result<Location, JournalError> {
        let data_bytes = data.iter().map(Bytes::len).sum();
        self.find_room(front.len(), data_bytes, true)?;
        Ok(self.append_here(kind, front, data, data_bytes, None))
    }

    /// Begins a new segment if an entry of this size does not fit in the newest one.
    ///
    /// # Errors
    /// `TooLarge`, `Poisoned`, `NoSpace`, `Io`.
    fn find_room(
        &mut self,
        front_bytes: usize,
        data_bytes: usize,
        may_use_spare: bool,
    ) -> Result<(), JournalError> {
        self.check_poison()?;
        let bytes = entry_bytes(front_bytes, data_bytes);
        let bytes_max = self.config.journal_segment_bytes.saturating_sub(SEGMENT_HEADER_BYTES);
        if bytes > bytes_max || front_bytes > u32::MAX as usize || data_bytes > u32::MAX as usize {
            return Err(JournalError::TooLarge { bytes, bytes_max });
        }
        let newest = self.newest();
        if newest.bytes + bytes > self.config.journal_segment_bytes {
            let number = newest.number + 1;
            self.flush()?;
            self.end_segment();
            self.begin_segment(number, may_use_spare)?;
        }
        Ok(())
    }

    /// Entries may take so many bytes beyond `journal_bytes_max`: 0 at first.
    pub fn allow_beyond(&mut self, bytes: u64) {
        self.beyond_max = bytes;
    }

    /// Entries that it may hold, in bytes, beside what [`Journal::allow_beyond`] allows.
    pub fn bytes_max(&self) -> u64 {
        self.config.journal_bytes_max
    }

    /// Does it hold `journal_bytes_max` or more?
    pub fn is_at_limit(&self) -> bool {
        self.bytes() >= self.config.journal_bytes_max
    }

    /// Has a segment been begun that holds no checkpoint yet? True after opening.
    pub fn needs_checkpoint(&self) -> bool {
        self.needs_checkpoint
    }

    /// Writes what was appended to the page cache, in one system call as a rule. Does nothing if
    /// there is nothing.
    ///
    /// # Errors
    /// `NoSpace`: everything stays appended, try again. `Poisoned`; `Io`, which poisons.
    pub fn flush(&mut self) -> Result<(), JournalError> {
        self.check_poison()?;
        if self.batch.bytes == 0 {
            return Ok(());
        }
        let newest = self.newest();
        let result =
            medium::write_vectored(&*newest.file, self.batch.offset, &mut self.batch.slices());
        result.map_err(|error| {
            let error =
                JournalError::io(&format::segment_path(self.dir.path(), newest.number), error);
            if !matches!(error, JournalError::NoSpace { .. }) {
                self.poison.set();
            }
            error
        })?;
        self.batch.clear();
        Ok(())
    }

    /// The last entry flushed.
    pub fn flushed_lsn(&self) -> Lsn {
        if self.batch.bytes == 0 { self.next_lsn - 1 } else { self.batch.first_lsn - 1 }
    }

    /// The last entry appended.
    pub fn last_lsn(&self) -> Lsn {
        self.next_lsn - 1
    }

    /// The last entry known to be on the disk.
    pub fn synced_lsn(&self) -> Lsn {
        self.synced
    }

    /// What syncs everything flushed so far, on any thread.
    pub fn sync_handle(&self) -> SyncHandle {
        let upto = self.flushed_lsn();
        let unsynced =
            self.segments.iter().filter(|segment| segment.is_new || segment.last_lsn > self.synced);
        SyncHandle {
            files: unsynced.clone().map(|segment| segment.file.clone()).collect(),
            dir: self.dir.clone(),
            has_new_name: self.kept.has_new_name()
                || unsynced.clone().any(|segment| segment.is_new),
            upto,
            poison: self.poison.clone(),
        }
    }

    /// Notes that a [`SyncHandle`] made everything up to `lsn` durable: what its `run` returned.
    pub fn synced(&mut self, lsn: Lsn) {
        assert!(lsn <= self.flushed_lsn(), "synced {lsn}, flushed only {}", self.flushed_lsn());
        self.synced = self.synced.max(lsn);
        self.kept.synced(lsn);
        // A segment with a synced entry has its name and header on the disk.
        let mut first_lsn = 0;
        for segment in &mut self.segments {
            segment.is_new &= first_lsn >= lsn;
            first_lsn = segment.last_lsn;
        }
    }

    /// Flushes and syncs on this thread.
    ///
    /// # Errors
    /// Those of [`Journal::flush`] and [`SyncHandle::run`].
    pub fn sync(&mut self) -> Result<(), JournalError> {
        self.flush()?;
        let lsn = self.sync_handle().run()?;
        self.synced(lsn);
        Ok(())
    }

    /// Bytes of all entries appended since it was opened.
    pub fn appended_bytes(&self) -> u64 {
        self.appended_bytes
    }

    /// Numbers of the segments, oldest first; the last is being written.
    pub fn segments(&self) -> impl Iterator<Item = u64> + '_ {
        self.segments.iter().map(|segment| segment.number)
    }

    /// The segment being written.
    pub fn current_segment(&self) -> u64 {
        self.newest().number
    }

    /// Bytes of all entries, those not yet flushed included.
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes - SEGMENT_HEADER_BYTES).sum()
    }

    /// Lets go of the segments before number `before`, oldest first, and returns how many. A
    /// segment stays while the entry that follows it, as a rule the checkpoint of the next segment,
    /// is not synced; the newest always stays.
    ///
    /// # Errors
    /// `Io`: the others are still there.
    pub fn trim(&mut self, before: u64) -> Result<usize, JournalError> {
        let mut count = 0;
        while self.segments.len() > 1
            && self.segments[0].number < before
            && self.segments[0].last_lsn < self.synced
        {
            let may_keep = self.may_keep_one();
            let Segment { number, file, .. } = &self.segments[0];
            let path = format::segment_path(self.dir.path(), *number);
            let result = if may_keep {
                self.kept.put(&self.dir, (*number, &path), file.clone(), self.next_lsn - 1)
            } else {
                self.dir.medium().remove(&path)
            };
            result.map_err(|error| JournalError::io(&path, error))?;
            self.segments.pop_front();
            count += 1;
        }
        self.refill_spare();
        Ok(count)
    }

    fn may_keep_one(&self) -> bool {
        let bytes =
            (self.segments.len() + self.kept.count()) as u64 * self.config.journal_segment_bytes;
        self.keeps_segments && self.kept.has_room() && bytes <= self.config.journal_bytes_max
    }

    /// May trimmed segments be kept and written again? True after opening; the owner says no when
    /// the disk fills up, and what is kept then gives its space back.
    pub fn keep_segments(&mut self, keep: bool) {
        self.keeps_segments = keep;
        if !keep {
            self.kept.clear(&self.dir);
        }
    }

    /// What reads an entry again, on any thread; `None` if it was trimmed. The entry must be
    /// flushed.
    pub fn reader(&self, at: Location) -> Option<EntryReader> {
        let segment = self.segments.iter().find(|segment| segment.number == at.segment)?;
        Some(EntryReader {
            file: segment.file.clone(),
            dir: self.dir.clone(),
            incarnation: segment.incarnation,
            at,
        })
    }

    /// Reads an entry's data again and checks it; flushes first if need be.
    ///
    /// # Errors
    /// `BadEntry`, `Io`; those of [`Journal::flush`].
    pub fn read_data(&mut self, at: Location) -> Result<Bytes, JournalError> {
        if at.lsn > self.flushed_lsn() {
            self.flush()?;
        }
        self.reader(at).ok_or(JournalError::BadEntry { at })?.read().map(|(_, _, data)| data)
    }

    /// Did a sync or a write fail?
    pub fn is_poisoned(&self) -> bool {
        self.poison.is_set()
    }

    fn newest(&self) -> &Segment {
        self.segments.back().expect("an open journal has a segment")
    }

    fn check_poison(&self) -> Result<(), JournalError> {
        if self.is_poisoned() {
            Err(JournalError::Poisoned { dir: self.dir.path().to_path_buf() })
        } else {
            Ok(())
        }
    }

    fn check_limit(&self, more: u64) -> Result<(), JournalError> {
        let (bytes, bytes_max) =
            (self.bytes(), self.config.journal_bytes_max.saturating_add(self.beyond_max));
        if bytes + more > bytes_max { Err(JournalError::Full { bytes, bytes_max }) } else { Ok(()) }
    }

    /// Appends to the newest segment, which has room.
    fn append_here(
        &mut self,
        kind: u8,
        front: &[u8],
        data: &[Bytes],
        data_bytes: usize,
        data_crc: Option<u32>,
    ) -> Location {
        let bytes = entry_bytes(front.len(), data_bytes);
        let (lsn, synced) = (self.next_lsn, self.synced);
        let newest = self.segments.back_mut().expect("an open journal has a segment");
        let header = EntryHeader {
            kind,
            front_bytes: front.len() as u32,
            data_bytes: data_bytes as u32,
            incarnation: newest.incarnation,
            lsn,
            synced,
            front_crc: crc32c::crc32c(front),
            data_crc: data_crc.unwrap_or_else(|| {
                data.iter().fold(0, |crc, part| crc32c::crc32c_append(crc, part))
            }),
        };
        let location = Location { segment: newest.number, offset: newest.bytes, bytes, lsn };
        newest.bytes += bytes;
        newest.last_lsn = lsn;
        self.next_lsn += 1;
        self.appended_bytes += bytes;
        self.batch.push(location.offset, bytes, &header, front, data);
        location
    }

    /// Without a spare segment things go on; it is tried again at the next trim.
    fn refill_spare(&self) {
        if let Err(error) = spare::refill(&self.dir, self.config.journal_segment_bytes) {
            tracing::warn!(dir = %self.dir.path().display(), %error, "no journal segment in reserve");
        }
    }

    /// Gives back the space behind the last entry of a segment that is full; not if that is to be
    /// written again soon.
    fn end_segment(&mut self) {
        if self.keeps_segments {
            return;
        }
        let newest = self.newest();
        if let Err(error) = newest.file.set_len(newest.bytes) {
            // Zeros behind the last entry are as good as nothing; only the space is lost until the
            // segment is trimmed.
            tracing::warn!(segment = newest.number, %error, "a full journal segment was not shortened");
        }
    }

    fn begin_segment(&mut self, number: u64, may_use_spare: bool) -> Result<(), JournalError> {
        let path = format::segment_path(self.dir.path(), number);
        let begun = self.make_segment(number, &path, may_use_spare);
        let (file, incarnation) = begun.map_err(|error: io::Error| {
            // Half a segment would count as torn; removing it gives its space back. Best effort: it
            // is of no use.
            let _ = self.dir.medium().remove(&path);
            JournalError::io(&path, error)
        })?;
        self.segments.push_back(Segment {
            number,
            incarnation,
            file,
            bytes: SEGMENT_HEADER_BYTES,
            last_lsn: self.next_lsn - 1,
            is_new: true,
        });
        self.needs_checkpoint = true;
        Ok(())
    }

    /// The file of a new segment, with its header in it: one that is kept, a new one, or the spare
    /// one. Also its incarnation.
    fn make_segment(
        &mut self,
        number: u64,
        path: &Path,
        may_use_spare: bool,
    ) -> io::Result<(Arc<dyn MediumFile>, u64)> {
        let bytes = self.config.journal_segment_bytes;
        let incarnation = disk::random_u128()? as u64;
        let header = |is_reused| {
            let (first_lsn, synced) = (self.next_lsn, self.synced);
            SegmentHeader { number, incarnation, first_lsn, synced, is_reused }.encode()
        };
        let (new, reused) = (header(false), header(true));
        if let Some(file) = self.kept.take(&self.dir, path, bytes, &reused) {
            return Ok((file, incarnation));
        }
        let mut allocated = spare::allocate(&self.dir, path, bytes);
        if allocated.as_ref().is_err_and(disk::is_full) && self.kept.count() > 0 {
            self.kept.clear(&self.dir);
            allocated = spare::allocate(&self.dir, path, bytes);
        }
        let file = match allocated {
            Err(error) if may_use_spare && disk::is_full(&error) => {
                spare::take(&self.dir, path, bytes)?.ok_or(error)?
            }
            result => result?,
        };
        medium::write_counted(&*file, 0, &new).map_err(|(_, error)| error)?;
        Ok((file, incarnation))
    }
}

impl Batch {
    fn push(
        &mut self,
        offset: u64,
        bytes: u64,
        header: &EntryHeader,
        front: &[u8],
        data: &[Bytes],
    ) {
        if self.bytes == 0 {
            (self.offset, self.first_lsn) = (offset, header.lsn);
        }
        assert_eq!(self.offset + self.bytes, offset, "entries of a batch lie one behind the other");
        self.bytes += bytes;
        self.copied.extend_from_slice(&header.encode());
        self.copied.extend_from_slice(front);
        for part in data {
            if part.len() <= COPY_BYTES_MAX {
                self.copied.extend_from_slice(part);
            } else {
                self.kept.push((self.copied.len(), part.clone()));
            }
        }
        let written =
            format::ENTRY_HEADER_BYTES + front.len() as u64 + u64::from(header.data_bytes);
        let padding = written.next_multiple_of(ENTRY_ALIGN) - written;
        self.copied.extend_from_slice(&[0; ENTRY_ALIGN as usize][..padding as usize]);
    }

    fn slices(&self) -> Vec<IoSlice<'_>> {
        let mut slices = Vec::with_capacity(2 * self.kept.len() + 1);
        let mut at = 0;
        for (before, data) in &self.kept {
            slices.push(IoSlice::new(&self.copied[at..*before]));
            slices.push(IoSlice::new(data));
            at = *before;
        }
        slices.push(IoSlice::new(&self.copied[at..]));
        slices
    }

    fn clear(&mut self) {
        self.bytes = 0;
        self.copied.clear();
        self.kept.clear();
    }
}

#[cfg(test)]
mod tests;
