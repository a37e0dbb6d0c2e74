//! Frames, whole and in pieces: raw bytes never panic, and an edited frame is refused or is the one
//! that was sent.
#![no_main]

use bytes::{Bytes, BytesMut};
use fuzz::Input;
use libfuzzer_sys::fuzz_target;
use messenger::buffer::{PoolConfig, Pools};
use messenger::checksum::BLOCK_BYTES;
use messenger::frame::{Frame, FrameCodec, FrameLimits, Message, RESERVED_KINDS, TrafficClass};
use messenger::sync::LockTable;
use std::sync::{Arc, OnceLock};
use tokio_util::codec::{Decoder, Encoder};

fn codec() -> FrameCodec {
    static POOLS: OnceLock<Pools> = OnceLock::new();
    let pools = POOLS.get_or_init(|| {
        Pools::new(PoolConfig { pools: 1, retained_bytes_max: 1 << 20 }, &LockTable::default())
    });
    let limits = FrameLimits { front_bytes_max: 4096, data_bytes_max: 16384 };
    FrameCodec::new(limits, Arc::clone(pools.pool(0))).with_block_crcs(true)
}

/// All frames of `bytes`, fed in pieces of `step`, until one is refused.
fn decode(bytes: &[u8], step: usize) -> Vec<Frame> {
    let (mut codec, mut src, mut frames) = (codec(), BytesMut::new(), Vec::new());
    for piece in bytes.chunks(step) {
        src.extend_from_slice(piece);
        loop {
            match codec.decode(&mut src) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(_) => return frames,
            }
        }
    }
    frames
}

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input::new(bytes);
    let (mode, step) = (input.byte(), usize::from(input.byte()) + 1);
    if mode % 2 == 0 {
        decode(input.rest(), step);
        return;
    }
    let (front, data) = (usize::from(input.byte()), usize::from(input.byte()));
    let front = Bytes::copy_from_slice(input.bytes(front));
    let mut data = input.bytes(data).to_vec();
    if mode & 2 != 0 {
        data.resize(BLOCK_BYTES, 0);
    }
    let data = Bytes::from(data);
    let message = Message::new(TrafficClass::Client, u16::from(mode) % RESERVED_KINDS, front, data);
    let frame = Frame { seq: 1, ack: 0, message };
    let mut encoded = BytesMut::new();
    codec().encode(frame.clone(), &mut encoded).expect("within its limits");
    let mut edited = encoded.to_vec();
    input.edit(&mut edited);
    if let Some(first) = decode(&edited, step).first() {
        let same = edited.starts_with(&encoded);
        assert!(same, "a changed frame was taken: {first:?}");
        assert_eq!(
            (&first.message.front, &first.message.data),
            (&frame.message.front, &frame.message.data)
        );
    }
});
