//! What is on the wire: [`frame`] has the format, [`handshake`] what comes before the first frame,
//! [`checksum`] what a frame is checked with; [`tx`] queues frames that are to be sent,
//! [`frame_socket`] moves them through a socket. [`late_cluster`] is the cluster's id for a
//! handshake, where it is learnt after the start.

#[expect(unsafe_code, reason = "CRC instructions")]
pub mod checksum;
pub mod frame;
pub(crate) mod frame_socket;
pub mod handshake;
pub(crate) mod late_cluster;
pub(crate) mod tx;
