//! Brings a PG's shard back into the in-sync set, and repairs ranges that fail their checksum, from
//! other shards.
//!
//! Contract: what to ask and what fits together is decided by the PG's machine
//! ([`crate::pg::shard::returning`]); this carries questions and bytes, and decodes. Runs as tasks
//! on the core's worker; one task for each PG.

use super::backlog::Backlog;
use super::comparing::{Compared, Sampling};
use super::holding::Turns;
use super::{Core, CoreError, Outlet, Repair};
use crate::codec::{self, Codec};
use crate::fragment::SECTOR_BYTES;
use crate::pg::shard::returning::{Cut, common_cut, least_cut};
use crate::pg::shard::{PgShard, RebuiltPiece, ShardStore, Step};
use bytes::Bytes;
use protocol::recovery::{RecoveryBody, RecoveryReply, RecoveryRequest, SessionMark};
use protocol::{Epoch, ObjectId, PgId, Rules, ShardIndex, ShardSet};
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Objects rebuilt before members are told, at most: each telling syncs.
const REPORT_OBJECTS: usize = 256;
/// After so many bytes rebuilt or compared they are told, with the object that reaches it.
const REPORT_BYTES: u64 = 64 << 20;
/// They are told after this long at the latest, with the object under way.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);
/// How long to wait before a member is asked again that is not ready.
const RETRY_DELAY: Duration = Duration::from_millis(50);
/// The longest sleep for the limit of the rate: it may be lifted meanwhile, and sessions may want
/// an object.
const PACE_SLICE: Duration = Duration::from_millis(100);
/// How often a range is asked for before its object is put back, to try others first.
pub(super) const TRIES: usize = 20;

/// The other shards of PGs.
pub trait Members: Clone + 'static {
    /// Asks the shard `member` of the request's PG, in class III. `None`: it cannot be reached.
    fn ask(
        &self,
        member: ShardIndex,
        request: RecoveryRequest,
    ) -> impl Future<Output = Option<(RecoveryReply, Bytes)>> + 'static;
}

/// Does an object wait for the limit of the rate?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rate {
    Limited,
    Unlimited,
}

/// How a way back ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Return {
    /// Everything that was missed by now is rebuilt: ask the monitor for writes (`AskJoin`) in this
    /// epoch.
    CaughtUp(Epoch),
    /// The disk is too full for a backfill to go on now: see [`Core::backfill_room`].
    TooFull,
    /// The shard is whole and synced: tell the monitor (`Join`), naming this epoch.
    Whole(Epoch),
    /// The epoch is over, or the shard does not return: begin anew with the next view.
    Over,
}

/// What a shard says of a whole object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Whole {
    pub exists: bool,
    /// Where user data ends.
    pub logical_end: u64,
    /// Where the fragment's data ends.
    pub fragment_end: u64,
}

impl Whole {
    /// What several shards say together.
    pub fn of(all: impl Iterator<Item = Whole>) -> Whole {
        let none = Whole { exists: false, logical_end: 0, fragment_end: 0 };
        all.fold(none, |a, b| Whole {
            exists: a.exists || b.exists,
            logical_end: a.logical_end.max(b.logical_end),
            fragment_end: a.fragment_end.max(b.fragment_end),
        })
    }
}

/// A member's part of a range.
struct Piece {
    shard: ShardIndex,
    whole: Whole,
    data: Vec<(u64, u64)>,
    marks: Vec<SessionMark>,
    bytes: Bytes,
}

impl Piece {
    /// `None`: it has none to give now.
    fn from_reply(shard: ShardIndex, reply: RecoveryReply, bytes: Bytes) -> Option<Piece> {
        match reply {
            RecoveryReply::Piece { exists, logical_end, fragment_end, data, marks } => {
                let whole = Whole { exists, logical_end, fragment_end };
                Some(Piece { shard, whole, data, marks, bytes })
            }
            _ => None,
        }
    }
}

/// A range of an object as it is here now.
struct Chunk {
    cut: Cut,
    /// Rebuilt, or compared instead.
    bytes: u64,
}

/// What is the same all along a way back.
pub(super) struct Way<O: Outlet, M: Members> {
    pub core: Core<O>,
    members: M,
    pub pg: PgId,
    epoch: Epoch,
    pub me: ShardIndex,
    pub codec: Arc<dyn Codec>,
    /// Bytes rebuilt or compared since the members were told.
    unreported_bytes: Cell<u64>,
    reported_at: Cell<Instant>,
    /// Whom to ask next, for objects that are being rebuilt.
    turns: RefCell<HashMap<ObjectId, Turns>>,
}

