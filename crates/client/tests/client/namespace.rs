//! Calls to the metadata service against one that is scripted: exactly once over lost answers and
//! restarts, recalls, and blobs' use of it.

use crate::fake::{Fake, listen};
use bytes::Bytes;
use client::{Client, ClientConfig, ClientError, ClientEvent, ask_monitor};
use messenger::{Connection, Listener, Message, Runtime, Service, TrafficClass, Worker};
use protocol::monitor::{MonitorReply, MonitorRequest};
use protocol::namespace::{Answer, Caller, NamespaceOp, Recall, Reply, Request, Timestamp};
use protocol::{Gfid, Kind, Profile};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What survives a restart of the service: the requests carried out, and how often each came.
#[derive(Default)]
struct Log {
    done: BTreeMap<u64, u32>,
    answered: u64,
    /// Requests are carried out, and not answered.
    mute: bool,
    /// So many requests are told to come again.
    again: u32,
}

struct Mds {
    log: Arc<Mutex<Log>>,
}

impl Service for Mds {
    fn on_message(&self, _worker: &Worker, connection: &Connection, message: Message) {
        let request: Request = protocol::decode("request", &message.front).expect("a request");
        let mut log = self.log.lock().expect("no panic");
        assert!(
            request.number > log.answered,
            "a number at or below `answered` is never used again"
        );
        log.answered = log.answered.max(request.answered);
        assert!(log.answered < request.number, "the request itself is under way");
        let reply = if log.again > 0 {
            log.again -= 1;
            Reply::TryAgain
        } else {
            *log.done.entry(request.number).or_default() += 1;
            match request.op {
                NamespaceOp::Lookup { .. } => Reply::Errno(2),
                NamespaceOp::GetAttr { gfid } => {
                    let recall = protocol::encode(&Recall { gfid, keep: None });
                    connection.send(Message::new(
                        TrafficClass::Client,
                        Kind::Recall.to_u16(),
                        recall,
                        Bytes::new(),
                    ));
                    Reply::Done
                }
                _ => Reply::Done,
            }
        };
        if !log.mute {
            connection.reply(
                &message,
                Kind::NamespaceReply.to_u16(),
                protocol::encode(&Answer::bare(reply)),
                Bytes::new(),
            );
        }
    }
}

fn serve(fake: &Fake, log: &Arc<Mutex<Log>>) -> (Listener, Runtime) {
    let log = Arc::clone(log);
    let mds = listen(move |_| Rc::new(Mds { log: Arc::clone(&log) }));
    fake.set_mds(mds.0.local_addr());
    mds
}

fn caller() -> Caller {
    Caller { uid: 0, gid: 0, now: Timestamp::default() }
}

#[test]
fn calls_are_numbered_answered_and_sent_again() {
    let fake = Fake::start(Profile::new(2, 1, 512, 8192).expect("a profile"), 4);
    let mut config = ClientConfig::new(fake.monitor(), "test");
    config.timeout = Duration::from_secs(20);
    let client = Client::connect(config).expect("connected");
    let (tell, told) = mpsc::channel();
    client.on_event(move |event| {
        // The test may have ended.
        let _ = tell.send(event);
    });
    let log = Arc::new(Mutex::new(Log { again: 3, ..Log::default() }));
    let first = serve(&fake, &log);
    let call = |op| client.block_on(client.namespace(op, caller()));
    assert_eq!(call(NamespaceOp::Sync).expect("after three times again"), Reply::Done);
    let lookup = NamespaceOp::Lookup { parent: Gfid::ROOT, name: b"x".to_vec() };
    assert!(matches!(call(lookup), Err(ClientError::Posix(2))));
    call(NamespaceOp::GetAttr { gfid: Gfid::of_inode(4) }).expect("done");
    let event = told.recv().expect("an event");
    assert!(
        matches!(event, ClientEvent::Recall(Recall { gfid, keep: None }) if gfid == Gfid::of_inode(4))
    );

    // The service carries a request out and dies before it answers; its successor elsewhere gets it
    // again.
    log.lock().expect("no panic").mute = true;
    let waiting = std::thread::spawn({
        let client = client.clone();
        move || client.block_on(client.namespace(NamespaceOp::Sync, caller()))
    });
    while !log.lock().expect("no panic").done.contains_key(&4) {
        std::thread::yield_now();
    }
    first.0.stop();
    first.1.shutdown();
    log.lock().expect("no panic").mute = false;
    let _second = serve(&fake, &log);
    assert_eq!(waiting.join().expect("no panic").expect("answered by the successor"), Reply::Done);
    assert!(matches!(told.recv().expect("an event"), ClientEvent::MdsRestarted));
    call(NamespaceOp::Sync).expect("done");
    let log = log.lock().expect("no panic");
    assert_eq!(
        log.done.iter().map(|(n, times)| (*n, *times)).collect::<Vec<_>>(),
        [(1, 1), (2, 1), (3, 1), (4, 2), (5, 1)]
    );
    assert_eq!(log.answered, 4);
}

#[test]
fn the_monitor_answers_without_a_session_or_says_why_not() {
    let fake = Fake::start(Profile::new(2, 1, 512, 8192).expect("a profile"), 4);
    let answer = ask_monitor(&fake.monitor(), &MonitorRequest::Subscribe, Duration::from_secs(20));
    assert!(matches!(answer, Ok(MonitorReply::Map(_))), "{answer:?}");
    let nobody = ask_monitor("127.0.0.1:1", &MonitorRequest::Status, Duration::from_millis(300));
    assert!(
        matches!(&nobody, Err(ClientError::Connect { reason, .. }) if reason.contains("refused")),
        "{nobody:?}"
    );
    assert!(
        ask_monitor("not an address", &MonitorRequest::Status, Duration::from_millis(300)).is_err()
    );
}
