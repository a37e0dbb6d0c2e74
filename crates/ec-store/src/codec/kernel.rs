//! Kernels that combine byte slices linearly over GF(2^8): `out = sum of row[j] * inputs[j]`.
//!
//! Contract: every kernel gives the same bytes. A kernel runs only on a CPU that has its
//! instructions: [`Kernel::is_supported`] says so, and the codec refuses any other.

use super::gf::{self, Row};
use std::fmt;

/// How coding is computed. All give the same bytes; they differ in speed and in what the CPU must
/// offer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Kernel {
    /// The `reed-solomon-erasure` crate, byte by byte through tables: what the others are compared
    /// with.
    Reference,
    /// Doubling and adding in 64-bit words; the compiler vectorises it for the target.
    Portable,
    /// Nibble tables through 16-byte shuffles (x86-64 with SSSE3).
    Ssse3,
    /// Nibble tables through 32-byte shuffles (x86-64 with AVX2).
    Avx2,
}

impl Kernel {
    /// Every kernel, slowest first.
    pub const ALL: [Kernel; 4] = [Kernel::Reference, Kernel::Portable, Kernel::Ssse3, Kernel::Avx2];

    /// The fastest kernel this CPU can run.
    pub fn detect() -> Self {
        [Kernel::Avx2, Kernel::Ssse3]
            .into_iter()
            .find(|kernel| kernel.is_supported())
            .unwrap_or(Kernel::Portable)
    }

    /// Can this CPU run the kernel?
    pub fn is_supported(self) -> bool {
        match self {
            Kernel::Reference | Kernel::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Kernel::Ssse3 => std::arch::is_x86_feature_detected!("ssse3"),
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2 => std::arch::is_x86_feature_detected!("avx2"),
            #[cfg(not(target_arch = "x86_64"))]
            Kernel::Ssse3 | Kernel::Avx2 => false,
        }
    }

    /// The name used in configuration and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Kernel::Reference => "reference",
            Kernel::Portable => "portable",
            Kernel::Ssse3 => "ssse3",
            Kernel::Avx2 => "avx2",
        }
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Writes `sum of row[j] * inputs[j]` to `out`. All slices have one length, and the CPU supports
/// the kernel.
pub(super) fn combine(kernel: Kernel, row: &Row, inputs: &[&[u8]], out: &mut [u8]) {
    assert!(inputs.iter().all(|input| input.len() == out.len()), "slices of one length");
    debug_assert!(kernel.is_supported());
    // A single term with coefficient 1 is a copy: every parity of a replicated pool.
    if let ([input], 1) = (inputs, row[0]) {
        out.copy_from_slice(input);
        return;
    }
    let done = match kernel {
        Kernel::Reference => 0,
        Kernel::Portable => portable(row, inputs, out),
        #[cfg(target_arch = "x86_64")]
        Kernel::Ssse3 => {
            // SAFETY: the codec's constructor checked that the CPU has SSSE3; all slices have one
            // length.
            unsafe { x86::combine_ssse3(row, inputs, out) }
        }
        #[cfg(target_arch = "x86_64")]
        Kernel::Avx2 => {
            // SAFETY: the codec's constructor checked that the CPU has AVX2; all slices have one
            // length.
            unsafe { x86::combine_avx2(row, inputs, out) }
        }
        #[cfg(not(target_arch = "x86_64"))]
        Kernel::Ssse3 | Kernel::Avx2 => portable(row, inputs, out),
    };
    for (i, byte) in out.iter_mut().enumerate().skip(done) {
        *byte = inputs.iter().zip(row).fold(0, |sum, (input, &c)| sum ^ gf::mul(c, input[i]));
    }
}

/// Words a portable step works on at once: two cache lines' worth gives the vectoriser independent
/// chains.
const LANES: usize = 8;
const STEP: usize = LANES * 8;

