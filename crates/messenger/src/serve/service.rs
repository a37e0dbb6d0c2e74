//! What the users of connections provide and are told: services, settings, events, errors.

use std::net::SocketAddr;
use std::time::Duration;

use placement::threads::{MappingError, PlacementConfig};
use protocol::ClusterId;
use serde::{Deserialize, Serialize};

use crate::executor::worker::Worker;
use crate::serve::listener::GREETINGS_MAX;
use crate::session::connection::Connection;
use crate::wire::frame::{FrameError, FrameLimits, Message};
use crate::wire::handshake::Refusal;
use crate::wire::late_cluster::LateCluster;

/// Handles the messages of connections. One instance per worker and listener, or per connecting
/// side; it never leaves its worker, so interior mutability without locks will do.
///
/// Handlers run on the worker and must not block; longer work goes into [`Worker::spawn`]. Messages
/// of one connection arrive in order. A handler that panics closes its connection; the worker goes
/// on.
pub trait Service {
    /// A request or one-way message; replies go to the caller's future instead. Both ends may call
    /// each other.
    fn on_message(&self, worker: &Worker, connection: &Connection, message: Message);

    /// Accepting side: a new session. Not called when a session resumes.
    fn on_open(&self, _worker: &Worker, _connection: &Connection, _peer: &PeerInfo) {}

    /// Either side: the connection is closed for good; nothing more will come of it.
    fn on_close(&self, _worker: &Worker, _connection: &Connection, _reason: &CloseReason) {}

    /// Connecting side: what became of the connection.
    fn on_state(&self, _worker: &Worker, _connection: &Connection, _event: &StateEvent) {}

    /// Connecting side: the peer asks whether it may close a connection that carries nothing. True
    /// if this side waits for nothing that the peer says of its own: until this side sends again,
    /// the peer cannot reach it. Unanswered calls and what is queued are looked after. The next
    /// message dials again, into a new session (`Up { resumed: false }`).
    fn on_idle(&self, _worker: &Worker, _connection: &Connection) -> bool {
        false
    }
}

/// A service for a connecting side that only calls: what the peer sends of its own is dropped.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoService;

impl Service for NoService {
    fn on_message(&self, _worker: &Worker, connection: &Connection, message: Message) {
        tracing::debug!(peer = %connection.peer(), kind = message.kind, "message dropped, nothing serves it");
    }

    fn on_idle(&self, _worker: &Worker, _connection: &Connection) -> bool {
        true
    }
}

/// Who is at the other end of an accepted connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// Its address, at the time the session began.
    pub addr: SocketAddr,
    /// The name it gave itself, for logs only: nothing proves it.
    pub name: String,
    /// The lane it asked for.
    pub lane: u16,
    /// Its cluster; zero if it does not know yet.
    pub cluster: ClusterId,
    /// Features that it offers and this side has.
    pub features: u64,
}

/// Events of a connecting side, in [`Service::on_state`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateEvent {
    /// The session is up.
    Up {
        /// True after a reconnect that lost nothing; false at first, and after
        /// [`StateEvent::Reset`].
        resumed: bool,
        /// The peer's cluster.
        cluster: ClusterId,
    },
    /// The TCP connection is lost or was not made; reconnecting goes on. Reported once until the
    /// next `Up`.
    Down {
        /// Why, for logs.
        reason: String,
    },
    /// The peer does not know the session any more: calls failed with [`CallError::Reset`], unsent
    /// messages are gone, and a new incarnation begins. `Up` follows at once.
    Reset,
    /// The peer refuses this side for good; the connection is closed. [`Service::on_close`]
    /// follows.
    Refused(Refusal),
}

/// Why a connection was closed for good.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// [`Connection::close`] here.
    #[error("closed by this side")]
    Local,
    /// [`Connection::close`] there.
    #[error("closed by the peer")]
    Peer,
    /// The client did not come back in time.
    #[error("the peer did not come back within {0:?}")]
    Expired(Duration),
    /// Nothing was carried for [`SessionConfig::idle_timeout`], and the client agreed.
    #[error("nothing was carried for {0:?}")]
    Idle(Duration),
    /// The client began a new incarnation.
    #[error("replaced by a new incarnation of the peer")]
    Replaced,
    /// A frame that no resend could mend.
    #[error("frame refused: {0}")]
    Frame(FrameError),
    /// A message handler panicked.
    #[error("a message handler panicked")]
    Panic,
    /// More one-way messages were queued than the connection may hold.
    #[error("more than {0} bytes were queued for a peer that does not take them")]
    Overflow(usize),
    /// The peer refused the handshake.
    #[error("refused: {0}")]
    Refused(Refusal),
    /// The runtime stopped.
    #[error("the runtime has stopped")]
    Shutdown,
}

