//! The file system as an async API: POSIX operations on a cluster, for FUSE and for whoever wants
//! files without a mount.
//!
//! [`FileSystem`] is the handle that any thread holds; [`FileSystem::spawn`] brings an operation to
//! a worker, where a [`LocalFs`] carries it out. What is known of a file lies in one place
//! ([`inode::InodeState`], a pure machine) that all workers share under a lock held for
//! nanoseconds; data goes to the cluster without any lock.
//!
//! Contract:
//! * Errors are errnos ([`ClientError::errno`](crate::ClientError::errno)).
//! * A file is read under a read lease and written under the write lease of the metadata service.
//!   Leases stay after the close, up to `leases_cached_max`, and go back when they are recalled:
//!   with every write stable, the attributes that only the holder knew, and the kernel's pages
//!   dropped. Where the session's time runs out unrenewed, the pages are dropped before the lease
//!   may be another's: `expiry`.
//! * Size and mtime of a file written here are this mount's; the service learns them at close,
//!   fsync, recall, and after `attr_flush_interval`, a size never before the data that it covers is
//!   acknowledged.
//! * Writes are answered when all shards have acknowledged them, or, where asked for, when they are
//!   sent ([`FsOptions::write_behind_bytes`]; small ones that follow each other may be sent as one:
//!   `gather`); then `fsync`, close, and whoever wants the file alone wait for the shards. Where
//!   asked for, closes and some changes of attributes are answered before they are told
//!   ([`FsOptions::flush_behind`]); `fsync` and other mounts wait.
//! * A sync that always follows the writes of a file begins with them ([`FsOptions::sync_ahead`]).
//! * Where the session dies, the next one goes on: what only asks or reads is done again, what was
//!   to change something fails with EIO if it was under way, and writes that were lost are told to
//!   those who have the file open: `losses`.
//! * Names and attributes may be cached as long as this is the only mount
//!   ([`FileSystem::alone_for`]), and are: `known`. One of several mounts answers from what it has
//!   leases on, and lets no cache above it keep names and attributes.
//! * `fcntl` locks hold over all mounts; they go with their session. `flock` is the kernel's,
//!   within a mount.
//! * A mount does not keep access times; atime changes only when it is set.
//! * POSIX ACLs are the service's, and the kernel goes by them; those of NFSv4 are refused.
//!
//! Start reading at [`inode`], then `lease` (getting in and giving back), `expiry`, `data`,
//! `names`, `dir`.

mod backend;
mod creating;
mod data;
mod dir;
mod durable;
mod errno;
mod expiry;
mod gather;
pub mod inode;
mod known;
mod lease;
mod locks;
mod losses;
mod mapped;
mod names;
mod rights;
mod sweep;
mod table;
mod told;
mod usage;

pub use crate::objecter::Sought;
pub use backend::{Backend, Cluster, Result};
pub use data::{AllocateMode, OpenMode, WriteMode, WrittenBy};
pub use dir::{DirItem, DirPage};
pub use expiry::PagesLocked;
pub use inode::SyncKind;
pub use losses::OpenId;
pub use names::{CreateMode, FsSize, Permissions};
pub use rights::{Identity, UNKNOWN_ID, Writer};

use crate::error::ClientError;
use crate::objecter::FileRef;
use crate::session::{Client, ClientEvent, Term};
use bytes::Bytes;
use inode::Keep;
use messenger::Worker;
use messenger::sync::{ContentionMutex, LockTable};
use protocol::lock::LockOwner;
use protocol::namespace::{Attr, Caller, NamespaceOp, Reply, SetAttr, Timestamp};
use protocol::{Epoch, Gfid, PoolId};
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};
use told::Told;

/// A drop of what is cached, under way; dropped, it goes on.
pub type Dropping = Pin<Box<dyn Future<Output = ()>>>;

