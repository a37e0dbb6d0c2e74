//! FUSE requests as calls of [`client::fs`].
//!
//! Contract: a reader thread copies what it must out of the request's buffer and hands the
//! operation to the worker that is nearest to the file; the worker replies. An operation that is
//! dropped, at its deadline or with the client, drops its reply, which `fuser` then answers with
//! EIO: no request stays unanswered.

mod callers;
mod content;
mod flags;
mod handles;
mod interrupts;
mod late;
mod locks;
mod names;
mod times;

use crate::convert::{errno, file_attr, gfid};
use crate::options::MountSettings;
use client::ClientError;
use client::fs::{FileSystem, LocalFs, Permissions};
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileAttr, FileHandle, Filesystem,
    Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags,
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyStatx, ReplyWrite, ReplyXattr,
    Request, RequestId, TimeOrNow, WriteFlags,
};
use handles::{Handles, open_id};
use interrupts::Interrupts;
use late::LateReads;
use messenger::{Began, History};
use protocol::Gfid;
use protocol::namespace::Attr;
use std::ffi::OsStr;
use std::future::Future;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use times::{RequestKind, RequestTimes};

/// Inode numbers are never reused, so one generation is enough.
const GENERATION: Generation = Generation(0);
/// Requests that the kernel sends without waiting (read-ahead, asynchronous direct I/O) at once.
/// The default of 16 keeps a striped store idle.
const MAX_BACKGROUND: u16 = 128;

/// What of the settings the requests need.
#[derive(Clone, Copy, Debug)]
pub struct AdapterOptions {
    attr_ttl: Duration,
    entry_ttl: Duration,
    max_request_bytes: u32,
    read_ahead_kib: u32,
    /// Writes are on disk when they are answered, also those that go by the kernel's pages.
    sync: bool,
    /// So are changes of names.
    dirsync: bool,
}

impl AdapterOptions {
    /// Those of a mount.
    pub fn of(settings: &MountSettings) -> Self {
        Self {
            attr_ttl: settings.attr_timeout,
            entry_ttl: settings.entry_timeout,
            max_request_bytes: settings.max_request_bytes,
            read_ahead_kib: settings.read_ahead_kib,
            sync: settings.kernel.sync,
            dirsync: settings.kernel.sync || settings.kernel.dirsync,
        }
    }
}

/// Serves one mount.
pub struct Adapter {
    fs: FileSystem,
    options: AdapterOptions,
    times: RequestTimes,
    history: History,
    /// The kernel allows mmap of files that bypass its cache.
    direct_mmap: bool,
    /// The kernel goes by POSIX ACLs.
    acls: bool,
    interrupts: Arc<Interrupts>,
    handles: Handles,
    late: Arc<LateReads>,
}

/// Makes answers for the kernel: attributes where nobody is to be asked how much the file takes on
/// disk, and how long it may use what it is told. That is as long as this is surely the only mount,
/// so it is asked for when the answer leaves.
struct Shape {
    fs: FileSystem,
    options: AdapterOptions,
}

impl Shape {
    /// The attributes, and how long the kernel may use them: not at all if it has to ask again to
    /// learn `st_blocks`.
    fn of(&self, attr: &Attr) -> (FileAttr, Duration) {
        let (allocated, guessed) = self.fs.allocated_known(attr);
        (file_attr(attr, allocated), if guessed { Duration::ZERO } else { self.attr_ttl() })
    }

    /// Answers with a name's file.
    fn entry(&self, attr: &Attr, reply: ReplyEntry) {
        let (attr, attr_ttl) = self.of(attr);
        reply.entry_with_ttls(&attr_ttl, &self.entry_ttl(), &attr, GENERATION);
    }

    /// How long the kernel may use attributes.
    fn attr_ttl(&self) -> Duration {
        self.options.attr_ttl.min(self.fs.alone_for())
    }

    /// How long the kernel may use a name.
    fn entry_ttl(&self) -> Duration {
        self.options.entry_ttl.min(self.fs.alone_for())
    }
}

impl Adapter {
    /// For a file system that is started: its client lists how long requests take, and remembers
    /// them if it shall.
    pub fn new(fs: FileSystem, options: AdapterOptions) -> Self {
        let handle = fs.client().handle().clone();
        let (times, history) = (RequestTimes::new(handle.operations()), handle.history().clone());
        let (interrupts, handles) = (Interrupts::new(&handle), Handles::new(handle.locks()));
        let late = Arc::new(LateReads::new(handle.locks(), fs.client().config().timeout));
        Self {
            fs,
            options,
            times,
            history,
            interrupts,
            handles,
            late,
            direct_mmap: false,
            acls: false,
        }
    }

