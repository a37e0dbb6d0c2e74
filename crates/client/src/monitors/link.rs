//! The connection to whichever monitor answers.
//!
//! Contract: a [`MonitorLink`] may be used from any thread; its connections live on one worker. One
//! connection is the current one. It is replaced by that to another monitor, dialled beside it,
//! when it was silent for [`DEAD_AFTER`], when its monitor is lost, and when that does not lead;
//! the old one is kept until the new one is up. With one address there is nothing to move to: its
//! connection dials again by itself, and is watched as its owner says.
//!
//! A monitor of another cluster is refused in the handshake, and what it says is not heard.

mod question;

use super::list::{Monitors, Next};
use super::repeat::may_repeat;
use bytes::Bytes;
use messenger::address::{HostPort, HostPorts};
use messenger::sync::{ContentionMutex, Sender, oneshot};
use messenger::{
    CloseReason, ConnectConfig, Connection, Handle, LateCluster, Message, Refusal, Service,
    SessionConfig, StateEvent, Worker,
};
use protocol::monitor::{MonitorReply, MonitorRequest};
use protocol::{Kind, MONITOR_PORT};
use question::Question;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Silence after which a monitor that is not the only one is pinged.
const PING_AFTER: Duration = Duration::from_millis(500);
/// Silence after which another one is dialled beside it.
const DEAD_AFTER: Duration = Duration::from_secs(1);
/// How long one of several may take to accept a connection and to answer the handshake, at first;
/// doubles with each failure, [`DIAL_DOUBLINGS_MAX`] times.
pub(super) const DIAL_MAX: Duration = Duration::from_secs(1);
/// See there: slow networks are waited for in the end.
const DIAL_DOUBLINGS_MAX: u32 = 2;
/// Pause before a request is sent again to a monitor that lost it, or that knows no leader.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Answers without a leader's address after which another monitor is asked: it may be cut off.
const LEADERLESS_MAX: u32 = 6;

/// What the owner of a link is told, on its worker. Handlers must not block.
pub trait MonitorEvents {
    /// What the current monitor sends of its own.
    fn on_message(&self, worker: &Worker, connection: &Connection, message: Message);

    /// The current monitor answers. Not `resumed`: it is the first one, another than before, or has
    /// forgotten the session: what was subscribed is not any more.
    fn on_up(&self, worker: &Worker, resumed: bool);

    /// The current monitor is lost, and why; another one is looked for.
    fn on_down(&self, _reason: &str) {}

    /// No address is left whose listener could be a monitor of this cluster.
    fn on_refused(&self, _refusal: &Refusal) {}
}

/// Settings of a link.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// The worker on which its connections live.
    pub worker: usize,
    /// Name of this side, for the monitors' logs.
    pub name: String,
    /// The cluster; learnt elsewhere, from the first map.
    pub cluster: LateCluster,
    /// Of the connection while there is one monitor only.
    pub session: SessionConfig,
}

/// Why a request has no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LinkError {
    /// No monitor answered within the time given.
    #[error("no answer from the monitor in time")]
    Deadline,
    /// The link is closed, or nothing that listens at its addresses is a monitor of the cluster.
    #[error("{0}")]
    Closed(String),
    /// The monitor was lost with the request, which must not be sent twice.
    #[error("the monitor was lost meanwhile: look whether it was done")]
    Unknown,
    /// The request cannot be sent, or the answer is none.
    #[error("{0}")]
    Protocol(String),
}

struct Current {
    number: u64,
    address: HostPort,
    connection: Connection,
    is_up: bool,
    /// Silence is noticed within [`DEAD_AFTER`].
    is_watched: bool,
    /// Another one is to take its place, though it is up.
    must_move: bool,
}

struct State {
    monitors: Monitors,
    current: Option<Current>,
    /// Numbers of connections so far.
    numbers: u64,
    is_seeking: bool,
    is_closed: bool,
    /// Answers in a row that named no leader.
    leaderless: u32,
    /// When it last went to a leader that was named: two that follow may name each other, for a
    /// moment.
    moved: Option<Instant>,
}

