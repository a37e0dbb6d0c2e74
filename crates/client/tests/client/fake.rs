//! A cluster in one process for tests of the client alone: a monitor that serves a map, and OSDs
//! that keep fragments in memory and follow the shard's rules (epoch, attach, predecessor,
//! `after`), with faults to switch on.
//!
//! Rebuilding a returned OSD happens at once, from k others, while nobody writes.

use bytes::Bytes;
use cluster::{ClusterMap, Osd, Pg, Pool};
use ec_store::codec;
use messenger::{
    Connection, ListenConfig, Listener, Message, Runtime, RuntimeConfig, Service, TrafficClass,
    Worker,
};
use protocol::monitor::{MapUpdate, MonitorReply, MonitorRequest};
use protocol::shard::{
    AckMessage, AttachRequest, ExtentsReply, MarkRequest, ObjectsReply, Op, ReadReply, ReadRequest,
    ShardHead, SpaceReply, StatReply, Status, WriteRequest,
};
use protocol::{
    ClusterId, Epoch, Kind, ObjectId, OsdId, PgId, PoolId, Profile, SessionId, ShardIndex, ShardSet,
};
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use zerocopy::{FromBytes, Immutable, IntoBytes};

pub const POOL: PoolId = PoolId::new(1);
const CLUSTER: ClusterId = ClusterId::new(0xfa4e);

#[derive(Clone, Default)]
struct Fragment {
    bytes: Vec<u8>,
    end: u64,
}

#[derive(Clone, Copy, Default)]
struct Attached {
    aid: u64,
    tail: u64,
    durable: u64,
}

/// What may go wrong at an OSD.
#[derive(Clone, Copy, Default)]
pub struct Faults {
    /// Every n-th write that could be taken is refused as Busy; 0: none.
    pub busy_every: u64,
    /// Every read is refused as Busy.
    pub busy_reads: bool,
    /// Reads fail their checksum.
    pub corrupt: bool,
    /// Reads are answered so late.
    pub delay: Duration,
    /// Bytes still free; `None`: plenty.
    pub free: Option<u64>,
    /// Every request is refused: the session is dead.
    pub fenced: bool,
}

#[derive(Default)]
struct OsdState {
    fragments: HashMap<(PgId, ObjectId), Fragment>,
    sessions: HashMap<(PgId, SessionId), Attached>,
    faults: Faults,
    writes: u64,
    reads: u64,
    /// Reads that are not answered, now and at most so far.
    reading: usize,
    reading_max: usize,
}

struct World {
    map: ClusterMap,
    osds: Vec<OsdState>,
    subscribers: Vec<Connection>,
}

type Shared = Arc<Mutex<World>>;

fn lock(world: &Shared) -> MutexGuard<'_, World> {
    world.lock().expect("no test panicked while it held the lock")
}

/// See the module.
pub struct Fake {
    world: Shared,
    monitor: (Listener, Runtime),
    osds: Vec<Option<(Listener, Runtime)>>,
    profile: Profile,
}

impl Fake {
    /// A clean cluster with as many OSDs as the profile has shards.
    pub fn start(profile: Profile, pg_num: u32) -> Fake {
        let pool = Pool { name: "data".into(), profile, pg_num };
        let acting: Vec<OsdId> = (0..u32::from(profile.shards())).map(OsdId::new).collect();
        let in_sync = ShardSet::first(profile.shards());
        let pg =
            Pg { epoch: Epoch::new(1), acting, in_sync, joining: ShardSet::EMPTY, active: true };
        let map = ClusterMap {
            cluster: CLUSTER,
            epoch: Epoch::new(1),
            osds: BTreeMap::new(),
            pools: BTreeMap::from([(POOL, pool)]),
            pgs: (0..pg_num).map(|number| (PgId { pool: POOL, number }, pg.clone())).collect(),
            sessions: BTreeMap::new(),
            last_session: SessionId::new(0),
            mds: None,
        };
        let osds = (0..profile.shards()).map(|_| OsdState::default()).collect();
        let world = Arc::new(Mutex::new(World { map, osds, subscribers: Vec::new() }));
        let served = Arc::clone(&world);
        let monitor = listen(move |_| Rc::new(MonitorService { world: Arc::clone(&served) }));
        let mut fake = Fake { world, monitor, osds: Vec::new(), profile };
        for index in 0..usize::from(profile.shards()) {
            fake.osds.push(None);
            fake.serve(index);
        }
        fake
    }

