//! Hot messages between a session (a client's mount) and a shard (an OSD's part of a PG).
//!
//! Contract: fixed little-endian layouts, no padding, every bit pattern decodes; meaning is checked
//! by the receiver. The protocol that they carry is in docs/design/write-path.md.
//!
//! All offsets and lengths of fragments are in bytes and multiples of
//! [`crate::Profile::SECTOR_BYTES`].

use crate::ids::{AttachId, Epoch, Gfid, ObjectId, PgId, Seq, SessionId, ShardSet};
use serde::{Deserialize, Serialize};
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Begins every message from a session to a shard.
///
/// | bytes | field | meaning |
/// |---|---|---|
/// | 0..8 | pg | the PG |
/// | 8..16 | epoch | the PG's epoch as the session knows it |
/// | 16..24 | session | who |
/// | 24..32 | attach | the number of the attach that this message belongs to |
/// | 32..40 | stable | all writes of the session up to here are durable on every shard they touch |
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct ShardHead {
    /// See the table; read with [`ShardHead::pg`].
    pub raw_pg: U64,
    /// See the table.
    pub raw_epoch: U64,
    /// See the table.
    pub raw_session: U64,
    /// See the table.
    pub raw_attach: U64,
    /// See the table.
    pub raw_stable: U64,
}

impl ShardHead {
    /// The head of a message of `session`.
    pub fn new(pg: PgId, epoch: Epoch, session: SessionId, attach: AttachId, stable: Seq) -> Self {
        Self {
            raw_pg: pg.to_u64().into(),
            raw_epoch: epoch.get().into(),
            raw_session: session.get().into(),
            raw_attach: attach.get().into(),
            raw_stable: stable.get().into(),
        }
    }

    /// The PG.
    pub fn pg(&self) -> PgId {
        PgId::from_u64(self.raw_pg.get())
    }

    /// The PG's epoch as the session knows it.
    pub fn epoch(&self) -> Epoch {
        Epoch::new(self.raw_epoch.get())
    }

    /// Who.
    pub fn session(&self) -> SessionId {
        SessionId::new(self.raw_session.get())
    }

    /// The attach that the message belongs to.
    pub fn attach(&self) -> AttachId {
        AttachId::new(self.raw_attach.get())
    }

    /// All writes up to here are durable on every shard they touch.
    pub fn stable(&self) -> Seq {
        Seq::new(self.raw_stable.get())
    }
}

/// Which object, as it stands in messages and disk headers.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct WireObject {
    raw_gfid: U128,
    raw_index: U32,
}

impl From<ObjectId> for WireObject {
    fn from(object: ObjectId) -> Self {
        Self { raw_gfid: object.gfid.get().into(), raw_index: object.index.into() }
    }
}

impl From<WireObject> for ObjectId {
    fn from(wire: WireObject) -> Self {
        Self { gfid: Gfid::new(wire.raw_gfid.get()), index: wire.raw_index.get() }
    }
}

/// Begins an attach: the session introduces itself to the shard in this epoch and after every
/// reconnect.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct AttachRequest {
    /// Whose.
    pub head: ShardHead,
    /// The last reported write that touches this shard (model: `owed`).
    pub owed: U64,
}

/// What a record does to the fragment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum Op {
    /// The data replaces `length` bytes at `offset`.
    Write = 0,
    /// `length` bytes at `offset` become a hole.
    Punch = 1,
    /// Everything from `offset` on becomes a hole, and `logical_end` is set even if it was greater.
    Truncate = 2,
    /// The object ceases to exist.
    Delete = 3,
    /// Nothing happens to the object: the record only takes its place in the order.
    Nothing = 4,
}

impl Op {
    /// The operation with this number, if there is one.
    pub const fn from_u8(raw: u8) -> Option<Op> {
        Some(match raw {
            0 => Op::Write,
            1 => Op::Punch,
            2 => Op::Truncate,
            3 => Op::Delete,
            4 => Op::Nothing,
            _ => return None,
        })
    }
}

