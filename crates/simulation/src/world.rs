//! The state of a simulation: sessions, nodes, monitor and metadata service with their real
//! machines, and the network.

use crate::act::{Act, Fault};
use crate::check::Ghost;
use crate::disk::{Disk, OBJECTS, SECTOR, SECTORS, Tags};
use crate::lease::{Holdings, Line, Mds, Renewal};
use crate::node::Node;
use cluster::{ClusterMap, ExpectedOsd, Monitor, PoolSpec, SessionState, Settings, create_cluster};
use ec_store::pg::{PgSession, PgView, Request, SessionTable, ShardView};
use protocol::monitor::{MonitorRequest, ResolveReply, ResolveRequest};
use protocol::recovery::RecoveryRequest;
use protocol::shard::{AckMessage, ReadRequest};
use protocol::{AttachId, ClusterId, Epoch, PgId, PoolId, Profile, Rules, SessionId, ShardIndex};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Shards: 0 and 1 hold data, 2 holds parity.
pub const N: usize = 3;
/// Data shards.
pub const K: u32 = 2;
/// Sessions, at most.
pub const SESSIONS: usize = 3;

/// An invariant's name and how it broke.
pub type Check = Result<(), String>;

/// The PG.
pub fn pg_id() -> PgId {
    PgId { pool: PoolId::new(1), number: 0 }
}

/// A shard's index.
pub fn si(i: usize) -> ShardIndex {
    ShardIndex::new(i as u8)
}

/// A session's id.
pub fn sid(s: usize) -> SessionId {
    SessionId::new(s as u64 + 1)
}

/// What comes when little else is left to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Late {
    /// What these shards get from sessions.
    pub requests: [bool; N],
    /// What sessions get from these shards.
    pub replies: [bool; N],
    /// The ends of these nodes' syncs.
    pub syncs: [bool; N],
    /// The start of these nodes' processes.
    pub starts: [bool; N],
    /// The steps of these shards' ways back.
    pub ways: [bool; N],
    /// What sessions get from the monitor.
    pub maps: bool,
    /// What sessions write.
    pub writes: bool,
    /// What keeps sessions alive.
    pub renewals: bool,
}

impl Late {
    /// Is this step among it?
    pub fn holds(&self, act: &Act) -> bool {
        match *act {
            Act::Request { i, .. } => self.requests[i],
            Act::Reply { i, .. } => self.replies[i],
            Act::Synced { i } => self.syncs[i],
            Act::Start { i } => self.starts[i],
            Act::Way { i } | Act::Serve { i } => self.ways[i],
            Act::Learn { .. } => self.maps,
            Act::Renew { .. } | Act::Renewal { .. } => self.renewals,
            Act::Write { .. } => self.writes,
            // what is always possible would leave no step to what is late, and a deadline would
            // send that again
            Act::Tick { .. } | Act::Fsync { .. } => *self != Self::default(),
            _ => false,
        }
    }
}

/// A kind of fault that comes soon after something was reached, and not before.
#[derive(Clone, Copy, Debug)]
pub struct Then {
    /// What must be reached.
    pub reached: &'static str,
    /// The kind.
    pub fault: Fault,
    /// Steps from there to the fault, at the mean.
    pub steps: usize,
}

/// The bounds of one walk.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Sessions that are opened, at most.
    pub sessions: usize,
    /// Objects that are written.
    pub objects: usize,
    /// Writes in all.
    pub writes: usize,
    /// Reads in all.
    pub reads: usize,
    /// Large writes into never-written space go direct.
    pub direct: bool,
    /// Writes of whole slots are placed.
    pub placed: bool,
    /// Truncates, punches and deletes, too.
    pub ops: bool,
    /// The first session is attached and holds all leases at the start.
    pub warm: bool,
    /// How many faults of each kind there may be, in the order of [`Fault::ALL`].
    pub faults: [u8; Fault::ALL.len()],
    /// Steps before the faults end.
    pub steps: usize,
    /// Faults among a thousand steps.
    pub rate: usize,
    /// Some links, nodes and disks are slow.
    pub slow: bool,
    /// Faults of nodes meet this one only.
    pub victim: Option<usize>,
    /// Power is lost everywhere or nowhere.
    pub everywhere: bool,
    /// Syncs end late.
    pub unsynced: bool,
    /// After this was reached the next fault comes soon.
    pub trigger: Option<&'static str>,
    /// The fault that waits for something.
    pub then: Option<Then>,
    /// This node starts very late.
    pub absent: Option<usize>,
    /// This node and this session learn maps very late.
    pub stale: Option<(usize, usize)>,
    /// The metadata service does.
    pub stale_mds: bool,
    /// Objects in a dirty list, at most.
    pub dirty_max: usize,
    /// What else is late.
    pub late: Late,
    /// Records that a journal takes.
    pub records_max: usize,
}

