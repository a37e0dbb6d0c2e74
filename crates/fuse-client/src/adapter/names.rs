//! Requests about names, attributes and directories.

use super::handles::{file_handle, open_id};
use super::times::RequestKind;
use super::{Adapter, GENERATION, Refuse};
use crate::convert::{
    caller, errno, file_attr, file_type, has_btime, kind_of_mode, rename_mode, time_or_now, writer,
};
use crate::mountpoint::{ALIVE, WAITING};
use client::ClientError;
use client::fs::{DirPage, LocalFs, OpenId, Permissions};
use fuser::{
    Errno, FileAttr, FileHandle, FopenFlags, INodeNo, RenameFlags, ReplyAttr, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyStatx,
    ReplyXattr, Request, TimeOrNow,
};
use protocol::Gfid;
use protocol::namespace::{ACL_ACCESS, ACL_DEFAULT, Caller, FileKind, NAME_BYTES_MAX, SetAttr};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// Permission bits with suid, sgid and sticky.
const MODE_BITS: u32 = 0o7777;
/// Entries per reply at most: more than fit into the kernel's buffer of 128 KiB with attributes.
const ENTRIES_MAX: usize = 1024;
/// Unit of statfs in bytes.
const STATFS_BLOCK: u32 = 4096;
/// Inodes that can still be made, for programs that look: there is no limit but the disk's.
const FILES_FREE: u64 = 1 << 32;

/// What chmod and chown change.
#[derive(Clone, Copy)]
pub struct Owner {
    /// New permission bits.
    pub mode: Option<u32>,
    /// New user.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
}

/// A reply with attributes.
pub(super) trait TellAttr {
    /// Answers with them, and how long they may be used.
    fn tell(self, ttl: &Duration, attr: &FileAttr);
}

impl TellAttr for ReplyAttr {
    fn tell(self, ttl: &Duration, attr: &FileAttr) {
        self.attr(ttl, attr);
    }
}

impl TellAttr for ReplyStatx {
    fn tell(self, ttl: &Duration, attr: &FileAttr) {
        self.statx(ttl, attr, has_btime(attr));
    }
}

/// A change of names in these directories was answered. With `dirsync` it is on disk after this.
pub(super) async fn synced<const DIRS: usize>(
    fs: &LocalFs,
    dirsync: Option<OpenId>,
    dirs: [Gfid; DIRS],
    caller: Caller,
) -> Result<(), ClientError> {
    if let Some(open) = dirsync {
        for dir in dirs {
            fs.sync_names(dir, open, caller).await?;
        }
    }
    Ok(())
}

fn bytes(name: &OsStr) -> Vec<u8> {
    name.as_bytes().to_vec()
}

impl Adapter {
    /// With `dirsync`: on whose behalf a change of names is synced, which begins now.
    pub(super) fn dirsync(&self) -> Option<OpenId> {
        self.options.dirsync.then(|| self.fs.open_id())
    }

    pub(super) fn do_lookup(&self, req: &Request, parent: Gfid, name: &OsStr, reply: ReplyEntry) {
        let began = self.times.of(RequestKind::Lookup).begin();
        if let Some(known) = self.fs.lookup_known(parent, name.as_bytes()) {
            let mut recording = self.history.begin(RequestKind::Lookup.name(), parent.unique());
            match known {
                Ok(attr) => self.shape().entry(&attr, reply),
                Err(error) => recording.answered(reply.refuse(errno(&error))),
            }
            return self.times.of(RequestKind::Lookup).end(began);
        }
        let (caller, name) = (caller(req), bytes(name));
        self.run_entry(req, RequestKind::Lookup, parent, reply, move |fs| async move {
            // An NFS server asks so for files of which it has kept handles, which the kernel has
            // forgotten.
            match &name[..] {
                b"." => fs.existing(parent, caller).await,
                b".." => fs.parent(parent, caller).await,
                _ => fs.lookup(parent, name, caller).await,
            }
        });
    }

