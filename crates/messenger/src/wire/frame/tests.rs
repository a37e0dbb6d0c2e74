use super::*;
use crate::sync::contention_mutex::LockTable;
use proptest::prelude::*;

fn codec(limits: FrameLimits) -> FrameCodec {
    FrameCodec::new(limits, Arc::new(Pool::new(4 << 20, &LockTable::default())))
}

fn message() -> impl Strategy<Value = Message> {
    let class = prop_oneof![
        Just(TrafficClass::Control),
        Just(TrafficClass::Client),
        Just(TrafficClass::Background)
    ];
    let bytes = |max| proptest::collection::vec(any::<u8>(), 0..max).prop_map(Bytes::from);
    (class, any::<u16>(), any::<u32>(), any::<u64>(), bytes(600), bytes(9000)).prop_map(
        |(class, kind, flags, id, front, data)| {
            let data_crc = Some(crc32c::crc32c(&data));
            // Whether the data is lent is for the connection to say.
            let flags = flags & !FLAG_LENT;
            Message { class, kind, flags, id, front, data, data_crc, block_crcs: None }
        },
    )
}

fn frames() -> impl Strategy<Value = Vec<Frame>> {
    let frame = (any::<u64>(), any::<u64>(), message()).prop_map(|(seq, ack, message)| Frame {
        seq,
        ack,
        message,
    });
    proptest::collection::vec(frame, 1..5)
}

fn encode(frames: &[Frame]) -> BytesMut {
    let mut out = BytesMut::new();
    for frame in frames {
        codec(FrameLimits::default()).encode(frame.clone(), &mut out).expect("within limits");
    }
    out
}

fn refused(bytes: &[u8], limits: FrameLimits) -> FrameError {
    let mut codec = codec(limits);
    let mut src = BytesMut::from(bytes);
    match codec.decode(&mut src) {
        Err(CodecError::Frame(error)) => {
            // Once refused, always refused: nothing after a bad frame is trusted.
            assert!(
                matches!(codec.decode(&mut src), Err(CodecError::Frame(again)) if again == error)
            );
            error
        }
        other => panic!("taken: {other:?}"),
    }
}

#[test]
fn data_that_nobody_offered_is_not_borrowed() {
    let data = Bytes::from_static(&[1; 9000]);
    let message = Message::new(TrafficClass::Client, 7, Bytes::new(), data);
    for (lease, error) in [
        (Some(RegionLease { at: 0, slot: 0 }), FrameError::RegionLease),
        (None, FrameError::DataCrc),
    ] {
        let mut out = BytesMut::new();
        put_header_and_front(1, 0, &message, true, &mut out);
        match lease {
            Some(lease) => lease.put(&mut out),
            None => out.put_slice(&[1; LEASE_BYTES]),
        }
        put_trailer(&message, &mut out);
        assert_eq!(refused(&out, FrameLimits::default()), error);
    }
}

