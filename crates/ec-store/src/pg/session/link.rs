//! A session's view of one shard: whether it is attached, and what it is known to hold.

use protocol::{AttachId, Rule, Rules, Seq};
use std::time::{Duration, Instant};

/// How far an attach is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// Not attached; not before `retry_at` if given.
    Idle { retry_at: Option<Instant> },
    /// Attach sent, no answer yet.
    Greeting,
    /// Attached. With `resend_at` the shard refused a record for lack of room: what it lacks is
    /// sent again then, and nothing before.
    Attached { resend_at: Option<Instant> },
}

/// See the module.
#[derive(Debug)]
pub(super) struct Link {
    pub connected: bool,
    pub stage: Stage,
    pub aid: u64,
    /// Last record that the shard holds, and last that it holds durably, as told in this attach.
    pub tail: Seq,
    pub durable: Seq,
    /// Last record sent in this attach, last one that a sync was asked for, last stable mark sent.
    pub sent: Seq,
    pub sync_asked: Seq,
    pub marked: Seq,
    /// The last reported write that touches the shard.
    pub owed: Seq,
    /// Since when an answer is due, without progress.
    pub waiting_since: Option<Instant>,
    /// The shard said Busy or NoSpace: that it lacks predecessors is no news.
    pub refused: bool,
    /// Bytes that the shard will still take, as last told in any attach.
    pub free: Option<u64>,
    /// When room was last asked for.
    pub probed: Option<Instant>,
    /// Attaches that failed in a row.
    pub failures: u32,
}

impl Link {
    pub fn new() -> Self {
        Self {
            connected: false,
            stage: Stage::Idle { retry_at: None },
            aid: 0,
            tail: Seq::default(),
            durable: Seq::default(),
            sent: Seq::default(),
            sync_asked: Seq::default(),
            marked: Seq::default(),
            owed: Seq::default(),
            waiting_since: None,
            refused: false,
            free: None,
            probed: None,
            failures: 0,
        }
    }

    /// Ends the attach. Rule: ResetMarks - what the shard said it holds is forgotten.
    pub fn detach(&mut self, retry_at: Option<Instant>, rules: Rules) {
        self.stage = Stage::Idle { retry_at };
        if rules.on(Rule::ResetMarks) {
            (self.tail, self.durable) = (Seq::default(), Seq::default());
        }
        (self.sent, self.sync_asked, self.marked) =
            (Seq::default(), Seq::default(), Seq::default());
        self.waiting_since = None;
        self.refused = false;
    }

    /// Begins the next attach.
    pub fn greet(&mut self, now: Instant, rules: Rules) -> AttachId {
        self.detach(None, rules);
        self.stage = Stage::Greeting;
        self.aid += 1;
        self.waiting_since = Some(now);
        AttachId::new(self.aid)
    }

    pub fn is_attached(&self) -> bool {
        matches!(self.stage, Stage::Attached { .. })
    }

    /// Attached, and not waiting for room.
    pub fn is_open(&self) -> bool {
        self.stage == Stage::Attached { resend_at: None }
    }

    /// Is an answer due?
    fn awaits(&self) -> bool {
        self.stage == Stage::Greeting
            || self.is_open() && (self.tail < self.sent || self.durable < self.sync_asked)
    }

    /// Something that is answered was sent.
    pub fn expect(&mut self, now: Instant) {
        if self.awaits() && self.waiting_since.is_none() {
            self.waiting_since = Some(now);
        }
    }

    /// An answer that moved something came, or none is due any more: the clock starts anew or
    /// stops.
    pub fn progressed(&mut self, now: Instant) {
        self.waiting_since = self.awaits().then_some(now);
    }

    /// How long to wait before the next attach: doubles up to 64 times `base`.
    pub fn back_off(&mut self, base: Duration) -> Duration {
        let delay = base * (1 << self.failures.min(6));
        self.failures += 1;
        delay
    }
}
