//! The state of a simulation: sessions and shards with their real machines, network, and what must hold.

use super::super::session::{Action, NewWrite, PgSession, Piece, Request, SessionSettings};
use super::super::shard::returning::Cut;
use super::super::shard::{Lsn, Outcome, PgShard, Replay, Source};
use super::super::view::ShardView;
use super::monitor::Monitor;
use super::store::{MemStore, SECTOR, SECTORS, Stored};
use super::{object, pg_id};
use bytes::Bytes;
use protocol::monitor::SessionHolding;
use protocol::recovery::SessionMark;
use protocol::shard::{AckMessage, Op, ReadRequest};
use protocol::{AttachId, ObjectId, Seq, SessionId, ShardIndex, ShardSet};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub const SESSIONS: usize = 3;
pub const OBJECTS: usize = 2;
pub type Check = Result<(), String>;

pub fn si(i: usize) -> ShardIndex {
    ShardIndex::new(i as u8)
}

pub fn sid(s: usize) -> SessionId {
    SessionId::new(s as u64 + 1)
}

pub fn sector_of(tag: u64) -> Vec<u8> {
    tag.to_le_bytes().repeat(SECTOR / 8)
}

fn tag_of(sector: &[u8]) -> Result<u64, String> {
    let tag = u64::from_le_bytes(sector[..8].try_into().expect("8 bytes"));
    if sector_of(tag) == sector { Ok(tag) } else { Err("verified: a torn sector passed".into()) }
}

/// What an object holds: a tag for each sector of both data shards, and the end of user data.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Content {
    pub data: [[u64; SECTORS]; 2],
    pub end: u64,
}

/// A write as the checker knows it.
#[derive(Clone, Debug)]
pub struct Effect {
    pub session: usize,
    pub seq: u64,
    pub op: Op,
    pub range: std::ops::Range<usize>,
    pub touch: ShardSet,
    pub tags: [[u64; SECTORS]; 2],
    pub end: u64,
}

impl Content {
    pub fn take(&mut self, e: &Effect) {
        for i in (0..2).filter(|&i| e.touch.contains(si(i))) {
            for at in e.range.clone() {
                self.data[i][at] = e.tags[i][at];
            }
        }
        self.end = match e.op {
            Op::Truncate | Op::Delete => e.end,
            _ => self.end.max(e.end),
        };
    }
}

pub enum Msg {
    Send(Request),
    Read { id: u64, request: ReadRequest },
}

pub enum Rep {
    Ack(AckMessage),
    Val { id: u64, attach: u64, tags: Option<Vec<u64>> },
}

#[derive(Default)]
pub struct Conn {
    pub req: VecDeque<Msg>,
    pub rep: VecDeque<Rep>,
    pub old_req: VecDeque<Msg>,
    pub old_rep: VecDeque<Rep>,
    /// A message was lost in it: it does not outlive what is under way.
    pub holes: bool,
}

pub struct Read {
    pub id: u64,
    pub object: usize,
    pub want: Content,
    pub parts: Vec<(usize, AttachId, Option<Vec<u64>>)>,
}

pub struct Sess {
    pub run: bool,
    pub machine: PgSession,
    pub known_dead: bool,
    pub held: [bool; OBJECTS],
    pub last: [u64; OBJECTS],
    pub read: Option<Read>,
    pub reported: u64,
    pub stable: u64,
    pub writes: u64,
}

pub struct PieceOf {
    pub member: usize,
    pub marks: Vec<SessionMark>,
    pub tags: Vec<u64>,
    pub end: u64,
    pub exists: bool,
}

pub struct Job {
    pub object: ObjectId,
    pub chunk: usize,
    pub pieces: Vec<PieceOf>,
    pub cut: Option<Cut>,
    pub end: u64,
    pub exists: bool,
}

