//! The way of a shard back into the in-sync set: list, rebuild, report, join.
//!
//! Contract: the owner carries the questions to the members and the pieces back, and rebuilds bytes
//! with the codec; what is asked, which pieces fit together, what is dropped and when the shard is
//! whole is decided here. All of it belongs to one epoch: [`PgShard::learn`] of a newer one starts
//! anew, with what was reported off the lists.

use super::member::EVERYTHING;
use super::store::{Change, Delta, Lsn, ShardStore, StoreError};
use super::{PgShard, log::Session};
use bytes::Bytes;
use protocol::recovery::{RecoveryBody, SessionMark};
use protocol::{ObjectId, Rule, Rules, Seq, SessionId, ShardIndex, ShardSet};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Included, Unbounded};

/// For each session up to which record pieces hold; `None`: all that it ever wrote.
pub type Cut = BTreeMap<SessionId, Option<Seq>>;

/// Marks heard of members, by session.
pub type Known = BTreeMap<SessionId, Seq>;

/// Where a return stands.
#[derive(Debug, Default)]
pub(super) struct Return {
    /// Members that have told all.
    listed: ShardSet,
    /// Those of them that do not know what was missed, and have listed everything.
    everything: ShardSet,
    /// Greatest settled mark told, and least cut told.
    marks: BTreeMap<SessionId, Seq>,
    closed: BTreeMap<SessionId, Seq>,
    need: BTreeSet<ObjectId>,
    rebuilt: BTreeSet<ObjectId>,
    /// Of those that are needed, the ones that are not rebuilt, and the last that was begun.
    todo: BTreeSet<ObjectId>,
    last: Option<ObjectId>,
    /// The list of what is to be rebuilt is durable here.
    complete: bool,
    /// Rebuilding has begun and not ended in memory; with the sessions that were over when it
    /// began.
    busy: BTreeMap<ObjectId, BTreeSet<SessionId>>,
    /// Rebuilt, and not yet known to be reported.
    unreported: BTreeSet<ObjectId>,
    /// Marks heard of with pieces: telling them makes cuts meet.
    known: BTreeMap<SessionId, Seq>,
}

impl Return {
    /// Is the object being overwritten?
    pub fn is_busy(&self, object: ObjectId) -> bool {
        self.busy.contains_key(&object)
    }

    /// May records be applied to the object, as far as rebuilding is concerned?
    pub fn is_rebuilt(&self, object: ObjectId) -> bool {
        self.complete && (!self.need.contains(&object) || self.rebuilt.contains(&object))
    }
}

/// A range of an object as rebuilt from pieces of one cut.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RebuiltPiece {
    /// In the fragment, in bytes.
    pub offset: u64,
    /// In bytes.
    pub length: u64,
    /// Data with its place in the fragment, in ascending order and whole sectors; between them are
    /// holes.
    pub data: Vec<(u64, Bytes)>,
    /// Where the object's user data ends, in user bytes; 0 where [`PgShard::finish_rebuild`] will
    /// tell.
    pub logical_end: u64,
}

impl RebuiltPiece {
    /// What makes its range of a fragment hold this and nothing else. What will be overwritten is
    /// not punched first: a file system takes many times as long to give space back and take it
    /// anew as to write over it.
    ///
    /// # Panics
    /// If the data is not in ascending order, or not within the range.
    pub fn changes(&self) -> Vec<Change<'_>> {
        let logical_end = self.logical_end;
        let hole = |from: u64, to: u64| {
            (from < to).then(|| Change::Punch { offset: from, length: to - from, logical_end })
        };
        let mut changes = Vec::new();
        let mut at = self.offset;
        for (offset, data) in &self.data {
            assert!(at <= *offset, "a hole behind data would take it away");
            changes.extend(hole(at, *offset));
            changes.push(Change::Write {
                lsn: Lsn::NEVER,
                offset: *offset,
                data,
                crcs: None,
                logical_end,
            });
            at = offset + data.len() as u64;
        }
        assert!(at <= self.offset + self.length, "data beyond the range");
        changes.extend(hole(at, self.offset + self.length));
        changes
    }
}