    /// getattr, and statx, which tells of the birth, too.
    pub(super) fn do_getattr(
        &self,
        req: &Request,
        file: Gfid,
        reply: impl Refuse + TellAttr + Send + 'static,
    ) {
        let (caller, shape) = (caller(req), self.shape());
        let began = self.times.of(RequestKind::GetAttr).begin();
        if let Some(attr) = self.fs.attr_known(file)
            && let (allocated, false) = self.fs.allocated_known(&attr)
        {
            let _recording = self.history.begin(RequestKind::GetAttr.name(), file.unique());
            reply.tell(&shape.attr_ttl(), &file_attr(&attr, allocated));
            return self.times.of(RequestKind::GetAttr).end(began);
        }
        self.run(
            req,
            RequestKind::GetAttr,
            (file, 0),
            reply,
            move |fs| async move {
                let attr = fs.getattr(file, caller).await?;
                Ok(file_attr(&attr, fs.allocated(&attr).await))
            },
            move |reply, attr| reply.tell(&shape.attr_ttl(), &attr),
        );
    }

    pub(super) fn do_setattr(
        &self,
        req: &Request,
        file: Gfid,
        owner: Owner,
        size: Option<u64>,
        (atime, mtime): (Option<TimeOrNow>, Option<TimeOrNow>),
        reply: ReplyAttr,
    ) {
        let (writer, shape) = (writer(req), self.shape());
        let caller = writer.caller;
        let set = SetAttr {
            mode: owner.mode.map(|mode| mode & MODE_BITS),
            uid: owner.uid,
            gid: owner.gid,
            size,
            atime: atime.map(|time| time_or_now(time, caller.now)),
            mtime: mtime.map(|time| time_or_now(time, caller.now)),
            ..SetAttr::default()
        };
        let began = self.times.of(RequestKind::SetAttr).begin();
        if let Some(attr) = self.fs.keep_setattr(file, &set, caller) {
            return self.answer_here(RequestKind::SetAttr, file, began, || {
                let (attr, ttl) = shape.of(&attr);
                reply.attr(&ttl, &attr);
            });
        }
        self.run(
            req,
            RequestKind::SetAttr,
            (file, 0),
            reply,
            move |fs| async move { fs.setattr(file, set, writer).await },
            move |reply, attr| {
                let (attr, ttl) = shape.of(&attr);
                reply.attr(&ttl, &attr);
            },
        );
    }

    pub(super) fn do_readlink(&self, req: &Request, file: Gfid, reply: ReplyData) {
        let caller = caller(req);
        self.run(
            req,
            RequestKind::ReadLink,
            (file, 0),
            reply,
            move |fs| async move { fs.readlink(file, caller).await },
            |reply, target| reply.data(&target),
        );
    }

    pub(super) fn do_mknod(
        &self,
        req: &Request,
        parent: Gfid,
        name: &OsStr,
        (mode, umask): (u32, u32),
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let Some(kind) = kind_of_mode(mode) else { return reply.error(Errno::EINVAL) };
        let (caller, name) = (caller(req), bytes(name));
        let permissions = Permissions { mode: mode & MODE_BITS, umask };
        let dirsync = self.dirsync();
        self.run_entry(req, RequestKind::MkNod, parent, reply, move |fs| async move {
            let made = fs.make(parent, name, kind, permissions, rdev, caller).await?;
            synced(&fs, dirsync, [parent], caller).await.map(|()| made)
        });
    }

    pub(super) fn do_mkdir(
        &self,
        req: &Request,
        parent: Gfid,
        name: &OsStr,
        (mode, umask): (u32, u32),
        reply: ReplyEntry,
    ) {
        let (caller, name) = (caller(req), bytes(name));
        let permissions = Permissions { mode: mode & MODE_BITS, umask };
        let dirsync = self.dirsync();
        self.run_entry(req, RequestKind::MkDir, parent, reply, move |fs| async move {
            let made = fs.make(parent, name, FileKind::Directory, permissions, 0, caller).await?;
            synced(&fs, dirsync, [parent], caller).await.map(|()| made)
        });
    }

    pub(super) fn do_symlink(
        &self,
        req: &Request,
        parent: Gfid,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let (caller, name, target) = (caller(req), bytes(name), bytes(target.as_os_str()));
        let dirsync = self.dirsync();
        self.run_entry(req, RequestKind::Symlink, parent, reply, move |fs| async move {
            let made = fs.symlink(parent, name, target, caller).await?;
            synced(&fs, dirsync, [parent], caller).await.map(|()| made)
        });
    }

