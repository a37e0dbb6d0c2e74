//! What Trefoil is held against on a GlusterFS volume: a first step and the moonshot, each met or
//! not.

use super::sample::{Samples, TREFOIL};

/// A bound of a ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Bound {
    fn holds(self, ratio: f64) -> bool {
        match self {
            Bound::AtLeast(least) => ratio >= least,
            Bound::AtMost(most) => ratio <= most,
        }
    }

    fn words(self) -> String {
        match self {
            Bound::AtLeast(least) => format!("at least {least}x"),
            Bound::AtMost(most) => format!("at most 1/{:.0}", 1.0 / most),
        }
    }
}

/// What a ratio is of.
#[derive(Clone, Copy, Debug)]
enum Of {
    /// Trefoil to the peer, a metric of these cells.
    Peer(&'static str, &'static [&'static str]),
    /// Trefoil with an OSD dead to Trefoil healthy, throughput of these cells.
    Healthy(&'static [&'static str]),
}

struct Target {
    about: &'static str,
    of: Of,
    first: Bound,
    moonshot: Bound,
}

use Bound::{AtLeast, AtMost};

const TARGETS: [Target; 11] = [
    Target {
        about: "random 4k and 16k, read and write",
        of: Of::Peer(
            "ops_per_s",
            &["randread-4k", "randwrite-4k", "randread-16k", "randwrite-16k"],
        ),
        first: AtLeast(5.0),
        moonshot: AtLeast(10.0),
    },
    Target {
        about: "random 64k, read and write",
        of: Of::Peer("ops_per_s", &["randread-64k", "randwrite-64k"]),
        first: AtLeast(4.0),
        moonshot: AtLeast(8.0),
    },
    Target {
        about: "random and sequential 1M, read and write",
        of: Of::Peer("ops_per_s", &["randread-1m", "randwrite-1m", "read-1m", "write-1m"]),
        first: AtLeast(3.0),
        moonshot: AtLeast(4.0),
    },
    Target {
        about: "mean latency with one in flight, 4k read and write",
        of: Of::Peer("mean_us", &["latency-read-4k", "latency-write-4k"]),
        first: AtMost(1.0 / 3.0),
        moonshot: AtMost(1.0 / 5.0),
    },
    Target {
        about: "4k write + fsync",
        of: Of::Peer("ops_per_s", &["fsync-4k"]),
        first: AtLeast(3.0),
        moonshot: AtLeast(6.0),
    },
    Target {
        about: "create, stat (cold), rename, unlink",
        of: Of::Peer("ops_per_s", &["create", "stat", "rename", "unlink"]),
        first: AtLeast(5.0),
        moonshot: AtLeast(12.0),
    },
    Target {
        about: "tar x, rm -rf",
        of: Of::Peer("ops_per_s", &["tar-x", "rm-rf"]),
        first: AtLeast(4.0),
        moonshot: AtLeast(10.0),
    },
    Target {
        about: "CPU of the machine per operation, 4k read and write",
        of: Of::Peer("cpu_machine_us", &["randread-4k", "randwrite-4k"]),
        first: AtMost(1.0 / 6.0),
        moonshot: AtMost(1.0 / 10.0),
    },
    Target {
        about: "one OSD dead, to Trefoil healthy",
        of: Of::Healthy(&["randread-4k", "randwrite-4k", "randread-64k", "randwrite-64k"]),
        first: AtLeast(0.7),
        moonshot: AtLeast(0.9),
    },
    Target {
        about: "heal of what was written while a part was away",
        of: Of::Peer("mb_per_s", &["heal"]),
        first: AtLeast(3.0),
        moonshot: AtLeast(10.0),
    },
    Target {
        about: "resident memory, client and daemons, after the matrix",
        of: Of::Peer("total_mib", &["memory"]),
        first: AtMost(1.0 / 2.0),
        moonshot: AtMost(1.0 / 4.0),
    },
];

/// Whether a bound is kept in all cells of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Met {
    /// In all of them.
    Yes,
    /// Not in one that was measured.
    No,
    /// As far as measured, but not all was.
    Partly,
    /// Nothing was measured.
    NotMeasured,
}

impl Met {
    /// For the report.
    pub fn words(self) -> &'static str {
        match self {
            Met::Yes => "yes",
            Met::No => "**no**",
            Met::Partly => "yes, of what was measured",
            Met::NotMeasured => "not measured",
        }
    }
}

/// A target and what came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// What it is about.
    pub about: &'static str,
    /// The first step, and whether it was made.
    pub first: (String, Met),
    /// And the moonshot.
    pub moonshot: (String, Met),
    /// The ratio of each cell.
    pub numbers: String,
}

