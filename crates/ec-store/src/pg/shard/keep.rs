//! Sync, apply and trim: how records travel from the journal into fragment files.

use super::log::Entry;
use super::store::{Change, Delta, Lsn, Payload, ShardStore, StoreError};
use super::{PgShard, PgState};
use protocol::shard::{SPACE_OF_FRAGMENT, Status, space_of_data};
use protocol::{ObjectId, Rule, Seq, SessionId};

/// What a trim may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TrimStep {
    /// The first record that must stay; `None`: all may go.
    pub first_unapplied: Option<Lsn>,
    /// A record waits for a trim of one before it. Rule: DirectSettle.
    pub is_trim_awaited: bool,
    /// The first record of all.
    pub first: Option<Lsn>,
}

impl PgShard {
    // ---- sync

    /// Is anything here that a power loss would take?
    pub fn is_unsynced(&self) -> bool {
        !self.unsynced.is_empty()
    }

    /// Everything taken so far is flushed, and a sync of the data of direct writes and of the
    /// journal begins.
    pub fn begin_sync(&mut self) {
        for id in &self.unsynced {
            if let Some(session) = self.log.sessions.get_mut(id) {
                session.syncing = session.tail();
            }
        }
    }

    /// The sync that began last has ended well. Rule: DirectSync - the data of direct writes was
    /// part of it.
    pub fn end_sync(&mut self) {
        for id in std::mem::take(&mut self.unsynced) {
            let Some(session) = self.log.sessions.get_mut(&id) else { continue };
            let moved = session.syncing > session.durable;
            session.durable = session.durable.max(session.syncing);
            if session.durable < session.tail() {
                self.unsynced.insert(id);
            } else {
                session.wants_sync = false;
            }
            if session.aid > 0 && moved {
                self.due(id, Status::Ok, false);
            }
        }
    }

    /// Does a session wait for what the last sync did not cover?
    pub fn wants_sync(&self) -> bool {
        self.unsynced.iter().any(|id| self.log.sessions.get(id).is_some_and(|s| s.wants_sync))
    }

    // ---- apply

    pub(super) fn learn_stable(&mut self, id: SessionId, stable: Seq) {
        // others may speak of a session that has ended and is forgotten here: it must not come back
        // as an open one
        let forgotten =
            !self.log.sessions.contains_key(&id) && self.is_gone(id) && self.view.is_in_sync();
        let session = self.session(id);
        if forgotten {
            (session.gone, session.fenced, session.forgotten) = (true, true, true);
        }
        if stable > session.stable {
            session.stable = stable;
            self.queue_settled(id);
        }
    }

    /// Queues the objects of the session's records that are settled by now.
    pub(super) fn queue_settled(&mut self, id: SessionId) {
        let Some(session) = self.log.sessions.get_mut(&id) else { return };
        let settled = session.settled();
        if settled <= session.queued {
            return;
        }
        let from = Seq::new(session.queued.get() + 1);
        let lsns: Vec<Lsn> = session.seqs.range(from..=settled).map(|(_, lsn)| *lsn).collect();
        session.queued = settled;
        for lsn in lsns {
            let object = self.log.entries[&lsn].record.object;
            self.queue(object);
        }
    }

    pub(super) fn queue(&mut self, object: ObjectId) {
        let Some(log) = self.log.objects.get_mut(&object) else { return };
        if !log.queued && !log.pending.is_empty() {
            log.queued = true;
            self.to_apply.push(object);
        }
    }

    /// Queues every object with unapplied records: something that held them back has changed.
    pub(super) fn queue_all(&mut self) {
        let waiting = self.log.objects.iter().filter(|(_, log)| !log.pending.is_empty());
        let objects: Vec<ObjectId> = waiting.map(|(object, _)| *object).collect();
        objects.into_iter().for_each(|object| self.queue(object));
    }

    /// Is there anything that [`PgShard::apply_some`] might do?
    pub fn has_to_apply(&self) -> bool {
        !self.to_apply.is_empty()
    }