/// Are the pieces with these marks, in the order in which they were asked for, of one cut? `Ok`:
/// which. Rule: JoinCut.
///
/// A member that says nothing of a session has forgotten it, or has not met it yet. After another
/// has said that the session is over, nothing can come from it any more, so whoever is asked then
/// has all of it. Of a piece from before nobody can tell: the session may have come, written and
/// gone since. Asked again in another order, pieces fit.
///
/// # Errors
/// The greatest marks known, which all members must learn before they are asked again.
pub fn common_cut(
    rules: Rules,
    pieces: &[&[SessionMark]],
) -> Result<Cut, BTreeMap<SessionId, Seq>> {
    let sessions: BTreeSet<SessionId> =
        pieces.iter().flat_map(|p| p.iter().map(|m| m.session)).collect();
    let mut cut = Cut::new();
    let mut fits = true;
    for &id in &sessions {
        let marks = || pieces.iter().map(|p| p.iter().find(|m| m.session == id));
        let over = marks().position(|m| m.is_some_and(|m| m.closed.is_some()));
        fits &= over.is_none_or(|over| marks().take(over).all(|m| m.is_some()));
        let upto = |m: Option<&SessionMark>| match m {
            Some(m) if m.closed.is_some() => None,
            None if over.is_some() => None,
            other => Some(other.map_or(Seq::default(), |m| m.settled)),
        };
        let least = marks().filter_map(upto).min();
        let applied = marks().flatten().map(|m| m.last_applied).max().unwrap_or_default();
        fits &= least.is_none_or(|least| applied <= least);
        cut.insert(id, least);
    }
    if fits || !rules.on(Rule::JoinCut) {
        return Ok(cut);
    }
    let known = |id| {
        pieces.iter().flat_map(|p| p.iter()).filter(|m| m.session == id).map(|m| m.settled).max()
    };
    Err(sessions
        .into_iter()
        .filter_map(|id| Some((id, known(id)?)))
        .filter(|(_, s)| *s != EVERYTHING)
        .collect())
}

/// [`common_cut`] of shards of a clean PG, where shards forget sessions that have ended without a
/// new epoch. One that does not mention a session may never have met it, or may have everything
/// that it wrote: as long as another counts it as open, nobody can tell.
///
/// # Errors
/// As those of [`common_cut`].
pub fn clean_cut(rules: Rules, pieces: &[&[SessionMark]]) -> Result<Cut, Known> {
    let cut = common_cut(rules, pieces)?;
    let mentions = |piece: &[SessionMark], id| piece.iter().any(|mark| mark.session == id);
    let known_to_all =
        |mark: &SessionMark| pieces.iter().all(|piece| mentions(piece, mark.session));
    let open = || pieces.iter().flat_map(|piece| piece.iter()).filter(|mark| mark.closed.is_none());
    if open().all(known_to_all) { Ok(cut) } else { Err(Known::new()) }
}

/// The cut that an object of which parts were read one after the other is at least of.
pub fn least_cut(a: Cut, b: &Cut) -> Cut {
    let both = |(id, upto): (SessionId, Option<Seq>)| {
        let least = match (upto, *b.get(&id)?) {
            (None, other) | (other, None) => other,
            (Some(a), Some(b)) => Some(a.min(b)),
        };
        Some((id, least))
    };
    a.into_iter().filter_map(both).collect()
}

impl PgShard {
    /// Is this shard outside the in-sync set of an active PG?
    pub fn is_returning(&self) -> bool {
        self.view.pg.active && !self.view.is_in_sync()
    }

    /// Members that have not been asked, or have not answered, what this shard missed.
    pub fn unlisted(&self) -> ShardSet {
        self.view.pg.in_sync.minus(self.ret.listed)
    }

