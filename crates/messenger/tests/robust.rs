//! Peers that are slow, silent, greedy, or talk garbage: cut or held back, while others are served.

#[expect(dead_code, reason = "what tests share; this one needs a part of it")]
mod common;
#[path = "common/frames.rs"]
mod frames;
#[path = "common/raw.rs"]
mod raw;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use common::*;
use messenger::*;

/// Sends byte after byte, slowly, until the other side has had enough.
fn trickle(mut stream: TcpStream, bytes: &[u8]) {
    for byte in bytes.iter().cycle() {
        if stream.write_all(&[*byte]).is_err() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits for the other side to close the socket.
fn closed(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(LONG)).expect("a time");
    let mut chunk = [0; 4096];
    loop {
        match stream.read(&mut chunk) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) => {
                return assert_ne!(
                    error.kind(),
                    std::io::ErrorKind::WouldBlock,
                    "it is still open"
                );
            }
        }
    }
}

#[test]
fn handshakes_and_frames_that_never_end_are_cut() {
    let runtime = runtime("slowloris", 1);
    let log = Arc::new(Log::default());
    let listener = listen_with(&runtime.handle(), &log, |config| {
        config.session.handshake_max = Duration::from_millis(300);
        config.session.frame_max = Duration::from_millis(300);
        config.session.forget_after = Duration::from_millis(100);
    });
    let good = connect(&runtime.handle(), listener.local_addr(), &Arc::default());
    assert!(call(&good, message(ECHO, b"")).is_ok());
    let mut slow = TcpStream::connect(listener.local_addr()).expect("accepts");
    let hello = raw::hello(CLUSTER, 1);
    for byte in &hello[..hello.len() - 1] {
        // on a loaded machine the time may be over before
        if slow.write_all(&[*byte]).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    closed(&mut slow);
    assert_eq!(runtime.handle().stats().total().handshake_errors, 1);

    let mut endless = raw::greeted(listener.local_addr(), CLUSTER, 2);
    let request =
        Message::new(TrafficClass::Client, ECHO, Bytes::new(), Bytes::from(vec![7; 1 << 20]));
    let beginning = frames::frame(1, Message { id: 1, ..request })[..2000].to_vec();
    endless.write_all(&beginning).expect("sent");
    let dripping = endless.try_clone().expect("a descriptor");
    let drip = std::thread::spawn(move || trickle(dripping, &[7]));
    closed(&mut endless);
    drip.join().expect("no panic");
    wait_until("its session is forgotten", || listener.sessions() == 1);
    wait_until("its service is told", || log.count("close: the peer did not come back") == 1);
    assert!(call(&good, message(ECHO, b"")).is_ok());
}

#[test]
fn sockets_that_keep_silent_keep_nobody_out() {
    const AT_ONCE: usize = 16;
    let (server, client) = (runtime("crowd", 1), runtime("client", 1));
    let listener = listen_with(&server.handle(), &Arc::default(), |config| {
        config.greetings_max = AT_ONCE;
        config.session.handshake_max = LONG;
    });
    let crowd = |size: usize| {
        (0..size).map(|_| TcpStream::connect(listener.local_addr()).expect("accepts"))
    };
    let mut silent: Vec<_> = crowd(4 * AT_ONCE).collect();
    let good = connect(&client.handle(), listener.local_addr(), &Arc::default());
    assert!(call(&good, message(ECHO, b"")).is_ok());
    // the oldest made room: at least one for each that was too many
    let newest = silent.split_off(3 * AT_ONCE);
    silent.iter_mut().for_each(closed);
    let dropped = || server.handle().stats().total().handshake_errors;
    let before = dropped();
    assert!(before >= 3 * AT_ONCE as u64);
    // a crowd that is renewed all the time
    for _ in 0..10 {
        let renewed: Vec<_> = crowd(2 * AT_ONCE).collect();
        let late = connect(&client.handle(), listener.local_addr(), &Arc::default());
        assert!(call(&late, message(ECHO, b"")).is_ok());
        drop(renewed);
    }
    assert!(dropped() > before && listener.sessions() == 11);
    assert!(call(&good, message(ECHO, b"")).is_ok());
    drop(newest);
}

#[test]
fn a_peer_that_vanished_while_idle_is_forgotten() {
    let runtime = runtime("vanished", 1);
    let listener = listen_with(&runtime.handle(), &Arc::default(), |config| {
        config.session.idle_after = Duration::from_millis(50);
        config.session.ping_after = Duration::from_millis(50);
        config.session.dead_after = Duration::from_millis(200);
        config.session.forget_after = Duration::from_millis(50);
    });
    // the kernel behind this socket takes bytes, and nobody ever answers
    let vanished = raw::greeted(listener.local_addr(), CLUSTER, 3);
    wait_until("it is forgotten", || runtime.handle().stats().total().connections_closed == 1);
    assert_eq!(listener.sessions(), 0);
    drop(vanished);
}

#[test]
fn an_idle_peer_that_lives_is_asked_and_stays() {
    let (server, client) = (runtime("server", 1), runtime("client", 1));
    let listener = listen_with(&server.handle(), &Arc::default(), |config| {
        config.session.idle_after = Duration::from_millis(10);
        config.session.dead_after = LONG;
    });
    let seen = Arc::new(Log::default());
    let lives = connect(&client.handle(), listener.local_addr(), &seen);
    assert!(call(&lives, message(ECHO, b"")).is_ok());
    let before = client.handle().stats().total().frames_out;
    wait_until("pings are answered", || client.handle().stats().total().frames_out > before + 10);
    assert_eq!(
        (seen.count("Down"), client.handle().stats().total().reconnects, listener.sessions()),
        (0, 0, 1)
    );
}

/// Keeps requests without answering, those apart that say `now`.
struct Hoard(Arc<Mutex<Vec<(Connection, ReplyTo)>>>);

impl Service for Hoard {
    fn on_message(&self, _worker: &Worker, connection: &Connection, message: Message) {
        if &message.front[..] == b"now" {
            return connection.reply(&message, ECHO, message.front.clone(), Bytes::new());
        }
        self.0.lock().expect("no panic").push((connection.clone(), message.reply_to()));
    }
}

#[test]
fn requests_beyond_the_bounds_wait_at_the_sender() {
    const BOUND: usize = 100;
    const CALLS: usize = 2000;
    // what a worker takes from a connection in one turn may exceed the bound
    const MOST: usize = BOUND + 64;
    let data = Bytes::from(vec![1; 1000]);
    for by_bytes in [false, true] {
        let (server, client) = (runtime("server", 1), runtime("client", 1));
        let hoard = Arc::new(Mutex::new(Vec::new()));
        let mut config =
            ListenConfig::new("127.0.0.1:0".parse().expect("an address"), CLUSTER, "server");
        if by_bytes {
            config.session.request_bytes_max = BOUND * 1000;
        } else {
            config.session.requests_max = BOUND;
        }
        let for_service = Arc::clone(&hoard);
        let service =
            move |_: &Worker| -> Rc<dyn Service> { Rc::new(Hoard(Arc::clone(&for_service))) };
        let listener = server.handle().listen(config, service).expect("listens");
        let connection = connect(&client.handle(), listener.local_addr(), &Arc::default());
        let other = connect(&client.handle(), listener.local_addr(), &Arc::default());
        let request =
            || Message::new(TrafficClass::Client, ECHO, Bytes::from_static(b"x"), data.clone());
        let calls: Vec<_> = (0..CALLS).map(|_| connection.call(request(), LONG)).collect();
        let held = || hoard.lock().expect("no panic").len();
        wait_until("the bound is reached", || held() >= BOUND * 9 / 10);
        for _ in 0..50 {
            assert!(call(&other, message(ECHO, b"now")).is_ok(), "others are served");
        }
        let mut answered = 0;
        wait_until("all are answered", || {
            let taken = std::mem::take(&mut *hoard.lock().expect("no panic"));
            assert!(taken.len() <= MOST, "{} requests are held", taken.len());
            answered += taken.len();
            taken.iter().for_each(|(from, to)| from.reply_to(*to, message(ECHO, b"late")));
            answered == CALLS
        });
        for call in calls {
            assert!(sync::block_on(call).is_ok());
        }
    }
}

#[test]
fn garbage_at_any_place_harms_nobody_else() {
    let runtime = runtime("garbage", 2);
    let listener = listen_with(&runtime.handle(), &Arc::default(), |config| {
        config.session.handshake_max = Duration::from_millis(500);
        config.session.frame_max = Duration::from_millis(500);
        config.session.idle_after = Duration::from_millis(200);
        config.session.ping_after = Duration::from_millis(200);
        config.session.dead_after = LONG;
        config.session.forget_after = Duration::from_millis(20);
    });
    let good = connect(&runtime.handle(), listener.local_addr(), &Arc::default());
    let mut random = fastrand::Rng::with_seed(11);
    for cookie in 0..300 {
        let mut bytes = raw::hello(CLUSTER, 100 + cookie);
        for seq in 1..4 {
            let data = Bytes::from(vec![seq as u8; random.usize(0..5000)]);
            let request =
                Message::new(TrafficClass::Client, ECHO, Bytes::from_static(b"front"), data);
            bytes.extend(frames::frame(seq, Message { id: seq, ..request }));
        }
        for _ in 0..random.usize(1..4) {
            let at = random.usize(0..bytes.len());
            match random.u8(0..4) {
                0 => bytes[at] ^= 1 << random.u8(0..8),
                1 => bytes.truncate(at.max(1)),
                2 => bytes.insert(at, random.u8(..)),
                _ => {
                    let end = (at + random.usize(0..200)).min(bytes.len());
                    bytes[at..end].fill_with(|| random.u8(..));
                }
            }
        }
        let mut stream = TcpStream::connect(listener.local_addr()).expect("accepts");
        // it may be cut before all is sent
        let _ = stream.write_all(&bytes);
        if cookie % 10 == 0 {
            assert!(call(&good, message(ECHO, b"")).is_ok());
        }
    }
    wait_until("they are all gone", || listener.sessions() == 1);
    assert!(call(&good, message(ECHO, b"")).is_ok());
    let stats = runtime.handle().stats().total();
    assert!(stats.handshake_errors > 0 && stats.frame_errors.iter().sum::<u64>() > 0, "{stats:?}");
    assert_eq!(stats.panics, 0);
}
