//! What all threads of a client share: the session, the map, the connections for control calls, events.
//!
//! Contract: locks are held for a few instructions and never across a wait.

use super::mds::Mds;
use super::{ClientEvent, Term};
use crate::config::ClientConfig;
use crate::error::ClientError;
use crate::objecter::local;
use bytes::Bytes;
use cluster::ClusterMap;
use messenger::sync::ContentionMutex;
use messenger::{CallError, Connection, Handle, Layer, Message, Operation, TrafficClass, Worker};
use metadata::lease::holder::Moment;
use protocol::monitor::{MapUpdate, MonitorReply, MonitorRequest};
use protocol::{Epoch, Kind, SessionId};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Events kept for a handler that is not there yet: more than a layer gets before it starts.
const EVENTS_KEPT_MAX: usize = 1024;
/// Deadline of a call to the monitor when none is configured.
const CALL_DEADLINE: Duration = Duration::from_secs(30);
/// Pause before a call is made again after a connection was lost or the answer was "not yet".
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// How often a lease that may not be used is looked at again.
const USABLE_POLL: Duration = Duration::from_millis(5);

type Handler = Arc<dyn Fn(ClientEvent) + Send + Sync>;

#[derive(Default)]
struct Events {
    handler: Option<Handler>,
    kept: VecDeque<ClientEvent>,
}

/// The session as all threads know it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Standing {
    pub session: SessionId,
    pub fenced: bool,
}

/// See the module.
pub(crate) struct Shared {
    pub config: ClientConfig,
    pub handle: Handle,
    pub(super) monitor: OnceLock<Connection>,
    pub(super) mds: Mds,
    pub(super) namespace_times: Operation,
    standing: ContentionMutex<Standing>,
    map: ContentionMutex<Option<Arc<ClusterMap>>>,
    begun: Instant,
    /// Milliseconds after `begun` until which the session surely lives.
    lease_until_ms: AtomicU64,
    /// Milliseconds after `begun` until which the session surely is the only mount.
    alone_until_ms: AtomicU64,
    /// See [`Term::number`].
    alone_term: AtomicU64,
    /// Of the map, for those who need no more of it.
    epoch: AtomicU64,
    asking_for_map: AtomicBool,
    closed: AtomicBool,
    events: ContentionMutex<Events>,
    /// Why the monitor cannot be reached, for the error.
    pub(super) problem: ContentionMutex<String>,
}

impl Shared {
    pub fn new(config: ClientConfig, handle: Handle) -> Arc<Self> {
        let locks = handle.locks().clone();
        let namespace_times = handle.operations().operation(Layer::Client, "namespace");
        Arc::new(Self {
            config,
            handle,
            monitor: OnceLock::new(),
            mds: Mds::new(&locks),
            namespace_times,
            standing: ContentionMutex::new(&locks, "client standing", Standing::default()),
            map: ContentionMutex::new(&locks, "client map", None),
            begun: Instant::now(),
            lease_until_ms: AtomicU64::new(0),
            alone_until_ms: AtomicU64::new(0),
            alone_term: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            asking_for_map: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            events: ContentionMutex::new(&locks, "client events", Events::default()),
            problem: ContentionMutex::new(&locks, "client problem", String::new()),
        })
    }

    /// The session.
    pub fn standing(&self) -> Standing {
        *self.standing.lock()
    }

    /// A session was opened.
    pub fn opened(&self, session: SessionId, ttl: Duration, asked: Instant) {
        *self.standing.lock() = Standing { session, fenced: false };
        self.renewed(asked + ttl);
    }

    /// The session lives until then on this side's clock.
    pub fn renewed(&self, until: Instant) {
        let ms = until.saturating_duration_since(self.begun).as_millis();
        self.lease_until_ms.store(u64::try_from(ms).unwrap_or(u64::MAX), Ordering::Release);
    }

    /// Does the session surely live?
    pub fn lease_holds(&self, now: Instant) -> bool {
        let ms = now.saturating_duration_since(self.begun).as_millis();
        ms < u128::from(self.lease_until_ms.load(Ordering::Acquire))
    }

