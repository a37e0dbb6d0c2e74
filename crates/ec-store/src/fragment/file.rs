//! One open fragment file.
//!
//! Contract: every method takes `&self` and may run on any thread; those that change the file hold
//! its lock while they do, reads only while they look up checksums. A read that overlaps a write
//! gives each sector old or new. What orders reads and writes is the owner.

mod placing;
mod reserving;
mod syncing;

pub use placing::TakenPlaces;
pub(crate) use reserving::space_of_range;
pub(crate) use syncing::sync_names;

use super::changes::Changes;
use super::header::{Alignment, HEADER_BYTES, Header};
use super::slots::{Piece, Pieces, Slots};
use super::table::{Table, TableMemory};
use super::{
    Crcs, FragmentError, FragmentKey, FragmentStat, JoinedCrc, Mark, ReadMode, ReadOutcome,
    SECTOR_BYTES, sectors_of, verify,
};
use crate::medium::{self, Dir, Extent, MediumFile};
use crate::poison::Poison;
use messenger::sync::{ContentionMutex, LockTable};
use protocol::ids::{ClusterId, Profile};
use smallvec::SmallVec;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Table entry of a sector of which nothing is known: not that of a hole, and of a sector of zeros
/// neither.
const UNKNOWN_CRC: u32 = u32::MAX;

/// One open fragment file: see the contract of the module above for what is durable when.
#[derive(Debug)]
pub struct FragmentFile {
    key: FragmentKey,
    cluster: ClusterId,
    profile: Profile,
    file: Arc<dyn MediumFile>,
    dir: Dir,
    /// Where the data region begins in the file.
    data_start: u64,
    alignment: Alignment,
    /// Writes of whole slots may be placed.
    places_writes: bool,
    state: ContentionMutex<State>,
    changes: Changes,
    /// The name of the file is not durable yet.
    is_dir_dirty: AtomicBool,
    poison: Poison,
}

/// What the files of one store have in common.
#[derive(Clone, Debug)]
pub(super) struct Common {
    pub cluster: ClusterId,
    pub memory: Arc<TableMemory>,
    /// See [`super::FragmentConfig::fragment_slot_bytes`].
    pub slot_bytes: u32,
    /// Lists the files' locks, as "fragment".
    pub locks: LockTable,
}

#[derive(Debug)]
struct State {
    header: Header,
    is_header_dirty: bool,
    table: Table,
    slots: Slots,
    is_deleted: bool,
}

/// Ranges by their first byte in the file, each with its part of a buffer.
type Ranges = SmallVec<[(u64, Range<usize>); 2]>;

/// What a read is to find.
struct LookUp {
    /// Of all its sectors.
    crcs: Crcs,
    /// The part between holes at both ends, which need no read and may lie behind the end of the
    /// file; in bytes of the buffer.
    data: Range<usize>,
    /// Where that lies.
    ranges: Ranges,
}

/// Where the data region of a fragment begins in its file.
fn data_start(profile: Profile, alignment: Alignment) -> u64 {
    (HEADER_BYTES + profile.fragment_bytes().div_ceil(SECTOR_BYTES) * 4)
        .next_multiple_of(alignment.bytes())
}

/// The alignment of a file whose header is lost. Between the table and where data begins, one with
/// [`Alignment::Slot`] has a hole. An older one that holds only zeros there is taken for such: its
/// other bytes then fail what the journal says of them, as if they were lost.
fn guess_alignment(file: &dyn MediumFile, profile: Profile) -> io::Result<Alignment> {
    let [from, to] =
        [Alignment::Page, Alignment::Slot].map(|alignment| data_start(profile, alignment));
    let mut between = vec![0; (to - from) as usize];
    medium::read_zero_filled(file, from, &mut between)?;
    Ok(if between.iter().all(|&byte| byte == 0) { Alignment::Slot } else { Alignment::Page })
}

/// Bytes of one call that writes where nothing was. Linux makes the units of its page cache as
/// large as such a call, and ext4 then looks at every block of a unit whenever a part of it is
/// written again.
const FIRST_WRITE_BYTES: usize = 64 << 10;

