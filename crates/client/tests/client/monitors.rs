//! Several monitors: whom a client asks while others are dead, silent, another cluster's, or do not
//! lead, and that a cluster with one monitor costs no message more than before.

use bytes::Bytes;
use client::{Client, ClientConfig, ClientError, ask_monitor};
use cluster::ClusterMap;
use messenger::sync::block_on;
use messenger::{
    Connection, ListenConfig, Listener, Message, Runtime, RuntimeConfig, Service, Worker,
};
use protocol::monitor::{MapUpdate, MonitorReply, MonitorRequest};
use protocol::{ClusterId, Epoch, Kind, Profile, SessionId};
use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

const OURS: ClusterId = ClusterId::new(0x0a);
const THEIRS: ClusterId = ClusterId::new(0x0b);
/// Nothing here takes so long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);
/// A third of it is the pause between renewals.
const TTL_MS: u64 = 900;

/// What the monitors of a cluster have in common, and what each was asked.
struct World {
    cluster: ClusterId,
    leader: Option<usize>,
    addrs: Vec<SocketAddr>,
    /// Maps name all monitors.
    tells: bool,
    /// This one stands still: not even its connections are served.
    stopped: Option<usize>,
    /// This one takes requests to make a pool, and does not answer them.
    mute: Option<usize>,
    last_session: u64,
    asked: Vec<Vec<MonitorRequest>>,
    connections: Vec<BTreeSet<u64>>,
}

#[derive(Clone)]
struct Shared(Arc<(Mutex<World>, Condvar)>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, World> {
        self.0.0.lock().expect("no test panicked while it held the lock")
    }
}

struct Monitor {
    shared: Shared,
    place: usize,
}

impl Monitor {
    fn answer(&self, world: &mut World, request: &MonitorRequest) -> Option<MonitorReply> {
        let epoch = Epoch::new(1);
        Some(match request {
            MonitorRequest::Subscribe => {
                let map = ClusterMap {
                    cluster: world.cluster,
                    epoch,
                    osds: Default::default(),
                    pools: Default::default(),
                    pgs: Default::default(),
                    sessions: Default::default(),
                    last_session: SessionId::new(0),
                    mds: None,
                };
                let monitors = if world.tells { world.addrs.clone() } else { Vec::new() };
                let map = map.encode();
                MonitorReply::Map(MapUpdate { cluster: world.cluster, epoch, map, monitors })
            }
            _ if world.leader != Some(self.place) => {
                MonitorReply::NotLeader { leader: world.leader.map(|leader| world.addrs[leader]) }
            }
            MonitorRequest::OpenSession { .. } => {
                world.last_session += 1;
                let session = SessionId::new(world.last_session);
                MonitorReply::Session { session, ttl_ms: TTL_MS, epoch }
            }
            MonitorRequest::CreatePool { .. } if world.mute == Some(self.place) => return None,
            _ => MonitorReply::Done(epoch),
        })
    }
}

impl Service for Monitor {
    fn on_message(&self, _worker: &Worker, connection: &Connection, message: Message) {
        let mut world = self.shared.lock();
        while world.stopped == Some(self.place) {
            world = self.shared.0.1.wait(world).expect("no panic");
        }
        let request = protocol::decode("request", &message.front).expect("a request");
        world.connections[self.place].insert(connection.id());
        let reply = self.answer(&mut world, &request);
        world.asked[self.place].push(request);
        drop(world);
        let Some(reply) = reply else { return };
        let front = protocol::encode(&reply);
        connection.reply(&message, Kind::MonitorReply.to_u16(), front, Bytes::new());
    }
}

/// Monitors of one cluster; the first one leads.
struct Monitors {
    shared: Shared,
    running: Vec<Option<(Listener, Runtime)>>,
}

impl Monitors {
    fn start(cluster: ClusterId, count: usize) -> Monitors {
        let world = World {
            cluster,
            leader: Some(0),
            addrs: Vec::new(),
            tells: false,
            stopped: None,
            mute: None,
            last_session: 0,
            asked: vec![Vec::new(); count],
            connections: vec![BTreeSet::new(); count],
        };
        let shared = Shared(Arc::new((Mutex::new(world), Condvar::new())));
        let mut monitors = Monitors { shared, running: Vec::new() };
        for place in 0..count {
            monitors.running.push(None);
            let addr = monitors.serve(place, ([127, 0, 0, 1], 0).into());
            monitors.world().addrs.push(addr);
        }
        monitors
    }

    fn serve(&mut self, place: usize, addr: SocketAddr) -> SocketAddr {
        let runtime = Runtime::start(RuntimeConfig::new("monitor", 1)).expect("a thread");
        let (shared, cluster) = (self.shared.clone(), self.world().cluster);
        let make = move |_: &Worker| -> Rc<dyn Service> {
            Rc::new(Monitor { shared: shared.clone(), place })
        };
        let listen = ListenConfig::new(addr, cluster, "monitor");
        let listener = runtime.handle().listen(listen, make).expect("the address is free");
        let addr = listener.local_addr();
        self.running[place] = Some((listener, runtime));
        addr
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.shared.lock()
    }

