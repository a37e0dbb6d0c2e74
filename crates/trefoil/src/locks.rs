//! `trefoil locks`: where threads wait for each other, as `mutrace` would print it, but live and of
//! daemons that serve.
//!
//! With `--json` an array of objects in a shape that stays (who does not answer is named on
//! standard error); with `--watch` one such array per line and interval:
//!
//! ```json
//! [{"target": "osd.0", "lock": "connection", "instances": 3, "acquisitions": 9, "contended": 1, "contended_share": 0.11,
//!   "wait_ns": 7, "wait_max_ns": 7, "wait_avg_ns": 7.0,
//!   "held_samples": 1, "held_avg_ns": 80.0,     null without a sample
//!   "held_ns": 720.0}]                          an estimate: the mean of the samples times the acquisitions
//! ```

use crate::error::OperatorError;
use crate::table::{columns, nanoseconds};
use crate::telemetry::Answers;
use crate::{Cluster, output, watch};
use clap::{Args, ValueEnum};
use messenger::TelemetryReport;
use messenger::sync::LockStats;
use serde::Serialize;

/// What is shown first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// Time waited
    #[default]
    Wait,
    /// Time held, by sample
    Held,
    /// Times found taken
    Contended,
    /// Times taken
    Acquisitions,
    /// Target and name
    Name,
}

/// What to show.
#[derive(Args, Debug)]
pub struct LocksArgs {
    /// Whom to ask: monitor, mds, osd.N, client.N [default: all]
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
    /// What comes first
    #[arg(long, value_enum, default_value_t)]
    sort: Sort,
    /// Only locks whose target or name has this in it
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// As JSON, in a shape that stays
    #[arg(long)]
    json: bool,
    /// Again and again, every 2 seconds unless said otherwise, with what happened in between
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "2",
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    watch: Option<u64>,
}

/// A lock of a daemon.
#[derive(Debug, Serialize)]
struct Row {
    target: String,
    lock: String,
    instances: u64,
    acquisitions: u64,
    contended: u64,
    contended_share: f64,
    wait_ns: u64,
    wait_max_ns: u64,
    wait_avg_ns: f64,
    held_samples: u64,
    held_avg_ns: Option<f64>,
    held_ns: f64,
}

impl Row {
    fn new(target: &str, lock: &LockStats) -> Row {
        Row {
            target: target.to_owned(),
            lock: lock.name.to_string(),
            instances: lock.instances,
            acquisitions: lock.acquisitions,
            contended: lock.contended,
            contended_share: lock.contended_share(),
            wait_ns: lock.wait_ns,
            wait_max_ns: lock.wait_max_ns,
            wait_avg_ns: lock.wait_avg_ns(),
            held_samples: lock.held_samples,
            held_avg_ns: lock.held_avg_ns(),
            held_ns: lock.held_ns(),
        }
    }
}

/// Shows the locks.
///
/// # Errors
/// Those of [`crate::telemetry::ask`], and of standard output.
pub fn run(cluster: &Cluster, args: &LocksArgs) -> Result<(), OperatorError> {
    watch::run(cluster, &args.targets, args.watch, |answers| {
        let rows = rows(&answers.reports, args.sort, args.filter.as_deref());
        if args.json {
            watch::warn_of_silent(answers);
        }
        match (args.json, args.watch) {
            (true, None) => output::line(
                &serde_json::to_string_pretty(&rows).expect("plain structs are always JSON"),
            ),
            (true, Some(_)) => {
                output::line(&serde_json::to_string(&rows).expect("plain structs are always JSON"))
            }
            (false, _) => output::text(&text(&rows, answers)),
        }
    })
}