    /// The session was promised to be the only mount until then, in this term.
    pub fn alone_until(&self, session: SessionId, until: Instant, term: u64) {
        let standing = self.standing.lock();
        let is_old = term < self.alone_term.load(Ordering::Acquire);
        if standing.session == session && !standing.fenced && !is_old {
            let ms = u64::try_from(until.saturating_duration_since(self.begun).as_millis()).unwrap_or(0);
            // The term first: whoever sees the new promise must not take it for one of the term before.
            self.alone_term.store(term, Ordering::Release);
            self.alone_until_ms.fetch_max(ms, Ordering::AcqRel);
        }
    }

    /// See [`super::Client::term`].
    pub fn term(&self) -> Term {
        let holds = !self.alone_for().is_zero();
        Term { number: self.alone_term.load(Ordering::Acquire), holds }
    }

    /// How long the session surely stays the only mount.
    pub fn alone_for(&self) -> Duration {
        Duration::from_millis(self.alone_until_ms.load(Ordering::Acquire)).saturating_sub(self.begun.elapsed())
    }

    /// Where the session stands now, for the rules of leases.
    pub fn moment(&self) -> Moment {
        Moment {
            now: self.begun.elapsed(),
            until: Duration::from_millis(self.lease_until_ms.load(Ordering::Acquire)),
            epoch: Epoch::new(self.epoch.load(Ordering::Acquire)),
        }
    }

    /// Waits until the session surely lives and a map of this epoch is there.
    pub async fn usable(self: &Arc<Self>, epoch: Epoch) -> Result<(), ClientError> {
        loop {
            self.check()?;
            let at = self.moment();
            if at.now < at.until && at.epoch >= epoch {
                return Ok(());
            }
            if at.epoch < epoch {
                self.need_map(Some(epoch));
            }
            self.pause(USABLE_POLL).await;
        }
    }

    /// The session was declared dead.
    pub fn fenced(&self, session: SessionId) {
        let mut standing = self.standing.lock();
        if standing.session != session || standing.fenced {
            return;
        }
        standing.fenced = true;
        self.alone_until_ms.store(0, Ordering::Release);
        drop(standing);
        tracing::error!(%session, "the cluster declared this session dead");
        self.lease_until_ms.store(0, Ordering::Release);
        self.on_workers(|worker| local::with(worker, |local| local.kill()));
        self.emit(ClientEvent::Fenced(session));
    }

    /// Was the client closed?
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Nothing works from now on. False if it was closed before.
    pub fn set_closed(&self) -> bool {
        !self.closed.swap(true, Ordering::AcqRel)
    }

    /// An error if the session is dead or the client closed.
    pub fn check(&self) -> Result<SessionId, ClientError> {
        let standing = self.standing();
        if self.is_closed() {
            Err(ClientError::Closed)
        } else if standing.fenced {
            Err(ClientError::Fenced(standing.session))
        } else {
            Ok(standing.session)
        }
    }

    /// Runs something on every worker, soon.
    pub fn on_workers(&self, f: impl Fn(&Worker) + Clone + Send + 'static) {
        for worker in 0..self.handle.workers() {
            let f = f.clone();
            self.handle.spawn_on(worker, move |worker| async move { f(&worker) });
        }
    }

    // ---- events

    /// Tells the layer above.
    pub fn emit(&self, event: ClientEvent) {
        let mut events = self.events.lock();
        match events.handler.clone() {
            Some(handler) => {
                drop(events);
                handler(event);
            }
            None => {
                events.kept.push_back(event);
                if events.kept.len() > EVENTS_KEPT_MAX {
                    events.kept.pop_front();
                }
            }
        }
    }

    /// Sets who is told.
    pub fn set_handler(&self, handler: Handler) {
        let mut events = self.events.lock();
        events.handler = Some(Arc::clone(&handler));
        let kept = std::mem::take(&mut events.kept);
        drop(events);
        kept.into_iter().for_each(|event| handler(event));
    }

    // ---- the map

    /// The newest map.
    pub fn map(&self) -> Result<Arc<ClusterMap>, ClientError> {
        self.map.lock().clone().ok_or(ClientError::Closed)
    }

