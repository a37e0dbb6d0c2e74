//! A volume that is open.
//!
//! Contract: what was answered as written survives the death of any process, and with a flush that
//! was sent after the answer, or FUA, the loss of power; so it is with a file and its fsync. Once
//! the session in which the volume was opened is dead, every operation fails, also after the
//! client has a new session: whoever takes the volume over finds nothing that arrives later.

use crate::{VolumeError, VolumeName};
use bytes::Bytes;
use client::fs::{
    AllocateMode, FileSystem, LocalFs, NoKernelCache, OpenId, SyncKind, WriteMode, Writer,
};
use client::{ClientError, FileRef};
use messenger::sync::oneshot;
use protocol::lock::{ByteRange, LockOwner, RangeLock};
use protocol::namespace::{Caller, LeaseMode};
use protocol::{Gfid, SessionId};
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;

/// Longest range of one question for extents, in bytes: the data of some objects, and their
/// answers.
pub const EXTENTS_RANGE_BYTES_MAX: u64 = 64 << 20;
/// Zeros written at once where a range is to keep its space.
const ZEROS_BYTES: usize = 1 << 20;
const EAGAIN: i32 = 11;

/// What a volume is opened for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// By any number of processes at once, as long as nobody writes it.
    Read,
    /// By one process.
    Write,
}

impl Access {
    fn lease(self) -> LeaseMode {
        match self {
            Access::Read => LeaseMode::Read,
            Access::Write => LeaseMode::Write,
        }
    }
}

/// An operation. Ranges must lie inside the volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Reads bytes.
    Read {
        /// From here on.
        offset: u64,
        /// So many.
        len: usize,
    },
    /// Writes bytes.
    Write {
        /// From here on.
        offset: u64,
        /// These.
        data: Bytes,
        /// It is done when it survives the loss of power.
        fua: bool,
    },
    /// Everything that was answered before survives the loss of power when this is done.
    Flush,
    /// Makes a range read as zeros.
    Zero {
        /// Which.
        range: Range<u64>,
        /// It may give its space back; if not, zeros are written.
        may_punch: bool,
        /// As of a write.
        fua: bool,
    },
    /// Where a range holds data; of a range longer than [`EXTENTS_RANGE_BYTES_MAX`], where its
    /// beginning does.
    Extents {
        /// Which.
        range: Range<u64>,
    },
}

/// A part of a volume that holds data, or does not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Bytes.
    pub len: u64,
    /// Nothing is stored: it reads as zeros.
    pub is_hole: bool,
}

/// What came of an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It is done.
    Done,
    /// What was read.
    Data(Bytes),
    /// In order from the beginning of the range on.
    Extents(Vec<Extent>),
}

/// A volume that is open. See the module.
pub struct Volume {
    part: Arc<Part>,
}

struct Part {
    fs: FileSystem,
    name: VolumeName,
    file: FileRef,
    size: u64,
    access: Access,
    session: SessionId,
    /// Whose the lock is; `None` where nobody else can find the file.
    owner: Option<LockOwner>,
    open: OpenId,
}

/// User 0, now: volumes belong to whoever may reach the cluster.
pub(crate) fn caller() -> Caller {
    Caller { uid: 0, gid: 0, now: client::fs::now() }
}

fn writer() -> Writer {
    Writer { caller: caller(), process: 0 }
}

pub(crate) fn lock_for(access: Access) -> RangeLock {
    RangeLock { range: ByteRange::ALL, mode: access.lease(), pid: std::process::id() }
}

/// Starts a file system for volumes on a session.
pub(crate) fn file_system(client: client::Client) -> Result<FileSystem, ClientError> {
    let options = client::fs::FsOptions { is_mount: false, ..Default::default() };
    FileSystem::start(client, options, Arc::new(NoKernelCache))
}

/// Runs an operation on a worker and waits for it; not on a worker.
pub(crate) fn run<T, F, Fut>(fs: &FileSystem, gfid: Gfid, operation: F) -> Result<T, ClientError>
where
    T: Send + 'static,
    F: FnOnce(LocalFs) -> Fut + Send + 'static,
    Fut: Future<Output = Result<T, ClientError>> + 'static,
{
    let (sender, receiver) = oneshot();
    fs.spawn_waiting(gfid, move |local| async move {
        // Whoever waited may have gone.
        let _ = sender.send(operation(local).await);
    });
    receiver.recv_blocking().unwrap_or(Err(ClientError::Closed))
}

