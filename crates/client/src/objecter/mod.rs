//! Reading and writing the data of files: a worker's share of the client.
//!
//! * `local`: a worker's PGs, connections and bounds. `pg`: a PG's protocol machine and its
//!   connections (`osd`).
//! * `plan`: which fragments an operation asks and changes. `read`, `write`, `stat`: carrying it
//!   out.
//! * `reserve`: disk space before it is written.
//! * `whole`: operations over whole files and wide ranges, by the objects that exist.
//! * `range_lock`, `wait`: waiting among the tasks of one worker. `tails`: what the last writes
//!   left. `window`, `delay`: what is on its way, and what leaves together. `gather`: writes that
//!   are sent as one.
//!
//! Contract: a [`LocalIo`] lives on one worker and is not `Send`. Its futures run there; a part of
//! a file whose PG another worker owns is handed to that worker, so any worker serves any file. It
//! serves the session in which it was made: once that is dead every operation fails, and none that
//! waited goes on in the next. Only a sync looks at what there is now: it tells what was lost.

mod delay;
mod gather;
pub(crate) mod local;
mod osd;
mod pg;
mod plan;
mod range_lock;
mod read;
mod reserve;
mod stat;
mod tails;
mod wait;
mod whole;
mod window;
mod write;

use crate::error::ClientError;
use bytes::Bytes;
use ec_store::layout::Layout;
pub use gather::Gathered;
use local::Local;
use pg::PgIo;
use protocol::shard::Op;
use protocol::{Gfid, ObjectId, PgId, PoolId, SessionId};
use std::future::Future;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
pub(crate) use wait::{join_all, join_both};
pub use whole::Sought;
use window::window_bytes;
use write::ObjectHint;

/// A regular file's data: which and where.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FileRef {
    /// The file.
    pub gfid: Gfid,
    /// The pool that holds its data (`Attr::pool`).
    pub pool: PoolId,
}

impl FileRef {
    fn object(self, index: u32) -> ObjectId {
        ObjectId { gfid: self.gfid, index }
    }
}

/// Objects of one file: they are numbered with 32 bits.
const OBJECTS_MAX: u64 = 1 << 32;

/// The size of the largest file, in bytes, whose objects have this size.
pub fn file_bytes_max(object_bytes: u64) -> u64 {
    object_bytes.saturating_mul(OBJECTS_MAX).min(i64::MAX as u64)
}

/// What the holder of the write lease knows of the file. It saves reads before partial writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriterHint {
    /// Every byte from here on is zero, counting all writes already begun: raise the size in core
    /// *before* calling write, and pass the size from before the raise. `u64::MAX` if not known:
    /// costs a read at most.
    pub zero_from: u64,
    /// The file's size when this write is done, at least: what a crash of this client leaves behind
    /// for the size.
    pub size_after: u64,
    /// The grant of the write lease (its fencing token): what was written under it before nobody
    /// else has changed. `None`: nothing is known from before, which costs a read at most.
    pub grant: Option<u64>,
}

impl WriterHint {
    /// The same as seen from an object that begins at `base`.
    fn of_object(self, base: u64, object_bytes: u64) -> ObjectHint {
        ObjectHint {
            zero_from: self.zero_from.saturating_sub(base),
            logical_end: self.size_after.saturating_sub(base).min(object_bytes),
            grant: self.grant,
        }
    }
}

/// What is left behind for a write that is not waited for: dropped once that is reported, or its
/// session is dead.
pub trait Behind: Send + Sync {
    /// The session died before the write was reported.
    fn lost(&self);
}

/// How a write ends.
#[derive(Clone, Default)]
pub struct Ending {
    /// The shards begin to sync it at once; nobody waits for that. A [`LocalIo::sync`] that comes
    /// next finds it begun.
    pub sync: bool,
    /// It is done as soon as it is numbered and sent, and this is dropped once it is reported.
    /// Whatever comes later in the session finds it, and the session sends it again to shards that
    /// die; with this process it may be lost.
    pub behind: Option<Arc<dyn Behind>>,
    /// Dropped once no worker works on it any more, also where nobody waits for that.
    pub guard: Option<Arc<dyn Send + Sync>>,
    /// It writes zeros over what holds data, which takes no space: a full disk takes it, too.
    pub frees: bool,
}

/// A part of an operation: within one object, and small enough for one buffer.
#[derive(Clone, Debug)]
struct Part {
    object: ObjectId,
    range: Range<u64>,
    /// Where it begins in the range of the operation.
    at: u64,
    /// Where the object begins in the file.
    base: u64,
}

/// A worker's data I/O in one session. See the module.
#[derive(Clone)]
pub struct LocalIo {
    local: Rc<Local>,
    session: SessionId,
}

impl LocalIo {
    /// In the session of now.
    pub(crate) fn new(local: Rc<Local>) -> Self {
        Self { session: local.session(), local }
    }

    /// In the session of now, which may be a later one.
    pub(crate) fn anew(&self) -> Self {
        Self::new(Rc::clone(&self.local))
    }

