//! What a core counts: for the operator and for tests, decides nothing.

#[cfg(doc)]
use crate::throttle::Throttles;
use crate::throttle::WriteBacks;
use protocol::monitor::{Fullness, PgBacklog};

/// What a core has done since it was opened, and holds now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CoreStats {
    /// Reads served.
    pub reads: u64,
    /// Bytes of them.
    pub read_bytes: u64,
    /// Write messages taken in.
    pub writes: u64,
    /// Bytes of them.
    pub write_bytes: u64,
    /// Ranges that failed their checksum.
    pub corrupt_found: u64,
    /// Ranges repaired from other shards.
    pub corrupt_repaired: u64,
    /// Bytes rebuilt.
    pub rebuilt_bytes: u64,
    /// Bytes of what had to be rebuilt that are dealt with, in the unit of [`PgBacklog::bytes`].
    pub recovered_bytes: u64,
    /// Bytes that its fragments take on the disk, when they were last looked at.
    pub stored_bytes: u64,
    /// Bytes in the journal.
    pub journal_bytes: u64,
    /// Records in the journal.
    pub journal_records: u64,
    /// What is to be rebuilt here, for PGs that this shard is outside the in-sync set of.
    pub to_rebuild: Vec<PgBacklog>,
    /// Syncs that ended well.
    pub syncs: u64,
    /// Bytes of journalled writes that wait in memory to be applied.
    pub queued_bytes: u64,
    /// How often sessions were asked to begin no more writes, the journal having room, as
    /// [`Throttles::queue_bytes_max`] was reached.
    pub holds_by_queue: u64,
    /// The same as [`Throttles::committing_bytes_max`] was reached.
    pub holds_by_commit: u64,
    /// Syncs that began because of that bound.
    pub syncs_by_commit: u64,
    /// Beginnings of write-back.
    pub write_backs: WriteBacks,
    /// Background disk jobs: of scrubs, rebuilding, returning space.
    pub disk_jobs: u64,
    /// Most of them that were under way at a time.
    pub disk_jobs_at_once: u64,
    /// How full the disk is.
    pub fullness: Fullness,
    /// PGs whose backfill waits for space.
    pub backfills_waiting: u64,
}