/// Makes what is told of a connection, on its worker.
type MakeEvents = dyn Fn(&Worker) -> Rc<dyn MonitorEvents> + Send + Sync;

struct Inner {
    handle: Handle,
    config: LinkConfig,
    /// Until it is closed: what it has may have the link.
    make: ContentionMutex<Option<Arc<MakeEvents>>>,
    state: ContentionMutex<State>,
}

/// See the module. Clones share one link.
#[derive(Clone)]
pub struct MonitorLink(Arc<Inner>);

impl std::fmt::Debug for MonitorLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MonitorLink").finish_non_exhaustive()
    }
}

impl MonitorLink {
    /// Begins to dial. `first`: where the only one of the addresses is; without it they are looked
    /// up here, on an I/O thread. `make` makes what is told of each connection, on its worker.
    pub fn start(
        handle: &Handle,
        config: LinkConfig,
        monitors: &HostPorts,
        first: Option<SocketAddr>,
        make: impl Fn(&Worker) -> Rc<dyn MonitorEvents> + Send + Sync + 'static,
    ) -> MonitorLink {
        let state = State {
            monitors: Monitors::new(monitors),
            current: None,
            numbers: 0,
            is_seeking: false,
            is_closed: false,
            leaderless: 0,
            moved: None,
        };
        let state = ContentionMutex::new(handle.locks(), "monitor link", state);
        let make: Option<Arc<MakeEvents>> = Some(Arc::new(make));
        let make = ContentionMutex::new(handle.locks(), "monitor link", make);
        let inner = Arc::new(Inner { handle: handle.clone(), config, make, state });
        match first.filter(|_| monitors.only().is_some()) {
            Some(addr) => {
                let mut state = inner.state.lock();
                let number = state.number();
                let connection = inner.connect(addr, number, None, None);
                let address = monitors.first().clone();
                let (is_up, is_watched, must_move) = (false, false, false);
                state.current =
                    Some(Current { number, address, connection, is_up, is_watched, must_move });
            }
            None => Inner::seek(&inner),
        }
        MonitorLink(inner)
    }

    /// The current connection. It may be replaced at any time.
    pub fn connection(&self) -> Option<Connection> {
        self.0.state.lock().current.as_ref().map(|current| current.connection.clone())
    }

    /// Is there a monitor that answers?
    pub fn is_up(&self) -> bool {
        self.0.state.lock().current.as_ref().is_some_and(|current| current.is_up)
    }

    /// What went wrong at the addresses that do not answer; empty if nothing did.
    pub fn problems(&self) -> String {
        self.0.state.lock().monitors.problems()
    }

    /// The map says where all monitors listen; see [`Monitors::learn`].
    pub fn learn(&self, monitors: &[SocketAddr]) {
        let mut state = self.0.state.lock();
        state.monitors.learn(monitors);
        let is_late = |current: &Current| !current.is_watched && current.connection.is_up();
        if state.monitors.count() > 1 && state.current.as_ref().is_some_and(is_late) {
            // Made when there was one only: the same monitor is dialled again, and watched.
            if let Some(current) = &mut state.current {
                current.must_move = true;
            }
            drop(state);
            Inner::seek(&self.0);
        }
    }

    /// Asks the monitor that leads. The request is queued at once, if a monitor is connected; the
    /// future is for the answer. A request that was lost is sent again, unless that would do harm
    /// ([`may_repeat`]).
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn ask(
        &self,
        request: &MonitorRequest,
        deadline: Instant,
    ) -> impl Future<Output = Result<MonitorReply, LinkError>> + Send + use<> {
        let question = Question {
            inner: Arc::clone(&self.0),
            front: protocol::encode(request),
            repeats: may_repeat(request),
            deadline,
        };
        let first = question.send();
        async move { question.answer(first).await }
    }

    /// Ends all connections.
    pub fn close(&self) {
        let mut state = self.0.state.lock();
        state.is_closed = true;
        let current = state.current.take();
        drop(state);
        let made = self.0.make.lock().take();
        drop(made);
        if let Some(current) = current {
            current.connection.close();
        }
    }
}

