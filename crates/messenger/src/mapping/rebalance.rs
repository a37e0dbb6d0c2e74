//! Placement at work: takes the snapshot, asks `placement`, and moves attachments.
//!
//! Contract: a listener has at most one placement task, on the worker that accepts, and only under
//! a mapping that is adjusted. A decision is taken per interval; the interval that is measured
//! against the threshold is the one that passed, since a busy worker may be late. Nothing here
//! waits for a connection's lock.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use std::time::Instant;

use placement::threads::{
    ConnectionLoad, Mapping, Memory, Move, NewConnection, PlacementConfig, Snapshot, WorkerIndex,
    place, switched_workers,
};

use crate::executor::runtime::Handle;
use crate::executor::worker::Worker;
use crate::mapping::shared_connection::SharedConnection;
use crate::serve::listener::Listening;

fn indexes(workers: &[WorkerIndex]) -> Vec<usize> {
    workers.iter().map(|worker| worker.0).collect()
}

/// Seats for all connections as a mapping begins with them, in the order in which they came.
pub(crate) fn switch(listening: &Listening, handle: &Handle, config: &PlacementConfig) {
    for (nth, shared_connection) in listening.shared_connections().iter().enumerate() {
        let lane = shared_connection
            .peer_identity
            .as_ref()
            .map(|peer_identity| peer_identity.lane)
            .unwrap_or_default();
        let current: Vec<WorkerIndex> =
            shared_connection.target().into_iter().map(WorkerIndex).collect();
        let connection = NewConnection { lane, before: nth as u64 };
        match switched_workers(config.mapping, handle.workers(), connection, &current) {
            Ok(workers) => {
                shared_connection.assign(indexes(&workers), config.mapping == Mapping::Handoff)
            }
            Err(error) => tracing::error!(%error, "a connection stays where it is"),
        }
    }
}

/// Starts the task, if the mapping needs one. It ends when the listener's placement is set again,
/// or with the listener.
pub(crate) fn start(worker: &Worker, listening: Arc<Listening>, generation: u64) {
    let config = listening.placement();
    if config.mapping.is_adjusted() && listening.generation.load(Acquire) == generation {
        worker.spawn(adjust(worker.clone(), listening, config, generation));
    }
}

async fn adjust(
    worker: Worker,
    listening: Arc<Listening>,
    config: PlacementConfig,
    generation: u64,
) {
    let mut memory = Memory::default();
    let mut last = (Instant::now(), worker_bytes(worker.handle()));
    loop {
        worker.sleep(config.interval).await;
        let _placing = listening.placing.lock();
        if listening.generation.load(Acquire) != generation {
            return;
        }
        let now = (Instant::now(), worker_bytes(worker.handle()));
        let shared_connections = listening.shared_connections();
        let snapshot = Snapshot {
            worker_bytes: now.1.iter().zip(&last.1).map(|(now, last)| now - last).collect(),
            connections: shared_connections
                .iter()
                .map(|shared_connection| load(shared_connection))
                .collect(),
            elapsed: now.0 - last.0,
        };
        last = now;
        let moves = place(&config, &snapshot, &mut memory);
        for (at, workers) in targets(&snapshot.connections, &moves) {
            tracing::debug!(connection = snapshot.connections[at].id, ?workers, "placed");
            shared_connections[at].assign(indexes(&workers), false);
        }
    }
}

/// Which connections move, by their places in the snapshot, and who serves them after all of their
/// moves.
fn targets(connections: &[ConnectionLoad], moves: &[Move]) -> BTreeMap<usize, Vec<WorkerIndex>> {
    let at: HashMap<u64, usize> =
        connections.iter().enumerate().map(|(at, load)| (load.id, at)).collect();
    let mut targets = BTreeMap::new();
    for step in moves {
        let Some(&at) = at.get(&step.connection) else { continue };
        step.change.apply(targets.entry(at).or_insert_with(|| connections[at].workers.clone()));
    }
    targets
}

/// Bytes that each worker has received and sent.
fn worker_bytes(handle: &Handle) -> Vec<u64> {
    let bytes = |index| {
        let counters = &handle.worker_shared(index).counters;
        counters.bytes_in.get() + counters.bytes_out.get()
    };
    (0..handle.workers()).map(bytes).collect()
}

fn load(shared_connection: &SharedConnection) -> ConnectionLoad {
    let (lock_time, bytes) = shared_connection.load_since_placement();
    ConnectionLoad {
        id: shared_connection.connection.id(),
        workers: shared_connection.target().into_iter().map(WorkerIndex).collect(),
        lock_time,
        bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use placement::threads::Change;
    use std::time::Duration;

    fn load(id: u64, workers: &[usize]) -> ConnectionLoad {
        let workers = workers.iter().copied().map(WorkerIndex).collect();
        ConnectionLoad { id, workers, lock_time: Duration::ZERO, bytes: 0 }
    }

    #[test]
    fn moves_of_one_connection_add_up() {
        let connections = [load(3, &[0]), load(7, &[0, 1, 2]), load(9, &[1])];
        let step = |connection, change| Move { connection, change };
        let moves = [
            step(3, Change::Add(WorkerIndex(2))),
            step(7, Change::Remove(WorkerIndex(0))),
            step(3, Change::Add(WorkerIndex(1))),
            step(8, Change::Only(WorkerIndex(1))),
            step(7, Change::Remove(WorkerIndex(2))),
        ];
        let targets: Vec<_> =
            targets(&connections, &moves).into_iter().map(|(at, to)| (at, indexes(&to))).collect();
        assert_eq!(targets, [(0, vec![0, 2, 1]), (1, vec![1])]);
    }
}
