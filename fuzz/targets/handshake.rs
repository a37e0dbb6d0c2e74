//! Both bodies of the handshake, raw and behind a valid envelope: what is decoded means the same
//! when encoded again.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use messenger::handshake::{self, Answer, BANNER, Hello};
use serde::{Deserialize, Serialize};

fn check<T: Serialize + for<'a> Deserialize<'a>>(bytes: &[u8]) {
    let mut src = BytesMut::from(bytes);
    if let Ok(Some(body)) = handshake::decode::<T>(&mut src) {
        let encoded = postcard::to_stdvec(&body).expect("what was decoded can be encoded");
        let again: T = postcard::from_bytes(&encoded).expect("what was encoded can be decoded");
        assert_eq!(postcard::to_stdvec(&again).expect("encodes"), encoded);
    }
}

fn sealed(body: &[u8]) -> Vec<u8> {
    let mut bytes = BANNER.to_vec();
    bytes.extend_from_slice(&u32::from(protocol::PROTOCOL_VERSION).to_le_bytes());
    bytes.extend_from_slice(&u32::try_from(body.len()).expect("inputs are short").to_le_bytes());
    bytes.extend_from_slice(body);
    let crc = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

fuzz_target!(|bytes: &[u8]| {
    check::<Hello>(bytes);
    check::<Answer>(bytes);
    check::<Hello>(&sealed(bytes));
    check::<Answer>(&sealed(bytes));
});
