//! `cargo xtask crash`: separate processes on real disks, under writers that remember what they
//! were promised, with faults at random; after each round everything promised must be there, and
//! everything must be whole.
//!
//! * [`load`]: the writers. [`faults`]: what is done to the processes, their network and their
//!   disks.
//! * [`damage`]: bytes flipped on a disk, a disk replaced. [`decode`]: every object from every k of
//!   its shards, offline.
//! * [`gluster`]: the same writers on a volume of GlusterFS. * [`counts`]: what a run did, and how
//!   little of it shows nothing.
//!
//! Contract: a round is load under faults; then no faults, a clean cluster, empty journals, a clean
//! stop, the decoding of every object, a start, the check of every promise, and a deep scrub that
//! finds nothing. At most as many shards are damaged at a time as the code can lose. The seed
//! decides which faults, on whom and for how long; what the processes do meanwhile is up to the
//! machine. A run that did too little fails.

mod counts;
mod damage;
mod decode;
mod faults;
mod gluster;
mod load;

use crate::cluster::layout::Spec;
use crate::cluster::{Cluster, Guest};
use crate::error::{Context, Outcome, ensure};
use crate::exec::Interrupt;
use crate::netns;
use crate::testrun::{ANSWERS_EARLY, Bench};
use counts::Counts;
pub use decode::Decoded;
use faults::{Deck, Strike};
use load::Load;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A cluster without faults is clean within this time.
const CLEAN_MAX: Duration = Duration::from_secs(150);
/// A cluster without load and faults has trimmed every record within this time.
const TRIMMED_MAX: Duration = Duration::from_secs(60);
/// Journals count as empty when reports say so for so long: heartbeats bring those twice a second.
const TRIMMED_FOR: Duration = Duration::from_millis(1_500);
/// Rounds in turn replace a disk and flip bytes.
const ROUNDS_MIN: u64 = 2;
/// A deep scrub of all objects takes at most so long.
const SCRUB_SECONDS: u64 = 150;
/// Faults of one round, one after the other, some in pairs.
const STRIKES: u32 = 5;
/// The client waits so long for daemons before it gives an error: longer than any fault and the
/// return from it.
const MOUNT_OPTIONS: &str = "timeout=100";

/// How long, how to repeat, where.
#[derive(clap::Args, Clone, Debug)]
pub struct CrashArgs {
    /// No new round begins after this long
    #[arg(long, default_value_t = 120)]
    seconds: u64,
    /// Of the faults; drawn if it is not given
    #[arg(long)]
    seed: Option<u64>,
    /// An empty or missing directory on the disk to be used [default: one in cargo's target
    /// directory]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Keeps the directory also after a success
    #[arg(long)]
    keep: bool,
    /// Mounts answer writes and closes before the shards have acknowledged them; promised is then
    /// what was fsynced
    #[arg(long, conflicts_with = "peer")]
    write_behind: bool,
    /// Runs the stamped writers on another system instead, and prints what it held of its promises
    #[arg(long)]
    peer: Option<Peer>,
}

/// Systems to compare with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Peer {
    /// A dispersed 2+1 volume, with the installed glusterfs-server.
    Glusterfs,
}

/// Runs it.
///
/// # Errors
/// A broken promise, a cluster that does not become whole, a run that did too little; or Ctrl-C.
pub fn run(args: &CrashArgs, interrupt: &Interrupt) -> Outcome {
    let bench = Bench::new(interrupt, false, crate::workspace::Profile::Release)?;
    if args.peer == Some(Peer::Glusterfs) {
        return gluster::run(args, &bench);
    }
    let dir = match &args.dir {
        Some(dir) => dir.clone(),
        None => bench.work.join(format!("crash-{}", std::process::id())),
    };
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(0..1 << 32));
    let plan =
        Plan { seed, time: Duration::from_secs(args.seconds), write_behind: args.write_behind };
    let outcome = rounds(&bench, &dir, plan, &mut |line| println!("{line}"));
    match &outcome {
        Ok(counts) => println!("{counts}"),
        Err(_) => println!("to repeat: {plan}"),
    }
    if outcome.is_ok() && !args.keep {
        std::fs::remove_dir_all(&dir).doing(|| format!("cannot remove {}", dir.display()))?;
    } else {
        println!("logs, data and manifests: {}", dir.display());
    }
    outcome.map(drop)
}