/// Judges every target against a peer.
pub fn judge(samples: &Samples, peer: &str) -> Vec<Verdict> {
    TARGETS.iter().map(|target| verdict(samples, peer, target)).collect()
}

fn verdict(samples: &Samples, peer: &str, target: &Target) -> Verdict {
    let ratios: Vec<(&str, Option<f64>)> = match target.of {
        Of::Peer(metric, cells) => {
            cells.iter().map(|cell| (*cell, samples.ratio(cell, peer, metric).0)).collect()
        }
        Of::Healthy(cells) => cells.iter().map(|cell| (*cell, to_healthy(samples, cell))).collect(),
    };
    let met = |bound: Bound| {
        let measured: Vec<f64> = ratios.iter().filter_map(|(_, ratio)| *ratio).collect();
        match measured.len() {
            0 => Met::NotMeasured,
            _ if !measured.iter().all(|ratio| bound.holds(*ratio)) => Met::No,
            all if all == ratios.len() => Met::Yes,
            _ => Met::Partly,
        }
    };
    let number = |(cell, ratio): &(&str, Option<f64>)| match ratio {
        Some(ratio) => format!("{cell} {ratio:.2}x"),
        None => format!("{cell} -"),
    };
    Verdict {
        about: target.about,
        first: (target.first.words(), met(target.first)),
        moonshot: (target.moonshot.words(), met(target.moonshot)),
        numbers: ratios.iter().map(number).collect::<Vec<_>>().join(", "),
    }
}

/// Trefoil's throughput with an OSD dead, to that of the same cell healthy.
fn to_healthy(samples: &Samples, cell: &str) -> Option<f64> {
    let dead = samples.median(&format!("dead-{cell}"), TREFOIL, "ops_per_s")?;
    let healthy = samples.median(cell, TREFOIL, "ops_per_s")?;
    (healthy > 0.0).then(|| dead / healthy)
}

#[cfg(test)]
mod tests {
    use super::super::cells::CELLS;
    use super::super::sample::tests::sample;
    use super::*;

    fn pair(samples: &mut Samples, cell: &str, metric: &str, peer: f64, ours: f64) {
        samples.0.push(sample(cell, "glusterfs", 1, metric, peer));
        samples.0.push(sample(cell, TREFOIL, 1, metric, ours));
    }

    fn of(samples: &Samples, about: &str) -> Verdict {
        judge(samples, "glusterfs")
            .into_iter()
            .find(|verdict| verdict.about.contains(about))
            .unwrap()
    }

    #[test]
    fn every_cell_of_a_target_exists() {
        for target in &TARGETS {
            let (Of::Peer(_, cells) | Of::Healthy(cells)) = target.of;
            assert!(
                cells.iter().all(|name| CELLS.iter().any(|cell| cell.name == *name)),
                "{}",
                target.about
            );
            if let Of::Healthy(cells) = target.of {
                let dead =
                    |name: &&str| CELLS.iter().any(|cell| cell.name == format!("dead-{name}"));
                assert!(cells.iter().all(dead));
            }
        }
    }

    #[test]
    fn one_cell_below_the_bound_is_enough() {
        let mut samples = Samples::default();
        pair(&mut samples, "tar-x", "ops_per_s", 100.0, 1100.0);
        pair(&mut samples, "rm-rf", "ops_per_s", 100.0, 450.0);
        let verdict = of(&samples, "tar x");
        assert_eq!((verdict.first.1, verdict.moonshot.1), (Met::Yes, Met::No));
        assert_eq!(verdict.numbers, "tar-x 11.00x, rm-rf 4.50x");
    }

    #[test]
    fn latency_and_memory_are_to_fall() {
        let mut samples = Samples::default();
        pair(&mut samples, "latency-read-4k", "mean_us", 300.0, 90.0);
        pair(&mut samples, "memory", "total_mib", 400.0, 250.0);
        assert_eq!(of(&samples, "latency").first.1, Met::Partly);
        assert_eq!(of(&samples, "resident").first.1, Met::No);
        assert_eq!(of(&samples, "fsync").first.1, Met::NotMeasured);
    }

    #[test]
    fn dead_is_held_against_healthy() {
        let mut samples = Samples::default();
        for cell in ["randread-4k", "randwrite-4k", "randread-64k", "randwrite-64k"] {
            pair(&mut samples, cell, "ops_per_s", 1.0, 1000.0);
            pair(&mut samples, &format!("dead-{cell}"), "ops_per_s", 1.0, 800.0);
        }
        let verdict = of(&samples, "one OSD dead");
        assert_eq!((verdict.first.1, verdict.moonshot.1), (Met::Yes, Met::No));
    }
}
