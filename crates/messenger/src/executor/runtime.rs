//! Starting and stopping the workers, and reaching them from anywhere.
//!
//! Contract: no globals; several runtimes live in one process. A [`Handle`] outlives its runtime
//! harmlessly: what is asked of a stopped runtime ends in [`Gone`] or a closed connection, never in
//! a hang.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use placement::threads::MaxEvents;

use crate::executor::blocking::BlockingPool;
use crate::executor::class_queue::ClassOrder;
use crate::executor::worker::{Command, Worker, WorkerShared, thread_main};
use crate::io::buffer::{PoolConfig, Pools};
use crate::io::reactor::Causes;
use crate::serve::listener::Listening;
use crate::shm::Shm;
use crate::sync::contention_mutex::{ContentionMutex, LockTable};
use crate::sync::oneshot::{Gone, block_on, oneshot};
use crate::telemetry::TelemetryReport;
use crate::telemetry::classes::ClassTable;
use crate::telemetry::history::{History, HistoryMode};
use crate::telemetry::operation::OperationTable;

/// Most workers a runtime takes: more than the cores of any machine it is meant for.
pub const WORKERS_MAX: usize = 1024;

/// How often buffers that nobody needed meanwhile are freed: seldom enough to keep those of a load
/// between two syncs of the disks.
const SHRINK_INTERVAL: Duration = Duration::from_secs(2);

/// Settings of a [`Runtime`].
#[derive(Clone, Debug)]
pub struct RuntimeConfig {
    /// Name of the runtime, and prefix of its threads' names.
    pub name: String,
    /// Number of workers, 1 to [`WORKERS_MAX`].
    pub workers: usize,
    /// Most I/O threads that [`Worker::blocking`] may start, at first; see
    /// [`Handle::set_blocking_threads_max`].
    pub blocking_threads_max: usize,
    /// Which of the jobs that wait for an I/O thread is next, at first; see
    /// [`Handle::set_class_order`]. As they come unless set otherwise.
    pub class_order: ClassOrder,
    /// Pools of data buffers.
    pub pools: PoolConfig,
    /// Data goes to and comes from other processes of this host through shared memory, where they
    /// agree.
    pub shared_memory: bool,
    /// For how long a worker without work looks for more before it sleeps, while that is worth it.
    /// Zero, the default: not at all.
    pub busy_poll: Duration,
    /// How long [`Runtime::shutdown`] goes on sending what is queued.
    pub drain_max: Duration,
    /// Count and time what costs something: locks, operations, time and CPU of workers. Off only to
    /// measure what it costs.
    pub telemetry: bool,
    /// Which operations of whoever runs here are remembered one by one; see [`Handle::history`].
    pub op_history: HistoryMode,
    /// How many readiness events a worker takes at once, besides the one that other threads wake it
    /// by, at first; see [`Handle::set_max_events`]. With [`MaxEvents::Auto`], the default, it
    /// follows the connections of the runtime as they come and go.
    pub max_events: MaxEvents,
}

impl RuntimeConfig {
    /// What suits [`RuntimeConfig::busy_poll`] where requests go to other processes: what one of
    /// the same host takes.
    pub const BUSY_POLL: Duration = Duration::from_micros(100);
    /// Longer than any sleep could cost.
    pub const BUSY_POLL_MAX: Duration = Duration::from_millis(10);

    /// Default settings: 16 I/O threads, and one second to drain, which empties a bounded queue on
    /// any usable network.
    pub fn new(name: impl Into<String>, workers: usize) -> RuntimeConfig {
        RuntimeConfig {
            name: name.into(),
            workers,
            blocking_threads_max: 16,
            class_order: ClassOrder::default(),
            pools: PoolConfig::default(),
            shared_memory: true,
            busy_poll: Duration::ZERO,
            drain_max: Duration::from_secs(1),
            telemetry: true,
            op_history: HistoryMode::Off,
            max_events: MaxEvents::default(),
        }
    }
}

/// Why a runtime did not start.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The number of workers is out of range.
    #[error("{0} workers asked for, 1 to {WORKERS_MAX} are possible")]
    Workers(usize),
    /// The kernel gave no epoll set, eventfd or thread.
    #[error("cannot start worker {index}: {source}")]
    Start {
        /// Which worker.
        index: usize,
        /// What the kernel said.
        source: std::io::Error,
    },
}

