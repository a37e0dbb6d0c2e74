//! A node's disk: its journal and its fragment files, with what the death of a process and a power
//! loss leave of them.
//!
//! Contract: a sector is a tag, its checksum a function of the tag; data that goes through must be
//! made by [`sector_bytes`]. Journal items are in memory, then flushed (they outlive the process),
//! then synced (they outlive a power loss). Of a fragment file the bytes reach the page cache at
//! once, checksums and end only with a flush or sync.

use bytes::Bytes;
use ec_store::pg::shard::{
    Change, Delta, Item, Lsn, Payload, PgState, Placed, Record, Replay, ShardStore, StoreError,
    Summed,
};
use protocol::{Gfid, ObjectId, PgId, Profile, Rule, Rules};
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes of a sector, as in the product.
pub const SECTOR: usize = Profile::SECTOR_BYTES as usize;
/// Sectors of a fragment that are ever written.
pub const SECTORS: usize = 4;
/// Sectors of a slot.
pub const SLOT: usize = 2;
/// Slots of a fragment.
const SLOTS: usize = SECTORS / SLOT;
/// Places of a file: those of its own for each slot first.
const PLACES: usize = 2 * SLOTS;
/// Objects, each a file of its own.
pub const OBJECTS: usize = 2;
/// What a torn sector holds.
pub const GARBAGE: u64 = 0xEEEE_EEEE_EEEE_EEEE;
/// What a rotten sector holds.
pub const ROT: u64 = 0xBAD0_BAD0_BAD0_BAD0;

/// Sector tags of one fragment.
pub type Tags = [u64; SECTORS];

/// The id of an object: files have the first inode numbers after the root's.
pub fn object(o: usize) -> ObjectId {
    ObjectId { gfid: Gfid::of_inode(Gfid::ROOT.unique() + 1 + o as u64), index: 0 }
}

/// The object of an id.
pub fn number(object: ObjectId) -> usize {
    (object.gfid.unique() - Gfid::ROOT.unique()) as usize - 1
}

/// The checksum of a sector; never 0, which stands for a hole.
pub fn crc(tag: u64) -> u32 {
    (tag.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32 | 1
}

/// Bytes of neighbouring sectors.
pub fn sector_bytes(tags: impl ExactSizeIterator<Item = u64>) -> Bytes {
    let mut bytes = vec![0; tags.len() * SECTOR];
    for (sector, tag) in bytes.chunks_mut(SECTOR).zip(tags) {
        sector[..8].copy_from_slice(&tag.to_le_bytes());
    }
    bytes.into()
}

/// The tags of whole sectors.
pub fn tags_of(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.chunks(SECTOR).map(|sector| u64::from_le_bytes(sector[..8].try_into().expect("8 bytes")))
}

/// Sectors of a range in bytes, clipped to those there are.
pub fn sectors(range: Range<u64>) -> Range<usize> {
    let at = |b: u64| ((b / SECTOR as u64) as usize).min(SECTORS);
    at(range.start)..at(range.end)
}

/// A fragment file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct File {
    /// Bytes, place by place.
    tags: [u64; PLACES * SLOT],
    /// Where each slot lies: 0 in its own place, else the place plus 1.
    map: [u8; SLOTS],
    /// Checksums; 0 is a hole.
    pub crcs: [u32; SECTORS],
    /// End of user data.
    pub end: u64,
}

impl File {
    fn place(&self, slot: usize) -> usize {
        match self.map[slot] {
            0 => slot,
            place => usize::from(place) - 1,
        }
    }

    /// Where a sector lies.
    fn at(&self, sector: usize) -> usize {
        self.place(sector / SLOT) * SLOT + sector % SLOT
    }

    /// What lies where a sector is, whatever its checksum.
    pub fn tag(&self, at: usize) -> u64 {
        self.tags[self.at(at)]
    }

