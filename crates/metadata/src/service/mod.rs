//! Namespace, leases and sessions together: requests in, events out.
//!
//! Contract: one owner calls everything, in any order, with `now` counted from any fixed moment.
//! What requests did is neither durable nor told to anybody before [`Service::finish_turn`]: it
//! commits once for the whole turn and then hands out the events, to be delivered in order. After a
//! [`StoreError`] from any call the service must be dropped and opened again: what was carried out
//! since the last turn is unknown, and nobody was told that it happened.
//!
//! Exactly once: the answer to a request that changed something is kept, in the same commit, until
//! the session says that it has it or is gone; the same number asked again gets the same answer.
//! Requests on leases alone need no such memory, as asking twice comes to the same, but `Close` and
//! `ReturnLease` do: a late copy would take back what was opened since.
//!
//! After a restart: write leases are known from the store, and what sessions claim. Until every
//! session that spoke to the service before has sent `Reclaim` or is dead, or
//! [`ServiceConfig::grace_max`] is over, operations that could conflict get `TryAgain`. If the
//! machine has lost its power, the newest commits are lost: [`Reply::Kept`] tells which, and
//! sessions tell again what they can.

mod alone;
mod locking;
mod names;
mod perform;
mod sessions;
/// The first term after a start: greater than any before it, unless the clock was set back by more
/// than the service ran.
fn first_term(wall: Timestamp) -> u64 {
    u64::try_from(wall.secs)
        .unwrap_or(0)
        .saturating_mul(1_000_000_000)
        .saturating_add(wall.nanos.into())
}

#[cfg(test)]
mod tests;

pub use sessions::SessionView;

use crate::lease::names::{NameLeases, NamesConfig};
use crate::lease::{Action, Answer, LeaseConfig, Leases, Ticket, Want};
use crate::locks::{Locks, LocksConfig};
use crate::namespace::{Namespace, PurgeEntry, SizeRecovery};
use crate::store::{Persist, Store, StoreError};
use alone::Alone;
use protocol::namespace::{
    ACL_ACCESS, Attr, Commit, FileKind, LeaseMode, NamesRecall, NamespaceOp, Recall, Reply,
    Request, SECURITY_CAPABILITY, SetAttr, Timestamp,
};
use protocol::{ClusterId, Epoch, Gfid, Rule, SessionId};
use sessions::{Session, Standing};
use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::time::Duration;

/// Limits of the service.
#[derive(Clone, Copy, Debug)]
pub struct ServiceConfig {
    /// A request waits for leases at most this long before it gets `TryAgain`: below the 5 s that
    /// no call may exceed.
    pub wait_max: Duration,
    /// A lease on a file whose writer died waits at most this long for the recovery of the size.
    pub recovery_wait: Duration,
    /// The grace period after a restart ends at the latest after this time.
    pub grace_max: Duration,
    /// Answers kept for a session at most; beyond it, changes are refused with EAGAIN. A session
    /// that reports what it has received stays far below.
    pub answers_max: usize,
    /// A request for a byte-range lock waits at most this long before it is to be asked again: how
    /// soon a client can tell that the process which waits was killed.
    pub lock_wait: Duration,
    /// For how long the only mount is told that it may cache names and attributes, and so how long
    /// another mount takes to arrive at most, but for a fraction of a second.
    pub alone: Duration,
    /// Limits of leases.
    pub lease: LeaseConfig,
    /// Limits of leases on names.
    pub names: NamesConfig,
    /// Limits of byte-range locks.
    pub locks: LocksConfig,
}

impl Default for ServiceConfig {
    fn default() -> Self {
        Self {
            wait_max: Duration::from_secs(4),
            recovery_wait: Duration::from_secs(3),
            grace_max: Duration::from_secs(30),
            answers_max: 8192,
            lock_wait: Duration::from_millis(250),
            alone: Duration::from_secs(1),
            lease: LeaseConfig::default(),
            names: NamesConfig::default(),
            locks: LocksConfig::default(),
        }
    }
}

