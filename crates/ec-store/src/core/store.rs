//! Journal and fragment store of one core, as the PG machines use them.
//!
//! Contract: one owner thread. A failure of the disk poisons: everything is refused until the core
//! is opened again.

use super::format::{self, CheckpointBegin, RecordHead};
use super::sync_job::SyncFiles;
use crate::fragment::{
    FragmentError, FragmentFile, FragmentKey, FragmentStore, FragmentVersion, Mark, SECTOR_BYTES,
    sector_crcs,
};
use crate::journal::{Journal, JournalError, Location};
use crate::medium::Dir;
use crate::pg::shard::{
    Change, Item, Lsn, Payload, PgState, Placed, Record, ShardStore, StoreError, Summed,
};
use crate::space::DiskSpace;
use crate::throttle::Unflushed;
use bytes::Bytes;
use protocol::shard::space_taken;
use protocol::{ObjectId, PgId, Profile, ShardIndex};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Puts the profile into a fragment that a direct write makes, and the shard into every key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub shard: ShardIndex,
    pub profile: Profile,
}

/// See the module.
#[derive(Debug)]
pub struct CoreStore {
    pub(super) journal: Journal,
    pub(super) fragments: FragmentStore,
    places: HashMap<PgId, Place>,
    /// CRC32C of the bytes of the write being taken, if the frame brought it.
    pub(super) data_crc: Option<u32>,
    /// Files with data of direct writes since they were synced last.
    direct: BTreeMap<FragmentKey, Arc<FragmentFile>>,
    /// Bytes of direct writes since the start.
    direct_bytes: u64,
    /// Changes of fragment files that no write-back has begun for.
    pub(super) unflushed: Unflushed,
    /// Places that records in the journal name.
    named: NamedPlaces,
    /// Files changed by a rebuild: their checksums are in no journal record, see
    /// [`FragmentFile::flush`].
    rebuilt: BTreeMap<FragmentKey, Arc<FragmentFile>>,
    /// Directories in which fragments were deleted since they were synced last.
    deleted_in: HashMap<PgId, Dir>,
    /// First entry of each journal segment, oldest first.
    segments: VecDeque<(u64, Lsn)>,
    pub(super) space: DiskSpace,
    /// See [`CoreStore::set_roomy`].
    is_roomy: bool,
    /// Position of the last item, if nothing reaches journal and fragments:
    /// [`super::CoreConfig::cut_after_pg`].
    cut: Option<Lsn>,
    poisoned: Option<String>,
    crcs: Vec<u32>,
    gather: Vec<u8>,
    gathered_crcs: Vec<u32>,
}

/// The places that a record names.
#[derive(Debug)]
struct Named {
    file: Arc<FragmentFile>,
    /// And once it is applied those that its slots have left: the map that a kill leaves may still
    /// have them there, and older records are then written to them again.
    places: Vec<u16>,
    bytes: u64,
}

/// The places that records in the journal name, whether the records count or were dropped since the
/// start: they are not taken again before the journal is trimmed beyond them. Rule: PlaceKeep.
/// Holding the files keeps these open, and what they know.
#[derive(Debug, Default)]
struct NamedPlaces {
    records: BTreeMap<Lsn, Named>,
    /// How many of them each file has.
    files: HashMap<FragmentKey, usize>,
    bytes: u64,
    /// Those that had some and have none any more.
    left: Vec<FragmentKey>,
}

impl NamedPlaces {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn note(&mut self, lsn: Lsn, named: Named) {
        self.bytes += named.bytes;
        *self.files.entry(named.file.key()).or_default() += 1;
        self.records.insert(lsn, named);
    }

    /// Slots have left these places, by a record that was applied.
    fn leave(&mut self, lsn: Lsn, file: &FragmentFile, places: Vec<u16>) {
        match self.records.get_mut(&lsn) {
            Some(named) => named.places.extend(places),
            None => file.let_go(&places),
        }
    }

    /// Records before this position are no longer looked at.
    fn trim(&mut self, upto: Lsn) {
        let kept = self.records.split_off(&upto);
        for named in std::mem::replace(&mut self.records, kept).into_values() {
            named.file.let_go(&named.places);
            self.bytes -= named.bytes;
            let key = named.file.key();
            let count = self.files.get_mut(&key).expect("each record was counted");
            *count -= 1;
            if *count == 0 {
                self.files.remove(&key);
                self.left.push(key);
            }
        }
    }
}

