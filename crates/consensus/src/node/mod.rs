//! One group's replica around the library: this module is the only one that names it.
//!
//! Contract: what arrives here went through [`crate::guard`], so nothing from outside reaches one
//! of the library's assertions. Everything that it wants written goes out as a [`Write`], in order,
//! and comes back through [`Node::written`]. Its timeouts are drawn from the replica's own seed, so
//! that a walk of the simulator is the same each time.

mod convert;

use crate::frame::Frame;
use crate::memlog::MemLog;
use crate::types::{
    ENTRY_BYTES_MAX, Entry, EntryKind, GroupId, HardState, Index, ReplicaId, Snapshot, Term,
    VoterChange, Voters,
};
use bytes::Bytes;
use convert::{from_conf_state, from_entry, from_snapshot, to_change, to_frame, to_message};
use protocol::{Rule, Rules};
use raft::eraftpb::{self as pb, MessageType};
use raft::{ProgressState, RawNode, SnapshotStatus, StateRole};
use std::collections::VecDeque;

/// Ticks between heartbeats.
pub(crate) const HEARTBEAT_TICKS: u64 = 2;
/// Ticks without a leader before a replica stands for election, at least.
pub(crate) const ELECTION_TICKS_MIN: u64 = 10;
/// Fewer ticks than this.
pub(crate) const ELECTION_TICKS_MAX: u64 = 20;
/// Bytes of entries in one frame, about. An entry that is larger has one of its own.
const APPEND_BYTES_MAX: u64 = 1 << 20;
/// Frames with entries on their way to one replica.
const APPENDS_MAX: usize = 64;
/// Bytes proposed and not committed: beyond it proposals are refused.
const UNCOMMITTED_BYTES_MAX: u64 = 4 * ENTRY_BYTES_MAX as u64;
/// Ticks after which a snapshot that nobody acknowledged counts as lost.
const SNAPSHOT_TICKS: u64 = 2 * ELECTION_TICKS_MAX;

/// What the library wants written, of one group.
#[derive(Debug, Default)]
pub(crate) struct Write {
    pub snapshot: Option<Snapshot>,
    /// Is it the leader's?
    pub restarts: bool,
    pub append: Vec<Entry>,
    pub hard: Option<HardState>,
}

impl Write {
    fn is_empty(&self) -> bool {
        self.snapshot.is_none() && self.append.is_empty() && self.hard.is_none()
    }
}

/// What a node puts out.
#[derive(Debug)]
pub(crate) enum Event {
    Send(Frame),
    /// Under this number of the node's own.
    Write(u64, Write),
    Restored(Index, Bytes),
    Committed(Vec<Entry>),
    SnapshotWanted,
    /// An answered round, and the index that was committed when it began.
    Round(u64, Index),
}

/// Something written and not on the disk yet, and what waits for it.
#[derive(Debug)]
struct Pending {
    number: u64,
    /// The library's numbers that are done with it.
    ready: Option<u64>,
    frames: Vec<Frame>,
    /// The library may not become leader, or vote itself, before such a one is done.
    has_entries: bool,
    restores: Option<(Index, Bytes)>,
    /// The library's log in memory is cut here.
    cuts: Option<Snapshot>,
    /// Committed up to here on the disk, so that a change of voters can take effect.
    commit: Index,
}

/// One replica of one group.
pub(crate) struct Node {
    group: GroupId,
    id: ReplicaId,
    rules: Rules,
    raw: RawNode<MemLog>,
    seed: u64,
    /// Times that it stood for election.
    campaigns: u64,
    voters: Voters,
    /// The sets since the snapshot: from which entry on.
    history: Vec<(Index, Voters)>,
    applied: Index,
    to_apply: VecDeque<Entry>,
    /// Committed up to here on the disk.
    durable_commit: Index,
    pending: VecDeque<Pending>,
    next_write: u64,
    is_cutting: bool,
    /// Ticks since the oldest pending write began.
    write_ticks: u64,
    snapshot_ticks: Vec<(u64, u64)>,
    events: Vec<Event>,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let raft = &self.raw.raft;
        let (state, term, last) = (raft.state, raft.term, raft.raft_log.last_index());
        write!(f, "{} {state:?} term {term} log {}..={last} ", self.id, self.log().first())?;
        write!(f, "committed {} applied {}", raft.raft_log.committed, self.applied)
    }
}

