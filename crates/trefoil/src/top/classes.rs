//! What each traffic class got in the queues of a daemon, for `trefoil top`.

use crate::table::{bytes, columns};
use messenger::{ClassStats, TelemetryReport};
use serde::Serialize;

/// A class of a queue in an interval.
#[derive(Debug, Serialize)]
pub struct Row {
    target: String,
    queue: String,
    class: String,
    queued: u64,
    served_per_s: f64,
    bytes_per_s: f64,
}

/// Those of a report that were in use in its interval, or have something that waits.
pub fn rows(report: &TelemetryReport) -> Vec<Row> {
    let seconds = report.elapsed_ns as f64 / 1e9;
    let per_second = |n: u64| if seconds > 0.0 { n as f64 / seconds } else { 0.0 };
    let row = |stats: &ClassStats| Row {
        target: report.name.clone(),
        queue: stats.queue.to_string(),
        class: stats.class.to_string(),
        queued: stats.queued,
        served_per_s: per_second(stats.served),
        bytes_per_s: per_second(stats.served_bytes),
    };
    report.classes.iter().filter(|stats| stats.served + stats.queued > 0).map(row).collect()
}

/// As a table.
pub fn text(rows: &[Row]) -> String {
    let cells = rows.iter().map(|row| {
        [
            row.target.clone(),
            row.queue.clone(),
            row.class.clone(),
            row.queued.to_string(),
            format!("{:.0}", row.served_per_s),
            bytes(row.bytes_per_s as u64),
        ]
    });
    columns(["target", "queue", "class", "waiting", "served/s", "bytes/s"], cells)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_in_use_are_shown_as_rates() {
        let class = |class: &'static str, queued, served| ClassStats {
            queue: "core".into(),
            class: class.into(),
            queued,
            served,
            served_bytes: served * 2048,
        };
        let report = TelemetryReport {
            name: "osd.0".into(),
            elapsed_ns: 2_000_000_000,
            classes: vec![class("I", 0, 0), class("II", 0, 10), class("III", 3, 0)],
            ..TelemetryReport::default()
        };
        let text = text(&rows(&report));
        let lines: Vec<Vec<&str>> =
            text.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            lines,
            [
                ["osd.0", "core", "II", "0", "5", "10.0", "KiB"],
                ["osd.0", "core", "III", "3", "0", "0", "B"]
            ]
        );
        assert!(rows(&TelemetryReport { elapsed_ns: 0, ..report })[0].served_per_s == 0.0);
    }
}
