//! `cargo xtask soak`: an unprivileged user makes calls at random with extreme arguments on one
//! mount, while a program works normally on another; nobody may notice him.
//!
//! Contract: the normal program sees no error, no wrong byte and no call longer than
//! [`CALL_SECONDS_MAX`]; no process of the cluster ever holds more than [`RESIDENT_BYTES_MAX`]; the
//! cluster is clean afterwards, and what the user made can be removed. What the user is answered is
//! not judged, but for EIO, ESTALE and a mount that is gone.

use crate::cluster::Cluster;
use crate::cluster::layout::Spec;
use crate::crash;
use crate::error::{Context, Outcome, ensure};
use crate::exec::Interrupt;
use crate::process::most_resident;
use crate::testrun::Bench;
use crate::testrun::rig::{Background, background, mount_points};
use crate::workspace::Profile;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const HOSTILE: &str = include_str!("hostile.py");
const NORMAL: &str = include_str!("normal.py");
/// Programs of the unprivileged user at once.
const HOSTILE_PROGRAMS: u64 = 2;
/// A call of the normal program takes at most so long.
const CALL_SECONDS_MAX: u32 = 2;
/// What a process of the cluster may hold: a node of 4 GiB runs all of them.
const RESIDENT_BYTES_MAX: u64 = 512 << 20;
/// How often memory is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A progress line comes so often.
const TELL_EVERY: Duration = Duration::from_secs(60);
/// Programs end within this time of being told to, which is one call.
const END_SECONDS: u64 = 150;
/// What the user made is removed within this time.
const REMOVE_SECONDS: u64 = 300;
/// The user and group without rights.
const NOBODY: &str = "65534";

/// How long, and what.
#[derive(clap::Args, Clone, Debug)]
pub struct SoakArgs {
    /// How long the programs run
    #[arg(long, default_value_t = 60)]
    minutes: u64,
    /// Of what the programs do; drawn if it is not given
    #[arg(long)]
    seed: Option<u64>,
    /// An empty or missing directory on the disk to be used [default: one in cargo's target
    /// directory]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Run the programs as the dev profile builds them
    #[arg(long)]
    dev: bool,
}

/// Runs it, and prints what was seen.
///
/// # Errors
/// What the contract of this module forbids, or Ctrl-C.
pub fn run(args: &SoakArgs, interrupt: &Interrupt) -> Outcome {
    let profile = if args.dev { Profile::Dev } else { Profile::Release };
    let bench = Bench::new(interrupt, false, profile)?;
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(0..1 << 32));
    let dir =
        args.dir.clone().unwrap_or_else(|| bench.work.join(format!("soak-{}", std::process::id())));
    println!("seed {seed}; logs and data: {}", dir.display());
    let mut soak = Soak::start(&bench, &dir)?;
    soak.programs(seed)?;
    let outcome = soak.watch(Duration::from_secs(args.minutes * 60)).and_then(|()| soak.end());
    for (name, bytes) in &soak.most {
        println!("{name}: {} MiB at most", bytes >> 20);
    }
    outcome?;
    drop(soak);
    println!("nothing was noticed");
    std::fs::remove_dir_all(&dir).doing(|| format!("cannot remove {}", dir.display()))
}

/// The cluster and its programs; all of it goes when this is dropped.
struct Soak<'a> {
    bench: &'a Bench,
    cluster: Cluster,
    /// The client of the second mount, which is the unprivileged user's.
    other: Option<crate::cluster::Guest>,
    dir: PathBuf,
    programs: Vec<(String, Background)>,
    /// The most that each process of the cluster has held, in bytes.
    most: Vec<(String, u64)>,
}

impl Drop for Soak<'_> {
    fn drop(&mut self) {
        for (_, program) in self.programs.drain(..) {
            program.kill();
        }
        self.other = None;
        self.cluster.kill_all();
        let _ = std::fs::remove_dir(mount_points());
    }
}

