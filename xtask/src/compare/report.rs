//! Text and tables of a run, from its samples. Nothing is measured, read or written here.

use super::cells::{CELLS, CLIENT_JOB, Cell, FioJob, Sizes, Work};
use super::fio::{self, Files};
use super::origin::Origin;
use super::sample::{Samples, TREFOIL, rounded};
use super::targets;
use std::collections::BTreeMap;
use std::fmt::Write;

/// What a report is made of.
pub struct Material<'a> {
    /// Where the run comes from.
    pub origin: &'a Origin,
    /// Cells that were chosen.
    pub cells: &'a [Cell],
    /// How large.
    pub sizes: &'a Sizes,
    /// Peers, then Trefoil: name, and lines on how it was set up.
    pub systems: &'a [(String, Vec<String>)],
    /// What was measured so far.
    pub samples: &'a Samples,
    /// Load average and seconds at the end; `None` while the run goes on.
    pub end: Option<(f64, f64)>,
}

impl Material<'_> {
    fn peers(&self) -> Vec<&str> {
        self.names().into_iter().filter(|name| *name != TREFOIL).collect()
    }

    fn names(&self) -> Vec<&str> {
        self.systems.iter().map(|(name, _)| name.as_str()).collect()
    }

    fn measured(&self) -> Vec<Cell> {
        let measured = self.samples.cells();
        self.cells
            .iter()
            .filter(|cell| measured.iter().any(|name| name == cell.name))
            .copied()
            .collect()
    }

    /// The metric that says how fast a cell was, and its unit.
    fn speed_of(cell: &Cell) -> (&'static str, &'static str) {
        match cell.work {
            Work::Dd { .. } | Work::Heal => ("mb_per_s", "MB/s"),
            Work::Memory => ("total_mib", "MiB"),
            _ => ("ops_per_s", "/s"),
        }
    }
}

/// `summary.json`: an array with one row per line.
pub fn summary(material: &Material<'_>) -> Result<String, serde_json::Error> {
    let rows = material.samples.rows(&material.peers());
    let lines: Vec<String> = rows.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
    Ok(format!("[\n{}\n]\n", lines.join(",\n")))
}

/// `report.md`.
pub fn text(material: &Material<'_>) -> String {
    let mut out = String::new();
    head(&mut out, material);
    failures(&mut out, material);
    for peer in material.peers().into_iter().filter(|peer| peer.starts_with("glusterfs")) {
        targets_table(&mut out, material, peer);
    }
    speed(&mut out, material);
    floor(&mut out, material);
    latency(&mut out, material);
    cpu(&mut out, material);
    memory(&mut out, material);
    commands(&mut out, material);
    let _ = writeln!(
        out,
        "## Raw data\n\n`raw.jsonl`: one line per run of a cell on a system, in the order of measuring. `summary.json`: one row per \
         cell, metric and peer. `run.json`: machine and command. `ratio` is Trefoil's value divided by the peer's, the median over \
         runs side by side.\n"
    );
    out.push_str(NOT_SHOWN);
    out
}

const NOT_SHOWN: &str = "## What this does not show

* Client, daemons and load share the cores of one machine and its loopback: what saves CPU counts more here than it would over
  a network, and a network's latency is missing.
* Trefoil's processes reach each other through Unix sockets here, as they are on one host, and those of GlusterFS and Ceph through TCP.
  With `--peer trefoil-tcp` Trefoil is measured over TCP beside itself.
* All data lies on one disk behind one page cache. Data that was just written is read from memory; cells marked cold begin
  with `sync; echo 3 > /proc/sys/vm/drop_caches`, which empties the kernel's caches but not those in the memory of daemons and clients.
* Direct I/O on ext4 goes to the disk; what is direct on the other mounts may end in the page cache below them, so that shares of ext4
  above 100% are possible.
* Durability is not the same: `cargo xtask crash --peer glusterfs` shows what GlusterFS keeps of what it promised. By
  default GlusterFS answers writes, also direct ones, before it has sent them; ext4 and passthrough hold a single copy.
* A healing part has less and less left to heal while the load runs: `whole_after_load_s` in the raw data says how long healing went on
  after it, and is 0 where it was over before it began. Files of cells with a dead part are read once before, as caches were emptied.
