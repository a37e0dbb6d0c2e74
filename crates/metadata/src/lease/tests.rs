//! Leases under random requests, returns, deaths and time: safety always, progress once holders
//! behave.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

const FILE: Gfid = Gfid::of_inode(9);
const A: SessionId = SessionId::new(1);
const B: SessionId = SessionId::new(2);
const C: SessionId = SessionId::new(3);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn hold(mode: LeaseMode) -> Want {
    Want::Hold(mode)
}

fn ask_for(leases: &mut Leases, session: SessionId, want: Want, ticket: u64) -> Answer {
    leases.request(ms(0), ms(4000), (FILE, session), want, Ticket(ticket))
}

fn recall(session: SessionId, keep: Option<LeaseMode>) -> Action {
    Action::Recall { session, gfid: FILE, keep }
}

#[test]
fn second_writer_waits_for_the_first() {
    let mut leases = Leases::new(LeaseConfig::default(), 0);
    assert_eq!(ask_for(&mut leases, A, hold(LeaseMode::Write), 1), Answer::Ready);
    assert_eq!(ask_for(&mut leases, B, hold(LeaseMode::Write), 2), Answer::Wait);
    assert_eq!(leases.take_actions(), [recall(A, None)]);
    assert_eq!(leases.returned(ms(1), FILE, A, None), Some(LeaseMode::Write));
    assert_eq!(leases.take_actions(), [Action::Ready(Ticket(2))]);
    assert_eq!(leases.writer(FILE), Some(B));
    leases.check_invariants();
}

#[test]
fn who_is_granted_a_lease_waits_for_nobody_with_what_it_allows() {
    let mut leases = Leases::new(LeaseConfig::default(), 0);
    ask_for(&mut leases, A, hold(LeaseMode::Write), 1);
    ask_for(&mut leases, B, hold(LeaseMode::Write), 2);
    assert_eq!(
        ask_for(&mut leases, A, hold(LeaseMode::Write), 3),
        Answer::Wait,
        "it is to give the lease back"
    );
    assert_eq!(ask_for(&mut leases, B, Want::Current, 4), Answer::Wait);
    assert_eq!(leases.take_actions(), [recall(A, None)]);
    leases.returned(ms(1), FILE, A, None);
    let ready = |ticket| Action::Ready(Ticket(ticket));
    assert_eq!(leases.take_actions(), [ready(2), ready(4), recall(B, None)]);
    leases.returned(ms(2), FILE, B, None);
    assert_eq!(leases.take_actions(), [ready(3)]);
    leases.check_invariants();
}

#[test]
fn reader_makes_the_writer_a_reader() {
    let mut leases = Leases::new(LeaseConfig::default(), 0);
    ask_for(&mut leases, A, hold(LeaseMode::Write), 1);
    assert_eq!(ask_for(&mut leases, B, Want::Current, 2), Answer::Wait);
    assert_eq!(ask_for(&mut leases, C, hold(LeaseMode::Read), 3), Answer::Wait);
    assert_eq!(leases.take_actions(), [recall(A, Some(LeaseMode::Read))]);
    assert_eq!(ask_for(&mut leases, A, Want::Alone, 4), Answer::Ready, "a writer may always flush");
    leases.returned(ms(1), FILE, A, Some(LeaseMode::Read));
    assert_eq!(leases.take_actions(), [Action::Ready(Ticket(2)), Action::Ready(Ticket(3))]);
    assert_eq!(
        (leases.held(FILE, A), leases.held(FILE, C)),
        (Some(LeaseMode::Read), Some(LeaseMode::Read))
    );
    leases.check_invariants();
}

#[test]
fn dead_writer_is_waited_for_and_not_asked() {
    let mut leases = Leases::new(LeaseConfig::default(), 0);
    ask_for(&mut leases, A, hold(LeaseMode::Write), 1);
    leases.open(FILE, A);
    assert_eq!(leases.fence(ms(1), A), [FILE]);
    assert_eq!(ask_for(&mut leases, B, hold(LeaseMode::Read), 2), Answer::Wait);
    leases.tick(ms(3000));
    assert_eq!(leases.take_actions(), []);
    let released = leases.release(ms(3100), A);
    assert_eq!(released, Released { files: vec![FILE], written: vec![FILE] });
    leases.recover(FILE, ms(3900));
    leases.settle(ms(3200), FILE);
    assert_eq!(leases.take_actions(), []);
    leases.tick(ms(3900));
    assert_eq!(leases.take_actions(), [Action::Ready(Ticket(2))]);
    leases.check_invariants();
}

