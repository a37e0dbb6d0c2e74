//! The connection to the monitor.
//!
//! Contract: lives on worker 0 and is kept up for as long as the role runs. Whenever the monitor
//! does not know the session any more, and whenever a map was missed, the OSD subscribes anew; a
//! monitor that restarts is no reason to boot again.

use super::control::{self, Control};
use super::resolve;
use super::shared::Shared;
use messenger::{
    CloseReason, ConnectConfig, Connection, Message, Refusal, Service, StateEvent, TrafficClass,
    Worker,
};
use protocol::monitor::{MapUpdate, MonitorReply, MonitorRequest};
use protocol::{ClusterId, Kind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Time for the monitor to answer.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// Pause before asking again.
const RETRY_AFTER: Duration = Duration::from_millis(200);
/// Pause before a connection that was closed for good is made anew.
const RECONNECT_AFTER: Duration = Duration::from_secs(1);

/// Connects, and makes the control of worker 0 if there is none. `cluster`: zero if it is not known
/// yet.
pub(super) fn connect(shared: &Arc<Shared>, cluster: ClusterId) {
    let to = ConnectConfig::new(shared.config.monitor, cluster, shared.config.id.to_string());
    let for_link = Arc::clone(shared);
    let connection = shared.handle.connect(0, to, move |worker| {
        let control = control::of_worker(worker, &for_link);
        Rc::new(Link { shared: for_link, control })
    });
    shared.set_monitor(connection);
}

struct Link {
    shared: Arc<Shared>,
    control: Rc<Control>,
}

impl Service for Link {
    fn on_message(&self, worker: &Worker, connection: &Connection, message: Message) {
        match Kind::from_u16(message.kind) {
            Some(Kind::MapUpdate) => {
                match protocol::decode::<MapUpdate>("map update", &message.front) {
                    Ok(update) => self.control.take_map(&update),
                    Err(error) => tracing::error!(%error, "map dropped"),
                }
            }
            Some(Kind::Resolve) if message.is_request() => {
                resolve::on_question(worker, &self.shared, connection, &message);
            }
            _ => tracing::warn!(kind = message.kind, "unexpected message of the monitor dropped"),
        }
    }

    fn on_state(&self, worker: &Worker, connection: &Connection, event: &StateEvent) {
        match event {
            StateEvent::Up { resumed: false, .. } => {
                worker.spawn(subscribe(
                    worker.clone(),
                    connection.clone(),
                    Rc::clone(&self.control),
                ));
            }
            StateEvent::Down { reason } => {
                tracing::debug!(osd = %self.shared.config.id, reason, "the monitor is away");
            }
            StateEvent::Refused(Refusal::Busy)
            | StateEvent::Up { resumed: true, .. }
            | StateEvent::Reset => {}
            StateEvent::Refused(refusal) => {
                tracing::error!(osd = %self.shared.config.id, %refusal, "the monitor refuses the connection");
                *self.shared.refusal.lock() = Some(refusal.clone());
            }
        }
    }

    fn on_close(&self, worker: &Worker, _connection: &Connection, reason: &CloseReason) {
        let over = matches!(reason, CloseReason::Local | CloseReason::Shutdown);
        let Some(identity) =
            self.shared.identity.get().filter(|_| !over && !self.shared.is_stopping())
        else {
            return;
        };
        tracing::warn!(osd = %self.shared.config.id, %reason, "the connection to the monitor is lost; another is made");
        let (worker, shared, cluster) =
            (worker.clone(), Arc::clone(&self.shared), identity.cluster);
        worker.clone().spawn(async move {
            worker.sleep(RECONNECT_AFTER).await;
            if !shared.is_stopping() {
                connect(&shared, cluster);
            }
        });
    }
}

/// Asks for the map and every later one, until that has succeeded.
pub(super) async fn subscribe(worker: Worker, connection: Connection, control: Rc<Control>) {
    let front = protocol::encode(&MonitorRequest::Subscribe);
    while !control.is_stopping() {
        let message = Message::new(
            TrafficClass::Control,
            Kind::Monitor.to_u16(),
            front.clone(),
            Default::default(),
        );
        match connection.call(message, ANSWER_MAX).await {
            Ok(reply) => match protocol::decode("monitor reply", &reply.front) {
                Ok(MonitorReply::Map(update)) => return control.take_map(&update),
                other => tracing::warn!(?other, "the monitor gives no map"),
            },
            // what the monitor lost is subscribed again when it is back
            Err(messenger::CallError::Reset | messenger::CallError::Closed) => return,
            Err(error) => tracing::warn!(%error, "no map from the monitor"),
        }
        worker.sleep(RETRY_AFTER).await;
    }
}
