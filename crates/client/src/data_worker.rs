//! Removing and measuring the data of files on behalf of the metadata service: its purger of
//! unlinked files, and the size of a file whose writer died.
//!
//! Contract: works through a [`Client`] with a session of its own, in the metadata service's
//! process or any other.

use crate::error::ClientError;
use crate::objecter::FileRef;
use crate::session::Client;
use protocol::{Gfid, PoolId};

/// See the module.
#[derive(Clone)]
pub struct DataWorker {
    client: Client,
}

impl DataWorker {
    /// Works through this client.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// Removes all data of a file that no name, opener or lease keeps any more: the objects that
    /// `size` implies and, with `probe`, also any beyond. May be repeated.
    ///
    /// # Errors
    /// When storage daemons cannot be reached within the client's time-out: try again later.
    pub async fn delete_objects(
        &self,
        pool: PoolId,
        gfid: Gfid,
        size: u64,
        probe: bool,
    ) -> Result<(), ClientError> {
        let file = FileRef { gfid, pool };
        let worker = self.client.worker_of(file, 0);
        self.client
            .run_on(worker, move |io| async move { io.delete(file, size, probe).await })
            .await
    }

    /// Where a file's data ends, in bytes, as its fragments know it; at least `hint`, the size last
    /// known. Only for a file whose last writer's session is resolved: before, its last writes are
    /// undecided.
    ///
    /// # Errors
    /// As [`DataWorker::delete_objects`].
    pub async fn probe_size(
        &self,
        pool: PoolId,
        gfid: Gfid,
        hint: u64,
    ) -> Result<u64, ClientError> {
        let file = FileRef { gfid, pool };
        let worker = self.client.worker_of(file, hint);
        let probe = self.client.run_on(worker, move |io| async move { io.probe_size(file).await });
        probe.await.map(|end| end.max(hint))
    }
}
