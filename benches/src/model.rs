//! The model's part of a run: checked against what was measured, then asked for what two cores
//! cannot show.
//!
//! Contract: everything here is computed from the scenario and its seeds; nothing is measured.

mod sim;

use std::time::Duration;

use placement::threads::{LcamRule, Mapping, PlacementConfig};

use crate::error::BenchError;
use crate::figures::{Drawn, look};
use crate::machine::size_name;
use crate::report::RowOf;
use crate::scenario::{Cell, Mode, Scenario, Variant};
use crate::stats::{ratio, spread};
use crate::table::{Row, Samples};
use crate::targets::HEADLINE;
use plot::{Figure, Panel, Plot};
use sim::{Outcome, Plan, simulate};

/// Interval of placement in the curves: still many service times, and short enough for a curve to
/// be computed in seconds.
const CURVE_INTERVAL: Duration = Duration::from_millis(50);
/// Intervals before the measured time in which queues fill; adjusted mappings get one more for each
/// worker, since they add workers one by one.
const WARM_UP_INTERVALS: usize = 6;
/// Intervals measured.
const MEASURED_INTERVALS: u32 = 8;

/// A point of a curve.
#[derive(Clone, Debug)]
struct Point {
    sweep: Sweep,
    /// Workers or connections.
    x: usize,
    mapping: &'static str,
    outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Sweep {
    /// Over the number of workers, with the scenario's connections.
    Workers,
    /// Over the number of connections, with the most workers.
    Connections { workers: usize },
}

/// A cell that was both measured and computed.
#[derive(Clone, Debug)]
struct Check {
    scenario: String,
    block_bytes: u64,
    mapping: &'static str,
    measured: f64,
    computed: f64,
    measured_us: f64,
    computed_us: f64,
    /// Lock time of all connections, in milliseconds each second.
    measured_lock: f64,
    computed_lock: f64,
}

impl Check {
    /// Of the computed throughput, as a share of the measured one.
    fn deviation(&self) -> f64 {
        ratio(self.computed, self.measured) - 1.0
    }
}

/// What the model has to say.
#[derive(Clone, Debug)]
pub(crate) struct Chapter {
    checks: Vec<Check>,
    points: Vec<Point>,
}

/// Settings of placement for a variant.
pub(crate) fn placement(scenario: &Scenario, variant: Variant) -> PlacementConfig {
    PlacementConfig {
        interval: Duration::from_millis(scenario.placement.interval_ms),
        lock_threshold: scenario.placement.lock_threshold,
        lcam_rule: if variant.damped { LcamRule::Damped } else { LcamRule::AsPrinted },
        ..PlacementConfig::new(variant.mapping)
    }
}

/// Checks the model against the samples of blocking mode, and computes the curves.
///
/// # Errors
/// When the scenario has cells that do not exist.
pub(crate) fn chapter(scenario: &Scenario, samples: &Samples) -> Result<Chapter, BenchError> {
    let cells = scenario.cells()?;
    let mut checks = Vec::new();
    for cell in cells.iter().filter(|cell| cell.mode == Mode::Blocking) {
        for variant in &cell.variants {
            let name = cell.scenario();
            let of = |of: fn(&crate::runner::Sample) -> f64| {
                samples.median(&name, cell.block_bytes, variant.name(), of)
            };
            let Some((measured, measured_us)) = of(|s| s.ops_per_s).zip(of(|s| s.mean_us)) else {
                continue;
            };
            let measured_lock = of(|s| s.lock_ms_sum() / s.seconds).unwrap_or(0.0);
            let (warm_up, measure) = scenario.times(cell);
            let outcome = simulate(&Plan {
                cell: cell.clone(),
                workers: scenario.workers,
                connections: scenario.connections,
                placement: placement(scenario, *variant),
                warm_up,
                measure,
            });
            checks.push(Check {
                scenario: name,
                block_bytes: cell.block_bytes,
                mapping: variant.name(),
                measured,
                computed: outcome.ops_per_s,
                measured_us,
                computed_us: outcome.mean_us,
                measured_lock,
                computed_lock: outcome.lock_ns.iter().sum::<u64>() as f64
                    / 1e6
                    / measure.as_secs_f64(),
            });
        }
    }
    Ok(Chapter { checks, points: curves(scenario, &cells) })
}

/// The headline cell with more workers, then with more connections.
fn curves(scenario: &Scenario, cells: &[Cell]) -> Vec<Point> {
    let headline = |cell: &&Cell| cell.scenario() == HEADLINE.0 && cell.block_bytes == HEADLINE.1;
    let Some(cell) = cells.iter().find(headline) else { return Vec::new() };
    let most = scenario.model_workers.iter().copied().max().unwrap_or(scenario.workers);
    let by_workers =
        scenario.model_workers.iter().map(|n| (Sweep::Workers, *n, *n, scenario.connections));
    let by_connections = scenario
        .model_connections
        .iter()
        .map(|n| (Sweep::Connections { workers: most }, *n, most, *n));
    let mut points = Vec::new();
    for (sweep, x, workers, connections) in by_workers.chain(by_connections) {
        for variant in &cell.variants {
            let placement =
                PlacementConfig { interval: CURVE_INTERVAL, ..placement(scenario, *variant) };
            let outcome = simulate(&Plan {
                cell: cell.clone(),
                workers,
                connections,
                warm_up: settling(placement, workers),
                measure: placement.interval * MEASURED_INTERVALS,
                placement,
            });
            points.push(Point { sweep, x, mapping: variant.name(), outcome });
        }
    }
    points
}

/// Time before the measured one.
fn settling(placement: PlacementConfig, workers: usize) -> Duration {
    let intervals = WARM_UP_INTERVALS + if placement.mapping.is_adjusted() { workers } else { 0 };
    placement.interval * u32::try_from(intervals).unwrap_or(u32::MAX)
}

impl Chapter {
    /// The curves.
    pub(crate) fn figures(&self) -> Vec<Drawn> {
        let mut panels = Vec::new();
        for sweep in self.sweeps() {
            let (title, x_label) = match sweep {
                Sweep::Workers => ("more workers".to_owned(), "workers"),
                Sweep::Connections { workers } => {
                    (format!("more connections, {workers} workers"), "connections")
                }
            };
            for (y_label, of) in METRICS {
                let line = |mapping: &&str| {
                    let own =
                        self.points.iter().filter(|p| p.sweep == sweep && p.mapping == *mapping);
                    own.map(|point| (point.x as f64, of(&point.outcome))).collect()
                };
                panels.push(Panel {
                    title: title.clone(),
                    x_label: x_label.into(),
                    y_label: y_label.into(),
                    reference: None,
                    y_max: None,
                    plot: Plot::Lines {
                        points: self.mappings().iter().map(line).collect(),
                        logarithmic: true,
                    },
                });
            }
        }
        if panels.is_empty() {
            return Vec::new();
        }
        let caption = format!(
            "Model: {} {}, with more workers and connections",
            HEADLINE.0,
            size_name(HEADLINE.1)
        );
        let figure = Figure {
            title: caption.clone(),
            note: "Computed by the discrete-event model, not measured.".into(),
            styles: self.mappings().into_iter().map(look).collect(),
            columns: 2,
            panel: (430.0, 280.0),
            panels,
        };
        vec![Drawn { file: "fig-model.svg", caption, svg: figure.draw() }]
    }