impl FragmentFile {
    /// Opens a file that was opened from the fragment's name; `None` if it is empty: made and then
    /// lost by a crash.
    pub(super) fn open(
        key: FragmentKey,
        common: &Common,
        file: Arc<dyn MediumFile>,
        dir: Dir,
    ) -> Result<Option<Self>, FragmentError> {
        let mut bytes = [0; HEADER_BYTES as usize];
        let length = file.read_at(&mut bytes, 0).map_err(|error| FragmentError::io(key, error))?;
        if length == 0 {
            return Ok(None);
        }
        let header = Header::decode(&bytes[..length], key, common.cluster)?;
        let opened = Self::with(key, common, file, dir, header, false);
        opened.load_map(&header)?;
        Ok(Some(opened))
    }

    /// Makes an empty file, opened from the fragment's name, a fragment without data.
    pub(super) fn create(
        key: FragmentKey,
        common: &Common,
        file: Arc<dyn MediumFile>,
        dir: Dir,
        profile: Profile,
    ) -> Result<Self, FragmentError> {
        let header = Header {
            profile,
            version: Default::default(),
            logical_end: 0,
            places: None,
            alignment: Alignment::Slot,
        };
        medium::write_counted(&*file, 0, &header.encode(key, common.cluster)).map_err(
            |(_, error)| {
                // An empty file counts as none; a part of a header would count as damage. Best
                // effort: the disk is full.
                let _ = file.set_len(0);
                FragmentError::io(key, error)
            },
        )?;
        Ok(Self::with(key, common, file, dir, header, true))
    }

    /// Gives a file with a damaged header a new one. Its table cannot be trusted either, and an
    /// entry lost to zeros would read as a hole: so every sector fails its checksum until it is
    /// written again, punched or repaired. The bytes stay for [`FragmentFile::read_raw`]. Durable
    /// when it returns; rare, so it may wait for the disk.
    pub(super) fn salvage(
        key: FragmentKey,
        common: &Common,
        file: Arc<dyn MediumFile>,
        dir: Dir,
        profile: Profile,
    ) -> Result<Self, FragmentError> {
        let io = |error| FragmentError::io(key, error);
        let sectors = profile.fragment_bytes().div_ceil(SECTOR_BYTES) as usize;
        let table = UNKNOWN_CRC.to_le_bytes().repeat(sectors);
        medium::write_counted(&*file, HEADER_BYTES, &table).map_err(|(_, error)| io(error))?;
        // The header last: with it the table counts.
        file.sync_data().map_err(io)?;
        let alignment = guess_alignment(&*file, profile).map_err(io)?;
        let header = Header {
            profile,
            version: Default::default(),
            logical_end: 0,
            places: None,
            alignment,
        };
        medium::write_counted(&*file, 0, &header.encode(key, common.cluster))
            .map_err(|(_, error)| io(error))?;
        file.sync_data().map_err(io)?;
        Ok(Self::with(key, common, file, dir, header, false))
    }

    fn with(
        key: FragmentKey,
        common: &Common,
        file: Arc<dyn MediumFile>,
        dir: Dir,
        header: Header,
        is_new: bool,
    ) -> Self {
        let profile = header.profile;
        let sectors = profile.fragment_bytes().div_ceil(SECTOR_BYTES) as usize;
        let table = Table::new(HEADER_BYTES, sectors, is_new, Arc::clone(&common.memory));
        let slot_bytes = header.places.map_or(common.slot_bytes, |(slot_bytes, _)| slot_bytes);
        let slots = Slots::new(slot_bytes, profile.fragment_bytes());
        let state = State { header, is_header_dirty: false, table, slots, is_deleted: false };
        Self {
            key,
            cluster: common.cluster,
            profile,
            file,
            dir,
            data_start: data_start(profile, header.alignment),
            alignment: header.alignment,
            places_writes: common.slot_bytes > 0,
            state: ContentionMutex::new(&common.locks, "fragment", state),
            changes: Changes::new(is_new),
            is_dir_dirty: AtomicBool::new(is_new),
            poison: Poison::default(),
        }
    }

