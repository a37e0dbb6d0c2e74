//! What telemetry costs: a lock that nobody else wants, calls of the messenger, and writes through
//! a daemon, each with telemetry on and off in turns.
//!
//! Contract: real CPU, and each round measures both sides one behind the other, the first one first
//! in every other round. A cost is the median over rounds of what on took more than off in the same
//! round: what the machine does besides hits both sides of a round alike, or shows as the spread
//! that stands beside it. Nothing here asserts a time.

use std::fmt::Write;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::Parser;
use messenger::sync::{ContentionMutex, LockTable};
use messenger::{
    ConnectConfig, Connection, Layer, ListenConfig, Message, NoService, OperationTable, Runtime,
    RuntimeConfig, Service, TrafficClass, Worker,
};
use serde::Serialize;

use crate::daemon::{BLOCK_BYTES, Daemon, Done, Load, Program};
use crate::error::{BenchError, exit_code};
use crate::machine::{self, Machine};
use crate::report;
use crate::stats::{median, ratio};

/// The most that telemetry should cost.
const TARGET: f64 = 0.02;
const DEADLINE: Duration = Duration::from_secs(10);
/// Calls in flight.
const CALLS: usize = 16;

#[derive(Parser)]
#[command(
    name = "overhead",
    about = "What telemetry costs: locks, the messenger and a daemon, with it on and off in turns"
)]
struct Args {
    #[command(flatten)]
    program: Program,
    /// One short round of each
    #[arg(long)]
    quick: bool,
    /// Name of the run
    #[arg(long, default_value = "overhead")]
    name: String,
    /// Directory to write to; benches/runs/<date>-<name> unless given
    #[arg(long)]
    out: Option<PathBuf>,
    /// Passed by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

/// How long and how often.
struct Effort {
    rounds: usize,
    lock_loops: u32,
    calls: Duration,
    writes: Duration,
}

const WHOLE: Effort = Effort {
    rounds: 15,
    lock_loops: 5_000_000,
    calls: Duration::from_millis(700),
    writes: Duration::from_millis(1500),
};
const QUICK: Effort = Effort {
    rounds: 1,
    lock_loops: 10_000,
    calls: Duration::from_millis(30),
    writes: Duration::from_millis(100),
};

/// What is measured; of a time less is better, of a rate more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
enum Metric {
    LockNs,
    TimingNs,
    CallsPerS,
    WritesPerS,
    DaemonCpuUsPerWrite,
}

impl Metric {
    const ALL: [Metric; 5] = [
        Metric::LockNs,
        Metric::TimingNs,
        Metric::CallsPerS,
        Metric::WritesPerS,
        Metric::DaemonCpuUsPerWrite,
    ];

    /// Is it a part of the others, which the target is for?
    fn is_part(self) -> bool {
        matches!(self, Metric::LockNs | Metric::TimingNs)
    }

    fn words(self) -> &'static str {
        match self {
            Metric::LockNs => "uncontended lock and unlock, ns (off: the bare mutex)",
            Metric::TimingNs => {
                "begin and end of an operation that is timed, ns (off: one that is not)"
            }
            Metric::CallsPerS => "empty calls of the messenger, per s",
            Metric::WritesPerS => "4 KiB writes to a daemon, per s",
            Metric::DaemonCpuUsPerWrite => "CPU of the daemon for one of them, us",
        }
    }

    /// How much more the first took than the second, as a share.
    fn cost(self, on: f64, off: f64) -> f64 {
        match self {
            Metric::LockNs | Metric::TimingNs | Metric::DaemonCpuUsPerWrite => ratio(on, off) - 1.0,
            Metric::CallsPerS | Metric::WritesPerS => ratio(off, on) - 1.0,
        }
    }
}

/// One round of one metric.
#[derive(Clone, Copy, Debug, Serialize)]
struct Round {
    metric: Metric,
    round: usize,
    on: f64,
    off: f64,
}

/// A line of `summary.json`.
#[derive(Clone, Copy, Debug, Serialize)]
struct Summary {
    metric: Metric,
    on: f64,
    off: f64,
    cost: f64,
    cost_quartiles: [f64; 2],
    rounds: usize,
}

/// Runs the bench with the arguments of the process.
pub fn main() -> ExitCode {
    exit_code(run(&Args::parse()))
}

