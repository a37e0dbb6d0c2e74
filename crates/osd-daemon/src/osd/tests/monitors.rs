//! An OSD and its monitors: who is told what.

use super::*;
use cluster::Osd;
use messenger::PeerInfo;
use protocol::Epoch;
use protocol::monitor::MapUpdate;
use std::collections::BTreeMap;

const CLUSTER: ClusterId = ClusterId::new(0x0c);
/// More than any heartbeat that was under way when something changed.
const HEARTBEATS: usize = 5;

/// How a monitor answers.
#[derive(Clone, Default)]
struct Way {
    follows: Option<SocketAddr>,
    /// What its maps say of all monitors.
    monitors: Vec<SocketAddr>,
    /// Heartbeats get no answer.
    is_silent: bool,
}

#[derive(Default)]
struct Seen {
    way: Way,
    connections: Vec<String>,
    asked: Vec<String>,
}

struct FakeMonitor {
    seen: Arc<Mutex<Seen>>,
    listener: Listener,
    _runtime: Runtime,
}

impl FakeMonitor {
    fn start() -> FakeMonitor {
        let runtime = Runtime::start(RuntimeConfig::new("fake", 1)).expect("starts");
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let told = Arc::clone(&seen);
        let serve = move |_: &Worker| Rc::new(FakeService(Arc::clone(&told))) as Rc<dyn Service>;
        let config = ListenConfig::new(ANY_PORT, CLUSTER, "fake");
        let listener = runtime.handle().listen(config, serve).expect("a free port");
        FakeMonitor { seen, listener, _runtime: runtime }
    }

    fn addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    fn set(&self, way: Way) {
        self.seen.lock().expect("not poisoned").way = way;
    }

    fn asked(&self, name: &str) -> usize {
        let seen = self.seen.lock().expect("not poisoned");
        seen.asked.iter().filter(|asked| *asked == name).count()
    }
}

struct FakeService(Arc<Mutex<Seen>>);

fn map() -> ClusterMap {
    let osd = Osd {
        addr: None,
        cores: 1,
        up: true,
        is_in: true,
        weight: 65536,
        host: "test".into(),
        fsid: 0,
        replace: false,
    };
    ClusterMap {
        cluster: CLUSTER,
        epoch: Epoch::new(1),
        osds: BTreeMap::from([(OsdId::new(0), osd)]),
        pools: BTreeMap::new(),
        pgs: BTreeMap::new(),
        sessions: BTreeMap::new(),
        last_session: SessionId::new(0),
        mds: None,
    }
}

impl Service for FakeService {
    fn on_open(&self, _worker: &Worker, _connection: &Connection, peer: &PeerInfo) {
        self.0.lock().expect("not poisoned").connections.push(peer.name.clone());
    }

    fn on_message(&self, _worker: &Worker, connection: &Connection, message: Message) {
        let request: MonitorRequest =
            protocol::decode("request", &message.front).expect("a request");
        let name = format!("{request:?}").chars().take_while(|c| c.is_alphabetic()).collect();
        let mut seen = self.0.lock().expect("not poisoned");
        seen.asked.push(name);
        let way = seen.way.clone();
        drop(seen);
        let reply = match (request, way.follows) {
            (MonitorRequest::Subscribe, _) => {
                let (map, monitors) = (map(), way.monitors);
                let (cluster, epoch) = (map.cluster, map.epoch);
                MonitorReply::Map(MapUpdate { cluster, epoch, map: map.encode(), monitors })
            }
            (MonitorRequest::Heartbeat { .. }, _) if way.is_silent => return,
            (MonitorRequest::Heartbeat { .. }, _) | (_, None) => MonitorReply::Done(Epoch::new(1)),
            (_, leader) => MonitorReply::NotLeader { leader },
        };
        let (kind, front) = (Kind::MonitorReply.to_u16(), protocol::encode(&reply));
        connection.reply(&message, kind, front, Bytes::new());
    }
}

fn osd(dir: &TempDir, monitor: &FakeMonitor) -> OsdHandle {
    let config = OsdConfig::new(OsdId::new(0), dir.path().join("osd"), ANY_PORT, monitor.addr());
    let heartbeat_interval = Duration::from_millis(20);
    start(OsdConfig { heartbeat_interval, ..config }).expect("it starts")
}

#[test]
fn the_only_monitor_is_told_what_it_always_was_and_nothing_else() {
    let (dir, monitor) = (tempfile::tempdir().expect("a directory"), FakeMonitor::start());
    let osd = osd(&dir, &monitor);
    wait_until("heartbeats", || monitor.asked("Heartbeat") >= HEARTBEATS);
    osd.stop();
    let seen = monitor.seen.lock().expect("not poisoned");
    let others: Vec<_> = seen.asked.iter().filter(|name| *name != "Heartbeat").collect();
    assert_eq!(others, ["Subscribe", "Boot", "Leave"]);
    assert_eq!(seen.connections, ["osd.0", "osd.0 heart"]);
}

#[test]
fn heartbeats_go_to_all_monitors_and_what_decides_to_the_leader() {
    let dir = tempfile::tempdir().expect("a directory");
    let [follower, leader, silent] = [(); 3].map(|()| FakeMonitor::start());
    let monitors: Vec<_> = [&follower, &leader, &silent].map(FakeMonitor::addr).to_vec();
    let follows = Some(leader.addr());
    follower.set(Way { follows, monitors: monitors.clone(), ..Way::default() });
    leader.set(Way { monitors: monitors.clone(), ..Way::default() });
    silent.set(Way { monitors, is_silent: true, follows });
    // It is told of one only, which does not lead.
    let osd = osd(&dir, &follower);
    wait_until("heartbeats", || {
        [&follower, &leader].iter().all(|monitor| monitor.asked("Heartbeat") >= HEARTBEATS)
            && silent.asked("Heartbeat") > 0
    });
    assert_eq!((leader.asked("Boot"), silent.asked("Boot")), (1, 0));
    assert!(leader.asked("Subscribe") > 0, "maps come from the leader");
    osd.stop();
    assert_eq!((leader.asked("Leave"), silent.asked("Leave")), (1, 0));
}
