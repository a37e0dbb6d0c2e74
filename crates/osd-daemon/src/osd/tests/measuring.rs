//! OSDs that keep everything in memory, and OSDs whose path is cut: for measuring.

use super::data::{bytes_of, connect, file, read, write};
use super::*;
use client::{Client, FileRef};
use protocol::monitor::{Health, ObjectStore};

const FILES: u64 = 4;

/// A cluster of OSDs in memory.
fn start_in_memory(cut: PathCut) -> TestCluster {
    TestCluster::start_tuned(1, Mapping::CoreAffine, move |config| {
        config.store = StoreConfig::Memory { bytes_max: 256 << 20 };
        config.path_cut = cut;
    })
}

fn write_all(cluster: &TestCluster, client: &Client, version: u8) -> Vec<FileRef> {
    let files: Vec<FileRef> = (0..FILES).map(|number| file(cluster, number)).collect();
    for (number, file) in (0..FILES).zip(&files) {
        write(client, *file, bytes_of(number, version), true);
    }
    files
}

#[test]
fn a_memstore_forgets_at_its_stop_and_is_filled_again_by_the_others() {
    let mut cluster = start_in_memory(PathCut::None);
    let client = connect(&cluster);
    let files = write_all(&cluster, &client, 1);
    for osd in 0..3 {
        let below: Vec<_> = std::fs::read_dir(cluster.osd_config(osd).dir)
            .expect("a directory")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
            .filter(|name| name == "pg" || name == "journal")
            .collect();
        assert!(below.is_empty(), "on the disk: {below:?}");
    }
    wait_until("they say what they are", || {
        cluster.status().osds.iter().all(|osd| osd.report.object_store == ObjectStore::Memory)
    });
    let status = cluster.status();
    assert!(status.osds.iter().all(|osd| osd.report.total_bytes == 256 << 20), "{status:?}");
    assert!(
        status.messages().any(|said| said.contains("osd.1 is a memstore")),
        "{:?}",
        status.checks
    );
    // stopped cleanly or killed: it comes back empty and says so
    cluster.stop_osd(1);
    cluster.start_osd(1);
    cluster.wait_clean();
    cluster.kill_osd(2);
    cluster.start_osd(2);
    cluster.wait_clean();
    cluster.kill_osd(0);
    for (number, file) in (0..FILES).zip(&files) {
        assert_eq!(read(&client, *file), bytes_of(number, 1), "from what was rebuilt in memory");
    }
    // a store on disk in its place is as empty, and knows it
    let mut config = cluster.osd_config(0);
    config.store = StoreConfig::File;
    cluster.osds[0] = Some(start(config.clone()).expect("the osd starts"));
    cluster.wait_clean();
    cluster.kill_osd(1);
    for (number, file) in (0..FILES).zip(&files) {
        assert_eq!(read(&client, *file), bytes_of(number, 1), "from what was rebuilt on the disk");
    }
    client.close().expect("closed");
    // but what is on a disk is not hidden behind a memory
    cluster.kill_osd(0);
    let refused = start(cluster.osd_config(0)).expect_err("it holds data");
    assert!(matches!(refused, OsdError::Data(DataDirError::HoldsData { .. })), "{refused}");
}

#[test]
fn a_cut_path_answers_as_if_done_and_the_status_calls_it_an_error() {
    for cut in [PathCut::Msgr, PathCut::MsgrPg] {
        let cluster = start_in_memory(cut);
        let client = connect(&cluster);
        let files = write_all(&cluster, &client, 1);
        assert!(read(&client, files[0]).iter().all(|&byte| byte == 0), "nothing was kept");
        wait_until("heartbeats tell of it", || cluster.status().health == Health::Down);
        let status = cluster.status();
        let messages: Vec<_> = status.messages().collect();
        assert!(
            messages[0].contains("osd_path_cut") && messages[0].contains(cut.as_str()),
            "{messages:?}"
        );
        let reports = || (0..3).map(|osd| cluster.osd(osd).shared.report()).collect::<Vec<_>>();
        if cut == PathCut::MsgrPg {
            wait_until("the PGs have processed writes", || {
                reports().iter().any(|report| report.writes > 0)
            });
        }
        let reports = reports();
        assert!(
            cut == PathCut::MsgrPg || reports.iter().all(|report| report.writes == 0),
            "{reports:?}"
        );
        // no data; the end of sessions is noted all the same
        assert!(reports.iter().all(|report| report.journal_bytes < 4096), "{reports:?}");
        client.close().expect("closed");
    }
}

#[test]
fn a_cut_path_over_a_disk_is_refused() {
    let cluster = TestCluster::start(1, Mapping::CoreAffine);
    let config = OsdConfig { path_cut: PathCut::Msgr, ..cluster.osd_config(0) };
    let refused = start(config).expect_err("a disk");
    assert!(matches!(refused, OsdError::CutOverDisk), "{refused}");
}
