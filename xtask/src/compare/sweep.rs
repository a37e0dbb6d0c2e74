//! `cargo xtask sweep`: one setting at a time, each of its values beside the defaults, as in studies of single parameters ("Ceph
//! single parameter", `gluster-flash`): what a setting is worth on this machine is measured, not looked up.

use super::cells::{self, Cell, Set, Sizes};
use super::journal::Journal;
use super::load::Loads;
use super::matrix::Matrix;
use super::origin::Origin;
use super::sample::{Samples, TREFOIL, rounded};
use super::system::{System, Variant};
use super::{Place, command_line, places, put, report_dir};
use crate::error::{Context, Outcome, ensure, fail};
use crate::exec::Interrupt;
use crate::testrun::Bench;
use std::fmt::Write;
use std::path::PathBuf;

/// Values of a sweep, at most: all clusters run at once.
const VARIANTS_MAX: usize = 12;

/// What is changed, and what is measured.
#[derive(clap::Args, Clone, Debug)]
pub struct SweepArgs {
    /// KEY=VALUE[,VALUE...]: a key of `osd-daemon --help` with _ for -, or mount.OPTION of `fuse-client mount --help`;
    /// repeat it for more keys, of which one is changed at a time
    #[arg(long, required = true, value_name = "KEY=VALUES")]
    set: Vec<String>,
    /// Cells, as of `compare --only`
    #[arg(long, value_delimiter = ',', value_name = "CELL", default_value = "randread-4k,randwrite-4k")]
    only: Vec<String>,
    /// How large things are done
    #[arg(long, value_enum, default_value = "quick")]
    size: Set,
    /// Runs of each cell with each value [default: 3, smoke 1]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: Option<u32>,
    /// Seconds that fio runs for each cell [default: full 10, quick 4, smoke 1]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: Option<u64>,
    /// Name of the run [default: sweep-KEYS]
    #[arg(long)]
    name: Option<String>,
    /// Directory of the report, empty or missing [default: benches/runs/DATE-NAME]
    #[arg(long)]
    out: Option<PathBuf>,
}

/// What is to be done, checked.
struct Plan {
    name: String,
    variants: Vec<Variant>,
    cells: Vec<Cell>,
    sizes: Sizes,
    out: PathBuf,
}

impl Plan {
    fn new(args: &SweepArgs) -> Outcome<Plan> {
        let mut variants = vec![Variant::default()];
        let mut keys = Vec::new();
        for set in &args.set {
            let Some((key, values)) = set.split_once('=').filter(|(key, values)| !key.is_empty() && !values.is_empty())
            else {
                return fail(format!("--set {set}: not KEY=VALUE[,VALUE...], such as osd_disk_threads=1,16"));
            };
            keys.push(key);
            let of_key = |value: &str| Variant { key: key.to_owned(), value: value.to_owned() };
            variants.extend(values.split(',').map(of_key));
        }
        ensure!(variants.len() <= VARIANTS_MAX + 1, "{} values; at most {VARIANTS_MAX}", variants.len() - 1);
        let is_twice = |(at, variant): (usize, &Variant)| variants[..at].contains(variant);
        ensure!(!variants.iter().enumerate().any(is_twice), "--set names a value twice");
        let cells = cells::choose(Set::Quick, &args.only)?;
        let is_loadable = |cell: &Cell| !matches!(cell.work, cells::Work::Tree(_));
        ensure!(cells.iter().all(is_loadable), "cells of a tree of files are measured by `compare` only");
        let name = args.name.clone().unwrap_or_else(|| format!("sweep-{}", keys.join("-").replace('.', "-")));
        let out = report_dir(args.out.as_deref(), &name)?;
        let defaults = args.size.sizes();
        let (runs, seconds) = (args.runs.unwrap_or(defaults.runs), args.seconds.unwrap_or(defaults.seconds));
        let sizes = Sizes { runs, seconds, ..defaults };
        Ok(Plan { name, variants, cells, sizes, out })
    }
}

