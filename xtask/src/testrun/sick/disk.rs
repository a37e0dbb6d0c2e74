//! A disk whose syncs hang, take seconds, or fail, while everything else on it works.

use super::super::Bench;
use super::super::report::Report;
use super::super::rig::Rig;
use super::SOON_SECONDS;
use super::load::Load;
use crate::error::{Context, Outcome, ensure};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Stands before the C library's syncs. While there is a file `hang` they wait, while there is one
/// `delay` they take [`DELAY_SECONDS`] more each, and the first of a journal that finds one `fail`
/// names it `failed` and fails.
const SICK_SYNCS: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *flag(char *path, size_t size, const char *name) {
    snprintf(path, size, "%s/%s", getenv("SICK_FLAGS"), name);
    return path;
}

static int is_journal(int fd) {
    char link[64], target[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, target, sizeof target - 1);
    if (length < 0) return 0;
    target[length] = 0;
    return strstr(target, "/journal/") != NULL;
}

static int synced(int fd, const char *name) {
    char path[4096], to[4096];
    if (getenv("SICK_FLAGS")) {
        if (access(flag(path, sizeof path, "delay"), F_OK) == 0) sleep(atoi(getenv("SICK_SECONDS")));
        while (access(flag(path, sizeof path, "hang"), F_OK) == 0) usleep(20000);
        flag(path, sizeof path, "fail");
        if (is_journal(fd) && rename(path, flag(to, sizeof to, "failed")) == 0) {
            errno = EIO;
            return -1;
        }
    }
    return ((int (*)(int))dlsym(RTLD_NEXT, name))(fd);
}

int fsync(int fd) { return synced(fd, "fsync"); }
int fdatasync(int fd) { return synced(fd, "fdatasync"); }
"#;
/// More than the grace, and less than what counts as a sync that does not end.
const DELAY_SECONDS: &str = "4";
/// The storage daemon on that disk.
const SICK: &str = "osd-2";
/// For so long one that must not come back by itself is watched.
const WATCHED: Duration = Duration::from_secs(4);

/// Runs the tests.
///
/// # Errors
/// Only on Ctrl-C.
pub fn run(bench: &Bench, rig: &Rig, report: &mut Report) -> Outcome {
    report.case(
        "sick",
        "a disk on which only syncs hang: I/O goes on, and it comes back",
        || hanging(bench, rig),
    )?;
    report.case(
        "sick",
        "a disk that takes seconds for every sync leaves, and comes back",
        || slow(bench, rig),
    )?;
    report.case(
        "sick",
        "a journal whose sync failed is out until a restart, and loses nothing",
        || failed(bench, rig),
    )
}

/// The flags of [`SICK_SYNCS`].
struct Disk(PathBuf);

impl Disk {
    /// Starts the storage daemon again, on a disk that is well for now.
    fn start(bench: &Bench, rig: &Rig, name: &str) -> Outcome<Disk> {
        let scratch = rig.scratch(name)?;
        let (source, library) = (scratch.join("sick.c"), scratch.join("sick.so"));
        fs::write(&source, SICK_SYNCS).doing(|| "cannot write a C source")?;
        let compile = ["-shared", "-fPIC", "-o"];
        bench.run(Command::new("gcc").args(compile).arg(&library).arg(&source), 60)?;
        rig.cluster.kill(SICK)?;
        let preloaded = |command: &mut Command| {
            command
                .env("LD_PRELOAD", &library)
                .env("SICK_FLAGS", &scratch)
                .env("SICK_SECONDS", DELAY_SECONDS);
        };
        rig.cluster.start_with(SICK, preloaded, &bench.interrupt)?;
        rig.wait_clean(bench, SOON_SECONDS)?;
        // The first object of a placement group makes a directory, for the sync of which its core
        // waits.
        let every_group = "for i in $(seq 200); do head -c 4096 /dev/urandom > all$i; done; sync .";
        bench.shell(rig.mount(), every_group, 60)?;
        Ok(Disk(scratch))
    }

    fn set(&self, flag: &str) -> Outcome<Flag> {
        let path = self.0.join(flag);
        fs::write(&path, "").doing(|| "cannot write a flag")?;
        Ok(Flag(path))
    }
}

/// Taken away whatever happens: the daemon could not be stopped.
struct Flag(PathBuf);

impl Drop for Flag {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn is_up(bench: &Bench, rig: &Rig) -> Outcome<bool> {
    Ok(rig.cluster.status(&bench.interrupt)?["osds"][2]["up"] == true)
}

/// Writes go on, syncs hang: no thread of a core stands still, and every fsync would wait.
fn hanging(bench: &Bench, rig: &Rig) -> Outcome {
    let disk = Disk::start(bench, rig, "unsynced")?;
    let load = Load::start(bench, rig, "unsynced")?;
    let flag = disk.set("hang")?;
    load.goes_on(bench, "while syncs of osd-2 hung")?;
    ensure!(
        !is_up(bench, rig)?,
        "fsyncs were answered with osd.2 in the cluster, which could not sync"
    );
    drop(flag);
    rig.wait_clean(bench, 2 * SOON_SECONDS)?;
    load.finish(bench)
}

/// No sync hangs, all are late: the storage daemon would hold up every fsync for ever.
fn slow(bench: &Bench, rig: &Rig) -> Outcome {
    let disk = Disk::start(bench, rig, "late")?;
    let load = Load::start(bench, rig, "late")?;
    let flag = disk.set("delay")?;
    rig.wait_for(bench, "osd.2, whose syncs are late, leaves", SOON_SECONDS, || {
        Ok(!is_up(bench, rig)?)
    })?;
    load.goes_on(bench, "while syncs of osd-2 took seconds")?;
    drop(flag);
    rig.wait_clean(bench, 2 * SOON_SECONDS)?;
    load.finish(bench)
}

/// What the kernel could not write it may have dropped: nothing that the storage daemon held
/// unsynced counts.
fn failed(bench: &Bench, rig: &Rig) -> Outcome {
    let disk = Disk::start(bench, rig, "failed")?;
    let load = Load::start(bench, rig, "failed")?;
    let _flag = disk.set("fail")?;
    rig.wait_for(bench, "osd.2, a sync of whose journal failed, leaves", SOON_SECONDS, || {
        Ok(!is_up(bench, rig)?)
    })?;
    ensure!(disk.0.join("failed").exists(), "no sync of a journal has failed");
    load.goes_on(bench, "without osd-2, whose disk had failed")?;
    bench.interrupt.sleep(WATCHED)?;
    ensure!(
        !is_up(bench, rig)?,
        "osd.2 came back without a restart, though a sync of its journal had failed"
    );
    rig.cluster.kill(SICK)?;
    rig.cluster.start(SICK, &bench.interrupt)?;
    rig.wait_clean(bench, SOON_SECONDS)?;
    load.finish(bench)?;
    let mut scrub = rig.cluster.command("trefoil");
    let said = bench.run(scrub.args(["scrub", "--deep", "--wait"]), 100)?.stdout;
    ensure!(said.contains("nothing open"), "the deep scrub says: {said}");
    let found = rig.osd_sum(bench, "corrupt_found")?;
    ensure!(found == 0, "{found} damaged sectors were found, and nobody damaged any");
    Ok(())
}
