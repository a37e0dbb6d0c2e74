//! What arrives for the owner, and the services that bring it.

use super::clients::Question;
use crate::admin::{Fixed, LiveConfig};
use crate::inbox::OwnerEvent;
use messenger::{CloseReason, Connection, Message, ReplyTo, Service, Worker};
use protocol::monitor::{ClusterStatus, MonitorReply, MonitorRequest, ResolveReply};
use protocol::{Kind, SessionId};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

/// Something for the owner.
#[derive(Debug)]
pub(super) enum Event {
    /// A request, and where its answer goes.
    Request { connection: Connection, reply_to: ReplyTo, request: MonitorRequest },
    /// Somebody asks something of the client of a session.
    AskClient { connection: Connection, reply_to: ReplyTo, session: SessionId, asked: Question },
    /// A connection is closed for good.
    Closed { connection: u64 },
    /// What became of a question to an OSD.
    Resolved { ticket: u64, reply: Option<ResolveReply> },
    /// Somebody in this process wants to know how the cluster is.
    Tell(SyncSender<ClusterStatus>),
    /// Time passes.
    Tick,
    /// The end.
    Stop,
}

impl OwnerEvent for Event {
    const TICK: Self = Event::Tick;

    fn is_stop(&self) -> bool {
        matches!(self, Event::Stop)
    }
}

/// The owner's queue.
pub(super) type Inbox = crate::inbox::Inbox<Event>;

/// The service of one worker.
pub(super) fn service(inbox: Arc<Inbox>, live: Arc<LiveConfig>) -> Rc<dyn Service> {
    Rc::new(Forward { inbox, live })
}

struct Forward {
    inbox: Arc<Inbox>,
    live: Arc<LiveConfig>,
}

impl Service for Forward {
    fn on_message(&self, worker: &Worker, connection: &Connection, message: Message) {
        if messenger::telemetry::answer(worker, connection, &message) {
            return;
        }
        if message.kind == Kind::Admin.to_u16() && message.is_request() {
            return self.live.serve(&Fixed, connection, &message);
        }
        if let Some(asked) = Question::of(&message) {
            return match asked {
                Ok((session, asked)) => {
                    let (connection, reply_to) = (connection.clone(), message.reply_to());
                    self.inbox.push(Event::AskClient { connection, reply_to, session, asked });
                }
                Err(error) => refuse(connection, &message, error.to_string()),
            };
        }
        if Kind::from_u16(message.kind) != Some(Kind::Monitor) || !message.is_request() {
            tracing::warn!(peer = %connection.peer(), kind = message.kind, "not for a monitor: connection closed");
            connection.close();
            return;
        }
        match protocol::decode::<MonitorRequest>("monitor request", &message.front) {
            Ok(request) => {
                let (connection, reply_to) = (connection.clone(), message.reply_to());
                self.inbox.push(Event::Request { connection, reply_to, request });
            }
            Err(error) => refuse(connection, &message, error.to_string()),
        }
    }

    fn on_close(&self, _worker: &Worker, connection: &Connection, _reason: &CloseReason) {
        self.inbox.push(Event::Closed { connection: connection.id() });
    }
}

fn refuse(connection: &Connection, message: &Message, why: String) {
    let reply = protocol::encode(&MonitorReply::Refused(why));
    connection.reply(message, Kind::MonitorReply.to_u16(), reply, Default::default());
}
