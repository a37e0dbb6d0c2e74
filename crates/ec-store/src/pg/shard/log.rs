//! What a shard's part of the journal says: records in order, where each session stands, dirty and
//! begun lists.
//!
//! Contract: [`Log`] is a function of the journal's items alone, whether they are taken one by one
//! while running or replayed at a restart; what is known beyond that (attaches, stable marks) is in
//! [`Session`]'s volatile half.

use super::overlay::ObjectLog;
use super::store::{Delta, Lsn, Payload, Record};
use protocol::{ObjectId, PgId, Rule, Rules, Seq, SessionId, ShardIndex, ShardSet};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A record in the journal.
#[derive(Debug)]
pub(super) struct Entry {
    pub record: Record,
    pub applied: bool,
}

impl Entry {
    /// Bytes of it that are held in memory until it is applied.
    fn queued_bytes(&self) -> u64 {
        match &self.record.payload {
            Payload::Journalled(data) if !self.applied => data.len() as u64,
            _ => 0,
        }
    }
}

/// Where a session stands at a shard.
#[derive(Debug, Default)]
pub(super) struct Session {
    /// Everything up to here is decided and in the fragment files or in the journal.
    pub base: Seq,
    /// Resolved, with this cut.
    pub closed: Option<Seq>,
    /// Its records in the journal.
    pub seqs: BTreeMap<Seq, Lsn>,
    // ---- volatile
    /// Greatest stable mark heard of.
    pub stable: Seq,
    /// Last record that outlives a power loss.
    pub durable: Seq,
    /// What will be durable when the sync under way ends.
    pub syncing: Seq,
    /// Records up to here were queued to be applied.
    pub queued: Seq,
    /// The last attach in this epoch; 0: none.
    pub aid: u64,
    /// Declared dead to this shard.
    pub fenced: bool,
    /// The map says that it ended well: all its records here are decided.
    pub gone: bool,
    /// It ended and was forgotten, and others spoke of it since: what was applied of it is not
    /// known any more.
    pub forgotten: bool,
    /// Stable mark of its first attach in this epoch while joining.
    pub start: Option<Seq>,
    /// What it had reported by then.
    pub owed: Seq,
    /// It waits for an acknowledgement; with what flags and status.
    pub ack: Option<super::AckDue>,
    /// It waits for a sync.
    pub wants_sync: bool,
}

impl Session {
    /// The last record that the log accounts for.
    pub fn tail(&self) -> Seq {
        self.seqs.last_key_value().map_or(self.base, |(seq, _)| self.base.max(*seq))
    }

    /// Everything up to here is known to be decided.
    pub fn settled(&self) -> Seq {
        let known = self.closed.unwrap_or_default().max(self.base).max(self.stable);
        if self.gone { known.max(self.tail()) } else { known }
    }

    /// Is there nothing to come from it?
    pub fn is_over(&self) -> bool {
        self.gone || self.closed.is_some()
    }
}

/// What a checkpoint holds of a PG.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PgState {
    /// The shard holds everything but what `begun` names.
    pub whole: bool,
    /// Session, base, cut.
    pub sessions: Vec<(SessionId, Seq, Option<Seq>)>,
    /// Objects that absent shards miss.
    pub dirty: Vec<(ShardIndex, Vec<ObjectId>)>,
    /// Objects whose rebuilding was begun and has not ended.
    pub begun: Vec<ObjectId>,
    /// Absent shards that may miss any object beside the dirty ones.
    pub cut_short: ShardSet,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Log {
    pub whole: bool,
    pub entries: BTreeMap<Lsn, Entry>,
    /// Sum of [`Entry::queued_bytes`].
    pub queued_bytes: u64,
    pub objects: HashMap<ObjectId, ObjectLog>,
    pub sessions: BTreeMap<SessionId, Session>,
    pub dirty: BTreeMap<ShardIndex, BTreeSet<ObjectId>>,
    /// Absent shards whose dirty list was cut short. Rule: DirtyCut.
    pub cut_short: ShardSet,
    pub begun: BTreeSet<ObjectId>,
    pub rules: Rules,
}

impl Log {
    pub fn push(&mut self, lsn: Lsn, record: Record) {
        let session = self.sessions.entry(record.session).or_default();
        session.seqs.insert(record.seq, lsn);
        self.objects.entry(record.object).or_default().push(lsn, &record);
        let entry = Entry { record, applied: false };
        self.queued_bytes += entry.queued_bytes();
        self.entries.insert(lsn, entry);
    }

