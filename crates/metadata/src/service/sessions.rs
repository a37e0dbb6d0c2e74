//! Sessions: who is live, which answers are kept for them, and what happens when they end.

use super::Service;
use crate::store::{Store, StoreError};
use protocol::namespace::{Commit, Grant, Reply, Request, Timestamp};
use protocol::{Epoch, Gfid, SessionId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The sessions as the cluster map has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionView {
    /// Those that may act.
    pub live: BTreeSet<SessionId>,
    /// Those that are dead and whose last writes are being decided.
    pub dead: BTreeSet<SessionId>,
    /// The map's epoch.
    pub epoch: Epoch,
    /// The greatest id ever given out: absent ids up to it are gone, ids above it are newer than
    /// this view.
    pub last: SessionId,
}

/// Where a session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Live,
    /// Newer than the map known here.
    Unknown,
    /// Dead, resolved or closed.
    Gone,
}

impl SessionView {
    pub(super) fn standing(&self, session: SessionId) -> Standing {
        if self.live.contains(&session) {
            Standing::Live
        } else if session > self.last {
            Standing::Unknown
        } else {
            Standing::Gone
        }
    }
}

/// A session that has spoken to the service.
#[derive(Debug, Default)]
pub(super) struct Session {
    /// It has the answers up to here.
    pub answered: u64,
    /// Answers to later requests.
    pub answers: BTreeMap<u64, Reply>,
    /// It has told what it holds since the service started.
    pub reclaimed: bool,
    /// The commit with which the store has noted it.
    pub noted_in: Commit,
}

impl<S: Store> Service<S> {
    pub(super) fn standing(&self, session: SessionId) -> Standing {
        self.view.as_ref().map_or(Standing::Unknown, |view| view.standing(session))
    }

    pub(super) fn is_dead(&self, session: SessionId) -> bool {
        self.view.as_ref().is_some_and(|view| view.dead.contains(&session))
    }

    /// The session of a request, with its answers trimmed. One met for the first time has nothing
    /// to reclaim.
    pub(super) fn meet(&mut self, request: &Request) -> &mut Session {
        let namespace = &mut self.namespace;
        let session = self.sessions.entry(request.session).or_insert_with(|| {
            let noted_in = namespace.keep_session(request.session);
            Session { reclaimed: true, noted_in, ..Session::default() }
        });
        if request.answered > session.answered {
            session.answered = request.answered;
            while let Some(first) = session.answers.first_entry()
                && *first.key() <= request.answered
            {
                namespace.forget_answer(request.session, first.remove_entry().0);
            }
        }
        session
    }

    /// The lease that a session holds on a file, as it is told.
    pub(super) fn grant_of(&self, gfid: Gfid, session: SessionId) -> Option<Grant> {
        let (mode, token) = (self.leases.held(gfid, session)?, self.leases.token(gfid, session)?);
        Some(Grant { mode, token, epoch: self.heard })
    }

    /// The session is closed or resolved: nothing of it remains. Files that it was writing have
    /// their sizes recovered, and times that were to follow are not before `wall`.
    pub(super) fn end_session(
        &mut self,
        now: Duration,
        session: SessionId,
        wall: Timestamp,
    ) -> Result<(), StoreError> {
        self.fence_locks(session);
        self.locks.end_session(session);
        self.settle_locks(now);
        self.alone.leave(session);
        self.names.leave(now, session);
        let released = self.leases.release(now, session);
        for &gfid in &released.written {
            self.namespace.set_writer(gfid, None);
            if self.namespace.writer_lost(gfid, wall)? {
                self.alone.disturb();
                self.sought.insert(gfid);
                self.leases.recover(gfid, now + self.config.recovery_wait);
            }
        }
        for gfid in released.files {
            self.leases.settle(now, gfid);
            self.settle_orphan(now, gfid)?;
        }
        if let Some(entry) = self.sessions.remove(&session) {
            for number in entry.answers.into_keys() {
                self.namespace.forget_answer(session, number);
            }
        }
        self.namespace.forget_session(session);
        Ok(())
    }

    /// Ends the grace period when nobody is left to wait for.
    pub(super) fn maybe_end_grace(&mut self, now: Duration) -> Result<(), StoreError> {
        let (Some(until), Some(_)) = (self.grace_until, &self.view) else { return Ok(()) };
        // Of what a dead session held the notes may be lost, too: as long as its last writes are
        // not decided, nobody knows.
        let may_hold = |id: SessionId| self.standing(id) == Standing::Live || self.is_dead(id);
        let missing = self
            .sessions
            .iter()
            .filter(|(id, session)| !session.reclaimed && may_hold(**id))
            .count();
        if missing > 0 && now < until {
            return Ok(());
        }
        if missing > 0 {
            tracing::warn!(missing, "grace period over, sessions have not told what they hold");
        }
        self.grace_until = None;
        for gfid in self.orphans.clone() {
            self.settle_orphan(now, gfid)?;
        }
        self.follow(now)
    }
}
