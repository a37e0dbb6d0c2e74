//! Room for files that grow in directories with quotas.
//!
//! Contract: the length of a file is its writer's until he tells it, so he is promised how far he
//! may go before he has to ask: the *allowance*. What is promised and not told yet counts in the
//! quota like what is stored, so that all writers together do not pass a limit. Promises are in
//! memory; after a restart the sessions say what they have. One ends when the file is closed by its
//! writer, when the write lease goes back or the size of a dead writer's file was found, and with
//! the file. Who finds no room while others have promises that they do not use waits until these
//! were asked for, [`SHORT_WAIT`] at most.
//!
//! Who wrote a file before it began to count for a quota has no allowance: his lease is recalled,
//! and until it is back what he writes is not held up.

use super::Service;
use crate::store::{Store, StoreError};
use protocol::namespace::{Attr, FileKind, LeaseMode, NO_LIMIT, Reply, SetAttr};
use protocol::{Gfid, SessionId};
use std::collections::HashMap;
use std::time::Duration;

/// Bytes promised to the writer of a file at a time beyond what he asks for: a question for each
/// of these costs nothing beside writing them.
const PROMISE_BYTES_MAX: u64 = 16 << 20;
/// Less than this is not promised beyond what is asked for: where room is short, nobody has to be
/// asked for it.
const PROMISE_BYTES_MIN: u64 = 64 << 10;
/// The same with the lease: small files need no question.
const FIRST_BYTES_MAX: u64 = 1 << 20;
/// What is promised beyond what is asked for is this part of the room at most, so that many writers
/// find some.
const ROOM_PART: u128 = 64;
/// How long somebody waits for others' promises, and for what was removed.
const SHORT_WAIT: Duration = Duration::from_secs(2);
/// How long a file that is removed may be in use only because its close is on its way.
const ORPHAN_WAIT: Duration = Duration::from_secs(1);
/// Requests that wait so; more are refused at once.
const SHORT_MAX: usize = 4096;
/// Leases asked for at a time.
const RECALLS_MAX: usize = 256;

/// What the writer of a file was promised.
#[derive(Debug)]
struct Promise {
    session: SessionId,
    /// The quota's number.
    realm: u32,
    allowance: u64,
    /// The length that the service was told last.
    length: u64,
    /// What of the allowance the quota counts: the length is counted already.
    counted: u64,
}

/// All promises, and who waits for room.
#[derive(Debug, Default)]
pub(super) struct Promises {
    files: HashMap<Gfid, Promise>,
    short: HashMap<Who, Duration>,
    /// When a file was last removed that was still in use.
    orphaned: Option<Duration>,
}

/// Who waits for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Who {
    /// The writer of a file, also with a new question once its lease was recalled: two that ask
    /// for each other's leases must come to an end.
    Writer(SessionId, Gfid),
    /// Who sent a request, by its number.
    Request(SessionId, u64),
}

impl<S: Store> Service<S> {
    /// How far the holder of a lease that is granted may make a file.
    pub(super) fn first_allowance(&mut self, attr: &Attr, realm: u32, session: SessionId) -> u64 {
        if self.leases.held(attr.gfid, session) != Some(LeaseMode::Write) {
            return NO_LIMIT;
        }
        let has = self.take_promise(attr.gfid, Some(session));
        // Of one who is gone, if of anybody.
        self.end_promise(attr.gfid, None);
        if realm == 0 || attr.kind != FileKind::Regular {
            return NO_LIMIT;
        }
        let first = attr.size.saturating_add(self.beyond(realm, 0, FIRST_BYTES_MAX));
        let allowance = has.map_or(first, |has| has.allowance.max(first)).min(i64::MAX as u64);
        self.promise(attr, realm, session, allowance);
        allowance
    }

    /// What is promised beyond `needed` bytes.
    fn beyond(&self, realm: u32, needed: u64, max: u64) -> u64 {
        let Some(room) = self.namespace.room(realm) else { return max };
        let part = room.saturating_sub(needed.into()) / ROOM_PART;
        match u64::try_from(part).unwrap_or(u64::MAX).min(max) {
            ..PROMISE_BYTES_MIN => 0,
            part => part,
        }
    }

