//! The same stamped writers on a GlusterFS dispersed 2+1 volume, to compare with: what is there
//! after a kill and a heal, through all bricks and through each pair of them.
//!
//! Contract: an iteration is: writers, SIGKILL to the client or to a brick, everything started
//! again, the heal awaited, every file read through each pair of bricks. Nothing is judged here but
//! counted and printed: the promises that are held, by whom, is for the reader.

use super::CrashArgs;
use crate::error::{Context, Outcome};
use crate::gluster::{self, BRICKS, Volume};
use crate::netns;
use crate::testrun::Bench;
use crate::testrun::rig::{Background, background};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Writers, each with a file of its own.
const WRITERS: usize = 16;
/// Pieces of 512 bytes of a file.
const PIECES: u64 = 128;
/// A heal that is not over by then is reported as such.
const HEAL_MAX: Duration = Duration::from_secs(90);
/// The writers end, and a file is verified, within so many seconds.
const COMMAND_SECONDS: u64 = 90;

/// What was found.
#[derive(Default)]
struct Findings {
    iterations: u64,
    client_kills: u64,
    brick_kills: u64,
    files: u64,
    unhealed: u64,
    /// Files, named with their iteration, that two pairs of bricks give with different bytes.
    differ: BTreeSet<String>,
    /// Files with pieces that are no version that was written, or an older one than promised,
    /// through some pair.
    broken: BTreeMap<String, String>,
    /// Files that cannot be read through some pair.
    unreadable: BTreeSet<String>,
}

/// Runs it and prints what was found.
///
/// # Errors
/// When GlusterFS cannot be set up, or a step of the harness fails; never because of what was
/// found.
pub fn run(args: &CrashArgs, bench: &Bench) -> Outcome {
    netns::sweep();
    let dir =
        args.dir.clone().unwrap_or_else(|| bench.work.join(format!("peer-{}", std::process::id())));
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(0..1 << 32));
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    gluster::sweep(&dir);
    let trial =
        Trial { bench, volume: Volume::up(&dir, "peer", &bench.interrupt)?, dir: &dir, seed };
    let (mut findings, begin) = (Findings::default(), Instant::now());
    while findings.iterations == 0 || begin.elapsed() < Duration::from_secs(args.seconds) {
        trial.iteration(&mut rng, &mut findings)?;
        println!(
            "iteration {}, {} s: {}",
            findings.iterations,
            begin.elapsed().as_secs(),
            findings.line()
        );
    }
    for (file, what) in &findings.broken {
        println!("{file}: {what}");
    }
    findings
        .differ
        .iter()
        .for_each(|file| println!("{file}: pairs of bricks give different bytes"));
    findings
        .unreadable
        .iter()
        .for_each(|file| println!("{file}: cannot be read through some pair of bricks"));
    println!("{}", findings.line());
    drop(trial);
    if !args.keep {
        std::fs::remove_dir_all(&dir).doing(|| format!("cannot remove {}", dir.display()))?;
    }
    Ok(())
}

impl Findings {
    fn line(&self) -> String {
        format!(
            "{} iterations ({} kills of the client, {} of a brick), {} files; heals not over in {} s: {}; files that pairs \
             of bricks give with different bytes: {}, with broken promises: {}, unreadable: {}",
            self.iterations,
            self.client_kills,
            self.brick_kills,
            self.files,
            HEAL_MAX.as_secs(),
            self.unhealed,
            self.differ.len(),
            self.broken.len(),
            self.unreadable.len()
        )
    }
}

/// A volume that writers and faults meet on.
struct Trial<'a> {
    bench: &'a Bench,
    volume: Volume,
    dir: &'a Path,
    seed: u64,
}

