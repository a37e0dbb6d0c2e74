//! The role over real sockets, with a monitor that only hands out a map.

use super::*;
use bytes::Bytes;
use cluster::{ClusterMap, SessionState};
use messenger::{
    ConnectConfig, Connection, Message, Runtime, RuntimeConfig, Service, TrafficClass,
};
use metadata::{PurgeEntry, SizeRecovery};
use protocol::monitor::{MapUpdate, MonitorReply, MonitorRequest};
use protocol::namespace::{
    Answer, Attr, Caller, FileKind, Grant, LeaseMode, NamespaceOp, Recall, Reply, Request, SetAttr,
};
use protocol::{Epoch, Gfid, Kind, PoolId, SessionId};
use std::cell::Cell;
use std::sync::Mutex;
use std::sync::mpsc;

const CLUSTER: ClusterId = ClusterId::new(77);
const A: SessionId = SessionId::new(1);
const B: SessionId = SessionId::new(2);
const WAIT: Duration = Duration::from_secs(20);

fn map(epoch: u64, live: &[SessionId]) -> MapUpdate {
    let map = ClusterMap {
        cluster: CLUSTER,
        epoch: Epoch::new(epoch),
        osds: Default::default(),
        pools: Default::default(),
        pgs: Default::default(),
        sessions: live.iter().map(|session| (*session, SessionState::Live)).collect(),
        last_session: B,
        mds: None,
    };
    MapUpdate { cluster: CLUSTER, epoch: map.epoch, map: map.encode(), monitors: Vec::new() }
}

/// A monitor with one map, which a test can replace; subscribers are told of the new one.
#[derive(Default)]
struct Monitor {
    map: Mutex<Option<MapUpdate>>,
    subscribers: Mutex<Vec<Connection>>,
}

impl Monitor {
    fn publish(&self, update: MapUpdate) {
        *self.map.lock().expect("no panic") = Some(update.clone());
        for subscriber in self.subscribers.lock().expect("no panic").iter() {
            let front = protocol::encode(&update);
            subscriber.send(Message::new(
                TrafficClass::Control,
                Kind::MapUpdate.to_u16(),
                front,
                Bytes::new(),
            ));
        }
    }
}

struct MonitorService(Arc<Monitor>);

impl Service for MonitorService {
    fn on_message(&self, _worker: &Worker, connection: &Connection, message: Message) {
        let reply =
            match protocol::decode::<MonitorRequest>("request", &message.front).expect("decodes") {
                MonitorRequest::Subscribe => {
                    self.0.subscribers.lock().expect("no panic").push(connection.clone());
                    MonitorReply::Map(
                        self.0.map.lock().expect("no panic").clone().expect("a map was published"),
                    )
                }
                _ => MonitorReply::Done(Epoch::new(1)),
            };
        connection.reply(
            &message,
            Kind::MonitorReply.to_u16(),
            protocol::encode(&reply),
            Bytes::new(),
        );
    }
}

/// Passes recalls on to the test.
struct Recalls(mpsc::Sender<Recall>);

impl Service for Recalls {
    fn on_message(&self, _worker: &Worker, _connection: &Connection, message: Message) {
        let recall = protocol::decode("recall", &message.front).expect("decodes");
        self.0.send(recall).expect("the test runs");
    }
}

struct Client {
    session: SessionId,
    connection: Connection,
    number: Cell<u64>,
    recalls: mpsc::Receiver<Recall>,
}

impl Client {
    fn new(handle: &Handle, addr: SocketAddr, session: SessionId) -> Self {
        let (tx, recalls) = mpsc::channel();
        let to = ConnectConfig::new(addr, CLUSTER, "client");
        let connection = handle.connect(0, to, move |_| Rc::new(Recalls(tx)));
        Self { session, connection, number: Cell::new(0), recalls }
    }

