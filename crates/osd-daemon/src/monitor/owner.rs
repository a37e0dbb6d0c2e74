//! The owner task: applies what arrives to the state machine, and does what it says.
//!
//! Contract: in each round, first apply, then save (if the map has changed), then publish, then
//! answer, then ask OSDs. While a save is under way events gather; the next round takes them
//! together, so a burst costs two saves, not many.

use super::clients::Clients;
use super::inbox::{Event, Inbox};
use bytes::Bytes;
use cluster::{Action, ControlError, ControlPlane, Monitor};
use messenger::{Connection, Message, ReplyTo, TrafficClass, Worker};
use protocol::monitor::{MonitorReply, MonitorRequest, ResolveReply};
use protocol::{Epoch, Kind, OsdId};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

/// Pause before a save that failed is done again.
const SAVE_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Time for an OSD to fence a session, sync and report, or to make a decision durable. An OSD that
/// dies meanwhile is noticed by its heartbeats; this is for a disk that is slow.
const RESOLVE_DEADLINE: Duration = Duration::from_secs(3);

/// The owner.
pub(super) struct Owner {
    worker: Worker,
    monitor: Monitor,
    /// Absent while a save is under way.
    control: Option<Box<dyn ControlPlane>>,
    inbox: Arc<Inbox>,
    /// Epoch of the state on disk, which is also the last one published.
    saved: Epoch,
    subscribers: BTreeMap<u64, Subscriber>,
    /// The connection on which an OSD was last heard: it is asked there.
    osds: BTreeMap<OsdId, Connection>,
    clients: Clients,
}

struct Subscriber {
    connection: Connection,
    /// The last map sent there.
    sent: Epoch,
}

/// An answer that waits for the save.
struct Answer {
    connection: Connection,
    reply_to: ReplyTo,
    reply: MonitorReply,
}

impl Owner {
    /// An owner of a monitor whose state of epoch `saved` is on disk.
    pub fn new(
        worker: Worker,
        monitor: Monitor,
        control: Box<dyn ControlPlane>,
        inbox: Arc<Inbox>,
        saved: Epoch,
    ) -> Self {
        let (control, clients) = (Some(control), Clients::default());
        Self {
            worker,
            monitor,
            control,
            inbox,
            saved,
            subscribers: BTreeMap::new(),
            osds: BTreeMap::new(),
            clients,
        }
    }

    /// Runs until [`Event::Stop`], or until the state cannot be saved.
    pub async fn run(mut self) {
        let mut flow = ControlFlow::Continue(());
        while flow.is_continue() {
            let mut answers = Vec::new();
            let mut now = Duration::ZERO;
            for (at, event) in self.inbox.take().await {
                now = at;
                if self.apply(event, at, &mut answers).is_break() {
                    flow = ControlFlow::Break(());
                }
            }
            if !self.save_somehow().await {
                return;
            }
            self.publish();
            for Answer { connection, reply_to, reply } in answers {
                let front = protocol::encode(&reply);
                let message =
                    Message::new(reply_to.class, Kind::MonitorReply.to_u16(), front, Bytes::new());
                connection.reply_to(reply_to, message);
            }
            for action in self.monitor.actions(now) {
                self.ask(action);
            }
        }
    }

