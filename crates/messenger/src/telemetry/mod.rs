//! What a runtime can tell of itself: its locks, operations, workers and connections, in one report
//! that travels and can be compared with a later one.
//!
//! Contract: everything here is a plain value. Figures are declared once, with name, unit, rule and
//! description ([`WorkerStats::FIGURES`], [`LOCK_FIGURES`]); tables, JSON and metrics all come from
//! there.

pub(crate) mod classes;
pub(crate) mod connections;
pub(crate) mod counters;
pub mod histogram;
pub(crate) mod history;
pub mod http;
pub(crate) mod operation;
pub mod prometheus;
pub(crate) mod worker_time;

use bytes::Bytes;
use protocol::Kind;
use serde::{Deserialize, Serialize};

use crate::executor::worker::Worker;
use crate::session::connection::Connection;
use crate::sync::contention_mutex::LockStats;
use crate::telemetry::classes::ClassStats;
use crate::telemetry::connections::ListenerStats;
use crate::telemetry::counters::WorkerStats;
use crate::telemetry::operation::OperationStats;
use crate::wire::frame::Message;

/// What a number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Things.
    Count,
    /// Bytes.
    Bytes,
    /// Nanoseconds.
    Nanoseconds,
}

/// How a number behaves over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// It only grows, from zero at the start.
    Counter,
    /// The most since the start.
    Peak,
    /// As it is now.
    Gauge,
}

impl Rule {
    /// Two figures as one.
    pub(crate) fn merge(self, a: u64, b: u64) -> u64 {
        match self {
            Rule::Counter | Rule::Gauge => a.saturating_add(b),
            Rule::Peak => a.max(b),
        }
    }

    /// A later figure, less an earlier one where that makes sense.
    pub(crate) fn since(self, now: u64, earlier: u64) -> u64 {
        match self {
            Rule::Counter => now.saturating_sub(earlier),
            Rule::Peak | Rule::Gauge => now,
        }
    }
}

/// A figure of the locks of one name.
#[derive(Clone, Copy, Debug)]
pub struct LockFigure {
    /// Name in reports; metrics derive theirs from it.
    pub name: &'static str,
    /// What the number counts.
    pub unit: Unit,
    /// How it behaves.
    pub rule: Rule,
    /// What it is, in words.
    pub help: &'static str,
    /// The figure.
    pub get: fn(&LockStats) -> u64,
}

const fn lock_figure(
    name: &'static str,
    unit: Unit,
    rule: Rule,
    help: &'static str,
    get: fn(&LockStats) -> u64,
) -> LockFigure {
    LockFigure { name, unit, rule, help, get }
}

/// Every figure of the locks of one name.
pub const LOCK_FIGURES: [LockFigure; 7] = [
    lock_figure("instances", Unit::Count, Rule::Gauge, "Locks of this name that exist now.", |s| {
        s.instances
    }),
    lock_figure(
        "acquisitions",
        Unit::Count,
        Rule::Counter,
        "How often the locks were taken.",
        |s| s.acquisitions,
    ),
    lock_figure("contended", Unit::Count, Rule::Counter, "How often they were found taken.", |s| {
        s.contended
    }),
    lock_figure("wait_ns", Unit::Nanoseconds, Rule::Counter, "Time waited for them.", |s| {
        s.wait_ns
    }),
    lock_figure(
        "wait_max_ns",
        Unit::Nanoseconds,
        Rule::Peak,
        "Longest wait since the start.",
        |s| s.wait_max_ns,
    ),
    lock_figure(
        "held_samples",
        Unit::Count,
        Rule::Counter,
        "Acquisitions whose time held was measured, one in 251.",
        |s| s.held_samples,
    ),
    lock_figure(
        "held_sampled_ns",
        Unit::Nanoseconds,
        Rule::Counter,
        "Time held in the acquisitions that were measured.",
        |s| s.held_sampled_ns,
    ),
];

/// What one runtime has done since it started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TelemetryReport {
    /// Name of the runtime: the role, as "osd.0", or the role and what the runtime is for, as
    /// "osd.0-heart".
    pub name: String,
    /// False if optional counting is off: then `locks` and `operations` are empty, and times are
    /// zero.
    pub enabled: bool,
    /// Time since the runtime started, in nanoseconds.
    pub elapsed_ns: u64,
    /// Locks by name.
    pub locks: Vec<LockStats>,
    /// Operations, from the top of the stack.
    pub operations: Vec<OperationStats>,
    /// One entry per worker.
    pub workers: Vec<WorkerStats>,
    /// Queues of traffic classes, three entries for each.
    pub classes: Vec<ClassStats>,
    /// I/O threads alive.
    pub blocking_threads: u64,
    /// Blocking jobs that panicked.
    pub blocking_panics: u64,
    /// Its listeners with their connections, in the order in which they were made.
    pub listeners: Vec<ListenerStats>,
}