    /// Reads where the slots lie, if the header says that they may lie elsewhere. May wait for the
    /// disk.
    fn load_map(&self, header: &Header) -> Result<(), FragmentError> {
        let Some((_, places)) = header.places else { return Ok(()) };
        let mut state = self.state.lock();
        let mut map = vec![0; state.slots.map_bytes() as usize];
        medium::read_zero_filled(&*self.file, self.map_start(), &mut map)
            .map_err(|error| self.io(error))?;
        state.slots.decode(places, &map);
        Ok(())
    }

    /// Where the map of slots lies in the file, if it has one: behind the places that slots have at
    /// first.
    fn map_start(&self) -> u64 {
        (self.data_start + self.profile.fragment_bytes()).next_multiple_of(4096)
    }

    /// Ranges of the file, and of a buffer, for pieces of the fragment.
    fn ranges(&self, slots: &Slots, pieces: &[Piece]) -> Ranges {
        let own = u64::from(slots.count()) * slots.slot_bytes();
        let more = (self.map_start() + slots.map_bytes()).next_multiple_of(self.alignment.bytes());
        let mut ranges = Ranges::new();
        let mut done = 0;
        let mut push = |at: u64, length: u64| {
            ranges.push((at, done..done + length as usize));
            done += length as usize;
        };
        for piece in pieces {
            match *piece {
                Piece::Rest { at, length } => push(self.data_start + at, length),
                Piece::Places { at, length } => {
                    let length_own = own.saturating_sub(at).min(length);
                    if length_own > 0 {
                        push(self.data_start + at, length_own);
                    }
                    if length_own < length {
                        push(more + at + length_own - own, length - length_own);
                    }
                }
            }
        }
        ranges
    }

    /// Which fragment.
    pub fn key(&self) -> FragmentKey {
        self.key
    }

    /// The profile it was made with.
    pub fn profile(&self) -> Profile {
        self.profile
    }

    /// Where its data begins in the file, in bytes: what was not moved lies there.
    pub fn data_start(&self) -> u64 {
        self.data_start
    }

    /// Does anything wait for a sync?
    pub fn is_dirty(&self) -> bool {
        self.changes.is_dirty() || self.is_dir_dirty.load(Ordering::Acquire)
    }

    /// Bytes of data written since the last sync.
    pub fn unsynced_bytes(&self) -> u64 {
        self.changes.unsynced_bytes()
    }

    /// Did a sync fail? Then nothing of the file counts as durable any more.
    pub fn has_sync_failed(&self) -> bool {
        self.poison.is_set()
    }

    /// Reads the whole buffer from `offset` and checks every sector.
    ///
    /// # Errors
    /// [`FragmentError::Corrupt`] naming the bad sectors, `Io`, `BadRange`; the buffer's contents
    /// are then undefined.
    pub fn read(
        &self,
        offset: u64,
        buf: &mut [u8],
        mode: ReadMode,
    ) -> Result<ReadOutcome, FragmentError> {
        self.read_joined(offset, buf, mode, &mut JoinedCrc::default())
    }

    /// As [`FragmentFile::read`]; appends what was read to a checksum.
    ///
    /// # Errors
    /// The same; the checksum is then as it was, as for [`ReadOutcome::WouldBlock`].
    pub fn read_joined(
        &self,
        offset: u64,
        buf: &mut [u8],
        mode: ReadMode,
        joined: &mut JoinedCrc,
    ) -> Result<ReadOutcome, FragmentError> {
        let sectors = sectors_of(self.key, self.profile, offset, buf.len() as u64)?;
        let may_wait = mode == ReadMode::Blocking;
        let locked = if may_wait { Some(self.state.lock()) } else { self.state.try_lock() };
        let Some(mut state) = locked else { return Ok(ReadOutcome::WouldBlock) };
        let Some(mut found) = self.look_up(&mut state, sectors.clone(), may_wait)? else {
            return Ok(ReadOutcome::WouldBlock);
        };
        drop(state);
        let read = match self.read_found(offset, buf, &found, mode) {
            // A write may have come between the look-up and the read: look again with the lock
            // held.
            Err(FragmentError::Corrupt { .. }) if mode == ReadMode::NoWait => {
                Ok(ReadOutcome::WouldBlock)
            }
            Err(FragmentError::Corrupt { .. }) => {
                let mut state = self.state.lock();
                found = self.look_up(&mut state, sectors, true)?.expect("may wait");
                self.read_found(offset, buf, &found, mode)
            }
            other => other,
        };
        if matches!(read, Ok(ReadOutcome::Read)) {
            joined.push(&found.crcs);
        }
        read
    }

