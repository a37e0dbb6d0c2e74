//! This monitor's replica of the state, where there are several: its log, and what of it is
//! committed.
//!
//! Contract: no socket and no thread. The owner brings frames and time, carries out what
//! [`Replica::drive`] gives, and writes what [`Replica::take_unkept`] hands out, on an I/O thread.
//!
//! Rule: CommitPublish - [`Replica::state`] is what is committed; nothing else is published or
//! answered. Rule: HardSync - `consensus` sends what depends on a promise only when
//! [`Replica::kept`] has said that it is on the disk. Rule: SnapOrder - the steps of
//! `consensus_log`. Rule: BootQuiet - a host that opens is quiet by itself. Rule: NewIdentity - a
//! directory without a log becomes a replica only in a cluster that begins ([`Replica::found`]), or
//! under a number that its node never had ([`Replica::join`]).
//!
//! An entry is a [`Change`] in postcard, a snapshot a [`Group`] in postcard.

use crate::random::random_u128;
use bytes::Bytes;
use cluster::{ControlError, MonitorState, StateDelta};
use consensus::{
    AskError, Config, Frame, GroupId, Host, INCARNATION_MAX, NodeId, Outcome, Output, Persist,
    Recovered, ReplicaId, Role, Status, Ticket, Voters,
};
use consensus_log::{LogConfig, LogError, LogStore};
use protocol::ClusterId;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The monitors' group.
const GROUP: GroupId = GroupId(0);
/// Bytes of changes after which the whole state is written: they are in memory until then.
const SNAPSHOT_AFTER_BYTES: usize = 1 << 20;
const LOG: LogConfig = LogConfig { segment_bytes: 16 << 20, bytes_max: 64 << 20 };
/// The incarnation of the monitors that a cluster begins with.
const FIRST_INCARNATION: u64 = 1;

/// What is committed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Group {
    /// The random numbers of the directories in which the cluster began.
    pub birth: Vec<u128>,
    /// None until the first leader has made the cluster.
    pub state: Option<MonitorState>,
}

/// What an entry holds.
#[derive(Serialize, Deserialize)]
enum Change {
    /// The cluster as it is made. Without effect if there is one.
    Begin(Box<MonitorState>),
    /// The state is changed.
    Delta(StateDelta),
}

/// What comes of driving a replica, in order.
#[derive(Debug)]
pub(super) enum Happened {
    /// To be sent.
    Send(NodeId, Frame),
    /// The committed state is another one.
    State,
    /// It leads, or follows, from now on.
    Role(Role),
    /// What was asked is settled.
    Settled(Ticket, Outcome),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Replica {
    dir: PathBuf,
    id: ReplicaId,
    host: Host,
    /// Absent while something is written.
    store: Option<LogStore>,
    unkept: Vec<Persist>,
    group: Group,
    /// Of all changes since the last snapshot.
    change_bytes: usize,
    wants_snapshot: bool,
}

/// The cluster that began in directories with these numbers.
pub(super) fn cluster_of(birth: &[u128]) -> ClusterId {
    ClusterId::new(birth.iter().fold(0, |all: u128, nonce| all.rotate_left(1) ^ nonce).max(1))
}

impl Replica {
    /// Does the directory hold a replica?
    pub fn exists(dir: &Path) -> Result<bool, ControlError> {
        LogStore::replica_in(dir).map(|replica| replica.is_some()).map_err(failed)
    }

    /// Makes the first replica of a node, in a cluster that begins: all of `birth` are its voters.
    pub fn found(dir: &Path, node: NodeId, birth: Vec<u128>) -> Result<(), ControlError> {
        let first = |node| ReplicaId::new(NodeId(node), FIRST_INCARNATION).expect("it is not 0");
        let voters = Voters::of((0..birth.len() as u16).map(first));
        let group = Group { birth, state: None };
        let recovered = Recovered::first(GROUP, voters, protocol::encode(&group));
        LogStore::create(dir, first(node.0), &[recovered], LOG).map_err(failed)
    }

