//! A shard returns beside a writer that does not rest: between any two questions to members it
//! overwrites what is being rebuilt, and they apply that.

use super::bench::{BenchMembers, FRAGMENT, Inbox, SECTOR};
use super::*;
use crate::core::recovery::Members;
use bytes::Bytes;
use protocol::ShardIndex;
use protocol::recovery::{RecoveryReply, RecoveryRequest};
use std::cell::Cell;
use std::rc::Rc;

/// So many questions are enough to list, rebuild and report one object of four chunks, each of
/// which is asked for three times at most.
const QUESTIONS_MAX: u64 = 120;

/// Lets a question through when the writer has written.
#[derive(Clone)]
struct Beside {
    members: BenchMembers,
    worker: Worker,
    asked: Rc<Cell<u64>>,
    let_through: Rc<Cell<u64>>,
}

impl Members for Beside {
    fn ask(
        &self,
        member: ShardIndex,
        request: RecoveryRequest,
    ) -> impl Future<Output = Option<(RecoveryReply, Bytes)>> + 'static {
        let this = self.clone();
        let number = this.asked.get() + 1;
        this.asked.set(number);
        async move {
            while this.let_through.get() < number {
                this.worker.sleep(Duration::from_millis(1)).await;
            }
            this.members.ask(member, request).await
        }
    }
}

fn shard_2(bench: &Bench) -> Core<Inbox> {
    bench.cores[2].clone().expect("runs")
}

/// Overwrites a part of the object, and members apply it unless they hold it, and trim: what was
/// written directly holds up what is written over it until then, which cores do in their own time.
async fn overwrite(bench: &mut Bench, random: &mut fastrand::Rng) {
    let first = random.usize(0..FRAGMENT / SECTOR - 4);
    bench.write(object(1), Op::Write, first * SECTOR..(first + 4) * SECTOR, random);
    bench.settle(true).await;
    for _ in 0..12 {
        bench.turn().await;
        for core in [0, 1].map(|i| bench.cores[i].clone().expect("runs")) {
            core.apply().await;
            core.trim().await.expect("trimmed");
        }
    }
}

async fn return_beside(bench: &mut Bench, random: &mut fastrand::Rng) -> Return {
    let (members, worker) = (bench.members(), bench.worker.clone());
    let (asked, let_through) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let beside = Beside { members, worker, asked: asked.clone(), let_through: let_through.clone() };
    let (core, ended) = (shard_2(bench), Rc::new(Cell::new(None)));
    let out = ended.clone();
    bench.worker.spawn(async move {
        out.set(Some(core.return_shard(pg(), beside).await.expect("no failure")))
    });
    while asked.get() < QUESTIONS_MAX {
        if let Some(ended) = ended.take() {
            return ended;
        }
        overwrite(bench, random).await;
        let_through.set(asked.get());
        bench.turn().await;
    }
    panic!("progress: the writer keeps the shard away: {:?}", shard_2(bench).stats());
}

async fn behind(worker: &Worker, random: &mut fastrand::Rng) -> Bench {
    let config = CoreConfig { recovery_chunk_bytes: FRAGMENT as u64 / 4, ..config() };
    let mut bench = Bench::new(worker, config).await;
    bench.write(object(1), Op::Write, 0..FRAGMENT, random);
    bench.settle(true).await;
    bench.kill(2);
    bench.set_view(&[0, 1], &[]);
    bench.write(object(1), Op::Write, 0..FRAGMENT, random);
    bench.settle(true).await;
    let members = [0, 1].map(|i| bench.cores[i].clone().expect("runs"));
    trim(&mut bench, &members).await;
    bench.open(2);
    bench.set_view(&[0, 1], &[]);
    bench
}

/// Empties journals.
async fn trim(bench: &mut Bench, cores: &[Core<Inbox>]) {
    for _ in 0..10_000 {
        for core in cores {
            core.apply().await;
            core.trim().await.expect("trimmed");
        }
        if cores.iter().all(|core| core.stats().journal_records == 0) {
            return;
        }
        bench.turn().await;
    }
    panic!("progress: journals are not trimmed");
}

#[test]
fn a_writer_that_does_not_rest_does_not_keep_a_shard_away() {
    on_worker(|worker| async move {
        let mut random = fastrand::Rng::with_seed(35);
        let mut bench = behind(&worker, &mut random).await;
        let caught_up = return_beside(&mut bench, &mut random).await;
        assert_eq!(caught_up, Return::CaughtUp(bench.view.epoch));
        bench.set_view(&[0, 1], &[2]);
        bench.settle(true).await;
        let whole = return_beside(&mut bench, &mut random).await;
        assert_eq!(whole, Return::Whole(bench.view.epoch));
        assert_eq!(shard_2(&bench).stats().recovery_put_backs, 0);
        let holds = bench.cores.iter().flatten().map(|core| core.stats().recovery_holds);
        assert!(holds.sum::<u64>() >= 2, "members were to hold the object");
        bench.set_view(&[0, 1, 2], &[]);
        bench.settle(true).await;
        wait_for_empty_journals(&mut bench).await;
        bench.check(0, 2).await;
        bench.check(1, 2).await;
    });
}

#[test]
fn what_a_shard_held_that_is_gone_is_applied_after_a_while() {
    on_worker(|worker| async move {
        let mut random = fastrand::Rng::with_seed(36);
        let mut bench = behind(&worker, &mut random).await;
        let core = bench.cores[0].clone().expect("runs");
        let hold = |bench: &Bench| {
            let core = shard_2(bench);
            let length = SECTOR as u32;
            let ask =
                |shard: &mut crate::pg::shard::PgShard| shard.snap_body(object(1), 0, length, true);
            let body = core.with(pg(), |shard, _| ask(shard)).expect("it is held");
            RecoveryRequest { pg: pg(), epoch: bench.view.epoch, from: bench::si(2), body }
        };
        for _ in 0..100 {
            let (request, members) = (hold(&bench), bench.members());
            drive_any(&mut bench, async move { members.ask(bench::si(0), request).await }).await;
            if core.stats().recovery_holds == 1 {
                break;
            }
        }
        assert_eq!(core.stats().recovery_holds, 1);
        bench.kill(2);
        overwrite(&mut bench, &mut random).await;
        assert!(core.stats().journal_records > 0, "it is held");
        while core.stats().journal_records > 0 {
            core.apply().await;
            core.trim().await.expect("trimmed");
            bench.turn().await;
        }
    });
}
