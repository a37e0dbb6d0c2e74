//! The role over real loopback sockets, with storage daemons that only pretend.

use super::*;
use bytes::Bytes;
use cluster::{ClusterMap, SessionState};
use messenger::{
    ConnectConfig, Connection, Message, Runtime, RuntimeConfig, Service, TrafficClass, Worker,
};
use protocol::monitor::{
    ClusterStatus, Health, MapUpdate, MonitorReply, MonitorRequest, OsdReport, PgCondition,
    ResolveReply, ResolveRequest, SessionHolding,
};
use protocol::{Kind, OsdId, Seq, SessionId};
use std::rc::Rc;
use std::sync::Mutex;
use std::time::Instant;

/// Nothing here takes so long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// Someone connected to the monitor: keeps the newest map, answers questions about dead sessions.
struct Peer {
    connection: Connection,
    newest: Arc<Mutex<Option<ClusterMap>>>,
}

struct Answers {
    newest: Arc<Mutex<Option<ClusterMap>>>,
}

impl Service for Answers {
    fn on_message(&self, worker: &Worker, connection: &Connection, message: Message) {
        match Kind::from_u16(message.kind) {
            Some(Kind::MapUpdate) => {
                let update: MapUpdate = protocol::decode("map", &message.front).expect("a map");
                *self.newest.lock().expect("no panic") =
                    Some(ClusterMap::decode(&update.map).expect("a map"));
            }
            Some(Kind::Resolve) => {
                let reply = match protocol::decode("resolve", &message.front).expect("a question") {
                    ResolveRequest::Collect { pgs, .. } => {
                        let nothing = |(pg, _)| SessionHolding {
                            pg,
                            settled: Seq::default(),
                            held: Vec::new(),
                        };
                        ResolveReply::Collected(pgs.into_iter().map(nothing).collect())
                    }
                    ResolveRequest::Decide { cuts, .. } => {
                        ResolveReply::Decided(cuts.into_iter().map(|(pg, ..)| pg).collect())
                    }
                };
                connection.reply(
                    &message,
                    Kind::ResolveReply.to_u16(),
                    protocol::encode(&reply),
                    Bytes::new(),
                );
            }
            Some(Kind::Telemetry | Kind::History) => {
                assert!(messenger::telemetry::answer(worker, connection, &message))
            }
            other => panic!("the monitor sent {other:?}"),
        }
    }
}

impl Peer {
    fn connect(handle: &Handle, addr: SocketAddr) -> Peer {
        let newest = Arc::new(Mutex::new(None));
        let for_service = Arc::clone(&newest);
        let to = ConnectConfig::new(addr, ClusterId::default(), "test");
        let service = move |_: &Worker| -> Rc<dyn Service> {
            Rc::new(Answers { newest: Arc::clone(&for_service) })
        };
        Peer { connection: handle.connect(0, to, service), newest }
    }

    fn call(&self, request: &MonitorRequest) -> MonitorReply {
        let front = protocol::encode(request);
        let message =
            Message::new(TrafficClass::Control, Kind::Monitor.to_u16(), front, Bytes::new());
        let reply = block_on(self.connection.call(message, PATIENCE)).expect("an answer");
        assert_eq!(Kind::from_u16(reply.kind), Some(Kind::MonitorReply));
        protocol::decode("reply", &reply.front).expect("a reply")
    }

    fn boot(&self, osd: u32) {
        let addr = SocketAddr::from(([127, 0, 0, 1], 9000 + osd as u16));
        let (osd, fsid, host) = (OsdId::new(osd), 100 + u128::from(osd), "here".to_owned());
        let boot =
            MonitorRequest::Boot { osd, fsid, addr, cores: 1, lost: false, blank: true, host };
        assert!(matches!(self.call(&boot), MonitorReply::Done(_)));
    }

    fn heartbeat(&self, osd: u32) {
        let report = OsdReport {
            osd: OsdId::new(osd),
            total_bytes: 300,
            free_bytes: 200,
            ..OsdReport::default()
        };
        assert!(matches!(self.call(&MonitorRequest::Heartbeat { report }), MonitorReply::Done(_)));
    }

    fn map(&self) -> ClusterMap {
        match self.call(&MonitorRequest::Subscribe) {
            MonitorReply::Map(update) => ClusterMap::decode(&update.map).expect("a map"),
            other => panic!("{other:?}"),
        }
    }

    fn status(&self) -> ClusterStatus {
        match self.call(&MonitorRequest::Status) {
            MonitorReply::Status(status) => *status,
            other => panic!("{other:?}"),
        }
    }

    /// Answers as the in-sync member of all that is proposed.
    fn peer_all(&self, osd: u32) {
        let (map, osd) = (self.map(), OsdId::new(osd));
        let proposed = |pg: &&protocol::PgId| {
            map.shard_of(**pg, osd).is_some_and(|s| map.pgs[*pg].in_sync.contains(s))
        };
        let pgs = map.pgs.keys().filter(proposed).map(|pg| (*pg, map.pgs[pg].epoch)).collect();
        assert!(matches!(self.call(&MonitorRequest::Peered { osd, pgs }), MonitorReply::Done(_)));
    }
}

