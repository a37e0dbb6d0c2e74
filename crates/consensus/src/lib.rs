//! Replicated logs: several replicas hold the same entries in the same order, and go on while a
//! majority of them lives.
//!
//! The algorithm is the `raft` crate's (TiKV); the module `node` is the only one that names it.
//! Around it, and ours: what is written in which order, what is answered when, who a replica is
//! after it lost its disk, what a frame may say.
//!
//! * [`Host`]: all groups of a process. Frames, ticks and the time go in, [`Output`]s come out.
//! * [`Frame`]: what replicas send each other, and its layout.
//! * [`Persist`]: what has to be on the disk before the host goes on, and in which order.
//!
//! The rules are those of `docs/design/rules.md`: CommitPublish, ConfirmRenew, BootQuiet,
//! NewIdentity, HardSync, SnapOrder. `crates/simulation` shows that each is needed.
//!
//! What it is not: it opens no file and no socket, reads no clock and starts no thread. It does not
//! know what entries mean.
//!
//! ```
//! use consensus::{Config, GroupId, Host, NodeId, Output, Recovered, ReplicaId, TICK, Voters};
//! use std::time::Duration;
//!
//! let replica = ReplicaId::new(NodeId(1), 1).unwrap();
//! let rules = protocol::Rules::default();
//! let config = Config { replica, peers: vec![], boot: 1, seed: 1, rules };
//! let first = Recovered::first(GroupId(0), Voters::of([replica]), "empty".into());
//! let mut host = Host::open(config, vec![first], Duration::ZERO).unwrap();
//! let mut now = Duration::ZERO;
//! let mut given = Vec::new();
//! while given.is_empty() {
//!     now += TICK;
//!     host.tick(now);
//!     let _ = host.propose(GroupId(0), "an entry".into());
//!     for output in host.outputs().collect::<Vec<_>>() {
//!         match output {
//!             Output::Persist(persist) => host.persisted(persist.number, now), // a disk that is fast
//!             Output::Committed { entries, .. } => given.extend(entries),
//!             _ => {}
//!         }
//!     }
//! }
//! assert_eq!(&given[0].data[..], b"an entry");
//! ```
#![forbid(unsafe_code)]

pub mod frame;
mod group;
mod guard;
mod host;
mod memlog;
mod node;
mod quiet;
pub mod record;
mod types;

pub use frame::{Body, Frame, FrameError};
pub use host::{AskError, Config, Host, LEASE, OpenError, Status, TICK};
pub use record::{Record, Replay};
pub use types::{
    Change, ENTRY_BYTES_MAX, Entry, EntryKind, GroupId, HardState, INCARNATION_MAX, INDEX_MAX,
    Index, NodeId, Outcome, Output, Persist, REPLICAS_MAX, Recovered, ReplicaId, Role,
    SNAPSHOT_BYTES_MAX, Snapshot, Step, TERM_MAX, Term, Ticket, VoterChange, Voters,
};
