//! What all tests over sockets share.

use std::time::{Duration, Instant};

use bytes::Bytes;
use messenger::*;
use protocol::ClusterId;

/// Long enough for a loaded machine; nothing waits for it to pass.
pub const LONG: Duration = Duration::from_secs(60);
pub const CLUSTER: ClusterId = ClusterId::new(7);

/// Echo with the worker's index in the reply's flags.
pub const ECHO: u16 = 1;

pub fn runtime(name: &str, workers: usize) -> Runtime {
    Runtime::start(RuntimeConfig::new(name, workers)).expect("starts")
}

pub fn message(kind: u16, front: &[u8]) -> Message {
    Message::new(TrafficClass::Client, kind, Bytes::copy_from_slice(front), Bytes::new())
}

pub fn numbered(kind: u16, number: u64) -> Message {
    message(kind, &number.to_le_bytes())
}

pub fn number(message: &Message) -> u64 {
    u64::from_le_bytes(message.front[..8].try_into().expect("eight bytes"))
}

pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LONG, "waited in vain for: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn call(connection: &Connection, message: Message) -> Result<Message, CallError> {
    sync::block_on(connection.call(message, LONG))
}
