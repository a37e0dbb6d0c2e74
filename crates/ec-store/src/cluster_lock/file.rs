//! One client's operations on one file, each under the lock on all servers that its policy wants.
//!
//! Contract: operations start in the order in which they were submitted. A lock that another client
//! wants is given back once those have ended that waited for it here when the wish was heard
//! (GlusterFS lets the same ones through), and at least one, so that clients that want one file
//! take turns and all get on.

use super::{Access, Acquisition, LockCounts, Request, Unexpected};
use protocol::{ShardIndex, ShardSet};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// When a lock is taken, and for how long it is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// An exclusive lock for every operation, reads too: section 2.3 of the thesis.
    EveryOperation,
    /// GlusterFS's eager locking (`disperse.eager-lock`): an exclusive lock that is kept until
    /// another client wants it, or nothing was done for so long (`disperse.eager-lock-timeout`).
    /// Under it reads run side by side, writes alone.
    Eager {
        /// How long it is kept without an operation.
        idle: Duration,
    },
    /// A lock taken "only when opening the file", as the thesis proposes in section 2, and a lease
    /// in Trefoil: shared to read, exclusive to write, kept until another client wants it.
    /// Operations under it do not wait for each other: each server keeps their order.
    AtOpen,
}

impl Policy {
    /// What the servers are asked for, for an operation.
    pub const fn access(self, operation: Access) -> Access {
        match self {
            Policy::EveryOperation | Policy::Eager { .. } => Access::Exclusive,
            Policy::AtOpen => operation,
        }
    }
}

/// A server's answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply {
    /// Was the lock granted? Without meaning for an unlock.
    pub is_granted: bool,
    /// Others wait for it already.
    pub is_contended: bool,
}

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action<T> {
    /// Send this to a server; the lock has this access.
    Ask(Request, Access),
    /// Carry the operation out; [`FileLock::finish`] follows.
    Start(T),
}

/// What is to be done, in this order.
pub type Actions<T> = SmallVec<[Action<T>; 4]>;

/// See the module. `T` names an operation.
#[derive(Debug)]
pub struct FileLock<T> {
    policy: Policy,
    lock: Acquisition,
    /// Of the lock that is held, or on its way.
    access: Access,
    waiting: VecDeque<(T, Access)>,
    /// Operations under way that only read, and others.
    readers: usize,
    writers: usize,
    /// Operations started since the lock was taken.
    started: usize,
    /// Somebody else wants it: so many of those that wait are let through. Before the lock is held,
    /// all that will wait.
    wanted: Option<usize>,
    idle_since: Option<Instant>,
}

impl<T> FileLock<T> {
    /// Of a file without operations, on these servers.
    ///
    /// # Panics
    /// If there are no servers.
    pub fn new(policy: Policy, servers: ShardSet) -> FileLock<T> {
        FileLock {
            policy,
            lock: Acquisition::new(servers),
            access: Access::Exclusive,
            waiting: VecDeque::new(),
            readers: 0,
            writers: 0,
            started: 0,
            wanted: None,
            idle_since: None,
        }
    }

    /// What locking took so far.
    pub fn counts(&self) -> LockCounts {
        self.lock.counts()
    }

    /// Is there nothing to do, nothing held and nothing on its way?
    pub fn is_free(&self) -> bool {
        self.lock.is_free() && self.waiting.is_empty()
    }

    /// An operation is to be carried out.
    pub fn submit(&mut self, operation: T, access: Access) -> Actions<T> {
        self.waiting.push_back((operation, access));
        self.advance()
    }

