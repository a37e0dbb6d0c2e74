//! Reading a piece of an object: from the data shards, or decoded from any k when one is missing or
//! late.
//!
//! Contract: returns what the latest write numbered before it began left, whatever single shard
//! fails meanwhile. A decoding read keeps writes of its stripes out while it runs, so that its k
//! answers are of one state.

use super::local::Local;
use super::osd::OsdLink;
use super::pg::PgIo;
use super::plan::{Preference, ReadPlan, assemble, plan_read};
use super::range_lock::Mode;
use crate::config::ReadPolicy;
use crate::error::ClientError;
use bytes::Bytes;
use ec_store::pg::ReadToken;
use messenger::{Call, CallError, Message};
use protocol::shard::{ReadReply, Status};
use protocol::{Kind, ObjectId, ShardIndex, ShardSet};
use smallvec::SmallVec;
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use zerocopy::FromBytes;

/// First pause after every usable shard failed for a passing reason; doubles up to 32 times.
const SOFT_PAUSE: Duration = Duration::from_millis(5);
/// Pause before shards whose disk or checksum failed are asked again: one that found a bad sector
/// repairs it meanwhile.
const HARD_PAUSE: Duration = Duration::from_millis(200);
/// How often they are asked before the read fails.
const HARD_ROUNDS: u32 = 4;
/// Deadline of one request without a configured one: a connection that is dead is noticed well
/// before.
const CALL_DEADLINE: Duration = Duration::from_secs(15);

/// Why an attempt gave no bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Failure {
    /// A shard was attached anew, or is not attached: start over.
    Restart,
    /// The shard cannot answer now.
    Soft(ShardIndex),
    /// The shard's disk or checksum failed.
    Hard(ShardIndex),
    /// The session is dead.
    Fenced,
    /// The request makes no sense: a bug.
    Invalid,
}

/// The shards that failed this read so far.
#[derive(Default)]
pub(super) struct Failures {
    soft: ShardSet,
    soft_rounds: u32,
    hard: ShardSet,
    hard_rounds: u32,
}

impl Failures {
    /// Shards not to ask now.
    pub fn excluded(&self) -> ShardSet {
        self.soft.union(self.hard)
    }

    /// Remembers a failure, or says that it is final.
    pub fn add(&mut self, local: &Local, pg: &PgIo, failure: Failure) -> Result<(), ClientError> {
        match failure {
            Failure::Restart => {}
            Failure::Soft(shard) => self.soft = self.soft.with(shard),
            Failure::Hard(shard) => self.hard = self.hard.with(shard),
            Failure::Fenced => {
                pg.fenced(local);
                return Err(pg.death(local));
            }
            Failure::Invalid => return Err(ClientError::Invalid(pg.pg)),
        }
        Ok(())
    }

    /// Is it disks and checksums alone that leave too few shards?
    fn is_damage(&self, pg: &PgIo, serves: impl Fn(ShardSet) -> bool) -> bool {
        self.soft.is_empty() && !self.hard.is_empty() && !serves(pg.view().in_sync.minus(self.hard))
    }

    /// Nothing can be asked: waits for what may help, of a PG that was alive when `seen` was.
    /// `serves` says whether a set of shards would do.
    pub async fn wait(
        &mut self,
        local: &Local,
        pg: &PgIo,
        seen: u64,
        serves: impl Fn(ShardSet) -> bool,
    ) -> Result<(), ClientError> {
        if !self.soft.is_empty() {
            local.worker.sleep(SOFT_PAUSE * (1 << self.soft_rounds.min(5))).await;
            self.soft_rounds += 1;
            self.soft = ShardSet::EMPTY;
        } else if self.is_damage(pg, serves) {
            self.hard_rounds += 1;
            if self.hard_rounds >= HARD_ROUNDS {
                return Err(ClientError::Unreadable(pg.pg));
            }
            local.worker.sleep(HARD_PAUSE).await;
            self.hard = ShardSet::EMPTY;
        } else {
            pg.changed().changed(seen).await;
        }
        Ok(())
    }
}

