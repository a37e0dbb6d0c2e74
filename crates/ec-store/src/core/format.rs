//! What a core writes into its journal.
//!
//! Contract: kinds and layouts are part of the on-disk format; every byte read back is checked,
//! nothing is trusted.
//!
//! | kind | front | data |
//! |---|---|---|
//! | 1 record | [`RecordHead`] | the bytes of the fragment |
//! | 2 direct record | [`RecordHead`] | CRC32C of each sector, little-endian; the bytes are in the fragment file |
//! | 3 delta | PG (8 bytes), then postcard [`Delta`] | |
//! | 4 checkpoint begins | postcard [`CheckpointBegin`] | |
//! | 5 checkpoint, one PG | PG (8 bytes), then postcard [`PgState`] | |
//! | 6 checkpoint ends | its number (8 bytes) | |
//! | 7 placed record | [`RecordHead`] | for each slot its place (2 bytes), then CRC32C of each sector; little-endian; the bytes are in the fragment file |

use crate::fragment::is_slot_size;
use crate::pg::shard::{Delta, Lsn, Payload, PgState, Placed, Record};
use bytes::Bytes;
use protocol::shard::{Op, WireObject};
use protocol::{PgId, Profile, Seq, SessionId, ShardSet};
use serde::{Deserialize, Serialize};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub(super) const RECORD: u8 = 1;
pub(super) const DIRECT: u8 = 2;
pub(super) const DELTA: u8 = 3;
pub(super) const CHECKPOINT_BEGIN: u8 = 4;
pub(super) const CHECKPOINT_PG: u8 = 5;
pub(super) const CHECKPOINT_END: u8 = 6;
pub(super) const PLACED: u8 = 7;

/// The head of a record.
///
/// | bytes | field |
/// |---|---|
/// | 0..8 | PG |
/// | 8..16 | session |
/// | 16..24 | number |
/// | 24..44 | object |
/// | 44..45 | [`Op`] |
/// | 45..46 | 0 |
/// | 46..48 | touched shards, as bits |
/// | 48..56 | offset in the fragment, in bytes |
/// | 56..60 | length, in bytes |
/// | 60..68 | end of user data, in user bytes |
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RecordHead {
    pg: U64,
    session: U64,
    seq: U64,
    object: WireObject,
    op: u8,
    zero: u8,
    touch: U16,
    offset: U64,
    length: U32,
    logical_end: U64,
}

impl RecordHead {
    pub fn new(pg: PgId, record: &Record) -> Self {
        Self {
            pg: pg.to_u64().into(),
            session: record.session.get().into(),
            seq: record.seq.get().into(),
            object: record.object.into(),
            op: record.op as u8,
            zero: 0,
            touch: record.touch.bits().into(),
            offset: record.offset.into(),
            length: record.length.into(),
            logical_end: record.logical_end.into(),
        }
    }
}

/// Says that a checkpoint of all PGs follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct CheckpointBegin {
    /// Its number.
    pub number: u64,
    /// Records before this are applied and in synced files: they are no longer looked at.
    pub upto: Lsn,
}

/// An entry of the journal, decoded.
#[derive(Debug)]
pub(super) enum Entry {
    Record(PgId, Record),
    Delta(PgId, Delta),
    CheckpointBegin(CheckpointBegin),
    CheckpointPg(PgId, PgState),
    CheckpointEnd(u64),
}

/// Decodes an entry; `None`: it is not one that this program writes.
pub(super) fn decode(kind: u8, front: &Bytes, data: &Bytes) -> Option<Entry> {
    Some(match kind {
        RECORD | DIRECT | PLACED => {
            let (pg, record) = decode_record(kind, front, data)?;
            Entry::Record(pg, record)
        }
        DELTA => Entry::Delta(pg_of(front)?, postcard::from_bytes(&front[8..]).ok()?),
        CHECKPOINT_BEGIN => Entry::CheckpointBegin(postcard::from_bytes(front).ok()?),
        CHECKPOINT_PG => {
            Entry::CheckpointPg(pg_of(front)?, postcard::from_bytes(&front[8..]).ok()?)
        }
        CHECKPOINT_END => {
            Entry::CheckpointEnd(u64::from_le_bytes(front.get(..8)?.try_into().ok()?))
        }
        _ => return None,
    })
}

fn pg_of(front: &[u8]) -> Option<PgId> {
    Some(PgId::from_u64(u64::from_le_bytes(front.get(..8)?.try_into().ok()?)))
}

