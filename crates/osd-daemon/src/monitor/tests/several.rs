//! Three monitors in one process, each with a runtime of its own: what goes away with one.

use super::*;
use messenger::ListenConfig;
use protocol::health::HealthCode;
use std::net::TcpListener;
use std::path::Path;

/// One of three. Dropped, it is gone as a process is that was killed.
struct One {
    handle: Option<MonitorHandle>,
    runtime: Option<Runtime>,
}

impl One {
    fn start(dir: &Path, addrs: &[SocketAddr], node: u16) -> One {
        let runtime = Runtime::start(RuntimeConfig::new(format!("mon{node}"), 1)).expect("starts");
        let config = member_config(dir, addrs, node);
        let handle = start(config, &runtime.handle()).expect("starts");
        One { handle: Some(handle), runtime: Some(runtime) }
    }

    fn stop(mut self) {
        self.handle.take().expect("it runs").stop();
    }
}

impl Drop for One {
    fn drop(&mut self) {
        // the runtime first: nothing is handed over, nothing more is written
        self.runtime.take().expect("it runs").shutdown();
        drop(self.handle.take());
    }
}

fn member_config(dir: &Path, addrs: &[SocketAddr], node: u16) -> MonitorConfig {
    let mut config = config(&dir.join(node.to_string()));
    config.listen = addrs[usize::from(node)];
    config.worker = 0;
    config.quorum = Some((addrs.to_vec(), node));
    config
}

fn free_addrs() -> Vec<SocketAddr> {
    let any = || TcpListener::bind("127.0.0.1:0").expect("a free port");
    let listeners = [(); 3].map(|()| any());
    listeners.iter().map(|listener| listener.local_addr().expect("bound")).collect()
}

struct Three {
    dir: tempfile::TempDir,
    addrs: Vec<SocketAddr>,
    nodes: Vec<Option<One>>,
    clients: Runtime,
}

impl Three {
    fn new() -> Three {
        let (dir, addrs) = (tempfile::tempdir().expect("a directory"), free_addrs());
        let mut three = Three { dir, addrs, nodes: vec![None, None, None], clients: runtime() };
        (0..3).for_each(|node| three.start(node));
        three
    }

    fn start(&mut self, node: usize) {
        let one = One::start(self.dir.path(), &self.addrs, node as u16);
        self.nodes[node] = Some(one);
    }

    fn peer(&self, node: usize) -> Peer {
        Peer::connect(&self.clients.handle(), self.addrs[node])
    }

    fn kill(&mut self, node: usize) {
        self.nodes[node] = None;
    }

    /// Which one leads, when one of these says that it does.
    fn leader(&self, of: &[usize]) -> usize {
        let mut found = None;
        wait_until("one leads", || {
            found = of.iter().copied().find(|node| {
                let status = self.try_status(*node);
                let quorum = status.and_then(|status| status.quorum);
                quorum.is_some_and(|quorum| quorum.leader == Some(*node as u16))
            });
            found.is_some()
        });
        found.expect("it was found")
    }

    fn try_status(&self, node: usize) -> Option<ClusterStatus> {
        match self.peer(node).call(&MonitorRequest::Status) {
            MonitorReply::Status(status) => Some(*status),
            MonitorReply::NotLeader { .. } => None,
            other => panic!("{other:?}"),
        }
    }

    /// A session, opened at whoever leads.
    fn open_session(&self, name: &str) -> SessionId {
        let mut opened = None;
        wait_until("a session is opened", || {
            for node in (0..3).filter(|node| self.nodes[*node].is_some()) {
                let request = MonitorRequest::OpenSession { name: name.to_owned() };
                match self.peer(node).call(&request) {
                    MonitorReply::Session { session, .. } => opened = Some(session),
                    MonitorReply::NotLeader { .. } => {}
                    other => panic!("{other:?}"),
                }
                if opened.is_some() {
                    return true;
                }
            }
            false
        });
        opened.expect("it was opened")
    }

    fn renew(&self, session: SessionId) -> MonitorReply {
        let mut reply = None;
        wait_until("a session is renewed", || {
            for node in (0..3).filter(|node| self.nodes[*node].is_some()) {
                match self.peer(node).call(&MonitorRequest::RenewSession { session }) {
                    MonitorReply::NotLeader { .. } => {}
                    other => reply = Some(other),
                }
            }
            reply.is_some()
        });
        reply.expect("somebody led")
    }
}