fn run(args: &Args) -> Result<PathBuf, BenchError> {
    let machine = Machine::look();
    let effort = if args.quick { QUICK } else { WHOLE };
    let (mut rounds, mut counted) = (Vec::new(), Vec::new());
    for round in 0..effort.rounds {
        let mut note = |metric, [on, off]: [f64; 2]| rounds.push(Round { metric, round, on, off });
        note(Metric::LockNs, both(round, |telemetry| Ok(lock_ns(telemetry, effort.lock_loops)))?);
        note(Metric::CallsPerS, both(round, |telemetry| calls_per_s(telemetry, effort.calls))?);
        note(
            Metric::TimingNs,
            both(round, |telemetry| Ok(timing_ns(telemetry, effort.lock_loops)))?,
        );
        let [on, off] = both(round, |telemetry| writes(args, telemetry, effort.writes))?;
        note(Metric::WritesPerS, [on.per_second(), off.per_second()]);
        note(Metric::DaemonCpuUsPerWrite, [on.daemon_cpu_us(), off.daemon_cpu_us()]);
        counted.push(on.counted_each());
        println!("round {} of {}", round + 1, effort.rounds);
    }
    let summaries = Metric::ALL.map(|metric| summary(metric, &rounds));
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = args.out.clone().unwrap_or_else(|| machine::free_dir(&home.join("runs"), &args.name));
    std::fs::create_dir_all(&dir).map_err(BenchError::file(&dir))?;
    report::put(&dir.join("summary.json"), &report::lines(&summaries)?)?;
    report::put(&dir.join("raw.json"), &report::lines(&rounds)?)?;
    report::put(&dir.join("report.md"), &text(&args.name, &machine, &summaries, &counted))?;
    Ok(dir)
}

/// Measures with telemetry on and off; on comes first in every other round.
fn both<T>(
    round: usize,
    mut measure: impl FnMut(bool) -> Result<T, BenchError>,
) -> Result<[T; 2], BenchError> {
    if round.is_multiple_of(2) {
        let on = measure(true)?;
        Ok([on, measure(false)?])
    } else {
        let off = measure(false)?;
        Ok([measure(true)?, off])
    }
}

/// Nanoseconds to lock and unlock once, around an increment, by one thread.
fn lock_ns(counted: bool, loops: u32) -> f64 {
    let each = |began: Instant| began.elapsed().as_nanos() as f64 / f64::from(loops);
    if counted {
        let mutex = ContentionMutex::new(&LockTable::default(), "bench", 0u64);
        let began = Instant::now();
        (0..loops).for_each(|_| *black_box(&mutex).lock() += 1);
        return each(began);
    }
    let mutex = parking_lot::Mutex::new(0u64);
    let began = Instant::now();
    (0..loops).for_each(|_| *black_box(&mutex).lock() += 1);
    each(began)
}

/// Nanoseconds to begin and end an operation once.
fn timing_ns(timed: bool, loops: u32) -> f64 {
    let operation = OperationTable::new(timed).operation(Layer::Pg, "bench");
    let began = Instant::now();
    (0..loops).for_each(|_| black_box(&operation).end(black_box(&operation).begin()));
    began.elapsed().as_nanos() as f64 / f64::from(loops)
}

struct Echo;

impl Service for Echo {
    fn on_message(&self, _: &Worker, connection: &Connection, message: Message) {
        connection.reply(&message, 2, Bytes::new(), message.data.clone());
    }
}

/// Empty calls from one worker to another.
fn calls_per_s(telemetry: bool, duration: Duration) -> Result<f64, BenchError> {
    let start =
        |name: &str| Runtime::start(RuntimeConfig { telemetry, ..RuntimeConfig::new(name, 1) });
    let (server, client) = (start("server")?, start("client")?);
    let cluster = protocol::ClusterId::new(1);
    let listen = ListenConfig::new(([127, 0, 0, 1], 0).into(), cluster, "server");
    let listener = server.handle().listen(listen, |_| Rc::new(Echo))?;
    let to = ConnectConfig::new(listener.local_addr(), cluster, "client");
    let connection = client.handle().connect(0, to, |_| Rc::new(NoService));
    let run = client.handle().block_on_worker(0, move |_| async move {
        let request = || Message::new(TrafficClass::Client, 1, Bytes::new(), Bytes::new());
        connection.call(request(), DEADLINE).await?;
        let (began, mut done) = (Instant::now(), 0usize);
        while began.elapsed() < duration {
            let calls: Vec<_> = (0..CALLS).map(|_| connection.call(request(), DEADLINE)).collect();
            for call in calls {
                call.await?;
            }
            done += CALLS;
        }
        Ok(done as f64 / began.elapsed().as_secs_f64())
    });
    drop(listener);
    client.shutdown();
    server.shutdown();
    run.unwrap_or(Err(BenchError::Gone))
}

/// Writes to a daemon of its own over a memstore.
fn writes(args: &Args, telemetry: bool, duration: Duration) -> Result<Done, BenchError> {
    let dir = tempfile::tempdir().map_err(BenchError::file(&std::env::temp_dir()))?;
    let settings =
        [("OSD_OBJECTSTORE", "memstore".to_owned()), ("TELEMETRY", telemetry.to_string())];
    let daemon = Daemon::start(&args.program.path()?, dir.path(), &settings)?;
    daemon.run(Load::WRITES, telemetry, duration / 3, duration)
}

