//! The role `osd`: shards of placement groups on one disk, served over the messenger.
//!
//! Contract: [`start`] takes the data directory's lock, learns the cluster from the monitor, opens
//! the cores, listens, and returns when the monitor has taken the OSD in. The role has a messenger
//! runtime of its own: worker i is core i, workers beyond the cores only serve sockets, and
//! everything of a PG happens on the worker of its core. Until the monitor has answered the boot
//! message no core sees a map, so that nothing is served in an epoch that does not know of the
//! restart (Rule: BootEpoch).
//!
//! A monitor that is away changes nothing: the OSD serves on and reconnects. An OSD that finds
//! itself down in a map boots again. A core whose disk failed makes the OSD leave the cluster; it
//! serves no more until a restart.
//!
//! * `control`: maps and the boot message; one task set on worker 0. * `link`: the connection to
//!   the monitor.
//! * `heart`: heartbeats, with a thread and a connection of their own. * `rhythm`: whether they
//!   leave.
//! * `side`: what each core owes the monitor, and the return of its shards. * `service`: what peers
//!   ask.
//! * `peers`: connections to other OSDs. * `resolve`: questions about dead sessions. * `power`: was
//!   power lost?
//! * `scrub`: what is scrubbed when, what was found, and what operators ask of it. * `views`: the
//!   map as cores need it.
//! * `cut`: answers at once, to measure what the messenger costs.

mod control;
mod cut;
mod heart;
mod link;
pub(crate) mod live;
mod peers;
mod power;
mod resolve;
mod rhythm;
mod scrub;
mod service;
mod shared;
mod side;
#[cfg(test)]
mod tests;
mod views;

use crate::addresses;
use crate::admin::LiveStart;
use cluster::ClusterMap;
use ec_store::core::CoreError;
use ec_store::fullness::FullRatios;
use ec_store::pg::shard::PgShard;
use ec_store::superblock::{DataDir, DataDirError};
use ec_store::throttle::Throttles;
use messenger::address::HostPorts;
use messenger::sync::block_on;
use messenger::{
    ClassOrder, ListenConfig, ListenError, Listener, Refusal, Runtime, RuntimeConfig, RuntimeError,
};
use placement::threads::{MaxEvents, PlacementConfig};
use power::{Losses, PowerFile};
use protocol::monitor::{MonitorReply, PathCut};
use protocol::{ClusterId, OsdId};
use shared::{Identity, Shared};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often a waiting start looks around.
const START_POLL: Duration = Duration::from_millis(20);
/// How often a waiting start says so.
const START_LOG_EVERY: Duration = Duration::from_secs(5);
/// Time for the monitor to answer a boot message before it is sent again.
const BOOT_ANSWER_MAX: Duration = Duration::from_secs(3);
/// Time for the monitor to hear of a clean stop.
const LEAVE_ANSWER_MAX: Duration = Duration::from_millis(1000);

