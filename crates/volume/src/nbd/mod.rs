//! The NBD server: a volume for qemu, nbd-client, libnbd and whatever else speaks the protocol.
//!
//! * [`wire`]: numbers, requests and replies as bytes. [`handshake`]: the options before them.
//! * [`budget`]: how much may be under way. [`outbox`]: replies on their way to a client.
//! * [`connection`]: one client. [`server`]: sockets, and who is connected.
//!
//! The protocol is that of the NBD project's `doc/proto.md`: fixed newstyle, structured replies,
//! `base:allocation`. There is no TLS and no authentication: who reaches the socket has the volume.
//!
//! Contract: a flush covers every write that was answered before it, on whichever connection. No
//! client makes this process keep more than [`budget::BYTES_MAX`] and [`connection::BYTES_MAX`]
//! allow. What makes no sense is answered with an error where the protocol has one for it, and
//! closes the connection where it has none.

pub mod budget;
pub mod connection;
pub mod handshake;
pub mod outbox;
pub mod server;
pub mod wire;

pub use server::{Ended, Listener, Server};
