//! What the messenger is told of a cell, and what it tells of its connections and their locks.

use messenger::{ListenConfig, Listener, RuntimeConfig};
use placement::threads::MaxEvents;

use crate::model;
use crate::scenario::{Cell, Scenario, Variant};

/// Counters of one connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ConnectionCounters {
    /// Place in the order of connecting.
    pub(crate) index: usize,
    pub(crate) wait_ns: u64,
    pub(crate) acquisitions: u64,
    pub(crate) contended: u64,
    /// How often a worker found it taken and moved on.
    pub(crate) marks: u64,
    /// Workers assigned to it now.
    pub(crate) workers: usize,
}

/// Settings of the server's runtime.
pub(crate) fn server_config(name: &str, workers: usize, cell: &Cell) -> RuntimeConfig {
    let max_events = cell.max_events.map_or(MaxEvents::Auto, MaxEvents::Fixed);
    RuntimeConfig { max_events, ..RuntimeConfig::new(name, workers) }
}

/// Settings of the listener. Placement runs beside the acceptor, on the last worker: in the skewed
/// scenarios that has no connection with data, as the paper's placement thread has none.
pub(crate) fn listen_config(
    scenario: &Scenario,
    variant: Variant,
    workers: usize,
    config: ListenConfig,
) -> ListenConfig {
    ListenConfig { placement: model::placement(scenario, variant), worker: workers - 1, ..config }
}

/// The name that a connection gives itself.
pub(crate) fn connection_name(index: usize) -> String {
    format!("c{index}")
}

/// Counters of all connections, in no order.
pub(crate) fn connections(listener: &Listener) -> Vec<ConnectionCounters> {
    let stats = listener.connections();
    let counters = stats.iter().filter_map(|stats| {
        Some(ConnectionCounters {
            index: stats.name.strip_prefix('c')?.parse().ok()?,
            wait_ns: stats.lock_wait_ns(),
            acquisitions: stats.attachments.iter().map(|attachment| attachment.acquisitions).sum(),
            contended: stats.attachments.iter().map(|attachment| attachment.contended).sum(),
            marks: stats.attachments.iter().map(|attachment| attachment.marks).sum(),
            workers: stats.workers.len(),
        })
    });
    counters.collect()
}

/// What a connection counted between two moments, and its workers at the later one.
pub(crate) fn difference(
    index: usize,
    before: &[ConnectionCounters],
    after: &[ConnectionCounters],
) -> ConnectionCounters {
    let of = |all: &[ConnectionCounters]| {
        all.iter().find(|c| c.index == index).copied().unwrap_or_default()
    };
    let (before, after) = (of(before), of(after));
    ConnectionCounters {
        index,
        wait_ns: after.wait_ns.saturating_sub(before.wait_ns),
        acquisitions: after.acquisitions.saturating_sub(before.acquisitions),
        contended: after.contended.saturating_sub(before.contended),
        marks: after.marks.saturating_sub(before.marks),
        workers: after.workers,
    }
}