/// A short run for the test command; with an odd seed, mounts answer writes early.
///
/// # Errors
/// As [`run`], with what is needed to repeat it.
pub fn short(bench: &Bench) -> Outcome {
    let seed = fastrand::u64(0..1 << 32);
    let plan = Plan { seed, time: SHORT, write_behind: seed % 2 == 1 };
    let dir = bench.work.join("crash");
    let mut told = Vec::new();
    let outcome = rounds(bench, &dir, plan, &mut |line| told.push(line.to_owned()));
    outcome.map(drop).doing(|| format!("{plan}: {}", told.join("; ")))
}

/// What is run.
#[derive(Clone, Copy, Debug)]
struct Plan {
    seed: u64,
    time: Duration,
    write_behind: bool,
}

/// The command that does it again.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cargo xtask crash --seconds {} --seed {}", self.time.as_secs(), self.seed)?;
        f.write_str(if self.write_behind { " --write-behind" } else { "" })
    }
}

/// No new round of a short run begins after this.
const SHORT: Duration = Duration::from_secs(15);

fn rounds(bench: &Bench, dir: &Path, plan: Plan, say: &mut dyn FnMut(&str)) -> Outcome<Counts> {
    netns::sweep();
    netns::check()?;
    say(&format!("seed {}", plan.seed));
    let mut arena = Arena::start(bench, dir, plan)?;
    let begin = Instant::now();
    while arena.counts.rounds < ROUNDS_MIN || begin.elapsed() < plan.time {
        let told = arena.round()?;
        say(&format!("round {}, {} s: {told}", arena.counts.rounds, begin.elapsed().as_secs()));
    }
    arena.down()?;
    arena.counts.check()?;
    Ok(std::mem::take(&mut arena.counts))
}

/// Without load and faults: waits until everything is whole and every record has found its place.
///
/// # Errors
/// When that takes too long.
pub fn settle(cluster: &Cluster, interrupt: &Interrupt) -> Outcome {
    cluster.wait_clean(CLEAN_MAX, interrupt, |_| {})?;
    let end = Instant::now() + TRIMMED_MAX;
    let mut empty_since: Option<Instant> = None;
    loop {
        let status = cluster.status(interrupt)?;
        let osds = status["osds"].as_array().cloned().unwrap_or_default();
        let records: Option<u64> = osds.iter().map(|osd| osd["journal_records"].as_u64()).sum();
        match records {
            Some(0) if empty_since.get_or_insert_with(Instant::now).elapsed() >= TRIMMED_FOR => {
                return Ok(());
            }
            Some(0) => {}
            _ => empty_since = None,
        }
        ensure!(
            Instant::now() < end,
            "{records:?} records are still in the journals of an idle cluster: {status}"
        );
        interrupt.sleep(Duration::from_millis(200))?;
    }
}

/// Decodes everything of a cluster that settled and was stopped.
///
/// # Errors
/// As [`decode::every_subset`].
pub fn decode_all(cluster: &Cluster) -> Outcome<Decoded> {
    let dirs: Outcome<Vec<PathBuf>> =
        (0..cluster.layout().osds.len()).map(|id| damage::osd_dir(cluster, id)).collect();
    decode::every_subset(&dirs?)
}

/// Everything of a run; processes, mount and network go when it is dropped.
struct Arena<'a> {
    bench: &'a Bench,
    cluster: Cluster,
    /// The second mount, while there is one.
    other: Option<Guest>,
    other_point: PathBuf,
    load: Load,
    deck: Deck,
    rng: fastrand::Rng,
    counts: Counts,
}

impl Drop for Arena<'_> {
    fn drop(&mut self) {
        self.other = None;
        self.cluster.kill_all();
    }
}

