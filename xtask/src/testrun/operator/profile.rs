//! `trefoil profile`: every layer counts what was done, mounts are asked too, and one that hangs
//! keeps nobody waiting.

use super::telemetry::{json, list};
use super::{Bench, Rig, trefoil};
use crate::cluster::layout::MOUNT;
use crate::error::{Outcome, ensure, fail};
use rustix::process::Signal;
use serde_json::Value;

/// Requests of each load, one `dd` block each.
const BLOCKS: u64 = 64;
/// Bytes of each, with O_DIRECT: whole stripes, and one request of the kernel.
const BLOCK_BYTES: u64 = 65_536;
/// Shards that a whole stripe of a 2+1 pool is written to, and read from.
const SHARDS: (u64, u64) = (3, 2);

/// All targets' operations.
fn shown(bench: &Bench, rig: &Rig, arguments: &str) -> Outcome<Value> {
    json(&trefoil(bench, rig, &format!("trefoil profile --json {arguments}"), 60)?.stdout)
}

/// All targets' operations, once all daemons and the mount have answered; clients of other tests
/// may have been killed.
pub(super) fn everybody(bench: &Bench, rig: &Rig) -> Outcome<Value> {
    let mut answers = Value::Null;
    rig.wait_for(bench, "all daemons and the mount answer", 60, || {
        answers = shown(bench, rig, "")?;
        let is_client = |row: &Value| {
            row["target"].as_str().is_some_and(|target| target.starts_with("client."))
        };
        Ok(list(&answers, "silent")?.iter().all(is_client) && mount_name(rig, &answers).is_ok())
    })?;
    Ok(answers)
}

/// How often this happened, on all daemons or clients of a kind.
fn calls(shown: &Value, layer: &str, operation: &str, target: &str) -> u64 {
    let rows = shown["operations"].as_array().into_iter().flatten();
    let mut same = rows.filter(|row| {
        row["layer"] == layer && row["operation"] == operation && row["target"] == target
    });
    same.next().and_then(|row| row["calls"].as_u64()).unwrap_or(0)
}

/// What a load on the mount is in each layer.
pub fn layers(bench: &Bench, rig: &Rig) -> Outcome {
    let area = rig.area(bench, "profile")?;
    let before = everybody(bench, rig)?;
    let file = area.join("file");
    let line = format!(
        "dd if=/dev/zero of='{0}' bs={BLOCK_BYTES} count={BLOCKS} oflag=direct conv=fsync\n\
         dd if='{0}' of=/dev/null bs={BLOCK_BYTES} count={BLOCKS} iflag=direct",
        file.display()
    );
    trefoil(bench, rig, &line, 120)?;
    let at_least = [
        ("fuse", "fsync", "clients", 1),
        ("client", "write", "clients", BLOCKS),
        ("client", "read", "clients", BLOCKS),
        ("client", "sync", "clients", 1),
        ("client", "namespace", "clients", 1),
        ("messenger", "call", "clients", BLOCKS * SHARDS.1),
        ("messenger", "queue", "osds", BLOCKS * (SHARDS.0 + SHARDS.1)),
        ("messenger", "queue", "mds", 1),
        ("pg", "write", "osds", BLOCKS * SHARDS.0),
        ("pg", "read", "osds", BLOCKS * SHARDS.1),
        ("pg", "sync", "osds", 1),
        ("disk", "journal append", "osds", 1),
        ("disk", "journal sync", "osds", 1),
        ("disk", "fragment write", "osds", 1),
        ("disk", "fragment sync", "osds", 1),
        ("disk", "fragment read", "osds", 1),
    ];
    let mut missing = String::new();
    // A request is answered before it is counted, and records reach their fragments, from which
    // they are read, in their own time.
    let counted = rig.wait_for(bench, "every layer counts what was done", 90, || {
        let now = everybody(bench, rig)?;
        let more = |layer: &str, operation: &str, target: &str| {
            calls(&now, layer, operation, target)
                .saturating_sub(calls(&before, layer, operation, target))
        };
        let done = (more("fuse", "write", "clients"), more("fuse", "read", "clients"));
        ensure!(done.0 <= BLOCKS, "{} writes are counted, of {BLOCKS}", done.0);
        let lacks = |(layer, operation, target, least): &&(&str, &str, &str, u64)| {
            more(layer, operation, target) < *least
        };
        missing = format!("{:?}", at_least.iter().filter(lacks).collect::<Vec<_>>());
        if done.0 == BLOCKS && done.1 >= BLOCKS && !at_least.iter().any(|row| lacks(&row)) {
            return Ok(true);
        }
        let again = format!(
            "dd if='{}' of=/dev/null bs={BLOCK_BYTES} count={BLOCKS} iflag=direct",
            file.display()
        );
        trefoil(bench, rig, &again, 60)?;
        Ok(false)
    });
    if counted.is_err() {
        println!("        too few of (layer, operation, target, at least): {missing}");
    }
    counted
}

