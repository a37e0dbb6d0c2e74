//! Scrubbing: compares the shards of a PG on their disks, has what is bad rebuilt, and names what
//! it cannot decide.
//!
//! Contract: the shard that leads (the lowest of the in-sync set) asks every in-sync shard, itself
//! included, to check a range of a fragment; one PG at a time, paced by `scrub_bytes_per_sec`. All
//! answers for a range are of one cut, as for rebuilding: an object that is written all the time is
//! skipped, and counted. What fails a checksum is repaired by the shard that has it. What differs
//! across shards is believed when a second look with another seed shows it again; [`crate::scrub`]
//! then says which shard is wrong, and that one rebuilds from the others.
//!
//! *Light* checks name, header and the CRC32C of every sector, and compares sums only where a
//! fragment is missing; *deep* compares the sums of all. Both read from the disk: pages that the
//! system holds in memory are dropped first.

use super::reading::READ_BYTES_MAX;
use super::recovery::{Members, TRIES, Way};
use super::{Core, Outlet, REPAIRS_MAX, Repair};
use crate::codec::{LinearSum, SUM_BYTES, SUM_UNIT_BYTES};
use crate::disk;
use crate::fragment::{FragmentError, FragmentFile, ReadMode, SECTOR_BYTES};
use crate::pg::shard::SnapQuestion;
use crate::pg::shard::returning::{Known, clean_cut};
use crate::scrub::{Mismatch, ShardSums, judge, may_hold_data};
use bytes::Bytes;
use protocol::recovery::{RecoveryBody, RecoveryReply, RecoveryRequest, SessionMark};
use protocol::scrub::ScrubTotals;
use protocol::shard::Status;
use protocol::{Epoch, ObjectId, PgId, Rules, ShardIndex, ShardSet};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Objects in one page of a list.
const PAGE_OBJECTS: usize = 8192;
/// How often an object that is written meanwhile is tried, with [`SKIP_PAUSE`] between.
const ROUNDS: usize = 3;
/// Pause before objects left out are tried again.
const SKIP_PAUSE: Duration = Duration::from_millis(500);
/// How often a repair that was ordered is looked at, with [`MEND_PAUSE`] between: journals may hold
/// it back for a trim.
const MEND_LOOKS: usize = 60;
const MEND_PAUSE: Duration = Duration::from_millis(250);

/// An object whose shards do not match, and that was not repaired.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Which.
    pub object: ObjectId,
    /// Where, in bytes of the fragments: from the first that does not match to the last.
    pub range: Range<u64>,
    /// Shards that the evidence is against; empty: it does not decide.
    pub wrong: ShardSet,
}

/// What the scrub of a PG gave.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Scrubbed {
    /// What was done.
    pub totals: ScrubTotals,
    /// What is left.
    pub findings: Vec<Finding>,
}

/// One shard's answer.
struct Answer {
    shard: ShardIndex,
    exists: bool,
    logical_end: u64,
    fragment_end: u64,
    corrupt: Vec<(u64, u64)>,
    marks: Vec<SessionMark>,
    sums: Bytes,
}

/// What an object looks like.
#[derive(Default)]
struct Look {
    bytes: u64,
    end: u64,
    found: Vec<(Range<u64>, ShardSet)>,
    /// Of them those that fail a checksum, which their shards repair by themselves.
    corrupt: ShardSet,
}

impl Look {
    fn is_clean(&self) -> bool {
        self.found.is_empty()
    }

    /// Everything found as one.
    fn finding(&self, object: ObjectId) -> Finding {
        let start = self.found.iter().map(|(range, _)| range.start).min().unwrap_or(0);
        let end = self.found.iter().map(|(range, _)| range.end).max().unwrap_or(0);
        let decided = self.found.iter().all(|(_, wrong)| !wrong.is_empty());
        let all = self.found.iter().fold(ShardSet::EMPTY, |set, (_, wrong)| set.union(*wrong));
        Finding { object, range: start..end, wrong: if decided { all } else { ShardSet::EMPTY } }
    }
}

/// What came of looking.
enum Seen {
    Whole(Look),
    /// It is being written.
    Busy,
    /// The epoch is over.
    Over,
}

// ---- what any in-sync shard answers

