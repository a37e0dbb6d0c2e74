//! Parts that are slow or half dead: clients go on without them, and they come back by themselves.
//!
//! "Goes on" is: while the part is still sick, more writes are answered and made durable than
//! before, and more is read. How long a writer and a reader stood still meanwhile at most is
//! printed, not asserted.
//!
//! * [`load`]: the writer and the reader.
//! * [`disk`]: a disk whose syncs hang, take seconds, or fail.
//! * [`few`]: too few storage daemons.
//! * [`cut_off`]: a mount that is cut off.

mod cut_off;
mod disk;
mod few;
mod load;

use super::Bench;
use super::report::Report;
use super::rig::Rig;
use crate::cluster::layout::{Spec, osd_name};
use crate::error::{Context, Outcome, ensure};
use crate::netns;
use load::{Load, hedges};
use rustix::process::Signal;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Time for what is to happen by itself, on a machine that does much else.
const SOON_SECONDS: u64 = 60;
/// The storage daemon whose disk can be frozen.
const FROZEN: usize = 1;
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
    report.case("sick", "a disk that hangs: I/O goes on, and it comes back", || {
        frozen(bench, &rig)
    })?;
    disk::run(bench, &rig, report)?;
    report.case("sick", "a storage daemon cut off: I/O goes on, and it comes back", || {
        cut(bench, &rig)
    })?;
    cut_off::run(bench, &rig, report)?;
    report.case("sick", "lost packets and a thin link give no error", || disturbed(bench, &rig))?;
    few::run(bench, &rig, report)?;
    rig.finish(bench, report)
}

/// A file system of its own for a storage daemon, since freezing stops all of one.
fn loop_disk(bench: &Bench, spec: &Spec, id: u32) -> Outcome {
    let dir = spec.dir.join("data").join(osd_name(id as usize));
    fs::create_dir_all(&dir).doing(|| "cannot make a data directory")?;
    let image = spec.dir.join("disk.img");
    fs::File::create(&image)
        .and_then(|file| file.set_len(1 << 30))
        .doing(|| "cannot make a disk image")?;
    bench.run(Command::new("mkfs.ext4").arg("-q").arg(&image), 30)?;
    bench.run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&dir), 30).map(drop)
}

fn stopped(bench: &Bench, rig: &Rig) -> Outcome {
    let load = Load::start(bench, rig, "stopped")?;
    let osd = rig.cluster.daemon("osd-0")?;
    let hedged = hedges(bench, rig)?;
    osd.signal(Signal::STOP)?;
    let went_on = load.goes_on(bench, "while osd-0 was stopped");
    osd.signal(Signal::CONT)?;
    went_on?;
    rig.wait_clean(bench, SOON_SECONDS)?;
    load.finish(bench)?;
    ensure!(
        hedges(bench, rig)? > hedged,
        "no read asked others beside a storage daemon that did not answer"
    );
    Ok(())
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
    let load = Load::start(bench, rig, "frozen")?;
    bench.run(Command::new("fsfreeze").arg("--freeze").arg(&disk), 30)?;
    let frozen = Frozen(&disk);
    load.goes_on(bench, "while the disk of osd-1 was frozen")?;
    drop(frozen);
    rig.wait_clean(bench, 2 * SOON_SECONDS)?;
    load.finish(bench)
}

fn cut(bench: &Bench, rig: &Rig) -> Outcome {
    let load = Load::start(bench, rig, "cut")?;
    let net = rig.cluster.layout().net().expect("this cluster has a network");
    net.cut("osd-2")?;
    let went_on = load.goes_on(bench, "while osd-2 was cut off");
    net.mend("osd-2")?;
    went_on?;
    rig.wait_clean(bench, SOON_SECONDS)?;
    load.finish(bench)
}

fn disturbed(bench: &Bench, rig: &Rig) -> Outcome {
    let load = Load::start(bench, rig, "disturbed")?;
    let net = rig.cluster.layout().net().expect("this cluster has a network");
    net.lossy("osd-0")?;
    net.slow("osd-1")?;
    let went_on = load.goes_on(bench, "with lost packets and a thin link");
    net.mend("osd-0").and(net.mend("osd-1"))?;
    went_on?;
    rig.wait_clean(bench, SOON_SECONDS)?;
    load.finish(bench)
}
