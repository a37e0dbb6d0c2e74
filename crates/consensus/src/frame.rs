//! What replicas send each other: fixed little-endian layouts.
//!
//! Contract: [`Frame::decode`] trusts nothing. What it returns is well formed by itself: bounded
//! terms and indexes, entries one behind the other with terms that do not fall, voters that a group
//! can have. Whether it fits the replica that receives it is for [`crate::Host::step`] to say.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | version, [`VERSION`] |
//! | 1 | 1 | kind |
//! | 2 | 2 | group |
//! | 4 | 8 | sender, a replica |
//! | 12 | 8 | receiver, a replica; 0 for `Join` |
//! | 20 | 8 | term; 0 for `Quiet` and `Join` |
//! | 28 | | the kind's own fields, in the order of [`Body`] |
//!
//! Numbers have 8 bytes, `bool`s one. An entry is its term (8), its kind (1: data, 2: voters), its
//! length (4) and its bytes; the number of entries (4) is before them. A set of replicas is its
//! size (1) and the replicas (8 each). A snapshot's data is the rest of the frame.

use crate::types::{
    ENTRY_BYTES_MAX, Entry, EntryKind, GroupId, INDEX_MAX, Index, REPLICAS_MAX, ReplicaId,
    SNAPSHOT_BYTES_MAX, Snapshot, TERM_MAX, Term, VoterChange, Voters,
};
use bytes::{Buf, BufMut, Bytes, BytesMut};

/// The layout's version.
pub const VERSION: u8 = 1;
/// Bytes before a kind's own fields.
const HEADER_BYTES: usize = 28;
/// Bytes of an entry beside its data.
const ENTRY_HEADER_BYTES: usize = 13;
/// Bytes of any frame, at most: a snapshot and what stands before it.
pub const FRAME_BYTES_MAX: usize = SNAPSHOT_BYTES_MAX + 64 + 4 * (1 + 8 * REPLICAS_MAX);

/// A message of one replica to another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// Which group's.
    pub group: GroupId,
    /// Who sends it.
    pub from: ReplicaId,
    /// For whom; `None`: whichever replica the node has (`Join`).
    pub to: Option<ReplicaId>,
    /// The term that it speaks of.
    pub term: Term,
    /// What it says.
    pub body: Body,
}

/// What a frame says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Body {
    /// The leader's entries behind one.
    Append {
        /// That one.
        prev: Index,
        /// Its term.
        prev_term: Term,
        /// Entries up to here are committed.
        commit: Index,
        /// They follow `prev` without a gap.
        entries: Vec<Entry>,
    },
    /// The answer.
    AppendReply {
        /// Held up to here; if refused: the `prev` that did not fit.
        index: Index,
        /// The receiver's committed index.
        commit: Index,
        /// Did `prev` not fit?
        refused: bool,
        /// Then: where to try next.
        hint: Index,
        /// The term that the receiver has there.
        hint_term: Term,
    },
    /// Asks for a vote.
    Vote(Candidacy),
    /// Asks whether it would get one.
    PreVote(Candidacy),
    /// The answer.
    VoteReply(Ballot),
    /// The answer.
    PreVoteReply(Ballot),
    /// The leader lives.
    Heartbeat {
        /// Entries up to here are committed, and the receiver has them.
        commit: Index,
        /// Which round of questions it belongs to; 0: none.
        round: u64,
    },
    /// The answer.
    HeartbeatReply {
        /// The receiver's committed index.
        commit: Index,
        /// The heartbeat's.
        round: u64,
    },
    /// A snapshot, for whom the log is cut too far.
    Snapshot(Snapshot),
    /// Stand for election now: the leader gives up in favour of the receiver.
    TimeoutNow,
    /// Rule: BootQuiet - the sender has just started, in this run, and has heard that the receiver
    /// just started in that one.
    Quiet {
        /// The sender's run.
        boot: u64,
        /// The receiver's run; 0: not heard of it.
        heard: u64,
    },
    /// Rule: NewIdentity - the sender has no log and asks to take its node's place in the group.
    Join,
}

