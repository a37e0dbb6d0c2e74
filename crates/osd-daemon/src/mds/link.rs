//! The connection to the monitor: announces the service and hands maps to the owner.
//!
//! Contract: kept up for as long as the role runs. Whenever a new incarnation of the connection
//! begins, the service announces itself and subscribes again, and tries until both have succeeded.

use super::MdsConfig;
use super::inbox::{Event, Inbox};
use cluster::ClusterMap;
use messenger::{
    ConnectConfig, Connection, Handle, LateCluster, Message, Service, StateEvent, TrafficClass,
    Worker,
};
use protocol::Kind;
use protocol::monitor::{
    MDS_HEARTBEAT_INTERVAL, MapUpdate, MdsReport, MonitorReply, MonitorRequest,
};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Time for the monitor to answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Pause before asking again.
const RETRY_AFTER: Duration = Duration::from_millis(300);

/// Pause before asking again what was refused: an operator has to do something.
const REFUSED_AFTER: Duration = Duration::from_secs(5);

/// What the service announces: where clients reach it, and the id of its namespace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Announced {
    pub addr: SocketAddr,
    pub namespace: u128,
    /// It was of a cluster before this start.
    pub old: bool,
}

/// Connects, and announces the service.
pub(super) fn connect(
    handle: &Handle,
    config: &MdsConfig,
    cluster: LateCluster,
    announced: Announced,
    inbox: Arc<Inbox>,
) -> Connection {
    let to = ConnectConfig::new(config.monitor, cluster, "mds");
    let stopped = Arc::clone(&inbox);
    let connection = handle.connect(config.worker, to, move |_| Rc::new(Link { inbox, announced }));
    let beats = connection.clone();
    handle.spawn_on(config.worker, move |worker| heartbeats(worker, beats, stopped, announced));
    connection
}

/// Says again and again that the service is alive, until the role ends. On the owner's worker: one
/// that stands still is silent.
async fn heartbeats(
    worker: Worker,
    connection: Connection,
    inbox: Arc<Inbox>,
    announced: Announced,
) {
    let Announced { addr, namespace, .. } = announced;
    while !inbox.is_stopped() {
        worker.sleep(MDS_HEARTBEAT_INTERVAL).await;
        if !connection.is_up() {
            continue;
        }
        match ask(&connection, &MonitorRequest::MdsHeartbeat { addr, namespace }).await {
            Ok(MonitorReply::Refused(why)) => tracing::warn!(why, "the monitor takes no heartbeat"),
            Ok(_) => {}
            Err(error) => tracing::debug!(error, "no answer to a heartbeat"),
        }
    }
}

struct Link {
    inbox: Arc<Inbox>,
    announced: Announced,
}

impl Service for Link {
    fn on_message(&self, _worker: &Worker, connection: &Connection, message: Message) {
        if Kind::from_u16(message.kind) != Some(Kind::MapUpdate) {
            tracing::warn!(peer = %connection.peer(), kind = message.kind, "unexpected message dropped");
            return;
        }
        match protocol::decode::<MapUpdate>("map update", &message.front) {
            Ok(update) => take_map(&self.inbox, &update),
            Err(error) => tracing::error!(%error, "map dropped"),
        }
    }

    fn on_state(&self, worker: &Worker, connection: &Connection, event: &StateEvent) {
        match event {
            StateEvent::Up { resumed: false, .. } => {
                let hello = hello(
                    worker.clone(),
                    connection.clone(),
                    Arc::clone(&self.inbox),
                    self.announced,
                );
                worker.spawn(hello);
            }
            StateEvent::Refused(refusal) => {
                tracing::error!(%refusal, "the monitor refuses the metadata service")
            }
            StateEvent::Up { resumed: true, .. } | StateEvent::Down { .. } | StateEvent::Reset => {}
        }
    }
}

fn take_map(inbox: &Inbox, update: &MapUpdate) {
    match ClusterMap::decode(&update.map) {
        Ok(map) => inbox.push(Event::Map(Box::new(map))),
        Err(error) => tracing::error!(%error, "map dropped"),
    }
}

/// Announces and subscribes, until both are done or the role ends. In this order: without a map
/// nobody is served, so none is whom the monitor refuses.
async fn hello(worker: Worker, connection: Connection, inbox: Arc<Inbox>, announced: Announced) {
    let Announced { addr, namespace, old } = announced;
    for request in [MonitorRequest::MdsUp { addr, namespace, old }, MonitorRequest::Subscribe] {
        loop {
            if inbox.is_stopped() {
                return;
            }
            match ask(&connection, &request).await {
                Ok(MonitorReply::Map(update)) => {
                    take_map(&inbox, &update);
                    break;
                }
                Ok(MonitorReply::Done(_)) => break,
                Ok(MonitorReply::Refused(why)) => {
                    tracing::error!(
                        why,
                        "the monitor refuses the metadata service, which serves nobody"
                    );
                    worker.sleep(REFUSED_AFTER).await;
                    continue;
                }
                Ok(other) => {
                    tracing::warn!(?other, "the monitor does not take the metadata service yet")
                }
                Err(error) => tracing::warn!(error, "no answer from the monitor"),
            }
            worker.sleep(RETRY_AFTER).await;
        }
    }
    tracing::info!(%addr, "announced to the monitor");
}

/// Tells the monitor what the service cannot go on with.
///
/// # Errors
/// When it does not take it: it is not there, or not yet.
pub(super) async fn report(connection: &Connection, report: MdsReport) -> Result<(), String> {
    match ask(connection, &MonitorRequest::MdsReport(report)).await? {
        MonitorReply::Done(_) => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

async fn ask(connection: &Connection, request: &MonitorRequest) -> Result<MonitorReply, String> {
    let front = protocol::encode(request);
    let message =
        Message::new(TrafficClass::Control, Kind::Monitor.to_u16(), front, Default::default());
    let reply = connection.call(message, ANSWER_MAX).await.map_err(|error| error.to_string())?;
    protocol::decode::<MonitorReply>("monitor reply", &reply.front)
        .map_err(|error| error.to_string())
}
