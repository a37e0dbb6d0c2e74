//! The words of this crate: replicas, entries, voters, and what a host puts out.
//!
//! Contract: plain values. Those that arrive from outside have checked constructors or are checked
//! by the decoder ([`crate::frame`]).

use crate::Frame;
use bytes::Bytes;
use std::fmt;

/// The position of an entry in a group's log, from 1; 0 is the position before the first.
pub type Index = u64;
/// The number of a leadership, from 1. At most one replica leads a group in one term.
pub type Term = u64;

/// No index from outside may be larger: sums of an index and a length cannot overflow below it.
pub const INDEX_MAX: Index = 1 << 56;
/// No term from outside may be larger.
pub const TERM_MAX: Term = 1 << 48;
/// Bytes of one proposed entry, at most. A map of 33,000 PGs is 1.5 MB.
pub const ENTRY_BYTES_MAX: usize = 8 << 20;
/// Bytes of a snapshot, at most.
pub const SNAPSHOT_BYTES_MAX: usize = 64 << 20;
/// Replicas of one group, at most: five voters, as many that replace them, and learners.
pub const REPLICAS_MAX: usize = 16;

/// A machine that takes part: what connections are between.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub u16);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node.{}", self.0)
    }
}

/// One log of promises: a node, and which of its logs. Rule: NewIdentity - a node that lost its
/// log, or a part of it that was synced, returns under an incarnation that it never had before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId(u64);

/// Bits of a [`ReplicaId`] that hold the incarnation.
const INCARNATION_BITS: u32 = 48;
/// The largest incarnation.
pub const INCARNATION_MAX: u64 = (1 << INCARNATION_BITS) - 1;

impl ReplicaId {
    /// That log of that node. `None` if the incarnation is 0 or larger than [`INCARNATION_MAX`].
    pub const fn new(node: NodeId, incarnation: u64) -> Option<Self> {
        if incarnation == 0 || incarnation > INCARNATION_MAX {
            return None;
        }
        Some(Self((node.0 as u64) << INCARNATION_BITS | incarnation))
    }

    /// From the number that frames and logs carry; `None` if its incarnation is 0.
    pub const fn from_raw(raw: u64) -> Option<Self> {
        if raw & INCARNATION_MAX == 0 { None } else { Some(Self(raw)) }
    }

    /// The number that frames and logs carry; never 0.
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// Whose log it is.
    pub const fn node(self) -> NodeId {
        NodeId((self.0 >> INCARNATION_BITS) as u16)
    }

    /// Which of the node's logs; a higher one is newer.
    pub const fn incarnation(self) -> u64 {
        self.0 & INCARNATION_MAX
    }
}

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.node(), self.incarnation())
    }
}

impl fmt::Debug for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A replicated log; several share a process, its connections and its disk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GroupId(pub u16);

/// What a replica has promised. Term and vote are one record: neither is ever on a disk without the
/// other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HardState {
    /// The newest term it has seen.
    pub term: Term,
    /// Whom it voted for in that term.
    pub vote: Option<ReplicaId>,
    /// Entries up to here are committed. A hint, but for changes of voters (see [`crate::Host`]).
    pub commit: Index,
}

/// What an entry holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntryKind {
    /// What was proposed; nothing in the first entry of a term.
    Data,
    /// An encoded [`VoterChange`].
    Voters,
}

/// One entry of a group's log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its position.
    pub index: Index,
    /// The leadership that made it.
    pub term: Term,
    /// What it holds.
    pub kind: EntryKind,
    /// Its bytes.
    pub data: Bytes,
}

/// Who takes part in a group. While voters change there are two sets, and a decision needs a
/// majority of each.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Voters {
    /// Those who decide. Empty for a replica that does not know its group yet.
    pub voters: Vec<ReplicaId>,
    /// Those who decided until now and still have to agree; empty unless voters change.
    pub outgoing: Vec<ReplicaId>,
    /// Those who copy and do not decide.
    pub learners: Vec<ReplicaId>,
    /// Those who are still in `outgoing` and become learners after the change.
    pub learners_next: Vec<ReplicaId>,
    /// Does the leader end the change by itself? True whenever there is one.
    pub auto_leave: bool,
}

