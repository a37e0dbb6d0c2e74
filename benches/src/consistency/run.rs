//! One run of one cell in one mode: three servers, their clients, and what all of them counted.
//!
//! Contract: servers and clients are runtimes of this process that speak over real sockets on
//! loopback. Every file is written once before anything is counted. Counters are read at the
//! beginning and the end of the measured time.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ec_store::medium::{Dir, Memory};
use messenger::sync::{LockTable, block_on};
use messenger::{Runtime, RuntimeConfig};
use protocol::ShardIndex;
use serde::{Deserialize, Serialize};

use super::client::{Client, ClientConfig, Counters, gfid};
use super::node::{Node, NodeConfig};
use super::place::{FILE_BYTES, profile};
use super::plan::{Cell, Consistency, Files, Plan, ServiceTime, Storage};
use crate::error::BenchError;
use crate::histogram::Histogram;
use crate::load::{Phase, PhaseCell};
use crate::machine;
use crate::scenario::Pattern;
use crate::stats::ratio;

/// Operations in flight of each client.
pub(super) const IN_FLIGHT: usize = 4;
/// Threads of a server that act as cores in blocking mode: the hardware threads of the thesis's
/// i7-4790.
pub(super) const BLOCKING_CORES: usize = 8;
/// Writes at once of each client in the check of order, and bytes of each.
pub(super) const AT_ONCE: usize = 8;
const CHECKED_BYTES: usize = 8192;
/// What a server keeps in memory, at most, in bytes: ten times what the files take.
const MEMORY_BYTES_MAX: u64 = 512 << 20;
/// Name of the clients' runtime, and so of their threads.
const CLIENTS: &str = "load";

/// What one run counted. Numbers "per operation" are of the measured time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Sample {
    pub(super) cell: Cell,
    pub(super) consistency: Consistency,
    pub(super) round: usize,
    pub(super) operations: u64,
    pub(super) seconds: f64,
    pub(super) mean_us: f64,
    pub(super) p99_us: f64,
    pub(super) round_trips: f64,
    /// Requests, replies and notices.
    pub(super) messages: f64,
    /// Locks taken on all servers, per operation.
    pub(super) locks: f64,
    /// Share of them that were refused at first.
    pub(super) fallback_share: f64,
    /// Time that an operation waited for its lock on all servers.
    pub(super) lock_wait_us: f64,
    /// Share of the servers' acquisitions of their queue's lock that found it taken, and time that
    /// was waited for it per operation.
    pub(super) queue_contended_share: f64,
    pub(super) queue_wait_us: f64,
    /// CPU time of the three servers and of the clients, per operation; and the share of a CPU that
    /// the threads of one server that serve sockets used.
    pub(super) server_cpu_us: f64,
    pub(super) client_cpu_us: f64,
    pub(super) socket_cpu_share: f64,
}

impl Sample {
    pub(super) fn ops_per_s(&self) -> f64 {
        self.operations as f64 / self.seconds
    }

    pub(super) fn mb_per_s(&self) -> f64 {
        self.ops_per_s() * self.cell.block_bytes as f64 / 1e6
    }

    /// CPU time of servers and clients per operation.
    pub(super) fn cpu_us(&self) -> f64 {
        self.server_cpu_us + self.client_cpu_us
    }

    /// Operations for each second of CPU time of servers and clients: what cores that do nothing
    /// else would reach.
    pub(super) fn ops_per_cpu_s(&self) -> f64 {
        ratio(1e6, self.cpu_us())
    }
}

/// What a run needs besides its cell.
pub(super) struct Setting {
    pub(super) plan: Plan,
    /// Threads that take from a shared queue.
    pub(super) io_threads: usize,
    /// What is written: longer than any block.
    pub(super) data: Bytes,
}

/// What a report says of it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Setup {
    pub(super) warm_up_ms: u64,
    pub(super) measure_ms: u64,
    pub(super) rounds: usize,
    /// Workers of each server in `cpu` cells.
    pub(super) workers: usize,
    pub(super) io_threads: usize,
}

