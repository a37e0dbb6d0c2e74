//! NBD as bytes: numbers of the protocol, requests and replies.
//!
//! Contract: pure. Everything is big-endian. Names of constants are the protocol's.
//!
//! | bytes | request |
//! |---|---|
//! | 4 | `0x25609513` |
//! | 2 | flags of the command |
//! | 2 | command |
//! | 8 | cookie, returned with the reply |
//! | 8 | offset |
//! | 4 | length; so many bytes follow a write |

use crate::Extent;

/// Begins the server's greeting.
pub const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
/// "IHAVEOPT": the greeting of newstyle, and every option.
pub const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
/// Begins the answer to an option.
pub const REP_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Begins a request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Begins a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Begins a chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Bytes of a request without its data.
pub const REQUEST_BYTES: usize = 28;
/// Longest read or write, in bytes: what clients expect of a server that says nothing.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;
/// Most extents in an answer: 64 KiB of it.
pub const EXTENTS_MAX: usize = 8192;
/// The number by which `base:allocation` goes here.
pub const ALLOCATION_CONTEXT: u32 = 1;

/// Flags of an export.
pub mod export_flags {
    #![expect(missing_docs, reason = "the protocol's names")]
    pub const HAS_FLAGS: u16 = 1 << 0;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Flags of a command.
pub mod command_flags {
    #![expect(missing_docs, reason = "the protocol's names")]
    pub const FUA: u16 = 1 << 0;
    pub const NO_HOLE: u16 = 1 << 1;
    pub const DF: u16 = 1 << 2;
    pub const REQ_ONE: u16 = 1 << 3;
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Errors of the protocol. They are Linux's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NbdError {
    /// Operation not permitted.
    Eperm = 1,
    /// Input/output error.
    Eio = 5,
    /// Cannot allocate memory.
    Enomem = 12,
    /// Invalid argument.
    Einval = 22,
    /// No space left on device.
    Enospc = 28,
    /// Value too large.
    Eoverflow = 75,
    /// Operation not supported.
    Enotsup = 95,
    /// The server is in the process of being shut down.
    Eshutdown = 108,
}

impl NbdError {
    /// That of an errno; the protocol has no others than these.
    pub fn of_errno(errno: i32) -> NbdError {
        use NbdError::*;
        const EFBIG: i32 = 27;
        const EDQUOT: i32 = 122;
        let known = [Eperm, Eio, Enomem, Einval, Enospc, Eoverflow, Enotsup, Eshutdown];
        match errno {
            EFBIG => Einval,
            EDQUOT => Enospc,
            _ => known.into_iter().find(|known| *known as i32 == errno).unwrap_or(Eio),
        }
    }
}

/// Commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Reads.
    Read,
    /// Writes; data follows.
    Write,
    /// The client goes. No reply.
    Disc,
    /// Makes durable what was answered.
    Flush,
    /// The range is not needed.
    Trim,
    /// Zeros, without data that follows.
    WriteZeroes,
    /// Where the range holds data.
    BlockStatus,
    /// Another one.
    Unknown(u16),
}

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestHeader {
    /// Flags of the command.
    pub flags: u16,
    /// What.
    pub command: Command,
    /// Returned with the reply.
    pub cookie: u64,
    /// From where on.
    pub offset: u64,
    /// How many bytes.
    pub len: u32,
}

impl RequestHeader {
    /// Decodes one; `None` if it is none, after which nothing on the connection can be understood.
    pub fn decode(bytes: &[u8; REQUEST_BYTES]) -> Option<RequestHeader> {
        let mut input = &bytes[..];
        if take_u32(&mut input)? != REQUEST_MAGIC {
            return None;
        }
        let (flags, command) = (take_u16(&mut input)?, take_u16(&mut input)?);
        let command = match command {
            0 => Command::Read,
            1 => Command::Write,
            2 => Command::Disc,
            3 => Command::Flush,
            4 => Command::Trim,
            6 => Command::WriteZeroes,
            7 => Command::BlockStatus,
            other => Command::Unknown(other),
        };
        let (cookie, offset) = (take_u64(&mut input)?, take_u64(&mut input)?);
        Some(RequestHeader { flags, command, cookie, offset, len: take_u32(&mut input)? })
    }

    /// The end of its range, if that is a number.
    pub fn end(&self) -> Option<u64> {
        self.offset.checked_add(self.len.into())
    }
}

/// What a reply says; a read's data goes behind the bytes of [`reply_head`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Done.
    Done,
    /// A read's data: from here on, so many bytes.
    Data(u64, u32),
    /// Extents, for [`ALLOCATION_CONTEXT`].
    Extents(Vec<Extent>),
    /// An error, and why in words.
    Error(NbdError, String),
}

