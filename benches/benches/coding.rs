//! Reed-Solomon coding and striping: every kernel beside the reference, in one run.
//!
//! `cargo bench -p benches --bench coding`. Throughput counts bytes of user data.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ec_store::codec::{self, Kernel};
use ec_store::layout::Layout;
use protocol::{Profile, ShardIndex};
use std::hint::black_box;

const STRIPE_BYTES: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];

fn encode(c: &mut Criterion) {
    for bytes in STRIPE_BYTES {
        let mut group = c.benchmark_group(format!("encode-2+1/{}K", bytes >> 10));
        group.throughput(Throughput::Bytes(bytes as u64));
        let data: Vec<u8> = (0..bytes).map(|i| ((i * 31) >> 3) as u8).collect();
        let (left, right) = data.split_at(bytes / 2);
        let mut parity = vec![0; bytes / 2];
        for kernel in Kernel::ALL.into_iter().filter(|k| k.is_supported()) {
            let codec = codec::new(2, 1, kernel).expect("a supported kernel");
            group.bench_function(BenchmarkId::from_parameter(kernel), |b| {
                b.iter(|| codec.encode(&[black_box(left), right], &mut [&mut parity]));
            });
        }
        group.finish();
    }
}

fn reconstruct(c: &mut Criterion) {
    let mut group = c.benchmark_group("reconstruct-2+1/64K");
    group.throughput(Throughput::Bytes(64 << 10));
    let (kept, parity, mut lost) = (vec![7; 32 << 10], vec![9; 32 << 10], vec![0; 32 << 10]);
    for kernel in Kernel::ALL.into_iter().filter(|k| k.is_supported()) {
        let codec = codec::new(2, 1, kernel).expect("a supported kernel");
        group.bench_function(BenchmarkId::from_parameter(kernel), |b| {
            b.iter(|| {
                let have =
                    [(ShardIndex::new(1), black_box(&kept[..])), (ShardIndex::new(2), &parity[..])];
                codec
                    .reconstruct(&have, &mut [(ShardIndex::new(0), &mut lost)])
                    .expect("two of three shards");
            });
        });
    }
    group.finish();
}

fn scatter(c: &mut Criterion) {
    let mut group = c.benchmark_group("scatter-2+1");
    let layout = Layout::new(Profile::new(2, 1, 512, 64 << 20).expect("the default profile"));
    for bytes in STRIPE_BYTES {
        let (user, mut left, mut right) = (vec![5; bytes], vec![0; bytes / 2], vec![0; bytes / 2]);
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(BenchmarkId::from_parameter(format!("{}K", bytes >> 10)), |b| {
            b.iter(|| layout.scatter(0, black_box(&user), 0, &mut [&mut left, &mut right]));
        });
    }
    group.finish();
}

criterion_group!(benches, encode, reconstruct, scatter);
criterion_main!(benches);
