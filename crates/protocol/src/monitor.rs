//! Talk with the monitor: map, liveness, sessions, resolution of dead sessions.
//!
//! Contract: the map itself is opaque here (`map: Vec<u8>`, encoded by the crate `cluster`).

use crate::health::HealthCheck;
use crate::ids::{ClusterId, Epoch, OsdId, PgId, PoolId, Profile, Seq, SessionId, ShardSet};
use crate::scrub::ScrubReport;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::time::Duration;

/// A request to the monitor; each is a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MonitorRequest {
    /// The current map; and from now on every newer one as a [`MapUpdate`] on this connection.
    Subscribe,
    /// An OSD's process has started (model: `boot`). Makes a new epoch.
    Boot {
        /// Who.
        osd: OsdId,
        /// The random id of its disk; another one than before needs the operator's consent
        /// (`ReplaceOsd`).
        fsid: u128,
        /// Where it listens.
        addr: SocketAddr,
        /// Its number of cores.
        cores: u16,
        /// The machine was restarted since the last clean stop or crash of the process: unsynced
        /// writes may be lost.
        lost: bool,
        /// The disk holds nothing.
        blank: bool,
        /// Name of the machine, the failure domain.
        host: String,
    },
    /// An OSD stops cleanly, with everything synced.
    Leave {
        /// Who.
        osd: OsdId,
    },
    /// An OSD is alive; sent every `heartbeat_interval`.
    Heartbeat {
        /// Who, and how it is.
        report: OsdReport,
    },
    /// An in-sync shard has learned these PGs' epochs and is ready (model: `Peer`).
    Peered {
        /// Who.
        osd: OsdId,
        /// PG and its epoch.
        pgs: Vec<(PgId, Epoch)>,
    },
    /// A returning shard wants to be written to from now on (model: `AskJoin`).
    AskJoin {
        /// Who.
        osd: OsdId,
        /// PG and its epoch.
        pgs: Vec<(PgId, Epoch)>,
    },
    /// A returning shard is whole (model: `Join`); refused if the PG's epoch is another by now.
    Join {
        /// Who.
        osd: OsdId,
        /// The PG.
        pg: PgId,
        /// The epoch in which it became ready.
        epoch: Epoch,
    },
    /// A client wants a session.
    OpenSession {
        /// For the operator: program, machine, mount point.
        name: String,
    },
    /// The session is alive; sent every third of its time to live.
    RenewSession {
        /// Whose.
        session: SessionId,
    },
    /// The client goes, with everything stable.
    CloseSession {
        /// Whose.
        session: SessionId,
    },
    /// How is the cluster?
    Status,
    /// Makes a pool.
    CreatePool {
        /// Its name, unique.
        name: String,
        /// Its code.
        profile: Profile,
        /// Number of PGs, 1..=65536.
        pg_num: u32,
    },
    /// The metadata service is up and listens here. Refused to one with another namespace than the
    /// cluster's: its directory is empty, or another's. It must not serve before this is answered.
    MdsUp {
        /// Where.
        addr: SocketAddr,
        /// The random id of its namespace.
        namespace: u128,
        /// The namespace was of this cluster before this start: it is no new one.
        old: bool,
    },
    /// The operator gives up the disk of an OSD that is down: its next boot may be with another,
    /// empty one.
    ReplaceOsd {
        /// Whose.
        osd: OsdId,
    },
    /// The metadata service says what it cannot go on with.
    MdsReport(MdsReport),
    /// The metadata service is alive; sent every [`MDS_HEARTBEAT_INTERVAL`]. Refused to one that is
    /// not the map's.
    MdsHeartbeat {
        /// Where it listens, as in `MdsUp`.
        addr: SocketAddr,
        /// The id of its namespace, as in `MdsUp`.
        namespace: u128,
    },
    /// What happened after the event of this number; 0: all that the monitor still knows.
    Events {
        /// The number.
        after: u64,
    },
    /// Declares a session dead before its time is over, as if it had not been renewed: what it
    /// holds goes to others once its last writes are decided. Done also for one that is not there
    /// any more.
    EvictSession {
        /// Whose.
        session: SessionId,
    },
    /// Gives a pool another name.
    RenamePool {
        /// The pool by its present name.
        name: String,
        /// Its new name, unique.
        new_name: String,
    },
}

