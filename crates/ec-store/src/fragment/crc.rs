//! Checksums of sectors.
//!
//! Contract: those of [`messenger::checksum`], as the table of a fragment stores them.

use super::SECTOR_BYTES;
use messenger::checksum;

const SECTOR: usize = SECTOR_BYTES as usize;

const _: () = assert!(SECTOR == checksum::BLOCK_BYTES);

/// The checksum of one sector as the table stores it: its CRC32C, or 1 where that is 0, which means
/// "never written".
pub fn sector_crc(sector: &[u8]) -> u32 {
    stored(crc32c::crc32c(sector))
}

/// A sector's CRC32C as the table stores it.
pub(crate) fn stored(crc: u32) -> u32 {
    crc.max(1)
}

/// The CRC32C of sectors that lie one behind the other, made of theirs: nobody looks at the bytes
/// again.
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
                (Some(sum), 0) => Some(checksum::with_block(sum, checksum::ZEROS_CRC)),
                (Some(sum), crc) => Some(checksum::with_block(sum, crc)),
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

/// Appends the checksum of every sector of `bytes`, whole sectors, to `crcs`.
pub fn sector_crcs(bytes: &[u8], crcs: &mut impl Extend<u32>) {
    checksum::block_crcs(bytes, |some| crcs.extend(some.iter().map(|crc| stored(*crc))));
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
        // Backwards through 32 shifts of the reflected polynomial: each that shifted out a one has
        // the top bit set.
        let before = (0..32).fold(u32::MAX, |register, _| match register >> 31 {
            1 => (register ^ 0x82f6_3b78) << 1 | 1,
            _ => register << 1,
        });
        before ^ from
    }
}
