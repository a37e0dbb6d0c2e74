//! What a returning shard tells of its work, how fast it goes, and what it need not move.

use super::bench::{FRAGMENT, SECTOR};
use super::*;
use crate::fullness::FullRatios;
use protocol::monitor::PgBacklog;

const OBJECTS: u64 = 3;

/// Shard 2 is away while the objects are written, and comes back, joining.
async fn behind(
    worker: &Worker,
    random: &mut fastrand::Rng,
    missed: std::ops::Range<usize>,
) -> Bench {
    behind_with(worker, config(), random, missed).await
}

async fn behind_with(
    worker: &Worker,
    config: CoreConfig,
    random: &mut fastrand::Rng,
    missed: std::ops::Range<usize>,
) -> Bench {
    let mut bench = Bench::new(worker, config).await;
    (1..=OBJECTS).for_each(|n| bench.write(object(n), Op::Write, 0..FRAGMENT, random));
    bench.settle(true).await;
    wait_for_empty_journals(&mut bench).await;
    bench.kill(2);
    bench.set_view(&[0, 1], &[]);
    (1..=OBJECTS).for_each(|n| bench.write(object(n), Op::Write, missed.clone(), random));
    bench.settle(true).await;
    wait_for_empty_journals(&mut bench).await;
    bench.open(2);
    bench.set_view(&[0, 1], &[2]);
    bench
}

fn shard_2(bench: &Bench) -> Core<bench::Inbox> {
    bench.cores[2].clone().expect("runs")
}

fn backlog(bench: &Bench) -> PgBacklog {
    shard_2(bench).stats().to_rebuild.pop().expect("it is returning")
}

async fn join(bench: &mut Bench) {
    let (core, members) = (shard_2(bench), bench.members());
    let back = async move { core.return_shard(pg(), members).await.expect("no failure") };
    assert_eq!(drive_any(bench, back).await, Return::Whole(bench.view.epoch));
    bench.set_view(&[0, 1, 2], &[]);
    bench.settle(true).await;
    bench.check(0, 2).await;
    bench.check(1, 2).await;
}

/// What joined is on the disk, too.
async fn check_disk(bench: &mut Bench) {
    bench.kill(2);
    bench.open(2);
    bench.set_view(&[0, 1, 2], &[]);
    bench.check(0, 2).await;
    bench.check(1, 2).await;
}

#[test]
fn what_is_left_is_known_once_listed_and_falls_to_nothing() {
    on_worker(|worker| async move {
        let mut bench = behind(&worker, &mut fastrand::Rng::with_seed(1), 0..SECTOR).await;
        assert!(!backlog(&bench).is_counted);
        let (core, members) = (shard_2(&bench), bench.members());
        let listed = async move { core.list_missed(pg(), members).await.expect("no failure") };
        assert!(drive_any(&mut bench, listed).await);
        let left = backlog(&bench);
        assert_eq!((left.objects, left.is_counted), (OBJECTS, true));
        // the data, and something for headers and checksums
        let data = OBJECTS * FRAGMENT as u64;
        assert!((data..data * 2).contains(&left.bytes), "{left:?}");
        join(&mut bench).await;
        let stats = shard_2(&bench).stats();
        assert_eq!((stats.recovered_bytes, stats.to_rebuild), (left.bytes, vec![]));
    });
}

#[test]
fn what_sessions_want_does_not_wait_for_the_limit_and_the_rest_does() {
    on_worker(|worker| async move {
        let mut random = fastrand::Rng::with_seed(2);
        let mut bench = behind(&worker, &mut random, 0..FRAGMENT).await;
        // the first object owes for more than a day
        shard_2(&bench).set_recovery_bytes_per_sec(1);
        let (core, members) = (shard_2(&bench), bench.members());
        let ended = std::rc::Rc::new(std::cell::Cell::new(None));
        let out = ended.clone();
        worker.spawn(async move {
            out.set(Some(core.return_shard(pg(), members).await.expect("no failure")))
        });
        while backlog(&bench).objects == OBJECTS || !backlog(&bench).is_counted {
            bench.turn().await;
        }
        for _ in 0..300 {
            bench.turn().await;
        }
        assert_eq!(
            (backlog(&bench).objects, ended.get()),
            (OBJECTS - 1, None),
            "the rest waits for the limit"
        );
        // a session writes to all but the last
        (1..OBJECTS).for_each(|n| bench.write(object(n), Op::Write, 0..SECTOR, &mut random));
        while backlog(&bench).objects > 1 {
            bench.turn().await;
        }
        assert_eq!(ended.get(), None);
        shard_2(&bench).set_recovery_bytes_per_sec(0);
        while ended.get().is_none() {
            bench.turn().await;
        }
        join(&mut bench).await;
    });
}

