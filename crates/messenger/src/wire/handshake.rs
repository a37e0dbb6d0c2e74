//! The first bytes of a TCP connection, before frames flow.
//!
//! Both ends say the same envelope, the connecting side first. Its first sixteen bytes keep their
//! meaning in every version of the protocol, so that a mismatch is always a message and never a
//! hang:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | banner `"trefoil\n"` |
//! | 8 | 4 | protocol version, little-endian |
//! | 12 | 4 | body_len, little-endian, at most [`BODY_BYTES_MAX`] |
//! | 16 | body_len | body: a [`Hello`] from the connecting side, an [`Answer`] from the accepting one, in postcard |
//! | .. | 4 | CRC32C of everything before, little-endian |
//!
//! Features are agreed on: a hello has those that the connecting side offers here, a welcome those
//! of them that both will use.
//!
//! Authentication: the hello carries a method, and only [`AUTH_NONE`] is accepted. Whoever reaches
//! the port is trusted, so ports belong on a private network.

use crate::wire::late_cluster::LateCluster;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use protocol::{ClusterId, PROTOCOL_VERSION};
use serde::{Deserialize, Serialize};

/// First bytes of every connection.
pub const BANNER: &[u8; 8] = b"trefoil\n";
/// Most bytes of a body: a hello is below 400.
pub const BODY_BYTES_MAX: usize = 4096;
/// Most bytes of a peer's name.
pub const NAME_BYTES_MAX: usize = 256;
/// The only authentication method: none.
pub const AUTH_NONE: u8 = 0;
/// Feature: with the first bytes come the descriptors by which data is lent, see `lending`; only
/// over a Unix socket.
pub const FEATURE_LENDING: u64 = 1;
/// Features this side has.
pub const FEATURES: u64 = FEATURE_LENDING;
const PREFIX_BYTES: usize = 16;

/// What the connecting side says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Features that it offers on this connection.
    pub features: u64,
    /// Its cluster, zero if it does not know yet.
    pub cluster: ClusterId,
    /// Authentication method, [`AUTH_NONE`].
    pub auth_method: u8,
    /// Id of the connection, random, chosen by the connecting side for its lifetime.
    pub cookie: u128,
    /// The session to go on with, if there was one.
    pub resume: Option<Resume>,
    /// The core it wants.
    pub lane: u16,
    /// Its name, for logs.
    pub name: String,
}

/// A session to go on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// The number the accepting side gave to the incarnation.
    pub incarnation: u64,
    /// Last sequence number received.
    pub received: u64,
}

/// What the accepting side says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Frames may flow.
    Welcome(Welcome),
    /// They may not; TCP is closed after it.
    Refused(Refusal),
}

/// A handshake accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Features both ends have.
    pub features: u64,
    /// Cluster of the accepting side.
    pub cluster: ClusterId,
    /// Number of this incarnation of the session, random.
    pub incarnation: u64,
    /// The last sequence number received, if the session goes on; none for a new one.
    pub resumed: Option<u64>,
    /// Name of the accepting side, for logs.
    pub name: String,
}

/// Why a handshake was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// The peer speaks another version.
    #[error(
        "the peer speaks protocol version {theirs}, this side {ours}: upgrade the older of the two"
    )]
    Version {
        /// The peer's version.
        theirs: u32,
        /// This side's version.
        ours: u32,
    },
    /// The peer belongs to another cluster.
    #[error("the peer belongs to cluster {theirs}, this side to {ours}: check the address")]
    Cluster {
        /// The peer's cluster.
        theirs: ClusterId,
        /// This side's cluster.
        ours: ClusterId,
    },
    /// The authentication method is not accepted.
    #[error("authentication method {0} is not accepted")]
    Auth(u8),
    /// The peer cannot serve now; the connecting side tries again.
    #[error("the peer cannot serve now")]
    Busy,
    /// The peer has as many sessions as it takes; the connecting side tries again.
    #[error("the peer has all {0} connections that it takes (ms_connections_max)")]
    Full(u32),
}

impl Refusal {
    /// The same refusal as the other side has to read it.
    fn mirrored(self) -> Refusal {
        match self {
            Refusal::Version { theirs, ours } => Refusal::Version { theirs: ours, ours: theirs },
            Refusal::Cluster { theirs, ours } => Refusal::Cluster { theirs: ours, ours: theirs },
            other => other,
        }
    }
}

/// Why the bytes are no handshake.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// Not our banner: another program, or garbage.
    #[error("not the banner of this protocol")]
    Banner,
    /// The peer speaks another version.
    #[error("{0}")]
    Version(Refusal),
    /// The body is longer than it may be.
    #[error("handshake of {0} bytes, at most {BODY_BYTES_MAX} are taken")]
    TooLong(usize),
    /// The checksum does not match.
    #[error("handshake checksum mismatch")]
    Crc,
    /// The body cannot be decoded.
    #[error("malformed handshake")]
    Malformed,
}

/// Encodes a body in its envelope, as this version of the protocol.
///
/// # Panics
/// Never for the types of this module, whose names are cut to [`NAME_BYTES_MAX`].
pub fn encode<T: Serialize>(body: &T) -> Bytes {
    encode_as(PROTOCOL_VERSION.into(), body)
}

fn encode_as<T: Serialize>(version: u32, body: &T) -> Bytes {
    let body = postcard::to_stdvec(body)
        .expect("handshake bodies hold nothing that postcard cannot encode");
    assert!(body.len() <= BODY_BYTES_MAX, "handshake body of {} bytes", body.len());
    let mut out = BytesMut::with_capacity(PREFIX_BYTES + body.len() + 4);
    out.put_slice(BANNER);
    out.put_u32_le(version);
    out.put_u32_le(body.len() as u32);
    out.put_slice(&body);
    let crc = crc32c::crc32c(&out);
    out.put_u32_le(crc);
    out.freeze()
}

