//! A heal at full rate under a client's load, on a cluster of processes.
//!
//! Contract: a monitor with the metadata service, and three OSDs of a 2+1 pool, each in a process
//! of its own, on a fresh directory, killed at the end. An OSD is killed, misses files, and is
//! started again; the client reads all the time, and the heal ends when every placement group is
//! clean. Heartbeats are timed by the OSDs themselves, from sent to answered.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use client::{Client, ClientConfig, ClientError, FileRef, LocalIo, WriterHint};
use messenger::histogram::{Histogram, Times};
use messenger::sync::block_on;
use messenger::{
    ConnectConfig, Layer, Message, NoService, Runtime, RuntimeConfig, TelemetryReport, TrafficClass,
};
use protocol::{ClusterId, Gfid, Kind, PoolId};
use serde::Serialize;

use super::{Effort, SIDES, order_of};
use crate::error::BenchError;

const OSDS: usize = 3;
const PGS: u32 = 16;
/// The one that is killed.
const VICTIM: usize = 2;
/// Time after which an OSD that is silent is down: short, as it is waited for in every round.
const GRACE_MS: u64 = 1000;
/// Bytes of each read.
const BLOCK_BYTES: usize = 4096;
/// Reads under way.
const IN_FLIGHT: usize = 8;
/// Size of every file.
const FILE_BYTES: u64 = 16 << 20;
/// Bytes of each write that fills one.
const FILL_BYTES: usize = 1 << 20;
/// Everything that is waited for takes less, or the run fails.
const PATIENCE: Duration = Duration::from_secs(300);
const LOOK: Duration = Duration::from_millis(20);
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// One side of one round.
#[derive(Clone, Debug, Serialize)]
pub(super) struct HealRound {
    pub(super) round: usize,
    pub(super) side: &'static str,
    /// From the start of the OSD to the last clean placement group, with the load.
    pub(super) heal_s: f64,
    /// The same with nothing beside it.
    pub(super) alone_s: f64,
    pub(super) reads_idle: Quantiles,
    pub(super) reads_healing: Quantiles,
    pub(super) beats_idle: Quantiles,
    pub(super) beats_healing: Quantiles,
}

/// How long things took, in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Quantiles {
    pub(super) count: u64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) p999_us: f64,
}

impl Quantiles {
    fn of(times: &Times) -> Quantiles {
        let us = |share| times.quantile_ns(share) as f64 / 1e3;
        let (p50_us, p99_us, p999_us) = (us(0.5), us(0.99), us(0.999));
        Quantiles { count: times.calls(), p50_us, p99_us, p999_us }
    }
}

/// Measures one side: the load alone, a heal under it, then a heal alone.
pub(super) fn measure(
    program: &Path,
    round: usize,
    side: usize,
    effort: &Effort,
) -> Result<HealRound, BenchError> {
    let dir = tempfile::tempdir().map_err(BenchError::file(&std::env::temp_dir()))?;
    let mut cluster = Cluster::start(program, dir.path(), side)?;
    cluster.wait_until_clean()?;
    let bench = Reader::new(&cluster)?;
    bench.fill(0, FILE_BYTES)?;
    let load = bench.begin();
    std::thread::sleep(effort.idle / 5);
    let before = (load.times(), cluster.beats(&bench)?);
    std::thread::sleep(effort.idle);
    let idle = (load.times(), cluster.beats(&bench)?);
    let (heal_s, healing) = {
        cluster.miss(&bench, 1, effort.heal_bytes)?;
        let before = (load.times(), cluster.beats(&bench)?);
        let heal_s = cluster.heal()?;
        let after = (load.times(), cluster.beats(&bench)?);
        (heal_s, (after.0.since(&before.0), after.1.since(&before.1)))
    };
    load.end()?;
    cluster.miss(&bench, 1, effort.heal_bytes)?;
    let alone_s = cluster.heal()?;
    bench.client.close()?;
    Ok(HealRound {
        round,
        side: SIDES[side],
        heal_s,
        alone_s,
        reads_idle: Quantiles::of(&idle.0.since(&before.0)),
        reads_healing: Quantiles::of(&healing.0),
        beats_idle: Quantiles::of(&idle.1.since(&before.1)),
        beats_healing: Quantiles::of(&healing.1),
    })
}

/// A process that is killed when it is no longer needed.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself; its log says why.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Cluster {
    program: PathBuf,
    dir: PathBuf,
    side: usize,
    monitor: SocketAddr,
    mds: SocketAddr,
    metrics: SocketAddr,
    osds: [SocketAddr; OSDS],
    _control: Process,
    running: Vec<Option<Process>>,
}