impl Setting {
    pub(super) fn setup(&self) -> Setup {
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let Plan { rounds, warm_up, measure, .. } = self.plan;
        let (workers, io_threads) = (cores(false).get(), self.io_threads);
        Setup { warm_up_ms: ms(warm_up), measure_ms: ms(measure), rounds, workers, io_threads }
    }
}

/// Cores of a server of this cell.
fn cores(is_blocking: bool) -> NonZeroUsize {
    let here = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    if is_blocking { NonZeroUsize::new(BLOCKING_CORES).unwrap_or(here) } else { here }
}

/// Threads that take from a shared queue: those that sleep act as cores, so there are no more of
/// them than cores.
fn io_threads(is_blocking: bool, wanted: usize) -> usize {
    if is_blocking { wanted.min(BLOCKING_CORES) } else { wanted }
}

/// Servers and clients.
struct Cluster {
    nodes: Vec<Node>,
    runtime: Runtime,
    counters: Vec<Arc<Counters>>,
    clients: usize,
}

impl Cluster {
    fn start(
        cell: &Cell,
        consistency: Consistency,
        setting: &Setting,
        dir: &Path,
    ) -> Result<Cluster, BenchError> {
        let workers = cores(cell.is_blocking);
        let mut nodes = Vec::new();
        for shard in 0..profile().shards() {
            let dir = match cell.storage {
                Storage::Memory => Dir::new(
                    Arc::new(Memory::new(MEMORY_BYTES_MAX, &LockTable::default())),
                    Path::new("/"),
                ),
                Storage::Disk => Dir::from(dir.join(shard.to_string()).as_path()),
            };
            nodes.push(Node::start(&NodeConfig {
                shard: ShardIndex::new(shard),
                execution: consistency.execution(),
                workers,
                io_threads: io_threads(cell.is_blocking, setting.io_threads),
                service: cell.is_blocking.then_some(ServiceTime::BLOCKING),
                dir,
            })?);
        }
        let runtime = Runtime::start(RuntimeConfig::new(CLIENTS, cell.clients))?;
        let counters: Vec<Arc<Counters>> = (0..cell.clients).map(|_| Arc::default()).collect();
        for (number, counters) in counters.iter().enumerate() {
            let servers = nodes.iter().map(Node::addr).collect();
            let counters = Arc::clone(counters);
            let config = ClientConfig { number, consistency, cores: workers, servers, counters };
            let connected = runtime.handle().block_on_worker(number, |worker| async move {
                let client = Client::connect(worker.clone(), config).await?;
                worker.set_local(std::rc::Rc::new(client));
                Ok(())
            });
            connected.unwrap_or(Err(BenchError::Gone))?;
        }
        Ok(Cluster { nodes, runtime, counters, clients: cell.clients })
    }

    /// Runs `f` on every client at once, and waits for all.
    fn on_all<F, Fut, T>(&self, f: F) -> Result<Vec<T>, BenchError>
    where
        F: Fn(Client, usize) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = Result<T, BenchError>> + 'static,
        T: Send + 'static,
    {
        self.begin_all(f)
            .into_iter()
            .map(|run| block_on(run).unwrap_or(Err(BenchError::Gone)))
            .collect()
    }

    /// Runs `f` on every client at once.
    fn begin_all<F, Fut, T>(
        &self,
        f: F,
    ) -> Vec<impl Future<Output = Result<Result<T, BenchError>, messenger::Gone>>>
    where
        F: Fn(Client, usize) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = Result<T, BenchError>> + 'static,
        T: Send + 'static,
    {
        let begin = |number| {
            let f = f.clone();
            self.runtime.handle().run_on(number, move |worker| async move {
                let client = worker.local::<Client>().ok_or(BenchError::Gone)?;
                let result = f((*client).clone(), number).await;
                client.take_error().map_or(result, Err)
            })
        };
        (0..self.clients).map(begin).collect()
    }

