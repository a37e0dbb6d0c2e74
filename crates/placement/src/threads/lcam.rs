//! Lock-contention-aware thread placement: Algorithm 1 of the Async-LCAM paper, and a damped rule.
//!
//! As printed, the algorithm changes every connection in every interval: below the threshold it adds a worker, above it
//! it deletes one, and there is no third case. A connection whose contention begins with its nth worker therefore goes
//! from n - 1 to n and back for ever, idle connections collect all workers, and all connections that grow in an interval
//! take the same worker, the one with the fewest bytes. [`damped`] is the same algorithm with a third case.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Change, ConnectionLoad, Move, Snapshot, WorkerIndex};

/// The worker with the fewest bytes among those that do not serve the connection, the lowest number first.
fn least_loaded(bytes: &[u64], connection: &ConnectionLoad) -> Option<WorkerIndex> {
    (0..bytes.len())
        .map(WorkerIndex)
        .filter(|worker| !connection.workers.contains(worker))
        .min_by_key(|worker| bytes[worker.0])
}

/// Algorithm 1: a connection whose lock time is above `threshold` loses its most recently placed worker, any other gains
/// the worker that handled the fewest bytes. The last worker stays.
pub fn lcam(snapshot: &Snapshot, threshold: Duration) -> Vec<Move> {
    let decide = |connection: &ConnectionLoad| {
        let change = if connection.lock_time > threshold {
            let last = connection.workers.last().filter(|_| connection.workers.len() > 1)?;
            Change::Remove(*last)
        } else {
            Change::Add(least_loaded(&snapshot.worker_bytes, connection)?)
        };
        Some(Move { connection: connection.id, change })
    };
    snapshot.connections.iter().filter_map(decide).collect()
}

/// The number of workers at which a connection was found to contend, less one.
#[derive(Clone, Copy, Debug)]
struct Ceiling {
    workers: usize,
    /// Its traffic in the interval that showed it.
    bytes: u64,
}

impl Ceiling {
    /// What was learned under a load says nothing of one half or twice as large.
    fn holds(&self, bytes: u64) -> bool {
        bytes >= self.bytes / 2 && bytes <= self.bytes.saturating_mul(2)
    }
}

/// What [`damped`] has learned about the connections.
#[derive(Clone, Debug, Default)]
pub struct Damper {
    ceilings: BTreeMap<u64, Ceiling>,
}

/// [`lcam`] with rest: a connection that lost a worker does not grow again until its traffic halves or doubles; between
/// half the threshold and the threshold, and while it has no traffic, it stays as it is; and a worker counts as loaded
/// with its share of what was placed on it in the same interval.
pub fn damped(snapshot: &Snapshot, threshold: Duration, damper: &mut Damper) -> Vec<Move> {
    let known: BTreeSet<u64> = snapshot.connections.iter().map(|connection| connection.id).collect();
    damper.ceilings.retain(|id, _| known.contains(id));
    let mut expected = snapshot.worker_bytes.clone();
    let mut moves = Vec::new();
    for connection in &snapshot.connections {
        let count = connection.workers.len();
        if connection.lock_time > threshold {
            if let Some(last) = connection.workers.last().filter(|_| count > 1) {
                let ceiling = Ceiling { workers: count - 1, bytes: connection.bytes };
                damper.ceilings.insert(connection.id, ceiling);
                moves.push(Move { connection: connection.id, change: Change::Remove(*last) });
            }
            continue;
        }
        let ceiling = damper.ceilings.get(&connection.id).filter(|ceiling| ceiling.holds(connection.bytes));
        let full = ceiling.is_some_and(|ceiling| count >= ceiling.workers);
        if full || connection.bytes == 0 || connection.lock_time > threshold / 2 {
            continue;
        }
        if let Some(worker) = least_loaded(&expected, connection) {
            let share = connection.bytes / (count as u64 + 1);
            expected[worker.0] = expected[worker.0].saturating_add(share);
            moves.push(Move { connection: connection.id, change: Change::Add(worker) });
        }
    }
    moves
}