/// Settings of the role.
#[derive(Clone, Debug)]
pub struct OsdConfig {
    /// Its number.
    pub id: OsdId,
    /// Its data directory; made if missing.
    pub dir: PathBuf,
    /// Where it listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The address told to the monitor; port 0 stands for the one that it listens on. Default:
    /// where it listens; needed when that is 0.0.0.0.
    pub advertise: Option<SocketAddr>,
    /// Where the monitor listens, or each of several.
    pub monitors: HostPorts,
    /// Name of the machine, the failure domain. Default "localhost".
    pub host: String,
    /// Cores: threads that each own a share of the PGs. Default 1.
    pub osd_op_threads: u16,
    /// Count locks and times. Default true; off only to measure what it costs.
    pub telemetry: bool,
    /// Threads for what waits for the disk, at most. Default 16.
    pub filestore_op_threads: u16,
    /// Those of them that scrubs, rebuilding and returning space take at a time; at least one of
    /// each core. Default 1.
    pub osd_disk_threads: u16,
    /// Bounds on what waits to be applied or synced, over all cores, and when write-back begins.
    pub throttles: Throttles,
    /// Messenger workers; those beyond the cores own no PGs. Default: as many as cores, which is
    /// also the least.
    pub ms_workers: u16,
    /// Which workers serve a connection. Default core-affine.
    pub ms_placement: PlacementConfig,
    /// Events that a worker takes at once. Default auto.
    pub ms_max_events: MaxEvents,
    /// How traffic classes share the I/O threads and the cores. Default: as they come.
    pub ms_class_order: ClassOrder,
    /// Buffer pools. Default 4.
    pub ms_buffer_pools: u16,
    /// For how long workers without work look for more before they sleep. Default 100 us.
    pub ms_busy_poll: Duration,
    /// Sessions that it takes. Default 10,000.
    pub ms_connections_max: u32,
    /// Peers on this host come through a Unix socket. Default true.
    pub ms_local_sockets: bool,
    /// Their data goes through shared memory. Default true.
    pub ms_shared_memory: bool,
    /// Time after which a connection that carries nothing is closed until its client sends; `None`,
    /// the default: never.
    pub ms_idle_timeout: Option<Duration>,
    /// Longest time between syncs of a journal with unsynced records. Default 200 ms.
    pub journal_sync_interval: Duration,
    /// Bytes of a core's journal, and of unapplied records in memory, at most; beyond it writers
    /// wait. Default 512 MiB.
    pub journal_bytes_max: u64,
    /// Bytes of a slot of a fragment, see
    /// [`ec_store::fragment::FragmentConfig::fragment_slot_bytes`]. Default 32 KiB.
    pub fragment_slot_bytes: u32,
    /// Shares of the disk at which it counts as nearly full (default 0.85), too full for backfill
    /// (0.90), and full (0.95).
    pub ratios: FullRatios,
    /// Where journals and fragments are. Default: on disk, in `dir`.
    pub store: StoreConfig,
    /// How far operations are carried; anything but to their end needs [`StoreConfig::Memory`].
    /// Default: to their end.
    pub path_cut: PathCut,
    /// Time between heartbeats. Default 500 ms: a quarter of the monitor's grace.
    pub heartbeat_interval: Duration,
    /// PGs that are rebuilt at a time, over all cores; at least one on each. Default 8.
    pub osd_recovery_max_active: u16,
    /// Bytes that are rebuilt, or compared instead, in a second, at most; 0: no limit. Default 0.
    pub osd_recovery_max_bytes_per_sec: u64,
    /// Objects of a PG in the dirty list of an absent shard, at most. Default 10,000.
    pub osd_dirty_objects_max: usize,
    /// Time between light scrubs of a PG; zero: only when asked. Default 1 day.
    pub osd_scrub_min_interval: Duration,
    /// Time between deep scrubs of a PG; zero: only when asked. Default 7 days.
    pub osd_deep_scrub_interval: Duration,
    /// Bytes that the scrubs which this OSD leads read of each shard in a second, at most. Default
    /// 32 MiB.
    pub osd_scrub_bytes_per_sec: u64,
    /// How long a start waits for the monitor before it gives up. Default 30 s.
    pub monitor_wait_max: Duration,
    /// What `trefoil config` shows and changes. Default: nothing is set.
    pub live: LiveStart,
    /// Set to true from any thread, it ends a start that waits, with [`OsdError::Cancelled`].
    pub cancel: Arc<AtomicBool>,
}

