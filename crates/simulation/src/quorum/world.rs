//! The nodes, the network between them, and what is known of what happened.

use super::disk::Disk;
use super::linear::{Call, What, is_linearizable};
use super::node::{App, Node};
use consensus::{
    Body, Entry, Frame, GroupId, NodeId, Outcome, Output, Recovered, ReplicaId, Role, Term, Ticket,
    Voters,
};
use fastrand::Rng;
use protocol::{Rule, Rules};
use std::collections::BTreeMap;
use std::time::Duration;

/// Groups of each host: they share its log.
pub const GROUPS: u16 = 2;
/// Calls of one register in a walk, at most.
pub const CALLS_MAX: usize = 200;

/// An invariant that broke, or nothing.
pub type Check = Result<(), String>;

/// Something asked of a host.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    group: GroupId,
    /// Its place among the group's calls.
    call: usize,
}

/// What a client asks a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallKind {
    /// To write the next value.
    Write,
    /// To read, after it asked a majority whether it leads.
    ReadConfirmed,
    /// To read under its lease.
    ReadLeased,
}

/// Everything.
pub struct World {
    /// What a walk draws from.
    pub random: Rng,
    /// Which rules hold.
    pub rules: Rules,
    /// Real time; each node's clock is ahead of it by its own.
    pub now: Duration,
    /// The nodes.
    pub nodes: Vec<Node>,
    /// On the way.
    pub net: Vec<(NodeId, NodeId, Frame)>,
    /// From whom to whom nothing arrives.
    pub cut: [[bool; 5]; 5],
    /// Given out by somebody: term and value, and value and digest after it.
    committed: BTreeMap<(GroupId, u64), (Term, App)>,
    leaders: BTreeMap<(GroupId, Term), ReplicaId>,
    calls: Vec<Vec<Call>>,
    asked: BTreeMap<(NodeId, Ticket), Asked>,
    next_value: u64,
    next_boot: u64,
    /// What happened, for whoever reads it.
    pub story: Option<Vec<String>>,
    /// What was reached.
    pub covered: BTreeMap<&'static str, u64>,
    steps: u64,
}

/// All groups.
pub fn groups() -> impl Iterator<Item = GroupId> {
    (0..GROUPS).map(GroupId)
}

impl World {
    /// So many nodes, all voters of every group.
    pub fn new(seed: u64, count: u16, rules: Rules) -> Self {
        let voters = Voters::of((0..count).filter_map(|node| ReplicaId::new(NodeId(node), 1)));
        let first = || {
            groups().map(|group| Recovered::first(group, voters.clone(), App::default().encode()))
        };
        let nodes = (0..count)
            .map(|id| Node::new(NodeId(id), count, Disk::first(first()), rules))
            .collect();
        let mut world = Self {
            random: Rng::with_seed(seed),
            rules,
            now: Duration::from_secs(1),
            nodes,
            net: Vec::new(),
            cut: [[false; 5]; 5],
            committed: BTreeMap::new(),
            leaders: BTreeMap::new(),
            calls: vec![Vec::new(); usize::from(GROUPS)],
            asked: BTreeMap::new(),
            next_value: 1,
            next_boot: 1,
            story: None,
            covered: BTreeMap::new(),
            steps: 0,
        };
        for node in 0..usize::from(count) {
            world.start(node).expect("a first log can be opened");
        }
        world
    }

    /// Writes a line of the story.
    pub fn tell(&mut self, line: impl FnOnce(&World) -> String) {
        if self.story.is_some() {
            let line = format!("{:8.3} {}", self.now.as_secs_f64(), line(self));
            self.story.iter_mut().for_each(|story| story.push(line.clone()));
        }
    }

    /// Counts that something was reached.
    pub fn cover(&mut self, what: &'static str) {
        *self.covered.entry(what).or_default() += 1;
    }

    /// Starts a node with what its disk holds.
    pub fn start(&mut self, node: usize) -> Check {
        let (boot, now) = (self.next_boot, self.now);
        self.next_boot += 1;
        let opened = self.nodes[node].start(boot, now);
        self.tell(|world| format!("node {node} starts: {:?}", world.nodes[node]));
        opened.map_err(|error| format!("opens: node {node}: {error}"))?;
        self.collect(node)
    }