#[test]
fn three_begin_one_cluster_and_any_may_go() {
    let mut three = Three::new();
    let leader = three.leader(&[0, 1, 2]);
    let follower = (leader + 1) % 3;
    let (cluster, addr) = (three.peer(leader).map().cluster, three.addrs[leader]);
    // what a follower says
    let reply = three.peer(follower).call(&MonitorRequest::OpenSession { name: "x".into() });
    assert_eq!(reply, MonitorReply::NotLeader { leader: Some(addr) });
    let watcher = three.peer(follower);
    match watcher.call(&MonitorRequest::Subscribe) {
        MonitorReply::Map(update) => {
            assert_eq!((update.cluster, &update.monitors), (cluster, &three.addrs));
        }
        other => panic!("{other:?}"),
    }
    let osds = whole_cluster(&three.clients.handle(), addr);
    osds[0].heartbeat(0);
    wait_until("all know the cluster", || (0..3).all(|node| three.try_status(node).is_some()));
    let beats: Vec<Peer> = (0..3).map(|node| three.peer(node)).collect();
    (0..3).for_each(|osd| beats.iter().for_each(|peer| peer.heartbeat(osd)));
    assert_eq!(three.peer(follower).status().total_bytes, 600, "OSDs report to all");
    let session = three.open_session("stays");
    wait_until("a follower publishes", || {
        let newest = watcher.newest.lock().expect("no panic");
        newest.as_ref().is_some_and(|map| {
            map.sessions.contains_key(&session) && map.pgs.values().all(|pg| pg.active)
        })
    });
    let before = three.peer(leader).map();
    // the leader is killed
    three.kill(leader);
    let rest: Vec<usize> = (0..3).filter(|node| *node != leader).collect();
    let next = three.leader(&rest);
    let after = three.peer(next).map();
    assert!(after.epoch >= before.epoch && after.cluster == cluster);
    assert_eq!(after.sessions, before.sessions);
    assert!(matches!(three.renew(session), MonitorReply::Done(_)));
    wait_until("it is missed", || {
        let status = three.try_status(next).expect("there is a state");
        status.checks.iter().any(|check| {
            check.code == HealthCode::MonDown && check.summary.contains("is not heard")
        })
    });
    let second = three.open_session("second");
    assert!(second > session);
    three.start(leader);
    wait_until("it has all that it missed", || {
        three.try_status(leader).is_some_and(|s| s.clients.len() == 2)
    });
    // all at once
    (0..3).for_each(|node| three.kill(node));
    (0..3).for_each(|node| three.start(node));
    let leader = three.leader(&[0, 1, 2]);
    let last = three.peer(leader).map();
    assert!(last.cluster == cluster && last.epoch > before.epoch);
    assert!(matches!(three.renew(second), MonitorReply::Done(_)));
    // a clean stop hands over
    three.nodes[leader].take().expect("it runs").stop();
    let rest: Vec<usize> = (0..3).filter(|node| *node != leader).collect();
    three.leader(&rest);
}

#[test]
fn what_was_not_committed_is_told_to_nobody() {
    let mut three = Three::new();
    let leader = three.leader(&[0, 1, 2]);
    let watcher = three.peer(leader);
    let before = watcher.map();
    let rest: Vec<usize> = (0..3).filter(|node| *node != leader).collect();
    rest.iter().for_each(|node| three.kill(*node));
    // proposed by a leader without followers
    let lonely = three.peer(leader).call(&MonitorRequest::OpenSession { name: "lonely".into() });
    assert!(matches!(lonely, MonitorReply::NotLeader { .. }), "{lonely:?}");
    let status = three.peer(leader).status();
    assert_eq!((status.epoch, status.clients.len()), (before.epoch, 0), "what is committed");
    wait_until("it says that nobody leads", || {
        let status = three.peer(leader).status();
        status.health == Health::Down && status.messages().any(|m| m.contains("no monitor leads"))
    });
    assert_eq!(*watcher.newest.lock().expect("no panic"), None, "nothing was published");
    assert_eq!(watcher.map(), before);
    // the others go on, with the same number for another session
    three.kill(leader);
    rest.iter().for_each(|node| three.start(*node));
    let next = three.leader(&rest);
    let session = three.open_session("another");
    assert_eq!(session.get(), before.last_session.get() + 1);
    three.start(leader);
    wait_until("the deposed one has what was committed", || {
        three
            .try_status(leader)
            .is_some_and(|status| status.clients == [(session, "another".to_owned())])
    });
    assert_eq!(three.peer(leader).map().epoch, three.peer(next).map().epoch);
}

#[test]
fn a_lost_disk_is_replaced_by_a_new_replica() {
    let mut three = Three::new();
    let leader = three.leader(&[0, 1, 2]);
    let session = three.open_session("stays");
    let (lost, other) = ((leader + 1) % 3, (leader + 2) % 3);
    three.kill(lost);
    std::fs::remove_dir_all(three.dir.path().join(lost.to_string())).expect("removed");
    three.start(lost);
    wait_until("it is told everything", || {
        three.try_status(lost).is_some_and(|status| status.clients.len() == 1)
    });
    // it takes part: without it there would be no majority
    wait_until("it votes, and both others know", || {
        (0..3).all(|node| {
            let quorum = three.try_status(node).and_then(|status| status.quorum);
            quorum.is_some_and(|quorum| quorum.monitors.iter().all(|m| m.up && m.votes))
        })
    });
    three.kill(other);
    assert!(matches!(three.renew(session), MonitorReply::Done(_)));
    three.kill(lost);
    three.start(lost);
    three.open_session("after its restart");
}

