//! The bounds of [`crate::throttle`] and of background disk jobs, seen in what a core counts.

use super::bench::{Bench, SECTOR, config, object, pg};
use super::{drive, on_worker, wait_for_empty_journals};
use crate::core::recovery::Return;
use crate::core::{CoreConfig, CoreStats};
use crate::throttle::{Throttles, WriteBackStart, WriteBacks};
use messenger::Worker;
use protocol::shard::Op;
use std::sync::mpsc;
use std::time::Duration;

fn with(throttles: Throttles) -> CoreConfig {
    CoreConfig { throttles, ..config() }
}

fn stats(bench: &Bench) -> CoreStats {
    bench.cores[0].as_ref().expect("runs").stats()
}

/// So many small writes, each through the journal, to so many objects in turn.
fn write_small(bench: &mut Bench, writes: u64, objects: u64) {
    let mut random = fastrand::Rng::with_seed(5);
    for n in 0..writes {
        let at = (n / objects) as usize * 2 * SECTOR + SECTOR;
        bench.write(object(1 + n % objects), Op::Write, at..at + SECTOR, &mut random);
    }
}

#[test]
fn sessions_hold_at_the_bound_of_the_queue_and_are_told_when_it_is_empty() {
    on_worker(|worker| async move {
        for (queue_bytes_max, holds) in [(4 * SECTOR as u64, true), (100 << 20, false)] {
            let mut bench =
                Bench::new(&worker, with(Throttles { queue_bytes_max, ..Throttles::default() }))
                    .await;
            write_small(&mut bench, 40, 3);
            bench.settle(true).await;
            wait_for_empty_journals(&mut bench).await;
            bench.turn().await;
            let stats = stats(&bench);
            assert_eq!(stats.holds_by_queue > 0, holds, "{queue_bytes_max}: {stats:?}");
            assert_eq!((stats.queued_bytes, stats.holds_by_commit), (0, 0));
            assert!(!bench.cores[0].as_ref().expect("runs").shared.state.borrow().is_holding);
            bench.check(0, 1).await;
        }
    });
}

#[test]
fn a_sync_begins_at_the_bound_of_one_commit() {
    on_worker(|worker| async move {
        for (committing_bytes_max, begins) in [(16 * SECTOR as u64, true), (100 << 20, false)] {
            let throttles = Throttles { committing_bytes_max, ..Throttles::default() };
            let hour = Duration::from_secs(3600);
            let mut bench =
                Bench::new(&worker, CoreConfig { journal_sync_interval: hour, ..with(throttles) })
                    .await;
            write_small(&mut bench, 40, 3);
            bench.settle(false).await;
            let stats = stats(&bench);
            assert_eq!(stats.syncs_by_commit > 0, begins, "{committing_bytes_max}: {stats:?}");
        }
    });
}

#[test]
fn write_back_begins_at_each_of_its_bounds() {
    on_worker(|worker| async move {
        let never = WriteBackStart { bytes: u64::MAX, ios: u64::MAX, inodes: u64::MAX };
        let none = WriteBacks::default();
        for (write_back, is_it) in [
            (WriteBackStart { bytes: 8 * SECTOR as u64, ..never }, |seen: WriteBacks| {
                seen.by_bytes > 0
            }),
            (WriteBackStart { ios: 8, ..never }, |seen: WriteBacks| seen.by_ios > 0),
            (WriteBackStart { inodes: 3, ..never }, |seen: WriteBacks| seen.by_inodes > 0),
        ] as [(WriteBackStart, fn(WriteBacks) -> bool); 3]
        {
            let mut bench =
                Bench::new(&worker, with(Throttles { write_back: never, ..Throttles::default() }))
                    .await;
            let core = bench.cores[0].clone().expect("runs");
            write_small(&mut bench, 40, 4);
            bench.settle(true).await;
            wait_for_empty_journals(&mut bench).await;
            assert_eq!(core.stats().write_backs, none, "no bound is reached");
            core.set_throttles(Throttles { write_back, ..Throttles::default() });
            wait_for(&worker, || is_it(core.stats().write_backs)).await;
            let seen = core.stats().write_backs;
            assert_eq!(seen.by_bytes + seen.by_ios + seen.by_inodes, 1, "{seen:?}");
        }
    });
}

async fn wait_for(worker: &Worker, is_so: impl Fn() -> bool) {
    for _ in 0..20_000 {
        if is_so() {
            return;
        }
        worker.sleep(Duration::from_millis(1)).await;
    }
    panic!("progress: it never is so");
}

#[test]
fn background_jobs_take_so_many_threads_and_no_more() {
    on_worker(|worker| async move {
        let bench = Bench::new(&worker, CoreConfig { disk_threads: 2, ..config() }).await;
        let core = bench.cores[0].clone().expect("runs");
        let gates: Vec<_> = (0..6).map(|_| mpsc::channel::<()>()).collect();
        let (open, gates): (Vec<_>, Vec<_>) = gates.into_iter().unzip();
        for gate in gates {
            let core = core.clone();
            worker.spawn(async move {
                core.background(0, move || gate.recv().is_ok()).await.map(drop).expect("it ends")
            });
        }
        wait_for(&worker, || core.stats().disk_jobs == 2).await;
        (0..20).for_each(|_| core.schedule_turn());
        worker.sleep(Duration::from_millis(5)).await;
        assert_eq!(core.stats().disk_jobs, 2, "the others wait");
        core.set_disk_threads(4);
        wait_for(&worker, || core.stats().disk_jobs == 4).await;
        open.into_iter().for_each(|gate| gate.send(()).expect("it is waited for"));
        wait_for(&worker, || core.stats().disk_jobs == 6).await;
        assert_eq!(core.stats().disk_jobs_at_once, 4);
    });
}

#[test]
fn rebuilding_is_background_work_of_those_who_give() {
    on_worker(|worker| async move {
        let mut bench = Bench::new(&worker, config()).await;
        write_small(&mut bench, 40, 4);
        bench.settle(true).await;
        bench.kill(2);
        bench.set_view(&[0, 1], &[]);
        write_small(&mut bench, 40, 4);
        bench.settle(true).await;
        wait_for_empty_journals(&mut bench).await;
        assert_eq!(stats(&bench).disk_jobs, 0);
        bench.open(2);
        let back = |bench: &Bench| {
            let (core, members) = (bench.cores[2].clone().expect("runs"), bench.members());
            async move { core.return_shard(pg(), members).await.expect("no failure") }
        };
        assert!(matches!(drive(&mut bench, back).await, Return::CaughtUp(_)));
        let stats = stats(&bench);
        assert!(stats.disk_jobs > 0 && stats.disk_jobs_at_once == 1, "{stats:?}");
    });
}
