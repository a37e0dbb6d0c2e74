//! One core of the OSD on its worker: what it owes the monitor, and the way of its shards back into
//! sync.
//!
//! Contract: lives on the core's worker, where services and functions from other workers find it.
//! The monitor hears of a PG only in the epoch that the core has learned. What was told is told
//! again after a while for as long as the map does not show it: the monitor may have restarted in
//! between.

use super::peers::Peers;
use super::scrub;
use super::shared::{Pulse, Shared};
use bytes::Bytes;
use cluster::ClusterMap;
use ec_store::core::recovery::{Members, Return};
use ec_store::core::{Core, CoreConfig, CoreError};
use ec_store::fragment::FragmentConfig;
use ec_store::journal::JournalConfig;
use ec_store::pg::ShardView;
use ec_store::slots::Slots;
use ec_store::superblock::DataDir;
use messenger::sync::Notify;
use messenger::{Connection, Worker};
use protocol::monitor::{MonitorReply, MonitorRequest, PathCut};
use protocol::recovery::{RecoveryReply, RecoveryRequest};
use protocol::{ClusterId, CoreId, Epoch, PgId, ShardIndex};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time for the monitor to answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Pause before what the monitor did not hear is told again.
const RETRY_AFTER: Duration = Duration::from_millis(200);
/// Pause before what the monitor heard, and the map does not show, is told again.
const RETELL_AFTER: Duration = Duration::from_secs(1);
/// Pause before a return that failed on this side is tried again.
const FAILED_RETRY_AFTER: Duration = Duration::from_secs(1);
/// Time between signs of life.
pub(super) const PULSE_EVERY: Duration = Duration::from_millis(250);

/// Where the return of a PG's shard stands, in one epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// A task rebuilds.
    Running,
    /// What was missed is rebuilt: the shard wants to be written to.
    CaughtUp,
    /// The shard is whole: it wants to be in sync.
    Whole,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Side {
    pub core: Core<Connection>,
    pub worker: Worker,
    pub shared: Arc<Shared>,
    peers: Rc<Peers>,
    /// Why this core serves no more, beside a failed sync.
    failed: RefCell<Option<String>>,
    /// A map, or the end of a way.
    changed: Notify,
    ways: RefCell<HashMap<PgId, (Epoch, Way)>>,
    /// When the monitor last heard of a PG in this epoch.
    told: RefCell<HashMap<PgId, (Epoch, Instant)>>,
    /// Rebuilding at a time.
    pub slots: Rc<Slots>,
}

/// Opens a core on its worker and starts its tasks. True: its journal names bytes that are not on
/// the disk.
///
/// # Errors
/// Those of [`Core::open`].
pub(super) fn open(
    shared: Arc<Shared>,
    dir: &DataDir,
    cluster: ClusterId,
    core: u16,
    worker: &Worker,
) -> Result<bool, CoreError> {
    let config = &shared.config;
    let journal =
        JournalConfig { journal_bytes_max: config.journal_bytes_max, ..JournalConfig::default() };
    let core_config = CoreConfig {
        journal,
        fragment: FragmentConfig {
            fragment_slot_bytes: config.fragment_slot_bytes,
            ..FragmentConfig::default()
        },
        disk: Arc::clone(&shared.disk),
        journal_sync_interval: config.journal_sync_interval,
        sync_lanes: sync_lanes(config.filestore_op_threads, config.osd_op_threads),
        throttles: config.throttles.of_core(config.osd_op_threads),
        disk_threads: disk_threads_of_core(config.osd_disk_threads, config.osd_op_threads),
        class_order: config.ms_class_order,
        ratios: config.ratios,
        cut_after_pg: config.path_cut == PathCut::MsgrPg,
        scrub_bytes_per_sec: (config.osd_scrub_bytes_per_sec / u64::from(config.osd_op_threads))
            .max(1),
        dirty_objects_max: config.osd_dirty_objects_max,
        recovery_bytes_per_sec: rate_of_core(
            config.osd_recovery_max_bytes_per_sec,
            config.osd_op_threads,
        ),
        ..CoreConfig::new(CoreId::new(core))
    };
    let opened = Core::open(dir, core_config, worker)?;
    let map = shared.map();
    // what cannot be read is not there; why not is told when the core learns the first view
    let lacks_bytes =
        opened.lacks_direct_bytes(|pg| map.as_ref()?.shard_of(pg, config.id)).unwrap_or(true);
    let slots = u64::from(config.osd_recovery_max_active / config.osd_op_threads);
    let peers = Rc::new(Peers::new(worker.clone(), cluster, config.id.to_string()));
    let side = Rc::new(Side {
        core: opened,
        worker: worker.clone(),
        shared,
        peers,
        failed: RefCell::default(),
        changed: Notify::new(),
        ways: RefCell::default(),
        told: RefCell::default(),
        slots: Slots::new(slots),
    });
    worker.set_local(Rc::clone(&side));
    worker.spawn(Rc::clone(&side).run());
    worker.spawn(Rc::clone(&side).pulse());
    worker.spawn(Rc::clone(&side).repairs());
    worker.spawn(scrub::run(side));
    Ok(lacks_bytes)
}