impl Volume {
    /// A file that is locked by `owner`, or that nobody else can find, and open.
    pub(crate) fn of(
        fs: FileSystem,
        name: VolumeName,
        (file, size): (FileRef, u64),
        access: Access,
        (session, owner): (SessionId, Option<LockOwner>),
    ) -> Volume {
        let open = fs.open_id();
        Volume { part: Arc::new(Part { fs, name, file, size, access, session, owner, open }) }
    }

    /// Its name.
    pub fn name(&self) -> &VolumeName {
        &self.part.name
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.part.size
    }

    /// What it is open for.
    pub fn access(&self) -> Access {
        self.part.access
    }

    /// The file system that it lies in.
    pub fn file_system(&self) -> &FileSystem {
        &self.part.fs
    }

    pub(crate) fn file(&self) -> FileRef {
        self.part.file
    }

    /// Bytes of a stripe: writes of whole ones read nothing first.
    pub fn stripe_bytes(&self) -> u64 {
        let map = self.part.fs.client().map().ok();
        let pool = map.as_ref().and_then(|map| map.pools.get(&self.part.file.pool));
        pool.map_or(crate::SECTOR_BYTES, |pool| pool.profile.stripe_bytes())
    }

    /// Begins an operation; `done` is called with what came of it, on a worker, where it must not
    /// block, and also if the client is closed meanwhile.
    pub fn submit(
        &self,
        request: Request,
        done: impl FnOnce(Result<Outcome, VolumeError>) + Send + 'static,
    ) {
        let part = Arc::clone(&self.part);
        let end = End { done: Some(Box::new(done)) };
        let (fs, gfid) = (&self.part.fs, self.part.file.gfid);
        let offset = match &request {
            Request::Read { offset, .. } | Request::Write { offset, .. } => Some(*offset),
            // What is long is done in pieces, each of which has its own time.
            Request::Zero { .. } | Request::Extents { .. } | Request::Flush => None,
        };
        let perform = move |local| async move {
            let outcome = part.perform(local, request).await;
            end.is(outcome);
        };
        match offset {
            Some(offset) => fs.spawn(gfid, offset, perform),
            None => fs.spawn_waiting(gfid, perform),
        }
    }

    /// As [`Volume::submit`], and waits; not on a worker.
    ///
    /// # Errors
    /// [`VolumeError::Taken`], and those of the client.
    pub fn call(&self, request: Request) -> Result<Outcome, VolumeError> {
        let (sender, receiver) = oneshot();
        self.submit(request, move |outcome| drop(sender.send(outcome)));
        receiver.recv_blocking().unwrap_or(Err(VolumeError::Client(ClientError::Closed)))
    }

    /// Is it still this process's? Asks the metadata service; not on a worker.
    ///
    /// # Errors
    /// [`VolumeError::Taken`] if not; others if that cannot be told now.
    pub fn check(&self) -> Result<(), VolumeError> {
        self.part.is_held()?;
        let (Some(owner), gfid, lock) =
            (self.part.owner, self.part.file.gfid, lock_for(self.part.access))
        else {
            return Ok(());
        };
        // It holds it, so asking for it again changes nothing.
        let locked = run(&self.part.fs, gfid, move |fs| async move {
            fs.set_lock(gfid, owner, lock, caller()).await
        });
        self.part.is_held()?;
        match locked {
            Err(ClientError::Posix(EAGAIN)) => Err(self.part.taken()),
            other => Ok(other?),
        }
    }

    /// Makes everything durable and lets others open the volume.
    ///
    /// # Errors
    /// What could not be made durable. The lock goes in any case, with the session at the latest.
    pub fn close(&self) -> Result<(), VolumeError> {
        let flushed = match self.part.access {
            Access::Write => self.call(Request::Flush).map(drop),
            Access::Read => Ok(()),
        };
        let (gfid, owner) = (self.part.file.gfid, self.part.owner);
        let released = run(&self.part.fs, gfid, move |fs| async move {
            let released = fs.release(gfid).await;
            match owner {
                Some(owner) => released.and(fs.close_locks(gfid, owner).await),
                None => released,
            }
        });
        flushed.and(released.map_err(VolumeError::Client))
    }
}

impl Part {
    fn taken(&self) -> VolumeError {
        VolumeError::Taken(self.name.to_string())
    }

    /// Is the session in which the volume was opened alive, as far as is known here?
    fn is_held(&self) -> Result<(), VolumeError> {
        match self.fs.client().live_session() {
            Ok(session) if session == self.session => Ok(()),
            Ok(_) | Err(ClientError::Fenced(_)) => Err(self.taken()),
            Err(error) => Err(VolumeError::Client(error)),
        }
    }

