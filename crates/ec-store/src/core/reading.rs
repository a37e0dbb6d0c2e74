//! Serves reads, stats, extents and pieces for other shards.
//!
//! Contract: what lies in the page cache is answered inline; the rest on an I/O thread, with the
//! object pinned so that nothing is applied to its file meanwhile: a read sees exactly the writes
//! that came before it.

use super::store::CoreStore;
use super::{Core, Malformed, Outlet, State, read_front};
use crate::fragment::{
    FragmentError, FragmentFile, FragmentKey, JoinedCrc, ReadMode, ReadOutcome, SECTOR_BYTES,
    space_of_data, verify,
};
use crate::pg::shard::{PgShard, ReadPlan, SnapPlan, SnapQuestion, Snapshot, Source, StoreError};
use bytes::Bytes;
use messenger::buffer::PooledBuf;
use messenger::{Message, ReplyTo, TrafficClass};
use protocol::recovery::{RecoveryBody, RecoveryReply, RecoveryRequest};
use protocol::shard::{ExtentsReply, ReadReply, StatReply, Status};
use protocol::{Kind, ObjectId, PgId};
use std::ops::Range;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Extents in one reply.
const EXTENTS_MAX: usize = 4096;
/// Bytes that are applied before somebody is told what an object, or a file's objects, take.
pub(super) const SETTLE_BYTES: u64 = 1 << 20;
/// Bytes that one read may ask for: what a frame carries.
pub const READ_BYTES_MAX: u64 = 16 << 20;

/// A read that is being carried out.
struct Reading {
    key: FragmentKey,
    file: Option<Arc<FragmentFile>>,
    plan: ReadPlan,
    buffer: PooledBuf,
    /// Of what the last attempt read.
    joined: JoinedCrc,
}

/// What was read.
#[derive(Default)]
struct Seen {
    data: Bytes,
    /// CRC32C of it, if the checksums that it was compared with tell.
    crc: Option<u32>,
}

impl From<Bytes> for Seen {
    fn from(data: Bytes) -> Seen {
        Seen { data, crc: None }
    }
}

/// Why a read failed.
enum ReadFailure {
    /// This part fails its checksum.
    Corrupt(Range<u64>),
    Io,
}

impl Reading {
    fn of(
        key: FragmentKey,
        file: Option<Arc<FragmentFile>>,
        plan: ReadPlan,
        buffer: PooledBuf,
    ) -> Reading {
        Reading { key, file, plan, buffer, joined: JoinedCrc::default() }
    }

    /// Reads everything. `None`: the disk is needed, and `mode` does not allow it.
    fn run(&mut self, mode: ReadMode) -> Result<Option<()>, ReadFailure> {
        self.joined = JoinedCrc::default();
        let (mut at, parts) = (self.plan.range.start, std::mem::take(&mut self.plan.parts));
        let read = self.read_parts(&parts, &mut at, mode);
        self.plan.parts = parts;
        match read? {
            Some(()) => self.read_file(at..self.plan.range.end, mode),
            None => Ok(None),
        }
    }

    /// Reads up to the end of the last part, moving `at` there.
    fn read_parts(
        &mut self,
        parts: &[(Range<u64>, Source)],
        at: &mut u64,
        mode: ReadMode,
    ) -> Result<Option<()>, ReadFailure> {
        for (part, source) in parts {
            if self.read_file(*at..part.start, mode)?.is_none()
                || self.read_part(part, source, mode)?.is_none()
            {
                return Ok(None);
            }
            *at = part.end;
        }
        Ok(Some(()))
    }