/// A request to a shard, under way.
pub(super) struct Ask {
    shard: ShardIndex,
    token: ReadToken,
    link: Rc<OsdLink>,
    sent: Instant,
    call: Call,
    answer: Option<Message>,
}

/// Sends a request to a shard.
pub(super) fn ask(
    local: &Local,
    pg: &PgIo,
    kind: Kind,
    object: ObjectId,
    shard: ShardIndex,
    range: &Range<u64>,
) -> Result<Ask, Failure> {
    let token = pg.read_token(shard).ok_or(Failure::Restart)?;
    let link = pg.link(shard).filter(|link| link.is_up()).ok_or(Failure::Restart)?;
    let length = u32::try_from(range.end - range.start).unwrap_or(u32::MAX);
    let timeout = local.shared.config.timeout;
    let deadline = if timeout.is_zero() { CALL_DEADLINE } else { timeout };
    let call = link.call(kind, &token.request(object, range.start, length), deadline);
    Ok(Ask { shard, token, link, sent: Instant::now(), call, answer: None })
}

/// What an answer's status means; `Ok` for one that has bytes.
fn judge(local: &Local, pg: &PgIo, ask: &Ask, status: Status) -> Result<(), Failure> {
    match status {
        Status::Ok => Ok(()),
        Status::StaleEpoch | Status::NotActive => {
            local.need_map(None);
            Err(Failure::Soft(ask.shard))
        }
        Status::StaleAttach | Status::Behind => {
            pg.attach_anew(local, ask.shard, &ask.token);
            Err(Failure::Restart)
        }
        Status::Busy | Status::NoSpace => Err(Failure::Soft(ask.shard)),
        Status::Corrupt | Status::Io => Err(Failure::Hard(ask.shard)),
        Status::Fenced => Err(Failure::Fenced),
        Status::Invalid => Err(Failure::Invalid),
    }
}

/// Waits for all answers, failing as soon as one fails or a shard is attached anew. `status_of`
/// reads an answer's status, and the attach it belongs to where it says so; `late` always holds the
/// shards that have not answered.
pub(super) async fn gather(
    local: &Local,
    pg: &PgIo,
    asks: &mut [Ask],
    late: &Cell<ShardSet>,
    status_of: impl Fn(&Message) -> Option<(Status, Option<u64>)>,
) -> Result<(), Failure> {
    let mut seen = pg.changed().version();
    poll_fn(|cx| {
        let mut waiting = ShardSet::EMPTY;
        for ask in asks.iter_mut().filter(|ask| ask.answer.is_none()) {
            match poll_ask(cx, ask) {
                Poll::Pending => waiting = waiting.with(ask.shard),
                Poll::Ready(Err(_)) => return Poll::Ready(Err(Failure::Soft(ask.shard))),
                Poll::Ready(Ok(message)) => {
                    let Some((status, attach)) = status_of(&message) else {
                        return Poll::Ready(Err(Failure::Soft(ask.shard)));
                    };
                    // Rule: ReplyAid
                    if status == Status::Ok
                        && attach.is_some_and(|attach| attach != ask.token.attach.get())
                    {
                        return Poll::Ready(Err(Failure::Restart));
                    }
                    if let Err(failure) = judge(local, pg, ask, status) {
                        return Poll::Ready(Err(failure));
                    }
                    ask.link.measured(ask.sent.elapsed());
                    ask.answer = Some(message);
                }
            }
        }
        late.set(waiting);
        // Rule: ReadAttempt - one of its shards was attached anew.
        while pg.changed().version() != seen || waiting.is_empty() {
            if !asks.iter().all(|ask| pg.is_current(ask.shard, &ask.token)) {
                return Poll::Ready(Err(Failure::Restart));
            }
            if waiting.is_empty() {
                return Poll::Ready(Ok(()));
            }
            seen = pg.changed().version();
        }
        // Not changed since: this only makes sure of being woken.
        let _ = pg.changed().poll_changed(cx, seen);
        Poll::Pending
    })
    .await
}

fn poll_ask(cx: &mut Context<'_>, ask: &mut Ask) -> Poll<Result<Message, CallError>> {
    Pin::new(&mut ask.call).poll(cx)
}

