//! Where the bytes of files, objects and fragments are: the arithmetic of striping.
//!
//! Contract: pure arithmetic, no I/O. A file is cut into objects of `object_bytes`; an object into
//! stripes of k chunks; chunk c of stripe s is on data shard c at fragment offset `s * chunk`. So a
//! contiguous range of an object is a contiguous range of each fragment, and whole stripes are the
//! same range of every fragment, parity included. Ranges are half-open, offsets in bytes.
//!
//! | object bytes (k = 2, chunk = 512) | shard | fragment bytes |
//! |---|---|---|
//! | 0..512 | 0 | 0..512 |
//! | 512..1024 | 1 | 0..512 |
//! | 1024..1536 | 0 | 512..1024 |

use protocol::ids::{Profile, ShardIndex, ShardSet};
use std::ops::Range;

/// Bytes of one data shard's fragment, from a fragment offset on.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// Offset in the fragment of the first byte.
    pub offset: u64,
    /// The bytes; may be empty where the shard is not touched.
    pub bytes: &'a [u8],
}

/// A part of a file that lies in one object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjectPiece {
    /// Which object of the file.
    pub index: u32,
    /// The range within the object.
    pub range: Range<u64>,
    /// Where the part begins within the range of the file that was asked for.
    pub at: u64,
}

/// The striping of one profile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    profile: Profile,
}

impl Layout {
    /// The layout of a profile.
    pub const fn new(profile: Profile) -> Self {
        Self { profile }
    }

    /// The profile it was made for.
    pub const fn profile(self) -> Profile {
        self.profile
    }

    const fn k(self) -> u64 {
        self.profile.k() as u64
    }

    const fn chunk(self) -> u64 {
        self.profile.chunk_bytes() as u64
    }

    const fn stripe(self) -> u64 {
        self.profile.stripe_bytes()
    }

    /// Does the range begin and end at stripe boundaries? Such a write needs no read first. An
    /// empty range does.
    pub const fn is_whole_stripes(self, range: &Range<u64>) -> bool {
        range.start >= range.end
            || (range.start.is_multiple_of(self.stripe())
                && range.end.is_multiple_of(self.stripe()))
    }

    /// The least range of whole stripes that holds the range; empty if the range is.
    pub const fn stripe_cover(self, range: &Range<u64>) -> Range<u64> {
        let start = range.start / self.stripe() * self.stripe();
        if range.start >= range.end {
            return start..start;
        }
        start..range.end.next_multiple_of(self.stripe())
    }

    /// The fragment range, the same on every shard, of the whole stripes that hold the object
    /// range.
    pub const fn fragment_cover(self, range: &Range<u64>) -> Range<u64> {
        let cover = self.stripe_cover(range);
        cover.start / self.k()..cover.end / self.k()
    }

    /// The object range whose stripes a fragment range touches. The fragment range need not be
    /// aligned.
    pub const fn object_cover(self, fragment: &Range<u64>) -> Range<u64> {
        let start = fragment.start / self.chunk();
        if fragment.start >= fragment.end {
            return start * self.stripe()..start * self.stripe();
        }
        start * self.stripe()..fragment.end.div_ceil(self.chunk()) * self.stripe()
    }

    /// How many bytes of data shard `shard`'s fragment lie below object offset `end`: the fragment
    /// offset at which the shard's part of `end..` begins.
    const fn below(self, shard: u64, end: u64) -> u64 {
        let rest = end % self.stripe();
        let before = shard * self.chunk();
        let part = if rest <= before {
            0
        } else if rest - before >= self.chunk() {
            self.chunk()
        } else {
            rest - before
        };
        end / self.stripe() * self.chunk() + part
    }

    /// Exactly the fragment range of a data shard that holds its bytes of the object range; empty
    /// if it has none. A parity shard has none.
    pub const fn shard_range(self, shard: ShardIndex, range: &Range<u64>) -> Range<u64> {
        let shard = shard.get() as u64;
        if shard >= self.k() || range.start >= range.end {
            return 0..0;
        }
        let (start, end) = (self.below(shard, range.start), self.below(shard, range.end));
        if start >= end { 0..0 } else { start..end }
    }

    /// [`Layout::shard_range`] widened to whole sectors, the unit of checksums and of fragment
    /// reads.
    pub const fn shard_sectors(self, shard: ShardIndex, range: &Range<u64>) -> Range<u64> {
        sector_cover(&self.shard_range(shard, range))
    }

    /// The data shards that hold bytes of the object range: those a healthy read asks.
    pub fn touched(self, range: &Range<u64>) -> ShardSet {
        (0..self.profile.k())
            .map(ShardIndex::new)
            .filter(|&shard| !self.shard_range(shard, range).is_empty())
            .fold(ShardSet::EMPTY, ShardSet::with)
    }

