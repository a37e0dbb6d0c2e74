//! Sessions over TCP connections that are cut: nothing lost, nothing doubled, and a clear word when
//! state is gone.

mod common;
#[path = "common/proxy.rs"]
mod proxy;

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use bytes::Bytes;
use common::*;
use messenger::*;
use proxy::Proxy;

#[test]
fn nothing_is_lost_or_doubled_when_tcp_is_cut() {
    let (server, client) = (runtime("server", 2), runtime("client", 1));
    let (log, seen) = (Arc::new(Log::default()), Arc::new(Log::default()));
    let listener = listen(&server.handle(), &log);
    // Every connection dies a little later than the one before, so that cuts fall on every part of
    // a frame.
    let proxy =
        Proxy::start(listener.local_addr(), |n| if n < 40 { 700 + n * 397 } else { usize::MAX });
    let connection = connect(&client.handle(), proxy.addr, &seen);
    let mut calls = Vec::new();
    for i in 0..3000u64 {
        connection.send(numbered(RECORD, i));
        if i % 3 == 0 {
            let data = Bytes::from(vec![i as u8; (i % 50) as usize * 100]);
            let front = Bytes::copy_from_slice(&i.to_le_bytes());
            calls.push((
                i,
                connection.call(Message::new(TrafficClass::Client, ECHO, front, data), LONG),
            ));
        }
    }
    for (i, call) in calls {
        let reply = sync::block_on(call).expect("answered");
        assert_eq!(number(&reply), i);
        assert!(
            reply.data.len() == (i % 50) as usize * 100
                && reply.data.iter().all(|byte| *byte == i as u8)
        );
    }
    wait_until("all recorded", || log.recorded.lock().expect("no panic").len() >= 3000);
    assert!(log.recorded.lock().expect("no panic").iter().copied().eq(0..3000));
    assert!(proxy.connections.load(SeqCst) > 5, "a test without cuts shows nothing");
    assert_eq!(log.opened.load(SeqCst) - log.count("close: replaced"), 1);
    assert_eq!(seen.count("Reset"), 0);
    assert!(client.handle().stats().total().reconnects > 3);
}

#[test]
fn a_cut_while_idle_resumes() {
    let (server, client) = (runtime("server", 1), runtime("client", 1));
    let (log, seen) = (Arc::new(Log::default()), Arc::new(Log::default()));
    let listener = listen(&server.handle(), &log);
    let proxy = Proxy::start(listener.local_addr(), |_| usize::MAX);
    let connection = connect(&client.handle(), proxy.addr, &seen);
    for round in 1..=5 {
        assert!(call(&connection, message(ECHO, b"")).is_ok());
        proxy.cut();
        wait_until("resumed", || seen.count("Up { resumed: true") == round);
    }
    // From the accepting side too: its calls wait for the client to come back.
    let back = log.connections.lock().expect("no panic")[0].clone();
    proxy.cut();
    assert_eq!(
        &call(&back, message(ECHO, b"to the client")).expect("answered").front[..],
        b"to the client"
    );
    assert_eq!(seen.count("Down"), 6);
    assert_eq!((seen.count("Reset"), log.opened.load(SeqCst), log.closed.load(SeqCst)), (0, 1, 0));
}

#[test]
fn a_peer_that_vanishes_is_noticed_by_whoever_waits_for_it() {
    let (server, client) = (runtime("server", 1), runtime("client", 1));
    let (log, seen) = (Arc::new(Log::default()), Arc::new(Log::default()));
    let listener = listen(&server.handle(), &log);
    let proxy = Proxy::start(listener.local_addr(), |_| usize::MAX);
    let mut config = ConnectConfig::new(proxy.addr, CLUSTER, "client");
    config.session.ping_after = Duration::from_millis(100);
    config.session.dead_after = Duration::from_millis(400);
    config.session.idle_after = Duration::from_millis(100);
    let factory = TestService::factory(&seen);
    let connection = client.handle().connect(0, config, move |worker| factory(worker));
    assert!(call(&connection, message(ECHO, b"")).is_ok());
    // no FIN, no RST: only silence, while a reply is owed, and while none is
    proxy.mute();
    assert_eq!(&call(&connection, message(ECHO, b"owed")).expect("answered").front[..], b"owed");
    assert!(seen.count("Up { resumed: true") >= 1);
    let before = seen.count("Up { resumed: true");
    proxy.mute();
    wait_until("noticed though nothing is owed", || seen.count("Up { resumed: true") > before);
    assert_eq!((seen.count("Reset"), log.opened.load(SeqCst)), (0, 1));
}

#[test]
fn a_storm_of_reconnects_loses_nothing_and_takes_no_seat_of_others() {
    const CLIENTS: u32 = 60;
    let (server, client) = (runtime("server", 2), runtime("client", 2));
    let (log, seen) = (Arc::new(Log::default()), Arc::new(Log::default()));
    let listener = listen_with(&server.handle(), &log, |config| config.connections_max = CLIENTS);
    let proxy = Proxy::start(listener.local_addr(), |_| usize::MAX);
    let connections: Vec<_> =
        (0..CLIENTS).map(|_| connect(&client.handle(), proxy.addr, &seen)).collect();
    for round in 0..5 {
        let calls: Vec<_> =
            connections.iter().map(|each| each.call(numbered(ECHO, round), LONG)).collect();
        proxy.cut();
        for call in calls {
            assert_eq!(number(&sync::block_on(call).expect("answered")), round);
        }
    }
    assert_eq!(listener.sessions(), CLIENTS as usize);
    assert_eq!(seen.count("Reset"), 0);
    // there is no room for another one, which is told so, and comes in as soon as one goes
    let (late, told) =
        (ConnectConfig::new(listener.local_addr(), CLUSTER, "late"), Arc::new(Log::default()));
    let factory = TestService::factory(&told);
    let late = client.handle().connect(0, late, move |worker| factory(worker));
    wait_until("told why", || told.count("ms_connections_max") == 1);
    connections[0].close();
    assert!(call(&late, message(ECHO, b"")).is_ok());
}

