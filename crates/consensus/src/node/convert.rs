//! The library's messages, entries and sets of voters as ours, and back; and the log that it reads.
//!
//! Contract: no protobuf is encoded or parsed here. A change of voters lies in an entry's
//! `context`, in our own layout.

use crate::frame::{Ballot, Body, Candidacy, Frame};
use crate::memlog::MemLog;
use crate::types::{Change, Entry, EntryKind, GroupId, ReplicaId, Snapshot, VoterChange, Voters};
use bytes::Bytes;
use raft::eraftpb::{self as pb, ConfChangeType, EntryType, MessageType};
use raft::{GetEntriesContext, StorageError};

/// What the library writes into a vote that the leader asked for.
const TRANSFER: &[u8] = b"CampaignTransfer";

/// A frame of this replica; `None`: nothing that leaves it.
pub fn to_frame(group: GroupId, from: ReplicaId, message: &pb::Message) -> Option<Frame> {
    let body = match message.get_msg_type() {
        MessageType::MsgAppend => Body::Append {
            prev: message.index,
            prev_term: message.log_term,
            commit: message.commit,
            entries: message.get_entries().iter().map(from_entry).collect(),
        },
        MessageType::MsgAppendResponse => Body::AppendReply {
            index: message.index,
            commit: message.commit,
            refused: message.reject,
            hint: message.reject_hint,
            hint_term: message.log_term,
        },
        MessageType::MsgRequestVote => Body::Vote(candidacy(message)),
        MessageType::MsgRequestPreVote => Body::PreVote(candidacy(message)),
        MessageType::MsgRequestVoteResponse => Body::VoteReply(ballot(message)),
        MessageType::MsgRequestPreVoteResponse => Body::PreVoteReply(ballot(message)),
        MessageType::MsgHeartbeat => {
            Body::Heartbeat { commit: message.commit, round: round(message) }
        }
        MessageType::MsgHeartbeatResponse => {
            Body::HeartbeatReply { commit: message.commit, round: round(message) }
        }
        MessageType::MsgSnapshot => Body::Snapshot(from_snapshot(message.get_snapshot())),
        MessageType::MsgTimeoutNow => Body::TimeoutNow,
        // the library forwards proposals and questions only if a follower asks it to
        _ => return None,
    };
    let to = Some(ReplicaId::from_raw(message.to)?);
    Some(Frame { group, from, to, term: message.term, body })
}

fn round(message: &pb::Message) -> u64 {
    message.get_context().try_into().map_or(0, u64::from_le_bytes)
}

fn candidacy(message: &pb::Message) -> Candidacy {
    Candidacy {
        last: message.index,
        last_term: message.log_term,
        commit: message.commit,
        commit_term: message.commit_term,
        transfer: message.get_context() == TRANSFER,
        priority: message.priority,
    }
}

fn ballot(message: &pb::Message) -> Ballot {
    Ballot { refused: message.reject, commit: message.commit, commit_term: message.commit_term }
}

pub fn to_message(id: ReplicaId, frame: &Frame) -> Option<pb::Message> {
    let mut message = pb::Message::default();
    (message.from, message.to, message.term) = (frame.from.raw(), id.raw(), frame.term);
    let context = |round: u64| {
        if round == 0 { Bytes::new() } else { Bytes::copy_from_slice(&round.to_le_bytes()) }
    };
    let kind = match &frame.body {
        Body::Append { prev, prev_term, commit, entries } => {
            (message.index, message.log_term, message.commit) = (*prev, *prev_term, *commit);
            message.set_entries(entries.iter().map(to_entry).collect::<Vec<_>>().into());
            MessageType::MsgAppend
        }
        Body::AppendReply { index, commit, refused, hint, hint_term } => {
            (message.index, message.commit, message.reject) = (*index, *commit, *refused);
            (message.reject_hint, message.log_term) = (*hint, *hint_term);
            MessageType::MsgAppendResponse
        }
        Body::Vote(candidacy) | Body::PreVote(candidacy) => {
            let Candidacy { last, last_term, commit, commit_term, transfer, priority } = *candidacy;
            (message.index, message.log_term) = (last, last_term);
            (message.commit, message.commit_term, message.priority) =
                (commit, commit_term, priority);
            if transfer {
                message.context = Bytes::from_static(TRANSFER);
            }
            match frame.body {
                Body::Vote(_) => MessageType::MsgRequestVote,
                _ => MessageType::MsgRequestPreVote,
            }
        }
        Body::VoteReply(ballot) | Body::PreVoteReply(ballot) => {
            (message.reject, message.commit, message.commit_term) =
                (ballot.refused, ballot.commit, ballot.commit_term);
            match frame.body {
                Body::VoteReply(_) => MessageType::MsgRequestVoteResponse,
                _ => MessageType::MsgRequestPreVoteResponse,
            }
        }
        Body::Heartbeat { commit, round } => {
            (message.commit, message.context) = (*commit, context(*round));
            MessageType::MsgHeartbeat
        }
        Body::HeartbeatReply { commit, round } => {
            (message.commit, message.context) = (*commit, context(*round));
            MessageType::MsgHeartbeatResponse
        }
        Body::Snapshot(snapshot) => {
            message.set_snapshot(to_snapshot(snapshot));
            MessageType::MsgSnapshot
        }
        Body::TimeoutNow => MessageType::MsgTimeoutNow,
        Body::Quiet { .. } | Body::Join => return None,
    };
    message.set_msg_type(kind);
    Some(message)
}

