//! Whether what may wait for a disk takes so little time that calling another thread for it is not
//! worth it.
//!
//! Contract: no clock. Whoever does it says how long it took.

use std::time::Duration;

/// What is to be expected of the next job of a kind, from how long the last ones took: two
/// hand-overs between threads cost some tens of microseconds of a CPU, and more where CPUs sleep; a
/// disk that keeps what it was given through a loss of power syncs a page in not much more.
#[derive(Clone, Copy, Debug, Default)]
pub struct InlinePredictor {
    /// Brief ones in a row.
    brief: u32,
}

impl InlinePredictor {
    /// What took longer is not brief: so long whoever shares the thread waits for it.
    pub const BRIEF_MAX: Duration = Duration::from_micros(500);

    /// So many brief ones in a row let the next one be expected to be brief.
    pub const ROW: u32 = 4;

    /// A job took so long.
    pub fn took(&mut self, duration: Duration) {
        self.brief = if duration <= Self::BRIEF_MAX { self.brief.saturating_add(1) } else { 0 };
    }

    /// Were the last [`InlinePredictor::ROW`] brief?
    pub fn is_expected(self) -> bool {
        self.brief >= Self::ROW
    }
}
