//! A node: one shard with its disk, as the core of an OSD drives it (`ec_store::core`).
//!
//! Contract: everything that the core awaits is a step of its own here, so that anything may happen
//! in between: the end of a turn, of a sync, of a trim's two halves, of a question.

use crate::disk::{Disk, ROT, SECTOR, SECTORS, SLOT, Syncing, Tags, crc, number, tags_of};
use crate::rot::Mend;
use crate::way::Way;
use crate::world::{Check, Msg, N, Rep, World, pg_id};
use ec_store::pg::Request;
use ec_store::pg::shard::{Barrier, Lsn, Outcome, PgShard, Source, Step};
use protocol::monitor::ResolveRequest;
use protocol::shard::{AckMessage, ReadRequest, ShardHead, Status};
use protocol::{Epoch, ObjectId};
use std::collections::BTreeSet;

/// What a node has told the monitor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Told {
    /// It has answered in this epoch.
    Peered,
    /// It wants to be written to.
    AskJoin,
    /// It is whole.
    Join,
}

/// An answer that waits for a sync.
#[derive(Debug)]
pub struct Held {
    /// Of the question.
    pub ticket: u64,
    /// What was asked.
    pub request: ResolveRequest,
    /// The sync.
    pub wait: u64,
}

/// Which syncs were asked for and have run, by number, as in `ec_store::core`.
#[derive(Debug, Default)]
pub struct Syncs {
    /// One is to begin at the end of the turn.
    pub wanted: bool,
    all: bool,
    /// The one under way.
    pub running: Option<Syncing>,
    begun: u64,
    done: u64,
}

impl Syncs {
    /// Asks for a sync; gives the number to wait for.
    pub fn want(&mut self, all: bool) -> u64 {
        (self.wanted, self.all) = (true, self.all | all);
        self.begun + 1
    }

    /// Has it ended?
    pub fn is_done(&self, number: u64) -> bool {
        self.done >= number
    }
}

/// A trim under way.
#[derive(Debug)]
pub enum Trim {
    /// The files are synced.
    Files {
        /// The first record that stays.
        upto: Lsn,
        /// The sync.
        wait: u64,
    },
    /// The checkpoint is synced.
    Checkpoint {
        /// The first record that stays.
        upto: Lsn,
        /// Where the checkpoint is.
        checkpoint: Lsn,
        /// The sync.
        wait: u64,
    },
}

/// See the module.
#[derive(Debug)]
pub struct Node {
    /// Its process runs.
    pub run: bool,
    /// The disk.
    pub disk: Disk,
    /// It lost power, or holds nothing, and the monitor may not have heard of it.
    pub lost: bool,
    /// It lost power, and what it finds then is not settled yet.
    pub unsettled: bool,
    /// See `lost`.
    pub blank: bool,
    /// A boot message is under way.
    pub booting: bool,
    /// Before it, those of processes of this node that have died.
    pub stale_boots: usize,
    /// No map before this one is served.
    pub serve_from: Option<Epoch>,
    /// The map that it knows, once it has one.
    pub known: Option<usize>,
    /// The real machine, from the first map on.
    pub shard: Option<PgShard>,
    /// Syncs.
    pub syncs: Syncs,
    /// The trim under way.
    pub trim: Option<Trim>,
    /// The way back under way.
    pub way: Option<Way>,
    /// Answers to the coordinator that wait for a sync.
    pub holdings: Vec<Held>,
    /// What the monitor was told last.
    pub told: Option<(Epoch, Told)>,
    /// A sync failed.
    pub poisoned: bool,
    /// Sectors found damaged, by object.
    pub damaged: BTreeSet<(usize, usize)>,
    /// The repair under way.
    pub mend: Option<Mend>,
    /// Repairs whose pieces did not fit.
    pub mends_failed: usize,
}

impl Node {
    /// A node that does not run.
    pub fn new(disk: Disk, blank: bool) -> Self {
        Self {
            run: false,
            disk,
            lost: false,
            unsettled: false,
            blank,
            booting: false,
            stale_boots: 0,
            serve_from: None,
            known: None,
            shard: None,
            syncs: Syncs::default(),
            trim: None,
            way: None,
            holdings: Vec::new(),
            told: None,
            poisoned: false,
            damaged: BTreeSet::new(),
            mend: None,
            mends_failed: 0,
        }
    }

    /// Asks for what must be synced before a step; gives the number to wait for.
    pub fn barrier(&mut self, step: Step) -> u64 {
        match step.barrier(self.disk.rules) {
            Barrier::Nothing => 0,
            Barrier::Journal => self.syncs.want(false),
            Barrier::Everything => self.syncs.want(true),
        }
    }

