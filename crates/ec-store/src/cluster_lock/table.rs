//! A server's locks: who holds what, and who waits for it.
//!
//! Contract: a lock is granted when it conflicts with none that is held and with none that waits
//! before it, so that no waiter is overtaken for ever (GlusterFS's `inodelk` does the same). Only
//! clients that have joined are served: what a client sent before it left may arrive after, and
//! takes nothing. Memory follows the locks held and waited for.

use super::{Lock, LockOwner};
use protocol::{Gfid, SessionId};
use smallvec::SmallVec;
use std::collections::{BTreeSet, HashMap, VecDeque};

/// Those who have what somebody else wants, each once; to be told so.
pub type Holders = SmallVec<[LockOwner; 2]>;

/// Why a lock was not granted at once.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// Others hold it, or wait for it.
    #[error("the lock is taken")]
    Taken(Holders),
    /// The client has not joined, or has left.
    #[error("{0} is no client of this server")]
    NoClient(SessionId),
}

/// What became of a lock that may be waited for. `T` is what its answer needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Waited<T> {
    /// It is held.
    Granted(T),
    /// It waits; a [`Grant`] follows. These hold it now.
    Queued(Holders),
    /// The client has not joined, or has left.
    NoClient(T),
}

/// A lock that was waited for and is held now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant<T> {
    /// Which.
    pub lock: Lock,
    /// Others wait for it already: its holder must not keep it for longer than it needs.
    pub is_contended: bool,
    /// What was given to [`LockTable::lock`].
    pub token: T,
}

/// An unlock of what is not held.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the lock is not held")]
pub struct NotHeld;

/// See the module.
#[derive(Debug)]
pub struct LockTable<T> {
    /// The files that each client holds or waits for.
    clients: HashMap<SessionId, BTreeSet<Gfid>>,
    files: HashMap<Gfid, FileLocks<T>>,
}

/// The locks of one file.
#[derive(Debug)]
struct FileLocks<T> {
    held: Vec<Lock>,
    waiting: VecDeque<(Lock, T)>,
}

impl<T> Default for LockTable<T> {
    fn default() -> Self {
        LockTable { clients: HashMap::new(), files: HashMap::new() }
    }
}

impl<T> LockTable<T> {
    /// A client is served from now on.
    pub fn join(&mut self, client: SessionId) {
        self.clients.entry(client).or_default();
    }

    /// A client is gone: everything it held or waited for is let go. Who has what it waited for
    /// now.
    pub fn leave(&mut self, client: SessionId) -> Vec<Grant<T>> {
        let mut grants = Vec::new();
        for file in self.clients.remove(&client).unwrap_or_default() {
            if let Some(locks) = self.files.get_mut(&file) {
                locks.held.retain(|lock| lock.owner.client != client);
                locks.waiting.retain(|(lock, _)| lock.owner.client != client);
            }
            self.grant(file, &mut grants);
        }
        grants
    }

    /// Takes a lock now, or not at all: phase 1 of Figure 2.4.
    ///
    /// # Errors
    /// [`Refused`]; nothing has changed.
    pub fn try_lock(&mut self, lock: Lock) -> Result<(), Refused> {
        let Some(files) = self.clients.get_mut(&lock.owner.client) else {
            return Err(Refused::NoClient(lock.owner.client));
        };
        let locks = self.files.entry(lock.file).or_default();
        if locks.is_taken(&lock) {
            return Err(Refused::Taken(locks.holders(&lock)));
        }
        files.insert(lock.file);
        locks.held.push(lock);
        Ok(())
    }

    /// Takes a lock, or waits for its turn: phase 2 of Figure 2.4.
    pub fn lock(&mut self, lock: Lock, token: T) -> Waited<T> {
        let Some(files) = self.clients.get_mut(&lock.owner.client) else {
            return Waited::NoClient(token);
        };
        files.insert(lock.file);
        let locks = self.files.entry(lock.file).or_default();
        if locks.is_taken(&lock) {
            let holders = locks.holders(&lock);
            locks.waiting.push_back((lock, token));
            return Waited::Queued(holders);
        }
        locks.held.push(lock);
        Waited::Granted(token)
    }

