//! Samples gathered into cells: medians over runs, and ratios to the first mapping.

use serde::Serialize;

use crate::report::RowOf;
use crate::runner::Sample;
use crate::scenario::{Cell, Mode};
use crate::stats::{median, spread};

/// A number that each sample has, with its name and unit.
pub(crate) struct Metric {
    /// Name in `summary.json`, unit last.
    pub(crate) name: &'static str,
    pub(crate) of: fn(&Sample) -> f64,
}

/// All metrics.
pub(crate) const METRICS: [Metric; 15] = [
    Metric { name: "ops_per_s", of: |s| s.ops_per_s },
    Metric { name: "mb_per_s", of: |s| s.mb_per_s },
    Metric { name: "mean_us", of: |s| s.mean_us },
    Metric { name: "p50_us", of: |s| s.p50_us },
    Metric { name: "p99_us", of: |s| s.p99_us },
    Metric { name: "p999_us", of: |s| s.p999_us },
    Metric { name: "ping_mean_us", of: |s| s.ping_mean_us },
    Metric { name: "worker_bytes_max_over_min", of: |s| spread(s.workers.iter().map(|w| w.mb)) },
    Metric {
        name: "worker_busy_min_share",
        of: |s| s.workers.iter().map(|w| w.busy).fold(f64::MAX, f64::min),
    },
    Metric {
        name: "worker_busy_max_share",
        of: |s| s.workers.iter().map(|w| w.busy).fold(0.0, f64::max),
    },
    Metric { name: "workers_cpu_share", of: |s| s.workers.iter().map(|w| w.cpu).sum() },
    Metric { name: "lock_ms_max", of: Sample::lock_ms_max },
    Metric { name: "lock_ms_sum", of: Sample::lock_ms_sum },
    Metric { name: "events_per_poll", of: Sample::events_per_poll },
    Metric { name: "dropped_ops", of: |s| s.dropped as f64 },
];

/// One line of `summary.json`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) scenario: String,
    pub(crate) mapping: String,
    pub(crate) block_size: String,
    pub(crate) metric: &'static str,
    /// `null` where it is infinite: a worker that handled nothing.
    pub(crate) median: Option<f64>,
    /// To the same cell with round-robin; `null` where there is none, or it is 0 or infinite.
    pub(crate) ratio: Option<f64>,
    pub(crate) runs: usize,
}

/// All samples of a run of the bench.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    pub(crate) all: Vec<Sample>,
}

/// A cell that has samples.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Key {
    pub(crate) scenario: String,
    pub(crate) mode: Mode,
    pub(crate) block_bytes: u64,
}

impl Samples {
    /// Cells in the order of their first sample.
    pub(crate) fn cells(&self) -> Vec<Key> {
        let mut keys: Vec<Key> = Vec::new();
        for sample in &self.all {
            let key = Key {
                scenario: sample.scenario.clone(),
                mode: sample.mode,
                block_bytes: sample.block_bytes,
            };
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        keys
    }

    /// Puts samples that were read back into the order of measuring.
    pub(crate) fn sort_as(&mut self, cells: &[Cell]) {
        self.all.sort_by_cached_key(|sample| {
            let same = |cell: &Cell| {
                cell.scenario() == sample.scenario && cell.block_bytes == sample.block_bytes
            };
            let at = cells.iter().position(same);
            let variants = at.map(|at| &cells[at].variants);
            let variant = variants
                .and_then(|all| all.iter().position(|variant| variant.name() == sample.mapping));
            (at, sample.run, variant)
        });
    }

    /// Mappings in the order of their first sample, of one scenario or of all.
    pub(crate) fn mappings(&self, scenario: Option<&str>) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for sample in
            self.all.iter().filter(|sample| scenario.is_none_or(|name| name == sample.scenario))
        {
            if !names.contains(&sample.mapping) {
                names.push(sample.mapping.clone());
            }
        }
        names
    }

    fn is_of(&self, index: usize, scenario: &str, block_bytes: u64, mapping: &str) -> bool {
        let sample = &self.all[index];
        sample.scenario == scenario
            && sample.block_bytes == block_bytes
            && sample.mapping == mapping
    }

    /// Runs of a cell with a mapping.
    pub(crate) fn of(&self, scenario: &str, block_bytes: u64, mapping: &str) -> Vec<&Sample> {
        let indices =
            (0..self.all.len()).filter(|index| self.is_of(*index, scenario, block_bytes, mapping));
        indices.map(|index| &self.all[index]).collect()
    }

