//! Shared read leases on names and attributes, as a state machine: what several mounts may answer
//! from their own memory at the same time.
//!
//! Contract: no I/O and no clock; `now` is the time since any fixed moment and never goes back. A
//! lease is on one file or directory: its attributes and, of a directory, its names, free ones
//! included. Any number of sessions hold one. Whoever is about to change what a lease is on asks
//! first ([`NameLeases::change`]); the others are asked for theirs and the change waits, but only
//! as long as one of them may count on it. Four rules:
//!
//! * `NamesClock`: a session counts on its leases until a time that it is promised with every
//!   answer, measured from when it *asked*; the service measures from when it answers, and a
//!   [`SLACK`] more. A session that is silent, dead or cut off holds up nobody for longer.
//! * `NamesWait`: a change waits until each other session that held a lease on it has given it back
//!   or its promise is over.
//! * `NamesSilent`: a session that has not answered a recall is promised nothing: what it does not
//!   know of it must not count on again.
//! * `NamesToken`: an answer to an earlier recall is none to a later one.
//!
//! On the session's side an answer teaches nothing if a recall has come since it was asked for
//! (`NamesAsked`).

#[cfg(test)]
mod tests;

use super::Ticket;
use protocol::namespace::NamesRecall;
use protocol::{Gfid, SessionId};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::Duration;

/// What the service adds to a promise before somebody else may count on its end: a session looks
/// at its clock, and then acts.
pub const SLACK: Duration = Duration::from_millis(250);

/// Limits of leases on names.
#[derive(Clone, Copy, Debug)]
pub struct NamesConfig {
    /// For how long a session may count on its leases after an answer, and so how long one that is
    /// silent holds up a change at most, but for [`SLACK`].
    pub promise: Duration,
    /// Leases of one session at which it is asked for all of them: twice what a mount remembers.
    /// About 50 bytes each.
    pub session_max: usize,
    /// Leases of all sessions at which no more are given: mounts ask every time then.
    pub total_max: usize,
    /// A recall is repeated after this time without an answer: the connection may have been lost.
    pub recall_repeat: Duration,
}

impl Default for NamesConfig {
    fn default() -> Self {
        Self {
            promise: Duration::from_secs(1),
            session_max: 65_536,
            total_max: 1 << 20,
            recall_repeat: Duration::from_secs(1),
        }
    }
}

/// What the owner is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NamesAction {
    /// Ask a session for leases.
    Recall(SessionId, NamesRecall),
    /// A change that waited is to be tried again.
    Ready(Ticket),
    /// The session of a change that waited is gone.
    Expired(Ticket),
}

/// The service's switches of the rules, for the tests.
#[derive(Clone, Copy, Debug)]
struct Rules {
    wait: bool,
    silent: bool,
    token: bool,
}

const ALL_RULES: Rules = Rules { wait: true, silent: true, token: true };

#[derive(Clone, Copy, Debug)]
struct Asked {
    token: u64,
    at: Duration,
}

#[derive(Debug, Default)]
struct Session {
    held: HashSet<Gfid>,
    /// It may count on its leases until then, as the service sees it.
    until: Duration,
    /// What it was asked for and has not given back.
    recalled: BTreeMap<Gfid, Asked>,
    /// It was asked for everything.
    all: Option<Asked>,
    /// It has ended; its promise may not be over.
    gone: bool,
}

impl Session {
    /// May it still count on something that a change of this file would make untrue?
    fn blocks(&self, now: Duration, gfid: Gfid) -> bool {
        now < self.until && self.recalled.contains_key(&gfid)
    }

    fn owes_answers(&self) -> bool {
        !self.recalled.is_empty() || self.all.is_some()
    }
}

#[derive(Debug)]
struct Waiter {
    ticket: Ticket,
    session: SessionId,
    gfids: Vec<Gfid>,
}

/// All leases on names. See the module.
#[derive(Debug)]
pub struct NameLeases {
    config: NamesConfig,
    rules: Rules,
    sessions: BTreeMap<SessionId, Session>,
    /// Changes that wait.
    waiters: Vec<Waiter>,
    held: usize,
    tokens: u64,
    actions: VecDeque<NamesAction>,
}

impl NameLeases {
    /// No leases. After a restart the owner lets nothing be changed before every session that may
    /// count on some has said that it has forgotten them, or a promise is long over.
    pub fn new(config: NamesConfig) -> Self {
        Self {
            config,
            rules: ALL_RULES,
            sessions: BTreeMap::new(),
            waiters: Vec::new(),
            held: 0,
            tokens: 0,
            actions: VecDeque::new(),
        }
    }

    /// The session gets a lease on each of these, or, with false, on none. One that was asked for
    /// and not given back yet, or that somebody waits to change, is not given.
    pub fn grant(&mut self, now: Duration, session: SessionId, gfids: &[Gfid]) -> bool {
        let is_changing = |gfid: &Gfid| self.waiters.iter().any(|w| w.gfids.contains(gfid));
        if !self.waiters.is_empty() && gfids.iter().any(is_changing)
            || self.held + gfids.len() > self.config.total_max
        {
            return false;
        }
        let entry = self.sessions.entry(session).or_default();
        if entry.gone
            || entry.all.is_some()
            || gfids.iter().any(|gfid| entry.recalled.contains_key(gfid))
        {
            return false;
        }
        if entry.held.len() + gfids.len() > self.config.session_max {
            self.tokens += 1;
            entry.all = Some(Asked { token: self.tokens, at: now });
            let recall = NamesRecall { gfid: None, token: self.tokens };
            self.actions.push_back(NamesAction::Recall(session, recall));
            return false;
        }
        let before = entry.held.len();
        entry.held.extend(gfids);
        self.held += entry.held.len() - before;
        true
    }

