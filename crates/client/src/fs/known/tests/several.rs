//! Mounts that come, go, fall silent and lose connections, against the real metadata service with
//! its leases and promises: what a mount answers from memory is what the service has at that time.
//!
//! A change is carried out only when nobody may answer anything else, so that the comparison may
//! be exact at every moment.

use super::*;
use metadata::{Event, MemoryStore, Service, ServiceConfig, SessionView};
use protocol::namespace::{Caller, Commit, NamesRecall, Recall, Request};
use protocol::{Epoch, SessionId};
use std::collections::BTreeSet;
use std::time::Duration;

const MOUNTS: usize = 3;
/// More than a mount looks at while there are several: of some it learns only when it is alone.
const DIRS: usize = 8;
/// What the service's clock says when a session is seen to be dead.
const WALL: Timestamp = Timestamp { secs: 9, nanos: 0 };

/// On its way to a mount.
enum Down<'a> {
    Answer {
        question: Box<Question<'a>>,
        asked: Duration,
        answered: Box<Result<Answered>>,
        promised: (Duration, Duration),
        term: u64,
    },
    Names(NamesRecall),
    File(Recall),
}

/// A client's mount, as the session keeps it.
struct Mount<'a> {
    known: &'a Known,
    /// `None`: not mounted.
    session: Option<SessionId>,
    is_admitted: bool,
    numbers: u64,
    up: Vec<(NamespaceOp, Question<'a>, Duration)>,
    down: Vec<Down<'a>>,
    until: (Duration, Duration),
    term: u64,
}

impl Mount<'_> {
    fn term(&self, now: Duration) -> Term {
        Term { number: self.term, holds: now < self.until.0, leased: now < self.until.1 }
    }

    /// As `session::Promises::told`.
    fn told(&mut self, (alone, names): (Duration, Duration), term: u64) {
        if term >= self.term {
            if term > self.term {
                self.until.1 = Duration::ZERO;
            }
            self.term = term;
            self.until = (self.until.0.max(alone), self.until.1.max(names));
        }
    }

    /// Another session, or none: nothing of the last one counts.
    fn begins(&mut self, session: Option<SessionId>) {
        (self.session, self.is_admitted, self.numbers) = (session, false, 0);
        (self.up, self.down) = (Vec::new(), Vec::new());
        self.until = (Duration::ZERO, Duration::ZERO);
        self.known.recalled(None);
    }
}

struct Cluster<'a> {
    service: Service<MemoryStore>,
    now: Duration,
    mounts: Vec<Mount<'a>>,
    sessions: u64,
    tokens: u64,
    asked: HashMap<u64, (usize, SessionId, Question<'a>, Duration, Vec<Gfid>)>,
    from_memory: usize,
    listed: usize,
}

fn caller() -> Caller {
    Caller { uid: 0, gid: 0, now: WALL }
}

impl<'a> Cluster<'a> {
    fn new(knowns: &'a [Known]) -> Self {
        let service =
            Service::open(MemoryStore::default(), ServiceConfig::default(), Timestamp::default());
        let mount = |known| Mount {
            known,
            session: None,
            is_admitted: false,
            numbers: 0,
            up: Vec::new(),
            down: Vec::new(),
            until: Default::default(),
            term: 0,
        };
        let mut cluster = Self {
            service: service.expect("a store in memory"),
            now: Duration::from_secs(1),
            mounts: knowns.iter().map(mount).collect(),
            sessions: 0,
            tokens: 0,
            asked: HashMap::new(),
            from_memory: 0,
            listed: 0,
        };
        cluster.view();
        for mount in 0..2 {
            cluster.come_or_go(mount);
        }
        cluster
    }

    fn view(&mut self) {
        let live: BTreeSet<_> = self.mounts.iter().filter_map(|mount| mount.session).collect();
        let (epoch, last) = (Epoch::new(1), SessionId::new(self.sessions));
        let view = SessionView { live, dead: BTreeSet::new(), epoch, last };
        self.service.sessions_changed(self.now, WALL, view).expect("a store in memory");
        self.follow();
    }