#[test]
fn a_restarted_server_resets_the_session() {
    let client = runtime("client", 1);
    let (log, seen) = (Arc::new(Log::default()), Arc::new(Log::default()));
    let first = runtime("first", 1);
    let listener = listen(&first.handle(), &log);
    let addr = listener.local_addr();
    let connection = connect(&client.handle(), addr, &seen);
    assert!(call(&connection, message(ECHO, b"")).is_ok());
    let pending = connection.call(message(SILENT, b""), LONG);
    wait_until("it is there", || first.handle().stats().total().messages_in == 2);
    drop(listener);
    first.shutdown();
    wait_until("noticed", || seen.count("Down") == 1);
    let second = runtime("second", 1);
    let _listener = listen_with(&second.handle(), &log, |config| config.addr = addr);
    assert_eq!(sync::block_on(pending), Err(CallError::Reset));
    assert!(call(&connection, message(ECHO, b"again")).is_ok());
    assert_eq!((seen.count("Reset"), seen.count("Up { resumed: false")), (1, 2));
    assert_eq!(log.opened.load(SeqCst), 2);
}

#[test]
fn a_forgotten_session_is_reset() {
    let (server, client) = (runtime("server", 1), runtime("client", 1));
    let (log, seen) = (Arc::new(Log::default()), Arc::new(Log::default()));
    let listener = listen_with(&server.handle(), &log, |config| {
        config.session.forget_after = Duration::from_millis(20)
    });
    let proxy = Proxy::start(listener.local_addr(), |_| usize::MAX);
    let mut config = ConnectConfig::new(proxy.addr, CLUSTER, "client");
    config.session.backoff_min = Duration::from_millis(500);
    let factory = TestService::factory(&seen);
    let connection = client.handle().connect(0, config, move |worker| factory(worker));
    assert!(call(&connection, message(ECHO, b"")).is_ok());
    proxy.cut();
    wait_until("forgotten", || log.count("close: the peer did not come back") == 1);
    wait_until("reset", || seen.count("Reset") == 1);
    assert!(call(&connection, message(ECHO, b"")).is_ok());
}

#[test]
fn a_peer_that_falls_silent_is_given_up_and_found_again() {
    let (server, client) = (runtime("server", 1), runtime("client", 1));
    let (log, seen) = (Arc::new(Log::default()), Arc::new(Log::default()));
    let listener = listen(&server.handle(), &log);
    let mut config = ConnectConfig::new(listener.local_addr(), CLUSTER, "client");
    config.session.ping_after = Duration::from_millis(200);
    config.session.dead_after = Duration::from_millis(600);
    let factory = TestService::factory(&seen);
    let connection = client.handle().connect(0, config, move |worker| factory(worker));
    assert!(call(&connection, message(ECHO, b"")).is_ok());
    // A slow answer is no silence: pings are answered meanwhile.
    let slow = connection.call(message(SILENT, b""), Duration::from_millis(900));
    assert_eq!(sync::block_on(slow), Err(CallError::Deadline));
    // The server's only worker stands still for as long as it takes.
    let (release, wait) = std::sync::mpsc::channel::<()>();
    server.handle().spawn_on(0, move |_| {
        // Ends when the test drops its end.
        let _ = wait.recv();
        async {}
    });
    let stuck = connection.call(message(ECHO, b"stuck"), LONG);
    wait_until("given up", || seen.count("Down") == 1);
    drop(release);
    assert_eq!(&sync::block_on(stuck).expect("answered").front[..], b"stuck");
    assert_eq!(seen.count("Reset"), 0);
}

#[test]
fn replies_that_nobody_reads_stop_the_reading_of_requests() {
    let (server, client) = (runtime("server", 1), runtime("client", 1));
    let log = Arc::new(Log::default());
    let listener = listen_with(&server.handle(), &log, |config| {
        config.session.pause_bytes = 1 << 20;
        config.session.send_bytes_max = 2 << 20;
    });
    let mut config = ConnectConfig::new(listener.local_addr(), CLUSTER, "client");
    config.session.send_bytes_max = 512 << 20;
    let connection = client.handle().connect(0, config, |_| Rc::new(NoService));
    assert!(call(&connection, message(ECHO, b"")).is_ok());
    let (release, wait) = std::sync::mpsc::channel::<()>();
    let calls: Vec<_> = (0..200)
        .map(|_| {
            let data = Bytes::from(vec![1; 1 << 20]);
            connection.call(Message::new(TrafficClass::Client, ECHO, Bytes::new(), data), LONG)
        })
        .collect();
    client.handle().spawn_on(0, move |_| {
        // Ends when the test drops its end: meanwhile the client neither reads nor writes.
        let _ = wait.recv();
        async {}
    });
    std::thread::sleep(Duration::from_millis(50));
    drop(release);
    for call in calls {
        assert_eq!(sync::block_on(call).expect("answered").data.len(), 1 << 20);
    }
}
