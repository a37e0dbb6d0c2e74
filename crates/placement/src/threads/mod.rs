//! Which messenger workers serve a connection.
//!
//! Contract: pure functions over a snapshot. No I/O, no clock, no random numbers: the same snapshot
//! gives the same answer. `messenger` collects the snapshot, asks here, and moves the sockets. A
//! decision never leaves a connection without a worker and never names a worker twice.
//!
//! * [`first_workers`]: where a new connection begins, and where it goes when the mapping is
//!   switched.
//! * [`lcam`]: Algorithm 1 of the Async-LCAM paper as printed, and a rule that comes to rest where
//!   it does not.
//! * [`traffic`]: Async-TAM, one worker per connection, moved by traffic.
//! * [`MaxEvents`]: how many events a worker takes from its epoll set at once (section 4.3 of the
//!   paper).

mod config;
mod events;
pub mod lcam;
pub mod traffic;

pub use config::{INTERVAL_MAX, LcamRule, Mapping, MappingError, PlacementConfig};
pub use events::{EVENTS_MAX, MaxEvents, MaxEventsError};

use std::time::Duration;

/// Index of a messenger worker, `0..workers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerIndex(pub usize);

/// What is known about a connection that has no worker yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewConnection {
    /// The lane its handshake asked for: the index of the core whose data it will use.
    pub lane: u16,
    /// How many connections the listener has assigned before it.
    pub before: u64,
}

/// What one connection did in an interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionLoad {
    /// Its number, unique in the snapshot.
    pub id: u64,
    /// The workers that serve it, in the order in which they were placed.
    pub workers: Vec<WorkerIndex>,
    /// Time that all its workers together waited for its lock: the paper's T.
    pub lock_time: Duration,
    /// Bytes received and sent.
    pub bytes: u64,
}

/// What all workers and connections did in an interval.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Bytes that each worker handled.
    pub worker_bytes: Vec<u64>,
    /// The connections, in the order in which they are decided on.
    pub connections: Vec<ConnectionLoad>,
    /// Length of the interval as it was, for it may be longer than the setting.
    pub elapsed: Duration,
}

/// What becomes of a connection's list of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// This worker serves it too, as the most recently placed one.
    Add(WorkerIndex),
    /// This worker serves it no more.
    Remove(WorkerIndex),
    /// This worker serves it, and no other.
    Only(WorkerIndex),
}

/// A change for one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Which connection.
    pub connection: u64,
    /// What becomes of it.
    pub change: Change,
}

impl Change {
    /// Carries the change out on a list in placement order.
    pub fn apply(self, workers: &mut Vec<WorkerIndex>) {
        match self {
            Change::Add(worker) if !workers.contains(&worker) => workers.push(worker),
            Change::Remove(worker) if workers.len() > 1 => workers.retain(|other| *other != worker),
            Change::Only(worker) => *workers = vec![worker],
            Change::Add(_) | Change::Remove(_) => {}
        }
    }
}

/// Decides which workers serve a connection that begins: one of `workers` in turn, the one of its
/// lane, or all.
///
/// # Errors
/// [`MappingError::NoWorkers`] if there are none.
pub fn first_workers(
    mapping: Mapping,
    workers: usize,
    connection: NewConnection,
) -> Result<Vec<WorkerIndex>, MappingError> {
    if workers == 0 {
        return Err(MappingError::NoWorkers);
    }
    Ok(match mapping {
        Mapping::CoreAffine => vec![WorkerIndex(usize::from(connection.lane) % workers)],
        Mapping::Shared | Mapping::Handoff => (0..workers).map(WorkerIndex).collect(),
        Mapping::RoundRobin | Mapping::TrafficAware | Mapping::Lcam => {
            vec![WorkerIndex((connection.before % workers as u64) as usize)]
        }
    })
}

/// Decides which workers serve a connection once the mapping is switched: those that it begins
/// with, but under [`Mapping::Lcam`] those that it has, from where the algorithm goes on.
///
/// # Errors
/// [`MappingError::NoWorkers`] if there are none.
pub fn switched_workers(
    mapping: Mapping,
    workers: usize,
    connection: NewConnection,
    current: &[WorkerIndex],
) -> Result<Vec<WorkerIndex>, MappingError> {
    if mapping == Mapping::Lcam && !current.is_empty() {
        Ok(current.to_vec())
    } else {
        first_workers(mapping, workers, connection)
    }
}

/// What the placement of a listener remembers from one interval to the next.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    damper: lcam::Damper,
}

/// Decides what changes after an interval; nothing does under the mappings that are fixed.
pub fn place(config: &PlacementConfig, snapshot: &Snapshot, memory: &mut Memory) -> Vec<Move> {
    let threshold = config.threshold(snapshot.elapsed);
    match (config.mapping, config.lcam_rule) {
        (Mapping::TrafficAware, _) => traffic::traffic_aware(snapshot),
        (Mapping::Lcam, LcamRule::AsPrinted) => lcam::lcam(snapshot, threshold),
        (Mapping::Lcam, LcamRule::Damped) => lcam::damped(snapshot, threshold, &mut memory.damper),
        (Mapping::RoundRobin | Mapping::Shared | Mapping::Handoff | Mapping::CoreAffine, _) => {
            Vec::new()
        }
    }
}

#[cfg(test)]
mod tests;