    /// What lies in a sector of places that a record names.
    pub fn placed_tag(&self, placed: &Placed, n: usize) -> u64 {
        self.tags[usize::from(placed.places[n / SLOT]) * SLOT + n % SLOT]
    }

    /// What a reader sees of a sector; nothing if it fails its checksum.
    pub fn sector(&self, at: usize) -> Option<u64> {
        match self.crcs[at] {
            0 => Some(0),
            sum if sum == crc(self.tag(at)) => Some(self.tag(at)),
            _ => None,
        }
    }

    /// Is this a sector with data that rotted?
    pub fn is_rotten(&self, at: usize) -> bool {
        self.crcs[at] != 0 && self.tag(at) == ROT
    }

    /// As a file is opened: of two slots in one place one gets another, in which no slot lies.
    fn part_slots(&mut self) {
        for slot in 1..SLOTS {
            if (0..slot).any(|other| self.place(other) == self.place(slot)) {
                let free =
                    (0..PLACES).find(|place| (0..SLOTS).all(|other| self.place(other) != *place));
                self.map[slot] = free.expect("more places than slots") as u8 + 1;
            }
        }
    }

    /// Where the data of the whole fragment ends, in bytes.
    pub fn data_end(&self) -> u64 {
        self.crcs.iter().rposition(|crc| *crc != 0).map_or(0, |at| ((at + 1) * SECTOR) as u64)
    }
}

/// A journal item.
#[derive(Clone, Debug)]
pub enum Stored {
    /// A write.
    Record(Record),
    /// A change beside writes.
    Delta(Delta),
    /// Records before this position may go.
    Checkpoint(Lsn, PgState),
}

/// What a sync that has begun will have made durable.
#[derive(Debug)]
pub struct Syncing {
    items: u64,
    files: [Option<(u32, Option<File>)>; OBJECTS],
}

/// See the module.
#[derive(Debug, Default)]
pub struct Disk {
    /// The protocol's rules that hold.
    pub rules: Rules,
    /// Journal items with their positions, which count up from 1.
    pub journal: Vec<(Lsn, Stored)>,
    next: u64,
    flushed: u64,
    synced: u64,
    /// As the process has it.
    pub files: [Option<File>; OBJECTS],
    cache: [Option<File>; OBJECTS],
    disk: [Option<File>; OBJECTS],
    /// Counts how often the file was made or deleted.
    births: [u32; OBJECTS],
    direct: [bool; OBJECTS],
    /// Places that records in the journal name.
    named: BTreeMap<Lsn, (usize, Vec<u16>)>,
    /// Slots that the file shows as a record in the journal left them.
    ahead: [BTreeMap<usize, Lsn>; OBJECTS],
    /// Writes of whole slots are placed.
    pub places: bool,
    rebuilt: [bool; OBJECTS],
    /// Records that the journal takes at most.
    pub records_max: usize,
    /// There is no space for data.
    pub full: bool,
    /// What fails next, once.
    pub fails: Option<Failing>,
    /// A write failed: nothing more is taken until the process was started again.
    pub failed: bool,
}

/// What of a disk fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failing {
    /// A write: half of it may have happened.
    Write,
    /// A read.
    Read,
}

impl Disk {
    /// An empty disk.
    pub fn new(rules: Rules, records_max: usize, places: bool) -> Self {
        Self { rules, records_max, places, ..Self::default() }
    }

    /// Appends an item.
    pub fn push(&mut self, item: Stored) -> Lsn {
        self.next += 1;
        self.journal.push((Lsn(self.next), item));
        Lsn(self.next)
    }

    /// The position that the next item will have.
    pub fn next(&self) -> Lsn {
        Lsn(self.next + 1)
    }

    /// Records in the journal.
    pub fn records(&self) -> usize {
        self.journal.iter().filter(|(_, item)| matches!(item, Stored::Record(_))).count()
    }

