//! The log of one group in memory: what the library reads.
//!
//! Contract: holds what was given out to be kept, whether or not it is on the disk yet. The library
//! needs this, and keeps count itself of what is on the disk.

use crate::types::{Entry, HardState, Index, Snapshot, Term};
use std::cell::Cell;
use std::collections::VecDeque;

/// The newest snapshot, and the entries behind it.
#[derive(Debug, Default)]
pub(crate) struct MemLog {
    pub snapshot: Option<Snapshot>,
    /// Only what a start found: the library keeps its own.
    pub hard: HardState,
    entries: VecDeque<Entry>,
    /// Somebody needs a newer snapshot than there is: one that names him.
    pub is_snapshot_wanted: Cell<bool>,
}

impl MemLog {
    pub fn new(snapshot: Option<Snapshot>, hard: HardState, entries: Vec<Entry>) -> Self {
        Self { snapshot, hard, entries: entries.into(), is_snapshot_wanted: Cell::default() }
    }

    /// The entry before the first one, and its term.
    pub fn base(&self) -> (Index, Term) {
        self.snapshot.as_ref().map_or((0, 0), |snapshot| (snapshot.index, snapshot.term))
    }

    pub fn first(&self) -> Index {
        self.base().0 + 1
    }

    pub fn last(&self) -> Index {
        self.base().0 + self.entries.len() as u64
    }

    /// `None`: not here.
    pub fn term(&self, index: Index) -> Option<Term> {
        let (base, base_term) = self.base();
        if index == base {
            return Some(base_term);
        }
        self.entries
            .get(usize::try_from(index.checked_sub(base + 1)?).ok()?)
            .map(|entry| entry.term)
    }

    /// From `low` on, before `high`, one or more, and not many more than `bytes_max` bytes.
    pub fn range(&self, low: Index, high: Index, bytes_max: u64) -> impl Iterator<Item = &Entry> {
        let skip = (low - self.first()) as usize;
        let mut bytes = 0;
        self.entries.iter().skip(skip).take((high - low) as usize).take_while(move |entry| {
            let goes = bytes == 0 || bytes + entry.data.len() as u64 <= bytes_max;
            bytes += entry.data.len() as u64 + 1;
            goes
        })
    }

    /// Appends entries; they void what is there from the first one's index on.
    pub fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        assert!(
            self.first() <= first.index && first.index <= self.last() + 1,
            "a log has no holes"
        );
        self.entries.truncate((first.index - self.first()) as usize);
        self.entries.extend(entries.iter().cloned());
    }

    /// A snapshot of the own state: entries up to it go.
    pub fn cut(&mut self, snapshot: Snapshot) {
        let count = (snapshot.index - self.base().0) as usize;
        self.entries.drain(..count);
        self.snapshot = Some(snapshot);
    }

    /// A leader's snapshot: all entries go.
    pub fn restore(&mut self, snapshot: Snapshot) {
        self.entries.clear();
        self.snapshot = Some(snapshot);
    }
}
