//! A journal at its limit, with more sessions than have room below it.

use super::data::{bytes_of, connect, file, write};
use super::*;
use protocol::shard::{Op, SESSION_WINDOW_BYTES, WireObject, WriteRequest, space_taken};
use protocol::{Gfid, ObjectId};
use std::sync::mpsc;

const JOURNAL_BYTES: u64 = 64 << 20;
const RECORD_BYTES: usize = 1 << 20;
/// What a session may have on its way.
const RECORDS: u64 = SESSION_WINDOW_BYTES / space_taken(RECORD_BYTES as u64);
const SESSIONS: usize = 12;

/// A session whose writes reach one of the three shards only, as if the way to the others were
/// slow: they stay unreported.
struct HalfHeard {
    session: SessionId,
    pg: PgId,
    epoch: protocol::Epoch,
    connection: Connection,
    acks: Arc<Mutex<Vec<AckMessage>>>,
}

impl HalfHeard {
    fn attach(cluster: &TestCluster, osd: usize, session: SessionId) -> Self {
        let osd = cluster.osd(osd);
        wait_until("the osd knows the session", || {
            osd.map().is_some_and(|map| map.sessions.contains_key(&session))
        });
        let map = osd.map().expect("a map");
        let (pg, info) = map.pgs.iter().next().expect("a placement group");
        let acks = Arc::new(Mutex::new(Vec::new()));
        let for_service = Arc::clone(&acks);
        let to = ConnectConfig::new(osd.addr(), map.cluster, "test");
        let connection =
            cluster.runtime.handle().connect(0, to, move |_| Rc::new(Acks(for_service)));
        connection.send(attach(&map, *pg, session));
        Self { session, pg: *pg, epoch: info.epoch, connection, acks }
    }

    /// Writes the same range again and again: only the first of these goes around the journal.
    fn write(&self, data: &Bytes) {
        for seq in 1..=RECORDS {
            let object = ObjectId { gfid: Gfid::of_inode(1000 + self.session.get()), index: 0 };
            let request = WriteRequest {
                head: ShardHead::new(
                    self.pg,
                    self.epoch,
                    self.session,
                    AttachId::new(1),
                    Seq::default(),
                ),
                seq: seq.into(),
                pred: (seq - 1).into(),
                object: WireObject::from(object),
                op: Op::Write as u8,
                flags: 0,
                touch: 0b111.into(),
                offset: 0.into(),
                length: (RECORD_BYTES as u32).into(),
                logical_end: (2 * RECORD_BYTES as u64).into(),
            };
            let front = Bytes::copy_from_slice(request.as_bytes());
            self.connection.send(Message::new(
                TrafficClass::Client,
                Kind::Write.to_u16(),
                front,
                data.clone(),
            ));
        }
    }

    fn last_ack(&self) -> Option<AckMessage> {
        self.acks.lock().expect("no panic").last().copied()
    }

    fn is_taken(&self) -> bool {
        self.last_ack().is_some_and(|ack| ack.tail.get() == RECORDS)
    }

    fn was_refused(&self) -> bool {
        self.acks.lock().expect("no panic").iter().any(|ack| ack.status != Status::Ok as u8)
    }

    fn is_held(&self) -> bool {
        self.last_ack().is_some_and(|ack| ack.flags & AckMessage::HOLD != 0)
    }
}

/// Keeps sessions alive, until it is dropped.
struct Renewal {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Renewal {
    fn begin(cluster: &TestCluster, sessions: Vec<SessionId>) -> Self {
        let (stop, stopped) = mpsc::channel();
        let connection = cluster.connect(cluster.addr);
        let renew = move |session| {
            let request = protocol::encode(&MonitorRequest::RenewSession { session });
            let message =
                Message::new(TrafficClass::Control, Kind::Monitor.to_u16(), request, Bytes::new());
            block_on(connection.call(message, PATIENCE)).expect("renewed");
        };
        let thread = std::thread::spawn(move || {
            while stopped.recv_timeout(Duration::from_millis(500))
                == Err(mpsc::RecvTimeoutError::Timeout)
            {
                sessions.iter().copied().for_each(&renew);
            }
        });
        Self { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        self.stop.take();
        let ended = self.thread.take().map(std::thread::JoinHandle::join);
        assert!(
            std::thread::panicking() || matches!(ended, Some(Ok(()))),
            "a session could not be renewed"
        );
    }
}

#[test]
fn a_journal_at_its_limit_takes_what_is_on_its_way_and_asks_for_no_more() {
    // none of its sessions and daemons may be taken for dead before they are meant to be
    let settings = cluster::Settings {
        heartbeat_grace: PATIENCE / 4,
        session_ttl: PATIENCE / 4,
        ..TestCluster::settings()
    };
    let cluster = TestCluster::start_with(settings, 1, Mapping::CoreAffine, |config| {
        config.store = StoreConfig::Memory { bytes_max: 1 << 30 };
        config.journal_bytes_max = JOURNAL_BYTES;
    });
    assert!(SESSIONS as u64 * (RECORDS - 1) * RECORD_BYTES as u64 > JOURNAL_BYTES, "they fill it");
    let sessions: Vec<SessionId> = (0..SESSIONS)
        .map(|_| match cluster.ask(&MonitorRequest::OpenSession { name: "half heard".into() }) {
            MonitorReply::Session { session, .. } => session,
            other => panic!("{other:?}"),
        })
        .collect();
    let renewal = Renewal::begin(&cluster, sessions.clone());
    let client = connect(&cluster);
    write(&client, file(&cluster, 1), bytes_of(1, 1), true);

    let half_heard: Vec<_> =
        sessions.iter().map(|session| HalfHeard::attach(&cluster, 0, *session)).collect();
    let data = Bytes::from(vec![7; RECORD_BYTES]);
    half_heard.iter().for_each(|session| session.write(&data));
    wait_until("all is taken", || half_heard.iter().all(HalfHeard::is_taken));
    assert!(
        !half_heard.iter().any(HalfHeard::was_refused),
        "a record was refused: another core may wait for it"
    );
    assert!(
        half_heard.iter().any(HalfHeard::is_held),
        "the journal is over its limit, and nobody was told"
    );

    // Another session's next write may still be on its way; the one after it waits until the
    // others' records go, with their sessions.
    let (done, wrote) = mpsc::channel();
    let to = file(&cluster, 1);
    let writer = std::thread::spawn(move || {
        for version in 2..=4 {
            write(&client, to, bytes_of(1, version), false);
            done.send(version).expect("somebody listens");
        }
        client
    });
    std::thread::sleep(Duration::from_millis(700));
    assert!(wrote.try_iter().count() <= 1, "a write was begun though the journal is at its limit");
    drop(renewal);
    wait_until("the journal is below its limit again", || {
        wrote.try_iter().any(|version| version == 4)
    });
    let client = writer.join().expect("no panic");
    assert_eq!(super::data::read(&client, to), bytes_of(1, 4));
    client.close().expect("closed");
}