    /// The first record in the journal, whether it counts or was dropped.
    pub fn oldest(&self) -> Option<Lsn> {
        self.journal.iter().find(|(_, item)| matches!(item, Stored::Record(_))).map(|(lsn, _)| *lsn)
    }

    /// Is there anything that the death of the process would take?
    pub fn is_unflushed(&self) -> bool {
        self.flushed < self.next
    }

    /// Is there anything that a power loss would take?
    pub fn is_unsynced(&self) -> bool {
        self.synced < self.next || self.files != self.disk
    }

    fn write_fails(&mut self) -> bool {
        let fails = self.fails == Some(Failing::Write);
        if fails {
            (self.fails, self.failed) = (None, true);
        }
        self.failed
    }

    /// Does the next read fail?
    pub fn read_fails(&mut self) -> bool {
        self.fails.take_if(|fails| *fails == Failing::Read).is_some()
    }

    /// The end of a turn: tables of rebuilt files first, then the journal.
    pub fn flush(&mut self) {
        if self.is_unflushed() && self.write_fails() {
            self.flushed += (self.next - self.flushed) / 2;
            return;
        }
        for o in 0..OBJECTS {
            if std::mem::take(&mut self.rebuilt[o]) {
                self.write_table(o);
            }
        }
        self.flushed = self.next;
    }

    fn write_table(&mut self, o: usize) {
        if let Some(file) = self.files[o] {
            self.cache[o] = Some(file);
        }
    }

    /// A rebuild has ended: the file's table must outlive the process when the journal says so.
    pub fn note_rebuilt(&mut self, o: usize) {
        self.rebuilt[o] = true;
    }

    /// Begins a sync of what is flushed; `all`: of all files, too.
    pub fn begin_sync(&mut self, all: bool) -> Syncing {
        let direct = std::mem::take(&mut self.direct);
        // Rule: DirectSync
        let wanted = |o: usize| all || direct[o] && self.rules.on(Rule::DirectSync);
        let files = std::array::from_fn(|o| wanted(o).then(|| (self.births[o], self.files[o])));
        Syncing { items: self.flushed, files }
    }

    /// It has ended well.
    pub fn end_sync(&mut self, sync: Syncing) {
        self.synced = self.synced.max(sync.items);
        for (o, snapshot) in sync.files.into_iter().enumerate() {
            let Some((birth, file)) = snapshot else { continue };
            match (file, &mut self.cache[o]) {
                (None, _) => self.disk[o] = None,
                (Some(file), Some(cache)) if birth == self.births[o] => {
                    (cache.map, cache.crcs, cache.end) = (file.map, file.crcs, file.end);
                    self.disk[o] = Some(file);
                }
                _ => {}
            }
        }
    }

    /// It failed: what it was to make durable may be gone for good.
    pub fn fail_sync(&mut self, sync: &Syncing) {
        for o in 0..OBJECTS {
            self.direct[o] |= sync.files[o].is_some();
        }
    }

    /// A checkpoint is durable: items before it and before `upto` go.
    pub fn trim(&mut self, upto: Lsn, checkpoint: Lsn) {
        let keep = upto.min(checkpoint);
        self.journal.retain(|(lsn, _)| *lsn >= keep);
        self.named = self.named.split_off(&upto);
    }

    /// The process dies.
    pub fn crash(&mut self) {
        let flushed = self.flushed;
        self.journal.retain(|(lsn, _)| lsn.0 <= flushed);
        self.flushed = self.next;
        self.files = self.cache;
        (self.direct, self.rebuilt, self.named, self.ahead) = Default::default();
        (self.fails, self.failed) = (None, false);
    }

