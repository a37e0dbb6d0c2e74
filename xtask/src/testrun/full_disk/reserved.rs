//! Space that was reserved by `fallocate` is there when disks are full, whoever writes; and what
//! frees space works on full disks. The programs on the mount are in `reserved.py`.

use super::super::Bench;
use super::super::report::Report;
use super::super::rig::{Rig, RigTest};
use super::{FILL_SECONDS, SOON_SECONDS};
use crate::cluster::layout::{Spec, osd_name};
use crate::error::{Context, Outcome};
use std::fs::{self, File};
use std::process::Command;

const SCRIPT: &str = concat!(include_str!("../expect.py"), include_str!("reserved.py"));
/// Size of each storage daemon's disk: file systems in memory do not tell what is reserved.
const DISK_BYTES: u64 = 512 << 20;

/// Runs the tests.
///
/// # Errors
/// Only on Ctrl-C.
pub fn run(bench: &Bench, report: &mut Report) -> Outcome {
    let tests: [RigTest; 3] = [
        ("full: fallocate reserves, and refuses at once what does not fit", |bench, rig| {
            check(bench, rig, &["reserve"])
        }),
        ("full: what fallocate reserved can be written, after a remount too", used),
        ("full: fallocate and truncate give space back", |bench, rig| {
            check(bench, rig, &["shrink"])
        }),
    ];
    if !tests.iter().any(|(name, _)| report.wants_test("disk", name)) {
        return Ok(());
    }
    let mut prepared = Ok(());
    let small = |spec: Spec| {
        prepared = (0..spec.osds).try_for_each(|id| loop_disk(bench, &spec, id));
        Spec { settings: vec!["journal_bytes_max = 67108864".into()], ..spec }
    };
    let Some(rig) = Rig::start("full-reserved", bench, report, small)? else { return Ok(()) };
    report.case("disk", "full: disks with file systems of their own", || prepared)?;
    for (name, test) in tests {
        report.case("disk", name, || test(bench, &rig))?;
    }
    rig.finish(bench, report)
}

fn loop_disk(bench: &Bench, spec: &Spec, id: u32) -> Outcome {
    let name = osd_name(id as usize);
    let (dir, image) = (spec.dir.join("data").join(&name), spec.dir.join(format!("{name}.img")));
    fs::create_dir_all(&dir).doing(|| "cannot make a data directory")?;
    File::create(&image)
        .and_then(|file| file.set_len(DISK_BYTES))
        .doing(|| "cannot make a disk image")?;
    bench.run(Command::new("mkfs.ext4").arg("-q").arg(&image), 30)?;
    bench.run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&dir), 30).map(drop)
}

fn used(bench: &Bench, rig: &Rig) -> Outcome {
    rig.remount(bench)?;
    let sums = rig.scratch("sums")?.join("reserved");
    check(bench, rig, &["use", &sums.display().to_string()])?;
    rig.remount(bench)?;
    let mut compare = Command::new("sha256sum");
    compare.args(["--check", "--quiet", "--strict"]).arg(&sums).current_dir(rig.mount());
    bench.run(&mut compare, SOON_SECONDS).map(drop)
}

fn check(bench: &Bench, rig: &Rig, arguments: &[&str]) -> Outcome {
    let path = rig.scratch("program")?.join("reserved.py");
    fs::write(&path, SCRIPT).doing(|| "cannot write the script")?;
    let mut command = Command::new("python3");
    command.arg(path).arg(arguments[0]).arg(rig.mount()).args(&arguments[1..]);
    bench.run(&mut command, FILL_SECONDS).map(drop)
}