    /// The question what this shard missed; `after`: the last object of the page before.
    pub fn list_body(&self, after: Option<ObjectId>) -> RecoveryBody {
        let start = |(id, s): (&SessionId, &Session)| s.start.map(|start| (*id, start));
        let attached = self.log.sessions.iter().filter_map(start).collect();
        // Rule: BlankCheck - what holds nothing misses everything.
        RecoveryBody::List { after, blank: !self.log.whole && self.has(Rule::BlankCheck), attached }
    }

    /// A page of a member's answer. `more`: it is not the last one. `everything`: it lists all
    /// objects that it has.
    pub fn listed(
        &mut self,
        member: ShardIndex,
        objects: &[ObjectId],
        marks: &[SessionMark],
        more: bool,
        everything: bool,
    ) {
        self.ret.need.extend(objects);
        if everything {
            self.ret.everything = self.ret.everything.with(member);
        }
        for mark in marks {
            let settled =
                if mark.closed == Some(EVERYTHING) { Seq::default() } else { mark.settled };
            let known = self.ret.marks.entry(mark.session).or_default();
            *known = (*known).max(settled);
            if let Some(cut) = mark.closed {
                let least = self.ret.closed.entry(mark.session).or_insert(cut);
                *least = (*least).min(cut);
            }
        }
        if !more {
            self.ret.listed = self.ret.listed.with(member);
        }
    }

    /// All members have answered: cuts this shard's own tail and notes what is to be rebuilt. Rule:
    /// JoinBegun - after the next whole sync call [`PgShard::list_is_durable`]; nothing is rebuilt
    /// before.
    ///
    /// # Errors
    /// Those of the store.
    pub fn finish_list(&mut self, store: &mut impl ShardStore) -> Result<(), StoreError> {
        assert!(self.unlisted().is_empty(), "every member is asked first");
        // Rule: JoinClosed
        let over =
            if self.has(Rule::JoinClosed) { self.ret.closed.clone() } else { BTreeMap::new() };
        for (id, cut) in over {
            if cut == EVERYTHING {
                self.session(id).gone = true;
            } else if self.session(id).closed != Some(cut) {
                self.note(store, Delta::Closed(id, cut))?;
            }
        }
        let known: BTreeSet<SessionId> =
            self.log.sessions.keys().chain(self.ret.marks.keys()).copied().collect();
        for id in known {
            let session = self.session(id);
            let (over, attached) = (session.is_over(), session.start.is_some());
            // Rule: JoinDrop, JoinKeep - what lies beyond the members' mark goes, what lies below
            // stays and is applied.
            let cut = match self.ret.closed.get(&id) {
                Some(&EVERYTHING) => None,
                Some(&cut) => Some(cut),
                None if attached => None,
                // nobody remembers it: this shard was in the in-sync set when it ended
                None if over || !self.ret.marks.contains_key(&id) && self.is_gone(id) => None,
                None => Some(self.ret.marks.get(&id).copied().unwrap_or_default()),
            };
            if let Some(cut) = cut {
                self.note(store, Delta::Floor(id, cut))?;
            }
        }
        if !self.has(Rule::JoinKeep) {
            let starts: BTreeMap<_, _> =
                self.log.sessions.iter().map(|(id, s)| (*id, s.start)).collect();
            self.log.drop_where(|r| starts[&r.session].is_none_or(|start| r.seq <= start));
        }
        self.ret.need.extend(self.log.begun.iter().copied());
        // Rule: DirtyCut - what no member has any more goes here, too, be it in files or only in
        // the journal.
        if !self.log.whole && self.has(Rule::BlankCheck) || !self.ret.everything.is_empty() {
            self.ret.need.extend(store.objects(self.pg())?);
            self.ret.need.extend(self.log.entries.values().map(|entry| entry.record.object));
        }
        let noted = self.has(Rule::JoinBegun);
        let is_new = |o: &&ObjectId| noted && !self.log.begun.contains(*o);
        let need: Vec<ObjectId> = self.ret.need.iter().filter(is_new).copied().collect();
        for objects in need.chunks(1024) {
            self.note(store, Delta::Begun(objects.to_vec()))?;
        }
        if !self.log.whole {
            self.note(store, Delta::Whole)?;
        }
        self.queue_all();
        Ok(())
    }

