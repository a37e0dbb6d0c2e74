//! Lock-contention-aware thread placement: Algorithm 1 of the Async-LCAM paper, and a damped rule.
//!
//! As printed, the algorithm changes every connection in every interval: below the threshold it
//! adds a worker, above it it deletes one, and there is no third case. A connection whose
//! contention begins with its nth worker therefore goes from n - 1 to n and back for ever, idle
//! connections collect all workers, and all connections that grow in an interval take the same
//! worker, the one with the fewest bytes. It adds where all workers have as much to do as each
//! other, which relieves nobody and makes them wait; and it converges slowly: a connection gets its
//! nth worker after n - 1 intervals, 3 s each. [`damped`] is the same algorithm with a third case,
//! and steps as large as what was measured.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Change, ConnectionLoad, Move, Snapshot, WorkerIndex};

/// The worker with the fewest bytes among those that are not in `placed`, the lowest number first.
fn least_loaded(bytes: &[u64], placed: &[WorkerIndex]) -> Option<WorkerIndex> {
    (0..bytes.len())
        .map(WorkerIndex)
        .filter(|worker| !placed.contains(worker))
        .min_by_key(|worker| bytes[worker.0])
}

/// Algorithm 1: a connection whose lock time is above `threshold` loses its most recently placed
/// worker, any other gains the worker that handled the fewest bytes. The last worker stays.
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
        let ceiling =
            self.ceilings.get(&connection.id).filter(|ceiling| ceiling.holds(connection.bytes))?;
        Some(ceiling.workers)
    }
}

/// [`lcam`] with rest, in a few intervals.
///
/// * A connection above `threshold` keeps as many workers as its lock time allows, if that grows
///   with the workers beyond the first, and never grows to this number of them again until its
///   traffic halves or doubles. The busiest go, where the paper's victim is the one placed last.
/// * Below half the threshold it grows, to twice its workers at most, by workers that relieve the
///   busiest of those that it has.
/// * One that must not grow exchanges its busiest worker for another that has less to do even with
///   it.
/// * Else, and while it has no traffic, it stays as it is.
///
/// A worker counts as loaded with its share of what was decided before in the same interval.
pub fn damped(snapshot: &Snapshot, threshold: Duration, damper: &mut Damper) -> Vec<Move> {
    damper.keep_only(&snapshot.connections);
    let mut expected = Expected(snapshot.worker_bytes.clone());
    let mut moves = Vec::new();
    for connection in &snapshot.connections {
        let before = &connection.workers;
        if connection.bytes == 0 || before.is_empty() {
            continue;
        }
        let after = decide(connection, threshold, damper, &expected);
        expected.spread(connection.bytes, before, &after);
        let added = after
            .iter()
            .filter(|worker| !before.contains(worker))
            .map(|worker| Change::Add(*worker));
        let removed = before
            .iter()
            .filter(|worker| !after.contains(worker))
            .map(|worker| Change::Remove(*worker));
        moves.extend(added.chain(removed).map(|change| Move { connection: connection.id, change }));
    }
    moves
}

/// The workers that a connection is to have.
fn decide(
    connection: &ConnectionLoad,
    threshold: Duration,
    damper: &mut Damper,
    expected: &Expected,
) -> Vec<WorkerIndex> {
    let count = connection.workers.len();
    if connection.lock_time > threshold && count > 1 {
        damper
            .ceilings
            .insert(connection.id, Ceiling { workers: count - 1, bytes: connection.bytes });
        return expected
            .without_the_busiest(connection, tolerable(count, connection.lock_time, threshold));
    }
    let ceiling = damper.ceiling(connection).unwrap_or(usize::MAX);
    if count >= ceiling {
        expected.with_the_busiest_exchanged(connection)
    } else if connection.lock_time <= threshold / 2 {
        expected.with_relief(connection, ceiling.min(count * 2))
    } else {
        connection.workers.clone()
    }
}

/// How many of `count` workers a connection keeps whose lock time is above the threshold: one at
/// least, one less at least.
fn tolerable(count: usize, lock_time: Duration, threshold: Duration) -> usize {
    let share = threshold.as_secs_f64() / lock_time.as_secs_f64();
    let others = (share * (count - 1) as f64) as usize;
    (1 + others).min(count - 1)
}

/// Bytes that each worker will handle in an interval, once what was decided is carried out.
#[derive(Clone)]
struct Expected(Vec<u64>);

impl Expected {
    /// How much less than the busiest worker of a connection another must have to do, in tenths:
    /// noise moves nothing.
    const GAP_TENTHS: u64 = 1;

    fn of(&self, worker: WorkerIndex) -> u64 {
        self.0.get(worker.0).copied().unwrap_or(0)
    }

    /// The one with the most to do; of several the one placed last.
    fn busiest(&self, workers: &[WorkerIndex]) -> Option<WorkerIndex> {
        workers.iter().copied().max_by_key(|worker| self.of(*worker))
    }

    fn well_below(&self, bytes: u64, busiest: WorkerIndex) -> bool {
        bytes <= self.of(busiest) / 10 * (10 - Expected::GAP_TENTHS)
    }

    /// A connection of so many bytes goes from some workers to others; each has an equal share of
    /// it.
    fn spread(&mut self, bytes: u64, before: &[WorkerIndex], after: &[WorkerIndex]) {
        for worker in before {
            if let Some(load) = self.0.get_mut(worker.0) {
                *load = load.saturating_sub(bytes / before.len() as u64);
            }
        }
        for worker in after {
            if let Some(load) = self.0.get_mut(worker.0) {
                *load = load.saturating_add(bytes / after.len() as u64);
            }
        }
    }

    fn without_the_busiest(&self, connection: &ConnectionLoad, kept: usize) -> Vec<WorkerIndex> {
        let (mut expected, mut workers) = (self.clone(), connection.workers.clone());
        while workers.len() > kept {
            let Some(busiest) = expected.busiest(&workers) else { break };
            let before = workers.clone();
            workers.retain(|worker| *worker != busiest);
            expected.spread(connection.bytes, &before, &workers);
        }
        workers
    }

    fn with_relief(&self, connection: &ConnectionLoad, most: usize) -> Vec<WorkerIndex> {
        let (mut expected, mut workers) = (self.clone(), connection.workers.clone());
        while workers.len() < most {
            let Some((new, busiest)) =
                least_loaded(&expected.0, &workers).zip(expected.busiest(&workers))
            else {
                break;
            };
            let share = connection.bytes / (workers.len() as u64 + 1);
            let (own, top) = (expected.of(new), expected.of(busiest));
            if !expected.well_below(own, busiest) || own.saturating_add(share) >= top {
                break;
            }
            let before = workers.clone();
            workers.push(new);
            expected.spread(connection.bytes, &before, &workers);
        }
        workers
    }

    fn with_the_busiest_exchanged(&self, connection: &ConnectionLoad) -> Vec<WorkerIndex> {
        let mut workers = connection.workers.clone();
        if let Some((new, busiest)) = least_loaded(&self.0, &workers).zip(self.busiest(&workers)) {
            let share = connection.bytes / workers.len() as u64;
            if self.well_below(self.of(new).saturating_add(share), busiest) {
                workers.retain(|worker| *worker != busiest);
                workers.push(new);
            }
        }
        workers
    }
}
