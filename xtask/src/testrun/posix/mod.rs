//! Our own checks of a mount: what the file system promises, one function each.
//!
//! Contract: a check gets an empty directory on the mount and leaves it to its caller to remove.
//! Each runs in a process of its own (`xtask check NAME DIR`), so that one that hangs can be
//! killed.

mod data;
mod limits;
mod names;
mod space;
mod unnamed;

use super::Bench;
use super::report::Report;
use super::rig::Rig;
use crate::error::{Context, Outcome, ensure, fail};
use crate::process;
use rustix::io::Errno;
use rustix::process::{Signal, kill_process};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::process::Command;

const MAPPINGS: &str = include_str!("../mappings.py");
const MAPPINGS_SECONDS: u64 = 120;
const SET_IDS: &str = include_str!("set_ids.py");
/// Some hundred cases, each with a process of its own.
const SET_IDS_SECONDS: u64 = 240;
const COOKIES: &str = concat!(include_str!("../expect.py"), include_str!("../cookies.py"));
const COOKIES_SECONDS: u64 = 240;
const IDMAP: &str = concat!(include_str!("../expect.py"), include_str!("../idmap.py"));
const OVERLAY: &str = concat!(include_str!("../expect.py"), include_str!("../overlay.py"));
const OVERLAY_SECONDS: u64 = 120;
const CHATTR: &str = concat!(include_str!("../expect.py"), include_str!("../chattr.py"));
const IDMAP_SECONDS: u64 = 120;
const CHATTR_SECONDS: u64 = 60;
const OPTIONS: &str = concat!(include_str!("../expect.py"), include_str!("../mount_options.py"));
const OPTIONS_SECONDS: u64 = 180;
const ACLS: &str = include_str!("acls.py");
const ACLS_SECONDS: u64 = 240;

/// A check: its name, its deadline in seconds, what it does with a directory; `true` for a quick
/// run.
type Check = (&'static str, u64, fn(&Path, bool) -> Outcome);

fn checks() -> impl Iterator<Item = &'static Check> {
    data::CHECKS
        .iter()
        .chain(&names::CHECKS)
        .chain(&space::CHECKS)
        .chain(&limits::CHECKS)
        .chain(&unnamed::CHECKS)
}

/// Runs one check by name.
///
/// # Errors
/// When it fails or does not exist.
pub fn run_one(name: &str, dir: &Path, quick: bool) -> Outcome {
    let Some((_, _, check)) = checks().find(|c| c.0 == name) else {
        let names: Vec<_> = checks().map(|c| c.0).collect();
        return fail(format!("no check `{name}`; there are: {}", names.join(", ")));
    };
    check(dir, quick)
}

/// Runs all checks on a rig.
///
/// # Errors
/// Only on Ctrl-C.
pub fn run(bench: &Bench, rig: &Rig, report: &mut Report) -> Outcome {
    run_checks(bench, rig, report, checks())?;
    if report_wants(report, "statfs_size") {
        report.case("posix", "statfs_size", || statfs_size(bench, rig))?;
    }
    if report_wants(report, "mappings") {
        report.case("posix", "mappings", || mappings(bench, rig, None))?;
    }
    if report_wants(report, "set_ids") {
        report.case("posix", "set_ids", || set_ids(bench, rig))?;
    }
    if report_wants(report, "upper_layer_of_overlayfs") {
        report.case("posix", "upper_layer_of_overlayfs", || overlay(bench, rig))?;
    }
    if report_wants(report, "directory_positions") {
        report.case("posix", "directory_positions", || cookies(bench, rig, None))?;
    }
    if report_wants(report, "idmapped_mounts") {
        report.case("posix", "idmapped_mounts", || {
            as_locally(bench, rig, "idmap", IDMAP, IDMAP_SECONDS)
        })?;
    }
    if report_wants(report, "flags_of_chattr") {
        report.case("posix", "flags_of_chattr", || chattr(bench, rig))?;
    }
    if report_wants(report, "options_of_mount") {
        report.case("posix", "options_of_mount", || mount_options(bench, rig))?;
    }
    if report_wants(report, "acls") {
        report.case("posix", "acls", || acls(bench, rig))?;
    }
    Ok(())
}

