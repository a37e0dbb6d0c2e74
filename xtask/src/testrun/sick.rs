//! Parts that are slow or half dead: clients go on without them, and they come back by themselves.
//!
//! "Goes on" is: while the part is still sick, more writes are answered and made durable than before. How long a client
//! stood still meanwhile is printed, not asserted.

use super::Bench;
use super::report::Report;
use super::rig::{Background, Rig, background};
use crate::cluster::layout::{MOUNT, Spec, osd_name};
use crate::error::{Context, Outcome, ensure};
use crate::exec;
use crate::netns;
use rustix::process::Signal;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Time for what is to happen by itself, on a machine that does much else.
const SOON_SECONDS: u64 = 60;
/// Fsyncs that must be answered while a part is sick.
const FSYNCS_MORE: usize = 5;
/// Stands before the C library's syncs: they wait while a file is there. Nothing of a kernel hangs in a sync alone for sure.
const HANGING_SYNCS: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

static void hang(void) {
    const char *flag = getenv("HANG_WHILE");
    while (flag && access(flag, F_OK) == 0) usleep(20000);
}

int fsync(int fd) {
    hang();
    return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd);
}

int fdatasync(int fd) {
    hang();
    return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(fd);
}
"#;
/// The storage daemon whose disk can be frozen.
const FROZEN: usize = 1;
/// Without these, one is left of three.
const FEW: [&str; 2] = ["osd-0", "osd-2"];
/// Longer than anything here takes: no operation gives up.
const MOUNT_OPTIONS: &str = "timeout=100";

/// Runs the tests.
///
/// # Errors
/// Only on Ctrl-C.
pub fn run(bench: &Bench, report: &mut Report) -> Outcome {
    netns::sweep();
    let mut prepared = Ok(());
    let change = |spec: Spec| {
        prepared = netns::check().and_then(|()| loop_disk(bench, &spec, FROZEN as u32));
        let net = Some(netns::prefix_of_this_process("sick"));
        Spec { net, mount_options: MOUNT_OPTIONS.into(), ..spec }
    };
    let Some(rig) = Rig::start("sick", bench, report, change)? else { return Ok(()) };
    report.case("sick", "a stopped storage daemon: I/O goes on, and it comes back", || {
        prepared?;
        stopped(bench, &rig)
    })?;
    report.case("sick", "a disk that hangs: I/O goes on, and it comes back", || frozen(bench, &rig))?;
    report.case("sick", "a disk on which only syncs hang: I/O goes on, and it comes back", || unsynced(bench, &rig))?;
    report.case("sick", "a storage daemon cut off: I/O goes on, and it comes back", || cut(bench, &rig))?;
    report.case("sick", "lost packets and a thin link give no error", || disturbed(bench, &rig))?;
    report.case("sick", "too few storage daemons: calls wait, and go on by themselves", || too_few(bench, &rig))?;
    report.case("sick", "too few storage daemons: a process that waits can be killed", || killed(bench, &rig))?;
    report.case("sick", "too few storage daemons: unmounting works", || unmounted(bench, &rig))?;
    rig.finish(bench, report)
}

/// A file system of its own for a storage daemon, since freezing stops all of one.
fn loop_disk(bench: &Bench, spec: &Spec, id: u32) -> Outcome {
    let dir = spec.dir.join("data").join(osd_name(id as usize));
    fs::create_dir_all(&dir).doing(|| "cannot make a data directory")?;
    let image = spec.dir.join("disk.img");
    fs::File::create(&image).and_then(|file| file.set_len(1 << 30)).doing(|| "cannot make a disk image")?;
    bench.run(Command::new("mkfs.ext4").arg("-q").arg(&image), 30)?;
    bench.run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&dir), 30).map(drop)
}

/// A writer that fsyncs again and again, and its notes.
struct Writer {
    child: Background,
    manifest: PathBuf,
    stop: PathBuf,
    place: [std::ffi::OsString; 6],
}

impl Writer {
    fn start(bench: &Bench, rig: &Rig, name: &str) -> Outcome<Writer> {
        let scratch = rig.scratch(name)?;
        let (manifest, stop) = (scratch.join("manifest"), scratch.join("stop"));
        let dir = rig.mount().join(name);
        let place =
            ["--seed".into(), "5".into(), "--dir".into(), dir.into(), "--manifest".into(), manifest.clone().into()];
        let mut command = bench.xtask(&["stamp", "write", "--direct"]);
        let child = background(command.args(&place).arg("--stop").arg(&stop), &scratch.join("out"))?;
        let writer = Writer { child, manifest, stop, place };
        writer.goes_on(bench, "at first")?;
        Ok(writer)
    }

