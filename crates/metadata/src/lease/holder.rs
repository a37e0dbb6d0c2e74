//! The other side of a lease: what a session may do with one that it was granted, as a state
//! machine.
//!
//! Contract: no I/O and no clock; one [`Holder`] per file and session, driven by whoever carries
//! the session's messages. Rules that it keeps, by their names in the model of the write path:
//! * **ReadClock**: nothing is begun under a lease once the session's time ran out on its own clock
//!   ([`Holder::permits`]);
//! * **GrantEpoch**: nothing is begun with a map that is older than the grant (the same);
//! * **ReleaseStable**: a write lease is given back only when every write begun under it is stable
//!   ([`Holder::may_return`] tells, [`Holder::gave_back`] panics otherwise);
//! * **fencing tokens**: a grant with a smaller token than the last one's is of an older lease, and
//!   void;
//! * a grant asked for before a recall is void, and asked for anew: the recall may have crossed it
//!   on the way.

use protocol::namespace::{Grant, LeaseMode};
use protocol::{Epoch, Rule, Rules};
use std::time::Duration;

/// Names one question to the service; an answer to any but the latest is void.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket(u64);

/// How many writes had begun: what a sync that begins now will make stable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct WriteMark(u64);

/// A session at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moment {
    /// By the session's own clock.
    pub now: Duration,
    /// Until when the session's leases are used, by the same clock: no longer than it surely lives,
    /// counted from when its renewal was *sent*.
    pub until: Duration,
    /// Epoch of the newest map that everything which carries the session's operations out has.
    pub epoch: Epoch,
}

/// May an operation begin?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Permit {
    /// Yes.
    Go,
    /// No lease, or a weaker one: ask the service.
    NotHeld,
    /// Not before the session is renewed (ReadClock).
    Expired,
    /// Not before a map of this epoch is there (GrantEpoch).
    OldMap(Epoch),
}

/// What to do on a recall.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecallStep {
    /// Carry it out: this task owns the recall until [`Holder::recalled`].
    Begin,
    /// Nothing is held beyond what may be kept: answer at once.
    Answer,
    /// Another task is giving back and will see this one too.
    Merged,
}

/// A session's side of the lease on one file.
#[derive(Debug, Default)]
pub struct Holder {
    rules: Rules,
    mode: Option<LeaseMode>,
    /// Of the last grant.
    epoch: Epoch,
    /// Of the last grant, kept when the lease has gone.
    token: u64,
    /// The service counts the file as open by this session.
    open: bool,
    asking: Option<Ticket>,
    closing: Option<Ticket>,
    tickets: u64,
    /// Tickets up to this one are of sessions that are dead.
    dead_tickets: u64,
    recalling: bool,
    recall_again: Option<Option<LeaseMode>>,
    /// Writes begun, and how many of them are stable.
    begun: u64,
    stable: u64,
}

impl Holder {
    /// Nothing is held. `rules`: those of the write protocol that hold; all, but in a simulation.
    pub fn new(rules: Rules) -> Self {
        Self { rules, ..Self::default() }
    }

    /// The lease held.
    pub fn mode(&self) -> Option<LeaseMode> {
        self.mode
    }

    /// Token of the last grant: it grows from one grant of the file to the next, whoever gets it.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Of the map that the lease needs (GrantEpoch).
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Does the service count the file as open by this session, with no close under way?
    pub fn is_open(&self) -> bool {
        self.open && self.closing.is_none()
    }

    /// Does the service count the file as open by this session, perhaps not for long?
    pub fn may_be_open(&self) -> bool {
        self.open
    }

    /// Is a question, a close or a recall under way?
    pub fn is_busy(&self) -> bool {
        self.asking.is_some() || self.closing.is_some() || self.recalling
    }

    /// May an operation that needs `mode` begin at this moment? Ask for every operation, after it
    /// was let in: one that was held back, or stopped, in between must not go on under a lease that
    /// ran out.
    pub fn permits(&self, mode: Option<LeaseMode>, at: Moment) -> Permit {
        if mode > self.mode {
            Permit::NotHeld
        } else if mode.is_none() {
            Permit::Go
        } else if at.now >= at.until && self.rules.on(Rule::ReadClock) {
            Permit::Expired
        } else if at.epoch < self.epoch && self.rules.on(Rule::GrantEpoch) {
            Permit::OldMap(self.epoch)
        } else {
            Permit::Go
        }
    }

    /// A question to the service begins.
    pub fn ask(&mut self) -> Ticket {
        let ticket = self.next_ticket();
        self.asking = Some(ticket);
        ticket
    }

