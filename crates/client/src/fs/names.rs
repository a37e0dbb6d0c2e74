//! Operations on names and attributes.
//!
//! Contract: the service decides and answers, but for times and changes that the writer of an open
//! file keeps ([`super::inode::InodeState::keep_change`]); this side adds what only this mount
//! knows of sizes, times and such changes. Names are checked by the kernel (and again by the
//! service), not here.

use super::creating::Creation;
use super::errno::{EEXIST, EINVAL, ENOENT, EOPNOTSUPP, ESTALE, posix};
use super::inode::FlushKind;
use super::lease::unexpected;
use super::{Backend, LocalFs, Result};
use super::{OpenMode, Writer};
use crate::error::ClientError;
use protocol::namespace::{
    ACL_ACCESS, Attr, Caller, FileFlags, FileKind, LeaseMode, NamespaceOp, RenameMode, Reply,
    SECURITY_CAPABILITY, SYMLINK_BYTES_MAX, SetAttr, XATTR_BYTES_MAX,
};
use protocol::{Gfid, PoolId};

const ENAMETOOLONG: i32 = 36;
const E2BIG: i32 = 7;
const ENODATA: i32 = 61;

/// The permission bits that a new file is asked for with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Permissions {
    /// Before the umask.
    pub mode: u32,
    /// What of them goes, unless the directory has a default ACL.
    pub umask: u32,
}

/// How an existing file is treated by `create`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CreateMode {
    /// O_EXCL.
    pub exclusive: bool,
    /// O_TRUNC.
    pub truncate: bool,
    /// It will be written.
    pub write: bool,
    /// At its end only (O_APPEND).
    pub append: bool,
}

/// Size of the file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FsSize {
    /// Bytes of users' data that are stored or still fit.
    pub total_bytes: u64,
    /// Bytes that still fit.
    pub free_bytes: u64,
    /// Files.
    pub files: u64,
}

/// ACLs of NFSv4: nobody would go by them.
pub(super) fn is_refused(name: &[u8]) -> bool {
    name.starts_with(b"system.nfs4_acl")
}

impl<B: Backend> LocalFs<B> {
    async fn ask_attr(&self, what: &'static str, op: NamespaceOp, caller: Caller) -> Result<Attr> {
        let asked = self.stamp();
        match self.ask(op, caller).await? {
            Reply::Attr(attr) => Ok(self.merged(attr, asked)),
            other => Err(unexpected(what, &other)),
        }
    }

    async fn ask_bytes(
        &self,
        what: &'static str,
        op: NamespaceOp,
        caller: Caller,
    ) -> Result<Vec<u8>> {
        match self.ask(op, caller).await? {
            Reply::Bytes(bytes) => Ok(bytes),
            other => Err(unexpected(what, &other)),
        }
    }

    async fn ask_done(&self, op: NamespaceOp, caller: Caller) -> Result<()> {
        self.ask(op, caller).await.map(drop)
    }

    /// The file of a name.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR.
    pub async fn lookup(&self, parent: Gfid, name: Vec<u8>, caller: Caller) -> Result<Attr> {
        if let Some(known) = self.shared.lookup_known(self.backend.term(), parent, &name) {
            return known;
        }
        self.ask_attr("lookup", NamespaceOp::Lookup { parent, name }, caller).await
    }

    /// A file's attributes.
    ///
    /// # Errors
    /// ESTALE if it is gone.
    pub async fn getattr(&self, gfid: Gfid, caller: Caller) -> Result<Attr> {
        if let Some(attr) = self.shared.attr_known(self.backend.term(), gfid) {
            return Ok(attr);
        }
        match self.ask_attr("getattr", NamespaceOp::GetAttr { gfid }, caller).await {
            Err(ClientError::Posix(ENOENT)) => posix(ESTALE),
            other => other,
        }
    }

    /// Attributes of a file that has a name, or is open.
    ///
    /// # Errors
    /// ESTALE if it is gone, or a directory that was removed.
    pub async fn existing(&self, gfid: Gfid, caller: Caller) -> Result<Attr> {
        let attr = self.getattr(gfid, caller).await?;
        if attr.nlink == 0 && attr.kind == FileKind::Directory { posix(ESTALE) } else { Ok(attr) }
    }

