//! An in-sync member's answers to returning shards, and to the coordinator that resolves dead
//! sessions.

use super::store::{Delta, ShardStore, StoreError};
use super::{PgShard, log::Session};
use protocol::monitor::SessionHolding;
use protocol::recovery::{RecoveryReply, SessionMark};
use protocol::shard::Status;
use protocol::{Epoch, ObjectId, Rule, Seq, SessionId, ShardIndex};
use std::collections::BTreeSet;

/// May a piece be given now?
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SnapPlan {
    /// Yes: the fragment file, without the journal, is of this cut. The object is pinned.
    Ready(Snapshot),
    /// Records below the mark are still to be applied, or a mark is unknown: ask again shortly.
    NotYet,
    /// Not like this.
    Refused(Status),
}

/// The marks of a piece.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// Of every session with records in this PG.
    pub marks: Vec<SessionMark>,
    /// Records of the object are not applied: after a restart its file may not pass its checksums
    /// until they are.
    pub has_unapplied: bool,
}

/// What a shard asks for a piece.
#[derive(Clone, Copy, Debug)]
pub struct SnapQuestion<'a> {
    /// The PG's epoch as the asker knows it.
    pub epoch: Epoch,
    /// The asker.
    pub from: ShardIndex,
    /// The object.
    pub object: ObjectId,
    /// This is the first part of the object that it asks for.
    pub first: bool,
    /// Stable marks for this member to learn.
    pub known: &'a [(SessionId, Seq)],
    /// What this member must know at least.
    pub floor: &'a [(SessionId, Seq)],
}

/// The cut of a session that ended with everything stable: all of it is kept.
pub(super) const EVERYTHING: Seq = Seq::new(u64::MAX);

/// Objects in one page of a list.
const LIST_PAGE_OBJECTS: usize = 1024;

impl PgShard {
    fn check_member(&self, epoch: Epoch) -> Result<(), Status> {
        if epoch != self.view.pg.epoch {
            Err(Status::StaleEpoch)
        } else if !self.view.pg.active || !self.view.is_in_sync() {
            Err(Status::NotActive)
        } else {
            Ok(())
        }
    }

    /// May this shard take part in the end of a dead session? Rule: RecoverIss - in-sync members
    /// only.
    fn check_participant(&self, epoch: Epoch) -> Result<(), Status> {
        match self.check_member(epoch) {
            Err(Status::NotActive) if self.view.is_joining() && !self.has(Rule::RecoverIss) => {
                Ok(())
            }
            other => other,
        }
    }

    /// Is a session dead and not resolved here?
    fn has_undecided(&self) -> bool {
        let over = |id: &SessionId| self.log.sessions.get(id).is_some_and(Session::is_over);
        let fenced = |s: &Session| s.fenced && !s.is_over();
        self.view.sessions.dead.iter().any(|id| !over(id)) || self.log.sessions.values().any(fenced)
    }

    fn mark_of(id: SessionId, session: &Session, last_applied: Seq) -> SessionMark {
        let closed = session.closed.or(session.gone.then_some(EVERYTHING));
        // no piece that may lack something of it fits this one
        let last_applied = if session.forgotten { EVERYTHING } else { last_applied };
        SessionMark { session: id, settled: session.settled(), closed, last_applied }
    }

    /// What shard `from` missed, and which sessions stand where. `attached`: sessions attached to
    /// it while it joins.
    ///
    /// # Errors
    /// Those of the store, only if `blank`.
    pub fn list(
        &mut self,
        store: &mut impl ShardStore,
        epoch: Epoch,
        from: ShardIndex,
        after: Option<ObjectId>,
        blank: bool,
        attached: &[(SessionId, Seq)],
    ) -> Result<RecoveryReply, StoreError> {
        if let Err(status) = self.check_member(epoch) {
            return Ok(RecoveryReply::Refused(status));
        }
        // Rule: JoinMark - what the asker had been told is decided is known here before it asks for
        // pieces.
        let told = if self.has(Rule::JoinMark) { attached } else { &[] };
        for (id, start) in told {
            self.learn_stable(*id, *start);
        }
        // Rule: JoinAttached - live sessions with unresolved records attach to the joining shard
        // first.
        let known = |id: SessionId, s: &Session| {
            attached.iter().any(|(a, _)| *a == id) || s.tail() == s.settled()
        };
        let clear = || self.log.sessions.iter().all(|(id, s)| s.is_over() || known(*id, s));
        let joins = self.view.pg.joining.contains(from) && self.has(Rule::JoinAttached);
        if joins && (self.has_undecided() || !clear()) {
            return Ok(RecoveryReply::NotYet);
        }
        // Rule: DirtyCut
        let everything = self.log.cut_short.contains(from) && self.has(Rule::DirtyCut);
        let listed = match self.pages.remove(&from).filter(|_| after.is_some()) {
            Some(listed) => listed,
            None => self.missed_by(store, from, blank || everything, after.is_none())?,
        };
        let begin = listed.partition_point(|object| after.is_some_and(|after| *object <= after));
        let page: Vec<ObjectId> = listed[begin..].iter().copied().take(LIST_PAGE_OBJECTS).collect();
        let more = begin + page.len() < listed.len();
        if more {
            self.pages.insert(from, listed);
        }
        let marks =
            self.log.sessions.iter().map(|(id, s)| Self::mark_of(*id, s, Seq::default())).collect();
        if !more && !self.has(Rule::DirtyNoted) {
            self.forget_cut(store, from)?;
        }
        Ok(RecoveryReply::Listed { objects: page, bytes: Vec::new(), marks, more, everything })
    }