/// What an I/O thread found in a range of a fragment file.
pub(super) struct Inspection {
    is_header_good: bool,
    logical_end: u64,
    fragment_end: u64,
    /// Parts that fail their checksums.
    pub corrupt: Vec<Range<u64>>,
    /// Of the range's units, if they were asked for and nothing is corrupt.
    pub sums: Vec<u8>,
}

/// Reads a range and checks it; waits for the disk.
fn inspect(
    file: &FragmentFile,
    range: &Range<u64>,
    seed: Option<u64>,
    scrub: bool,
) -> Result<Inspection, FragmentError> {
    let is_first = scrub && range.start == 0;
    let is_header_good = !is_first || file.recheck()?;
    if is_first {
        file.give_back()?;
    }
    if scrub {
        file.uncache(range.start, range.end - range.start);
    }
    let mut bytes = vec![0; (range.end - range.start) as usize];
    let corrupt = match file.read(range.start, &mut bytes, ReadMode::Blocking) {
        Ok(_) => Vec::new(),
        Err(FragmentError::Corrupt { sectors, .. }) => runs(&sectors),
        Err(error) => return Err(error),
    };
    let mut sums = Vec::new();
    if let Some(seed) = seed.filter(|_| corrupt.is_empty()) {
        LinearSum::new(seed).append(&bytes, &mut sums);
    }
    let logical_end = file.stat()?.logical_end;
    let fragment_end = file.data_extents(0, usize::MAX)?.last().map_or(0, |extent| extent.end);
    Ok(Inspection { is_header_good, logical_end, fragment_end, corrupt, sums })
}

/// Sectors as ranges of bytes.
fn runs(sectors: &[u64]) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for start in sectors.iter().map(|sector| sector * SECTOR_BYTES) {
        match runs.last_mut() {
            Some(last) if last.end == start => last.end += SECTOR_BYTES,
            _ => runs.push(start..start + SECTOR_BYTES),
        }
    }
    runs
}

impl<O: Outlet> Core<O> {
    /// Answers `Objects` and `Sum`.
    pub(super) async fn scrub_answer(&self, request: &RecoveryRequest) -> (RecoveryReply, Bytes) {
        match &request.body {
            RecoveryBody::Objects { after } => {
                (self.list_page(request.pg, request.epoch, *after).await, Bytes::new())
            }
            RecoveryBody::Sum { .. } => self.sum(request).await,
            _ => (RecoveryReply::Refused(Status::Invalid), Bytes::new()),
        }
    }

    /// Is this an in-sync shard of the active PG in this epoch?
    fn is_member(&self, pg: PgId, epoch: Epoch) -> bool {
        self.view(pg)
            .is_some_and(|view| view.pg.epoch == epoch && view.pg.active && view.is_in_sync())
    }

    async fn list_page(&self, pg: PgId, epoch: Epoch, after: Option<ObjectId>) -> RecoveryReply {
        if !self.is_member(pg, epoch) {
            return RecoveryReply::Refused(Status::NotActive);
        }
        let shard = self.view(pg).map(|view| view.me);
        let listed = self.shared.state.borrow_mut().store.fragments.list(pg);
        let Ok(entries) = listed else { return RecoveryReply::Refused(Status::Io) };
        let job = self.background(0, move || {
            let mut page = BTreeSet::new();
            for entry in entries {
                let (object, of) = entry?;
                if Some(of) == shard && after.is_none_or(|after| object > after) {
                    page.insert(object);
                    if page.len() > PAGE_OBJECTS {
                        page.pop_last();
                    }
                }
            }
            Ok::<_, FragmentError>(page)
        });
        match job.await {
            Ok(Ok(page)) => {
                let more = page.len() == PAGE_OBJECTS;
                RecoveryReply::Objects { objects: page.into_iter().collect(), more }
            }
            _ => RecoveryReply::Refused(Status::Io),
        }
    }

