//! Object I/O against OSDs that keep fragments in memory: every byte compared with a model,
//! healthy, with shards down, back, busy, late, corrupt, full, and with the session fenced.

use crate::fake::{Fake, Faults, POOL};
use bytes::Bytes;
use client::{
    Behind, Client, ClientConfig, ClientError, ClientEvent, Ending, FileRef, LocalIo, ReadPolicy,
    Sought, WriterHint,
};
use protocol::{Gfid, Profile};
use std::future::Future;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

const SIZE_MAX: u64 = 40_000;

fn profile(k: u8, m: u8) -> Profile {
    Profile::new(k, m, 512, u64::from(k) * 512 * 8).expect("a profile")
}

fn file(inode: u64) -> FileRef {
    FileRef { gfid: Gfid::of_inode(inode), pool: POOL }
}

fn connect(fake: &Fake, change: impl FnOnce(&mut ClientConfig)) -> Client {
    let mut config = ClientConfig::new(fake.monitor(), "test");
    config.workers = 2;
    config.timeout = Duration::from_secs(20);
    change(&mut config);
    Client::connect(config).expect("the fake monitor answers")
}

fn run<T, F, Fut>(client: &Client, operation: F) -> Result<T, ClientError>
where
    T: Send + 'static,
    F: FnOnce(LocalIo) -> Fut + Send + 'static,
    Fut: Future<Output = Result<T, ClientError>> + 'static,
{
    client.block_on(client.run_on(0, operation))
}

/// Left behind for a write.
struct Left;

impl Behind for Left {
    fn lost(&self) {}
}

/// A file as the test knows it.
struct Model {
    file: FileRef,
    bytes: Vec<u8>,
    /// Where the last write ended.
    next: u64,
    rng: fastrand::Rng,
}

impl Model {
    fn new(inode: u64, seed: u64) -> Self {
        Self { file: file(inode), bytes: Vec::new(), next: 0, rng: fastrand::Rng::with_seed(seed) }
    }

    fn range(&mut self, max: u64) -> (u64, u64) {
        let unit = [1, 512, 1024][self.rng.usize(..3)];
        let (a, b) = (self.rng.u64(..=max / unit) * unit, self.rng.u64(..=max / unit) * unit);
        (a.min(b), a.max(b))
    }

    /// A random operation, on the cluster and on the model.
    fn step(&mut self, client: &Client) {
        let (file, old) = (self.file, self.bytes.len() as u64);
        match self.rng.u32(..13) {
            0..=4 => {
                let (start, end) = self.range(SIZE_MAX);
                self.write(client, start, end);
            }
            // Those that go on where the last one ended come in runs, at the end of the file or
            // before it.
            10..=12 => {
                for _ in 0..self.rng.usize(1..6) {
                    let length = self.rng.u64(1..700);
                    let start = if self.next + length <= SIZE_MAX { self.next } else { 0 };
                    self.write(client, start, start + length);
                }
            }
            5 => {
                let (start, end) =
                    if self.rng.bool() { self.range(old) } else { self.before_next() };
                let hint = WriterHint { zero_from: old, size_after: old, grant: None };
                self.bytes[start as usize..end as usize].fill(0);
                run(client, move |io| async move { io.punch(file, start..end, hint).await })
                    .expect("punched");
            }
            6 => {
                let new =
                    if self.rng.bool() { self.rng.u64(..SIZE_MAX) } else { self.before_next().0 };
                self.settle(client);
                self.bytes.resize(new as usize, 0);
                run(client, move |io| async move { io.truncate(file, new, old).await })
                    .expect("truncated");
            }
            _ => {
                let (start, end) = self.range(SIZE_MAX);
                self.check_range(client, start, end);
            }
        }
    }

    /// A range that the last write may lie in.
    fn before_next(&mut self) -> (u64, u64) {
        let end = self.next.min(self.bytes.len() as u64);
        (end.saturating_sub(self.rng.u64(..4000)), end)
    }

