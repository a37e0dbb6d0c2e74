//! Access times: which reads move one, and telling the metadata service.
//!
//! Contract: no I/O; the lock is held for state changes only. A read waits for nobody on account of
//! its access time: what moved is shown by this mount at once and told with others of its kind, by
//! one request for up to [`ACCESSED_MAX`] files, [`TELL_SWEEPS`] sweeps later at the latest if the
//! service answers. A user's own change of an access time comes after what was read before it, so
//! [`Atimes::forget`] waits for a request under way. What is not told when the client dies is lost.

use super::{Backend, LocalFs, own_caller};
use messenger::sync::{ContentionMutex, LockTable};
use protocol::Gfid;
use protocol::namespace::{ACCESSED_MAX, Attr, NamespaceOp, Timestamp};
use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed};
use std::task::{Poll, Waker};

/// Sweeps for which an access time waits for others to be told with: 5 s where a sweep comes every
/// second. Other mounts see it so much later.
const TELL_SWEEPS: u32 = 5;
/// Access times that are not told yet, at most: 2 MiB. Reads of further files move none until these
/// are told.
const UNTOLD_MAX: usize = 1 << 16;
/// With `relatime`, an access time moves at least so often, in seconds.
const DAY: i64 = 24 * 60 * 60;

/// Which reads move an access time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AtimeRule {
    /// None.
    #[default]
    Never,
    /// The first after a change of content or attributes, and after a day, as `relatime` has it.
    Relative,
    /// Every one.
    Strict,
}

/// The rules of a mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AtimeRules {
    /// Of what is no directory.
    pub files: AtimeRule,
    /// Of directories.
    pub directories: AtimeRule,
}

/// The times by which `relatime` goes: access, modification, change.
pub(super) type Times = (Timestamp, Timestamp, Timestamp);

impl AtimeRule {
    const ALL: [Self; 3] = [Self::Never, Self::Relative, Self::Strict];

    /// Does a read at `now` move the access time?
    pub(super) fn moves(self, (atime, mtime, ctime): Times, now: Timestamp) -> bool {
        let is_due = match self {
            Self::Never => false,
            Self::Relative => {
                atime <= mtime || atime <= ctime || now.secs.saturating_sub(atime.secs) >= DAY
            }
            Self::Strict => true,
        };
        is_due && atime < now
    }
}

impl AtimeRules {
    /// The same for files and directories.
    pub const fn all(rule: AtimeRule) -> Self {
        Self { files: rule, directories: rule }
    }

    fn encode(self) -> u8 {
        (self.files as u8) << 4 | self.directories as u8
    }

    fn decode(code: u8) -> Self {
        let rule = |code: u8| AtimeRule::ALL.get(usize::from(code)).copied().unwrap_or_default();
        Self { files: rule(code >> 4), directories: rule(code & 0xf) }
    }
}

/// See the module.
pub(super) struct Atimes {
    rules: AtomicU8,
    /// Of access times that are not told.
    count: AtomicUsize,
    state: ContentionMutex<State>,
}

#[derive(Default)]
struct State {
    untold: HashMap<Gfid, Timestamp>,
    /// What the request under way tells.
    telling: Vec<(Gfid, Timestamp)>,
    /// Sweeps since there is something to tell.
    sweeps: u32,
    waiters: Vec<Waker>,
}

/// Access times on their way to the service; dropped without [`Telling::told`], they are told
/// again.
struct Telling<'a> {
    atimes: &'a Atimes,
    is_told: bool,
}

impl Atimes {
    pub(super) fn new(locks: &LockTable, rules: AtimeRules) -> Self {
        Self {
            rules: AtomicU8::new(rules.encode()),
            count: AtomicUsize::new(0),
            state: ContentionMutex::new(locks, "fs access times", State::default()),
        }
    }

    pub(super) fn rules(&self) -> AtimeRules {
        AtimeRules::decode(self.rules.load(Relaxed))
    }

    pub(super) fn set_rules(&self, rules: AtimeRules) {
        self.rules.store(rules.encode(), Relaxed);
    }

