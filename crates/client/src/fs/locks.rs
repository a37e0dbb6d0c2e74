//! Byte-range locks (`fcntl`): the service decides, this side waits and remembers.
//!
//! Contract: what an owner may hold is known here before the service is asked for it, so that a
//! close that has to tell the service does, and one that has not costs nothing. A wait ends when
//! the lock is held, by an error, or when `given_up` says so; then the lock is not held.
//!
//! When the session dies its locks are another's to take, and a program that held one goes on as if
//! it did. So its file can neither be read nor written on this mount (EIO) until whoever held the
//! lock has closed it, as NFS has it.

use super::errno::EIO;
use super::{Backend, LocalFs, Result};
use crate::error::ClientError;
use messenger::sync::{ContentionMutex, LockTable};
use metadata::locks::{Holder, RangeTable};
use protocol::lock::{ByteRange, LockClaim, LockOp, LockOwner, RangeLock, WaitId};
use protocol::namespace::{Caller, NamespaceOp, Reply};
use protocol::{Gfid, SessionId};
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const EINTR: i32 = 4;
const EINPROGRESS: i32 = 115;
/// How often a wait looks whether there is a session again, in place of one that died, and whether
/// it was given up.
const SESSION_PAUSE: Duration = Duration::from_millis(100);

/// What this mount's processes hold, or may hold.
pub(super) struct OwnLocks {
    known: ContentionMutex<Known>,
    /// How many of [`Known::lost`] there are.
    lost: AtomicUsize,
}

#[derive(Default)]
struct Known {
    /// What the service said is held, to be reclaimed after its restart.
    table: RangeTable,
    /// Owners that have asked for a lock since they last closed the file.
    asked: HashSet<(Gfid, LockOwner)>,
    last_wait: u64,
    /// Owners whose locks a dead session took with it, and who have not closed the file since.
    lost: HashSet<(Gfid, LockOwner)>,
    /// Sessions that died.
    deaths: u64,
}

/// All owners here are of one session, so its id says nothing.
fn holder(owner: LockOwner) -> Holder {
    Holder { session: SessionId::default(), owner }
}

impl OwnLocks {
    pub(super) fn new(locks: &LockTable) -> Self {
        Self {
            known: ContentionMutex::new(locks, "fs locks", Known::default()),
            lost: AtomicUsize::new(0),
        }
    }

    /// An owner asks for a lock, at once: the session of now is asked. Hand the number to `set`.
    fn asks(&self, gfid: Gfid, owner: LockOwner) -> u64 {
        let mut known = self.known.lock();
        known.asked.insert((gfid, owner));
        known.deaths
    }

    /// The service says that it is held; EIO if the session that asked died meanwhile.
    fn set(&self, gfid: Gfid, owner: LockOwner, lock: RangeLock, deaths: u64) -> Result<()> {
        let mut known = self.known.lock();
        if known.deaths != deaths {
            return Err(ClientError::Posix(EIO));
        }
        known.table.set(gfid, holder(owner), lock);
        Ok(())
    }

    /// Has somebody who has the file open lost a lock on it?
    pub(super) fn are_lost(&self, gfid: Gfid) -> bool {
        self.lost.load(Ordering::Acquire) > 0
            && self.known.lock().lost.iter().any(|(file, _)| *file == gfid)
    }

    /// Those that this holds for have closed the file.
    fn closes_lost(&self, whose: impl Fn(Gfid, LockOwner) -> bool) {
        if self.lost.load(Ordering::Acquire) > 0 {
            let mut known = self.known.lock();
            known.lost.retain(|&(gfid, owner)| !whose(gfid, owner));
            self.lost.store(known.lost.len(), Ordering::Release);
        }
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

    /// May a close by this owner end a lock, or the memory of a lost one?
    pub(super) fn may_matter(&self, gfid: Gfid, owner: LockOwner) -> bool {
        self.lost.load(Ordering::Acquire) > 0 || self.may_hold(gfid, owner)
    }

    /// The owner is about to be told to have closed the file. True: it may hold something. What is
    /// known of it goes now and not with the answer: the kernel names the next open file
    /// description as this one, and that may ask for a lock meanwhile.
    fn closes(&self, gfid: Gfid, owner: LockOwner) -> bool {
        let mut known = self.known.lock();
        known.table.clear(gfid, holder(owner), ByteRange::ALL);
        known.asked.remove(&(gfid, owner))
    }

    /// The service could not be told.
    fn not_closed(&self, gfid: Gfid, owner: LockOwner) {
        self.known.lock().asked.insert((gfid, owner));
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
        let held = std::mem::take(&mut known.table);
        known.lost.extend(held.all().map(|(gfid, held)| (gfid, held.holder.owner)));
        known.asked.clear();
        known.deaths += 1;
        self.lost.store(known.lost.len(), Ordering::Release);
    }
}

impl<B: Backend> LocalFs<B> {
    async fn lock_op(
        &self,
        gfid: Gfid,
        owner: LockOwner,
        op: LockOp,
        caller: Caller,
    ) -> Result<Reply> {
        self.ask(NamespaceOp::Lock { gfid, owner, op }, caller).await
    }

