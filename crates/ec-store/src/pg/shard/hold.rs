//! Objects that returning shards hold, so that pieces of what is written without rest can be of one
//! cut.
//!
//! Contract: a hold delays applying, and with it trimming, and nothing else: records are taken,
//! acknowledged, synced and read as before. While it lasts, the object's file is moved only as far
//! as its holder asks for, and its pieces are of the cut at which it is held. A hold ends with the
//! epoch, or when the owner of the machine ends it ([`PgShard::end_hold`]); it must do that soon,
//! for the journal cannot be trimmed beyond the object's next record.

use super::PgShard;
use super::member::EVERYTHING;
use super::store::{Lsn, ShardStore, StoreError};
use protocol::recovery::SessionMark;
use protocol::{ObjectId, Rule, Seq, SessionId};
use std::collections::BTreeMap;

/// Objects that are held at a time, at most, in one PG: the hold that began first ends when another
/// begins. A returning shard rebuilds few at a time.
const HOLDS_MAX: usize = 32;

/// Where an object is held.
#[derive(Debug)]
pub(super) struct Hold {
    /// Tells it from earlier ones of the object.
    number: u64,
    /// Of sessions that were open when it was last moved: all up to `settled` is applied, and
    /// nothing beyond.
    marks: BTreeMap<SessionId, SessionMark>,
}

impl PgShard {
    /// Is nothing to be applied to the object for now? Rule: HoldApply.
    pub(super) fn is_held(&self, object: ObjectId) -> bool {
        self.has(Rule::HoldApply) && self.holds.contains_key(&object)
    }

    /// Objects that are held.
    pub fn held(&self) -> usize {
        self.holds.len()
    }

    /// The number of the object's hold.
    pub fn hold_number(&self, object: ObjectId) -> Option<u64> {
        self.holds.get(&object).map(|hold| hold.number)
    }

    /// Holds the object as it is.
    pub(super) fn hold(&mut self, object: ObjectId) {
        if self.holds.len() >= HOLDS_MAX
            && let Some((oldest, number)) =
                self.holds.iter().map(|(o, hold)| (*o, hold.number)).min_by_key(|(_, n)| *n)
        {
            self.end_hold(oldest, number);
        }
        self.holds_begun += 1;
        let marks = self.object_marks(object).into_iter().map(|mark| (mark.session, mark));
        self.holds.insert(object, Hold { number: self.holds_begun, marks: marks.collect() });
    }

    /// Ends the hold of this number.
    pub fn end_hold(&mut self, object: ObjectId, number: u64) {
        if self.hold_number(object) == Some(number) {
            self.holds.remove(&object);
            self.queue(object);
        }
    }

    /// Ends the object's hold, if there is one: after a restart its file may pass its checksums
    /// only when more is applied.
    pub fn let_go(&mut self, object: ObjectId) {
        if let Some(number) = self.hold_number(object) {
            self.end_hold(object, number);
        }
    }

    /// Ends all holds.
    pub fn end_holds(&mut self) {
        for object in std::mem::take(&mut self.holds).into_keys() {
            self.queue(object);
        }
    }

    /// Applies what lies up to these marks to an object that is held, and what stands before it in
    /// the journal. False: not all of that may be applied now.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) fn move_hold(
        &mut self,
        store: &mut impl ShardStore,
        object: ObjectId,
        wanted: &BTreeMap<SessionId, Seq>,
    ) -> Result<bool, StoreError> {
        let upto = |id: &SessionId| {
            let over = self.log.sessions.get(id).is_some_and(|session| session.is_over());
            if over { EVERYTHING } else { wanted.get(id).copied().unwrap_or_default() }
        };
        let is_wanted = |lsn: &Lsn| {
            let record = &self.log.entries[lsn].record;
            record.seq <= upto(&record.session)
        };
        let pending = || self.log.objects.get(&object).into_iter().flat_map(|log| &log.pending);
        let wanted_at = pending().enumerate().filter(|(_, lsn)| is_wanted(lsn));
        let count = wanted_at.last().map_or(0, |(at, _)| at + 1);
        let moved: Vec<(SessionId, Seq)> = pending()
            .take(count)
            .map(|lsn| &self.log.entries[lsn].record)
            .map(|record| (record.session, record.seq))
            .collect();
        if count > 0 && self.apply_first(store, object, count)? < count {
            return Ok(false);
        }
        let Some(hold) = self.holds.get_mut(&object) else { return Ok(false) };
        for (id, session) in self.log.sessions.iter().filter(|(_, session)| !session.is_over()) {
            let none = Seq::default();
            let mark = hold.marks.entry(*id).or_insert(SessionMark {
                session: *id,
                settled: none,
                closed: None,
                last_applied: none,
            });
            let wanted = wanted.get(id).copied().unwrap_or_default().min(session.settled());
            let applied = moved.iter().filter(|(of, _)| of == id).map(|(_, seq)| *seq).max();
            mark.settled = mark.settled.max(wanted).max(applied.unwrap_or_default());
            mark.last_applied = mark.last_applied.max(applied.unwrap_or_default());
        }
        Ok(true)
    }

    /// The cut of an object's file: of one that is held, that at which it is. Rule: HoldMark.
    pub(super) fn piece_marks(&self, object: ObjectId) -> Vec<SessionMark> {
        let now = self.object_marks(object);
        let Some(hold) = self.holds.get(&object).filter(|_| self.has(Rule::HoldMark)) else {
            return now;
        };
        // all that an ended session wrote is applied before a piece is given
        let as_held = |mark: SessionMark| match mark.closed {
            Some(_) => mark,
            None => hold.marks.get(&mark.session).copied().unwrap_or(SessionMark {
                settled: Seq::default(),
                last_applied: Seq::default(),
                ..mark
            }),
        };
        now.into_iter().map(as_held).collect()
    }
}
