//! Processes killed with SIGKILL under writers that remember what they were promised; and two
//! clients of one cluster.

use super::report::Report;
use super::rig::{Background, Rig, background};
use super::{ANSWERS_EARLY, Bench};
use crate::cluster::layout::{ALL, MOUNT, Spec};
use crate::error::{Context, Outcome, ensure};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// A fsync is answered within this time once everything runs again.
const RECOVER_SECONDS: u64 = 120;
/// Seed of the order of kills. Printed with a failure; what the processes do with it is up to the
/// scheduler.
const SEED: u64 = 0x7472_6566;

/// Each role in a process of its own.
///
/// # Errors
/// Only on Ctrl-C.
pub fn separate(bench: &Bench, report: &mut Report) -> Outcome {
    let Some(rig) = Rig::start("kills", bench, report, |spec| spec)? else { return Ok(()) };
    report.case("kill", "random daemons die under writers, nothing fsynced is lost", || {
        daemons(bench, &rig)
    })?;
    report
        .case("kill", "the client dies, nothing fsynced is lost", || client(bench, &rig, false))?;
    rig.finish(bench, report)
}

/// As [`separate`], on a cluster of its own, which takes half the time.
///
/// # Errors
/// Only on Ctrl-C.
pub fn with_client(bench: &Bench, report: &mut Report) -> Outcome {
    let Some(rig) = Rig::start("kills-client", bench, report, |spec| spec)? else { return Ok(()) };
    let age = "the client dies, no file is older than its last fsynced write";
    report.case("kill", age, || no_file_is_too_old(bench, &rig))?;
    report.case("kill", "everything dies at once, nothing fsynced is lost", || {
        everything(bench, &rig)
    })?;
    rig.finish(bench, report)
}

/// With a mount that answers early.
///
/// # Errors
/// Only on Ctrl-C.
pub fn write_behind(bench: &Bench, report: &mut Report) -> Outcome {
    let behind = |spec| Spec { mount_options: ANSWERS_EARLY.into(), ..spec };
    let Some(rig) = Rig::start("kills-write-behind", bench, report, behind)? else { return Ok(()) };
    report.phase("write-behind");
    report.case("kill", "random daemons die under writers, nothing answered is lost", || {
        daemons(bench, &rig)
    })?;
    report
        .case("kill", "the client dies, nothing fsynced is lost", || client(bench, &rig, true))?;
    let small = "storage daemons and the client die under small appends: in order, whole, and what was fsynced is there";
    report.case("kill", small, || small_appends(bench, &rig))?;
    report.phase("");
    rig.finish(bench, report)
}

/// All roles in one process.
///
/// # Errors
/// Only on Ctrl-C.
pub fn together(bench: &Bench, report: &mut Report) -> Outcome {
    let one = |spec| Spec { one_process: true, ..spec };
    let Some(rig) = Rig::start("kills-one-process", bench, report, one)? else { return Ok(()) };
    report.case("kill", "the daemon of a one-process cluster dies under writers", || {
        one_process(bench, &rig)
    })?;
    rig.finish(bench, report)
}

/// A pair of writers, one buffered and one direct, each with its manifest.
pub(super) struct Writers {
    area: PathBuf,
    scratch: PathBuf,
    running: Vec<Background>,
    /// They are held to fsyncs only.
    fsynced_only: bool,
}

impl Writers {
    /// In an area of its own; `name` may be used again to go on with the same files.
    pub fn start(bench: &Bench, rig: &Rig, name: &str) -> Outcome<Writers> {
        let scratch = rig.scratch(name)?;
        let mut writers = Writers {
            area: rig.mount().join(name),
            scratch,
            running: Vec::new(),
            fsynced_only: false,
        };
        writers.go_on(bench)?;
        Ok(writers)
    }

    fn go_on(&mut self, bench: &Bench) -> Outcome {
        let stop = self.scratch.join("stop");
        if stop.exists() {
            std::fs::remove_file(&stop).doing(|| "cannot remove the stop file")?;
        }
        for (kind, direct) in [("buffered", false), ("direct", true)] {
            let mut command = self.command(bench, "write", kind);
            command.arg("--stop").arg(&stop).args(direct.then_some("--direct"));
            self.running.push(background(&mut command, &self.scratch.join(format!("{kind}.out")))?);
        }
        Ok(())
    }