    /// Does the map say that the session has ended, so that all of it is decided?
    pub(super) fn is_gone(&self, id: SessionId) -> bool {
        self.view.sessions.standing(id) == super::SessionStanding::Gone
    }

    /// The list of objects to rebuild is durable: rebuilding may begin.
    pub fn list_is_durable(&mut self) {
        if self.unlisted().is_empty() {
            self.ret.complete = true;
            self.ret.todo = self.ret.need.difference(&self.ret.rebuilt).copied().collect();
            self.queue_all();
        }
    }

    /// Members to tell so, once it is: their dirty lists were cut short. One that does not hear it
    /// lists everything again in the next epoch. Rule: DirtyNoted.
    pub fn to_tell_noted(&self) -> ShardSet {
        if self.ret.complete { self.ret.everything } else { ShardSet::EMPTY }
    }

    /// May objects be rebuilt?
    pub fn is_listed(&self) -> bool {
        self.ret.complete
    }

    /// How many objects are still to be rebuilt.
    pub fn to_rebuild(&self) -> usize {
        self.ret.need.len() - self.ret.rebuilt.len()
    }

    /// The next object to rebuild: first those of [`PgShard::next_wanted`], then in turn.
    pub fn next_to_rebuild(&mut self) -> Option<ObjectId> {
        self.next_wanted().or_else(|| {
            let (after, first) = (
                self.ret.last.map_or(Unbounded, Excluded),
                self.ret.last.map_or(Unbounded, Included),
            );
            let turn = self
                .ret
                .todo
                .range((after, Unbounded))
                .chain(self.ret.todo.range((Unbounded, first)));
            let next = turn.copied().find(|o| self.may_rebuild(o))?;
            self.ret.last = Some(next);
            self.begin_rebuild(next);
            Some(next)
        })
    }

    fn begin_rebuild(&mut self, object: ObjectId) {
        let over = self
            .log
            .sessions
            .iter()
            .filter(|(id, session)| session.is_over() || self.is_gone(**id));
        let over = over.map(|(id, _)| *id).collect();
        self.ret.busy.insert(object, over);
    }

    /// The next object to rebuild that sessions want: one whose records fill the journal.
    pub fn next_wanted(&mut self) -> Option<ObjectId> {
        let waiting = self.log.entries.values().filter(|e| !e.applied).map(|e| e.record.object);
        let next = waiting.take(256).find(|o| self.may_rebuild(o))?;
        self.begin_rebuild(next);
        Some(next)
    }

    /// Do records of the object fill the journal?
    pub fn is_wanted(&self, object: ObjectId) -> bool {
        self.log.objects.get(&object).is_some_and(|log| !log.pending.is_empty())
    }

    /// Is it to be rebuilt, and not begun?
    fn may_rebuild(&self, object: &ObjectId) -> bool {
        // Rule: JoinNeed
        let begins = self.ret.complete && (!self.view.is_joining() || self.has(Rule::JoinNeed));
        let open = !self.ret.rebuilt.contains(object) && !self.ret.is_busy(*object);
        begins && open && self.ret.need.contains(object)
    }

    /// The rebuilding of an object is given up for now.
    pub fn put_back(&mut self, object: ObjectId) {
        self.ret.busy.remove(&object);
        self.queue(object);
    }

    /// The rebuilding of every object that was begun is given up for now.
    pub fn put_all_back(&mut self) {
        for object in std::mem::take(&mut self.ret.busy).into_keys() {
            self.queue(object);
        }
    }

    /// The question for a member's piece of a range.
    pub fn snap_body(&self, object: ObjectId, offset: u64, length: u32) -> RecoveryBody {
        let (known, floor) = self.known_and_floor();
        RecoveryBody::Snap { object, offset, length, known, floor }
    }