/// A core's part of the whole OSD's rate; 0 is no limit.
pub(super) fn rate_of_core(bytes_per_sec: u64, cores: u16) -> u64 {
    if bytes_per_sec == 0 { 0 } else { (bytes_per_sec / u64::from(cores)).max(1) }
}

/// I/O threads that a sync of a core takes: those of all cores leave half of them to reads that
/// miss the page cache.
pub(super) fn sync_lanes(op_threads: u16, cores: u16) -> usize {
    usize::from(op_threads / 2 / cores).clamp(1, CoreConfig::SYNC_LANES)
}

/// A core's part of the threads of background disk jobs, at least one.
pub(super) fn disk_threads_of_core(disk_threads: u16, cores: u16) -> u64 {
    u64::from(disk_threads / cores).max(1)
}

/// Stops the core of a worker. False: not everything is synced.
pub(super) async fn stop(worker: Worker) -> bool {
    let Some(side) = worker.take_local::<Side>() else { return false };
    side.changed.notify_all();
    side.peers.close();
    match side.core.stop().await {
        Ok(()) => true,
        Err(error) => {
            tracing::error!(core = %side.core.id(), %error, "not everything could be synced");
            false
        }
    }
}

/// The other shards of PGs, for the core's way back.
#[derive(Clone, Debug)]
pub(super) struct Others(Rc<Peers>);

impl Members for Others {
    fn ask(
        &self,
        member: ShardIndex,
        request: RecoveryRequest,
    ) -> impl Future<Output = Option<(RecoveryReply, Bytes)>> + 'static {
        let peers = Rc::clone(&self.0);
        async move { peers.ask(member, &request).await }
    }
}

impl Side {
    /// The other shards of this core's PGs.
    pub fn others(&self) -> Others {
        Others(Rc::clone(&self.peers))
    }

    /// A newer map, and what it says of this core's PGs.
    pub fn learn(&self, map: Arc<ClusterMap>, views: Vec<ShardView>) {
        if self.shared.is_stopping() || self.failed.borrow().is_some() {
            return;
        }
        for view in views {
            let pg = view.pg.pg;
            let Err(error) = self.core.learn(view) else { continue };
            tracing::error!(%pg, %error, "a placement group cannot take its view of the map");
            if self.core.view(pg).is_none() {
                // What the journal holds of it could not be checked. Holding it all the same would
                // claim records that may not be there: only a restart may try again.
                *self.failed.borrow_mut() = Some(format!("pg {pg}: {error}"));
                return self.beat();
            }
        }
        self.core.views_are_complete();
        self.peers.learn(map);
        self.changed.notify_all();
    }

