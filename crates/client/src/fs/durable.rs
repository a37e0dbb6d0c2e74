//! Whether the metadata service's disk has all that this mount has told it, so that an fsync need
//! not ask.
//!
//! Contract: no I/O, no clock, for any thread. Every request goes through [`Durable::begin`] and
//! [`Telling::end`]. A sync vouches for what had ended before it began. What other mounts did is
//! looked at only by whether there were any: a new *term* ([`Term`]) counts as a change.

use crate::session::Term;
use protocol::namespace::NamespaceOp;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Durable {
    /// Beginnings and ends of changes.
    moves: AtomicU64,
    /// How many of them, from the first on, are on the service's disk.
    synced: AtomicU64,
    /// The term in which `moves` was counted last.
    term: AtomicU64,
}

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Nothing that lasts.
    Question,
    /// It changes something.
    Change,
    /// It changes something, and is on the disk with all before it when it is answered.
    SyncedChange,
    /// What was told before is on the disk when it is answered.
    Sync,
}

/// A request under way. Dropped without an end, it may have changed something and has synced
/// nothing.
#[derive(Debug)]
pub(super) struct Telling<'a> {
    durable: &'a Durable,
    kind: Kind,
    begun: u64,
}

impl Durable {
    /// A request is about to be sent.
    pub(super) fn begin(&self, term: Term, op: &NamespaceOp) -> Telling<'_> {
        let kind = match op {
            NamespaceOp::Sync => Kind::Sync,
            NamespaceOp::SetAttr { sync: true, .. } => Kind::SyncedChange,
            op if op.is_question() => Kind::Question,
            _ => Kind::Change,
        };
        self.see(term);
        if matches!(kind, Kind::Change | Kind::SyncedChange) {
            self.moves.fetch_add(1, Relaxed);
        }
        Telling { durable: self, kind, begun: self.moves.load(Relaxed) }
    }

    /// Has the service's disk everything that was answered, also of other mounts?
    pub(super) fn is_synced(&self, term: Term) -> bool {
        self.see(term);
        term.holds && self.synced.load(Relaxed) == self.moves.load(Relaxed)
    }

    fn see(&self, term: Term) {
        if self.term.swap(term.number, Relaxed) != term.number {
            self.moves.fetch_add(1, Relaxed);
        }
    }
}

impl Telling<'_> {
    /// It was answered, well or not.
    pub(super) fn end(self, well: bool) {
        let (durable, kind, begun) = (self.durable, self.kind, self.begun);
        drop(self);
        match kind {
            Kind::Sync if well => durable.synced.fetch_max(begun, Relaxed),
            // With its own end, if nothing else began or ended meanwhile.
            Kind::SyncedChange if well => {
                let alone = durable.moves.load(Relaxed) == begun + 1;
                durable.synced.fetch_max(begun + u64::from(alone), Relaxed)
            }
            _ => return,
        };
    }
}

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        if matches!(self.kind, Kind::Change | Kind::SyncedChange) {
            self.durable.moves.fetch_add(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::Gfid;
    use protocol::namespace::SetAttr;

    const ALONE: Term = Term { number: 1, holds: true, leased: false };

    fn setattr(sync: bool) -> NamespaceOp {
        NamespaceOp::SetAttr { gfid: Gfid::ROOT, set: SetAttr::default(), sync }
    }

    #[test]
    fn what_was_told_is_on_disk_after_a_sync() {
        let durable = Durable::default();
        durable.begin(ALONE, &setattr(false)).end(true);
        durable.begin(ALONE, &NamespaceOp::Sync).end(false);
        assert!(!durable.is_synced(ALONE));
        durable.begin(ALONE, &NamespaceOp::Sync).end(true);
        assert!(durable.is_synced(ALONE));
        durable.begin(ALONE, &NamespaceOp::StatFs).end(true);
        assert!(durable.is_synced(ALONE), "a question changes nothing");
        drop(durable.begin(ALONE, &setattr(false)));
        assert!(!durable.is_synced(ALONE), "it may have come through");
    }

    #[test]
    fn a_synced_change_vouches_for_those_before_it() {
        let durable = Durable::default();
        durable.begin(ALONE, &setattr(false)).end(true);
        durable.begin(ALONE, &setattr(true)).end(true);
        assert!(durable.is_synced(ALONE));
        durable.begin(ALONE, &setattr(true)).end(false);
        assert!(!durable.is_synced(ALONE));
    }

    #[test]
    fn nothing_vouches_for_what_ended_after_it_began() {
        for sync in [setattr(true), NamespaceOp::Sync] {
            let durable = Durable::default();
            let other = durable.begin(ALONE, &setattr(false));
            let sync = durable.begin(ALONE, &sync);
            other.end(true);
            sync.end(true);
            assert!(!durable.is_synced(ALONE));
        }
        let durable = Durable::default();
        let other = durable.begin(ALONE, &setattr(false));
        durable.begin(ALONE, &setattr(true)).end(true);
        other.end(true);
        assert!(!durable.is_synced(ALONE));
    }

    #[test]
    fn other_mounts_may_have_changed_something() {
        let durable = Durable::default();
        durable.begin(ALONE, &NamespaceOp::Sync).end(true);
        assert!(durable.is_synced(ALONE));
        assert!(!durable.is_synced(Term { holds: false, ..ALONE }));
        let later = Term { number: 2, ..ALONE };
        assert!(!durable.is_synced(later), "between the terms there were others");
        durable.begin(later, &NamespaceOp::Sync).end(true);
        assert!(durable.is_synced(later));
    }
}
