//! Pure placement algorithms: which worker serves a connection, which OSDs hold a placement group,
//! which core serves a file.
//!
//! * [`threads`]: the mappings of connections to messenger workers (`ms_mapping`).
//! * [`objects`]: straw2 over the tree of racks, hosts and OSDs.
//! * [`files`]: the core of a file, by table or by arithmetic.
//!
//! What this crate is not: it does no I/O, reads no clock, starts no thread, draws no random number
//! and knows nothing of sockets and disks. It depends on nothing of Trefoil, so it takes plain
//! integers. Start reading at [`objects::select`].
#![forbid(unsafe_code)]

pub mod files;
pub mod objects;
pub mod threads;
