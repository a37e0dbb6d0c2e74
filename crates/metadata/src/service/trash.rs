//! What leaves the trash for good, without anyone asking.

use super::Service;
use crate::store::{Store, StoreError};
use protocol::namespace::{Caller, NamespaceOp, Request, Timestamp};
use protocol::{Epoch, SessionId};
use std::time::Duration;

impl<S: Store> Service<S> {
    /// Removes from the trash what was kept for its time, and what are too many; where the disk is
    /// almost full, those that would go first. At most `limit` entries; gives how many.
    ///
    /// # Errors
    /// When the store fails.
    pub fn expire_trash(
        &mut self,
        now: Duration,
        wall: Timestamp,
        limit: usize,
    ) -> Result<usize, StoreError> {
        if self.in_grace() {
            return Ok(0);
        }
        let due = self.namespace.trash_due(wall.secs, limit, self.full)?;
        let Some((parent, names)) = due else { return Ok(0) };
        let count = names.len();
        for name in names {
            let request = Request {
                session: SessionId::default(),
                number: 0,
                answered: 0,
                epoch: Epoch::default(),
                caller: Caller { uid: 0, gid: 0, now: wall },
                op: NamespaceOp::Unlink { parent, name, gives: None },
            };
            self.change(now, &request)?;
        }
        Ok(count)
    }
}