    /// The machine dies, too. `fate` decides of what was not synced.
    pub fn power(&mut self, fate: u32) {
        self.crash();
        let keep = match fate % 3 {
            0 => self.synced,
            1 => self.synced + (self.flushed.saturating_sub(self.synced)) / 2,
            _ => self.flushed,
        };
        self.journal.retain(|(lsn, _)| lsn.0 <= keep);
        for o in 0..OBJECTS {
            let mut bits = fate >> (2 + 12 * o);
            let mut draw = |n: u32| {
                let x = bits % n;
                bits /= n;
                x
            };
            self.files[o] = match (self.disk[o], self.cache[o], draw(4)) {
                (disk, _, 0) => disk,
                (_, cache, 1) => cache,
                (None, None, _) => None,
                (disk, cache, _) => {
                    let (old, new) = (disk.unwrap_or_default(), cache.unwrap_or_default());
                    let table = if draw(2) == 0 { old } else { new };
                    let torn = |at: usize, x: u32| match x {
                        0 => old.tags[at],
                        1 => new.tags[at],
                        _ if old.tags[at] == new.tags[at] => old.tags[at],
                        // rotten is rotten, whatever else was to be there
                        _ if old.tags[at] == ROT || new.tags[at] == ROT => ROT,
                        _ => GARBAGE,
                    };
                    let mut tags = [0; PLACES * SLOT];
                    (0..SECTORS).for_each(|at| tags[at] = torn(at, draw(3)));
                    let mut more = (fate ^ o as u32).wrapping_mul(0x9E37_79B9);
                    let mut draw_more = |n: u32| {
                        more = more.wrapping_mul(0x0019_660D).wrapping_add(0x3C6E_F35F);
                        (more >> 16) % n
                    };
                    (SECTORS..tags.len()).for_each(|at| tags[at] = torn(at, draw_more(3)));
                    let map =
                        std::array::from_fn(|slot| [old, new][draw_more(2) as usize].map[slot]);
                    let mut file = File { tags, map, ..table };
                    file.part_slots();
                    Some(file)
                }
            };
        }
        (self.cache, self.disk) = (self.files, self.files);
        self.flushed = self.next;
        self.synced = self.next;
    }

    /// Does the journal name bytes that are not there?
    pub fn lacks_direct_bytes(&self, pg: PgId) -> bool {
        self.first_bad(&self.read(pg)).is_some()
    }

    /// Reads the journal again, which syncs what it gives as the product's does, and checks direct
    /// records. Says whether one lacked its bytes.
    pub fn replay(&mut self, pg: PgId) -> (Replay, bool) {
        self.synced = self.flushed;
        let mut replay = self.read(pg);
        let bad = self.first_bad(&replay);
        for (_, record) in replay.direct().take_while(|(lsn, _)| bad.is_none_or(|bad| *lsn < bad)) {
            // Rule: RestartSync - the bytes may be in the page cache only.
            self.direct[number(record.object)] = true;
        }
        for (lsn, record) in replay.placed() {
            let Payload::Placed(placed) = &record.payload else { continue };
            let o = number(record.object);
            let first = record.offset as usize / SECTOR / SLOT;
            for (slot, place) in (first..).zip(&placed.places) {
                if self.files[o].is_some_and(|file| file.place(slot) == usize::from(*place)) {
                    self.ahead[o].insert(slot, lsn);
                }
            }
            self.named.insert(lsn, (o, placed.places.to_vec()));
        }
        if let Some(lsn) = bad {
            let delta = Delta::CutFrom(lsn);
            replay.delta(&delta);
            self.push(Stored::Delta(delta));
        }
        (replay, bad.is_some())
    }

    fn read(&self, pg: PgId) -> Replay {
        let mut replay = Replay::new(pg).with_rules(self.rules);
        let last = self.journal.iter().rposition(|(_, s)| matches!(s, Stored::Checkpoint(..)));
        let upto = match last.map(|at| &self.journal[at].1) {
            Some(Stored::Checkpoint(upto, _)) => *upto,
            _ => Lsn(0),
        };
        for (at, (lsn, item)) in self.journal.iter().enumerate() {
            match item {
                Stored::Record(record) if *lsn >= upto => replay.record(*lsn, record.clone()),
                Stored::Delta(delta) => replay.delta(delta),
                Stored::Checkpoint(_, state) if Some(at) == last => {
                    replay.checkpoint(state.clone())
                }
                _ => {}
            }
        }
        replay
    }

