//! Cookies of directory entries: numbers at which reading goes on.
//!
//! Contract: pure. The cookie of an entry is made of its name, so that it stays for the life of the
//! name, over opens, mounts and restarts. Entries are listed in the order of names all the same:
//! which name a cookie stands for is known of those that were listed of late, also of names that
//! are gone since; of others it is found by reading the directory from its beginning.

use std::ops::Range;
use std::sync::Arc;

/// Of the beginning; reading from it gives `.`.
pub(super) const BEGIN: u64 = 0;
/// After `.`.
pub(super) const AFTER_DOT: u64 = 1;
/// After `..`; the names follow.
pub(super) const AFTER_DOTS: u64 = 2;
/// Cookies of names have this bit and not the one above: they are positive for `lseek`, and none is
/// one of those above.
const NAME_BIT: u64 = 1 << 62;

/// Bytes of names and cookies that a mount remembers, at most: some 400,000 names.
const KEPT_BYTES_MAX: usize = 16 << 20;
/// What a part of a directory costs beside its names and cookies, generously: it bounds how many
/// there are, which are looked through one by one.
const PART_BYTES: usize = 1 << 10;
/// Of a part of a directory that was listed again and again while names came and went, so many are
/// remembered.
const VERSIONS_MAX: usize = 4;