/// A change of voters lies in the library's `context`, in our own layout; its `data` is not kept.
pub fn from_entry(entry: &pb::Entry) -> Entry {
    let (kind, data) = match entry.get_entry_type() {
        EntryType::EntryNormal => (EntryKind::Data, entry.data.clone()),
        EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => {
            (EntryKind::Voters, entry.context.clone())
        }
    };
    Entry { index: entry.index, term: entry.term, kind, data }
}

fn to_entry(entry: &Entry) -> pb::Entry {
    let mut made = pb::Entry::default();
    (made.index, made.term) = (entry.index, entry.term);
    match entry.kind {
        EntryKind::Data => made.data = entry.data.clone(),
        EntryKind::Voters => {
            made.set_entry_type(EntryType::EntryConfChangeV2);
            made.context = entry.data.clone();
        }
    }
    made
}

pub fn to_change(change: &VoterChange) -> pb::ConfChangeV2 {
    let single = |change: &Change| {
        let (id, kind) = match change {
            Change::Learner(id) => (id, ConfChangeType::AddLearnerNode),
            Change::Voter(id) => (id, ConfChangeType::AddNode),
            Change::Remove(id) => (id, ConfChangeType::RemoveNode),
        };
        raft_single(id.raw(), kind)
    };
    let mut made = pb::ConfChangeV2::default();
    made.set_changes(change.0.iter().map(single).collect::<Vec<_>>().into());
    made
}

fn raft_single(id: u64, kind: ConfChangeType) -> pb::ConfChangeSingle {
    let mut single = pb::ConfChangeSingle { node_id: id, ..pb::ConfChangeSingle::default() };
    single.set_change_type(kind);
    single
}

pub fn from_snapshot(snapshot: &pb::Snapshot) -> Snapshot {
    let metadata = snapshot.get_metadata();
    Snapshot {
        index: metadata.index,
        term: metadata.term,
        voters: from_conf_state(metadata.get_conf_state()),
        data: snapshot.data.clone(),
    }
}

fn to_snapshot(snapshot: &Snapshot) -> pb::Snapshot {
    let mut made = pb::Snapshot { data: snapshot.data.clone(), ..pb::Snapshot::default() };
    let metadata = made.mut_metadata();
    (metadata.index, metadata.term) = (snapshot.index, snapshot.term);
    *metadata.mut_conf_state() = to_conf_state(&snapshot.voters);
    made
}

pub fn from_conf_state(state: &pb::ConfState) -> Voters {
    let set = |ids: &[u64]| {
        let mut set: Vec<_> = ids.iter().copied().filter_map(ReplicaId::from_raw).collect();
        set.sort_unstable();
        set
    };
    Voters {
        voters: set(&state.voters),
        outgoing: set(&state.voters_outgoing),
        learners: set(&state.learners),
        learners_next: set(&state.learners_next),
        auto_leave: state.auto_leave,
    }
}

fn to_conf_state(voters: &Voters) -> pb::ConfState {
    let set = |ids: &[ReplicaId]| ids.iter().map(|id| id.raw()).collect::<Vec<u64>>();
    let mut made = pb::ConfState::default();
    made.set_voters(set(&voters.voters));
    made.set_voters_outgoing(set(&voters.outgoing));
    made.set_learners(set(&voters.learners));
    made.set_learners_next(set(&voters.learners_next));
    made.auto_leave = voters.auto_leave;
    made
}

impl raft::Storage for MemLog {
    fn initial_state(&self) -> raft::Result<raft::RaftState> {
        let mut hard = pb::HardState::default();
        (hard.term, hard.vote) = (self.hard.term, self.hard.vote.map_or(0, ReplicaId::raw));
        hard.commit = self.hard.commit;
        let voters = self
            .snapshot
            .as_ref()
            .map(|snapshot| to_conf_state(&snapshot.voters))
            .unwrap_or_default();
        Ok(raft::RaftState::new(hard, voters))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<pb::Entry>> {
        if low < self.first() {
            return Err(StorageError::Compacted.into());
        }
        let bytes_max = max_size.into().unwrap_or(u64::MAX);
        Ok(self.range(low, high, bytes_max).map(to_entry).collect())
    }

    fn term(&self, idx: u64) -> raft::Result<u64> {
        let missing =
            if idx < self.first() { StorageError::Compacted } else { StorageError::Unavailable };
        self.term(idx).ok_or(missing.into())
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.first())
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last())
    }

    /// A replica takes over only a snapshot that names it.
    fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<pb::Snapshot> {
        let names = |snapshot: &&Snapshot| snapshot.voters.all().any(|id| id.raw() == to);
        match self.snapshot.as_ref().filter(names) {
            Some(snapshot) if snapshot.index >= request_index => Ok(to_snapshot(snapshot)),
            _ => {
                self.is_snapshot_wanted.set(true);
                Err(StorageError::SnapshotTemporarilyUnavailable.into())
            }
        }
    }
}
