//! The machine of the metadata service loses its power, and nobody else's: what was told and not
//! synced is gone, as when the service is killed and its directory is put back as it was on the
//! disk.

use super::Bench;
use super::report::Report;
use super::rig::Rig;
use crate::cluster::layout::{MOUNT, Spec};
use crate::error::{Context, Outcome, ensure, fail};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const MDS: &str = "mds";
/// After this the mount has told the service the size of a file that is being written.
const TOLD_AFTER: Duration = Duration::from_secs(3);
/// What is written and not fsynced before the power goes.
const LATE_BYTES: usize = 1 << 20;

/// Runs the tests.
///
/// # Errors
/// Only on Ctrl-C.
pub fn run(bench: &Bench, report: &mut Report) -> Outcome {
    // By itself it syncs once an hour, so that the test says what is on the disk.
    let rarely = |spec| Spec { settings: vec!["mds_sync_interval_ms = 3600000".into()], ..spec };
    let Some(rig) = Rig::start("mds-power", bench, report, rarely)? else { return Ok(()) };
    let name = "the metadata service's machine loses its power, no fsync promises what is gone";
    report.case("kill", name, || loses_power(bench, &rig))?;
    rig.finish(bench, report)
}

/// The directory of the service as it was on the disk at one moment.
struct Disk<'a> {
    rig: &'a Rig,
    copy: PathBuf,
}

impl<'a> Disk<'a> {
    /// Everything that the service was told is on its disk by now.
    fn remember(bench: &Bench, rig: &'a Rig) -> Outcome<Self> {
        let copy = rig.scratch("power")?.join("mds");
        let disk = Self { rig, copy };
        disk.copy(bench, &disk.dir(), &disk.copy)?;
        Ok(disk)
    }

    fn dir(&self) -> PathBuf {
        self.rig.cluster.data_dir(MDS)
    }

    /// The power goes, and comes back.
    fn lose_power(&self, bench: &Bench) -> Outcome {
        self.rig.cluster.kill(MDS)?;
        self.copy(bench, &self.copy, &self.dir())?;
        self.rig.cluster.start(MDS, &bench.interrupt)
    }

    fn copy(&self, bench: &Bench, from: &Path, to: &Path) -> Outcome {
        if to.exists() {
            fs::remove_dir_all(to).doing(|| format!("cannot remove {}", to.display()))?;
        }
        bench.run(Command::new("cp").arg("-a").arg(from).arg(to), 60).map(drop)
    }
}

fn loses_power(bench: &Bench, rig: &Rig) -> Outcome {
    let area = rig.area(bench, "power")?;
    let open = |name: &str| {
        let path = area.join(name);
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .doing(|| format!("cannot open {}", path.display()))
    };
    let sync_dir = || File::open(&area).and_then(|dir| dir.sync_all());
    let (mut grown, moded) = (open("grown")?, open("moded")?);
    grown.write_all(b"early").doing(|| "cannot write")?;
    for file in [&grown, &moded] {
        file.sync_all().doing(|| "cannot fsync")?;
    }
    sync_dir().doing(|| "cannot fsync the directory")?;
    let disk = Disk::remember(bench, rig)?;

    grown.write_all(&late()).doing(|| "cannot write")?;
    moded.set_permissions(Permissions::from_mode(0o600)).doing(|| "cannot chmod")?;
    let mut made = open("made")?;
    made.write_all(b"never seen again").doing(|| "cannot write")?;
    let twice = open("made")?;
    let lost_number = made.metadata().doing(|| "cannot stat")?.ino();
    bench.interrupt.sleep(TOLD_AFTER)?;
    disk.lose_power(bench)?;

    grown.sync_all().doing(|| "a size that the mount knows still can be told again, but fsync")?;
    // A child that runs another program closes its copies of all descriptors, and takes no error
    // with it.
    bench.run(&mut Command::new("true"), 10)?;
    is_refused("fsync of a file whose making was lost", made.sync_all(), Errno::IO)?;
    made.sync_all().doing(|| "it was said once, but fsync of the file whose making was lost")?;
    is_refused("the same by another who has it open", twice.sync_all(), Errno::IO)?;
    is_refused("fsync of a file whose mode was lost", moded.sync_all(), Errno::IO)?;
    is_refused("fsync of a directory in which a name was lost", sync_dir(), Errno::IO)?;
    sync_dir().doing(|| "it was said once, but fsync of the directory")?;
    moded.sync_all().doing(|| "it was said once, but fsync")?;
    ensure!(!area.join("made").exists(), "what was lost is there");
    let new = open("new")?;
    ensure!(
        new.metadata().doing(|| "cannot stat")?.ino() != lost_number,
        "the number of a lost file is used again"
    );
    is_refused("a write to a file that is gone", made.write_all(b"!"), Errno::STALE)?;
    ensure!(
        new.metadata().doing(|| "cannot stat")?.len() == 0,
        "another file has what a lost one was given"
    );

    rig.cluster.kill(MOUNT)?;
    drop((grown, moded, made, twice, new));
    rig.cluster.start(MOUNT, &bench.interrupt)?;
    let path = area.join("grown");
    let read = fs::read(&path).doing(|| format!("cannot read {}", path.display()))?;
    ensure!(
        read == [b"early".as_slice(), &late()].concat(),
        "{} of {} bytes, or others",
        read.len(),
        5 + LATE_BYTES
    );
    Ok(())
}

fn late() -> Vec<u8> {
    (0..LATE_BYTES).map(|at| (at / 7) as u8).collect()
}

fn is_refused(what: &str, done: io::Result<()>, with: Errno) -> Outcome {
    match done {
        Err(error) if Errno::from_io_error(&error) == Some(with) => Ok(()),
        Err(error) => fail(format!("{what}: {error}, not {with:?}")),
        Ok(()) => fail(format!("{what} succeeds")),
    }
}