/// What the owner is to deliver. A token is the owner's number for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The answer to a request.
    Reply {
        /// To which request.
        token: u64,
        /// What.
        reply: Reply,
    },
    /// A request to give a lease back, to the session's connection. If it has none, forget it: it
    /// will be repeated.
    Recall {
        /// To whom.
        session: SessionId,
        /// What.
        recall: Recall,
    },
    /// A request to forget names and attributes, as [`Event::Recall`].
    NamesRecall {
        /// To whom.
        session: SessionId,
        /// What.
        recall: NamesRecall,
    },
    /// The answer to a request, to be given once everything committed is on disk (the persister ran
    /// after this).
    Sync {
        /// To which request.
        token: u64,
        /// What.
        reply: Reply,
    },
}

/// A request that is being carried out or waits.
#[derive(Debug)]
struct Pending {
    token: u64,
    request: Request,
    deadline: Duration,
    /// The request was carried out before, with this answer; only its open and lease may be
    /// missing.
    repeated: Option<Attr>,
    /// The file that it waits for.
    waits_for: Gfid,
}

/// The service's state.
pub struct Service<S> {
    config: ServiceConfig,
    namespace: Namespace<S>,
    leases: Leases,
    locks: Locks,
    lock_waits: locking::Waiting,
    alone: Alone,
    names: NameLeases,
    /// Requests of which the session has leases on all that their replies tell.
    covered: BTreeSet<u64>,
    /// Files whose sizes are sought, as their writers died.
    sought: BTreeSet<Gfid>,
    sessions: HashMap<SessionId, Session>,
    view: Option<SessionView>,
    /// The newest map that the service or any session which spoke to it has.
    heard: Epoch,
    /// The end of the grace period at the latest; `None` when it is over. Starts with the first
    /// view of the sessions.
    grace_until: Option<Duration>,
    orphans: BTreeSet<Gfid>,
    parked: HashMap<Ticket, Pending>,
    waiting: HashMap<(SessionId, u64), Ticket>,
    ticket_next: u64,
    events: Vec<Event>,
    full: bool,
    durable: Commit,
}

impl<S: Store> Service<S> {
    /// Opens the service over a store.
    ///
    /// # Errors
    /// As [`Namespace::open`].
    pub fn open(store: S, config: ServiceConfig, wall: Timestamp) -> Result<Self, StoreError> {
        let namespace = Namespace::open(store, wall)?;
        let retained = namespace.retained()?;
        let mut leases = Leases::new(config.lease, namespace.first_token());
        let mut sessions: HashMap<SessionId, Session> = HashMap::new();
        for session in retained.sessions {
            sessions.entry(session).or_default();
        }
        for (session, number, reply) in retained.answers {
            sessions.entry(session).or_default().answers.insert(number, reply);
        }
        for (gfid, (session, token)) in retained.writers {
            sessions.entry(session).or_default();
            leases.restore_writer(gfid, session, token);
        }
        let mut sought = BTreeSet::new();
        for file in namespace.size_recovery_next(None, usize::MAX)? {
            sought.insert(file.gfid);
            leases.recover(file.gfid, config.recovery_wait);
        }
        let durable = namespace.last_commit();
        Ok(Self {
            config,
            orphans: namespace.orphans()?.into_iter().collect(),
            namespace,
            leases,
            locks: Locks::new(config.locks),
            lock_waits: locking::Waiting::default(),
            alone: Alone::new(config.alone, !sessions.is_empty(), first_term(wall)),
            names: NameLeases::new(config.names),
            covered: BTreeSet::new(),
            sought,
            sessions,
            view: None,
            heard: Epoch::default(),
            grace_until: Some(Duration::MAX),
            parked: HashMap::new(),
            waiting: HashMap::new(),
            ticket_next: 0,
            events: Vec::new(),
            full: false,
            durable,
        })
    }

