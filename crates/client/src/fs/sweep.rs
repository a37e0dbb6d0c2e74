//! What happens to files without anyone asking: attributes go to the service every second, cached
//! leases beyond the bound go back, leases and locks are claimed again after a restart of the
//! service and dropped when the session dies.

use super::data::FLUSHES_AT_ONCE;
use super::inode::{InodeState, RecallStep, Remedy};
use super::lease::unexpected;
use super::table::Inode;
use super::told::ChangeKind;
use super::{Backend, LocalFs, Result, WHOLE_FILE, own_caller};
use crate::error::ClientError;
use crate::objecter::join_all;
use protocol::namespace::{Commit, Held, NamespaceOp, Reply};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Leases, and locks, reclaimed per request, so that one request stays far below the largest
/// message.
const RECLAIM_BATCH: usize = 4096;
/// Pause before the service is told again what it could not be told.
const RECLAIM_PAUSE: Duration = Duration::from_secs(1);

impl<B: Backend> LocalFs<B> {
    /// One round.
    pub(super) async fn sweep(&self) {
        let (mut due, mut idle, mut cached) = (Vec::new(), Vec::new(), Vec::new());
        for inode in self.shared.table.all() {
            let (is_due, is_idle, is_behind, since) = inode.with(|state| {
                (state.sweep_passes(), state.opens() == 0, state.is_behind(), state.cached_since())
            });
            match (is_behind, is_idle) {
                (true, _) if is_due || is_idle => self.flush_aside(inode),
                (false, true) => {
                    cached.extend(since.map(|since| (since, Arc::clone(&inode))));
                    idle.push(inode);
                }
                (false, false) if is_due => due.push(inode),
                _ => {}
            }
        }
        if let Err(error) = self.tell_and_settle(due, idle).await {
            // The session is in trouble, and with it every file: the next round tries again.
            tracing::debug!(%error, "cannot flush attributes");
            return;
        }
        self.evict(cached).await;
        self.shared.table.sweep();
        self.shared.usage.sweep(Instant::now());
    }

    /// Tells what is due, and settles what nobody has open. Takes the files: the table forgets none
    /// that is held.
    async fn tell_and_settle(&self, due: Vec<Arc<Inode>>, idle: Vec<Arc<Inode>>) -> Result<()> {
        for batch in due.chunks(FLUSHES_AT_ONCE) {
            let (behind, acknowledged): (Vec<_>, Vec<_>) =
                batch.iter().partition(|inode| inode.with(|state| state.is_behind()));
            behind.into_iter().for_each(|inode| self.flush_aside(Arc::clone(inode)));
            let told = join_all(acknowledged.iter().map(|inode| self.flush_attrs(inode))).await;
            for (inode, told) in acknowledged.into_iter().zip(told) {
                unless_of_the_file(inode, told)?;
            }
        }
        for inode in &idle {
            unless_of_the_file(inode, self.settle(inode).await)?;
        }
        Ok(())
    }

    /// Tells what is to be told of a file once the shards have acknowledged its writes, for which
    /// the others need not wait.
    fn flush_aside(&self, inode: Arc<Inode>) {
        if inode.with(|state| state.is_flushing()) {
            return;
        }
        let fs = self.aside();
        self.backend.spawn(async move {
            let flushed = fs.flush_attrs(&inode).await;
            if let Err(error) = flushed.and(fs.settle(&inode).await) {
                tracing::debug!(gfid = %inode.gfid(), %error, "cannot flush attributes");
            }
        });
    }

    /// Gives back the leases that were closed longest ago, beyond the bound.
    async fn evict(&self, mut cached: Vec<(u64, Arc<Inode>)>) {
        let excess = cached.len().saturating_sub(self.shared.options.leases_cached_max);
        if excess == 0 {
            return;
        }
        cached.sort_unstable_by_key(|(since, _)| *since);
        cached.truncate(excess);
        for (_, inode) in cached {
            let still =
                inode.change(|state| state.cached_since().is_some().then(|| state.recall(None)));
            if still == Some(RecallStep::Begin) {
                self.give_back(&inode, None).await;
            }
        }
    }

    /// The service has restarted: says what this session holds, and what of it was lost.
    pub(super) async fn reclaim(&self) {
        loop {
            match self.reclaim_once().await {
                Ok(()) => return,
                // The next session begins with nothing, and asks by itself.
                Err(error @ (ClientError::Fenced(_) | ClientError::Closed)) => {
                    tracing::debug!(%error, "nothing is reclaimed");
                    return;
                }
                Err(error) => tracing::error!(%error, "cannot reclaim leases and locks yet"),
            }
            self.backend.sleep(RECLAIM_PAUSE).await;
        }
    }

