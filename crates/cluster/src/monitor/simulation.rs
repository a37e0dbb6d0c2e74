//! Random histories: the monitor against a small set of pretended OSDs and sessions, with a check
//! after every step.
//!
//! The OSDs keep records in order, learn maps late, crash, come back without power or on new disks;
//! questions and answers about dead sessions are delayed and lost; the monitor itself restarts.
//! What must hold is checked on every new map; in the end the faults stop and everything must come
//! to rest, clean.

use super::*;
use crate::delta::StateDelta;
use protocol::monitor::{PgCondition, ResolveRequest, SessionHolding};
use protocol::{ClusterId, Seq};

const OSDS: u32 = 4;
const PGS: u32 = 3;
const STEP: Duration = Duration::from_millis(250);

/// What a pretended OSD knows. Records are (number, touched shards), by PG and session.
#[derive(Clone, Default)]
struct SimOsd {
    runs: bool,
    fsid: u128,
    blank: bool,
    map: Option<ClusterMap>,
    held: BTreeMap<(PgId, SessionId), BTreeMap<u64, ShardSet>>,
    closed: BTreeMap<(PgId, SessionId), u64>,
}

/// A session's writes to one PG: the shards each touches; those up to `acked` were reported done.
#[derive(Default)]
struct Writes {
    touch: Vec<ShardSet>,
    acked: u64,
}

/// What is on its way to the monitor, and may arrive when it is no longer true.
enum Late {
    Request(MonitorRequest),
    Answer(u64, Option<ResolveReply>),
}

struct Sim {
    rng: fastrand::Rng,
    now: Duration,
    monitor: Monitor,
    seen: MonitorState,
    /// What a follower has, to whom each epoch's change is told.
    copy: MonitorState,
    osds: Vec<SimOsd>,
    writes: BTreeMap<(PgId, SessionId), Writes>,
    alive: BTreeSet<SessionId>,
    /// Cuts of resolved sessions.
    cuts: BTreeMap<(PgId, SessionId), u64>,
    peered: BTreeSet<(PgId, Epoch, ShardIndex)>,
    under_way: Vec<Action>,
    late: Vec<Late>,
    resolved: usize,
    joined: usize,
}

impl Sim {
    fn new(seed: u64) -> Self {
        let pool = PoolSpec::new("data", 2, 1, 512, PGS).expect("a profile");
        let state = create_cluster(ClusterId::new(1), &ExpectedOsd::first(OSDS), &pool)
            .expect("enough OSDs");
        let monitor = Monitor::start(state, Settings::default(), Duration::ZERO);
        let seen = monitor.state().clone();
        let osd = |id: u32| SimOsd { fsid: u128::from(id) + 1, blank: true, ..SimOsd::default() };
        Self {
            rng: fastrand::Rng::with_seed(seed),
            now: Duration::ZERO,
            monitor,
            copy: seen.clone(),
            seen,
            osds: (0..OSDS).map(osd).collect(),
            writes: BTreeMap::new(),
            alive: BTreeSet::new(),
            cuts: BTreeMap::new(),
            peered: BTreeSet::new(),
            under_way: Vec::new(),
            late: Vec::new(),
            resolved: 0,
            joined: 0,
        }
    }

    fn request(&mut self, request: MonitorRequest) -> MonitorReply {
        let reply = self.monitor.handle(request, self.now);
        self.check();
        reply
    }

    // ---- OSDs

    fn boot(&mut self, at: usize, lost: bool) {
        let osd = &mut self.osds[at];
        (osd.runs, osd.map) = (true, None);
        let (fsid, blank) = (osd.fsid, std::mem::take(&mut osd.blank));
        let addr = SocketAddr::from(([127, 0, 0, 1], 7000 + at as u16));
        let host = format!("host-{at}");
        let osd = OsdId::new(at as u32);
        let known = self.monitor.map().osds[&osd].fsid;
        if known != 0 && known != fsid {
            self.request(MonitorRequest::Leave { osd });
            let reply = self.request(MonitorRequest::ReplaceOsd { osd });
            assert!(matches!(reply, MonitorReply::Done(_)), "{reply:?}");
        }
        let reply =
            self.request(MonitorRequest::Boot { osd, fsid, addr, cores: 1, lost, blank, host });
        assert!(matches!(reply, MonitorReply::Done(_)), "{reply:?}");
    }