impl<'a> Arena<'a> {
    fn start(bench: &'a Bench, dir: &Path, plan: Plan) -> Outcome<Arena<'a>> {
        ensure!(
            !dir.join("cluster").exists(),
            "{} holds a cluster already: give an empty directory",
            dir.display()
        );
        std::fs::create_dir_all(dir).doing(|| format!("cannot make {}", dir.display()))?;
        let dir = dir.canonicalize().doing(|| format!("no directory {}", dir.display()))?;
        let spec = Spec {
            mount: Some(dir.join("mnt")),
            mount_options: if plan.write_behind {
                format!("{MOUNT_OPTIONS},{ANSWERS_EARLY}")
            } else {
                MOUNT_OPTIONS.into()
            },
            net: Some(netns::prefix_of_this_process("crash")),
            ..Spec::new(&dir.join("cluster"))
        };
        let cluster = Cluster::up(&spec, &bench.binaries, &bench.interrupt)?;
        let other_point = dir.join("mnt2");
        let load = Load::new(
            [&dir.join("mnt"), &other_point],
            &dir.join("promised"),
            plan.seed,
            plan.write_behind,
        );
        let mut rng = fastrand::Rng::with_seed(plan.seed);
        let deck = Deck::new(&mut rng);
        let mut arena = Arena {
            bench,
            cluster,
            other: None,
            other_point,
            load,
            deck,
            rng,
            counts: Counts::default(),
        };
        arena.load.prepare(bench)?;
        arena.mount_other()?;
        Ok(arena)
    }

    /// A clean stop of everything.
    fn down(&mut self) -> Outcome {
        if let Some(other) = self.other.take() {
            other.unmount(&self.cluster, &self.bench.interrupt)?;
        }
        self.cluster.down(&self.bench.interrupt)
    }

    fn mount_other(&mut self) -> Outcome {
        self.other =
            Some(self.cluster.mount_also("second", &self.other_point, &self.bench.interrupt)?);
        Ok(())
    }

    /// One round; returns what was done, in words.
    fn round(&mut self) -> Outcome<String> {
        let mut told = Vec::new();
        let outcome = self.round_telling(&mut told);
        let told = told.join(", ");
        outcome.doing(|| format!("round {}: {told}", self.counts.rounds + 1))?;
        self.counts.rounds += 1;
        Ok(told)
    }

    fn round_telling(&mut self, told: &mut Vec<String>) -> Outcome {
        let replaces = self.counts.rounds.is_multiple_of(2);
        if !replaces {
            told.push(self.flip()?);
        }
        self.load.start(self.bench)?;
        self.pause(500..1_500)?;
        if replaces {
            told.push(self.replace_disk()?);
        }
        for _ in 0..STRIKES {
            self.strike(told)?;
            self.pause(0..1_500)?;
        }
        // Nobody waits for ever: without faults each of them goes on.
        let so_far = self.load.progress();
        self.load.wait_progress(self.bench, &so_far)?;
        self.load.stop(self.bench)?;
        settle(&self.cluster, &self.bench.interrupt)?;
        self.down()?;
        self.counts.decoded(&decode_all(&self.cluster)?);
        self.cluster.start_all(&self.bench.interrupt)?;
        self.mount_other()?;
        self.load.verify(self.bench, &mut self.counts)?;
        self.scrub()
    }

    /// A deep scrub of everything finds nothing.
    fn scrub(&mut self) -> Outcome {
        let mut command = self.cluster.command("trefoil");
        let said =
            self.bench.run(command.args(["scrub", "--deep", "--wait"]), SCRUB_SECONDS)?.stdout;
        ensure!(said.contains("nothing open"), "a deep scrub says: {said}");
        let listed = self
            .bench
            .run(self.cluster.command("trefoil").args(["scrub", "status"]), SCRUB_SECONDS)?
            .stdout;
        let status = self.cluster.status(&self.bench.interrupt)?;
        let total = |field: &str| -> u64 {
            let osds = status["osds"].as_array().into_iter().flatten();
            osds.filter_map(|osd| osd["scrub"][field].as_u64()).sum()
        };
        ensure!(total("found") == 0, "scrubs found {}: {listed}", total("found"));
        self.counts.scrubbed += total("objects");
        Ok(())
    }

    /// One fault or two at once, and their end.
    fn strike(&mut self, told: &mut Vec<String>) -> Outcome {
        let mut strike = Strike::new(self.bench, &self.cluster, &mut self.load, &mut self.rng);
        let faults = if strike.rng.u8(0..3) == 0 { 2 } else { 1 };
        for _ in 0..faults {
            let fault = self.deck.deal(strike.rng);
            if let Some(words) = strike.begin(fault)? {
                told.push(words);
                self.counts.fault(fault.name());
                strike.hold(fault)?;
            }
        }
        strike.end()?;
        self.load.check()
    }

    fn pause(&mut self, millis: std::ops::Range<u64>) -> Outcome {
        self.bench.interrupt.sleep(Duration::from_millis(self.rng.u64(millis)))
    }
}