    /// Would the end of a turn do anything?
    pub fn has_turn(&self) -> bool {
        let Some(shard) = &self.shard else { return false };
        let sync = self.syncs.wanted && self.syncs.running.is_none() && !self.poisoned;
        self.disk.is_unflushed() || shard.has_acks() || sync
    }

    fn begin_sync(&mut self) {
        let Some(shard) = self.shard.as_mut().filter(|_| !self.poisoned) else { return };
        let all = std::mem::take(&mut self.syncs.all);
        self.syncs.wanted = false;
        self.syncs.begun += 1;
        if shard.is_unsynced() {
            shard.begin_sync();
        }
        self.syncs.running = Some(self.disk.begin_sync(all));
    }

    /// A sync ends well.
    pub fn synced(&mut self) {
        let Some(running) = self.syncs.running.take() else { return };
        self.disk.end_sync(running);
        self.syncs.done = self.syncs.begun;
        if let Some(shard) = self.shard.as_mut().filter(|shard| shard.is_unsynced()) {
            shard.end_sync();
            self.syncs.wanted |= shard.wants_sync();
        }
    }

    /// Can a trim take anything?
    pub fn can_trim(&self) -> bool {
        let Some(shard) = self.shard.as_ref().filter(|_| self.trim.is_none() && !self.poisoned)
        else {
            return false;
        };
        let upto = shard.trim_step().first_unapplied;
        self.disk.oldest().is_some_and(|oldest| upto.is_none_or(|upto| oldest < upto))
    }

    /// Begins a trim.
    pub fn begin_trim(&mut self) {
        let Some(shard) = &self.shard else { return };
        let upto = shard.trim_step().first_unapplied.unwrap_or(self.disk.next());
        let wait = self.barrier(Step::WriteCheckpoint);
        self.trim = Some(Trim::Files { upto, wait });
    }

    /// May the trim go on?
    pub fn trim_is_ready(&self) -> bool {
        match &self.trim {
            Some(Trim::Files { wait, .. } | Trim::Checkpoint { wait, .. }) => {
                self.syncs.is_done(*wait)
            }
            None => false,
        }
    }

    /// The trim goes on. True: it has ended.
    pub fn trim_on(&mut self) -> bool {
        match (self.trim.take(), &mut self.shard) {
            (Some(Trim::Files { upto, .. }), Some(shard)) => {
                let state = shard.prepare_trim(upto);
                let checkpoint = self.disk.push(crate::disk::Stored::Checkpoint(upto, state));
                let wait = self.barrier(Step::Trim);
                self.trim = Some(Trim::Checkpoint { upto, checkpoint, wait });
                false
            }
            (Some(Trim::Checkpoint { upto, checkpoint, .. }), Some(shard)) => {
                shard.commit_trim(upto);
                self.disk.trim(upto, checkpoint);
                true
            }
            _ => false,
        }
    }
}

/// Why an object cannot be read at a shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unreadable {
    /// This sector is rotten.
    Rotten(usize),
    /// For no good reason.
    Wrong(String),
}

/// Reads a range as a session sees it.
///
/// # Errors
/// It fails its checksums.
pub fn read_here(shard: &mut PgShard, disk: &Disk, object: ObjectId) -> Result<Tags, Unreadable> {
    let plan = shard.plan(object, 0..(SECTOR * SECTORS) as u64);
    shard.unpin(object);
    let file = disk.files[number(object)].unwrap_or_default();
    let mut seen = [false; SECTORS];
    let mut tags = [0; SECTORS];
    for (part, source) in &plan.parts {
        let first = part.start as usize / SECTOR;
        let count = (part.end - part.start) as usize / SECTOR;
        for (n, at) in (first..first + count).enumerate() {
            seen[at] = true;
            tags[at] = match source {
                Source::Bytes(bytes) => {
                    tags_of(&bytes[n * SECTOR..(n + 1) * SECTOR]).next().unwrap_or(0)
                }
                Source::Hole => 0,
                Source::Direct(crcs) if crcs[n] == crc(file.tag(at)) => file.tag(at),
                Source::Direct(_) if file.tag(at) == ROT => return Err(Unreadable::Rotten(at)),
                Source::Placed { placed, skip } => {
                    let tag = file.placed_tag(placed, *skip as usize / SECTOR + n);
                    if placed.crcs[n] != crc(tag) {
                        let what = format!("verified: placed bytes of sector {at} are not there");
                        return Err(Unreadable::Wrong(what));
                    }
                    tag
                }
                Source::Direct(_) => {
                    let what = format!("verified: direct bytes of sector {at} are not there");
                    return Err(Unreadable::Wrong(what));
                }
            };
        }
    }
    for at in (0..SECTORS).filter(|at| !seen[*at]) {
        tags[at] = match file.sector(at) {
            Some(tag) => tag,
            None if file.is_rotten(at) => return Err(Unreadable::Rotten(at)),
            None => {
                return Err(Unreadable::Wrong(format!("verified: sector {at} fails its checksum")));
            }
        };
    }
    Ok(tags)
}

