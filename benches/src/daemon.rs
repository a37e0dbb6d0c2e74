//! A daemon in a process of its own, and clients in this one that read from it or write to it.
//!
//! Contract: real CPU. All roles and one OSD in one process (k = 1, m = 0), on a fresh directory,
//! killed at the end. Each client has a worker and a session of its own.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use client::{Client, ClientConfig, ClientError, FileRef, LocalIo, WriterHint};
use protocol::{Gfid, PoolId};

use crate::error::BenchError;
use crate::machine;

/// Bytes of each read and write.
pub(crate) const BLOCK_BYTES: usize = 4096;
/// Every client works within a file of this size: small enough for a memstore, large enough for
/// random places.
const FILE_BYTES: u64 = 16 << 20;
/// Bytes of each write that fills a file before it is read.
const FILL_BYTES: usize = 1 << 20;

/// Time after which a daemon that listens nowhere is given up.
const START_MAX: Duration = Duration::from_secs(60);
const START_LOOK: Duration = Duration::from_millis(10);

/// Time without any answer after which a run is given up; a disk may stand still for longer than a
/// short run measures.
const STALL_MAX: Duration = Duration::from_secs(20);

/// What clients do at random places of a file each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    /// Do they read? Else they write.
    pub(crate) reads: bool,
    /// How many there are.
    pub(crate) clients: usize,
    /// Operations in flight of each.
    pub(crate) in_flight: usize,
}

impl Load {
    /// Eight clients with eight writes in flight each.
    pub(crate) const WRITES: Load = Load { reads: false, clients: 8, in_flight: 8 };
    /// One client with sixteen reads in flight, as `rados bench` has them.
    pub(crate) const READS: Load = Load { reads: true, clients: 1, in_flight: 16 };
}

/// A daemon that is killed when it is no longer needed.
pub(crate) struct Daemon {
    child: Child,
    monitor: SocketAddr,
    metrics: SocketAddr,
}

/// Where the daemon's program is, for benches that start it.
#[derive(clap::Args)]
pub(crate) struct Program {
    /// The daemon's program; osd-daemon of the same build unless given
    #[arg(long)]
    daemon: Option<PathBuf>,
}

impl Program {
    /// Its path.
    ///
    /// # Errors
    /// When it was not built.
    pub(crate) fn path(&self) -> Result<PathBuf, BenchError> {
        let beside = || Some(std::env::current_exe().ok()?.parent()?.parent()?.join("osd-daemon"));
        let path = self.daemon.clone().or_else(beside).unwrap_or_else(|| "osd-daemon".into());
        if path.is_file() { Ok(path) } else { Err(BenchError::NotBuilt(path)) }
    }
}

impl Daemon {
    /// Starts `program` with data and log in `dir`, and waits until it listens; `settings` are keys
    /// of its configuration, in capitals.
    pub(crate) fn start(
        program: &Path,
        dir: &Path,
        settings: &[(&str, String)],
    ) -> Result<Daemon, BenchError> {
        let [monitor, mds, osd, metrics] = free_ports().map_err(BenchError::file(dir))?;
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let log_path = dir.join("log");
        let log = std::fs::File::create(&log_path).map_err(BenchError::file(dir))?;
        let common = [
            ("DATA_DIR", dir.join("data").display().to_string()),
            ("MONITOR_ADDR", monitor.to_string()),
            ("MDS_LISTEN", mds.to_string()),
            ("OSD_LISTEN", osd.to_string()),
            ("HTTP_LISTEN", metrics.to_string()),
            ("OSD_COUNT", "1".into()),
            ("POOL_K", "1".into()),
            ("POOL_M", "0".into()),
            ("OSD_OP_THREADS", cores.to_string()),
            ("LOG", "warn".into()),
            // CPU time is to be that of the work
            ("MS_BUSY_POLL_US", "0".into()),
            // beside what is written, journals and promises to all clients
            ("MEMSTORE_BYTES_MAX", (4u64 << 30).to_string()),
        ];
        let child = Command::new(program)
            .envs(
                common
                    .iter()
                    .chain(settings)
                    .map(|(name, value)| (format!("TREFOIL_{name}"), value)),
            )
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(BenchError::file(program))?;
        let mut daemon = Daemon { child, monitor, metrics };
        daemon.wait_until_up(&log_path)?;
        Ok(daemon)
    }

