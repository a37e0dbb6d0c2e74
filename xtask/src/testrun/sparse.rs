//! Files whose sizes say nothing of what they store: every call on them, and what the services do
//! with them behind it, costs what is stored. The programs on the mount are in `sparse.py`.

use super::Bench;
use super::report::Report;
use super::rig::{Rig, background, mount_points};
use crate::error::{Context, Outcome, ensure};
use crate::process::most_resident;
use std::path::Path;
use std::process::Command;

const SCRIPT: &str = concat!(include_str!("expect.py"), include_str!("sparse.py"));
/// A check ends within this time also on a busy machine; one that works by numbers would take
/// hours.
const CHECK_SECONDS: u64 = 120;
/// A dead client's session is over, and what it left is dealt with, within this time.
const LEFT_SECONDS: u64 = 90;
/// What a process may ever have held, in bytes. What works by numbers takes many GiB.
const RESIDENT_BYTES_MAX: u64 = 512 << 20;
/// Fragments that twenty files of twelve bytes each leave behind on three storage daemons, and some
/// that are nobody's.
const OBJECTS_MAX: u64 = 400;

/// A test on the mounted cluster.
type SparseTest = (&'static str, fn(&Bench, &Rig) -> Outcome);

/// Runs the tests.
///
/// # Errors
/// Only on Ctrl-C.
pub fn run(bench: &Bench, report: &mut Report) -> Outcome {
    let Some(rig) = Rig::start("sparse", bench, report, |spec| spec)? else { return Ok(()) };
    let tests: [SparseTest; 6] = [
        ("files of every size are cut, punched, searched and removed", |b, rig| {
            check(b, rig, rig.mount(), "content")
        }),
        ("holes are copied as holes, and cp finds the end of the data", |b, rig| {
            check(b, rig, rig.mount(), "copies")
        }),
        ("what cannot be stored is EFBIG in every call", |b, rig| {
            check(b, rig, rig.mount(), "too_large")
        }),
        ("huge files are removed while a storage daemon is away", removed_degraded),
        ("a metadata service that starts with huge files to remove does so", removed_at_start),
        ("a client killed with huge files open leaves nothing behind", killed_holding),
    ];
    for (name, test) in tests {
        if report.wants_test("sparse", name) {
            report
                .case("sparse", name, || test(bench, &rig).and_then(|()| no_process_grew(&rig)))?;
        }
    }
    rig.finish(bench, report)
}

fn program(rig: &Rig, dir: &Path, check: &str) -> Outcome<Command> {
    let path = rig.scratch("program")?.join("sparse.py");
    std::fs::write(&path, SCRIPT).doing(|| "cannot write the script")?;
    let mut command = Command::new("python3");
    command.arg(path).arg(check).arg(dir);
    Ok(command)
}

fn check(bench: &Bench, rig: &Rig, dir: &Path, check: &str) -> Outcome {
    bench.run(&mut program(rig, dir, check)?, CHECK_SECONDS).map(drop)
}

fn removed_degraded(bench: &Bench, rig: &Rig) -> Outcome {
    rig.cluster.kill("osd-1")?;
    check(bench, rig, rig.mount(), "removed")?;
    rig.cluster.start("osd-1", &bench.interrupt)?;
    let mut most = 0;
    rig.cluster.wait_clean(
        std::time::Duration::from_secs(CHECK_SECONDS),
        &bench.interrupt,
        |status| {
            most = most.max(status["objects_to_rebuild"].as_u64().unwrap_or(0));
        },
    )?;
    ensure!(most <= OBJECTS_MAX, "{most} objects were to be rebuilt, of files that stored 40");
    nothing_waits(bench, rig)
}

fn removed_at_start(bench: &Bench, rig: &Rig) -> Outcome {
    // Removals wait for a storage daemon that is stopped, and so are there when the service starts.
    rig.cluster.kill("osd-1")?;
    rig.cluster.kill("osd-2")?;
    let begun = background(
        &mut program(rig, rig.mount(), "removed")?,
        &rig.scratch("program")?.join("out"),
    )?;
    bench.interrupt.sleep(std::time::Duration::from_secs(1))?;
    rig.cluster.start("osd-2", &bench.interrupt)?;
    begun.finish(bench, CHECK_SECONDS)?;
    rig.cluster.kill("mds")?;
    rig.cluster.start("osd-1", &bench.interrupt)?;
    rig.cluster.start("mds", &bench.interrupt)?;
    rig.wait_clean(bench, CHECK_SECONDS)?;
    nothing_waits(bench, rig)
}

fn killed_holding(bench: &Bench, rig: &Rig) -> Outcome {
    let guest = rig.cluster.mount_also(
        "sparse-guest",
        &mount_points().join("sparse-guest"),
        &bench.interrupt,
    )?;
    let output = rig.scratch("program")?.join("held");
    let mut holder = background(&mut program(rig, guest.point(), "held")?, &output)?;
    rig.wait_for(bench, "the files are held", 60, || {
        let said = std::fs::read_to_string(&output).unwrap_or_default();
        ensure!(!holder.has_ended(), "the program ended: {said}");
        Ok(said.contains("held"))
    })?;
    guest.daemon().kill()?;
    holder.kill();
    drop(guest);
    rig.wait_for(bench, "the size of the file is found", LEFT_SECONDS, || {
        Ok(check(bench, rig, rig.mount(), "after").is_ok())
    })?;
    nothing_waits(bench, rig)
}

/// All that was removed is gone from the disks.
fn nothing_waits(bench: &Bench, rig: &Rig) -> Outcome {
    rig.wait_for(bench, "all fragments are removed", LEFT_SECONDS, || {
        let mut left = 0;
        for id in 0..rig.cluster.layout().osds.len() {
            let dir = rig.cluster.data_dir(&format!("osd-{id}"));
            let found =
                bench.shell(&dir, "find . -path '*/pg/*' -type f | wc -l", CHECK_SECONDS)?;
            left += found.stdout.trim().parse::<u64>().unwrap_or(u64::MAX / 4);
        }
        Ok(left == 0)
    })
}

fn no_process_grew(rig: &Rig) -> Outcome {
    for daemon in rig.cluster.all() {
        let bytes = most_resident(&daemon)?;
        ensure!(bytes <= RESIDENT_BYTES_MAX, "{} has held {} MiB", daemon.name, bytes >> 20);
    }
    Ok(())
}