    fn write(&mut self, client: &Client, start: u64, end: u64) {
        if start == end {
            return;
        }
        let (file, old) = (self.file, self.bytes.len() as u64);
        let data: Vec<u8> = (start..end).map(|_| self.rng.u8(..)).collect();
        let zero_from = if self.rng.bool() { old } else { u64::MAX };
        // Now and then what the last write left may not count.
        let grant = (self.rng.u32(..8) > 0).then_some(self.rng.u64(..20) / 19);
        let hint = WriterHint { zero_from, size_after: old.max(end), grant };
        self.bytes.resize(self.bytes.len().max(end as usize), 0);
        self.bytes[start as usize..end as usize].copy_from_slice(&data);
        self.next = end;
        // Every other one is not waited for, and must be there all the same.
        let behind = self.rng.bool().then(|| Arc::new(Left) as Arc<dyn Behind>);
        let ending = Ending { sync: self.rng.bool(), behind, guard: None, frees: false };
        run(client, move |io| async move {
            io.write_ending(file, start, Bytes::from(data), hint, ending).await
        })
        .expect("written");
    }

    fn check_range(&self, client: &Client, start: u64, end: u64) {
        let file = self.file;
        let got =
            run(
                client,
                move |io| async move { io.read(file, start, (end - start) as usize).await },
            )
            .expect("read");
        let byte = |at: u64| self.bytes.get(at as usize).copied().unwrap_or(0);
        let wrong = (start..end).zip(&got[..]).find(|(at, got)| byte(*at) != **got);
        assert_eq!(wrong, None, "bytes {start}..{end}");
        assert_eq!(got.len() as u64, end - start);
    }

    fn check(&self, client: &Client) {
        self.check_range(client, 0, SIZE_MAX + 5000);
        let (file, size) = (self.file, self.bytes.len() as u64);
        let found =
            run(client, move |io| async move { io.extents(file, 0..size).await }).expect("extents");
        let holes = found.windows(2).all(|pair| pair[0].end < pair[1].start);
        assert!(holes, "extents are in order and apart");
        for (at, byte) in self.bytes.iter().enumerate().filter(|(_, byte)| **byte != 0) {
            assert!(
                found.iter().any(|part| part.contains(&(at as u64))),
                "byte {at} is {byte}: no hole"
            );
        }
    }

    /// Waits for the reports of what was written.
    fn settle(&self, client: &Client) {
        let file = self.file;
        run(client, move |io| async move { io.reported(file).await }).expect("reported");
    }

    fn sync(&self, client: &Client) {
        let file = self.file;
        run(client, move |io| async move { io.sync(file).await }).expect("synced");
    }
}

fn random_ops(k: u8, m: u8, policy: ReadPolicy, seed: u64) {
    let mut fake = Fake::start(profile(k, m), 5);
    let client = connect(&fake, |config| config.read_policy = policy);
    let mut models = [Model::new(7, seed), Model::new(8, seed + 1)];
    let steps = |models: &mut [Model; 2]| {
        (0..60).for_each(|n| models[n % 2].step(&client));
        models.iter().for_each(|model| model.check(&client));
        models.iter().for_each(|model| model.settle(&client));
    };
    steps(&mut models);
    fake.check_stripes();
    for down in [0, usize::from(k)] {
        if m == 0 {
            break;
        }
        models.iter().for_each(|model| model.sync(&client));
        fake.kill(down);
        models.iter().for_each(|model| model.check(&client));
        fake.mark_down(down);
        steps(&mut models);
        run(&client, |io| async move { io.sync_all().await }).expect("synced");
        fake.bring_back(down);
        steps(&mut models);
        fake.check_stripes();
    }
    client.close().expect("everything was stable");
}

#[test]
fn random_operations_on_two_plus_one() {
    random_ops(2, 1, ReadPolicy::Systematic, 1);
}