    /// What shard `of` may have missed, ascending; `everything`: all that is here. `first`: a list
    /// begins.
    fn missed_by(
        &mut self,
        store: &mut impl ShardStore,
        of: ShardIndex,
        everything: bool,
        first: bool,
    ) -> Result<Vec<ObjectId>, StoreError> {
        if self.log.cut_short.contains(of) && first && !self.listing.contains(of) {
            // what is trimmed from now on may not be on these pages
            self.log.dirty.remove(&of);
            self.listing = self.listing.with(of);
        }
        // Rule: DirtyUntrimmed
        let all = self.has(Rule::DirtyUntrimmed);
        let untrimmed = self
            .log
            .objects
            .iter()
            .filter(|(_, log)| all && log.untrimmed > 0)
            .map(|(object, _)| *object);
        let mut objects: BTreeSet<ObjectId> = untrimmed.collect();
        objects.extend(self.log.dirty.get(&of).into_iter().flatten());
        if everything {
            objects.extend(store.objects(self.pg())?);
        }
        Ok(objects.into_iter().collect())
    }

    /// Shard `from` has noted what it was listed, durably. Rule: DirtyNoted.
    ///
    /// # Errors
    /// Those of the store.
    pub fn noted(
        &mut self,
        store: &mut impl ShardStore,
        epoch: Epoch,
        from: ShardIndex,
    ) -> Result<RecoveryReply, StoreError> {
        if let Err(status) = self.check_member(epoch) {
            return Ok(RecoveryReply::Refused(status));
        }
        self.forget_cut(store, from)?;
        Ok(RecoveryReply::Cleared { objects: Vec::new() })
    }

    /// From now on the shard misses what its dirty list says, unless that was cut short again since
    /// it was given a list.
    fn forget_cut(
        &mut self,
        store: &mut impl ShardStore,
        of: ShardIndex,
    ) -> Result<(), StoreError> {
        if !self.listing.contains(of) {
            return Ok(());
        }
        self.listing = self.listing.without(of);
        self.note(store, Delta::Noted(of))
    }

    /// May the piece of an object be read from its fragment file now, and of which cut is it?
    ///
    /// # Errors
    /// Those of applying records.
    pub fn snap(
        &mut self,
        store: &mut impl ShardStore,
        question: &SnapQuestion<'_>,
    ) -> Result<SnapPlan, StoreError> {
        let plan = self.snap_plan(store, question);
        // what others said of sessions forgotten here counted for this answer
        self.log.sessions.retain(|_, session| !session.forgotten);
        plan
    }

    fn snap_plan(
        &mut self,
        store: &mut impl ShardStore,
        question: &SnapQuestion<'_>,
    ) -> Result<SnapPlan, StoreError> {
        let SnapQuestion { epoch, from, object, first, known, floor } = *question;
        if let Err(status) = self.check_member(epoch) {
            return Ok(SnapPlan::Refused(status));
        }
        for (id, seq) in known {
            self.learn_stable(*id, *seq);
        }
        self.apply_object(store, object, u64::MAX)?;
        // Rule: JoinMark - everything the asker had been told is decided must be known here.
        let reached = |&(id, seq): &(SessionId, Seq)| {
            let none = seq == Seq::default() || self.is_gone(id);
            none || self.log.sessions.get(&id).is_some_and(|s| s.is_over() || s.settled() >= seq)
        };
        let unknown = self.has_undecided() || !floor.iter().all(reached);
        if unknown && self.has(Rule::JoinMark) || self.has_settled_unapplied(object) {
            return Ok(SnapPlan::NotYet);
        }
        if first {
            self.given.entry(from).or_default().insert(object);
        }
        let marks = self.object_marks(object);
        let has_unapplied =
            self.log.objects.get(&object).is_some_and(|log| !log.pending.is_empty());
        self.pin(object);
        Ok(SnapPlan::Ready(Snapshot { marks, has_unapplied }))
    }

