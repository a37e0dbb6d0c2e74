//! One request on its way to an answer, from whichever monitor gives it.

use super::*;
use messenger::TrafficClass;
use messenger::{Call, CallError};

/// How long one of several may owe an answer before another is asked: longer than an election.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// How often it is looked whether another monitor has been reached.
const POLL: Duration = Duration::from_millis(10);

/// One request on its way to an answer.
pub(super) struct Question {
    pub inner: Arc<Inner>,
    pub front: Bytes,
    pub repeats: bool,
    pub deadline: Instant,
}

impl Question {
    /// Sends it to the current monitor, if there is one to send it to.
    pub fn send(&self) -> Option<(u64, Call)> {
        let remaining = self.deadline.saturating_duration_since(Instant::now());
        let state = self.inner.state.lock();
        let is_one = state.monitors.count() == 1;
        // What is sent once waits for a monitor that answers: this one may be replaced.
        let current = state.current.as_ref().filter(|c| self.repeats || c.is_up || is_one)?;
        let limit = if is_one || !self.repeats { remaining } else { remaining.min(ANSWER_MAX) };
        let (front, kind) = (self.front.clone(), Kind::Monitor.to_u16());
        let message = Message::new(TrafficClass::Control, kind, front, Bytes::new());
        let (number, connection) = (current.number, current.connection.clone());
        drop(state);
        Some((number, connection.call(message, limit)))
    }

    pub async fn answer(self, first: Option<(u64, Call)>) -> Result<MonitorReply, LinkError> {
        let mut attempt = first;
        loop {
            let pause = match attempt {
                None => POLL,
                Some((number, call)) => match call.await {
                    Ok(reply) => match decode(&reply)? {
                        MonitorReply::NotLeader { leader } => {
                            Inner::not_leader(&self.inner, number, leader);
                            RETRY_PAUSE
                        }
                        answer => {
                            self.inner.state.lock().leaderless = 0;
                            return Ok(answer);
                        }
                    },
                    Err(CallError::TooLong(error)) => {
                        return Err(LinkError::Protocol(error.to_string()));
                    }
                    Err(CallError::Deadline) if Instant::now() >= self.deadline => {
                        return Err(LinkError::Deadline);
                    }
                    Err(_) if self.inner.is_over().is_none() && !self.repeats => {
                        return Err(LinkError::Unknown);
                    }
                    Err(CallError::Deadline) => {
                        Inner::move_on(&self.inner, number);
                        POLL
                    }
                    Err(CallError::Reset) => RETRY_PAUSE,
                    Err(CallError::Closed) => POLL,
                },
            };
            if let Some(why) = self.inner.is_over() {
                return Err(LinkError::Closed(why));
            }
            if Instant::now() >= self.deadline {
                return Err(LinkError::Deadline);
            }
            if !self.inner.pause(pause).await {
                return Err(LinkError::Closed("the process ends".to_owned()));
            }
            attempt = self.send();
        }
    }
}

fn decode(message: &Message) -> Result<MonitorReply, LinkError> {
    if message.kind != Kind::MonitorReply.to_u16() {
        let text = format!("kind {:#06x} from the monitor", message.kind);
        return Err(LinkError::Protocol(text));
    }
    protocol::decode("monitor reply", &message.front)
        .map_err(|error| LinkError::Protocol(error.to_string()))
}
