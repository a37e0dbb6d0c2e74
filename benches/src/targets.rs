//! What the mappings are held against: the paper's headline, and what goes past it. Each is met or not, with numbers.

use crate::machine::size_name;
use crate::runner::Sample;
use crate::stats::spread;
use crate::table::{Key, Samples};

/// The paper's headline cell.
pub(crate) const HEADLINE: (&str, u64) = ("blocking/paper/skewed/randread", 64 << 10);
/// Where the paper shows lock times.
pub(crate) const LOCKS: (&str, u64) = ("blocking/paper/skewed/randwrite", 4 << 10);

/// A target and what came of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Verdict {
    pub(crate) target: String,
    /// `None` if the run did not measure it.
    pub(crate) met: Option<bool>,
    pub(crate) numbers: String,
}

/// Judges all targets.
pub(crate) fn judge(samples: &Samples) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for lcam in ["lcam", "lcam-damped"] {
        verdicts.extend(headline(samples, lcam));
    }
    verdicts.push(round_robin_spread(samples));
    for lcam in ["lcam", "lcam-damped"] {
        verdicts.push(lock_time(samples, lcam));
    }
    for mapping in ["handoff", "core-affine"] {
        verdicts.push(at_least_lcam(samples, mapping));
        verdicts.push(no_wait(samples, mapping));
    }
    verdicts.push(even(samples));
    verdicts
}

fn headline(samples: &Samples, lcam: &str) -> [Verdict; 3] {
    let (scenario, block) = HEADLINE;
    let of = |mapping: &str, of: fn(&Sample) -> f64| samples.median(scenario, block, mapping, of);
    let both = |metric: fn(&Sample) -> f64| of("round-robin", metric).zip(of(lcam, metric));
    let place = format!("{scenario} {}", size_name(block));
    let throughput = both(|s| s.ops_per_s);
    let latency = both(|s| s.mean_us);
    let bytes = of(lcam, |s| spread(s.workers.iter().map(|w| w.mb)));
    [
        Verdict {
            target: format!("`{lcam}`: at least 2.84x the throughput of `round-robin`, {place}"),
            met: throughput.map(|(base, value)| value >= 2.84 * base),
            numbers: throughput.map_or("not measured".into(), |(base, value)| {
                format!("{base:.0} to {value:.0} ops/s: {:.2}x", value / base)
            }),
        },
        Verdict {
            target: format!("`{lcam}`: mean latency lower by 65% at least, {place}"),
            met: latency.map(|(base, value)| value <= 0.35 * base),
            numbers: latency.map_or("not measured".into(), |(base, value)| {
                format!("{:.1} to {:.1} ms: -{:.0}%", base / 1e3, value / 1e3, (1.0 - value / base) * 100.0)
            }),
        },
        Verdict {
            target: format!("`{lcam}`: bytes per worker max/min at most 1.4, {place}"),
            met: bytes.map(|value| value <= 1.4),
            numbers: bytes.map_or("not measured".into(), |value| format!("{value:.2}")),
        },
    ]
}

fn round_robin_spread(samples: &Samples) -> Verdict {
    let (scenario, block) = HEADLINE;
    let value = samples.median(scenario, block, "round-robin", |s| spread(s.workers.iter().map(|w| w.mb)));
    Verdict {
        target: "`round-robin`: bytes per worker max/min 3 or more in the same cell".into(),
        met: value.map(|value| value >= 3.0),
        numbers: match value {
            None => "not measured".into(),
            Some(value) if value.is_finite() => format!("{value:.1}"),
            Some(_) => "some workers handled no data at all".into(),
        },
    }
}

fn lock_time(samples: &Samples, lcam: &str) -> Verdict {
    let (scenario, block) = LOCKS;
    let of = |mapping: &str| samples.median(scenario, block, mapping, |s| s.lock_ms_max() / s.seconds);
    let both = of("shared").zip(of(lcam));
    Verdict {
        target: format!(
            "`{lcam}`: largest lock time of a connection at most a seventh of that under `shared`, {scenario} {}",
            size_name(block)
        ),
        met: both.map(|(shared, value)| value <= shared / 7.0),
        numbers: both.map_or("not measured".into(), |(shared, value)| {
            format!("{shared:.0} to {value:.0} ms of lock time each second: {:.2} of it", value / shared)
        }),
    }
}