    fn come_or_go(&mut self, m: usize) {
        self.sessions += 1;
        let session = self.mounts[m].session.is_none().then(|| SessionId::new(self.sessions));
        // What it answered itself it may go on to answer until its promises are over: it is gone.
        self.mounts[m].begins(session);
        self.view();
    }

    fn ask(&mut self, m: usize, op: NamespaceOp) {
        let now = self.now;
        let mount = &mut self.mounts[m];
        if mount.session.is_none() {
            return;
        }
        let op = if mount.is_admitted { op } else { NamespaceOp::Mount };
        let question = mount.known.begin(mount.term(now), &op);
        mount.up.push((op, question, now));
    }

    /// A request arrives.
    fn up(&mut self, m: usize, n: usize) {
        let mount = &mut self.mounts[m];
        let Some(session) = mount.session.filter(|_| !mount.up.is_empty()) else { return };
        let (op, question, asked) = mount.up.remove(n % mount.up.len());
        mount.numbers += 1;
        self.tokens += 1;
        let dirs = op.changed_dirs().collect();
        self.asked.insert(self.tokens, (m, session, question, asked, dirs));
        let (number, epoch) = (mount.numbers, Epoch::new(0));
        // Every change has a time of its own.
        let now = Timestamp { secs: self.tokens as i64, nanos: 0 };
        let caller = Caller { now, ..caller() };
        let request = Request { session, number, answered: 0, epoch, caller, op };
        self.service.submit(self.now, self.tokens, request).expect("a store in memory");
        self.follow();
    }

    /// As the owner of the service does.
    fn follow(&mut self) {
        let mut events = self.service.finish_turn().expect("a store in memory");
        if events.iter().any(|event| matches!(event, Event::Sync { .. })) || !events.is_empty() {
            self.service.sync().expect("a store in memory");
        }
        for event in events.drain(..) {
            match event {
                Event::Reply { token, reply } | Event::Sync { token, reply } => {
                    self.answer(token, reply)
                }
                Event::NamesRecall { session, recall } => {
                    self.send(session, Down::Names(recall));
                }
                Event::Recall { session, recall } => self.send(session, Down::File(recall)),
            }
        }
    }

    fn send(&mut self, session: SessionId, down: Down<'a>) {
        if let Some(mount) = self.mounts.iter_mut().find(|mount| mount.session == Some(session)) {
            mount.down.push(down);
        }
    }

    fn answer(&mut self, token: u64, reply: Reply) {
        let covered = self.service.is_covered(token);
        let Some((_, session, question, asked, dirs)) = self.asked.remove(&token) else { return };
        let promised = (
            self.service.promise_alone(self.now, session),
            self.service.promise_names(self.now, session),
        );
        let term = self.service.alone_term();
        let is_told = promised.0 > Duration::ZERO && !matches!(reply, Reply::Errno(_));
        let attr = |dir: &Gfid| self.service.namespace().attr(*dir).expect("a store in memory");
        let dirs = if is_told { dirs.iter().filter_map(attr).collect() } else { Vec::new() };
        let answered = match reply {
            Reply::Errno(errno) => Err(ClientError::Posix(errno)),
            Reply::TryAgain | Reply::Fenced => Err(ClientError::TimedOut("the test")),
            reply => {
                let (commit, durable) = (Commit::default(), Commit::default());
                Ok(Answered { reply, covered, dirs, commit, durable })
            }
        };
        let (question, answered) = (Box::new(question), Box::new(answered));
        self.send(session, Down::Answer { question, asked, answered, promised, term });
    }