/// Starts a cluster for the defaults and for each value, measures all in turn, and writes the report.
///
/// # Errors
/// When arguments make no sense, a cluster does not come up, or a cell failed; or on Ctrl-C.
pub fn run(args: &SweepArgs, interrupt: &Interrupt) -> Outcome {
    let plan = Plan::new(args)?;
    let bench = Bench::new(interrupt, false)?;
    super::sweep(&bench);
    let work = Place::create(&places(&bench))?;
    let origin = Origin::look(&plan.name, &command_line(), &work.0);
    let mut systems: Vec<Box<dyn System>> = Vec::new();
    for (number, variant) in plan.variants.iter().enumerate() {
        println!("setting up {}", variant.name());
        let system = variant.set_up(&work.0.join(number.to_string()), &bench);
        systems.push(system.doing(|| format!("cannot set up {}", variant.name()))?);
    }
    std::fs::create_dir_all(&plan.out).doing(|| format!("cannot make {}", plan.out.display()))?;
    put(&plan.out.join("run.json"), &serde_json::to_string_pretty(&origin).doing(|| "cannot encode the origin")?)?;
    let loads = Loads { bench: &bench, sizes: plan.sizes, archive: None };
    let mut matrix = Matrix { loads, systems, journal: Journal::create(&plan.out)? };
    let names: Vec<String> = plan.variants.iter().map(Variant::name).collect();
    let measured = matrix.run(&plan.cells, |_| Ok(()));
    let samples = &matrix.journal.samples;
    let rows = samples.rows(&names.iter().map(String::as_str).filter(|name| *name != TREFOIL).collect::<Vec<_>>());
    let lines: Vec<String> =
        rows.iter().map(serde_json::to_string).collect::<Result<_, _>>().doing(|| "cannot encode the summary")?;
    put(&plan.out.join("summary.json"), &format!("[\n{}\n]\n", lines.join(",\n")))?;
    put(&plan.out.join("report.md"), &text(&plan, &origin, samples))?;
    println!("report: {}", plan.out.join("report.md").display());
    measured?;
    let failed = samples.failures().count();
    ensure!(failed == 0, "{failed} runs of cells failed; raw.jsonl says which and why");
    Ok(())
}

/// `report.md`.
fn text(plan: &Plan, origin: &Origin, samples: &Samples) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "# One setting at a time: {}\n", origin.name);
    let _ = writeln!(out, "* Command: `{}`", origin.command);
    let _ = writeln!(out, "* Commit: {}; begun {} UTC", origin.commit, origin.begun);
    let _ = writeln!(out, "* Machine: {}; data on {}", origin.machine, origin.disk);
    let _ = writeln!(
        out,
        "* A 2+1 cluster of processes and a mount for each value and for the defaults (`{TREFOIL}`), all at once; each cell on all of them in \
         turn, {} runs; {}, {} s, files of {} MiB for each job.",
        plan.sizes.runs, origin.fio, plan.sizes.seconds, plan.sizes.file_mib
    );
    for cell in &plan.cells {
        let _ = writeln!(out, "\n## {}\n\n{}.\n", cell.name, cell.about());
        let _ = writeln!(
            out,
            "| setting | median | of the defaults | p99 latency, us | CPU us per operation | of the defaults |"
        );
        let _ = writeln!(out, "|---|---|---|---|---|---|");
        for variant in &plan.variants {
            let name = variant.name();
            let median = |metric: &str| shown(samples.median(cell.name, &name, metric));
            // Of the defaults' value to this one's in each run: turned round, for what is asked is the setting's worth.
            let ratio = |metric: &str| match samples.ratio(cell.name, &name, metric).0 {
                Some(ratio) if ratio > 0.0 => format!("{:.2}x", 1.0 / ratio),
                _ => "-".to_owned(),
            };
            let speed = if samples.metrics(cell.name).contains("ops_per_s") { "ops_per_s" } else { "mb_per_s" };
            let _ = writeln!(
                out,
                "| `{name}` | {} | {} | {} | {} | {} |",
                median(speed),
                ratio(speed),
                median("p99_us"),
                median("cpu_machine_us"),
                ratio("cpu_machine_us")
            );
        }
    }
    out.push_str(NOT_SHOWN);
    out
}

fn shown(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| rounded(value).to_string())
}

const NOT_SHOWN: &str = "
`raw.jsonl`: one line per run of a cell. `summary.json`: one row per cell, metric and value, with the defaults as `trefoil`.

## What this does not show

* One setting differs from the defaults at a time: what two of them do together is not measured.
* Clients, daemons and load share the cores of one machine and its loopback. A setting that spreads work over more cores than there are
  can only cost here.
* Medians of a few runs: differences of some per cent are noise.
";

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(set: &[&str]) -> Outcome<Plan> {
        let set = set.iter().map(|set| (*set).to_owned()).collect();
        let only = vec!["randread-4k".into()];
        let out = Some("missing".into());
        Plan::new(&SweepArgs { set, only, size: Set::Smoke, runs: None, seconds: None, name: None, out })
    }

    #[test]
    fn each_value_is_a_variant_beside_the_defaults() {
        let plan = plan(&["osd_disk_threads=1,16", "mount.read_policy=fastest"]).unwrap();
        let names: Vec<String> = plan.variants.iter().map(Variant::name).collect();
        assert_eq!(names, ["trefoil", "osd_disk_threads=1", "osd_disk_threads=16", "mount.read_policy=fastest"]);
        assert_eq!(plan.name, "sweep-osd_disk_threads-mount-read_policy");
    }

    #[test]
    fn what_makes_no_sense_is_refused_in_words() {
        for (set, words) in [("osd_disk_threads", "KEY=VALUE"), ("=1", "KEY=VALUE"), ("a=1,1", "twice")] {
            let error = plan(&[set]).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(words), "{set}: {error}");
        }
        let many: Vec<String> = (0..20).map(|n| n.to_string()).collect();
        assert!(plan(&[&format!("a={}", many.join(","))]).is_err());
    }
}
