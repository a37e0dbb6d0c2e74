//! Walks of replicated logs: three or five hosts of [`consensus`], with two groups each, a register
//! per group, and clients that write and read it.
//!
//! Everything that is awaited is a step of its own: a frame, each step of a disk, a tick. What may
//! go wrong is drawn from the seed ([`Fault`]). What must hold is checked after each step: *opens*
//! (what a disk holds is a log), *one-leader-per-term*, *committed-is-kept*,
//! *published-was-committed*, *replicas-equal*; at the end *progress* (everything comes to rest,
//! with one leader) and *linearizable* (each register's history is one that a single register could
//! have had).

mod disk;
pub mod linear;
mod node;
mod world;

use consensus::Role;
use fastrand::Rng;
use protocol::Rules;
use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use world::{CallKind, Check, World, groups};

/// Steps of a walk, before everything is mended.
const STEPS: u64 = 3000;
/// Time in which everything has to come to rest then.
const REST: Duration = Duration::from_secs(90);
/// Frames on the way, at most; the oldest are lost.
const NET_MAX: usize = 400;

/// What may go wrong.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Fault {
    /// Frames are lost, and come twice.
    Loss,
    /// Frames overtake each other by much.
    Reorder,
    /// Nodes do not hear others, in one direction or both.
    Cut,
    /// A process is killed.
    Kill,
    /// A machine loses its power, and what was not synced.
    Power,
    /// A node's disk is lost for good.
    Disk,
    /// A disk does nothing for a while.
    Slow,
    /// A process is stopped for a while.
    Stop,
    /// A clock jumps ahead.
    Jump,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 9] = {
        use Fault::*;
        [Loss, Reorder, Cut, Kill, Power, Disk, Slow, Stop, Jump]
    };

    /// By what it is counted.
    pub const fn counted(self) -> &'static str {
        match self {
            Fault::Loss => "fault: a frame is lost",
            Fault::Reorder => "fault: a frame is overtaken",
            Fault::Cut => "fault: a node does not hear another",
            Fault::Kill => "fault: a process is killed",
            Fault::Power => "fault: a machine loses its power",
            Fault::Disk => "fault: a disk is lost",
            Fault::Slow => "fault: a disk is slow",
            Fault::Stop => "fault: a process is stopped",
            Fault::Jump => "fault: a clock jumps",
        }
    }
}

/// What a long run must have reached.
pub const STATES: &[&str] = &[
    "a call nobody answers",
    "a confirmed read",
    "a leader",
    "a leader hands over",
    "a read under a lease",
    "a replaced disk's replica takes over",
    "a snapshot is begun",
    "a snapshot is taken over",
    "a write is answered",
    "at rest",
    "two think that they lead",
];

/// Walks in which all of that is reached for certain.
pub const WALKS_TO_REACH_ALL: u64 = 300;

/// A broken invariant.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its name, and how it broke.
    pub what: String,
    /// Of the walk.
    pub seed: u64,
    /// What happened.
    pub story: Vec<String>,
}

/// What was done.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// Walks.
    pub walks: u64,
    /// What was reached, and how often.
    pub covered: BTreeMap<&'static str, u64>,
    /// The first broken invariant.
    pub found: Option<Found>,
}

/// Walks with these seeds, as long as `goes_on` says so, up to the first that breaks something. For
/// a canary, that one does not come to rest counts only if nothing else is found.
pub fn walk(
    rules: Rules,
    seeds: Range<u64>,
    for_canary: bool,
    mut goes_on: impl FnMut(u64) -> bool,
) -> Run {
    let mut run = Run::default();
    for seed in seeds {
        if !goes_on(run.walks) {
            break;
        }
        run.walks += 1;
        if let Err(what) = one(rules, seed, &mut run.covered, None) {
            let is_stuck = what.starts_with("progress");
            if is_stuck && run.found.is_some() {
                continue;
            }
            let mut story = Vec::new();
            let _ = one(rules, seed, &mut BTreeMap::new(), Some(&mut story));
            run.found = Some(Found { what, seed, story });
            if !(is_stuck && for_canary) {
                break;
            }
        }
    }
    run
}

/// One walk. An assertion of a host that fails is a finding, too.
fn one(
    rules: Rules,
    seed: u64,
    covered: &mut BTreeMap<&'static str, u64>,
    story: Option<&mut Vec<String>>,
) -> Check {
    let mut walk = Walk::new(rules, seed);
    walk.world.story = story.as_ref().map(|_| Vec::new());
    let result = catch_unwind(AssertUnwindSafe(|| walk.run()));
    let result = result.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(format!(
            "panic: {}",
            text.or(panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default()
        ))
    });
    for (what, count) in &walk.world.covered {
        *covered.entry(what).or_default() += count;
    }
    if let (Some(story), Some(told)) = (story, walk.world.story) {
        *story = told;
    }
    result
}

