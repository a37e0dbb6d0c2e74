//! `cargo xtask compare`: Trefoil beside other systems on the same machine in the same minutes,
//! with ratios.
//!
//! * [`cells`]: what is measured. [`targets`]: what is to be reached.
//! * [`system`]: the systems, each set up and taken away. * [`matrix`]: the cells on all of them in
//!   turn.
//! * [`load`], [`fio`], [`names`]: the loads. [`cpu`]: who used the CPU. * [`sample`], [`report`]:
//!   medians, ratios, tables.
//! * [`sweep`]: `cargo xtask sweep`, Trefoil beside itself with other settings. [`locks`]: which
//!   locks were waited for.
//! * [`journal`]: what was measured, on the disk at once. [`origin`]: machine, versions, commit.
//!
//! Contract: everything is below one directory of this process, and is gone at the end, after
//! errors and Ctrl-C too; what a killed run has left, the next one takes away, on another disk the
//! next one there. What was measured stays in any case, and no number is asserted.

mod cells;
mod cpu;
mod fio;
mod journal;
mod load;
mod locks;
mod matrix;
mod names;
mod origin;
mod report;
mod sample;
mod sweep;
mod system;
mod targets;

pub use names::{LoadArgs, load};
pub use sweep::{SweepArgs, run as run_sweep};

use crate::error::{Context, Outcome, ensure};
use crate::exec::Interrupt;
use crate::mounts;
use crate::netns;
use crate::testrun::Bench;
use crate::tree::{self, Tree};
use crate::workspace;
use cells::{Cell, Set, Sizes, Work};
use journal::Journal;
use load::Loads;
use matrix::Matrix;
use origin::Origin;
pub use origin::free_dir;
use report::Material;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use system::{Peer, Setting, System, Variant};

/// Name of the directory that the places of all processes stand in.
const PLACES: &str = "compare-work";
/// Bytes of the tree that is unpacked, at most.
const TREE_BYTES_MAX: u64 = 128 << 20;

/// With whom, what, how often.
#[derive(clap::Args, Clone, Debug)]
pub struct CompareArgs {
    /// Systems to compare with, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_value = "glusterfs")]
    peer: Vec<Peer>,
    /// Which cells
    #[arg(long, value_enum, default_value = "quick")]
    cells: Set,
    /// KEY=VALUE that differs from Trefoil's defaults: a key of `osd-daemon --help` with _ for -,
    /// or mount.OPTION of `fuse-client mount --help`; repeat it for more
    #[arg(long, value_name = "KEY=VALUE")]
    with: Vec<String>,
    /// Only these cells, of all that there are, separated by commas; sizes are those of --cells
    #[arg(long, value_delimiter = ',', value_name = "CELL")]
    only: Vec<String>,
    /// Runs of each cell on each system [default: 3, smoke 1]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: Option<u32>,
    /// Seconds that fio runs for each cell [default: full 10, quick 4, smoke 1]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: Option<u64>,
    /// Name of the run [default: compare-SET]
    #[arg(long)]
    name: Option<String>,
    /// Directory of the report, empty or missing [default: benches/runs/DATE-NAME]
    #[arg(long)]
    out: Option<PathBuf>,
    /// A directory on the disk that all systems are to keep their data on [default: the disk of the
    /// checkout]
    #[arg(long, value_name = "DIR")]
    disk: Option<PathBuf>,
}

/// What is to be done, checked.
struct Plan {
    name: String,
    peers: Vec<Peer>,
    with: Vec<Setting>,
    cells: Vec<Cell>,
    sizes: Sizes,
    out: PathBuf,
    disk: Option<PathBuf>,
}

/// Sets everything up, measures, and writes the report.
///
/// # Errors
/// When arguments make no sense, a system cannot be set up, or a cell failed; or on Ctrl-C. The
/// report has what was measured before.
pub fn run(args: &CompareArgs, interrupt: &Interrupt) -> Outcome {
    let plan = Plan::new(args)?;
    let bench = Bench::new(interrupt, false, crate::workspace::Profile::Release)?;
    sweep(&places(&bench));
    let places = plan.disk.as_ref().map_or_else(|| places(&bench), |disk| places_on(disk));
    sweep(&places);
    let work = Place::create(&places)?;
    let begin = Instant::now();
    let origin = Origin::look(&plan.name, &command_line(), &work.0);
    let systems = plan.set_up(&work.0, &bench)?;
    std::fs::create_dir_all(&plan.out).doing(|| format!("cannot make {}", plan.out.display()))?;
    put(
        &plan.out.join("run.json"),
        &serde_json::to_string_pretty(&origin).doing(|| "cannot encode the origin")?,
    )?;
    let described: Vec<_> =
        systems.iter().map(|system| (system.name().to_owned(), system.describe())).collect();
    let archive = plan.pack(&work.0, &bench)?;
    let loads = Loads { bench: &bench, sizes: plan.sizes, archive, locks: false };
    let mut matrix = Matrix { loads, systems, journal: Journal::create(&plan.out)? };
    let publish = |journal: &Journal, end: Option<(f64, f64)>| {
        let (cells, sizes, samples) = (&plan.cells, &plan.sizes, &journal.samples);
        write(
            &plan.out,
            &Material { origin: &origin, cells, sizes, systems: &described, samples, end },
        )
    };
    let measured = matrix.run(&plan.cells, |journal| publish(journal, None));
    let over = measured.is_ok().then(|| (origin::load_average(), begin.elapsed().as_secs_f64()));
    publish(&matrix.journal, over)?;
    println!("report: {}", plan.out.join("report.md").display());
    measured?;
    let failed = matrix.journal.samples.failures().count();
    ensure!(failed == 0, "{failed} runs of cells failed; the report says which and why");
    Ok(())
}

