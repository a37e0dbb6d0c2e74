//! Figure 15: 4 KiB random writes through the client, with the daemon's path cut after dispatch, after PG processing,
//! and whole.
//!
//! Contract: as [`crate::daemon`]: the path is that of the paper's figure without its replication; the daemon is started
//! anew for each cell. A run in which writes were answered although the daemon used
//! next to no CPU is no measurement of the daemon: it is kept in the raw data, named in the report, and left out of medians.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use serde::Serialize;

use crate::daemon::{BLOCK_BYTES, CLIENTS, Daemon, IN_FLIGHT};
use crate::error::BenchError;
use crate::figures::look;
use crate::machine::{self, Machine};
use crate::report::{self, RowOf};
use crate::stats::median;
use plot::{Figure, Panel, Plot};

/// Workers of the OSD: as many as there are cores.
const MAPPINGS: [&str; 4] = ["round-robin", "lcam", "handoff", "core-affine"];
/// Name, `osd_path_cut`, `osd_objectstore`.
const PATHS: [(&str, &str, &str); 4] = [
    ("MsgrTest", "msgr", "memstore"),
    ("Msgr+PGTest", "msgr+pg", "memstore"),
    ("FullTest, memstore", "none", "memstore"),
    ("FullTest, file", "none", "file"),
];