    /// A request has arrived; its answer will be an event with this token. A token is answered
    /// once.
    ///
    /// # Errors
    /// When the store fails.
    pub fn submit(
        &mut self,
        now: Duration,
        token: u64,
        request: Request,
    ) -> Result<(), StoreError> {
        let (session, is_synced) = (request.session, is_synced(&request.op));
        match self.admit(now, token, request) {
            ControlFlow::Continue(pending) => {
                self.attempt(now, pending, None)?;
                self.follow(now)
            }
            ControlFlow::Break((token, reply)) => {
                self.deliver(token, reply, is_synced || self.is_unnoted(session));
                Ok(())
            }
        }
    }

    /// May the disk not know yet that there is this session? It is answered when it does: after a
    /// loss of power nobody is given a lease before all sessions that may have some are heard.
    fn is_unnoted(&self, session: SessionId) -> bool {
        self.sessions.get(&session).is_some_and(|session| session.noted_in > self.durable)
    }

    /// Decides whether a request is to be carried out now; otherwise says which request gets which
    /// answer instead.
    fn admit(
        &mut self,
        now: Duration,
        token: u64,
        request: Request,
    ) -> ControlFlow<(u64, Reply), Pending> {
        match self.standing(request.session) {
            Standing::Live => {}
            Standing::Unknown => return ControlFlow::Break((token, Reply::TryAgain)),
            Standing::Gone => return ControlFlow::Break((token, Reply::Fenced)),
        }
        // Rule: GrantHeard - what the session wrote may be missing where older maps lead; the
        // monitor sends the newer one. What a session says of epochs counts for nobody else.
        if request.epoch > self.heard && self.config.lease.rules.on(Rule::GrantHeard) {
            return ControlFlow::Break((token, Reply::TryAgain));
        }
        let id = (request.session, request.number);
        let deadline = now + self.config.wait_max;
        let answers_max = self.config.answers_max;
        let session = self.meet(&request);
        if request.number <= session.answered {
            return ControlFlow::Break((token, Reply::Errno(libc::EINVAL)));
        }
        let mut pending =
            Pending { token, request, deadline, repeated: None, waits_for: Gfid::default() };
        match (&pending.request.op, session.answers.get(&id.1)) {
            (
                NamespaceOp::Create { open: Some(_), .. } | NamespaceOp::CreateUnnamed { .. },
                Some(Reply::Attr(attr)),
            ) => pending.repeated = Some(*attr),
            (_, Some(answer)) => return ControlFlow::Break((token, answer.clone())),
            (op, None) if session.answers.len() >= answers_max && is_kept(op) => {
                return ControlFlow::Break((token, Reply::Errno(libc::EAGAIN)));
            }
            (_, None) => {}
        }
        if let Some(parked) = self.waiting.get(&id).and_then(|ticket| self.parked.get_mut(ticket)) {
            let older = std::mem::replace(&mut parked.token, token); // its connection is lost: the new one gets the answer
            return ControlFlow::Break((older, Reply::TryAgain));
        }
        if self.in_grace() && !is_harmless(&pending.request.op) {
            return ControlFlow::Break((token, Reply::TryAgain));
        }
        ControlFlow::Continue(pending)
    }

    /// The cluster map has changed. `wall` is the time for files whose writer died before it told
    /// theirs.
    ///
    /// # Errors
    /// When the store fails.
    pub fn sessions_changed(
        &mut self,
        now: Duration,
        wall: Timestamp,
        view: SessionView,
    ) -> Result<(), StoreError> {
        if self.view.is_none() {
            self.grace_until = Some(now + self.config.grace_max);
        }
        self.heard = self.heard.max(view.epoch);
        self.view = Some(view);
        let known: Vec<SessionId> = self.sessions.keys().copied().collect();
        for session in known {
            match self.view.as_ref().map(|view| view.standing(session)) {
                Some(Standing::Gone) if self.is_dead(session) => {
                    for gfid in self.leases.fence(now, session) {
                        self.settle_orphan(now, gfid)?;
                    }
                    self.fence_locks(session);
                    self.alone.leave(session);
                    self.names.leave(now, session);
                }
                Some(Standing::Gone) => self.end_session(now, session, wall)?,
                _ => {}
            }
        }
        self.follow(now)?;
        self.maybe_end_grace(now)
    }