* CPU is counted from before the load's start to after its end, its start-up included, in ticks of 10 ms. What of the machine is in
  no group is the kernel's own work, and whatever else ran.
* Medians of a few runs: differences of some per cent are noise.
";

fn head(out: &mut String, material: &Material<'_>) {
    let Material { origin, sizes, .. } = material;
    let _ = writeln!(out, "# Trefoil beside others: {}\n", origin.name);
    let _ = writeln!(out, "* Command: `{}`", origin.command);
    let _ = writeln!(out, "* Commit: {}; begun {} UTC", origin.commit, origin.begun);
    let _ = writeln!(out, "* Machine: {}; data on {}", origin.machine, origin.disk);
    match material.end {
        Some((load, seconds)) => {
            let before = origin.load_before;
            let _ = writeln!(
                out,
                "* Load average before and after: {before:.1}, {load:.1} (the run's own load included); {seconds:.0} s in all"
            );
        }
        None => drop(writeln!(out, "* **The run was not over when this was written**")),
    }
    let _ = writeln!(
        out,
        "* Runs of each cell: {}, systems in turn ({}), each once the one before is at rest, or after 60 s, `sync` before each; \
         tables show medians. {}; files of {} MiB for \
         each job, {} names, a tree of at most {} files, {} MiB healed. fio runs {} s.",
        sizes.runs,
        material.names().join(", "),
        origin.fio,
        sizes.file_mib,
        sizes.names,
        sizes.tree_files,
        sizes.heal_mib,
        sizes.seconds
    );
    let _ = writeln!(out, "\n## Systems\n");
    for (name, lines) in material.systems {
        let _ = writeln!(out, "* `{name}`: {}", lines.join("; "));
    }
    out.push('\n');
}

fn failures(out: &mut String, material: &Material<'_>) {
    let failures: Vec<_> = material.samples.failures().collect();
    if failures.is_empty() {
        return;
    }
    let _ = writeln!(out, "## What failed\n\n| cell | system | run | why |\n|---|---|---|---|");
    for (sample, error) in failures {
        let why = error.lines().map(str::trim).collect::<Vec<_>>().join(" / ").replace('|', "\\|");
        let why: String = why.chars().take(400).collect();
        let _ = writeln!(out, "| {} | {} | {} | {why} |", sample.cell, sample.system, sample.run);
    }
    out.push('\n');
}

fn targets_table(out: &mut String, material: &Material<'_>, peer: &str) {
    let _ = writeln!(
        out,
        "## Targets against `{peer}`\n\nRatios are Trefoil to the peer. A target holds if all of its cells keep it.\n"
    );
    let _ = writeln!(
        out,
        "| target | first | met | moonshot | met | ratios |\n|---|---|---|---|---|---|"
    );
    for verdict in targets::judge(material.samples, peer) {
        let ((first, first_met), (moonshot, moonshot_met)) = (&verdict.first, &verdict.moonshot);
        let (first_met, moonshot_met) = (first_met.words(), moonshot_met.words());
        let _ = writeln!(
            out,
            "| {} | {first} | {first_met} | {moonshot} | {moonshot_met} | {} |",
            verdict.about, verdict.numbers
        );
    }
    out.push('\n');
}

fn speed(out: &mut String, material: &Material<'_>) {
    let (names, peers) = (material.names(), material.peers());
    let _ = writeln!(out, "## Throughput\n");
    let ratios: Vec<String> = peers.iter().map(|peer| format!("to {peer}")).collect();
    let columns = names.iter().map(|name| (*name).to_owned()).chain(ratios).collect::<Vec<_>>();
    let _ = writeln!(
        out,
        "| cell | what | unit | {} |\n|---|---|---|{}",
        columns.join(" | "),
        "---|".repeat(columns.len())
    );
    for cell in material.measured() {
        let (metric, unit) = Material::speed_of(&cell);
        let _ = write!(out, "| {} | {} | {unit} |", cell.name, cell.about());
        for name in &names {
            let _ = write!(out, " {} |", number(material.samples.median(cell.name, name, metric)));
        }
        for peer in &peers {
            let _ = write!(out, " {} |", times(material.samples.ratio(cell.name, peer, metric).0));
        }
        out.push('\n');
    }
    out.push('\n');
}

