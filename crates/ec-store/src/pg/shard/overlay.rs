//! What the journal holds of one object that its fragment file does not show yet.
//!
//! Contract: pure bookkeeping over record positions. The newest record wins, byte by byte; a
//! truncate, punch or delete hides what is older.

use super::store::{Lsn, Payload, Record};
use protocol::shard::Op;
use protocol::{Seq, SessionId};
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// What unapplied records do to the end of user data and to existence, composed. Repeating is
/// harmless.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Outcome {
    /// The end is first set to this,
    set: Option<u64>,
    /// and is then at least this.
    least: u64,
    /// Existence, if a record says something of it.
    exists: Option<bool>,
}

impl Outcome {
    fn then(&mut self, record: &Record) {
        match record.op {
            Op::Write | Op::Punch => {
                self.least = self.least.max(record.logical_end);
                self.exists = Some(true);
            }
            Op::Truncate => {
                *self = Self { set: Some(record.logical_end), least: 0, exists: Some(true) }
            }
            Op::Delete => *self = Self { set: Some(0), least: 0, exists: Some(false) },
            Op::Nothing => {}
        }
    }

    /// Existence, if a record says something of it.
    pub fn existence(&self) -> Option<bool> {
        self.exists
    }

    /// Existence and end of user data, given those of the fragment file.
    pub fn over(&self, exists: bool, logical_end: u64) -> (bool, u64) {
        (self.exists.unwrap_or(exists), self.set.unwrap_or(logical_end).max(self.least))
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct ObjectLog {
    /// Records not applied, in journal order.
    pub pending: VecDeque<Lsn>,
    /// How many records of the object are in the journal, applied ones too.
    pub untrimmed: usize,
    /// By start: end and newest unapplied record.
    extents: BTreeMap<u64, (u64, Lsn)>,
    /// By start: end; at least everything that untrimmed records span.
    covered: BTreeMap<u64, u64>,
    /// Spans of direct records in the journal, without those that name places.
    directs: SmallVec<[(Range<u64>, Lsn); 2]>,
    /// Spans of records in the journal that take bytes away.
    removals: SmallVec<[(Range<u64>, Lsn); 1]>,
    /// By start: the end of a slot that records in the journal place, and those records, the oldest
    /// first.
    placed: BTreeMap<u64, (u64, SmallVec<[Lsn; 2]>)>,
    outcome: Outcome,
    /// The last record applied, by session; older ones than a session's base may be missing.
    pub last_applied: SmallVec<[(SessionId, Seq); 1]>,
    /// Reads of the fragment file that are under way: nothing may be applied.
    pub pins: usize,
    /// Waits in the queue of objects to apply.
    pub queued: bool,
}

impl ObjectLog {
    /// A record was taken.
    pub fn push(&mut self, lsn: Lsn, record: &Record) {
        self.note(lsn, record);
        self.show(lsn, record);
    }

    /// A record is in the journal.
    fn note(&mut self, lsn: Lsn, record: &Record) {
        self.untrimmed += 1;
        match (&record.payload, record.op) {
            (Payload::Placed(_), _) => {
                for slot in record.slots() {
                    self.placed
                        .entry(slot.start)
                        .or_insert_with(|| (slot.end, SmallVec::new()))
                        .1
                        .push(lsn);
                }
                return;
            }
            (Payload::Direct(_), _) => self.directs.push((record.span(), lsn)),
            (_, Op::Punch | Op::Truncate | Op::Delete) => self.removals.push((record.span(), lsn)),
            _ => {}
        }
        self.cover(record.span());
    }

    fn show(&mut self, lsn: Lsn, record: &Record) {
        self.pending.push_back(lsn);
        self.outcome.then(record);
        let span = record.span();
        if !span.is_empty() {
            self.clear(span.clone());
            self.extents.insert(span.start, (span.end, lsn));
        }
    }

    fn clear(&mut self, span: Range<u64>) {
        let before = self.extents.range(..span.start).next_back().map(|(&s, &e)| (s, e));
        if let Some((start, (end, lsn))) = before.filter(|(_, (end, _))| *end > span.start) {
            self.extents.insert(start, (span.start, lsn));
            if end > span.end {
                self.extents.insert(span.end, (end, lsn));
            }
        }
        while let Some((&start, &(end, lsn))) = self.extents.range(span.clone()).next() {
            self.extents.remove(&start);
            if end > span.end {
                self.extents.insert(span.end, (end, lsn));
            }
        }
    }

    /// An unapplied record was applied: the oldest (Rule: ApplyOrder).
    pub fn applied(&mut self, lsn: Lsn, record: &Record) {
        self.pending.iter().position(|at| *at == lsn).map(|at| self.pending.remove(at));
        match self.last_applied.iter_mut().find(|(s, _)| *s == record.session) {
            Some((_, seq)) => *seq = (*seq).max(record.seq),
            None => self.last_applied.push((record.session, record.seq)),
        }
        if self.pending.is_empty() {
            self.extents.clear();
            self.outcome = Outcome::default();
            return;
        }
        let span = record.span();
        let mine = |(_, (_, l)): &(&u64, &(u64, Lsn))| *l == lsn;
        let starts: SmallVec<[u64; 8]> =
            self.extents.range(span).filter(mine).map(|(&s, _)| s).collect();
        for start in starts {
            self.extents.remove(&start);
        }
    }

    /// Records were dropped: everything is counted anew from those that are left, in order.
    pub fn rebuild<'a>(&mut self, left: impl Iterator<Item = (Lsn, &'a Record, bool)>) {
        let kept = std::mem::take(self);
        (self.last_applied, self.pins, self.queued) = (kept.last_applied, kept.pins, kept.queued);
        for (lsn, record, applied) in left {
            if applied {
                self.note(lsn, record);
            } else {
                self.push(lsn, record);
            }
        }
    }

