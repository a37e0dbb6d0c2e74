//! One run of one cell with one mapping: a server, its clients, and what both counted.
//!
//! Contract: server and clients are two runtimes of this process that speak over real sockets on
//! loopback. Connections are made one after the other, so that mappings that go by turn see them in
//! order. Counters are read at the beginning and the end of the measured time.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use bytes::Bytes;
use messenger::sync::block_on;
use messenger::{
    ConnectConfig, Connection, Handle, ListenConfig, Listener, NoService, Runtime, RuntimeConfig,
};
use protocol::ClusterId;
use serde::{Deserialize, Serialize};

use crate::error::BenchError;
use crate::load::{self, Phase, PhaseCell, Tally};
use crate::machine;
use crate::scenario::{Cell, Mode, Scenario, Variant};
use crate::server::{self, Request, Work};
use crate::targets::LOCKS;
use crate::telemetry::{self, ConnectionCounters};

/// Time between two looks at the workers' counters: a few turns of a busy worker.
const LOOK: Duration = Duration::from_millis(20);
/// For the first message of a connection.
const GREETING_MAX: Duration = Duration::from_secs(30);
/// Name of the server's runtime, and so of its threads.
const SERVER: &str = "bench";

/// What one run counted.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Sample {
    pub(crate) scenario: String,
    pub(crate) mode: Mode,
    pub(crate) mapping: String,
    pub(crate) block_bytes: u64,
    pub(crate) run: usize,
    pub(crate) seconds: f64,
    pub(crate) ops: u64,
    pub(crate) ops_per_s: f64,
    pub(crate) mb_per_s: f64,
    pub(crate) mean_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) ping_mean_us: f64,
    pub(crate) ping_p99_us: f64,
    /// Arrivals of an open loop that were dropped.
    pub(crate) dropped: u64,
    pub(crate) workers: Vec<WorkerSample>,
    pub(crate) connections: Vec<ConnectionSample>,
    /// Events per poll of each worker in each [`LOOK`]; kept where a figure shows them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) batches: Vec<Vec<f64>>,
}

/// What one worker did in the measured time.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct WorkerSample {
    /// Megabytes of data handled, both directions.
    pub(crate) mb: f64,
    pub(crate) messages: u64,
    /// Share of the time that service times took.
    pub(crate) busy: f64,
    /// Share of a CPU that its thread used.
    pub(crate) cpu: f64,
    pub(crate) polls: u64,
    pub(crate) events: u64,
}

/// What one connection did in the measured time.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct ConnectionSample {
    pub(crate) ops: u64,
    /// Time that workers waited for its lock.
    pub(crate) lock_ms: f64,
    pub(crate) acquisitions: u64,
    pub(crate) contended: u64,
    /// How often a worker found it taken and moved on.
    pub(crate) marks: u64,
    /// Workers assigned to it at the end.
    pub(crate) workers: usize,
}

impl Sample {
    /// The longest total lock time of a connection, in milliseconds.
    pub(crate) fn lock_ms_max(&self) -> f64 {
        self.connections.iter().map(|c| c.lock_ms).fold(0.0, f64::max)
    }

    /// The lock time of all connections, in milliseconds.
    pub(crate) fn lock_ms_sum(&self) -> f64 {
        self.connections.iter().map(|c| c.lock_ms).sum()
    }

    /// Share of the time that service times took of the worker with the least.
    pub(crate) fn busy_least(&self) -> f64 {
        self.workers.iter().map(|worker| worker.busy).fold(f64::MAX, f64::min)
    }

    /// The same of the worker with the most.
    pub(crate) fn busy_most(&self) -> f64 {
        self.workers.iter().map(|worker| worker.busy).fold(0.0, f64::max)
    }

    /// Connections that answered reads or writes.
    pub(crate) fn with_data(&self) -> impl Iterator<Item = &ConnectionSample> {
        self.connections.iter().filter(|connection| connection.ops > 0)
    }