    /// A new disk, if no PG loses with it more than the code can bear.
    fn lose_disk(&mut self, at: usize) {
        let bearable = self.monitor.map().pgs.iter().all(|(id, pg)| {
            let state = &self.monitor.state().pgs[id];
            let whole = |set: ShardSet| {
                let good = |s: &ShardIndex| {
                    let osd = pg.acting[usize::from(s.get())].get() as usize;
                    osd != at && !self.osds[osd].blank && !state.gone.contains(*s)
                };
                set.iter().filter(good).count() >= 2
            };
            whole(state.confirmed) && (pg.active || pg.in_sync.is_empty() || whole(pg.in_sync))
        });
        if bearable {
            let fsid = self.rng.u128(1000..);
            self.osds[at] = SimOsd { fsid, blank: true, ..SimOsd::default() };
        }
    }

    /// The OSD learns the newest map and does what the map asks of it.
    fn learn(&mut self, at: usize) {
        let (map, id) = (self.monitor.map().clone(), OsdId::new(at as u32));
        if !self.osds[at].runs {
            return;
        }
        if !map.osds[&id].up {
            return self.boot(at, false);
        }
        let (mut peered, mut ask) = (Vec::new(), Vec::new());
        for (&pg, info) in &map.pgs {
            let Some(shard) = map.shard_of(pg, id) else { continue };
            if !info.active && info.in_sync.contains(shard) {
                peered.push((pg, info.epoch));
                self.peered.insert((pg, info.epoch, shard));
            } else if info.active && !info.in_sync.union(info.joining).contains(shard) {
                ask.push((pg, info.epoch));
            }
        }
        self.osds[at].map = Some(map);
        self.late.push(Late::Request(MonitorRequest::Peered { osd: id, pgs: peered }));
        self.late.push(Late::Request(MonitorRequest::AskJoin { osd: id, pgs: ask }));
    }

    /// Something arrives at the monitor, in any order: they travel on many connections.
    fn arrive(&mut self) {
        let at = self.rng.usize(..self.late.len());
        match self.late.swap_remove(at) {
            Late::Request(request) => {
                self.request(request);
            }
            Late::Answer(ticket, reply) => {
                self.monitor.resolve_answer(ticket, reply, self.now);
                self.check();
            }
        }
    }

    /// A joining OSD takes over what the in-sync members agree on, when nothing is open in the PG.
    fn join(&mut self, at: usize) {
        let (Some(map), id) = (self.osds[at].map.clone(), OsdId::new(at as u32)) else { return };
        for (&pg, info) in &map.pgs {
            let Some(shard) = map.shard_of(pg, id).filter(|s| info.joining.contains(*s)) else {
                continue;
            };
            let dead = map.sessions.values().any(|s| *s == SessionState::Dead);
            let open = self.writes.iter().any(|((p, s), w)| {
                *p == pg && map.sessions.contains_key(s) && w.acked < w.touch.len() as u64
            });
            if dead || open || !self.osds[at].runs {
                continue;
            }
            let reply = self.request(MonitorRequest::Join { osd: id, pg, epoch: info.epoch });
            if matches!(reply, MonitorReply::Done(_)) {
                self.joined += 1;
                for (key, writes) in self.writes.iter().filter(|((p, _), _)| *p == pg) {
                    let end = self.cuts.get(key).copied().unwrap_or(writes.acked);
                    let kept = (1..=end).map(|seq| (seq, writes.touch[seq as usize - 1]));
                    let mine = kept.filter(|(_, touch)| touch.contains(shard)).collect();
                    self.osds[at].held.insert(*key, mine);
                }
            }
        }
    }

