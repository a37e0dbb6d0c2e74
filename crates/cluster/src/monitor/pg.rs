//! The monitor's rules for one PG, see docs/design/write-path.md.
//!
//! Contract: pure. Every function that returns `true`, or says nothing of it, has changed the PG,
//! and the caller gives it the epoch of the next map. `up` are the shards whose OSDs are up, after
//! the change at hand.
//!
//! Rules of the model that live here: IssOnly, IssFloor, Activate, LostLeaves, BootEpoch,
//! BlankCheck, JoinCas. The rest of its switches are held by shards and sessions, or by
//! [`super::resolve`].

use crate::map::Pg;
use crate::state::PgState;
use protocol::{Epoch, Rule, Rules, ShardIndex, ShardSet};

/// One PG under change.
pub(super) struct PgRules<'a> {
    pub pg: &'a mut Pg,
    pub state: &'a mut PgState,
    /// Data shards of its pool.
    pub k: u32,
    /// Shards whose OSDs are up.
    pub up: ShardSet,
    /// Shards that are worth waiting for, as the cluster has only just started.
    pub awaited: ShardSet,
    /// Those that hold.
    pub rules: Rules,
}

impl PgRules<'_> {
    /// Proposes the in-sync members that are up; they must all answer before it takes effect.
    pub fn propose(&mut self) {
        let (state, rules) = (&mut *self.state, self.rules);
        let all = ShardSet::first(self.pg.acting.len() as u8);
        let able = if rules.on(Rule::IssOnly) { state.confirmed } else { all }; // Rule: IssOnly
        let able = able.intersection(self.up).minus(state.gone); // Rule: BlankCheck
        state.forced = able.minus(state.lost).len() < self.k;
        let leaves = rules.on(Rule::LostLeaves) && !state.forced; // Rule: LostLeaves
        let wish = if leaves { able.minus(state.lost) } else { able };
        // Not a rule of the model: proposing later is always safe, and spares whole disks a return
        // from outside.
        let early = !state.confirmed.intersection(self.awaited).minus(state.gone).is_empty();
        (self.pg.active, self.pg.joining, state.peered) = (false, ShardSet::EMPTY, ShardSet::EMPTY);
        let enough = wish.len() >= self.k && !early; // Rule: IssFloor: `confirmed` itself stays as it is
        self.pg.in_sync = if enough { wish } else { ShardSet::EMPTY };
        if !rules.on(Rule::IssFloor)
            && state.begun
            && !state.confirmed.intersection(self.up).is_empty()
        {
            state.confirmed = state.confirmed.intersection(self.up);
        }
        if !rules.on(Rule::Activate) && enough {
            self.activate();
        }
    }

    /// All proposed members have answered.
    fn activate(&mut self) {
        let state = &mut *self.state;
        if state.forced && !state.lost.intersection(self.pg.in_sync).is_empty() {
            tracing::warn!(
                "members that lost power stay in sync: their last unsynced writes may be gone"
            );
        }
        (state.confirmed, state.lost, state.begun) = (self.pg.in_sync, ShardSet::EMPTY, true);
        self.pg.active = true;
        self.choose_joining();
    }

    fn choose_joining(&mut self) {
        self.pg.joining = self.up.minus(self.state.confirmed).intersection(self.state.asked);
    }

    /// A change that leaves the in-sync set alone.
    pub fn outsiders_changed(&mut self) {
        if self.pg.active { self.choose_joining() } else { self.propose() }
    }

    /// A proposed member has answered in `epoch`. True if the PG is active with that, in a new
    /// epoch.
    pub fn peer(&mut self, shard: ShardIndex, epoch: Epoch) -> bool {
        let expected = !self.pg.active && self.pg.epoch == epoch && self.pg.in_sync.contains(shard);
        if !expected {
            return false;
        }
        self.state.peered = self.state.peered.with(shard);
        let all = self.state.peered == self.pg.in_sync; // Rule: Activate
        if all {
            self.activate();
        }
        all
    }

    /// The shard's OSD is down (and out of `up` already).
    pub fn mark_down(&mut self, shard: ShardIndex) {
        self.state.asked = self.state.asked.without(shard);
        if self.state.confirmed.contains(shard) { self.propose() } else { self.outsiders_changed() }
    }

    /// The shard's OSD has started (and is in `up` already). Rule: BootEpoch: this is a change in
    /// any case.
    pub fn boot(&mut self, shard: ShardIndex, lost: bool, blank: bool) {
        self.state.asked = self.state.asked.without(shard);
        if self.state.begun {
            self.state.lost = if lost { self.state.lost.with(shard) } else { self.state.lost };
            self.state.gone = if blank { self.state.gone.with(shard) } else { self.state.gone };
        }
        let member = self.state.confirmed.contains(shard) || !self.rules.on(Rule::IssOnly);
        if member { self.propose() } else { self.outsiders_changed() }
    }

    /// A returning shard wants to be written to from now on. True if it will be, in a new epoch.
    pub fn ask_join(&mut self, shard: ShardIndex, epoch: Epoch) -> bool {
        let outside = self.up.minus(self.state.confirmed).minus(self.state.asked).contains(shard);
        if !self.pg.active || self.pg.epoch != epoch || !outside {
            return false;
        }
        self.state.asked = self.state.asked.with(shard);
        self.outsiders_changed();
        true
    }

    /// A returning shard is whole. False if the PG is of another epoch by now (Rule: JoinCas).
    pub fn join(&mut self, shard: ShardIndex, epoch: Epoch) -> bool {
        if self.rules.on(Rule::JoinCas) {
            if !self.pg.active || self.pg.epoch != epoch || !self.pg.joining.contains(shard) {
                return false;
            }
        } else if !self.pg.active || self.state.confirmed.contains(shard) {
            return false;
        }
        let state = &mut *self.state;
        state.confirmed = state.confirmed.with(shard);
        (state.gone, state.lost) = (state.gone.without(shard), state.lost.without(shard));
        state.asked = state.asked.without(shard);
        self.pg.in_sync = state.confirmed;
        self.outsiders_changed();
        true
    }
}