    /// Share of attempts at connections' locks that found them taken.
    pub(crate) fn found_taken(&self) -> f64 {
        let sum = |of: fn(&ConnectionSample) -> u64| self.connections.iter().map(of).sum::<u64>();
        sum(|c| c.contended + c.marks) as f64 / sum(|c| c.acquisitions + c.marks).max(1) as f64
    }

    /// Readiness events of all workers per return of their polls.
    pub(crate) fn events_per_poll(&self) -> f64 {
        let (events, polls) =
            self.workers.iter().fold((0, 0), |(e, p), w| (e + w.events, p + w.polls));
        events as f64 / polls.max(1) as f64
    }
}

/// The data that blocks are cut from.
pub(crate) fn data() -> Bytes {
    Bytes::from((0..16usize << 20).map(|i| ((i * 31) >> 7) as u8).collect::<Vec<u8>>())
}

/// Workers of the server for a mode.
pub(crate) fn workers(scenario: &Scenario, mode: Mode) -> usize {
    match mode {
        Mode::Blocking => scenario.workers,
        Mode::Cpu => std::thread::available_parallelism().map_or(1, |n| n.get()),
    }
}

/// Requests that `workers` can answer each second, by the cell's service times.
pub(crate) fn capacity(cell: &Cell, workers: usize) -> f64 {
    workers as f64 / cell.mean_service().as_secs_f64()
}

/// Runs a cell once.
///
/// # Errors
/// When sockets or threads are refused, or a call fails.
pub(crate) fn run(
    scenario: &Scenario,
    cell: &Cell,
    variant: Variant,
    run: usize,
    data: &Bytes,
) -> Result<Sample, BenchError> {
    let workers = workers(scenario, cell.mode);
    let work: Arc<Vec<Work>> = Arc::new((0..workers).map(|_| Work::default()).collect());
    let server = Runtime::start(telemetry::server_config(SERVER, workers, cell))?;
    let client = Runtime::start(RuntimeConfig::new("load", 1))?;
    let times = (cell.mode == Mode::Blocking).then_some(cell.times);
    let config = telemetry::listen_config(
        scenario,
        variant,
        workers,
        ListenConfig::new(any_port(), ClusterId::new(1), "bench"),
    );
    let listener =
        server.handle().listen(config, server::factory(times, Arc::clone(&work), data.clone()))?;
    let connections =
        connect_all(scenario, cell, workers, &client.handle(), listener.local_addr(), data)?;
    let phase = PhaseCell::default();
    let (plan, capacity) = (cell.clone(), capacity(cell, workers));
    let (given, given_phase, given_data) = (connections.clone(), phase.clone(), data.clone());
    let tally = client.handle().run_on(0, move |worker| {
        load::generate(worker, given, plan, capacity, given_phase, given_data)
    });
    let (warm_up, measure) = scenario.times(cell);
    std::thread::sleep(warm_up);
    let watch = Watch { server: &server.handle(), listener: &listener, work: &work };
    let before = watch.look();
    phase.set(Phase::Measure);
    let batches = watch.batches(measure);
    let after = watch.look();
    phase.set(Phase::Stop);
    let tally = block_on(tally).map_err(|_| BenchError::Gone)?;
    connections.iter().for_each(Connection::close);
    client.shutdown();
    drop(listener);
    server.shutdown();
    if let Some(error) = tally.error {
        return Err(error.into());
    }
    Ok(sample(cell, variant, run, &before, &after, batches, &tally))
}

fn any_port() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

/// One connection after the other, each proved by a message.
fn connect_all(
    scenario: &Scenario,
    cell: &Cell,
    workers: usize,
    client: &Handle,
    addr: SocketAddr,
    data: &Bytes,
) -> Result<Vec<Connection>, BenchError> {
    let mut connections = Vec::with_capacity(scenario.connections);
    for index in 0..scenario.connections {
        let name = telemetry::connection_name(index);
        let config = ConnectConfig {
            lane: cell.traffic.lane(index, workers),
            ..ConnectConfig::new(addr, ClusterId::new(1), name)
        };
        let connection = client.connect(0, config, |_| std::rc::Rc::new(NoService));
        block_on(connection.call(Request::Ping.message(data), GREETING_MAX))?;
        connections.push(connection);
    }
    Ok(connections)
}

