//! 10,000 connections that do nothing. Alone in its process, whose memory it watches; the clients
//! are another process, so that neither needs more than half of the descriptors.

#[path = "common/basics.rs"]
mod basics;
#[path = "common/memory.rs"]
mod memory;
#[path = "common/raw.rs"]
mod raw;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use basics::*;
use messenger::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const IDLE: u64 = 10_000;
/// Set for the process of the clients: where to connect to.
const SERVER: &str = "MANY_IDLE_SERVER";
const READY: &str = "all clients are connected";

struct Echo;

impl Service for Echo {
    fn on_message(&self, _: &Worker, connection: &Connection, message: Message) {
        connection.reply(&message, ECHO, message.front.clone(), message.data.clone());
    }
}

fn raise_limit() {
    let (before, wanted) = (getrlimit(Resource::Nofile), IDLE + 500);
    if before.current.is_some_and(|now| now < wanted) {
        let maximum = before.maximum.map(|most| most.max(wanted));
        setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).unwrap_or_else(
            |error| {
                panic!("{wanted} open files are needed: raise `ulimit -Hn` or be root: {error}")
            },
        );
    }
}

/// The process of the clients: connects, says so, and stays until its input ends.
fn be_clients(server: SocketAddr) {
    let sockets: Vec<_> =
        (0..IDLE).map(|cookie| raw::greeted(server, CLUSTER, cookie.into())).collect();
    println!("\n{READY}");
    let _ = std::io::stdin().read(&mut [0]);
    drop(sockets);
}

#[test]
fn ten_thousand_idle_connections_cost_little_and_slow_nobody_down() {
    raise_limit();
    if let Ok(server) = std::env::var(SERVER) {
        return be_clients(server.parse().expect("an address"));
    }
    // Under `shared` each socket is in the epoll set of every worker; under `lcam` every placement
    // looks at all of them.
    [Mapping::CoreAffine, Mapping::Shared, Mapping::Lcam].into_iter().for_each(with_many_idle);
}

fn with_many_idle(mapping: Mapping) {
    let (server, client) = (runtime("server", 2), runtime("client", 1));
    let mut config =
        ListenConfig::new("127.0.0.1:0".parse().expect("an address"), CLUSTER, "server");
    config.connections_max = IDLE as u32 + 1;
    config.placement.mapping = mapping;
    config.placement.interval = Duration::from_millis(100);
    config.session.forget_after = Duration::from_secs(1);
    let listener = server.handle().listen(config, |_| Rc::new(Echo)).expect("listens");
    let to = ConnectConfig::new(listener.local_addr(), CLUSTER, "live");
    let live = client.handle().connect(0, to, |_| Rc::new(NoService));
    assert!(call(&live, message(ECHO, b"")).is_ok());
    let before = memory::resident_bytes();
    let mut clients = Command::new(std::env::current_exe().expect("this program"))
        .args([
            "--exact",
            "ten_thousand_idle_connections_cost_little_and_slow_nobody_down",
            "--nocapture",
        ])
        .env(SERVER, listener.local_addr().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program again");
    let mut lines = BufReader::new(clients.stdout.take().expect("piped")).lines();
    assert!(lines.any(|line| line.is_ok_and(|line| line == READY)), "the clients gave up");
    assert_eq!(listener.sessions() as u64, IDLE + 1);
    let each = memory::resident_bytes().saturating_sub(before) / IDLE;
    println!("{mapping}: {each} bytes of memory for each idle connection");
    assert!(each < 32 << 10, "{mapping}: {each} bytes for each idle connection");
    // traffic goes on beside them, and wakes none of them
    let began = server.handle().stats().total().polls;
    for number_of in 0..2000 {
        assert_eq!(number(&call(&live, numbered(ECHO, number_of)).expect("answered")), number_of);
    }
    let polls = server.handle().stats().total().polls - began;
    assert!(polls < 20_000, "{mapping}: {polls} turns of the workers for 2,000 calls");
    clients.stdin.take().expect("piped").write_all(b".").expect("it waits");
    assert!(clients.wait().expect("it ends").success());

    wait_until("they are forgotten", || listener.sessions() == 1);
    assert!(call(&live, message(ECHO, b"")).is_ok());
}
