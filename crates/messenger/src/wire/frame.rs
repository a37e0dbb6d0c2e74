//! Frames: one fixed header, a front segment, a data segment, and their checksums.
//!
//! All integers are little-endian. A frame on the wire:
//!
//! | offset | bytes | field | meaning |
//! |---|---|---|---|
//! | 0 | 4 | magic | `"TRFL"` |
//! | 4 | 1 | version | [`FRAME_VERSION`] |
//! | 5 | 1 | class | [`TrafficClass`]: 1 control, 2 client, 3 background |
//! | 6 | 2 | kind | what the front holds; 0xff00 and up belong to the messenger |
//! | 8 | 4 | flags | bit 31: reply; bit 30: the data is lent; bits 16..30 reserved for the messenger; the rest belongs to the kind |
//! | 12 | 8 | id | correlation of a call and its reply; 0: one-way |
//! | 20 | 8 | seq | number of this frame in the session, from 1; 0: not numbered, not resent |
//! | 28 | 8 | ack | last sequence number the sender has received |
//! | 36 | 4 | front_len | bytes of front, at most [`FRONT_BYTES_MAX`] |
//! | 40 | 4 | data_len | bytes of data, at most [`DATA_BYTES_MAX`] |
//! | 44 | 4 | header_crc | CRC32C of bytes 0..44 |
//! | 48 | front_len | front | |
//! | .. | data_len | data | if it is lent: 16 bytes that say where it is, see `lending` |
//! | .. | 4 | front_crc | CRC32C of front |
//! | .. | 4 | data_crc | CRC32C of data |
//!
//! Assumed of the network: a stream socket, so bytes arrive in order; they may still be corrupt
//! (offloads, bridges, bad memory). Contract: lengths are checked before anything is allocated; the
//! decoder never panics and never reserves more than one front or one data segment, whatever it is
//! fed.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio_util::codec::{Decoder, Encoder};

use crate::io::buffer::{BUFFER_BYTES_MAX, Pool, PooledBuf};
use crate::shm::{LEASE_BYTES, RegionLease, ShmReceiver};
use crate::wire::checksum::{self, BLOCK_BYTES};

/// First four bytes of every frame, `"TRFL"` read as a little-endian number.
pub const MAGIC: u32 = u32::from_le_bytes(*b"TRFL");
/// Version of the frame layout.
pub const FRAME_VERSION: u8 = 1;
/// Bytes of the fixed header.
pub const HEADER_BYTES: usize = 48;
/// Bytes of checksums after the segments.
pub const TRAILER_BYTES: usize = 8;
/// Bytes a frame takes besides its segments.
pub const OVERHEAD_BYTES: usize = HEADER_BYTES + TRAILER_BYTES;
/// Default and upper limit of the front segment, in bytes: a page of a directory listing or a map
/// fits many times over.
pub const FRONT_BYTES_MAX: usize = 1 << 20;
/// Default and upper limit of the data segment, in bytes: the largest request a kernel client
/// sends, several times over.
pub const DATA_BYTES_MAX: usize = BUFFER_BYTES_MAX;
/// Flag: this frame answers the call with the same id. Set by the messenger.
pub const FLAG_REPLY: u32 = 1 << 31;
/// Flag on the wire: the data is not in the frame but lent.
const FLAG_LENT: u32 = 1 << 30;
/// Message kinds from here up belong to the messenger.
pub const RESERVED_KINDS: u16 = 0xff00;

/// What a message is for. Every frame carries it, a frame with another class byte is a bad frame,
/// and no daemon believes it: the class in which a message is served follows from its kind and
/// from who sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum TrafficClass {
    /// I: heartbeats, map updates.
    Control = 1,
    /// II: client I/O and its replication.
    Client = 2,
    /// III: recovery, backfill, scrub.
    Background = 3,
}

impl TrafficClass {
    /// The classes, I first.
    pub const ALL: [TrafficClass; 3] =
        [TrafficClass::Control, TrafficClass::Client, TrafficClass::Background];

    /// Place in [`TrafficClass::ALL`].
    pub fn index(self) -> usize {
        self as usize - 1
    }

    /// Its number, as settings and metrics have it: I, II, III.
    pub const fn numeral(self) -> &'static str {
        match self {
            TrafficClass::Control => "I",
            TrafficClass::Client => "II",
            TrafficClass::Background => "III",
        }
    }

    fn from_wire(raw: u8) -> Result<TrafficClass, FrameError> {
        match raw {
            1 => Ok(TrafficClass::Control),
            2 => Ok(TrafficClass::Client),
            3 => Ok(TrafficClass::Background),
            other => Err(FrameError::UnknownClass(other)),
        }
    }
}

