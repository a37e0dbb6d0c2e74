//! Data through a real client while OSDs come and go.

use super::*;
use client::{Client, ClientConfig, FileRef, WriterHint};
use protocol::Gfid;

/// A session of a new client.
pub(super) fn connect(cluster: &TestCluster) -> Client {
    let config =
        ClientConfig { timeout: PATIENCE, ..ClientConfig::new(cluster.addr.to_string(), "test") };
    Client::connect(config).expect("a session")
}

const FILES: u64 = 12;
const FILE_BYTES: usize = 300 << 10;

pub(super) fn file(cluster: &TestCluster, number: u64) -> FileRef {
    let (pool, _) = cluster.map().pools.into_iter().next().expect("a pool");
    FileRef { gfid: Gfid::of_inode(100 + number), pool }
}

/// Bytes that tell file and version apart.
pub(super) fn bytes_of(number: u64, version: u8) -> Bytes {
    let seed = number * 1000 + u64::from(version);
    (0..FILE_BYTES as u64)
        .map(|at| (at.wrapping_mul(0x9e37_79b9).wrapping_add(seed * 7919) >> 9) as u8)
        .collect()
}

pub(super) fn write(client: &Client, file: FileRef, bytes: Bytes, sync: bool) {
    let hint = WriterHint { zero_from: u64::MAX, size_after: bytes.len() as u64, grant: None };
    let wrote = client.run_on(client.worker_of(file, 0), move |io| async move {
        io.write(file, 0, bytes, hint).await?;
        if sync { io.sync(file).await } else { Ok(()) }
    });
    client.block_on(wrote).expect("written");
}

fn remove(client: &Client, file: FileRef) {
    let removed = client.run_on(client.worker_of(file, 0), move |io| async move {
        io.delete(file, FILE_BYTES as u64, false).await?;
        io.sync(file).await
    });
    client.block_on(removed).expect("removed");
}

pub(super) fn read(client: &Client, file: FileRef) -> Bytes {
    client
        .block_on(client.run_on(0, move |io| async move { io.read(file, 0, FILE_BYTES).await }))
        .expect("read")
}

#[test]
fn what_was_written_while_an_osd_was_away_is_on_it_when_it_is_back() {
    let mut cluster = TestCluster::start(2, Mapping::CoreAffine);
    let client = connect(&cluster);
    let files: Vec<FileRef> = (0..FILES).map(|number| file(&cluster, number)).collect();
    let mut version = vec![1; FILES as usize];
    for (number, file) in (0..FILES).zip(&files) {
        write(&client, *file, bytes_of(number, 1), number % 2 == 0);
    }
    cluster.kill_osd(1);
    for number in 0..FILES / 2 {
        version[number as usize] = 2;
        write(&client, files[number as usize], bytes_of(number, 2), true);
    }
    cluster.wait_degraded();
    for (number, file) in (0..FILES).zip(&files) {
        assert_eq!(read(&client, *file), bytes_of(number, version[number as usize]), "degraded");
    }
    cluster.start_osd(1);
    // new writes go on while it returns
    for number in FILES / 4..FILES / 2 {
        version[number as usize] = 3;
        write(&client, files[number as usize], bytes_of(number, 3), false);
    }
    cluster.wait_clean();
    // every byte of what it holds now counts
    cluster.stop_osd(0);
    cluster.wait_degraded();
    for (number, file) in (0..FILES).zip(&files) {
        assert_eq!(
            read(&client, *file),
            bytes_of(number, version[number as usize]),
            "without another"
        );
    }
    cluster.start_osd(0);
    cluster.wait_clean();
    client.close().expect("closed");
}

/// A client writes and reads while the daemons go from one mapping to the next under it.
#[test]
fn data_is_right_under_every_mapping_and_through_every_switch() {
    let cluster = TestCluster::start(2, Mapping::RoundRobin);
    let config =
        ClientConfig { timeout: PATIENCE, ..ClientConfig::new(cluster.addr.to_string(), "test") };
    let client = Client::connect(config).expect("a session");
    let files: Vec<FileRef> = (0..FILES).map(|number| file(&cluster, number)).collect();
    for (version, mapping) in (1..).zip(Mapping::ALL.into_iter().chain([Mapping::RoundRobin])) {
        let placement = PlacementConfig {
            interval: Duration::from_millis(20),
            ..PlacementConfig::new(mapping)
        };
        for (number, file) in (0..FILES).zip(&files) {
            write(&client, *file, bytes_of(number, version), number % 2 == 0);
            // in the middle of the writing, for each daemon at another file
            if let Some(osd) = cluster.osds.get(number as usize).and_then(Option::as_ref) {
                let listener = osd.listener().expect("it listens");
                listener.set_placement(placement).expect("allowed");
            }
        }
        for (number, file) in (0..FILES).zip(&files) {
            assert_eq!(read(&client, *file), bytes_of(number, version), "{mapping}");
        }
        for osd in 0..3 {
            let connections = cluster.osd(osd).listener().expect("it listens").connections();
            assert!(
                connections.iter().map(messenger::ConnectionStats::bytes).sum::<u64>() > 0,
                "nothing was served"
            );
            assert_eq!(cluster.osd(osd).malformed_messages(), 0);
        }
    }
    assert!(cluster.all_are(PgCondition::Clean));
    client.close().expect("closed");
}