/// Why a call has no reply. Whether the peer carried it out is unknown in every case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// No reply within the time given.
    #[error("no reply within the deadline")]
    Deadline,
    /// The peer lost the session, and with it the call.
    #[error("the peer lost the session")]
    Reset,
    /// The connection is closed.
    #[error("the connection is closed")]
    Closed,
    /// A segment is longer than a frame may carry; nothing was sent.
    #[error(transparent)]
    TooLong(FrameError),
}

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum ConnState {
    /// Not up yet.
    Connecting = 0,
    /// Frames flow.
    Up = 1,
    /// TCP is lost, the session is kept.
    Down = 2,
    /// Over.
    Closed = 3,
    /// Connecting side: no TCP and no session until something is sent; see
    /// [`SessionConfig::idle_timeout`].
    Resting = 4,
}

/// Settings that both ends of a connection have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SessionConfig {
    /// Largest segments taken and sent.
    pub limits: FrameLimits,
    /// Received data comes with the checksum of each block ([`Message::block_crcs`]), made while it
    /// is checked.
    pub block_crcs: bool,
    /// Bytes sent and not yet acknowledged, or about to be sent; beyond it calls wait.
    pub send_bytes_max: usize,
    /// Bytes of one-way messages and replies that may wait behind that; beyond it the connection is
    /// closed.
    pub held_bytes_max: usize,
    /// Accepting side: bytes waiting for the socket beyond which nothing more is read from it.
    pub pause_bytes: usize,
    /// Silence after which a peer that owes something is pinged.
    pub ping_after: Duration,
    /// Silence after which a peer that owes something counts as dead and TCP is cut.
    pub dead_after: Duration,
    /// Frames received after which an acknowledgement is sent by itself.
    pub ack_frames: u32,
    /// Bytes received after which an acknowledgement is sent by itself.
    pub ack_bytes: usize,
    /// Time after which an acknowledgement is sent by itself.
    pub ack_after: Duration,
    /// Silence after which a peer that owes nothing is pinged all the same, so that one that
    /// vanished does not keep its session for ever; without a sign of life `dead_after` later TCP
    /// is cut. Peers that live are never cut.
    pub idle_after: Duration,
    /// Time for a frame from its first byte to its last; then TCP is cut. Time in which this side
    /// reads nothing on purpose does not count.
    pub frame_max: Duration,
    /// Accepting side: requests handed to the service and not answered, beyond which nothing more
    /// is read. A request that a service never answers counts until the session ends.
    pub requests_max: usize,
    /// Accepting side: bytes of such requests, beyond which nothing more is read.
    pub request_bytes_max: usize,
    /// Time for a TCP connection and the handshake over it.
    pub handshake_max: Duration,
    /// Connecting side: first pause before another attempt; doubles, with jitter.
    pub backoff_min: Duration,
    /// Connecting side: longest pause.
    pub backoff_max: Duration,
    /// Accepting side: how long a session without TCP is kept.
    pub forget_after: Duration,
    /// Accepting side: time without a message (pings are none) after which the session ends, if
    /// neither side waits for anything and the client's [`Service::on_idle`] agrees; it comes back
    /// when it has something to send. `None`: never.
    pub idle_timeout: Option<Duration>,
}

