//! How far a file may grow before the metadata service is asked for room, in directories with
//! quotas.
//!
//! Contract: part of the pure machine. An allowance comes with the write lease, or for a question
//! asked under it; elsewhere files may grow as far as any. It ends with a truncation, and with the
//! close: the service promises no more then.

use super::InodeState;
use protocol::namespace::{LeaseMode, NO_LIMIT};

impl InodeState {
    /// How long a write makes the file, if room for that is to be asked for first.
    pub fn write_lacks_room(&self, offset: u64, len: u64, append: bool) -> Option<u64> {
        let offset = if self.is_stale(offset, append) { self.data_end() } else { offset };
        self.lacks_room(offset.saturating_add(len))
    }

    /// The length, if room for it is to be asked for before the file gets it.
    pub fn lacks_room(&self, size: u64) -> Option<u64> {
        (size > self.size && size > self.allowance).then_some(size)
    }

    /// The service has promised that the file may become so long, to who held the grant with this
    /// token.
    pub fn room_promised(&mut self, token: u64, size: u64) {
        if self.lease() == Some(LeaseMode::Write) && self.token() == token {
            self.allowance = size;
        }
    }

    /// The service promises nothing beyond the size that it knows.
    pub(super) fn allowance_ends(&mut self) {
        self.allowance_ends_at(self.size);
    }

    /// The service promises nothing beyond this length.
    pub(super) fn allowance_ends_at(&mut self, size: u64) {
        if self.allowance != NO_LIMIT {
            self.allowance = self.allowance.min(size);
        }
    }
}