/// Cells in blocking mode under skewed, closed traffic: those the comparison with `lcam` is about.
fn skewed(samples: &Samples) -> Vec<Key> {
    let mut cells = samples.cells();
    cells.retain(|cell| cell.scenario.starts_with("blocking/") && cell.scenario.contains("/skewed/"));
    cells
}

fn at_least_lcam(samples: &Samples, mapping: &str) -> Verdict {
    let mut least: Option<(f64, String)> = None;
    let (mut below, mut seen) = (Vec::new(), 0);
    for Key { scenario, block_bytes, .. } in skewed(samples) {
        let of = |mapping: &str| samples.median(&scenario, block_bytes, mapping, |s| s.ops_per_s);
        let best = ["lcam", "lcam-damped"].iter().filter_map(|name| of(name)).reduce(f64::max);
        let Some((lcam, value)) = best.zip(of(mapping)) else { continue };
        let (quotient, place) = (value / lcam, format!("{scenario} {}", size_name(block_bytes)));
        seen += 1;
        // Three repeats of a cell differ by about this much.
        if quotient < 0.97 {
            below.push(format!("{place} ({quotient:.2}x)"));
        }
        if least.as_ref().is_none_or(|(value, _)| quotient < *value) {
            least = Some((quotient, place));
        }
    }
    let numbers = match &least {
        None => "not measured".into(),
        Some((quotient, place)) if below.is_empty() => format!("{seen} cells, least {quotient:.2}x: {place}"),
        Some(_) => format!("{} of {seen} cells are below: {}", below.len(), below.join(", ")),
    };
    Verdict {
        target: format!(
            "`{mapping}`: at least as fast as the better of both `lcam` rules in every cell of skewed traffic (3% for noise)"
        ),
        met: least.map(|_| below.is_empty()),
        numbers,
    }
}

fn no_wait(samples: &Samples, mapping: &str) -> Verdict {
    let runs = || samples.all.iter().filter(|s| s.mapping == mapping && s.mode == crate::scenario::Mode::Blocking);
    let most = runs().map(Sample::lock_ms_sum).fold(0.0, f64::max);
    Verdict {
        target: format!("`{mapping}`: lock wait zero in every blocking run"),
        met: (runs().count() > 0).then_some(most == 0.0),
        numbers: format!("{} runs, at most {most:.3} ms over all connections", runs().count()),
    }
}

fn even(samples: &Samples) -> Verdict {
    let mut losers = Vec::new();
    let mut seen = 0;
    for Key { scenario, block_bytes, .. } in samples.cells() {
        if !scenario.starts_with("blocking/") || !scenario.contains("/even/") {
            continue;
        }
        let of = |mapping: &str| samples.median(&scenario, block_bytes, mapping, |s| s.ops_per_s);
        let Some(base) = of("round-robin") else { continue };
        for mapping in samples.mappings(Some(&scenario)) {
            let Some(value) = of(&mapping) else { continue };
            seen += 1;
            if value < 0.97 * base {
                losers.push(format!("{mapping} {:.1}% in {scenario}", (value / base - 1.0) * 100.0));
            }
        }
    }
    Verdict {
        target: "on even traffic no mapping loses more than 3% to `round-robin`".into(),
        met: (seen > 0).then_some(losers.is_empty()),
        numbers: if losers.is_empty() { format!("{seen} comparisons") } else { losers.join(", ") },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::made_up;

    #[test]
    fn targets_are_judged_by_the_numbers() {
        let (scenario, block) = HEADLINE;
        let ops = [("round-robin", 100.0), ("lcam", 300.0), ("handoff", 310.0), ("core-affine", 200.0)];
        let samples = Samples { all: ops.map(|(mapping, ops)| made_up(scenario, mapping, block, 0, ops)).to_vec() };
        let verdicts = judge(&samples);
        let met = |start: &str| verdicts.iter().find(|v| v.target.starts_with(start)).expect("a verdict").met;
        assert_eq!(met("`lcam`: at least 2.84x"), Some(true));
        assert_eq!(met("`lcam`: mean latency"), Some(true));
        assert_eq!(met("`lcam`: bytes per worker"), Some(false), "the workers of the sample differ by 2");
        assert_eq!(met("`lcam-damped`: at least 2.84x"), None);
        assert_eq!(met("`lcam`: largest lock time"), None);
        assert_eq!(met("`handoff`: at least as fast"), Some(true));
        assert_eq!(met("`core-affine`: at least as fast"), Some(false));
        assert_eq!(met("`handoff`: lock wait zero"), Some(false), "the sample has lock time");
        assert_eq!(met("on even traffic"), None);
    }
}
