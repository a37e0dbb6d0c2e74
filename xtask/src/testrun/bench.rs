//! The benches of the LCAM paper's figures, overhead, classes and consistency for a few seconds:
//! they must run and write everything that a report has. What they measure in so short a time is
//! not looked at.

use super::report::Report;
use crate::error::{Context, Outcome, ensure};
use crate::exec::{self, Interrupt};
use crate::workspace;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Building the bench, and running it.
const BUILD_AND_RUN_MAX: Duration = Duration::from_secs(1200);
/// Largest file that a report may put into git.
const FILE_BYTES_MAX: u64 = 1 << 20;
const FIGURES: [&str; 8] = [
    "fig-02-12-busy.svg",
    "fig-02-12-bytes.svg",
    "fig-04-13-lock-time.svg",
    "fig-05-events.svg",
    "fig-10-throughput.svg",
    "fig-11-latency.svg",
    "fig-lock-share.svg",
    "fig-model.svg",
];

const CONSISTENCY_FIGURES: [&str; 5] = [
    "fig-4-1-randread.svg",
    "fig-4-2-randwrite.svg",
    "fig-4-3-clients.svg",
    "fig-few-files.svg",
    "fig-where-from.svg",
];

/// Runs it and looks at what it wrote.
///
/// # Errors
/// Only on Ctrl-C.
pub fn run(report: &mut Report, interrupt: &Interrupt) -> Outcome {
    let dir = tempfile::tempdir().doing(|| "cannot make a directory")?;
    let out = dir.path().join("figures");
    report.case(
        "bench",
        "figures --quick writes complete reports and one page of figures",
        || {
            // Through cargo: the tests before have built this program anew.
            let mut command = Command::new(workspace::cargo());
            command.current_dir(workspace::root());
            command.args(["xtask", "bench", "figures", "--quick", "--out"]).arg(&out);
            exec::run_ok(&mut command, BUILD_AND_RUN_MAX, interrupt)?;
            check_summary(&out.join("contention"))?;
            check_files(&out.join("contention"))?;
            check_datapath(&out.join("datapath"))?;
            check_page(&out)
        },
    )?;
    let out = dir.path().join("overhead");
    report.case("bench", "overhead --quick writes a complete report", || {
        let daemon = workspace::build_release(interrupt)?.join("osd-daemon");
        let mut command = Command::new(workspace::cargo());
        command.current_dir(workspace::root());
        command
            .args(["bench", "-p", "benches", "--bench", "overhead", "--", "--quick", "--daemon"])
            .arg(daemon);
        exec::run_ok(command.arg("--out").arg(&out), BUILD_AND_RUN_MAX, interrupt)?;
        check_overhead(&out)
    })?;
    let out = dir.path().join("classes");
    report.case(
        "bench",
        "classes --quick heals on both sides and writes a whole report",
        || {
            let daemon = workspace::build_release(interrupt)?.join("osd-daemon");
            let mut command = Command::new(workspace::cargo());
            command.current_dir(workspace::root());
            command.args([
                "bench", "-p", "benches", "--bench", "classes", "--", "--quick", "--daemon",
            ]);
            exec::run_ok(command.arg(daemon).arg("--out").arg(&out), BUILD_AND_RUN_MAX, interrupt)?;
            check_classes(&out)
        },
    )?;
    let out = dir.path().join("consistency");
    report.case(
        "bench",
        "consistency --quick keeps order in every mode and writes a complete report",
        || {
            let mut command = Command::new(workspace::cargo());
            command.current_dir(workspace::root());
            command
                .args([
                    "bench",
                    "-p",
                    "benches",
                    "--bench",
                    "consistency",
                    "--",
                    "--quick",
                    "--out",
                ])
                .arg(&out);
            exec::run_ok(&mut command, BUILD_AND_RUN_MAX, interrupt)?;
            check_consistency(&out)
        },
    )
}