    pub fn monitor(&self) -> String {
        self.monitor.0.local_addr().to_string()
    }

    fn serve(&mut self, index: usize) {
        let served = Arc::clone(&self.world);
        let osd = listen(move |_| Rc::new(OsdService { world: Arc::clone(&served), index }));
        let addr = osd.0.local_addr();
        self.osds[index] = Some(osd);
        let id = OsdId::new(index as u32);
        let osd = |addr: SocketAddr| Osd {
            addr: Some(addr),
            cores: 2,
            up: true,
            is_in: true,
            weight: 65536,
            host: "fake".into(),
            fsid: 1,
            replace: false,
        };
        self.change(|map| {
            map.osds.insert(id, osd(addr));
        });
    }

    /// Stops an OSD's process: nobody is told.
    pub fn kill(&mut self, index: usize) {
        if let Some((listener, runtime)) = self.osds[index].take() {
            listener.stop();
            runtime.shutdown();
        }
    }

    /// Most reads that an OSD with a delay had to answer at once.
    pub fn reading_max(&self, index: usize) -> usize {
        lock(&self.world).osds[index].reading_max
    }

    /// The monitor marks an OSD down: a new epoch of every PG without it.
    pub fn mark_down(&self, index: usize) {
        self.change(|map| {
            let epoch = map.epoch;
            if let Some(osd) = map.osds.get_mut(&OsdId::new(index as u32)) {
                osd.up = false;
            }
            for pg in map.pgs.values_mut() {
                pg.epoch = epoch;
                pg.in_sync = pg.in_sync.without(ShardIndex::new(index as u8));
            }
        });
    }

    /// The OSD starts again, is rebuilt and joins. Nobody writes meanwhile, and everything is
    /// stable.
    pub fn bring_back(&mut self, index: usize) {
        self.rebuild(index);
        self.serve(index);
        self.change(|map| {
            let epoch = map.epoch;
            for pg in map.pgs.values_mut() {
                pg.epoch = epoch;
                pg.in_sync = pg.in_sync.with(ShardIndex::new(index as u8));
            }
        });
    }

    fn rebuild(&self, index: usize) {
        let mut world = lock(&self.world);
        let codec = codec::for_profile(self.profile);
        let others: Vec<usize> = (0..world.osds.len()).filter(|&i| i != index).collect();
        let keys: Vec<_> =
            others.iter().flat_map(|&i| world.osds[i].fragments.keys().copied()).collect();
        world.osds[index].fragments.clear();
        for key in keys {
            let pieces: Vec<Fragment> = others
                .iter()
                .map(|&i| world.osds[i].fragments.get(&key).cloned().unwrap_or_default())
                .collect();
            let length = pieces.iter().map(|f| f.bytes.len()).max().unwrap_or(0);
            let padded: Vec<Vec<u8>> = pieces
                .iter()
                .map(|f| f.bytes.iter().copied().chain(std::iter::repeat(0)).take(length).collect())
                .collect();
            let have: Vec<(ShardIndex, &[u8])> = others
                .iter()
                .zip(&padded)
                .map(|(&i, bytes)| (ShardIndex::new(i as u8), bytes.as_slice()))
                .collect();
            let mut rebuilt = vec![0; length];
            codec
                .reconstruct(&have, &mut [(ShardIndex::new(index as u8), rebuilt.as_mut_slice())])
                .expect("enough pieces");
            let end = pieces.iter().map(|f| f.end).max().unwrap_or(0);
            world.osds[index].fragments.insert(key, Fragment { bytes: rebuilt, end });
        }
        let mut sessions: HashMap<_, Attached> = HashMap::new();
        for (key, attached) in others.iter().flat_map(|&i| world.osds[i].sessions.clone()) {
            let known = sessions.entry(key).or_default();
            known.tail = known.tail.max(attached.tail);
            known.durable = known.tail;
        }
        world.osds[index].sessions = sessions;
    }

    /// Switches faults on or off.
    pub fn faults(&self, index: usize, faults: Faults) {
        lock(&self.world).osds[index].faults = faults;
    }

    /// Reads that an OSD has answered.
    pub fn reads(&self, index: usize) -> u64 {
        lock(&self.world).osds[index].reads
    }