#[test]
fn strangers_are_not_heard() {
    let three = Three::new();
    let leader = three.leader(&[0, 1, 2]);
    let term = |node| three.peer(node).status().quorum.expect("several").term;
    let before = term(leader);
    // frames of somebody who dials
    let stranger = three.peer(leader);
    let replica = consensus::ReplicaId::new(consensus::NodeId(2), 1).expect("a replica");
    let vote = consensus::Frame {
        group: consensus::GroupId(0),
        from: replica,
        to: consensus::ReplicaId::new(consensus::NodeId(leader as u16), 1),
        term: 1000,
        body: consensus::Body::Heartbeat { commit: 0, round: 0 },
    };
    for data in [vote.encode(), Bytes::from_static(&[0xff; 50])] {
        let kind = Kind::Consensus.to_u16();
        let message = Message::new(TrafficClass::Control, kind, Bytes::new(), data);
        stranger.connection.send(message);
    }
    let hello = protocol::quorum::MonitorHello {
        node: 7,
        count: 9,
        bulk: false,
        nonce: None,
        birth: vec![1],
    };
    let message = Message::new(
        TrafficClass::Control,
        Kind::MonitorHello.to_u16(),
        protocol::encode(&hello),
        Bytes::new(),
    );
    let reply = block_on(three.peer(leader).connection.call(message, PATIENCE)).expect("an answer");
    assert_eq!(Kind::from_u16(reply.kind), Some(Kind::MonitorReply), "of no list");
    assert_eq!((term(leader), three.leader(&[0, 1, 2])), (before, leader));
}

/// A listener at a monitor's address that answers as one, and sends what no monitor sends.
#[test]
fn a_monitor_that_talks_garbage_stops_nobody() {
    struct Garbage;
    impl Service for Garbage {
        fn on_message(&self, _: &Worker, connection: &Connection, message: Message) {
            if let Ok(hello) =
                protocol::decode::<protocol::quorum::MonitorHello>("hello", &message.front)
            {
                let own = protocol::quorum::MonitorHello {
                    node: 2,
                    nonce: Some(77),
                    birth: Vec::new(),
                    ..hello
                };
                let kind = Kind::MonitorHelloReply.to_u16();
                connection.reply(&message, kind, protocol::encode(&own), Bytes::new());
                for data in [vec![], vec![1; 40], vec![0xff; 3000]] {
                    let kind = Kind::Consensus.to_u16();
                    let data = Bytes::from(data);
                    connection.send(Message::new(TrafficClass::Control, kind, Bytes::new(), data));
                }
            }
        }
    }
    let (dir, addrs, clients) =
        (tempfile::tempdir().expect("a directory"), free_addrs(), runtime());
    let listen = ListenConfig::new(addrs[2], ClusterId::default(), "garbage");
    let garbage = clients.handle().listen(listen, |_| Rc::new(Garbage)).expect("listens");
    let two: Vec<One> = (0..2).map(|node| One::start(dir.path(), &addrs, node)).collect();
    // they begin with what it said its number is, and are a majority
    wait_until("one leads", || {
        addrs[..2].iter().any(|addr| {
            let peer = Peer::connect(&clients.handle(), *addr);
            let reply = peer.call(&MonitorRequest::OpenSession { name: "x".into() });
            matches!(reply, MonitorReply::Session { .. })
        })
    });
    drop((two, garbage));
}

#[test]
fn directories_of_one_and_of_several_are_told_apart() {
    let (dir, addrs, runtime) =
        (tempfile::tempdir().expect("a directory"), free_addrs(), runtime());
    let alone = start(config(&dir.path().join("0")), &runtime.handle()).expect("starts");
    alone.stop();
    let refused = start(member_config(dir.path(), &addrs, 0), &runtime.handle());
    assert!(matches!(refused, Err(MonitorError::Alone { .. })));
    let one = start(member_config(dir.path(), &addrs, 1), &runtime.handle()).expect("starts");
    // it waits for the others, and says so to whoever asks
    let peer = Peer::connect(&runtime.handle(), one.addr());
    let nobody = MonitorReply::NotLeader { leader: None };
    assert_eq!(peer.call(&MonitorRequest::Subscribe), nobody);
    one.stop();
    let refused = start(config(&dir.path().join("1")), &runtime.handle());
    assert!(matches!(refused, Err(MonitorError::OfSeveral { .. })));
}