    /// Takes in a change. The same at run time and at a restart.
    pub fn take(&mut self, delta: &Delta) {
        match delta {
            Delta::Floor(id, seq) => {
                // Rule: JoinDrop
                if self.rules.on(Rule::JoinDrop) {
                    self.drop_where(|r| r.session == *id && r.seq > *seq);
                }
                let session = self.sessions.entry(*id).or_default();
                session.base = session.base.max(*seq);
            }
            Delta::Closed(id, cut) => {
                self.drop_where(|r| r.session == *id && r.seq > *cut);
                self.sessions.entry(*id).or_default().closed = Some(*cut);
            }
            Delta::Whole => self.whole = true,
            Delta::Begun(objects) => self.begun.extend(objects),
            Delta::Done(objects) => objects.iter().for_each(|object| _ = self.begun.remove(object)),
            Delta::Clean(shard, objects) => {
                if let Some(dirty) = self.dirty.get_mut(shard) {
                    objects.iter().for_each(|object| _ = dirty.remove(object));
                }
            }
            Delta::Noted(shard) => self.cut_short = self.cut_short.without(*shard),
            Delta::Rebuilt(object, marks) => self.take_rebuilt(*object, marks),
            Delta::CutFrom(lsn) => {
                // Bytes that rotted were durable: others may count on what is dropped, and not know
                // that it is missing here.
                self.begun.extend(self.entries.range(*lsn..).map(|(_, entry)| entry.record.object));
                let cut: Vec<Lsn> = self.entries.range(*lsn..).map(|(l, _)| *l).collect();
                self.drop_entries(&cut);
            }
        }
    }

    fn take_rebuilt(&mut self, object: ObjectId, marks: &[(SessionId, Option<Seq>)]) {
        let upto = |s: SessionId| marks.iter().find(|(id, _)| *id == s).map(|(_, upto)| *upto);
        self.drop_where(|r| {
            r.object == object && upto(r.session).is_some_and(|u| u.is_none_or(|u| r.seq <= u))
        });
        // Rule: JoinFloor - what was dropped counts as decided.
        if !self.rules.on(Rule::JoinFloor) {
            return;
        }
        for (id, seq) in marks.iter().filter_map(|(id, upto)| Some((*id, (*upto)?))) {
            let session = self.sessions.entry(id).or_default();
            session.base = session.base.max(seq);
        }
    }

    pub fn drop_where(&mut self, which: impl Fn(&Record) -> bool) {
        let lost: Vec<Lsn> =
            self.entries.iter().filter(|(_, e)| which(&e.record)).map(|(l, _)| *l).collect();
        self.drop_entries(&lost);
    }

    /// Drops records, applied or not.
    fn drop_entries(&mut self, lost: &[Lsn]) {
        let mut touched = BTreeSet::new();
        for lsn in lost {
            let Some(entry) = self.entries.remove(lsn) else { continue };
            self.queued_bytes -= entry.queued_bytes();
            touched.insert(entry.record.object);
            if let Some(session) = self.sessions.get_mut(&entry.record.session) {
                session.seqs.remove(&entry.record.seq);
            }
        }
        for object in touched {
            let left = self.entries.iter().filter(|(_, e)| e.record.object == object);
            if let Some(log) = self.objects.get_mut(&object) {
                log.rebuild(left.map(|(lsn, e)| (*lsn, &e.record, e.applied)));
            }
        }
        // what was to become durable is gone: the same numbers may come again
        for session in self.sessions.values_mut() {
            let tail = session.tail();
            session.durable = session.durable.min(tail);
            session.syncing = session.syncing.min(tail);
            session.queued = session.queued.min(tail);
        }
    }

    /// The oldest unapplied record of an object was applied: its bytes are let go.
    pub fn set_applied(&mut self, lsn: Lsn) {
        let Some(entry) = self.entries.get_mut(&lsn) else { return };
        self.queued_bytes -= entry.queued_bytes();
        entry.applied = true;
        if let Some(log) = self.objects.get_mut(&entry.record.object) {
            log.applied(lsn, &entry.record);
        }
        if !entry.record.is_direct() {
            entry.record.payload = Payload::Nothing;
        }
    }

