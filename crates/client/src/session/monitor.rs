//! The connection to the monitor: the map as it changes, and the session's life.

use super::live;
use super::shared::{RETRY_PAUSE, Shared};
use crate::config::ClientConfig;
use crate::error::ClientError;
use messenger::address::{HostPort, NotAnAddress, first_that_listens};
use messenger::{
    CloseReason, ConnectConfig, Connection, Message, Refusal, Runtime, RuntimeConfig, Service,
    StateEvent, Worker,
};
use protocol::monitor::{MapUpdate, MonitorReply, MonitorRequest};
use protocol::{Epoch, Kind, MONITOR_PORT, SessionId};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Least pause between renewals of the session.
const RENEW_MIN: Duration = Duration::from_millis(100);
/// Silence after which a monitor that owes an answer is pinged. Sooner than others are: the session
/// depends on it.
const PING_AFTER: Duration = Duration::from_secs(1);
/// And after which its connection is made anew: of the 10 s that a session lives by default, a
/// third has gone by when a renewal is sent, and another third leaves time to connect and to renew.
const DEAD_AFTER: Duration = Duration::from_secs(3);

/// Finds the monitor's address: of several, the first that listens.
pub(super) fn resolve(monitor: &str) -> Result<SocketAddr, ClientError> {
    let connect = |reason: String| ClientError::Connect { monitor: monitor.to_owned(), reason };
    let address: HostPort =
        monitor.parse().map_err(|error: NotAnAddress| connect(error.to_string()))?;
    let found = address.resolve(MONITOR_PORT).map_err(|error| connect(error.to_string()))?;
    first_that_listens(&found).map_err(|error| connect(error.to_string()))
}

/// Asks the monitor one thing, without a session: for `status` and the like. Blocks for at most
/// `timeout`.
///
/// # Errors
/// [`ClientError::Connect`], [`ClientError::Refused`], [`ClientError::TimedOut`].
pub fn ask_monitor(
    monitor: &str,
    request: &MonitorRequest,
    timeout: Duration,
) -> Result<MonitorReply, ClientError> {
    let addr = resolve(monitor)?;
    let config = ClientConfig { workers: 1, timeout, ..ClientConfig::new(monitor, "one question") };
    let runtime = Runtime::start(RuntimeConfig::new("ask", config.workers))
        .map_err(|error| ClientError::Local(error.to_string()))?;
    let shared = Shared::new(config, runtime.handle());
    dial(&shared, addr)?;
    let answer = messenger::sync::block_on(shared.call_monitor(request, shared.deadline()));
    runtime.shutdown();
    answer.map_err(|error| unreachable(&shared, error))
}

/// Begins the connection to the monitor.
fn dial(shared: &Arc<Shared>, addr: SocketAddr) -> Result<(), ClientError> {
    let service = MonitorService { shared: Arc::downgrade(shared) };
    let mut config = ConnectConfig::new(addr, shared.cluster.clone(), shared.config.name.clone());
    (config.session.ping_after, config.session.dead_after) = (PING_AFTER, DEAD_AFTER);
    let connection = shared.handle.connect(0, config, move |_| Rc::new(service) as Rc<dyn Service>);
    shared.monitor.set(connection).map_err(|_| ClientError::Closed)
}

/// A time-out of the first call says why nothing answered.
fn unreachable(shared: &Shared, error: ClientError) -> ClientError {
    let ClientError::TimedOut(_) = error else { return error };
    let problem = shared.problem.lock().clone();
    let reason = if problem.is_empty() { "no answer".to_owned() } else { problem };
    ClientError::Connect { monitor: shared.config.monitor.clone(), reason }
}

/// Connects to the monitor, gets the map and opens a session.
pub(super) async fn open(shared: &Arc<Shared>, addr: SocketAddr) -> Result<(), ClientError> {
    let deadline = shared.deadline();
    dial(shared, addr)?;
    shared.subscribe().await.map_err(|error| unreachable(shared, error))?;
    begin(shared, &open_session(shared, deadline).await?);
    Ok(())
}

/// A session as the monitor gave it.
pub(super) struct Opened {
    pub session: SessionId,
    ttl: Duration,
    asked: Instant,
}