    /// A map came.
    pub fn learn(&self, update: &MapUpdate) {
        let map = match ClusterMap::decode(&update.map) {
            Ok(map) => Arc::new(map),
            Err(error) => {
                tracing::warn!(%error, "cluster map dropped");
                return;
            }
        };
        let mut slot = self.map.lock();
        if slot.as_ref().is_some_and(|old| old.epoch >= map.epoch) {
            return;
        }
        *slot = Some(Arc::clone(&map));
        self.epoch.store(map.epoch.get(), Ordering::Release);
        drop(slot);
        self.mds.moved(map.mds);
        self.on_workers(move |worker| local::with(worker, |local| local.on_map(Arc::clone(&map))));
    }

    /// There is a sign of a newer map than ours: asks for it, once at a time.
    pub fn need_map(self: &Arc<Self>, epoch: Option<Epoch>) {
        let known = self.map.lock().as_ref().map(|map| map.epoch);
        if epoch.is_some_and(|epoch| known.is_some_and(|known| known >= epoch)) {
            return;
        }
        if self.asking_for_map.swap(true, Ordering::AcqRel) {
            return;
        }
        let shared = Arc::clone(self);
        self.handle.spawn_on(0, move |worker| async move {
            if let Err(error) = shared.subscribe().await {
                tracing::debug!(%error, "no newer map");
            }
            // What cannot be satisfied now must not ask in a tight loop.
            worker.sleep(RETRY_PAUSE).await;
            shared.asking_for_map.store(false, Ordering::Release);
        });
    }

    /// Gets the map, and all newer ones from now on.
    pub async fn subscribe(&self) -> Result<(), ClientError> {
        match self.call_monitor(&MonitorRequest::Subscribe, self.deadline()).await? {
            MonitorReply::Map(update) => {
                self.learn(&update);
                Ok(())
            }
            other => Err(ClientError::Protocol(format!("the monitor answered {other:?} to a subscription"))),
        }
    }

    // ---- calls

    /// How long a call may take.
    pub fn deadline(&self) -> Instant {
        let timeout = self.config.timeout;
        Instant::now() + if timeout.is_zero() { CALL_DEADLINE } else { timeout }
    }

    /// Waits, on any thread.
    pub async fn pause(&self, duration: Duration) {
        // If the runtime has stopped, whoever waits finds out by what it does next.
        let _ = self.handle.run_on(0, move |worker| async move { worker.sleep(duration).await }).await;
    }

    /// A call to the monitor, made again when the connection lost it.
    pub async fn call_monitor(&self, request: &MonitorRequest, deadline: Instant) -> Result<MonitorReply, ClientError> {
        let connection = self.monitor.get().ok_or(ClientError::Closed)?;
        let front = protocol::encode(request);
        loop {
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return Err(ClientError::TimedOut("the monitor"));
            }
            let message = Message::new(TrafficClass::Control, Kind::Monitor.to_u16(), front.clone(), Bytes::new());
            match connection.call(message, remaining).await {
                Ok(reply) => return monitor_reply(&reply),
                Err(CallError::Deadline) => return Err(ClientError::TimedOut("the monitor")),
                Err(CallError::Reset) => self.pause(RETRY_PAUSE).await,
                Err(error @ (CallError::Closed | CallError::TooLong(_))) => {
                    return Err(if self.is_closed() {
                        ClientError::Closed
                    } else {
                        ClientError::Connect { monitor: self.config.monitor.clone(), reason: self.reason(error) }
                    });
                }
            }
        }
    }

    fn reason(&self, error: CallError) -> String {
        let problem = self.problem.lock();
        if problem.is_empty() { error.to_string() } else { problem.clone() }
    }
}

fn monitor_reply(message: &Message) -> Result<MonitorReply, ClientError> {
    if message.kind != Kind::MonitorReply.to_u16() {
        return Err(ClientError::Protocol(format!("kind {:#06x} from the monitor", message.kind)));
    }
    match protocol::decode("monitor reply", &message.front) {
        Ok(MonitorReply::Refused(why)) => Err(ClientError::Refused(why)),
        Ok(reply) => Ok(reply),
        Err(error) => Err(ClientError::Protocol(error.to_string())),
    }
}