    fn command(&self, bench: &Bench, task: &str, kind: &str) -> std::process::Command {
        let mut command = bench.xtask(&["stamp", task, "--seed", &SEED.to_string()]);
        command
            .arg("--dir")
            .arg(self.area.join(kind))
            .arg("--manifest")
            .arg(self.scratch.join(kind));
        command
    }

    /// None of them may have ended by itself.
    pub fn check(&mut self) -> Outcome {
        let ended = self.running.iter_mut().any(Background::has_ended);
        let said = || {
            let of = |kind| std::fs::read_to_string(self.scratch.join(kind)).unwrap_or_default();
            format!("{} {}", of("buffered.out"), of("direct.out"))
        };
        ensure!(!ended, "a writer ended: {}", said());
        Ok(())
    }

    /// They end well.
    pub fn stop(&mut self, bench: &Bench) -> Outcome {
        std::fs::write(self.scratch.join("stop"), "").doing(|| "cannot write the stop file")?;
        for writer in self.running.drain(..) {
            writer.finish(bench, RECOVER_SECONDS)?;
        }
        Ok(())
    }

    /// They end, with errors or without.
    fn abandon(&mut self, bench: &Bench) -> Outcome {
        std::fs::write(self.scratch.join("stop"), "").doing(|| "cannot write the stop file")?;
        self.running.drain(..).try_for_each(|writer| writer.end(bench, RECOVER_SECONDS))
    }

    pub fn verify(&self, bench: &Bench, syncs_min: u64) -> Outcome {
        for kind in ["buffered", "direct"] {
            let mut command = self.command(bench, "verify", kind);
            command
                .args(["--syncs-min", &syncs_min.to_string()])
                .args(self.fsynced_only.then_some("--fsynced-only"));
            bench.run(&mut command, RECOVER_SECONDS)?;
        }
        Ok(())
    }
}

/// Starts what is dead, all at once, and waits until it serves.
fn revive(bench: &Bench, rig: &Rig, victims: &[String]) -> Outcome {
    let order: Vec<String> =
        rig.cluster.layout().daemons().into_iter().filter(|d| victims.contains(d)).collect();
    order.iter().try_for_each(|name| rig.cluster.start(name, &bench.interrupt))
}

fn kill(rig: &Rig, victims: &[String]) -> Outcome {
    victims.iter().try_for_each(|name| rig.cluster.kill(name))
}

/// Who dies in a round: one storage daemon mostly, sometimes another role, two, or all.
fn victims(rng: &mut fastrand::Rng, all: &[String]) -> Vec<String> {
    let mut osds: Vec<String> = all.iter().filter(|n| n.starts_with("osd-")).cloned().collect();
    rng.shuffle(&mut osds);
    match rng.u8(0..10) {
        0..5 => osds[..1].to_vec(),
        5 => vec!["monitor".into()],
        6 => vec!["mds".into()],
        7 => osds[..2].to_vec(),
        8 => vec![osds[0].clone(), "mds".into()],
        _ => all.to_vec(),
    }
}

fn daemons(bench: &Bench, rig: &Rig) -> Outcome {
    let mut rng = fastrand::Rng::with_seed(SEED);
    let all = rig.cluster.layout().daemons();
    let mut writers = Writers::start(bench, rig, "daemons")?;
    let mut told = Vec::new();
    for round in 0..bench.size(14, 4) {
        bench.interrupt.sleep(Duration::from_millis(rng.u64(200..2_000)))?;
        let victims = victims(&mut rng, &all);
        told.push(victims.join("+"));
        let context = || format!("after the kills {}", told.join(", "));
        kill(rig, &victims)?;
        bench.interrupt.sleep(Duration::from_millis(rng.u64(50..2_500)))?;
        revive(bench, rig, &victims).doing(context)?;
        // Now and then let it become whole; else the next one dies while this one is being rebuilt.
        if round % 4 == 3 {
            rig.wait_clean(bench, RECOVER_SECONDS).doing(context)?;
        }
        writers.check().doing(context)?;
    }
    let context = || format!("after the kills {}", told.join(", "));
    writers.stop(bench).doing(context)?;
    rig.wait_clean(bench, RECOVER_SECONDS).doing(context)?;
    rig.remount(bench)?;
    writers.verify(bench, 20).doing(context)
}