#[derive(Default)]
pub struct Node {
    pub shard: Option<PgShard>,
    pub store: MemStore,
    pub lost: bool,
    pub blank: bool,
    /// Journal length and files of the sync under way.
    pub sync: Option<(usize, BTreeMap<ObjectId, super::store::File>)>,
    /// A trim whose checkpoint waits for a sync; the flag: one that covers it has begun.
    pub trim: Option<(Lsn, bool)>,
    pub job: Option<Job>,
}

pub struct World {
    pub random: fastrand::Rng,
    pub now: Instant,
    pub mon: Monitor,
    pub nodes: [Node; 3],
    pub sess: Vec<Sess>,
    pub net: Vec<Vec<Conn>>,
    pub lease: [Option<usize>; OBJECTS],
    pub order: [Vec<Effect>; OBJECTS],
    pub cut: [Option<u64>; SESSIONS],
    pub resolved: [bool; SESSIONS],
    pub report: Vec<[Option<SessionHolding>; 3]>,
    pub choice: [Option<u64>; SESSIONS],
    pub told: [ShardSet; SESSIONS],
    pub coordinator_epoch: u64,
    pub reads: u64,
    pub tags: u64,
    pub covered: BTreeMap<&'static str, u64>,
}

impl World {
    pub fn new(seed: u64) -> Self {
        let mut mon = Monitor::new();
        mon.table.last = sid(SESSIONS - 1);
        mon.table.live.extend((0..SESSIONS).map(sid));
        let now = Instant::now();
        let mut world = Self {
            random: fastrand::Rng::with_seed(seed),
            now,
            nodes: std::array::from_fn(|_| Node::default()),
            sess: Vec::new(),
            net: (0..SESSIONS).map(|_| (0..3).map(|_| Conn::default()).collect()).collect(),
            lease: [None; OBJECTS],
            order: Default::default(),
            cut: [None; SESSIONS],
            resolved: [false; SESSIONS],
            report: (0..SESSIONS).map(|_| [None, None, None]).collect(),
            choice: [None; SESSIONS],
            told: [ShardSet::EMPTY; SESSIONS],
            coordinator_epoch: 0,
            reads: 0,
            tags: 0,
            covered: BTreeMap::new(),
            mon,
        };
        for s in 0..SESSIONS {
            let mut machine = PgSession::new(sid(s), world.mon.view(), SessionSettings::default());
            (0..3).for_each(|i| machine.connection(now, si(i), true));
            let (held, last) = ([false; OBJECTS], [0; OBJECTS]);
            let (reported, stable, writes) = (0, 0, 0);
            let known_dead = false;
            world.sess.push(Sess { run: true, machine, known_dead, held, last, read: None, reported, stable, writes });
        }
        (0..3).for_each(|i| world.start(i, false));
        world
    }

    pub fn cover(&mut self, what: &'static str) {
        *self.covered.entry(what).or_default() += 1;
    }

    pub fn shard_view(&self, i: usize) -> ShardView {
        ShardView { pg: self.mon.view(), me: si(i), sessions: Arc::new(self.mon.table.clone()) }
    }

    pub fn content(&self, o: usize) -> Content {
        let mut content = Content::default();
        let kept = |e: &&Effect| self.cut[e.session].is_none_or(|cut| e.seq <= cut);
        self.order[o].iter().filter(kept).for_each(|e| content.take(e));
        content
    }

    // ---- shards

