//! Deleting the objects of files that are gone, and finding how far the data of files reaches whose writers died.
//!
//! Contract: what is done here survives nothing by itself. An entry leaves the owner's queue only when the data worker has
//! succeeded, so everything may be done twice: both operations must bear that. Failures are tried again after a pause.

use super::inbox::{Event, Inbox};
use messenger::Worker;
use messenger::sync::oneshot;
use metadata::{PurgeEntry, SizeRecovery};
use protocol::Gfid;
use std::cell::RefCell;
use std::collections::HashSet;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Files being worked on at a time, of each kind.
const FILES_MAX: usize = 64;
/// Pause when there is nothing to do.
const IDLE: Duration = Duration::from_millis(200);
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
    let (purging, sizing) = (Busy::default(), Busy::default());
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
        let free = FILES_MAX - purging.borrow().len();
        let (answer, purges) = oneshot();
        inbox.push(Event::NextPurges { limit: FILES_MAX, answer });
        let purges = purges.await.unwrap_or_default();
        for entry in purges.into_iter().filter(|entry| !purging.borrow().contains(&entry.gfid)).take(free) {
            purging.borrow_mut().insert(entry.gfid);
            let done = (worker.clone(), Arc::clone(&inbox), Rc::clone(&purging));
            worker.spawn(finish(data.delete_objects(entry), entry.gfid, done, move |()| Event::Purged(entry.gfid)));
        }
        let pause = if purging.borrow().is_empty() { IDLE } else { IDLE / 20 };
        worker.sleep(pause).await;
    }
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
