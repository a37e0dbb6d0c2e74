//! What an OSD tells of itself over a connection.

use super::*;
use messenger::TelemetryReport;

fn ask(cluster: &TestCluster, addr: SocketAddr) -> Vec<TelemetryReport> {
    let connection = cluster.connect(addr);
    let question =
        Message::new(TrafficClass::Control, Kind::Telemetry.to_u16(), Bytes::new(), Bytes::new());
    let reply = block_on(connection.call(question, PATIENCE)).expect("an answer");
    connection.close();
    assert_eq!(reply.kind, Kind::TelemetryReply.to_u16());
    protocol::decode("reports", &reply.front).expect("reports")
}

#[test]
fn the_runtime_of_heartbeats_is_told_of_beside_that_of_the_cores() {
    let cluster = TestCluster::start(1, Mapping::CoreAffine);
    let beats = || {
        let reports = ask(&cluster, cluster.osd(1).addr());
        assert_eq!(
            reports.iter().map(|report| report.name.as_str()).collect::<Vec<_>>(),
            ["osd.1", "osd.1-heart"]
        );
        assert!(
            reports[1].locks.iter().any(|lock| lock.name == "connection" && lock.acquisitions > 0),
            "{reports:?}"
        );
        assert_eq!(reports[1].workers.len(), 1);
        reports[1].workers[0].messages_in
    };
    let before = beats();
    wait_until("a heartbeat is answered", || beats() > before);
    let monitor = ask(&cluster, cluster.addr);
    let peers = monitor[0].listeners.iter().flat_map(|listener| &listener.connections);
    assert!(
        peers.into_iter().any(|peer| peer.name == "osd.1 heart"),
        "its connection, at the other end"
    );
}

#[test]
fn telemetry_that_is_off_is_off_for_heartbeats_too() {
    let cluster =
        TestCluster::start_tuned(1, Mapping::CoreAffine, |config| config.telemetry = false);
    let reports = ask(&cluster, cluster.osd(0).addr());
    assert!(reports.len() == 2 && reports.iter().all(|report| !report.enabled), "{reports:?}");
}

#[test]
fn locks_of_the_settings_and_of_a_memstore_are_listed() {
    let cluster = TestCluster::start_tuned(1, Mapping::CoreAffine, |config| {
        config.store = StoreConfig::Memory { bytes_max: 64 << 20 };
    });
    let reports = ask(&cluster, cluster.osd(0).addr());
    for name in ["live settings", "memstore names"] {
        assert!(
            reports[0].locks.iter().any(|lock| lock.name == name),
            "no `{name}`: {:?}",
            reports[0].locks
        );
    }
}

/// (served, waiting) of a class of the cores of an OSD.
fn class_of(cluster: &TestCluster, osd: usize, class: &str) -> (u64, u64) {
    let report = ask(cluster, cluster.osd(osd).addr()).swap_remove(0);
    let found = report.classes.iter().find(|stats| stats.queue == "core" && stats.class == class);
    let stats = found.unwrap_or_else(|| panic!("no class {class}: {:?}", report.classes));
    (stats.served, stats.queued)
}

#[test]
fn a_client_that_marks_everything_class_one_is_not_believed() {
    use protocol::recovery::{RecoveryBody, RecoveryRequest};
    let cluster = TestCluster::start(1, Mapping::CoreAffine);
    let osd = cluster.osd(0);
    wait_until("it has a map", || osd.map().is_some());
    let map = osd.map().expect("a map");
    let (&pg, info) = map.pgs.iter().next().expect("a placement group");
    let connection = cluster.connect(osd.addr());
    let before = ["I", "II", "III"].map(|class| class_of(&cluster, 0, class).0);
    let noted = |number: u8| RecoveryRequest {
        pg,
        epoch: info.epoch,
        from: protocol::ShardIndex::new(number % 3),
        body: RecoveryBody::Noted,
    };
    for number in 0..50 {
        let front = protocol::encode(&noted(number));
        let kind = Kind::Recovery.to_u16();
        let message = Message::new(TrafficClass::Control, kind, front, Bytes::new());
        block_on(connection.call(message, PATIENCE)).expect("an answer, in its turn");
    }
    let session = SessionId::new(u64::MAX);
    let head = ShardHead::new(pg, info.epoch, session, AttachId::new(1), Seq::default());
    let request = protocol::shard::ReadRequest {
        head,
        after: 0.into(),
        object: protocol::ObjectId { gfid: protocol::Gfid::of_inode(7), index: 0 }.into(),
        offset: 0.into(),
        length: 512.into(),
    };
    let front = Bytes::copy_from_slice(request.as_bytes());
    let read = Message::new(TrafficClass::Control, Kind::Read.to_u16(), front, Bytes::new());
    block_on(connection.call(read, PATIENCE)).expect("refused, but answered");
    let after = ["I", "II", "III"].map(|class| class_of(&cluster, 0, class).0);
    assert_eq!(after[0], before[0], "nothing is of class I because its frame says so");
    assert!(after[1] > before[1] && after[2] >= before[2] + 50, "{before:?} {after:?}");
    assert_eq!(class_of(&cluster, 0, "III").1, 0, "nothing waits any more");
    connection.close();
}
