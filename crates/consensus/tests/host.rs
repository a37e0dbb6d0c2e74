//! Hosts on a network and disks that obey: who leads and when, what is answered, who takes part.

use bytes::Bytes;
use consensus::{
    AskError, Change, Config, Entry, EntryKind, GroupId, HardState, Host, LEASE, NodeId, OpenError,
    Outcome, Output, Persist, Recovered, ReplicaId, Role, Snapshot, TICK, Ticket, VoterChange,
    Voters,
};
use std::collections::BTreeMap;
use std::time::Duration;

const A: GroupId = GroupId(0);
const B: GroupId = GroupId(1);

fn replica(node: u16, incarnation: u64) -> ReplicaId {
    ReplicaId::new(NodeId(node), incarnation).expect("a good number")
}

fn voters(count: u16) -> Voters {
    Voters::of((0..count).map(|node| replica(node, 1)))
}

fn open(node: u16, incarnation: u64, groups: Vec<Recovered>, now: Duration) -> Host {
    let peers = (0..5).filter(|peer| *peer != node).map(NodeId).collect();
    let (boot, rules) = (now.as_millis() as u64 + u64::from(node) + 1, protocol::Rules::default());
    let config = Config { replica: replica(node, incarnation), peers, boot, seed: 7, rules };
    Host::open(config, groups, now).expect("a good log")
}

/// Several hosts; what is said arrives at once, unless one is away.
#[derive(Default)]
struct World {
    hosts: BTreeMap<u16, Host>,
    away: Vec<u16>,
    /// Whose disk takes for ever, and what waits for it.
    slow: Option<u16>,
    waiting: Vec<u64>,
    given: BTreeMap<(u16, GroupId), Vec<Bytes>>,
    restored: BTreeMap<u16, Bytes>,
    settled: BTreeMap<(u16, Ticket), Outcome>,
    now: Duration,
}

impl World {
    fn new(count: u16) -> Self {
        let mut world = Self { now: Duration::from_secs(1), ..Self::default() };
        for node in 0..count {
            let first = [A, B].map(|group| Recovered::first(group, voters(count), "first".into()));
            world.hosts.insert(node, open(node, 1, first.to_vec(), world.now));
        }
        world
    }

    fn run(&mut self, ticks: u32) {
        for _ in 0..ticks {
            self.now += TICK;
            self.hosts.values_mut().for_each(|host| host.tick(self.now));
            self.carry_out();
        }
    }

    fn carry_out(&mut self) {
        loop {
            let mut outputs = Vec::new();
            for (&node, host) in &mut self.hosts {
                outputs.extend(host.outputs().map(|output| (node, output)));
            }
            if outputs.is_empty() {
                return;
            }
            for (node, output) in outputs {
                self.one(node, output);
            }
        }
    }

    fn one(&mut self, node: u16, output: Output) {
        match output {
            Output::Send { to, frame }
                if !self.away.contains(&node) && !self.away.contains(&to.0) =>
            {
                if let Some(host) = self.hosts.get_mut(&to.0) {
                    host.step(NodeId(node), &frame, self.now);
                }
            }
            Output::Persist(persist) if self.slow == Some(node) => {
                self.waiting.push(persist.number)
            }
            Output::Persist(persist) => {
                self.hosts.get_mut(&node).expect("it runs").persisted(persist.number, self.now);
            }
            Output::Committed { group, entries } => {
                self.given
                    .entry((node, group))
                    .or_default()
                    .extend(entries.into_iter().map(|entry| entry.data));
            }
            Output::Restored { data, .. } => drop(self.restored.insert(node, data)),
            Output::Settled { ticket, outcome } => {
                self.settled.insert((node, ticket), outcome);
            }
            Output::SnapshotWanted { group } => {
                let host = self.hosts.get_mut(&node).expect("it runs");
                let applied = host.status(group).expect("a group").applied;
                host.snapshot(group, applied, Bytes::from(format!("up to {applied}")));
            }
            Output::Send { .. } | Output::Role { .. } => {}
        }
    }

