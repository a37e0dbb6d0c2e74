//! Data that stays where it is: on one host a sender lends its buffers to the receiver instead of
//! copying them through the socket.
//!
//! The pools of a runtime lie in an [`Arena`], memory that other processes may map. When a
//! connection over a Unix socket is made, each end passes the other three descriptors with its
//! first bytes: its arena, to be read only; *slots*, a word for each lease; and the end of a pipe,
//! the *lifeline*. A frame whose data lies in the sender's arena then carries a [`RegionLease`] in
//! place of the bytes: where they are, and a slot. The receiver uses the bytes there, however long,
//! and clears the slot's word when the last user is done.
//!
//! Contract: a sender keeps what it has lent, unchanged, until the slot is cleared, or nobody can
//! read it any more: the lifeline closes when the receiver's process has ended or has dropped the
//! last of the connection's leases. So a receiver that dies, or that lost the connection and still
//! writes a journal from the bytes, is no different from one that copied them. What one connection
//! has lent is bounded by [`REGION_BYTES_MAX`], all of them by the arena; beyond it, and for small
//! data, bytes go through the socket as ever. While ended connections have left as much as one may
//! lend, new ones do not lend.
//!
//! Each end believes the other as little as one that sends bytes: places are checked against the
//! arena, checksums as ever, before anything is handed on. That the bytes stay the same after that
//! is trusted; and a peer can read all buffers of this runtime, and, as it may open the file anew,
//! write them if it means to. So only processes of root or of the same user lend to each other:
//! these can read and write this process as a debugger does, anyway.

mod arena;
mod memory;
mod receiver;
mod sender;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use bytes::{Buf, BufMut, BytesMut};
use rustix::pipe::{PipeFlags, pipe_with};

pub(crate) use arena::{Arena, Extent};
use memory::{FileId, SharedMemory, id_of};
pub(crate) use receiver::ShmReceiver;
use sender::Loans;
pub(crate) use sender::ShmSender;

use crate::sync::contention_mutex::{ContentionMutex, LockTable};

/// Data from here up is lent, in bytes. Below, two copies cost less than what lending does.
pub(crate) const REGION_BYTES_MIN: usize = 8 << 10;
/// Most bytes that a connection has lent: what a storage daemon that takes 500 MB/s holds until it
/// has applied it.
pub(crate) const REGION_BYTES_MAX: usize = 128 << 20;
/// Loans of a connection at once.
const SLOTS: usize = 4096;
const SLOTS_BYTES: usize = SLOTS * memory::WORD_BYTES;
/// Descriptors of an offer.
pub(crate) const OFFER_FDS: usize = 3;
/// Bytes of a [`RegionLease`] on the wire.
pub(crate) const LEASE_BYTES: usize = 16;

/// What stands in a frame in place of the data: where it is.
///
/// | offset | bytes | field |
/// |---|---|---|
/// | 0 | 8 | place in the sender's arena |
/// | 8 | 4 | slot |
/// | 12 | 4 | CRC32C of bytes 0..12 |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegionLease {
    pub(crate) at: u64,
    pub(crate) slot: u32,
}

impl RegionLease {
    pub(crate) fn put(self, out: &mut BytesMut) {
        let start = out.len();
        out.put_u64_le(self.at);
        out.put_u32_le(self.slot);
        let crc = crc32c::crc32c(&out[start..]);
        out.put_u32_le(crc);
    }

    /// `None`: damaged.
    pub(crate) fn get(bytes: &[u8; LEASE_BYTES]) -> Option<RegionLease> {
        let mut rest = &bytes[..];
        let (at, slot) = (rest.get_u64_le(), rest.get_u32_le());
        (rest.get_u32_le() == crc32c::crc32c(&bytes[..LEASE_BYTES - 4]))
            .then_some(RegionLease { at, slot })
    }
}

/// What goes to the other end with the first bytes.
pub(crate) struct Offer {
    arena: Arc<Arena>,
    slots: OwnedFd,
    lifeline: OwnedFd,
}

impl Offer {
    /// In the order in which [`Shm::accept`] takes them.
    pub(crate) fn fds(&self) -> [BorrowedFd<'_>; OFFER_FDS] {
        [self.arena.readable().as_fd(), self.slots.as_fd(), self.lifeline.as_fd()]
    }
}

