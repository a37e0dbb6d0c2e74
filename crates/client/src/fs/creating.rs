//! Files being made, of which the service knows already and this mount does not.
//!
//! Contract: a recall of a file that is not known here is answered at once: this mount has nothing
//! of it. If it is one that is being made, the answer to its creation is still on its way, and
//! brings a lease that has been given back ([`Creation::made`]). One that was asked for by a
//! session that died meanwhile brings nothing at all.

use messenger::sync::{ContentionMutex, LockTable};
use protocol::Gfid;
use protocol::namespace::Grant;
use std::collections::{BTreeSet, VecDeque};

/// What the answer to a creation brings, as far as it still counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Brought {
    /// A lease, and the file is open.
    Lease(Grant),
    /// The file is open.
    Open,
    /// Nothing: the session that asked is dead.
    Nothing,
}

#[derive(Default)]
struct State {
    last: u64,
    under_way: BTreeSet<u64>,
    /// Files of which a recall was answered while they were not known, each with the last creation
    /// that had begun.
    disowned: VecDeque<(u64, Gfid)>,
    /// Sessions that died.
    deaths: u64,
}

/// The files being made.
pub(super) struct Creations {
    state: ContentionMutex<State>,
}

/// A creation under way, until this is dropped.
pub(super) struct Creation<'a> {
    of: &'a Creations,
    number: u64,
    deaths: u64,
}

impl Creations {
    pub fn new(locks: &LockTable) -> Self {
        Self { state: ContentionMutex::new(locks, "fs creations", State::default()) }
    }

    /// A file is about to be made, at once: the session of now is asked.
    pub fn begin(&self) -> Creation<'_> {
        let mut state = self.state.lock();
        state.last += 1;
        let number = state.last;
        state.under_way.insert(number);
        Creation { of: self, number, deaths: state.deaths }
    }

    /// Looks for a file that the service says this mount has. If it is not there, the service is to
    /// be told so.
    pub fn find<T>(&self, gfid: Gfid, look: impl FnOnce() -> Option<T>) -> Option<T> {
        let mut state = self.state.lock();
        let found = look();
        if found.is_none() && !state.under_way.is_empty() {
            let last = state.last;
            state.disowned.push_back((last, gfid));
        }
        found
    }

    /// The session is dead.
    pub fn fenced(&self) {
        self.state.lock().deaths += 1;
    }
}

impl Creation<'_> {
    /// The service has answered. `know` makes the file known here, with what of the answer still
    /// counts; whoever looks for it finds it then.
    pub fn made<R>(self, gfid: Gfid, grant: Grant, know: impl FnOnce(Brought) -> R) -> R {
        let state = self.of.state.lock();
        let brought = if state.deaths != self.deaths {
            Brought::Nothing
        } else if state.disowned.iter().any(|(_, disowned)| *disowned == gfid) {
            Brought::Open
        } else {
            Brought::Lease(grant)
        };
        let known = know(brought);
        drop(state);
        known
    }
}

impl Drop for Creation<'_> {
    fn drop(&mut self) {
        let mut state = self.of.state.lock();
        state.under_way.remove(&self.number);
        let first = state.under_way.first().copied().unwrap_or(u64::MAX);
        while state.disowned.front().is_some_and(|(last, _)| *last < first) {
            state.disowned.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::Epoch;
    use protocol::namespace::LeaseMode;

    const FILE: Gfid = Gfid::of_inode(7);
    const OTHER: Gfid = Gfid::of_inode(8);
    const GRANT: Grant = Grant { mode: LeaseMode::Write, token: 3, epoch: Epoch::new(1) };

    fn creations() -> Creations {
        Creations::new(&LockTable::default())
    }

    fn disowned(creations: &Creations) -> usize {
        creations.state.lock().disowned.len()
    }

    #[test]
    fn a_lease_counts_if_no_recall_of_the_file_was_answered() {
        let creations = creations();
        let (file, other) = (creations.begin(), creations.begin());
        assert_eq!(creations.find(FILE, || None::<()>), None);
        assert_eq!(other.made(OTHER, GRANT, |brought| brought), Brought::Lease(GRANT));
        assert_eq!(file.made(FILE, GRANT, |brought| brought), Brought::Open);
        assert_eq!(disowned(&creations), 0, "nobody waits for it");
        assert_eq!(creations.begin().made(FILE, GRANT, |brought| brought), Brought::Lease(GRANT));
    }

    #[test]
    fn a_file_that_is_known_is_found() {
        let creations = creations();
        let _under_way = creations.begin();
        assert_eq!(creations.find(FILE, || Some(5)), Some(5));
        assert_eq!(disowned(&creations), 0);
    }

    #[test]
    fn a_busy_mount_does_not_collect_what_was_recalled() {
        let creations = creations();
        let mut before = creations.begin();
        for _ in 0..100 {
            assert_eq!(creations.find(FILE, || None::<()>), None);
            before = creations.begin();
        }
        assert!(disowned(&creations) <= 1);
        drop(before);
        assert_eq!(creations.find(FILE, || None::<()>), None);
        assert_eq!(disowned(&creations), 0, "none is being made");
    }

    #[test]
    fn a_dead_sessions_answer_brings_nothing() {
        let creations = creations();
        let file = creations.begin();
        creations.fenced();
        assert_eq!(file.made(FILE, GRANT, |brought| brought), Brought::Nothing);
        assert_eq!(creations.begin().made(FILE, GRANT, |brought| brought), Brought::Lease(GRANT));
    }
}
