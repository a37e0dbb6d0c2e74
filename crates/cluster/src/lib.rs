//! The cluster map, the monitor as a pure state machine, and the control plane that keeps what it
//! must not forget.
//!
//! * [`map`]: the cluster map, a value that daemons and clients receive.
//! * [`state`]: [`MonitorState`], the map and what the monitor keeps beside it: all that must
//!   survive a restart.
//! * [`monitor`]: [`Monitor`], the rules: who is up, in-sync sets, epochs, sessions and the
//!   resolution of dead ones. Messages and time go in; replies, a new map and questions to OSDs
//!   come out.
//! * [`delta`]: [`StateDelta`], what changed of that state: what a replicated log of it will carry.
//! * [`control`]: [`ControlPlane`], where the state is kept: [`Embedded`], one file. (etcd is meant
//!   to come behind the same trait.)
//!
//! What this crate is not: it opens no socket, starts no thread, and only [`control`] touches a
//! disk. It knows nothing of files and file systems. The monitor role around it lives in
//! `osd-daemon`.
//!
//! Depends on `protocol` and `placement`. Start reading at [`Monitor::handle`], and for the rules
//! at `monitor/pg.rs` beside docs/design/write-path.md, whose names it uses.
#![forbid(unsafe_code)]

pub mod control;
pub mod delta;
pub mod map;
pub mod monitor;
pub mod state;

pub use control::{ControlError, ControlPlane, Embedded};
pub use delta::{Mismatch, StateDelta};
pub use map::{ClusterMap, Osd, Pg, Pool, SessionState};
pub use monitor::{Action, CreateError, ExpectedOsd, Monitor, PoolSpec, Settings, create_cluster};
pub use state::{MonitorState, PgState};
