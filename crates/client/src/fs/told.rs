//! What the metadata service was told and forgets if its machine loses its power, as it has not
//! been brought to the disk yet.
//!
//! Contract: no I/O, no clock, for any thread. Every request of the file system goes through
//! [`Told::begin`] and [`Change::end`]. Between the first answer of a service that was started anew
//! and [`Told::settle`] nobody knows what an fsync would vouch for: it waits in [`Told::settled`],
//! and is worth what it says only if [`Told::is_settled`] holds at its end.

use super::Result;
use super::losses::{Losses, OpenId};
use crate::session::Answered;
use messenger::sync::{ContentionMutex, LockTable};
use protocol::Gfid;
use protocol::namespace::{Commit, NamespaceOp, Reply, SetAttr};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Poll, Waker};

/// So many changes that may not be on the disk are as many as should be remembered: the service is
/// to sync. 16 MiB.
const CHANGES_MAX: usize = 1 << 18;

/// What the service was told, or told us.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ChangeKind {
    /// Size and times of a file, which who holds its write lease can tell again.
    Attributes,
    /// The same, but the service told them.
    Adopted,
    /// Anything else of a file or directory: that it was made, its names, permissions, extended
    /// attributes.
    Rest,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    commit: Commit,
    gfid: Gfid,
    kind: ChangeKind,
}

#[derive(Default)]
struct State {
    /// The start of the service whose losses are known.
    settled: u64,
    /// The last start that was heard of; 0: none was.
    heard: u64,
    /// The start that said last what is left of those before it, and what is.
    judge: u64,
    kept: Vec<Commit>,
    /// What may not be on the disk: of the last seconds.
    changes: VecDeque<Entry>,
    /// The service was asked to sync, for they are many.
    is_full: bool,
    /// What is lost and cannot be told again.
    losses: Losses,
    waiters: Vec<Waker>,
}

/// See the module.
pub(super) struct Told {
    state: ContentionMutex<State>,
    /// Counts opened files and directories; the default [`OpenId`] is of none of them.
    opened: AtomicU64,
}

/// A request under way: what its answer makes true.
#[derive(Debug)]
pub(super) struct Change {
    file: Option<(Gfid, ChangeKind)>,
    dirs: [Option<Gfid>; 2],
    makes: bool,
}

impl Told {
    pub(super) fn new(locks: &LockTable) -> Self {
        Self {
            state: ContentionMutex::new(locks, "fs told", State::default()),
            opened: AtomicU64::new(1),
        }
    }

    /// A request is about to be sent.
    pub(super) fn begin(op: &NamespaceOp) -> Change {
        let file = match op {
            NamespaceOp::SetAttr { gfid, set, .. } => {
                let rest =
                    SetAttr { size: None, mtime: None, ctime: None, times_follow: false, ..*set };
                let kind = if rest == SetAttr::default() {
                    ChangeKind::Attributes
                } else {
                    ChangeKind::Rest
                };
                Some((*gfid, kind))
            }
            NamespaceOp::SetXattr { gfid, .. }
            | NamespaceOp::RemoveXattr { gfid, .. }
            | NamespaceOp::SetFlags { gfid, .. } => Some((*gfid, ChangeKind::Rest)),
            NamespaceOp::Open { gfid, .. } => Some((*gfid, ChangeKind::Adopted)),
            _ => None,
        };
        let mut dirs = op.changed_dirs();
        let dirs = [dirs.next(), dirs.next()];
        Change {
            file,
            dirs,
            makes: matches!(op, NamespaceOp::Create { .. } | NamespaceOp::CreateUnnamed { .. }),
        }
    }

    /// For `NamespaceOp::Reclaim`: from which start of the service on it counts what is left.
    pub(super) fn since(&self) -> u64 {
        let state = self.state.lock();
        let first =
            state.changes.iter().map(|entry| entry.commit.start).chain([state.settled]).min();
        // Nothing was told yet: nothing can be lost.
        first.filter(|first| *first > 0).unwrap_or(u64::MAX)
    }

    /// So much is left; the last commit is of the start that was asked. Gives what is lost, to be
    /// dealt with before [`Told::settle`].
    pub(super) fn losses(&self, kept: &[Commit]) -> Vec<(Gfid, ChangeKind)> {
        let mut state = self.state.lock();
        let Some(now) = kept.last().map(|last| last.start).filter(|now| *now >= state.judge) else {
            return Vec::new();
        };
        (state.judge, state.kept) = (now, kept.to_vec());
        let (judged, rest) = std::mem::take(&mut state.changes)
            .into_iter()
            .partition(|entry| entry.commit.start < now);
        state.changes = rest;
        let judged: VecDeque<Entry> = judged;
        // What is left of former starts was brought to the disk by this one.
        judged
            .into_iter()
            .filter(|entry| !state.is_kept(entry.commit))
            .map(|entry| (entry.gfid, entry.kind))
            .collect()
    }