impl Voters {
    /// These voters, nobody else.
    pub fn of(voters: impl IntoIterator<Item = ReplicaId>) -> Self {
        Self { voters: voters.into_iter().collect(), ..Self::default() }
    }

    /// Everybody, each once.
    pub fn all(&self) -> impl Iterator<Item = ReplicaId> + '_ {
        let outgoing = self.outgoing.iter().filter(|id| !self.voters.contains(id));
        self.voters.iter().chain(outgoing).chain(&self.learners).copied()
    }

    /// Is it one of them?
    pub fn contains(&self, id: ReplicaId) -> bool {
        self.all().any(|other| other == id)
    }

    /// Does it decide?
    pub fn is_voter(&self, id: ReplicaId) -> bool {
        self.voters.contains(&id) || self.outgoing.contains(&id)
    }

    /// Can a group be like this? Everything that the library asserts of it.
    pub fn is_valid(&self) -> bool {
        let unique =
            |set: &[ReplicaId]| set.iter().enumerate().all(|(i, id)| !set[..i].contains(id));
        let sets = [&self.voters, &self.outgoing, &self.learners, &self.learners_next];
        let next_fits = |id: &ReplicaId| self.outgoing.contains(id) && !self.voters.contains(id);
        !self.voters.is_empty()
            && sets.iter().all(|set| unique(set))
            && sets.iter().map(|set| set.len()).sum::<usize>() <= 2 * REPLICAS_MAX
            && !self.learners.iter().any(|&id| self.is_voter(id))
            && self.learners_next.iter().all(next_fits)
            && (self.auto_leave != self.outgoing.is_empty())
    }
}

/// One step of a change of who takes part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Copies and does not decide (from now on).
    Learner(ReplicaId),
    /// Decides.
    Voter(ReplicaId),
    /// No longer takes part.
    Remove(ReplicaId),
}

/// Changes that take effect together: one of them at once, several through a joint set.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VoterChange(pub Vec<Change>);

impl VoterChange {
    /// Its bytes: a step is an operation (1 byte) and a replica (8 bytes, little-endian).
    pub fn encode(&self) -> Bytes {
        let mut bytes = Vec::with_capacity(self.0.len() * 9);
        for change in &self.0 {
            let (operation, id) = match change {
                Change::Learner(id) => (1, id),
                Change::Voter(id) => (2, id),
                Change::Remove(id) => (3, id),
            };
            bytes.push(operation);
            bytes.extend_from_slice(&id.raw().to_le_bytes());
        }
        Bytes::from(bytes)
    }

    /// Reads it. `None`: these bytes are no change. No bytes at all are the end of a joint set.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (steps, rest) = bytes.as_chunks::<9>();
        if !rest.is_empty() || steps.len() > REPLICAS_MAX {
            return None;
        }
        let step = |step: &[u8; 9]| {
            let [operation, raw @ ..] = *step;
            let id = ReplicaId::from_raw(u64::from_le_bytes(raw))?;
            match operation {
                1 => Some(Change::Learner(id)),
                2 => Some(Change::Voter(id)),
                3 => Some(Change::Remove(id)),
                _ => None,
            }
        };
        steps.iter().map(step).collect::<Option<_>>().map(Self)
    }
}

/// The state that a log led to at one entry, in the place of all entries up to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// The last entry in it.
    pub index: Index,
    /// That entry's term.
    pub term: Term,
    /// Who took part then.
    pub voters: Voters,
    /// What the application made of it: up to [`SNAPSHOT_BYTES_MAX`] bytes.
    pub data: Bytes,
}

/// What a disk holds of one group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recovered {
    /// Which group.
    pub group: GroupId,
    /// The newest snapshot; `None` for a replica that has never heard of its group.
    pub snapshot: Option<Snapshot>,
    /// Its promises.
    pub hard: HardState,
    /// The entries behind the snapshot, without a gap.
    pub entries: Vec<Entry>,
}

impl Recovered {
    /// Nothing: a replica that others have to tell everything.
    pub fn blank(group: GroupId) -> Self {
        Self { group, snapshot: None, hard: HardState::default(), entries: Vec::new() }
    }