    /// The question for a member's sums of a range, which stand for its piece where this shard's
    /// bytes match them.
    pub fn compare_body(
        &self,
        object: ObjectId,
        offset: u64,
        length: u32,
        seed: u64,
    ) -> RecoveryBody {
        let (known, floor) = self.known_and_floor();
        RecoveryBody::Sum { object, offset, length, seed: Some(seed), scrub: false, known, floor }
    }

    /// Marks for members to learn, and those that they must know, before they give a piece.
    #[expect(clippy::type_complexity, reason = "two fields of two messages")]
    fn known_and_floor(&self) -> (Vec<(SessionId, Seq)>, Vec<(SessionId, Seq)>) {
        let told = |id: &SessionId| self.ret.marks.get(id).copied().unwrap_or_default();
        let of = |(id, s): (&SessionId, &Session)| (*id, s.start.unwrap_or_else(|| told(id)));
        let floor = self.log.sessions.iter().filter(|(_, s)| !s.is_over()).map(of).collect();
        let mut known = self.ret.known.clone();
        // what members learn here lets Rule: JoinMark be met
        let told =
            self.log.sessions.iter().filter(|(_, s)| s.start.is_some() && self.has(Rule::JoinMark));
        for (id, session) in told {
            let mark = known.entry(*id).or_default();
            *mark = (*mark).max(session.stable);
        }
        (known.into_iter().collect(), floor)
    }

    /// Pieces did not fit together: these marks are told to all when they are asked again.
    pub fn learn_known(&mut self, known: BTreeMap<SessionId, Seq>) {
        for (id, seq) in known {
            let mark = self.ret.known.entry(id).or_default();
            *mark = (*mark).max(seq);
        }
    }

    /// Writes a rebuilt range into the fragment file.
    ///
    /// # Errors
    /// Those of the store.
    pub fn write_rebuilt(
        &mut self,
        store: &mut impl ShardStore,
        object: ObjectId,
        piece: &RebuiltPiece,
    ) -> Result<(), StoreError> {
        store.apply(self.pg(), &self.view.pg.profile, object, &piece.changes())
    }

    /// All of an object was rebuilt, of at least this cut. `end`: length of the fragment and end of
    /// user data, if the object exists. False: it must be rebuilt again, as records beyond the cut
    /// were applied before, or as a session ended meanwhile of which the pieces say nothing.
    ///
    /// # Errors
    /// Those of the store.
    pub fn finish_rebuild(
        &mut self,
        store: &mut impl ShardStore,
        object: ObjectId,
        cut: &Cut,
        end: Option<(u64, u64)>,
    ) -> Result<bool, StoreError> {
        let over_before = self.ret.busy.remove(&object).unwrap_or_default();
        // Members forget a session that has ended once no record of it is left: the pieces hold all
        // that it wrote, and a record of it that is still here must not be applied over what was
        // written later. But only if it had ended before they were asked: it may have come, written
        // and gone since.
        let mut cut = cut.clone();
        let is_here = |id: SessionId| {
            let mut records = self.log.entries.values().map(|entry| &entry.record);
            records.any(|record| record.session == id && record.object == object)
        };
        for (id, session) in &self.log.sessions {
            if !cut.contains_key(id) && (session.is_over() || self.is_gone(*id)) {
                if over_before.contains(id) {
                    cut.insert(*id, None);
                } else if is_here(*id) {
                    return Ok(false);
                }
            }
        }
        let within = |id: &SessionId, seq: Seq| {
            cut.get(id).is_some_and(|upto| upto.is_none_or(|upto| seq <= upto))
        };
        let applied_beyond = |e: &super::log::Entry| {
            e.applied && e.record.object == object && !within(&e.record.session, e.record.seq)
        };
        if self.log.entries.values().any(applied_beyond) {
            return Ok(false);
        }
        let change = match end {
            Some((offset, logical_end)) => Change::Truncate { offset, logical_end },
            None => Change::Delete,
        };
        store.apply(self.pg(), &self.view.pg.profile, object, &[change])?;
        let marks = cut.iter().map(|(id, upto)| (*id, *upto)).collect();
        self.note(store, Delta::Rebuilt(object, marks))?;
        if let Some(log) = self.log.objects.get_mut(&object) {
            log.last_applied.clear();
        }
        self.ret.rebuilt.insert(object);
        self.ret.todo.remove(&object);
        self.ret.unreported.insert(object);
        self.queue(object);
        self.log.forget_idle(object);
        Ok(true)
    }

