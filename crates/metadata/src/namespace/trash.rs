//! The trash: files that are removed below a directory for which it is on are kept for a time.
//!
//! Contract: a removed file becomes an entry of a hidden directory, in the transaction that removes
//! its last name, and is in every other way the file that it was: open handles, leases and what is
//! known of its size go on. What its entry and origin say: [`protocol::trash`]. What leaves that
//! directory is removed for good, or moved to a name that is free. While the trash was never
//! switched on, a removal looks at one number in memory.

use super::inode::{Found, Inode, Place};
use super::{Context, Namespace, OpError, OpResult, errno, keys};
use crate::store::{Store, StoreError};
use protocol::Gfid;
use protocol::namespace::FileKind;
use protocol::trash::{TRASH, TRASH_KEEP, TRASH_ORIGIN, TrashEntry, TrashOrigin, keep_seconds};
use std::ops::ControlFlow;

/// Entries of the trash at which those that would go first do: some 100 MiB of the store.
const TRASH_ENTRIES_MAX: u64 = 1 << 18;
/// Directories above each other that are looked at for the setting; deeper down it is off. A path
/// of 4096 bytes has half as many.
const DEPTH_MAX: usize = 4096;

/// The hidden directory, and the names of entries that are to leave it.
pub(crate) type Due = (Gfid, Vec<Vec<u8>>);

impl<S: Store> Namespace<S> {
    /// The hidden directory, if the trash was ever on.
    pub(super) fn is_trash(&self, directory: Gfid) -> bool {
        self.counters.trash == Some(directory)
    }

    /// The setting of a directory is about to be made: checks it, and makes the hidden directory.
    pub(super) fn trash_set(
        &mut self,
        ctx: &Context<'_>,
        found: &Found,
        value: &[u8],
    ) -> OpResult<()> {
        if !found.inode.is_dir() || keep_seconds(value).is_none() {
            return errno(libc::EINVAL);
        }
        self.blob_root(ctx, TRASH).map(drop)
    }

    /// For how many seconds what is removed from this directory is kept; 0: it is not.
    fn keep_of(&self, directory: &Found) -> OpResult<u64> {
        if self.counters.trash.is_none() || self.is_trash(directory.gfid) {
            return Ok(0);
        }
        let mut at = directory.clone();
        for _ in 0..DEPTH_MAX {
            if at.inode.xattrs > 0 {
                let key = keys::of_name(keys::XATTR, at.gfid, TRASH_KEEP);
                if let Some(value) = self.overlay.get::<Vec<u8>>(&key)? {
                    return Ok(keep_seconds(&value).unwrap_or(0));
                }
            }
            if at.inode.parent == at.gfid {
                break;
            }
            let Some(above) = self.load(at.inode.parent)? else { break };
            at = above;
        }
        Ok(0)
    }

    /// Takes away a link, whose entry in the directory is gone or is about to be written over: the
    /// last one of a file may lead to the trash.
    pub(super) fn remove_link(
        &mut self,
        ctx: &Context<'_>,
        directory: &Found,
        name: &[u8],
        mut found: Found,
    ) -> OpResult<()> {
        let is_file = found.inode.kind == FileKind::Regular && found.inode.nlink == 1;
        let keep = if is_file { self.keep_of(directory)? } else { 0 };
        if keep == 0 {
            return self.drop_link(ctx, found);
        }
        let origin = protocol::encode(&origin(ctx, directory.gfid, name));
        match self.put_xattr(&mut found, TRASH_ORIGIN, &origin) {
            Ok(()) => self.keep_entry(ctx, keep, found.gfid, found),
            // There is no room for one more attribute.
            Err(OpError::Errno(_)) => self.drop_link(ctx, found),
            Err(error) => Err(error),
        }
    }

    /// A directory is about to be removed: where it was is remembered if files of it may be in the
    /// trash.
    pub(super) fn remember_dir(
        &mut self,
        ctx: &Context<'_>,
        parent: &Found,
        name: &[u8],
        directory: &Found,
    ) -> OpResult<()> {
        let keep = self.keep_of(directory)?;
        if keep == 0 {
            return Ok(());
        }
        let mut inode = Inode::directory(Gfid::default(), 0o777, ctx.now());
        (inode.kind, inode.nlink) = (FileKind::Symlink, 1);
        (inode.uid, inode.gid) = (directory.inode.uid, directory.inode.gid);
        inode.target = protocol::encode(&origin(ctx, parent.gfid, name)).to_vec();
        inode.size = inode.target.len() as u64;
        let place = Place::Entry(Gfid::default(), Vec::new());
        let link = Found { gfid: self.new_gfid()?, inode, place };
        self.counters.files += 1;
        self.keep_entry(ctx, keep, directory.gfid, link)
    }

    /// Puts into the trash what remembers this file or directory.
    fn keep_entry(
        &mut self,
        ctx: &Context<'_>,
        keep: u64,
        gfid: Gfid,
        mut found: Found,
    ) -> OpResult<()> {
        let Some(trash) = self.counters.trash else { return errno(libc::EIO) };
        let until = ctx.now().secs.saturating_add_unsigned(keep);
        let name = TrashEntry { until, gfid }.name();
        found.inode.ctime = ctx.now();
        if let Place::Entry(parent, its_name) = &mut found.place {
            (*parent, *its_name) = (trash, name.clone());
        }
        let root = self.existing(trash)?;
        self.place(trash, &name, found);
        self.touch_dir(root, ctx.now(), 1, 0);
        Ok(())
    }

    /// What is to leave the trash now, at most `limit` entries, and the hidden directory: what was
    /// kept for its time, what are too many, and with `pressed` those that would go first.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub(crate) fn trash_due(
        &self,
        now: i64,
        limit: usize,
        pressed: bool,
    ) -> Result<Option<Due>, StoreError> {
        let Some(trash) = self.counters.trash else { return Ok(None) };
        let entries = self.load(trash)?.map_or(0, |root| root.inode.size);
        if entries == 0 {
            return Ok(None);
        }
        let excess = usize::try_from(entries.saturating_sub(TRASH_ENTRIES_MAX)).unwrap_or(limit);
        let prefix = keys::of_gfid(keys::ENTRY, trash);
        let mut due = Vec::new();
        self.overlay.scan(&prefix, &prefix, &mut |key, _| {
            let name = &key[keys::NAME_AT..];
            let is_over = TrashEntry::of_name(name).is_none_or(|entry| entry.until <= now);
            if due.len() >= limit || !(is_over || pressed || due.len() < excess) {
                return ControlFlow::Break(());
            }
            due.push(name.to_vec());
            ControlFlow::Continue(())
        })?;
        Ok((!due.is_empty()).then_some((trash, due)))
    }
}

fn origin(ctx: &Context<'_>, parent: Gfid, name: &[u8]) -> TrashOrigin {
    TrashOrigin { removed: ctx.now().secs, parent, name: name.to_vec() }
}

#[cfg(test)]
mod tests;
