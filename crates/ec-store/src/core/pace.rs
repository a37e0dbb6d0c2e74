//! Keeps background work at a rate.
//!
//! Contract: pure, time is passed in. What was not used in the past is not made up for, but for [`BURST`].

use std::time::{Duration, Instant};

/// Work of so long a time may come at once: a chunk must not wait for the next tick of a clock.
const BURST: Duration = Duration::from_millis(100);

/// See the module.
#[derive(Debug)]
pub(super) struct Pace {
    bytes_per_sec: u64,
    /// When everything taken so far is paid for.
    paid: Option<Instant>,
}

impl Pace {
    /// A rate in bytes a second; 0 counts as 1.
    pub fn new(bytes_per_sec: u64) -> Self {
        Self { bytes_per_sec: bytes_per_sec.max(1), paid: None }
    }

    /// So many bytes are taken: how long to wait before more are.
    pub fn take(&mut self, bytes: u64, now: Instant) -> Duration {
        let begin = self.paid.map_or(now, |paid| paid.max(now.checked_sub(BURST).unwrap_or(now)));
        let paid = begin + Duration::from_secs_f64(bytes as f64 / self.bytes_per_sec as f64);
        self.paid = Some(paid);
        paid.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_kept_and_idle_time_is_not_saved_up() {
        let (mut pace, begin) = (Pace::new(1000), Instant::now());
        let mut now = begin;
        for _ in 0..50 {
            now += pace.take(100, now);
        }
        assert_eq!((now - begin).as_millis(), 5000);
        now += Duration::from_secs(60);
        let waits: Duration = (0..10).map(|_| pace.take(100, now)).max().expect("ten");
        assert_eq!(waits.as_millis(), 900);
    }
}
