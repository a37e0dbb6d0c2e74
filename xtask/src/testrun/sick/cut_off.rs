//! A mount that is cut off from the cluster, running or stopped: what it shows meanwhile; and a
//! monitor that nobody reaches for a moment: every session outlives that.

use super::super::Bench;
use super::super::report::Report;
use super::super::rig::{Rig, background, mount_points};
use super::SOON_SECONDS;
use crate::cluster::layout::MOUNT;
use crate::error::{Context, Outcome, ensure};
use rustix::process::Signal;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// What a program reads on a mount that is cut off.
const CUT_OFF: &str = include_str!("cut_off.py");
/// How long a mount that was stopped may take for its first act, on a machine that does much else;
/// and how long what waits is watched.
const FIRST_ACT: Duration = Duration::from_secs(5);
/// How long nobody reaches the monitor: a quarter of what a session lives by default.
const MONITOR_AWAY: Duration = Duration::from_millis(2_500);
/// How often, and the pause between: sessions are renewed every 3.3 s, and each cut begins a
/// quarter of that later.
const MONITOR_CUTS: u32 = 4;
const MONITOR_BACK: Duration = Duration::from_secs(5);

/// Runs the tests.
///
/// # Errors
/// Only on Ctrl-C.
pub fn run(bench: &Bench, rig: &Rig, report: &mut Report) -> Outcome {
    report.case(
        "sick",
        "a mount cut off: it shows nothing that another has overwritten, and comes back",
        || mount_cut(bench, rig, false),
    )?;
    report.case("sick", "a mount stopped, and cut off when it goes on: the same", || {
        mount_cut(bench, rig, true)
    })?;
    report.case("sick", "a monitor cut off for a moment, again and again: no session ends", || {
        monitor_cut(bench, rig)
    })
}

fn monitor_cut(bench: &Bench, rig: &Rig) -> Outcome {
    let point = rig.mount().display().to_string();
    let session = || {
        let status = rig.cluster.status(&bench.interrupt)?;
        let clients = status["clients"].as_array().into_iter().flatten();
        let own: Vec<_> = clients
            .filter(|c| c["name"].as_str().is_some_and(|name| name.ends_with(&point)))
            .collect();
        ensure!(own.len() == 1, "not one session of {point}: {own:?}");
        Ok(own[0].clone())
    };
    let before = session()?;
    let net = rig.cluster.layout().net().expect("this cluster has a network");
    for _ in 0..MONITOR_CUTS {
        net.cut("monitor")?;
        let pause = bench.interrupt.sleep(MONITOR_AWAY);
        net.mend("monitor")?;
        pause?;
        bench.interrupt.sleep(MONITOR_BACK)?;
    }
    let after = session()?;
    ensure!(before == after, "its session before: {before}; after: {after}");
    Ok(())
}

/// Gives a reader's output without waiting for its end.
fn said(scratch: &Path, way: &str) -> String {
    fs::read_to_string(scratch.join(way)).unwrap_or_default()
}

/// A file is cached by the mount, which is cut off (and stopped meanwhile, if `is_stopped`);
/// another mount overwrites it when the first one's session is over. Nobody may read old bytes
/// then, not through a descriptor nor through a mapping.
fn mount_cut(bench: &Bench, rig: &Rig, is_stopped: bool) -> Outcome {
    let name = if is_stopped { "mount-stopped" } else { "mount-cut" };
    let scratch = rig.scratch(name)?;
    let (script, go) = (scratch.join("cut_off.py"), scratch.join("go"));
    fs::write(&script, CUT_OFF).doing(|| "cannot write the script")?;
    let tell = |step: &str| {
        fs::write(format!("{}-{step}", go.display()), "").doing(|| "cannot tell the readers")
    };
    let other = rig.cluster.mount_also("other", &mount_points().join("other"), &bench.interrupt)?;
    let fill = |text: &str| {
        format!("yes '{text}' | tr -d '\\n' | head -c 1M | dd of={name} bs=1M conv=notrunc,fsync")
    };
    bench.shell(other.point(), &fill("old!"), SOON_SECONDS)?;
    let reader = |way: &str| {
        let mut command = Command::new("python3");
        command.arg(&script).arg(way).arg(rig.mount().join(name)).env("GO", &go);
        let mut reader = background(&mut command, &scratch.join(way))?;
        rig.wait_for(bench, "the reader has the file open", 30, || {
            ensure!(!reader.has_ended(), "it ended: {}", said(&scratch, way));
            Ok(said(&scratch, way).contains("held"))
        })?;
        Ok(reader)
    };
    let (waits, reads, maps) = (reader("waits")?, reader("read")?, reader("map")?);
    let net = rig.cluster.layout().net().expect("this cluster has a network");
    let mount = rig.cluster.daemon(MOUNT)?;
    net.cut(MOUNT)?;
    if is_stopped {
        mount.signal(Signal::STOP)?;
    }
    let seen = tell("cut").and_then(|()| {
        let written = bench.shell(other.point(), &fill("new!"), SOON_SECONDS);
        if is_stopped {
            mount.signal(Signal::CONT)?;
            bench.interrupt.sleep(FIRST_ACT)?;
        }
        written?;
        tell("written")?;
        bench.interrupt.sleep(FIRST_ACT)?;
        Ok([said(&scratch, "read"), said(&scratch, "map")])
    });
    net.mend(MOUNT)?;
    for seen in seen? {
        ensure!(
            seen.matches("saw old!").count() == 1,
            "bytes that were overwritten were read: {seen}"
        );
    }
    let read = reads.finish(bench, 2 * SOON_SECONDS)?;
    ensure!(
        read.matches("saw old!").count() == 1 && read.contains("saw new!"),
        "after it was mended: {read}"
    );
    waits.end(bench, SOON_SECONDS)?;
    // A mapping whose page cannot be read ends its program.
    maps.end(bench, 2 * SOON_SECONDS)?;
    let mapped = said(&scratch, "map");
    ensure!(mapped.matches("saw old!").count() == 1, "after it was mended, mapped: {mapped}");
    bench.shell(rig.mount(), &format!("head -c 4 {name} | grep -qx 'new!'"), SOON_SECONDS)?;
    other.unmount(&rig.cluster, &bench.interrupt)
}
