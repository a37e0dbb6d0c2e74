//! Lock-contention-aware thread placement: Algorithm 1 of the Async-LCAM paper, and a damped rule.
//!
//! As printed, the algorithm changes every connection in every interval: below the threshold it adds a worker, above it
//! it deletes one, and there is no third case. A connection whose contention begins with its nth worker therefore goes
//! from n - 1 to n and back for ever, idle connections collect all workers, and all connections that grow in an interval
//! take the same worker, the one with the fewest bytes. It adds where all workers have as much to do as each other, which
//! relieves nobody and makes them wait; and it converges slowly: a connection gets its nth worker after n - 1 intervals,
//! 3 s each. [`damped`] is the same algorithm with a third case, and steps as large as what was measured.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Change, ConnectionLoad, Move, Snapshot, WorkerIndex};

/// The worker with the fewest bytes among those that are not in `placed`, the lowest number first.
fn least_loaded(bytes: &[u64], placed: &[WorkerIndex]) -> Option<WorkerIndex> {
    (0..bytes.len()).map(WorkerIndex).filter(|worker| !placed.contains(worker)).min_by_key(|worker| bytes[worker.0])
}

/// Algorithm 1: a connection whose lock time is above `threshold` loses its most recently placed worker, any other gains
/// the worker that handled the fewest bytes. The last worker stays.
pub fn lcam(snapshot: &Snapshot, threshold: Duration) -> Vec<Move> {
    let decide = |connection: &ConnectionLoad| {
        let change = if connection.lock_time > threshold {
            let last = connection.workers.last().filter(|_| connection.workers.len() > 1)?;
            Change::Remove(*last)
        } else {
            Change::Add(least_loaded(&snapshot.worker_bytes, &connection.workers)?)
        };
        Some(Move { connection: connection.id, change })
    };
    snapshot.connections.iter().filter_map(decide).collect()
}

/// How much less than the busiest worker of a connection another must have to do to be added, in tenths: noise adds nobody.
const GAP_TENTHS: u64 = 1;

/// The fewest workers with which a connection was found to contend, less one.
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

impl Damper {
    fn keep_only(&mut self, connections: &[ConnectionLoad]) {
        let known: BTreeSet<u64> = connections.iter().map(|connection| connection.id).collect();
        self.ceilings.retain(|id, _| known.contains(id));
    }

    /// Most workers that a connection may have, if contention has shown any bound.
    fn ceiling(&self, connection: &ConnectionLoad) -> Option<usize> {
        let ceiling = self.ceilings.get(&connection.id).filter(|ceiling| ceiling.holds(connection.bytes))?;
        Some(ceiling.workers)
    }
}

/// [`lcam`] with rest, in as many intervals as it has to learn from.
///
/// * A connection above `threshold` keeps as many workers as its lock time says, if that grows with the workers beyond
///   the first, and never grows to this number of them again until its traffic halves or doubles.
/// * Below half the threshold it grows, to twice its workers at most, by workers that relieve the busiest of those that it
///   has; a worker counts as loaded with its share of what was placed on it in the same interval.
/// * In between, and while it has no traffic, it stays as it is.
pub fn damped(snapshot: &Snapshot, threshold: Duration, damper: &mut Damper) -> Vec<Move> {
    damper.keep_only(&snapshot.connections);
    let mut expected = snapshot.worker_bytes.clone();
    let mut moves = Vec::new();
    for connection in &snapshot.connections {
        let count = connection.workers.len();
        let mut change = |change| moves.push(Move { connection: connection.id, change });
        if connection.lock_time > threshold {
            if count > 1 {
                damper.ceilings.insert(connection.id, Ceiling { workers: count - 1, bytes: connection.bytes });
                let kept = tolerable(count, connection.lock_time, threshold);
                connection.workers[kept..].iter().rev().for_each(|worker| change(Change::Remove(*worker)));
            }
        } else if connection.bytes > 0 && connection.lock_time <= threshold / 2 {
            let most = damper.ceiling(connection).unwrap_or(usize::MAX).min(count * 2);
            let mut workers = connection.workers.clone();
            while workers.len() < most {
                let Some(worker) = relief(&mut expected, &workers, connection.bytes) else { break };
                workers.push(worker);
                change(Change::Add(worker));
            }
        }
    }
    moves
}

/// How many of `count` workers a connection keeps whose lock time is above the threshold: one at least, one less at least.
fn tolerable(count: usize, lock_time: Duration, threshold: Duration) -> usize {
    let share = threshold.as_secs_f64() / lock_time.as_secs_f64();
    let others = (share * (count - 1) as f64) as usize;
    (1 + others).min(count - 1)
}

/// The least loaded worker that does not serve a connection of so many bytes, if it would take load off the busiest that
/// does; what is expected of all of them is brought up to date.
fn relief(expected: &mut [u64], workers: &[WorkerIndex], bytes: u64) -> Option<WorkerIndex> {
    let worker = least_loaded(expected, workers)?;
    let load = |worker: &WorkerIndex| expected.get(worker.0).copied().unwrap_or(0);
    let busiest = workers.iter().map(load).max()?;
    let (before, after) = (bytes / workers.len() as u64, bytes / (workers.len() as u64 + 1));
    let own = expected[worker.0];
    if own > busiest / 10 * (10 - GAP_TENTHS) || own.saturating_add(after) >= busiest {
        return None;
    }
    for relieved in workers {
        if let Some(load) = expected.get_mut(relieved.0) {
            *load = load.saturating_sub(before - after);
        }
    }
    expected[worker.0] = expected[worker.0].saturating_add(after);
    Some(worker)
}
