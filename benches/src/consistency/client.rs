//! One client of a run: codes, locks and sends, on a worker of its own.
//!
//! Contract: real CPU and real sockets. A write is coded and sent to all shards, a read asks the k
//! data shards. What is counted goes into [`Counters`], which anyone may read.

use std::cell::{Cell as Slot, RefCell};
use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ec_store::cluster_lock::{
    Access, Action, Actions, FileLock, LockCounts, Policy, Reply, Request as LockRequest,
};
use ec_store::codec::{self, Codec};
use ec_store::layout::{Layout, Piece};
use messenger::sync::{Receiver, Sender, oneshot};
use messenger::{Call, ConnectConfig, Connection, Message, Service, Worker};
use placement::files::core_of;
use protocol::{ClusterId, Gfid, ShardIndex, ShardSet};

use super::place::{FILE_BYTES, profile};
use super::plan::{Consistency, Execution};
use super::wire::{self, Request, What};
use crate::error::BenchError;

/// A request without an answer for so long ends the run: far above any latency of a run that works.
const DEADLINE: Duration = Duration::from_secs(60);
/// How often locks are looked at that were kept for nothing.
const EXPIRE_EVERY: Duration = Duration::from_millis(200);

/// What a client counts.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) operations: AtomicU64,
    /// Requests that were sent, and messages of servers besides replies.
    pub(super) requests: AtomicU64,
    pub(super) notices: AtomicU64,
    /// Times that something was sent and had to be answered before the next.
    pub(super) round_trips: AtomicU64,
    pub(super) acquisitions: AtomicU64,
    pub(super) fallbacks: AtomicU64,
    /// Time that operations waited for their lock.
    pub(super) lock_wait_ns: AtomicU64,
}

impl Counters {
    /// As of now, in the order of the fields.
    pub(super) fn read(&self) -> [u64; 7] {
        let Counters {
            operations,
            requests,
            notices,
            round_trips,
            acquisitions,
            fallbacks,
            lock_wait_ns,
        } = self;
        [operations, requests, notices, round_trips, acquisitions, fallbacks, lock_wait_ns]
            .map(|c| c.load(Relaxed))
    }

    fn add_locking(&self, before: LockCounts, after: LockCounts) {
        self.requests.fetch_add(after.requests - before.requests, Relaxed);
        self.round_trips.fetch_add(after.round_trips - before.round_trips, Relaxed);
        self.acquisitions.fetch_add(after.acquisitions - before.acquisitions, Relaxed);
        self.fallbacks.fetch_add(after.fallbacks - before.fallbacks, Relaxed);
    }
}

/// Who a client is, and where its servers are.
#[derive(Clone)]
pub(super) struct ClientConfig {
    pub(super) number: usize,
    pub(super) consistency: Consistency,
    /// Cores of each server that own files.
    pub(super) cores: NonZeroUsize,
    pub(super) servers: Vec<std::net::SocketAddr>,
    pub(super) counters: Arc<Counters>,
}

struct File {
    lock: FileLock<u64>,
    /// Operations that wait for their lock.
    waiting: HashMap<u64, Sender<()>>,
}

/// See the module. Clones are the same client.
#[derive(Clone)]
pub(super) struct Client {
    inner: Rc<Inner>,
}

struct Inner {
    worker: Worker,
    config: ClientConfig,
    policy: Policy,
    /// By server, then by core.
    connections: RefCell<Vec<Vec<Connection>>>,
    codec: Arc<dyn Codec>,
    layout: Layout,
    files: RefCell<HashMap<Gfid, File>>,
    next: Slot<u64>,
    error: RefCell<Option<BenchError>>,
}

/// Hears what servers say of their own.
struct Listens(Weak<Inner>);

impl Service for Listens {
    fn on_message(&self, _: &Worker, _: &Connection, message: Message) {
        let (Some(inner), Some(gfid)) = (self.0.upgrade(), wire::parse_wanted(&message)) else {
            return;
        };
        inner.config.counters.notices.fetch_add(1, Relaxed);
        Client { inner }.with_lock(gfid, |lock| Ok(lock.on_wanted()));
    }
}

/// The file with this number.
pub(super) fn gfid(file: usize) -> Gfid {
    Gfid::of_inode(1000 + file as u64)
}

