//! The role `monitor`: the cluster map, liveness, sessions and the end of dead sessions, served
//! over the messenger.
//!
//! Contract: [`start`] opens the control plane, makes the cluster at the first start, and listens;
//! the rules are [`cluster::Monitor`]'s. One owner task on one worker holds that state machine; the
//! services on all workers only pass it what arrives. Whatever changes the map is saved before
//! anyone hears of it: a batch of requests is applied, the state is saved on an I/O thread, the map
//! is pushed to subscribers, the requests are answered. Heartbeats and renewals change nothing
//! durable and write nothing. If a save fails, such as for want of space, nothing is told and
//! nothing else is done until one succeeds.
//!
//! `logged`: where the state is kept, a log of what changed. `metrics`: the cluster's state for
//! Prometheus. `clients`: which client is at the other end of which connection, for operators who
//! ask about one.

mod clients;
mod inbox;
mod logged;
mod metrics;
mod owner;
#[cfg(test)]
mod tests;

use crate::admin::{LiveConfig, LiveStart};
use crate::random::random_u128;
use cluster::{
    ControlError, ControlPlane, CreateError, ExpectedOsd, Monitor, MonitorState, PoolSpec,
};
use inbox::{Event, Inbox};
use logged::Logged;
use messenger::sync::{Receiver, block_on, oneshot};
use messenger::{Handle, ListenConfig, ListenError, Listener};
use protocol::ClusterId;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

/// Bytes of maps and replies that may wait for a subscriber that does not read, before its
/// connection is closed.
const HELD_BYTES_MAX: usize = 64 << 20;

/// How long a scrape of metrics waits for the monitor: scrapers wait for 10 s, as a rule.
const STATUS_WAIT_MAX: Duration = Duration::from_secs(3);

/// Settings of the role.
#[derive(Clone, Debug)]
pub struct MonitorConfig {
    /// Where it listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Directory of its state; made if missing.
    pub dir: PathBuf,
    /// The storage daemons of a new cluster. Default: `osd_count` of equal weight. Without effect
    /// on an existing one.
    pub osds: Vec<ExpectedOsd>,
    /// The first pool of a new cluster. Default: "data", 2+1, chunks of 512 B, objects of 64 MiB,
    /// 32 PGs. Without effect on an existing one.
    pub pool: PoolSpec,
    /// Grace of heartbeats (2 s), time to live of sessions (10 s), wait at the start (3 s).
    pub settings: cluster::Settings,
    /// Worker that runs the owner task. Default 0.
    pub worker: usize,
    /// Sessions that it takes. Default 10,000.
    pub ms_connections_max: u32,
    /// Peers on this host come through a Unix socket. Default true.
    pub ms_local_sockets: bool,
    /// Time after which a connection that carries nothing is closed until its client sends; `None`,
    /// the default: never.
    pub ms_idle_timeout: Option<Duration>,
    /// What `trefoil config` shows. Default: nothing is set.
    pub live: LiveStart,
}

impl MonitorConfig {
    /// Default settings.
    pub fn new(listen: SocketAddr, dir: PathBuf, osd_count: u32) -> Self {
        let pool = PoolSpec::new("data", 2, 1, 512, 32).expect("the default profile is a profile");
        let (osds, settings) = (ExpectedOsd::first(osd_count), cluster::Settings::default());
        Self {
            listen,
            dir,
            osds,
            pool,
            settings,
            worker: 0,
            ms_connections_max: 10_000,
            ms_local_sockets: true,
            ms_idle_timeout: None,
            live: LiveStart::default(),
        }
    }
}

