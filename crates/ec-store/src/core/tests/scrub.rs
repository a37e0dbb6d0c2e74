//! Scrubs of three cores: what they find, repair, and leave to the operator.

use super::super::scrub::Scrubbed;
use super::bench::{Bench, FRAGMENT, Inbox, SECTOR, config, object, pg, si};
use super::{Core, drive_any, fragment_path, on_worker, wait_for_empty_journals};
use crate::fragment::{Mark, sector_crcs};
use protocol::ShardSet;
use protocol::shard::Op;

/// Repairs run as they do in a daemon.
fn spawn_repairs(bench: &Bench) {
    for core in bench.cores.iter().flatten() {
        let (core, members) = (core.clone(), bench.members());
        bench.worker.spawn(async move {
            while let Some(repair) = core.next_repair().await {
                core.repair(&repair, members.clone()).await.expect("no failure");
            }
        });
    }
}

async fn scrub(bench: &mut Bench, deep: bool) -> Scrubbed {
    let (core, members) = (bench.cores[0].clone().expect("runs"), bench.members());
    drive_any(bench, async move { core.scrub(pg(), deep, members).await.expect("it leads") }).await
}

/// A few objects, in fragment files alone.
async fn written(bench: &mut Bench, random: &mut fastrand::Rng) {
    for n in 1..4 {
        bench.write(object(n), Op::Write, 0..FRAGMENT, random);
        bench.write(object(n), Op::Punch, 40 * SECTOR..50 * SECTOR, random);
    }
    bench.settle(true).await;
    wait_for_empty_journals(bench).await;
    spawn_repairs(bench);
}

#[test]
fn flipped_bytes_and_lost_files_are_found_and_repaired() {
    on_worker(|worker| async move {
        let mut random = fastrand::Rng::with_seed(21);
        let mut bench = Bench::new(&worker, config()).await;
        written(&mut bench, &mut random).await;
        let clean = scrub(&mut bench, false).await;
        assert_eq!((clean.totals.objects, clean.totals.found, clean.totals.skipped), (3, 0, 0));
        // the daemons have these files open
        std::fs::remove_file(fragment_path(&bench, 0, 1)).expect("removed");
        let path = fragment_path(&bench, 1, 2);
        let mut bytes = std::fs::read(&path).expect("a fragment file");
        let at = bytes.len() - 100 * SECTOR;
        bytes[at] ^= 1;
        std::fs::write(&path, &bytes).expect("written");
        let path = fragment_path(&bench, 2, 3);
        let mut bytes = std::fs::read(&path).expect("a fragment file");
        bytes[30] ^= 1;
        std::fs::write(&path, &bytes).expect("written");
        // a header that is in memory is written anew without another word
        let found = scrub(&mut bench, false).await;
        assert_eq!(
            (found.totals.found, found.totals.repaired, &found.findings[..]),
            (2, 2, &[][..])
        );
        assert_eq!(scrub(&mut bench, true).await.totals.found, 0);
        for i in 0..3 {
            bench.kill(i);
            bench.open(i);
        }
        bench.set_view(&[0, 1, 2], &[]);
        bench.settle(true).await;
        bench.check(0, 1).await;
        bench.check(1, 2).await;
        bench.check(0, 2).await;
    });
}

/// Puts other bytes into a fragment, with their checksums.
fn falsify(core: &Core<Inbox>, shard: usize, n: u64) {
    core.with(pg(), |_, store| {
        let key = store.key(pg(), object(n)).expect("held");
        let file = store.fragments.get(key).expect("readable").expect("there");
        let (bytes, mut crcs) = (vec![shard as u8 + 1; 2 * SECTOR], Vec::new());
        sector_crcs(&bytes, &mut crcs);
        file.write(100 * SECTOR as u64, &bytes, &crcs, Mark::default()).expect("written");
        file.sync().expect("synced");
    });
}

#[test]
fn bytes_that_pass_their_checksums_and_do_not_match_are_left_to_the_operator() {
    on_worker(|worker| async move {
        let mut random = fastrand::Rng::with_seed(22);
        let mut bench = Bench::new(&worker, config()).await;
        written(&mut bench, &mut random).await;
        for shard in 0..3 {
            falsify(bench.cores[shard].as_ref().expect("runs"), shard, 2);
            assert_eq!(
                scrub(&mut bench, false).await.totals.found,
                0,
                "checksums alone do not show it"
            );
            let found = scrub(&mut bench, true).await;
            assert_eq!((found.totals.found, found.totals.repaired), (1, 0));
            let finding = &found.findings[0];
            assert_eq!((finding.object, finding.wrong), (object(2), ShardSet::EMPTY));
            assert!(
                finding.range.contains(&(100 * SECTOR as u64))
                    && finding.range.end - finding.range.start == 4096
            );
            let (core, members) = (bench.cores[0].clone().expect("runs"), bench.members());
            let repaired =
                async move { core.repair_shard(pg(), object(2), si(shard), members).await };
            assert_eq!(drive_any(&mut bench, repaired).await, Some(None));
            assert_eq!(scrub(&mut bench, true).await.totals.found, 0);
        }
        bench.check(0, 1).await;
        bench.check(1, 2).await;
    });
}

#[test]
fn a_scrub_under_writes_finds_nothing() {
    on_worker(|worker| async move {
        let mut random = fastrand::Rng::with_seed(23);
        let mut bench = Bench::new(&worker, config()).await;
        spawn_repairs(&bench);
        for round in 0..6 {
            let (core, members) = (bench.cores[0].clone().expect("runs"), bench.members());
            let done = std::rc::Rc::new(std::cell::Cell::new(None));
            let out = done.clone();
            bench
                .worker
                .spawn(async move { out.set(core.scrub(pg(), round % 2 == 1, members).await) });
            let scrubbed = loop {
                (0..3).for_each(|_| bench.write_some(&mut random));
                bench.settle(random.u8(0..4) == 0).await;
                if let Some(scrubbed) = done.take() {
                    break scrubbed;
                }
            };
            assert_eq!(
                (scrubbed.totals.found, &scrubbed.findings[..]),
                (0, &[][..]),
                "round {round}"
            );
        }
        bench.settle(true).await;
        bench.check(0, 1).await;
        bench.check(1, 2).await;
    });
}
