//! Traffic-aware placement: one worker per connection, moved by traffic (Async-TAM, as the
//! Async-LCAM paper describes it).

use super::{Change, Move, Snapshot, WorkerIndex};

/// How much lower the busier of the two workers must be after a move, in tenths of what it was:
/// noise moves nothing.
const GAIN_TENTHS: u64 = 1;

/// Moves heavy connections from the worker with the most traffic to the one with the least, while
/// that lowers the more loaded of the two by a tenth; at most one move per worker in an interval.
/// Each move lowers the sum of the squares of the workers' traffic, so under a steady load the
/// moves end.
pub fn traffic_aware(snapshot: &Snapshot) -> Vec<Move> {
    let workers = snapshot.worker_bytes.len();
    let mut traffic = vec![0u64; workers];
    let mut placed: Vec<(u64, usize, u64)> = Vec::new();
    for connection in &snapshot.connections {
        let Some(worker) = connection.workers.first().filter(|worker| worker.0 < workers) else {
            continue;
        };
        traffic[worker.0] = traffic[worker.0].saturating_add(connection.bytes);
        placed.push((connection.id, worker.0, connection.bytes));
    }
    let mut moves: Vec<Move> = Vec::new();
    for _ in 0..workers {
        let most = (0..workers).rev().max_by_key(|worker| traffic[*worker]);
        let least = (0..workers).min_by_key(|worker| traffic[*worker]);
        let (Some(most), Some(least)) = (most, least) else { break };
        let room = (traffic[most] / 10 * (10 - GAIN_TENTHS)).saturating_sub(traffic[least]);
        let not_moved = |id: u64| moves.iter().all(|done| done.connection != id);
        let heaviest = placed
            .iter_mut()
            .filter(|(id, worker, bytes)| {
                *worker == most && *bytes > 0 && *bytes <= room && not_moved(*id)
            })
            .max_by_key(|(id, _, bytes)| (*bytes, std::cmp::Reverse(*id)));
        let Some((id, worker, bytes)) = heaviest else { break };
        traffic[most] -= *bytes;
        traffic[least] += *bytes;
        *worker = least;
        moves.push(Move { connection: *id, change: Change::Only(WorkerIndex(least)) });
    }
    moves
}
