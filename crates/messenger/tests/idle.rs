//! Connections that carry nothing are closed, and come back when there is something to say: nothing
//! is lost by it.

#[expect(dead_code, reason = "what tests share; this one needs a part of it")]
mod common;
#[path = "common/frames.rs"]
mod frames;
#[expect(dead_code, reason = "what tests share; this one needs a part of it")]
#[path = "common/proxy.rs"]
mod proxy;
#[path = "common/raw.rs"]
mod raw;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::rc::Rc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::*;
use messenger::*;
use proxy::Proxy;

/// So short that a test sees many of them.
const SHORT: Duration = Duration::from_millis(20);

/// Shorter than any time-out here: who owes an acknowledgement is not idle.
const ACK_AFTER: Duration = Duration::from_micros(200);

/// A client that waits for nothing but replies, and records what it is told.
struct Willing(Arc<Log>);

impl Service for Willing {
    fn on_message(&self, _: &Worker, connection: &Connection, message: Message) {
        connection.reply(&message, ECHO, message.front.clone(), message.data.clone());
    }

    fn on_state(&self, _: &Worker, _: &Connection, event: &StateEvent) {
        self.0.events.lock().expect("no panic").push(format!("{event:?}"));
    }

    fn on_idle(&self, _: &Worker, _: &Connection) -> bool {
        true
    }
}

fn serve(server: &Runtime, log: &Arc<Log>, timeout: Duration) -> Listener {
    listen_with(&server.handle(), log, |config| config.session.idle_timeout = Some(timeout))
}

fn willing(client: &Runtime, addr: std::net::SocketAddr, seen: &Arc<Log>) -> Connection {
    let seen = Arc::clone(seen);
    let mut config = ConnectConfig::new(addr, CLUSTER, "client");
    config.session.ack_after = ACK_AFTER;
    client.handle().connect(0, config, move |_| Rc::new(Willing(seen)))
}

#[test]
fn what_is_sent_before_the_close_of_a_resting_connection_arrives() {
    let (server, client) = (runtime("server", 1), runtime("client", 1));
    let (log, seen) = (Arc::new(Log::default()), Arc::new(Log::default()));
    let listener = serve(&server, &log, SHORT);
    let connection = willing(&client, listener.local_addr(), &seen);
    call(&connection, numbered(ECHO, 1)).expect("answered");
    wait_until("it rests", || connection.state() == ConnState::Resting);
    connection.send(numbered(RECORD, 2));
    connection.close();
    wait_until("it is closed", || connection.state() == ConnState::Closed);
    wait_until("it was recorded", || *log.recorded.lock().expect("no panic") == [2]);
}

#[test]
fn an_idle_connection_is_closed_and_the_next_message_brings_it_back() {
    for mapping in Mapping::ALL {
        let (server, client) = (runtime("server", 2), runtime("client", 1));
        let (log, seen) = (Arc::new(Log::default()), Arc::new(Log::default()));
        let listener = listen_with(&server.handle(), &log, |config| {
            config.session.idle_timeout = Some(SHORT);
            config.placement.mapping = mapping;
        });
        let proxy = Proxy::start(listener.local_addr(), |_| usize::MAX);
        let connection = willing(&client, proxy.addr, &seen);
        for round in 1..=3 {
            assert_eq!(number(&call(&connection, numbered(ECHO, round)).expect("answered")), round);
            wait_until("it rests", || {
                connection.state() == ConnState::Resting && listener.sessions() == 0
            });
        }
        wait_until("the server's side was told", || log.count("close: nothing was carried") == 3);
        assert_eq!(
            seen.count("Up { resumed: false"),
            3,
            "{mapping}: it does not come back by itself"
        );
        assert_eq!(
            (seen.count("Down"), seen.count("Reset"), proxy.connections.load(SeqCst)),
            (0, 0, 3)
        );
        connection.close();
        wait_until("one that rests can be closed", || connection.state() == ConnState::Closed);
    }
}

/// Keeps requests without answering.
struct Hoard(Arc<Mutex<Vec<(Connection, ReplyTo)>>>);

impl Service for Hoard {
    fn on_message(&self, _: &Worker, connection: &Connection, message: Message) {
        if message.kind == ECHO {
            return connection.reply(&message, ECHO, message.front.clone(), message.data.clone());
        }
        self.0.lock().expect("no panic").push((connection.clone(), message.reply_to()));
    }
}

#[test]
fn a_connection_with_an_unanswered_call_stays() {
    let (server, client) = (runtime("server", 1), runtime("client", 1));
    let (hoard, seen) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Log::default()));
    let mut config =
        ListenConfig::new("127.0.0.1:0".parse().expect("an address"), CLUSTER, "server");
    config.session.idle_timeout = Some(SHORT);
    let kept = Arc::clone(&hoard);
    let listener = server
        .handle()
        .listen(config, move |_| Rc::new(Hoard(Arc::clone(&kept))))
        .expect("listens");
    let (waits, idle) = (willing(&client, listener.local_addr(), &seen), Arc::new(Log::default()));
    let answer = waits.call(message(SILENT, b"later"), LONG);
    wait_until("the request is there", || hoard.lock().expect("no panic").len() == 1);
    // Another one comes and goes meanwhile, several times.
    let other = willing(&client, listener.local_addr(), &idle);
    for _ in 0..5 {
        assert!(call(&other, message(ECHO, b"")).is_ok());
        wait_until("the other one rests", || other.state() == ConnState::Resting);
    }
    assert!(waits.is_up() && seen.count("Up") == 1);
    let (from, to) = hoard.lock().expect("no panic").remove(0);
    from.reply_to(to, message(ECHO, b"answer"));
    assert_eq!(&sync::block_on(answer).expect("answered").front[..], b"answer");
    wait_until("then it rests, too", || {
        waits.state() == ConnState::Resting && listener.sessions() == 0
    });
}