    fn read_part(
        &mut self,
        part: &Range<u64>,
        source: &Source,
        mode: ReadMode,
    ) -> Result<Option<()>, ReadFailure> {
        let into = part_of(&mut self.buffer, &self.plan.range, part);
        match source {
            Source::Bytes(bytes) => {
                into.copy_from_slice(bytes);
                self.joined.push_unknown();
            }
            Source::Hole => {
                into.fill(0);
                self.joined.push_unknown();
            }
            Source::Direct(_) | Source::Placed { .. } => {
                let Some(file) = &self.file else { return Err(ReadFailure::Corrupt(part.clone())) };
                let (read, crcs) = match source {
                    Source::Placed { placed, skip } => {
                        (file.read_places(placed.placement(), *skip, into, mode), &placed.crcs)
                    }
                    Source::Direct(crcs) => (file.read_raw(part.start, into, mode), crcs),
                    Source::Bytes(_) | Source::Hole => unreachable!("read from memory"),
                };
                match read {
                    Ok(ReadOutcome::WouldBlock) => return Ok(None),
                    Ok(_) => {}
                    Err(error) => return Err(failure(&error, part)),
                }
                verify(self.key, part.start, into, crcs).map_err(|error| failure(&error, part))?;
                self.joined.push(crcs);
            }
        }
        Ok(Some(()))
    }

    fn read_file(&mut self, range: Range<u64>, mode: ReadMode) -> Result<Option<()>, ReadFailure> {
        if range.is_empty() {
            return Ok(Some(()));
        }
        let into = part_of(&mut self.buffer, &self.plan.range, &range);
        let Some(file) = &self.file else {
            into.fill(0);
            self.joined.push_unknown();
            return Ok(Some(()));
        };
        match file.read_joined(range.start, into, mode, &mut self.joined) {
            Ok(ReadOutcome::WouldBlock) => Ok(None),
            Ok(_) => Ok(Some(())),
            Err(error) => Err(failure(&error, &range)),
        }
    }

    fn finish(self) -> Seen {
        Seen { data: self.buffer.freeze(), crc: self.joined.get() }
    }
}

/// The bytes of a part in the buffer of a whole range.
fn part_of<'a>(buffer: &'a mut PooledBuf, whole: &Range<u64>, part: &Range<u64>) -> &'a mut [u8] {
    &mut buffer.as_mut()[(part.start - whole.start) as usize..(part.end - whole.start) as usize]
}

fn failure(error: &FragmentError, range: &Range<u64>) -> ReadFailure {
    match error {
        FragmentError::Corrupt { sectors, .. } => {
            let first = sectors.first().map_or(range.start, |s| s * SECTOR_BYTES);
            let end = sectors.last().map_or(range.end, |s| (s + 1) * SECTOR_BYTES);
            ReadFailure::Corrupt(first..end)
        }
        error => {
            tracing::error!(%error, "a fragment cannot be read");
            ReadFailure::Io
        }
    }
}

impl<O: Outlet> Core<O> {
    pub(super) fn on_read(&self, outlet: &O, message: Message) -> Result<(), Malformed> {
        let request = read_front(&message)?;
        if u64::from(request.length.get()) > READ_BYTES_MAX {
            return Err(Malformed(message.kind));
        }
        let timing = self.shared.times.read.stopwatch();
        let (to, attach, pg) = (message.reply_to(), request.head.attach().get(), request.head.pg());
        let mut state = self.shared.state.borrow_mut();
        let plan = match (state.store.poison().is_some(), state.shards.get_mut(&pg)) {
            (true, _) => Err(Status::Io),
            (_, None) => Err(Status::NotActive),
            (_, Some(held)) => held.shard.read(&request),
        };
        let plan = match plan {
            Ok(plan) => plan,
            Err(status) => {
                drop(state);
                reply_read(outlet, to, attach, status, Seen::default());
                return Ok(());
            }
        };
        if state.store.is_cut() {
            let length = (plan.range.end - plan.range.start) as usize;
            Self::unpin(&mut state, pg, plan.object);
            Self::count_read(&mut state, length);
            reply_read(outlet, to, attach, Status::Ok, zeros(length).into());
            return Ok(());
        }
        // a read that one record covers needs neither buffer nor file
        if let ([(_, Source::Bytes(bytes))], true) = (&plan.parts[..], plan.is_covered()) {
            Self::unpin(&mut state, pg, plan.object);
            Self::count_read(&mut state, bytes.len());
            reply_read(outlet, to, attach, Status::Ok, bytes.clone().into());
            return Ok(());
        }
        let core = self.clone();
        let outlet = outlet.clone();
        self.run_read(state, pg, plan, false, move |state, result| {
            match result {
                Ok(seen) => {
                    Self::count_read(state, seen.data.len());
                    reply_read(&outlet, to, attach, Status::Ok, seen);
                }
                Err((object, ReadFailure::Corrupt(range))) => {
                    core.note_corrupt(state, pg, object, range);
                    reply_read(&outlet, to, attach, Status::Corrupt, Seen::default());
                }
                Err((_, ReadFailure::Io)) => {
                    reply_read(&outlet, to, attach, Status::Io, Seen::default())
                }
            }
            drop(timing);
        });
        Ok(())
    }