    /// The next message arrives at a mount: one connection keeps their order, but tasks learn of
    /// answers at different times.
    fn down(&mut self, m: usize, late: bool) {
        let now = self.now;
        let mount = &mut self.mounts[m];
        let answers = mount.down.iter().take_while(|down| matches!(down, Down::Answer { .. }));
        let at = if late { answers.count().saturating_sub(1) } else { 0 };
        if mount.down.len() <= at {
            return;
        }
        match mount.down.remove(at) {
            Down::Answer { question, asked, answered, promised: (alone, names), term } => {
                mount.told((asked + alone, asked + names), term);
                let is_mounted =
                    matches!(&*answered, Ok(answered) if answered.reply == Reply::Done);
                mount.is_admitted |= is_mounted;
                question.end(mount.term(now), &answered);
            }
            Down::Names(recall) => {
                mount.known.recalled(recall.gfid);
                let op = NamespaceOp::ReturnNames { recall };
                let question = mount.known.begin(mount.term(now), &op);
                mount.up.push((op, question, now));
            }
            Down::File(Recall { gfid, keep }) => {
                let op = NamespaceOp::ReturnLease { gfid, keep, set: SetAttr::default() };
                let question = mount.known.begin(mount.term(now), &op);
                mount.up.push((op, question, now));
            }
        }
    }

    /// A connection is lost with all that was on it; the mount forgets, as it does when it is told
    /// that the service may not be the same.
    fn lose(&mut self, m: usize) {
        let mount = &mut self.mounts[m];
        (mount.up, mount.down) = (Vec::new(), Vec::new());
        mount.known.recalled(None);
    }

    fn pass(&mut self, ms: u64) {
        self.now += Duration::from_millis(ms);
        self.service.tick(self.now).expect("a store in memory");
        self.follow();
    }