    /// `None`: the disk is needed to know, and may not be waited for.
    fn look_up(
        &self,
        state: &mut State,
        sectors: Range<usize>,
        may_wait: bool,
    ) -> Result<Option<LookUp>, FragmentError> {
        if !state
            .table
            .load(&*self.file, sectors.clone(), may_wait)
            .map_err(|error| self.io(error))?
        {
            return Ok(None);
        }
        let mut crcs = Crcs::new();
        state.table.copy_to(sectors.clone(), &mut crcs);
        let first = crcs.iter().position(|&crc| crc != 0).unwrap_or(crcs.len());
        let end = crcs.iter().rposition(|&crc| crc != 0).map_or(first, |last| last + 1);
        let bytes = |sector: usize| sector as u64 * SECTOR_BYTES;
        let pieces = state.slots.pieces(bytes(sectors.start + first)..bytes(sectors.start + end));
        let ranges = self.ranges(&state.slots, &pieces);
        Ok(Some(LookUp { crcs, data: bytes(first) as usize..bytes(end) as usize, ranges }))
    }

    fn read_found(
        &self,
        offset: u64,
        buf: &mut [u8],
        found: &LookUp,
        mode: ReadMode,
    ) -> Result<ReadOutcome, FragmentError> {
        let data = found.data.clone();
        buf[..data.start].fill(0);
        buf[data.end..].fill(0);
        if self.read_ranges(&found.ranges, &mut buf[data.clone()], mode)? == ReadOutcome::WouldBlock
        {
            return Ok(ReadOutcome::WouldBlock);
        }
        let sectors = data.start / SECTOR_BYTES as usize..data.end / SECTOR_BYTES as usize;
        verify(self.key, offset + data.start as u64, &mut buf[data], &found.crcs[sectors])?;
        Ok(ReadOutcome::Read)
    }

    fn read_ranges(
        &self,
        ranges: &Ranges,
        buf: &mut [u8],
        mode: ReadMode,
    ) -> Result<ReadOutcome, FragmentError> {
        for (at, within) in ranges {
            let into = &mut buf[within.clone()];
            match mode {
                ReadMode::NoWait
                    if !self.file.read_now(into, *at).map_err(|error| self.io(error))? =>
                {
                    return Ok(ReadOutcome::WouldBlock);
                }
                ReadMode::NoWait => {}
                ReadMode::Blocking => {
                    medium::read_zero_filled(&*self.file, *at, into)
                        .map_err(|error| self.io(error))?;
                }
            }
        }
        Ok(ReadOutcome::Read)
    }

    /// Reads the file's bytes without looking at the CRC table: for direct writes that are visible
    /// through their journal record only. The caller checks them with [`verify`].
    ///
    /// # Errors
    /// `Io`, `BadRange`.
    pub fn read_raw(
        &self,
        offset: u64,
        buf: &mut [u8],
        mode: ReadMode,
    ) -> Result<ReadOutcome, FragmentError> {
        let length = buf.len() as u64;
        sectors_of(self.key, self.profile, offset, length)?;
        self.read_pieces(|slots| slots.pieces(offset..offset + length), buf, mode)
    }

    fn read_pieces(
        &self,
        pieces: impl FnOnce(&mut Slots) -> Pieces,
        buf: &mut [u8],
        mode: ReadMode,
    ) -> Result<ReadOutcome, FragmentError> {
        let ranges = {
            let locked = if mode == ReadMode::Blocking {
                Some(self.state.lock())
            } else {
                self.state.try_lock()
            };
            let Some(mut state) = locked else { return Ok(ReadOutcome::WouldBlock) };
            let pieces = pieces(&mut state.slots);
            self.ranges(&state.slots, &pieces)
        };
        if ranges.last().map_or(0, |(_, within)| within.end) != buf.len() {
            return Err(FragmentError::BadRange {
                key: self.key,
                offset: 0,
                length: buf.len() as u64,
            });
        }
        self.read_ranges(&ranges, buf, mode)
    }

