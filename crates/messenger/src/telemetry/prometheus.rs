//! Telemetry in the Prometheus text format, version 0.0.4.
//!
//! Contract: every sample stands under a HELP (what it is, and its unit) and a TYPE line of its
//! name; each name appears once, however many runtimes are told of. Pure: from reports to text.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::RangeInclusive;

use crate::telemetry::classes::CLASS_FIGURES;
use crate::telemetry::connections::ListenerStats;
use crate::telemetry::counters::{POLL_EVENTS_BOUNDS, WorkerStats};
use crate::telemetry::operation::OperationStats;
use crate::telemetry::{LOCK_FIGURES, Rule, TelemetryReport, Unit};
use crate::wire::frame::FrameError;

/// The content type of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All figures of all reports.
pub fn render(reports: &[TelemetryReport]) -> String {
    let mut text = Text(String::new());
    runtimes(&mut text, reports);
    for figure in WorkerStats::FIGURES {
        let mut family =
            text.family("trefoil_worker_", figure.name, figure.unit, figure.rule, figure.help);
        for (report, index, worker) in each_worker(reports) {
            family.sample(&[("role", &report.name), ("worker", &index)], (figure.get)(worker));
        }
    }
    polls(&mut text, reports);
    operations(&mut text, reports);
    sessions(&mut text, reports);
    let help = "Frames refused, by reason.";
    let mut family =
        text.family("trefoil_worker_", "frame_errors", Unit::Count, Rule::Counter, help);
    for (report, index, worker) in each_worker(reports) {
        for (reason, count) in FrameError::NAMES.iter().zip(worker.frame_errors) {
            family.sample(&[("role", &report.name), ("worker", &index), ("reason", reason)], count);
        }
    }
    for figure in &LOCK_FIGURES {
        let mut family =
            text.family("trefoil_lock_", figure.name, figure.unit, figure.rule, figure.help);
        for report in reports {
            for lock in &report.locks {
                family.sample(&[("role", &report.name), ("lock", &lock.name)], (figure.get)(lock));
            }
        }
    }
    for figure in &CLASS_FIGURES {
        let mut family =
            text.family("trefoil_class_", figure.name, figure.unit, figure.rule, figure.help);
        for report in reports {
            for class in &report.classes {
                let labels =
                    [("role", &*report.name), ("queue", &class.queue), ("class", &class.class)];
                family.sample(&labels, (figure.get)(class));
            }
        }
    }
    text.0
}

fn runtimes(text: &mut Text, reports: &[TelemetryReport]) {
    type Figure = (&'static str, Unit, Rule, &'static str, fn(&TelemetryReport) -> u64);
    let figures: [Figure; 4] = [
        ("elapsed_ns", Unit::Nanoseconds, Rule::Counter, "Time since the role started.", |r| {
            r.elapsed_ns
        }),
        (
            "telemetry",
            Unit::Count,
            Rule::Gauge,
            "1 if locks and times are counted, 0 if not.",
            |r| r.enabled.into(),
        ),
        ("blocking_threads", Unit::Count, Rule::Gauge, "I/O threads alive.", |r| {
            r.blocking_threads
        }),
        (
            "blocking_panics",
            Unit::Count,
            Rule::Counter,
            "Jobs on I/O threads that panicked.",
            |r| r.blocking_panics,
        ),
    ];
    for (name, unit, rule, help, get) in figures {
        let mut family = text.family("trefoil_role_", name, unit, rule, help);
        for report in reports {
            family.sample(&[("role", &report.name)], get(report));
        }
    }
}

fn each_worker(
    reports: &[TelemetryReport],
) -> impl Iterator<Item = (&TelemetryReport, String, &WorkerStats)> {
    reports.iter().flat_map(|report| {
        report
            .workers
            .iter()
            .enumerate()
            .map(move |(index, worker)| (report, index.to_string(), worker))
    })
}

/// Sessions by mapping. What single connections did is not here: their number has no bound. It is
/// in the figures of workers and of the lock "connection driver", which do not fall when a
/// connection ends.
fn sessions(text: &mut Text, reports: &[TelemetryReport]) {
    type Figure = (&'static str, &'static str, fn(&ListenerStats) -> u64);
    let figures: [Figure; 2] = [
        ("sessions", "Sessions that listeners with this mapping have.", |listener| {
            listener.sessions
        }),
        ("seats", "Workers that serve a session, over all sessions.", |listener| {
            listener.attachments
        }),
    ];
    for (name, help, get) in figures {
        let mut family = text.family("trefoil_listener_", name, Unit::Count, Rule::Gauge, help);
        for report in reports {
            let mut sums = BTreeMap::new();
            for listener in &report.listeners {
                *sums.entry(listener.placement.mapping).or_insert(0) += get(listener);
            }
            for (mapping, sum) in sums {
                family.sample(&[("role", &report.name), ("mapping", mapping.name())], sum);
            }
        }
    }
}

