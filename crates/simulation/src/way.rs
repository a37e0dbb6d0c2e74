//! The way of a shard back into the in-sync set, as `ec_store::core::recovery` goes it.
//!
//! Contract: a question to a member, its answer and every sync are steps of their own; a way ends
//! with its epoch, and a question that it had asked may still arrive then.

use crate::disk::{File, OBJECTS, SECTOR, SECTORS, Tags, number, sector_bytes};
use crate::node::Told;
use crate::world::{Check, World, pg_id, si};
use ec_store::pg::shard::returning::{Cut, common_cut, least_cut};
use ec_store::pg::shard::{RebuiltPiece, SnapPlan, SnapQuestion, Step};
use protocol::recovery::{RecoveryBody, RecoveryReply, RecoveryRequest, SessionMark};
use protocol::{Epoch, ObjectId, ShardIndex};

/// Sectors that are rebuilt in one go.
const CHUNK: usize = SECTORS / 2;
/// How often a range is asked for before its object is put back.
const TRIES: u32 = 3;

/// A member's part of a range, by the whole file.
#[derive(Debug)]
pub struct Piece {
    /// Without the journal.
    pub file: Option<File>,
    /// Of the sectors asked for.
    pub tags: Tags,
    /// Of which cut it is.
    pub marks: Vec<SessionMark>,
}

/// The rebuilding of an object.
#[derive(Debug)]
pub struct Job {
    object: ObjectId,
    at: usize,
    cut: Option<Cut>,
    /// Existence, end of user data, sectors that have data, by the first pieces.
    whole: Option<(bool, u64, usize)>,
    pieces: Vec<Piece>,
    tries: u32,
}

/// Where a way stands.
#[derive(Debug)]
pub enum Stage {
    /// Members are asked what was missed.
    List,
    /// The list is being synced.
    ListSync(u64),
    /// These members are told that it is: they do not know any more what was missed.
    Noted(Vec<ShardIndex>),
    /// The next object is looked for.
    Next,
    /// An object is being rebuilt.
    Rebuild(Box<Job>),
    /// What is rebuilt is being synced.
    ReportSync(Vec<ObjectId>, u64),
    /// Members are told.
    Report(Vec<ObjectId>, Vec<ShardIndex>),
    /// Everything is being synced.
    JoinSync(u64),
    /// The shard wants to be written to.
    CaughtUp,
    /// The shard wants to be in sync.
    Whole,
}

impl Stage {
    /// What the monitor should hear.
    pub fn told(&self) -> Option<Told> {
        match self {
            Stage::CaughtUp => Some(Told::AskJoin),
            Stage::Whole => Some(Told::Join),
            _ => None,
        }
    }
}

/// A member's answer: nothing, words, or a piece.
#[derive(Debug)]
pub enum Answer {
    /// It cannot be reached, or refuses.
    No,
    /// To a list or a report.
    Reply(RecoveryReply),
    /// To a question for a piece.
    Piece(Piece),
}

/// A question under way.
#[derive(Debug)]
pub struct Call {
    /// To whom.
    pub to: usize,
    /// What.
    pub request: RecoveryRequest,
    /// What came back.
    pub answer: Option<Answer>,
}

/// See the module.
#[derive(Debug)]
pub struct Way {
    /// The epoch that it belongs to.
    pub epoch: Epoch,
    /// Where it stands.
    pub stage: Stage,
    /// The question under way.
    pub call: Option<Call>,
}

impl Way {
    /// The question that may still arrive.
    pub fn into_call(self) -> Option<(usize, RecoveryRequest)> {
        self.call.filter(|call| call.answer.is_none()).map(|call| (call.to, call.request))
    }

    /// A member's process has died.
    pub fn member_died(&mut self, i: usize) {
        if let Some(call) = self.call.as_mut().filter(|call| call.to == i && call.answer.is_none())
        {
            call.answer = Some(Answer::No);
        }
    }
}

impl World {
    /// Is there something for the way of shard `x` to do?
    pub fn way_is_ready(&self, x: usize) -> bool {
        let node = &self.nodes[x];
        let Some(shard) = node.shard.as_ref().filter(|_| !node.poisoned) else { return false };
        let Some(way) = &node.way else { return shard.is_returning() };
        if let Some(call) = &way.call {
            return call.answer.is_some();
        }
        match &way.stage {
            Stage::ListSync(wait) | Stage::ReportSync(_, wait) | Stage::JoinSync(wait) => {
                node.syncs.is_done(*wait)
            }
            Stage::CaughtUp | Stage::Whole => false,
            // a joining shard that waits for records to come has nothing to do
            Stage::Next => !shard.view().is_joining() || shard.to_rebuild() > 0 || shard.can_join(),
            _ => true,
        }
    }