/// Trefoil as a share of what FUSE and the disk give without it.
fn floor(out: &mut String, material: &Material<'_>) {
    let floors: Vec<&str> = material
        .peers()
        .into_iter()
        .filter(|peer| ["fuse-passthrough", "ext4"].contains(peer))
        .collect();
    if floors.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "## Against the floor\n\nTrefoil's throughput as a share of a single copy's.\n"
    );
    let heads: Vec<String> = floors.iter().map(|name| format!("of {name}")).collect();
    let _ = writeln!(out, "| cell | {} |\n|---|{}", heads.join(" | "), "---|".repeat(floors.len()));
    for cell in material.measured().iter().filter(|cell| cell.work != Work::Memory) {
        let (metric, _) = Material::speed_of(cell);
        let shares: Vec<Option<f64>> =
            floors.iter().map(|floor| material.samples.ratio(cell.name, floor, metric).0).collect();
        if shares.iter().any(Option::is_some) {
            let share = |share: &Option<f64>| {
                share.map_or("-".to_owned(), |share| format!("{:.1}%", share * 100.0))
            };
            let _ = writeln!(
                out,
                "| {} | {} |",
                cell.name,
                shares.iter().map(share).collect::<Vec<_>>().join(" | ")
            );
        }
    }
    out.push('\n');
}

fn latency(out: &mut String, material: &Material<'_>) {
    let timed = |cell: &&Cell| material.samples.metrics(cell.name).contains("p99_us");
    let _ = writeln!(out, "## Latency\n\nMicroseconds: mean / median / 99th percentile.\n");
    per_system(out, material, timed, &["mean_us", "p50_us", "p99_us"]);
}

fn cpu(out: &mut String, material: &Material<'_>) {
    let counted = |cell: &&Cell| material.samples.metrics(cell.name).contains("cpu_machine_us");
    let _ = writeln!(
        out,
        "## CPU\n\nMicroseconds for each operation (dd: each MB): whole machine / client / daemons / load generator.\n"
    );
    per_system(
        out,
        material,
        counted,
        &["cpu_machine_us", "cpu_client_us", "cpu_daemons_us", "cpu_load_us"],
    );
}

/// A table with these metrics of each system, one column for each.
fn per_system(
    out: &mut String,
    material: &Material<'_>,
    wanted: impl Fn(&&Cell) -> bool,
    metrics: &[&str],
) {
    let names = material.names();
    let _ = writeln!(out, "| cell | {} |\n|---|{}", names.join(" | "), "---|".repeat(names.len()));
    for cell in material.measured().iter().filter(wanted) {
        let _ = write!(out, "| {} |", cell.name);
        for name in &names {
            let values: Vec<String> = metrics
                .iter()
                .map(|metric| number(material.samples.median(cell.name, name, metric)))
                .collect();
            let _ = write!(out, " {} |", values.join(" / "));
        }
        out.push('\n');
    }
    out.push('\n');
}

fn memory(out: &mut String, material: &Material<'_>) {
    let samples: BTreeMap<&str, _> = material
        .samples
        .0
        .iter()
        .filter(|sample| !sample.processes_mib.is_empty())
        .map(|sample| (sample.system.as_str(), sample))
        .collect();
    if samples.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "## Memory\n\nResident, after all cells without faults.\n\n| system | process | MiB |\n|---|---|---|"
    );
    for (system, sample) in samples {
        for (process, mib) in &sample.processes_mib {
            let _ = writeln!(out, "| {system} | {process} | {mib:.1} |");
        }
        let total = sample.metrics.get("total_mib").copied();
        let _ = writeln!(out, "| {system} | **all** | **{}** |", number(total));
    }
    out.push('\n');
}