    /// Applies records until they come to `bytes_max` bytes, one at least if any may be applied.
    /// Small ones take a system call, too: each counts as [`PgShard::APPLY_BYTES_MIN`] at least.
    ///
    /// # Errors
    /// Those of the store; the records concerned stay in the journal and are tried again.
    pub fn apply_some(
        &mut self,
        store: &mut impl ShardStore,
        bytes_max: u64,
    ) -> Result<(), StoreError> {
        let mut left = bytes_max;
        while left > 0 {
            let Some(object) = self.to_apply.pop() else { break };
            if let Some(log) = self.log.objects.get_mut(&object) {
                log.queued = false;
            }
            match self.apply_object(store, object, left) {
                Ok(bytes) => left = left.saturating_sub(bytes),
                Err(error) => {
                    self.queue(object);
                    return Err(error);
                }
            }
            self.log.forget_idle(object);
        }
        Ok(())
    }

    /// Applies what may be applied of an object, oldest first, until it comes to `bytes_max`, and
    /// queues the object again then. Gives the bytes, counted as by [`PgShard::apply_some`]. Rule:
    /// ApplyOrder.
    pub(super) fn apply_object(
        &mut self,
        store: &mut impl ShardStore,
        object: ObjectId,
        bytes_max: u64,
    ) -> Result<u64, StoreError> {
        let Some(log) = self.log.objects.get(&object) else { return Ok(0) };
        // Rule: JoinApplyWait
        let waits =
            self.view.is_joining() && !self.ret.is_rebuilt(object) && self.has(Rule::JoinApplyWait);
        // Pieces of one cut after the other are being written: a record in between would undo a
        // part of them.
        if log.pins > 0 || waits || self.ret.is_busy(object) {
            return Ok(0);
        }
        let mut bytes = 0;
        let counted = |lsn: &Lsn| match &self.log.entries[lsn].record.payload {
            Payload::Journalled(data) => Self::APPLY_BYTES_MIN.max(data.len() as u64),
            Payload::Direct(_) | Payload::Placed(_) | Payload::Nothing => Self::APPLY_BYTES_MIN,
        };
        let fits = |lsn: &Lsn| {
            let fits = bytes < bytes_max;
            bytes += if fits { counted(lsn) } else { 0 };
            fits
        };
        let pending = log.pending.iter().copied();
        let ready: Vec<Lsn> = match self.has(Rule::ApplyOrder) {
            true => pending.take_while(|lsn| self.may_apply(*lsn)).take_while(fits).collect(),
            false => pending.rev().filter(|lsn| self.may_apply(*lsn)).take_while(fits).collect(),
        };
        let changes: Vec<Change<'_>> =
            ready.iter().map(|lsn| self.log.entries[lsn].record.change(*lsn)).collect();
        if changes.is_empty() {
            return Ok(0);
        }
        store.apply(self.pg(), &self.view.pg.profile, object, &changes)?;
        ready.into_iter().for_each(|lsn| self.log.set_applied(lsn));
        if bytes >= bytes_max {
            self.queue(object);
        }
        Ok(bytes)
    }

    fn may_apply(&self, lsn: Lsn) -> bool {
        let record = &self.log.entries[&lsn].record;
        // Rule: ApplyStable
        let settled =
            self.log.sessions.get(&record.session).is_some_and(|s| record.seq <= s.settled());
        (settled || !self.has(Rule::ApplyStable)) && !self.waits_for_trim(lsn)
    }

    /// Rule: DirectSettle - the bytes of a direct record must stay what they are while a restart
    /// would check them.
    fn waits_for_trim(&self, lsn: Lsn) -> bool {
        let Some(Entry { record, .. }) = self.log.entries.get(&lsn) else { return false };
        let log = &self.log.objects[&record.object];
        !record.is_direct()
            && log.has_direct_before(lsn, &record.span())
            && self.has(Rule::DirectSettle)
    }

    // ---- trim

    /// How far a trim could go, as far as this PG is concerned. Rule: TrimOrder.
    pub fn trim_step(&self) -> TrimStep {
        let mut entries = self.log.entries.iter();
        let first_unapplied = match self.has(Rule::TrimOrder) {
            true => entries.find(|(_, e)| !e.applied).map(|(lsn, _)| *lsn),
            false => entries.rfind(|(_, e)| e.applied).map(|(lsn, _)| Lsn(lsn.0 + 1)),
        };
        let mut oldest = self.log.objects.values().filter_map(|log| log.pending.iter().next());
        let is_trim_awaited = oldest.any(|lsn| self.waits_for_trim(*lsn));
        TrimStep { first_unapplied, is_trim_awaited, first: self.first_journalled() }
    }