    /// Its metrics are the last that it begins to serve.
    fn wait_until_up(&mut self, log: &Path) -> Result<(), BenchError> {
        let begin = Instant::now();
        while TcpStream::connect(self.metrics).is_err() {
            let has_ended = self.child.try_wait().map_err(BenchError::file(log))?.is_some();
            if has_ended || begin.elapsed() >= START_MAX {
                return Err(BenchError::NotUp(
                    std::fs::read_to_string(log).map_err(BenchError::file(log))?,
                ));
            }
            std::thread::sleep(START_LOOK);
        }
        Ok(())
    }

    /// Lets clients work for so long, or until something is answered; what they did while it was
    /// measured.
    ///
    /// `telemetry`: do the clients count and time?
    pub(crate) fn run(
        &self,
        load: Load,
        telemetry: bool,
        warm_up: Duration,
        measure: Duration,
    ) -> Result<Done, BenchError> {
        let clients =
            (0..load.clients).map(|_| self.connect(telemetry)).collect::<Result<Vec<_>, _>>()?;
        let files: Vec<FileRef> =
            clients.iter().enumerate().map(|(index, (_, pool))| file(index, *pool)).collect();
        if load.reads {
            for ((client, _), file) in clients.iter().zip(&files) {
                let file = *file;
                client.block_on(client.run_on(0, move |io| fill(io, file)))?;
            }
        }
        let meter = Arc::new(Meter::default());
        let mut tasks = Vec::new();
        for (index, ((client, _), file)) in clients.iter().zip(&files).enumerate() {
            for task in 0..load.in_flight {
                let (file, meter, seed) =
                    (*file, Arc::clone(&meter), (index * load.in_flight + task) as u64);
                tasks.push((
                    client,
                    client.run_on(0, move |io| work(io, load.reads, file, meter, seed)),
                ));
            }
        }
        std::thread::sleep(warm_up);
        let counted = self.counted()?;
        let (begin, cpu) = (Instant::now(), self.cpu_ns());
        meter.measuring.store(true, Relaxed);
        std::thread::sleep(measure);
        while meter.ops.load(Relaxed) == 0 && begin.elapsed() < STALL_MAX {
            std::thread::sleep(measure);
        }
        meter.measuring.store(false, Relaxed);
        let (elapsed, now) = (begin.elapsed(), self.cpu_ns());
        let counted_now = self.counted()?;
        meter.stop.store(true, Relaxed);
        for (client, task) in tasks {
            client.block_on(task)?;
        }
        clients.iter().try_for_each(|(client, _)| client.close())?;
        let ops = meter.ops.load(Relaxed);
        if ops == 0 {
            return Err(BenchError::Stalled(elapsed));
        }
        Ok(Done {
            ops,
            elapsed,
            latency_ns: meter.latency_ns.load(Relaxed),
            cpu_ns: [now[0].saturating_sub(cpu[0]), now[1].saturating_sub(cpu[1])],
            counted: [counted_now[0] - counted[0], counted_now[1] - counted[1]],
        })
    }

    /// Operations that the daemon has timed, and locks that it has counted as taken, by its
    /// metrics.
    fn counted(&self) -> Result<[f64; 2], BenchError> {
        let mut text = String::new();
        let answered = TcpStream::connect(self.metrics).and_then(|mut stream| {
            stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
            stream.read_to_string(&mut text)
        });
        answered.map_err(BenchError::Metrics)?;
        Ok(["trefoil_operation_seconds_count{", "trefoil_lock_acquisitions_total{"]
            .map(|name| sum_of(&text, name)))
    }

    /// CPU time of the daemon, and of this process, which the clients live in.
    fn cpu_ns(&self) -> [u64; 2] {
        [self.child.id(), std::process::id()].map(machine::process_cpu_ns)
    }