#[test]
fn a_client_that_expects_something_is_not_closed() {
    let (server, client) = (runtime("server", 1), runtime("client", 1));
    let (log, seen) = (Arc::new(Log::default()), Arc::new(Log::default()));
    let listener = serve(&server, &log, SHORT);
    let expects = connect(&client.handle(), listener.local_addr(), &seen);
    assert!(call(&expects, message(ECHO, b"")).is_ok());
    let before = client.handle().stats().total().bytes_in;
    let question = frame_bytes();
    wait_until("it was asked often", || {
        client.handle().stats().total().bytes_in >= before + 10 * question
    });
    let back = log.connections.lock().expect("no panic")[0].clone();
    assert_eq!(
        &call(&back, message(ECHO, b"to the client")).expect("answered").front[..],
        b"to the client"
    );
    assert_eq!((expects.is_up(), log.closed.load(SeqCst), seen.count("Up")), (true, 0, 1));
}

/// A frame without segments.
fn frame_bytes() -> u64 {
    frame::OVERHEAD_BYTES as u64
}

// What the two sides of a closing say, by their numbers on the wire.
const KIND_IDLE: u16 = 0xff05;
const KIND_REST: u16 = 0xff06;
const KIND_STAY: u16 = 0xff07;

/// Reads frames without segments up to one of this kind.
fn read_until(stream: &mut TcpStream, kind: u16) {
    let mut frame = [0; frame::OVERHEAD_BYTES];
    loop {
        stream.read_exact(&mut frame).expect("it is open");
        if u16::from_le_bytes([frame[6], frame[7]]) == kind {
            return;
        }
    }
}

#[test]
fn a_client_that_agrees_too_late_is_told_that_the_session_goes_on() {
    let server = runtime("server", 1);
    let listener = serve(&server, &Arc::default(), SHORT);
    let mut client = raw::greeted(listener.local_addr(), CLUSTER, 1);
    let rest = frames::frame(0, message(KIND_REST, b""));
    // nobody asked
    client.write_all(&rest).expect("sent");
    read_until(&mut client, KIND_STAY);
    read_until(&mut client, KIND_IDLE);
    // a request that is never answered goes before the word
    client.write_all(&frames::frame(1, Message { id: 1, ..message(SILENT, b"") })).expect("sent");
    client.write_all(&rest).expect("sent");
    read_until(&mut client, KIND_STAY);
    assert_eq!(listener.sessions(), 1);
    // in time
    let mut other = raw::greeted(listener.local_addr(), CLUSTER, 2);
    read_until(&mut other, KIND_IDLE);
    other.write_all(&rest).expect("sent");
    read_until(&mut other, KIND_REST);
    wait_until("its session has ended", || listener.sessions() == 1);
}

/// Calls, some of which the server answers after a call of its own, and one-way messages, with
/// pauses around the time-out, so that each step of the closing is met by one.
fn talk(connection: &Connection, log: &Log, count: u64) {
    let mut random = fastrand::Rng::with_seed(5);
    let mut calls = Vec::new();
    for i in 0..count {
        connection.send(numbered(RECORD, i));
        if random.bool() {
            let kind = if random.bool() { ECHO } else { CALL_BACK };
            calls.push((i, connection.call(numbered(kind, i), LONG)));
        }
        if random.u8(0..4) > 0 {
            calls.drain(..).for_each(|(i, call)| {
                assert_eq!(number(&sync::block_on(call).expect("answered")), i)
            });
            std::thread::sleep(Duration::from_micros(random.u64(0..4000)));
        }
    }
    calls
        .into_iter()
        .for_each(|(i, call)| assert_eq!(number(&sync::block_on(call).expect("answered")), i));
    wait_until("all recorded", || log.recorded.lock().expect("no panic").len() as u64 >= count);
    assert!(log.recorded.lock().expect("no panic").iter().copied().eq(0..count));
}

#[test]
fn messages_that_meet_the_closing_arrive_once_and_in_order() {
    for mapping in [Mapping::CoreAffine, Mapping::Shared, Mapping::Handoff] {
        let (server, client) = (runtime("server", 2), runtime("client", 1));
        let (log, seen) = (Arc::new(Log::default()), Arc::new(Log::default()));
        let listener = listen_with(&server.handle(), &log, |config| {
            config.session.idle_timeout = Some(Duration::from_millis(1));
            config.session.ack_after = ACK_AFTER;
            config.placement.mapping = mapping;
        });
        let connection = willing(&client, listener.local_addr(), &seen);
        talk(&connection, &log, 600);
        assert!(seen.count("Up { resumed: false") > 5, "a test without closing shows nothing");
        assert_eq!(seen.count("Reset"), 0);
    }
}

#[test]
fn an_answer_to_the_closing_that_is_lost_loses_nothing() {
    let (server, client) = (runtime("server", 2), runtime("client", 1));
    let (log, seen) = (Arc::new(Log::default()), Arc::new(Log::default()));
    let listener = listen_with(&server.handle(), &log, |config| {
        config.session.idle_timeout = Some(Duration::from_millis(1));
        config.session.ack_after = ACK_AFTER;
    });
    // Every connection dies after some bytes more, so that cuts fall on every frame of the closing.
    let proxy = Proxy::start(listener.local_addr(), |n| 250 + n % 97 * 8);
    let connection = willing(&client, proxy.addr, &seen);
    talk(&connection, &log, 600);
    let ended = log.count("close: nothing was carried");
    assert!(ended > 5 && seen.count("Down") > 5, "a test without closing and cuts shows nothing");
    assert_eq!(seen.count("Reset"), 0);
}
