//! What a core does by itself: the end of a turn, syncs, applying, trimming.

use super::sync_job::{SyncFailure, SyncJob, SyncResult};
use super::sync_state::{SyncSeen, SyncWork};
use super::{
    Core, CoreError, CoreStore, Outlet, State, TRIM_IDLE, UPKEEP_INTERVAL, send_ack, take_touched,
};
use crate::fragment::{FragmentFile, FragmentKey};
use crate::fullness::FullRatios;
use crate::journal;
use crate::pg::shard::{Barrier, Lsn, Step, StoreError};
use protocol::shard::Status;
use protocol::{PgId, Rules};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes applied before the clock is looked at: a fraction of a millisecond.
const APPLY_BYTES: u64 = 512 << 10;
/// How long is applied before other tasks and the sockets get their turn. If they then take longer,
/// so does applying: what they bring is never more than can be applied.
const APPLY_TIME: Duration = Duration::from_micros(500);
/// How often it is looked what has become stable: soon, as records that wait are held in memory
/// here and in their client.
const APPLY_INTERVAL: Duration = Duration::from_millis(10);
/// How often it is looked whether space beside slots can be given back.
const GIVE_BACK_INTERVAL: Duration = Duration::from_secs(1);
/// Files that are looked at then: each may have to be opened.
const GIVE_BACK_FILES: usize = 16;
/// Space beside slots is given back when nothing was placed in a file for so long.
const GIVE_BACK_DELAY: Duration = Duration::from_secs(60);
/// How long to wait when the disk is full.
const FULL_DELAY: Duration = Duration::from_millis(100);
/// Least time between trims of a journal that is not nearly full: each syncs every changed file.
const TRIM_PAUSE: Duration = Duration::from_millis(500);
/// A disk that still takes so many times what a journal may hold has space for trimmed segments:
/// what they take, a journal at most, is then no share of it that anybody would miss.
const ROOMY_JOURNALS: u64 = 16;
/// How often the disk is asked for its space.
const FREE_INTERVAL: Duration = Duration::from_secs(1);
/// With less than this left it is asked more often: what was taken since counts as more than it may
/// take.
const FREE_LOW: u64 = 256 << 20;
const FREE_LOW_INTERVAL: Duration = Duration::from_millis(20);

/// What the task of turns has to do after one.
enum After {
    Nothing,
    /// A sync that takes no time worth another thread's.
    SyncHere,
    /// The disk is full: the turn is to be ended again, later.
    Full,
}

/// What came of applying what may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Applied {
    /// There was nothing to apply.
    Nothing,
    Something,
    /// Some objects could not be written.
    Failed,
}

/// A sync that was begun.
struct BegunSync {
    number: u64,
    all: bool,
    job: SyncJob,
}

impl<O: Outlet> Core<O> {
    /// The end of the turn is to flush and to answer.
    pub(super) fn schedule_turn(&self) {
        let mut state = self.shared.state.borrow_mut();
        if !std::mem::replace(&mut state.turn_due, true) {
            drop(state);
            self.shared.turn.notify_all();
        }
    }

    pub(super) async fn turns(self) {
        loop {
            let notified = self.shared.turn.notified();
            let (due, stopped) = {
                let state = self.shared.state.borrow();
                (state.turn_due, state.stopped)
            };
            if stopped {
                return;
            }
            if !due {
                notified.await;
                continue;
            }
            match self.end_turn() {
                After::Nothing => {}
                After::Full => self.shared.worker.sleep(FULL_DELAY).await,
                After::SyncHere => {
                    // The answers leave first: whoever wrote goes on meanwhile.
                    self.shared.worker.yield_now().await;
                    if self.sync_here() {
                        self.shared.worker.sleep(FULL_DELAY).await;
                    }
                }
            }
        }
    }

    /// Flushes the journal and answers. Begins a sync that is wanted, unless it is one to be run by
    /// this task.
    fn end_turn(&self) -> After {
        self.note_wanted_sync();
        if !self.flush() {
            return After::Full;
        }
        let mut state = self.shared.state.borrow_mut();
        state.turn_due = false;
        let ratios = self.shared.ratios.get();
        if state.store.space.free(ratios) < FREE_LOW
            && state.space_asked.is_none_or(|at| at.elapsed() >= FREE_LOW_INTERVAL)
        {
            self.look_up_space(&mut state);
        }
        let touched = take_touched(&mut state);
        touched.iter().for_each(|pg| state.count_queued(*pg));
        state.want_due_sync();
        for pg in touched {
            Self::answer(&mut state, pg, ratios);
        }
        self.shared.times.answered(&mut state.waiting);
        if !state.sync.wanted || state.sync.is_running() {
            return After::Nothing;
        }
        if state.sync.is_brief(Self::sync_work(&state)) {
            return After::SyncHere;
        }
        drop(state);
        self.sync_aside();
        After::Nothing
    }