    /// The worker that this runs on: for timers, tasks and buffers.
    pub fn worker(&self) -> &messenger::Worker {
        &self.local.worker
    }

    /// Reads `len` bytes at `offset`. What was never written is zeros; the caller clips at the end
    /// of the file.
    ///
    /// # Errors
    /// [`ClientError::TimedOut`], [`ClientError::Unreadable`], [`ClientError::Fenced`],
    /// [`ClientError::NoPool`].
    pub async fn read(&self, file: FileRef, offset: u64, len: usize) -> Result<Bytes, ClientError> {
        let _timed = self.local.times.read.stopwatch();
        let mut parts = self.parts(file, &self.range_of(file, offset, len as u64)?)?;
        let read = |part: Part| {
            self.on_owner(
                file,
                part.object,
                "storage daemons to read from",
                move |local, pg| async move {
                    let _permit = local.permit((part.range.end - part.range.start) as usize).await;
                    read::read_piece(&local, &pg, part.object, part.range, false).await
                },
            )
        };
        match parts.len() {
            0 => Ok(Bytes::new()),
            1 => read(parts.remove(0)).await,
            _ => {
                let mut out = Vec::with_capacity(len);
                for bytes in join_all(parts.into_iter().map(read)).await {
                    out.extend_from_slice(&bytes?);
                }
                Ok(Bytes::from(out))
            }
        }
    }

    /// Writes `data` at `offset`. Done means acknowledged by every shard that must have it: it
    /// survives the death of any processes. [`LocalIo::sync`] makes it survive power.
    ///
    /// # Errors
    /// As [`LocalIo::read`], and [`ClientError::NoSpace`] (nothing or only some objects' parts were
    /// written). After [`ClientError::TimedOut`] the write may still happen.
    pub async fn write(
        &self,
        file: FileRef,
        offset: u64,
        data: Bytes,
        hint: WriterHint,
    ) -> Result<(), ClientError> {
        self.write_ending(file, offset, data, hint, Ending::default()).await
    }

    /// As [`LocalIo::write`], and says how it is to end.
    ///
    /// # Errors
    /// As [`LocalIo::write`]. Where it is not waited for, a session that dies with it is told by
    /// the next [`LocalIo::sync`].
    pub async fn write_ending(
        &self,
        file: FileRef,
        offset: u64,
        data: Bytes,
        hint: WriterHint,
        ending: Ending,
    ) -> Result<(), ClientError> {
        let _timed = self.local.times.write.stopwatch();
        let mut parts = self.parts(file, &self.range_of(file, offset, data.len() as u64)?)?;
        let size = self.local.profile(file.pool)?.object_bytes();
        let hint =
            WriterHint { size_after: hint.size_after.max(offset + data.len() as u64), ..hint };
        let write = |part: Part| {
            let length = (part.range.end - part.range.start) as usize;
            let bytes = data.slice(part.at as usize..part.at as usize + length);
            let (hint, ending) = (hint.of_object(part.base, size), ending.clone());
            self.on_owner(
                file,
                part.object,
                "storage daemons to write to",
                move |local, pg| async move {
                    let _permit = local.permit(length).await;
                    write::write_piece(
                        &local,
                        &pg,
                        part.object,
                        part.range.start,
                        bytes,
                        hint,
                        ending,
                    )
                    .await
                },
            )
        };
        match parts.len() {
            0 => Ok(()),
            1 => write(parts.remove(0)).await,
            _ => join_all(parts.into_iter().map(write)).await.into_iter().collect(),
        }
    }

    /// Waits for room for a write of at most this range, then gathers what it is to be, and sends
    /// that. It ends as one that is not waited for ([`Ending::behind`]). Nothing is gathered of a
    /// range that is not one piece of one object.
    ///
    /// # Errors
    /// As [`LocalIo::write_ending`]: what was gathered is not written then.
    pub async fn write_gathered(
        &self,
        file: FileRef,
        range: Range<u64>,
        gathered: Arc<dyn Gathered>,
        behind: Arc<dyn Behind>,
    ) -> Result<(), ClientError> {
        let mut parts =
            self.parts(file, &self.range_of(file, range.start, range.end - range.start)?)?;
        let (Some(part), true) = (parts.pop(), parts.is_empty()) else { return Ok(()) };
        self.on_owner(
            file,
            part.object,
            "storage daemons to write to",
            move |local, pg| async move {
                gather::write_gathered(
                    &local,
                    &pg,
                    part.object,
                    (part.range, part.base),
                    gathered,
                    behind,
                )
                .await
            },
        )
        .await
    }

    async fn mutate(
        &self,
        file: FileRef,
        index: u32,
        op: Op,
        range: Range<u64>,
        logical_end: u64,
    ) -> Result<(), ClientError> {
        let _timed = self.local.times.change.stopwatch();
        let object = file.object(index);
        self.on_owner(file, object, "storage daemons to write to", move |local, pg| async move {
            let _permit = local.permit(0).await;
            write::mutate(&local, &pg, object, op, range, logical_end).await
        })
        .await
    }

