//! Figure 15: 4 KiB random writes through the client, with the daemon's path cut after dispatch,
//! after PG processing, and whole; and 4 KiB random reads over the whole path, to hold against
//! Ceph's.
//!
//! Contract: as [`crate::daemon`]: the path is that of the paper's figure without its replication;
//! the daemon is started anew for each cell. A run in which operations were answered although the
//! daemon used next to no CPU shows a fault of the system: it is named in the report, left out of
//! medians, and the bench ends with an error.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use serde::Serialize;

use crate::daemon::{BLOCK_BYTES, Daemon, Done, Load, Program};
use crate::error::{BenchError, exit_code};
use crate::figures::look;
use crate::machine::{self, Machine};
use crate::report::{self, RowOf};
use crate::scenario::Variant;
use crate::stats::median;
use crate::targets::Verdict;
use placement::threads::{LcamRule, Mapping};
use plot::{Figure, Panel, Plot};

/// Every mapping, the one that the others are compared with first; the OSD has as many workers as
/// there are cores.
const VARIANTS: [Variant; 7] = [
    Variant { mapping: Mapping::RoundRobin, damped: false },
    Variant { mapping: Mapping::TrafficAware, damped: false },
    Variant { mapping: Mapping::Shared, damped: false },
    Variant { mapping: Mapping::Lcam, damped: false },
    Variant { mapping: Mapping::Lcam, damped: true },
    Variant { mapping: Mapping::Handoff, damped: false },
    Variant { mapping: Mapping::CoreAffine, damped: false },
];

/// How far operations go, and what they are.
struct Way {
    name: &'static str,
    /// `osd_path_cut`.
    cut: &'static str,
    /// `osd_objectstore`.
    store: &'static str,
    load: Load,
}

const WAYS: [Way; 5] = [
    Way { name: "MsgrTest", cut: "msgr", store: "memstore", load: Load::WRITES },
    Way { name: "Msgr+PGTest", cut: "msgr+pg", store: "memstore", load: Load::WRITES },
    Way { name: "FullTest, memstore", cut: "none", store: "memstore", load: Load::WRITES },
    Way { name: "FullTest, file", cut: "none", store: "file", load: Load::WRITES },
    Way { name: READS, cut: "none", store: "memstore", load: Load::READS },
];
/// Name of the way that is held against Ceph's.
const READS: &str = "reads, memstore";
/// CPU of client and OSD that a 4 KiB read took Ceph 16.2 over a memstore pool of size 1, measured
/// earlier on this kind of machine: 42 and 19 us.
const CEPH_READ_CPU_US: f64 = 61.0;

#[derive(Parser)]
#[command(
    name = "datapath",
    about = "4 KiB random writes with the daemon's path cut, for each mapping (Figure 15)"
)]
struct Args {
    #[command(flatten)]
    program: Program,
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
    ops: u64,
    ops_per_s: f64,
    mean_us: f64,
    /// CPU time of the daemon for each, in microseconds.
    daemon_cpu_us: f64,
    /// CPU time of the clients for each, in microseconds.
    client_cpu_us: f64,
}

/// CPU time of the daemon for an operation, in microseconds, below which it cannot have read it
/// from its socket.
const DAEMON_CPU_US_MIN: f64 = 0.5;

impl Measured {
    fn new(path: &'static str, mapping: &'static str, run: usize, done: &Done) -> Measured {
        Measured {
            path,
            mapping,
            run,
            ops: done.ops,
            ops_per_s: done.per_second(),
            mean_us: done.mean_us(),
            daemon_cpu_us: done.daemon_cpu_us(),
            client_cpu_us: done.client_cpu_us(),
        }
    }

    fn is_credible(&self) -> bool {
        self.daemon_cpu_us >= DAEMON_CPU_US_MIN
    }

    fn cpu_us(&self) -> f64 {
        self.daemon_cpu_us + self.client_cpu_us
    }
}