    /// Where the monitor of the map says that the metadata service is.
    pub fn set_mds(&self, addr: SocketAddr) {
        self.change(|map| map.mds = Some(addr));
    }

    /// Changes the map into its next epoch and tells everyone.
    fn change(&self, change: impl FnOnce(&mut ClusterMap)) {
        let mut world = lock(&self.world);
        world.map.epoch = Epoch::new(world.map.epoch.get() + 1);
        change(&mut world.map);
        let update = protocol::encode(&update_of(&world.map));
        for subscriber in &world.subscribers {
            let kind = Kind::MapUpdate.to_u16();
            subscriber.send(Message::new(
                TrafficClass::Control,
                kind,
                update.clone(),
                Bytes::new(),
            ));
        }
    }

    /// Does parity fit the data of every object, on all shards?
    pub fn check_stripes(&self) {
        let world = lock(&self.world);
        let (k, codec) = (usize::from(self.profile.k()), codec::for_profile(self.profile));
        let keys: Vec<_> =
            world.osds.iter().flat_map(|osd| osd.fragments.keys().copied()).collect();
        assert!(!keys.is_empty(), "something was written");
        for key in keys {
            let longest = world
                .osds
                .iter()
                .filter_map(|osd| osd.fragments.get(&key))
                .map(|f| f.bytes.len())
                .max();
            let whole: Vec<Vec<u8>> = world
                .osds
                .iter()
                .map(|osd| {
                    let mut bytes =
                        osd.fragments.get(&key).map(|f| f.bytes.clone()).unwrap_or_default();
                    bytes.resize(longest.unwrap_or(0), 0);
                    bytes
                })
                .collect();
            let data: Vec<&[u8]> = whole[..k].iter().map(Vec::as_slice).collect();
            let mut parity = vec![vec![0; longest.unwrap_or(0)]; whole.len() - k];
            codec.encode(&data, &mut parity.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
            assert!(parity.iter().eq(&whole[k..]), "parity of {key:?} fits its data");
        }
    }
}

/// Serves on a free port.
pub fn listen(
    factory: impl Fn(&Worker) -> Rc<dyn Service> + Send + Sync + 'static,
) -> (Listener, Runtime) {
    let runtime = Runtime::start(RuntimeConfig::new("fake", 2)).expect("threads");
    let any = "127.0.0.1:0".parse().expect("an address");
    let listener = runtime
        .handle()
        .listen(ListenConfig::new(any, CLUSTER, "fake"), factory)
        .expect("a free port");
    (listener, runtime)
}

fn update_of(map: &ClusterMap) -> MapUpdate {
    MapUpdate { cluster: map.cluster, epoch: map.epoch, map: map.encode(), monitors: Vec::new() }
}

struct MonitorService {
    world: Shared,
}

impl Service for MonitorService {
    fn on_message(&self, _worker: &Worker, connection: &Connection, message: Message) {
        let request: MonitorRequest =
            protocol::decode("request", &message.front).expect("a request");
        let mut world = lock(&self.world);
        let reply = match request {
            MonitorRequest::Subscribe => {
                world.subscribers.push(connection.clone());
                MonitorReply::Map(update_of(&world.map))
            }
            MonitorRequest::OpenSession { .. } => {
                world.map.last_session = SessionId::new(world.map.last_session.get() + 1);
                MonitorReply::Session {
                    session: world.map.last_session,
                    ttl_ms: 30_000,
                    epoch: world.map.epoch,
                }
            }
            _ => MonitorReply::Done(world.map.epoch),
        };
        drop(world);
        connection.reply(
            &message,
            Kind::MonitorReply.to_u16(),
            protocol::encode(&reply),
            Bytes::new(),
        );
    }
}

struct OsdService {
    world: Shared,
    index: usize,
}

fn parse<T: FromBytes>(message: &Message) -> T {
    let Ok((front, _)) = T::read_from_prefix(&message.front) else { panic!("a message too short") };
    front
}

fn bytes_of<T: IntoBytes + Immutable>(front: &T) -> Bytes {
    Bytes::copy_from_slice(front.as_bytes())
}

impl OsdService {
    /// Whether the sender's epoch and attach are ours.
    fn check(&self, world: &World, head: &ShardHead, attaching: bool) -> Status {
        let pg = &world.map.pgs[&head.pg()];
        let osd = &world.osds[self.index];
        let aid = osd.sessions.get(&(head.pg(), head.session())).map_or(0, |known| known.aid);
        if osd.faults.fenced {
            Status::Fenced
        } else if head.epoch() != pg.epoch
            || !pg.in_sync.contains(ShardIndex::new(self.index as u8))
        {
            Status::StaleEpoch
        } else if if attaching { head.attach().get() <= aid } else { head.attach().get() != aid } {
            Status::StaleAttach
        } else {
            Status::Ok
        }
    }