    /// What was lost when this service was started is dealt with.
    pub(super) fn settle(&self, start: u64) {
        let mut state = self.state.lock();
        state.settled = state.settled.max(start);
        state.heard = state.heard.max(start);
        let waiters = std::mem::take(&mut state.waiters);
        drop(state);
        waiters.into_iter().for_each(Waker::wake);
    }

    /// A new open file description.
    pub(super) fn open_id(&self) -> OpenId {
        OpenId(self.opened.fetch_add(1, Relaxed))
    }

    /// The open file description that is made next.
    fn next_open(&self) -> OpenId {
        OpenId(self.opened.load(Relaxed))
    }

    /// Something of the file or directory is lost: see [`Losses::mark`].
    pub(super) fn mark_lost(&self, gfid: Gfid) {
        self.state.lock().losses.mark(gfid, self.next_open());
    }

    /// Is a loss of it remembered?
    pub(super) fn is_lost(&self, gfid: Gfid) -> bool {
        self.state.lock().losses.contains(gfid)
    }

    /// Is there a loss of which nobody was told?
    pub(super) fn any_untold(&self) -> bool {
        self.state.lock().losses.any_untold()
    }

    /// Has an fsync to fail? See [`Losses::tell_sync`].
    pub(super) fn tell_sync(&self, gfid: Gfid, open: OpenId) -> bool {
        self.state.lock().losses.tell_sync(gfid, open, self.next_open())
    }

    /// Has a close to fail? See [`Losses::tell_close`].
    pub(super) fn tell_close(&self, gfid: Gfid, open: OpenId) -> bool {
        self.state.lock().losses.tell_close(gfid, open)
    }

    /// Nobody has the file open any more.
    pub(super) fn closed(&self, gfid: Gfid) {
        self.state.lock().losses.closed(gfid);
    }