    /// Writes the journal to the page cache. False: the disk is full. One that failed poisons, and
    /// everybody is told so.
    fn flush(&self) -> bool {
        let mut state = self.shared.state.borrow_mut();
        match state.store.flush() {
            Ok(()) => {}
            Err(StoreError::Io(why)) => {
                state.store.set_poison(why);
                drop(state);
                self.shared.synced.notify_all();
            }
            Err(error) => {
                tracing::warn!(%error, "the journal cannot be written");
                return false;
            }
        }
        true
    }

    fn answer(state: &mut State<O>, pg: PgId, ratios: FullRatios) {
        let free = state.store.space.free(ratios);
        let hold = state.hold();
        let State { store, shards, .. } = state;
        let Some(held) = shards.get_mut(&pg).filter(|held| held.shard.has_acks()) else { return };
        let is_poisoned = store.poison().is_some();
        let outlets = &held.outlets;
        held.shard.take_acks(free, |session, mut ack| {
            if is_poisoned {
                ack.status = Status::Io as u8;
            }
            if let Some(outlet) = outlets.get(&session) {
                send_ack(outlet, ack, hold);
            }
        });
    }

    // ---- sync

    /// Makes everything taken so far durable; `all`: what was applied to fragment files, too.
    ///
    /// # Errors
    /// `Poisoned`, `Stopped`.
    pub async fn sync(&self, all: bool) -> Result<(), CoreError> {
        let target = {
            let mut state = self.shared.state.borrow_mut();
            state.sync.all |= all;
            state.sync.wanted = true;
            state.sync.next()
        };
        self.schedule_turn();
        loop {
            let notified = self.shared.synced.notified();
            {
                let mut state = self.shared.state.borrow_mut();
                if let Some(why) = state.store.poison() {
                    return Err(CoreError::Poisoned(why.to_owned()));
                }
                if state.sync.is_done(target) {
                    return Ok(());
                }
                if state.stopped {
                    return Err(CoreError::Stopped);
                }
                // the one begun before may have been counted back as it met a full disk
                if !state.sync.is_running() {
                    (state.sync.wanted, state.sync.all) = (true, state.sync.all | all);
                }
            }
            self.schedule_turn();
            notified.await;
        }
    }

    /// Makes durable what must be before `step`.
    ///
    /// # Errors
    /// Those of [`Core::sync`].
    pub(super) async fn sync_before(&self, step: Step) -> Result<(), CoreError> {
        match step.barrier(Rules::default()) {
            Barrier::Nothing => Ok(()),
            Barrier::Journal => self.sync(false).await,
            Barrier::Everything => self.sync(true).await,
        }
    }

    /// A sync of everything is to begin at the end of the turn if too many open files wait for one.
    fn note_wanted_sync(&self) -> bool {
        let mut state = self.shared.state.borrow_mut();
        let is_wanted = state.store.fragments.take_wants_sync();
        state.sync.wanted |= is_wanted;
        state.sync.all |= is_wanted;
        is_wanted
    }

    /// Runs the sync that is wanted on this thread, with what has come meanwhile, if that left it a
    /// brief one; the turn ends anew then. True: the disk is full, and it is to be tried again.
    fn sync_here(&self) -> bool {
        if !self.flush() {
            self.schedule_turn();
            return false;
        }
        let is_brief = {
            let state = self.shared.state.borrow();
            state.sync.is_brief(Self::sync_work(&state))
        };
        if !is_brief {
            self.sync_aside();
            return false;
        }
        let Some(BegunSync { number, all, job }) = self.begin_sync() else { return false };
        let is_full = match self.shared.worker.catch("a sync", || job.run()) {
            Some(result) => self.finish_sync(number, all, result),
            None => {
                self.lose("a sync did not end".to_owned());
                false
            }
        };
        self.schedule_turn();
        is_full
    }

