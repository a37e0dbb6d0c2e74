//! Which fragments an operation on a range of one object asks and changes.
//!
//! Contract: pure arithmetic over [`Layout`]; no I/O, no state. Tests hold it to a byte-by-byte
//! oracle for every availability pattern.

use crate::config::ReadPolicy;
use ec_store::codec::Codec;
use ec_store::layout::{Layout, Piece, sector_cover};
use protocol::{Profile, ShardIndex, ShardSet};
use smallvec::SmallVec;
use std::ops::Range;

/// Most user bytes handled as one piece: bounds the buffers of one operation. A FUSE request is 1
/// MiB.
const PIECE_BYTES_MAX: u64 = 4 << 20;
/// Most bytes of all fragments of one piece: one pooled buffer holds them.
const FRAGMENTS_BYTES_MAX: u64 = 16 << 20;

/// Where the range of an object is to be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ReadPlan {
    /// Shard and range of its fragment, in bytes, in whole sectors.
    pub asks: SmallVec<[(ShardIndex, Range<u64>); 4]>,
    /// The k answers, all of one range, give the data by decoding.
    pub decode: bool,
}

impl ReadPlan {
    /// The shards asked.
    pub fn shards(&self) -> ShardSet {
        self.asks.iter().fold(ShardSet::EMPTY, |set, (shard, _)| set.with(*shard))
    }
}

/// What the choice among shards goes by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Preference<'a> {
    /// The setting.
    pub policy: ReadPolicy,
    /// For round-robin a counter, for hash the file's hash.
    pub turn: u64,
    /// For fastest: expected microseconds of each shard.
    pub latency: &'a [u32],
}

impl Preference<'_> {
    /// Data shards first.
    pub const SYSTEMATIC: Preference<'static> =
        Preference { policy: ReadPolicy::Systematic, turn: 0, latency: &[] };

    /// The shards of `usable`, the ones to ask first in front.
    fn order(&self, usable: ShardSet, shards: u8) -> SmallVec<[ShardIndex; 16]> {
        let mut order: SmallVec<[ShardIndex; 16]> = usable.iter().collect();
        let shards = usize::from(shards);
        match self.policy {
            ReadPolicy::Systematic => {}
            ReadPolicy::RoundRobin | ReadPolicy::Hash => {
                let first = (self.turn % shards as u64) as usize;
                order.sort_by_key(|shard| (usize::from(shard.get()) + shards - first) % shards);
            }
            ReadPolicy::Fastest => {
                order.sort_by_key(|shard| {
                    self.latency.get(usize::from(shard.get())).copied().unwrap_or(0)
                });
            }
        }
        order
    }
}

/// Plans a read of a range of an object from the usable shards; `None` if they are too few.
pub(crate) fn plan_read(
    layout: Layout,
    range: &Range<u64>,
    usable: ShardSet,
    preference: &Preference<'_>,
) -> Option<ReadPlan> {
    let profile = layout.profile();
    let k = usize::from(profile.k());
    let touched = layout.touched(range);
    let order = preference.order(usable, profile.shards());
    let chosen = order.iter().take(k).fold(ShardSet::EMPTY, |set, &shard| set.with(shard));
    let direct = touched.minus(usable).is_empty()
        && (preference.policy == ReadPolicy::Systematic || touched.minus(chosen).is_empty());
    if direct {
        let asks =
            touched.iter().map(|shard| (shard, layout.shard_sectors(shard, range))).collect();
        return Some(ReadPlan { asks, decode: false });
    }
    if order.len() < k {
        // Shards of the policy's choice are too few to decode, and not all data shards are there.
        return None;
    }
    let hull = hull(layout, range);
    let wanted = if preference.policy == ReadPolicy::Systematic {
        data_first(touched, usable, k)
    } else {
        chosen
    };
    Some(ReadPlan {
        asks: wanted.iter().map(|shard| (shard, hull.clone())).collect(),
        decode: true,
    })
}

/// k usable shards: the touched ones, which need no decoding, then the others.
fn data_first(touched: ShardSet, usable: ShardSet, k: usize) -> ShardSet {
    let first = touched.intersection(usable);
    first.iter().chain(usable.minus(first).iter()).take(k).fold(ShardSet::EMPTY, ShardSet::with)
}

/// The least range of fragments, in whole sectors, that holds every touched shard's part.
fn hull(layout: Layout, range: &Range<u64>) -> Range<u64> {
    let parts = layout
        .touched(range)
        .iter()
        .map(|shard| layout.shard_range(shard, range))
        .collect::<SmallVec<[_; 16]>>();
    let start = parts.iter().map(|part| part.start).min().unwrap_or(0);
    let end = parts.iter().map(|part| part.end).max().unwrap_or(0);
    sector_cover(&(start..end))
}

