//! Writes a run's directory: report, summary, raw data, figures.
//!
//! Contract: what was measured stands in files of less than 1 MiB each, and the report says
//! command, commit, machine, load and what the run does not show.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::BenchError;
use crate::figures::{self, Drawn};
use crate::machine::{Machine, size_name};
use crate::runner::Sample;
use crate::scenario::Scenario;
use crate::stats::{ratio, spread};
use crate::table::{Key, Row, Samples, rounded};
use crate::targets::{self, Miss, Verdict};

/// Largest file of raw data.
pub(crate) const RAW_BYTES_MAX: usize = 1 << 20;

/// How a run came about; kept as `run.json`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Origin {
    pub(crate) name: String,
    pub(crate) command: String,
    pub(crate) machine: Machine,
    pub(crate) load_after: f64,
    pub(crate) seconds: f64,
}

/// What a report is made of.
pub(crate) struct Material<'a> {
    pub(crate) origin: &'a Origin,
    pub(crate) scenario: &'a Scenario,
    pub(crate) samples: &'a Samples,
    /// What the model says; words, tables and figures.
    pub(crate) model: Option<crate::model::Chapter>,
}

/// Reads back what [`write`] kept of a run.
///
/// # Errors
/// When a file is missing or not what was written.
pub(crate) fn read(dir: &Path) -> Result<(Origin, Samples), BenchError> {
    let text = |path: &Path| fs::read_to_string(path).map_err(BenchError::file(path));
    let origin = serde_json::from_str(&text(&dir.join("run.json"))?)?;
    let raw = dir.join("raw");
    let entries = fs::read_dir(&raw).map_err(BenchError::file(&raw))?;
    let mut samples = Samples::default();
    for entry in entries {
        let path = entry.map_err(BenchError::file(&raw))?.path();
        let some: Vec<Sample> = serde_json::from_str(&text(&path)?)?;
        samples.all.extend(some);
    }
    Ok((origin, samples))
}

/// A row of `summary.json` from a value and that of the mapping it is compared with.
pub(crate) struct RowOf<'a> {
    pub(crate) scenario: String,
    pub(crate) mapping: &'a str,
    pub(crate) block_bytes: u64,
    pub(crate) metric: &'static str,
    pub(crate) value: f64,
    pub(crate) base: f64,
    pub(crate) runs: usize,
}

impl RowOf<'_> {
    pub(crate) fn row(self) -> Row {
        let usable = self.base.is_finite() && self.base != 0.0 && self.value.is_finite();
        Row {
            scenario: self.scenario,
            mapping: self.mapping.to_owned(),
            block_size: size_name(self.block_bytes),
            metric: self.metric,
            median: self.value.is_finite().then_some(rounded(self.value)),
            ratio: usable.then(|| rounded(ratio(self.value, self.base))),
            runs: self.runs,
        }
    }
}

/// Writes everything into `dir`, which is made.
///
/// # Errors
/// When a file cannot be written.
pub(crate) fn write(dir: &Path, material: &Material<'_>) -> Result<(), BenchError> {
    let mut drawn = figures::draw(material.samples);
    if let Some(model) = &material.model {
        drawn.extend(model.figures());
    }
    make_dirs(dir, &["figures", "raw"])?;
    for figure in &drawn {
        put(&dir.join("figures").join(figure.file), &figure.svg)?;
    }
    let mut rows = material.samples.rows();
    rows.extend(material.model.iter().flat_map(|model| model.rows()));
    put(&dir.join("summary.json"), &lines(&rows)?)?;
    put(&dir.join("run.json"), &serde_json::to_string_pretty(material.origin)?)?;
    let raw = write_raw(&dir.join("raw"), material)?;
    put(&dir.join("report.md"), &text(material, &drawn, &raw))
}

/// Makes these folders in `dir`.
///
/// # Errors
/// When one cannot be made.
pub(crate) fn make_dirs(dir: &Path, folders: &[&str]) -> Result<(), BenchError> {
    for folder in folders {
        let path = dir.join(folder);
        fs::create_dir_all(&path).map_err(BenchError::file(&path))?;
    }
    Ok(())
}

/// What every report begins with: command, commit, machine, load.
pub(crate) fn head(out: &mut String, command: &str, machine: &Machine, load_after: f64) {
    let changed = if machine.modified { " with uncommitted changes" } else { "" };
    let _ = writeln!(out, "* Command: `{command}`");
    let _ = writeln!(out, "* Commit: {}{changed}", machine.commit);
    let _ = writeln!(out, "* Machine: {}", machine.words());
    let _ = writeln!(
        out,
        "* Load average before and after: {:.1}, {load_after:.1} (the run's own threads included)",
        machine.load_before
    );
}

/// A JSON array with one element per line, so that runs can be compared line by line.
///
/// # Errors
/// When an item is not JSON.
pub(crate) fn lines<T: Serialize>(items: &[T]) -> Result<String, BenchError> {
    let lines: Vec<String> = items.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
    Ok(format!("[\n{}\n]\n", lines.join(",\n")))
}