/// No mode that promises it leaves shards that do not fit together; every mode has every metric in
/// every cell.
fn check_consistency(out: &Path) -> Outcome {
    const MODES: [&str; 4] = ["cluster-lock", "cluster-lock-eager", "per-core-table", "per-core"];
    let looks = read_rows(&out.join("raw/order.json"))?;
    for mode in MODES {
        let of: Vec<_> = looks.iter().filter(|row| row["consistency"] == mode).collect();
        ensure!(of.len() == 2, "{} checks of the order of {mode}", of.len());
        ensure!(
            of.iter().all(|row| row["torn"] == 0),
            "{mode} left shards that do not fit together: {of:?}"
        );
    }
    let rows = read_rows(&out.join("summary.json"))?;
    let names = |field| rows.iter().map(|row| row[field].to_string()).collect::<BTreeSet<String>>();
    let (modes, metrics) = (names("mapping"), names("metric"));
    ensure!(modes.len() == MODES.len(), "modes of the summary: {modes:?}");
    let cells: BTreeSet<String> =
        rows.iter().map(|row| format!("{} {}", row["scenario"], row["block_size"])).collect();
    let wanted = cells.len() * modes.len() * metrics.len();
    ensure!(cells.len() >= 10 && rows.len() == wanted, "{} rows, expected {wanted}", rows.len());
    for row in rows.iter().filter(|row| row["metric"] == "ops_per_s") {
        ensure!(row["median"].as_f64().is_some_and(|ops| ops > 0.0), "nothing was served: {row}");
    }
    let report = read(&out.join("report.md"))?;
    for part in [
        "* Command:",
        "* Machine:",
        "## Targets",
        "## Is order kept?",
        "## gfid to core",
        "## What this does not show",
    ] {
        ensure!(report.contains(part), "the report lacks `{part}`");
    }
    check_figures(out, &report, &CONSISTENCY_FIGURES)
}

/// Each mapping on each way, and every way answered something.
fn check_datapath(out: &Path) -> Outcome {
    let rows = read_rows(&out.join("summary.json"))?;
    let ops: Vec<_> = rows.iter().filter(|row| row["metric"] == "ops_per_s").collect();
    ensure!(ops.len() == 5 * 7, "{} rows of throughput, expected 5 ways and 7 mappings", ops.len());
    for row in ops {
        ensure!(row["median"].as_f64().is_some_and(|ops| ops > 0.0), "nothing was answered: {row}");
    }
    let report = read(&out.join("report.md"))?;
    for part in [
        "* Command:",
        "## Targets",
        "MsgrTest",
        "Msgr+PGTest",
        "FullTest",
        "## What this does not show",
    ] {
        ensure!(report.contains(part), "the report lacks `{part}`");
    }
    Ok(())
}

/// Every figure of the page is there.
fn check_page(out: &Path) -> Outcome {
    let page = read(&out.join("figures.md"))?;
    let figures: Vec<&str> = page
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .map(|(to, _)| to)
        .collect();
    ensure!(figures.len() >= 12, "only {} links on the page", figures.len());
    for figure in figures {
        ensure!(out.join(figure).is_file(), "{figure} is missing");
    }
    Ok(())
}

/// Each class was served and each heal ended, with classes on and off.
fn check_classes(out: &Path) -> Outcome {
    let text = read(&out.join("report.md"))?;
    for part in ["* Command:", "* Machine:", "## Targets", "## What this does not show"] {
        ensure!(text.contains(part), "the report lacks `{part}`");
    }
    let queues = read_rows(&out.join("queues.json"))?;
    ensure!(queues.len() == 8, "{} rows, expected all classes and one alone, twice", queues.len());
    for row in &queues {
        ensure!(row["per_s"].as_f64().is_some_and(|rate| rate > 0.0), "starved: {row}");
    }
    let heals = read_rows(&out.join("heals.json"))?;
    ensure!(heals.len() == 2, "{} heals, expected one on each side", heals.len());
    for row in &heals {
        let reads = row["reads_healing"]["count"].as_u64();
        ensure!(reads.is_some_and(|reads| reads > 0), "nothing was read meanwhile: {row}");
    }
    Ok(())
}

