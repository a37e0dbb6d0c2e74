//! Calls, placement, refusals and faults over real sockets.

mod common;

use std::future::Future;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::*;
use messenger::*;
use protocol::ClusterId;

#[test]
fn calls_are_answered_from_threads_and_workers() {
    let (server, client) = (runtime("server", 2), runtime("client", 2));
    let log = Arc::new(Log::default());
    let listener = listen(&server.handle(), &log);
    let connection = connect(&client.handle(), listener.local_addr(), &log);
    let reply = call(&connection, message(ECHO, b"hello")).expect("answered");
    assert_eq!((&reply.front[..], reply.kind), (&b"hello"[..], ECHO));
    assert!(connection.is_up());
    assert_eq!(connection.peer(), listener.local_addr());
    for worker in 0..2 {
        let connection = connection.clone();
        let sum = client.handle().block_on_worker(worker, move |_| async move {
            let calls: Vec<_> =
                (0..500).map(|i| connection.call(numbered(ECHO, i), LONG)).collect();
            let mut sum = 0;
            for call in calls {
                sum += number(&call.await.expect("answered"));
            }
            sum
        });
        assert_eq!(sum, Ok(499 * 500 / 2));
    }
    let stats = server.handle().stats().total();
    assert_eq!((stats.messages_in, stats.connections_opened, stats.panics), (1001, 1, 0));
    assert!(stats.writes < stats.frames_out, "replies of one turn go together");
    client.shutdown();
    wait_until("the goodbye", || log.count("close: closed by the peer") == 1);
    server.shutdown();
}

#[test]
fn data_of_all_sizes_goes_both_ways() {
    let runtime = runtime("both", 2);
    let log = Arc::new(Log::default());
    let listener = listen(&runtime.handle(), &log);
    let connection = connect(&runtime.handle(), listener.local_addr(), &log);
    for len in [1, 4095, 4096, 4097, 32 << 10, 65_537, 1 << 20, 5_000_001, 16 << 20] {
        let data: Bytes = (0..len).map(|i| (i * 7 % 251) as u8).collect::<Vec<_>>().into();
        let kind = if len == 65_537 { CALL_BACK } else { ECHO };
        let request =
            Message::new(TrafficClass::Background, kind, Bytes::from_static(b"f"), data.clone());
        let reply = call(&connection, request).expect("answered");
        assert_eq!(reply.class, TrafficClass::Background);
        assert!(reply.data == data, "{len} bytes came back different");
        assert!(reply.data_crc.is_some());
    }
    let too_long = Message::new(
        TrafficClass::Client,
        ECHO,
        Bytes::new(),
        Bytes::from(vec![0; (16 << 20) + 1]),
    );
    assert!(matches!(call(&connection, too_long), Err(CallError::TooLong(_))));
    let many: Vec<_> = (0..64)
        .map(|i| {
            let data = Bytes::from(vec![i as u8; 1 << 20]);
            (i, connection.call(Message::new(TrafficClass::Client, ECHO, Bytes::new(), data), LONG))
        })
        .collect();
    for (i, call) in many {
        let reply = sync::block_on(call).expect("answered");
        assert!(reply.data.len() == 1 << 20 && reply.data.iter().all(|byte| *byte == i as u8));
    }
}

#[test]
fn many_connections_spread_over_workers_by_lane() {
    let (server, client) = (runtime("server", 3), runtime("client", 2));
    let (log, nothing) = (Arc::new(Log::default()), Arc::new(Log::default()));
    let listener = listen(&server.handle(), &log);
    let round_robin = listen_with(&server.handle(), &log, |config| {
        config.placement.mapping = Mapping::RoundRobin
    });
    let connect = |listener: &Listener, lane: u16| {
        let config = ConnectConfig {
            lane,
            ..ConnectConfig::new(listener.local_addr(), CLUSTER, format!("c{lane}"))
        };
        let factory = TestService::factory(&nothing);
        client.handle().connect(usize::from(lane) % 2, config, move |worker| factory(worker))
    };
    let affine: Vec<_> = (0..60).map(|lane| (lane, connect(&listener, lane))).collect();
    for (lane, connection) in &affine {
        let reply = call(connection, numbered(ECHO, u64::from(*lane))).expect("answered");
        assert_eq!(number(&reply), u64::from(*lane));
        assert_eq!(reply.flags, u32::from(lane % 3), "core-affine: lane modulo workers");
    }
    let mut per_worker = [0; 3];
    for _ in 0..9 {
        let connection = connect(&round_robin, 1);
        per_worker[call(&connection, message(ECHO, b"")).expect("answered").flags as usize] += 1;
    }
    assert_eq!(per_worker, [3, 3, 3]);
    assert_eq!((listener.sessions(), round_robin.sessions()), (60, 9));
    affine.iter().for_each(|(_, connection)| connection.close());
    wait_until("all closed", || listener.sessions() == 0);
    assert_eq!(call(&affine[0].1, message(ECHO, b"")), Err(CallError::Closed));
}