    /// The first direct record that lacks its bytes.
    fn first_bad(&self, replay: &Replay) -> Option<Lsn> {
        let lacks = |record: &Record| {
            let Some(file) = self.files[number(record.object)] else { return record.is_direct() };
            let first = record.offset as usize / SECTOR;
            match &record.payload {
                Payload::Direct(crcs) => {
                    crcs.iter().enumerate().any(|(n, sum)| crc(file.tag(first + n)) != *sum)
                }
                Payload::Placed(placed) => placed
                    .crcs
                    .iter()
                    .enumerate()
                    .any(|(n, sum)| crc(file.placed_tag(placed, n)) != *sum),
                Payload::Journalled(_) | Payload::Nothing => false,
            }
        };
        replay.direct().find(|(_, record)| lacks(record)).map(|(lsn, _)| lsn)
    }

    /// The slots that a write consists of, if such are placed.
    fn slots(&self, offset: u64, data: &Summed) -> Option<Range<usize>> {
        let bytes = SLOT * SECTOR;
        let is_whole = (offset as usize).is_multiple_of(bytes)
            && data.len().is_multiple_of(bytes)
            && !data.is_empty();
        (self.places && is_whole)
            .then(|| offset as usize / bytes..(offset as usize + data.len()) / bytes)
    }

    fn file(&mut self, o: usize) -> &mut File {
        if self.files[o].is_none() {
            self.births[o] += 1;
            (self.files[o], self.cache[o]) = (Some(File::default()), Some(File::default()));
        }
        self.files[o].as_mut().expect("just made")
    }

    fn put(&mut self, o: usize, offset: u64, tags: impl Iterator<Item = u64>) {
        let file = *self.file(o);
        let first = offset as usize / SECTOR;
        for (sector, tag) in (first..).zip(tags) {
            self.put_at(o, file.at(sector), tag);
        }
    }

    fn put_at(&mut self, o: usize, at: usize, tag: u64) {
        for file in [&mut self.files[o], &mut self.cache[o]].into_iter().flatten() {
            file.tags[at] = tag;
        }
    }

    /// Is the slot to be left as a record behind this one left it?
    fn is_ahead(&self, o: usize, sector: usize, lsn: Lsn) -> bool {
        // Rule: PlaceAhead
        let later = self.ahead[o].get(&(sector / SLOT)).is_some_and(|by| *by > lsn);
        later && self.rules.on(Rule::PlaceAhead)
    }

    /// What is taken away is gone from the file, where more may lie than what is seen.
    fn wipe(&mut self, o: usize, sectors: Range<usize>) {
        if self.places {
            let file = *self.file(o);
            sectors.for_each(|sector| self.put_at(o, file.at(sector), 0));
        }
    }

