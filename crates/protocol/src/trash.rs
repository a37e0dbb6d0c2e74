//! The trash: where removed files are kept for a time, and what they remember.
//!
//! A removed file is an entry of a hidden directory. Its name there begins with the moment at which
//! it goes for good, so the listing is in the order in which they go; its origin is an extended
//! attribute. A directory that was removed is a symbolic link there, to its origin, so that paths
//! of what was in it can still be told.

use crate::ids::{Gfid, PoolId};
use serde::{Deserialize, Serialize};

/// Takes the place of a pool in
/// [`NamespaceOp::BlobRoot`](crate::namespace::NamespaceOp::BlobRoot) for the trash.
pub const TRASH: PoolId = PoolId::new(u32::MAX - 1);
/// The attribute of a directory below which removed files go to the trash: for how many seconds, in
/// decimal digits; 0: not at all. The nearest directory above a file decides.
pub const TRASH_KEEP: &[u8] = b"trusted.trefoil.trash";
/// The attribute of a file in the trash: its [`TrashOrigin`].
pub const TRASH_ORIGIN: &[u8] = b"trusted.trefoil.origin";
/// Longest time in the trash, in seconds: ten years.
pub const TRASH_KEEP_SECONDS_MAX: u64 = 10 * 365 * 24 * 60 * 60;
/// Digits of an entry's moment, and of its file.
const DIGITS: (usize, usize) = (16, 32);

/// Where something in the trash was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrashOrigin {
    /// When it was removed, in seconds since 1970.
    pub removed: i64,
    /// From which directory.
    pub parent: Gfid,
    /// Its name there.
    pub name: Vec<u8>,
}

/// An entry of the trash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrashEntry {
    /// When it goes for good, in seconds since 1970.
    pub until: i64,
    /// The file or directory that was removed.
    pub gfid: Gfid,
}

impl TrashEntry {
    /// Its name in the trash.
    pub fn name(self) -> Vec<u8> {
        format!("{:016x}{:032x}", self.until.max(0), self.gfid.get()).into_bytes()
    }

    /// By its name.
    pub fn of_name(name: &[u8]) -> Option<Self> {
        if name.len() != DIGITS.0 + DIGITS.1 || !name.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        let (until, gfid) = std::str::from_utf8(name).ok()?.split_at(DIGITS.0);
        Some(Self {
            until: i64::from_str_radix(until, 16).ok()?,
            gfid: Gfid::new(u128::from_str_radix(gfid, 16).ok()?),
        })
    }
}

/// For how many seconds files are kept, by the value of [`TRASH_KEEP`]. `None` if it is none.
pub fn keep_seconds(value: &[u8]) -> Option<u64> {
    let is_number = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    let seconds = std::str::from_utf8(value).ok().filter(|_| is_number)?.parse().ok()?;
    (seconds <= TRASH_KEEP_SECONDS_MAX).then_some(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_sort_by_when_their_files_go() {
        let entry = |until, inode| TrashEntry { until, gfid: Gfid::of_inode(inode) };
        for one in [entry(0, 7), entry(i64::MAX, u64::MAX >> 1)] {
            assert_eq!(TrashEntry::of_name(&one.name()), Some(one));
        }
        assert!(entry(9, 8).name() < entry(10, 7).name());
        let name = entry(1, 2).name();
        for wrong in [&name[1..], &[&name[..], b"0"].concat(), b"x", &[b'g'; 48], &[b'f'; 48]] {
            assert_eq!(TrashEntry::of_name(wrong), None);
        }
    }

    #[test]
    fn times_to_keep_are_numbers() {
        assert_eq!((keep_seconds(b"0"), keep_seconds(b"604800")), (Some(0), Some(604_800)));
        for wrong in [&b""[..], b"-1", b"+1", b"7d", b"99999999999", b"\xff"] {
            assert_eq!(keep_seconds(wrong), None);
        }
    }
}