    fn has_settled_unapplied(&self, object: ObjectId) -> bool {
        let pending = self.log.objects.get(&object).into_iter().flat_map(|log| &log.pending);
        pending.map(|lsn| &self.log.entries[lsn].record).any(|r| {
            let session = self.log.sessions.get(&r.session);
            session.is_some_and(|s| r.seq <= s.settled())
        })
    }

    /// The cut of an object's fragment file as it is now.
    pub(super) fn object_marks(&self, object: ObjectId) -> Vec<SessionMark> {
        let applied =
            self.log.objects.get(&object).map(|log| &log.last_applied[..]).unwrap_or_default();
        let last = |id: SessionId| {
            applied.iter().find(|(s, _)| *s == id).map_or(Seq::default(), |(_, seq)| *seq)
        };
        let mark = |(id, s): (&SessionId, &Session)| Self::mark_of(*id, s, s.base.max(last(*id)));
        self.log.sessions.iter().map(mark).collect()
    }

    /// Shard `from` has rebuilt these objects for good. Gives those whose dirty marks are gone.
    ///
    /// # Errors
    /// Those of the store.
    pub fn report(
        &mut self,
        store: &mut impl ShardStore,
        epoch: Epoch,
        from: ShardIndex,
        objects: &[ObjectId],
    ) -> Result<RecoveryReply, StoreError> {
        if let Err(status) = self.check_member(epoch) {
            return Ok(RecoveryReply::Refused(status));
        }
        // Rule: ReportSame - only what was not trimmed since its piece was read.
        let given = self.given.get(&from);
        let same = |o: &&ObjectId| {
            given.is_some_and(|given| given.contains(*o)) || !self.has(Rule::ReportSame)
        };
        let objects: Vec<ObjectId> = objects.iter().filter(same).copied().collect();
        let dirty = self.log.dirty.get(&from);
        if objects.iter().any(|o| dirty.is_some_and(|dirty| dirty.contains(o))) {
            self.note(store, Delta::Clean(from, objects.clone()))?;
        }
        Ok(RecoveryReply::Cleared { objects })
    }

    // ---- resolution of a dead session

    /// Fences the session here and now. What [`PgShard::holding`] tells after the next whole sync
    /// is the answer. False: this shard is not an active member in this epoch.
    pub fn fence(&mut self, session: SessionId, epoch: Epoch) -> bool {
        if self.check_participant(epoch).is_err() {
            return false;
        }
        self.session(session).fenced = true;
        true
    }

    /// What is here of a fenced session. Rule: RecoverSync - call it when a sync begun after the
    /// fence has ended.
    pub fn holding(&self, session: SessionId, epoch: Epoch) -> Option<SessionHolding> {
        self.check_participant(epoch).ok()?;
        let (pg, state) = (self.pg(), self.log.sessions.get(&session));
        let touch = |lsn| self.log.entries[lsn].record.touch;
        let held =
            state.into_iter().flat_map(|s| &s.seqs).map(|(seq, lsn)| (*seq, touch(lsn))).collect();
        Some(SessionHolding { pg, settled: state.map_or(Seq::default(), Session::settled), held })
    }

