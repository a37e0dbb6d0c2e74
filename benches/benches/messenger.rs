//! Calls over loopback: request and reply of several sizes, one at a time and 16 at once, in one
//! run.
//!
//! `cargo bench -p benches --bench messenger`. The bare blocking echo over the same loopback is the
//! floor.

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use messenger::sync::block_on;
use messenger::{
    ConnectConfig, Connection, ListenConfig, Message, NoService, Runtime, RuntimeConfig, Service,
    TrafficClass, Worker,
};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::rc::Rc;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(10);

/// Answers with as many bytes as the front segment asks for.
struct Server(Bytes);

impl Service for Server {
    fn on_message(&self, _: &Worker, connection: &Connection, message: Message) {
        let wanted =
            u32::from_le_bytes(message.front[..4].try_into().expect("four bytes")) as usize;
        connection.reply(&message, 2, Bytes::new(), self.0.slice(..wanted));
    }
}

fn request(bytes: u32) -> Message {
    Message::new(
        TrafficClass::Client,
        1,
        Bytes::copy_from_slice(&bytes.to_le_bytes()),
        Bytes::new(),
    )
}

fn calls(c: &mut Criterion) {
    let server = Runtime::start(RuntimeConfig::new("server", 1)).expect("a server");
    let client = Runtime::start(RuntimeConfig::new("client", 1)).expect("a client");
    let cluster = protocol::ClusterId::new(1);
    let data = Bytes::from(vec![7; 1 << 20]);
    let listen = ListenConfig::new(([127, 0, 0, 1], 0).into(), cluster, "server");
    let listener =
        server.handle().listen(listen, move |_| Rc::new(Server(data.clone()))).expect("a listener");
    let to = ConnectConfig::new(listener.local_addr(), cluster, "client");
    let connection = client.handle().connect(0, to, |_| Rc::new(NoService));
    for bytes in [0u32, 4 << 10, 64 << 10, 1 << 20] {
        let mut group = c.benchmark_group(format!("call/{}K", bytes >> 10));
        for flight in [1usize, 16] {
            group.throughput(Throughput::Elements(flight as u64));
            group.bench_function(BenchmarkId::new("in-flight", flight), |b| {
                b.iter(|| {
                    let connection = connection.clone();
                    let burst = client.handle().block_on_worker(0, move |_| async move {
                        let calls: Vec<_> = (0..flight)
                            .map(|_| connection.call(request(bytes), DEADLINE))
                            .collect();
                        for call in calls {
                            call.await.expect("a reply");
                        }
                    });
                    burst.expect("the worker lives");
                });
            });
        }
        group.finish();
    }
    block_on(connection.call(request(0), DEADLINE)).expect("the connection is still up");
    drop(listener);
    client.shutdown();
    server.shutdown();
}

fn bare_echo(c: &mut Criterion) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        let Ok((mut socket, _)) = listener.accept() else { return };
        socket.set_nodelay(true).expect("a TCP socket");
        let (mut ask, reply) = ([0; 4], vec![7; 4 << 10]);
        while socket.read_exact(&mut ask).is_ok() && socket.write_all(&reply).is_ok() {}
    });
    let mut socket = TcpStream::connect(addr).expect("the server listens");
    socket.set_nodelay(true).expect("a TCP socket");
    let mut reply = vec![0; 4 << 10];
    c.bench_function("bare-echo/4K/1", |b| {
        b.iter(|| {
            socket.write_all(&[1; 4]).expect("the server lives");
            socket.read_exact(&mut reply).expect("the server answers");
        });
    });
}

criterion_group!(benches, calls, bare_echo);
criterion_main!(benches);