    pub fn start(&mut self, i: usize, boot: bool) {
        let node = &mut self.nodes[i];
        let last = node.store.journal.iter().rposition(|(_, s)| matches!(s, Stored::Checkpoint(..)));
        let upto = match last.map(|at| &node.store.journal[at].1) {
            Some(Stored::Checkpoint(upto, _)) => *upto,
            _ => Lsn(0),
        };
        let mut replay = Replay::new(pg_id());
        for (at, (lsn, item)) in node.store.journal.iter().enumerate() {
            match item {
                Stored::Record(record) if *lsn >= upto => replay.record(*lsn, record.clone()),
                Stored::Delta(delta) => replay.delta(delta),
                Stored::Checkpoint(_, state) if Some(at) == last => replay.checkpoint(state.clone()),
                _ => {}
            }
        }
        // Rule: DirectCrc
        let store = &node.store;
        let is_bad = |(_, r): &(Lsn, &super::super::shard::Record)| {
            let super::super::shard::Payload::Direct(crcs) = &r.payload else { return false };
            let file = store.files.get(&r.object);
            let from = r.offset as usize;
            file.is_none_or(|f| {
                crcs.iter().enumerate().any(|(n, crc)| {
                    let at = from + n * SECTOR;
                    crc32c::crc32c(&f.bytes[at..at + SECTOR]).max(1) != *crc
                })
            })
        };
        let bad = replay.direct().find(is_bad).map(|(lsn, _)| lsn);
        if let Some(lsn) = bad {
            let delta = super::super::shard::Delta::CutFrom(lsn);
            replay.delta(&delta);
            node.store.push(Stored::Delta(delta));
            self.cover("a direct record without its bytes");
        }
        if boot {
            let (lost, blank) = (std::mem::take(&mut self.nodes[i].lost), std::mem::take(&mut self.nodes[i].blank));
            self.mon.boot(si(i), lost, blank);
        }
        let view = self.shard_view(i);
        let mut shard = PgShard::restart(view, replay);
        shard.set_direct_bytes_min(1024);
        shard.note_whole(&mut self.nodes[i].store).expect("memory");
        self.nodes[i].shard = Some(shard);
    }

    pub fn stop(&mut self, i: usize) {
        for s in 0..SESSIONS {
            self.reset(s, i, false);
            self.net[s][i].old_req.clear();
        }
        let node = &mut self.nodes[i];
        (node.shard, node.sync, node.trim, node.job) = (None, None, None, None);
        node.store.crash();
    }

    pub fn learn(&mut self, i: usize) {
        let view = self.shard_view(i);
        let Node { shard, store, job, .. } = &mut self.nodes[i];
        if let Some(shard) = shard {
            if shard.view().pg.epoch != view.pg.epoch {
                *job = None;
            }
            shard.learn(view);
            shard.note_whole(store).expect("memory");
        }
    }

    pub fn begin_sync(&mut self, i: usize) {
        let Node { shard: Some(shard), store, sync, trim, .. } = &mut self.nodes[i] else { return };
        if sync.is_none() {
            shard.begin_sync();
            *sync = Some((store.journal.len(), store.files.clone()));
            if let Some((_, begun)) = trim {
                *begun = true;
            }
        }
    }

    pub fn end_sync(&mut self, i: usize) {
        let Node { shard: Some(shard), store, sync, trim, .. } = &mut self.nodes[i] else { return };
        let Some((len, files)) = sync.take() else { return };
        store.synced_len = store.synced_len.max(len);
        store.synced_files = files;
        shard.end_sync();
        if let Some((upto, true)) = *trim {
            shard.commit_trim(upto);
            store.trim(upto);
            *trim = None;
        }
        self.acks(i);
    }

    pub fn sync_now(&mut self, i: usize) {
        (0..2).for_each(|_| {
            self.begin_sync(i);
            self.end_sync(i);
        });
    }

    pub fn prepare_trim(&mut self, i: usize) {
        let Node { shard: Some(shard), store, sync, trim, .. } = &mut self.nodes[i] else { return };
        let step = shard.trim_step();
        let upto = step.first_unapplied.unwrap_or(Lsn(u64::MAX));
        if trim.is_some() || sync.is_some() || step.first.is_none_or(|first| first >= upto) {
            return;
        }
        // Rule: TrimSynced
        store.synced_files = store.files.clone();
        let upto = step.first_unapplied.unwrap_or(Lsn(store.journal.last().map_or(0, |(l, _)| l.0) + 1));
        let state = shard.prepare_trim(upto);
        store.push(Stored::Checkpoint(upto, state));
        *trim = Some((upto, false));
    }

