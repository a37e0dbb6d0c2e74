//! What telemetry costs a messenger: empty calls per second with it on and off, in turns, and the medians.
//!
//! `cargo bench -p benches --bench telemetry [ROUNDS]`. Client and server with one worker each, 16 calls in flight, each
//! round half a second. The machine's own noise is printed beside it: the spread of the rounds of one kind.

use bytes::Bytes;
use messenger::{
    ConnectConfig, Connection, ListenConfig, Message, NoService, Runtime, RuntimeConfig, Service, TrafficClass, Worker,
};
use std::rc::Rc;
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(10);
const ROUND: Duration = Duration::from_millis(500);
const IN_FLIGHT: usize = 16;
const ROUNDS: usize = 15;

struct Echo;

impl Service for Echo {
    fn on_message(&self, _: &Worker, connection: &Connection, message: Message) {
        connection.reply(&message, 2, Bytes::new(), message.data.clone());
    }
}

/// Calls per second.
fn round(telemetry: bool, duration: Duration) -> f64 {
    let start = |name: &str| {
        let config = RuntimeConfig { telemetry, ..RuntimeConfig::new(name, 1) };
        Runtime::start(config).expect("threads")
    };
    let (server, client) = (start("server"), start("client"));
    let cluster = protocol::ClusterId::new(1);
    let listen = ListenConfig::new(([127, 0, 0, 1], 0).into(), cluster, "server");
    let listener = server.handle().listen(listen, |_| Rc::new(Echo)).expect("a port");
    let to = ConnectConfig::new(listener.local_addr(), cluster, "client");
    let connection = client.handle().connect(0, to, |_| Rc::new(NoService));
    let run = client.handle().block_on_worker(0, move |_| async move {
        let (began, mut done) = (Instant::now(), 0usize);
        while began.elapsed() < duration {
            let request = || Message::new(TrafficClass::Client, 1, Bytes::new(), Bytes::new());
            let calls: Vec<_> = (0..IN_FLIGHT).map(|_| connection.call(request(), DEADLINE)).collect();
            for call in calls {
                call.await.expect("a reply");
            }
            done += IN_FLIGHT;
        }
        done as f64 / began.elapsed().as_secs_f64()
    });
    drop(listener);
    let rate = run.expect("the worker lives");
    client.shutdown();
    server.shutdown();
    rate
}

fn median(rates: &mut [f64]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

fn main() {
    // `cargo test --benches` only wants to know that it runs.
    let is_test = !std::env::args().any(|argument| argument == "--bench");
    let asked = std::env::args().skip(1).find_map(|argument| argument.parse().ok());
    let (rounds, duration) =
        if is_test { (1, Duration::from_millis(20)) } else { (asked.unwrap_or(ROUNDS).max(1), ROUND) };
    let (mut on, mut off) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        on.push(round(true, duration));
        off.push(round(false, duration));
    }
    let (mid_on, mid_off) = (median(&mut on), median(&mut off));
    for (name, rates, mid) in [("on", &on, mid_on), ("off", &off, mid_off)] {
        let (low, high) = (rates[0], rates[rates.len() - 1]);
        println!("telemetry {name:3}: median {mid:.0} calls/s, {low:.0} to {high:.0} in {rounds} rounds");
    }
    println!("with telemetry {:+.1}% of the calls without", (mid_on / mid_off - 1.0) * 100.0);
}
