//! The connection to the monitor that leads.
//!
//! Contract: lives on worker 0 and is kept up for as long as the role runs. Whenever another
//! monitor answers than before, or one that does not know the session any more, and whenever a map
//! was missed, the OSD subscribes anew; a monitor that restarts is no reason to boot again.

use super::control::{self, Control};
use super::resolve;
use super::shared::Shared;
use client::monitors::{LinkConfig, MonitorEvents, MonitorLink};
use messenger::{Connection, Message, Refusal, SessionConfig, Worker};
use protocol::Kind;
use protocol::monitor::{MapUpdate, MonitorReply, MonitorRequest};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Time for the monitor to answer.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// Pause before asking again.
const RETRY_AFTER: Duration = Duration::from_millis(200);

/// Connects, and makes the control of worker 0.
pub(super) fn connect(shared: &Arc<Shared>) {
    let config = LinkConfig {
        worker: 0,
        name: shared.config.id.to_string(),
        cluster: shared.cluster.clone(),
        session: SessionConfig::default(),
    };
    let for_link = Arc::clone(shared);
    let make = move |worker: &Worker| {
        let control = control::of_worker(worker, &for_link);
        Rc::new(Link { shared: Arc::clone(&for_link), control }) as Rc<dyn MonitorEvents>
    };
    let monitors = &shared.config.monitors;
    let first = monitors.only_addr();
    shared.set_monitor(MonitorLink::start(&shared.handle, config, monitors, first, make));
}

struct Link {
    shared: Arc<Shared>,
    control: Rc<Control>,
}

impl MonitorEvents for Link {
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

    fn on_up(&self, worker: &Worker, resumed: bool) {
        if !resumed {
            worker.spawn(subscribe(worker.clone(), Rc::clone(&self.control)));
        }
    }

    fn on_down(&self, reason: &str) {
        tracing::debug!(osd = %self.shared.config.id, reason, "the monitor is away");
    }

    fn on_refused(&self, refusal: &Refusal) {
        tracing::error!(osd = %self.shared.config.id, %refusal, "the monitor refuses the connection");
        *self.shared.refusal.lock() = Some(refusal.clone());
    }
}

/// Asks for the map and every later one, until that has succeeded.
pub(super) async fn subscribe(worker: Worker, control: Rc<Control>) {
    while !control.is_stopping() {
        match control.ask(&MonitorRequest::Subscribe, ANSWER_MAX).await {
            Ok(MonitorReply::Map(update)) => return control.take_map(&update),
            Ok(other) => tracing::warn!(?other, "the monitor gives no map"),
            Err(error) => tracing::debug!(%error, "no map from the monitor"),
        }
        worker.sleep(RETRY_AFTER).await;
    }
}