#[test]
fn a_replaced_disk_is_filled_again() {
    let mut cluster = TestCluster::start(1, Mapping::CoreAffine);
    let client = connect(&cluster);
    let files: Vec<FileRef> = (0..FILES).map(|number| file(&cluster, number)).collect();
    for (number, file) in (0..FILES).zip(&files) {
        write(&client, *file, bytes_of(number, 1), true);
    }
    cluster.stop_osd(2);
    let dir = cluster.osd_config(2).dir;
    std::fs::remove_dir_all(&dir).expect("removed");
    let refused = start(cluster.osd_config(2)).expect_err("an empty directory is no disk of it");
    assert!(matches!(refused, OsdError::DiskMissing { .. }), "{refused}");
    assert!(!dir.exists(), "nothing was made in place of a disk that is missed");
    let consent = cluster.ask(&MonitorRequest::ReplaceOsd { osd: OsdId::new(2) });
    assert!(matches!(consent, MonitorReply::Done(_)), "{consent:?}");
    cluster.start_osd(2);
    wait_until("the new disk is known", || {
        !cluster.all_are(PgCondition::Clean) || rebuilt(&cluster, 2) > 0
    });
    cluster.wait_clean();
    wait_until("it is told that something was rebuilt", || rebuilt(&cluster, 2) > 0);
    cluster.kill_osd(0);
    for (number, file) in (0..FILES).zip(&files) {
        assert_eq!(read(&client, *file), bytes_of(number, 1));
    }
    client.close().expect("closed");
}

fn rebuilt(cluster: &TestCluster, osd: usize) -> u64 {
    cluster.osd(osd).shared.report().rebuilt_bytes
}

/// Waits until everything written so far is in its place on these OSDs.
fn wait_for_empty_journals(cluster: &TestCluster, osds: std::ops::Range<usize>) {
    // What an OSD tells may be as old as its last sign of life.
    std::thread::sleep(2 * side::PULSE_EVERY);
    wait_until("journals are empty", || {
        osds.clone().all(|osd| cluster.osd(osd).shared.report().journal_records == 0)
    });
}

/// The others remember a few objects of what it misses, and forget which when these are too many:
/// all that is on its disk is compared with theirs, and what was deleted meanwhile goes.
#[test]
fn an_osd_of_which_nobody_remembers_what_it_missed_is_compared() {
    let mut cluster =
        TestCluster::start_tuned(1, Mapping::CoreAffine, |config| config.osd_dirty_objects_max = 1);
    let client = connect(&cluster);
    let files: Vec<FileRef> = (0..2 * FILES).map(|number| file(&cluster, number)).collect();
    let (old, new) = files.split_at(FILES as usize);
    for (number, file) in (0..FILES).zip(old) {
        write(&client, *file, bytes_of(number, 1), true);
    }
    wait_for_empty_journals(&cluster, 0..3);
    cluster.stop_osd(2);
    for (number, file) in (FILES..).zip(new) {
        write(&client, *file, bytes_of(number, 1), true);
    }
    // by now every list of what osd 2 misses is cut short, or will be; a third of the old ones
    // change, a third go
    let version = |number: u64| if number.is_multiple_of(3) { 2 } else { 1 };
    let is_gone = |number: u64| number % 3 == 1;
    for (number, file) in (0..FILES).zip(old) {
        match version(number) {
            2 => write(&client, *file, bytes_of(number, 2), true),
            _ if is_gone(number) => remove(&client, *file),
            _ => {}
        }
    }
    wait_for_empty_journals(&cluster, 0..2);
    cluster.start_osd(2);
    // of 24 fragments 20 are left, of which 16 differ; what it has done it tells a moment later
    let most = 18 * FILE_BYTES as u64 / 2;
    let looked_at = || cluster.osd(2).shared.report().recovered_bytes;
    wait_until("all are looked at, not those of the lists only", || looked_at() > most);
    cluster.wait_clean();
    let moved = cluster.osd(2).shared.report().rebuilt_bytes;
    assert!(moved < most, "what is there already is not moved: {moved}");
    cluster.stop_osd(0);
    cluster.wait_degraded();
    for (number, file) in (0..).zip(&files) {
        let expected = match number {
            _ if number >= FILES => bytes_of(number, 1),
            _ if is_gone(number) => vec![0; FILE_BYTES].into(),
            _ => bytes_of(number, version(number)),
        };
        assert_eq!(read(&client, *file), expected, "file {number}");
    }
    client.close().expect("closed");
}