/// Positions in directories stay right: see `cookies.py`.
///
/// # Errors
/// What is not so.
pub fn cookies(bench: &Bench, rig: &Rig, other: Option<&Path>) -> Outcome {
    let area = rig.area(bench, "cookies")?;
    let (script, saved) =
        (rig.scratch("program")?.join("cookies.py"), rig.scratch("cookies")?.join("saved"));
    std::fs::write(&script, COOKIES).doing(|| "cannot write the script")?;
    let run = |args: &[&Path]| {
        bench.run(Command::new("python3").arg(&script).args(args), COOKIES_SECONDS).map(drop)
    };
    let both: Vec<PathBuf> =
        [area.clone()].into_iter().chain(other.map(|mount| mount.join("cookies"))).collect();
    run(&both.iter().map(PathBuf::as_path).collect::<Vec<_>>())?;
    if other.is_some() {
        return Ok(());
    }
    let kept = area.join("kept");
    run(&[Path::new("--save"), &saved, &kept])?;
    rig.remount(bench)?;
    run(&[Path::new("--check"), &saved, &kept])
}

/// What chattr(1) forbids is refused as on the local file system of the build directory.
fn chattr(bench: &Bench, rig: &Rig) -> Outcome {
    let area = rig.area(bench, "posix-chattr")?;
    let local = rig.scratch("chattr")?;
    let script = rig.scratch("program")?.join("chattr.py");
    std::fs::write(&script, CHATTR).doing(|| "cannot write the script")?;
    let done =
        bench.run(Command::new("python3").arg(script).arg(&area).arg(&local), CHATTR_SECONDS);
    // After a failure flags may be left, that nobody could remove.
    for dir in [&area, &local] {
        bench
            .run(Command::new("chattr").arg("-R").arg("-f").arg("-ia").arg(dir), CHATTR_SECONDS)?;
    }
    done.map(drop)
}

/// mount(8), with its helper, takes the options of fstab as for a local file system. In a mount
/// namespace of its own, where the helper may be in /sbin.
fn mount_options(bench: &Bench, rig: &Rig) -> Outcome {
    let scratch = rig.scratch("options")?;
    let script = scratch.join("mount_options.py");
    std::fs::write(&script, OPTIONS).doing(|| "cannot write the script")?;
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "python3"]).arg(script);
    command
        .arg(rig.cluster.layout().monitor.to_string())
        .arg(&scratch)
        .arg(bench.binaries.join("fuse-client"));
    let done = bench.run(&mut command, OPTIONS_SECONDS);
    // After a kill one may be left, in that namespace.
    for client in process::find("fuse-client", &[&scratch.display().to_string()]) {
        kill_process(client, Signal::TERM).doing(|| "cannot end a client")?;
    }
    done.map(drop)
}

/// The mount holds the writable layer of an overlay over a local directory.
fn overlay(bench: &Bench, rig: &Rig) -> Outcome {
    let (area, local) = (rig.area(bench, "posix-overlay")?, rig.scratch("overlay")?);
    let script = rig.scratch("program")?.join("overlay.py");
    std::fs::write(&script, OVERLAY).doing(|| "cannot write the script")?;
    let mut command = Command::new("python3");
    command.arg(script).arg(local.join("lower")).arg(area.join("layer")).arg(local.join("merged"));
    let done = bench.run(&mut command, OVERLAY_SECONDS);
    // After a failure or a kill it may still be there.
    crate::mounts::clear(&local);
    done.map(drop)
}

/// Stores through shared mappings of one mount, and what another one then sees: see `mappings.py`.
///
/// # Errors
/// What is not as on a local file system.
pub fn mappings(bench: &Bench, rig: &Rig, other: Option<&Path>) -> Outcome {
    let area = rig.area(bench, "mappings")?;
    let script = rig.scratch("program")?.join("mappings.py");
    std::fs::write(&script, MAPPINGS).doing(|| "cannot write the script")?;
    let mut command = Command::new("python3");
    command.arg(script).arg(&area).args(other.map(|mount| mount.join("mappings")));
    bench.run(&mut command, MAPPINGS_SECONDS).map(drop)
}

/// Changes of content take set-ID bits and capabilities away as on a local file system.
fn set_ids(bench: &Bench, rig: &Rig) -> Outcome {
    as_locally(bench, rig, "set_ids", SET_IDS, SET_IDS_SECONDS)
}

/// ACLs are kept, inherited and gone by as on a local file system.
fn acls(bench: &Bench, rig: &Rig) -> Outcome {
    as_locally(bench, rig, "acls", ACLS, ACLS_SECONDS)
}

