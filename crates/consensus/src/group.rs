//! One group of a host: its replica, what was asked of it, and what follows from time.

use crate::frame::{Body, Frame};
use crate::host::{AskError, LEASE, Status, asks_for_votes, publishes_early};
use crate::node::{ELECTION_TICKS_MIN, Event, HEARTBEAT_TICKS, Node};
use crate::quiet::Quiet;
use crate::types::{
    Change, GroupId, Index, NodeId, Outcome, Output, Persist, REPLICAS_MAX, ReplicaId, Role, Term,
    Ticket, VoterChange,
};
use bytes::Bytes;
use protocol::{Rule, Rules};
use std::collections::VecDeque;
use std::time::Duration;

/// A write that takes longer makes a leader hand over.
const SLOW_WRITE_TICKS: u64 = ELECTION_TICKS_MIN;
/// How long a leader with a slow disk lets others go first: a minute.
const LOWERED_TICKS: u64 = 600;
/// The priority meanwhile; that of others is 0.
const LOWERED: i64 = -1;
/// Questions and proposals that nobody has answered, at most.
const TICKETS_MAX: usize = 4096;

/// A round of questions under way.
#[derive(Debug)]
struct Round {
    number: u64,
    began: Duration,
    tickets: Vec<Ticket>,
}

/// One group.
#[derive(Debug)]
pub(crate) struct Group {
    id: GroupId,
    pub node: Node,
    rules: Rules,
    quiet: Option<Quiet>,
    ticks: u64,
    /// Proposed, by index.
    proposed: VecDeque<(Index, Term, Ticket)>,
    /// Asked since the last round began.
    asked: Vec<Ticket>,
    round: Option<Round>,
    next_round: u64,
    /// Answered, and settled when this much is given out.
    answered: Vec<(Index, Ticket)>,
    lease_until: Duration,
    /// In this leadership it gave up, or tried to.
    handed_over: Option<Term>,
    lowered_ticks: u64,
    /// The leadership that everything above belongs to.
    led: Option<Term>,
    role: Role,
    outputs: Vec<Output>,
}

impl Group {
    pub fn new(id: GroupId, node: Node, boot: u64, rules: Rules) -> Self {
        let quiet = Some(Quiet::new(boot)).filter(|quiet| !quiet.is_over(node.id(), node.voters()));
        let mut group = Self {
            id,
            node,
            rules,
            quiet: quiet.filter(|_| rules.on(Rule::BootQuiet)),
            ticks: 0,
            proposed: VecDeque::new(),
            asked: Vec::new(),
            round: None,
            next_round: 1,
            answered: Vec::new(),
            lease_until: Duration::ZERO,
            handed_over: None,
            lowered_ticks: 0,
            led: None,
            role: Role::Follower { leader: None },
            outputs: Vec::new(),
        };
        group.settle(Duration::ZERO);
        group
    }

    pub fn status(&self) -> Status {
        Status {
            role: self.role,
            term: self.node.term(),
            last: self.node.last(),
            applied: self.node.applied(),
            voters: self.node.voters().clone(),
            quiet: self.quiet.is_some(),
        }
    }

    pub fn outputs(&mut self) -> Vec<Output> {
        self.settle(Duration::ZERO);
        std::mem::take(&mut self.outputs)
    }

    /// False: it was not heard.
    pub fn step(&mut self, frame: &Frame, now: Duration) -> bool {
        match frame.body {
            Body::Quiet { boot, heard } => return self.hear_quiet(frame, boot, heard),
            Body::Join => return self.hear_join(frame.from),
            _ => {}
        }
        let is_quiet = self.quiet.is_some() && asks_for_votes(frame);
        if is_quiet || self.node.is_deaf() || !self.node.view().admits(frame) {
            return false;
        }
        self.node.step(frame);
        self.settle(now);
        true
    }

    pub fn written(&mut self, number: u64, now: Duration) {
        self.node.written(number);
        self.settle(now);
    }

    pub fn tick(&mut self, now: Duration, peers: &[NodeId]) {
        self.ticks += 1;
        let beats = self.ticks.is_multiple_of(HEARTBEAT_TICKS);
        if let Some(quiet) = &mut self.quiet {
            quiet.tick();
            if beats {
                self.say_quiet(None);
            }
            self.end_quiet();
        } else {
            self.node.tick();
        }
        if beats && self.node.leads() {
            self.replace_successors();
            self.begin_round(now, true);
        }
        if beats && self.node.term() == 0 {
            self.ask_to_join(peers);
        }
        self.mind_slow_disk();
        self.settle(now);
    }

    fn hear_quiet(&mut self, frame: &Frame, boot: u64, heard: u64) -> bool {
        let (id, from) = (self.node.id(), frame.from);
        if frame.to != Some(id) || !self.node.voters().is_voter(from) {
            return false;
        }
        if self.quiet.as_mut().is_some_and(|quiet| quiet.hears(from, boot, heard)) {
            self.say_quiet(Some(from));
        }
        self.end_quiet();
        true
    }

