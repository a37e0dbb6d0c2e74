//! Frames that no replica sends: none makes a host panic, or take more than it was sent.
//!
//! Three hosts run; between them every frame may be lost, come twice, or have its fields replaced
//! by numbers near those that matter (indexes near the ends of the log, neighbouring terms, other
//! replicas). Everything goes through `encode` and `decode`. Safety is not looked at here: a member
//! that lies may break a group. `crates/simulation` looks at that, with honest frames.

use bytes::Bytes;
use consensus::frame::{Ballot, Body, Candidacy};
use consensus::{
    Change, Config, Entry, EntryKind, Frame, GroupId, Host, NodeId, Output, Recovered, ReplicaId,
    Snapshot, TICK, VoterChange, Voters,
};
use std::time::Duration;

const GROUP: GroupId = GroupId(0);

fn replica(node: u16, incarnation: u64) -> ReplicaId {
    ReplicaId::new(NodeId(node), incarnation).expect("a good number")
}

struct World {
    random: fastrand::Rng,
    hosts: Vec<Host>,
    /// Not on the disk yet.
    writes: Vec<Vec<u64>>,
    frames: Vec<(NodeId, NodeId, Bytes)>,
    now: Duration,
    /// Frames that were decoded and stepped.
    stepped: u64,
    lies: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let voters = Voters::of((0..3).map(|node| replica(node, 1)));
        let host = |node: u16| {
            let peers = (0..3).filter(|peer| *peer != node).map(NodeId).collect();
            let rules = protocol::Rules::default();
            let config =
                Config { replica: replica(node, 1), peers, boot: u64::from(node) + 1, seed, rules };
            let is_blank = node == 2 && seed.is_multiple_of(5);
            let recovered = match is_blank {
                true => Recovered::blank(GROUP),
                false => Recovered::first(GROUP, voters.clone(), "state".into()),
            };
            Host::open(config, vec![recovered], Duration::ZERO).expect("a good log")
        };
        Self {
            random: fastrand::Rng::with_seed(seed),
            hosts: (0..3).map(host).collect(),
            writes: vec![Vec::new(); 3],
            frames: Vec::new(),
            now: Duration::ZERO,
            stepped: 0,
            lies: false,
        }
    }

    fn run(&mut self, steps: usize, lies: bool) {
        self.lies |= lies;
        for _ in 0..steps {
            let node = self.random.usize(0..3);
            match self.random.u8(0..12) {
                0..4 => {
                    self.now += TICK / 2;
                    self.hosts[node].tick(self.now);
                }
                4..9 if !self.frames.is_empty() => {
                    let at = self.random.usize(0..self.frames.len());
                    let (from, to, bytes) = match self.random.u8(0..8) {
                        0 => self.frames[at].clone(),
                        _ => self.frames.remove(at),
                    };
                    let bytes =
                        if lies && self.random.u8(0..3) == 0 { self.lie(&bytes) } else { bytes };
                    if let Ok(frame) = Frame::decode(bytes) {
                        self.stepped += 1;
                        self.hosts[usize::from(to.0)].step(from, &frame, self.now);
                    }
                }
                9 => {
                    let entry = Bytes::from(vec![7; self.random.usize(1..40)]);
                    let _ = self.hosts[node].propose(GROUP, entry);
                }
                10 => self.ask(node),
                _ => {
                    let done = self.random.usize(0..=self.writes[node].len());
                    if let Some(last) = self.writes[node].drain(..done).next_back() {
                        self.hosts[node].persisted(last, self.now);
                    }
                }
            }
            self.collect();
            self.frames.truncate(300);
        }
    }

    fn ask(&mut self, node: usize) {
        let host = &mut self.hosts[node];
        match self.random.u8(0..8) {
            0 => {
                host.hand_over(GROUP);
            }
            1..4 => {
                let _ = host.confirm(GROUP, self.now);
            }
            4 => {
                let change = Change::Learner(replica(3, 1 + self.random.u64(0..3)));
                let _ = host.change_voters(GROUP, &VoterChange(vec![change]));
            }
            _ => {
                let applied = host.status(GROUP).expect("a group").applied;
                host.snapshot(GROUP, applied.saturating_sub(self.random.u64(0..3)), "newer".into());
            }
        }
    }

    fn collect(&mut self) {
        for (node, host) in self.hosts.iter_mut().enumerate() {
            for output in host.outputs().collect::<Vec<_>>() {
                match output {
                    Output::Send { to, frame } if to.0 < 3 => {
                        let bytes = frame.encode();
                        if !self.lies {
                            let read = Frame::decode(bytes.clone());
                            assert_eq!(read.as_ref(), Ok(&frame), "what is sent is read again");
                        }
                        self.frames.push((NodeId(node as u16), to, bytes));
                    }
                    Output::Persist(persist) => self.writes[node].push(persist.number),
                    _ => {}
                }
            }
        }
    }

    /// Near what matters.
    fn number(&mut self, about: u64) -> u64 {
        let status = self.hosts[self.random.usize(0..3)].status(GROUP).expect("a group");
        let base = [about, status.last, status.applied, status.term, 0][self.random.usize(0..5)];
        match self.random.u8(0..12) {
            0 => self.random.u64(..),
            1 => (1 << 56) - self.random.u64(0..2),
            2..6 => base + self.random.u64(0..3),
            6..9 => base.saturating_sub(self.random.u64(0..3)),
            _ => base,
        }
    }

    fn some_replica(&mut self, about: ReplicaId) -> ReplicaId {
        let node = self.random.u16(0..4);
        if self.random.bool() { about } else { replica(node, 1 + self.random.u64(0..2)) }
    }

    fn lie(&mut self, bytes: &Bytes) -> Bytes {
        if self.random.u8(0..4) == 0 {
            // any bytes
            let mut bytes = bytes.to_vec();
            let at = self.random.usize(0..bytes.len());
            bytes[at] ^= 1 << self.random.u8(0..8);
            bytes.truncate(self.random.usize(0..=bytes.len()).max(bytes.len() / 2));
            return bytes.into();
        }
        let Ok(mut frame) = Frame::decode(bytes.clone()) else { return bytes.clone() };
        match self.random.u8(0..4) {
            0 => frame.term = self.number(frame.term),
            1 => frame.from = self.some_replica(frame.from),
            _ => {}
        }
        let mut n = |about: &mut u64| *about = self.number(*about);
        match &mut frame.body {
            Body::Append { prev, prev_term, commit, .. } => {
                [prev, prev_term, commit].map(&mut n).len()
            }
            Body::AppendReply { index, commit, hint, hint_term, .. } => {
                [index, commit, hint, hint_term].map(&mut n).len()
            }
            Body::Vote(c) | Body::PreVote(c) => {
                c.priority = -1;
                [&mut c.last, &mut c.last_term, &mut c.commit, &mut c.commit_term].map(&mut n).len()
            }
            Body::VoteReply(b) | Body::PreVoteReply(b) => {
                [&mut b.commit, &mut b.commit_term].map(&mut n).len()
            }
            Body::Heartbeat { commit, round } | Body::HeartbeatReply { commit, round } => {
                [commit, round].map(&mut n).len()
            }
            Body::Snapshot(s) => [&mut s.index, &mut s.term].map(&mut n).len(),
            Body::Quiet { boot, heard } => [boot, heard].map(&mut n).len(),
            Body::TimeoutNow | Body::Join => 0,
        };
        if self.random.u8(0..4) == 0 {
            frame.body = self.other_body(&frame);
        }
        if let Body::Append { prev, entries, .. } = &mut frame.body {
            for (index, entry) in (*prev + 1..).zip(entries) {
                entry.index = index;
                if self.random.u8(0..3) == 0 {
                    entry.term =
                        entry.term.saturating_add(self.random.u64(0..3)).min(frame.term.max(1));
                }
            }
        }
        frame.encode()
    }

    fn other_body(&mut self, frame: &Frame) -> Body {
        let (a, b, c, d) =
            (self.number(0), self.number(frame.term), self.number(0), self.number(frame.term));
        let voter_set = |random: &mut fastrand::Rng| -> Vec<ReplicaId> {
            (0..random.u16(0..4)).map(|node| replica(node, 1 + random.u64(0..2))).collect()
        };
        match self.random.u8(0..10) {
            0 => Body::Heartbeat { commit: a, round: c },
            1 => Body::AppendReply {
                index: a,
                commit: b,
                refused: self.random.bool(),
                hint: c,
                hint_term: d,
            },
            2 => Body::TimeoutNow,
            3 => Body::VoteReply(Ballot { refused: self.random.bool(), commit: a, commit_term: b }),
            4 => Body::PreVoteReply(Ballot {
                refused: self.random.bool(),
                commit: a,
                commit_term: b,
            }),
            5 => Body::Vote(Candidacy {
                last: a,
                last_term: b,
                commit: c,
                commit_term: d,
                transfer: self.random.bool(),
                priority: -1,
            }),
            6 => Body::HeartbeatReply { commit: a, round: c },
            7 => {
                let change = |random: &mut fastrand::Rng| match random.u8(0..3) {
                    0 => Change::Learner(replica(random.u16(0..4), 1)),
                    1 => Change::Voter(replica(random.u16(0..4), 1)),
                    _ => Change::Remove(replica(random.u16(0..3), 1)),
                };
                let changes =
                    (0..self.random.usize(0..4)).map(|_| change(&mut self.random)).collect();
                let data = VoterChange(changes).encode();
                let entry =
                    Entry { index: a + 1, term: frame.term.max(1), kind: EntryKind::Voters, data };
                Body::Append { prev: a, prev_term: b, commit: a + 1, entries: vec![entry] }
            }
            _ => {
                let [voters, outgoing, learners] = [(); 3].map(|()| voter_set(&mut self.random));
                let auto_leave = !outgoing.is_empty();
                let learners_next =
                    outgoing.iter().copied().filter(|id| !voters.contains(id)).take(1).collect();
                let voters = Voters { voters, outgoing, learners, learners_next, auto_leave };
                Body::Snapshot(Snapshot { index: a, term: b, voters, data: "lie".into() })
            }
        }
    }
}

#[test]
fn no_frame_makes_a_host_panic() {
    let mut stepped = 0;
    for seed in 0..1500 {
        let mut world = World::new(seed);
        world.run(300, false);
        world.run(900, true);
        stepped += world.stepped;
    }
    assert!(stepped > 50_000, "only {stepped} frames were read");
}

#[test]
fn three_hosts_agree_without_lies() {
    for seed in 1..20 {
        let mut world = World::new(seed * 5 + 1);
        world.run(6000, false);
        let applied: Vec<_> =
            world.hosts.iter().map(|host| host.status(GROUP).expect("a group").applied).collect();
        assert!(applied.iter().all(|index| *index > 3), "seed {seed}: {applied:?}");
    }
}