impl<O: Outlet> Core<O> {
    /// Goes the way back of a shard that is outside the in-sync set of an active PG, as far as one
    /// epoch allows.
    ///
    /// # Errors
    /// Those of this core's journal, files and syncs.
    pub async fn return_shard<M: Members>(
        &self,
        pg: PgId,
        members: M,
    ) -> Result<Return, CoreError> {
        let Some(way) = self.way(pg, members) else { return Ok(Return::Over) };
        way.shard(PgShard::put_all_back);
        if way.shard(|shard| shard.is_returning()) != Some(true) || !way.list().await? {
            return Ok(Return::Over);
        }
        loop {
            let mut failed = false;
            while let Some(object) = way.shard(|shard| shard.next_to_rebuild()).flatten() {
                if self.pauses_backfill(pg) {
                    way.shard(|shard| shard.put_back(object));
                    way.report().await?;
                    return Ok(Return::TooFull);
                }
                failed |= !way.rebuild_or_put_back(object, Rate::Limited).await?;
                if way.is_report_due() {
                    way.report().await?;
                }
                if !way.is_current() {
                    return Ok(Return::Over);
                }
            }
            way.report().await?;
            match way
                .shard(|shard| (shard.view().is_joining(), shard.can_join(), shard.to_rebuild()))
            {
                None => return Ok(Return::Over),
                Some((true, true, _)) => {
                    way.with(|shard, store| shard.ready_to_join(store)).transpose()?;
                    self.sync_before(Step::Join).await?; // Rule: JoinSync
                    self.shared.state.borrow_mut().backlogs.remove(&pg);
                    return Ok(if way.is_current() {
                        Return::Whole(way.epoch)
                    } else {
                        Return::Over
                    });
                }
                Some((false, _, 0)) if !failed => return Ok(Return::CaughtUp(way.epoch)),
                Some(_) => self.shared.worker.sleep(RETRY_DELAY).await,
            }
        }
    }

    /// Learns what the shard of [`Core::return_shard`] missed, which that does otherwise: so that
    /// it can be told how much there is to do before any of it is done. False: the epoch is over,
    /// or the shard does not return.
    ///
    /// # Errors
    /// Those of this core's journal and syncs.
    pub async fn list_missed<M: Members>(&self, pg: PgId, members: M) -> Result<bool, CoreError> {
        let Some(way) = self.way(pg, members) else { return Ok(false) };
        Ok(way.shard(|shard| shard.is_returning()) == Some(true) && way.list().await?)
    }

    pub(super) fn way<M: Members>(&self, pg: PgId, members: M) -> Option<Way<O, M>> {
        let view = self.view(pg)?;
        let codec = codec::for_profile(view.pg.profile);
        let (core, epoch, me) = (self.clone(), view.pg.epoch, view.me);
        let (unreported_bytes, reported_at) = (Cell::new(0), Cell::new(Instant::now()));
        let turns = RefCell::default();
        Some(Way { core, members, pg, epoch, me, codec, unreported_bytes, reported_at, turns })
    }

    /// Replaces a range that failed its checksum by bytes from other in-sync shards. False: not
    /// possible now.
    ///
    /// # Errors
    /// Those of this core's files.
    pub async fn repair<M: Members>(&self, repair: &Repair, members: M) -> Result<bool, CoreError> {
        let Repair { pg, object, range, avoid } = repair.clone();
        let Some(way) = self.way(pg, members) else { return Ok(false) };
        let mut at = range.start / SECTOR_BYTES * SECTOR_BYTES;
        while at < range.end {
            let end = range
                .end
                .next_multiple_of(SECTOR_BYTES)
                .min(at + self.shared.config.recovery_chunk_bytes);
            if !way.repair_chunk(object, at..end, avoid).await? {
                self.shared.state.borrow_mut().trim_wanted = true;
                return Ok(false);
            }
            at = end;
        }
        {
            let mut state = self.shared.state.borrow_mut();
            state.stats.corrupt_repaired += 1;
            let within = |start, end| range.start <= start && end <= range.end;
            state
                .corrupt
                .retain(|&(p, o, start, end)| (p, o) != (pg, object) || !within(start, end));
            state.repairs.retain(|r| {
                (r.pg, r.object) != (pg, object) || !within(r.range.start, r.range.end)
            });
            if state.mends.get(&(pg, object)).is_some_and(|(mend, _)| within(mend.start, mend.end))
            {
                state.mends.remove(&(pg, object));
            }
            let whole =
                state.shards.get(&pg).map(|held| held.shard.view().pg.profile.fragment_bytes());
            if range.start == 0 && whole.is_some_and(|whole| range.end >= whole) {
                state.damaged.remove(&(pg, object));
            }
        }
        tracing::info!(%pg, %object, ?range, "repaired from other shards");
        Ok(true)
    }
}