impl OsdConfig {
    /// Default settings.
    pub fn new(
        id: OsdId,
        dir: PathBuf,
        listen: SocketAddr,
        monitors: impl Into<HostPorts>,
    ) -> Self {
        Self {
            id,
            dir,
            listen,
            advertise: None,
            monitors: monitors.into(),
            host: "localhost".into(),
            osd_op_threads: 1,
            telemetry: true,
            filestore_op_threads: 16,
            osd_disk_threads: 1,
            throttles: Throttles::default(),
            ms_workers: 0,
            ms_placement: PlacementConfig::default(),
            ms_max_events: MaxEvents::default(),
            ms_class_order: ClassOrder::default(),
            ms_buffer_pools: 4,
            ms_busy_poll: RuntimeConfig::BUSY_POLL,
            ms_connections_max: 10_000,
            ms_local_sockets: true,
            ms_shared_memory: true,
            ms_idle_timeout: None,
            journal_sync_interval: Duration::from_millis(200),
            journal_bytes_max: 512 << 20,
            fragment_slot_bytes: 32 << 10,
            ratios: FullRatios::default(),
            store: StoreConfig::File,
            path_cut: PathCut::None,
            heartbeat_interval: Duration::from_millis(500),
            osd_recovery_max_active: 8,
            osd_recovery_max_bytes_per_sec: 0,
            osd_dirty_objects_max: PgShard::DIRTY_OBJECTS_MAX,
            osd_scrub_min_interval: Duration::from_secs(86_400),
            osd_deep_scrub_interval: Duration::from_secs(7 * 86_400),
            osd_scrub_bytes_per_sec: 32 << 20,
            monitor_wait_max: Duration::from_secs(30),
            live: LiveStart::default(),
            cancel: Arc::default(),
        }
    }
}

/// Where an OSD keeps journals and fragments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreConfig {
    /// In files of its directory.
    File,
    /// In memory, `memstore`: gone when it stops. The directory holds superblock, lock and boot
    /// file all the same.
    Memory {
        /// What journals and fragments may take together, in bytes; then writers are told that the
        /// disk is full.
        bytes_max: u64,
    },
}

/// Why an OSD did not start.
#[derive(Debug, thiserror::Error)]
pub enum OsdError {
    /// Its data directory.
    #[error(transparent)]
    Data(#[from] DataDirError),
    /// A small file in its data directory.
    #[error("data directory {dir}: {source}")]
    Io {
        /// The directory.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A core cannot be opened.
    #[error("core {core}: {source}")]
    Core {
        /// Which.
        core: u16,
        /// Why.
        source: Box<CoreError>,
    },
    /// Threads.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// The address.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The monitor did not answer.
    #[error("cannot reach the monitor at {addrs} within {}s: start it, or correct monitor_addr", waited.as_secs())]
    NoMonitor {
        /// Where it, or each of several, should be.
        addrs: HostPorts,
        /// How long was waited.
        waited: Duration,
    },
    /// The monitor does not talk to this program.
    #[error("the monitor at {addrs} refuses the connection: {refusal}")]
    MonitorRefused {
        /// Where it is, or each of several.
        addrs: HostPorts,
        /// Why.
        refusal: Refusal,
    },
    /// The monitor does not take the OSD in.
    #[error("the monitor refuses this osd: {0}")]
    Refused(String),
    /// Its data directory is empty, and the cluster knows its data.
    #[error(
        "{id} has data in this cluster, and its data directory {} is empty: mount its disk there, or, if the disk is lost, \
         run `trefoil osd replace {id}` and start {id} again", dir.display()
    )]
    DiskMissing {
        /// Who.
        id: OsdId,
        /// Where its data should be.
        dir: PathBuf,
    },
    /// A path that drops what it acknowledges, before data that somebody may want.
    #[error(
        "osd_path_cut drops acknowledged writes, so it is allowed with osd_objectstore = \"memstore\" only"
    )]
    CutOverDisk,
    /// [`OsdConfig::cancel`] was set.
    #[error("the start was cancelled")]
    Cancelled,
    /// A worker ended in a panic.
    #[error("a worker thread ended while the osd started")]
    Died,
}

/// A running OSD. Dropping it ends it as the death of its process would: nothing is synced, the
/// monitor hears nothing.
pub struct OsdHandle {
    addr: SocketAddr,
    id: OsdId,
    shared: Arc<Shared>,
    listener: Option<Arc<Listener>>,
    // first: an OSD that is no more must not be thought alive
    heart: Option<Runtime>,
    runtime: Option<Runtime>,
    power: Arc<PowerFile>,
    // the lock: goes last
    _dir: Arc<DataDir>,
}

impl OsdHandle {
    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Its number.
    pub fn id(&self) -> OsdId {
        self.id
    }

    /// Its workers.
    pub fn workers(&self) -> &messenger::Handle {
        &self.shared.handle
    }

