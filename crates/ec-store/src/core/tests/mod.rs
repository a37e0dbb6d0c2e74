//! Cores on real journals and fragment files: killed and opened again, returning, repaired, cut.

mod bench;
mod heal;
mod placed;
mod scrub;
mod sync_job;
mod throttles;
mod unresting;

use super::recovery::Return;
use super::{Core, CoreConfig};
use crate::pg::{SessionTable, ShardView};
use crate::superblock::DataDir;
use bench::{Bench, FRAGMENT, SECTOR, config, object, pg, profile};
use messenger::{Runtime, RuntimeConfig, TrafficClass, Worker};
use protocol::shard::{AttachRequest, Op, SESSION_WINDOW_BYTES, Status};
use protocol::{ClusterId, Kind, OsdId, Seq, SessionId, ShardSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Runs a test on a worker.
fn on_worker<F: Future<Output = ()> + 'static>(test: impl FnOnce(Worker) -> F + Send + 'static) {
    let runtime = Runtime::start(RuntimeConfig::new("core-test", 1)).expect("a runtime");
    runtime.handle().block_on_worker(0, test).expect("the test's assertions hold");
    runtime.shutdown();
}

#[test]
fn what_was_reported_survives_killed_processes() {
    on_worker(|worker| async move {
        for seed in 0..6 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut bench = Bench::new(&worker, config()).await;
            for _ in 0..random.usize(2..5) {
                for _ in 0..random.usize(1..30) {
                    bench.write_some(&mut random);
                    if random.bool() {
                        bench.turn().await;
                    }
                }
                bench.settle(random.bool()).await;
                let victims = [vec![0], vec![1], vec![2], vec![0, 1, 2]];
                for &i in &victims[random.usize(0..victims.len())] {
                    bench.kill(i);
                    bench.open(i);
                }
                bench.set_view(&[0, 1, 2], &[]);
                bench.check(0, 1).await;
                bench.check(1, 2).await;
            }
            bench.settle(true).await;
            wait_for_empty_journals(&mut bench).await;
            bench.check(0, 2).await;
            (0..3).for_each(|i| bench.kill(i));
            (0..3).for_each(|i| bench.open(i));
            bench.set_view(&[0, 1, 2], &[]);
            bench.check(1, 2).await;
        }
    });
}

/// Rule by rule everything leaves the journals, once stable.
async fn wait_for_empty_journals(bench: &mut Bench) {
    for _ in 0..2000 {
        let mut left = 0;
        for core in bench.cores.clone().iter().flatten() {
            core.apply().await;
            core.trim().await.expect("trimmed");
            left += core.stats().journal_records;
        }
        if left == 0 {
            return;
        }
        bench.turn().await;
    }
    panic!("progress: records stay in a journal");
}

#[test]
fn a_shard_returns_under_writes() {
    on_worker(|worker| async move {
        let mut random = fastrand::Rng::with_seed(11);
        let mut bench = Bench::new(&worker, config()).await;
        (0..20).for_each(|_| bench.write_some(&mut random));
        bench.settle(false).await;
        bench.kill(2);
        bench.set_view(&[0, 1], &[]);
        (0..20).for_each(|_| bench.write_some(&mut random));
        bench.settle(true).await;
        wait_for_empty_journals(&mut bench).await;
        (0..5).for_each(|_| bench.write_some(&mut random));
        bench.open(2);
        bench.settle(true).await;
        let back = |bench: &Bench| {
            let (core, members) = (bench.cores[2].clone().expect("runs"), bench.members());
            async move { core.return_shard(pg(), members).await.expect("no failure") }
        };
        assert_eq!(back(&bench).await, Return::CaughtUp(bench.view.epoch));
        bench.set_view(&[0, 1], &[2]);
        (0..10).for_each(|_| bench.write_some(&mut random));
        let whole = drive(&mut bench, back).await;
        assert_eq!(whole, Return::Whole(bench.view.epoch));
        bench.set_view(&[0, 1, 2], &[]);
        bench.settle(true).await;
        bench.check(0, 2).await;
        bench.check(1, 2).await;
        let stats = bench.cores[2].as_ref().expect("runs").stats();
        assert!(stats.rebuilt_bytes > 0 && stats.to_rebuild.is_empty(), "{stats:?}");
    });
}

/// Runs a way back while messages flow.
async fn drive<F: Future<Output = Return> + 'static>(
    bench: &mut Bench,
    back: impl Fn(&Bench) -> F,
) -> Return {
    let task = back(bench);
    drive_any(bench, task).await
}