/// How the name of a session begins that a daemon opens for its own work. It is for the operator's
/// eye, as all of the name is: nothing is allowed or kept from whoever calls himself so.
pub const DAEMON_SESSION: &str = "daemon ";

/// How often the metadata service says that it is alive.
pub const MDS_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

/// What the metadata service cannot go on with; it holds up nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MdsReport {
    /// Removed files whose data cannot be deleted.
    pub removals_stuck: u64,
    /// Files of dead writers whose size cannot be found.
    pub sizes_stuck: u64,
    /// For how long the first of them cannot, in seconds.
    pub stuck_secs: u64,
    /// Why, for that one.
    pub why: String,
}

/// The monitor's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MonitorReply {
    /// Done; the map's epoch by now.
    Done(Epoch),
    /// The map.
    Map(MapUpdate),
    /// A session.
    Session {
        /// Its id.
        session: SessionId,
        /// Its time to live without a renewal, in milliseconds.
        ttl_ms: u64,
        /// The first epoch that knows it.
        epoch: Epoch,
    },
    /// The cluster's state.
    Status(Box<ClusterStatus>),
    /// Refused, and why, in words for the operator.
    Refused(String),
    /// The session is dead.
    Fenced,
    /// Events, oldest first.
    Events(Vec<ClusterEvent>),
    /// This monitor does not lead: nothing was done. Ask another.
    NotLeader {
        /// Who leads, as far as this one knows.
        leader: Option<SocketAddr>,
    },
}

/// Something that happened, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterEvent {
    /// Counts from 1 in each run of the monitor.
    pub number: u64,
    /// How long ago, in seconds.
    pub age_secs: u64,
    /// How bad; `Ok` also for the end of something.
    pub severity: Health,
    /// In a line.
    pub what: String,
}

/// A version of the map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapUpdate {
    /// The cluster.
    pub cluster: ClusterId,
    /// The version.
    pub epoch: Epoch,
    /// `cluster::ClusterMap`, encoded.
    pub map: Vec<u8>,
    /// Where all monitors listen, the one that says so among them; empty if it is the only one.
    pub monitors: Vec<SocketAddr>,
}

/// How an OSD is; part of heartbeats.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OsdReport {
    /// Who.
    pub osd: OsdId,
    /// The map epoch that it knows.
    pub epoch: Epoch,
    /// Which file system of its machine it is on: OSDs with equal numbers on one machine share its
    /// space. 0: unknown.
    pub disk: u64,
    /// Bytes of its disk.
    pub total_bytes: u64,
    /// Bytes used on its disk, by whomever.
    pub used_bytes: u64,
    /// Bytes that its fragments take there, as it saw them last.
    pub stored_bytes: u64,
    /// Bytes that it will still take.
    pub free_bytes: u64,
    /// Per cent of its disk that are used, of what can be used.
    pub used_percent: u8,
    /// How full it is.
    pub fullness: Fullness,
    /// PGs whose backfill waits for space.
    pub backfills_waiting: u64,
    /// Bytes in its journals.
    pub journal_bytes: u64,
    /// Records in its journals that are not trimmed yet; 0 some seconds after the last write.
    pub journal_records: u64,
    /// What still has to be rebuilt here, for PGs that this OSD is not in sync with.
    pub to_rebuild: Vec<PgBacklog>,
    /// Bytes rebuilt since start.
    pub rebuilt_bytes: u64,
    /// Bytes of what had to be rebuilt, in the unit of [`PgBacklog::bytes`], that are dealt with
    /// since start.
    pub recovered_bytes: u64,
    /// Checksum errors found and repaired since start.
    pub corrupt_found: u64,
    /// See `corrupt_found`.
    pub corrupt_repaired: u64,
    /// Reads and writes served since start.
    pub reads: u64,
    /// See `reads`.
    pub writes: u64,
    /// Bytes of them.
    pub read_bytes: u64,
    /// See `read_bytes`.
    pub write_bytes: u64,
    /// Milliseconds of the longest of its latest syncs; 0 if there was none of late.
    pub sync_ms: u64,
    /// What it keeps its data in.
    pub object_store: ObjectStore,
    /// How far it carries operations.
    pub path_cut: PathCut,
    /// What scrubbing has done and found.
    pub scrub: Box<ScrubReport>,
}

