//! The executor of one core: its PGs, its journal, its fragment files, on one worker thread.
//!
//! Contract: a [`Core`] lives on the worker that opened it and is called there only; clones are the
//! same core. What waits for the disk runs on the runtime's I/O threads, but for syncs that are
//! expected to be brief. Replies leave through an [`Outlet`].
//!
//! **Group commit.** Messages that arrive in one loop turn are taken first; at its end the journal
//! is flushed once, and only then one acknowledgement for each (PG, session) leaves. Syncs run at
//! most one at a time: at once when a session asks (fsync), else every `journal_sync_interval`
//! while anything is unsynced.
//!
//! **Upkeep.** Every [`UPKEEP_INTERVAL`]: records below the stable marks are applied, object by
//! object; when a quarter of the journal is used, another shard waits for it, or every
//! [`TRIM_IDLE`], fragment files are synced, a checkpoint is written and synced, and whole segments
//! of the journal go.
//!
//! **Limits.** Records not applied are held in memory and bounded by the journal: at
//! `journal_bytes_max` sessions are asked to begin no more writes, and what is on its way is taken,
//! a window for each session ([`SESSION_WINDOW_BYTES`]). Beyond that, which only a session that
//! does not heed it or a returning shard comes to, they are told `Busy` and send again. A full disk
//! is `NoSpace` and loses nothing. After a failed sync everybody is told `Io` until a restart. The
//! bounds of [`crate::throttle`] ask sessions to begin no more writes in the same way: records held
//! in memory, bytes of one sync.
//!
//! Start reading at [`Core::handle`]. `store` is the storage seam's real backend, `restart` reads
//! the journal again, `reading` serves reads, `times` times them, `upkeep` syncs, applies and
//! trims, `sync_job` is one sync, `sync_state` knows how they go, [`recovery`] brings shards back
//! and repairs, `class_gate` has it take turns with clients, `backfill` makes that wait on a nearly
//! full disk, `listing` trims before a shard is told what it missed, `comparing` finds what need
//! not move, [`scrub`] compares shards.

mod backfill;
mod background;
mod backlog;
mod class_gate;
mod comparing;
mod format;
mod holding;
mod listing;
mod measuring;
mod objects;
mod pace;
mod reading;
pub mod recovery;
mod reserving;
mod restart;
pub mod scrub;
mod stats;
mod store;
mod sync_job;
mod sync_state;
#[cfg(test)]
mod tests;
mod throttling;
mod times;
mod upkeep;

pub use reading::{READ_BYTES_MAX, zeros};
pub use restart::replay;
pub use stats::CoreStats;
pub use store::CoreStore;
pub use sync_state::SyncSeen;

use crate::codec::SUM_UNIT_BYTES;
use crate::fragment::{FragmentConfig, FragmentError};
use crate::fullness::FullRatios;
use crate::journal::{JournalConfig, JournalError};
use crate::pg::ShardView;
use crate::pg::shard::{Outcome, PgShard, Replay, Step, StoreError, Summed};
use crate::slots::Slots;
use crate::space::DiskUse;
use crate::superblock::DataDir;
use crate::throttle::Throttles;
use backlog::Backlog;
use bytes::Bytes;
use class_gate::{ClassGate, Gated};
use listing::ListWaits;
use messenger::sync::Notify;
use messenger::{ClassMeter, ClassOrder, Connection, Message, ReplyTo, TrafficClass, Worker};
use pace::Pace;
use protocol::monitor::{PgBacklog, SessionHolding};
use protocol::shard::{
    AckMessage, AttachRequest, MarkRequest, ReadRequest, SESSION_WINDOW_BYTES, ShardHead, Status,
    WriteRequest,
};
use protocol::{
    AttachId, CoreId, Epoch, Kind, ObjectId, PgId, Seq, SessionId, ShardIndex, ShardSet,
};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::Place;
use sync_state::SyncState;
use times::{CoreTimes, Waiting};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// How often limits are looked at, and what has become stable while nothing is written.
pub const UPKEEP_INTERVAL: Duration = Duration::from_millis(50);
/// How long applied records stay in a journal that is far from full: trimming syncs every changed
/// file.
pub const TRIM_IDLE: Duration = Duration::from_secs(5);
/// Ranges waiting to be repaired: more are found again by the next read.
const REPAIRS_MAX: usize = 1024;

