//! The writer's side of the protocol: one machine for each (session, PG).
//!
//! Contract: no I/O and no clock; the owner passes time and messages in and takes [`Action`]s out
//! with [`PgSession::next_action`] after every call, in order. Writes are numbered by
//! [`PgSession::write`], sent to every shard that takes part, kept until stable, and sent again to
//! a shard that lost them. Messages to one shard must reach it in the order of the actions for as
//! long as the owner does not report its connection as reset.
//!
//! What the owner must do: tell the machine the state of its connections
//! ([`PgSession::connection`]) and every newer view ([`PgSession::learn`]), call
//! [`PgSession::tick`] at [`PgSession::next_deadline`], hold new writes back while
//! [`PgSession::kept_bytes`] is over its limit (calling [`PgSession::want_stable`] then), and start
//! a read over when one of its shards is no longer in the attach it was sent in
//! ([`PgSession::is_current`]).

mod link;
mod records;
#[cfg(test)]
mod tests;

pub use records::{NewWrite, Piece, WritePieces};

use super::view::PgView;
use bytes::Bytes;
use link::{Link, Stage};
use protocol::shard::{
    AckMessage, AttachRequest, MarkRequest, Op, ReadRequest, ShardHead, Status, WriteRequest,
};
use protocol::{
    AttachId, Epoch, ObjectId, PgId, Rule, Rules, Seq, SessionId, ShardIndex, ShardSet,
};
use records::Records;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Waiting times of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SessionSettings {
    /// An answer that does not come for so long makes the session attach anew. Well above one disk
    /// sync: 5 s.
    pub ack_deadline: Duration,
    /// First delay before an attach is tried again after a refusal; doubles up to 64 times: 10 ms.
    pub retry_delay: Duration,
    /// Delay before records are sent again to a shard without room: 5 ms.
    pub busy_delay: Duration,
    /// A stable mark that no other message carries is sent after so long: 50 ms.
    pub mark_delay: Duration,
    /// How often a full shard is asked whether it has room again: 500 ms.
    pub probe_interval: Duration,
    /// The protocol's rules that hold: all.
    pub rules: Rules,
}

impl Default for SessionSettings {
    fn default() -> Self {
        Self {
            ack_deadline: Duration::from_secs(5),
            retry_delay: Duration::from_millis(10),
            busy_delay: Duration::from_millis(5),
            mark_delay: Duration::from_millis(50),
            probe_interval: Duration::from_millis(500),
            rules: Rules::default(),
        }
    }
}

/// A message to a shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// [`protocol::Kind::Attach`]
    Attach(AttachRequest),
    /// [`protocol::Kind::Write`] with its data segment, and that one's CRC32C if it is known.
    Write(WriteRequest, Bytes, Option<u32>),
    /// [`protocol::Kind::Mark`]
    Mark(MarkRequest),
}

/// What the owner of a session must do or know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Send this to the shard, one-way, in order.
    Send {
        /// To whom.
        shard: ShardIndex,
        /// What.
        request: Request,
    },
    /// All writes up to here are done: every in-sync shard that they touch has them.
    Reported(Seq),
    /// All writes up to here are durable on every shard that they touch: what fsync waits for.
    Stable(Seq),
    /// A shard knows a newer epoch than this session: get the map.
    NeedMap(Epoch),
    /// The shard's disk failed; it is tried again until the map says that it left.
    ShardFailed(ShardIndex),
    /// An in-sync shard lacks a write that it had durably: its disk lost data, and it should leave
    /// the in-sync set.
    ShardLost(ShardIndex),
    /// The cluster counts this session as dead. Outcomes of writes not yet stable are unknown;
    /// nothing more is sent.
    Fenced,
}

/// Where the space for a write's bytes is to come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Space {
    /// From what disks have left: none are written once one is full.
    OfDisk,
    /// The range has its space on all shards.
    Reserved,
}

/// Why a write was not taken; nothing of it has left.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// A shard has no room for more data. Ops other than [`Op::Write`] are taken.
    #[error("a storage daemon of the placement group is full")]
    NoSpace,
    /// The session is dead.
    #[error("the session was fenced")]
    Fenced,
    /// The pieces are no write to this PG: none, a shard twice or unknown, unaligned, or data of
    /// another length.
    #[error("the pieces do not make a write of this placement group")]
    Invalid,
}

