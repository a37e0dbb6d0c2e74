//! The disk of the metadata service, and of the monitor, is filled from outside: what needs space
//! gets ENOSPC, the rest goes on, and all is as before once there is space, with nobody's help.

use super::super::Bench;
use super::super::report::Report;
use super::super::rig::Rig;
use super::SOON_SECONDS;
use crate::cluster::layout::Spec;
use crate::error::{Context, Outcome, ensure};
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Size of each service's disk: above what it keeps free for itself, twice.
const DISK_MIB: u32 = 400;
/// Lines that a process may log while its disk is full for some seconds.
const LINES_MAX: usize = 200;

const METADATA: &str =
    "full: a metadata service without space reads, removes, says ENOSPC, and recovers";
const MONITOR: &str =
    "full: a monitor without space tells no map that it cannot keep, and recovers";

/// Runs the tests.
///
/// # Errors
/// Only on Ctrl-C.
pub fn run(bench: &Bench, report: &mut Report) -> Outcome {
    if !report.wants_test("disk", METADATA) && !report.wants_test("disk", MONITOR) {
        return Ok(());
    }
    let mut prepared = Ok(());
    let small = |spec: Spec| {
        prepared = ["mds", "monitor"].iter().try_for_each(|name| small_disk(bench, &spec, name));
        spec
    };
    let Some(rig) = Rig::start("full-services", bench, report, small)? else { return Ok(()) };
    report.case("disk", "full: the services have small disks", || prepared)?;
    report.case("disk", METADATA, || metadata(bench, &rig))?;
    report.case("disk", MONITOR, || monitor(bench, &rig))?;
    rig.finish(bench, report)
}

fn small_disk(bench: &Bench, spec: &Spec, name: &str) -> Outcome {
    let dir = spec.dir.join("data").join(name);
    fs::create_dir_all(&dir).doing(|| "cannot make a data directory")?;
    let size = format!("size={DISK_MIB}m");
    bench
        .run(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "none"]).arg(&dir), 10)
        .map(drop)
}

/// A file that takes all space there is, until it is dropped.
struct Filler(PathBuf);

impl Filler {
    fn fill(dir: &Path) -> Outcome<Filler> {
        let path = dir.join("filler");
        let filler = Filler(path.clone());
        let mut file = File::create(&path).doing(|| format!("cannot make {}", path.display()))?;
        for block in [1 << 20, 4096] {
            while file.write_all(&vec![1; block]).is_ok() {}
        }
        Ok(filler)
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn metadata(bench: &Bench, rig: &Rig) -> Outcome {
    let shell = |line: &str| bench.shell(rig.mount(), line, SOON_SECONDS);
    shell("mkdir d && for i in $(seq 40); do echo $i > d/f$i; done && sync d/f40")?;
    let log = rig.cluster.daemon("mds")?.log;
    let lines = || fs::read_to_string(&log).map_or(0, |text| text.lines().count());
    let before = lines();
    let filler = Filler::fill(&rig.cluster.data_dir("mds"))?;
    rig.wait_for(bench, "making a directory fails for want of space", SOON_SECONDS, || {
        let said = bench.shell(rig.mount(), "rmdir e 2> /dev/null || true; mkdir e", SOON_SECONDS);
        Ok(said.is_err_and(|error| error.to_string().contains("No space left on device")))
    })?;
    // The store meets the full disk now, and again.
    for number in 1..=5 {
        shell(&format!(
            "test $(cat d/f30) = 30 && rm d/f{number} && ! ls d/f{number} 2> /dev/null"
        ))?;
        bench.interrupt.sleep(std::time::Duration::from_millis(500))?;
    }
    drop(filler);
    rig.wait_for(bench, "making a directory after space was freed", SOON_SECONDS, || {
        Ok(bench.shell(rig.mount(), "rmdir e 2> /dev/null || true; mkdir e", SOON_SECONDS).is_ok())
    })?;
    let logged = lines() - before;
    ensure!(logged <= LINES_MAX, "{logged} lines were logged meanwhile: {}", log.display());
    rig.remount(bench)?;
    shell("test $(ls d | wc -l) = 35 && test $(cat d/f40) = 40 && rm -r d e").map(drop)
}

fn monitor(bench: &Bench, rig: &Rig) -> Outcome {
    let shell = |line: &str| bench.shell(rig.mount(), line, SOON_SECONDS);
    shell("echo before > m && sync m")?;
    let filler = Filler::fill(&rig.cluster.data_dir("monitor"))?;
    // A death is a new map, which cannot be saved.
    rig.cluster.kill("osd-1")?;
    bench.interrupt.sleep(std::time::Duration::from_secs(8))?;
    drop(filler);
    shell("echo after >> m && sync m && test $(wc -l < m) = 2")?;
    rig.cluster.start("osd-1", &bench.interrupt)?;
    rig.wait_clean(bench, SOON_SECONDS)?;
    shell("rm m").map(drop)
}
