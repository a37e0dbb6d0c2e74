//! The life of a mount: connect, mount, serve, and on a signal or an unmount bring everything to
//! safety.

use crate::adapter::{Adapter, AdapterOptions};
use crate::error::MountError;
use crate::invalidate::{Jobs, kernel_pages};
use crate::options::MountSettings;
use crate::{access_times, daemon, device, mountpoint};
use client::fs::{FileSystem, FsOptions};
use client::monitors::nobody_listens;
use client::{Client, ClientConfig, ClientError};
use fuser::{Config, Session, SessionACL};
use logging::CountedLog;
use messenger::address::HostPorts;
use messenger::http::HttpServer;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};
use tracing_subscriber::EnvFilter;

/// Pause between two attempts to reach the cluster.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// How long a mount waits for the monitor before it gives up.
const CONNECT_WAIT: Duration = Duration::from_secs(10);
/// How long files that are still open keep a mount alive after a signal: then the process ends, and
/// they get errors.
const BUSY_WAIT: Duration = Duration::from_secs(5);
/// Name of the environment variable with the log filter.
const LOG_FILTER: &str = "TREFOIL_LOG";

/// What the main thread waits for.
enum Event {
    /// The session ended: unmounted, or broken.
    Ended(io::Result<()>),
    /// A signal asks to unmount.
    Stop,
}

/// Mounts and serves until unmounted.
///
/// # Errors
/// Everything that [`MountError`] has to say about mounting; [`MountError::Unsynced`] at the end.
pub fn run(settings: &MountSettings) -> Result<(), MountError> {
    start_log(settings)?;
    daemon::detach();
    // A missing device is found before the cluster is asked for anything.
    drop(device::open()?);
    let dir = mountpoint::prepare(&settings.dir)?;
    let client = connect(settings, &dir)?;
    let (pages, jobs) = kernel_pages();
    let options = FsOptions {
        sync_ahead: settings.sync_ahead,
        times_follow: settings.times_follow,
        write_behind_bytes: settings.write_behind_bytes,
        flush_behind: settings.flush_behind,
        identity_of: crate::convert::identity_of,
        atimes: access_times::rules_of(settings.kernel),
        page_bytes: rustix::param::page_size() as u64,
        ..FsOptions::default()
    };
    let fs =
        FileSystem::start(client.clone(), options, Arc::new(pages)).map_err(MountError::Cluster)?;
    let http = settings
        .http_listen
        .map(|addr| HttpServer::metrics(addr, vec![client.handle().clone()], String::new))
        .transpose();
    let served = http.map_err(MountError::from).and_then(|http| {
        let served = serve(settings, &dir, &fs, jobs);
        drop(http);
        served
    });
    // Also after an error: what was written must not depend on how a mount ended.
    let safe = finish(&fs, &client);
    served?;
    safe.map_err(MountError::Unsynced)
}

/// Makes everything safe and ends the session, within the timeout of requests and some seconds.
fn finish(fs: &FileSystem, client: &Client) -> Result<(), ClientError> {
    let synced = fs.sync_everything();
    if let Err(error @ ClientError::TimedOut(_)) = synced {
        // To say goodbye would take as long again. The session ends by itself at the cluster.
        return Err(error);
    }
    synced.and(client.close())
}

fn start_log(settings: &MountSettings) -> Result<(), MountError> {
    let default = if settings.trace { "info,fuse_client::adapter=trace" } else { "info" };
    let filter = EnvFilter::try_from_env(LOG_FILTER).unwrap_or_else(|_| EnvFilter::new(default));
    let log = match &settings.log_file {
        None => CountedLog::on_stderr(),
        Some(path) => CountedLog::in_file(path)
            .map_err(|source| MountError::Log { path: path.clone(), source })?,
    };
    let started = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(log)
        .with_ansi(false)
        .try_init();
    // A second start in one process is a test's.
    drop(started);
    Ok(())
}

/// Opens the session, and tries for as long as the settings say while the cluster cannot be
/// reached.
fn connect(settings: &MountSettings, dir: &Path) -> Result<Client, MountError> {
    let begin = Instant::now();
    loop {
        match attempt(settings, dir) {
            Err(MountError::Cluster(error @ ClientError::Connect { .. }))
                if begin.elapsed() < settings.retry =>
            {
                tracing::warn!(%error, "not mounted yet; trying again");
                thread::sleep(RETRY_PAUSE);
            }
            other => return other,
        }
    }
}

/// Says at once when nothing listens at any of the addresses: the session itself would go on
/// trying.
fn probe(address: &str) -> Result<(), MountError> {
    // What is no address is told by the session.
    let Ok(places) = address.parse::<HostPorts>() else { return Ok(()) };
    let connect = |reason: String| {
        MountError::Cluster(ClientError::Connect { monitor: address.to_owned(), reason })
    };
    nobody_listens(&places, CONNECT_WAIT).map_or(Ok(()), |reason| Err(connect(reason)))
}

