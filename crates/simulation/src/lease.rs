//! Leases: the metadata service and the clients' side of it, with the real machines
//! ([`metadata::Service`], [`metadata::lease::holder`]).
//!
//! Contract: a request, its answer and a recall are messages, and may be late. When a connection is
//! lost, answers and recalls on it are, too, and requests on it may arrive late; a client asks
//! again by the same number, and tells what it holds (`client::session::mds`). What a client does
//! with a lease follows `client::fs::lease`: a recall is carried out when all writes are stable and
//! nobody is inside. A session counts its time on its own clock, from when it asked
//! (`client::session::monitor`), and what its kernel has cached is read without asking anybody.

use crate::control::SILENCE;
use crate::disk::{OBJECTS, Tags, object};
use crate::partition::Party;
use crate::world::{Check, Client, MapVersion, World, pg_id, sid};
use metadata::lease::LeaseConfig;
use metadata::lease::holder::{Holder, Moment, Permit, RecallStep, Ticket};
use metadata::{Event, MemoryStore, Service, ServiceConfig, SessionView};
use protocol::monitor::{MonitorReply, MonitorRequest};
use protocol::namespace::{
    Caller, Held, LeaseMode, NamespaceOp, Recall, Reply, Request, SetAttr, Timestamp,
};
use protocol::{Epoch, Gfid, Rules, SessionId};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// A session's time to live.
const TTL: Duration = SILENCE.checked_div(2).expect("not by zero");
/// The session that makes the files.
const MAKER: SessionId = SessionId::new(u64::MAX);
/// Renewals that a client has on their way at most.
const RENEWALS_MAX: usize = 2;

/// The metadata service.
pub struct Mds {
    store: MemoryStore,
    service: Service<MemoryStore>,
    config: ServiceConfig,
    /// The map that it knows; none yet after a restart.
    pub known: Option<usize>,
    /// Files of dead writers wait for their sizes.
    pub owes_sizes: bool,
    tokens: u64,
    /// By token.
    asked: BTreeMap<u64, (usize, Asked)>,
}

/// A request on its way. Its answer counts only while it is the last attempt, over the last
/// connection.
#[derive(Clone, Debug)]
pub struct Asked {
    request: Request,
    attempt: u64,
}

impl std::fmt::Debug for Mds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "knows map {:?}, {:?}", self.known, self.service.leases())
    }
}

/// What the service sends.
#[derive(Debug)]
pub enum Down {
    /// The answer to the request of this number, in this attempt.
    Answer(u64, u64, Reply),
    /// It wants a lease back.
    Recall(Recall),
}

/// A session's connection to the service.
#[derive(Debug, Default)]
pub struct Line {
    /// To the service.
    pub up: VecDeque<Asked>,
    /// To the client.
    pub down: VecDeque<Down>,
    /// To the service, by earlier connections.
    pub late: VecDeque<Asked>,
    /// Attempts made.
    attempts: u64,
}

/// Why the service was asked.
#[derive(Clone, Copy, Debug)]
enum Why {
    /// For a lease on an object.
    Wanted(usize, Ticket),
    /// An object's lease goes back, down to this.
    Returned(usize, Option<LeaseMode>),
    /// To answer a recall of what is not held, or after a new connection.
    Told,
}

/// A call without an answer.
#[derive(Debug)]
struct Call {
    op: NamespaceOp,
    why: Why,
    /// The last one.
    attempt: u64,
}

/// A client's side of one file.
#[derive(Debug)]
pub struct Lease {
    /// The real machine.
    pub holder: Holder,
    /// A recall is being carried out, down to this.
    giving: Option<Option<LeaseMode>>,
    /// The service is being told: nobody may enter.
    alone: bool,
    /// What the kernel has of the file.
    pub cached: Option<[Tags; 2]>,
}

/// A client's side of all.
#[derive(Debug)]
pub struct Holdings {
    /// By object.
    pub files: [Lease; OBJECTS],
    /// Calls without an answer, by number.
    calls: BTreeMap<u64, Call>,
    number: u64,
    /// Until when the session surely lives, by its own clock.
    until: Duration,
    /// How far its clock is ahead.
    pub ahead: Duration,
}