    /// Rows of `summary.json`; their scenario says that they were computed.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for point in &self.points {
            let base = self.points.iter().find(|p| {
                p.sweep == point.sweep && p.x == point.x && p.mapping == Mapping::RoundRobin.name()
            });
            let name = match point.sweep {
                Sweep::Workers => format!("model/workers-{}", point.x),
                Sweep::Connections { workers } => {
                    format!("model/workers-{workers}/connections-{}", point.x)
                }
            };
            type Of = fn(&Outcome) -> f64;
            let metrics: [(&'static str, Of); 2] =
                [("ops_per_s", |o| o.ops_per_s), ("mean_us", |o| o.mean_us)];
            for (metric, of) in metrics {
                let (value, base) =
                    (of(&point.outcome), base.map_or(0.0, |base| of(&base.outcome)));
                let scenario = name.clone();
                let row = RowOf {
                    scenario,
                    mapping: point.mapping,
                    block_bytes: HEADLINE.1,
                    metric,
                    value,
                    base,
                    runs: 1,
                };
                rows.push(row.row());
            }
        }
        rows
    }

    /// The chapter in the report.
    pub(crate) fn text(&self) -> String {
        let mut out = String::from(
            "\n## The model\n\nA discrete-event model of the same system (workers' turns, locks, marks, `max_events`, and the real \
             `placement::threads`) with the scenario's service times. Against blocking mode at the scenario's number of workers:\n\n\
             | cell | block | mapping | measured ops/s | computed | deviation | mean ms: measured | computed | lock ms/s: measured | computed |\n|---|---|---|---|---|---|---|---|---|---|\n",
        );
        for check in &self.checks {
            out.push_str(&format!(
                "| {} | {} | {} | {:.0} | {:.0} | {:+.1}% | {:.2} | {:.2} | {:.0} | {:.0} |\n",
                check.scenario,
                size_name(check.block_bytes),
                check.mapping,
                check.measured,
                check.computed,
                check.deviation() * 100.0,
                check.measured_us / 1e3,
                check.computed_us / 1e3,
                check.measured_lock,
                check.computed_lock
            ));
        }
        out.push_str(&self.deviations());
        for sweep in self.sweeps() {
            out.push_str(&self.sweep_table(sweep));
        }
        out.push('\n');
        out
    }

