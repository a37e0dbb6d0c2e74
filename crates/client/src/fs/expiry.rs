//! What the kernel has cached must not outlive the session: the watch over its time.
//!
//! Contract: once the session's time has run out unrenewed, the kernel has no page of any file,
//! except where it has them locked; and until the session is renewed it gets none. Without this, a
//! mount that is cut off would answer reads and mapped files from pages that another mount, which
//! was given the lease meanwhile, has overwritten.
//!
//! Why that holds:
//! * The session's time as everything here sees it
//!   ([`Moment::until`](metadata::lease::holder::Moment)) ends a tenth of its life before the
//!   cluster would end it. No operation begins after that (`LocalFs::enter`), and no data that was
//!   under way is answered (`LocalFs::may_show`), so no page is filled. In the tenth that is left
//!   the pages are dropped, while they are still right. It is met only when renewals fail, for
//!   there are three in a session's life.
//! * The kernel locks a page that it wants filled, then asks, and unlocks it with the answer. To
//!   drop a locked page it waits for the answer, which here may wait for the renewal, or for the
//!   deadline, and the kernel goes over a file's pages in their order: one read that waits would
//!   keep all pages behind it. So what requests under way have locked ([`PagesLocked`]) is left
//!   alone. Nobody can read it: it is filled after a renewal, when the session has lived throughout
//!   and what was read is right, or stays empty because the request failed. What is locked while
//!   pages are being dropped is found in the next round; a round ends when it takes too long.
//! * What a program writes the kernel puts into pages before it asks, so that a write under way
//!   shows on this host until it ends. Its answer fills no page, and if it fails, the pages go:
//!   with the request, and with the session (`fenced`).
//! * A file that is opened afterwards drops its pages once more (`kernel_cache`), and what is still
//!   cached then was read under the renewed lease.
//! * A process that was stopped finds its time run out when it goes on: the timer of the watch is
//!   due. Its kernel answered from the pages until then; nobody can tell it otherwise. If the
//!   session is dead by then, `fenced` drops everything.
//!
//! Names and attributes need nothing of this: the kernel gets them for a second at most, and the
//! service counts that before it lets anybody else change them (`metadata::service::alone`).
//!
//! While the session lives, the watch costs a timer that fires about once in its life.

use super::inode::InodeState;
use super::lease::{INVALIDATE_ROUNDS, INVALIDATE_WAIT};
use super::table::Inode;
use super::{Backend, Dropping, LocalFs, Result};
use protocol::Gfid;
use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// How often a session whose time ran out is looked at again: far below what a session lives, for
/// it may run out again.
const EXPIRED_PAUSE: Duration = Duration::from_millis(100);

/// What the watch remembers.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// The end of the session's time after which pages were dropped.
    dropped: Option<Duration>,
}

/// The kernel has pages of a file locked for a request, from before it was sent until it is
/// answered.
pub struct PagesLocked {
    inode: Arc<Inode>,
    pages: Range<u64>,
}

impl Drop for PagesLocked {
    fn drop(&mut self) {
        self.inode.with(|state| state.pages_unlocked(&self.pages));
    }
}

impl<B: Backend> LocalFs<B> {
    /// The kernel has these pages locked as long as the guard lives. To be said of every request
    /// that fills pages.
    pub fn pages_locked(&self, gfid: Gfid, pages: Range<u64>) -> PagesLocked {
        let inode = self.shared.table.get_or_insert(gfid);
        inode.with(|state| state.pages_locked(pages.clone()));
        PagesLocked { inode, pages }
    }

    /// May data be shown that was read under this grant? Waits while the session's time has run
    /// out. False if the lease is another one now: it must be read again.
    pub(super) async fn may_show(&self, inode: &Inode, token: u64) -> Result<bool> {
        loop {
            // The time before the lease: a new session begins when the old one's leases are gone.
            let at = self.backend.moment();
            let (held, epoch) = inode
                .with(|state| (state.lease().is_some() && state.token() == token, state.epoch()));
            if !held || at.now < at.until {
                return Ok(held);
            }
            self.backend.usable(epoch).await?;
        }
    }

    /// Drops the kernel's pages if the session's time has run out. Returns when to look again.
    pub(super) async fn look_at_clock(&self, watch: &mut Watch) -> Duration {
        let at = self.backend.moment();
        if at.now < at.until {
            return at.until - at.now;
        }
        if watch.dropped.replace(at.until) != Some(at.until) {
            self.expired().await;
        }
        EXPIRED_PAUSE
    }

    async fn expired(&self) {
        let mut files = self.shared.table.all();
        files.retain(|inode| inode.with(InodeState::expired));
        if files.is_empty() {
            return;
        }
        tracing::warn!(
            files = files.len(),
            "the session was not renewed in time: calls wait, cached pages are dropped"
        );
        for _ in 0..INVALIDATE_ROUNDS {
            files = self.drop_unlocked(files).await;
        }
        if !files.is_empty() {
            tracing::warn!(files = files.len(), "some cached pages are still being dropped");
        }
    }

    /// Drops what no request has locked; returns the files of which that was not done in time.
    async fn drop_unlocked(&self, files: Vec<Arc<Inode>>) -> Vec<Arc<Inode>> {
        let begin = |inode: Arc<Inode>| {
            let parts = inode.with(|state| state.unlocked_parts());
            let begin = |part| self.shared.kernel.invalidate(inode.gfid(), part);
            let drops: Vec<Dropping> = parts.into_iter().map(begin).collect();
            (inode, drops)
        };
        let dropping: Vec<_> = files.into_iter().map(begin).collect();
        let (mut end, mut is_over) = (pin!(self.backend.sleep(INVALIDATE_WAIT)), false);
        let mut late = Vec::new();
        for (inode, drops) in dropping {
            let mut done = true;
            for mut drop in drops {
                done &= poll_fn(|cx| match drop.as_mut().poll(cx) {
                    Poll::Ready(()) => Poll::Ready(true),
                    Poll::Pending if is_over => Poll::Ready(false),
                    Poll::Pending => end.as_mut().poll(cx).map(|()| {
                        is_over = true;
                        false
                    }),
                })
                .await;
            }
            if !done {
                late.push(inode);
            }
        }
        late
    }
}