    /// The newest map that it has.
    pub fn map(&self) -> Option<Arc<ClusterMap>> {
        self.shared.map()
    }

    /// Messages that no correct peer sends; each closed its connection.
    pub fn malformed_messages(&self) -> u64 {
        self.shared.malformed.load(Ordering::Relaxed)
    }

    /// Its messenger: connections, what each worker does on them, and how they are mapped to
    /// workers.
    pub fn listener(&self) -> Option<&Listener> {
        self.listener.as_deref()
    }

    /// Stops it: takes nothing more, syncs everything, tells the monitor, frees the directory. For
    /// ordinary threads: on a worker it would wait for itself.
    pub fn stop(mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        self.shared.stopping.store(true, Ordering::Release);
        if let Some(heart) = self.heart.take() {
            heart.shutdown();
        }
        drop(self.listener.take());
        let handle = runtime.handle();
        let cores = usize::from(self.shared.config.osd_op_threads);
        let cores: Vec<_> = (0..cores).map(|i| handle.run_on(i, side::stop)).collect();
        let synced: Vec<bool> =
            cores.into_iter().map(|done| block_on(done).unwrap_or(false)).collect();
        if synced.iter().all(|synced| *synced)
            && let Err(error) = self.power.clean_stop(Losses::default())
        {
            tracing::warn!(osd = %self.id, %error, "the clean stop cannot be noted");
        }
        self.shared.leave();
        if let Some(monitor) = self.shared.monitor() {
            monitor.close();
        }
        runtime.shutdown();
        tracing::info!(osd = %self.id, "stopped");
    }
}

impl std::fmt::Debug for OsdHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OsdHandle")
            .field("id", &self.id)
            .field("addr", &self.addr)
            .finish_non_exhaustive()
    }
}

impl Drop for OsdHandle {
    fn drop(&mut self) {
        // With the runtime, which the fields' drop ends next, nothing new may begin.
        self.shared.stopping.store(true, Ordering::Release);
    }
}

/// Starts the role. For ordinary threads: it waits for the monitor and reads the journals.
///
/// # Errors
/// See [`OsdError`]. Nothing runs then, and the directory is free.
pub fn start(config: OsdConfig) -> Result<OsdHandle, OsdError> {
    if config.path_cut != PathCut::None && config.store == StoreConfig::File {
        return Err(OsdError::CutOverDisk);
    }
    // A directory that exists says whose it is: a second holder or another OSD's data show before
    // anyone is asked.
    let found = match DataDir::peek(&config.dir) {
        Ok(superblock) => Some(DataDir::open(&config.dir, superblock.cluster, config.id)?),
        Err(DataDirError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error.into()),
    };
    let workers = config.ms_workers.max(config.osd_op_threads);
    let mut runtime = RuntimeConfig::new(config.id.to_string(), usize::from(workers));
    runtime.max_events = config.ms_max_events;
    runtime.class_order = config.ms_class_order;
    runtime.pools.pools = usize::from(config.ms_buffer_pools);
    runtime.busy_poll = config.ms_busy_poll;
    runtime.shared_memory = config.ms_shared_memory;
    runtime.telemetry = config.telemetry;
    runtime.blocking_threads_max = usize::from(config.filestore_op_threads).max(1);
    let runtime = Runtime::start(runtime)?;
    let shared = Arc::new(Shared::new(config, runtime.handle()));
    let starting = Starting { shared: Arc::clone(&shared) };
    let mut held = None;
    let prepared = found.map(|found| starting.prepare(found)).transpose().map(|dir| held = dir);
    match prepared.and_then(|()| starting.run(&mut held, &runtime)) {
        Ok(Started { addr, listener, heart, power, dir }) => {
            let (id, listener, runtime, heart) =
                (shared.config.id, Some(listener), Some(runtime), Some(heart));
            Ok(OsdHandle { addr, id, shared, listener, runtime, heart, power, _dir: dir })
        }
        Err(error) => {
            shared.stopping.store(true, Ordering::Release);
            // before the directory's lock goes
            runtime.shutdown();
            Err(error)
        }
    }
}

/// A start under way.
struct Starting {
    shared: Arc<Shared>,
}