impl Cluster {
    fn start(program: &Path, dir: &Path, side: usize) -> Result<Cluster, BenchError> {
        let [monitor, mds, metrics, a, b, c] = free_ports().map_err(BenchError::file(dir))?;
        let roles = [
            ("ROLES", "monitor,mds".to_owned()),
            ("MONITOR_ADDR", monitor.to_string()),
            ("MDS_LISTEN", mds.to_string()),
            ("HTTP_LISTEN", metrics.to_string()),
        ];
        let control = spawn(program, dir, "control", &roles)?;
        let (program, dir) = (program.to_owned(), dir.to_owned());
        let (osds, running) = ([a, b, c], Vec::new());
        let mut cluster =
            Cluster { program, dir, side, monitor, mds, metrics, osds, _control: control, running };
        for osd in 0..OSDS {
            let process = cluster.start_osd(osd)?;
            cluster.running.push(Some(process));
        }
        Ok(cluster)
    }

    fn start_osd(&self, osd: usize) -> Result<Process, BenchError> {
        let settings = [
            ("ROLES", "osd".to_owned()),
            ("MONITOR_ADDR", self.monitor.to_string()),
            ("MDS_LISTEN", self.mds.to_string()),
            ("OSD_ID", osd.to_string()),
            ("OSD_LISTEN", self.osds[osd].to_string()),
            ("HOST", format!("host-{osd}")),
            ("MS_CLASS_WEIGHTS", order_of(self.side).to_string()),
        ];
        spawn(&self.program, &self.dir, &format!("osd-{osd}"), &settings)
    }

    fn wait_until_clean(&self) -> Result<(), BenchError> {
        let clean = format!("trefoil_pgs{{state=\"clean\"}} {PGS}");
        self.wait(|text| text.lines().any(|line| line == clean))
    }

