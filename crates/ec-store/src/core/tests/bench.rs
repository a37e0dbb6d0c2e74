//! Three cores of one PG, 2 + 1, on real journals and fragment files, with one session, on one
//! worker.

use super::super::recovery::Members;
use super::super::{Core, CoreConfig, Outlet};
use crate::codec;
use crate::pg::{
    Action, NewWrite, PgSession, PgView, Piece, Request, SessionSettings, SessionTable, ShardView,
    WritePieces,
};
use crate::superblock::DataDir;
use bytes::Bytes;
use messenger::{Message, ReplyTo, TrafficClass, Worker};
use protocol::recovery::{RecoveryReply, RecoveryRequest};
use protocol::shard::{AckMessage, Op, ReadReply, Status};
use protocol::{
    ClusterId, CoreId, Epoch, Gfid, Kind, ObjectId, OsdId, PgId, PoolId, Profile, Seq, SessionId,
    ShardIndex, ShardSet,
};
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

pub const SECTOR: usize = 512;
pub const FRAGMENT: usize = 256 << 10;
/// What is written whole is placed.
pub const SLOT: usize = 2 * SECTOR;

pub fn pg() -> PgId {
    PgId { pool: PoolId::new(1), number: 0 }
}

pub fn object(n: u64) -> ObjectId {
    ObjectId { gfid: Gfid::of_inode(n), index: 0 }
}

pub fn si(i: usize) -> ShardIndex {
    ShardIndex::new(i as u8)
}

pub fn profile() -> Profile {
    Profile::new(2, 1, 512, 2 * FRAGMENT as u64).expect("a profile")
}

/// Collects what a core sends.
#[derive(Clone, Default)]
pub struct Inbox {
    pub acks: Rc<RefCell<VecDeque<AckMessage>>>,
    pub replies: Rc<RefCell<HashMap<u64, Message>>>,
}

impl Outlet for Inbox {
    fn send(&self, message: Message) {
        let ack = AckMessage::read_from_bytes(&message.front).expect("an acknowledgement");
        self.acks.borrow_mut().push_back(ack);
    }

    fn reply_to(&self, to: ReplyTo, message: Message) {
        self.replies.borrow_mut().insert(to.id, message);
    }
}

/// What an object holds, by data shard.
pub type Content = [Vec<u8>; 2];

pub struct Bench {
    pub worker: Worker,
    pub dirs: Vec<tempfile::TempDir>,
    pub locks: Vec<DataDir>,
    pub cores: Vec<Option<Core<Inbox>>>,
    pub outlets: Vec<Inbox>,
    pub session: PgSession,
    pub view: PgView,
    pub config: CoreConfig,
    pub contents: HashMap<ObjectId, Content>,
    pub reported: Seq,
    pub stable: Seq,
    next_id: u64,
}

impl Bench {
    pub async fn new(worker: &Worker, config: CoreConfig) -> Self {
        let dirs: Vec<_> = (0..3).map(|_| tempfile::tempdir().expect("a directory")).collect();
        let open = |(n, d): (usize, &tempfile::TempDir)| {
            DataDir::open(d.path(), ClusterId::new(5), OsdId::new(n as u32))
        };
        let locks = dirs.iter().enumerate().map(|d| open(d).expect("a data directory")).collect();
        let all = ShardSet::first(3);
        let (epoch, joining, active) = (Epoch::new(1), ShardSet::EMPTY, true);
        let view = PgView { pg: pg(), epoch, profile: profile(), in_sync: all, joining, active };
        let settings =
            SessionSettings { mark_delay: Duration::from_millis(5), ..SessionSettings::default() };
        let session = PgSession::new(SessionId::new(1), view, settings);
        let (reported, stable) = (Seq::default(), Seq::default());
        let mut bench = Self {
            worker: worker.clone(),
            dirs,
            locks,
            cores: vec![None, None, None],
            outlets: (0..3).map(|_| Inbox::default()).collect(),
            session,
            view,
            config,
            contents: HashMap::new(),
            reported,
            stable,
            next_id: 1,
        };
        (0..3).for_each(|i| bench.open(i));
        bench
    }