/// Runs something while messages flow.
async fn drive_any<T: 'static>(bench: &mut Bench, task: impl Future<Output = T> + 'static) -> T {
    let result = std::rc::Rc::new(std::cell::Cell::new(None));
    let out = result.clone();
    bench.worker.spawn(async move { out.set(Some(task.await)) });
    for _ in 0..30_000 {
        bench.turn().await;
        if let Some(result) = result.take() {
            return result;
        }
    }
    panic!("progress: it never ends");
}

#[test]
fn a_blank_disk_is_filled() {
    on_worker(|worker| async move {
        let mut random = fastrand::Rng::with_seed(3);
        let mut bench = Bench::new(&worker, config()).await;
        (0..30).for_each(|_| bench.write_some(&mut random));
        bench.settle(true).await;
        wait_for_empty_journals(&mut bench).await;
        bench.kill(1);
        bench.set_view(&[0, 2], &[]);
        bench.dirs[1] = tempfile::tempdir().expect("a directory");
        bench.locks[1] = DataDir::open(bench.dirs[1].path(), ClusterId::new(5), OsdId::new(1))
            .expect("a directory");
        bench.open(1);
        bench.set_view(&[0, 2], &[1]);
        let whole = drive(&mut bench, |bench| {
            let (core, members) = (bench.cores[1].clone().expect("runs"), bench.members());
            async move { core.return_shard(pg(), members).await.expect("no failure") }
        });
        assert_eq!(whole.await, Return::Whole(bench.view.epoch));
        bench.kill(1);
        bench.open(1);
        bench.set_view(&[0, 1, 2], &[]);
        bench.check(0, 1).await;
        bench.check(1, 2).await;
    });
}

/// The only fragment file of shard `i`'s object.
fn fragment_path(bench: &Bench, i: usize, n: u64) -> std::path::PathBuf {
    bench.dirs[i].path().join(format!("pg/{}/{}.{i}", pg(), object(n)))
}

#[test]
fn a_flipped_byte_is_found_and_repaired() {
    on_worker(|worker| async move {
        let mut random = fastrand::Rng::with_seed(5);
        let mut bench = Bench::new(&worker, config()).await;
        bench.write(object(1), Op::Write, 0..FRAGMENT, &mut random);
        bench.settle(true).await;
        wait_for_empty_journals(&mut bench).await;
        let path = fragment_path(&bench, 1, 1);
        let mut bytes = std::fs::read(&path).expect("a fragment file");
        let at = bytes.len() - 100 * SECTOR;
        bytes[at] ^= 1;
        std::fs::write(&path, &bytes).expect("written");
        assert_eq!(bench.read(1, object(1)).await, Err(Status::Corrupt));
        let core = bench.cores[1].clone().expect("runs");
        let repair = core.next_repair().await.expect("a repair is due");
        assert!(core.repair(&repair, bench.members()).await.expect("no failure"));
        bench.check(1, 2).await;
        let stats = core.stats();
        assert_eq!((stats.corrupt_found, stats.corrupt_repaired), (1, 1));
        bench.kill(1);
        bench.open(1);
        bench.set_view(&[0, 1, 2], &[]);
        bench.check(0, 1).await;
    });
}

/// A header lost is all of a fragment lost, and no more: records are applied behind it, so that the
/// journal empties, and every sector comes back from the other shards.
#[test]
fn a_damaged_header_is_replaced_and_all_behind_it_repaired() {
    on_worker(|worker| async move {
        let damages: [fn(&mut Vec<u8>); 3] = [
            |bytes| bytes[40] ^= 1,
            // a block lost to zeros takes a part of the table with it
            |bytes| bytes[..4096].fill(0),
            |bytes| bytes.truncate(50),
        ];
        for (seed, damage) in (0..).zip(damages) {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut bench = Bench::new(&worker, config()).await;
            bench.write(object(1), Op::Write, 0..FRAGMENT, &mut random);
            bench.settle(true).await;
            wait_for_empty_journals(&mut bench).await;
            bench.kill(1);
            let path = fragment_path(&bench, 1, 1);
            let mut bytes = std::fs::read(&path).expect("a fragment file");
            damage(&mut bytes);
            std::fs::write(&path, &bytes).expect("written");
            bench.open(1);
            bench.set_view(&[0, 1, 2], &[]);
            if seed == 0 {
                bench.settle(true).await;
                assert_eq!(bench.read(1, object(1)).await, Err(Status::Corrupt));
            }
            bench.write(object(1), Op::Write, 3 * SECTOR..5 * SECTOR, &mut random);
            bench.settle(true).await;
            wait_for_empty_journals(&mut bench).await;
            assert_eq!(bench.read(1, object(1)).await, Err(Status::Corrupt));
            let core = bench.cores[1].clone().expect("runs");
            let repair = core.next_repair().await.expect("a repair is due");
            assert!(core.repair(&repair, bench.members()).await.expect("no failure"));
            bench.check(1, 2).await;
            core.sync(false).await.expect("synced");
            bench.kill(1);
            bench.open(1);
            bench.set_view(&[0, 1, 2], &[]);
            bench.check(0, 1).await;
        }
    });
}

