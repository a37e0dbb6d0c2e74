//! How long things took, in buckets of at most 1/8 width, so that any number of them takes the same
//! memory.
//!
//! Contract: [`Histogram`] is written by any thread, without a lock: an entry is two relaxed
//! additions, and a store when it is the shortest or the longest so far. [`Times`] is a reading of
//! it: a plain value that travels, adds up and can be compared with a later one; one made while
//! others write may lack their last entries, in part too. One that came from elsewhere may hold any
//! numbers: what is computed of it is then as wrong, but is computed. `hdrhistogram` was looked at:
//! its shared form passes every entry through a channel to whoever reads.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

/// Buckets per power of two, as a power of two: a value is known to 1/16 either way of its bucket's
/// middle.
const SUB_BITS: u32 = 3;
/// Values of this many bits, in nanoseconds 18 minutes, and longer ones share the last bucket.
const VALUE_BITS: u32 = 40;
/// Buckets of a histogram, which take 8 bytes each.
const BUCKETS: usize = bucket_of::<SUB_BITS>((1 << VALUE_BITS) - 1) + 1;

/// The bucket of a value. Values below 2^BITS have a bucket each; above, every power of two has
/// 2^BITS.
pub const fn bucket_of<const BITS: u32>(value: u64) -> usize {
    let exponent = (u64::BITS - value.leading_zeros()).saturating_sub(BITS + 1);
    ((exponent as usize) << BITS) + (value >> exponent) as usize
}

/// The largest value of a bucket.
pub const fn bucket_end<const BITS: u32>(bucket: usize) -> u64 {
    let exponent = (bucket >> BITS).saturating_sub(1);
    let mantissa = (bucket - (exponent << BITS)) as u64;
    ((mantissa + 1) << exponent) - 1
}

fn begin_of(bucket: u16) -> u64 {
    known(bucket).checked_sub(1).map_or(0, |before| bucket_end::<SUB_BITS>(before) + 1)
}

fn end_of(bucket: u16) -> u64 {
    bucket_end::<SUB_BITS>(known(bucket))
}

/// The bucket, or the last one if there is none of this number.
fn known(bucket: u16) -> usize {
    usize::from(bucket).min(BUCKETS - 1)
}

/// Counts durations.
#[derive(Debug)]
pub struct Histogram {
    buckets: Box<[AtomicU64]>,
    sum_ns: AtomicU64,
    /// `u64::MAX` until there is an entry.
    min_ns: AtomicU64,
    max_ns: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram {
            buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            sum_ns: AtomicU64::new(0),
            min_ns: AtomicU64::new(u64::MAX),
            max_ns: AtomicU64::new(0),
        }
    }
}

impl Histogram {
    /// Counts a duration, in nanoseconds.
    pub fn record(&self, ns: u64) {
        self.buckets[bucket_of::<SUB_BITS>(ns).min(BUCKETS - 1)].fetch_add(1, Relaxed);
        self.sum_ns.fetch_add(ns, Relaxed);
        // As a rule neither: then nothing is written.
        if ns > self.max_ns.load(Relaxed) {
            self.max_ns.fetch_max(ns, Relaxed);
        }
        if ns < self.min_ns.load(Relaxed) {
            self.min_ns.fetch_min(ns, Relaxed);
        }
    }

    /// What was counted so far.
    pub fn times(&self) -> Times {
        let count = |(bucket, count): (usize, &AtomicU64)| (bucket as u16, count.load(Relaxed));
        let buckets: Vec<_> =
            self.buckets.iter().enumerate().map(count).filter(|(_, count)| *count > 0).collect();
        if buckets.is_empty() {
            return Times::default();
        }
        let (min_ns, max_ns) = (self.min_ns.load(Relaxed), self.max_ns.load(Relaxed));
        // An entry is counted before it is the shortest or longest.
        let (min_ns, max_ns) = (min_ns.min(max_ns), max_ns);
        Times { buckets, sum_ns: self.sum_ns.load(Relaxed), min_ns, max_ns }
    }
}

