//! Requests about byte-range locks: what is answered at once, and what waits a moment.

use super::{Pending, Service, Standing};
use crate::locks::{Answer, Holder};
use crate::store::{Store, StoreError};
use protocol::lock::{LockClaim, LockOp, LockOwner, WaitId};
use protocol::namespace::Reply;
use protocol::{Gfid, SessionId};
use std::collections::HashMap;
use std::time::Duration;

/// Requests whose lock is not free yet, by wait. Each is answered after
/// [`super::ServiceConfig::lock_wait`] at the latest, so that a client notices soon when the
/// process that waits was killed.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    requests: HashMap<(SessionId, WaitId), Parked>,
}

#[derive(Debug)]
struct Parked {
    token: u64,
    number: u64,
    until: Duration,
}

impl<S: Store> Service<S> {
    /// Carries a request out; `None` if it is answered later.
    pub(super) fn lock(
        &mut self,
        now: Duration,
        pending: &Pending,
        (gfid, owner, op): (Gfid, LockOwner, LockOp),
    ) -> Result<Option<Reply>, StoreError> {
        let session = pending.request.session;
        let holder = Holder { session, owner };
        let range = match op {
            LockOp::Test(lock) | LockOp::Who(lock) | LockOp::Set(lock) | LockOp::Wait(lock, _) => {
                Some(lock.range)
            }
            LockOp::Clear(range) => Some(range),
            LockOp::Cancel(_) | LockOp::Close => None,
        };
        if range.is_some_and(|range| range.start > range.last) {
            return Ok(Some(Reply::Errno(libc::EINVAL)));
        }
        if matches!(op, LockOp::Set(_) | LockOp::Wait(..)) && self.namespace.attr(gfid)?.is_none() {
            return Ok(Some(Reply::Errno(libc::ESTALE)));
        }
        let reply = match op {
            LockOp::Test(lock) => {
                Reply::Lock(self.locks.table().conflict(gfid, holder, &lock).map(|held| held.lock))
            }
            LockOp::Who(lock) => {
                let found = self.locks.table().conflict(gfid, holder, &lock);
                Reply::Holder(found.map(|held| held.holder.session))
            }
            LockOp::Set(lock) => match self.locks.set(gfid, holder, lock) {
                Answer::Held => Reply::Done,
                Answer::TooMany => Reply::Errno(libc::ENOLCK),
                Answer::Busy | Answer::Deadlock => Reply::Errno(libc::EAGAIN),
            },
            LockOp::Wait(lock, id) => match self.locks.wait(now, gfid, holder, lock, id) {
                Answer::Held => Reply::Done,
                Answer::TooMany => Reply::Errno(libc::ENOLCK),
                Answer::Deadlock => Reply::Errno(libc::EDEADLK),
                Answer::Busy => {
                    let (token, number) = (pending.token, pending.request.number);
                    let parked = Parked { token, number, until: now + self.config.lock_wait };
                    if let Some(older) = self.lock_waits.requests.insert((session, id), parked) {
                        self.reply(older.token, Reply::Errno(libc::EINPROGRESS));
                    }
                    return Ok(None);
                }
            },
            LockOp::Cancel(id) => {
                let cancelled = self.locks.cancel(gfid, session, id);
                if cancelled && let Some(parked) = self.lock_waits.requests.remove(&(session, id)) {
                    self.reply(parked.token, Reply::Errno(libc::EINTR));
                }
                Reply::Count(cancelled.into())
            }
            LockOp::Clear(range) if self.locks.clear(gfid, holder, range) => Reply::Done,
            LockOp::Clear(_) => Reply::Errno(libc::ENOLCK),
            LockOp::Close => {
                self.locks.close(gfid, holder);
                Reply::Done
            }
        };
        Ok(Some(reply))
    }

    /// Answers waits that have ended, and those that have waited for long enough.
    pub(super) fn settle_locks(&mut self, now: Duration) {
        for (session, id) in self.locks.take_granted() {
            // Nobody asks at this moment: whoever asks again finds the lock held.
            if let Some(parked) = self.lock_waits.requests.remove(&(session, id)) {
                self.keep(session, parked.number, &Reply::Done);
                self.reply(parked.token, Reply::Done);
            }
        }
        let over: Vec<_> = self
            .lock_waits
            .requests
            .iter()
            .filter(|(_, parked)| parked.until <= now)
            .map(|(id, _)| *id)
            .collect();
        for id in over {
            if let Some(parked) = self.lock_waits.requests.remove(&id) {
                self.reply(parked.token, Reply::Errno(libc::EINPROGRESS));
            }
        }
    }

    /// The session is dead: it waits for nothing. Its locks stay until its writes are decided.
    pub(super) fn fence_locks(&mut self, session: SessionId) {
        self.locks.fence(session);
        self.lock_waits.requests.retain(|(waiting, _), _| *waiting != session);
    }

    /// After a restart: locks that the session says it holds.
    pub(super) fn reclaim_locks(
        &mut self,
        session: SessionId,
        claims: &[LockClaim],
    ) -> Result<(), StoreError> {
        if self.standing(session) != Standing::Live {
            return Ok(());
        }
        for claim in claims {
            if self.namespace.attr(claim.gfid)?.is_none() {
                continue;
            }
            let holder = Holder { session, owner: claim.owner };
            if !self.locks.reclaim(claim.gfid, holder, claim.lock) {
                tracing::warn!(%session, gfid = %claim.gfid, "a lock reclaimed too late is another's by now, or is none that can be held");
            }
        }
        Ok(())
    }
}
