//! A client's session in a replicated state, as several monitors have it: whoever leads counts its
//! time, by its own clock, and the log says that it is dead.
//!
//! Invariant: *expired-sessions-do-not-act*: when anybody is given out that the session is dead,
//! its client has stopped by itself, by its own clock, which is real time here.
//!
//! Rule: ConfirmRenew - a renewal is answered after a round that began after it came. Rule: LeadTtl
//! - who begins to lead gives the session its whole time from then on.

use super::node::Node;
use consensus::{GroupId, NodeId, Role, Ticket};
use fastrand::Rng;
use protocol::{Rule, Rules};
use std::collections::BTreeMap;
use std::time::Duration;

/// The group whose value says that the session is dead. The next one begins then.
pub const GROUP: GroupId = GroupId(0);
/// That value.
pub const DEAD: u64 = u64::MAX;
/// Time to live without a renewal.
const TTL: Duration = Duration::from_secs(3);
/// A client counts this long, from when it asked.
const ACTS_FOR: Duration = Duration::from_millis(2700);

/// The session, its client, and what nodes think of it.
#[derive(Debug)]
pub struct Sessions {
    random: Rng,
    /// When it is dead, by the node's clock, if the node leads.
    deadlines: BTreeMap<NodeId, Duration>,
    /// In this leadership it was said to be dead.
    told: BTreeMap<NodeId, u64>,
    /// Until then the client acts.
    acts_until: Duration,
    /// Who renewed it last.
    renewed_by: Option<NodeId>,
    /// The client does not renew until then.
    pauses_until: Duration,
    pending: BTreeMap<(NodeId, Ticket), Duration>,
}

impl Sessions {
    /// One that begins with the walk.
    pub fn new(seed: u64) -> Self {
        let (deadlines, told, pending) = Default::default();
        let (acts_until, pauses_until) = (Duration::ZERO, Duration::ZERO);
        let random = Rng::with_seed(seed);
        Self { random, deadlines, told, acts_until, renewed_by: None, pauses_until, pending }
    }

    /// A node begins to lead; what it knew before may be of an earlier leadership.
    pub fn leads(&mut self, node: NodeId, clock: Duration, rules: Rules) {
        let whole = clock + TTL;
        let deadline = self.deadlines.entry(node).or_insert(whole);
        if rules.on(Rule::LeadTtl) {
            *deadline = whole;
        }
    }

    /// A process ends, and with it what it had in memory.
    pub fn forget(&mut self, node: NodeId) {
        self.deadlines.remove(&node);
        self.pending.retain(|(at, _), _| *at != node);
    }

    /// The client renews, or the nodes that lead look at their clocks. What was reached.
    pub fn step(&mut self, nodes: &mut [Node], now: Duration) -> Option<usize> {
        let term = |node: &Node| match node.status(GROUP)?.role {
            Role::Leader { term } => Some(term),
            Role::Follower { .. } => None,
        };
        let leaders: Vec<(usize, u64)> =
            nodes.iter().enumerate().filter_map(|(at, node)| Some((at, term(node)?))).collect();
        let (at, term) = self.random.choice(leaders)?;
        let (id, node) = (NodeId(at as u16), &mut nodes[at]);
        if node.is_stopped(now) {
            return None;
        }
        let clock = now + node.skew;
        let deadline = *self.deadlines.entry(id).or_insert(clock + TTL);
        if clock > deadline {
            if self.told.insert(id, term) != Some(term) {
                node.propose(GROUP, DEAD);
            }
        } else if now >= self.pauses_until {
            if self.random.u8(0..40) == 0 {
                self.pauses_until = now + 2 * TTL;
            }
            self.deadlines.insert(id, clock + TTL);
            let ticket = node.confirm(GROUP, now)?;
            self.pending.insert((id, ticket), now);
        }
        Some(at)
    }

    /// A renewal is answered, or not. True: by another leader than the last one.
    pub fn settled(&mut self, node: NodeId, ticket: Ticket, answered: bool) -> bool {
        let Some(asked) = self.pending.remove(&(node, ticket)).filter(|_| answered) else {
            return false;
        };
        self.acts_until = self.acts_until.max(asked + ACTS_FOR);
        self.renewed_by.replace(node).is_some_and(|last| last != node)
    }

    /// A node is given out that the session is dead; the next one begins. False: its client acts.
    pub fn dead(&mut self, node: NodeId, clock: Duration, is_first: bool, now: Duration) -> bool {
        self.deadlines.insert(node, clock + TTL);
        self.told.remove(&node);
        let acts = is_first && now < self.acts_until;
        if is_first {
            (self.acts_until, self.renewed_by) = (now, None);
            self.pending.clear();
            self.pauses_until = now;
        }
        !acts
    }
}
