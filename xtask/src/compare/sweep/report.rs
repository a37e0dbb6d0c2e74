//! Text, tables and figures of a sweep, from its samples. Nothing is measured, read or written
//! here.

use super::Plan;
use crate::compare::cells::Cell;
use crate::compare::locks;
use crate::compare::origin::Origin;
use crate::compare::sample::{Samples, TREFOIL, rounded};
use crate::compare::system::{Setting, Variant};
use plot::{Figure, Panel, Plot, style};
use std::fmt::Write;

/// Width and height of a panel.
const PANEL: (f64, f64) = (380.0, 280.0);
/// What is shown over the requests in flight: metric, what it is, unit, and how many of its own
/// unit are one of that.
const SHOWN: [(&str, &str, &str, f64); 3] = [
    ("ops_per_s", "Throughput", "operations per s", 1.0),
    ("p99_us", "99th percentile of latency", "ms", 1e3),
    ("cpu_machine_us", "CPU of the whole machine", "us per operation", 1.0),
];

/// The cells as sections of the report: those of one name together.
fn sections(cells: &[Cell]) -> impl Iterator<Item = &[Cell]> {
    cells.chunk_by(|a, b| a.name == b.name)
}

/// Is a section of one cell with several numbers of requests in flight?
fn is_series(section: &[Cell]) -> bool {
    section.iter().all(|cell| cell.in_flight.is_some())
}

fn file_of(section: &[Cell]) -> String {
    format!("{}.svg", section[0].name)
}

/// Files of figures, and what is in them: one for each cell that was measured with several numbers
/// of requests in flight.
pub(super) fn figures(plan: &Plan, samples: &Samples) -> Vec<(String, String)> {
    let series = sections(&plan.cells).filter(|section| is_series(section));
    series.map(|section| (file_of(section), figure(plan, section, samples).draw())).collect()
}

/// How a setting is called in a legend: by its value alone where all are of one key.
fn label(plan: &Plan, variant: &Variant) -> String {
    let keys = plan.variants.iter().filter_map(|variant| Some(&variant.changed.as_ref()?.key));
    match &variant.changed {
        None => "defaults".to_owned(),
        Some(changed) if keys.into_iter().all(|key| *key == changed.key) => changed.value.clone(),
        Some(changed) => changed.text(),
    }
}

fn figure(plan: &Plan, section: &[Cell], samples: &Samples) -> Figure {
    let line = |variant: &Variant, metric: &str, scale: f64| {
        let point = |cell: &Cell| {
            let value = samples.median(&cell.title(), &variant.name(), metric)?;
            Some((f64::from(cell.in_flight?), value / scale))
        };
        section.iter().filter_map(point).collect::<Vec<_>>()
    };
    let panel = |(metric, title, unit, scale): (&str, &str, &str, f64)| Panel {
        title: title.to_owned(),
        x_label: "requests in flight".to_owned(),
        y_label: unit.to_owned(),
        reference: None,
        y_max: None,
        plot: Plot::Lines {
            points: plan.variants.iter().map(|variant| line(variant, metric, scale)).collect(),
            logarithmic: true,
        },
    };
    let styles =
        plan.variants.iter().enumerate().map(|(at, variant)| style(at, &label(plan, variant)));
    Figure {
        title: format!("{}: {}", section[0].name, plan.name),
        note: format!(
            "medians of {} runs of {} s; 2+1, clients, daemons and load on one machine",
            plan.sizes.runs, plan.sizes.seconds
        ),
        styles: styles.collect(),
        columns: SHOWN.len(),
        panel: PANEL,
        panels: SHOWN.map(panel).to_vec(),
    }
}

/// `report.md`.
pub(super) fn text(plan: &Plan, origin: &Origin, samples: &Samples) -> String {
    let mut out = String::new();
    head(&mut out, plan, origin);
    failures(&mut out, samples);
    for section in sections(&plan.cells) {
        let _ = writeln!(out, "\n## {}\n", section[0].name);
        if is_series(section) {
            over_in_flight(&mut out, plan, section, samples);
        } else {
            one_cell(&mut out, plan, &section[0], samples);
        }
        if let Some(deepest) = section.last() {
            lock_table(&mut out, plan, deepest, samples);
        }
    }
    out.push_str(NOT_SHOWN);
    out
}

