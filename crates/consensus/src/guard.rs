//! What a replica does not even hear: everything that the library would assert of a frame.
//!
//! Contract: pure. A frame that [`Frame::decode`] accepted and [`View::admits`] lets through makes
//! the library panic in no state (`tests/hostile.rs`, and the fuzz target `consensus`). A member
//! that lies can still break the group: replicas trust each other that far, as in every raft.

use crate::frame::{Body, Frame};
use crate::types::{Index, ReplicaId, Term, Voters};

/// What a replica knows when a frame comes.
pub(crate) struct View<'a> {
    pub id: ReplicaId,
    pub term: Term,
    pub leader: Option<ReplicaId>,
    /// The last entry in memory.
    pub last: Index,
    /// Is something of the log on its way to the disk?
    pub is_writing: bool,
    pub voters: &'a Voters,
}

impl View<'_> {
    /// May the library see it?
    pub fn admits(&self, frame: &Frame) -> bool {
        let from = frame.from;
        // Rule: NewIdentity - what a node's former replica said is not for this one, and what a
        // former replica says is not heard once its successor is a member
        if frame.to != Some(self.id) || from.node() == self.id.node() || self.is_succeeded(from) {
            return false;
        }
        let is_member = self.voters.contains(from);
        match &frame.body {
            Body::Append { .. } | Body::Snapshot(_) => true,
            // Rule: NewIdentity - who has never heard of a leader decides nothing
            Body::Vote(_) | Body::PreVote(_) => self.term > 0,
            // the leader tells only what this replica acknowledged: `to_commit out of range`
            Body::Heartbeat { commit, .. } => *commit <= self.last,
            // nobody acknowledges or names what the leader never had
            Body::AppendReply { index, refused, hint, .. } => {
                is_member
                    && (frame.term != self.term
                        || *index <= self.last && (!refused || *hint <= self.last))
            }
            Body::HeartbeatReply { .. } => is_member,
            // votes were asked for when everything was on the disk: a leader begins with that
            Body::VoteReply(_) | Body::PreVoteReply(_) => is_member && !self.is_writing,
            Body::TimeoutNow => {
                self.leader == Some(from) && frame.term == self.term && !self.is_writing
            }
            Body::Quiet { .. } | Body::Join => false,
        }
    }

    fn is_succeeded(&self, from: ReplicaId) -> bool {
        self.voters
            .all()
            .any(|id| id.node() == from.node() && id.incarnation() > from.incarnation())
    }
}