    /// chmod, chown, utimes, truncate: what is `Some` changes.
    ///
    /// # Errors
    /// The service's; EFBIG.
    pub async fn setattr(
        &self,
        gfid: Gfid,
        set: SetAttr,
        writer: impl Into<Writer>,
    ) -> Result<Attr> {
        let writer = writer.into();
        let caller = writer.caller;
        if let Some(size) = set.size {
            return self.truncate(gfid, set, size, writer).await;
        }
        if set == SetAttr::default() {
            return self.getattr(gfid, caller).await;
        }
        if let Some(attr) = self.shared.keep_setattr(self.backend.term(), gfid, &set, caller.now) {
            return Ok(attr);
        }
        let asked = self.stamp();
        match self.shared.table.get(gfid) {
            None => {
                self.ask_attr("setattr", NamespaceOp::SetAttr { gfid, set, sync: false }, caller)
                    .await
            }
            Some(inode) => match self.send_attrs(&inode, set, FlushKind::Whole, caller).await? {
                Some(attr) => Ok(self.merged(attr, asked)),
                None => self.getattr(gfid, caller).await,
            },
        }
    }

    /// Makes and opens a file, or opens the one that another mount made meanwhile. The flag says
    /// whether the kernel's pages of it are right.
    ///
    /// # Errors
    /// EEXIST if `mode.exclusive`, and the service's. ESTALE asks the kernel to look the name up
    /// again.
    pub async fn create(
        &self,
        parent: Gfid,
        name: Vec<u8>,
        permissions: Permissions,
        mode: CreateMode,
        caller: Caller,
    ) -> Result<(Attr, bool)> {
        let creating = self.shared.creations.begin();
        let op = NamespaceOp::Create {
            parent,
            name: name.clone(),
            kind: FileKind::Regular,
            mode: permissions.mode,
            umask: permissions.umask,
            rdev: 0,
            target: Vec::new(),
            pool: self.backend.pool()?,
            open: Some(LeaseMode::Write),
        };
        match self.ask(op, caller).await {
            Ok(reply) => self.created(creating, &reply),
            Err(ClientError::Posix(EEXIST)) if !mode.exclusive => {
                self.open_existing(parent, name, mode, caller).await
            }
            Err(error) => Err(error),
        }
    }

    /// Makes and opens a file without a name (`O_TMPFILE`). [`LocalFs::link`] may give it one if it
    /// is `linkable`; else it goes with its last handle. The flag is as in [`LocalFs::create`].
    ///
    /// # Errors
    /// The service's.
    pub async fn create_unnamed(
        &self,
        parent: Gfid,
        permissions: Permissions,
        linkable: bool,
        caller: Caller,
    ) -> Result<(Attr, bool)> {
        self.create_unnamed_in(self.backend.pool()?, parent, permissions, linkable, caller).await
    }

    /// As [`LocalFs::create_unnamed`], with its data in this pool.
    ///
    /// # Errors
    /// The service's.
    pub async fn create_unnamed_in(
        &self,
        pool: PoolId,
        parent: Gfid,
        permissions: Permissions,
        linkable: bool,
        caller: Caller,
    ) -> Result<(Attr, bool)> {
        let creating = self.shared.creations.begin();
        let open = LeaseMode::Write;
        let Permissions { mode, umask } = permissions;
        let op = NamespaceOp::CreateUnnamed { parent, mode, umask, pool, open, linkable };
        let reply = self.ask(op, caller).await?;
        self.created(creating, &reply)
    }

    /// Takes note of a file that the service has made and opened.
    fn created(&self, creating: Creation<'_>, reply: &Reply) -> Result<(Attr, bool)> {
        let Reply::Opened { attr, grant: Some(grant) } = reply else {
            return Err(unexpected("create", reply));
        };
        // At once: a recall that finds the file must find the lease.
        let know =
            |brought| self.shared.table.insert(attr.gfid, |state| state.created(attr, brought));
        let inode = creating.made(attr.gfid, *grant, know);
        Ok((*attr, inode.with(|state| state.kernel_cache_begins())))
    }

