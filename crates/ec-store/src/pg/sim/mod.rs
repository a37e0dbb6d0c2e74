//! A seeded simulation of one PG, 2 + 1: the real session and shard machines over a network that loses, reorders between
//! connections and delays, and a disk that forgets what was not synced. After the faults everything must come to rest
//! whole. A failing seed is named, and gives the same run again.

mod monitor;
mod steps;
mod store;
mod world;

use protocol::{Gfid, ObjectId, PgId, PoolId};
use std::collections::BTreeMap;
use world::World;

fn pg_id() -> PgId {
    PgId { pool: PoolId::new(1), number: 0 }
}

fn object(o: usize) -> ObjectId {
    ObjectId { gfid: Gfid::of_inode(100 + o as u64), index: 0 }
}

/// One run; `faults`: the kinds that may happen, and how many in all.
fn run(seed: u64, faults: &[u8], faults_max: u32) -> Result<BTreeMap<&'static str, u64>, String> {
    let mut world = World::new(seed);
    let mut left = faults_max;
    let steps = world.random.usize(100..1500);
    let client = world.random.u8(2..20);
    for _ in 0..steps {
        if world.random.u8(0..client) == 0 {
            world.client_step()?;
        }
        if left > 0 && !faults.is_empty() && world.random.usize(0..60) == 0 {
            let kind = faults[world.random.usize(0..faults.len())];
            left -= 1;
            world.fault(kind)?;
        }
        world.step()?;
    }
    for n in 0..60_000 {
        world.step()?;
        if n % 64 == 0 {
            world.expire_dead();
        }
        if n % 16 == 0 && world.at_rest() {
            world.check_end()?;
            return Ok(world.covered);
        }
    }
    let sessions: Vec<_> = world.sess.iter().map(|s| (s.run, s.writes, s.reported, s.stable)).collect();
    let shards: Vec<_> =
        world.nodes.iter().map(|n| n.shard.as_ref().map(|s| (s.journalled(), s.to_rebuild()))).collect();
    Err(format!("progress: no rest: {:?} sessions {sessions:?} shards {shards:?}", world.mon))
}

fn runs(name: &str, seeds: std::ops::Range<u64>, faults: &[u8], faults_max: u32) -> BTreeMap<&'static str, u64> {
    let mut covered: BTreeMap<&'static str, u64> = BTreeMap::new();
    for seed in seeds {
        match run(seed, faults, faults_max) {
            Ok(more) => more.into_iter().for_each(|(what, n)| *covered.entry(what).or_default() += n),
            Err(error) => panic!("{name}, seed {seed}: {error}"),
        }
    }
    covered
}

fn seeds(default: u64) -> std::ops::Range<u64> {
    let read = |name| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let from = read("TREFOIL_SIM_SEED").unwrap_or(0);
    from..from + read("TREFOIL_SIM_RUNS").unwrap_or(default)
}

#[test]
fn without_faults() {
    let covered = runs("no faults", seeds(30), &[], 0);
    assert!(covered["read"] > 30, "{covered:?}");
}

#[test]
fn network_faults() {
    runs("network", seeds(60), &[0, 1, 2, 3], 12);
}

#[test]
fn process_crashes() {
    let covered = runs("crashes", seeds(100), &[0, 1, 2, 3, 4, 8], 8);
    assert!(covered["a shard joins"] > 20, "{covered:?}");
    assert!(covered["object rebuilt"] > 20, "{covered:?}");
}

#[test]
fn dead_clients() {
    let covered = runs("dead clients", seeds(100), &[1, 2, 3, 4, 8, 9, 10], 8);
    assert!(covered["session resolved"] > 20, "{covered:?}");
}

#[test]
fn everything() {
    let covered = runs("everything", seeds(1500), &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 8);
    for what in ["a shard joins", "session resolved", "object rebuilt", "objects reported", "read"] {
        assert!(covered.get(what).is_some_and(|&n| n > 20), "{what}: {covered:?}");
    }
}