/// The bytes of a reply, up to a read's data.
pub fn reply_head(structured: bool, cookie: u64, answer: &Answer) -> Vec<u8> {
    const DONE: u16 = 1;
    const NONE: u16 = 0;
    const OFFSET_DATA: u16 = 1;
    const BLOCK_STATUS: u16 = 5;
    const ERROR: u16 = (1 << 15) + 1;
    if !structured {
        let error = if let Answer::Error(error, _) = answer { *error as u32 } else { 0 };
        let mut out = Vec::with_capacity(16);
        out.extend_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
        out.extend_from_slice(&error.to_be_bytes());
        out.extend_from_slice(&cookie.to_be_bytes());
        return out;
    }
    let chunk = |kind: u16, len: usize| {
        let mut out = Vec::with_capacity(20 + len.min(64 << 10));
        out.extend_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
        out.extend_from_slice(&DONE.to_be_bytes());
        out.extend_from_slice(&kind.to_be_bytes());
        out.extend_from_slice(&cookie.to_be_bytes());
        out.extend_from_slice(&u32::try_from(len).expect("replies are short").to_be_bytes());
        out
    };
    match answer {
        Answer::Done | Answer::Data(_, 0) => chunk(NONE, 0),
        Answer::Data(offset, len) => {
            let mut out = chunk(OFFSET_DATA, *len as usize + 8);
            out.extend_from_slice(&offset.to_be_bytes());
            out
        }
        Answer::Extents(extents) => {
            let mut out = chunk(BLOCK_STATUS, 4 + 8 * extents.len());
            out.extend_from_slice(&ALLOCATION_CONTEXT.to_be_bytes());
            for extent in extents {
                const HOLE_AND_ZERO: u32 = 1 | 2;
                let len = u32::try_from(extent.len).unwrap_or(u32::MAX);
                out.extend_from_slice(&len.to_be_bytes());
                out.extend_from_slice(
                    &(if extent.is_hole { HOLE_AND_ZERO } else { 0 }).to_be_bytes(),
                );
            }
            out
        }
        Answer::Error(error, why) => {
            let why = &why.as_bytes()[..why.len().min(1024)];
            let mut out = chunk(ERROR, 6 + why.len());
            out.extend_from_slice(&(*error as u32).to_be_bytes());
            out.extend_from_slice(&u16::try_from(why.len()).expect("cut above").to_be_bytes());
            out.extend_from_slice(why);
            out
        }
    }
}

/// Takes the first bytes away.
pub fn take<'a>(input: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (head, rest) = input.split_at_checked(len)?;
    *input = rest;
    Some(head)
}

/// Takes a number away.
pub fn take_u16(input: &mut &[u8]) -> Option<u16> {
    take(input, 2).and_then(|bytes| bytes.try_into().ok()).map(u16::from_be_bytes)
}

/// Takes a number away.
pub fn take_u32(input: &mut &[u8]) -> Option<u32> {
    take(input, 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes)
}

/// Takes a number away.
pub fn take_u64(input: &mut &[u8]) -> Option<u64> {
    take(input, 8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_request_is_read_as_the_protocol_has_it() {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..4].copy_from_slice(&[0x25, 0x60, 0x95, 0x13]);
        bytes[5] = 1;
        bytes[7] = 6;
        bytes[15] = 9;
        bytes[16] = 0xff;
        bytes[27] = 7;
        let found = RequestHeader::decode(&bytes).expect("a request");
        assert_eq!(
            (found.flags, found.command, found.cookie),
            (command_flags::FUA, Command::WriteZeroes, 9)
        );
        assert_eq!((found.offset, found.len), (0xff << 56, 7));
        bytes[0] = 0;
        assert_eq!(RequestHeader::decode(&bytes), None);
    }

    #[test]
    fn replies_are_as_the_protocol_has_them() {
        let simple = reply_head(false, 7, &Answer::Error(NbdError::Enospc, "full".into()));
        assert_eq!(simple, [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 28, 0, 0, 0, 0, 0, 0, 0, 7]);
        let data = reply_head(true, 7, &Answer::Data(512, 4096));
        assert_eq!(data[..8], [0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 1]);
        assert_eq!(
            (&data[16..20], &data[20..]),
            (&4104u32.to_be_bytes()[..], &512u64.to_be_bytes()[..])
        );
        let error = reply_head(true, 7, &Answer::Error(NbdError::Eio, "x".repeat(5000)));
        assert_eq!((error[6], error.len()), (0x80, 20 + 6 + 1024));
        let extents =
            vec![Extent { len: 1024, is_hole: true }, Extent { len: 512, is_hole: false }];
        let status = reply_head(true, 7, &Answer::Extents(extents));
        assert_eq!(status[20..], [0, 0, 0, 1, 0, 0, 4, 0, 0, 0, 0, 3, 0, 0, 2, 0, 0, 0, 0, 0]);
        assert_eq!(reply_head(true, 7, &Answer::Done).len(), 20);
    }

    #[test]
    fn errnos_become_those_that_the_protocol_has() {
        assert_eq!([1, 28, 122, 2, 27, 108].map(NbdError::of_errno), {
            use NbdError::*;
            [Eperm, Enospc, Enospc, Eio, Einval, Eshutdown]
        });
    }

    proptest! {
        #[test]
        fn no_request_panics(bytes in any::<[u8; REQUEST_BYTES]>(), honest in any::<bool>()) {
            let mut bytes = bytes;
            if honest {
                bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
            }
            prop_assert_eq!(RequestHeader::decode(&bytes).is_some(), bytes[..4] == REQUEST_MAGIC.to_be_bytes());
        }
    }
}
