//! Arithmetic in GF(2^8) with the polynomial 0x11d, and the coding matrices built from it.
//!
//! Contract: pure tables and functions. The encoding matrix is that of `reed-solomon-erasure`: a
//! Vandermonde matrix multiplied by the inverse of its top square, so that the top is the identity
//! and the code systematic. It is part of the on-disk format and must never change.

use super::SHARDS_MAX;

/// The low eight bits of the field polynomial x^8 + x^4 + x^3 + x^2 + 1.
pub(super) const POLYNOMIAL: u8 = 0x1d;

/// One row of a coding matrix: a coefficient for each of k inputs.
pub(super) type Row = [u8; SHARDS_MAX];

/// A coding matrix of at most 16 rows.
pub(super) type Matrix = [Row; SHARDS_MAX];

const fn build_exp() -> [u8; 510] {
    let mut exp = [0; 510];
    let mut x: u8 = 1;
    let mut i = 0;
    while i < 255 {
        exp[i] = x;
        exp[i + 255] = x;
        x = (x << 1) ^ if x & 0x80 == 0 { 0 } else { POLYNOMIAL };
        i += 1;
    }
    exp
}

const fn build_log() -> [u8; 256] {
    let mut log = [0; 256];
    let mut i = 0;
    while i < 255 {
        log[EXP[i] as usize] = i as u8;
        i += 1;
    }
    log
}

const EXP: [u8; 510] = build_exp();
const LOG: [u8; 256] = build_log();

/// The product of two elements.
pub(super) const fn mul(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 { 0 } else { EXP[LOG[a as usize] as usize + LOG[b as usize] as usize] }
}

/// The multiplicative inverse; `a` is not 0.
const fn inverse(a: u8) -> u8 {
    assert!(a != 0, "zero has no inverse");
    EXP[255 - LOG[a as usize] as usize]
}

/// `a` to the power `n`, with 0^0 = 1.
fn power(a: u8, n: usize) -> u8 {
    (0..n).fold(1, |product, _| mul(product, a))
}

/// For each coefficient the products with the 16 low and the 16 high nibbles: what a byte shuffle
/// looks up.
pub(super) static NIBBLES: [[u8; 32]; 256] = {
    let mut tables = [[0; 32]; 256];
    let mut c = 0;
    while c < 256 {
        let mut n = 0;
        while n < 16 {
            tables[c][n] = mul(c as u8, n as u8);
            tables[c][n + 16] = mul(c as u8, (n << 4) as u8);
            n += 1;
        }
        c += 1;
    }
    tables
};

/// The encoding matrix: k rows of identity, then a row for each parity shard.
pub(super) fn encoding_matrix(k: usize, m: usize) -> Matrix {
    let mut vandermonde = [[0; SHARDS_MAX]; SHARDS_MAX];
    for (r, row) in vandermonde.iter_mut().enumerate().take(k + m) {
        for (c, cell) in row.iter_mut().enumerate().take(k) {
            *cell = power(r as u8, c);
        }
    }
    let top = invert(&vandermonde, k).expect("a Vandermonde matrix of distinct points is regular");
    let mut matrix = [[0; SHARDS_MAX]; SHARDS_MAX];
    for r in 0..k + m {
        matrix[r] = multiply_row(&vandermonde[r], &top, k);
    }
    matrix
}

/// A row times a k x k matrix.
pub(super) fn multiply_row(row: &Row, matrix: &Matrix, k: usize) -> Row {
    let mut product = [0; SHARDS_MAX];
    for (c, cell) in product.iter_mut().enumerate().take(k) {
        *cell = (0..k).fold(0, |sum, i| sum ^ mul(row[i], matrix[i][c]));
    }
    product
}

/// The inverse of the top-left k x k square by Gauss-Jordan elimination, or `None` if it is
/// singular.
pub(super) fn invert(matrix: &Matrix, k: usize) -> Option<Matrix> {
    let mut left = *matrix;
    let mut right = [[0; SHARDS_MAX]; SHARDS_MAX];
    for (i, row) in right.iter_mut().enumerate().take(k) {
        row[i] = 1;
    }
    for col in 0..k {
        let pivot = (col..k).find(|&r| left[r][col] != 0)?;
        left.swap(col, pivot);
        right.swap(col, pivot);
        let scale = inverse(left[col][col]);
        for c in 0..k {
            left[col][c] = mul(left[col][c], scale);
            right[col][c] = mul(right[col][c], scale);
        }
        let (left_pivot, right_pivot) = (left[col], right[col]);
        for r in (0..k).filter(|&r| r != col) {
            let factor = left[r][col];
            for c in 0..k {
                left[r][c] ^= mul(factor, left_pivot[c]);
                right[r][c] ^= mul(factor, right_pivot[c]);
            }
        }
    }
    Some(right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_laws_hold_for_every_element() {
        for a in 1..=255u8 {
            assert_eq!(mul(a, inverse(a)), 1);
            assert_eq!(mul(a, 1), a);
            assert_eq!(mul(a, 0), 0);
            for b in 0..=255u8 {
                assert_eq!(mul(a, b), mul(b, a));
                let [low, high] = [
                    NIBBLES[a as usize][(b & 15) as usize],
                    NIBBLES[a as usize][16 + (b >> 4) as usize],
                ];
                assert_eq!(mul(a, b), low ^ high);
            }
        }
    }

    #[test]
    fn the_parity_row_of_two_plus_one_is_the_format() {
        assert_eq!(encoding_matrix(2, 1)[2][..2], [3, 2]);
    }

    #[test]
    fn a_replicated_pool_holds_copies() {
        assert!(encoding_matrix(1, 15).iter().all(|row| row[0] == 1));
    }
}
