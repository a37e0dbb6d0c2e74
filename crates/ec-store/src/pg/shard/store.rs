//! The storage seam of a shard, and what goes through it.
//!
//! Contract: [`ShardStore::append`] only buffers; the owner flushes before answers leave.
//! Everything else reaches the page cache before it returns. Positions grow with every append.

use crate::fragment::{Placement, stored};
use bytes::Bytes;
use protocol::shard::{Op, Status};
use protocol::{ObjectId, PgId, Profile, Seq, SessionId, ShardIndex, ShardSet};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// A position in a core's journal: that of an item's first byte. Later items have greater ones.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Lsn(pub u64);

impl Lsn {
    /// Of what no record brings: later than all of them.
    pub const NEVER: Lsn = Lsn(u64::MAX);
}

/// Where a record's bytes are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Payload {
    /// In the journal (and here).
    Journalled(Summed),
    /// In the fragment file, not published yet; the journal holds the CRC32C of each sector.
    Direct(Box<[u32]>),
    /// In places of the fragment file where no slot lies yet, see [`Placed`].
    Placed(Placed),
    /// There are none, or they are applied and were let go.
    Nothing,
}

/// Bytes of whole slots that are in places of the fragment file, beside the old ones if there are
/// such. The journal holds this.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placed {
    /// Bytes of a slot.
    pub slot_bytes: u32,
    /// The place of each slot.
    pub places: Box<[u16]>,
    /// CRC32C of each sector.
    pub crcs: Box<[u32]>,
}

impl Placed {
    /// Where they are.
    pub fn placement(&self) -> Placement<'_> {
        Placement { slot_bytes: self.slot_bytes, places: &self.places }
    }
}

/// Bytes, with the checksums of their sectors if these are known already.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Summed {
    bytes: Bytes,
    crcs: Option<Box<[u32]>>,
}

impl Summed {
    /// `crcs`: CRC32C of each sector as the frame's receiver made them; not of use if they are not
    /// as many as sectors.
    pub fn new(bytes: Bytes, crcs: Option<Box<[u32]>>) -> Self {
        let mut crcs =
            crcs.filter(|crcs| crcs.len() * Profile::SECTOR_BYTES as usize == bytes.len());
        crcs.iter_mut().flatten().for_each(|crc| *crc = stored(*crc));
        Self { bytes, crcs }
    }

    /// The checksum of each sector as fragments store it.
    pub fn crcs(&self) -> Option<&[u32]> {
        self.crcs.as_deref()
    }
}

impl From<Bytes> for Summed {
    fn from(bytes: Bytes) -> Self {
        Self { bytes, crcs: None }
    }
}

impl std::ops::Deref for Summed {
    type Target = Bytes;

    fn deref(&self) -> &Bytes {
        &self.bytes
    }
}

/// A write to one object as one shard has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Who wrote it.
    pub session: SessionId,
    /// The session's number for it.
    pub seq: Seq,
    /// The object.
    pub object: ObjectId,
    /// What is done to it.
    pub op: Op,
    /// The shards that it touches.
    pub touch: ShardSet,
    /// In the fragment, in bytes.
    pub offset: u64,
    /// In bytes.
    pub length: u32,
    /// Where the object's user data ends.
    pub logical_end: u64,
    /// The bytes.
    pub payload: Payload,
}

impl Record {
    /// The part of the fragment that the record changes, in bytes.
    pub fn span(&self) -> Range<u64> {
        match self.op {
            Op::Write | Op::Punch => self.offset..self.offset + u64::from(self.length),
            Op::Truncate => self.offset..u64::MAX,
            Op::Delete => 0..u64::MAX,
            Op::Nothing => 0..0,
        }
    }

    /// Are its bytes in the fragment file only?
    pub fn is_direct(&self) -> bool {
        matches!(self.payload, Payload::Direct(_) | Payload::Placed(_))
    }