    /// Waits until it is known what the service lost when it was started last. Gives that start.
    pub(super) async fn settled(&self) -> u64 {
        poll_fn(|cx| {
            let mut state = self.state.lock();
            if state.settled == state.heard {
                return Poll::Ready(state.settled);
            }
            if !state.waiters.iter().any(|waker| waker.will_wake(cx.waker())) {
                state.waiters.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    /// Has no service that was started later been heard of?
    pub(super) fn is_settled(&self, start: u64) -> bool {
        let state = self.state.lock();
        (state.settled, state.heard) == (start, start)
    }
}

impl State {
    /// Is a commit of a start before the one that said last what is left?
    fn is_kept(&self, commit: Commit) -> bool {
        self.kept.iter().any(|kept| kept.start == commit.start && commit.number <= kept.number)
    }

    fn forget_durable(&mut self, durable: Commit) {
        let is_durable =
            |entry: &Entry| entry.commit.start == durable.start && entry.commit <= durable;
        while self.changes.front().is_some_and(is_durable) {
            self.changes.pop_front();
        }
        self.is_full &= self.changes.len() >= CHANGES_MAX;
    }
}

impl Change {
    /// It was answered, well or not. True if the service should sync, as there is too much to
    /// remember.
    pub(super) fn end(self, told: &Told, answer: &Result<Answered>) -> bool {
        let Ok(Answered { reply, commit, durable, .. }) = answer else { return false };
        let mut state = told.state.lock();
        if state.heard == 0 {
            state.settled = commit.start;
        }
        state.heard = state.heard.max(commit.start);
        state.forget_durable(*durable);
        if commit <= durable {
            return false;
        }
        let made = match reply {
            Reply::Attr(attr) | Reply::Opened { attr, .. } if self.makes => {
                Some((attr.gfid, ChangeKind::Rest))
            }
            _ => None,
        };
        let dirs = self.dirs.into_iter().flatten().map(|dir| (dir, ChangeKind::Rest));
        let changes = self.file.into_iter().chain(made).chain(dirs);
        if commit.start < state.judge {
            // It comes late: others have gone on with what is left.
            if !state.is_kept(*commit) {
                changes.for_each(|(gfid, _)| state.losses.mark(gfid, told.next_open()));
            }
            return false;
        }
        state.changes.extend(changes.map(|(gfid, kind)| Entry { commit: *commit, gfid, kind }));
        let is_full = state.changes.len() >= CHANGES_MAX;
        is_full && !std::mem::replace(&mut state.is_full, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::namespace::LeaseMode;
    use std::pin::pin;
    use std::task::Context;

    const FILE: Gfid = Gfid::of_inode(7);
    const OTHER: Gfid = Gfid::of_inode(8);

    fn poll_once<T>(future: impl Future<Output = T>) -> Option<T> {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    fn commit(start: u64, number: u64) -> Commit {
        Commit { start, number }
    }

    fn told() -> Told {
        Told::new(&LockTable::default())
    }

    fn setattr(gfid: Gfid, set: SetAttr) -> NamespaceOp {
        NamespaceOp::SetAttr { gfid, set, sync: false }
    }

    fn sized(gfid: Gfid) -> NamespaceOp {
        setattr(gfid, SetAttr { size: Some(5), ..SetAttr::default() })
    }

    fn tell(told: &Told, op: &NamespaceOp, commit: Commit, durable: Commit) {
        let answered =
            Answered { reply: Reply::Done, covered: false, dirs: Vec::new(), commit, durable };
        assert!(!Told::begin(op).end(told, &Ok(answered)), "it is not full");
    }

    #[test]
    fn what_was_committed_behind_what_is_kept_is_lost() {
        let told = told();
        let chmod = setattr(OTHER, SetAttr { mode: Some(0o600), ..SetAttr::default() });
        let unlink = NamespaceOp::Unlink { parent: Gfid::ROOT, name: b"f".to_vec(), gives: None };
        tell(&told, &sized(FILE), commit(3, 10), commit(3, 9));
        tell(&told, &chmod, commit(3, 11), commit(3, 9));
        tell(&told, &unlink, commit(3, 12), commit(3, 9));
        tell(
            &told,
            &NamespaceOp::Open { gfid: FILE, lease: LeaseMode::Read },
            commit(3, 13),
            commit(3, 9),
        );
        assert_eq!(told.since(), 3);
        let lost = told.losses(&[commit(3, 10), commit(4, 1)]);
        assert_eq!(
            lost,
            [
                (OTHER, ChangeKind::Rest),
                (Gfid::ROOT, ChangeKind::Rest),
                (FILE, ChangeKind::Adopted)
            ]
        );
        assert_eq!(told.losses(&[commit(3, 10), commit(4, 1)]), [], "it is told once");
    }

    #[test]
    fn what_is_on_the_disk_is_forgotten() {
        let told = told();
        tell(&told, &sized(FILE), commit(3, 10), commit(3, 9));
        tell(&told, &NamespaceOp::StatFs, commit(3, 10), commit(3, 10));
        assert!(told.state.lock().changes.is_empty());
        tell(&told, &sized(OTHER), commit(3, 10), commit(3, 10));
        assert_eq!(told.losses(&[commit(4, 1)]), [], "it was synced with its answer");
    }

    #[test]
    fn a_start_of_which_nothing_is_left_loses_all_that_it_was_told() {
        let told = told();
        tell(&told, &sized(FILE), commit(3, 10), commit(3, 9));
        assert_eq!(told.losses(&[commit(4, 1)]), [(FILE, ChangeKind::Attributes)]);
    }

    #[test]
    fn what_a_later_start_was_told_waits_for_its_own_end() {
        let told = told();
        tell(&told, &sized(FILE), commit(3, 10), commit(3, 9));
        tell(&told, &sized(OTHER), commit(4, 2), commit(4, 1));
        assert_eq!(told.losses(&[commit(3, 10), commit(4, 2)]), []);
        assert_eq!(told.losses(&[commit(4, 1), commit(5, 1)]), [(OTHER, ChangeKind::Attributes)]);
    }

    #[test]
    fn an_fsync_waits_for_what_a_restart_has_lost() {
        let told = told();
        assert_eq!(poll_once(told.settled()), Some(0));
        tell(&told, &sized(FILE), commit(3, 10), commit(3, 9));
        assert_eq!(poll_once(told.settled()), Some(3), "nothing was told to another");
        tell(&told, &NamespaceOp::Sync, commit(4, 1), commit(4, 1));
        assert!(!told.is_settled(3));
        assert_eq!(poll_once(told.settled()), None);
        assert_eq!(told.losses(&[commit(3, 9), commit(4, 1)]), [(FILE, ChangeKind::Attributes)]);
        assert_eq!(poll_once(told.settled()), None, "they are not dealt with yet");
        told.settle(4);
        assert_eq!(poll_once(told.settled()), Some(4));
        assert!(told.is_settled(4));
    }

    #[test]
    fn an_answer_that_comes_after_its_service_has_gone_is_judged_at_once() {
        let told = told();
        assert_eq!(told.since(), u64::MAX);
        tell(&told, &NamespaceOp::StatFs, commit(3, 10), commit(3, 9));
        assert_eq!(told.since(), 3, "what else that start was told may not be heard of yet");
        assert_eq!(told.losses(&[commit(3, 11), commit(4, 1)]), []);
        tell(&told, &sized(FILE), commit(3, 11), commit(3, 9));
        tell(&told, &sized(OTHER), commit(3, 12), commit(3, 9));
        assert!(!told.is_lost(FILE) && told.is_lost(OTHER));
        assert!(told.state.lock().changes.is_empty());
    }

    #[test]
    fn the_service_is_to_sync_when_there_is_too_much_to_remember() {
        let told = told();
        let end = |number: usize| {
            let (commit, durable) = (commit(3, number as u64 + 1), commit(3, 0));
            let answered =
                Answered { reply: Reply::Done, covered: false, dirs: Vec::new(), commit, durable };
            Told::begin(&sized(FILE)).end(&told, &Ok(answered))
        };
        assert_eq!(
            (0..2 * CHANGES_MAX).filter(|number| end(*number)).count(),
            1,
            "it is asked once"
        );
    }
}
