//! Removing names, and what happens to files that lose the last one.
//!
//! A regular file without links enters the purge queue in the same transaction. If it is in use it
//! is an orphan until [`Namespace::reap`]. The size in a purge entry is what was last recorded;
//! when a writer died before it told the size, `probe` is set and there may be objects beyond it:
//! the purger asks the shards how far the file's data reaches.

use super::inode::{Doubt, Found, Inode, Place, Purge};
use super::overlay::{corrupt, decode};
use super::{Context, Namespace, OpResult, check_name, errno, keys};
use crate::store::{Store, StoreError};
use protocol::namespace::{Attr, FileKind, Footprint, Reply, Timestamp};
use protocol::{Gfid, PoolId};
use std::ops::ControlFlow;

/// A file whose objects are to be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PurgeEntry {
    /// Which.
    pub gfid: Gfid,
    /// Where its objects lie.
    pub pool: PoolId,
    /// Its last recorded length in bytes.
    pub size: u64,
    /// There may be data beyond `size`: ask the shards before believing that nothing is left.
    pub probe: bool,
}

/// A file whose writer died before it told the size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeRecovery {
    /// Which.
    pub gfid: Gfid,
    /// Where its objects lie.
    pub pool: PoolId,
    /// Its last recorded length in bytes; what was fsynced is not shorter.
    pub size: u64,
}

/// The first file behind this one, if it is given.
fn behind(after: Option<Gfid>) -> Gfid {
    after.map_or(Gfid::new(0), |gfid| Gfid::new(gfid.get().saturating_add(1)))
}

impl<S: Store> Namespace<S> {
    pub(super) fn unlink(
        &mut self,
        ctx: &Context<'_>,
        parent: Gfid,
        name: &[u8],
    ) -> OpResult<Reply> {
        check_name(name)?;
        let dir = self.directory(parent)?;
        let Some(found) = self.entry(parent, name)? else { return errno(libc::ENOENT) };
        if found.inode.is_dir() {
            return errno(libc::EISDIR);
        }
        dir.gives(&found)?;
        self.overlay.delete(keys::of_name(keys::ENTRY, parent, name));
        self.drop_link(ctx, found)?;
        self.touch_dir(dir, ctx.now(), -1, 0);
        Ok(Reply::Done)
    }

    pub(super) fn rmdir(
        &mut self,
        ctx: &Context<'_>,
        parent: Gfid,
        name: &[u8],
    ) -> OpResult<Reply> {
        check_name(name)?;
        let dir = self.directory(parent)?;
        let Some(found) = self.entry(parent, name)? else { return errno(libc::ENOENT) };
        if !found.inode.is_dir() {
            return errno(libc::ENOTDIR);
        }
        dir.gives(&found)?;
        if found.inode.size > 0 {
            return errno(libc::ENOTEMPTY);
        }
        self.overlay.delete(keys::of_name(keys::ENTRY, parent, name));
        self.drop_link(ctx, found)?;
        self.touch_dir(dir, ctx.now(), -1, -1);
        Ok(Reply::Done)
    }

    /// Takes a link from a file whose entry is already gone. The last one ends a file, and any a
    /// directory.
    pub(super) fn drop_link(&mut self, ctx: &Context<'_>, mut found: Found) -> OpResult<()> {
        let inode = &mut found.inode;
        inode.nlink = if inode.is_dir() { 0 } else { inode.nlink.saturating_sub(1) };
        inode.ctime = ctx.now();
        if inode.nlink > 0 {
            self.save(found);
            return Ok(());
        }
        self.counters.files = self.counters.files.saturating_sub(1);
        if !(ctx.in_use)(found.gfid) {
            return Ok(self.erase(found.gfid, &found.inode)?);
        }
        found.place = Place::Apart;
        self.overlay.put(keys::of_gfid(keys::ORPHAN, found.gfid), &());
        self.save(found);
        Ok(())
    }

    /// Forgets a file that nobody can reach, and queues its objects for deletion.
    fn erase(&mut self, gfid: Gfid, inode: &Inode) -> Result<(), StoreError> {
        self.overlay.delete(keys::of_gfid(keys::NODE, gfid));
        if inode.is_dir() {
            self.gone.add(Attr { has_xattrs: false, ..inode.attr(gfid) });
        }
        if inode.xattrs > 0 {
            for key in self.overlay.keys(&keys::of_gfid(keys::XATTR, gfid))? {
                self.overlay.delete(key);
            }
        }
        if inode.doubt.of_size() {
            self.forget_unsized(gfid)?;
        }
        if inode.kind == FileKind::Regular {
            let probe = inode.doubt.of_size() || inode.footprint == Footprint::Beyond;
            let purge = Purge { pool: inode.pool, size: inode.size, probe };
            self.overlay.put(keys::of_gfid(keys::PURGE, gfid), &purge);
            self.counters.purges += 1;
            self.counters.purge_from = self.counters.purge_from.min(gfid);
        }
        Ok(())
    }

