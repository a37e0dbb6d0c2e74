//! gfid to core: the thesis's table and arithmetic, compared on few and on many files.
//!
//! Contract: how even they are is computed; what a look-up costs is measured on this machine by one
//! thread, and by two at once where they share a table.

use std::hint::black_box;
use std::num::NonZeroUsize;
use std::time::Instant;

use messenger::sync::{ContentionMutex, LockTable};
use placement::files::{CoreTable, core_of};
use protocol::Gfid;
use serde::{Deserialize, Serialize};

use crate::stats::ratio;

/// Numbers of files.
const FILES: [usize; 5] = [1, 2, 8, 64, 4096];
/// Numbers of cores.
const CORES: [usize; 3] = [2, 4, 8];
/// Files of look-ups that are timed.
const FEW_AND_MANY: [usize; 2] = [2, 65_536];
const LOOK_UPS: usize = 1_000_000;

/// How a file's id comes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Ids {
    /// One after the other, as Trefoil deals them out.
    InTurn,
    /// Drawn at random, as GlusterFS does.
    Random,
    /// In turn, but only every eighth file is used: the worst for arithmetic.
    EveryEighth,
}

impl Ids {
    pub(super) const ALL: [Ids; 3] = [Ids::InTurn, Ids::Random, Ids::EveryEighth];

    pub(super) fn words(self) -> &'static str {
        match self {
            Ids::InTurn => "in turn",
            Ids::Random => "at random",
            Ids::EveryEighth => "every eighth",
        }
    }

    fn of(self, files: usize) -> Vec<u128> {
        let mut random = fastrand::Rng::with_seed(1);
        let inode =
            |step: usize| move |file: usize| Gfid::of_inode((1000 + file * step) as u64).get();
        match self {
            Ids::InTurn => (0..files).map(inode(1)).collect(),
            Ids::Random => (0..files).map(|_| random.u128(..)).collect(),
            Ids::EveryEighth => (0..files).map(inode(8)).collect(),
        }
    }
}

/// Files of the core with the most, to the mean: 1 is even.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Evenness {
    pub(super) ids: Ids,
    pub(super) files: usize,
    pub(super) cores: usize,
    pub(super) table: f64,
    pub(super) arithmetic: f64,
}

/// What it takes to find the core of a file, in nanoseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct LookUp {
    pub(super) files: usize,
    pub(super) table_ns: f64,
    /// Two threads at one table under a lock, each.
    pub(super) shared_table_ns: f64,
    pub(super) arithmetic_ns: f64,
}

/// All of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Assignment {
    pub(super) evenness: Vec<Evenness>,
    pub(super) look_ups: Vec<LookUp>,
}

/// Computes and measures all of it.
pub(super) fn compare() -> Assignment {
    let mut evenness = Vec::new();
    for ids in Ids::ALL {
        for files in FILES {
            evenness.extend(CORES.map(|cores| even(ids, files, cores)));
        }
    }
    Assignment { evenness, look_ups: FEW_AND_MANY.map(look_up).to_vec() }
}

fn some(cores: usize) -> NonZeroUsize {
    NonZeroUsize::new(cores).unwrap_or(NonZeroUsize::MIN)
}

fn even(ids: Ids, files: usize, cores: usize) -> Evenness {
    let gfids = ids.of(files);
    let mut table = CoreTable::new(some(cores));
    let fullest = |core_of: &mut dyn FnMut(u128) -> usize| {
        let mut by_core = vec![0usize; cores];
        gfids.iter().for_each(|gfid| by_core[core_of(*gfid)] += 1);
        ratio(by_core.into_iter().max().unwrap_or(0) as f64, files as f64 / cores as f64)
    };
    Evenness {
        ids,
        files,
        cores,
        table: fullest(&mut |gfid| table.core(gfid)),
        arithmetic: fullest(&mut |gfid| core_of(gfid, some(cores))),
    }
}

fn look_up(files: usize) -> LookUp {
    let gfids = Ids::InTurn.of(files);
    let filled = || {
        let mut table = CoreTable::new(some(8));
        for gfid in &gfids {
            table.core(*gfid);
        }
        table
    };
    // Not one behind the other: requests come for any file.
    let order: Vec<u128> = (0..LOOK_UPS).map(|n| gfids[n.wrapping_mul(7919) % files]).collect();
    let mut table = filled();
    let shared = ContentionMutex::new(&LockTable::default(), "bench", filled());
    let together = || {
        std::thread::scope(|scope| {
            let other = scope.spawn(|| each_ns(&order, |gfid| shared.lock().core(gfid)));
            let here = each_ns(&order, |gfid| shared.lock().core(gfid));
            other.join().map_or(here, |there| (here + there) / 2.0)
        })
    };
    LookUp {
        files,
        table_ns: each_ns(&order, |gfid| table.core(gfid)),
        shared_table_ns: together(),
        arithmetic_ns: each_ns(&order, |gfid| core_of(gfid, black_box(some(8)))),
    }
}

fn each_ns(order: &[u128], mut find: impl FnMut(u128) -> usize) -> f64 {
    let began = Instant::now();
    for gfid in order {
        black_box(find(black_box(*gfid)));
    }
    began.elapsed().as_nanos() as f64 / order.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_even_over_any_ids_and_arithmetic_over_ids_in_turn() {
        for ids in Ids::ALL {
            let Evenness { table, arithmetic, .. } = even(ids, 64, 8);
            assert_eq!(table, 1.0, "{ids:?}");
            assert!(arithmetic >= 1.0);
        }
        assert_eq!(even(Ids::InTurn, 64, 8).arithmetic, 1.0);
        assert_eq!(even(Ids::EveryEighth, 64, 8).arithmetic, 8.0);
        assert_eq!(even(Ids::InTurn, 2, 8).table, 4.0, "two files keep two cores busy");
    }
}
