//! What all threads of a client share: the session, the map, the connections for control calls,
//! events.
//!
//! Contract: locks are held for a few instructions and never across a wait.

use super::live::LiveInflight;
use super::mds::Mds;
use super::promises::{Promises, Standing};
use super::{ClientEvent, Term};
use crate::config::ClientConfig;
use crate::error::ClientError;
use crate::objecter::local;
use bytes::Bytes;
use cluster::ClusterMap;
use messenger::sync::ContentionMutex;
use messenger::{
    CallError, Connection, Handle, LateCluster, Layer, Message, Operation, TrafficClass, Worker,
};
use metadata::lease::holder::Moment;
use protocol::monitor::{MapUpdate, MonitorReply, MonitorRequest};
use protocol::{ClusterId, Epoch, Kind, SessionId};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Events kept for a handler that is not there yet: more than a layer gets before it starts.
const EVENTS_KEPT_MAX: usize = 1024;
/// Deadline of a call to the monitor when none is configured.
const CALL_DEADLINE: Duration = Duration::from_secs(30);
/// Pause before a call is made again after a connection was lost or the answer was "not yet".
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// What of its time to live a session does not use. With renewals three times in that time it is
/// met only when they fail; what lies in it is for dropping what the kernel has cached, before the
/// cluster lets anybody else change it.
const MARGIN_PARTS: u32 = 10;

/// How often a lease that may not be used is looked at again.
const USABLE_POLL: Duration = Duration::from_millis(5);

type Handler = Arc<dyn Fn(ClientEvent) + Send + Sync>;

#[derive(Default)]
struct Events {
    handler: Option<Handler>,
    kept: VecDeque<ClientEvent>,
}

/// See the module.
pub(crate) struct Shared {
    pub config: ClientConfig,
    /// As in `config` at first.
    pub inflight: LiveInflight,
    pub handle: Handle,
    pub(super) monitor: OnceLock<Connection>,
    pub(super) mds: Mds,
    pub(super) namespace_times: Operation,
    standing: ContentionMutex<Standing>,
    map: ContentionMutex<Option<Arc<ClusterMap>>>,
    begun: Instant,
    /// Times in it are milliseconds after `begun`.
    promises: Promises,
    /// Of the newest map that every worker has learned: whichever carries an operation out has that
    /// or a newer one.
    epoch: Arc<AtomicU64>,
    asking_for_map: AtomicBool,
    closed: AtomicBool,
    /// Of the first map; [`Shared::cluster_gone`] once another one answers instead.
    pub(super) cluster: LateCluster,
    gone: AtomicBool,
    events: ContentionMutex<Events>,
    /// Why the monitor cannot be reached, for the error.
    pub(super) problem: ContentionMutex<String>,
}

impl Shared {
    pub fn new(config: ClientConfig, handle: Handle) -> Arc<Self> {
        let locks = handle.locks().clone();
        let cluster = match config.cluster {
            any if any == ClusterId::default() => LateCluster::default(),
            known => known.into(),
        };
        let inflight = LiveInflight::new(&config);
        let namespace_times = handle.operations().operation(Layer::Client, "namespace");
        Arc::new(Self {
            config,
            inflight,
            handle,
            monitor: OnceLock::new(),
            mds: Mds::new(&locks),
            namespace_times,
            standing: ContentionMutex::new(&locks, "client standing", Standing::default()),
            map: ContentionMutex::new(&locks, "client map", None),
            begun: Instant::now(),
            promises: Promises::default(),
            epoch: Arc::default(),
            asking_for_map: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            cluster,
            gone: AtomicBool::new(false),
            events: ContentionMutex::new(&locks, "client events", Events::default()),
            problem: ContentionMutex::new(&locks, "client problem", String::new()),
        })
    }

    /// The session.
    pub fn standing(&self) -> Standing {
        *self.standing.lock()
    }