    fn end_quiet(&mut self) {
        let (id, voters) = (self.node.id(), self.node.voters());
        if self.quiet.as_ref().is_some_and(|quiet| quiet.is_over(id, voters)) {
            // the others have to hear of this run once more
            self.say_quiet(None);
            self.quiet = None;
        }
    }

    fn say_quiet(&mut self, only: Option<ReplicaId>) {
        let Some(quiet) = &self.quiet else { return };
        let id = self.node.id();
        for to in
            self.node.voters().all().filter(|to| *to != id && only.is_none_or(|only| only == *to))
        {
            let (boot, heard) = quiet.says(to);
            let frame = Frame {
                group: self.id,
                from: id,
                to: Some(to),
                term: 0,
                body: Body::Quiet { boot, heard },
            };
            self.outputs.push(Output::Send { to: to.node(), frame });
        }
    }

    /// Rule: NewIdentity - a replica without a log asks to take its node's place.
    fn ask_to_join(&mut self, peers: &[NodeId]) {
        let from = self.node.id();
        for &to in peers {
            let frame = Frame { group: self.id, from, to: None, term: 0, body: Body::Join };
            self.outputs.push(Output::Send { to, frame });
        }
    }

    /// The leader takes it in as a learner, if its node has a replica, and an older one.
    fn hear_join(&mut self, from: ReplicaId) -> bool {
        let voters = self.node.voters();
        let older =
            |id: ReplicaId| id.node() == from.node() && id.incarnation() < from.incarnation();
        let newer =
            |id: ReplicaId| id.node() == from.node() && id.incarnation() >= from.incarnation();
        if voters.all().any(newer)
            || !voters.all().any(older)
            || voters.all().count() >= REPLICAS_MAX
        {
            return false;
        }
        let mut changes = vec![Change::Learner(from)];
        // a node that lost its log again before it voted
        changes.extend(voters.learners.iter().copied().filter(|id| older(*id)).map(Change::Remove));
        self.node.propose_change(&VoterChange(changes)).is_some()
    }

    /// A learner that has everything takes the place of its node's former replica, in one change.
    fn replace_successors(&mut self) {
        let voters = self.node.voters();
        let pair = voters.learners.iter().find_map(|new| {
            let is_former = |old: &&ReplicaId| {
                old.node() == new.node() && old.incarnation() < new.incarnation()
            };
            let old = voters.voters.iter().find(is_former)?;
            self.node.has_caught_up(*new).then_some((*new, *old))
        });
        if let Some((new, old)) = pair {
            let _ = self
                .node
                .propose_change(&VoterChange(vec![Change::Voter(new), Change::Remove(old)]));
        }
    }

    /// A slow disk moves the leader once, instead of shaking it.
    fn mind_slow_disk(&mut self) {
        if self.lowered_ticks > 0 {
            self.lowered_ticks -= 1;
            if self.lowered_ticks == 0 {
                self.node.set_priority(0);
            }
        }
        if self.node.write_ticks() > SLOW_WRITE_TICKS
            && self.handed_over != Some(self.node.term())
            && self.hand_over()
        {
            self.lowered_ticks = LOWERED_TICKS;
            self.node.set_priority(LOWERED);
        }
    }

    /// The lease ends first: who is asked to stand is voted for whatever a majority said.
    pub fn hand_over(&mut self) -> bool {
        let term = self.node.term();
        let done = self.node.hand_over();
        if done {
            (self.lease_until, self.handed_over) = (Duration::ZERO, Some(term));
        }
        done
    }

    fn not_leader(&self) -> AskError {
        AskError::NotLeader {
            leader: self.node.leader().filter(|leader| *leader != self.node.id()),
        }
    }

    fn check_leads(&self) -> Result<(), AskError> {
        if !self.node.leads() {
            return Err(self.not_leader());
        }
        let tickets = self.proposed.len() + self.asked.len() + self.answered.len();
        if tickets < TICKETS_MAX { Ok(()) } else { Err(AskError::Busy) }
    }

    pub fn propose(&mut self, data: Bytes, ticket: Ticket) -> Result<(), AskError> {
        self.check_leads()?;
        let (index, term) = self.node.propose(data).ok_or(AskError::Busy)?;
        if publishes_early(self.rules) {
            self.tell(ticket, Outcome::Committed(index));
            return Ok(());
        }
        self.proposed.push_back((index, term, ticket));
        Ok(())
    }

    pub fn change_voters(&mut self, change: &VoterChange, ticket: Ticket) -> Result<(), AskError> {
        self.check_leads()?;
        let (index, term) = self.node.propose_change(change).ok_or(AskError::Busy)?;
        self.proposed.push_back((index, term, ticket));
        Ok(())
    }