    /// Runs the sync that is wanted on I/O threads.
    fn sync_aside(&self) {
        let Some(BegunSync { number, all, job }) = self.begin_sync() else { return };
        let ended = job.run_aside(&self.shared.worker, self.shared.sync_lanes.get());
        let core = self.clone();
        self.shared.worker.spawn(async move {
            if core.finish_sync(number, all, ended.await) {
                core.shared.worker.sleep(FULL_DELAY).await;
            }
            core.schedule_turn();
        });
    }

    /// What a sync that begins now has to do.
    fn sync_work(state: &State<O>) -> SyncWork {
        let (beside, handle) =
            (state.store.unsynced_files(state.sync.all), state.store.journal.sync_handle());
        SyncWork {
            files: beside + 1,
            is_journal_alone: beside == 0 && handle.files() <= 1,
            written: state.store.space.disk_written(),
            journalled: state.store.journal.appended_bytes(),
        }
    }

    /// The sync to be run; `None` where nothing is synced any more.
    fn begin_sync(&self) -> Option<BegunSync> {
        let mut state = self.shared.state.borrow_mut();
        if state.store.poison().is_some() || state.stopped {
            return None;
        }
        let work = Self::sync_work(&state);
        let all = std::mem::take(&mut state.sync.all);
        for held in state.shards.values_mut().filter(|held| held.shard.is_unsynced()) {
            held.shard.begin_sync();
        }
        let unsynced = state.store.take_unsynced(all);
        let journal = state.store.journal.sync_handle();
        state.sync_began_at = state.store.bytes_to_sync();
        let (number, steps) = state.sync.begin(Instant::now(), work);
        Some(BegunSync { number, all, job: SyncJob::new(journal, unsynced, steps) })
    }

    /// It has run. True: the disk is full, and it is to be tried again.
    fn finish_sync(&self, number: u64, all: bool, result: SyncResult) -> bool {
        match result {
            Ok(lsn) => self.end_sync(number, lsn),
            Err((SyncFailure::Full, beside)) => {
                let mut state = self.shared.state.borrow_mut();
                state.store.put_back(beside);
                state.sync.end_full(Instant::now(), all);
                return true;
            }
            Err((SyncFailure::Lost(why), _)) => self.lose(why),
        }
        false
    }

    fn end_sync(&self, number: u64, lsn: journal::Lsn) {
        let mut state = self.shared.state.borrow_mut();
        let State { store, shards, touched, sync, stats, .. } = &mut *state;
        store.journal.synced(lsn);
        sync.end(Instant::now(), number);
        stats.syncs += 1;
        for (pg, held) in shards.iter_mut().filter(|(_, held)| held.shard.is_unsynced()) {
            held.shard.end_sync();
            sync.wanted |= held.shard.wants_sync();
            touched.push(*pg);
        }
        self.shared.times.synced(&mut state.waiting, number);
        drop(state);
        self.shared.synced.notify_all();
        self.end_hold();
    }

    /// For how long the disk has not ended a sync of a single file, though asked to. To be looked
    /// at again and again.
    pub fn sync_stall(&self) -> Duration {
        self.shared.state.borrow_mut().sync.stall(Instant::now())
    }

    /// The last two syncs, the older one first; the last may still run.
    pub fn last_syncs(&self) -> [Option<SyncSeen>; 2] {
        self.shared.state.borrow().sync.seen()
    }

    fn lose(&self, why: String) {
        let mut state = self.shared.state.borrow_mut();
        state.sync.stop(Instant::now());
        state.store.set_poison(why);
        drop(state);
        self.shared.synced.notify_all();
    }

    // ---- upkeep

    /// Syncs at the interval of [`super::CoreConfig::journal_sync_interval`], however long applying
    /// takes.
    pub(super) async fn syncs(self) {
        let mut last = Instant::now();
        loop {
            let interval = self.shared.journal_sync_interval.get();
            // A new interval counts soon.
            self.shared.worker.sleep(UPKEEP_INTERVAL.min(interval)).await;
            if self.shared.state.borrow().stopped {
                return;
            }
            if last.elapsed() >= interval {
                last = Instant::now();
                self.sync_if_needed();
            }
        }
    }

    /// Applies what has become stable, however long syncs and trims take.
    pub(super) async fn applies(self) {
        let mut pause = UPKEEP_INTERVAL;
        loop {
            self.shared.worker.sleep(pause).await;
            if self.shared.state.borrow().stopped {
                return;
            }
            pause = match self.apply().await {
                Applied::Nothing => UPKEEP_INTERVAL,
                Applied::Something => APPLY_INTERVAL,
                Applied::Failed => FULL_DELAY,
            };
            if self.note_wanted_sync() {
                self.schedule_turn();
            }
        }
    }