fn commands(out: &mut String, material: &Material<'_>) {
    let sizes = material.sizes;
    let line = |job: &FioJob, prefix: &'static str, mib: u64| {
        let files = Files { prefix, count: job.jobs, mib };
        format!("fio {}", fio::arguments(job, &["DIR".into()], files, sizes.seconds).join(" "))
    };
    let _ = writeln!(
        out,
        "## Commands\n\nDIR lies on the system under test; its files were written before by\n"
    );
    let files = Files { prefix: "f", count: 4, mib: sizes.file_mib };
    let _ = writeln!(out, "    fio {}\n", fio::prepare("DIR", files).join(" "));
    for cell in material.measured() {
        let command = match &cell.work {
            Work::Fio(job) | Work::Dead(job) => line(job, "f", sizes.file_mib),
            Work::Healing(job) => line(job, "h", sizes.heal_mib / u64::from(job.jobs)),
            Work::Clients(count) => {
                format!(
                    "{} (of {count} mounts, a job on each)",
                    line(&CLIENT_JOB, "c", sizes.client_file_mib)
                )
            }
            _ => continue,
        };
        let _ = writeln!(out, "* {}: `{command}`", cell.name);
    }
    out.push('\n');
}

fn number(value: Option<f64>) -> String {
    match value {
        None => "-".into(),
        Some(value) if value >= 100.0 => format!("{value:.0}"),
        Some(value) => format!("{}", rounded((value * 100.0).round() / 100.0)),
    }
}

fn times(ratio: Option<f64>) -> String {
    ratio.map_or("-".into(), |ratio| format!("{ratio:.2}x"))
}

/// How fast a run of a cell was, in words for the terminal.
pub fn speed_words(cell: &str, metrics: &super::sample::Metrics) -> String {
    let Some(cell) = CELLS.iter().find(|known| known.name == Cell::name_of(cell)) else {
        return String::new();
    };
    let (metric, unit) = Material::speed_of(cell);
    format!("{} {unit}", number(metrics.get(metric).copied()))
}

#[cfg(test)]
mod tests {
    use super::super::cells::{Set, choose};
    use super::super::sample::tests::sample;
    use super::*;

    fn origin() -> Origin {
        let unknown = || "unknown".to_owned();
        Origin {
            name: "test".into(),
            command: "cargo xtask compare".into(),
            commit: unknown(),
            machine: unknown(),
            disk: unknown(),
            fio: unknown(),
            load_before: 0.0,
            begun: unknown(),
        }
    }

    fn report(samples: &Samples) -> (String, String) {
        let cells = choose(Set::Full, &[]).unwrap();
        let systems = ["glusterfs", "ext4", TREFOIL]
            .map(|name| (name.to_owned(), vec!["as it is".to_owned()]));
        let material = Material {
            origin: &origin(),
            cells: &cells,
            sizes: &Set::Full.sizes(),
            systems: &systems,
            samples,
            end: Some((1.0, 60.0)),
        };
        (text(&material), summary(&material).unwrap())
    }

    #[test]
    fn a_report_has_medians_ratios_shares_and_verdicts() {
        let mut samples = Samples::default();
        for (system, value) in [("glusterfs", 5_000.0), ("ext4", 100_000.0), (TREFOIL, 26_000.0)] {
            samples.0.push(sample("randread-4k", system, 1, "ops_per_s", value));
        }
        let (text, summary) = report(&samples);
        assert!(text.contains("| 5000 | 100000 | 26000 | 5.20x | 0.26x |"), "{text}");
        assert!(
            text.contains("| randread-4k | - | 26.0% |")
                || text.contains("| randread-4k | 26.0% |"),
            "{text}"
        );
        assert!(
            text.contains("at least 5x | yes, of what was measured | at least 10x | **no** |"),
            "{text}"
        );
        assert!(!text.contains("## What failed"));
        let rows: Vec<serde_json::Value> = serde_json::from_str(&summary).unwrap();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0]["ratio"], 5.2);
    }

    #[test]
    fn a_failure_is_told_in_one_line() {
        let mut samples = Samples::default();
        let mut failed = sample("heal", "glusterfs", 2, "mb_per_s", 1.0);
        failed.metrics.clear();
        failed.error = Some("not clean\nafter 300 s | cut".into());
        samples.0.push(failed);
        let (text, _) = report(&samples);
        assert!(
            text.contains("| heal | glusterfs | 2 | not clean / after 300 s \\| cut |"),
            "{text}"
        );
    }
}
