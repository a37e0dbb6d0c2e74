//! Names and settings of the mappings.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Longest interval between placements: an hour, beyond which nothing would be balanced.
pub const INTERVAL_MAX: Duration = Duration::from_secs(3600);

/// The setting `ms_mapping`: how connections are mapped to workers.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub enum Mapping {
    /// One worker per connection, assigned in turn (Async-Orig).
    RoundRobin,
    /// One worker per connection, reassigned each interval by traffic (Async-TAM).
    TrafficAware,
    /// Every worker watches every connection, nothing controls it.
    Shared,
    /// Several workers per connection, adjusted by lock contention (Async-LCAM).
    Lcam,
    /// Every worker watches every connection; one that finds it taken leaves a mark for its holder
    /// and moves on.
    Handoff,
    /// The client names a lane, and lane modulo workers serves it: the worker that reads a request
    /// owns its data.
    #[default]
    CoreAffine,
}

impl Mapping {
    /// All values, in the order of the documentation.
    pub const ALL: [Mapping; 6] = [
        Mapping::RoundRobin,
        Mapping::TrafficAware,
        Mapping::Shared,
        Mapping::Lcam,
        Mapping::Handoff,
        Mapping::CoreAffine,
    ];

    /// The name used in configuration files.
    pub fn name(self) -> &'static str {
        match self {
            Mapping::RoundRobin => "round-robin",
            Mapping::TrafficAware => "traffic-aware",
            Mapping::Shared => "shared",
            Mapping::Lcam => "lcam",
            Mapping::Handoff => "handoff",
            Mapping::CoreAffine => "core-affine",
        }
    }

    /// True if the worker lists change from interval to interval.
    pub fn is_adjusted(self) -> bool {
        matches!(self, Mapping::TrafficAware | Mapping::Lcam)
    }
}

impl fmt::Display for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Mapping {
    type Err = MappingError;

    fn from_str(text: &str) -> Result<Mapping, MappingError> {
        Mapping::ALL
            .into_iter()
            .find(|mapping| mapping.name() == text)
            .ok_or_else(|| MappingError::Unknown(text.to_owned()))
    }
}

/// The setting `ms_lcam_rule`: how [`Mapping::Lcam`] decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum LcamRule {
    /// Algorithm 1 of the paper, which goes on adding and deleting under a steady load.
    #[default]
    AsPrinted,
    /// Adds only workers that relieve others, and comes to rest under a steady load, in a few
    /// intervals.
    Damped,
}

impl LcamRule {
    /// All values.
    pub const ALL: [LcamRule; 2] = [LcamRule::AsPrinted, LcamRule::Damped];

    /// The name used in configuration files.
    pub fn name(self) -> &'static str {
        match self {
            LcamRule::AsPrinted => "as-printed",
            LcamRule::Damped => "damped",
        }
    }
}

impl fmt::Display for LcamRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for LcamRule {
    type Err = MappingError;

    fn from_str(text: &str) -> Result<LcamRule, MappingError> {
        LcamRule::ALL
            .into_iter()
            .find(|rule| rule.name() == text)
            .ok_or_else(|| MappingError::UnknownRule(text.to_owned()))
    }
}

/// Why a mapping or its settings cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MappingError {
    /// The name is none of the six.
    #[error("unknown mapping {0:?}, expected one of {names}", names = names(Mapping::ALL.map(Mapping::name)))]
    Unknown(String),
    /// The name is no rule.
    #[error("unknown rule {0:?}, expected one of {names}", names = names(LcamRule::ALL.map(LcamRule::name)))]
    UnknownRule(String),
    /// There is no worker to assign to.
    #[error("there are no workers to assign a connection to, at least 1 is needed")]
    NoWorkers,
    /// The interval is out of range.
    #[error("a placement interval of {0:?} is not possible, allowed are 1 ms to {INTERVAL_MAX:?}")]
    Interval(Duration),
    /// The threshold is out of range.
    #[error(
        "a lock threshold of {0} is not possible, allowed is a share of the interval above 0 and up to 1"
    )]
    Threshold(f64),
}

fn names<const N: usize>(names: [&'static str; N]) -> String {
    names.join(", ")
}

/// How a listener places its connections.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlacementConfig {
    /// How connections are mapped to workers.
    pub mapping: Mapping,
    /// Time between adjustments, 1 ms to [`INTERVAL_MAX`]. Default 3 s, the paper's.
    pub interval: Duration,
    /// Share of the interval, above 0 and up to 1, that the workers of a connection may together
    /// spend waiting for its lock before it loses one. Default 0.1, the paper's.
    pub lock_threshold: f64,
    /// How [`Mapping::Lcam`] decides. Default as printed.
    pub lcam_rule: LcamRule,
}

impl Default for PlacementConfig {
    fn default() -> PlacementConfig {
        PlacementConfig::new(Mapping::default())
    }
}

impl PlacementConfig {
    /// Default settings with this mapping.
    pub fn new(mapping: Mapping) -> PlacementConfig {
        PlacementConfig {
            mapping,
            interval: Duration::from_secs(3),
            lock_threshold: 0.1,
            lcam_rule: LcamRule::default(),
        }
    }

    /// Checks the ranges; to be called once before use.
    ///
    /// # Errors
    /// [`MappingError`], which says what is allowed.
    pub fn check(&self) -> Result<(), MappingError> {
        if self.interval < Duration::from_millis(1) || self.interval > INTERVAL_MAX {
            return Err(MappingError::Interval(self.interval));
        }
        if !(self.lock_threshold > 0.0 && self.lock_threshold <= 1.0) {
            return Err(MappingError::Threshold(self.lock_threshold));
        }
        Ok(())
    }

    /// The lock time that is too much in an interval that took `elapsed`.
    pub fn threshold(&self, elapsed: Duration) -> Duration {
        elapsed.mul_f64(self.lock_threshold.clamp(0.0, 1.0))
    }
}