impl Ask {
    /// The answer; an empty message before it came.
    pub fn into_answer(self) -> Option<(ShardIndex, Message)> {
        self.answer.map(|message| (self.shard, message))
    }
}

/// A read of a range of one object.
pub(super) struct Reader<'a> {
    pub local: &'a Rc<Local>,
    pub pg: &'a Rc<PgIo>,
    pub object: ObjectId,
    pub range: Range<u64>,
    /// The caller holds the range's stripes exclusively.
    pub locked: bool,
    pub policy: ReadPolicy,
}

/// Reads a range of an object; `locked` if the caller holds its stripes.
pub(super) async fn read_piece(
    local: &Rc<Local>,
    pg: &Rc<PgIo>,
    object: ObjectId,
    range: Range<u64>,
    locked: bool,
) -> Result<Bytes, ClientError> {
    let policy = if locked { ReadPolicy::Systematic } else { local.shared.config.read_policy };
    let reader = Reader { local, pg, object, range, locked, policy };
    let read = reader.run().await;
    // Damage on several shards may lie in different stripes, of which each has enough that is good.
    let cut_at =
        if matches!(read, Err(ClientError::Unreadable(_))) { reader.middle() } else { None };
    let Some(middle) = cut_at else { return read };
    let range = &reader.range;
    let first = Box::pin(read_piece(local, pg, object, range.start..middle, locked)).await?;
    let second = Box::pin(read_piece(local, pg, object, middle..range.end, locked)).await?;
    let mut both = local.worker.pool().take(first.len() + second.len());
    both.as_mut()[..first.len()].copy_from_slice(&first);
    both.as_mut()[first.len()..].copy_from_slice(&second);
    Ok(both.freeze())
}