    /// F_GETLK: the lock of another owner, here or in another mount, that is in the way of this
    /// one.
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

    /// The session whose lock is in the way of this one; its own has none.
    ///
    /// # Errors
    /// The service's.
    pub async fn lock_holder(
        &self,
        gfid: Gfid,
        owner: LockOwner,
        lock: RangeLock,
        caller: Caller,
    ) -> Result<Option<SessionId>> {
        match self.lock_op(gfid, owner, LockOp::Who(lock), caller).await? {
            Reply::Holder(found) => Ok(found),
            other => Err(super::lease::unexpected("who holds a lock", &other)),
        }
    }

    /// F_SETLK.
    ///
    /// # Errors
    /// EAGAIN if another owner is in the way; ENOLCK; EIO if it was lost at once with the session.
    pub async fn set_lock(
        &self,
        gfid: Gfid,
        owner: LockOwner,
        lock: RangeLock,
        caller: Caller,
    ) -> Result<()> {
        let deaths = self.shared.locks.asks(gfid, owner);
        self.lock_op(gfid, owner, LockOp::Set(lock), caller).await?;
        self.shared.locks.set(gfid, owner, lock, deaths)
    }

    /// F_SETLKW: waits in turn, until `given_up` (asked a few times a second).
    ///
    /// # Errors
    /// EINTR if given up, EDEADLK, ENOLCK; EIO if it was lost at once with the session.
    pub async fn wait_lock(
        &self,
        gfid: Gfid,
        owner: LockOwner,
        lock: RangeLock,
        given_up: impl Fn() -> bool,
        caller: Caller,
    ) -> Result<()> {
        let id = self.shared.locks.next_wait();
        loop {
            let deaths = self.shared.locks.asks(gfid, owner);
            match self.lock_op(gfid, owner, LockOp::Wait(lock, id), caller).await {
                Ok(_) => return self.shared.locks.set(gfid, owner, lock, deaths),
                Err(ClientError::Posix(EINPROGRESS)) => {}
                // What waits holds nothing that could be lost: it waits in the next session.
                Err(ClientError::Fenced(_)) => self.backend.sleep(SESSION_PAUSE).await,
                Err(error) => return Err(error),
            }
            if given_up() {
                // If there is nothing to cancel, the lock was granted just now: asking again tells.
                match self.lock_op(gfid, owner, LockOp::Cancel(id), caller).await {
                    Ok(Reply::Count(0)) => {}
                    Ok(_) | Err(ClientError::Fenced(_)) => return Err(ClientError::Posix(EINTR)),
                    Err(error) => return Err(error),
                }
            }
        }
    }

    /// F_UNLCK.
    ///
    /// # Errors
    /// That the service was not told; the lock may be held until the file is closed.
    pub async fn unlock(
        &self,
        gfid: Gfid,
        owner: LockOwner,
        range: ByteRange,
        caller: Caller,
    ) -> Result<()> {
        if !self.shared.locks.may_hold(gfid, owner) {
            return Ok(());
        }
        self.lock_op(gfid, owner, LockOp::Clear(range), caller).await?;
        self.shared.locks.clear(gfid, owner, range);
        Ok(())
    }

    /// A process closes a descriptor of the file: as POSIX has it, all its locks on the file go.
    /// So do those of an open file description (flock, F_OFD_SETLK) with its last descriptor.
    ///
    /// # Errors
    /// That the service was not told; they may be held until the file is closed.
    pub async fn close_locks(&self, gfid: Gfid, owner: LockOwner) -> Result<()> {
        self.shared.locks.closes_lost(|file, whose| (file, whose) == (gfid, owner));
        if self.shared.locks.closes(gfid, owner) {
            let told = self.lock_op(gfid, owner, LockOp::Close, super::own_caller()).await;
            return told.map(drop).inspect_err(|_| self.shared.locks.not_closed(gfid, owner));
        }
        Ok(())
    }

    /// Nobody has the file open any more: what is left goes, such as locks of an open file
    /// description (F_OFD_SETLK).
    pub(super) async fn close_all_locks(&self, gfid: Gfid) -> Result<()> {
        self.shared.locks.closes_lost(|file, _| file == gfid);
        for owner in self.shared.locks.owners(gfid) {
            self.close_locks(gfid, owner).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_named_anew_while_the_last_one_of_that_name_is_closed_is_not_forgotten() {
        let (locks, file, owner) = (OwnLocks::new(&LockTable::default()), Gfid::ROOT, LockOwner(7));
        locks.asks(file, owner);
        assert!(locks.closes(file, owner) && !locks.closes(file, owner));
        locks.asks(file, owner);
        assert!(locks.may_hold(file, owner), "its close has to be told");
    }
}
