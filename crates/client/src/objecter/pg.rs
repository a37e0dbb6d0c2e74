//! A PG as its worker drives it: the protocol's writer-side machine, the connections to its shards,
//! who waits for what.
//!
//! Contract: one per worker and PG it owns. After every call of the machine its actions are carried
//! out, in order.

use super::Behind;
use super::local::Local;
use super::osd::{Hurry, OsdKey, OsdLink};
use super::wait::{Mark, Notify};
use super::window::{OnTheWay, Window, Windows};
use crate::error::ClientError;
use bytes::Bytes;
use ec_store::codec::Codec;
use ec_store::layout::Layout;
use ec_store::pg::{Action, NewWrite, PgSession, PgView, ReadToken, Refusal, Request, Space};
use protocol::shard::AckMessage;
use protocol::{Gfid, Kind, PgId, Seq, SessionId, ShardIndex, ShardSet};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

/// Files remembered as having unstable writes before those that are stable by now are forgotten.
const FILE_MARKS_PRUNE: usize = 256;

/// A write from its sending to its report.
struct Unreported {
    seq: Seq,
    _part: OnTheWay,
    behind: Option<Arc<dyn Behind>>,
}

/// See the module.
pub(crate) struct PgIo {
    pub pg: PgId,
    session: SessionId,
    pub layout: Layout,
    pub codec: Arc<dyn Codec>,
    machine: RefCell<PgSession>,
    links: RefCell<SmallVec<[Option<Rc<OsdLink>>; 4]>>,
    /// By shard, of the connection that it had last.
    windows: RefCell<SmallVec<[Option<Rc<Window>>; 4]>>,
    /// Writes not reported, in order.
    unreported: RefCell<VecDeque<Unreported>>,
    reported: Mark,
    stable: Mark,
    /// Attaches, connections or the view changed.
    changed: Notify,
    /// The last write to each file that may not be stable.
    file_marks: RefCell<HashMap<Gfid, Seq>>,
    /// Bytes kept by the machine as last counted.
    kept: Cell<usize>,
    /// Attaching has begun.
    used: Cell<bool>,
    /// The session is dead or the client closed: nothing will come any more.
    dead: Cell<bool>,
    /// When an empty record was last sent to learn how much room there is.
    pub probed: Cell<Option<Instant>>,
}

impl PgIo {
    pub fn new(session: SessionId, machine: PgSession, codec: Arc<dyn Codec>) -> Self {
        let profile = machine.view().profile;
        Self {
            pg: machine.pg(),
            session,
            layout: Layout::new(profile),
            codec,
            machine: RefCell::new(machine),
            links: RefCell::new(SmallVec::from_elem(None, usize::from(profile.shards()))),
            windows: RefCell::new(SmallVec::from_elem(None, usize::from(profile.shards()))),
            unreported: RefCell::default(),
            reported: Mark::default(),
            stable: Mark::default(),
            changed: Notify::default(),
            file_marks: RefCell::default(),
            kept: Cell::new(0),
            used: Cell::new(false),
            dead: Cell::new(false),
            probed: Cell::new(None),
        }
    }

    /// Every shard of the PG.
    pub fn all_shards(&self) -> ShardSet {
        ShardSet::first(self.layout.profile().shards())
    }

    /// The PG as the machine knows it.
    pub fn view(&self) -> PgView {
        *self.machine.borrow().view()
    }

    /// What changes when attaches, connections or the view do.
    pub fn changed(&self) -> &Notify {
        &self.changed
    }

    /// The connection to a shard's OSD.
    pub fn link(&self, shard: ShardIndex) -> Option<Rc<OsdLink>> {
        self.links.borrow().get(usize::from(shard.get())).cloned().flatten()
    }

    /// Puts the connections in place; those that changed end their attach.
    pub fn set_links(
        &self,
        local: &Local,
        now: Instant,
        links: SmallVec<[Option<Rc<OsdLink>>; 4]>,
    ) {
        let old = std::mem::replace(&mut *self.links.borrow_mut(), links.clone());
        for (window, link) in self.windows.borrow_mut().iter_mut().zip(&links) {
            *window = link.as_ref().map(|link| Rc::clone(&link.window)).or(window.take());
        }
        for ((shard, new), old) in (0u8..).zip(&links).zip(old) {
            let same = match (new, &old) {
                (Some(new), Some(old)) => Rc::ptr_eq(new, old),
                (None, None) => true,
                _ => false,
            };
            if !same {
                let up = new.as_ref().is_some_and(|link| link.is_up());
                self.machine.borrow_mut().connection(now, ShardIndex::new(shard), up);
            }
        }
        self.drive(local, now);
        self.changed.notify();
    }

