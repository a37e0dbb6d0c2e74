//! The lending end of a connection.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use bytes::Bytes;

use super::memory::SharedMemory;
use super::{REGION_BYTES_MAX, REGION_BYTES_MIN, RegionLease, SLOTS, Shm};

/// A slot that was never lent, or was given back.
pub(super) const FREE: u32 = 0;
/// A slot whose bytes are in use.
const LENT: u32 = 1;
/// Loans looked at with each new one: more than come, so that what was given back does not stay for
/// long.
const LOOKS: usize = 8;

/// What a connection has lent.
pub(super) struct Loans {
    slots: SharedMemory,
    free: Vec<u32>,
    /// The oldest first, but for those that were looked at and were in use.
    lent: VecDeque<(u32, Bytes)>,
    bytes: usize,
    lifeline: OwnedFd,
}

impl Loans {
    pub(super) fn new(slots: SharedMemory, lifeline: OwnedFd) -> Loans {
        Loans {
            slots,
            free: (0..SLOTS as u32).rev().collect(),
            lent: VecDeque::new(),
            bytes: 0,
            lifeline,
        }
    }

    /// `None` if as much is lent as may be.
    fn lend(&mut self, data: &Bytes) -> Option<u32> {
        if self.bytes + data.len() > REGION_BYTES_MAX {
            return None;
        }
        let slot = self.free.pop()?;
        // Told to the other end by a system call after this.
        self.slots.word(slot as usize).store(LENT, Relaxed);
        self.bytes += data.len();
        self.lent.push_back((slot, data.clone()));
        Some(slot)
    }

    /// Looks at the first `count`.
    fn look(&mut self, count: usize) {
        for _ in 0..count.min(self.lent.len()) {
            let Some((slot, data)) = self.lent.pop_front() else { return };
            // What was read there was read before it was given back, and is not written before that
            // is seen.
            if self.slots.word(slot as usize).load(Acquire) == FREE {
                self.bytes -= data.len();
                self.free.push(slot);
            } else {
                self.lent.push_back((slot, data));
            }
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes back whatever was given back.
    pub(super) fn take_back(&mut self) {
        self.look(self.lent.len());
    }

    /// Nobody reads any of it, nor will.
    pub(super) fn is_over(&self) -> bool {
        // Nothing is ever written there: it is empty, or has no other end.
        self.lent.is_empty() || matches!(rustix::io::read(&self.lifeline, &mut [0; 1]), Ok(0))
    }
}

/// See the module. What it has lent outlives it, until nobody can read it.
pub(crate) struct ShmSender {
    lending: Arc<Shm>,
    leases: Option<Loans>,
}

impl ShmSender {
    pub(super) fn new(lending: Arc<Shm>, leases: Loans) -> ShmSender {
        ShmSender { lending, leases: Some(leases) }
    }

    /// Lends data that may be: it lies in the arena and is large enough, and not too much is lent.
    /// Else it is to be copied.
    pub(crate) fn lend(&mut self, data: &Bytes) -> Option<RegionLease> {
        if data.len() < REGION_BYTES_MIN {
            return None;
        }
        let at = self.lending.arena()?.place_of(data)?;
        let leases = self.leases.as_mut()?;
        leases.look(LOOKS);
        let slot = leases.lend(data)?;
        Some(RegionLease { at: at as u64, slot })
    }

    /// Takes back whatever was given back.
    pub(crate) fn take_back(&mut self) {
        if let Some(leases) = &mut self.leases {
            leases.take_back();
        }
    }

    /// Is anything lent, as far as was looked?
    pub(crate) fn has_lent(&self) -> bool {
        self.leases.as_ref().is_some_and(|leases| !leases.lent.is_empty())
    }
}

impl Drop for ShmSender {
    fn drop(&mut self) {
        if let Some(leases) = self.leases.take().filter(|leases| !leases.lent.is_empty()) {
            self.lending.keep(leases);
        }
    }
}
