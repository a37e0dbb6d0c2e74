//! Changing attributes and extended attributes.

use super::create::MODE_BITS;
use super::inode::{Found, Inode};
use super::{Context, Namespace, OpResult, errno, keys, permitted};
use crate::acl::AclKind;
use crate::store::Store;
use protocol::Gfid;
use protocol::namespace::{
    Attr, FileFlags, FileKind, Reply, SECURITY_CAPABILITY, SetAttr, Timestamp, XATTR_BYTES_MAX,
    XATTR_LIST_BYTES_MAX,
};
use std::ops::ControlFlow;

/// Longest name of an extended attribute, in bytes (Linux: XATTR_NAME_MAX).
const XATTR_NAME_BYTES_MAX: usize = 255;

impl<S: Store> Namespace<S> {
    /// Sets what a user asks for, if the file's flags permit it.
    pub(super) fn set_attr_as_user(
        &mut self,
        now: Timestamp,
        gfid: Gfid,
        set: &SetAttr,
    ) -> OpResult<Attr> {
        may_set(&self.existing(gfid)?.inode, set, now)?;
        self.set_attr(now, gfid, set)
    }

    /// Sets what is asked. A length without mtime is a truncate: mtime becomes now. A ctime is told
    /// by a writer, who does not know of renames and links and whose clock may be behind: it does
    /// not go back, and moves with what the writer changed.
    pub(super) fn set_attr(&mut self, now: Timestamp, gfid: Gfid, set: &SetAttr) -> OpResult<Attr> {
        let mut found = self.existing(gfid)?;
        let inode = &mut found.inode;
        let changeable = |inode: &Inode| {
            (inode.size, inode.atime, inode.mtime, inode.mode, inode.uid, inode.gid)
        };
        let before = changeable(inode);
        if let Some(size) = set.size {
            match inode.kind {
                FileKind::Regular if i64::try_from(size).is_err() => return errno(libc::EFBIG),
                FileKind::Regular => {}
                FileKind::Directory => return errno(libc::EISDIR),
                _ => return errno(libc::EINVAL),
            }
            inode.size = size;
            inode.mtime = now;
        }
        if [set.atime, set.mtime, set.ctime]
            .iter()
            .flatten()
            .any(|time| time.nanos >= 1_000_000_000)
        {
            return errno(libc::EINVAL);
        }
        if let (Some(footprint), FileKind::Regular) = (set.footprint, inode.kind) {
            inode.footprint = footprint;
        }
        inode.mode = set.mode.map_or(inode.mode, |mode| mode & MODE_BITS);
        inode.uid = set.uid.unwrap_or(inode.uid);
        inode.gid = set.gid.unwrap_or(inode.gid);
        inode.atime = set.atime.unwrap_or(inode.atime);
        inode.mtime = set.mtime.unwrap_or(inode.mtime);
        let is_changed = changeable(inode) != before;
        inode.ctime = match set.ctime {
            None => now,
            Some(told) if told <= inode.ctime && is_changed => just_after(inode.ctime),
            Some(told) => told.max(inode.ctime),
        };
        if set.size.is_some() || set.mtime.is_some() {
            inode.doubt = inode.doubt.with_times(set.times_follow);
        }
        if set.mode.is_some() {
            self.acl_follows_mode(&mut found)?;
        }
        let attr = found.attr();
        self.save(found);
        Ok(attr)
    }

    /// Sets the flags. Who may is the kernel's to decide, as with all permissions: it asks for
    /// CAP_LINUX_IMMUTABLE.
    pub(super) fn set_flags(
        &mut self,
        ctx: &Context<'_>,
        gfid: Gfid,
        flags: FileFlags,
    ) -> OpResult<Attr> {
        let mut found = self.existing(gfid)?;
        found.inode.flags = flags;
        found.inode.ctime = ctx.now();
        let attr = found.attr();
        self.save(found);
        Ok(attr)
    }

    pub(super) fn get_xattr(&self, gfid: Gfid, name: &[u8]) -> OpResult<Reply> {
        check_xattr_name(name)?;
        if !self.may_have_xattrs(gfid)? {
            return errno(libc::ENODATA);
        }
        match self.overlay.get::<Vec<u8>>(&keys::of_name(keys::XATTR, gfid, name))? {
            Some(value) => Ok(Reply::Bytes(value)),
            None => errno(libc::ENODATA),
        }
    }

    /// Has the file any extended attribute? Those of a directory that was removed are gone.
    fn may_have_xattrs(&self, gfid: Gfid) -> OpResult<bool> {
        match self.load(gfid)? {
            Some(found) => Ok(found.inode.xattrs > 0),
            None if self.gone.get(gfid).is_some() => Ok(false),
            None => errno(libc::ESTALE),
        }
    }