impl Holdings {
    fn new(rules: Rules, until: Duration) -> Self {
        let file =
            |_| Lease { holder: Holder::new(rules), giving: None, alone: false, cached: None };
        let files = std::array::from_fn(file);
        Self { files, calls: BTreeMap::new(), number: 0, until, ahead: Duration::ZERO }
    }

    /// Is nothing held, and nothing asked?
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty() && self.files.iter().all(|file| file.holder.mode().is_none())
    }

    /// Is nothing asked?
    pub fn is_idle(&self) -> bool {
        self.calls.is_empty()
    }

    /// The session is dead.
    pub fn fence(&mut self) {
        self.calls.clear();
        for file in &mut self.files {
            file.holder.fenced();
            (file.giving, file.alone, file.cached) = (None, false, None);
        }
    }
}

/// A renewal on its way, and back.
#[derive(Debug)]
pub struct Renewal {
    session: usize,
    /// On the client's clock.
    sent: Duration,
    /// The monitor's answer: does the session live?
    lives: Option<bool>,
}

impl Renewal {
    /// Whose.
    pub fn session(&self) -> usize {
        self.session
    }
}

fn wall() -> Timestamp {
    Timestamp { secs: 1, nanos: 0 }
}

fn caller() -> Caller {
    Caller { uid: 0, gid: 0, now: wall() }
}

fn object_of(gfid: Gfid) -> usize {
    (0..OBJECTS).find(|o| object(*o).gfid == gfid).expect("there are no other files")
}

impl Mds {
    /// A service with the files.
    pub fn new(rules: Rules) -> Self {
        let lease = LeaseConfig { rules, ..LeaseConfig::default() };
        let config = ServiceConfig { lease, ..ServiceConfig::default() };
        let store = MemoryStore::default();
        let service = Service::open(store.clone(), config, wall()).expect("memory");
        let mut mds = Self {
            store,
            service,
            config,
            known: None,
            owes_sizes: false,
            tokens: 0,
            asked: BTreeMap::new(),
        };
        let makers = SessionView { live: [MAKER].into(), last: MAKER, ..SessionView::default() };
        mds.service.sessions_changed(Duration::ZERO, wall(), makers).expect("memory");
        for o in 0..OBJECTS {
            let op = NamespaceOp::Create {
                parent: Gfid::ROOT,
                name: format!("file {o}").into_bytes(),
                kind: protocol::namespace::FileKind::Regular,
                mode: 0o600,
                umask: 0,
                rdev: 0,
                target: Vec::new(),
                open: None,
                pool: pg_id().pool,
            };
            let number = o as u64 + 1;
            let request = Request {
                session: MAKER,
                number,
                answered: 0,
                epoch: Epoch::default(),
                caller: caller(),
                op,
            };
            mds.service.submit(Duration::ZERO, 0, request).expect("memory");
        }
        let made =
            mds.service.finish_turn().expect("memory").into_iter().map(|event| match event {
                Event::Reply { reply: Reply::Attr(attr), .. }
                | Event::Sync { reply: Reply::Attr(attr), .. } => attr.gfid,
                other => panic!("a file is not made: {other:?}"),
            });
        mds.service
            .sessions_changed(Duration::ZERO, wall(), SessionView::default())
            .expect("memory");
        assert!(
            made.eq((0..OBJECTS).map(|o| object(o).gfid)),
            "the service numbers files otherwise"
        );
        mds.service.sync().expect("memory");
        mds
    }
}

impl World {
    // ---- the service

    /// The service takes a request.
    pub fn mds_hears(&mut self, s: usize, asked: Asked) {
        let request = asked.request.clone();
        let newer = self.mds.known.is_some_and(|known| request.epoch > self.maps[known].epoch);
        if newer && matches!(request.op, NamespaceOp::ReturnLease { keep: None, .. }) {
            self.cover("a lease goes back under a map that the metadata service does not know");
        }
        let mds = &mut self.mds;
        mds.tokens += 1;
        mds.asked.insert(mds.tokens, (s, asked));
        mds.service.submit(self.mon_now, mds.tokens, request).expect("memory");
        self.mds_tells();
    }