/// How full an OSD is, by the three ratios of its settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Fullness {
    /// Below all of them.
    #[default]
    Ok,
    /// At `mon_osd_nearfull_ratio`: the operator is warned.
    NearFull,
    /// At `mon_osd_backfillfull_ratio`: no backfill goes there.
    BackfillFull,
    /// At `mon_osd_full_ratio`: writers get ENOSPC.
    Full,
}

/// What of a PG still has to be rebuilt on an OSD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PgBacklog {
    /// The PG.
    pub pg: PgId,
    /// Objects left.
    pub objects: u64,
    /// Bytes left: what their fragments take on the disk of a member, checksums included.
    pub bytes: u64,
    /// The members have told all that is missed: these numbers are all of it.
    pub is_counted: bool,
}

/// What of the whole cluster still has to be rebuilt, on OSDs that are up. All zero when everything
/// is clean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryStatus {
    /// Objects left.
    pub objects: u64,
    /// Bytes left, as in [`PgBacklog::bytes`].
    pub bytes: u64,
    /// Shards whose objects are not counted yet, and not in these numbers: they have only just come
    /// back.
    pub shards_uncounted: u64,
    /// Bytes in a second, over the last seconds.
    pub bytes_per_sec: u64,
    /// Seconds that the bytes left take at this rate; `None` while nothing moves.
    pub seconds_left: Option<u64>,
}

/// What an OSD keeps its data in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ObjectStore {
    /// Files on a disk.
    #[default]
    File,
    /// The memory of its process: all is gone when it stops.
    Memory,
}

/// How far an OSD carries operations before it answers as if they were done: for measuring what
/// each part of the path costs (LCAM paper, Figures 14 and 15). Anything but `None` loses what is
/// written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PathCut {
    /// To their end.
    #[default]
    None,
    /// Until a worker has dispatched them: `MsgrTest`.
    Msgr,
    /// Until the PG has processed them; nothing is journalled or stored, reads give zeros:
    /// `Msgr+PGTest`.
    MsgrPg,
}

/// A word that is not one of those that a setting takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be one of {0}")]
pub struct UnknownWord(pub &'static str);

impl Fullness {
    /// Its word, as Ceph has it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Fullness::Ok => "ok",
            Fullness::NearFull => "nearfull",
            Fullness::BackfillFull => "backfillfull",
            Fullness::Full => "full",
        }
    }
}

impl ObjectStore {
    /// Its word in configurations.
    pub const fn as_str(self) -> &'static str {
        match self {
            ObjectStore::File => "file",
            ObjectStore::Memory => "memstore",
        }
    }
}

impl std::str::FromStr for ObjectStore {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<Self, UnknownWord> {
        let known = [ObjectStore::File, ObjectStore::Memory];
        known.into_iter().find(|store| store.as_str() == word).ok_or(UnknownWord("file, memstore"))
    }
}

impl PathCut {
    /// Its word in configurations.
    pub const fn as_str(self) -> &'static str {
        match self {
            PathCut::None => "none",
            PathCut::Msgr => "msgr",
            PathCut::MsgrPg => "msgr+pg",
        }
    }
}

impl std::str::FromStr for PathCut {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<Self, UnknownWord> {
        let known = [PathCut::None, PathCut::Msgr, PathCut::MsgrPg];
        known.into_iter().find(|cut| cut.as_str() == word).ok_or(UnknownWord("none, msgr, msgr+pg"))
    }
}

