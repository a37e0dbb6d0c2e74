//! Keeps background work at a rate.
//!
//! Contract: pure, time is passed in. What was not used in the past is not made up for, but for
//! [`BURST`].

use std::time::{Duration, Instant};

/// Work of so long a time may come at once: a chunk must not wait for the next tick of a clock.
const BURST: Duration = Duration::from_millis(100);

/// See the module.
#[derive(Debug)]
pub(super) struct Pace {
    /// 0: no limit.
    bytes_per_sec: u64,
    /// When everything taken so far is paid for.
    paid: Option<Instant>,
}

impl Pace {
    /// A rate in bytes a second; 0: no limit.
    pub fn new(bytes_per_sec: u64) -> Self {
        Self { bytes_per_sec, paid: None }
    }

    /// Another rate from now on. What is owed at the old one is let go: at a very low one it might
    /// be hours.
    pub fn set_rate(&mut self, bytes_per_sec: u64) {
        *self = Self::new(bytes_per_sec);
    }

    /// So many bytes are taken: how long to wait before more are.
    pub fn take(&mut self, bytes: u64, now: Instant) -> Duration {
        if self.bytes_per_sec > 0 {
            let begin =
                self.paid.map_or(now, |paid| paid.max(now.checked_sub(BURST).unwrap_or(now)));
            self.paid =
                Some(begin + Duration::from_secs_f64(bytes as f64 / self.bytes_per_sec as f64));
        }
        self.owed(now)
    }

    /// How long to wait before more are taken.
    pub fn owed(&self, now: Instant) -> Duration {
        self.paid.map_or(Duration::ZERO, |paid| paid.saturating_duration_since(now))
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

    #[test]
    fn another_rate_counts_at_once_and_none_is_no_limit() {
        let (mut pace, now) = (Pace::new(1), Instant::now());
        assert_eq!(pace.take(7200, now).as_secs(), 7200);
        pace.set_rate(1000);
        assert_eq!(pace.owed(now), Duration::ZERO);
        assert_eq!(pace.take(500, now).as_millis(), 500);
        assert_eq!(pace.owed(now + Duration::from_millis(400)).as_millis(), 100);
        pace.set_rate(0);
        assert_eq!(pace.take(u64::MAX, now), Duration::ZERO);
    }
}