impl CoreStore {
    pub(super) fn new(
        journal: Journal,
        fragments: FragmentStore,
        segments: VecDeque<(u64, Lsn)>,
        space: DiskSpace,
    ) -> Self {
        Self {
            journal,
            fragments,
            places: HashMap::new(),
            data_crc: None,
            direct: BTreeMap::new(),
            direct_bytes: 0,
            unflushed: Unflushed::default(),
            named: NamedPlaces::default(),
            rebuilt: BTreeMap::new(),
            deleted_in: HashMap::new(),
            segments,
            space,
            is_roomy: false,
            cut: None,
            poisoned: None,
            crcs: Vec::new(),
            gather: Vec::new(),
            gathered_crcs: Vec::new(),
        }
    }

    /// Takes everything from now on and keeps nothing.
    pub(super) fn cut(&mut self) {
        self.cut = Some(Lsn(self.journal.last_lsn()));
    }

    pub(super) fn is_cut(&self) -> bool {
        self.cut.is_some()
    }

    /// The position of the last item taken.
    pub(super) fn last_lsn(&self) -> Lsn {
        self.cut.unwrap_or(Lsn(self.journal.last_lsn()))
    }

    pub(super) fn set_place(&mut self, pg: PgId, place: Place) {
        self.places.insert(pg, place);
    }

    pub(super) fn key(&self, pg: PgId, object: ObjectId) -> Option<FragmentKey> {
        self.places.get(&pg).map(|place| FragmentKey { pg, object, shard: place.shard })
    }

    /// The fragment's file if there is one. A damaged header is replaced: the bytes of direct
    /// records behind it are as good as before, but those in slots that were moved.
    pub(super) fn open_damaged_too(
        &mut self,
        key: FragmentKey,
    ) -> Result<Option<Arc<FragmentFile>>, FragmentError> {
        match (self.fragments.get(key), self.places.get(&key.pg)) {
            (Err(FragmentError::BadHeader { .. }), Some(place)) => {
                self.fragments.get_or_create(key, place.profile).map(Some)
            }
            (result, _) => result,
        }
    }

    /// Why everything is refused, if it is.
    pub(super) fn poison(&self) -> Option<&str> {
        self.poisoned.as_deref()
    }

    /// The disk failed: nothing is taken any more.
    pub(super) fn set_poison(&mut self, why: String) {
        if self.poisoned.is_none() {
            tracing::error!(%why, "storage failed: this osd serves nothing until it is restarted");
            self.poisoned = Some(why);
        }
    }

    fn check_poison(&self) -> Result<(), StoreError> {
        self.poisoned.as_ref().map_or(Ok(()), |why| Err(StoreError::Io(why.clone())))
    }

    fn journal_error(&mut self, error: JournalError) -> StoreError {
        match error {
            JournalError::Full { .. } => StoreError::JournalFull,
            JournalError::NoSpace { .. } => StoreError::NoSpace,
            error => {
                self.set_poison(error.to_string());
                StoreError::Io(error.to_string())
            }
        }
    }

    fn fragment_error(error: FragmentError) -> StoreError {
        match error {
            FragmentError::Full { .. } => StoreError::NoSpace,
            FragmentError::Corrupt { .. } => StoreError::Corrupt,
            error => StoreError::Io(error.to_string()),
        }
    }

    /// Flushes the journal: what was appended outlives the process.
    pub(super) fn flush(&mut self) -> Result<(), StoreError> {
        self.check_poison()?;
        for (key, file) in std::mem::take(&mut self.rebuilt) {
            if let Err(error) = file.flush() {
                self.rebuilt.insert(key, file);
                return Err(Self::fragment_error(error));
            }
        }
        self.journal.flush().map_err(|error| self.journal_error(error))
    }

    /// `placed`: what its bytes will take in their fragment.
    fn note(&mut self, at: Location, placed: u64) -> Lsn {
        let lsn = Lsn(at.lsn);
        if self.segments.back().is_none_or(|(number, _)| *number != at.segment) {
            self.segments.push_back((at.segment, lsn));
        }
        self.space.journalled(at.bytes, placed);
        lsn
    }

