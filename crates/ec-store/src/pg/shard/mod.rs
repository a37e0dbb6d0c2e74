//! A shard's side of the protocol: one machine for each PG that an OSD holds a shard of.
//!
//! Contract: no clock, and no I/O but through [`ShardStore`]. The owner (the core) flushes the
//! journal before it sends what [`PgShard::take_acks`] gives, brackets its syncs with
//! [`PgShard::begin_sync`] and [`PgShard::end_sync`], calls [`PgShard::apply_some`] and the two
//! steps of a trim when it finds time, and passes every newer [`ShardView`] in. After an error of
//! the kind [`StoreError::Io`] the owner must not use the machine again.
//!
//! * this file: what sessions ask, and the view; * [`store`]: the storage seam; * `log`: what the
//!   journal says;
//! * [`barrier`]: what must be synced before what; * `overlay`: unapplied records by object; *
//!   `keep`: sync, apply, trim; * `member`: answers to returning shards and to the coordinator of
//!   dead sessions; * [`returning`]: the way back into the in-sync set.

pub mod barrier;
mod keep;
mod log;
mod member;
mod overlay;
pub mod returning;
pub mod store;

pub use barrier::{Barrier, Step};
pub use keep::TrimStep;
pub use log::{PgState, Replay};
pub use member::{SnapPlan, SnapQuestion, Snapshot};
pub use returning::RebuiltPiece;
pub use store::{
    Change, Delta, Item, Lsn, Payload, Placed, Record, ShardStore, StoreError, Summed,
};

use super::view::{SessionStanding, ShardView};
use bytes::Bytes;
use log::{Log, Session};
use protocol::shard::{
    AckMessage, AttachRequest, MarkRequest, Op, ReadRequest, ShardHead, Status, WriteRequest,
};
use protocol::{AttachId, ObjectId, PgId, Profile, Rule, Seq, SessionId, ShardIndex, ShardSet};
use returning::Return;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// An acknowledgement that is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct AckDue {
    status: Status,
    hello: bool,
}

/// What became of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// If it is answered, [`PgShard::take_acks`] does it.
    Noted,
    /// Taken; and the session waits for a sync.
    WantsSync,
    /// Nothing of it was taken: tell the sender now.
    Refused(Status),
}

/// Where the bytes of a part of a range are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// Here.
    Bytes(Bytes),
    /// In the fragment file, unpublished: read them raw, and check them against the CRC32C of each
    /// sector.
    Direct(Box<[u32]>),
    /// In places of the fragment file, from the byte `skip` of them on.
    Placed {
        /// The places, and the CRC32C of each sector that is read.
        placed: Placed,
        /// In bytes.
        skip: u64,
    },
    /// Zeros.
    Hole,
}

/// How to read a range of an object: parts that the journal determines, in order; the rest is as
/// the fragment file has it. The object is pinned: [`PgShard::unpin`] must follow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReadPlan {
    /// The object.
    pub object: ObjectId,
    /// The whole range, in bytes of the fragment.
    pub range: Range<u64>,
    /// Parts that the fragment file does not show yet.
    pub parts: Vec<(Range<u64>, Source)>,
}

impl ReadPlan {
    /// Is no part of the range left to the fragment file?
    pub fn is_covered(&self) -> bool {
        let mut at = self.range.start;
        for (part, _) in &self.parts {
            if part.start != at {
                return false;
            }
            at = part.end;
        }
        at == self.range.end
    }
}

/// See the module.
#[derive(Debug)]
pub struct PgShard {
    view: ShardView,
    log: Log,
    /// Sessions with an acknowledgement due.
    acks: Vec<SessionId>,
    /// Sessions whose durable mark lags.
    unsynced: BTreeSet<SessionId>,
    /// Objects that may have records to apply.
    to_apply: Vec<ObjectId>,
    /// Objects whose pieces were given to an absent shard since they were last trimmed.
    given: BTreeMap<ShardIndex, BTreeSet<ObjectId>>,
    /// Absent shards that were given a list of everything in this epoch: their dirty lists hold
    /// what was trimmed since.
    listing: ShardSet,
    /// What is listed to absent shards, from the first page to the last. Ascending.
    pages: BTreeMap<ShardIndex, Vec<ObjectId>>,
    ret: Return,
    direct_bytes_min: u32,
    slot_bytes: u32,
    dirty_objects_max: usize,
}