#[test]
fn random_operations_on_three_plus_two_round_robin() {
    random_ops(3, 2, ReadPolicy::RoundRobin, 2);
}

#[test]
fn random_operations_on_replicas() {
    random_ops(1, 2, ReadPolicy::Hash, 3);
}

#[test]
fn random_operations_by_latency() {
    random_ops(4, 2, ReadPolicy::Fastest, 4);
}

/// A write that is not waited for leaves by itself; what is left behind for it is dropped when the
/// shards have it, or with the session.
#[test]
fn what_is_not_waited_for_ends_by_itself() {
    let mut fake = Fake::start(profile(2, 1), 4);
    let client = connect(&fake, |config| config.timeout = Duration::from_millis(600));
    let write = |value: u8| {
        let behind = Arc::new(Left);
        let ending = Ending {
            sync: false,
            behind: Some(Arc::clone(&behind) as Arc<dyn Behind>),
            guard: None,
            ..Ending::default()
        };
        let (data, hint) = (
            Bytes::from(vec![value; 4096]),
            WriterHint { zero_from: 0, size_after: 4096, grant: None },
        );
        run(
            &client,
            move |io| async move { io.write_ending(file(1), 0, data, hint, ending).await },
        )
        .expect("sent");
        behind
    };
    let is_reported = |behind: &Arc<Left>| Arc::strong_count(behind) == 1;
    let first = write(1);
    let end = Instant::now() + Duration::from_secs(20);
    while !is_reported(&first) {
        assert!(Instant::now() < end, "nobody asks, and it does not leave");
        std::thread::sleep(Duration::from_millis(1));
    }
    fake.kill(1);
    let second = write(2);
    let reported = run(&client, |io| async move { io.reported(file(1)).await });
    assert!(matches!(reported, Err(ClientError::TimedOut(_))), "{reported:?}");
    assert!(!is_reported(&second), "a shard that must have it is away");
    let read = run(&client, |io| async move { io.read(file(1), 0, 4096).await }).expect("read");
    assert!(read.iter().all(|byte| *byte == 2));
    fake.mark_down(1);
    run(&client, |io| async move { io.reported(file(1)).await })
        .expect("reported in the new epoch");
    assert!(is_reported(&second));
    fake.kill(0);
    let third = write(3);
    drop(client);
    assert!(is_reported(&third), "nothing is left of it");
}

/// Many tasks write parts of the same stripes at once: no read-modify-write may lose another's
/// bytes.
#[test]
fn writers_of_one_stripe_do_not_lose_each_others_bytes() {
    let mut fake = Fake::start(profile(3, 1), 4);
    let client = connect(&fake, |_| {});
    for round in 0..6u8 {
        if round == 3 {
            fake.kill(1);
            fake.mark_down(1);
        }
        let writes: Vec<_> = (0..200u64)
            .map(|part| {
                let (at, value) = (part * 97, (part as u8).wrapping_add(round * 50));
                let data = Bytes::from(vec![value; 97]);
                let hint = WriterHint { zero_from: u64::MAX, size_after: 200 * 97, grant: Some(1) };
                client.run_on((part % 2) as usize, move |io| async move {
                    io.write(file(3), at, data, hint).await
                })
            })
            .collect();
        writes.into_iter().for_each(|write| client.block_on(write).expect("written"));
        let got =
            run(&client, |io| async move { io.read(file(3), 0, 200 * 97).await }).expect("read");
        for (at, byte) in got.iter().enumerate() {
            assert_eq!(
                *byte,
                ((at / 97) as u8).wrapping_add(round * 50),
                "byte {at} in round {round}"
            );
        }
    }
    client.close().expect("everything was stable");
}

