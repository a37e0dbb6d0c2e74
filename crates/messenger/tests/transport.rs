//! TCP and Unix sockets carry the same connections; which of them does is for the listener to say.

#[expect(dead_code, reason = "other tests use the rest")]
#[path = "common/basics.rs"]
mod basics;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use basics::*;
use bytes::Bytes;
use messenger::*;

/// Answers with what it got, and remembers where peers came from.
struct Ports(Arc<Mutex<Vec<u16>>>);

impl Service for Ports {
    fn on_open(&self, _: &Worker, _: &Connection, peer: &PeerInfo) {
        self.0.lock().expect("no panic").push(peer.addr.port());
    }

    fn on_message(&self, _: &Worker, connection: &Connection, message: Message) {
        let to = message.reply_to();
        connection.reply_to(to, Message::new(message.class, ECHO, message.front, message.data));
    }
}

/// A listener, and the ports of its peers: 0 of those that came through a Unix socket.
fn listen_with(
    handle: &Handle,
    change: impl FnOnce(&mut ListenConfig),
) -> (Listener, Arc<Mutex<Vec<u16>>>) {
    let mut config =
        ListenConfig::new("127.0.0.1:0".parse().expect("an address"), CLUSTER, "server");
    change(&mut config);
    let ports = Arc::<Mutex<Vec<u16>>>::default();
    let for_services = Arc::clone(&ports);
    let listener =
        handle.listen(config, move |_| Rc::new(Ports(Arc::clone(&for_services)))).expect("listens");
    (listener, ports)
}

/// Ignores whatever the listener says of its own.
struct Deaf;

impl Service for Deaf {
    fn on_message(&self, _: &Worker, _: &Connection, _: Message) {}
}

fn connect(client: &Runtime, listener: &Listener) -> Connection {
    let config = ConnectConfig::new(listener.local_addr(), CLUSTER, "client");
    client.handle().connect(0, config, |_| Rc::new(Deaf))
}

fn echo(connection: &Connection, len: usize) {
    let data: Bytes = (0..len).map(|i| (i * 7 % 251) as u8).collect::<Vec<_>>().into();
    let request = Message::new(TrafficClass::Client, ECHO, Bytes::from_static(b"f"), data.clone());
    let reply = call(connection, request).expect("answered");
    assert!(reply.data == data, "{len} bytes came back different");
}

#[test]
fn both_carry_small_and_large_messages_under_every_mapping() {
    for local in [false, true] {
        for mapping in [Mapping::CoreAffine, Mapping::Shared, Mapping::Lcam, Mapping::Handoff] {
            let (server, client) = (runtime("server", 3), runtime("client", 1));
            let (listener, ports) = listen_with(&server.handle(), |config| {
                config.local_sockets = local;
                config.placement.mapping = mapping;
            });
            let connection = connect(&client, &listener);
            // More than any socket buffer holds, so that both sides wait for room again and again.
            for len in [0, 1, 4096, 70_001, 1 << 20, 9_000_001] {
                echo(&connection, len);
            }
            let came = ports.lock().expect("no panic").clone();
            assert_eq!(
                came.iter().map(|port| *port == 0).collect::<Vec<_>>(),
                [local],
                "{mapping:?}"
            );
            client.shutdown();
            server.shutdown();
        }
    }
}

#[test]
fn many_messages_at_once_fill_the_socket_both_ways() {
    for local in [false, true] {
        let (server, client) = (runtime("server", 1), runtime("client", 1));
        let (listener, _) = listen_with(&server.handle(), |config| config.local_sockets = local);
        let connection = connect(&client, &listener);
        let calls: Vec<_> = (0..200u8)
            .map(|n| {
                connection.call(
                    Message::new(TrafficClass::Client, ECHO, Bytes::new(), vec![n; 100_000].into()),
                    LONG,
                )
            })
            .collect();
        for (n, call) in (0..200u8).zip(calls) {
            let reply = sync::block_on(call).expect("answered");
            assert!(
                reply.data.len() == 100_000 && reply.data.iter().all(|byte| *byte == n),
                "reply {n}"
            );
        }
        client.shutdown();
        server.shutdown();
    }
}

