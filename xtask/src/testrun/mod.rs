//! `cargo xtask test`: everything that must pass, ours and of others, ending in `N passed, N
//! failed`.
//!
//! * [`report`]: one line per test, the failures that are known, the summary.
//! * [`setup`]: programs that must be installed.
//! * [`workspace_checks`]: formatting, lints, cargo's tests.
//! * [`bench`]: the contention, overhead and consistency benches, for a few seconds.
//! * [`simulator`]: the write protocol under random faults.
//! * [`rig`]: a mounted cluster that is taken away whatever happens.
//! * [`posix`]: our own checks of a mount, each in a process of its own.
//! * [`programs`], [`sqlite`]: programs that we did not write.
//! * [`kills`]: processes killed under a writer that remembers what it was promised.
//! * [`sick`]: parts that are slow or half dead.
//! * [`bad_input`], [`bad_disk`], [`full_disk`]: what must be refused, repaired or borne, in words.
//! * [`two_mounts`]: two clients of one cluster, and what passes from one to the other.
//! * [`heal`]: what was missed is made up for, on a new disk too.
//! * [`sparse`]: huge files that store next to nothing.
//! * [`reexports`]: NFS-Ganesha and Samba on a mount.
//! * [`waits`]: programs that are killed while they wait.
//! * [`stranger`]: a mount that outlives its cluster.
//! * [`scrub`]: what scrubs find, repair, and leave to the operator.
//! * [`operator`]: the command `trefoil`.
//! * [`volume`]: disks of virtual machines, by NBD.
//! * [`compare`]: the command that measures others beside us, for a few seconds.
//! * [`fuzzing`]: decoders under inputs that coverage leads to.
//!
//! Contract: every external step has a deadline; no process and no mount is left, Ctrl-C included.

mod bad_disk;
mod bad_input;
mod bench;
mod compare;
mod full_disk;
mod fuzzing;
mod heal;
mod kills;
mod mds_power;
mod operator;
pub mod posix;
mod programs;
mod reexports;
mod report;
pub mod rig;
mod scrub;
pub mod setup;
mod sick;
mod simulator;
mod sparse;
mod sqlite;
mod stranger;
mod two_mounts;
mod volume;
mod waits;
mod workspace_checks;

use crate::cluster::layout::Spec;
use crate::cluster::{Cluster, layout};
use crate::crash;
use crate::error::{Context, Error, Outcome, fail};
use crate::exec::{self, Interrupt};
use crate::workspace::{self, Profile};
use report::Report;
use rig::Rig;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// What to test.
#[derive(clap::Args)]
pub struct TestArgs {
    /// Smaller sizes and fewer rounds
    #[arg(long)]
    quick: bool,
    /// Test the programs as the dev profile builds them: sooner there after a change, slower
    #[arg(long)]
    dev: bool,
    /// Only tests whose group contains this: fmt, clippy, cargo, examples, sim, bench, posix,
    /// pjdfstest, fsx, fio, sqlite, git, tar, clients, two-mounts, kill, sick, crash, input, disk,
    /// heal, scrub, sparse, stranger, waits, reexports, trefoil, volume, compare, fuzz; with a
    /// slash, also a part of the test's name: fio/randwrite. Several: kill,fio/randwrite
    filter: Option<String>,
}

/// What every group needs.
pub struct Bench {
    /// Ctrl-C.
    pub interrupt: Interrupt,
    quick: bool,
    /// Directory of our binaries.
    pub binaries: PathBuf,
    /// Directory of pjdfstest and fsx.
    tools: PathBuf,
    /// Scratch space on a real disk.
    pub work: PathBuf,
    /// This program.
    xtask: PathBuf,
    /// See [`Bench::ports`].
    port_blocks: AtomicU16,
}

/// Ports that one cluster draws from.
const PORT_BLOCK: u16 = 400;

impl Bench {
    /// Installs what is missing of other programs, and builds ours.
    ///
    /// # Errors
    /// When either does not succeed.
    pub fn new(interrupt: &Interrupt, quick: bool, profile: Profile) -> Outcome<Bench> {
        let target = workspace::target_dir(interrupt)?;
        setup::packages(interrupt)?;
        Ok(Bench {
            interrupt: interrupt.clone(),
            quick,
            binaries: workspace::build(profile, interrupt)?,
            tools: target.join("tools/bin"),
            work: target.join("test-work"),
            // Not its path: building the tests may put another file there while this one runs.
            xtask: "/proc/self/exe".into(),
            port_blocks: AtomicU16::new(0),
        })
    }

    /// Ports that no other cluster of this run draws from (but the fiftieth after it): it might
    /// take that of a daemon which was killed, to be started again.
    pub fn ports(&self) -> Range<u16> {
        let blocks = (layout::PORTS.end - layout::PORTS.start) / PORT_BLOCK;
        let first = layout::PORTS.start
            + self.port_blocks.fetch_add(1, Ordering::Relaxed) % blocks * PORT_BLOCK;
        first..first + PORT_BLOCK
    }