/// A record of a session's sequence of writes to a PG, as one shard gets it. The bytes are the
/// frame's data segment.
///
/// | bytes | field | meaning |
/// |---|---|---|
/// | 0..40 | head | |
/// | 40..48 | seq | the session's number for this write in this PG |
/// | 48..56 | pred | the session's record before it on this shard; 0: none |
/// | 56..76 | object | gfid, index |
/// | 76..77 | op | [`Op`] |
/// | 77..78 | flags | 0 |
/// | 78..80 | touch | the shards that the write touches, as bits |
/// | 80..88 | offset | in the fragment, in bytes |
/// | 88..92 | length | bytes of the fragment concerned; for `Write` that of the data segment |
/// | 92..100 | logical_end | where the object's user data ends, as the writer knows it, in user bytes |
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct WriteRequest {
    /// Whose.
    pub head: ShardHead,
    /// See the table.
    pub seq: U64,
    /// See the table.
    pub pred: U64,
    /// See the table.
    pub object: WireObject,
    /// See the table.
    pub op: u8,
    /// See the table.
    pub flags: u8,
    /// See the table.
    pub touch: U16,
    /// See the table.
    pub offset: U64,
    /// See the table.
    pub length: U32,
    /// See the table.
    pub logical_end: U64,
}

impl WriteRequest {
    /// The shards that the write touches.
    pub fn touch(&self) -> ShardSet {
        ShardSet::from_bits(self.touch.get())
    }
}

/// Tells the stable mark when no other message does.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct MarkRequest {
    /// Whose.
    pub head: ShardHead,
    /// Bits: [`MarkRequest::SYNC`], [`MarkRequest::CLOSE`].
    pub flags: U16,
}

impl MarkRequest {
    /// Sync at once and acknowledge when done (fsync).
    pub const SYNC: u16 = 1;
    /// The session writes no more to this PG: everything up to `stable` is all there ever was.
    pub const CLOSE: u16 = 2;
}

/// What a session may have on its way to one core of an OSD, in the unit of [`space_taken`]: writes
/// that not all shards have acknowledged. Each core keeps space for it, for every session.
pub const SESSION_WINDOW_BYTES: u64 = 8 << 20;

/// Bytes of a block of a file system: what a file's space is counted in.
const BLOCK_BYTES: u64 = 4096;

/// Bytes of disk that a new fragment takes at most without data: its header, and blocks of its
/// table of checksums.
pub const SPACE_OF_FRAGMENT: u64 = 3 * BLOCK_BYTES;

/// Bytes of disk that so many bytes take in a fragment that is there, at most: with checksums, and
/// blocks filled in part.
pub const fn space_of_data(bytes: u64) -> u64 {
    (bytes + bytes / 128).next_multiple_of(BLOCK_BYTES) + BLOCK_BYTES
}

/// Bytes of disk that a write of so many fragment bytes takes in its fragment at most.
pub const fn space_taken(fragment_bytes: u64) -> u64 {
    space_of_data(fragment_bytes) + SPACE_OF_FRAGMENT
}

/// What a shard holds of a session's records; answers attaches and writes (one for many), and
/// reports syncs.
///
/// | bytes | field | meaning |
/// |---|---|---|
/// | 0..8 | pg | |
/// | 8..16 | epoch | the PG's epoch as the shard knows it |
/// | 16..24 | attach | the attach that this belongs to; others must ignore it |
/// | 24..32 | tail | the session's last record here |
/// | 32..40 | durable | the session's last record here that outlives a power loss |
/// | 40..48 | free | bytes that the OSD will still take, beside [`SESSION_WINDOW_BYTES`] of every session; 0: full |
/// | 48..49 | status | [`Status`] |
/// | 49..50 | flags | bits: [`AckMessage::HELLO`], [`AckMessage::HOLD`] |
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct AckMessage {
    /// See the table.
    pub pg: U64,
    /// See the table.
    pub epoch: U64,
    /// See the table.
    pub attach: U64,
    /// See the table.
    pub tail: U64,
    /// See the table.
    pub durable: U64,
    /// See the table.
    pub free: U64,
    /// See the table.
    pub status: u8,
    /// See the table.
    pub flags: u8,
}

impl AckMessage {
    /// Answers an attach.
    pub const HELLO: u8 = 1;
    /// The journal of this core is at its limit: the session begins no more writes to it until an
    /// acknowledgement of the core comes without this bit. What is on its way is taken.
    pub const HOLD: u8 = 2;
}

/// Asks for a range of a fragment.
///
/// | bytes | field | meaning |
/// |---|---|---|
/// | 0..40 | head | |
/// | 40..48 | after | the session's last write to this shard before the read; the shard must have it |
/// | 48..68 | object | gfid, index |
/// | 68..76 | offset | in the fragment, in bytes |
/// | 76..80 | length | in bytes |
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct ReadRequest {
    /// Whose.
    pub head: ShardHead,
    /// See the table.
    pub after: U64,
    /// See the table.
    pub object: WireObject,
    /// See the table.
    pub offset: U64,
    /// See the table.
    pub length: U32,
}