#[test]
fn one_way_messages_keep_their_order() {
    let runtime = runtime("order", 2);
    let log = Arc::new(Log::default());
    let listener = listen_with(&runtime.handle(), &log, |config| config.session.ack_frames = 3);
    // From another thread, and with a bound so small that most messages wait behind it.
    let mut config = ConnectConfig::new(listener.local_addr(), CLUSTER, "client");
    config.session.send_bytes_max = 1000;
    let connection = runtime.handle().connect(1, config, |_| Rc::new(NoService));
    for i in 0..5000 {
        connection.send(numbered(RECORD, i));
    }
    wait_until("all recorded", || log.recorded.lock().expect("no panic").len() == 5000);
    assert!(log.recorded.lock().expect("no panic").iter().copied().eq(0..5000));
}

#[test]
fn what_is_sent_later_leaves_with_what_follows_and_in_order() {
    let (server, client) = (runtime("server", 1), runtime("client", 1));
    let log = Arc::new(Log::default());
    let listener = listen(&server.handle(), &log);
    let connection = connect(&client.handle(), listener.local_addr(), &log);
    call(&connection, message(ECHO, b"")).expect("answered");
    let recorded = || log.recorded.lock().expect("no panic").clone();
    let frames = || client.handle().stats().total().frames_out;
    let before = frames();
    (0..10).for_each(|i| connection.send_later(numbered(RECORD, i)));
    // The worker had its turn.
    client
        .handle()
        .block_on_worker(0, |worker| async move { worker.yield_now().await })
        .expect("runs");
    assert_eq!((frames(), recorded().len()), (before, 0));
    connection.send(numbered(RECORD, 10));
    wait_until("all recorded", || recorded().len() == 11);
    connection.send_later(numbered(RECORD, 11));
    connection.flush();
    wait_until("the last is recorded", || recorded().len() == 12);
    assert!(recorded().into_iter().eq(0..12));
}

#[test]
fn a_connection_that_holds_too_much_is_closed() {
    let runtime = runtime("overflow", 1);
    let log = Arc::new(Log::default());
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let mut config = ConnectConfig::new(silent.local_addr().expect("bound"), CLUSTER, "client");
    config.session.send_bytes_max = 10_000;
    config.session.held_bytes_max = 20_000;
    let factory = TestService::factory(&log);
    let connection = runtime.handle().connect(0, config, move |worker| factory(worker));
    for i in 0..1000 {
        connection.send(numbered(RECORD, i));
    }
    wait_until("closed", || connection.state() == ConnState::Closed);
    wait_until("told", || log.count("close: more than 20000 bytes") == 1);
}

#[test]
fn deadlines_pass_and_late_replies_are_dropped() {
    let runtime = runtime("deadline", 1);
    let log = Arc::new(Log::default());
    let listener = listen(&runtime.handle(), &log);
    let connection = connect(&runtime.handle(), listener.local_addr(), &log);
    let start = Instant::now();
    let silent = connection.call(message(SILENT, b""), Duration::from_millis(30));
    assert_eq!(sync::block_on(silent), Err(CallError::Deadline));
    assert!(start.elapsed() >= Duration::from_millis(30));
    // Nobody listens at all: the deadline holds there too.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|socket| socket.local_addr())
        .expect("a free port");
    let nowhere = connect(&runtime.handle(), port, &log);
    let lost = nowhere.call(message(ECHO, b""), Duration::from_millis(30));
    assert_eq!(sync::block_on(lost), Err(CallError::Deadline));
    wait_until("told once", || log.count("Down") == 1);
    drop(connection.call(message(ECHO, b"given up"), LONG));
    assert_eq!(&call(&connection, message(ECHO, b"next")).expect("answered").front[..], b"next");
    assert_eq!(runtime.handle().stats().total().deadlines, 2);
}

