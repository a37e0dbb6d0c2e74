//! The same stamped writers on a GlusterFS dispersed 2+1 volume, to compare with: what is there after a kill and a heal,
//! through all bricks and through each pair of them.
//!
//! Contract: three bricks in one namespace of their own, state and bricks below one directory; no volume of the machine's
//! is touched. An iteration is: writers, SIGKILL to the client or to a brick, everything started again, the heal
//! awaited, every file read through each pair of bricks. Nothing is judged here but counted and printed: the promises
//! that are held, by whom, is for the reader.

use super::CrashArgs;
use crate::error::{Context, Outcome, ensure, fail};
use crate::exec;
use crate::mounts;
use crate::netns;
use crate::testrun::Bench;
use crate::testrun::rig::{Background, background};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Writers, each with a file of its own.
const WRITERS: usize = 16;
/// Pieces of 512 bytes of a file.
const PIECES: u64 = 128;
/// Bricks of the volume.
const BRICKS: usize = 3;
/// The volume, and its address in its namespace.
const VOLUME: &str = "ec";
const ADDRESS: &str = "10.99.0.1";
/// A heal that is not over by then is reported as such.
const HEAL_MAX: Duration = Duration::from_secs(90);
/// Bricks are online this soon after they were started, or they are started again, so often.
const ONLINE_MAX: Duration = Duration::from_secs(20);
const STARTS_MAX: usize = 6;
/// Commands of GlusterFS end within so many seconds.
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
    /// Files with pieces that are no version that was written, or an older one than promised, through some pair.
    broken: BTreeMap<String, String>,
    /// Files that cannot be read through some pair.
    unreadable: BTreeSet<String>,
}

/// Runs it and prints what was found.
///
/// # Errors
/// When GlusterFS cannot be set up, or a step of the harness fails; never because of what was found.
pub fn run(args: &CrashArgs, bench: &Bench) -> Outcome {
    ensure!(Path::new("/usr/sbin/glusterd").exists(), "no /usr/sbin/glusterd: install the package glusterfs-server");
    netns::sweep();
    let dir = args.dir.clone().unwrap_or_else(|| bench.work.join(format!("peer-{}", std::process::id())));
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(0..1 << 32));
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let volume = Volume::up(bench, &dir)?;
    let (mut findings, begin) = (Findings::default(), Instant::now());
    while findings.iterations == 0 || begin.elapsed() < Duration::from_secs(args.seconds) {
        volume.iteration(bench, &mut rng, seed, &mut findings)?;
        println!("iteration {}, {} s: {}", findings.iterations, begin.elapsed().as_secs(), findings.line());
    }
    for (file, what) in &findings.broken {
        println!("{file}: {what}");
    }
    findings.differ.iter().for_each(|file| println!("{file}: pairs of bricks give different bytes"));
    findings.unreadable.iter().for_each(|file| println!("{file}: cannot be read through some pair of bricks"));
    println!("{}", findings.line());
    drop(volume);
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

/// A running volume; everything of it ends when it is dropped.
struct Volume {
    dir: PathBuf,
    namespace: String,
}

impl Drop for Volume {
    fn drop(&mut self) {
        mounts::clear(&self.dir);
        let _ = self.command("gluster").args(["--mode=script", "volume", "stop", VOLUME, "force"]).output();
        // Whatever of it is left names the directory in its command line.
        for pid in pids(&[&self.dir.display().to_string()]) {
            let _ = kill_process(pid, Signal::KILL);
        }
        let _ = Command::new("ip").args(["netns", "delete", &self.namespace]).output();
    }
}