    /// A file or directory with these times was read: gives its access time. That may be later than
    /// the service has told.
    pub(super) fn read(
        &self,
        gfid: Gfid,
        rule: AtimeRule,
        (atime, mtime, ctime): Times,
        now: Timestamp,
    ) -> Timestamp {
        let mut state = self.state.lock();
        let atime = state.untold.get(&gfid).map_or(atime, |untold| atime.max(*untold));
        let has_room = state.untold.len() < UNTOLD_MAX || state.untold.contains_key(&gfid);
        if !has_room || !rule.moves((atime, mtime, ctime), now) {
            return atime;
        }
        state.untold.insert(gfid, now);
        self.count.store(state.untold.len(), Relaxed);
        now
    }

    /// Puts what the service was not told into attributes that it told.
    pub(super) fn put_into(&self, attr: &mut Attr) {
        if self.count.load(Relaxed) > 0
            && let Some(time) = self.state.lock().untold.get(&attr.gfid)
        {
            attr.atime = attr.atime.max(*time);
        }
    }

    /// Is there one of this file to be told?
    pub(super) fn is_untold(&self, gfid: Gfid) -> bool {
        self.count.load(Relaxed) > 0 && self.state.lock().untold.contains_key(&gfid)
    }

    /// A user is about to set the access time: what was read before does not count any more.
    pub(super) async fn forget(&self, gfid: Gfid) {
        poll_fn(|cx| {
            let mut state = self.state.lock();
            state.untold.remove(&gfid);
            self.count.store(state.untold.len(), Relaxed);
            if !state.telling.iter().any(|(told, _)| *told == gfid) {
                return Poll::Ready(());
            }
            if !state.waiters.iter().any(|waker| waker.will_wake(cx.waker())) {
                state.waiters.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    /// A sweep passes. True if it is time to tell.
    pub(super) fn sweep_passes(&self) -> bool {
        if self.count.load(Relaxed) == 0 {
            return false;
        }
        let mut state = self.state.lock();
        state.sweeps += 1;
        let is_due = state.sweeps >= TELL_SWEEPS || state.untold.len() >= ACCESSED_MAX;
        is_due && state.telling.is_empty()
    }

    /// What is to be told now, of at most [`ACCESSED_MAX`] files; `None` if that is nothing, or a
    /// request is under way.
    fn tell(&self) -> Option<(Vec<(Gfid, Timestamp)>, Telling<'_>)> {
        let mut state = self.state.lock();
        if !state.telling.is_empty() || state.untold.is_empty() {
            return None;
        }
        let some = state.untold.iter().take(ACCESSED_MAX);
        state.telling = some.map(|(gfid, time)| (*gfid, *time)).collect();
        state.sweeps = 0;
        Some((state.telling.clone(), Telling { atimes: self, is_told: false }))
    }
}

impl Telling<'_> {
    /// The service has them.
    fn told(mut self) {
        self.is_told = true;
    }
}

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        let waiters = {
            let mut state = self.atimes.state.lock();
            for (gfid, time) in std::mem::take(&mut state.telling) {
                // One that moved meanwhile is to be told again.
                if self.is_told && state.untold.get(&gfid) == Some(&time) {
                    state.untold.remove(&gfid);
                }
            }
            self.atimes.count.store(state.untold.len(), Relaxed);
            std::mem::take(&mut state.waiters)
        };
        waiters.into_iter().for_each(Waker::wake);
    }
}

impl<B: Backend> LocalFs<B> {
    /// The content of a file was read, by a program that wants that seen. True if its access time
    /// moved.
    pub fn accessed(&self, gfid: Gfid, now: Timestamp) -> bool {
        let rule = self.shared.atimes.rules().files;
        if rule == AtimeRule::Never {
            return false;
        }
        let Some(inode) = self.shared.table.get(gfid) else { return false };
        let times = inode.with(|state| state.times());
        if !rule.moves(times, now) {
            return false;
        }
        let atime = self.shared.atimes.read(gfid, rule, times, now);
        inode.with(|state| state.read_at(atime));
        atime == now
    }

    /// A file was opened to be read, of which the kernel may have pages that it does not ask for:
    /// that counts as reading it. The kernel learns that its attributes changed.
    pub async fn opened_to_read(&self, gfid: Gfid, now: Timestamp) {
        if self.accessed(gfid, now) {
            self.shared.kernel.invalidate(gfid, super::ATTRIBUTES).await;
        }
    }