    /// Time passes; call it a few times a second.
    ///
    /// # Errors
    /// When the store fails.
    pub fn tick(&mut self, now: Duration) -> Result<(), StoreError> {
        self.leases.tick(now);
        self.locks.tick(now);
        self.settle_locks(now);
        self.names.tick(now);
        self.follow(now)?;
        self.maybe_end_grace(now)
    }

    /// The end of a turn: commits, and hands out what is to be delivered, in order.
    ///
    /// # Errors
    /// When the store fails; nothing of this turn may then be told.
    pub fn finish_turn(&mut self) -> Result<Vec<Event>, StoreError> {
        self.namespace.commit()?;
        Ok(std::mem::take(&mut self.events))
    }

    /// The disk is almost full: operations that need space get ENOSPC until this is taken back.
    /// Removing goes on.
    pub fn set_full(&mut self, full: bool) {
        self.full = full;
    }

    /// The cluster that the namespace belongs to, if it is bound.
    ///
    /// # Errors
    /// When the store fails.
    pub fn cluster(&self) -> Result<Option<ClusterId>, StoreError> {
        self.namespace.cluster()
    }

    /// The cluster that the namespace belongs to; binds it at the first call. The result is the one
    /// bound.
    ///
    /// # Errors
    /// When the store fails.
    pub fn bind_cluster(&mut self, cluster: ClusterId) -> Result<ClusterId, StoreError> {
        if let Some(bound) = self.namespace.cluster()? {
            return Ok(bound);
        }
        self.namespace.bind_cluster(cluster);
        Ok(cluster)
    }

    /// What tells the namespace from any other: `fresh`, a random number, if it has none yet. It is
    /// on the disk when this returns, so that a power loss makes no other of a namespace that the
    /// monitor knows.
    ///
    /// # Errors
    /// When the store fails.
    pub fn identity(&mut self, fresh: u128) -> Result<u128, StoreError> {
        if let Some(identity) = self.namespace.identity()? {
            return Ok(identity);
        }
        self.namespace.set_identity(fresh);
        self.namespace.commit()?;
        self.sync()?;
        Ok(fresh)
    }

    /// Commits up to this one are on disk: see [`Namespace::persisted`].
    pub fn persisted(&mut self, upto: Commit) {
        self.namespace.persisted(upto);
        self.durable = self.durable.max(upto);
    }

    /// Brings what was committed to the disk, and waits for that. An owner that has more to do runs
    /// [`Service::persister`] elsewhere.
    ///
    /// # Errors
    /// When the store fails.
    pub fn sync(&mut self) -> Result<(), StoreError> {
        self.namespace.sync()?;
        self.durable = self.namespace.last_commit();
        Ok(())
    }

    /// Does somebody wait for the next sync who did not ask for it?
    pub fn awaits_sync(&self) -> bool {
        self.namespace.awaits_sync()
    }

    /// The last commit that is on disk.
    pub fn durable(&self) -> Commit {
        self.durable
    }

    /// What brings commits to disk, for a thread of its own.
    pub fn persister(&self) -> Box<dyn Persist> {
        self.namespace.persister()
    }

    /// The tree, for reading and checking.
    pub fn namespace(&self) -> &Namespace<S> {
        &self.namespace
    }

    /// The leases, for reading and checking.
    pub fn leases(&self) -> &Leases {
        &self.leases
    }

    /// Is the grace period after the start still on?
    pub fn in_grace(&self) -> bool {
        self.grace_until.is_some()
    }

    /// Files whose objects are to be deleted; see [`Namespace::purge_next`].
    ///
    /// # Errors
    /// When the store fails.
    pub fn purge_next(
        &mut self,
        after: Option<Gfid>,
        limit: usize,
    ) -> Result<Vec<PurgeEntry>, StoreError> {
        self.namespace.purge_next(after, limit)
    }

