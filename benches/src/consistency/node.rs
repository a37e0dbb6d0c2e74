//! One server of a run, as the mode wants it.
//!
//! Contract: real sockets on loopback, real workers, one runtime for each server. With
//! [`Execution::SharedQueue`] and [`Execution::Table`] a connection is served by one worker, given
//! out in turn (`round-robin`): that is cheaper than GlusterFS's event threads, any of which may
//! read any socket, and keeps as little order, since the queue keeps none.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::Arc;

use ec_store::medium::Dir;
use messenger::sync::{ContentionMutex, LockStats};
use messenger::{
    CloseReason, Connection, ListenConfig, Listener, Mapping, Message, PeerInfo, PlacementConfig,
    Runtime, RuntimeConfig, Service, Worker,
};
use placement::files::CoreTable;
use protocol::{ClusterId, Gfid, SessionId, ShardIndex};

use super::place::{self, CorePlace, Fragments, Hands, SharedPlace};
use super::plan::{Execution, ServiceTime};
use super::queue::{IoThreads, Job, QUEUE_LOCK, Queue};
use super::wire::Request;
use crate::error::BenchError;
use crate::machine;
use crate::server::Debt;

/// Settings of a server.
#[derive(Clone)]
pub(super) struct NodeConfig {
    pub(super) shard: ShardIndex,
    pub(super) execution: Execution,
    /// Workers: event threads, or cores that own files.
    pub(super) workers: NonZeroUsize,
    /// Threads that take from the shared queue, if there is one.
    pub(super) io_threads: usize,
    pub(super) service: Option<ServiceTime>,
    pub(super) dir: Dir,
}

/// See the module.
pub(super) struct Node {
    runtime: Runtime,
    listener: Listener,
    name: String,
    io_threads: usize,
    /// Dropped last: requests may wait in its queue.
    _io: Option<IoThreads>,
}

impl Node {
    /// Starts a server.
    pub(super) fn start(config: &NodeConfig) -> Result<Node, BenchError> {
        let name = format!("node{}", config.shard.get());
        let runtime = Runtime::start(RuntimeConfig::new(name.clone(), config.workers.get()))?;
        let mapping = match config.execution {
            Execution::SharedQueue | Execution::Table => Mapping::RoundRobin,
            Execution::Arithmetic => Mapping::CoreAffine,
        };
        let any_port: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
        let listen = ListenConfig {
            placement: PlacementConfig::new(mapping),
            ..ListenConfig::new(any_port, ClusterId::new(1), name.clone())
        };
        let (io, listener) = match config.execution {
            Execution::SharedQueue => {
                let (queue, place, io) = start_queue(&runtime, &name, config)?;
                let factory = move |_: &Worker| {
                    let (queue, place) = (Arc::clone(&queue), Arc::clone(&place));
                    Rc::new(Receiver { queue, place, clients: Clients::default() })
                        as Rc<dyn Service>
                };
                (Some(io), runtime.handle().listen(listen, factory)?)
            }
            Execution::Table => {
                let table = CoreTable::new(config.workers);
                let table = Arc::new(ContentionMutex::new(
                    runtime.handle().locks(),
                    "gfid-queue table",
                    table,
                ));
                start_cores(&runtime, config)?;
                let factory = move |_: &Worker| {
                    Rc::new(Router::new(Some(Arc::clone(&table)))) as Rc<dyn Service>
                };
                (None, runtime.handle().listen(listen, factory)?)
            }
            Execution::Arithmetic => {
                start_cores(&runtime, config)?;
                let factory = |_: &Worker| Rc::new(Router::new(None)) as Rc<dyn Service>;
                (None, runtime.handle().listen(listen, factory)?)
            }
        };
        let io_threads = if io.is_some() { config.io_threads } else { 0 };
        Ok(Node { runtime, listener, name, io_threads, _io: io })
    }

    pub(super) fn addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// CPU time of all its threads so far, in nanoseconds; of those that serve sockets alone.
    pub(super) fn cpu_ns(&self) -> (u64, u64) {
        let sockets: u64 =
            machine::thread_cpu_ns(&self.name, self.runtime.handle().workers()).iter().sum();
        let io: u64 = machine::thread_cpu_ns(&io_name(&self.name), self.io_threads).iter().sum();
        (sockets + io, sockets)
    }

    /// How the lock of its I/O queue was used; nothing if it has none.
    pub(super) fn queue_lock(&self) -> LockStats {
        let locks = self.runtime.handle().locks().stats();
        locks.into_iter().find(|stats| stats.name == QUEUE_LOCK).unwrap_or_default()
    }

    /// Stops; what clients have not asked for yet is not answered.
    pub(super) fn stop(self) {
        drop(self.listener);
        self.runtime.shutdown();
    }
}

fn io_name(node: &str) -> String {
    format!("{node}io")
}

