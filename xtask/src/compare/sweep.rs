//! `cargo xtask sweep`: one setting at a time, each of its values beside the defaults, as in
//! studies of single parameters ("Ceph single parameter", `gluster-flash`): what a setting is worth
//! on this machine is measured, not looked up. [`report`] writes it down.

mod report;

use super::cells::{self, Cell, Set, Sizes};
use super::journal::Journal;
use super::load::Loads;
use super::matrix::Matrix;
use super::origin::Origin;
use super::sample::TREFOIL;
use super::system::{Setting, Slow, System, Variant};
use super::{Place, command_line, places, put, report_dir};
use crate::error::{Context, Outcome, ensure, fail};
use crate::exec::Interrupt;
use crate::testrun::Bench;
use std::path::PathBuf;
use std::time::Duration;

/// Values of a sweep, at most: all clusters run at once.
const VARIANTS_MAX: usize = 12;
/// Requests in flight, at most: what a mount asks the kernel for at once (its `MAX_BACKGROUND`).
const IN_FLIGHT_MAX: u32 = 128;
/// Milliseconds that a slowed OSD stands still at a time, at most: half of the grace after which it
/// counts as dead.
const SLOW_MS_MAX: u64 = 1_000;

/// What is changed, and what is measured.
#[derive(clap::Args, Clone, Debug)]
pub struct SweepArgs {
    /// KEY=VALUE[,VALUE...]: a key of `osd-daemon --help` with _ for -, or mount.OPTION of
    /// `fuse-client mount --help`; repeat it for more keys, of which one is changed at a time
    #[arg(long, required = true, value_name = "KEY=VALUES")]
    set: Vec<String>,
    /// KEY=VALUE that differs from the defaults in all of the clusters, that of the defaults too;
    /// repeat it for more
    #[arg(long, value_name = "KEY=VALUE")]
    with: Vec<String>,
    /// Requests in flight in all, such as 1,2,4,8,16,32,64: each cell, of random I/O only, is
    /// measured with each [default: those of the cell]
    #[arg(long, value_delimiter = ',', value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=i64::from(IN_FLIGHT_MAX)))]
    iodepth: Vec<u32>,
    /// Slows the second OSD of each cluster while it is measured: stopped (SIGSTOP) for so many
    /// milliseconds, running for a quarter of that, in turns
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=SLOW_MS_MAX))]
    slow_osd: Option<u64>,
    /// Cells, as of `compare --only`
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "CELL",
        default_value = "randread-4k,randwrite-4k"
    )]
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
        let with = Setting::parse_all(&args.with)?;
        let slow = args.slow_osd.map(|ms| Slow { stopped: Duration::from_millis(ms) });
        let mut variants = vec![Variant { changed: None, with: with.clone(), slow }];
        let mut keys = Vec::new();
        for set in &args.set {
            let Some((key, values)) = Setting::split(set) else {
                return fail(format!(
                    "--set {set}: not KEY=VALUE[,VALUE...], such as filestore_op_threads=1,16"
                ));
            };
            ensure!(
                with.iter().all(|fixed| fixed.key != key),
                "--set {set}: --with says what {key} is"
            );
            keys.push(key);
            let of_key = |value: &str| Variant {
                changed: Some(Setting { key: key.to_owned(), value: value.to_owned() }),
                with: with.clone(),
                slow,
            };
            variants.extend(values.split(',').map(of_key));
        }
        ensure!(
            variants.len() <= VARIANTS_MAX + 1,
            "{} values; at most {VARIANTS_MAX}",
            variants.len() - 1
        );
        let is_twice = |(at, variant): (usize, &Variant)| variants[..at].contains(variant);
        ensure!(!variants.iter().enumerate().any(is_twice), "--set names a value twice");
        let cells = with_in_flight(cells::choose(Set::Quick, &args.only)?, &args.iodepth)?;
        let is_loadable = |cell: &Cell| !matches!(cell.work, cells::Work::Tree(_));
        ensure!(
            cells.iter().all(is_loadable),
            "cells of a tree of files are measured by `compare` only"
        );
        let name = args
            .name
            .clone()
            .unwrap_or_else(|| format!("sweep-{}", keys.join("-").replace('.', "-")));
        let out = report_dir(args.out.as_deref(), &name)?;
        let defaults = args.size.sizes();
        let (runs, seconds) =
            (args.runs.unwrap_or(defaults.runs), args.seconds.unwrap_or(defaults.seconds));
        let sizes = Sizes { runs, seconds, ..defaults };
        Ok(Plan { name, variants, cells, sizes, out })
    }
}

/// Each cell with each number of requests in flight; the cells as they are if there is none.
fn with_in_flight(cells: Vec<Cell>, counts: &[u32]) -> Outcome<Vec<Cell>> {
    if counts.is_empty() {
        return Ok(cells);
    }
    let mut counts = counts.to_vec();
    counts.sort_unstable();
    counts.dedup();
    let mut all = Vec::new();
    for cell in cells {
        for count in &counts {
            let Some(cell) = cell.with_in_flight(*count) else {
                return fail(format!(
                    "--iodepth is for cells of random I/O without fsync, and {} is none",
                    cell.name
                ));
            };
            all.push(cell);
        }
    }
    Ok(all)
}