impl<O: Outlet, M: Members> Way<O, M> {
    /// Does something with the machine if the epoch is still that of this way.
    fn with<R>(&self, f: impl FnOnce(&mut PgShard, &mut super::CoreStore) -> R) -> Option<R> {
        let run = |shard: &mut PgShard, store: &mut super::CoreStore| {
            (shard.view().pg.epoch == self.epoch).then(|| f(shard, store))
        };
        self.core.with(self.pg, run).flatten().filter(|_| !self.core.shared.state.borrow().stopped)
    }

    pub(super) fn shard<R>(&self, f: impl FnOnce(&mut PgShard) -> R) -> Option<R> {
        self.with(|shard, _| f(shard))
    }

    pub(super) fn is_current(&self) -> bool {
        self.shard(|_| ()).is_some()
    }

    pub(super) async fn pause(&self) {
        self.core.shared.worker.sleep(RETRY_DELAY).await;
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub(super) fn request(&self, body: RecoveryBody) -> RecoveryRequest {
        RecoveryRequest { pg: self.pg, epoch: self.epoch, from: self.me, body }
    }

    pub(super) async fn ask(
        &self,
        member: ShardIndex,
        body: RecoveryBody,
    ) -> Option<(RecoveryReply, Bytes)> {
        self.members.ask(member, self.request(body)).await
    }

    /// Notes progress, for the operator's eye.
    fn backlog<R>(&self, note: impl FnOnce(&mut Backlog) -> R) -> Option<R> {
        self.core.shared.state.borrow_mut().backlogs.get_mut(&self.pg).map(note)
    }

    /// What [`Backlog`] says is done counts.
    fn count_done(&self, note: impl FnOnce(&mut Backlog) -> u64) {
        let done = self.backlog(note).unwrap_or(0);
        self.core.shared.state.borrow_mut().stats.recovered_bytes += done;
    }

    /// Asks every member what was missed, unless that was done. False: the epoch is over.
    async fn list(&self) -> Result<bool, CoreError> {
        if self.shard(|shard| shard.is_listed()) == Some(true) {
            return Ok(true);
        }
        let blank = self.shard(|shard| shard.is_blank()) == Some(true);
        {
            let mut state = self.core.shared.state.borrow_mut();
            state.backlogs.insert(self.pg, Backlog::default());
            if blank {
                state.backfills.insert(self.pg);
            }
        }
        while let Some(unlisted) = self.shard(|shard| shard.unlisted()) {
            if unlisted.is_empty() {
                let Some(result) = self.with(|shard, store| shard.finish_list(store)) else {
                    return Ok(false);
                };
                result?;
                self.core.sync_before(Step::Rebuild).await?; // Rule: JoinBegun
                self.shard(PgShard::list_is_durable);
                for member in
                    self.shard(|shard| shard.to_tell_noted()).unwrap_or(ShardSet::EMPTY).iter()
                {
                    self.ask(member, RecoveryBody::Noted).await;
                }
                return Ok(self.is_current());
            }
            // Each of them, though one is not ready: they become so at the same time.
            let mut all_told = true;
            for member in unlisted.iter() {
                all_told &= self.list_member(member).await;
            }
            if !all_told {
                self.pause().await;
            }
        }
        Ok(false)
    }

    async fn list_member(&self, member: ShardIndex) -> bool {
        let mut after = None;
        loop {
            let Some(body) = self.shard(|shard| shard.list_body(after)) else { return false };
            let reply = self.ask(member, body).await;
            let Some((RecoveryReply::Listed { objects, bytes, marks, more, everything }, _)) =
                reply
            else {
                return false;
            };
            let more = more && !objects.is_empty();
            self.backlog(|backlog| {
                objects.iter().zip(&bytes).for_each(|(object, bytes)| backlog.add(*object, *bytes))
            });
            self.shard(|shard| shard.listed(member, &objects, &marks, more, everything));
            if !more {
                return true;
            }
            after = objects.last().copied();
        }
    }

    /// Rebuilds an object. False: not now; it is put back, to try others first.
    async fn rebuild_or_put_back(&self, object: ObjectId, rate: Rate) -> Result<bool, CoreError> {
        let done = self.rebuild(object, rate).await;
        self.turns.borrow_mut().remove(&object);
        let done = done?;
        if !done {
            self.shard(|shard| shard.put_back(object));
            self.core.shared.state.borrow_mut().stats.recovery_put_backs += 1;
            self.pause().await;
        }
        Ok(done)
    }

    /// So many bytes of the object were rebuilt: waits until the limit of the rate allows more.
    /// What sessions want does not wait, and is rebuilt meanwhile: it counts, and the rest pays for
    /// it.
    async fn keep_rate(&self, object: ObjectId, bytes: u64, rate: Rate) -> Result<(), CoreError> {
        let mut owed =
            self.core.shared.state.borrow_mut().recovery_pace.take(bytes, Instant::now());
        let waits = |shard: &mut PgShard| !shard.is_wanted(object);
        while rate == Rate::Limited && !owed.is_zero() && self.shard(waits) == Some(true) {
            match self.shard(PgShard::next_wanted).flatten() {
                Some(object) => {
                    Box::pin(self.rebuild_or_put_back(object, Rate::Unlimited)).await?;
                }
                None => self.core.shared.worker.sleep(owed.min(PACE_SLICE)).await,
            }
            // anew each time: the limit may change meanwhile
            owed = self.core.shared.state.borrow().recovery_pace.owed(Instant::now());
        }
        Ok(())
    }

    /// Rebuilds an object, chunk by chunk. False: not now.
    async fn rebuild(&self, object: ObjectId, rate: Rate) -> Result<bool, CoreError> {
        let mut at = 0;
        let mut cut: Option<Cut> = None;
        let mut whole: Option<Whole> = None;
        let mut sampling = Sampling::default();
        loop {
            let Some(limit) = self.shard(|shard| shard.view().pg.profile.fragment_bytes()) else {
                return Ok(false);
            };
            let range = at..limit.min(at + self.core.shared.config.recovery_chunk_bytes);
            at = range.end;
            let Some(chunk) = self.rebuild_chunk(object, range, &mut whole, &mut sampling).await?
            else {
                return Ok(false);
            };
            self.unreported_bytes.set(self.unreported_bytes.get() + chunk.bytes);
            let both =
                cut.take().map_or_else(|| chunk.cut.clone(), |cut| least_cut(cut, &chunk.cut));
            let cut = &*cut.insert(both);
            let Some(Whole { exists, logical_end, fragment_end }) = whole else { return Ok(false) };
            self.count_done(|backlog| backlog.reached(object, at));
            if at >= fragment_end.min(limit) || !exists {
                // everything beyond what was read is cut off, so that nothing old shines through
                let end = exists.then_some((at, logical_end));
                let finish = |shard: &mut PgShard, store: &mut super::CoreStore| {
                    let done = shard.finish_rebuild(store, object, cut, end);
                    store.note_rebuilt(self.pg, object);
                    done
                };
                let done = self.with(finish).transpose()?.unwrap_or(false);
                if done {
                    self.count_done(|backlog| backlog.finished(object));
                }
                self.keep_rate(object, chunk.bytes, rate).await?;
                return Ok(done);
            }
            self.keep_rate(object, chunk.bytes, rate).await?;
        }
    }

    /// Rebuilds what of a range is not here already. `None`: not now. `whole`: what the first
    /// answers said.
    async fn rebuild_chunk(
        &self,
        object: ObjectId,
        range: Range<u64>,
        whole: &mut Option<Whole>,
        sampling: &mut Sampling,
    ) -> Result<Option<Chunk>, CoreError> {
        let seen = if sampling.is_due() { self.compare(object, &range).await } else { None };
        let (mut cut, mut bytes, parts) = match seen {
            Some(Compared { differing, cut, whole: told }) => {
                sampling.saw(differing == [range.clone()]);
                let end = whole.get_or_insert(told).fragment_end;
                (Some(cut), end.min(range.end).saturating_sub(range.start), differing)
            }
            None => (None, 0, vec![range]),
        };
        let compared = cut.is_some();
        for part in parts {
            let (at, length) = (part.start, part.end - part.start);
            let ask = |shard: &mut PgShard, hold| shard.snap_body(object, at, length as u32, hold);
            let Some((pieces, part_cut)) = self.pieces(object, ask, ShardSet::EMPTY).await else {
                return Ok(None);
            };
            let exists = whole
                .get_or_insert_with(|| Whole::of(pieces.iter().map(|piece| piece.whole)))
                .exists;
            // As if the last answer had taken longer: what is written fits the cut all the same.
            self.core.background_turn(length).await;
            let (data, moved) = self.decode(&pieces, at, length);
            let piece = RebuiltPiece { offset: at, length, data, logical_end: 0 };
            let write = |shard: &mut PgShard, store: &mut super::CoreStore| {
                if exists { shard.write_rebuilt(store, object, &piece) } else { Ok(()) }
            };
            let Some(result) = self.with(write) else { return Ok(None) };
            result?;
            self.core.shared.state.borrow_mut().stats.rebuilt_bytes += moved;
            bytes += if compared { 0 } else { moved };
            cut = Some(cut.map_or_else(|| part_cut.clone(), |cut| least_cut(cut, &part_cut)));
        }
        Ok(cut.map(|cut| Chunk { cut, bytes }))
    }

    /// k pieces of one cut, none from `avoid`.
    async fn pieces(
        &self,
        object: ObjectId,
        body: impl Fn(&mut PgShard, bool) -> RecoveryBody,
        avoid: ShardSet,
    ) -> Option<(Vec<Piece>, Cut)> {
        self.of_one_cut(object, body, avoid, Piece::from_reply, |piece| &piece.marks).await
    }

    /// What k members answer, none of them of `avoid`, with marks that are of one cut. `body`: the
    /// question, given whether the object is to be held.
    pub(super) async fn of_one_cut<T>(
        &self,
        object: ObjectId,
        body: impl Fn(&mut PgShard, bool) -> RecoveryBody,
        avoid: ShardSet,
        answer: fn(ShardIndex, RecoveryReply, Bytes) -> Option<T>,
        marks: fn(&T) -> &[SessionMark],
    ) -> Option<(Vec<T>, Cut)> {
        let k = self.codec.k();
        let mut turns = self.turns.borrow_mut().remove(&object).unwrap_or_default();
        for _ in 0..TRIES {
            let in_sync =
                self.shard(|shard| shard.view().pg.in_sync.without(self.me).minus(avoid))?;
            let (mut answers, mut answered) = (Vec::with_capacity(k), Vec::with_capacity(k));
            // one after the other: what a later answer does not know of a session counts as later
            // (`common_cut`)
            for member in turns.members(in_sync) {
                let question = self.shard(|shard| body(shard, turns.hold()))?;
                let reply = self.ask(member, question).await;
                if let Some(given) = reply.and_then(|(reply, bytes)| answer(member, reply, bytes)) {
                    answers.push(given);
                    answered.push(member);
                }
                if answers.len() == k {
                    break;
                }
            }
            if answers.len() < k {
                turns.too_few();
                self.pause().await;
                continue;
            }
            match common_cut(Rules::default(), &answers.iter().map(marks).collect::<Vec<_>>()) {
                Ok(cut) => {
                    turns.fitted();
                    self.turns.borrow_mut().insert(object, turns);
                    return Some((answers, cut));
                }
                Err(known) => {
                    self.shard(|shard| shard.learn_known(known))?;
                    if !turns.did_not_fit(answered) {
                        self.pause().await;
                    }
                }
            }
        }
        self.turns.borrow_mut().insert(object, turns);
        None
    }

    /// This shard's bytes of a range, where any piece has data, and how many they are.
    fn decode(&self, pieces: &[Piece], offset: u64, length: u64) -> (Vec<(u64, Bytes)>, u64) {
        let extents = union(pieces.iter().flat_map(|p| &p.data), offset, length);
        let length = extents.last().map_or(0, |(_, end)| end - offset);
        let have: Vec<(ShardIndex, Cow<'_, [u8]>)> = pieces
            .iter()
            .map(|piece| (piece.shard, of_length(&piece.bytes, length as usize)))
            .collect();
        let have: Vec<(ShardIndex, &[u8])> =
            have.iter().map(|(shard, bytes)| (*shard, &bytes[..])).collect();
        let mut mine = vec![0; length as usize];
        self.codec
            .reconstruct(&have, &mut [(self.me, &mut mine[..])])
            .expect("k different shards of one length, none of them this one");
        let mine = Bytes::from(mine);
        let part = |&(start, end): &(u64, u64)| {
            (start, mine.slice((start - offset) as usize..(end - offset) as usize))
        };
        let data: Vec<(u64, Bytes)> = extents.iter().map(part).collect();
        let bytes = data.iter().map(|(_, b)| b.len() as u64).sum();
        (data, bytes)
    }

    fn is_report_due(&self) -> bool {
        self.shard(|shard| shard.unreported()).unwrap_or(0) >= REPORT_OBJECTS
            || self.unreported_bytes.get() >= REPORT_BYTES
            || self.reported_at.get().elapsed() >= REPORT_INTERVAL
    }

    /// Makes what was rebuilt durable and tells the members.
    async fn report(&self) -> Result<(), CoreError> {
        self.unreported_bytes.set(0);
        self.reported_at.set(Instant::now());
        let objects = self.shard(|shard| shard.to_report()).unwrap_or_default();
        if objects.is_empty() {
            return Ok(());
        }
        self.core.sync_before(Step::ReportRebuilt).await?; // Rule: ReportSynced
        let Some(in_sync) = self.shard(|shard| shard.view().pg.in_sync) else { return Ok(()) };
        for member in in_sync.iter() {
            // a member that does not hear it lists the objects again in the next epoch
            self.ask(member, RecoveryBody::Report { objects: objects.clone() }).await;
        }
        self.with(|shard, store| shard.reported(store, &objects)).transpose()?;
        Ok(())
    }

    async fn repair_chunk(
        &self,
        object: ObjectId,
        range: Range<u64>,
        avoid: ShardSet,
    ) -> Result<bool, CoreError> {
        let (offset, length) = (range.start, range.end - range.start);
        for _ in 0..TRIES {
            let ask = |shard: &mut PgShard, _hold| shard.repair_body(object, offset, length as u32);
            let Some((pieces, _)) = self.pieces(object, ask, avoid).await else { return Ok(false) };
            let marks: Vec<&[SessionMark]> = pieces.iter().map(|p| &p.marks[..]).collect();
            let whole = Whole::of(pieces.iter().map(|piece| piece.whole));
            if !whole.exists {
                // deleted meanwhile: repairing it would make it anew
                return Ok(true);
            }
            let (data, _) = self.decode(&pieces, offset, length);
            let write = |shard: &mut PgShard, store: &mut super::CoreStore| {
                if !shard.may_repair(object, &range, &marks) {
                    return Ok(false);
                }
                // a fragment made anew, or its header, knows no end
                let (profile, logical_end) = (shard.view().pg.profile, whole.logical_end);
                let piece = RebuiltPiece { offset, length, data, logical_end };
                store.apply(self.pg, &profile, object, &piece.changes())?;
                store.note_rebuilt(self.pg, object);
                Ok::<bool, CoreError>(true)
            };
            match self.with(write).transpose()? {
                Some(true) => return Ok(true),
                Some(false) => self.pause().await,
                None => return Ok(false),
            }
        }
        Ok(false)
    }
}

/// So many bytes, zeros behind the end of those that are there.
fn of_length(bytes: &[u8], length: usize) -> Cow<'_, [u8]> {
    match bytes.get(..length) {
        Some(enough) => Cow::Borrowed(enough),
        None => Cow::Owned([bytes, &vec![0; length - bytes.len()]].concat()),
    }
}

/// The union of (offset, length) extents as sorted (start, end), within a range.
fn union<'a>(
    extents: impl Iterator<Item = &'a (u64, u64)>,
    offset: u64,
    length: u64,
) -> Vec<(u64, u64)> {
    let clip = |&(start, len): &(u64, u64)| {
        (start.max(offset), start.saturating_add(len).min(offset + length))
    };
    let mut all: Vec<(u64, u64)> = extents.map(clip).filter(|(s, e)| s < e).collect();
    all.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (start, end) in all {
        match merged.last_mut() {
            Some(last) if last.1 >= start => last.1 = last.1.max(end),
            _ => merged.push((start, end)),
        }
    }
    merged
}