/// Horner's scheme over the bits of the coefficients: double the sum, add the inputs whose
/// coefficient has the bit. Returns how many bytes were done.
fn portable(row: &Row, inputs: &[&[u8]], out: &mut [u8]) -> usize {
    let all = inputs.iter().zip(row).fold(0, |bits, (_, &c)| bits | c);
    let top = 8 - all.leading_zeros();
    let done = out.len() / STEP * STEP;
    for at in (0..done).step_by(STEP) {
        let mut sum = [0u64; LANES];
        for bit in (0..top).rev() {
            for word in &mut sum {
                let carry = (*word >> 7) & 0x0101_0101_0101_0101;
                *word = ((*word & 0x7f7f_7f7f_7f7f_7f7f) << 1)
                    ^ carry.wrapping_mul(u64::from(gf::POLYNOMIAL));
            }
            for (input, _) in inputs.iter().zip(row).filter(|(_, c)| **c >> bit & 1 == 1) {
                for (word, bytes) in sum.iter_mut().zip(input[at..at + STEP].as_chunks::<8>().0) {
                    *word ^= u64::from_ne_bytes(*bytes);
                }
            }
        }
        for (word, bytes) in sum.iter().zip(out[at..at + STEP].as_chunks_mut::<8>().0) {
            *bytes = word.to_ne_bytes();
        }
    }
    done
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::gf::{NIBBLES, Row};
    use std::arch::x86_64::*;

    /// Returns how many bytes were done: a multiple of 16.
    ///
    /// # Safety
    /// The CPU has SSSE3, and every input is as long as `out`.
    #[target_feature(enable = "ssse3")]
    pub(super) unsafe fn combine_ssse3(row: &Row, inputs: &[&[u8]], out: &mut [u8]) -> usize {
        let done = out.len() / 16 * 16;
        let mask = _mm_set1_epi8(15);
        for at in (0..done).step_by(16) {
            let mut sum = _mm_setzero_si128();
            for (input, &c) in inputs.iter().zip(row) {
                let table = &NIBBLES[c as usize];
                // SAFETY: a table has 32 bytes; `at + 16 <= done <= input.len()`.
                let (low, high, x) = unsafe {
                    (
                        _mm_loadu_si128(table.as_ptr().cast()),
                        _mm_loadu_si128(table.as_ptr().add(16).cast()),
                        _mm_loadu_si128(input.as_ptr().add(at).cast()),
                    )
                };
                let low = _mm_shuffle_epi8(low, _mm_and_si128(x, mask));
                let high = _mm_shuffle_epi8(high, _mm_and_si128(_mm_srli_epi64::<4>(x), mask));
                sum = _mm_xor_si128(sum, _mm_xor_si128(low, high));
            }
            // SAFETY: `at + 16 <= done <= out.len()`.
            unsafe { _mm_storeu_si128(out.as_mut_ptr().add(at).cast(), sum) };
        }
        done
    }

    /// Returns how many bytes were done: a multiple of 32.
    ///
    /// # Safety
    /// The CPU has AVX2, and every input is as long as `out`.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn combine_avx2(row: &Row, inputs: &[&[u8]], out: &mut [u8]) -> usize {
        // Two vectors a turn amortise the table loads; what is left over is done one vector at a
        // time.
        let wide = out.len() / 64 * 64;
        let done = out.len() / 32 * 32;
        for at in (0..wide).step_by(64) {
            // SAFETY: AVX2 is there; `at + 64 <= wide`, the length of every slice at most.
            unsafe { step_avx2::<2>(row, inputs, out, at) };
        }
        for at in (wide..done).step_by(32) {
            // SAFETY: AVX2 is there; `at + 32 <= done`, the length of every slice at most.
            unsafe { step_avx2::<1>(row, inputs, out, at) };
        }
        done
    }

    /// # Safety
    /// The CPU has AVX2, and `at + N * 32` is within `out` and every input.
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn step_avx2<const N: usize>(row: &Row, inputs: &[&[u8]], out: &mut [u8], at: usize) {
        let mask = _mm256_set1_epi8(15);
        let mut sums = [_mm256_setzero_si256(); N];
        for (input, &c) in inputs.iter().zip(row) {
            let table = &NIBBLES[c as usize];
            // SAFETY: a table has 32 bytes.
            let (low, high) = unsafe {
                (
                    _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())),
                    _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().add(16).cast())),
                )
            };
            for (i, sum) in sums.iter_mut().enumerate() {
                // SAFETY: the caller keeps `at + N * 32` within the input.
                let x = unsafe { _mm256_loadu_si256(input.as_ptr().add(at + i * 32).cast()) };
                let low = _mm256_shuffle_epi8(low, _mm256_and_si256(x, mask));
                let high =
                    _mm256_shuffle_epi8(high, _mm256_and_si256(_mm256_srli_epi64::<4>(x), mask));
                *sum = _mm256_xor_si256(*sum, _mm256_xor_si256(low, high));
            }
        }
        for (i, sum) in sums.iter().enumerate() {
            // SAFETY: the caller keeps `at + N * 32` within `out`.
            unsafe { _mm256_storeu_si256(out.as_mut_ptr().add(at + i * 32).cast(), *sum) };
        }
    }
}