    pub(super) fn unpin(state: &mut State<O>, pg: PgId, object: ObjectId) {
        if let Some(held) = state.shards.get_mut(&pg) {
            held.shard.unpin(object);
        }
    }

    fn count_read(state: &mut State<O>, bytes: usize) {
        state.stats.reads += 1;
        state.stats.read_bytes += bytes as u64;
    }

    /// Carries a plan out, here if the page cache has it all, else on an I/O thread, a background
    /// one if nobody but another shard waits; unpins, and hands the bytes over.
    /// A fragment that does not exist gives no bytes.
    fn run_read(
        &self,
        mut state: std::cell::RefMut<'_, State<O>>,
        pg: PgId,
        plan: ReadPlan,
        is_background: bool,
        done: impl FnOnce(&mut State<O>, Result<Seen, (ObjectId, ReadFailure)>) + 'static,
    ) {
        let object = plan.object;
        let fragment_bytes =
            state.shards.get(&pg).map_or(0, |held| held.shard.view().pg.profile.fragment_bytes());
        let opened = match state.store.key(pg, object) {
            Some(key) => state.store.fragments.get(key).map(|file| (key, file)).map_err(|error| {
                tracing::error!(%error, "a fragment cannot be opened");
                match error {
                    // with its header the checksums of all sectors are lost
                    FragmentError::BadHeader { .. } => ReadFailure::Corrupt(0..fragment_bytes),
                    error if error.is_erasure() => ReadFailure::Corrupt(plan.range.clone()),
                    _ => ReadFailure::Io,
                }
            }),
            None => Err(ReadFailure::Io),
        };
        let (key, file) = match opened {
            Ok(opened) => opened,
            Err(failure) => {
                Self::unpin(&mut state, pg, object);
                return done(&mut state, Err((object, failure)));
            }
        };
        if file.is_none() && plan.parts.is_empty() || plan.range.is_empty() {
            Self::unpin(&mut state, pg, object);
            return done(&mut state, Ok(Seen::default()));
        }
        let length = (plan.range.end - plan.range.start) as usize;
        let mut reading = Reading::of(key, file, plan, self.shared.worker.pool().take(length));
        match reading.run(ReadMode::NoWait) {
            Ok(Some(())) => {
                Self::unpin(&mut state, pg, object);
                done(&mut state, Ok(reading.finish()));
            }
            Err(failure) => {
                Self::unpin(&mut state, pg, object);
                done(&mut state, Err((object, failure)));
            }
            Ok(None) => {
                drop(state);
                let job = move || {
                    let result = reading.run(ReadMode::Blocking);
                    result.map(|_| reading.finish())
                };
                let core = self.clone();
                if is_background {
                    self.shared.worker.spawn(async move {
                        let result = core.background(length, job).await;
                        let result = result.unwrap_or(Err(ReadFailure::Io));
                        let mut state = core.shared.state.borrow_mut();
                        Self::unpin(&mut state, pg, object);
                        done(&mut state, result.map_err(|failure| (object, failure)));
                    });
                    return;
                }
                let job = self.shared.worker.blocking_as(TrafficClass::Client, length, job);
                self.shared.worker.spawn(async move {
                    let result = job.await.unwrap_or(Err(ReadFailure::Io));
                    let mut state = core.shared.state.borrow_mut();
                    Self::unpin(&mut state, pg, object);
                    done(&mut state, result.map_err(|failure| (object, failure)));
                });
            }
        }
    }