    async fn pulse(self: Rc<Self>) {
        while !self.shared.is_stopping() {
            self.beat();
            self.worker.sleep(PULSE_EVERY).await;
        }
    }

    /// Gives a sign of life.
    fn beat(&self) {
        let (stats, free_bytes) = (self.core.stats(), self.core.free_bytes());
        let poison = self.failed.borrow().clone().or_else(|| self.core.poison());
        let (at, sync_stall, syncs) =
            (Instant::now(), self.core.sync_stall(), self.core.last_syncs());
        self.shared.set_pulse(
            self.worker.index(),
            Pulse { at, sync_stall, syncs, stats, free_bytes, poison },
        );
    }

    async fn repairs(self: Rc<Self>) {
        while let Some(repair) = self.core.next_repair().await {
            match self.core.repair(&repair, self.others()).await {
                Ok(true) => {}
                Ok(false) => tracing::debug!(?repair, "cannot be repaired now; it is tried again"),
                Err(error) => tracing::error!(?repair, %error, "cannot be repaired"),
            }
        }
    }

    /// Tells the monitor what it must hear, and starts returns, whenever something has changed.
    async fn run(self: Rc<Self>) {
        loop {
            let changed = self.changed.notified();
            if self.shared.is_stopping() || self.failed.borrow().is_some() {
                return;
            }
            self.start_returns();
            let heard = self.tell().await;
            let pause = match heard {
                Heard::Nothing => {
                    changed.await;
                    continue;
                }
                Heard::All => RETELL_AFTER,
                Heard::NotAll => RETRY_AFTER,
            };
            // over, or something has changed before that: the round is the same
            let _ = self.worker.timeout(pause, changed).await;
        }
    }

    // ---- what the monitor must hear

    async fn tell(&self) -> Heard {
        let (osd, fsid) = (self.shared.config.id, self.shared.fsid());
        let wishes = self.wishes();
        if wishes.is_empty() {
            return Heard::Nothing;
        }
        let due = |wanted: Wish| {
            let fits = wishes
                .iter()
                .filter(move |(_, _, wish)| *wish == wanted)
                .map(|(pg, epoch, _)| (*pg, *epoch));
            fits.filter(|(pg, epoch)| !self.was_told(*pg, *epoch)).collect::<Vec<_>>()
        };
        let mut requests = Vec::new();
        let (peered, ask_join) = (due(Wish::Peered), due(Wish::AskJoin));
        if !peered.is_empty() {
            requests.push((MonitorRequest::Peered { osd, fsid, pgs: peered.clone() }, peered));
        }
        if !ask_join.is_empty() {
            requests.push((MonitorRequest::AskJoin { osd, fsid, pgs: ask_join.clone() }, ask_join));
        }
        for (pg, epoch) in due(Wish::Join) {
            requests.push((MonitorRequest::Join { osd, fsid, pg, epoch }, vec![(pg, epoch)]));
        }
        // all are under way before the first answer is waited for: the monitor takes them together
        let asked: Vec<_> = requests
            .into_iter()
            .map(|(request, pgs)| (self.shared.ask(&request, ANSWER_MAX), pgs))
            .collect();
        let mut heard = Heard::All;
        for (answer, pgs) in asked {
            match answer.await {
                Ok(MonitorReply::Done(_)) => {}
                Ok(other) => tracing::debug!(?other, "the monitor has another epoch by now"),
                Err(error) => {
                    tracing::debug!(%error, "the monitor did not hear");
                    heard = Heard::NotAll;
                    continue;
                }
            }
            let now = Instant::now();
            self.told.borrow_mut().extend(pgs.into_iter().map(|(pg, epoch)| (pg, (epoch, now))));
        }
        heard
    }

