//! What every client links: sessions, object I/O, striping, leases, and the file system as an async
//! API.
//!
//! * [`config`]: settings. [`error`]: why an operation failed, and its errno.
//! * [`session`]: [`Client`], one session with a cluster: the map, calls to the monitor and the
//!   metadata service.
//! * [`objecter`]: [`LocalIo`], a worker's share of the client: reading and writing the data of
//!   files.
//! * [`fs`]: the file system on top, as an async API: leases, sizes and times, directories.
//! * [`blob`]: named objects. [`data_worker`]: removing and measuring the data of files, for the
//!   metadata service.
//!
//! Knows nothing of FUSE. Start reading at [`Client::connect`] and [`LocalIo::write`].
#![forbid(unsafe_code)]

pub mod blob;
pub mod config;
pub mod data_worker;
pub mod error;
pub mod fs;
pub mod objecter;
pub mod session;

pub use blob::BlobStat;
pub use config::{
    ClientConfig, INFLIGHT_BYTES_MAX, INFLIGHT_BYTES_MIN, INFLIGHT_OPS_MAX, ReadPolicy,
};
pub use data_worker::DataWorker;
pub use error::ClientError;
pub use objecter::{Behind, Ending, FileRef, LocalIo, Sought, WriterHint};
pub use session::{Answered, Client, ClientEvent, Term, ask_monitor};