    pub(super) fn set_xattr(
        &mut self,
        ctx: &Context<'_>,
        gfid: Gfid,
        name: &[u8],
        value: &[u8],
        create: Option<bool>,
    ) -> OpResult<Reply> {
        check_xattr_name(name)?;
        if value.len() > XATTR_BYTES_MAX {
            return errno(libc::E2BIG);
        }
        let mut found = self.existing(gfid)?;
        let exists = self.has_xattr(&found, name)?;
        permitted(found.inode.flags.is_empty())?;
        match (create, exists) {
            (Some(true), true) => return errno(libc::EEXIST),
            (Some(false), false) => return errno(libc::ENODATA),
            _ => {}
        }
        self.put_xattr(&mut found, name, value)?;
        found.inode.ctime = ctx.now();
        let attr = found.attr();
        self.save(found);
        Ok(Reply::Attr(attr))
    }

    pub(super) fn list_xattr(&self, gfid: Gfid) -> OpResult<Reply> {
        let mut names = Vec::new();
        if self.may_have_xattrs(gfid)? {
            let prefix = keys::of_gfid(keys::XATTR, gfid);
            self.overlay.scan(&prefix, &prefix, &mut |key, _| {
                names.extend_from_slice(&key[keys::NAME_AT..]);
                names.push(0);
                ControlFlow::Continue(())
            })?;
        }
        Ok(Reply::Bytes(names))
    }

    /// removexattr. An ACL that is not there is removed like one that is, as in Linux.
    pub(super) fn remove_xattr(
        &mut self,
        ctx: &Context<'_>,
        gfid: Gfid,
        name: &[u8],
    ) -> OpResult<Reply> {
        check_xattr_name(name)?;
        let mut found = self.existing(gfid)?;
        if !self.has_xattr(&found, name)? && AclKind::of_name(name).is_none() {
            // A writer asks for this one to be gone, also where he may only append.
            permitted(found.inode.flags.is_empty() || name == SECURITY_CAPABILITY)?;
            return errno(libc::ENODATA);
        }
        permitted(found.inode.flags.is_empty())?;
        self.drop_xattr(&mut found, name)?;
        found.inode.ctime = ctx.now();
        let attr = found.attr();
        self.save(found);
        Ok(Reply::Attr(attr))
    }

    fn has_xattr(&self, found: &Found, name: &[u8]) -> OpResult<bool> {
        Ok(found.inode.xattrs > 0
            && self.overlay.contains(&keys::of_name(keys::XATTR, found.gfid, name))?)
    }

    /// Writes an extended attribute, and counts it in the inode, which is to be saved.
    pub(super) fn put_xattr(
        &mut self,
        found: &mut Found,
        name: &[u8],
        value: &[u8],
    ) -> OpResult<()> {
        if !self.has_xattr(found, name)? {
            let list_bytes = found.inode.xattr_list_bytes as usize + name.len() + 1;
            if list_bytes > XATTR_LIST_BYTES_MAX {
                return errno(libc::ENOSPC);
            }
            found.inode.xattrs = found.inode.xattrs.saturating_add(1);
            found.inode.xattr_list_bytes = list_bytes as u32;
        }
        self.overlay.put(keys::of_name(keys::XATTR, found.gfid, name), &value);
        Ok(())
    }

    /// Removes an extended attribute, and counts it off in the inode, which is to be saved. False
    /// if there is none of this name.
    pub(super) fn drop_xattr(&mut self, found: &mut Found, name: &[u8]) -> OpResult<bool> {
        if !self.has_xattr(found, name)? {
            return Ok(false);
        }
        found.inode.xattrs -= 1;
        found.inode.xattr_list_bytes =
            found.inode.xattr_list_bytes.saturating_sub(name.len() as u32 + 1);
        self.overlay.delete(keys::of_name(keys::XATTR, found.gfid, name));
        Ok(true)
    }
}

/// What a user may change in spite of the flags: where only more may come, times become now. What a
/// writer tells of before, with its ctime, was permitted then.
fn may_set(inode: &Inode, set: &SetAttr, now: Timestamp) -> OpResult<()> {
    if set.ctime.is_some() {
        return Ok(());
    }
    let rights = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
    let mut times = [set.atime, set.mtime].into_iter().flatten();
    if inode.flags.immutable {
        permitted(!rights && set.size.is_none() && times.clone().next().is_none())?;
    }
    // What was appended is told with it.
    let is_cut = set.size.is_some_and(|size| size < inode.size);
    permitted(!inode.flags.append_only || (!rights && !is_cut && times.all(|time| time == now)))
}

/// The next time that there is.
fn just_after(Timestamp { secs, nanos }: Timestamp) -> Timestamp {
    match nanos {
        999_999_999.. => Timestamp { secs: secs.saturating_add(1), nanos: 0 },
        _ => Timestamp { secs, nanos: nanos + 1 },
    }
}

fn check_xattr_name(name: &[u8]) -> OpResult<()> {
    if name.is_empty() || name.len() > XATTR_NAME_BYTES_MAX {
        return errno(libc::ERANGE);
    }
    if name.contains(&0) {
        return errno(libc::EINVAL);
    }
    Ok(())
}
