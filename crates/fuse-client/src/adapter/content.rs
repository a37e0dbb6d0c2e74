//! Requests about the content of files.

use super::handles::{bypasses_pages, file_handle, open_id};
use super::names::synced;
use super::times::RequestKind;
use super::{Adapter, GENERATION};
use crate::convert::{allocate_mode, caller, writer};
use client::ClientError;
use client::fs::{
    CreateMode, LocalFs, OpenMode, Permissions, Sought, SyncKind, WriteMode, WrittenBy,
};
use fuser::{
    Errno, FileHandle, FopenFlags, OpenAccMode, OpenFlags, ReplyCreate, ReplyData, ReplyEmpty,
    ReplyLseek, ReplyOpen, ReplyWrite, Request,
};
use protocol::Gfid;
use protocol::namespace::Attr;
use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Instant;

/// Bytes of one copy_file_range request: far from its deadline on a slow cluster. Callers go on
/// where it ends.
const COPY_BYTES_MAX: u64 = 16 << 20;
/// Bytes of a page: the smallest of any machine. Where they are larger, a drop of a file's pages
/// may wait for a write.
const PAGE_BYTES: u64 = 4096;
/// Can a file be stored to through a mapping of a handle with these flags?
pub(super) fn is_mappable(flags: OpenFlags) -> bool {
    flags.acc_mode() == OpenAccMode::O_RDWR
}

fn writes(flags: OpenFlags) -> bool {
    flags.acc_mode() != OpenAccMode::O_RDONLY
}

/// How the kernel shall treat a handle. `cached`: what it has cached of the file is right.
fn open_flags(handle: FileHandle, cached: bool) -> FopenFlags {
    let mut flags = FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
    flags.set(FopenFlags::FOPEN_KEEP_CACHE, cached);
    flags.set(FopenFlags::FOPEN_DIRECT_IO, bypasses_pages(handle));
    flags
}

/// Does a request by a handle with these flags go by the kernel's pages?
fn is_direct(handle: FileHandle, flags: OpenFlags) -> bool {
    bypasses_pages(handle) || flags.0 & libc::O_DIRECT != 0
}

/// The sync that a write by a handle with these flags brings with it. RWF_DSYNC and RWF_SYNC come
/// as flags, too.
fn sync_of(flags: OpenFlags) -> SyncKind {
    match flags.0 & libc::O_SYNC {
        libc::O_SYNC => SyncKind::Full,
        libc::O_DSYNC => SyncKind::Data,
        _ => SyncKind::None,
    }
}

/// Pages that the kernel keeps locked, or under write-back, while it waits for a write. It copies
/// what a program writes into pages and lets them go before it asks, all but the last if that is
/// not filled and was not cached.
fn locked_by_write(offset: u64, len: u64, written_back: bool) -> Option<Range<u64>> {
    let end = offset.saturating_add(len);
    let last = end - end % PAGE_BYTES;
    match (written_back, last < end) {
        (true, _) => Some(offset..end),
        (false, true) => Some(last..last.saturating_add(PAGE_BYTES)),
        (false, false) => None,
    }
}

impl Adapter {
    /// How the kernel shall treat a handle: keep its pages if they are right, and for O_DIRECT
    /// bypass them altogether, which lets writes of one file run in parallel. For O_APPEND too: the
    /// kernel writes where it believes the end to be, and if another mount has moved it, the data
    /// goes elsewhere than into the pages that it was put in.
    fn handle(&self, flags: OpenFlags) -> FileHandle {
        let bypasses = flags.0 & (libc::O_DIRECT | libc::O_APPEND) != 0;
        file_handle(self.fs.open_id(), self.direct_mmap && bypasses)
    }

    pub(super) fn do_open(&self, req: &Request, file: Gfid, flags: OpenFlags, reply: ReplyOpen) {
        let caller = caller(req);
        let handle = self.handle(flags);
        self.run(
            req,
            RequestKind::Open,
            (file, 0),
            reply,
            move |fs| async move {
                let mode = OpenMode { write: writes(flags), append: flags.0 & libc::O_APPEND != 0 };
                let cached = fs.open(file, mode, caller).await?;
                if is_mappable(flags) {
                    fs.may_be_mapped(file);
                }
                Ok(cached)
            },
            move |reply, cached| reply.opened(handle, open_flags(handle, cached)),
        );
    }