/// Polls as a histogram: buckets, sum and count of one name.
fn polls(text: &mut Text, reports: &[TelemetryReport]) {
    const NAME: &str = "trefoil_worker_poll_events";
    text.head(
        NAME,
        "histogram",
        Unit::Count,
        "Readiness events that a poll of the reactor returned.",
    );
    for (report, index, worker) in each_worker(reports) {
        let labels = [("role", report.name.as_str()), ("worker", index.as_str())];
        let bounds = POLL_EVENTS_BOUNDS.iter().map(u64::to_string).chain(["+Inf".to_owned()]);
        let mut count = 0;
        for (bound, polls) in bounds.zip(worker.poll_classes) {
            count += polls;
            let [role, worker] = labels;
            text.sample(
                &format!("{NAME}_bucket"),
                &[role, worker, ("le", &bound)],
                count,
                Unit::Count,
            );
        }
        text.sample(&format!("{NAME}_sum"), &labels, worker.events, Unit::Count);
        // Of the buckets, not the counter of polls: it may have moved on since the buckets were
        // read.
        text.sample(&format!("{NAME}_count"), &labels, count, Unit::Count);
    }
}

/// Bounds of durations, as powers of two of nanoseconds: 1 us to 34 s, each twice the one before.
/// Finer ones, as `trefoil profile` has them, would be eight times as many lines.
const TIME_BITS: RangeInclusive<u32> = 10..=35;

/// Operations as histograms: those that never happened too, so that rates begin with the first.
fn operations(text: &mut Text, reports: &[TelemetryReport]) {
    const NAME: &str = "trefoil_operation_seconds";
    text.head(
        NAME,
        "histogram",
        Unit::Nanoseconds,
        "How long operations took, by layer of the stack and operation.",
    );
    for report in reports {
        for OperationStats { layer, name, times } in &report.operations {
            let labels =
                [("role", report.name.as_str()), ("layer", layer.name()), ("operation", name)];
            let mut bucket = |bound: &str, count| {
                let [role, layer, operation] = labels;
                text.sample(
                    &format!("{NAME}_bucket"),
                    &[role, layer, operation, ("le", bound)],
                    count,
                    Unit::Count,
                );
            };
            for bits in TIME_BITS {
                bucket(&((1u64 << bits) as f64 / 1e9).to_string(), times.below(bits));
            }
            bucket("+Inf", times.calls());
            text.sample(&format!("{NAME}_sum"), &labels, times.sum_ns(), Unit::Nanoseconds);
            text.sample(&format!("{NAME}_count"), &labels, times.calls(), Unit::Count);
        }
    }
}

struct Text(String);

/// The samples of one name.
struct Family<'a> {
    text: &'a mut Text,
    name: String,
    unit: Unit,
}

impl Text {
    /// Begins a name: seconds instead of nanoseconds, and `_total` for what only grows, as
    /// Prometheus has it.
    fn family(
        &mut self,
        prefix: &str,
        name: &str,
        unit: Unit,
        rule: Rule,
        help: &str,
    ) -> Family<'_> {
        let base = match unit {
            Unit::Nanoseconds => format!("{}_seconds", name.trim_end_matches("_ns")),
            Unit::Count | Unit::Bytes => name.to_owned(),
        };
        let (suffix, kind) = match rule {
            Rule::Counter => ("_total", "counter"),
            Rule::Peak | Rule::Gauge => ("", "gauge"),
        };
        let name = format!("{prefix}{base}{suffix}");
        self.head(&name, kind, unit, help);
        Family { text: self, name, unit }
    }

    fn head(&mut self, name: &str, kind: &str, unit: Unit, help: &str) {
        let help = help.trim().replace('\\', "\\\\").replace('\n', "\\n");
        let unit = match unit {
            Unit::Count => "count",
            Unit::Bytes => "bytes",
            Unit::Nanoseconds => "seconds",
        };
        self.line(format_args!("# HELP {name} {help} Unit: {unit}."));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: u64, unit: Unit) {
        let labels: Vec<String> =
            labels.iter().map(|(key, text)| format!("{key}=\"{}\"", escaped(text))).collect();
        let labels = labels.join(",");
        match unit {
            Unit::Nanoseconds => {
                self.line(format_args!("{name}{{{labels}}} {}", value as f64 / 1e9))
            }
            Unit::Count | Unit::Bytes => self.line(format_args!("{name}{{{labels}}} {value}")),
        }
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.0, "{line}").expect("a string takes everything");
    }
}