    fn leader(&self, group: GroupId) -> Option<u16> {
        let leads =
            |host: &Host| matches!(host.status(group).expect("a group").role, Role::Leader { .. });
        let here = self.hosts.iter().filter(|(node, _)| !self.away.contains(node));
        here.filter(|(_, host)| leads(host)).map(|(node, _)| *node).next()
    }

    fn host(&mut self, node: u16) -> &mut Host {
        self.hosts.get_mut(&node).expect("it runs")
    }

    fn write(&mut self, group: GroupId, data: &'static str) -> Outcome {
        let leader = self.leader(group).expect("somebody leads");
        let ticket = self.host(leader).propose(group, data.into()).expect("it leads");
        self.carry_out();
        self.settled.remove(&(leader, ticket)).expect("it is settled")
    }
}

#[test]
fn all_that_start_together_do_not_wait_for_each_other_to_be_quiet() {
    let mut world = World::new(3);
    // three ticks to hear that all are quiet, and at most one election timeout
    world.run(3);
    assert!(world.hosts.values().all(|host| !host.status(A).expect("a group").quiet));
    world.run(20);
    assert!(world.leader(A).is_some() && world.leader(B).is_some());
    assert!(matches!(world.write(A, "one"), Outcome::Committed(_)));
    assert!(matches!(world.write(B, "two"), Outcome::Committed(_)));
    world.run(3);
    for node in 0..3 {
        assert_eq!(world.given[&(node, A)], ["one"]);
        assert_eq!(world.given[&(node, B)], ["two"]);
    }
}

#[test]
fn one_that_starts_alone_is_quiet_for_a_longest_election_timeout() {
    let mut world = World::new(3);
    world.away = vec![1, 2];
    world.run(19);
    assert!(world.hosts[&0].status(A).expect("a group").quiet);
    world.run(1);
    assert!(!world.hosts[&0].status(A).expect("a group").quiet);
}

#[test]
fn another_leads_when_the_leader_is_away_and_what_it_was_asked_has_no_answer() {
    let mut world = World::new(3);
    world.run(25);
    let old = world.leader(A).expect("somebody leads");
    world.write(A, "before");
    world.away = vec![old];
    let write = world.host(old).propose(A, "lost".into()).expect("it does not know yet");
    let now = world.now;
    let read = world.host(old).confirm(A, now).expect("it does not know yet");
    world.run(45);
    let new = world.leader(A).expect("another leads");
    assert_ne!(new, old);
    assert_eq!(world.settled[&(old, write)], Outcome::Deposed);
    assert_eq!(world.settled[&(old, read)], Outcome::Deposed);
    let leader = Some(replica(new, 1));
    world.write(A, "after");
    world.away.clear();
    world.run(5);
    let refused = world.host(old).propose(A, "no".into());
    assert_eq!(refused, Err(AskError::NotLeader { leader }));
    assert_eq!(world.given[&(old, A)], ["before", "after"]);
}

#[test]
fn a_leader_answers_alone_while_its_lease_lasts() {
    let mut world = World::new(3);
    world.run(30);
    let leader = world.leader(A).expect("somebody leads");
    let now = world.now;
    let read = world.host(leader).confirm(A, now).expect("it leads");
    world.carry_out();
    assert!(matches!(world.settled[&(leader, read)], Outcome::Confirmed(_)));
    let until = world.host(leader).lease_until(A).expect("it has a lease");
    assert!(until > world.now && until <= world.now + LEASE);
    world.away = vec![leader];
    world.run(2);
    assert_eq!(
        world.host(leader).lease_until(A),
        Some(until),
        "nobody answers, so it is not renewed"
    );
    world.away.clear();
    world.run(4);
    let leader = world.leader(A).expect("somebody leads");
    assert!(world.host(leader).hand_over(A));
    assert_eq!(
        world.host(leader).lease_until(A),
        None,
        "whoever is asked to stand is elected at once"
    );
    world.run(3);
    assert_ne!(world.leader(A), Some(leader));
}