    /// How far the model is off, by mapping, and in the cell from which the curves start.
    fn deviations(&self) -> String {
        let mut out = String::from(
            "\nDeviation of the computed throughput, whatever its sign. The curves below start from the cell of the last column:\n\n\
             | mapping | cells | median | largest | where | ",
        );
        out.push_str(&format!(
            "{} {} |\n|---|---|---|---|---|---|\n",
            HEADLINE.0,
            size_name(HEADLINE.1)
        ));
        let mut names: Vec<&str> = Vec::new();
        self.checks.iter().for_each(|check| {
            if !names.contains(&check.mapping) {
                names.push(check.mapping);
            }
        });
        for name in names {
            let own = || self.checks.iter().filter(|check| check.mapping == name);
            let off = |check: &Check| check.deviation().abs() * 100.0;
            let Some(worst) = own().max_by(|a, b| off(a).total_cmp(&off(b))) else { continue };
            let start =
                own().find(|check| check.scenario == HEADLINE.0 && check.block_bytes == HEADLINE.1);
            out.push_str(&format!(
                "| {name} | {} | {:.1}% | {:.1}% | {} {} | {} |\n",
                own().count(),
                crate::stats::median(own().map(off)),
                off(worst),
                worst.scenario,
                size_name(worst.block_bytes),
                start.map_or("not measured".into(), |check| format!("{:.1}%", off(check)))
            ));
        }
        out
    }

    fn sweep_table(&self, sweep: Sweep) -> String {
        let of_sweep = || self.points.iter().filter(|point| point.sweep == sweep);
        let mut xs: Vec<usize> = of_sweep().map(|point| point.x).collect();
        xs.dedup();
        let (what, head) = match sweep {
            Sweep::Workers => ("by the number of workers".to_owned(), "workers"),
            Sweep::Connections { workers } => {
                (format!("by the number of connections, {workers} workers"), "connections")
            }
        };
        let mappings = self.mappings();
        let mut out = format!("\nComputed ops/s (bytes per worker max/min) {what}:\n\n| {head} |");
        mappings.iter().for_each(|mapping| out.push_str(&format!(" {mapping} |")));
        out.push_str(&format!("\n|---|{}\n", "---|".repeat(mappings.len())));
        for x in xs {
            out.push_str(&format!("| {x} |"));
            for mapping in &mappings {
                let Some(point) = of_sweep().find(|p| p.x == x && p.mapping == *mapping) else {
                    continue;
                };
                let bytes = spread(point.outcome.bytes.iter().map(|b| *b as f64));
                let bytes =
                    if bytes.is_finite() { format!("{bytes:.1}") } else { "idle workers".into() };
                out.push_str(&format!(" {:.0} ({bytes}) |", point.outcome.ops_per_s));
            }
            out.push('\n');
        }
        out
    }

    fn sweeps(&self) -> Vec<Sweep> {
        let mut sweeps: Vec<Sweep> = self.points.iter().map(|point| point.sweep).collect();
        sweeps.dedup();
        sweeps
    }

    fn mappings(&self) -> Vec<&'static str> {
        let mut names = Vec::new();
        for point in &self.points {
            if !names.contains(&point.mapping) {
                names.push(point.mapping);
            }
        }
        names
    }
}

/// What the curves show.
type Of = fn(&Outcome) -> f64;
const METRICS: [(&str, Of); 2] =
    [("ops/s", |o| o.ops_per_s), ("mean latency (ms)", |o| o.mean_us / 1e3)];
