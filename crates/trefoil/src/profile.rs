//! `trefoil profile`: how long operations take at each layer, as GlusterFS's `volume profile`, but
//! down the whole stack.
//!
//! With `--json` an object in a shape that stays; with `--watch` one such object per line and
//! interval. Operations that did not happen are not listed.
//!
//! ```json
//! {"operations": [{"layer": "pg",       "fuse", "client", "messenger", "pg" or "disk"
//!    "operation": "write",
//!    "target": "osds",                  or "clients", "mds", "monitor"; with --per-daemon "osd.0", "client.7"
//!    "calls": 12, "min_ns": 1, "mean_ns": 3.5,
//!    "p50_ns": 3, "p99_ns": 9,          right to 1/15
//!    "max_ns": 9,                       min and max of an interval are known to 1/8
//!    "total_ns": 42,
//!    "share": 0.5}],                    of the time of all operations of this layer and target
//!  "clients": [{"target": "client.7", "name": "fuse-client host:/mnt"}],      that answered
//!  "silent": [{"target": "osd.2", "reason": "it is down"}]}
//! ```

use crate::error::OperatorError;
use crate::table::{columns, nanoseconds};
use crate::telemetry::Answers;
use crate::{Cluster, output, watch};
use clap::Args;
use messenger::histogram::Times;
use messenger::{Layer, TelemetryReport};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// What to show.
#[derive(Args, Debug)]
pub struct ProfileArgs {
    /// Whom to ask: monitor, mds, osd.N, client.N [default: all]
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
    /// Each daemon and client by itself, instead of all of a kind together
    #[arg(long)]
    per_daemon: bool,
    /// Only operations whose layer, name or target has this in it
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

/// Operations of one name.
#[derive(Debug, Serialize)]
struct Row {
    layer: &'static str,
    operation: String,
    target: String,
    calls: u64,
    min_ns: u64,
    mean_ns: f64,
    p50_ns: u64,
    p99_ns: u64,
    max_ns: u64,
    total_ns: u64,
    share: f64,
}

#[derive(Debug, Serialize)]
struct Client<'a> {
    target: &'a str,
    name: &'a str,
}

#[derive(Debug, Serialize)]
struct Silent<'a> {
    target: &'a str,
    reason: &'a str,
}

/// All of it.
#[derive(Debug, Serialize)]
struct Shown<'a> {
    operations: Vec<Row>,
    clients: Vec<Client<'a>>,
    silent: Vec<Silent<'a>>,
}

/// Shows where time went.
///
/// # Errors
/// Those of [`crate::telemetry::ask`], and of standard output.
pub fn run(cluster: &Cluster, args: &ProfileArgs) -> Result<(), OperatorError> {
    watch::run(cluster, &args.targets, args.watch, |answers| {
        let shown = Shown {
            operations: rows(&answers.reports, args.per_daemon, args.filter.as_deref()),
            clients: answers.clients.iter().map(|(target, name)| Client { target, name }).collect(),
            silent: answers
                .silent
                .iter()
                .map(|(target, reason)| Silent { target, reason })
                .collect(),
        };
        match (args.json, args.watch) {
            (true, None) => output::line(
                &serde_json::to_string_pretty(&shown).expect("plain structs are always JSON"),
            ),
            (true, Some(_)) => {
                output::line(&serde_json::to_string(&shown).expect("plain structs are always JSON"))
            }
            (false, _) => output::text(&text(&shown.operations, answers)),
        }
    })
}

/// All of a kind together: "osds", "clients"; a role that there is once is its own kind.
fn kind_of(target: &str) -> String {
    target.split_once('.').map_or_else(|| target.to_owned(), |(kind, _)| format!("{kind}s"))
}

/// By layer, and in a layer the most time first.
fn rows(reports: &[TelemetryReport], per_daemon: bool, filter: Option<&str>) -> Vec<Row> {
    let mut sums: BTreeMap<(Layer, String, &str), Times> = BTreeMap::new();
    for report in reports {
        let target = if per_daemon { report.name.clone() } else { kind_of(&report.name) };
        for operation in report.operations.iter().filter(|operation| operation.times.calls() > 0) {
            sums.entry((operation.layer, target.clone(), &operation.name))
                .or_default()
                .merge(&operation.times);
        }
    }
    let mut whole: BTreeMap<(Layer, String), u64> = BTreeMap::new();
    for ((layer, target, _), times) in &sums {
        *whole.entry((*layer, target.clone())).or_default() += times.sum_ns();
    }
    let wanted = |row: &Row| {
        filter.is_none_or(|text| {
            [row.layer, &row.operation, &row.target].iter().any(|name| name.contains(text))
        })
    };
    let row = |((layer, target, operation), times): ((Layer, String, &str), Times)| {
        let of = whole.get(&(layer, target.clone())).copied().unwrap_or_default();
        (layer, row_of(layer, target, operation, &times, of))
    };
    let mut rows: Vec<(Layer, Row)> =
        sums.into_iter().map(row).filter(|(_, row)| wanted(row)).collect();
    // What is equal stays in the order of targets and names.
    rows.sort_by_key(|(layer, row)| (*layer, Reverse(row.total_ns)));
    rows.into_iter().map(|(_, row)| row).collect()
}

