//! Getting into a file under a lease, and giving the lease back.
//!
//! Contract: [`LocalFs::enter`] returns with the operation inside and the lease held. A lease goes
//! back in this order: writes synced until stable, the kernel's pages dropped, nobody inside,
//! synced again, attributes and lease returned.

use super::errno::{EIO, ENOENT, ESTALE};
use super::inode::{Access, Flush, FlushKind, InodeState, Need, RecallStep, Sent};
use super::table::{Asking, Entered, Inode, Op};
use super::{Backend, LocalFs, Result, WHOLE_FILE, own_caller};
use crate::error::ClientError;
use metadata::lease::holder::Permit;
use protocol::namespace::{Attr, Caller, LeaseMode, NamespaceOp, Reply, SetAttr};
use protocol::{Epoch, Gfid};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// How often the kernel's pages are dropped with operations still coming, before they are made to
/// wait. Dropping waits for pages that operations have locked, so holding all operations back first
/// could never end.
pub(super) const INVALIDATE_ROUNDS: u32 = 3;
/// How long a round may take: far above what dropping pages costs, far below what a recall may
/// take.
pub(super) const INVALIDATE_WAIT: Duration = Duration::from_millis(200);
/// How long a recall waits for what is inside a file: longer than operations take before they fail
/// by themselves. Writes that were answered early end only with the shards that must have them.
const ALONE_WAIT: Duration = Duration::from_secs(40);

/// An answer of another kind than the question's.
pub(super) fn unexpected(what: &'static str, reply: &Reply) -> ClientError {
    ClientError::Protocol(format!("{reply:?} to {what}"))
}

impl<B: Backend> LocalFs<B> {
    /// Lets an operation into a file, with the lease that it needs. One on data is refused (EIO)
    /// where somebody goes on as if he held a lock that went with a session.
    pub(super) async fn enter(&self, gfid: Gfid, need: Need, caller: Caller) -> Result<Op> {
        let inode = self.shared.table.get_or_insert(gfid);
        let mut first = false;
        loop {
            match inode.enter(need, first).await {
                Entered::Inside(op) => {
                    match inode.with(|state| state.permits(need, self.backend.moment())) {
                        Permit::Go
                            if need.lease.is_some()
                                && !need.open
                                && self.shared.locks.are_lost(gfid) =>
                        {
                            return Err(ClientError::Posix(EIO));
                        }
                        Permit::Go => {
                            if !need.open {
                                self.gathered(&inode).await;
                            }
                            return Ok(op);
                        }
                        Permit::NotHeld => first = false,
                        Permit::Expired | Permit::OldMap(_) => {
                            drop(op);
                            self.backend.usable(inode.with(|state| state.epoch())).await?;
                        }
                    }
                }
                Entered::Acquire(asking, mode) => {
                    first = self.acquire(&inode, asking, mode, caller).await?
                }
            }
        }
    }

