//! Random ids.

use std::hash::{BuildHasher, RandomState};
use std::time::SystemTime;

/// 128 bits that nobody else has drawn: of the keys with which the standard library's maps begin.
pub(crate) fn random_u128() -> u128 {
    let half = || u128::from(RandomState::new().hash_one(SystemTime::now()));
    half() << 64 | half()
}
