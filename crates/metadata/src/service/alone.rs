//! Which mount may cache names and attributes without asking: the only one there is.
//!
//! Contract: pure. The only mount is promised, with every answer, that it stays the only one for a
//! while, counted from when it asked. Another may arrive only when that time is over; while one
//! waits to arrive, no promise is made anew, however busy the only mount is. Several mounts have
//! leases on single directories and files ([`crate::lease::names`]), which their kernels do not
//! know of: a kernel that is told to forget a name takes the lock of the directory, which a request
//! under way holds; two mounts that change one directory would wait for each other until a
//! time-out.

use protocol::SessionId;
use std::collections::BTreeSet;
use std::time::Duration;

/// Beyond what was promised, before another mount may arrive: a kernel counts from when it looks at
/// an answer.
const SLACK: Duration = Duration::from_millis(250);
/// After a mount was told to come again no promise is made for so long: some times the pause after
/// which it does.
const AWAITED_FOR: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub(super) struct Alone {
    promise: Duration,
    mounts: BTreeSet<SessionId>,
    /// See [`Alone::term`].
    term: u64,
    /// To whom the last promise was made (`None`: before a restart, to somebody), and until when it
    /// counts here.
    promised: Option<(Option<SessionId>, Duration)>,
    /// Until then nothing is promised: another mount wants to arrive.
    awaited_until: Duration,
}

impl Alone {
    /// No mount yet. After a restart (`restarted`), somebody may have been promised something.
    /// Terms begin at `term`.
    pub fn new(promise: Duration, restarted: bool, term: u64) -> Self {
        let promised = restarted.then_some((None, promise + SLACK));
        Self { promise, mounts: BTreeSet::new(), term, promised, awaited_until: Duration::ZERO }
    }

    /// Counts mounts that arrived and other disturbances: what a mount was told while it was the
    /// only one is true as long as this is the same.
    pub fn term(&self) -> u64 {
        self.term
    }

    /// Names or attributes have changed without a mount's request.
    pub fn disturb(&mut self) {
        self.term += 1;
    }

    /// May this session be a mount from now on? If not, it is to ask again soon, and the way will
    /// be free.
    pub fn admits(&mut self, now: Duration, session: SessionId) -> bool {
        let admitted = self.mounts.contains(&session)
            || self.promised.is_none_or(|(to, until)| to == Some(session) || now >= until);
        if !admitted {
            self.awaited_until = now + AWAITED_FOR;
        }
        admitted
    }

    /// The session is a mount.
    pub fn join(&mut self, session: SessionId) {
        if self.mounts.insert(session) {
            self.term += 1;
            // If one more waits, it asks again.
            self.awaited_until = Duration::ZERO;
        }
    }

    /// The session is dead or closed. Its kernel may still count on the last promise.
    pub fn leave(&mut self, session: SessionId) {
        self.mounts.remove(&session);
    }

    /// Is the session a mount, and not the only one?
    pub fn is_one_of_several(&self, session: SessionId) -> bool {
        self.mounts.len() > 1 && self.mounts.contains(&session)
    }

    /// For how long the session, which is being answered, may count on being alone from when it
    /// asked.
    pub fn promise(&mut self, now: Duration, session: SessionId) -> Duration {
        let only = self.mounts.len() == 1 && self.mounts.contains(&session);
        let free = self.promised.is_none_or(|(to, until)| to == Some(session) || now >= until);
        if !only || !free || now < self.awaited_until {
            return Duration::ZERO;
        }
        self.promised = Some((Some(session), now + self.promise + SLACK));
        self.promise
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SessionId = SessionId::new(1);
    const B: SessionId = SessionId::new(2);
    const PROMISE: Duration = Duration::from_secs(1);

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn another_mount_arrives_when_the_promise_is_over() {
        let mut alone = Alone::new(PROMISE, false, 7);
        assert!(alone.admits(at(0), A));
        assert_eq!(alone.promise(at(0), A), Duration::ZERO, "not a mount");
        alone.join(A);
        assert_eq!(alone.promise(at(0), A), PROMISE);
        assert_eq!(alone.promise(at(500), A), PROMISE);
        alone.join(A);
        assert_eq!(alone.term(), 8, "the same mount");
        assert!(!alone.admits(at(1700), B));
        assert_eq!(
            alone.promise(at(1700), B),
            Duration::ZERO,
            "whoever is no mount disturbs nobody"
        );
        assert!(alone.admits(at(1750), B));
        alone.join(B);
        assert_eq!(
            (alone.promise(at(1800), A), alone.promise(at(1800), B)),
            (Duration::ZERO, Duration::ZERO)
        );
        alone.leave(A);
        assert_eq!(alone.promise(at(1900), B), PROMISE);
        assert_eq!(alone.term(), 9, "what A was told is not true any more, even if A comes back");
        assert!(!alone.admits(at(2000), A), "it is another's now");
    }

    #[test]
    fn a_busy_mount_keeps_nobody_out() {
        let mut alone = Alone::new(PROMISE, false, 7);
        alone.join(A);
        alone.promise(at(0), A);
        // A is answered all the time, and B asks as often as clients do.
        let arrived = (1..200).map(|turn| at(turn * 10)).find(|&now| {
            alone.promise(now, A);
            now.as_millis().is_multiple_of(200) && alone.admits(now, B)
        });
        assert_eq!(arrived, Some(at(1600)), "what was promised at 200 ms is over at 1450 ms");
        alone.join(B);
        assert_eq!(alone.promise(at(1700), A), Duration::ZERO);
    }

    #[test]
    fn whoever_asked_to_arrive_and_is_gone_is_not_waited_for() {
        let mut alone = Alone::new(PROMISE, false, 7);
        alone.join(A);
        alone.promise(at(0), A);
        assert!(!alone.admits(at(100), B));
        assert_eq!(alone.promise(at(1099), A), Duration::ZERO);
        assert_eq!(alone.promise(at(1100), A), PROMISE);
    }

    #[test]
    fn a_promise_outlives_the_session_and_the_service() {
        let mut alone = Alone::new(PROMISE, false, 7);
        alone.join(A);
        alone.promise(at(0), A);
        alone.leave(A);
        assert!(!alone.admits(at(1000), B) && alone.admits(at(1250), B));
        let mut restarted = Alone::new(PROMISE, true, 7);
        restarted.join(A);
        assert_eq!(restarted.promise(at(100), A), Duration::ZERO);
        assert!(!restarted.admits(at(1000), B) && restarted.admits(at(1250), B));
        assert_eq!(restarted.promise(at(1250), A), Duration::ZERO, "B waits");
        assert_eq!(restarted.promise(at(2000), A), PROMISE);
    }
}