    /// How many objects are rebuilt and not reported.
    pub fn unreported(&self) -> usize {
        self.ret.unreported.len()
    }

    /// Objects rebuilt and not reported. Rule: ReportSynced - after the next whole sync, files
    /// included, tell every member, and then call [`PgShard::reported`].
    pub fn to_report(&self) -> Vec<ObjectId> {
        self.ret.unreported.iter().copied().collect()
    }

    /// These were synced, and the members told.
    ///
    /// # Errors
    /// Those of the store.
    pub fn reported(
        &mut self,
        store: &mut impl ShardStore,
        objects: &[ObjectId],
    ) -> Result<(), StoreError> {
        self.ret.unreported.retain(|o| !objects.contains(o));
        if objects.is_empty() { Ok(()) } else { self.note(store, Delta::Done(objects.to_vec())) }
    }

    /// Does it hold nothing, and has not learned yet what there is to hold?
    pub fn is_blank(&self) -> bool {
        !self.log.whole
    }

    /// Is the shard whole, so that it may join once everything is synced? Rule: JoinOwed, JoinNeed.
    pub fn can_join(&self) -> bool {
        // one that has ended owes nothing: its records may be gone into rebuilt objects
        let pays = |(id, s): (&SessionId, &Session)| {
            s.is_over() || self.is_gone(*id) || s.tail() >= s.owed
        };
        let paid = self.log.sessions.iter().all(pays) || !self.has(Rule::JoinOwed);
        let rebuilt = self.to_rebuild() == 0 || !self.has(Rule::JoinNeed);
        self.view.pg.active && self.view.is_joining() && self.ret.complete && paid && rebuilt
    }

    /// The shard is about to join: forgets what was begun. Rule: JoinSync - sync everything, files
    /// included, then ask the monitor, naming the epoch of this shard's view (Rule: JoinCas).
    ///
    /// # Errors
    /// Those of the store.
    pub fn ready_to_join(&mut self, store: &mut impl ShardStore) -> Result<(), StoreError> {
        let begun: Vec<ObjectId> = self.log.begun.iter().copied().collect();
        if begun.is_empty() { Ok(()) } else { self.note(store, Delta::Done(begun)) }
    }

    // ---- repair of an in-sync shard

    /// The question for a member's piece of a range to repair: of no older state than this shard's.
    pub fn repair_body(&self, object: ObjectId, offset: u64, length: u32) -> RecoveryBody {
        let open = self.log.sessions.iter().filter(|(_, s)| !s.is_over());
        let known: Vec<(SessionId, Seq)> = open.map(|(id, s)| (*id, s.settled())).collect();
        RecoveryBody::Snap { object, offset, length, known: known.clone(), floor: known }
    }

    /// The question for a member's sums of a range, when in-sync shards are compared. `known`:
    /// marks heard of meanwhile.
    pub fn scrub_body(
        &self,
        object: ObjectId,
        offset: u64,
        length: u32,
        seed: Option<u64>,
        known: &Known,
    ) -> RecoveryBody {
        let mut known = known.clone();
        for (id, session) in self.log.sessions.iter().filter(|(_, s)| !s.is_over()) {
            let mark = known.entry(*id).or_default();
            *mark = (*mark).max(session.settled());
        }
        let known: Vec<(SessionId, Seq)> = known.into_iter().collect();
        RecoveryBody::Sum {
            object,
            offset,
            length,
            seed,
            scrub: true,
            known: known.clone(),
            floor: known,
        }
    }

