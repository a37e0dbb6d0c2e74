//! `trefoil top`: what the workers and connections of each daemon do now, as rates over an
//! interval, and what another mapping of connections to workers would change.
//!
//! With `--json` an object in a shape that stays (who does not answer is named on standard error),
//! with `--watch` one such object per line and interval:
//!
//! ```json
//! {"workers": [{"target": "osd.0", "worker": 0, "seconds": 1.0,
//!    "busy_share": 0.42,              of the time not waiting in the reactor; 0 to 1
//!    "cpu_share": 0.40,               of one CPU
//!    "bytes_in_per_s": 1.0, "bytes_out_per_s": 1.0, "messages_per_s": 1.0, "polls_per_s": 1.0,
//!    "events_per_poll": 1.2, "events_max": 9}],     the most since the start
//!  "classes": [{"target": "osd.0", "queue": "core", "class": "III",     see ms_class_weights
//!    "queued": 3,                     that wait now
//!    "served_per_s": 1.0, "bytes_per_s": 1.0}],
//!  "connections": [{"target": "osd.0", "listener": "127.0.0.1:7410", "connection": 17,
//!    "name": "client",                as the peer says
//!    "peer": "127.0.0.1:40000", "state": "up", "mapping": "lcam", "workers": [0, 3], "seconds": 1.0,
//!    "bytes_in_per_s": 1.0, "bytes_out_per_s": 1.0, "messages_per_s": 1.0,
//!    "lock_wait_share": 0.02,         time that all its workers waited for its lock, in the interval's length
//!    "contended_share": 0.01,         of the times that its lock was taken
//!    "marks_per_s": 0.0,              left by workers that found it taken, under handoff
//!    "seats": [{"worker": 0, "seated": true, "bytes_per_s": 1.0, "messages_per_s": 1.0, "lock_wait_share": 0.02,
//!      "acquisitions_per_s": 9.0,     times that it took the lock
//!      "contended_per_s": 1.0,        times that it found the lock taken and waited
//!      "marks_per_s": 0.0}]}],
//!  "outlooks": [{"target": "osd.0", "listener": "127.0.0.1:7410", "mapping": "lcam",
//!    "changes": [{"connection": 17, "change": "add", "worker": 3}]}],     or "remove", or "only"
//!  "spreads": [{"target": "osd.0", "listener": "127.0.0.1:7410", "workers": 4, "mapping": "round-robin",
//!    "present": false,                as it is, not a prediction
//!    "max_bytes_per_s": 2.0, "min_bytes_per_s": 1.0,     of the busiest and the idlest worker; null where unknown
//!    "unknown": null}]}               why nothing is predicted
//! ```
//!
//! Of a listener with more than [`messenger::CONNECTIONS_REPORTED_MAX`] connections, those are
//! shown that carried the most bytes since they began; there is no outlook then, and no prediction.

mod classes;
mod connections;

use crate::error::OperatorError;
use crate::table::{bytes, columns};
use crate::{Cluster, output, watch};
use clap::Args;
use messenger::{TelemetryReport, WorkerStats};
use serde::Serialize;
use std::time::Duration;

/// What to show.
#[derive(Args, Debug)]
pub struct TopArgs {
    /// Whom to ask: monitor, mds, osd.N, client.N [default: all]
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
    /// Also what each worker does on each connection; JSON always has it
    #[arg(long)]
    seats: bool,
    /// As JSON, in a shape that stays
    #[arg(long)]
    json: bool,
    /// Again and again, over intervals of 2 seconds unless said otherwise
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "2",
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    watch: Option<u64>,
}

/// A worker in an interval.
#[derive(Debug, Serialize)]
struct Row {
    target: String,
    worker: usize,
    seconds: f64,
    busy_share: f64,
    cpu_share: f64,
    bytes_in_per_s: f64,
    bytes_out_per_s: f64,
    messages_per_s: f64,
    polls_per_s: f64,
    events_per_poll: f64,
    events_max: u64,
}

/// All of it.
#[derive(Debug, Serialize)]
struct Shown {
    workers: Vec<Row>,
    classes: Vec<classes::Row>,
    connections: Vec<connections::Row>,
    outlooks: Vec<connections::Outlook>,
    spreads: Vec<connections::Spread>,
}