    fn look(&self) -> Look {
        let mut counted = [0; 7];
        for counters in &self.counters {
            counted.iter_mut().zip(counters.read()).for_each(|(sum, value)| *sum += value);
        }
        let queue = self.nodes.iter().map(Node::queue_lock).fold([0; 3], |sum, lock| {
            [sum[0] + lock.acquisitions, sum[1] + lock.contended, sum[2] + lock.wait_ns]
        });
        let cpu = self
            .nodes
            .iter()
            .map(Node::cpu_ns)
            .fold((0, 0), |sum, cpu| (sum.0 + cpu.0, sum.1 + cpu.1));
        let clients_ns = machine::thread_cpu_ns(CLIENTS, self.clients).iter().sum();
        Look {
            at: Instant::now(),
            counted,
            queue,
            servers_ns: cpu.0,
            sockets_ns: cpu.1,
            clients_ns,
        }
    }

    fn stop(self) -> Result<(), BenchError> {
        self.on_all(|client, _| async move {
            client.close();
            Ok(())
        })?;
        self.runtime.shutdown();
        self.nodes.into_iter().for_each(Node::stop);
        Ok(())
    }
}

/// Counters at one moment.
struct Look {
    at: Instant,
    counted: [u64; 7],
    /// Acquisitions, of these contended, nanoseconds waited.
    queue: [u64; 3],
    servers_ns: u64,
    sockets_ns: u64,
    clients_ns: u64,
}

/// Runs a cell once.
///
/// # Errors
/// When sockets, threads or files are refused, or an operation fails.
pub(super) fn run(
    cell: &Cell,
    consistency: Consistency,
    round: usize,
    setting: &Setting,
) -> Result<Sample, BenchError> {
    let dir = tempfile::tempdir().map_err(BenchError::file(&std::env::temp_dir()))?;
    let cluster = Cluster::start(cell, consistency, setting, dir.path())?;
    let (cell, data) = (*cell, setting.data.clone());
    fill(&cluster, cell, &data)?;
    let phase = PhaseCell::default();
    let given = phase.clone();
    let load = cluster.begin_all(move |client, number| {
        generate(client, number, cell, given.clone(), data.clone())
    });
    std::thread::sleep(setting.plan.warm_up);
    let before = cluster.look();
    phase.set(Phase::Measure);
    std::thread::sleep(setting.plan.measure);
    let after = cluster.look();
    phase.set(Phase::Stop);
    let mut latencies = Histogram::default();
    for load in load {
        latencies.add(&block_on(load).unwrap_or(Err(BenchError::Gone))?);
    }
    cluster.stop()?;
    Ok(sample(cell, consistency, round, &before, &after, &latencies))
}

/// Writes all files once.
fn fill(cluster: &Cluster, cell: Cell, data: &Bytes) -> Result<(), BenchError> {
    let data = data.slice(..FILE_BYTES as usize);
    let filled = cluster.on_all(move |client, number| {
        let data = data.clone();
        async move {
            for file in cell.files.of(number, cell.clients) {
                client.write(gfid(file), 0, &data).await?;
            }
            Ok(())
        }
    });
    filled.map(drop)
}

/// A closed loop of [`IN_FLIGHT`] operations; the latencies of those that ended in the measured
/// time.
async fn generate(
    client: Client,
    number: usize,
    cell: Cell,
    phase: PhaseCell,
    data: Bytes,
) -> Result<Histogram, BenchError> {
    let loops: Vec<_> = (0..IN_FLIGHT)
        .map(|nth| {
            let random = fastrand::Rng::with_seed((number * IN_FLIGHT + nth) as u64);
            client.spawn(closed_loop(
                client.clone(),
                number,
                cell,
                phase.clone(),
                data.clone(),
                random,
            ))
        })
        .collect();
    let mut all = Histogram::default();
    for latencies in loops {
        all.add(&latencies.await.map_err(|_| BenchError::Gone)??);
    }
    Ok(all)
}

async fn closed_loop(
    client: Client,
    number: usize,
    cell: Cell,
    phase: PhaseCell,
    data: Bytes,
    mut random: fastrand::Rng,
) -> Result<Histogram, BenchError> {
    let mut latencies = Histogram::default();
    let (files, block) = (cell.files.of(number, cell.clients), cell.block_bytes);
    while phase.get() != Phase::Stop && !client.has_error() {
        let file = gfid(random.usize(files.clone()));
        let offset = random.u64(..FILE_BYTES / block) * block;
        let begin = Instant::now();
        if random.f64() < cell.pattern.read_share() {
            client.read(file, offset..offset + block).await?;
        } else {
            let from = random.usize(..data.len() - block as usize);
            client.write(file, offset, &data[from..from + block as usize]).await?;
        }
        if phase.get() == Phase::Measure {
            latencies.record(u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX));
        }
    }
    Ok(latencies)
}