    fn apply(&mut self, event: Event, at: Duration, answers: &mut Vec<Answer>) -> ControlFlow<()> {
        match event {
            Event::Request { connection, reply_to, request } => {
                self.note_sender(&connection, &request);
                let renewed = match &request {
                    MonitorRequest::RenewSession { session } => Some(*session),
                    _ => None,
                };
                let reply = self.monitor.handle(request, at);
                self.clients.note(&connection, renewed, &reply);
                answers.push(Answer { connection, reply_to, reply });
            }
            Event::AskClient { connection, reply_to, session, asked } => {
                self.clients.ask(&self.worker, session, asked, connection, reply_to);
            }
            Event::Closed { connection } => {
                self.clients.closed(connection);
                self.subscribers.remove(&connection);
                self.osds.retain(|_, c| c.id() != connection);
            }
            Event::Resolved { ticket, reply } => self.monitor.resolve_answer(ticket, reply, at),
            // Whoever asked may have gone.
            Event::Tell(sender) => drop(sender.try_send(self.monitor.status())),
            Event::Tick => self.monitor.tick(at),
            Event::Stop => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    fn note_sender(&mut self, connection: &Connection, request: &MonitorRequest) {
        let osd = match request {
            MonitorRequest::Boot { osd, .. } => *osd,
            MonitorRequest::Heartbeat { report } => report.osd,
            MonitorRequest::Subscribe => {
                let subscriber =
                    Subscriber { connection: connection.clone(), sent: self.monitor.map().epoch };
                self.subscribers.insert(connection.id(), subscriber);
                return;
            }
            _ => return,
        };
        let member = self.monitor.map().osds.contains_key(&osd);
        if member && self.osds.get(&osd).is_none_or(|known| known.id() != connection.id()) {
            self.osds.insert(osd, connection.clone());
        }
    }

    /// Saves, again and again while there is no space: until then nobody hears of the map, nor of
    /// anything after it. False if the monitor is to end.
    async fn save_somehow(&mut self) -> bool {
        let mut failures = 0u32;
        loop {
            match self.save().await {
                Ok(()) if failures > 0 => {
                    tracing::warn!(failures, "the monitor's state is saved, at last")
                }
                Ok(()) => {}
                Err(ControlError::NoResult) => {
                    tracing::error!("the monitor stops: its state cannot be saved");
                    self.inbox.push(Event::Stop);
                    return false;
                }
                Err(error) => {
                    if failures == 0 {
                        tracing::error!(%error, "the monitor cannot save its state, and tells nobody of it; tried every second");
                    }
                    failures += 1;
                    self.worker.sleep(SAVE_AGAIN_AFTER).await;
                    if self.inbox.is_stopped() {
                        return false;
                    }
                    continue;
                }
            }
            return true;
        }
    }

    async fn save(&mut self) -> Result<(), ControlError> {
        if self.monitor.map().epoch == self.saved {
            return Ok(());
        }
        let Some(mut control) = self.control.take() else { return Err(ControlError::NoResult) };
        let state = self.monitor.state().clone();
        let epoch = state.map.epoch;
        let job = move || {
            let result = control.save(&state);
            if let Err(error) = result.as_ref().map_or(Ok(()), |()| control.publish(&state.map)) {
                tracing::warn!(%error, "cannot publish the map");
            }
            (control, result)
        };
        let (control, result) =
            self.worker.blocking(job).await.map_err(|_| ControlError::NoResult)?;
        self.control = Some(control);
        result?;
        self.saved = epoch;
        Ok(())
    }

    /// Sends the map to whoever has an older one. A subscriber without TCP gets the newest one when
    /// it is back.
    fn publish(&mut self) {
        let epoch = self.monitor.map().epoch;
        let mut front = None;
        for subscriber in
            self.subscribers.values_mut().filter(|s| s.sent < epoch && s.connection.is_up())
        {
            let front =
                front.get_or_insert_with(|| protocol::encode(&self.monitor.update())).clone();
            let message =
                Message::new(TrafficClass::Control, Kind::MapUpdate.to_u16(), front, Bytes::new());
            subscriber.connection.send(message);
            subscriber.sent = epoch;
        }
    }

    /// Asks an OSD about a dead session; what becomes of it arrives in the inbox.
    fn ask(&self, action: Action) {
        let Action { ticket, osd, request } = action;
        let inbox = Arc::clone(&self.inbox);
        let Some(connection) = self.osds.get(&osd).cloned() else {
            return inbox.push(Event::Resolved { ticket, reply: None });
        };
        let front = protocol::encode(&request);
        let message =
            Message::new(TrafficClass::Control, Kind::Resolve.to_u16(), front, Bytes::new());
        self.worker.spawn(async move {
            let reply = match connection.call(message, RESOLVE_DEADLINE).await {
                Ok(reply) => protocol::decode::<ResolveReply>("resolve reply", &reply.front)
                    .inspect_err(
                        |error| tracing::warn!(%osd, %error, "answer about a dead session"),
                    )
                    .ok(),
                Err(error) => {
                    tracing::debug!(%osd, %error, "no answer about a dead session");
                    None
                }
            };
            inbox.push(Event::Resolved { ticket, reply });
        });
    }
}
