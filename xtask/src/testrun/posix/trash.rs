//! Removed files that are kept for a time: see `trash.py`.

use crate::error::{Context, Outcome};
use crate::testrun::Bench;
use crate::testrun::rig::Rig;
use std::process::Command;

const SCRIPT: &str = concat!(include_str!("../expect.py"), include_str!("trash.py"));
const SECONDS: u64 = 300;
/// The directory on the mount.
const AREA: &str = "trash";

/// What is removed comes back, to whom it belongs, also after the metadata service was killed.
///
/// # Errors
/// What is not so.
pub(super) fn trash(bench: &Bench, rig: &Rig) -> Outcome {
    let area = rig.area(bench, AREA)?;
    let script = rig.scratch("program")?.join("trash.py");
    std::fs::write(&script, SCRIPT).doing(|| "cannot write the script")?;
    let run = |check: &str| {
        let mut command = Command::new("python3");
        command.arg(&script).arg(check).arg(&area).arg(format!("/{AREA}"));
        command.arg(bench.binaries.join("trefoil"));
        command.arg("--monitor").arg(rig.cluster.layout().monitor.to_string());
        bench.run(&mut command, SECONDS).map(drop)
    };
    run("plant")?;
    rig.cluster.kill("mds")?;
    rig.cluster.start("mds", &bench.interrupt)?;
    run("harvest")
}