struct Shared {
    config: RuntimeConfig,
    workers: Vec<Arc<WorkerShared>>,
    blocking: BlockingPool,
    pools: Pools,
    lending: Arc<Shm>,
    locks: LockTable,
    operations: OperationTable,
    classes: ClassTable,
    history: History,
    began: Instant,
    next_id: AtomicU64,
    shutting_down: AtomicBool,
    /// Those that were made; weak, for their sessions hold this.
    listeners: ContentionMutex<Vec<Weak<Listening>>>,
    /// Connections that exist, of both sides.
    connections: AtomicUsize,
    /// As [`RuntimeConfig::max_events`]; 0 is auto.
    max_events: AtomicUsize,
    /// Other runtimes of the role; weak, for their tasks may hold this.
    companions: ContentionMutex<Vec<Weak<Shared>>>,
}

/// Reaches the workers of a runtime from any thread.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
}

impl Handle {
    /// Number of workers.
    pub fn workers(&self) -> usize {
        self.shared.workers.len()
    }

    /// Settings the runtime was started with.
    pub fn config(&self) -> &RuntimeConfig {
        &self.shared.config
    }

    /// The runtime's buffer pools.
    pub fn pools(&self) -> &Pools {
        &self.shared.pools
    }

    pub(crate) fn lending(&self) -> &Arc<Shm> {
        &self.shared.lending
    }

    /// True once [`Runtime::shutdown`] has begun.
    pub fn is_shutting_down(&self) -> bool {
        self.shared.shutting_down.load(SeqCst)
    }

    /// Runs `f` on a worker and the future it makes as a task there. The future may be `!Send`.
    /// Does nothing if the runtime has stopped.
    ///
    /// # Panics
    /// If there is no such worker.
    pub fn spawn_on<F, Fut>(&self, worker: usize, f: F)
    where
        F: FnOnce(Worker) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + 'static,
    {
        self.post_run(worker, move |worker| {
            worker.spawn(f(worker.clone()));
        });
    }

    /// As [`Handle::spawn_on`], with the result as a future that any thread or worker may wait for.
    /// The work starts at once, whether or not the future is polled.
    ///
    /// # Errors
    /// [`Gone`] if it panicked or the runtime has stopped.
    pub fn run_on<F, Fut, T>(
        &self,
        worker: usize,
        f: F,
    ) -> impl Future<Output = Result<T, Gone>> + Send + use<F, Fut, T>
    where
        F: FnOnce(Worker) -> Fut + Send + 'static,
        Fut: Future<Output = T> + 'static,
        T: Send + 'static,
    {
        let (tx, rx) = oneshot();
        self.spawn_on(worker, move |worker| {
            let future = f(worker);
            async move {
                // Nobody to tell if the caller has gone.
                let _ = tx.send(future.await);
            }
        });
        rx
    }

    /// As [`Handle::run_on`], blocking the calling thread. For ordinary threads: on a worker it
    /// would wait for itself.
    ///
    /// # Errors
    /// [`Gone`] if it panicked or the runtime has stopped.
    pub fn block_on_worker<F, Fut, T>(&self, worker: usize, f: F) -> Result<T, Gone>
    where
        F: FnOnce(Worker) -> Fut + Send + 'static,
        Fut: Future<Output = T> + 'static,
        T: Send + 'static,
    {
        block_on(self.run_on(worker, f))
    }

    /// The table in which whoever runs on this runtime lists its locks.
    pub fn locks(&self) -> &LockTable {
        &self.shared.locks
    }

    /// The table in which whoever runs on this runtime lists what it times.
    pub fn operations(&self) -> &OperationTable {
        &self.shared.operations
    }

    /// The table in which whoever runs on this runtime lists what its queues of traffic classes do.
    pub fn classes(&self) -> &ClassTable {
        &self.shared.classes
    }

    /// Where whoever runs on this runtime remembers single operations, if that is on.
    pub fn history(&self) -> &History {
        &self.shared.history
    }

