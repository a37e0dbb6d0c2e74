//! How full a disk is, by the ratios that Ceph has.
//!
//! Contract: pure. A ratio is reached when as much is left until the disk counts as full as lies
//! between the ratio and the full ratio: on a disk whose last part is kept for journals, and not by
//! ratio, all three are reached that much earlier.

use protocol::monitor::Fullness;

/// Shares of a disk, in order.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FullRatios {
    /// The operator is warned.
    pub nearfull: f64,
    /// Backfill pauses.
    pub backfillfull: f64,
    /// Writers are told that there is no space.
    pub full: f64,
}

/// With less than this left a disk counts as full: a large write's part does not fit.
const FULL_BYTES: u64 = 1 << 20;

impl Default for FullRatios {
    fn default() -> Self {
        Self { nearfull: 0.85, backfillfull: 0.90, full: 0.95 }
    }
}

impl FullRatios {
    /// Of a disk of `usable_bytes` that takes `free_bytes` more before it counts as full.
    pub fn fullness(&self, usable_bytes: u64, free_bytes: u64) -> Fullness {
        let left = free_bytes as f64 / usable_bytes.max(1) as f64;
        // what is told of the disk is in whole bytes: a ratio that is reached up to rounding is
        // reached
        let reached = |ratio: f64| left <= self.full - ratio + f64::EPSILON;
        match free_bytes {
            0..FULL_BYTES => Fullness::Full,
            _ if reached(self.backfillfull) => Fullness::BackfillFull,
            _ if reached(self.nearfull) => Fullness::NearFull,
            _ => Fullness::Ok,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a disk of 1000 GiB with so much used, of which only the part beyond the full ratio is
    /// kept.
    fn at(ratios: FullRatios, used_gib: u64) -> Fullness {
        let full_gib = (ratios.full * 1000.0) as u64;
        ratios.fullness(1000 << 30, full_gib.saturating_sub(used_gib) << 30)
    }

    #[test]
    fn a_ratio_is_reached_at_its_share_of_the_disk() {
        let ratios = FullRatios::default();
        let table = [
            (0, Fullness::Ok),
            (849, Fullness::Ok),
            (850, Fullness::NearFull),
            (899, Fullness::NearFull),
            (900, Fullness::BackfillFull),
            (949, Fullness::BackfillFull),
            (950, Fullness::Full),
            (1000, Fullness::Full),
        ];
        for (used_gib, fullness) in table {
            assert_eq!(at(ratios, used_gib), fullness, "{used_gib} of 1000 GiB");
        }
        let equal = FullRatios { nearfull: 0.5, backfillfull: 0.5, full: 0.5 };
        assert_eq!((at(equal, 499), at(equal, 500)), (Fullness::Ok, Fullness::Full));
    }

    #[test]
    fn what_is_kept_for_journals_counts_as_used() {
        // 256 MiB, of which 64 are kept: 192 in all, 26 of them at the near-full ratio
        let free = |mib: u64| FullRatios::default().fullness(256 << 20, mib << 20);
        assert_eq!(
            (free(100), free(25), free(12), free(0)),
            (Fullness::Ok, Fullness::NearFull, Fullness::BackfillFull, Fullness::Full)
        );
    }
}
