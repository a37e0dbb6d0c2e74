//! What all workers of an OSD, and its handle, share.
//!
//! Contract: touched when maps change and heartbeats leave, not by reads and writes.

use super::power::Losses;
use super::rhythm::{self, Slow};
use super::scrub::Board;
use super::{OsdConfig, StoreConfig};
use crate::admin::LiveConfig;
use bytes::Bytes;
use cluster::ClusterMap;
use ec_store::core::{CoreStats, SyncSeen};
use ec_store::disk;
use ec_store::medium::{Medium as _, Memory};
use ec_store::space::DiskUse;
use messenger::sync::ContentionMutex;
use messenger::{CallError, Connection, Handle, Listener, Message, Refusal, TrafficClass};
use protocol::monitor::{MonitorReply, MonitorRequest, ObjectStore, OsdReport};
use protocol::{ClusterId, DecodeError, Kind};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

/// What an OSD says of itself at boot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Identity {
    /// Of its disk.
    pub fsid: u128,
    /// Where it is reached.
    pub addr: SocketAddr,
    /// Whose it is.
    pub cluster: ClusterId,
}

/// A core's last sign of life.
#[derive(Clone, Debug)]
pub(super) struct Pulse {
    pub at: Instant,
    /// For how long the disk has not ended a sync, though asked to.
    pub sync_stall: Duration,
    /// The last two syncs, the older one first.
    pub syncs: [Option<SyncSeen>; 2],
    pub stats: CoreStats,
    /// Bytes that the disk still takes.
    pub free_bytes: u64,
    /// Why it serves no more.
    pub poison: Option<String>,
}

/// Why a question to the monitor has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    /// There is no connection.
    #[error("not connected to the monitor")]
    NotConnected,
    /// The call.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The answer.
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