fn refused(head: &ShardHead, status: Status) -> AckMessage {
    AckMessage {
        pg: pg_id().to_u64().into(),
        epoch: 0.into(),
        attach: head.attach().get().into(),
        tail: 0.into(),
        durable: 0.into(),
        free: (1 << 30).into(),
        status: status as u8,
        flags: 0,
    }
}

impl World {
    /// A node's process starts.
    pub fn start(&mut self, i: usize) {
        let node = &mut self.nodes[i];
        node.run = true;
        let lacks = node.disk.lacks_direct_bytes(pg_id());
        assert!(
            !lacks || !self.bounds.placed || node.unsettled,
            "no-lost-ack: bytes of a record are gone with the process"
        );
        // such a start is one after a loss of power, whatever else is known of it
        node.lost |= lacks;
        self.boot(i);
    }

    /// A node learns a map: the newest, or an older one that it does not know yet.
    pub fn node_learns(&mut self, i: usize, v: u32) {
        let Some(first) = self.next_map(i) else { return };
        let last = self.maps.len() - 1;
        let known = if v.is_multiple_of(3) { first } else { last };
        let view = self.shard_view(i, known);
        let node = &mut self.nodes[i];
        node.known = Some(known);
        match &mut node.shard {
            Some(shard) => {
                if view.pg.epoch > shard.view().pg.epoch {
                    let way = node.way.take();
                    self.strays.extend(way.and_then(Way::into_call));
                }
                shard.learn(view);
            }
            None => {
                let (replay, bad) = node.disk.replay(pg_id());
                let mut shard = PgShard::restart(view, replay);
                shard.set_direct_bytes_min(if self.bounds.direct {
                    2 * SECTOR as u32
                } else {
                    u32::MAX
                });
                shard.set_slot_bytes(if self.bounds.placed { (SLOT * SECTOR) as u32 } else { 0 });
                shard.set_dirty_objects_max(self.bounds.dirty_max);
                node.shard = Some(shard);
                if bad {
                    self.cover("a restart finds a direct record without its bytes");
                }
            }
        }
        let node = &mut self.nodes[i];
        node.shard
            .as_mut()
            .expect("just made")
            .note_whole(&mut node.disk)
            .expect("deltas are always taken");
        if !self.maps[known].up[i] && !node.booting && !node.poisoned {
            self.cover("a live node finds itself marked down");
            self.boot(i);
        }
    }

    /// The next map that node `i` may learn.
    pub fn next_map(&self, i: usize) -> Option<usize> {
        let node = &self.nodes[i];
        let from = self.index_of(node.serve_from.filter(|_| node.run)?);
        let next = node.known.map_or(from, |known| from.max(known + 1));
        (next < self.maps.len()).then_some(next)
    }

    /// A process dies; the page cache stays.
    pub fn stop(&mut self, i: usize) {
        for s in 0..self.clients.len() {
            self.reset(s, i);
            self.net[s][i].old_req.clear();
        }
        for x in 0..N {
            let way = self.nodes[x].way.as_mut().filter(|_| x != i);
            way.into_iter().for_each(|way| way.member_died(i));
        }
        let node = &mut self.nodes[i];
        let (lost, unsettled, blank) = (node.lost, node.unsettled, node.blank);
        let mut disk = std::mem::take(&mut node.disk);
        disk.crash();
        *node = Node { lost, unsettled, ..Node::new(disk, blank) };
    }

    /// A node's machine loses power.
    pub fn power(&mut self, i: usize, fate: u32) {
        self.stop(i);
        let node = &mut self.nodes[i];
        node.disk.power(fate);
        (node.lost, node.unsettled) = (true, true);
    }

    /// A disk is replaced by an empty one.
    pub fn lose_disk(&mut self, i: usize) {
        self.stop(i);
        let disk = Disk::new(self.rules, self.bounds.records_max, self.bounds.placed);
        self.nodes[i] = Node::new(disk, true);
    }

    /// A sync fails: the daemon serves nothing more.
    pub fn sync_fails(&mut self, i: usize) {
        let node = &mut self.nodes[i];
        if let Some(running) = node.syncs.running.take() {
            node.disk.fail_sync(&running);
            node.poisoned = true;
        }
    }

