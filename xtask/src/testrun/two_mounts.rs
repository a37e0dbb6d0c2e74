//! Two mounts of one cluster, each with a client of its own, as two hosts have them: what one does
//! the other shows at once, locks hold over both, and what a client held passes on when it is gone.
//!
//! The programs on the mounts are in `two_mounts.py`, for Python's calls are the kernel's.

use super::report::Report;
use super::rig::{Background, Rig, background, mount_points};
use super::{ANSWERS_EARLY, Bench};
use crate::cluster::layout::Spec;
use crate::error::{Context, Outcome, ensure};
use crate::exec;
use crate::mounts;
use crate::process::Daemon;
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const SCRIPT: &str = concat!(include_str!("expect.py"), include_str!("two_mounts.py"));
const HANDLES: &str = concat!(include_str!("expect.py"), include_str!("handles.py"));
const FLOCK: &str = concat!(include_str!("expect.py"), include_str!("flock.py"));
/// Within this time a mount serves, and a client that was told to stop has.
const MOUNT_MAX: Duration = Duration::from_secs(40);
/// Expiry of a session (10 s), and the decision on its last writes, on a loaded machine.
const EXPIRY_SECONDS: u64 = 60;

/// A test with both mounts.
type PairTest = (&'static str, fn(&Bench, &Rig, &Pair) -> Outcome);

/// Runs the tests.
///
/// # Errors
/// Only on Ctrl-C.
pub fn run(bench: &Bench, report: &mut Report) -> Outcome {
    let Some(rig) = Rig::start("two-mounts", bench, report, |spec| spec)? else { return Ok(()) };
    let mut pair = None;
    report.case("two-mounts", "a second mount arrives while the first is busy", || {
        let second = Pair::new(&rig, "two-mounts-second")?;
        second.mount(bench, &rig)?;
        pair = Some(second);
        Ok(())
    })?;
    if let Some(pair) = &pair {
        let tests: [PairTest; 17] = [
            ("data, sizes and times are seen at once", |bench, rig, pair| {
                pair.check(bench, rig, "data", 60)
            }),
            ("names and attributes are seen at once", |bench, rig, pair| {
                pair.check(bench, rig, "names", 60)
            }),
            (
                "what one mount changes is not answered from memory by the other",
                |bench, rig, pair| pair.check(bench, rig, "leases", 300),
            ),
            ("ACLs count at once", |bench, rig, pair| pair.check(bench, rig, "acls", 60)),
            ("open and mapped files follow", |bench, rig, pair| {
                pair.check(bench, rig, "descriptors", 60)
            }),
            ("stores through mappings follow, and none lies behind the end", |bench, rig, pair| {
                super::posix::mappings(bench, rig, Some(&pair.point))
            }),
            ("positions in directories hold over both", |bench, rig, pair| {
                super::posix::cookies(bench, rig, Some(&pair.point))
            }),
            ("handles stay good, and directories that are removed are empty", handles),
            ("appends of both interleave whole", |bench, rig, pair| {
                pair.check(bench, rig, "appends", 60)
            }),
            ("small appends are seen at once", |bench, rig, pair| {
                pair.check(bench, rig, "small_appends", 90)
            }),
            ("fcntl locks hold over both", |bench, rig, pair| pair.check(bench, rig, "locks", 90)),
            ("flock and locks of open file descriptions hold over both, and go with them", flock),
            ("locks survive a restart of the metadata service", restart),
            ("a restarted service lets nothing change that a mount knows", warmed_restart),
            ("a client that is killed with a warm cache holds nobody up", warmed_killed),
            ("a client that is killed passes on what it held", killed),
            ("a client that is stopped and wakes up late has lost it", stopped),
        ];
        for (name, test) in tests {
            if report.wants_test("two-mounts", name) {
                report.case("two-mounts", name, || test(bench, &rig, pair))?;
            }
        }
        report.case("two-mounts", "the second mount goes", || pair.unmount(bench, &rig))?;
    }
    drop(pair);
    rig.finish(bench, report)
}

/// The first mount answers writes, closes and changes of attributes early; the second does not.
///
/// # Errors
/// Only on Ctrl-C.
pub fn behind(bench: &Bench, report: &mut Report) -> Outcome {
    let change = |spec| Spec { mount_options: ANSWERS_EARLY.into(), ..spec };
    let Some(rig) = Rig::start("two-mounts-behind", bench, report, change)? else { return Ok(()) };
    report.phase("write-behind");
    report.case("two-mounts", "a second mount sees all that the first has answered", || {
        let pair = Pair::new(&rig, "two-mounts-behind-second")?;
        let writer = pair.holder(bench, &rig, "untold")?;
        pair.mount(bench, &rig)?;
        pair.check(bench, &rig, "told", 60)?;
        pair.tell()?;
        writer.finish(bench, 30)?;
        for check in ["data", "names", "descriptors", "closes", "appends", "small_appends"] {
            pair.check(bench, &rig, check, 90)?;
        }
        pair.unmount(bench, &rig)
    })?;
    report.phase("");
    rig.finish(bench, report)
}

/// The second mount, taken away whatever happens.
struct Pair {
    client: Daemon,
    point: PathBuf,
    scratch: PathBuf,
}

impl Pair {
    /// Not mounted yet.
    fn new(rig: &Rig, point: &str) -> Outcome<Pair> {
        let scratch = rig.scratch("second")?;
        let point = mount_points().join(point);
        std::fs::create_dir_all(&point).doing(|| format!("cannot make {}", point.display()))?;
        std::fs::write(scratch.join("two_mounts.py"), SCRIPT)
            .doing(|| "cannot write the script")?;
        let client = Daemon {
            name: "second mount".into(),
            pid_file: scratch.join("pid"),
            log: scratch.join("log"),
            mark: point.display().to_string(),
        };
        Ok(Pair { client, point, scratch })
    }

    fn mount(&self, bench: &Bench, rig: &Rig) -> Outcome {
        let mut command = rig.cluster.command("fuse-client");
        command.arg("mount").arg(rig.cluster.layout().monitor.to_string()).arg(&self.point);
        let begin = self.client.spawn(&mut command)?;
        self.client.wait_ready(begin, MOUNT_MAX, &bench.interrupt, |output| {
            output.contains("is mounted on")
        })
    }

    fn unmount(&self, bench: &Bench, rig: &Rig) -> Outcome {
        bench.run(rig.cluster.command("fuse-client").arg("umount").arg(&self.point), 40)?;
        ensure!(self.client.wait_gone(MOUNT_MAX), "the client still runs after umount");
        Ok(())
    }

    /// The program of a check, with the root of both mounts.
    fn python(&self, rig: &Rig, check: &str) -> Command {
        let mut command = Command::new("python3");
        command
            .arg(self.scratch.join("two_mounts.py"))
            .arg(check)
            .arg(rig.mount())
            .arg(&self.point);
        command.env("GO", self.go());
        command
    }

    fn check(&self, bench: &Bench, rig: &Rig, check: &str, seconds: u64) -> Outcome {
        bench.run(&mut self.python(rig, check), seconds).map(drop)
    }

    /// Starts a program that says `held` when it holds what it wants, and goes on at
    /// [`Pair::tell`].
    fn holder(&self, bench: &Bench, rig: &Rig, check: &str) -> Outcome<Background> {
        // Left by the test before.
        let _ = std::fs::remove_file(self.go());
        let output = self.scratch.join(format!("{check}.out"));
        let mut program = background(&mut self.python(rig, check), &output)?;
        rig.wait_for(bench, "the program holds what it wants", 30, || {
            let said = std::fs::read_to_string(&output).unwrap_or_default();
            ensure!(!program.has_ended(), "it ended: {said}");
            Ok(said.contains("held"))
        })?;
        Ok(program)
    }

    fn go(&self) -> PathBuf {
        self.scratch.join("go")
    }

    fn tell(&self) -> Outcome {
        std::fs::write(self.go(), "").doing(|| "cannot tell the program to go on")
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        if self.client.pid().is_some()
            && let Err(error) = self.client.kill()
        {
            eprintln!("warning: {error}");
        }
        mounts::clear(&self.point);
        // Only if it is empty, as it is when nothing is mounted.
        let _ = std::fs::remove_dir(&self.point);
    }
}

fn flock(bench: &Bench, rig: &Rig, pair: &Pair) -> Outcome {
    let (script, other) = (pair.scratch.join("flock.py"), pair.point.join("flock"));
    std::fs::write(&script, FLOCK).doing(|| "cannot write the script")?;
    let area = rig.area(bench, "flock")?;
    for mount in [&other, &area] {
        bench.run(Command::new("python3").arg(&script).arg(&area).arg(mount), 180)?;
    }
    Ok(())
}

fn handles(bench: &Bench, rig: &Rig, pair: &Pair) -> Outcome {
    let script = pair.scratch.join("handles.py");
    std::fs::write(&script, HANDLES).doing(|| "cannot write the script")?;
    for other in [rig.mount(), &pair.point] {
        let area = rig.area(bench, "handles")?;
        bench
            .run(Command::new("python3").arg(&script).arg(&area).arg(other.join("handles")), 120)?;
    }
    Ok(())
}

fn restart(bench: &Bench, rig: &Rig, pair: &Pair) -> Outcome {
    let holder = pair.holder(bench, rig, "hold")?;
    rig.cluster.kill("mds")?;
    rig.cluster.start("mds", &bench.interrupt)?;
    pair.check(bench, rig, "denied", 60)?;
    pair.tell()?;
    holder.finish(bench, 30)?;
    pair.check(bench, rig, "take", 30)
}

fn warmed_restart(bench: &Bench, rig: &Rig, pair: &Pair) -> Outcome {
    let reader = pair.holder(bench, rig, "warmed")?;
    rig.cluster.kill("mds")?;
    rig.cluster.start("mds", &bench.interrupt)?;
    pair.check(bench, rig, "changed", EXPIRY_SECONDS)?;
    pair.check(bench, rig, "changed_there", 30)?;
    reader.kill();
    Ok(())
}

fn warmed_killed(bench: &Bench, rig: &Rig, pair: &Pair) -> Outcome {
    let reader = pair.holder(bench, rig, "warmed")?;
    pair.client.kill()?;
    pair.check(bench, rig, "changed", EXPIRY_SECONDS)?;
    reader.kill();
    mounts::clear(&pair.point);
    pair.mount(bench, rig)?;
    pair.check(bench, rig, "changed_there", 30)
}

fn killed(bench: &Bench, rig: &Rig, pair: &Pair) -> Outcome {
    let holder = pair.holder(bench, rig, "hold")?;
    pair.client.kill()?;
    pair.check(bench, rig, "take", EXPIRY_SECONDS)?;
    holder.kill();
    mounts::clear(&pair.point);
    pair.mount(bench, rig)?;
    pair.check(bench, rig, "take", 30)
}

fn stopped(bench: &Bench, rig: &Rig, pair: &Pair) -> Outcome {
    let holder = pair.holder(bench, rig, "stopped")?;
    pair.client.signal(Signal::STOP)?;
    let written = write(bench, rig.mount(), "s", "AFTERWARDS");
    // Also when it failed: nothing may stay stopped.
    pair.client.signal(Signal::CONT)?;
    written?;
    pair.tell()?;
    holder.finish(bench, EXPIRY_SECONDS)?;
    let log = std::fs::read_to_string(&pair.client.log).unwrap_or_default();
    ensure!(
        log.contains("declared this session dead"),
        "the client was not stopped for long enough to be declared dead"
    );
    Ok(())
}

/// Writes over the beginning of a file, which may have to wait for the end of another client's
/// lease.
fn write(bench: &Bench, dir: &Path, name: &str, text: &str) -> Outcome<exec::Run> {
    bench.shell(
        dir,
        &format!("printf %s '{text}' | dd of={name} conv=notrunc,fsync status=none"),
        EXPIRY_SECONDS,
    )
}
