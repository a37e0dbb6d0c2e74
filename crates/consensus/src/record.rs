//! What a process's log on the disk is made of, and what a start makes of it.
//!
//! Contract: pure. One log serves all groups; a record belongs to one. Records are never changed:
//! an entry voids all of its group from its index on, a cut says what may go, a restart voids all.
//! [`Replay`] takes the records in the order in which they were written. Those before any point may
//! be missing, if for each group a cut or restart behind that point, which is synced, covers its
//! entries among them, and its promises were written again behind that point.
//!
//! | kind | front | data |
//! |---|---|---|
//! | 1: data, 2: voters | group (2), index (8), term (8) | the entry's |
//! | 3: promises | group (2), term (8), vote (8; 0: none), commit (8) | |
//! | 4: cut, 5: restart | group (2), index (8), term (8) | |

use crate::types::{
    Entry, EntryKind, GroupId, HardState, INDEX_MAX, Index, Persist, Recovered, ReplicaId, Snapshot,
};
use crate::types::{TERM_MAX, Term};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::collections::BTreeMap;

/// One record of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// An entry of a group.
    Entry(GroupId, Entry),
    /// Its promises, in the place of all earlier ones.
    Hard(GroupId, HardState),
    /// A snapshot up to this entry, of that term, is on the disk: what is behind it goes on.
    Cut(GroupId, Index, Term),
    /// The same of a leader's snapshot: nothing is behind it.
    Restart(GroupId, Index, Term),
}

impl Record {
    /// The records of [`crate::Step::Append`].
    pub fn of_append(persist: &Persist) -> impl Iterator<Item = Record> + '_ {
        let group = persist.group;
        let entries = persist.append.iter().map(move |entry| Record::Entry(group, entry.clone()));
        entries.chain(persist.hard.map(|hard| Record::Hard(group, hard)))
    }

    /// The record of [`crate::Step::Cut`].
    pub fn of_cut(persist: &Persist) -> Option<Record> {
        let snapshot = persist.snapshot.as_ref()?;
        let (group, index, term) = (persist.group, snapshot.index, snapshot.term);
        Some(if persist.restarts {
            Record::Restart(group, index, term)
        } else {
            Record::Cut(group, index, term)
        })
    }

    /// Its kind, its front and its data.
    pub fn encode(&self) -> (u8, Bytes, Bytes) {
        let mut front = BytesMut::with_capacity(26);
        let mut put = |group: &GroupId, numbers: &[u64]| {
            front.put_u16_le(group.0);
            numbers.iter().for_each(|number| front.put_u64_le(*number));
        };
        let (kind, data) = match self {
            Record::Entry(group, entry) => {
                put(group, &[entry.index, entry.term]);
                (if entry.kind == EntryKind::Data { 1 } else { 2 }, entry.data.clone())
            }
            Record::Hard(group, hard) => {
                put(group, &[hard.term, hard.vote.map_or(0, ReplicaId::raw), hard.commit]);
                (3, Bytes::new())
            }
            Record::Cut(group, index, term) => {
                put(group, &[*index, *term]);
                (4, Bytes::new())
            }
            Record::Restart(group, index, term) => {
                put(group, &[*index, *term]);
                (5, Bytes::new())
            }
        };
        (kind, front.freeze(), data)
    }

    /// Reads one. `None`: no record is like that.
    pub fn decode(kind: u8, mut front: &[u8], data: Bytes) -> Option<Record> {
        let group = GroupId(front.try_get_u16_le().ok()?);
        let mut number = |max: u64| front.try_get_u64_le().ok().filter(|number| *number <= max);
        let record = match kind {
            1 | 2 => {
                let (index, term) = (number(INDEX_MAX)?, number(TERM_MAX)?);
                let kind = if kind == 1 { EntryKind::Data } else { EntryKind::Voters };
                Record::Entry(group, Entry { index, term, kind, data })
            }
            3 if data.is_empty() => {
                let (term, raw, commit) =
                    (number(TERM_MAX)?, number(u64::MAX)?, number(INDEX_MAX)?);
                let vote = if raw == 0 { None } else { Some(ReplicaId::from_raw(raw)?) };
                Record::Hard(group, HardState { term, vote, commit })
            }
            4 if data.is_empty() => Record::Cut(group, number(INDEX_MAX)?, number(TERM_MAX)?),
            5 if data.is_empty() => Record::Restart(group, number(INDEX_MAX)?, number(TERM_MAX)?),
            _ => return None,
        };
        front.is_empty().then_some(record)
    }
}

#[derive(Debug, Default)]
struct Log {
    hard: HardState,
    entries: Vec<Entry>,
}

/// Makes of records what a host begins with.
#[derive(Debug, Default)]
pub struct Replay(BTreeMap<GroupId, Log>);

impl Replay {
    /// The next record.
    pub fn take(&mut self, record: Record) {
        match record {
            Record::Entry(group, entry) => {
                let entries = &mut self.0.entry(group).or_default().entries;
                let keep = entries.partition_point(|other| other.index < entry.index);
                entries.truncate(keep);
                entries.push(entry);
            }
            Record::Hard(group, hard) => self.0.entry(group).or_default().hard = hard,
            Record::Restart(group, ..) => self.0.entry(group).or_default().entries.clear(),
            Record::Cut(group, index, term) => {
                cut(&mut self.0.entry(group).or_default().entries, index, term)
            }
        }
    }

    /// A group's log, behind its newest snapshot. Entries may be missing still: see
    /// [`crate::OpenError::Hole`].
    pub fn group(&mut self, group: GroupId, snapshot: Option<Snapshot>) -> Recovered {
        let Log { hard, mut entries } = self.0.remove(&group).unwrap_or_default();
        if let Some(snapshot) = &snapshot {
            cut(&mut entries, snapshot.index, snapshot.term);
        }
        Recovered { group, snapshot, hard, entries }
    }

    /// Groups of which there are records.
    pub fn groups(&self) -> impl Iterator<Item = GroupId> + '_ {
        self.0.keys().copied()
    }
}

/// Drops what a snapshot replaces: everything up to it, and if the log had another entry in its
/// last one's place, or none that far, what is behind it, too: that was another history.
fn cut(entries: &mut Vec<Entry>, index: Index, term: Term) {
    let at = entries.partition_point(|entry| entry.index < index);
    match entries.get(at) {
        Some(entry) if entry.index == index && entry.term != term => entries.clear(),
        Some(entry) if entry.index == index => drop(entries.drain(..=at)),
        // what is behind stays: that it is there is either right, or a hole that a start has to see
        _ => drop(entries.drain(..at)),
    }
}