    /// A record left the journal.
    pub fn trimmed(&mut self, lsn: Lsn, record: &Record) {
        self.untrimmed -= 1;
        self.directs.retain(|(_, direct)| *direct != lsn);
        self.removals.retain(|(_, removal)| *removal != lsn);
        for slot in record.slots() {
            if let Some((_, records)) = self.placed.get_mut(&slot.start) {
                records.retain(|at| *at != lsn);
                if records.is_empty() {
                    self.placed.remove(&slot.start);
                }
            }
        }
        if self.untrimmed == 0 {
            self.covered.clear();
        }
    }

    /// Nothing is known of the object any more.
    pub fn is_idle(&self) -> bool {
        self.untrimmed == 0 && self.pins == 0 && !self.queued
    }

    fn cover(&mut self, span: Range<u64>) {
        if span.is_empty() {
            return;
        }
        let (mut start, mut end) = (span.start, span.end);
        if let Some((&s, &e)) =
            self.covered.range(..=start).next_back().filter(|(_, e)| **e >= start)
        {
            (start, end) = (s, end.max(e));
        }
        while let Some((&s, &e)) = self.covered.range(start..=end).next() {
            self.covered.remove(&s);
            end = end.max(e);
        }
        self.covered.insert(start, end);
    }

    /// Does any untrimmed record span a part of the range?
    pub fn is_covered(&self, range: &Range<u64>) -> bool {
        let covered =
            self.covered.range(..range.end).next_back().is_some_and(|(_, &end)| end > range.start);
        covered || self.placed_in(range).next().is_some()
    }

    /// Records that place slots in a part of the range.
    fn placed_in(&self, range: &Range<u64>) -> impl Iterator<Item = Lsn> {
        // Slots do not overlap: the one before the range may reach into it.
        let before =
            self.placed.range(..range.start).next_back().filter(|(_, (end, _))| *end > range.start);
        let within = self.placed.range(range.start..range.end.max(range.start));
        before.into_iter().chain(within).flat_map(|(_, (_, records))| records.iter().copied())
    }