fn head(out: &mut String, plan: &Plan, origin: &Origin) {
    let _ = writeln!(out, "# One setting at a time: {}\n", origin.name);
    let _ = writeln!(out, "* Command: `{}`", origin.command);
    let _ = writeln!(
        out,
        "* Commit: {}; begun {} UTC; load average then {:.1}",
        origin.commit, origin.begun, origin.load_before
    );
    let _ = writeln!(out, "* Machine: {}; data on {}", origin.machine, origin.disk);
    let _ = writeln!(
        out,
        "* A 2+1 cluster of processes and a mount for each value and for the defaults (`{TREFOIL}`), all at once; each cell on all of them in \
         turn, {} runs; {}, {} s, files of {} MiB for each job.",
        plan.sizes.runs, origin.fio, plan.sizes.seconds, plan.sizes.file_mib
    );
    if let Some(Variant { with, slow, .. }) = plan.variants.first() {
        if !with.is_empty() {
            let with: Vec<String> = with.iter().map(Setting::text).collect();
            let _ = writeln!(out, "* **In all of them, `{TREFOIL}` too: `{}`**", with.join("`, `"));
        }
        let _ = slow.iter().try_for_each(|slow| writeln!(out, "* **Slowed**: {}.", slow.words()));
    }
}

fn failures(out: &mut String, samples: &Samples) {
    for (sample, error) in samples.failures() {
        let why = error.lines().next().unwrap_or_default();
        let _ = writeln!(
            out,
            "* **Failed**: {}, `{}`, run {}: {why}",
            sample.cell, sample.system, sample.run
        );
    }
}

/// Of the defaults' value to this one's in each run: turned round, for what is asked is the
/// setting's worth.
fn of_defaults(samples: &Samples, cell: &str, name: &str, metric: &str) -> String {
    match samples.ratio(cell, name, metric).0 {
        Some(ratio) if ratio > 0.0 => format!("{:.2}x", 1.0 / ratio),
        _ => "-".to_owned(),
    }
}

fn one_cell(out: &mut String, plan: &Plan, cell: &Cell, samples: &Samples) {
    let _ = writeln!(out, "{}.\n", cell.about());
    let _ = writeln!(
        out,
        "| setting | median | of the defaults | p99 latency, us | CPU us per operation | of the defaults |\n|---|---|---|---|---|---|"
    );
    let title = cell.title();
    let speed =
        if samples.metrics(&title).contains("ops_per_s") { "ops_per_s" } else { "mb_per_s" };
    for name in plan.variants.iter().map(Variant::name) {
        let median = |metric: &str| shown(samples.median(&title, &name, metric));
        let _ = writeln!(
            out,
            "| `{name}` | {} | {} | {} | {} | {} |",
            median(speed),
            of_defaults(samples, &title, &name, speed),
            median("p99_us"),
            median("cpu_machine_us"),
            of_defaults(samples, &title, &name, "cpu_machine_us")
        );
    }
}

/// A table for each metric: a row for each setting, a column for each number of requests in flight.
fn over_in_flight(out: &mut String, plan: &Plan, section: &[Cell], samples: &Samples) {
    let _ =
        writeln!(out, "{}, and so on for each number of requests in flight.\n", section[0].about());
    let _ = writeln!(out, "![{}]({})", section[0].name, file_of(section));
    for (metric, what, unit, scale) in SHOWN {
        let counts: Vec<String> =
            section.iter().filter_map(|cell| Some(cell.in_flight?.to_string())).collect();
        let _ = writeln!(
            out,
            "\n{what}, {unit}, by requests in flight (in brackets: of the defaults):\n"
        );
        let _ = writeln!(
            out,
            "| setting | {} |\n|---|{}",
            counts.join(" | "),
            "---|".repeat(counts.len())
        );
        for name in plan.variants.iter().map(Variant::name) {
            let number = |cell: &Cell| {
                let title = cell.title();
                let median =
                    shown(samples.median(&title, &name, metric).map(|value| value / scale));
                if name == TREFOIL {
                    median
                } else {
                    format!("{median} ({})", of_defaults(samples, &title, &name, metric))
                }
            };
            let numbers: Vec<String> = section.iter().map(number).collect();
            let _ = writeln!(out, "| `{name}` | {} |", numbers.join(" | "));
        }
    }
}

