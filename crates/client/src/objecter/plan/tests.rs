//! Plans against a byte-by-byte oracle: an object held in memory as fragments.

use super::*;
use ec_store::codec;
use proptest::prelude::*;
use std::sync::Arc;

/// An object as its user bytes and as whole fragments.
struct Oracle {
    layout: Layout,
    codec: Arc<dyn Codec>,
    user: Vec<u8>,
    fragments: Vec<Vec<u8>>,
}

impl Oracle {
    fn new(profile: Profile) -> Self {
        let (size, shards) = (profile.object_bytes() as usize, usize::from(profile.shards()));
        let fragments = vec![vec![0; profile.fragment_bytes() as usize]; shards];
        Self {
            layout: Layout::new(profile),
            codec: codec::for_profile(profile),
            user: vec![0; size],
            fragments,
        }
    }

    /// Carries a write plan out as the objecter does, reading through read plans.
    fn write(&mut self, range: &Range<u64>, data: &[u8], zero_from: u64, usable: ShardSet) {
        let plan = plan_write(self.layout, range, zero_from);
        let k = usize::from(self.layout.profile().k());
        let length = (plan.fragment.end - plan.fragment.start) as usize;
        let mut buffers =
            vec![vec![if plan.zeros { 0 } else { 0xee }; length]; self.fragments.len()];
        let (data_buffers, parity) = buffers.split_at_mut(k);
        let mut slices: Vec<&mut [u8]> = data_buffers.iter_mut().map(Vec::as_mut_slice).collect();
        for gap in &plan.reads {
            let old = self.read(gap, usable, &Preference::SYSTEMATIC).expect("enough shards");
            self.layout.scatter(gap.start, &old, plan.fragment.start, &mut slices);
        }
        self.layout.scatter(range.start, data, plan.fragment.start, &mut slices);
        let data_slices: Vec<&[u8]> = data_buffers.iter().map(Vec::as_slice).collect();
        let mut parity_slices: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
        self.codec.encode(&data_slices, &mut parity_slices);
        for shard in plan.touch.iter() {
            let to = plan.fragment.start as usize..plan.fragment.end as usize;
            self.fragments[usize::from(shard.get())][to]
                .copy_from_slice(&buffers[usize::from(shard.get())]);
        }
        self.user[range.start as usize..range.end as usize].copy_from_slice(data);
    }

    fn read(
        &self,
        range: &Range<u64>,
        usable: ShardSet,
        preference: &Preference<'_>,
    ) -> Option<Vec<u8>> {
        let plan = plan_read(self.layout, range, usable, preference)?;
        assert!(plan.shards().minus(usable).is_empty(), "only usable shards are asked");
        let answers: Vec<Vec<u8>> = plan
            .asks
            .iter()
            .map(|(shard, ask)| {
                assert!(ask.start.is_multiple_of(512) && ask.end.is_multiple_of(512));
                let mut bytes = self.fragments[usize::from(shard.get())]
                    [ask.start as usize..ask.end as usize]
                    .to_vec();
                // A fragment's unwritten end is not sent.
                let end = bytes
                    .iter()
                    .rposition(|b| *b != 0)
                    .map_or(0, |at| (at + 1).next_multiple_of(512));
                bytes.truncate(end);
                bytes
            })
            .collect();
        let mut out = vec![0xdd; (range.end - range.start) as usize];
        assemble(self.layout, &*self.codec, range, &plan, &answers, &mut out)?;
        Some(out)
    }

