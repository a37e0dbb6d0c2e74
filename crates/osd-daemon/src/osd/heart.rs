//! Heartbeats: what keeps this OSD in the cluster, on a thread and a connection of their own.
//!
//! Contract: neither busy cores nor a connection full of data delay a heartbeat. What the cores
//! have to say they leave as signs of life ([`super::shared::Pulse`]); when these stay out,
//! [`super::rhythm`] decides. An OSD whose sync failed leaves for good, and its next start counts
//! as a loss of power: the kernel may have dropped what it could not write.

use super::control::Control;
use super::power::PowerFile;
use super::resolve;
use super::rhythm::{self, Rhythm, Signs, Step};
use super::shared::{AskError, Shared, ask_on};
use messenger::{
    CloseReason, ConnectConfig, Connection, Message, Runtime, RuntimeConfig, RuntimeError, Service,
    Worker,
};
use protocol::monitor::{MonitorReply, MonitorRequest};
use protocol::{ClusterId, Epoch, Kind};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Time for the monitor to answer; the next heartbeat follows all the same.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// How often it is asked how fast the others sync, while this OSD's disk is slow.
const COMPARE_EVERY: Duration = Duration::from_secs(1);
/// Pause after it was asked: clients may be waiting for what follows from the answer.
const COMPARED_AFTER: Duration = Duration::from_millis(100);
/// Pause before the monitor is told again that this OSD leaves.
const RETELL_AFTER: Duration = Duration::from_millis(500);

/// Starts it; it beats until the runtime is shut down.
///
/// # Errors
/// When the system gives no thread.
pub(super) fn start(
    shared: &Arc<Shared>,
    cluster: ClusterId,
    power: Arc<PowerFile>,
) -> Result<Runtime, RuntimeError> {
    let mut config = RuntimeConfig::new(format!("{}-heart", shared.config.id), 1);
    config.blocking_threads_max = 1;
    config.shared_memory = false;
    config.telemetry = shared.config.telemetry;
    let runtime = Runtime::start(config)?;
    shared.handle.add_companion(&runtime.handle());
    let shared = Arc::clone(shared);
    runtime.handle().spawn_on(0, move |worker| async move {
        let heart = Rc::new(Heart {
            worker: worker.clone(),
            shared,
            cluster,
            power,
            connection: RefCell::default(),
            lags: Cell::default(),
            is_asking: Cell::default(),
        });
        worker.set_local(Rc::clone(&heart));
        heart.run().await;
    });
    Ok(runtime)
}

struct Heart {
    worker: Worker,
    shared: Arc<Shared>,
    cluster: ClusterId,
    power: Arc<PowerFile>,
    connection: RefCell<Option<Connection>>,
    /// Whether its disk lags, as it was last asked, and when.
    lags: Cell<Option<(Instant, bool)>>,
    is_asking: Cell<bool>,
}

impl Heart {
    fn connect(&self) {
        let to = ConnectConfig::new(
            self.shared.config.monitor,
            self.cluster,
            format!("{} heart", self.shared.config.id),
        );
        let shared = Arc::clone(&self.shared);
        let link = move |_: &Worker| Rc::new(HeartLink { shared }) as Rc<dyn Service>;
        let connection = self.worker.handle().connect(self.worker.index(), to, link);
        *self.connection.borrow_mut() = Some(connection);
    }

    async fn ask(&self, request: &MonitorRequest) -> Result<MonitorReply, AskError> {
        let call = self
            .connection
            .borrow()
            .as_ref()
            .map(|connection| ask_on(connection, request, ANSWER_MAX));
        call.ok_or(AskError::NotConnected)?.await
    }

    async fn run(self: Rc<Self>) {
        let mut rhythm = Rhythm::new(Instant::now());
        let (mut behind, mut left) = (None, false);
        while !self.shared.is_stopping() {
            if let Some(why) = self.shared.poison() {
                return self.give_up(&why).await;
            }
            if self.connection.borrow().is_none() {
                self.connect();
            }
            let signs = self.signs();
            match rhythm.step(Instant::now(), signs, left) {
                Step::Beat => behind = self.beat(behind).await,
                Step::Leave => left = self.leave(&signs).await,
                Step::Away => {}
                Step::Silent => {
                    tracing::error!(silence = ?signs.silence, "no heartbeat: a core gives no sign of life")
                }
                Step::Return => {
                    left = false;
                    self.come_back();
                }
            }
            let pause = if self.is_asking.get() { COMPARED_AFTER } else { Duration::MAX };
            self.worker.sleep(self.shared.config.heartbeat_interval.min(pause)).await;
        }
    }

    /// What is seen now. How fast the others sync is asked only while this OSD's disk is slow and
    /// it could leave, and beside the heartbeats.
    fn signs(self: &Rc<Self>) -> Signs {
        let shared = &self.shared;
        let (slow, spare) = (shared.slow(), shared.is_spare());
        if slow.lasting.is_zero() {
            self.lags.set(None);
        } else if spare && !shared.away.load(Ordering::Acquire) {
            self.compare(slow.than);
        }
        let lags = self.lags.get().is_some_and(|(_, lags)| lags);
        Signs {
            silence: shared.silence(),
            sync_stall: shared.sync_stall(),
            slow_for: slow.lasting,
            lags,
            spare,
        }
    }

