//! What the file system stands on: data, metadata, time. The cluster's client in a mount, a model
//! in tests.
//!
//! Contract: futures are awaited on one worker and need not be `Send`. `write` done means
//! acknowledged by every shard, unless it ends otherwise; `namespace` carries a request out exactly
//! once.

use crate::error::ClientError;
use crate::objecter::{Behind, Ending, FileRef, Gathered, LocalIo, Sought, WriterHint};
use crate::session::{Answered, Client, Term};
use bytes::Bytes;
use messenger::Worker;
use metadata::lease::holder::Moment;
use protocol::monitor::{MonitorReply, MonitorRequest};
use protocol::namespace::{Caller, NamespaceOp};
use protocol::{Epoch, PoolId};
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Result of every operation; the error carries an errno.
pub type Result<T> = std::result::Result<T, ClientError>;

/// See the module. The data methods are those of [`LocalIo`].
pub trait Backend: Clone + 'static {
    /// A call to the metadata service.
    fn namespace(&self, op: NamespaceOp, caller: Caller) -> impl Future<Output = Result<Answered>>;
    /// See [`Client::term`].
    fn term(&self) -> Term;
    /// Bytes of users' data that are stored or still fit, and that still fit. What others have on
    /// the disks is in neither.
    fn space(&self) -> impl Future<Output = Result<(u64, u64)>>;
    /// Where the data of new files goes.
    fn pool(&self) -> Result<PoolId>;
    /// Where the session stands now.
    fn moment(&self) -> Moment;
    /// Waits until the session, or one after it, surely lives and has a map of this epoch.
    fn usable(&self, epoch: Epoch) -> impl Future<Output = Result<()>>;
    /// Waits.
    fn sleep(&self, duration: Duration) -> impl Future<Output = ()>;
    /// Runs a task beside those that are there, with nobody waiting for it.
    fn spawn(&self, task: impl Future<Output = ()> + 'static);
    /// See [`LocalIo::read`].
    fn read(&self, file: FileRef, offset: u64, len: usize) -> impl Future<Output = Result<Bytes>>;
    /// See [`LocalIo::write_ending`].
    fn write(
        &self,
        file: FileRef,
        offset: u64,
        data: Bytes,
        hint: WriterHint,
        ending: Ending,
    ) -> impl Future<Output = Result<()>>;
    /// See [`LocalIo::write_gathered`].
    fn write_gathered(
        &self,
        file: FileRef,
        range: Range<u64>,
        gathered: Arc<dyn Gathered>,
        behind: Arc<dyn Behind>,
    ) -> impl Future<Output = Result<()>>;
    /// See [`LocalIo::reported`].
    fn reported(&self, file: FileRef) -> impl Future<Output = Result<()>>;
    /// See [`LocalIo::punch`].
    fn punch(
        &self,
        file: FileRef,
        range: Range<u64>,
        hint: WriterHint,
    ) -> impl Future<Output = Result<()>>;
    /// See [`LocalIo::reserve`].
    fn reserve(&self, file: FileRef, range: Range<u64>) -> impl Future<Output = Result<bool>>;
    /// See [`LocalIo::truncate`].
    fn truncate(
        &self,
        file: FileRef,
        new_size: u64,
        old_size: u64,
    ) -> impl Future<Output = Result<()>>;
    /// See [`LocalIo::sync`].
    fn sync(&self, file: FileRef) -> impl Future<Output = Result<()>>;
    /// See [`LocalIo::sync_all`].
    fn sync_all(&self) -> impl Future<Output = Result<()>>;
    /// See [`LocalIo::seek`].
    fn seek(
        &self,
        file: FileRef,
        range: Range<u64>,
        sought: Sought,
    ) -> impl Future<Output = Result<Option<u64>>>;
    /// See [`LocalIo::extents`].
    fn extents(
        &self,
        file: FileRef,
        range: Range<u64>,
    ) -> impl Future<Output = Result<Vec<Range<u64>>>>;
    /// See [`LocalIo::allocated`].
    fn allocated(&self, file: FileRef, size: u64) -> impl Future<Output = Result<u64>>;
    /// Bytes of a file in one object of the pool.
    fn object_bytes(&self, pool: PoolId) -> Result<u64>;
}

