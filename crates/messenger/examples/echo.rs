//! The messenger alone: a server that answers, a client that calls it, and telemetry of both.
//!
//! `cargo run -p messenger --example echo`

use bytes::Bytes;
use messenger::sync::block_on;
use messenger::{
    ConnectConfig, Connection, ListenConfig, Message, NoService, Runtime, RuntimeConfig, Service,
    TrafficClass, Worker,
};
use std::error::Error;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// What kinds of messages there are is the user's affair.
const ECHO: u16 = 1;
const CALLS: u32 = 1000;
const DEADLINE: Duration = Duration::from_secs(5);

/// One of these is made for each connection and worker, so it needs no locks.
struct Echo;

impl Service for Echo {
    fn on_message(&self, _worker: &Worker, connection: &Connection, message: Message) {
        connection.reply(&message, ECHO, message.front.clone(), message.data.clone());
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    // Both sides must name the same cluster; a stranger's connection is refused in the handshake.
    let cluster = protocol::ClusterId::new(7);
    let server = Runtime::start(RuntimeConfig::new("server", 2))?;
    let any_port = "127.0.0.1:0".parse()?;
    let listener = server
        .handle()
        .listen(ListenConfig::new(any_port, cluster, "server"), |_| Rc::new(Echo))?;

    let client = Runtime::start(RuntimeConfig::new("client", 1))?;
    let to = ConnectConfig::new(listener.local_addr(), cluster, "client");
    let connection = client.handle().connect(0, to, |_| Rc::new(NoService));

    // From an ordinary thread: one call after the other.
    let begin = Instant::now();
    for number in 0..CALLS {
        let front = Bytes::copy_from_slice(&number.to_le_bytes());
        let reply = block_on(
            connection
                .call(Message::new(TrafficClass::Client, ECHO, front, Bytes::new()), DEADLINE),
        )?;
        assert_eq!(reply.front[..], number.to_le_bytes());
    }
    println!("{CALLS} calls, one after the other: {:?} each", begin.elapsed() / CALLS);

    // From a task on a worker: all at once; they leave together and come back together.
    let begin = Instant::now();
    let answered = client.handle().block_on_worker(0, move |_worker| async move {
        let data = Bytes::from(vec![7; 4096]);
        let message = || Message::new(TrafficClass::Client, ECHO, Bytes::new(), data.clone());
        let calls: Vec<_> = (0..CALLS).map(|_| connection.call(message(), DEADLINE)).collect();
        let mut answered = 0;
        for call in calls {
            answered += u32::from(call.await.is_ok_and(|reply| reply.data == data));
        }
        answered
    })?;
    println!("{answered} calls of 4 KiB, all at once: {:?} each", begin.elapsed() / CALLS);

    let stats = server.handle().stats().total();
    println!(
        "the server took {} messages and sent {} frames in {} writes",
        stats.messages_in, stats.frames_out, stats.writes
    );
    client.shutdown();
    server.shutdown();
    Ok(())
}
