//! Figure 15: 4 KiB random writes through the client, with the daemon's path cut after dispatch, after PG processing,
//! and whole.
//!
//! Contract: real CPU. One daemon process with all roles and one OSD (k = 1, m = 0), so that the path is that of the
//! paper's figure without its replication; started anew for each cell, on a fresh directory. The clients live in this
//! process, each with a worker and a session of its own. A run in which writes were answered although the daemon used
//! next to no CPU is no measurement of the daemon: it is kept in the raw data, named in the report, and left out of medians.

use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::Parser;
use client::{Client, ClientConfig, ClientError, FileRef, LocalIo, SizeHint};
use protocol::{Gfid, PoolId};
use serde::Serialize;

use crate::chart::{Figure, Panel, Plot};
use crate::error::BenchError;
use crate::figures::look;
use crate::machine::{self, Machine};
use crate::report::{self, RowOf};
use crate::stats::median;

const BLOCK_BYTES: usize = 4096;
/// Every client writes within a file of this size: small enough for a memstore, large enough for random writes.
const FILE_BYTES: u64 = 16 << 20;
const CLIENTS: usize = 8;
/// Writes in flight of each client.
const IN_FLIGHT: usize = 8;
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

/// A daemon that is killed when it is no longer needed.
struct Daemon {
    child: Child,
    monitor: SocketAddr,
}

impl Daemon {
    fn start(args: &Args, dir: &Path, path: (&str, &str, &str), mapping: &str) -> Result<Daemon, BenchError> {
        let [monitor, mds, osd] = free_ports().map_err(BenchError::file(dir))?;
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let log = std::fs::File::create(dir.join("log")).map_err(BenchError::file(dir))?;
        let settings = [
            ("DATA_DIR", dir.join("data").display().to_string()),
            ("MONITOR_ADDR", monitor.to_string()),
            ("MDS_LISTEN", mds.to_string()),
            ("OSD_LISTEN", osd.to_string()),
            ("OSD_COUNT", "1".into()),
            ("POOL_K", "1".into()),
            ("POOL_M", "0".into()),
            ("OSD_OP_THREADS", cores.to_string()),
            ("MS_MAPPING", mapping.into()),
            ("MS_PLACEMENT_INTERVAL_MS", "100".into()),
            ("OSD_OBJECTSTORE", path.2.into()),
            ("OSD_PATH_CUT", path.1.into()),
            ("LOG", "warn".into()),
        ];
        let child = Command::new(&args.daemon)
            .envs(settings.map(|(name, value)| (format!("TREFOIL_{name}"), value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(BenchError::file(&args.daemon))?;
        Ok(Daemon { child, monitor })
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended by itself; its log says why.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Ports that were free a moment ago.
fn free_ports() -> std::io::Result<[SocketAddr; 3]> {
    let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let held = [bind()?, bind()?, bind()?];
    Ok([held[0].local_addr()?, held[1].local_addr()?, held[2].local_addr()?])
}

/// Shared by the writers and whoever keeps the time.
#[derive(Default)]
struct Meter {
    measuring: AtomicBool,
    stop: AtomicBool,
    writes: AtomicU64,
    latency_ns: AtomicU64,
}

fn cell(
    args: &Args,
    path: (&'static str, &str, &str),
    mapping: &'static str,
    run: usize,
    (warm_up_ms, measure_ms): (u64, u64),
) -> Result<Measured, BenchError> {
    let dir = tempfile::tempdir().map_err(BenchError::file(&std::env::temp_dir()))?;
    let daemon = Daemon::start(args, dir.path(), path, mapping)?;
    let clients = (0..CLIENTS).map(|_| connect(&daemon)).collect::<Result<Vec<_>, _>>()?;
    let meter = Arc::new(Meter::default());
    let mut writers = Vec::new();
    for (index, (client, pool)) in clients.iter().enumerate() {
        for task in 0..IN_FLIGHT {
            let file = FileRef { gfid: Gfid::of_inode(1_000_000 + index as u64), pool: *pool };
            let (meter, seed) = (Arc::clone(&meter), (index * IN_FLIGHT + task) as u64);
            writers.push((client, client.run_on(0, move |io| write_randomly(io, file, meter, seed))));
        }
    }
    std::thread::sleep(Duration::from_millis(warm_up_ms));
    let (begin, cpu) = (Instant::now(), machine::process_cpu_ns(daemon.child.id()));
    meter.measuring.store(true, Relaxed);
    std::thread::sleep(Duration::from_millis(measure_ms));
    meter.measuring.store(false, Relaxed);
    let (elapsed, used) = (begin.elapsed(), machine::process_cpu_ns(daemon.child.id()).saturating_sub(cpu));
    meter.stop.store(true, Relaxed);
    for (client, writer) in writers {
        client.block_on(writer)?;
    }
    clients.iter().try_for_each(|(client, _)| client.close())?;
    let writes = meter.writes.load(Relaxed);
    let each = |ns: u64| ns as f64 / 1e3 / writes.max(1) as f64;
    Ok(Measured {
        path: path.0,
        mapping,
        run,
        writes,
        writes_per_s: writes as f64 / elapsed.as_secs_f64(),
        mean_us: each(meter.latency_ns.load(Relaxed)),
        daemon_cpu_us: each(used),
    })
}

fn connect(daemon: &Daemon) -> Result<(Client, PoolId), BenchError> {
    let config = ClientConfig { workers: 1, ..ClientConfig::new(daemon.monitor.to_string(), "datapath bench") };
    let client = Client::connect(config)?;
    let pool = client.map()?.pools.keys().next().copied().ok_or(ClientError::Closed)?;
    Ok((client, pool))
}

async fn write_randomly(io: LocalIo, file: FileRef, meter: Arc<Meter>, seed: u64) -> Result<(), ClientError> {
    let mut random = fastrand::Rng::with_seed(seed);
    let data = Bytes::from(vec![seed as u8; BLOCK_BYTES]);
    let blocks = FILE_BYTES / BLOCK_BYTES as u64;
    while !meter.stop.load(Relaxed) {
        let offset = random.u64(..blocks) * BLOCK_BYTES as u64;
        let begin = Instant::now();
        // Blocks are whole stripes, so what was there before is of no interest.
        let hint = SizeHint { zero_from: u64::MAX, size_after: FILE_BYTES };
        io.write(file, offset, data.clone(), hint).await?;
        if meter.measuring.load(Relaxed) {
            meter.writes.fetch_add(1, Relaxed);
            meter.latency_ns.fetch_add(u64::try_from(begin.elapsed().as_nanos()).unwrap_or(0), Relaxed);
        }
    }
    Ok(())
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
