//! Which messenger worker serves a connection.
//!
//! Contract: pure functions over a snapshot. No I/O, no clock, no random numbers: the same snapshot gives the same
//! answer. `messenger` collects the snapshot, asks here, and moves the socket.

use std::fmt;
use std::str::FromStr;

/// The setting `ms_mapping`: how connections are mapped to workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Mapping {
    /// One worker per connection, assigned in turn (Async-Orig).
    RoundRobin,
    /// One worker per connection, reassigned each interval by traffic (Async-TAM).
    TrafficAware,
    /// Every worker watches every connection, nothing controls it.
    Shared,
    /// Several workers per connection, adjusted by lock contention (Async-LCAM).
    Lcam,
    /// As [`Mapping::Lcam`], but a worker that finds the lock taken leaves a mark and moves on.
    Handoff,
    /// The client names a lane, and lane modulo workers serves it: the worker that reads a request owns its data.
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

    /// Checks that this mapping can be used; to be called once at start-up.
    ///
    /// # Errors
    /// [`MappingError::NotAvailable`] for a recognised mapping that is not built yet.
    pub fn check_available(self) -> Result<(), MappingError> {
        match self {
            Mapping::RoundRobin | Mapping::CoreAffine => Ok(()),
            Mapping::TrafficAware | Mapping::Shared | Mapping::Lcam | Mapping::Handoff => {
                Err(MappingError::NotAvailable(self))
            }
        }
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

/// Why a mapping cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MappingError {
    /// The name is none of the six.
    Unknown(String),
    /// The name is known, the mapping is not built yet.
    NotAvailable(Mapping),
    /// There is no worker to assign to.
    NoWorkers,
}

impl fmt::Display for MappingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MappingError::Unknown(name) => {
                write!(f, "unknown mapping {name:?}, expected one of")?;
                Mapping::ALL
                    .iter()
                    .enumerate()
                    .try_for_each(|(i, known)| write!(f, "{} {known}", if i == 0 { "" } else { "," }))
            }
            MappingError::NotAvailable(mapping) => {
                write!(f, "mapping {mapping} is not available yet, use round-robin or core-affine")
            }
            MappingError::NoWorkers => f.write_str("there are no workers to assign a connection to"),
        }
    }
}

impl std::error::Error for MappingError {}

/// Index of a messenger worker, `0..workers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerIndex(pub usize);

/// What is known about the workers when a decision is taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// How many workers there are.
    pub workers: usize,
    /// How many connections this listener has assigned so far.
    pub assigned: u64,
}

/// What is known about a connection that has no worker yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewConnection {
    /// The lane its handshake asked for: the index of the core whose data it will use.
    pub lane: u16,
}

/// Decides which worker serves a new connection.
///
/// # Errors
/// [`MappingError::NotAvailable`] for mappings that are not built yet, [`MappingError::NoWorkers`] if the snapshot
/// has none.
pub fn assign(mapping: Mapping, snapshot: &Snapshot, connection: &NewConnection) -> Result<WorkerIndex, MappingError> {
    mapping.check_available()?;
    if snapshot.workers == 0 {
        return Err(MappingError::NoWorkers);
    }
    let index = match mapping {
        Mapping::CoreAffine => usize::from(connection.lane) % snapshot.workers,
        _ => usize::try_from(snapshot.assigned % snapshot.workers as u64).unwrap_or(0),
    };
    debug_assert!(index < snapshot.workers);
    Ok(WorkerIndex(index))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for mapping in Mapping::ALL {
            assert_eq!(mapping.name().parse::<Mapping>(), Ok(mapping));
        }
        let error = "robin".parse::<Mapping>().expect_err("not a name");
        assert_eq!(
            error.to_string(),
            "unknown mapping \"robin\", expected one of round-robin, traffic-aware, shared, lcam, handoff, core-affine"
        );
    }

    #[test]
    fn round_robin_goes_in_turn() {
        let picks: Vec<usize> = (0..7)
            .map(|assigned| {
                let snapshot = Snapshot { workers: 3, assigned };
                assign(Mapping::RoundRobin, &snapshot, &NewConnection { lane: 9 }).expect("available").0
            })
            .collect();
        assert_eq!(picks, [0, 1, 2, 0, 1, 2, 0]);
    }

    #[test]
    fn core_affine_follows_the_lane() {
        for assigned in 0..5 {
            for lane in 0..40u16 {
                let snapshot = Snapshot { workers: 6, assigned };
                let picked = assign(Mapping::CoreAffine, &snapshot, &NewConnection { lane }).expect("available");
                assert_eq!(picked, WorkerIndex(usize::from(lane) % 6));
            }
        }
    }

    #[test]
    fn mappings_to_come_say_so() {
        let snapshot = Snapshot { workers: 2, assigned: 0 };
        for mapping in [Mapping::TrafficAware, Mapping::Shared, Mapping::Lcam, Mapping::Handoff] {
            assert_eq!(assign(mapping, &snapshot, &NewConnection::default()), Err(MappingError::NotAvailable(mapping)));
        }
        let none = Snapshot::default();
        assert_eq!(assign(Mapping::RoundRobin, &none, &NewConnection::default()), Err(MappingError::NoWorkers));
    }
}