/// Settings of a core.
#[derive(Clone, Debug)]
pub struct CoreConfig {
    /// Which core.
    pub core: CoreId,
    /// The journal. `journal_bytes_max` and a window for each session bound the memory for
    /// unapplied records, too; default 512 MiB.
    pub journal: JournalConfig,
    /// The fragment store.
    pub fragment: FragmentConfig,
    /// Time between syncs while anything is unsynced: what the loss of power can take from writes
    /// without fsync, and how long records wait to be applied. Default 200 ms.
    pub journal_sync_interval: Duration,
    /// I/O threads that a sync takes at most, at least one. Default 4.
    pub sync_lanes: usize,
    /// Bounds on what waits to be applied or synced, and when write-back begins.
    pub throttles: Throttles,
    /// I/O threads that scrubs, rebuilding and returning space take at a time, at least one.
    /// Default 1.
    pub disk_threads: u64,
    /// How class III takes turns with clients on the core's thread. Default: it does not.
    pub class_order: ClassOrder,
    /// Shares of the disk at which sessions are told that it is full (default 0.95), and at which
    /// backfill pauses (0.90).
    pub ratios: FullRatios,
    /// Least size of a write that goes straight to never-written space, in bytes. Default
    /// [`PgShard::DIRECT_BYTES_MIN`].
    pub direct_bytes_min: u32,
    /// Objects that are remembered of what an absent shard of a PG misses; beyond it all that the
    /// PG holds is compared when the shard is back. Default [`PgShard::DIRTY_OBJECTS_MAX`].
    pub dirty_objects_max: usize,
    /// Writes end, acknowledged, when the PG has processed them, and are dropped; reads give zeros.
    /// For measuring only: [`protocol::monitor::PathCut::MsgrPg`]. Default false.
    pub cut_after_pg: bool,
    /// What the cores of the disk do to it. Default: the disk has this core alone, or it and those
    /// with lower numbers.
    pub disk: Arc<DiskUse>,
    /// Bytes of each shard that scrubs led by this core read in a second, at most. Default 32 MiB.
    pub scrub_bytes_per_sec: u64,
    /// Bytes that returning shards of this core rebuild or compare in a second, at most; 0: no
    /// limit. Default 0.
    pub recovery_bytes_per_sec: u64,
    /// Bytes of a fragment that are compared or rebuilt in one go, at most: one or more units of
    /// sums ([`SUM_UNIT_BYTES`](crate::codec::SUM_UNIT_BYTES)), up to [`READ_BYTES_MAX`]. Default 1
    /// MiB.
    pub recovery_chunk_bytes: u64,
}

impl CoreConfig {
    /// I/O threads of a sync: with more, it is hardly over sooner.
    pub const SYNC_LANES: usize = 4;

    /// Default settings.
    pub fn new(core: CoreId) -> Self {
        Self {
            core,
            journal: JournalConfig { journal_bytes_max: 512 << 20, ..JournalConfig::default() },
            fragment: FragmentConfig::default(),
            journal_sync_interval: Duration::from_millis(200),
            sync_lanes: Self::SYNC_LANES,
            throttles: Throttles::default(),
            disk_threads: 1,
            class_order: ClassOrder::default(),
            ratios: FullRatios::default(),
            direct_bytes_min: PgShard::DIRECT_BYTES_MIN,
            dirty_objects_max: PgShard::DIRTY_OBJECTS_MAX,
            cut_after_pg: false,
            disk: DiskUse::new(core.get() + 1),
            scrub_bytes_per_sec: 32 << 20,
            recovery_bytes_per_sec: 0,
            recovery_chunk_bytes: 1 << 20,
        }
    }
}

/// Why a core cannot be opened or do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum CoreError {
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The fragment store.
    #[error(transparent)]
    Fragment(#[from] FragmentError),
    /// The journal holds an entry that this program does not know.
    #[error(
        "journal entry {lsn} of kind {kind} cannot be read: it was written by another version, or is damaged"
    )]
    Entry {
        /// Its number.
        lsn: u64,
        /// Its kind.
        kind: u8,
    },
    /// A seam operation failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A sync failed: nothing is served until the OSD is restarted.
    #[error("storage failed: {0}")]
    Poisoned(String),
    /// The core was stopped.
    #[error("the core was stopped")]
    Stopped,
}