/// Records whose bytes are in the fragment file only are checked at a restart: behind a damaged
/// header, too.
#[test]
fn direct_records_survive_a_damaged_header() {
    on_worker(|worker| async move {
        let mut random = fastrand::Rng::with_seed(8);
        let mut bench = Bench::new(&worker, config()).await;
        bench.write(object(1), Op::Write, 0..FRAGMENT / 2, &mut random);
        bench.settle(true).await;
        bench.kill(1);
        let path = fragment_path(&bench, 1, 1);
        let mut bytes = std::fs::read(&path).expect("a fragment file");
        // not the part of the table that belongs to sectors beyond what was written
        bytes[..4096].fill(0xff);
        std::fs::write(&path, &bytes).expect("written");
        bench.open(1);
        bench.set_view(&[0, 1, 2], &[]);
        bench.settle(true).await;
        assert_eq!(bench.cores[1].as_ref().expect("runs").stats().journal_records, 1);
        wait_for_empty_journals(&mut bench).await;
        let core = bench.cores[1].clone().expect("runs");
        assert_eq!(bench.read(1, object(1)).await, Err(Status::Corrupt));
        let repair = core.next_repair().await.expect("a repair is due");
        assert!(core.repair(&repair, bench.members()).await.expect("no failure"));
        bench.check(0, 1).await;
    });
}

#[test]
fn a_full_journal_holds_writers_back_and_loses_nothing() {
    on_worker(|worker| async move {
        let mut small = config();
        small.journal.journal_bytes_max = 3 << 20;
        small.direct_bytes_min = u32::MAX;
        let mut random = fastrand::Rng::with_seed(9);
        // a session that heeds neither its window nor the journal's word
        let most = small.journal.journal_bytes_max + SESSION_WINDOW_BYTES;
        let mut bench = Bench::new(&worker, small).await;
        let writes = 2 * most as usize / FRAGMENT;
        for n in 0..writes {
            bench.write(object(n as u64 % 3 + 1), Op::Write, 0..FRAGMENT, &mut random);
        }
        bench.settle(true).await;
        bench.check(0, 1).await;
        let bytes = bench.cores[0].as_ref().expect("runs").stats().journal_bytes;
        assert!(bytes <= most + (1 << 20), "{bytes} bytes in a journal that takes {most}");
    });
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("made");
    for entry in std::fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_dir(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("copied");
        }
    }
}

#[test]
fn a_journal_cut_anywhere_gives_a_prefix() {
    on_worker(|worker| async move {
        let mut random = fastrand::Rng::with_seed(21);
        // no sync by itself, so that every cut looks like a torn tail
        let config = CoreConfig { journal_sync_interval: Duration::from_secs(600), ..config() };
        let mut bench = Bench::new(&worker, config.clone()).await;
        for n in 0..12 {
            bench.write(
                object(1 + n % 2),
                Op::Write,
                (n as usize * 2 * SECTOR)..((n as usize * 2 + 2) * SECTOR),
                &mut random,
            );
        }
        bench.settle(false).await;
        bench.kill(0);
        let journal = bench.dirs[0].path().join("journal/0");
        let newest = std::fs::read_dir(&journal)
            .expect("a journal")
            .map(|e| e.expect("an entry").path())
            .max();
        let newest = newest.expect("a segment");
        let written = std::fs::read(&newest).expect("read");
        let used = written.iter().rposition(|b| *b != 0).expect("entries") + 1;
        let mut last = 0;
        for cut in (64..=used).step_by(173).chain([used]) {
            let dir = tempfile::tempdir().expect("a directory");
            copy_dir(bench.dirs[0].path(), dir.path());
            let segment = dir.path().join("journal/0").join(newest.file_name().expect("a name"));
            std::fs::write(&segment, &written[..cut]).expect("written");
            let held = records_after(&worker, dir.path(), &config, &bench).await;
            assert_eq!(
                held,
                (1..=held.len() as u64).map(Seq::new).collect::<Vec<_>>(),
                "cut at {cut}"
            );
            assert!(held.len() >= last, "more bytes hold no fewer records");
            last = held.len();
        }
        assert_eq!(last, 12);
    });
}