    fn mds_tells(&mut self) {
        self.mds.service.leases().check_invariants();
        for event in self.mds.service.finish_turn().expect("memory") {
            if matches!(event, Event::Sync { .. }) {
                self.mds.service.sync().expect("memory");
            }
            match event {
                Event::Reply { token, reply } | Event::Sync { token, reply } => {
                    let Some((s, asked)) = self.mds.asked.remove(&token) else { continue };
                    let number = asked.request.number;
                    let current =
                        self.clients[s].leases.calls.get(&number).map(|call| call.attempt);
                    if current == Some(asked.attempt) {
                        self.lines[s].down.push_back(Down::Answer(number, asked.attempt, reply));
                    }
                }
                // Sessions of the simulator are no mounts.
                Event::NamesRecall { .. } => {}
                Event::Recall { session, recall } => {
                    let s = session.get() as usize - 1;
                    self.cover("a lease is recalled");
                    if self.clients[s].run {
                        self.lines[s].down.push_back(Down::Recall(recall));
                    }
                }
            }
        }
    }

    /// The service learns the newest map.
    pub fn mds_learns(&mut self) {
        self.mds.known = Some(self.maps.len() - 1);
        let MapVersion { epoch, table, .. } = self.map();
        let (live, dead) =
            (table.live.iter().copied().collect(), table.dead.iter().copied().collect());
        let view = SessionView { live, dead, epoch: *epoch, last: table.last };
        self.mds.service.sessions_changed(self.mon_now, wall(), view).expect("memory");
        self.mds_tells();
        self.mds.owes_sizes =
            !self.mds.service.size_recovery_next(None, 1).expect("memory").is_empty();
    }

    /// The sizes of files whose writers died are found.
    pub fn mds_sizes(&mut self) {
        for file in self.mds.service.size_recovery_next(None, OBJECTS).expect("memory") {
            self.mds.service.size_recovered(self.mon_now, file.gfid, 0, wall()).expect("memory");
        }
        self.mds.owes_sizes = false;
        self.mds_tells();
    }

    /// Is somebody waiting for the service, and nothing on its way?
    pub fn mds_may_tick(&self) -> bool {
        let on_way = |line: &Line| !line.up.is_empty() || !line.down.is_empty();
        let waits = |client: &Client| client.run && !client.leases.is_idle();
        self.clients.iter().any(waits) && !self.lines.iter().any(on_way)
    }

    /// Time passes: recalls are repeated, waits end.
    pub fn mds_ticks(&mut self) {
        self.mon_now += Duration::from_secs(1);
        self.mds.service.tick(self.mon_now).expect("memory");
        self.mds_tells();
        self.mds.service.sync().expect("memory");
    }

    /// The service is started again; its machine may have lost its power.
    pub fn mds_restarts(&mut self, has_lost_power: bool) {
        let mds = &mut self.mds;
        let loses = has_lost_power && mds.service.namespace().last_commit() > mds.service.durable();
        if has_lost_power {
            mds.store.lose_power();
        }
        mds.service = Service::open(mds.store.clone(), mds.config, wall()).expect("memory");
        (mds.known, mds.owes_sizes) = (None, false);
        mds.asked.clear();
        (0..self.clients.len()).for_each(|s| self.line_lost(s));
        self.cover("the metadata service restarts");
        if loses {
            self.cover("the metadata service's machine loses what was not synced");
        }
    }

    /// A connection to the service is lost, and made anew.
    pub fn line_lost(&mut self, s: usize) {
        let line = &mut self.lines[s];
        line.late.append(&mut line.up);
        line.down.clear();
        if !self.clients[s].run {
            return;
        }
        let held = |(o, file): (usize, &Lease)| {
            let lease = file.holder.mode().map(|mode| (mode, file.holder.token()));
            let open = file.holder.may_be_open();
            (lease.is_some() || open).then_some(Held { gfid: object(o).gfid, lease, open })
        };
        let client = &mut self.clients[s];
        let held = client.leases.files.iter().enumerate().filter_map(held).collect();
        let again: Vec<u64> = client.leases.calls.keys().copied().collect();
        let reclaim = NamespaceOp::Reclaim {
            held,
            locks: Vec::new(),
            mount: false,
            since: u64::MAX,
            begun: 0,
            last: true,
        };
        if self.lines[s].attempts.is_multiple_of(2) {
            self.call(s, reclaim, Why::Told);
            again.into_iter().for_each(|number| self.send_up(s, number));
        } else {
            again.into_iter().for_each(|number| self.send_up(s, number));
            self.call(s, reclaim, Why::Told);
        }
    }