    fn shape(&self) -> Shape {
        Shape { fs: self.fs.clone(), options: self.options }
    }

    /// Answers on the thread that read the request: for what nobody has to be asked, and nothing
    /// waited for.
    fn answer_here(&self, kind: RequestKind, place: Gfid, began: Began, answer: impl FnOnce()) {
        let recording = self.history.begin(kind.name(), place.unique());
        answer();
        drop(recording);
        self.times.of(kind).end(began);
    }

    /// Starts an operation near a file; it returns the errno that it answered with, 0 for success.
    fn start<F, Fut>(
        &self,
        req: &Request,
        kind: RequestKind,
        place: Gfid,
        offset: u64,
        operation: F,
    ) where
        F: FnOnce(LocalFs) -> Fut + Send + 'static,
        Fut: Future<Output = i32> + 'static,
    {
        tracing::trace!(%place, offset, "{}", kind.name());
        let mut recording = self.history.begin(kind.name(), place.unique());
        let stopwatch = self.times.of(kind).stopwatch();
        // What is dropped before it is over is answered so by `fuser`.
        recording.answered(libc::EIO);
        let (unique, thread) = (u64::from(req.unique()), req.pid());
        let interrupts = kind.may_be_given_up().then(|| Arc::clone(&self.interrupts));
        self.fs.spawn(place, offset, move |fs| {
            let operation = operation(fs);
            async move {
                let answered = match interrupts {
                    Some(interrupts) => interrupts.unless_killed(unique, thread, operation).await,
                    None => Some(operation.await),
                };
                recording.answered(answered.unwrap_or(libc::EINTR));
                drop((stopwatch, recording));
            }
        });
    }

    /// Starts an operation near a file; `answer` tells the kernel what came of it.
    fn run<F, Fut, T, R, A>(
        &self,
        req: &Request,
        kind: RequestKind,
        (place, offset): (Gfid, u64),
        reply: R,
        operation: F,
        answer: A,
    ) where
        F: FnOnce(LocalFs) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, ClientError>> + 'static,
        R: Refuse + Send + 'static,
        A: FnOnce(R, T) + Send + 'static,
    {
        self.start(req, kind, place, offset, move |fs| async move {
            match operation(fs).await {
                Ok(value) => {
                    answer(reply, value);
                    0
                }
                Err(error) => reply.refuse(errno(&error)),
            }
        });
    }

    /// Starts an operation whose answer is success or an error.
    fn run_empty<F, Fut>(
        &self,
        req: &Request,
        kind: RequestKind,
        place: Gfid,
        reply: ReplyEmpty,
        operation: F,
    ) where
        F: FnOnce(LocalFs) -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), ClientError>> + 'static,
    {
        self.run(req, kind, (place, 0), reply, operation, |reply, ()| reply.ok());
    }

    /// Starts an operation whose answer is a name's file.
    fn run_entry<F, Fut>(
        &self,
        req: &Request,
        kind: RequestKind,
        place: Gfid,
        reply: ReplyEntry,
        operation: F,
    ) where
        F: FnOnce(LocalFs) -> Fut + Send + 'static,
        Fut: Future<Output = Result<Attr, ClientError>> + 'static,
    {
        let shape = self.shape();
        self.run(req, kind, (place, 0), reply, operation, move |reply, attr| {
            shape.entry(&attr, reply)
        });
    }

    /// Starts an operation whose answer is bytes that the caller may have asked only the number of.
    fn run_xattr<F, Fut>(
        &self,
        req: &Request,
        kind: RequestKind,
        place: Gfid,
        size: u32,
        reply: ReplyXattr,
        operation: F,
    ) where
        F: FnOnce(LocalFs) -> Fut + Send + 'static,
        Fut: Future<Output = Result<Vec<u8>, ClientError>> + 'static,
    {
        self.start(req, kind, place, 0, move |fs| async move {
            match operation(fs).await {
                Ok(bytes) if size == 0 => reply.size(bytes.len() as u32),
                Ok(bytes) if bytes.len() <= size as usize => reply.data(&bytes),
                Ok(_) => return reply.refuse(Errno::ERANGE),
                Err(error) => return reply.refuse(errno(&error)),
            }
            0
        });
    }
}