/// What is known of a stripe from the write before counts under one grant of the write lease.
#[test]
fn a_writer_that_goes_on_finds_what_others_wrote_meanwhile() {
    let fake = Fake::start(profile(2, 1), 4);
    let (first, second) = (connect(&fake, |_| {}), connect(&fake, |_| {}));
    let write =
        |client: &Client, grant: u64, range: std::ops::Range<u64>, zero_from: u64, value: u8| {
            let data = Bytes::from(vec![value; (range.end - range.start) as usize]);
            let hint =
                WriterHint { zero_from, size_after: range.end.max(zero_from), grant: Some(grant) };
            run(client, move |io| async move { io.write(file(1), range.start, data, hint).await })
                .expect("written");
        };
    let reads = |fake: &Fake| (0..3).map(|shard| fake.reads(shard)).sum::<u64>();
    write(&first, 1, 0..100, 0, 1);
    let before = reads(&fake);
    write(&first, 1, 100..200, 100, 2);
    assert_eq!(reads(&fake), before, "the stripe is known from the write before");
    write(&second, 2, 50..150, 200, 3);
    write(&first, 3, 200..300, 200, 4);
    let got = run(&first, |io| async move { io.read(file(1), 0, 300).await }).expect("read");
    let want = [(0..50, 1), (50..150, 3), (150..200, 2), (200..300, 4)];
    for (range, value) in want {
        assert!(got[range.clone()].iter().all(|byte| *byte == value), "{range:?}");
    }
    fake.check_stripes();
}

#[test]
fn a_write_waits_for_the_new_epoch_and_a_read_does_not() {
    let mut fake = Fake::start(profile(2, 1), 4);
    let client = connect(&fake, |_| {});
    let hint = WriterHint { zero_from: 0, size_after: 8192, grant: None };
    let data = Bytes::from(vec![5; 8192]);
    run(&client, move |io| async move { io.write(file(1), 0, data, hint).await }).expect("written");
    fake.kill(1);
    let read = || run(&client, |io| async move { io.read(file(1), 0, 8192).await }).expect("read");
    assert!(read().iter().all(|byte| *byte == 5));
    let data = Bytes::from(vec![6; 8192]);
    let write = client.run_on(0, move |io| async move { io.write(file(1), 0, data, hint).await });
    assert!(
        read().iter().all(|byte| *byte == 6),
        "a read sees the write before it, reported or not"
    );
    fake.mark_down(1);
    client.block_on(write).expect("written in the new epoch");
    assert!(read().iter().all(|byte| *byte == 6));
}

#[test]
fn an_operation_without_enough_shards_fails_in_time() {
    let mut fake = Fake::start(profile(2, 1), 4);
    let client = connect(&fake, |config| config.timeout = Duration::from_millis(600));
    let hint = WriterHint { zero_from: 0, size_after: 1024, grant: None };
    let write = || {
        let data = Bytes::from(vec![5; 1024]);
        run(&client, move |io| async move { io.write(file(1), 0, data, hint).await })
    };
    write().expect("written");
    fake.kill(0);
    fake.kill(1);
    let failed = run(&client, |io| async move { io.read(file(1), 0, 1024).await });
    assert!(matches!(failed, Err(ClientError::TimedOut(_))), "{failed:?}");
    assert_eq!(write().map_err(|error| error.errno()), Err(5));
}

#[test]
fn busy_late_and_corrupt_shards_are_overcome() {
    let fake = Fake::start(profile(2, 1), 4);
    let client = connect(&fake, |config| config.hedge_delay = Duration::from_millis(10));
    let mut model = Model::new(5, 9);
    fake.faults(2, Faults { busy_every: 3, ..Faults::default() });
    (0..40).for_each(|_| model.step(&client));
    fake.faults(2, Faults::default());
    fake.faults(0, Faults { corrupt: true, ..Faults::default() });
    (0..20).for_each(|_| model.step(&client));
    fake.faults(0, Faults { delay: Duration::from_secs(60), ..Faults::default() });
    model.check_range(&client, 0, SIZE_MAX);
    assert!(fake.reads(2) > 0, "parity was read");
    fake.faults(0, Faults::default());
    model.check(&client);
    fake.check_stripes();
    fake.faults(0, Faults { corrupt: true, ..Faults::default() });
    fake.faults(1, Faults { corrupt: true, ..Faults::default() });
    let failed = run(&client, |io| async move { io.read(file(5), 0, 4096).await });
    assert!(matches!(failed, Err(ClientError::Unreadable(_))), "{failed:?}");
}

