//! The cluster lock: how GlusterFS keeps the shards of a file alike, as the baseline for per-core
//! ordering.
//!
//! After "Per-core file allocation method for eliminating the overhead of maintaining consistency
//! between nodes in a distributed file system" (Woohyung Han, Seoul National University, 2017),
//! "the thesis" in this module. A server that lets several threads carry out what it receives may
//! mix two operations in another order than its neighbour does (Figure 2.3); so a client locks the
//! file on every server first (section 2.3, Figure 2.4).
//!
//! Contract: no I/O, no clock, no threads; time and messages come as parameters, and what is to be
//! sent is returned.
//!
//! * [`LockTable`]: a server's locks. Tries that are refused at once, waits that are served in
//!   turn, and everything of a client that is gone.
//! * [`Acquisition`]: one client on its way to a lock on all servers, in the two phases of Figure
//!   2.4.
//! * [`FileLock`]: one client's operations on one file under such locks, by [`Policy`]: locked for
//!   each operation, kept for a while (GlusterFS's eager locking), or taken when the file is
//!   opened, as in the thesis's own design.
//!
//! Trefoil's storage daemons use none of this: [`crate::pg`] orders writes instead. `cargo xtask
//! bench consistency` measures both. What GlusterFS does besides, reading and updating a version
//! and a size in extended attributes with the lock, is not here, so that what is measured is the
//! lock alone.

mod acquisition;
mod file;
mod table;
#[cfg(test)]
mod tests;

pub use acquisition::{Acquisition, Ask, LockCounts, Request, Requests, Unexpected};
pub use file::{Action, Actions, FileLock, Policy, Reply};
pub use table::{Grant, Holders, LockTable, NotHeld, Refused, Waited};

use protocol::{Gfid, SessionId};

/// What is done under a lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Access {
    /// Others may have it at the same time.
    Shared,
    /// Nobody else has it.
    Exclusive,
}

impl Access {
    /// Is what needs `other` allowed under this?
    pub const fn covers(self, other: Access) -> bool {
        matches!((self, other), (Access::Exclusive, _) | (Access::Shared, Access::Shared))
    }
}

/// Who asks for a lock: locks of one owner never conflict.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LockOwner {
    /// The client; when it is gone, its locks are.
    pub client: SessionId,
    /// What tells the owners in one client apart.
    pub key: u64,
}

/// A part of a file: bytes `start..end`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LockRange {
    start: u64,
    end: u64,
}

impl LockRange {
    /// The whole file, however long: what GlusterFS 3.9, the thesis's, locks.
    pub const WHOLE: LockRange = LockRange { start: 0, end: u64::MAX };

    /// A range in bytes; `None` if it is empty.
    pub const fn new(start: u64, end: u64) -> Option<LockRange> {
        if start < end { Some(LockRange { start, end }) } else { None }
    }

    /// Do they have a byte in common?
    pub const fn overlaps(self, other: LockRange) -> bool {
        self.start < other.end && other.start < self.end
    }
}

/// A lock as it is asked for and held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lock {
    /// Whose.
    pub owner: LockOwner,
    /// Of which file.
    pub file: Gfid,
    /// Of which part.
    pub range: LockRange,
    /// What for.
    pub access: Access,
}

impl Lock {
    /// May the two not be held at the same time? Both are of the same file.
    fn conflicts(&self, other: &Lock) -> bool {
        let is_shared = self.access == Access::Shared && other.access == Access::Shared;
        self.owner != other.owner && !is_shared && self.range.overlaps(other.range)
    }
}