    /// Sends without waiting.
    fn begin(&self, op: NamespaceOp) -> messenger::Call {
        self.number.set(self.number.get() + 1);
        let caller = Caller { uid: 0, gid: 0, now: Timestamp { secs: 1, nanos: 0 } };
        let request = Request {
            session: self.session,
            number: self.number.get(),
            answered: 0,
            epoch: Epoch::default(),
            caller,
            op,
        };
        let front = protocol::encode(&request);
        let message =
            Message::new(TrafficClass::Client, Kind::Namespace.to_u16(), front, Bytes::new());
        self.connection.call(message, WAIT)
    }

    fn end(call: messenger::Call) -> Reply {
        let reply = block_on(call).expect("an answer");
        protocol::decode::<Answer>("reply", &reply.front).expect("decodes").reply
    }

    /// Calls until the service is ready.
    fn call(&self, op: NamespaceOp) -> Reply {
        loop {
            match Self::end(self.begin(op.clone())) {
                Reply::TryAgain => std::thread::sleep(Duration::from_millis(20)),
                reply => return reply,
            }
        }
    }

    fn create(&self, name: &str, open: Option<LeaseMode>) -> Attr {
        let op = NamespaceOp::Create {
            parent: Gfid::ROOT,
            name: name.into(),
            kind: FileKind::Regular,
            mode: 0o644,
            umask: 0,
            rdev: 0,
            target: vec![],
            pool: PoolId::new(1),
            open,
        };
        match self.call(op) {
            Reply::Attr(attr) | Reply::Opened { attr, .. } => attr,
            other => panic!("{other:?}"),
        }
    }
}

/// A data worker that says what it was asked.
struct Told(mpsc::Sender<Gfid>);

impl DataWorker for Told {
    fn delete_objects(&self, entry: PurgeEntry) -> DataFuture<()> {
        self.0.send(entry.gfid).expect("the test runs");
        Box::pin(async { Ok(()) })
    }

    fn probe_size(&self, file: SizeRecovery) -> DataFuture<u64> {
        Box::pin(async move { Ok(file.size + 4096) })
    }
}

struct Rig {
    runtime: Runtime,
    handle: Handle,
    monitor: Arc<Monitor>,
    _listener: Listener,
    config: MdsConfig,
    _dir: tempfile::TempDir,
}

impl Rig {
    fn new() -> Self {
        let runtime = Runtime::start(RuntimeConfig::new("test", 2)).expect("runtime");
        let handle = runtime.handle();
        let monitor = Arc::new(Monitor::default());
        monitor.publish(map(1, &[A, B]));
        let any: SocketAddr = "127.0.0.1:0".parse().expect("address");
        let serving = Arc::clone(&monitor);
        let listen = ListenConfig::new(any, CLUSTER, "monitor");
        let listener = handle
            .listen(listen, move |_| Rc::new(MonitorService(Arc::clone(&serving))))
            .expect("listen");
        let dir = tempfile::tempdir().expect("tempdir");
        let mut config = MdsConfig::new(any, dir.path().join("mds"), listener.local_addr());
        config.worker = 1;
        config.free_bytes_min = 0;
        Self { runtime, handle, monitor, _listener: listener, config, _dir: dir }
    }

    fn start(&self) -> MdsHandle {
        start(self.config.clone(), &self.handle).expect("starts")
    }
}