/// What callers send and receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Traffic class.
    pub class: TrafficClass,
    /// What the front holds; below [`RESERVED_KINDS`].
    pub kind: u16,
    /// Bits 0..16 belong to the kind; the messenger owns the rest.
    pub flags: u32,
    /// Correlation id. Set by the messenger; 0 in one-way messages.
    pub id: u64,
    /// The message proper, at most [`FRONT_BYTES_MAX`] bytes.
    pub front: Bytes,
    /// Bulk bytes, at most [`DATA_BYTES_MAX`].
    pub data: Bytes,
    /// CRC32C of `data`, if the sender has it already; always there on receipt, and checked.
    pub data_crc: Option<u32>,
    /// CRC32C of each [`BLOCK_BYTES`] of `data`: on receipt, where
    /// [`crate::SessionConfig::block_crcs`] asks for them and the data is whole blocks. Never sent.
    pub block_crcs: Option<Box<[u32]>>,
}

/// What is needed to answer a request once its message has been taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyTo {
    /// Class of the request, and so of the reply.
    pub class: TrafficClass,
    /// Correlation id of the request; 0 if it was one-way and wants no reply.
    pub id: u64,
    /// What the request counted for, in bytes.
    pub(crate) bytes: usize,
}

impl Message {
    /// A message with no flags and no id, as [`crate::Connection::send`] and
    /// [`crate::Connection::call`] take it.
    pub fn new(class: TrafficClass, kind: u16, front: Bytes, data: Bytes) -> Message {
        Message { class, kind, flags: 0, id: 0, front, data, data_crc: None, block_crcs: None }
    }

    /// Where the answer goes.
    pub fn reply_to(&self) -> ReplyTo {
        ReplyTo { class: self.class, id: self.id, bytes: self.wire_bytes() }
    }

    /// True if the sender waits for a reply.
    pub fn is_request(&self) -> bool {
        self.id != 0 && self.flags & FLAG_REPLY == 0
    }

    /// True if this answers a call and has not been handed to it yet.
    pub fn is_reply(&self) -> bool {
        self.flags & FLAG_REPLY != 0
    }

    /// Bytes on the wire.
    pub fn wire_bytes(&self) -> usize {
        OVERHEAD_BYTES + self.front.len() + self.data.len()
    }
}

/// A message with its place in the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Sequence number, 0 for frames of the connection itself (acknowledgements, keep-alive).
    pub seq: u64,
    /// Last sequence number the sender had received.
    pub ack: u64,
    /// The message.
    pub message: Message,
}

/// Largest segments a receiver takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameLimits {
    /// Bytes of front, at most [`FRONT_BYTES_MAX`].
    pub front_bytes_max: usize,
    /// Bytes of data, at most [`DATA_BYTES_MAX`].
    pub data_bytes_max: usize,
}

impl Default for FrameLimits {
    fn default() -> FrameLimits {
        FrameLimits { front_bytes_max: FRONT_BYTES_MAX, data_bytes_max: DATA_BYTES_MAX }
    }
}

/// Why a frame was refused. Every one of them ends the TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Not a frame of ours.
    #[error("bad magic {0:#010x}")]
    BadMagic(u32),
    /// A frame layout of another version.
    #[error("frame version {theirs}, this side speaks {ours}")]
    BadVersion {
        /// The version in the frame.
        theirs: u8,
        /// [`FRAME_VERSION`].
        ours: u8,
    },
    /// The front is longer than the limit.
    #[error("front of {len} bytes, at most {max} are taken")]
    FrontTooLong {
        /// Length in the header, in bytes.
        len: usize,
        /// The limit, in bytes.
        max: usize,
    },
    /// The data is longer than the limit.
    #[error("data of {len} bytes, at most {max} are taken")]
    DataTooLong {
        /// Length in the header, in bytes.
        len: usize,
        /// The limit, in bytes.
        max: usize,
    },
    /// The header does not match its checksum.
    #[error("header checksum mismatch")]
    HeaderCrc,
    /// The front does not match its checksum.
    #[error("front checksum mismatch")]
    FrontCrc,
    /// The data does not match its checksum.
    #[error("data checksum mismatch")]
    DataCrc,
    /// A frame is missing, or acknowledges what was never sent.
    #[error("sequence number {got} where {expected} was expected")]
    Sequence {
        /// The number that had to come.
        expected: u64,
        /// The number that came.
        got: u64,
    },
    /// A traffic class that does not exist.
    #[error("unknown traffic class {0}")]
    UnknownClass(u8),
    /// A kind in the messenger's own range that it does not know.
    #[error("unknown kind {0:#06x} in the messenger's range")]
    UnknownKind(u16),
    /// Data that is said to be lent and cannot be.
    #[error("data is lent that was not offered")]
    RegionLease,
}

