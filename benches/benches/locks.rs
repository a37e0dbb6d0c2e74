//! What counting costs a lock that nobody else wants: `ContentionMutex` beside the bare `parking_lot::Mutex` in it.
//!
//! `cargo bench -p benches --bench locks`. Locks and unlocks once around an increment, one thread, lock in cache. It says
//! nothing of contended locks, whose waits cost a thousand times more than their counting.

use criterion::{Criterion, criterion_group, criterion_main};
use messenger::sync::{ContentionMutex, LockTable};
use std::hint::black_box;

fn uncontended(c: &mut Criterion) {
    let mut group = c.benchmark_group("lock-unlock");
    let bare = parking_lot::Mutex::new(0u64);
    group.bench_function("bare", |b| b.iter(|| *black_box(&bare).lock() += 1));
    let counted = ContentionMutex::new(&LockTable::default(), "bench", 0u64);
    group.bench_function("counted", |b| b.iter(|| *black_box(&counted).lock() += 1));
    let off = ContentionMutex::new(&LockTable::new(false), "bench", 0u64);
    group.bench_function("off", |b| b.iter(|| *black_box(&off).lock() += 1));
    group.finish();
}

criterion_group!(benches, uncontended);
criterion_main!(benches);