#[test]
fn silent_holder_is_asked_again_and_the_request_expires() {
    let mut leases = Leases::new(LeaseConfig::default(), 0);
    ask_for(&mut leases, A, hold(LeaseMode::Write), 1);
    ask_for(&mut leases, B, hold(LeaseMode::Write), 2);
    leases.take_actions();
    leases.tick(ms(1000));
    assert_eq!(leases.take_actions(), [recall(A, None)]);
    leases.tick(ms(4000));
    assert_eq!(leases.take_actions(), [Action::Expired(Ticket(2)), recall(A, None)]);
    assert_eq!(leases.writer(FILE), Some(A));
    leases.check_invariants();
}

#[test]
fn session_with_too_many_files_is_asked_and_then_refused() {
    let config = LeaseConfig { session_files_max: 4, ..LeaseConfig::default() };
    let mut leases = Leases::new(config, 0);
    let file = Gfid::of_inode;
    leases.open(file(0), A);
    let ask = |leases: &mut Leases, n| {
        leases.request(ms(0), ms(9), (file(n), A), hold(LeaseMode::Read), Ticket(n))
    };
    for n in 0..4 {
        assert_eq!(ask(&mut leases, n), Answer::Ready);
    }
    assert_eq!(leases.take_actions(), []);
    assert_eq!(ask(&mut leases, 4), Answer::Ready);
    assert_eq!(leases.take_actions(), [Action::Recall { session: A, gfid: file(1), keep: None }]);
    for n in 5..8 {
        assert_eq!(ask(&mut leases, n), Answer::Ready);
    }
    assert_eq!(ask(&mut leases, 8), Answer::TooMany);
    leases.check_invariants();
}

#[derive(Clone, Debug)]
enum Step {
    Request {
        session: u64,
        file: u64,
        want: u8,
    },
    Open {
        session: u64,
        file: u64,
    },
    Close {
        session: u64,
        file: u64,
    },
    /// The session answers one of its recalls.
    Obey {
        session: u64,
    },
    /// It returns a lease unasked.
    Return {
        session: u64,
        file: u64,
        keep: Option<bool>,
    },
    Die {
        session: u64,
    },
    Resolve {
        session: u64,
    },
    Forget {
        file: u64,
    },
    Pass {
        ms: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let (s, f) = (|| 1..5u64, || 0..3u64);
    prop_oneof![
        8 => (s(), f(), 0..4u8).prop_map(|(session, file, want)| Step::Request { session, file, want }),
        1 => (s(), f()).prop_map(|(session, file)| Step::Open { session, file }),
        1 => (s(), f()).prop_map(|(session, file)| Step::Close { session, file }),
        6 => s().prop_map(|session| Step::Obey { session }),
        2 => (s(), f(), any::<Option<bool>>()).prop_map(|(session, file, keep)| Step::Return { session, file, keep }),
        1 => s().prop_map(|session| Step::Die { session }),
        1 => s().prop_map(|session| Step::Resolve { session }),
        1 => f().prop_map(|file| Step::Forget { file }),
        3 => (1..3000u64).prop_map(|ms| Step::Pass { ms }),
    ]
}

/// What clients believe, beside the machine.
#[derive(Default)]
struct World {
    leases: Leases,
    now: u64,
    next: u64,
    /// What each client holds by what it was told.
    believed: HashMap<(Gfid, SessionId), LeaseMode>,
    waiting: HashMap<Ticket, (Gfid, SessionId, Want)>,
    recalls: Vec<(SessionId, Gfid, Option<LeaseMode>)>,
    dead: BTreeSet<SessionId>,
}

impl World {
    fn believe(&mut self, gfid: Gfid, session: SessionId, want: Want) {
        if let Want::Hold(mode) = want {
            let held = self.believed.entry((gfid, session)).or_insert(mode);
            *held = mode.max(*held);
        }
        // what was granted must be compatible with what everyone else still believes, the dead
        // included
        for (&(file, other), &mode) in &self.believed {
            if file == gfid && other != session {
                assert!(
                    conflict(want, mode).is_none(),
                    "{session} got {want:?} while {other} holds {mode:?}"
                );
            }
        }
    }

