//! What was measured, and what follows from it: medians, ratios, rows of `summary.json`.

use super::locks::LockUse;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Numbers by name, the unit last in the name.
pub type Metrics = BTreeMap<String, f64>;

/// How Trefoil is called among the systems.
pub const TREFOIL: &str = "trefoil";

/// One run of a cell on a system: a line of the raw data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Name of the cell.
    pub cell: String,
    /// Name of the system.
    pub system: String,
    /// From 1.
    pub run: u32,
    /// What was measured; empty if it failed.
    pub metrics: Metrics,
    /// Resident memory in MiB of each process, in the cell `memory`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes_mib: Vec<(String, f64)>,
    /// Operations that the locks were used for.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub operations: f64,
    /// How locks were used meanwhile, where that was asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub locks: Vec<LockUse>,
    /// Why nothing was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

/// What a load gave.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Its numbers.
    pub metrics: Metrics,
    /// See [`Sample::processes_mib`].
    pub processes_mib: Vec<(String, f64)>,
    /// See [`Sample::operations`].
    pub operations: f64,
    /// See [`Sample::locks`].
    pub locks: Vec<LockUse>,
}

impl From<Metrics> for Measured {
    fn from(metrics: Metrics) -> Measured {
        Measured { metrics, ..Measured::default() }
    }
}

/// Every run so far.
#[derive(Clone, Debug, Default)]
pub struct Samples(pub Vec<Sample>);

/// A row of `summary.json`: a metric of a cell, on a peer and on Trefoil.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Name of the cell.
    pub cell: String,
    /// Name and unit of the metric.
    pub metric: String,
    /// The system that Trefoil is compared with.
    pub peer_name: String,
    /// The peer's median; `null` if it was not measured.
    pub peer: Option<f64>,
    /// Trefoil's median.
    pub trefoil: Option<f64>,
    /// Median over the runs of Trefoil's value divided by the peer's in the same run; `null` where
    /// there is none.
    pub ratio: Option<f64>,
    /// How many runs both were measured in.
    pub runs: usize,
}

impl Samples {
    /// Values of a metric by run.
    fn values(&self, cell: &str, system: &str, metric: &str) -> BTreeMap<u32, f64> {
        let of_it = self.0.iter().filter(|s| s.cell == cell && s.system == system);
        of_it
            .filter_map(|s| Some((s.run, *s.metrics.get(metric)?)))
            .filter(|(_, v)| v.is_finite())
            .collect()
    }

    /// Median over the runs; `None` if it was not measured.
    pub fn median(&self, cell: &str, system: &str, metric: &str) -> Option<f64> {
        median(self.values(cell, system, metric).into_values())
    }

    /// Median of the runs' ratios of Trefoil to a peer, and the number of runs; runs lie side by
    /// side in time, so that what the machine does otherwise meets both.
    pub fn ratio(&self, cell: &str, peer: &str, metric: &str) -> (Option<f64>, usize) {
        let (ours, theirs) = (self.values(cell, TREFOIL, metric), self.values(cell, peer, metric));
        let pairs: Vec<(f64, f64)> =
            ours.iter().filter_map(|(run, our)| Some((*our, *theirs.get(run)?))).collect();
        let runs = pairs.len();
        (
            median(
                pairs
                    .into_iter()
                    .filter(|(_, theirs)| *theirs > 0.0)
                    .map(|(ours, theirs)| ours / theirs),
            ),
            runs,
        )
    }

    /// Names of the metrics of a cell.
    pub fn metrics(&self, cell: &str) -> BTreeSet<String> {
        self.0.iter().filter(|s| s.cell == cell).flat_map(|s| s.metrics.keys().cloned()).collect()
    }

    /// Names of the cells, in the order of measuring.
    pub fn cells(&self) -> Vec<String> {
        let mut cells: Vec<String> = Vec::new();
        for sample in &self.0 {
            if !cells.contains(&sample.cell) {
                cells.push(sample.cell.clone());
            }
        }
        cells
    }

    /// Every cell and metric for each peer.
    pub fn rows(&self, peers: &[&str]) -> Vec<Row> {
        let mut rows = Vec::new();
        for cell in self.cells() {
            for metric in self.metrics(&cell) {
                for peer in peers {
                    let (ratio, runs) = self.ratio(&cell, peer, &metric);
                    rows.push(Row {
                        cell: cell.clone(),
                        metric: metric.clone(),
                        peer_name: (*peer).to_owned(),
                        peer: self.median(&cell, peer, &metric).map(rounded),
                        trefoil: self.median(&cell, TREFOIL, &metric).map(rounded),
                        ratio: ratio.map(rounded),
                        runs,
                    });
                }
            }
        }
        rows
    }

    /// Runs that failed.
    pub fn failures(&self) -> impl Iterator<Item = (&Sample, &str)> {
        self.0.iter().filter_map(|sample| Some((sample, sample.error.as_deref()?)))
    }
}

/// The median; of an even number of values the mean of the middle two, of none `None`.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

/// To five digits, so that files of results stay small and lines can be compared.
pub fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let factor = 10f64.powi(4 - value.abs().log10().floor() as i32);
    (value * factor).round() / factor
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A run that measured one metric.
    pub fn sample(cell: &str, system: &str, run: u32, metric: &str, value: f64) -> Sample {
        let metrics = Metrics::from([(metric.to_owned(), value)]);
        let (cell, system) = (cell.to_owned(), system.to_owned());
        let (processes_mib, operations, locks) = (Vec::new(), 0.0, Vec::new());
        Sample { cell, system, run, metrics, processes_mib, operations, locks, error: None }
    }

    #[test]
    fn medians() {
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median([]), None);
    }

    #[test]
    fn ratios_are_of_runs_side_by_side() {
        let mut samples = Samples::default();
        // The machine was half as fast in the second run.
        for (run, peer, ours) in [(1, 100.0, 500.0), (2, 50.0, 250.0), (3, 100.0, 510.0)] {
            samples.0.push(sample("c", "p", run, "ops_per_s", peer));
            samples.0.push(sample("c", TREFOIL, run, "ops_per_s", ours));
        }
        assert_eq!(samples.ratio("c", "p", "ops_per_s"), (Some(5.0), 3));
        assert_eq!(samples.ratio("c", "q", "ops_per_s"), (None, 0));
        let rows = samples.rows(&["p", "q"]);
        assert_eq!(rows.len(), 2);
        assert_eq!((rows[0].peer, rows[0].trefoil, rows[0].runs), (Some(100.0), Some(500.0), 3));
        assert_eq!((rows[1].peer, rows[1].ratio, rows[1].runs), (None, None, 0));
    }

    #[test]
    fn a_run_without_its_other_half_or_with_nothing_counts_for_no_ratio() {
        let mut samples =
            Samples(vec![sample("c", "p", 1, "us", 0.0), sample("c", TREFOIL, 1, "us", 2.0)]);
        assert_eq!(samples.ratio("c", "p", "us"), (None, 1));
        samples.0.push(sample("c", TREFOIL, 2, "us", 3.0));
        assert_eq!(samples.ratio("c", "p", "us"), (None, 1));
    }

    #[test]
    fn rounding_keeps_five_digits() {
        assert_eq!(rounded(123_456.7), 123_460.0);
        assert_eq!(rounded(0.001_234_567), 0.001_234_6);
        assert_eq!(rounded(0.0), 0.0);
    }
}
