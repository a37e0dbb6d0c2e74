//! The connection to the monitor that leads: announces the service and hands maps to the owner.
//!
//! Contract: kept up for as long as the role runs. Whenever another monitor answers than before, or
//! one that has forgotten the session, the service announces itself and subscribes again, and tries
//! until both have succeeded. Heartbeats go to the monitor that leads: no other takes them.

use super::MdsConfig;
use super::inbox::{Event, Inbox};
use client::monitors::{LinkConfig, MonitorEvents, MonitorLink};
use cluster::ClusterMap;
use messenger::{Connection, Handle, LateCluster, Message, Refusal, SessionConfig, Worker};
use protocol::Kind;
use protocol::monitor::{
    MDS_HEARTBEAT_INTERVAL, MapUpdate, MdsReport, MonitorReply, MonitorRequest,
};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

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
) -> MonitorLink {
    let to = LinkConfig {
        worker: config.worker,
        name: "mds".to_owned(),
        cluster,
        session: SessionConfig::default(),
    };
    let stopped = Arc::clone(&inbox);
    // The link's own events ask over it.
    let own: Arc<OnceLock<MonitorLink>> = Arc::default();
    let told = Arc::clone(&own);
    let make = move |_: &Worker| {
        let (inbox, own) = (Arc::clone(&inbox), Arc::clone(&told));
        Rc::new(Link { inbox, announced, own }) as Rc<dyn MonitorEvents>
    };
    let first = config.monitors.only_addr();
    let link = MonitorLink::start(handle, to, &config.monitors, first, make);
    let link = own.get_or_init(|| link).clone();
    let beats = link.clone();
    handle.spawn_on(config.worker, move |worker| heartbeats(worker, beats, stopped, announced));
    link
}

/// Says again and again that the service is alive, until the role ends. On the owner's worker: one
/// that stands still is silent.
async fn heartbeats(worker: Worker, link: MonitorLink, inbox: Arc<Inbox>, announced: Announced) {
    let Announced { addr, namespace, .. } = announced;
    while !inbox.is_stopped() {
        worker.sleep(MDS_HEARTBEAT_INTERVAL).await;
        if !link.is_up() {
            continue;
        }
        match ask(&link, &MonitorRequest::MdsHeartbeat { addr, namespace }).await {
            Ok(MonitorReply::Refused(why)) => tracing::warn!(why, "the monitor takes no heartbeat"),
            Ok(_) => {}
            Err(error) => tracing::debug!(error, "no answer to a heartbeat"),
        }
    }
}

struct Link {
    inbox: Arc<Inbox>,
    announced: Announced,
    own: Arc<OnceLock<MonitorLink>>,
}

impl MonitorEvents for Link {
    fn on_message(&self, _worker: &Worker, connection: &Connection, message: Message) {
        if Kind::from_u16(message.kind) != Some(Kind::MapUpdate) {
            tracing::warn!(peer = %connection.peer(), kind = message.kind, "unexpected message dropped");
            return;
        }
        match protocol::decode::<MapUpdate>("map update", &message.front) {
            Ok(update) => take_map(&self.inbox, self.own.get(), &update),
            Err(error) => tracing::error!(%error, "map dropped"),
        }
    }

    fn on_up(&self, worker: &Worker, resumed: bool) {
        if !resumed {
            let (own, inbox) = (Arc::clone(&self.own), Arc::clone(&self.inbox));
            worker.spawn(hello(worker.clone(), own, inbox, self.announced));
        }
    }

    fn on_refused(&self, refusal: &Refusal) {
        tracing::error!(%refusal, "the monitor refuses the metadata service");
    }
}

fn take_map(inbox: &Inbox, link: Option<&MonitorLink>, update: &MapUpdate) {
    if let Some(link) = link {
        link.learn(&update.monitors);
    }
    match ClusterMap::decode(&update.map) {
        Ok(map) => inbox.push(Event::Map(Box::new(map))),
        Err(error) => tracing::error!(%error, "map dropped"),
    }
}

/// Announces and subscribes, until both are done or the role ends. In this order: without a map
/// nobody is served, so none is whom the monitor refuses.
async fn hello(
    worker: Worker,
    link: Arc<OnceLock<MonitorLink>>,
    inbox: Arc<Inbox>,
    announced: Announced,
) {
    let Announced { addr, namespace, old } = announced;
    for request in [MonitorRequest::MdsUp { addr, namespace, old }, MonitorRequest::Subscribe] {
        loop {
            if inbox.is_stopped() {
                return;
            }
            let Some(link) = link.get() else {
                worker.sleep(RETRY_AFTER).await;
                continue;
            };
            match ask(link, &request).await {
                Ok(MonitorReply::Map(update)) => {
                    take_map(&inbox, Some(link), &update);
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
pub(super) async fn report(link: &MonitorLink, report: MdsReport) -> Result<(), String> {
    match ask(link, &MonitorRequest::MdsReport(report)).await? {
        MonitorReply::Done(_) => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

async fn ask(link: &MonitorLink, request: &MonitorRequest) -> Result<MonitorReply, String> {
    let answer = link.ask(request, Instant::now() + ANSWER_MAX).await;
    answer.map_err(|error| error.to_string())
}