    /// The first record in the journal.
    pub fn first_journalled(&self) -> Option<Lsn> {
        self.log.entries.keys().next().copied()
    }

    /// First step of a trim of all records before `upto`, which are applied and whose files are
    /// synced: what the checkpoint must hold. Nothing leaves before the checkpoint is durable.
    /// Rule: DirtyTrim, DirtyDurable.
    pub fn prepare_trim(&mut self, upto: Lsn) -> PgState {
        let absent = self.view.pg.all().minus(self.view.pg.in_sync);
        let rules = self.log.rules;
        for (_, entry) in self.log.entries.range(..upto) {
            assert!(
                entry.applied || !rules.on(Rule::TrimOrder),
                "only applied records are trimmed"
            );
            let record = &entry.record;
            for shard in absent.iter().filter(|_| rules.on(Rule::DirtyTrim)) {
                self.given.entry(shard).or_default().remove(&record.object);
                if self.log.cut_short.contains(shard) && !self.listing.contains(shard) {
                    continue;
                }
                let dirty = self.log.dirty.entry(shard).or_default();
                dirty.insert(record.object);
                if dirty.len() > self.dirty_objects_max {
                    // Rule: DirtyCut - the list is bounded; that it is not whole is remembered with
                    // it.
                    dirty.clear();
                    self.log.cut_short = self.log.cut_short.with(shard);
                    self.listing = self.listing.without(shard);
                }
            }
            if let Some(session) = self.log.sessions.get_mut(&record.session) {
                session.base = session.base.max(record.seq);
            }
        }
        self.log.state()
    }

    /// Second step: the checkpoint is durable.
    pub fn commit_trim(&mut self, upto: Lsn) {
        for object in self.log.trim(upto) {
            self.queue(object); // Rule: DirectSettle may have held records back
        }
        self.learn_sessions();
    }

    /// Records in the journal, and objects rebuilt here or missed by absent shards: for status and
    /// tests.
    pub fn journalled(&self) -> usize {
        self.log.entries.len()
    }

    /// Every record in the journal, and whether it is applied: for tests.
    pub fn records(&self) -> impl Iterator<Item = (SessionId, Seq, bool)> {
        self.log
            .entries
            .values()
            .map(|entry| (entry.record.session, entry.record.seq, entry.applied))
    }

    /// Bytes of journalled writes that are held in memory until they are applied.
    pub fn queued_bytes(&self) -> u64 {
        self.log.queued_bytes
    }

    /// Bytes of disk that fragments still need at most for what is in the journal.
    pub fn unapplied_space(&self) -> u64 {
        let bytes = |entry: &Entry| match &entry.record.payload {
            Payload::Journalled(data) if !entry.applied => space_of_data(data.len() as u64),
            _ => 0,
        };
        let records: u64 = self.log.entries.values().map(bytes).sum();
        let objects =
            self.log.objects.values().filter(|object| !object.pending.is_empty()).count() as u64;
        records + objects * SPACE_OF_FRAGMENT
    }

    /// What a checkpoint without a trim holds.
    pub fn state(&self) -> PgState {
        self.log.state()
    }

    /// Notes durably what the map says: a shard that is in sync is not blank, and has nothing to
    /// rebuild.
    ///
    /// # Errors
    /// Those of the store.
    pub fn note_whole(&mut self, store: &mut impl ShardStore) -> Result<(), StoreError> {
        if !self.log.whole && self.view.is_in_sync() {
            self.note(store, Delta::Whole)?;
        }
        // its journal was cut at a restart, and too few others were there for it to leave
        if !self.log.begun.is_empty() && self.view.is_in_sync() && self.view.pg.active {
            let begun = self.log.begun.iter().copied().collect();
            self.note(store, Delta::Done(begun))?;
        }
        Ok(())
    }
}
