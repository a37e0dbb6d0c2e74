//! Moving and swapping names, as `renameat2(2)`.

use super::create::{New, new_inode};
use super::inode::{Found, Inode, Place};
use super::{Context, Namespace, OpResult, check_name, errno, keys};
use crate::store::{Store, StoreError};
use protocol::namespace::{FileKind, RenameMode, Reply};
use protocol::{Gfid, PoolId};

/// A directory and a name in it.
type Spot<'a> = (Gfid, &'a [u8]);

/// What hides a name of the layer below an overlay.
const WHITEOUT: New<'static> = New {
    kind: FileKind::CharDevice,
    mode: 0,
    umask: 0,
    rdev: 0,
    target: &[],
    pool: PoolId::new(0),
};

impl<S: Store> Namespace<S> {
    pub(super) fn rename(
        &mut self,
        ctx: &Context<'_>,
        from: Spot<'_>,
        to: Spot<'_>,
        mode: RenameMode,
    ) -> OpResult<Reply> {
        check_name(from.1)?;
        check_name(to.1)?;
        let from_dir = self.directory(from.0)?;
        let to_dir = self.directory(to.0)?;
        let Some(source) = self.entry(from.0, from.1)? else { return errno(libc::ENOENT) };
        let target = self.entry(to.0, to.1)?;
        match (mode, &target) {
            (RenameMode::NoReplace | RenameMode::WhiteoutNoReplace, Some(_)) => {
                return errno(libc::EEXIST);
            }
            (RenameMode::Exchange, None) => return errno(libc::ENOENT),
            _ => {}
        }
        if target.as_ref().is_some_and(|target| target.gfid == source.gfid) {
            return Ok(Reply::Done); // the same file under both names: POSIX leaves both
        }
        from_dir.gives(&source)?;
        match &target {
            Some(target) => to_dir.gives(target)?,
            None => to_dir.takes_names()?,
        }
        if from.0 != to.0 && source.inode.is_dir() && self.is_within(to.0, source.gfid)? {
            return errno(libc::EINVAL);
        }
        match (mode, target) {
            (RenameMode::Exchange, Some(target)) => {
                self.exchange(ctx, (from, from_dir, source), (to, to_dir, target))?
            }
            (mode, target) => {
                let whiteout = if mode.leaves_whiteout() {
                    Some(new_inode(ctx, &from_dir, &WHITEOUT, WHITEOUT.mode)?)
                } else {
                    None
                };
                self.move_over(ctx, (from, from_dir, source, whiteout), (to, to_dir, target))?;
            }
        }
        Ok(Reply::Done)
    }

    /// Is `dir` the directory `ancestor` or somewhere below it?
    fn is_within(&self, mut dir: Gfid, ancestor: Gfid) -> Result<bool, StoreError> {
        loop {
            if dir == ancestor {
                return Ok(true);
            }
            match self.load(dir)? {
                Some(found) if found.inode.parent != dir => dir = found.inode.parent,
                _ => return Ok(false),
            }
        }
    }

    fn move_over(
        &mut self,
        ctx: &Context<'_>,
        (from, from_dir, source, whiteout): (Spot<'_>, Found, Found, Option<Inode>),
        (to, to_dir, target): (Spot<'_>, Found, Option<Found>),
    ) -> OpResult<()> {
        let source_dir = source.inode.is_dir();
        let mut entries_gained = 1;
        let mut subdirs_gained = i32::from(source_dir);
        if let Some(target) = target {
            match (source_dir, target.inode.is_dir()) {
                (true, false) => return errno(libc::ENOTDIR),
                (false, true) => return errno(libc::EISDIR),
                (true, true) if target.inode.size > 0 => return errno(libc::ENOTEMPTY),
                _ => {}
            }
            entries_gained -= 1;
            subdirs_gained -= i32::from(target.inode.is_dir());
            self.drop_link(ctx, target)?;
        }
        self.overlay.delete(keys::of_name(keys::ENTRY, from.0, from.1));
        self.settle(ctx, to, source);
        let (entries_lost, subdirs_lost) = (i64::from(whiteout.is_none()), i32::from(source_dir));
        if let Some(inode) = whiteout {
            let (gfid, place) = (self.new_gfid()?, Place::Entry(from.0, from.1.to_vec()));
            self.place(from.0, from.1, Found { gfid, inode, place });
            self.counters.files += 1;
        }
        if from.0 == to.0 {
            self.touch_dir(
                from_dir,
                ctx.now(),
                entries_gained - entries_lost,
                subdirs_gained - subdirs_lost,
            );
        } else {
            self.touch_dir(from_dir, ctx.now(), -entries_lost, -subdirs_lost);
            self.touch_dir(to_dir, ctx.now(), entries_gained, subdirs_gained);
        }
        Ok(())
    }

    fn exchange(
        &mut self,
        ctx: &Context<'_>,
        (from, from_dir, source): (Spot<'_>, Found, Found),
        (to, to_dir, target): (Spot<'_>, Found, Found),
    ) -> OpResult<()> {
        if from.0 != to.0 && target.inode.is_dir() && self.is_within(from.0, target.gfid)? {
            return errno(libc::EINVAL);
        }
        let gained = i32::from(source.inode.is_dir()) - i32::from(target.inode.is_dir());
        self.settle(ctx, to, source);
        self.settle(ctx, from, target);
        if from.0 == to.0 {
            self.touch_dir(from_dir, ctx.now(), 0, 0);
        } else {
            self.touch_dir(from_dir, ctx.now(), 0, -gained);
            self.touch_dir(to_dir, ctx.now(), 0, gained);
        }
        Ok(())
    }

    /// Puts a file at a new name.
    fn settle(&mut self, ctx: &Context<'_>, to: Spot<'_>, mut found: Found) {
        found.inode.ctime = ctx.now();
        if found.inode.is_dir() {
            found.inode.parent = to.0;
        }
        if let Place::Entry(parent, name) = &mut found.place {
            (*parent, *name) = (to.0, to.1.to_vec());
        }
        self.place(to.0, to.1, found);
    }
}
