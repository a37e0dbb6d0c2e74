//! A worker's share of the client: its PGs, its connections, its bounds.
//!
//! Contract: kept on its worker ([`Worker::set_local`]), which belongs to one client. No locks:
//! other threads reach it by tasks posted to the worker.

use super::delay::{DELAY_MAX, Delayed};
use super::osd::{OsdKey, OsdLink, OsdService};
use super::pg::PgIo;
use super::range_lock::RangeLocks;
use super::tails::Tails;
use super::wait::{Budget, Notify, Permit};
use super::window::{Window, window_bytes};
use crate::error::ClientError;
use crate::session::Shared;
use cluster::ClusterMap;
use ec_store::codec::{self, Codec};
use ec_store::pg::{PgSession, PgView, SessionSettings};
use messenger::{CloseReason, ConnectConfig, Layer, Operation, OperationTable, StateEvent, Worker};
use protocol::shard::AckMessage;
use protocol::{Epoch, Gfid, ObjectId, OsdId, PgId, PoolId, Profile, SessionId};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

/// Calls `f` with the worker's state, if it is a client's worker.
pub(crate) fn with(worker: &Worker, f: impl FnOnce(&Rc<Local>)) {
    if let Some(local) = worker.local::<Local>() {
        f(&local);
    }
}

/// How often at most shards are asked to sync because much is kept.
const ASK_STABLE_INTERVAL: Duration = Duration::from_millis(20);
/// Pause before a connection that ended for good is made anew.
const RECONNECT_PAUSE: Duration = Duration::from_secs(1);
/// Least time between two rounds of the ticker.
const TICK_MIN: Duration = Duration::from_millis(1);
/// How often I/O looks whether the session was renewed after its time ran out.
const LEASE_POLL: Duration = Duration::from_millis(20);

/// See the module.
pub(crate) struct Local {
    pub worker: Worker,
    pub shared: Arc<Shared>,
    pub locks: Rc<RangeLocks>,
    pub tails: RefCell<Tails>,
    pub times: DataTimes,
    session: Cell<SessionId>,
    map: RefCell<Arc<ClusterMap>>,
    alive: Cell<bool>,
    pgs: RefCell<HashMap<PgId, Rc<PgIo>>>,
    osds: RefCell<HashMap<OsdKey, Rc<OsdLink>>>,
    windows: RefCell<HashMap<OsdKey, Rc<Window>>>,
    codecs: RefCell<Vec<(Profile, Arc<dyn Codec>)>>,
    ops: Rc<Budget>,
    op_bytes: Rc<Budget>,
    kept: Cell<usize>,
    kept_max: usize,
    kept_freed: Notify,
    asked_stable: Cell<Option<Instant>>,
    /// Files whose writes were lost with a session and whose next sync says so.
    lost: RefCell<HashSet<Gfid>>,
    delayed: Delayed,
    tick_due: Cell<Option<Instant>>,
    tick_changed: Notify,
    turn: Cell<u64>,
}

/// How long this worker's operations on data take, from start to done: waits for room among
/// [`ClientConfig::objecter_inflight_ops`](crate::ClientConfig::objecter_inflight_ops) included.
pub(crate) struct DataTimes {
    pub read: Operation,
    /// Reads of which shards were late, from when others were asked too until enough had answered.
    pub hedge: Operation,
    pub write: Operation,
    /// Punches, truncations and removals.
    pub change: Operation,
    pub sync: Operation,
}

impl DataTimes {
    fn new(table: &OperationTable) -> Self {
        let operation = |name| table.operation(Layer::Client, name);
        Self {
            read: operation("read"),
            hedge: operation("hedged read"),
            write: operation("write"),
            change: operation("punch or remove"),
            sync: operation("sync"),
        }
    }
}

/// Room for one operation; given back on drop.
pub(crate) struct OpPermit {
    _op: Permit,
    _bytes: Permit,
}

