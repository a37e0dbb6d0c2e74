//! Stores through shared mappings: what lies behind the end of a file when that moves, and what
//! must be written back before somebody looks for data.
//!
//! Contract: bytes that were stored behind the end read as zeros however the file grows, on this
//! mount; another mount's growth has the kernel's pages dropped first. Nothing waits for a page for
//! longer than [`PAGE_WAIT_MAX`]: a page that the kernel holds locked for a request that waits for
//! this one has nothing stale in it.

use super::table::Inode;
use super::{Backend, LocalFs, WHOLE_FILE};
use protocol::Gfid;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// How long a page that the kernel has locked is waited for.
const PAGE_WAIT_MAX: Duration = Duration::from_millis(200);
/// How long stores are waited for that the kernel writes back: as other requests, but who looks is
/// not to hang.
const STORES_WAIT_MAX: Duration = Duration::from_secs(10);

impl<B: Backend> LocalFs<B> {
    /// A handle that reads and writes was opened: the file may be mapped until
    /// [`LocalFs::no_longer_mapped`].
    pub fn may_be_mapped(&self, gfid: Gfid) {
        self.shared.table.get_or_insert(gfid).with(|state| state.may_be_mapped());
    }

    /// Such a handle, and every mapping of it, is gone.
    pub fn no_longer_mapped(&self, gfid: Gfid) {
        if let Some(inode) = self.shared.table.get(gfid) {
            inode.with(|state| state.no_longer_mapped());
        }
    }

    /// The kernel fills its pages of the file up to here.
    pub fn pages_filled(&self, gfid: Gfid, end: u64) {
        self.shared.table.get_or_insert(gfid).with(|state| state.pages_filled(end));
    }

    /// Before the file grows over `to`: what was stored behind its end is cleared in the kernel's
    /// page.
    pub(super) async fn clear_tail(&self, inode: &Inode, to: u64) {
        let page_bytes = self.shared.options.page_bytes;
        let Some(tail) = inode.with(|state| state.stale_tail(to, page_bytes)) else { return };
        let gfid = inode.gfid();
        if !self.within(PAGE_WAIT_MAX, self.shared.kernel.clear(gfid, tail)).await {
            tracing::debug!(%gfid, "the last page is locked: nothing is cleared in it");
        }
    }

    /// Before somebody looks for data: what the kernel has of stores is written back. False if it
    /// may still have some. The caller is not inside the file.
    pub(super) async fn stores_written_back(&self, gfid: Gfid) -> bool {
        let may_hold = |inode: &std::sync::Arc<Inode>| inode.with(|state| state.may_hold_stores());
        if !self.shared.table.get(gfid).as_ref().is_some_and(may_hold) {
            return true;
        }
        let is_back =
            self.within(STORES_WAIT_MAX, self.shared.kernel.invalidate(gfid, WHOLE_FILE)).await;
        if !is_back {
            tracing::warn!(%gfid, "the kernel has not written back what was stored through mappings");
        }
        is_back
    }

    /// Waits, so long at most. False if that was too short.
    async fn within(&self, time: Duration, work: impl Future<Output = ()>) -> bool {
        let (mut work, mut late) = (pin!(work), pin!(self.backend.sleep(time)));
        poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(true),
            Poll::Pending => late.as_mut().poll(cx).map(|()| false),
        })
        .await
    }
}