    /// fsync: returns when every write of the file reported so far is durable on all its shards.
    ///
    /// # Errors
    /// As [`LocalIo::read`], and [`ClientError::Lost`] once if a session died with writes of this
    /// file.
    pub async fn sync(&self, file: FileRef) -> Result<(), ClientError> {
        self.sync_on_all(Some(file.gfid)).await
    }

    /// As [`LocalIo::sync`], for all files.
    ///
    /// # Errors
    /// As [`LocalIo::sync`].
    pub async fn sync_all(&self) -> Result<(), ClientError> {
        self.sync_on_all(None).await
    }

    /// Returns when every write of the file so far is reported, also those that were not waited
    /// for.
    ///
    /// # Errors
    /// As [`LocalIo::read`]; [`ClientError::Fenced`] if the session is dead: a [`LocalIo::sync`]
    /// tells what was lost.
    pub async fn reported(&self, file: FileRef) -> Result<(), ClientError> {
        let reported = |worker| {
            let session = self.session;
            self.on_worker(
                worker,
                "storage daemons to take what was written",
                move |local| async move {
                    local.check(session)?;
                    let pgs = local.pgs();
                    join_all(pgs.iter().map(|pg| pg.file_reported(&local, file.gfid)))
                        .await
                        .into_iter()
                        .collect()
                },
            )
        };
        join_all((0..self.local.shared.config.workers).map(reported)).await.into_iter().collect()
    }

    async fn sync_on_all(&self, gfid: Option<Gfid>) -> Result<(), ClientError> {
        let _timed = self.local.times.sync.stopwatch();
        let sync = |worker| {
            self.on_worker(worker, "storage daemons to sync", move |local| async move {
                let pgs = local.pgs();
                let results = join_all(pgs.iter().map(|pg| pg.sync(&local, gfid))).await;
                if local.take_lost(gfid) {
                    return Err(ClientError::Lost);
                }
                results.into_iter().collect()
            })
        };
        join_all((0..self.local.shared.config.workers).map(sync)).await.into_iter().collect()
    }

    // ---- cutting and handing over

    /// The range, if a file can be so large: objects are numbered with 32 bits, and offsets are
    /// signed.
    fn range_of(&self, file: FileRef, offset: u64, len: u64) -> Result<Range<u64>, ClientError> {
        let max = file_bytes_max(self.local.profile(file.pool)?.object_bytes());
        let end = offset.checked_add(len).filter(|end| *end <= max).ok_or(ClientError::TooLarge)?;
        Ok(offset..end)
    }

    /// Cuts a range of the file into parts.
    fn parts(&self, file: FileRef, range: &Range<u64>) -> Result<Vec<Part>, ClientError> {
        let layout = Layout::new(self.local.profile(file.pool)?);
        let max =
            plan::piece_bytes_max(layout.profile(), window_bytes(self.local.shared.config.workers));
        let size = layout.profile().object_bytes();
        let mut parts = Vec::with_capacity(1);
        for piece in layout.objects(range.clone()) {
            let start = piece.range.start;
            let base = u64::from(piece.index) * size;
            let object = file.object(piece.index);
            parts.extend(plan::pieces(piece.range, max).map(|range| Part {
                object,
                at: piece.at + (range.start - start),
                range,
                base,
            }));
        }
        Ok(parts)
    }

    /// Runs an operation on the worker that owns the object's PG, with that PG as this session has
    /// it.
    async fn on_owner<T, F, Fut>(
        &self,
        file: FileRef,
        object: ObjectId,
        what: &'static str,
        operation: F,
    ) -> Result<T, ClientError>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Local>, Rc<PgIo>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, ClientError>> + 'static,
    {
        self.on_owner_of(self.local.pg_id(file.pool, object)?, what, operation).await
    }

    /// Runs an operation on the worker that owns a PG, with that PG as this session has it.
    async fn on_owner_of<T, F, Fut>(
        &self,
        pg: PgId,
        what: &'static str,
        operation: F,
    ) -> Result<T, ClientError>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Local>, Rc<PgIo>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, ClientError>> + 'static,
    {
        let session = self.session;
        let owner = pg.number as usize % self.local.shared.config.workers;
        self.on_worker(owner, what, move |local| async move {
            let pg = local.pg_of(session, pg)?;
            operation(local, pg).await
        })
        .await
    }

    /// Runs an operation on a worker, for at most the configured time.
    async fn on_worker<T, F, Fut>(
        &self,
        worker: usize,
        what: &'static str,
        operation: F,
    ) -> Result<T, ClientError>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Local>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, ClientError>> + 'static,
    {
        if worker == self.local.worker.index() {
            return self.local.within(what, operation(Rc::clone(&self.local))).await;
        }
        let run = self.local.worker.handle().run_on(worker, move |worker| async move {
            let local = worker.local::<Local>().ok_or(ClientError::Closed)?;
            local.within(what, operation(Rc::clone(&local))).await
        });
        run.await.unwrap_or(Err(ClientError::Closed))
    }
}