    fn acks(&mut self, i: usize) {
        let (net, sess) = (&mut self.net, &self.sess);
        if let Some(shard) = &mut self.nodes[i].shard {
            shard.take_acks(1 << 30, |id, ack| {
                let s = id.get() as usize - 1;
                if sess[s].run {
                    net[s][i].rep.push_back(Rep::Ack(ack));
                }
            });
        }
    }

    /// Shard `i` takes a message of session `s`.
    pub fn deliver(&mut self, s: usize, i: usize, msg: Msg) {
        let Node { shard: Some(shard), store, .. } = &mut self.nodes[i] else { return };
        let reply = |status, attach, shard: &PgShard| Rep::Ack(shard.refusal(attach, status, 1 << 30));
        let head = match &msg {
            Msg::Send(Request::Attach(m)) => m.head,
            Msg::Send(Request::Write(m, _)) => m.head,
            Msg::Send(Request::Mark(m)) => m.head,
            Msg::Read { request, .. } => request.head,
        };
        let outcome = match msg {
            Msg::Send(Request::Attach(m)) => shard.attach(store, &m).expect("memory"),
            Msg::Send(Request::Write(m, data)) => shard.write(store, &m, data).expect("memory"),
            Msg::Send(Request::Mark(m)) => shard.mark(&m),
            Msg::Read { id, request } => {
                let tags = Self::read_here(shard, store, &request);
                if tags == Some(Err(())) {
                    panic!("verified: an in-sync shard has bytes that fail their checksum");
                }
                let tags = tags.and_then(Result::ok);
                let attach = head.attach().get();
                self.net[s][i].rep.push_back(Rep::Val { id, attach, tags });
                return;
            }
        };
        if let Outcome::Refused(status) = outcome {
            let ack = reply(status, head.attach(), shard);
            self.net[s][i].rep.push_back(ack);
        }
        self.acks(i);
    }

    fn read_here(shard: &mut PgShard, store: &MemStore, request: &ReadRequest) -> Option<Result<Vec<u64>, ()>> {
        let plan = shard.read(request).ok()?;
        let mut sectors: Vec<Option<Vec<u8>>> = vec![None; SECTORS];
        for (part, source) in &plan.parts {
            for (n, at) in (part.start as usize..part.end as usize).step_by(SECTOR).enumerate() {
                let bytes = match source {
                    Source::Bytes(b) => b[n * SECTOR..(n + 1) * SECTOR].to_vec(),
                    Source::Hole => vec![0; SECTOR],
                    Source::Direct(crcs) => {
                        let bytes = store.files[&plan.object].bytes[at..at + SECTOR].to_vec();
                        assert_eq!(crc32c::crc32c(&bytes).max(1), crcs[n], "direct bytes stay what they are");
                        bytes
                    }
                };
                sectors[at / SECTOR] = Some(bytes);
            }
        }
        shard.unpin(plan.object);
        let fill = |(at, s): (usize, Option<Vec<u8>>)| match s {
            Some(bytes) => Ok(bytes),
            None => store.file_sector(plan.object, at).map_err(|_| ()),
        };
        Some(sectors.into_iter().enumerate().map(fill).map(|s| s.and_then(|s| tag_of(&s).map_err(|_| ()))).collect())
    }

    // ---- sessions

    pub fn reset(&mut self, s: usize, i: usize, up: bool) {
        let conn = &mut self.net[s][i];
        conn.old_req = std::mem::take(&mut conn.req);
        conn.old_rep = std::mem::take(&mut conn.rep);
        conn.holes = false;
        self.sess[s].machine.connection(self.now, si(i), false);
        if up || self.sess[s].run {
            self.sess[s].machine.connection(self.now, si(i), true);
        }
    }