    // ---- sessions

    /// A live session sends a write, or an open one again, to one shard after the other; some do
    /// not get it.
    fn write(&mut self, session: SessionId, pg: PgId, all: bool) {
        let map = self.monitor.map().clone();
        let info = &map.pgs[&pg];
        if !info.active || map.sessions.get(&session) != Some(&SessionState::Live) {
            return;
        }
        let writes = self.writes.entry((pg, session)).or_default();
        if !all && writes.touch.len() < writes.acked as usize + 3 {
            writes
                .touch
                .push(ShardSet::from_bits([0b111, 0b011, 0b101, 0b110][self.rng.usize(..4)]));
        }
        for seq in writes.acked + 1..=writes.touch.len() as u64 {
            let touch = writes.touch[seq as usize - 1];
            for shard in touch.intersection(info.in_sync.union(info.joining)).iter() {
                let osd = &mut self.osds[info.acting[usize::from(shard.get())].get() as usize];
                let knows = osd.map.as_ref().is_some_and(|m| m.pgs[&pg].epoch == info.epoch);
                let held = osd.held.entry((pg, session)).or_default();
                let before = (1..seq).rev().find(|s| writes.touch[*s as usize - 1].contains(shard));
                let closed = osd.closed.contains_key(&(pg, session));
                if osd.runs
                    && knows
                    && !closed
                    && before.is_none_or(|s| held.contains_key(&s))
                    && (all || self.rng.bool())
                {
                    held.insert(seq, touch);
                }
            }
            let has = |shard: ShardIndex| {
                let osd = &self.osds[info.acting[usize::from(shard.get())].get() as usize];
                osd.held.get(&(pg, session)).is_some_and(|held| held.contains_key(&seq))
            };
            if writes.acked + 1 == seq && touch.intersection(info.in_sync).iter().all(has) {
                writes.acked = seq;
            }
        }
    }

    // ---- the end of dead sessions

    /// A question arrives, is answered or not, and the answer arrives or not.
    fn deliver(&mut self, action: Action, may_fail: bool) {
        let osd = &mut self.osds[action.osd.get() as usize];
        let map = osd.map.clone().filter(|_| osd.runs && !(may_fail && self.rng.u8(..4) == 0));
        let reply = map.map(|map| match action.request {
            ResolveRequest::Collect { session, pgs } => {
                if pgs.iter().any(|(pg, epoch)| map.pgs[pg].epoch != *epoch) {
                    return ResolveReply::NotYet;
                }
                let holding = |(pg, _): &(PgId, Epoch)| {
                    let key = (*pg, session);
                    let held = osd
                        .held
                        .get(&key)
                        .into_iter()
                        .flatten()
                        .map(|(s, t)| (Seq::new(*s), *t))
                        .collect();
                    SessionHolding {
                        pg: *pg,
                        settled: Seq::new(osd.closed.get(&key).copied().unwrap_or(0)),
                        held,
                    }
                };
                ResolveReply::Collected(pgs.iter().map(holding).collect())
            }
            ResolveRequest::Decide { session, cuts } => {
                if cuts.iter().any(|(pg, epoch, _)| map.pgs[pg].epoch != *epoch) {
                    return ResolveReply::NotYet;
                }
                for (pg, _, cut) in &cuts {
                    osd.held.entry((*pg, session)).or_default().retain(|seq, _| *seq <= cut.get());
                    osd.closed.insert((*pg, session), cut.get());
                }
                ResolveReply::Decided(cuts.iter().map(|(pg, ..)| *pg).collect())
            }
        });
        let lost = may_fail && self.rng.u8(..4) == 0;
        self.late.push(Late::Answer(action.ticket, reply.filter(|_| !lost)));
    }

