//! All six mappings over one connection code: order, progress, live switches, connections that come
//! and go, ends.

#[path = "common/basics.rs"]
mod basics;

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use basics::*;
use bytes::Bytes;
use messenger::*;

/// One-way; its front is a number, recorded per connection.
const NOTE: u16 = 20;
/// The handler panics.
const PANIC: u16 = 22;
/// Answered with the front and the data of the request, by a task of another worker.
const ELSEWHERE: u16 = 21;

/// Records, per connection, what was dispatched, in which order, and by which workers.
#[derive(Default)]
struct Book {
    notes: Mutex<HashMap<u64, Vec<u64>>>,
    workers: Mutex<HashMap<u64, Vec<usize>>>,
    /// Connections in a handler now.
    inside: Mutex<HashMap<u64, usize>>,
    overlaps: AtomicU64,
    opened: AtomicU64,
    closed: AtomicU64,
}

impl Book {
    fn noted(&self) -> usize {
        self.notes.lock().expect("no panic").values().map(Vec::len).sum()
    }

    /// Every connection's notes are 0, 1, 2 ...
    fn check_order(&self) {
        for (connection, notes) in self.notes.lock().expect("no panic").iter() {
            assert!(
                notes.iter().copied().eq(0..notes.len() as u64),
                "connection {connection} is out of order"
            );
        }
        assert_eq!(
            self.overlaps.load(SeqCst),
            0,
            "two workers were in the handler of one connection"
        );
    }
}

struct Recorder(Arc<Book>);

impl Service for Recorder {
    fn on_message(&self, worker: &Worker, connection: &Connection, message: Message) {
        let id = connection.id();
        if self.0.inside.lock().expect("no panic").insert(id, worker.index()).is_some() {
            self.0.overlaps.fetch_add(1, SeqCst);
        }
        match message.kind {
            NOTE => {
                self.0
                    .notes
                    .lock()
                    .expect("no panic")
                    .entry(id)
                    .or_default()
                    .push(number(&message));
                let mut workers = self.0.workers.lock().expect("no panic");
                let seen = workers.entry(id).or_default();
                if !seen.contains(&worker.index()) {
                    seen.push(worker.index());
                }
            }
            ELSEWHERE => {
                let (connection, to) =
                    (connection.clone(), (worker.index() + 1) % worker.handle().workers());
                worker.handle().spawn_on(to, move |_| async move {
                    connection.reply(
                        &message,
                        ELSEWHERE,
                        message.front.clone(),
                        message.data.clone(),
                    );
                });
            }
            PANIC => {
                self.0.inside.lock().expect("no panic").remove(&id);
                panic!("expected by the test");
            }
            _ => connection.reply(&message, ECHO, message.front.clone(), message.data.clone()),
        }
        self.0.inside.lock().expect("no panic").remove(&id);
    }

    fn on_open(&self, _: &Worker, _: &Connection, _: &PeerInfo) {
        self.0.opened.fetch_add(1, SeqCst);
    }

    fn on_close(&self, _: &Worker, _: &Connection, _: &CloseReason) {
        self.0.closed.fetch_add(1, SeqCst);
    }
}

/// A placement that decides every few milliseconds, so that much is decided in a short test.
fn placement(mapping: Mapping) -> PlacementConfig {
    PlacementConfig { interval: Duration::from_millis(3), ..PlacementConfig::new(mapping) }
}

fn serve(runtime: &Runtime, mapping: Mapping) -> (Listener, Arc<Book>) {
    let book = Arc::<Book>::default();
    let mut config =
        ListenConfig::new("127.0.0.1:0".parse().expect("an address"), CLUSTER, "server");
    config.local_sockets = false; // transport.rs has the other kind
    config.placement = placement(mapping);
    let for_services = Arc::clone(&book);
    let listener =
        runtime.handle().listen(config, move |_| Rc::new(Recorder(Arc::clone(&for_services))));
    (listener.expect("listens"), book)
}

fn dial(client: &Runtime, listener: &Listener, lane: u16) -> Connection {
    let to = ConnectConfig {
        lane,
        ..ConnectConfig::new(listener.local_addr(), CLUSTER, format!("client-{lane}"))
    };
    client
        .handle()
        .connect(usize::from(lane) % client.handle().workers(), to, |_| Rc::new(NoService))
}