/// Writes a file.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn put(path: &Path, text: &str) -> Result<(), BenchError> {
    fs::write(path, text).map_err(BenchError::file(path))
}

/// Samples by scenario, in as many files as keep each below [`RAW_BYTES_MAX`].
fn write_raw(dir: &Path, material: &Material<'_>) -> Result<Vec<String>, BenchError> {
    let mut by_scenario: BTreeMap<&str, Vec<serde_json::Value>> = BTreeMap::new();
    for sample in &material.samples.all {
        by_scenario
            .entry(&sample.scenario)
            .or_default()
            .push(shortened(serde_json::to_value(sample)?));
    }
    let mut files = Vec::new();
    for (scenario, samples) in by_scenario {
        let whole = lines(&samples)?.len();
        let parts = whole.div_ceil(RAW_BYTES_MAX - 4096).max(1);
        for (part, samples) in samples.chunks(samples.len().div_ceil(parts)).enumerate() {
            let suffix = if parts == 1 { String::new() } else { format!("-{}", part + 1) };
            let name = format!("{}{suffix}.json", scenario.replace('/', "-"));
            put(&dir.join(&name), &lines(samples)?)?;
            files.push(name);
        }
    }
    Ok(files)
}

/// Numbers with five digits.
pub(crate) fn shortened(value: serde_json::Value) -> serde_json::Value {
    use serde_json::Value;
    match value {
        Value::Number(number) if number.is_f64() => {
            number.as_f64().map_or(Value::Null, |value| rounded(value).into())
        }
        Value::Array(items) => items.into_iter().map(shortened).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(name, value)| (name, shortened(value))).collect()
        }
        other => other,
    }
}

fn text(material: &Material<'_>, drawn: &[Drawn], raw: &[String]) -> String {
    let Material { origin, scenario, samples, .. } = material;
    let mut out = String::new();
    let _ = writeln!(out, "# Contention: {}\n", origin.name);
    head(&mut out, &origin.command, &origin.machine, origin.load_after);
    let _ = writeln!(out, "* {:.0} s in all", origin.seconds);
    let _ = writeln!(
        out,
        "* Each cell: {} ms of warm-up, {} ms or more measured, {} runs, all mappings in turn; tables show medians",
        scenario.warmup_ms, scenario.measure_ms, scenario.runs
    );
    let _ = writeln!(out, "\n{}\n", scenario.about.trim());
    assumptions(&mut out, scenario);
    let judged = targets::judge(samples);
    verdicts(&mut out, &judged);
    misses(&mut out, samples, &judged);
    tables(&mut out, samples);
    if let Some(model) = &material.model {
        out.push_str(&model.text());
    }
    let _ = writeln!(out, "## Figures\n");
    for figure in drawn {
        let _ =
            writeln!(out, "{}\n\n![{}](figures/{})\n", figure.caption, figure.caption, figure.file);
    }
    let _ = writeln!(out, "## Raw data\n");
    let _ = writeln!(
        out,
        "`summary.json`: one row per cell, mapping and metric. One line per run in `raw/`:\n"
    );
    raw.iter().for_each(|file| out.push_str(&format!("* [{file}](raw/{file})\n")));
    out.push_str(NOT_SHOWN);
    out
}

const NOT_SHOWN: &str = "
## What this does not show

* In blocking mode workers sleep where a daemon would work: caches, memory bandwidth and the scheduling of more threads than
  cores cost nothing there. What it shows is who waits for whom.
* The machine had two cores, shared with other work; real CPU mode shows two workers at most, and its numbers move
  with that load.
* Server and clients are one process; the network is loopback.
* Service times are assumptions of the scenario, not measurements of a daemon; `fig-lock-share.svg` shows what one of
  them decides.
";

fn assumptions(out: &mut String, scenario: &Scenario) {
    let _ = writeln!(
        out,
        "| service times | under the lock: us per message | us per KiB in | us per KiB out | after it: us per message | us per KiB out |"
    );
    let _ = writeln!(out, "|---|---|---|---|---|---|");
    for (name, times) in &scenario.service {
        let _ = writeln!(
            out,
            "| {name} | {} | {} | {} | {} | {} |",
            times.locked_us_per_message,
            times.locked_us_per_kib_in,
            times.locked_us_per_kib_out,
            times.free_us_per_message,
            times.free_us_per_kib_out
        );
    }
    let _ = writeln!(out, "\nTraffic:\n");
    for (name, traffic) in &scenario.traffic {
        let _ = writeln!(out, "* {name}: {}", traffic.words());
    }
    let _ = writeln!(
        out,
        "\nPlacement: interval {} ms, lock threshold {:.0}% of it.\n",
        scenario.placement.interval_ms,
        scenario.placement.lock_threshold * 100.0
    );
}

