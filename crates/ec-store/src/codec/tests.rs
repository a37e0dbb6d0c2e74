//! Every kernel against the reference: every loss pattern of every k+m up to 6 shards, and random
//! shapes and lengths.

use super::*;
use proptest::prelude::*;

fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        })
        .collect()
}

/// All k + m shards by the given kernel.
fn shards(k: usize, m: usize, kernel: Kernel, length: usize) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = (0..k).map(|i| bytes(i as u64 + 1, length)).collect();
    all.resize(k + m, vec![0xee; length]);
    let (data, parity) = all.split_at_mut(k);
    let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let mut parity: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    new(k, m, kernel).unwrap().encode(&data, &mut parity);
    all
}

fn supported() -> impl Iterator<Item = Kernel> {
    Kernel::ALL.into_iter().filter(|kernel| kernel.is_supported())
}

#[test]
fn every_loss_pattern_of_every_code_up_to_six_shards() {
    const LENGTH: usize = 64 + 32 + 16 + 5;
    for (k, m) in (1..=6usize).flat_map(|k| (0..=6 - k).map(move |m| (k, m))) {
        let truth = shards(k, m, Kernel::Reference, LENGTH);
        for kernel in supported() {
            assert_eq!(shards(k, m, kernel, LENGTH), truth, "{kernel} encodes {k}+{m}");
            let codec = new(k, m, kernel).unwrap();
            for lost in 0u32..1 << (k + m) {
                let is_lost = |shard: &usize| lost >> shard & 1 == 1;
                // Descending order, so that parity is preferred and the order given does not
                // matter.
                let have: Vec<(ShardIndex, &[u8])> = (0..k + m)
                    .rev()
                    .filter(|shard| !is_lost(shard))
                    .map(|shard| (ShardIndex::new(shard as u8), truth[shard].as_slice()))
                    .collect();
                let mut rebuilt: Vec<(usize, Vec<u8>)> =
                    (0..k + m).filter(is_lost).map(|shard| (shard, vec![0; LENGTH])).collect();
                let mut want: Vec<(ShardIndex, &mut [u8])> = rebuilt
                    .iter_mut()
                    .map(|(s, bytes)| (ShardIndex::new(*s as u8), bytes.as_mut_slice()))
                    .collect();
                let result = codec.reconstruct(&have, &mut want);
                if lost.count_ones() as usize > m {
                    assert_eq!(result, Err(CodecError::TooFew { have: have.len(), need: k }));
                    continue;
                }
                assert_eq!(result, Ok(()));
                for (shard, bytes) in rebuilt {
                    assert_eq!(bytes, truth[shard], "{kernel} {k}+{m} lost {lost:b} shard {shard}");
                }
            }
        }
    }
}

#[test]
fn a_replicated_pool_holds_byte_copies() {
    for kernel in supported() {
        let all = shards(1, 3, kernel, 700);
        assert!(all.iter().all(|shard| *shard == all[0]), "{kernel}");
    }
}

#[test]
fn a_shard_that_is_given_can_be_asked_for() {
    for kernel in supported() {
        let all = shards(2, 1, kernel, 100);
        let mut out = vec![0; 100];
        let have =
            [(ShardIndex::new(2), all[2].as_slice()), (ShardIndex::new(0), all[0].as_slice())];
        new(2, 1, kernel)
            .unwrap()
            .reconstruct(&have, &mut [(ShardIndex::new(2), &mut out)])
            .unwrap();
        assert_eq!(out, all[2]);
    }
}

#[test]
fn bad_input_is_a_typed_error() {
    let a = [0u8; 8];
    for kernel in supported() {
        let codec = new(2, 1, kernel).unwrap();
        let twice = [(ShardIndex::new(1), &a[..]), (ShardIndex::new(1), &a[..])];
        assert_eq!(
            codec.reconstruct(&twice, &mut []),
            Err(CodecError::BadShard(ShardIndex::new(1)))
        );
        let beyond = [(ShardIndex::new(0), &a[..]), (ShardIndex::new(3), &a[..])];
        assert_eq!(
            codec.reconstruct(&beyond, &mut []),
            Err(CodecError::BadShard(ShardIndex::new(3)))
        );
        let odd = [(ShardIndex::new(0), &a[..]), (ShardIndex::new(1), &a[..7])];
        assert_eq!(
            codec.reconstruct(&odd, &mut []),
            Err(CodecError::Length { expected: 8, found: 7 })
        );
    }
    assert_eq!(new(0, 1, Kernel::Portable).unwrap_err(), CodecError::Shards { k: 0, m: 1 });
    assert_eq!(new(15, 2, Kernel::Portable).unwrap_err(), CodecError::Shards { k: 15, m: 2 });
}

#[test]
fn the_largest_codes_have_the_matrix_of_the_reference() {
    for k in 1..=SHARDS_MAX {
        let m = SHARDS_MAX - k;
        assert_eq!(
            shards(k, m, Kernel::Portable, 80),
            shards(k, m, Kernel::Reference, 80),
            "{k}+{m}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn kernels_are_bit_for_bit_equal(k in 1usize..=12, m in 0usize..=4, length in 0usize..20_000, lost in any::<u64>()) {
        let truth = shards(k, m, Kernel::Reference, length);
        for kernel in supported() {
            prop_assert_eq!(&shards(k, m, kernel, length), &truth);
            let mut order: Vec<usize> = (0..k + m).collect();
            order.rotate_left(lost as usize % (k + m));
            let have: Vec<(ShardIndex, &[u8])> =
                order[m..].iter().map(|&s| (ShardIndex::new(s as u8), truth[s].as_slice())).collect();
            let mut outs = vec![vec![0; length]; m];
            let mut want: Vec<(ShardIndex, &mut [u8])> =
                order[..m].iter().zip(&mut outs).map(|(&s, out)| (ShardIndex::new(s as u8), out.as_mut_slice())).collect();
            new(k, m, kernel).unwrap().reconstruct(&have, &mut want).unwrap();
            for (&s, out) in order[..m].iter().zip(&outs) {
                prop_assert_eq!(out, &truth[s]);
            }
        }
    }
}