    pub fn shard_view(&self, i: usize) -> ShardView {
        let live = [SessionId::new(1)].into();
        let sessions =
            Arc::new(SessionTable { live, dead: Default::default(), last: SessionId::new(1) });
        ShardView { pg: self.view, me: si(i), sessions }
    }

    pub fn open(&mut self, i: usize) {
        let core =
            Core::open(&self.locks[i], self.config.clone(), &self.worker).expect("the core opens");
        core.learn(self.shard_view(i)).expect("the view is taken");
        core.views_are_complete();
        self.cores[i] = Some(core);
        self.session.connection(Instant::now(), si(i), true);
    }

    /// Does the journal of one that does not run name bytes that are not on its disk?
    pub fn lacks_direct_bytes(&self, i: usize) -> bool {
        let core: Core<Inbox> =
            Core::open(&self.locks[i], self.config.clone(), &self.worker).expect("the core opens");
        let lacks = core.lacks_direct_bytes(|_| Some(si(i))).expect("readable");
        core.halt();
        lacks
    }

    /// The process of one OSD dies.
    pub fn kill(&mut self, i: usize) {
        if let Some(core) = self.cores[i].take() {
            core.halt();
        }
        self.outlets[i] = Inbox::default();
        self.session.connection(Instant::now(), si(i), false);
    }

    /// A new epoch with these sets.
    pub fn set_view(&mut self, in_sync: &[usize], joining: &[usize]) {
        let set = |of: &[usize]| of.iter().fold(ShardSet::EMPTY, |s, &i| s.with(si(i)));
        self.view.epoch = Epoch::new(self.view.epoch.get() + 1);
        (self.view.in_sync, self.view.joining) = (set(in_sync), set(joining));
        for i in 0..3 {
            if let Some(core) = &self.cores[i] {
                core.learn(self.shard_view(i)).expect("the view is taken");
            }
        }
        self.session.learn(Instant::now(), self.view);
    }

    /// Carries messages for a moment.
    pub async fn turn(&mut self) {
        while let Some(action) = self.session.next_action() {
            match action {
                Action::Send { shard, request } => self.deliver(usize::from(shard.get()), request),
                Action::Reported(seq) => self.reported = seq,
                Action::Stable(seq) => self.stable = seq,
                Action::ShardLost(shard) => panic!("no-lost-ack: {shard} lost a stable record"),
                Action::Fenced => panic!("the session lives"),
                Action::NeedMap(_) | Action::ShardFailed(_) => {}
            }
        }
        self.worker.sleep(Duration::from_millis(1)).await;
        for i in 0..3 {
            while let Some(ack) = self.outlets[i].clone().acks.borrow_mut().pop_front() {
                self.session.ack(Instant::now(), si(i), &ack);
            }
        }
        self.session.tick(Instant::now());
    }

    fn deliver(&mut self, i: usize, request: Request) {
        let Some(core) = &self.cores[i] else { return };
        let (mut crc, mut block_crcs) = (None, None);
        let (kind, front, data) = match request {
            Request::Attach(m) => {
                (Kind::Attach, Bytes::copy_from_slice(m.as_bytes()), Bytes::new())
            }
            Request::Write(m, data, data_crc) => {
                crc = data_crc;
                // As a daemon's listener makes them; every other time, so that applying meets
                // records with and without.
                block_crcs = m
                    .seq
                    .get()
                    .is_multiple_of(2)
                    .then(|| data.chunks(512).map(crc32c::crc32c).collect());
                (Kind::Write, Bytes::copy_from_slice(m.as_bytes()), data)
            }
            Request::Mark(m) => (Kind::Mark, Bytes::copy_from_slice(m.as_bytes()), Bytes::new()),
        };
        let message = Message {
            data_crc: crc,
            block_crcs,
            ..Message::new(TrafficClass::Client, kind.to_u16(), front, data)
        };
        core.handle(&self.outlets[i], TrafficClass::Client, message).expect("well formed");
    }

