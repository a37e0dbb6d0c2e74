//! One client's session with a cluster: the map, calls to the monitor and to the metadata service.
//!
//! Contract: a [`Client`] is cheap to clone and may be used from any thread. Its futures may be
//! awaited anywhere.

mod live;
mod mds;
mod monitor;
mod promises;
mod shared;

pub use mds::Answered;
pub use monitor::ask_monitor;
pub(crate) use shared::Shared;

use crate::config::ClientConfig;
use crate::error::ClientError;
use crate::objecter::local::{self, Local};
use crate::objecter::{FileRef, LocalIo};
use cluster::ClusterMap;
use messenger::buffer::PoolConfig;
use messenger::sync::ContentionMutex;
use messenger::{Handle, Runtime, RuntimeConfig, Worker};
use metadata::lease::holder::Moment;
use protocol::monitor::{MonitorReply, MonitorRequest};
use protocol::namespace::{Caller, NamesRecall, NamespaceOp, Recall, Reply};
use protocol::{Epoch, ObjectId, SessionId};
use std::future::Future;
use std::sync::Arc;

/// What the layer above must know at once. Delivered on a worker; handlers must not block.
#[derive(Clone, Debug)]
pub enum ClientEvent {
    /// The metadata service wants a lease back: answer with `NamespaceOp::ReturnLease`.
    Recall(Recall),
    /// Forget what is known of a file or directory, at once, and answer with
    /// `NamespaceOp::ReturnNames`.
    NamesRecall(NamesRecall),
    /// The connection to the metadata service was made anew, or the service restarted: answer with
    /// `NamespaceOp::Reclaim` of everything held; other calls of the layer may go on meanwhile.
    MdsRestarted,
    /// The session was declared dead: all leases are gone, all caches void. Every call fails with
    /// [`ClientError::Fenced`] until the layer has dropped what it holds and calls
    /// [`Client::reopen`].
    Fenced(SessionId),
}

/// A time in which a client is the only mount, or one of the same several: within one, nobody else
/// changed a name or an attribute that the client knew and was not asked to forget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Term {
    /// Which; a later one has a greater number.
    pub number: u64,
    /// The client surely is the only mount now.
    pub holds: bool,
    /// It may count on its leases on names now.
    pub leased: bool,
}

/// A session with a cluster. See the module. When the last clone is dropped without
/// [`Client::close`], its threads stop at once, and the cluster counts the session as dead when its
/// time is over.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
    owner: Arc<Owner>,
}

/// Holds the threads.
struct Owner {
    shared: Arc<Shared>,
    runtime: ContentionMutex<Option<Runtime>>,
}

