//! What a runtime tells of itself while it works.

use std::io::{Read, Write};
use std::net::TcpStream;
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
        handle
            .stats()
            .workers
            .iter()
            .all(|worker| worker.poll_classes.iter().sum::<u64>() == worker.polls)
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
    let find = |name: &str| {
        stats.iter().find(|lock| lock.name == name).unwrap_or_else(|| panic!("no {name}"))
    };
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

/// All of a page, head included.
fn get(server: &http::HttpServer, path: &str) -> String {
    let mut stream = TcpStream::connect(server.addr()).expect("it listens");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: test\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    answer
}

#[test]
fn a_scrape_tells_of_every_runtime_under_its_own_name() {
    let (one, two) =
        (runtime(true), Runtime::start(RuntimeConfig::new("other", 1)).expect("starts"));
    load(&one, |done| done >= 20);
    let handles = vec![one.handle(), two.handle()];
    let server = http::HttpServer::metrics(([127, 0, 0, 1], 0).into(), handles, String::new)
        .expect("a port");
    let answer = get(&server, "/metrics");
    let (head, page) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(
        head.starts_with("HTTP/1.1 200 OK") && head.contains("text/plain; version=0.0.4"),
        "{head}"
    );
    let mut named = std::collections::HashMap::new();
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            let mut words = rest.split(' ');
            let (what, name) = (words.next().expect("HELP or TYPE"), words.next().expect("a name"));
            named.entry(name).or_insert_with(Vec::new).push(what);
        } else {
            let name = line.split('{').next().expect("never empty");
            let of_histogram =
                ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
            let heads = named.get(name).or_else(|| named.get(of_histogram?));
            assert_eq!(heads.map(Vec::as_slice), Some(&["HELP", "TYPE"][..]), "{line}");
        }
    }
    for part in [
        "messages_in_total{role=\"test\",worker=\"1\"}",
        "role=\"other\",worker=\"0\"",
        "lock=\"connection\"",
    ] {
        assert!(page.contains(part), "`{part}` is not in:\n{page}");
    }
    assert!(get(&server, "/").starts_with("HTTP/1.1 404"));
}

#[test]
fn waking_a_worker_is_no_readiness_event() {
    let runtime = runtime(true);
    let handle = runtime.handle();
    eventually("the workers to be woken", || {
        for worker in 0..2 {
            block_on(handle.run_on(worker, |_| async {})).expect("runs");
        }
        let total = handle.stats().total();
        total.wakeups >= 10 && total.polls >= 10
    });
    let total = handle.stats().total();
    assert_eq!((total.events, total.events_max), (0, 0), "without a socket: {total:?}");
}

#[test]
fn a_companion_is_reported_as_long_as_it_exists() {
    let runtime = runtime(true);
    let handle = runtime.handle();
    let other = Runtime::start(RuntimeConfig::new("test-other", 1)).expect("starts");
    handle.add_companion(&other.handle());
    let lock = ContentionMutex::new(other.handle().locks(), "of the other", ());
    let names = || handle.reports().into_iter().map(|report| report.name).collect::<Vec<_>>();
    assert_eq!(names(), ["test", "test-other"]);
    let reports = handle.reports();
    assert_eq!((reports[0].workers.len(), reports[1].workers.len()), (2, 1));
    assert!(
        reports[1].locks.iter().any(|lock| lock.name == "of the other"),
        "{:?}",
        reports[1].locks
    );
    let server =
        http::HttpServer::metrics(([127, 0, 0, 1], 0).into(), vec![handle.clone()], || {
            "more 1\n".into()
        })
        .expect("a port");
    let page = get(&server, "/metrics");
    assert!(page.contains("\r\n\r\nmore 1\n# HELP "), "{page}");
    assert!(page.contains("{role=\"test-other\",worker=\"0\"}"), "{page}");
    assert!(page.contains("{role=\"test-other\",lock=\"of the other\"}"), "{page}");
    drop(lock);
    other.shutdown();
    eventually("the companion to be gone", || names() == ["test"]);
}
