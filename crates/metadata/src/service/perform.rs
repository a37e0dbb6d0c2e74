//! Carrying out a request for which the leases allow it.

use super::{Pending, Service, is_growing, told};
use crate::store::{Store, StoreError};
use protocol::namespace::{Attr, FileKind, Held, LeaseMode, NamespaceOp, Reply, Request, SetAttr};
use protocol::{Gfid, SessionId};
use std::cell::Cell;
use std::time::Duration;

impl<S: Store> Service<S> {
    /// Carries a request out. `None` when the answer comes later (`Lock`).
    pub(super) fn perform(
        &mut self,
        now: Duration,
        pending: Pending,
    ) -> Result<Option<Reply>, StoreError> {
        if let NamespaceOp::Lock { gfid, owner, op } = pending.request.op {
            return self.lock(now, &pending, (gfid, owner, op));
        }
        let Pending { mut request, repeated, .. } = pending;
        let session = request.session;
        if self.full && repeated.is_none() && is_growing(&request.op) {
            return Ok(Some(Reply::Errno(libc::ENOSPC)));
        }
        if let NamespaceOp::SetAttr { gfid, set, .. } = &mut request.op {
            // Only the death of a writer ends it.
            set.times_follow &= self.leases.held(*gfid, session) == Some(LeaseMode::Write);
        }
        let reply = match &request.op {
            NamespaceOp::Open { gfid, .. } => self.open_file(session, *gfid)?,
            NamespaceOp::Close { gfid } => {
                self.leases.close(*gfid, session);
                self.settle_orphan(now, *gfid)?;
                Reply::Done
            }
            NamespaceOp::ReturnLease { gfid, keep, set } => {
                self.take_back(now, &request, *gfid, *keep, set)?;
                Reply::Done
            }
            NamespaceOp::Reclaim { held, locks, mount, since, begun, last } => {
                self.reclaim_locks(session, locks)?;
                if *mount {
                    self.alone.join(session);
                }
                let is_whole = *begun == 0 || *begun == self.namespace.last_commit().start;
                let refused = self.reclaim(now, session, held, *last && is_whole)?;
                Reply::Kept { commits: self.namespace.kept(*since)?, refused }
            }
            NamespaceOp::Mount if self.alone.admits(now, session) => {
                self.alone.join(session);
                Reply::Done
            }
            NamespaceOp::Mount => Reply::TryAgain,
            NamespaceOp::Sync => Reply::Done,
            NamespaceOp::ReturnNames { recall } => {
                self.names.returned(now, session, *recall);
                Reply::Done
            }
            NamespaceOp::Create { open: Some(mode), .. }
            | NamespaceOp::CreateUnnamed { open: mode, .. } => {
                self.create_open(now, &request, *mode, repeated)?
            }
            NamespaceOp::Link { gfid, .. } => {
                let reply = self.change(now, &request)?;
                if matches!(reply, Reply::Attr(_)) {
                    // It may have had none before.
                    self.orphans.remove(gfid);
                }
                reply
            }
            NamespaceOp::ReadDir { .. } => self.list(&request)?,
            NamespaceOp::SetAttr { gfid, set, .. } => {
                let reply = self.change(now, &request)?;
                if set.size.is_some() && matches!(reply, Reply::Attr(_)) {
                    self.namespace.size_given_up(*gfid)?;
                }
                reply
            }
            _ => self.change(now, &request)?,
        };
        Ok(Some(reply))
    }

    /// A session gives its lease on a file back, down to `keep`.
    fn take_back(
        &mut self,
        now: Duration,
        request: &Request,
        gfid: Gfid,
        keep: Option<LeaseMode>,
        set: &SetAttr,
    ) -> Result<(), StoreError> {
        if let Some(held) = self.leases.returned(now, gfid, request.session, keep) {
            self.namespace.apply_returned(gfid, &told(held, set), request.caller.now)?;
            if held == LeaseMode::Write && keep != Some(LeaseMode::Write) {
                self.namespace.set_writer(gfid, None);
            }
            self.settle_orphan(now, gfid)?;
        }
        Ok(())
    }