impl Node {
    /// The log must have been checked: no hole, promises not behind it.
    pub fn new(
        group: GroupId,
        id: ReplicaId,
        log: MemLog,
        seed: u64,
        rules: Rules,
    ) -> Result<Self, String> {
        let voters =
            log.snapshot.as_ref().map(|snapshot| snapshot.voters.clone()).unwrap_or_default();
        let (applied, durable_commit) = (log.base().0, log.hard.commit);
        let config = raft::Config {
            id: id.raw(),
            election_tick: ELECTION_TICKS_MIN as usize,
            min_election_tick: ELECTION_TICKS_MIN as usize,
            max_election_tick: ELECTION_TICKS_MAX as usize,
            heartbeat_tick: HEARTBEAT_TICKS as usize,
            applied,
            max_size_per_msg: APPEND_BYTES_MAX,
            max_inflight_msgs: APPENDS_MAX,
            max_uncommitted_size: UNCOMMITTED_BYTES_MAX,
            check_quorum: true,
            pre_vote: true,
            ..raft::Config::default()
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let raw = RawNode::new(&config, log, &logger).map_err(|error| error.to_string())?;
        let mut node = Self {
            group,
            id,
            rules,
            raw,
            seed,
            campaigns: 0,
            history: vec![(applied, voters.clone())],
            voters,
            applied,
            to_apply: VecDeque::new(),
            durable_commit,
            pending: VecDeque::new(),
            next_write: 1,
            is_cutting: false,
            write_ticks: 0,
            snapshot_ticks: Vec::new(),
            events: Vec::new(),
        };
        node.pump();
        Ok(node)
    }

    pub fn id(&self) -> ReplicaId {
        self.id
    }

    pub fn voters(&self) -> &Voters {
        &self.voters
    }

    pub fn term(&self) -> Term {
        self.raw.raft.term
    }

    pub fn applied(&self) -> Index {
        self.applied
    }

    pub fn last(&self) -> Index {
        self.raw.raft.raft_log.last_index()
    }

    pub fn leads(&self) -> bool {
        self.raw.raft.state == StateRole::Leader
    }

    /// Has it given out everything that earlier leaders committed?
    pub fn leads_whole(&self) -> bool {
        self.leads() && self.log_term(self.applied) == Some(self.term())
    }

    pub fn leader(&self) -> Option<ReplicaId> {
        ReplicaId::from_raw(self.raw.raft.leader_id)
    }

    /// Are entries, or a leader's snapshot, on their way to the disk?
    pub fn is_writing(&self) -> bool {
        self.pending.iter().any(|pending| pending.has_entries || pending.restores.is_some())
    }

    /// While a leader's snapshot is on its way to the disk the replica hears and says nothing.
    pub fn is_deaf(&self) -> bool {
        self.pending.iter().any(|pending| pending.restores.is_some())
    }

    fn log(&self) -> &MemLog {
        self.raw.store()
    }

    fn log_term(&self, index: Index) -> Option<Term> {
        self.raw.raft.raft_log.term(index).ok().filter(|term| *term > 0)
    }

    /// One tick of the library's clock.
    pub fn tick(&mut self) {
        self.write_ticks += u64::from(!self.pending.is_empty());
        // a leader goes on; anybody else stands only with all that it has on its disk
        if self.is_deaf() || (!self.leads() && self.is_writing()) {
            return;
        }
        let stood = !self.leads();
        self.campaigns += u64::from(self.raw.tick() && stood);
        self.retry_snapshots();
        self.pump();
    }

    /// The library waits for ever for the answer to a snapshot.
    fn retry_snapshots(&mut self) {
        let prs = self.raw.raft.prs();
        let is_sending = |id: &ReplicaId| {
            prs.get(id.raw()).is_some_and(|progress| progress.state == ProgressState::Snapshot)
        };
        let sending: Vec<u64> = self.voters.all().filter(is_sending).map(ReplicaId::raw).collect();
        self.snapshot_ticks
            .retain(|(id, _)| self.raw.raft.state == StateRole::Leader && sending.contains(id));
        for id in sending {
            match self.snapshot_ticks.iter_mut().find(|(other, _)| *other == id) {
                Some((_, ticks)) => *ticks += 1,
                None => self.snapshot_ticks.push((id, 0)),
            }
        }
        for (id, ticks) in &mut self.snapshot_ticks {
            if *ticks >= SNAPSHOT_TICKS {
                *ticks = 0;
                self.raw.report_snapshot(*id, SnapshotStatus::Failure);
            }
        }
    }

    /// Ticks that the oldest write takes already.
    pub fn write_ticks(&self) -> u64 {
        self.write_ticks
    }

    /// A frame that the guard let through.
    pub fn step(&mut self, frame: &Frame) {
        let Some(message) = to_message(self.id, frame) else { return };
        // what it refuses (an answer of a replica that takes no part) has no effect
        let _ = self.raw.step(message);
        self.pump();
    }

    /// Appends an entry. `None`: not the leader, or too much is not committed yet.
    pub fn propose(&mut self, data: Bytes) -> Option<(Index, Term)> {
        self.propose_entry(pb::Entry { data, ..pb::Entry::default() })
    }

    /// Proposes a change of voters. `None`: not the leader, or another change is under way.
    pub fn propose_change(&mut self, change: &VoterChange) -> Option<(Index, Term)> {
        let raft = &self.raw.raft;
        if !self.leads() || raft.has_pending_conf() || !self.voters.outgoing.is_empty() {
            return None;
        }
        let before = self.last();
        self.raw.propose_conf_change(change.encode().to_vec(), to_change(change)).ok()?;
        self.proposed(before)
    }

    fn propose_entry(&mut self, entry: pb::Entry) -> Option<(Index, Term)> {
        if !self.leads() {
            return None;
        }
        let before = self.last();
        let mut message = pb::Message::default();
        message.set_msg_type(MessageType::MsgPropose);
        message.set_entries(vec![entry].into());
        self.raw.raft.step(message).ok()?;
        self.proposed(before)
    }

    fn proposed(&mut self, before: Index) -> Option<(Index, Term)> {
        assert_eq!(self.last(), before + 1, "one proposal is one entry");
        let at = (before + 1, self.term());
        self.pump();
        Some(at)
    }

    /// Begins a round of questions: does a majority still follow? False: it cannot ask yet.
    pub fn begin_round(&mut self, round: u64) -> bool {
        if !self.leads() || !self.raw.raft.commit_to_current_term() {
            return false;
        }
        self.raw.read_index(round.to_le_bytes().to_vec());
        self.pump();
        true
    }

    /// Gives up leading, in favour of the voter that has most of the log.
    pub fn hand_over(&mut self) -> bool {
        if !self.leads() || self.raw.raft.lead_transferee.is_some() {
            return false;
        }
        let prs = self.raw.raft.prs();
        let matched = |id: &ReplicaId| {
            let progress = prs.get(id.raw()).filter(|progress| progress.recent_active)?;
            Some((progress.matched, id.raw()))
        };
        let others = self.voters.voters.iter().filter(|id| **id != self.id);
        let Some((_, best)) = others.filter_map(matched).max() else { return false };
        self.raw.transfer_leader(best);
        self.pump();
        true
    }

    /// See [`Candidacy::priority`].
    pub fn set_priority(&mut self, priority: i64) {
        self.raw.set_priority(priority);
    }

    /// Has this replica everything that is committed, as far as the leader knows?
    pub fn has_caught_up(&self, id: ReplicaId) -> bool {
        let raft = &self.raw.raft;
        raft.prs()
            .get(id.raw())
            .is_some_and(|p| p.recent_active && p.matched >= raft.raft_log.committed)
    }

    /// The application's state at `index`, which it has been given out: entries up to it may go.
    /// False if it is not newer than the last, or one is being written.
    pub fn snapshot(&mut self, index: Index, data: Bytes) -> bool {
        let newer = index > self.log().base().0 && index <= self.applied;
        let (true, false, Some(term)) = (newer, self.is_cutting, self.log_term(index)) else {
            return false;
        };
        // all of it is handed to the disk before: applied entries are on the disk
        let voters = self
            .history
            .iter()
            .rev()
            .find(|(from, _)| *from <= index)
            .map(|(_, voters)| voters.clone());
        let snapshot = Snapshot { index, term, voters: voters.unwrap_or_default(), data };
        self.is_cutting = true;
        let write =
            Write { snapshot: Some(snapshot.clone()), hard: Some(self.hard()), ..Write::default() };
        let pending = self.write(write);
        pending.cuts = Some(snapshot);
        true
    }

    fn hard(&self) -> HardState {
        let raft = &self.raw.raft;
        HardState {
            term: raft.term,
            vote: ReplicaId::from_raw(raft.vote),
            commit: raft.raft_log.committed,
        }
    }

    /// Puts a write out and notes it.
    fn write(&mut self, write: Write) -> &mut Pending {
        let number = self.next_write;
        self.next_write += 1;
        let pending = Pending {
            number,
            ready: None,
            frames: Vec::new(),
            has_entries: !write.append.is_empty(),
            restores: None,
            cuts: None,
            commit: write.hard.map_or(0, |hard| hard.commit),
        };
        self.events.push(Event::Write(number, write));
        self.pending.push_back(pending);
        self.pending.back_mut().expect("one was just pushed")
    }

    /// Everything up to this number of [`Event::Write`] is on the disk.
    pub fn written(&mut self, number: u64) {
        while self.pending.front().is_some_and(|pending| pending.number <= number) {
            let Some(pending) = self.pending.pop_front() else { break };
            self.write_ticks = 0;
            self.durable_commit = self.durable_commit.max(pending.commit);
            if let Some(ready) = pending.ready {
                self.raw.on_persist_ready(ready);
            }
            if let Some((index, data)) = pending.restores {
                self.to_apply.clear();
                self.applied = index;
                self.raw.advance_apply_to(index);
                self.events.push(Event::Restored(index, data));
            }
            if let Some(snapshot) = pending.cuts {
                self.is_cutting = false;
                self.cut(snapshot);
            }
            self.events.extend(pending.frames.into_iter().map(Event::Send));
        }
        self.pump();
    }

    /// A snapshot of this replica's own is on the disk. A leader's may have come in between.
    fn cut(&mut self, snapshot: Snapshot) {
        if snapshot.index <= self.log().base().0 {
            return;
        }
        let before = self.history.iter().rposition(|(from, _)| *from <= snapshot.index);
        self.history.drain(..before.unwrap_or(0));
        self.raw.mut_store().cut(snapshot);
    }

    /// What it has put out since the last call.
    pub fn events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Carries out all that the library wants.
    fn pump(&mut self) {
        while !self.is_deaf() {
            if self.raw.has_ready() {
                self.take_ready();
            }
            if self.is_deaf() {
                break;
            }
            let applied = self.applied;
            self.apply();
            if !self.raw.has_ready() && self.applied == applied {
                break;
            }
        }
        if self.log().is_snapshot_wanted.take() && !self.is_cutting {
            self.events.push(Event::SnapshotWanted);
        }
        self.set_timeout();
    }

    fn take_ready(&mut self) {
        let mut ready = self.raw.ready();
        let snapshot =
            Some(ready.snapshot()).filter(|snapshot| !snapshot.is_empty()).map(from_snapshot);
        let append: Vec<Entry> = ready.entries().iter().map(from_entry).collect();
        let hard = ready.must_sync().then(|| self.hard());
        if let Some(snapshot) = &snapshot {
            self.voters = snapshot.voters.clone();
            self.history = vec![(snapshot.index, snapshot.voters.clone())];
            self.raw.mut_store().restore(snapshot.clone());
        }
        self.raw.mut_store().append(&append);
        let now: Vec<_> =
            ready.take_messages().iter().filter_map(|m| to_frame(self.group, self.id, m)).collect();
        self.events.extend(now.into_iter().map(Event::Send));
        self.to_apply.extend(ready.take_committed_entries().iter().map(from_entry));
        for state in ready.take_read_states() {
            let round = state.request_ctx.try_into().map_or(0, u64::from_le_bytes);
            self.events.push(Event::Round(round, state.index));
        }
        let frames: Vec<_> = ready
            .take_persisted_messages()
            .iter()
            .filter_map(|m| to_frame(self.group, self.id, m))
            .collect();
        let number = ready.number();
        self.raw.advance_append_async(ready);
        let restarts = snapshot.is_some();
        self.hold(number, Write { snapshot, restarts, append, hard }, frames);
    }

    /// Rule: HardSync - what the library wants sent only behind its promises waits for them here.
    fn hold(&mut self, number: u64, write: Write, mut frames: Vec<Frame>) {
        if !self.rules.on(Rule::HardSync) {
            self.events.extend(frames.drain(..).map(Event::Send));
        }
        if write.is_empty() && self.pending.is_empty() {
            self.raw.on_persist_ready(number);
            self.events.extend(frames.into_iter().map(Event::Send));
            return;
        }
        if write.is_empty() {
            let last = self.pending.back_mut().expect("it is not empty");
            last.ready = Some(number);
            last.frames.extend(frames);
            return;
        }
        let restores =
            write.snapshot.as_ref().map(|snapshot| (snapshot.index, snapshot.data.clone()));
        let pending = self.write(write);
        (pending.ready, pending.frames, pending.restores) = (Some(number), frames, restores);
    }

    /// Gives out what is committed. A change of voters takes effect only when the disk knows that
    /// it is committed: after a restart this replica would otherwise act under voters that others
    /// have left behind.
    fn apply(&mut self) {
        let mut given = Vec::new();
        while let Some(entry) = self.to_apply.pop_front() {
            let index = entry.index;
            if entry.kind == EntryKind::Voters && self.durable_commit < index {
                self.to_apply.push_front(entry);
                if !self.pending.iter().any(|pending| pending.commit >= index) {
                    let hard = Some(self.hard());
                    self.write(Write { hard, ..Write::default() });
                }
                break;
            }
            match entry.kind {
                EntryKind::Voters => self.change(&entry),
                // the first of a term, which the library makes
                EntryKind::Data if entry.data.is_empty() => {}
                EntryKind::Data => given.push(entry),
            }
            self.applied = index;
        }
        if !given.is_empty() {
            self.events.push(Event::Committed(given));
        }
        if self.applied > self.raw.raft.raft_log.applied() {
            self.raw.advance_apply_to(self.applied);
        }
    }

    /// What cannot be done is done by nobody: every replica finds the same.
    fn change(&mut self, entry: &Entry) {
        let Some(change) = VoterChange::decode(&entry.data) else { return };
        if let Ok(state) = self.raw.apply_conf_change(&to_change(&change)) {
            self.voters = from_conf_state(&state);
            self.history.push((entry.index, self.voters.clone()));
        }
    }

    /// In the place of the one that the library draws.
    fn set_timeout(&mut self) {
        let mut mixed = self.seed
            ^ self.id.raw().rotate_left(17)
            ^ self.term().rotate_left(40)
            ^ self.campaigns;
        for _ in 0..2 {
            mixed = (mixed ^ mixed >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            mixed ^= mixed >> 29;
        }
        let ticks = ELECTION_TICKS_MIN + mixed % (ELECTION_TICKS_MAX - ELECTION_TICKS_MIN);
        self.raw.raft.set_randomized_election_timeout(ticks as usize);
    }

    /// What the guard has to know.
    pub fn view(&self) -> crate::guard::View<'_> {
        let log = &self.raw.raft.raft_log;
        crate::guard::View {
            id: self.id,
            term: self.term(),
            leader: self.leader(),
            last: log.last_index(),
            is_writing: self.is_writing() || log.last_index() != log.persisted,
            voters: &self.voters,
        }
    }
}