/// A message that no correct peer sends: its connection should be closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("malformed message of kind {0:#06x}")]
pub struct Malformed(pub u16);

/// Where answers go. Clones lead to the same peer.
pub trait Outlet: Clone + 'static {
    /// Sends a one-way message.
    fn send(&self, message: Message);

    /// Answers a call.
    fn reply_to(&self, to: ReplyTo, message: Message);
}

impl Outlet for Connection {
    fn send(&self, message: Message) {
        Connection::send(self, message);
    }

    fn reply_to(&self, to: ReplyTo, message: Message) {
        Connection::reply_to(self, to, message);
    }
}

/// A range of a fragment that is to be rebuilt from other shards: it failed its checksum, or they
/// are against it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Repair {
    /// The PG.
    pub pg: PgId,
    /// The object.
    pub object: ObjectId,
    /// In bytes of the fragment.
    pub range: Range<u64>,
    /// Shards not to take pieces from.
    pub avoid: ShardSet,
}

/// A PG that is held here, with the way back to its sessions.
struct Held<O> {
    shard: PgShard,
    /// Of [`PgShard::queued_bytes`], what is in [`State::queued_bytes`].
    queued_bytes: u64,
    outlets: HashMap<SessionId, O>,
}

struct State<O> {
    store: CoreStore,
    shards: HashMap<PgId, Held<O>>,
    /// PGs found in the journal and not claimed by a view yet.
    replays: HashMap<PgId, Replay>,
    /// PGs that may have acknowledgements due.
    touched: Vec<PgId>,
    turn_due: bool,
    sync: SyncState,
    /// What was taken and is timed until it is answered.
    waiting: Waiting,
    /// When the disk was last asked for its space.
    space_asked: Option<Instant>,
    last_trim: Option<Instant>,
    /// Sessions were told to begin no more writes ([`AckMessage::HOLD`]).
    is_holding: bool,
    throttles: Throttles,
    /// Of all PGs, as of the end of the turn or of applying.
    queued_bytes: u64,
    /// [`CoreStore::bytes_to_sync`] when a sync began last.
    sync_began_at: u64,
    /// Another shard waits for a piece that records hold back, which a trim lets through (Rule:
    /// DirectSettle), or for a list.
    trim_wanted: bool,
    list_waits: ListWaits,
    repairs: VecDeque<Repair>,
    /// Ranges that failed their checksum and are not repaired yet, as (object, start, end).
    corrupt: BTreeSet<(PgId, ObjectId, u64, u64)>,
    /// Fragments that lost their header and are not repaired yet. A read need not come by before
    /// another shard fails.
    damaged: BTreeSet<(PgId, ObjectId)>,
    /// Ranges whose bytes the other shards are against.
    mends: BTreeMap<(PgId, ObjectId), (Range<u64>, ShardSet)>,
    scrub_pace: Pace,
    recovery_pace: Pace,
    /// By PG whose shard returns.
    backlogs: HashMap<PgId, Backlog>,
    /// PGs whose shard began on an empty disk, and is not in sync yet.
    backfills: BTreeSet<PgId>,
    /// Those of them that wait for space.
    toofull: BTreeSet<PgId>,
    stats: CoreStats,
    stopped: bool,
}

struct Shared<O> {
    worker: Worker,
    config: CoreConfig,
    /// As in `config` at first.
    journal_sync_interval: Cell<Duration>,
    /// As in `config` at first.
    ratios: Cell<FullRatios>,
    /// As in `config` at first.
    sync_lanes: Cell<usize>,
    /// Background disk jobs at a time.
    disk_threads: Rc<Slots>,
    times: CoreTimes,
    /// Work of class III that waits for its turn.
    gate: RefCell<ClassGate<Gated>>,
    class_meter: ClassMeter,
    gated: Notify,
    state: RefCell<State<O>>,
    turn: Notify,
    synced: Notify,
    repair: Notify,
}