    /// A newer view.
    pub fn learn(&self, local: &Local, now: Instant, view: PgView) {
        if view.epoch > self.view().epoch {
            // who is attached anew is told anew
            self.windows.borrow().iter().flatten().for_each(|window| window.hold(false));
        }
        self.machine.borrow_mut().learn(now, view);
        self.drive(local, now);
        self.changed.notify();
    }

    /// A connection came up or went down.
    pub fn connection(&self, local: &Local, now: Instant, key: OsdKey, up: bool) {
        if let Some(shard) = self.shard_at(key) {
            self.machine.borrow_mut().connection(now, shard, up);
            self.drive(local, now);
            self.changed.notify();
        }
    }

    /// Is nothing expected over that connection?
    pub fn is_at_rest(&self, key: OsdKey) -> bool {
        self.shard_at(key).is_none() || self.machine.borrow().is_at_rest()
    }

    fn shard_at(&self, key: OsdKey) -> Option<ShardIndex> {
        let links = self.links.borrow();
        let at = links.iter().position(|link| link.as_ref().is_some_and(|link| link.key == key))?;
        u8::try_from(at).ok().map(ShardIndex::new)
    }

    /// An acknowledgement.
    pub fn ack(&self, local: &Local, now: Instant, key: OsdKey, ack: &AckMessage) {
        let Some(shard) = self.shard_at(key) else { return };
        let mut machine = self.machine.borrow_mut();
        let state = |machine: &PgSession| (machine.readable(), machine.free_min().is_some());
        let was = state(&machine);
        machine.ack(now, shard, ack);
        let changed = state(&machine) != was;
        drop(machine);
        self.drive(local, now);
        if changed {
            self.changed.notify();
        }
    }

    /// Time passed.
    pub fn tick(&self, local: &Local, now: Instant) {
        let mut machine = self.machine.borrow_mut();
        let was = machine.readable();
        machine.tick(now);
        let changed = machine.readable() != was;
        drop(machine);
        self.drive(local, now);
        if changed {
            self.changed.notify();
        }
    }

