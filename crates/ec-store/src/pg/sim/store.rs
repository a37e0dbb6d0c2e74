//! Journal and fragment files in memory, with what a process crash and a power loss leave of them.

use super::super::shard::{Change, Delta, Item, Lsn, PgState, Record, ShardStore, StoreError};
use bytes::Bytes;
use protocol::{ObjectId, PgId, Profile};
use std::collections::BTreeMap;
use std::ops::Range;

pub const SECTOR: usize = 512;
pub const SECTORS: usize = 8;

#[derive(Clone, Debug)]
pub enum Stored {
    Record(Record),
    Delta(Delta),
    Checkpoint(Lsn, PgState),
}

/// A fragment file: bytes are in the page cache at once, the table and the header only when synced.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct File {
    pub bytes: Vec<u8>,
    pub crcs: [u32; SECTORS],
    pub logical_end: u64,
}

impl File {
    fn new() -> Self {
        Self { bytes: vec![0; SECTOR * SECTORS], crcs: [0; SECTORS], logical_end: 0 }
    }

    /// What a reader sees of a sector.
    pub fn sector(&self, at: usize) -> Result<Vec<u8>, StoreError> {
        let bytes = &self.bytes[at * SECTOR..(at + 1) * SECTOR];
        match self.crcs[at] {
            0 => Ok(vec![0; SECTOR]),
            crc if crc == crc32c::crc32c(bytes).max(1) => Ok(bytes.to_vec()),
            _ => Err(StoreError::Corrupt),
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct MemStore {
    pub journal: Vec<(Lsn, Stored)>,
    pub synced_len: usize,
    pub files: BTreeMap<ObjectId, File>,
    pub synced_files: BTreeMap<ObjectId, File>,
    next: u64,
}

fn sectors(range: Range<u64>) -> Range<usize> {
    let at = |b: u64| ((b / SECTOR as u64) as usize).min(SECTORS);
    at(range.start)..at(range.end)
}

impl MemStore {
    pub fn push(&mut self, item: Stored) -> Lsn {
        self.next += 1;
        self.journal.push((Lsn(self.next), item));
        Lsn(self.next)
    }

    /// Removes what a durable checkpoint allows.
    pub fn trim(&mut self, upto: Lsn) {
        let before = self.journal.len();
        let last = self.journal.iter().rposition(|(_, i)| matches!(i, Stored::Checkpoint(..))).unwrap_or(0);
        let cut = self.journal.partition_point(|(lsn, _)| *lsn < upto).min(last);
        self.journal.drain(..cut);
        self.synced_len = self.synced_len.saturating_sub(before - self.journal.len());
    }

    /// The process dies: tables and headers that were not synced are lost.
    pub fn crash(&mut self) {
        for (object, file) in &mut self.files {
            let synced = self.synced_files.get(object);
            file.crcs = synced.map_or([0; SECTORS], |s| s.crcs);
            file.logical_end = synced.map_or(0, |s| s.logical_end);
        }
    }

    /// The machine dies: unsynced journal is lost, kept or halved; unsynced data old, new or torn.
    pub fn power(&mut self, random: &mut fastrand::Rng) {
        self.crash();
        let keep = random.usize(self.synced_len..=self.journal.len());
        self.journal.truncate(if random.bool() { self.synced_len } else { keep });
        let mode = random.u8(0..3);
        let mut files = self.synced_files.clone();
        for (object, file) in &self.files {
            let kept = files.entry(*object).or_insert_with(File::new);
            for at in 0..SECTORS {
                let span = at * SECTOR..(at + 1) * SECTOR;
                if mode == 1 || mode == 2 && random.bool() {
                    kept.bytes[span.clone()].copy_from_slice(&file.bytes[span]);
                } else if mode == 2 && kept.bytes[span.clone()] != file.bytes[span.clone()] {
                    kept.bytes[span].fill(0xEE);
                }
            }
        }
        self.files = files;
        (self.synced_len, self.synced_files) = (self.journal.len(), self.files.clone());
    }

    /// What is visible of a fragment without the journal.
    pub fn file_sector(&self, object: ObjectId, at: usize) -> Result<Vec<u8>, StoreError> {
        self.files.get(&object).map_or(Ok(vec![0; SECTOR]), |f| f.sector(at))
    }
}

impl ShardStore for MemStore {
    fn append(&mut self, _: PgId, item: Item<'_>) -> Result<Lsn, StoreError> {
        Ok(self.push(match item {
            Item::Record(record) => Stored::Record(record.clone()),
            Item::Delta(delta) => Stored::Delta(delta.clone()),
        }))
    }

    fn is_unwritten(&mut self, _: PgId, object: ObjectId, range: Range<u64>) -> bool {
        self.files.get(&object).is_none_or(|f| sectors(range).all(|at| f.crcs[at] == 0))
    }

    fn write_direct(&mut self, _: PgId, object: ObjectId, offset: u64, data: &Bytes) -> Result<Box<[u32]>, StoreError> {
        let file = self.files.entry(object).or_insert_with(File::new);
        file.bytes[offset as usize..offset as usize + data.len()].copy_from_slice(data);
        Ok(data.chunks(SECTOR).map(|s| crc32c::crc32c(s).max(1)).collect())
    }

    fn apply(&mut self, _: PgId, _: &Profile, object: ObjectId, changes: &[Change<'_>]) -> Result<(), StoreError> {
        for change in changes {
            if matches!(change, Change::Delete) {
                self.files.remove(&object);
                continue;
            }
            let file = self.files.entry(object).or_insert_with(File::new);
            match *change {
                Change::Write { offset, data, logical_end } => {
                    file.bytes[offset as usize..offset as usize + data.len()].copy_from_slice(data);
                    for (at, s) in sectors(offset..offset + data.len() as u64).zip(data.chunks(SECTOR)) {
                        file.crcs[at] = crc32c::crc32c(s).max(1);
                    }
                    file.logical_end = file.logical_end.max(logical_end);
                }
                Change::Publish { offset, crcs, logical_end } => {
                    let first = offset as usize / SECTOR;
                    file.crcs[first..first + crcs.len()].copy_from_slice(crcs);
                    file.logical_end = file.logical_end.max(logical_end);
                }
                Change::Punch { offset, length, logical_end } => {
                    file.crcs[sectors(offset..offset + length)].fill(0);
                    file.logical_end = file.logical_end.max(logical_end);
                }
                Change::Truncate { offset, logical_end } => {
                    file.crcs[sectors(offset..u64::MAX)].fill(0);
                    file.logical_end = logical_end;
                }
                Change::Delete | Change::Nothing => {}
            }
        }
        Ok(())
    }

    fn objects(&mut self, _: PgId) -> Result<Vec<ObjectId>, StoreError> {
        Ok(self.files.keys().copied().collect())
    }
}