fn runtime() -> Runtime {
    Runtime::start(RuntimeConfig::new("monitor-test", 2)).expect("starts")
}

fn config(dir: &std::path::Path) -> MonitorConfig {
    let mut config =
        MonitorConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)), dir.join("monitor"), 3);
    config.pool.pg_num = 4;
    config.settings.heartbeat_grace = PATIENCE;
    config.worker = 1;
    config
}

/// Three daemons up, and every PG active.
fn whole_cluster(handle: &Handle, addr: SocketAddr) -> Vec<Peer> {
    let peers: Vec<Peer> = (0..3).map(|_| Peer::connect(handle, addr)).collect();
    (0u32..).zip(&peers).for_each(|(osd, peer)| peer.boot(osd));
    (0u32..).zip(&peers).for_each(|(osd, peer)| peer.peer_all(osd));
    peers
}

fn wait_until(what: &str, mut check: impl FnMut() -> bool) {
    let began = Instant::now();
    while !check() {
        assert!(began.elapsed() < PATIENCE, "still waiting: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_cluster_is_made_served_and_found_again() {
    let (dir, runtime) = (tempfile::tempdir().expect("a directory"), runtime());
    let monitor = start(config(dir.path()), &runtime.handle()).expect("starts");
    assert!(monitor.created());
    let watcher = Peer::connect(&runtime.handle(), monitor.addr());
    assert!(watcher.map().pgs.values().all(|pg| !pg.active));
    let osds = whole_cluster(&runtime.handle(), monitor.addr());
    wait_until("the map is pushed", || {
        watcher
            .newest
            .lock()
            .expect("no panic")
            .as_ref()
            .is_some_and(|map| map.pgs.values().all(|pg| pg.active))
    });
    (0u32..).zip(&osds).for_each(|(osd, peer)| peer.heartbeat(osd));
    let status = watcher.status();
    assert_eq!((status.health, status.pgs), (Health::Ok, vec![(PgCondition::Clean, 4)]));
    assert_eq!((status.total_bytes, status.free_bytes), (600, 400));
    let session = match watcher.call(&MonitorRequest::OpenSession { name: "test".into() }) {
        MonitorReply::Session { session, .. } => session,
        other => panic!("{other:?}"),
    };
    let (cluster, before) = (monitor.cluster(), watcher.map());
    assert_eq!(before.sessions.get(&session), Some(&SessionState::Live));
    let busy = start(config(dir.path()), &runtime.handle()).expect_err("in use");
    assert!(busy.to_string().contains("in use"), "{busy}");
    monitor.stop();

    let monitor = start(config(dir.path()), &runtime.handle()).expect("starts again");
    assert!(!monitor.created());
    assert_eq!(monitor.cluster(), cluster);
    let watcher = Peer::connect(&runtime.handle(), monitor.addr());
    assert_eq!(watcher.map(), before, "nothing is forgotten");
    assert!(matches!(
        watcher.call(&MonitorRequest::RenewSession { session }),
        MonitorReply::Done(_)
    ));
    monitor.stop();
    runtime.shutdown();
}

#[test]
fn a_dead_session_is_fenced_resolved_and_gone() {
    let (dir, runtime) = (tempfile::tempdir().expect("a directory"), runtime());
    let mut config = config(dir.path());
    config.settings.session_ttl = Duration::from_millis(50);
    let monitor = start(config, &runtime.handle()).expect("starts");
    let osds = whole_cluster(&runtime.handle(), monitor.addr());
    let client = Peer::connect(&runtime.handle(), monitor.addr());
    let before = client.map();
    let reply = client.call(&MonitorRequest::OpenSession { name: "short".into() });
    let MonitorReply::Session { session, .. } = reply else { panic!("{reply:?}") };
    wait_until("the session is resolved", || {
        let map = client.map();
        map.last_session == session && map.sessions.is_empty()
    });
    assert_eq!(client.call(&MonitorRequest::RenewSession { session }), MonitorReply::Fenced);
    let after = client.map();
    assert!(
        after.pgs.iter().all(|(id, pg)| pg.active && pg.epoch > before.pgs[id].epoch),
        "every PG has a new epoch"
    );
    drop(osds);
    monitor.stop();
    runtime.shutdown();
}

#[test]
fn a_silent_osd_is_marked_down() {
    let (dir, runtime) = (tempfile::tempdir().expect("a directory"), runtime());
    let mut config = config(dir.path());
    config.settings.heartbeat_grace = Duration::from_millis(500);
    let monitor = start(config, &runtime.handle()).expect("starts");
    let osds = whole_cluster(&runtime.handle(), monitor.addr());
    wait_until("osd.2 is down, and the others serve without it", || {
        (0..2).for_each(|osd| {
            osds[osd as usize].heartbeat(osd);
            osds[osd as usize].peer_all(osd);
        });
        let map = osds[0].map();
        !map.osds[&OsdId::new(2)].up
            && map.pgs.values().all(|pg| pg.active && pg.in_sync.len() == 2)
    });
    let status = osds[0].status();
    assert_eq!(status.health, Health::Degraded);
    assert!(status.messages().any(|m| m.contains("osd.2 on here is down")), "{:?}", status.checks);
    monitor.stop();
    runtime.shutdown();
}

#[test]
fn bad_messages_get_an_answer_or_the_door() {
    let (dir, runtime) = (tempfile::tempdir().expect("a directory"), runtime());
    let monitor = start(config(dir.path()), &runtime.handle()).expect("starts");
    let peer = Peer::connect(&runtime.handle(), monitor.addr());
    let call = |kind: u16| {
        let message =
            Message::new(TrafficClass::Control, kind, Bytes::from_static(&[0xff; 9]), Bytes::new());
        block_on(peer.connection.call(message, PATIENCE))
    };
    let reply = call(Kind::Monitor.to_u16()).expect("an answer");
    let reply: MonitorReply = protocol::decode("reply", &reply.front).expect("a reply");
    assert!(matches!(reply, MonitorReply::Refused(why) if why.contains("malformed")));
    assert!(matches!(
        peer.call(&MonitorRequest::Leave { osd: OsdId::new(9) }),
        MonitorReply::Refused(_)
    ));
    call(Kind::Namespace.to_u16()).expect_err("closed");
    Peer::connect(&runtime.handle(), monitor.addr()).status();
    monitor.stop();
    runtime.shutdown();
}

#[test]
fn a_client_is_asked_over_its_own_connection() {
    let (dir, clients) = (tempfile::tempdir().expect("a directory"), runtime());
    let runtime = runtime();
    let monitor = start(config(dir.path()), &runtime.handle()).expect("starts");
    let operator = Peer::connect(&runtime.handle(), monitor.addr());
    let ask = |session: SessionId| {
        let message = Message::new(
            TrafficClass::Control,
            Kind::ClientTelemetry.to_u16(),
            protocol::encode(&session),
            Bytes::new(),
        );
        let reply = block_on(operator.connection.call(message, PATIENCE)).expect("an answer");
        match Kind::from_u16(reply.kind) {
            Some(Kind::TelemetryReply) => {
                Ok(protocol::decode::<Vec<messenger::TelemetryReport>>("reports", &reply.front)
                    .expect("reports")
                    .iter()
                    .map(|report| report.workers.len())
                    .sum::<usize>())
            }
            _ => Err(protocol::decode::<MonitorReply>("reply", &reply.front).expect("a reply")),
        }
    };
    let open = |client: &Peer| match client.call(&MonitorRequest::OpenSession { name: "c".into() })
    {
        MonitorReply::Session { session, .. } => session,
        other => panic!("{other:?}"),
    };
    let client = Peer::connect(&clients.handle(), monitor.addr());
    let session = open(&client);
    assert_eq!(ask(session), Ok(2), "the client's workers, whom the operator has none of");
    let history = Message::new(
        TrafficClass::Control,
        Kind::ClientHistory.to_u16(),
        protocol::encode(&session),
        Bytes::new(),
    );
    let reply = block_on(operator.connection.call(history, PATIENCE)).expect("an answer");
    assert_eq!(Kind::from_u16(reply.kind), Some(Kind::HistoryReply));
    let history: messenger::HistoryReport =
        protocol::decode("history", &reply.front).expect("a history");
    assert_eq!(history, messenger::HistoryReport::default(), "off");
    // The session goes on over another connection, as after a restart of the monitor.
    client.connection.close();
    let again = Peer::connect(&clients.handle(), monitor.addr());
    assert!(matches!(again.call(&MonitorRequest::RenewSession { session }), MonitorReply::Done(_)));
    assert_eq!(ask(session), Ok(2));
    let unknown = ask(SessionId::new(session.get() + 1)).expect_err("nobody has this session");
    assert!(
        matches!(&unknown, MonitorReply::Refused(why) if why.contains("not connected")),
        "{unknown:?}"
    );
    // One that answers nothing more keeps the operator waiting for a while only.
    let silent = clients.handle().connect(
        0,
        ConnectConfig::new(monitor.addr(), ClusterId::default(), "mute"),
        |_| Rc::new(messenger::NoService),
    );
    let front = protocol::encode(&MonitorRequest::OpenSession { name: "mute".into() });
    let message = Message::new(TrafficClass::Control, Kind::Monitor.to_u16(), front, Bytes::new());
    let reply = block_on(silent.call(message, PATIENCE)).expect("an answer");
    let Ok(MonitorReply::Session { session, .. }) = protocol::decode("reply", &reply.front) else {
        panic!("no session");
    };
    let mute = ask(session).expect_err("it does not answer");
    assert!(
        matches!(&mute, MonitorReply::Refused(why) if why.contains("nothing came")),
        "{mute:?}"
    );
    monitor.stop();
}