impl Local {
    /// Makes the state of this worker and starts its ticker.
    pub fn install(worker: Worker, shared: Arc<Shared>, session: SessionId, map: Arc<ClusterMap>) {
        let config = &shared.config;
        let share = |whole: usize| (whole / config.workers).max(1);
        let inflight = shared.inflight.get();
        let local = Rc::new(Local {
            locks: Rc::default(),
            tails: RefCell::default(),
            times: DataTimes::new(worker.handle().operations()),
            session: Cell::new(session),
            map: RefCell::new(map),
            alive: Cell::new(true),
            pgs: RefCell::default(),
            osds: RefCell::default(),
            windows: RefCell::default(),
            codecs: RefCell::default(),
            ops: Budget::new(share(inflight.ops)),
            op_bytes: Budget::new(share(inflight.op_bytes)),
            kept: Cell::new(0),
            kept_max: share(config.client_unstable_bytes_max),
            kept_freed: Notify::default(),
            asked_stable: Cell::new(None),
            lost: RefCell::default(),
            delayed: Delayed::default(),
            tick_due: Cell::new(None),
            tick_changed: Notify::default(),
            turn: Cell::new(0),
            worker,
            shared,
        });
        let ticker = Rc::clone(&local);
        local.worker.spawn(async move { ticker.run_ticker().await });
        let sender = Rc::clone(&local);
        local.worker.spawn(async move { sender.run_sender().await });
        local.worker.set_local(Rc::clone(&local));
    }

    /// Takes over [`Shared::inflight`].
    pub fn learn_inflight(&self) {
        let (inflight, workers) = (self.shared.inflight.get(), self.shared.config.workers);
        self.ops.set_limit((inflight.ops / workers).max(1));
        self.op_bytes.set_limit((inflight.op_bytes / workers).max(1));
    }

    /// Ends the state of this worker: PGs and connections.
    pub fn uninstall(worker: &Worker) {
        let Some(local) = worker.take_local::<Local>() else { return };
        local.kill();
        local.tick_changed.notify();
        local.delayed.wake();
    }

    /// Ends all PGs and connections: the session is dead, or the client closes.
    pub fn kill(&self) {
        self.alive.set(false);
        self.tails.borrow_mut().clear();
        let pgs = std::mem::take(&mut *self.pgs.borrow_mut());
        for pg in pgs.values() {
            self.lost.borrow_mut().extend(pg.kill(self));
        }
        let osds = std::mem::take(&mut *self.osds.borrow_mut());
        osds.values().for_each(|link| link.close());
        self.kept_freed.notify();
    }

    /// A new session in place of a dead one.
    pub fn revive(&self, session: SessionId, map: Arc<ClusterMap>) {
        self.kill();
        self.session.set(session);
        *self.map.borrow_mut() = map;
        self.alive.set(true);
    }

    /// The session that operations begun now belong to.
    pub fn session(&self) -> SessionId {
        self.session.get()
    }

    /// Why nothing works any more of what a dead session began.
    pub fn death(&self, session: SessionId) -> ClientError {
        if self.shared.is_closed() { ClientError::Closed } else { ClientError::Fenced(session) }
    }

    /// Remembers that a file's lost writes were told; true once.
    pub fn take_lost(&self, file: Option<Gfid>) -> bool {
        let mut lost = self.lost.borrow_mut();
        match file {
            Some(gfid) => lost.remove(&gfid),
            None => !std::mem::take(&mut *lost).is_empty(),
        }
    }

    // ---- placement

    /// The profile of a pool.
    pub fn profile(&self, pool: PoolId) -> Result<Profile, ClientError> {
        self.map.borrow().pools.get(&pool).map(|pool| pool.profile).ok_or(ClientError::NoPool(pool))
    }

    /// The PG of an object.
    pub fn pg_id(&self, pool: PoolId, object: ObjectId) -> Result<PgId, ClientError> {
        self.map.borrow().pg_of(pool, object).ok_or(ClientError::NoPool(pool))
    }