/// All bytes of a file.
pub const WHOLE_FILE: Range<u64> = 0..u64::MAX;
/// Of a file's cache its attributes only, none of its bytes.
pub const ATTRIBUTES: Range<u64> = u64::MAX..u64::MAX;

/// What a kernel or another cache above keeps of files, to be dropped when a lease goes.
pub trait KernelCache: Send + Sync + 'static {
    /// Drops everything cached of this part of the file; it waits for pages that are locked,
    /// because what a request asks for is to go there. Must not block the caller; the future
    /// completes when it is done.
    fn invalidate(&self, gfid: Gfid, part: Range<u64>) -> Dropping;

    /// Puts zeros into this part of a page, if it is cached; waits and completes as `invalidate`.
    fn clear(&self, gfid: Gfid, part: Range<u64>) -> Dropping;
}

/// For users without a cache above.
pub struct NoKernelCache;

impl KernelCache for NoKernelCache {
    fn invalidate(&self, _gfid: Gfid, _part: Range<u64>) -> Dropping {
        Box::pin(std::future::ready(()))
    }

    fn clear(&self, _gfid: Gfid, _part: Range<u64>) -> Dropping {
        Box::pin(std::future::ready(()))
    }
}

/// Settings of a file system.
#[derive(Clone, Debug)]
pub struct FsOptions {
    /// Leases kept for closed files. Default 4096: a build tree's sources, and a few MiB of memory
    /// here and at the service. Beyond it the ones closed longest ago are given back.
    pub leases_cached_max: usize,
    /// How long the service may not know the size of a file being written. Default 1 s.
    pub attr_flush_interval: Duration,
    /// How old the answer to statfs may be. Default 1 s.
    pub space_age_max: Duration,
    /// An fsync or fdatasync that has always followed so many writes begins with the last of them.
    /// Default true.
    pub sync_ahead: bool,
    /// Where an fsync has always followed the writes of a file whose size stays, the metadata
    /// service is told once, with a sync, that later times may follow, and an fsync does not wait
    /// for it. The times are told when a whole `attr_flush_interval` brought no write, and with a
    /// close, a recall, a size or a change by the user. If this session dies before, mtime and
    /// ctime become the moment at which the service learns that: by the same clock, never before
    /// the last write. Default true.
    pub times_follow: bool,
    /// Bytes of a file's writes that may be answered as soon as they are queued, before the shards
    /// have acknowledged them; beyond them writes wait, but for one, however large. They do not
    /// count as operations in flight; what is kept and on its way has the bounds of
    /// [`ClientConfig`](crate::ClientConfig) and of shards' windows. What was answered so and
    /// neither synced nor closed may be lost with this process; with `flush_behind` whatever was
    /// not synced. Default 0: none.
    pub write_behind_bytes: u64,
    /// A close is answered before the shards have acknowledged the file's writes and the service
    /// knows its size, unless [`CLOSES_BEHIND_MAX`] are under way. So are changes of owner, group,
    /// permission bits and access time of a file that is open to write while this is the only
    /// mount, but for those that take a permission away. The service is told within moments, and
    /// before another mount looks. What was answered so and not synced may be lost with this
    /// process. Default false.
    pub flush_behind: bool,
    /// Who a process on this machine is, for set-user-ID and set-group-ID; `None` if that cannot be
    /// known. Default: it cannot.
    pub identity_of: fn(u32) -> Option<Identity>,
    /// Bytes of a page of the kernel's cache. Default 4096.
    pub page_bytes: u64,
    /// It names files that others name, too, and so counts as a mount: the metadata service lets it
    /// cache names as long as it is the only one. What stays within a hidden directory of its own
    /// need not count, and disturbs no mount. Default true.
    pub is_mount: bool,
}

/// Closes under way at which further ones wait for their files: many times what hides a round trip,
/// and a few KiB each.
pub const CLOSES_BEHIND_MAX: usize = 256;