fn lock_table(out: &mut String, plan: &Plan, cell: &Cell, samples: &Samples) {
    let title = cell.title();
    let _ = writeln!(
        out,
        "\nLocks during `{title}`, all runs together, those waited for longest first (all OSDs are one row):\n"
    );
    locks::head(out);
    for name in plan.variants.iter().map(Variant::name) {
        let runs =
            || samples.0.iter().filter(|sample| sample.cell == title && sample.system == name);
        locks::rows(
            out,
            &name,
            runs().map(|run| run.locks.clone()),
            runs().map(|run| run.operations).sum(),
        );
    }
}

fn shown(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value >= 1_000.0 => format!("{value:.0}"),
        Some(value) => rounded((value * 100.0).round() / 100.0).to_string(),
    }
}

const NOT_SHOWN: &str = "
`raw.jsonl`: one line per run of a cell, with its locks: all that were found taken, and those taken at least once in ten operations. `summary.json`:
one row per cell, metric and value, with the defaults as `trefoil`. A cell with `@N` was measured with N requests in flight.

## What this does not show

* One setting differs from the defaults at a time: what two of them do together is not measured.
* Clients, daemons and load share the cores of one machine and its loopback. A setting that spreads work over more cores than there are
  can only cost here.
* Locks are those of our programs: what threads wait for in the kernel, and in `fuser`, is not among them. A lock that counts costs a
  little more than one that does not.
* Medians of a few runs: differences of some per cent are noise.
";

#[cfg(test)]
mod tests {
    use super::super::tests::{plan, plan_with_in_flight};
    use super::*;
    use crate::compare::locks::LockUse;
    use crate::compare::sample::tests::sample;

    fn origin() -> Origin {
        Origin::look("test", "cargo xtask sweep", std::path::Path::new("/"))
    }

    #[test]
    fn a_cell_has_a_row_for_each_value_and_its_locks() {
        let plan = plan(&["a=1"]).unwrap();
        let mut samples = Samples::default();
        for (name, speed) in [("trefoil", 100.0), ("a=1", 150.0)] {
            samples.0.push(sample("randread-4k", name, 1, "ops_per_s", speed));
        }
        let lock = LockUse {
            place: "mount".into(),
            lock: "pool".into(),
            taken: 30,
            found_taken: 3,
            waited_ns: 9,
        };
        (samples.0[1].operations, samples.0[1].locks) = (10.0, vec![lock]);
        let text = text(&plan, &origin(), &samples);
        assert!(text.contains("| `a=1` | 150 | 1.50x | - | - | - |"), "{text}");
        assert!(
            text.contains("| `a=1` | mount | pool | 30 | 3 | 0.00 | 3.00 | 300.00 | 1 |"),
            "{text}"
        );
        assert!(figures(&plan, &samples).is_empty());
    }

    #[test]
    fn requests_in_flight_are_columns_and_a_figure() {
        let plan = plan_with_in_flight(&["mount.threads=1,4"], &[1, 8]);
        let mut samples = Samples::default();
        for (name, factor) in [("trefoil", 1.0), ("mount.threads=1", 2.0), ("mount.threads=4", 3.0)]
        {
            for in_flight in [1, 8] {
                let cell = format!("randread-4k@{in_flight}");
                samples.0.push(sample(
                    &cell,
                    name,
                    1,
                    "ops_per_s",
                    factor * 1000.0 * f64::from(in_flight),
                ));
            }
        }
        let text = text(&plan, &origin(), &samples);
        assert!(text.contains("| setting | 1 | 8 |"), "{text}");
        assert!(text.contains("| `mount.threads=4` | 3000 (3.00x) | 24000 (3.00x) |"), "{text}");
        let figures = figures(&plan, &samples);
        assert_eq!(figures[0].0, "randread-4k.svg");
        for words in ["requests in flight", ">defaults<", ">4<", "operations per s"] {
            assert!(figures[0].1.contains(words), "{words} is not in the figure");
        }
    }
}