    /// Copies user bytes, which belong at object offset `at`, into the k data fragments' buffers,
    /// in one pass. The buffers all begin at fragment offset `fragment_offset`. Bytes of the
    /// buffers outside the range stay as they are, so that a partial stripe is laid over what was
    /// read before.
    ///
    /// # Panics
    /// If there are not k buffers or one does not hold its part: a mistake of the caller.
    pub fn scatter(self, at: u64, user: &[u8], fragment_offset: u64, fragments: &mut [&mut [u8]]) {
        assert_eq!(fragments.len() as u64, self.k(), "one buffer for each data shard");
        self.for_each_chunk(at..at + user.len() as u64, |shard, offset, range| {
            let to = (offset - fragment_offset) as usize;
            fragments[shard][to..to + range.len()].copy_from_slice(&user[range]);
        });
    }

    /// Copies the object range from pieces of the k data fragments, one per shard, into `user`, in
    /// one pass. Pieces of shards that hold nothing of the range may be empty.
    ///
    /// # Panics
    /// If there are not k pieces, one does not hold its part, or `user` is not as long as the
    /// range.
    pub fn gather(self, range: Range<u64>, pieces: &[Piece<'_>], user: &mut [u8]) {
        assert_eq!(pieces.len() as u64, self.k(), "one piece for each data shard");
        assert_eq!(user.len() as u64, range.end - range.start, "a buffer as long as the range");
        self.for_each_chunk(range, |shard, offset, to| {
            let from = (offset - pieces[shard].offset) as usize;
            user[to.clone()].copy_from_slice(&pieces[shard].bytes[from..from + to.len()]);
        });
    }

    /// Calls `f(shard, fragment offset, range relative to the start)` for each chunk of the object
    /// range, in order.
    fn for_each_chunk(self, range: Range<u64>, mut f: impl FnMut(usize, u64, Range<usize>)) {
        // With one data shard the fragment is the object, and one copy does it.
        if self.k() == 1 {
            if range.start < range.end {
                f(0, range.start, 0..(range.end - range.start) as usize);
            }
            return;
        }
        let mut at = range.start;
        let (mut stripe, mut shard, mut within) =
            (at / self.stripe(), (at % self.stripe() / self.chunk()) as usize, at % self.chunk());
        while at < range.end {
            let length = (self.chunk() - within).min(range.end - at);
            let relative = (at - range.start) as usize;
            f(shard, stripe * self.chunk() + within, relative..relative + length as usize);
            at += length;
            within = 0;
            shard += 1;
            if shard as u64 == self.k() {
                (shard, stripe) = (0, stripe + 1);
            }
        }
    }

    /// Cuts a range of a file into the parts that lie in one object each, in order.
    pub fn objects(self, file: Range<u64>) -> impl Iterator<Item = ObjectPiece> {
        let size = self.profile.object_bytes();
        let mut at = file.start;
        std::iter::from_fn(move || {
            if at >= file.end {
                return None;
            }
            let index = at / size;
            let start = at % size;
            let end = size.min(start + (file.end - at));
            let piece = ObjectPiece { index: index as u32, range: start..end, at: at - file.start };
            at += end - start;
            Some(piece)
        })
    }
}

/// The least range of whole sectors that holds a fragment range; empty if the range is.
pub const fn sector_cover(range: &Range<u64>) -> Range<u64> {
    let sector = Profile::SECTOR_BYTES as u64;
    let start = range.start / sector * sector;
    if range.start >= range.end {
        return start..start;
    }
    start..range.end.next_multiple_of(sector)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Where one byte of an object is: the definition, byte by byte.
    fn oracle(profile: Profile, at: u64) -> (u8, u64) {
        let (k, chunk) = (u64::from(profile.k()), u64::from(profile.chunk_bytes()));
        let (chunk_number, within) = (at / chunk, at % chunk);
        ((chunk_number % k) as u8, chunk_number / k * chunk + within)
    }

    fn layouts() -> impl Strategy<Value = Layout> {
        (1u8..=6, 0u8..=2, 0u32..=2).prop_map(|(k, m, shift)| {
            let chunk = 512 << shift;
            Layout::new(Profile::new(k, m, chunk, u64::from(k) * u64::from(chunk) * 8).unwrap())
        })
    }

    /// A layout and a range of an object of it.
    fn cases() -> impl Strategy<Value = (Layout, Range<u64>)> {
        (layouts(), any::<u64>(), any::<u64>(), 0u8..3).prop_map(|(layout, a, b, align)| {
            let size = layout.profile().object_bytes();
            let unit = [1, 512, layout.profile().stripe_bytes()][align as usize];
            let (a, b) = (a % (size + 1) / unit * unit, b % (size + 1) / unit * unit);
            (layout, a.min(b)..a.max(b))
        })
    }

    fn user_bytes(range: &Range<u64>) -> Vec<u8> {
        range.clone().map(|at| (at ^ (at >> 8)) as u8 | 1).collect()
    }

    proptest! {
        #[test]
        fn ranges_are_those_of_the_oracle((layout, range) in cases()) {
            let profile = layout.profile();
            let mut bounds = vec![None::<(u64, u64, u64)>; profile.k() as usize];
            for at in range.clone() {
                let (shard, offset) = oracle(profile, at);
                let bound = bounds[shard as usize].get_or_insert((offset, offset, 0));
                prop_assert!(bound.2 == 0 || offset == bound.1, "a contiguous range of each fragment");
                *bound = (bound.0, offset + 1, bound.2 + 1);
            }
            for shard in 0..profile.shards() {
                let index = ShardIndex::new(shard);
                let exact = layout.shard_range(index, &range);
                match bounds.get(shard as usize).copied().flatten() {
                    None => prop_assert!(exact.is_empty() && !layout.touched(&range).contains(index)),
                    Some((first, end, _)) => {
                        prop_assert_eq!(exact.clone(), first..end);
                        prop_assert!(layout.touched(&range).contains(index));
                        let cover = layout.fragment_cover(&range);
                        prop_assert!(cover.start <= first && end <= cover.end);
                        let sectors = layout.shard_sectors(index, &range);
                        prop_assert!(sectors.start <= first && end <= sectors.end);
                        prop_assert!(first - sectors.start < 512 && sectors.end - end < 512);
                    }
                }
            }
        }

        #[test]
        fn covers_are_the_least_whole_stripes((layout, range) in cases()) {
            let stripe = layout.profile().stripe_bytes();
            let cover = layout.stripe_cover(&range);
            prop_assert!(layout.is_whole_stripes(&cover));
            prop_assert_eq!(layout.object_cover(&layout.fragment_cover(&range)), cover.clone());
            if range.is_empty() {
                prop_assert!(cover.is_empty());
            } else {
                prop_assert!(cover.start <= range.start && range.start - cover.start < stripe);
                prop_assert!(range.end <= cover.end && cover.end - range.end < stripe);
                prop_assert_eq!(layout.is_whole_stripes(&range), cover == range);
            }
        }

        #[test]
        fn scatter_and_gather_move_each_byte_to_its_place((layout, range) in cases()) {
            let profile = layout.profile();
            let user = user_bytes(&range);
            let cover = layout.fragment_cover(&range);
            let mut buffers = vec![vec![0u8; (cover.end - cover.start) as usize]; profile.k() as usize];
            let mut slices: Vec<&mut [u8]> = buffers.iter_mut().map(Vec::as_mut_slice).collect();
            layout.scatter(range.start, &user, cover.start, &mut slices);
            let mut naive = vec![vec![0u8; (cover.end - cover.start) as usize]; profile.k() as usize];
            for (at, byte) in range.clone().zip(&user) {
                let (shard, offset) = oracle(profile, at);
                naive[shard as usize][(offset - cover.start) as usize] = *byte;
            }
            prop_assert_eq!(&buffers, &naive);
            // Each shard gives only the sectors it was asked for.
            let pieces: Vec<Piece<'_>> = (0..profile.k())
                .map(|shard| {
                    let sectors = layout.shard_sectors(ShardIndex::new(shard), &range);
                    if sectors.is_empty() {
                        return Piece { offset: 0, bytes: &[] };
                    }
                    let (from, to) = ((sectors.start - cover.start) as usize, (sectors.end - cover.start) as usize);
                    Piece { offset: sectors.start, bytes: &buffers[shard as usize][from..to] }
                })
                .collect();
            let mut back = vec![0; user.len()];
            layout.gather(range.clone(), &pieces, &mut back);
            prop_assert_eq!(back, user);
        }

        #[test]
        fn objects_cut_a_file_range_without_gap(layout in layouts(), start in 0u64..100_000, length in 0u64..200_000) {
            let size = layout.profile().object_bytes();
            let mut at = start;
            for piece in layout.objects(start..start + length) {
                prop_assert_eq!(piece.at, at - start);
                prop_assert_eq!(u64::from(piece.index) * size + piece.range.start, at);
                prop_assert!(!piece.range.is_empty() && piece.range.end <= size);
                at += piece.range.end - piece.range.start;
            }
            prop_assert_eq!(at, start + length);
        }
    }
}