    /// Begins to bring to the disk what was applied, so that the sync before a trim has little to
    /// wait for.
    pub(super) async fn write_backs(self) {
        loop {
            self.shared.worker.sleep(UPKEEP_INTERVAL).await;
            let files = {
                let mut state = self.shared.state.borrow_mut();
                if state.stopped {
                    return;
                }
                let State { store, throttles, stats, .. } = &mut *state;
                if !store.unflushed.begin_if_due(&throttles.write_back, &mut stats.write_backs) {
                    continue;
                }
                store.fragments.dirty_files().cloned().collect::<Vec<_>>()
            };
            // Class II: writers wait for the space that this makes.
            let job = self
                .shared
                .worker
                .blocking(move || files.iter().for_each(|file| file.begin_write_back()));
            if job.await.is_err() {
                tracing::warn!("writing back ended in a panic");
            }
        }
    }

    pub(super) async fn upkeep(self) {
        let mut last_free = Instant::now();
        loop {
            let interval = UPKEEP_INTERVAL.min(self.shared.journal_sync_interval.get());
            self.shared.worker.sleep(interval).await;
            if self.shared.state.borrow().stopped {
                return;
            }
            if last_free.elapsed() >= FREE_INTERVAL {
                last_free = Instant::now();
                self.refresh_free();
                self.repair_damaged();
            }
            if self.is_trim_due() {
                match self.trim().await {
                    Ok(()) | Err(CoreError::Stopped) => {}
                    Err(error) => {
                        tracing::warn!(%error, "the journal could not be trimmed");
                        self.shared.worker.sleep(FULL_DELAY).await;
                    }
                }
            }
        }
    }

    fn sync_if_needed(&self) {
        let needed = {
            let mut state = self.shared.state.borrow_mut();
            let unsynced = state.shards.values().any(|held| held.shard.is_unsynced());
            let needed = unsynced && !state.sync.is_running();
            state.sync.wanted |= needed;
            needed
        };
        if needed {
            self.schedule_turn();
        }
    }

    /// Asks the disk for its space.
    pub(super) fn refresh_free(&self) {
        self.look_up_space(&mut self.shared.state.borrow_mut());
    }

    pub(super) fn look_up_space(&self, state: &mut State<O>) {
        let unplaced = state.shards.values().map(|held| held.shard.unapplied_space()).sum();
        state.space_asked = Some(Instant::now());
        let CoreStore { fragments, space, .. } = &mut state.store;
        let ask = || {
            fragments.space().map(|space| (space.used_bytes + space.free_bytes, space.free_bytes))
        };
        if let Err(error) = space.look_up(unplaced, ask) {
            tracing::warn!(%error, "the free space cannot be looked up");
        }
        let roomy = ROOMY_JOURNALS * self.shared.config.journal.journal_bytes_max;
        let is_roomy = state.store.space.free(self.shared.ratios.get()) >= roomy;
        state.store.set_roomy(is_roomy);
    }

    /// Applies everything that may be applied, letting others have their turn in between.
    pub(super) async fn apply(&self) -> Applied {
        let pgs: Vec<PgId> = {
            let state = self.shared.state.borrow();
            state
                .shards
                .iter()
                .filter(|(_, held)| held.shard.has_to_apply())
                .map(|(pg, _)| *pg)
                .collect()
        };
        let (mut began, mut time) = (Instant::now(), APPLY_TIME);
        let mut applied = if pgs.is_empty() { Applied::Nothing } else { Applied::Something };
        for pg in pgs {
            loop {
                let result = {
                    let mut state = self.shared.state.borrow_mut();
                    let State { store, shards, .. } = &mut *state;
                    let Some(held) = shards.get_mut(&pg).filter(|held| held.shard.has_to_apply())
                    else {
                        break;
                    };
                    let result = held.shard.apply_some(store, APPLY_BYTES);
                    state.count_queued(pg);
                    result
                };
                if self.note_wanted_sync() {
                    self.schedule_turn();
                }
                if let Err(error) = result {
                    tracing::warn!(%pg, %error, "records stay in the journal: their object cannot be written");
                    applied = Applied::Failed;
                    break;
                }
                let left = Instant::now();
                if left - began >= time {
                    self.shared.worker.yield_now().await;
                    began = Instant::now();
                    time = APPLY_TIME.max(began - left);
                }
            }
        }
        self.end_hold();
        applied
    }

