//! Samples gathered into cells: medians over rounds, and ratios to the first mode.

use super::plan::{Cell, Consistency};
use super::run::Sample;
use crate::report::RowOf;
use crate::stats::{median, ratio};
use crate::table::Row;

/// A number that each sample has.
pub(super) type Of = fn(&Sample) -> f64;

/// Numbers of `summary.json`, by name, unit last.
pub(super) const METRICS: [(&str, Of); 15] = [
    ("ops_per_s", Sample::ops_per_s),
    ("ops_per_cpu_s", Sample::ops_per_cpu_s),
    ("mb_per_s", Sample::mb_per_s),
    ("mean_us", |s| s.mean_us),
    ("p99_us", |s| s.p99_us),
    ("round_trips_per_op", |s| s.round_trips),
    ("messages_per_op", |s| s.messages),
    ("locks_per_op", |s| s.locks),
    ("fallback_share", |s| s.fallback_share),
    ("lock_wait_us_per_op", |s| s.lock_wait_us),
    ("queue_contended_share", |s| s.queue_contended_share),
    ("queue_wait_us_per_op", |s| s.queue_wait_us),
    ("server_cpu_us_per_op", |s| s.server_cpu_us),
    ("client_cpu_us_per_op", |s| s.client_cpu_us),
    ("socket_cpu_share", |s| s.socket_cpu_share),
];

/// All samples of a run.
#[derive(Debug, Default)]
pub(super) struct Results {
    pub(super) samples: Vec<Sample>,
}

impl Results {
    pub(super) fn new(samples: Vec<Sample>) -> Results {
        Results { samples }
    }

    /// Cells in the order of their first sample.
    pub(super) fn cells(&self) -> Vec<Cell> {
        let mut cells: Vec<Cell> = Vec::new();
        for sample in &self.samples {
            if !cells.contains(&sample.cell) {
                cells.push(sample.cell);
            }
        }
        cells
    }

    /// Modes in the order of their first sample; the first is what the others are compared with.
    pub(super) fn modes(&self) -> Vec<Consistency> {
        let mut modes = Vec::new();
        for sample in &self.samples {
            if !modes.contains(&sample.consistency) {
                modes.push(sample.consistency);
            }
        }
        modes
    }

    /// The median over the rounds of a cell in a mode; `None` without any.
    pub(super) fn median(&self, cell: &Cell, mode: Consistency, of: Of) -> Option<f64> {
        let runs: Vec<f64> = self
            .samples
            .iter()
            .filter(|s| s.cell == *cell && s.consistency == mode)
            .map(of)
            .collect();
        (!runs.is_empty()).then(|| median(runs))
    }

    /// A number to that of another mode in the same cell, less 1; `None` if one was not measured.
    pub(super) fn gain(
        &self,
        cell: &Cell,
        mode: Consistency,
        base: Consistency,
        of: Of,
    ) -> Option<f64> {
        let (value, base) = (self.median(cell, mode, of)?, self.median(cell, base, of)?);
        (base > 0.0).then(|| ratio(value, base) - 1.0)
    }

    /// The rows of `summary.json`.
    pub(super) fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        let modes = self.modes();
        for cell in self.cells() {
            for mode in &modes {
                for (metric, of) in METRICS {
                    let Some(value) = self.median(&cell, *mode, of) else { continue };
                    let base = self.median(&cell, modes[0], of).unwrap_or(0.0);
                    let runs = self
                        .samples
                        .iter()
                        .filter(|s| s.cell == cell && s.consistency == *mode)
                        .count();
                    let (scenario, mapping, block_bytes) =
                        (cell.scenario(), mode.name(), cell.block_bytes);
                    rows.push(
                        RowOf { scenario, mapping, block_bytes, metric, value, base, runs }.row(),
                    );
                }
            }
        }
        rows
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::plan::{Files, Storage};
    use super::*;
    use crate::scenario::Pattern;

    pub(in super::super) fn cell(pattern: Pattern, block_bytes: u64, clients: usize) -> Cell {
        Cell {
            is_blocking: false,
            storage: Storage::Memory,
            files: Files::Many,
            pattern,
            block_bytes,
            clients,
        }
    }

    /// A sample with so many operations in a second.
    pub(in super::super) fn made_up(
        cell: Cell,
        consistency: Consistency,
        operations: u64,
    ) -> Sample {
        Sample {
            cell,
            consistency,
            round: 0,
            operations,
            seconds: 1.0,
            mean_us: 10.0,
            p99_us: 20.0,
            round_trips: 3.0,
            messages: 16.0,
            locks: 1.0,
            fallback_share: 0.5,
            lock_wait_us: 5.0,
            queue_contended_share: 0.1,
            queue_wait_us: 1.0,
            server_cpu_us: 60.0,
            client_cpu_us: 30.0,
            socket_cpu_share: 0.4,
        }
    }

    #[test]
    fn gains_are_of_medians_in_the_same_cell() {
        let here = cell(Pattern::Randread, 4096, 1);
        let base = [90, 100, 300].map(|ops| made_up(here, Consistency::ClusterLock, ops));
        let mut samples = base.to_vec();
        samples.push(made_up(here, Consistency::PerCore, 150));
        samples.push(made_up(cell(Pattern::Randread, 4096, 2), Consistency::PerCore, 1000));
        let results = Results::new(samples);
        let gain = |mode| results.gain(&here, mode, Consistency::ClusterLock, Sample::ops_per_s);
        assert!(gain(Consistency::PerCore).is_some_and(|gain| (gain - 0.5).abs() < 1e-9));
        assert_eq!(gain(Consistency::Unordered), None);
        let rows = results.rows();
        assert_eq!((rows.len(), rows[0].runs, rows[0].median), (3 * METRICS.len(), 3, Some(100.0)));
        assert_eq!(rows[METRICS.len()].ratio, Some(1.5));
    }
}