type Of = fn(&Measured) -> f64;
const METRICS: [(&str, Of); 4] = [
    ("ops_per_s", |m| m.ops_per_s),
    ("mean_us", |m| m.mean_us),
    ("daemon_cpu_us", |m| m.daemon_cpu_us),
    ("client_cpu_us", |m| m.client_cpu_us),
];

/// Name of the mapping that the others are compared with.
const BASE: &str = "round-robin";

/// Runs the bench with the arguments of the process.
pub fn main() -> ExitCode {
    exit_code(run(&Args::parse()))
}

fn run(args: &Args) -> Result<PathBuf, BenchError> {
    let machine = Machine::look();
    let (runs, warm_up, measure) = if args.quick { (1, 100, 200) } else { (3, 400, 1000) };
    let mut measured: Vec<Measured> = Vec::new();
    for way in &WAYS {
        for run in 0..runs {
            for variant in VARIANTS {
                let done = cell(
                    args,
                    way,
                    variant,
                    Duration::from_millis(warm_up),
                    Duration::from_millis(measure),
                )?;
                let one = Measured::new(way.name, variant.name(), run, &done);
                println!(
                    "{:18} {:13} {:8.0} ops/s, {:.0} us",
                    one.path, one.mapping, one.ops_per_s, one.mean_us
                );
                measured.push(one);
            }
        }
    }
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = args.out.clone().unwrap_or_else(|| machine::free_dir(&home.join("runs"), &args.name));
    write_report(&dir, &args.name, &machine, &measured, runs)?;
    match measured.iter().filter(|one| !one.is_credible()).count() {
        0 => Ok(dir),
        strange => Err(BenchError::Unseen { runs: strange, report: dir.join("report.md") }),
    }
}

fn cell(
    args: &Args,
    way: &Way,
    variant: Variant,
    warm_up: Duration,
    measure: Duration,
) -> Result<Done, BenchError> {
    let dir = tempfile::tempdir().map_err(BenchError::file(&std::env::temp_dir()))?;
    let rule = if variant.damped { LcamRule::Damped } else { LcamRule::AsPrinted };
    let settings = [
        ("MS_MAPPING", variant.mapping.to_string()),
        ("MS_LCAM_RULE", rule.to_string()),
        ("MS_PLACEMENT_INTERVAL_MS", "100".into()),
        ("OSD_OBJECTSTORE", way.store.into()),
        ("OSD_PATH_CUT", way.cut.into()),
    ];
    Daemon::start(&args.program.path()?, dir.path(), &settings)?
        .run(way.load, true, warm_up, measure)
}