fn unix_name(listener: &Listener) -> UnixAddr {
    UnixAddr::from_abstract_name(format!("trefoil/{}", listener.local_addr())).expect("a name")
}

#[test]
fn the_name_is_there_only_while_local_peers_may_come() {
    let server = runtime("server", 1);
    let (closed, _) = listen_with(&server.handle(), |config| config.local_sockets = false);
    assert!(UnixStream::connect_addr(&unix_name(&closed)).is_err());
    let (open, _) = listen_with(&server.handle(), |_| {});
    let name = unix_name(&open);
    wait_until("the name", || UnixStream::connect_addr(&name).is_ok());
    drop(open);
    wait_until("the end of the name", || UnixStream::connect_addr(&name).is_err());
    server.shutdown();
}

#[test]
fn a_name_that_is_taken_leaves_tcp() {
    let (server, client) = (runtime("server", 1), runtime("client", 1));
    let addr = free_address();
    let name = UnixAddr::from_abstract_name(format!("trefoil/{addr}")).expect("a name");
    let taken = UnixListener::bind_addr(&name).expect("free");
    let (listener, ports) = listen_with(&server.handle(), |config| config.addr = addr);
    drop(taken);
    let connection = connect(&client, &listener);
    echo(&connection, 10);
    assert_ne!(ports.lock().expect("no panic")[..], [0]);
    client.shutdown();
    server.shutdown();
}

fn free_address() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|socket| socket.local_addr())
        .expect("a port")
}

#[test]
fn garbage_through_either_closes_that_socket_alone() {
    let (server, client) = (runtime("server", 1), runtime("client", 1));
    let (listener, _) = listen_with(&server.handle(), |_| {});
    let connection = connect(&client, &listener);
    echo(&connection, 10);
    let name = unix_name(&listener);
    let mut sockets: Vec<Box<dyn ReadWrite>> = vec![
        Box::new(TcpStream::connect(listener.local_addr()).expect("listens")),
        Box::new(UnixStream::connect_addr(&name).expect("listens")),
    ];
    for socket in &mut sockets {
        socket.write_all(&[0xa5; 64]).expect("taken");
        // It may say why before it closes; what matters is that it does.
        let _ = socket.read_to_end(&mut Vec::new());
    }
    echo(&connection, 10);
    client.shutdown();
    server.shutdown();
}

trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

/// What was lent to whoever runs on this runtime, in bytes.
fn lent_bytes_in(runtime: &Runtime) -> u64 {
    runtime.handle().stats().workers.iter().map(|worker| worker.lent_bytes_in).sum()
}

#[test]
fn data_in_buffers_is_lent_both_ways_if_both_ends_want_that() {
    for (server_shares, client_shares) in [(true, true), (true, false), (false, true)] {
        let start = |name, shared_memory| {
            Runtime::start(RuntimeConfig { shared_memory, ..RuntimeConfig::new(name, 1) })
                .expect("starts")
        };
        let (server, client) = (start("server", server_shares), start("client", client_shares));
        let (listener, _) = listen_with(&server.handle(), |_| {});
        let connection = connect(&client, &listener);
        for len in [0, 1, 4096, 8192, 70_001, 1 << 20, 9_000_001] {
            let data = client.handle().pools().pool(0).copy_of(&vec![len as u8; len]);
            let request =
                Message::new(TrafficClass::Client, ECHO, Bytes::from_static(b"f"), data.clone());
            assert!(
                call(&connection, request).expect("answered").data == data,
                "{len} bytes came back different"
            );
        }
        // What the server answers with lies in the client's memory, not in its own.
        let lent =
            if server_shares && client_shares { 8192 + 70_001 + (1 << 20) + 9_000_001 } else { 0 };
        assert_eq!((lent_bytes_in(&server), lent_bytes_in(&client)), (lent, 0));
        client.shutdown();
        server.shutdown();
    }
}