    /// For how long the session, which is being answered, may count on its leases from when it
    /// asked.
    pub fn promise(&mut self, now: Duration, session: SessionId) -> Duration {
        let Some(entry) = self.sessions.get_mut(&session) else { return Duration::ZERO };
        // Rule: NamesSilent - it may count on what it was asked for.
        if entry.gone || entry.held.is_empty() || (self.rules.silent && entry.owes_answers()) {
            return Duration::ZERO;
        }
        entry.until = entry.until.max(now + self.config.promise + SLACK);
        self.config.promise
    }

    /// The session is about to change these. True: it may, now. False: the others are asked, and an
    /// action says when the change is to be tried again.
    pub fn change(
        &mut self,
        now: Duration,
        session: SessionId,
        gfids: &[Gfid],
        ticket: Ticket,
    ) -> bool {
        if gfids.is_empty() {
            return true;
        }
        for (&other, entry) in &mut self.sessions {
            if other == session {
                continue;
            }
            for gfid in gfids {
                if !entry.held.remove(gfid) {
                    continue;
                }
                self.held -= 1;
                self.tokens += 1;
                entry.recalled.insert(*gfid, Asked { token: self.tokens, at: now });
                let recall = NamesRecall { gfid: Some(*gfid), token: self.tokens };
                self.actions.push_back(NamesAction::Recall(other, recall));
            }
        }
        // Rule: NamesWait.
        let ready = !self.rules.wait || self.is_free(now, session, gfids);
        if !ready {
            self.waiters.push(Waiter { ticket, session, gfids: gfids.to_vec() });
        }
        ready
    }

    fn is_free(&self, now: Duration, session: SessionId, gfids: &[Gfid]) -> bool {
        self.sessions.iter().all(|(&other, entry)| {
            other == session || !gfids.iter().any(|&gfid| entry.blocks(now, gfid))
        })
    }

    /// The session has forgotten what it was asked for.
    pub fn returned(&mut self, now: Duration, session: SessionId, recall: NamesRecall) {
        let Some(entry) = self.sessions.get_mut(&session) else { return };
        // Rule: NamesToken - an answer that comes twice is none to what was asked since.
        let token = self.rules.token;
        let answers = |asked: &Asked| !token || asked.token <= recall.token;
        match recall.gfid {
            Some(gfid) => {
                if entry.recalled.get(&gfid).is_some_and(answers) {
                    entry.recalled.remove(&gfid);
                }
            }
            None => {
                if entry.all.as_ref().is_some_and(answers) {
                    entry.all = None;
                    entry.recalled.retain(|_, asked| !answers(asked));
                    self.held -= entry.held.len();
                    entry.held = HashSet::new();
                }
            }
        }
        self.wake(now);
    }

    /// The session is dead or closed; its promise is waited for.
    pub fn leave(&mut self, now: Duration, session: SessionId) {
        if let Some(entry) = self.sessions.get_mut(&session) {
            entry.gone = true;
        }
        let actions = &mut self.actions;
        self.waiters.retain(|waiter| {
            let stays = waiter.session != session;
            if !stays {
                actions.push_back(NamesAction::Expired(waiter.ticket));
            }
            stays
        });
        self.wake(now);
    }

    /// Time passes.
    pub fn tick(&mut self, now: Duration) {
        let held = &mut self.held;
        self.sessions.retain(|_, entry| {
            let stays = !entry.gone || now < entry.until;
            if !stays {
                *held -= entry.held.len();
            }
            stays
        });
        for (&session, entry) in &mut self.sessions {
            if entry.gone {
                continue;
            }
            let everything = entry.all.as_mut().map(|asked| (None, asked));
            let single = entry.recalled.iter_mut().map(|(gfid, asked)| (Some(*gfid), asked));
            for (gfid, asked) in single.chain(everything) {
                if now >= asked.at + self.config.recall_repeat {
                    asked.at = now;
                    let recall = NamesRecall { gfid, token: asked.token };
                    self.actions.push_back(NamesAction::Recall(session, recall));
                }
            }
        }
        self.wake(now);
    }

    /// Changes that nothing holds up any more are to be tried again.
    fn wake(&mut self, now: Duration) {
        let waiters = std::mem::take(&mut self.waiters);
        for waiter in waiters {
            if self.is_free(now, waiter.session, &waiter.gfids) {
                self.actions.push_back(NamesAction::Ready(waiter.ticket));
            } else {
                self.waiters.push(waiter);
            }
        }
    }

    /// What the owner is to do, in order.
    pub fn take_actions(&mut self) -> VecDeque<NamesAction> {
        std::mem::take(&mut self.actions)
    }

    /// May another session count on anything?
    pub fn concern_others(&self, session: SessionId) -> bool {
        self.sessions.iter().any(|(&other, entry)| {
            other != session && !(entry.held.is_empty() && entry.recalled.is_empty())
        })
    }

    /// Leases that sessions hold, in all.
    pub fn len(&self) -> usize {
        self.held
    }

    /// Does nobody hold one?
    pub fn is_empty(&self) -> bool {
        self.held == 0
    }
}