impl Volume {
    fn up(bench: &Bench, dir: &Path) -> Outcome<Volume> {
        std::fs::create_dir_all(dir).doing(|| format!("cannot make {}", dir.display()))?;
        let dir = dir.canonicalize().doing(|| format!("no directory {}", dir.display()))?;
        let volume = Volume { dir, namespace: format!("{}-hub", netns::prefix_of_this_process("peer")) };
        let dir = &volume.dir;
        for part in ["state", "mnt", "promised", "b0", "b1", "b2"] {
            std::fs::create_dir_all(dir.join(part)).doing(|| "cannot make a directory")?;
        }
        let (namespace, hub) = (&volume.namespace, &volume);
        bench.run(Command::new("ip").args(["netns", "add", namespace]), 10)?;
        bench.run(Command::new("ip").args(["-n", namespace, "link", "set", "lo", "up"]), 10)?;
        bench.run(Command::new("ip").args(["-n", namespace, "address", "add", ADDRESS, "dev", "lo"]), 10)?;
        let original = std::fs::read_to_string("/etc/glusterfs/glusterd.vol").doing(|| "cannot read glusterd.vol")?;
        let state = format!("    option working-directory {}", dir.join("state").display());
        let ours: Vec<&str> =
            original.lines().map(|l| if l.contains("option working-directory") { &state } else { l }).collect();
        let file = dir.join("glusterd.vol");
        std::fs::write(&file, ours.join("\n") + "\n").doing(|| "cannot write glusterd.vol")?;
        let mut daemon = hub.command("glusterd");
        daemon.arg(format!("--volfile={}", file.display())).args(["--log-level", "WARNING", "-p"]);
        bench.run(daemon.arg(dir.join("glusterd.pid")), COMMAND_SECONDS)?;
        hub.retry(bench, &["volume", "list"])?;
        let brick = |number: usize| format!("{ADDRESS}:{}", dir.join(format!("b{number}")).display());
        let bricks: Vec<String> = (0..BRICKS).map(brick).collect();
        let mut create = vec!["volume", "create", VOLUME, "disperse", "3", "redundancy", "1"];
        create.extend(bricks.iter().map(String::as_str));
        create.push("force");
        hub.gluster(bench, &create)?;
        hub.gluster(bench, &["volume", "start", VOLUME])?;
        hub.wait_bricks(bench, BRICKS)?;
        hub.mount(bench)?;
        Ok(volume)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.namespace)).arg(program);
        command
    }

    fn gluster(&self, bench: &Bench, words: &[&str]) -> Outcome<exec::Run> {
        bench.run(self.command("gluster").arg("--mode=script").args(words), COMMAND_SECONDS)
    }

    /// Until it succeeds, for as long as a command may take.
    fn retry(&self, bench: &Bench, words: &[&str]) -> Outcome<exec::Run> {
        let end = Instant::now() + Duration::from_secs(COMMAND_SECONDS);
        loop {
            match self.gluster(bench, words) {
                Err(error) if Instant::now() > end => return Err(error),
                Err(_) => bench.interrupt.sleep(Duration::from_millis(500))?,
                run => return run,
            }
        }
    }

    fn mount_point(&self) -> PathBuf {
        self.dir.join("mnt")
    }

    fn mount(&self, bench: &Bench) -> Outcome {
        let mut mount = self.command("mount");
        mount.args(["-t", "glusterfs", &format!("{ADDRESS}:/{VOLUME}")]).arg(self.mount_point());
        bench.run(&mut mount, COMMAND_SECONDS).map(drop)
    }

    /// A new client, with no cache of the last one.
    fn remount(&self, bench: &Bench) -> Outcome {
        mounts::clear(&self.mount_point());
        self.mount(bench)
    }

    fn brick_pid(&self, number: usize) -> Outcome<Pid> {
        let brick = format!("--brick-name\0{}\0", self.dir.join(format!("b{number}")).display());
        pids(&["glusterfsd", &brick]).first().copied().map_or_else(|| fail(format!("brick {number} does not run")), Ok)
    }

    fn kill_brick(&self, number: usize) -> Outcome {
        kill_process(self.brick_pid(number)?, Signal::KILL).doing(|| "cannot kill a brick")
    }

    fn kill_client(&self) -> Outcome {
        let found = pids(&["--process-name\0fuse\0", &self.mount_point().display().to_string()]);
        let Some(client) = found.first() else { return fail("no client to kill") };
        kill_process(*client, Signal::KILL).doing(|| "cannot kill the client")
    }

    /// Starts bricks that are dead.
    fn revive(&self, bench: &Bench) -> Outcome {
        let mut last = Ok(());
        // A brick that glusterd has not yet seen dead is not started: asked again, it is.
        for _ in 0..STARTS_MAX {
            self.gluster(bench, &["volume", "start", VOLUME, "force"])?;
            last = self.wait_bricks(bench, BRICKS);
            if last.is_ok() {
                break;
            }
            bench.interrupt.check()?;
        }
        last
    }

    fn wait_bricks(&self, bench: &Bench, wanted: usize) -> Outcome {
        let end = Instant::now() + ONLINE_MAX;
        loop {
            let status = self.gluster(bench, &["volume", "status", VOLUME, "--xml"])?.stdout;
            let bricks = status.split("<node>").filter(|node| node.contains("<path>/"));
            let online = bricks.filter(|node| node.contains("<status>1</status>")).count();
            if online >= wanted {
                // They listen; clients and the healer connect within the next seconds.
                return bench.interrupt.sleep(Duration::from_secs(3));
            }
            ensure!(Instant::now() < end, "only {online} of {wanted} bricks are online");
            bench.interrupt.sleep(Duration::from_millis(500))?;
        }
    }

    /// Heals, and says whether the healer reports nothing left.
    fn heal(&self, bench: &Bench) -> Outcome<bool> {
        self.retry(bench, &["volume", "heal", VOLUME])?;
        self.retry(bench, &["volume", "heal", VOLUME, "full"])?;
        let end = Instant::now() + HEAL_MAX;
        let mut quiet = 0;
        while Instant::now() < end {
            let info = self.retry(bench, &["volume", "heal", VOLUME, "info"])?.stdout;
            let counts = info.lines().filter_map(|line| line.strip_prefix("Number of entries: "));
            let clean = counts.filter(|count| *count == "0").count() == BRICKS;
            quiet = if clean { quiet + 1 } else { 0 };
            if quiet == 3 {
                return Ok(true);
            }
            bench.interrupt.sleep(Duration::from_secs(1))?;
        }
        Ok(false)
    }

    fn iteration(&self, bench: &Bench, rng: &mut fastrand::Rng, seed: u64, findings: &mut Findings) -> Outcome {
        let number = findings.iterations;
        let promised = self.dir.join(format!("promised/{number}"));
        std::fs::create_dir_all(&promised).doing(|| "cannot make a directory")?;
        let writers = Writers { bench, area: self.mount_point().join(format!("i{number}")), promised, seed };
        let running = writers.start()?;
        bench.interrupt.sleep(Duration::from_millis(rng.u64(2_000..5_000)))?;
        if number.is_multiple_of(2) {
            self.kill_client()?;
            findings.client_kills += 1;
        } else {
            self.kill_brick(rng.usize(0..BRICKS))?;
            findings.brick_kills += 1;
            bench.interrupt.sleep(Duration::from_millis(rng.u64(500..2_000)))?;
        }
        writers.end(running)?;
        self.revive(bench)?;
        self.remount(bench)?;
        findings.unhealed += u64::from(!self.heal(bench)?);
        let mut seen: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
        for without in 0..BRICKS {
            self.kill_brick(without)?;
            self.remount(bench)?;
            for writer in 0..WRITERS {
                let file = format!("iteration {number}, file {writer}");
                match writers.checksum(writer) {
                    Ok(sum) => drop(seen.entry(writer).or_default().insert(sum)),
                    Err(_) => drop(findings.unreadable.insert(file.clone())),
                }
                if let Err(error) = writers.verify(writer) {
                    let what = format!("without brick {without}: {}", last_words(&error.to_string()));
                    findings.broken.entry(file).or_insert(what);
                }
            }
            self.revive(bench)?;
            self.remount(bench)?;
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
        command.arg("--dir").arg(self.area.join(writer.to_string())).arg("--pieces").arg(PIECES.to_string());
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

    /// Only fsyncs count: by default its client answers writes, also direct ones, before it has sent them.
    fn verify(&self, writer: usize) -> Outcome {
        let mut command = self.command("verify", writer);
        self.bench.run(command.args(["--syncs-min", "0", "--fsynced-only"]), COMMAND_SECONDS).map(drop)
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

/// Processes of GlusterFS whose command line has all of these.
fn pids(marks: &[&str]) -> Vec<Pid> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let number = |entry: std::fs::DirEntry| entry.file_name().to_string_lossy().parse::<i32>().ok();
    let of_ours = |raw: &i32| {
        let name = std::fs::read_to_string(format!("/proc/{raw}/comm")).unwrap_or_default();
        let line = std::fs::read(format!("/proc/{raw}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        name.starts_with("gluster") && marks.iter().all(|mark| line.contains(mark))
    };
    processes.filter_map(number).filter(of_ours).filter_map(Pid::from_raw).collect()
}
