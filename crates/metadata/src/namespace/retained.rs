//! Records that the service keeps beside the tree, in the same transactions: answers, sessions,
//! write leases.

use super::overlay::{Overlay, corrupt, decode};
use super::{FORMAT_VERSION, Namespace, OpError, keys};
use crate::store::{Store, StoreError};
use protocol::namespace::{Commit, Reply, SetAttr, Timestamp};
use protocol::{Gfid, SessionId};
use std::ops::ControlFlow;

/// Bits of a fencing token below the number of the start: grants for a year at a hundred thousand a
/// second.
const TOKEN_BITS: u32 = 42;

/// What a restarted service finds.
#[derive(Debug, Default)]
pub struct Retained {
    /// Sessions that spoke to the service and were not forgotten.
    pub sessions: Vec<SessionId>,
    /// Answers kept: session, request number, answer.
    pub answers: Vec<(SessionId, u64, Reply)>,
    /// Who holds the write lease of a file, and with which fencing token.
    pub writers: Vec<(Gfid, Writer)>,
}

/// Holder and fencing token of a write lease.
pub type Writer = (SessionId, u64);

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
        self.overlay.scan(
            &[keys::ANSWER],
            &[keys::ANSWER],
            &mut |key, value| match decode::<Reply>(key, value) {
                Ok(reply) => {
                    retained.answers.extend(
                        keys::session_of(key).map(|(session, number)| (session, number, reply)),
                    );
                    ControlFlow::Continue(())
                }
                Err(error) => {
                    answers = Err(error);
                    ControlFlow::Break(())
                }
            },
        )?;
        answers?;
        for key in self.overlay.keys(&[keys::WRITER])? {
            let Some(gfid) = keys::gfid_of(&key) else { continue };
            retained.writers.extend(self.overlay.get::<Writer>(&key)?.map(|writer| (gfid, writer)));
        }
        Ok(retained)
    }

    /// Counts this start with the next commit, and keeps what is left of the last one. Returns its
    /// number.
    pub(super) fn count_start(&mut self) -> Result<u64, StoreError> {
        let starts = self.overlay.get::<u64>(keys::STARTS)?.unwrap_or(0).saturating_add(1);
        if starts >> (u64::BITS - TOKEN_BITS) != 0 {
            return Err(corrupt(keys::STARTS, format!("{starts} starts")));
        }
        self.overlay.put(keys::STARTS.to_vec(), &starts);
        if let Some(last) = self.overlay.get::<Commit>(keys::COMMIT)? {
            self.overlay.put(keys::kept(last.start), &last.number);
        }
        Ok(starts)
    }

    /// Fencing tokens above this one were never given out before this start.
    pub fn first_token(&self) -> u64 {
        self.last_commit().start << TOKEN_BITS
    }

    /// The last commit that is left of each start from this one on, of those of which something is
    /// left.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn kept(&self, since: u64) -> Result<Vec<Commit>, StoreError> {
        let mut kept = Vec::new();
        let mut read = Ok(());
        self.overlay.scan(&[keys::KEPT], &keys::kept(since), &mut |key, value| {
            match (keys::start_of(key), decode(key, value)) {
                (Some(start), Ok(number)) => kept.push(Commit { start, number }),
                (None, _) => {}
                (_, Err(error)) => {
                    read = Err(error);
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        })?;
        read?;
        kept.push(self.last_commit());
        Ok(kept)
    }

    /// Brings the notes of writers into the form of now: without a token, every other claim is
    /// newer.
    pub(super) fn note_tokens(overlay: &mut Overlay<S>) -> Result<(), StoreError> {
        for key in overlay.keys(&[keys::WRITER])? {
            if let Some(session) = overlay.get::<SessionId>(&key)? {
                overlay.put(key, &(session, 0u64));
            }
        }
        Ok(())
    }

    /// Removes the answers of an older version: their sessions speak an older protocol, and do not
    /// come back. The records are of this version then.
    pub(super) fn forget_old_answers(overlay: &mut Overlay<S>) -> Result<(), StoreError> {
        for key in overlay.keys(&[keys::ANSWER])? {
            overlay.delete(key);
        }
        overlay.put(keys::FORMAT.to_vec(), &FORMAT_VERSION);
        Ok(())
    }

    /// Keeps an answer for a session.
    pub fn keep_answer(&mut self, session: SessionId, number: u64, reply: &Reply) {
        self.overlay.put(keys::answer(session, number), reply);
    }

    /// Forgets an answer that the session has.
    pub fn forget_answer(&mut self, session: SessionId, number: u64) {
        self.overlay.delete(keys::answer(session, number));
    }

    /// Notes that a session exists, with the commit that is returned.
    pub fn keep_session(&mut self, session: SessionId) -> Commit {
        self.overlay.put(keys::session(session), &());
        self.next_commit()
    }

    /// Forgets a session; its answers are forgotten apart.
    pub fn forget_session(&mut self, session: SessionId) {
        self.overlay.delete(keys::session(session));
    }

    /// Notes who holds the write lease of a file.
    pub fn set_writer(&mut self, gfid: Gfid, writer: Option<Writer>) {
        let key = keys::of_gfid(keys::WRITER, gfid);
        match writer {
            Some(writer) => self.overlay.put(key, &writer),
            None => self.overlay.delete(key),
        }
    }

    /// Applies what the holder of a lease knew of a file. A file that is gone is no failure,
    /// neither are changes that make no sense for it: nobody could be told.
    ///
    /// # Errors
    /// When the store fails.
    pub fn apply_returned(
        &mut self,
        gfid: Gfid,
        set: &SetAttr,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        if *set == SetAttr::default() {
            return Ok(());
        }
        match self.set_attr(now, gfid, set) {
            Ok(_) | Err(OpError::Errno(_) | OpError::NotYet) => Ok(()),
            Err(OpError::Store(error)) => Err(error),
        }
    }
}