    fn is_trim_due(&self) -> bool {
        let state = self.shared.state.borrow();
        // nothing may go before it is known which PGs are held here
        let Some(last) = state.last_trim else { return false };
        // What was placed is no longer in its way once it is trimmed, as what is journalled.
        let bytes = state.store.journal.bytes() + state.store.placed_bytes();
        let bytes_max = self.shared.config.journal.journal_bytes_max;
        let (used, nearly_full) = (bytes >= bytes_max / 4, bytes >= bytes_max / 4 * 3);
        let waited = |pause| last.elapsed() >= pause;
        let records = state.shards.values().any(|held| held.shard.journalled() > 0);
        let due =
            nearly_full || (used || state.trim_wanted) && waited(TRIM_PAUSE) || waited(TRIM_IDLE);
        // Records that were dropped take as much of the journal as others: it may be full without a
        // single one that counts.
        let dropped = used && waited(TRIM_PAUSE);
        (records && due || dropped) && state.store.poison().is_none()
    }

    /// Lets go of every record that is applied, up to the first that is not.
    ///
    /// # Errors
    /// Those of syncs and of the journal: nothing went.
    pub(super) async fn trim(&self) -> Result<(), CoreError> {
        let is_awaited;
        let (upto, goes) = {
            let mut state = self.shared.state.borrow_mut();
            state.last_trim = Some(Instant::now());
            state.trim_wanted = false;
            let steps: Vec<_> = state.shards.values().map(|held| held.shard.trim_step()).collect();
            let next = Lsn(state.store.last_lsn().0 + 1);
            let upto = steps.iter().filter_map(|step| step.first_unapplied).min().unwrap_or(next);
            // What waits for this trim may then hold up the next: one of a chain of writes and
            // removals.
            is_awaited = steps.iter().any(|step| step.is_trim_awaited);
            let first = steps.iter().filter_map(|step| step.first).min();
            let goes =
                first.is_some_and(|first| first < upto) || state.store.has_segment_before(upto);
            (upto, goes || state.store.has_named_before(upto))
        };
        if !goes {
            return Ok(());
        }
        self.shared.state.borrow_mut().trim_wanted |= is_awaited;
        self.sync_before(Step::WriteCheckpoint).await?; // Rule: TrimSynced
        let checkpoint = {
            let mut state = self.shared.state.borrow_mut();
            let State { store, shards, .. } = &mut *state;
            let states: Vec<_> =
                shards.iter_mut().map(|(pg, held)| (*pg, held.shard.prepare_trim(upto))).collect();
            store.append_checkpoint(upto, &states)?
        };
        self.sync_before(Step::Trim).await?; // Rule: DirtyDurable
        let mut state = self.shared.state.borrow_mut();
        let State { store, shards, .. } = &mut *state;
        shards.values_mut().for_each(|held| held.shard.commit_trim(upto));
        store.trim(upto, checkpoint)?;
        drop(state);
        self.end_hold();
        Ok(())
    }

    /// Gives the space of places that nobody counts on back to the file system, off this thread,
    /// where nothing was placed for a while: space that is taken anew costs more than that which is
    /// used again.
    pub(super) async fn give_backs(self) {
        let mut idle: HashMap<FragmentKey, Instant> = HashMap::new();
        loop {
            self.shared.worker.sleep(GIVE_BACK_INTERVAL).await;
            let files = {
                let mut state = self.shared.state.borrow_mut();
                if state.stopped {
                    return;
                }
                let now = Instant::now();
                idle.extend(state.store.take_unnamed().into_iter().map(|key| (key, now)));
                let due = idle
                    .iter()
                    .filter(|(_, since)| now - **since >= GIVE_BACK_DELAY)
                    .map(|(key, _)| *key);
                let due: Vec<FragmentKey> = due.take(GIVE_BACK_FILES).collect();
                due.iter().for_each(|key| _ = idle.remove(key));
                if due.is_empty() {
                    continue;
                }
                state.store.unnamed_files(&due)
            };
            self.give_back(files).await;
        }
    }

    async fn give_back(&self, files: Vec<Arc<FragmentFile>>) {
        let give_back = |file: &Arc<FragmentFile>| {
            if let Err(error) = file.give_back() {
                tracing::warn!(fragment = %file.key(), %error, "space beside its slots stays taken");
            }
        };
        if self.background(0, move || files.iter().for_each(give_back)).await.is_err() {
            tracing::warn!("giving back space ended in a panic");
        }
    }
}