    async fn sum(&self, request: &RecoveryRequest) -> (RecoveryReply, Bytes) {
        let refused = |status| (RecoveryReply::Refused(status), Bytes::new());
        let RecoveryBody::Sum { object, offset, length, seed, scrub, known, floor, hold } =
            &request.body
        else {
            return refused(Status::Invalid);
        };
        let (pg, object, seed, scrub) = (request.pg, *object, *seed, *scrub);
        let Some(view) = self.view(pg).filter(|_| u64::from(*length) <= READ_BYTES_MAX) else {
            return refused(Status::Invalid);
        };
        let limit = view.pg.profile.fragment_bytes();
        let range = (*offset).min(limit)..offset.saturating_add(u64::from(*length)).min(limit);
        let first = !scrub && *offset == 0;
        let (epoch, from, hold) = (request.epoch, request.from, *hold);
        let question = SnapQuestion { epoch, from, object, first, known, floor, hold };
        let snap = match self.snapshot(pg, &question) {
            Ok(snap) => snap,
            Err(reply) => return (reply, Bytes::new()),
        };
        let result = self.inspect(pg, object, range.clone(), seed, scrub).await;
        let mut state = self.shared.state.borrow_mut();
        Self::unpin(&mut state, pg, object);
        let found = match result {
            Ok(found) => found,
            Err(status) => return refused(status),
        };
        let Some(found) = found else {
            let (exists, logical_end, fragment_end) = (false, 0, 0);
            let (corrupt, marks) = (Vec::new(), snap.marks);
            return (
                RecoveryReply::Summed { exists, logical_end, fragment_end, corrupt, marks },
                Bytes::new(),
            );
        };
        if !found.corrupt.is_empty() && snap.has_unapplied {
            // after a restart the file passes its checksums only when the journal was applied again
            if let Some(held) = state.shards.get_mut(&pg) {
                held.shard.let_go(object);
            }
            return (RecoveryReply::NotYet, Bytes::new());
        }
        for range in &found.corrupt {
            self.note_corrupt(&mut state, pg, object, range.clone());
        }
        if !found.is_header_good {
            tracing::warn!(%pg, %object, "the header on disk was damaged: written anew");
            (state.stats.corrupt_found, state.stats.corrupt_repaired) =
                (state.stats.corrupt_found + 1, state.stats.corrupt_repaired + 1);
        }
        let corrupt = found.corrupt.iter().map(|r| (r.start, r.end - r.start)).collect();
        let (logical_end, fragment_end) = (found.logical_end, found.fragment_end);
        let reply = RecoveryReply::Summed {
            exists: true,
            logical_end,
            fragment_end,
            corrupt,
            marks: snap.marks,
        };
        (reply, found.sums.into())
    }

    /// Inspects a range of a fragment that is pinned; `None`: there is no such fragment.
    pub(super) async fn inspect(
        &self,
        pg: PgId,
        object: ObjectId,
        range: Range<u64>,
        seed: Option<u64>,
        scrub: bool,
    ) -> Result<Option<Inspection>, Status> {
        let opened = {
            let mut state = self.shared.state.borrow_mut();
            let Some(key) = state.store.key(pg, object) else { return Err(Status::NotActive) };
            let fragments = &mut state.store.fragments;
            let linked = if scrub { fragments.forget_unlinked(key).map(drop) } else { Ok(()) };
            linked.and_then(|()| fragments.get(key))
        };
        let whole = |end| Inspection {
            is_header_good: true,
            logical_end: 0,
            fragment_end: 0,
            corrupt: std::iter::once(0..end).collect(),
            sums: Vec::new(),
        };
        let file: Arc<FragmentFile> = match opened {
            Ok(Some(file)) => file,
            Ok(None) => return Ok(None),
            // with its header the checksums of all sectors are lost
            Err(FragmentError::BadHeader { .. }) => {
                let end = self.view(pg).map_or(range.end, |view| view.pg.profile.fragment_bytes());
                return Ok(Some(whole(end)));
            }
            Err(error) => {
                tracing::error!(%error, "a fragment cannot be opened");
                return Err(Status::Io);
            }
        };
        let bytes = (range.end - range.start) as usize;
        let job = self.background(bytes, move || inspect(&file, &range, seed, scrub));
        match job.await {
            Ok(Ok(found)) => Ok(Some(found)),
            Ok(Err(error)) => {
                tracing::error!(%error, "a fragment cannot be read");
                Err(Status::Io)
            }
            Err(_) => Err(Status::Io),
        }
    }