fn sample(
    cell: Cell,
    consistency: Consistency,
    round: usize,
    before: &Look,
    after: &Look,
    latencies: &Histogram,
) -> Sample {
    let seconds = after.at.duration_since(before.at).as_secs_f64();
    let difference = |after: u64, before: u64| after.saturating_sub(before) as f64;
    let [operations, requests, notices, round_trips, locks, fallbacks, wait_ns] =
        std::array::from_fn(|i| difference(after.counted[i], before.counted[i]));
    let queue: [f64; 3] = std::array::from_fn(|i| difference(after.queue[i], before.queue[i]));
    let each = |value: f64| ratio(value, operations);
    Sample {
        cell,
        consistency,
        round,
        operations: operations as u64,
        seconds,
        mean_us: latencies.mean_us(),
        p99_us: latencies.quantile_us(0.99),
        round_trips: each(round_trips),
        messages: each(2.0 * requests + notices),
        locks: each(locks),
        // A lock may be refused within the measured time and got after it.
        fallback_share: ratio(fallbacks, locks).min(1.0),
        lock_wait_us: each(wait_ns) / 1e3,
        queue_contended_share: ratio(queue[1], queue[0]),
        queue_wait_us: each(queue[2]) / 1e3,
        server_cpu_us: each(difference(after.servers_ns, before.servers_ns)) / 1e3,
        client_cpu_us: each(difference(after.clients_ns, before.clients_ns)) / 1e3,
        socket_cpu_share: difference(after.sockets_ns, before.sockets_ns)
            / 1e9
            / seconds
            / f64::from(profile().shards()),
    }
}

/// How often writes at once left shards that do not fit together.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) consistency: Consistency,
    pub(super) clients: usize,
    pub(super) looks: usize,
    pub(super) torn: usize,
}

/// Figure 2.3 of the thesis, tried: each client writes several blocks to one place at once, then
/// all shards are looked at.
///
/// # Errors
/// Those of [`run`].
pub(super) fn check_order(
    consistency: Consistency,
    clients: usize,
    setting: &Setting,
) -> Result<Order, BenchError> {
    let cell = Cell {
        is_blocking: false,
        storage: Storage::Memory,
        files: Files::Few,
        pattern: Pattern::Randwrite,
        block_bytes: CHECKED_BYTES as u64,
        clients,
    };
    let dir = tempfile::tempdir().map_err(BenchError::file(&std::env::temp_dir()))?;
    let cluster = Cluster::start(&cell, consistency, setting, dir.path())?;
    let mut torn = 0;
    for look in 0..setting.plan.looks {
        let data = setting.data.clone();
        cluster.on_all(move |client, number| {
            write_at_once(client, data.clone(), look * clients + number)
        })?;
        let look = |client: Client, _| async move {
            client.is_whole(gfid(0), 0..CHECKED_BYTES as u64).await
        };
        torn += usize::from(!cluster.on_all(look)?[0]);
    }
    cluster.stop()?;
    Ok(Order { consistency, clients, looks: setting.plan.looks, torn })
}

/// Writes blocks that differ to one place; `nth` says which blocks.
async fn write_at_once(client: Client, data: Bytes, nth: usize) -> Result<(), BenchError> {
    let begin = |write: usize| {
        let from = (nth * AT_ONCE + write) * CHECKED_BYTES % (data.len() - CHECKED_BYTES);
        let (block, writer) = (data.slice(from..from + CHECKED_BYTES), client.clone());
        client.spawn(async move { writer.write(gfid(0), 0, &block).await })
    };
    let writes: Vec<_> = (0..AT_ONCE).map(begin).collect();
    for write in writes {
        write.await.map_err(|_| BenchError::Gone)??;
    }
    Ok(())
}
