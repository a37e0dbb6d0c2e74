//! How members end what returning shards hold, and whom a returning shard asks for pieces.
//!
//! Contract: a hold ([`crate::pg::shard`], `hold`) delays applying and trimming, so that the
//! journal grows beside it, and sessions are asked to begin no more writes when that is full:
//! nobody waits for longer than [`HOLD_MAX`]. [`Turns`] is pure.

use super::{Core, Outlet};
use protocol::{ObjectId, PgId, ShardIndex, ShardSet};
use std::time::Duration;

/// How long an object is held at most, once: two questions to each of k members must come to an
/// answer meanwhile. What is asked for later begins another hold, before which everything that is
/// stable is applied.
const HOLD_MAX: Duration = Duration::from_secs(5);
/// How often members that all answered are asked again at once.
const AT_ONCE: usize = 4;

impl<O: Outlet> Core<O> {
    /// A shard of the PG has begun a hold of this number.
    pub(super) fn end_hold_soon(&self, pg: PgId, object: ObjectId, number: u64) {
        self.shared.state.borrow_mut().stats.recovery_holds += 1;
        let core = self.clone();
        self.shared.worker.spawn(async move {
            core.shared.worker.sleep(HOLD_MAX).await;
            core.with(pg, |shard, _| shard.end_hold(object, number));
        });
    }
}

/// Whom to ask for what must be of one cut, turn after turn. Members that all answered, and did not
/// fit together, hold the object and are asked again, in another order; where one did not answer,
/// others have their turn.
#[derive(Clone, Debug, Default)]
pub(super) struct Turns {
    turn: usize,
    holders: Vec<ShardIndex>,
}

impl Turns {
    /// Are members to hold the object?
    pub fn hold(&self) -> bool {
        !self.holders.is_empty()
    }

    /// The members to ask now, in this order, until k have answered.
    pub fn members(&mut self, in_sync: ShardSet) -> Vec<ShardIndex> {
        if !self.holders.iter().all(|holder| in_sync.contains(*holder)) {
            self.holders.clear();
        }
        let mut members: Vec<ShardIndex> =
            if self.hold() { self.holders.clone() } else { in_sync.iter().collect() };
        let shift = self.turn % members.len().max(1);
        members.rotate_left(shift);
        members
    }

    /// These k answered, and did not fit together. True: they are to be asked again at once.
    pub fn did_not_fit(&mut self, answered: Vec<ShardIndex>) -> bool {
        self.turn += 1;
        self.holders = answered;
        self.turn <= AT_ONCE
    }

    /// Too few answered.
    pub fn too_few(&mut self) {
        self.turn += 1;
        self.holders.clear();
    }

    /// They fitted together: the next range is asked for from the same ones, and anew.
    pub fn fitted(&mut self) {
        self.turn = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_hold_are_asked_again_and_one_that_does_not_answer_is_not_waited_for() {
        let si = ShardIndex::new;
        let all = ShardSet::first(4);
        let mut turns = Turns::default();
        assert_eq!((turns.members(all), turns.hold()), (vec![si(0), si(1), si(2), si(3)], false));
        assert!(turns.did_not_fit(vec![si(0), si(1)]));
        assert_eq!((turns.members(all), turns.hold()), (vec![si(1), si(0)], true));
        turns.fitted();
        assert_eq!((turns.members(all), turns.hold()), (vec![si(0), si(1)], true));
        turns.too_few();
        assert_eq!((turns.members(all), turns.hold()), (vec![si(1), si(2), si(3), si(0)], false));
        assert!(turns.did_not_fit(vec![si(1), si(2)]));
        assert_eq!(turns.members(all.without(si(2))), [si(3), si(0), si(1)], "one has left");
        let again = (0..10).filter(|_| turns.did_not_fit(vec![si(0), si(1)])).count();
        assert!(again < 10, "not without a pause for ever");
    }
}