/// Why the monitor did not start.
#[derive(Debug, thiserror::Error)]
pub enum MonitorError {
    /// Its state cannot be read or written.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A new cluster cannot be made like this.
    #[error("cannot make the cluster: {0}")]
    Create(#[from] CreateError),
    /// The address.
    #[error("monitor: {0}")]
    Listen(#[from] ListenError),
}

/// A running monitor. Dropping it stops it without waiting.
pub struct MonitorHandle {
    addr: SocketAddr,
    cluster: ClusterId,
    created: bool,
    inbox: Arc<Inbox>,
    running: Arc<AtomicBool>,
    listener: Option<Listener>,
    done: Option<Receiver<()>>,
}

impl MonitorHandle {
    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The cluster.
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// Did this start make the cluster?
    pub fn created(&self) -> bool {
        self.created
    }

    /// False once it was stopped.
    pub fn is_running(&self) -> bool {
        self.running.load(Ordering::Acquire)
    }

    /// Stops it, and waits until what it has begun is saved and its directory is free. For ordinary
    /// threads: on a worker it would wait for itself.
    pub fn stop(mut self) {
        self.begin_stop();
        if let Some(done) = self.done.take() {
            // Gone: the runtime was stopped first, and took the owner with it.
            let _ = block_on(done);
        }
    }

    /// What makes the cluster's part of `/metrics`. It is empty while the monitor does not answer
    /// within [`STATUS_WAIT_MAX`], as when its disk takes nothing.
    pub fn metrics(&self) -> impl Fn() -> String + Send + Sync + 'static {
        let inbox = Arc::clone(&self.inbox);
        move || {
            let (sender, receiver) = sync_channel(1);
            inbox.push(Event::Tell(sender));
            let status = receiver.recv_timeout(STATUS_WAIT_MAX);
            status
                .map(|status| metrics::render(&status, env!("TREFOIL_VERSION")))
                .unwrap_or_default()
        }
    }

    fn begin_stop(&mut self) {
        drop(self.listener.take());
        self.inbox.push(Event::Stop);
    }
}

impl std::fmt::Debug for MonitorHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MonitorHandle")
            .field("addr", &self.addr)
            .field("cluster", &self.cluster)
            .finish_non_exhaustive()
    }
}

impl Drop for MonitorHandle {
    fn drop(&mut self) {
        self.begin_stop();
    }
}

/// Starts the role. Reads and perhaps writes its state first, on the calling thread.
///
/// # Errors
/// See [`MonitorError`].
pub fn start(config: MonitorConfig, handle: &Handle) -> Result<MonitorHandle, MonitorError> {
    let mut control = Logged::open(&config.dir)?;
    let (state, created) = load_or_create(&mut control, &config)?;
    let cluster = state.map.cluster;
    let inbox = Arc::new(Inbox::new(handle.locks(), "monitor inbox"));
    let mut listen = ListenConfig::new(config.listen, cluster, "monitor");
    listen.session.held_bytes_max = HELD_BYTES_MAX;
    let (for_services, live) = (Arc::clone(&inbox), LiveConfig::new(config.live, handle.locks()));
    listen.connections_max = config.ms_connections_max;
    listen.local_sockets = config.ms_local_sockets;
    listen.session.idle_timeout = config.ms_idle_timeout;
    let listener = handle
        .listen(listen, move |_| inbox::service(Arc::clone(&for_services), Arc::clone(&live)))?;
    let addr = listener.local_addr();
    let (tx, done) = oneshot();
    let running = Arc::new(AtomicBool::new(true));
    let saved = state.map.epoch;
    let monitor = Monitor::start(state, config.settings, Duration::ZERO);
    let (for_owner, still_running) = (Arc::clone(&inbox), Arc::clone(&running));
    handle.spawn_on(config.worker, move |worker| async move {
        worker.spawn(crate::inbox::tick(worker.clone(), Arc::clone(&for_owner)));
        owner::Owner::new(worker, monitor, Box::new(control), for_owner, saved).run().await;
        still_running.store(false, Ordering::Release);
        let _ = tx.send(());
    });
    tracing::info!(%addr, %cluster, created, "monitor listens");
    Ok(MonitorHandle {
        addr,
        cluster,
        created,
        inbox,
        running,
        listener: Some(listener),
        done: Some(done),
    })
}

fn load_or_create(
    control: &mut dyn ControlPlane,
    config: &MonitorConfig,
) -> Result<(MonitorState, bool), MonitorError> {
    if let Some(state) = control.load()? {
        let (have, want) = (state.map.osds.len(), config.osds.len());
        if have != want {
            tracing::warn!(
                have,
                want,
                "the cluster exists already: the configured number of OSDs is ignored"
            );
        }
        return Ok((state, false));
    }
    let state = cluster::create_cluster(draw_cluster_id(), &config.osds, &config.pool)?;
    control.save(&state)?;
    Ok((state, true))
}

/// A random id; never zero, which means "not known" in the handshake.
fn draw_cluster_id() -> ClusterId {
    ClusterId::new(random_u128().max(1))
}