    /// Notes that a range of a fragment here is wrong though it passes its checksums, or is
    /// missing.
    pub(super) fn mend(
        &self,
        pg: PgId,
        epoch: Epoch,
        object: ObjectId,
        range: Range<u64>,
        avoid: ShardSet,
    ) -> RecoveryReply {
        let Some(view) = self.view(pg).filter(|_| self.is_member(pg, epoch)) else {
            return RecoveryReply::Refused(Status::NotActive);
        };
        let limit = view.pg.profile.fragment_bytes();
        let range = range.start.min(limit)..range.end.min(limit);
        let mut state = self.shared.state.borrow_mut();
        if state.mends.len() >= REPAIRS_MAX && !state.mends.contains_key(&(pg, object)) {
            return RecoveryReply::NotYet;
        }
        if state.mends.insert((pg, object), (range.clone(), avoid)).is_none() {
            state.stats.corrupt_found += 1;
            tracing::warn!(%pg, %object, ?range, "the other shards are against these bytes: rebuilt from them");
        }
        state.repairs.push_back(Repair { pg, object, range, avoid });
        self.shared.repair.notify_all();
        RecoveryReply::Mending
    }
}

// ---- what the leading shard does

impl<O: Outlet> Core<O> {
    /// Does this core's shard lead the scrubs of the PG? `clean`: only if all shards are in sync.
    pub fn leads(&self, pg: PgId, clean: bool) -> bool {
        self.view(pg).is_some_and(|view| {
            let leads = view.pg.in_sync.iter().next() == Some(view.me);
            view.pg.active && leads && (!clean || view.pg.in_sync == view.pg.all())
        })
    }

    /// Scrubs a PG that this core's shard leads. `None`: its epoch is over, or it does not lead.
    pub async fn scrub<M: Members>(&self, pg: PgId, deep: bool, members: M) -> Option<Scrubbed> {
        let way = self.way(pg, members).filter(|_| self.leads(pg, false))?;
        let mut left: Vec<ObjectId> = way.objects().await?.into_iter().collect();
        let mut scrubbed = Scrubbed::default();
        let mut ordered = Vec::new();
        for round in 0..ROUNDS {
            if round > 0 && !left.is_empty() {
                self.shared.worker.sleep(SKIP_PAUSE).await;
            }
            for object in std::mem::take(&mut left) {
                match way.look(object, deep).await {
                    Seen::Over => return None,
                    Seen::Busy => left.push(object),
                    Seen::Whole(look) => {
                        scrubbed.totals.objects += 1;
                        scrubbed.totals.bytes += look.bytes;
                        if look.is_clean() {
                            continue;
                        }
                        match way.confirm(object, deep).await? {
                            Some(finding) if finding.wrong.is_empty() => {
                                scrubbed.findings.push(finding)
                            }
                            Some(_) => ordered.push(object),
                            // seen once: a checksum that its shard has repaired already
                            None => scrubbed.totals.repaired += 1,
                        }
                        scrubbed.totals.found += 1;
                    }
                }
            }
        }
        scrubbed.totals.skipped = left.len() as u64;
        for object in ordered {
            match way.wait_mended(object).await? {
                None => scrubbed.totals.repaired += 1,
                Some(finding) => scrubbed.findings.push(finding),
            }
        }
        scrubbed.totals.pgs = 1;
        Some(scrubbed)
    }

    /// The operator says that a shard of an object is wrong: has everything that does not match
    /// rebuilt there. Gives what is left to repair. `None`: the PG's epoch is over, or this core's
    /// shard does not lead.
    pub async fn repair_shard<M: Members>(
        &self,
        pg: PgId,
        object: ObjectId,
        shard: ShardIndex,
        members: M,
    ) -> Option<Option<Finding>> {
        let way = self.way(pg, members).filter(|_| self.leads(pg, false))?;
        for _ in 0..TRIES {
            match way.look(object, true).await {
                Seen::Over => return None,
                Seen::Busy => way.pause().await,
                Seen::Whole(look) if look.is_clean() => return Some(None),
                Seen::Whole(look) => {
                    let finding = look.finding(object);
                    way.order(shard, object, finding.range, ShardSet::only(shard)).await;
                    return way.wait_mended(object).await;
                }
            }
        }
        Some(Some(Finding { object, range: 0..0, wrong: ShardSet::EMPTY }))
    }
}