impl Default for FsOptions {
    fn default() -> Self {
        Self {
            leases_cached_max: 4096,
            attr_flush_interval: Duration::from_secs(1),
            space_age_max: Duration::from_secs(1),
            sync_ahead: true,
            times_follow: true,
            write_behind_bytes: 0,
            flush_behind: false,
            identity_of: |_| None,
            page_bytes: 4096,
            is_mount: true,
        }
    }
}

/// What the workers share.
struct Shared {
    options: FsOptions,
    kernel: Arc<dyn KernelCache>,
    table: table::Table,
    dirs: dir::Streams,
    /// Counts flushes of attributes, to order answers of the service with them.
    stamp: AtomicU64,
    creations: creating::Creations,
    /// Counts closes: which cached lease is the oldest.
    closes: AtomicU64,
    /// Closes under way: their handles are gone, and the service has not been told all.
    closing: AtomicUsize,
    space: ContentionMutex<Option<(Instant, u64, u64)>>,
    usage: usage::Usage,
    locks: locks::OwnLocks,
    known: known::Known,
    durable: durable::Durable,
    told: told::Told,
}

impl Shared {
    fn new(options: FsOptions, kernel: Arc<dyn KernelCache>, locks: &LockTable) -> Self {
        Self {
            options,
            kernel,
            table: table::Table::new(locks),
            dirs: dir::Streams::new(locks),
            stamp: AtomicU64::new(0),
            creations: creating::Creations::new(locks),
            closes: AtomicU64::new(0),
            closing: AtomicUsize::new(0),
            space: ContentionMutex::new(locks, "fs space", None),
            usage: usage::Usage::new(locks),
            locks: locks::OwnLocks::new(locks),
            known: known::Known::new(locks),
            durable: durable::Durable::default(),
            told: told::Told::new(locks),
        }
    }
}

impl Shared {
    fn lookup_known(&self, term: Term, parent: Gfid, name: &[u8]) -> Option<Result<Attr>> {
        let asked = self.stamp.load(Relaxed);
        Some(self.known.lookup(term, parent, name)?.map(|attr| self.merged(attr, asked)))
    }

    fn attr_known(&self, term: Term, gfid: Gfid) -> Option<Attr> {
        let asked = self.stamp.load(Relaxed);
        Some(self.merged(self.known.attr(term, gfid)?, asked))
    }

    /// Attributes after a change, if that need not be told the service at once.
    fn keep_setattr(&self, term: Term, gfid: Gfid, set: &SetAttr, now: Timestamp) -> Option<Attr> {
        if !term.holds {
            return None;
        }
        let asked = self.stamp.load(Relaxed);
        let mut attr = self.known.attr(term, gfid)?;
        let inode = self.table.get(gfid)?;
        let keep = if self.options.flush_behind { Keep::All } else { Keep::Times };
        inode
            .with(|state| {
                state.set_ids().flags().is_empty()
                    && state.keep_change(set, (&mut attr, asked), now, keep)
            })
            .then_some(attr)
    }

    /// Is there nothing that the close of a handle has to wait for, or to say?
    fn closes_at_once(&self, gfid: Gfid, owner: LockOwner) -> bool {
        if self.locks.may_matter(gfid, owner) || self.told.is_lost(gfid) {
            return false;
        }
        let ends_behind =
            self.options.flush_behind && self.closing.load(Relaxed) < CLOSES_BEHIND_MAX;
        let inode = self.table.get(gfid);
        inode.is_none_or(|inode| inode.with(|state| state.closes_at_once(ends_behind)))
    }

    /// Attributes of the service with what only this mount knows; `asked` is the stamp from before
    /// it was asked.
    fn merged(&self, mut attr: Attr, asked: u64) -> Attr {
        if let Some(inode) = self.table.get(attr.gfid) {
            inode.with(|state| state.merge(&mut attr, asked));
        }
        attr
    }
}