/// Does something to every fragment file of a data directory, and says to how many.
fn with_fragments(dir: &Path, harm: fn(&Path)) -> usize {
    let mut harmed = 0;
    for entry in
        std::fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path())
    {
        if entry.is_dir() {
            harmed += with_fragments(&entry, harm);
        } else {
            harm(&entry);
            harmed += 1;
        }
    }
    harmed
}

/// A cluster with files written a moment ago, so that the journal of osd 2, which was killed, still
/// has records whose bytes are in its fragment files only; and those files harmed.
fn with_harmed_fragments(harm: fn(&Path)) -> (TestCluster, Client, Vec<FileRef>) {
    let mut cluster = TestCluster::start(1, Mapping::CoreAffine);
    let client = connect(&cluster);
    let files: Vec<FileRef> = (0..FILES).map(|number| file(&cluster, number)).collect();
    for (number, file) in (0..FILES).zip(&files) {
        write(&client, *file, bytes_of(number, 1), true);
    }
    cluster.kill_osd(2);
    assert!(with_fragments(&cluster.osd_config(2).dir.join("pg"), harm) > 0);
    cluster.start_osd(2);
    (cluster, client, files)
}

#[test]
fn an_osd_that_cannot_check_its_journal_leaves_and_the_others_serve() {
    let (cluster, client, files) = with_harmed_fragments(|fragment| {
        std::fs::remove_file(fragment).expect("removed");
        std::fs::create_dir(fragment).expect("made");
    });
    wait_until("it leaves", || !cluster.map().osds[&OsdId::new(2)].up);
    cluster.wait_degraded();
    for (number, file) in (0..FILES).zip(&files) {
        assert_eq!(read(&client, *file), bytes_of(number, 1));
    }
    client.close().expect("closed");
}

/// Synced bytes that only the journal names have rotted on the disk of an OSD that was killed: it
/// drops what it cannot vouch for, and must not count as whole before it has it again.
#[test]
fn an_osd_whose_last_writes_rotted_rebuilds_them() {
    let (mut cluster, client, files) = with_harmed_fragments(|fragment| {
        let mut bytes = std::fs::read(fragment).expect("readable");
        let last = bytes.len() - 100;
        bytes[last] ^= 0x40;
        std::fs::write(fragment, bytes).expect("writable");
    });
    cluster.wait_clean();
    // its own bytes count once another is gone
    cluster.stop_osd(0);
    cluster.wait_degraded();
    for (number, file) in (0..FILES).zip(&files) {
        assert_eq!(read(&client, *file), bytes_of(number, 1));
    }
    cluster.start_osd(0);
    cluster.wait_clean();
    client.close().expect("closed");
}

#[test]
fn an_osd_whose_headers_are_damaged_serves_and_is_repaired() {
    let (mut cluster, client, files) = with_harmed_fragments(|fragment| {
        let mut bytes = std::fs::read(fragment).expect("readable");
        let header = bytes.len().min(4096);
        bytes[..header].fill(0xff);
        std::fs::write(fragment, bytes).expect("writable");
    });
    cluster.wait_clean();
    for (number, file) in (0..FILES).zip(&files) {
        assert_eq!(read(&client, *file), bytes_of(number, 1));
    }
    wait_until("every fragment is repaired", || {
        let report = cluster.osd(2).shared.report();
        report.corrupt_repaired >= FILES
    });
    // its own bytes count once another is gone
    cluster.stop_osd(0);
    cluster.wait_degraded();
    for (number, file) in (0..FILES).zip(&files) {
        assert_eq!(read(&client, *file), bytes_of(number, 1));
    }
    cluster.start_osd(0);
    cluster.wait_clean();
    client.close().expect("closed");
}