    /// Does a record in the journal span a part of the range that a restart would look for there,
    /// or take away from there? What is placed is looked for where it was placed, and what was
    /// written can be written again.
    pub fn is_bound(&self, range: &Range<u64>) -> bool {
        let spans = self.directs.iter().chain(&self.removals);
        spans.into_iter().any(|(span, _)| span.start < range.end && range.start < span.end)
    }

    /// Does a record that takes bytes away wait to be applied?
    pub fn has_unapplied_removal(&self) -> bool {
        let waits =
            |(span, lsn): &(Range<u64>, Lsn)| !span.is_empty() && self.pending.contains(lsn);
        self.removals.iter().any(waits)
    }

    /// Does a direct record before `lsn` that is still in the journal span a part of the range?
    pub fn has_direct_before(&self, lsn: Lsn, range: &Range<u64>) -> bool {
        let direct = self
            .directs
            .iter()
            .any(|(span, at)| *at < lsn && span.start < range.end && range.start < span.end);
        direct || self.placed_in(range).any(|at| at < lsn)
    }

    /// The parts of the range that unapplied records determine, in order, with the record.
    pub fn parts(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, Lsn)> {
        let first = self.extents.range(..=range.start).next_back().map_or(range.start, |(&s, _)| s);
        let all = self.extents.range(first..range.end.max(first));
        let clip =
            move |(&s, &(e, lsn)): (&u64, &(u64, Lsn))| (s.max(range.start)..e.min(range.end), lsn);
        all.map(clip).filter(|(part, _)| part.start < part.end)
    }

    /// What unapplied records do to existence and the end of user data.
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::{ObjectId, ShardSet};

    fn record(op: Op, offset: u64, length: u32) -> Record {
        Record {
            session: SessionId::new(1),
            seq: Seq::new(1),
            object: ObjectId::default(),
            op,
            touch: ShardSet::first(3),
            offset,
            length,
            logical_end: offset + u64::from(length),
            payload: Payload::Nothing,
        }
    }

    #[test]
    fn a_removal_that_waits_is_known_until_it_is_applied() {
        let mut log = ObjectLog::default();
        let nothing = record(Op::Punch, 0, 0);
        log.push(Lsn(1), &nothing);
        log.push(Lsn(2), &record(Op::Write, 0, 8));
        assert!(!log.has_unapplied_removal(), "nothing goes");
        let cut = record(Op::Truncate, 4, 0);
        log.push(Lsn(3), &cut);
        assert!(log.has_unapplied_removal());
        log.applied(Lsn(3), &cut);
        assert!(!log.has_unapplied_removal(), "it is still in the journal");
    }

    /// Against a naive map from byte to record.
    #[test]
    fn newest_record_wins_byte_by_byte() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..300 {
            let mut log = ObjectLog::default();
            let mut naive: Vec<Vec<u64>> = vec![vec![]; 64];
            let mut records = vec![];
            for n in 1..=random.u64(1..20) {
                let start = random.u64(0..60);
                let length = random.u32(1..=(64 - start as u32));
                let op = [Op::Write, Op::Punch, Op::Truncate][random.usize(0..3)];
                let record = record(op, start, length);
                let span = record.span();
                (0..64).filter(|at| span.contains(at)).for_each(|at| naive[at as usize].push(n));
                log.push(Lsn(n), &record);
                records.push(record);
            }
            for applied in 0..=records.len() {
                let start = random.u64(0..64);
                let range = start..random.u64(start..=64);
                let mut got = vec![None; 64];
                for (part, lsn) in log.parts(range.clone()) {
                    part.for_each(|at| got[at as usize] = Some(lsn.0));
                }
                for at in 0..64 {
                    let newest = naive[at as usize].last().copied().filter(|&n| n > applied as u64);
                    assert_eq!(got[at as usize], newest.filter(|_| range.contains(&at)));
                }
                if let Some(record) = records.get(applied) {
                    log.applied(Lsn(applied as u64 + 1), record);
                }
            }
        }
    }
}
