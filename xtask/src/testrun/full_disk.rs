//! Disks that are full: writers are told, and what is there can be read, healed and deleted.
//!
//! Each storage daemon has a small file system in memory. Writers note the sum of every file that
//! an fsync has promised them; on a mount that answers early, of every file that was written and
//! closed without an error.

mod reserved;
mod services;

use super::report::Report;
use super::rig::{Background, Rig, RigTest, background, mount_points};
use super::{ANSWERS_EARLY, Bench};
use crate::cluster::layout::{Spec, osd_name};
use crate::error::{Context, Outcome, ensure};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Size of each storage daemon's disk.
const DISK_MIB: u32 = 256;
/// A filled disk is above it also once its journal has shrunk, by a quarter of the disk at most.
const NEARFULL: &str = "mon_osd_nearfull_ratio = 0.5";
/// Programs that write at the same time.
const WRITERS: usize = 4;
/// More than fit on the disks.
const FILES_MAX: u32 = 5000;
/// Until a volume is full, or everything in it is read, on a machine that does much else.
const FILL_SECONDS: u64 = 300;
/// What is to happen by itself happens within this time.
const SOON_SECONDS: u64 = 90;

/// The files that writers write, and when one is promised to be there.
struct Files {
    bytes: u32,
    /// Run on a file that is written and closed; it is promised if this succeeds.
    promise: &'static str,
}

const SYNCED: Files = Files { bytes: 4_000_000, promise: "sync" };
/// Small enough that many are on their way when the disks are full.
const CLOSED: Files = Files { bytes: 200_000, promise: "true" };

/// Writes files, and notes the sums of those that are promised. `$1`: the writer, `$2`: the notes,
/// `$3`: files at most, `$4`: bytes of a file, `$5`: the command that makes a written file a
/// promised one. Ends well when all are written, or when there is no space.
const WRITER: &str = r#"
set -u -o pipefail
export LC_ALL=C
for n in $(seq "$3"); do
    file="fill-$1-$n"
    if ! sum=$( { head -c "$4" /dev/urandom | tee "$file" | sha256sum && "$5" "$file"; } 2> "$2.error"); then
        cat "$2.error" >&2
        grep -q 'No space left on device' "$2.error" || exit 1
        ! grep -v 'No space left on device' "$2.error" || exit 1
        echo "$n" > "$2.full"
        exit 0
    fi
    echo "${sum%% *}  $file" >> "$2"
done
"#;

/// Runs the tests.
///
/// # Errors
/// Only on Ctrl-C.
pub fn run(bench: &Bench, report: &mut Report) -> Outcome {
    filling(bench, report)?;
    behind(bench, report)?;
    reserved::run(bench, report)?;
    services::run(bench, report)
}

fn filling(bench: &Bench, report: &mut Report) -> Outcome {
    let tests: [RigTest; 4] = [
        (
            "full: writers get ENOSPC while a storage daemon is away, all they synced is there",
            |bench, rig| filled(bench, rig, &SYNCED),
        ),
        ("full: the one that was away heals, and any two suffice", healed),
        ("full: what is removed can be written again", freed),
        ("full: three mounts at once fill them again, all shards match", filled_by_three),
    ];
    if !tests.iter().any(|(name, _)| report.wants_test("disk", name)) {
        return Ok(());
    }
    let mut prepared = Ok(());
    let small = |spec| small_disks(bench, spec, &mut prepared);
    let Some(rig) = Rig::start("full", bench, report, small)? else { return Ok(()) };
    report.case("disk", "full: small disks are mounted", || prepared)?;
    for (name, test) in tests {
        report.case("disk", name, || test(bench, &rig))?;
    }
    rig.finish(bench, report)
}

/// A mount that answers early answers nothing that the disks refuse then.
fn behind(bench: &Bench, report: &mut Report) -> Outcome {
    let name = "full: writers get ENOSPC while a storage daemon is away, all they closed is there";
    if !report.wants_test("disk", name) {
        return Ok(());
    }
    let mut prepared = Ok(());
    let small = |spec| Spec {
        mount_options: ANSWERS_EARLY.into(),
        ..small_disks(bench, spec, &mut prepared)
    };
    let Some(rig) = Rig::start("full-behind", bench, report, small)? else { return Ok(()) };
    report.phase("write-behind");
    report.case("disk", "full: small disks are mounted", || prepared)?;
    report.case("disk", name, || filled(bench, &rig, &CLOSED))?;
    report.phase("");
    rig.finish(bench, report)
}

/// A cluster whose storage daemons have small disks.
fn small_disks(bench: &Bench, spec: Spec, prepared: &mut Outcome) -> Spec {
    *prepared = (0..spec.osds).try_for_each(|id| small_disk(bench, &spec, id));
    Spec { settings: vec!["journal_bytes_max = 67108864".into(), NEARFULL.into()], ..spec }
}

fn small_disk(bench: &Bench, spec: &Spec, id: u32) -> Outcome {
    let dir = spec.dir.join("data").join(osd_name(id as usize));
    fs::create_dir_all(&dir).doing(|| "cannot make a data directory")?;
    let size = format!("size={DISK_MIB}m");
    bench
        .run(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "none"]).arg(&dir), 10)
        .map(drop)
}