impl<'a> Soak<'a> {
    fn start(bench: &'a Bench, dir: &Path) -> Outcome<Soak<'a>> {
        std::fs::create_dir_all(dir).doing(|| format!("cannot make {}", dir.display()))?;
        let points = mount_points();
        let options = "allow_other".to_owned();
        let spec = Spec {
            mount: Some(points.join("soak")),
            mount_options: options,
            ..Spec::new(&dir.join("cluster"))
        };
        let cluster = Cluster::up(&spec, &bench.binaries, &bench.interrupt)?;
        let dir = dir.to_path_buf();
        let mut soak =
            Soak { bench, cluster, other: None, dir, programs: Vec::new(), most: Vec::new() };
        soak.other = Some(soak.cluster.mount_also(
            "hostile",
            &points.join("soak-hostile"),
            &bench.interrupt,
        )?);
        Ok(soak)
    }

    /// Starts the programs.
    fn programs(&mut self, seed: u64) -> Outcome {
        let mount = self.cluster.mount_point().expect("the cluster is mounted").to_path_buf();
        self.bench.shell(&mount, "mkdir normal hostile && chmod 1777 hostile", 60)?;
        let mut normal = self.python("normal.py", NORMAL, &mount.join("normal"), seed)?;
        normal.env("CALL_MAX_SECONDS", CALL_SECONDS_MAX.to_string());
        self.spawn("normal", &mut normal)?;
        let hostile = self.other.as_ref().expect("it was mounted").point().join("hostile");
        for number in 1..=HOSTILE_PROGRAMS {
            let dir = hostile.join(format!("user{number}"));
            let python = self.python("hostile.py", HOSTILE, &dir, seed + number)?;
            let mut command = Command::new("setpriv");
            // root's PATH may lead where only root may go.
            command.args([
                "--reuid",
                NOBODY,
                "--regid",
                NOBODY,
                "--clear-groups",
                "--reset-env",
                "--",
            ]);
            command.arg(python.get_program()).args(python.get_args());
            self.spawn(&format!("hostile-{number}"), &mut command)?;
        }
        Ok(())
    }

    fn python(&self, name: &str, script: &str, dir: &Path, seed: u64) -> Outcome<Command> {
        // Not below the scratch directory, which an unprivileged user may not be able to enter.
        let path = mount_points().join(name);
        std::fs::write(&path, script).doing(|| format!("cannot write {}", path.display()))?;
        let mut command = Command::new("python3");
        command.arg(path).arg(dir).arg(seed.to_string()).arg(stop_file());
        Ok(command)
    }

    fn spawn(&mut self, name: &str, command: &mut Command) -> Outcome {
        let program = background(command, &self.dir.join(format!("{name}.out")))?;
        self.programs.push((name.to_owned(), program));
        Ok(())
    }

    /// Looks at programs and memory until the time is over.
    fn watch(&mut self, time: Duration) -> Outcome {
        let begin = Instant::now();
        let mut told = Instant::now();
        while begin.elapsed() < time {
            self.bench.interrupt.sleep(LOOK_EVERY)?;
            self.look()?;
            if told.elapsed() >= TELL_EVERY {
                told = Instant::now();
                let most = self.most.iter().map(|(_, bytes)| bytes >> 20).max().unwrap_or(0);
                println!(
                    "{} min: no process held more than {most} MiB",
                    begin.elapsed().as_secs() / 60
                );
            }
        }
        Ok(())
    }

    fn look(&mut self) -> Outcome {
        for (name, program) in &mut self.programs {
            let output = self.dir.join(format!("{name}.out"));
            ensure!(
                !program.has_ended(),
                "{name} has ended: {}",
                std::fs::read_to_string(output).unwrap_or_default()
            );
        }
        let mut daemons = self.cluster.all();
        daemons.extend(self.other.iter().map(|other| other.daemon().clone()));
        for daemon in &daemons {
            let bytes = most_resident(daemon)?;
            match self.most.iter_mut().find(|(name, _)| *name == daemon.name) {
                Some((_, most)) => *most = bytes.max(*most),
                None => self.most.push((daemon.name.clone(), bytes)),
            }
            ensure!(bytes <= RESIDENT_BYTES_MAX, "{} has held {} MiB", daemon.name, bytes >> 20);
        }
        Ok(())
    }

    /// Ends the programs, removes what the user made, and waits until the cluster is clean.
    fn end(&mut self) -> Outcome {
        std::fs::write(stop_file(), "").doing(|| "cannot tell the programs to stop")?;
        for (name, program) in std::mem::take(&mut self.programs) {
            let said = program.finish(self.bench, END_SECONDS).doing(|| name.clone())?;
            println!("{name}: {}", said.trim_end());
        }
        let mount = self.cluster.mount_point().expect("the cluster is mounted");
        self.bench.shell(mount, "rm -rf hostile normal", REMOVE_SECONDS)?;
        self.look()?;
        crash::settle(&self.cluster, &self.bench.interrupt)
    }
}

/// Programs end once it is there.
fn stop_file() -> PathBuf {
    mount_points().join("stop")
}