    /// May a range that fails its checksum be replaced by bytes rebuilt from pieces with these
    /// marks? This shard must have applied nothing that the pieces lack, and hold no direct record
    /// there, whose bytes a restart would check.
    pub fn may_repair(
        &self,
        object: ObjectId,
        range: &std::ops::Range<u64>,
        pieces: &[&[SessionMark]],
    ) -> bool {
        let own = self.object_marks(object);
        // own applied records must lie within the pieces' cut; what is applied here later comes on
        // top
        let own: Vec<SessionMark> =
            own.into_iter().map(|m| SessionMark { settled: EVERYTHING, ..m }).collect();
        let mut all: Vec<&[SessionMark]> = pieces.to_vec();
        all.push(&own);
        let log = self.log.objects.get(&object);
        let direct = log.is_some_and(|log| log.has_direct_before(super::Lsn(u64::MAX), range));
        let pinned = log.is_some_and(|log| log.pins > 0);
        self.view.is_in_sync() && !direct && !pinned && clean_cut(self.log.rules, &all).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: SessionId = SessionId::new(7);

    fn mark(closed: bool, settled: u64, last_applied: u64) -> SessionMark {
        let closed = closed.then_some(EVERYTHING);
        SessionMark {
            session: S,
            settled: Seq::new(settled),
            closed,
            last_applied: Seq::new(last_applied),
        }
    }

    #[test]
    fn a_piece_from_before_a_session_that_is_over_by_now_does_not_fit() {
        let (over, nothing) = ([mark(true, 3, 3)], []);
        let cut = |pieces: &[&[SessionMark]]| common_cut(Rules::default(), pieces);
        assert_eq!(
            cut(&[&over, &nothing]),
            Ok(Cut::from([(S, None)])),
            "asked when it was over: forgotten"
        );
        assert!(
            cut(&[&nothing, &over]).is_err(),
            "it may have come, written and gone between the two"
        );
        assert_eq!(cut(&[&nothing, &nothing]), Ok(Cut::new()));
        assert!(cut(&[&nothing, &[mark(false, 3, 3)]]).is_err(), "a record that the first lacks");
    }

    #[test]
    fn where_sessions_are_forgotten_a_piece_that_lags_does_not_fit_one_that_says_nothing() {
        let (over, nothing) = ([mark(true, 3, 3)], []);
        let cut = |pieces: &[&[SessionMark]]| clean_cut(Rules::default(), pieces);
        assert!(
            cut(&[&[mark(false, 0, 0)], &nothing]).is_err(),
            "it may have forgotten what the first has not applied"
        );
        assert!(cut(&[&nothing, &[mark(false, 0, 0)]]).is_err());
        assert_eq!(
            cut(&[&[mark(false, 3, 3)], &[mark(false, 3, 0)]]),
            Ok(Cut::from([(S, Some(Seq::new(3)))]))
        );
        assert_eq!(cut(&[&over, &nothing]), Ok(Cut::from([(S, None)])), "all have all of it");
        assert_eq!(cut(&[&nothing, &nothing]), Ok(Cut::new()));
    }

    #[test]
    fn what_is_overwritten_is_not_punched() {
        let changes = |data: &[(u64, &'static [u8])]| {
            let data = data.iter().map(|(at, bytes)| (*at, Bytes::from_static(bytes))).collect();
            let piece = RebuiltPiece { offset: 4096, length: 2048, data, logical_end: 9 };
            let seen = |change: &Change<'_>| match *change {
                Change::Punch { offset, length, logical_end: 9 } => {
                    (offset, offset + length, false)
                }
                Change::Write { offset, data, logical_end: 9, .. } => {
                    (offset, offset + data.len() as u64, true)
                }
                _ => panic!("neither a hole nor data"),
            };
            piece.changes().iter().map(seen).collect::<Vec<_>>()
        };
        assert_eq!(changes(&[]), [(4096, 6144, false)]);
        assert_eq!(changes(&[(4096, &[1; 2048])]), [(4096, 6144, true)]);
        assert_eq!(
            changes(&[(4608, &[1; 512]), (5632, &[1; 512])]),
            [(4096, 4608, false), (4608, 5120, true), (5120, 5632, false), (5632, 6144, true)]
        );
    }
}
