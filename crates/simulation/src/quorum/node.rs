//! One node: a host with its disk, clock and registers.

use super::disk::Disk;
use super::world::groups;
use bytes::Bytes;
use consensus::{
    Config, Entry, Frame, GroupId, Host, NodeId, OpenError, Output, Persist, ReplicaId, Status,
    Step, Ticket,
};
use fastrand::Rng;
use protocol::Rules;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Duration;

/// A register: the last value written, and a digest of all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct App {
    /// The last entry in it.
    pub index: u64,
    /// The last value.
    pub value: u64,
    digest: u64,
}

impl App {
    /// For a snapshot.
    pub fn encode(self) -> Bytes {
        [self.index, self.value, self.digest]
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect()
    }

    /// From a snapshot.
    pub fn decode(data: &Bytes) -> Self {
        let (numbers, _) = data.as_chunks::<8>();
        let number = |at: usize| numbers.get(at).map_or(0, |bytes| u64::from_le_bytes(*bytes));
        Self { index: number(0), value: number(1), digest: number(2) }
    }

    /// A snapshot may be of a place where no value was written.
    pub fn without_index(self) -> (u64, u64) {
        (self.value, self.digest)
    }

    /// The next entry.
    pub fn apply(&mut self, entry: &Entry) {
        assert!(
            entry.index > self.index,
            "entry {} was given out before {}",
            self.index,
            entry.index
        );
        self.index = entry.index;
        self.value =
            entry.data.as_chunks::<8>().0.first().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        self.digest =
            (self.digest ^ self.value).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    }
}

/// A node.
pub struct Node {
    id: NodeId,
    count: u16,
    rules: Rules,
    incarnation: u64,
    host: Option<Host>,
    disk: Disk,
    /// What is to be written, and how much of the first is done.
    writes: VecDeque<(Persist, VecDeque<Step>)>,
    /// Its registers.
    pub apps: BTreeMap<GroupId, App>,
    /// How far its clock is ahead.
    pub skew: Duration,
    /// Its process is stopped, or its disk slow, until then.
    pub stopped_until: Duration,
    /// Its disk does nothing until then.
    pub slow_until: Duration,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.replica())?;
        groups().filter_map(|group| self.status(group)).try_for_each(|status| {
            let Status { term, last, applied, quiet, role, voters } = status;
            write!(f, "; {role:?}, term {term}, last {last}, applied {applied}")?;
            write!(
                f,
                "{}, {:?} {:?}",
                if quiet { ", quiet" } else { "" },
                voters.voters,
                voters.outgoing
            )?;
            write!(f, " {:?}", voters.learners)
        })
    }
}

impl Node {
    /// One that does not run yet.
    pub fn new(id: NodeId, count: u16, disk: Disk, rules: Rules) -> Self {
        Self {
            id,
            count,
            rules,
            incarnation: 1,
            host: None,
            disk,
            writes: VecDeque::new(),
            apps: BTreeMap::new(),
            skew: Duration::ZERO,
            stopped_until: Duration::ZERO,
            slow_until: Duration::ZERO,
        }
    }

    /// Which replica it has.
    pub fn replica(&self) -> ReplicaId {
        ReplicaId::new(self.id, self.incarnation).expect("incarnations begin with 1")
    }

    /// Does its process live?
    pub fn runs(&self) -> bool {
        self.host.is_some()
    }

    /// Begins with what the disk holds.
    pub fn start(&mut self, boot: u64, now: Duration) -> Result<(), OpenError> {
        let peers = (0..self.count).map(NodeId).filter(|peer| *peer != self.id).collect();
        let seed = u64::from(self.id.0) + boot * 8;
        let config = Config { replica: self.replica(), peers, boot, seed, rules: self.rules };
        let recovered = self.disk.recover(groups());
        let data = |snapshot: &consensus::Snapshot| App::decode(&snapshot.data);
        self.apps =
            recovered.iter().filter_map(|r| Some((r.group, data(r.snapshot.as_ref()?)))).collect();
        self.host = Some(Host::open(config, recovered, now + self.skew)?);
        (self.stopped_until, self.slow_until) = (Duration::ZERO, Duration::ZERO);
        Ok(())
    }