fn reseal(bytes: &mut [u8]) {
    let crc = crc32c::crc32c(&bytes[..HEADER_BYTES - 4]);
    bytes[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
}

proptest! {
    #[test]
    fn round_trip_in_any_split(frames in frames(), cuts in proptest::collection::vec(1usize..5000, 1..20), direct in any::<bool>()) {
        let bytes = encode(&frames);
        let mut codec = codec(FrameLimits::default());
        let (mut src, mut got, mut at, mut turn) = (BytesMut::new(), Vec::new(), 0, 0);
        while at < bytes.len() {
            let mut piece = &bytes[at..(at + cuts[turn % cuts.len()]).min(bytes.len())];
            at += piece.len();
            turn += 1;
            if direct && src.is_empty() && let Some(wanted) = codec.data_wanted() {
                let count = piece.len().min(wanted.len());
                wanted[..count].copy_from_slice(&piece[..count]);
                codec.filled(count);
                piece = &piece[count..];
            }
            src.extend_from_slice(piece);
            while let Some(frame) = codec.decode(&mut src).expect("valid") {
                got.push(frame);
            }
        }
        prop_assert_eq!(got, frames);
        prop_assert!(src.is_empty());
    }

    #[test]
    fn arbitrary_bytes_never_panic_or_reserve_much(bytes in proptest::collection::vec(any::<u8>(), 0..400), valid_start in 0usize..60) {
        let good = encode(&[Frame { seq: 1, ack: 0, message: Message::new(TrafficClass::Client, 1, Bytes::new(), Bytes::from_static(b"x")) }]);
        let mut src = BytesMut::from(&good[..valid_start.min(good.len())]);
        src.extend_from_slice(&bytes);
        let mut codec = codec(FrameLimits::default());
        let before = src.capacity();
        while let Ok(Some(_)) = codec.decode(&mut src) {}
        prop_assert!(src.capacity() <= before + FRONT_BYTES_MAX + HEADER_BYTES);
    }

    #[test]
    fn one_flipped_bit_is_noticed(frame in (any::<u64>(), message()), at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let frame = Frame { seq: frame.0, ack: 3, message: frame.1 };
        let mut bytes = encode(std::slice::from_ref(&frame));
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        prop_assert!(codec(FrameLimits::default()).decode(&mut bytes).is_err());
    }
}

#[test]
fn every_reason_has_its_error() {
    let message = Message::new(
        TrafficClass::Client,
        1,
        Bytes::from_static(b"front"),
        Bytes::from_static(b"data"),
    );
    let good = encode(&[Frame { seq: 1, ack: 0, message }]);
    let limits = FrameLimits::default();
    let changed = |at: usize, value: u8, seal: bool| {
        let mut bytes = good.to_vec();
        bytes[at] = value;
        if seal {
            reseal(&mut bytes);
        }
        bytes
    };
    assert!(matches!(refused(&changed(0, 0, true), limits), FrameError::BadMagic(_)));
    assert_eq!(
        refused(&changed(4, 9, true), limits),
        FrameError::BadVersion { theirs: 9, ours: FRAME_VERSION }
    );
    assert_eq!(refused(&changed(5, 0, true), limits), FrameError::UnknownClass(0));
    assert_eq!(refused(&changed(8, 1, false), limits), FrameError::HeaderCrc);
    assert_eq!(refused(&changed(HEADER_BYTES, 0, false), limits), FrameError::FrontCrc);
    assert_eq!(refused(&changed(HEADER_BYTES + 5, 0, false), limits), FrameError::DataCrc);
    let max = FRONT_BYTES_MAX;
    assert_eq!(
        refused(&changed(39, 0xff, true), limits),
        FrameError::FrontTooLong { len: 0xff00_0005, max }
    );
    let max = DATA_BYTES_MAX;
    assert_eq!(
        refused(&changed(43, 0xff, true), limits),
        FrameError::DataTooLong { len: 0xff00_0004, max }
    );
    let tight = FrameLimits { front_bytes_max: 4, data_bytes_max: 3 };
    assert_eq!(refused(&good, tight), FrameError::FrontTooLong { len: 5, max: 4 });
}

#[test]
fn header_bytes_are_as_documented() {
    let message = Message {
        class: TrafficClass::Background,
        kind: 0x0102,
        flags: 0x0304_0506,
        id: 7,
        front: Bytes::from_static(b"ab"),
        data: Bytes::new(),
        data_crc: None,
        block_crcs: None,
    };
    let bytes = encode(&[Frame { seq: 8, ack: 9, message }]);
    assert_eq!(bytes.len(), OVERHEAD_BYTES + 2);
    let golden = [
        b'T', b'R', b'F', b'L', 1, 3, 2, 1, 6, 5, 4, 3, 7, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0,
        0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0,
    ];
    assert_eq!(bytes[..44], golden);
}

#[test]
fn data_lies_on_pages() {
    let data = Bytes::from(vec![5; 10_000]);
    let mut bytes = encode(&[Frame {
        seq: 1,
        ack: 0,
        message: Message::new(TrafficClass::Client, 1, Bytes::new(), data),
    }]);
    let frame = codec(FrameLimits::default()).decode(&mut bytes).expect("valid").expect("whole");
    assert_eq!(frame.message.data.as_ptr().addr() % crate::io::buffer::PAGE_BYTES, 0);
}

#[test]
fn sums_of_blocks_come_if_they_are_wanted() {
    for (len, wanted, made) in
        [(2048, true, true), (2048, false, false), (2047, true, false), (0, true, false)]
    {
        let data = Bytes::from_iter((0..len).map(|at| (at * 7) as u8));
        let message = Message::new(TrafficClass::Client, 1, Bytes::new(), data.clone());
        let good = encode(&[Frame { seq: 1, ack: 0, message }]);
        let decode = |mut bytes: BytesMut| {
            codec(FrameLimits::default()).with_block_crcs(wanted).decode(&mut bytes)
        };
        let message = decode(good.clone()).expect("valid").expect("whole").message;
        let expected = made
            .then(|| data.chunks(crate::wire::checksum::BLOCK_BYTES).map(crc32c::crc32c).collect());
        assert_eq!((message.block_crcs, message.data_crc), (expected, Some(crc32c::crc32c(&data))));
        for at in (0..len).step_by(300) {
            let mut bad = good.clone();
            bad[HEADER_BYTES + at] ^= 0x10;
            assert!(
                matches!(decode(bad), Err(CodecError::Frame(FrameError::DataCrc))),
                "byte {at} of {len}"
            );
        }
    }
}