/// What it gives.
struct Started {
    addr: SocketAddr,
    listener: Arc<Listener>,
    heart: Runtime,
    power: Arc<PowerFile>,
    dir: Arc<DataDir>,
}

impl Starting {
    /// A directory as the cores use it.
    fn prepare(&self, dir: DataDir) -> Result<Arc<DataDir>, OsdError> {
        let Some(memory) = &self.shared.memory else { return Ok(Arc::new(dir)) };
        let (osd, cut) = (self.shared.config.id, self.shared.config.path_cut);
        tracing::warn!(%osd, "MEMSTORE: this osd keeps everything in memory; what it holds is GONE when it stops");
        if cut != PathCut::None {
            tracing::error!(%osd, cut = cut.as_str(), "PATH CUT: this osd drops every write it acknowledges");
        }
        Ok(Arc::new(dir.in_memory(memory.clone())?))
    }

    /// `held`: the directory, if it was there; made here if not.
    fn run(&self, held: &mut Option<Arc<DataDir>>, runtime: &Runtime) -> Result<Started, OsdError> {
        let config = &self.shared.config;
        if let Some(dir) = held {
            self.shared.cluster.learn(dir.superblock().cluster);
        }
        link::connect(&self.shared);
        let map = self.first_map(held.as_deref())?;
        let dir = match held {
            Some(dir) => Arc::clone(dir),
            None if is_missed(&map, config.id) => {
                return Err(OsdError::DiskMissing { id: config.id, dir: config.dir.clone() });
            }
            None => Arc::clone(held.insert(self.prepare(DataDir::open(
                &config.dir,
                map.cluster,
                config.id,
            )?)?)),
        };
        if dir.superblock().cluster != map.cluster {
            let (theirs, ours) = (dir.superblock().cluster, map.cluster);
            return Err(DataDirError::OtherCluster { dir: config.dir.clone(), ours, theirs }.into());
        }
        let io = |source| OsdError::Io { dir: config.dir.clone(), source };
        let (power, mut losses) =
            PowerFile::begin(dir.path(), dir.was_created(), self.shared.memory.is_some())
                .map_err(io)?;
        if self.shared.memory.is_none() {
            self.shared.scrub.lock().load(dir.path().join(scrub::FILE));
        }
        if self.open_cores(&dir, map.cluster, runtime)? {
            // even without a loss of power, as a sector may rot: what the journal drops now, others
            // may count on
            power.note_lost().map_err(io)?;
            losses.lost = true;
        }
        let mut listen = ListenConfig::new(config.listen, map.cluster, config.id.to_string());
        listen.placement = config.ms_placement;
        listen.connections_max = config.ms_connections_max;
        listen.local_sockets = config.ms_local_sockets;
        listen.session.idle_timeout = config.ms_idle_timeout;
        // what a write brings is checked, and summed by sector, in one pass
        listen.session.block_crcs = true;
        let for_services = Arc::clone(&self.shared);
        let listener =
            runtime.handle().listen(listen, move |worker| service::make(&for_services, worker))?;
        let listener = Arc::new(listener);
        self.shared.set_listener(&listener);
        let addr = listener.local_addr();
        let fsid = dir.superblock().fsid;
        let identity = Identity { fsid, addr: addresses::advertised(config.advertise, addr) };
        self.boot(identity, losses)?;
        power.told().map_err(io)?;
        let power = Arc::new(power);
        let heart = heart::start(&self.shared, map.cluster, Arc::clone(&power))?;
        tracing::info!(osd = %config.id, %addr, cores = config.osd_op_threads, "osd serves");
        Ok(Started { addr, listener, heart, power, dir })
    }