    pub fn confirm(&mut self, ticket: Ticket, now: Duration) -> Result<(), AskError> {
        self.check_leads()?;
        if !self.rules.on(Rule::ConfirmRenew) {
            self.tell(ticket, Outcome::Confirmed(self.node.applied()));
            return Ok(());
        }
        self.asked.push(ticket);
        self.begin_round(now, false);
        self.settle(now);
        Ok(())
    }

    /// Rule: ConfirmRenew - a round answers only what was asked before it began.
    fn begin_round(&mut self, now: Duration, for_lease: bool) {
        let wanted = for_lease || !self.asked.is_empty();
        if wanted && self.round.is_none() {
            let number = self.next_round;
            self.round = Some(Round { number, began: now, tickets: Vec::new() });
            if self.node.begin_round(number) {
                self.next_round += 1;
                self.round =
                    Some(Round { number, began: now, tickets: std::mem::take(&mut self.asked) });
            } else {
                self.round = None;
            }
        }
    }

    pub fn lease_until(&self) -> Option<Duration> {
        Some(self.lease_until)
            .filter(|_| self.node.leads_whole() && self.lease_until > Duration::ZERO)
    }

    fn tell(&mut self, ticket: Ticket, outcome: Outcome) {
        self.outputs.push(Output::Settled { ticket, outcome });
    }

    /// Makes outputs of what the node has put out, settles what can be settled, tells the role.
    fn settle(&mut self, now: Duration) {
        let leads = self.node.leads().then(|| self.node.term());
        if self.led != leads {
            self.depose();
            self.led = leads;
        }
        loop {
            let events = self.node.events();
            if events.is_empty() {
                break;
            }
            events.into_iter().for_each(|event| self.take(event));
            // only with the time at hand
            if now > Duration::ZERO && !self.asked.is_empty() {
                self.begin_round(now, false);
            }
        }
        self.settle_applied();
        self.tell_role();
    }

    fn take(&mut self, event: Event) {
        let group = self.id;
        match event {
            Event::Send(frame) => {
                if let Some(to) = frame.to {
                    self.outputs.push(Output::Send { to: to.node(), frame });
                }
            }
            Event::Write(number, write) => {
                let crate::node::Write { snapshot, restarts, append, hard } = write;
                self.outputs.push(Output::Persist(Persist {
                    number,
                    group,
                    snapshot,
                    restarts,
                    append,
                    hard,
                }));
            }
            Event::Restored(index, data) => {
                self.outputs.push(Output::Restored { group, index, data })
            }
            Event::SnapshotWanted => self.outputs.push(Output::SnapshotWanted { group }),
            Event::Committed(entries) => self.outputs.push(Output::Committed { group, entries }),
            Event::Round(number, index) => {
                let Some(round) = self.round.take_if(|round| round.number == number) else {
                    return;
                };
                if self.handed_over != Some(self.node.term()) {
                    self.lease_until = self.lease_until.max(round.began + LEASE);
                }
                self.answered.extend(round.tickets.into_iter().map(|ticket| (index, ticket)));
            }
        }
    }

    fn settle_applied(&mut self) {
        let applied = self.node.applied();
        while self.proposed.front().is_some_and(|(index, ..)| *index <= applied) {
            let Some((index, term, ticket)) = self.proposed.pop_front() else { break };
            // a leader's own entries are never replaced while it leads
            debug_assert_eq!(Some(term), self.led);
            self.tell(ticket, Outcome::Committed(index));
        }
        if self.node.leads_whole() {
            let answered = std::mem::take(&mut self.answered);
            for (index, ticket) in answered {
                if index <= applied {
                    self.tell(ticket, Outcome::Confirmed(index));
                } else {
                    self.answered.push((index, ticket));
                }
            }
        }
    }

    /// Everything asked of a leadership ends with it.
    fn depose(&mut self) {
        let proposed = std::mem::take(&mut self.proposed).into_iter().map(|(_, _, ticket)| ticket);
        let rounds = self.round.take().into_iter().flat_map(|round| round.tickets);
        let asked = std::mem::take(&mut self.asked).into_iter();
        let answered = std::mem::take(&mut self.answered).into_iter().map(|(_, ticket)| ticket);
        let tickets: Vec<_> = proposed.chain(rounds).chain(asked).chain(answered).collect();
        tickets.into_iter().for_each(|ticket| self.tell(ticket, Outcome::Deposed));
        self.lease_until = Duration::ZERO;
    }

    fn tell_role(&mut self) {
        let role = match (self.node.leads(), self.node.leads_whole()) {
            (true, true) => Role::Leader { term: self.node.term() },
            (true, false) => Role::Follower { leader: None },
            (false, _) => Role::Follower { leader: self.node.leader() },
        };
        if role != self.role {
            self.role = role;
            self.outputs.push(Output::Role { group: self.id, role });
        }
    }
}
