//! Answers as if everything were done, right after dispatch: `osd_path_cut = "msgr"`, the LCAM
//! paper's `MsgrTest`.
//!
//! Contract: keeps nothing and asks nobody. Every write is acknowledged as durable at once, every
//! read gives zeros, no object exists. What is not well formed is refused as elsewhere.

use bytes::Bytes;
use ec_store::core::{READ_BYTES_MAX, zeros};
use messenger::{Connection, Message, TrafficClass};
use protocol::Kind;
use protocol::recovery::RecoveryReply;
use protocol::shard::{
    AckMessage, AttachRequest, ExtentsReply, MarkRequest, ObjectsReply, ReadReply, ReadRequest,
    ShardHead, SpaceReply, StatReply, Status, WriteRequest,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The space that is said to be free, in bytes: whatever comes is dropped.
const FREE_BYTES: u64 = 1 << 40;

/// Answers; `None`: the message is malformed.
pub(super) fn answer(connection: &Connection, message: &Message) -> Option<()> {
    match Kind::from_u16(message.kind)? {
        Kind::Attach => {
            let request: AttachRequest = front(message)?;
            acknowledge(connection, &request.head, request.owed.get(), AckMessage::HELLO);
        }
        Kind::Write => {
            let request: WriteRequest = front(message)?;
            acknowledge(connection, &request.head, request.seq.get(), 0);
        }
        // every write was said to be durable
        Kind::Mark => front::<MarkRequest>(message).map(drop)?,
        Kind::Read => {
            let request = question(message)?;
            let reply =
                ReadReply { attach: request.head.raw_attach, status: Status::Ok as u8, flags: 0 };
            let data = zeros(request.length.get() as usize);
            connection.reply(
                message,
                Kind::ReadReply.to_u16(),
                Bytes::copy_from_slice(reply.as_bytes()),
                data,
            );
        }
        Kind::Stat => {
            let attach = question(message)?.head.raw_attach;
            let (logical_end, allocated) = (0.into(), 0.into());
            let reply =
                StatReply { attach, logical_end, allocated, status: Status::Ok as u8, flags: 0 };
            let front = Bytes::copy_from_slice(reply.as_bytes());
            connection.reply(message, Kind::StatReply.to_u16(), front, Bytes::new());
        }
        Kind::Extents => {
            question(message)?;
            let reply = ExtentsReply { status: Status::Ok, data: Vec::new(), more: false };
            connection.reply(
                message,
                Kind::ExtentsReply.to_u16(),
                protocol::encode(&reply),
                Bytes::new(),
            );
        }
        Kind::Objects => {
            question(message)?;
            let reply = ObjectsReply {
                status: Status::Ok,
                indexes: Vec::new(),
                taken: Vec::new(),
                more: false,
            };
            connection.reply(
                message,
                Kind::ObjectsReply.to_u16(),
                protocol::encode(&reply),
                Bytes::new(),
            );
        }
        Kind::Space | Kind::Reserve => {
            let reply = SpaceReply {
                attach: question(message)?.head.raw_attach,
                missing: 0.into(),
                free: FREE_BYTES.into(),
                status: Status::Ok as u8,
                flags: 0,
            };
            let front = Bytes::copy_from_slice(reply.as_bytes());
            connection.reply(message, Kind::SpaceReply.to_u16(), front, Bytes::new());
        }
        Kind::Recovery => {
            let reply = protocol::encode(&RecoveryReply::Refused(Status::NotActive));
            connection.reply(message, Kind::RecoveryReply.to_u16(), reply, Bytes::new());
        }
        _ => return None,
    }
    Some(())
}

fn front<T: FromBytes + KnownLayout + Immutable>(message: &Message) -> Option<T> {
    T::read_from_bytes(&message.front).ok()
}

fn question(message: &Message) -> Option<ReadRequest> {
    let request: ReadRequest = front(message)?;
    (message.is_request() && u64::from(request.length.get()) <= READ_BYTES_MAX).then_some(request)
}

fn acknowledge(connection: &Connection, head: &ShardHead, tail: u64, flags: u8) {
    let ack = AckMessage {
        pg: head.raw_pg,
        epoch: head.raw_epoch,
        attach: head.raw_attach,
        tail: tail.into(),
        durable: tail.into(),
        free: FREE_BYTES.into(),
        status: Status::Ok as u8,
        flags,
    };
    let front = Bytes::copy_from_slice(ack.as_bytes());
    connection.send(Message::new(TrafficClass::Client, Kind::Ack.to_u16(), front, Bytes::new()));
}
