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
