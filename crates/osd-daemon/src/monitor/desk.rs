//! Who is connected to the monitor, and what goes out to them: maps, answers, questions to OSDs.
//!
//! Contract: the owner's. It decides nothing; what it is given to send may be told.

use super::clients::Clients;
use super::inbox::{Event, Inbox};
use bytes::Bytes;
use cluster::{Action, ClusterMap};
use messenger::{Connection, Message, ReplyTo, TrafficClass, Worker};
use protocol::monitor::{MapUpdate, MonitorReply, MonitorRequest, ResolveReply};
use protocol::{Epoch, Kind, OsdId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Time for an OSD to fence a session, sync and report, or to make a decision durable. An OSD that
/// dies meanwhile is noticed by its heartbeats; this is for a disk that is slow.
const RESOLVE_DEADLINE: Duration = Duration::from_secs(3);

/// See the module.
pub(super) struct Desk {
    worker: Worker,
    inbox: Arc<Inbox>,
    subscribers: BTreeMap<u64, Subscriber>,
    /// The connection on which an OSD was last heard: it is asked there.
    osds: BTreeMap<OsdId, Connection>,
    pub clients: Clients,
}

struct Subscriber {
    connection: Connection,
    /// The last map sent there.
    sent: Epoch,
}

/// An answer that waits until it may be told.
pub(super) struct Answer {
    pub connection: Connection,
    pub reply_to: ReplyTo,
    pub reply: MonitorReply,
}

impl Answer {
    pub fn send(self) {
        let (kind, front) = (Kind::MonitorReply.to_u16(), protocol::encode(&self.reply));
        let message = Message::new(self.reply_to.class, kind, front, Bytes::new());
        self.connection.reply_to(self.reply_to, message);
    }
}

/// In whose name a request is that shows where an OSD is heard.
pub(super) fn speaks_for(request: &MonitorRequest) -> Option<OsdId> {
    match request {
        MonitorRequest::Boot { osd, .. } => Some(*osd),
        MonitorRequest::Heartbeat { report, .. } => Some(report.osd),
        _ => None,
    }
}

impl Desk {
    pub fn new(worker: Worker, inbox: Arc<Inbox>) -> Self {
        let (subscribers, osds, clients) = Default::default();
        Self { worker, inbox, subscribers, osds, clients }
    }

    /// Who asks for the map gets the newer ones, too; it has this one.
    pub fn note_subscriber(
        &mut self,
        connection: &Connection,
        request: &MonitorRequest,
        map: &ClusterMap,
    ) {
        if matches!(request, MonitorRequest::Subscribe) {
            let subscriber = Subscriber { connection: connection.clone(), sent: map.epoch };
            self.subscribers.insert(connection.id(), subscriber);
        }
    }

    /// What is asked of an OSD goes to where it was heard, and to nobody who only names it:
    /// `reply` is what a request in its name got (see [`speaks_for`]).
    pub fn note_osd(
        &mut self,
        connection: &Connection,
        speaks_for: Option<OsdId>,
        reply: &MonitorReply,
    ) {
        let (Some(osd), MonitorReply::Done(_)) = (speaks_for, reply) else { return };
        if self.osds.get(&osd).is_none_or(|known| known.id() != connection.id()) {
            self.osds.insert(osd, connection.clone());
        }
    }

    /// A connection is closed for good.
    pub fn closed(&mut self, connection: u64) {
        self.clients.closed(connection);
        self.subscribers.remove(&connection);
        self.osds.retain(|_, c| c.id() != connection);
    }

    /// Sends the map of this epoch to whoever has an older one. A subscriber without TCP gets the
    /// newest one when it is back.
    pub fn publish(&mut self, epoch: Epoch, update: impl Fn() -> MapUpdate) {
        let mut front = None;
        for subscriber in
            self.subscribers.values_mut().filter(|s| s.sent < epoch && s.connection.is_up())
        {
            let front = front.get_or_insert_with(|| protocol::encode(&update())).clone();
            let message =
                Message::new(TrafficClass::Control, Kind::MapUpdate.to_u16(), front, Bytes::new());
            subscriber.connection.send(message);
            subscriber.sent = epoch;
        }
    }

    /// Asks an OSD about a dead session; what becomes of it arrives in the inbox.
    pub fn ask(&self, action: Action) {
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