    /// What must be synced before records count as durable: the data of direct writes; `all`:
    /// everything applied too.
    pub(super) fn take_unsynced(&mut self, all: bool) -> SyncFiles {
        let applied: Vec<_> =
            if all { self.applied_beside_direct().cloned().collect() } else { Vec::new() };
        let mut files: Vec<_> = std::mem::take(&mut self.direct).into_values().collect();
        let mut dirs = Vec::new();
        if all {
            files.extend(applied);
            dirs.extend(self.deleted_in.drain());
        }
        SyncFiles { files, dirs }
    }

    /// Files with changes that were applied, but for those of direct writes.
    fn applied_beside_direct(&self) -> impl Iterator<Item = &Arc<FragmentFile>> {
        let is_direct = |file: &Arc<FragmentFile>| {
            self.direct.get(&file.key()).is_some_and(|other| Arc::ptr_eq(other, file))
        };
        self.fragments.dirty_files().filter(move |file| !is_direct(file))
    }

    /// How many files and directories [`CoreStore::take_unsynced`] would give.
    pub(super) fn unsynced_files(&self, all: bool) -> usize {
        let beside =
            if all { self.applied_beside_direct().count() + self.deleted_in.len() } else { 0 };
        self.direct.len() + beside
    }

    /// A sync did not happen: what it was to sync is still unsynced.
    pub(super) fn put_back(&mut self, unsynced: SyncFiles) {
        for file in unsynced.files {
            // one that is there already is the same, or its successor after a delete: that one must
            // not be forgotten
            self.direct.entry(file.key()).or_insert(file);
        }
        self.deleted_in.extend(unsynced.dirs);
    }

    /// Appends a checkpoint of all PGs that allows records before `upto` to go.
    pub(super) fn append_checkpoint(
        &mut self,
        upto: Lsn,
        states: &[(PgId, PgState)],
    ) -> Result<Lsn, StoreError> {
        self.check_poison()?;
        if let Some(last) = self.cut {
            return Ok(last);
        }
        let number = self.journal.last_lsn() + 1;
        let begin =
            postcard::to_stdvec(&CheckpointBegin { number, upto }).expect("an encodable type");
        let first = self.append_exempt(format::CHECKPOINT_BEGIN, &begin)?;
        for (pg, state) in states {
            self.append_exempt(format::CHECKPOINT_PG, &format::pg_front(*pg, state))?;
        }
        self.append_exempt(format::CHECKPOINT_END, &number.to_le_bytes())?;
        Ok(first)
    }

    fn append_exempt(&mut self, kind: u8, front: &[u8]) -> Result<Lsn, StoreError> {
        let at = self
            .journal
            .append_exempt(kind, front, &[])
            .map_err(|error| self.journal_error(error))?;
        Ok(self.note(at, 0))
    }

    /// Would a trim of the records before `upto` let a whole segment go? It may hold none that
    /// still count.
    pub(super) fn has_segment_before(&self, upto: Lsn) -> bool {
        self.segments.get(1).is_some_and(|(_, first)| *first <= upto)
    }

    /// A checkpoint that begins at `checkpoint` and lets records before `upto` go is durable:
    /// deletes whole segments.
    pub(super) fn trim(&mut self, upto: Lsn, checkpoint: Lsn) -> Result<(), StoreError> {
        let keep = upto.min(checkpoint);
        while self.segments.len() > 1 && self.segments[1].1 <= keep {
            self.segments.pop_front();
        }
        self.named.trim(upto);
        let before = self.segments.front().map_or(0, |(number, _)| *number);
        self.journal.trim(before).map(drop).map_err(|error| self.journal_error(error))
    }

    fn mark(logical_end: u64) -> Mark {
        Mark { version: FragmentVersion::default(), logical_end }
    }