/// See the module.
pub struct Core<O: Outlet> {
    shared: Rc<Shared<O>>,
}

impl<O: Outlet> Clone for Core<O> {
    fn clone(&self) -> Self {
        Self { shared: Rc::clone(&self.shared) }
    }
}

impl<O: Outlet> std::fmt::Debug for Core<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").field("core", &self.shared.config.core).finish_non_exhaustive()
    }
}

impl<O: Outlet> Core<O> {
    /// Opens journal and fragment files in `dir` and starts the core's tasks on `worker`, on which
    /// this must be called. Reads the whole journal.
    ///
    /// # Errors
    /// [`CoreError`]; nothing was changed.
    ///
    /// # Panics
    /// When [`CoreConfig::recovery_chunk_bytes`] is not what it may be.
    pub fn open(dir: &DataDir, config: CoreConfig, worker: &Worker) -> Result<Self, CoreError> {
        let (chunk, unit) = (config.recovery_chunk_bytes, SUM_UNIT_BYTES as u64);
        assert!(
            chunk.is_multiple_of(unit) && (unit..=READ_BYTES_MAX).contains(&chunk),
            "chunks of {chunk} bytes"
        );
        let (mut store, replays) = restart::open(dir, &config, worker.handle())?;
        if config.cut_after_pg {
            store.cut();
        }
        let state = State {
            store,
            shards: HashMap::new(),
            replays,
            touched: Vec::new(),
            turn_due: false,
            sync: SyncState::default(),
            waiting: Waiting::default(),
            space_asked: None,
            last_trim: None,
            is_holding: false,
            throttles: config.throttles,
            queued_bytes: 0,
            sync_began_at: 0,
            trim_wanted: false,
            list_waits: ListWaits::default(),
            repairs: VecDeque::new(),
            corrupt: BTreeSet::new(),
            damaged: BTreeSet::new(),
            mends: BTreeMap::new(),
            scrub_pace: Pace::new(config.scrub_bytes_per_sec.max(1)),
            recovery_pace: Pace::new(config.recovery_bytes_per_sec),
            backlogs: HashMap::new(),
            backfills: BTreeSet::new(),
            toofull: BTreeSet::new(),
            stats: CoreStats::default(),
            stopped: false,
        };
        let (turn, synced, repair) = (Notify::new(), Notify::new(), Notify::new());
        let state = RefCell::new(state);
        let times = CoreTimes::new(worker.handle().operations());
        let gate = RefCell::new(ClassGate::new(config.class_order));
        let class_meter = class_gate::meter(worker.handle().classes());
        let (worker, journal_sync_interval) =
            (worker.clone(), Cell::new(config.journal_sync_interval));
        let ratios = Cell::new(config.ratios);
        let (sync_lanes, disk_threads) =
            (Cell::new(config.sync_lanes), Slots::new(config.disk_threads));
        let core = Self {
            shared: Rc::new(Shared {
                worker,
                config,
                journal_sync_interval,
                ratios,
                sync_lanes,
                disk_threads,
                times,
                gate,
                class_meter,
                gated: Notify::new(),
                state,
                turn,
                synced,
                repair,
            }),
        };
        let worker = core.worker();
        core.refresh_free();
        worker.spawn(core.clone().turns());
        worker.spawn(core.clone().upkeep());
        worker.spawn(core.clone().applies());
        worker.spawn(core.clone().write_backs());
        worker.spawn(core.clone().measures());
        worker.spawn(core.clone().give_backs());
        worker.spawn(core.clone().syncs());
        worker.spawn(core.clone().let_through());
        Ok(core)
    }

    /// Which core this is.
    pub fn id(&self) -> CoreId {
        self.shared.config.core
    }

    /// The worker that it lives on.
    pub fn worker(&self) -> &Worker {
        &self.shared.worker
    }

    /// Changes [`CoreConfig::journal_sync_interval`], from the next sync on.
    pub fn set_journal_sync_interval(&self, interval: Duration) {
        self.shared.journal_sync_interval.set(interval);
    }

    /// Changes [`CoreConfig::ratios`], at once.
    pub fn set_ratios(&self, ratios: FullRatios) {
        self.shared.ratios.set(ratios);
        self.refresh_free();
    }