#[test]
fn only_what_differs_is_moved() {
    on_worker(|worker| async move {
        let mut random = fastrand::Rng::with_seed(3);
        // a sector of each object in the middle, on every shard
        let mut bench = behind(&worker, &mut random, FRAGMENT / 2..FRAGMENT / 2 + SECTOR).await;
        join(&mut bench).await;
        let moved = shard_2(&bench).stats().rebuilt_bytes;
        assert!((1..=OBJECTS * 4096).contains(&moved), "{moved} bytes were moved");
        check_disk(&mut bench).await;
    });
}

#[test]
fn what_lies_behind_parts_that_differ_everywhere_is_moved_unseen_and_the_rest_is_not() {
    const CHUNK: usize = FRAGMENT / 16;
    on_worker(|worker| async move {
        let config = CoreConfig { recovery_chunk_bytes: CHUNK as u64, ..config() };
        let mut random = fastrand::Rng::with_seed(7);
        // of sixteen chunks 0 to 2 differ; 1, 3 and 4 are not looked at, the others are
        let mut bench = behind_with(&worker, config, &mut random, 0..3 * CHUNK).await;
        join(&mut bench).await;
        let moved = shard_2(&bench).stats().rebuilt_bytes;
        assert_eq!(moved, OBJECTS * 5 * CHUNK as u64);
        check_disk(&mut bench).await;
    });
}

/// Ratios by which every disk is too full for backfill, and none is full.
fn toofull() -> FullRatios {
    FullRatios { nearfull: 0.0, backfillfull: 0.0, ..FullRatios::default() }
}

/// Ratios by which only a full disk is too full for backfill.
fn with_room() -> FullRatios {
    let full = FullRatios::default().full;
    FullRatios { nearfull: full, backfillfull: full, full }
}

#[test]
fn a_backfill_waits_for_space_and_what_was_missed_does_not() {
    on_worker(|worker| async move {
        let mut random = fastrand::Rng::with_seed(6);
        let mut bench = behind(&worker, &mut random, 0..SECTOR).await;
        shard_2(&bench).set_ratios(toofull());
        join(&mut bench).await;
        bench.kill(2);
        bench.set_view(&[0, 1], &[]);
        bench.dirs[2] = tempfile::tempdir().expect("a directory");
        bench.locks[2] = DataDir::open(bench.dirs[2].path(), ClusterId::new(5), OsdId::new(2))
            .expect("a directory");
        bench.open(2);
        bench.settle(true).await;
        shard_2(&bench).set_ratios(toofull());
        let back = |bench: &Bench| {
            let (core, members) = (shard_2(bench), bench.members());
            async move { core.return_shard(pg(), members).await.expect("no failure") }
        };
        assert_eq!(drive(&mut bench, back).await, Return::TooFull);
        let (core, room) = (shard_2(&bench), std::rc::Rc::new(std::cell::Cell::new(false)));
        let out = room.clone();
        worker.spawn(async move {
            core.backfill_room(pg()).await;
            out.set(true);
        });
        while shard_2(&bench).stats().backfills_waiting == 0 {
            bench.turn().await;
        }
        assert!(!room.get() && backlog(&bench).objects == OBJECTS);
        shard_2(&bench).set_ratios(with_room());
        while !room.get() {
            bench.turn().await;
        }
        assert_eq!(shard_2(&bench).stats().backfills_waiting, 0);
        assert_eq!(drive(&mut bench, back).await, Return::CaughtUp(bench.view.epoch));
        bench.set_view(&[0, 1], &[2]);
        join(&mut bench).await;
    });
}

