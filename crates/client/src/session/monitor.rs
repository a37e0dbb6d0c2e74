//! The connection to the monitor: the map as it changes, and the session's life.

use super::live;
use super::shared::{RETRY_PAUSE, Shared};
use crate::config::ClientConfig;
use crate::error::ClientError;
use crate::monitors::{LinkConfig, MonitorEvents, MonitorLink};
use messenger::address::{HostPorts, NotAddresses, first_that_listens};
use messenger::{Connection, Message, Refusal, Runtime, RuntimeConfig, SessionConfig, Worker};
use protocol::monitor::{MapUpdate, MonitorReply, MonitorRequest};
use protocol::{Epoch, Kind, MONITOR_PORT, SessionId};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Least pause between renewals of the session.
const RENEW_MIN: Duration = Duration::from_millis(100);
/// Silence after which the only monitor that owes an answer is pinged. Sooner than others are: the
/// session depends on it.
const PING_AFTER: Duration = Duration::from_secs(1);
/// And after which its connection is made anew: of the 10 s that a session lives by default, a
/// third has gone by when a renewal is sent, and another third leaves time to connect and to renew.
const DEAD_AFTER: Duration = Duration::from_secs(3);

/// Where the monitors are.
#[derive(Clone)]
pub(super) struct Place {
    addresses: HostPorts,
    /// Where the only one is: of several addresses of its name, the first that listens.
    first: Option<SocketAddr>,
}

/// Understands where the monitors are. A single name is looked up at once: whoever mistyped it is
/// told.
pub(super) fn resolve(monitor: &str) -> Result<Place, ClientError> {
    let connect = |reason: String| ClientError::Connect { monitor: monitor.to_owned(), reason };
    let addresses: HostPorts =
        monitor.parse().map_err(|error: NotAddresses| connect(error.to_string()))?;
    let Some(only) = addresses.only() else { return Ok(Place { addresses, first: None }) };
    let found = only.resolve(MONITOR_PORT).map_err(|error| connect(error.to_string()))?;
    let first = first_that_listens(&found).map_err(|error| connect(error.to_string()))?;
    Ok(Place { addresses, first: Some(first) })
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
    let place = resolve(monitor)?;
    let config = ClientConfig { workers: 1, timeout, ..ClientConfig::new(monitor, "one question") };
    let runtime = Runtime::start(RuntimeConfig::new("ask", config.workers))
        .map_err(|error| ClientError::Local(error.to_string()))?;
    let shared = Shared::new(config, runtime.handle());
    dial(&shared, &place)?;
    let answer = messenger::sync::block_on(shared.call_monitor(request, shared.deadline()));
    runtime.shutdown();
    answer.map_err(|error| unreachable(&shared, error))
}

/// Begins the connection to the monitor.
fn dial(shared: &Arc<Shared>, place: &Place) -> Result<(), ClientError> {
    let session = SessionConfig {
        ping_after: PING_AFTER,
        dead_after: DEAD_AFTER,
        ..SessionConfig::default()
    };
    let (name, cluster) = (shared.config.name.clone(), shared.cluster.clone());
    let config = LinkConfig { worker: 0, name, cluster, session };
    let told = Arc::downgrade(shared);
    let make = move |_: &Worker| {
        Rc::new(FromMonitor { shared: Weak::clone(&told) }) as Rc<dyn MonitorEvents>
    };
    let link = MonitorLink::start(&shared.handle, config, &place.addresses, place.first, make);
    shared.monitor.set(link).map_err(|_| ClientError::Closed)
}

/// A time-out of the first call says why nothing answered.
fn unreachable(shared: &Shared, error: ClientError) -> ClientError {
    let ClientError::TimedOut(_) = error else { return error };
    let problem = shared.monitor.get().map(MonitorLink::problems).unwrap_or_default();
    let reason = if problem.is_empty() { "no answer".to_owned() } else { problem };
    ClientError::Connect { monitor: shared.config.monitor.clone(), reason }
}

/// Connects to the monitor, gets the map and opens a session.
pub(super) async fn open(shared: &Arc<Shared>, place: Place) -> Result<(), ClientError> {
    let deadline = shared.deadline();
    dial(shared, &place)?;
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
struct FromMonitor {
    shared: Weak<Shared>,
}

impl MonitorEvents for FromMonitor {
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

    fn on_up(&self, worker: &Worker, resumed: bool) {
        let Some(shared) = self.shared.upgrade() else { return };
        // Another monitor, or one that was restarted, does not know that we want maps.
        if !resumed && shared.map().is_ok() {
            worker.spawn(async move {
                if let Err(error) = shared.subscribe().await {
                    tracing::warn!(%error, "no map of the monitor that answers now");
                }
            });
        }
    }

    fn on_down(&self, reason: &str) {
        tracing::info!(reason, "connection to the monitor lost");
    }

    fn on_refused(&self, refusal: &Refusal) {
        let Some(shared) = self.shared.upgrade() else { return };
        // The first handshake names no cluster, unless it was told to.
        if let (Refusal::Cluster { theirs, .. }, true) = (refusal, shared.map().is_ok()) {
            shared.cluster_gone(*theirs);
        }
    }
}