#[test]
fn a_panic_closes_one_connection_only() {
    let (server, client) = (runtime("server", 1), runtime("client", 1));
    let (log, seen) = (Arc::new(Log::default()), Arc::new(Log::default()));
    let listener = listen(&server.handle(), &log);
    let (bad, good) = (
        connect(&client.handle(), listener.local_addr(), &seen),
        connect(&client.handle(), listener.local_addr(), &Arc::default()),
    );
    assert!(call(&good, message(ECHO, b"")).is_ok());
    assert_eq!(call(&bad, message(PANIC, b"")), Err(CallError::Reset));
    assert_eq!(log.count("close: a message handler panicked"), 1);
    assert!(call(&good, message(ECHO, b"")).is_ok());
    assert!(call(&bad, message(ECHO, b"a new incarnation")).is_ok());
    assert_eq!(seen.count("Reset"), 1);
    assert_eq!(
        (server.handle().stats().total().panics, client.handle().stats().total().resets),
        (1, 1)
    );
    // A task that panics takes nothing with it either.
    let gone = server.handle().block_on_worker(0, |_| async { panic!("expected by the test") });
    assert_eq!(gone, Err::<(), _>(Gone));
    assert!(call(&good, message(ECHO, b"")).is_ok());
}

#[test]
fn the_server_may_close_a_connection() {
    let runtime = runtime("close", 1);
    let log = Arc::new(Log::default());
    let listener = listen(&runtime.handle(), &log);
    let connection = connect(&runtime.handle(), listener.local_addr(), &log);
    assert_eq!(call(&connection, message(CLOSE, b"")), Err(CallError::Closed));
    wait_until("both told", || log.closed.load(SeqCst) == 2);
    assert_eq!(log.count("close: closed by the peer"), 1);
    assert_eq!(connection.state(), ConnState::Closed);
    connection.send(message(RECORD, b"dropped"));
}

#[test]
fn garbage_is_dropped_and_counted() {
    let runtime = runtime("garbage", 1);
    let log = Arc::new(Log::default());
    let listener = listen(&runtime.handle(), &log);
    let good = connect(&runtime.handle(), listener.local_addr(), &log);
    assert!(call(&good, message(ECHO, b"")).is_ok());
    let mut random = TcpStream::connect(listener.local_addr()).expect("accepts");
    random.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("sent");
    assert_eq!(random.read(&mut [0; 10]).unwrap_or(0), 0, "closed without a word");
    wait_until("counted", || runtime.handle().stats().total().handshake_errors == 1);

    // A proper handshake, then bytes that are no frame.
    let mut liar = TcpStream::connect(listener.local_addr()).expect("accepts");
    let hello = handshake::Hello {
        features: 0,
        cluster: CLUSTER,
        auth_method: handshake::AUTH_NONE,
        cookie: 1,
        resume: None,
        lane: 0,
        name: "liar".into(),
    };
    liar.write_all(&handshake::encode(&hello)).expect("sent");
    liar.write_all(&[0xa5; 4096]).expect("sent");
    let mut rest = Vec::new();
    // A reset is as good as an end here.
    let _ = liar.read_to_end(&mut rest);
    wait_until("counted", || runtime.handle().stats().total().frame_errors[0] == 1);
    assert!(call(&good, message(ECHO, b"")).is_ok());
    assert_eq!(FrameError::NAMES[0], "bad-magic");
}

#[test]
fn other_versions_and_clusters_are_told_why() {
    let runtime = runtime("refusal", 1);
    let log = Arc::new(Log::default());
    let listener = listen(&runtime.handle(), &log);
    let mut old = TcpStream::connect(listener.local_addr()).expect("accepts");
    let mut hello = b"trefoil\n".to_vec();
    hello.extend_from_slice(&99u32.to_le_bytes());
    hello.extend_from_slice(&3u32.to_le_bytes());
    hello.extend_from_slice(b"???????");
    old.write_all(&hello).expect("sent");
    let mut answer = Vec::new();
    old.read_to_end(&mut answer).expect("answered, then closed");
    assert_eq!(answer[..8], hello[..8]);
    assert_eq!(answer[8..12], u32::from(protocol::PROTOCOL_VERSION).to_le_bytes());

    // The other way round: a server of another version.
    let other = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let connection = connect(&runtime.handle(), other.local_addr().expect("bound"), &log);
    let (mut stream, _) = other.accept().expect("dialled");
    stream.write_all(&hello).expect("sent");
    assert_eq!(call(&connection, message(ECHO, b"")), Err(CallError::Closed));
    assert_eq!(
        log.count(&format!(
            "Refused(Version {{ theirs: 99, ours: {} }})",
            protocol::PROTOCOL_VERSION
        )),
        1
    );

    let config = ConnectConfig::new(listener.local_addr(), ClusterId::new(8), "stranger");
    let factory = TestService::factory(&log);
    let stranger = runtime.handle().connect(0, config, move |worker| factory(worker));
    assert_eq!(call(&stranger, message(ECHO, b"")), Err(CallError::Closed));
    wait_until("told", || log.count("refused: the peer belongs to cluster") == 1);
    let newcomer = ConnectConfig::new(listener.local_addr(), ClusterId::default(), "newcomer");
    let newcomer = runtime.handle().connect(0, newcomer, |_| Rc::new(NoService));
    assert!(call(&newcomer, message(ECHO, b"")).is_ok());
}

