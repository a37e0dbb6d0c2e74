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

mod batch;
mod clients;
mod desk;
mod founding;
mod inbox;
mod logged;
mod member;
mod metrics;
mod owner;
mod peers;
mod replica;
#[cfg(test)]
mod tests;

use crate::admin::{LiveConfig, LiveStart};
use crate::random::random_u128;
use cluster::{
    ControlError, ControlPlane, CreateError, Embedded, ExpectedOsd, Monitor, MonitorState, PoolSpec,
};
use consensus::NodeId;
use inbox::{Event, Inbox};
use logged::Logged;
use messenger::sync::{Receiver, block_on, oneshot};
use messenger::{
    Connection, Handle, LateCluster, ListenConfig, ListenError, Listener, Message, ReplyTo, Worker,
};
use protocol::monitor::MonitorReply;
use protocol::{ClusterId, Kind};
use replica::Replica;
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
    /// Where all monitors are reached, in the order that all of them have, and which one this is;
    /// `None`: it is the only one.
    pub quorum: Option<(Vec<SocketAddr>, u16)>,
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
            quorum: None,
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
    /// Its directory is that of one of several.
    #[error(
        "{} is the directory of one of several monitors: name all of them (`monitors`)", dir.display()
    )]
    OfSeveral {
        /// The directory.
        dir: PathBuf,
    },
    /// Its directory is that of an only one.
    #[error(
        "{} is the directory of a cluster with one monitor, and more cannot join it: leave `monitors` out, or begin a \
         new cluster in an empty directory", dir.display()
    )]
    Alone {
        /// The directory.
        dir: PathBuf,
    },
    /// The address.
    #[error("monitor: {0}")]
    Listen(#[from] ListenError),
}

/// A running monitor. Dropping it stops it without waiting.
pub struct MonitorHandle {
    addr: SocketAddr,
    cluster: LateCluster,
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

    /// The cluster; zero if this is one of several, and the cluster has not begun yet.
    pub fn cluster(&self) -> ClusterId {
        self.cluster.get()
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
            .field("cluster", &self.cluster())
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
    match config.quorum.clone() {
        Some((addrs, node)) => start_member(config, addrs, NodeId(node), handle),
        None => start_alone(config, handle),
    }
}

fn start_alone(config: MonitorConfig, handle: &Handle) -> Result<MonitorHandle, MonitorError> {
    let mut control = Logged::open(&config.dir)?;
    if founding::marker(&config.dir).exists() {
        return Err(MonitorError::OfSeveral { dir: config.dir });
    }
    let (state, created) = load_or_create(&mut control, &config)?;
    let cluster = LateCluster::from(state.map.cluster);
    let (settings, saved) = (config.settings, state.map.epoch);
    let run = move |worker: Worker, inbox: Arc<Inbox>| {
        let monitor = Monitor::start(state, settings, Duration::ZERO);
        owner::Owner::new(worker, monitor, Box::new(control), inbox, saved).run()
    };
    serve(config, (cluster, created), handle, run)
}

fn start_member(
    config: MonitorConfig,
    addrs: Vec<SocketAddr>,
    node: NodeId,
    handle: &Handle,
) -> Result<MonitorHandle, MonitorError> {
    let lock = Embedded::open(&config.dir)?;
    if ["state", "state.prev"].iter().any(|name| config.dir.join(name).exists()) {
        return Err(MonitorError::Alone { dir: config.dir });
    }
    // what the first leader will do has to be possible
    cluster::create_cluster(draw_cluster_id(), &config.osds, &config.pool)?;
    let cluster = LateCluster::default();
    let identity = member::Identity {
        node,
        addrs,
        dir: config.dir.clone(),
        _lock: lock,
        cluster: cluster.clone(),
        settings: config.settings,
        osds: config.osds.clone(),
        pool: config.pool.clone(),
    };
    let nonce = founding::nonce(&config.dir)?;
    let begun = if Replica::exists(&identity.replicas())? {
        if nonce.is_some() {
            // its creation ended just before this
            founding::mark_begun(&config.dir)?;
        }
        let count = identity.addrs.len() as u16;
        let birth = Vec::new();
        let replica = Replica::open(&identity.replicas(), node, count, birth, Duration::ZERO)?;
        if !replica.birth().is_empty() {
            cluster.learn(replica::cluster_of(replica.birth()));
        }
        Ok(replica)
    } else {
        Err(nonce)
    };
    let run = move |worker: Worker, inbox: Arc<Inbox>| {
        member::Member::new(identity, worker, inbox, begun).run()
    };
    serve(config, (cluster, false), handle, run)
}

/// Listens, and runs the owner.
fn serve<F, Fut>(
    config: MonitorConfig,
    (cluster, created): (LateCluster, bool),
    handle: &Handle,
    run: F,
) -> Result<MonitorHandle, MonitorError>
where
    F: FnOnce(Worker, Arc<Inbox>) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + 'static,
{
    let inbox = Arc::new(Inbox::new(handle.locks(), "monitor inbox"));
    let mut listen = ListenConfig::new(config.listen, cluster.clone(), "monitor");
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
    let (for_owner, still_running) = (Arc::clone(&inbox), Arc::clone(&running));
    handle.spawn_on(config.worker, move |worker| async move {
        worker.spawn(crate::inbox::tick(worker.clone(), Arc::clone(&for_owner)));
        run(worker, for_owner).await;
        still_running.store(false, Ordering::Release);
        let _ = tx.send(());
    });
    tracing::info!(%addr, cluster = %cluster.get(), created, "monitor listens");
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

/// Whoever says to an only monitor that he is one is told so.
fn refuse_hello(connection: &Connection, reply_to: ReplyTo) {
    let why = "this cluster has one monitor: it was not given a list (`monitors`)".to_owned();
    let front = protocol::encode(&MonitorReply::Refused(why));
    let kind = Kind::MonitorReply.to_u16();
    connection.reply_to(reply_to, Message::new(reply_to.class, kind, front, Default::default()));
}

/// A random id; never zero, which means "not known" in the handshake.
fn draw_cluster_id() -> ClusterId {
    ClusterId::new(random_u128().max(1))
}