    /// Carries out what a session wants done.
    pub fn pump(&mut self, s: usize) -> Check {
        let mut read_over = false;
        while let Some(action) = self.sess[s].machine.next_action() {
            match action {
                Action::Send { shard, request } => {
                    self.net[s][usize::from(shard.get())].req.push_back(Msg::Send(request));
                }
                Action::Reported(seq) => self.sess[s].reported = seq.get(),
                Action::Stable(seq) => self.sess[s].stable = seq.get(),
                Action::ShardLost(i) => return Err(format!("no-lost-ack: shard {i} lost a stable record of {s}")),
                Action::Fenced => self.sess[s].known_dead = true,
                Action::NeedMap(_) | Action::ShardFailed(_) => {}
            }
        }
        if let Some(read) = &self.sess[s].read {
            let current = |(i, a, _): &(usize, AttachId, _)| self.sess[s].machine.is_current(si(*i), *a);
            read_over = !read.parts.iter().all(current);
        }
        if read_over {
            self.sess[s].read = None; // Rule: ReadAttempt
        }
        if let Some(cut) = self.cut[s] {
            let lost = self.sess[s].stable > cut || self.sess[s].reported > cut && !self.mon.lost_tail;
            if lost {
                let (r, st) = (self.sess[s].reported, self.sess[s].stable);
                return Err(format!("no-lost-ack: session {s}: {r} reported, {st} stable, cut {cut}"));
            }
        }
        Ok(())
    }

    pub fn reply(&mut self, s: usize, i: usize, rep: Rep) -> Check {
        if !self.sess[s].run {
            return Ok(());
        }
        match rep {
            Rep::Ack(ack) => self.sess[s].machine.ack(self.now, si(i), &ack),
            Rep::Val { id, attach, tags } => {
                let Some(read) = self.sess[s].read.as_mut().filter(|r| r.id == id) else { return Ok(()) };
                let Some(part) = read.parts.iter_mut().find(|p| p.0 == i && p.1.get() == attach) else {
                    return Ok(());
                };
                let Some(tags) = tags else {
                    self.sess[s].read = None;
                    return Ok(());
                };
                part.2 = Some(tags);
                self.check_read(s)?;
            }
        }
        self.pump(s)
    }

    fn check_read(&mut self, s: usize) -> Check {
        let read = self.sess[s].read.as_ref().expect("a read is under way");
        if read.parts.iter().any(|p| p.2.is_none()) {
            return Ok(());
        }
        let read = self.sess[s].read.take().expect("just seen");
        let piece = |i: usize| read.parts.iter().find(|p| p.0 == i).and_then(|p| p.2.clone());
        let xor = |a: Vec<u64>, b: Vec<u64>| a.iter().zip(b).map(|(a, b)| a ^ b).collect::<Vec<u64>>();
        let (a, b, p) = (piece(0), piece(1), piece(2));
        let a2 = a.clone().unwrap_or_else(|| xor(b.clone().unwrap_or_default(), p.clone().unwrap_or_default()));
        let b2 = b.unwrap_or_else(|| xor(a.unwrap_or_default(), p.unwrap_or_default()));
        if a2 != read.want.data[0] || b2 != read.want.data[1] {
            let which: Vec<usize> = read.parts.iter().map(|p| p.0).collect();
            let got = (a2, b2);
            return Err(format!(
                "order: session {s} read object {} from {which:?}: {got:x?} instead of {:x?}",
                read.object, read.want.data
            ));
        }
        self.cover("read");
        Ok(())
    }

    pub fn read(&mut self, s: usize, o: usize) {
        let readable: Vec<usize> = self.sess[s].machine.readable().iter().map(|i| usize::from(i.get())).collect();
        if !self.sess[s].held[o] || self.sess[s].read.is_some() {
            return;
        }
        self.sess[s].machine.want_attached(self.now);
        let mut shards = readable;
        self.random.shuffle(&mut shards);
        if shards.len() < 2 {
            return;
        }
        shards.truncate(2);
        self.reads += 1;
        let id = self.reads;
        let mut parts = Vec::new();
        for i in shards {
            let Some(token) = self.sess[s].machine.read_token(si(i)) else { return };
            let request = token.request(object(o), 0, (SECTOR * SECTORS) as u32);
            self.net[s][i].req.push_back(Msg::Read { id, request });
            parts.push((i, token.attach, None));
        }
        self.sess[s].read = Some(Read { id, object: o, want: self.content(o), parts });
    }