    /// The end of a turn.
    pub fn turn(&mut self, i: usize) {
        let node = &mut self.nodes[i];
        node.disk.flush();
        node.poisoned |= node.disk.failed;
        node.unsettled &= node.shard.is_none() || node.poisoned;
        let free = if node.disk.full { 0 } else { 1 << 30 };
        let (clients, net, poisoned) = (&self.clients, &mut self.net, node.poisoned);
        if let Some(shard) = &mut node.shard {
            shard.take_acks(free, |id, mut ack| {
                let s = id.get() as usize - 1;
                if poisoned {
                    ack.status = Status::Io as u8;
                }
                if clients[s].run {
                    net[s][i].rep.push_back(Rep::Ack(ack));
                }
            });
        }
        if node.syncs.wanted && node.syncs.running.is_none() && !poisoned {
            node.begin_sync();
        }
    }

    /// Records are applied, and the checker looks which.
    pub fn apply(&mut self, i: usize) -> Check {
        let node = &mut self.nodes[i];
        if let Some(shard) = &mut node.shard {
            // a full disk holds records back, and one that failed poisons
            let _ = shard.apply_some(&mut node.disk, 8 * PgShard::APPLY_BYTES_MIN);
        }
        self.look_at_applied(i)
    }

    /// Shard `i` takes a message of session `s`.
    pub fn deliver(&mut self, s: usize, i: usize, msg: Msg) -> Check {
        let node = &mut self.nodes[i];
        let head = match &msg {
            Msg::Send(Request::Attach(m)) => m.head,
            Msg::Send(Request::Write(m, ..)) => m.head,
            Msg::Send(Request::Mark(m)) => m.head,
            Msg::Read(_, request) => request.head,
        };
        let refusal = if node.poisoned { Status::Io } else { Status::NotActive };
        let Some(shard) = node.shard.as_mut().filter(|_| !node.poisoned) else {
            self.net[s][i].rep.push_back(match msg {
                Msg::Read(id, _) => Rep::Val { id, attach: head.attach().get(), tags: None },
                Msg::Send(_) => Rep::Ack(refused(&head, refusal)),
            });
            return Ok(());
        };
        let taken = match msg {
            Msg::Send(Request::Attach(m)) => shard.attach(&mut node.disk, &m),
            Msg::Send(Request::Write(m, data, _)) => shard.write(&mut node.disk, &m, data),
            Msg::Send(Request::Mark(m)) => Ok(shard.mark(&m)),
            Msg::Read(id, request) => return self.deliver_read(s, i, id, &request),
        };
        let taken = match taken {
            Ok(taken) => taken,
            Err(error) => {
                self.net[s][i].rep.push_back(Rep::Ack(refused(&head, error.status())));
                return Ok(());
            }
        };
        match taken {
            Outcome::Refused(status) => {
                let ack = shard.refusal(head.attach(), status, 1 << 30);
                self.net[s][i].rep.push_back(Rep::Ack(ack));
                self.cover(match status {
                    Status::StaleEpoch => "a shard refuses another epoch",
                    Status::StaleAttach => "a shard refuses another attach",
                    Status::Fenced => "a shard refuses a dead session",
                    _ => "a shard refuses a message",
                });
            }
            Outcome::WantsSync => node.syncs.wanted = true,
            Outcome::Noted => {}
        }
        let node = &self.nodes[i];
        if node.disk.records() > self.bounds.records_max {
            return Err(format!(
                "bounded: the journal of shard {i} holds {} records",
                node.disk.records()
            ));
        }
        Ok(())
    }

    fn deliver_read(&mut self, s: usize, i: usize, id: u64, request: &ReadRequest) -> Check {
        let node = &mut self.nodes[i];
        let Some(shard) = &mut node.shard else { return Ok(()) };
        let object = request.object.into();
        if node.disk.read_fails() {
            let attach = request.head.attach().get();
            self.net[s][i].rep.push_back(Rep::Val { id, attach, tags: None });
            self.cover("a read fails");
            return Ok(());
        }
        let tags = match shard.check_read(request).map(|()| read_here(shard, &node.disk, object)) {
            Ok(Ok(tags)) => Some(tags),
            Ok(Err(Unreadable::Wrong(what))) => return Err(format!("{what} at shard {i}")),
            Ok(Err(Unreadable::Rotten(at))) => {
                self.note_damaged(i, number(object), at);
                None
            }
            Err(_) => None,
        };
        let attach = request.head.attach().get();
        self.net[s][i].rep.push_back(Rep::Val { id, attach, tags });
        Ok(())
    }
}