    // ---- a client

    /// What a client begins with.
    pub fn no_holdings(&self) -> Holdings {
        Holdings::new(self.rules, self.mon_now + TTL)
    }

    fn moment(&self, s: usize) -> Moment {
        let client = &self.clients[s];
        let (now, until) = (self.mon_now + client.leases.ahead, client.leases.until);
        Moment { now, until, epoch: self.maps[client.known].epoch }
    }

    fn call(&mut self, s: usize, op: NamespaceOp, why: Why) {
        let leases = &mut self.clients[s].leases;
        leases.number += 1;
        let number = leases.number;
        leases.calls.insert(number, Call { op, why, attempt: 0 });
        self.send_up(s, number);
    }

    fn send_up(&mut self, s: usize, number: u64) {
        let (client, line) = (&mut self.clients[s], &mut self.lines[s]);
        let answered = client.leases.calls.keys().next().map_or(0, |first| first - 1);
        let Some(call) = client.leases.calls.get_mut(&number) else { return };
        line.attempts += 1;
        call.attempt = line.attempts;
        let (epoch, op) = (self.maps[client.known].epoch, call.op.clone());
        let request = Request { session: sid(s), number, answered, epoch, caller: caller(), op };
        line.up.push_back(Asked { request, attempt: line.attempts });
    }

    /// May an operation of session `s` that needs `mode` begin on object `o`?
    pub fn may_use(&self, s: usize, o: usize, mode: LeaseMode) -> bool {
        let (client, file) = (&self.clients[s], &self.clients[s].leases.files[o]);
        client.run && !file.alone && file.holder.permits(Some(mode), self.moment(s)) == Permit::Go
    }

    /// May session `s` ask for a lease?
    pub fn may_ask(&self, s: usize, o: usize, mode: LeaseMode) -> bool {
        let holder = &self.clients[s].leases.files[o].holder;
        !holder.is_busy() && holder.mode() < Some(mode)
    }

    /// Session `s` asks for a lease of object `o`.
    pub fn ask_lease(&mut self, s: usize, o: usize, mode: LeaseMode) {
        let ticket = self.clients[s].leases.files[o].holder.ask();
        self.call(
            s,
            NamespaceOp::Open { gfid: object(o).gfid, lease: mode },
            Why::Wanted(o, ticket),
        );
    }

    /// May session `s` give back what it has of object `o`, by itself or as it was asked to? All
    /// that it wrote is reported, and stable as the rule demands, and nobody is inside.
    pub fn can_give_back(&self, s: usize, o: usize) -> bool {
        let (client, file) = (&self.clients[s], &self.clients[s].leases.files[o]);
        let asked = file.giving.is_some() || !file.holder.is_busy() && file.holder.mode().is_some();
        let reads = client.read.as_ref().is_some_and(|read| read.object == o);
        let stable =
            client.last[o] <= client.stable || file.holder.may_return(file.giving.flatten());
        client.run && asked && !file.alone && !reads && client.last[o] <= client.reported && stable
    }

    /// Session `s` gives it back.
    pub fn give_back(&mut self, s: usize, o: usize) {
        let client = &mut self.clients[s];
        let file = &mut client.leases.files[o];
        if client.last[o] <= client.stable {
            let mark = file.holder.sync_begins();
            file.holder.synced(mark);
        }
        if file.giving.is_none() {
            assert_eq!(file.holder.recall(None), RecallStep::Begin, "a lease is held");
        }
        let keep = *file.giving.get_or_insert(None);
        file.alone = true;
        file.cached = file.cached.filter(|_| keep.is_some());
        let op = NamespaceOp::ReturnLease { gfid: object(o).gfid, keep, set: SetAttr::default() };
        self.call(s, op, Why::Returned(o, keep));
    }