    /// When [`PgIo::tick`] has something to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.machine.borrow().next_deadline()
    }

    /// Carries out what the machine wants, and counts what it keeps.
    fn drive(&self, local: &Local, now: Instant) {
        self.drive_and_send(local, now, Hurry::Now);
    }

    fn drive_and_send(&self, local: &Local, now: Instant, hurry: Hurry) {
        loop {
            let action = self.machine.borrow_mut().next_action();
            match action {
                None => break,
                Some(Action::Send { shard, request }) => self.send(shard, request, hurry),
                Some(Action::Reported(seq)) => self.note_reported(seq),
                Some(Action::Stable(seq)) => self.stable.reach(seq.get()),
                Some(Action::NeedMap(epoch)) => local.need_map(Some(epoch)),
                Some(Action::ShardFailed(shard)) => {
                    tracing::warn!(pg = %self.pg, %shard, "disk of the shard failed")
                }
                Some(Action::ShardLost(shard)) => {
                    tracing::error!(pg = %self.pg, %shard, "the shard lost data that it had on disk");
                }
                Some(Action::Fenced) => self.fenced(local),
            }
        }
        let machine = self.machine.borrow();
        let kept = machine.kept_bytes();
        let due = machine.next_deadline();
        drop(machine);
        local.kept_changed(self.kept.replace(kept), kept);
        if let Some(due) = due {
            local.tick_at(now, due);
        }
    }

    fn send(&self, shard: ShardIndex, request: Request, hurry: Hurry) {
        let Some(link) = self.link(shard) else { return };
        match request {
            Request::Attach(front) => {
                link.send(Kind::Attach, &front, Bytes::new(), None, Hurry::Now)
            }
            Request::Write(front, data, data_crc) => {
                link.send(Kind::Write, &front, data, data_crc, hurry)
            }
            Request::Mark(front) => link.send(Kind::Mark, &front, Bytes::new(), None, Hurry::Now),
        }
    }

    /// Numbers a write and sends it.
    pub fn write(
        &self,
        local: &Local,
        now: Instant,
        write: NewWrite,
        hurry: Hurry,
        space: Space,
    ) -> Result<Seq, ClientError> {
        self.check(local)?;
        let gfid = write.object.gfid;
        let taken = self.machine.borrow_mut().write_in(now, write, space);
        self.drive_and_send(local, now, hurry);
        let seq = taken.map_err(|refusal| match refusal {
            Refusal::NoSpace => self.no_space(),
            Refusal::Fenced => self.death(local),
            Refusal::Invalid => ClientError::Invalid(self.pg),
        })?;
        let mut marks = self.file_marks.borrow_mut();
        if marks.len() >= FILE_MARKS_PRUNE {
            marks.retain(|_, seq| seq.get() > self.stable.get());
        }
        marks.insert(gfid, seq);
        Ok(seq)
    }

    /// The error that names the fullest OSD, as far as known.
    pub fn no_space(&self) -> ClientError {
        let osd = self.links.borrow().iter().flatten().map(|link| link.key.osd).min();
        ClientError::NoSpace(osd.unwrap_or_default())
    }

    fn note_reported(&self, seq: Seq) {
        self.reported.reach(seq.get());
        let mut unreported = self.unreported.borrow_mut();
        while unreported.front().is_some_and(|first| first.seq <= seq) {
            unreported.pop_front();
        }
    }

    /// Gives a write's part of the windows back when it is reported, also if nobody waits for that
    /// any more, and drops what was left behind for it.
    pub fn hold_until_reported(&self, seq: Seq, part: OnTheWay, behind: Option<Arc<dyn Behind>>) {
        if seq.get() > self.reported.get() && !self.dead.get() {
            self.unreported.borrow_mut().push_back(Unreported { seq, _part: part, behind });
        }
    }

    /// The windows of those of these shards that are written to.
    pub fn windows(&self, shards: ShardSet) -> Windows {
        let windows = self.windows.borrow();
        let is_written = |shard: &ShardIndex| self.view().writers().contains(*shard);
        shards
            .iter()
            .filter(is_written)
            .filter_map(|shard| windows.get(usize::from(shard.get())).cloned().flatten())
            .collect()
    }

    /// Waits until a write is reported.
    pub async fn reported(&self, local: &Local, seq: Seq) -> Result<(), ClientError> {
        self.reach(local, &self.reported, seq).await
    }

    async fn reach(&self, local: &Local, mark: &Mark, seq: Seq) -> Result<(), ClientError> {
        if mark.get() < seq.get() {
            local.send_delayed();
        }
        poll_fn(|cx| match mark.poll_reached(cx, seq.get()) {
            Poll::Ready(()) => Poll::Ready(Ok(())),
            Poll::Pending => {
                self.check(local).map_or_else(|death| Poll::Ready(Err(death)), |()| Poll::Pending)
            }
        })
        .await
    }

    /// Waits until a file's writes up to now are reported.
    pub async fn file_reported(&self, local: &Local, gfid: Gfid) -> Result<(), ClientError> {
        self.reported(local, self.last_of(gfid)).await
    }

    /// The last write to a file, of those that may not be stable.
    fn last_of(&self, gfid: Gfid) -> Seq {
        self.file_marks.borrow().get(&gfid).copied().unwrap_or_default()
    }

    /// Makes a file's writes up to now stable, or all with `None`.
    pub async fn sync(&self, local: &Local, file: Option<Gfid>) -> Result<(), ClientError> {
        let upto = file.map_or_else(|| self.machine.borrow().marks().0, |gfid| self.last_of(gfid));
        if upto.get() <= self.stable.get() {
            return Ok(());
        }
        self.want_stable(local, Instant::now(), Some(upto));
        self.reach(local, &self.stable, upto).await
    }

    /// Asks for stability of everything written so far, or up to a number, without waiting.
    pub fn want_stable(&self, local: &Local, now: Instant, upto: Option<Seq>) {
        let last = self.machine.borrow().marks().0;
        self.machine.borrow_mut().want_stable(now, upto.unwrap_or(last));
        self.drive(local, now);
        local.send_delayed();
    }

    /// Bytes kept until stable.
    pub fn kept_bytes(&self) -> usize {
        self.kept.get()
    }

    /// Bytes that the fullest shard will still take, beside what may be on its way. `None` until
    /// all that are written to have told.
    pub fn room(&self) -> Option<u64> {
        self.machine.borrow().free_min()
    }

    /// Waits until [`PgIo::room`] is known; attaches if that has not happened.
    pub async fn room_known(&self, local: &Local) -> Result<(), ClientError> {
        while self.room().is_none() {
            self.check(local)?;
            let seen = self.changed.version();
            self.attach(local);
            self.changed.changed(seen).await;
        }
        Ok(())
    }

    /// Attaches, the first time.
    pub fn attach(&self, local: &Local) {
        if !self.used.replace(true) {
            let now = Instant::now();
            self.machine.borrow_mut().want_attached(now);
            self.drive(local, now);
        }
    }

    /// Shards that may be read over a connection that is up. Attaches if that has not happened.
    pub fn usable(&self, local: &Local) -> ShardSet {
        self.attach(local);
        let readable = self.machine.borrow().readable();
        let links = self.links.borrow();
        // none are there once the map has lost the PG
        let link =
            |shard: &ShardIndex| links.get(usize::from(shard.get())).and_then(Option::as_ref);
        let up = |shard: &ShardIndex| link(shard).is_some_and(|link| link.is_up());
        readable.iter().filter(up).fold(ShardSet::EMPTY, ShardSet::with)
    }

    /// What a read of the shard must carry.
    pub fn read_token(&self, shard: ShardIndex) -> Option<ReadToken> {
        self.machine.borrow().read_token(shard)
    }

    /// Rule ReadAttempt: is the shard still in the attach that the read was sent in?
    pub fn is_current(&self, shard: ShardIndex, token: &ReadToken) -> bool {
        !self.dead.get() && self.machine.borrow().is_current(shard, token.attach)
    }

    /// A read was told that its attach is not the shard's last, or that the shard lacks a write:
    /// attach anew.
    pub fn attach_anew(&self, local: &Local, shard: ShardIndex, token: &ReadToken) {
        if self.is_current(shard, token) {
            let now = Instant::now();
            let up = self.link(shard).is_some_and(|link| link.is_up());
            self.machine.borrow_mut().connection(now, shard, up);
            self.drive(local, now);
            self.changed.notify();
        }
    }

    /// An error if nothing is to be expected any more: its session is dead, or the client closed.
    pub fn check(&self, local: &Local) -> Result<(), ClientError> {
        if self.dead.get() { Err(self.death(local)) } else { Ok(()) }
    }

    /// The error of [`PgIo::check`].
    pub fn death(&self, local: &Local) -> ClientError {
        local.death(self.session)
    }

    /// A shard was told by the cluster that the session is dead.
    pub fn fenced(&self, local: &Local) {
        local.shared.fenced(self.session);
    }

    /// Ends it: whoever waits gets an error. Returns the files whose writes may be lost.
    pub fn kill(&self, local: &Local) -> Vec<Gfid> {
        self.dead.set(true);
        local.kept_changed(self.kept.replace(0), 0);
        let unreported = std::mem::take(&mut *self.unreported.borrow_mut());
        unreported
            .iter()
            .filter_map(|write| write.behind.as_ref())
            .for_each(|behind| behind.lost());
        self.reported.wake_all();
        self.stable.wake_all();
        self.changed.notify();
        let marks = self.file_marks.borrow();
        marks
            .iter()
            .filter(|(_, seq)| seq.get() > self.stable.get())
            .map(|(gfid, _)| *gfid)
            .collect()
    }

    /// Tells the shards that the session writes no more here; everything is stable. One whose
    /// connection rests is not called up for that: it learns from the map that the session has
    /// ended.
    pub fn close(&self, local: &Local) {
        let now = Instant::now();
        let resting = |(shard, link): (u8, &Option<Rc<OsdLink>>)| {
            link.as_ref().is_some_and(|link| link.is_resting()).then_some(ShardIndex::new(shard))
        };
        let resting: Vec<ShardIndex> =
            (0u8..).zip(self.links.borrow().iter()).filter_map(resting).collect();
        let mut machine = self.machine.borrow_mut();
        resting.into_iter().for_each(|shard| machine.connection(now, shard, false));
        machine.close();
        drop(machine);
        self.drive(local, now);
    }
}
