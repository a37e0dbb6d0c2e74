//! Latencies in buckets of at most 1.6% width, so that a run of any length takes the same memory.
//! Finer than the daemons' own ([`messenger::histogram`]), whose buckets these are otherwise.

use messenger::histogram::{bucket_end, bucket_of};

/// Buckets per power of two, as a power of two.
const SUB_BITS: u32 = 6;

/// Counts of values in nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    sum_ns: u128,
}

impl Histogram {
    /// Counts one value.
    pub fn record(&mut self, ns: u64) {
        let index = bucket_of::<SUB_BITS>(ns);
        if index >= self.counts.len() {
            self.counts.resize(index + 1, 0);
        }
        self.counts[index] += 1;
        self.total += 1;
        self.sum_ns += u128::from(ns);
    }

    /// Counts all values of another.
    pub fn add(&mut self, other: &Histogram) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        self.counts.iter_mut().zip(&other.counts).for_each(|(sum, count)| *sum += count);
        self.total += other.total;
        self.sum_ns += other.sum_ns;
    }

    /// How many values were counted.
    pub fn count(&self) -> u64 {
        self.total
    }

    /// Their mean in microseconds, exact; 0 if there are none.
    pub fn mean_us(&self) -> f64 {
        if self.total == 0 { 0.0 } else { self.sum_ns as f64 / self.total as f64 / 1e3 }
    }

    /// The value in microseconds that `share` of all values do not exceed, to the width of its
    /// bucket; 0 if there are none.
    pub fn quantile_us(&self, share: f64) -> f64 {
        let wanted = ((self.total as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return bucket_end::<SUB_BITS>(index) as f64 / 1e3;
            }
        }
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_its_bucket() {
        for ns in (0..2000).chain(
            (11..40).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + (1 << (bit - 3))]),
        ) {
            let index = bucket_of::<SUB_BITS>(ns);
            assert!(bucket_end::<SUB_BITS>(index) >= ns, "{ns} is above bucket {index}");
            assert!(
                index == 0 || bucket_end::<SUB_BITS>(index - 1) < ns,
                "{ns} is below bucket {index}"
            );
            assert!(bucket_end::<SUB_BITS>(index) as f64 <= ns as f64 * 1.016 + 1.0);
        }
    }

    #[test]
    fn quantiles_of_a_known_set() {
        let mut histogram = Histogram::default();
        assert_eq!((histogram.mean_us(), histogram.quantile_us(0.5)), (0.0, 0.0));
        (1..=1000u64).for_each(|us| histogram.record(us * 1000));
        assert_eq!(histogram.count(), 1000);
        assert!((histogram.mean_us() - 500.5).abs() < 1e-9);
        let (mut sum, mut larger) = (Histogram::default(), Histogram::default());
        larger.record(1_001_000);
        sum.add(&histogram);
        sum.add(&larger);
        assert!(sum.count() == 1001 && (sum.mean_us() - 501.0).abs() < 1e-9);
        for (share, expected) in [(0.5, 500.0), (0.99, 990.0), (0.999, 999.0), (1.0, 1000.0)] {
            let got = histogram.quantile_us(share);
            assert!((expected..expected * 1.02).contains(&got), "{share}: {got}");
        }
    }
}