    /// The objects of the file are deleted.
    ///
    /// # Errors
    /// When the store fails.
    pub fn purged(&mut self, gfid: Gfid) -> Result<(), StoreError> {
        self.namespace.purged(gfid)
    }

    /// Files whose size is to be recovered from their data. They stay listed until
    /// [`Service::size_recovered`].
    ///
    /// # Errors
    /// When the store fails.
    pub fn size_recovery_next(
        &self,
        after: Option<Gfid>,
        limit: usize,
    ) -> Result<Vec<SizeRecovery>, StoreError> {
        self.namespace.size_recovery_next(after, limit)
    }

    /// The data of the file reaches to `end` bytes: requests that waited for it go on. Without
    /// effect when a new writer has the file by now.
    ///
    /// # Errors
    /// When the store fails.
    pub fn size_recovered(
        &mut self,
        now: Duration,
        gfid: Gfid,
        end: u64,
        wall: Timestamp,
    ) -> Result<(), StoreError> {
        self.namespace.size_recovered(gfid, end, wall)?;
        self.sought.remove(&gfid);
        self.alone.disturb();
        if self.leases.writer(gfid).is_none() {
            self.leases.recall(now, gfid, None); // readers that did not wait may have cached the old size
        }
        self.leases.recovered(now, gfid);
        self.follow(now)
    }

    fn reply(&mut self, token: u64, reply: Reply) {
        self.events.push(Event::Reply { token, reply });
    }

    /// Answers, after a sync if one was asked for. An answer that was kept waits, too: it may have
    /// been given before that sync.
    fn deliver(&mut self, token: u64, reply: Reply, synced: bool) {
        let failed = matches!(reply, Reply::Errno(_) | Reply::TryAgain | Reply::Fenced);
        let event = if synced && !failed {
            Event::Sync { token, reply }
        } else {
            Event::Reply { token, reply }
        };
        self.events.push(event);
    }

    /// Carries a request out, or parks it until the leases allow it; `granted` is the file for
    /// which they do.
    fn attempt(
        &mut self,
        now: Duration,
        pending: Pending,
        granted: Option<Gfid>,
    ) -> Result<(), StoreError> {
        if let NamespaceOp::Open { gfid, lease: LeaseMode::Write } = pending.request.op
            && self.namespace.attr(gfid)?.is_some_and(|attr| attr.flags.immutable)
        {
            if let Some(granted) = granted {
                // It may have had this one before, and goes on to use it.
                self.leases.returned(now, granted, pending.request.session, Some(LeaseMode::Read));
            }
            self.reply(pending.token, Reply::Errno(libc::EPERM));
            return Ok(());
        }
        if let Some((gfid, want)) = self.need(&pending)?
            && granted != Some(gfid)
        {
            let ticket = Ticket(self.ticket_next);
            let who = (gfid, pending.request.session);
            match self.leases.request(now, pending.deadline, who, want, ticket) {
                Answer::Ready => {}
                Answer::TooMany => {
                    self.reply(pending.token, Reply::Errno(libc::ENFILE));
                    return Ok(());
                }
                Answer::Wait => {
                    self.ticket_next += 1;
                    self.waiting.insert((pending.request.session, pending.request.number), ticket);
                    self.parked.insert(ticket, Pending { waits_for: gfid, ..pending });
                    return Ok(());
                }
            }
        }
        let Some(pending) = self.pass_names(now, pending)? else { return Ok(()) };
        let (session, number) = (pending.request.session, pending.request.number);
        let told = self.alone.is_one_of_several(session).then(|| pending.request.op.clone());
        let kept = is_kept(&pending.request.op) && pending.repeated.is_none();
        let (token, synced) =
            (pending.token, is_synced(&pending.request.op) || self.is_unnoted(session));
        let Some(reply) = self.perform(now, pending)? else { return Ok(()) };
        if kept {
            self.keep(session, number, &reply);
        }
        if let Some(op) = told {
            self.cover(now, token, (session, &op), &reply);
        }
        self.deliver(token, reply, synced);
        self.settle_locks(now);
        Ok(())
    }

