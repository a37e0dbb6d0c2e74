//! The role `mds`: the namespace and the leases, served over the messenger.
//!
//! Contract: [`start`] opens the store, listens, and keeps a connection to the monitor, from which
//! it learns which sessions live and where it announces itself. One owner task on one worker holds
//! [`metadata::Service`]; the services on all workers only pass it what arrives. All that has
//! arrived is carried out, committed together, and then answered. A sync to disk runs on an I/O
//! thread, many requests sharing one, and at an interval without being asked. Until the first map
//! has come from the monitor everybody is told to ask again. If the store fails, the role stops
//! answering: nobody can say any more what is on disk, and a restart finds out, which `roles`
//! begins by itself.
//!
//! Start reading at `owner`; what deletes objects and recovers sizes is [`DataWorker`], which
//! others implement.

mod data;
mod inbox;
mod link;
mod owner;
pub(crate) mod reserve;
#[cfg(test)]
mod tests;

pub use data::{DataError, DataFuture, DataWorker};

use crate::admin::{LiveConfig, LiveStart};
use crate::random::random_u128;
use inbox::{Event, Inbox};
use messenger::sync::{Receiver, block_on, oneshot};
use messenger::{Connection, Handle, LateCluster, ListenConfig, ListenError, Listener, Worker};
use metadata::{EmbeddedStore, ServiceConfig, StoreConfig, StoreError};
use owner::Owner;
use protocol::ClusterId;
use protocol::namespace::Timestamp;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Settings of the role.
#[derive(Clone, Debug)]
pub struct MdsConfig {
    /// Where it listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The address told to the monitor; port 0 stands for the one that it listens on. Default:
    /// where it listens; needed when that is 0.0.0.0.
    pub advertise: Option<SocketAddr>,
    /// Directory of its store; made if missing.
    pub dir: PathBuf,
    /// Where the monitor listens.
    pub monitor: SocketAddr,
    /// The cluster, if it is known already; zero means that the store knows it, or the monitor will
    /// tell.
    pub cluster: ClusterId,
    /// Worker that runs the owner task. Calls of the store run on it; give it one that serves no
    /// OSD if there is a choice. Default 0.
    pub worker: usize,
    /// What was committed is brought to disk this often without being asked. Default 5 s, as a
    /// local file system.
    pub sync_interval: Duration,
    /// Free bytes of its disk below which operations that need space get ENOSPC. Default 128 MiB:
    /// the store must be able to write a journal and merge its tables, or it fails altogether.
    pub free_bytes_min: u64,
    /// Memory of the store.
    pub store: StoreConfig,
    /// Limits of waiting, answers and leases.
    pub service: ServiceConfig,
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

impl MdsConfig {
    /// Default settings.
    pub fn new(listen: SocketAddr, dir: PathBuf, monitor: SocketAddr) -> Self {
        Self {
            listen,
            advertise: None,
            dir,
            monitor,
            cluster: ClusterId::new(0),
            worker: 0,
            sync_interval: Duration::from_secs(5),
            free_bytes_min: 128 << 20,
            store: StoreConfig::default(),
            service: ServiceConfig::default(),
            ms_connections_max: 10_000,
            ms_local_sockets: true,
            ms_idle_timeout: None,
            live: LiveStart::default(),
        }
    }
}

/// Why the metadata service did not start.
#[derive(Debug, thiserror::Error)]
pub enum MdsError {
    /// Its store cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store is another cluster's.
    #[error(
        "the metadata in {dir} belongs to cluster {found}, not to {expected}: configure the right directory"
    )]
    Cluster {
        /// Which directory.
        dir: String,
        /// Whose it is.
        found: ClusterId,
        /// Whose it should be.
        expected: ClusterId,
    },
    /// The directory cannot be made.
    #[error("cannot make directory {dir}: {source}")]
    Dir {
        /// Which.
        dir: String,
        /// Why.
        source: std::io::Error,
    },
    /// The address.
    #[error("metadata service: {0}")]
    Listen(#[from] ListenError),
}

/// A running metadata service. Dropping it stops it without waiting.
pub struct MdsHandle {
    addr: SocketAddr,
    handle: Handle,
    worker: usize,
    inbox: Arc<Inbox>,
    monitor: Connection,
    cluster: LateCluster,
    running: Arc<AtomicBool>,
    listener: Option<Listener>,
    done: Option<Receiver<()>>,
}

impl MdsHandle {
    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The cluster that its namespace belongs to; zero as long as it does not know.
    pub fn cluster(&self) -> ClusterId {
        self.cluster.get()
    }

    /// False once it was stopped, or its store has failed.
    pub fn is_running(&self) -> bool {
        self.running.load(Ordering::Acquire)
    }