/// Sends notes and calls over all connections, from workers of the client, and waits until all
/// calls are answered.
fn load(connections: &[Connection], from: u64, notes: u64) {
    for number in from..from + notes {
        connections.iter().for_each(|connection| connection.send(numbered(NOTE, number)));
        if number % 64 == 0 {
            let calls: Vec<_> =
                connections.iter().map(|c| c.call(numbered(ELSEWHERE, number), LONG)).collect();
            for call in calls {
                assert_eq!(self::number(&sync::block_on(call).expect("answered")), number);
            }
        }
    }
}

#[test]
fn every_mapping_keeps_the_order_of_each_connection() {
    for mapping in Mapping::ALL {
        let (server, client) = (runtime("server", 3), runtime("client", 2));
        let (listener, book) = serve(&server, mapping);
        let connections: Vec<_> = (0..5).map(|lane| dial(&client, &listener, lane)).collect();
        load(&connections, 0, 1500);
        wait_until("all notes", || book.noted() == 5 * 1500);
        book.check_order();
        let stats = listener.connections();
        assert_eq!(stats.len(), 5);
        for connection in &stats {
            let messages: u64 =
                connection.attachments.iter().map(|attachment| attachment.messages).sum();
            assert_eq!(messages, 1500 + 1500_u64.div_ceil(64), "{mapping}");
            assert!(connection.bytes() > 0 && connection.state == ConnState::Up);
            let workers = connection.workers.len();
            match mapping {
                Mapping::RoundRobin | Mapping::TrafficAware | Mapping::CoreAffine => {
                    assert_eq!(workers, 1, "{mapping}")
                }
                Mapping::Shared | Mapping::Handoff => assert_eq!(workers, 3, "{mapping}"),
                Mapping::Lcam => assert!((1..=3).contains(&workers), "{mapping}"),
            }
            if matches!(mapping, Mapping::RoundRobin | Mapping::CoreAffine) {
                assert_eq!(
                    (connection.lock_wait_ns(), connection.attachments.len()),
                    (0, 1),
                    "{mapping}"
                );
            }
            if mapping == Mapping::Handoff {
                assert_eq!(
                    connection.lock_wait_ns(),
                    0,
                    "no worker waits for another: {connection:?}"
                );
            }
        }
    }
}

#[test]
fn large_messages_go_through_every_mapping() {
    let (server, client) = (runtime("server", 3), runtime("client", 1));
    for mapping in Mapping::ALL {
        let (listener, _book) = serve(&server, mapping);
        let connections: Vec<_> = (0..2).map(|lane| dial(&client, &listener, lane)).collect();
        let calls: Vec<_> = [1usize, 4095, 70_000, 1 << 20, 5_000_001]
            .into_iter()
            .flat_map(|len| connections.iter().map(move |connection| (len, connection)))
            .map(|(len, connection)| {
                let data: Bytes = (0..len).map(|i| (i * 7 % 251) as u8).collect::<Vec<_>>().into();
                let message =
                    Message::new(TrafficClass::Client, ELSEWHERE, Bytes::new(), data.clone());
                (data, connection.call(message, LONG))
            })
            .collect();
        for (data, call) in calls {
            let reply = sync::block_on(call).expect("answered");
            assert!(reply.data == data, "{mapping}: {} bytes came back different", data.len());
        }
        connections.iter().for_each(Connection::close);
    }
}

/// Every switch from one mapping to another, while messages flow both ways.
#[test]
fn live_switches_lose_nothing_and_keep_the_order() {
    let (server, client) = (runtime("server", 3), runtime("client", 2));
    let (listener, book) = serve(&server, Mapping::RoundRobin);
    let connections: Vec<_> = (0..4).map(|lane| dial(&client, &listener, lane)).collect();
    load(&connections, 0, 1);
    let done = AtomicBool::new(false);
    let sent = std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut sent = 1;
            while !done.load(SeqCst) {
                load(&connections, sent, 64);
                sent += 64;
            }
            sent
        });
        for from in Mapping::ALL {
            for to in Mapping::ALL {
                listener.set_placement(placement(from)).expect("allowed");
                let noted = book.noted();
                wait_until("messages under a mapping", || book.noted() > noted + 50);
                listener.set_placement(placement(to)).expect("allowed");
                assert_eq!(listener.placement().mapping, to);
                let noted = book.noted();
                wait_until("messages after a switch", || book.noted() > noted + 50);
            }
        }
        done.store(true, SeqCst);
        sender.join().expect("no panic")
    });
    wait_until("all notes", || book.noted() == 4 * sent as usize);
    book.check_order();
    assert_eq!((book.opened.load(SeqCst), book.closed.load(SeqCst)), (4, 0));
    assert_eq!(server.handle().stats().total().reconnects, 0);
    let bad = PlacementConfig { lock_threshold: 2.0, ..PlacementConfig::default() };
    assert_eq!(listener.set_placement(bad), Err(MappingError::Threshold(2.0)));
    assert_eq!(
        listener.placement().mapping,
        Mapping::CoreAffine,
        "a refused setting changes nothing"
    );
}