    /// Fsyncs answered so far.
    fn fsyncs(&self) -> usize {
        fs::read_to_string(&self.manifest).unwrap_or_default().lines().filter(|line| *line == "s").count()
    }

    /// Some more fsyncs are answered, counted from now; says how long the first took.
    fn goes_on(&self, bench: &Bench, when: &str) -> Outcome {
        let (before, begin) = (self.fsyncs(), Instant::now());
        while self.fsyncs() < before + FSYNCS_MORE {
            let seconds = begin.elapsed().as_secs();
            ensure!(seconds < SOON_SECONDS, "{when}: not {FSYNCS_MORE} fsyncs were answered within {SOON_SECONDS} s");
            bench.interrupt.sleep(Duration::from_millis(20))?;
        }
        Ok(())
    }

    /// It ends well, and everything is as promised.
    fn finish(self, bench: &Bench) -> Outcome {
        fs::write(&self.stop, "").doing(|| "cannot write the stop file")?;
        let said = self.child.finish(bench, SOON_SECONDS)?;
        println!("        {}", said.trim());
        bench.run(bench.xtask(&["stamp", "verify"]).args(&self.place), SOON_SECONDS).map(drop)
    }
}

fn stopped(bench: &Bench, rig: &Rig) -> Outcome {
    let writer = Writer::start(bench, rig, "stopped")?;
    let osd = rig.cluster.daemon("osd-0")?;
    osd.signal(Signal::STOP)?;
    let went_on = writer.goes_on(bench, "while osd-0 was stopped");
    osd.signal(Signal::CONT)?;
    went_on?;
    rig.wait_clean(bench, SOON_SECONDS)?;
    writer.finish(bench)
}

/// Thaws whatever happens: nothing on a frozen file system can be killed.
struct Frozen<'a>(&'a Path);

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let _ = Command::new("fsfreeze").arg("--unfreeze").arg(self.0).output();
    }
}

fn frozen(bench: &Bench, rig: &Rig) -> Outcome {
    let disk = rig.cluster.data_dir(&osd_name(FROZEN));
    let writer = Writer::start(bench, rig, "frozen")?;
    bench.run(Command::new("fsfreeze").arg("--freeze").arg(&disk), 30)?;
    let frozen = Frozen(&disk);
    writer.goes_on(bench, "while the disk of osd-1 was frozen")?;
    drop(frozen);
    rig.wait_clean(bench, 2 * SOON_SECONDS)?;
    writer.finish(bench)
}

