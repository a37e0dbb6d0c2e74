//! What the loopback tests share: an echoing service that records.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

pub use basics::*;
use messenger::*;

mod basics;

/// One-way; its front is recorded.
pub const RECORD: u16 = 2;
/// Never answered.
pub const SILENT: u16 = 3;
/// The handler panics.
pub const PANIC: u16 = 4;
/// The server calls the client with ECHO and passes the answer on.
pub const CALL_BACK: u16 = 5;
/// The server closes the connection.
pub const CLOSE: u16 = 6;

/// What happened, seen from outside.
#[derive(Default)]
pub struct Log {
    pub recorded: Mutex<Vec<u64>>,
    pub events: Mutex<Vec<String>>,
    pub opened: AtomicUsize,
    pub closed: AtomicUsize,
    pub connections: Mutex<Vec<Connection>>,
}

impl Log {
    pub fn count(&self, event: &str) -> usize {
        self.events.lock().expect("no panic").iter().filter(|seen| seen.contains(event)).count()
    }
}

pub struct TestService {
    pub log: Arc<Log>,
    pub messages: Cell<u64>,
}

impl TestService {
    pub fn factory(log: &Arc<Log>) -> impl Fn(&Worker) -> Rc<dyn Service> + Send + Sync + 'static {
        let log = Arc::clone(log);
        move |_| Rc::new(TestService { log: Arc::clone(&log), messages: Cell::new(0) })
    }
}

impl Service for TestService {
    fn on_message(&self, worker: &Worker, connection: &Connection, message: Message) {
        self.messages.set(self.messages.get() + 1);
        match message.kind {
            ECHO => {
                let to = message.reply_to();
                let mut reply = Message::new(message.class, ECHO, message.front, message.data);
                reply.flags = worker.index() as u32;
                reply.data_crc = message.data_crc;
                connection.reply_to(to, reply);
            }
            RECORD => self.log.recorded.lock().expect("no panic").push(number(&message)),
            PANIC => panic!("expected by the test"),
            CALL_BACK => {
                let connection = connection.clone();
                let to = message.reply_to();
                worker.spawn(async move {
                    let asked = Message::new(message.class, ECHO, message.front, message.data);
                    let answer = connection.call(asked, LONG).await.expect("the client answers");
                    connection.reply_to(
                        to,
                        Message::new(answer.class, CALL_BACK, answer.front, answer.data),
                    );
                });
            }
            CLOSE => connection.close(),
            _ => {}
        }
    }

    fn on_open(&self, _worker: &Worker, connection: &Connection, peer: &PeerInfo) {
        self.log.opened.fetch_add(1, SeqCst);
        self.log.connections.lock().expect("no panic").push(connection.clone());
        self.log
            .events
            .lock()
            .expect("no panic")
            .push(format!("open {} lane {}", peer.name, peer.lane));
    }

    fn on_close(&self, _worker: &Worker, _connection: &Connection, reason: &CloseReason) {
        self.log.closed.fetch_add(1, SeqCst);
        self.log.events.lock().expect("no panic").push(format!("close: {reason}"));
    }

    fn on_state(&self, _worker: &Worker, _connection: &Connection, event: &StateEvent) {
        self.log.events.lock().expect("no panic").push(format!("{event:?}"));
    }
}

pub fn listen(handle: &Handle, log: &Arc<Log>) -> Listener {
    listen_with(handle, log, |_| {})
}

pub fn listen_with(
    handle: &Handle,
    log: &Arc<Log>,
    adjust: impl FnOnce(&mut ListenConfig),
) -> Listener {
    let mut config =
        ListenConfig::new("127.0.0.1:0".parse().expect("an address"), CLUSTER, "server");
    adjust(&mut config);
    handle.listen(config, TestService::factory(log)).expect("listens")
}

pub fn connect(handle: &Handle, addr: SocketAddr, log: &Arc<Log>) -> Connection {
    let config = ConnectConfig::new(addr, CLUSTER, "client");
    let worker = 0;
    let factory = TestService::factory(log);
    handle.connect(worker, config, move |worker| factory(worker))
}
