//! What a run did. A run that did too little shows nothing, and fails.

use super::decode::Decoded;
use super::faults::Fault;
use crate::error::{Outcome, ensure};
use std::collections::BTreeMap;
use std::fmt;

/// Least per round: fractions of what the slowest machine so far did.
const ACKS_MIN: u64 = 20;
const FSYNCS_MIN: u64 = 6;
const COMMITS_MIN: u64 = 1;
const SHARED_MIN: u64 = 30;
const OBJECTS_MIN: u64 = 20;
const FAULTS_MIN: u64 = 4;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Rounds that ended well.
    pub rounds: u64,
    /// How often each fault was done, by name.
    pub faults: BTreeMap<&'static str, u64>,
    /// Bytes that were flipped on disks.
    pub flipped: u64,
    /// Direct writes that were answered.
    pub acks: u64,
    /// Fsyncs of stamped files that were answered.
    pub fsyncs: u64,
    /// Bytes of stamped writes.
    pub stamped_bytes: u64,
    /// Runs of fio that wrote and verified.
    pub fio_passes: u64,
    /// Transactions of SQLite, and commits of git.
    pub sqlite_commits: u64,
    /// See `sqlite_commits`.
    pub git_commits: u64,
    /// Writes of two mounts to the same files that were answered.
    pub shared_writes: u64,
    /// Objects decoded offline, each from every k of its shards; one counts anew in each round.
    pub objects: u64,
    /// The decodings.
    pub subsets: u64,
    /// Bytes of fragments that were compared.
    pub compared_bytes: u64,
    /// Objects that scrubs looked at in the running cluster.
    pub scrubbed: u64,
}

impl Counts {
    /// A fault was done.
    pub fn fault(&mut self, name: &'static str) {
        *self.faults.entry(name).or_default() += 1;
    }

    /// Objects were decoded.
    pub fn decoded(&mut self, decoded: &Decoded) {
        self.objects += decoded.objects;
        self.subsets += decoded.subsets;
        self.compared_bytes += decoded.compared_bytes;
    }

    /// Did it do enough to show something?
    ///
    /// # Errors
    /// With what was too little.
    pub fn check(&self) -> Outcome {
        let faults: u64 = self.faults.values().sum();
        let wanted = [
            ("rounds", self.rounds, 1),
            ("faults", faults, FAULTS_MIN * self.rounds),
            (
                "kinds of faults",
                self.faults.len() as u64,
                (FAULTS_MIN * self.rounds).min(Fault::ALL.len() as u64),
            ),
            ("flipped bytes", self.flipped, 1),
            ("answered direct writes", self.acks, ACKS_MIN * self.rounds),
            ("fsyncs", self.fsyncs, FSYNCS_MIN * self.rounds),
            ("passes of fio", self.fio_passes, COMMITS_MIN * self.rounds),
            ("transactions of SQLite", self.sqlite_commits, COMMITS_MIN * self.rounds),
            ("commits of git", self.git_commits, COMMITS_MIN * self.rounds),
            ("writes to files that two mounts share", self.shared_writes, SHARED_MIN * self.rounds),
            ("decoded objects", self.objects, OBJECTS_MIN * self.rounds),
            ("decodings", self.subsets, self.objects.max(1)),
            ("scrubbed objects", self.scrubbed, OBJECTS_MIN * self.rounds),
        ];
        for (what, did, least) in wanted {
            ensure!(
                did >= least,
                "only {did} {what} in {} rounds, at least {least} are wanted: {self}",
                self.rounds
            );
        }
        Ok(())
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults: Vec<String> =
            self.faults.iter().map(|(name, count)| format!("{count} x {name}")).collect();
        writeln!(
            f,
            "{} rounds; faults: {}; {} bytes flipped",
            self.rounds,
            faults.join(", "),
            self.flipped
        )?;
        writeln!(
            f,
            "{} direct writes answered, {} fsyncs, {} MB stamped; {} passes of fio --verify, {} transactions of SQLite, \
             {} commits of git, {} writes to files that two mounts share: all as promised",
            self.acks,
            self.fsyncs,
            self.stamped_bytes >> 20,
            self.fio_passes,
            self.sqlite_commits,
            self.git_commits,
            self.shared_writes
        )?;
        write!(
            f,
            "{} objects decoded from every k of their shards ({} decodings, {} MB compared): all equal; {} scrubbed: nothing found",
            self.objects,
            self.subsets,
            self.compared_bytes >> 20,
            self.scrubbed
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enough() -> Counts {
        let mut counts = Counts {
            rounds: 2,
            flipped: 3,
            acks: 500,
            fsyncs: 100,
            stamped_bytes: 1 << 20,
            fio_passes: 4,
            sqlite_commits: 9,
            git_commits: 9,
            shared_writes: 90,
            objects: 90,
            subsets: 270,
            scrubbed: 90,
            ..Counts::default()
        };
        Fault::ALL.iter().for_each(|fault| counts.fault(fault.name()));
        counts
    }

    #[test]
    fn a_run_that_did_nothing_fails() {
        assert!(Counts::default().check().is_err());
        enough().check().unwrap();
    }

    #[test]
    fn each_count_is_needed() {
        let lacks: [fn(&mut Counts); 10] = [
            |c| c.acks = 0,
            |c| c.fsyncs = 0,
            |c| c.fio_passes = 0,
            |c| c.sqlite_commits = 0,
            |c| c.git_commits = 0,
            |c| c.shared_writes = 0,
            |c| c.objects = 0,
            |c| c.scrubbed = 0,
            |c| c.flipped = 0,
            |c| c.faults.clear(),
        ];
        for lack in lacks {
            let mut counts = enough();
            lack(&mut counts);
            assert!(counts.check().is_err());
        }
    }
}