    /// The way of shard `x` goes on.
    pub fn way_on(&mut self, x: usize) -> Check {
        let node = &mut self.nodes[x];
        let Some(shard) = &mut node.shard else { return Ok(()) };
        let Some(mut way) = node.way.take() else {
            shard.put_all_back();
            let stage = if shard.is_listed() { Stage::Next } else { Stage::List };
            node.way = Some(Way { epoch: shard.view().pg.epoch, stage, call: None });
            return Ok(());
        };
        let answer = way.call.take().and_then(|call| Some((call.to, call.answer?)));
        way.stage = match way.stage {
            Stage::List => self.way_list(x, &mut way.call, answer),
            Stage::ListSync(_) => {
                shard.list_is_durable();
                let members: Vec<ShardIndex> = shard.to_tell_noted().iter().collect();
                if members.is_empty() { Stage::Next } else { Stage::Noted(members) }
            }
            Stage::Noted(mut members) => match members.pop() {
                Some(member) => {
                    way.call = Some(self.ask(x, member, RecoveryBody::Noted));
                    Stage::Noted(members)
                }
                None => Stage::Next,
            },
            Stage::Next => self.way_next(x),
            Stage::Rebuild(job) => self.way_rebuild(x, job, &mut way.call, answer)?,
            Stage::ReportSync(objects, _) => {
                let members = shard.view().pg.in_sync.iter().collect();
                Stage::Report(objects, members)
            }
            Stage::Report(objects, mut members) => match members.pop() {
                Some(member) => {
                    let body = RecoveryBody::Report { objects: objects.clone() };
                    way.call = Some(self.ask(x, member, body));
                    Stage::Report(objects, members)
                }
                None => {
                    shard.reported(&mut node.disk, &objects).expect("deltas are always taken");
                    self.cover("rebuilt objects are reported");
                    Stage::Next
                }
            },
            Stage::JoinSync(_) => {
                self.note(|| format!("shard {x} is whole and is to join"));
                Stage::Whole
            }
            other @ (Stage::CaughtUp | Stage::Whole) => other,
        };
        self.nodes[x].way = Some(way);
        Ok(())
    }

    fn ask(&self, x: usize, member: ShardIndex, body: RecoveryBody) -> Call {
        let shard = self.nodes[x].shard.as_ref().expect("it asks");
        let request =
            RecoveryRequest { pg: pg_id(), epoch: shard.view().pg.epoch, from: si(x), body };
        Call { to: usize::from(member.get()), request, answer: None }
    }

    fn way_list(
        &mut self,
        x: usize,
        call: &mut Option<Call>,
        answer: Option<(usize, Answer)>,
    ) -> Stage {
        if let Some((_, Answer::Reply(RecoveryReply::Listed { everything: true, .. }))) = &answer {
            self.cover("a shard is listed everything, as its dirty list was cut short");
        }
        let node = &mut self.nodes[x];
        let Some(shard) = &mut node.shard else { return Stage::List };
        if let Some((
            m,
            Answer::Reply(RecoveryReply::Listed { objects, marks, more, everything, .. }),
        )) = answer
        {
            shard.listed(si(m), &objects, &marks, more, everything);
        }
        let Some(member) = shard.unlisted().iter().next() else {
            shard.finish_list(&mut node.disk).expect("deltas are always taken");
            let rebuilds = shard.to_rebuild();
            let wait = node.barrier(Step::Rebuild);
            self.note(|| format!("shard {x} has {rebuilds} objects to rebuild"));
            return Stage::ListSync(wait);
        };
        let body = shard.list_body(None);
        *call = Some(self.ask(x, member, body));
        Stage::List
    }