/// Writes go on, syncs hang: no thread of a core stands still, and every fsync would wait.
fn unsynced(bench: &Bench, rig: &Rig) -> Outcome {
    const SICK: &str = "osd-2";
    let scratch = rig.scratch("unsynced")?;
    let (source, library, flag) = (scratch.join("hang.c"), scratch.join("hang.so"), scratch.join("hangs"));
    fs::write(&source, HANGING_SYNCS).doing(|| "cannot write a C source")?;
    bench.run(Command::new("gcc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source), 60)?;
    rig.cluster.kill(SICK)?;
    let preloaded = |command: &mut Command| _ = command.env("LD_PRELOAD", &library).env("HANG_WHILE", &flag);
    rig.cluster.start_with(SICK, preloaded, &bench.interrupt)?;
    rig.wait_clean(bench, SOON_SECONDS)?;
    // The first object of a placement group makes a directory, for the sync of which its core waits.
    let every_group = "for i in $(seq 200); do head -c 4096 /dev/urandom > all$i; done; sync .";
    bench.shell(rig.mount(), every_group, 60)?;
    let writer = Writer::start(bench, rig, "unsynced")?;
    fs::write(&flag, "").doing(|| "cannot write the flag")?;
    let went_on = writer.goes_on(bench, "while syncs of osd-2 hung");
    let is_out = rig.cluster.status(&bench.interrupt).map(|status| status["osds"][2]["up"] == false);
    fs::remove_file(&flag).doing(|| "cannot remove the flag")?;
    went_on?;
    ensure!(is_out?, "fsyncs were answered with osd.2 in the cluster, which could not sync");
    rig.wait_clean(bench, 2 * SOON_SECONDS)?;
    writer.finish(bench)?;
    rig.cluster.kill(SICK)?;
    rig.cluster.start(SICK, &bench.interrupt)?;
    rig.wait_clean(bench, SOON_SECONDS)
}

fn cut(bench: &Bench, rig: &Rig) -> Outcome {
    let writer = Writer::start(bench, rig, "cut")?;
    let net = rig.cluster.layout().net().expect("this cluster has a network");
    net.cut("osd-2")?;
    let went_on = writer.goes_on(bench, "while osd-2 was cut off");
    net.mend("osd-2")?;
    went_on?;
    rig.wait_clean(bench, SOON_SECONDS)?;
    writer.finish(bench)
}

fn disturbed(bench: &Bench, rig: &Rig) -> Outcome {
    let writer = Writer::start(bench, rig, "disturbed")?;
    let net = rig.cluster.layout().net().expect("this cluster has a network");
    net.lossy("osd-0")?;
    net.slow("osd-1")?;
    let went_on = writer.goes_on(bench, "with lost packets and a thin link");
    net.mend("osd-0").and(net.mend("osd-1"))?;
    went_on?;
    rig.wait_clean(bench, SOON_SECONDS)?;
    writer.finish(bench)
}

/// Calls wait, and end by themselves once enough storage daemons are back.
fn too_few(bench: &Bench, rig: &Rig) -> Outcome {
    let scratch = rig.scratch("few")?;
    bench.shell(rig.mount(), "head -c 200000 /dev/urandom > few && sync few", 30)?;
    bench.shell(rig.mount(), &format!("cp few '{}'", scratch.join("copy").display()), 30)?;
    FEW.iter().try_for_each(|name| rig.cluster.kill(name))?;
    let mut write = Command::new("bash");
    write.args(["-c", "cp few few-copied && sync few-copied"]).current_dir(rig.mount());
    let mut waiting = background(&mut write, &scratch.join("waiting"))?;
    bench.interrupt.sleep(Duration::from_secs(3))?;
    let waits = !waiting.has_ended();
    FEW.iter().try_for_each(|name| rig.cluster.start(name, &bench.interrupt))?;
    ensure!(waits, "a write was made durable though too few storage daemons were there");
    waiting.finish(bench, SOON_SECONDS)?;
    rig.wait_clean(bench, SOON_SECONDS)?;
    let copy = scratch.join("copy");
    bench.shell(rig.mount(), &format!("cmp few '{0}' && cmp few-copied '{0}'", copy.display()), 30).map(drop)
}

/// The kernel lets a process that waits for FUSE die only when its call is answered, so every call has a deadline.
fn killed(bench: &Bench, rig: &Rig) -> Outcome {
    let point = rig.scratch("second")?;
    let mut mount = rig.cluster.command("fuse-client");
    mount.args(["mount", "--daemon", "-o", "timeout=5"]).arg(rig.cluster.layout().monitor.to_string()).arg(&point);
    bench.shell(rig.mount(), "head -c 200000 /dev/urandom > doomed && sync doomed", 30)?;
    bench.run(&mut mount, 30)?;
    let read = || {
        let mut read = Command::new("dd");
        read.args(["if=doomed", "iflag=direct", "bs=64k", "status=none", "of=/dev/null"]).current_dir(&point);
        read
    };
    let outcome = bench.run(&mut read(), 30).and_then(|_| {
        FEW.iter().try_for_each(|name| rig.cluster.kill(name))?;
        let mut doomed = exec::spawn(&mut read(), "dd")?;
        bench.interrupt.sleep(Duration::from_secs(1))?;
        let waits = matches!(doomed.try_wait(), Ok(None));
        exec::kill_group(&mut doomed);
        let ended = exec::wait(&mut doomed, "dd, killed", Duration::from_secs(SOON_SECONDS), &bench.interrupt);
        ensure!(waits, "a read ended though too few storage daemons were there");
        ended.map(drop)
    });
    crate::mounts::clear(&point);
    FEW.iter().try_for_each(|name| rig.cluster.start(name, &bench.interrupt))?;
    rig.wait_clean(bench, SOON_SECONDS).and(outcome)
}

fn unmounted(bench: &Bench, rig: &Rig) -> Outcome {
    bench.shell(rig.mount(), "echo kept > kept && sync kept", 30)?;
    FEW.iter().try_for_each(|name| rig.cluster.kill(name))?;
    let gone = rig.cluster.unmount(&bench.interrupt);
    FEW.iter().try_for_each(|name| rig.cluster.start(name, &bench.interrupt))?;
    gone?;
    rig.cluster.start(MOUNT, &bench.interrupt)?;
    rig.wait_clean(bench, SOON_SECONDS)?;
    bench.shell(rig.mount(), "grep -qx kept kept", 30).map(drop)
}