    fn next_ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }

    /// The service granted. True if the grant counts; a void one is asked for anew.
    pub fn granted(&mut self, ticket: Ticket, grant: Grant) -> bool {
        if ticket.0 <= self.dead_tickets {
            return false;
        }
        self.open = true;
        if self.asking != Some(ticket) {
            return false;
        }
        self.asking = None;
        if grant.token < self.token {
            return false;
        }
        self.take(grant);
        true
    }

    /// This session has just made the file, and has it open; `None`: the lease that this brought
    /// has been given back.
    ///
    /// # Panics
    /// If it has a lease on it already.
    pub fn created(&mut self, grant: Option<Grant>) {
        self.open = true;
        if let Some(grant) = grant {
            assert!(self.mode.is_none(), "a new file cannot have a lease already");
            self.take(grant);
        }
    }

    fn take(&mut self, grant: Grant) {
        self.mode = self.mode.max(Some(grant.mode));
        self.epoch = self.epoch.max(grant.epoch);
        self.token = grant.token;
    }

    /// The service refused, did not answer, or its answer is no longer waited for.
    pub fn not_granted(&mut self, ticket: Ticket) {
        if self.asking == Some(ticket) {
            self.asking = None;
        }
        self.close_done(ticket, false);
    }

    /// Begins to tell the service that the file is closed; `None` if it knows. Opens wait for
    /// [`Holder::close_done`].
    pub fn begin_close(&mut self) -> Option<Ticket> {
        if !self.open || self.is_busy() {
            return None;
        }
        let ticket = self.next_ticket();
        self.closing = Some(ticket);
        Some(ticket)
    }

    /// The service knows (or may not, if `told` is false: then it is told again).
    pub fn close_done(&mut self, ticket: Ticket, told: bool) {
        if self.closing == Some(ticket) {
            self.closing = None;
            self.open &= !told;
        }
    }

    /// A write, or another change of the data, begins.
    pub fn write_begins(&mut self) {
        self.begun += 1;
    }

    /// A sync of the file's data begins: hand the mark to [`Holder::synced`] when it has succeeded.
    pub fn sync_begins(&self) -> WriteMark {
        WriteMark(self.begun)
    }

    /// All writes that had begun at the mark are stable, or known to be lost.
    pub fn synced(&mut self, mark: WriteMark) {
        self.stable = self.stable.max(mark.0);
    }

    /// May the service be told that the lease is down to `keep`? A write lease goes only with
    /// writes that are all stable (ReleaseStable).
    pub fn may_return(&self, keep: Option<LeaseMode>) -> bool {
        let written = self.mode == Some(LeaseMode::Write) && keep != Some(LeaseMode::Write);
        !written || self.stable == self.begun || !self.rules.on(Rule::ReleaseStable)
    }

    /// The service wants the lease back down to `keep`.
    pub fn recall(&mut self, keep: Option<LeaseMode>) -> RecallStep {
        self.asking = None; // the grant under way may be what is recalled, or may come after it
        if self.recalling {
            let keep = self.recall_again.map_or(keep, |other| other.min(keep));
            self.recall_again = Some(keep);
            return RecallStep::Merged;
        }
        if self.mode <= keep {
            return RecallStep::Answer;
        }
        self.recalling = true;
        RecallStep::Begin
    }

    /// The service has taken the lease back down to `keep`; called before any operation may begin
    /// again.
    ///
    /// # Panics
    /// If a write lease goes with writes that are not stable (ReleaseStable).
    pub fn gave_back(&mut self, keep: Option<LeaseMode>) {
        assert!(self.may_return(keep), "a lease given back with writes that are not stable");
        self.mode = self.mode.min(keep);
    }

    /// The recall that this task began is through: the lease is down to `kept` (`None` if it was
    /// not given back). Returns a recall that came meanwhile and asks for more.
    ///
    /// # Panics
    /// If no recall was begun, or the lease was not given back as said.
    pub fn recalled(&mut self, kept: Option<Option<LeaseMode>>) -> Option<Option<LeaseMode>> {
        assert!(self.recalling, "a recall ended that nobody began");
        self.recalling = false;
        assert!(kept.is_none_or(|keep| self.mode <= keep), "a lease kept that was given back");
        self.recall_again.take().filter(|&keep| self.mode > keep)
    }

    /// The service, started again, does not know of the lease: it is gone.
    pub fn claim_refused(&mut self) {
        self.asking = None;
        self.mode = None;
    }

    /// The session is dead: everything is gone, and what was not stable is lost or not, as the
    /// shards decide. Tokens go on: a late answer to the dead session's question is void, and says
    /// nothing of the next one.
    pub fn fenced(&mut self) {
        self.asking = None;
        self.closing = None;
        self.dead_tickets = self.tickets;
        self.mode = None;
        self.open = false;
        self.recall_again = None;
        self.stable = self.begun;
    }
}

#[cfg(test)]
mod tests;