    pub(super) fn do_link(
        &self,
        req: &Request,
        file: Gfid,
        parent: Gfid,
        name: &OsStr,
        reply: ReplyEntry,
    ) {
        let (caller, name) = (caller(req), bytes(name));
        let dirsync = self.dirsync();
        self.run_entry(req, RequestKind::Link, parent, reply, move |fs| async move {
            let linked = fs.link(file, parent, name, caller).await?;
            synced(&fs, dirsync, [parent], caller).await.map(|()| linked)
        });
    }

    pub(super) fn do_unlink(&self, req: &Request, parent: Gfid, name: &OsStr, reply: ReplyEmpty) {
        let (caller, name) = (caller(req), bytes(name));
        let dirsync = self.dirsync();
        self.run_empty(req, RequestKind::Unlink, parent, reply, move |fs| async move {
            fs.unlink(parent, name, caller).await?;
            synced(&fs, dirsync, [parent], caller).await
        });
    }

    pub(super) fn do_rmdir(&self, req: &Request, parent: Gfid, name: &OsStr, reply: ReplyEmpty) {
        let (caller, name) = (caller(req), bytes(name));
        let dirsync = self.dirsync();
        self.run_empty(req, RequestKind::RmDir, parent, reply, move |fs| async move {
            fs.rmdir(parent, name, caller).await?;
            synced(&fs, dirsync, [parent], caller).await
        });
    }

    pub(super) fn do_rename(
        &self,
        req: &Request,
        from: (Gfid, &OsStr),
        to: (Gfid, &OsStr),
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let Some(mode) = rename_mode(flags) else { return reply.error(Errno::EINVAL) };
        let (caller, from, to) = (caller(req), (from.0, bytes(from.1)), (to.0, bytes(to.1)));
        let (dirsync, dirs) = (self.dirsync(), [from.0, to.0]);
        self.run_empty(req, RequestKind::Rename, from.0, reply, move |fs| async move {
            fs.rename(from, to, mode, caller).await?;
            synced(&fs, dirsync, dirs, caller).await
        });
    }

    pub(super) fn do_opendir(&self, dir: Gfid, reply: ReplyOpen) {
        let began = self.times.of(RequestKind::OpenDir).begin();
        let handle = file_handle(self.fs.opendir(dir), false);
        self.answer_here(RequestKind::OpenDir, dir, began, || {
            reply.opened(handle, FopenFlags::empty())
        });
    }

    pub(super) fn do_readdir(
        &self,
        req: &Request,
        dir: Gfid,
        fh: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        let answer = |mut reply: ReplyDirectory, page: DirPage| {
            for item in page {
                let ino = INodeNo(item.attr.gfid.unique());
                if reply.add(
                    ino,
                    item.next,
                    file_type(item.attr.kind),
                    OsStr::from_bytes(&item.name),
                ) {
                    break;
                }
            }
            reply.ok();
        };
        self.read_dir(RequestKind::ReadDir, req, dir, (fh, offset), reply, answer);
    }

    pub(super) fn do_readdirplus(
        &self,
        req: &Request,
        dir: Gfid,
        fh: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        let shape = self.shape();
        let answer = move |mut reply: ReplyDirectoryPlus, page: DirPage| {
            for item in page {
                let (attr, attr_ttl) = shape.of(&item.attr);
                // One time to live for both: the shorter.
                let ttl = if item.written_elsewhere {
                    Duration::ZERO
                } else {
                    attr_ttl.min(shape.entry_ttl())
                };
                if reply.add(
                    attr.ino,
                    item.next,
                    OsStr::from_bytes(&item.name),
                    &ttl,
                    &attr,
                    GENERATION,
                ) {
                    break;
                }
            }
            reply.ok();
        };
        self.read_dir(RequestKind::ReadDirPlus, req, dir, (fh, offset), reply, answer);
    }