/// Starts a cluster for the defaults and for each value, measures all in turn, and writes the
/// report.
///
/// # Errors
/// When arguments make no sense, a cluster does not come up, or a cell failed; or on Ctrl-C.
pub fn run(args: &SweepArgs, interrupt: &Interrupt) -> Outcome {
    let plan = Plan::new(args)?;
    let bench = Bench::new(interrupt, false, crate::workspace::Profile::Release)?;
    let places = places(&bench);
    super::sweep(&places);
    let work = Place::create(&places)?;
    let origin = Origin::look(&plan.name, &command_line(), &work.0);
    let mut systems: Vec<Box<dyn System>> = Vec::new();
    for (number, variant) in plan.variants.iter().enumerate() {
        println!("setting up {}", variant.name());
        let system = variant.set_up(&work.0.join(number.to_string()), &bench);
        systems.push(system.doing(|| format!("cannot set up {}", variant.name()))?);
    }
    std::fs::create_dir_all(&plan.out).doing(|| format!("cannot make {}", plan.out.display()))?;
    put(
        &plan.out.join("run.json"),
        &serde_json::to_string_pretty(&origin).doing(|| "cannot encode the origin")?,
    )?;
    let loads = Loads { bench: &bench, sizes: plan.sizes, archive: None, locks: true };
    let mut matrix = Matrix { loads, systems, journal: Journal::create(&plan.out)? };
    let names: Vec<String> = plan.variants.iter().map(Variant::name).collect();
    let measured = matrix.run(&plan.cells, |_| Ok(()));
    let samples = &matrix.journal.samples;
    let rows = samples.rows(
        &names.iter().map(String::as_str).filter(|name| *name != TREFOIL).collect::<Vec<_>>(),
    );
    let lines: Vec<String> = rows
        .iter()
        .map(serde_json::to_string)
        .collect::<Result<_, _>>()
        .doing(|| "cannot encode the summary")?;
    put(&plan.out.join("summary.json"), &format!("[\n{}\n]\n", lines.join(",\n")))?;
    for (file, svg) in report::figures(&plan, samples) {
        put(&plan.out.join(file), &svg)?;
    }
    put(&plan.out.join("report.md"), &report::text(&plan, &origin, samples))?;
    println!("report: {}", plan.out.join("report.md").display());
    measured?;
    let failed = samples.failures().count();
    ensure!(failed == 0, "{failed} runs of cells failed; raw.jsonl says which and why");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(set: &[&str]) -> SweepArgs {
        SweepArgs {
            set: set.iter().map(|set| (*set).to_owned()).collect(),
            with: Vec::new(),
            iodepth: Vec::new(),
            slow_osd: None,
            only: vec!["randread-4k".into()],
            size: Set::Smoke,
            runs: None,
            seconds: None,
            name: None,
            out: Some("missing".into()),
        }
    }

    pub(super) fn plan(set: &[&str]) -> Outcome<Plan> {
        Plan::new(&args(set))
    }

    pub(super) fn plan_with_in_flight(set: &[&str], iodepth: &[u32]) -> Plan {
        Plan::new(&SweepArgs { iodepth: iodepth.to_vec(), ..args(set) }).unwrap()
    }

    #[test]
    fn each_cell_is_measured_with_each_number_in_flight() {
        let plan = plan_with_in_flight(&["a=1"], &[64, 1, 4, 4]);
        let titles: Vec<String> = plan.cells.iter().map(Cell::title).collect();
        assert_eq!(titles, ["randread-4k@1", "randread-4k@4", "randread-4k@64"]);
        let error = Plan::new(&SweepArgs {
            iodepth: vec![2],
            only: vec!["create".into()],
            ..args(&["a=1"])
        });
        assert!(error.err().unwrap().to_string().contains("random"));
    }

    #[test]
    fn what_all_have_is_not_changed_by_one() {
        let with =
            |text: &str| Plan::new(&SweepArgs { with: vec![text.to_owned()], ..args(&["a=1"]) });
        let plan = with("mount.b=2").unwrap();
        assert_eq!(plan.variants.iter().map(Variant::name).collect::<Vec<_>>(), ["trefoil", "a=1"]);
        assert!(plan.variants.iter().all(|variant| variant.with.len() == 1));
        for (text, words) in [("a=3", "--with says"), ("b", "KEY=VALUE")] {
            assert!(with(text).err().unwrap().to_string().contains(words), "{text}");
        }
    }

    #[test]
    fn each_value_is_a_variant_beside_the_defaults() {
        let plan = plan(&["filestore_op_threads=1,16", "mount.read_policy=fastest"]).unwrap();
        let names: Vec<String> = plan.variants.iter().map(Variant::name).collect();
        assert_eq!(
            names,
            [
                "trefoil",
                "filestore_op_threads=1",
                "filestore_op_threads=16",
                "mount.read_policy=fastest"
            ]
        );
        assert_eq!(plan.name, "sweep-filestore_op_threads-mount-read_policy");
    }

    #[test]
    fn what_makes_no_sense_is_refused_in_words() {
        for (set, words) in
            [("filestore_op_threads", "KEY=VALUE"), ("=1", "KEY=VALUE"), ("a=1,1", "twice")]
        {
            let error = plan(&[set]).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(words), "{set}: {error}");
        }
        let many: Vec<String> = (0..20).map(|n| n.to_string()).collect();
        assert!(plan(&[&format!("a={}", many.join(","))]).is_err());
    }
}
