//! Byte-range locks (`fcntl`), as the metadata service keeps them for all mounts.

use crate::ids::Gfid;
use crate::namespace::LeaseMode;
use serde::{Deserialize, Serialize};

/// A process of a mount, as its kernel numbers those that share open files.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct LockOwner(pub u64);

/// A session's number for a wait.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct WaitId(pub u64);

/// Bytes from `start` to `last`, both included.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct ByteRange {
    /// First byte.
    pub start: u64,
    /// Last byte; not below `start`.
    pub last: u64,
}

impl ByteRange {
    /// The whole file, however long it grows.
    pub const ALL: ByteRange = ByteRange { start: 0, last: u64::MAX };

    /// Is there a byte in both?
    pub fn overlaps(self, other: ByteRange) -> bool {
        self.start <= other.last && other.start <= self.last
    }

    /// Do both together make one range?
    pub fn touches(self, other: ByteRange) -> bool {
        self.start <= other.last.saturating_add(1) && other.start <= self.last.saturating_add(1)
    }

    /// What is left of this one without the other: at most two ranges.
    pub fn without(self, other: ByteRange) -> impl Iterator<Item = ByteRange> {
        let before = (self.start < other.start)
            .then(|| ByteRange { last: self.last.min(other.start - 1), ..self });
        let after = (self.last > other.last)
            .then(|| ByteRange { start: self.start.max(other.last + 1), ..self });
        before.into_iter().chain(after)
    }
}

/// A lock on a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RangeLock {
    /// Which bytes.
    pub range: ByteRange,
    /// Shared, or alone.
    pub mode: LeaseMode,
    /// Process id on its host, for whoever asks who is in the way.
    pub pid: u32,
}

/// Requests about the locks of one file and one owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LockOp {
    /// Who is in the way of this lock? Answer: `Lock`.
    Test(RangeLock),
    /// Takes it at once. Answer: `Done`; EAGAIN, ENOLCK.
    Set(RangeLock),
    /// Takes it, or waits for it. Answer: `Done`; EINPROGRESS after a moment: ask again under the
    /// same id, or cancel; EDEADLK, ENOLCK.
    Wait(RangeLock, WaitId),
    /// Gives a wait up. Answer: `Count`, 0 if there was none (any more): the lock may be held.
    Cancel(WaitId),
    /// Unlocks. Answer: `Done`; ENOLCK if too many pieces would be left.
    Clear(ByteRange),
    /// The owner has closed the file. Answer: `Done`.
    Close,
    /// Which session is in the way of this lock? Answer: `Holder`.
    Who(RangeLock),
}

/// A lock that a session says it holds, after a restart of the service.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockClaim {
    /// On which file.
    pub gfid: Gfid,
    /// Of which process.
    pub owner: LockOwner,
    /// What.
    pub lock: RangeLock,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_meet_and_part_also_at_the_ends_of_numbers() {
        let range = |start, last| ByteRange { start, last };
        assert!(range(0, 4).touches(range(5, 9)) && !range(0, 4).overlaps(range(5, 9)));
        assert!(!range(0, 3).touches(range(5, 9)));
        assert!(
            ByteRange::ALL.touches(range(0, 0))
                && range(u64::MAX, u64::MAX).touches(ByteRange::ALL)
        );
        let rest: Vec<_> = ByteRange::ALL.without(range(5, 9)).collect();
        assert_eq!(rest, [range(0, 4), range(10, u64::MAX)]);
        assert_eq!(range(5, 9).without(ByteRange::ALL).count(), 0);
        assert_eq!(range(0, 9).without(range(20, 30)).collect::<Vec<_>>(), [range(0, 9)]);
        assert_eq!(range(20, 30).without(range(0, 9)).collect::<Vec<_>>(), [range(20, 30)]);
        assert_eq!(ByteRange::ALL.without(range(0, u64::MAX)).count(), 0);
    }
}
