//! More connections than file descriptors. Alone in its process, whose limit it lowers.

#[path = "common/basics.rs"]
mod basics;

use std::fs::File;
use std::rc::Rc;

use basics::*;
use messenger::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

struct Echo;

impl Service for Echo {
    fn on_message(&self, _: &Worker, connection: &Connection, message: Message) {
        connection.reply(&message, ECHO, message.front.clone(), message.data.clone());
    }
}

#[test]
fn a_listener_without_descriptors_waits_and_goes_on() {
    let (server, client) = (runtime("server", 1), runtime("client", 1));
    let config = ListenConfig::new("127.0.0.1:0".parse().expect("an address"), CLUSTER, "server");
    let listener = server.handle().listen(config, |_| Rc::new(Echo)).expect("listens");
    let connect = || {
        let to = ConnectConfig::new(listener.local_addr(), CLUSTER, "client");
        client.handle().connect(0, to, |_| Rc::new(NoService))
    };
    let good = connect();
    let echoes = |connection: &Connection| {
        assert_eq!(number(&call(connection, numbered(ECHO, 7)).expect("answered")), 7);
    };
    echoes(&good);
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(200), ..before })
        .expect("lower than before");
    let mut taken: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    // one for the client's socket, none for the server's
    drop(taken.pop().expect("some were free"));
    let late = connect();
    let counters = || server.handle().stats().total();
    wait_until("the refusal of the system", || counters().accept_errors >= 1);
    echoes(&good); // who is there is served on
    let began = counters();
    wait_until("more attempts", || counters().accept_errors >= began.accept_errors + 2);
    let (polls, errors) =
        (counters().polls - began.polls, counters().accept_errors - began.accept_errors);
    assert!(polls <= 20 * errors, "{polls} turns for {errors} attempts: it spins");
    drop(taken);
    echoes(&late);
    setrlimit(Resource::Nofile, before).expect("as it was");
}