fn summary(metric: Metric, rounds: &[Round]) -> Summary {
    let of: Vec<&Round> = rounds.iter().filter(|round| round.metric == metric).collect();
    let mut costs: Vec<f64> = of.iter().map(|round| metric.cost(round.on, round.off)).collect();
    costs.sort_by(f64::total_cmp);
    let at = |quarter: usize| {
        costs.get((costs.len().saturating_sub(1) * quarter + 2) / 4).copied().unwrap_or(0.0)
    };
    Summary {
        metric,
        on: median(of.iter().map(|round| round.on)),
        off: median(of.iter().map(|round| round.off)),
        cost: median(costs.iter().copied()),
        cost_quartiles: [at(1), at(3)],
        rounds: of.len(),
    }
}

fn text(name: &str, machine: &Machine, summaries: &[Summary], counted: &[[f64; 2]]) -> String {
    let mut out = format!("# What telemetry costs: {name}\n\n");
    report::head(&mut out, "cargo xtask bench overhead", machine, machine::load_average());
    let _ = writeln!(
        out,
        "* {} rounds, each with telemetry on and off, in turns; medians. The messenger: two workers, {CALLS} calls in flight. \
         The daemon: all roles in a process, one OSD over a memstore, {} clients in another process with {} random \
         writes of {BLOCK_BYTES} B in flight each, which count and time as the daemon does.\n",
        counted.len(),
        Load::WRITES.clients,
        Load::WRITES.in_flight
    );
    let _ = writeln!(
        out,
        "| what | on | off | cost: median over rounds | middle half of the rounds | at most {:.0} % |\n|---|---|---|---|---|---|",
        TARGET * 100.0
    );
    for Summary { metric, on, off, cost, cost_quartiles: [low, high], .. } in summaries {
        let verdict = match metric {
            _ if metric.is_part() => "",
            _ if *cost <= TARGET => "met",
            _ => "not met",
        };
        let digits = if metric.is_part() || *metric == Metric::DaemonCpuUsPerWrite { 2 } else { 0 };
        let _ = writeln!(
            out,
            "| {} | {on:.digits$} | {off:.digits$} | {:+.1} % | {:+.1} to {:+.1} % | {verdict} |",
            metric.words(),
            cost * 100.0,
            low * 100.0,
            high * 100.0
        );
    }
    out.push_str(&where_it_goes(summaries, counted));
    out.push_str(NOT_SHOWN);
    out
}

/// What the parts explain of the daemon's cost, by what its metrics counted.
fn where_it_goes(summaries: &[Summary], counted: &[[f64; 2]]) -> String {
    let more = |metric: Metric| {
        let of = summaries.iter().find(|summary| summary.metric == metric);
        of.map_or(0.0, |summary| summary.on - summary.off)
    };
    let each = |which: usize| median(counted.iter().map(|counts| counts[which]));
    let (timing_ns, lock_ns) = (more(Metric::TimingNs), more(Metric::LockNs));
    let parts_ns = each(0) * timing_ns + each(1) * lock_ns;
    format!(
        "\nFor each write the daemon timed {:.1} operations, at {timing_ns:.0} ns each, and took {:.1} locks that count, at {lock_ns:.1} ns each more than \
         a bare one: {parts_ns:.0} ns by the first two lines of the table, of {:.0} ns by its last. The rest is not attributed.\n",
        each(0),
        each(1),
        more(Metric::DaemonCpuUsPerWrite) * 1e3
    )
}

const NOT_SHOWN: &str = "
## What this does not show

* Contended locks: a wait costs a thousand times more than its counting. Locks of many threads or in cold caches.
* The FUSE layer, which takes two readings of the clock and two additions for a request of some tens of microseconds.
* Disks: over a memstore the rest of the path is as short as it gets, so that the share of telemetry is the largest.
* Other work shared the cores during the run; where the middle half of the rounds is wide, the median says little.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_of_the_same_round_and_signed() {
        let round = |round, on, off| Round { metric: Metric::CallsPerS, round, on, off };
        let rounds = [round(0, 100.0, 110.0), round(1, 50.0, 51.0), round(2, 200.0, 200.0)];
        let calls = summary(Metric::CallsPerS, &rounds);
        assert!((calls.cost - 0.02).abs() < 1e-9, "{calls:?}");
        assert_eq!((calls.on, calls.off, calls.rounds), (100.0, 110.0, 3));
        assert!(Metric::LockNs.cost(3.0, 2.0) > 0.0 && Metric::WritesPerS.cost(3.0, 2.0) < 0.0);
        assert_eq!(summary(Metric::LockNs, &rounds).rounds, 0);
    }

    #[test]
    fn both_sides_take_turns_at_the_first_place() {
        let mut order = Vec::new();
        for round in 0..2 {
            let got = both(round, |on| {
                order.push(on);
                Ok(on)
            });
            assert!(got.is_ok_and(|got| got == [true, false]));
        }
        assert_eq!(order, [true, false, false, true]);
    }
}