    /// Whatever a mount would answer by itself is so.
    fn check(&mut self, dirs: &[Gfid], names: &[Vec<u8>]) {
        let namespace = self.service.namespace();
        let attr = |gfid| namespace.attr(gfid).expect("a store in memory");
        for (m, mount) in self.mounts.iter().enumerate() {
            let term = mount.term(self.now);
            for &dir in dirs {
                if let Some(known) = mount.known.attr(term, dir) {
                    assert_eq!(Some(known), attr(dir), "mount {m} knows a directory");
                }
                for name in names {
                    let Some(known) = mount.known.lookup(term, dir, name) else { continue };
                    self.from_memory += 1;
                    let found = namespace.resolve(dir, name).expect("a store in memory");
                    assert_eq!(known.ok(), found.and_then(attr), "mount {m} knows {name:?}");
                }
                let Some(entries) = mount.known.entries(term, dir) else { continue };
                self.listed += 1;
                for entry in entries {
                    let found = namespace.resolve(dir, &entry.name).expect("a store in memory");
                    assert_eq!(Some(entry.attr), found.and_then(attr), "mount {m} lists");
                }
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Act {
    Ask(usize, NamespaceOp),
    /// All at once, as far as nobody has to be waited for.
    Do(usize, NamespaceOp),
    Up(usize, usize),
    Down(usize, bool),
    ComeOrGo(usize),
    Lose(usize),
    Pass(u64),
}

/// Files are those that the service makes: their numbers follow each other.
fn several_op(dirs: [Gfid; DIRS]) -> impl Strategy<Value = NamespaceOp> {
    let dir = move || (0..DIRS).prop_map(move |n| dirs[n]);
    let name = || (0..3u8).prop_map(|n| vec![b'a' + n]);
    let mode = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
    // By its name: whatever it stands for when this is drawn is not known.
    prop_oneof![
        6 => (dir(), name()).prop_map(|(parent, name)| NamespaceOp::Lookup { parent, name }),
        3 => dir().prop_map(|gfid| NamespaceOp::ReadDir { gfid, after: Vec::new(), limit: 100 }),
        1 => dir().prop_map(|gfid| NamespaceOp::GetAttr { gfid }),
        1 => (dir(), 0..8u32).prop_map(move |(gfid, bits)| NamespaceOp::SetAttr {
            gfid, set: mode(0o700 + bits), sync: false,
        }),
        1 => dir().prop_map(|gfid| set_xattr(gfid, b"user.a")),
        2 => (dir(), name()).prop_map(|(parent, name)| NamespaceOp::Create {
            parent, name, kind: FileKind::Symlink, mode: 0o777, umask: 0, rdev: 0,
            target: b"x".to_vec(), pool: PoolId::new(1), open: None,
        }),
        2 => (dir(), name()).prop_map(|(parent, name)| NamespaceOp::Unlink { parent, name, gives: None }),
        2 => (dir(), name(), dir(), name()).prop_map(|(parent, name, new_parent, new_name)| NamespaceOp::Rename {
            parent, name, new_parent, new_name, mode: RenameMode::Replace,
        }),
    ]
}

fn several_act(dirs: [Gfid; DIRS], mounts: usize) -> impl Strategy<Value = Act> {
    let m = move || 0..mounts;
    prop_oneof![
        20 => (m(), several_op(dirs)).prop_map(|(m, op)| Act::Ask(m, op)),
        20 => (m(), several_op(dirs)).prop_map(|(m, op)| Act::Do(m, op)),
        20 => (m(), any::<usize>()).prop_map(|(m, n)| Act::Up(m, n)),
        20 => (m(), any::<bool>()).prop_map(|(m, late)| Act::Down(m, late)),
        1 => m().prop_map(Act::ComeOrGo),
        1 => m().prop_map(Act::Lose),
        4 => (10..400u64).prop_map(Act::Pass),
    ]
}

/// Makes directories, as nobody who is a mount.
fn directories(cluster: &mut Cluster<'_>) -> [Gfid; DIRS] {
    cluster.sessions += 1;
    let session = SessionId::new(cluster.sessions);
    let live = BTreeSet::from([session]);
    let view = SessionView { live, dead: BTreeSet::new(), epoch: Epoch::new(1), last: session };
    cluster.service.sessions_changed(cluster.now, WALL, view).expect("a store in memory");
    let mut dirs = [Gfid::ROOT; DIRS];
    for (number, dir) in (1..).zip(&mut dirs[1..]) {
        let name = format!("dir {number}").into_bytes();
        let op = create(Gfid::ROOT, &name, FileKind::Directory);
        let (answered, epoch) = (0, Epoch::new(0));
        let request = Request { session, number, answered, epoch, caller: caller(), op };
        let token = u64::MAX - number;
        cluster.service.submit(cluster.now, token, request).expect("a store in memory");
        let made = cluster.service.namespace().resolve(Gfid::ROOT, &name);
        *dir = made.expect("a store in memory").expect("made");
    }
    cluster.follow();
    cluster.view();
    dirs
}

#[test]
fn what_any_of_several_mounts_answers_from_memory_is_what_the_service_has() {
    use proptest::strategy::ValueTree;
    let names: Vec<Vec<u8>> = (0..3u8).map(|n| vec![b'a' + n]).collect();
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut from_memory, mut listed) = (0, 0);
    for run in 0..60 {
        let locks = LockTable::default();
        let knowns: Vec<Known> = (0..MOUNTS).map(|_| Known::new(&locks)).collect();
        let mut cluster = Cluster::new(&knowns);
        let dirs = directories(&mut cluster);
        // With two, one of them is often alone.
        let acts = prop::collection::vec(several_act(dirs, 2 + run % 2), 600..1000);
        let acts = acts.new_tree(&mut runner).expect("acts").current();
        for (at, act) in acts.into_iter().enumerate() {
            match act {
                Act::Ask(m, op) => cluster.ask(m, op),
                Act::Do(m, op) => {
                    cluster.ask(m, op);
                    while !(cluster.mounts[m].up.is_empty() && cluster.mounts[m].down.is_empty()) {
                        cluster.up(m, 0);
                        cluster.down(m, false);
                    }
                }
                Act::Up(m, n) => cluster.up(m, n),
                Act::Down(m, late) => cluster.down(m, late),
                Act::ComeOrGo(m) => cluster.come_or_go(m),
                Act::Lose(m) => cluster.lose(m),
                Act::Pass(ms) => cluster.pass(ms),
            }
            let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                cluster.check(&dirs, &names)
            }));
            assert!(checked.is_ok(), "run {run}, act {at}");
        }
        from_memory += cluster.from_memory;
        listed += cluster.listed;
    }
    assert!(from_memory > 1000 && listed > 100, "{from_memory}, {listed}: nothing was tried");
}
