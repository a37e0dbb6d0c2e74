//! Deleting the objects of files that are gone, and finding how far the data of files reaches whose
//! writers died.
//!
//! Contract: what is done here survives nothing by itself. An entry leaves the owner's queue only
//! when the data worker has succeeded, so everything may be done twice: both operations must bear
//! that. Failures are tried again after a pause.

mod backlog;

use super::inbox::{Event, Inbox};
use super::link;
use backlog::{Backlog, Job};
use messenger::sync::{Sender, oneshot};
use messenger::{Connection, Worker};
use metadata::{PurgeEntry, SizeRecovery};
use protocol::Gfid;
use protocol::monitor::MdsReport;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Files being worked on at a time, of each kind. More than [`backlog::RETRIES_MAX`].
const LANES_MAX: usize = 64;
/// Files asked for at a time. Before it answers for purges, the owner syncs its store, and while it
/// does so every other change waits: one answer must be enough for a round, also where files are
/// removed faster than their objects.
const ASKED_MAX: usize = 4096;
/// Pause between two rounds of questions to the owner.
const ROUND: Duration = Duration::from_millis(200);
/// How often the monitor is told what is stuck, while something is.
const REPORT_EVERY: Duration = Duration::from_secs(5);

/// Why the data worker did not succeed; it will be asked again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DataError(pub String);

/// What a [`DataWorker`] returns.
pub type DataFuture<T> = Pin<Box<dyn Future<Output = Result<T, DataError>>>>;

/// Works on file data for the metadata service, as a client would. Lives on the owner's worker;
/// must not block it.
pub trait DataWorker {
    /// Deletes all objects of a file that nobody can reach: those that its size implies, and with
    /// `probe` also any beyond. Objects that do not exist are no failure.
    fn delete_objects(&self, entry: PurgeEntry) -> DataFuture<()>;

    /// How far the file's data reaches, in bytes: the greatest logical end of its objects, at least
    /// `file.size` if none reaches further. Its writer is dead and resolved.
    fn probe_size(&self, file: SizeRecovery) -> DataFuture<u64>;
}

/// One kind of work.
struct Work<E> {
    backlog: RefCell<Backlog<E>>,
    /// Tasks that work on it.
    lanes: Cell<usize>,
    /// Begins a piece of work, and gives what the owner is to be told of its success.
    begin: Box<dyn Fn(E) -> DataFuture<Event>>,
}

/// Keeps the data worker busy until the end. What is stuck is told to the monitor.
pub(super) async fn run(
    worker: Worker,
    inbox: Arc<Inbox>,
    monitor: Connection,
    data: Rc<dyn DataWorker>,
) {
    let for_sizes = Rc::clone(&data);
    let sizes = Work::new(
        |file: &SizeRecovery| file.gfid,
        move |file| {
            let probe = for_sizes.probe_size(file);
            Box::pin(
                async move { probe.await.map(|end| Event::SizeRecovered { gfid: file.gfid, end }) },
            )
        },
    );
    let purges = Work::new(
        |file: &PurgeEntry| file.gfid,
        move |file| {
            let delete = data.delete_objects(file);
            Box::pin(async move { delete.await.map(|()| Event::Purged(file.gfid)) })
        },
    );
    worker.spawn(tell_stuck(
        worker.clone(),
        Arc::clone(&inbox),
        monitor,
        Rc::clone(&sizes),
        Rc::clone(&purges),
    ));
    while !inbox.is_stopped() {
        sizes
            .ask(&inbox, |after, answer| Event::NextSizes { after, limit: ASKED_MAX, answer })
            .await;
        purges
            .ask(&inbox, |after, answer| Event::NextPurges { after, limit: ASKED_MAX, answer })
            .await;
        sizes.start_lanes(&worker, &inbox);
        purges.start_lanes(&worker, &inbox);
        worker.sleep(ROUND).await;
    }
}

impl<E: Copy + 'static> Work<E> {
    fn new(gfid_of: fn(&E) -> Gfid, begin: impl Fn(E) -> DataFuture<Event> + 'static) -> Rc<Self> {
        let backlog = RefCell::new(Backlog::new(gfid_of));
        Rc::new(Self { backlog, lanes: Cell::new(0), begin: Box::new(begin) })
    }

    /// Asks the owner for more, if there is room for it.
    async fn ask(
        &self,
        inbox: &Inbox,
        question: impl FnOnce(Option<Gfid>, Sender<Vec<E>>) -> Event,
    ) {
        let wanted = self.backlog.borrow().wants();
        if let Some(after) = wanted {
            let (answer, next) = oneshot();
            inbox.push(question(after, answer));
            let named = next.await.unwrap_or_default();
            self.backlog.borrow_mut().add(named, ASKED_MAX);
        }
    }

    /// Starts as many tasks as there is work for.
    fn start_lanes(self: &Rc<Self>, worker: &Worker, inbox: &Arc<Inbox>) {
        let wanted = self.backlog.borrow().ready(Instant::now()).min(LANES_MAX - self.lanes.get());
        self.lanes.set(self.lanes.get() + wanted);
        for _ in 0..wanted {
            worker.spawn(Rc::clone(self).lane(Arc::clone(inbox)));
        }
    }

    /// Works on one file after the other until none waits.
    async fn lane(self: Rc<Self>, inbox: Arc<Inbox>) {
        while !inbox.is_stopped() {
            let job = self.backlog.borrow_mut().next(Instant::now());
            let Some(job) = job else { break };
            self.carry_out(&inbox, job).await;
        }
        self.lanes.set(self.lanes.get() - 1);
    }

    async fn carry_out(&self, inbox: &Inbox, job: Job<E>) {
        match (self.begin)(job.entry).await {
            Ok(event) => {
                inbox.push(event);
                self.backlog.borrow_mut().done(&job);
            }
            Err(error) => {
                if self.backlog.borrow_mut().failed(job, Instant::now(), error.to_string()) {
                    tracing::warn!(%error, "work on a file's data failed, will be tried again");
                }
            }
        }
    }
}

/// Tells the monitor what is stuck, and once that nothing is any more.
async fn tell_stuck(
    worker: Worker,
    inbox: Arc<Inbox>,
    monitor: Connection,
    sizes: Rc<Work<SizeRecovery>>,
    purges: Rc<Work<PurgeEntry>>,
) {
    let mut has_told = false;
    while !inbox.is_stopped() {
        let report = {
            let (sizes, purges, now) =
                (sizes.backlog.borrow(), purges.backlog.borrow(), Instant::now());
            let ((sizes_stuck, of_sizes), (removals_stuck, of_purges)) =
                (sizes.stuck(now), purges.stuck(now));
            let oldest = [of_sizes, of_purges].into_iter().flatten().max_by_key(|(age, _)| *age);
            let (age, why) = oldest.unwrap_or_default();
            MdsReport {
                removals_stuck,
                sizes_stuck,
                stuck_secs: age.as_secs(),
                why: why.to_owned(),
            }
        };
        let is_stuck = report.removals_stuck + report.sizes_stuck > 0;
        if is_stuck || has_told {
            has_told = link::report(&monitor, report).await.is_err() || is_stuck;
        }
        worker.sleep(REPORT_EVERY).await;
    }
}