    /// May a wait that began at `began` go on?
    fn check(&self, dir: Option<&DataDir>, began: Instant) -> Result<(), OsdError> {
        let config = &self.shared.config;
        if config.cancel.load(Ordering::Acquire) {
            return Err(OsdError::Cancelled);
        }
        match (self.shared.refusal.lock().clone(), dir) {
            (Some(Refusal::Cluster { theirs, .. }), Some(dir)) => {
                let (mine, path) = (dir.superblock().cluster, config.dir.clone());
                Err(DataDirError::OtherCluster { dir: path, ours: theirs, theirs: mine }.into())
            }
            (Some(refusal), _) => {
                Err(OsdError::MonitorRefused { addrs: config.monitors.clone(), refusal })
            }
            (None, _) if began.elapsed() >= config.monitor_wait_max => {
                let (addrs, waited) = (config.monitors.clone(), config.monitor_wait_max);
                Err(OsdError::NoMonitor { addrs, waited })
            }
            (None, _) => Ok(()),
        }
    }

    fn first_map(&self, dir: Option<&DataDir>) -> Result<Arc<ClusterMap>, OsdError> {
        let config = &self.shared.config;
        let began = Instant::now();
        let mut log_at = began + START_LOG_EVERY;
        loop {
            if let Some(map) = self.shared.map() {
                return Ok(map);
            }
            self.check(dir, began)?;
            if Instant::now() >= log_at {
                log_at += START_LOG_EVERY;
                tracing::warn!(osd = %config.id, monitor = %config.monitors, "waiting for the monitor");
            }
            std::thread::sleep(START_POLL);
        }
    }

    /// Opens every core on its worker. True: the journal of one names bytes that are not on the
    /// disk.
    fn open_cores(
        &self,
        dir: &Arc<DataDir>,
        cluster: ClusterId,
        runtime: &Runtime,
    ) -> Result<bool, OsdError> {
        let handle = runtime.handle();
        let open = |core: u16| {
            let (shared, dir) = (Arc::clone(&self.shared), Arc::clone(dir));
            let opened = handle.run_on(usize::from(core), move |worker| {
                let result = side::open(shared, &dir, cluster, core, &worker);
                drop(dir);
                std::future::ready(result)
            });
            (core, opened)
        };
        let opening: Vec<_> = (0..self.shared.config.osd_op_threads).map(open).collect();
        let opened: Vec<_> =
            opening.into_iter().map(|(core, opened)| (core, block_on(opened))).collect();
        let mut lacks_bytes = false;
        for (core, result) in opened {
            let result = result.map_err(|_| OsdError::Died)?;
            lacks_bytes |=
                result.map_err(|source| OsdError::Core { core, source: Box::new(source) })?;
        }
        Ok(lacks_bytes)
    }

    /// Tells the monitor of the start until it has answered.
    fn boot(&self, identity: Identity, losses: Losses) -> Result<(), OsdError> {
        if self.shared.identity.set(identity).is_err() {
            return Err(OsdError::Died);
        }
        let request = self.shared.boot_request(losses);
        let began = Instant::now();
        loop {
            self.check(None, began)?;
            match block_on(self.shared.ask(&request, BOOT_ANSWER_MAX)) {
                Ok(MonitorReply::Done(epoch)) => {
                    let serve = self.shared.handle.run_on(0, move |worker| async move {
                        control::serve(&worker, epoch);
                    });
                    return block_on(serve).map_err(|_| OsdError::Died);
                }
                Ok(MonitorReply::Refused(why)) => return Err(OsdError::Refused(why)),
                Ok(other) => {
                    tracing::warn!(?other, "the monitor gives no answer to a boot message")
                }
                Err(error) => tracing::warn!(%error, "no answer to a boot message"),
            }
            std::thread::sleep(START_POLL);
        }
    }
}

/// Does the cluster know this OSD with a disk that nobody has given up? One that is empty in its
/// place was forgotten to be mounted, most likely: nothing is made in it.
fn is_missed(map: &ClusterMap, id: OsdId) -> bool {
    map.osds.get(&id).is_some_and(|osd| osd.fsid != 0 && !osd.replace)
}

impl Shared {
    /// Tells the monitor that this OSD goes, if it can be reached at once.
    fn leave(&self) {
        if self.monitor().is_some_and(|monitor| monitor.is_up()) {
            let request = self.leave_request();
            if let Err(error) = block_on(self.ask(&request, LEAVE_ANSWER_MAX)) {
                tracing::debug!(%error, "the monitor was not told of the stop");
            }
        }
    }
}