/// Who is told of connections of a link that is closed.
struct Nobody;

impl MonitorEvents for Nobody {
    fn on_message(&self, _worker: &Worker, _connection: &Connection, _message: Message) {}

    fn on_up(&self, _worker: &Worker, _resumed: bool) {}
}

/// What became of a connection that was dialled beside the current one.
enum Outcome {
    Up,
    Failed(String),
    Wrong(Refusal),
}

impl State {
    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn current(&mut self, number: u64) -> Option<&mut Current> {
        self.current.as_mut().filter(|current| current.number == number)
    }

    /// Is the current connection as it should be?
    fn is_settled(&self) -> bool {
        self.current.as_ref().is_some_and(|current| current.is_up && !current.must_move)
    }
}

impl Inner {
    /// `told`: a connection beside the current one, and who waits for what becomes of it.
    /// `watched`: silence is noticed within [`DEAD_AFTER`], in the handshake after so long.
    fn connect(
        self: &Arc<Self>,
        addr: SocketAddr,
        number: u64,
        told: Option<(HostPort, Sender<Outcome>)>,
        watched: Option<Duration>,
    ) -> Connection {
        let LinkConfig { worker, name, cluster, session } = &self.config;
        let mut to = ConnectConfig::new(addr, cluster.clone(), name.clone());
        to.session = *session;
        if let Some(handshake_max) = watched {
            (to.session.ping_after, to.session.dead_after) = (PING_AFTER, DEAD_AFTER);
            (to.session.idle_after, to.session.handshake_max) = (PING_AFTER, handshake_max);
        }
        let (inner, link) = (Arc::clone(self), Arc::downgrade(self));
        self.handle.connect(*worker, to, move |worker| {
            let owner = inner.events(worker);
            Rc::new(LinkService { link, number, owner, told: RefCell::new(told) })
        })
    }

    fn events(&self, worker: &Worker) -> Rc<dyn MonitorEvents> {
        let make = self.make.lock().clone();
        make.map_or_else(|| Rc::new(Nobody) as Rc<dyn MonitorEvents>, |make| make(worker))
    }

    /// Why nothing can be asked any more.
    fn is_over(&self) -> Option<String> {
        let state = self.state.lock();
        match &state.current {
            _ if state.is_closed => Some("the connection to the monitor is closed".to_owned()),
            None if state.monitors.is_hopeless() => Some(state.monitors.problems()),
            _ => None,
        }
    }

    /// Waits, on any thread; false if the runtime has stopped.
    async fn pause(&self, duration: Duration) -> bool {
        let sleep = move |worker: Worker| async move { worker.sleep(duration).await };
        self.handle.run_on(self.config.worker, sleep).await.is_ok()
    }

    /// The monitor of this connection does not lead.
    fn not_leader(self: &Arc<Self>, number: u64, leader: Option<SocketAddr>) {
        let mut state = self.state.lock();
        let Some(here) = state.current(number).map(|current| current.connection.peer()) else {
            return;
        };
        let named = leader.filter(|leader| *leader != here);
        let is_calm = state.moved.is_none_or(|moved| moved.elapsed() >= RETRY_PAUSE);
        if is_calm && named.is_some_and(|leader| state.monitors.hint(leader)) {
            (state.leaderless, state.moved) = (0, Some(Instant::now()));
        } else {
            state.leaderless += 1;
            if state.leaderless < LEADERLESS_MAX {
                return;
            }
            state.leaderless = 0;
        }
        drop(state);
        Inner::move_on(self, number);
    }

    /// Looks for another monitor than that of this connection, which stays until there is one.
    fn move_on(self: &Arc<Self>, number: u64) {
        if let Some(current) = self.state.lock().current(number) {
            current.must_move = true;
        }
        Inner::seek(self);
    }

    /// Dials the others, until one is the current one.
    fn seek(self: &Arc<Self>) {
        let mut state = self.state.lock();
        if state.is_seeking || state.is_closed {
            return;
        }
        state.is_seeking = true;
        drop(state);
        let link = Arc::downgrade(self);
        self.handle.spawn_on(self.config.worker, move |worker| search(worker, link));
    }