    /// What the runtime has done so far.
    pub fn stats(&self) -> TelemetryReport {
        let now = Instant::now();
        let elapsed = now.saturating_duration_since(self.shared.began);
        TelemetryReport {
            name: self.shared.config.name.clone(),
            enabled: self.shared.config.telemetry,
            elapsed_ns: u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX),
            locks: self.shared.locks.stats(),
            operations: self.shared.operations.stats(),
            workers: self.shared.workers.iter().map(|worker| worker.stats(now)).collect(),
            classes: self.shared.classes.stats(),
            blocking_threads: self.shared.blocking.threads() as u64,
            blocking_panics: self.shared.blocking.panics() as u64,
            listeners: self.listeners().iter().map(|listening| listening.stats()).collect(),
        }
    }

    /// What the whole role has done so far: this runtime, then those of its companions that exist.
    pub fn reports(&self) -> Vec<TelemetryReport> {
        let companions: Vec<_> =
            self.shared.companions.lock().iter().filter_map(Weak::upgrade).collect();
        let companions = companions.into_iter().map(|shared| Handle { shared }.stats());
        std::iter::once(self.stats()).chain(companions).collect()
    }

    /// Makes another runtime of the same role part of what this one tells ([`Handle::reports`]), as
    /// long as it exists.
    pub fn add_companion(&self, other: &Handle) {
        self.shared.companions.lock().push(Arc::downgrade(&other.shared));
    }

    /// The listeners that exist, those included that have stopped but have sessions.
    fn listeners(&self) -> Vec<Arc<Listening>> {
        self.shared.listeners.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// A listener has been made.
    pub(crate) fn list(&self, listening: &Arc<Listening>) {
        let mut listeners = self.shared.listeners.lock();
        listeners.retain(|listening| listening.strong_count() > 0);
        listeners.push(Arc::downgrade(listening));
    }

    pub(crate) fn post_run(&self, worker: usize, f: impl FnOnce(&Worker) + Send + 'static) -> bool {
        self.worker_shared(worker).post(Command::Run(Box::new(f)))
    }

    pub(crate) fn worker_shared(&self, worker: usize) -> &Arc<WorkerShared> {
        assert!(worker < self.workers(), "worker {worker} of {} does not exist", self.workers());
        &self.shared.workers[worker]
    }

    /// Asks a worker to run a source.
    pub(crate) fn post_source(&self, worker: usize, slot: usize, causes: Causes) {
        self.worker_shared(worker).post(Command::Source(slot, causes));
    }

    /// The worker of this runtime that this thread is.
    pub(crate) fn this_worker(&self) -> Option<&WorkerShared> {
        let worker = self.shared.workers.get(WorkerShared::index_of_this_thread()?)?;
        worker.is_this_thread().then_some(&**worker)
    }

    /// A connection has come, or gone.
    pub(crate) fn connection_came(&self) {
        self.shared.connections.fetch_add(1, Relaxed);
    }

    pub(crate) fn connection_went(&self) {
        self.shared.connections.fetch_sub(1, Relaxed);
    }

    /// How many readiness events a worker takes at once.
    pub fn max_events(&self) -> MaxEvents {
        match self.shared.max_events.load(Relaxed) {
            0 => MaxEvents::Auto,
            events => MaxEvents::Fixed(events),
        }
    }

    /// Changes [`RuntimeConfig::blocking_threads_max`], at least 1, at once: jobs that wait get new
    /// threads, threads that are too many end after their job.
    pub fn set_blocking_threads_max(&self, threads_max: usize) {
        self.shared.blocking.set_threads_max(threads_max);
    }

    /// Changes [`RuntimeConfig::class_order`] at once, also for jobs that wait.
    pub fn set_class_order(&self, order: ClassOrder) {
        self.shared.blocking.set_order(order);
    }

    /// Changes how many readiness events a worker takes at once; each does so from its next turn.
    pub fn set_max_events(&self, max_events: MaxEvents) {
        self.shared.max_events.store(events_or_zero(max_events), Relaxed);
    }

    /// Events that a worker takes at once now, the eventfd's included.
    pub(crate) fn events_max(&self) -> usize {
        1 + self.max_events().limit(self.shared.connections.load(Relaxed), self.workers())
    }

    pub(crate) fn blocking_pool(&self) -> &BlockingPool {
        &self.shared.blocking
    }

    /// An id that no other connection or listener of this runtime has.
    pub(crate) fn next_id(&self) -> u64 {
        self.shared.next_id.fetch_add(1, Relaxed)
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").field("name", &self.shared.config.name).finish_non_exhaustive()
    }
}