impl PgShard {
    /// Objects in the dirty list of an absent shard, at most.
    pub const DIRTY_OBJECTS_MAX: usize = 10_000;

    /// Writes of at least so many bytes into never-written space go straight to the fragment file:
    /// below, a second file to sync costs more than writing twice.
    pub const DIRECT_BYTES_MIN: u32 = 32 << 10;

    /// What the smallest record counts as when it is applied, in bytes: a system call takes as long
    /// as copying so many.
    pub const APPLY_BYTES_MIN: u64 = 16 << 10;

    /// A shard that was not held before.
    pub fn new(view: ShardView) -> Self {
        let replay = Replay::new(view.pg.pg);
        Self::restart(view, replay)
    }

    /// A shard as the journal has it. Rule: RestartSync - nothing counts as durable before the next
    /// sync.
    pub fn restart(view: ShardView, replay: Replay) -> Self {
        assert_eq!(view.pg.pg, replay.pg);
        let log = replay.log;
        let mut shard = Self {
            unsynced: log
                .sessions
                .iter()
                .filter(|(_, s)| s.tail() > Seq::default())
                .map(|(id, _)| *id)
                .collect(),
            view,
            log,
            acks: Vec::new(),
            to_apply: Vec::new(),
            given: BTreeMap::new(),
            listing: ShardSet::EMPTY,
            pages: BTreeMap::new(),
            ret: Return::default(),
            direct_bytes_min: Self::DIRECT_BYTES_MIN,
            slot_bytes: 0,
            dirty_objects_max: Self::DIRTY_OBJECTS_MAX,
        };
        if !shard.has(Rule::RestartSync) {
            shard.log.sessions.values_mut().for_each(|s| s.durable = s.tail());
        }
        shard.enter_epoch();
        shard.queue_all();
        shard
    }

    /// Sets of how many bytes the slots are that writes may be placed in; 0, the default: none is.
    pub fn set_slot_bytes(&mut self, bytes: u32) {
        self.slot_bytes = bytes;
    }

    /// Sets the least size of a direct write, in bytes; see [`PgShard::DIRECT_BYTES_MIN`].
    pub fn set_direct_bytes_min(&mut self, bytes: u32) {
        self.direct_bytes_min = bytes;
    }

    /// Sets how many objects are remembered of what an absent shard misses; see
    /// [`PgShard::DIRTY_OBJECTS_MAX`].
    pub fn set_dirty_objects_max(&mut self, objects: usize) {
        self.dirty_objects_max = objects;
    }

    /// The PG.
    pub fn pg(&self) -> PgId {
        self.view.pg.pg
    }

    fn has(&self, rule: Rule) -> bool {
        self.log.rules.on(rule)
    }

    /// The PG as this shard knows it.
    pub fn view(&self) -> &ShardView {
        &self.view
    }

    /// A view at least as new. With a newer epoch all attaches end.
    pub fn learn(&mut self, view: ShardView) {
        if view.pg.epoch < self.view.pg.epoch {
            return;
        }
        let entered = view.pg.epoch > self.view.pg.epoch;
        self.view = view;
        if entered {
            self.enter_epoch();
        }
        self.learn_sessions();
    }

    fn enter_epoch(&mut self) {
        self.ret = Return::default();
        self.acks.clear();
        let attaches_end = self.has(Rule::EpochCheck);
        for session in self.log.sessions.values_mut() {
            (session.ack, session.wants_sync) = (None, false);
            // Rule: EpochCheck - attaches end with the epoch.
            session.aid = if attaches_end { 0 } else { session.aid };
            (session.start, session.owed) = (None, Seq::default());
        }
        let in_sync = self.view.pg.in_sync;
        self.log.dirty.retain(|shard, _| !in_sync.contains(*shard));
        self.log.cut_short = self.log.cut_short.minus(in_sync);
        (self.listing, self.pages) = (ShardSet::EMPTY, BTreeMap::new());
        self.given.retain(|shard, _| !in_sync.contains(*shard));
        self.learn_sessions();
    }

