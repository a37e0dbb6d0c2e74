//! A seeded simulator of the write path: the real state machines over a simulated network, disks
//! and clock.
//!
//! One PG of 2 + 1 shards, up to three sessions, two files of one object each. Sessions, shards
//! with their ways back, the monitor, the metadata service and what a client may do with its leases
//! are the product's own machines ([`ec_store::pg`], [`cluster::Monitor`], [`metadata::Service`],
//! [`metadata::lease::holder`]); what drives them here follows what drives them there
//! (`ec_store::core`, `osd-daemon`, `client`), with everything that is awaited as a step of its
//! own. Every message, map change and background step may be late by any amount; faults are drawn
//! per seed. What must hold is checked after each step, by the names of docs/develop/simulator.md
//! ([`check`]). A seed always gives the same walk; what breaks an invariant is shrunk and told step
//! by step.
//!
//! With the feature `switches` rules of the protocol can be turned off: [`canaries`] says with
//! which seeds an invariant breaks then, for every rule, alone or with the one that does its work,
//! too.
//!
//! What it is not: it reads and writes no real file and opens no socket, so it says nothing of
//! `ec_store::core`'s own code, of the journal's and the fragment files' formats, or of the
//! messenger.
#![forbid(unsafe_code)]

pub mod act;
pub mod canaries;
pub mod check;
pub mod client;
pub mod control;
pub mod disk;
pub mod focus;
pub mod lease;
pub mod node;
pub mod partition;
pub mod quorum;
pub mod rot;
pub mod step;
pub mod walk;
pub mod way;
pub mod world;

pub use act::{Act, Fault};
pub use focus::Focus;
pub use walk::{Found, Run, walk};