/// Runs a program that compares the mount with the local file system of the build directory.
fn as_locally(bench: &Bench, rig: &Rig, name: &str, program: &str, seconds: u64) -> Outcome {
    let (area, local) = (rig.area(bench, &format!("posix-{name}"))?, rig.scratch(name)?);
    let script = rig.scratch("program")?.join(format!("{name}.py"));
    std::fs::write(&script, program).doing(|| "cannot write the script")?;
    bench.run(Command::new("python3").arg(script).arg(&area).arg(&local), seconds).map(drop)
}

/// Runs the checks of bytes on a rig.
///
/// # Errors
/// Only on Ctrl-C.
pub fn run_data(bench: &Bench, rig: &Rig, report: &mut Report) -> Outcome {
    run_checks(bench, rig, report, data::CHECKS.iter())?;
    if report_wants(report, "mappings") {
        report.case("posix", "mappings", || mappings(bench, rig, None))?;
    }
    Ok(())
}

fn run_checks<'a>(
    bench: &Bench,
    rig: &Rig,
    report: &mut Report,
    checks: impl Iterator<Item = &'a Check>,
) -> Outcome {
    for (name, seconds, _) in checks.filter(|c| report_wants(report, c.0)).collect::<Vec<_>>() {
        report.case("posix", name, || {
            let area = rig.area(bench, &format!("posix-{name}"))?;
            let mut command = bench.xtask(&["posix-check", name]);
            command.arg(&area).args(bench.quick.then_some("--quick"));
            bench.run(&mut command, *seconds)?;
            // Removal is part of the check: everything in it must be removable.
            bench.shell(rig.mount(), &format!("rm -rf '{}'", area.display()), *seconds).map(drop)
        })?;
    }
    Ok(())
}

fn report_wants(report: &Report, name: &str) -> bool {
    report.wants_test("posix", name)
}

/// The mount shows the raw space times k / (k + m), within 5%.
fn statfs_size(bench: &Bench, rig: &Rig) -> Outcome {
    let raw = raw_space(&rig.cluster.status(&bench.interrupt)?);
    let out = bench.shell(rig.mount(), "stat -f -c '%S %b' .", 10)?;
    let numbers: Vec<u64> = out.stdout.split_whitespace().filter_map(|w| w.parse().ok()).collect();
    let [unit, blocks] = numbers[..] else {
        return fail(format!("strange output of stat: {}", out.stdout));
    };
    let layout = rig.cluster.layout();
    let expected = raw / u64::from(layout.k + layout.m) * u64::from(layout.k);
    let shown = unit * blocks;
    ensure!(
        shown.abs_diff(expected) <= expected / 20,
        "the mount shows {shown} bytes; {raw} raw bytes at {}+{} are {expected}",
        layout.k,
        layout.m
    );
    Ok(())
}

/// Bytes of all disks; a file system that several storage daemons share counts once.
fn raw_space(status: &serde_json::Value) -> u64 {
    let osds = status["osds"].as_array().map_or(&[][..], Vec::as_slice);
    let disks = osds
        .iter()
        .map(|o| ((o["host"].to_string(), o["disk"].as_u64()), o["total_bytes"].as_u64()));
    disks.collect::<BTreeMap<_, _>>().into_values().flatten().sum()
}

/// Both must be equal.
fn same<T: PartialEq + Debug>(what: &str, found: &T, expected: &T) -> Outcome {
    ensure!(found == expected, "{what}: found {found:?}, expected {expected:?}");
    Ok(())
}

/// The call must fail, with this error.
fn refused<T, E: Into<std::io::Error>>(
    what: &str,
    result: Result<T, E>,
    expected: Errno,
) -> Outcome {
    match result.map_err(Into::into) {
        Ok(_) => fail(format!("{what}: succeeded, expected {expected:?}")),
        Err(error) => same(what, &error.raw_os_error(), &Some(expected.raw_os_error())),
    }
}

/// Bytes that differ from place to place and from seed to seed.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// The file's bytes as the file system, not the page cache, has them.
fn stored(path: &Path) -> Outcome<Vec<u8>> {
    crate::tree::read_uncached(path).doing(|| format!("reading {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The checks hold on the file system of the build directory, so that a failure on a mount is
    /// the mount's. Those that need root, or much time, run on mounts only.
    #[test]
    fn checks_hold_on_a_local_file_system() {
        let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
        std::fs::create_dir_all(&base).unwrap();
        let root = rustix::process::geteuid().is_root();
        for (name, _, check) in checks().filter(|c| root || c.0 != "special_files") {
            let dir = tempfile::tempdir_in(&base).unwrap();
            if let Err(error) = check(dir.path(), true) {
                panic!("{name}: {error}");
            }
        }
    }
}