    /// What ended well is decided for an in-sync shard; and is forgotten once no shard can ask for
    /// it.
    fn learn_sessions(&mut self) {
        let clean = self.view.pg.active && self.view.pg.in_sync == self.view.pg.all();
        let in_sync = self.view.is_in_sync();
        let mut settled = Vec::new();
        let mut forgotten = Vec::new();
        for (&id, session) in &mut self.log.sessions {
            match self.view.sessions.standing(id) {
                SessionStanding::Dead => session.fenced = true,
                SessionStanding::Gone => {
                    session.fenced = true;
                    if in_sync && !session.gone {
                        session.gone = true;
                        settled.push(id);
                    }
                    if clean && session.seqs.is_empty() {
                        forgotten.push(id);
                    }
                }
                SessionStanding::Live | SessionStanding::Unknown => {}
            }
        }
        settled.into_iter().for_each(|id| self.queue_settled(id));
        for id in forgotten {
            self.log.sessions.remove(&id);
            self.unsynced.remove(&id);
        }
    }

    fn session(&mut self, id: SessionId) -> &mut Session {
        self.log.sessions.entry(id).or_default()
    }

    /// May a message with this head be looked at?
    fn check(&self, head: &ShardHead, attaching: bool) -> Result<(), Status> {
        let id = head.session();
        let session = self.log.sessions.get(&id);
        // Rule: Fence
        let standing = self.view.sessions.standing(id);
        let dead = matches!(standing, SessionStanding::Dead | SessionStanding::Gone);
        if self.has(Rule::Fence)
            && (dead || session.is_some_and(|s| s.fenced || s.closed.is_some()))
        {
            return Err(Status::Fenced);
        }
        // Rule: EpochCheck
        if self.has(Rule::EpochCheck) && head.epoch() != self.view.pg.epoch {
            return Err(Status::StaleEpoch);
        }
        // Rule: ActiveOnly
        let active = self.view.pg.active || !self.has(Rule::ActiveOnly);
        let writes = self.view.pg.writers().contains(self.view.me) || !self.has(Rule::EpochCheck);
        if !active || !writes {
            return Err(Status::NotActive);
        }
        // Rule: RequestAid
        let (aid, last) = (head.attach().get(), session.map_or(0, |s| s.aid));
        let fresh = if attaching { aid > last } else { aid == last && last > 0 };
        if fresh || !self.has(Rule::RequestAid) { Ok(()) } else { Err(Status::StaleAttach) }
    }

    /// A session attaches.
    ///
    /// # Errors
    /// Those of the store; nothing was taken.
    pub fn attach(
        &mut self,
        store: &mut impl ShardStore,
        request: &AttachRequest,
    ) -> Result<Outcome, StoreError> {
        let (id, stable) = (request.head.session(), request.head.stable());
        if let Err(status) = self.check(&request.head, true) {
            return Ok(Outcome::Refused(status));
        }
        let joining = self.view.is_joining();
        if joining && self.session(id).start.is_none() {
            // Rule: JoinDrop - what lies beyond the session's stable mark was never more than its
            // own copy.
            self.note(store, Delta::Floor(id, stable))?;
            let session = self.session(id);
            (session.start, session.durable, session.syncing) = (Some(stable), stable, stable);
            self.unsynced.insert(id);
        }
        let session = self.session(id);
        session.aid = session.aid.max(request.head.attach().get());
        session.owed = session.owed.max(Seq::new(request.owed.get()));
        session.ack = None;
        self.learn_stable(id, stable);
        self.due(id, Status::Ok, true);
        Ok(Outcome::Noted)
    }

    /// A session writes.
    ///
    /// # Errors
    /// Only [`StoreError::Io`]; that there is no room is told to the session.
    pub fn write(
        &mut self,
        store: &mut impl ShardStore,
        request: &WriteRequest,
        data: impl Into<Summed>,
    ) -> Result<Outcome, StoreError> {
        let id = request.head.session();
        if let Err(status) = self.check(&request.head, false) {
            return Ok(Outcome::Refused(status));
        }
        let Some(record) = self.record_of(request, data.into()) else {
            return Ok(Outcome::Refused(Status::Invalid));
        };
        self.learn_stable(id, request.head.stable());
        let tail = self.session(id).tail();
        if record.seq <= tail {
            self.due(id, Status::Ok, false);
        } else if request.pred.get() > tail.get() && self.has(Rule::Pred) {
            // Rule: Pred
            self.due(id, Status::Behind, false);
        } else {
            match self.accept(store, record) {
                Ok(()) => self.due(id, Status::Ok, false),
                Err(error @ StoreError::Io(_)) => return Err(error),
                Err(error) => self.due(id, error.status(), false),
            }
        }
        Ok(Outcome::Noted)
    }

