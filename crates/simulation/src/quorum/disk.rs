//! A node's disk: one log for all groups, and a file with the snapshot of each.

use consensus::{GroupId, Persist, Record, Recovered, Replay, Snapshot, Step};
use fastrand::Rng;
use std::collections::BTreeMap;

/// What it holds. Records behind `synced` are in the page cache.
#[derive(Debug, Default)]
pub struct Disk {
    written: BTreeMap<GroupId, Snapshot>,
    snapshots: BTreeMap<GroupId, Snapshot>,
    log: Vec<Record>,
    synced: usize,
}

impl Disk {
    /// One that a group begins with.
    pub fn first(groups: impl Iterator<Item = Recovered>) -> Self {
        let mut disk = Self::default();
        for Recovered { group, snapshot, hard, .. } in groups {
            disk.snapshots.extend(snapshot.map(|snapshot| (group, snapshot)));
            disk.log.push(Record::Hard(group, hard));
        }
        disk.synced = disk.log.len();
        disk
    }

    /// Does one step of keeping something.
    pub fn step(&mut self, step: Step, persist: &Persist) {
        match step {
            Step::WriteSnapshot => {
                self.written.extend(persist.snapshot.clone().map(|s| (persist.group, s)))
            }
            Step::RenameSnapshot => {
                let written = self.written.remove(&persist.group);
                self.snapshots.extend(written.map(|snapshot| (persist.group, snapshot)));
            }
            Step::Cut => self.log.extend(Record::of_cut(persist)),
            Step::Append => self.log.extend(Record::of_append(persist)),
            Step::Sync => self.synced = self.log.len(),
        }
    }

    /// The machine loses its power: of what was not synced any beginning is left.
    pub fn lose_power(&mut self, random: &mut Rng) {
        let left = random.usize(self.synced..=self.log.len());
        self.log.truncate(left);
        self.synced = left;
        self.written.clear();
    }

    /// The oldest records go, as long as nobody needs them.
    pub fn trim(&mut self) {
        let mut cuts = BTreeMap::new();
        for record in &self.log[..self.synced] {
            if let Record::Cut(group, index, _) | Record::Restart(group, index, _) = record {
                cuts.insert(*group, *index);
            }
        }
        let is_cut = |group: &GroupId, index: u64| cuts.get(group).is_some_and(|cut| index <= *cut);
        let is_old = |(at, record): (usize, &Record)| match record {
            Record::Entry(group, entry) => is_cut(group, entry.index),
            Record::Hard(group, _) => {
                let later = self.log.get(at + 1..self.synced).unwrap_or_default();
                later
                    .iter()
                    .any(|record| matches!(record, Record::Hard(other, _) if other == group))
            }
            Record::Cut(group, index, _) | Record::Restart(group, index, _) => {
                cuts.get(group).is_some_and(|cut| index < cut)
            }
        };
        let count =
            self.log.iter().take(self.synced).enumerate().take_while(|pair| is_old(*pair)).count();
        self.log.drain(..count);
        self.synced -= count;
    }

    /// What a start finds.
    pub fn recover(&self, groups: impl Iterator<Item = GroupId>) -> Vec<Recovered> {
        let mut replay = Replay::default();
        self.log.iter().cloned().for_each(|record| replay.take(record));
        groups.map(|group| replay.group(group, self.snapshots.get(&group).cloned())).collect()
    }
}