    /// Median over the runs of a cell with a mapping; `None` without any.
    pub(crate) fn median(
        &self,
        scenario: &str,
        block_bytes: u64,
        mapping: &str,
        of: impl Fn(&Sample) -> f64,
    ) -> Option<f64> {
        let runs = self.of(scenario, block_bytes, mapping);
        (!runs.is_empty()).then(|| median(runs.into_iter().map(of)))
    }

    /// The run in the middle of a cell with a mapping, by throughput: for what has no median.
    pub(crate) fn typical(
        &self,
        scenario: &str,
        block_bytes: u64,
        mapping: &str,
    ) -> Option<&Sample> {
        let mut runs: Vec<usize> = (0..self.all.len())
            .filter(|i| self.is_of(*i, scenario, block_bytes, mapping))
            .collect();
        runs.sort_by(|a, b| self.all[*a].ops_per_s.total_cmp(&self.all[*b].ops_per_s));
        runs.get(runs.len() / 2).map(|index| &self.all[*index])
    }

    /// The rows of `summary.json`.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for Key { scenario, block_bytes, .. } in self.cells() {
            for mapping in self.mappings(Some(&scenario)) {
                let runs = self.of(&scenario, block_bytes, &mapping).len();
                for metric in METRICS {
                    let Some(value) = self.median(&scenario, block_bytes, &mapping, metric.of)
                    else {
                        continue;
                    };
                    let base = self
                        .median(&scenario, block_bytes, "round-robin", metric.of)
                        .unwrap_or(0.0);
                    let row = RowOf {
                        scenario: scenario.clone(),
                        mapping: &mapping,
                        block_bytes,
                        metric: metric.name,
                        value,
                        base,
                        runs,
                    };
                    rows.push(row.row());
                }
            }
        }
        rows
    }
}

/// Five digits: more would be noise, and take space in git.
pub(crate) fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let scale = 10f64.powi(4 - value.abs().log10().floor() as i32);
    (value * scale).round() / scale
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::runner::{ConnectionSample, WorkerSample};

    /// A sample with these figures and two workers, of which the second handled half as many bytes.
    pub(crate) fn made_up(
        scenario: &str,
        mapping: &str,
        block_bytes: u64,
        run: usize,
        ops_per_s: f64,
    ) -> Sample {
        let worker =
            |mb| WorkerSample { mb, messages: 1, busy: 0.5, cpu: 0.1, polls: 10, events: 15 };
        Sample {
            scenario: scenario.into(),
            mode: Mode::Blocking,
            mapping: mapping.into(),
            block_bytes,
            run,
            seconds: 1.0,
            ops: ops_per_s as u64,
            ops_per_s,
            mb_per_s: 1.0,
            mean_us: 1e6 / ops_per_s,
            p50_us: 1.0,
            p99_us: 1.0,
            p999_us: 1.0,
            ping_mean_us: 1.0,
            ping_p99_us: 1.0,
            dropped: 0,
            workers: vec![worker(2.0), worker(1.0)],
            connections: vec![ConnectionSample { lock_ms: 3.0, ..ConnectionSample::default() }],
            batches: vec![vec![1.0, 2.0], vec![1.0]],
        }
    }

    #[test]
    fn rows_have_medians_and_ratios() {
        let runs = [
            ("round-robin", 100.0),
            ("round-robin", 120.0),
            ("round-robin", 80.0),
            ("lcam", 300.0),
        ];
        let all = runs
            .iter()
            .enumerate()
            .map(|(run, (mapping, ops))| made_up("s", mapping, 4096, run, *ops))
            .collect();
        let samples = Samples { all };
        let rows = samples.rows();
        assert_eq!(rows.len(), 2 * METRICS.len());
        let find = |mapping: &str, metric: &str| {
            rows.iter().find(|row| row.mapping == mapping && row.metric == metric).expect("a row")
        };
        let base = find("round-robin", "ops_per_s");
        assert_eq!((base.median, base.ratio, base.runs), (Some(100.0), Some(1.0), 3));
        let lcam = find("lcam", "ops_per_s");
        assert_eq!(
            (lcam.median, lcam.ratio, lcam.runs, lcam.block_size.as_str()),
            (Some(300.0), Some(3.0), 1, "4K")
        );
        assert_eq!(find("lcam", "worker_bytes_max_over_min").median, Some(2.0));
        assert_eq!(find("lcam", "dropped_ops").ratio, None);
        assert_eq!(samples.typical("s", 4096, "round-robin").expect("a run").ops_per_s, 100.0);
        assert!(samples.median("s", 1, "lcam", |s| s.mb_per_s).is_none());
    }

    #[test]
    fn numbers_are_rounded() {
        assert_eq!(rounded(123_456.0), 123_460.0);
        assert_eq!(rounded(0.123_456), 0.12346);
        assert_eq!(rounded(0.0), 0.0);
    }
}