    fn change(
        &mut self,
        key: FragmentKey,
        profile: Profile,
        change: &Change<'_>,
    ) -> Result<(), FragmentError> {
        match *change {
            Change::Write { lsn, offset, data, crcs, logical_end } => {
                self.write_through(key, profile, lsn, offset, (data, crcs), logical_end)
            }
            Change::Point { lsn, offset, placed, logical_end } => {
                let file = self.fragments.get_or_create(key, profile)?;
                let left =
                    file.point(offset, placed.placement(), &placed.crcs, Self::mark(logical_end))?;
                self.named.leave(lsn, &file, left);
                Ok(())
            }
            Change::Publish { offset, crcs, logical_end } => self
                .fragments
                .get_or_create(key, profile)?
                .publish(offset, crcs, Self::mark(logical_end)),
            Change::Punch { offset, length, logical_end } => {
                let length = length.min(profile.fragment_bytes().saturating_sub(offset));
                self.fragments.get_or_create(key, profile)?.punch(
                    offset,
                    length,
                    Self::mark(logical_end),
                )
            }
            Change::Truncate { offset, logical_end } => {
                let file = self.fragments.get_or_create(key, profile)?;
                file.truncate(offset.min(profile.fragment_bytes()), Self::mark(logical_end))
            }
            Change::Delete => {
                self.direct.remove(&key);
                self.rebuilt.remove(&key);
                if self.fragments.delete(key)? {
                    let dir = self.fragments.pg_dir(key.pg);
                    self.deleted_in.insert(key.pg, dir);
                }
                Ok(())
            }
            Change::Nothing => Ok(()),
        }
    }

    fn write_through(
        &mut self,
        key: FragmentKey,
        profile: Profile,
        lsn: Lsn,
        offset: u64,
        (data, crcs): (&[u8], Option<&[u32]>),
        logical_end: u64,
    ) -> Result<(), FragmentError> {
        let mut made = std::mem::take(&mut self.crcs);
        let crcs = crcs.unwrap_or_else(|| {
            made.clear();
            sector_crcs(data, &mut made);
            &made
        });
        let file = self.fragments.get_or_create(key, profile);
        let result =
            file.and_then(|file| file.write_at(lsn.0, offset, data, crcs, Self::mark(logical_end)));
        self.crcs = made;
        self.space.wrote(space_taken(data.len() as u64));
        result
    }

