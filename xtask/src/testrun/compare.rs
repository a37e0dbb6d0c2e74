//! `cargo xtask compare` with its smallest cells: the report must have every row, from every
//! system. What is measured in so short a time is not looked at.

use super::Bench;
use super::report::Report;
use crate::compare;
use crate::error::{Context, Outcome, ensure, fail};
use crate::exec;
use crate::workspace;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

/// Installing GlusterFS, setting up all systems and measuring, on a machine with much else to do.
const RUN_SECONDS_MAX: u64 = 900;
/// Peers of the run.
const PEERS: [&str; 2] = ["glusterfs", "ext4"];
/// Its cells, with a metric that says that something was done.
const CELLS: [(&str, &str); 10] = [
    ("randread-4k", "ops_per_s"),
    ("randwrite-4k", "ops_per_s"),
    ("fsync-4k", "ops_per_s"),
    ("create", "ops_per_s"),
    ("stat", "ops_per_s"),
    ("rename", "ops_per_s"),
    ("unlink", "ops_per_s"),
    ("tar-x", "ops_per_s"),
    ("rm-rf", "ops_per_s"),
    ("memory", "total_mib"),
];
/// Largest file that a report may put into git.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Runs it.
///
/// # Errors
/// Only on Ctrl-C.
pub fn run(bench: &Bench, report: &mut Report) -> Outcome {
    report.case("compare", "what makes no sense is refused, and told what would", || {
        bad_arguments(bench)
    })?;
    report.case(
        "compare",
        "a run beside GlusterFS and ext4 on a given disk writes a complete report and leaves nothing",
        || {
            let dir =
                tempfile::tempdir_in(workspace::target_dir(&bench.interrupt)?).doing(|| "cannot make a directory")?;
            let (out, disk) = (dir.path().join("run"), dir.path().join("disk"));
            std::fs::create_dir(&disk).doing(|| "cannot make a directory")?;
            let mut command = bench.xtask(&["compare", "--peer", &PEERS.join(","), "--cells", "smoke", "--out"]);
            let outcome = bench.run(command.arg(&out).arg("--disk").arg(&disk), RUN_SECONDS_MAX);
            if outcome.is_err() {
                // It may have been killed on our way out, with no time to clean up.
                compare::sweep(&compare::places_on(&disk));
            }
            outcome?;
            check_summary(&out)?;
            check_files(&out)?;
            let left = std::fs::read_dir(&disk).doing(|| "cannot list the disk")?.count();
            ensure!(left == 0, "the run has left something on its disk");
            Ok(())
        },
    )?;
    report.case(
        "compare",
        "a sweep of two settings measures each value beside the defaults",
        || {
            let dir = tempfile::tempdir().doing(|| "cannot make a directory")?;
            let out = dir.path().join("run");
            let mut command = bench.xtask(&[
                "sweep",
                "--set",
                "filestore_op_threads=1",
                "--set",
                "mount.buffer_pools=1",
            ]);
            command.args(["--size", "smoke", "--only", "randread-4k,create", "--out"]).arg(&out);
            bench
                .run(&mut command, RUN_SECONDS_MAX)
                .inspect_err(|_| compare::sweep(&compare::places(bench)))?;
            let text = read(&out.join("report.md"))?;
            for part in [
                "## randread-4k",
                "## create",
                "| `trefoil` |",
                "| `filestore_op_threads=1` |",
                "| `mount.buffer_pools=1` |",
            ] {
                ensure!(text.contains(part), "the report lacks `{part}`");
            }
            nothing_is_left(&compare::places(bench))
        },
    )?;
    report.case(
        "compare",
        "a sweep over requests in flight, with an OSD slowed, has a figure and the locks",
        || {
            let dir = tempfile::tempdir().doing(|| "cannot make a directory")?;
            let out = dir.path().join("run");
            let mut command = bench.xtask(&[
                "sweep",
                "--set",
                "mount.op_history=locked",
                "--set",
                "mount.read_policy=fastest",
            ]);
            command.args([
                "--with",
                "mount.hedge_delay=0.01",
                "--slow-osd",
                "5",
                "--iodepth",
                "2,1",
                "--size",
                "smoke",
            ]);
            command.args(["--only", "randread-4k", "--out"]).arg(&out);
            bench
                .run(&mut command, RUN_SECONDS_MAX)
                .inspect_err(|_| compare::sweep(&compare::places(bench)))?;
            check_series(&out)?;
            nothing_is_left(&compare::places(bench))
        },
    )
}