/// A message from a session to a shard.
#[derive(Debug)]
pub enum Msg {
    /// Of the protocol.
    Send(Request),
    /// A read, by the number of the attempt.
    Read(u64, ReadRequest),
}

/// A message from a shard to a session.
#[derive(Debug)]
pub enum Rep {
    /// An acknowledgement.
    Ack(AckMessage),
    /// The answer to a read; no tags: it was refused.
    Val {
        /// The attempt.
        id: u64,
        /// The attach of the request.
        attach: u64,
        /// What was read.
        tags: Option<Tags>,
    },
}

/// A connection, and what an earlier one may still deliver.
#[derive(Debug, Default)]
pub struct Conn {
    /// To the shard.
    pub req: VecDeque<Msg>,
    /// To the session.
    pub rep: VecDeque<Rep>,
    /// Of earlier connections.
    pub old_req: VecDeque<Msg>,
    /// Of earlier connections.
    pub old_rep: VecDeque<Rep>,
    /// A message was lost in it.
    pub holes: bool,
}

/// A read under way.
#[derive(Debug)]
pub struct Read {
    /// The attempt.
    pub id: u64,
    /// Of what.
    pub object: usize,
    /// The next write of the session when it began.
    pub begun: u64,
    /// What must come out.
    pub want: [Tags; 2],
    /// Shard, attach, answer.
    pub parts: Vec<(usize, AttachId, Option<Tags>)>,
}

/// A client's session.
#[derive(Debug)]
pub struct Client {
    /// It lives, and does not know that it is dead.
    pub run: bool,
    /// Closed in good order.
    pub closed: bool,
    /// The real machine.
    pub machine: PgSession,
    /// The map that it knows.
    pub known: usize,
    /// Its leases.
    pub leases: Holdings,
    /// Its last write to each object.
    pub last: [u64; OBJECTS],
    /// The read under way.
    pub read: Option<Read>,
    /// Its last write.
    pub writes: u64,
    /// As its machine told.
    pub reported: u64,
    /// As its machine told.
    pub stable: u64,
}

/// A version of the map.
#[derive(Clone, Debug)]
pub struct MapVersion {
    /// Which.
    pub epoch: Epoch,
    /// The PG.
    pub view: PgView,
    /// The sessions.
    pub table: Arc<SessionTable>,
    /// OSDs that are up.
    pub up: [bool; N],
}

impl MapVersion {
    fn of(map: &ClusterMap) -> Self {
        let pg = &map.pgs[&pg_id()];
        let of = |wanted| {
            map.sessions.iter().filter(move |(_, s)| **s == wanted).map(|(id, _)| *id).collect()
        };
        let table = SessionTable {
            live: of(SessionState::Live),
            dead: of(SessionState::Dead),
            last: map.last_session,
        };
        let view = PgView {
            pg: pg_id(),
            epoch: pg.epoch,
            profile: map.pools[&pg_id().pool].profile,
            in_sync: pg.in_sync,
            joining: pg.joining,
            active: pg.active,
        };
        let up = |i: usize| map.osd_of(pg_id(), si(i)).is_some_and(|osd| map.osds[&osd].up);
        Self { epoch: map.epoch, view, table: Arc::new(table), up: std::array::from_fn(up) }
    }
}

/// A question of the coordinator on its way.
#[derive(Debug)]
pub struct Question {
    /// Its number.
    pub ticket: u64,
    /// To whom.
    pub to: usize,
    /// What.
    pub request: ResolveRequest,
}

