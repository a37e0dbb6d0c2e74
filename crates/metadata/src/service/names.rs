//! Shared leases on names and attributes, where requests meet them: what a request changes, and
//! what an answer tells, of which the session gets a lease.
//!
//! Contract: leases are given while there are several mounts; the only one needs none
//! ([`super::alone`]). After a restart none is known, and nothing that a lease is on changes in the
//! grace period: until every session has forgotten what it knew, which it does before it reclaims.

use super::{Event, Pending, Service};
use crate::lease::Ticket;
use crate::lease::names::NamesAction;
use crate::store::{Store, StoreError};
use protocol::namespace::{Attr, LeaseMode, NamespaceOp, Reply};
use protocol::{Gfid, SessionId};
use std::time::Duration;

impl<S: Store> Service<S> {
    /// For how long the session, which is being answered, may count on its leases on names, from
    /// when it asked.
    pub fn promise_names(&mut self, now: Duration, session: SessionId) -> Duration {
        if self.in_grace() { Duration::ZERO } else { self.names.promise(now, session) }
    }

    /// Has the session a lease on all that the reply to this request tells? To be asked once, when
    /// it is answered.
    pub fn is_covered(&mut self, token: u64) -> bool {
        self.covered.remove(&token)
    }

    /// May the request be carried out as far as others' leases on names go? If not, it is parked
    /// and `None` comes back.
    pub(super) fn pass_names(
        &mut self,
        now: Duration,
        pending: Pending,
    ) -> Result<Option<Pending>, StoreError> {
        let session = pending.request.session;
        if !self.names.concern_others(session) {
            return Ok(Some(pending));
        }
        let changed = self.changed_by(&pending.request.op)?;
        let ticket = Ticket(self.ticket_next);
        if self.names.change(now, session, &changed, ticket) {
            return Ok(Some(pending));
        }
        self.ticket_next += 1;
        self.waiting.insert((session, pending.request.number), ticket);
        self.parked.insert(ticket, pending);
        Ok(None)
    }

    /// Files and directories of which names or attributes change with the request, or may from now
    /// on without the service being told at once.
    fn changed_by(&self, op: &NamespaceOp) -> Result<Vec<Gfid>, StoreError> {
        let mut changed: Vec<Gfid> = op.changed_dirs().collect();
        match op {
            NamespaceOp::SetAttr { gfid, .. }
            | NamespaceOp::SetFlags { gfid, .. }
            | NamespaceOp::SetXattr { gfid, .. }
            | NamespaceOp::RemoveXattr { gfid, .. }
            | NamespaceOp::Link { gfid, .. }
            | NamespaceOp::Open { gfid, lease: LeaseMode::Write } => changed.push(*gfid),
            NamespaceOp::Unlink { parent, name, .. } | NamespaceOp::Rmdir { parent, name } => {
                changed.extend(self.namespace.resolve(*parent, name)?);
            }
            NamespaceOp::Rename { parent, name, new_parent, new_name, .. } => {
                changed.extend(self.namespace.resolve(*parent, name)?);
                changed.extend(self.namespace.resolve(*new_parent, new_name)?);
            }
            _ => {}
        }
        Ok(changed)
    }

    /// The session, one of several mounts, gets leases on what it is told, if it can have them all.
    pub(super) fn cover(
        &mut self,
        now: Duration,
        token: u64,
        (session, op): (SessionId, &NamespaceOp),
        reply: &Reply,
    ) {
        if self.in_grace() {
            return;
        }
        let Some(told) = self.told_by(session, op, reply) else { return };
        if self.names.grant(now, session, &told) {
            self.covered.insert(token);
        }
    }

    /// What a reply tells that a lease can be on; `None` if there is something of which there can
    /// be none.
    fn told_by(&self, session: SessionId, op: &NamespaceOp, reply: &Reply) -> Option<Vec<Gfid>> {
        let file = |attr: &Attr| self.is_settled(session, attr).then_some(attr.gfid);
        Some(match (op, reply) {
            (NamespaceOp::ReadDir { gfid, .. }, Reply::Entries { entries, .. }) => {
                let settled = entries.iter().filter(|entry| !entry.written_elsewhere);
                std::iter::once(*gfid).chain(settled.map(|entry| entry.attr.gfid)).collect()
            }
            (
                NamespaceOp::Lookup { parent: dir, .. }
                | NamespaceOp::Create { parent: dir, .. }
                | NamespaceOp::Link { parent: dir, .. }
                | NamespaceOp::Parent { gfid: dir },
                Reply::Attr(attr) | Reply::Opened { attr, .. },
            ) => vec![*dir, file(attr)?],
            (
                NamespaceOp::GetAttr { .. }
                | NamespaceOp::SetAttr { .. }
                | NamespaceOp::SetFlags { .. }
                | NamespaceOp::Open { .. },
                Reply::Attr(attr) | Reply::Opened { attr, .. },
            ) => vec![file(attr)?],
            (
                NamespaceOp::Unlink { parent, .. } | NamespaceOp::Rmdir { parent, .. },
                Reply::Done,
            ) => vec![*parent],
            (NamespaceOp::Rename { parent, new_parent, .. }, Reply::Done) => {
                vec![*parent, *new_parent]
            }
            _ => return None,
        })
    }

    /// Are these a file's attributes until somebody asks to change them? Not while another session
    /// writes it, while its size is sought after its writer's death, nor when its last name is
    /// gone.
    pub(super) fn is_settled(&self, session: SessionId, attr: &Attr) -> bool {
        attr.nlink > 0
            && self.leases.writer(attr.gfid).is_none_or(|writer| writer == session)
            && !self.sought.contains(&attr.gfid)
    }

    /// Carries out what the machine decided.
    pub(super) fn follow_names(&mut self, now: Duration) -> Result<(), StoreError> {
        loop {
            let actions = self.names.take_actions();
            if actions.is_empty() {
                return Ok(());
            }
            for action in actions {
                match action {
                    NamesAction::Recall(session, recall) => {
                        self.events.push(Event::NamesRecall { session, recall });
                    }
                    NamesAction::Ready(ticket) => {
                        if let Some(pending) = self.unpark(ticket) {
                            self.attempt(now, pending, None)?;
                        }
                    }
                    NamesAction::Expired(ticket) => {
                        if let Some(pending) = self.unpark(ticket) {
                            self.reply(pending.token, Reply::TryAgain);
                        }
                    }
                }
            }
        }
    }
}
