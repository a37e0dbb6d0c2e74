//! What of a fragment that is to be rebuilt is here already, so that only what differs is moved.
//!
//! Contract: a returning shard has most of its bytes as a rule: it missed a few writes of a large
//! object, or its list of what it missed was lost. Members are asked for sums that commute with the
//! code ([`crate::codec::LinearSum`]); k of them, of one cut, give the sums that this shard's bytes
//! should have. A unit whose sum is right counts as rebuilt of that cut; nothing is applied to an
//! object that is being rebuilt, so it stays so. Whatever cannot be compared is moved, and so is
//! what lies behind ranges that differ everywhere ([`Sampling`]).

use super::recovery::{Members, Way, Whole};
use super::scrub::{comparable_sums, fresh_seed};
use super::{Core, Outlet};
use crate::codec::{Codec, SUM_BYTES, SUM_UNIT_BYTES};
use crate::pg::shard::PgShard;
use crate::pg::shard::returning::Cut;
use bytes::Bytes;
use protocol::recovery::{RecoveryReply, SessionMark};
use protocol::{ObjectId, PgId, ShardIndex, ShardSet};
use std::ops::Range;

/// Units that match and lie between two that do not are moved with them if they are no more: one
/// question less.
const GAP_UNITS_MAX: usize = 16;

/// Ranges that are moved unseen behind one that differs everywhere, at most.
const UNSEEN_MAX: u32 = 8;

/// Which ranges of an object are compared, one after the other. A file that was written anew
/// differs everywhere (in one run from end to end, [`GAP_UNITS_MAX`] included), and comparing it
/// costs several times what moving it does: so behind each range that differs everywhere twice as
/// many are moved unseen as behind the one before. Where those that differ lie together, at most as
/// many are moved needlessly.
#[derive(Default)]
pub(super) struct Sampling {
    /// Ranges to be moved unseen before the next comparison.
    unseen: u32,
    /// How many were after the last one.
    last: u32,
}

impl Sampling {
    /// Is the next range to be compared?
    pub fn is_due(&mut self) -> bool {
        let due = self.unseen == 0;
        self.unseen = self.unseen.saturating_sub(1);
        due
    }

    /// A range was compared.
    pub fn saw(&mut self, differs_everywhere: bool) {
        self.last = if differs_everywhere { (2 * self.last).clamp(1, UNSEEN_MAX) } else { 0 };
        self.unseen = self.last;
    }
}

/// What a comparison says of a range.
pub(super) struct Compared {
    /// Parts that differ, ascending, in bytes of the fragment.
    pub differing: Vec<Range<u64>>,
    /// What the rest is at least of.
    pub cut: Cut,
    pub whole: Whole,
}

/// A member's sums of a range.
struct Sums {
    shard: ShardIndex,
    whole: Whole,
    marks: Vec<SessionMark>,
    sums: Bytes,
}

impl Sums {
    /// `None`: it has none to give now.
    fn from_reply(shard: ShardIndex, reply: RecoveryReply, sums: Bytes) -> Option<Sums> {
        match reply {
            RecoveryReply::Summed { exists, logical_end, fragment_end, corrupt, marks }
                if corrupt.is_empty() =>
            {
                Some(Sums {
                    shard,
                    whole: Whole { exists, logical_end, fragment_end },
                    marks,
                    sums,
                })
            }
            _ => None,
        }
    }
}

impl<O: Outlet, M: Members> Way<O, M> {
    /// Compares a range of this shard's fragment with what the members have. `None`: there is
    /// nothing to compare, or it cannot be done now.
    pub async fn compare(&self, object: ObjectId, range: &Range<u64>) -> Option<Compared> {
        if !self.core.has_data(self.pg, object, range) {
            return None;
        }
        let (seed, length) = (fresh_seed(), range.end - range.start);
        let ask =
            |shard: &mut PgShard| shard.compare_body(object, range.start, length as u32, seed);
        let (given, cut) =
            self.of_one_cut(ask, ShardSet::EMPTY, Sums::from_reply, |sums| &sums.marks).await?;
        let whole = Whole::of(given.iter().map(|sums| sums.whole));
        let own =
            self.core.inspect(self.pg, object, range.clone(), Some(seed), false).await.ok()??;
        if !whole.exists || !own.corrupt.is_empty() {
            return None;
        }
        let units = (length as usize).div_ceil(SUM_UNIT_BYTES);
        let given: Vec<(ShardIndex, Vec<u8>)> = given
            .into_iter()
            .map(|sums| (sums.shard, comparable_sums(sums.whole.exists, &sums.sums, length)))
            .collect();
        let right = expected(&*self.codec, self.me, &given, units)?;
        let differs = |unit: &usize| right.get(sum_at(*unit)) != own.sums.get(sum_at(*unit));
        let differing = runs((0..units).filter(differs));
        let bytes = |run: &Range<usize>| {
            let at = |unit: usize| (range.start + (unit * SUM_UNIT_BYTES) as u64).min(range.end);
            at(run.start)..at(run.end)
        };
        Some(Compared { differing: differing.iter().map(bytes).collect(), cut, whole })
    }
}