    fn record_of(&self, request: &WriteRequest, data: Summed) -> Option<Record> {
        let op = Op::from_u8(request.op)?;
        let (offset, length) = (request.offset.get(), request.length.get());
        let end = offset.checked_add(u64::from(length))?;
        let sector = u64::from(Profile::SECTOR_BYTES);
        let aligned = offset.is_multiple_of(sector) && end.is_multiple_of(sector);
        let fits = end <= self.view.pg.profile.fragment_bytes();
        let whole = data.len() == if op == Op::Write { length as usize } else { 0 };
        let mine = request.touch().contains(self.view.me) && request.pred.get() < request.seq.get();
        (aligned && fits && whole && mine).then(|| Record {
            session: request.head.session(),
            seq: Seq::new(request.seq.get()),
            object: request.object.into(),
            op,
            touch: request.touch(),
            offset,
            length,
            logical_end: request.logical_end.get(),
            payload: if op == Op::Write { Payload::Journalled(data) } else { Payload::Nothing },
        })
    }

    fn accept(
        &mut self,
        store: &mut impl ShardStore,
        mut record: Record,
    ) -> Result<(), StoreError> {
        if let Payload::Journalled(data) = &record.payload
            && self.may_go_direct(store, &record)
        {
            record.payload = Payload::Direct(store.write_direct(
                self.pg(),
                record.object,
                record.offset,
                data,
            )?);
            // Rule: DirectHole - nothing but the record makes these bytes visible, until it is
            // applied.
            if !self.has(Rule::DirectHole) {
                store.apply(
                    self.pg(),
                    &self.view.pg.profile,
                    record.object,
                    &[record.change(Lsn::default())],
                )?;
            }
        } else if let Payload::Journalled(data) = &record.payload
            && self.may_be_placed(&record)
            && let Some(placed) = store.place(self.pg(), record.object, record.offset, data)?
        {
            record.payload = Payload::Placed(placed);
        }
        let lsn = store.append(self.pg(), Item::Record(&record))?;
        self.unsynced.insert(record.session);
        let object = record.object;
        self.log.push(lsn, record);
        if !self.has(Rule::ApplyStable) {
            self.queue(object);
        }
        Ok(())
    }

    fn may_go_direct(&self, store: &mut impl ShardStore, record: &Record) -> bool {
        let span = record.span();
        // Rule: DirectJoin
        let joins = self.view.is_joining() && self.has(Rule::DirectJoin);
        let barred = record.length < self.direct_bytes_min || joins;
        // Rule: DirectOnce - space that any journalled record spans is not never-written.
        let covered =
            || self.log.objects.get(&record.object).is_some_and(|log| log.is_covered(&span));
        let seen = || self.has(Rule::DirectOnce) && covered();
        !barred && !seen() && store.is_unwritten(self.pg(), record.object, span)
    }

    /// May the bytes go to places of their own, over what was written before?
    fn may_be_placed(&self, record: &Record) -> bool {
        // Rule: DirectJoin - a rebuild writes over what lies where the slots are.
        let joins = self.view.is_joining() && self.has(Rule::DirectJoin);
        // Rule: PlaceOver - a removal done again would take them, too, and direct bytes would not
        // be found any more.
        let span = record.span();
        let is_bound =
            || self.log.objects.get(&record.object).is_some_and(|log| log.is_bound(&span));
        let is_barred = || joins || self.has(Rule::PlaceOver) && is_bound();
        let slot_bytes = u64::from(self.slot_bytes);
        let is_whole = slot_bytes > 0
            && span.start.is_multiple_of(slot_bytes)
            && span.end.is_multiple_of(slot_bytes);
        is_whole && !span.is_empty() && !is_barred()
    }

    /// A session tells its stable mark, and may ask to sync.
    pub fn mark(&mut self, request: &MarkRequest) -> Outcome {
        let id = request.head.session();
        if let Err(status) = self.check(&request.head, false) {
            return Outcome::Refused(status);
        }
        self.learn_stable(id, request.head.stable());
        if request.flags.get() & MarkRequest::SYNC == 0 {
            return Outcome::Noted;
        }
        let session = self.session(id);
        if session.durable >= session.tail() {
            self.due(id, Status::Ok, false);
            return Outcome::Noted;
        }
        session.wants_sync = true;
        Outcome::WantsSync
    }