/// What the connections of a runtime share of it.
pub(crate) struct Shm {
    arena: Option<Arc<Arena>>,
    /// Loans of connections that are no more.
    orphans: ContentionMutex<Vec<Loans>>,
    /// Arenas of others, mapped once for all connections.
    imports: ContentionMutex<Vec<(FileId, Weak<SharedMemory>)>>,
}

impl Shm {
    /// With an arena, if it is wanted and the system has the memory.
    pub(crate) fn new(is_wanted: bool, locks: &LockTable) -> Arc<Shm> {
        let arena = is_wanted.then(|| Arena::new(locks)).transpose();
        let arena = arena.unwrap_or_else(|error| {
            tracing::warn!(%error, "no memory to share with peers on this host: data goes through sockets");
            None
        });
        let orphans = ContentionMutex::new(locks, "orphaned loans", Vec::new());
        Arc::new(Shm {
            arena,
            orphans,
            imports: ContentionMutex::new(locks, "imported arenas", Vec::new()),
        })
    }

    pub(crate) fn arena(&self) -> Option<&Arc<Arena>> {
        self.arena.as_ref()
    }

    /// What it takes to lend to a peer, and what that peer is to be sent.
    ///
    /// # Errors
    /// `Unsupported` without an arena; `QuotaExceeded` while too much is still lent by connections
    /// that have ended; what the kernel says.
    pub(crate) fn offer(self: &Arc<Self>) -> io::Result<(ShmSender, Offer)> {
        if self.orphans.lock().iter().map(Loans::bytes).sum::<usize>() >= REGION_BYTES_MAX {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let arena = Arc::clone(self.arena.as_ref().ok_or(io::ErrorKind::Unsupported)?);
        let (memory, slots) = SharedMemory::create("trefoil-slots", SLOTS_BYTES)?;
        let (ours, lifeline) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let leases = Loans::new(memory, ours);
        Ok((ShmSender::new(Arc::clone(self), leases), Offer { arena, slots, lifeline }))
    }

    /// Takes what a peer sent.
    ///
    /// # Errors
    /// `InvalidData` if it is no offer; what the kernel says.
    pub(crate) fn accept(&self, fds: Vec<OwnedFd>) -> io::Result<Arc<ShmReceiver>> {
        let fds: [OwnedFd; OFFER_FDS] = fds.try_into().map_err(|_| io::ErrorKind::InvalidData)?;
        let [arena, slots, lifeline] = fds;
        let memory = self.import(&arena)?;
        let slots = SharedMemory::import(&slots, SLOTS_BYTES, true)?;
        Ok(Arc::new(ShmReceiver::new(memory, slots, lifeline)))
    }

    fn import(&self, file: &OwnedFd) -> io::Result<Arc<SharedMemory>> {
        let id = id_of(file)?;
        let mut imports = self.imports.lock();
        imports.retain(|(_, memory)| memory.strong_count() > 0);
        let known =
            imports.iter().find(|(known, _)| *known == id).and_then(|(_, memory)| memory.upgrade());
        if let Some(memory) = known {
            return Ok(memory);
        }
        let memory = Arc::new(SharedMemory::import(file, arena::ARENA_BYTES, false)?);
        imports.push((id, Arc::downgrade(&memory)));
        Ok(memory)
    }

    /// Keeps what a connection had lent when it ended.
    fn keep(&self, leases: Loans) {
        self.orphans.lock().push(leases);
    }

    /// Takes back what ended connections had lent, as far as nobody can read it any more.
    pub(crate) fn sweep(&self) {
        // What is taken back goes to its pool, or to the system: nobody waits for that.
        let mut orphans = std::mem::take(&mut *self.orphans.lock());
        orphans.iter_mut().for_each(Loans::take_back);
        orphans.retain(|leases| !leases.is_over());
        self.orphans.lock().append(&mut orphans);
    }
}

impl Drop for Shm {
    /// Whoever reads what was lent may outlive this runtime, as a storage daemon does that has not
    /// applied the last writes of a mount: the memory is left to the end of this process, and of
    /// their mapping.
    fn drop(&mut self) {
        self.sweep();
        std::mem::take(&mut *self.orphans.lock()).into_iter().for_each(std::mem::forget);
    }
}

#[cfg(test)]
mod tests;