    /// Waits until everything written is reported, or also stable.
    pub async fn settle(&mut self, stable: bool) {
        let last = self.session.marks().0;
        for _ in 0..20_000 {
            if stable {
                self.session.want_stable(Instant::now(), last);
            }
            self.turn().await;
            if if stable { self.stable } else { self.reported } >= last {
                return;
            }
        }
        panic!("progress: {:?}", self.session.marks());
    }

    /// Writes, punches, truncates or deletes whole stripes. `range` in bytes of the fragment.
    pub fn write(
        &mut self,
        object: ObjectId,
        op: Op,
        range: std::ops::Range<usize>,
        random: &mut fastrand::Rng,
    ) {
        let content =
            self.contents.entry(object).or_insert_with(|| [vec![0; FRAGMENT], vec![0; FRAGMENT]]);
        for data in content.iter_mut() {
            match op {
                Op::Write => random.fill(&mut data[range.clone()]),
                Op::Punch => data[range.clone()].fill(0),
                Op::Truncate => data[range.start..].fill(0),
                Op::Delete | Op::Nothing => data.fill(0),
            }
        }
        let mut parity = vec![0; range.len()];
        let data: Vec<&[u8]> = content.iter().map(|d| &d[range.clone()]).collect();
        codec::for_profile(profile()).encode(&data, &mut [&mut parity[..]]);
        let bytes = |i: usize| match (op, i) {
            (Op::Write, 2) => Bytes::from(parity.clone()),
            (Op::Write, i) => Bytes::copy_from_slice(data[i]),
            _ => Bytes::new(),
        };
        let length = if matches!(op, Op::Write | Op::Punch) { range.len() as u32 } else { 0 };
        let offset = if op == Op::Delete { 0 } else { range.start as u64 };
        let pieces: WritePieces = (0..3)
            .map(|i| (si(i), Piece { offset, length, data: bytes(i), data_crc: None }))
            .collect();
        let logical_end = if op == Op::Delete { 0 } else { 2 * range.end as u64 };
        let write = NewWrite { object, op, logical_end, pieces };
        self.session.write(Instant::now(), write).expect("taken");
    }

    pub fn write_some(&mut self, random: &mut fastrand::Rng) {
        let object = object(random.u64(1..4));
        let sectors = FRAGMENT / SECTOR;
        let length = if random.u8(0..3) == 0 { random.usize(64..256) } else { random.usize(1..8) };
        let start = random.usize(0..sectors - length);
        // About half of them are of whole slots.
        let unit = if random.bool() { SLOT / SECTOR } else { 1 };
        let (start, length) = (start / unit * unit, length.next_multiple_of(unit));
        let op = match random.u8(0..20) {
            0 => Op::Punch,
            1 => Op::Truncate,
            2 => Op::Delete,
            _ => Op::Write,
        };
        self.write(object, op, start * SECTOR..(start + length) * SECTOR, random);
    }

    /// A call to a core.
    pub async fn call(&mut self, i: usize, kind: Kind, front: Bytes) -> Message {
        let id = self.next_id;
        self.next_id += 1;
        let message = Message {
            id,
            ..Message::new(TrafficClass::Client, kind.to_u16(), front, Bytes::new())
        };
        self.cores[i]
            .as_ref()
            .expect("runs")
            .handle(&self.outlets[i], TrafficClass::Client, message)
            .expect("well formed");
        for _ in 0..5000 {
            if let Some(reply) = self.outlets[i].replies.borrow_mut().remove(&id) {
                return reply;
            }
            self.worker.sleep(Duration::from_millis(1)).await;
        }
        panic!("no reply to {kind:?}");
    }

