//! Addresses of several monitors, as commands and mounts are given them.

use super::{Bench, Rig, trefoil};
use crate::error::{Outcome, ensure, fail};
use crate::exec::Run;
use std::path::Path;

/// Three addresses of which two refuse: commands find the monitor, and a mount lives through the
/// death and the restart of it.
pub fn two_refuse(bench: &Bench, rig: &Rig) -> Outcome {
    let (monitor, nobody) = (rig.cluster.layout().monitor, rig.free_ports(3)?);
    let (first, second, third) = (nobody[0], nobody[1], nobody[2]);
    let list = format!("{first},{monitor},{second}");
    let point = rig.scratch("addresses")?;
    let commands = format!(
        "trefoil --monitor {list} status | grep -q 'osd.2'; export TREFOIL_MONITOR={list}\n\
         head -c 100000 /dev/urandom > in; trefoil object put listed in\n\
         trefoil object get listed | cmp - in; trefoil config show monitor > /dev/null\n\
         ! trefoil pool rename none other 2> said; grep -q none said\n\
         set +e; trefoil --monitor {first},{second},{third} status 2> said; code=$?; set -e\n\
         test $code = 3; grep -q {third} said; grep -q refused said\n\
         ! trefoil --monitor {first},,:5 status 2> said; grep -q ':5' said"
    );
    trefoil(bench, rig, &commands, 120)?;
    let mount = format!("fuse-client mount {list} '{}' --daemon --log-file log", point.display());
    trefoil(bench, rig, &mount, 60)?;
    let outcome = restarted(bench, rig, &point);
    trefoil(bench, rig, &format!("fuse-client umount '{}'", point.display()), 60)?;
    outcome?;
    // the other mount dials its only monitor again by itself, and is asked by later tests
    rig.wait_for(bench, "the other mount to be connected again", 60, || {
        let shown = trefoil(bench, rig, "trefoil locks --json --filter connection", 60)?.stdout;
        Ok(shown.contains("\"client."))
    })
}

/// The session of this mount.
fn session(bench: &Bench, rig: &Rig, point: &Path) -> Outcome<u64> {
    let status = rig.cluster.status(&bench.interrupt)?;
    let clients = status["clients"].as_array().cloned().unwrap_or_default();
    let end = format!(":{}", point.display());
    let is_ours = |client: &&serde_json::Value| {
        client["name"].as_str().is_some_and(|name| name.ends_with(&end))
    };
    match clients.iter().find(is_ours).and_then(|client| client["session"].as_u64()) {
        Some(session) => Ok(session),
        None => fail(format!("no session of {} in {status}", point.display())),
    }
}

fn restarted(bench: &Bench, rig: &Rig, point: &Path) -> Outcome {
    let at = |line: &str| -> Outcome<Run> {
        trefoil(bench, rig, &format!("cd '{}'; {line}", point.display()), 120)
    };
    at("mkdir listed; head -c 1000000 /dev/urandom > listed/before; cp listed/before listed/copy")?;
    let before = session(bench, rig, point)?;
    rig.cluster.kill("monitor")?;
    // names and data need no monitor
    let meanwhile = at("cp listed/copy listed/meanwhile; cmp listed/before listed/meanwhile");
    rig.cluster.start("monitor", &bench.interrupt)?;
    meanwhile?;
    at(
        "echo after > listed/after; sync listed/after; cmp listed/before listed/copy; rm -r listed",
    )?;
    let after = session(bench, rig, point)?;
    ensure!(before == after, "session {before} became {after}");
    rig.wait_clean(bench, 60)
}