    /// Changes [`CoreConfig::sync_lanes`], from the next sync on.
    pub fn set_sync_lanes(&self, lanes: usize) {
        self.shared.sync_lanes.set(lanes);
    }

    /// Changes [`CoreConfig::recovery_bytes_per_sec`], at once.
    pub fn set_recovery_bytes_per_sec(&self, bytes_per_sec: u64) {
        self.shared.state.borrow_mut().recovery_pace.set_rate(bytes_per_sec);
    }

    // ---- views

    /// A view of a PG of this core. The PG is held from its first view on.
    ///
    /// # Errors
    /// Those of the journal, and of reading the bytes of direct records again.
    pub fn learn(&self, view: ShardView) -> Result<(), CoreError> {
        let mut state = self.shared.state.borrow_mut();
        let State { store, shards, replays, touched, backfills, .. } = &mut *state;
        let pg = view.pg.pg;
        let sessions = view.sessions.unresolved();
        store.space.set_sessions(sessions);
        store.journal.allow_beyond(sessions * SESSION_WINDOW_BYTES);
        if view.is_in_sync() {
            backfills.remove(&pg);
        }
        store.set_place(pg, Place { shard: view.me, profile: view.pg.profile });
        match shards.get_mut(&pg) {
            Some(held) => {
                if view.pg.epoch > held.shard.view().pg.epoch {
                    held.outlets.clear();
                }
                held.shard.learn(view);
                held.shard.note_whole(store)?;
            }
            None => {
                let replay = replays.remove(&pg).unwrap_or_else(|| Replay::new(pg));
                let replay = restart::check_direct(store, view.me, replay)?;
                let mut shard = PgShard::restart(view, replay);
                shard.set_direct_bytes_min(self.shared.config.direct_bytes_min);
                shard.set_slot_bytes(self.shared.config.fragment.fragment_slot_bytes);
                shard.set_dirty_objects_max(self.shared.config.dirty_objects_max);
                shard.note_whole(store)?;
                shards.insert(pg, Held { shard, queued_bytes: 0, outlets: HashMap::new() });
            }
        }
        touched.push(pg);
        drop(state);
        self.schedule_turn();
        Ok(())
    }