    /// A group that begins with this state. Everybody in `voters` has to begin with the same.
    pub fn first(group: GroupId, voters: Voters, data: Bytes) -> Self {
        let hard = HardState { term: 1, vote: None, commit: 1 };
        Self {
            group,
            snapshot: Some(Snapshot { index: 1, term: 1, voters, data }),
            hard,
            entries: Vec::new(),
        }
    }
}

/// What one replica is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Leads, and has given out everything that was committed before: its state is the newest. The
    /// term is the number of this leadership and never repeats.
    Leader {
        /// Which leadership.
        term: Term,
    },
    /// Follows.
    Follower {
        /// Whom, if it knows.
        leader: Option<ReplicaId>,
    },
}

/// Names what was asked of a host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// What came of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The entry is committed, here; it was given out with [`Output::Committed`] before.
    Committed(Index),
    /// This replica led after [`crate::Host::confirm`] was called, and has given out everything
    /// that was committed then.
    Confirmed(Index),
    /// It leads no longer. An entry may still be committed, or never be.
    Deposed,
}

/// What has to be on the disk, in one piece, before [`crate::Host::persisted`] is called with its
/// number. [`Persist::steps`] says in which order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Persist {
    /// Counts up over all groups.
    pub number: u64,
    /// Whose.
    pub group: GroupId,
    /// In the place of everything up to its index.
    pub snapshot: Option<Snapshot>,
    /// Is it the leader's, and voids everything behind its index, too?
    pub restarts: bool,
    /// They void everything that the log holds from the first one's index on.
    pub append: Vec<Entry>,
    /// The promises.
    pub hard: Option<HardState>,
}

/// A step of keeping a [`Persist`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The snapshot is written to a file beside the one that holds, and synced.
    WriteSnapshot,
    /// It takes that one's name, and the name is synced.
    RenameSnapshot,
    /// A record in the log says that everything up to the snapshot's index may go.
    Cut,
    /// Entries and promises are records in the log.
    Append,
    /// The log is synced.
    Sync,
}

impl Persist {
    /// What to do, in this order. Rule: SnapOrder - the log is cut only behind a snapshot that is
    /// synced under its name.
    pub fn steps(&self, rules: protocol::Rules) -> Vec<Step> {
        use Step::{Append, Cut, RenameSnapshot, Sync, WriteSnapshot};
        match &self.snapshot {
            None => vec![Append, Sync],
            Some(_) if rules.on(protocol::Rule::SnapOrder) => {
                vec![WriteSnapshot, RenameSnapshot, Cut, Append, Sync]
            }
            Some(_) => vec![Cut, Append, Sync, WriteSnapshot, RenameSnapshot],
        }
    }
}

/// What a host wants done, in this order.
#[derive(Clone, PartialEq, Debug)]
pub enum Output {
    /// Send it; it may be lost, come late or twice.
    Send {
        /// Where to.
        to: NodeId,
        /// What.
        frame: Frame,
    },
    /// Keep it, then call [`crate::Host::persisted`]. Those of one host in the order of their
    /// numbers.
    Persist(Persist),
    /// The state begins anew with this snapshot, which is on the disk.
    Restored {
        /// Whose.
        group: GroupId,
        /// Up to here.
        index: Index,
        /// What the leader's application made.
        data: Bytes,
    },
    /// Another replica needs a snapshot that is newer than the last: call
    /// [`crate::Host::snapshot`] soon. It is asked for again until that is done.
    SnapshotWanted {
        /// Whose.
        group: GroupId,
    },
    /// Rule: CommitPublish - these entries are committed and on this replica's disk; only what
    /// comes out here may be told to anybody. In the order of the log, each once in the life of a
    /// host.
    Committed {
        /// Whose.
        group: GroupId,
        /// Without the entries that the group makes for itself.
        entries: Vec<Entry>,
    },
    /// What this replica is from now on.
    Role {
        /// In which group.
        group: GroupId,
        /// What it is.
        role: Role,
    },
    /// What became of something asked.
    Settled {
        /// What was asked.
        ticket: Ticket,
        /// What came of it.
        outcome: Outcome,
    },
}