/// A reply that can be an error.
trait Refuse {
    /// Answers with it, and returns its number.
    fn refuse(self, errno: Errno) -> i32;
}

macro_rules! refuse {
    ($($reply:ident)*) => {
        $(impl Refuse for $reply {
            fn refuse(self, errno: Errno) -> i32 {
                self.error(errno);
                errno.code()
            }
        })*
    };
}

refuse! {
    ReplyAttr ReplyCreate ReplyData ReplyDirectory ReplyDirectoryPlus ReplyEmpty ReplyEntry ReplyIoctl ReplyLock
    ReplyLseek ReplyOpen ReplyStatfs ReplyStatx ReplyWrite ReplyXattr
}

/// The capabilities that we use, each if the kernel has it. Not among them: ATOMIC_O_TRUNC (the
/// kernel's own truncation also drops set-user-id), and WRITEBACK_CACHE. POSIX_ACL comes with
/// DONT_MASK, since a default ACL counts in place of the umask, and with SETXATTR_EXT, which tells
/// whether an ACL takes set-group-ID away.
const CAPABILITIES: [InitFlags; 16] = [
    InitFlags::FUSE_ALLOW_IDMAP,
    InitFlags::FUSE_POSIX_ACL,
    InitFlags::FUSE_DONT_MASK,
    InitFlags::FUSE_SETXATTR_EXT,
    InitFlags::FUSE_EXPORT_SUPPORT,
    InitFlags::FUSE_POSIX_LOCKS,
    InitFlags::FUSE_FLOCK_LOCKS,
    InitFlags::FUSE_ASYNC_READ,
    InitFlags::FUSE_BIG_WRITES,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_CACHE_SYMLINKS,
    InitFlags::FUSE_EXPLICIT_INVAL_DATA,
    InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
];