    /// A server has answered.
    ///
    /// # Errors
    /// [`Unexpected`]; nothing has changed.
    pub fn on_reply(&mut self, server: ShardIndex, reply: Reply) -> Result<Actions<T>, Unexpected> {
        let requests = self.lock.on_reply(server, reply.is_granted)?;
        let mut actions = self.asks(&requests);
        if reply.is_contended && !self.lock.is_releasing() && !self.lock.is_free() {
            self.wanted.get_or_insert(usize::MAX);
        }
        if self.lock.is_held() {
            let waiting = self.waiting.len();
            self.wanted = self.wanted.map(|_| waiting);
        }
        actions.extend(self.advance());
        Ok(actions)
    }

    /// A server says that another client wants what is held here, or was when it said so: then it
    /// is given back for nothing.
    pub fn on_wanted(&mut self) -> Actions<T> {
        if self.lock.is_free() || self.lock.is_releasing() {
            return Actions::new();
        }
        let let_through = if self.lock.is_held() { self.waiting.len() } else { usize::MAX };
        self.wanted.get_or_insert(let_through);
        self.advance()
    }

    /// An operation has ended.
    ///
    /// # Panics
    /// If none of this access was under way.
    pub fn finish(&mut self, access: Access, now: Instant) -> Actions<T> {
        let count = match access {
            Access::Shared => &mut self.readers,
            Access::Exclusive => &mut self.writers,
        };
        *count = count.checked_sub(1).expect("an operation that was started");
        self.idle_since = Some(now);
        self.advance()
    }

    /// Gives a lock back that was kept for nothing, where the policy says so.
    pub fn expire(&mut self, now: Instant) -> Actions<T> {
        let Policy::Eager { idle } = self.policy else { return Actions::new() };
        let is_old =
            self.idle_since.is_some_and(|since| now.saturating_duration_since(since) >= idle);
        if self.lock.is_held() && self.is_idle() && self.waiting.is_empty() && is_old {
            return self.release();
        }
        Actions::new()
    }

    fn is_idle(&self) -> bool {
        self.readers == 0 && self.writers == 0
    }

    fn asks(&self, requests: &[Request]) -> Actions<T> {
        requests.iter().map(|request| Action::Ask(*request, self.access)).collect()
    }

    /// Does what can be done now.
    fn advance(&mut self) -> Actions<T> {
        let mut actions = Actions::new();
        if let (true, Some((_, access))) = (self.lock.is_free(), self.waiting.front()) {
            self.access = self.policy.access(*access);
            self.started = 0;
            let requests = self.lock.acquire();
            actions.extend(self.asks(&requests));
        }
        while self.lock.is_held()
            && self.waiting.front().is_some_and(|(_, access)| self.may_start(*access))
        {
            if let Some((operation, access)) = self.waiting.pop_front() {
                self.start(access);
                actions.push(Action::Start(operation));
            }
        }
        if self.lock.is_held() && self.is_idle() && self.must_release() {
            actions.extend(self.release());
        }
        actions
    }

    fn start(&mut self, access: Access) {
        match access {
            Access::Shared => self.readers += 1,
            Access::Exclusive => self.writers += 1,
        }
        self.started += 1;
        self.wanted = self.wanted.map(|let_through| let_through.saturating_sub(1));
    }

    fn may_start(&self, access: Access) -> bool {
        let is_let_through = self.wanted != Some(0);
        match self.policy {
            Policy::EveryOperation => self.started == 0,
            Policy::Eager { .. } => {
                let is_beside =
                    self.writers == 0 && (access == Access::Shared || self.readers == 0);
                is_let_through && is_beside
            }
            Policy::AtOpen => is_let_through && self.access.covers(access),
        }
    }

    /// With no operation under way: is the lock of no more use, or owed to somebody?
    fn must_release(&self) -> bool {
        let is_short = self.waiting.front().is_some_and(|(_, access)| !self.access.covers(*access));
        let is_spent = self.policy == Policy::EveryOperation && self.started > 0;
        is_spent || is_short || self.wanted == Some(0)
    }

    fn release(&mut self) -> Actions<T> {
        self.wanted = None;
        self.idle_since = None;
        let requests = self.lock.release();
        self.asks(&requests)
    }
}