impl<O: Outlet> Core<O> {
    /// Has the fragment here data in the range?
    fn has_data(&self, pg: PgId, object: ObjectId, range: &Range<u64>) -> bool {
        let mut state = self.shared.state.borrow_mut();
        let Some(key) = state.store.key(pg, object) else { return false };
        let Ok(Some(file)) = state.store.fragments.get(key) else { return false };
        let extents = file.data_extents(range.start, 1).unwrap_or_default();
        extents.first().is_some_and(|extent| extent.start < range.end)
    }
}

fn sum_at(unit: usize) -> Range<usize> {
    unit * SUM_BYTES..(unit + 1) * SUM_BYTES
}

/// The sums of shard `me` as those of k others give them; `None` if these are not what was asked
/// for.
fn expected(
    codec: &dyn Codec,
    me: ShardIndex,
    given: &[(ShardIndex, Vec<u8>)],
    units: usize,
) -> Option<Vec<u8>> {
    if given.iter().any(|(_, sums)| sums.len() != units * SUM_BYTES) {
        return None;
    }
    let have: Vec<(ShardIndex, &[u8])> =
        given.iter().map(|(shard, sums)| (*shard, &sums[..])).collect();
    let mut right = vec![0; units * SUM_BYTES];
    codec.reconstruct(&have, &mut [(me, &mut right[..])]).ok()?;
    Some(right)
}

/// Ascending units as runs, with small gaps closed.
fn runs(units: impl Iterator<Item = usize>) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for unit in units {
        match runs.last_mut() {
            Some(last) if unit - last.end <= GAP_UNITS_MAX => last.end = unit + 1,
            _ => runs.push(unit..unit + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{self, LinearSum};
    use protocol::Profile;

    #[test]
    fn small_gaps_are_moved_with_what_surrounds_them() {
        assert_eq!(runs([3, 4, 5 + GAP_UNITS_MAX, 60, 200].into_iter()), [3..22, 60..61, 200..201]);
        assert!(runs(std::iter::empty()).is_empty());
    }

    #[test]
    fn what_differs_everywhere_is_compared_less_and_less() {
        let compared = |differs: fn(u32) -> bool| {
            let mut sampling = Sampling::default();
            let due = |range: &u32| {
                let due = sampling.is_due();
                if due {
                    sampling.saw(differs(*range));
                }
                due
            };
            (0..32).filter(due).collect::<Vec<_>>()
        };
        assert_eq!(compared(|_| true), [0, 2, 5, 10, 19, 28]);
        assert_eq!(compared(|_| false), (0..32).collect::<Vec<_>>());
        let half = compared(|range| range < 8);
        assert_eq!(
            half,
            [0, 2, 5].into_iter().chain(10..32).collect::<Vec<_>>(),
            "two of those that are right were moved"
        );
    }

    #[test]
    fn sums_of_two_give_those_of_the_third() {
        let codec = codec::for_profile(
            Profile::new(2, 1, 512, Profile::OBJECT_BYTES_DEFAULT).expect("a profile"),
        );
        let mut random = fastrand::Rng::with_seed(7);
        let mut data = [vec![0u8; 9000], vec![0u8; 9000]];
        data.iter_mut().for_each(|bytes| random.fill(bytes));
        let mut parity = vec![0; 9000];
        codec.encode(&[&data[0], &data[1]], &mut [&mut parity[..]]);
        let sums = |bytes: &[u8]| {
            let mut out = Vec::new();
            LinearSum::new(11).append(bytes, &mut out);
            out
        };
        let si = ShardIndex::new;
        let given = [(si(0), sums(&data[0])), (si(2), sums(&parity))];
        assert_eq!(expected(&*codec, si(1), &given, 3), Some(sums(&data[1])));
        assert_eq!(expected(&*codec, si(1), &given, 4), None);
        data[1][5000] ^= 1;
        let other = sums(&data[1]);
        let right = expected(&*codec, si(1), &given, 3).expect("two of three");
        let differs: Vec<usize> =
            (0..3).filter(|unit| right[sum_at(*unit)] != other[sum_at(*unit)]).collect();
        assert_eq!(differs, [1]);
    }
}
