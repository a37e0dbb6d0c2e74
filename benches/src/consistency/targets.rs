//! The thesis's numbers, and whether this run reaches them.

use super::plan::{BLOCKS, CLIENTS, Cell, Consistency, Files, Storage};
use super::results::{Of, Results};
use super::run::{Order, Sample};
use crate::scenario::Pattern;
use crate::stats::ratio;
use crate::targets::Verdict;

/// Gains of the thesis over GlusterFS with its cluster lock: mean and most over the block sizes of
/// Figures 4.1 and 4.2.
const GAINS: [(Pattern, f64, f64); 2] =
    [(Pattern::Randread, 0.63, 0.83), (Pattern::Randwrite, 0.60, 0.69)];
/// Figure 4.3: what its servers reached at most without and with the cluster lock, in MB/s.
const TOTALS: (f64, f64) = (153.0, 107.0);

/// A cell of Figures 4.1 to 4.3: in memory, each client with files of its own.
pub(super) fn figure_cell(pattern: Pattern, block_bytes: u64, clients: usize) -> Cell {
    let (is_blocking, storage, files) = (false, Storage::Memory, Files::Many);
    Cell { is_blocking, storage, files, pattern, block_bytes, clients }
}

/// Judges all targets.
pub(super) fn judge(results: &Results, order: &[Order]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for mode in [Consistency::PerCore, Consistency::PerCoreTable] {
        for base in [Consistency::ClusterLock, Consistency::ClusterLockEager] {
            for (pattern, mean, most) in GAINS {
                verdicts.push(gains(results, mode, base, pattern, (mean, most)));
            }
        }
        verdicts.extend(
            [Pattern::Randread, Pattern::Randwrite].map(|pattern| totals(results, mode, pattern)),
        );
    }
    verdicts.push(in_order(order));
    verdicts.push(out_of_order(order));
    verdicts
}

/// Figures 4.1 and 4.2, with one client.
fn gains(
    results: &Results,
    mode: Consistency,
    base: Consistency,
    pattern: Pattern,
    (mean, most): (f64, f64),
) -> Verdict {
    let all = |of: Of| -> Vec<f64> {
        let gain = |block: &u64| results.gain(&figure_cell(pattern, *block, 1), mode, base, of);
        BLOCKS.iter().filter_map(gain).collect()
    };
    let average = |gains: &[f64]| ratio(gains.iter().sum(), gains.len() as f64);
    let (gains, per_cpu) = (all(Sample::ops_per_s), all(Sample::ops_per_cpu_s));
    let is_whole = gains.len() == BLOCKS.len();
    let (our_mean, our_most) = (average(&gains), gains.iter().copied().fold(f64::MIN, f64::max));
    let percent = |share: f64| format!("{:+.0}%", share * 100.0);
    let each = gains.iter().map(|gain| percent(*gain)).collect::<Vec<_>>().join(", ");
    Verdict {
        target: format!(
            "`{}` over `{}`, {}, one client, 4K to 256K: {} on average, {} at most (the thesis over GlusterFS)",
            mode.name(),
            base.name(),
            pattern.name(),
            percent(mean),
            percent(most)
        ),
        met: is_whole.then_some(our_mean >= mean && our_most >= most),
        numbers: if is_whole {
            let (our_mean, our_most, per_cpu) =
                (percent(our_mean), percent(our_most), percent(average(&per_cpu)));
            format!(
                "{our_mean} on average, {our_most} at most ({each}); operations per CPU second {per_cpu} on average"
            )
        } else {
            "not measured".into()
        },
        misses: Vec::new(),
    }
}

/// Figure 4.3: the most that the servers reach, over all numbers of clients.
fn totals(results: &Results, mode: Consistency, pattern: Pattern) -> Verdict {
    let most = |mode| {
        let of = |clients: &usize| {
            results.median(&figure_cell(pattern, BLOCKS[0], *clients), mode, Sample::mb_per_s)
        };
        CLIENTS.iter().filter_map(of).reduce(f64::max)
    };
    let both = most(mode).zip(most(Consistency::ClusterLock));
    let wanted = TOTALS.0 / TOTALS.1;
    Verdict {
        target: format!(
            "`{}`, {} 4K: the most over 1 to 8 clients at least {wanted:.2}x that of `cluster-lock` ({:.0} and {:.0} MB/s in the thesis)",
            mode.name(),
            pattern.name(),
            TOTALS.0,
            TOTALS.1
        ),
        met: both.map(|(value, base)| value >= wanted * base),
        numbers: both.map_or("not measured".into(), |(value, base)| {
            format!("{base:.0} to {value:.0} MB/s: {:.2}x", ratio(value, base))
        }),
        misses: Vec::new(),
    }
}

fn in_order(order: &[Order]) -> Verdict {
    let kept: Vec<&Order> =
        order.iter().filter(|order| order.consistency != Consistency::Unordered).collect();
    let (torn, looks) =
        kept.iter().fold((0, 0), |sum, order| (sum.0 + order.torn, sum.1 + order.looks));
    Verdict {
        target:
            "writes at once to one place never leave shards that do not fit together (Figure 2.3)"
                .into(),
        met: (looks > 0).then_some(torn == 0),
        numbers: format!("{torn} of {looks} looks in {} checks", kept.len()),
        misses: Vec::new(),
    }
}

/// Guards [`in_order`] against having shown nothing.
fn out_of_order(order: &[Order]) -> Verdict {
    let of = order.iter().filter(|order| order.consistency == Consistency::Unordered);
    let (torn, looks) = of.fold((0, 0), |sum, order| (sum.0 + order.torn, sum.1 + order.looks));
    Verdict {
        target: "without lock and order (`unordered`) they do, or the check shows nothing".into(),
        met: (looks > 0).then_some(torn > 0),
        numbers: format!("{torn} of {looks} looks"),
        misses: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::made_up;
    use super::*;

    #[test]
    fn targets_are_judged_by_the_numbers() {
        let mut samples = Vec::new();
        for (block, ops) in BLOCKS.into_iter().zip([190, 160, 160, 160]) {
            samples.push(made_up(
                figure_cell(Pattern::Randread, block, 1),
                Consistency::ClusterLock,
                100,
            ));
            samples.push(made_up(
                figure_cell(Pattern::Randread, block, 1),
                Consistency::PerCore,
                ops,
            ));
        }
        let order = |consistency, torn| Order { consistency, clients: 1, looks: 10, torn };
        let order = [order(Consistency::PerCore, 0), order(Consistency::Unordered, 3)];
        let verdicts = judge(&Results::new(samples), &order);
        let met = |start: &str| {
            verdicts.iter().find(|v| v.target.starts_with(start)).expect("a verdict").met
        };
        assert_eq!(met("`per-core` over `cluster-lock`, randread"), Some(true));
        assert_eq!(met("`per-core` over `cluster-lock`, randwrite"), None);
        assert_eq!(met("`per-core-table` over"), None);
        assert_eq!(met("`per-core`, randread 4K"), Some(true));
        assert_eq!((met("writes at once"), met("without lock")), (Some(true), Some(true)));
    }
}