    /// The slots that it puts elsewhere, each as a range in bytes of the fragment.
    pub fn slots(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let (count, bytes) = match &self.payload {
            Payload::Placed(placed) => (placed.places.len() as u64, u64::from(placed.slot_bytes)),
            _ => (0, 0),
        };
        let offset = self.offset;
        (0..count).map(move |slot| offset + slot * bytes..offset + (slot + 1) * bytes)
    }

    /// The change of the fragment file that applies it; it is at this position of the journal.
    pub fn change(&self, lsn: Lsn) -> Change<'_> {
        let (offset, logical_end) = (self.offset, self.logical_end);
        match (self.op, &self.payload) {
            (Op::Write, Payload::Journalled(data)) => {
                Change::Write { lsn, offset, data, crcs: data.crcs(), logical_end }
            }
            (Op::Write, Payload::Direct(crcs)) => Change::Publish { offset, crcs, logical_end },
            (Op::Write, Payload::Placed(placed)) => {
                Change::Point { lsn, offset, placed, logical_end }
            }
            (Op::Punch, _) => Change::Punch { offset, length: u64::from(self.length), logical_end },
            (Op::Truncate, _) => Change::Truncate { offset, logical_end },
            (Op::Delete, _) => Change::Delete,
            (Op::Write | Op::Nothing, _) => Change::Nothing,
        }
    }
}

/// A change of a fragment file. `logical_end` becomes at least, for `Truncate` exactly, what is
/// given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change<'a> {
    /// The bytes at `offset` are replaced.
    Write {
        /// The record's: what the file shows as a later one left it stays (Rule: PlaceAhead).
        lsn: Lsn,
        /// In bytes.
        offset: u64,
        /// The bytes, whole sectors.
        data: &'a Bytes,
        /// Checksum of each sector ([`crate::fragment::sector_crc`]), if it is known.
        crcs: Option<&'a [u32]>,
        /// In user bytes.
        logical_end: u64,
    },
    /// What [`ShardStore::write_direct`] put there becomes visible.
    Publish {
        /// In bytes.
        offset: u64,
        /// CRC32C of each sector.
        crcs: &'a [u32],
        /// In user bytes.
        logical_end: u64,
    },
    /// What [`ShardStore::place`] put into places becomes the bytes of slots.
    Point {
        /// The record's: until it is trimmed the places that the slots leave are not taken (Rule:
        /// PlaceKeep).
        lsn: Lsn,
        /// In bytes.
        offset: u64,
        /// Where, and with what checksums.
        placed: &'a Placed,
        /// In user bytes.
        logical_end: u64,
    },
    /// The range becomes a hole.
    Punch {
        /// In bytes.
        offset: u64,
        /// In bytes.
        length: u64,
        /// In user bytes.
        logical_end: u64,
    },
    /// Everything from `offset` on becomes a hole.
    Truncate {
        /// In bytes.
        offset: u64,
        /// In user bytes.
        logical_end: u64,
    },
    /// The fragment ceases to exist.
    Delete,
    /// Nothing.
    Nothing,
}

/// A change of what a PG's shard knows beside records. Each is a journal item; replayed in order
/// they give the state.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Delta {
    /// Records of the session beyond this are dropped; everything up to it is decided.
    Floor(SessionId, Seq),
    /// The session is resolved with this cut.
    Closed(SessionId, Seq),
    /// The shard holds everything but what its `begun` list names, not nothing.
    Whole,
    /// The rebuilding of these objects was begun.
    Begun(Vec<ObjectId>),
    /// The rebuilding of these objects has ended.
    Done(Vec<ObjectId>),
    /// These objects are no longer dirty for an absent shard.
    Clean(ShardIndex, Vec<ObjectId>),
    /// The object was rebuilt: its records up to these marks are dropped (`None`: all), which
    /// become floors.
    Rebuilt(ObjectId, Vec<(SessionId, Option<Seq>)>),
    /// Records from this position on, and before this item, are dropped: the bytes of the first one
    /// were lost. Their objects are to be rebuilt.
    CutFrom(Lsn),
    /// An absent shard has noted what it misses, as its dirty list was cut short: only what was
    /// trimmed since counts.
    Noted(ShardIndex),
}

