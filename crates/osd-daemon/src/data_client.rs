//! The metadata service's own client: deletes the objects of files that are gone, and measures
//! files whose writers died.
//!
//! Contract: a thread of its own opens the session, as often as it takes; until then the service's
//! queues just grow. A session that was fenced is opened anew at the next piece of work.

use crate::mds::{DataError, DataFuture, DataWorker, MdsHandle};
use client::{Client, ClientConfig, ClientError};
use messenger::sync::{ContentionMutex, LockTable};
use metadata::{PurgeEntry, SizeRecovery};
use protocol::ClusterId;
use protocol::monitor::DAEMON_SESSION;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Pause before the session is asked for again.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// How long one attempt to open it may take, for which a stop waits; and how long one piece of work
/// waits for storage daemons before another has its turn.
const ATTEMPT_MAX: Duration = Duration::from_secs(3);

/// The client, once its session is open.
type Slot = Arc<ContentionMutex<Option<Client>>>;

/// A running data client. Stop it before the metadata service and the monitor.
pub struct DataClient {
    slot: Slot,
    stop: Sender<()>,
    thread: Option<JoinHandle<()>>,
}

impl DataClient {
    /// Opens a session in the background and then works for `mds`. `locks`: lists the lock between
    /// the two.
    ///
    /// # Errors
    /// When the thread cannot be made.
    pub fn start(
        monitor: SocketAddr,
        mds: &Arc<MdsHandle>,
        locks: &LockTable,
    ) -> std::io::Result<DataClient> {
        let slot = Arc::new(ContentionMutex::new(locks, "mds data client", None));
        let (stop, stopped) = channel();
        let (filled, for_mds) = (Arc::clone(&slot), Arc::downgrade(mds));
        let open = move || {
            loop {
                let Some(mds) = for_mds.upgrade() else { return };
                match config(monitor, mds.cluster()).map(Client::connect) {
                    None => tracing::debug!("the cluster is not known yet"),
                    Some(Ok(opened)) => {
                        *filled.lock() = Some(opened.clone());
                        return mds.set_data_worker(|_| Rc::new(Worker { client: opened }));
                    }
                    Some(Err(error)) => {
                        tracing::debug!(%error, "no session for deleting objects yet")
                    }
                }
                drop(mds);
                if stopped.recv_timeout(RETRY_AFTER) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("mds-data".into()).spawn(open)?;
        Ok(DataClient { slot, stop, thread: Some(thread) })
    }

    /// Ends the session. What was not deleted yet stays in the service's queue.
    pub fn stop(mut self) {
        // The thread may have ended long ago.
        let _ = self.stop.send(());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if let Some(client) = self.slot.lock().take()
            && let Err(error) = client.close()
        {
            tracing::info!(%error, "the session for deleting objects was not closed: it expires");
        }
    }
}

/// Only for the cluster of the namespace: another one's files have the same numbers.
fn config(monitor: SocketAddr, cluster: ClusterId) -> Option<ClientConfig> {
    let is_known = cluster != ClusterId::default();
    is_known.then(|| ClientConfig {
        workers: 1,
        timeout: ATTEMPT_MAX,
        cluster,
        ..ClientConfig::new(monitor.to_string(), format!("{DAEMON_SESSION}mds: deletes objects"))
    })
}

/// What the metadata service calls.
struct Worker {
    client: Client,
}

/// What became of a piece of work; a session that turns out to be dead is opened anew for the next
/// one.
async fn concluded<T>(client: &Client, result: Result<T, ClientError>) -> Result<T, DataError> {
    if matches!(result, Err(ClientError::Fenced(_)))
        && let Err(error) = client.reopen().await
    {
        tracing::info!(%error, "no new session for deleting objects yet");
    }
    result.map_err(|error| DataError(error.to_string()))
}

impl DataWorker for Worker {
    fn delete_objects(&self, entry: PurgeEntry) -> DataFuture<()> {
        let client = self.client.clone();
        Box::pin(async move {
            let worker = client::DataWorker::new(client.clone());
            concluded(
                &client,
                worker.delete_objects(entry.pool, entry.gfid, entry.size, entry.probe).await,
            )
            .await
        })
    }

    fn probe_size(&self, file: SizeRecovery) -> DataFuture<u64> {
        let client = self.client.clone();
        Box::pin(async move {
            let worker = client::DataWorker::new(client.clone());
            concluded(&client, worker.probe_size(file.pool, file.gfid, file.size).await).await
        })
    }
}