/// Assembles the range from the answers of a plan, in the plan's order. An answer shorter than
/// asked ends in zeros. `None`: an answer is longer than asked, or does not decode.
pub(crate) fn assemble<B: AsRef<[u8]>>(
    layout: Layout,
    codec: &dyn Codec,
    range: &Range<u64>,
    plan: &ReadPlan,
    answers: &[B],
    out: &mut [u8],
) -> Option<()> {
    let length = |ask: &Range<u64>| (ask.end - ask.start) as usize;
    let mut padded: SmallVec<[Vec<u8>; 4]> = SmallVec::new();
    for ((_, ask), answer) in plan.asks.iter().zip(answers) {
        let bytes = answer.as_ref();
        if bytes.len() > length(ask) {
            return None;
        }
        padded.push(if bytes.len() < length(ask) { pad(bytes, length(ask)) } else { Vec::new() });
    }
    let have: SmallVec<[(ShardIndex, &[u8]); 4]> = plan
        .asks
        .iter()
        .zip(answers.iter().zip(&padded))
        .map(|((shard, _), (answer, pad))| {
            (*shard, if pad.is_empty() { answer.as_ref() } else { pad.as_slice() })
        })
        .collect();
    let rebuilt =
        if plan.decode { decode(layout, codec, range, plan, &have)? } else { SmallVec::new() };
    let offset =
        |shard| plan.asks.iter().find(|(s, _)| *s == shard).map_or(0, |(_, ask)| ask.start);
    let pieces: SmallVec<[Piece<'_>; 16]> = (0..layout.profile().k())
        .map(ShardIndex::new)
        .map(|shard| {
            let given = have
                .iter()
                .find(|(s, _)| *s == shard)
                .map(|(_, bytes)| Piece { offset: offset(shard), bytes });
            let made = || {
                rebuilt
                    .iter()
                    .find(|(s, _)| *s == shard)
                    .map(|(_, b)| Piece { offset: plan.asks[0].1.start, bytes: b })
            };
            given.or_else(made).unwrap_or(Piece { offset: 0, bytes: &[] })
        })
        .collect();
    layout.gather(range.clone(), &pieces, out);
    Some(())
}

type Rebuilt = SmallVec<[(ShardIndex, Vec<u8>); 4]>;

/// The touched data shards that no answer gives.
fn decode(
    layout: Layout,
    codec: &dyn Codec,
    range: &Range<u64>,
    plan: &ReadPlan,
    have: &[(ShardIndex, &[u8])],
) -> Option<Rebuilt> {
    let length = have.first().map_or(0, |(_, bytes)| bytes.len());
    let missing = layout.touched(range).minus(plan.shards());
    let mut rebuilt: Rebuilt = missing.iter().map(|shard| (shard, vec![0; length])).collect();
    let mut want: SmallVec<[(ShardIndex, &mut [u8]); 4]> =
        rebuilt.iter_mut().map(|(shard, bytes)| (*shard, bytes.as_mut_slice())).collect();
    let decoded = codec.reconstruct(have, &mut want);
    drop(want);
    decoded.ok().map(|()| rebuilt)
}

fn pad(bytes: &[u8], length: usize) -> Vec<u8> {
    let mut padded = Vec::with_capacity(length);
    padded.extend_from_slice(bytes);
    padded.resize(length, 0);
    padded
}

/// What a write of a range of an object needs and changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct WritePlan {
    /// The stripes it lies in, in object bytes.
    pub cover: Range<u64>,
    /// The same in every fragment.
    pub fragment: Range<u64>,
    /// Object ranges of old bytes to read first; at most two.
    pub reads: SmallVec<[Range<u64>; 2]>,
    /// Parts of the cover beside the write are known to be zero.
    pub zeros: bool,
    /// The shards that change.
    pub touch: ShardSet,
}

/// Plans a write. From `zero_from` on the object is known to hold zeros.
pub(crate) fn plan_write(layout: Layout, range: &Range<u64>, zero_from: u64) -> WritePlan {
    let profile = layout.profile();
    let cover = layout.stripe_cover(range);
    let all = ShardSet::first(profile.shards());
    let mut reads: SmallVec<[Range<u64>; 2]> = SmallVec::new();
    let mut zeros = false;
    for gap in [cover.start..range.start, range.end..cover.end] {
        if gap.is_empty() {
            continue;
        }
        if zero_from <= gap.start { zeros = true } else { reads.push(gap) }
    }
    // Both gaps in one stripe: one read of the stripe asks each shard once.
    if reads.len() == 2 && cover.end - cover.start == profile.stripe_bytes() {
        reads = SmallVec::from_elem(cover.clone(), 1);
    }
    let parity = all.minus(ShardSet::first(profile.k()));
    // Parity is computed from the zeros assumed: so they are written, on every shard, and cannot be
    // wrong.
    let touch = if zeros { all } else { layout.touched(range).union(parity) };
    WritePlan { fragment: layout.fragment_cover(&cover), cover, reads, zeros, touch }
}

impl WritePlan {
    /// The old bytes will not be read but taken from memory: so they are written, on every shard,
    /// and parity cannot be wrong.
    pub fn assume(&mut self, layout: Layout) {
        self.touch = ShardSet::first(layout.profile().shards());
    }
}

/// Most user bytes of one piece of an operation, in whole stripes. Two of the largest are on their
/// way to a shard whose window takes `window_bytes`.
pub(crate) fn piece_bytes_max(profile: Profile, window_bytes: u64) -> u64 {
    let (k, shards) = (u64::from(profile.k()), u64::from(profile.shards()));
    let fits = (FRAGMENTS_BYTES_MAX / shards).min(window_bytes / 4) * k;
    let stripe = profile.stripe_bytes();
    (PIECE_BYTES_MAX.min(fits) / stripe * stripe).max(stripe)
}

/// Cuts a range of an object into pieces of at most `max` bytes that end at multiples of it.
pub(crate) fn pieces(range: Range<u64>, max: u64) -> impl Iterator<Item = Range<u64>> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let end = range.end.min((at / max + 1) * max);
        (at < range.end).then(|| std::mem::replace(&mut at, end)..end)
    })
}

#[cfg(test)]
mod tests;