    /// The session has left the map: all in-sync members hold the same prefix, with everything that
    /// was acknowledged.
    fn check_resolved(&mut self, session: SessionId) {
        self.resolved += 1;
        for (&pg, info) in &self.monitor.map().pgs.clone() {
            let Some(writes) = self.writes.get(&(pg, session)) else { continue };
            let mut cut = 0;
            for shard in info.in_sync.iter() {
                let osd = &self.osds[info.acting[usize::from(shard.get())].get() as usize];
                let closed = osd.closed.get(&(pg, session)).copied();
                cut = cut.max(closed.unwrap_or_else(|| {
                    panic!("{session} is gone, and {shard} of pg {pg} has no decision")
                }));
            }
            assert!(
                cut >= writes.acked,
                "no-lost-ack: {session} pg {pg} is cut at {cut}, {} acknowledged",
                writes.acked
            );
            for shard in info.in_sync.iter() {
                let osd = &self.osds[info.acting[usize::from(shard.get())].get() as usize];
                let held: Vec<u64> = osd
                    .held
                    .get(&(pg, session))
                    .into_iter()
                    .flatten()
                    .map(|(seq, _)| *seq)
                    .collect();
                let touched = |seq: &u64| writes.touch[*seq as usize - 1].contains(shard);
                let want: Vec<u64> = (1..=cut).filter(touched).collect();
                assert_eq!(held, want, "no-torn-stripe: {session}, {shard} of pg {pg}, cut {cut}");
            }
            self.cuts.insert((pg, session), cut);
        }
    }

    // ---- what must hold

    /// Of every state, and between the last one seen and this one.
    fn check(&mut self) {
        let (old, new) =
            (std::mem::replace(&mut self.seen, self.monitor.state().clone()), self.monitor.state());
        if new.map.epoch > self.copy.map.epoch {
            let bytes = StateDelta::between(&self.copy, new).encode();
            let delta = StateDelta::decode(&bytes).expect("what was encoded can be decoded");
            delta.apply(&mut self.copy).expect("it fits the state before");
            assert_eq!(&self.copy, new, "what changed is all that changed");
        }
        new.check_invariants().expect("an invariant is broken");
        assert!(new.map.epoch >= old.map.epoch && new.map.last_session >= old.map.last_session);
        if new.map != old.map {
            assert!(new.map.epoch > old.map.epoch, "a change without an epoch");
        }
        let mut gone = Vec::new();
        for (id, pg) in &new.map.pgs {
            let before = &old.map.pgs[id];
            if pg != before {
                assert!(pg.epoch > before.epoch, "pg {id} changed in its epoch");
            }
            if pg.active && !before.active {
                let all =
                    before.in_sync.iter().all(|s| self.peered.contains(&(*id, before.epoch, s)));
                assert!(
                    all && before.in_sync.minus(pg.in_sync).is_empty(),
                    "pg {id} is active before all have peered"
                );
            }
            let lost = old.pgs[id].confirmed.minus(new.pgs[id].confirmed);
            assert!(lost.is_empty() || pg.active, "pg {id} shrank without an activation");
        }
        for (session, state) in &old.map.sessions {
            match (state, new.map.sessions.get(session)) {
                (SessionState::Dead, None) => gone.push(*session),
                (SessionState::Dead, Some(SessionState::Live)) => {
                    panic!("{session} rose from the dead")
                }
                (SessionState::Live, Some(SessionState::Dead)) => {
                    let all = new.map.pgs.iter().all(|(id, pg)| pg.epoch > old.map.pgs[id].epoch);
                    assert!(all, "{session} died, and a PG kept its epoch");
                }
                _ => {}
            }
        }
        gone.into_iter().for_each(|session| self.check_resolved(session));
    }

    // ---- the course of things