/// A candidate's log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidacy {
    /// The last entry.
    pub last: Index,
    /// Its term.
    pub last_term: Term,
    /// Entries up to here are committed.
    pub commit: Index,
    /// The term of that one.
    pub commit_term: Term,
    /// Did the leader ask it to stand?
    pub transfer: bool,
    /// Replicas of a higher priority with the same log refuse it.
    pub priority: i64,
}

/// The answer to a candidate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ballot {
    /// No vote?
    pub refused: bool,
    /// The voter's committed index.
    pub commit: Index,
    /// The term of that entry.
    pub commit_term: Term,
}

/// Why bytes are no frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    /// Ends too early, or goes on behind its end.
    #[error("frame of a length that does not fit its kind")]
    Length,
    /// Of another version of this program.
    #[error("frame of version {0}, this program speaks {VERSION}")]
    Version(u8),
    /// A field says what no replica says.
    #[error("frame with a bad {0}")]
    Field(&'static str),
}

impl Frame {
    /// Its bytes.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(HEADER_BYTES + self.body_bytes());
        out.put_u8(VERSION);
        out.put_u8(self.kind());
        out.put_u16_le(self.group.0);
        out.put_u64_le(self.from.raw());
        out.put_u64_le(self.to.map_or(0, ReplicaId::raw));
        out.put_u64_le(self.term);
        match &self.body {
            Body::Append { prev, prev_term, commit, entries } => {
                put(&mut out, &[*prev, *prev_term, *commit]);
                put_entries(&mut out, entries);
            }
            Body::AppendReply { index, commit, refused, hint, hint_term } => {
                put(&mut out, &[*index, *commit]);
                out.put_u8(u8::from(*refused));
                put(&mut out, &[*hint, *hint_term]);
            }
            Body::Vote(candidacy) | Body::PreVote(candidacy) => {
                let Candidacy { last, last_term, commit, commit_term, transfer, priority } =
                    *candidacy;
                put(&mut out, &[last, last_term, commit, commit_term]);
                out.put_u8(u8::from(transfer));
                out.put_i64_le(priority);
            }
            Body::VoteReply(ballot) | Body::PreVoteReply(ballot) => {
                out.put_u8(u8::from(ballot.refused));
                put(&mut out, &[ballot.commit, ballot.commit_term]);
            }
            Body::Heartbeat { commit: one, round: two }
            | Body::HeartbeatReply { commit: one, round: two }
            | Body::Quiet { boot: one, heard: two } => {
                put(&mut out, &[*one, *two]);
            }
            Body::Snapshot(snapshot) => put_snapshot(&mut out, snapshot),
            Body::TimeoutNow | Body::Join => {}
        }
        out.freeze()
    }

    fn kind(&self) -> u8 {
        match &self.body {
            Body::Append { .. } => 1,
            Body::AppendReply { .. } => 2,
            Body::Vote(_) => 3,
            Body::PreVote(_) => 4,
            Body::VoteReply(_) => 5,
            Body::PreVoteReply(_) => 6,
            Body::Heartbeat { .. } => 7,
            Body::HeartbeatReply { .. } => 8,
            Body::Snapshot(_) => 9,
            Body::TimeoutNow => 10,
            Body::Quiet { .. } => 11,
            Body::Join => 12,
        }
    }

    fn body_bytes(&self) -> usize {
        match &self.body {
            Body::Append { entries, .. } => {
                28 + entries
                    .iter()
                    .map(|entry| ENTRY_HEADER_BYTES + entry.data.len())
                    .sum::<usize>()
            }
            Body::Snapshot(snapshot) => 32 + 8 * 2 * REPLICAS_MAX + snapshot.data.len(),
            _ => 48,
        }
    }

    /// Reads a frame; data is a part of `bytes`, not copied.
    ///
    /// # Errors
    /// See [`FrameError`]: the connection that brought it is not to be trusted.
    pub fn decode(mut bytes: Bytes) -> Result<Self, FrameError> {
        if bytes.len() > FRAME_BYTES_MAX {
            return Err(FrameError::Length);
        }
        let input = &mut bytes;
        let version = input.try_get_u8().map_err(|_| FrameError::Length)?;
        if version != VERSION {
            return Err(FrameError::Version(version));
        }
        let kind = input.try_get_u8().map_err(|_| FrameError::Length)?;
        let group = GroupId(input.try_get_u16_le().map_err(|_| FrameError::Length)?);
        let from = ReplicaId::from_raw(number(input)?).ok_or(FrameError::Field("sender"))?;
        let to = match number(input)? {
            0 => None,
            raw => Some(ReplicaId::from_raw(raw).ok_or(FrameError::Field("receiver"))?),
        };
        let term = number(input)?;
        let body = body(input, kind, term)?;
        let is_termless = matches!(body, Body::Quiet { .. } | Body::Join);
        if term > TERM_MAX || (term == 0) != is_termless {
            return Err(FrameError::Field("term"));
        }
        if to.is_none() != matches!(body, Body::Join) {
            return Err(FrameError::Field("receiver"));
        }
        if input.has_remaining() {
            Err(FrameError::Length)
        } else {
            Ok(Self { group, from, to, term, body })
        }
    }
}