    /// What to dial next, and which address not, as it is the current one's; `None`: nothing.
    fn next(&self) -> Option<(Next, Option<SocketAddr>)> {
        let mut state = self.state.lock();
        let now = Instant::now();
        let current = state.current.as_ref().map(|current| current.connection.peer());
        let is_unwatched = state.current.as_ref().is_some_and(|c| c.is_up && !c.is_watched);
        // The same monitor may be dialled, to be watched from now on.
        let current = current.filter(|_| !is_unwatched || state.monitors.count() == 1);
        let next = match state.is_closed || state.is_settled() {
            true => Next::Nothing,
            false => state.monitors.next(now, current),
        };
        if next == Next::Nothing {
            state.is_seeking = false;
            if let Some(current) = &mut state.current {
                current.must_move = false;
            }
            return None;
        }
        Some((next, current))
    }

    /// Dials one, and says whether it is the current one now.
    async fn dial(self: &Arc<Self>, worker: &Worker, address: &HostPort, addr: SocketAddr) -> bool {
        let (tell, told) = oneshot();
        let mut state = self.state.lock();
        let number = state.number();
        let doublings = state.monitors.failures(address).min(DIAL_DOUBLINGS_MAX);
        let watched = (state.monitors.count() > 1).then_some(DIAL_MAX * (1 << doublings));
        drop(state);
        let connection = self.connect(addr, number, Some((address.clone(), tell)), watched);
        let limit = watched.unwrap_or(self.config.session.handshake_max);
        let outcome = match worker.timeout(limit, told).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Outcome::Failed("the connection ended".to_owned()),
            Err(_) => Outcome::Failed(format!("no answer within {} s", limit.as_secs())),
        };
        let (mut state, now) = (self.state.lock(), Instant::now());
        match &outcome {
            Outcome::Up => return true,
            Outcome::Failed(why) => state.monitors.failed(address, now, why),
            Outcome::Wrong(refusal) => state.monitors.wrong(address, now, &refusal.to_string()),
        }
        let is_over = state.current.is_none() && state.monitors.is_hopeless();
        drop(state);
        connection.close();
        if let (Outcome::Wrong(refusal), true) = (&outcome, is_over) {
            self.events(worker).on_refused(refusal);
        }
        false
    }

    /// Makes a connection that is up the current one. False: it is not wanted.
    fn adopt(&self, number: u64, address: &HostPort, connection: &Connection) -> bool {
        let mut state = self.state.lock();
        if state.is_closed || state.is_settled() {
            return false;
        }
        state.monitors.reached(address);
        let is_watched = state.monitors.count() > 1;
        let current = Current {
            number,
            address: address.clone(),
            connection: connection.clone(),
            is_up: true,
            is_watched,
            must_move: false,
        };
        let before = state.current.replace(current);
        drop(state);
        tracing::info!(monitor = %address, "connected to the monitor");
        if let Some(before) = before {
            before.connection.close();
        }
        true
    }
}

/// Dials monitors in turn until one is reached.
async fn search(worker: Worker, link: Weak<Inner>) {
    loop {
        let Some(inner) = link.upgrade() else { return };
        let (address, current) = match inner.next() {
            None | Some((Next::Nothing, _)) => return,
            Some((Next::Dial(address), current)) => (address, current),
            Some((Next::Wait(until), _)) => {
                drop(inner);
                // Looked at often: the current one may come back, and a leader may be named.
                worker.sleep_until(until.min(Instant::now() + RETRY_PAUSE)).await;
                continue;
            }
        };
        let (name, lookup) = (address.clone(), address.is_name());
        let resolve = move || name.resolve(MONITOR_PORT);
        let found = match lookup {
            true => worker.blocking(resolve).await.unwrap_or_else(|_| Ok(Vec::new())),
            false => resolve(),
        };
        let others: Vec<SocketAddr> = match found {
            Ok(found) => found.into_iter().filter(|addr| Some(*addr) != current).collect(),
            Err(error) => {
                inner.state.lock().monitors.failed(&address, Instant::now(), &error.to_string());
                continue;
            }
        };
        if others.is_empty() {
            let why = "it is that of the connection that was lost";
            inner.state.lock().monitors.failed(&address, Instant::now(), why);
        }
        for addr in others.into_iter().take(super::MONITORS_MAX) {
            if inner.dial(&worker, &address, addr).await {
                break;
            }
        }
    }
}