    /// Writes bytes with the checksum of each sector ([`super::sector_crc`], trusted, not computed
    /// again).
    ///
    /// # Errors
    /// `Full` and `Io`: sectors written before the failure are new and readable, the others old;
    /// the mark is not set.
    pub fn write(
        &self,
        offset: u64,
        bytes: &[u8],
        crcs: &[u32],
        mark: Mark,
    ) -> Result<(), FragmentError> {
        self.write_at(u64::MAX, offset, bytes, crcs, mark)
    }

    /// [`FragmentFile::write`] of a record at position `lsn` of the journal: slots that the file
    /// shows as a later record left them stay ([`FragmentFile::keep_found`]).
    ///
    /// # Errors
    /// The same.
    pub fn write_at(
        &self,
        lsn: u64,
        offset: u64,
        bytes: &[u8],
        crcs: &[u32],
        mark: Mark,
    ) -> Result<(), FragmentError> {
        let sectors = self.checked(offset, bytes.len() as u64, crcs)?;
        let mut state = self.state.lock();
        self.load(&mut state, sectors)?;
        self.changed(bytes.len());
        for part in state.slots.behind(offset..offset + bytes.len() as u64, lsn) {
            let bytes = &bytes[(part.start - offset) as usize..(part.end - offset) as usize];
            let crcs = &crcs[((part.start - offset) / SECTOR_BYTES) as usize..];
            self.write_part(&mut state, part.start, bytes, crcs)?;
        }
        state.apply(mark);
        Ok(())
    }

    fn write_part(
        &self,
        state: &mut State,
        offset: u64,
        bytes: &[u8],
        crcs: &[u32],
    ) -> Result<(), FragmentError> {
        let pieces = state.slots.pieces(offset..offset + bytes.len() as u64);
        let written = self.write_ranges(&self.ranges(&state.slots, &pieces), bytes, usize::MAX);
        let done = written.as_ref().err().map_or(bytes.len(), |(done, _)| *done);
        let whole = done / SECTOR_BYTES as usize;
        state.table.set((offset / SECTOR_BYTES) as usize, &crcs[..whole]);
        written.map_err(|(_, error)| self.io(error))
    }

    /// Writes with calls of so many bytes at most; on an error also says how many bytes were
    /// written.
    fn write_ranges(
        &self,
        ranges: &Ranges,
        bytes: &[u8],
        call_bytes: usize,
    ) -> Result<(), (usize, io::Error)> {
        for (at, within) in ranges {
            let mut done = within.start;
            for part in bytes[within.clone()].chunks(call_bytes) {
                let at = at + (done - within.start) as u64;
                medium::write_counted(&*self.file, at, part)
                    .map_err(|(some, error)| (done + some, error))?;
                done += part.len();
            }
        }
        Ok(())
    }

    /// Writes bytes into sectors never written; they read as zeros until [`FragmentFile::publish`].
    ///
    /// # Errors
    /// `Written` if a sector was written before; `Full` and `Io`: nothing visible has changed.
    pub fn write_data_only(&self, offset: u64, bytes: &[u8]) -> Result<(), FragmentError> {
        let length = bytes.len() as u64;
        let sectors = sectors_of(self.key, self.profile, offset, length)?;
        let mut state = self.state.lock();
        self.load(&mut state, sectors.clone())?;
        if !state.table.is_unwritten(sectors) {
            return Err(FragmentError::Written { key: self.key, offset, length });
        }
        self.changed(bytes.len());
        let pieces = state.slots.pieces(offset..offset + length);
        let written =
            self.write_ranges(&self.ranges(&state.slots, &pieces), bytes, FIRST_WRITE_BYTES);
        written.map_err(|(_, error)| self.io(error))
    }

    /// Makes bytes of an earlier [`FragmentFile::write_data_only`] visible, with the checksum of
    /// each sector.
    ///
    /// # Errors
    /// `Io` and `BadRange`; nothing has changed.
    pub fn publish(&self, offset: u64, crcs: &[u32], mark: Mark) -> Result<(), FragmentError> {
        let sectors = self.checked(offset, crcs.len() as u64 * SECTOR_BYTES, crcs)?;
        let mut state = self.state.lock();
        self.load(&mut state, sectors.clone())?;
        self.changed(0);
        state.table.set(sectors.start, crcs);
        state.apply(mark);
        Ok(())
    }