    fn way_next(&mut self, x: usize) -> Stage {
        let node = &mut self.nodes[x];
        let Some(shard) = &mut node.shard else { return Stage::Next };
        if let Some(object) = shard.next_to_rebuild() {
            let (cut, whole, pieces) = (None, None, Vec::new());
            return Stage::Rebuild(Box::new(Job { object, at: 0, cut, whole, pieces, tries: 0 }));
        }
        let objects = shard.to_report();
        if !objects.is_empty() {
            return Stage::ReportSync(objects, node.barrier(Step::ReportRebuilt));
        }
        if shard.view().is_joining() && shard.can_join() {
            shard.ready_to_join(&mut node.disk).expect("deltas are always taken");
            return Stage::JoinSync(node.barrier(Step::Join));
        }
        let waits = shard.view().is_joining() || shard.to_rebuild() > 0;
        if waits {
            shard.put_all_back();
            return Stage::Next;
        }
        Stage::CaughtUp
    }

    fn way_rebuild(
        &mut self,
        x: usize,
        mut job: Box<Job>,
        call: &mut Option<Call>,
        answer: Option<(usize, Answer)>,
    ) -> Result<Stage, String> {
        let node = &mut self.nodes[x];
        let Some(shard) = &mut node.shard else { return Ok(Stage::Next) };
        let members: Vec<ShardIndex> = shard.view().pg.in_sync.without(si(x)).iter().collect();
        match answer {
            Some((_, Answer::Piece(piece))) => job.pieces.push(piece),
            Some(_) => (job.pieces, job.tries) = (Vec::new(), job.tries + 1),
            None => {}
        }
        if job.pieces.len() >= 2 {
            let marks: Vec<&[SessionMark]> =
                job.pieces.iter().map(|piece| &piece.marks[..]).collect();
            match common_cut(self.rules, &marks) {
                Ok(cut) => return self.rebuild_chunk(x, job, cut),
                Err(known) => {
                    shard.learn_known(known);
                    (job.pieces, job.tries) = (Vec::new(), job.tries + 1);
                    self.cover("pieces of different cuts are refused");
                }
            }
        }
        let node = &mut self.nodes[x];
        let Some(shard) = &mut node.shard else { return Ok(Stage::Next) };
        if job.tries > TRIES || members.len() < 2 {
            shard.put_back(job.object);
            return Ok(Stage::Next);
        }
        let body = shard.snap_body(job.object, (job.at * SECTOR) as u64, (CHUNK * SECTOR) as u32);
        let member = members[(job.pieces.len() + job.tries as usize) % members.len()];
        *call = Some(self.ask(x, member, body));
        Ok(Stage::Rebuild(job))
    }

    /// Writes a chunk from the pieces; the last one ends the rebuilding.
    fn rebuild_chunk(&mut self, x: usize, mut job: Box<Job>, cut: Cut) -> Result<Stage, String> {
        let node = &mut self.nodes[x];
        let Some(shard) = &mut node.shard else { return Ok(Stage::Next) };
        let pieces = std::mem::take(&mut job.pieces);
        let files = || pieces.iter().flat_map(|piece| &piece.file);
        let summary = || {
            let end = files().map(|file| file.end).max().unwrap_or(0);
            let data = files().map(|file| file.data_end() as usize / SECTOR).max().unwrap_or(0);
            (files().next().is_some(), end, data)
        };
        let (exists, end, data_end) = *job.whole.get_or_insert_with(summary);
        let range = job.at..job.at + CHUNK;
        // any two of the three pieces xor to the third
        let tag = |at: usize| pieces[0].tags[at] ^ pieces[1].tags[at];
        let is_data = |at: &usize| files().any(|file| file.crcs[*at] != 0);
        let data = range.clone().filter(is_data);
        let data =
            data.map(|at| ((at * SECTOR) as u64, sector_bytes([tag(at)].into_iter()))).collect();
        let (offset, length) = ((range.start * SECTOR) as u64, (CHUNK * SECTOR) as u64);
        if exists {
            let piece = RebuiltPiece { offset, length, data, logical_end: 0 };
            if shard.write_rebuilt(&mut node.disk, job.object, &piece).is_err() {
                shard.put_back(job.object);
                return Ok(Stage::Next);
            }
        }
        let cut = job.cut.take().map_or_else(|| cut.clone(), |before| least_cut(before, &cut));
        self.note(|| {
            format!(
                "shard {x} has rebuilt sectors {range:?} of object {} at {cut:?}",
                number(job.object)
            )
        });
        job.at += CHUNK;
        job.tries = 0;
        if job.at < data_end.min(SECTORS) && exists {
            job.cut = Some(cut);
            return Ok(Stage::Rebuild(job));
        }
        let node = &mut self.nodes[x];
        let Some(shard) = &mut node.shard else { return Ok(Stage::Next) };
        let end = exists.then_some(((job.at * SECTOR) as u64, end));
        let Ok(done) = shard.finish_rebuild(&mut node.disk, job.object, &cut, end) else {
            shard.put_back(job.object);
            return Ok(Stage::Next);
        };
        node.disk.note_rebuilt(number(job.object));
        let joining = shard.view().is_joining();
        self.cover(match (done, joining) {
            (false, _) => "a rebuilt object must be rebuilt again",
            (true, true) => "object rebuilt while joining",
            (true, false) => "object rebuilt before joining",
        });
        Ok(Stage::Next)
    }