/// A file system on a cluster. Cheap to clone, for any thread. See the module.
#[derive(Clone)]
pub struct FileSystem {
    client: Client,
    /// Of new files; for another pool's, an operation may start on a worker that is not the
    /// nearest.
    pool: PoolId,
    shared: Arc<Shared>,
}

impl FileSystem {
    /// Starts a file system on a session. One per session: it takes the session's events. Blocks
    /// until the metadata service knows of the mount; not on a worker.
    ///
    /// # Errors
    /// [`ClientError::NoPool`] if the cluster has no pool, [`ClientError::Closed`], and those of
    /// the service.
    pub fn start(client: Client, options: FsOptions, kernel: Arc<dyn KernelCache>) -> Result<Self> {
        let pool = backend::first_pool(&client)?;
        if options.is_mount {
            client.block_on(client.mount(own_caller()))?;
        }
        let shared = Arc::new(Shared::new(options, kernel, client.handle().locks()));
        let fs = Self { client, pool, shared };
        let (client, weak) = (fs.client.clone(), Arc::downgrade(&fs.shared));
        fs.client.on_event(move |event| {
            if let Some(shared) = weak.upgrade() {
                FileSystem { client: client.clone(), pool, shared }.event(event);
            }
        });
        fs.start_sweeper();
        fs.start_watch();
        Ok(fs)
    }

    /// The session.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Runs an operation as a task of the worker that is nearest to this place of the file. If the
    /// session's timeout and 5 s more pass, the task is dropped, and what it holds with it.
    pub fn spawn<F, Fut>(&self, gfid: Gfid, offset: u64, f: F)
    where
        F: FnOnce(LocalFs) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + 'static,
    {
        self.spawn_until(self.deadline(), gfid, offset, f);
    }

    /// A copy of what is to be written at this place of the file, in memory of the worker that
    /// [`FileSystem::spawn`] takes.
    ///
    /// # Panics
    /// If `data` is longer than [`messenger::buffer::BUFFER_BYTES_MAX`].
    pub fn copy_of(&self, gfid: Gfid, offset: u64, data: &[u8]) -> Bytes {
        let pools = self.client.handle().pools();
        pools.pool(self.nearest(gfid, offset)).copy_of(data)
    }

    /// The name of a file or directory that is about to be opened.
    pub fn open_id(&self) -> OpenId {
        self.shared.told.open_id()
    }

    /// The worker nearest to a place of a file.
    fn nearest(&self, gfid: Gfid, offset: u64) -> usize {
        self.client.worker_of(FileRef { gfid, pool: self.pool }, offset)
    }

    /// As [`FileSystem::spawn`], for an operation that may wait for another program: it has no
    /// deadline.
    pub fn spawn_waiting<F, Fut>(&self, gfid: Gfid, f: F)
    where
        F: FnOnce(LocalFs) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + 'static,
    {
        self.spawn_until(None, gfid, 0, f);
    }

    /// How long this surely stays the only mount: names and attributes may be cached as long.
    pub fn alone_for(&self) -> Duration {
        self.client.alone_for()
    }

    /// What [`LocalFs::lookup`] would give, if nobody has to be asked for it. Never blocks.
    pub fn lookup_known(&self, parent: Gfid, name: &[u8]) -> Option<Result<Attr>> {
        self.shared.lookup_known(self.client.term(), parent, name)
    }

    /// What [`LocalFs::getattr`] would give, if nobody has to be asked for it. Never blocks.
    pub fn attr_known(&self, gfid: Gfid) -> Option<Attr> {
        self.shared.attr_known(self.client.term(), gfid)
    }

    /// What [`LocalFs::setattr`] would give, if the service need not be told at once. Never blocks.
    pub fn keep_setattr(&self, gfid: Gfid, set: &SetAttr, caller: Caller) -> Option<Attr> {
        self.shared.keep_setattr(self.client.term(), gfid, set, caller.now)
    }

