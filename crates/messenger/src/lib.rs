//! A small async runtime on `mio`, and messages between daemons over it.
//!
//! What it is: workers (one thread, one reactor, one run queue each), timers, tasks that never leave their worker, I/O
//! threads for what blocks; frames with checksums and sequence numbers; sessions that survive their TCP connections;
//! calls with deadlines, in both directions. What it is not: a general runtime, or a name service; it knows nothing of
//! objects and files. It depends on `placement` (which worker serves a connection) and `protocol` (version, cluster id).
//!
//! The main types: [`Runtime`] and its [`Handle`] (from any thread), [`Worker`] (the context of what runs on a worker),
//! [`Service`] (handles messages), [`Connection`] and [`Message`].
//!
//! ```
//! use std::rc::Rc;
//! use std::time::Duration;
//! use bytes::Bytes;
//! use messenger::{ConnectConfig, Connection, ListenConfig, Message, NoService, Runtime, RuntimeConfig, Service};
//! use messenger::{TrafficClass, Worker, sync::block_on};
//!
//! struct Echo;
//! impl Service for Echo {
//!     fn on_message(&self, _worker: &Worker, connection: &Connection, message: Message) {
//!         connection.reply(&message, 2, message.front.clone(), message.data.clone());
//!     }
//! }
//!
//! let runtime = Runtime::start(RuntimeConfig::new("example", 2)).unwrap();
//! let handle = runtime.handle();
//! let cluster = protocol::ClusterId::new(7);
//! let any_port = "127.0.0.1:0".parse().unwrap();
//! let listener = handle.listen(ListenConfig::new(any_port, cluster, "server"), |_| Rc::new(Echo)).unwrap();
//! let to = ConnectConfig::new(listener.local_addr(), cluster, "client");
//! let connection = handle.connect(0, to, |_| Rc::new(NoService));
//! let request = Message::new(TrafficClass::Client, 1, Bytes::from_static(b"hello"), Bytes::new());
//! let reply = block_on(connection.call(request, Duration::from_secs(5))).unwrap();
//! assert_eq!(&reply.front[..], b"hello");
//! ```
//!
//! Start reading at [`frame`] for the wire format, `session` for what makes a connection lossless, `driver` for what
//! keeps it up, and `worker` for the loop.
#![deny(unsafe_code)]

pub mod address;
mod blocking;
mod brevity;
pub mod buffer;
mod busy_poll;
mod channel;
mod connection;
mod connections;
mod counters;
mod doze;
mod driver;
pub mod exposition;
pub mod frame;
mod gate;
pub mod handshake;
pub mod histogram;
mod history;
pub mod http;
mod late_cluster;
#[expect(unsafe_code, reason = "memory that is shared with other processes")]
mod lending;
mod listener;
mod locals;
mod lock;
mod mailbox;
mod meter;
mod notice;
mod operation;
mod placing;
mod reactor;
mod runtime;
mod service;
mod session;
mod staff;
mod station;
mod stream;
#[expect(unsafe_code, reason = "CRC instructions")]
pub mod sums;
pub mod sync;
mod task;
pub mod telemetry;
mod timer;
mod tx;
mod whereabouts;
mod wire;
mod worker;

pub use blocking::JobFailed;
pub use brevity::Brevity;
pub use channel::Gone;
pub use connection::{Call, Connection};
pub use connections::{
    CONNECTIONS_REPORTED_MAX, ConnectionStats, Forecast, ListenerStats, SEATS_REPORTED_MAX, SeatStats,
};
pub use counters::{POLL_CLASSES, POLL_EVENTS_BOUNDS, WorkerFigure, WorkerStats};
pub use frame::{FrameError, FrameLimits, Message, ReplyTo, TrafficClass};
pub use handshake::Refusal;
pub use history::{History, HistoryEnd, HistoryEntry, HistoryMode, HistoryReport, Recording, UnknownHistoryMode};
pub use late_cluster::LateCluster;
pub use listener::Listener;
pub use operation::{Began, Layer, Operation, OperationStats, OperationTable, Stopwatch};
pub use placement::threads::{Change, LcamRule, Mapping, MappingError, MaxEvents, Move, PlacementConfig};
pub use runtime::{Handle, Runtime, RuntimeConfig, RuntimeError};
pub use service::{
    CallError, CloseReason, ConnState, ConnectConfig, ListenConfig, ListenError, NoService, PeerInfo, Service,
    SessionConfig, StateEvent,
};
pub use task::TaskHandle;
pub use telemetry::TelemetryReport;
pub use timer::{Elapsed, Sleep};
pub use worker::Worker;