    /// Session `s` takes the service's next message.
    pub fn mds_reply(&mut self, s: usize) {
        let Some(message) = self.lines[s].down.pop_front() else { return };
        match message {
            Down::Recall(Recall { gfid, keep }) => {
                let o = object_of(gfid);
                let file = &mut self.clients[s].leases.files[o];
                match file.holder.recall(keep) {
                    RecallStep::Begin => file.giving = Some(keep),
                    RecallStep::Merged => {}
                    RecallStep::Answer => {
                        let op = NamespaceOp::ReturnLease { gfid, keep, set: SetAttr::default() };
                        self.call(s, op, Why::Told);
                    }
                }
            }
            Down::Answer(number, attempt, reply) => {
                let current = self.clients[s].leases.calls.get(&number).map(|call| call.attempt);
                match reply {
                    _ if current != Some(attempt) => {}
                    Reply::TryAgain => self.send_up(s, number),
                    Reply::Fenced => self.stop_client(s),
                    reply => {
                        let call =
                            self.clients[s].leases.calls.remove(&number).expect("just looked at");
                        self.mds_answered(s, call.why, reply);
                    }
                }
            }
        }
    }

    fn mds_answered(&mut self, s: usize, why: Why, reply: Reply) {
        match (why, reply) {
            (Why::Wanted(o, ticket), Reply::Opened { grant: Some(grant), .. }) => {
                self.note(|| format!("session {s} is granted {grant:?} of object {o}"));
                let file = &mut self.clients[s].leases.files[o];
                if !file.holder.granted(ticket, grant) {
                    self.cover("a grant is void");
                } else if grant.mode == LeaseMode::Read {
                    self.cover("a read lease is granted");
                }
            }
            (Why::Wanted(o, ticket), _) => {
                self.clients[s].leases.files[o].holder.not_granted(ticket)
            }
            (Why::Returned(o, keep), _) => {
                let file = &mut self.clients[s].leases.files[o];
                file.holder.gave_back(keep);
                (file.alone, file.giving) = (false, None);
                if let Some(more) = file.holder.recalled(Some(keep))
                    && file.holder.recall(more) == RecallStep::Begin
                {
                    file.giving = Some(more);
                }
            }
            (Why::Told, _) => {}
        }
    }

    /// A client ends, or finds that its session is dead.
    pub fn stop_client(&mut self, s: usize) {
        let client = &mut self.clients[s];
        (client.run, client.read) = (false, None);
        client.leases.fence();
        self.lines[s].down.clear();
    }

    /// Session `s` reads what its kernel has of object `o`.
    ///
    /// # Errors
    /// It is not what it must be.
    pub fn read_cached(&mut self, s: usize, o: usize) -> Check {
        self.reads += 1;
        let want = self.content(o).data;
        match self.clients[s].leases.files[o].cached {
            Some(got) if got != want => Err(format!(
                "order: session {s} reads {got:x?} of object {o} from its kernel's cache, not {want:x?}"
            )),
            _ => {
                self.cover("a cached read");
                Ok(())
            }
        }
    }

    // ---- the session's time

    /// Should session `s` renew?
    pub fn should_renew(&self, s: usize) -> bool {
        let at = self.moment(s);
        let on_way = self.renewals.iter().filter(|renewal| renewal.session == s).count();
        self.clients[s].run && at.now + 2 * TTL / 3 > at.until && on_way < RENEWALS_MAX
    }

    /// Session `s` asks to be kept alive.
    pub fn renew(&mut self, s: usize) {
        let at = self.moment(s);
        if at.now >= at.until {
            self.cover("a session's time runs out on its own clock");
        }
        self.renewals.push(Renewal { session: s, sent: at.now, lives: None });
    }

    /// A renewal arrives at the monitor, or its answer at the client.
    pub fn renewal(&mut self, n: usize) {
        let renewal = &mut self.renewals[n];
        let s = renewal.session;
        match renewal.lives {
            None => {
                let reply =
                    self.mon.handle(MonitorRequest::RenewSession { session: sid(s) }, self.mon_now);
                renewal.lives = Some(!matches!(reply, MonitorReply::Fenced));
                self.take_map();
            }
            Some(lives) => {
                let sent = self.renewals.swap_remove(n).sent;
                match (self.clients[s].run, lives) {
                    (true, true) => self.clients[s].leases.until = sent + TTL,
                    (true, false) => self.stop_client(s),
                    (false, _) => {}
                }
            }
        }
    }

    /// The monitor has heard session `s` without any delay.
    pub fn was_renewed(&mut self, s: usize) {
        let now = self.moment(s).now;
        self.clients[s].leases.until = now + TTL;
    }

    /// Can session `s` reach the metadata service?
    pub fn has_line(&self, s: usize) -> bool {
        !self.apart(Party::Client(s), Party::Mds)
    }
}