    /// True if [`LocalFs::flush`] would neither wait nor fail: the close is done. Never blocks.
    pub fn closes_at_once(&self, gfid: Gfid, owner: LockOwner) -> bool {
        self.shared.closes_at_once(gfid, owner)
    }

    /// How long an operation may take, if not for ever.
    fn deadline(&self) -> Option<Duration> {
        match self.client.config().timeout {
            Duration::ZERO => None,
            timeout => Some(timeout + DEADLINE_SLACK),
        }
    }

    /// Is the attribute known to be missing, so that nobody has to be asked? The kernel asks for
    /// one before each write, and for an ACL whenever somebody but its owner wants to access a
    /// file.
    pub fn lacks_xattr(&self, gfid: Gfid, name: &[u8]) -> bool {
        let has_no_capability =
            |inode: Arc<table::Inode>| inode.with(|state| state.has_no_capability());
        name == protocol::namespace::SECURITY_CAPABILITY
            && self.shared.table.get(gfid).is_some_and(has_no_capability)
            || !names::is_refused(name) && self.has_no_xattrs(gfid)
    }

    /// Is the file known to have no extended attribute at all? Never blocks.
    pub fn has_no_xattrs(&self, gfid: Gfid) -> bool {
        self.attr_known(gfid).is_some_and(|attr| !attr.has_xattrs)
    }

    /// Makes everything written through this mount stable and known to the service. Blocks, for the
    /// session's timeout and half a second at most; not on a worker.
    ///
    /// # Errors
    /// The first that was met; [`ClientError::TimedOut`] if the cluster does not answer.
    pub fn sync_everything(&self) -> Result<()> {
        let (client, shared, deadline) =
            (self.client.clone(), Arc::clone(&self.shared), self.deadline());
        let done = self.client.handle().run_on(0, move |worker: Worker| async move {
            let backend = Cluster::on(&client, worker.clone())?;
            let fs = LocalFs { shared, backend };
            match deadline {
                None => fs.sync_everything().await,
                Some(deadline) => {
                    let synced = worker.timeout(deadline, fs.sync_everything()).await;
                    synced.unwrap_or(Err(ClientError::TimedOut(
                        "the cluster to make everything written stable",
                    )))
                }
            }
        });
        messenger::sync::block_on(done).unwrap_or(Err(ClientError::Closed))
    }

    fn spawn_until<F, Fut>(&self, deadline: Option<Duration>, gfid: Gfid, offset: u64, f: F)
    where
        F: FnOnce(LocalFs) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + 'static,
    {
        let fs = self.clone();
        self.client.handle().spawn_on(self.nearest(gfid, offset), move |worker: Worker| async move {
            let Ok(backend) = Cluster::on(&fs.client, worker.clone()) else { return };
            let operation = f(LocalFs { shared: fs.shared, backend });
            match deadline {
                None => operation.await,
                Some(deadline) => {
                    if worker.timeout(deadline, operation).await.is_err() {
                        tracing::warn!(%gfid, ?deadline, "an operation was given up at its deadline");
                    }
                }
            }
        });
    }

    fn event(&self, event: ClientEvent) {
        match event {
            ClientEvent::Recall(recall) => {
                // No deadline: a recall ends by success, by an error, or with the session.
                self.spawn_until(None, recall.gfid, 0, move |fs| async move {
                    fs.recall(recall.gfid, recall.keep).await;
                });
            }
            ClientEvent::NamesRecall(recall) => {
                self.shared.known.recalled(recall.gfid);
                self.spawn_until(None, Gfid::ROOT, 0, move |fs| async move {
                    let op = NamespaceOp::ReturnNames { recall };
                    // Asked again by the service, or of no importance with the session.
                    drop(fs.ask(op, own_caller()).await);
                });
            }
            ClientEvent::MdsRestarted => {
                self.spawn_until(None, Gfid::ROOT, 0, |fs| async move { fs.reclaim().await });
            }
            ClientEvent::Fenced(session) => {
                tracing::error!(%session, "the session was declared dead: leases and unsynced writes are lost");
                let client = self.client.clone();
                self.spawn_until(None, Gfid::ROOT, 0, move |fs| async move {
                    fs.fenced().await;
                    while let Err(error) = client.reopen().await {
                        if matches!(error, ClientError::Closed | ClientError::ClusterGone) {
                            return;
                        }
                        tracing::warn!(%error, "cannot open a new session yet");
                        fs.backend.sleep(Duration::from_secs(1)).await;
                    }
                    // The service may have been started anew as well.
                    fs.reclaim().await;
                });
            }
        }
    }