/// Opens a session and waits for a map that knows it. It is nobody's before [`begin`].
pub(super) async fn open_session(
    shared: &Arc<Shared>,
    deadline: Instant,
) -> Result<Opened, ClientError> {
    let asked = Instant::now();
    let request = MonitorRequest::OpenSession { name: shared.config.name.clone() };
    let (session, ttl, epoch) = match shared.call_monitor(&request, deadline).await? {
        MonitorReply::Session { session, ttl_ms, epoch } => {
            (session, Duration::from_millis(ttl_ms), epoch)
        }
        other => {
            return Err(ClientError::Protocol(format!(
                "the monitor answered {other:?} to a new session"
            )));
        }
    };
    wait_for_map(shared, epoch, deadline).await?;
    Ok(Opened { session, ttl, asked })
}

/// Operations belong to this session from now on, which is kept alive.
pub(super) fn begin(shared: &Arc<Shared>, opened: &Opened) {
    let &Opened { session, ttl, asked } = opened;
    shared.opened(session, ttl, asked);
    let renewing = Arc::downgrade(shared);
    shared.handle.spawn_on(0, move |worker| renew(worker, renewing, session, ttl));
}

async fn wait_for_map(
    shared: &Arc<Shared>,
    epoch: Epoch,
    deadline: Instant,
) -> Result<(), ClientError> {
    while shared.map()?.epoch < epoch {
        if Instant::now() >= deadline {
            return Err(ClientError::TimedOut("the cluster map"));
        }
        shared.need_map(Some(epoch));
        shared.pause(RETRY_PAUSE / 10).await;
    }
    Ok(())
}

/// Keeps a session alive, three times in its time to live, until it ends.
async fn renew(worker: Worker, shared: Weak<Shared>, session: SessionId, ttl: Duration) {
    let third = (ttl / 3).max(RENEW_MIN);
    let mut pause = third;
    loop {
        worker.sleep(pause).await;
        let Some(shared) = shared.upgrade() else { return };
        if shared.check().is_err() || shared.standing().session != session {
            return;
        }
        let asked = Instant::now();
        match shared.call_monitor(&MonitorRequest::RenewSession { session }, asked + third).await {
            Ok(MonitorReply::Fenced) => {
                shared.fenced(session);
                return;
            }
            Ok(_) => {
                shared.renewed(session, ttl, asked);
                pause = third;
            }
            Err(error) => {
                tracing::warn!(%error, "session not renewed; trying again");
                pause = RENEW_MIN;
            }
        }
    }
}

/// What the monitor sends of its own.
struct MonitorService {
    shared: Weak<Shared>,
}

impl Service for MonitorService {
    fn on_message(&self, worker: &Worker, connection: &Connection, message: Message) {
        if messenger::telemetry::answer(worker, connection, &message) {
            return;
        }
        let Some(shared) = self.shared.upgrade() else { return };
        if live::answer(&shared, connection, &message) {
            return;
        }
        if message.kind != Kind::MapUpdate.to_u16() {
            tracing::debug!(kind = message.kind, "message of the monitor dropped");
            return;
        }
        match protocol::decode::<MapUpdate>("map update", &message.front) {
            Ok(update) => shared.learn(&update),
            Err(error) => tracing::warn!(%error, "map update dropped"),
        }
    }

    fn on_state(&self, worker: &Worker, _connection: &Connection, event: &StateEvent) {
        let Some(shared) = self.shared.upgrade() else { return };
        match event {
            StateEvent::Up { resumed, .. } => {
                shared.problem.lock().clear();
                // A monitor that was restarted does not know that we want maps.
                if !resumed && shared.map().is_ok() {
                    worker.spawn(async move {
                        if let Err(error) = shared.subscribe().await {
                            tracing::warn!(%error, "no map after the monitor's restart");
                        }
                    });
                }
            }
            StateEvent::Down { reason } => {
                tracing::info!(reason, "connection to the monitor lost");
                shared.problem.lock().clone_from(reason);
            }
            // Its first handshake names no cluster, unless it was told to.
            StateEvent::Refused(Refusal::Cluster { theirs, .. }) if shared.map().is_ok() => {
                shared.cluster_gone(*theirs)
            }
            StateEvent::Refused(refusal) => *shared.problem.lock() = refusal.to_string(),
            StateEvent::Reset => {}
        }
    }

    fn on_close(&self, _worker: &Worker, _connection: &Connection, reason: &CloseReason) {
        tracing::info!(%reason, "connection to the monitor ended");
    }
}