/// The threads of a messenger. Dropping it is the same as [`Runtime::shutdown`].
#[derive(Debug)]
pub struct Runtime {
    handle: Handle,
    threads: ContentionMutex<Vec<JoinHandle<()>>>,
}

impl Runtime {
    /// Starts the workers.
    ///
    /// # Errors
    /// [`RuntimeError`] if the settings are out of range or the kernel refuses epoll sets, eventfds
    /// or threads.
    pub fn start(config: RuntimeConfig) -> Result<Runtime, RuntimeError> {
        if config.workers == 0 || config.workers > WORKERS_MAX {
            return Err(RuntimeError::Workers(config.workers));
        }
        let (began, locks) = (Instant::now(), LockTable::new(config.telemetry));
        let mut reactors = Vec::with_capacity(config.workers);
        let mut workers = Vec::with_capacity(config.workers);
        for index in 0..config.workers {
            let start = |source| RuntimeError::Start { index, source };
            let reactor = mio::Poll::new().map_err(start)?;
            let registry = reactor.registry().try_clone().map_err(start)?;
            workers.push(Arc::new(WorkerShared::new(index, registry).map_err(start)?));
            reactors.push(reactor);
        }
        let lending = Shm::new(config.shared_memory, &locks);
        let operations = OperationTable::new(config.telemetry);
        let classes = ClassTable::new(&locks, &operations);
        let shared = Shared {
            blocking: BlockingPool::new(
                config.name.clone(),
                config.blocking_threads_max,
                config.class_order,
                &locks,
                &classes,
            ),
            pools: Pools::in_arena(config.pools, lending.arena(), &locks),
            lending,
            began,
            workers,
            next_id: AtomicU64::new(1),
            shutting_down: AtomicBool::new(false),
            listeners: ContentionMutex::new(&locks, "runtime listeners", Vec::new()),
            connections: AtomicUsize::new(0),
            max_events: AtomicUsize::new(events_or_zero(config.max_events)),
            companions: ContentionMutex::new(&locks, "runtime companions", Vec::new()),
            operations,
            classes,
            history: History::new(config.op_history, began, &locks),
            config,
            locks,
        };
        let threads = ContentionMutex::new(&shared.locks, "runtime threads", Vec::new());
        let runtime = Runtime { handle: Handle { shared: Arc::new(shared) }, threads };
        for (index, reactor) in reactors.into_iter().enumerate() {
            let shared = Arc::clone(runtime.handle.worker_shared(index));
            let handle = runtime.handle();
            let thread = std::thread::Builder::new()
                .name(format!("{}-{index}", runtime.handle.config().name))
                .spawn(move || thread_main(shared, handle, reactor))
                .map_err(|source| RuntimeError::Start { index, source })?;
            runtime.threads.lock().push(thread);
        }
        runtime.handle.spawn_on(0, shrink_pools);
        Ok(runtime)
    }

    /// What reaches the workers.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Stops: nothing is accepted any more, what is queued is sent for at most `drain_max`, the
    /// threads are joined. Clients of listeners here see their TCP connection end, not their
    /// session: they reconnect to whoever comes next.
    pub fn shutdown(self) {
        self.stop();
    }

    fn stop(&self) {
        self.handle.shared.shutting_down.store(true, SeqCst);
        let until = Instant::now() + self.handle.config().drain_max;
        let threads = std::mem::take(&mut *self.threads.lock());
        if threads.is_empty() {
            return;
        }
        for worker in &self.handle.shared.workers {
            worker.post(Command::Shutdown(until));
        }
        for thread in threads {
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                tracing::error!("a worker thread ended in a panic");
            }
        }
        self.handle.shared.blocking.shutdown();
    }
}

/// As kept in one word; a limit is at least 1.
fn events_or_zero(max_events: MaxEvents) -> usize {
    match max_events {
        MaxEvents::Auto => 0,
        MaxEvents::Fixed(events) => events.max(1),
    }
}

/// Gives back the memory that a burst has left in the buffer pools.
async fn shrink_pools(worker: Worker) {
    loop {
        worker.sleep(SHRINK_INTERVAL).await;
        worker.handle().lending().sweep();
        worker.handle().pools().shrink();
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.stop();
    }
}
