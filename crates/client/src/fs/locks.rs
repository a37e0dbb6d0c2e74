//! Byte-range locks (`fcntl`): the service decides, this side waits and remembers.
//!
//! Contract: what an owner may hold is known here before the service is asked for it, so that a close that has to tell
//! the service does, and one that has not costs nothing. A wait ends when the lock is held, by an error, or when
//! `given_up` says so; then the lock is not held.

use super::{Backend, LocalFs, Result};
use crate::error::ClientError;
use messenger::sync::{ContentionMutex, LockTable};
use metadata::locks::{Holder, RangeTable};
use protocol::lock::{ByteRange, LockClaim, LockOp, LockOwner, RangeLock, WaitId};
use protocol::namespace::{Caller, NamespaceOp, Reply};
use protocol::{Gfid, SessionId};
use std::collections::HashSet;

const EINTR: i32 = 4;
const EINPROGRESS: i32 = 115;

/// What this mount's processes hold, or may hold.
pub(super) struct OwnLocks {
    known: ContentionMutex<Known>,
}

#[derive(Default)]
struct Known {
    /// What the service said is held, to be reclaimed after its restart.
    table: RangeTable,
    /// Owners that have asked for a lock since they last closed the file.
    asked: HashSet<(Gfid, LockOwner)>,
    last_wait: u64,
}

/// All owners here are of one session, so its id says nothing.
fn holder(owner: LockOwner) -> Holder {
    Holder { session: SessionId::default(), owner }
}

impl OwnLocks {
    pub(super) fn new(locks: &LockTable) -> Self {
        Self { known: ContentionMutex::new(locks, "fs locks", Known::default()) }
    }

    fn asks(&self, gfid: Gfid, owner: LockOwner) {
        self.known.lock().asked.insert((gfid, owner));
    }

    fn set(&self, gfid: Gfid, owner: LockOwner, lock: RangeLock) {
        self.known.lock().table.set(gfid, holder(owner), lock);
    }

    fn clear(&self, gfid: Gfid, owner: LockOwner, range: ByteRange) {
        self.known.lock().table.clear(gfid, holder(owner), range);
    }

    fn next_wait(&self) -> WaitId {
        let mut known = self.known.lock();
        known.last_wait += 1;
        WaitId(known.last_wait)
    }

    /// Owners that may hold something on the file.
    fn owners(&self, gfid: Gfid) -> Vec<LockOwner> {
        let known = self.known.lock();
        known.asked.iter().filter(|(file, _)| *file == gfid).map(|(_, owner)| *owner).collect()
    }

    fn may_hold(&self, gfid: Gfid, owner: LockOwner) -> bool {
        self.known.lock().asked.contains(&(gfid, owner))
    }

    fn closed(&self, gfid: Gfid, owner: LockOwner) {
        let mut known = self.known.lock();
        known.asked.remove(&(gfid, owner));
        known.table.clear(gfid, holder(owner), ByteRange::ALL);
    }

    /// For `NamespaceOp::Reclaim`.
    pub(super) fn claims(&self) -> Vec<LockClaim> {
        let known = self.known.lock();
        let claim = |(gfid, held): (Gfid, &metadata::locks::Held)| LockClaim {
            gfid,
            owner: held.holder.owner,
            lock: held.lock,
        };
        known.table.all().map(claim).collect()
    }

    /// The session is dead, and its locks with it.
    pub(super) fn fenced(&self) {
        let mut known = self.known.lock();
        known.table = RangeTable::default();
        known.asked.clear();
    }
}

impl<B: Backend> LocalFs<B> {
    async fn lock_op(&self, gfid: Gfid, owner: LockOwner, op: LockOp, caller: Caller) -> Result<Reply> {
        self.ask(NamespaceOp::Lock { gfid, owner, op }, caller).await
    }

    /// F_GETLK: the lock of another owner, here or in another mount, that is in the way of this one.
    ///
    /// # Errors
    /// The service's.
    pub async fn test_lock(
        &self,
        gfid: Gfid,
        owner: LockOwner,
        lock: RangeLock,
        caller: Caller,
    ) -> Result<Option<RangeLock>> {
        match self.lock_op(gfid, owner, LockOp::Test(lock), caller).await? {
            Reply::Lock(found) => Ok(found),
            other => Err(super::lease::unexpected("getlk", &other)),
        }
    }

    /// F_SETLK.
    ///
    /// # Errors
    /// EAGAIN if another owner is in the way; ENOLCK.
    pub async fn set_lock(&self, gfid: Gfid, owner: LockOwner, lock: RangeLock, caller: Caller) -> Result<()> {
        self.shared.locks.asks(gfid, owner);
        self.lock_op(gfid, owner, LockOp::Set(lock), caller).await?;
        self.shared.locks.set(gfid, owner, lock);
        Ok(())
    }

    /// F_SETLKW: waits in turn, until `given_up` (asked a few times a second).
    ///
    /// # Errors
    /// EINTR if given up, EDEADLK, ENOLCK.
    pub async fn wait_lock(
        &self,
        gfid: Gfid,
        owner: LockOwner,
        lock: RangeLock,
        given_up: impl Fn() -> bool,
        caller: Caller,
    ) -> Result<()> {
        self.shared.locks.asks(gfid, owner);
        let id = self.shared.locks.next_wait();
        loop {
            match self.lock_op(gfid, owner, LockOp::Wait(lock, id), caller).await {
                Ok(_) => {
                    self.shared.locks.set(gfid, owner, lock);
                    return Ok(());
                }
                Err(ClientError::Posix(EINPROGRESS)) => {}
                Err(error) => return Err(error),
            }
            if given_up() {
                // If there is nothing to cancel, the lock was granted just now: asking again tells.
                match self.lock_op(gfid, owner, LockOp::Cancel(id), caller).await? {
                    Reply::Count(0) => {}
                    _ => return Err(ClientError::Posix(EINTR)),
                }
            }
        }
    }

    /// F_UNLCK.
    ///
    /// # Errors
    /// That the service was not told; the lock may be held until the file is closed.
    pub async fn unlock(&self, gfid: Gfid, owner: LockOwner, range: ByteRange, caller: Caller) -> Result<()> {
        if !self.shared.locks.may_hold(gfid, owner) {
            return Ok(());
        }
        self.lock_op(gfid, owner, LockOp::Clear(range), caller).await?;
        self.shared.locks.clear(gfid, owner, range);
        Ok(())
    }

    /// A process closes a descriptor of the file: as POSIX has it, all its locks on the file go.
    pub(super) async fn close_locks(&self, gfid: Gfid, owner: LockOwner) -> Result<()> {
        if self.shared.locks.may_hold(gfid, owner) {
            self.lock_op(gfid, owner, LockOp::Close, super::own_caller()).await?;
            self.shared.locks.closed(gfid, owner);
        }
        Ok(())
    }

    /// Nobody has the file open any more: what is left goes, such as locks of an open file description (F_OFD_SETLK).
    pub(super) async fn close_all_locks(&self, gfid: Gfid) -> Result<()> {
        for owner in self.shared.locks.owners(gfid) {
            self.close_locks(gfid, owner).await?;
        }
        Ok(())
    }
}