#[test]
fn a_slow_disk_moves_the_leader() {
    let mut world = World::new(3);
    world.run(30);
    let leader = world.leader(A).expect("somebody leads");
    world.slow = Some(leader);
    world.host(leader).propose(A, "slow".into()).expect("it leads");
    world.run(15);
    let next = world.leader(A).expect("another leads");
    assert_ne!(next, leader);
    assert!(matches!(world.write(A, "fast"), Outcome::Committed(_)));
    // it catches up, and does not lead again for that
    world.slow = None;
    let (last, now) = (world.waiting.last().copied().expect("it waited"), world.now);
    world.host(leader).persisted(last, now);
    world.run(20);
    assert_eq!(world.leader(A), Some(next));
    assert_eq!(world.given[&(leader, A)], ["slow", "fast"]);
}

#[test]
fn a_node_without_its_disk_takes_its_place_again_by_itself() {
    let mut world = World::new(3);
    world.run(25);
    world.write(A, "one");
    world.run(3);
    let gone = (world.leader(A).expect("somebody leads") + 1) % 3;
    let now = world.now;
    world.hosts.insert(gone, open(gone, 2, vec![Recovered::blank(A), Recovered::blank(B)], now));
    world.given.clear();
    world.run(60);
    for (node, host) in &world.hosts {
        let status = host.status(A).expect("a group");
        let expected =
            Voters::of((0..3).map(|node| replica(node, if node == gone { 2 } else { 1 })));
        assert_eq!(status.voters, expected, "on node {node}");
    }
    assert!(world.restored.contains_key(&gone));
    // and it counts: with another one away there is a majority
    world.away = vec![(gone + 1) % 3];
    world.run(50);
    assert!(matches!(world.write(A, "two"), Outcome::Committed(_)));
}

#[test]
fn a_node_that_is_no_member_is_not_taken_in() {
    let mut world = World::new(3);
    let now = world.now;
    world.hosts.insert(3, open(3, 1, vec![Recovered::blank(A)], now));
    world.run(60);
    let leader = world.leader(A).expect("somebody leads");
    assert_eq!(world.hosts[&leader].status(A).expect("a group").voters, voters(3));
}

#[test]
fn one_voter_becomes_three_in_one_change() {
    let mut world = World::new(1);
    world.run(20);
    assert_eq!(world.leader(A), Some(0), "the only voter is not quiet");
    let now = world.now;
    for node in 1..3 {
        world
            .hosts
            .insert(node, open(node, 1, vec![Recovered::blank(A), Recovered::blank(B)], now));
        let learner = VoterChange(vec![Change::Learner(replica(node, 1))]);
        let ticket = world.host(0).change_voters(A, &learner).expect("it leads");
        world.run(10);
        assert!(matches!(world.settled[&(0, ticket)], Outcome::Committed(_)));
    }
    world.write(A, "to learners, too");
    world.run(3);
    assert_eq!(world.given[&(2, A)], ["to learners, too"]);
    let both = VoterChange(vec![Change::Voter(replica(1, 1)), Change::Voter(replica(2, 1))]);
    world.host(0).change_voters(A, &both).expect("it leads");
    assert_eq!(world.host(0).change_voters(A, &both), Err(AskError::Busy), "one at a time");
    world.run(10);
    assert!(world.hosts.values().all(|host| host.status(A).expect("a group").voters == voters(3)));
    // any one may be away now
    world.away = vec![0];
    world.run(60);
    assert!(matches!(world.write(A, "without the first"), Outcome::Committed(_)));
}