    fn acknowledge(
        &self,
        world: &World,
        connection: &Connection,
        head: &ShardHead,
        status: Status,
        flags: u8,
    ) {
        let osd = &world.osds[self.index];
        let known = osd.sessions.get(&(head.pg(), head.session())).copied().unwrap_or_default();
        let ack = AckMessage {
            pg: head.pg().to_u64().into(),
            epoch: world.map.pgs[&head.pg()].epoch.get().into(),
            attach: head.raw_attach,
            tail: known.tail.into(),
            durable: known.durable.into(),
            free: osd.faults.free.unwrap_or(1 << 40).into(),
            status: status as u8,
            flags,
        };
        connection.send(Message::new(
            TrafficClass::Client,
            Kind::Ack.to_u16(),
            bytes_of(&ack),
            Bytes::new(),
        ));
    }

    fn write(&self, world: &mut World, request: &WriteRequest, data: &[u8]) -> Status {
        let status = self.check(world, &request.head, false);
        let osd = &mut world.osds[self.index];
        if status != Status::Ok {
            return status;
        }
        let known = osd.sessions.entry((request.head.pg(), request.head.session())).or_default();
        let (seq, pred) = (request.seq.get(), request.pred.get());
        if seq <= known.tail {
            return Status::Ok;
        }
        if pred > known.tail {
            return Status::Behind;
        }
        osd.writes += 1;
        if osd.faults.busy_every > 0 && osd.writes.is_multiple_of(osd.faults.busy_every) {
            return Status::Busy;
        }
        known.tail = seq;
        let key = (request.head.pg(), ObjectId::from(request.object));
        let op = Op::from_u8(request.op).expect("a known op");
        if op == Op::Delete {
            osd.fragments.remove(&key);
            return Status::Ok;
        }
        if op == Op::Nothing {
            return Status::Ok;
        }
        let fragment = osd.fragments.entry(key).or_default();
        let (from, to) = (
            request.offset.get() as usize,
            (request.offset.get() + u64::from(request.length.get())) as usize,
        );
        match op {
            Op::Write => {
                fragment.bytes.resize(fragment.bytes.len().max(to), 0);
                fragment.bytes[from..to].copy_from_slice(data);
            }
            Op::Punch => {
                let to = to.min(fragment.bytes.len());
                fragment.bytes[from.min(to)..to].fill(0);
            }
            _ => fragment.bytes.truncate(from),
        }
        let end = request.logical_end.get();
        fragment.end = if op == Op::Truncate { end } else { fragment.end.max(end) };
        Status::Ok
    }

    fn read_status(&self, world: &World, request: &ReadRequest) -> Status {
        let status = self.check(world, &request.head, false);
        let osd = &world.osds[self.index];
        let known = osd
            .sessions
            .get(&(request.head.pg(), request.head.session()))
            .copied()
            .unwrap_or_default();
        match status {
            Status::Ok if osd.faults.busy_reads => Status::Busy,
            Status::Ok if osd.faults.corrupt => Status::Corrupt,
            Status::Ok if known.tail < request.after.get() => Status::Behind,
            other => other,
        }
    }