    /// Gives it what deletes objects and recovers sizes, made on the owner's worker. Without one
    /// the queues just grow, and a file whose writer died keeps its last recorded size. Call it
    /// once.
    pub fn set_data_worker<F>(&self, make: F)
    where
        F: FnOnce(&Worker) -> Rc<dyn DataWorker> + Send + 'static,
    {
        let (inbox, monitor) = (Arc::clone(&self.inbox), self.monitor.clone());
        self.handle.spawn_on(self.worker, move |worker| {
            let data = make(&worker);
            data::run(worker, inbox, monitor, data)
        });
    }

    /// Stops it, and waits until everything answered is on disk and its directory is free. For
    /// ordinary threads: on a worker it would wait for itself.
    pub fn stop(mut self) {
        self.begin_stop();
        if let Some(done) = self.done.take() {
            // Gone: the runtime was stopped first, and took the owner with it.
            let _ = block_on(done);
        }
    }

    fn begin_stop(&mut self) {
        drop(self.listener.take());
        self.inbox.push(Event::Stop);
    }
}

impl std::fmt::Debug for MdsHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MdsHandle").field("addr", &self.addr).finish_non_exhaustive()
    }
}

impl Drop for MdsHandle {
    fn drop(&mut self) {
        self.begin_stop();
    }
}

/// Starts the role. Opens its store first, on the calling thread; does not wait for the monitor.
///
/// # Errors
/// See [`MdsError`].
pub fn start(config: MdsConfig, handle: &Handle) -> Result<MdsHandle, MdsError> {
    let dir = config.dir.display().to_string();
    std::fs::create_dir_all(&config.dir)
        .map_err(|source| MdsError::Dir { dir: dir.clone(), source })?;
    let store = EmbeddedStore::open(&config.dir, config.store)?;
    let mut service = metadata::Service::open(store, config.service, wall_clock())?;
    let old = service.cluster()?.is_some();
    if config.cluster != ClusterId::new(0) {
        let found = service.bind_cluster(config.cluster)?;
        if found != config.cluster {
            return Err(MdsError::Cluster { dir, found, expected: config.cluster });
        }
    }
    let namespace = service.identity(random_u128())?;
    let cluster = LateCluster::default();
    if let Some(bound) = service.cluster()? {
        cluster.learn(bound);
    }
    let inbox = Arc::new(Inbox::new(handle.locks(), "mds inbox"));
    let (for_services, live) =
        (Arc::clone(&inbox), LiveConfig::new(config.live.clone(), handle.locks()));
    let mut listen = ListenConfig::new(config.listen, cluster.clone(), "mds");
    listen.connections_max = config.ms_connections_max;
    listen.local_sockets = config.ms_local_sockets;
    listen.session.idle_timeout = config.ms_idle_timeout;
    let listener = handle
        .listen(listen, move |_| inbox::service(Arc::clone(&for_services), Arc::clone(&live)))?;
    let addr = listener.local_addr();
    let announced = link::Announced {
        addr: crate::addresses::advertised(config.advertise, addr),
        namespace,
        old,
    };
    let monitor = link::connect(handle, &config, cluster.clone(), announced, Arc::clone(&inbox));
    let (tx, done) = oneshot();
    let running = Arc::new(AtomicBool::new(true));
    let to_monitor = monitor.clone();
    let for_clients = cluster.clone();
    let (for_owner, still_running, on) = (Arc::clone(&inbox), Arc::clone(&running), config.worker);
    handle.spawn_on(on, move |worker| async move {
        worker.spawn(crate::inbox::tick(worker.clone(), Arc::clone(&for_owner)));
        if let Err(error) =
            Owner::new(worker, service, Arc::clone(&for_owner), config, cluster).run().await
        {
            tracing::error!(%error, "the metadata service's store has failed: it is opened again");
            for_owner.push(Event::Stop);
            // Clients come again, to the service that is started next.
            for (_, event) in for_owner.take().await {
                if let Event::Request { connection, .. } = event {
                    connection.close();
                }
            }
        }
        monitor.close();
        still_running.store(false, Ordering::Release);
        // Nobody to tell if the handle was dropped.
        let _ = tx.send(());
    });
    tracing::info!(%addr, dir, "metadata service listens");
    let handle = handle.clone();
    Ok(MdsHandle {
        addr,
        handle,
        worker: on,
        inbox,
        monitor: to_monitor,
        cluster: for_clients,
        running,
        listener: Some(listener),
        done: Some(done),
    })
}

/// The time of day.
fn wall_clock() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp {
        secs: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nanos: since.subsec_nanos(),
    }
}