/// The cookie of a name. Frozen: an NFS client may use it after a restart of this program. Two of
/// 10^6 names are alike once in ten million directories; reading then goes on after the latter.
pub(super) fn of_name(name: &[u8]) -> u64 {
    // FNV-1a of 64 bits, and a last step that spreads it.
    let hash = name.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let spread = (hash ^ (hash >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (spread ^ (spread >> 32)) >> 2 | NAME_BIT
}

/// Names of a part of a directory as it was listed, in their order, with their cookies.
#[derive(Debug, Default)]
pub(super) struct Listed {
    cookies: Vec<u64>,
    names: Vec<u8>,
    /// Where each name ends in `names`.
    ends: Vec<u32>,
}

impl Listed {
    /// Of these names; those beyond [`KEPT_BYTES_MAX`] are left out of what can be found by
    /// [`Listed::name`].
    pub fn new<'a>(names: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut listed = Self::default();
        for name in names {
            listed.cookies.push(of_name(name));
            if listed.names.len() + name.len() <= KEPT_BYTES_MAX {
                listed.names.extend(name);
                listed.ends.push(listed.names.len() as u32);
            }
        }
        listed
    }

    /// The cookie of the name at an index.
    pub fn cookie(&self, index: usize) -> Option<u64> {
        self.cookies.get(index).copied()
    }

    /// The index of a cookie, if it is within this range; of several that are alike the last.
    pub fn index(&self, within: Range<usize>, cookie: u64) -> Option<usize> {
        let begin = within.start;
        self.cookies.get(within)?.iter().rposition(|known| *known == cookie).map(|at| begin + at)
    }

    fn name(&self, cookie: u64) -> Option<&[u8]> {
        let at = self.index(0..self.cookies.len(), cookie)?;
        let begin = at.checked_sub(1).map_or(Some(0), |before| self.ends.get(before).copied())?;
        self.names.get(begin as usize..*self.ends.get(at)? as usize)
    }

    fn bytes(&self) -> usize {
        PART_BYTES + self.names.len() + self.cookies.len() * (size_of::<u64>() + size_of::<u32>())
    }
}

/// What was listed of late; what was neither listed nor looked for longest goes first.
#[derive(Debug, Default)]
pub(super) struct Recent<D> {
    /// By directory, used last at the end; each oldest first.
    kept: Vec<(D, Vec<Part>)>,
    bytes: usize,
}

/// Part of a directory: the name before it, and what was listed.
type Part = (Vec<u8>, Arc<Listed>);

impl<D: Copy + PartialEq> Recent<D> {
    /// A part of a directory was listed: what follows a name, or, with an empty one, its beginning.
    pub fn add(&mut self, dir: D, after: &[u8], listed: Arc<Listed>) {
        let added = listed.bytes();
        if listed.cookies.is_empty() || added > KEPT_BYTES_MAX {
            return;
        }
        let parts = self.used(dir);
        let versions = || parts.iter().enumerate().filter(|(_, (known, _))| known == after);
        // Names that are gone from an older version may be asked for yet.
        let same = versions().find(|(_, (_, known))| known.cookies == listed.cookies);
        let oldest = versions().next().filter(|_| versions().count() >= VERSIONS_MAX);
        let replaced = same.or(oldest).map(|(at, _)| at);
        let replaced = replaced.map_or(0, |at| parts.remove(at).1.bytes());
        parts.push((after.to_vec(), listed));
        self.bytes = self.bytes + added - replaced;
        while self.bytes > KEPT_BYTES_MAX {
            self.drop_one();
        }
    }

    /// The name of a directory that a cookie stands for.
    pub fn name(&mut self, dir: D, cookie: u64) -> Option<Vec<u8>> {
        if self.kept.iter().all(|(known, _)| *known != dir) {
            return None;
        }
        let parts = self.used(dir).iter().rev();
        parts.filter_map(|(_, listed)| listed.name(cookie)).next().map(<[u8]>::to_vec)
    }

    /// What is known of a directory, which was used just now.
    fn used(&mut self, dir: D) -> &mut Vec<Part> {
        let known = self.kept.iter().position(|(known, _)| *known == dir);
        let entry = known.map_or_else(|| (dir, Vec::new()), |at| self.kept.remove(at));
        self.kept.push(entry);
        &mut self.kept.last_mut().expect("just pushed").1
    }

    /// Forgets a part of the directory that was used longest ago.
    fn drop_one(&mut self) {
        let Some((_, parts)) = self.kept.first_mut() else { return };
        let dropped = if parts.is_empty() { 0 } else { parts.remove(0).1.bytes() };
        self.bytes -= dropped;
        if parts.is_empty() {
            self.kept.remove(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn listed(names: &[&str]) -> Arc<Listed> {
        Arc::new(Listed::new(names.iter().map(|name| name.as_bytes())))
    }

    #[test]
    fn cookies_are_frozen_positive_and_differ() {
        assert_eq!(of_name(b""), 0x7f6f_7dab_13f1_4b9f);
        assert_eq!(of_name(b"file000001"), 0x4f5f_ba98_9f11_d553);
        let all: BTreeSet<u64> =
            (0..200_000).map(|number| of_name(format!("file{number:06}").as_bytes())).collect();
        assert_eq!(all.len(), 200_000);
        assert!(all.iter().all(|cookie| (NAME_BIT..NAME_BIT << 1).contains(cookie)));
    }

    #[test]
    fn names_are_found_by_cookie_also_when_they_are_gone() {
        let mut recent = Recent::default();
        recent.add(1, b"", listed(&["", "b", "ccc"]));
        recent.add(1, b"ccc", listed(&["d"]));
        recent.add(2, b"", listed(&["e"]));
        for name in ["", "b", "ccc", "d"] {
            assert_eq!(recent.name(1, of_name(name.as_bytes())), Some(name.as_bytes().to_vec()));
        }
        assert_eq!((recent.name(1, of_name(b"e")), recent.name(3, of_name(b"e"))), (None, None));
        recent.add(1, b"", listed(&["ccc"]));
        assert_eq!(recent.name(1, of_name(b"b")), Some(b"b".to_vec()), "of the version before");
        let bytes = recent.bytes;
        (0..9).for_each(|_| recent.add(1, b"", listed(&["ccc"])));
        assert_eq!(recent.bytes, bytes, "what is listed again takes nothing more");
        ["p", "q", "r", "s"].iter().for_each(|name| recent.add(1, b"", listed(&[name])));
        assert_eq!(
            (recent.name(1, of_name(b"b")), recent.name(1, of_name(b"p"))),
            (None, Some(b"p".to_vec()))
        );
    }

    #[test]
    fn a_bounded_number_is_kept_of_what_was_used_last() {
        let mut recent = Recent::default();
        let names = |dir: u32, count: usize| {
            let names: Vec<String> =
                (0..count).map(|number| format!("{dir}-{number:020}")).collect();
            Arc::new(Listed::new(names.iter().map(String::as_bytes)))
        };
        let each = (KEPT_BYTES_MAX / 4 - PART_BYTES) / (22 + 12);
        (0..4).for_each(|dir| recent.add(dir, b"", names(dir, each)));
        let name = |dir: u32| format!("{dir}-{:020}", 5).into_bytes();
        assert!(recent.name(0, of_name(&name(0))).is_some(), "used again");
        recent.add(4, b"", names(4, each));
        let known: Vec<bool> =
            (0..5).map(|dir| recent.name(dir, of_name(&name(dir))).is_some()).collect();
        assert_eq!(known, [true, false, true, true, true]);
        assert!(recent.bytes <= KEPT_BYTES_MAX);
        recent.add(9, b"", names(9, 5 * each));
        assert_eq!(recent.name(9, of_name(&name(9))), None, "more than is kept at all");
    }
}
