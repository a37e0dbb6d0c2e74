//! Reed-Solomon coding: k data shards, m parity shards, any k of them give all.
//!
//! Contract: pure functions over byte slices, no I/O and no threads. The code is systematic (data
//! shards hold the user's bytes) and its matrix is that of `reed-solomon-erasure`, part of the
//! on-disk format: for 2+1 the parity is `3*d0 + 2*d1` over GF(2^8) with polynomial 0x11d. With k =
//! 1 every shard is a byte copy. Every [`Kernel`] gives the same bytes; tests hold them to the
//! reference for every loss pattern.

mod gf;
#[expect(unsafe_code, reason = "vector instructions")]
mod kernel;
mod sum;

pub use kernel::Kernel;
pub use sum::{LinearSum, SUM_BYTES, SUM_UNIT_BYTES};

use gf::{Matrix, Row};
use protocol::ids::{Profile, ShardIndex};
use reed_solomon_erasure::galois_8::ReedSolomon;
use smallvec::SmallVec;
use std::fmt;
use std::sync::Arc;

/// The most shards of a profile, data and parity together.
pub const SHARDS_MAX: usize = 16;

/// Combining works block by block, so that k inputs stay in the first-level cache while m outputs
/// are made from them.
const BLOCK_BYTES: usize = 8 << 10;

/// Why shards could not be coded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CodecError {
    /// k must be at least 1 and k + m at most 16.
    #[error("k={k} m={m} cannot be coded: k must be at least 1 and k + m at most 16")]
    Shards {
        /// Data shards asked for.
        k: usize,
        /// Parity shards asked for.
        m: usize,
    },
    /// The CPU lacks the kernel's instructions.
    #[error("this cpu cannot run the {0} kernel")]
    Unsupported(Kernel),
    /// Fewer than k shards were given.
    #[error("{have} shards cannot give the others back: {need} are needed")]
    TooFew {
        /// Shards given.
        have: usize,
        /// k.
        need: usize,
    },
    /// A shard number is k + m or more, or was given twice.
    #[error("{0} is given twice or is no shard of this profile")]
    BadShard(ShardIndex),
    /// Shards differ in length.
    #[error("a shard of {found} bytes among shards of {expected} bytes")]
    Length {
        /// Length of the first shard.
        expected: usize,
        /// Length of the odd one.
        found: usize,
    },
}

/// A code for one (k, m). Cheap to share between threads; coding allocates nothing.
pub trait Codec: Send + Sync + fmt::Debug {
    /// Data shards.
    fn k(&self) -> usize;

    /// Parity shards.
    fn m(&self) -> usize;

    /// Computes the m parity slices from the k data slices, all of one length.
    ///
    /// # Panics
    /// If the numbers or lengths of the slices are not those of the code: a mistake of the caller.
    fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]);

    /// Computes the wanted shards, data or parity, from any k of the others, given in any order;
    /// more than k given are ignored.
    ///
    /// # Errors
    /// Fewer than k distinct shards, a shard number outside the code, or slices of different
    /// lengths. The wanted slices are then untouched.
    fn reconstruct(
        &self,
        have: &[(ShardIndex, &[u8])],
        want: &mut [(ShardIndex, &mut [u8])],
    ) -> Result<(), CodecError>;
}

/// The code of a profile with the fastest kernel of this CPU.
pub fn for_profile(profile: Profile) -> Arc<dyn Codec> {
    new(profile.k() as usize, profile.m() as usize, Kernel::detect())
        .expect("a profile's k and m are checked")
}

/// A code with a chosen kernel.
///
/// # Errors
/// [`CodecError::Shards`] and [`CodecError::Unsupported`].
pub fn new(k: usize, m: usize, kernel: Kernel) -> Result<Arc<dyn Codec>, CodecError> {
    if k == 0 || k + m > SHARDS_MAX {
        return Err(CodecError::Shards { k, m });
    }
    if !kernel.is_supported() {
        return Err(CodecError::Unsupported(kernel));
    }
    Ok(match kernel {
        Kernel::Reference => Arc::new(ReferenceCodec::new(k, m)),
        _ => Arc::new(KernelCodec { k, m, kernel, matrix: gf::encoding_matrix(k, m) }),
    })
}

/// Our own matrices with one of our kernels.
struct KernelCodec {
    k: usize,
    m: usize,
    kernel: Kernel,
    matrix: Matrix,
}

impl fmt::Debug for KernelCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{} {}", self.k, self.m, self.kernel)
    }
}

impl Codec for KernelCodec {
    fn k(&self) -> usize {
        self.k
    }

    fn m(&self) -> usize {
        self.m
    }

    fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) {
        assert_encode(self, data, parity);
        self.combine(
            data,
            data[0].len(),
            parity.iter_mut().zip(&self.matrix[self.k..]).map(|(out, row)| (row, &mut **out)),
        );
    }

    fn reconstruct(
        &self,
        have: &[(ShardIndex, &[u8])],
        want: &mut [(ShardIndex, &mut [u8])],
    ) -> Result<(), CodecError> {
        let length = check_reconstruct(self, have, want)?;
        let have = &have[..self.k];
        let mut given = [[0; SHARDS_MAX]; SHARDS_MAX];
        for (row, (shard, _)) in given.iter_mut().zip(have) {
            *row = self.matrix[shard.get() as usize];
        }
        let decode =
            gf::invert(&given, self.k).expect("any k rows of the encoding matrix are independent");
        let rows: SmallVec<[Row; 4]> = want
            .iter()
            .map(|(shard, _)| gf::multiply_row(&self.matrix[shard.get() as usize], &decode, self.k))
            .collect();
        let inputs: SmallVec<[&[u8]; SHARDS_MAX]> = have.iter().map(|(_, bytes)| *bytes).collect();
        self.combine(
            &inputs,
            length,
            want.iter_mut().zip(&rows).map(|((_, out), row)| (row, &mut **out)),
        );
        Ok(())
    }
}

impl KernelCodec {
    /// Makes every output from the inputs, block by block.
    fn combine<'a>(
        &self,
        inputs: &[&[u8]],
        length: usize,
        outputs: impl Iterator<Item = (&'a Row, &'a mut [u8])>,
    ) {
        let mut outputs: SmallVec<[(&Row, &mut [u8]); 4]> = outputs.collect();
        let block_bytes = if outputs.len() == 1 { length.max(1) } else { BLOCK_BYTES };
        for start in (0..length).step_by(block_bytes) {
            let end = length.min(start + block_bytes);
            let block: SmallVec<[&[u8]; SHARDS_MAX]> =
                inputs.iter().map(|input| &input[start..end]).collect();
            for (row, out) in &mut outputs {
                kernel::combine(self.kernel, row, &block, &mut out[start..end]);
            }
        }
    }
}

/// `reed-solomon-erasure`, wrapped. It refuses m = 0, where there is nothing to compute.
struct ReferenceCodec {
    k: usize,
    m: usize,
    inner: Option<ReedSolomon>,
}

impl fmt::Debug for ReferenceCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{} reference", self.k, self.m)
    }
}

impl ReferenceCodec {
    fn new(k: usize, m: usize) -> Self {
        let inner = (m > 0).then(|| ReedSolomon::new(k, m).expect("k and m are checked"));
        Self { k, m, inner }
    }
}

impl Codec for ReferenceCodec {
    fn k(&self) -> usize {
        self.k
    }

    fn m(&self) -> usize {
        self.m
    }

    fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) {
        assert_encode(self, data, parity);
        if let Some(inner) = self.inner.as_ref().filter(|_| !data[0].is_empty()) {
            inner.encode_sep(data, parity).expect("the slices are checked");
        }
    }

    fn reconstruct(
        &self,
        have: &[(ShardIndex, &[u8])],
        want: &mut [(ShardIndex, &mut [u8])],
    ) -> Result<(), CodecError> {
        let length = check_reconstruct(self, have, want)?;
        // The crate wants owned shards; the reference is for comparison and need not be fast.
        let mut shards: Vec<Option<Vec<u8>>> = vec![None; self.k + self.m];
        for (shard, bytes) in &have[..self.k] {
            shards[shard.get() as usize] = Some(bytes.to_vec());
        }
        if let Some(inner) = self.inner.as_ref().filter(|_| length > 0) {
            inner.reconstruct(&mut shards).expect("k shards of one length are given");
        }
        for (shard, out) in want.iter_mut() {
            if let Some(bytes) = &shards[shard.get() as usize] {
                out.copy_from_slice(bytes);
            }
        }
        Ok(())
    }
}

fn assert_encode(codec: &dyn Codec, data: &[&[u8]], parity: &[&mut [u8]]) {
    assert_eq!(data.len(), codec.k(), "one slice for each data shard");
    assert_eq!(parity.len(), codec.m(), "one slice for each parity shard");
    let length = data[0].len();
    assert!(data.iter().all(|slice| slice.len() == length), "data slices of one length");
    assert!(parity.iter().all(|slice| slice.len() == length), "parity slices of one length");
}

/// Checks what was given and what is wanted; returns the length of the shards.
fn check_reconstruct(
    codec: &dyn Codec,
    have: &[(ShardIndex, &[u8])],
    want: &[(ShardIndex, &mut [u8])],
) -> Result<usize, CodecError> {
    let (k, shards) = (codec.k(), codec.k() + codec.m());
    if have.len() < k {
        return Err(CodecError::TooFew { have: have.len(), need: k });
    }
    let have = &have[..k];
    let expected = have[0].1.len();
    let lengths =
        have.iter().map(|(_, bytes)| bytes.len()).chain(want.iter().map(|(_, bytes)| bytes.len()));
    if let Some(found) = lengths.into_iter().find(|&length| length != expected) {
        return Err(CodecError::Length { expected, found });
    }
    let mut seen = 0u32;
    for (shard, _) in have {
        if shard.get() as usize >= shards || seen >> shard.get() & 1 == 1 {
            return Err(CodecError::BadShard(*shard));
        }
        seen |= 1 << shard.get();
    }
    match want.iter().find(|(shard, _)| shard.get() as usize >= shards) {
        Some((shard, _)) => Err(CodecError::BadShard(*shard)),
        None => Ok(expected),
    }
}

#[cfg(test)]
mod tests;
