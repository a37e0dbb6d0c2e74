//! The role against a real monitor, over loopback, with real directories.

mod data;
mod hostile;
mod idle;
mod journals;
mod measuring;
mod settings;
mod telemetry;
mod throttles;

use super::*;
use crate::monitor::{self, MonitorConfig, MonitorHandle};
use bytes::Bytes;
use cluster::SessionState;
use messenger::{
    CallError, ConnectConfig, Connection, Message, NoService, Service, TrafficClass, Worker,
};
use placement::threads::Mapping;
use protocol::monitor::{ClusterStatus, OsdReport, PgCondition};
use protocol::shard::{AckMessage, AttachRequest, ShardHead, Status};
use protocol::{AttachId, Kind, PgId, Seq, SessionId};
use std::path::Path;
use std::rc::Rc;
use std::sync::Mutex;
use tempfile::TempDir;
use zerocopy::{FromBytes, IntoBytes};

/// Nothing here takes so long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);
const ANY_PORT: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// A monitor and three OSDs, each in a directory of its own.
struct TestCluster {
    osds: Vec<Option<OsdHandle>>,
    /// With threads of its own: only their end closes its connections, as the end of a process
    /// does.
    monitor: Option<(MonitorHandle, Runtime)>,
    addr: SocketAddr,
    settings: cluster::Settings,
    cores: u16,
    mapping: Mapping,
    tune: Tune,
    runtime: Runtime,
    dir: TempDir,
}

/// What a test changes of every OSD's configuration.
type Tune = Box<dyn Fn(&mut OsdConfig)>;

impl TestCluster {
    fn start(cores: u16, mapping: Mapping) -> TestCluster {
        Self::start_tuned(cores, mapping, |_| {})
    }

    fn start_tuned(
        cores: u16,
        mapping: Mapping,
        tune: impl Fn(&mut OsdConfig) + 'static,
    ) -> TestCluster {
        Self::start_with(Self::settings(), cores, mapping, tune)
    }

    fn settings() -> cluster::Settings {
        cluster::Settings {
            heartbeat_grace: Duration::from_secs(3),
            session_ttl: Duration::from_secs(5),
            start_wait: Duration::from_secs(10),
            ..cluster::Settings::default()
        }
    }

    fn start_with(
        settings: cluster::Settings,
        cores: u16,
        mapping: Mapping,
        tune: impl Fn(&mut OsdConfig) + 'static,
    ) -> TestCluster {
        let runtime = Runtime::start(RuntimeConfig::new("test", 1)).expect("starts");
        let dir = tempfile::tempdir().expect("a directory");
        let (osds, monitor, addr) = (vec![None, None, None], None, ANY_PORT);
        let tune = Box::new(tune);
        let mut cluster =
            TestCluster { osds, monitor, addr, settings, cores, mapping, tune, runtime, dir };
        cluster.start_monitor();
        (0..3).for_each(|osd| cluster.start_osd(osd));
        cluster.wait_clean();
        cluster
    }

    fn start_monitor(&mut self) {
        let mut config = MonitorConfig::new(self.addr, self.dir.path().join("monitor"), 3);
        config.pool.pg_num = 4;
        config.settings = self.settings;
        let runtime = Runtime::start(RuntimeConfig::new("monitor", 1)).expect("starts");
        let monitor = monitor::start(config, &runtime.handle()).expect("the monitor starts");
        self.addr = monitor.addr();
        self.monitor = Some((monitor, runtime));
    }

    fn stop_monitor(&mut self) {
        let (monitor, runtime) = self.monitor.take().expect("it runs");
        monitor.stop();
        runtime.shutdown();
    }

    fn osd_config(&self, osd: usize) -> OsdConfig {
        let mut config = osd_config(self.dir.path(), osd, self.addr, self.cores, self.mapping);
        (self.tune)(&mut config);
        config
    }