    /// Forgets the records before `upto`, all of them applied and synced.
    pub fn trim(&mut self, upto: Lsn) -> Vec<ObjectId> {
        let left = self.entries.split_off(&upto);
        let trimmed = std::mem::replace(&mut self.entries, left);
        let mut touched = BTreeSet::new();
        for (lsn, entry) in trimmed {
            assert!(
                entry.applied || !self.rules.on(Rule::TrimOrder),
                "only applied records are trimmed"
            );
            self.queued_bytes -= entry.queued_bytes();
            let record = entry.record;
            if let Some(session) = self.sessions.get_mut(&record.session) {
                session.base = session.base.max(record.seq);
                session.seqs.remove(&record.seq);
            }
            if let Some(log) = self.objects.get_mut(&record.object) {
                log.trimmed(lsn, &record);
            }
            touched.insert(record.object);
        }
        touched.iter().for_each(|o| self.forget_idle(*o));
        touched.into_iter().collect()
    }

    /// Lets go of an object's bookkeeping when it says nothing.
    pub fn forget_idle(&mut self, object: ObjectId) {
        if self.objects.get(&object).is_some_and(ObjectLog::is_idle) {
            self.objects.remove(&object);
        }
    }

    /// For a checkpoint.
    pub fn state(&self) -> PgState {
        let dirty = self.dirty.iter().filter(|(_, objects)| !objects.is_empty());
        PgState {
            whole: self.whole,
            sessions: self.sessions.iter().map(|(id, s)| (*id, s.base, s.closed)).collect(),
            dirty: dirty
                .map(|(shard, objects)| (*shard, objects.iter().copied().collect()))
                .collect(),
            begun: self.begun.iter().copied().collect(),
            cut_short: self.cut_short,
        }
    }

    /// Takes over a checkpoint; records stay as they are.
    pub fn restore(&mut self, state: PgState) {
        self.whole = state.whole;
        for session in self.sessions.values_mut() {
            (session.base, session.closed) = (Seq::default(), None);
        }
        for (id, base, closed) in state.sessions {
            let session = self.sessions.entry(id).or_default();
            (session.base, session.closed) = (base, closed);
        }
        self.dirty = state
            .dirty
            .into_iter()
            .map(|(s, objects)| (s, objects.into_iter().collect()))
            .collect();
        self.cut_short = state.cut_short;
        self.begun = state.begun.into_iter().collect();
    }
}

/// A PG's part of a journal, read again at a restart.
#[derive(Debug)]
pub struct Replay {
    pub(super) pg: PgId,
    pub(super) log: Log,
}

impl Replay {
    /// Nothing yet.
    pub fn new(pg: PgId) -> Self {
        Self { pg, log: Log::default() }
    }

    /// The PG.
    pub fn pg(&self) -> PgId {
        self.pg
    }

    /// With these rules of the protocol.
    #[must_use]
    pub fn with_rules(mut self, rules: Rules) -> Self {
        self.log.rules = rules;
        self
    }

    /// The next item is a record.
    pub fn record(&mut self, lsn: Lsn, record: Record) {
        self.log.push(lsn, record);
    }

    /// The next item is a delta.
    pub fn delta(&mut self, delta: &Delta) {
        self.log.take(delta);
    }

    /// The last whole checkpoint stands here: what came before changed records only.
    pub fn checkpoint(&mut self, state: PgState) {
        self.log.restore(state);
    }

    /// Records that name places, in order, with the object's rebuilding begun or not.
    pub fn placed(&self) -> impl Iterator<Item = (Lsn, &Record)> {
        let is_placed = |record: &Record| matches!(record.payload, Payload::Placed(_));
        self.log
            .entries
            .iter()
            .filter(move |(_, e)| is_placed(&e.record))
            .map(|(lsn, e)| (*lsn, &e.record))
    }

    /// Direct records whose bytes must be checked, in order. Rule: DirectCrc. Objects whose
    /// rebuilding was begun are left out: rebuilding writes over such bytes, and the object is
    /// rebuilt again in any case.
    pub fn direct(&self) -> impl Iterator<Item = (Lsn, &Record)> {
        let checks = self.log.rules.on(Rule::DirectCrc);
        let check = move |e: &&Entry| {
            checks && e.record.is_direct() && !self.log.begun.contains(&e.record.object)
        };
        self.log.entries.iter().filter(move |(_, e)| check(e)).map(|(lsn, e)| (*lsn, &e.record))
    }
}