    /// Keeps the answer of a request that changed something, until the session has it.
    fn keep(&mut self, session: SessionId, number: u64, reply: &Reply) {
        let answer = match reply {
            Reply::Errno(_) | Reply::TryAgain => return,
            // Kept without the lease, which may have gone when the answer is asked for again.
            Reply::Opened { attr, .. } => Reply::Attr(*attr),
            other => other.clone(),
        };
        self.namespace.keep_answer(session, number, &answer);
        if let Some(entry) = self.sessions.get_mut(&session) {
            entry.answers.insert(number, answer);
        }
    }

    /// For how long the session, which is being answered, may take itself for the only mount,
    /// counted from when it asked.
    pub fn promise_alone(&mut self, now: Duration, session: SessionId) -> Duration {
        if self.in_grace() { Duration::ZERO } else { self.alone.promise(now, session) }
    }

    /// The term in which a mount may be alone: what it was told in another is not true any more.
    pub fn alone_term(&self) -> u64 {
        self.alone.term()
    }

    /// What a request needs of a file's leases before it may be carried out.
    fn need(&self, pending: &Pending) -> Result<Option<(Gfid, Want)>, StoreError> {
        let session = pending.request.session;
        let regular = |gfid: Gfid| -> Result<bool, StoreError> {
            Ok(self.namespace.attr(gfid)?.is_some_and(|attr| attr.kind == FileKind::Regular))
        };
        Ok(match &pending.request.op {
            NamespaceOp::Create { open: Some(mode), .. }
            | NamespaceOp::CreateUnnamed { open: mode, .. } => match pending.repeated {
                Some(attr) if regular(attr.gfid)? => Some((attr.gfid, Want::Hold(*mode))),
                _ => None,
            },
            NamespaceOp::Open { gfid, lease } if regular(*gfid)? => {
                Some((*gfid, Want::Hold(*lease)))
            }
            NamespaceOp::GetAttr { gfid } => Some((*gfid, Want::Current)),
            NamespaceOp::Lookup { parent, name } if !self.leases.is_empty() => {
                let gfid = self.namespace.resolve(*parent, name)?;
                gfid.filter(|gfid| self.leases.held(*gfid, session).is_none())
                    .map(|gfid| (gfid, Want::Current))
            }
            NamespaceOp::SetAttr { gfid, set: SetAttr { size: Some(_), .. }, .. } => {
                Some((*gfid, Want::Alone))
            }
            // Whoever goes on afterwards has to ask, and learns of the flags.
            NamespaceOp::SetFlags { gfid, .. } => Some((*gfid, Want::Alone)),
            // A writer may know of a change that the service was not told yet, and that came before
            // this one.
            NamespaceOp::SetAttr { gfid, .. } => Some((*gfid, Want::Current)),
            // It changes the mode, as chmod does.
            NamespaceOp::SetXattr { gfid, name, .. } if name == ACL_ACCESS => {
                Some((*gfid, Want::Current))
            }
            // Holders of leases remember that a file has none, so as not to ask before every write.
            NamespaceOp::SetXattr { gfid, name, .. } if name == SECURITY_CAPABILITY => {
                Some((*gfid, Want::Alone))
            }
            _ => None,
        })
    }

    /// Carries out what the lease machines decided.
    fn follow(&mut self, now: Duration) -> Result<(), StoreError> {
        loop {
            self.follow_leases(now)?;
            self.follow_names(now)?;
            if !self.leases.has_actions() {
                return Ok(());
            }
        }
    }

