//! The PG write protocol as state machines without I/O; see docs/design/write-path.md.
//!
//! Contract: nothing here opens a file or a socket or reads a clock; time and storage are passed
//! in. Every line that carries a rule of the protocol names it (`Rule: ApplyStable`), so that a
//! rule can be found.
//!
//! * [`session`]: the writer's side, one machine for each (session, PG).
//! * [`shard`]: the shard's side, one machine for each PG that an OSD holds a shard of.
//! * [`view`]: what the machines need of the cluster map.

pub mod session;
pub mod shard;
pub mod view;

pub use session::{
    Action, NewWrite, PgSession, Piece, ReadToken, Refusal, Request, SessionSettings, Space,
    WritePieces,
};
pub use view::{PgView, SessionStanding, SessionTable, ShardView};