/// Of an object with one data shard.
const OBJECT_BYTES: usize = 4096;

/// Of ten reads of so many bytes, the most reads of objects that the only shard had to answer at
/// once.
fn reads_at_once(bytes: usize, change: impl FnOnce(&mut ClientConfig)) -> usize {
    let fake = Fake::start(profile(1, 0), 1);
    let client = connect(&fake, |config| {
        config.workers = 1;
        change(config);
    });
    fake.faults(0, Faults { delay: Duration::from_millis(50), ..Faults::default() });
    let read = |_| client.run_on(0, move |io| async move { io.read(file(1), 0, bytes).await });
    let reads: Vec<_> = (0..10).map(read).collect();
    reads
        .into_iter()
        .for_each(|read| assert_eq!(client.block_on(read).expect("read").len(), bytes));
    fake.reading_max(0)
}

#[test]
fn no_more_operations_are_under_way_than_may_be() {
    assert_eq!(reads_at_once(OBJECT_BYTES, |config| config.objecter_inflight_ops = 2), 2);
    let by_bytes = reads_at_once(512 * OBJECT_BYTES, |config| {
        config.objecter_inflight_ops = 100_000;
        config.objecter_inflight_op_bytes = 4 << 20;
    });
    assert!(
        (2..=(4 << 20) / OBJECT_BYTES).contains(&by_bytes),
        "{by_bytes} reads of an object at once"
    );
    assert!(reads_at_once(OBJECT_BYTES, |_| {}) > 2, "a test in which nothing waits shows nothing");
}

#[test]
fn the_bound_on_operations_can_change_while_they_wait() {
    let fake = Fake::start(profile(1, 0), 1);
    let client = connect(&fake, |config| {
        config.workers = 1;
        config.objecter_inflight_ops = 2;
    });
    fake.faults(0, Faults { delay: Duration::from_millis(50), ..Faults::default() });
    let reads = |count: usize| -> Vec<_> {
        (0..count)
            .map(|_| {
                client.run_on(0, move |io| async move { io.read(file(1), 0, OBJECT_BYTES).await })
            })
            .collect()
    };
    let few = reads(4);
    few.into_iter().for_each(|read| drop(client.block_on(read).expect("read")));
    assert_eq!(fake.reading_max(0), 2);
    client.set_live("objecter_inflight_ops", "5").expect("in range");
    let more = reads(15);
    more.into_iter().for_each(|read| drop(client.block_on(read).expect("read")));
    assert_eq!(fake.reading_max(0), 5);
    for (key, value) in [
        ("objecter_inflight_ops", "0"),
        ("objecter_inflight_ops", "many"),
        ("objecter_inflight_op_bytes", "4194303"),
        ("objecter_inflight", "5"),
    ] {
        let refused = client.set_live(key, value);
        assert!(
            matches!(&refused, Err(ClientError::Config(why)) if why.contains(key)),
            "{key} = {value}: {refused:?}"
        );
    }
}