impl<O: Outlet, M: Members> Way<O, M> {
    fn in_sync(&self) -> Option<ShardSet> {
        self.shard(|shard| shard.view().pg.in_sync)
    }

    /// Asks a shard, which may be this one.
    async fn ask_any(
        &self,
        shard: ShardIndex,
        body: RecoveryBody,
    ) -> Option<(RecoveryReply, Bytes)> {
        if shard != self.me {
            return self.ask(shard, body).await;
        }
        let request = self.request(body);
        Some(self.core.scrub_answer(&request).await)
    }

    /// Every object that any in-sync shard has a fragment of.
    async fn objects(&self) -> Option<BTreeSet<ObjectId>> {
        let mut all = BTreeSet::new();
        for shard in self.in_sync()?.iter() {
            let (mut after, mut tries) = (None, 0);
            loop {
                match self.ask_any(shard, RecoveryBody::Objects { after }).await {
                    Some((RecoveryReply::Objects { objects, more }, _)) => {
                        after = objects.last().copied();
                        all.extend(objects);
                        if !more || after.is_none() {
                            break;
                        }
                    }
                    _ if tries < TRIES && self.is_current() => {
                        tries += 1;
                        self.pause().await;
                    }
                    _ => return None,
                }
            }
        }
        Some(all)
    }

    /// Compares the shards of an object.
    async fn look(&self, object: ObjectId, deep: bool) -> Seen {
        let Some(view) = self.shard(|shard| shard.view().clone()) else { return Seen::Over };
        let profile = view.pg.profile;
        let mut seed = deep.then(fresh_seed);
        let mut look = Look::default();
        let mut at = 0;
        loop {
            let length =
                self.core.shared.config.recovery_chunk_bytes.min(profile.fragment_bytes() - at);
            let Some(answers) = self.answers(object, at, length, seed).await else {
                return if self.is_current() { Seen::Busy } else { Seen::Over };
            };
            let exists = answers.iter().filter(|answer| answer.exists).count();
            if exists == 0 {
                return Seen::Whole(Look::default()); // deleted meanwhile
            }
            if seed.is_none() && exists < answers.len() {
                // whether the missing one was lost or never needed is for the sums to say
                (seed, at, look) = (Some(fresh_seed()), 0, Look::default());
                continue;
            }
            look.end = answers.iter().map(|answer| answer.fragment_end).fold(look.end, u64::max);
            let logical_end = answers.iter().map(|answer| answer.logical_end).max().unwrap_or(0);
            for answer in answers.iter().filter(|answer| !answer.corrupt.is_empty()) {
                look.corrupt = look.corrupt.with(answer.shard);
                let of = |&(start, length): &(u64, u64)| {
                    (start..start + length, ShardSet::only(answer.shard))
                };
                look.found.extend(answer.corrupt.iter().map(of));
            }
            if seed.is_some() {
                let may_be_lost = |shard, unit: usize| {
                    may_hold_data(profile, shard, at + (unit * SUM_UNIT_BYTES) as u64, logical_end)
                };
                let found = judge(&*self.codec, &comparable(&answers, length), may_be_lost);
                look.found.extend(found.iter().map(|m: &Mismatch| (m.bytes(at), m.wrong)));
            }
            look.bytes += answers.iter().filter(|answer| answer.exists).count() as u64
                * length.min(look.end.saturating_sub(at));
            self.pace(length).await;
            at += length;
            if at >= look.end.min(profile.fragment_bytes()) {
                return Seen::Whole(look);
            }
        }
    }

    async fn pace(&self, bytes: u64) {
        let wait = self.core.shared.state.borrow_mut().scrub_pace.take(bytes, Instant::now());
        if !wait.is_zero() {
            self.core.shared.worker.sleep(wait).await;
        }
    }

