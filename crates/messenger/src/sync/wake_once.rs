//! Whether the other side knows already: that a task was woken, that a connection has something to
//! do.
//!
//! Contract: whoever has something puts it where the other side looks, and then calls
//! [`WakeOnce::give`], which says whether the other side must be told, by a queue. The other side,
//! once told, calls [`WakeOnce::take`], and looks after that. So nobody is told twice of one
//! notice, and whoever found it given is seen by the look after it. Both exchange the flag: the
//! exchanges have an order, and the one who takes sees what was there before each of the earlier
//! ones. A taker that only wrote the flag could look first and write after, as every CPU with a
//! store buffer does.
//!
//! The flag is a parameter, so that `loom` can stand in for the hardware in the tests.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::sync::sleep_flag::Flag;

/// A notice from any thread to one that comes for it.
#[derive(Debug)]
pub(crate) struct WakeOnce<F = AtomicBool> {
    is_given: F,
}

impl Default for WakeOnce {
    fn default() -> WakeOnce {
        WakeOnce { is_given: AtomicBool::new(false) }
    }
}

impl<F: Flag> WakeOnce<F> {
    /// There is something. True: the other side must be told; then nobody else has to.
    pub(crate) fn give(&self) -> bool {
        !self.is_given.swap(true, Ordering::AcqRel)
    }

    /// The other side is about to look; for what comes later it must be told again.
    pub(crate) fn take(&self) {
        self.is_given.swap(false, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests;
