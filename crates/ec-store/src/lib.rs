//! What one storage daemon does with objects: coding, striping, ordering of writes, and bytes on
//! disk.
//!
//! From the ground up, each module knowing only those above it:
//!
//! * [`disk`]: the system calls that std lacks. [`fullness`]: when a disk is nearly full.
//!   [`space`]: what of it is promised to sessions. [`medium`]: files on a disk or in memory,
//!   behind one seam.
//! * [`throttle`]: what of it a core may keep in memory, or unsynced. [`slots`]: how much is done
//!   at a time.
//! * [`superblock`]: whose data directory this is, and who holds it.
//! * [`codec`]: Reed-Solomon, any k of k + m shards give all. [`layout`]: which byte is where.
//! * [`fragment`]: what an OSD holds of an object, a self-describing file with a CRC32C for every
//!   sector.
//! * [`journal`]: what was written and is not yet in fragment files, one log per core.
//! * [`pg`]: the PG write protocol, writer side and shard side, as state machines without I/O.
//! * [`scrub`]: what the sums of an object's shards say of them, as pure functions.
//! * [`core`]: the executor of one core, which drives the machines of its PGs over journal and
//!   fragment files.
//! * [`cluster_lock`]: GlusterFS's way instead of [`pg`]'s, a lock on all servers for each
//!   operation; benches compare with it.
//!
//! Depends on `protocol` for ids and on `messenger` for buffers and executor threads. Knows nothing
//! of sockets, names or cluster maps. Start reading at docs/design/write-path.md, then
//! [`fragment::FragmentFile`] and [`journal::Journal`].
#![deny(unsafe_code)]

pub mod cluster_lock;
pub mod codec;
pub mod core;
pub mod disk;
pub mod fragment;
pub mod fullness;
pub mod journal;
pub mod layout;
pub mod medium;
pub mod pg;
mod poison;
pub mod scrub;
pub mod slots;
pub mod space;
pub mod superblock;
pub mod throttle;
