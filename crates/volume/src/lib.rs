//! Volumes: disks of fixed size for virtual machines, and the NBD server that gives them out.
//!
//! * [`Volumes`]: a session with a cluster, and the volumes there: make, list, resize, remove.
//! * [`Volume`]: one that is open, by this process alone: reads, writes, flushes.
//! * [`copy`]: to and from files, sparse both ways.
//! * [`limits`]: how much of a volume may be used in a second, as numbers and as a state machine.
//! * [`nbd`]: the server.
//!
//! A volume is a file in a hidden directory of the cluster's namespace, so that it has leases, a
//! size, recovery after a crash, and removal in the background as files have. Whoever opens one
//! takes a lock on all of it (`fcntl`'s, which the metadata service keeps): a second opener is
//! refused, and the lock goes with the session of a process that dies, after its last writes are
//! decided.
//!
//! Knows nothing of FUSE. Start reading at [`Volumes::open`] and [`Volume::submit`].
#![forbid(unsafe_code)]

pub mod copy;
pub mod error;
pub mod limits;
pub mod name;
pub mod nbd;
pub mod volume;
pub mod volumes;

pub use error::VolumeError;
pub use limits::{Limits, Rate};
pub use name::VolumeName;
pub use volume::{Access, Extent, Outcome, Request, Volume};
pub use volumes::{Holder, VolumeInfo, Volumes};

/// Bytes of a sector: sizes of volumes are multiples of it.
pub const SECTOR_BYTES: u64 = 512;