impl Family<'_> {
    fn sample(&mut self, labels: &[(&str, &str)], value: u64) {
        self.text.sample(&self.name, labels, value, self.unit);
    }
}

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::contention_mutex::LockStats;
    use crate::telemetry::classes::ClassStats;
    use crate::telemetry::operation::{Layer, OperationTable};
    use placement::threads::{Mapping, PlacementConfig};
    use std::collections::HashMap;
    use std::time::{Duration, Instant};

    fn sample_reports() -> Vec<TelemetryReport> {
        let mut worker = WorkerStats {
            messages_in: 7,
            busy_ns: 1_500_000_000,
            events: 5,
            ..WorkerStats::default()
        };
        worker.poll_classes[1] = 2;
        worker.poll_classes[10] = 1;
        let lock = LockStats {
            name: "a \"b\"\\".into(),
            acquisitions: 3,
            wait_ns: 10,
            ..LockStats::default()
        };
        let listener = |id| ListenerStats {
            id,
            addr: ([127, 0, 0, 1], 1).into(),
            placement: PlacementConfig::new(Mapping::Lcam),
            sessions: 2,
            attachments: 3,
            connections: Vec::new(),
        };
        let table = OperationTable::default();
        let (operation, t0) = (table.operation(Layer::Pg, "write"), Instant::now());
        for ns in [500, 3_000, 60_000_000_000] {
            operation.record(t0, t0 + Duration::from_nanos(ns));
        }
        let class = ClassStats {
            queue: "io".into(),
            class: "III".into(),
            queued: 4,
            served: 5,
            served_bytes: 6,
        };
        let report = TelemetryReport {
            name: "osd.0".into(),
            classes: vec![class],
            operations: table.stats(),
            listeners: vec![listener(1), listener(2)],
            locks: vec![lock],
            workers: vec![worker.clone(), worker],
            ..TelemetryReport::default()
        };
        let other = TelemetryReport { name: "mds".into(), ..report.clone() };
        vec![report, other]
    }

    #[test]
    fn every_sample_has_help_and_type_and_a_valid_name() {
        let text = render(&sample_reports());
        let mut types: HashMap<&str, &str> = HashMap::new();
        let mut helps = Vec::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').expect("name and text");
                let (what, unit) = help.rsplit_once(" Unit: ").expect("what it is, and the unit");
                assert!(what.ends_with('.') && !helps.contains(&name), "{line}");
                let of_name = ["seconds", "bytes"]
                    .into_iter()
                    .find(|unit| name.split('_').any(|word| word == *unit));
                assert_eq!(unit.strip_suffix('.'), of_name.or(Some("count")), "{line}");
                helps.push(name);
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect("name and type");
                assert_eq!(helps.last(), Some(&name), "HELP stands before TYPE");
                assert!(types.insert(name, kind).is_none(), "{name} appears twice");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            } else {
                let name = line.split('{').next().expect("never empty");
                let base = ["_bucket", "_sum", "_count"]
                    .iter()
                    .find_map(|suffix| name.strip_suffix(suffix));
                let last = *helps.last().expect("a head stands before samples");
                assert!(
                    name == last || base == Some(last) && types[last] == "histogram",
                    "{line} under {last}"
                );
                assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{name}");
                let value = line.rsplit(' ').next().expect("a value");
                assert!(value.parse::<f64>().is_ok(), "{line}");
            }
        }
        assert!(types.len() > 30, "{} names", types.len());
    }

    #[test]
    fn values_units_and_labels() {
        let text = render(&sample_reports());
        for line in [
            "trefoil_worker_messages_in_total{role=\"osd.0\",worker=\"1\"} 7",
            "trefoil_worker_busy_seconds_total{role=\"mds\",worker=\"0\"} 1.5",
            "trefoil_lock_acquisitions_total{role=\"osd.0\",lock=\"a \\\"b\\\"\\\\\"} 3",
            "trefoil_lock_wait_seconds_total{role=\"mds\",lock=\"a \\\"b\\\"\\\\\"} 0.00000001",
            "trefoil_worker_poll_events_bucket{role=\"osd.0\",worker=\"0\",le=\"1\"} 2",
            "trefoil_worker_poll_events_bucket{role=\"osd.0\",worker=\"0\",le=\"+Inf\"} 3",
            "trefoil_worker_poll_events_sum{role=\"osd.0\",worker=\"0\"} 5",
            "trefoil_listener_sessions{role=\"osd.0\",mapping=\"lcam\"} 4",
            "trefoil_listener_seats{role=\"mds\",mapping=\"lcam\"} 6",
            "trefoil_operation_seconds_bucket{role=\"osd.0\",layer=\"pg\",operation=\"write\",le=\"0.000001024\"} 1",
            "trefoil_operation_seconds_bucket{role=\"osd.0\",layer=\"pg\",operation=\"write\",le=\"0.000004096\"} 2",
            "trefoil_operation_seconds_bucket{role=\"osd.0\",layer=\"pg\",operation=\"write\",le=\"34.359738368\"} 2",
            "trefoil_operation_seconds_bucket{role=\"osd.0\",layer=\"pg\",operation=\"write\",le=\"+Inf\"} 3",
            "trefoil_operation_seconds_sum{role=\"mds\",layer=\"pg\",operation=\"write\"} 60.0000035",
            "trefoil_operation_seconds_count{role=\"mds\",layer=\"pg\",operation=\"write\"} 3",
            "trefoil_class_queued{role=\"mds\",queue=\"io\",class=\"III\"} 4",
            "trefoil_class_served_bytes_total{role=\"osd.0\",queue=\"io\",class=\"III\"} 6",
            "trefoil_worker_poll_events_count{role=\"osd.0\",worker=\"0\"} 3",
        ] {
            assert!(text.lines().any(|found| found == line), "`{line}` is not in:\n{text}");
        }
    }
}