    /// What every PG should be told of, in its present epoch.
    fn wishes(&self) -> Vec<(PgId, Epoch, Wish)> {
        let wish = |pg: PgId| {
            let view = self.core.view(pg)?;
            let way = self
                .ways
                .borrow()
                .get(&pg)
                .filter(|(epoch, _)| *epoch == view.pg.epoch)
                .map(|(_, way)| *way);
            let wish = match way {
                _ if view.is_in_sync() && !view.pg.active => Wish::Peered,
                Some(Way::CaughtUp) if !view.is_joining() => Wish::AskJoin,
                Some(Way::Whole) if view.is_joining() => Wish::Join,
                _ => return None,
            };
            Some((pg, view.pg.epoch, wish))
        };
        self.core.pgs().into_iter().filter_map(wish).collect()
    }

    fn was_told(&self, pg: PgId, epoch: Epoch) -> bool {
        let told = self.told.borrow();
        told.get(&pg)
            .is_some_and(|(at_epoch, at)| *at_epoch == epoch && at.elapsed() < RETELL_AFTER)
    }

    // ---- the way back

    fn start_returns(self: &Rc<Self>) {
        for pg in self.core.pgs() {
            let state =
                self.core.with(pg, |shard, _| (shard.is_returning(), shard.view().pg.epoch));
            let Some((returning, epoch)) = state else { continue };
            let mut ways = self.ways.borrow_mut();
            match ways.get(&pg) {
                // a task of an older epoch ends by itself, and then says so
                Some((_, Way::Running)) => {}
                Some((of, _)) if *of == epoch && returning => {}
                _ if returning => {
                    ways.insert(pg, (epoch, Way::Running));
                    self.worker.spawn(Rc::clone(self).return_shard(pg));
                }
                _ => drop(ways.remove(&pg)),
            }
        }
    }

    /// Only rebuilding takes a slot: what is missed is listed for all shards at once, so that it
    /// can be told.
    async fn go_back(&self, pg: PgId) -> Result<Return, CoreError> {
        if !self.core.list_missed(pg, self.others()).await? {
            return Ok(Return::Over);
        }
        loop {
            // what waits for space takes no slot
            self.core.backfill_room(pg).await;
            let _permit = self.slots.take().await;
            match self.core.return_shard(pg, self.others()).await? {
                Return::TooFull => {}
                over => return Ok(over),
            }
        }
    }

    async fn return_shard(self: Rc<Self>, pg: PgId) {
        let began = Instant::now();
        let way = match self.go_back(pg).await {
            Ok(Return::CaughtUp(epoch)) => {
                tracing::info!(%pg, %epoch, took = ?began.elapsed(), "caught up");
                Some((epoch, Way::CaughtUp))
            }
            Ok(Return::Whole(epoch)) => {
                tracing::info!(%pg, %epoch, took = ?began.elapsed(), "whole");
                Some((epoch, Way::Whole))
            }
            Ok(Return::Over | Return::TooFull) => {
                // not at once: should the epoch not be over after all, this must not spin
                self.worker.sleep(RETRY_AFTER / 10).await;
                None
            }
            Err(error) => {
                tracing::error!(%pg, %error, "a shard cannot return; it tries again");
                self.worker.sleep(FAILED_RETRY_AFTER).await;
                None
            }
        };
        match way {
            Some(way) => drop(self.ways.borrow_mut().insert(pg, way)),
            None => drop(self.ways.borrow_mut().remove(&pg)),
        }
        self.changed.notify_all();
    }
}

/// What the monitor should hear of a PG.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wish {
    Peered,
    AskJoin,
    Join,
}

/// What became of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Heard {
    /// There was nothing to hear.
    Nothing,
    All,
    NotAll,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syncs_leave_reads_half_of_the_threads_where_there_are_enough() {
        assert_eq!([2, 4, 5, 64].map(|cores| sync_lanes(16, cores)), [4, 2, 1, 1]);
        assert_eq!([1, 2, 7, 64].map(|threads| sync_lanes(threads, 2)), [1, 1, 1, 4]);
    }
}