    async fn reclaim_once(&self) -> Result<()> {
        // The service does not know who has leases on names, and lets nobody change any before
        // this.
        self.shared.known.recalled(None);
        let held: Vec<_> = self
            .shared
            .table
            .all()
            .iter()
            .filter_map(|inode| inode.with(|state| state.held()))
            .collect();
        let claims = self.shared.locks.claims();
        let requests =
            held.len().div_ceil(RECLAIM_BATCH).max(claims.len().div_ceil(RECLAIM_BATCH)).max(1);
        let (mut held, mut claims) = (held.chunks(RECLAIM_BATCH), claims.chunks(RECLAIM_BATCH));
        let since = self.shared.told.since();
        let mut begun = 0;
        for request in 1..=requests {
            let (held, locks) = (
                held.next().unwrap_or_default().to_vec(),
                claims.next().unwrap_or_default().to_vec(),
            );
            let last = request == requests;
            let sent = held.clone();
            let mount = self.shared.options.is_mount;
            let op = NamespaceOp::Reclaim { held, locks, mount, since, begun, last };
            let (commits, refused) = match self.ask(op, own_caller()).await? {
                Reply::Kept { commits, refused } => (commits, refused),
                other => return Err(unexpected("reclaim", &other)),
            };
            let refused: HashSet<_> = refused.into_iter().collect();
            let start = commits.last().map_or(0, |last| last.start);
            for held in sent.into_iter().filter(|held| refused.contains(&held.gfid)) {
                self.refused(held);
            }
            if begun != 0 && begun != start {
                return Err(ClientError::Protocol(
                    "the service was started again while it was told what is held".into(),
                ));
            }
            begun = start;
            if last {
                self.settle_losses(&commits).await;
            }
        }
        Ok(())
    }

    /// The service does not know of the lease, or of the file.
    fn refused(&self, Held { gfid, lease, .. }: Held) {
        let (Some(inode), Some((_, token))) = (self.shared.table.get(gfid), lease) else { return };
        tracing::debug!(%gfid, "a lease, or its file, is gone");
        inode.change(|state| state.claim_refused(token));
        drop(self.shared.kernel.invalidate(gfid, WHOLE_FILE));
    }

    /// What the service has lost with its machine's power is told again by whoever can, and
    /// remembered for an fsync where nobody can.
    async fn settle_losses(&self, kept: &[Commit]) {
        let lost = self.shared.told.losses(kept);
        if !lost.is_empty() {
            tracing::error!(
                changes = lost.len(),
                "the metadata service has lost what it was told and had not brought to its disk"
            );
        }
        let mut void = Vec::new();
        for (gfid, kind) in lost {
            let inode = self.shared.table.get(gfid);
            let remedy = inode.map_or(Remedy::None, |inode| inode.change(InodeState::told_lost));
            match (kind, remedy) {
                (ChangeKind::Attributes, Remedy::TellAgain) | (ChangeKind::Adopted, _) => {}
                (ChangeKind::Attributes | ChangeKind::Rest, _) => self.shared.told.mark_lost(gfid),
            }
            void.extend((remedy == Remedy::AskAgain).then_some(gfid));
        }
        self.shared.told.settle(kept.last().map_or(0, |last| last.start));
        void.sort_unstable();
        void.dedup();
        join_all(void.into_iter().map(|gfid| self.recall(gfid, None))).await;
    }

    /// The session is dead: nothing is held any more, and nothing cached may be used.
    pub(super) async fn fenced(&self) {
        self.shared.locks.fenced();
        self.shared.creations.fenced();
        self.shared.known.recalled(None);
        let inodes = self.shared.table.all();
        for inode in &inodes {
            inode.change(InodeState::fenced);
        }
        for inode in inodes {
            // Not awaited one by one: a page may stay locked until the new session serves its
            // operation.
            drop(self.shared.kernel.invalidate(inode.gfid(), WHOLE_FILE));
        }
    }
}

/// What went wrong, but for a refusal by the service, which may be of this one file: the others are
/// told all the same.
fn unless_of_the_file(inode: &Inode, told: Result<()>) -> Result<()> {
    match told {
        Err(error @ ClientError::Posix(_)) => {
            tracing::debug!(gfid = %inode.gfid(), %error, "cannot flush attributes");
            Ok(())
        }
        other => other,
    }
}
