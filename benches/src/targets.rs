//! What the mappings are held against: the paper's headline, and what goes past it. Each is met or
//! not, with numbers.

use crate::machine::size_name;
use crate::runner::Sample;
use crate::scenario::{Mode, Variant};
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
    /// Where it is not met, and by which mappings, in a run of `contention`.
    pub(crate) misses: Vec<Miss>,
}

/// A cell in which mappings miss a target.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Miss {
    pub(crate) cell: Key,
    pub(crate) mappings: Vec<String>,
}

impl Verdict {
    /// A target and its outcome; nothing more is known of where.
    pub(crate) fn new(target: String, met: Option<bool>, numbers: String) -> Verdict {
        Verdict { target, met, numbers, misses: Vec::new() }
    }

    /// The same, missed by these mappings in one cell if it is missed.
    fn in_cell(
        mut self,
        samples: &Samples,
        (scenario, block): (&str, u64),
        mappings: &[&str],
    ) -> Verdict {
        if self.met == Some(false) {
            let is_it = |cell: &Key| cell.scenario == scenario && cell.block_bytes == block;
            let mappings: Vec<String> =
                mappings.iter().map(|mapping| (*mapping).to_owned()).collect();
            let cells = samples.cells().into_iter().filter(is_it);
            self.misses = cells.map(|cell| Miss { cell, mappings: mappings.clone() }).collect();
        }
        self
    }
}

/// Judges all targets.
pub(crate) fn judge(samples: &Samples) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for lcam in ["lcam", Variant::DAMPED] {
        verdicts.extend(headline(samples, lcam));
    }
    verdicts.push(round_robin_spread(samples));
    for lcam in ["lcam", Variant::DAMPED] {
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
    let verdicts = [
        Verdict::new(
            format!("`{lcam}`: at least 2.84x the throughput of `round-robin`, {place}"),
            throughput.map(|(base, value)| value >= 2.84 * base),
            throughput.map_or("not measured".into(), |(base, value)| {
                format!("{base:.0} to {value:.0} ops/s: {:.2}x", value / base)
            }),
        ),
        Verdict::new(
            format!("`{lcam}`: mean latency lower by 65% at least, {place}"),
            latency.map(|(base, value)| value <= 0.35 * base),
            latency.map_or("not measured".into(), |(base, value)| {
                format!(
                    "{:.1} to {:.1} ms: -{:.0}%",
                    base / 1e3,
                    value / 1e3,
                    (1.0 - value / base) * 100.0
                )
            }),
        ),
        Verdict::new(
            format!("`{lcam}`: bytes per worker max/min at most 1.4, {place}"),
            bytes.map(|value| value <= 1.4),
            bytes.map_or("not measured".into(), |value| format!("{value:.2}")),
        ),
    ];
    verdicts.map(|verdict| verdict.in_cell(samples, HEADLINE, &["round-robin", lcam]))
}

fn round_robin_spread(samples: &Samples) -> Verdict {
    let (scenario, block) = HEADLINE;
    let value =
        samples.median(scenario, block, "round-robin", |s| spread(s.workers.iter().map(|w| w.mb)));
    let numbers = match value {
        None => "not measured".into(),
        Some(value) if value.is_finite() => format!("{value:.1}"),
        Some(_) => "some workers handled no data at all".into(),
    };
    let target = "`round-robin`: bytes per worker max/min 3 or more in the same cell".into();
    Verdict::new(target, value.map(|value| value >= 3.0), numbers).in_cell(
        samples,
        HEADLINE,
        &["round-robin"],
    )
}

fn lock_time(samples: &Samples, lcam: &str) -> Verdict {
    let (scenario, block) = LOCKS;
    let of =
        |mapping: &str| samples.median(scenario, block, mapping, |s| s.lock_ms_max() / s.seconds);
    let both = of("shared").zip(of(lcam));
    let target = format!(
        "`{lcam}`: largest lock time of a connection at most a seventh of that under `shared`, {scenario} {}",
        size_name(block)
    );
    let numbers = both.map_or("not measured".into(), |(shared, value)| {
        format!(
            "{shared:.0} to {value:.0} ms of lock time each second: {:.2} of it",
            value / shared
        )
    });
    let met = both.map(|(shared, value)| value <= shared / 7.0);
    Verdict::new(target, met, numbers).in_cell(samples, LOCKS, &["shared", lcam])
}

/// What three repeats of a cell differ by.
const NOISE: f64 = 0.03;

/// What came of holding mappings against others in many cells.
struct Comparison {
    seen: usize,
    /// The least share of the base, and where.
    least: Option<(f64, String)>,
    below: Vec<String>,
    misses: Vec<Miss>,
}

