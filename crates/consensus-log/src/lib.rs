//! What a host of [`consensus`] wants kept, on a disk: one log for all groups of a process, and a
//! file with the newest snapshot of each.
//!
//! * [`LogStore::create`] begins a directory, as a new replica: with a group's first state, or with
//!   nothing, to be told everything by others.
//! * [`LogStore::open`] gives back what [`consensus::Host::open`] begins with.
//! * [`LogStore::keep`] keeps what [`consensus::Output::Persist`] asks for, several at once with
//!   one sync; then [`consensus::Host::persisted`] may be called.
//!
//! The log is an [`ec_store::journal::Journal`]: its segments, checksums, torn tails and poisoning.
//! It holds [`consensus::Record`]s, and at the beginning of each segment a checkpoint with the
//! promises of all groups, so that old segments can go once their entries are in snapshots.
//!
//! | file | what |
//! |---|---|
//! | `replica` | which replica this directory is (`file`) |
//! | `log/` | the journal |
//! | `snapshot.GROUP` | the newest snapshot of a group (`file`) |
//!
//! A directory that lost what it had synced is refused. Rule: NewIdentity - the way out is another
//! directory, created anew: its replica asks the others to be taken in.
//!
//! What it is not: it starts no thread; [`LogStore::keep`] waits for the disk, so it belongs on a
//! thread of its own beside the one that steps the host.
#![forbid(unsafe_code)]

mod file;
mod store;

pub use store::{LogConfig, LogError, LogStore};