    /// Carries out what the lease machine decided.
    fn follow_leases(&mut self, now: Duration) -> Result<(), StoreError> {
        loop {
            let actions = self.leases.take_actions();
            if actions.is_empty() {
                return Ok(());
            }
            for action in actions {
                match action {
                    Action::Recall { session, gfid, keep } => {
                        self.events.push(Event::Recall { session, recall: Recall { gfid, keep } });
                    }
                    Action::Ready(ticket) => {
                        if let Some(pending) = self.unpark(ticket) {
                            let granted = pending.waits_for;
                            self.attempt(now, pending, Some(granted))?;
                        }
                    }
                    Action::Expired(ticket) => {
                        if let Some(pending) = self.unpark(ticket) {
                            self.reply(pending.token, Reply::TryAgain);
                        }
                    }
                }
            }
        }
    }

    fn unpark(&mut self, ticket: Ticket) -> Option<Pending> {
        let pending = self.parked.remove(&ticket)?;
        self.waiting.remove(&(pending.request.session, pending.request.number));
        Some(pending)
    }

    /// An orphan that nobody uses any more goes; one that is closed but may still be written is
    /// asked for.
    fn settle_orphan(&mut self, now: Duration, gfid: Gfid) -> Result<(), StoreError> {
        if self.in_grace() || !self.orphans.contains(&gfid) {
            return Ok(());
        }
        if !self.leases.in_use(gfid) {
            self.orphans.remove(&gfid);
            self.namespace.reap(gfid)?;
            self.leases.forget(gfid);
            self.locks.forget(gfid);
        } else if !self.leases.is_open(gfid) {
            self.leases.recall(now, gfid, None);
        }
        Ok(())
    }
}

/// Is the answer kept until the session has it?
fn is_kept(op: &NamespaceOp) -> bool {
    matches!(
        op,
        NamespaceOp::SetAttr { .. }
            | NamespaceOp::SetFlags { .. }
            | NamespaceOp::Create { .. }
            | NamespaceOp::CreateUnnamed { .. }
            | NamespaceOp::Link { .. }
            | NamespaceOp::Unlink { .. }
            | NamespaceOp::Rmdir { .. }
            | NamespaceOp::Rename { .. }
            | NamespaceOp::SetXattr { .. }
            | NamespaceOp::RemoveXattr { .. }
            | NamespaceOp::Close { .. }
            | NamespaceOp::ReturnLease { .. }
            | NamespaceOp::Lock { .. }
    )
}

/// Is it answered only when everything committed is on disk?
fn is_synced(op: &NamespaceOp) -> bool {
    matches!(op, NamespaceOp::Sync | NamespaceOp::SetAttr { sync: true, .. })
}

/// May it be carried out before all leases and opens are known again?
fn is_harmless(op: &NamespaceOp) -> bool {
    matches!(
        op,
        NamespaceOp::Lookup { .. }
            | NamespaceOp::GetAttr { .. }
            | NamespaceOp::ReadLink { .. }
            | NamespaceOp::ReadDir { .. }
            | NamespaceOp::Parent { .. }
            | NamespaceOp::GetXattr { .. }
            | NamespaceOp::ListXattr { .. }
            | NamespaceOp::Close { .. }
            | NamespaceOp::ReturnLease { .. }
            | NamespaceOp::ReturnNames { .. }
            | NamespaceOp::Reclaim { .. }
            | NamespaceOp::Mount
            | NamespaceOp::Sync
            | NamespaceOp::StatFs
    )
}

/// Does it need space?
fn is_growing(op: &NamespaceOp) -> bool {
    matches!(
        op,
        NamespaceOp::Create { .. }
            | NamespaceOp::CreateUnnamed { .. }
            | NamespaceOp::Link { .. }
            | NamespaceOp::Rename { .. }
            | NamespaceOp::SetXattr { .. }
            | NamespaceOp::BlobRoot { .. }
    )
}

/// What a holder of a lease may still tell: a writer everything but that more will follow, a reader
/// nothing.
fn told(held: LeaseMode, set: &SetAttr) -> SetAttr {
    match held {
        LeaseMode::Write => SetAttr { times_follow: false, ..*set },
        LeaseMode::Read => SetAttr::default(),
    }
}
