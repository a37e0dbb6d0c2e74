//! When a worker sleeps, and who has to wake it.
//!
//! Contract: whoever has something for a worker puts it where the worker looks, and then calls
//! [`SleepFlag::wake`], which says whether the worker must be woken. A worker that wants to wait
//! calls [`SleepFlag::prepare_to_sleep`] and then looks once more. So either the worker sees what
//! is there, or whoever put it there finds the worker asleep: nothing lies there until a timer is
//! due, and nobody makes a system call for a worker that is awake. All three exchange the flag: the
//! exchanges of two threads have an order, and the later one sees what the other thread did before
//! its own.
//!
//! The flag is a parameter, so that `loom` can stand in for the hardware in the tests.

use std::sync::atomic::{AtomicBool, Ordering};

/// The operations that this, [`crate::sync::wake_once`] and [`crate::executor::mailbox`] need of an
/// atomic flag.
pub(crate) trait Flag {
    fn load(&self, order: Ordering) -> bool;
    fn store(&self, value: bool, order: Ordering);
    fn swap(&self, value: bool, order: Ordering) -> bool;
}

impl Flag for AtomicBool {
    fn load(&self, order: Ordering) -> bool {
        AtomicBool::load(self, order)
    }

    fn store(&self, value: bool, order: Ordering) {
        AtomicBool::store(self, value, order);
    }

    fn swap(&self, value: bool, order: Ordering) -> bool {
        AtomicBool::swap(self, value, order)
    }
}

/// Whether one worker sleeps, or is about to.
#[derive(Debug)]
pub(crate) struct SleepFlag<F = AtomicBool> {
    is_asleep: F,
}

impl Default for SleepFlag {
    fn default() -> SleepFlag {
        SleepFlag { is_asleep: AtomicBool::new(false) }
    }
}

impl<F: Flag> SleepFlag<F> {
    /// The worker is about to wait, unless there is something when it looks after this.
    pub(crate) fn prepare_to_sleep(&self) {
        self.is_asleep.swap(true, Ordering::AcqRel);
    }

    /// The worker does not wait any more.
    pub(crate) fn stay_awake(&self) {
        self.is_asleep.swap(false, Ordering::AcqRel);
    }

    /// There is something for the worker. True: it must be woken; then nobody else is told so.
    pub(crate) fn wake(&self) -> bool {
        self.is_asleep.swap(false, Ordering::AcqRel)
    }
}

#[cfg(test)]
mod tests;