    /// Asks whether this OSD takes so many times as long for its syncs as others do. Not, as long
    /// as nobody says so.
    fn compare(self: &Rc<Self>, than: u64) {
        let now = Instant::now();
        if self.lags.get().is_some_and(|(asked, _)| now.duration_since(asked) < COMPARE_EVERY) {
            return;
        }
        self.lags.set(Some((now, false)));
        self.is_asking.set(true);
        let heart = Rc::clone(self);
        self.worker.spawn(async move {
            let answer = heart.ask(&MonitorRequest::Status).await;
            heart.is_asking.set(false);
            let Ok(MonitorReply::Status(status)) = answer else { return };
            let mine = heart.shared.report().sync_ms;
            let others =
                status.osds.iter().filter(|osd| osd.up && osd.id != heart.shared.config.id);
            heart
                .lags
                .set(Some((now, rhythm::lags(than, mine, others.map(|osd| osd.report.sync_ms)))));
        });
    }

    /// Sends a heartbeat. `behind`: the epoch that the last answer named and this OSD did not know
    /// then.
    async fn beat(&self, behind: Option<Epoch>) -> Option<Epoch> {
        let epoch =
            match self.ask(&MonitorRequest::Heartbeat { report: self.shared.report() }).await {
                Ok(MonitorReply::Done(epoch)) => epoch,
                Ok(other) => {
                    tracing::warn!(?other, "the monitor does not take a heartbeat");
                    return None;
                }
                Err(error) => {
                    tracing::debug!(%error, "no answer to a heartbeat");
                    return None;
                }
            };
        let known = self.shared.map().map_or(Epoch::default(), |map| map.epoch);
        if behind.is_some_and(|behind| behind > known) {
            self.on_control(move |control| control.missed_a_map(epoch));
            return None;
        }
        (epoch > known).then_some(epoch)
    }

    /// A core stands still: the others go on without this OSD.
    async fn leave(&self, signs: &Signs) -> bool {
        let osd = self.shared.config.id;
        self.shared.away.store(true, Ordering::Release);
        let Signs { silence, sync_stall, slow_for, .. } = signs;
        tracing::error!(
            %osd, ?silence, ?sync_stall, ?slow_for,
            "a core stands still, or its disk is slow: this osd leaves until it moves again"
        );
        matches!(self.ask(&MonitorRequest::Leave { osd }).await, Ok(MonitorReply::Done(_)))
    }

    fn come_back(&self) {
        tracing::warn!(osd = %self.shared.config.id, "all cores move again: this osd comes back");
        self.shared.away.store(false, Ordering::Release);
        self.on_control(|control| control.boot_if_down());
    }

    fn on_control(&self, work: impl FnOnce(&Rc<Control>) + Send + 'static) {
        self.shared.handle.spawn_on(0, move |worker| {
            if let Some(control) = worker.local::<Control>() {
                work(&control);
            }
            std::future::ready(())
        });
    }

    /// A disk failed: others had better go on without this OSD.
    async fn give_up(&self, why: &str) {
        let osd = self.shared.config.id;
        self.shared.away.store(true, Ordering::Release);
        tracing::error!(%osd, why, "the disk failed: this osd leaves; repair or replace the disk, then restart it");
        let power = Arc::clone(&self.power);
        let noted = self.worker.blocking(move || power.note_lost());
        let mut left = false;
        while !self.shared.is_stopping() && !left {
            left =
                matches!(self.ask(&MonitorRequest::Leave { osd }).await, Ok(MonitorReply::Done(_)));
            if !left {
                self.worker.sleep(RETELL_AFTER).await;
            }
        }
        if !matches!(noted.await, Ok(Ok(()))) {
            tracing::error!(%osd, "the failed sync cannot be noted: replace the disk before this osd starts again");
        }
    }
}

/// The monitor asks about dead sessions on the connection on which it last heard this OSD.
struct HeartLink {
    shared: Arc<Shared>,
}

impl Service for HeartLink {
    fn on_message(&self, worker: &Worker, connection: &Connection, message: Message) {
        match Kind::from_u16(message.kind) {
            Some(Kind::Resolve) if message.is_request() => {
                resolve::on_question(worker, &self.shared, connection, &message);
            }
            _ => tracing::warn!(kind = message.kind, "unexpected message of the monitor dropped"),
        }
    }

    fn on_close(&self, worker: &Worker, connection: &Connection, reason: &CloseReason) {
        let Some(heart) = worker.local::<Heart>().filter(|_| !self.shared.is_stopping()) else {
            return;
        };
        tracing::debug!(%reason, "the heartbeats' connection is lost; the next one makes another");
        let mut current = heart.connection.borrow_mut();
        if current.as_ref().is_some_and(|current| current.id() == connection.id()) {
            *current = None;
        }
    }
}
