//! Making files and further names.

use super::inode::{Entry, Found, Inode, Node, Place};
use super::{Context, Namespace, OpResult, check_name, errno, keys, permitted};
use crate::store::Store;
use protocol::namespace::{Attr, FileKind, Footprint, LINK_MAX, SYMLINK_BYTES_MAX};
use protocol::{Gfid, PoolId};

/// Permission bits with suid, sgid and sticky.
pub(super) const MODE_BITS: u32 = 0o7777;
pub(super) const SETGID: u32 = 0o2000;

/// What is to be made.
pub(super) struct New<'a> {
    pub kind: FileKind,
    pub mode: u32,
    pub umask: u32,
    pub rdev: u32,
    pub target: &'a [u8],
    pub pool: PoolId,
}

impl<S: Store> Namespace<S> {
    pub(super) fn create(
        &mut self,
        ctx: &Context<'_>,
        parent: Gfid,
        name: &[u8],
        new: &New<'_>,
    ) -> OpResult<Attr> {
        check_name(name)?;
        let dir = self.directory(parent)?;
        if self.overlay.contains(&keys::of_name(keys::ENTRY, parent, name))? {
            return errno(libc::EEXIST);
        }
        dir.takes_names()?;
        let inherited = self.inherited(&dir, new.kind, new.mode & MODE_BITS, new.umask)?;
        let inode = new_inode(ctx, &dir, new, inherited.mode)?;
        let gfid = self.new_gfid()?;
        let is_dir = inode.is_dir();
        let place = if is_dir { Place::Apart } else { Place::Entry(parent, name.to_vec()) };
        let mut found = Found { gfid, inode, place };
        self.put_inherited(&mut found, &inherited)?;
        let attr = found.attr();
        self.place(parent, name, found);
        self.touch_dir(dir, ctx.now(), 1, i32::from(is_dir));
        self.counters.files += 1;
        Ok(attr)
    }

    /// Makes a file without a name: an orphan from the first, which [`Namespace::reap`] ends.
    pub(super) fn create_unnamed(
        &mut self,
        ctx: &Context<'_>,
        parent: Gfid,
        new: &New<'_>,
        linkable: bool,
    ) -> OpResult<Attr> {
        let dir = self.directory(parent)?;
        dir.takes_names()?;
        let inherited = self.inherited(&dir, new.kind, new.mode & MODE_BITS, new.umask)?;
        let mut inode = new_inode(ctx, &dir, new, inherited.mode)?;
        inode.nlink = 0;
        if linkable {
            inode.parent = parent;
        }
        let gfid = self.new_gfid()?;
        let mut found = Found { gfid, inode, place: Place::Apart };
        self.put_inherited(&mut found, &inherited)?;
        let attr = found.attr();
        self.overlay.put(keys::of_gfid(keys::ORPHAN, gfid), &());
        self.save(found);
        Ok(attr)
    }

    pub(super) fn link(
        &mut self,
        ctx: &Context<'_>,
        gfid: Gfid,
        parent: Gfid,
        name: &[u8],
    ) -> OpResult<Attr> {
        check_name(name)?;
        let dir = self.directory(parent)?;
        let mut found = self.existing(gfid)?;
        if found.inode.is_dir() {
            return errno(libc::EPERM);
        }
        if self.overlay.contains(&keys::of_name(keys::ENTRY, parent, name))? {
            return errno(libc::EEXIST);
        }
        dir.takes_names()?;
        permitted(found.inode.flags.is_empty())?;
        if found.inode.nlink == 0 && found.inode.parent == Gfid::default() {
            return errno(libc::ENOENT);
        }
        if found.inode.nlink >= LINK_MAX {
            return errno(libc::EMLINK);
        }
        if let Place::Entry(at, only) = std::mem::replace(&mut found.place, Place::Apart) {
            self.overlay.put(keys::of_name(keys::ENTRY, at, &only), &Entry::Apart(gfid));
        }
        if found.inode.nlink == 0 {
            found.inode.parent = Gfid::default();
            self.overlay.delete(keys::of_gfid(keys::ORPHAN, gfid));
            self.counters.files += 1;
        }
        found.inode.nlink += 1;
        found.inode.ctime = ctx.now();
        let attr = found.attr();
        self.place(parent, name, found);
        self.touch_dir(dir, ctx.now(), 1, 0);
        Ok(attr)
    }

    /// Writes an entry for a file, with its inode beside it unless that lies apart.
    pub(super) fn place(&mut self, parent: Gfid, name: &[u8], found: Found) {
        let Found { gfid, inode, place } = found;
        let (entry, node) = match place {
            Place::Apart => (Entry::Apart(gfid), Node::Here(inode)),
            Place::Entry(..) => (Entry::Inode(gfid, inode), Node::At(parent, name.to_vec())),
        };
        self.overlay.put(keys::of_name(keys::ENTRY, parent, name), &entry);
        self.overlay.put(keys::of_gfid(keys::NODE, gfid), &node);
    }
}

/// The inode of a new file of this mode in a directory.
pub(super) fn new_inode(
    ctx: &Context<'_>,
    dir: &Found,
    new: &New<'_>,
    mode: u32,
) -> OpResult<Inode> {
    if ctx.caller.uid == u32::MAX || ctx.caller.gid == u32::MAX {
        // No user: chown(2) takes these numbers for "as it was".
        return errno(libc::EOVERFLOW);
    }
    let mut inode = Inode::directory(dir.gfid, mode, ctx.now());
    inode.uid = ctx.caller.uid;
    inode.gid = ctx.caller.gid;
    let inherits = dir.inode.mode & SETGID != 0;
    if inherits {
        inode.gid = dir.inode.gid;
    }
    if new.kind == FileKind::Directory {
        inode.mode |= if inherits { SETGID } else { 0 };
        return Ok(inode);
    }
    inode.kind = new.kind;
    inode.nlink = 1;
    inode.parent = Gfid::default();
    match new.kind {
        FileKind::Regular => {
            (inode.pool, inode.footprint) = (new.pool, Footprint::Dense);
        }
        FileKind::CharDevice | FileKind::BlockDevice => inode.rdev = new.rdev,
        FileKind::Symlink => {
            if new.target.is_empty() {
                return errno(libc::ENOENT);
            }
            if new.target.len() > SYMLINK_BYTES_MAX {
                return errno(libc::ENAMETOOLONG);
            }
            inode.mode = 0o777;
            inode.size = new.target.len() as u64;
            inode.target = new.target.to_vec();
        }
        FileKind::Fifo | FileKind::Socket | FileKind::Directory => {}
    }
    Ok(inode)
}