    pub(super) fn do_create(
        &self,
        req: &Request,
        parent: Gfid,
        name: &OsStr,
        (mode, umask): (u32, u32),
        flags: OpenFlags,
        reply: ReplyCreate,
    ) {
        let (caller, name) = (caller(req), name.as_bytes().to_vec());
        let how = CreateMode {
            exclusive: flags.0 & libc::O_EXCL != 0,
            truncate: flags.0 & libc::O_TRUNC != 0,
            write: writes(flags),
            append: flags.0 & libc::O_APPEND != 0,
        };
        let permissions = Permissions { mode: mode & 0o7777, umask };
        let dirsync = self.dirsync();
        self.make_open(req, RequestKind::Create, parent, flags, reply, move |fs| async move {
            let made = fs.create(parent, name, permissions, how, caller).await?;
            if let Err(error) = synced(&fs, dirsync, [parent], caller).await {
                fs.release(made.0.gfid).await?;
                return Err(error);
            }
            if is_mappable(flags) {
                fs.may_be_mapped(made.0.gfid);
            }
            Ok(made)
        });
    }

    pub(super) fn do_tmpfile(
        &self,
        req: &Request,
        parent: Gfid,
        permissions: Permissions,
        flags: OpenFlags,
        reply: ReplyCreate,
    ) {
        let (caller, linkable) = (caller(req), flags.0 & libc::O_EXCL == 0);
        self.make_open(req, RequestKind::TmpFile, parent, flags, reply, move |fs| async move {
            let made = fs.create_unnamed(parent, permissions, linkable, caller).await?;
            if is_mappable(flags) {
                fs.may_be_mapped(made.0.gfid);
            }
            Ok(made)
        });
    }

    /// Starts an operation that makes and opens a file; it tells whether the kernel's pages of it
    /// are right.
    fn make_open<F, Fut>(
        &self,
        req: &Request,
        kind: RequestKind,
        parent: Gfid,
        flags: OpenFlags,
        reply: ReplyCreate,
        operation: F,
    ) where
        F: FnOnce(LocalFs) -> Fut + Send + 'static,
        Fut: Future<Output = Result<(Attr, bool), ClientError>> + 'static,
    {
        let (handle, shape) = (self.handle(flags), self.shape());
        self.run(req, kind, (parent, 0), reply, operation, move |reply, (attr, cached)| {
            let (attr, attr_ttl) = shape.of(&attr);
            // One time to live for both: the shorter.
            let (ttl, flags) = (attr_ttl.min(shape.entry_ttl()), open_flags(handle, cached));
            reply.created(&ttl, &attr, GENERATION, handle, flags);
        });
    }

    pub(super) fn do_read(
        &self,
        req: &Request,
        (file, handle): (Gfid, FileHandle),
        (offset, size): (u64, u32),
        flags: OpenFlags,
        reply: ReplyData,
    ) {
        let caller = caller(req);
        let range = offset..offset.saturating_add(size.into());
        if self.late.cover(file, &range, Instant::now()) {
            return reply.error(Errno::EIO);
        }
        let pages = (!is_direct(handle, flags)).then(|| range.clone());
        let late = Arc::clone(&self.late);
        self.run(
            req,
            RequestKind::Read,
            (file, offset),
            reply,
            move |fs| async move {
                let _locked = pages.map(|pages| {
                    fs.pages_filled(file, pages.end);
                    fs.pages_locked(file, pages)
                });
                let reading = late.reading(file, range);
                let read = fs.read(file, offset, size as usize, caller).await;
                match &read {
                    Err(ClientError::TimedOut(_)) => drop(reading),
                    _ => reading.answered(),
                }
                read
            },
            |reply, data| reply.data(&data),
        );
    }

