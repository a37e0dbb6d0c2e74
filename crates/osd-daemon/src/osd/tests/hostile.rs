//! Messages that are well formed and mean harm, sent to a live OSD by a session that it knows.

use super::*;
use protocol::recovery::{RecoveryBody, RecoveryRequest};
use protocol::shard::{MarkRequest, Op, ReadRequest, WireObject, WriteRequest};
use protocol::{Gfid, ObjectId, ShardIndex};

const EXTREMES: [u64; 10] =
    [0, 1, 511, 512, (32 << 20) - 512, 32 << 20, 1 << 58, 1 << 63, u64::MAX - 511, u64::MAX];

fn object() -> WireObject {
    ObjectId { gfid: Gfid::of_inode(77), index: u32::MAX }.into()
}

fn message(kind: Kind, front: &[u8], data: &Bytes) -> Message {
    Message::new(TrafficClass::Client, kind.to_u16(), Bytes::copy_from_slice(front), data.clone())
}

/// Writes of every operation with every combination of extremes.
fn writes(head: ShardHead) -> Vec<Message> {
    let mut all = Vec::new();
    let mut seq = 1;
    for offset in EXTREMES {
        for (length, data) in
            [(0u32, 0), (512, 512), (u32::MAX, 0), (512, 100), (u32::MAX - 511, 512)]
        {
            for op in (0..=Op::Nothing as u8).chain([0xff]) {
                let request = WriteRequest {
                    head,
                    seq: seq.into(),
                    pred: (seq - 1).into(),
                    object: object(),
                    op,
                    flags: 0xff,
                    touch: u16::MAX.into(),
                    offset: offset.into(),
                    length: length.into(),
                    logical_end: u64::MAX.into(),
                };
                seq += 1;
                all.push(message(Kind::Write, request.as_bytes(), &vec![7; data].into()));
            }
        }
    }
    all
}

fn reads(head: ShardHead) -> Vec<Message> {
    let mut all = Vec::new();
    for kind in [Kind::Read, Kind::Stat, Kind::Extents, Kind::Objects] {
        for offset in EXTREMES {
            for length in [0u32, 1, 512, 1 << 20, 1 << 31, u32::MAX] {
                let (offset, length) = (offset.into(), length.into());
                let request =
                    ReadRequest { head, after: 0.into(), object: object(), offset, length };
                all.push(message(kind, request.as_bytes(), &Bytes::new()));
            }
        }
    }
    all
}

fn recoveries(pg: PgId, epoch: protocol::Epoch) -> Vec<Message> {
    let mut all = Vec::new();
    for from in [0, 1, 15, 16, 255] {
        for offset in EXTREMES {
            let (known, floor) = (vec![(SessionId::new(u64::MAX), Seq::new(u64::MAX))], Vec::new());
            let object = ObjectId { gfid: Gfid::of_inode(77), index: u32::MAX };
            let snap = RecoveryBody::Snap { object, offset, length: 1 << 20, known, floor };
            let list =
                RecoveryBody::List { after: Some(object), blank: true, attached: Vec::new() };
            for body in [snap, list, RecoveryBody::Report { objects: vec![object; 9] }] {
                let request = RecoveryRequest { pg, epoch, from: ShardIndex::new(from), body };
                all.push(message(Kind::Recovery, &protocol::encode(&request), &Bytes::new()));
            }
        }
    }
    all
}

#[test]
fn extremes_in_every_field_are_answered_or_refused_and_nothing_dies() {
    let cluster = TestCluster::start(1, Mapping::CoreAffine);
    let MonitorReply::Session { session, epoch, .. } =
        cluster.ask(&MonitorRequest::OpenSession { name: "t".into() })
    else {
        panic!("no session")
    };
    let osd = cluster.osd(0);
    wait_until("the osd knows the session", || osd.map().is_some_and(|map| map.epoch >= epoch));
    let map = osd.map().expect("a map");
    let (&pg, info) = map.pgs.iter().next().expect("a placement group");
    let acks = Arc::new(Mutex::new(Vec::new()));
    let attached = || {
        let for_service = Arc::clone(&acks);
        let to = ConnectConfig::new(osd.addr(), map.cluster, "test");
        cluster.runtime.handle().connect(0, to, move |_| Rc::new(Acks(for_service)))
    };
    let connection = attached();
    connection.send(attach(&map, pg, session));
    let head = ShardHead::new(pg, info.epoch, session, AttachId::new(1), Seq::default());
    for write in writes(head) {
        connection.send(write);
    }
    let beyond = ShardHead::new(pg, info.epoch, session, AttachId::new(1), Seq::new(u64::MAX));
    for flags in [0, MarkRequest::SYNC, u16::MAX] {
        connection.send(message(
            Kind::Mark,
            MarkRequest { head: beyond, flags: flags.into() }.as_bytes(),
            &Bytes::new(),
        ));
    }
    for question in reads(head).into_iter().chain(recoveries(pg, info.epoch)) {
        // one that closes its connection must not hide what the next does
        let connection = cluster.connect(osd.addr());
        let kind = question.kind;
        let answer = block_on(connection.call(question, PATIENCE));
        let fine = matches!(answer, Ok(_) | Err(CallError::Reset | CallError::Closed));
        assert!(fine, "{kind:#06x}: {answer:?}");
        connection.close();
    }
    assert!(!acks.lock().expect("no panic").is_empty());
    let stats = osd.shared.handle.stats();
    assert_eq!((stats.total().panics, stats.blocking_panics), (0, 0));
    wait_until("heartbeats go on", || cluster.all_are(PgCondition::Clean));
    connection.close();
}
