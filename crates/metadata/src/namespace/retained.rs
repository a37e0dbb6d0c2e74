//! Records that the service keeps beside the tree, in the same transactions: answers, sessions, write leases.

use super::overlay::{corrupt, decode};
use super::{Namespace, OpError, keys};
use crate::store::{Store, StoreError};
use protocol::namespace::{Reply, SetAttr, Timestamp};
use protocol::{Gfid, SessionId};
use std::ops::ControlFlow;

/// Bits of a fencing token below the number of the start: grants for a year at a hundred thousand a second.
const TOKEN_BITS: u32 = 42;

/// What a restarted service finds.
#[derive(Debug, Default)]
pub struct Retained {
    /// Sessions that spoke to the service and were not forgotten.
    pub sessions: Vec<SessionId>,
    /// Answers kept: session, request number, answer.
    pub answers: Vec<(SessionId, u64, Reply)>,
    /// Who holds the write lease of a file.
    pub writers: Vec<(Gfid, SessionId)>,
}

impl<S: Store> Namespace<S> {
    /// Reads everything kept, for a restart.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn retained(&self) -> Result<Retained, StoreError> {
        let mut retained = Retained::default();
        for key in self.overlay.keys(&[keys::SESSION])? {
            retained.sessions.extend(keys::session_of(&key).map(|(session, _)| session));
        }
        let mut answers = Ok(());
        self.overlay.scan(&[keys::ANSWER], &[keys::ANSWER], &mut |key, value| match decode::<Reply>(key, value) {
            Ok(reply) => {
                retained.answers.extend(keys::session_of(key).map(|(session, number)| (session, number, reply)));
                ControlFlow::Continue(())
            }
            Err(error) => {
                answers = Err(error);
                ControlFlow::Break(())
            }
        })?;
        answers?;
        for key in self.overlay.keys(&[keys::WRITER])? {
            let Some(gfid) = keys::gfid_of(&key) else { continue };
            retained.writers.extend(self.overlay.get::<SessionId>(&key)?.map(|session| (gfid, session)));
        }
        Ok(retained)
    }

    /// The service starts: fencing tokens above the result were never given out. Counts with the next commit, and no
    /// token may be told before it.
    ///
    /// # Errors
    /// When the store cannot be read, or says that there were more starts than tokens have room for.
    pub fn begin_tokens(&mut self) -> Result<u64, StoreError> {
        let starts = self.overlay.get::<u64>(keys::STARTS)?.unwrap_or(0).saturating_add(1);
        if starts >> (u64::BITS - TOKEN_BITS) != 0 {
            return Err(corrupt(keys::STARTS, format!("{starts} starts")));
        }
        self.overlay.put(keys::STARTS.to_vec(), &starts);
        Ok(starts << TOKEN_BITS)
    }

    /// Keeps an answer for a session.
    pub fn keep_answer(&mut self, session: SessionId, number: u64, reply: &Reply) {
        self.overlay.put(keys::answer(session, number), reply);
    }

    /// Forgets an answer that the session has.
    pub fn forget_answer(&mut self, session: SessionId, number: u64) {
        self.overlay.delete(keys::answer(session, number));
    }

    /// Notes that a session exists.
    pub fn keep_session(&mut self, session: SessionId) {
        self.overlay.put(keys::session(session), &());
    }

    /// Forgets a session; its answers are forgotten apart.
    pub fn forget_session(&mut self, session: SessionId) {
        self.overlay.delete(keys::session(session));
    }

    /// Notes who holds the write lease of a file.
    pub fn set_writer(&mut self, gfid: Gfid, writer: Option<SessionId>) {
        let key = keys::of_gfid(keys::WRITER, gfid);
        match writer {
            Some(session) => self.overlay.put(key, &session),
            None => self.overlay.delete(key),
        }
    }

    /// Applies what the holder of a lease knew of a file. A file that is gone is no failure, neither are changes that
    /// make no sense for it: nobody could be told.
    ///
    /// # Errors
    /// When the store fails.
    pub fn apply_returned(&mut self, gfid: Gfid, set: &SetAttr, now: Timestamp) -> Result<(), StoreError> {
        if *set == SetAttr::default() {
            return Ok(());
        }
        match self.set_attr(now, gfid, set) {
            Ok(_) | Err(OpError::Errno(_)) => Ok(()),
            Err(OpError::Store(error)) => Err(error),
        }
    }
}