#[derive(Parser)]
#[command(name = "datapath", about = "4 KiB random writes with the daemon's path cut, for each mapping (Figure 15)")]
struct Args {
    /// The daemon's program
    #[arg(long)]
    daemon: PathBuf,
    /// One short run of each cell
    #[arg(long)]
    quick: bool,
    /// Name of the run
    #[arg(long, default_value = "datapath")]
    name: String,
    /// Directory to write to; benches/runs/<date>-<name> unless given
    #[arg(long)]
    out: Option<PathBuf>,
    /// Passed by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

/// One run of a cell.
#[derive(Clone, Debug, Serialize)]
struct Measured {
    path: &'static str,
    mapping: &'static str,
    run: usize,
    writes: u64,
    writes_per_s: f64,
    mean_us: f64,
    /// CPU time of the daemon per write, in microseconds.
    daemon_cpu_us: f64,
}

/// CPU time of the daemon per write, in microseconds, below which it cannot have read the write from its socket.
const DAEMON_CPU_US_MIN: f64 = 0.5;

impl Measured {
    fn is_credible(&self) -> bool {
        self.writes > 0 && self.daemon_cpu_us >= DAEMON_CPU_US_MIN
    }
}

type Of = fn(&Measured) -> f64;
const METRICS: [(&str, Of); 3] =
    [("ops_per_s", |m| m.writes_per_s), ("mean_us", |m| m.mean_us), ("daemon_cpu_us", |m| m.daemon_cpu_us)];

/// Runs the bench with the arguments of the process.
pub fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(dir) => {
            println!("report: {}", dir.join("report.md").display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<PathBuf, BenchError> {
    let machine = Machine::look();
    let (runs, warm_up, measure) = if args.quick { (1, 50, 100) } else { (3, 400, 1000) };
    let mut measured: Vec<Measured> = Vec::new();
    for path in PATHS {
        for run in 0..runs {
            for mapping in MAPPINGS {
                let one = cell(args, path, mapping, run, (warm_up, measure))?;
                println!("{:18} {mapping:12} {:8.0} writes/s, {:.0} us", path.0, one.writes_per_s, one.mean_us);
                measured.push(one);
            }
        }
    }
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = args.out.clone().unwrap_or_else(|| machine::free_dir(&home.join("runs"), &args.name));
    write_report(&dir, &args.name, &machine, &measured, runs)?;
    Ok(dir)
}

fn cell(
    args: &Args,
    path: (&'static str, &str, &str),
    mapping: &'static str,
    run: usize,
    (warm_up_ms, measure_ms): (u64, u64),
) -> Result<Measured, BenchError> {
    let dir = tempfile::tempdir().map_err(BenchError::file(&std::env::temp_dir()))?;
    let settings = [
        ("MS_MAPPING", mapping.to_owned()),
        ("MS_PLACEMENT_INTERVAL_MS", "100".into()),
        ("OSD_OBJECTSTORE", path.2.into()),
        ("OSD_PATH_CUT", path.1.into()),
    ];
    let daemon = Daemon::start(&args.daemon, dir.path(), &settings)?;
    let written = daemon.write(true, Duration::from_millis(warm_up_ms), Duration::from_millis(measure_ms))?;
    Ok(Measured {
        path: path.0,
        mapping,
        run,
        writes: written.writes,
        writes_per_s: written.per_second(),
        mean_us: written.mean_us(),
        daemon_cpu_us: written.daemon_cpu_us(),
    })
}

fn value(measured: &[Measured], path: &str, mapping: &str, of: Of) -> f64 {
    let runs = measured.iter().filter(|m| m.path == path && m.mapping == mapping && m.is_credible());
    median(runs.map(of))
}

fn write_report(
    dir: &Path,
    name: &str,
    machine: &Machine,
    measured: &[Measured],
    runs: usize,
) -> Result<(), BenchError> {
    let mut rows = Vec::new();
    for (path, _, _) in PATHS {
        for mapping in MAPPINGS {
            for (metric, of) in METRICS {
                let (value, base) = (value(measured, path, mapping, of), value(measured, path, MAPPINGS[0], of));
                let scenario = format!("datapath/{path}/randwrite");
                rows.push(
                    RowOf { scenario, mapping, block_bytes: BLOCK_BYTES as u64, metric, value, base, runs }.row(),
                );
            }
        }
    }
    report::make_dirs(dir, &["figures"])?;
    report::put(&dir.join("summary.json"), &report::lines(&rows)?)?;
    report::put(&dir.join("raw.json"), &report::lines(measured)?)?;
    report::put(&dir.join("figures/fig-15-datapath.svg"), &figure(measured))?;
    report::put(&dir.join("report.md"), &text(name, machine, measured, runs))
}

fn figure(measured: &[Measured]) -> String {
    let panel = Panel {
        title: "4 KiB random writes".into(),
        x_label: "path".into(),
        y_label: "writes/s".into(),
        reference: None,
        y_max: None,
        plot: Plot::Bars {
            categories: PATHS.map(|(path, _, _)| path.to_owned()).to_vec(),
            values: MAPPINGS
                .map(|mapping| PATHS.map(|(path, _, _)| value(measured, path, mapping, |m| m.writes_per_s)).to_vec())
                .to_vec(),
        },
    };
    let figure = Figure {
        title: "Figure 15: throughput with the data path cut".into(),
        note: "Real CPU, workers = cores; one daemon, one OSD, eight clients.".into(),
        styles: MAPPINGS.map(look).to_vec(),
        columns: 1,
        panel: (760.0, 300.0),
        panels: vec![panel],
    };
    figure.draw()
}

fn text(name: &str, machine: &Machine, measured: &[Measured], runs: usize) -> String {
    let mut out = format!("# Figure 15, the data path cut: {name}\n\n");
    report::head(&mut out, "cargo xtask bench datapath", machine, machine::load_average());
    let _ = writeln!(
        out,
        "* Real CPU: one daemon process with all roles and one OSD (k = 1, m = 0, {} workers); {CLIENTS} clients with {IN_FLIGHT} writes in \
         flight each; {runs} runs, mappings in turn; medians\n",
        machine.cores
    );
    let _ = writeln!(
        out,
        "| path | mapping | writes/s | to round-robin | mean us | CPU of the daemon, us per write |\n|---|---|---|---|---|---|"
    );
    for (path, _, _) in PATHS {
        for mapping in MAPPINGS {
            let m = |of: Of| value(measured, path, mapping, of);
            let base = value(measured, path, MAPPINGS[0], |x| x.writes_per_s);
            let _ = writeln!(
                out,
                "| {path} | {mapping} | {:.0} | {:.2}x | {:.0} | {:.1} |",
                m(|x| x.writes_per_s),
                crate::stats::ratio(m(|x| x.writes_per_s), base),
                m(|x| x.mean_us),
                m(|x| x.daemon_cpu_us)
            );
        }
    }
    let strange: Vec<&Measured> = measured.iter().filter(|m| !m.is_credible()).collect();
    if !strange.is_empty() {
        let _ = writeln!(
            out,
            "\n**{} of {} runs are left out**: writes were answered although the daemon used no CPU worth mentioning, so that it cannot have seen \
             them. That is a defect of the system, not a speed:\n",
            strange.len(),
            measured.len()
        );
        for m in strange {
            let _ = writeln!(
                out,
                "* {}, {}, run {}: {:.0} writes/s, {:.3} us of the daemon each",
                m.path, m.mapping, m.run, m.writes_per_s, m.daemon_cpu_us
            );
        }
    }
    out.push_str("\n![Figure 15](figures/fig-15-datapath.svg)\n");
    out.push_str(NOT_SHOWN);
    out
}

const NOT_SHOWN: &str = "
## What this does not show

* Replication or coding: one OSD, one shard. More cores than the machine has: the clients share them with the daemon.
* A write here is answered once it is in the journal and handed to the kernel; it is not synced.
* Other work shared the cores during the run; see the load.
";