    pub(super) fn on_stat(&self, outlet: &O, message: &Message) -> Result<(), Malformed> {
        let request = read_front(message)?;
        let (pg, object) = (request.head.pg(), request.object.into());
        let mut state = self.shared.state.borrow_mut();
        let State { store, shards, .. } = &mut *state;
        let stat = match shards.get_mut(&pg) {
            None => Err(Status::NotActive),
            Some(held) => held.shard.check_read(&request).and_then(|()| {
                let key = store.key(pg, object).ok_or(Status::Io)?;
                // What cannot be applied now is told as it is.
                let _ = held.shard.settle(store, &[object], SETTLE_BYTES);
                let stat = store.fragments.stat(key).map_err(|error| {
                    if error.is_erasure() { Status::Corrupt } else { Status::Io }
                })?;
                let (end, allocated) = stat.map_or((0, 0), |s| (s.logical_end, s.allocated_bytes));
                let (exists, end) = held.shard.stat_over(object, stat.is_some(), end);
                let to_come = space_to_come(&mut held.shard, store, key);
                let allocated = space_of_data(allocated).saturating_add_signed(to_come);
                Ok((exists, end, allocated))
            }),
        };
        state.count_queued(pg);
        let (exists, logical_end, allocated) = stat.unwrap_or_default();
        let status = stat.map_or_else(|status| status, |_| Status::Ok);
        let reply = StatReply {
            attach: request.head.attach().get().into(),
            logical_end: logical_end.into(),
            allocated: allocated.into(),
            status: status as u8,
            flags: u8::from(exists),
        };
        let front = Bytes::copy_from_slice(reply.as_bytes());
        outlet.reply_to(message.reply_to(), answer(Kind::StatReply, front, Bytes::new()));
        Ok(())
    }

    pub(super) fn on_extents(&self, outlet: &O, message: &Message) -> Result<(), Malformed> {
        let request = read_front(message)?;
        let pg = request.head.pg();
        let mut state = self.shared.state.borrow_mut();
        let State { store, shards, .. } = &mut *state;
        let result = match shards.get_mut(&pg) {
            None => Err(Status::NotActive),
            Some(held) => held.shard.read(&request).and_then(|plan| {
                held.shard.unpin(plan.object);
                let key = store.key(pg, plan.object).ok_or(Status::Io)?;
                let file = store.fragments.get(key).map_err(|_| Status::Corrupt)?;
                let all = file
                    .map_or(Ok(Vec::new()), |f| f.data_extents(plan.range.start, EXTENTS_MAX + 1));
                let all = all.map_err(|_| Status::Io)?;
                // what lies behind the last one asked for is not known
                let known = if all.len() > EXTENTS_MAX { all[EXTENTS_MAX].start } else { u64::MAX };
                Ok((merge_extents(&plan, &all, known), known < plan.range.end))
            }),
        };
        let reply = match result {
            Ok((data, more)) => ExtentsReply { status: Status::Ok, more, data },
            Err(status) => ExtentsReply { status, data: Vec::new(), more: false },
        };
        outlet.reply_to(
            message.reply_to(),
            answer(Kind::ExtentsReply, protocol::encode(&reply), Bytes::new()),
        );
        Ok(())
    }

    // ---- for other shards

    /// Answers another shard, in its turn if it is of class III; what is malformed is told at once.
    pub(super) fn on_recovery(
        &self,
        outlet: &O,
        class: TrafficClass,
        message: &Message,
    ) -> Result<(), Malformed> {
        let malformed = Malformed(message.kind);
        let request: RecoveryRequest =
            protocol::decode("recovery", &message.front).map_err(|_| malformed)?;
        let bytes = match &request.body {
            RecoveryBody::Snap { offset, length, .. } => {
                let length = u64::from(*length);
                if length > READ_BYTES_MAX || offset.checked_add(length).is_none() {
                    return Err(malformed);
                }
                length
            }
            RecoveryBody::Mend { offset, length, .. } => {
                offset.checked_add(*length).ok_or(malformed)?;
                0
            }
            RecoveryBody::List { .. }
            | RecoveryBody::Report { .. }
            | RecoveryBody::Noted
            | RecoveryBody::Objects { .. }
            | RecoveryBody::Sum { .. } => 0,
        };
        let to = message.reply_to();
        if class == TrafficClass::Background {
            let (core, outlet) = (self.clone(), outlet.clone());
            self.in_turn(bytes, move || core.answer_shard(&outlet, to, request));
        } else {
            self.serves(class, bytes);
            self.answer_shard(outlet, to, request);
        }
        Ok(())
    }