    /// A process dies, or its machine with it.
    pub fn stop(&mut self, node: usize, power: bool) {
        self.tell(|_| {
            format!("node {node} {}", if power { "loses its power" } else { "is killed" })
        });
        self.nodes[node].stop(power.then_some(&mut self.random));
        let id = NodeId(node as u16);
        // nobody will answer: what was to be written may have been
        self.asked.retain(|(at, _), _| *at != id);
    }

    /// A disk is lost for good. Rule: NewIdentity.
    pub fn lose_disk(&mut self, node: usize) {
        self.stop(node, true);
        self.tell(|_| format!("node {node} loses its disk"));
        let renewed = self.rules.on(Rule::NewIdentity);
        self.nodes[node].lose_disk(renewed);
    }

    /// May a disk be lost? Only one at a time: until its node's new replica has taken over, and
    /// every replica knows.
    pub fn is_whole(&self) -> bool {
        let current = Voters::of(self.nodes.iter().map(Node::replica));
        let knows =
            |node: &Node, group| node.status(group).is_some_and(|status| status.voters == current);
        groups().all(|group| self.nodes.iter().all(|node| knows(node, group)))
    }

    /// A frame arrives.
    pub fn deliver(&mut self, (from, to, frame): (NodeId, NodeId, Frame)) -> Check {
        let node = usize::from(to.0);
        if self.cut[usize::from(from.0)][node] || !self.nodes[node].runs() {
            return Ok(());
        }
        // through its bytes, as on a socket
        let frame = Frame::decode(frame.encode()).map_err(|error| format!("frames: {error}"))?;
        self.nodes[node].step(from, &frame, self.now);
        self.collect(node)
    }

    /// Time goes on for everybody.
    pub fn pass(&mut self, time: Duration) -> Check {
        self.now += time;
        for node in 0..self.nodes.len() {
            if self.nodes[node].runs() {
                self.nodes[node].tick(self.now);
                self.collect(node)?;
            }
        }
        Ok(())
    }

    /// A node's disk does one thing.
    pub fn disk_step(&mut self, node: usize) -> Check {
        self.nodes[node].disk_step(self.now);
        self.collect(node)
    }

    /// A client calls a node.
    pub fn call(&mut self, node: usize, group: GroupId, kind: CallKind) -> Check {
        let at = usize::from(group.0);
        if self.calls[at].len() >= CALLS_MAX || !self.nodes[node].runs() {
            return Ok(());
        }
        let (from, now) = (self.steps, self.now);
        let (ticket, what) = match kind {
            CallKind::Write => {
                let value = self.next_value;
                self.next_value += 1;
                (self.nodes[node].propose(group, value), What::Write(value))
            }
            CallKind::ReadConfirmed => (self.nodes[node].confirm(group, now), What::Read(0)),
            CallKind::ReadLeased => {
                let Some(value) = self.nodes[node].read_under_lease(group, now) else {
                    return Ok(());
                };
                self.cover("a read under a lease");
                self.calls[at].push(Call { from, until: Some(from), what: What::Read(value) });
                self.tell(|_| format!("node {node} {group:?} reads {value} under its lease"));
                return Ok(());
            }
        };
        if let Some(ticket) = ticket {
            let call = self.calls[at].len();
            self.tell(|_| format!("node {node} {group:?} is asked {what:?}, call {call}"));
            self.calls[at].push(Call { from, until: None, what });
            self.asked.insert((NodeId(node as u16), ticket), Asked { group, call });
        }
        self.collect(node)
    }

    /// One more step was taken; calls are ordered by them.
    pub fn count_step(&mut self) {
        self.steps += 1;
    }

    /// Takes what a host puts out, and checks it.
    pub fn collect(&mut self, node: usize) -> Check {
        let id = NodeId(node as u16);
        for output in self.nodes[node].outputs() {
            match output {
                Output::Send { to, frame } => {
                    self.check_leader(&frame)?;
                    self.net.push((id, to, frame));
                }
                Output::Persist(persist) => self.nodes[node].keep(persist),
                Output::Restored { group, index, data } => {
                    let app = App::decode(&data);
                    self.nodes[node].apps.insert(group, app);
                    self.cover("a snapshot is taken over");
                    self.tell(|_| {
                        format!("node {node} {group:?} takes over a snapshot up to {index}")
                    });
                    let known = self.committed.range((group, 0)..=(group, index)).next_back();
                    let known = known.map_or(App::default(), |(_, (_, app))| *app);
                    if app.without_index() != known.without_index() {
                        return Err(format!(
                            "replicas-equal: {group:?} at {index}: {app:?} and {known:?}"
                        ));
                    }
                }
                Output::SnapshotWanted { group } => {
                    self.nodes[node].snapshot(group);
                    let more = self.nodes[node].outputs();
                    more.into_iter().for_each(|output| {
                        if let Output::Persist(persist) = output {
                            self.nodes[node].keep(persist);
                        }
                    });
                }
                Output::Committed { group, entries } => {
                    for entry in entries {
                        self.apply(node, group, &entry)?;
                    }
                }
                Output::Role { group, role } => {
                    self.tell(|_| format!("node {node} {group:?} is {role:?}"));
                    if matches!(role, Role::Leader { .. }) {
                        self.cover("a leader");
                    }
                }
                Output::Settled { ticket, outcome } => self.settle(node, ticket, outcome)?,
            }
        }
        Ok(())
    }