impl FrameError {
    /// Number of reasons, for arrays of counters.
    pub const REASONS: usize = 11;

    /// Index of the reason, `0..REASONS`.
    pub fn index(&self) -> usize {
        match self {
            FrameError::BadMagic(_) => 0,
            FrameError::BadVersion { .. } => 1,
            FrameError::FrontTooLong { .. } => 2,
            FrameError::DataTooLong { .. } => 3,
            FrameError::HeaderCrc => 4,
            FrameError::FrontCrc => 5,
            FrameError::DataCrc => 6,
            FrameError::Sequence { .. } => 7,
            FrameError::UnknownClass(_) => 8,
            FrameError::UnknownKind(_) => 9,
            FrameError::RegionLease => 10,
        }
    }

    /// Names of the reasons, in the order of [`FrameError::index`].
    pub const NAMES: [&'static str; FrameError::REASONS] = [
        "bad-magic",
        "bad-version",
        "front-too-long",
        "data-too-long",
        "header-crc",
        "front-crc",
        "data-crc",
        "sequence",
        "unknown-class",
        "unknown-kind",
        "loan",
    ];

    /// True if sending the same frame again could not help: the session is given up, not only its
    /// TCP connection.
    pub fn is_fatal(&self) -> bool {
        !matches!(
            self,
            FrameError::HeaderCrc
                | FrameError::FrontCrc
                | FrameError::DataCrc
                | FrameError::BadMagic(_)
        )
    }
}

/// Error type that the codec traits ask for.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// The bytes are no valid frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The transport failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// The fixed header, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    class: TrafficClass,
    kind: u16,
    flags: u32,
    id: u64,
    seq: u64,
    ack: u64,
    front_len: usize,
    data_len: usize,
    is_lent: bool,
}

impl Header {
    fn decode(bytes: &[u8; HEADER_BYTES], limits: &FrameLimits) -> Result<Header, FrameError> {
        let mut rest = &bytes[..];
        let magic = rest.get_u32_le();
        if magic != MAGIC {
            return Err(FrameError::BadMagic(magic));
        }
        let version = rest.get_u8();
        if version != FRAME_VERSION {
            return Err(FrameError::BadVersion { theirs: version, ours: FRAME_VERSION });
        }
        let class = rest.get_u8();
        let kind = rest.get_u16_le();
        let raw_flags = rest.get_u32_le();
        let (flags, is_lent) = (raw_flags & !FLAG_LENT, raw_flags & FLAG_LENT != 0);
        let id = rest.get_u64_le();
        let seq = rest.get_u64_le();
        let ack = rest.get_u64_le();
        let front_len = rest.get_u32_le() as usize;
        let data_len = rest.get_u32_le() as usize;
        if rest.get_u32_le() != crc32c::crc32c(&bytes[..HEADER_BYTES - 4]) {
            return Err(FrameError::HeaderCrc);
        }
        let class = TrafficClass::from_wire(class)?;
        let (front_max, data_max) = (
            limits.front_bytes_max.min(FRONT_BYTES_MAX),
            limits.data_bytes_max.min(DATA_BYTES_MAX),
        );
        if front_len > front_max {
            return Err(FrameError::FrontTooLong { len: front_len, max: front_max });
        }
        if data_len > data_max {
            return Err(FrameError::DataTooLong { len: data_len, max: data_max });
        }
        Ok(Header { class, kind, flags, id, seq, ack, front_len, data_len, is_lent })
    }
}

/// Appends the header and the front of a frame; the data, or what says where it is, and
/// [`put_trailer`] follow it on the wire.
pub(crate) fn put_header_and_front(
    seq: u64,
    ack: u64,
    message: &Message,
    is_lent: bool,
    out: &mut BytesMut,
) {
    assert!(message.front.len() <= FRONT_BYTES_MAX && message.data.len() <= DATA_BYTES_MAX);
    debug_assert_eq!(message.flags & FLAG_LENT, 0, "a flag of the messenger's own");
    out.reserve(OVERHEAD_BYTES + message.front.len());
    let start = out.len();
    out.put_u32_le(MAGIC);
    out.put_u8(FRAME_VERSION);
    out.put_u8(message.class as u8);
    out.put_u16_le(message.kind);
    out.put_u32_le(message.flags | if is_lent { FLAG_LENT } else { 0 });
    out.put_u64_le(message.id);
    out.put_u64_le(seq);
    out.put_u64_le(ack);
    out.put_u32_le(message.front.len() as u32);
    out.put_u32_le(message.data.len() as u32);
    let crc = crc32c::crc32c(&out[start..]);
    out.put_u32_le(crc);
    out.put_slice(&message.front);
}