/// The pool of new files: the first.
pub(super) fn first_pool(client: &Client) -> Result<PoolId> {
    client.map()?.pools.keys().next().copied().ok_or(ClientError::NoPool(PoolId::default()))
}

/// Bytes of a file in one object of the pool.
pub(super) fn object_bytes(client: &Client, pool: PoolId) -> Result<u64> {
    client
        .map()?
        .pools
        .get(&pool)
        .map(|found| found.profile.object_bytes())
        .ok_or(ClientError::NoPool(pool))
}

/// A cluster, seen from one worker.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    io: LocalIo,
    worker: Worker,
}

impl Cluster {
    /// The client on the worker that runs this.
    ///
    /// # Errors
    /// [`ClientError::Closed`] if the client was closed.
    pub fn on(client: &Client, worker: Worker) -> Result<Self> {
        Ok(Self { io: client.local(&worker)?, client: client.clone(), worker })
    }

    /// The worker.
    pub fn worker(&self) -> &Worker {
        &self.worker
    }
}

impl Backend for Cluster {
    async fn namespace(&self, op: NamespaceOp, caller: Caller) -> Result<Answered> {
        self.client.ask_namespace(op, caller).await
    }

    fn term(&self) -> Term {
        self.client.term()
    }

    async fn space(&self) -> Result<(u64, u64)> {
        match self.client.call_monitor(MonitorRequest::Status).await? {
            MonitorReply::Status(status) => {
                Ok((status.stored_bytes + status.free_bytes, status.free_bytes))
            }
            other => Err(ClientError::Protocol(format!("{other:?} to a question for the status"))),
        }
    }

    fn pool(&self) -> Result<PoolId> {
        first_pool(&self.client)
    }

    fn moment(&self) -> Moment {
        self.client.moment()
    }

    async fn usable(&self, epoch: Epoch) -> Result<()> {
        self.client.usable(epoch).await
    }

    async fn sleep(&self, duration: Duration) {
        self.worker.sleep(duration).await;
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.worker.spawn(task);
    }

    async fn read(&self, file: FileRef, offset: u64, len: usize) -> Result<Bytes> {
        self.io.anew().read(file, offset, len).await
    }

    async fn write(
        &self,
        file: FileRef,
        offset: u64,
        data: Bytes,
        hint: WriterHint,
        ending: Ending,
    ) -> Result<()> {
        self.io.anew().write_ending(file, offset, data, hint, ending).await
    }

    async fn write_gathered(
        &self,
        file: FileRef,
        range: Range<u64>,
        gathered: Arc<dyn Gathered>,
        behind: Arc<dyn Behind>,
    ) -> Result<()> {
        self.io.anew().write_gathered(file, range, gathered, behind).await
    }

    async fn reported(&self, file: FileRef) -> Result<()> {
        self.io.anew().reported(file).await
    }

    async fn punch(&self, file: FileRef, range: Range<u64>, hint: WriterHint) -> Result<()> {
        self.io.anew().punch(file, range, hint).await
    }

    async fn reserve(&self, file: FileRef, range: Range<u64>) -> Result<bool> {
        self.io.anew().reserve(file, range).await
    }

    async fn truncate(&self, file: FileRef, new_size: u64, old_size: u64) -> Result<()> {
        self.io.anew().truncate(file, new_size, old_size).await
    }

    async fn sync(&self, file: FileRef) -> Result<()> {
        self.io.anew().sync(file).await
    }

    async fn sync_all(&self) -> Result<()> {
        self.io.anew().sync_all().await
    }

    async fn seek(&self, file: FileRef, range: Range<u64>, sought: Sought) -> Result<Option<u64>> {
        self.io.anew().seek(file, range, sought).await
    }

    async fn extents(&self, file: FileRef, range: Range<u64>) -> Result<Vec<Range<u64>>> {
        self.io.anew().extents(file, range).await
    }

    async fn allocated(&self, file: FileRef, size: u64) -> Result<u64> {
        self.io.anew().allocated(file, size).await
    }

    fn object_bytes(&self, pool: PoolId) -> Result<u64> {
        object_bytes(&self.client, pool)
    }
}