    fn start_osd(&mut self, osd: usize) {
        self.osds[osd] = Some(start(self.osd_config(osd)).expect("the osd starts"));
    }

    fn osd(&self, osd: usize) -> &OsdHandle {
        self.osds[osd].as_ref().expect("it runs")
    }

    fn stop_osd(&mut self, osd: usize) {
        self.osds[osd].take().expect("it runs").stop();
    }

    /// As the death of its process would.
    fn kill_osd(&mut self, osd: usize) {
        drop(self.osds[osd].take().expect("it runs"));
    }

    fn connect(&self, addr: SocketAddr) -> Connection {
        let to = ConnectConfig::new(addr, ClusterId::new(0), "test");
        self.runtime.handle().connect(0, to, |_| Rc::new(NoService))
    }

    fn ask(&self, request: &MonitorRequest) -> MonitorReply {
        let connection = self.connect(self.addr);
        let front = protocol::encode(request);
        let message =
            Message::new(TrafficClass::Control, Kind::Monitor.to_u16(), front, Bytes::new());
        let reply = block_on(connection.call(message, PATIENCE)).expect("an answer");
        connection.close();
        protocol::decode("reply", &reply.front).expect("a reply")
    }

    fn map(&self) -> ClusterMap {
        match self.ask(&MonitorRequest::Subscribe) {
            MonitorReply::Map(update) => ClusterMap::decode(&update.map).expect("a map"),
            other => panic!("{other:?}"),
        }
    }

    fn status(&self) -> ClusterStatus {
        match self.ask(&MonitorRequest::Status) {
            MonitorReply::Status(status) => *status,
            other => panic!("{other:?}"),
        }
    }

    fn all_are(&self, condition: PgCondition) -> bool {
        self.status().pgs.iter().all(|(of, count)| *of == condition || *count == 0)
    }

    fn wait_clean(&self) {
        wait_until("all placement groups are clean", || self.all_are(PgCondition::Clean));
    }

    fn wait_degraded(&self) {
        wait_until("all placement groups are degraded", || self.all_are(PgCondition::Degraded));
    }
}

fn osd_config(
    dir: &Path,
    osd: usize,
    monitor: SocketAddr,
    cores: u16,
    mapping: Mapping,
) -> OsdConfig {
    let id = OsdId::new(osd as u32);
    OsdConfig {
        osd_op_threads: cores,
        // one that only serves sockets
        ms_workers: cores + 1,
        filestore_op_threads: 4,
        ms_placement: PlacementConfig::new(mapping),
        heartbeat_interval: Duration::from_millis(200),
        monitor_wait_max: PATIENCE,
        ..OsdConfig::new(id, dir.join(id.to_string()), ANY_PORT, monitor)
    }
}