    /// Does the journal name bytes that are not on the disk, as far as the PGs are held here?
    /// Before the first [`Core::learn`]. `shard_of`: which shard of a PG this is. Such a start is
    /// one after a loss of power, whatever else is known of it: records are dropped, which others
    /// may count on.
    ///
    /// # Errors
    /// Those of reading the bytes.
    pub fn lacks_direct_bytes(
        &self,
        shard_of: impl Fn(PgId) -> Option<ShardIndex>,
    ) -> Result<bool, CoreError> {
        let mut state = self.shared.state.borrow_mut();
        let State { store, replays, .. } = &mut *state;
        for (pg, replay) in replays.iter() {
            if let Some(shard) = shard_of(*pg)
                && restart::lacks_direct(store, shard, replay)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// All views of a map were passed in: what the journal holds of other PGs is let go, as they
    /// are not held here any more. Until this is called for the first time nothing is trimmed.
    pub fn views_are_complete(&self) {
        let mut state = self.shared.state.borrow_mut();
        for (pg, _) in std::mem::take(&mut state.replays) {
            tracing::warn!(%pg, "the journal holds records of a placement group that is not held here any more");
        }
        state.last_trim.get_or_insert_with(Instant::now);
    }

    /// The PGs held here.
    pub fn pgs(&self) -> Vec<PgId> {
        self.shared.state.borrow().shards.keys().copied().collect()
    }

    /// The view that a PG is at.
    pub fn view(&self, pg: PgId) -> Option<ShardView> {
        self.with(pg, |shard, _| shard.view().clone())
    }

    /// Does something with a PG's machine; what became due leaves at the end of the turn.
    pub fn with<R>(
        &self,
        pg: PgId,
        f: impl FnOnce(&mut PgShard, &mut CoreStore) -> R,
    ) -> Option<R> {
        let result = {
            let mut state = self.shared.state.borrow_mut();
            let State { store, shards, touched, .. } = &mut *state;
            let held = shards.get_mut(&pg)?;
            let result = f(&mut held.shard, store);
            touched.push(pg);
            result
        };
        self.schedule_turn();
        Some(result)
    }

    // ---- messages

    /// Takes a message of the kinds Attach, Write, Mark, Read, Stat, Extents, Objects, Space,
    /// Reserve or Recovery, in the class given, whatever its frame says. One of Recovery in class
    /// III may wait for others; anything else is taken at once.
    ///
    /// # Errors
    /// [`Malformed`], also for other kinds.
    pub fn handle(
        &self,
        outlet: &O,
        class: TrafficClass,
        message: Message,
    ) -> Result<(), Malformed> {
        let kind = Kind::from_u16(message.kind);
        if kind != Some(Kind::Recovery) {
            self.serves(class, bytes_moved(&message));
        }
        match kind {
            Some(Kind::Write) => self.on_write(outlet, message),
            Some(Kind::Read) => self.on_read(outlet, message),
            Some(Kind::Mark) => self.on_mark(outlet, &message),
            Some(Kind::Attach) => self.on_attach(outlet, &message),
            Some(Kind::Stat) => self.on_stat(outlet, &message),
            Some(Kind::Extents) => self.on_extents(outlet, &message),
            Some(Kind::Objects) => self.on_objects(outlet, &message),
            Some(kind @ (Kind::Space | Kind::Reserve)) => self.on_space(outlet, &message, kind),
            Some(Kind::Recovery) => self.on_recovery(outlet, class, &message),
            _ => Err(Malformed(message.kind)),
        }
    }

    fn on_write(&self, outlet: &O, message: Message) -> Result<(), Malformed> {
        let request: WriteRequest = front(&message)?;
        let began = self.shared.times.write.begin();
        let mut state = self.shared.state.borrow_mut();
        state.stats.writes += 1;
        state.stats.write_bytes += message.data.len() as u64;
        state.store.data_crc = message.data_crc;
        let data = Summed::new(message.data, message.block_crcs);
        if self
            .deal(state, outlet, &request.head, |shard, store| shard.write(store, &request, data))
        {
            self.shared.state.borrow_mut().waiting.writes.push(began);
        }
        Ok(())
    }

    fn on_attach(&self, outlet: &O, message: &Message) -> Result<(), Malformed> {
        let request: AttachRequest = front(message)?;
        let state = self.shared.state.borrow_mut();
        if self.deal(state, outlet, &request.head, |shard, store| shard.attach(store, &request)) {
            let mut state = self.shared.state.borrow_mut();
            if let Some(held) = state.shards.get_mut(&request.head.pg()) {
                held.outlets.insert(request.head.session(), outlet.clone());
            }
        }
        Ok(())
    }

    fn on_mark(&self, outlet: &O, message: &Message) -> Result<(), Malformed> {
        let request: MarkRequest = front(message)?;
        let state = self.shared.state.borrow_mut();
        self.deal(state, outlet, &request.head, |shard, _| Ok(shard.mark(&request)));
        Ok(())
    }

    /// Lets the PG's machine take a one-way message, and answers at once what it refuses. True: it
    /// was not refused.
    fn deal(
        &self,
        mut state: std::cell::RefMut<'_, State<O>>,
        outlet: &O,
        head: &ShardHead,
        take: impl FnOnce(&mut PgShard, &mut CoreStore) -> Result<Outcome, StoreError>,
    ) -> bool {
        let free = state.store.space.free(self.shared.ratios.get());
        let State { store, shards, touched, sync, waiting, .. } = &mut *state;
        let (pg, attach) = (head.pg(), head.attach());
        let Some(held) = shards.get_mut(&pg) else {
            send_ack(outlet, not_held(pg, attach), state.hold());
            return false;
        };
        let result = match store.poison() {
            Some(_) => Ok(Outcome::Refused(Status::Io)),
            None => take(&mut held.shard, store),
        };
        store.data_crc = None;
        let taken = matches!(result, Ok(Outcome::Noted | Outcome::WantsSync));
        let refused = match result {
            Ok(Outcome::Noted) => None,
            Ok(Outcome::WantsSync) => {
                sync.wanted = true;
                waiting.syncs.push_back((sync.next(), self.shared.times.sync.begin()));
                None
            }
            Ok(Outcome::Refused(status)) => Some(status),
            Err(error) => {
                tracing::error!(%pg, %error, "a message could not be taken");
                Some(error.status())
            }
        };
        let refusal = refused.map(|status| held.shard.refusal(attach, status, free));
        touched.push(pg);
        if let Some(refusal) = refusal {
            send_ack(outlet, refusal, state.hold());
        }
        drop(state);
        self.schedule_turn();
        taken
    }

    // ---- the end of dead sessions

    /// Fences a dead session in these PGs, syncs, and says what is here of it; `None`: not an
    /// active member in one of the epochs.
    ///
    /// # Errors
    /// Those of the sync.
    pub async fn collect(
        &self,
        session: SessionId,
        pgs: &[(PgId, Epoch)],
    ) -> Result<Option<Vec<SessionHolding>>, CoreError> {
        for (pg, epoch) in pgs {
            if self.with(*pg, |shard, _| shard.fence(session, *epoch)) != Some(true) {
                return Ok(None);
            }
        }
        self.sync_before(Step::TellHolding).await?; // Rule: RecoverSync
        let holding = |(pg, epoch): &(PgId, Epoch)| {
            self.with(*pg, |shard, _| shard.holding(session, *epoch)).flatten()
        };
        Ok(pgs.iter().map(holding).collect())
    }

    /// Drops what lies beyond the cuts and forgets the session; gives the PGs for which that is
    /// durable.
    ///
    /// # Errors
    /// Those of the journal and the sync.
    pub async fn decide(
        &self,
        session: SessionId,
        cuts: &[(PgId, Epoch, Seq)],
    ) -> Result<Vec<PgId>, CoreError> {
        let mut decided = Vec::new();
        for (pg, epoch, cut) in cuts {
            if self
                .with(*pg, |shard, store| shard.decide(store, session, *epoch, *cut))
                .transpose()?
                == Some(true)
            {
                decided.push(*pg);
            }
        }
        self.sync_before(Step::TellDecided).await?; // Rule: DecideDurable
        Ok(decided)
    }

    // ---- state

    /// What was done so far, and is held now.
    pub fn stats(&self) -> CoreStats {
        let state = self.shared.state.borrow();
        let to_rebuild = |(pg, held): (&PgId, &Held<O>)| PgBacklog {
            pg: *pg,
            objects: held.shard.to_rebuild() as u64,
            bytes: state.backlogs.get(pg).map_or(0, Backlog::left_bytes),
            is_counted: held.shard.is_listed(),
        };
        CoreStats {
            journal_bytes: state.store.journal.bytes(),
            queued_bytes: state.queued_bytes,
            journal_records: state.shards.values().map(|h| h.shard.journalled() as u64).sum(),
            to_rebuild: state
                .shards
                .iter()
                .filter(|(_, h)| h.shard.is_returning())
                .map(to_rebuild)
                .collect(),
            fullness: state.store.space.fullness(self.shared.ratios.get()),
            backfills_waiting: state.toofull.len() as u64,
            ..state.stats.clone()
        }
    }

    /// Bytes that the disk took before it counts as full, when it was last asked.
    pub fn free_bytes(&self) -> u64 {
        self.shared.state.borrow().store.space.left(self.shared.ratios.get())
    }

    /// Why nothing is served any more, if a sync has failed.
    pub fn poison(&self) -> Option<String> {
        self.shared.state.borrow().store.poison().map(str::to_owned)
    }

    /// The next range that failed its checksum; waits for one. `None` once the core is stopped.
    pub async fn next_repair(&self) -> Option<Repair> {
        loop {
            let notified = self.shared.repair.notified();
            {
                let mut state = self.shared.state.borrow_mut();
                if state.stopped {
                    return None;
                }
                if let Some(repair) = state.repairs.pop_front() {
                    return Some(repair);
                }
            }
            notified.await;
        }
    }

    fn note_corrupt(&self, state: &mut State<O>, pg: PgId, object: ObjectId, range: Range<u64>) {
        if state.corrupt.len() >= REPAIRS_MAX
            || !state.corrupt.insert((pg, object, range.start, range.end))
        {
            return; // known, and tried again and again
        }
        state.stats.corrupt_found += 1;
        tracing::warn!(%pg, %object, ?range, "bytes fail their checksum: they are read from other shards and repaired");
        state.repairs.push_back(Repair { pg, object, range, avoid: ShardSet::EMPTY });
        self.shared.repair.notify_all();
    }

    /// Asks for the repair of corrupt ranges and of fragments that lost their header, again and
    /// again until it is done: records whose bytes are in the file only hold it back at first.
    fn repair_damaged(&self) {
        let mut state = self.shared.state.borrow_mut();
        let State { store, shards, repairs, damaged, corrupt, mends, .. } = &mut *state;
        let avoid = ShardSet::EMPTY;
        if repairs.is_empty() {
            let corrupt =
                corrupt.iter().map(|&(pg, object, start, end)| (pg, object, start..end, avoid));
            let mends = mends
                .iter()
                .map(|((pg, object), (range, avoid))| (*pg, *object, range.clone(), *avoid));
            repairs.extend(corrupt.chain(mends).map(|(pg, object, range, avoid)| Repair {
                pg,
                object,
                range,
                avoid,
            }));
            self.shared.repair.notify_all();
        }
        damaged.extend(store.fragments.take_salvaged().into_iter().map(|key| (key.pg, key.object)));
        for &(pg, object) in damaged.iter() {
            let Some(held) = shards.get(&pg) else { continue };
            let range = 0..held.shard.view().pg.profile.fragment_bytes();
            let repair = Repair { pg, object, range, avoid };
            if repairs.len() < REPAIRS_MAX && !repairs.contains(&repair) {
                repairs.push_back(repair);
                self.shared.repair.notify_all();
            }
        }
    }

    /// Takes nothing more, and syncs everything. The core's tasks end.
    ///
    /// # Errors
    /// Those of the sync: what was acknowledged as durable still is.
    pub async fn stop(&self) -> Result<(), CoreError> {
        self.shared.state.borrow_mut().shards.values_mut().for_each(|held| held.outlets.clear());
        let result = self.sync(true).await;
        self.halt();
        result
    }

    /// Ends the core's tasks at once, as the death of the process would.
    pub fn halt(&self) {
        self.shared.state.borrow_mut().stopped = true;
        self.shared.turn.notify_all();
        self.shared.synced.notify_all();
        self.shared.repair.notify_all();
        self.shared.gated.notify_all();
    }
}

/// Bytes that a session's message moves: those it brings, or those it asks for.
fn bytes_moved(message: &Message) -> u64 {
    let asked = match Kind::from_u16(message.kind) {
        Some(Kind::Read) => front::<ReadRequest>(message).ok(),
        _ => None,
    };
    // What is too long is refused; until then it must not count as more than can be.
    let asked = asked.map_or(0, |request| u64::from(request.length.get()).min(READ_BYTES_MAX));
    message.data.len() as u64 + asked
}

fn not_held(pg: PgId, attach: AttachId) -> AckMessage {
    AckMessage {
        pg: pg.to_u64().into(),
        epoch: 0.into(),
        attach: attach.get().into(),
        tail: 0.into(),
        durable: 0.into(),
        free: 0.into(),
        status: Status::NotActive as u8,
        flags: 0,
    }
}

/// `hold`: what [`State::hold`] gave.
fn send_ack<O: Outlet>(outlet: &O, mut ack: AckMessage, hold: u8) {
    ack.flags |= hold;
    let front = Bytes::copy_from_slice(ack.as_bytes());
    outlet.send(Message::new(TrafficClass::Client, Kind::Ack.to_u16(), front, Bytes::new()));
}

fn front<T: FromBytes + KnownLayout + Immutable>(message: &Message) -> Result<T, Malformed> {
    T::read_from_bytes(&message.front).map_err(|_| Malformed(message.kind))
}

/// The head and more of a read, stat or extents request.
fn read_front(message: &Message) -> Result<ReadRequest, Malformed> {
    if message.is_request() { front(message) } else { Err(Malformed(message.kind)) }
}

/// PGs touched since the turn before, each once.
fn take_touched<O>(state: &mut State<O>) -> BTreeSet<PgId> {
    state.touched.drain(..).collect()
}