/// Counters at one moment.
struct Look {
    at: Instant,
    /// Bytes, messages, busy time in nanoseconds, CPU time in nanoseconds, polls, events; by
    /// worker.
    workers: Vec<[u64; 6]>,
    connections: Vec<ConnectionCounters>,
}

struct Watch<'a> {
    server: &'a Handle,
    listener: &'a Listener,
    work: &'a [Work],
}

impl Watch<'_> {
    fn look(&self) -> Look {
        let cpu = machine::thread_cpu_ns(SERVER, self.work.len());
        let stats = self.server.stats();
        let workers = self.work.iter().zip(&stats.workers).zip(cpu).map(|((work, stats), cpu)| {
            let (bytes, messages) = (work.bytes.load(Relaxed), work.messages.load(Relaxed));
            [bytes, messages, work.busy_ns.load(Relaxed), cpu, stats.polls, stats.events]
        });
        Look {
            at: Instant::now(),
            workers: workers.collect(),
            connections: telemetry::connections(self.listener),
        }
    }

    /// Waits for `time`, and keeps the events per poll of each worker in each [`LOOK`] in which it
    /// polled.
    fn batches(&self, time: Duration) -> Vec<Vec<f64>> {
        let until = Instant::now() + time;
        let mut series = vec![Vec::new(); self.work.len()];
        let mut last = self.server.stats();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return series;
            }
            std::thread::sleep(left.min(LOOK));
            let now = self.server.stats();
            for ((series, last), now) in series.iter_mut().zip(&last.workers).zip(&now.workers) {
                let polls = now.polls.saturating_sub(last.polls);
                if polls > 0 {
                    series.push(now.events.saturating_sub(last.events) as f64 / polls as f64);
                }
            }
            last = now;
        }
    }
}

fn sample(
    cell: &Cell,
    variant: Variant,
    run: usize,
    before: &Look,
    after: &Look,
    batches: Vec<Vec<f64>>,
    tally: &Tally,
) -> Sample {
    let seconds = after.at.duration_since(before.at).as_secs_f64();
    let shown = cell.scenario().starts_with(LOCKS.0) && cell.block_bytes == LOCKS.1;
    let ops = tally.data.count();
    let ops_per_s = ops as f64 / seconds;
    let share = |ns: u64| ns as f64 / 1e9 / seconds;
    let workers = before.workers.iter().zip(&after.workers).map(|(before, after)| {
        let [bytes, messages, busy, cpu, polls, events] =
            std::array::from_fn(|i| after[i].saturating_sub(before[i]));
        WorkerSample {
            mb: bytes as f64 / 1e6,
            messages,
            busy: share(busy),
            cpu: share(cpu),
            polls,
            events,
        }
    });
    let connections = tally.by_connection.iter().enumerate().map(|(index, ops)| {
        let lock = telemetry::difference(index, &before.connections, &after.connections);
        ConnectionSample {
            ops: *ops,
            lock_ms: lock.wait_ns as f64 / 1e6,
            acquisitions: lock.acquisitions,
            contended: lock.contended,
            marks: lock.marks,
            workers: lock.workers,
        }
    });
    Sample {
        scenario: cell.scenario(),
        mode: cell.mode,
        mapping: variant.name().to_owned(),
        block_bytes: cell.block_bytes,
        run,
        seconds,
        ops,
        ops_per_s,
        mb_per_s: ops_per_s * cell.block_bytes as f64 / 1e6,
        mean_us: tally.data.mean_us(),
        p50_us: tally.data.quantile_us(0.5),
        p99_us: tally.data.quantile_us(0.99),
        p999_us: tally.data.quantile_us(0.999),
        ping_mean_us: tally.pings.mean_us(),
        ping_p99_us: tally.pings.quantile_us(0.99),
        dropped: tally.dropped,
        workers: workers.collect(),
        connections: connections.collect(),
        batches: if shown { batches } else { Vec::new() },
    }
}
