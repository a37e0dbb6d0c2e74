//! What was missed is made up for: with true numbers, within limits, under writers, and on a new
//! disk.
//!
//! Storage daemons start with the least limit of the rate of rebuilding, so that nothing is over
//! before it is looked at; each test lifts it while they run.

use super::Bench;
use super::kills::Writers;
use super::report::Report;
use super::rig::{Rig, RigTest};
use crate::cluster::layout::{Spec, osd_name};
use crate::crash;
use crate::error::{Context, Outcome, ensure, fail};
use std::fs;
use std::time::Duration;

/// Bytes written while a storage daemon is away: its part of them takes minutes at the limits of
/// the tests.
const MISSED_BYTES: u64 = 48_000_000;
/// With it a chunk is rebuilt every few seconds.
const SLOW_BYTES_PER_SEC: u64 = 256 << 10;
/// What is to happen by itself happens within this time, on a machine that does much else.
const SOON_SECONDS: u64 = 90;

/// Runs the tests.
///
/// # Errors
/// Only on Ctrl-C.
pub fn run(bench: &Bench, report: &mut Report) -> Outcome {
    let limited = |spec: Spec| Spec {
        settings: vec!["osd_recovery_max_bytes_per_sec = 65536".into()],
        ..spec
    };
    let Some(rig) = Rig::start("heal", bench, report, limited)? else { return Ok(()) };
    let tests: [RigTest; 4] = [
        ("what was missed is told in bytes, falls, and is nothing in the end", told),
        ("killed again while it heals under writers, nothing fsynced is lost", killed_again),
        (
            "an empty disk is refused, then replaced, and every object decodes from every pair",
            replaced,
        ),
        (
            "an empty directory of the metadata service is refused, and its own is taken again",
            names_away,
        ),
    ];
    for (name, test) in tests {
        report.case("heal", name, || test(bench, &rig))?;
    }
    rig.finish(bench, report)
}

/// Changes the limit of a running storage daemon.
fn limit(bench: &Bench, rig: &Rig, osd: usize, bytes_per_sec: u64) -> Outcome {
    let mut command = rig.cluster.command("trefoil");
    command.args(["config", "set", &format!("osd.{osd}"), "osd_recovery_max_bytes_per_sec"]);
    bench.run(command.arg(bytes_per_sec.to_string()), 30).map(drop)
}

/// A file of random bytes in the mount, durable, with a copy beside; made anew if it is there.
fn written(bench: &Bench, rig: &Rig) -> Outcome {
    let copy = rig.scratch("copies")?.join("bulk");
    let line = format!(
        "head -c {MISSED_BYTES} /dev/urandom > '{0}'; cp '{0}' bulk; sync bulk",
        copy.display()
    );
    bench.shell(rig.mount(), &line, 120).map(drop)
}

/// The files are right while a storage daemon is dead; then it comes back.
fn compared_without(bench: &Bench, rig: &Rig, osd: usize) -> Outcome {
    let name = osd_name(osd);
    rig.cluster.kill(&name)?;
    let outcome = compared(bench, rig);
    rig.cluster.start(&name, &bench.interrupt)?;
    limit(bench, rig, osd, 0)?;
    outcome?;
    rig.wait_clean(bench, SOON_SECONDS)
}

/// The mount gives the bytes written last, with no cache of the client left.
fn compared(bench: &Bench, rig: &Rig) -> Outcome {
    rig.remount(bench)?;
    let copy = rig.scratch("copies")?.join("bulk");
    bench.shell(rig.mount(), &format!("cmp bulk '{}'", copy.display()), 120).map(drop)
}

/// What the status says of recovery.
#[derive(Clone, Copy, Debug)]
struct Told {
    objects: u64,
    bytes: u64,
    uncounted: u64,
    bytes_per_sec: u64,
    seconds: Option<u64>,
}

fn ask(bench: &Bench, rig: &Rig) -> Outcome<Told> {
    let status = rig.cluster.status(&bench.interrupt)?;
    let recovery = &status["recovery"];
    let number = |value: &serde_json::Value| value.as_u64();
    let told = || {
        Some(Told {
            objects: number(&status["objects_to_rebuild"])?,
            bytes: number(&recovery["bytes_left"])?,
            uncounted: number(&recovery["shards_uncounted"])?,
            bytes_per_sec: number(&recovery["bytes_per_sec"])?,
            seconds: number(&recovery["seconds_left"]),
        })
    };
    told().map_or_else(|| fail(format!("the status tells nothing of recovery: {status}")), Ok)
}

/// Waits for numbers like these.
fn wait_told(bench: &Bench, rig: &Rig, what: &str, like: impl Fn(&Told) -> bool) -> Outcome<Told> {
    let mut last = None;
    let waited = rig.wait_for(bench, what, SOON_SECONDS, || {
        let told = ask(bench, rig)?;
        last = Some(told);
        Ok(like(&told))
    });
    waited.doing(|| format!("the last numbers: {last:?}"))?;
    last.map_or_else(|| fail("nothing was asked"), Ok)
}

/// All that is missed is known, and it is much.
fn is_counted(told: &Told) -> bool {
    told.objects > 0 && told.bytes > 0 && told.uncounted == 0
}

