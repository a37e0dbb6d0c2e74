//! Checksums of sectors.
//!
//! Contract: the numbers of the `crc32c` crate, sector by sector. A sector is too short for that crate to sum parts of it side by
//! side, and a single chain of CRC instructions spends its time on their latency: here several sectors' chains run at once. What
//! is applied was received a while ago and is no longer in the cache: so it is asked for ahead, which the CPU does not do by itself
//! for streams as short as a sector.

use super::SECTOR_BYTES;

const SECTOR: usize = SECTOR_BYTES as usize;
/// Sectors summed at once: the instruction's latency is three cycles on common CPUs, and one begins each cycle.
const LANES: usize = 4;
/// How many groups of that many sectors ahead memory is asked for.
const AHEAD_GROUPS: usize = 2;

/// The checksum of one sector as the table stores it: its CRC32C, or 1 where that is 0, which means "never written".
pub fn sector_crc(sector: &[u8]) -> u32 {
    crc32c::crc32c(sector).max(1)
}

/// The CRC32C of sectors that lie one behind the other, made of theirs: nobody looks at the bytes again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JoinedCrc(Option<u32>);

impl Default for JoinedCrc {
    /// Of no bytes.
    fn default() -> JoinedCrc {
        JoinedCrc(Some(0))
    }
}

impl JoinedCrc {
    /// Appends sectors by their entries in a table of checksums: 0 stands for a sector of zeros.
    pub fn push(&mut self, crcs: &[u32]) {
        for &crc in crcs {
            self.0 = match (self.0, crc) {
                // The sum of such a sector is 0 or 1: see [`sector_crc`].
                (None, _) | (_, 1) => None,
                (Some(sum), 0) => Some(before_a_sector(sum) ^ ZEROS_CRC),
                (Some(sum), crc) => Some(before_a_sector(sum) ^ crc),
            };
        }
    }

    /// Appends bytes whose checksums nobody has.
    pub fn push_unknown(&mut self) {
        self.0 = None;
    }

    /// The CRC32C of all of them; `None` if it cannot be told without the bytes.
    pub fn get(self) -> Option<u32> {
        self.0
    }
}

/// CRC32C's polynomial, reflected.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// CRC32C of a sector of zeros.
const ZEROS_CRC: u32 = !over_zeros(u32::MAX);
/// What each byte of a checksum becomes when a sector follows.
static BEFORE_A_SECTOR: [[u32; 256]; 4] = before_a_sector_table();

/// A CRC's register after so many zero bits as a sector has.
const fn over_zeros(mut register: u32) -> u32 {
    let mut bit = 0;
    while bit < SECTOR * 8 {
        register = (register >> 1) ^ (POLYNOMIAL & 0u32.wrapping_sub(register & 1));
        bit += 1;
    }
    register
}

/// The register is a linear function of its bits.
const fn before_a_sector_table() -> [[u32; 256]; 4] {
    let mut table = [[0; 256]; 4];
    let mut bit = 0;
    while bit < 32 {
        let (byte, mask, becomes) = (bit / 8, 1 << (bit % 8), over_zeros(1 << bit));
        let mut value = 0;
        while value < 256 {
            if value & mask != 0 {
                table[byte][value] ^= becomes;
            }
            value += 1;
        }
        bit += 1;
    }
    table
}

/// What the checksum of some bytes adds to that of the same bytes and a sector behind them.
fn before_a_sector(sum: u32) -> u32 {
    sum.to_le_bytes().iter().zip(&BEFORE_A_SECTOR).fold(0, |all, (byte, table)| all ^ table[usize::from(*byte)])
}