/// Each metric was measured with telemetry on and off.
fn check_overhead(out: &Path) -> Outcome {
    let text = read(&out.join("report.md"))?;
    for part in [
        "* Command:",
        "* Commit:",
        "lock and unlock",
        "empty calls",
        "4 KiB writes",
        "## What this does not show",
    ] {
        ensure!(text.contains(part), "the report lacks `{part}`");
    }
    for file in ["summary.json", "raw.json"] {
        let rows = read_rows(&out.join(file))?;
        ensure!(rows.len() == 5, "{} rows in {file}", rows.len());
        for row in &rows {
            let positive = |field: &str| row[field].as_f64().is_some_and(|value| value > 0.0);
            ensure!(positive("on") && positive("off"), "not measured: {row}");
        }
    }
    Ok(())
}

fn read(path: &Path) -> Outcome<String> {
    std::fs::read_to_string(path).doing(|| format!("cannot read {}", path.display()))
}

fn read_rows(path: &Path) -> Outcome<Vec<serde_json::Value>> {
    serde_json::from_str(&read(path)?).doing(|| format!("{} is not JSON", path.display()))
}

/// Every mapping has a row of every metric in every cell, from at least one run.
fn check_summary(out: &Path) -> Outcome {
    let rows = read_rows(&out.join("summary.json"))?;
    let text =
        |row: &serde_json::Value, name: &str| row[name].as_str().unwrap_or_default().to_owned();
    let measured: Vec<&serde_json::Value> =
        rows.iter().filter(|row| !text(row, "scenario").starts_with("model/")).collect();
    let names = |name| measured.iter().map(|row| text(row, name)).collect::<BTreeSet<String>>();
    let (scenarios, mappings, metrics) = (names("scenario"), names("mapping"), names("metric"));
    ensure!(
        scenarios.len() >= 9,
        "only {} scenarios were measured: {scenarios:?}",
        scenarios.len()
    );
    for mapping in
        ["round-robin", "traffic-aware", "shared", "lcam", "lcam-damped", "handoff", "core-affine"]
    {
        ensure!(mappings.contains(mapping), "mapping {mapping} is missing");
    }
    let cells: BTreeSet<(String, String)> =
        measured.iter().map(|row| (text(row, "scenario"), text(row, "block_size"))).collect();
    let wanted = cells.len() * mappings.len() * metrics.len();
    ensure!(measured.len() == wanted, "{} rows, expected {wanted}", measured.len());
    for row in &measured {
        ensure!(row["runs"].as_u64().is_some_and(|runs| runs > 0), "a row without runs: {row}");
        ensure!(
            row.get("median").is_some() && row.get("ratio").is_some(),
            "a row without numbers: {row}"
        );
    }
    let served = measured.iter().filter(|row| row["metric"] == "ops_per_s");
    for row in served {
        ensure!(row["median"].as_f64().is_some_and(|ops| ops > 0.0), "nothing was served: {row}");
    }
    ensure!(rows.len() > measured.len(), "the model has no rows");
    Ok(())
}

/// The report shows the figures, and they are whole.
fn check_figures(out: &Path, report: &str, figures: &[&str]) -> Outcome {
    for figure in figures {
        ensure!(report.contains(figure), "the report does not show {figure}");
        let svg = read(&out.join("figures").join(figure))?;
        ensure!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{figure} is not whole");
        ensure!(!svg.contains("NaN"), "{figure} has a coordinate that is no number");
    }
    Ok(())
}

/// Report, figures and raw data are there, whole, and small enough for git.
fn check_files(out: &Path) -> Outcome {
    let report = read(&out.join("report.md"))?;
    for part in [
        "* Command:",
        "* Commit:",
        "* Machine:",
        "## Targets",
        "## The model",
        "## What this does not show",
    ] {
        ensure!(report.contains(part), "the report lacks `{part}`");
    }
    check_figures(out, &report, &FIGURES)?;
    let mut files = 0;
    for entry in std::fs::read_dir(out.join("raw")).doing(|| "cannot list the raw data")? {
        let path = entry.doing(|| "cannot list the raw data")?.path();
        let samples = read_rows(&path)?;
        ensure!(!samples.is_empty(), "{} is empty", path.display());
        let bytes = path.metadata().doing(|| format!("cannot look at {}", path.display()))?.len();
        ensure!(bytes < FILE_BYTES_MAX, "{} has {bytes} bytes", path.display());
        files += 1;
    }
    ensure!(files >= 9, "only {files} files of raw data");
    Ok(())
}
