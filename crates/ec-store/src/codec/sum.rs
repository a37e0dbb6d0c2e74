//! Checksums that commute with the code: the parity of shards' sums is the sum of their parity.
//!
//! Contract: pure. A [`LinearSum`] maps each unit of [`SUM_UNIT_BYTES`] to [`SUM_BYTES`] bytes,
//! each byte a linear form over GF(2^8) of the unit's bytes. Reed-Solomon is linear over the same
//! field, position by position, so encoding or reconstructing sums gives the sums of what encoding
//! or reconstructing the bytes would give: shards are compared by exchanging 8 bytes for every
//! 4,096. (Linear, homomorphic fingerprints of erasure-coded data: Hendricks, Ganger, Reiter,
//! "Verifying distributed erasure-coded data", PODC 2007.)
//!
//! **How sure.** Byte t of a sum is `sum over blocks b and positions j of r[t][b] * q[t][j] *
//! x[b][j]` with coefficients drawn from the seed. For an error that does not know the seed each
//! byte misses it with a probability of at most 2/256 (all columns cancel, or what is left does),
//! so all eight miss it with at most 2^-56. Sums that differ always mean bytes that differ. The
//! seed is drawn anew for every scrub, so that what one missed the next one need not. This is no
//! defence against one who chooses the errors and knows the seed.

use super::SHARDS_MAX;
use super::gf::{self, Row};
use super::kernel::{self, Kernel};

/// Bytes that one sum stands for. A range's last unit may be shorter; what is missing counts as
/// zeros.
pub const SUM_UNIT_BYTES: usize = 4096;
/// Bytes of a sum.
pub const SUM_BYTES: usize = 8;

/// Bytes of a block: one coefficient for all of it lets vector instructions fold.
const BLOCK_BYTES: usize = 64;
/// Blocks that are folded in one call.
const GROUP_BYTES: usize = SHARDS_MAX * BLOCK_BYTES;
const GROUPS: usize = SUM_UNIT_BYTES / GROUP_BYTES;

/// The sums of one seed.
#[derive(Clone, Debug)]
pub struct LinearSum {
    kernel: Kernel,
    /// By byte of the sum: a coefficient for each block.
    fold: [[Row; GROUPS]; SUM_BYTES],
    /// By byte of the sum: a coefficient for each byte of what the folding leaves.
    rest: [[u8; BLOCK_BYTES]; SUM_BYTES],
}

impl LinearSum {
    /// The sums of a seed, computed by the fastest kernel of this CPU.
    pub fn new(seed: u64) -> Self {
        Self::with_kernel(seed, Kernel::detect())
    }

    fn with_kernel(seed: u64, kernel: Kernel) -> Self {
        let mut random = SplitMix(seed);
        let fold = std::array::from_fn(|_| {
            std::array::from_fn(|_| std::array::from_fn(|_| random.byte()))
        });
        let rest = std::array::from_fn(|_| std::array::from_fn(|_| random.byte()));
        Self { kernel, fold, rest }
    }

    /// Appends the sum of every unit of `bytes` to `out`.
    pub fn append(&self, bytes: &[u8], out: &mut Vec<u8>) {
        for unit in bytes.chunks(SUM_UNIT_BYTES) {
            match unit.try_into() {
                Ok(unit) => out.extend(self.unit(unit)),
                Err(_) => {
                    let mut padded = [0; SUM_UNIT_BYTES];
                    padded[..unit.len()].copy_from_slice(unit);
                    out.extend(self.unit(&padded));
                }
            }
        }
    }