    /// Files without a link that were in use, for a restart.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn orphans(&self) -> Result<Vec<Gfid>, StoreError> {
        Ok(self
            .overlay
            .keys(&[keys::ORPHAN])?
            .iter()
            .filter_map(|key| keys::gfid_of(key))
            .collect())
    }

    /// Ends an orphan that is no longer in use; any other file is left alone. True if it was one.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn reap(&mut self, gfid: Gfid) -> Result<bool, StoreError> {
        let key = keys::of_gfid(keys::ORPHAN, gfid);
        if !self.overlay.contains(&key)? {
            return Ok(false);
        }
        let found = self.load(gfid)?.ok_or_else(|| corrupt(&key, "orphan without inode"))?;
        if found.inode.nlink > 0 {
            return Err(corrupt(&key, "orphan with a link"));
        }
        self.overlay.delete(key);
        self.erase(gfid, &found.inode)?;
        Ok(true)
    }

    /// How many files wait to be purged.
    pub fn purge_len(&self) -> u64 {
        self.counters.purges
    }

    /// The first `limit` files of the purge queue, behind `after` if it is given. They stay in it
    /// until [`Namespace::purged`]. The records of those that left it are passed over once, here,
    /// and not for each of them.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn purge_next(
        &mut self,
        after: Option<Gfid>,
        limit: usize,
    ) -> Result<Vec<PurgeEntry>, StoreError> {
        if self.counters.purges == 0 || limit == 0 {
            return Ok(Vec::new());
        }
        let from = keys::of_gfid(keys::PURGE, self.counters.purge_from.max(behind(after)));
        let mut found = Vec::new();
        self.overlay.scan(&[keys::PURGE], &from, &mut |key, value| {
            found.push(decode::<Purge>(key, value).and_then(|purge| {
                let gfid = keys::gfid_of(key).ok_or_else(|| corrupt(key, "key too short"))?;
                Ok(PurgeEntry { gfid, pool: purge.pool, size: purge.size, probe: purge.probe })
            }));
            if found.len() >= limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        let found: Vec<PurgeEntry> = found.into_iter().collect::<Result<_, _>>()?;
        if let Some(first) = found.first().filter(|_| after.is_none()) {
            self.counters.purge_from = first.gfid;
        }
        Ok(found)
    }

    /// All objects of the file are gone: it leaves the purge queue.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn purged(&mut self, gfid: Gfid) -> Result<(), StoreError> {
        let key = keys::of_gfid(keys::PURGE, gfid);
        if self.overlay.contains(&key)? {
            self.overlay.delete(key);
            self.counters.purges -= 1;
            if self.counters.purges == 0 {
                self.counters.purge_from = Gfid::new(u128::MAX);
            }
        }
        Ok(())
    }

    /// Notes that a writer of the file died: its size is to be recovered, and times that were to
    /// follow are not before `now`. Returns false if the file does not exist.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn writer_lost(&mut self, gfid: Gfid, now: Timestamp) -> Result<bool, StoreError> {
        let Some(mut found) = self.load(gfid)? else { return Ok(false) };
        if found.inode.kind != FileKind::Regular {
            return Ok(false);
        }
        let inode = &mut found.inode;
        if inode.doubt.of_times() {
            inode.mtime = inode.mtime.max(now);
            inode.ctime = inode.ctime.max(now);
        }
        inode.doubt = Doubt::Size;
        self.save(found);
        let key = keys::of_gfid(keys::UNSIZED, gfid);
        if !self.overlay.contains(&key)? {
            self.overlay.put(key, &());
            self.counters.unsized_files += 1;
        }
        Ok(true)
    }

    /// Files whose size is to be recovered, behind `after` if it is given.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn size_recovery_next(
        &self,
        after: Option<Gfid>,
        limit: usize,
    ) -> Result<Vec<SizeRecovery>, StoreError> {
        let mut files = Vec::new();
        if self.counters.unsized_files == 0 || limit == 0 {
            return Ok(files);
        }
        let prefix = [keys::UNSIZED];
        let from = keys::of_gfid(keys::UNSIZED, behind(after));
        let mut gfids = Vec::new();
        self.overlay.scan(&prefix, &from, &mut |key, _| {
            gfids.extend(keys::gfid_of(key));
            if gfids.len() >= limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        for gfid in gfids {
            let key = keys::of_gfid(keys::UNSIZED, gfid);
            let found = self.load(gfid)?.ok_or_else(|| corrupt(&key, "file does not exist"))?;
            files.push(SizeRecovery { gfid, pool: found.inode.pool, size: found.inode.size });
        }
        Ok(files)
    }

    /// The data of a file on the list reaches to `end` bytes: the size grows to it, never shrinks,
    /// and the file leaves the list. Another file is left alone.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn size_recovered(
        &mut self,
        gfid: Gfid,
        end: u64,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        if !self.forget_unsized(gfid)? {
            return Ok(());
        }
        let Some(mut found) = self.load(gfid)? else { return Ok(()) };
        let inode = &mut found.inode;
        inode.doubt = inode.doubt.with_size(false);
        if inode.footprint != Footprint::Beyond {
            inode.footprint = Footprint::Unknown;
        }
        if end > inode.size {
            inode.size = end;
            inode.mtime = inode.mtime.max(now);
            inode.ctime = inode.ctime.max(now);
        }
        self.save(found);
        Ok(())
    }

    /// Gives the recovery of a size up, because a new writer decides it. The inode remembers that
    /// data may lie beyond.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn size_given_up(&mut self, gfid: Gfid) -> Result<(), StoreError> {
        self.forget_unsized(gfid).map(drop)
    }

    fn forget_unsized(&mut self, gfid: Gfid) -> Result<bool, StoreError> {
        if self.counters.unsized_files == 0 {
            return Ok(false);
        }
        let key = keys::of_gfid(keys::UNSIZED, gfid);
        let listed = self.overlay.contains(&key)?;
        if listed {
            self.overlay.delete(key);
            self.counters.unsized_files -= 1;
        }
        Ok(listed)
    }
}