    pub fn write(&mut self, s: usize, o: usize) -> Check {
        if !self.sess[s].held[o] {
            return Ok(());
        }
        let mut content = self.content(o);
        let from = self.random.usize(0..SECTORS);
        let to = self.random.usize(from + 1..=SECTORS);
        let op = match self.random.u8(0..10) {
            0 => Op::Punch,
            1 => Op::Truncate,
            2 => Op::Delete,
            _ => Op::Write,
        };
        let all = ShardSet::first(3);
        let touch = if op == Op::Write { all.without(si([0, 1, 3][self.random.usize(0..3)])) } else { all };
        let range = match op {
            Op::Truncate => from..SECTORS,
            Op::Delete => 0..SECTORS,
            _ => from..to,
        };
        let mut tags = [[0; SECTORS]; 2];
        if op == Op::Write {
            for t in tags.iter_mut().flat_map(|t| &mut t[range.clone()]) {
                self.tags += 1;
                *t = self.tags.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            }
        }
        let end = if op == Op::Delete { 0 } else { self.random.u64(0..8192) };
        let seq = self.sess[s].writes + 1;
        let effect = Effect { session: s, seq, op, range: range.clone(), touch, tags, end };
        content.take(&effect);
        let pieces = touch.iter().map(|i| {
            let tag = |at: usize| match i.get() {
                2 => content.data[0][at] ^ content.data[1][at],
                i => content.data[usize::from(i)][at],
            };
            let data: Vec<u8> = range.clone().filter(|_| op == Op::Write).flat_map(|at| sector_of(tag(at))).collect();
            let length = if matches!(op, Op::Write | Op::Punch) { range.len() * SECTOR } else { 0 };
            let offset = if op == Op::Delete { 0 } else { (range.start * SECTOR) as u64 };
            (i, Piece { offset, length: length as u32, data: Bytes::from(data) })
        });
        let write = NewWrite { object: object(o), op, logical_end: end, pieces: pieces.collect() };
        if let Ok(got) = self.sess[s].machine.write(self.now, write) {
            assert_eq!(got, Seq::new(seq));
            (self.sess[s].writes, self.sess[s].last[o]) = (seq, seq);
            self.order[o].push(effect);
        }
        self.pump(s)
    }

    // ---- the end

    /// What object `o` looks like in the fragment file of shard `i`.
    pub fn file_tags(&self, i: usize, o: usize) -> Result<Vec<u64>, String> {
        let sector =
            |at| self.nodes[i].store.file_sector(object(o), at).map_err(|e| format!("verified: shard {i}: {e}"));
        (0..SECTORS).map(|at| tag_of(&sector(at)?)).collect()
    }

    pub fn check_end(&self) -> Check {
        for o in 0..OBJECTS {
            let want = self.content(o);
            for i in 0..3 {
                let tags = self.file_tags(i, o)?;
                let right: Vec<u64> = (0..SECTORS)
                    .map(|at| if i == 2 { want.data[0][at] ^ want.data[1][at] } else { want.data[i][at] })
                    .collect();
                if tags != right {
                    return Err(format!("no-torn-stripe: shard {i} object {o}: {tags:x?} instead of {right:x?}"));
                }
            }
            let end = |i: usize| self.nodes[i].store.files.get(&object(o)).map_or(0, |f| f.logical_end);
            let end = (0..3).map(end).max().unwrap_or(0);
            if end != want.end {
                return Err(format!("no-torn-stripe: object {o} ends at {end} instead of {}", want.end));
            }
        }
        Ok(())
    }
}

/// How far into the future a step may jump.
pub const JUMP: Duration = Duration::from_millis(20);
