//! The roles of one process, started in order and stopped in reverse.
//!
//! Contract: [`start`] returns when every role serves, or starts none; only an OSD whose disk is
//! missing does not keep a process with a monitor from serving. [`Running::stop`] stops all
//! cleanly.

use crate::addresses::{self, AddressError, Addresses, OsdAddresses};
use crate::admin::{LiveStart, Log};
use crate::config::{Config, Role};
use crate::data_client::DataClient;
use crate::mds::{self, MdsConfig, MdsError, MdsHandle};
use crate::monitor::{self, MonitorConfig, MonitorError, MonitorHandle};
use crate::osd::{self, OsdConfig, OsdError, OsdHandle};
use crate::readiness;
use crate::supervisor::{self, Supervisor};
use cluster::{ControlError, PoolSpec};
use ec_store::superblock::DataDirError;
use messenger::address::HostPorts;
use messenger::http::{HttpError, HttpServer};
use messenger::{Handle, Runtime, RuntimeConfig, RuntimeError};
use metadata::StoreError;
use protocol::OsdId;
use protocol::monitor::ClusterStatus;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Acquire};
use std::time::{Duration, Instant};

/// Why a role did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The monitor.
    #[error(transparent)]
    Monitor(#[from] MonitorError),
    /// The metadata service.
    #[error(transparent)]
    Mds(#[from] MdsError),
    /// A storage daemon.
    #[error("osd.{id}: {source}")]
    Osd {
        /// Which.
        id: u32,
        /// Why.
        source: Box<OsdError>,
    },
    /// Threads or event queues could not be made.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// The page of metrics.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// A name of the configuration.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A thread could not be made.
    #[error("cannot make a thread: {0}")]
    Thread(std::io::Error),
}

impl StartError {
    /// Another process has a directory that a role needs.
    fn is_held(&self) -> bool {
        match self {
            Self::Monitor(MonitorError::Control(ControlError::InUse { .. })) => true,
            Self::Mds(MdsError::Store(StoreError::Locked { .. })) => true,
            Self::Osd { source, .. } => {
                matches!(**source, OsdError::Data(DataDirError::Held { .. }))
            }
            _ => false,
        }
    }
}

/// The roles that run in this process.
#[derive(Default)]
pub struct Running {
    monitor: Option<(MonitorHandle, Runtime)>,
    mds: Option<(Supervisor<Mds>, Runtime)>,
    osds: Vec<OsdHandle>,
    http: Option<HttpServer>,
    /// What the monitor said when the whole cluster in this process began to serve.
    status: Option<ClusterStatus>,
}

/// How long a whole cluster may take to begin to serve before it is announced all the same.
const SERVING_WAIT_MAX: Duration = Duration::from_secs(15);

/// How long a directory may stay another process's: one that was killed holds its locks until its
/// last thread comes back from the disk.
const HELD_WAIT_MAX: Duration = Duration::from_secs(5);
/// Pause between two attempts to start.
const HELD_PAUSE: Duration = Duration::from_millis(100);

/// The metadata service with what belongs to it.
struct Mds {
    handle: Arc<MdsHandle>,
    data: DataClient,
}

impl Mds {
    fn start(config: MdsConfig, handle: &Handle) -> Result<Mds, StartError> {
        let monitors = config.monitors.clone();
        let mds = Arc::new(mds::start(config, handle)?);
        let data =
            DataClient::start(&monitors, &mds, handle.locks()).map_err(StartError::Thread)?;
        Ok(Mds { handle: mds, data })
    }

    /// Starts it after its store has failed, or could not be opened, mostly for want of space:
    /// without its reserve.
    fn start_again(config: &MdsConfig, handle: &Handle) -> Result<Mds, StartError> {
        if mds::reserve::release(&config.dir) {
            tracing::warn!(dir = %config.dir.display(), "the metadata service gives its reserved space up");
        }
        Mds::start(config.clone(), handle)
    }
}

impl supervisor::Role for Mds {
    fn is_running(&self) -> bool {
        self.handle.is_running()
    }

    fn stop(self) {
        self.data.stop();
        match Arc::try_unwrap(self.handle) {
            Ok(handle) => handle.stop(),
            Err(_) => {
                tracing::warn!("the metadata service is still in use: it stops with its threads")
            }
        }
    }
}

/// Starts the roles that the configuration names: the monitor first, since the others ask it.
///
/// `log`: what changes the process's log filter. Setting `cancel` ends a start that waits for the
/// monitor, or for the process that had its directory before, which may take 5 s to be gone.
///
/// # Errors
/// [`StartError`]; what was started until then is stopped again.
pub fn start(
    config: &Config,
    log: Option<&Arc<Log>>,
    cancel: &Arc<AtomicBool>,
) -> Result<Running, StartError> {
    let found = addresses::find(config, cancel)?;
    let wait_until = Instant::now() + HELD_WAIT_MAX;
    loop {
        let mut running = Running::default();
        let Err(error) = running.start_all(config, &found, log, cancel) else { return Ok(running) };
        running.stop();
        if !error.is_held() || Instant::now() >= wait_until || cancel.load(Acquire) {
            return Err(error);
        }
        tracing::debug!(%error, "waits for the other process to end");
        std::thread::sleep(HELD_PAUSE);
    }
}

impl Running {
    fn start_all(
        &mut self,
        config: &Config,
        found: &Addresses,
        log: Option<&Arc<Log>>,
        cancel: &Arc<AtomicBool>,
    ) -> Result<(), StartError> {
        let live = || LiveStart { settings: config.settings.clone(), log: log.cloned() };
        let wants = |role| config.roles.contains(&role);
        // With port 0 only the monitor itself knows where it is reached.
        let mut monitor_addr = found.monitor;
        if wants(Role::Monitor) {
            let runtime = Runtime::start(runtime_config(config, "monitor"))?;
            let monitor = monitor::start(
                MonitorConfig {
                    live: live(),
                    quorum: found.quorum.clone(),
                    ..monitor_config(config, found.monitor_listen)
                },
                &runtime.handle(),
            )?;
            if monitor_addr.port() == 0 {
                monitor_addr.set_port(monitor.addr().port());
            }
            self.monitor = Some((monitor, runtime));
        }
        let monitors = found.dialled.clone().unwrap_or_else(|| monitor_addr.into());
        if wants(Role::Osd) {
            for addresses in &found.osds {
                let osd_config = OsdConfig {
                    live: live(),
                    cancel: Arc::clone(cancel),
                    ..osd_config(config, addresses, &monitors)
                };
                match osd::start(osd_config) {
                    Ok(osd) => self.osds.push(osd),
                    // The operator answers with a command that asks the monitor, which must not end
                    // because of it.
                    Err(error @ OsdError::DiskMissing { .. }) if self.monitor.is_some() => {
                        tracing::error!(%error, "the other roles of this process serve without it");
                    }
                    Err(source) => {
                        return Err(StartError::Osd { id: addresses.id, source: Box::new(source) });
                    }
                }
            }
        }
        if wants(Role::Mds) {
            let busy_poll = config.ms_busy_poll;
            let runtime =
                Runtime::start(RuntimeConfig { busy_poll, ..runtime_config(config, "mds") })?;
            let mds_config = MdsConfig {
                live: live(),
                advertise: found.mds_advertise,
                ms_connections_max: config.ms_connections_max,
                ms_local_sockets: config.ms_local_sockets,
                ms_idle_timeout: config.ms_idle_timeout,
                sync_interval: Duration::from_millis(config.mds_sync_interval_ms),
                ..MdsConfig::new(found.mds_listen, config.role_dir("mds"), monitors.clone())
            };
            let handle = runtime.handle();
            let mds = match Mds::start(mds_config.clone(), &handle) {
                Err(StartError::Mds(MdsError::Store(StoreError::Backend(_)))) => {
                    Mds::start_again(&mds_config, &handle)?
                }
                started => started?,
            };
            let addr = mds.handle.addr();
            let again = move || {
                let config = MdsConfig { listen: addr, ..mds_config.clone() };
                Mds::start_again(&config, &handle).map_err(|error| error.to_string())
            };
            let watched = Supervisor::start("mds", addr, mds, runtime.handle().locks(), again);
            self.mds = Some((watched.map_err(StartError::Thread)?, runtime));
        }
        if let Some(addr) = config.http_listen {
            let monitor = self.monitor.iter().map(|(_, runtime)| runtime.handle());
            let osds = self.osds.iter().map(|osd| osd.workers().clone());
            let mds = self.mds.iter().map(|(_, runtime)| runtime.handle());
            let cluster = self.monitor.as_ref().map(|(monitor, _)| monitor.metrics());
            let cluster = move || cluster.as_ref().map(|tell| tell()).unwrap_or_default();
            self.http =
                Some(HttpServer::metrics(addr, monitor.chain(osds).chain(mds).collect(), cluster)?);
        }
        if let (Some((_, runtime)), Some(_), false) =
            (&self.monitor, &self.mds, self.osds.is_empty())
        {
            self.status =
                readiness::wait_until_serving(&runtime.handle(), monitor_addr, SERVING_WAIT_MAX);
        }
        Ok(())
    }

    /// Where the whole cluster runs in this process: what the monitor said when it began to serve.
    pub fn status(&self) -> Option<&ClusterStatus> {
        self.status.as_ref()
    }

    /// Did this start make the cluster? Only known where the monitor runs.
    pub fn is_new(&self) -> bool {
        self.monitor.as_ref().is_some_and(|(monitor, _)| monitor.created())
    }

    /// Role and address, in the order in which they were started.
    pub fn addresses(&self) -> impl Iterator<Item = (String, SocketAddr)> {
        let monitor = self.monitor.iter().map(|(m, _)| ("monitor".to_owned(), m.addr()));
        let osds = self.osds.iter().map(|o| (o.id().to_string(), o.addr()));
        let mds = self.mds.iter().map(|(m, _)| ("mds".to_owned(), m.addr()));
        let http = self.http.iter().map(|http| ("http".to_owned(), http.addr()));
        monitor.chain(osds).chain(mds).chain(http)
    }

    /// Stops every role. The monitor goes before the OSDs: their leaving one after the other is no
    /// news that should shrink in-sync sets.
    pub fn stop(self) {
        drop(self.http);
        if let Some((mds, runtime)) = self.mds {
            mds.stop();
            runtime.shutdown();
        }
        if let Some((monitor, runtime)) = self.monitor {
            monitor.stop();
            runtime.shutdown();
        }
        self.osds.into_iter().for_each(OsdHandle::stop);
    }
}

/// The one worker of the monitor or the metadata service.
fn runtime_config(config: &Config, name: &str) -> RuntimeConfig {
    // They carry no data that would be worth it.
    let shared_memory = false;
    RuntimeConfig { telemetry: config.telemetry, shared_memory, ..RuntimeConfig::new(name, 1) }
}

fn monitor_config(config: &Config, listen: SocketAddr) -> MonitorConfig {
    let settings = cluster::Settings {
        heartbeat_grace: Duration::from_millis(config.osd_heartbeat_grace_ms),
        session_ttl: Duration::from_millis(config.session_ttl_ms),
        ..cluster::Settings::default()
    };
    let pool =
        PoolSpec { name: "data".into(), profile: config.profile, pg_num: config.pool_pg_num };
    let dir = config.role_dir("monitor");
    MonitorConfig {
        pool,
        settings,
        ms_connections_max: config.ms_connections_max,
        ms_local_sockets: config.ms_local_sockets,
        ms_idle_timeout: config.ms_idle_timeout,
        ..MonitorConfig::new(listen, dir, config.osd_count)
    }
}

fn osd_config(config: &Config, addresses: &OsdAddresses, monitors: &HostPorts) -> OsdConfig {
    let id = OsdId::new(addresses.id);
    OsdConfig {
        advertise: addresses.advertise,
        host: config.host.clone(),
        osd_op_threads: config.osd_op_threads,
        filestore_op_threads: config.filestore_op_threads,
        osd_disk_threads: config.osd_disk_threads,
        throttles: config.throttles,
        telemetry: config.telemetry,
        ms_workers: config.ms_workers,
        ms_placement: config.ms_placement,
        ms_max_events: config.ms_max_events,
        ms_class_order: config.ms_class_order,
        ms_buffer_pools: config.ms_buffer_pools,
        ms_busy_poll: config.ms_busy_poll,
        ms_connections_max: config.ms_connections_max,
        ms_local_sockets: config.ms_local_sockets,
        ms_shared_memory: config.ms_shared_memory,
        ms_idle_timeout: config.ms_idle_timeout,
        journal_sync_interval: Duration::from_millis(config.journal_sync_interval_ms),
        journal_bytes_max: config.journal_bytes_max,
        fragment_slot_bytes: config.fragment_slot_bytes,
        ratios: config.ratios,
        store: config.store,
        path_cut: config.path_cut,
        osd_scrub_min_interval: Duration::from_secs(config.osd_scrub_min_interval_s),
        osd_deep_scrub_interval: Duration::from_secs(config.osd_deep_scrub_interval_s),
        osd_scrub_bytes_per_sec: config.osd_scrub_bytes_per_sec,
        osd_recovery_max_active: config.osd_recovery_max_active,
        osd_recovery_max_bytes_per_sec: config.osd_recovery_max_bytes_per_sec,
        osd_dirty_objects_max: config.osd_dirty_objects_max as usize,
        ..OsdConfig::new(id, config.role_dir(&id.to_string()), addresses.listen, monitors.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    #[test]
    fn a_start_waits_for_the_directory_of_a_process_that_ends() {
        let dir = tempfile::tempdir().expect("a directory");
        let settings = Settings {
            roles: Some(vec![Role::Monitor]),
            data_dir: Some(dir.path().to_path_buf()),
            monitor_addr: Some(SocketAddr::from(([127, 0, 0, 1], 0)).into()),
            ..Settings::default()
        };
        let config = Config::new(settings).expect("valid settings");
        let cancel = Arc::new(AtomicBool::new(false));
        let first = start(&config, None, &cancel).expect("the first starts");
        let second = std::thread::scope(|scope| {
            let second = scope.spawn(|| start(&config, None, &cancel));
            std::thread::sleep(2 * HELD_PAUSE);
            first.stop();
            second.join().expect("no panic")
        });
        second.expect("the second starts").stop();
    }
}