impl Plan {
    fn new(args: &CompareArgs) -> Outcome<Plan> {
        let cells = cells::choose(args.cells, &args.only)?;
        let mut peers: Vec<Peer> = Vec::new();
        for peer in &args.peer {
            ensure!(!peers.contains(peer), "--peer names {} twice", peer.name());
            peers.push(*peer);
        }
        let with = Setting::parse_all(&args.with)?;
        let defaults = args.cells.sizes();
        let (runs, seconds) =
            (args.runs.unwrap_or(defaults.runs), args.seconds.unwrap_or(defaults.seconds));
        let name = args.name.clone().unwrap_or_else(|| format!("compare-{}", args.cells.name()));
        let out = report_dir(args.out.as_deref(), &name)?;
        let disk = args.disk.as_deref().map(disk_dir).transpose()?;
        Ok(Plan { name, peers, with, cells, sizes: Sizes { runs, seconds, ..defaults }, out, disk })
    }

    /// The peers, then Trefoil.
    fn set_up(&self, work: &Path, bench: &Bench) -> Outcome<Vec<Box<dyn System>>> {
        let mut systems = Vec::new();
        for peer in &self.peers {
            println!("setting up {}", peer.name());
            let system = peer.set_up(&work.join(peer.name()), &self.with, bench);
            systems.push(system.doing(|| format!("cannot set up {}", peer.name()))?);
        }
        println!("setting up {}", sample::TREFOIL);
        let ours = Variant { with: self.with.clone(), ..Variant::default() };
        systems.push(ours.set_up(&work.join(sample::TREFOIL), bench)?);
        Ok(systems)
    }

    /// An archive of a real tree, if a cell wants one, and the number of its entries.
    fn pack(&self, work: &Path, bench: &Bench) -> Outcome<Option<(PathBuf, u64)>> {
        if !self.cells.iter().any(|cell| matches!(cell.work, Work::Tree(_))) {
            return Ok(None);
        }
        let tree =
            Tree::list(&tree::real(&bench.interrupt)?, self.sizes.tree_files, TREE_BYTES_MAX)?;
        let (copy, archive) = (work.join("tree"), work.join("tree.tar"));
        tree.copy(&copy, || bench.interrupt.check())?;
        bench
            .run(Command::new("tar").arg("-C").arg(&copy).arg("-cf").arg(&archive).arg("."), 300)?;
        Ok(Some((archive, tree.paths.len() as u64)))
    }
}

/// The directory of this process; removed when it is dropped, after everything that stands in it.
struct Place(PathBuf);

impl Place {
    fn create(base: &Path) -> Outcome<Place> {
        let dir = base.join(std::process::id().to_string());
        // Another process that leaves may take `base` away in between.
        let made = std::fs::create_dir_all(&dir).or_else(|_| std::fs::create_dir_all(&dir));
        made.doing(|| format!("cannot make {}", dir.display()))?;
        Ok(Place(dir))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        remove(&self.0);
        // It stays while another process has a place there.
        let _ = self.0.parent().map(std::fs::remove_dir);
    }
}

/// Where the directories of all processes stand, unless another disk is given.
pub fn places(bench: &Bench) -> PathBuf {
    bench.work.with_file_name(PLACES)
}

/// Where they stand on a disk that is given.
pub fn places_on(disk: &Path) -> PathBuf {
    disk.join(PLACES)
}

/// Takes away what runs that were killed have left in `places`, and all network namespaces that
/// nobody uses.
pub fn sweep(places: &Path) {
    netns::sweep();
    for entry in std::fs::read_dir(places).into_iter().flatten().flatten() {
        let owner = entry.file_name().to_string_lossy().parse::<u32>();
        if owner.is_ok_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            system::sweep(&entry.path());
            remove(&entry.path());
        }
    }
}

/// Never anything behind a mount.
fn remove(dir: &Path) {
    mounts::clear(dir);
    if mounts::below(dir).is_empty() {
        let _ = std::fs::remove_dir_all(dir);
    } else {
        eprintln!("warning: {} is still mounted on, and stays", dir.display());
    }
}

fn write(out: &Path, material: &Material<'_>) -> Outcome {
    put(
        &out.join("summary.json"),
        &report::summary(material).doing(|| "cannot encode the summary")?,
    )?;
    put(&out.join("report.md"), &report::text(material))
}

fn put(path: &Path, text: &str) -> Outcome {
    std::fs::write(path, text).doing(|| format!("cannot write {}", path.display()))
}

/// The directory of a run's report: the one that was given, which must be empty, or a new one below
/// `benches/runs`.
fn report_dir(given: Option<&Path>, name: &str) -> Outcome<PathBuf> {
    let free = || free_dir(&workspace::root().join("benches/runs"), name);
    let out = given.map_or_else(free, Path::to_path_buf);
    let is_empty = std::fs::read_dir(&out).map_or(true, |mut entries| entries.next().is_none());
    ensure!(is_empty, "--out {}: the directory is not empty", out.display());
    Ok(out)
}

/// A directory that was given for data, by its full name.
fn disk_dir(given: &Path) -> Outcome<PathBuf> {
    let full = given.canonicalize().doing(|| format!("--disk {}", given.display()))?;
    ensure!(full.is_dir(), "--disk {}: not a directory", given.display());
    Ok(full)
}

fn command_line() -> String {
    std::iter::once("cargo xtask".to_owned())
        .chain(std::env::args().skip(1))
        .collect::<Vec<_>>()
        .join(" ")
}