    /// `large`, or `small` in a quick run.
    fn size<T>(&self, large: T, small: T) -> T {
        if self.quick { small } else { large }
    }

    /// Runs a program of a test to its end; a non-zero exit status is an error.
    ///
    /// # Errors
    /// When it fails or does not end in time.
    pub fn run(&self, command: &mut Command, seconds: u64) -> Outcome<exec::Run> {
        exec::run_ok(command, Duration::from_secs(seconds), &self.interrupt)
    }

    /// A command of this program.
    pub fn xtask(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.xtask);
        command.args(args);
        command
    }

    /// A shell line, run in a directory; traced, so that a failure shows which part failed.
    ///
    /// # Errors
    /// When it fails or does not end in time.
    pub fn shell(&self, dir: &Path, line: &str, seconds: u64) -> Outcome<exec::Run> {
        self.run(Command::new("bash").args(["-exc", line]).current_dir(dir), seconds)
    }
}

/// Groups that use the common mounted cluster.
const MOUNTED: [&str; 8] = ["posix", "pjdfstest", "fsx", "fio", "sqlite", "git", "tar", "clients"];
/// Those that run once more on a mount that answers writes and closes before they are acknowledged.
const BEHIND: [&str; 5] = ["posix", "pjdfstest", "fsx", "fio", "clients"];
/// The options of such a mount.
pub const ANSWERS_EARLY: &str = "write_behind_bytes=4194304,flush_behind=true";
/// Groups that start clusters of their own.
const OWN: [&str; 15] = [
    "trefoil",
    "two-mounts",
    "input",
    "disk",
    "heal",
    "scrub",
    "sparse",
    "stranger",
    "reexports",
    "waits",
    "volume",
    "kill",
    "sick",
    "crash",
    "compare",
];

/// Runs the tests.
///
/// # Errors
/// When one fails that is not known to, or one passes that is known to fail, or on Ctrl-C.
pub fn run(args: &TestArgs, interrupt: &Interrupt) -> Outcome {
    let begin = Instant::now();
    let known = workspace::root().join("xtask/known-failures.toml");
    let mut report = Report::new(args.filter.clone(), &known)?;
    let outcome = run_groups(args, &mut report, interrupt);
    // Only if it is empty, as it is when nothing is mounted.
    let _ = std::fs::remove_dir(rig::mount_points());
    if let Err(Error::Failed(message)) = outcome {
        report.record("xtask", "run", fail(message), begin.elapsed());
    } else {
        outcome?;
    }
    println!("\nin {} s", begin.elapsed().as_secs());
    report.finish()
}

fn run_groups(args: &TestArgs, report: &mut Report, interrupt: &Interrupt) -> Outcome {
    let needs_system = MOUNTED.iter().chain(&OWN).any(|g| report.wants(g));
    workspace_checks::run(report, interrupt)?;
    if report.wants("fuzz") {
        setup::packages(interrupt)?;
        fuzzing::run(if args.quick { 10 } else { 25 }, report, interrupt)?;
    }
    if report.wants("bench") {
        bench::run(report, interrupt)?;
    }
    if report.wants("sim") {
        simulator::run(report, interrupt)?;
    }
    if !needs_system {
        return Ok(());
    }
    if report.wants("pjdfstest") || report.wants("fsx") {
        setup::crates(&workspace::target_dir(interrupt)?.join("tools"), interrupt)?;
    }
    let profile = if args.dev { Profile::Dev } else { Profile::Release };
    let bench = Bench::new(interrupt, args.quick, profile)?;
    sweep(&bench.work)?;
    if report.wants("trefoil") {
        operator::run(&bench, report)?;
    }
    if MOUNTED.iter().any(|g| report.wants(g)) {
        mounted(&bench, report)?;
    }
    if BEHIND.iter().any(|g| report.wants(g)) {
        mounted_behind(&bench, report)?;
    }
    let lists: [&[OwnCluster]; 6] = [
        &[("kill", kills::separate), ("disk", bad_disk::run), ("reexports", reexports::run)],
        &[("kill", kills::write_behind), ("disk", full_disk::run), ("stranger", stranger::run)],
        &[("kill", kills::with_client), ("two-mounts", two_mounts::run)],
        &[
            ("kill", kills::together),
            ("kill", mds_power::run),
            ("heal", heal::run),
            ("input", bad_input::run),
        ],
        &[
            ("scrub", scrub::run),
            ("two-mounts", two_mounts::behind),
            ("sparse", sparse::run),
            ("waits", waits::run),
        ],
        &[("volume", volume::run)],
    ];
    side_by_side(&bench, report, &lists)?;
    report.goes_on();
    if report.wants("sick") {
        sick::run(&bench, report)?;
    }
    if report.wants("crash") {
        let name = "faults at random for half a minute: everything promised is there, every object decodes from every pair";
        report.case("crash", name, || crash::short(&bench))?;
    }
    if report.wants("compare") {
        compare::run(&bench, report)?;
    }
    Ok(())
}