/// Begins the reply to a read; with [`Status::Ok`] the data segment holds the bytes. A data segment
/// shorter than what was asked for means that the rest is hole (zeros): a fragment's unwritten end
/// is not sent.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct ReadReply {
    /// The attach of the request.
    pub attach: U64,
    /// [`Status`].
    pub status: u8,
    /// 0.
    pub flags: u8,
}

/// What a shard knows of an object.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct StatReply {
    /// The attach of the request.
    pub attach: U64,
    /// Where the object's user data ends, in user bytes; 0 if it does not exist.
    pub logical_end: U64,
    /// Bytes that the fragment's data takes on the disk, with what is to be written to it still.
    pub allocated: U64,
    /// [`Status`].
    pub status: u8,
    /// Bit 0: the object exists here.
    pub flags: u8,
}

/// What of a range of a fragment has space on the disk, with its checksums.
///
/// | bytes | field | meaning |
/// |---|---|---|
/// | 0..8 | attach | the attach of the request |
/// | 8..16 | missing | bytes of disk that it lacks, or that were taken for it |
/// | 16..24 | free | bytes that the disk takes before it counts as full |
/// | 24..25 | status | [`Status`]; [`Status::NoSpace`]: `missing` is more than `free` |
/// | 25..26 | flags | bits: [`SpaceReply::RESERVES`] |
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct SpaceReply {
    /// See the table.
    pub attach: U64,
    /// See the table.
    pub missing: U64,
    /// See the table.
    pub free: U64,
    /// See the table.
    pub status: u8,
    /// See the table.
    pub flags: u8,
}

impl SpaceReply {
    /// What holds the fragment can reserve space, and tell what is reserved.
    pub const RESERVES: u8 = 1;
}

/// Where a fragment holds data, within the range asked for, in order; what lies between is hole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtentsReply {
    /// Whether the question could be answered.
    pub status: Status,
    /// (offset, length) in bytes of the fragment; at most 4096, then `more` is set.
    pub data: Vec<(u64, u64)>,
    /// There may be more behind the last one.
    pub more: bool,
}

/// Objects of a file in one [`ObjectsReply`] at most: 16 KiB of a message.
pub const OBJECTS_LISTED_MAX: usize = 4096;

/// The objects of one file that a shard holds, from the one asked for on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectsReply {
    /// Whether the question could be answered.
    pub status: Status,
    /// Their indexes, ascending; at most [`OBJECTS_LISTED_MAX`], then `more` is set.
    pub indexes: Vec<u32>,
    /// Bytes that the data of each takes on the disk, as [`StatReply::allocated`], if that was
    /// asked for; else nothing.
    pub taken: Vec<u64>,
    /// There may be more behind the last one.
    pub more: bool,
}

/// Why a shard did or did not do what it was asked.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// The epoch of the message is not the shard's: learn the map, attach anew.
    StaleEpoch = 1,
    /// The attach is not the session's last: attach anew.
    StaleAttach = 2,
    /// The PG is not active, or the shard is not a member that may answer.
    NotActive = 3,
    /// A record before this one is missing here: attach anew and send again.
    Behind = 4,
    /// The session is dead to the cluster: it may neither read nor write.
    Fenced = 5,
    /// The bytes fail their checksum: take them from other shards; the shard repairs itself.
    Corrupt = 6,
    /// The disk is full: nothing was taken.
    NoSpace = 7,
    /// The disk failed.
    Io = 8,
    /// The journal is full: try again shortly.
    Busy = 9,
    /// The request makes no sense (range, operation).
    Invalid = 10,
}

impl Status {
    /// The status with this number; an unknown one counts as [`Status::Invalid`].
    pub const fn from_u8(raw: u8) -> Status {
        match raw {
            0 => Status::Ok,
            1 => Status::StaleEpoch,
            2 => Status::StaleAttach,
            3 => Status::NotActive,
            4 => Status::Behind,
            5 => Status::Fenced,
            6 => Status::Corrupt,
            7 => Status::NoSpace,
            8 => Status::Io,
            9 => Status::Busy,
            _ => Status::Invalid,
        }
    }
}
