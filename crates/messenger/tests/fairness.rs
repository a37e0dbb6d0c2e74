//! Tasks, timers and sockets of one worker share it: none stops another, and how much one does at a
//! time is bounded. Everything is counted; nothing is timed.

#[path = "common/basics.rs"]
mod basics;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use basics::*;
use messenger::*;

/// Tasks that a worker polls before it looks at its sockets again.
const TASKS_PER_TURN: u64 = 256;
/// Messages of one connection that a worker dispatches before others have their turn.
const MESSAGES_PER_TURN: u64 = 64;

/// Counts on its worker.
#[derive(Default)]
struct Counting(Rc<Cell<u64>>);

impl Service for Counting {
    fn on_message(&self, _: &Worker, connection: &Connection, message: Message) {
        self.0.set(self.0.get() + 1);
        if message.is_request() {
            connection.reply(&message, ECHO, message.front.clone(), message.data.clone());
        }
    }
}

fn serve(server: &Runtime, mapping: Mapping) -> Listener {
    let mut config =
        ListenConfig::new("127.0.0.1:0".parse().expect("an address"), CLUSTER, "server");
    config.placement.mapping = mapping;
    let factory = |worker: &Worker| -> Rc<dyn Service> {
        let count = Rc::<Cell<u64>>::default();
        worker.set_local(Rc::clone(&count));
        Rc::new(Counting(count))
    };
    server.handle().listen(config, factory).expect("listens")
}

fn dial(client: &Runtime, listener: &Listener) -> Connection {
    client.handle().connect(0, ConnectConfig::new(listener.local_addr(), CLUSTER, "client"), |_| {
        Rc::new(NoService)
    })
}

#[test]
fn a_task_that_always_wakes_itself_stops_no_socket() {
    let (server, client) = (runtime("server", 1), runtime("client", 1));
    let listener = serve(&server, Mapping::CoreAffine);
    let (done, spins) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    let (until, count) = (Arc::clone(&done), Arc::clone(&spins));
    server.handle().spawn_on(0, move |worker| async move {
        while !until.load(SeqCst) {
            count.fetch_add(1, SeqCst);
            worker.yield_now().await;
        }
    });
    wait_until("the task runs", || spins.load(SeqCst) > 0);
    let connection = dial(&client, &listener);
    for i in 0..100 {
        assert_eq!(number(&call(&connection, numbered(ECHO, i)).expect("answered")), i);
    }
    done.store(true, SeqCst);
    let stats = server.handle().stats().total();
    // one turn may be under way
    assert!(stats.task_polls <= TASKS_PER_TURN * (stats.polls + 1), "{stats:?}");
}

/// Polls that returned more events than a worker may take at once with the least setting: the
/// eventfd's and one more.
fn large_polls(server: &Runtime) -> u64 {
    let total = server.handle().stats().total();
    let small = POLL_EVENTS_BOUNDS.iter().filter(|bound| **bound <= 2).count();
    total.poll_classes[small..].iter().sum()
}

/// A call on each connection, all of which wait for the server's only worker; returns the number of
/// large polls.
fn burst(server: &Runtime, client: &Runtime, connections: &[Connection]) -> u64 {
    let (release, released) = std::sync::mpsc::channel::<()>();
    let (begun, begins) = std::sync::mpsc::channel();
    server.handle().spawn_on(0, move |_| async move {
        begun.send(()).expect("the test waits");
        released.recv().expect("the test goes on");
    });
    begins.recv().expect("the worker is busy");
    let (large, sent) = (large_polls(server), || client.handle().stats().total().bytes_out);
    let all = sent() + 1000 * connections.len() as u64;
    let calls: Vec<_> =
        connections.iter().map(|each| each.call(message(ECHO, &[0; 1000]), LONG)).collect();
    wait_until("most are sent", || sent() >= all);
    release.send(()).expect("the worker waits");
    calls.into_iter().for_each(|call| assert!(sync::block_on(call).is_ok()));
    large_polls(server) - large
}

#[test]
fn the_number_of_events_at_once_changes_while_a_worker_runs() {
    let client = runtime("client", 1);
    let config =
        RuntimeConfig { max_events: MaxEvents::Fixed(1), ..RuntimeConfig::new("server", 1) };
    let server = Runtime::start(config).expect("starts");
    let listener = serve(&server, Mapping::CoreAffine);
    let connections: Vec<_> = (0..40).map(|_| dial(&client, &listener)).collect();
    connections.iter().for_each(|each| assert!(call(each, message(ECHO, b"")).is_ok()));
    let set = |max_events| {
        server.handle().set_max_events(max_events);
        assert_eq!(server.handle().max_events(), max_events);
        // a turn, after which it holds
        server.handle().block_on_worker(0, |_| async {}).expect("the worker lives");
    };
    assert_eq!(burst(&server, &client, &connections), 0);
    set(MaxEvents::Fixed(1000));
    assert!(burst(&server, &client, &connections) > 0);
    set(MaxEvents::Fixed(1));
    assert_eq!(burst(&server, &client, &connections), 0);
    set(MaxEvents::Auto);
    assert!(burst(&server, &client, &connections) > 0);
}

#[test]
fn a_flood_on_a_socket_stops_neither_tasks_nor_timers() {
    for mapping in Mapping::ALL {
        let (server, client) = (runtime("server", 1), runtime("client", 1));
        let listener = serve(&server, mapping);
        let connection = dial(&client, &listener);
        let done = AtomicBool::new(false);
        let (most, ticks) = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut sent = 0;
                while !done.load(SeqCst) {
                    // a call now and then, so that no more is queued than the server can take
                    (0..2000).for_each(|_| connection.send(message(ECHO, &[0; 8])));
                    sent += 2000;
                    call(&connection, numbered(ECHO, sent)).expect("answered");
                }
            });
            let watched = server.handle().block_on_worker(0, |worker| async move {
                let count = worker.local::<Cell<u64>>().expect("the service's");
                while count.get() == 0 {
                    worker.yield_now().await;
                }
                let ticks = Rc::<Cell<u64>>::default();
                let (clock, ticked) = (worker.clone(), Rc::clone(&ticks));
                let ticking = worker.spawn(async move {
                    loop {
                        clock.sleep(Duration::from_millis(1)).await;
                        ticked.set(ticked.get() + 1);
                    }
                });
                let (mut most, begin) = (0, count.get());
                while ticks.get() < 20 || count.get() < begin + 20_000 {
                    let before = count.get();
                    worker.yield_now().await;
                    most = most.max(count.get() - before);
                }
                ticking.abort();
                (most, ticks.get())
            });
            done.store(true, SeqCst);
            watched.expect("the worker lives")
        });
        // In one turn the connection may run for its socket and once more because it had asked to
        // go on.
        assert!(
            (1..=2 * MESSAGES_PER_TURN).contains(&most),
            "{mapping}: {most} messages between two turns of a task"
        );
        assert!(ticks >= 20);
    }
}