/// Tests on a cluster of their own, with their group.
type OwnCluster = (&'static str, fn(&Bench, &mut Report) -> Outcome);

/// Runs those that are wanted, each list one after the other and the lists at once: most of the
/// time such tests wait for what they have killed, cut or damaged.
fn side_by_side(bench: &Bench, report: &Report, lists: &[&[OwnCluster]]) -> Outcome {
    let run = |list: &[OwnCluster], mut report: Report| {
        for (group, test) in list {
            if report.wants(group) {
                test(bench, &mut report)?;
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let running: Vec<_> =
            lists.iter().map(|list| scope.spawn(move || run(list, report.clone()))).collect();
        running
            .into_iter()
            .try_for_each(|list| list.join().expect("a test that fails says so by its outcome"))
    })
}

/// Programs on a healthy mount, then with one storage daemon dead, then what they left once it has
/// returned.
fn mounted(bench: &Bench, report: &mut Report) -> Outcome {
    let Some(rig) = Rig::start("mounted", bench, report, |spec| spec)? else { return Ok(()) };
    let cluster = &rig.cluster;
    report.phase("healthy");
    if report.wants("posix") {
        posix::run(bench, &rig, report)?;
    }
    programs_in(bench, &rig, "healthy", report)?;
    report.phase("osd-1 dead");
    report.case("kill", "osd-1 is killed and the mount goes on", || {
        cluster.kill("osd-1")?;
        bench
            .shell(rig.mount(), "echo on > after-kill; sync after-kill; cat after-kill", 15)
            .map(drop)
    })?;
    programs_in(bench, &rig, "degraded", report)?;
    report.phase("osd-1 back");
    report.case("kill", "osd-1 returns and the cluster becomes clean", || {
        cluster.start("osd-1", &bench.interrupt)?;
        cluster.wait_clean(Duration::from_secs(150), &bench.interrupt, |_| {})
    })?;
    report.phase("osd-0 dead");
    if report.wants("tar") {
        report.case(
            "tar",
            "what was written without osd-1 is read with its rebuilt fragments",
            || {
                cluster.kill("osd-0")?;
                programs::compare_trees(bench, &rig)
            },
        )?;
        report.case("tar", "osd-0 returns and the cluster becomes clean", || {
            cluster.start("osd-0", &bench.interrupt)?;
            cluster.wait_clean(Duration::from_secs(150), &bench.interrupt, |_| {})
        })?;
    }
    report.phase("");
    rig.finish(bench, report)
}

/// What no program may notice of writes that are answered early.
fn mounted_behind(bench: &Bench, report: &mut Report) -> Outcome {
    let change = |spec| Spec { mount_options: ANSWERS_EARLY.into(), ..spec };
    let Some(rig) = Rig::start("write-behind", bench, report, change)? else { return Ok(()) };
    report.phase("write-behind");
    if report.wants("posix") {
        posix::run_data(bench, &rig, report)?;
    }
    if report.wants("pjdfstest") {
        programs::pjdfstest(bench, &rig, "behind", report)?;
    }
    if report.wants("fsx") {
        programs::fsx(bench, &rig, "behind", report)?;
    }
    if report.wants("fio") {
        programs::fio(bench, &rig, "behind", report)?;
    }
    if report.wants("clients") {
        kills::two_clients(bench, &rig, "behind", report)?;
    }
    report.phase("");
    rig.finish(bench, report)
}

fn programs_in(bench: &Bench, rig: &Rig, area: &str, report: &mut Report) -> Outcome {
    if report.wants("pjdfstest") {
        programs::pjdfstest(bench, rig, area, report)?;
    }
    if report.wants("fsx") {
        programs::fsx(bench, rig, area, report)?;
    }
    if report.wants("fio") {
        programs::fio(bench, rig, area, report)?;
    }
    if report.wants("sqlite") {
        sqlite::run(bench, rig, area, report)?;
    }
    if report.wants("git") {
        programs::git(bench, rig, area, report)?;
    }
    if report.wants("tar") {
        programs::tar(bench, rig, area, report)?;
    }
    if report.wants("clients") {
        kills::two_clients(bench, rig, area, report)?;
    }
    Ok(())
}

/// Takes away what an earlier run that was killed has left.
fn sweep(work: &Path) -> Outcome {
    if let Ok(entries) = std::fs::read_dir(work) {
        for entry in entries.flatten() {
            let dir = entry.path();
            if let Ok(Some(_)) = layout::Layout::load(&dir.join("cluster")) {
                let _ = Cluster::open(&dir.join("cluster")).map(|c| c.kill_all());
            }
            crate::mounts::clear(&dir);
            std::fs::remove_dir_all(&dir).doing(|| format!("cannot remove {}", dir.display()))?;
        }
    }
    std::fs::create_dir_all(work).doing(|| format!("cannot make {}", work.display()))
}

/// A specification in a scratch directory.
fn spec_in(dir: &Path) -> Spec {
    Spec::new(&dir.join("cluster"))
}
