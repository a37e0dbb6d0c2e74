//! Locks that are held, by file: ranges of one owner split and merge as POSIX has it.
//!
//! Contract: pure bookkeeping; nothing here decides who may lock. The service keeps one of all
//! sessions, a client one of its own, to say after a restart of the service what it holds.

use protocol::lock::{ByteRange, LockOwner, RangeLock};
use protocol::namespace::LeaseMode;
use protocol::{Gfid, SessionId};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Who holds a lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Holder {
    /// Which mount.
    pub session: SessionId,
    /// Which process there.
    pub owner: LockOwner,
}

/// A lock with its holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// Whose.
    pub holder: Holder,
    /// What.
    pub lock: RangeLock,
}

/// All locks held.
#[derive(Debug, Default)]
pub struct RangeTable {
    files: HashMap<Gfid, Vec<Held>>,
    /// Files by holder, so that the end of one costs what it holds.
    holders: BTreeMap<Holder, BTreeSet<Gfid>>,
}

/// Do two locks of different holders exclude each other?
pub fn excludes(a: &RangeLock, b: &RangeLock) -> bool {
    a.range.overlaps(b.range) && (a.mode == LeaseMode::Write || b.mode == LeaseMode::Write)
}

impl RangeTable {
    /// Locks of a file, in no order.
    pub fn of(&self, gfid: Gfid) -> &[Held] {
        self.files.get(&gfid).map_or(&[], Vec::as_slice)
    }

    /// The first lock that another holder has against this one.
    pub fn conflict(&self, gfid: Gfid, holder: Holder, lock: &RangeLock) -> Option<&Held> {
        let against =
            self.of(gfid).iter().filter(|held| held.holder != holder && excludes(&held.lock, lock));
        against.min_by_key(|held| (held.lock.range.start, held.holder))
    }

    /// Does it hold anything on any file?
    pub fn holds_any(&self, holder: Holder) -> bool {
        self.holders.contains_key(&holder)
    }

    /// Does it hold anything on this file?
    pub fn holds(&self, gfid: Gfid, holder: Holder) -> bool {
        self.holders.get(&holder).is_some_and(|files| files.contains(&gfid))
    }

    /// Pieces held on the file by this holder.
    pub fn count(&self, gfid: Gfid, holder: Holder) -> usize {
        self.of(gfid).iter().filter(|held| held.holder == holder).count()
    }

    /// The holder's locks in the range become this one, joined with what it touches. The caller has
    /// seen to conflicts.
    pub fn set(&mut self, gfid: Gfid, holder: Holder, lock: RangeLock) {
        self.clear(gfid, holder, lock.range);
        let file = self.files.entry(gfid).or_default();
        let mut joined = lock;
        file.retain(|held| {
            let touches = held.holder == holder
                && held.lock.mode == lock.mode
                && held.lock.pid == lock.pid
                && held.lock.range.touches(lock.range);
            if touches {
                joined.range.start = joined.range.start.min(held.lock.range.start);
                joined.range.last = joined.range.last.max(held.lock.range.last);
            }
            !touches
        });
        file.push(Held { holder, lock: joined });
        self.holders.entry(holder).or_default().insert(gfid);
    }

    /// The holder has nothing in this range any more.
    pub fn clear(&mut self, gfid: Gfid, holder: Holder, range: ByteRange) {
        let Some(file) = self.files.get_mut(&gfid) else { return };
        let mut rest = Vec::new();
        file.retain(|held| {
            let hit = held.holder == holder && held.lock.range.overlaps(range);
            if hit {
                rest.extend(
                    held.lock
                        .range
                        .without(range)
                        .map(|range| Held { lock: RangeLock { range, ..held.lock }, ..*held }),
                );
            }
            !hit
        });
        file.append(&mut rest);
        self.tidy(gfid, holder);
    }

    /// Drops index entries of what is empty now.
    fn tidy(&mut self, gfid: Gfid, holder: Holder) {
        if self.count(gfid, holder) == 0
            && let Some(files) = self.holders.get_mut(&holder)
        {
            files.remove(&gfid);
            if files.is_empty() {
                self.holders.remove(&holder);
            }
        }
        if self.of(gfid).is_empty() {
            self.files.remove(&gfid);
        }
    }

    /// Everything of a session goes; returns the files.
    pub fn drop_session(&mut self, session: SessionId) -> BTreeSet<Gfid> {
        let first = Holder { session, owner: LockOwner(0) };
        let last = Holder { session, owner: LockOwner(u64::MAX) };
        let held: Vec<(Holder, Gfid)> = self
            .holders
            .range(first..=last)
            .flat_map(|(holder, files)| files.iter().map(move |gfid| (*holder, *gfid)))
            .collect();
        held.iter().for_each(|(holder, gfid)| self.clear(*gfid, *holder, ByteRange::ALL));
        held.into_iter().map(|(_, gfid)| gfid).collect()
    }

    /// The file is gone.
    pub fn drop_file(&mut self, gfid: Gfid) {
        for held in self.of(gfid).to_vec() {
            self.clear(gfid, held.holder, ByteRange::ALL);
        }
    }

    /// Every lock, with its file.
    pub fn all(&self) -> impl Iterator<Item = (Gfid, &Held)> {
        self.files.iter().flat_map(|(gfid, held)| held.iter().map(move |held| (*gfid, held)))
    }

    /// Checks what must always hold.
    ///
    /// # Panics
    /// When it does not.
    pub fn check_invariants(&self) {
        for (gfid, file) in &self.files {
            assert!(!file.is_empty(), "{gfid}: kept for nothing");
            for (at, a) in file.iter().enumerate() {
                assert!(a.lock.range.start <= a.lock.range.last, "{gfid}: an empty lock");
                assert!(self.holds(*gfid, a.holder), "{gfid}: not indexed");
                for b in &file[at + 1..] {
                    let apart = !a.lock.range.overlaps(b.lock.range);
                    assert!(apart || a.holder != b.holder, "{gfid}: a holder's locks overlap");
                    assert!(
                        a.holder == b.holder || !excludes(&a.lock, &b.lock),
                        "{gfid}: conflicting locks"
                    );
                }
            }
        }
        for (holder, files) in &self.holders {
            assert!(
                !files.is_empty() && files.iter().all(|gfid| self.count(*gfid, *holder) > 0),
                "a stale index"
            );
        }
    }
}
