//! How many requests, and how many bytes of them, may be under way.
//!
//! Contract: first come, first served, so that a large request is not starved by small ones. One
//! that is larger than all of a budget waits for it to be empty, and runs alone.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes under way for all clients of a server: eight of the longest requests.
pub const BYTES_MAX: usize = 256 << 20;
/// Requests under way for all clients of a server.
pub const REQUESTS_MAX: usize = 4096;

#[derive(Debug, Default)]
struct State {
    requests: usize,
    bytes: usize,
    next_ticket: u64,
    turn: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Budget {
    requests_max: usize,
    bytes_max: usize,
    state: Mutex<State>,
    changed: Condvar,
}

/// A part of a budget, given back when dropped.
#[derive(Debug)]
pub struct Permit {
    of: Arc<Budget>,
    bytes: usize,
}

impl Budget {
    /// An unused one.
    pub fn new(requests_max: usize, bytes_max: usize) -> Arc<Budget> {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Arc::new(Budget { requests_max, bytes_max, state, changed })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for room for a request with so many bytes. Blocks.
    pub fn acquire(self: &Arc<Self>, bytes: usize) -> Permit {
        let mut state = self.state();
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        let has_room = |state: &State| {
            state.requests == 0
                || state.requests < self.requests_max && state.bytes + bytes <= self.bytes_max
        };
        while state.turn != ticket || !has_room(&state) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.turn += 1;
        state.requests += 1;
        state.bytes += bytes;
        drop(state);
        self.changed.notify_all();
        Permit { of: Arc::clone(self), bytes }
    }

    /// Waits until nothing is under way. False if something still is after this time.
    pub fn wait_idle(&self, max: Duration) -> bool {
        let end = Instant::now() + max;
        let mut state = self.state();
        while state.requests > 0 {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state =
                self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.of.state();
        state.requests -= 1;
        state.bytes -= self.bytes;
        drop(state);
        self.of.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn requests_wait_in_turn_for_room() {
        let budget = Budget::new(10, 100);
        let first = budget.acquire(60);
        let (sender, receiver) = mpsc::channel();
        for bytes in [50, 10] {
            let (of, sender, before) =
                (Arc::clone(&budget), sender.clone(), budget.state().next_ticket);
            std::thread::spawn(move || {
                sender.send((bytes, of.acquire(bytes))).expect("somebody looks")
            });
            while budget.state().next_ticket == before {
                std::thread::yield_now();
            }
        }
        assert!(receiver.try_recv().is_err(), "10 would fit, and comes after 50");
        assert!(!budget.wait_idle(Duration::ZERO));
        drop(first);
        let mut came = [receiver.recv().expect("50"), receiver.recv().expect("10")];
        came.sort_by_key(|(bytes, _)| *bytes);
        assert_eq!(came.iter().map(|(bytes, _)| *bytes).collect::<Vec<_>>(), [10, 50]);
        drop(came);
        assert!(budget.wait_idle(Duration::ZERO));
    }

    #[test]
    fn what_is_larger_than_all_of_it_runs_alone() {
        let budget = Budget::new(1, 100);
        drop(budget.acquire(1000));
        let small = budget.acquire(0);
        assert_eq!(budget.state().requests, 1);
        drop(small);
        assert!(budget.wait_idle(Duration::ZERO));
    }
}