/// See the module.
#[derive(Debug)]
pub struct World {
    /// What holds.
    pub rules: Rules,
    /// What there is.
    pub bounds: Bounds,
    /// Faults that are left.
    pub left: [u8; Fault::ALL.len()],
    /// Sessions' clocks.
    pub now: Instant,
    /// The clock of the monitor and the metadata service; those of clients are ahead of it by
    /// something.
    pub mon_now: Duration,
    /// The real machine.
    pub mon: Monitor,
    /// All versions of the map.
    pub maps: Vec<MapVersion>,
    /// Messages of nodes to the monitor.
    pub to_mon: [VecDeque<MonitorRequest>; N],
    /// Questions of the coordinator.
    pub questions: Vec<Question>,
    /// Answers to it.
    pub answers: Vec<(u64, Option<ResolveReply>)>,
    /// Questions of returning shards that nobody waits for.
    pub strays: Vec<(usize, RecoveryRequest)>,
    /// The metadata service.
    pub mds: Mds,
    /// Connections to it by session.
    pub lines: Vec<Line>,
    /// Renewals of sessions on their way.
    pub renewals: Vec<Renewal>,
    /// One side of a partition, as bits (`partition`).
    pub partition: u32,
    /// Nodes.
    pub nodes: [Node; N],
    /// Sessions, in the order of opening.
    pub clients: Vec<Client>,
    /// Connections by session and shard.
    pub net: Vec<[Conn; N]>,
    /// What the checker knows.
    pub ghost: Ghost,
    /// Reads begun.
    pub reads: u64,
    /// Counts what was reached.
    pub covered: BTreeMap<&'static str, u64>,
    /// Notes for a readable trace, if wanted.
    pub notes: Option<Vec<String>>,
}

impl World {
    /// A cluster that has just been made.
    pub fn new(rules: Rules, bounds: Bounds) -> Self {
        let profile =
            Profile::new(2, 1, SECTOR as u32, (2 * SECTOR * SECTORS) as u64).expect("a profile");
        let pool = PoolSpec { name: "data".into(), profile, pg_num: 1 };
        let state = create_cluster(ClusterId::new(1), &ExpectedOsd::first(N as u32), &pool)
            .expect("enough OSDs");
        let settings = Settings {
            heartbeat_grace: crate::control::SILENCE / 2,
            session_ttl: crate::control::SILENCE / 2,
            start_wait: Duration::ZERO,
            rules,
        };
        let mon = Monitor::start(state, settings, Duration::ZERO);
        let maps = vec![MapVersion::of(mon.map())];
        let node = |_| Node::new(Disk::new(rules, bounds.records_max, bounds.placed), true);
        Self {
            rules,
            bounds,
            left: bounds.faults,
            now: Instant::now(),
            mon_now: Duration::ZERO,
            mon,
            maps,
            to_mon: Default::default(),
            questions: Vec::new(),
            answers: Vec::new(),
            strays: Vec::new(),
            mds: Mds::new(rules),
            lines: Vec::new(),
            renewals: Vec::new(),
            partition: 0,
            nodes: std::array::from_fn(node),
            clients: Vec::new(),
            net: Vec::new(),
            ghost: Ghost::default(),
            reads: 0,
            covered: BTreeMap::new(),
            notes: None,
        }
    }

    /// Counts that an interesting thing happened.
    pub fn cover(&mut self, what: &'static str) {
        *self.covered.entry(what).or_default() += 1;
        self.note(|| what.to_owned());
    }

    /// Says something in the trace.
    pub fn note(&mut self, what: impl FnOnce() -> String) {
        if let Some(notes) = &mut self.notes {
            notes.push(what());
        }
    }

    /// The newest map.
    pub fn map(&self) -> &MapVersion {
        self.maps.last().expect("there is one from the start")
    }

    /// The monitor may have made a new map.
    pub fn take_map(&mut self) {
        if self.mon.map().epoch > self.map().epoch {
            let version = MapVersion::of(self.mon.map());
            self.note(|| {
                let (v, up) = (&version.view, version.up);
                let active = if v.active { "active" } else { "proposed" };
                format!(
                    "map {}: pg {} {active} {:?} joining {:?}, up {up:?}, dead {:?}",
                    version.epoch, v.epoch, v.in_sync, v.joining, version.table.dead
                )
            });
            self.maps.push(version);
        }
    }

    /// The view of shard `i` in a version of the map.
    pub fn shard_view(&self, i: usize, known: usize) -> ShardView {
        let map = &self.maps[known];
        ShardView { pg: map.view, me: si(i), sessions: Arc::clone(&map.table) }
    }

    /// Is the session expired in the newest map, and not resolved?
    pub fn is_dead(&self, s: usize) -> bool {
        self.map().table.dead.contains(&sid(s))
    }

    /// Is it live in the newest map?
    pub fn is_live(&self, s: usize) -> bool {
        self.map().table.live.contains(&sid(s))
    }

    /// The map epoch in which a node was taken in, as an index.
    pub fn index_of(&self, epoch: Epoch) -> usize {
        self.maps.partition_point(|map| map.epoch < epoch)
    }
}