    /// All PGs of a pool.
    pub fn pg_ids(&self, pool: PoolId) -> Result<Vec<PgId>, ClientError> {
        let map = self.map.borrow();
        let found = map.pools.get(&pool).ok_or(ClientError::NoPool(pool))?;
        Ok((0..found.pg_num).map(|number| PgId { pool, number }).collect())
    }

    /// An error if that session is not the one of now, or has died.
    pub fn check(&self, session: SessionId) -> Result<(), ClientError> {
        let is_alive = self.alive.get() && self.session.get() == session;
        if is_alive { Ok(()) } else { Err(self.death(session)) }
    }

    /// A PG, as this worker drives it for that session: what waited while its session died must not
    /// go on in the next one, under leases that are gone.
    pub fn pg_of(&self, session: SessionId, id: PgId) -> Result<Rc<PgIo>, ClientError> {
        self.check(session)?;
        if let Some(pg) = self.pgs.borrow().get(&id) {
            return Ok(Rc::clone(pg));
        }
        let map = Arc::clone(&self.map.borrow());
        let view = view_of(&map, id).ok_or(ClientError::NoPool(id.pool))?;
        let machine = PgSession::new(session, view, SessionSettings::default());
        let pg = Rc::new(PgIo::new(session, machine, self.codec(view.profile)));
        self.pgs.borrow_mut().insert(id, Rc::clone(&pg));
        pg.set_links(self, Instant::now(), self.links_of(&map, id));
        Ok(pg)
    }

    /// Every PG that this worker has touched.
    pub fn pgs(&self) -> Vec<Rc<PgIo>> {
        self.pgs.borrow().values().cloned().collect()
    }

    fn codec(&self, profile: Profile) -> Arc<dyn Codec> {
        let mut codecs = self.codecs.borrow_mut();
        if let Some((_, codec)) = codecs.iter().find(|(known, _)| *known == profile) {
            return Arc::clone(codec);
        }
        let codec = codec::for_profile(profile);
        codecs.push((profile, Arc::clone(&codec)));
        codec
    }

    /// The connections to a PG's OSDs, made where they are missing.
    fn links_of(&self, map: &ClusterMap, pg: PgId) -> SmallVec<[Option<Rc<OsdLink>>; 4]> {
        let Some(info) = map.pgs.get(&pg) else { return SmallVec::new() };
        info.acting.iter().map(|osd| self.link_to(map, pg, *osd)).collect()
    }

    fn link_to(&self, map: &ClusterMap, pg: PgId, id: OsdId) -> Option<Rc<OsdLink>> {
        let osd = map.osds.get(&id).filter(|osd| osd.up && osd.cores > 0)?;
        let addr = osd.addr?;
        let key = OsdKey { osd: id, core: pg.core(osd.cores) };
        let mut osds = self.osds.borrow_mut();
        if let Some(link) = osds.get(&key).filter(|link| link.addr == addr) {
            return Some(Rc::clone(link));
        }
        let mut config = ConnectConfig::new(addr, map.cluster, self.shared.config.name.clone());
        config.lane = key.core.get();
        let service = move |_: &Worker| Rc::new(OsdService::new(key)) as Rc<dyn messenger::Service>;
        let connection = self.worker.handle().connect(self.worker.index(), config, service);
        let bytes_max = window_bytes(self.shared.config.workers);
        let window = Rc::clone(
            self.windows.borrow_mut().entry(key).or_insert_with(|| Window::new(bytes_max)),
        );
        let link = Rc::new(OsdLink::new(key, addr, connection, window));
        if let Some(old) = osds.insert(key, Rc::clone(&link)) {
            old.close();
        }
        Some(link)
    }

    /// A newer map.
    pub fn on_map(&self, map: Arc<ClusterMap>) {
        if map.epoch < self.map.borrow().epoch || !self.alive.get() {
            return;
        }
        *self.map.borrow_mut() = Arc::clone(&map);
        self.relink(&map);
        let gone = |key: &OsdKey, link: &Rc<OsdLink>| {
            map.osds.get(&key.osd).is_none_or(|osd| {
                !osd.up || osd.addr != Some(link.addr) || key.core.get() >= osd.cores
            })
        };
        let old: Vec<_> = self.osds.borrow_mut().extract_if(|key, link| gone(key, link)).collect();
        old.iter().for_each(|(_, link)| link.close());
    }

