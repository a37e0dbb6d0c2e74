//! Checksums of data block by block, and of the whole from those of its blocks.
//!
//! Contract: the numbers of the `crc32c` crate. A block is too short for that crate to sum parts of
//! it side by side, and a single chain of CRC instructions spends its time on their latency: here
//! several blocks' chains run at once. Memory is asked for ahead, as what is summed may have left
//! the cache, and the CPU does not do so by itself for streams as short as a block.

/// Bytes of a block: a sector of what stores them.
pub const BLOCK_BYTES: usize = 512;
/// Blocks summed at once: the instruction's latency is three cycles on common CPUs, and one begins
/// each cycle.
const LANES: usize = 4;
/// How many groups of that many blocks ahead memory is asked for.
const AHEAD_GROUPS: usize = 2;

/// Gives the CRC32C of every block of `bytes`, whole blocks, in order and some at a time.
pub fn block_crcs(bytes: &[u8], mut each: impl FnMut(&[u32])) {
    let (blocks, rest) = bytes.as_chunks::<BLOCK_BYTES>();
    debug_assert!(rest.is_empty());
    #[cfg(target_arch = "x86_64")]
    let blocks = if std::arch::is_x86_feature_detected!("sse4.2") {
        let (groups, rest) = blocks.as_chunks::<LANES>();
        for (at, group) in groups.iter().enumerate() {
            let ahead = groups.get(at + AHEAD_GROUPS).unwrap_or(group);
            // SAFETY: the CPU has SSE4.2.
            each(&unsafe { x86::crcs(group, ahead) });
        }
        rest
    } else {
        blocks
    };
    blocks.iter().for_each(|block| each(&[crc32c::crc32c(block)]));
}

/// The CRC32C of data of which these are the blocks' checksums.
pub fn joined(blocks: &[u32]) -> u32 {
    blocks.iter().fold(0, |crc, block| with_block(crc, *block))
}

/// The CRC32C of data with this checksum and a block with that one behind it. That of no data is 0.
pub fn with_block(crc: u32, block: u32) -> u32 {
    let bytes = crc.to_le_bytes();
    (0..4).fold(block, |sum, at| sum ^ BEHIND_BLOCK[at][usize::from(bytes[at])])
}

/// CRC32C of a block of zeros.
pub const ZEROS_CRC: u32 = !of_bits(&behind_block_bits(), u32::MAX);

/// What a block of zeros makes of a checksum, which is linear: by each byte of it.
static BEHIND_BLOCK: [[u32; 256]; 4] = behind_block_table();

/// The same by each bit.
const fn behind_block_bits() -> [u32; 32] {
    // What one bit of zeros makes of each bit of a checksum, and by squaring what twice as many
    // bits do.
    let mut bits = [0; 32];
    let mut bit = 0;
    while bit < 32 {
        let value = 1u32 << bit;
        bits[bit] = if value & 1 == 1 { value >> 1 ^ 0x82f6_3b78 } else { value >> 1 };
        bit += 1;
    }
    let mut doublings = (BLOCK_BYTES * 8).trailing_zeros();
    while doublings > 0 {
        let mut twice = [0; 32];
        let mut bit = 0;
        while bit < 32 {
            twice[bit] = of_bits(&bits, bits[bit]);
            bit += 1;
        }
        bits = twice;
        doublings -= 1;
    }
    bits
}

const fn behind_block_table() -> [[u32; 256]; 4] {
    let bits = behind_block_bits();
    let mut table = [[0; 256]; 4];
    let mut at = 0;
    while at < 4 * 256 {
        table[at / 256][at % 256] = of_bits(&bits, ((at % 256) as u32) << (at / 256 * 8));
        at += 1;
    }
    table
}

const fn of_bits(bits: &[u32; 32], value: u32) -> u32 {
    let (mut sum, mut bit) = (0, 0);
    while bit < 32 {
        if value >> bit & 1 == 1 {
            sum ^= bits[bit];
        }
        bit += 1;
    }
    sum
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{BLOCK_BYTES, LANES};
    use std::arch::x86_64::{_MM_HINT_T0, _mm_crc32_u64, _mm_prefetch};

    /// Bytes of a cache line.
    const LINE: usize = 64;

    /// The checksums of a group; meanwhile `ahead` comes into the cache.
    #[target_feature(enable = "sse4.2")]
    pub(super) fn crcs(
        group: &[[u8; BLOCK_BYTES]; LANES],
        ahead: &[[u8; BLOCK_BYTES]; LANES],
    ) -> [u32; LANES] {
        let lanes = group.each_ref().map(|block| block.as_chunks::<8>().0);
        let mut sums = [u64::from(u32::MAX); LANES];
        for at in 0..BLOCK_BYTES / 8 {
            if (at * 8).is_multiple_of(LINE) {
                for block in ahead {
                    // SAFETY: `at * 8 < BLOCK_BYTES`; a prefetch changes nothing.
                    unsafe { _mm_prefetch::<_MM_HINT_T0>(block.as_ptr().add(at * 8).cast()) };
                }
            }
            for (sum, words) in sums.iter_mut().zip(lanes) {
                *sum = _mm_crc32_u64(*sum, u64::from_le_bytes(words[at]));
            }
        }
        sums.map(|sum| !sum as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn zeros_have_their_sum() {
        assert_eq!(ZEROS_CRC, crc32c::crc32c(&[0; BLOCK_BYTES]));
    }

    proptest! {
        #[test]
        fn sums_are_those_of_the_crate(seed in any::<u64>(), blocks in 0usize..40, skip in 0usize..64) {
            let byte = |at: usize| (seed.wrapping_mul(at as u64 | 1) >> 29) as u8;
            let bytes: Vec<u8> = (0..skip + blocks * BLOCK_BYTES).map(byte).collect();
            let bytes = &bytes[skip..];
            let mut crcs = Vec::new();
            block_crcs(bytes, |some| crcs.extend_from_slice(some));
            prop_assert_eq!(&crcs, &bytes.chunks(BLOCK_BYTES).map(crc32c::crc32c).collect::<Vec<_>>());
            prop_assert_eq!(joined(&crcs), crc32c::crc32c(bytes));
        }
    }
}
