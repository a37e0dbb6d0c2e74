//! Reads that were not answered in time: what the kernel asks again for the same call is refused at
//! once.
//!
//! Contract: a read(2), or a page fault, that the kernel's pages cannot answer is a request for
//! many pages, ahead of what is read, and, when that fails, another for the page itself. Without
//! this such a call takes twice the mount's timeout. A program that reads again later, however soon
//! after [`SAME_CALL`], waits again.

use messenger::sync::{ContentionMutex, LockTable};
use protocol::Gfid;
use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

/// The kernel asks again within this time; it does so at once.
const SAME_CALL: Duration = Duration::from_millis(100);
/// Reads kept, at most: as many as the kernel may send at once and not wait for.
const KEPT_MAX: usize = 128;

/// See the module.
pub struct LateReads {
    kept: ContentionMutex<VecDeque<Late>>,
    /// What a read that is not answered has waited, at least, if it was not given up otherwise;
    /// zero: none is ever late.
    timeout: Duration,
}

struct Late {
    file: Gfid,
    range: Range<u64>,
    until: Instant,
}

/// A read under way. One that is dropped after the timeout, and not answered, was late; one that is
/// dropped before was given up since its caller was killed.
pub struct Reading<'a> {
    late: &'a LateReads,
    file: Gfid,
    range: Range<u64>,
    began: Instant,
    is_answered: bool,
}

impl LateReads {
    /// None yet; with the mount's timeout.
    pub fn new(locks: &LockTable, timeout: Duration) -> Self {
        Self { kept: ContentionMutex::new(locks, "late reads", VecDeque::new()), timeout }
    }

    /// Was a range that covers this one given up a moment ago?
    pub fn cover(&self, file: Gfid, range: &Range<u64>, now: Instant) -> bool {
        let mut kept = self.kept.lock();
        while kept.front().is_some_and(|late| late.until <= now) {
            kept.pop_front();
        }
        let covers = |late: &Late| {
            late.file == file && late.range.start <= range.start && range.end <= late.range.end
        };
        kept.iter().any(covers)
    }

    /// A read begins.
    pub fn reading(&self, file: Gfid, range: Range<u64>) -> Reading<'_> {
        Reading { late: self, file, range, began: Instant::now(), is_answered: false }
    }

    fn note(&self, file: Gfid, range: Range<u64>, now: Instant) {
        let mut kept = self.kept.lock();
        if kept.len() >= KEPT_MAX {
            kept.pop_front();
        }
        kept.push_back(Late { file, range, until: now + SAME_CALL });
    }
}

impl Reading<'_> {
    /// It is answered in time, or with an error that has nothing to do with time.
    pub fn answered(mut self) {
        self.is_answered = true;
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let timeout = self.late.timeout;
        let is_late = !timeout.is_zero() && self.began.elapsed() >= timeout;
        if is_late && !self.is_answered {
            self.late.note(self.file, self.range.clone(), Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_late_is_refused_and_not_for_long() {
        let late = LateReads::new(&LockTable::default(), Duration::from_nanos(1));
        let (file, other) = (Gfid::of_inode(7), Gfid::of_inode(8));
        late.reading(file, 0..4096).answered();
        assert!(!late.cover(file, &(0..4096), Instant::now()));
        drop(late.reading(file, 0..131_072));
        let now = Instant::now();
        let soon = now.checked_sub(SAME_CALL / 2).unwrap_or(now);
        assert!(late.cover(file, &(4096..8192), soon));
        assert!(!late.cover(other, &(4096..8192), soon));
        assert!(!late.cover(file, &(126_976..135_168), soon), "a part was not asked for");
        assert!(!late.cover(file, &(4096..8192), now + SAME_CALL), "that is another call");
    }

    #[test]
    fn a_read_that_was_given_up_before_its_time_is_not_late() {
        let file = Gfid::of_inode(7);
        for timeout in [Duration::ZERO, Duration::from_secs(3600)] {
            let late = LateReads::new(&LockTable::default(), timeout);
            drop(late.reading(file, 0..4096));
            assert!(!late.cover(file, &(0..4096), Instant::now()), "{timeout:?}");
        }
    }

    #[test]
    fn a_bounded_number_is_kept() {
        let late = LateReads::new(&LockTable::default(), Duration::from_nanos(1));
        (0..10 * KEPT_MAX as u64).for_each(|ino| drop(late.reading(Gfid::of_inode(ino), 0..1)));
        assert_eq!(late.kept.lock().len(), KEPT_MAX);
    }
}