    fn connect(&self, telemetry: bool) -> Result<(Client, PoolId), BenchError> {
        let defaults = ClientConfig::new(self.monitor.to_string(), "bench");
        let config = ClientConfig { workers: 1, telemetry, busy_poll: Duration::ZERO, ..defaults };
        let client = Client::connect(config)?;
        let pool = client.map()?.pools.keys().next().copied().ok_or(ClientError::Closed)?;
        Ok((client, pool))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended by itself; its log says why.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The sum of all values of a metric; 0 if there is none.
fn sum_of(text: &str, name: &str) -> f64 {
    let values = text
        .lines()
        .filter(|line| line.starts_with(name))
        .filter_map(|line| line.rsplit(' ').next());
    values.filter_map(|value| value.parse::<f64>().ok()).sum()
}

/// Ports that were free a moment ago.
fn free_ports() -> std::io::Result<[SocketAddr; 4]> {
    let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let held = [bind()?, bind()?, bind()?, bind()?];
    Ok([held[0].local_addr()?, held[1].local_addr()?, held[2].local_addr()?, held[3].local_addr()?])
}

fn file(index: usize, pool: PoolId) -> FileRef {
    FileRef { gfid: Gfid::of_inode(1_000_000 + index as u64), pool }
}

/// Operations that were answered while it was measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    pub(crate) ops: u64,
    elapsed: Duration,
    latency_ns: u64,
    /// CPU time of the daemon and of the clients.
    cpu_ns: [u64; 2],
    /// Operations timed and locks counted in the daemon.
    counted: [f64; 2],
}

impl Done {
    pub(crate) fn per_second(&self) -> f64 {
        self.ops as f64 / self.elapsed.as_secs_f64()
    }

    /// Mean latency, in microseconds.
    pub(crate) fn mean_us(&self) -> f64 {
        self.each_us(self.latency_ns)
    }

    /// CPU time of the daemon for one operation, in microseconds.
    pub(crate) fn daemon_cpu_us(&self) -> f64 {
        self.each_us(self.cpu_ns[0])
    }

    /// CPU time of the clients for one operation, in microseconds.
    pub(crate) fn client_cpu_us(&self) -> f64 {
        self.each_us(self.cpu_ns[1])
    }

    /// How many operations the daemon timed, and how many locks it counted, for each.
    pub(crate) fn counted_each(&self) -> [f64; 2] {
        self.counted.map(|count| count / self.ops as f64)
    }

    fn each_us(&self, ns: u64) -> f64 {
        ns as f64 / 1e3 / self.ops as f64
    }
}

/// Shared by the tasks and whoever keeps the time.
#[derive(Default)]
struct Meter {
    measuring: AtomicBool,
    stop: AtomicBool,
    ops: AtomicU64,
    latency_ns: AtomicU64,
}

/// Writes the whole file once.
async fn fill(io: LocalIo, file: FileRef) -> Result<(), ClientError> {
    for offset in (0..FILE_BYTES).step_by(FILL_BYTES) {
        let hint =
            WriterHint { zero_from: u64::MAX, size_after: offset + FILL_BYTES as u64, grant: None };
        io.write(file, offset, Bytes::from(vec![7; FILL_BYTES]), hint).await?;
    }
    Ok(())
}

/// Reads or writes one random block after the other until it is told to stop.
async fn work(
    io: LocalIo,
    reads: bool,
    file: FileRef,
    meter: Arc<Meter>,
    seed: u64,
) -> Result<(), ClientError> {
    let mut random = fastrand::Rng::with_seed(seed);
    let data = Bytes::from(vec![seed as u8; BLOCK_BYTES]);
    let blocks = FILE_BYTES / BLOCK_BYTES as u64;
    while !meter.stop.load(Relaxed) {
        let offset = random.u64(..blocks) * BLOCK_BYTES as u64;
        let begin = Instant::now();
        if reads {
            io.read(file, offset, BLOCK_BYTES).await?;
        } else {
            // Blocks are whole stripes, so what was there before is of no interest.
            let hint = WriterHint { zero_from: u64::MAX, size_after: FILE_BYTES, grant: None };
            io.write(file, offset, data.clone(), hint).await?;
        }
        if meter.measuring.load(Relaxed) {
            meter.ops.fetch_add(1, Relaxed);
            meter
                .latency_ns
                .fetch_add(u64::try_from(begin.elapsed().as_nanos()).unwrap_or(0), Relaxed);
        }
    }
    Ok(())
}
