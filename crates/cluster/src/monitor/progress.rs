//! How fast what was lost is being rebuilt, and how long the rest will take.
//!
//! Contract: pure, time is passed in. Counters are those of heartbeats: they grow, and begin at 0
//! again with a new process. The rate is that of the last [`WINDOW`]; what happened before says
//! nothing of now.

use protocol::OsdId;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Rates are taken over so long: long enough to even out single objects, short enough to show a
/// changed limit soon.
pub(super) const WINDOW: Duration = Duration::from_secs(10);
/// Samples that are kept lie at least so far apart: a window has some eighty at most, however many
/// OSDs there are.
const SAMPLE_EVERY: Duration = Duration::from_millis(250);
/// A shorter time gives no rate.
const SPAN_MIN: Duration = Duration::from_millis(500);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// The counter of each OSD, as last told.
    told: BTreeMap<OsdId, u64>,
    /// Bytes dealt with by all since this monitor began to listen.
    total_bytes: u64,
    /// When the total was what, oldest first.
    samples: VecDeque<(Duration, u64)>,
}

impl Progress {
    /// An OSD's process has dealt with so many bytes since it began.
    pub fn note(&mut self, osd: OsdId, recovered_bytes: u64, now: Duration) {
        // What it did before this monitor heard of it was done nobody knows when.
        let before = self.told.insert(osd, recovered_bytes).unwrap_or(recovered_bytes);
        let more_bytes = recovered_bytes.checked_sub(before).unwrap_or(recovered_bytes);
        self.total_bytes = self.total_bytes.saturating_add(more_bytes);
        if self.samples.iter().all(|(_, total)| *total == self.total_bytes) {
            // Nothing moves: the time until it does is not to count as slow.
            self.samples.clear();
        }
        let before_last = self.samples.len().checked_sub(2).map(|index| self.samples[index].0);
        if before_last.is_some_and(|at| now < at + SAMPLE_EVERY) {
            self.samples.pop_back();
        }
        self.samples.push_back((now, self.total_bytes));
        while self.samples.get(1).is_some_and(|(at, _)| *at + WINDOW <= now) {
            self.samples.pop_front();
        }
    }

    /// Bytes in a second, of all OSDs together; 0 if nothing moves, or too little is known.
    pub fn bytes_per_sec(&self, now: Duration) -> u64 {
        let (Some(first), Some(last)) = (self.samples.front(), self.samples.back()) else {
            return 0;
        };
        let span = now.max(last.0).saturating_sub(first.0);
        if span < SPAN_MIN {
            return 0;
        }
        ((last.1 - first.1) as f64 / span.as_secs_f64()) as u64
    }
}

/// How long so many bytes take at this rate, in whole seconds, rounded up. `None`: nobody can tell.
pub(super) fn seconds_left(left_bytes: u64, bytes_per_sec: u64) -> Option<u64> {
    match (left_bytes, bytes_per_sec) {
        (0, _) => Some(0),
        (_, 0) => None,
        (left, rate) => Some(left.div_ceil(rate)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OSD: OsdId = OsdId::new(1);

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_steady_rate_is_told_as_it_is() {
        let mut progress = Progress::default();
        // idle for long, then 1000 bytes every half second
        (0..100).for_each(|beat| progress.note(OSD, 0, at(beat * 500)));
        assert_eq!(progress.bytes_per_sec(at(50_000)), 0);
        for beat in 1..=60 {
            progress.note(OSD, beat * 1000, at(49_500 + beat * 500));
            if beat >= 2 {
                assert_eq!(progress.bytes_per_sec(at(49_500 + beat * 500)), 2000, "beat {beat}");
            }
        }
        assert!(progress.samples.len() <= 42, "{}", progress.samples.len());
    }

    #[test]
    fn only_the_window_counts() {
        let mut progress = Progress::default();
        (0..40).for_each(|beat| progress.note(OSD, beat * 5000, at(beat * 500)));
        assert_eq!(progress.bytes_per_sec(at(19_500)), 10_000);
        (40..80).for_each(|beat| progress.note(OSD, 195_000 + (beat - 39) * 50, at(beat * 500)));
        assert_eq!(progress.bytes_per_sec(at(39_500)), 100);
        // all is done, or stands still
        (80..120).for_each(|beat| progress.note(OSD, 197_000, at(beat * 500)));
        assert_eq!(progress.bytes_per_sec(at(59_500)), 0);
    }

    #[test]
    fn a_restarted_process_counts_from_zero_and_osds_add_up() {
        let mut progress = Progress::default();
        progress.note(OSD, 7_000_000, at(0));
        assert_eq!(progress.total_bytes, 0, "done before anyone looked");
        progress.note(OSD, 7_000_500, at(500));
        progress.note(OSD, 300, at(1000));
        progress.note(OsdId::new(2), 0, at(1000));
        progress.note(OsdId::new(2), 200, at(1500));
        assert_eq!(progress.total_bytes, 1000);
        assert_eq!(progress.bytes_per_sec(at(2000)), 500);
    }

    #[test]
    fn many_heartbeats_at_once_are_few_samples() {
        let mut progress = Progress::default();
        for round in 0..100 {
            (0..200).for_each(|osd| {
                progress.note(OsdId::new(osd), round * 10, at(round * 500 + u64::from(osd)))
            });
        }
        assert!(progress.samples.len() <= 84, "{}", progress.samples.len());
        let rate = progress.bytes_per_sec(at(49_700));
        assert!((3_800..=4_200).contains(&rate), "{rate}");
    }

    #[test]
    fn the_time_to_go_is_rounded_up() {
        assert_eq!(seconds_left(0, 0), Some(0));
        assert_eq!(seconds_left(1, 0), None);
        assert_eq!(seconds_left(1001, 100), Some(11));
        assert_eq!(seconds_left(u64::MAX, 1), Some(u64::MAX));
    }
}