struct Walk {
    world: World,
    faults: Vec<Fault>,
    /// Clocks jump one after the other: a host has slack for one in a lease.
    next_jump: Duration,
    lost: Option<usize>,
    /// Little time passes while much happens: the walks in which leases matter.
    is_quick: bool,
}

impl Walk {
    fn new(rules: Rules, seed: u64) -> Self {
        let mut random = Rng::with_seed(seed ^ 0x5bd1_e995);
        let count = if random.u8(0..4) == 0 { 5 } else { 3 };
        let mut faults = Fault::ALL.to_vec();
        random.shuffle(&mut faults);
        faults.truncate(random.usize(1..5));
        let is_quick = random.u8(0..4) == 0;
        if is_quick {
            faults = vec![Fault::Cut, Fault::Kill];
        }
        let world = World::new(random.u64(..), count, rules);
        Self { world, faults, next_jump: Duration::ZERO, lost: None, is_quick }
    }

    fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }

    fn run(&mut self) -> Check {
        for _ in 0..if self.is_quick { 2 * STEPS } else { STEPS } {
            self.world.count_step();
            self.step()?;
        }
        self.rest()?;
        self.world.check_calls()
    }

    fn newest_leader(&self, group: consensus::GroupId) -> Option<usize> {
        let term = |node: &node::Node| match node.status(group)?.role {
            Role::Leader { term } => Some(term),
            Role::Follower { .. } => None,
        };
        let nodes = self.world.nodes.iter().enumerate();
        nodes.filter_map(|(at, node)| Some((term(node)?, at))).max().map(|(_, at)| at)
    }

    fn some_node(&mut self) -> usize {
        self.world.random.usize(0..self.world.nodes.len())
    }

    fn step(&mut self) -> Check {
        let group = groups().nth(self.world.random.usize(0..2)).expect("two groups");
        match self.world.random.u16(0..1000) {
            0..160 => {
                let time = self.world.random.u64(5..if self.is_quick { 30 } else { 60 });
                self.world.pass(Duration::from_millis(time))
            }
            160..560 => self.frame(),
            560..860 => self.disk(),
            860..940 => self.call(group),
            940..955 => {
                let node = self.some_node();
                if self.world.nodes[node].snapshot(group) {
                    self.world.cover("a snapshot is begun");
                    self.world.tell(|_| format!("node {node} {group:?} begins a snapshot"));
                }
                self.world.nodes[node].trim();
                self.world.collect(node)
            }
            955..958 => {
                let node = self.some_node();
                if self.world.nodes[node].hand_over(group) {
                    self.world.cover("a leader hands over");
                    self.world.tell(|_| format!("node {node} {group:?} hands over"));
                }
                self.world.collect(node)
            }
            958..975 => self.mend(),
            _ => {
                let fault = self.faults[self.world.random.usize(0..self.faults.len())];
                self.fault(fault)
            }
        }
    }

    /// Somebody calls one of those who think that they lead. Where leases matter, the log has to
    /// stand still until there are two.
    fn call(&mut self, group: consensus::GroupId) -> Check {
        let nodes = self.world.nodes.iter().enumerate();
        let term = |node: &node::Node| match node.status(group)?.role {
            Role::Leader { term } => Some(term),
            Role::Follower { .. } => None,
        };
        let leaders: Vec<_> = nodes.filter_map(|(at, node)| Some((term(node)?, at))).collect();
        let newest = leaders.iter().copied().max();
        if leaders.len() > 1 {
            self.world.cover("two think that they lead");
        }
        let Some((term, node)) = self.world.random.choice(leaders.iter().copied()) else {
            return Ok(());
        };
        let kind = match self.world.random.u8(0..100) {
            0..3 => CallKind::Write,
            _ if self.is_quick && leaders.len() < 2 => CallKind::ReadLeased,
            _ if self.is_quick && newest == Some((term, node)) => CallKind::Write,
            3..50 if self.is_quick => CallKind::ReadConfirmed,
            _ if self.is_quick => CallKind::ReadLeased,
            3..40 => CallKind::Write,
            40..60 => CallKind::ReadConfirmed,
            _ => CallKind::ReadLeased,
        };
        self.world.call(node, group, kind)
    }

    fn frame(&mut self) -> Check {
        let len = self.world.net.len();
        if len == 0 {
            return Ok(());
        }
        self.world.net.drain(..len.saturating_sub(NET_MAX));
        let len = self.world.net.len();
        let far = self.has(Fault::Reorder) && self.world.random.u8(0..8) == 0;
        let at = if far {
            self.world.random.usize(0..len)
        } else {
            self.world.random.usize(0..len.min(3))
        };
        if far && at > 8 {
            self.world.cover(Fault::Reorder.counted());
        }
        let to = usize::from(self.world.net[at].1.0);
        if self.world.nodes[to].is_stopped(self.world.now) {
            return Ok(());
        }
        let loss = if self.has(Fault::Loss) { self.world.random.u8(0..16) } else { 15 };
        if loss == 1 {
            let again = self.world.net[at].clone();
            return self.world.deliver(again);
        }
        let frame = self.world.net.remove(at);
        if loss == 0 {
            self.world.cover(Fault::Loss.counted());
            return Ok(());
        }
        self.world.deliver(frame)
    }

    fn disk(&mut self) -> Check {
        let now = self.world.now;
        let busy: Vec<_> =
            (0..self.world.nodes.len()).filter(|n| self.world.nodes[*n].is_writing(now)).collect();
        let Some(node) = self.world.random.choice(busy) else { return Ok(()) };
        self.world.disk_step(node)?;
        while self.is_quick && self.world.nodes[node].is_writing(now) {
            self.world.disk_step(node)?;
        }
        Ok(())
    }

    fn fault(&mut self, fault: Fault) -> Check {
        let (mut node, mut other) = (self.some_node(), self.some_node());
        if self.is_quick {
            // a leader goes on, and does not hear one that stays
            if self.world.random.bool() {
                return Ok(());
            }
            let group = consensus::GroupId(self.world.random.u16(0..2));
            let Some(leader) = self.newest_leader(group) else { return Ok(()) };
            match fault {
                Fault::Cut if node != leader => other = leader,
                Fault::Kill if node == leader => node = (node + 1) % self.world.nodes.len(),
                _ => {}
            }
        }
        let now = self.world.now;
        let time = Duration::from_millis(self.world.random.u64(50..3000));
        match fault {
            Fault::Cut if node != other => {
                self.world.cut[node][other] = true;
                self.world.cut[other][node] |= self.world.random.bool();
                self.world.tell(|world| format!("{:?}", world.cut));
            }
            Fault::Kill if self.world.nodes[node].runs() => {
                self.world.stop(node, false);
                if self.is_quick || self.world.random.bool() {
                    // started again by its supervisor, at once
                    self.world.cover(fault.counted());
                    return self.world.start(node);
                }
            }
            Fault::Power if self.world.nodes[node].runs() => {
                self.world.stop(node, true);
                if self.world.random.u8(0..4) == 0 {
                    (0..self.world.nodes.len()).for_each(|node| self.world.stop(node, true));
                }
            }
            Fault::Disk if self.world.is_whole() => {
                if self.lost.take().is_some() {
                    self.world.cover("a replaced disk's replica takes over");
                }
                self.lost = Some(node);
                self.world.lose_disk(node);
            }
            Fault::Slow => self.world.nodes[node].slow_until = now + time,
            Fault::Stop => self.world.nodes[node].stopped_until = now + time,
            Fault::Jump if now >= self.next_jump => {
                self.next_jump = now + Duration::from_secs(2);
                self.world.nodes[node].skew += 4 * time;
            }
            _ => return Ok(()),
        }
        if !matches!(fault, Fault::Loss | Fault::Reorder) {
            self.world.cover(fault.counted());
        }
        Ok(())
    }

    /// Something of what went wrong ends.
    fn mend(&mut self) -> Check {
        let node = self.some_node();
        match self.world.random.u8(0..3) {
            0 => {
                let count = self.world.nodes.len();
                (0..count).for_each(|other| {
                    (self.world.cut[node][other], self.world.cut[other][node]) = (false, false)
                });
                Ok(())
            }
            _ if !self.world.nodes[node].runs() => self.world.start(node),
            _ => Ok(()),
        }
    }

    /// Everything is mended; everything has to come to rest.
    fn rest(&mut self) -> Check {
        self.world.tell(|_| "everything is mended".to_owned());
        self.world.cut = [[false; 5]; 5];
        for node in 0..self.world.nodes.len() {
            if !self.world.nodes[node].runs() {
                self.world.start(node)?;
            }
            let node = &mut self.world.nodes[node];
            (node.stopped_until, node.slow_until) = (Duration::ZERO, Duration::ZERO);
        }
        let until = self.world.now + REST;
        while self.world.now < until {
            self.world.count_step();
            self.world.pass(Duration::from_millis(50))?;
            for _ in 0..4 {
                for frame in std::mem::take(&mut self.world.net) {
                    self.world.deliver(frame)?;
                }
                for node in 0..self.world.nodes.len() {
                    while self.world.nodes[node].is_writing(self.world.now) {
                        self.world.disk_step(node)?;
                    }
                }
            }
            if self.world.net.is_empty() && self.world.is_at_rest() && self.world.is_whole() {
                if self.lost.is_some() {
                    self.world.cover("a replaced disk's replica takes over");
                }
                self.world.cover("at rest");
                return Ok(());
            }
        }
        let nodes = &self.world.nodes;
        Err(format!(
            "progress: {nodes:?}, {:?}",
            nodes[0].status(consensus::GroupId(0)).map(|s| s.voters)
        ))
    }
}
