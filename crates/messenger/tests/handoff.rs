//! Under `handoff`, a worker that is given a connection's work by others again and again turns to
//! its other work in between. Everything is counted; nothing is timed.

#[path = "common/basics.rs"]
mod basics;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use basics::*;
use messenger::*;

/// How often a worker goes on for the marks of others before it turns to its other work.
const PASSES_MAX: u64 = 4;
/// Messages of the connection that is marked during each.
const MESSAGES: u64 = 300;

/// What the handlers of all workers have seen of the marked connection.
#[derive(Default)]
struct Seen {
    numbers: Mutex<Vec<u64>>,
    /// Most messages that a worker took before its tasks had a turn.
    longest: AtomicU64,
    by_tasks: AtomicU64,
}

/// Tells the test of each numbered message and waits for its word; echoes requests.
struct Stepping {
    seen: Arc<Seen>,
    taken: Sender<u64>,
    goes_on: Arc<Mutex<Receiver<()>>>,
    /// Messages since the worker's tasks had a turn; a task is on its way while there are any.
    since_tasks: Rc<Cell<u64>>,
}

impl Service for Stepping {
    fn on_message(&self, worker: &Worker, connection: &Connection, message: Message) {
        if message.is_request() {
            return connection.reply(&message, ECHO, message.front.clone(), message.data.clone());
        }
        self.seen.numbers.lock().expect("no panic").push(number(&message));
        if self.since_tasks.replace(self.since_tasks.get() + 1) == 0 {
            let (since, seen) = (Rc::clone(&self.since_tasks), Arc::clone(&self.seen));
            worker.spawn(async move {
                seen.longest.fetch_max(since.replace(0), SeqCst);
                seen.by_tasks.fetch_add(1, SeqCst);
            });
        }
        self.taken.send(number(&message)).expect("the test waits");
        self.goes_on.lock().expect("no panic").recv().expect("the test goes on");
    }
}

/// Marks that workers have left on the connection with this name.
fn marks(listener: &Listener, name: &str) -> u64 {
    let connections = listener.connections();
    let found = connections.iter().find(|connection| connection.name == name).expect("it is there");
    found.attachments.iter().map(|attachment| attachment.marks).sum()
}

fn seats(listener: &Listener) -> usize {
    listener
        .connections()
        .iter()
        .flat_map(|connection| &connection.attachments)
        .filter(|attachment| attachment.seated)
        .count()
}

fn run(workers: usize) {
    let (server, client) = (runtime("server", workers), runtime("client", 1));
    let mut config =
        ListenConfig::new("127.0.0.1:0".parse().expect("an address"), CLUSTER, "server");
    config.local_sockets = false; // transport.rs has the other kind
    config.placement.mapping = Mapping::Handoff;
    let seen = Arc::<Seen>::default();
    let ((taken, takes), (go_on, goes_on)) = (channel(), channel());
    let (for_services, taken, goes_on) =
        (Arc::clone(&seen), Mutex::new(taken), Arc::new(Mutex::new(goes_on)));
    let factory = move |_: &Worker| -> Rc<dyn Service> {
        let taken = taken.lock().expect("no panic").clone();
        let (seen, goes_on) = (Arc::clone(&for_services), Arc::clone(&goes_on));
        Rc::new(Stepping { seen, taken, goes_on, since_tasks: Rc::default() })
    };
    let listener = server.handle().listen(config, factory).expect("listens");
    let dial = |name: &str| {
        let to = ConnectConfig::new(listener.local_addr(), CLUSTER, name);
        client.handle().connect(0, to, |_| Rc::new(NoService))
    };
    let (marked, modest) = (dial("marked"), dial("modest"));
    assert!(call(&modest, message(ECHO, b"")).is_ok());
    wait_until("every worker has a seat at both", || {
        marked.is_up() && seats(&listener) == 2 * workers
    });

    marked.send(numbered(2, 0));
    let mut answered = 0;
    while answered < MESSAGES {
        let last = takes.recv().expect("a handler runs");
        // While the handler holds the connection, another message comes, and another worker leaves
        // its mark.
        if last + 1 < MESSAGES {
            let before = marks(&listener, "marked");
            marked.send(numbered(2, last + 1));
            wait_until("a mark", || marks(&listener, "marked") > before);
        }
        if last % 16 == 0 {
            assert_eq!(number(&call(&modest, numbered(ECHO, last)).expect("answered")), last);
        }
        answered += 1;
        go_on.send(()).expect("the handler waits");
    }
    assert!(seen.numbers.lock().expect("no panic").iter().copied().eq(0..MESSAGES));
    wait_until("tasks had their turn", || seen.by_tasks.load(SeqCst) > 0);
    let longest = seen.longest.load(SeqCst);
    // In one turn the connection may run for its socket and once more because it had asked to go
    // on.
    assert!(
        (PASSES_MAX..=2 * PASSES_MAX).contains(&longest),
        "{longest} messages between two turns of tasks"
    );
    assert!(marks(&listener, "marked") >= MESSAGES - 1);
}

#[test]
fn marks_that_never_end_stop_neither_tasks_nor_other_connections() {
    run(2);
    run(3);
}
