//! Frames as bytes.

use std::sync::Arc;

use bytes::BytesMut;
use messenger::buffer::Pool;
use messenger::frame::{Frame, FrameCodec};
use messenger::sync::LockTable;
use messenger::{FrameLimits, Message};
use tokio_util::codec::Encoder;

/// The bytes of frame `seq`.
pub fn frame(seq: u64, message: Message) -> Vec<u8> {
    let pool = Arc::new(Pool::new(0, &LockTable::default()));
    let mut out = BytesMut::new();
    FrameCodec::new(FrameLimits::default(), pool)
        .encode(Frame { seq, ack: 0, message }, &mut out)
        .expect("fits");
    out.to_vec()
}