/// A table of targets.
pub(crate) fn verdicts(out: &mut String, verdicts: &[Verdict]) {
    let _ = writeln!(out, "## Targets\n\n| target | met | numbers |\n|---|---|---|");
    for verdict in verdicts {
        let met = match verdict.met {
            Some(true) => "yes",
            Some(false) => "**no**",
            None => "not measured",
        };
        let _ = writeln!(out, "| {} | {met} | {} |", verdict.target, verdict.numbers);
    }
    out.push('\n');
}

/// What the counters say of each cell in which a target is missed.
fn misses(out: &mut String, samples: &Samples, verdicts: &[Verdict]) {
    let mut rows: Vec<String> = Vec::new();
    for Miss { cell, mappings } in verdicts.iter().flat_map(|verdict| &verdict.misses) {
        for mapping in mappings {
            let row = miss_row(samples, cell, mapping);
            if !rows.contains(&row) {
                rows.push(row);
            }
        }
    }
    if rows.is_empty() {
        return;
    }
    out.push_str(
        "Where a target is missed, by the counters of the runs (medians). Workers of a connection are those that it had at the end, of \
         connections with data; found taken is the share of acquisitions that had to wait, or moved on; lock time is in ms each second, of all \
         workers together, so that 1000 is one worker that does nothing else:\n\n\
         | cell | mapping | ops/s | busy, idlest and busiest worker % | workers of a connection | found taken % | lock time: worst connection | all | \
         share of ops of the busiest connection % |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    rows.iter().for_each(|row| out.push_str(row));
    out.push('\n');
}

fn miss_row(samples: &Samples, cell: &Key, mapping: &str) -> String {
    let Key { scenario, block_bytes, .. } = cell;
    let m =
        |of: fn(&Sample) -> f64| samples.median(scenario, *block_bytes, mapping, of).unwrap_or(0.0);
    format!(
        "| {scenario} {} | {mapping} | {:.0} | {:.0}, {:.0} | {:.0} to {:.0} | {:.1} | {:.0} | {:.0} | {:.0} |\n",
        size_name(*block_bytes),
        m(|s| s.ops_per_s),
        m(|s| s.busy_least() * 100.0),
        m(|s| s.busy_most() * 100.0),
        m(|s| s.with_data().map(|c| c.workers).min().unwrap_or(0) as f64),
        m(|s| s.with_data().map(|c| c.workers).max().unwrap_or(0) as f64),
        m(|s| s.found_taken() * 100.0),
        m(|s| s.lock_ms_max() / s.seconds),
        m(|s| s.lock_ms_sum() / s.seconds),
        m(|s| s.with_data().map(|c| c.ops).max().unwrap_or(0) as f64 / s.ops.max(1) as f64 * 100.0),
    )
}

/// One table for each scenario.
fn tables(out: &mut String, samples: &Samples) {
    let mut last = String::new();
    for Key { scenario, mode, block_bytes } in samples.cells() {
        if scenario != last {
            let kind = match mode {
                crate::scenario::Mode::Blocking => "blocking service time",
                crate::scenario::Mode::Cpu => "real CPU, workers = cores",
            };
            let _ = writeln!(out, "\n## {scenario} ({kind})\n");
            let _ = writeln!(
                out,
                "| block | mapping | ops/s | x | MB/s | mean ms | p50 | p99 | p99.9 | ping ms | bytes max/min | busy min-max % | CPU of workers % | lock ms/s max, sum | events/poll |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
            );
            last.clone_from(&scenario);
        }
        for mapping in samples.mappings(Some(&scenario)) {
            table_row(out, samples, &scenario, block_bytes, &mapping);
        }
    }
    out.push('\n');
}

fn table_row(out: &mut String, samples: &Samples, scenario: &str, block: u64, mapping: &str) {
    let m = |of: fn(&Sample) -> f64| samples.median(scenario, block, mapping, of).unwrap_or(0.0);
    if samples.of(scenario, block, mapping).is_empty() {
        return;
    }
    let base = samples.median(scenario, block, "round-robin", |s| s.ops_per_s).unwrap_or(0.0);
    let bytes = m(|s| spread(s.workers.iter().map(|w| w.mb)));
    let bytes = if bytes.is_finite() { format!("{bytes:.2}") } else { "idle workers".into() };
    let _ = writeln!(
        out,
        "| {} | {mapping} | {:.0} | {:.2} | {:.1} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {bytes} | {:.0}-{:.0} | {:.0} | {:.1}, {:.1} | {:.2} |",
        size_name(block),
        m(|s| s.ops_per_s),
        ratio(m(|s| s.ops_per_s), base),
        m(|s| s.mb_per_s),
        m(|s| s.mean_us / 1e3),
        m(|s| s.p50_us / 1e3),
        m(|s| s.p99_us / 1e3),
        m(|s| s.p999_us / 1e3),
        m(|s| s.ping_mean_us / 1e3),
        m(|s| s.busy_least() * 100.0),
        m(|s| s.busy_most() * 100.0),
        m(|s| s.workers.iter().map(|w| w.cpu * 100.0).sum()),
        m(|s| s.lock_ms_max() / s.seconds),
        m(|s| s.lock_ms_sum() / s.seconds),
        m(|s| s.events_per_poll()),
    );
}
