//! The fixed layouts of messages between sessions and shards: what is read is what is written back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use protocol::shard::{
    AckMessage, AttachRequest, MarkRequest, Op, ReadReply, ReadRequest, Status, WriteRequest,
};
use protocol::shard::{ShardHead, SpaceReply, StatReply};
use zerocopy::{FromBytes, Immutable, IntoBytes};

fn check<T: FromBytes + IntoBytes + Immutable>(front: &[u8]) -> Option<T> {
    let (message, rest) = T::read_from_prefix(front).ok()?;
    assert_eq!(message.as_bytes(), &front[..front.len() - rest.len()]);
    Some(message)
}

fuzz_target!(|front: &[u8]| {
    check::<AttachRequest>(front);
    check::<MarkRequest>(front);
    check::<AckMessage>(front);
    check::<ReadRequest>(front);
    check::<ReadReply>(front);
    check::<SpaceReply>(front);
    check::<StatReply>(front);
    if let Some(write) = check::<WriteRequest>(front) {
        let _ = write.touch().iter().count();
    }
    if let Some(head) = check::<ShardHead>(front) {
        let built =
            ShardHead::new(head.pg(), head.epoch(), head.session(), head.attach(), head.stable());
        assert_eq!(built, head);
    }
    let raw = front.first().copied().unwrap_or_default();
    assert!(Op::from_u8(raw).is_none_or(|op| op as u8 == raw));
    let status = Status::from_u8(raw);
    assert!(status as u8 == raw || status == Status::Invalid);
});
