//! What a runtime tells of itself while it works.

use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use messenger::sync::{ContentionMutex, block_on};
use messenger::*;
use protocol::ClusterId;

/// Long enough for a loaded machine; nothing waits for it to pass.
const LONG: Duration = Duration::from_secs(60);

struct Echo;

impl Service for Echo {
    fn on_message(&self, _: &Worker, connection: &Connection, message: Message) {
        connection.reply(&message, 2, Bytes::new(), Bytes::new());
    }
}

fn runtime(telemetry: bool) -> Runtime {
    let config = RuntimeConfig { telemetry, ..RuntimeConfig::new("test", 2) };
    Runtime::start(config).expect("starts")
}

/// Asks until the answer is yes: a reading is not of one moment while workers run.
fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LONG, "waited in vain for: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Makes calls one after the other until `enough` says so.
fn load(runtime: &Runtime, mut enough: impl FnMut(u64) -> bool) {
    let handle = runtime.handle();
    let listen = ListenConfig::new(([127, 0, 0, 1], 0).into(), ClusterId::new(7), "server");
    let listener = handle.listen(listen, |_| Rc::new(Echo)).expect("listens");
    let to = ConnectConfig::new(listener.local_addr(), ClusterId::new(7), "client");
    let connection = handle.connect(0, to, |_| Rc::new(NoService));
    for done in 1.. {
        let request = Message::new(TrafficClass::Client, 1, Bytes::new(), Bytes::new());
        block_on(connection.call(request, LONG)).expect("answered");
        if enough(done) {
            return;
        }
    }
}

#[test]
fn workers_tell_how_they_spend_their_time() {
    let runtime = runtime(true);
    let handle = runtime.handle();
    let began = Instant::now();
    load(&runtime, |done| {
        assert!(began.elapsed() < LONG, "the CPU clock is never read");
        done >= 200 && handle.stats().total().cpu_ns > 0
    });
    let report = handle.stats();
    assert!(report.enabled && report.name == "test" && report.workers.len() == 2);
    for worker in &report.workers {
        assert!(worker.busy_ns <= worker.elapsed_ns, "{worker:?}");
    }
    eventually("every poll to be in a class", || {
        handle.stats().workers.iter().all(|worker| worker.poll_classes.iter().sum::<u64>() == worker.polls)
    });
    let total = report.total();
    assert!(total.busy_ns > 0 && total.events_max > 0 && total.messages_in >= 400, "{total:?}");
    let later = handle.stats().since(&report);
    assert!(later.total().messages_in < total.messages_in, "a difference is not the sum");
}

#[test]
fn a_worker_that_waits_is_idle_and_one_that_computes_is_busy() {
    let runtime = runtime(true);
    let handle = runtime.handle();
    let before = handle.stats();
    let spin = handle.run_on(1, |_| async {
        let until = Instant::now() + Duration::from_millis(100);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
    });
    block_on(spin).expect("runs");
    let spent = handle.stats().since(&before);
    assert!(spent.workers[1].busy_ns >= 100_000_000, "{:?}", spent.workers[1]);
    eventually("an idle worker to stand still", || {
        let before = handle.stats();
        std::thread::sleep(Duration::from_millis(1));
        let spent = handle.stats().since(&before);
        spent.workers[0].busy_ns == 0 && spent.workers[0].elapsed_ns > 0
    });
}

#[test]
fn locks_of_a_runtime_are_listed_with_those_of_its_users() {
    let runtime = runtime(true);
    let handle = runtime.handle();
    let mine = ContentionMutex::new(handle.locks(), "mine", ());
    drop(mine.lock());
    load(&runtime, |done| done >= 20);
    let stats = handle.stats().locks;
    let find = |name: &str| stats.iter().find(|lock| lock.name == name).unwrap_or_else(|| panic!("no {name}"));
    assert_eq!((find("mine").instances, find("mine").acquisitions), (1, 1));
    assert!(find("connection").acquisitions > 40);
    assert!(find("buffer pool").instances >= 1);
}

#[test]
fn what_is_off_counts_messages_only() {
    let runtime = runtime(false);
    load(&runtime, |done| done >= 50);
    let report = runtime.handle().stats();
    let total = report.total();
    assert!(!report.enabled && report.locks.is_empty());
    assert_eq!((total.busy_ns, total.cpu_ns), (0, 0));
    assert!(total.messages_in >= 100);
}
