//! The borrowing end of a connection.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Release;

use bytes::Bytes;

use super::arena::ARENA_BYTES;
use super::memory::SharedMemory;
use super::sender::FREE;
use super::{RegionLease, SLOTS};

/// See the module. It is there until the connection is gone and the last of its leases dropped.
pub(crate) struct ShmReceiver {
    memory: Arc<SharedMemory>,
    slots: SharedMemory,
    /// Closed with the rest: the sender then knows that nobody reads.
    _lifeline: OwnedFd,
}

impl ShmReceiver {
    pub(super) fn new(
        memory: Arc<SharedMemory>,
        slots: SharedMemory,
        lifeline: OwnedFd,
    ) -> ShmReceiver {
        ShmReceiver { memory, slots, _lifeline: lifeline }
    }

    /// The bytes of a lease; `None` if there are none such.
    pub(crate) fn borrow(self: &Arc<Self>, lease: RegionLease, len: usize) -> Option<Bytes> {
        let (at, slot) = (usize::try_from(lease.at).ok()?, lease.slot as usize);
        let is_inside = at <= ARENA_BYTES && len <= ARENA_BYTES - at && slot < SLOTS;
        is_inside.then(|| Bytes::from_owner(Borrowed { from: Arc::clone(self), slot, at, len }))
    }
}

/// Bytes of a lease, given back when dropped.
struct Borrowed {
    from: Arc<ShmReceiver>,
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