    /// Reads on in a directory: here if all of it is known, else near it.
    fn read_dir<R, A>(
        &self,
        kind: RequestKind,
        req: &Request,
        dir: Gfid,
        (fh, offset): (FileHandle, u64),
        reply: R,
        answer: A,
    ) where
        R: Refuse + Send + 'static,
        A: FnOnce(R, DirPage) + Send + 'static,
    {
        let began = self.times.of(kind).begin();
        if let Some(page) = self.fs.readdir_known(open_id(fh), offset, ENTRIES_MAX) {
            return self.answer_here(kind, dir, began, || answer(reply, page));
        }
        let caller = caller(req);
        let read = move |fs: LocalFs| async move {
            fs.readdir(open_id(fh), offset, ENTRIES_MAX, caller).await
        };
        self.run(req, kind, (dir, 0), reply, read, answer);
    }

    pub(super) fn do_statfs(&self, req: &Request, file: Gfid, reply: ReplyStatfs) {
        let caller = caller(req);
        self.run(
            req,
            RequestKind::StatFs,
            (file, 0),
            reply,
            move |fs| async move { fs.statfs(caller).await },
            |reply, size| {
                let blocks = |bytes: u64| bytes / u64::from(STATFS_BLOCK);
                let (total, free) = (blocks(size.total_bytes), blocks(size.free_bytes));
                let files = size.files.saturating_add(FILES_FREE);
                let name_max = NAME_BYTES_MAX as u32;
                reply.statfs(
                    total,
                    free,
                    free,
                    files,
                    FILES_FREE,
                    STATFS_BLOCK,
                    name_max,
                    STATFS_BLOCK,
                );
            },
        );
    }

    pub(super) fn do_setxattr(
        &self,
        req: &Request,
        file: Gfid,
        name: &OsStr,
        value: &[u8],
        (flags, kill_sgid): (i32, bool),
        reply: ReplyEmpty,
    ) {
        if self.refuses(name) {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let create = match flags & (libc::XATTR_CREATE | libc::XATTR_REPLACE) {
            0 => None,
            libc::XATTR_CREATE => Some(true),
            libc::XATTR_REPLACE => Some(false),
            _ => return reply.error(Errno::EINVAL),
        };
        let (caller, name, value) = (caller(req), bytes(name), value.to_vec());
        self.run_empty(req, RequestKind::SetXattr, file, reply, move |fs| async move {
            fs.setxattr(file, name, value, create, kill_sgid, caller).await
        });
    }

    pub(super) fn do_getxattr(
        &self,
        req: &Request,
        file: Gfid,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        if name == ALIVE {
            return if size == 0 { reply.size(1) } else { reply.data(b"1") };
        }
        if name == WAITING {
            let threads: Vec<String> =
                self.interrupts.threads().iter().map(u32::to_string).collect();
            let told = threads.join(" ");
            return match (size as usize, told.len()) {
                (0, len) => reply.size(len as u32),
                (room, len) if room < len => reply.error(Errno::ERANGE),
                _ => reply.data(told.as_bytes()),
            };
        }
        if self.refuses(name) {
            return reply.error(Errno::EOPNOTSUPP);
        }
        if self.fs.lacks_xattr(file, name.as_bytes()) {
            return reply.error(Errno::ENODATA);
        }
        let (caller, name) = (caller(req), bytes(name));
        self.run_xattr(req, RequestKind::GetXattr, file, size, reply, move |fs| async move {
            fs.getxattr(file, name, caller).await
        });
    }

    pub(super) fn do_listxattr(&self, req: &Request, file: Gfid, size: u32, reply: ReplyXattr) {
        if self.fs.has_no_xattrs(file) {
            return if size == 0 { reply.size(0) } else { reply.data(b"") };
        }
        let caller = caller(req);
        self.run_xattr(req, RequestKind::ListXattr, file, size, reply, move |fs| async move {
            fs.listxattr(file, caller).await
        });
    }

    pub(super) fn do_removexattr(
        &self,
        req: &Request,
        file: Gfid,
        name: &OsStr,
        reply: ReplyEmpty,
    ) {
        if self.refuses(name) {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let (caller, name) = (caller(req), bytes(name));
        self.run_empty(req, RequestKind::RemoveXattr, file, reply, move |fs| async move {
            fs.removexattr(file, name, caller).await
        });
    }

    /// Is the attribute an ACL by which this kernel would not go?
    fn refuses(&self, name: &OsStr) -> bool {
        !self.acls && [ACL_ACCESS, ACL_DEFAULT].contains(&name.as_bytes())
    }
}