    /// Was nothing in the range ever written (or all of it punched)? May wait for a page of the
    /// table.
    ///
    /// # Errors
    /// `Io`, `BadRange`.
    pub fn is_unwritten(&self, offset: u64, length: u64) -> Result<bool, FragmentError> {
        let sectors = sectors_of(self.key, self.profile, offset, length)?;
        let mut state = self.state.lock();
        self.load(&mut state, sectors.clone())?;
        Ok(state.table.is_unwritten(sectors))
    }

    /// [`FragmentFile::is_unwritten`] as far as can be told without waiting: `false` if it cannot.
    pub fn is_unwritten_now(&self, offset: u64, length: u64) -> bool {
        let Ok(sectors) = sectors_of(self.key, self.profile, offset, length) else { return false };
        let Some(mut state) = self.state.try_lock() else { return false };
        matches!(state.table.load(&*self.file, sectors.clone(), false), Ok(true))
            && state.table.is_unwritten(sectors)
    }

    /// Makes the range a hole and gives its space back where the file system can.
    ///
    /// # Errors
    /// `Full`, `Io`, `BadRange`; nothing has changed.
    pub fn punch(&self, offset: u64, length: u64, mark: Mark) -> Result<(), FragmentError> {
        let sectors = sectors_of(self.key, self.profile, offset, length)?;
        let mut state = self.state.lock();
        self.load(&mut state, sectors.clone())?;
        self.changed(0);
        self.punch_range(&state, offset..offset + length)?;
        state.table.clear(sectors);
        state.apply(mark);
        Ok(())
    }

    /// Without support the table alone makes the hole; the space stays taken.
    fn punch_range(&self, state: &State, range: Range<u64>) -> Result<(), FragmentError> {
        for (at, within) in self.ranges(&state.slots, &state.slots.pieces(range)) {
            if !within.is_empty() {
                self.file
                    .extent(Extent::Punch, at, within.len() as u64)
                    .map_err(|error| self.io(error))?;
            }
        }
        Ok(())
    }

    /// Makes everything from `offset` on a hole, and sets the logical end even if it was greater.
    ///
    /// # Errors
    /// `Full`, `Io`, `BadRange`; nothing has changed.
    pub fn truncate(&self, offset: u64, mark: Mark) -> Result<(), FragmentError> {
        let length = self.profile.fragment_bytes().saturating_sub(offset);
        let sectors = sectors_of(self.key, self.profile, offset, length)?;
        let mut state = self.state.lock();
        if offset > 0 {
            self.load(&mut state, sectors.clone())?;
        }
        self.changed(0);
        // With no data left the table's space is given back too.
        let end = if offset == 0 { HEADER_BYTES } else { self.data_start + offset };
        if offset > 0 && state.slots.layout().is_some() {
            // Behind the end lies what others count on.
            self.punch_range(&state, offset..self.profile.fragment_bytes())?;
        } else if self.file.stat().map_err(|error| self.io(error))?.length > end {
            self.file.set_len(end).map_err(|error| self.io(error))?;
        }
        if offset == 0 {
            state.slots.reset();
            state.table.clear_all();
        } else {
            state.table.clear(sectors);
        }
        state.apply(mark);
        state.header.logical_end = mark.logical_end;
        Ok(())
    }

    /// What the fragment says of itself.
    ///
    /// # Errors
    /// `Io`.
    pub fn stat(&self) -> Result<FragmentStat, FragmentError> {
        let allocated_bytes = self.file.stat().map_err(|error| self.io(error))?.allocated_bytes;
        let header = self.state.lock().header;
        Ok(FragmentStat {
            profile: header.profile,
            version: header.version,
            logical_end: header.logical_end,
            allocated_bytes,
        })
    }