    /// Asks the service. False if the answer is void and has to be asked for again.
    async fn acquire(
        &self,
        inode: &Arc<Inode>,
        asking: Asking,
        mode: LeaseMode,
        caller: Caller,
    ) -> Result<bool> {
        let op = NamespaceOp::Open { gfid: inode.gfid(), lease: mode };
        match self.ask_once(op, caller).await {
            Ok(Reply::Opened { attr, grant: Some(grant) }) => {
                if grant.mode < mode {
                    return Err(ClientError::Protocol(format!(
                        "{grant:?} where {mode:?} was asked for"
                    )));
                }
                Ok(inode.change(|state| state.granted(asking.ticket(), &attr, grant)))
            }
            Ok(reply) => Err(unexpected("open", &reply)),
            // The inode number is the kernel's from a lookup: it existed, and its last link is
            // gone.
            Err(ClientError::Posix(ENOENT)) => Err(ClientError::Posix(ESTALE)),
            Err(ClientError::Fenced(_)) => {
                self.backend.usable(Epoch::default()).await?;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Attributes of the service with what only this mount knows; `asked` is the stamp from before
    /// it was asked.
    pub(super) fn merged(&self, attr: Attr, asked: u64) -> Attr {
        self.shared.merged(attr, asked)
    }

    /// Sends what only this mount knows of the file's attributes, together with `user`'s changes,
    /// in one request. After an fsync's they are on the service's disk. Returns the service's
    /// answer; `None` if there was nothing to send.
    pub(super) async fn send_attrs(
        &self,
        inode: &Inode,
        user: SetAttr,
        kind: FlushKind,
        caller: Caller,
    ) -> Result<Option<Attr>> {
        let flush = inode.until(|state| state.begin_flush(kind)).await;
        let sending = Sending { fs: self, inode, flush: Some(flush) };
        let set = SetAttr {
            mode: user.mode.or(flush.set.mode),
            uid: user.uid.or(flush.set.uid),
            gid: user.gid.or(flush.set.gid),
            size: user.size.or(flush.set.size),
            atime: user.atime.or(flush.set.atime),
            mtime: user.mtime.or(flush.set.mtime),
            // A change by the user moves ctime to now, which is later than any write's.
            ctime: if user == SetAttr::default() { flush.set.ctime } else { user.ctime },
            footprint: user.footprint.or(flush.set.footprint),
            times_follow: flush.set.times_follow,
        };
        if set == SetAttr::default() {
            return Ok(None);
        }
        if user.size.is_some() {
            // The flush before this one may have outlived the session.
            inode.with(InodeState::still_writes)?;
        }
        if inode.with(|state| state.is_behind() && state.has_grown()) {
            // A size is told after the data that it covers is acknowledged.
            self.nothing_behind(inode).await?;
            inode.with(InodeState::still_writes)?;
        }
        let reply = self
            .ask(NamespaceOp::SetAttr { gfid: inode.gfid(), set, sync: flush.sync }, caller)
            .await;
        match reply {
            Ok(Reply::Attr(attr)) => {
                sending.done(if flush.sync { Sent::Synced } else { Sent::Told }, &attr);
                Ok(Some(attr))
            }
            Ok(other) => Err(unexpected("setattr", &other)),
            Err(error) => Err(error),
        }
    }

    /// Sends size and times, as they are now, if only this mount knows them. A file that is gone
    /// needs none.
    pub(super) async fn flush_attrs(&self, inode: &Inode) -> Result<()> {
        if !inode.with(|state| state.has_to_tell()) {
            return Ok(());
        }
        match self.send_attrs(inode, SetAttr::default(), FlushKind::Whole, own_caller()).await {
            Err(ClientError::Posix(ENOENT)) => Ok(()),
            other => other.map(drop),
        }
    }

    /// After a close: tells the service once the last handle is gone.
    pub(super) async fn settle(&self, inode: &Arc<Inode>) -> Result<()> {
        if inode.with(|state| state.opens()) > 0 {
            return Ok(());
        }
        self.flush_attrs(inode).await?;
        let Some(ticket) = inode.with(InodeState::try_close) else { return Ok(()) };
        let asking = Asking::new(inode, ticket);
        let told = match self.ask(NamespaceOp::Close { gfid: inode.gfid() }, own_caller()).await {
            Ok(_) | Err(ClientError::Posix(ENOENT)) => Ok(()),
            Err(error) => Err(error),
        };
        inode.change(|state| state.close_done(asking.ticket(), told.is_ok()));
        told
    }

    /// The service wants a lease back, down to `keep`.
    pub(super) async fn recall(&self, gfid: Gfid, keep: Option<LeaseMode>) {
        let inode = self.shared.creations.find(gfid, || self.shared.table.get(gfid));
        let step = match &inode {
            None => RecallStep::Answer,
            Some(inode) => inode.change(|state| state.recall(keep)),
        };
        match (step, inode) {
            (RecallStep::Merged, _) => {}
            (RecallStep::Begin, Some(inode)) => self.give_back(&inode, keep).await,
            (RecallStep::Answer | RecallStep::Begin, _) => {
                let op = NamespaceOp::ReturnLease { gfid, keep, set: SetAttr::default() };
                if let Err(error) = self.ask(op, own_caller()).await {
                    tracing::debug!(%gfid, %error, "cannot answer a recall");
                }
            }
        }
    }

    /// Carries out recalls until none is left; the caller has begun the first.
    pub(super) async fn give_back(&self, inode: &Arc<Inode>, keep: Option<LeaseMode>) {
        let mut next = Some(keep);
        while let Some(keep) = next {
            let recalling = Recalling { inode };
            let result = self.give_back_once(inode, keep).await;
            if let Err(error) = &result {
                // Held on to: the service asks again.
                tracing::warn!(gfid = %inode.gfid(), %error, "cannot give a lease back");
            }
            next = recalling.done(result.is_ok().then_some(keep));
            if let Ok(false) = result {
                // Operations may ask for leases again by now, so those that have pages locked come
                // to an end.
                self.shared.kernel.invalidate(inode.gfid(), WHOLE_FILE).await;
            }
            if let Some(more) = next
                && inode.change(|state| state.recall(more)) != RecallStep::Begin
            {
                return;
            }
        }
    }

    /// False if the kernel may still have pages of the file.
    async fn give_back_once(&self, inode: &Arc<Inode>, keep: Option<LeaseMode>) -> Result<bool> {
        let gfid = inode.gfid();
        let (op, clean) = match keep {
            None => self.drop_pages_and_enter(inode).await?,
            Some(_) => {
                self.sync_data(inode).await?;
                (self.enter_alone(inode).await?, true)
            }
        };
        self.sync_data(inode).await?;
        inode.with(InodeState::return_begins);
        self.flush_attrs(inode).await?;
        let request = NamespaceOp::ReturnLease { gfid, keep, set: SetAttr::default() };
        match self.ask(request, own_caller()).await {
            Ok(_) | Err(ClientError::Posix(ENOENT)) => {}
            Err(error @ (ClientError::Posix(_) | ClientError::Fenced(_) | ClientError::Closed)) => {
                return Err(error);
            }
            // The service may have it, and have given it to somebody else. If not, it asks again.
            Err(error) => {
                tracing::warn!(%gfid, %error, "no answer to a lease given back: it is taken for gone")
            }
        }
        // Nobody may get in between the service's answer and our knowing of it.
        inode.with(|state| state.gave_back(keep));
        drop(op);
        Ok(clean)
    }

    /// A closed file of which this mount has a lease, taken alone and with every write stable: the
    /// lease may go back with the next request ([`InodeState::gave_back`] follows its success). The
    /// kernel's pages of a file that nobody has open are dropped when it is opened without the
    /// lease. `None` if something would have to be waited for: then the service asks for the lease.
    pub(super) async fn enter_idle(&self, gfid: Gfid) -> Option<Op> {
        let op = self.shared.table.get(gfid)?.enter_if_idle()?;
        let (fs, inode) = (self.aside(), Arc::clone(op.inode()));
        let mut syncing = Box::pin(async move { fs.sync_data(&inode).await });
        match at_once(&mut syncing).await {
            Some(synced) => synced.ok().map(|()| op),
            None => {
                // It goes on to its end: what it finds to be lost is told only once.
                self.backend.spawn(async move { drop(syncing.await) });
                None
            }
        }
    }

    /// Takes the file alone, unless what is inside does not end: then others go on, and the service
    /// asks again.
    async fn enter_alone(&self, inode: &Arc<Inode>) -> Result<Op> {
        let need = Need { access: Access::Exclusive, lease: None, open: false };
        let entered = async {
            loop {
                if let Entered::Inside(op) = inode.enter(need, false).await {
                    return op;
                }
            }
        };
        let op = self.in_time(ALONE_WAIT, entered).await;
        op.ok_or(ClientError::TimedOut("operations on a file whose lease is recalled"))
    }

    /// Drops the kernel's pages, then takes the file alone. False if an operation may have put
    /// pages back meanwhile: then they are dropped once more after the lease is gone.
    async fn drop_pages_and_enter(&self, inode: &Arc<Inode>) -> Result<(Op, bool)> {
        for _ in 0..INVALIDATE_ROUNDS {
            self.sync_data(inode).await?;
            let seen = inode.with(|state| state.entered());
            if !self.invalidated_in_time(inode.gfid()).await {
                break;
            }
            if let Some(op) = inode.enter_if_quiet(seen) {
                return Ok((op, true));
            }
        }
        Ok((self.enter_alone(inode).await?, false))
    }

    /// Drops the kernel's pages, unless one stays locked: its operation may wait for the very lease
    /// that is recalled.
    async fn invalidated_in_time(&self, gfid: Gfid) -> bool {
        self.in_time(INVALIDATE_WAIT, self.shared.kernel.invalidate(gfid, WHOLE_FILE))
            .await
            .is_some()
    }

    /// What comes of the future within this time.
    async fn in_time<T>(&self, max: Duration, future: impl Future<Output = T>) -> Option<T> {
        let (mut future, mut late) = (pin!(future), pin!(self.backend.sleep(max)));
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending => late.as_mut().poll(cx).map(|()| None),
        })
        .await
    }

    /// Waits until the file's writes are stable (if this mount may have written it), and learns
    /// what a dead session lost of them.
    pub(super) async fn sync_data(&self, inode: &Inode) -> Result<()> {
        let look = |state: &mut InodeState| {
            let may_have_written = state.lease() == Some(LeaseMode::Write) || state.is_doubtful();
            (may_have_written, state.file(), state.sync_begins(), state.doubts())
        };
        let (may_have_written, file, mark, doubts) = inode.with(look);
        if !may_have_written {
            return Ok(());
        }
        self.gathered(inode).await;
        match self.backend.sync(file).await {
            Err(ClientError::Lost) => inode.with(|state| state.mark_lost()),
            other => other?,
        }
        inode.with(|state| {
            state.synced(mark);
            state.doubts_ended(doubts);
        });
        Ok(())
    }
}

/// What comes of the future if nothing has to be waited for.
async fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// A flush under way; ends without success when dropped.
struct Sending<'a, B: Backend> {
    fs: &'a LocalFs<B>,
    inode: &'a Inode,
    flush: Option<Flush>,
}

impl<B: Backend> Sending<'_, B> {
    /// The service has answered with what is so now.
    fn done(mut self, sent: Sent, attr: &Attr) {
        self.finish(|state, flush, stamp| {
            state.flush_done(flush, sent, stamp);
            state.learned(attr);
        });
    }

    fn finish(&mut self, end: impl FnOnce(&mut InodeState, Flush, u64)) {
        if let Some(flush) = self.flush.take() {
            let stamp = self.fs.next_stamp();
            self.inode.change(|state| end(state, flush, stamp));
        }
    }
}

impl<B: Backend> Drop for Sending<'_, B> {
    fn drop(&mut self) {
        self.finish(|state, flush, stamp| state.flush_done(flush, Sent::No, stamp));
    }
}

/// A recall under way; ends without success when dropped.
struct Recalling<'a> {
    inode: &'a Inode,
}

impl Recalling<'_> {
    fn done(self, kept: Option<Option<LeaseMode>>) -> Option<Option<LeaseMode>> {
        let next = self.inode.change(|state| state.recalled(kept));
        std::mem::forget(self);
        next
    }
}

impl Drop for Recalling<'_> {
    fn drop(&mut self) {
        self.inode.change(|state| state.recalled(None));
    }
}
