//! What the metadata service was told and forgets if its machine loses its power, as it has not been brought to the disk yet.
//!
//! Contract: no I/O, no clock, for any thread. Every request goes through [`Told::begin`] and [`Telling::end`]. Between the first answer of
//! a service that was started anew and [`Told::settle`] nobody knows what an fsync would vouch for: it waits in [`Told::settled`], and is
//! worth what it says only if [`Told::is_settled`] holds at its end.

use super::Result;
use crate::session::Answered;
use messenger::sync::{ContentionMutex, LockTable};
use protocol::Gfid;
use protocol::namespace::{Commit, NamespaceOp, Reply, SetAttr};
use std::collections::{HashSet, VecDeque};
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// What the service was told, or told us.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// Size and times of a file, which who holds its write lease can tell again.
    Attributes,
    /// The same, but the service told them.
    Adopted,
    /// Anything else of a file or directory: that it was made, its names, permissions, extended attributes.
    Rest,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Change {
    commit: Commit,
    gfid: Gfid,
    what: What,
}

#[derive(Default)]
struct State {
    /// The start of the service whose losses are known.
    settled: u64,
    /// The last start that was heard of; 0: none was.
    heard: u64,
    /// What may not be on the disk: of the last seconds.
    changes: VecDeque<Change>,
    /// Of what something is lost that cannot be told again, until somebody learns of it.
    lost: HashSet<Gfid>,
    waiters: Vec<Waker>,
}

/// See the module.
pub(super) struct Told {
    state: ContentionMutex<State>,
}

/// A request under way: what its answer makes true.
#[derive(Debug)]
pub(super) struct Telling {
    file: Option<(Gfid, What)>,
    dirs: [Option<Gfid>; 2],
    makes: bool,
}

impl Told {
    pub(super) fn new(locks: &LockTable) -> Self {
        Self { state: ContentionMutex::new(locks, "fs told", State::default()) }
    }

    /// A request is about to be sent.
    pub(super) fn begin(op: &NamespaceOp) -> Telling {
        let file = match op {
            NamespaceOp::SetAttr { gfid, set, .. } => {
                let rest = SetAttr { size: None, mtime: None, ctime: None, times_follow: false, ..*set };
                let what = if rest == SetAttr::default() { What::Attributes } else { What::Rest };
                Some((*gfid, what))
            }
            NamespaceOp::SetXattr { gfid, .. } | NamespaceOp::RemoveXattr { gfid, .. } => Some((*gfid, What::Rest)),
            NamespaceOp::Open { gfid, .. } => Some((*gfid, What::Adopted)),
            _ => None,
        };
        let mut dirs = op.changed_dirs();
        let dirs = [dirs.next(), dirs.next()];
        Telling { file, dirs, makes: matches!(op, NamespaceOp::Create { .. }) }
    }

    /// For `NamespaceOp::Reclaim`: from which start of the service on it counts what is left.
    pub(super) fn since(&self) -> u64 {
        self.state.lock().changes.iter().map(|change| change.commit.start).min().unwrap_or(u64::MAX)
    }

    /// So much is left; the last commit is of the start that was asked. Gives what is lost.
    pub(super) fn settle(&self, kept: &[Commit]) -> Vec<(Gfid, What)> {
        let mut state = self.state.lock();
        let Some(now) = kept.last().map(|last| last.start).filter(|now| *now >= state.settled) else {
            return Vec::new();
        };
        let is_kept = |commit: Commit| {
            commit.start >= now
                || kept.iter().any(|kept| kept.start == commit.start && commit.number <= kept.number)
        };
        let mut lost = Vec::new();
        state.changes.retain(|change| {
            if !is_kept(change.commit) {
                lost.push((change.gfid, change.what));
            }
            // What is left of former starts was brought to the disk by this one.
            change.commit.start >= now
        });
        state.settled = now;
        state.heard = state.heard.max(now);
        let waiters = std::mem::take(&mut state.waiters);
        drop(state);
        waiters.into_iter().for_each(Waker::wake);
        lost
    }

    /// Remembers that something of the file or directory is lost, for the next who wants to know it on the disk.
    pub(super) fn mark_lost(&self, gfid: Gfid) {
        self.state.lock().lost.insert(gfid);
    }