/// Appends the checksums that end a frame.
pub(crate) fn put_trailer(message: &Message, out: &mut BytesMut) {
    out.put_u32_le(crc32c::crc32c(&message.front));
    out.put_u32_le(message.data_crc.unwrap_or_else(|| crc32c::crc32c(&message.data)));
}

enum State {
    Header,
    Front(Header),
    RegionLease { header: Header, front: Bytes },
    Data { header: Header, front: Bytes, data: PooledBuf, filled: usize },
    Trailer { header: Header, front: Bytes, data: Bytes },
    Failed(FrameError),
}

/// Encoder and decoder of frames. Data segments are put into buffers of a pool.
pub struct FrameCodec {
    limits: FrameLimits,
    block_crcs: bool,
    pool: Arc<Pool>,
    receiver: Option<Arc<ShmReceiver>>,
    /// Of the frames decoded since this was taken.
    lent_bytes: usize,
    state: State,
}

impl FrameCodec {
    /// A codec at the start of a stream.
    pub fn new(limits: FrameLimits, pool: Arc<Pool>) -> FrameCodec {
        FrameCodec {
            limits,
            block_crcs: false,
            pool,
            receiver: None,
            lent_bytes: 0,
            state: State::Header,
        }
    }

    /// The same; frames then have [`Message::block_crcs`] if `wanted`.
    pub fn with_block_crcs(self, wanted: bool) -> FrameCodec {
        FrameCodec { block_crcs: wanted, ..self }
    }

    /// The same; frames may have data that their sender lends.
    pub(crate) fn with_borrower(self, receiver: Option<Arc<ShmReceiver>>) -> FrameCodec {
        FrameCodec { receiver, ..self }
    }

    /// Bytes of data that was lent and came since the last call.
    pub(crate) fn take_lent_bytes(&mut self) -> usize {
        std::mem::take(&mut self.lent_bytes)
    }

    fn borrow(&self, lease: &[u8; LEASE_BYTES], len: usize) -> Result<Bytes, FrameError> {
        // Damaged on its way, as the data might have been.
        let lease = RegionLease::get(lease).ok_or(FrameError::DataCrc)?;
        self.receiver
            .as_ref()
            .and_then(|receiver| receiver.borrow(lease, len))
            .ok_or(FrameError::RegionLease)
    }

    /// Is the decoder inside a frame, its header taken?
    pub fn is_inside(&self) -> bool {
        !matches!(self.state, State::Header)
    }

    /// The part of the data segment that is still missing, if the decoder is inside one: a reader
    /// whose own buffer is empty reads from the socket straight into it and then calls
    /// [`FrameCodec::filled`].
    pub fn data_wanted(&mut self) -> Option<&mut [u8]> {
        match &mut self.state {
            State::Data { data, filled, .. } => Some(&mut data.as_mut()[*filled..]),
            _ => None,
        }
    }

    /// Says that `count` bytes were read into [`FrameCodec::data_wanted`].
    pub fn filled(&mut self, count: usize) {
        if let State::Data { data, filled, .. } = &mut self.state {
            *filled += count;
            assert!(*filled <= data.len(), "more data read than the frame holds");
        }
    }