    /// The answers of all in-sync shards, of one cut. `None`: not now.
    async fn answers(
        &self,
        object: ObjectId,
        at: u64,
        length: u64,
        seed: Option<u64>,
    ) -> Option<Vec<Answer>> {
        let mut known = Known::new();
        for turn in 0..TRIES {
            let mut answers = Vec::new();
            let mut in_sync: Vec<ShardIndex> = self.in_sync()?.iter().collect();
            let shift = turn % in_sync.len().max(1);
            in_sync.rotate_left(shift);
            for &shard in &in_sync {
                let body =
                    self.shard(|pg| pg.scrub_body(object, at, length as u32, seed, &known))?;
                match self.ask_any(shard, body).await {
                    Some((
                        RecoveryReply::Summed { exists, logical_end, fragment_end, corrupt, marks },
                        sums,
                    )) => answers.push(Answer {
                        shard,
                        exists,
                        logical_end,
                        fragment_end,
                        corrupt,
                        marks,
                        sums,
                    }),
                    _ => break,
                }
            }
            if answers.len() == in_sync.len() {
                let marks: Vec<&[SessionMark]> =
                    answers.iter().map(|answer| &answer.marks[..]).collect();
                match clean_cut(Rules::default(), &marks) {
                    Ok(_) => {
                        answers.sort_unstable_by_key(|answer| answer.shard);
                        return Some(answers);
                    }
                    Err(greatest) => known = greatest,
                }
            }
            self.pause().await;
        }
        None
    }

    /// Looks again at what did not match, and orders what the evidence decides. `None`: it matches
    /// now.
    async fn confirm(&self, object: ObjectId, deep: bool) -> Option<Option<Finding>> {
        for _ in 0..TRIES {
            match self.look(object, deep).await {
                Seen::Over => return None,
                Seen::Busy => self.pause().await,
                Seen::Whole(look) if look.is_clean() => return Some(None),
                Seen::Whole(look) => {
                    let finding = look.finding(object);
                    // a shard rebuilds what fails its checksum unasked
                    for shard in finding.wrong.minus(look.corrupt).iter() {
                        self.order(shard, object, finding.range.clone(), finding.wrong).await;
                    }
                    return Some(Some(finding));
                }
            }
        }
        // it is being written all the time: the next scrub will see
        Some(None)
    }

    /// Has a shard rebuild a range.
    async fn order(&self, shard: ShardIndex, object: ObjectId, range: Range<u64>, avoid: ShardSet) {
        let unit = SUM_UNIT_BYTES as u64;
        let (offset, end) = (range.start / unit * unit, range.end);
        let limit = self.shard(|pg| pg.view().pg.profile.fragment_bytes()).unwrap_or(0);
        let length = end.min(limit).saturating_sub(offset);
        if shard == self.me {
            self.core.mend(self.pg, self.epoch(), object, offset..offset + length, avoid);
        } else {
            self.ask(shard, RecoveryBody::Mend { object, offset, length, avoid }).await;
        }
    }

    /// Waits until an object that is being repaired matches; gives what is still wrong when it
    /// takes too long.
    async fn wait_mended(&self, object: ObjectId) -> Option<Option<Finding>> {
        let mut last = Finding { object, range: 0..0, wrong: ShardSet::EMPTY };
        for _ in 0..MEND_LOOKS {
            self.core.shared.worker.sleep(MEND_PAUSE).await;
            match self.look(object, true).await {
                Seen::Over => return None,
                Seen::Busy => {}
                Seen::Whole(look) if look.is_clean() => return Some(None),
                Seen::Whole(look) => last = look.finding(object),
            }
        }
        Some(Some(last))
    }
}

/// The sums of shards whose bytes are good, zeros for those without a fragment.
fn comparable(answers: &[Answer], length: u64) -> Vec<ShardSums> {
    let of = |answer: &Answer| ShardSums {
        shard: answer.shard,
        exists: answer.exists,
        sums: comparable_sums(answer.exists, &answer.sums, length),
    };
    answers.iter().filter(|answer| answer.corrupt.is_empty()).map(of).collect()
}

/// The sums of a range as told, or those of zeros where there is no fragment.
pub(super) fn comparable_sums(exists: bool, sums: &Bytes, length: u64) -> Vec<u8> {
    if exists {
        sums.to_vec()
    } else {
        vec![0; (length as usize).div_ceil(SUM_UNIT_BYTES) * SUM_BYTES]
    }
}

/// Drawn for every look, so that what one set of sums misses another need not.
pub(super) fn fresh_seed() -> u64 {
    disk::random_u128().map_or_else(
        |error| {
            tracing::warn!(%error, "no random numbers from the system: the clock gives the seed");
            std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(1, |t| t.as_nanos() as u64)
        },
        |random| random as u64,
    )
}