/// What a sweep over requests in flight has to write.
fn check_series(out: &Path) -> Outcome {
    let text = read(&out.join("report.md"))?;
    for part in [
        "**Slowed**: osd-1 of each cluster",
        "`mount.hedge_delay=0.01`",
        "![randread-4k](randread-4k.svg)",
        "| setting | 1 | 2 |",
        "Locks during `randread-4k@2`",
        "| mount | operation history |",
    ] {
        ensure!(text.contains(part), "the report lacks `{part}`:\n{text}");
    }
    let svg = read(&out.join("randread-4k.svg"))?;
    ensure!(
        svg.contains(">mount.read_policy=fastest<") && !svg.contains("NaN"),
        "the figure lacks a line: {svg}"
    );
    let raw = read(&out.join("raw.jsonl"))?;
    ensure!(
        raw.lines().count() == 6,
        "{} lines of raw data instead of three settings twice",
        raw.lines().count()
    );
    for line in raw.lines() {
        let sample: serde_json::Value =
            serde_json::from_str(line).doing(|| "raw.jsonl is not JSON")?;
        let is_used =
            |lock: &serde_json::Value| lock["taken"].as_u64().is_some_and(|taken| taken > 0);
        let locks = sample["locks"]
            .as_array()
            .is_some_and(|locks| !locks.is_empty() && locks.iter().all(is_used));
        ensure!(
            locks && sample["operations"].as_f64().is_some_and(|count| count > 0.0),
            "no locks in {line}"
        );
    }
    Ok(())
}

/// Directories are named after their processes.
fn nothing_is_left(work: &Path) -> Outcome {
    for entry in std::fs::read_dir(work).into_iter().flatten().flatten() {
        let owner = Path::new("/proc").join(entry.file_name());
        ensure!(owner.exists(), "the run has left {}", entry.path().display());
    }
    Ok(())
}

/// Each is refused before anything is set up, in words that name what there is.
fn bad_arguments(bench: &Bench) -> Outcome {
    let cases: [(&[&str], &str); 8] = [
        (&["--peer", "nfs"], "fuse-passthrough"),
        (&["--peer", "ext4,ext4"], "twice"),
        (&["--only", "randread-3k"], "randread-4k"),
        (&["--cells", "most"], "smoke"),
        (&["--with", "mount.threads"], "KEY=VALUE"),
        (&["--runs", "0"], "1..=100"),
        (&["--disk", "/no/such/disk"], "--disk /no/such/disk"),
        (&["--disk", "/dev/null"], "not a directory"),
    ];
    for (arguments, words) in cases {
        let mut command = bench.xtask(&["compare"]);
        let run = exec::run(command.args(arguments), Duration::from_secs(60), &bench.interrupt)?;
        ensure!(
            !run.ok() && run.stderr.contains(words),
            "{arguments:?} does not say `{words}`:\n{}",
            run.tail()
        );
    }
    Ok(())
}

/// Every cell has a row for each peer, with the numbers of all that have it.
fn check_summary(out: &Path) -> Outcome {
    let rows: Vec<serde_json::Value> = serde_json::from_str(&read(&out.join("summary.json"))?)
        .doing(|| "summary.json is not JSON")?;
    for (cell, metric) in CELLS {
        for peer in PEERS {
            let of_it = |row: &&serde_json::Value| {
                row["cell"] == cell && row["metric"] == metric && row["peer_name"] == peer
            };
            let Some(row) = rows.iter().find(of_it) else {
                return fail(format!("no row of {cell}, {metric}, {peer}"));
            };
            // A directory has no processes.
            let fields: &[&str] = if (cell, peer) == ("memory", "ext4") {
                &["trefoil"]
            } else {
                &["peer", "trefoil", "ratio"]
            };
            for field in fields {
                ensure!(
                    row[field].as_f64().is_some_and(|value| value > 0.0),
                    "no {field} in {row}"
                );
            }
        }
    }
    let cells: BTreeSet<&str> = rows.iter().filter_map(|row| row["cell"].as_str()).collect();
    ensure!(cells.len() == CELLS.len(), "cells that nobody asked for: {cells:?}");
    for row in &rows {
        for field in ["peer", "trefoil", "ratio"] {
            let value = &row[field];
            ensure!(
                value.is_null() || value.as_f64().is_some_and(|value| value >= 0.0),
                "{field} is no number: {row}"
            );
        }
    }
    Ok(())
}

/// Report and raw data are there, whole, and small enough for git.
fn check_files(out: &Path) -> Outcome {
    let report = read(&out.join("report.md"))?;
    for part in [
        "* Command:",
        "* Commit:",
        "* Machine:",
        "## Systems",
        "## Targets against `glusterfs`",
        "## What this does not show",
    ] {
        ensure!(report.contains(part), "the report lacks `{part}`");
    }
    for absent in ["## What failed", "NaN", " inf ", "was not over"] {
        ensure!(!report.contains(absent), "the report has `{absent}`:\n{report}");
    }
    ensure!(
        CELLS.iter().all(|(cell, _)| report.contains(&format!("| {cell} |"))),
        "a cell is not in the report"
    );
    let raw = read(&out.join("raw.jsonl"))?;
    let systems = PEERS.len() + 1;
    // No memory of a directory.
    ensure!(
        raw.lines().count() == CELLS.len() * systems - 1,
        "{} lines of raw data",
        raw.lines().count()
    );
    for name in ["report.md", "summary.json", "raw.jsonl", "run.json"] {
        let path = out.join(name);
        let bytes = path.metadata().doing(|| format!("cannot look at {}", path.display()))?.len();
        ensure!(0 < bytes && bytes < FILE_BYTES_MAX, "{name} has {bytes} bytes");
    }
    Ok(())
}

fn read(path: &Path) -> Outcome<String> {
    std::fs::read_to_string(path).doing(|| format!("cannot read {}", path.display()))
}