    /// Waits until the monitor's metrics are so.
    fn wait(&self, is_so: impl Fn(&str) -> bool) -> Result<(), BenchError> {
        let began = Instant::now();
        // Before it serves them nobody can be asked.
        while !self.told().is_ok_and(|text| is_so(&text)) {
            if began.elapsed() >= PATIENCE {
                let logs = ["control", "osd-0", "osd-1", "osd-2"].map(|name| {
                    let log = self.dir.join(format!("{name}.log"));
                    std::fs::read_to_string(log).unwrap_or_default()
                });
                return Err(BenchError::NotUp(logs.concat()));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    fn told(&self) -> std::io::Result<String> {
        let mut text = String::new();
        let mut stream = TcpStream::connect(self.metrics)?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
        stream.read_to_string(&mut text)?;
        Ok(text)
    }

    /// Kills an OSD and has it miss files, from this number on.
    fn miss(&mut self, reader: &Reader, first: u64, bytes: u64) -> Result<(), BenchError> {
        self.running[VICTIM] = None;
        self.wait(|text| text.contains("code=\"OSD_DOWN\""))?;
        (0..bytes / FILE_BYTES).try_for_each(|file| reader.fill(first + file, FILE_BYTES))
    }

    /// Starts it again, and waits until all is clean; gives seconds.
    fn heal(&mut self) -> Result<f64, BenchError> {
        let began = Instant::now();
        self.running[VICTIM] = Some(self.start_osd(VICTIM)?);
        self.wait_until_clean()?;
        Ok(began.elapsed().as_secs_f64())
    }

    /// Heartbeats so far, of the OSDs that run all the time.
    fn beats(&self, reader: &Reader) -> Result<Times, BenchError> {
        let mut all = Times::default();
        for addr in &self.osds[..VICTIM] {
            for report in reader.reports(*addr)? {
                let calls = report.operations.iter().filter(|operation| {
                    (operation.layer, &*operation.name) == (Layer::Messenger, "call")
                });
                if report.name.ends_with("-heart") {
                    calls.for_each(|operation| all.merge(&operation.times));
                }
            }
        }
        Ok(all)
    }
}

fn spawn(
    program: &Path,
    dir: &Path,
    name: &str,
    settings: &[(&str, String)],
) -> Result<Process, BenchError> {
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(dir.join(format!("{name}.log")))
        .map_err(BenchError::file(dir))?;
    let common = [
        ("DATA_DIR", dir.join(name).display().to_string()),
        ("OSD_COUNT", OSDS.to_string()),
        ("POOL_K", "2".into()),
        ("POOL_M", "1".into()),
        ("POOL_PG_NUM", PGS.to_string()),
        ("OSD_HEARTBEAT_GRACE_MS", GRACE_MS.to_string()),
        ("LOG", "warn".into()),
    ];
    let all = common.iter().chain(settings).map(|(key, value)| (format!("TREFOIL_{key}"), value));
    let child = Command::new(program)
        .envs(all)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .map_err(BenchError::file(program))?;
    Ok(Process(child))
}

/// Ports that were free a moment ago.
fn free_ports() -> std::io::Result<[SocketAddr; 6]> {
    let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let held = [bind()?, bind()?, bind()?, bind()?, bind()?, bind()?];
    let mut ports = [SocketAddr::from((Ipv4Addr::LOCALHOST, 0)); 6];
    for (port, held) in ports.iter_mut().zip(&held) {
        *port = held.local_addr()?;
    }
    Ok(ports)
}

/// The client, and who asks OSDs for their telemetry.
struct Reader {
    client: Client,
    pool: PoolId,
    cluster: ClusterId,
    runtime: Runtime,
}

impl Reader {
    fn new(cluster: &Cluster) -> Result<Reader, BenchError> {
        let defaults = ClientConfig::new(cluster.monitor.to_string(), "bench");
        let client = Client::connect(ClientConfig { workers: 1, ..defaults })?;
        let map = client.map()?;
        let pool = map.pools.keys().next().copied().ok_or(ClientError::Closed)?;
        let runtime = Runtime::start(RuntimeConfig::new("bench", 1))?;
        Ok(Reader { client, pool, cluster: map.cluster, runtime })
    }

    fn file(&self, number: u64) -> FileRef {
        FileRef { gfid: Gfid::of_inode(1_000_000 + number), pool: self.pool }
    }

    /// Writes a whole file.
    fn fill(&self, number: u64, bytes: u64) -> Result<(), BenchError> {
        let file = self.file(number);
        let written = self.client.run_on(0, move |io| async move {
            for offset in (0..bytes).step_by(FILL_BYTES) {
                let size_after = offset + FILL_BYTES as u64;
                let hint = WriterHint { zero_from: u64::MAX, size_after, grant: None };
                io.write(file, offset, Bytes::from(vec![7; FILL_BYTES]), hint).await?;
            }
            Ok(())
        });
        Ok(self.client.block_on(written)?)
    }

    /// Begins to read blocks at random places of file 0.
    fn begin(&self) -> Load<'_> {
        let meter = Arc::new(Meter::default());
        let tasks = (0..IN_FLIGHT).map(|seed| {
            let (file, meter) = (self.file(0), Arc::clone(&meter));
            self.client.run_on(0, move |io| read(io, file, meter, seed as u64))
        });
        let tasks = tasks.map(|task| Box::pin(task) as Task).collect();
        Load { client: &self.client, meter, tasks }
    }

    fn reports(&self, addr: SocketAddr) -> Result<Vec<TelemetryReport>, BenchError> {
        let to = ConnectConfig::new(addr, self.cluster, "bench");
        let connection = self.runtime.handle().connect(0, to, |_| Rc::new(NoService));
        let kind = Kind::Telemetry.to_u16();
        let question = Message::new(TrafficClass::Client, kind, Bytes::new(), Bytes::new());
        let reply = block_on(connection.call(question, ANSWER_MAX))?;
        connection.close();
        protocol::decode("reports", &reply.front).map_err(|_| BenchError::Gone)
    }
}

type Task = std::pin::Pin<Box<dyn Future<Output = Result<(), ClientError>>>>;

/// Reads that go on until they are told to end.
struct Load<'a> {
    client: &'a Client,
    meter: Arc<Meter>,
    tasks: Vec<Task>,
}

#[derive(Default)]
struct Meter {
    stop: AtomicBool,
    reads: Histogram,
}

impl Load<'_> {
    fn times(&self) -> Times {
        self.meter.reads.times()
    }

    fn end(self) -> Result<(), BenchError> {
        self.meter.stop.store(true, Relaxed);
        for task in self.tasks {
            self.client.block_on(task)?;
        }
        Ok(())
    }
}

async fn read(io: LocalIo, file: FileRef, meter: Arc<Meter>, seed: u64) -> Result<(), ClientError> {
    let mut random = fastrand::Rng::with_seed(seed);
    while !meter.stop.load(Relaxed) {
        let offset = random.u64(..FILE_BYTES / BLOCK_BYTES as u64) * BLOCK_BYTES as u64;
        let began = Instant::now();
        io.read(file, offset, BLOCK_BYTES).await?;
        meter.reads.record(began.elapsed().as_nanos() as u64);
    }
    Ok(())
}