/// An item for the journal.
#[derive(Clone, Copy, Debug)]
pub enum Item<'a> {
    /// A record with its bytes, or their checksums.
    Record(&'a Record),
    /// A change beside records.
    Delta(&'a Delta),
}

/// Why the store did not do something.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The journal is at its limit until something is trimmed.
    #[error("the journal is full")]
    JournalFull,
    /// The disk is full.
    #[error("the disk is full")]
    NoSpace,
    /// The bytes fail their checksum.
    #[error("bytes fail their checksum")]
    Corrupt,
    /// The disk failed. The store takes nothing more until it is opened again.
    #[error("storage failed: {0}")]
    Io(String),
}

impl StoreError {
    /// What a session is told.
    pub fn status(&self) -> Status {
        match self {
            StoreError::JournalFull => Status::Busy,
            StoreError::NoSpace => Status::NoSpace,
            StoreError::Corrupt => Status::Corrupt,
            StoreError::Io(_) => Status::Io,
        }
    }
}

/// Journal and fragment files as the shards of one core use them.
pub trait ShardStore {
    /// Buffers an item of `pg` for the journal.
    ///
    /// # Errors
    /// `JournalFull` (never for deltas), `NoSpace`, `Io`; nothing was taken.
    fn append(&mut self, pg: PgId, item: Item<'_>) -> Result<Lsn, StoreError>;

    /// Is the whole range of the fragment file hole, as far as can be told without waiting for the
    /// disk?
    fn is_unwritten(&mut self, pg: PgId, object: ObjectId, range: Range<u64>) -> bool;

    /// Puts bytes into a hole of the fragment file, which stays one to readers. Gives the CRC32C of
    /// each sector.
    ///
    /// # Errors
    /// `NoSpace`, `Io`; readers see no change.
    fn write_direct(
        &mut self,
        pg: PgId,
        object: ObjectId,
        offset: u64,
        data: &Summed,
    ) -> Result<Box<[u32]>, StoreError>;

    /// Puts the bytes of whole slots into places of the fragment file where no slot lies, and which
    /// no record names that may be in the journal when it is read again (Rule: PlaceKeep); readers
    /// see the old bytes. `None`, with nothing done: these are no whole slots, or there is no room
    /// for old and new bytes at once.
    ///
    /// # Errors
    /// `NoSpace`, `Io`; readers see no change.
    fn place(
        &mut self,
        pg: PgId,
        object: ObjectId,
        offset: u64,
        data: &Summed,
    ) -> Result<Option<Placed>, StoreError>;

    /// Changes a fragment file, making it if it is missing. Repeating changes is harmless.
    ///
    /// # Errors
    /// `NoSpace`, `Io`; any part may have been done.
    fn apply(
        &mut self,
        pg: PgId,
        profile: &Profile,
        object: ObjectId,
        changes: &[Change<'_>],
    ) -> Result<(), StoreError>;

    /// All objects of the PG that have a fragment file, in any order.
    ///
    /// # Errors
    /// `Io`.
    fn objects(&mut self, pg: PgId) -> Result<Vec<ObjectId>, StoreError>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fragment::sector_crc;

    #[test]
    fn sums_count_if_they_are_of_all_sectors() {
        let bytes = Bytes::from([[1; 512], [2; 512]].concat());
        let sums = |crcs: &[u32]| {
            Summed::new(bytes.clone(), Some(crcs.into())).crcs().map(<[u32]>::to_vec)
        };
        let found: Vec<u32> = bytes.chunks(512).map(crc32c::crc32c).collect();
        assert_eq!(sums(&found), Some(bytes.chunks(512).map(sector_crc).collect()));
        assert_eq!(sums(&[0, 7]), Some(vec![1, 7]), "0 is a hole's");
        assert_eq!((sums(&[1]), sums(&[1, 2, 3]), sums(&[])), (None, None, None));
        assert_eq!(Summed::from(bytes.clone()).crcs(), None);
    }
}