impl Reader<'_> {
    async fn run(&self) -> Result<Bytes, ClientError> {
        let mut failures = Failures::default();
        loop {
            self.local.session_usable(self.pg).await?;
            let seen = self.pg.changed().version();
            let Some(plan) = self.plan(failures.excluded()) else {
                let serves = |set| {
                    plan_read(self.pg.layout, &self.range, set, &Preference::SYSTEMATIC).is_some()
                };
                if self.middle().is_some() && failures.is_damage(self.pg, serves) {
                    return Err(ClientError::Unreadable(self.pg.pg));
                }
                failures.wait(self.local, self.pg, seen, serves).await?;
                continue;
            };
            match self.hedged(&plan, failures.excluded()).await {
                Ok(bytes) => return Ok(bytes),
                Err(failure) => failures.add(self.local, self.pg, failure)?,
            }
        }
    }

    /// Where a range of several stripes may be cut in two; `None` for one stripe.
    fn middle(&self) -> Option<u64> {
        let cover = self.pg.layout.stripe_cover(&self.range);
        let stripe = self.pg.layout.profile().stripe_bytes();
        let stripes = (cover.end - cover.start) / stripe;
        (stripes > 1).then(|| cover.start + stripes / 2 * stripe)
    }

    fn plan(&self, excluded: ShardSet) -> Option<ReadPlan> {
        let usable = self.pg.usable(self.local).minus(excluded);
        let turn = match self.policy {
            ReadPolicy::RoundRobin => self.local.next_turn(),
            ReadPolicy::Hash => self.object.gfid.unique().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32,
            ReadPolicy::Systematic | ReadPolicy::Fastest => 0,
        };
        let latency: SmallVec<[u32; 16]> = match self.policy {
            ReadPolicy::Fastest => {
                let now = Instant::now();
                let of = |shard| self.pg.link(shard).map_or(u32::MAX, |link| link.latency(now));
                self.pg.all_shards().iter().map(of).collect()
            }
            _ => SmallVec::new(),
        };
        let preference = Preference { policy: self.policy, turn, latency: &latency };
        plan_read(self.pg.layout, &self.range, usable, &preference)
    }

    /// An attempt, and a second one beside it that avoids the shards that are late: once the others
    /// are enough, which they may become only when some of those asked have answered.
    async fn hedged(&self, plan: &ReadPlan, excluded: ShardSet) -> Result<Bytes, Failure> {
        let (late, unused) = (Cell::new(plan.shards()), Cell::new(ShardSet::EMPTY));
        let begin = Instant::now();
        let mut first = pin!(self.attempt(plan, &late));
        let delay = self.local.shared.config.hedge_delay;
        if delay.is_zero() {
            return first.await;
        }
        let (mut timer, mut is_over) = (pin!(self.local.worker.sleep(delay)), false);
        let early = poll_fn(|cx| {
            if let Poll::Ready(result) = first.as_mut().poll(cx) {
                return Poll::Ready(Err(result));
            }
            is_over = is_over || timer.as_mut().poll(cx).is_ready();
            let other = is_over.then(|| self.plan(excluded.union(late.get()))).flatten();
            other.map_or(Poll::Pending, |other| Poll::Ready(Ok(other)))
        })
        .await;
        let other = match early {
            Ok(other) => other,
            Err(result) => return result,
        };
        let _timed = self.local.times.hedge.stopwatch();
        let mut second = pin!(self.attempt(&other, &unused));
        let (mut first_failed, mut second_failed) = (None, false);
        poll_fn(|cx| {
            if first_failed.is_none()
                && let Poll::Ready(result) = first.as_mut().poll(cx)
            {
                match result {
                    Err(failure) if !second_failed => first_failed = Some(failure),
                    result => return Poll::Ready(result),
                }
            }
            if !second_failed && let Poll::Ready(result) = second.as_mut().poll(cx) {
                match (result, first_failed) {
                    (Ok(bytes), _) => {
                        self.give_up(late.get(), begin.elapsed());
                        return Poll::Ready(Ok(bytes));
                    }
                    (Err(_), Some(failure)) => return Poll::Ready(Err(failure)),
                    (Err(_), None) => second_failed = true,
                }
            }
            Poll::Pending
        })
        .await
    }

    /// These shards are waited for no longer. Their answers, which would tell how slow they are,
    /// will not be looked at: were that forgotten, the slowest would stay the one of which nothing
    /// bad is known.
    fn give_up(&self, late: ShardSet, waited: Duration) {
        late.iter().filter_map(|shard| self.pg.link(shard)).for_each(|link| link.overdue(waited));
    }

    async fn attempt(&self, plan: &ReadPlan, late: &Cell<ShardSet>) -> Result<Bytes, Failure> {
        let cover = self.pg.layout.stripe_cover(&self.range);
        let _guard = match plan.decode && !self.locked {
            true => Some(self.local.locks.lock(self.object, cover, Mode::Shared).await),
            false => None,
        };
        let mut asks: SmallVec<[Ask; 4]> = SmallVec::new();
        for (shard, range) in &plan.asks {
            asks.push(ask(self.local, self.pg, Kind::Read, self.object, *shard, range)?);
        }
        let status_of = |message: &Message| {
            let (reply, _) = ReadReply::read_from_prefix(&message.front).ok()?;
            (message.kind == Kind::ReadReply.to_u16())
                .then(|| (Status::from_u8(reply.status), Some(reply.attach.get())))
        };
        gather(self.local, self.pg, &mut asks, late, status_of).await?;
        let answers: SmallVec<[Bytes; 4]> = asks
            .into_iter()
            .filter_map(Ask::into_answer)
            .map(|(_, message)| message.data)
            .collect();
        self.assemble(plan, &answers).ok_or(Failure::Invalid)
    }

    fn assemble(&self, plan: &ReadPlan, answers: &[Bytes]) -> Option<Bytes> {
        let (layout, length) = (self.pg.layout, (self.range.end - self.range.start) as usize);
        // One data shard, all bytes there: the answer is the data.
        if layout.profile().k() == 1
            && let ([(_, ask)], [answer]) = (plan.asks.as_slice(), answers)
        {
            let from = (self.range.start - ask.start) as usize;
            if answer.len() >= from + length {
                return Some(answer.slice(from..from + length));
            }
        }
        let mut out = self.local.worker.pool().take(length);
        assemble(layout, &*self.pg.codec, &self.range, plan, answers, out.as_mut())?;
        Some(out.freeze())
    }
}
