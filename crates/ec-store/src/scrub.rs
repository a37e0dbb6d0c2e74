//! What the sums of an object's shards say of them: do they match, and if not, which is wrong.
//!
//! Contract: pure. Sums are those of [`LinearSum`](crate::codec::LinearSum), all of one seed and
//! one cut. With k + m shards of which e are known to be bad or missing, up to (m - e) / 2 wrong
//! ones are found out by the others, as in any code of distance m + 1; with fewer to spare a
//! mismatch is seen and not decided.

use crate::codec::{Codec, SUM_BYTES, SUM_UNIT_BYTES};
use protocol::{Profile, ShardIndex, ShardSet};
use std::ops::Range;

/// What one shard says of a range of an object.
#[derive(Clone, Debug)]
pub struct ShardSums {
    /// Which.
    pub shard: ShardIndex,
    /// There is a fragment file. A shard without one counts as zeros: one that was never written to
    /// has none.
    pub exists: bool,
    /// The sum of each unit.
    pub sums: Vec<u8>,
}

/// Units, one after the other, that do not match.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// Numbers of the units within the range.
    pub units: Range<usize>,
    /// The shards that are wrong; empty: the evidence does not decide.
    pub wrong: ShardSet,
}

impl Mismatch {
    /// The bytes of the fragment, for a range that begins at `offset`.
    pub fn bytes(&self, offset: u64) -> Range<u64> {
        let unit = SUM_UNIT_BYTES as u64;
        offset + self.units.start as u64 * unit..offset + self.units.end as u64 * unit
    }
}

/// Could a user's byte be at fragment offset `offset` of a shard, in an object with user data up to
/// `logical_end`?
pub fn may_hold_data(profile: Profile, shard: ShardIndex, offset: u64, logical_end: u64) -> bool {
    let stripe = offset / u64::from(profile.chunk_bytes()) * profile.stripe_bytes();
    let chunk = if shard.get() < profile.k() { u64::from(shard.get()) } else { 0 };
    stripe + chunk * u64::from(profile.chunk_bytes()) < logical_end
}

/// Units whose shards do not match, each with those that are wrong. `may_be_lost` says of a shard
/// without a fragment file whether data may have been in the unit; it counts where nothing else can
/// confirm the loss.
pub fn judge(
    codec: &dyn Codec,
    shards: &[ShardSums],
    may_be_lost: impl Fn(ShardIndex, usize) -> bool,
) -> Vec<Mismatch> {
    let mut found: Vec<Mismatch> = Vec::new();
    let Some(length) = shards.first().map(|s| s.sums.len()) else { return found };
    if shards.len() <= codec.k() || shards.iter().any(|s| s.sums.len() != length) {
        return found;
    }
    let all = |range: Range<usize>| -> Vec<(ShardIndex, &[u8])> {
        shards.iter().map(|s| (s.shard, &s.sums[range.clone()])).collect()
    };
    if matches(codec, &all(0..length)) {
        return found;
    }
    let missing =
        shards.iter().filter(|s| !s.exists).fold(ShardSet::EMPTY, |set, s| set.with(s.shard));
    for unit in 0..length / SUM_BYTES {
        let sums = all(unit * SUM_BYTES..(unit + 1) * SUM_BYTES);
        if matches(codec, &sums) {
            continue;
        }
        let wrong = lost(codec, &sums, missing, |shard| may_be_lost(shard, unit))
            .or_else(|| odd_ones(codec, &sums));
        let wrong = wrong.unwrap_or(ShardSet::EMPTY);
        match found.last_mut() {
            Some(last) if last.units.end == unit && last.wrong == wrong => last.units.end += 1,
            _ => found.push(Mismatch { units: unit..unit + 1, wrong }),
        }
    }
    found
}

/// Do all shards agree?
fn matches(codec: &dyn Codec, sums: &[(ShardIndex, &[u8])]) -> bool {
    let (basis, others) = sums.split_at(codec.k());
    others.iter().all(|(shard, given)| expected(codec, basis, *shard) == *given)
}

/// What a shard's sums should be by k others.
fn expected(codec: &dyn Codec, basis: &[(ShardIndex, &[u8])], shard: ShardIndex) -> Vec<u8> {
    let mut out = vec![0; basis[0].1.len()];
    codec
        .reconstruct(basis, &mut [(shard, &mut out[..])])
        .expect("k different shards of one length");
    out
}

/// The shards without a fragment file of which the others, agreeing among themselves, say that they
/// should have data.
fn lost(
    codec: &dyn Codec,
    sums: &[(ShardIndex, &[u8])],
    missing: ShardSet,
    may_be_lost: impl Fn(ShardIndex) -> bool,
) -> Option<ShardSet> {
    let there: Vec<_> =
        sums.iter().filter(|(shard, _)| !missing.contains(*shard)).copied().collect();
    if missing.is_empty() || there.len() < codec.k() || !matches(codec, &there) {
        return None;
    }
    let should = |shard: &ShardIndex| {
        expected(codec, &there[..codec.k()], *shard).iter().any(|&byte| byte != 0)
    };
    let lost: Vec<ShardIndex> = missing.iter().filter(should).collect();
    let is_sure = there.len() > codec.k() || lost.iter().all(|shard| may_be_lost(*shard));
    is_sure.then(|| lost.into_iter().fold(ShardSet::EMPTY, ShardSet::with))
}