/// Every write by a handle that bypasses the kernel's pages is synced before it is answered, if the
/// handle is synchronous: the kernel leaves that to the mount.
pub fn synchronous_handles(bench: &Bench, rig: &Rig) -> Outcome {
    let file = rig.area(bench, "synchronous")?.join("file");
    let dd = |flags: &str| {
        let of = file.display();
        format!(
            "dd if=/dev/zero of='{of}' bs={BLOCK_BYTES} count={BLOCKS} conv=notrunc oflag={flags}"
        )
    };
    let flag_dropped = format!(
        "python3 -c \"import os, fcntl\nf = os.open('{}', os.O_WRONLY | os.O_DIRECT | os.O_DSYNC)\n\
         fcntl.fcntl(f, fcntl.F_SETFL, fcntl.fcntl(f, fcntl.F_GETFL) & ~os.O_DIRECT)\n\
         for i in range({BLOCKS}): os.pwrite(f, bytes({BLOCK_BYTES}), i * {BLOCK_BYTES})\"",
        file.display()
    );
    for (line, least, most) in [
        (dd("direct"), 0, BLOCKS / 2),
        (dd("direct,dsync"), BLOCKS, u64::MAX),
        (dd("direct,sync"), BLOCKS, u64::MAX),
        (dd("append,dsync"), BLOCKS, u64::MAX),
        (flag_dropped, BLOCKS, u64::MAX),
    ] {
        let before = calls(&everybody(bench, rig)?, "client", "sync", "clients");
        trefoil(bench, rig, &line, 120)?;
        let syncs = calls(&everybody(bench, rig)?, "client", "sync", "clients") - before;
        ensure!((least..=most).contains(&syncs), "{line}: {syncs} syncs for {BLOCKS} writes");
    }
    Ok(())
}

/// Durations are in order, shares add up, tables and filters show what they should.
pub fn table(bench: &Bench, rig: &Rig) -> Outcome {
    let all = everybody(bench, rig)?;
    let mut shares = std::collections::BTreeMap::new();
    for row in list(&all, "operations")? {
        let ns = |field: &str| row[field].as_f64().unwrap_or(f64::NAN);
        let order = ["min_ns", "p50_ns", "p99_ns", "max_ns"].map(ns);
        ensure!(
            order.is_sorted() && ns("calls") >= 1.0 && ns("mean_ns").is_finite(),
            "not in order: {row}"
        );
        *shares.entry((row["layer"].to_string(), row["target"].to_string())).or_insert(0.0) +=
            ns("share");
    }
    for (of, share) in &shares {
        let is_whole = (share - 1.0).abs() < 1e-6;
        ensure!(is_whole, "the shares of {of:?} are {share} in all");
    }
    let mount = mount_name(rig, &all)?;
    let each = shown(bench, rig, "--per-daemon --filter read")?;
    for (layer, operation, target) in [("pg", "read", "osd.0"), ("fuse", "read", mount.as_str())] {
        ensure!(
            calls(&each, layer, operation, target) > 0,
            "no {layer} {operation} of {target}: {each}"
        );
    }
    ensure!(calls(&each, "pg", "write", "osd.0") == 0, "the filter lets pass: {each}");
    let of_mount = shown(bench, rig, &mount)?;
    ensure!(calls(&of_mount, "pg", "read", "osds") == 0, "nobody asked for OSDs: {of_mount}");
    let text = trefoil(bench, rig, "trefoil profile", 30)?.stdout;
    for words in ["layer", "p99", "share", "journal sync", "fuse-client", "osds"] {
        ensure!(text.contains(words), "`{words}` is not in:\n{text}");
    }
    let watched = trefoil(bench, rig, "trefoil profile --watch=1 --json | head -n 2", 60)?.stdout;
    ensure!(watched.lines().count() == 2, "watching shows:\n{watched}");
    Ok(())
}