    fn change(&mut self, o: usize, change: &Change<'_>) {
        let of_data = |data: &Bytes| tags_of(data).map(crc).collect::<Vec<u32>>();
        match *change {
            Change::Write { lsn, offset, data, logical_end, .. } => {
                let first = offset as usize / SECTOR;
                for ((sector, tag), sum) in (first..).zip(tags_of(data)).zip(of_data(data)) {
                    let at = (sector * SECTOR) as u64;
                    if !self.is_ahead(o, sector, lsn) {
                        self.put(o, at, std::iter::once(tag));
                        self.publish(o, at, &[sum], logical_end);
                    }
                }
                self.publish(o, offset, &[], logical_end);
            }
            Change::Point { lsn, offset, placed, logical_end } => {
                let first = offset as usize / SECTOR / SLOT;
                for (slot, place) in (first..).zip(&placed.places) {
                    self.ahead[o].remove(&slot);
                    let old = self.file(o).place(slot) as u16;
                    if let Some((_, places)) = self.named.get_mut(&lsn) {
                        places.push(old);
                    }
                    self.file(o).map[slot] =
                        if usize::from(*place) == slot { 0 } else { *place as u8 + 1 };
                }
                self.publish(o, offset, &placed.crcs, logical_end);
            }
            Change::Publish { offset, crcs, logical_end } => {
                self.publish(o, offset, crcs, logical_end)
            }
            Change::Punch { offset, length, logical_end } => {
                self.wipe(o, sectors(offset..offset.saturating_add(length)));
                let file = self.file(o);
                file.crcs[sectors(offset..offset.saturating_add(length))].fill(0);
                file.end = file.end.max(logical_end);
            }
            Change::Truncate { offset, logical_end } => {
                self.wipe(o, sectors(offset..u64::MAX));
                if offset == 0 && self.places {
                    (0..PLACES * SLOT).for_each(|at| self.put_at(o, at, 0));
                    self.ahead[o].clear();
                    self.file(o).map = [0; SLOTS];
                }
                let file = self.file(o);
                file.crcs[sectors(offset..u64::MAX)].fill(0);
                file.end = logical_end;
            }
            Change::Delete => {
                if self.files[o].is_some() {
                    self.births[o] += 1;
                }
                (self.files[o], self.cache[o]) = (None, None);
                (self.direct[o], self.rebuilt[o]) = (false, false);
                self.ahead[o].clear();
            }
            Change::Nothing => {}
        }
    }

    fn publish(&mut self, o: usize, offset: u64, crcs: &[u32], logical_end: u64) {
        let (file, first) = (self.file(o), offset as usize / SECTOR);
        file.crcs[first..first + crcs.len()].copy_from_slice(crcs);
        file.end = file.end.max(logical_end);
    }

    /// Sectors that may rot: written and synced, and published or of a direct record.
    pub fn sound_sectors(&self) -> Vec<(usize, usize)> {
        let all = (0..OBJECTS).flat_map(|o| (0..SECTORS).map(move |at| (o, at)));
        let is_synced = |(o, at): &(usize, usize)| {
            let layers = [self.files[*o], self.cache[*o], self.disk[*o]];
            let sectors = layers.map(|file| file.map(|file| (file.tag(*at), file.crcs[*at])));
            let is_data = |(tag, sum): (u64, u32)| {
                sum == crc(tag) || sum == 0 && tag != 0 && self.has_direct(*o, *at)
            };
            sectors[0].is_some_and(is_data)
                && sectors[1..].iter().all(|sector| *sector == sectors[0])
        };
        all.filter(is_synced).collect()
    }

    fn has_direct(&self, o: usize, at: usize) -> bool {
        let at = (at * SECTOR) as u64;
        self.journal.iter().any(|(_, item)| match item {
            Stored::Record(record) => {
                record.is_direct() && number(record.object) == o && record.span().contains(&at)
            }
            _ => false,
        })
    }

    /// A sector rots on the disk, and is read from there.
    pub fn rot(&mut self, o: usize, at: usize) {
        for file in
            [&mut self.files[o], &mut self.cache[o], &mut self.disk[o]].into_iter().flatten()
        {
            file.tags[file.at(at)] = ROT;
        }
    }

    /// Is anything rotten, or may a power loss bring something back that was?
    pub fn has_rot(&self) -> bool {
        let rotten = |file: File, o: usize, at: usize| {
            file.is_rotten(at) || file.tag(at) == ROT && self.has_direct(o, at)
        };
        (0..OBJECTS).any(|o| {
            let layers = [self.files[o], self.cache[o], self.disk[o]];
            layers.into_iter().flatten().any(|file| (0..SECTORS).any(|at| rotten(file, o, at)))
        })
    }

    /// Rotten sectors that a reader would see.
    pub fn rotten(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let all = (0..OBJECTS).flat_map(|o| (0..SECTORS).map(move |at| (o, at)));
        all.filter(|(o, at)| self.files[*o].is_some_and(|file| file.is_rotten(*at)))
    }

