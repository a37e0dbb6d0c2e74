//! Talk with an OSD about scrubbing, and what it tells the monitor of it.
//!
//! Contract: an OSD answers for the placement groups that it leads, those whose lowest in-sync
//! shard it holds.

use crate::ids::{ObjectId, OsdId, PgId, ShardIndex, ShardSet};
use serde::{Deserialize, Serialize};

/// Findings that travel in one report, at most; the rest is counted.
pub const FINDINGS_REPORTED_MAX: usize = 64;

/// A request to an OSD; each is a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScrubRequest {
    /// Scrub soon.
    Start {
        /// Only this one, if you lead it; else all that you lead.
        pg: Option<PgId>,
        /// Parity across shards, too.
        deep: bool,
    },
    /// How far are you?
    Status,
    /// This shard of the object is wrong: rebuild what does not match there from the others, and
    /// check again.
    Repair {
        /// The PG.
        pg: PgId,
        /// The object.
        object: ObjectId,
        /// The shard to distrust.
        shard: ShardIndex,
    },
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScrubReply {
    /// To `Start`.
    Started {
        /// These will be scrubbed.
        pgs: Vec<PgId>,
        /// The OSD's clock, in seconds since 1970: scrubs that end later have later times.
        at_secs: u64,
    },
    /// To `Status`.
    Status(ScrubStatus),
    /// To `Repair`: the object's shards match now.
    Repaired,
    /// Not like this, and why, in words for the operator.
    Refused(String),
}

/// Scrubbing at one OSD.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubStatus {
    /// The PG being scrubbed.
    pub running: Option<PgId>,
    /// PGs asked for and not begun.
    pub waiting: Vec<PgId>,
    /// The PGs that it leads or led.
    pub pgs: Vec<PgScrub>,
    /// Everything found and not repaired.
    pub findings: Vec<ScrubFinding>,
    /// Totals since the start of the OSD.
    pub totals: ScrubTotals,
}

/// When a PG was scrubbed last, in seconds since 1970, by the OSD's clock; 0: never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PgScrub {
    /// Which.
    pub pg: PgId,
    /// Checksums of every shard were checked.
    pub light_secs: u64,
    /// And parity across shards.
    pub deep_secs: u64,
}

/// Shards of an object that do not match, where the evidence does not say which is wrong, or that
/// could not be repaired.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubFinding {
    /// The PG.
    pub pg: PgId,
    /// The object.
    pub object: ObjectId,
    /// The OSDs of its shards, by shard number.
    pub acting: Vec<OsdId>,
    /// First byte of the fragments that does not match.
    pub offset: u64,
    /// From there to the last one, in bytes.
    pub length: u64,
    /// Shards that the evidence is against; empty: it does not decide.
    pub wrong: ShardSet,
}

/// Totals of scrubbing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubTotals {
    /// PGs whose scrub came to its end.
    pub pgs: u64,
    /// Objects looked at.
    pub objects: u64,
    /// Bytes of fragments read, over all shards.
    pub bytes: u64,
    /// Ranges that failed their checksums, and fragments that were missing or did not match.
    pub found: u64,
    /// Of them repaired.
    pub repaired: u64,
    /// Objects left out as they were being written all the time; the next scrub looks at them
    /// again.
    pub skipped: u64,
}

impl ScrubTotals {
    /// Adds others.
    pub fn add(&mut self, other: ScrubTotals) {
        let ScrubTotals { pgs, objects, bytes, found, repaired, skipped } = other;
        self.pgs += pgs;
        self.objects += objects;
        self.bytes += bytes;
        self.found += found;
        self.repaired += repaired;
        self.skipped += skipped;
    }
}

/// Part of an OSD's heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubReport {
    /// The PG being scrubbed.
    pub running: Option<PgId>,
    /// Totals since the start of the OSD.
    pub totals: ScrubTotals,
    /// Objects found and not repaired.
    pub open: u64,
    /// Of them the first [`FINDINGS_REPORTED_MAX`].
    pub findings: Vec<ScrubFinding>,
}