    /// Drops what lies beyond the cut and closes the session. Rule: DecideDurable - acknowledge it
    /// when the next whole sync has ended. False: this shard is not an active member in this epoch.
    ///
    /// # Errors
    /// Those of the store.
    pub fn decide(
        &mut self,
        store: &mut impl ShardStore,
        session: SessionId,
        epoch: Epoch,
        cut: Seq,
    ) -> Result<bool, StoreError> {
        if self.check_participant(epoch).is_err() {
            return Ok(false);
        }
        self.session(session).fenced = true;
        if self.session(session).closed != Some(cut) {
            self.note(store, Delta::Closed(session, cut))?;
        }
        self.queue_all();
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pg::shard::{Change, Item, Lsn, Placed, Summed};
    use crate::pg::{PgView, SessionTable, ShardView};
    use protocol::{Gfid, PgId, PoolId, Profile, ShardSet};
    use std::ops::Range;
    use std::sync::Arc;

    const ABSENT: ShardIndex = ShardIndex::new(2);
    const EPOCH: Epoch = Epoch::new(1);

    /// Fragments without content, and how often they were listed.
    struct Names {
        objects: Vec<ObjectId>,
        listed: usize,
    }

    impl ShardStore for Names {
        fn append(&mut self, _: PgId, _: Item<'_>) -> Result<Lsn, StoreError> {
            Ok(Lsn(1))
        }

        fn is_unwritten(&mut self, _: PgId, _: ObjectId, _: Range<u64>) -> bool {
            false
        }

        fn write_direct(
            &mut self,
            _: PgId,
            _: ObjectId,
            _: u64,
            _: &Summed,
        ) -> Result<Box<[u32]>, StoreError> {
            Err(StoreError::NoSpace)
        }

        fn place(
            &mut self,
            _: PgId,
            _: ObjectId,
            _: u64,
            _: &Summed,
        ) -> Result<Option<Placed>, StoreError> {
            Ok(None)
        }

        fn apply(
            &mut self,
            _: PgId,
            _: &Profile,
            _: ObjectId,
            _: &[Change<'_>],
        ) -> Result<(), StoreError> {
            Ok(())
        }

        fn objects(&mut self, _: PgId) -> Result<Vec<ObjectId>, StoreError> {
            self.listed += 1;
            Ok(self.objects.clone())
        }
    }

    fn object(n: u64) -> ObjectId {
        ObjectId { gfid: Gfid::of_inode(n), index: 0 }
    }

    /// An active member while shard 2 is away.
    fn member() -> PgShard {
        let pg = PgId { pool: PoolId::new(1), number: 0 };
        let profile = Profile::new(2, 1, 512, Profile::OBJECT_BYTES_DEFAULT).expect("a profile");
        let (in_sync, joining, active) =
            (ShardSet::first(3).without(ABSENT), ShardSet::EMPTY, true);
        let view = PgView { pg, epoch: EPOCH, profile, in_sync, joining, active };
        PgShard::new(ShardView {
            pg: view,
            me: ShardIndex::new(0),
            sessions: Arc::new(SessionTable::default()),
        })
    }

    fn page(
        member: &mut PgShard,
        store: &mut Names,
        after: Option<ObjectId>,
        blank: bool,
    ) -> (Vec<ObjectId>, bool, bool) {
        match member.list(store, EPOCH, ABSENT, after, blank, &[]).expect("no failure") {
            RecoveryReply::Listed { objects, more, everything, .. } => (objects, more, everything),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_pages_of_a_list_are_of_one_look_and_leave_nothing_out() {
        let all: Vec<ObjectId> = (0..2 * LIST_PAGE_OBJECTS as u64 + 7).map(object).collect();
        let mut store = Names { objects: all.iter().rev().copied().collect(), listed: 0 };
        let mut member = member();
        let (mut given, mut more) = (Vec::new(), true);
        while more {
            let after = given.last().copied();
            let (objects, more_follow, _) = page(&mut member, &mut store, after, true);
            assert!((1..=LIST_PAGE_OBJECTS).contains(&objects.len()));
            given.extend(objects);
            more = more_follow;
        }
        let mut sorted = all;
        sorted.sort_unstable();
        assert_eq!((given, store.listed), (sorted, 1));
        // asked from the beginning, it looks anew
        store.objects.truncate(3);
        assert_eq!(page(&mut member, &mut store, None, true).0.len(), 3);
    }

    #[test]
    fn what_is_not_remembered_is_everything_until_the_shard_has_noted_it() {
        let mut store = Names { objects: vec![object(1), object(2)], listed: 0 };
        let mut member = member();
        member.log.cut_short = ShardSet::only(ABSENT);
        // nothing was listed yet: what the shard says it has noted was another's list
        member.noted(&mut store, EPOCH, ABSENT).expect("no failure");
        assert!(member.log.cut_short.contains(ABSENT));
        assert_eq!(
            page(&mut member, &mut store, None, false),
            (vec![object(1), object(2)], false, true)
        );
        // trimmed since: it may have been listed before, and changed
        member.log.dirty.entry(ABSENT).or_default().insert(object(1));
        member.noted(&mut store, EPOCH, ABSENT).expect("no failure");
        assert!(!member.log.cut_short.contains(ABSENT));
        assert_eq!(page(&mut member, &mut store, None, false), (vec![object(1)], false, false));
    }
}