    fn promise(&mut self, attr: &Attr, realm: u32, session: SessionId, allowance: u64) {
        let counted = allowance.saturating_sub(attr.size);
        self.namespace.promise(realm, counted, true);
        let promise = Promise { session, realm, allowance, length: attr.size, counted };
        self.promises.files.insert(attr.gfid, promise);
    }

    /// A promise of this session, or of any, ends.
    pub(super) fn end_promise(&mut self, gfid: Gfid, session: Option<SessionId>) {
        self.take_promise(gfid, session);
    }

    fn take_promise(&mut self, gfid: Gfid, session: Option<SessionId>) -> Option<Promise> {
        let promise = self.promises.files.get(&gfid)?;
        if session.is_some_and(|session| session != promise.session) {
            return None;
        }
        let promise = self.promises.files.remove(&gfid)?;
        self.namespace.promise(promise.realm, promise.counted, false);
        Some(promise)
    }

    /// The service was told a length; a truncation ends what was promised beyond.
    pub(super) fn length_told(&mut self, attr: &Attr) {
        if let Some(promise) = self.take_promise(attr.gfid, None) {
            let is_cut = attr.size < promise.length;
            let allowance = if is_cut { attr.size } else { promise.allowance.max(attr.size) };
            self.promise(attr, promise.realm, promise.session, allowance);
        }
    }

    /// A session that ended has no promises but of files whose sizes are sought.
    pub(super) fn end_promises(&mut self, session: SessionId, sought: &[Gfid]) {
        if self.promises.files.is_empty() {
            return;
        }
        let of_session = |(gfid, promise): (&Gfid, &Promise)| {
            (promise.session == session && !sought.contains(gfid)).then_some(*gfid)
        };
        let files: Vec<Gfid> = self.promises.files.iter().filter_map(of_session).collect();
        files.into_iter().for_each(|gfid| self.end_promise(gfid, None));
    }

    /// After a restart a session says how far it may make a file.
    pub(super) fn reclaim_promise(
        &mut self,
        now: Duration,
        (gfid, session): (Gfid, SessionId),
        allowance: u64,
    ) -> Result<(), StoreError> {
        if self.namespace.has_no_quotas() || self.leases.writer(gfid) != Some(session) {
            return Ok(());
        }
        match self.namespace.attr_and_realm(gfid)? {
            Some((_, 0)) | None => {}
            Some(_) if allowance == NO_LIMIT => {
                self.leases.recall(now, gfid, Some(LeaseMode::Read));
            }
            Some((attr, realm)) => {
                self.take_promise(gfid, None);
                self.promise(&attr, realm, session, allowance.min(i64::MAX as u64));
            }
        }
        Ok(())
    }

    /// Answers [`NamespaceOp::GetRoom`](protocol::namespace::NamespaceOp::GetRoom).
    pub(super) fn get_room(
        &mut self,
        now: Duration,
        session: SessionId,
        gfid: Gfid,
        size: u64,
    ) -> Result<Reply, StoreError> {
        let Some((attr, realm)) = self.namespace.attr_and_realm(gfid)? else {
            return Ok(Reply::Errno(libc::ESTALE));
        };
        if attr.kind != FileKind::Regular || i64::try_from(size).is_err() {
            return Ok(Reply::Errno(libc::EFBIG));
        }
        if self.leases.held(gfid, session) != Some(LeaseMode::Write) {
            // It has given the lease back meanwhile, and asks for it first.
            return Ok(Reply::Room(0));
        }
        if realm == 0 {
            self.end_promise(gfid, None);
            return Ok(Reply::Room(NO_LIMIT));
        }
        let has = self.promises.files.get(&gfid).map_or(attr.size, |promise| promise.allowance);
        let has = has.max(attr.size);
        let needed = size.saturating_sub(has);
        let who = Who::Writer(session, gfid);
        if let Some(room) = self.namespace.room(realm)
            && room < needed.into()
        {
            return Ok(self.short_of_room(now, who, realm, u128::from(needed) - room));
        }
        self.promises.short.remove(&who);
        let allowance = match needed {
            0 => has,
            needed => has + needed + self.beyond(realm, needed, PROMISE_BYTES_MAX),
        };
        let allowance = allowance.min(i64::MAX as u64);
        self.take_promise(gfid, None);
        self.promise(&attr, realm, session, allowance);
        Ok(Reply::Room(allowance))
    }