fn start_queue(
    runtime: &Runtime,
    name: &str,
    config: &NodeConfig,
) -> Result<(Arc<Queue>, Arc<SharedPlace>, IoThreads), BenchError> {
    let handle = runtime.handle();
    let fragments = Fragments::open(config.dir.clone(), config.shard, 0, handle.locks())?;
    let place = Arc::new(SharedPlace::new(fragments, handle.locks()));
    let queue = Arc::new(Queue::new(handle.locks()));
    let hands = |index| Hands {
        pool: Arc::clone(handle.pools().pool(index)),
        service: config.service,
        debt: Debt::default(),
    };
    let io = IoThreads::start(&io_name(name), config.io_threads, Arc::clone(&queue), &place, hands);
    Ok((queue, place, io.map_err(BenchError::Threads)?))
}

/// What a worker that owns files has; where [`Router`] finds it.
struct Core {
    place: CorePlace,
    hands: Hands,
}

/// Gives each worker the fragments of its files.
fn start_cores(runtime: &Runtime, config: &NodeConfig) -> Result<(), BenchError> {
    for index in 0..config.workers.get() {
        let config = config.clone();
        let opened = runtime.handle().block_on_worker(index, move |worker| async move {
            let core = u16::try_from(index).unwrap_or(u16::MAX);
            let fragments =
                Fragments::open(config.dir, config.shard, core, worker.handle().locks())?;
            let pool = Arc::clone(worker.pool());
            let hands = Hands { pool, service: config.service, debt: Debt::default() };
            worker.set_local(Rc::new(Core { place: CorePlace::new(fragments), hands }));
            Ok(())
        });
        opened.unwrap_or(Err(BenchError::Gone))?;
    }
    Ok(())
}

/// The client's number, which is the name that it gives itself.
fn client_of(peer: &PeerInfo) -> SessionId {
    SessionId::new(peer.name.parse().unwrap_or(u64::MAX))
}

/// Clients by connection.
type Clients = RefCell<HashMap<u64, SessionId>>;

/// An event thread of GlusterFS: puts what it receives into the queue of all.
struct Receiver {
    queue: Arc<Queue>,
    place: Arc<SharedPlace>,
    clients: Clients,
}

impl Service for Receiver {
    fn on_open(&self, _: &Worker, connection: &Connection, peer: &PeerInfo) {
        self.clients.borrow_mut().insert(connection.id(), client_of(peer));
        // Not by way of the queue, where a request could overtake it.
        place::join(&*self.place, client_of(peer), connection.clone());
    }

    fn on_message(&self, _: &Worker, connection: &Connection, message: Message) {
        let client = self.clients.borrow().get(&connection.id()).copied();
        if let Some(client) = client {
            self.queue.push(Job { client, connection: connection.clone(), message });
        }
    }

    fn on_close(&self, _: &Worker, connection: &Connection, _: &CloseReason) {
        if let Some(client) = self.clients.borrow_mut().remove(&connection.id()) {
            place::leave(&*self.place, client);
        }
    }
}

/// Brings a request to the core that owns its file: the one that the table names, or without one
/// this one, to which the client has sent it.
struct Router {
    table: Option<Arc<ContentionMutex<CoreTable>>>,
    clients: Clients,
}

impl Router {
    fn new(table: Option<Arc<ContentionMutex<CoreTable>>>) -> Router {
        Router { table, clients: Clients::default() }
    }

    /// On the core `to`, in the order of the connection's messages.
    fn run(
        connection: &Connection,
        worker: &Worker,
        to: usize,
        f: impl FnOnce(&Core) + Send + 'static,
    ) {
        let on_core = move |worker: &Worker| {
            if let Some(core) = worker.local::<Core>() {
                f(&core);
            }
        };
        if to == worker.index() && connection.is_caught_up() {
            return on_core(worker);
        }
        connection.hand_over(worker, to, on_core);
    }

    /// The cores that serve a connection.
    fn cores(&self, worker: &Worker) -> std::ops::Range<usize> {
        match self.table {
            Some(_) => 0..worker.handle().workers(),
            None => worker.index()..worker.index() + 1,
        }
    }

    fn core_of(&self, worker: &Worker, gfid: Gfid) -> usize {
        self.table.as_ref().map_or(worker.index(), |table| table.lock().core(gfid.get()))
    }
}

impl Service for Router {
    fn on_open(&self, worker: &Worker, connection: &Connection, peer: &PeerInfo) {
        let client = client_of(peer);
        self.clients.borrow_mut().insert(connection.id(), client);
        for core in self.cores(worker) {
            let joined = connection.clone();
            Router::run(connection, worker, core, move |core| {
                place::join(&core.place, client, joined)
            });
        }
    }

    fn on_message(&self, worker: &Worker, connection: &Connection, message: Message) {
        let client = self.clients.borrow().get(&connection.id()).copied();
        let (Some(client), Some(Request { gfid, .. })) = (client, Request::parse(&message)) else {
            return;
        };
        let from = connection.clone();
        Router::run(connection, worker, self.core_of(worker, gfid), move |core| {
            place::serve(&core.place, &core.hands, client, &from, message);
        });
    }

    fn on_close(&self, worker: &Worker, connection: &Connection, _: &CloseReason) {
        let Some(client) = self.clients.borrow_mut().remove(&connection.id()) else { return };
        for core in self.cores(worker) {
            Router::run(connection, worker, core, move |core| place::leave(&core.place, client));
        }
    }
}