/// One whose answers never come in time is never measured; it must not be taken for the fastest for
/// that.
#[test]
fn a_shard_that_hedged_reads_gave_up_is_not_asked_first_again() {
    let fake = Fake::start(profile(2, 1), 4);
    let client = connect(&fake, |config| {
        config.hedge_delay = Duration::from_millis(300);
        config.read_policy = ReadPolicy::Fastest;
    });
    let mut model = Model::new(5, 9);
    (0..10).for_each(|_| model.step(&client));
    let slow = (0..3).find(|shard| fake.reads(*shard) > 0).expect("somebody was asked");
    fake.faults(slow, Faults { delay: Duration::from_secs(60), ..Faults::default() });
    model.check_range(&client, 0, SIZE_MAX);
    model.check_range(&client, 0, SIZE_MAX);
    let before = fake.reads(slow);
    (0..50).for_each(|_| model.check_range(&client, 0, 4096));
    let asked = fake.reads(slow) - before;
    assert!(asked < 25, "{asked} of 50 reads asked the slow shard");
    fake.faults(slow, Faults::default());
}

#[test]
fn a_hedge_begins_once_enough_shards_have_answered() {
    let fake = Fake::start(profile(2, 1), 4);
    let client = connect(&fake, |config| config.hedge_delay = Duration::from_millis(10));
    let mut model = Model::new(5, 9);
    (0..10).for_each(|_| model.step(&client));
    // Both are late when the delay is over, so that no two others are left; one answers soon after.
    fake.faults(0, Faults { delay: Duration::from_secs(60), ..Faults::default() });
    fake.faults(1, Faults { delay: Duration::from_millis(100), ..Faults::default() });
    let begin = std::time::Instant::now();
    model.check_range(&client, 0, SIZE_MAX);
    let took = begin.elapsed();
    assert!(
        took < Duration::from_secs(10),
        "the read waited {took:?}, as long as for a dead shard"
    );
    [0, 1].into_iter().for_each(|shard| fake.faults(shard, Faults::default()));
}

#[test]
fn a_full_disk_is_an_error_and_room_is_noticed() {
    let fake = Fake::start(profile(2, 1), 4);
    let client = connect(&fake, |_| {});
    let hint = WriterHint { zero_from: 0, size_after: 4096, grant: None };
    let write = || {
        let data = Bytes::from(vec![5; 4096]);
        run(&client, move |io| async move { io.write(file(1), 0, data, hint).await })
    };
    write().expect("written");
    for free in [0, 100] {
        fake.faults(1, Faults { free: Some(free), ..Faults::default() });
        run(&client, |io| async move {
            io.punch(
                file(1),
                0..1024,
                WriterHint { zero_from: 4096, size_after: 4096, grant: None },
            )
            .await
        })
        .expect("punching needs no room");
        assert_eq!(write().map_err(|error| error.errno()), Err(28));
        let read =
            run(&client, |io| async move { io.read(file(1), 1024, 3072).await }).expect("readable");
        assert!(read.iter().all(|byte| *byte == 5));
        fake.faults(1, Faults::default());
        std::thread::sleep(Duration::from_millis(400));
        write().expect("there is room again");
    }
}

#[test]
fn more_than_may_be_kept_is_made_stable_meanwhile() {
    let fake = Fake::start(Profile::new(2, 1, 512, 1 << 20).expect("a profile"), 4);
    let client = connect(&fake, |config| config.client_unstable_bytes_max = 4 << 20);
    for part in 0..24u64 {
        let (at, data) = (part << 20, Bytes::from(vec![part as u8; 1 << 20]));
        let hint = WriterHint { zero_from: at, size_after: at + (1 << 20), grant: None };
        run(&client, move |io| async move { io.write(file(2), at, data, hint).await })
            .expect("written");
    }
    let got = run(&client, |io| async move { io.read(file(2), 0, 24 << 20).await }).expect("read");
    assert!(got.iter().enumerate().all(|(at, byte)| *byte == (at >> 20) as u8));
    let size = run(&client, |io| async move { io.probe_size(file(2)).await }).expect("probed");
    assert_eq!(size, 24 << 20);
    let data =
        run(&client, |io| async move { io.allocated(file(2), 24 << 20).await }).expect("measured");
    assert_eq!(data, 24 << 20);
    run(&client, |io| async move { io.delete(file(2), 3 << 20, true).await }).expect("deleted");
    let size = run(&client, |io| async move { io.probe_size(file(2)).await }).expect("probed");
    assert_eq!(size, 0, "nothing is left");
}

