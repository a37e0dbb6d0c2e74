//! What a session was promised: that it lives until some time, that it is the only mount until some
//! time, and that it may count on its leases on names until some time.
//!
//! Contract: no clock; times are milliseconds after a beginning that the caller knows. A promise is
//! taken down with the session's [`Standing`] locked, and only for the session that it was made to,
//! while nobody has declared it dead; that takes all promises back. So an answer that comes late
//! revives nothing. Whoever counts on a promise takes no lock, and looks at the time before the
//! term, which are written in the other order: the promise of a new term is never taken for one of
//! the term before.
//!
//! The words are parameters, so that `loom` can stand in for the hardware in the tests.

use protocol::SessionId;
use std::sync::atomic::{AtomicU64, Ordering};

/// The operations that it needs of an atomic word.
pub(super) trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    fn fetch_max(&self, to: u64, order: Ordering) -> u64;
}

impl Word for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }

    fn store(&self, value: u64, order: Ordering) {
        AtomicU64::store(self, value, order);
    }

    fn fetch_max(&self, to: u64, order: Ordering) -> u64 {
        AtomicU64::fetch_max(self, to, order)
    }
}

/// The session as all threads know it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Standing {
    pub session: SessionId,
    pub fenced: bool,
}

impl Standing {
    fn is_alive(&self, session: SessionId) -> bool {
        self.session == session && !self.fenced
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Promises<W = AtomicU64> {
    /// Until when the session surely lives.
    lives_until: W,
    /// Until when it surely is the only mount.
    alone_until: W,
    /// Until when it may count on its leases on names.
    names_until: W,
    /// See [`super::Term::number`].
    term: W,
}

impl<W: Word> Promises<W> {
    /// A session was opened.
    pub fn opened(&self, standing: &mut Standing, session: SessionId, until: u64) {
        *standing = Standing { session, fenced: false };
        self.renewed(standing, session, until);
    }

    /// The session lives until then.
    pub fn renewed(&self, standing: &Standing, session: SessionId, until: u64) {
        if standing.is_alive(session) {
            self.lives_until.store(until, Ordering::Release);
        }
    }

    /// The session is the only mount until the first time, or may count on its leases on names
    /// until the second, in this term.
    pub fn told(
        &self,
        standing: &Standing,
        session: SessionId,
        (alone, names): (u64, u64),
        term: u64,
    ) {
        if standing.is_alive(session) && term >= self.term.load(Ordering::Acquire) {
            // A service that was started anew knows of no leases but its own.
            if term > self.term.load(Ordering::Acquire) {
                self.names_until.store(0, Ordering::Release);
            }
            // The term first: whoever sees the new promise must not take it for one of the term
            // before.
            self.term.store(term, Ordering::Release);
            self.alone_until.fetch_max(alone, Ordering::AcqRel);
            self.names_until.fetch_max(names, Ordering::AcqRel);
        }
    }

    /// The session is dead. False: that was known, or it is another one's.
    pub fn fenced(&self, standing: &mut Standing, session: SessionId) -> bool {
        if !standing.is_alive(session) {
            return false;
        }
        standing.fenced = true;
        self.alone_until.store(0, Ordering::Release);
        self.names_until.store(0, Ordering::Release);
        self.lives_until.store(0, Ordering::Release);
        true
    }

    /// Until when the session surely lives.
    pub fn lives_until(&self) -> u64 {
        self.lives_until.load(Ordering::Acquire)
    }

    /// Until when it surely is the only mount.
    pub fn alone_until(&self) -> u64 {
        self.alone_until.load(Ordering::Acquire)
    }

    /// The same, until when it may count on its leases on names, and in which term.
    pub fn told_in(&self) -> (u64, u64, u64) {
        let alone = self.alone_until();
        let names = self.names_until.load(Ordering::Acquire);
        (alone, names, self.term.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests;
