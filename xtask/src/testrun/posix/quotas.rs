//! Quotas of directories, as programs on two mounts meet them: see `quotas.py`.

use crate::error::{Context, Outcome};
use crate::testrun::Bench;
use crate::testrun::rig::Rig;
use crate::testrun::two_mounts::Pair;
use std::process::Command;

const SCRIPT: &str = concat!(include_str!("../expect.py"), include_str!("quotas.py"));
const SECONDS: u64 = 600;
/// The directory on the mounts.
const AREA: &str = "quotas";

/// Limits hold, and what counts is what there is; also after the metadata service was killed while
/// it counted.
///
/// # Errors
/// What is not so.
pub(super) fn quotas(bench: &Bench, rig: &Rig) -> Outcome {
    let area = rig.area(bench, AREA)?;
    let pair = Pair::new(rig, "quotas-second")?;
    pair.mount(bench, rig)?;
    let script = rig.scratch("program")?.join("quotas.py");
    std::fs::write(&script, SCRIPT).doing(|| "cannot write the script")?;
    let run = |check: &str| {
        let mut command = Command::new("python3");
        command.arg(&script).arg(check).arg(&area).arg(pair.point.join(AREA));
        command.arg(format!("/{AREA}")).arg(bench.binaries.join("trefoil"));
        command.arg("--monitor").arg(rig.cluster.layout().monitor.to_string());
        bench.run(&mut command, SECONDS).map(drop)
    };
    run("rules")?;
    run("plant")?;
    rig.cluster.kill("mds")?;
    rig.cluster.start("mds", &bench.interrupt)?;
    run("harvest")?;
    pair.unmount(bench, rig)
}