/// Where the last byte of the largest file of a fake cluster lies.
const LAST: u64 = (1 << 32) * (1 << 20) - 1;

#[test]
fn work_on_the_largest_file_follows_what_it_stores() {
    let fake = Fake::start(Profile::new(2, 1, 512, 1 << 20).expect("a profile"), 4);
    let client = connect(&fake, |_| {});
    let end = LAST + 1;
    // Five objects of one PG and some of others, so that lists come in parts.
    let places: Vec<u64> = [0, 4, 8, 12, 16, 4001, 70_000, 3 << 30].map(|index| index << 20).into();
    let write = |at: u64| {
        let hint = WriterHint { zero_from: u64::MAX, size_after: end, grant: None };
        let data = Bytes::from(vec![7; 1024]);
        run(&client, move |io| async move { io.write(file(2), at, data, hint).await })
            .expect("written");
    };
    let seek = |from: u64, sought| {
        run(&client, move |io| async move { io.seek(file(2), from..end, sought).await })
    };
    let extents = || {
        run(&client, move |io| async move { io.extents(file(2), 0..end).await }).expect("extents")
    };
    let stored = |places: &[u64]| places.iter().map(|at| *at..*at + 1024).collect::<Vec<_>>();
    places.iter().for_each(|at| write(*at));
    write(end - 1024);
    assert_eq!(extents(), stored(&[&places[..], &[end - 1024]].concat()));
    assert_eq!(seek((17 << 20) + 1, Sought::Data).expect("found"), Some(4001 << 20));
    assert_eq!(seek(((3 << 30) << 20) + 1024, Sought::Data).expect("found"), Some(end - 1024));
    assert_eq!(seek(4001 << 20, Sought::Hole).expect("found"), Some((4001 << 20) + 1024));
    assert_eq!(seek(end - 1024, Sought::Hole).expect("found"), None);
    let allocated =
        run(&client, move |io| async move { io.allocated(file(2), end).await }).expect("measured");
    // A fragment here has no holes.
    assert_eq!(allocated, 8 * 1024 + (1 << 20));
    let probed = || run(&client, |io| async move { io.probe_size(file(2)).await }).expect("probed");
    assert_eq!(probed(), end);

    let hint = WriterHint { zero_from: u64::MAX, size_after: end, grant: None };
    run(&client, move |io| async move { io.punch(file(2), 4001 << 20..end, hint).await })
        .expect("punched");
    assert_eq!(extents(), stored(&places[..5]));
    run(&client, move |io| async move { io.truncate(file(2), 8 << 20, end).await }).expect("cut");
    assert_eq!(extents(), stored(&places[..2]));
    assert_eq!(probed(), 8 << 20);
    write(3 << 50);
    run(&client, |io| async move { io.delete(file(2), 1, true).await }).expect("deleted");
    assert_eq!((extents(), probed()), (vec![], 0));
}

#[test]
fn a_file_cannot_have_more_objects_than_have_numbers() {
    let fake = Fake::start(Profile::new(2, 1, 512, 1 << 20).expect("a profile"), 4);
    let client = connect(&fake, |_| {});
    let hint = WriterHint { zero_from: 0, size_after: 0, grant: None };
    for beyond in [LAST + 1, 1 << 58, i64::MAX as u64, u64::MAX] {
        let write =
            run(
                &client,
                move |io| async move { io.write(file(1), beyond, vec![1].into(), hint).await },
            );
        assert!(matches!(write, Err(ClientError::TooLarge)), "{write:?}");
        let cut = run(&client, move |io| async move {
            io.truncate(file(1), beyond.max(LAST + 2), u64::MAX).await
        });
        assert!(matches!(cut, Err(ClientError::TooLarge)), "{cut:?}");
    }
    // An old store may name such a size.
    run(&client, |io| async move { io.delete(file(1), u64::MAX, true).await }).expect("deleted");
    run(&client, move |io| async move { io.punch(file(1), 0..u64::MAX, hint).await })
        .expect("nothing to punch");
}