#[test]
fn members_trim_before_they_list() {
    on_worker(|worker| async move {
        let mut random = fastrand::Rng::with_seed(8);
        let mut bench = Bench::new(&worker, config()).await;
        bench.kill(2);
        bench.set_view(&[0, 1], &[]);
        (1..=OBJECTS).for_each(|n| bench.write(object(n), Op::Write, 0..FRAGMENT, &mut random));
        bench.settle(true).await;
        bench.open(2);
        bench.set_view(&[0, 1], &[]);
        let journalled = |bench: &Bench, member: usize| {
            bench.cores[member].as_ref().map(|core| core.stats().journal_records)
        };
        assert!(
            (0..2).all(|member| journalled(&bench, member) > Some(0)),
            "applied records are kept for a while"
        );
        let (core, members) = (shard_2(&bench), bench.members());
        let listed = async move { core.list_missed(pg(), members).await.expect("no failure") };
        assert!(drive_any(&mut bench, listed).await);
        assert_eq!([0, 1].map(|member| journalled(&bench, member)), [Some(0); 2]);
        assert_eq!(backlog(&bench).objects, OBJECTS);
    });
}

#[test]
fn bytes_that_fail_their_checksum_are_moved_though_nobody_wrote_there() {
    on_worker(|worker| async move {
        let mut random = fastrand::Rng::with_seed(4);
        let mut bench = behind(&worker, &mut random, 0..SECTOR).await;
        let path = fragment_path(&bench, 2, 1);
        let mut bytes = std::fs::read(&path).expect("readable");
        let last = bytes.len() - 100;
        bytes[last] ^= 0x40;
        std::fs::write(&path, bytes).expect("writable");
        join(&mut bench).await;
        assert_eq!(
            shard_2(&bench).stats().corrupt_found,
            0,
            "it was rebuilt before anybody read it"
        );
    });
}

#[test]
fn what_was_cut_off_or_deleted_meanwhile_does_not_shine_through() {
    on_worker(|worker| async move {
        let mut random = fastrand::Rng::with_seed(5);
        let mut bench = Bench::new(&worker, config()).await;
        (1..=OBJECTS).for_each(|n| bench.write(object(n), Op::Write, 0..FRAGMENT, &mut random));
        bench.settle(true).await;
        wait_for_empty_journals(&mut bench).await;
        bench.kill(2);
        bench.set_view(&[0, 1], &[]);
        bench.write(object(1), Op::Truncate, FRAGMENT / 4..FRAGMENT / 4, &mut random);
        bench.write(object(2), Op::Delete, 0..0, &mut random);
        bench.write(object(3), Op::Punch, SECTOR..FRAGMENT / 2, &mut random);
        bench.settle(true).await;
        wait_for_empty_journals(&mut bench).await;
        bench.open(2);
        bench.set_view(&[0, 1], &[2]);
        join(&mut bench).await;
        assert!(!fragment_path(&bench, 2, 2).exists(), "the deleted object is gone here, too");
    });
}

/// Bytes that only a record of the journal names, and that were synced, rot; nothing else was lost.
#[test]
fn a_shard_whose_journal_names_rotten_bytes_rebuilds_all_that_it_drops() {
    on_worker(|worker| async move {
        let mut random = fastrand::Rng::with_seed(6);
        let mut bench = Bench::new(&worker, config()).await;
        (1..=OBJECTS).for_each(|n| bench.write(object(n), Op::Write, 0..FRAGMENT, &mut random));
        bench.settle(true).await;
        bench.kill(2);
        wait_for_empty_journals(&mut bench).await;
        let path = fragment_path(&bench, 2, 1);
        let mut bytes = std::fs::read(&path).expect("readable");
        let last = bytes.len() - 100;
        bytes[last] ^= 0x40;
        std::fs::write(&path, bytes).expect("writable");
        assert!(bench.lacks_direct_bytes(2), "it must leave the in-sync set");
        bench.set_view(&[0, 1], &[2]);
        bench.open(2);
        join(&mut bench).await;
    });
}