    /// Gives a lock back. Who has what it waited for now.
    ///
    /// # Errors
    /// [`NotHeld`]; nothing has changed.
    pub fn unlock(&mut self, lock: Lock) -> Result<Vec<Grant<T>>, NotHeld> {
        let locks = self.files.get_mut(&lock.file).ok_or(NotHeld)?;
        let at = locks.held.iter().position(|held| *held == lock).ok_or(NotHeld)?;
        locks.held.swap_remove(at);
        let mut grants = Vec::new();
        self.grant(lock.file, &mut grants);
        self.forget(lock.owner.client, lock.file);
        Ok(grants)
    }

    /// True if nothing is held and nobody waits.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Grants what can be granted, in turn, and forgets a file without locks.
    fn grant(&mut self, file: Gfid, grants: &mut Vec<Grant<T>>) {
        let Some(locks) = self.files.get_mut(&file) else { return };
        locks.grant(grants);
        if locks.held.is_empty() && locks.waiting.is_empty() {
            self.files.remove(&file);
        }
    }

    /// A client that has no lock of a file any more need not be looked for there.
    fn forget(&mut self, client: SessionId, file: Gfid) {
        let is_there = self.files.get(&file).is_some_and(|locks| locks.names(client));
        if let (false, Some(files)) = (is_there, self.clients.get_mut(&client)) {
            files.remove(&file);
        }
    }

    /// Panics if two conflicting locks are held, somebody waits for nothing, or a client's files
    /// are not those of its locks.
    #[cfg(test)]
    pub(super) fn check_invariants(&self) {
        for (file, locks) in &self.files {
            for (at, held) in locks.held.iter().enumerate() {
                assert!(
                    !locks.held[..at].iter().any(|other| other.conflicts(held)),
                    "{held:?} is held beside another"
                );
            }
            for (at, (lock, _)) in locks.waiting.iter().enumerate() {
                let before = locks.waiting.iter().take(at).map(|(lock, _)| lock);
                assert!(
                    locks.held.iter().chain(before).any(|other| other.conflicts(lock)),
                    "{lock:?} waits for nothing"
                );
            }
            assert!(
                !locks.held.is_empty() || !locks.waiting.is_empty(),
                "{file} is kept for nothing"
            );
            let all = locks.held.iter().chain(locks.waiting.iter().map(|(lock, _)| lock));
            all.for_each(|lock| {
                assert!(
                    self.clients[&lock.owner.client].contains(file),
                    "{lock:?} would be left over"
                )
            });
        }
        for (client, files) in &self.clients {
            assert!(
                files
                    .iter()
                    .all(|file| self.files.get(file).is_some_and(|locks| locks.names(*client)))
            );
        }
    }
}

impl<T> Default for FileLocks<T> {
    fn default() -> Self {
        FileLocks { held: Vec::new(), waiting: VecDeque::new() }
    }
}

impl<T> FileLocks<T> {
    /// Does somebody hold it, or wait for it before?
    fn is_taken(&self, lock: &Lock) -> bool {
        self.held
            .iter()
            .chain(self.waiting.iter().map(|(lock, _)| lock))
            .any(|other| other.conflicts(lock))
    }

    fn holders(&self, lock: &Lock) -> Holders {
        let mut holders = Holders::new();
        for held in self.held.iter().filter(|held| held.conflicts(lock)) {
            if !holders.contains(&held.owner) {
                holders.push(held.owner);
            }
        }
        holders
    }

    fn grant(&mut self, grants: &mut Vec<Grant<T>>) {
        let mut at = 0;
        while at < self.waiting.len() {
            let lock = self.waiting[at].0;
            let mut before =
                self.held.iter().chain(self.waiting.iter().take(at).map(|(lock, _)| lock));
            if before.any(|other| other.conflicts(&lock)) {
                at += 1;
                continue;
            }
            if let Some((lock, token)) = self.waiting.remove(at) {
                self.held.push(lock);
                let is_contended = self.waiting.iter().any(|(other, _)| other.conflicts(&lock));
                grants.push(Grant { lock, is_contended, token });
            }
        }
    }

    fn names(&self, client: SessionId) -> bool {
        self.held
            .iter()
            .chain(self.waiting.iter().map(|(lock, _)| lock))
            .any(|lock| lock.owner.client == client)
    }
}