    /// A member answers the question of shard `x`.
    pub fn serve(&mut self, x: usize) -> Check {
        let Some(call) = self.nodes[x].way.as_ref().and_then(|way| way.call.as_ref()) else {
            return Ok(());
        };
        let (to, request) = (call.to, call.request.clone());
        let answer = self.answer_of(to, &request)?;
        if let Some(call) = self.nodes[x].way.as_mut().and_then(|way| way.call.as_mut()) {
            call.answer = Some(answer);
        }
        Ok(())
    }

    /// A member answers a question that nobody waits for.
    pub fn serve_late(&mut self, n: usize) -> Check {
        let (to, request) = self.strays.swap_remove(n);
        self.answer_of(to, &request).map(drop)
    }

    /// What member `m` answers to a question.
    ///
    /// # Errors
    /// An invariant's name, and how it broke.
    pub fn answer_of(&mut self, m: usize, request: &RecoveryRequest) -> Result<Answer, String> {
        let node = &mut self.nodes[m];
        let Some(shard) = node.shard.as_mut().filter(|_| !node.poisoned) else {
            return Ok(Answer::No);
        };
        let (epoch, from) = (request.epoch, request.from);
        let answer = match &request.body {
            RecoveryBody::List { after, blank, attached } => Answer::Reply(
                shard.list(&mut node.disk, epoch, from, *after, *blank, attached).expect("memory"),
            ),
            RecoveryBody::Report { objects } => Answer::Reply(
                shard
                    .report(&mut node.disk, epoch, from, objects)
                    .expect("deltas are always taken"),
            ),
            RecoveryBody::Noted => Answer::Reply(
                shard.noted(&mut node.disk, epoch, from).expect("deltas are always taken"),
            ),
            RecoveryBody::Snap { object, offset, known, floor, .. } => {
                let question = SnapQuestion {
                    epoch,
                    from,
                    object: *object,
                    first: *offset == 0,
                    known,
                    floor,
                };
                match shard.snap(&mut node.disk, &question) {
                    Ok(SnapPlan::Ready(_)) if node.disk.read_fails() => {
                        shard.unpin(*object);
                        self.cover("a read fails");
                        Answer::No
                    }
                    Ok(SnapPlan::Ready(snap)) => {
                        shard.unpin(*object);
                        let file = node.disk.files[number(*object)];
                        match piece_of(file, snap.marks, *offset) {
                            Ok(piece) => Answer::Piece(piece),
                            Err(_) if snap.has_unapplied => Answer::No,
                            Err(at) if file.is_some_and(|file| file.is_rotten(at)) => {
                                self.note_damaged(m, number(*object), at);
                                Answer::No
                            }
                            Err(_) => {
                                return Err(format!(
                                    "verified: shard {m} gives a piece that fails its checksum"
                                ));
                            }
                        }
                    }
                    _ => Answer::No,
                }
            }
            // only scrubs ask these, and nobody scrubs here
            RecoveryBody::Objects { .. } | RecoveryBody::Sum { .. } | RecoveryBody::Mend { .. } => {
                Answer::No
            }
        };
        self.look_at_applied(m)?;
        Ok(answer)
    }

    /// Every object, for those who look at all.
    pub fn objects(&self) -> std::ops::Range<usize> {
        0..OBJECTS.min(self.bounds.objects)
    }
}

/// The piece that begins at `offset`, or the first sector that fails its checksum.
fn piece_of(file: Option<File>, marks: Vec<SessionMark>, offset: u64) -> Result<Piece, usize> {
    let first = offset as usize / SECTOR;
    let mut tags = [0; SECTORS];
    for (at, tag) in tags.iter_mut().enumerate().skip(first).take(CHUNK) {
        *tag = file.map_or(Some(0), |file| file.sector(at)).ok_or(at)?;
    }
    Ok(Piece { file, tags, marks })
}