/// Opens a data directory and tells which records of the session are there.
async fn records_after(
    worker: &Worker,
    dir: &Path,
    config: &CoreConfig,
    bench: &Bench,
) -> Vec<Seq> {
    let lock = DataDir::open(dir, ClusterId::new(5), OsdId::new(0)).expect("a data directory");
    let core: Core<bench::Inbox> =
        Core::open(&lock, config.clone(), worker).expect("the core opens");
    core.learn(bench.shard_view(0)).expect("the view is taken");
    let epoch = bench.view.epoch;
    let held =
        core.collect(SessionId::new(1), &[(pg(), epoch)]).await.expect("synced").expect("a member");
    core.halt();
    held[0].held.iter().map(|(seq, _)| *seq).collect()
}

#[test]
fn a_dead_session_is_collected_decided_and_fenced() {
    on_worker(|worker| async move {
        let mut random = fastrand::Rng::with_seed(2);
        let mut bench = Bench::new(&worker, config()).await;
        (0..5).for_each(|_| bench.write(object(1), Op::Write, 0..SECTOR, &mut random));
        bench.settle(false).await;
        let core = bench.cores[0].clone().expect("runs");
        let (session, epoch) = (SessionId::new(1), bench.view.epoch);
        let held =
            core.collect(session, &[(pg(), epoch)]).await.expect("synced").expect("a member");
        assert_eq!(held[0].held.last().map(|h| h.0), Some(Seq::new(5)));
        assert_eq!(
            core.decide(session, &[(pg(), epoch, Seq::new(3))]).await.expect("synced"),
            [pg()]
        );
        let held =
            core.collect(session, &[(pg(), epoch)]).await.expect("synced").expect("a member");
        assert_eq!(held[0].settled, Seq::new(3));
        assert_eq!(bench.read(0, object(1)).await, Err(Status::Fenced));
        // the decision outlives the process
        bench.kill(0);
        bench.open(0);
        let core = bench.cores[0].clone().expect("runs");
        let held =
            core.collect(session, &[(pg(), epoch)]).await.expect("synced").expect("a member");
        assert_eq!(held[0].settled, Seq::new(3));
        assert!(held[0].held.iter().all(|h| h.0 <= Seq::new(3)));
    });
}

#[test]
fn a_cut_path_acknowledges_and_keeps_neither_bytes_nor_records() {
    on_worker(|worker| async move {
        let mut bench = Bench::new(&worker, CoreConfig { cut_after_pg: true, ..config() }).await;
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..20 {
            (0..20).for_each(|_| bench.write_some(&mut random));
            bench.settle(true).await;
        }
        for i in 0..3 {
            assert_eq!(bench.read(i, object(1)).await, Ok(vec![0; FRAGMENT]), "shard {i}");
            assert_eq!(
                std::fs::read_dir(bench.dirs[i].path().join("pg")).expect("a directory").count(),
                0
            );
            assert_eq!(bench.cores[i].as_ref().expect("runs").stats().journal_bytes, 0);
        }
        wait_for_empty_journals(&mut bench).await;
    });
}

#[test]
fn strange_messages_are_refused() {
    on_worker(|worker| async move {
        let mut bench = Bench::new(&worker, config()).await;
        let core = bench.cores[0].clone().expect("runs");
        for kind in [
            Kind::Attach,
            Kind::Write,
            Kind::Mark,
            Kind::Read,
            Kind::Stat,
            Kind::Recovery,
            Kind::Namespace,
        ] {
            let front = bytes::Bytes::from_static(b"nonsense");
            let message = messenger::Message::new(
                messenger::TrafficClass::Client,
                kind.to_u16(),
                front,
                bytes::Bytes::new(),
            );
            assert!(
                core.handle(&bench.outlets[0], TrafficClass::Client, message).is_err(),
                "{kind:?}"
            );
        }
        let stale = ShardView {
            pg: crate::pg::PgView { profile: profile(), in_sync: ShardSet::first(3), ..bench.view },
            me: bench::si(0),
            sessions: Arc::new(SessionTable { last: SessionId::new(9), ..SessionTable::default() }),
        };
        core.learn(stale).expect("the view is taken");
        bench.session.want_attached(Instant::now());
        let attach =
            std::iter::from_fn(|| bench.session.next_action()).find_map(|action| match action {
                crate::pg::Action::Send { shard, request: crate::pg::Request::Attach(m) }
                    if shard == bench::si(0) =>
                {
                    Some(m)
                }
                _ => None,
            });
        let attach: AttachRequest = attach.expect("an attach");
        let front = bytes::Bytes::copy_from_slice(zerocopy::IntoBytes::as_bytes(&attach));
        let kind = Kind::Attach.to_u16();
        let message = messenger::Message::new(
            messenger::TrafficClass::Client,
            kind,
            front,
            bytes::Bytes::new(),
        );
        core.handle(&bench.outlets[0], TrafficClass::Client, message).expect("well formed");
        let ack = bench.outlets[0].acks.borrow_mut().pop_front().expect("an answer");
        assert_eq!(Status::from_u8(ack.status), Status::Fenced);
    });
}