/// `fsynced_only`: the mount answers early, and what was answered and not fsynced may be lost with
/// it.
fn client(bench: &Bench, rig: &Rig, fsynced_only: bool) -> Outcome {
    let mut writers = Writers::start(bench, rig, "client")?;
    writers.fsynced_only = fsynced_only;
    for round in 1..=bench.size(3, 1) {
        bench.interrupt.sleep(Duration::from_millis(700 * round))?;
        rig.cluster.kill(MOUNT)?;
        writers.abandon(bench)?;
        rig.cluster.start(MOUNT, &bench.interrupt)?;
        writers.verify(bench, 1)?;
        writers.go_on(bench)?;
    }
    bench.interrupt.sleep(Duration::from_secs(1))?;
    writers.stop(bench)?;
    writers.verify(bench, 5)
}

/// Writers that append 8 bytes at a time, each to a file of its own.
struct Appenders {
    area: PathBuf,
    scratch: PathBuf,
    running: Vec<Background>,
}

impl Appenders {
    const NAMES: [&'static str; 2] = ["one", "two"];

    fn command(&self, task: &str, name: &str, last: &str) -> std::process::Command {
        let mut command = std::process::Command::new("python3");
        command.arg(self.scratch.join("appends.py")).args([task]);
        command.arg(self.area.join(name)).arg(self.scratch.join(name)).arg(last);
        command
    }

    fn go_on(&mut self) -> Outcome {
        let stop = self.scratch.join("stop");
        if stop.exists() {
            std::fs::remove_file(&stop).doing(|| "cannot remove the stop file")?;
        }
        for name in Self::NAMES {
            let mut command = self.command("write", name, &stop.to_string_lossy());
            self.running.push(background(&mut command, &self.scratch.join(format!("{name}.out")))?);
        }
        Ok(())
    }

    /// They end: well, or as they may after the client's death.
    fn stop(&mut self, bench: &Bench, well: bool) -> Outcome {
        std::fs::write(self.scratch.join("stop"), "").doing(|| "cannot write the stop file")?;
        for writer in self.running.drain(..) {
            if well {
                writer.finish(bench, RECOVER_SECONDS)?;
            } else {
                writer.end(bench, RECOVER_SECONDS)?;
            }
        }
        Ok(())
    }

    fn verify(&self, bench: &Bench) -> Outcome {
        let verify =
            |name| bench.run(&mut self.command("verify", name, "1"), RECOVER_SECONDS).map(drop);
        Self::NAMES.into_iter().try_for_each(verify)
    }
}

fn small_appends(bench: &Bench, rig: &Rig) -> Outcome {
    let (area, scratch) = (rig.area(bench, "small-appends")?, rig.scratch("small-appends")?);
    std::fs::write(scratch.join("appends.py"), include_str!("appends.py"))
        .doing(|| "cannot write the script")?;
    let mut appenders = Appenders { area, scratch, running: Vec::new() };
    appenders.go_on()?;
    for osd in ["osd-0", "osd-1"] {
        bench.interrupt.sleep(Duration::from_secs(1))?;
        rig.cluster.kill(osd)?;
        bench.interrupt.sleep(Duration::from_secs(1))?;
        rig.cluster.start(osd, &bench.interrupt)?;
        rig.wait_clean(bench, RECOVER_SECONDS)?;
    }
    appenders.stop(bench, true)?;
    appenders.verify(bench)?;
    for _ in 0..bench.size(3, 1) {
        appenders.go_on()?;
        bench.interrupt.sleep(Duration::from_millis(1_500))?;
        rig.cluster.kill(MOUNT)?;
        appenders.stop(bench, false)?;
        rig.cluster.start(MOUNT, &bench.interrupt)?;
        appenders.verify(bench)?;
    }
    Ok(())
}

/// Writes and syncs alternate until times follow (`mount.times_follow`), then the client dies with
/// times untold, later with all told: no time goes back, and one that was told stays.
fn no_file_is_too_old(bench: &Bench, rig: &Rig) -> Outcome {
    let path = rig.area(bench, "age")?.join("log");
    let modified =
        || path.metadata().and_then(|found| found.modified()).doing(|| "cannot look at the file");
    for tells in [false, true] {
        let begun = SystemTime::now();
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let file = file.doing(|| "cannot open the file")?;
        for block in 0..20 {
            file.write_all_at(&[block; 4096], 0).doing(|| "cannot write")?;
            file.sync_all().doing(|| "cannot sync")?;
        }
        let seen = modified()?;
        ensure!(seen >= begun, "modified {seen:?}, before {begun:?}");
        if tells {
            // Nothing is written: after two sweeps the service knows all.
            bench.interrupt.sleep(Duration::from_secs(5))?;
        }
        rig.cluster.kill(MOUNT)?;
        drop(file);
        rig.cluster.start(MOUNT, &bench.interrupt)?;
        let after = modified()?;
        let is_right = if tells { after == seen } else { after > seen };
        ensure!(is_right, "modified {after:?}, before the client died {seen:?}, all told: {tells}");
    }
    Ok(())
}

fn everything(bench: &Bench, rig: &Rig) -> Outcome {
    let mut writers = Writers::start(bench, rig, "everything")?;
    for _ in 0..bench.size(2, 1) {
        bench.interrupt.sleep(Duration::from_millis(1_500))?;
        kill(rig, &rig.cluster.layout().daemons())?;
        rig.cluster.kill(MOUNT)?;
        writers.abandon(bench)?;
        rig.cluster.start_all(&bench.interrupt)?;
        writers.verify(bench, 1)?;
        writers.go_on(bench)?;
    }
    writers.stop(bench)?;
    writers.verify(bench, 3)
}

fn one_process(bench: &Bench, rig: &Rig) -> Outcome {
    let mut rng = fastrand::Rng::with_seed(SEED + 1);
    let mut writers = Writers::start(bench, rig, "one-process")?;
    for _ in 0..bench.size(6, 2) {
        bench.interrupt.sleep(Duration::from_millis(rng.u64(300..2_500)))?;
        rig.cluster.kill(ALL)?;
        bench.interrupt.sleep(Duration::from_millis(rng.u64(10..1_500)))?;
        rig.cluster.start(ALL, &bench.interrupt)?;
        writers.check()?;
    }
    writers.stop(bench)?;
    rig.wait_clean(bench, RECOVER_SECONDS)?;
    rig.remount(bench)?;
    writers.verify(bench, 10)
}

/// A second mount of the cluster: each sees what the other has written, made and removed.
///
/// # Errors
/// Only on Ctrl-C.
pub fn two_clients(bench: &Bench, rig: &Rig, area: &str, report: &mut Report) -> Outcome {
    report.case("clients", "two mounts see each other's changes", || {
        let area = rig.area(bench, &format!("clients-{area}"))?;
        let second = rig.scratch("second")?;
        let mut mount = rig.cluster.background_client();
        mount
            .args(["mount", "--daemon"])
            .arg(rig.cluster.layout().monitor.to_string())
            .arg(&second);
        bench.run(&mut mount, 30)?;
        let other = second.join(area.file_name().unwrap_or_default());
        let outcome = exchange(bench, &area, &other);
        let umount = bench.run(rig.cluster.command("fuse-client").arg("umount").arg(&second), 30);
        crate::mounts::clear(&second);
        outcome.and(umount.map(drop))
    })
}

fn exchange(bench: &Bench, a: &Path, b: &Path) -> Outcome {
    let lines = format!(
        "A='{}' B='{}'\n\
         gone() {{ test ! -e $1; }}; mode() {{ test $(stat -c %a $1) = $2; }}; lists() {{ ls $1 | grep -qx $2; }}\n\
         echo one > $A/f; cmp $A/f $B/f; echo two > $B/f; cmp $A/f $B/f\n\
         mkdir $A/d; test -d $B/d; touch $B/d/x; lists $A/d x; mv $A/d/x $A/d/y; gone $B/d/x; test -e $B/d/y\n\
         chmod 600 $B/f; mode $A/f 600\n\
         for i in $(seq 30); do echo a$i >> $A/log; echo b$i >> $B/log; done\n\
         test $(wc -l < $A/log) = 60; cmp $A/log $B/log\n\
         exec 3< $B/f; rm $A/f; gone $B/f; grep -qx two <&3\n\
         head -c 3000000 /dev/urandom > $A/big; cmp $A/big $B/big; truncate -s 1000 $B/big; cmp $A/big $B/big\n\
         rm -r $B/d; gone $A/d",
        a.display(),
        b.display()
    );
    bench.shell(Path::new("/"), &lines, 120).map(drop)
}