    /// What a power loss would leave of a file, at worst.
    pub fn durable(&self, o: usize) -> Option<File> {
        self.disk[o]
    }
}

impl ShardStore for Disk {
    fn append(&mut self, _: PgId, item: Item<'_>) -> Result<Lsn, StoreError> {
        match item {
            Item::Record(_) if self.full => Err(StoreError::NoSpace),
            Item::Record(_) if self.records() >= self.records_max => Err(StoreError::JournalFull),
            Item::Record(record) => {
                let lsn = self.push(Stored::Record(record.clone()));
                if let Payload::Placed(placed) = &record.payload {
                    self.named.insert(lsn, (number(record.object), placed.places.to_vec()));
                }
                Ok(lsn)
            }
            Item::Delta(delta) => Ok(self.push(Stored::Delta(delta.clone()))),
        }
    }

    fn is_unwritten(&mut self, _: PgId, object: ObjectId, range: Range<u64>) -> bool {
        self.files[number(object)]
            .is_none_or(|file| file.crcs[sectors(range)].iter().all(|crc| *crc == 0))
    }

    fn write_direct(
        &mut self,
        _: PgId,
        object: ObjectId,
        offset: u64,
        data: &Summed,
    ) -> Result<Box<[u32]>, StoreError> {
        if self.full {
            return Err(StoreError::NoSpace);
        }
        let o = number(object);
        self.put(o, offset, tags_of(data));
        self.direct[o] = true;
        if self.write_fails() {
            return Err(StoreError::Io("of a direct write".into()));
        }
        Ok(tags_of(data).map(crc).collect())
    }

    fn place(
        &mut self,
        _: PgId,
        object: ObjectId,
        offset: u64,
        data: &Summed,
    ) -> Result<Option<Placed>, StoreError> {
        let o = number(object);
        let (Some(slots), Some(file)) =
            (self.slots(offset, data).filter(|_| !self.full), self.files[o])
        else {
            return Ok(None);
        };
        // Rule: PlaceKeep
        let keeps = self.rules.on(Rule::PlaceKeep);
        let named = |place: usize| {
            keeps
                && self
                    .named
                    .values()
                    .any(|(of, places)| *of == o && places.contains(&(place as u16)))
        };
        let used = |place: usize| (0..SLOTS).any(|slot| file.place(slot) == place);
        let free: Box<[u16]> = (0..PLACES)
            .filter(|place| !used(*place) && !named(*place))
            .take(slots.len())
            .map(|p| p as u16)
            .collect();
        if free.len() < slots.len() {
            return Ok(None);
        }
        let crcs = tags_of(data).map(crc).collect();
        for (n, tag) in tags_of(data).enumerate() {
            self.put_at(o, usize::from(free[n / SLOT]) * SLOT + n % SLOT, tag);
        }
        self.direct[o] = true;
        if self.write_fails() {
            return Err(StoreError::Io("of a placed write".into()));
        }
        Ok(Some(Placed { slot_bytes: (SLOT * SECTOR) as u32, places: free, crcs }))
    }

    fn apply(
        &mut self,
        _: PgId,
        _: &Profile,
        object: ObjectId,
        changes: &[Change<'_>],
    ) -> Result<(), StoreError> {
        if self.full && changes.iter().any(|c| matches!(c, Change::Write { .. })) {
            return Err(StoreError::NoSpace);
        }
        let fails = self.write_fails();
        let done = if fails { changes.len() / 2 } else { changes.len() };
        changes[..done].iter().for_each(|change| self.change(number(object), change));
        if fails { Err(StoreError::Io("of an apply".into())) } else { Ok(()) }
    }

    fn objects(&mut self, _: PgId) -> Result<Vec<ObjectId>, StoreError> {
        Ok((0..OBJECTS).filter(|o| self.files[*o].is_some()).map(object).collect())
    }
}
