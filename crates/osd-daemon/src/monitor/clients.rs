//! Which client is at the other end of which connection, and what it says when an operator asks.
//!
//! Contract: a mount has no port of its own, so it is asked over the connection that it holds to
//! the monitor, wherever its host is. One that does not answer within [`ANSWER_MAX`] keeps nobody
//! waiting for longer. After a restart the monitor knows a client again from its next renewal on.

use bytes::Bytes;
use messenger::{CallError, Connection, Message, ReplyTo, TrafficClass, Worker};
use protocol::admin::AdminRequest;
use protocol::monitor::MonitorReply;
use protocol::{DecodeError, Kind, SessionId};
use std::collections::BTreeMap;
use std::time::Duration;

/// Time for a client to answer: much for one that runs, and less than operators wait for the
/// monitor.
const ANSWER_MAX: Duration = Duration::from_secs(3);

/// What a client is asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Question {
    /// What it has counted.
    Telemetry,
    /// Which operations it remembers.
    History,
    /// A setting of it.
    Admin(AdminRequest),
}

impl Question {
    /// What an operator's message asks of which client; `None` for any other message.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn of(message: &Message) -> Option<Result<(SessionId, Question), DecodeError>> {
        let session = || protocol::decode::<SessionId>("session", &message.front);
        match Kind::from_u16(message.kind).filter(|_| message.is_request())? {
            Kind::ClientTelemetry => Some(session().map(|session| (session, Question::Telemetry))),
            Kind::ClientHistory => Some(session().map(|session| (session, Question::History))),
            Kind::ClientAdmin => {
                let asked =
                    protocol::decode::<(SessionId, AdminRequest)>("admin request", &message.front);
                Some(asked.map(|(session, request)| (session, Question::Admin(request))))
            }
            _ => None,
        }
    }

    /// The question to the client, and the kind of its answer.
    fn put(&self) -> (Kind, Bytes, Kind) {
        match self {
            Question::Telemetry => (Kind::Telemetry, Bytes::new(), Kind::TelemetryReply),
            Question::History => (Kind::History, Bytes::new(), Kind::HistoryReply),
            Question::Admin(request) => (Kind::Admin, protocol::encode(request), Kind::AdminReply),
        }
    }
}

/// The connections of clients with a session.
#[derive(Default)]
pub(super) struct Clients {
    sessions: BTreeMap<SessionId, Connection>,
}

impl Clients {
    /// A request was answered: `renewed` is the session that it was to renew.
    pub fn note(
        &mut self,
        connection: &Connection,
        renewed: Option<SessionId>,
        reply: &MonitorReply,
    ) {
        match (reply, renewed) {
            (MonitorReply::Session { session, .. }, _) => {
                self.sessions.insert(*session, connection.clone());
            }
            (MonitorReply::Fenced, Some(session)) => {
                self.sessions.remove(&session);
            }
            (MonitorReply::Done(_), Some(session))
                if self
                    .sessions
                    .get(&session)
                    .is_none_or(|known| known.id() != connection.id()) =>
            {
                self.sessions.insert(session, connection.clone());
            }
            _ => {}
        }
    }

    /// A connection is closed for good.
    pub fn closed(&mut self, connection: u64) {
        self.sessions.retain(|_, known| known.id() != connection);
    }

    /// Puts a question to a session's client, and passes the answer on.
    pub fn ask(
        &self,
        worker: &Worker,
        session: SessionId,
        asked: Question,
        to: Connection,
        reply_to: ReplyTo,
    ) {
        let client = self.sessions.get(&session).filter(|client| client.is_up()).cloned();
        worker.spawn(async move {
            let (kind, front) = match client {
                Some(client) => put(&asked, &client).await,
                None => refusal("it is not connected to the monitor".to_owned()),
            };
            to.reply_to(reply_to, Message::new(reply_to.class, kind.to_u16(), front, Bytes::new()));
        });
    }
}

async fn put(asked: &Question, client: &Connection) -> (Kind, Bytes) {
    let (question, front, answer) = asked.put();
    let message = Message::new(TrafficClass::Control, question.to_u16(), front, Bytes::new());
    match client.call(message, ANSWER_MAX).await {
        Ok(reply) if reply.kind == answer.to_u16() => (answer, reply.front),
        Ok(reply) => refusal(format!("it gave an unexpected answer of kind {:#06x}", reply.kind)),
        Err(CallError::Deadline) => {
            refusal(format!("nothing came within {} s", ANSWER_MAX.as_secs()))
        }
        Err(error) => refusal(error.to_string()),
    }
}

fn refusal(why: String) -> (Kind, Bytes) {
    (Kind::MonitorReply, protocol::encode(&MonitorReply::Refused(why)))
}