/// Asks the monitor on one connection. The question is queued at once; the future is for the
/// answer.
pub(super) fn ask_on(
    monitor: &Connection,
    request: &MonitorRequest,
    deadline: Duration,
) -> impl Future<Output = Result<MonitorReply, AskError>> + Send + use<> {
    let front = protocol::encode(request);
    let message = Message::new(TrafficClass::Control, Kind::Monitor.to_u16(), front, Bytes::new());
    let call = monitor.call(message, deadline);
    async move {
        let reply = call.await?;
        Ok(protocol::decode("monitor reply", &reply.front)?)
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Shared {
    pub config: OsdConfig,
    pub handle: Handle,
    /// What `trefoil config` shows and changes.
    pub live: Arc<LiveConfig>,
    /// What holds everything, if that is no disk.
    pub memory: Option<Memory>,
    /// What the cores do to the disk.
    pub disk: Arc<DiskUse>,
    /// Set once, before the first boot message.
    pub identity: OnceLock<Identity>,
    /// Where it listens, once it does; its owner is the handle.
    listener: OnceLock<Weak<Listener>>,
    /// Nothing new may begin.
    pub stopping: AtomicBool,
    /// It left the cluster because of its disk, and does not boot again for now.
    pub away: AtomicBool,
    /// Messages that no correct peer sends.
    pub malformed: AtomicU64,
    /// The monitor will have nothing to do with this program.
    pub refusal: ContentionMutex<Option<Refusal>>,
    /// What is scrubbed, and what was found.
    pub scrub: ContentionMutex<Board>,
    monitor: ContentionMutex<Option<Connection>>,
    map: ContentionMutex<Option<Arc<ClusterMap>>>,
    pulses: ContentionMutex<Vec<Option<Pulse>>>,
}

impl Shared {
    pub fn new(config: OsdConfig, handle: Handle) -> Self {
        let locks = handle.locks().clone();
        let memory = match config.store {
            StoreConfig::Memory { bytes_max } => Some(Memory::new(bytes_max, &locks)),
            StoreConfig::File => None,
        };
        let disk = DiskUse::new(config.osd_op_threads);
        let pulses = vec![None; usize::from(config.osd_op_threads)];
        Self {
            live: LiveConfig::new(config.live.clone(), &locks),
            config,
            handle,
            memory,
            disk,
            identity: OnceLock::new(),
            listener: OnceLock::new(),
            stopping: AtomicBool::new(false),
            away: AtomicBool::new(false),
            malformed: AtomicU64::new(0),
            refusal: ContentionMutex::new(&locks, "osd refusal", None),
            scrub: ContentionMutex::new(&locks, "osd scrub", Board::default()),
            monitor: ContentionMutex::new(&locks, "osd monitor", None),
            map: ContentionMutex::new(&locks, "osd map", None),
            pulses: ContentionMutex::new(&locks, "osd pulses", pulses),
        }
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// The connection to the monitor.
    pub fn monitor(&self) -> Option<Connection> {
        self.monitor.lock().clone()
    }

    pub fn set_monitor(&self, connection: Connection) {
        *self.monitor.lock() = Some(connection);
    }

    /// The newest map.
    pub fn map(&self) -> Option<Arc<ClusterMap>> {
        self.map.lock().clone()
    }

    pub fn set_map(&self, map: Arc<ClusterMap>) {
        *self.map.lock() = Some(map);
    }

    /// Asks the monitor. The question is queued at once; the future is for the answer.
    pub fn ask(
        &self,
        request: &MonitorRequest,
        deadline: Duration,
    ) -> impl Future<Output = Result<MonitorReply, AskError>> + Send + use<> {
        let call = self.monitor().map(|monitor| ask_on(&monitor, request, deadline));
        async move { call.ok_or(AskError::NotConnected)?.await }
    }

    /// The boot message.
    ///
    /// # Panics
    /// Before [`Shared::identity`] is set.
    pub fn boot_request(&self, losses: Losses) -> MonitorRequest {
        let identity = self.identity.get().expect("the identity is known before anyone is told");
        MonitorRequest::Boot {
            osd: self.config.id,
            fsid: identity.fsid,
            addr: identity.addr,
            cores: self.config.osd_op_threads,
            lost: losses.lost,
            blank: losses.blank,
            host: self.config.host.clone(),
        }
    }

    /// It listens. Called once.
    pub fn set_listener(&self, listener: &Arc<Listener>) {
        // A second one would have to be that of another start, which has other shared state.
        let _ = self.listener.set(Arc::downgrade(listener));
    }

    /// Where it listens, while it does.
    pub fn listener(&self) -> Option<Arc<Listener>> {
        self.listener.get()?.upgrade()
    }

    /// A core is alive.
    pub fn set_pulse(&self, core: usize, pulse: Pulse) {
        self.pulses.lock()[core] = Some(pulse);
    }

    /// What the cores had counted at their last signs of life.
    #[cfg(test)]
    pub fn core_stats(&self) -> Vec<ec_store::core::CoreStats> {
        self.pulses.lock().iter().flatten().map(|pulse| pulse.stats.clone()).collect()
    }

    /// Why the disk of some core serves no more, if so.
    pub fn poison(&self) -> Option<String> {
        self.pulses.lock().iter().flatten().find_map(|pulse| pulse.poison.clone())
    }

    /// How long the core that is silent longest has given no sign of life.
    pub fn silence(&self) -> Duration {
        self.pulses
            .lock()
            .iter()
            .flatten()
            .map(|pulse| pulse.at.elapsed())
            .max()
            .unwrap_or_default()
    }

    /// For how long the disk has not ended a sync that a core waits for.
    pub fn sync_stall(&self) -> Duration {
        self.pulses.lock().iter().flatten().map(|pulse| pulse.sync_stall).max().unwrap_or_default()
    }

    /// How slow the syncs are of the core of which they have been slow for the longest time.
    pub fn slow(&self) -> Slow {
        let slow = |pulse: &Pulse| rhythm::slow(&pulse.syncs, pulse.at);
        self.pulses.lock().iter().flatten().map(slow).max().unwrap_or_default()
    }

    /// Can every PG of this OSD go on without it, as the map has it?
    pub fn is_spare(&self) -> bool {
        let Some(map) = self.map() else { return false };
        map.pgs.iter().all(|(id, pg)| {
            let Some(mine) = map.shard_of(*id, self.config.id) else { return true };
            let others = map.up_shards(*id).intersection(pg.in_sync).without(mine);
            map.pools.get(&id.pool).is_some_and(|pool| others.len() >= u32::from(pool.profile.k()))
        })
    }

    /// How the OSD is.
    pub fn report(&self) -> OsdReport {
        let dir = &self.config.dir;
        let (space, disk) = match &self.memory {
            Some(memory) => (memory.space(dir), 0),
            None => (disk::space(dir), std::fs::metadata(dir).map_or(0, |metadata| metadata.dev())),
        };
        let space = space.unwrap_or_default();
        let mut report = OsdReport {
            osd: self.config.id,
            epoch: self.map().map_or_else(Default::default, |map| map.epoch),
            disk,
            object_store: if self.memory.is_some() {
                ObjectStore::Memory
            } else {
                ObjectStore::File
            },
            path_cut: self.config.path_cut,
            total_bytes: space.total_bytes,
            used_bytes: space.used_bytes,
            used_percent: (space.used_ratio() * 100.0) as u8,
            scrub: Box::new(self.scrub.lock().report()),
            ..OsdReport::default()
        };
        let pulses = self.pulses.lock();
        report.free_bytes =
            pulses.iter().flatten().map(|pulse| pulse.free_bytes).min().unwrap_or(space.free_bytes);
        let longest = |pulse: &Pulse| rhythm::longest_of_late(&pulse.syncs, pulse.at);
        let longest = pulses.iter().flatten().map(longest).max().unwrap_or_default();
        report.sync_ms = longest.as_micros().div_ceil(1_000) as u64;
        for stats in pulses.iter().flatten().map(|pulse| &pulse.stats) {
            report.stored_bytes += stats.stored_bytes;
            report.journal_bytes += stats.journal_bytes;
            report.journal_records += stats.journal_records;
            report.to_rebuild.extend(&stats.to_rebuild);
            report.rebuilt_bytes += stats.rebuilt_bytes;
            report.recovered_bytes += stats.recovered_bytes;
            report.corrupt_found += stats.corrupt_found;
            report.corrupt_repaired += stats.corrupt_repaired;
            report.reads += stats.reads;
            report.writes += stats.writes;
            report.read_bytes += stats.read_bytes;
            report.write_bytes += stats.write_bytes;
            report.fullness = report.fullness.max(stats.fullness);
            report.backfills_waiting += stats.backfills_waiting;
        }
        report
    }
}
