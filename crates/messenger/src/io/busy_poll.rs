//! Whether a worker that has nothing to do goes on looking for a moment before it sleeps.
//!
//! Contract: no clock. The worker says how long each wait took.
//!
//! To sleep and to be woken costs several system calls and turns of the scheduler, and where the
//! CPU sleeps meanwhile its own waking: tens of microseconds on a virtual machine, about as long as
//! a request to another process of this host takes. So a worker whose waits end within that time
//! had better not sleep. Linux does the same for sockets (`net.core.busy_poll`), always; here only
//! while it pays.

use std::time::Duration;

/// Of 256: how much the last wait counts for.
const WEIGHT: u32 = 32;
const ALL: u32 = 256;

/// See the module.
#[derive(Debug)]
pub(crate) struct BusyPoll {
    limit: Duration,
    /// Share of the last waits that were short, of [`ALL`].
    short: u32,
}

impl BusyPoll {
    /// That looks for so long at most; zero: never.
    pub(crate) fn new(limit: Duration) -> BusyPoll {
        BusyPoll { limit, short: 0 }
    }

    /// For how long at most.
    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// Is it worth it in the next wait? If half of the last ones were short.
    pub(crate) fn is_worth_it(&self) -> bool {
        self.short >= ALL / 2
    }

    /// A wait has ended. One that was slept through `at_once` took longer by waking up.
    pub(crate) fn waited(&mut self, took: Duration, at_once: bool) {
        let short_max = if at_once { self.limit * 2 } else { self.limit };
        self.short -= self.short * WEIGHT / ALL;
        if !self.limit.is_zero() && took <= short_max {
            self.short += WEIGHT;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_micros(50);

    fn after(waits: impl IntoIterator<Item = u64>, slept: bool) -> BusyPoll {
        let mut poll = BusyPoll::new(LIMIT);
        waits.into_iter().for_each(|micros| poll.waited(Duration::from_micros(micros), slept));
        poll
    }

    #[test]
    fn short_waits_in_a_row_are_worth_it() {
        assert!(!BusyPoll::new(LIMIT).is_worth_it(), "nothing is known");
        assert!(!after([20; 3], true).is_worth_it());
        assert!(after([20; 8], true).is_worth_it());
        assert!(
            after([80; 8], true).is_worth_it(),
            "the worker would have been there sooner, awake"
        );
        assert!(!after([120; 100], true).is_worth_it());
    }

    #[test]
    fn long_waits_end_it() {
        let mut poll = after([20; 100], false);
        assert!(poll.is_worth_it());
        let until = (1..).find(|_| {
            poll.waited(LIMIT * 3, false);
            !poll.is_worth_it()
        });
        assert!(until.is_some_and(|waits| waits <= 8), "{until:?}");
    }

    #[test]
    fn one_long_wait_in_three_leaves_it_worth_it() {
        assert!(after((0..300).map(|n| if n % 3 == 0 { 400 } else { 20 }), false).is_worth_it());
        assert!(!after((0..300).map(|n| if n % 3 == 0 { 20 } else { 400 }), false).is_worth_it());
    }

    #[test]
    fn without_a_limit_it_never_is() {
        let mut poll = BusyPoll::new(Duration::ZERO);
        (0..100).for_each(|_| poll.waited(Duration::ZERO, true));
        assert!(!poll.is_worth_it());
    }
}