/// One line of health, worst first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Health {
    /// Everything is whole.
    #[default]
    Ok,
    /// Data is served, but not everything is whole.
    Degraded,
    /// Some data cannot be served.
    Down,
}

/// State of a PG in words that operators know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PgCondition {
    /// All shards in sync.
    Clean,
    /// Served by fewer than all shards; none is coming back now.
    Degraded,
    /// A shard is being rebuilt.
    Recovering,
    /// Waiting for the members of a new epoch to answer.
    Peering,
    /// Fewer than k in-sync shards are up: waits, and never serves stale data.
    Down,
}

/// What `trefoil status` shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// The cluster.
    pub cluster: ClusterId,
    /// Of the map.
    pub epoch: Epoch,
    /// Overall.
    pub health: Health,
    /// What is amiss, the worst first.
    pub checks: Vec<HealthCheck>,
    /// Storage daemons.
    pub osds: Vec<OsdStatus>,
    /// Pools.
    pub pools: Vec<PoolStatus>,
    /// How many PGs are in which condition.
    pub pgs: Vec<(PgCondition, u32)>,
    /// What is still to be rebuilt, over all PGs, and how fast that goes.
    pub recovery: RecoveryStatus,
    /// Live sessions: id and name.
    pub clients: Vec<(SessionId, String)>,
    /// Where the metadata service listens, if one has ever started.
    pub mds: Option<SocketAddr>,
    /// For how long it has been silent, in seconds, if that is longer than it may be.
    pub mds_silent_secs: Option<u64>,
    /// User bytes that fit in all, at the first pool's code.
    pub total_bytes: u64,
    /// User bytes that still fit.
    pub free_bytes: u64,
    /// User bytes that the cluster stores: what its fragments take, without parity.
    pub stored_bytes: u64,
}

impl ClusterStatus {
    /// What is amiss, line by line, the worst first.
    pub fn messages(&self) -> impl Iterator<Item = &str> {
        self.checks.iter().flat_map(HealthCheck::lines).map(String::as_str)
    }
}

/// An OSD in the status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OsdStatus {
    /// Who.
    pub id: OsdId,
    /// Where.
    pub addr: Option<SocketAddr>,
    /// Its machine.
    pub host: String,
    /// Answers heartbeats.
    pub up: bool,
    /// Holds data.
    pub is_in: bool,
    /// Its last heartbeat.
    pub report: OsdReport,
}

/// A pool in the status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolStatus {
    /// Its id.
    pub id: PoolId,
    /// Its name.
    pub name: String,
    /// Its code.
    pub profile: Profile,
    /// Its number of PGs.
    pub pg_num: u32,
}

/// The monitor's coordinator to an in-sync member, about a dead session (model: `Collect`,
/// `Decide`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ResolveRequest {
    /// Fence the session, sync, and say what of it is there.
    Collect {
        /// Who is dead.
        session: SessionId,
        /// PGs with their epochs.
        pgs: Vec<(PgId, Epoch)>,
    },
    /// Drop what lies beyond the cuts, durably, and forget the session.
    Decide {
        /// Who is dead.
        session: SessionId,
        /// PG, its epoch, and the last record to keep.
        cuts: Vec<(PgId, Epoch, Seq)>,
    },
}

/// The member's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ResolveReply {
    /// To `Collect`: for each PG asked for.
    Collected(Vec<SessionHolding>),
    /// To `Decide`: the PGs for which the decision is durable.
    Decided(Vec<PgId>),
    /// The member is not in these epochs: ask again.
    NotYet,
}

/// What a shard holds of a dead session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionHolding {
    /// The PG.
    pub pg: PgId,
    /// Everything up to here is known to be decided.
    pub settled: Seq,
    /// Records in the journal: number and touched shards.
    pub held: Vec<(Seq, ShardSet)>,
}