impl Client {
    /// Connects to all servers; done once each has answered.
    pub(super) async fn connect(
        worker: Worker,
        config: ClientConfig,
    ) -> Result<Client, BenchError> {
        let inner = Rc::new(Inner {
            worker: worker.clone(),
            policy: config.consistency.policy(),
            connections: RefCell::default(),
            codec: codec::for_profile(profile()),
            layout: Layout::new(profile()),
            files: RefCell::default(),
            next: Slot::new(0),
            error: RefCell::default(),
            config,
        });
        let client = Client { inner };
        let lanes = match client.inner.config.consistency.execution() {
            Execution::Arithmetic => client.inner.config.cores.get(),
            Execution::SharedQueue | Execution::Table => 1,
        };
        for addr in client.inner.config.servers.clone() {
            let mut to_server = Vec::new();
            for lane in 0..lanes {
                to_server.push(client.connect_lane(addr, lane).await?);
            }
            client.inner.connections.borrow_mut().push(to_server);
        }
        client.spawn_expiry();
        Ok(client)
    }

    async fn connect_lane(
        &self,
        addr: std::net::SocketAddr,
        lane: usize,
    ) -> Result<Connection, BenchError> {
        let worker = &self.inner.worker;
        let name = self.inner.config.number.to_string();
        let lane = u16::try_from(lane).unwrap_or(u16::MAX);
        let config = ConnectConfig { lane, ..ConnectConfig::new(addr, ClusterId::new(1), name) };
        let weak = Rc::downgrade(&self.inner);
        worker.set_local(Rc::new(weak));
        let listens = |worker: &Worker| -> Rc<dyn Service> {
            Rc::new(Listens(
                worker.local::<Weak<Inner>>().map_or_else(Weak::new, |weak| (*weak).clone()),
            ))
        };
        let connection = worker.handle().connect(worker.index(), config, listens);
        let greeting = Request { gfid: Gfid::ROOT, what: What::Greeting };
        connection.call(greeting.message(Bytes::new()), DEADLINE).await?;
        Ok(connection)
    }

    /// Gives back locks that were kept for nothing, for as long as the client lives.
    fn spawn_expiry(&self) {
        let (worker, weak) = (self.inner.worker.clone(), Rc::downgrade(&self.inner));
        self.inner.worker.spawn(async move {
            loop {
                worker.sleep(EXPIRE_EVERY).await;
                let Some(inner) = weak.upgrade() else { return };
                let (client, now) = (Client { inner }, Instant::now());
                let files: Vec<Gfid> = client.inner.files.borrow().keys().copied().collect();
                files
                    .into_iter()
                    .for_each(|gfid| client.with_lock(gfid, |lock| Ok(lock.expire(now))));
            }
        });
    }

    /// Closes the connections; the servers let go of what the client has locked.
    pub(super) fn close(&self) {
        self.inner.connections.borrow().iter().flatten().for_each(Connection::close);
    }

    /// The first thing that went wrong outside of an operation.
    pub(super) fn take_error(&self) -> Option<BenchError> {
        self.inner.error.borrow_mut().take()
    }

    /// Has something gone wrong outside of an operation?
    pub(super) fn has_error(&self) -> bool {
        self.inner.error.borrow().is_some()
    }

