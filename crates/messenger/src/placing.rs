//! Placement at work: takes the snapshot, asks `placement`, and moves seats.
//!
//! Contract: a listener has at most one placement task, on the worker that accepts, and only under a mapping that is
//! adjusted. A decision is taken per interval; the interval that is measured against the threshold is the one that
//! passed, since a busy worker may be late. Nothing here waits for a connection's lock.

use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use std::time::Instant;

use placement::threads::{
    ConnectionLoad, Mapping, Memory, NewConnection, PlacementConfig, Snapshot, WorkerIndex, place, switched_workers,
};

use crate::listener::Listening;
use crate::runtime::Handle;
use crate::station::Station;
use crate::worker::Worker;

fn indexes(workers: &[WorkerIndex]) -> Vec<usize> {
    workers.iter().map(|worker| worker.0).collect()
}

/// Seats for all connections as a mapping begins with them, in the order in which they came.
pub(crate) fn switch(listening: &Listening, handle: &Handle, config: &PlacementConfig) {
    for (nth, station) in listening.stations().iter().enumerate() {
        let lane = station.guest.as_ref().map(|guest| guest.lane).unwrap_or_default();
        let current: Vec<WorkerIndex> = station.target().into_iter().map(WorkerIndex).collect();
        let connection = NewConnection { lane, before: nth as u64 };
        match switched_workers(config.mapping, handle.workers(), connection, &current) {
            Ok(workers) => station.assign(indexes(&workers), config.mapping == Mapping::Handoff),
            Err(error) => tracing::error!(%error, "a connection stays where it is"),
        }
    }
}

/// Starts the task, if the mapping needs one. It ends when the listener's placement is set again, or with the listener.
pub(crate) fn start(worker: &Worker, listening: Arc<Listening>, generation: u64) {
    let config = listening.placement();
    if config.mapping.is_adjusted() && listening.generation.load(Acquire) == generation {
        worker.spawn(adjust(worker.clone(), listening, config, generation));
    }
}

async fn adjust(worker: Worker, listening: Arc<Listening>, config: PlacementConfig, generation: u64) {
    let mut memory = Memory::default();
    let mut last = (Instant::now(), worker_bytes(worker.handle()));
    loop {
        worker.sleep(config.interval).await;
        let _placing = listening.placing.lock();
        if listening.generation.load(Acquire) != generation {
            return;
        }
        let now = (Instant::now(), worker_bytes(worker.handle()));
        let stations = listening.stations();
        let snapshot = Snapshot {
            worker_bytes: now.1.iter().zip(&last.1).map(|(now, last)| now - last).collect(),
            connections: stations.iter().map(|station| load(station)).collect(),
            elapsed: now.0 - last.0,
        };
        last = now;
        for step in place(&config, &snapshot, &mut memory) {
            let of = |load: &ConnectionLoad| load.id == step.connection;
            let Some(at) = snapshot.connections.iter().position(of) else { continue };
            let mut workers = snapshot.connections[at].workers.clone();
            step.change.apply(&mut workers);
            tracing::debug!(connection = step.connection, change = ?step.change, "placed");
            stations[at].assign(indexes(&workers), false);
        }
    }
}

/// Bytes that each worker has received and sent.
fn worker_bytes(handle: &Handle) -> Vec<u64> {
    let bytes = |index| {
        let counters = &handle.worker_shared(index).counters;
        counters.bytes_in.get() + counters.bytes_out.get()
    };
    (0..handle.workers()).map(bytes).collect()
}

fn load(station: &Station) -> ConnectionLoad {
    let (lock_time, bytes) = station.load_since_placement();
    ConnectionLoad {
        id: station.connection.id(),
        workers: station.target().into_iter().map(WorkerIndex).collect(),
        lock_time,
        bytes,
    }
}
