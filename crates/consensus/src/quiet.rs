//! Rule: BootQuiet - a replica that has just started does not know whether it supported a leader a
//! moment ago. For one longest election timeout it neither votes nor stands, so that no leader's
//! lease is broken by a restart; or until all voters say that they have just started, too, as then
//! there is no such leader.
//!
//! Contract: pure. What others say counts only if it names this run of the replica: an old frame
//! ends nothing.

use crate::node::ELECTION_TICKS_MAX;
use crate::types::{ReplicaId, Voters};
use std::collections::{BTreeMap, BTreeSet};

/// A replica's first moments.
#[derive(Debug)]
pub(crate) struct Quiet {
    ticks_left: u64,
    /// This run of the process.
    boot: u64,
    /// Which run each of the others is in.
    heard: BTreeMap<ReplicaId, u64>,
    /// Who was quiet in this run of ours.
    with_us: BTreeSet<ReplicaId>,
}

impl Quiet {
    pub fn new(boot: u64) -> Self {
        Self {
            ticks_left: ELECTION_TICKS_MAX,
            boot,
            heard: BTreeMap::new(),
            with_us: BTreeSet::new(),
        }
    }

    pub fn tick(&mut self) {
        self.ticks_left = self.ticks_left.saturating_sub(1);
    }

    /// Run of this process, and that of the other, for a frame to it.
    pub fn says(&self, to: ReplicaId) -> (u64, u64) {
        (self.boot, self.heard.get(&to).copied().unwrap_or(0))
    }

    /// A voter says that it is quiet. True: it has not heard of this run yet.
    pub fn hears(&mut self, from: ReplicaId, boot: u64, heard: u64) -> bool {
        self.heard.insert(from, boot);
        if heard == self.boot { self.with_us.insert(from) } else { true }
    }

    pub fn is_over(&self, id: ReplicaId, voters: &Voters) -> bool {
        let mut others = voters.voters.iter().chain(&voters.outgoing).filter(|other| **other != id);
        self.ticks_left == 0 || others.all(|other| self.with_us.contains(other))
    }
}
