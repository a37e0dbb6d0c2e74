//! Operations on the content of files.
//!
//! Contract: bytes beyond the size are never returned; what a file grows over reads as zeros. A
//! task dropped at its deadline leaves no operation inside a file but a write that was sent, or
//! that another worker is at: that stays until the shards have it, or its session is dead.

use super::Writer;
use super::errno::{EFBIG, EINVAL, EIO, ENOENT, ENOSPC, ENXIO, EPERM, posix};
use super::inode::{FlushKind, InodeState, Need, SyncKind, WritePlan};
use super::losses::OpenId;
use super::table::{Inode, Op};
use super::{Backend, LocalFs, Result, WHOLE_FILE, own_caller};
use crate::error::ClientError;
use crate::objecter::{Ending, FileRef, Sought, file_bytes_max, join_all, join_both};
use bytes::Bytes;
use protocol::lock::LockOwner;
use protocol::namespace::{Attr, Caller, Footprint, LeaseMode, NamespaceOp, SetAttr};
use protocol::{Epoch, Gfid};
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Largest size of a file in bytes, as `off_t` has it.
const SIZE_MAX: u64 = i64::MAX as u64;
/// Bytes moved at a time by copy_file_range.
const COPY_BYTES: u64 = 1 << 20;
/// Files of which the service is told the attributes side by side: it syncs once for all of them.
pub(super) const FLUSHES_AT_ONCE: usize = 64;

/// `fallocate` modes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocateMode {
    /// Space for the range, extending the size.
    Allocate,
    /// Space for the range, also behind the end.
    KeepSize,
    /// A hole.
    Punch,
    /// Zeros, extending the size.
    Zero,
    /// Zeros inside the size.
    ZeroKeepSize,
}

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenMode {
    /// It will be written.
    pub write: bool,
    /// At its end only (O_APPEND).
    pub append: bool,
}

impl From<bool> for OpenMode {
    fn from(write: bool) -> Self {
        Self { write, append: false }
    }
}

/// How a write is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WriteMode {
    /// It goes to the end of the file (O_APPEND), if the kernel's idea of the end is older than
    /// another mount's writes.
    pub append: bool,
    /// The sync that belongs to it (O_DSYNC, O_SYNC): it is done once that is.
    pub sync: SyncKind,
    /// The way it came.
    pub by: WrittenBy,
    /// Through which open file description, if a sync belongs to it.
    pub open: OpenId,
}

/// How a write comes from a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WrittenBy {
    /// As it is: the kernel has done nothing for it.
    #[default]
    Call,
    /// Through the kernel's pages: it has removed file capabilities, and most set-ID bits.
    Pages,
    /// By the kernel, from pages that were stored to through a mapping: nobody's call.
    WriteBack,
}

/// A range within what a file may have.
fn checked_range(offset: u64, len: u64) -> Result<Range<u64>> {
    match offset.checked_add(len) {
        Some(end) if end <= SIZE_MAX => Ok(offset..end),
        _ => posix(EFBIG),
    }
}

impl<B: Backend> LocalFs<B> {
    /// Opens a file. True if what the kernel has cached of it is still right.
    ///
    /// # Errors
    /// ESTALE if it is gone, EPERM if its flags forbid to open it so.
    pub async fn open(
        &self,
        gfid: Gfid,
        mode: impl Into<OpenMode>,
        caller: Caller,
    ) -> Result<bool> {
        let mode = mode.into();
        let lease = if mode.write { LeaseMode::Write } else { LeaseMode::Read };
        let op = self.enter(gfid, Need { open: true, ..Need::shared(lease) }, caller).await?;
        let (cached, flags) = op.inode().with(|state| (state.opened(), state.set_ids().flags()));
        if flags.may_open(mode.write, mode.append) {
            return Ok(cached);
        }
        drop(op);
        self.release(gfid).await?;
        posix(EPERM)
    }

