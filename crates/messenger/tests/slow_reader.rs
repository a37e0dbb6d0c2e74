//! A peer that asks and never reads. Alone in its process, whose memory it watches.

#[expect(dead_code, reason = "what tests share; this one needs a part of it")]
#[path = "common/basics.rs"]
mod basics;
#[path = "common/frames.rs"]
mod frames;
#[path = "common/memory.rs"]
mod memory;
#[path = "common/raw.rs"]
mod raw;

use std::io::{Read, Write};
use std::rc::Rc;
use std::time::Duration;

use basics::*;
use bytes::Bytes;
use messenger::*;

/// The reply is as long as the request.
struct Echo;

impl Service for Echo {
    fn on_message(&self, _: &Worker, connection: &Connection, message: Message) {
        connection.reply(&message, ECHO, message.front.clone(), message.data.clone());
    }
}

#[test]
fn a_peer_that_does_not_read_makes_nothing_grow() {
    const PAUSE_BYTES: usize = 1 << 20;
    const ASKED_BYTES: usize = 1 << 30;
    const DATA_BYTES: usize = 64 << 10;
    let (server, client) = (runtime("server", 1), runtime("client", 1));
    let mut config =
        ListenConfig::new("127.0.0.1:0".parse().expect("an address"), CLUSTER, "server");
    config.session.pause_bytes = PAUSE_BYTES;
    let listener = server.handle().listen(config, |_| Rc::new(Echo)).expect("listens");
    let to = ConnectConfig::new(listener.local_addr(), CLUSTER, "good");
    let good = client.handle().connect(0, to, |_| Rc::new(NoService));
    assert!(call(&good, message(ECHO, b"")).is_ok());

    let mut greedy = raw::greeted(listener.local_addr(), CLUSTER, 1);
    let before = memory::resident_bytes();
    greedy.set_write_timeout(Some(Duration::from_secs(2))).expect("a time");
    let (mut sent, mut frames) = (0, 0);
    let rest = 'sending: loop {
        assert!(sent < ASKED_BYTES, "it takes everything");
        frames += 1;
        let request = Message::new(
            TrafficClass::Client,
            ECHO,
            Bytes::new(),
            Bytes::from(vec![frames as u8; DATA_BYTES]),
        );
        let bytes = frames::frame(frames, Message { id: frames, ..request });
        let mut at = 0;
        while at < bytes.len() {
            match greedy.write(&bytes[at..]) {
                Ok(count) => (at, sent) = (at + count, sent + count),
                Err(_) => break 'sending bytes[at..].to_vec(),
            }
        }
    };
    let grown = memory::resident_bytes().saturating_sub(before);
    println!(
        "{sent} bytes were taken from a peer that reads nothing; memory grew by {grown} bytes"
    );
    // what is read before the pause, replies waiting, and what the allocator keeps
    assert!(grown < 32 * PAUSE_BYTES as u64, "{grown} bytes more");
    assert!(call(&good, message(ECHO, b"")).is_ok());

    // it goes on as soon as the peer reads
    let mut reading = greedy.try_clone().expect("a descriptor");
    let expected = frames as usize * DATA_BYTES;
    let reader = std::thread::spawn(move || {
        let (mut chunk, mut received) = (vec![0; 1 << 16], 0);
        while received < expected {
            received += reading.read(&mut chunk).expect("more replies");
        }
    });
    greedy.set_write_timeout(Some(LONG)).expect("a time");
    greedy.write_all(&rest).expect("taken at last");
    reader.join().expect("all replies came");
}
