//! What follows the writes of a file: programs that keep logs and databases call fsync after so
//! many writes, again and again.
//!
//! Contract: pure. A guess that is wrong costs a sync that nobody waits for, and ends the habit
//! until it shows itself anew.

/// How often writes and a sync must have alternated in the same way before the next sync is
/// expected.
const TIMES: u8 = 3;

/// What brings a write to the disks, if anything does: asked for with it, or expected after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SyncKind {
    /// Nothing.
    #[default]
    None,
    /// fdatasync, O_DSYNC.
    Data,
    /// fsync, O_SYNC.
    Full,
}

/// The habit of those who write a file.
#[derive(Debug, Default)]
pub(super) struct SyncHabit {
    /// Writes since the last sync.
    writes: u32,
    /// Writes before the last sync, which sync it was, and how often in a row it came like that.
    last: (u32, SyncKind),
    times: u8,
}

impl SyncHabit {
    /// A write begins: what is expected to follow it?
    pub(super) fn write_begins(&mut self) -> SyncKind {
        self.writes = self.writes.saturating_add(1);
        let (writes, follows) = self.last;
        if self.times >= TIMES && self.writes == writes { follows } else { SyncKind::None }
    }

    /// Would a write that begins now be expected to be followed by a sync?
    pub(super) fn is_next_followed(&self) -> bool {
        let (writes, follows) = self.last;
        self.times >= TIMES && self.writes.saturating_add(1) == writes && follows != SyncKind::None
    }

    /// Does this sync always follow writes in the same way?
    pub(super) fn has(&self, sync: SyncKind) -> bool {
        self.times >= TIMES && self.last.0 > 0 && self.last.1 == sync
    }

    /// The file is to be synced.
    pub(super) fn sync_begins(&mut self, sync: SyncKind) {
        let this = (std::mem::take(&mut self.writes), sync);
        self.times = if this == self.last { self.times.saturating_add(1) } else { 1 };
        self.last = this;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(
        habit: &mut SyncHabit,
        rounds: usize,
        writes: usize,
        sync: SyncKind,
    ) -> Vec<SyncKind> {
        let mut expected = Vec::new();
        for _ in 0..rounds {
            expected.extend((0..writes).map(|_| habit.write_begins()));
            habit.sync_begins(sync);
        }
        expected
    }

    #[test]
    fn a_sync_is_expected_after_the_third() {
        for sync in [SyncKind::Full, SyncKind::Data] {
            let mut habit = SyncHabit::default();
            assert_eq!(rounds(&mut habit, 3, 1, sync), [SyncKind::None; 3]);
            assert_eq!(rounds(&mut habit, 2, 1, sync), [sync; 2]);
        }
    }

    #[test]
    fn it_is_expected_after_the_last_of_several_writes() {
        let mut habit = SyncHabit::default();
        rounds(&mut habit, 3, 2, SyncKind::Data);
        assert_eq!(rounds(&mut habit, 1, 2, SyncKind::Data), [SyncKind::None, SyncKind::Data]);
    }

    #[test]
    fn another_way_begins_anew() {
        let mut habit = SyncHabit::default();
        rounds(&mut habit, 5, 1, SyncKind::Full);
        assert_eq!(habit.write_begins(), SyncKind::Full);
        assert_eq!(habit.write_begins(), SyncKind::None, "no sync came");
        habit.sync_begins(SyncKind::Full);
        assert_eq!(rounds(&mut habit, 3, 1, SyncKind::Full), [SyncKind::None; 3]);
        rounds(&mut habit, 1, 1, SyncKind::Data);
        assert_eq!(habit.write_begins(), SyncKind::None, "the other sync came");
    }

    #[test]
    fn syncs_without_writes_are_no_habit_of_writes() {
        let mut habit = SyncHabit::default();
        rounds(&mut habit, 9, 0, SyncKind::Full);
        assert_eq!(habit.write_begins(), SyncKind::None);
    }
}
