//! The connection to the monitor: announces the service and hands maps to the owner.
//!
//! Contract: kept up for as long as the role runs. Whenever a new incarnation of the connection begins, the service
//! subscribes and announces itself again, and tries until both have succeeded.

use super::MdsConfig;
use super::inbox::{Event, Inbox};
use cluster::ClusterMap;
use messenger::{ConnectConfig, Connection, Handle, LateCluster, Message, Service, StateEvent, TrafficClass, Worker};
use protocol::Kind;
use protocol::monitor::{MDS_HEARTBEAT_INTERVAL, MapUpdate, MdsReport, MonitorReply, MonitorRequest};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Time for the monitor to answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Pause before asking again.
const RETRY_AFTER: Duration = Duration::from_millis(300);

/// Connects; `advertise` is where clients reach the service.
pub(super) fn connect(
    handle: &Handle,
    config: &MdsConfig,
    cluster: LateCluster,
    advertise: SocketAddr,
    inbox: Arc<Inbox>,
) -> Connection {
    let to = ConnectConfig::new(config.monitor, cluster, "mds");
    let stopped = Arc::clone(&inbox);
    let connection = handle.connect(config.worker, to, move |_| Rc::new(Link { inbox, advertise }));
    let beats = connection.clone();
    handle.spawn_on(config.worker, move |worker| heartbeats(worker, beats, stopped, advertise));
    connection
}

/// Says again and again that the service is alive, until the role ends. On the owner's worker: one
/// that stands still is silent.
async fn heartbeats(worker: Worker, connection: Connection, inbox: Arc<Inbox>, addr: SocketAddr) {
    while !inbox.is_stopped() {
        worker.sleep(MDS_HEARTBEAT_INTERVAL).await;
        if !connection.is_up() {
            continue;
        }
        match ask(&connection, &MonitorRequest::MdsHeartbeat { addr }).await {
            Ok(MonitorReply::Refused(why)) => tracing::warn!(why, "the monitor knows another metadata service"),
            Ok(_) => {}
            Err(error) => tracing::debug!(error, "no answer to a heartbeat"),
        }
    }
}

struct Link {
    inbox: Arc<Inbox>,
    advertise: SocketAddr,
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
                let hello = hello(worker.clone(), connection.clone(), Arc::clone(&self.inbox), self.advertise);
                worker.spawn(hello);
            }
            StateEvent::Refused(refusal) => tracing::error!(%refusal, "the monitor refuses the metadata service"),
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

/// Subscribes and announces, until both are done or the role ends.
async fn hello(worker: Worker, connection: Connection, inbox: Arc<Inbox>, addr: SocketAddr) {
    for request in [MonitorRequest::Subscribe, MonitorRequest::MdsUp { addr }] {
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
                Ok(other) => tracing::warn!(?other, "the monitor does not take the metadata service yet"),
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
    let message = Message::new(TrafficClass::Control, Kind::Monitor.to_u16(), front, Default::default());
    let reply = connection.call(message, ANSWER_MAX).await.map_err(|error| error.to_string())?;
    protocol::decode::<MonitorReply>("monitor reply", &reply.front).map_err(|error| error.to_string())
}