    /// Closes a handle.
    ///
    /// # Errors
    /// Only that the service was not told; it will be.
    pub async fn release(&self, gfid: Gfid) -> Result<()> {
        let Some(inode) = self.shared.table.get(gfid) else { return Ok(()) };
        let now = self.shared.closes.fetch_add(1, Relaxed);
        inode.change(|state| state.closed(now));
        let _closing = Closing::new(&self.shared.closing);
        if inode.with(|state| state.opens()) == 0 {
            self.shared.told.closed(gfid);
            self.close_all_locks(gfid).await?;
        }
        self.settle(&inode).await
    }

    /// Reads at most `len` bytes; fewer only at the end of the file.
    ///
    /// # Errors
    /// As [`LocalIo::read`](crate::LocalIo::read).
    pub async fn read(&self, gfid: Gfid, offset: u64, len: usize, caller: Caller) -> Result<Bytes> {
        let read = async |file, size: u64| {
            let len = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX).min(len);
            if len == 0 {
                return Ok(Bytes::new());
            }
            let data = self.backend.read(file, offset, len).await?;
            debug_assert_eq!(data.len(), len);
            Ok(data)
        };
        self.look_into(gfid, caller, read).await
    }

    /// Looks into a file of this size under a read lease; again, if that was another one by then or
    /// went with its session.
    async fn look_into<T>(
        &self,
        gfid: Gfid,
        caller: Caller,
        look: impl AsyncFn(FileRef, u64) -> Result<T>,
    ) -> Result<T> {
        loop {
            let op = self.enter(gfid, Need::shared(LeaseMode::Read), caller).await?;
            let (file, size, token) =
                op.inode().with(|state| (state.file(), state.size(), state.token()));
            match look(file, size).await {
                Err(ClientError::Fenced(_)) => {
                    drop(op);
                    self.backend.usable(Epoch::default()).await?;
                }
                Err(error) => return Err(error),
                Ok(seen) => {
                    if self.may_show(op.inode(), token).await? {
                        return Ok(seen);
                    }
                }
            }
        }
    }

    /// Writes all of `data`.
    ///
    /// # Errors
    /// As [`LocalIo::write`](crate::LocalIo::write); EFBIG; with a sync, as [`LocalFs::fsync`]:
    /// then the data may be there.
    pub async fn write(
        &self,
        gfid: Gfid,
        offset: u64,
        data: Bytes,
        mode: WriteMode,
        writer: impl Into<Writer>,
    ) -> Result<()> {
        let len = data.len() as u64;
        checked_range(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let writer = writer.into();
        let caller = writer.caller;
        self.write_data(gfid, offset, data, mode, writer).await?;
        match mode.sync {
            SyncKind::None => Ok(()),
            sync => self.fsync(gfid, mode.open, sync == SyncKind::Data, caller).await,
        }
    }

    async fn write_data(
        &self,
        gfid: Gfid,
        offset: u64,
        data: Bytes,
        mode: WriteMode,
        writer: Writer,
    ) -> Result<()> {
        let (len, caller) = (data.len() as u64, writer.caller);
        let (op, mut plan) = self.enter_to_write(gfid, offset, len, mode.append, caller).await?;
        self.permit(op.inode(), mode.append)?;
        if mode.by != WrittenBy::WriteBack {
            self.clear_tail(op.inode(), plan.offset).await;
            self.drop_rights(op.inode(), writer, mode.by == WrittenBy::Pages).await?;
        }
        if mode.sync != SyncKind::None {
            plan.follows = mode.sync;
        }
        let inode = Arc::clone(op.inode());
        let file = inode.with(|state| state.file());
        let sync = self.begin_sync(&inode, &plan, caller);
        // Who waits for a sync waits for the write.
        let window =
            if plan.follows == SyncKind::None { self.shared.options.write_behind_bytes } else { 0 };
        let (op, behind) = match op.stay_behind(len, window) {
            Ok(staying) => (None, Some(staying)),
            Err(op) => (Some(Arc::new(op)), None),
        };
        let ending = Ending {
            sync,
            behind: behind.clone().map(|behind| behind as _),
            guard: op.clone().map(|op| op as _),
            frees: false,
        };
        let written = self.backend.write(file, plan.offset, data, plan.hint, ending).await;
        if written.is_err() {
            // What comes behind it may leave a hole here.
            inode.with(|state| state.spreads(Footprint::Sparse));
        }
        written?;
        inode.with(|state| state.wrote(plan.offset + len, caller.now));
        if plan.offset != offset {
            // The kernel has put the data into its pages at the offset that it believed in.
            drop(self.shared.kernel.invalidate(gfid, WHOLE_FILE));
        }
        let is_gathered_behind = behind.is_some() && mode.by != WrittenBy::WriteBack;
        drop((op, behind));
        if is_gathered_behind {
            self.gather_after(&inode, &(plan.offset..plan.offset + len));
        }
        Ok(())
    }

    async fn enter_to_write(
        &self,
        gfid: Gfid,
        offset: u64,
        len: u64,
        append: bool,
        caller: Caller,
    ) -> Result<(Op, WritePlan)> {
        loop {
            let op = self.enter(gfid, Need::shared(LeaseMode::Write), caller).await?;
            if let Some(plan) = op.inode().with(|state| state.begin_write(offset, len, append)) {
                return Ok((op, plan));
            }
            drop(op);
            let alone = self.enter(gfid, Need::exclusive(), caller).await?;
            self.zero_gap(alone.inode(), offset).await?;
        }
    }

    /// If a sync is expected after this write, its part at the service begins here. True if the
    /// shards are to begin, too.
    fn begin_sync(&self, inode: &Arc<Inode>, plan: &WritePlan, caller: Caller) -> bool {
        if plan.follows == SyncKind::None || !self.shared.options.sync_ahead {
            return false;
        }
        if plan.follows == SyncKind::Full
            && !plan.grows
            && inode.with(|state| state.touch_ahead(caller.now))
        {
            self.tell_ahead(Arc::clone(inode));
        }
        true
    }

    fn tell_ahead(&self, inode: Arc<Inode>) {
        let fs = self.aside();
        self.backend.spawn(async move {
            if let Err(error) = fs.send_attrs(&inode, SetAttr::default(), fs.fsync_flush(), own_caller()).await {
                // They are still to be told; who asks for the sync learns why that fails.
                tracing::debug!(gfid = %inode.gfid(), %error, "cannot tell attributes ahead of a sync");
            }
        });
    }

    fn fsync_flush(&self) -> FlushKind {
        FlushKind::Sync { times_may_follow: self.shared.options.times_follow }
    }

    /// Zeroes what the size would grow over; the caller has the file alone.
    async fn zero_gap(&self, inode: &Inode, to: u64) -> Result<()> {
        let (gap, file, hint) =
            inode.with(|state| (state.gap(to), state.file(), state.punch_hint()));
        if let Some(gap) = gap {
            inode.with(InodeState::still_writes)?;
            inode.with(|state| state.begin_change());
            self.backend.punch(file, gap, hint).await?;
            inode.with(|state| state.zeroed(to));
        }
        Ok(())
    }

    /// close(2): the owner's locks go, the service learns size and mtime. All data is acknowledged
    /// by the shards then; with [`flush_behind`](super::FsOptions::flush_behind) both come later.
    ///
    /// # Errors
    /// EIO if acknowledged writes of the file were lost and no fsync by this open file description
    /// has said so (a close does not count as told: see [`OpenId`]); as
    /// [`LocalIo::reported`](crate::LocalIo::reported).
    pub async fn flush(&self, gfid: Gfid, open: OpenId, owner: LockOwner) -> Result<()> {
        if self.shared.closes_at_once(gfid, owner) {
            return Ok(());
        }
        self.close_locks(gfid, owner).await?;
        let Some(inode) = self.shared.table.get(gfid) else { return Ok(()) };
        self.nothing_behind(&inode).await?;
        self.flush_attrs(&inode).await?;
        if inode.with(|state| state.is_doubtful()) {
            self.sync_data(&inode).await?;
        }
        self.note_lost(&inode);
        let is_told = self.shared.told.tell_close(gfid, open);
        if is_told { posix(EIO) } else { Ok(()) }
    }

    /// Remembers what the file has lost since the last look, for those who have it open.
    fn note_lost(&self, inode: &Inode) {
        if inode.with(|state| state.take_lost()) {
            self.shared.told.mark_lost(inode.gfid());
        }
    }

    /// EIO, once for each open file description, if something of the file or directory was lost.
    fn tell_sync(&self, gfid: Gfid, open: OpenId) -> Result<()> {
        let is_told = self.shared.told.tell_sync(gfid, open);
        if is_told { posix(EIO) } else { Ok(()) }
    }

    /// Waits until the shards have acknowledged all that was answered.
    pub(super) async fn nothing_behind(&self, inode: &Inode) -> Result<()> {
        self.gathered(inode).await;
        match inode.with(|state| state.is_behind().then(|| state.file())) {
            Some(file) => self.backend.reported(file).await,
            None => Ok(()),
        }
    }

    /// fsync: everything about the file survives the loss of power. fdatasync: all that is needed
    /// to read it back, which times are not.
    ///
    /// # Errors
    /// As [`LocalIo::sync`](crate::LocalIo::sync). EIO, once for each open file description, if
    /// acknowledged writes of the file were lost with a session, or something else of it with the
    /// power of the metadata service's machine.
    pub async fn fsync(
        &self,
        gfid: Gfid,
        open: OpenId,
        datasync: bool,
        caller: Caller,
    ) -> Result<()> {
        self.vouched(async || self.fsync_once(gfid, open, datasync, caller).await).await
    }

    /// Syncs, again if the service was started anew meanwhile: it may have lost what it then says
    /// to have synced.
    async fn vouched(&self, sync: impl AsyncFn() -> Result<()>) -> Result<()> {
        loop {
            let start = self.shared.told.settled().await;
            sync().await?;
            if self.shared.told.is_settled(start) {
                return Ok(());
            }
        }
    }

    async fn fsync_once(
        &self,
        gfid: Gfid,
        open: OpenId,
        datasync: bool,
        caller: Caller,
    ) -> Result<()> {
        let Some(inode) = self.shared.table.get(gfid) else {
            return self.sync_told(gfid, open, caller).await;
        };
        inode
            .with(|state| state.sync_asked(if datasync { SyncKind::Data } else { SyncKind::Full }));
        // Times may be durable before the data that they tell of. A size may not: a loss of power
        // in between would leave zeros at the end of the file.
        if inode.with(|state| state.has_grown()) {
            self.sync_data(&inode).await?;
            self.sync_attrs(&inode, datasync, caller).await?;
        } else {
            let (data, attrs) =
                join_both(self.sync_data(&inode), self.sync_attrs(&inode, datasync, caller)).await;
            data.and(attrs)?;
        }
        self.shared.usage.forget(gfid);
        self.note_lost(&inode);
        self.tell_sync(gfid, open)
    }

    /// Sends what only this mount knows of the file's attributes and an fsync promises, and waits
    /// until it is on the service's disk, in one trip.
    async fn sync_attrs(&self, inode: &Inode, datasync: bool, caller: Caller) -> Result<()> {
        if datasync && inode.with(|state| state.is_size_synced()) {
            return Ok(());
        }
        match self.send_attrs(inode, SetAttr::default(), self.fsync_flush(), own_caller()).await {
            Ok(Some(_)) => return Ok(()),
            Ok(None) if self.shared.durable.is_synced(self.backend.term()) => return Ok(()),
            // Nothing to tell, or a file that is gone: what was answered before is synced.
            Ok(None) | Err(ClientError::Posix(ENOENT)) => {}
            Err(error) => return Err(error),
        }
        let told = inode.with(|state| state.tellings());
        self.ask(NamespaceOp::Sync, caller).await?;
        inode.with(|state| state.tellings_synced(told));
        Ok(())
    }

    /// fsync of a directory: what the service answered is on disk.
    ///
    /// # Errors
    /// The service's; EIO, once for each open file description, if it lost names in the directory
    /// with its machine's power.
    pub async fn sync_names(&self, dir: Gfid, open: OpenId, caller: Caller) -> Result<()> {
        self.vouched(async || self.sync_told(dir, open, caller).await).await
    }

    /// What the service answered is on its disk, of this file or directory.
    async fn sync_told(&self, gfid: Gfid, open: OpenId, caller: Caller) -> Result<()> {
        self.ask(NamespaceOp::Sync, caller).await?;
        self.tell_sync(gfid, open)
    }

    /// Can the file's objects be numbered up to this size?
    fn check_size(&self, inode: &Inode, size: u64) -> Result<()> {
        let object_bytes = self.backend.object_bytes(inode.with(|state| state.file().pool))?;
        if size <= file_bytes_max(object_bytes) { Ok(()) } else { posix(EFBIG) }
    }

    /// Sets the size, with any other attributes in `set` (whose size counts).
    pub(super) async fn truncate(
        &self,
        gfid: Gfid,
        set: SetAttr,
        size: u64,
        writer: Writer,
    ) -> Result<Attr> {
        let caller = writer.caller;
        checked_range(size, 0)?;
        let asked = self.stamp();
        let op = self.enter(gfid, Need::exclusive(), caller).await?;
        let inode = Arc::clone(op.inode());
        self.check_size(&inode, size)?;
        self.permit(&inode, false)?;
        self.zero_gap(&inode, size).await?;
        let (file, old, end) = inode.with(|state| (state.file(), state.size(), state.data_end()));
        // Of itself the kernel takes away some of the bits.
        let mode = self.mode_left(&inode, set.mode, writer).or(set.mode);
        let (was, footprint) = inode.with(|state| (state.footprint(), state.footprint_at(size)));
        // Behind the end may be space that nobody knows of here.
        let end = if was == Footprint::Beyond { u64::MAX } else { end };
        self.clear_tail(&inode, size).await;
        // A truncation changes the content's time even when the size stays.
        let mtime = set.mtime.or(Some(caller.now));
        // The size first: if this client dies in between, what lies beyond it is never seen, and
        // whoever extends the file zeroes it. The other way round would leave zeros inside the
        // size.
        let sent = self
            .send_attrs(
                &inode,
                SetAttr { size: Some(size), mtime, mode, footprint: Some(footprint), ..set },
                FlushKind::Whole,
                caller,
            )
            .await?;
        inode.with(InodeState::still_writes)?;
        inode.with(|state| state.truncated(size));
        if size < end {
            inode.with(|state| state.begin_change());
            self.backend.truncate(file, size, end).await?;
        }
        inode.with(|state| state.truncated_data(end.max(old)));
        self.shared.usage.forget(gfid);
        let attr = sent.ok_or(ClientError::Posix(EIO))?;
        drop(op);
        // The open was for the lease; a file that nobody has open is closed again.
        self.settle(&inode).await?;
        Ok(self.merged(attr, asked))
    }

    /// fallocate.
    ///
    /// # Errors
    /// EINVAL for an empty range, EFBIG, and as [`LocalFs::write`].
    pub async fn allocate(
        &self,
        gfid: Gfid,
        offset: u64,
        len: u64,
        mode: AllocateMode,
        writer: impl Into<Writer>,
    ) -> Result<()> {
        let writer = writer.into();
        let caller = writer.caller;
        if len == 0 {
            return posix(EINVAL);
        }
        let range = checked_range(offset, len)?;
        let op = self.enter(gfid, Need::exclusive(), caller).await?;
        let inode = op.inode();
        self.check_size(inode, range.end)?;
        self.permit(inode, matches!(mode, AllocateMode::Allocate | AllocateMode::KeepSize))?;
        self.drop_rights(inode, writer, false).await?;
        let reserves = matches!(mode, AllocateMode::Allocate | AllocateMode::KeepSize);
        let (file, size, hint) =
            inode.with(|state| (state.file(), state.size(), state.punch_hint()));
        let is_beyond = inode.with(|state| state.footprint() == Footprint::Beyond);
        let end = if mode == AllocateMode::Punch && is_beyond { u64::MAX } else { size };
        let inside = range.start..range.end.min(end);
        if !reserves && inside.start < inside.end {
            inode.with(|state| state.spreads(Footprint::Sparse));
            inode.with(|state| state.begin_change());
            self.backend.punch(file, inside, hint).await?;
            inode.with(|state| state.wrote(0, caller.now));
            self.shared.usage.forget(gfid);
        }
        let extends = matches!(mode, AllocateMode::Allocate | AllocateMode::Zero);
        let extends = extends && range.end > size;
        if extends {
            self.clear_tail(inode, range.end).await;
            self.zero_gap(inode, range.end).await?;
        }
        if reserves {
            self.reserve(inode, range.clone(), caller).await?;
        }
        if extends {
            inode.with(|state| state.spreads(Footprint::Sparse));
            inode.with(|state| state.wrote(range.end, caller.now));
        }
        Ok(())
    }

    /// Takes space for a range. What cannot fit is refused before anything is done for it, however
    /// large it is.
    async fn reserve(&self, inode: &Inode, range: Range<u64>, caller: Caller) -> Result<()> {
        let (file, size) = inode.with(|state| (state.file(), state.size()));
        let wanted = range.end - range.start;
        let (_, free) = self.space().await?;
        if wanted > free {
            // What the file has already is not needed once more.
            let has = self.backend.allocated(file, range.end).await?;
            if wanted > free.saturating_add(has) {
                return posix(ENOSPC);
            }
        }
        let is_behind = range.end > size;
        let footprint = if is_behind { Footprint::Beyond } else { Footprint::Sparse };
        if inode.with(|state| state.spreads(footprint)) {
            // Before there is anything that nobody would look for when the file is removed.
            let set = SetAttr { footprint: Some(footprint), ..SetAttr::default() };
            self.send_attrs(inode, set, FlushKind::Whole, caller).await?;
        }
        inode.with(InodeState::still_writes)?;
        self.backend.reserve(file, range).await?;
        self.shared.usage.forget(inode.gfid());
        Ok(())
    }

    /// lseek for data or a hole, from `offset` on; the end of the file is a hole.
    ///
    /// # Errors
    /// ENXIO beyond the end, and for data when none follows.
    pub async fn seek(
        &self,
        gfid: Gfid,
        offset: u64,
        sought: Sought,
        caller: Caller,
    ) -> Result<u64> {
        // What may be stored and is not known yet counts as data, to the end.
        let is_known = self.stores_written_back(gfid).await;
        let seek = async |file, size| {
            if offset >= size {
                return posix(ENXIO);
            }
            if !is_known {
                return Ok(if sought == Sought::Data { offset } else { size });
            }
            match (self.backend.seek(file, offset..size, sought).await?, sought) {
                (Some(found), _) => Ok(found),
                (None, Sought::Hole) => Ok(size),
                (None, Sought::Data) => posix(ENXIO),
            }
        };
        self.look_into(gfid, caller, seek).await
    }

    /// Where a range of the file holds data, in order; the rest is hole. At the granularity of
    /// stripes, and never beyond the size.
    ///
    /// # Errors
    /// As [`LocalIo::read`](crate::LocalIo::read).
    pub async fn extents(
        &self,
        gfid: Gfid,
        range: Range<u64>,
        caller: Caller,
    ) -> Result<Vec<Range<u64>>> {
        let is_known = self.stores_written_back(gfid).await;
        let extents = async |file, size: u64| {
            let inside = range.start..range.end.min(size);
            match (inside.start < inside.end, is_known) {
                (false, _) => Ok(Vec::new()),
                // What may be stored and is not known yet counts as data.
                (true, false) => Ok(vec![inside]),
                (true, true) => self.backend.extents(file, inside).await,
            }
        };
        self.look_into(gfid, caller, extents).await
    }

    /// copy_file_range. Returns the bytes copied: fewer than asked at the end of the source. Holes
    /// are copied as holes.
    ///
    /// # Errors
    /// As [`LocalFs::read`] and [`LocalFs::write`], if nothing was copied.
    pub async fn copy(
        &self,
        from: (Gfid, u64),
        to: (Gfid, u64),
        len: u64,
        writer: impl Into<Writer>,
    ) -> Result<u64> {
        let writer = writer.into();
        checked_range(from.1, len)?;
        checked_range(to.1, len)?;
        let mut copied = 0;
        while copied < len {
            let (source, target) = ((from.0, from.1 + copied), (to.0, to.1 + copied));
            match self.copy_run(source, target, len - copied, writer).await {
                Ok(0) => break,
                Ok(run) => copied += run,
                Err(_) if copied > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(copied)
    }

    /// Copies a hole, or a piece of data, that begins at `from`.
    async fn copy_run(
        &self,
        from: (Gfid, u64),
        to: (Gfid, u64),
        len: u64,
        writer: Writer,
    ) -> Result<u64> {
        let caller = writer.caller;
        let hole = async |file, size: u64| {
            let end = size.min(from.1 + len);
            if from.1 >= end {
                return Ok(0);
            }
            let data = self.backend.seek(file, from.1..end, Sought::Data).await?;
            Ok(data.unwrap_or(end) - from.1)
        };
        let hole = self.look_into(from.0, caller, hole).await?;
        if hole > 0 {
            self.allocate(to.0, to.1, hole, AllocateMode::Zero, writer).await?;
            return Ok(hole);
        }
        let data = self.read(from.0, from.1, len.min(COPY_BYTES) as usize, caller).await?;
        let read = data.len() as u64;
        self.write(to.0, to.1, data, WriteMode::default(), writer).await?;
        Ok(read)
    }

    /// Bytes for users: all, and free; at most `space_age_max` old.
    pub(super) async fn space(&self) -> Result<(u64, u64)> {
        let cached = *self.shared.space.lock();
        if let Some((at, total, free)) = cached
            && at.elapsed() <= self.shared.options.space_age_max
        {
            return Ok((total, free));
        }
        let (total, free) = self.backend.space().await?;
        *self.shared.space.lock() = Some((std::time::Instant::now(), total, free));
        Ok((total, free))
    }

    /// Makes everything written through this mount stable and known to the service (before
    /// unmounting).
    ///
    /// # Errors
    /// The first that was met; what else can be made safe is, except that a service that times out
    /// is asked no more. EIO if something was lost with a session before, and nobody was told.
    pub async fn sync_everything(&self) -> Result<()> {
        // Side by side: where nothing answers, both take the whole timeout.
        let data: Pin<Box<dyn Future<Output = Result<()>> + '_>> = Box::pin(async {
            for inode in self.shared.table.all() {
                self.gathered(&inode).await;
            }
            self.backend.sync_all().await
        });
        let names = async || {
            self.flush_each(&self.shared.table.all()).await?;
            self.ask(NamespaceOp::Sync, own_caller()).await.map(drop)
        };
        join_all([data, Box::pin(self.vouched(names))])
            .await
            .into_iter()
            .fold(Ok(()), Result::and)?;
        let is_lost = |inode: &Arc<Inode>| inode.with(|state| state.is_lost());
        let is_untold =
            self.shared.told.any_untold() || self.shared.table.all().iter().any(is_lost);
        if is_untold { posix(EIO) } else { Ok(()) }
    }

    /// Tells the service what it does not know of these files, many at a time.
    async fn flush_each(&self, inodes: &[Arc<Inode>]) -> Result<()> {
        let mut first = Ok(());
        for batch in inodes.chunks(FLUSHES_AT_ONCE) {
            let results = join_all(batch.iter().map(|inode| self.flush_attrs(inode))).await;
            let silent =
                results.iter().any(|result| matches!(result, Err(ClientError::TimedOut(_))));
            first = results.into_iter().fold(first, Result::and);
            if silent {
                break;
            }
        }
        first
    }
}

/// A close under way, until this is dropped.
struct Closing<'a>(&'a AtomicUsize);

impl<'a> Closing<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Relaxed);
        Self(count)
    }
}

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_end_where_off_t_does() {
        assert!(checked_range(0, SIZE_MAX).is_ok());
        assert!(checked_range(1, SIZE_MAX).is_err());
        assert!(checked_range(u64::MAX, 1).is_err());
    }
}