    /// The request's ranges were checked.
    fn answer_shard(&self, outlet: &O, to: ReplyTo, request: RecoveryRequest) {
        let (pg, epoch, from) = (request.pg, request.epoch, request.from);
        let reply = match &request.body {
            RecoveryBody::List { after, blank, attached } => {
                if after.is_none() && self.list_must_wait(pg, from, epoch) {
                    return reply_recovery(outlet, to, &RecoveryReply::NotYet, Bytes::new());
                }
                let listed = self.with(pg, |shard, store| {
                    shard.list(store, epoch, from, *after, *blank, attached)
                });
                if let Some(Ok(RecoveryReply::Listed {
                    objects, marks, more, everything, ..
                })) = listed
                {
                    return self.give_list(outlet, to, pg, objects, move |objects, bytes| {
                        RecoveryReply::Listed { objects, bytes, marks, more, everything }
                    });
                }
                listed
            }
            RecoveryBody::Report { objects } => {
                self.with(pg, |shard, store| shard.report(store, epoch, from, objects))
            }
            RecoveryBody::Noted => self.with(pg, |shard, store| shard.noted(store, epoch, from)),
            RecoveryBody::Snap { object, offset, length, known, floor, hold } => {
                let question = SnapQuestion {
                    epoch,
                    from,
                    object: *object,
                    first: *offset == 0,
                    known,
                    floor,
                    hold: *hold,
                };
                let range = *offset..offset.saturating_add(u64::from(*length));
                return self.give_piece(outlet, to, pg, &question, range);
            }
            RecoveryBody::Mend { object, offset, length, avoid } => {
                let range = *offset..offset.saturating_add(*length);
                Some(Ok(self.mend(pg, epoch, *object, range, *avoid)))
            }
            RecoveryBody::Objects { .. } | RecoveryBody::Sum { .. } => {
                let (core, outlet) = (self.clone(), outlet.clone());
                self.shared.worker.spawn(async move {
                    let (reply, sums) = core.scrub_answer(&request).await;
                    reply_recovery(&outlet, to, &reply, sums);
                });
                return;
            }
        };
        let reply = reply.unwrap_or(Ok(RecoveryReply::Refused(Status::NotActive)));
        reply_recovery(outlet, to, &reply.unwrap_or_else(|error| refused(&error)), Bytes::new());
    }

    /// Answers with a list of objects, once their sizes are known.
    fn give_list(
        &self,
        outlet: &O,
        to: ReplyTo,
        pg: PgId,
        objects: Vec<ObjectId>,
        reply: impl FnOnce(Vec<ObjectId>, Vec<u64>) -> RecoveryReply + 'static,
    ) {
        let sizes = {
            let mut state = self.shared.state.borrow_mut();
            let store = &mut state.store;
            let keys: Vec<_> = objects.iter().filter_map(|object| store.key(pg, *object)).collect();
            store.fragments.sizes(&keys)
        };
        let (core, outlet) = (self.clone(), outlet.clone());
        self.shared.worker.spawn(async move {
            let bytes = core.background(0, sizes).await.unwrap_or_default();
            reply_recovery(&outlet, to, &reply(objects, bytes), Bytes::new());
        });
    }

    /// Pins the object at a cut, or says why not.
    pub(super) fn snapshot(
        &self,
        pg: PgId,
        question: &SnapQuestion<'_>,
    ) -> Result<Snapshot, RecoveryReply> {
        let snap = |shard: &mut PgShard, store: &mut CoreStore| {
            let before = shard.hold_number(question.object);
            let plan = shard.snap(store, question);
            let begun = shard.hold_number(question.object).filter(|_| before.is_none());
            plan.map(|plan| (plan, begun))
        };
        let planned = self.with(pg, snap).map(|planned| {
            planned.map(|(plan, begun)| {
                if let Some(number) = begun {
                    self.end_hold_soon(pg, question.object, number);
                }
                plan
            })
        });
        match planned {
            None => Err(RecoveryReply::Refused(Status::NotActive)),
            Some(Ok(SnapPlan::Ready(snap))) => Ok(snap),
            Some(Ok(SnapPlan::Refused(status))) => Err(RecoveryReply::Refused(status)),
            Some(Ok(SnapPlan::NotYet)) => {
                self.shared.state.borrow_mut().trim_wanted = true;
                Err(RecoveryReply::NotYet)
            }
            Some(Err(error)) => Err(refused(&error)),
        }
    }

