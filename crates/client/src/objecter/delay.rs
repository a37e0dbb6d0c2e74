//! Writes that nobody waits for stay for a moment, so that several leave together: one system call
//! here, and one wake-up, one append to the journal and one acknowledgement there for all of them.
//!
//! Contract: pure but for waiting among the tasks of one worker; what is counted here lies in the
//! queues of connections, in order with everything else.

use super::wait::Notify;
use std::cell::Cell;
use std::time::Duration;

/// For how long a write may stay, give or take the millisecond that is the precision of the
/// worker's timers.
pub(crate) const DELAY_MAX: Duration = Duration::from_millis(1);
/// How many stay at most: more gains little.
const WRITES_MAX: usize = 16;
/// How many bytes stay at most: what a system call takes is shared by then.
const BYTES_MAX: usize = 128 << 10;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Delayed {
    writes: Cell<usize>,
    bytes: Cell<usize>,
    begun: Notify,
}

impl Delayed {
    /// One more write stays. True if that is enough, and all shall leave.
    pub fn add(&self, bytes: usize) -> bool {
        let (writes, sum) = (self.writes.get() + 1, self.bytes.get() + bytes);
        self.writes.set(writes);
        self.bytes.set(sum);
        let is_enough = writes >= WRITES_MAX || sum >= BYTES_MAX;
        if writes == 1 && !is_enough {
            self.begun.notify();
        }
        is_enough
    }

    /// All leave. False if there were none.
    pub fn take(&self) -> bool {
        self.bytes.set(0);
        self.writes.take() > 0
    }

    /// Waits until there are some, or for [`Delayed::wake`].
    pub async fn begun(&self) {
        let seen = self.begun.version();
        if self.writes.get() == 0 {
            self.begun.changed(seen).await;
        }
    }

    /// Wakes who waits in [`Delayed::begun`].
    pub fn wake(&self) {
        self.begun.notify();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    #[test]
    fn few_small_writes_stay_and_many_or_large_ones_leave() {
        let delayed = Delayed::default();
        assert!(!delayed.take());
        assert!((1..WRITES_MAX).all(|_| !delayed.add(4096)));
        assert!(delayed.add(4096));
        assert!(delayed.take() && !delayed.take());
        assert!(!delayed.add(BYTES_MAX - 1) && delayed.add(1));
        assert!(delayed.take());
        assert!(!delayed.add(BYTES_MAX - 1), "what left does not count");
    }

    #[test]
    fn who_waits_for_the_first_is_woken_by_it() {
        let mut cx = Context::from_waker(Waker::noop());
        let delayed = Delayed::default();
        let mut begun = pin!(delayed.begun());
        assert!(begun.as_mut().poll(&mut cx).is_pending());
        delayed.add(1);
        assert!(begun.as_mut().poll(&mut cx).is_ready());
        assert!(pin!(delayed.begun()).poll(&mut cx).is_ready(), "there is one");
    }
}
