//! One client on its way to a lock on all servers, as in Figure 2.4 of the thesis.
//!
//! | phase | what is asked | when it ends |
//! |---|---|---|
//! | 1 | all servers at once, without waiting | all granted: held. Else what was granted is given back, then phase 2 |
//! | 2 | one server after the other, in order, waiting | the last one granted: held |
//!
//! Contract: phase 2 begins with nothing held and goes by the same order in every client, so that
//! clients cannot wait for each other in a circle. The next lock is asked for only when the last
//! unlock was answered: servers that keep no order might else see the two the other way round. All
//! servers answer; what a lost one means is not decided here.

use protocol::{ShardIndex, ShardSet};
use smallvec::SmallVec;

/// What a server is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// The lock now, or a refusal.
    TryLock,
    /// The lock, when it is free.
    Lock,
    /// To let go of it.
    Unlock,
}

/// A message to a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Which: servers are numbered as the shards they hold.
    pub server: ShardIndex,
    /// What.
    pub ask: Ask,
}

/// Messages to send at once.
pub type Requests = SmallVec<[Request; 4]>;

/// A reply that no correct server gives at this point.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("server {server} answered what it was not asked, or refused what it must not")]
pub struct Unexpected {
    /// Whose.
    pub server: ShardIndex,
}

/// What it took so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LockCounts {
    /// Times that the lock was held on all servers.
    pub acquisitions: u64,
    /// Times that phase 1 was refused somewhere.
    pub fallbacks: u64,
    /// Times that messages were sent and had to be answered before anything else: unlocks too.
    pub round_trips: u64,
    /// Requests sent.
    pub requests: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Free,
    /// Phase 1: `open` have not answered, `got` have granted it.
    Broadcast {
        open: ShardSet,
        got: ShardSet,
    },
    /// What was got is given back.
    Undo {
        open: ShardSet,
    },
    /// Phase 2: all before this one have granted it.
    InOrder {
        asked: ShardIndex,
    },
    Held,
    Release {
        open: ShardSet,
    },
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Acquisition {
    servers: ShardSet,
    phase: Phase,
    counts: LockCounts,
}

impl Acquisition {
    /// Of a lock on these servers, which nobody has asked for yet.
    ///
    /// # Panics
    /// If there are none.
    pub fn new(servers: ShardSet) -> Acquisition {
        assert!(!servers.is_empty(), "a lock on no server");
        Acquisition { servers, phase: Phase::Free, counts: LockCounts::default() }
    }

    /// Is the lock held on all servers?
    pub fn is_held(&self) -> bool {
        self.phase == Phase::Held
    }

    /// Is nothing held, and nothing on its way?
    pub fn is_free(&self) -> bool {
        self.phase == Phase::Free
    }

    /// Is it being given back?
    pub fn is_releasing(&self) -> bool {
        matches!(self.phase, Phase::Release { .. })
    }

    /// What it took so far.
    pub fn counts(&self) -> LockCounts {
        self.counts
    }

    /// Begins phase 1.
    ///
    /// # Panics
    /// If it is not free.
    pub fn acquire(&mut self) -> Requests {
        assert!(self.is_free(), "a lock is asked for once");
        self.phase = Phase::Broadcast { open: self.servers, got: ShardSet::EMPTY };
        self.ask(Ask::TryLock, self.servers)
    }

    /// Gives it back.
    ///
    /// # Panics
    /// If it is not held.
    pub fn release(&mut self) -> Requests {
        assert!(self.is_held(), "only what is held is given back");
        self.phase = Phase::Release { open: self.servers };
        self.ask(Ask::Unlock, self.servers)
    }

    /// A server has answered; what to send next. Of an unlock `is_granted` is without meaning.
    ///
    /// # Errors
    /// [`Unexpected`]; nothing has changed.
    pub fn on_reply(
        &mut self,
        server: ShardIndex,
        is_granted: bool,
    ) -> Result<Requests, Unexpected> {
        let unexpected = Err(Unexpected { server });
        match self.phase {
            Phase::Broadcast { open, got } if open.contains(server) => {
                let got = if is_granted { got.with(server) } else { got };
                self.phase = Phase::Broadcast { open: open.without(server), got };
                Ok(if open.len() == 1 { self.end_broadcast(got) } else { Requests::new() })
            }
            Phase::Undo { open } if open.contains(server) => {
                self.phase = Phase::Undo { open: open.without(server) };
                Ok(if open.len() == 1 { self.ask_in_order(None) } else { Requests::new() })
            }
            Phase::InOrder { asked } if asked == server && is_granted => {
                Ok(self.ask_in_order(Some(asked)))
            }
            Phase::Release { open } if open.contains(server) => {
                let open = open.without(server);
                self.phase = if open.is_empty() { Phase::Free } else { Phase::Release { open } };
                Ok(Requests::new())
            }
            _ => unexpected,
        }
    }

    fn end_broadcast(&mut self, got: ShardSet) -> Requests {
        if got == self.servers {
            self.hold();
            return Requests::new();
        }
        self.counts.fallbacks += 1;
        if got.is_empty() {
            return self.ask_in_order(None);
        }
        self.phase = Phase::Undo { open: got };
        self.ask(Ask::Unlock, got)
    }

    /// Phase 2: asks the server after this one; after the last the lock is held.
    fn ask_in_order(&mut self, after: Option<ShardIndex>) -> Requests {
        match self.servers.iter().find(|server| after.is_none_or(|after| *server > after)) {
            Some(server) => {
                self.phase = Phase::InOrder { asked: server };
                self.ask(Ask::Lock, ShardSet::only(server))
            }
            None => {
                self.hold();
                Requests::new()
            }
        }
    }

    fn hold(&mut self) {
        self.phase = Phase::Held;
        self.counts.acquisitions += 1;
    }

    fn ask(&mut self, ask: Ask, servers: ShardSet) -> Requests {
        self.counts.round_trips += 1;
        self.counts.requests += u64::from(servers.len());
        servers.iter().map(|server| Request { server, ask }).collect()
    }
}