    fn pass_time(&mut self, all_beat: bool) {
        self.now += STEP;
        for at in 0..self.osds.len() {
            let silent = !self.osds[at].runs || !all_beat && self.rng.u8(..40) == 0;
            let report = OsdReport { osd: OsdId::new(at as u32), ..OsdReport::default() };
            if !silent {
                self.request(MonitorRequest::Heartbeat { report });
            }
        }
        for session in self.alive.clone() {
            if let MonitorReply::Fenced = self.request(MonitorRequest::RenewSession { session }) {
                self.alive.remove(&session);
            }
        }
        self.monitor.tick(self.now);
        self.check();
        self.under_way.extend(self.monitor.actions(self.now));
    }

    fn step(&mut self) {
        let at = self.rng.usize(..self.osds.len());
        let session = self.rng.choice(self.alive.iter().copied().collect::<Vec<_>>());
        let pg = PgId { pool: protocol::PoolId::new(1), number: self.rng.u32(..PGS) };
        match self.rng.u8(..100) {
            0..18 => self.learn(at),
            18..35 if !self.late.is_empty() => self.arrive(),
            35..50 => self.pass_time(false),
            50..70 => {
                if let Some(session) = session {
                    let again = self.rng.bool();
                    self.write(session, pg, again);
                }
            }
            70..82 if !self.under_way.is_empty() => {
                let action = self.under_way.swap_remove(self.rng.usize(..self.under_way.len()));
                self.deliver(action, true);
            }
            82..86 => self.join(at),
            86..89 if !self.osds[at].runs => {
                let lost = self.rng.u8(..4) == 0;
                self.boot(at, lost);
            }
            89 => self.osds[at].runs = false,
            90 if self.osds[at].runs => {
                self.osds[at].runs = false;
                self.request(MonitorRequest::Leave { osd: OsdId::new(at as u32) });
            }
            91 if !self.osds[at].runs => self.lose_disk(at),
            92..95 if self.alive.len() < 2 => {
                let reply = self.request(MonitorRequest::OpenSession { name: "simulated".into() });
                let MonitorReply::Session { session, .. } = reply else { panic!("{reply:?}") };
                self.alive.insert(session);
            }
            95 => {
                self.alive.pop_first(); // dies without a word
            }
            96 => {
                self.under_way.clear();
                self.late.retain(|late| matches!(late, Late::Request(_)));
                let state = self.monitor.state().clone();
                self.monitor = Monitor::start(state, Settings::default(), self.now);
                self.check();
            }
            _ => {}
        }
    }

    /// Faults stop; everything must come to rest.
    fn settle(&mut self) {
        self.alive.clear();
        for _ in 0..400 {
            for at in 0..self.osds.len() {
                if !self.osds[at].runs {
                    self.boot(at, false);
                }
                self.learn(at);
                self.join(at);
            }
            for action in std::mem::take(&mut self.under_way) {
                self.deliver(action, false);
            }
            while !self.late.is_empty() {
                self.arrive();
            }
            self.pass_time(true);
            let status = self.monitor.status();
            if status.pgs == [(PgCondition::Clean, PGS)] && self.monitor.map().sessions.is_empty() {
                return;
            }
        }
        panic!("progress: {:#?}", self.monitor.state());
    }
}

#[test]
fn random_histories_keep_the_invariants_and_come_to_rest() {
    let (mut resolved, mut joined) = (0, 0);
    for seed in 0..150 {
        let mut sim = Sim::new(seed);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            (0..OSDS as usize).for_each(|at| sim.boot(at, false));
            (0..800).for_each(|_| sim.step());
            sim.settle();
        }));
        if let Err(panic) = result {
            println!("seed {seed}");
            std::panic::resume_unwind(panic);
        }
        (resolved, joined) = (resolved + sim.resolved, joined + sim.joined);
    }
    // Otherwise the histories were too tame to mean anything.
    assert!(
        resolved > 100 && joined > 100,
        "only {resolved} sessions resolved and {joined} shards joined"
    );
}