impl Filesystem for Adapter {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for capability in CAPABILITIES {
            if let Err(missing) = config.add_capabilities(capability) {
                tracing::debug!(?missing, "the kernel lacks a capability");
            }
        }
        self.acls = config.capabilities().contains(InitFlags::FUSE_POSIX_ACL);
        self.direct_mmap = config.capabilities().contains(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);
        let refused = |nearest| io::Error::other(format!("the kernel takes {nearest} at most"));
        // The kernel clamps the read-ahead; what exceeds it is set after the mount, by root.
        let read_ahead = self.options.read_ahead_kib.saturating_mul(1024).max(4096);
        config
            .set_max_readahead(read_ahead)
            .or_else(|nearest| config.set_max_readahead(nearest))
            .map_err(refused)?;
        config.set_max_write(self.options.max_request_bytes).map_err(refused)?;
        config.set_max_background(MAX_BACKGROUND).map_err(|nearest| refused(nearest.into()))?;
        config
            .set_congestion_threshold(MAX_BACKGROUND)
            .map_err(|nearest| refused(nearest.into()))?;
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.do_lookup(req, gfid(parent), name, reply);
    }

    /// Files are found by their number: there is no table to remove them from.
    fn forget(&self, _req: &Request, _ino: INodeNo, _nlookup: u64) {}

    fn getattr(&self, req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        self.do_getattr(req, gfid(ino), reply);
    }

    fn statx(&self, req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyStatx) {
        self.do_getattr(req, gfid(ino), reply);
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let owner = names::Owner { mode, uid, gid };
        self.do_setattr(req, gfid(ino), owner, size, (atime, mtime), reply);
    }

    fn readlink(&self, req: &Request, ino: INodeNo, reply: ReplyData) {
        self.do_readlink(req, gfid(ino), reply);
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        self.do_mknod(req, gfid(parent), name, (mode, umask), rdev, reply);
    }

    fn mkdir(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        self.do_mkdir(req, gfid(parent), name, (mode, umask), reply);
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.do_unlink(req, gfid(parent), name, reply);
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.do_rmdir(req, gfid(parent), name, reply);
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        link_name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        self.do_symlink(req, gfid(parent), link_name, target, reply);
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        self.do_rename(req, (gfid(parent), name), (gfid(newparent), newname), flags, reply);
    }

    fn link(
        &self,
        req: &Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        self.do_link(req, gfid(ino), gfid(newparent), newname, reply);
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.do_open(req, gfid(ino), flags, reply);
    }

    fn read(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.do_read(req, (gfid(ino), fh), (offset, size), flags, reply);
    }

    fn write(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let written_back = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        self.do_write(req, (gfid(ino), fh), (offset, data), flags, written_back, reply);
    }

    fn flush(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        let (file, owner) = (gfid(ino), protocol::lock::LockOwner(lock_owner.0));
        let began = self.times.of(RequestKind::Flush).begin();
        if self.fs.closes_at_once(file, owner) {
            return self.answer_here(RequestKind::Flush, file, began, || reply.ok());
        }
        let open = open_id(fh);
        self.run_empty(req, RequestKind::Flush, file, reply, move |fs| async move {
            fs.flush(file, open, owner).await
        });
    }

    fn release(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        flags: OpenFlags,
        lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let file = gfid(ino);
        let mut owners = self.handles.released(file, fh);
        owners.extend(lock_owner.map(|owner| protocol::lock::LockOwner(owner.0)));
        self.run_empty(req, RequestKind::Release, file, reply, move |fs| async move {
            if content::is_mappable(flags) {
                fs.no_longer_mapped(file);
            }
            for owner in owners {
                fs.close_locks(file, owner).await?;
            }
            fs.release(file).await
        });
    }

    fn fsync(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        let (file, open, caller) = (gfid(ino), open_id(fh), crate::convert::caller(req));
        self.run_empty(req, RequestKind::Fsync, file, reply, move |fs| async move {
            fs.fsync(file, open, datasync, caller).await
        });
    }

    fn opendir(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.do_opendir(gfid(ino), reply);
    }

    fn readdir(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        self.do_readdir(req, gfid(ino), fh, offset, reply);
    }

    fn readdirplus(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        self.do_readdirplus(req, gfid(ino), fh, offset, reply);
    }

    fn releasedir(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        let began = self.times.of(RequestKind::ReleaseDir).begin();
        self.fs.closedir(open_id(fh));
        self.answer_here(RequestKind::ReleaseDir, gfid(ino), began, || reply.ok());
    }

    fn fsyncdir(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        let caller = crate::convert::caller(req);
        let (dir, open) = (gfid(ino), open_id(fh));
        self.run_empty(req, RequestKind::FsyncDir, dir, reply, move |fs| async move {
            fs.sync_names(dir, open, caller).await
        });
    }

    fn statfs(&self, req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        self.do_statfs(req, gfid(ino), reply);
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        kill_sgid: bool,
        reply: ReplyEmpty,
    ) {
        self.do_setxattr(req, gfid(ino), name, value, (flags, kill_sgid), reply);
    }

    fn getxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.do_getxattr(req, gfid(ino), name, size, reply);
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.do_listxattr(req, gfid(ino), size, reply);
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.do_removexattr(req, gfid(ino), name, reply);
    }

    /// Never called under `default_permissions`; the kernel has decided.
    fn access(&self, _req: &Request, _ino: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        reply.ok();
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        self.do_create(req, gfid(parent), name, (mode, umask), OpenFlags(flags), reply);
    }

    fn tmpfile(
        &self,
        req: &Request,
        parent: INodeNo,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let permissions = Permissions { mode: mode & 0o7777, umask };
        self.do_tmpfile(req, gfid(parent), permissions, OpenFlags(flags), reply);
    }

    fn interrupt(&self, _req: &Request, unique: RequestId) {
        self.interrupts.interrupt(unique.into());
    }

    fn getlk(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        lock_owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        pid: u32,
        reply: ReplyLock,
    ) {
        let wanted = locks::KernelLock { start, last: end, kind: typ, pid, is_flock: false };
        self.do_getlk(req, gfid(ino), lock_owner, &wanted, reply);
    }

    fn setlk(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        lock_owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        pid: u32,
        sleep: bool,
        flock: bool,
        reply: ReplyEmpty,
    ) {
        let wanted = locks::KernelLock { start, last: end, kind: typ, pid, is_flock: flock };
        self.handles.locks(gfid(ino), fh, protocol::lock::LockOwner(lock_owner.0));
        self.do_setlk(req, gfid(ino), lock_owner, &wanted, sleep, reply);
    }

    fn ioctl(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        cmd: u32,
        in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        self.do_ioctl(req, gfid(ino), cmd, in_data, reply);
    }

    fn fallocate(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.do_fallocate(req, gfid(ino), offset, length, mode, reply);
    }

    fn lseek(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        self.do_lseek(req, gfid(ino), offset, whence, reply);
    }

    fn copy_file_range(
        &self,
        req: &Request,
        ino_in: INodeNo,
        _fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        _fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        self.do_copy(req, (gfid(ino_in), offset_in), (gfid(ino_out), offset_out), len, reply);
    }
}