    fn kill(&mut self, place: usize) {
        let (listener, runtime) = self.running[place].take().expect("it runs");
        drop(listener);
        runtime.shutdown();
    }

    fn revive(&mut self, place: usize) {
        let addr = self.world().addrs[place];
        self.serve(place, addr);
    }

    /// The process stands still, as with SIGSTOP, until another one is stopped, or none.
    fn stop(&self, place: Option<usize>) {
        self.world().stopped = place;
        self.shared.0.1.notify_all();
    }

    fn addr(&self, place: usize) -> String {
        self.world().addrs[place].to_string()
    }

    /// How often this one was asked such a thing.
    fn count(&self, place: usize, what: impl Fn(&MonitorRequest) -> bool) -> usize {
        self.world().asked[place].iter().filter(|request| what(request)).count()
    }

    fn renewals(&self, place: usize) -> usize {
        self.count(place, |request| matches!(request, MonitorRequest::RenewSession { .. }))
    }

    /// Waits until this one has renewed the session twice from now on.
    fn wait_renewed(&self, place: usize) {
        let before = self.renewals(place);
        wait_until("the session is renewed", || self.renewals(place) >= before + 2);
    }
}

impl Drop for Monitors {
    fn drop(&mut self) {
        self.stop(None);
    }
}

fn wait_until(what: &str, mut check: impl FnMut() -> bool) {
    let began = Instant::now();
    while !check() {
        assert!(began.elapsed() < PATIENCE, "still waiting until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn config(addresses: &[String]) -> ClientConfig {
    ClientConfig { workers: 1, timeout: PATIENCE, ..ClientConfig::new(addresses.join(","), "test") }
}

fn connect(addresses: &[String]) -> Client {
    Client::connect(config(addresses)).expect("a session")
}

/// An address at which nothing listens.
fn nobody() -> String {
    let socket = TcpListener::bind("127.0.0.1:0").expect("a port");
    socket.local_addr().expect("an address").to_string()
}

fn ask(client: &Client, request: MonitorRequest) -> Result<MonitorReply, ClientError> {
    block_on(client.call_monitor(request))
}

fn pool() -> MonitorRequest {
    let profile = Profile::new(2, 1, 512, 64 << 20).expect("a code");
    MonitorRequest::CreatePool { name: "new".into(), profile, pg_num: 1 }
}

#[test]
fn with_one_monitor_no_message_is_sent_that_nobody_asked_for() {
    let monitors = Monitors::start(OURS, 1);
    let client = connect(&[monitors.addr(0)]);
    let session = client.session_id();
    client.close().expect("closed");
    let name = "test".to_owned();
    let told = [
        MonitorRequest::Subscribe,
        MonitorRequest::OpenSession { name },
        MonitorRequest::CloseSession { session },
    ];
    let (asked, connections) = {
        let world = monitors.world();
        (world.asked[0].clone(), world.connections[0].len())
    };
    let renewal = |request: &MonitorRequest| matches!(request, MonitorRequest::RenewSession { .. });
    assert_eq!(asked.into_iter().filter(|r| !renewal(r)).collect::<Vec<_>>(), told);
    assert_eq!(connections, 1);
    ask_monitor(&monitors.addr(0), &MonitorRequest::Events { after: 0 }, PATIENCE).expect("told");
    let world = monitors.world();
    assert_eq!(world.asked[0].last(), Some(&MonitorRequest::Events { after: 0 }));
    assert_eq!(world.connections[0].len(), 2);
}

#[test]
fn a_dead_and_a_silent_first_address_are_passed_over() {
    let monitors = Monitors::start(OURS, 1);
    // The kernel takes its connections, and nobody answers.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent = (silent.local_addr().expect("an address").to_string(), silent);
    let client = connect(&[nobody(), silent.0.clone(), monitors.addr(0)]);
    monitors.wait_renewed(0);
    client.close().expect("closed");
    let asked = [silent.0, nobody(), monitors.addr(0)].join(",");
    ask_monitor(&asked, &MonitorRequest::Events { after: 0 }, PATIENCE).expect("told");
}

#[test]
fn what_decides_is_asked_of_the_monitor_that_leads() {
    let monitors = Monitors::start(OURS, 3);
    monitors.world().leader = Some(2);
    let client = connect(&[monitors.addr(0)]);
    monitors.wait_renewed(2);
    let opened = |r: &MonitorRequest| matches!(r, MonitorRequest::OpenSession { .. });
    assert_eq!((monitors.count(0, opened), monitors.count(2, opened)), (1, 1));
    // The map does not name the others; the leader is known all the same.
    assert_eq!((monitors.renewals(0), monitors.world().asked[1].len()), (0, 0));
    // An election: nobody leads for a while, and then another one.
    monitors.world().leader = None;
    let asking = std::thread::spawn({
        let client = client.clone();
        move || ask(&client, pool())
    });
    wait_until("the old leader refuses", || monitors.count(2, |r| *r == pool()) > 1);
    monitors.world().leader = Some(0);
    assert_eq!(
        asking.join().expect("no panic").expect("an answer"),
        MonitorReply::Done(Epoch::new(1))
    );
    monitors.wait_renewed(0);
    assert_eq!(client.live_session().expect("it lives"), client.session_id());
}

#[test]
fn a_map_teaches_the_other_monitors() {
    let mut monitors = Monitors::start(OURS, 3);
    monitors.world().tells = true;
    let client = connect(&[monitors.addr(0)]);
    monitors.wait_renewed(0);
    monitors.world().leader = Some(1);
    monitors.kill(0);
    monitors.wait_renewed(1);
    // and back again, the first one still away
    monitors.world().leader = Some(2);
    monitors.kill(1);
    monitors.wait_renewed(2);
    assert!(client.live_session().is_ok());
}

#[test]
fn a_monitor_that_stands_still_is_left_for_another() {
    let monitors = Monitors::start(OURS, 2);
    let client = connect(&[monitors.addr(0), monitors.addr(1)]);
    monitors.wait_renewed(0);
    monitors.stop(Some(0));
    monitors.world().leader = Some(1);
    monitors.wait_renewed(1);
    assert!(client.live_session().is_ok());
}

#[test]
fn a_monitor_of_another_cluster_is_not_heard() {
    let (mut ours, theirs) = (Monitors::start(OURS, 1), Monitors::start(THEIRS, 1));
    let addresses = [theirs.addr(0), ours.addr(0)];
    let client = Client::connect(ClientConfig { cluster: OURS, ..config(&addresses) });
    let client = client.expect("ours is there");
    ours.wait_renewed(0);
    ours.kill(0);
    // There is nobody else, and that one does not count: not even as the end of this cluster.
    let asked = ask_in_vain(&client);
    assert!(matches!(asked, Err(ClientError::TimedOut(_))), "{asked:?}");
    ours.revive(0);
    ours.wait_renewed(0);
    assert_eq!(theirs.world().asked[0], []);
    // Whoever does not know the cluster is told it by the first one that answers, and keeps to it.
    let late = connect(&[ours.addr(0), theirs.addr(0)]);
    ours.kill(0);
    assert!(matches!(ask_in_vain(&late), Err(ClientError::TimedOut(_))));
    assert_eq!(theirs.world().asked[0], []);
    // Where only others' monitors are, that is said.
    let alone = Client::connect(ClientConfig { cluster: OURS, ..config(&[theirs.addr(0)]) });
    let error = alone.err().expect("another cluster's").to_string();
    assert!(error.contains("cluster"), "{error}");
}

/// Asks for what nobody can do now, for long enough to try every address some times.
fn ask_in_vain(client: &Client) -> Result<MonitorReply, ClientError> {
    let end = Instant::now() + Duration::from_secs(3);
    let asking = client.clone();
    let request = MonitorRequest::Events { after: 0 };
    let waiting = std::thread::spawn(move || ask(&asking, request));
    wait_until("time has passed", || Instant::now() >= end || waiting.is_finished());
    if waiting.is_finished() {
        return waiting.join().expect("no panic");
    }
    Err(ClientError::TimedOut("the monitor"))
}

#[test]
fn all_may_be_dead_for_a_while() {
    let mut monitors = Monitors::start(OURS, 2);
    let client = connect(&[monitors.addr(0), monitors.addr(1), nobody()]);
    monitors.wait_renewed(0);
    (0..2).for_each(|place| monitors.kill(place));
    let asking = std::thread::spawn({
        let client = client.clone();
        move || ask(&client, MonitorRequest::Events { after: 0 })
    });
    monitors.world().leader = Some(1);
    monitors.revive(1);
    assert!(matches!(asking.join().expect("no panic"), Ok(MonitorReply::Done(_))));
    monitors.wait_renewed(1);
    let error = Client::connect(ClientConfig {
        timeout: Duration::from_millis(300),
        ..config(&[nobody(), nobody()])
    });
    let error = error.err().expect("nobody is there");
    assert!(matches!(error, ClientError::Connect { .. }), "{error}");
}

#[test]
fn what_must_not_be_done_twice_is_sent_once() {
    let mut monitors = Monitors::start(OURS, 2);
    let client = connect(&[monitors.addr(0), monitors.addr(1)]);
    monitors.world().mute = Some(0);
    let asking = std::thread::spawn({
        let client = client.clone();
        move || ask(&client, pool())
    });
    wait_until("it is asked", || monitors.count(0, |r| *r == pool()) > 0);
    monitors.world().leader = Some(1);
    monitors.kill(0);
    let error = asking.join().expect("no panic").expect_err("nobody knows").to_string();
    assert!(error.contains("look whether it was done"), "{error}");
    monitors.wait_renewed(1);
    assert_eq!(monitors.count(1, |r| *r == pool()), 0);
    // What was not done is asked anew by whoever has looked.
    assert!(matches!(ask(&client, pool()), Ok(MonitorReply::Done(_))));
}