    /// Milliseconds from `begun` to then.
    fn ms(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.begun).as_millis()).unwrap_or(u64::MAX)
    }

    /// Until when a session that was asked for then surely lives, less the margin.
    fn lives_until(&self, ttl: Duration, asked: Instant) -> u64 {
        self.ms(asked + (ttl - ttl / MARGIN_PARTS))
    }

    /// A session was opened, which was asked for then.
    pub fn opened(&self, session: SessionId, ttl: Duration, asked: Instant) {
        self.promises.opened(&mut self.standing.lock(), session, self.lives_until(ttl, asked));
    }

    /// The session was renewed, which was asked for then. The answer may come late: a session that
    /// is known to be dead stays dead.
    pub fn renewed(&self, session: SessionId, ttl: Duration, asked: Instant) {
        self.promises.renewed(&self.standing.lock(), session, self.lives_until(ttl, asked));
    }

    /// Does the session surely live, and for longer than the margin?
    pub fn lease_holds(&self, now: Instant) -> bool {
        self.ms(now) < self.promises.lives_until()
    }

    /// The session was promised to be the only mount until the first time, or that its leases on
    /// names count until the second, in this term.
    pub fn told(&self, session: SessionId, (alone, names): (Instant, Instant), term: u64) {
        let until = (self.ms(alone), self.ms(names));
        self.promises.told(&self.standing.lock(), session, until, term);
    }

    /// See [`super::Client::term`].
    pub fn term(&self) -> Term {
        let (alone, names, number) = self.promises.told_in();
        Term { number, holds: !self.left(alone).is_zero(), leased: !self.left(names).is_zero() }
    }

    /// How long the session surely stays the only mount.
    pub fn alone_for(&self) -> Duration {
        self.left(self.promises.alone_until())
    }

    /// From now until a time after `begun`.
    fn left(&self, until_ms: u64) -> Duration {
        Duration::from_millis(until_ms).saturating_sub(self.begun.elapsed())
    }

    /// Where the session stands now, for the rules of leases: the margin is taken off, and the map
    /// is one that every worker has.
    pub fn moment(&self) -> Moment {
        Moment {
            now: self.begun.elapsed(),
            until: Duration::from_millis(self.promises.lives_until()),
            epoch: Epoch::new(self.epoch.load(Ordering::Acquire)),
        }
    }

    /// See [`super::Client::usable`].
    pub async fn usable(self: &Arc<Self>, epoch: Epoch) -> Result<(), ClientError> {
        while !self.is_closed() {
            if self.gone.load(Ordering::Acquire) {
                return Err(ClientError::ClusterGone);
            }
            let at = self.moment();
            if at.now < at.until && at.epoch >= epoch {
                return Ok(());
            }
            if at.epoch < epoch {
                self.need_map(Some(epoch));
            }
            self.pause(USABLE_POLL).await;
        }
        Err(ClientError::Closed)
    }

    /// The session was declared dead.
    pub fn fenced(&self, session: SessionId) {
        if !self.promises.fenced(&mut self.standing.lock(), session) {
            return;
        }
        tracing::error!(%session, "the cluster declared this session dead");
        self.on_workers(|worker| local::with(worker, |local| local.kill()));
        self.emit(ClientEvent::Fenced(session));
    }

    /// Another cluster answers where this one's monitor was. What this client holds means nothing
    /// there.
    pub fn cluster_gone(&self, found: ClusterId) {
        if self.gone.swap(true, Ordering::AcqRel) {
            return;
        }
        let (monitor, known) = (&self.config.monitor, self.cluster.get());
        tracing::error!(monitor, %found, %known, "another cluster answers at the monitor's address: what is mounted here is gone; unmount and mount again");
        self.fenced(self.standing().session);
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
        } else if self.gone.load(Ordering::Acquire) {
            Err(ClientError::ClusterGone)
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

    /// Of the newest map, which some workers may not know yet.
    pub fn newest_epoch(&self) -> Epoch {
        self.map.lock().as_ref().map_or(Epoch::default(), |map| map.epoch)
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
        if !self.cluster.learn(map.cluster) {
            return self.cluster_gone(map.cluster);
        }
        let mut slot = self.map.lock();
        if slot.as_ref().is_some_and(|old| old.epoch >= map.epoch) {
            return;
        }
        *slot = Some(Arc::clone(&map));
        drop(slot);
        self.mds.moved(map.mds);
        self.teach(&map);
    }

    /// Brings a map to every worker, soon; the last one publishes its epoch (rule GrantEpoch: an
    /// operation that looks at the epoch may be carried out by any of them).
    pub fn teach(&self, map: &Arc<ClusterMap>) {
        let (map, epoch) = (Arc::clone(map), Arc::clone(&self.epoch));
        let untaught = Arc::new(AtomicUsize::new(self.handle.workers()));
        self.on_workers(move |worker| {
            // A worker without a session has none; it begins with the newest there is.
            local::with(worker, |local| local.on_map(Arc::clone(&map)));
            if untaught.fetch_sub(1, Ordering::AcqRel) == 1 {
                epoch.fetch_max(map.epoch.get(), Ordering::AcqRel);
            }
        });
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
            other => Err(ClientError::Protocol(format!(
                "the monitor answered {other:?} to a subscription"
            ))),
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
        let _ =
            self.handle.run_on(0, move |worker| async move { worker.sleep(duration).await }).await;
    }

    /// A call to the monitor, made again when the connection lost it.
    pub async fn call_monitor(
        &self,
        request: &MonitorRequest,
        deadline: Instant,
    ) -> Result<MonitorReply, ClientError> {
        let connection = self.monitor.get().ok_or(ClientError::Closed)?;
        let front = protocol::encode(request);
        loop {
            let remaining = deadline.saturating_duration_since(Instant::now());
            if self.gone.load(Ordering::Acquire) {
                return Err(ClientError::ClusterGone);
            }
            if remaining.is_zero() {
                return Err(ClientError::TimedOut("the monitor"));
            }
            let message = Message::new(
                TrafficClass::Control,
                Kind::Monitor.to_u16(),
                front.clone(),
                Bytes::new(),
            );
            match connection.call(message, remaining).await {
                Ok(reply) => return monitor_reply(&reply),
                Err(CallError::Deadline) => return Err(ClientError::TimedOut("the monitor")),
                Err(CallError::Reset) => self.pause(RETRY_PAUSE).await,
                Err(error @ (CallError::Closed | CallError::TooLong(_))) => {
                    return Err(if self.is_closed() {
                        ClientError::Closed
                    } else if self.gone.load(Ordering::Acquire) {
                        ClientError::ClusterGone
                    } else {
                        ClientError::Connect {
                            monitor: self.config.monitor.clone(),
                            reason: self.reason(error),
                        }
                    });
                }
            }
        }
    }

    fn reason(&self, error: CallError) -> String {
        let problem = self.problem.lock();
        match error {
            _ if !problem.is_empty() => problem.clone(),
            // What is no monitor closes a connection on which it is asked for the map.
            CallError::Closed => {
                "what listens there closed the connection: it is no monitor".to_owned()
            }
            other => other.to_string(),
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use messenger::{Runtime, RuntimeConfig};
    use protocol::ClusterId;
    use std::collections::BTreeMap;
    use std::sync::mpsc;

    const TTL: Duration = Duration::from_secs(10);
    const ONE: SessionId = SessionId::new(1);
    const TWO: SessionId = SessionId::new(2);

    fn shared(workers: usize) -> (Arc<Shared>, Runtime) {
        let runtime = Runtime::start(RuntimeConfig::new("test", workers)).expect("starts");
        let config = ClientConfig { workers, ..ClientConfig::new("127.0.0.1:1", "test") };
        (Shared::new(config, runtime.handle()), runtime)
    }

    fn map(epoch: u64) -> MapUpdate {
        let map = ClusterMap {
            cluster: ClusterId::default(),
            epoch: Epoch::new(epoch),
            osds: BTreeMap::new(),
            pools: BTreeMap::new(),
            pgs: BTreeMap::new(),
            sessions: BTreeMap::new(),
            last_session: ONE,
            mds: None,
        };
        MapUpdate {
            cluster: map.cluster,
            epoch: map.epoch,
            map: map.encode(),
            monitors: Vec::new(),
        }
    }

    #[test]
    fn a_session_is_used_for_less_than_it_lives() {
        let (shared, runtime) = shared(1);
        let asked = Instant::now();
        shared.opened(ONE, TTL, asked);
        let margin = TTL / MARGIN_PARTS;
        assert!(shared.lease_holds(asked + TTL - margin - Duration::from_millis(2)));
        assert!(!shared.lease_holds(asked + TTL - margin));
        let at = shared.moment();
        assert!(at.now < at.until && at.until <= at.now + TTL - margin);
        runtime.shutdown();
    }

    #[test]
    fn a_late_renewal_revives_no_session() {
        let (shared, runtime) = shared(1);
        let now = Instant::now();
        shared.opened(ONE, TTL, now);
        shared.fenced(ONE);
        shared.renewed(ONE, TTL, now);
        assert!(!shared.lease_holds(now), "dead");
        shared.opened(TWO, TTL, now);
        shared.renewed(ONE, 10 * TTL, now);
        assert!(!shared.lease_holds(now + TTL), "an answer to the session before");
        shared.renewed(TWO, 10 * TTL, now);
        assert!(shared.lease_holds(now + TTL));
        runtime.shutdown();
    }

    #[test]
    fn an_epoch_counts_when_every_worker_has_the_map() {
        let (shared, runtime) = shared(2);
        let (go_on, waits) = mpsc::channel::<()>();
        shared.handle.spawn_on(1, move |_| async move { waits.recv().expect("told to go on") });
        shared.learn(&map(7));
        let taught = shared.handle.block_on_worker(0, |_| async {});
        taught.expect("worker 0 has learned it");
        assert_eq!(shared.map().expect("there").epoch, Epoch::new(7));
        assert_eq!(shared.moment().epoch, Epoch::default(), "worker 1 has not");
        shared.opened(ONE, TTL, Instant::now());
        let waiting = Arc::clone(&shared);
        let usable =
            shared.handle.run_on(0, move |_| async move { waiting.usable(Epoch::new(7)).await });
        go_on.send(()).expect("waits");
        messenger::sync::block_on(usable).expect("runs").expect("the map is everywhere");
        assert_eq!(shared.moment().epoch, Epoch::new(7));
        shared.learn(&map(6));
        shared.handle.block_on_worker(1, |_| async {}).expect("runs");
        assert_eq!(shared.moment().epoch, Epoch::new(7), "it never goes back");
        runtime.shutdown();
    }
}