    fn give_piece(
        &self,
        outlet: &O,
        to: ReplyTo,
        pg: PgId,
        question: &SnapQuestion<'_>,
        range: Range<u64>,
    ) {
        let object = question.object;
        let snap = match self.snapshot(pg, question) {
            Ok(snap) => snap,
            Err(reply) => return reply_recovery(outlet, to, &reply, Bytes::new()),
        };
        let mut state = self.shared.state.borrow_mut();
        let profile_end =
            state.shards.get(&pg).map_or(0, |held| held.shard.view().pg.profile.fragment_bytes());
        let range = range.start.min(profile_end)..range.end.min(profile_end);
        let described = describe(&mut state, pg, object, &range);
        let (exists, logical_end, fragment_end, data) = match described {
            Ok(described) => described,
            Err(status) => {
                Self::unpin(&mut state, pg, object);
                let refused = RecoveryReply::Refused(status);
                return reply_recovery(outlet, to, &refused, Bytes::new());
            }
        };
        let Snapshot { marks, has_unapplied } = snap;
        // what lies behind the last byte is hole: nobody needs it
        let range = range.start..data.last().map_or(range.start, |&(at, length)| at + length);
        let piece = RecoveryReply::Piece { exists, logical_end, fragment_end, data, marks };
        let plan = ReadPlan { object, range, parts: Vec::new() };
        let (core, outlet) = (self.clone(), outlet.clone());
        self.run_read(state, pg, plan, true, move |state, result| match result {
            Ok(seen) => reply_recovery(&outlet, to, &piece, seen.data),
            // after a restart the file passes its checksums only when the journal was applied again
            Err((_, ReadFailure::Corrupt(_))) if has_unapplied => {
                if let Some(held) = state.shards.get_mut(&pg) {
                    held.shard.let_go(object);
                }
                reply_recovery(&outlet, to, &RecoveryReply::NotYet, Bytes::new());
            }
            Err((object, ReadFailure::Corrupt(range))) => {
                core.note_corrupt(state, pg, object, range);
                reply_recovery(&outlet, to, &RecoveryReply::Refused(Status::Corrupt), Bytes::new());
            }
            Err((_, ReadFailure::Io)) => {
                reply_recovery(&outlet, to, &RecoveryReply::Refused(Status::Io), Bytes::new());
            }
        });
    }
}

/// Existence, end of user data, end of the fragment's data, and extents within the range, of a
/// fragment file.
#[expect(clippy::type_complexity, reason = "the fields of one reply")]
fn describe<O>(
    state: &mut State<O>,
    pg: PgId,
    object: ObjectId,
    range: &Range<u64>,
) -> Result<(bool, u64, u64, Vec<(u64, u64)>), Status> {
    let status =
        |error: &FragmentError| if error.is_erasure() { Status::Corrupt } else { Status::Io };
    let key = state.store.key(pg, object).ok_or(Status::NotActive)?;
    let Some(file) = state.store.fragments.get(key).map_err(|e| status(&e))? else {
        return Ok((false, 0, 0, Vec::new()));
    };
    let end = file.stat().map_err(|e| status(&e))?.logical_end;
    let extents = file.data_extents(0, usize::MAX).map_err(|e| status(&e))?;
    let fragment_end = extents.last().map_or(0, |e| e.end);
    let clip = |e: &Range<u64>| (e.start.max(range.start), e.end.min(range.end));
    let within = extents.iter().map(clip).filter(|(s, e)| s < e).map(|(s, e)| (s, e - s));
    Ok((true, end, fragment_end, within.collect()))
}