/// What the mount is called.
pub(super) fn mount_name(rig: &Rig, shown: &Value) -> Outcome<String> {
    let dir = rig.mount().display().to_string();
    let mount = list(shown, "clients")?
        .iter()
        .find(|row| row["name"].as_str().is_some_and(|name| name.ends_with(&dir)));
    match mount.and_then(|row| row["target"].as_str()) {
        Some(name) => Ok(name.to_owned()),
        None => fail(format!("no mount on {dir} in {shown}")),
    }
}

/// Requests that succeed and fail are in the mount's history; a daemon has none, and says how to
/// change that.
pub fn history(bench: &Bench, rig: &Rig) -> Outcome {
    let (name, area) = (mount_name(rig, &everybody(bench, rig)?)?, rig.area(bench, "history")?);
    let lines = format!(
        "set +x; head -c 100000 /dev/zero > '{0}/seen'; sync '{0}/seen'; ! cat '{0}/missing' 2> said\n\
         trefoil history {name} --json > shown; trefoil history {name} --last 5 > table; test $(wc -l < table) = 6\n\
         trefoil history osd.0 | grep -q op_history=locked; ! trefoil history osd.9 2> said; grep -q 'mds, osd.0' said\n\
         cat shown",
        area.display()
    );
    let shown = json(&trefoil(bench, rig, &lines, 60)?.stdout)?;
    ensure!(shown["mode"] == "lock-free", "the mount was told to remember: {}", shown["mode"]);
    let entries = list(&shown, "entries")?;
    let ended = |operation: &str, errno: i64| {
        entries.iter().any(|e| {
            e["operation"] == operation
                && e["errno"] == errno
                && e["duration_ns"].as_u64() > Some(0)
        })
    };
    // 2: ENOENT
    for (operation, errno) in [("create", 0), ("write", 0), ("fsync", 0), ("lookup", 2)] {
        ensure!(ended(operation, errno), "no {operation} that ended with {errno} in {shown}");
    }
    let ids = entries.iter().filter_map(|entry| entry["id"].as_u64());
    ensure!(ids.is_sorted(), "not in the order of beginning: {shown}");
    Ok(())
}

/// A mount that does not answer is named by each command, which ends all the same; it answers when
/// it goes on.
pub fn stopped_mount(bench: &Bench, rig: &Rig) -> Outcome {
    let name = mount_name(rig, &everybody(bench, rig)?)?;
    let client = rig.cluster.daemon(MOUNT)?;
    client.signal(Signal::STOP)?;
    let named = silence(bench, rig, &name);
    client.signal(Signal::CONT)?;
    named?;
    rig.wait_for(bench, "the mount answers again", 60, || {
        let answers = shown(bench, rig, "")?;
        Ok(mount_name(rig, &answers).is_ok())
    })
}

fn silence(bench: &Bench, rig: &Rig, name: &str) -> Outcome {
    let answers = shown(bench, rig, "")?;
    let is_named = |row: &Value| {
        row["target"].as_str().is_some_and(|target| target.starts_with(&format!("{name} (")))
    };
    ensure!(
        list(&answers, "silent")?.iter().any(is_named),
        "{name} is stopped, and not named: {answers}"
    );
    ensure!(calls(&answers, "pg", "write", "osds") > 0, "the others are not shown: {answers}");
    let lines = format!(
        "for command in locks top profile; do trefoil $command | grep 'no answer from {name} '; done\n\
         code=0; trefoil profile {name} 2> said || code=$?; test $code = 3; grep -q 'no answer from {name}' said"
    );
    trefoil(bench, rig, &lines, 120).map(drop)
}