    fn step(&mut self, src: &mut BytesMut) -> Result<Option<Frame>, FrameError> {
        loop {
            match std::mem::replace(&mut self.state, State::Header) {
                State::Failed(error) => return Err(error),
                State::Header => {
                    let Some((bytes, _)) = src.split_first_chunk::<HEADER_BYTES>() else {
                        src.reserve(HEADER_BYTES - src.len());
                        return Ok(None);
                    };
                    let header = Header::decode(bytes, &self.limits)?;
                    src.advance(HEADER_BYTES);
                    self.state = State::Front(header);
                }
                State::Front(header) => {
                    if src.len() < header.front_len {
                        src.reserve(header.front_len - src.len());
                        self.state = State::Front(header);
                        return Ok(None);
                    }
                    let front = src.split_to(header.front_len).freeze();
                    self.state = if header.is_lent {
                        State::RegionLease { header, front }
                    } else if header.data_len == 0 {
                        State::Trailer { header, front, data: Bytes::new() }
                    } else {
                        State::Data {
                            header,
                            front,
                            data: self.pool.take(header.data_len),
                            filled: 0,
                        }
                    };
                }
                State::RegionLease { header, front } => {
                    let Some((lease, _)) = src.split_first_chunk::<LEASE_BYTES>() else {
                        src.reserve(LEASE_BYTES - src.len());
                        self.state = State::RegionLease { header, front };
                        return Ok(None);
                    };
                    let data = self.borrow(lease, header.data_len)?;
                    src.advance(LEASE_BYTES);
                    self.lent_bytes += header.data_len;
                    self.state = State::Trailer { header, front, data };
                }
                State::Data { header, front, mut data, mut filled } => {
                    let count = src.len().min(data.len() - filled);
                    data.as_mut()[filled..filled + count].copy_from_slice(&src[..count]);
                    src.advance(count);
                    filled += count;
                    if filled < data.len() {
                        self.state = State::Data { header, front, data, filled };
                        return Ok(None);
                    }
                    self.state = State::Trailer { header, front, data: data.freeze() };
                }
                State::Trailer { header, front, data } => {
                    let Some((mut trailer, _)) = src.split_at_checked(TRAILER_BYTES) else {
                        src.reserve(TRAILER_BYTES);
                        self.state = State::Trailer { header, front, data };
                        return Ok(None);
                    };
                    let (front_crc, data_crc) = (trailer.get_u32_le(), trailer.get_u32_le());
                    src.advance(TRAILER_BYTES);
                    let is_blocks = self.block_crcs
                        && !data.is_empty()
                        && data.len().is_multiple_of(BLOCK_BYTES);
                    return finish(header, front, data, (front_crc, data_crc), is_blocks).map(Some);
                }
            }
        }
    }
}

fn finish(
    header: Header,
    front: Bytes,
    data: Bytes,
    (front_crc, data_crc): (u32, u32),
    is_blocks: bool,
) -> Result<Frame, FrameError> {
    if crc32c::crc32c(&front) != front_crc {
        return Err(FrameError::FrontCrc);
    }
    // One pass gives both: the sum of the whole follows from the blocks'.
    let block_crcs = is_blocks.then(|| {
        let mut crcs = Vec::with_capacity(data.len() / BLOCK_BYTES);
        checksum::block_crcs(&data, |some| crcs.extend_from_slice(some));
        crcs.into_boxed_slice()
    });
    let found =
        block_crcs.as_ref().map_or_else(|| crc32c::crc32c(&data), |crcs| checksum::joined(crcs));
    if found != data_crc {
        return Err(FrameError::DataCrc);
    }
    let Header { class, kind, flags, id, seq, ack, .. } = header;
    let message =
        Message { class, kind, flags, id, front, data, data_crc: Some(data_crc), block_crcs };
    Ok(Frame { seq, ack, message })
}

impl Decoder for FrameCodec {
    type Item = Frame;
    type Error = CodecError;

    fn decode(&mut self, src: &mut BytesMut) -> Result<Option<Frame>, CodecError> {
        let result = self.step(src);
        if let Err(error) = &result {
            self.state = State::Failed(*error);
        }
        Ok(result?)
    }
}

impl Encoder<Frame> for FrameCodec {
    type Error = CodecError;

    fn encode(&mut self, frame: Frame, out: &mut BytesMut) -> Result<(), CodecError> {
        check_lengths(&frame.message, &self.limits)?;
        out.reserve(frame.message.wire_bytes());
        put_header_and_front(frame.seq, frame.ack, &frame.message, false, out);
        out.put_slice(&frame.message.data);
        put_trailer(&frame.message, out);
        Ok(())
    }
}

/// Checks a message against limits before it is sent.
///
/// # Errors
/// [`FrameError::FrontTooLong`] or [`FrameError::DataTooLong`].
pub fn check_lengths(message: &Message, limits: &FrameLimits) -> Result<(), FrameError> {
    let (front, data) = (message.front.len(), message.data.len());
    if front > limits.front_bytes_max.min(FRONT_BYTES_MAX) {
        return Err(FrameError::FrontTooLong { len: front, max: limits.front_bytes_max });
    }
    if data > limits.data_bytes_max.min(DATA_BYTES_MAX) {
        return Err(FrameError::DataTooLong { len: data, max: limits.data_bytes_max });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
