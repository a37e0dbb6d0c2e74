//! What may be amiss with a cluster: a code for each thing, as operators and their tools know it.
//!
//! Contract: codes are an interface; they are added, never renamed or removed. Where Ceph has one
//! for the same thing, it is Ceph's. What is to be done is told for each in docs/use/health.md.

use crate::monitor::Health;
use serde::{Deserialize, Serialize};

/// Lines of detail of one check, at most; how many more there are is said in the last.
pub const DETAIL_LINES_MAX: usize = 50;

macro_rules! health_codes {
    ($($(#[doc = $doc:literal])+ $name:ident = $word:literal: $todo:literal,)+) => {
        /// A thing that may be amiss.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum HealthCode {
            $($(#[doc = $doc])+ $name,)+
        }

        impl HealthCode {
            /// All of them.
            pub const ALL: &[HealthCode] = &[$(HealthCode::$name),+];

            /// Its word.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(HealthCode::$name => $word,)+
                }
            }

            /// What the operator can do, in a sentence.
            pub const fn what_to_do(self) -> &'static str {
                match self {
                    $(HealthCode::$name => $todo,)+
                }
            }
        }
    };
}

health_codes! {
    /// PGs that serve nothing now.
    PgAvailability = "PG_AVAILABILITY":
        "start the OSDs that are down; nothing is lost while their disks are there",
    /// Monitors that take no part, or none that leads.
    MonDown = "MON_DOWN":
        "see whether their processes run (osd-daemon with the role monitor), what they log, and whether the monitors \
         reach each other; with less than half of them nothing decides",
    /// PGs with fewer shards than they should have.
    PgDegraded = "PG_DEGRADED":
        "start the OSDs that are down, or replace their disks; `trefoil status` shows what is being rebuilt",
    /// OSDs that do not answer.
    OsdDown = "OSD_DOWN":
        "see whether their processes run (osd-daemon with the role osd), and what they log",
    /// OSDs at which writers get ENOSPC.
    OsdFull = "OSD_FULL":
        "remove files or other data of these disks; removing works on a full cluster",
    /// OSDs onto which no whole shard is rebuilt.
    OsdBackfillFull = "OSD_BACKFILLFULL":
        "make space on these disks",
    /// OSDs that are nearly full.
    OsdNearFull = "OSD_NEARFULL":
        "make space on these disks before writers get ENOSPC",
    /// PGs that cannot be rebuilt for want of space.
    PgBackfillFull = "PG_BACKFILL_FULL":
        "make space on these disks; what waits goes on by itself",
    /// Objects whose shards do not match.
    OsdScrubErrors = "OSD_SCRUB_ERRORS":
        "`trefoil scrub list` names them, and says which shard is wrong where that is known",
    /// Checksum errors that are not repaired.
    OsdChecksumErrors = "OSD_CHECKSUM_ERRORS":
        "look at the disk (its kernel log, SMART); what other shards can repair is repaired when it is read or scrubbed",
    /// The metadata service does not answer.
    MdsAllDown = "MDS_ALL_DOWN":
        "see whether its process runs (osd-daemon with the role mds), and what it logs",
    /// There was never a metadata service.
    MdsNeverStarted = "MDS_NEVER_STARTED":
        "start osd-daemon with the role mds, if files are wanted; objects need none",
    /// Work of the metadata service that does not get on.
    MdsWorkStuck = "MDS_WORK_STUCK":
        "the reason is in its detail; it is tried again until it works",
    /// An OSD whose disk was given up.
    OsdReplacePending = "OSD_REPLACE_PENDING":
        "start that OSD on its new, empty disk",
    /// OSDs whose syncs are slow.
    OsdSlowDisk = "OSD_SLOW_DISK":
        "look at what else uses the disk, and at its health: writers wait for its syncs",
    /// PGs with several shards on one machine.
    PgNotSpread = "PG_NOT_SPREAD":
        "give the cluster as many machines as a PG has shards: until then the death of one takes several shards",
    /// Clients that died, and what they wrote last.
    ClientsResolving = "CLIENTS_RESOLVING":
        "nothing: it takes seconds once enough OSDs are up",
    /// OSDs that keep nothing.
    OsdMemstore = "OSD_MEMSTORE":
        "nothing in a measurement; otherwise set osd_objectstore to file, on an empty directory",
    /// OSDs that drop what is written.
    OsdPathCut = "OSD_PATH_CUT":
        "set osd_path_cut to none: it is for measuring, and loses what is written",
}

impl std::fmt::Display for HealthCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One thing that is amiss.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthCheck {
    /// What.
    pub code: HealthCode,
    /// How bad; `Ok` for what the operator should know and need not mend.
    pub severity: Health,
    /// In a line.
    pub summary: String,
    /// Line by line, if there is more than one, at most [`DETAIL_LINES_MAX`].
    pub detail: Vec<String>,
    /// For how long the monitor has seen it, in seconds; from its own start, at most.
    pub since_secs: u64,
}

impl HealthCheck {
    /// Its lines: the details, or, without any, the summary.
    pub fn lines(&self) -> &[String] {
        if self.detail.is_empty() { std::slice::from_ref(&self.summary) } else { &self.detail }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn codes_are_words_of_their_own() {
        let words: BTreeSet<&str> = HealthCode::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(words.len(), HealthCode::ALL.len());
        let is_word = |word: &&str| word.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
        assert!(words.iter().all(is_word), "{words:?}");
        assert!(HealthCode::ALL.iter().all(|code| !code.what_to_do().is_empty()));
    }
}