struct LinkService {
    link: Weak<Inner>,
    number: u64,
    owner: Rc<dyn MonitorEvents>,
    /// While it is not the current one.
    told: RefCell<Option<(HostPort, Sender<Outcome>)>>,
}

impl LinkService {
    /// Was it dialled beside the current one, and is over now? Tells why.
    fn end(&self, outcome: Outcome) -> bool {
        let Some((_, tell)) = self.told.borrow_mut().take() else { return false };
        // Nobody waits any more: it took too long.
        let _ = tell.send(outcome);
        true
    }

    fn is_current(&self, inner: &Inner) -> bool {
        inner.state.lock().current(self.number).is_some()
    }

    fn up(&self, inner: &Arc<Inner>, worker: &Worker, connection: &Connection, resumed: bool) {
        if let Some((address, tell)) = self.told.borrow_mut().take() {
            if tell.is_abandoned() || !inner.adopt(self.number, &address, connection) {
                // The one there is has come back meanwhile.
                connection.close();
            } else {
                self.owner.on_up(worker, false);
            }
            let _ = tell.send(Outcome::Up);
            return;
        }
        let mut state = inner.state.lock();
        let Some(current) = state.current(self.number) else { return };
        current.is_up = true;
        let address = current.address.clone();
        state.monitors.reached(&address);
        drop(state);
        self.owner.on_up(worker, resumed);
    }

    /// The current connection is lost, for now or (`over`) for good.
    fn lost(&self, inner: &Arc<Inner>, why: &str, is_wrong: bool, over: bool) {
        let mut state = inner.state.lock();
        let Some(current) = state.current(self.number) else { return };
        current.is_up = false;
        let (address, now) = (current.address.clone(), Instant::now());
        match is_wrong {
            true => state.monitors.wrong(&address, now, why),
            false => state.monitors.failed(&address, now, why),
        }
        if over {
            state.current = None;
        }
        drop(state);
        Inner::seek(inner);
    }
}

impl Service for LinkService {
    fn on_message(&self, worker: &Worker, connection: &Connection, message: Message) {
        self.owner.on_message(worker, connection, message);
    }

    fn on_state(&self, worker: &Worker, connection: &Connection, event: &StateEvent) {
        let Some(inner) = self.link.upgrade() else { return };
        match event {
            StateEvent::Up { resumed, .. } => self.up(&inner, worker, connection, *resumed),
            StateEvent::Down { reason } => {
                if !self.end(Outcome::Failed(reason.clone())) && self.is_current(&inner) {
                    self.lost(&inner, reason, false, false);
                    self.owner.on_down(reason);
                }
            }
            StateEvent::Refused(refusal) => {
                if !self.end(Outcome::Wrong(refusal.clone())) && self.is_current(&inner) {
                    self.lost(&inner, &refusal.to_string(), true, true);
                    if inner.is_over().is_some() {
                        self.owner.on_refused(refusal);
                    }
                }
            }
            StateEvent::Reset => {}
        }
    }

    fn on_close(&self, _worker: &Worker, _connection: &Connection, reason: &CloseReason) {
        let Some(inner) = self.link.upgrade() else { return };
        match reason {
            CloseReason::Shutdown => inner.state.lock().is_closed = true,
            CloseReason::Local | CloseReason::Refused(_) => {}
            // What is no monitor closes a connection on which it is asked for the map.
            CloseReason::Peer => {
                let why = "what listens there closed the connection: it is no monitor";
                if !self.end(Outcome::Failed(why.to_owned())) {
                    self.lost(&inner, why, true, true);
                }
            }
            other => {
                if !self.end(Outcome::Failed(other.to_string())) {
                    self.lost(&inner, &other.to_string(), false, true);
                }
            }
        }
    }
}
