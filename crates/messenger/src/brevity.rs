//! Whether what may wait for a disk is done sooner than another thread could be called for it.
//!
//! Contract: no clock. Whoever does it says how long it took.

use std::time::Duration;

/// What is to be expected of the next job of a kind, from how long the last one took: two hand-overs between threads cost
/// some tens of microseconds, and more where CPUs sleep; a disk that keeps what it was given through a loss of power syncs a
/// page in as little.
#[derive(Clone, Copy, Debug, Default)]
pub struct Brevity {
    is_brief: bool,
}

impl Brevity {
    /// What took longer is not brief: so long whoever shares the thread waits for it.
    pub const BRIEF_MAX: Duration = Duration::from_micros(500);

    /// A job took so long.
    pub fn took(&mut self, duration: Duration) {
        self.is_brief = duration <= Self::BRIEF_MAX;
    }

    /// Was the last one brief? None was before the first.
    pub fn is_expected(self) -> bool {
        self.is_brief
    }
}
