//! How many events a worker takes at once.

use std::fmt;
use std::str::FromStr;

/// Most events that one call may take: more connections than that per worker only mean another
/// call.
pub const EVENTS_MAX: usize = 65_536;

/// The setting `ms_max_events`: the paper's `maxevents`, section 4.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum MaxEvents {
    /// Connections divided by workers, rounded up, so that all workers can take an equal share of
    /// what is ready.
    #[default]
    Auto,
    /// This many, 1 to [`EVENTS_MAX`]. Ceph's default was 5000.
    Fixed(usize),
}

impl MaxEvents {
    /// How many events a worker of a pool takes at once.
    pub fn limit(self, connections: usize, workers: usize) -> usize {
        match self {
            MaxEvents::Auto => connections.div_ceil(workers.max(1)).clamp(1, EVENTS_MAX),
            MaxEvents::Fixed(events) => events.clamp(1, EVENTS_MAX),
        }
    }
}

/// Neither `auto` nor a number in range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} events at once are not possible, allowed are auto and 1 to {EVENTS_MAX}")]
pub struct MaxEventsError(String);

impl fmt::Display for MaxEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MaxEvents::Auto => f.write_str("auto"),
            MaxEvents::Fixed(events) => write!(f, "{events}"),
        }
    }
}

impl FromStr for MaxEvents {
    type Err = MaxEventsError;

    fn from_str(text: &str) -> Result<MaxEvents, MaxEventsError> {
        if text == "auto" {
            return Ok(MaxEvents::Auto);
        }
        let events = text.parse().ok().filter(|events| (1..=EVENTS_MAX).contains(events));
        events.map(MaxEvents::Fixed).ok_or_else(|| MaxEventsError(text.to_owned()))
    }
}