/// The seats follow what was ordered, and those that left can come back.
#[test]
fn seats_come_and_go_with_the_mapping() {
    let (server, client) = (runtime("server", 4), runtime("client", 1));
    let (listener, _book) = serve(&server, Mapping::CoreAffine);
    let connection = dial(&client, &listener, 2);
    assert!(call(&connection, message(ECHO, b"")).is_ok());
    let seated = || {
        let stats = listener.connections();
        let mut seats: Vec<_> = stats[0]
            .attachments
            .iter()
            .filter(|attachment| attachment.seated)
            .map(|attachment| attachment.worker)
            .collect();
        seats.sort_unstable();
        seats
    };
    for _ in 0..3 {
        wait_until("one seat", || seated() == [2]);
        for mapping in [Mapping::Shared, Mapping::Handoff] {
            listener.set_placement(placement(mapping)).expect("allowed");
            wait_until("all seats", || seated() == [0, 1, 2, 3]);
        }
        listener.set_placement(placement(Mapping::RoundRobin)).expect("allowed");
        wait_until("the first in turn", || seated() == [0]);
        // an idle connection contends with nobody, so that as printed the algorithm gives it
        // everyone
        listener.set_placement(placement(Mapping::Lcam)).expect("allowed");
        wait_until("all seats", || seated() == [0, 1, 2, 3]);
        assert!(call(&connection, message(ECHO, b"")).is_ok());
        listener.set_placement(placement(Mapping::CoreAffine)).expect("allowed");
    }
    let stats = &listener.connections()[0];
    assert_eq!(
        (stats.name.as_str(), stats.lane, stats.peer.ip()),
        ("client-2", 2, listener.local_addr().ip())
    );
}

/// A connection that always has more to read stops no other, under any mapping, even with one
/// worker for both.
#[test]
fn a_heavy_connection_starves_no_light_one() {
    for (workers, mapping) in
        Mapping::ALL.into_iter().flat_map(|mapping| [(1, mapping), (2, mapping)])
    {
        let (server, client) = (runtime("server", workers), runtime("client", 2));
        let (listener, book) = serve(&server, mapping);
        let (heavy, light) = (dial(&client, &listener, 0), dial(&client, &listener, 1));
        let (done, answered) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let data = Bytes::from(vec![1; 20_000]);
                while !done.load(SeqCst) {
                    let calls: Vec<_> = (0..200)
                        .map(|_| {
                            heavy.call(
                                Message::new(
                                    TrafficClass::Client,
                                    ECHO,
                                    Bytes::new(),
                                    data.clone(),
                                ),
                                LONG,
                            )
                        })
                        .collect();
                    for call in calls {
                        sync::block_on(call).expect("answered");
                        answered.fetch_add(1, SeqCst);
                    }
                }
            });
            wait_until("the flood", || answered.load(SeqCst) > 0);
            for i in 0..50 {
                assert_eq!(
                    number(&call(&light, numbered(ECHO, i)).expect("answered")),
                    i,
                    "{mapping}"
                );
            }
            let before = answered.load(SeqCst);
            wait_until("the heavy connection goes on too", || answered.load(SeqCst) > before);
            done.store(true, SeqCst);
        });
        assert_eq!(book.overlaps.load(SeqCst), 0);
    }
}

#[test]
fn a_panic_closes_one_connection_under_every_mapping() {
    for mapping in Mapping::ALL {
        let (server, client) = (runtime("server", 2), runtime("client", 1));
        let (listener, book) = serve(&server, mapping);
        let (bad, good) = (dial(&client, &listener, 0), dial(&client, &listener, 1));
        assert!(call(&good, message(ECHO, b"")).is_ok());
        assert_eq!(call(&bad, message(PANIC, b"")), Err(CallError::Reset), "{mapping}");
        for _ in 0..20 {
            assert!(call(&good, message(ECHO, b"")).is_ok(), "{mapping}");
            assert!(call(&bad, message(ECHO, b"a new incarnation")).is_ok(), "{mapping}");
        }
        assert_eq!(
            (book.closed.load(SeqCst), server.handle().stats().total().panics),
            (1, 1),
            "{mapping}"
        );
    }
}