#[test]
fn what_cannot_be_asked_is_refused() {
    let mut world = World::new(1);
    assert_eq!(world.host(0).propose(A, "early".into()), Err(AskError::NotLeader { leader: None }));
    world.run(20);
    assert_eq!(world.host(0).propose(A, Bytes::new()), Err(AskError::Size));
    let large = Bytes::from(vec![0; consensus::ENTRY_BYTES_MAX + 1]);
    assert_eq!(world.host(0).propose(A, large), Err(AskError::Size));
    assert_eq!(world.host(0).propose(GroupId(9), "x".into()), Err(AskError::NoGroup));
    // nothing is on the disk: so much may be under way, and no more
    world.slow = Some(0);
    let mebibyte = Bytes::from(vec![0; 1 << 20]);
    let taken = (0..100).take_while(|_| world.host(0).propose(A, mebibyte.clone()).is_ok()).count();
    assert!((30..=33).contains(&taken), "{taken} MiB");
    assert_eq!(world.host(0).propose(A, mebibyte), Err(AskError::Busy));
}

fn entry(index: u64, term: u64) -> Entry {
    Entry { index, term, kind: EntryKind::Data, data: "x".into() }
}

#[test]
fn a_log_is_clamped_or_refused() {
    let rules = protocol::Rules::default();
    let config = || Config { replica: replica(0, 1), peers: vec![], boot: 1, seed: 1, rules };
    let try_open = |recovered| Host::open(config(), vec![recovered], Duration::ZERO);
    let first = || Recovered::first(A, voters(3), "first".into());
    let with = |entries: Vec<Entry>, hard| Recovered { entries, hard, ..first() };
    // a commit that is a hint, ahead of the log or behind the snapshot; promises behind the entries
    for (term, commit) in [(3, 100), (3, 0), (0, 0)] {
        let host = try_open(with(vec![entry(2, 3)], HardState { term, vote: None, commit }))
            .expect("it is taken");
        assert_eq!(host.status(A).expect("a group").term, 3);
    }
    let hard = HardState { term: 3, vote: None, commit: 1 };
    let hole = try_open(with(vec![entry(3, 3)], hard)).map(drop);
    assert_eq!(hole, Err(OpenError::Hole { group: A, missing: 2 }));
    let falls = try_open(with(vec![entry(2, 3), entry(3, 2)], hard)).map(drop);
    assert!(matches!(falls, Err(OpenError::Damaged { .. })), "{falls:?}");
    let snapshot = Snapshot { index: 1, term: 1, voters: Voters::default(), data: Bytes::new() };
    let nobody = try_open(Recovered { snapshot: Some(snapshot), ..first() }).map(drop);
    assert!(matches!(nobody, Err(OpenError::Damaged { .. })), "{nobody:?}");
}

#[test]
fn the_log_goes_behind_a_snapshot_and_whoever_is_behind_gets_it() {
    let mut world = World::new(3);
    world.run(25);
    let leader = world.leader(A).expect("somebody leads");
    let behind = (leader + 1) % 3;
    world.away = vec![behind];
    for _ in 0..5 {
        world.write(A, "missed");
    }
    let applied = world.hosts[&leader].status(A).expect("a group").applied;
    assert!(
        !world.host(leader).snapshot(A, applied + 1, "too early".into()),
        "that is not given out yet"
    );
    assert!(world.host(leader).snapshot(A, applied, "five".into()));
    let persists: Vec<Persist> = world
        .host(leader)
        .outputs()
        .filter_map(
            |output| if let Output::Persist(persist) = output { Some(persist) } else { None },
        )
        .collect();
    assert!(!world.host(leader).snapshot(A, applied, "again".into()), "one at a time");
    let now = world.now;
    persists.iter().for_each(|persist| world.host(leader).persisted(persist.number, now));
    assert!(!world.host(leader).snapshot(A, applied, "again".into()), "it is not newer");
    world.away.clear();
    world.run(40);
    assert_eq!(world.restored[&behind], "five");
    world.write(A, "after");
    world.run(3);
    assert_eq!(world.given[&(behind, A)], ["after"]);
}