#[test]
fn listening_fails_with_a_reason() {
    let runtime = runtime("listen", 1);
    let log = Arc::new(Log::default());
    let listener = listen(&runtime.handle(), &log);
    let again = ListenConfig::new(listener.local_addr(), CLUSTER, "second");
    let error =
        runtime.handle().listen(again.clone(), TestService::factory(&log)).expect_err("taken");
    assert!(matches!(error, ListenError::AddrInUse(addr) if addr == listener.local_addr()));
    assert!(error.to_string().contains("configure another port"));
    let mut never = again.clone();
    never.placement.interval = Duration::ZERO;
    let error =
        runtime.handle().listen(never, TestService::factory(&log)).expect_err("no interval");
    assert!(matches!(error, ListenError::Mapping(MappingError::Interval(_))));
    listener.stop();
    let mut result = runtime.handle().listen(again.clone(), TestService::factory(&log));
    wait_until("the port is free", || {
        if result.is_err() {
            result = runtime.handle().listen(again.clone(), TestService::factory(&log));
        }
        result.is_ok()
    });
}

#[test]
fn a_stopped_runtime_leaves_nobody_waiting() {
    let (server, client) = (runtime("server", 1), runtime("client", 1));
    let log = Arc::new(Log::default());
    let listener = listen(&server.handle(), &log);
    let connection = connect(&client.handle(), listener.local_addr(), &log);
    assert!(call(&connection, message(ECHO, b"")).is_ok());
    let waiting = connection.call(message(SILENT, b""), LONG);
    let handle = client.handle();
    let sleeping = handle.run_on(0, |worker| async move { worker.sleep(LONG).await });
    client.shutdown();
    assert_eq!(sync::block_on(waiting), Err(CallError::Closed));
    assert_eq!(sync::block_on(sleeping), Err(Gone));
    assert_eq!(handle.block_on_worker(0, |_| async {}), Err(Gone));
    assert_eq!(
        call(&connect(&handle, listener.local_addr(), &log), message(ECHO, b"")),
        Err(CallError::Closed)
    );
}

#[test]
fn tasks_timers_and_jobs() {
    let runtime = runtime("tasks", 2);
    let result = runtime.handle().block_on_worker(1, |worker| async move {
        let (tx, rx) = sync::oneshot();
        let inner = worker.clone();
        worker.spawn(async move {
            inner.sleep(Duration::from_millis(5)).await;
            tx.send(inner.index()).expect("awaited");
        });
        let forever = worker.spawn(std::future::pending());
        assert!(!forever.is_finished());
        let late = worker.timeout(Duration::from_millis(1), std::future::pending::<()>()).await;
        assert_eq!(late, Err(Elapsed));
        assert_eq!(worker.timeout(LONG, async { 3 }).await, Ok(3));
        forever.abort();
        assert!(forever.is_finished());
        let job = worker.blocking(|| std::thread::current().name().map(str::to_owned));
        assert_eq!(job.await.expect("runs").as_deref(), Some("tasks-io"));
        assert_eq!(
            worker.blocking(|| panic!("expected by the test")).await,
            Err::<(), _>(JobFailed)
        );
        worker.yield_now().await;
        rx.await
    });
    assert_eq!(result, Ok(Ok(1)));
    let sent = runtime.handle().run_on(0, |worker| async move { worker.index() });
    fn is_send<T: Send + Future>(future: T) -> T {
        future
    }
    assert_eq!(sync::block_on(is_send(sent)), Ok(0));
}