    /// Writes runs of neighbouring small writes with one call each.
    fn apply_coalesced(
        &mut self,
        key: FragmentKey,
        profile: Profile,
        changes: &[Change<'_>],
    ) -> Result<(), FragmentError> {
        let mut at = 0;
        while at < changes.len() {
            let run = run_length(&changes[at..]);
            if run < 2 {
                self.change(key, profile, &changes[at])?;
                at += 1;
                continue;
            }
            let (mut gather, mut sums) =
                (std::mem::take(&mut self.gather), std::mem::take(&mut self.gathered_crcs));
            gather.clear();
            sums.clear();
            let (mut first, mut end, mut summed, mut last) = (0, 0, true, Lsn::default());
            for (n, change) in changes[at..at + run].iter().enumerate() {
                if let Change::Write { lsn, offset, data, crcs, logical_end } = change {
                    last = last.max(*lsn);
                    first = if n == 0 { *offset } else { first };
                    end = end.max(*logical_end);
                    gather.extend_from_slice(data);
                    summed &= crcs.is_some();
                    sums.extend_from_slice(crcs.unwrap_or_default());
                }
            }
            let bytes = (&*gather, summed.then_some(&*sums));
            let result = self.write_through(key, profile, last, first, bytes, end);
            (self.gather, self.gathered_crcs) = (gather, sums);
            result?;
            at += run;
        }
        Ok(())
    }

    /// Bytes of a record went to a file, to be synced before the record counts as durable; gives
    /// their checksums.
    fn note_direct(
        &mut self,
        key: FragmentKey,
        file: Arc<FragmentFile>,
        data: &Summed,
    ) -> Box<[u32]> {
        self.space.wrote(space_taken(data.len() as u64));
        self.direct.insert(key, file);
        self.direct_bytes += data.len() as u64;
        self.unflushed.note(key, data.len() as u64);
        data.crcs().map_or_else(
            || {
                let mut crcs = Vec::with_capacity(data.len() / SECTOR_BYTES as usize);
                sector_crcs(data, &mut crcs);
                crcs.into()
            },
            Box::from,
        )
    }

    /// The places that a record names, if it does, and their file if that is open.
    fn named_by(&self, pg: PgId, record: &Record) -> Option<Named> {
        let Payload::Placed(placed) = &record.payload else { return None };
        let file = self.direct.get(&self.key(pg, record.object)?)?;
        Some(Named {
            file: Arc::clone(file),
            places: placed.places.to_vec(),
            bytes: u64::from(record.length),
        })
    }

    /// Bytes since the start that a sync makes durable: those of the journal and of direct writes.
    pub(super) fn bytes_to_sync(&self) -> u64 {
        self.journal.appended_bytes() + self.direct_bytes
    }

    /// Bytes that records in the journal have placed elsewhere.
    pub(super) fn placed_bytes(&self) -> u64 {
        self.named.bytes()
    }

    /// A record that was read from the journal names places of this file, if it can have them.
    pub(super) fn keep_found(&mut self, lsn: Lsn, file: &Arc<FragmentFile>, record: &Record) {
        if let Payload::Placed(placed) = &record.payload
            && file.keep_found(lsn.0, record.offset, placed.placement())
        {
            let (places, bytes) = (placed.places.to_vec(), u64::from(record.length));
            self.named.note(lsn, Named { file: Arc::clone(file), places, bytes });
        }
    }

    /// Does a record before this position name places?
    pub(super) fn has_named_before(&self, upto: Lsn) -> bool {
        self.named.records.first_key_value().is_some_and(|(lsn, _)| *lsn < upto)
    }

    /// Fragments of which no record names a place any more, since this was last asked.
    pub(super) fn take_unnamed(&mut self) -> Vec<FragmentKey> {
        std::mem::take(&mut self.named.left)
    }

    /// The files of those of these fragments of which still no record names a place: what they have
    /// beside their slots may be given back.
    pub(super) fn unnamed_files(&mut self, keys: &[FragmentKey]) -> Vec<Arc<FragmentFile>> {
        let unnamed = keys.iter().filter(|key| !self.named.files.contains_key(key));
        unnamed.filter_map(|key| self.fragments.get(*key).ok().flatten()).collect()
    }

    /// Is there so much space that old and new bytes may be there at once?
    pub(super) fn set_roomy(&mut self, is_roomy: bool) {
        self.is_roomy = is_roomy;
        self.journal.keep_segments(is_roomy);
    }

    /// Files that this object's rebuild changed keep their checksums across the death of the
    /// process.
    pub(super) fn note_rebuilt(&mut self, pg: PgId, object: ObjectId) {
        let Some(key) = self.key(pg, object) else { return };
        if let Ok(Some(file)) = self.fragments.get(key) {
            self.rebuilt.insert(key, file);
        }
    }
}

/// Bytes that one gathered write takes at most.
const GATHER_BYTES_MAX: usize = 1 << 20;

/// How many changes from the first on are writes one behind the other.
fn run_length(changes: &[Change<'_>]) -> usize {
    let (mut count, mut next, mut bytes) = (0, None, 0);
    for change in changes {
        match change {
            Change::Write { offset, data, .. }
                if next.is_none_or(|next| next == *offset)
                    && bytes + data.len() <= GATHER_BYTES_MAX =>
            {
                (count, next) = (count + 1, Some(offset + data.len() as u64));
                bytes += data.len();
            }
            _ => break,
        }
    }
    count
}

impl ShardStore for CoreStore {
    fn append(&mut self, pg: PgId, item: Item<'_>) -> Result<Lsn, StoreError> {
        self.check_poison()?;
        if let Some(last) = &mut self.cut {
            last.0 += 1;
            return Ok(*last);
        }
        let mut placed = 0;
        let result = match item {
            Item::Record(record) => {
                let head = RecordHead::new(pg, record);
                let crc = self.data_crc.take();
                match &record.payload {
                    Payload::Journalled(data) => {
                        placed = space_taken(data.len() as u64);
                        let data: &Bytes = data;
                        let data = std::slice::from_ref(data);
                        self.journal.append(format::RECORD, head.as_bytes(), data, crc)
                    }
                    Payload::Direct(crcs) => {
                        let crcs: Vec<u8> = crcs.iter().flat_map(|crc| crc.to_le_bytes()).collect();
                        self.journal.append(format::DIRECT, head.as_bytes(), &[crcs.into()], None)
                    }
                    Payload::Placed(placed) => {
                        let data = format::encode_placed(placed);
                        self.journal.append(format::PLACED, head.as_bytes(), &[data.into()], None)
                    }
                    Payload::Nothing => {
                        self.journal.append(format::RECORD, head.as_bytes(), &[], None)
                    }
                }
            }
            Item::Delta(delta) => {
                self.journal.append_exempt(format::DELTA, &format::pg_front(pg, delta), &[])
            }
        };
        let names = match item {
            Item::Record(record) => self.named_by(pg, record),
            Item::Delta(_) => None,
        };
        let at = match (result, names) {
            (Ok(at), None) => at,
            (Ok(at), Some(names)) => {
                self.named.note(Lsn(at.lsn), names);
                at
            }
            (Err(error), names) => {
                names.into_iter().for_each(|names| names.file.let_go(&names.places));
                return Err(self.journal_error(error));
            }
        };
        Ok(self.note(at, placed))
    }

    fn is_unwritten(&mut self, pg: PgId, object: ObjectId, range: Range<u64>) -> bool {
        // with the path cut nothing may go to fragment files, where direct writes do
        let Some(key) = self.key(pg, object).filter(|_| !self.is_cut()) else { return false };
        self.fragments.is_unwritten(key, range.start, range.end - range.start).unwrap_or(false)
    }

    fn write_direct(
        &mut self,
        pg: PgId,
        object: ObjectId,
        offset: u64,
        data: &Summed,
    ) -> Result<Box<[u32]>, StoreError> {
        self.check_poison()?;
        let place = *self
            .places
            .get(&pg)
            .ok_or_else(|| StoreError::Io(format!("{pg} is not held here")))?;
        let key = FragmentKey { pg, object, shard: place.shard };
        let file =
            self.fragments.get_or_create(key, place.profile).map_err(Self::fragment_error)?;
        file.write_data_only(offset, data).map_err(Self::fragment_error)?;
        Ok(self.note_direct(key, file, data))
    }

    fn place(
        &mut self,
        pg: PgId,
        object: ObjectId,
        offset: u64,
        data: &Summed,
    ) -> Result<Option<Placed>, StoreError> {
        self.check_poison()?;
        let has_room = self.named.bytes() + (data.len() as u64) <= self.journal.bytes_max();
        let Some(key) =
            self.key(pg, object).filter(|_| self.is_roomy && has_room && !self.is_cut())
        else {
            return Ok(None);
        };
        // What is damaged is left to those who repair it, and what is not there has nothing to be
        // kept for readers.
        let Ok(Some(file)) = self.fragments.get(key) else { return Ok(None) };
        if !self.named.files.contains_key(&key)
            && self.named.files.len() >= self.fragments.held_files_max()
        {
            return Ok(None);
        }
        let Some((slot_bytes, places)) = file.place(offset, data).map_err(Self::fragment_error)?
        else {
            return Ok(None);
        };
        let crcs = self.note_direct(key, file, data);
        Ok(Some(Placed { slot_bytes, places, crcs }))
    }

    fn apply(
        &mut self,
        pg: PgId,
        profile: &Profile,
        object: ObjectId,
        changes: &[Change<'_>],
    ) -> Result<(), StoreError> {
        self.check_poison()?;
        if self.is_cut() {
            return Ok(());
        }
        let key =
            self.key(pg, object).ok_or_else(|| StoreError::Io(format!("{pg} is not held here")))?;
        for change in changes {
            match change {
                Change::Write { data, .. } => self.unflushed.note(key, data.len() as u64),
                Change::Punch { .. } | Change::Truncate { .. } => self.unflushed.note(key, 0),
                // their bytes were counted when they were written
                Change::Point { .. }
                | Change::Publish { .. }
                | Change::Delete
                | Change::Nothing => {}
            }
        }
        self.apply_coalesced(key, *profile, changes).map_err(Self::fragment_error)
    }

    fn objects(&mut self, pg: PgId) -> Result<Vec<ObjectId>, StoreError> {
        let Some(Place { shard, .. }) = self.places.get(&pg).copied() else {
            return Ok(Vec::new());
        };
        let all = self.fragments.list(pg).map_err(Self::fragment_error)?;
        let mine = |entry: Result<(ObjectId, ShardIndex), FragmentError>| match entry {
            Ok((object, s)) => (s == shard).then_some(Ok(object)),
            Err(error) => Some(Err(Self::fragment_error(error))),
        };
        all.filter_map(mine).collect()
    }
}