    fn give_back(&mut self, gfid: Gfid, session: SessionId, keep: Option<LeaseMode>) {
        if let Some(&held) = self.believed.get(&(gfid, session)) {
            match keep.map(|keep| keep.min(held)) {
                Some(mode) => self.believed.insert((gfid, session), mode),
                None => self.believed.remove(&(gfid, session)),
            };
        }
        self.leases.returned(ms(self.now), gfid, session, keep);
    }

    fn follow(&mut self) {
        for action in self.leases.take_actions() {
            match action {
                Action::Recall { session, gfid, keep } => {
                    assert!(!self.dead.contains(&session), "a dead session is asked");
                    self.recalls.push((session, gfid, keep));
                }
                Action::Ready(ticket) => {
                    let (gfid, session, want) =
                        self.waiting.remove(&ticket).expect("answered once");
                    if self.leases.held(gfid, session).is_some() || !matches!(want, Want::Hold(_)) {
                        self.believe(gfid, session, want);
                    }
                }
                Action::Expired(ticket) => {
                    self.waiting.remove(&ticket).expect("answered once");
                }
            }
        }
        self.leases.check_invariants();
    }

    fn step(&mut self, step: &Step) {
        let now = ms(self.now);
        let file = Gfid::of_inode;
        match *step {
            Step::Request { session, file: f, want } => {
                let (gfid, session) = (file(f), SessionId::new(session));
                let want =
                    [hold(LeaseMode::Read), hold(LeaseMode::Write), Want::Current, Want::Alone]
                        [usize::from(want)];
                if self.dead.contains(&session) {
                    return;
                }
                let ticket = Ticket(self.next);
                self.next += 1;
                match self.leases.request(now, now + ms(4000), (gfid, session), want, ticket) {
                    Answer::Ready => self.believe(gfid, session, want),
                    Answer::Wait => drop(self.waiting.insert(ticket, (gfid, session, want))),
                    Answer::TooMany => panic!("far below the limit"),
                }
            }
            Step::Open { session, file: f } if !self.dead.contains(&SessionId::new(session)) => {
                self.leases.open(file(f), SessionId::new(session));
            }
            Step::Open { .. } => {}
            Step::Close { session, file: f } => self.leases.close(file(f), SessionId::new(session)),
            Step::Obey { session } => {
                let session = SessionId::new(session);
                if let Some(at) = self.recalls.iter().position(|r| r.0 == session) {
                    let (_, gfid, keep) = self.recalls.remove(at);
                    self.give_back(gfid, session, keep);
                }
            }
            Step::Return { session, file: f, keep } => {
                let session = SessionId::new(session);
                if !self.dead.contains(&session) {
                    let keep =
                        keep.map(|write| if write { LeaseMode::Write } else { LeaseMode::Read });
                    self.give_back(file(f), session, keep);
                }
            }
            Step::Die { session } => {
                self.dead.insert(SessionId::new(session));
                self.recalls.retain(|r| r.0 != SessionId::new(session));
                self.leases.fence(now, SessionId::new(session));
            }
            Step::Resolve { session } => {
                let session = SessionId::new(session);
                if self.dead.contains(&session) {
                    self.believed.retain(|(_, s), _| *s != session);
                    let released = self.leases.release(now, session);
                    for gfid in &released.written {
                        self.leases.recover(*gfid, now + ms(1500));
                    }
                    for gfid in released.files {
                        self.leases.settle(now, gfid);
                    }
                    self.dead.remove(&session);
                }
            }
            Step::Forget { file: f } => {
                let gfid = file(f);
                self.believed.retain(|(file, _), _| *file != gfid);
                self.recalls.retain(|r| r.1 != gfid);
                self.leases.forget(gfid);
            }
            Step::Pass { ms: passed } => {
                self.now += passed;
                self.leases.tick(ms(self.now));
            }
        }
        self.follow();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn never_two_writers_and_all_waiters_are_answered(steps in proptest::collection::vec(step(), 1..100)) {
        let mut world = World::default();
        for step in &steps {
            world.step(step);
        }
        // from here on everybody behaves: the dead are resolved and recalls are obeyed
        for session in 1..5 {
            world.step(&Step::Resolve { session });
        }
        for _ in 0..400 {
            if world.waiting.is_empty() {
                break;
            }
            for session in 1..5 {
                world.step(&Step::Obey { session });
            }
            world.step(&Step::Pass { ms: 100 });
        }
        prop_assert!(world.waiting.is_empty(), "{:?} still wait", world.waiting);
    }
}