/// The disk of the metadata service is not mounted: an empty one in its place would show an empty
/// tree, and deal the numbers of old files again, whose data new ones would then have.
fn names_away(bench: &Bench, rig: &Rig) -> Outcome {
    const MDS: &str = "mds";
    bench.shell(rig.mount(), "echo precious > kept; sync kept", 30)?;
    let (dir, away) = (rig.cluster.data_dir(MDS), rig.scratch("away")?.join(MDS));
    rig.cluster.kill(MDS)?;
    fs::rename(&dir, &away).doing(|| "cannot take the directory away")?;
    for _ in 0..2 {
        rig.cluster.start(MDS, &bench.interrupt)?;
        rig.wait_for(
            bench,
            "health to tell that no metadata service answers",
            SOON_SECONDS,
            || {
                let status = rig.cluster.status(&bench.interrupt)?;
                Ok(status["health"] == "down"
                    && status["messages"].to_string().contains("metadata service"))
            },
        )?;
        // 137: it waits, until it is killed.
        let line =
            format!("timeout -s KILL 3 touch '{}/new' || test $? = 137", rig.mount().display());
        bench.shell(&rig.scratch("away")?, &line, 30)?;
        rig.cluster.kill(MDS)?;
    }
    fs::remove_dir_all(&dir)
        .and_then(|()| fs::rename(&away, &dir))
        .doing(|| "cannot bring the directory back")?;
    rig.cluster.start(MDS, &bench.interrupt)?;
    bench.shell(rig.mount(), "test $(cat kept) = precious; touch new; rm new", 60).map(drop)
}

fn told(bench: &Bench, rig: &Rig) -> Outcome {
    let before = ask(bench, rig)?;
    ensure!(
        (before.objects, before.bytes, before.uncounted) == (0, 0, 0),
        "a clean cluster tells of {before:?}"
    );
    rig.cluster.kill("osd-1")?;
    written(bench, rig)?;
    rig.cluster.start("osd-1", &bench.interrupt)?;
    let at_first = wait_told(bench, rig, "what was missed, counted", is_counted)?;
    limit(bench, rig, 1, SLOW_BYTES_PER_SEC)?;
    wait_told(bench, rig, "less to rebuild, with a rate and a time to go", |now| {
        let falls = is_counted(now) && now.bytes < at_first.bytes;
        falls && now.bytes_per_sec > 0 && now.seconds.is_some_and(|seconds| seconds > 0)
    })?;
    let text = bench.run(rig.cluster.command("trefoil").arg("status"), 30)?.stdout;
    ensure!(
        text.contains("to rebuild, "),
        "the status for people tells nothing of recovery:\n{text}"
    );
    limit(bench, rig, 1, 0)?;
    rig.wait_clean(bench, SOON_SECONDS)?;
    let after = ask(bench, rig)?;
    let rest = (after.objects, after.bytes, after.uncounted, after.seconds);
    ensure!(rest == (0, 0, 0, Some(0)), "a clean cluster tells of {after:?}");
    // what was rebuilt is needed when another dies
    compared_without(bench, rig, 0)
}

fn killed_again(bench: &Bench, rig: &Rig) -> Outcome {
    let mut writers = Writers::start(bench, rig, "heal")?;
    rig.cluster.kill("osd-2")?;
    written(bench, rig)?;
    for _ in 0..bench.size(3, 2) {
        rig.cluster.start("osd-2", &bench.interrupt)?;
        wait_told(bench, rig, "what was missed, in the middle of healing", |told| told.bytes > 0)?;
        rig.cluster.kill("osd-2")?;
        bench.interrupt.sleep(Duration::from_millis(500))?;
        writers.check()?;
    }
    rig.cluster.start("osd-2", &bench.interrupt)?;
    limit(bench, rig, 2, 0)?;
    rig.wait_clean(bench, SOON_SECONDS)?;
    writers.check()?;
    writers.stop(bench)?;
    compared(bench, rig)?;
    writers.verify(bench, 5)
}

/// A disk is lost: its daemon starts on an empty one only with the operator's consent, and
/// everything is rebuilt there.
fn replaced(bench: &Bench, rig: &Rig) -> Outcome {
    let replace = || {
        let mut command = rig.cluster.command("trefoil");
        command.args(["osd", "replace", "osd.0"]);
        command
    };
    let refused =
        bench.run(&mut replace(), 30).err().map_or_else(String::new, |error| error.to_string());
    ensure!(refused.contains("osd.0 is up"), "a disk in use is not kept, but: {refused}");
    rig.cluster.stop(&osd_name(0), &bench.interrupt)?;
    let asked =
        bench.run(&mut replace(), 30).err().map_or_else(String::new, |error| error.to_string());
    ensure!(
        asked.contains("--yes") && asked.contains("one more lost disk loses data"),
        "it does not ask, but: {asked}"
    );
    // As it looks when a disk is not mounted: the mount point is there, and nothing in it.
    let disk = rig.cluster.data_dir(&osd_name(0)).join("osd.0");
    fs::remove_dir_all(&disk)
        .and_then(|()| fs::create_dir(&disk))
        .doing(|| "cannot empty the disk")?;
    for _ in 0..2 {
        let started = rig.cluster.start(&osd_name(0), &bench.interrupt);
        let refused = started.err().map_or_else(String::new, |error| error.to_string());
        ensure!(
            refused.contains("`trefoil osd replace osd.0`"),
            "an empty disk is not refused, but: {refused}"
        );
        let made = fs::read_dir(&disk).doing(|| "the empty disk is gone")?.count();
        ensure!(made == 0, "{made} files were made on a disk that was refused");
    }
    rig.cluster.replace(0, &bench.interrupt)?;
    rig.cluster.start(&osd_name(0), &bench.interrupt)?;
    limit(bench, rig, 0, 0)?;
    crash::settle(&rig.cluster, &bench.interrupt)?;
    rig.cluster.down(&bench.interrupt)?;
    let decoded = crash::decode_all(&rig.cluster)?;
    rig.cluster.start_all(&bench.interrupt)?;
    ensure!(decoded.compared_bytes >= MISSED_BYTES, "too little was decoded: {decoded:?}");
    compared_without(bench, rig, 1)
}