    /// Makes a replica that the others tell everything, in the place of the one that the node had.
    pub fn join(dir: &Path, node: NodeId) -> Result<(), ControlError> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let newer = u64::try_from(since).unwrap_or(u64::MAX);
        let incarnation = newer.clamp(FIRST_INCARNATION + 1, INCARNATION_MAX);
        let replica = ReplicaId::new(node, incarnation).expect("it was clamped");
        LogStore::create(dir, replica, &[Recovered::blank(GROUP)], LOG).map_err(failed)
    }

    /// Opens the directory; `birth`: what is known of the beginning if the log knows nothing yet.
    pub fn open(
        dir: &Path,
        node: NodeId,
        count: u16,
        birth: Vec<u128>,
        now: Duration,
    ) -> Result<Self, ControlError> {
        let (store, mut recovered) = LogStore::open(dir, &[GROUP], LOG).map_err(failed)?;
        let replica = store.replica();
        if replica.node() != node {
            return Err(failed(format!(
                "{} is that of monitor.{}, and this one is monitor.{} of the list: all monitors need the list in one \
                 order",
                dir.display(),
                replica.node().0,
                node.0
            )));
        }
        let group = match &recovered[0].snapshot {
            Some(snapshot) => decode(&snapshot.data).map_err(failed)?,
            None => Group { birth, state: None },
        };
        let boot = (random_u128() as u64).max(1);
        let peers = (0..count).map(NodeId).filter(|peer| *peer != node).collect();
        let config = Config { replica, peers, boot, seed: boot, rules: Default::default() };
        let host = Host::open(config, vec![recovered.swap_remove(0)], now).map_err(failed)?;
        let (dir, store) = (dir.to_path_buf(), Some(store));
        let (unkept, change_bytes, wants_snapshot) = (Vec::new(), 0, false);
        Ok(Self { dir, id: replica, host, store, unkept, group, change_bytes, wants_snapshot })
    }

    /// Where it lies.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Which replica it is.
    pub fn id(&self) -> ReplicaId {
        self.id
    }

    /// The committed state; none before the cluster is made.
    pub fn state(&self) -> Option<&MonitorState> {
        self.group.state.as_ref()
    }

    /// Of the directories in which the cluster began; empty if it is not known.
    pub fn birth(&self) -> &[u128] {
        &self.group.birth
    }

    /// Another monitor has told what it knows of the beginning.
    pub fn learn_birth(&mut self, birth: &[u128], count: usize) {
        if self.group.birth.is_empty() && birth.len() == count {
            self.group.birth = birth.to_vec();
        }
    }

    /// How it stands.
    pub fn status(&self) -> Status {
        self.host.status(GROUP).expect("the host was opened with this group")
    }

    /// Whom it takes for the leader.
    pub fn leader(&self) -> Option<NodeId> {
        match self.status().role {
            Role::Leader { .. } => None,
            Role::Follower { leader } => leader.map(ReplicaId::node),
        }
    }

    /// A frame of another node came.
    pub fn step(&mut self, from: NodeId, frame: &Frame, now: Duration) {
        self.host.step(from, frame, now);
    }

    /// Time goes on.
    pub fn tick(&mut self, now: Duration) {
        self.host.tick(now);
    }

    /// Proposes what leads from the committed state to this one.
    pub fn propose(&mut self, next: &MonitorState) -> Result<Ticket, AskError> {
        let change = match &self.group.state {
            None => Change::Begin(Box::new(next.clone())),
            Some(state) => Change::Delta(StateDelta::between(state, next)),
        };
        self.host.propose(GROUP, protocol::encode(&change))
    }

    /// Rule: ConfirmRenew - asks whether it still leads.
    pub fn confirm(&mut self, now: Duration) -> Result<Ticket, AskError> {
        self.host.confirm(GROUP, now)
    }