/// Holds `mappings`, or all if none are named, against the best of `bases` in all cells of blocking
/// mode with `part` in their name.
fn compare(samples: &Samples, part: &str, mappings: &[&str], bases: &[&str]) -> Comparison {
    let mut all = Comparison { seen: 0, least: None, below: Vec::new(), misses: Vec::new() };
    for cell in samples.cells() {
        if !cell.scenario.starts_with("blocking/") || !cell.scenario.contains(part) {
            continue;
        }
        let of = |mapping: &str| {
            samples.median(&cell.scenario, cell.block_bytes, mapping, |s| s.ops_per_s)
        };
        let best = bases
            .iter()
            .filter_map(|name| Some((*name, of(name)?)))
            .max_by(|a, b| a.1.total_cmp(&b.1));
        let Some((base, against)) = best else { continue };
        let mut losers = Vec::new();
        let is_held =
            |mapping: &String| mappings.is_empty() || mappings.contains(&mapping.as_str());
        for mapping in samples.mappings(Some(&cell.scenario)).into_iter().filter(is_held) {
            let Some(value) = of(&mapping) else { continue };
            all.seen += 1;
            let share = value / against;
            let place = format!(
                "{mapping} {share:.2}x in {} {}",
                cell.scenario,
                size_name(cell.block_bytes)
            );
            if share < 1.0 - NOISE {
                all.below.push(place.clone());
                losers.push(mapping);
            }
            if all.least.as_ref().is_none_or(|(least, _)| share < *least) {
                all.least = Some((share, place));
            }
        }
        if !losers.is_empty() {
            losers.insert(0, base.to_owned());
            all.misses.push(Miss { cell, mappings: losers });
        }
    }
    all
}

impl Comparison {
    fn verdict(self, target: String) -> Verdict {
        let met = (self.seen > 0).then_some(self.below.is_empty());
        let numbers = match &self.least {
            None => "not measured".into(),
            Some((_, place)) if self.below.is_empty() => {
                format!("{} comparisons, least {place}", self.seen)
            }
            Some(_) => format!(
                "{} of {} are below: {}",
                self.below.len(),
                self.seen,
                self.below.join(", ")
            ),
        };
        Verdict { target, met, numbers, misses: self.misses }
    }
}

fn at_least_lcam(samples: &Samples, mapping: &str) -> Verdict {
    compare(samples, "/", &[mapping], &["lcam", Variant::DAMPED]).verdict(format!(
        "`{mapping}`: at least as fast as the better of both `lcam` rules in every blocking cell (3% for noise)"
    ))
}

fn no_wait(samples: &Samples, mapping: &str) -> Verdict {
    let runs = || samples.all.iter().filter(|s| s.mapping == mapping && s.mode == Mode::Blocking);
    let most = runs().map(Sample::lock_ms_sum).fold(0.0, f64::max);
    Verdict::new(
        format!("`{mapping}`: lock wait zero in every blocking run"),
        (runs().count() > 0).then_some(most == 0.0),
        format!("{} runs, at most {most:.3} ms over all connections", runs().count()),
    )
}

fn even(samples: &Samples) -> Verdict {
    compare(samples, "/even/", &[], &["round-robin"])
        .verdict("on even traffic no mapping loses more than 3% to `round-robin`".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::made_up;

    #[test]
    fn targets_are_judged_by_the_numbers() {
        let (scenario, block) = HEADLINE;
        let ops =
            [("round-robin", 100.0), ("lcam", 300.0), ("handoff", 310.0), ("core-affine", 200.0)];
        let samples = Samples {
            all: ops.map(|(mapping, ops)| made_up(scenario, mapping, block, 0, ops)).to_vec(),
        };
        let verdicts = judge(&samples);
        let met = |start: &str| {
            verdicts.iter().find(|v| v.target.starts_with(start)).expect("a verdict").met
        };
        assert_eq!(met("`lcam`: at least 2.84x"), Some(true));
        assert_eq!(met("`lcam`: mean latency"), Some(true));
        assert_eq!(
            met("`lcam`: bytes per worker"),
            Some(false),
            "the workers of the sample differ by 2"
        );
        assert_eq!(met("`lcam-damped`: at least 2.84x"), None);
        assert_eq!(met("`lcam`: largest lock time"), None);
        assert_eq!(met("`handoff`: at least as fast"), Some(true));
        assert_eq!(met("`core-affine`: at least as fast"), Some(false));
        assert_eq!(met("`handoff`: lock wait zero"), Some(false), "the sample has lock time");
        assert_eq!(met("on even traffic"), None);
        let missed = verdicts
            .iter()
            .find(|v| v.target.starts_with("`core-affine`: at least"))
            .expect("a verdict");
        let [Miss { cell, mappings }] = &missed.misses[..] else { panic!("{:?}", missed.misses) };
        assert_eq!((cell.scenario.as_str(), cell.block_bytes), HEADLINE);
        assert_eq!(mappings[..], ["lcam", "core-affine"]);
    }
}