    /// So many bytes are missing: asks those for it who have promises that they may not need.
    fn short_of_room(&mut self, now: Duration, who: Who, realm: u32, missing: u128) -> Reply {
        let may_help = |(other, promise): &(&Gfid, &Promise)| {
            let is_other = !matches!(who, Who::Writer(_, own) if own == **other);
            is_other && promise.counted > 0 && self.namespace.share_a_quota(realm, promise.realm)
        };
        let mut others: Vec<(u64, Gfid)> = self
            .promises
            .files
            .iter()
            .filter(may_help)
            .map(|(other, promise)| (promise.counted, *other))
            .collect();
        others.sort_unstable_by(|a, b| b.cmp(a));
        others.truncate(RECALLS_MAX);
        if others.iter().map(|(counted, _)| u128::from(*counted)).sum::<u128>() < missing {
            others.clear();
        }
        let reply = self.over_quota(now, who, !others.is_empty());
        if reply == Reply::TryAgain {
            for (_, other) in others {
                self.leases.recall(now, other, Some(LeaseMode::Read));
            }
        }
        reply
    }

    /// Something does not fit: it is to be asked for again, for a while, if others' promises may
    /// go, or files that were removed a moment ago and whose close is on its way.
    pub(super) fn over_quota(&mut self, now: Duration, who: Who, others: bool) -> Reply {
        let frees = self.promises.orphaned.is_some_and(|at| now < at + ORPHAN_WAIT);
        let short = &mut self.promises.short;
        let waits = (others || frees) && (short.contains_key(&who) || short.len() < SHORT_MAX);
        if waits && now < *short.entry(who).or_insert(now) + SHORT_WAIT {
            return Reply::TryAgain;
        }
        short.remove(&who);
        Reply::Errno(libc::EDQUOT)
    }

    /// A file without a name is in use, or its close is not told yet.
    pub(super) fn orphaned(&mut self, now: Duration) {
        self.promises.orphaned = Some(now);
    }

    /// Forgets who asked for room a while ago and did not come again.
    pub(super) fn tick_room(&mut self, now: Duration) {
        self.promises.short.retain(|_, since| now < *since + 4 * SHORT_WAIT);
    }

    /// May a user set this length? Who holds the write lease asks for room first, and what a writer
    /// tells has happened.
    pub(super) fn refuses_length(&self, gfid: Gfid, set: &SetAttr) -> Result<bool, StoreError> {
        let (Some(size), None, false) = (set.size, set.ctime, self.namespace.has_no_quotas())
        else {
            return Ok(false);
        };
        let Some((attr, realm)) = self.namespace.attr_and_realm(gfid)? else { return Ok(false) };
        let has = match self.promises.files.get(&gfid) {
            Some(promise) => promise.allowance.max(attr.size),
            None if self.leases.writer(gfid).is_some() => return Ok(false),
            None => attr.size,
        };
        let needed = size.saturating_sub(has);
        Ok(self.namespace.room(realm).is_some_and(|room| room < needed.into()))
    }

    /// Files began to count for a quota: who writes one gets an allowance with the lease, which he
    /// asks for again.
    pub(super) fn recall_adopted(&mut self, now: Duration) {
        for gfid in self.namespace.take_adopted() {
            if self.leases.writer(gfid).is_some() {
                self.leases.recall(now, gfid, Some(LeaseMode::Read));
            }
        }
    }

    /// Counts some of what was in directories before they had quotas: so many entries, about. True
    /// if there is more. Not in the grace period, when it is not known who writes what.
    ///
    /// # Errors
    /// When the store fails.
    pub fn count_quotas(&mut self, now: Duration, entries_max: usize) -> Result<bool, StoreError> {
        if !self.is_counting_quotas() {
            return Ok(false);
        }
        let more = self.namespace.count_quotas(entries_max)?;
        self.recall_adopted(now);
        self.follow(now)?;
        Ok(more)
    }

    /// Is there something for [`Service::count_quotas`]?
    pub fn is_counting_quotas(&self) -> bool {
        !self.in_grace() && self.namespace.is_counting_quotas()
    }
}