    async fn open_existing(
        &self,
        parent: Gfid,
        name: Vec<u8>,
        mode: CreateMode,
        caller: Caller,
    ) -> Result<(Attr, bool)> {
        let mut attr = match self.lookup(parent, name, caller).await {
            Ok(attr) if attr.kind == FileKind::Regular => attr,
            Ok(_) | Err(ClientError::Posix(ENOENT)) => return posix(ESTALE),
            Err(error) => return Err(error),
        };
        let how = OpenMode { write: mode.write, append: mode.append };
        let cached = self.open(attr.gfid, how, caller).await?;
        if mode.truncate {
            let set = SetAttr { size: Some(0), ..SetAttr::default() };
            match self.setattr(attr.gfid, set, caller).await {
                Ok(now) => attr = now,
                Err(error) => {
                    self.release(attr.gfid).await?;
                    return Err(error);
                }
            }
        }
        Ok((attr, cached && !mode.truncate))
    }

    /// mknod and mkdir: makes a file of any kind but a symbolic link, without opening it.
    ///
    /// # Errors
    /// EEXIST, EINVAL, and the service's.
    pub async fn make(
        &self,
        parent: Gfid,
        name: Vec<u8>,
        kind: FileKind,
        permissions: Permissions,
        rdev: u32,
        caller: Caller,
    ) -> Result<Attr> {
        if kind == FileKind::Symlink {
            return posix(EINVAL);
        }
        let pool = self.backend.pool()?;
        let (Permissions { mode, umask }, target) = (permissions, Vec::new());
        let op =
            NamespaceOp::Create { parent, name, kind, mode, umask, rdev, target, pool, open: None };
        self.ask_attr("mknod", op, caller).await
    }

    /// symlink.
    ///
    /// # Errors
    /// EEXIST, ENAMETOOLONG, and the service's.
    pub async fn symlink(
        &self,
        parent: Gfid,
        name: Vec<u8>,
        target: Vec<u8>,
        caller: Caller,
    ) -> Result<Attr> {
        if target.len() > SYMLINK_BYTES_MAX {
            return posix(ENAMETOOLONG);
        }
        let pool = self.backend.pool()?;
        let (kind, mode) = (FileKind::Symlink, 0o777);
        let op = NamespaceOp::Create {
            parent,
            name,
            kind,
            mode,
            umask: 0,
            rdev: 0,
            target,
            pool,
            open: None,
        };
        self.ask_attr("symlink", op, caller).await
    }

    /// readlink.
    ///
    /// # Errors
    /// EINVAL if it is none.
    pub async fn readlink(&self, gfid: Gfid, caller: Caller) -> Result<Vec<u8>> {
        self.ask_bytes("readlink", NamespaceOp::ReadLink { gfid }, caller).await
    }

    /// link, also of a file without a name that may get one.
    ///
    /// # Errors
    /// EEXIST, EPERM for a directory, EMLINK, ENOENT if no name is left.
    pub async fn link(
        &self,
        gfid: Gfid,
        parent: Gfid,
        name: Vec<u8>,
        caller: Caller,
    ) -> Result<Attr> {
        self.ask_attr("link", NamespaceOp::Link { gfid, parent, name }, caller).await
    }

    /// unlink. The service frees the data when no link and no opener is left. The lease on a file
    /// that goes is given back with its last name, if that can be done without waiting.
    ///
    /// # Errors
    /// ENOENT, EISDIR.
    pub async fn unlink(&self, parent: Gfid, name: Vec<u8>, caller: Caller) -> Result<()> {
        let term = self.backend.term();
        // Among several mounts the name may stand for another file in a moment.
        let known = term.holds.then(|| self.shared.known.lookup(term, parent, &name)).flatten();
        let idle = match known {
            Some(Ok(attr)) if attr.kind == FileKind::Regular && attr.nlink == 1 => {
                self.enter_idle(attr.gfid).await
            }
            _ => None,
        };
        let gives = idle.as_ref().map(|op| op.inode().gfid());
        self.ask_done(NamespaceOp::Unlink { parent, name, gives }, caller).await?;
        if let Some(op) = idle {
            op.inode().with(|state| state.gave_back(None));
        }
        Ok(())
    }

    /// rmdir.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ENOTEMPTY.
    pub async fn rmdir(&self, parent: Gfid, name: Vec<u8>, caller: Caller) -> Result<()> {
        self.ask_done(NamespaceOp::Rmdir { parent, name }, caller).await
    }