    /// Reads a whole fragment.
    pub async fn read(&mut self, i: usize, object: ObjectId) -> Result<Vec<u8>, Status> {
        for _ in 0..2000 {
            let Some(token) = self.session.read_token(si(i)) else {
                self.session.want_attached(Instant::now());
                self.turn().await;
                continue;
            };
            let request = token.request(object, 0, FRAGMENT as u32);
            let reply = self.call(i, Kind::Read, Bytes::copy_from_slice(request.as_bytes())).await;
            let head = ReadReply::read_from_bytes(&reply.front).expect("a read reply");
            assert!(
                reply.data_crc.is_none_or(|crc| crc == crc32c::crc32c(&reply.data)),
                "a checksum of other bytes"
            );
            match Status::from_u8(head.status) {
                Status::Ok => {
                    let mut data = reply.data.to_vec();
                    data.resize(FRAGMENT, 0);
                    return Ok(data);
                }
                Status::Behind => self.turn().await,
                status => return Err(status),
            }
        }
        panic!("{} is never readable", si(i));
    }

    /// Every object as shards `a` and `b` give it, against what was written.
    pub async fn check(&mut self, a: usize, b: usize) {
        let objects: Vec<ObjectId> = self.contents.keys().copied().collect();
        for object in objects {
            let one = self.read(a, object).await.expect("readable");
            let two = self.read(b, object).await.expect("readable");
            let mut data = [vec![0; FRAGMENT], vec![0; FRAGMENT]];
            let have = [(si(a), &one[..]), (si(b), &two[..])];
            for (i, out) in data.iter_mut().enumerate() {
                match have.iter().find(|(s, _)| *s == si(i)) {
                    Some((_, bytes)) => out.copy_from_slice(bytes),
                    None => codec::for_profile(profile())
                        .reconstruct(&have, &mut [(si(i), &mut out[..])])
                        .expect("two of three shards"),
                }
            }
            for (i, (got, want)) in data.iter().zip(&self.contents[&object]).enumerate() {
                let bad = (got != want).then(|| (0..FRAGMENT).find(|&at| got[at] != want[at]));
                assert_eq!(bad, None, "{object} from shards {a} and {b}: data shard {i} differs");
            }
        }
    }

    pub fn members(&self) -> BenchMembers {
        BenchMembers { worker: self.worker.clone(), cores: self.cores.clone() }
    }
}

/// The cores of a bench, asked without a network.
#[derive(Clone)]
pub struct BenchMembers {
    worker: Worker,
    cores: Vec<Option<Core<Inbox>>>,
}

impl Members for BenchMembers {
    fn ask(
        &self,
        member: ShardIndex,
        request: RecoveryRequest,
    ) -> impl Future<Output = Option<(RecoveryReply, Bytes)>> + 'static {
        let (worker, core) = (self.worker.clone(), self.cores[usize::from(member.get())].clone());
        async move {
            let outlet = Inbox::default();
            let kind = Kind::Recovery.to_u16();
            let message = Message::new(
                TrafficClass::Background,
                kind,
                protocol::encode(&request),
                Bytes::new(),
            );
            core?
                .handle(&outlet, TrafficClass::Background, Message { id: 1, ..message })
                .expect("well formed");
            loop {
                if let Some(reply) = outlet.replies.borrow_mut().remove(&1) {
                    return Some((
                        protocol::decode("recovery reply", &reply.front).ok()?,
                        reply.data,
                    ));
                }
                worker.sleep(Duration::from_millis(1)).await;
            }
        }
    }
}

pub fn config() -> CoreConfig {
    let mut config = CoreConfig::new(CoreId::new(0));
    config.journal.journal_segment_bytes = 1 << 20;
    config.journal.journal_bytes_max = 16 << 20;
    config.journal_sync_interval = Duration::from_millis(5);
    config.fragment.fragment_slot_bytes = SLOT as u32;
    config
}
