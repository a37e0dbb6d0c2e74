//! The owner task: applies what arrives to the state machine, and does what it says.
//!
//! Contract: in each round, first apply, then save (if the map has changed), then publish, then
//! answer, then ask OSDs. While a save is under way events gather; the next round takes them
//! together, so a burst costs two saves, not many.

use super::desk::{Answer, Desk, speaks_for};
use super::inbox::{Event, Inbox};
use super::refuse_hello;
use cluster::{ControlError, ControlPlane, Monitor};
use messenger::Worker;
use protocol::Epoch;
use protocol::monitor::MonitorRequest;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

/// Pause before a save that failed is done again.
const SAVE_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The owner.
pub(super) struct Owner {
    worker: Worker,
    monitor: Monitor,
    /// Absent while a save is under way.
    control: Option<Box<dyn ControlPlane>>,
    inbox: Arc<Inbox>,
    /// Epoch of the state on disk, which is also the last one published.
    saved: Epoch,
    desk: Desk,
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
        let desk = Desk::new(worker.clone(), Arc::clone(&inbox));
        Self { worker, monitor, control: Some(control), inbox, saved, desk }
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
            self.desk.publish(self.saved, || self.monitor.update());
            answers.into_iter().for_each(Answer::send);
            for action in self.monitor.actions(now) {
                self.desk.ask(action);
            }
        }
    }

    fn apply(&mut self, event: Event, at: Duration, answers: &mut Vec<Answer>) -> ControlFlow<()> {
        match event {
            Event::Request { connection, reply_to, request } => {
                self.desk.note_subscriber(&connection, &request, self.monitor.map());
                let speaks_for = speaks_for(&request);
                let renewed = match &request {
                    MonitorRequest::RenewSession { session } => Some(*session),
                    _ => None,
                };
                let reply = self.monitor.handle(request, at);
                self.desk.note_osd(&connection, speaks_for, &reply);
                self.desk.clients.note(&connection, renewed, &reply);
                answers.push(Answer { connection, reply_to, reply });
            }
            Event::AskClient { connection, reply_to, session, asked } => {
                self.desk.clients.ask(&self.worker, session, asked, connection, reply_to);
            }
            Event::Closed { connection } => {
                self.desk.closed(connection);
            }
            Event::Resolved { ticket, reply } => self.monitor.resolve_answer(ticket, reply, at),
            // Whoever asked may have gone.
            Event::Tell(sender) => drop(sender.try_send(self.monitor.status())),
            Event::Tick => self.monitor.tick(at),
            Event::Hello { connection, reply_to, .. } => refuse_hello(&connection, reply_to),
            // of several only
            Event::Answered { .. }
            | Event::Ungreeted { .. }
            | Event::Frame { .. }
            | Event::Kept { .. }
            | Event::Reopened(_) => {}
            Event::Stop => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
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
}