    /// rename, of the name in the first directory to the name in the second.
    ///
    /// # Errors
    /// The service's, as `renameat2` has them.
    pub async fn rename(
        &self,
        from: (Gfid, Vec<u8>),
        to: (Gfid, Vec<u8>),
        mode: RenameMode,
        caller: Caller,
    ) -> Result<()> {
        let op = NamespaceOp::Rename {
            parent: from.0,
            name: from.1,
            new_parent: to.0,
            new_name: to.1,
            mode,
        };
        self.ask_done(op, caller).await
    }

    /// Sets the flags of a file or directory, as chattr does.
    ///
    /// # Errors
    /// EPERM if the caller is not user 0.
    pub async fn set_flags(&self, gfid: Gfid, flags: FileFlags, caller: Caller) -> Result<Attr> {
        let attr = self.ask_attr("setflags", NamespaceOp::SetFlags { gfid, flags }, caller).await?;
        if let Some(inode) = self.shared.table.get(gfid) {
            inode.with(|state| state.learned(&attr));
        }
        Ok(attr)
    }

    /// getxattr.
    ///
    /// # Errors
    /// ENODATA; EOPNOTSUPP for ACLs of NFSv4.
    pub async fn getxattr(&self, gfid: Gfid, name: Vec<u8>, caller: Caller) -> Result<Vec<u8>> {
        if is_refused(&name) {
            return posix(EOPNOTSUPP);
        }
        let capability = name == SECURITY_CAPABILITY;
        let result = self.ask_bytes("getxattr", NamespaceOp::GetXattr { gfid, name }, caller).await;
        if capability && let Some(inode) = self.shared.table.get(gfid) {
            inode.with(|state| {
                state.set_no_capability(matches!(result, Err(ClientError::Posix(ENODATA))))
            });
        }
        result
    }

    /// setxattr; `create` and `kill_sgid` as in [`NamespaceOp::SetXattr`].
    ///
    /// # Errors
    /// EEXIST or ENODATA by `create`; E2BIG; EINVAL and EACCES for POSIX ACLs; EOPNOTSUPP for those
    /// of NFSv4.
    pub async fn setxattr(
        &self,
        gfid: Gfid,
        name: Vec<u8>,
        value: Vec<u8>,
        create: Option<bool>,
        kill_sgid: bool,
        caller: Caller,
    ) -> Result<()> {
        if is_refused(&name) {
            return posix(EOPNOTSUPP);
        }
        if value.len() > XATTR_BYTES_MAX {
            return posix(E2BIG);
        }
        let inode = self.shared.table.get(gfid);
        if name == SECURITY_CAPABILITY
            && let Some(inode) = &inode
        {
            inode.with(|state| state.set_no_capability(false));
        }
        let inode = inode.filter(|_| name == ACL_ACCESS);
        if let Some(inode) = &inode {
            // A chmod before it may not be told yet: it would take the ACL's mask with it.
            self.flush_attrs(inode).await?;
        }
        let op = NamespaceOp::SetXattr { gfid, name, value, create, kill_sgid };
        let attr = self.ask_attr("setxattr", op, caller).await?;
        if let Some(inode) = &inode {
            inode.with(|state| state.rights_learned(&attr));
        }
        Ok(())
    }

    /// listxattr: names, each ended by NUL.
    ///
    /// # Errors
    /// The service's.
    pub async fn listxattr(&self, gfid: Gfid, caller: Caller) -> Result<Vec<u8>> {
        self.ask_bytes("listxattr", NamespaceOp::ListXattr { gfid }, caller).await
    }

    /// removexattr.
    ///
    /// # Errors
    /// ENODATA, but not of ACLs; EOPNOTSUPP for those of NFSv4.
    pub async fn removexattr(&self, gfid: Gfid, name: Vec<u8>, caller: Caller) -> Result<()> {
        if is_refused(&name) {
            return posix(EOPNOTSUPP);
        }
        self.ask_done(NamespaceOp::RemoveXattr { gfid, name }, caller).await
    }

    /// statfs.
    ///
    /// # Errors
    /// The monitor's and the service's.
    pub async fn statfs(&self, caller: Caller) -> Result<FsSize> {
        let (total_bytes, free_bytes) = self.space().await?;
        match self.ask(NamespaceOp::StatFs, caller).await? {
            Reply::Count(files) => Ok(FsSize { total_bytes, free_bytes, files }),
            other => Err(unexpected("statfs", &other)),
        }
    }
}