fn put(out: &mut BytesMut, numbers: &[u64]) {
    numbers.iter().for_each(|number| out.put_u64_le(*number));
}

fn put_entries(out: &mut BytesMut, entries: &[Entry]) {
    out.put_u32_le(entries.len() as u32);
    for entry in entries {
        out.put_u64_le(entry.term);
        out.put_u8(match entry.kind {
            EntryKind::Data => 1,
            EntryKind::Voters => 2,
        });
        out.put_u32_le(entry.data.len() as u32);
        out.put_slice(&entry.data);
    }
}

fn put_snapshot(out: &mut BytesMut, snapshot: &Snapshot) {
    out.put_u64_le(snapshot.index);
    out.put_u64_le(snapshot.term);
    put_voters(out, &snapshot.voters);
    out.put_slice(&snapshot.data);
}

/// Appends the sets of a group: four sets, and whether the change ends by itself.
pub fn put_voters(out: &mut BytesMut, voters: &Voters) {
    for set in [&voters.voters, &voters.outgoing, &voters.learners, &voters.learners_next] {
        out.put_u8(set.len() as u8);
        set.iter().for_each(|id| out.put_u64_le(id.raw()));
    }
    out.put_u8(u8::from(voters.auto_leave));
}

fn number(input: &mut Bytes) -> Result<u64, FrameError> {
    input.try_get_u64_le().map_err(|_| FrameError::Length)
}

fn index(input: &mut Bytes) -> Result<Index, FrameError> {
    number(input).and_then(|index| {
        if index <= INDEX_MAX { Ok(index) } else { Err(FrameError::Field("index")) }
    })
}

fn term_of_entry(input: &mut Bytes) -> Result<Term, FrameError> {
    number(input)
        .and_then(|term| if term <= TERM_MAX { Ok(term) } else { Err(FrameError::Field("term")) })
}

fn flag(input: &mut Bytes) -> Result<bool, FrameError> {
    match input.try_get_u8().map_err(|_| FrameError::Length)? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(FrameError::Field("flag")),
    }
}

fn body(input: &mut Bytes, kind: u8, term: Term) -> Result<Body, FrameError> {
    Ok(match kind {
        1 => {
            let (prev, prev_term, commit) = (index(input)?, term_of_entry(input)?, index(input)?);
            Body::Append {
                prev,
                prev_term,
                commit,
                entries: entries(input, prev, prev_term, term)?,
            }
        }
        2 => Body::AppendReply {
            index: index(input)?,
            commit: index(input)?,
            refused: flag(input)?,
            hint: index(input)?,
            hint_term: term_of_entry(input)?,
        },
        3 => Body::Vote(candidacy(input)?),
        4 => Body::PreVote(candidacy(input)?),
        5 => Body::VoteReply(ballot(input)?),
        6 => Body::PreVoteReply(ballot(input)?),
        7 => Body::Heartbeat { commit: index(input)?, round: number(input)? },
        8 => Body::HeartbeatReply { commit: index(input)?, round: number(input)? },
        9 => Body::Snapshot(snapshot(input, term)?),
        10 => Body::TimeoutNow,
        11 => Body::Quiet { boot: number(input)?, heard: number(input)? },
        12 => Body::Join,
        _ => return Err(FrameError::Field("kind")),
    })
}