impl TelemetryReport {
    /// The figures of all workers added up.
    pub fn total(&self) -> WorkerStats {
        let mut total = WorkerStats::default();
        self.workers.iter().for_each(|worker| total.merge(worker));
        total
    }

    /// What happened between an earlier report and this one; all of this one if the runtime started
    /// anew in between.
    pub fn since(&self, earlier: &TelemetryReport) -> TelemetryReport {
        if self.elapsed_ns < earlier.elapsed_ns || self.workers.len() != earlier.workers.len() {
            return self.clone();
        }
        let lock = |now: &LockStats| match earlier.locks.iter().find(|then| then.name == now.name) {
            Some(then) => now.since(then),
            None => now.clone(),
        };
        let operation =
            |now: &OperationStats| match earlier.operations.iter().find(|then| now.is_same(then)) {
                Some(then) => now.since(then),
                None => now.clone(),
            };
        let listener =
            |now: &ListenerStats| match earlier.listeners.iter().find(|then| then.id == now.id) {
                Some(then) => now.since(then),
                None => now.clone(),
            };
        let class = |now: &ClassStats| match earlier.classes.iter().find(|then| now.is_same(then)) {
            Some(then) => now.since(then),
            None => now.clone(),
        };
        TelemetryReport {
            elapsed_ns: self.elapsed_ns - earlier.elapsed_ns,
            locks: self.locks.iter().map(lock).collect(),
            operations: self.operations.iter().map(operation).collect(),
            classes: self.classes.iter().map(class).collect(),
            workers: self
                .workers
                .iter()
                .zip(&earlier.workers)
                .map(|(now, then)| now.since(then))
                .collect(),
            listeners: self.listeners.iter().map(listener).collect(),
            ..self.clone()
        }
    }
}

/// Answers a [`Kind::Telemetry`] request with all that the worker's runtime and its companions have
/// counted, and a [`Kind::History`] request with what it remembers; false if the message is
/// neither.
pub fn answer(worker: &Worker, connection: &Connection, message: &Message) -> bool {
    let (kind, report) = match Kind::from_u16(message.kind).filter(|_| message.is_request()) {
        Some(Kind::Telemetry) => {
            (Kind::TelemetryReply, protocol::encode(&worker.handle().reports()))
        }
        Some(Kind::History) => {
            (Kind::HistoryReply, protocol::encode(&worker.handle().history().report()))
        }
        _ => return false,
    };
    connection.reply(message, kind.to_u16(), report, Bytes::new());
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(elapsed_ns: u64, messages_in: u64, acquisitions: u64) -> TelemetryReport {
        let lock =
            LockStats { name: "a".into(), acquisitions, wait_max_ns: 7, ..LockStats::default() };
        let worker = WorkerStats { messages_in, events_max: 3, ..WorkerStats::default() };
        TelemetryReport {
            elapsed_ns,
            locks: vec![lock],
            workers: vec![worker],
            ..TelemetryReport::default()
        }
    }

    #[test]
    fn differences_are_of_counters_only() {
        let between = report(100, 30, 50).since(&report(40, 10, 20));
        assert_eq!(between, TelemetryReport { elapsed_ns: 60, ..report(60, 20, 30) });
    }

    #[test]
    fn a_restart_in_between_is_seen() {
        let after = report(10, 3, 5);
        assert_eq!(after.since(&report(40, 1, 1)), after);
    }

    #[test]
    fn reports_travel() {
        let sent = report(1, 2, 3);
        let bytes = postcard::to_stdvec(&sent).expect("plain values");
        assert_eq!(postcard::from_bytes::<TelemetryReport>(&bytes).expect("the same"), sent);
    }

    #[test]
    fn every_field_of_a_lock_is_a_figure() {
        let all = LockStats {
            name: "a".into(),
            instances: 1,
            acquisitions: 2,
            contended: 3,
            wait_ns: 4,
            wait_max_ns: 5,
            held_samples: 6,
            held_sampled_ns: 7,
        };
        let figures: Vec<u64> = LOCK_FIGURES.iter().map(|figure| (figure.get)(&all)).collect();
        assert_eq!(figures, [1, 2, 3, 4, 5, 6, 7]);
        assert!(LOCK_FIGURES.iter().all(|figure| figure.help.ends_with('.')));
    }
}
