//! A leader's requests, a batch at a time.
//!
//! Contract: see [`super::member`]. While a batch is under way nothing is applied to the machine:
//! what it shows then is what the batch made of it.

use super::desk::{Answer, Desk, speaks_for};
use super::inbox::Event;
use super::member::Identity;
use super::replica::Replica;
use cluster::{Monitor, SessionState, decides};
use consensus::{AskError, Ticket};
use protocol::monitor::MonitorRequest;
use std::time::Duration;

/// One that leads.
pub(super) struct Leading {
    /// Which leadership.
    pub term: u64,
    pub monitor: Monitor,
    pub batch: Option<Batch>,
    /// What the next batch will have, with the time of its arrival.
    pub waiting: Vec<(Duration, Event)>,
    /// What could not be asked of the log may be asked once more.
    pub ask_again: bool,
}

/// What waits for the log.
pub(super) struct Batch {
    pub answers: Vec<Answer>,
    /// Its proposal, or its round of questions; `None` if that could not be asked yet.
    ticket: Option<Ticket>,
}

impl Leading {
    pub fn new(term: u64, monitor: Monitor) -> Self {
        Self { term, monitor, batch: None, waiting: Vec::new(), ask_again: false }
    }

    /// Begins the next batch, if none is under way and there is something to do. True: it did.
    pub fn begin(
        &mut self,
        replica: &mut Replica,
        desk: &mut Desk,
        identity: &Identity,
        now: Duration,
    ) -> bool {
        let is_ahead = |monitor: &Monitor, replica: &Replica| {
            replica.state().is_none_or(|state| state.map.epoch != monitor.map().epoch)
        };
        if let Some(batch) = &mut self.batch {
            if batch.ticket.is_none() && std::mem::take(&mut self.ask_again) {
                let asked = ask(&self.monitor, replica, is_ahead(&self.monitor, replica), now);
                batch.ticket = asked;
                return asked.is_some();
            }
            return false;
        }
        if self.waiting.is_empty() && !is_ahead(&self.monitor, replica) {
            return false;
        }
        let (mut answers, mut confirms) = (Vec::new(), false);
        for (at, event) in std::mem::take(&mut self.waiting) {
            confirms |= self.apply(event, at, desk, identity, &mut answers);
        }
        // a coordinator that was deposed asks nobody
        confirms |= self.monitor.map().sessions.values().any(|s| *s == SessionState::Dead);
        let is_ahead = is_ahead(&self.monitor, replica);
        if is_ahead || confirms {
            let ticket = ask(&self.monitor, replica, is_ahead, now);
            self.batch = Some(Batch { answers, ticket });
        } else {
            self.end(answers, desk, identity, now);
        }
        true
    }

    /// True: the answer is for the leader alone.
    fn apply(
        &mut self,
        event: Event,
        at: Duration,
        desk: &mut Desk,
        identity: &Identity,
        answers: &mut Vec<Answer>,
    ) -> bool {
        match event {
            Event::Request { connection, reply_to, request } => {
                desk.note_subscriber(&connection, &request, self.monitor.map());
                let speaks_for = speaks_for(&request);
                let renewed = match &request {
                    MonitorRequest::RenewSession { session } => Some(*session),
                    _ => None,
                };
                let decides = decides(&request);
                let mut reply = self.monitor.handle(request, at);
                identity.name_monitors(&mut reply);
                desk.note_osd(&connection, speaks_for, &reply);
                desk.clients.note(&connection, renewed, &reply);
                answers.push(Answer { connection, reply_to, reply });
                decides
            }
            Event::Resolved { ticket, reply } => {
                self.monitor.resolve_answer(ticket, reply, at);
                false
            }
            Event::Tick => {
                self.monitor.tick(at);
                false
            }
            _ => false,
        }
    }

    /// The log has settled this.
    pub fn settled(&mut self, ticket: Ticket, desk: &mut Desk, identity: &Identity, now: Duration) {
        if let Some(batch) = self.batch.take_if(|batch| batch.ticket == Some(ticket)) {
            self.end(batch.answers, desk, identity, now);
        }
    }

    fn end(&mut self, answers: Vec<Answer>, desk: &mut Desk, identity: &Identity, now: Duration) {
        let update = || identity.with_monitors(self.monitor.update());
        desk.publish(self.monitor.map().epoch, update);
        answers.into_iter().for_each(Answer::send);
        for action in self.monitor.actions(now) {
            desk.ask(action);
        }
    }
}

/// Proposes what was changed, or asks whether this one still leads. `None`: to be asked again.
fn ask(monitor: &Monitor, replica: &mut Replica, is_ahead: bool, now: Duration) -> Option<Ticket> {
    let asked = if is_ahead { replica.propose(monitor.state()) } else { replica.confirm(now) };
    match asked {
        Ok(ticket) => Some(ticket),
        Err(AskError::NotLeader { .. } | AskError::Busy) => None,
        Err(error @ (AskError::Size | AskError::NoGroup)) => {
            tracing::error!(%error, "a change of the map cannot be proposed");
            None
        }
    }
}
