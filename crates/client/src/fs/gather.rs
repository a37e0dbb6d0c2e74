//! Small writes at the end of a file that are answered early, gathered to be sent as one.
//!
//! Contract: nothing is gathered without
//! [`FsOptions::write_behind_bytes`](super::FsOptions::write_behind_bytes), and before the shards
//! have room for all that it may become: a full disk is told to the writer. It is sent within a
//! millisecond or two, when the next write does not fit, or before anybody enters the file, syncs
//! it or closes it.

use super::inode::{InodeState, Need};
use super::table::{Entered, Inode};
use super::{Backend, FileSystem, LocalFs};
use crate::objecter::{Gathered, WriterHint};
use bytes::Bytes;
use metadata::lease::holder::{Moment, Permit};
use protocol::Gfid;
use protocol::namespace::{LeaseMode, Timestamp};
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Bytes gathered at most: a write to the shards that costs little more costs much more than one.
const GATHER_BYTES_MAX: u64 = 64 << 10;

/// A gathering, until this is dropped.
struct Gather {
    inode: Arc<Inode>,
    bytes_max: usize,
}

impl Gathered for Gather {
    fn begins(&self) -> bool {
        self.inode.change(|state| state.gathering_begins(self.bytes_max))
    }

    fn poll_ends(&self, cx: &Context<'_>) -> Poll<()> {
        self.inode.with(|state| {
            if state.gathering_ends() {
                return Poll::Ready(());
            }
            state.wait(cx.waker());
            Poll::Pending
        })
    }

    fn take(&self) -> Option<(Bytes, WriterHint)> {
        self.inode.change(InodeState::gathering_taken)
    }

    fn sent(&self) {
        self.inode.change(InodeState::gathering_sent);
    }
}

impl Drop for Gather {
    fn drop(&mut self) {
        self.inode.change(InodeState::gathering_over);
    }
}

/// What somebody writes, and when.
pub(super) struct Small<'a> {
    pub(super) offset: u64,
    pub(super) data: &'a [u8],
    /// It came through the kernel's pages.
    pub(super) pages: bool,
    pub(super) now: Timestamp,
}

impl super::Shared {
    /// Puts a write beside those that are gathered, if it can be.
    pub(super) fn gather(&self, gfid: Gfid, small: &Small<'_>, at: Moment) -> bool {
        if self.options.write_behind_bytes == 0 || self.locks.are_lost(gfid) {
            return false;
        }
        let Some(inode) = self.table.get(gfid) else { return false };
        let need = Need::shared(LeaseMode::Write);
        inode.with(|state| {
            let Small { offset, data, pages, now } = *small;
            state.permits(need, at) == Permit::Go
                && state.gather(offset, data, now, self.options.page_bytes, pages)
        })
    }
}

impl FileSystem {
    /// True if a write is done at once, beside others that are gathered: [`LocalFs::write`] with no
    /// sync would answer it early, too. `pages`: it came through the kernel's pages. Never blocks.
    pub fn gather(
        &self,
        gfid: Gfid,
        offset: u64,
        data: &[u8],
        pages: bool,
        now: Timestamp,
    ) -> bool {
        self.shared.gather(gfid, &Small { offset, data, pages, now }, self.client.moment())
    }
}

impl<B: Backend> LocalFs<B> {
    /// Waits until what was gathered of the file is in order with what comes next.
    pub(super) async fn gathered(&self, inode: &Inode) {
        if inode.with(InodeState::is_gathered) {
            return;
        }
        // Whoever gathers learns that it is wanted.
        inode.change(|_| ());
        inode.until(|state| state.is_gathered().then_some(())).await;
    }

    /// A small write was answered early: gathers those that go on behind it, if that is what its
    /// writer does.
    pub(super) fn gather_after(&self, inode: &Arc<Inode>, written: &Range<u64>) {
        if !inode.with(|state| state.gathers_after(written.start, written.end - written.start)) {
            return;
        }
        let Ok(object_bytes) = inode.with(|state| self.backend.object_bytes(state.file().pool))
        else {
            return inode.change(InodeState::gathering_over);
        };
        let start = written.end;
        let window = self.shared.options.write_behind_bytes;
        let max = GATHER_BYTES_MAX.min(window / 2).min(object_bytes - start % object_bytes);
        let gather = Gather { inode: Arc::clone(inode), bytes_max: max as usize };
        let fs = self.aside();
        self.backend.spawn(async move {
            let inode = Arc::clone(&gather.inode);
            let Entered::Inside(op) = inode.enter(Need::shared(LeaseMode::Write), false).await else { return };
            let Ok(staying) = op.stay_behind(max, window) else { return };
            let file = inode.with(|state| state.file());
            let sent = fs.backend.write_gathered(file, start..start + max, Arc::new(gather), staying).await;
            if let Err(error) = sent {
                // A sync or close tells it, if anything was gathered.
                tracing::debug!(gfid = %inode.gfid(), %error, "writes that were gathered are not sent");
            }
        });
    }
}