fn value(measured: &[Measured], path: &str, mapping: &str, of: Of) -> f64 {
    let runs =
        measured.iter().filter(|m| m.path == path && m.mapping == mapping && m.is_credible());
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
    for Way { name: path, load, .. } in WAYS {
        for mapping in VARIANTS.map(Variant::name) {
            for (metric, of) in METRICS {
                let (value, base) =
                    (value(measured, path, mapping, of), value(measured, path, BASE, of));
                let scenario = format!(
                    "datapath/{path}/{}",
                    if load.reads { "randread" } else { "randwrite" }
                );
                rows.push(
                    RowOf {
                        scenario,
                        mapping,
                        block_bytes: BLOCK_BYTES as u64,
                        metric,
                        value,
                        base,
                        runs,
                    }
                    .row(),
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

/// The writes of the paper's figure.
fn figure(measured: &[Measured]) -> String {
    let paths: Vec<&str> = WAYS.iter().filter(|way| !way.load.reads).map(|way| way.name).collect();
    let bars = |mapping: &str| {
        paths.iter().map(|path| value(measured, path, mapping, |m| m.ops_per_s)).collect()
    };
    let mappings = VARIANTS.map(Variant::name);
    let panel = Panel {
        title: "4 KiB random writes".into(),
        x_label: "path".into(),
        y_label: "writes/s".into(),
        reference: None,
        y_max: None,
        plot: Plot::Bars {
            categories: paths.iter().map(|path| (*path).to_owned()).collect(),
            values: mappings.iter().map(|mapping| bars(mapping)).collect(),
        },
    };
    let figure = Figure {
        title: "Figure 15: throughput with the data path cut".into(),
        note: "Real CPU, workers = cores; one daemon, one OSD, eight clients.".into(),
        styles: mappings.map(look).to_vec(),
        columns: 1,
        panel: (760.0, 300.0),
        panels: vec![panel],
    };
    figure.draw()
}

fn ceph(measured: &[Measured]) -> Verdict {
    let cpu = value(measured, READS, Mapping::default().name(), Measured::cpu_us);
    Verdict::new(
        format!(
            "a 4 KiB read through client and daemon, `{}`: at most half the CPU of Ceph's over a memstore pool of size 1 ({CEPH_READ_CPU_US} us, not \
             measured in this run)",
            Mapping::default()
        ),
        (cpu > 0.0).then_some(cpu <= CEPH_READ_CPU_US / 2.0),
        format!("{cpu:.1} us of client and daemon: {:.2} of it", cpu / CEPH_READ_CPU_US),
    )
}

fn text(name: &str, machine: &Machine, measured: &[Measured], runs: usize) -> String {
    let mut out = format!("# Figure 15, the data path cut: {name}\n\n");
    report::head(&mut out, "cargo xtask bench datapath", machine, machine::load_average());
    let (writes, reads) = (Load::WRITES, Load::READS);
    let _ = writeln!(
        out,
        "* Real CPU: one daemon process with all roles and one OSD (k = 1, m = 0, {} workers); {} clients with {} writes of {BLOCK_BYTES} B in \
         flight each, or {} with {} reads; {runs} runs, mappings in turn; medians\n",
        machine.cores, writes.clients, writes.in_flight, reads.clients, reads.in_flight
    );
    report::verdicts(&mut out, &[ceph(measured)]);
    let _ = writeln!(
        out,
        "| path | mapping | ops/s | to {BASE} | mean us | CPU of the daemon, us per operation | of the clients |\n|---|---|---|---|---|---|---|"
    );
    for way in &WAYS {
        for mapping in VARIANTS.map(Variant::name) {
            let m = |of: Of| value(measured, way.name, mapping, of);
            let base = value(measured, way.name, BASE, |x| x.ops_per_s);
            let _ = writeln!(
                out,
                "| {} | {mapping} | {:.0} | {:.2}x | {:.0} | {:.1} | {:.1} |",
                way.name,
                m(|x| x.ops_per_s),
                crate::stats::ratio(m(|x| x.ops_per_s), base),
                m(|x| x.mean_us),
                m(|x| x.daemon_cpu_us),
                m(|x| x.client_cpu_us)
            );
        }
    }
    out.push_str(&unseen(measured));
    out.push_str("\n![Figure 15](figures/fig-15-datapath.svg)\n");
    out.push_str(NOT_SHOWN);
    out
}

/// Names the runs that are left out.
fn unseen(measured: &[Measured]) -> String {
    let strange: Vec<&Measured> = measured.iter().filter(|m| !m.is_credible()).collect();
    if strange.is_empty() {
        return "\nIn no run was anything answered that the daemon cannot have seen, by its CPU time.\n".into();
    }
    let mut out = format!(
        "\n**{} of {} runs are left out**: operations were answered although the daemon used no CPU worth mentioning, so that it cannot have \
         seen them. That is a defect of the system, not a speed:\n\n",
        strange.len(),
        measured.len()
    );
    for m in strange {
        let _ = writeln!(
            out,
            "* {}, {}, run {}: {:.0} ops/s, {:.3} us of the daemon each",
            m.path, m.mapping, m.run, m.ops_per_s, m.daemon_cpu_us
        );
    }
    out
}

const NOT_SHOWN: &str = "
## What this does not show

* Replication or coding: one OSD, one shard. More cores than the machine has: the clients share them with the daemon.
* A write here is answered once it is in the journal and handed to the kernel; it is not synced.
* Other work shared the cores during the run; see the load.
";