    fn read(&self, world: &mut World, kind: Kind, request: &ReadRequest) -> (Kind, Bytes, Bytes) {
        let status = self.read_status(world, request);
        let osd = &mut world.osds[self.index];
        osd.reads += 1;
        let fragment = osd.fragments.get(&(request.head.pg(), ObjectId::from(request.object)));
        let stored = fragment.map_or(&[][..], |f| &f.bytes);
        let attach = request.head.raw_attach;
        match kind {
            Kind::Read => {
                let from = (request.offset.get() as usize).min(stored.len());
                let to = (from + request.length.get() as usize).min(stored.len());
                let front = bytes_of(&ReadReply { attach, status: status as u8, flags: 0 });
                (Kind::ReadReply, front, Bytes::copy_from_slice(&stored[from..to]))
            }
            Kind::Stat => {
                let reply = StatReply {
                    attach,
                    logical_end: fragment.map_or(0, |f| f.end).into(),
                    allocated: (stored.len() as u64).into(),
                    status: status as u8,
                    flags: u8::from(fragment.is_some()),
                };
                (Kind::StatReply, bytes_of(&reply), Bytes::new())
            }
            Kind::Space => {
                let (missing, free) = (0.into(), 0.into());
                let reply = SpaceReply { attach, missing, free, status: status as u8, flags: 0 };
                (Kind::SpaceReply, bytes_of(&reply), Bytes::new())
            }
            Kind::Objects => {
                let (pg, first) = (request.head.pg(), ObjectId::from(request.object));
                let is_asked_for = |id: &ObjectId| id.gfid == first.gfid && id.index >= first.index;
                let here =
                    osd.fragments.iter().filter(|((of, id), _)| *of == pg && is_asked_for(id));
                let mut all: Vec<(u32, u64)> =
                    here.map(|((_, id), held)| (id.index, held.bytes.len() as u64)).collect();
                all.sort_unstable();
                let more = all.len() > 3;
                let (indexes, taken) = all.into_iter().take(3).unzip();
                (
                    Kind::ObjectsReply,
                    protocol::encode(&ObjectsReply { status, indexes, taken, more }),
                    Bytes::new(),
                )
            }
            _ => {
                let (from, to) =
                    (request.offset.get(), request.offset.get() + u64::from(request.length.get()));
                let whole =
                    |at: &u64| stored[*at as usize..*at as usize + 512].iter().any(|b| *b != 0);
                let sectors = (from..to.min(stored.len() as u64)).step_by(512).filter(whole);
                let all: Vec<(u64, u64)> = sectors.map(|at| (at, 512)).collect();
                let more = all.len() > 3;
                let reply = ExtentsReply { status, data: all.into_iter().take(3).collect(), more };
                (Kind::ExtentsReply, protocol::encode(&reply), Bytes::new())
            }
        }
    }
}

impl Service for OsdService {
    fn on_message(&self, worker: &Worker, connection: &Connection, message: Message) {
        let mut world = lock(&self.world);
        match Kind::from_u16(message.kind) {
            Some(Kind::Attach) => {
                let request: AttachRequest = parse(&message);
                let status = self.check(&world, &request.head, true);
                if status == Status::Ok {
                    let key = (request.head.pg(), request.head.session());
                    world.osds[self.index].sessions.entry(key).or_default().aid =
                        request.head.attach().get();
                }
                self.acknowledge(&world, connection, &request.head, status, AckMessage::HELLO);
            }
            Some(Kind::Write) => {
                let request: WriteRequest = parse(&message);
                let status = self.write(&mut world, &request, &message.data);
                self.acknowledge(&world, connection, &request.head, status, 0);
            }
            Some(Kind::Mark) => {
                let request: MarkRequest = parse(&message);
                let status = self.check(&world, &request.head, false);
                if status == Status::Ok && request.flags.get() & MarkRequest::SYNC != 0 {
                    let key = (request.head.pg(), request.head.session());
                    let known = world.osds[self.index].sessions.entry(key).or_default();
                    known.durable = known.tail;
                    self.acknowledge(&world, connection, &request.head, status, 0);
                }
            }
            Some(
                kind @ (Kind::Read | Kind::Stat | Kind::Extents | Kind::Objects | Kind::Space),
            ) => {
                let delay = world.osds[self.index].faults.delay;
                let (kind, front, data) = self.read(&mut world, kind, &parse(&message));
                let (connection, worker) = (connection.clone(), worker.clone());
                if delay.is_zero() {
                    connection.reply(&message, kind.to_u16(), front, data);
                } else {
                    let osd = &mut world.osds[self.index];
                    osd.reading += 1;
                    osd.reading_max = osd.reading_max.max(osd.reading);
                    let (world, index) = (Arc::clone(&self.world), self.index);
                    worker.clone().spawn(async move {
                        worker.sleep(delay).await;
                        lock(&world).osds[index].reading -= 1;
                        connection.reply(&message, kind.to_u16(), front, data);
                    });
                }
            }
            other => panic!("an OSD got {other:?}"),
        }
    }
}
