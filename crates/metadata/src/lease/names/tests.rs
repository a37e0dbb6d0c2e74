//! Random turns of three sessions and the service, with messages that wait, are lost or repeated,
//! and sessions that fall silent: what a session answers from memory is what the service has.

use super::*;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use std::collections::HashMap;

const SESSIONS: usize = 3;
const FILES: u64 = 3;

fn session(s: usize) -> SessionId {
    SessionId::new(s as u64 + 1)
}

fn file(f: u64) -> Gfid {
    Gfid::of_inode(10 + f)
}

/// Rules of the session's side.
#[derive(Clone, Copy)]
struct Sides {
    service: Rules,
    clock: bool,
    asked: bool,
}

const WHOLE: Sides = Sides { service: ALL_RULES, clock: true, asked: true };

enum Up {
    Ask { f: u64, asked: Duration, clock: u64 },
    Returned(NamesRecall),
}

enum Down {
    Answer { f: u64, version: u64, covered: bool, asked: Duration, clock: u64, promise: Duration },
    Recall(NamesRecall),
}

#[derive(Default)]
struct Mount {
    up: VecDeque<Up>,
    down: VecDeque<Down>,
    until: Duration,
    clock: u64,
    learn_from: u64,
    cached: HashMap<u64, u64>,
    last_return: Option<NamesRecall>,
}

impl Mount {
    /// What a recall, or a change of its own, makes untrue.
    fn forget(&mut self, gfid: Option<Gfid>) {
        self.clock += 1;
        self.learn_from = self.clock;
        self.cached.retain(|&f, _| gfid.is_some_and(|gfid| file(f) != gfid));
    }
}

struct World {
    sides: Sides,
    leases: NameLeases,
    mounts: [Mount; SESSIONS],
    versions: [u64; FILES as usize],
    parked: HashMap<u64, (usize, u64)>,
    tickets: u64,
    now: Duration,
    from_memory: usize,
    waited: usize,
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Ask {
        s: usize,
        f: u64,
    },
    Change {
        s: usize,
        f: u64,
    },
    Read {
        s: usize,
        f: u64,
    },
    Up(usize),
    Down(usize),
    Repeat(usize),
    /// A connection is lost with what it had to deliver.
    Lose(usize),
    Pass(u64),
}

fn act() -> impl Strategy<Value = Act> {
    let (s, f) = (0..SESSIONS, 0..FILES);
    prop_oneof![
        3 => (s.clone(), f.clone()).prop_map(|(s, f)| Act::Ask { s, f }),
        2 => (s.clone(), f.clone()).prop_map(|(s, f)| Act::Change { s, f }),
        4 => (s.clone(), f).prop_map(|(s, f)| Act::Read { s, f }),
        5 => s.clone().prop_map(Act::Up),
        5 => s.clone().prop_map(Act::Down),
        1 => s.clone().prop_map(Act::Repeat),
        1 => s.prop_map(Act::Lose),
        1 => (50..700_u64).prop_map(Act::Pass),
    ]
}

impl World {
    fn new(sides: Sides) -> Self {
        let mut leases = NameLeases::new(NamesConfig::default());
        leases.rules = sides.service;
        Self {
            sides,
            leases,
            mounts: Default::default(),
            versions: [0; FILES as usize],
            parked: HashMap::new(),
            tickets: 0,
            now: Duration::from_secs(5),
            from_memory: 0,
            waited: 0,
        }
    }

    fn change(&mut self, s: usize, f: u64) {
        self.tickets += 1;
        if self.leases.change(self.now, session(s), &[file(f)], Ticket(self.tickets)) {
            self.versions[f as usize] += 1;
            self.mounts[s].forget(Some(file(f)));
        } else {
            self.waited += 1;
            self.parked.insert(self.tickets, (s, f));
        }
        self.follow();
    }

    fn follow(&mut self) {
        for action in self.leases.take_actions() {
            match action {
                NamesAction::Recall(to, recall) => {
                    self.mounts[to.get() as usize - 1].down.push_back(Down::Recall(recall));
                }
                NamesAction::Ready(Ticket(ticket)) => {
                    let (s, f) = self.parked.remove(&ticket).expect("it waits");
                    self.change(s, f);
                }
                NamesAction::Expired(_) => unreachable!("no session ends"),
            }
        }
    }

    /// False: a session answers from its memory what is not so.
    fn step(&mut self, act: Act) -> bool {
        match act {
            Act::Ask { s, f } => {
                let mount = &mut self.mounts[s];
                let (asked, clock) = (self.now, mount.clock);
                mount.up.push_back(Up::Ask { f, asked, clock });
            }
            Act::Change { s, f } => self.change(s, f),
            Act::Read { s, f } => {
                let mount = &self.mounts[s];
                if (!self.sides.clock || self.now < mount.until)
                    && let Some(&version) = mount.cached.get(&f)
                {
                    self.from_memory += 1;
                    return version == self.versions[f as usize];
                }
            }
            Act::Up(s) => match self.mounts[s].up.pop_front() {
                Some(Up::Ask { f, asked, clock }) => {
                    let covered = self.leases.grant(self.now, session(s), &[file(f)]);
                    self.follow();
                    let version = self.versions[f as usize];
                    let promise = self.leases.promise(self.now, session(s));
                    let answer = Down::Answer { f, version, covered, asked, clock, promise };
                    self.mounts[s].down.push_back(answer);
                }
                Some(Up::Returned(recall)) => {
                    self.leases.returned(self.now, session(s), recall);
                    self.follow();
                }
                None => {}
            },
            Act::Down(s) => self.deliver(s),
            Act::Repeat(s) => {
                if let Some(recall) = self.mounts[s].last_return {
                    self.mounts[s].up.push_back(Up::Returned(recall));
                }
            }
            Act::Lose(s) => self.mounts[s].down.clear(),
            Act::Pass(ms) => {
                self.now += Duration::from_millis(ms);
                self.leases.tick(self.now);
                self.follow();
            }
        }
        true
    }