/// The fewest shards without which all others agree, if more agree than would by chance of
/// position.
fn odd_ones(codec: &dyn Codec, sums: &[(ShardIndex, &[u8])]) -> Option<ShardSet> {
    let spare = sums.len() - codec.k();
    (1..=spare / 2).find_map(|count| {
        subsets(sums.len(), count).find_map(|out| {
            let rest: Vec<_> = sums
                .iter()
                .enumerate()
                .filter(|(i, _)| out >> i & 1 == 0)
                .map(|(_, s)| *s)
                .collect();
            let odd = sums.iter().enumerate().filter(|(i, _)| out >> i & 1 == 1);
            matches(codec, &rest)
                .then(|| odd.fold(ShardSet::EMPTY, |set, (_, (shard, _))| set.with(*shard)))
        })
    })
}

/// The subsets of `count` out of `of`, as bits.
fn subsets(of: usize, count: usize) -> impl Iterator<Item = u32> {
    (0u32..1 << of).filter(move |bits| bits.count_ones() as usize == count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{self, Kernel, LinearSum};

    const UNITS: usize = 5;

    fn si(shard: usize) -> ShardIndex {
        ShardIndex::new(shard as u8)
    }

    fn set(shards: &[usize]) -> ShardSet {
        shards.iter().fold(ShardSet::EMPTY, |set, &shard| set.with(si(shard)))
    }

    /// The fragments of random data.
    fn fragments(k: usize, m: usize, random: &mut fastrand::Rng) -> Vec<Vec<u8>> {
        let mut all = vec![vec![0; UNITS * SUM_UNIT_BYTES]; k + m];
        all[..k].iter_mut().for_each(|shard| random.fill(shard));
        let (data, parity) = all.split_at_mut(k);
        let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        let codec = codec::new(k, m, Kernel::Portable).expect("a code");
        codec.encode(&data, &mut parity.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
        all
    }

    fn summed(fragments: &[Vec<u8>], missing: &[usize]) -> Vec<ShardSums> {
        let of = LinearSum::new(9);
        let sum = |(shard, bytes): (usize, &Vec<u8>)| {
            let mut sums = Vec::new();
            let gone = missing.contains(&shard);
            let zeros = vec![0; bytes.len()];
            of.append(if gone { &zeros } else { bytes }, &mut sums);
            ShardSums { shard: si(shard), exists: !gone, sums }
        };
        fragments.iter().enumerate().map(sum).collect()
    }

    fn judged(k: usize, m: usize, shards: &[ShardSums]) -> Vec<Mismatch> {
        judge(&*codec::new(k, m, Kernel::Portable).expect("a code"), shards, |_, _| true)
    }

    #[test]
    fn whole_shards_match_and_one_wrong_is_seen_or_named() {
        let mut random = fastrand::Rng::with_seed(1);
        for (k, m) in [(1, 1), (1, 2), (2, 1), (2, 2), (4, 2), (3, 4)] {
            let good = fragments(k, m, &mut random);
            assert_eq!(judged(k, m, &summed(&good, &[])), []);
            for shard in 0..k + m {
                let mut bad = good.clone();
                bad[shard][2 * SUM_UNIT_BYTES + 77] ^= 4;
                bad[shard][3 * SUM_UNIT_BYTES] ^= 4;
                let wrong = if m >= 2 { set(&[shard]) } else { ShardSet::EMPTY };
                assert_eq!(
                    judged(k, m, &summed(&bad, &[])),
                    [Mismatch { units: 2..4, wrong }],
                    "{k}+{m} {shard}"
                );
            }
        }
    }

    #[test]
    fn two_wrong_shards_need_four_to_spare() {
        let mut random = fastrand::Rng::with_seed(2);
        for (m, wrong) in [(2, ShardSet::EMPTY), (3, ShardSet::EMPTY), (4, set(&[0, 5]))] {
            let mut bad = fragments(2, m, &mut random);
            let last = bad.len() - 1;
            bad[0][0] ^= 1;
            bad[last][1] ^= 9;
            let wrong = if wrong.is_empty() { wrong } else { set(&[0, last]) };
            assert_eq!(
                judged(2, m, &summed(&bad, &[])),
                [Mismatch { units: 0..1, wrong }],
                "2+{m}"
            );
        }
    }

    #[test]
    fn a_missing_fragment_is_lost_unless_zeros_fit() {
        let mut random = fastrand::Rng::with_seed(3);
        let all = fragments(2, 1, &mut random);
        for shard in 0..3 {
            let found = judged(2, 1, &summed(&all, &[shard]));
            assert_eq!(found, [Mismatch { units: 0..UNITS, wrong: set(&[shard]) }]);
        }
        // nobody wrote to shard 1: it has no file, and needs none
        let mut small = vec![all[0].clone(), vec![0; UNITS * SUM_UNIT_BYTES]];
        let mut parity = vec![0; UNITS * SUM_UNIT_BYTES];
        let codec = codec::new(2, 1, Kernel::Portable).expect("a code");
        codec.encode(&[&small[0], &small[1]], &mut [&mut parity[..]]);
        small.push(parity);
        assert_eq!(judged(2, 1, &summed(&small, &[1])), []);
        // and where it cannot have had data, a mismatch is no loss of it
        small[0][5] ^= 1;
        let found = judge(&*codec, &summed(&small, &[1]), |_, _| false);
        assert_eq!(found, [Mismatch { units: 0..1, wrong: ShardSet::EMPTY }]);
    }

    #[test]
    fn where_a_shard_can_hold_data() {
        let profile = Profile::new(2, 1, 512, 1 << 20).expect("a profile");
        let may = |shard, offset, end| may_hold_data(profile, si(shard), offset, end);
        assert!(may(0, 0, 1) && may(2, 0, 1) && !may(1, 0, 512) && may(1, 0, 513));
        assert!(!may(0, 512, 1024) && may(0, 512, 1025) && !may(0, 0, 0));
    }
}