    /// An operation of the tree alone, but for a lease that is given back with it.
    fn change(&mut self, now: Duration, request: &Request) -> Result<Reply, StoreError> {
        let unlinked: Cell<Option<(Gfid, bool)>> = Cell::new(None);
        let given = if let NamespaceOp::Unlink { gives, .. } = &request.op { *gives } else { None };
        let leases = &self.leases;
        let in_use = |gfid: Gfid| {
            let is_given = given == Some(gfid);
            let used = if is_given {
                leases.in_use_beside(gfid, request.session)
            } else {
                leases.in_use(gfid)
            };
            unlinked.set(Some((gfid, used)));
            used
        };
        let reply = self.namespace.execute(&request.caller, &in_use, &request.op)?;
        if reply == Reply::Done {
            if let Some((gfid, false)) = unlinked.get() {
                self.ended(gfid);
            }
            if let Some(gfid) = given {
                self.take_back(now, request, gfid, None, &SetAttr::default())?;
            }
            if let Some((gfid, true)) = unlinked.get() {
                self.orphans.insert(gfid);
                self.settle_orphan(now, gfid)?;
            }
        }
        Ok(reply)
    }

    /// A file is gone at once: nobody but whoever removed it had anything of it.
    fn ended(&mut self, gfid: Gfid) {
        if self.leases.writer(gfid).is_some() {
            self.namespace.set_writer(gfid, None);
        }
        self.leases.forget(gfid);
        self.locks.forget(gfid);
    }

    fn open_file(&mut self, session: SessionId, gfid: Gfid) -> Result<Reply, StoreError> {
        let Some(attr) = self.namespace.attr(gfid)? else { return Ok(Reply::Errno(libc::ESTALE)) };
        self.opened(session, &attr)?;
        Ok(Reply::Opened { attr, grant: self.grant_of(gfid, session) })
    }

    /// The session has the file open, and whatever lease it asked for; a write lease is noted in
    /// the store.
    fn opened(&mut self, session: SessionId, attr: &Attr) -> Result<(), StoreError> {
        self.leases.open(attr.gfid, session);
        if self.leases.held(attr.gfid, session) == Some(LeaseMode::Write) {
            self.note_writer(attr.gfid);
            self.namespace.size_given_up(attr.gfid)?;
        }
        Ok(())
    }

    fn create_open(
        &mut self,
        now: Duration,
        request: &Request,
        mode: LeaseMode,
        repeated: Option<Attr>,
    ) -> Result<Reply, StoreError> {
        if let Some(first) = repeated {
            let Some(attr) = self.namespace.attr(first.gfid)? else {
                return Ok(Reply::Errno(libc::ESTALE));
            };
            return self.open_file(request.session, attr.gfid);
        }
        let reply = self.change(now, request)?;
        let Reply::Attr(attr) = reply else { return Ok(reply) };
        if attr.kind == FileKind::Regular {
            self.leases.grant_new(now, attr.gfid, request.session, mode);
        }
        if attr.nlink == 0 {
            self.orphans.insert(attr.gfid);
        }
        self.opened(request.session, &attr)?;
        Ok(Reply::Opened { attr, grant: self.grant_of(attr.gfid, request.session) })
    }

    fn reclaim(
        &mut self,
        now: Duration,
        session: SessionId,
        held: &[Held],
        last: bool,
    ) -> Result<Vec<Gfid>, StoreError> {
        let mut refused = Vec::new();
        for &Held { gfid, lease, open } in held {
            if self.namespace.attr(gfid)?.is_none() {
                refused.push(gfid);
                continue;
            }
            if let Some(lease) = lease {
                if !self.leases.reclaim(now, (gfid, session), lease, !self.in_grace()) {
                    refused.push(gfid);
                }
                self.note_writer(gfid);
            }
            if open {
                self.leases.open(gfid, session);
            }
        }
        if let Some(entry) = self.sessions.get_mut(&session) {
            entry.reclaimed |= last;
        }
        self.maybe_end_grace(now)?;
        Ok(refused)
    }

    /// Notes in the store who holds the write lease of a file.
    fn note_writer(&mut self, gfid: Gfid) {
        let writer = self.leases.writer(gfid);
        let writer = writer.and_then(|session| Some((session, self.leases.token(gfid, session)?)));
        self.namespace.set_writer(gfid, writer);
    }

    fn list(&mut self, request: &Request) -> Result<Reply, StoreError> {
        let mut reply = self.namespace.execute(&request.caller, &|_| false, &request.op)?;
        if let Reply::Entries { entries, .. } = &mut reply
            && !(self.leases.is_empty() && self.sought.is_empty())
        {
            for entry in entries {
                entry.written_elsewhere = !self.is_settled(request.session, &entry.attr);
            }
        }
        Ok(reply)
    }
}