    fn start_sweeper(&self) {
        let weak = Arc::downgrade(&self.shared);
        let client = self.client.clone();
        let interval = self.shared.options.attr_flush_interval;
        self.client.handle().spawn_on(0, move |worker: Worker| async move {
            loop {
                worker.sleep(interval).await;
                let Some(shared) = weak.upgrade() else { return };
                let Ok(backend) = Cluster::on(&client, worker.clone()) else { return };
                LocalFs { shared, backend }.sweep().await;
            }
        });
    }

    /// Watches the session's time; see `expiry`.
    fn start_watch(&self) {
        let weak = Arc::downgrade(&self.shared);
        let client = self.client.clone();
        self.client.handle().spawn_on(0, move |worker: Worker| async move {
            let mut watch = expiry::Watch::default();
            loop {
                let Some(shared) = weak.upgrade() else { return };
                let Ok(backend) = Cluster::on(&client, worker.clone()) else { return };
                let pause = LocalFs { shared, backend }.look_at_clock(&mut watch).await;
                worker.sleep(pause).await;
            }
        });
    }
}

/// Beyond the timeout, which each wait of an operation has, and all of it together: one that times
/// out says why.
const DEADLINE_SLACK: Duration = Duration::from_millis(500);

/// The file system on one worker: the operations.
pub struct LocalFs<B: Backend = Cluster> {
    shared: Arc<Shared>,
    backend: B,
}

impl<B: Backend> LocalFs<B> {
    /// The same, for a task of its own.
    fn aside(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), backend: self.backend.clone() }
    }

    fn stamp(&self) -> u64 {
        self.shared.stamp.load(Relaxed)
    }

    fn next_stamp(&self) -> u64 {
        self.shared.stamp.fetch_add(1, Relaxed) + 1
    }

    /// A call to the metadata service. If the session dies under a question, the next one asks
    /// again.
    async fn ask(&self, op: NamespaceOp, caller: Caller) -> Result<Reply> {
        let again = op.is_question().then(|| op.clone());
        let mut answer = self.ask_once(op, caller).await;
        while let (Err(ClientError::Fenced(_)), Some(op)) = (&answer, &again) {
            self.backend.usable(Epoch::default()).await?;
            answer = self.ask_once(op.clone(), caller).await;
        }
        answer
    }

    /// A call in this session, of which the mount learns what it may.
    async fn ask_once(&self, op: NamespaceOp, caller: Caller) -> Result<Reply> {
        let question = self.shared.known.begin(self.backend.term(), &op);
        let telling = self.shared.durable.begin(self.backend.term(), &op);
        let told = Told::begin(&op);
        let answer = self.backend.namespace(op, caller).await;
        telling.end(answer.is_ok());
        if told.end(&self.shared.told, &answer) {
            let fs = self.aside();
            self.backend.spawn(async move { drop(fs.ask(NamespaceOp::Sync, own_caller()).await) });
        }
        question.end(self.backend.term(), &answer);
        answer.map(|answered| answered.reply)
    }
}

/// The time now, for [`Caller`].
pub fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp {
        secs: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nanos: since.subsec_nanos(),
    }
}

/// The mount itself as a caller, for what no user asked for.
fn own_caller() -> Caller {
    Caller { uid: 0, gid: 0, now: now() }
}

#[cfg(test)]
mod tests;