    /// Starts a task on the client's worker; it runs whether or not its result is waited for.
    pub(super) fn spawn<T: 'static>(&self, task: impl Future<Output = T> + 'static) -> Receiver<T> {
        let (sender, receiver) = oneshot();
        self.inner.worker.spawn(async move {
            // Nobody waits for it any more if the run has failed.
            let _ = sender.send(task.await);
        });
        receiver
    }

    /// Writes whole stripes, under the lock that the mode wants.
    pub(super) async fn write(
        &self,
        gfid: Gfid,
        offset: u64,
        data: &[u8],
    ) -> Result<(), BenchError> {
        self.lock(gfid, Access::Exclusive).await?;
        let result = self.write_locked(gfid, offset, data).await;
        self.unlock(gfid, Access::Exclusive);
        result
    }

    /// Reads, under the lock that the mode wants.
    pub(super) async fn read(&self, gfid: Gfid, range: Range<u64>) -> Result<Bytes, BenchError> {
        self.lock(gfid, Access::Shared).await?;
        let result = self.read_locked(gfid, range).await;
        self.unlock(gfid, Access::Shared);
        result
    }

    /// Reads all shards, without a lock: do they fit together?
    pub(super) async fn is_whole(&self, gfid: Gfid, range: Range<u64>) -> Result<bool, BenchError> {
        let fragment = self.inner.layout.fragment_cover(&range);
        let all = (0..profile().shards())
            .map(|shard| self.ask_read(gfid, ShardIndex::new(shard), &fragment));
        let shards = replies(all.collect()).await?;
        let (data, parity) = shards.split_at(profile().k().into());
        let mut coded = vec![vec![0; data[0].len()]; parity.len()];
        let data: Vec<&[u8]> = data.iter().map(AsRef::as_ref).collect();
        self.inner
            .codec
            .encode(&data, &mut coded.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
        Ok(coded.iter().zip(parity).all(|(coded, parity)| coded == parity))
    }

    async fn write_locked(&self, gfid: Gfid, offset: u64, data: &[u8]) -> Result<(), BenchError> {
        let range = offset..offset + data.len() as u64;
        debug_assert!(range.end <= FILE_BYTES && self.inner.layout.is_whole_stripes(&range));
        let fragment = self.inner.layout.fragment_cover(&range);
        let shards = self.encode(&range, &fragment, data);
        let calls = shards.into_iter().enumerate().map(|(shard, bytes)| {
            let request = Request { gfid, what: What::Write { offset: fragment.start } };
            self.send(ShardIndex::new(shard as u8), request, bytes)
        });
        self.count_round();
        replies(calls.collect()).await.map(drop)
    }

    /// The fragments' bytes of all shards.
    fn encode(&self, range: &Range<u64>, fragment: &Range<u64>, data: &[u8]) -> Vec<Bytes> {
        let length = (fragment.end - fragment.start) as usize;
        let mut buffers: Vec<_> =
            (0..profile().shards()).map(|_| self.inner.worker.pool().take(length)).collect();
        let (stripes, parity) = buffers.split_at_mut(profile().k().into());
        let mut to: Vec<&mut [u8]> = stripes.iter_mut().map(AsMut::as_mut).collect();
        self.inner.layout.scatter(range.start, data, fragment.start, &mut to);
        let from: Vec<&[u8]> = stripes.iter().map(AsRef::as_ref).collect();
        let mut parity: Vec<&mut [u8]> = parity.iter_mut().map(AsMut::as_mut).collect();
        self.inner.codec.encode(&from, &mut parity);
        buffers.into_iter().map(messenger::buffer::PooledBuf::freeze).collect()
    }

    async fn read_locked(&self, gfid: Gfid, range: Range<u64>) -> Result<Bytes, BenchError> {
        let fragment = self.inner.layout.fragment_cover(&range);
        let calls = (0..profile().k())
            .map(|shard| self.ask_read(gfid, ShardIndex::new(shard), &fragment))
            .collect();
        self.count_round();
        let shards = replies(calls).await?;
        let pieces: Vec<Piece<'_>> =
            shards.iter().map(|bytes| Piece { offset: fragment.start, bytes }).collect();
        let mut user = self.inner.worker.pool().take((range.end - range.start) as usize);
        self.inner.layout.gather(range, &pieces, user.as_mut());
        Ok(user.freeze())
    }

    fn ask_read(&self, gfid: Gfid, shard: ShardIndex, fragment: &Range<u64>) -> Call {
        let bytes = u32::try_from(fragment.end - fragment.start).unwrap_or(u32::MAX);
        self.send(
            shard,
            Request { gfid, what: What::Read { offset: fragment.start, bytes } },
            Bytes::new(),
        )
    }

    fn count_round(&self) {
        self.inner.config.counters.round_trips.fetch_add(1, Relaxed);
    }

    /// Sends a request to the server of a shard, at once, in order with everything else that goes
    /// to the file's core.
    fn send(&self, shard: ShardIndex, request: Request, data: Bytes) -> Call {
        if !matches!(request.what, What::Lock { .. }) {
            self.inner.config.counters.requests.fetch_add(1, Relaxed);
        }
        let connections = self.inner.connections.borrow();
        let to_server = &connections[usize::from(shard.get())];
        let lanes = NonZeroUsize::new(to_server.len()).unwrap_or(NonZeroUsize::MIN);
        to_server[core_of(request.gfid.get(), lanes)].call(request.message(data), DEADLINE)
    }

    /// Waits for the lock.
    async fn lock(&self, gfid: Gfid, access: Access) -> Result<(), BenchError> {
        let operation = self.inner.next.replace(self.inner.next.get() + 1);
        let (sender, receiver) = oneshot();
        let began = Instant::now();
        let mut is_started = false;
        self.with_file(gfid, |file| {
            let before = file.lock.counts();
            let mut actions = file.lock.submit(operation, access);
            actions.retain(|action| {
                let is_this = matches!(action, Action::Start(started) if *started == operation);
                is_started |= is_this;
                !is_this
            });
            if !is_started {
                file.waiting.insert(operation, sender);
            }
            (before, actions)
        });
        if !is_started {
            receiver.await.map_err(|_| BenchError::Gone)?;
            let waited = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.inner.config.counters.lock_wait_ns.fetch_add(waited, Relaxed);
        }
        Ok(())
    }

    fn unlock(&self, gfid: Gfid, access: Access) {
        self.inner.config.counters.operations.fetch_add(1, Relaxed);
        let now = Instant::now();
        self.with_lock(gfid, |lock| Ok(lock.finish(access, now)));
    }

    /// Does something with a file's lock, and what follows from it.
    fn with_lock(
        &self,
        gfid: Gfid,
        f: impl FnOnce(&mut FileLock<u64>) -> Result<Actions<u64>, BenchError>,
    ) {
        let mut failed = None;
        self.with_file(gfid, |file| {
            let before = file.lock.counts();
            let actions = f(&mut file.lock).unwrap_or_else(|error| {
                failed = Some(error);
                Actions::new()
            });
            (before, actions)
        });
        if let Some(error) = failed {
            self.fail(error);
        }
    }

    /// Ends the run: operations that wait for a lock wait no more.
    fn fail(&self, error: BenchError) {
        self.inner.error.borrow_mut().get_or_insert(error);
        self.inner.files.borrow_mut().values_mut().for_each(|file| file.waiting.clear());
    }

    fn with_file(&self, gfid: Gfid, f: impl FnOnce(&mut File) -> (LockCounts, Actions<u64>)) {
        let mut files = self.inner.files.borrow_mut();
        let file = files.entry(gfid).or_insert_with(|| File {
            lock: FileLock::new(self.inner.policy, ShardSet::first(profile().shards())),
            waiting: HashMap::new(),
        });
        let (before, actions) = f(file);
        self.inner.config.counters.add_locking(before, file.lock.counts());
        let mut started = Vec::new();
        for action in &actions {
            if let Action::Start(operation) = action {
                started.extend(file.waiting.remove(operation));
            }
        }
        drop(files);
        for sender in started {
            // Nobody waits any more if the run has failed.
            let _ = sender.send(());
        }
        for action in actions {
            if let Action::Ask(request, access) = action {
                self.ask(gfid, request, access);
            }
        }
    }

    fn ask(&self, gfid: Gfid, LockRequest { server, ask }: LockRequest, access: Access) {
        let call =
            self.send(server, Request { gfid, what: What::Lock { ask, access } }, Bytes::new());
        let client = self.clone();
        self.inner.worker.spawn(async move {
            match call.await {
                Ok(message) => client.on_lock_reply(gfid, server, wire::parse_lock_reply(&message)),
                Err(error) => client.fail(error.into()),
            }
        });
    }

    fn on_lock_reply(&self, gfid: Gfid, server: ShardIndex, reply: Reply) {
        self.with_lock(gfid, |lock| Ok(lock.on_reply(server, reply)?));
    }
}

/// The data of all replies.
async fn replies(calls: Vec<Call>) -> Result<Vec<Bytes>, BenchError> {
    let mut all = Vec::with_capacity(calls.len());
    for call in calls {
        let reply = call.await?;
        if wire::has_failed(&reply) {
            return Err(BenchError::Refused);
        }
        all.push(reply.data);
    }
    Ok(all)
}