fn decode_record(kind: u8, front: &[u8], data: &Bytes) -> Option<(PgId, Record)> {
    let head = RecordHead::read_from_bytes(front).ok()?;
    let op = Op::from_u8(head.op)?;
    let length = head.length.get();
    head.offset.get().checked_add(u64::from(length))?;
    let payload = match (op, kind) {
        (Op::Write, DIRECT) => Payload::Direct(decode_crcs(data, length)?),
        (Op::Write, PLACED) => Payload::Placed(decode_placed(data, length)?),
        (Op::Write, _) => {
            (data.len() == length as usize).then(|| Payload::Journalled(data.clone().into()))?
        }
        _ => Payload::Nothing,
    };
    let record = Record {
        session: SessionId::new(head.session.get()),
        seq: Seq::new(head.seq.get()),
        object: head.object.into(),
        op,
        touch: ShardSet::from_bits(head.touch.get()),
        offset: head.offset.get(),
        length,
        logical_end: head.logical_end.get(),
        payload,
    };
    Some((PgId::from_u64(head.pg.get()), record))
}

/// The checksums of all sectors of so many bytes.
fn decode_crcs(data: &[u8], length: u32) -> Option<Box<[u32]>> {
    let crcs: Box<[u32]> =
        data.chunks_exact(4).map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect();
    let is_all = data.len() == crcs.len() * 4
        && crcs.len() as u64 * u64::from(Profile::SECTOR_BYTES) == u64::from(length);
    is_all.then_some(crcs)
}

/// The data of a placed record.
pub(super) fn encode_placed(placed: &Placed) -> Vec<u8> {
    let places = placed.places.iter().flat_map(|place| place.to_le_bytes());
    places.chain(placed.crcs.iter().flat_map(|crc| crc.to_le_bytes())).collect()
}

fn decode_placed(data: &[u8], length: u32) -> Option<Placed> {
    let crcs_bytes = (length / Profile::SECTOR_BYTES) as usize * 4;
    let (places, crcs) = data.split_at_checked(data.len().checked_sub(crcs_bytes)?)?;
    let places: Box<[u16]> =
        places.chunks_exact(2).map(|place| u16::from_le_bytes([place[0], place[1]])).collect();
    let slot_bytes = length.checked_div(places.len() as u32)?;
    let is_whole = is_slot_size(slot_bytes)
        && slot_bytes as usize * places.len() == length as usize
        && places.len() * 2 + crcs_bytes == data.len();
    let crcs = decode_crcs(crcs, length).filter(|_| is_whole)?;
    Some(Placed { slot_bytes, places, crcs })
}

/// The front of an entry that begins with its PG.
pub(super) fn pg_front<T: Serialize>(pg: PgId, value: &T) -> Vec<u8> {
    let front = pg.to_u64().to_le_bytes().to_vec();
    postcard::to_extend(value, front).expect("journal entries contain only encodable types")
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::{Gfid, ObjectId, PoolId};

    #[test]
    fn records_and_deltas_round_trip() {
        let pg = PgId { pool: PoolId::new(3), number: 9 };
        let object = ObjectId { gfid: Gfid::of_inode(5), index: 2 };
        let placed = Placed { slot_bytes: 512, places: [9, 3].into(), crcs: [1, 2].into() };
        let journalled = Payload::Journalled(Bytes::from(vec![7; 1024]).into());
        for payload in [journalled, Payload::Direct([1, 2].into()), Payload::Placed(placed)] {
            let (session, seq, touch) = (SessionId::new(4), Seq::new(8), ShardSet::first(3));
            let (op, offset, length, logical_end) = (Op::Write, 512, 1024, 99);
            let record =
                Record { session, seq, object, op, touch, offset, length, logical_end, payload };
            let (kind, data) = match &record.payload {
                Payload::Direct(crcs) => {
                    (DIRECT, crcs.iter().flat_map(|c| c.to_le_bytes()).collect())
                }
                Payload::Placed(placed) => (PLACED, encode_placed(placed).into()),
                Payload::Journalled(data) => (RECORD, Bytes::clone(data)),
                Payload::Nothing => unreachable!("not tried"),
            };
            let front = Bytes::copy_from_slice(RecordHead::new(pg, &record).as_bytes());
            assert_eq!(decode_record(kind, &front, &data), Some((pg, record)));
            assert!(decode(kind, &front, &data.slice(4..)).is_none());
            assert!(decode(kind, &front.slice(1..), &data).is_none());
        }
        let (session, seq, op, touch, logical_end) =
            (SessionId::new(4), Seq::new(8), Op::Punch, ShardSet::first(3), 0);
        let (offset, payload) = (u64::MAX - 511, Payload::Nothing);
        let fits =
            Record { session, seq, object, op, touch, offset, length: 511, logical_end, payload };
        let beyond = Record { length: 512, ..fits.clone() };
        for (record, is_one) in [(fits, true), (beyond, false)] {
            let front = Bytes::copy_from_slice(RecordHead::new(pg, &record).as_bytes());
            assert_eq!(decode(RECORD, &front, &Bytes::new()).is_some(), is_one, "{record:?}");
        }
        let delta = Delta::Rebuilt(object, vec![(SessionId::new(1), None)]);
        let front = Bytes::from(pg_front(pg, &delta));
        assert!(
            matches!(decode(DELTA, &front, &Bytes::new()), Some(Entry::Delta(p, d)) if p == pg && d == delta)
        );
        assert!(decode(99, &front, &Bytes::new()).is_none());
    }
}
