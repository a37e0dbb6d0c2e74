//! Byte-range locks (`fcntl`) over all mounts: who holds what, who waits, as a state machine.
//!
//! Contract: no I/O and no clock. A holder is a process of a session; its own locks never conflict,
//! they split and merge.
//! * Who waits is served first come, first served: a wait stands behind earlier waits that it
//!   conflicts with, unless its holder has a lock already (somebody may be waiting for that one). A
//!   try never waits and so may pass the queue.
//! * A wait that would close a circle of holders waiting for one another is [`Answer::Deadlock`].
//!   As on Linux, threads that share one holder can make it see a circle where there is none.
//! * A wait is kept while it is asked for again at least every [`LocksConfig::wait_keep`]; one that
//!   was given up is never granted later.
//! * The locks of a session go when the owner says so ([`Locks::end_session`]): when its last
//!   writes are decided.

pub mod table;
#[cfg(test)]
mod tests;

use protocol::lock::{ByteRange, RangeLock, WaitId};
use protocol::{Gfid, SessionId};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;
pub use table::{Held, Holder, RangeTable};

/// Limits of locks.
#[derive(Clone, Copy, Debug)]
pub struct LocksConfig {
    /// A wait that nobody asked for again goes after this time. Clients ask four times a second.
    pub wait_keep: Duration,
    /// Locks of one holder on one file at most, and waits on one file; beyond it ENOLCK. Bounds
    /// memory, about 100 bytes each, and the time that a request takes.
    pub file_locks_max: usize,
}

impl Default for LocksConfig {
    fn default() -> Self {
        Self { wait_keep: Duration::from_secs(5), file_locks_max: 4096 }
    }
}

/// Answer to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Held now.
    Held,
    /// Another holder is in the way: of a wait, that it is queued.
    Busy,
    /// It would wait for itself.
    Deadlock,
    /// Too many.
    TooMany,
}

#[derive(Debug)]
struct Waiter {
    id: WaitId,
    holder: Holder,
    lock: RangeLock,
    until: Duration,
}

/// All locks and waits.
#[derive(Debug, Default)]
pub struct Locks {
    config: LocksConfig,
    table: RangeTable,
    queues: HashMap<Gfid, VecDeque<Waiter>>,
    granted: Vec<(SessionId, WaitId)>,
}

impl Locks {
    /// None yet.
    pub fn new(config: LocksConfig) -> Self {
        Self { config, ..Self::default() }
    }

    /// What is held.
    pub fn table(&self) -> &RangeTable {
        &self.table
    }

    /// Takes a lock if nobody is in the way.
    pub fn set(&mut self, gfid: Gfid, holder: Holder, lock: RangeLock) -> Answer {
        if self.table.conflict(gfid, holder, &lock).is_some() {
            return Answer::Busy;
        }
        if self.table.count(gfid, holder) >= self.config.file_locks_max {
            return Answer::TooMany;
        }
        self.table.set(gfid, holder, lock);
        self.settle(gfid); // a write lock that becomes a read lock lets others in
        Answer::Held
    }

    /// Takes a lock, or waits for it in turn. Asking again under the same id keeps the place.
    pub fn wait(
        &mut self,
        now: Duration,
        gfid: Gfid,
        holder: Holder,
        lock: RangeLock,
        id: WaitId,
    ) -> Answer {
        let until = now + self.config.wait_keep;
        let queued = self.queues.get_mut(&gfid).and_then(|queue| {
            queue
                .iter_mut()
                .find(|waiter| waiter.id == id && waiter.holder.session == holder.session)
        });
        if let Some(waiter) = queued {
            waiter.until = until;
            return Answer::Busy;
        }
        let ahead = self.queues.get(&gfid).map_or(0, VecDeque::len);
        if !self.stands_behind(gfid, holder, &lock, ahead) {
            return self.set(gfid, holder, lock);
        }
        if self.closes_circle(gfid, holder, &lock) {
            return Answer::Deadlock;
        }
        if ahead >= self.config.file_locks_max {
            return Answer::TooMany;
        }
        self.queues.entry(gfid).or_default().push_back(Waiter { id, holder, lock, until });
        Answer::Busy
    }

    /// Gives a wait up. False if there is none (any more): the lock may be held.
    pub fn cancel(&mut self, gfid: Gfid, session: SessionId, id: WaitId) -> bool {
        self.drop_waits(gfid, |waiter| waiter.id == id && waiter.holder.session == session)
    }

    /// The holder unlocks a range. False if that would leave it too many pieces: nothing is
    /// unlocked then.
    pub fn clear(&mut self, gfid: Gfid, holder: Holder, range: ByteRange) -> bool {
        let splits = |held: &Held| {
            held.holder == holder
                && held.lock.range.start < range.start
                && held.lock.range.last > range.last
        };
        if self.table.count(gfid, holder) >= self.config.file_locks_max
            && self.table.of(gfid).iter().any(splits)
        {
            return false;
        }
        self.table.clear(gfid, holder, range);
        self.settle(gfid);
        true
    }

    /// A process has closed the file: its locks on it and its waits go.
    pub fn close(&mut self, gfid: Gfid, holder: Holder) {
        self.table.clear(gfid, holder, ByteRange::ALL);
        self.drop_waits(gfid, |waiter| waiter.holder == holder);
        self.settle(gfid);
    }