fn wait_until(what: &str, mut check: impl FnMut() -> bool) {
    let began = Instant::now();
    while !check() {
        assert!(began.elapsed() < PATIENCE, "still waiting until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_stopped_osd_degrades_and_comes_back() {
    let mut cluster = TestCluster::start(1, Mapping::CoreAffine);
    let map = cluster.map();
    assert!(map.osds.values().all(|osd| osd.up && osd.cores == 1 && osd.fsid != 0));
    assert_eq!(map.osds[&OsdId::new(2)].addr, Some(cluster.osd(2).addr()));
    cluster.stop_osd(2);
    cluster.wait_degraded();
    assert!(!cluster.map().osds[&OsdId::new(2)].up);
    cluster.start_osd(2);
    cluster.wait_clean();
    // killed: the monitor finds out by itself, or by the next boot
    cluster.kill_osd(0);
    cluster.start_osd(0);
    cluster.wait_clean();
    wait_until("heartbeats tell the epoch", || {
        let status = cluster.status();
        status.osds.iter().all(|osd| osd.report.epoch == status.epoch && osd.report.total_bytes > 0)
    });
}

#[test]
fn a_monitor_that_restarts_finds_the_osds_serving() {
    let mut cluster = TestCluster::start(1, Mapping::CoreAffine);
    let before = cluster.map();
    cluster.stop_monitor();
    cluster.start_monitor();
    let epoch = cluster.map().epoch;
    let session = match cluster.ask(&MonitorRequest::OpenSession { name: "test".into() }) {
        MonitorReply::Session { session, .. } => session,
        other => panic!("{other:?}"),
    };
    // the new map reaches them over connections made anew, though nobody booted
    wait_until("every osd has the new map", || {
        (0..3).all(|osd| {
            cluster.osd(osd).map().is_some_and(|map| map.sessions.contains_key(&session))
        })
    });
    let after = cluster.map();
    assert!(
        after.pgs.iter().all(|(pg, info)| info.active && info.epoch == before.pgs[pg].epoch),
        "{epoch}"
    );
    assert!(cluster.all_are(PgCondition::Clean));
    // and the end of a dead session is decided over them
    wait_until("the session is dead", || {
        cluster.map().sessions.get(&session).is_none_or(|state| *state == SessionState::Dead)
    });
    wait_until("the session is resolved", || !cluster.map().sessions.contains_key(&session));
    cluster.wait_clean();
}

#[test]
fn an_osd_marked_down_though_alive_boots_again() {
    let cluster = TestCluster::start(1, Mapping::CoreAffine);
    let osd = OsdId::new(1);
    let before = cluster.map().epoch;
    assert!(matches!(cluster.ask(&MonitorRequest::Leave { osd }), MonitorReply::Done(_)));
    wait_until("it is up again", || {
        let map = cluster.map();
        map.epoch > before && map.osds[&osd].up
    });
    cluster.wait_clean();
}

#[test]
fn a_directory_has_one_holder_and_one_cluster() {
    let cluster = TestCluster::start(1, Mapping::CoreAffine);
    let held = start(cluster.osd_config(0)).expect_err("held");
    assert!(matches!(held, OsdError::Data(DataDirError::Held { .. })), "{held}");
    let mut wrong = cluster.osd_config(7);
    wrong.dir = cluster.dir.path().join("new");
    let unknown = start(wrong.clone()).expect_err("not a member");
    assert!(unknown.to_string().contains("osd.7 is not a member"), "{unknown}");
    let other = TestCluster::start(1, Mapping::CoreAffine);
    wrong.monitor = other.addr;
    let strange = start(wrong).expect_err("of another cluster");
    assert!(matches!(strange, OsdError::Data(DataDirError::OtherCluster { .. })), "{strange}");
}

#[test]
fn without_a_monitor_it_says_so_or_can_be_cancelled() {
    let dir = tempfile::tempdir().expect("a directory");
    let nobody = std::net::TcpListener::bind(ANY_PORT)
        .and_then(|socket| socket.local_addr())
        .expect("a free port");
    let mut config = osd_config(dir.path(), 0, nobody, 1, Mapping::CoreAffine);
    config.monitor_wait_max = Duration::from_millis(300);
    let alone = start(config.clone()).expect_err("nobody there");
    assert!(
        alone.to_string().contains(&format!("cannot reach the monitor at {nobody}")),
        "{alone}"
    );
    config.monitor_wait_max = PATIENCE;
    let cancel = Arc::clone(&config.cancel);
    let starting = std::thread::spawn(move || start(config));
    cancel.store(true, Ordering::Release);
    assert!(matches!(starting.join().expect("no panic"), Err(OsdError::Cancelled)));
}

/// Keeps the acknowledgements that arrive.
struct Acks(Arc<Mutex<Vec<AckMessage>>>);

impl Service for Acks {
    fn on_message(&self, _worker: &Worker, _connection: &Connection, message: Message) {
        assert_eq!(Kind::from_u16(message.kind), Some(Kind::Ack));
        self.0
            .lock()
            .expect("no panic")
            .push(AckMessage::read_from_bytes(&message.front).expect("an ack"));
    }
}

#[test]
fn any_connection_reaches_the_core_of_a_placement_group() {
    for mapping in [Mapping::CoreAffine, Mapping::RoundRobin] {
        let cluster = TestCluster::start(3, mapping);
        let MonitorReply::Session { session, epoch, .. } =
            cluster.ask(&MonitorRequest::OpenSession { name: "t".into() })
        else {
            panic!("no session")
        };
        let osd = cluster.osd(1);
        wait_until("the osd knows the session", || osd.map().is_some_and(|map| map.epoch >= epoch));
        let map = osd.map().expect("a map");
        let acks = Arc::new(Mutex::new(Vec::new()));
        let for_service = Arc::clone(&acks);
        let to = ConnectConfig::new(osd.addr(), map.cluster, "test");
        let connection =
            cluster.runtime.handle().connect(0, to, move |_| Rc::new(Acks(for_service)));
        // one connection, to a lane that most of these do not belong to
        let mut asked: Vec<PgId> = map.pgs.keys().copied().collect();
        for pg in &asked {
            connection.send(attach(&map, *pg, session));
        }
        wait_until("all attaches are answered", || {
            acks.lock().expect("no panic").len() == asked.len()
        });
        let mut answered: Vec<PgId> = Vec::new();
        for ack in acks.lock().expect("no panic").iter() {
            assert_eq!((Status::from_u8(ack.status), ack.flags), (Status::Ok, AckMessage::HELLO));
            answered.push(PgId::from_u64(ack.pg.get()));
        }
        asked.sort();
        answered.sort();
        assert_eq!(asked, answered);
        connection.close();
    }
}

fn attach(map: &ClusterMap, pg: PgId, session: SessionId) -> Message {
    let head = ShardHead::new(pg, map.pgs[&pg].epoch, session, AttachId::new(1), Seq::default());
    let request = AttachRequest { head, owed: 0.into() };
    let front = Bytes::copy_from_slice(request.as_bytes());
    Message::new(TrafficClass::Client, Kind::Attach.to_u16(), front, Bytes::new())
}

#[test]
fn nonsense_closes_its_connection_and_no_other() {
    let cluster = TestCluster::start(2, Mapping::RoundRobin);
    let osd = cluster.osd(0);
    let good = cluster.connect(osd.addr());
    let status = |connection: &Connection| {
        let message = Message::new(
            TrafficClass::Control,
            Kind::OsdStatus.to_u16(),
            Bytes::new(),
            Bytes::new(),
        );
        let reply = block_on(connection.call(message, PATIENCE))?;
        Ok::<OsdReport, CallError>(protocol::decode("report", &reply.front).expect("a report"))
    };
    assert_eq!(status(&good).expect("served").osd, OsdId::new(0));
    let pg = |number: u32| {
        PgId { pool: protocol::PoolId::new(1), number }.to_u64().to_le_bytes().to_vec()
    };
    let nonsense: [(u16, Vec<u8>); 6] = [
        (0x7777, vec![]),
        (Kind::Monitor.to_u16(), vec![1, 2, 3]),
        (Kind::Write.to_u16(), vec![9; 5]),
        (Kind::Write.to_u16(), pg(0)),
        (Kind::Attach.to_u16(), pg(1)),
        (Kind::Recovery.to_u16(), vec![0xff; 30]),
    ];
    for (count, (kind, front)) in (1u64..).zip(nonsense) {
        let bad = cluster.connect(osd.addr());
        let message = Message::new(TrafficClass::Client, kind, Bytes::from(front), Bytes::new());
        block_on(bad.call(message, PATIENCE)).expect_err("closed");
        wait_until("it is counted", || osd.malformed_messages() == count);
    }
    assert_eq!(status(&good).expect("served").osd, OsdId::new(0));
    assert!(cluster.all_are(PgCondition::Clean));
}