    /// Gives up leading in favour of another one, if it leads.
    pub fn hand_over(&mut self) {
        self.host.hand_over(GROUP);
    }

    /// What has happened, to be carried out in this order.
    ///
    /// # Errors
    /// The log does not fit the state: this replica has diverged, or what it was told is damaged,
    /// and must not go on.
    pub fn drive(&mut self) -> Result<Vec<Happened>, ControlError> {
        let mut happened = Vec::new();
        loop {
            let outputs: Vec<_> = self.host.outputs().collect();
            if outputs.is_empty() && !self.snapshot() {
                return Ok(happened);
            }
            for output in outputs {
                match output {
                    Output::Send { to, frame } => happened.push(Happened::Send(to, frame)),
                    Output::Persist(persist) => self.unkept.push(persist),
                    Output::Committed { entries, .. } => {
                        for entry in entries {
                            self.change_bytes += entry.data.len();
                            self.apply(&entry.data)?;
                        }
                        happened.push(Happened::State);
                    }
                    Output::Restored { data, .. } => {
                        self.group = decode(&data).map_err(failed)?;
                        self.change_bytes = 0;
                        happened.push(Happened::State);
                    }
                    Output::SnapshotWanted { .. } => self.wants_snapshot = true,
                    Output::Role { role, .. } => happened.push(Happened::Role(role)),
                    Output::Settled { ticket, outcome } => {
                        happened.push(Happened::Settled(ticket, outcome));
                    }
                }
            }
        }
    }

    fn apply(&mut self, entry: &[u8]) -> Result<(), ControlError> {
        let change = protocol::decode::<Change>("change of the monitors' state", entry);
        match (change.map_err(failed)?, &mut self.group.state) {
            (Change::Begin(state), none @ None) => {
                state.check_invariants().map_err(failed)?;
                *none = Some(*state);
            }
            (Change::Begin(_), Some(_)) => {}
            (Change::Delta(delta), Some(state)) => delta.apply(state).map_err(failed)?,
            (Change::Delta(_), None) => {
                return Err(failed("a change of a cluster that was never made"));
            }
        }
        Ok(())
    }

    /// Writes the whole state if it is time; the log before it goes. True: it is being written.
    fn snapshot(&mut self) -> bool {
        if !self.wants_snapshot && self.change_bytes <= SNAPSHOT_AFTER_BYTES {
            return false;
        }
        let (applied, data) = (self.status().applied, protocol::encode(&self.group));
        self.wants_snapshot = false;
        let begun = self.host.snapshot(GROUP, applied, data);
        if begun {
            self.change_bytes = 0;
        }
        begun
    }

    /// What is to be written now, and where; [`Replica::kept`] brings the store back.
    pub fn take_unkept(&mut self) -> Option<(LogStore, Vec<Persist>)> {
        if self.unkept.is_empty() {
            return None;
        }
        Some((self.store.take()?, std::mem::take(&mut self.unkept)))
    }

    /// What came of it. False: the log takes nothing more, and has to be opened again. What failed
    /// otherwise is written again with what follows.
    pub fn kept(
        &mut self,
        store: LogStore,
        mut persists: Vec<Persist>,
        result: &Result<(), LogError>,
        now: Duration,
    ) -> bool {
        let goes_on = !store.is_poisoned();
        self.store = Some(store);
        match (result, persists.last()) {
            (Ok(()), Some(last)) => self.host.persisted(last.number, now),
            (Ok(()), None) => {}
            (Err(_), _) => {
                persists.append(&mut self.unkept);
                self.unkept = persists;
            }
        }
        goes_on
    }
}

fn decode(data: &Bytes) -> Result<Group, String> {
    let group: Group =
        protocol::decode("monitors' state", data).map_err(|error| error.to_string())?;
    group.state.iter().try_for_each(MonitorState::check_invariants)?;
    Ok(group)
}

fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ControlError {
    ControlError::Log(error.into())
}