impl Trial<'_> {
    /// Heals, and says whether the healer reports nothing left.
    fn heal(&self) -> Outcome<bool> {
        self.volume.start_heal(false)?;
        self.volume.start_heal(true)?;
        let end = Instant::now() + HEAL_MAX;
        let mut quiet = 0;
        while Instant::now() < end {
            quiet = if self.volume.is_healed()? { quiet + 1 } else { 0 };
            if quiet == 3 {
                return Ok(true);
            }
            self.bench.interrupt.sleep(Duration::from_secs(1))?;
        }
        Ok(false)
    }

    fn iteration(&self, rng: &mut fastrand::Rng, findings: &mut Findings) -> Outcome {
        let Trial { bench, volume, seed, .. } = self;
        let number = findings.iterations;
        let promised = self.dir.join(format!("promised/{number}"));
        std::fs::create_dir_all(&promised).doing(|| "cannot make a directory")?;
        let writers = Writers {
            bench,
            area: volume.mount_point().join(format!("i{number}")),
            promised,
            seed: *seed,
        };
        let running = writers.start()?;
        bench.interrupt.sleep(Duration::from_millis(rng.u64(2_000..5_000)))?;
        if number.is_multiple_of(2) {
            volume.kill_client()?;
            findings.client_kills += 1;
        } else {
            volume.kill_brick(rng.usize(0..BRICKS))?;
            findings.brick_kills += 1;
            bench.interrupt.sleep(Duration::from_millis(rng.u64(500..2_000)))?;
        }
        writers.end(running)?;
        volume.revive()?;
        volume.remount(&[])?;
        findings.unhealed += u64::from(!self.heal()?);
        let mut seen: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
        for without in 0..BRICKS {
            volume.kill_brick(without)?;
            volume.remount(&[])?;
            for writer in 0..WRITERS {
                let file = format!("iteration {number}, file {writer}");
                match writers.checksum(writer) {
                    Ok(sum) => drop(seen.entry(writer).or_default().insert(sum)),
                    Err(_) => drop(findings.unreadable.insert(file.clone())),
                }
                if let Err(error) = writers.verify(writer) {
                    let what =
                        format!("without brick {without}: {}", last_words(&error.to_string()));
                    findings.broken.entry(file).or_insert(what);
                }
            }
            volume.revive()?;
            volume.remount(&[])?;
        }
        for (writer, _) in seen.iter().filter(|(_, sums)| sums.len() > 1) {
            findings.differ.insert(format!("iteration {number}, file {writer}"));
        }
        findings.files += WRITERS as u64;
        findings.iterations += 1;
        Ok(())
    }
}

/// The writers of one iteration.
struct Writers<'a> {
    bench: &'a Bench,
    area: PathBuf,
    promised: PathBuf,
    seed: u64,
}

impl Writers<'_> {
    fn command(&self, task: &str, writer: usize) -> Command {
        let mut command = self.bench.xtask(&["stamp", task, "--seed", &self.seed.to_string()]);
        command
            .arg("--dir")
            .arg(self.area.join(writer.to_string()))
            .arg("--pieces")
            .arg(PIECES.to_string());
        command.arg("--manifest").arg(self.promised.join(writer.to_string()));
        command
    }

    fn start(&self) -> Outcome<Vec<Background>> {
        let one = |writer: usize| {
            let mut command = self.command("write", writer);
            command.arg("--direct").arg("--stop").arg(self.promised.join("stop"));
            background(&mut command, &self.promised.join(format!("{writer}.out")))
        };
        (0..WRITERS).map(one).collect()
    }

    fn end(&self, running: Vec<Background>) -> Outcome {
        std::fs::write(self.promised.join("stop"), "").doing(|| "cannot write the stop file")?;
        running.into_iter().try_for_each(|writer| writer.end(self.bench, COMMAND_SECONDS))
    }

    /// Only fsyncs count: by default its client answers writes, also direct ones, before it has
    /// sent them.
    fn verify(&self, writer: usize) -> Outcome {
        let mut command = self.command("verify", writer);
        self.bench
            .run(command.args(["--syncs-min", "0", "--fsynced-only"]), COMMAND_SECONDS)
            .map(drop)
    }

    fn checksum(&self, writer: usize) -> Outcome<String> {
        let file = self.area.join(writer.to_string()).join("stamped");
        Ok(self.bench.run(Command::new("md5sum").arg(file), COMMAND_SECONDS)?.stdout)
    }
}

/// The first broken promise, without what is said about the command.
fn last_words(message: &str) -> String {
    let line = message.lines().find(|line| line.contains("piece ") || line.contains("name-"));
    line.unwrap_or_else(|| message.lines().last().unwrap_or_default()).trim().to_owned()
}
