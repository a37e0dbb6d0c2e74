//! `trefoil history`: the last requests of a mount, one by one, those under way included.
//!
//! With `--json` an object in a shape that stays:
//!
//! ```json
//! {"mode": "locked", "entries": [{"id": 1, "operation": "read", "inode": 7, "age_ns": 1500, "duration_ns": 900, "errno": 0}]}
//! ```
//!
//! in the order in which they began, `age_ns` ago; `duration_ns` and `errno` are null while a
//! request is under way.

use crate::error::OperatorError;
use crate::table::{columns, nanoseconds};
use crate::{Cluster, output, telemetry};
use clap::Args;
use messenger::{HistoryMode, HistoryReport};
use serde::Serialize;

/// What to show.
#[derive(Args, Debug)]
pub struct HistoryArgs {
    /// Whom to ask: client.N, the number of a mount's session in `trefoil status`
    #[arg(value_name = "TARGET")]
    target: String,
    /// Only the last so many
    #[arg(long, value_name = "COUNT")]
    last: Option<usize>,
    /// As JSON, in a shape that stays
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Shown {
    mode: String,
    entries: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    id: u64,
    operation: String,
    inode: u64,
    age_ns: u64,
    duration_ns: Option<u64>,
    errno: Option<i32>,
}

/// Shows it.
///
/// # Errors
/// Those of [`telemetry::history`], and of standard output.
pub fn run(cluster: &Cluster, args: &HistoryArgs) -> Result<(), OperatorError> {
    let report = telemetry::history(cluster, &args.target)?;
    let rows = rows(&report, args.last.unwrap_or(usize::MAX));
    if args.json {
        let shown = Shown { mode: report.mode.to_string(), entries: rows };
        return output::line(
            &serde_json::to_string_pretty(&shown).expect("plain structs are always JSON"),
        );
    }
    output::text(&text(report.mode, &rows))
}

fn rows(report: &HistoryReport, last: usize) -> Vec<Row> {
    let entries = &report.entries[report.entries.len().saturating_sub(last)..];
    let row = |entry: &messenger::HistoryEntry| Row {
        id: entry.id,
        operation: entry.operation.to_string(),
        inode: entry.inode,
        age_ns: report.now_ns.saturating_sub(entry.start_ns),
        duration_ns: entry.end.map(|end| end.duration_ns),
        errno: entry.end.map(|end| end.errno),
    };
    entries.iter().map(row).collect()
}

fn text(mode: HistoryMode, rows: &[Row]) -> String {
    let result = |errno| match errno {
        0 => "ok".to_owned(),
        errno => std::io::Error::from_raw_os_error(errno).to_string(),
    };
    let cells = rows.iter().map(|row| {
        [
            row.id.to_string(),
            row.operation.clone(),
            row.inode.to_string(),
            nanoseconds(row.age_ns as f64),
            row.duration_ns.map_or_else(|| "-".into(), |duration| nanoseconds(duration as f64)),
            row.errno.map_or_else(|| "under way".into(), result),
        ]
    });
    let mut text = columns(["id", "operation", "inode", "begun ago", "took", "result"], cells);
    if mode == HistoryMode::Off {
        text += "nothing is remembered there: mount with -o op_history=locked or op_history=lock-free\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use messenger::{HistoryEnd, HistoryEntry};

    fn report() -> HistoryReport {
        let entry = |id, end| HistoryEntry {
            id,
            operation: "read".into(),
            inode: 7,
            start_ns: 1_000 * id,
            end,
        };
        let end = |errno| Some(HistoryEnd { duration_ns: 500, errno });
        HistoryReport {
            mode: HistoryMode::Locked,
            now_ns: 5_000,
            entries: vec![entry(1, end(0)), entry(2, end(5)), entry(3, None)],
        }
    }

    #[test]
    fn requests_have_ages_and_results() {
        let rows = rows(&report(), 2);
        assert_eq!((rows.len(), rows[0].id, rows[0].age_ns, rows[0].errno), (2, 2, 3_000, Some(5)));
        assert_eq!((rows[1].duration_ns, rows[1].errno), (None, None));
        let text = text(HistoryMode::Locked, &rows);
        for words in ["begun ago", "Input/output error", "under way"] {
            assert!(text.contains(words), "`{words}` is not in:\n{text}");
        }
    }

    #[test]
    fn one_who_remembers_nothing_says_how_to_change_that() {
        assert!(text(HistoryMode::Off, &[]).contains("op_history=locked"));
    }
}
