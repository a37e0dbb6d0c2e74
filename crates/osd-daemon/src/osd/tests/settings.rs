//! Settings of a running OSD, asked and changed over a connection.

use super::*;
use crate::config::Settings;
use placement::threads::MaxEvents;
use protocol::admin::{AdminReply, AdminRequest};

pub(super) fn ask(cluster: &TestCluster, addr: SocketAddr, request: &AdminRequest) -> AdminReply {
    let connection = cluster.connect(addr);
    let front = protocol::encode(request);
    let message = Message::new(TrafficClass::Control, Kind::Admin.to_u16(), front, Bytes::new());
    let reply = block_on(connection.call(message, PATIENCE)).expect("an answer");
    connection.close();
    assert_eq!(reply.kind, Kind::AdminReply.to_u16());
    protocol::decode("reply", &reply.front).expect("a reply")
}

pub(super) fn set(key: &str, value: &str) -> AdminRequest {
    AdminRequest::SetConfig { key: key.into(), value: value.into() }
}

#[test]
fn a_running_osd_shows_its_settings_and_changes_those_that_are_live() {
    let cluster = TestCluster::start(2, Mapping::CoreAffine);
    let osd = cluster.osd(1).addr();
    for (addr, who) in [(osd, "osd"), (cluster.addr, "monitor")] {
        let AdminReply::Settings(all) = ask(&cluster, addr, &AdminRequest::ShowConfig) else {
            panic!("{who}")
        };
        assert_eq!(all.len(), Settings::KEYS.len(), "{who}");
    }
    let changed = ask(&cluster, osd, &set("journal_sync_interval_ms", "7"));
    assert!(
        matches!(&changed, AdminReply::Changed(setting) if setting.value == "7"),
        "{changed:?}"
    );
    let there =
        ask(&cluster, osd, &AdminRequest::GetConfig { key: "journal_sync_interval_ms".into() });
    assert!(
        matches!(&there, AdminReply::Settings(one) if one[0].value == "7" && one[0].is_live),
        "{there:?}"
    );
    for (key, value) in
        [("osd_recovery_max_active", "3"), ("osd_recovery_max_bytes_per_sec", "65536")]
    {
        let changed = ask(&cluster, osd, &set(key, value));
        assert!(
            matches!(&changed, AdminReply::Changed(setting) if setting.value == value),
            "{changed:?}"
        );
    }
    for (key, value) in [("ms_class_weights", "off"), ("ms_class_weights", "I=64,II=100,III=1")] {
        let changed = ask(&cluster, osd, &set(key, value));
        assert!(
            matches!(&changed, AdminReply::Changed(setting) if setting.value == value),
            "{changed:?}"
        );
    }
    let never = ask(&cluster, osd, &set("ms_class_weights", "I=64,II=64,III=0"));
    assert!(
        matches!(&never, AdminReply::Refused(why) if why.contains("class III (background) is 0")),
        "{never:?}"
    );
    let changed = ask(&cluster, osd, &set("ms_max_events", "5000"));
    assert!(
        matches!(&changed, AdminReply::Changed(setting) if setting.value == "5000"),
        "{changed:?}"
    );
    let events = |osd: usize| cluster.osd(osd).workers().max_events();
    assert_eq!((events(1), events(0)), (MaxEvents::Fixed(5000), MaxEvents::Auto));
    // another mapping, with connections there that go on
    let client = super::data::connect(&cluster);
    let file = super::data::file(&cluster, 1);
    for (version, mapping) in (1..).zip(["lcam", "handoff", "round-robin"]) {
        let changed = ask(&cluster, osd, &set("ms_mapping", mapping));
        assert!(
            matches!(&changed, AdminReply::Changed(setting) if setting.value == mapping),
            "{changed:?}"
        );
        let listener = cluster.osd(1).listener().expect("it listens");
        assert_eq!(listener.placement().mapping.to_string(), mapping);
        super::data::write(&client, file, super::data::bytes_of(1, version), true);
        assert_eq!(super::data::read(&client, file), super::data::bytes_of(1, version));
    }
    client.close().expect("closed");
    let nearest = ask(&cluster, osd, &set("ms_maping", "lcam"));
    assert!(
        matches!(&nearest, AdminReply::Refused(why) if why.contains("`ms_mapping`")),
        "{nearest:?}"
    );
    // the others keep theirs, and other roles have no such thing to change
    let other = ask(
        &cluster,
        cluster.osd(0).addr(),
        &AdminRequest::GetConfig { key: "journal_sync_interval_ms".into() },
    );
    assert!(matches!(&other, AdminReply::Settings(one) if one[0].value == "200"), "{other:?}");
    let monitor = ask(&cluster, cluster.addr, &set("journal_sync_interval_ms", "7"));
    assert!(matches!(monitor, AdminReply::NeedsRestart(_)), "{monitor:?}");
    let bad = ask(&cluster, osd, &set("journal_sync_interval_ms", "0"));
    assert!(matches!(&bad, AdminReply::Refused(why) if why.contains("from 1 to 60000")), "{bad:?}");
}
