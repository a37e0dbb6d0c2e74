//! A small async runtime on `mio`, and messages between daemons over it.
//!
//! What it is: workers (one thread, one reactor, one run queue each), timers, tasks that never
//! leave their worker, I/O threads for what blocks; frames with checksums and sequence numbers;
//! sessions that survive their TCP connections; calls with deadlines, in both directions. What it
//! is not: a general runtime, or a name service; it knows nothing of objects and files. It depends
//! on `placement` (which worker serves a connection) and `protocol` (version, cluster id).
//!
//! The main types: [`Runtime`] and its [`Handle`] (from any thread), [`Worker`] (the context of
//! what runs on a worker), [`Service`] (handles messages), [`Connection`] and [`Message`].
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
//! Start reading at [`frame`] for the wire format, `session` for what makes a connection lossless,
//! `driver` for what keeps it up, and `worker` for the loop.
#![deny(unsafe_code)]

mod executor;
mod io;
mod mapping;
mod serve;
mod session;
#[expect(unsafe_code, reason = "memory that is shared with other processes")]
mod shm;
pub mod sync;
pub mod telemetry;
mod wire;

pub use executor::blocking::JobFailed;
pub use executor::class_queue::{
    CHARGED_BYTES_MAX, CLASS_WEIGHT_MAX, CLASSES, COST_PER_WEIGHT, ClassFigures, ClassName,
    ClassOrder, ClassOrderError, ClassQueue, ClassWeightError, ClassWeights, IDLE_ENTRIES_MAX,
    OPERATION_COST,
};
pub use executor::inline_predictor::InlinePredictor;
pub use executor::runtime::{Handle, Runtime, RuntimeConfig, RuntimeError};
pub use executor::task::TaskHandle;
pub use executor::timer::{Elapsed, Sleep};
pub use executor::worker::Worker;
pub use io::{address, buffer};
pub use placement::threads::{
    Change, LcamRule, Mapping, MappingError, MaxEvents, Move, PlacementConfig,
};
pub use serve::listener::Listener;
pub use serve::service::{
    CallError, CloseReason, ConnState, ConnectConfig, ListenConfig, ListenError, NoService,
    PeerInfo, Service, SessionConfig, StateEvent,
};
pub use session::connection::{Call, Connection};
pub use sync::Gone;
pub use telemetry::classes::{CLASS_FIGURES, ClassFigure, ClassMeter, ClassStats, ClassTable};
pub use telemetry::connections::{
    AttachmentStats, CONNECTIONS_REPORTED_MAX, ConnectionStats, Forecast, ListenerStats,
    SEATS_REPORTED_MAX,
};
pub use telemetry::counters::{POLL_CLASSES, POLL_EVENTS_BOUNDS, WorkerFigure, WorkerStats};
pub use telemetry::history::{
    History, HistoryEnd, HistoryEntry, HistoryMode, HistoryReport, Recording, UnknownHistoryMode,
};
pub use telemetry::operation::{
    Began, Layer, Operation, OperationStats, OperationTable, Stopwatch,
};
pub use telemetry::{TelemetryReport, histogram, http, prometheus};
pub use wire::frame::{FrameError, FrameLimits, Message, ReplyTo, TrafficClass};
pub use wire::handshake::Refusal;
pub use wire::late_cluster::LateCluster;
pub use wire::{checksum, frame, handshake};