/// Shows one interval of a second, or one after the other.
///
/// # Errors
/// Those of [`crate::telemetry::ask`], and of standard output.
pub fn run(cluster: &Cluster, args: &TopArgs) -> Result<(), OperatorError> {
    let interval = Duration::from_secs(args.watch.unwrap_or(1));
    watch::rates(cluster, &args.targets, interval, args.watch.is_some(), |answers| {
        let shown = Shown {
            workers: answers.reports.iter().flat_map(rows).collect(),
            classes: answers.reports.iter().flat_map(classes::rows).collect(),
            connections: answers.reports.iter().flat_map(connections::rows).collect(),
            outlooks: answers.reports.iter().flat_map(connections::outlooks).collect(),
            spreads: answers.reports.iter().flat_map(connections::spreads).collect(),
        };
        if args.json {
            watch::warn_of_silent(answers);
        }
        match (args.json, args.watch) {
            (true, None) => output::line(
                &serde_json::to_string_pretty(&shown).expect("plain structs are always JSON"),
            ),
            (true, Some(_)) => {
                output::line(&serde_json::to_string(&shown).expect("plain structs are always JSON"))
            }
            (false, _) => output::text(&(text(&shown, args.seats) + &watch::notes(answers))),
        }
    })
}

fn rows(report: &TelemetryReport) -> Vec<Row> {
    let row = |(worker, stats): (usize, &WorkerStats)| {
        let seconds = stats.elapsed_ns as f64 / 1e9;
        let per_second = |n: u64| if seconds > 0.0 { n as f64 / seconds } else { 0.0 };
        Row {
            target: report.name.clone(),
            worker,
            seconds,
            // The clock and the state of a worker are not read at once, so that their difference
            // may be a little too large.
            busy_share: (per_second(stats.busy_ns) / 1e9).min(1.0),
            cpu_share: per_second(stats.cpu_ns) / 1e9,
            bytes_in_per_s: per_second(stats.bytes_in),
            bytes_out_per_s: per_second(stats.bytes_out),
            messages_per_s: per_second(stats.messages_in),
            polls_per_s: per_second(stats.polls),
            events_per_poll: if stats.polls == 0 {
                0.0
            } else {
                stats.events as f64 / stats.polls as f64
            },
            events_max: stats.events_max,
        }
    };
    report.workers.iter().enumerate().map(row).collect()
}

fn text(shown: &Shown, with_seats: bool) -> String {
    let head = [
        "target",
        "worker",
        "busy",
        "cpu",
        "in/s",
        "out/s",
        "messages/s",
        "polls/s",
        "events/poll",
        "max",
    ];
    let cells = shown.workers.iter().map(|row| {
        [
            row.target.clone(),
            row.worker.to_string(),
            format!("{:.0}%", row.busy_share * 100.0),
            format!("{:.0}%", row.cpu_share * 100.0),
            bytes(row.bytes_in_per_s as u64),
            bytes(row.bytes_out_per_s as u64),
            format!("{:.0}", row.messages_per_s),
            format!("{:.0}", row.polls_per_s),
            format!("{:.1}", row.events_per_poll),
            row.events_max.to_string(),
        ]
    });
    let mut parts = vec![columns(head, cells)];
    if !shown.classes.is_empty() {
        parts.push(classes::text(&shown.classes));
    }
    if !shown.connections.is_empty() {
        parts.push(connections::text(&shown.connections));
        if with_seats {
            parts.push(connections::seat_text(&shown.connections));
        }
    }
    if !shown.outlooks.is_empty() {
        parts.push(connections::outlook_text(&shown.outlooks));
    }
    let spreads = connections::spread_text(&shown.spreads);
    if !spreads.is_empty() {
        parts.push(spreads);
    }
    parts.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_shares() {
        let worker = WorkerStats {
            elapsed_ns: 2_000_000_000,
            busy_ns: 500_000_000,
            cpu_ns: 400_000_000,
            bytes_in: 4096,
            messages_in: 10,
            polls: 4,
            events: 6,
            events_max: 3,
            ..WorkerStats::default()
        };
        let report = TelemetryReport {
            name: "osd.0".into(),
            workers: vec![WorkerStats::default(), worker],
            ..TelemetryReport::default()
        };
        let rows = rows(&report);
        assert_eq!(
            (rows[0].busy_share, rows[0].events_per_poll),
            (0.0, 0.0),
            "nothing is divided by zero"
        );
        let text = text(
            &Shown {
                workers: rows,
                classes: Vec::new(),
                connections: Vec::new(),
                outlooks: Vec::new(),
                spreads: Vec::new(),
            },
            true,
        );
        let line: Vec<&str> =
            text.lines().nth(2).expect("two workers").split_whitespace().collect();
        assert_eq!(
            line,
            ["osd.0", "1", "25%", "20%", "2.0", "KiB", "0", "B", "5", "2", "1.5", "3"]
        );
    }
}
