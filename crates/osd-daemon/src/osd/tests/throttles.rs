//! The throttles of a running OSD and of a running client, set by an operator while data moves.

use super::data::{bytes_of, connect, file, read, write};
use super::settings::{ask, set};
use super::*;
use ec_store::core::CoreStats;
use protocol::admin::{AdminReply, AdminRequest};

const FILES: u64 = 12;

fn stats(cluster: &TestCluster) -> Vec<CoreStats> {
    let osds = cluster.osds.iter().flatten();
    osds.flat_map(|osd| osd.shared.core_stats()).collect()
}

#[test]
fn writers_wait_at_a_full_queue_and_nothing_is_lost() {
    let cluster = TestCluster::start_tuned(1, Mapping::CoreAffine, |config| {
        // all that is written again goes through the journal, and is synced when the queue is full
        config.fragment_slot_bytes = 0;
        config.journal_sync_interval = PATIENCE;
    });
    for osd in cluster.osds.iter().flatten() {
        for (key, value) in [
            ("filestore_queue_max_bytes", "1048576"),
            ("filestore_queue_committing_max_bytes", "1048576"),
            ("filestore_wbthrottle_xfs_bytes_start_flusher", "65536"),
            ("filestore_wbthrottle_ios_start_flusher", "50"),
            ("filestore_wbthrottle_btrfs_inodes_start_flusher", "5000"),
            ("osd_disk_threads", "4"),
            ("filestore_op_threads", "8"),
        ] {
            let changed = ask(&cluster, osd.addr(), &set(key, value));
            assert!(
                matches!(&changed, AdminReply::Changed(setting) if setting.value == value),
                "{changed:?}"
            );
        }
        let restart = ask(&cluster, osd.addr(), &set("osd_op_threads", "4"));
        assert!(matches!(restart, AdminReply::NeedsRestart(_)), "{restart:?}");
        let bad = ask(&cluster, osd.addr(), &set("filestore_queue_max_bytes", "10"));
        assert!(
            matches!(&bad, AdminReply::Refused(why) if why.contains("from 1048576")),
            "{bad:?}"
        );
    }
    let client = connect(&cluster);
    let files: Vec<_> = (0..FILES).map(|number| file(&cluster, number)).collect();
    for version in 1..4 {
        for (number, file) in (0..FILES).zip(&files) {
            write(&client, *file, bytes_of(number, version), false);
        }
    }
    for (number, file) in (0..FILES).zip(&files) {
        assert_eq!(read(&client, *file), bytes_of(number, 3));
    }
    client.close().expect("all of it is stable");
    wait_until("the cores tell that writers waited", || {
        stats(&cluster).iter().any(|core| core.holds_by_queue + core.holds_by_commit > 0)
    });
    wait_until("write-back has begun", || {
        stats(&cluster).iter().any(|core| core.write_backs.by_bytes > 0)
    });
}

#[test]
fn a_setting_of_a_client_changes_through_the_monitor() {
    let cluster = TestCluster::start(1, Mapping::CoreAffine);
    let client = connect(&cluster);
    let session = client.session_id();
    let operator = cluster.connect(cluster.addr);
    let put = |session: SessionId, request: AdminRequest| {
        let front = protocol::encode(&(session, request));
        let message =
            Message::new(TrafficClass::Control, Kind::ClientAdmin.to_u16(), front, Bytes::new());
        let reply = block_on(operator.call(message, PATIENCE)).expect("an answer");
        match Kind::from_u16(reply.kind) {
            Some(Kind::AdminReply) => {
                Ok(protocol::decode::<AdminReply>("reply", &reply.front).expect("a reply"))
            }
            _ => Err(protocol::decode::<MonitorReply>("reply", &reply.front).expect("a reply")),
        }
    };
    let value = |key: &str| match put(session, AdminRequest::GetConfig { key: key.into() }) {
        Ok(AdminReply::Settings(one)) => (one[0].value.clone(), one[0].is_default),
        other => panic!("{other:?}"),
    };
    assert_eq!(value("objecter_inflight_ops"), ("1024".into(), true));
    assert_eq!(value("objecter_inflight_op_bytes"), ("104857600".into(), true));
    let changed = put(session, set("objecter_inflight_op_bytes", "10485760"));
    assert!(
        matches!(&changed, Ok(AdminReply::Changed(setting)) if setting.value == "10485760"),
        "{changed:?}"
    );
    assert_eq!(value("objecter_inflight_op_bytes"), ("10485760".into(), false));
    let bytes = bytes_of(1, 1);
    write(&client, file(&cluster, 1), bytes.clone(), true);
    assert_eq!(read(&client, file(&cluster, 1)), bytes);
    let bad = put(session, set("objecter_inflight_ops", "0"));
    assert!(
        matches!(&bad, Ok(AdminReply::Refused(why)) if why.contains("from 1 to 1000000")),
        "{bad:?}"
    );
    let unknown = put(session, set("read_policy", "hash"));
    assert!(
        matches!(&unknown, Ok(AdminReply::Refused(why)) if why.contains("mount options")),
        "{unknown:?}"
    );
    let nobody = put(SessionId::new(session.get() + 1), AdminRequest::ShowConfig);
    assert!(
        matches!(&nobody, Err(MonitorReply::Refused(why)) if why.contains("not connected")),
        "{nobody:?}"
    );
    client.close().expect("closed");
}