    fn relink(&self, map: &ClusterMap) {
        let now = Instant::now();
        for pg in self.pgs() {
            pg.set_links(self, now, self.links_of(map, pg.pg));
            if let Some(view) = view_of(map, pg.pg) {
                pg.learn(self, now, view);
            }
        }
    }

    /// The machine or a read saw a sign of a newer map.
    pub fn need_map(&self, epoch: Option<Epoch>) {
        self.shared.need_map(epoch);
    }

    // ---- connections

    fn link(&self, key: OsdKey, connection: u64) -> Option<Rc<OsdLink>> {
        self.osds.borrow().get(&key).filter(|link| link.is_connection(connection)).cloned()
    }

    /// An acknowledgement came.
    pub fn on_ack(&self, key: OsdKey, connection: u64, ack: &AckMessage) {
        let Some(link) = self.link(key, connection) else { return };
        link.window.hold(ack.flags & AckMessage::HOLD != 0);
        let pg = self.pgs.borrow().get(&PgId::from_u64(ack.pg.get())).cloned();
        if let Some(pg) = pg {
            pg.ack(self, Instant::now(), key, ack);
        }
    }

    /// A connection came up or went down.
    pub fn on_osd_state(&self, key: OsdKey, connection: u64, event: &StateEvent) {
        let Some(link) = self.link(key, connection) else { return };
        let up = matches!(event, StateEvent::Up { .. });
        if let StateEvent::Down { reason } = event {
            tracing::info!(osd = %key.osd, core = %key.core, reason, "connection lost");
        }
        link.set_up(up);
        let now = Instant::now();
        for pg in self.pgs() {
            pg.connection(self, now, key, up);
        }
    }

    /// Will the OSD say nothing of its own over that connection?
    pub fn is_at_rest(&self, key: OsdKey, connection: u64) -> bool {
        let is_held = |link: Rc<OsdLink>| link.window.is_held();
        !self.link(key, connection).is_some_and(is_held)
            && self.pgs().iter().all(|pg| pg.is_at_rest(key))
    }

    /// A connection ended for good: another one takes its place after a pause.
    pub fn on_osd_close(self: &Rc<Self>, key: OsdKey, connection: u64, reason: &CloseReason) {
        let Some(link) = self.link(key, connection) else { return };
        tracing::warn!(osd = %key.osd, core = %key.core, %reason, "connection ended");
        link.set_up(false);
        self.osds.borrow_mut().remove(&key);
        let now = Instant::now();
        for pg in self.pgs() {
            pg.connection(self, now, key, false);
        }
        let local = Rc::clone(self);
        self.worker.spawn(async move {
            local.worker.sleep(RECONNECT_PAUSE).await;
            if local.alive.get() {
                let map = Arc::clone(&local.map.borrow());
                local.relink(&map);
            }
        });
    }

    // ---- bounds

    /// Waits for room for an operation of so many bytes.
    pub async fn permit(&self, bytes: usize) -> OpPermit {
        OpPermit { _op: self.ops.acquire(1).await, _bytes: self.op_bytes.acquire(bytes).await }
    }

    /// A PG keeps another number of bytes than before.
    pub fn kept_changed(&self, old: usize, new: usize) {
        self.kept.set((self.kept.get() + new).saturating_sub(old));
        if new < old {
            self.kept_freed.notify();
        }
    }