    /// The process dies; with these, the machine loses its power.
    pub fn stop(&mut self, power: Option<&mut Rng>) {
        self.host = None;
        self.writes.clear();
        if let Some(random) = power {
            self.disk.lose_power(random);
        }
    }

    /// Another disk, with nothing on it.
    pub fn lose_disk(&mut self, renewed: bool) {
        self.disk = Disk::default();
        self.incarnation += u64::from(renewed);
    }

    fn clock(&self, now: Duration) -> Duration {
        now + self.skew
    }

    /// Is the process stopped?
    pub fn is_stopped(&self, now: Duration) -> bool {
        now < self.stopped_until
    }

    /// A frame.
    pub fn step(&mut self, from: NodeId, frame: &Frame, now: Duration) {
        let clock = self.clock(now);
        if let Some(host) = &mut self.host {
            host.step(from, frame, clock);
        }
    }

    /// Time.
    pub fn tick(&mut self, now: Duration) {
        let clock = self.clock(now);
        if let Some(host) = self.host.as_mut().filter(|_| now >= self.stopped_until) {
            host.tick(clock);
        }
    }

    /// To be written.
    pub fn keep(&mut self, persist: Persist) {
        let steps = persist.steps(self.rules).into();
        self.writes.push_back((persist, steps));
    }

    /// Has the disk anything to do, and does it?
    pub fn is_writing(&self, now: Duration) -> bool {
        !self.writes.is_empty() && now >= self.slow_until && !self.is_stopped(now)
    }

    /// One step of the disk. That something is done is told in a step of its own.
    pub fn disk_step(&mut self, now: Duration) {
        let clock = self.clock(now);
        let (Some((persist, steps)), Some(host)) = (self.writes.front_mut(), &mut self.host) else {
            return;
        };
        match steps.pop_front() {
            Some(step) => self.disk.step(step, persist),
            None => {
                host.persisted(persist.number, clock);
                self.writes.pop_front();
            }
        }
    }

    /// Old records go.
    pub fn trim(&mut self) {
        self.disk.trim();
    }

    /// The state so far is enough.
    pub fn snapshot(&mut self, group: GroupId) -> bool {
        let app = self.apps.get(&group).copied().unwrap_or_default();
        let Some(host) = &mut self.host else { return false };
        let applied = host.status(group).map_or(0, |status| status.applied);
        host.snapshot(group, applied, app.encode())
    }

    /// The leader gives up.
    pub fn hand_over(&mut self, group: GroupId) -> bool {
        self.host.as_mut().is_some_and(|host| host.hand_over(group))
    }

    /// A write.
    pub fn propose(&mut self, group: GroupId, value: u64) -> Option<Ticket> {
        let entry = Bytes::copy_from_slice(&value.to_le_bytes());
        self.host.as_mut()?.propose(group, entry).ok()
    }

    /// A read.
    pub fn confirm(&mut self, group: GroupId, now: Duration) -> Option<Ticket> {
        let clock = self.clock(now);
        self.host.as_mut()?.confirm(group, clock).ok()
    }

    /// A read that asks nobody.
    pub fn read_under_lease(&self, group: GroupId, now: Duration) -> Option<u64> {
        let until = self.host.as_ref()?.lease_until(group)?;
        (self.clock(now) < until && !self.is_stopped(now))
            .then(|| self.apps.get(&group).map_or(0, |app| app.value))
    }

    /// One group.
    pub fn status(&self, group: GroupId) -> Option<Status> {
        self.host.as_ref()?.status(group)
    }

    /// What the host wants.
    pub fn outputs(&mut self) -> Vec<Output> {
        self.host.as_mut().map(|host| host.outputs().collect()).unwrap_or_default()
    }
}
