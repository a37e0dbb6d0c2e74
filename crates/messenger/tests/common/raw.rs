//! A peer that is no messenger: sockets and bytes by hand.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use bytes::BytesMut;
use messenger::handshake::{AUTH_NONE, Answer, Hello, decode, encode};
use protocol::ClusterId;

/// The first bytes of a connecting side.
pub fn hello(cluster: ClusterId, cookie: u128) -> Vec<u8> {
    let name = "raw".into();
    let hello =
        Hello { features: 0, cluster, auth_method: AUTH_NONE, cookie, resume: None, lane: 0, name };
    encode(&hello).to_vec()
}

/// A socket whose handshake is done.
pub fn greeted(addr: SocketAddr, cluster: ClusterId, cookie: u128) -> TcpStream {
    let mut stream = TcpStream::connect(addr).expect("accepts");
    stream.write_all(&hello(cluster, cookie)).expect("sent");
    let mut buf = BytesMut::new();
    loop {
        if let Some(answer) = decode::<Answer>(&mut buf).expect("an answer") {
            assert!(matches!(answer, Answer::Welcome(_)), "{answer:?}");
            return stream;
        }
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("an answer");
        buf.extend_from_slice(&byte);
    }
}
