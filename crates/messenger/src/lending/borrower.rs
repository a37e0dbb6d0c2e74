//! The borrowing end of a connection.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Release;

use bytes::Bytes;

use super::arena::ARENA_BYTES;
use super::lender::FREE;
use super::memory::SharedMemory;
use super::{Loan, SLOTS};

/// See the module. It is there until the connection is gone and the last of its loans dropped.
pub(crate) struct Borrower {
    memory: Arc<SharedMemory>,
    slots: SharedMemory,
    /// Closed with the rest: the lender then knows that nobody reads.
    _lifeline: OwnedFd,
}

impl Borrower {
    pub(super) fn new(memory: Arc<SharedMemory>, slots: SharedMemory, lifeline: OwnedFd) -> Borrower {
        Borrower { memory, slots, _lifeline: lifeline }
    }

    /// The bytes of a loan; `None` if there are none such.
    pub(crate) fn borrow(self: &Arc<Self>, loan: Loan, len: usize) -> Option<Bytes> {
        let (at, slot) = (usize::try_from(loan.at).ok()?, loan.slot as usize);
        let is_inside = at <= ARENA_BYTES && len <= ARENA_BYTES - at && slot < SLOTS;
        is_inside.then(|| Bytes::from_owner(Borrowed { from: Arc::clone(self), slot, at, len }))
    }
}

/// Bytes of a loan, given back when dropped.
struct Borrowed {
    from: Arc<Borrower>,
    slot: usize,
    at: usize,
    len: usize,
}

impl AsRef<[u8]> for Borrowed {
    fn as_ref(&self) -> &[u8] {
        self.from.memory.bytes(self.at, self.len)
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        self.from.slots.word(self.slot).store(FREE, Release);
    }
}
