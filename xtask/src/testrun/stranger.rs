//! A mount that outlives its cluster: the data directories are emptied, new daemons come up at the
//! same addresses, and the old mount is still there with its session, its epochs and its leases. It
//! learns that its cluster is gone, and disturbs nobody.

use super::Bench;
use super::report::Report;
use super::rig::{Rig, mount_points};
use crate::error::{Context, Outcome, ensure};
use crate::exec;
use std::process::Command;
use std::time::Duration;

/// What the old mount says, also when it had to wait for the new daemons.
const TOLD_SECONDS: u64 = 60;
/// A call that waits for the whole of its time-out twice still ends within this time.
const CALL_SECONDS: u64 = 120;
/// Maps that the old cluster is ahead of the new one, at least.
const EPOCHS_AHEAD: usize = 12;

/// Runs the tests.
///
/// # Errors
/// Only on Ctrl-C.
pub fn run(bench: &Bench, report: &mut Report) -> Outcome {
    let Some(rig) = Rig::start("stranger", bench, report, |spec| spec)? else { return Ok(()) };
    let name = "a mount of an earlier cluster at the same addresses is told, and changes nothing for others";
    if report.wants_test("stranger", name) {
        report.case("stranger", name, || outlived(bench, &rig))?;
    }
    rig.finish(bench, report)
}

fn outlived(bench: &Bench, rig: &Rig) -> Outcome {
    let old = rig.cluster.mount_also(
        "stranger-old",
        &mount_points().join("stranger-old"),
        &bench.interrupt,
    )?;
    bench.shell(old.point(), "echo before > file; sync file", CALL_SECONDS)?;
    // Each mount and its end are maps: those of the old cluster are far ahead of the new one's.
    for _ in 0..EPOCHS_AHEAD / 2 {
        rig.remount(bench)?;
    }
    rig.cluster.unmount(&bench.interrupt)?;
    for daemon in rig.cluster.layout().daemons() {
        rig.cluster.kill(&daemon)?;
        let data = rig.cluster.data_dir(&daemon);
        std::fs::remove_dir_all(&data).doing(|| format!("cannot remove {}", data.display()))?;
    }
    rig.cluster.start_all(&bench.interrupt)?;

    let log = &old.daemon().log;
    rig.wait_for(bench, "the old mount says that its cluster is gone", TOLD_SECONDS, || {
        Ok(std::fs::read_to_string(log).unwrap_or_default().contains("another cluster answers"))
    })?;
    let point = old.point().display();
    for call in ["cat OLD/file", "echo after >> OLD/file", "mkdir OLD/dir", "ls OLD/dir2"] {
        let said = fails(bench, &call.replace("OLD", &point.to_string()))?;
        ensure!(said.contains("Stale file handle"), "`{call}` on the old mount says: {said}");
    }
    bench.shell(
        rig.mount(),
        "mkdir d && echo new > d/file && sync d/file && cat d/file && rm -r d",
        CALL_SECONDS,
    )?;
    let sessions = rig.cluster.status(&bench.interrupt)?["clients"].as_array().map_or(0, Vec::len);
    // The new mount's, and that of the metadata service.
    ensure!(sessions <= 2, "{sessions} sessions: the old mount has one");
    bench.run(rig.cluster.command("fuse-client").arg("umount").arg(old.point()), CALL_SECONDS)?;
    drop(old);
    bench.shell(rig.mount(), "echo again > file && cat file", CALL_SECONDS).map(drop)
}

/// Runs a shell line that must fail, and returns what it said.
fn fails(bench: &Bench, line: &str) -> Outcome<String> {
    let mut command = Command::new("bash");
    let run =
        exec::run(command.args(["-c", line]), Duration::from_secs(CALL_SECONDS), &bench.interrupt)?;
    ensure!(!run.ok(), "`{line}` succeeded");
    Ok(run.stderr)
}