    async fn perform(&self, fs: LocalFs, request: Request) -> Result<Outcome, VolumeError> {
        self.is_held()?;
        let outcome = self.carry_out(&fs, request).await;
        // What ended in another session was not done under this volume's lock.
        self.is_held()?;
        Ok(outcome?)
    }

    async fn carry_out(&self, fs: &LocalFs, request: Request) -> Result<Outcome, ClientError> {
        let gfid = self.file.gfid;
        match request {
            Request::Read { offset, len } => {
                Ok(Outcome::Data(fs.read(gfid, offset, len, caller()).await?))
            }
            Request::Write { offset, data, fua } => {
                self.write(fs, offset, data, if fua { SyncKind::Data } else { SyncKind::None })
                    .await?;
                Ok(Outcome::Done)
            }
            Request::Flush => {
                self.flush(fs).await?;
                Ok(Outcome::Done)
            }
            Request::Zero { range, may_punch, fua } => {
                if may_punch {
                    let len = range.end - range.start;
                    fs.allocate(gfid, range.start, len, AllocateMode::ZeroKeepSize, writer())
                        .await?;
                } else {
                    self.write_zeros(fs, range).await?;
                }
                if fua {
                    self.flush(fs).await?;
                }
                Ok(Outcome::Done)
            }
            Request::Extents { range } => {
                let range = range.start..range.end.min(range.start + EXTENTS_RANGE_BYTES_MAX);
                let data = fs.extents(gfid, range.clone(), caller()).await?;
                Ok(Outcome::Extents(extents(range, &data)))
            }
        }
    }

    async fn write(
        &self,
        fs: &LocalFs,
        offset: u64,
        data: Bytes,
        sync: SyncKind,
    ) -> Result<(), ClientError> {
        let mode = WriteMode { sync, open: self.open, ..WriteMode::default() };
        fs.write(self.file.gfid, offset, data, mode, writer()).await
    }

    async fn flush(&self, fs: &LocalFs) -> Result<(), ClientError> {
        fs.fsync(self.file.gfid, self.open, true, caller()).await
    }

    async fn write_zeros(&self, fs: &LocalFs, range: Range<u64>) -> Result<(), ClientError> {
        static ZEROS: [u8; ZEROS_BYTES] = [0; ZEROS_BYTES];
        let mut at = range.start;
        while at < range.end {
            let len = (range.end - at).min(ZEROS_BYTES as u64);
            self.write(fs, at, Bytes::from_static(&ZEROS[..len as usize]), SyncKind::None).await?;
            at += len;
        }
        Ok(())
    }
}

/// A range as extents, of where it holds data.
fn extents(range: Range<u64>, data: &[Range<u64>]) -> Vec<Extent> {
    let mut found: Vec<Extent> = Vec::new();
    let mut add = |len: u64, is_hole: bool| match found.last_mut() {
        _ if len == 0 => {}
        Some(last) if last.is_hole == is_hole => last.len += len,
        _ => found.push(Extent { len, is_hole }),
    };
    let mut at = range.start;
    for part in data {
        let (start, end) = (part.start.clamp(at, range.end), part.end.clamp(at, range.end));
        add(start - at, true);
        add(end - start, false);
        at = end;
    }
    add(range.end - at, true);
    found
}

type Done = Box<dyn FnOnce(Result<Outcome, VolumeError>) + Send>;

/// Calls back, also if the task is dropped.
struct End {
    done: Option<Done>,
}

impl End {
    fn is(mut self, outcome: Result<Outcome, VolumeError>) {
        if let Some(done) = self.done.take() {
            done(outcome);
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        if let Some(done) = self.done.take() {
            done(Err(VolumeError::Client(ClientError::Closed)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_cover_the_range() {
        let of = |data: &[Range<u64>]| {
            let found = extents(100..200, data);
            assert_eq!(found.iter().map(|extent| extent.len).sum::<u64>(), 100);
            found.iter().map(|extent| (extent.len, extent.is_hole)).collect::<Vec<_>>()
        };
        assert_eq!(of(&[]), [(100, true)]);
        assert_eq!(of(&[100..150, 150..200]), [(100, false)]);
        assert_eq!(of(&[0..110, 110..120, 150..300]), [(20, false), (30, true), (50, false)]);
        assert_eq!(of(&[120..130, 125..140]), [(20, true), (20, false), (60, true)]);
    }

    #[test]
    fn a_task_that_is_dropped_calls_back() {
        let (sender, receiver) = oneshot();
        drop(End { done: Some(Box::new(move |outcome| drop(sender.send(outcome)))) });
        assert!(matches!(
            receiver.recv_blocking(),
            Ok(Err(VolumeError::Client(ClientError::Closed)))
        ));
    }
}