fn rows(reports: &[TelemetryReport], sort: Sort, filter: Option<&str>) -> Vec<Row> {
    let of = |report: &TelemetryReport| {
        report.locks.iter().map(|lock| Row::new(&report.name, lock)).collect::<Vec<_>>()
    };
    let wanted =
        |row: &Row| filter.is_none_or(|text| row.target.contains(text) || row.lock.contains(text));
    let mut rows: Vec<Row> = reports.iter().flat_map(of).filter(wanted).collect();
    // What is equal stays in the order of targets and names.
    match sort {
        Sort::Wait => rows.sort_by_key(|row| std::cmp::Reverse(row.wait_ns)),
        Sort::Held => rows.sort_by(|a, b| b.held_ns.total_cmp(&a.held_ns)),
        Sort::Contended => rows.sort_by_key(|row| std::cmp::Reverse(row.contended)),
        Sort::Acquisitions => rows.sort_by_key(|row| std::cmp::Reverse(row.acquisitions)),
        Sort::Name => rows.sort_by(|a, b| (&a.target, &a.lock).cmp(&(&b.target, &b.lock))),
    }
    rows
}

fn text(rows: &[Row], answers: &Answers) -> String {
    let head = [
        "target",
        "lock",
        "locks",
        "taken",
        "found taken",
        "share",
        "waited",
        "max",
        "avg",
        "held avg*",
        "held*",
    ];
    let cells = rows.iter().map(|row| {
        [
            row.target.clone(),
            row.lock.clone(),
            row.instances.to_string(),
            row.acquisitions.to_string(),
            row.contended.to_string(),
            format!("{:.2}%", row.contended_share * 100.0),
            nanoseconds(row.wait_ns as f64),
            nanoseconds(row.wait_max_ns as f64),
            nanoseconds(row.wait_avg_ns),
            row.held_avg_ns.map_or_else(|| "-".into(), nanoseconds),
            nanoseconds(row.held_ns),
        ]
    });
    let mut text = columns(head, cells);
    if rows.is_empty() {
        text += "no lock matches, or telemetry is off there\n";
    }
    text += "* estimated: one acquisition in 251 is timed until its unlock\n";
    text + &watch::notes(answers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reports() -> Vec<TelemetryReport> {
        let lock = |name: &'static str, acquisitions, contended, wait_ns, held| LockStats {
            name: name.into(),
            acquisitions,
            contended,
            wait_ns,
            wait_max_ns: wait_ns,
            held_samples: u64::from(held > 0),
            held_sampled_ns: held,
            ..LockStats::default()
        };
        let report = |name: &str, locks| TelemetryReport {
            name: name.into(),
            locks,
            ..TelemetryReport::default()
        };
        vec![
            report("osd.0", vec![lock("a", 10, 5, 1_000, 0), lock("b", 100, 2, 3_000_000, 10)]),
            report("mds", vec![lock("a", 50, 1, 10, 500)]),
        ]
    }

    fn order(sort: Sort, filter: Option<&str>) -> Vec<String> {
        rows(&reports(), sort, filter)
            .iter()
            .map(|row| format!("{} {}", row.target, row.lock))
            .collect()
    }

    #[test]
    fn sorted_and_filtered() {
        assert_eq!(order(Sort::Wait, None), ["osd.0 b", "osd.0 a", "mds a"]);
        assert_eq!(order(Sort::Held, None), ["mds a", "osd.0 b", "osd.0 a"]);
        assert_eq!(order(Sort::Contended, None), ["osd.0 a", "osd.0 b", "mds a"]);
        assert_eq!(order(Sort::Acquisitions, None), ["osd.0 b", "mds a", "osd.0 a"]);
        assert_eq!(order(Sort::Name, None), ["mds a", "osd.0 a", "osd.0 b"]);
        assert_eq!(order(Sort::Wait, Some("osd")), ["osd.0 b", "osd.0 a"]);
        assert_eq!(order(Sort::Wait, Some("b")), ["osd.0 b"]);
    }

    #[test]
    fn a_table_for_people() {
        let silent = vec![("osd.1".into(), "it is down".into())];
        let answers = Answers { reports: reports(), silent, ..Answers::default() };
        let text = text(&rows(&answers.reports, Sort::Wait, None), &answers);
        for words in
            ["found taken", "3.0 ms", "2.00%", "50.00%", "no answer from osd.1: it is down"]
        {
            assert!(text.contains(words), "`{words}` is not in:\n{text}");
        }
    }
}