/// Decodes a body from the front of `src` and removes it; `None` if bytes are missing.
///
/// # Errors
/// [`HandshakeError`]. A version mismatch is reported only once the whole envelope is there (or is
/// too long), so that closing the socket does not cut off the answer to it.
pub fn decode<T: for<'a> Deserialize<'a>>(src: &mut BytesMut) -> Result<Option<T>, HandshakeError> {
    let known = src.len().min(BANNER.len());
    if src[..known] != BANNER[..known] {
        return Err(HandshakeError::Banner);
    }
    if src.len() < PREFIX_BYTES {
        return Ok(None);
    }
    let mut prefix = &src[BANNER.len()..PREFIX_BYTES];
    let (version, len) = (prefix.get_u32_le(), prefix.get_u32_le() as usize);
    let ours = u32::from(PROTOCOL_VERSION);
    let mismatch = HandshakeError::Version(Refusal::Version { theirs: version, ours });
    if len > BODY_BYTES_MAX {
        return Err(if version == ours { HandshakeError::TooLong(len) } else { mismatch });
    }
    if src.len() < PREFIX_BYTES + len + 4 {
        return Ok(None);
    }
    if version != ours {
        return Err(mismatch);
    }
    let envelope = src.split_to(PREFIX_BYTES + len + 4);
    let (sealed, mut crc) = envelope.split_at(PREFIX_BYTES + len);
    if crc32c::crc32c(sealed) != crc.get_u32_le() {
        return Err(HandshakeError::Crc);
    }
    let body = &sealed[PREFIX_BYTES..];
    postcard::from_bytes(body).map(Some).map_err(|_| HandshakeError::Malformed)
}

/// Decides about a hello.
///
/// # Errors
/// The refusal, as this side sees it; [`refusal_bytes`] turns it round for the peer.
pub fn check_hello(hello: &Hello, ours: &LateCluster) -> Result<(), Refusal> {
    ours.check(hello.cluster)?;
    if hello.auth_method != AUTH_NONE {
        return Err(Refusal::Auth(hello.auth_method));
    }
    Ok(())
}

/// The envelope that tells the peer of a refusal.
pub fn refusal_bytes(refusal: Refusal) -> Bytes {
    encode(&Answer::Refused(refusal.mirrored()))
}

/// Cuts a name to what a hello carries, at a character boundary.
pub fn cut_name(name: &str) -> String {
    let end = (0..=name.len().min(NAME_BYTES_MAX))
        .rev()
        .find(|&at| name.is_char_boundary(at))
        .unwrap_or(0);
    name[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hello() -> Hello {
        Hello {
            features: FEATURES,
            cluster: ClusterId::new(7),
            auth_method: AUTH_NONE,
            cookie: 9,
            resume: Some(Resume { incarnation: 3, received: 4 }),
            lane: 5,
            name: "client".into(),
        }
    }

    #[test]
    fn versions_are_named_on_both_sides() {
        let mut src = BytesMut::from(&encode_as(99, &hello())[..]);
        let Err(HandshakeError::Version(refusal)) = decode::<Hello>(&mut src) else {
            panic!("versions differ")
        };
        assert!(
            refusal.to_string().contains("version 99")
                && refusal.to_string().contains(&format!("this side {PROTOCOL_VERSION}"))
        );
        let mut answer = BytesMut::from(&refusal_bytes(refusal)[..]);
        let Ok(Some(Answer::Refused(theirs))) = decode(&mut answer) else { panic!("a refusal") };
        assert!(
            theirs.to_string().contains(&format!("version {PROTOCOL_VERSION},"))
                && theirs.to_string().contains("this side 99")
        );
    }

    #[test]
    fn clusters_must_match_unless_unknown() {
        let mut hello = hello();
        assert!(check_hello(&hello, &ClusterId::new(7).into()).is_ok());
        assert!(check_hello(&hello, &ClusterId::default().into()).is_ok());
        assert!(matches!(
            check_hello(&hello, &ClusterId::new(8).into()),
            Err(Refusal::Cluster { .. })
        ));
        hello.cluster = ClusterId::default();
        assert!(check_hello(&hello, &ClusterId::new(8).into()).is_ok());
        hello.auth_method = 1;
        assert_eq!(check_hello(&hello, &ClusterId::new(8).into()), Err(Refusal::Auth(1)));
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same(cut in 0usize..80) {
            let bytes = encode(&hello());
            let cut = cut.min(bytes.len() - 1);
            let mut src = BytesMut::from(&bytes[..cut]);
            prop_assert_eq!(decode::<Hello>(&mut src), Ok(None));
            src.extend_from_slice(&bytes[cut..]);
            src.extend_from_slice(b"rest");
            prop_assert_eq!(decode::<Hello>(&mut src), Ok(Some(hello())));
            prop_assert_eq!(&src[..], b"rest");
        }

        #[test]
        fn arbitrary_bytes_never_panic(tail in proptest::collection::vec(any::<u8>(), 0..200), banner in any::<bool>()) {
            let mut src = BytesMut::new();
            if banner {
                src.extend_from_slice(BANNER);
            }
            src.extend_from_slice(&tail);
            let _ = decode::<Answer>(&mut src);
        }

        #[test]
        fn names_are_cut(name in "\\PC{0,300}") {
            prop_assert!(cut_name(&name).len() <= NAME_BYTES_MAX && name.starts_with(&cut_name(&name)));
        }
    }
}
