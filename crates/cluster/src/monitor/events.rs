//! What happened in the cluster of late, for people: `trefoil events`.
//!
//! Contract: pure, time is passed in. The last [`EVENTS_MAX`] are kept, in memory only: a monitor
//! that restarts begins with number 1 again.

use protocol::monitor::{ClusterEvent, Health};
use std::collections::VecDeque;
use std::time::Duration;

/// Events kept, at most: days of a quiet cluster, some 200 KB.
pub const EVENTS_MAX: usize = 1000;
/// Characters of one.
const CHARS_MAX: usize = 300;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// Oldest first.
    kept: VecDeque<Event>,
    /// Number of the last one.
    last: u64,
}

#[derive(Debug)]
struct Event {
    at: Duration,
    severity: Health,
    what: String,
}

impl Events {
    /// Something happened. What others said of themselves may be part of `what`.
    pub fn add(&mut self, at: Duration, severity: Health, what: &str) {
        let what =
            what.chars().map(|c| if c.is_control() { '?' } else { c }).take(CHARS_MAX).collect();
        self.last += 1;
        self.kept.push_back(Event { at, severity, what });
        if self.kept.len() > EVENTS_MAX {
            self.kept.pop_front();
        }
    }

    /// Those after a number, oldest first; all, if that is one of another run.
    pub fn after(&self, number: u64, now: Duration) -> Vec<ClusterEvent> {
        let first = self.last - self.kept.len() as u64 + 1;
        let known = if number > self.last { 0 } else { number };
        let numbered = (first..).zip(&self.kept).filter(|(number, _)| *number > known);
        let told = |(number, event): (u64, &Event)| ClusterEvent {
            number,
            age_secs: now.saturating_sub(event.at).as_secs(),
            severity: event.severity,
            what: event.what.clone(),
        };
        numbered.map(told).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_kept_and_told_once() {
        let (mut events, at) = (Events::default(), Duration::from_secs);
        assert_eq!(events.after(0, at(1)), []);
        for number in 1..=EVENTS_MAX as u64 + 5 {
            events.add(at(number), Health::Ok, &format!("{number}\n"));
        }
        let all = events.after(0, at(2000));
        assert_eq!((all.len(), all[0].number, all[0].what.as_str()), (EVENTS_MAX, 6, "6?"));
        assert_eq!(all[0].age_secs, 1994);
        let last = all[EVENTS_MAX - 1].number;
        assert_eq!(events.after(last - 2, at(2000)).len(), 2);
        assert_eq!(events.after(last, at(2000)), []);
        assert_eq!(events.after(u64::MAX, at(2000)).len(), EVENTS_MAX, "the number of another run");
    }
}
