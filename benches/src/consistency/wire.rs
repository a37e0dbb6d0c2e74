//! What clients and servers of the bench say to each other.
//!
//! A request's front, little-endian:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 16 | gfid |
//! | 16 | 8 | offset in the fragment |
//! | 24 | 4 | bytes to read |
//! | 28 | 1 | of a lock: 1 exclusive, 0 shared |
//!
//! A reply's front is one byte of flags.

use bytes::Bytes;
use ec_store::cluster_lock::{Access, Ask, Reply};
use messenger::{Message, TrafficClass};
use protocol::Gfid;

const FRONT_BYTES: usize = 29;
const READ: u16 = 1;
const WRITE: u16 = 2;
const TRY_LOCK: u16 = 3;
const LOCK: u16 = 4;
const UNLOCK: u16 = 5;
const GREETING: u16 = 6;
/// Server to client, one-way: somebody else wants the lock of this file.
const WANTED: u16 = 7;
const REPLY: u16 = 16;
const GRANTED: u8 = 1;
const CONTENDED: u8 = 2;
const FAILED: u8 = 4;

/// What a server is asked to do with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// Reply with so many bytes.
    Read {
        offset: u64,
        bytes: u32,
    },
    /// Write the data.
    Write {
        offset: u64,
    },
    Lock {
        ask: Ask,
        access: Access,
    },
    /// Nothing: proves the connection.
    Greeting,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) gfid: Gfid,
    pub(super) what: What,
}

impl Request {
    /// The message.
    pub(super) fn message(self, data: Bytes) -> Message {
        let (kind, offset, bytes, access) = match self.what {
            What::Read { offset, bytes } => (READ, offset, bytes, Access::Shared),
            What::Write { offset } => (WRITE, offset, 0, Access::Shared),
            What::Lock { ask: Ask::TryLock, access } => (TRY_LOCK, 0, 0, access),
            What::Lock { ask: Ask::Lock, access } => (LOCK, 0, 0, access),
            What::Lock { ask: Ask::Unlock, access } => (UNLOCK, 0, 0, access),
            What::Greeting => (GREETING, 0, 0, Access::Shared),
        };
        let mut front = [0; FRONT_BYTES];
        front[..16].copy_from_slice(&self.gfid.get().to_le_bytes());
        front[16..24].copy_from_slice(&offset.to_le_bytes());
        front[24..28].copy_from_slice(&bytes.to_le_bytes());
        front[28] = u8::from(access == Access::Exclusive);
        Message::new(TrafficClass::Client, kind, Bytes::copy_from_slice(&front), data)
    }

    /// `None` for a message that is none of ours.
    pub(super) fn parse(message: &Message) -> Option<Request> {
        let front: &[u8; FRONT_BYTES] = message.front[..].try_into().ok()?;
        let gfid = Gfid::new(u128::from_le_bytes(front[..16].try_into().ok()?));
        let offset = u64::from_le_bytes(front[16..24].try_into().ok()?);
        let bytes = u32::from_le_bytes(front[24..28].try_into().ok()?);
        let access = if front[28] == 1 { Access::Exclusive } else { Access::Shared };
        let what = match message.kind {
            READ => What::Read { offset, bytes },
            WRITE => What::Write { offset },
            TRY_LOCK => What::Lock { ask: Ask::TryLock, access },
            LOCK => What::Lock { ask: Ask::Lock, access },
            UNLOCK => What::Lock { ask: Ask::Unlock, access },
            GREETING => What::Greeting,
            _ => return None,
        };
        Some(Request { gfid, what })
    }
}

/// That somebody else wants the lock of a file.
pub(super) fn wanted(gfid: Gfid) -> Message {
    let front = Bytes::copy_from_slice(&gfid.get().to_le_bytes());
    Message::new(TrafficClass::Client, WANTED, front, Bytes::new())
}

/// Which file's lock is wanted.
pub(super) fn parse_wanted(message: &Message) -> Option<Gfid> {
    let raw = message.front[..].try_into().ok()?;
    (message.kind == WANTED).then(|| Gfid::new(u128::from_le_bytes(raw)))
}

/// An answer to a lock.
pub(super) fn lock_reply(reply: Reply) -> Message {
    let (granted, contended) =
        (u8::from(reply.is_granted) * GRANTED, u8::from(reply.is_contended) * CONTENDED);
    flagged(granted | contended, Bytes::new())
}

/// An answer to a read or write: the data, empty for a write, or that it failed.
pub(super) fn data_reply(data: Option<Bytes>) -> Message {
    match data {
        Some(data) => flagged(0, data),
        None => flagged(FAILED, Bytes::new()),
    }
}

fn flagged(flags: u8, data: Bytes) -> Message {
    Message::new(TrafficClass::Client, REPLY, Bytes::copy_from_slice(&[flags]), data)
}

/// What a lock's answer says.
pub(super) fn parse_lock_reply(message: &Message) -> Reply {
    let flags = message.front.first().copied().unwrap_or(FAILED);
    Reply { is_granted: flags & GRANTED != 0, is_contended: flags & CONTENDED != 0 }
}

/// Did a read or write fail?
pub(super) fn has_failed(message: &Message) -> bool {
    message.front.first().is_none_or(|flags| flags & FAILED != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_replies_survive_their_message() {
        let gfid = Gfid::of_inode(77);
        let lock = |ask| What::Lock { ask, access: Access::Exclusive };
        let read = What::Read { offset: 1 << 40, bytes: 4096 };
        let all = [
            read,
            What::Write { offset: 512 },
            lock(Ask::TryLock),
            lock(Ask::Lock),
            lock(Ask::Unlock),
        ];
        for what in all.into_iter().chain([What::Greeting]) {
            let request = Request { gfid, what };
            assert_eq!(Request::parse(&request.message(Bytes::new())), Some(request));
        }
        assert_eq!(parse_wanted(&wanted(gfid)), Some(gfid));
        assert_eq!(Request::parse(&wanted(gfid)), None);
        for (is_granted, is_contended) in [(true, false), (false, true), (true, true)] {
            let reply = Reply { is_granted, is_contended };
            assert_eq!(parse_lock_reply(&lock_reply(reply)), reply);
        }
        assert!(has_failed(&data_reply(None)) && !has_failed(&data_reply(Some(Bytes::new()))));
    }
}