fn candidacy(input: &mut Bytes) -> Result<Candidacy, FrameError> {
    Ok(Candidacy {
        last: index(input)?,
        last_term: term_of_entry(input)?,
        commit: index(input)?,
        commit_term: term_of_entry(input)?,
        transfer: flag(input)?,
        priority: input.try_get_i64_le().map_err(|_| FrameError::Length)?,
    })
}

fn ballot(input: &mut Bytes) -> Result<Ballot, FrameError> {
    Ok(Ballot { refused: flag(input)?, commit: index(input)?, commit_term: term_of_entry(input)? })
}

fn entries(
    input: &mut Bytes,
    prev: Index,
    prev_term: Term,
    frame_term: Term,
) -> Result<Vec<Entry>, FrameError> {
    // the library takes term 0 for that of any entry behind the end of its log
    if (prev == 0) != (prev_term == 0) {
        return Err(FrameError::Field("term"));
    }
    let count = input.try_get_u32_le().map_err(|_| FrameError::Length)? as usize;
    if count > input.remaining() / ENTRY_HEADER_BYTES {
        return Err(FrameError::Length);
    }
    let mut entries = Vec::with_capacity(count);
    let mut last_term = prev_term;
    for index in prev + 1..=prev + count as u64 {
        let term = number(input)?;
        if term == 0 || term < last_term || term > frame_term {
            return Err(FrameError::Field("term"));
        }
        last_term = term;
        let kind = match input.try_get_u8().map_err(|_| FrameError::Length)? {
            1 => EntryKind::Data,
            2 => EntryKind::Voters,
            _ => return Err(FrameError::Field("kind of an entry")),
        };
        let bytes = input.try_get_u32_le().map_err(|_| FrameError::Length)? as usize;
        if bytes > input.remaining() || bytes > ENTRY_BYTES_MAX {
            return Err(FrameError::Length);
        }
        let data = input.split_to(bytes);
        if kind == EntryKind::Voters && VoterChange::decode(&data).is_none() {
            return Err(FrameError::Field("change of voters"));
        }
        entries.push(Entry { index, term, kind, data });
    }
    Ok(entries)
}

fn snapshot(input: &mut Bytes, frame_term: Term) -> Result<Snapshot, FrameError> {
    let (index, term) = (index(input)?, term_of_entry(input)?);
    if index == 0 || term == 0 || term > frame_term {
        return Err(FrameError::Field("snapshot"));
    }
    let voters = get_voters(input)?;
    let data = input.split_to(input.remaining());
    if data.len() > SNAPSHOT_BYTES_MAX {
        return Err(FrameError::Length);
    }
    Ok(Snapshot { index, term, voters, data })
}

/// Reads what [`put_voters`] wrote; what follows stays in `input`.
///
/// # Errors
/// When it is cut short, or no group can have such sets.
pub fn get_voters(input: &mut Bytes) -> Result<Voters, FrameError> {
    let mut sets = [const { Vec::new() }; 4];
    for set in &mut sets {
        let count = usize::from(input.try_get_u8().map_err(|_| FrameError::Length)?);
        if count > REPLICAS_MAX {
            return Err(FrameError::Field("voters"));
        }
        for _ in 0..count {
            set.push(ReplicaId::from_raw(number(input)?).ok_or(FrameError::Field("voters"))?);
        }
    }
    let [voters, outgoing, learners, learners_next] = sets;
    let voters = Voters { voters, outgoing, learners, learners_next, auto_leave: flag(input)? };
    if voters.is_valid() { Ok(voters) } else { Err(FrameError::Field("voters")) }
}
