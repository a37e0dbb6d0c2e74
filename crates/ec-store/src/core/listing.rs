//! What a member does before it first tells a returning shard what that missed: it trims what it
//! has.
//!
//! Contract: [`ListWaits`] is pure. A record in the journal makes its object one that is missed,
//! and so does its trim; a trim between the reading of an object's pieces and the report that it is
//! rebuilt makes the report void (Rule: ReportSame), and all of the object is compared once more.
//! What was written just before the shard came back would mostly meet that: applied records are
//! trimmed after [`super::TRIM_IDLE`]. No list depends on it: after [`TRIM_WAIT_MAX`] it is given
//! as it is.

use super::{Core, Outlet};
use crate::pg::PgView;
use crate::pg::shard::Lsn;
use protocol::{Epoch, PgId, ShardIndex};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long a list waits for a trim at most: records may not be applied soon, and a disk may be
/// slow.
const TRIM_WAIT_MAX: Duration = Duration::from_secs(2);
/// A list that is asked for anew, as it is in each epoch, does not wait once more before this time
/// is over.
const WAIT_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// The last wait of each shard that asked for a list of a PG held here.
#[derive(Debug, Default)]
pub(super) struct ListWaits(HashMap<(PgId, ShardIndex), Wait>);

#[derive(Debug)]
struct Wait {
    since: Instant,
    /// Records after it came later: they are not waited for.
    upto: Lsn,
    is_over: bool,
}

impl ListWaits {
    /// Must a list wait still? `first`: the PG's first record in the journal; `last`: the last of
    /// all.
    pub fn must_wait(
        &mut self,
        asked: (PgId, ShardIndex),
        first: Option<Lsn>,
        last: Lsn,
        now: Instant,
    ) -> bool {
        let is_old = |wait: &Wait| now - wait.since >= WAIT_AGAIN_AFTER;
        if self.0.get(&asked).is_none_or(is_old) {
            self.0.insert(asked, Wait { since: now, upto: last, is_over: false });
        }
        let Some(wait) = self.0.get_mut(&asked) else { return false };
        wait.is_over |=
            first.is_none_or(|first| first > wait.upto) || now - wait.since >= TRIM_WAIT_MAX;
        !wait.is_over
    }
}

impl<O: Outlet> Core<O> {
    /// Must a list for shard `from` wait, because a trim is to come first? Not while it joins: it
    /// gets what is written now, and nobody is to wait for it longer than need be.
    pub(super) fn list_must_wait(&self, pg: PgId, from: ShardIndex, epoch: Epoch) -> bool {
        let mut state = self.shared.state.borrow_mut();
        let last = state.store.last_lsn();
        let is_outside =
            |view: &PgView| view.epoch == epoch && view.active && !view.writers().contains(from);
        let Some(held) = state.shards.get(&pg).filter(|held| is_outside(&held.shard.view().pg))
        else {
            return false;
        };
        let first = held.shard.first_journalled();
        let must_wait = state.list_waits.must_wait((pg, from), first, last, Instant::now());
        state.trim_wanted |= must_wait;
        must_wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::PoolId;

    #[test]
    fn a_list_waits_for_records_that_were_there_when_it_was_asked_for_and_not_forever_nor_all_the_time()
     {
        let pg = |number| PgId { pool: PoolId::new(1), number };
        let asked = (pg(1), ShardIndex::new(2));
        let (mut waits, begin) = (ListWaits::default(), Instant::now());
        let mut must_wait = |asked, first: Option<u64>, last, seconds| {
            waits.must_wait(asked, first.map(Lsn), Lsn(last), begin + Duration::from_secs(seconds))
        };
        assert!(must_wait(asked, Some(7), 9, 0));
        assert!(must_wait(asked, Some(9), 30, 1), "one of them is still there");
        assert!(!must_wait(asked, Some(10), 40, 1), "later ones do not count");
        assert!(!must_wait(asked, Some(41), 50, 9), "nor do they begin another wait soon");
        assert!(must_wait(asked, Some(41), 50, 10), "but later");
        assert!(!must_wait(asked, Some(41), 60, 12), "which comes to an end");
        assert!(!must_wait((pg(2), asked.1), None, 60, 12), "nothing to be trimmed");
    }
}