    /// A session reads: where the bytes are. Unless refused, the object is pinned until
    /// [`PgShard::unpin`].
    ///
    /// # Errors
    /// What to tell the session.
    pub fn read(&mut self, request: &ReadRequest) -> Result<ReadPlan, Status> {
        self.check_read(request)?;
        let end = request
            .offset
            .get()
            .checked_add(u64::from(request.length.get()))
            .ok_or(Status::Invalid)?;
        let sector = u64::from(Profile::SECTOR_BYTES);
        if !request.offset.get().is_multiple_of(sector) || !end.is_multiple_of(sector) {
            return Err(Status::Invalid);
        }
        let range = request.offset.get()..end.min(self.view.pg.profile.fragment_bytes());
        Ok(self.plan(request.object.into(), range))
    }

    /// Whether a read, stat or extents request may be answered.
    ///
    /// # Errors
    /// What to tell the session.
    pub fn check_read(&mut self, request: &ReadRequest) -> Result<(), Status> {
        self.check(&request.head, false)?;
        if !self.view.is_in_sync() {
            return Err(Status::NotActive);
        }
        let id = request.head.session();
        self.learn_stable(id, request.head.stable());
        // Rule: ReadAfter
        if self.session(id).tail().get() < request.after.get() && self.has(Rule::ReadAfter) {
            return Err(Status::Behind);
        }
        Ok(())
    }

    /// Where the bytes of a range are: the newest record of each byte, else the fragment file. Pins
    /// the object.
    pub fn plan(&mut self, object: ObjectId, range: Range<u64>) -> ReadPlan {
        let mut parts = Vec::new();
        if range.start < range.end
            && let Some(log) = self.log.objects.get(&object)
        {
            parts.extend(log.parts(range.clone()).map(|(part, lsn)| self.source(part, lsn)));
        }
        self.pin(object);
        ReadPlan { object, range: range.start..range.end.max(range.start), parts }
    }

    fn source(&self, part: Range<u64>, lsn: Lsn) -> (Range<u64>, Source) {
        let record = &self.log.entries[&lsn].record;
        let (from, to) = (
            (part.start - record.offset.min(part.start)) as usize,
            (part.end - part.start) as usize,
        );
        let source = match &record.payload {
            Payload::Journalled(data) => Source::Bytes(data.slice(from..from + to)),
            Payload::Direct(crcs) => {
                // Rule: DirectHole - such bytes are seen through their record only.
                let sector = Profile::SECTOR_BYTES as usize;
                Source::Direct(crcs[from / sector..(from + to) / sector].into())
            }
            Payload::Placed(placed) => {
                let (sector, slot_bytes) = (Profile::SECTOR_BYTES as usize, placed.slot_bytes);
                let slot = slot_bytes as usize;
                let places = placed.places[from / slot..(from + to).div_ceil(slot)].into();
                let crcs = placed.crcs[from / sector..(from + to) / sector].into();
                Source::Placed {
                    placed: Placed { slot_bytes, places, crcs },
                    skip: (from % slot) as u64,
                }
            }
            Payload::Nothing => Source::Hole,
        };
        (part, source)
    }

    /// Existence and end of user data, given those of the fragment file.
    pub fn stat_over(&self, object: ObjectId, exists: bool, logical_end: u64) -> (bool, u64) {
        let log = self.log.objects.get(&object);
        log.map_or((exists, logical_end), |log| log.outcome().over(exists, logical_end))
    }

    /// What records that are not applied say of the existence of a file's objects, from an index
    /// on.
    pub fn existence_over(&self, first: ObjectId) -> Vec<(u32, bool)> {
        let objects = self
            .log
            .objects
            .iter()
            .filter(|(id, _)| id.gfid == first.gfid && id.index >= first.index);
        objects.filter_map(|(id, log)| Some((id.index, log.outcome().existence()?))).collect()
    }

    /// Applies what may be applied of objects, about so many bytes, so that their fragments take
    /// the space that is told of them.
    ///
    /// # Errors
    /// Those of the store; records stay in the journal.
    pub fn settle(
        &mut self,
        store: &mut impl ShardStore,
        objects: &[ObjectId],
        bytes_max: u64,
    ) -> Result<(), StoreError> {
        let mut left = bytes_max;
        for object in objects {
            if left == 0 {
                break;
            }
            left = left.saturating_sub(self.apply_object(store, *object, left)?);
        }
        Ok(())
    }

    /// Bytes of writes to an object that are in the journal and not in its file.
    pub fn unapplied_bytes(&self, object: ObjectId) -> u64 {
        let Some(log) = self.log.objects.get(&object) else { return 0 };
        let bytes = |lsn| match &self.log.entries[lsn].record.payload {
            Payload::Journalled(data) => data.len() as u64,
            _ => 0,
        };
        log.pending.iter().map(bytes).sum()
    }