    /// Tells the service which access times moved.
    pub(super) async fn tell_atimes(&self) {
        while let Some((times, telling)) = self.shared.atimes.tell() {
            match self.ask(NamespaceOp::Accessed { times }, own_caller()).await {
                Ok(_) => telling.told(),
                Err(error) => return tracing::debug!(%error, "cannot tell access times"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i64) -> Timestamp {
        Timestamp { secs, nanos: 0 }
    }

    fn atimes() -> Atimes {
        Atimes::new(&LockTable::default(), AtimeRules::all(AtimeRule::Relative))
    }

    fn read(atimes: &Atimes, gfid: Gfid, now: i64) -> Timestamp {
        atimes.read(gfid, AtimeRule::Strict, (at(1), at(1), at(1)), at(now))
    }

    #[test]
    fn what_the_service_does_not_know_yet_counts() {
        let atimes = atimes();
        let times = (at(1), at(3), at(3));
        let read = |now| atimes.read(Gfid::ROOT, AtimeRule::Relative, times, at(now));
        assert_eq!((read(5), read(6)), (at(5), at(5)));
    }

    #[test]
    fn relatime_moves_after_a_change_and_after_a_day() {
        let moves = |times: (i64, i64, i64), now| {
            let times = (at(times.0), at(times.1), at(times.2));
            AtimeRule::Relative.moves(times, at(now))
        };
        assert!(moves((10, 10, 5), 11), "never read since it was written");
        assert!(moves((10, 5, 10), 11), "nor since its attributes changed");
        assert!(!moves((10, 9, 9), 10 + DAY - 1));
        assert!(moves((10, 9, 9), 10 + DAY));
        assert!(!moves((10, 12, 12), 9), "a clock that is behind moves nothing back");
        assert!(AtimeRule::Strict.moves((at(10), at(9), at(9)), at(11)));
        assert!(!AtimeRule::Never.moves((at(10), at(20), at(20)), at(21)));
    }

    #[test]
    fn rules_survive_their_code() {
        for files in AtimeRule::ALL {
            for directories in AtimeRule::ALL {
                let rules = AtimeRules { files, directories };
                assert_eq!(AtimeRules::decode(rules.encode()), rules);
            }
        }
    }

    #[test]
    fn what_moved_is_told_in_batches_and_what_moved_meanwhile_again() {
        let atimes = atimes();
        for number in 0..ACCESSED_MAX as u64 + 1 {
            read(&atimes, Gfid::of_inode(number + 10), 5);
        }
        assert!(atimes.sweep_passes(), "a batch is full");
        let (times, telling) = atimes.tell().expect("there is something");
        assert_eq!(times.len(), ACCESSED_MAX);
        assert!(atimes.tell().is_none(), "one at a time");
        let (again, _) = times[0];
        read(&atimes, again, 6);
        telling.told();
        let (mut rest, telling) = atimes.tell().expect("two are left");
        rest.sort_unstable_by_key(|(_, time)| *time);
        assert_eq!((rest.len(), rest[1]), (2, (again, at(6))));
        drop(telling);
        assert!(atimes.is_untold(again), "it did not come through");
        atimes.tell().expect("both are told again").1.told();
        assert!(atimes.tell().is_none() && !atimes.sweep_passes());
    }

    #[test]
    fn few_wait_some_sweeps_for_others() {
        let atimes = atimes();
        read(&atimes, Gfid::ROOT, 5);
        let waited = (1..).find(|_| atimes.sweep_passes());
        assert_eq!(waited, Some(TELL_SWEEPS));
    }

    #[test]
    fn a_time_that_is_set_waits_for_what_is_being_told() {
        use std::pin::pin;
        use std::task::Context;
        let atimes = atimes();
        read(&atimes, Gfid::ROOT, 5);
        let (_, telling) = atimes.tell().expect("there is something");
        let mut set = pin!(atimes.forget(Gfid::ROOT));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(set.as_mut().poll(&mut cx).is_pending());
        telling.told();
        assert!(set.as_mut().poll(&mut cx).is_ready());
        assert!(!atimes.is_untold(Gfid::ROOT));
    }

    #[test]
    fn files_beyond_the_bound_are_passed_over() {
        let atimes = atimes();
        for number in 0..UNTOLD_MAX as u64 + 5 {
            read(&atimes, Gfid::of_inode(number + 10), 5);
        }
        assert_eq!(atimes.count.load(Relaxed), UNTOLD_MAX);
    }
}
