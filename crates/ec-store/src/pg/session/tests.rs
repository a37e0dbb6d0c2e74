//! The session machine by example; random runs against real shards are in `pg/sim.rs`.

use super::*;
use protocol::{Gfid, PoolId, Profile};
use smallvec::smallvec;

fn view(epoch: u64) -> PgView {
    let profile = Profile::new(2, 1, 512, 1 << 20).expect("a profile");
    let pg = PgId { pool: PoolId::new(1), number: 7 };
    PgView {
        pg,
        epoch: Epoch::new(epoch),
        profile,
        in_sync: ShardSet::first(3),
        joining: ShardSet::EMPTY,
        active: true,
    }
}

fn write(shards: &[u8]) -> NewWrite {
    let piece = Piece { offset: 0, length: 512, data: Bytes::from(vec![1; 512]), data_crc: None };
    let mut pieces: WritePieces = smallvec![];
    shards.iter().for_each(|&s| pieces.push((ShardIndex::new(s), piece.clone())));
    NewWrite {
        object: ObjectId { gfid: Gfid::of_inode(9), index: 0 },
        op: Op::Write,
        logical_end: 1024,
        pieces,
    }
}

struct Bench {
    machine: PgSession,
    now: Instant,
}

impl Bench {
    fn new() -> Self {
        let now = Instant::now();
        let mut machine = PgSession::new(SessionId::new(3), view(1), SessionSettings::default());
        (0..3).for_each(|s| machine.connection(now, ShardIndex::new(s), true));
        Self { machine, now }
    }

    fn actions(&mut self) -> Vec<Action> {
        std::iter::from_fn(|| self.machine.next_action()).collect()
    }

    fn ack(&mut self, shard: u8, tail: u64, durable: u64, flags: u8, status: Status) {
        let attach = self.machine.links[usize::from(shard)].aid;
        let ack = AckMessage {
            pg: self.machine.pg().to_u64().into(),
            epoch: self.machine.view.epoch.get().into(),
            attach: attach.into(),
            tail: tail.into(),
            durable: durable.into(),
            free: (1 << 30).into(),
            status: status as u8,
            flags,
        };
        self.machine.ack(self.now, ShardIndex::new(shard), &ack);
    }

    fn attach_all(&mut self) {
        self.machine.want_attached(self.now);
        assert_eq!(self.actions().len(), 3);
        (0..3).for_each(|s| self.ack(s, 0, 0, AckMessage::HELLO, Status::Ok));
        assert_eq!(self.actions(), []);
    }

    fn sent_writes(&mut self) -> Vec<(u8, u64, u64)> {
        let of = |a| match a {
            Action::Send { shard, request: Request::Write(w, ..) } => {
                Some((shard.get(), w.seq.get(), w.pred.get()))
            }
            _ => None,
        };
        self.actions().into_iter().filter_map(of).collect()
    }
}

#[test]
fn writes_are_reported_in_order_and_stable_when_durable() {
    let mut b = Bench::new();
    b.attach_all();
    b.machine.write(b.now, write(&[0, 1, 2])).expect("taken");
    b.machine.write(b.now, write(&[0, 2])).expect("taken");
    assert_eq!(b.sent_writes(), [(0, 1, 0), (1, 1, 0), (2, 1, 0), (0, 2, 1), (2, 2, 1)]);
    b.ack(0, 2, 0, 0, Status::Ok);
    b.ack(2, 2, 0, 0, Status::Ok);
    assert_eq!(b.actions(), []);
    b.ack(1, 1, 0, 0, Status::Ok);
    assert_eq!(b.actions(), [Action::Reported(Seq::new(2))]);
    b.machine.want_stable(b.now, Seq::new(2));
    assert_eq!(b.actions().len(), 3);
    b.ack(0, 2, 2, 0, Status::Ok);
    b.ack(1, 1, 1, 0, Status::Ok);
    b.ack(2, 2, 2, 0, Status::Ok);
    assert_eq!(b.actions(), [Action::Stable(Seq::new(2))]);
    assert_eq!(b.machine.kept_bytes(), 0);
}

#[test]
fn a_new_attach_resends_and_voids_old_answers() {
    let mut b = Bench::new();
    b.attach_all();
    (0..3).for_each(|_| {
        b.machine.write(b.now, write(&[0, 1, 2])).expect("taken");
    });
    b.ack(0, 3, 0, 0, Status::Ok);
    b.ack(1, 3, 0, 0, Status::Ok);
    b.actions();
    let token = b.machine.read_token(ShardIndex::new(2)).expect("attached");
    assert_eq!(token.after, Seq::new(3));
    b.machine.connection(b.now, ShardIndex::new(2), false);
    assert!(!b.machine.is_current(ShardIndex::new(2), token.attach));
    b.machine.connection(b.now, ShardIndex::new(2), true);
    b.actions();
    b.ack(2, 1, 0, AckMessage::HELLO, Status::Ok);
    assert_eq!(b.sent_writes(), [(2, 2, 1), (2, 3, 2)]);
    assert!(b.machine.is_current(ShardIndex::new(2), AttachId::new(2)));
}

#[test]
fn a_smaller_set_in_a_new_epoch_completes_writes() {
    let mut b = Bench::new();
    b.attach_all();
    b.machine.write(b.now, write(&[0, 1, 2])).expect("taken");
    b.ack(0, 1, 0, 0, Status::Ok);
    b.ack(1, 1, 0, 0, Status::Ok);
    let shrunk = PgView { in_sync: ShardSet::first(2), ..view(5) };
    b.machine.learn(b.now, shrunk);
    b.actions();
    b.ack(0, 1, 0, AckMessage::HELLO, Status::Ok);
    assert_eq!(b.actions(), []);
    b.ack(1, 1, 0, AckMessage::HELLO, Status::Ok);
    assert_eq!(b.actions(), [Action::Reported(Seq::new(1))]);
    assert_eq!(b.machine.readable(), ShardSet::first(2));
}

#[test]
fn silence_and_lack_of_room_are_overcome() {
    let mut b = Bench::new();
    b.attach_all();
    b.machine.write(b.now, write(&[0, 1, 2])).expect("taken");
    b.actions();
    b.ack(0, 0, 0, 0, Status::Busy);
    b.now = b.machine.next_deadline().expect("a resend is due");
    b.machine.tick(b.now);
    assert_eq!(b.sent_writes(), [(0, 1, 0)]);
    b.now += SessionSettings::default().ack_deadline;
    b.machine.tick(b.now);
    b.now += SessionSettings::default().retry_delay;
    b.machine.tick(b.now);
    let attaches = b
        .actions()
        .iter()
        .filter(|a| matches!(a, Action::Send { request: Request::Attach(_), .. }))
        .count();
    assert_eq!(attaches, 3);
}

#[test]
fn nothing_is_sent_once_fenced_and_nonsense_is_refused() {
    let mut b = Bench::new();
    b.attach_all();
    let mut odd = write(&[0]);
    odd.pieces[0].1.offset = 100;
    assert_eq!(b.machine.write(b.now, odd), Err(Refusal::Invalid));
    assert_eq!(b.machine.write(b.now, write(&[0, 3])), Err(Refusal::Invalid));
    b.ack(1, 0, 0, 0, Status::Fenced);
    assert_eq!(b.actions(), [Action::Fenced]);
    assert_eq!(b.machine.write(b.now, write(&[0])), Err(Refusal::Fenced));
}