/// What a read request to a shard must carry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadToken {
    /// Head of the request.
    pub head: ShardHead,
    /// The attach, for [`PgSession::is_current`] and to compare with the reply's.
    pub attach: AttachId,
    /// The session's last write to this shard. Rule: ReadAfter.
    pub after: Seq,
}

impl ReadToken {
    /// The request for a range of an object's fragment, in bytes.
    pub fn request(&self, object: ObjectId, offset: u64, length: u32) -> ReadRequest {
        let after = self.after.get().into();
        ReadRequest {
            head: self.head,
            after,
            object: object.into(),
            offset: offset.into(),
            length: length.into(),
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct PgSession {
    session: SessionId,
    view: PgView,
    settings: SessionSettings,
    links: Vec<Link>,
    records: Records,
    /// Reads or writes have begun: attach, now and in every later epoch.
    used: bool,
    fenced: bool,
    reported: Seq,
    /// Every write up to here is held by all that must, in their current attaches. Falls back when
    /// one detaches.
    held: Seq,
    wanted_stable: Seq,
    /// When stable last moved beyond what some shard was told.
    mark_due: Option<Instant>,
    actions: VecDeque<Action>,
}

impl PgSession {
    /// A session that has not touched the PG yet. It attaches at the first write or
    /// [`PgSession::want_attached`].
    pub fn new(session: SessionId, view: PgView, settings: SessionSettings) -> Self {
        Self {
            session,
            links: (0..view.profile.shards()).map(|_| Link::new()).collect(),
            view,
            settings,
            records: Records::default(),
            used: false,
            fenced: false,
            reported: Seq::default(),
            held: Seq::default(),
            wanted_stable: Seq::default(),
            mark_due: None,
            actions: VecDeque::new(),
        }
    }

    /// What is to be done next; `None`: nothing until the next call.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The PG.
    pub fn pg(&self) -> PgId {
        self.view.pg
    }

    /// The PG as this session knows it.
    pub fn view(&self) -> &PgView {
        &self.view
    }

    /// A newer view; others are ignored. All attaches end.
    pub fn learn(&mut self, now: Instant, view: PgView) {
        if view.epoch <= self.view.epoch || view.pg != self.view.pg {
            return;
        }
        self.view = view;
        for link in &mut self.links {
            link.detach(None, self.settings.rules);
            link.failures = 0;
        }
        self.hold_anew();
        self.greet_all(now);
    }

    /// The connection to the OSD of `shard` is up, or was reset: what was under way may or may not
    /// have arrived.
    pub fn connection(&mut self, now: Instant, shard: ShardIndex, up: bool) {
        let Some(link) = self.links.get_mut(usize::from(shard.get())) else { return };
        link.connected = up;
        link.failures = 0;
        self.detach(shard, None);
        self.greet_all(now);
    }

    /// Attaches to all shards, if that has not happened, as a read needs it.
    pub fn want_attached(&mut self, now: Instant) {
        if !self.used {
            self.used = true;
            self.greet_all(now);
        }
    }

    /// [`PgSession::write_in`] with space that the disks must have.
    ///
    /// # Errors
    /// [`Refusal`]: nothing was sent.
    pub fn write(&mut self, now: Instant, write: NewWrite) -> Result<Seq, Refusal> {
        self.write_in(now, write, Space::OfDisk)
    }

    /// Numbers a write and sends it. It is reported later, by [`Action::Reported`] with this number
    /// or a greater one.
    ///
    /// # Errors
    /// [`Refusal`]: nothing was sent.
    pub fn write_in(
        &mut self,
        now: Instant,
        write: NewWrite,
        space: Space,
    ) -> Result<Seq, Refusal> {
        if self.fenced {
            return Err(Refusal::Fenced);
        }
        if !self.is_valid(&write) {
            return Err(Refusal::Invalid);
        }
        if write.op == Op::Write && space == Space::OfDisk && self.free_min() == Some(0) {
            return Err(Refusal::NoSpace);
        }
        self.want_attached(now);
        let seq = self.records.push(write);
        let touch = self.records.get(seq).map_or(ShardSet::EMPTY, |kept| kept.touch);
        for shard in touch.intersection(self.view.writers()).iter() {
            if self.link(shard).is_open() {
                self.send_record(now, shard, seq);
            }
        }
        self.advance(now);
        Ok(seq)
    }

    fn is_valid(&self, write: &NewWrite) -> bool {
        let sector = u64::from(protocol::Profile::SECTOR_BYTES);
        let fits =
            |p: &Piece| p.data.len() == if write.op == Op::Write { p.length as usize } else { 0 };
        let aligned = |p: &Piece| {
            p.offset.is_multiple_of(sector) && u64::from(p.length).is_multiple_of(sector)
        };
        let distinct = write.pieces.iter().fold(ShardSet::EMPTY, |set, (s, _)| set.with(*s));
        !write.pieces.is_empty()
            && distinct.len() as usize == write.pieces.len()
            && distinct.minus(self.view.all()).is_empty()
            && write.pieces.iter().all(|(_, p)| fits(p) && aligned(p))
    }

    /// An answer from a shard, over the connection that its requests take.
    pub fn ack(&mut self, now: Instant, shard: ShardIndex, ack: &AckMessage) {
        let (epoch, rules) = (Epoch::new(ack.epoch.get()), self.settings.rules);
        let Some(link) = self.links.get_mut(usize::from(shard.get())) else { return };
        // Rule: ReplyAid - what belongs to another attach says nothing of this one.
        let other = ack.attach.get() != link.aid || matches!(link.stage, Stage::Idle { .. });
        if self.fenced || ack.pg.get() != self.view.pg.to_u64() || other && rules.on(Rule::ReplyAid)
        {
            return;
        }
        let status = Status::from_u8(ack.status);
        if !matches!(status, Status::StaleEpoch | Status::NotActive | Status::Fenced) {
            link.free = Some(ack.free.get());
        }
        let hello = ack.flags & AckMessage::HELLO != 0;
        match status {
            // Rule: EpochCheck, ReplyAid - an attach belongs to one epoch.
            Status::Ok
                if epoch != self.view.epoch
                    && rules.on(Rule::EpochCheck)
                    && rules.on(Rule::ReplyAid) => {}
            Status::Ok => self.ack_ok(now, shard, ack, hello),
            Status::Busy | Status::NoSpace => {
                let resend_at = Some(now + self.settings.busy_delay);
                self.ack_ok(now, shard, ack, hello);
                let link = self.link_mut(shard);
                if link.is_attached() {
                    (link.stage, link.refused) = (Stage::Attached { resend_at }, true);
                    link.waiting_since = None;
                }
            }
            Status::Behind if link.refused => {}
            Status::Fenced => {
                self.fenced = true;
                self.actions.push_back(Action::Fenced);
            }
            Status::StaleEpoch | Status::NotActive => {
                if epoch > self.view.epoch {
                    self.actions.push_back(Action::NeedMap(epoch));
                }
                self.retry(now, shard);
            }
            Status::Io => {
                self.actions.push_back(Action::ShardFailed(shard));
                self.retry(now, shard);
            }
            Status::Behind | Status::StaleAttach | Status::Corrupt | Status::Invalid => {
                self.retry(now, shard)
            }
        }
    }

    fn ack_ok(&mut self, now: Instant, shard: ShardIndex, ack: &AckMessage, hello: bool) {
        let takes_any = !self.has(Rule::ReplyAid);
        let link = self.link_mut(shard);
        if !link.is_attached() && !hello && !takes_any {
            return;
        }
        let greeted = hello && link.stage == Stage::Greeting;
        let (tail, durable) = (Seq::new(ack.tail.get()), Seq::new(ack.durable.get()));
        let moved = greeted || tail > link.tail || durable > link.durable;
        (link.tail, link.durable) = (link.tail.max(tail), link.durable.max(durable));
        if moved {
            link.refused = false;
        }
        if greeted {
            link.stage = Stage::Attached { resend_at: None };
            link.failures = 0;
            self.resend(now, shard, tail);
            // the mark may have moved while the attach was under way, and nothing else may ever
            // carry it
            if self.link(shard).marked < self.records.stable() {
                self.mark_due.get_or_insert(now + self.settings.mark_delay);
            }
        }
        if moved || self.link(shard).waiting_since.is_some_and(|_| !self.is_waiting(shard)) {
            self.link_mut(shard).progressed(now);
        }
        self.advance(now);
    }

    fn is_waiting(&self, shard: ShardIndex) -> bool {
        let link = self.link(shard);
        link.tail < link.sent || link.durable < link.sync_asked
    }

    /// Makes everything up to `seq` stable soon: shards that lag are asked to sync.
    /// [`Action::Stable`] tells when.
    pub fn want_stable(&mut self, now: Instant, seq: Seq) {
        self.wanted_stable = self.wanted_stable.max(seq.min(self.records.last()));
        if self.wanted_stable > self.records.stable() {
            for shard in self.view.writers().iter() {
                self.ask_sync(now, shard);
            }
        }
    }

    /// The session writes no more to this PG; for use when everything is stable. Shards may forget
    /// it.
    pub fn close(&mut self) {
        for shard in
            self.view.writers().iter().filter(|&s| self.link(s).is_attached()).collect::<Vec<_>>()
        {
            self.send_mark(shard, MarkRequest::CLOSE);
        }
    }

    /// Time passed: resends, new attaches, marks.
    pub fn tick(&mut self, now: Instant) {
        if self.fenced {
            return;
        }
        for shard in self.view.writers().iter() {
            let deadline = self.settings.ack_deadline;
            let link = self.link_mut(shard);
            if link.waiting_since.is_some_and(|since| now >= since + deadline) {
                self.retry(now, shard);
            } else if let Stage::Attached { resend_at: Some(at) } = link.stage
                && now >= at
            {
                link.stage = Stage::Attached { resend_at: None };
                let tail = link.tail;
                self.resend(now, shard, tail);
            }
            self.probe(now, shard);
        }
        self.greet_all(now);
        if self.mark_due.is_some_and(|at| now >= at) {
            self.mark_due = None;
            for shard in self.view.writers().iter() {
                if self.link(shard).is_attached() && self.link(shard).marked < self.records.stable()
                {
                    self.send_mark(shard, 0);
                }
            }
        }
    }

    /// When [`PgSession::tick`] has something to do, as far as known.
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.fenced {
            return None;
        }
        let writers = self.view.writers();
        let of_link = |shard: ShardIndex| {
            let link = self.link(shard);
            let stage = match link.stage {
                Stage::Idle { retry_at } if link.connected && self.used && self.view.active => {
                    retry_at
                }
                Stage::Attached { resend_at } => resend_at,
                _ => None,
            };
            let overdue = link.waiting_since.map(|since| since + self.settings.ack_deadline);
            let full = link.free == Some(0) && link.is_attached();
            let probe = link.probed.filter(|_| full).map(|at| at + self.settings.probe_interval);
            stage.into_iter().chain(overdue).chain(probe).min()
        };
        writers.iter().filter_map(of_link).chain(self.mark_due).min()
    }

    /// Is everything written stable, and nothing expected of any shard?
    pub fn is_at_rest(&self) -> bool {
        self.records.last() == self.records.stable() && self.next_deadline().is_none()
    }

    /// Bytes of memory held by writes that are not stable yet.
    pub fn kept_bytes(&self) -> usize {
        self.records.bytes()
    }

    /// The last write, the last reported one and the last stable one.
    pub fn marks(&self) -> (Seq, Seq, Seq) {
        (self.records.last(), self.reported, self.records.stable())
    }

    /// Bytes that the fullest shard will still take, of those that new writes go to; 0: full.
    /// `None` until all of them have told.
    pub fn free_min(&self) -> Option<u64> {
        let mut told = self.view.writers().iter().map(|shard| self.link(shard).free);
        let first = told.next()??;
        told.try_fold(first, |least, free| Some(least.min(free?)))
    }

    /// Is the session attached to the shard?
    pub fn attached(&self, shard: ShardIndex) -> bool {
        self.links.get(usize::from(shard.get())).is_some_and(Link::is_attached)
    }

    /// Shards that may be read: in sync and attached. Empty while the PG is not active.
    pub fn readable(&self) -> ShardSet {
        let attached = |s: &ShardIndex| self.attached(*s);
        match (self.view.active || !self.has(Rule::ActiveOnly)) && !self.fenced {
            true => self.view.in_sync.iter().filter(attached).fold(ShardSet::EMPTY, ShardSet::with),
            false => ShardSet::EMPTY,
        }
    }

    /// What a read of the shard must carry, if it is readable.
    pub fn read_token(&self, shard: ShardIndex) -> Option<ReadToken> {
        let readable = self.readable().contains(shard);
        let attach = AttachId::new(self.link(shard).aid);
        readable.then(|| ReadToken {
            head: self.head(shard),
            attach,
            after: self.records.last_on(shard),
        })
    }

    /// Is the shard still in this attach? Rule: ReadAttempt - a read is started over on all its
    /// shards if not.
    pub fn is_current(&self, shard: ShardIndex, attach: AttachId) -> bool {
        !self.has(Rule::ReadAttempt) || self.attached(shard) && self.link(shard).aid == attach.get()
    }

    /// Was the session declared dead?
    pub fn is_fenced(&self) -> bool {
        self.fenced
    }

    // ---- sending

    fn link(&self, shard: ShardIndex) -> &Link {
        &self.links[usize::from(shard.get())]
    }

    fn link_mut(&mut self, shard: ShardIndex) -> &mut Link {
        &mut self.links[usize::from(shard.get())]
    }

    fn head(&self, shard: ShardIndex) -> ShardHead {
        let attach = AttachId::new(self.link(shard).aid);
        ShardHead::new(self.view.pg, self.view.epoch, self.session, attach, self.records.stable())
    }

    fn send(&mut self, shard: ShardIndex, request: Request) {
        self.link_mut(shard).marked = self.records.stable();
        self.actions.push_back(Action::Send { shard, request });
    }

    fn send_record(&mut self, now: Instant, shard: ShardIndex, seq: Seq) {
        let head = self.head(shard);
        let Some(request) = self.records.get(seq).and_then(|kept| kept.message(seq, shard, head))
        else {
            return;
        };
        let link = self.link_mut(shard);
        link.sent = link.sent.max(seq);
        link.expect(now);
        self.send(shard, request);
    }

    fn send_mark(&mut self, shard: ShardIndex, flags: u16) {
        let head = self.head(shard);
        self.send(shard, Request::Mark(MarkRequest { head, flags: flags.into() }));
    }

    /// Attaches wherever that is due.
    fn greet_all(&mut self, now: Instant) {
        if !self.used || self.fenced || !self.view.active && self.has(Rule::ActiveOnly) {
            return;
        }
        for shard in self.view.writers().iter() {
            let link = self.link(shard);
            let due = matches!(link.stage, Stage::Idle { retry_at } if retry_at.is_none_or(|at| now >= at));
            if link.connected && due {
                let rules = self.settings.rules;
                self.link_mut(shard).greet(now, rules);
                let owed = self.link(shard).owed.get().into(); // Rule: JoinOwed - what the shard must have to join.
                let head = self.head(shard);
                self.send(shard, Request::Attach(AttachRequest { head, owed }));
            }
        }
    }

    /// Sends whatever the attached shard lacks, which holds everything up to `tail`.
    fn resend(&mut self, now: Instant, shard: ShardIndex, tail: Seq) {
        let last_on = self.records.last_on(shard);
        let complete =
            self.records.after(Seq::default(), shard).next().map_or(last_on, |(_, kept)| {
                // the record before the first one kept is stable: an in-sync shard has it
                kept.pred(shard).unwrap_or_default()
            });
        if tail < complete && self.view.in_sync.contains(shard) {
            self.actions.push_back(Action::ShardLost(shard));
        }
        let reported = self.reported;
        let resent = |seq: &Seq| self.has(Rule::KeepUntilStable) || *seq > reported;
        let lacking: Vec<Seq> =
            self.records.after(tail, shard).map(|(seq, _)| seq).filter(resent).collect();
        for seq in lacking {
            self.send_record(now, shard, seq);
        }
        self.link_mut(shard).sync_asked = Seq::default();
        self.ask_sync(now, shard);
    }

    /// Asks the shard to sync if a wanted write may not be durable there and that was not asked
    /// yet.
    fn ask_sync(&mut self, now: Instant, shard: ShardIndex) {
        let touched =
            |&seq: &u64| self.records.get(Seq::new(seq)).is_some_and(|k| k.touch.contains(shard));
        let unstable = self.records.stable().get() + 1..=self.wanted_stable.get();
        let Some(need) = unstable.rev().find(touched).map(Seq::new) else { return };
        let link = self.link_mut(shard);
        if link.is_open() && link.durable < need && link.sync_asked < need {
            link.sync_asked = link.sent.max(need);
            link.expect(now);
            self.send_mark(shard, MarkRequest::SYNC);
        }
    }

    /// A full shard is asked now and then whether it has room again: nothing else would make it
    /// speak.
    fn probe(&mut self, now: Instant, shard: ShardIndex) {
        let interval = self.settings.probe_interval;
        let link = self.link_mut(shard);
        if link.free == Some(0)
            && link.is_attached()
            && link.probed.is_none_or(|at| now >= at + interval)
        {
            link.probed = Some(now);
            self.send_mark(shard, MarkRequest::SYNC);
        }
    }

    // ---- marks

    fn detach(&mut self, shard: ShardIndex, retry_at: Option<Instant>) {
        let rules = self.settings.rules;
        self.link_mut(shard).detach(retry_at, rules);
        self.hold_anew();
    }

    /// Rule: ReportAgain - what is not stable must be held again before later writes are reported.
    fn hold_anew(&mut self) {
        if self.has(Rule::ReportAgain) {
            self.held = self.records.stable();
        }
    }

    fn has(&self, rule: Rule) -> bool {
        self.settings.rules.on(rule)
    }

    fn retry(&mut self, now: Instant, shard: ShardIndex) {
        let base = self.settings.retry_delay;
        let delay = self.link_mut(shard).back_off(base);
        self.detach(shard, Some(now + delay));
    }

    /// Moves the reported and the stable mark as far as the shards' marks allow.
    fn advance(&mut self, now: Instant) {
        // Nobody may answer for a set that is only proposed; an empty one would say yes to
        // everything.
        if self.has(Rule::ActiveOnly) && !self.view.active {
            return;
        }
        let old_stable = self.records.stable();
        let lacks = |mark: fn(&Link) -> Seq, of: ShardSet, seq: Seq| {
            let touch = self.records.get(seq).map_or(ShardSet::EMPTY, |kept| kept.touch);
            touch.intersection(of).iter().filter(|s| mark(self.link(*s)) < seq).count()
        };
        // Rule: AckAll, AckJoiner - every in-sync and every joining shard that a write touches must
        // have it.
        let (ackers, missing_max) =
            (self.witnesses(Rule::AckJoiner), usize::from(!self.has(Rule::AckAll)));
        let first = self.held.max(old_stable);
        let numbers = first.get() + 1..=self.records.last().get();
        let is_held = |q: &u64| lacks(|l| l.tail, ackers, Seq::new(*q)) <= missing_max;
        // Rule: ReportPrefix - in order, never past one that is lacking.
        let held = match self.has(Rule::ReportPrefix) {
            true => numbers.take_while(is_held).last(),
            false => numbers.rev().find(is_held),
        };
        let held = held.map_or(first, Seq::new);
        // Rule: StableDurable, StableJoiner - durable on all of them, joining ones too.
        let syncers = self.witnesses(Rule::StableJoiner);
        let mark =
            if self.has(Rule::StableDurable) { |l: &Link| l.durable } else { |l: &Link| l.tail };
        let numbers = old_stable.get() + 1..=self.records.last().get();
        let stable = numbers.take_while(|&q| lacks(mark, syncers, Seq::new(q)) == 0).last();
        let stable = stable.map_or(old_stable, Seq::new);
        self.held = held;
        self.report(held);
        if stable > old_stable {
            self.report(stable);
            self.records.release(stable);
            self.held = self.held.max(stable);
            self.mark_due.get_or_insert(now + self.settings.mark_delay);
            self.actions.push_back(Action::Stable(stable));
        }
    }

    /// The shards that must have a write: with this rule the joining ones, too.
    fn witnesses(&self, rule: Rule) -> ShardSet {
        if self.has(rule) { self.view.writers() } else { self.view.in_sync }
    }

    fn report(&mut self, upto: Seq) {
        if upto <= self.reported {
            return;
        }
        for seq in self.reported.get() + 1..=upto.get() {
            let touch = self.records.get(Seq::new(seq)).map_or(ShardSet::EMPTY, |kept| kept.touch);
            touch.iter().for_each(|s| self.links[usize::from(s.get())].owed = Seq::new(seq));
        }
        self.reported = upto;
        self.actions.push_back(Action::Reported(upto));
    }
}