/// The server stops while requests are in its workers and replies on their way: nobody waits for
/// ever, and the client goes on with whoever comes next.
#[test]
fn a_stop_with_work_in_flight_is_clean() {
    for mapping in Mapping::ALL {
        let (server, client) = (runtime("server", 3), runtime("client", 1));
        let (listener, book) = serve(&server, mapping);
        let connections: Vec<_> = (0..4).map(|lane| dial(&client, &listener, lane)).collect();
        load(&connections, 0, 1);
        let calls: Vec<_> = (0..400)
            .map(|i| connections[i % 4].call(numbered(ELSEWHERE, i as u64), LONG))
            .collect();
        drop(listener);
        server.shutdown();
        assert_eq!((book.opened.load(SeqCst), book.closed.load(SeqCst)), (4, 4), "{mapping}");
        client.shutdown();
        for call in calls {
            // answered, or told that there will be no answer
            let result = sync::block_on(call);
            assert!(matches!(result, Ok(_) | Err(CallError::Closed)), "{mapping}: {result:?}");
        }
    }
}

/// Connections by the thousand, opened, used and closed while a placement every few milliseconds
/// and switches of the mapping move seats. Every session that began ends, and nothing is left
/// behind.
#[test]
fn connections_come_and_go_while_they_are_placed() {
    const ROUNDS: usize = 24;
    const EACH: usize = 50;
    let (server, client) = (runtime("server", 3), runtime("client", 2));
    let (listener, book) = serve(&server, Mapping::Lcam);
    for round in 0..ROUNDS {
        let mapping = Mapping::ALL[round % Mapping::ALL.len()];
        let connections: Vec<_> =
            (0..EACH).map(|lane| dial(&client, &listener, lane as u16)).collect();
        let calls: Vec<_> =
            connections.iter().map(|c| c.call(numbered(ELSEWHERE, round as u64), LONG)).collect();
        listener.set_placement(placement(mapping)).expect("allowed");
        connections.iter().for_each(|connection| connection.send(numbered(NOTE, 0)));
        for call in calls {
            assert_eq!(number(&sync::block_on(call).expect("answered")), round as u64);
        }
        // what was sent before the close arrives
        connections.iter().for_each(Connection::close);
    }
    let all = ROUNDS * EACH;
    wait_until("all have ended", || book.closed.load(SeqCst) == all as u64);
    assert_eq!((book.opened.load(SeqCst), book.noted()), (all as u64, all));
    book.check_order();
    wait_until("no session is left", || listener.sessions() == 0);
    assert_eq!(server.handle().stats().total().panics, 0);
}

/// What a handler hands over to the worker that owns the work arrives there in order, whichever
/// worker read it, and also when that worker is sometimes the reader itself.
#[test]
fn work_handed_over_keeps_the_order_of_its_connection() {
    struct Owner(Arc<Mutex<HashMap<u64, Vec<u64>>>>);

    impl Service for Owner {
        fn on_message(&self, worker: &Worker, connection: &Connection, message: Message) {
            let (id, number, notes) = (connection.id(), number(&message), Arc::clone(&self.0));
            let take = move || notes.lock().expect("no panic").entry(id).or_default().push(number);
            if worker.index() == 1 && connection.is_caught_up() {
                return take();
            }
            connection.hand_over(worker, 1, move |worker| {
                assert_eq!(worker.index(), 1);
                take();
            });
        }
    }

    let (server, client) = (runtime("server", 3), runtime("client", 2));
    let notes = Arc::<Mutex<HashMap<u64, Vec<u64>>>>::default();
    let mut config =
        ListenConfig::new("127.0.0.1:0".parse().expect("an address"), CLUSTER, "server");
    config.local_sockets = false; // transport.rs has the other kind
    config.placement = placement(Mapping::Shared);
    let for_services = Arc::clone(&notes);
    let listener =
        server.handle().listen(config, move |_| Rc::new(Owner(Arc::clone(&for_services))));
    let listener = listener.expect("listens");
    let connections: Vec<_> = (0..3).map(|lane| dial(&client, &listener, lane)).collect();
    for number in 0..6000 {
        connections.iter().for_each(|connection| connection.send(numbered(NOTE, number)));
        if number % 500 == 499 {
            let mapping = Mapping::ALL[(number / 500) as usize % Mapping::ALL.len()];
            listener.set_placement(placement(mapping)).expect("allowed");
        }
    }
    wait_until("all notes", || {
        notes.lock().expect("no panic").values().map(Vec::len).sum::<usize>() == 3 * 6000
    });
    for notes in notes.lock().expect("no panic").values() {
        assert!(notes.iter().copied().eq(0..6000), "out of order");
    }
}
