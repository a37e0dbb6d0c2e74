//! All groups of a process.
//!
//! Contract: no I/O, no clock. The owner brings frames, ticks and the time, carries out
//! [`Host::outputs`] in their order after every call, and tells when a [`Persist`] is on the disk.

use crate::frame::{Body, Frame};
use crate::group::Group;
use crate::memlog::MemLog;
use crate::node::{ELECTION_TICKS_MIN, Node};
use crate::types::{
    ENTRY_BYTES_MAX, GroupId, HardState, Index, NodeId, Output, Persist, Recovered, ReplicaId,
    Role, SNAPSHOT_BYTES_MAX, Term, Ticket, VoterChange, Voters,
};
use bytes::Bytes;
use protocol::{Rule, Rules};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Between two ticks: heartbeats go out every second one, an election begins after 10 to 19.
pub const TICK: Duration = Duration::from_millis(100);
/// How long a majority's answer lets a leader answer alone, from when it was asked: two ticks less
/// than the shortest election timeout, one for when in a tick the follower heard of it and one for
/// a clock that jumps.
pub const LEASE: Duration = TICK.saturating_mul(ELECTION_TICKS_MIN as u32 - 2);

/// Who this process is.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its replica in every group. Rule: NewIdentity - whoever opens a directory that lost promises
    /// gives an incarnation higher than all that the node had.
    pub replica: ReplicaId,
    /// The other nodes, whom a replica without a log asks to be taken in.
    pub peers: Vec<NodeId>,
    /// A number that no earlier run of this node had; not 0.
    pub boot: u64,
    /// What its timeouts are drawn from.
    pub seed: u64,
    /// Which rules hold; all, but in the simulator.
    pub rules: Rules,
}

/// Why a log cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenError {
    /// Entries are missing.
    #[error("the log of group {} has no entry {missing}, but later ones", group.0)]
    Hole {
        /// Whose.
        group: GroupId,
        /// The first that is missing.
        missing: Index,
    },
    /// Its parts do not belong together.
    #[error("the log of group {} is damaged: {what}", group.0)]
    Damaged {
        /// Whose.
        group: GroupId,
        /// What does not fit.
        what: &'static str,
    },
    /// The library does not take it.
    #[error("the log of group {} cannot be opened: {why}", group.0)]
    Refused {
        /// Whose.
        group: GroupId,
        /// What it says.
        why: String,
    },
}

/// Why something cannot be asked of this replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AskError {
    /// Another one leads, or nobody.
    #[error("this replica does not lead")]
    NotLeader {
        /// Who does, if it is known.
        leader: Option<ReplicaId>,
    },
    /// Too much is not committed yet, or a change of voters is under way: try again.
    #[error("too much is under way")]
    Busy,
    /// Empty, or larger than [`ENTRY_BYTES_MAX`].
    #[error("an entry of 0 or more than {ENTRY_BYTES_MAX} bytes")]
    Size,
    /// The process has no replica of it.
    #[error("there is no such group here")]
    NoGroup,
}

/// What one group looks like from here.
#[derive(Clone, PartialEq, Debug)]
pub struct Status {
    /// What this replica is.
    pub role: Role,
    /// The newest term it has seen.
    pub term: Term,
    /// The last entry of its log.
    pub last: Index,
    /// Given out up to here.
    pub applied: Index,
    /// Who takes part.
    pub voters: Voters,
    /// Has it just started, and neither votes nor stands?
    pub quiet: bool,
}

/// The replicas of a process.
#[derive(Debug)]
pub struct Host {
    config: Config,
    groups: BTreeMap<GroupId, Group>,
    /// Those of [`Persist::number`] that are not on the disk: whose, and the group's own number.
    writes: VecDeque<(u64, GroupId, u64)>,
    next_write: u64,
    next_ticket: u64,
    last_tick: Duration,
    refused: u64,
    outputs: VecDeque<Output>,
}

impl Host {
    /// Begins with what the disk holds. What is committed is given out again behind the snapshot,
    /// which the owner has already.
    ///
    /// # Errors
    /// See [`OpenError`]. A log that ends too early, or promises that do, are taken as they are:
    /// `commit` is a hint, and a term without a vote is one without a vote.
    pub fn open(config: Config, groups: Vec<Recovered>, now: Duration) -> Result<Self, OpenError> {
        let mut host = Self {
            config,
            groups: BTreeMap::new(),
            writes: VecDeque::new(),
            next_write: 1,
            next_ticket: 1,
            last_tick: now,
            refused: 0,
            outputs: VecDeque::new(),
        };
        for recovered in groups {
            let group = recovered.group;
            let (id, seed, rules) = (host.config.replica, host.config.seed, host.config.rules);
            let node = Node::new(group, id, check(recovered)?, seed ^ u64::from(group.0), rules);
            let node = node.map_err(|why| OpenError::Refused { group, why })?;
            host.groups.insert(group, Group::new(group, node, host.config.boot, rules));
            host.collect(group);
        }
        Ok(host)
    }

    /// A frame came from a node, over a connection that is that node's.
    pub fn step(&mut self, from: NodeId, frame: &Frame, now: Duration) {
        let group = frame.group;
        let heard = frame.from.node() == from
            && self.groups.get_mut(&group).is_some_and(|g| g.step(frame, now));
        self.refused += u64::from(!heard);
        self.collect(group);
    }

    /// Frames that were not heard: not for this replica, not from where they say, or such that no
    /// replica sends them.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Time goes on. One call is one tick at most: a clock that jumps ahead hurries nobody.
    pub fn tick(&mut self, now: Duration) {
        if now < self.last_tick.saturating_add(TICK) && now >= self.last_tick {
            return;
        }
        self.last_tick = now;
        for id in self.groups.keys().copied().collect::<Vec<_>>() {
            let Some(group) = self.groups.get_mut(&id) else { continue };
            group.tick(now, &self.config.peers);
            self.collect(id);
        }
    }