    /// Those of a file's objects, from an index on, that have unapplied records.
    pub fn unapplied(&self, first: ObjectId) -> Vec<ObjectId> {
        let is_asked_for = |id: &ObjectId| id.gfid == first.gfid && id.index >= first.index;
        let waiting = self.log.objects.iter().filter(|(_, log)| !log.pending.is_empty());
        waiting.map(|(id, _)| *id).filter(is_asked_for).collect()
    }

    /// Pins an object if no removal waits to be applied to it, which would give space back that
    /// its file has now; applies what may be applied first. [`PgShard::unpin`] must follow.
    ///
    /// # Errors
    /// Those of the store; nothing is pinned.
    pub fn pin_space(
        &mut self,
        store: &mut impl ShardStore,
        object: ObjectId,
    ) -> Result<bool, StoreError> {
        let waits = |shard: &Self| {
            shard.log.objects.get(&object).is_some_and(|log| log.has_unapplied_removal())
        };
        if waits(self) {
            self.apply_object(store, object, u64::MAX)?;
        }
        let is_settled = !waits(self);
        if is_settled {
            self.pin(object);
        }
        Ok(is_settled)
    }

    fn pin(&mut self, object: ObjectId) {
        self.log.objects.entry(object).or_default().pins += 1;
    }

    /// The reading that pinned the object has ended.
    pub fn unpin(&mut self, object: ObjectId) {
        if let Some(log) = self.log.objects.get_mut(&object) {
            log.pins -= 1;
            if log.pins == 0 && !log.pending.is_empty() {
                self.queue(object);
            }
        }
        self.log.forget_idle(object);
    }

    // ---- acknowledgements

    fn due(&mut self, id: SessionId, status: Status, hello: bool) {
        let session = self.log.sessions.entry(id).or_default();
        match &mut session.ack {
            Some(ack) => {
                ack.hello |= hello;
                // the first refusal counts: those after it follow from it
                if ack.status == Status::Ok {
                    ack.status = status;
                }
            }
            None => {
                session.ack = Some(AckDue { status, hello });
                self.acks.push(id);
            }
        }
    }

    /// Every attached session is due an acknowledgement: what it tells beside records has changed.
    pub fn acknowledge_all(&mut self) {
        let is_attached = |session: &Session| session.aid > 0 && !session.fenced;
        let sessions = self.log.sessions.iter().filter(|(_, session)| is_attached(session));
        let attached: Vec<_> = sessions.map(|(id, _)| *id).collect();
        attached.into_iter().for_each(|id| self.due(id, Status::Ok, false));
    }

    /// Is any acknowledgement due?
    pub fn has_acks(&self) -> bool {
        !self.acks.is_empty()
    }

    /// Gives every acknowledgement that is due, one for each session, after the journal was
    /// flushed. `free`: bytes of fragment data that the OSD will still take.
    pub fn take_acks(&mut self, free: u64, mut send: impl FnMut(SessionId, AckMessage)) {
        for id in std::mem::take(&mut self.acks) {
            let Some(session) = self.log.sessions.get_mut(&id) else { continue };
            let Some(due) = session.ack.take() else { continue };
            let ack = AckMessage {
                pg: self.view.pg.pg.to_u64().into(),
                epoch: self.view.pg.epoch.get().into(),
                attach: session.aid.into(),
                tail: session.tail().get().into(),
                durable: session.durable.get().into(),
                free: free.into(),
                status: due.status as u8,
                flags: if due.hello { AckMessage::HELLO } else { 0 },
            };
            send(id, ack);
        }
    }

    /// The answer to a message that was refused.
    pub fn refusal(&self, attach: AttachId, status: Status, free: u64) -> AckMessage {
        AckMessage {
            pg: self.view.pg.pg.to_u64().into(),
            epoch: self.view.pg.epoch.get().into(),
            attach: attach.get().into(),
            tail: 0.into(),
            durable: 0.into(),
            free: free.into(),
            status: status as u8,
            flags: 0,
        }
    }

    /// Writes a delta and takes it in.
    fn note(&mut self, store: &mut impl ShardStore, delta: Delta) -> Result<(), StoreError> {
        store.append(self.pg(), Item::Delta(&delta))?;
        self.log.take(&delta);
        Ok(())
    }
}