    /// The session is dead: it waits for nothing any more. What it holds stays.
    pub fn fence(&mut self, session: SessionId) {
        for gfid in self.queues.keys().copied().collect::<Vec<_>>() {
            self.drop_waits(gfid, |waiter| waiter.holder.session == session);
        }
    }

    /// The session is gone.
    pub fn end_session(&mut self, session: SessionId) {
        self.fence(session);
        for gfid in self.table.drop_session(session) {
            self.settle(gfid);
        }
    }

    /// The file is gone.
    pub fn forget(&mut self, gfid: Gfid) {
        self.table.drop_file(gfid);
        self.settle(gfid); // who waits gets a lock on nothing
    }

    /// After a restart of the service: the holder says that it has this lock. False if another got
    /// it meanwhile, or if nobody can have it: its range is empty, or the holder has as many as it
    /// can have had.
    pub fn reclaim(&mut self, gfid: Gfid, holder: Holder, lock: RangeLock) -> bool {
        // A lock taken inside another of the other mode leaves one piece more than the limit.
        let is_possible = lock.range.start <= lock.range.last
            && self.table.count(gfid, holder) <= self.config.file_locks_max;
        let free = is_possible && self.table.conflict(gfid, holder, &lock).is_none();
        if free {
            self.table.set(gfid, holder, lock);
        }
        free
    }

    /// Time passes: waits that nobody asked for again go.
    pub fn tick(&mut self, now: Duration) {
        for gfid in self.queues.keys().copied().collect::<Vec<_>>() {
            self.drop_waits(gfid, |waiter| waiter.until <= now);
        }
    }

    /// Waits that ended with the lock held since the last call.
    pub fn take_granted(&mut self) -> Vec<(SessionId, WaitId)> {
        std::mem::take(&mut self.granted)
    }

    /// Must this request wait: for a lock held, or behind one of the first `ahead` waits?
    fn stands_behind(&self, gfid: Gfid, holder: Holder, lock: &RangeLock, ahead: usize) -> bool {
        if self.table.conflict(gfid, holder, lock).is_some() {
            return true;
        }
        let earlier = self.queues.get(&gfid).into_iter().flatten().take(ahead);
        !self.table.holds_any(holder)
            && earlier.into_iter().any(|w| w.holder != holder && table::excludes(&w.lock, lock))
    }

    /// Does anyone whom this wait would wait for wait for its holder, directly or not?
    fn closes_circle(&self, gfid: Gfid, holder: Holder, lock: &RangeLock) -> bool {
        let blockers = |gfid: Gfid, who: Holder, lock: RangeLock| {
            let held = self.table.of(gfid).iter();
            held.filter(move |h| h.holder != who && table::excludes(&h.lock, &lock))
                .map(|h| h.holder)
        };
        let mut open: Vec<Holder> = blockers(gfid, holder, *lock).collect();
        let mut seen: BTreeSet<Holder> = open.iter().copied().collect();
        while let Some(next) = open.pop() {
            if next == holder {
                return true;
            }
            for (file, queue) in &self.queues {
                for waiter in queue.iter().filter(|waiter| waiter.holder == next) {
                    open.extend(
                        blockers(*file, next, waiter.lock).filter(|found| seen.insert(*found)),
                    );
                }
            }
        }
        false
    }

    fn drop_waits(&mut self, gfid: Gfid, which: impl Fn(&Waiter) -> bool) -> bool {
        let Some(queue) = self.queues.get_mut(&gfid) else { return false };
        let before = queue.len();
        queue.retain(|waiter| !which(waiter));
        let dropped = queue.len() != before;
        if dropped {
            self.settle(gfid);
        }
        dropped
    }

    /// Grants, from the front of the file's queue, what nothing stands in the way of.
    fn settle(&mut self, gfid: Gfid) {
        let mut at = 0;
        while let Some((holder, lock)) =
            self.queues.get(&gfid).and_then(|q| q.get(at)).map(|w| (w.holder, w.lock))
        {
            if self.stands_behind(gfid, holder, &lock, at) {
                at += 1;
                continue;
            }
            let granted = self.queues.get_mut(&gfid).and_then(|queue| queue.remove(at));
            self.granted.extend(granted.map(|waiter| (holder.session, waiter.id)));
            self.table.set(gfid, holder, lock);
            at = 0; // a lock that became weaker, or a holder that no longer stands in line, may let an earlier one in
        }
        if self.queues.get(&gfid).is_some_and(VecDeque::is_empty) {
            self.queues.remove(&gfid);
        }
    }

    /// Checks what must always hold.
    ///
    /// # Panics
    /// When it does not.
    pub fn check_invariants(&self) {
        self.table.check_invariants();
        for (gfid, queue) in &self.queues {
            assert!(!queue.is_empty(), "{gfid}: kept for nothing");
            for (at, waiter) in queue.iter().enumerate() {
                let blocked = self.stands_behind(*gfid, waiter.holder, &waiter.lock, at);
                assert!(blocked, "{gfid}: {:?} waits for nothing", waiter.id);
            }
        }
    }
}