impl Owner {
    fn stop(&self) {
        let Some(runtime) = self.runtime.lock().take() else { return };
        self.shared.set_closed();
        self.shared.on_workers(Local::uninstall);
        runtime.shutdown();
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Bytes of free buffers that a client keeps: what it holds of large writes at 1 GB/s until they
/// are stable, and storage daemons on its host have applied them.
const RETAINED_BYTES_MAX: usize = 256 << 20;

impl Client {
    /// Opens a session: blocks until the map is there, at most `config.timeout` (30 s if that is
    /// zero).
    ///
    /// # Errors
    /// [`ClientError::Config`], [`ClientError::Connect`], [`ClientError::Refused`].
    pub fn connect(config: ClientConfig) -> Result<Client, ClientError> {
        let config = config.checked()?;
        let addr = monitor::resolve(&config.monitor)?;
        let pools =
            PoolConfig { pools: config.buffer_pools, retained_bytes_max: RETAINED_BYTES_MAX };
        let (telemetry, op_history, busy_poll) =
            (config.telemetry, config.op_history, config.busy_poll);
        let defaults = RuntimeConfig::new("client", config.workers);
        let runtime = RuntimeConfig { telemetry, op_history, busy_poll, pools, ..defaults };
        let runtime =
            Runtime::start(runtime).map_err(|error| ClientError::Local(error.to_string()))?;
        let shared = Shared::new(config, runtime.handle());
        let runtime = ContentionMutex::new(shared.handle.locks(), "client runtime", Some(runtime));
        let owner = Arc::new(Owner { shared: Arc::clone(&shared), runtime });
        let opening = Arc::clone(&shared);
        let opened = shared
            .handle
            .block_on_worker(0, move |_| async move { monitor::open(&opening, addr).await });
        opened.unwrap_or(Err(ClientError::Closed))?;
        let (map, session) = (shared.map()?, shared.standing().session);
        for worker in 0..shared.handle.workers() {
            let (shared, map) = (Arc::clone(&shared), Arc::clone(&map));
            let handle = shared.handle.clone();
            let install =
                move |worker: Worker| async move { Local::install(worker, shared, session, map) };
            handle.block_on_worker(worker, install).map_err(|_| ClientError::Closed)?;
        }
        // A map that came meanwhile found no worker to learn it.
        shared.teach(&shared.map()?);
        Ok(Client { shared, owner })
    }

    /// The settings.
    pub fn config(&self) -> &ClientConfig {
        &self.shared.config
    }

    /// Changes a setting as an operator does with `trefoil config set client.N KEY VALUE`:
    /// `objecter_inflight_ops` or `objecter_inflight_op_bytes`, from the next operation on.
    ///
    /// # Errors
    /// [`ClientError::Config`]: nothing has changed.
    pub fn set_live(&self, key: &str, value: &str) -> Result<(), ClientError> {
        live::set(&self.shared, key, value).map(drop).map_err(ClientError::Config)
    }

    /// The client's workers, for tasks that use [`Client::local`].
    pub fn handle(&self) -> &Handle {
        &self.shared.handle
    }

    /// The session's id; another one after [`Client::reopen`].
    pub fn session_id(&self) -> SessionId {
        self.shared.standing().session
    }

    /// The session's id, if it is not known to be dead.
    ///
    /// # Errors
    /// [`ClientError::Fenced`], [`ClientError::Closed`], [`ClientError::ClusterGone`].
    pub fn live_session(&self) -> Result<SessionId, ClientError> {
        self.shared.check()
    }

    /// The newest map.
    ///
    /// # Errors
    /// [`ClientError::Closed`].
    pub fn map(&self) -> Result<Arc<ClusterMap>, ClientError> {
        self.shared.map()
    }

    /// The worker whose [`LocalIo`] reaches this place of the file without a hop to another worker.
    pub fn worker_of(&self, file: FileRef, offset: u64) -> usize {
        let workers = self.shared.config.workers;
        if workers == 1 {
            return 0;
        }
        let Ok(map) = self.shared.map() else { return 0 };
        let Some(pool) = map.pools.get(&file.pool) else { return 0 };
        let index = (offset / pool.profile.object_bytes()) as u32;
        ObjectId { gfid: file.gfid, index }.pg(pool.pg_num) as usize % workers
    }

    /// This worker's data I/O, for a worker of [`Client::handle`].
    ///
    /// # Errors
    /// [`ClientError::Closed`] after [`Client::close`], and for a worker of another runtime.
    pub fn local(&self, worker: &Worker) -> Result<LocalIo, ClientError> {
        let local =
            worker.local::<Local>().filter(|local| Arc::ptr_eq(&local.shared, &self.shared));
        local.map(LocalIo::new).ok_or(ClientError::Closed)
    }

    /// Runs an operation on a worker's [`LocalIo`]; the future may be awaited on any thread, or
    /// with [`Client::block_on`].
    ///
    /// # Errors
    /// Those of the operation, and [`ClientError::Closed`].
    ///
    /// # Panics
    /// If there is no such worker.
    pub fn run_on<T, F, Fut>(
        &self,
        worker: usize,
        operation: F,
    ) -> impl Future<Output = Result<T, ClientError>> + Send + use<T, F, Fut>
    where
        T: Send + 'static,
        F: FnOnce(LocalIo) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, ClientError>> + 'static,
    {
        let run = self.shared.handle.run_on(worker, move |worker| async move {
            let local = worker.local::<Local>().ok_or(ClientError::Closed)?;
            operation(LocalIo::new(local)).await
        });
        async move { run.await.unwrap_or(Err(ClientError::Closed)) }
    }

    /// Waits for a future on an ordinary thread; never on a worker.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        messenger::sync::block_on(future)
    }

    /// Says what to do on events; the last handler set counts. Events before the first handler are
    /// kept for it.
    pub fn on_event(&self, handler: impl Fn(ClientEvent) + Send + Sync + 'static) {
        self.shared.set_handler(Arc::new(handler));
    }

    /// Says that this client is a mount, whose kernel caches names and attributes; a new session
    /// after [`Client::reopen`] says it again. Waits until nobody else counts on being the only
    /// one.
    ///
    /// # Errors
    /// As [`Client::namespace`].
    pub async fn mount(&self, caller: Caller) -> Result<(), ClientError> {
        self.shared.mount(caller).await
    }

    /// How long this client surely stays the only mount: names and attributes may be cached as
    /// long.
    pub fn alone_for(&self) -> std::time::Duration {
        self.shared.alone_for()
    }

    /// In which term of being the only mount this client is, and whether that surely holds now.
    pub fn term(&self) -> Term {
        self.shared.term()
    }

    /// Where the session stands now, for the rules of leases.
    pub(crate) fn moment(&self) -> Moment {
        self.shared.moment()
    }

    /// Waits until the session, or one after it, surely lives and a map of this epoch is there
    /// (rules ReadClock and GrantEpoch).
    pub(crate) async fn usable(&self, epoch: Epoch) -> Result<(), ClientError> {
        self.shared.usable(epoch).await
    }

    /// A call to the monitor.
    ///
    /// # Errors
    /// [`ClientError::TimedOut`] and others; a `Refused` answer is an error.
    pub async fn call_monitor(&self, request: MonitorRequest) -> Result<MonitorReply, ClientError> {
        self.shared.call_monitor(&request, self.shared.deadline()).await
    }

    /// A call to the metadata service, carried out exactly once: it is sent again under the same
    /// number after a lost connection, a restart of the service, or `TryAgain`.
    ///
    /// # Errors
    /// [`ClientError::Posix`] for the service's errnos, [`ClientError::Fenced`],
    /// [`ClientError::TimedOut`].
    pub async fn namespace(&self, op: NamespaceOp, caller: Caller) -> Result<Reply, ClientError> {
        self.ask_namespace(op, caller).await.map(|answered| answered.reply)
    }

    /// As [`Client::namespace`], with what else the service tells the only mount.
    pub(crate) async fn ask_namespace(
        &self,
        op: NamespaceOp,
        caller: Caller,
    ) -> Result<Answered, ClientError> {
        self.shared.namespace(op, caller).await
    }

    /// Opens a new session after [`ClientEvent::Fenced`]. The caller has dropped all leases and
    /// caches. Without that it returns the session there is.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn reopen(&self) -> Result<SessionId, ClientError> {
        match self.shared.check() {
            Err(ClientError::Fenced(_)) => {}
            other => return other,
        }
        self.shared.mds.restart();
        let opened = monitor::open_session(&self.shared, self.shared.deadline()).await?;
        let session = opened.session;
        for worker in 0..self.shared.handle.workers() {
            let shared = Arc::clone(&self.shared);
            // The newest map, looked up there: while it is dead, a worker learns none.
            let revive = move |w: Worker| async move {
                let map = shared.map()?;
                local::with(&w, |local| local.revive(session, map));
                Ok(())
            };
            self.shared.handle.run_on(worker, revive).await.map_err(|_| ClientError::Closed)??;
        }
        // Whoever learns of it finds every worker ready.
        monitor::begin(&self.shared, &opened);
        Ok(session)
    }

    /// Makes everything written stable, closes the session and stops the workers. Blocks; not on a
    /// worker.
    ///
    /// # Errors
    /// What could not be made stable in `config.timeout`; the client is closed all the same.
    pub fn close(&self) -> Result<(), ClientError> {
        let session = match self.shared.check() {
            Ok(session) => session,
            Err(ClientError::Closed) => return Ok(()),
            Err(error) => {
                self.owner.stop();
                return Err(error);
            }
        };
        let synced = self.block_on(self.run_on(0, |io| async move { io.sync_all().await }));
        if synced.is_ok() {
            for worker in 0..self.shared.handle.workers() {
                let close = |w: Worker| async move {
                    local::with(&w, |local| local.pgs().iter().for_each(|pg| pg.close(local)));
                };
                // A worker that has ended has nothing to close.
                let _ = self.shared.handle.block_on_worker(worker, close);
            }
            let gone = self.block_on(self.call_monitor(MonitorRequest::CloseSession { session }));
            if let Err(error) = gone {
                tracing::warn!(%error, "session not closed at the monitor; it ends by itself");
            }
        }
        self.owner.stop();
        synced
    }
}