#[test]
fn a_fenced_session_says_so_and_a_new_one_works() {
    let fake = Fake::start(profile(2, 1), 4);
    let client = connect(&fake, |_| {});
    let (tell, told) = mpsc::channel();
    client.on_event(move |event| {
        // The test may have ended.
        let _ = tell.send(event);
    });
    let hint = WriterHint { zero_from: 0, size_after: 1024, grant: None };
    let write = || {
        let data = Bytes::from(vec![5; 1024]);
        run(&client, move |io| async move { io.write(file(1), 0, data, hint).await })
    };
    write().expect("written");
    let old = client.session_id();
    fake.faults(0, Faults { fenced: true, ..Faults::default() });
    assert!(matches!(write(), Err(ClientError::Fenced(_))));
    assert!(
        matches!(told.recv().expect("an event"), ClientEvent::Fenced(session) if session == old)
    );
    fake.faults(0, Faults::default());
    assert!(
        matches!(write(), Err(ClientError::Fenced(_))),
        "nothing works before the layer above knows"
    );
    client.block_on(client.reopen()).expect("a new session");
    assert!(client.session_id() > old);
    let lost = run(&client, |io| async move { io.sync(file(1)).await });
    assert!(matches!(lost, Err(ClientError::Lost)), "unsynced writes of the old session: {lost:?}");
    write().expect("written");
    run(&client, |io| async move { io.sync(file(1)).await }).expect("synced");
}

/// A read, and a write that reads the rest of its stripe, wait while their session dies and the
/// next one begins.
#[test]
fn what_waited_for_a_dead_session_ends_and_keeps_nobody_out() {
    let fake = Fake::start(profile(2, 1), 1);
    let client = connect(&fake, |_| {});
    let write = |inode: u64, offset: u64, length: usize| {
        let hint = WriterHint { zero_from: u64::MAX, size_after: 1024, grant: None };
        client.run_on(0, move |io| async move {
            io.write(file(inode), offset, vec![5; length].into(), hint).await
        })
    };
    client.block_on(write(1, 0, 1024)).expect("written");
    let busy = |index, fenced| {
        fake.faults(index, Faults { busy_reads: true, fenced, ..Faults::default() })
    };
    (0..3).for_each(|index| busy(index, false));
    let in_session = client.session_id();
    let before = (0..3).map(|index| fake.reads(index)).sum::<u64>();
    std::thread::scope(|scope| {
        let read = client.run_on(0, |io| async move { io.read(file(1), 0, 10).await });
        let read = scope.spawn(|| client.block_on(read));
        let partial = write(1, 100, 10);
        let partial = scope.spawn(|| client.block_on(partial));
        let begin = Instant::now();
        while (0..3).map(|index| fake.reads(index)).sum::<u64>() < before + 6 {
            assert!(begin.elapsed() < Duration::from_secs(60), "nobody reads");
            std::thread::sleep(Duration::from_millis(1));
        }
        busy(2, true);
        assert!(matches!(client.block_on(write(2, 0, 1024)), Err(ClientError::Fenced(_))));
        fake.faults(2, Faults::default());
        client.block_on(client.reopen()).expect("a new session");
        let read = read.join().expect("no panic");
        assert!(
            matches!(read, Err(ClientError::Fenced(session)) if session == in_session),
            "{read:?}"
        );
        let partial = partial.join().expect("no panic");
        assert!(
            matches!(partial, Err(ClientError::Fenced(session)) if session == in_session),
            "{partial:?}"
        );
    });
    (0..3).for_each(|index| fake.faults(index, Faults::default()));
    client.block_on(write(1, 100, 10)).expect("nobody holds the stripe");
}