/// The file's extents below `known`, with what the journal lays over them, within the plan's range.
fn merge_extents(plan: &ReadPlan, file: &[Range<u64>], known: u64) -> Vec<(u64, u64)> {
    let limit = plan.range.end.min(known);
    let mut data: Vec<Range<u64>> = Vec::new();
    let mut add = |range: Range<u64>| {
        let range = range.start.max(plan.range.start)..range.end.min(limit);
        if range.start >= range.end {
            return;
        }
        match data.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => data.push(range),
        }
    };
    let mut at = plan.range.start;
    let gap_end = (u64::MAX..u64::MAX, Source::Hole);
    for (part, source) in plan.parts.iter().chain(std::iter::once(&gap_end)) {
        let first = file.partition_point(|e| e.end <= at);
        for extent in file[first..].iter().take_while(|e| e.start < part.start) {
            add(extent.start.max(at)..extent.end.min(part.start));
        }
        if !matches!(source, Source::Hole) {
            add(part.clone());
        }
        at = part.end;
    }
    data.into_iter().map(|e| (e.start, e.end - e.start)).collect()
}

/// So many zero bytes, as a rule without any being made: what a read gives whose path is cut.
pub fn zeros(length: usize) -> Bytes {
    static ZEROS: [u8; 1 << 20] = [0; 1 << 20];
    ZEROS.get(..length).map_or_else(|| Bytes::from(vec![0; length]), Bytes::from_static)
}

pub(super) fn answer(kind: Kind, front: Bytes, data: Bytes) -> Message {
    Message::new(TrafficClass::Client, kind.to_u16(), front, data)
}

/// Bytes that a fragment will take more, or less, once all its records are applied.
pub(super) fn space_to_come(shard: &mut PgShard, store: &mut CoreStore, key: FragmentKey) -> i64 {
    let more = shard.unapplied_bytes(key.object);
    let plan = shard.plan(key.object, 0..shard.view().pg.profile.fragment_bytes());
    shard.unpin(plan.object);
    let holes: Vec<&Range<u64>> = plan
        .parts
        .iter()
        .filter(|(_, source)| *source == Source::Hole)
        .map(|(part, _)| part)
        .collect();
    if holes.is_empty() {
        return more as i64;
    }
    let Ok(Some(file)) = store.fragments.get(key) else { return more as i64 };
    let data = file.data_extents(0, EXTENTS_MAX).unwrap_or_default();
    let overlap = |hole: &Range<u64>| -> u64 {
        let both =
            |part: &Range<u64>| part.end.min(hole.end).saturating_sub(part.start.max(hole.start));
        data.iter().map(both).sum()
    };
    let taken = |hole: &Range<u64>| {
        file.taken(hole.clone()).ok().flatten().unwrap_or_else(|| overlap(hole))
    };
    more as i64 - holes.into_iter().map(taken).sum::<u64>() as i64
}

fn reply_read<O: Outlet>(outlet: &O, to: ReplyTo, attach: u64, status: Status, seen: Seen) {
    let reply = ReadReply { attach: attach.into(), status: status as u8, flags: 0 };
    let message = answer(Kind::ReadReply, Bytes::copy_from_slice(reply.as_bytes()), seen.data);
    outlet.reply_to(to, Message { data_crc: seen.crc, ..message });
}

fn reply_recovery<O: Outlet>(outlet: &O, to: ReplyTo, reply: &RecoveryReply, data: Bytes) {
    outlet.reply_to(to, answer(Kind::RecoveryReply, protocol::encode(reply), data));
}

fn refused(error: &StoreError) -> RecoveryReply {
    tracing::warn!(%error, "a question of another shard could not be answered");
    RecoveryReply::Refused(error.status())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_of_file_and_journal_merge() {
        let parts = vec![
            (10..20, Source::Hole),
            (30..40, Source::Bytes(Bytes::new())),
            (50..60, Source::Hole),
        ];
        let plan = ReadPlan { object: ObjectId::default(), range: 0..100, parts };
        let file = [5..15, 18..35, 55..70];
        assert_eq!(merge_extents(&plan, &file, u64::MAX), [(5, 5), (20, 20), (60, 10)]);
        assert_eq!(merge_extents(&plan, &file, 32), [(5, 5), (20, 12)]);
        assert_eq!(merge_extents(&plan, &[], u64::MAX), [(30, 10)]);
    }
}