/// Durations that were counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// Number of entries by bucket, in order, without those that are zero.
    buckets: Vec<(u16, u64)>,
    sum_ns: u64,
    min_ns: u64,
    max_ns: u64,
}

impl Times {
    /// How many.
    pub fn calls(&self) -> u64 {
        self.buckets.iter().fold(0, |calls, (_, count)| calls.saturating_add(*count))
    }

    /// All together, in nanoseconds.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// The shortest, in nanoseconds; 0 if there is none.
    pub fn min_ns(&self) -> u64 {
        self.min_ns
    }

    /// The longest, in nanoseconds; 0 if there is none.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// The mean, in nanoseconds; 0 if there is none.
    pub fn mean_ns(&self) -> f64 {
        match self.calls() {
            0 => 0.0,
            calls => self.sum_ns as f64 / calls as f64,
        }
    }

    /// The duration that `share` (0 to 1) of all do not exceed, in nanoseconds, to 1/15 of it; 0 if
    /// there is none.
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let wanted = ((self.calls() as f64 * share).ceil() as u64).max(1);
        let mut seen = 0_u64;
        for &(bucket, count) in &self.buckets {
            seen = seen.saturating_add(count);
            if seen >= wanted {
                let (begin, end) = (begin_of(bucket), end_of(bucket));
                return self.within(begin + (end - begin) / 2);
            }
        }
        self.max_ns
    }

    /// How many took less than 2^`bits` nanoseconds; of at most [`Times::BITS_MAX`].
    pub fn below(&self, bits: u32) -> u64 {
        let below = self.buckets.iter().filter(|(bucket, _)| end_of(*bucket) < 1 << bits);
        below.fold(0, |calls, (_, count)| calls.saturating_add(*count))
    }

    /// Longer durations are not told apart: 2^BITS_MAX nanoseconds.
    pub const BITS_MAX: u32 = VALUE_BITS;

    /// Adds others to these.
    pub fn merge(&mut self, other: &Times) {
        if other.buckets.is_empty() {
            return;
        }
        self.min_ns =
            if self.buckets.is_empty() { other.min_ns } else { self.min_ns.min(other.min_ns) };
        self.max_ns = self.max_ns.max(other.max_ns);
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
        for &(bucket, count) in &other.buckets {
            match self.buckets.binary_search_by_key(&bucket, |(own, _)| *own) {
                Ok(at) => self.buckets[at].1 = self.buckets[at].1.saturating_add(count),
                Err(at) => self.buckets.insert(at, (bucket, count)),
            }
        }
    }

    /// Those between an earlier reading and this one. The shortest and the longest are then known
    /// to their buckets only.
    pub fn since(&self, earlier: &Times) -> Times {
        let before = |bucket: u16| {
            let found = earlier.buckets.binary_search_by_key(&bucket, |(own, _)| *own);
            found.map_or(0, |at| earlier.buckets[at].1)
        };
        let less = |&(bucket, count): &(u16, u64)| (bucket, count.saturating_sub(before(bucket)));
        let buckets: Vec<_> =
            self.buckets.iter().map(less).filter(|(_, count)| *count > 0).collect();
        let (Some((first, _)), Some((last, _))) = (buckets.first(), buckets.last()) else {
            return Times::default();
        };
        Times {
            min_ns: self.within(begin_of(*first)),
            max_ns: self.within(end_of(*last)),
            sum_ns: self.sum_ns.wrapping_sub(earlier.sum_ns),
            buckets,
        }
    }

    /// The duration, no shorter than the shortest and no longer than the longest.
    fn within(&self, ns: u64) -> u64 {
        ns.max(self.min_ns).min(self.max_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn counted(values: &[u64]) -> Times {
        let histogram = Histogram::default();
        values.iter().for_each(|ns| histogram.record(*ns));
        histogram.times()
    }

    fn values() -> impl Strategy<Value = Vec<u64>> {
        // As many short as long ones: the exponent is drawn, not the value.
        let value = (0..VALUE_BITS, any::<u64>())
            .prop_map(|(bits, any)| any & ((2 << bits) - 1) & ((1 << VALUE_BITS) - 1));
        proptest::collection::vec(value, 1..200)
    }

    #[test]
    fn numbers_from_elsewhere_may_be_any() {
        let most = Times {
            buckets: vec![(9, u64::MAX), (u16::MAX, 1)],
            sum_ns: 1,
            min_ns: u64::MAX,
            max_ns: 3,
        };
        let mut merged = most.clone();
        merged.merge(&most);
        for times in [&most, &merged, &most.since(&Times::default())] {
            assert_eq!(times.calls(), u64::MAX);
            assert_eq!(times.below(Times::BITS_MAX - 1), u64::MAX);
            assert_eq!(times.quantile_ns(1.0), 3);
        }
    }

    proptest! {
        #[test]
        fn a_quantile_is_right_to_a_fifteenth(mut values in values(), share in 0.0_f64..=1.0) {
            let times = counted(&values);
            values.sort_unstable();
            let rank = ((values.len() as f64 * share).ceil() as usize).max(1);
            let (exact, told) = (values[rank - 1], times.quantile_ns(share));
            prop_assert!(told.abs_diff(exact) <= exact / 15 + 1, "{told} for {exact}");
        }

        #[test]
        fn sums_are_exact(values in values()) {
            let times = counted(&values);
            prop_assert_eq!(times.calls(), values.len() as u64);
            prop_assert_eq!(times.sum_ns(), values.iter().sum::<u64>());
            prop_assert_eq!(Some(times.min_ns()), values.iter().min().copied());
            prop_assert_eq!(Some(times.max_ns()), values.iter().max().copied());
        }

        #[test]
        fn merging_is_counting_together(one in values(), other in values()) {
            let mut merged = counted(&one);
            merged.merge(&counted(&other));
            prop_assert_eq!(&merged, &counted(&[one, other].concat()));
            let mut from_nothing = Times::default();
            from_nothing.merge(&merged);
            from_nothing.merge(&Times::default());
            prop_assert_eq!(from_nothing, merged);
        }

        #[test]
        fn a_difference_is_what_came_in_between(first in values(), second in values()) {
            let all = counted(&[first.clone(), second.clone()].concat());
            let (between, exact) = (all.since(&counted(&first)), counted(&second));
            prop_assert_eq!((between.calls(), between.sum_ns()), (exact.calls(), exact.sum_ns()));
            prop_assert!(between.min_ns() <= exact.min_ns() && exact.max_ns() <= between.max_ns());
            prop_assert!(exact.min_ns() - between.min_ns() <= exact.min_ns() / 8);
            prop_assert!(between.max_ns() - exact.max_ns() <= exact.max_ns() / 8);
            prop_assert_eq!(all.since(&all), Times::default());
        }

        #[test]
        fn what_is_below_a_power_of_two_is_exact(values in values(), bits in 0..VALUE_BITS) {
            let below = values.iter().filter(|ns| **ns < 1 << bits).count() as u64;
            prop_assert_eq!(counted(&values).below(bits), below);
        }
    }

    #[test]
    fn every_value_lies_in_its_bucket() {
        for ns in (0..2000).chain(
            (11..64).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + (1 << (bit - 3))]),
        ) {
            let bucket = bucket_of::<SUB_BITS>(ns);
            assert!(bucket_end::<SUB_BITS>(bucket) >= ns, "{ns} is above bucket {bucket}");
            assert!(
                bucket == 0 || bucket_end::<SUB_BITS>(bucket - 1) < ns,
                "{ns} is below bucket {bucket}"
            );
        }
    }

    #[test]
    fn nothing_and_very_long() {
        assert_eq!(counted(&[]), Times::default());
        let none = Times::default();
        assert_eq!(
            (none.calls(), none.mean_ns(), none.quantile_ns(0.5), none.max_ns()),
            (0, 0.0, 0, 0)
        );
        let long = counted(&[1 << 50]);
        assert_eq!((long.calls(), long.max_ns(), long.quantile_ns(0.99)), (1, 1 << 50, 1 << 50));
    }
}