    fn unit(&self, unit: &[u8; SUM_UNIT_BYTES]) -> [u8; SUM_BYTES] {
        // holes are common, and their sum is known
        if unit.iter().all(|&byte| byte == 0) {
            return [0; SUM_BYTES];
        }
        std::array::from_fn(|t| {
            let mut folded = [0; BLOCK_BYTES];
            for (group, row) in unit.as_chunks::<GROUP_BYTES>().0.iter().zip(&self.fold[t]) {
                let blocks: [&[u8]; SHARDS_MAX] =
                    std::array::from_fn(|b| &group[b * BLOCK_BYTES..][..BLOCK_BYTES]);
                let mut part = [0; BLOCK_BYTES];
                kernel::combine(self.kernel, row, &blocks, &mut part);
                folded.iter_mut().zip(part).for_each(|(sum, byte)| *sum ^= byte);
            }
            folded.iter().zip(&self.rest[t]).fold(0, |sum, (&x, &q)| sum ^ gf::mul(x, q))
        })
    }
}

/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): both ends must draw the same coefficients,
/// whatever they are built of.
struct SplitMix(u64);

impl SplitMix {
    fn byte(&mut self) -> u8 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)).to_le_bytes()[7]
    }
}

#[cfg(test)]
mod tests {
    use super::super::new;
    use super::*;

    fn sums(of: &LinearSum, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        of.append(bytes, &mut out);
        out
    }

    #[test]
    fn the_parity_of_sums_is_the_sum_of_parity() {
        let mut random = fastrand::Rng::with_seed(1);
        for (k, m) in [(1, 2), (2, 1), (2, 2), (4, 3), (13, 3)] {
            let length = random.usize(1..4) * SUM_UNIT_BYTES + random.usize(0..8) * 512;
            let mut data = vec![vec![0; length]; k];
            data.iter_mut().for_each(|shard| random.fill(shard));
            let mut parity = vec![vec![0; length]; m];
            let codec = new(k, m, Kernel::Portable).expect("a code");
            let of = LinearSum::new(random.u64(..));
            let inputs: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
            codec
                .encode(&inputs, &mut parity.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
            let data_sums: Vec<Vec<u8>> = data.iter().map(|shard| sums(&of, shard)).collect();
            let mut expected = vec![vec![0; data_sums[0].len()]; m];
            let inputs: Vec<&[u8]> = data_sums.iter().map(Vec::as_slice).collect();
            codec.encode(
                &inputs,
                &mut expected.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>(),
            );
            let got: Vec<Vec<u8>> = parity.iter().map(|shard| sums(&of, shard)).collect();
            assert_eq!(got, expected, "{k}+{m}");
        }
    }

    #[test]
    fn every_kernel_gives_the_same_sums_and_a_short_unit_is_padded() {
        let mut bytes = vec![0; SUM_UNIT_BYTES + 1536];
        fastrand::Rng::with_seed(2).fill(&mut bytes);
        let wanted = sums(&LinearSum::with_kernel(7, Kernel::Reference), &bytes);
        assert_eq!(wanted.len(), 2 * SUM_BYTES);
        for kernel in Kernel::ALL.into_iter().filter(|kernel| kernel.is_supported()) {
            assert_eq!(sums(&LinearSum::with_kernel(7, kernel), &bytes), wanted, "{kernel}");
        }
        bytes.resize(2 * SUM_UNIT_BYTES, 0);
        assert_eq!(sums(&LinearSum::new(7), &bytes), wanted);
    }

    /// Single bits, whole sectors and swapped blocks: what disks and bugs do.
    #[test]
    fn no_error_of_many_goes_unseen() {
        let mut random = fastrand::Rng::with_seed(3);
        let mut unit = vec![0; SUM_UNIT_BYTES];
        random.fill(&mut unit);
        for n in 0..3000 {
            let of = LinearSum::new(random.u64(..));
            let mut bad = unit.clone();
            match n % 3 {
                0 => bad[random.usize(0..SUM_UNIT_BYTES)] ^= 1 << random.u8(0..8),
                1 => random.fill(&mut bad[512..1024]),
                _ => bad.swap(random.usize(0..2048), random.usize(2048..SUM_UNIT_BYTES)),
            }
            assert_eq!(bad == unit, sums(&of, &bad) == sums(&of, &unit));
        }
    }
}