/// Several writers at once, over the mounts at `points`, each of at most so many files; all of them
/// must end well. Gives how many met a full disk.
fn write(
    bench: &Bench,
    rig: &Rig,
    points: &[&Path],
    round: &str,
    files: &Files,
    files_max: u32,
) -> Outcome<usize> {
    let notes = rig.scratch("notes")?;
    let start = |writer: usize| {
        let of = format!("{round}{writer}");
        let mut command = Command::new("bash");
        command.args(["-c", WRITER, "writer", &of]).arg(notes.join(&of));
        command.args([&files_max.to_string(), &files.bytes.to_string(), files.promise]);
        background(
            command.current_dir(points[writer % points.len()]),
            &notes.join(format!("{of}.out")),
        )
    };
    let writers: Vec<Background> = (0..WRITERS).map(start).collect::<Outcome<_>>()?;
    writers.into_iter().try_for_each(|writer| writer.finish(bench, FILL_SECONDS).map(drop))?;
    Ok((0..WRITERS).filter(|writer| notes.join(format!("{round}{writer}.full")).exists()).count())
}

/// Everything that was promised and not removed is there, with no cache of the client left. Gives
/// how many files that are.
fn compare(bench: &Bench, rig: &Rig) -> Outcome<usize> {
    rig.remount(bench)?;
    let notes = rig.scratch("notes")?;
    let mut lines = String::new();
    for entry in fs::read_dir(&notes).doing(|| "cannot list the notes")? {
        let path = entry.doing(|| "cannot list the notes")?.path();
        if path.extension().is_none() {
            lines += &fs::read_to_string(&path).doing(|| "cannot read the notes")?;
        }
    }
    let sums = rig.scratch("sums")?.join("all");
    fs::write(&sums, &lines).doing(|| "cannot write the sums")?;
    bench.run(
        Command::new("sha256sum")
            .args(["--check", "--quiet", "--strict"])
            .arg(&sums)
            .current_dir(rig.mount()),
        FILL_SECONDS,
    )?;
    Ok(lines.lines().count())
}

/// Every storage daemon runs, and the status names those whose disks are filled. That may have got
/// some space back: journals shrink once writers have stopped.
fn shown(bench: &Bench, rig: &Rig, full_min: usize) -> Outcome {
    rig.wait_for(bench, "full storage daemons in `trefoil status --json`", SOON_SECONDS, || {
        let status = rig.cluster.status(&bench.interrupt)?;
        let osds = status["osds"].as_array().cloned().unwrap_or_default();
        let full =
            osds.iter().filter(|osd| osd["fullness"].as_str().is_some_and(|word| word != "ok"));
        let told = status["messages"].as_array().cloned().unwrap_or_default();
        let named = told
            .iter()
            .filter_map(|line| line.as_str())
            .filter(|line| line.contains("% of its disk is used"));
        Ok(full.count() >= full_min && named.count() >= full_min)
    })?;
    for name in rig.cluster.layout().daemons() {
        ensure!(rig.cluster.daemon(&name)?.pid().is_some(), "{name} died of a full disk");
    }
    Ok(())
}

fn filled(bench: &Bench, rig: &Rig, files: &Files) -> Outcome {
    let full = write(bench, rig, &[rig.mount()], "a", files, 3)?;
    ensure!(full == 0, "{full} writers were told that disks of {DISK_MIB} MiB are full at once");
    rig.cluster.kill("osd-2")?;
    let full = write(bench, rig, &[rig.mount()], "b", files, FILES_MAX)?;
    ensure!(full == WRITERS, "{full} of {WRITERS} writers were told that the disks are full");
    let files = compare(bench, rig)?;
    ensure!(files > 4 * WRITERS, "only {files} files fit on the disks");
    rig.cluster.start("osd-2", &bench.interrupt)?;
    shown(bench, rig, 2)
}

fn healed(bench: &Bench, rig: &Rig) -> Outcome {
    rig.wait_clean(bench, FILL_SECONDS)?;
    shown(bench, rig, 3)?;
    for id in 0..rig.cluster.layout().osds.len() {
        let name = osd_name(id);
        rig.cluster.kill(&name)?;
        let compared = compare(bench, rig);
        rig.cluster.start(&name, &bench.interrupt)?;
        compared.doing(|| format!("{name} is dead"))?;
        rig.wait_clean(bench, SOON_SECONDS)?;
    }
    Ok(())
}

fn freed(bench: &Bench, rig: &Rig) -> Outcome {
    bench.shell(rig.mount(), "rm fill-b0-* fill-b1-*", 60)?;
    for writer in ["b0", "b1"] {
        fs::remove_file(rig.scratch("notes")?.join(writer)).doing(|| "a writer wrote nothing")?;
    }
    rig.wait_for(bench, "writing after space was freed", SOON_SECONDS, || {
        let line = "head -c 4000000 /dev/urandom > again && sync again && rm again";
        Ok(bench.shell(rig.mount(), line, SOON_SECONDS).is_ok())
    })?;
    compare(bench, rig).map(drop)
}

fn filled_by_three(bench: &Bench, rig: &Rig) -> Outcome {
    let mount = |name: &str| {
        rig.cluster.mount_also(name, &mount_points().join(format!("full-{name}")), &bench.interrupt)
    };
    let guests = [mount("second")?, mount("third")?];
    let points = [rig.mount(), guests[0].point(), guests[1].point()];
    let full = write(bench, rig, &points, "c", &SYNCED, FILES_MAX)?;
    ensure!(full == WRITERS, "{full} of {WRITERS} writers were told that the disks are full");
    for guest in guests {
        guest.unmount(&rig.cluster, &bench.interrupt)?;
    }
    rig.wait_clean(bench, SOON_SECONDS)?;
    let mut scrub = rig.cluster.command("trefoil");
    let said = bench.run(scrub.args(["scrub", "--deep", "--wait"]), FILL_SECONDS)?.stdout;
    ensure!(said.contains("nothing open"), "a deep scrub of full disks says: {said}");
    compare(bench, rig).map(drop)
}