    fn check_stripes(&self) {
        let k = usize::from(self.layout.profile().k());
        let data: Vec<&[u8]> = self.fragments[..k].iter().map(Vec::as_slice).collect();
        let mut parity = vec![vec![0; data[0].len()]; self.fragments.len() - k];
        self.codec.encode(&data, &mut parity.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
        assert!(parity.iter().eq(&self.fragments[k..]), "parity fits the data after every write");
    }
}

fn profiles() -> impl Strategy<Value = Profile> {
    (1u8..=4, 0u8..=2, 0u32..=2).prop_map(|(k, m, shift)| {
        let chunk = 512 << shift;
        Profile::new(k, m, chunk, u64::from(k) * u64::from(chunk) * 6).expect("a profile")
    })
}

fn ranges(profile: Profile, raw: &(u64, u64, u8)) -> Range<u64> {
    let unit = [1, 512, profile.stripe_bytes()][usize::from(raw.2 % 3)];
    let size = profile.object_bytes();
    let (a, b) = (raw.0 % (size + 1) / unit * unit, raw.1 % (size + 1) / unit * unit);
    a.min(b)..a.max(b)
}

fn policies() -> impl Strategy<Value = ReadPolicy> {
    proptest::sample::select(ReadPolicy::ALL.map(|(_, policy)| policy).to_vec())
}

proptest! {
    /// Random writes, then reads with every set of shards: right bytes exactly when enough shards
    /// are there.
    #[test]
    fn reads_return_what_was_written_for_every_availability(
        profile in profiles(),
        writes in proptest::collection::vec((any::<u64>(), any::<u64>(), any::<u8>(), any::<bool>()), 1..8),
        read in (any::<u64>(), any::<u64>(), any::<u8>()),
        policy in policies(),
        turn in any::<u64>(),
    ) {
        let mut oracle = Oracle::new(profile);
        let all = ShardSet::first(profile.shards());
        let mut end = 0;
        for (number, (a, b, align, hinted)) in writes.into_iter().enumerate() {
            let range = ranges(profile, &(a, b, align));
            if range.is_empty() { continue; }
            let data: Vec<u8> = range.clone().map(|at| (at as u8) ^ (number as u8 + 1).wrapping_mul(37)).collect();
            let zero_from = if hinted { end } else { u64::MAX };
            oracle.write(&range, &data, zero_from, all);
            end = end.max(range.end);
            oracle.check_stripes();
        }
        let range = ranges(profile, &read);
        prop_assume!(!range.is_empty());
        let latency: Vec<u32> = (0..16).map(|i| (turn >> i) as u32 % 100).collect();
        for bits in 0..1u16 << profile.shards() {
            let usable = ShardSet::from_bits(bits);
            let preference = Preference { policy, turn, latency: &latency };
            let got = oracle.read(&range, usable, &preference);
            let touched_there = Layout::new(profile).touched(&range).minus(usable).is_empty();
            let enough = usable.len() >= u32::from(profile.k()) || touched_there;
            match got {
                Some(bytes) => {
                    prop_assert!(enough);
                    prop_assert_eq!(&bytes[..], &oracle.user[range.start as usize..range.end as usize]);
                }
                None => prop_assert!(!enough),
            }
        }
    }

    /// Writes while shards are missing: old bytes come from decoding, and every stripe stays whole.
    #[test]
    fn writes_with_shards_missing_keep_stripes_whole(
        profile in profiles(),
        writes in proptest::collection::vec((any::<u64>(), any::<u64>(), any::<u8>(), any::<u16>()), 1..8),
    ) {
        let mut oracle = Oracle::new(profile);
        for (a, b, align, missing) in writes {
            let range = ranges(profile, &(a, b, align));
            if range.is_empty() { continue; }
            let lost = (0..profile.m()).map(|i| ShardIndex::new(((missing >> (4 * i)) % u16::from(profile.shards())) as u8));
            let usable = lost.fold(ShardSet::first(profile.shards()), ShardSet::without);
            let data: Vec<u8> = range.clone().map(|at| (at ^ u64::from(missing)) as u8).collect();
            oracle.write(&range, &data, u64::MAX, usable);
            oracle.check_stripes();
        }
    }

    #[test]
    fn pieces_cover_the_range(start in 0u64..10_000, length in 0u64..10_000, max in 1u64..5_000) {
        let mut at = start;
        for piece in pieces(start..start + length, max) {
            prop_assert_eq!(piece.start, at);
            prop_assert!(piece.end > piece.start && piece.end - piece.start <= max);
            at = piece.end;
        }
        prop_assert_eq!(at, start + length);
    }
}

#[test]
fn whole_stripes_need_no_read() {
    let layout = Layout::new(Profile::new(2, 1, 512, 1 << 20).expect("a profile"));
    let plan = plan_write(layout, &(4096..8192), u64::MAX);
    assert_eq!((plan.fragment, plan.reads.len(), plan.touch.len()), (2048..4096, 0, 3));
}

#[test]
fn a_sector_changes_its_shard_and_parity() {
    let layout = Layout::new(Profile::new(2, 1, 512, 1 << 20).expect("a profile"));
    let plan = plan_write(layout, &(512..1024), u64::MAX);
    assert_eq!((plan.reads.len(), plan.reads[0].clone()), (1, 0..512));
    assert_eq!(plan.touch, ShardSet::from_bits(0b110));
    let read = plan_read(layout, &(0..512), ShardSet::first(3), &Preference::SYSTEMATIC)
        .expect("readable");
    assert_eq!(read.asks.as_slice(), [(ShardIndex::new(0), 0..512)]);
}

#[test]
fn the_end_of_a_file_is_written_without_a_read() {
    let layout = Layout::new(Profile::new(2, 1, 512, 1 << 20).expect("a profile"));
    let plan = plan_write(layout, &(0..100), 0);
    assert!(plan.reads.is_empty() && plan.zeros);
    assert_eq!(plan.touch, ShardSet::first(3));
    let plan = plan_write(layout, &(1100..1200), 1100);
    assert_eq!((plan.reads.len(), plan.reads[0].clone()), (1, 1024..1100));
    assert_eq!(plan.touch, ShardSet::first(3));
}
