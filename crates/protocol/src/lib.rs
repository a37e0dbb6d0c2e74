//! The messages of Trefoil, and nothing of how they travel.
//!
//! * [`ids`]: every identifier as a type of its own, and the erasure [`Profile`].
//! * [`kind`]: the message kinds, the number in each frame's header.
//! * [`shard`]: hot messages between a session and a shard, as fixed little-endian layouts.
//! * [`recovery`]: what a returning or scrubbing shard asks of in-sync shards.
//! * [`monitor`]: map, liveness and sessions.
//! * [`namespace`]: the metadata service. [`admin`]: what operators ask of one daemon.
//! * [`rules`]: the write protocol's rules by name.
//! * [`scrub`]: what operators ask of scrubbing.
//!
//! Hot messages are `zerocopy` structs that stand at the start of a frame's front segment; their
//! bulk bytes are the frame's data segment. Control messages are serde enums in postcard
//! ([`encode`], [`decode`]) in the front segment. A receiver of a control message must treat every
//! field as untrusted.
//!
//! Depends on nothing of Trefoil. Start reading at [`shard::WriteRequest`] and
//! docs/design/write-path.md.
#![forbid(unsafe_code)]

pub mod admin;
pub mod health;
pub mod ids;
pub mod kind;
pub mod lock;
pub mod monitor;
pub mod namespace;
pub mod recovery;
pub mod rules;
pub mod scrub;
pub mod shard;

pub use ids::*;
pub use kind::Kind;
pub use rules::{Rule, Rules};

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};

/// Version of all wire formats together; peers of different versions refuse each other in the
/// handshake.
pub const PROTOCOL_VERSION: u16 = 8;

/// Where a monitor listens, and is sought, unless told otherwise.
pub const MONITOR_PORT: u16 = 7400;

/// A control message that cannot be decoded.
#[derive(Debug, thiserror::Error)]
#[error("malformed {what} message: {source}")]
pub struct DecodeError {
    what: &'static str,
    source: postcard::Error,
}

/// Encodes a control message for the front segment.
///
/// # Panics
/// Never for the types of this crate: they hold nothing that postcard cannot encode.
pub fn encode<T: Serialize>(message: &T) -> Bytes {
    Bytes::from(
        postcard::to_stdvec(message).expect("control messages contain only encodable types"),
    )
}

/// Decodes a control message; `what` names it in the error.
///
/// # Errors
/// When the bytes are not such a message.
pub fn decode<T: DeserializeOwned>(what: &'static str, front: &[u8]) -> Result<T, DecodeError> {
    postcard::from_bytes(front).map_err(|source| DecodeError { what, source })
}