    /// Ranges that hold data, in order, from `from` on and at most `count_max` of them; between
    /// them are holes. To go on, ask again from the end of the last.
    ///
    /// # Errors
    /// `Io`, `BadRange`.
    pub fn data_extents(
        &self,
        from: u64,
        count_max: usize,
    ) -> Result<Vec<Range<u64>>, FragmentError> {
        let length = self.profile.fragment_bytes().saturating_sub(from);
        let all = sectors_of(self.key, self.profile, from, length)?;
        let mut extents: Vec<Range<u64>> = Vec::new();
        let mut crcs = Vec::with_capacity(super::table::PAGE_ENTRIES);
        let mut state = self.state.lock();
        let mut at = all.start;
        while at < all.end {
            let end =
                all.end.min((at / super::table::PAGE_ENTRIES + 1) * super::table::PAGE_ENTRIES);
            self.load(&mut state, at..end)?;
            crcs.clear();
            state.table.copy_to(at..end, &mut crcs);
            for (sector, _) in (at..end).zip(&crcs).filter(|(_, crc)| **crc != 0) {
                let start = sector as u64 * SECTOR_BYTES;
                let count = extents.len();
                match extents.last_mut() {
                    Some(last) if last.end == start => last.end += SECTOR_BYTES,
                    _ if count == count_max => return Ok(extents),
                    _ => extents.push(start..start + SECTOR_BYTES),
                }
            }
            at = end;
        }
        Ok(extents)
    }

    /// Has the file still a name?
    pub(super) fn is_linked(&self) -> Result<bool, FragmentError> {
        Ok(self.file.stat().map_err(|error| self.io(error))?.is_linked)
    }

    /// Compares the header on disk with the one in memory, and forgets the checksums in memory, so
    /// that what is read next is checked against those on disk. A header that is damaged is written
    /// anew, and `false` given. May wait for the disk.
    ///
    /// # Errors
    /// `Full`, `Io`.
    pub fn recheck(&self) -> Result<bool, FragmentError> {
        let mut state = self.state.lock();
        if state.is_deleted {
            return Ok(true);
        }
        self.write_back(&mut state)?;
        state.table.forget();
        let mut bytes = [0; HEADER_BYTES as usize];
        let length = self.file.read_at(&mut bytes, 0).map_err(|error| self.io(error))?;
        if matches!(Header::decode(&bytes[..length], self.key, self.cluster), Ok(header) if header == state.header)
        {
            return Ok(true);
        }
        self.changed(0);
        state.is_header_dirty = true;
        self.write_back(&mut state)?;
        Ok(false)
    }

    /// Asks the system to forget what it holds of the range in memory, where the disk has it too:
    /// what is read next comes from the disk.
    pub fn uncache(&self, offset: u64, length: u64) {
        let ranges = {
            let state = self.state.lock();
            self.ranges(&state.slots, &state.slots.pieces(offset..offset + length))
        };
        for (at, within) in ranges {
            self.file.uncache(at, within.len() as u64);
        }
    }

    /// Drops the memory of the CRC table, after writing what changed. Not if another thread is at
    /// work on the file.
    pub(super) fn drop_table(&self) -> Result<(), FragmentError> {
        let Some(mut state) = self.state.try_lock() else { return Ok(()) };
        self.write_back(&mut state)?;
        state.table.forget();
        Ok(())
    }

    fn is_deleted(&self) -> bool {
        self.state.lock().is_deleted
    }

    /// The name is gone: what is left of the file needs no sync.
    pub(super) fn set_deleted(&self) {
        self.state.lock().is_deleted = true;
    }

    fn checked(
        &self,
        offset: u64,
        length: u64,
        crcs: &[u32],
    ) -> Result<Range<usize>, FragmentError> {
        let sectors = sectors_of(self.key, self.profile, offset, length)?;
        if sectors.len() != crcs.len() {
            return Err(FragmentError::BadRange { key: self.key, offset, length });
        }
        Ok(sectors)
    }

    fn load(&self, state: &mut State, sectors: Range<usize>) -> Result<(), FragmentError> {
        state.table.load(&*self.file, sectors, true).map_err(|error| self.io(error))?;
        Ok(())
    }

    /// Notes, before it happens and with the lock held, that the file changes.
    fn changed(&self, bytes: usize) {
        self.changes.note(bytes as u64);
    }

    fn io(&self, source: io::Error) -> FragmentError {
        FragmentError::io(self.key, source)
    }
}

impl State {
    fn apply(&mut self, mark: Mark) {
        self.header.version = mark.version;
        self.header.logical_end = self.header.logical_end.max(mark.logical_end);
        self.is_header_dirty = true;
    }
}
