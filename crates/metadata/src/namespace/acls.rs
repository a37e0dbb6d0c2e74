//! ACLs in the tree: kept as extended attributes, in step with the mode, handed down to new files.
//!
//! Contract: at any time a file's access ACL says what its mode says ([`Acl::access_bits`]), one
//! that says no more than the mode is not kept, and only directories have a default ACL. Each
//! operation changes both with one commit.

use super::create::{MODE_BITS, SETGID};
use super::inode::Found;
use super::overlay::corrupt;
use super::{Context, Namespace, OpError, OpResult, errno, keys, permitted};
use crate::acl::{Acl, AclError, AclKind};
use crate::store::{Store, StoreError};
use protocol::Gfid;
use protocol::namespace::{FileKind, Reply};

/// What a new file gets of its directory's default ACL.
#[derive(Debug, Default)]
pub(super) struct Inherited {
    /// Its permission bits.
    pub mode: u32,
    access: Option<Acl>,
    default: Option<Acl>,
}

impl<S: Store> Namespace<S> {
    /// The ACL that a file has, if it has one.
    pub(super) fn acl(&self, found: &Found, kind: AclKind) -> Result<Option<Acl>, StoreError> {
        if found.inode.xattrs == 0 {
            return Ok(None);
        }
        let key = keys::of_name(keys::XATTR, found.gfid, kind.name());
        let Some(value) = self.overlay.get::<Vec<u8>>(&key)? else { return Ok(None) };
        Acl::decode(&value).map(Some).map_err(|error| corrupt(&key, error.to_string()))
    }

    /// setxattr of an ACL.
    pub(super) fn set_acl(
        &mut self,
        ctx: &Context<'_>,
        gfid: Gfid,
        kind: AclKind,
        value: &[u8],
        kill_sgid: bool,
    ) -> OpResult<Reply> {
        let mut found = self.existing(gfid)?;
        permitted(found.inode.flags.is_empty())?;
        if found.inode.kind == FileKind::Symlink {
            return errno(libc::EOPNOTSUPP);
        }
        if kind == AclKind::Default && !found.inode.is_dir() {
            return errno(libc::EACCES);
        }
        let acl = Acl::decode(value).map_err(|error| match error {
            AclError::TooLong => OpError::Errno(libc::E2BIG),
            AclError::Malformed => OpError::Errno(libc::EINVAL),
        })?;
        if kind == AclKind::Access {
            let mode = &mut found.inode.mode;
            *mode = *mode & !0o777 | acl.access_bits();
            *mode &= if kill_sgid { !SETGID } else { MODE_BITS };
        }
        if kind == AclKind::Access && acl.is_mode_alone() {
            self.drop_xattr(&mut found, kind.name())?;
        } else {
            self.put_xattr(&mut found, kind.name(), &acl.encode())?;
        }
        found.inode.ctime = ctx.now();
        let attr = found.attr();
        self.save(found);
        Ok(Reply::Attr(attr))
    }

    /// chmod has changed the mode: so it does the access ACL, if there is one.
    pub(super) fn acl_follows_mode(&mut self, found: &mut Found) -> OpResult<()> {
        let Some(mut acl) = self.acl(found, AclKind::Access)? else { return Ok(()) };
        acl.set_mode(found.inode.mode);
        self.put_xattr(found, AclKind::Access.name(), &acl.encode())
    }

    /// What a file of this kind and mode gets that is made in `dir`.
    pub(super) fn inherited(
        &self,
        dir: &Found,
        kind: FileKind,
        mode: u32,
        umask: u32,
    ) -> OpResult<Inherited> {
        if kind == FileKind::Symlink {
            return Ok(Inherited { mode, ..Inherited::default() });
        }
        let Some(default) = self.acl(dir, AclKind::Default)? else {
            return Ok(Inherited { mode: mode & !(umask & 0o777), ..Inherited::default() });
        };
        let (mode, access) = default.inherited(mode);
        let default = (kind == FileKind::Directory).then_some(default);
        Ok(Inherited { mode, access, default })
    }

    /// Gives a new file, which is not written yet, what it inherits.
    pub(super) fn put_inherited(
        &mut self,
        found: &mut Found,
        inherited: &Inherited,
    ) -> OpResult<()> {
        let acls = [(AclKind::Access, &inherited.access), (AclKind::Default, &inherited.default)];
        for (kind, acl) in acls {
            if let Some(acl) = acl {
                self.put_xattr(found, kind.name(), &acl.encode())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