impl Default for SessionConfig {
    /// 64 MiB in flight (four of the largest frames, or what a 10 Gbit/s link carries in 50 ms),
    /// dead after six seconds. A frame of 16 MiB takes a minute at 2.3 Mbit/s. The bounds of
    /// requests are far above what one client has in flight (`objecter_inflight_ops`): they are for
    /// peers that do not keep to it.
    fn default() -> SessionConfig {
        SessionConfig {
            limits: FrameLimits::default(),
            block_crcs: false,
            send_bytes_max: 64 << 20,
            held_bytes_max: 256 << 20,
            pause_bytes: 16 << 20,
            ping_after: Duration::from_secs(2),
            dead_after: Duration::from_secs(6),
            ack_frames: 128,
            ack_bytes: 64 << 10,
            ack_after: Duration::from_millis(100),
            idle_after: Duration::from_secs(60),
            frame_max: Duration::from_secs(60),
            requests_max: 16_384,
            request_bytes_max: 256 << 20,
            handshake_max: Duration::from_secs(3),
            backoff_min: Duration::from_millis(20),
            backoff_max: Duration::from_secs(1),
            forget_after: Duration::from_secs(30),
            idle_timeout: None,
        }
    }
}

/// Settings of [`crate::Handle::listen`].
#[derive(Clone, Debug)]
pub struct ListenConfig {
    /// Address to listen on; port 0 takes a free one.
    pub addr: SocketAddr,
    /// The cluster this side belongs to.
    pub cluster: LateCluster,
    /// How connections are mapped to workers, at first; see [`crate::Listener::set_placement`].
    pub placement: PlacementConfig,
    /// Name of this side, for the peer's logs.
    pub name: String,
    /// Worker that accepts and greets.
    pub worker: usize,
    /// Sessions that it takes, those without TCP included; beyond it new ones are refused, and
    /// those that it has come back all the same. Default 10,000.
    pub connections_max: u32,
    /// Sockets that have not said who they are, at once; a newcomer beyond it takes the place of
    /// the oldest, so that none that keep silent keep others out. Default [`GREETINGS_MAX`].
    pub greetings_max: usize,
    /// Peers on this host that dial `addr` itself come through a Unix socket instead of the
    /// loopback device, if this process runs as root or as their user. Default true.
    pub local_sockets: bool,
    /// Settings of the connections.
    pub session: SessionConfig,
}

impl ListenConfig {
    /// Default settings: core-affine, accepting on worker 0.
    pub fn new(
        addr: SocketAddr,
        cluster: impl Into<LateCluster>,
        name: impl Into<String>,
    ) -> ListenConfig {
        ListenConfig {
            addr,
            cluster: cluster.into(),
            placement: PlacementConfig::default(),
            name: name.into(),
            worker: 0,
            connections_max: 10_000,
            greetings_max: GREETINGS_MAX,
            local_sockets: true,
            session: SessionConfig::default(),
        }
    }
}

/// Settings of [`crate::Handle::connect`].
#[derive(Clone, Debug)]
pub struct ConnectConfig {
    /// Address of the peer.
    pub addr: SocketAddr,
    /// The cluster this side belongs to; every handshake names it, if it is known by then.
    pub cluster: LateCluster,
    /// The core of the peer whose data will be used; the peer's mapping may follow it.
    pub lane: u16,
    /// Name of this side, for the peer's logs; at most 256 bytes are sent.
    pub name: String,
    /// Settings of the connection.
    pub session: SessionConfig,
}

impl ConnectConfig {
    /// Default settings: lane 0.
    pub fn new(
        addr: SocketAddr,
        cluster: impl Into<LateCluster>,
        name: impl Into<String>,
    ) -> ConnectConfig {
        ConnectConfig {
            addr,
            cluster: cluster.into(),
            lane: 0,
            name: name.into(),
            session: SessionConfig::default(),
        }
    }
}

/// Why listening failed.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another socket has the address.
    #[error(
        "address {0} is in use: stop the process that has it (see `ss -ltnp`), or configure another port"
    )]
    AddrInUse(SocketAddr),
    /// The address is not one of this machine's.
    #[error(
        "address {0} is not one of this machine's: configure one that `ip address` shows, or 0.0.0.0"
    )]
    AddrNotAvailable(SocketAddr),
    /// The mapping cannot be used.
    #[error(transparent)]
    Mapping(#[from] MappingError),
    /// There is no such worker.
    #[error("worker {0} does not exist")]
    NoWorker(usize),
    /// The runtime has stopped.
    #[error("the runtime has stopped")]
    Stopped,
    /// Anything else the kernel says.
    #[error("cannot listen on {addr}: {source}")]
    Io {
        /// The address asked for.
        addr: SocketAddr,
        /// What the kernel said.
        source: std::io::Error,
    },
}