    /// Waits until so many more bytes may be kept; from half of the bound on shards are asked to
    /// sync.
    pub async fn room_to_keep(&self, bytes: usize) {
        loop {
            let (kept, seen) = (self.kept.get(), self.kept_freed.version());
            if kept > self.kept_max / 2 {
                self.ask_stable();
            }
            if kept == 0 || kept + bytes <= self.kept_max || !self.alive.get() {
                return;
            }
            // Looked at again after a while: what was written since the last time shards were asked
            // counts too.
            let _ = self.worker.timeout(ASK_STABLE_INTERVAL, self.kept_freed.changed(seen)).await;
        }
    }

    fn ask_stable(&self) {
        let now = Instant::now();
        if self.asked_stable.get().is_some_and(|at| now < at + ASK_STABLE_INTERVAL) {
            return;
        }
        self.asked_stable.set(Some(now));
        for pg in self.pgs() {
            if pg.kept_bytes() > 0 {
                pg.want_stable(self, now, None);
            }
        }
    }

    /// Rule ReadClock: no I/O is begun after the session's time ran out on this side's clock; waits
    /// for its renewal. An error once the session whose PG it is has died, whichever is there now.
    pub async fn session_usable(&self, pg: &PgIo) -> Result<(), ClientError> {
        loop {
            pg.check(self)?;
            if self.shared.lease_holds(Instant::now()) {
                return Ok(());
            }
            self.worker.sleep(LEASE_POLL).await;
        }
    }

    /// The next number for round-robin reads.
    pub fn next_turn(&self) -> u64 {
        self.turn.replace(self.turn.get().wrapping_add(1))
    }

    /// Runs an operation for at most the configured time.
    pub async fn within<T>(
        &self,
        what: &'static str,
        operation: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        let timeout = self.shared.config.timeout;
        if timeout.is_zero() {
            return operation.await;
        }
        self.worker.timeout(timeout, operation).await.unwrap_or(Err(ClientError::TimedOut(what)))
    }

    // ---- delayed writes

    /// A write was sent with [`Hurry::Delayed`](super::osd::Hurry::Delayed).
    pub fn delayed(&self, bytes: usize) {
        if self.delayed.add(bytes) {
            self.send_delayed();
        }
    }

    /// Sends what was delayed.
    pub fn send_delayed(&self) {
        if self.delayed.take() {
            self.osds.borrow().values().for_each(|link| link.send_delayed());
        }
    }

    async fn run_sender(&self) {
        while !self.shared.is_closed() {
            self.delayed.begun().await;
            self.worker.sleep(DELAY_MAX).await;
            self.send_delayed();
        }
    }

    // ---- ticker

    /// A PG's machine wants to be ticked at `due`.
    pub fn tick_at(&self, now: Instant, due: Instant) {
        let due = due.max(now + TICK_MIN);
        if self.tick_due.get().is_none_or(|at| due < at) {
            self.tick_due.set(Some(due));
            self.tick_changed.notify();
        }
    }

    async fn run_ticker(&self) {
        while !self.shared.is_closed() {
            let seen = self.tick_changed.version();
            let Some(due) = self.tick_due.get() else {
                self.tick_changed.changed(seen).await;
                continue;
            };
            let mut sleep = pin!(self.worker.sleep_until(due));
            poll_fn(|cx| match sleep.as_mut().poll(cx) {
                Poll::Ready(_) => Poll::Ready(()),
                Poll::Pending => self.tick_changed.poll_changed(cx, seen),
            })
            .await;
            let now = Instant::now();
            if self.tick_due.get().is_some_and(|due| due <= now) {
                self.tick_due.set(None);
                for pg in self.pgs() {
                    match pg.next_deadline() {
                        Some(due) if due <= now => pg.tick(self, now),
                        Some(due) => self.tick_at(now, due),
                        None => {}
                    }
                }
            }
        }
    }
}

/// A PG as the map has it.
fn view_of(map: &ClusterMap, id: PgId) -> Option<PgView> {
    let (pg, pool) = (map.pgs.get(&id)?, map.pools.get(&id.pool)?);
    Some(PgView {
        pg: id,
        epoch: pg.epoch,
        profile: pool.profile,
        in_sync: pg.in_sync,
        joining: pg.joining,
        active: pg.active,
    })
}
