//! Deleting the objects of files that are gone, and finding how far the data of files reaches whose writers died.
//!
//! Contract: what is done here survives nothing by itself. An entry leaves the owner's queue only when the data worker has
//! succeeded, so everything may be done twice: both operations must bear that. Failures are tried again after a pause.

use super::inbox::{Event, Inbox};
use messenger::Worker;
use messenger::sync::oneshot;
use metadata::{PurgeEntry, SizeRecovery};
use protocol::Gfid;
use std::cell::{Cell, RefCell};
use std::collections::{HashSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Files being worked on at a time, of each kind.
const FILES_MAX: usize = 64;
/// Files to purge asked for at a time. Before it answers, the owner syncs its store, and while it does so every other
/// change waits: one answer must be enough for a round, also where files are removed faster than their objects.
const PURGES_ASKED_MAX: usize = 4096;
/// Pause between two rounds of questions to the owner.
const ROUND: Duration = Duration::from_millis(200);
/// Pause of one file after a failure: most are PGs that wait for an OSD.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Why the data worker did not succeed; it will be asked again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DataError(pub String);

/// What a [`DataWorker`] returns.
pub type DataFuture<T> = Pin<Box<dyn Future<Output = Result<T, DataError>>>>;

/// Works on file data for the metadata service, as a client would. Lives on the owner's worker; must not block it.
pub trait DataWorker {
    /// Deletes all objects of a file that nobody can reach: those that its size implies, and with `probe` also any beyond.
    /// Objects that do not exist are no failure.
    fn delete_objects(&self, entry: PurgeEntry) -> DataFuture<()>;

    /// How far the file's data reaches, in bytes: the greatest logical end of its objects, at least `file.size` if none
    /// reaches further. Its writer is dead and resolved.
    fn probe_size(&self, file: SizeRecovery) -> DataFuture<u64>;
}

/// Files that are being worked on.
type Busy = Rc<RefCell<HashSet<Gfid>>>;

/// Keeps the data worker busy until the end.
pub(super) async fn run(worker: Worker, inbox: Arc<Inbox>, data: Rc<dyn DataWorker>) {
    let sizing = Busy::default();
    let purges = Rc::new(Purges::default());
    while !inbox.is_stopped() {
        let free = FILES_MAX - sizing.borrow().len();
        let (answer, sizes) = oneshot();
        inbox.push(Event::NextSizes { limit: FILES_MAX, answer });
        let sizes = sizes.await.unwrap_or_default();
        for file in sizes.into_iter().filter(|file| !sizing.borrow().contains(&file.gfid)).take(free) {
            sizing.borrow_mut().insert(file.gfid);
            let done = (worker.clone(), Arc::clone(&inbox), Rc::clone(&sizing));
            worker.spawn(finish(data.probe_size(file), file.gfid, done, move |end| Event::SizeRecovered {
                gfid: file.gfid,
                end,
            }));
        }
        if purges.waiting.borrow().is_empty() {
            let (answer, next) = oneshot();
            inbox.push(Event::NextPurges { limit: PURGES_ASKED_MAX, answer });
            purges.add(next.await.unwrap_or_default());
            for _ in 0..purges.lanes_wanted() {
                worker.spawn(purge(worker.clone(), Arc::clone(&inbox), Rc::clone(&data), Rc::clone(&purges)));
            }
        }
        worker.sleep(ROUND).await;
    }
}

/// Files to purge that the owner has named.
#[derive(Default)]
struct Purges {
    /// Those that nobody works on yet.
    waiting: RefCell<VecDeque<PurgeEntry>>,
    /// All: the owner names a file again as long as its objects are not deleted.
    known: Busy,
    /// Tasks that work on them.
    lanes: Cell<usize>,
}

impl Purges {
    fn add(&self, entries: Vec<PurgeEntry>) {
        let mut known = self.known.borrow_mut();
        self.waiting.borrow_mut().extend(entries.into_iter().filter(|entry| known.insert(entry.gfid)));
    }

    /// How many tasks are to begin; they count as begun.
    fn lanes_wanted(&self) -> usize {
        let wanted = self.waiting.borrow().len().min(FILES_MAX - self.lanes.get());
        self.lanes.set(self.lanes.get() + wanted);
        wanted
    }
}

/// Purges one file after the other until none waits.
async fn purge(worker: Worker, inbox: Arc<Inbox>, data: Rc<dyn DataWorker>, purges: Rc<Purges>) {
    loop {
        let Some(entry) = purges.waiting.borrow_mut().pop_front().filter(|_| !inbox.is_stopped()) else { break };
        let done = (worker.clone(), Arc::clone(&inbox), Rc::clone(&purges.known));
        finish(data.delete_objects(entry), entry.gfid, done, move |()| Event::Purged(entry.gfid)).await;
    }
    purges.lanes.set(purges.lanes.get() - 1);
}

/// Waits for one piece of work and tells the owner of its success.
async fn finish<T>(
    work: DataFuture<T>,
    gfid: Gfid,
    (worker, inbox, busy): (Worker, Arc<Inbox>, Busy),
    event: impl FnOnce(T) -> Event,
) {
    match work.await {
        Ok(value) => inbox.push(event(value)),
        Err(error) => {
            tracing::warn!(%gfid, %error, "work on file data failed, will be tried again");
            worker.sleep(RETRY_AFTER).await;
        }
    }
    busy.borrow_mut().remove(&gfid);
}