    pub(super) fn do_write(
        &self,
        req: &Request,
        (file, handle): (Gfid, FileHandle),
        (offset, data): (u64, &[u8]),
        flags: OpenFlags,
        written_back: bool,
        reply: ReplyWrite,
    ) {
        // A page written back is at its place already, however the file was opened.
        let append = flags.0 & libc::O_APPEND != 0 && !written_back;
        let paged = written_back || !is_direct(handle, flags);
        // After all other writes the kernel asks for the sync itself.
        let sync = match bypasses_pages(handle) && !written_back {
            true if self.options.sync => SyncKind::Full,
            true => sync_of(flags),
            false => SyncKind::None,
        };
        let began = self.times.of(RequestKind::Write).begin();
        let may_gather = sync == SyncKind::None && !written_back;
        if may_gather && self.fs.gather(file, offset, data, paged, client::fs::now()) {
            return self
                .answer_here(RequestKind::Write, file, began, || reply.written(data.len() as u32));
        }
        let pages = locked_by_write(offset, data.len() as u64, written_back).filter(|_| paged);
        // The one copy: the reader's buffer is used for the next request as soon as this returns.
        let (writer, data) = (writer(req), self.fs.copy_of(file, offset, data));
        let by = match (written_back, paged) {
            (true, _) => WrittenBy::WriteBack,
            (false, true) => WrittenBy::Pages,
            (false, false) => WrittenBy::Call,
        };
        let mode = WriteMode { append, sync, by, open: open_id(handle) };
        let len = data.len() as u32;
        self.run(
            req,
            RequestKind::Write,
            (file, offset),
            reply,
            move |fs| async move {
                let _locked = pages.map(|pages| fs.pages_locked(file, pages));
                fs.write(file, offset, data, mode, writer).await
            },
            move |reply, ()| reply.written(len),
        );
    }

    pub(super) fn do_fallocate(
        &self,
        req: &Request,
        file: Gfid,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let Some(mode) = allocate_mode(mode) else { return reply.error(Errno::EOPNOTSUPP) };
        let writer = writer(req);
        self.run_empty(req, RequestKind::Fallocate, file, reply, move |fs| async move {
            fs.allocate(file, offset, length, mode, writer).await
        });
    }

    pub(super) fn do_lseek(
        &self,
        req: &Request,
        file: Gfid,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let to = match whence {
            libc::SEEK_DATA => Sought::Data,
            libc::SEEK_HOLE => Sought::Hole,
            // The kernel does the others itself.
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else { return reply.error(Errno::ENXIO) };
        let caller = caller(req);
        self.run(
            req,
            RequestKind::Lseek,
            (file, offset),
            reply,
            move |fs| async move { fs.seek(file, offset, to, caller).await },
            |reply, found| reply.offset(i64::try_from(found).unwrap_or(i64::MAX)),
        );
    }

    pub(super) fn do_copy(
        &self,
        req: &Request,
        from: (Gfid, u64),
        to: (Gfid, u64),
        len: u64,
        reply: ReplyWrite,
    ) {
        let writer = writer(req);
        self.run(
            req,
            RequestKind::Copy,
            to,
            reply,
            move |fs| async move { fs.copy(from, to, len.min(COPY_BYTES_MAX), writer).await },
            |reply, copied| reply.written(copied as u32),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_keeps_the_page_locked_that_it_does_not_fill() {
        assert_eq!(locked_by_write(0, 8192, false), None);
        assert_eq!(
            locked_by_write(100, 8092, false),
            None,
            "the first page is let go, or is the last"
        );
        assert_eq!(locked_by_write(4096, 10, false), Some(4096..8192));
        assert_eq!(locked_by_write(0, 4097, false), Some(4096..8192));
        assert_eq!(locked_by_write(4096, 8192, true), Some(4096..12288));
    }

    #[test]
    fn handles_say_which_sync_belongs_to_a_write() {
        for (flags, sync) in [
            (libc::O_RDWR | libc::O_DIRECT, SyncKind::None),
            (libc::O_RDWR | libc::O_DIRECT | libc::O_DSYNC, SyncKind::Data),
            (libc::O_WRONLY | libc::O_APPEND | libc::O_SYNC, SyncKind::Full),
        ] {
            assert_eq!(sync_of(OpenFlags(flags)), sync);
        }
    }
}
