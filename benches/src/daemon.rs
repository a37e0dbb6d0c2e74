//! A daemon in a process of its own, and clients in this one that write to it.
//!
//! Contract: real CPU. All roles and one OSD in one process (k = 1, m = 0), on a fresh directory, killed at the end. Each
//! client has a worker and a session of its own.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use client::{Client, ClientConfig, ClientError, FileRef, LocalIo, SizeHint};
use protocol::{Gfid, PoolId};

use crate::error::BenchError;
use crate::machine;

/// Bytes of each write.
pub(crate) const BLOCK_BYTES: usize = 4096;
/// Clients that write.
pub(crate) const CLIENTS: usize = 8;
/// Writes in flight of each client.
pub(crate) const IN_FLIGHT: usize = 8;
/// Every client writes within a file of this size: small enough for a memstore, large enough for random writes.
const FILE_BYTES: u64 = 16 << 20;

/// A daemon that is killed when it is no longer needed.
pub(crate) struct Daemon {
    child: Child,
    monitor: SocketAddr,
}

impl Daemon {
    /// Starts `program` with data and log in `dir`; `settings` are keys of its configuration, in capitals.
    pub(crate) fn start(program: &Path, dir: &Path, settings: &[(&str, String)]) -> Result<Daemon, BenchError> {
        let [monitor, mds, osd] = free_ports().map_err(BenchError::file(dir))?;
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let log = std::fs::File::create(dir.join("log")).map_err(BenchError::file(dir))?;
        let common = [
            ("DATA_DIR", dir.join("data").display().to_string()),
            ("MONITOR_ADDR", monitor.to_string()),
            ("MDS_LISTEN", mds.to_string()),
            ("OSD_LISTEN", osd.to_string()),
            ("OSD_COUNT", "1".into()),
            ("POOL_K", "1".into()),
            ("POOL_M", "0".into()),
            ("OSD_OP_THREADS", cores.to_string()),
            ("LOG", "warn".into()),
            // beside what is written, journals and promises to all clients
            ("MEMSTORE_BYTES_MAX", (4u64 << 30).to_string()),
        ];
        let child = Command::new(program)
            .envs(common.iter().chain(settings).map(|(name, value)| (format!("TREFOIL_{name}"), value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(BenchError::file(program))?;
        Ok(Daemon { child, monitor })
    }

    /// Lets clients write at random places for so long; what they did while it was measured.
    ///
    /// `telemetry`: do the clients count and time?
    pub(crate) fn write(&self, telemetry: bool, warm_up: Duration, measure: Duration) -> Result<Written, BenchError> {
        let clients = (0..CLIENTS).map(|_| self.connect(telemetry)).collect::<Result<Vec<_>, _>>()?;
        let meter = Arc::new(Meter::default());
        let mut writers = Vec::new();
        for (index, (client, pool)) in clients.iter().enumerate() {
            for task in 0..IN_FLIGHT {
                let file = FileRef { gfid: Gfid::of_inode(1_000_000 + index as u64), pool: *pool };
                let (meter, seed) = (Arc::clone(&meter), (index * IN_FLIGHT + task) as u64);
                writers.push((client, client.run_on(0, move |io| write_randomly(io, file, meter, seed))));
            }
        }
        std::thread::sleep(warm_up);
        let (begin, cpu) = (Instant::now(), self.cpu_ns());
        meter.measuring.store(true, Relaxed);
        std::thread::sleep(measure);
        meter.measuring.store(false, Relaxed);
        let (elapsed, daemon_cpu_ns) = (begin.elapsed(), self.cpu_ns().saturating_sub(cpu));
        meter.stop.store(true, Relaxed);
        for (client, writer) in writers {
            client.block_on(writer)?;
        }
        clients.iter().try_for_each(|(client, _)| client.close())?;
        let (writes, latency_ns) = (meter.writes.load(Relaxed), meter.latency_ns.load(Relaxed));
        Ok(Written { writes, elapsed, latency_ns, daemon_cpu_ns })
    }

    fn cpu_ns(&self) -> u64 {
        machine::process_cpu_ns(self.child.id())
    }

    fn connect(&self, telemetry: bool) -> Result<(Client, PoolId), BenchError> {
        let config = ClientConfig { workers: 1, telemetry, ..ClientConfig::new(self.monitor.to_string(), "bench") };
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

/// Ports that were free a moment ago.
fn free_ports() -> std::io::Result<[SocketAddr; 3]> {
    let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let held = [bind()?, bind()?, bind()?];
    Ok([held[0].local_addr()?, held[1].local_addr()?, held[2].local_addr()?])
}

/// Writes that were answered while it was measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    pub(crate) writes: u64,
    pub(crate) elapsed: Duration,
    latency_ns: u64,
    daemon_cpu_ns: u64,
}

impl Written {
    pub(crate) fn per_second(&self) -> f64 {
        self.writes as f64 / self.elapsed.as_secs_f64()
    }

    /// Mean latency, in microseconds.
    pub(crate) fn mean_us(&self) -> f64 {
        self.each_us(self.latency_ns)
    }

    /// CPU time of the daemon for one write, in microseconds.
    pub(crate) fn daemon_cpu_us(&self) -> f64 {
        self.each_us(self.daemon_cpu_ns)
    }

    fn each_us(&self, ns: u64) -> f64 {
        ns as f64 / 1e3 / self.writes.max(1) as f64
    }
}

/// Shared by the writers and whoever keeps the time.
#[derive(Default)]
struct Meter {
    measuring: AtomicBool,
    stop: AtomicBool,
    writes: AtomicU64,
    latency_ns: AtomicU64,
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