    fn deliver(&mut self, s: usize) {
        let mount = &mut self.mounts[s];
        match mount.down.pop_front() {
            Some(Down::Answer { f, version, covered, asked, clock, promise }) => {
                mount.until = mount.until.max(asked + promise);
                if covered && (!self.sides.asked || clock >= mount.learn_from) {
                    mount.cached.insert(f, version);
                }
            }
            Some(Down::Recall(recall)) => {
                mount.forget(recall.gfid);
                mount.last_return = Some(recall);
                mount.up.push_back(Up::Returned(recall));
            }
            None => {}
        }
    }
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    prop::collection::vec(act(), 1..400)
}

/// The number of random runs in which something untrue is answered.
fn failures(sides: Sides, runs: usize) -> usize {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut run = || {
        let acts = acts().new_tree(&mut runner).expect("acts").current();
        let mut world = World::new(sides);
        acts.into_iter().any(|act| !world.step(act))
    };
    (0..runs).filter(|_| run()).count()
}

#[test]
fn what_is_answered_from_memory_is_what_the_service_has() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut from_memory, mut waited) = (0, 0);
    for _ in 0..3000 {
        let acts = acts().new_tree(&mut runner).expect("acts").current();
        let mut world = World::new(WHOLE);
        for (at, &act) in acts.iter().enumerate() {
            assert!(world.step(act), "untrue after {:?}", &acts[..=at]);
        }
        // Whatever the others do, nobody waits for longer than a promise.
        world.step(Act::Pass(1250));
        assert!(world.parked.is_empty(), "a change waits for ever");
        from_memory += world.from_memory;
        waited += world.waited;
    }
    assert!(from_memory > 1000 && waited > 1000, "{from_memory} and {waited}: nothing was tried");
}

/// Canaries: without any one of the rules something untrue is answered.
#[test]
fn every_rule_is_needed() {
    let off = |name, sides| assert!(failures(sides, 3000) > 0, "nothing breaks without {name}");
    let service = |rules| Sides { service: rules, ..WHOLE };
    off("NamesWait", service(Rules { wait: false, ..ALL_RULES }));
    off("NamesSilent", service(Rules { silent: false, ..ALL_RULES }));
    off("NamesToken", service(Rules { token: false, ..ALL_RULES }));
    off("NamesClock", Sides { clock: false, ..WHOLE });
    off("NamesAsked", Sides { asked: false, ..WHOLE });
}

#[test]
fn a_session_that_is_gone_is_waited_for_as_long_as_its_promise() {
    let mut leases = NameLeases::new(NamesConfig::default());
    let ms = Duration::from_millis;
    assert!(leases.grant(ms(0), session(0), &[file(0)]));
    assert_eq!(leases.promise(ms(0), session(0)), ms(1000));
    leases.leave(ms(10), session(0));
    assert!(!leases.change(ms(20), session(1), &[file(0)], Ticket(1)));
    leases.take_actions();
    leases.tick(ms(1249));
    assert_eq!(leases.take_actions(), []);
    leases.tick(ms(1250));
    assert_eq!(leases.take_actions(), [NamesAction::Ready(Ticket(1))]);
    assert!(leases.change(ms(1250), session(1), &[file(0)], Ticket(1)) && leases.is_empty());
}

#[test]
fn at_its_limit_a_session_is_asked_for_everything_and_begins_anew() {
    let config = NamesConfig { session_max: 2, ..NamesConfig::default() };
    let mut leases = NameLeases::new(config);
    let now = Duration::ZERO;
    assert!(leases.grant(now, session(0), &[file(0), file(1)]));
    assert!(!leases.grant(now, session(0), &[file(2)]), "too many");
    let Some(NamesAction::Recall(_, recall)) = leases.take_actions().pop_front() else {
        panic!("not asked");
    };
    assert_eq!(recall.gfid, None);
    assert_eq!(leases.promise(now, session(0)), Duration::ZERO);
    leases.returned(now, session(0), recall);
    assert!(leases.is_empty() && leases.grant(now, session(0), &[file(2)]));
    let full = NamesConfig { total_max: 1, ..NamesConfig::default() };
    let mut leases = NameLeases::new(full);
    assert!(leases.grant(now, session(0), &[file(0)]));
    assert!(!leases.grant(now, session(1), &[file(0)]), "all leases are given");
}