fn row_of(layer: Layer, target: String, operation: &str, times: &Times, whole_ns: u64) -> Row {
    Row {
        layer: layer.name(),
        operation: operation.to_owned(),
        target,
        calls: times.calls(),
        min_ns: times.min_ns(),
        mean_ns: times.mean_ns(),
        p50_ns: times.quantile_ns(0.5),
        p99_ns: times.quantile_ns(0.99),
        max_ns: times.max_ns(),
        total_ns: times.sum_ns(),
        share: if whole_ns == 0 { 0.0 } else { times.sum_ns() as f64 / whole_ns as f64 },
    }
}

fn text(rows: &[Row], answers: &Answers) -> String {
    let head = [
        "layer",
        "operation",
        "target",
        "calls",
        "min",
        "mean",
        "p50",
        "p99",
        "max",
        "total",
        "share",
    ];
    let cells = rows.iter().map(|row| {
        [
            row.layer.to_owned(),
            row.operation.clone(),
            row.target.clone(),
            row.calls.to_string(),
            nanoseconds(row.min_ns as f64),
            nanoseconds(row.mean_ns),
            nanoseconds(row.p50_ns as f64),
            nanoseconds(row.p99_ns as f64),
            nanoseconds(row.max_ns as f64),
            nanoseconds(row.total_ns as f64),
            format!("{:.1}%", row.share * 100.0),
        ]
    });
    let mut text = columns(head, cells);
    if rows.is_empty() {
        text += "nothing matches, nothing happened, or telemetry is off there\n";
    }
    text + &watch::notes(answers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use messenger::OperationTable;
    use std::time::{Duration, Instant};

    fn report(name: &str, operations: &[(Layer, &'static str, &[u64])]) -> TelemetryReport {
        let (table, t0) = (OperationTable::default(), Instant::now());
        for (layer, name, times) in operations {
            let operation = table.operation(*layer, name);
            times.iter().for_each(|us| operation.record(t0, t0 + Duration::from_micros(*us)));
        }
        TelemetryReport {
            name: name.into(),
            operations: table.stats(),
            ..TelemetryReport::default()
        }
    }

    fn reports() -> Vec<TelemetryReport> {
        vec![
            report(
                "osd.0",
                &[(Layer::Disk, "journal sync", &[3000]), (Layer::Pg, "write", &[40, 60])],
            ),
            report(
                "osd.1",
                &[
                    (Layer::Pg, "write", &[100]),
                    (Layer::Pg, "read", &[300]),
                    (Layer::Pg, "sync", &[]),
                ],
            ),
            report("client.7", &[(Layer::Fuse, "write", &[500])]),
        ]
    }

    fn brief(rows: &[Row]) -> Vec<String> {
        rows.iter()
            .map(|row| format!("{} {} {} {}", row.layer, row.operation, row.target, row.calls))
            .collect()
    }

    #[test]
    fn a_kind_is_summed_and_the_top_of_the_stack_comes_first() {
        let rows = rows(&reports(), false, None);
        let expected = [
            "fuse write clients 1",
            "pg read osds 1",
            "pg write osds 3",
            "disk journal sync osds 1",
        ];
        assert_eq!(brief(&rows), expected, "what never happened is not shown");
        let write = &rows[2];
        assert_eq!((write.min_ns, write.max_ns, write.total_ns), (40_000, 100_000, 200_000));
        assert!((write.share - 0.4).abs() < 1e-9 && write.mean_ns > 66_000.0);
    }

    #[test]
    fn each_by_itself_and_filtered() {
        let one = rows(&reports(), true, Some("write"));
        assert_eq!(brief(&one), ["fuse write client.7 1", "pg write osd.0 2", "pg write osd.1 1"]);
        assert_eq!(
            brief(&rows(&reports(), true, Some("osd.1"))),
            ["pg read osd.1 1", "pg write osd.1 1"]
        );
        assert_eq!(brief(&rows(&reports(), false, Some("disk"))), ["disk journal sync osds 1"]);
    }

    #[test]
    fn a_table_for_people() {
        let answers = Answers {
            reports: reports(),
            clients: vec![("client.7".into(), "fuse-client here:/mnt".into())],
            silent: vec![("osd.2".into(), "it is down".into())],
        };
        let text = text(&rows(&answers.reports, false, None), &answers);
        for words in [
            "p99",
            "3.0 ms",
            "40.0%",
            "client.7 is fuse-client here:/mnt",
            "no answer from osd.2: it is down",
        ] {
            assert!(text.contains(words), "`{words}` is not in:\n{text}");
        }
        let nothing = super::text(&[], &Answers::default());
        assert!(nothing.contains("telemetry is off"), "{nothing}");
    }
}