    /// Who sends what only a leader sends leads that term.
    fn check_leader(&mut self, frame: &Frame) -> Check {
        if !matches!(frame.body, Body::Append { .. } | Body::Heartbeat { .. } | Body::Snapshot(_)) {
            return Ok(());
        }
        let (group, term) = (frame.group, frame.term);
        let leader = *self.leaders.entry((group, term)).or_insert(frame.from);
        if leader != frame.from {
            let from = frame.from;
            return Err(format!(
                "one-leader-per-term: {leader} and {from} lead {group:?} in term {term}"
            ));
        }
        Ok(())
    }

    fn apply(&mut self, node: usize, group: GroupId, entry: &Entry) -> Check {
        let app = self.nodes[node].apps.entry(group).or_default();
        app.apply(entry);
        let app = *app;
        self.tell(|_| format!("node {node} {group:?} is given {} = {}", entry.index, app.value));
        let known = self.committed.entry((group, entry.index)).or_insert((entry.term, app));
        if *known != (entry.term, app) {
            let (index, term) = (entry.index, entry.term);
            let what =
                if known.1.value == app.value { "replicas-equal" } else { "committed-is-kept" };
            return Err(format!(
                "{what}: {group:?} at {index}: {known:?}, and at node {node} {term} {app:?}"
            ));
        }
        Ok(())
    }

    fn settle(&mut self, node: usize, ticket: Ticket, outcome: Outcome) -> Check {
        let Some(Asked { group, call }) = self.asked.remove(&(NodeId(node as u16), ticket)) else {
            return Ok(());
        };
        self.tell(|_| format!("node {node} {group:?} answers call {call}: {outcome:?}"));
        let value = self.nodes[node].apps.get(&group).map_or(0, |app| app.value);
        let steps = self.steps;
        let call = &mut self.calls[usize::from(group.0)][call];
        match (outcome, &mut call.what) {
            (Outcome::Committed(index), What::Write(value)) => {
                call.until = Some(steps);
                let known = self.committed.get(&(group, index)).map(|(_, app)| app.value);
                if known != Some(*value) {
                    return Err(format!(
                        "published-was-committed: {group:?} at {index}: {value}, not {known:?}"
                    ));
                }
                self.cover("a write is answered");
            }
            (Outcome::Confirmed(_), What::Read(found)) => {
                (*found, call.until) = (value, Some(steps));
                self.cover("a confirmed read");
            }
            _ => self.cover("a call nobody answers"),
        }
        Ok(())
    }

    /// Reads that nobody answered found nothing; everything else has to be one register's history.
    pub fn check_calls(&self) -> Check {
        for group in groups() {
            let calls = self.calls[usize::from(group.0)].iter().copied();
            let counts = |call: &Call| call.until.is_some() || matches!(call.what, What::Write(_));
            let calls: Vec<_> = calls.filter(counts).collect();
            if !is_linearizable(0, &calls) {
                return Err(format!("linearizable: {group:?}: {calls:?}"));
            }
        }
        Ok(())
    }

    /// Where everybody is, if that is the same place.
    pub fn is_at_rest(&self) -> bool {
        groups().all(|group| {
            let statuses: Vec<_> =
                self.nodes.iter().filter_map(|node| node.status(group)).collect();
            let applied = statuses.first().map_or(0, |status| status.applied);
            statuses.len() == self.nodes.len()
                && statuses
                    .iter()
                    .filter(|status| matches!(status.role, Role::Leader { .. }))
                    .count()
                    == 1
                && statuses.iter().all(|status| status.applied == applied && status.last == applied)
        })
    }
}