    /// Proposes an entry. It is told when it is committed.
    ///
    /// # Errors
    /// See [`AskError`]; the entry is then in no log.
    pub fn propose(&mut self, group: GroupId, entry: Bytes) -> Result<Ticket, AskError> {
        if entry.is_empty() || entry.len() > ENTRY_BYTES_MAX {
            return Err(AskError::Size);
        }
        self.ask(group, |group, ticket| group.propose(entry, ticket))
    }

    /// Rule: ConfirmRenew - asks a majority, from now on, whether this replica still leads.
    /// Questions that come while a round is under way share the next one.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn confirm(&mut self, group: GroupId, now: Duration) -> Result<Ticket, AskError> {
        self.ask(group, |group, ticket| group.confirm(ticket, now))
    }

    /// Changes who takes part, through a joint set if more than one does.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn change_voters(
        &mut self,
        group: GroupId,
        change: &VoterChange,
    ) -> Result<Ticket, AskError> {
        self.ask(group, |group, ticket| group.change_voters(change, ticket))
    }

    fn ask(
        &mut self,
        id: GroupId,
        ask: impl FnOnce(&mut Group, Ticket) -> Result<(), AskError>,
    ) -> Result<Ticket, AskError> {
        let ticket = Ticket(self.next_ticket);
        let asked = ask(self.groups.get_mut(&id).ok_or(AskError::NoGroup)?, ticket);
        self.next_ticket += 1;
        self.collect(id);
        asked.map(|()| ticket)
    }

    /// Until when what this replica has applied is the newest, if it was so when the time was still
    /// before that: nobody else can lead until then. `None`: it may be old already.
    pub fn lease_until(&self, group: GroupId) -> Option<Duration> {
        self.groups.get(&group).and_then(Group::lease_until)
    }

    /// Gives up leading in favour of another voter. False: it does not lead, or there is no other.
    pub fn hand_over(&mut self, group: GroupId) -> bool {
        let done = self.groups.get_mut(&group).is_some_and(Group::hand_over);
        self.collect(group);
        done
    }

    /// The application's state, up to [`SNAPSHOT_BYTES_MAX`] bytes, at an entry that it was given
    /// out. The log up to it goes once this is on the disk. False: an older one is being written
    /// still, or this is not newer.
    pub fn snapshot(&mut self, group: GroupId, index: Index, data: Bytes) -> bool {
        let fits = data.len() <= SNAPSHOT_BYTES_MAX;
        let done = fits
            && self.groups.get_mut(&group).is_some_and(|group| group.node.snapshot(index, data));
        self.collect(group);
        done
    }

    /// Everything up to this [`Persist::number`] is on the disk.
    pub fn persisted(&mut self, number: u64, now: Duration) {
        let mut done = BTreeMap::new();
        while self.writes.front().is_some_and(|(first, ..)| *first <= number) {
            let Some((_, group, write)) = self.writes.pop_front() else { break };
            done.insert(group, write);
        }
        for (id, write) in done {
            let Some(group) = self.groups.get_mut(&id) else { continue };
            group.written(write, now);
            self.collect(id);
        }
    }

    /// One group.
    pub fn status(&self, group: GroupId) -> Option<Status> {
        self.groups.get(&group).map(Group::status)
    }

    /// What is to be done, in this order.
    pub fn outputs(&mut self) -> impl Iterator<Item = Output> + '_ {
        self.outputs.drain(..)
    }

    /// Takes what a group has put out; gives its writes their numbers.
    fn collect(&mut self, id: GroupId) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        for output in group.outputs() {
            let output = match output {
                Output::Persist(persist) => {
                    let number = self.next_write;
                    self.next_write += 1;
                    self.writes.push_back((number, id, persist.number));
                    Output::Persist(Persist { number, ..persist })
                }
                other => other,
            };
            self.outputs.push_back(output);
        }
    }
}

/// Is a vote among what the frame asks for?
pub(crate) fn asks_for_votes(frame: &Frame) -> bool {
    matches!(frame.body, Body::Vote(_) | Body::PreVote(_) | Body::TimeoutNow)
}

/// Makes a log of what a disk holds; the library asserts all of this.
fn check(recovered: Recovered) -> Result<MemLog, OpenError> {
    let Recovered { group, snapshot, mut hard, entries } = recovered;
    let damaged = |what| OpenError::Damaged { group, what };
    if snapshot.as_ref().is_some_and(|s| s.index == 0 || s.term == 0 || !s.voters.is_valid()) {
        return Err(damaged("its snapshot says what no group can be"));
    }
    let (base, base_term) = snapshot.as_ref().map_or((0, 0), |s| (s.index, s.term));
    let (mut last, mut term) = (base, base_term);
    for entry in &entries {
        if entry.index != last + 1 {
            return Err(OpenError::Hole { group, missing: last + 1 });
        }
        if entry.term < term || entry.term == 0 {
            return Err(damaged("the terms of its entries fall"));
        }
        (last, term) = (entry.index, entry.term);
    }
    if hard.term < term {
        // the promises were not on the disk, so nothing was answered that depends on them
        hard = HardState { term, vote: None, commit: hard.commit };
    }
    hard.commit = hard.commit.clamp(base, last);
    Ok(MemLog::new(snapshot, hard, entries))
}

/// The rule, where it is asked for by name.
pub(crate) fn publishes_early(rules: Rules) -> bool {
    !rules.on(Rule::CommitPublish)
}