#[test]
fn serves_syncs_and_keeps_across_a_restart() {
    let rig = Rig::new();
    let mds = rig.start();
    let client = Client::new(&rig.handle, mds.addr(), A);
    let made = client.create("f", None);
    assert_eq!(client.call(NamespaceOp::Sync), Reply::Done);
    let (gfid, set) = (made.gfid, SetAttr { mode: Some(0o600), ..SetAttr::default() });
    let Reply::Attr(made) = client.call(NamespaceOp::SetAttr { gfid, set, sync: true }) else {
        panic!("no attributes")
    };
    let second = start(rig.config.clone(), &rig.handle);
    assert!(matches!(second, Err(MdsError::Store(StoreError::Locked { .. }))), "{second:?}");
    mds.stop();
    let mds = rig.start();
    let client = Client::new(&rig.handle, mds.addr(), A);
    client.number.set(100);
    let reclaim = NamespaceOp::Reclaim {
        held: vec![],
        locks: vec![],
        mount: false,
        since: u64::MAX,
        begun: 0,
        last: true,
    };
    assert!(matches!(client.call(reclaim), Reply::Kept { .. }));
    assert_eq!(
        client.call(NamespaceOp::Lookup { parent: Gfid::ROOT, name: b"f".to_vec() }),
        Reply::Attr(made)
    );
    mds.stop();
    let mut other = rig.config.clone();
    other.cluster = ClusterId::new(5);
    assert!(matches!(start(other, &rig.handle), Err(MdsError::Cluster { .. })));
    rig.runtime.shutdown();
}

#[test]
fn recall_reaches_the_holder_and_lets_the_other_go_on() {
    let rig = Rig::new();
    let mds = rig.start();
    let (a, b) = (Client::new(&rig.handle, mds.addr(), A), Client::new(&rig.handle, mds.addr(), B));
    let gfid = a.create("f", Some(LeaseMode::Write)).gfid;
    let open = b.begin(NamespaceOp::Open { gfid, lease: LeaseMode::Write });
    assert_eq!(a.recalls.recv_timeout(WAIT).expect("a recall"), Recall { gfid, keep: None });
    let set = SetAttr { size: Some(9), ..SetAttr::default() };
    assert_eq!(a.call(NamespaceOp::ReturnLease { gfid, keep: None, set }), Reply::Done);
    let Reply::Opened { attr, grant: Some(Grant { mode: LeaseMode::Write, .. }) } =
        Client::end(open)
    else {
        panic!("not opened")
    };
    assert_eq!(attr.size, 9);
    mds.stop();
    rig.runtime.shutdown();
}

#[test]
fn data_worker_recovers_sizes_and_purges() {
    let rig = Rig::new();
    let mds = rig.start();
    let (tx, purged) = mpsc::channel();
    mds.set_data_worker(move |_| Rc::new(Told(tx)));
    let (a, b) = (Client::new(&rig.handle, mds.addr(), A), Client::new(&rig.handle, mds.addr(), B));
    let gfid = a.create("f", Some(LeaseMode::Write)).gfid;
    rig.monitor.publish(map(2, &[B]));
    while a.call(NamespaceOp::StatFs) != Reply::Fenced {
        std::thread::sleep(Duration::from_millis(20));
    }
    let opened = b.call(NamespaceOp::Open { gfid, lease: LeaseMode::Read });
    assert!(matches!(opened, Reply::Opened { attr, .. } if attr.size == 4096), "{opened:?}");
    assert_eq!(
        b.call(NamespaceOp::Unlink { parent: Gfid::ROOT, name: b"f".to_vec(), gives: None }),
        Reply::Done
    );
    assert_eq!(b.call(NamespaceOp::Close { gfid }), Reply::Done);
    assert_eq!(purged.recv_timeout(WAIT).expect("a purge"), gfid);
    mds.stop();
    rig.runtime.shutdown();
}

#[test]
fn nonsense_is_refused_and_others_go_on() {
    let rig = Rig::new();
    let mds = rig.start();
    let client = Client::new(&rig.handle, mds.addr(), A);
    client.create("f", None);
    let garbage = Message::new(
        TrafficClass::Client,
        Kind::Namespace.to_u16(),
        Bytes::from_static(&[0xff; 40]),
        Bytes::new(),
    );
    let reply = block_on(client.connection.call(garbage, WAIT)).expect("an answer");
    assert!(matches!(protocol::decode("reply", &reply.front).expect("decodes"), Reply::Errno(_)));
    assert_eq!(client.call(NamespaceOp::StatFs), Reply::Count(1));
    mds.stop();
    rig.runtime.shutdown();
}
