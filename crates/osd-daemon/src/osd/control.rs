//! Maps and the boot message: what happens once for each OSD, on worker 0.
//!
//! Contract: maps reach the cores in order, and none from before the answer to the boot message.

use super::link;
use super::power::Losses;
use super::shared::{AskError, Shared};
use super::{side, views};
use cluster::ClusterMap;
use messenger::Worker;
use protocol::Epoch;
use protocol::monitor::{MapUpdate, MonitorReply, MonitorRequest};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Time for the monitor to answer a boot message.
const BOOT_ANSWER_MAX: Duration = Duration::from_secs(3);
/// Pause before the boot message is sent again.
const RETRY_AFTER: Duration = Duration::from_millis(200);

/// See the module.
#[derive(Debug)]
pub(super) struct Control {
    worker: Worker,
    shared: Arc<Shared>,
    /// The first epoch that knows this start; no map before it is served.
    serve_from: Cell<Option<Epoch>>,
    /// The map that the cores have.
    served: Cell<Epoch>,
    booting: Cell<bool>,
}

/// The control of worker 0, made if there is none.
pub(super) fn of_worker(worker: &Worker, shared: &Arc<Shared>) -> Rc<Control> {
    worker.local::<Control>().unwrap_or_else(|| {
        let control = Rc::new(Control {
            worker: worker.clone(),
            shared: Arc::clone(shared),
            serve_from: Cell::new(None),
            served: Cell::default(),
            booting: Cell::new(false),
        });
        worker.set_local(Rc::clone(&control));
        control
    })
}

/// The monitor has taken the OSD in: serves from this epoch on.
pub(super) fn serve(worker: &Worker, from: Epoch) {
    let Some(control) = worker.local::<Control>() else { return };
    control.serve_from.set(Some(from));
    control.distribute();
}

impl Control {
    pub fn is_stopping(&self) -> bool {
        self.shared.is_stopping()
    }

    /// Asks the monitor that leads.
    pub async fn ask(
        &self,
        request: &MonitorRequest,
        deadline: Duration,
    ) -> Result<MonitorReply, AskError> {
        self.shared.ask(request, deadline).await
    }

    /// A map from a monitor. The newest epoch counts, whoever says it.
    pub fn take_map(self: &Rc<Self>, update: &MapUpdate) {
        let newest = self.shared.map().map_or(Epoch::default(), |map| map.epoch);
        let is_ours =
            !self.shared.cluster.is_known() || self.shared.cluster.get() == update.cluster;
        if update.epoch >= newest && is_ours {
            self.shared.learn_monitors(&update.monitors);
        }
        if update.epoch <= newest {
            return;
        }
        let map = match ClusterMap::decode(&update.map) {
            Ok(map) => map,
            Err(error) => return tracing::error!(%error, "map dropped"),
        };
        if let Err(what) = map.check_invariants() {
            return tracing::error!(epoch = %map.epoch, what, "map dropped: it is inconsistent");
        }
        if !self.shared.cluster.learn(map.cluster) {
            return tracing::error!(cluster = %map.cluster, "map dropped: it is another cluster's");
        }
        tracing::debug!(osd = %self.shared.config.id, epoch = %map.epoch, "map");
        self.shared.set_map(Arc::new(map));
        self.distribute();
        self.boot_if_down();
    }

    /// Hands the newest map to the cores.
    fn distribute(&self) {
        let (Some(map), Some(from)) = (self.shared.map(), self.serve_from.get()) else { return };
        if map.epoch < from || map.epoch <= self.served.get() || self.is_stopping() {
            return;
        }
        self.served.set(map.epoch);
        let config = &self.shared.config;
        let by_core = views::shard_views(&map, config.id, config.osd_op_threads);
        for (core, views) in by_core.into_iter().enumerate() {
            let map = Arc::clone(&map);
            self.shared.handle.spawn_on(core, move |worker| {
                if let Some(side) = worker.local::<side::Side>() {
                    side.learn(map, views);
                }
                std::future::ready(())
            });
        }
    }

    /// Model: Register. The map says that this OSD is down, and it is not.
    pub fn boot_if_down(self: &Rc<Self>) {
        let (Some(map), Some(from)) = (self.shared.map(), self.serve_from.get()) else { return };
        let down = map.osds.get(&self.shared.config.id).is_some_and(|osd| !osd.up);
        // One that left because of its disk comes back when that works.
        let away = self.shared.away.load(Ordering::Acquire);
        if !down || map.epoch < from || self.booting.get() || away || self.is_stopping() {
            return;
        }
        tracing::warn!(osd = %self.shared.config.id, epoch = %map.epoch, "marked down though alive: boots again");
        self.booting.set(true);
        self.worker.spawn(Rc::clone(self).boot());
    }

    async fn boot(self: Rc<Self>) {
        while !self.is_stopping() {
            let request = self.shared.boot_request(Losses::default());
            match self.shared.ask(&request, BOOT_ANSWER_MAX).await {
                Ok(MonitorReply::Done(epoch)) => {
                    self.serve_from.set(self.serve_from.get().max(Some(epoch)));
                    break;
                }
                Ok(other) => tracing::warn!(?other, "the monitor does not take this osd"),
                Err(error) => tracing::warn!(%error, "no answer to a boot message"),
            }
            self.worker.sleep(RETRY_AFTER).await;
        }
        self.booting.set(false);
        // it may have been marked down again meanwhile
        self.boot_if_down();
    }

    /// The monitor has a map of this epoch, and it has not come.
    pub fn missed_a_map(self: &Rc<Self>, epoch: Epoch) {
        tracing::warn!(%epoch, "a map was missed: asking for it");
        self.worker.spawn(link::subscribe(self.worker.clone(), Rc::clone(self)));
    }
}