/// Opens the session. Runs apart, so that an address where nothing answers does not hold the user
/// up for longer than it takes to be sure.
fn attempt(settings: &MountSettings, dir: &Path) -> Result<Client, MountError> {
    probe(&settings.address)?;
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = format!("fuse-client {}:{}", host.trim_end(), dir.display());
    let mut config = ClientConfig::new(settings.address.clone(), name);
    config.timeout = settings.timeout;
    config.read_policy = settings.read_policy;
    config.hedge_delay = settings.hedge_delay.unwrap_or(config.hedge_delay);
    config.telemetry = settings.telemetry;
    config.op_history = settings.op_history;
    config.workers = settings.workers.unwrap_or(config.workers);
    config.buffer_pools = settings.buffer_pools.unwrap_or(config.buffer_pools);
    config.objecter_inflight_ops =
        settings.objecter_inflight_ops.unwrap_or(config.objecter_inflight_ops);
    let op_bytes = settings.objecter_inflight_op_bytes;
    config.objecter_inflight_op_bytes = op_bytes.unwrap_or(config.objecter_inflight_op_bytes);
    config.busy_poll = settings.busy_poll.unwrap_or(config.busy_poll);
    let (sender, receiver) = channel();
    let connect = move || drop(sender.send(Client::connect(config)));
    thread::Builder::new().name("connect".into()).spawn(connect).map_err(MountError::Daemon)?;
    let late = || ClientError::Connect {
        monitor: settings.address.clone(),
        reason: format!("no answer within {} s", CONNECT_WAIT.as_secs()),
    };
    receiver.recv_timeout(CONNECT_WAIT).unwrap_or_else(|_| Err(late())).map_err(MountError::Cluster)
}

/// Mounts, answers requests, and returns when the mount is gone.
fn serve(
    settings: &MountSettings,
    dir: &Path,
    fs: &FileSystem,
    jobs: Jobs,
) -> Result<(), MountError> {
    let adapter = Adapter::new(fs.clone(), AdapterOptions::of(settings));
    let fd = device::mount(settings, dir)?;
    let undo = |error: io::Error| {
        drop(mountpoint::unmount_now(dir, true));
        MountError::Session(error)
    };
    let mut config = Config::default();
    config.n_threads = Some(settings.threads);
    config.clone_fd = settings.threads > 1;
    // The kernel itself keeps other users out where `allow_other` is not given.
    let session = Session::from_fd(adapter, fd, SessionACL::All, config).map_err(undo)?;
    jobs.start(&session.notifier()).map_err(undo)?;
    let mounted = mountpoint::mounted_on(dir).map_err(undo)?;
    if let Some(mounted) = &mounted {
        device::set_read_ahead(&mounted.device, settings.read_ahead_kib);
        let changed = fs.clone();
        access_times::follow(dir, mounted, move |rules| changed.set_atime_rules(rules))
            .map_err(undo)?;
    }
    let (sender, events) = channel();
    start_threads(session, sender).map_err(undo)?;
    // Only a mount that answers is one: this asks the cluster through the kernel.
    if let Err(error) = rustix::fs::statvfs(dir) {
        return Err(undo(error.into()));
    }
    daemon::report_ready(settings);
    tracing::info!(address = %settings.address, dir = %dir.display(), "mounted");
    wait(dir, mounted.map(|mounted| mounted.device), &events)
}

fn start_threads(session: Session<Adapter>, events: Sender<Event>) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let stop = events.clone();
    thread::Builder::new()
        .name("fuse-session".into())
        .spawn(move || drop(events.send(Event::Ended(session.run()))))?;
    thread::Builder::new().name("signals".into()).spawn(move || {
        for _ in signals.forever() {
            drop(stop.send(Event::Stop));
        }
    })?;
    Ok(())
}

fn wait(dir: &Path, device: Option<String>, events: &Receiver<Event>) -> Result<(), MountError> {
    let mut stopping = false;
    loop {
        let event = match stopping {
            false => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
            true => events.recv_timeout(BUSY_WAIT),
        };
        match event {
            Ok(Event::Ended(Ok(()))) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
            // After an abort of the connection, or when the mount went while a reader looked.
            Ok(Event::Ended(Err(error))) if error.raw_os_error() == Some(libc::ECONNABORTED) => {
                return Ok(());
            }
            Ok(Event::Ended(Err(error))) => return Err(MountError::Session(error)),
            Ok(Event::Stop) => {
                tracing::info!("a signal asks to unmount");
                stopping = true;
                stop(dir, device.as_deref());
            }
            Err(RecvTimeoutError::Timeout) => {
                tracing::warn!("files are still open: they get errors from now on");
                return Ok(());
            }
        }
    }
}

/// Unmounts, if what is mounted there is still ours; what is in use is detached and goes with its
/// last user.
fn stop(dir: &Path, device: Option<&str>) {
    let mounted = mountpoint::mounted_on(dir).ok().flatten();
    let Some(ours) = mounted.filter(|now| Some(now.device.as_str()) == device) else { return };
    match mountpoint::unmount_bounded(dir, &ours.device, false) {
        Ok(()) => {}
        Err(forced @ MountError::Forced { .. }) => tracing::error!("{forced}"),
        Err(error) => {
            tracing::warn!(%error, "cannot unmount at once: detaching");
            if let Err(error) = mountpoint::unmount_now(dir, true) {
                tracing::error!(%error, "cannot detach");
            }
        }
    }
}