    /// Was something of it lost? True once.
    pub(super) fn take_lost(&self, gfid: Gfid) -> bool {
        self.state.lock().lost.remove(&gfid)
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

impl Telling {
    /// It was answered, well or not.
    pub(super) fn end(self, told: &Told, answer: &Result<Answered>) {
        let Ok(Answered { reply, commit, durable, .. }) = answer else { return };
        let mut state = told.state.lock();
        if state.heard == 0 {
            state.settled = commit.start;
        }
        state.heard = state.heard.max(commit.start);
        while state.changes.front().is_some_and(|first| first.commit <= *durable && first.commit.start == durable.start) {
            state.changes.pop_front();
        }
        if commit <= durable {
            return;
        }
        let made = match reply {
            Reply::Attr(attr) | Reply::Opened { attr, .. } if self.makes => Some((attr.gfid, What::Rest)),
            _ => None,
        };
        let dirs = self.dirs.into_iter().flatten().map(|dir| (dir, What::Rest));
        let changes = self.file.into_iter().chain(made).chain(dirs);
        state.changes.extend(changes.map(|(gfid, what)| Change { commit: *commit, gfid, what }));
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
        let answered = Answered { reply: Reply::Done, dirs: Vec::new(), commit, durable };
        Told::begin(op).end(told, &Ok(answered));
    }

    #[test]
    fn what_was_committed_behind_what_is_kept_is_lost() {
        let told = told();
        let chmod = setattr(OTHER, SetAttr { mode: Some(0o600), ..SetAttr::default() });
        let unlink = NamespaceOp::Unlink { parent: Gfid::ROOT, name: b"f".to_vec(), gives: None };
        tell(&told, &sized(FILE), commit(3, 10), commit(3, 9));
        tell(&told, &chmod, commit(3, 11), commit(3, 9));
        tell(&told, &unlink, commit(3, 12), commit(3, 9));
        tell(&told, &NamespaceOp::Open { gfid: FILE, lease: LeaseMode::Read }, commit(3, 13), commit(3, 9));
        assert_eq!(told.since(), 3);
        let lost = told.settle(&[commit(3, 10), commit(4, 1)]);
        assert_eq!(lost, [(OTHER, What::Rest), (Gfid::ROOT, What::Rest), (FILE, What::Adopted)]);
        assert_eq!(told.settle(&[commit(3, 10), commit(4, 1)]), [], "it is told once");
    }

    #[test]
    fn what_is_on_the_disk_is_forgotten() {
        let told = told();
        tell(&told, &sized(FILE), commit(3, 10), commit(3, 9));
        tell(&told, &NamespaceOp::StatFs, commit(3, 10), commit(3, 10));
        assert_eq!(told.since(), u64::MAX);
        tell(&told, &sized(OTHER), commit(3, 10), commit(3, 10));
        assert_eq!(told.settle(&[commit(4, 1)]), [], "it was synced with its answer");
    }

    #[test]
    fn a_start_of_which_nothing_is_left_loses_all_that_it_was_told() {
        let told = told();
        tell(&told, &sized(FILE), commit(3, 10), commit(3, 9));
        assert_eq!(told.settle(&[commit(4, 1)]), [(FILE, What::Attributes)]);
    }

    #[test]
    fn what_a_later_start_was_told_waits_for_its_own_end() {
        let told = told();
        tell(&told, &sized(FILE), commit(3, 10), commit(3, 9));
        tell(&told, &sized(OTHER), commit(4, 2), commit(4, 1));
        assert_eq!(told.settle(&[commit(3, 10), commit(4, 2)]), []);
        assert_eq!(told.settle(&[commit(4, 1), commit(5, 1)]), [(OTHER, What::Attributes)]);
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
        assert_eq!(told.settle(&[commit(3, 9), commit(4, 1)]), [(FILE, What::Attributes)]);
        assert_eq!(poll_once(told.settled()), Some(4));
        assert!(told.is_settled(4));
    }

    #[test]
    fn a_loss_is_told_once() {
        let told = told();
        told.mark_lost(FILE);
        assert!(!told.take_lost(OTHER));
        assert!(told.take_lost(FILE) && !told.take_lost(FILE));
    }
}