/// Appends the checksum of every sector of `bytes`, whole sectors, to `crcs`.
pub fn sector_crcs(bytes: &[u8], crcs: &mut impl Extend<u32>) {
    let (sectors, rest) = bytes.as_chunks::<SECTOR>();
    debug_assert!(rest.is_empty());
    #[cfg(target_arch = "x86_64")]
    let sectors = if std::arch::is_x86_feature_detected!("sse4.2") {
        let (groups, rest) = sectors.as_chunks::<LANES>();
        for (at, group) in groups.iter().enumerate() {
            let ahead = groups.get(at + AHEAD_GROUPS).unwrap_or(group);
            // SAFETY: the CPU has SSE4.2.
            crcs.extend(unsafe { x86::crcs(group, ahead) });
        }
        rest
    } else {
        sectors
    };
    crcs.extend(sectors.iter().map(|sector| sector_crc(sector)));
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{LANES, SECTOR};
    use std::arch::x86_64::{_MM_HINT_T0, _mm_crc32_u64, _mm_prefetch};

    /// Bytes of a cache line.
    const LINE: usize = 64;

    /// The checksums of a group; meanwhile `ahead` comes into the cache.
    #[target_feature(enable = "sse4.2")]
    pub(super) fn crcs(group: &[[u8; SECTOR]; LANES], ahead: &[[u8; SECTOR]; LANES]) -> [u32; LANES] {
        let lanes = group.each_ref().map(|sector| sector.as_chunks::<8>().0);
        let mut sums = [u64::from(u32::MAX); LANES];
        for at in 0..SECTOR / 8 {
            if (at * 8).is_multiple_of(LINE) {
                for sector in ahead {
                    // SAFETY: `at * 8 < SECTOR`; a prefetch changes nothing.
                    unsafe { _mm_prefetch::<_MM_HINT_T0>(sector.as_ptr().add(at * 8).cast()) };
                }
            }
            for (sum, words) in sums.iter_mut().zip(lanes) {
                *sum = _mm_crc32_u64(*sum, u64::from_le_bytes(words[at]));
            }
        }
        sums.map(|sum| (!sum as u32).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sums_are_those_of_the_crate(seed in any::<u64>(), sectors in 0usize..40, skip in 0usize..64) {
            let byte = |at: usize| (seed.wrapping_mul(at as u64 | 1) >> 29) as u8;
            let bytes: Vec<u8> = (0..skip + sectors * SECTOR).map(byte).collect();
            let mut crcs = vec![7];
            sector_crcs(&bytes[skip..], &mut crcs);
            let expected = bytes[skip..].chunks(SECTOR).map(|sector| crc32c::crc32c(sector).max(1));
            prop_assert_eq!(crcs, std::iter::once(7).chain(expected).collect::<Vec<_>>());
        }
    }

    proptest! {
        #[test]
        fn joined_sums_are_those_of_all_bytes(seed in any::<u64>(), holes in proptest::collection::vec(any::<bool>(), 0..40)) {
            let byte = |at: usize| (seed.wrapping_mul(at as u64 | 1) >> 29) as u8;
            let mut bytes: Vec<u8> = (0..holes.len() * SECTOR).map(byte).collect();
            let mut crcs = Vec::new();
            sector_crcs(&bytes, &mut crcs);
            for (sector, _) in bytes.chunks_mut(SECTOR).zip(&holes).filter(|(_, hole)| **hole) {
                sector.fill(0);
            }
            crcs.iter_mut().zip(&holes).filter(|(_, hole)| **hole).for_each(|(crc, _)| *crc = 0);
            let mut joined = JoinedCrc::default();
            let (first, rest) = crcs.split_at(crcs.len() / 3);
            joined.push(first);
            joined.push(rest);
            let told = !crcs.contains(&1);
            prop_assert_eq!(joined.get(), told.then(|| crc32c::crc32c(&bytes)));
        }
    }

    #[test]
    fn what_cannot_be_told_stays_so() {
        for unknown in [|joined: &mut JoinedCrc| joined.push(&[1]), JoinedCrc::push_unknown] {
            let mut joined = JoinedCrc::default();
            joined.push(&[5, 0]);
            unknown(&mut joined);
            joined.push(&[5, 0]);
            assert_eq!(joined.get(), None);
        }
        assert_eq!(JoinedCrc::default().get(), Some(crc32c::crc32c(&[])));
    }

    #[test]
    fn a_sum_of_zero_is_one() {
        // The last four bytes of a sector can give it any sum.
        let mut sectors = vec![5; 9 * SECTOR];
        for sector in sectors.chunks_exact_mut(SECTOR) {
            let (front, end) = sector.split_at_mut(SECTOR - 4);
            end.copy_from_slice(&zeroing_end(!crc32c::crc32c(front)).to_le_bytes());
        }
        assert!(sectors.chunks_exact(SECTOR).all(|sector| crc32c::crc32c(sector) == 0));
        let mut crcs = Vec::new();
        sector_crcs(&sectors, &mut crcs);
        assert_eq!(crcs, [1; 9]);
    }

    /// The four bytes that turn the register `from` into all ones, whose sum is 0.
    fn zeroing_end(from: u32) -> u32 {
        // Backwards through 32 shifts of the reflected polynomial: each that shifted out a one has the top bit set.
        let before = (0..32).fold(u32::MAX, |register, _| match register >> 31 {
            1 => (register ^ POLYNOMIAL) << 1 | 1,
            _ => register << 1,
        });
        before ^ from
    }
}
