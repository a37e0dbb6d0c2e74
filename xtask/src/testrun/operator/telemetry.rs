//! `trefoil locks`, `trefoil top` and `/metrics`, of a cluster that serves and is mounted.

use super::{Bench, Rig, trefoil};
use crate::error::{Context, Outcome, ensure, fail};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Line of configuration with which each daemon serves metrics, on a port that it tells.
pub const SETTING: &str = "http_listen = \"127.0.0.1:0\"";
/// The runtimes of the cluster's daemons.
const DAEMONS: [&str; 8] =
    ["mds", "monitor", "osd.0", "osd.0-heart", "osd.1", "osd.1-heart", "osd.2", "osd.2-heart"];

/// The rows of a command that prints JSON.
fn rows(bench: &Bench, rig: &Rig, line: &str) -> Outcome<Vec<Value>> {
    let shown = trefoil(bench, rig, line, 60)?.stdout;
    match serde_json::from_str(&shown) {
        Ok(Value::Array(rows)) => Ok(rows),
        _ => fail(format!("`{line}` prints no JSON array but:\n{shown}")),
    }
}

fn targets(rows: &[Value]) -> Vec<&str> {
    let mut targets: Vec<&str> = rows.iter().filter_map(|row| row["target"].as_str()).collect();
    targets.sort_unstable();
    targets.dedup();
    targets
}

/// All daemons answered, and at least the mount.
fn check_targets(rows: &[Value]) -> Outcome {
    let (clients, daemons): (Vec<&str>, Vec<&str>) =
        targets(rows).into_iter().partition(|target| target.starts_with("client."));
    ensure!(
        daemons == DAEMONS && !clients.is_empty(),
        "answers came from {daemons:?} and {clients:?}"
    );
    Ok(())
}

fn load(bench: &Bench, rig: &Rig) -> Outcome {
    let line = "head -c 3000000 /dev/urandom > load; for i in 1 2 3; do trefoil object put load$i load; done";
    trefoil(bench, rig, line, 60).map(drop)
}

/// Sum of a figure over the storage daemons.
fn osd_sum(rows: &[Value], field: &str) -> u64 {
    let of_osd =
        |row: &&Value| row["target"].as_str().is_some_and(|target| target.starts_with("osd."));
    rows.iter().filter(of_osd).filter_map(|row| row[field].as_u64()).sum()
}

/// The table of locks.
pub fn locks(bench: &Bench, rig: &Rig) -> Outcome {
    let before = rows(bench, rig, "trefoil locks --json --filter connection")?;
    load(bench, rig)?;
    let after = rows(bench, rig, "trefoil locks --json --filter connection")?;
    let (then, now) = (osd_sum(&before, "acquisitions"), osd_sum(&after, "acquisitions"));
    ensure!(
        now > then,
        "connections of OSDs were locked {then} times, and {now} times after writing"
    );
    let all = rows(bench, rig, "trefoil locks --json --sort acquisitions")?;
    check_targets(&all)?;
    for pair in all.windows(2) {
        let taken = |row: &Value| row["acquisitions"].as_u64();
        ensure!(taken(&pair[0]) >= taken(&pair[1]), "not sorted: {} before {}", pair[0], pair[1]);
    }
    let some = rows(bench, rig, "trefoil locks osd.1 mds --json --filter inbox")?;
    ensure!(targets(&some) == ["mds"], "the filter lets pass: {some:?}");
    let table = trefoil(bench, rig, "trefoil locks osd.1", 30)?.stdout;
    ensure!(table.contains("found taken") && table.contains("osd.1"), "no table:\n{table}");
    ensure!(!table.contains("osd.0"), "nobody asked for osd.0:\n{table}");
    let watched = trefoil(bench, rig, "trefoil locks --watch=1 --json | head -n 2", 60)?.stdout;
    ensure!(watched.lines().count() == 2, "watching shows:\n{watched}");
    Ok(())
}

/// Text that should be JSON.
pub fn json(text: &str) -> Outcome<Value> {
    serde_json::from_str(text).doing(|| format!("this is no JSON:\n{text}"))
}

/// A list in it.
pub fn list<'a>(shown: &'a Value, name: &str) -> Outcome<&'a [Value]> {
    shown[name]
        .as_array()
        .map_or_else(|| fail(format!("no list `{name}` in {shown}")), |list| Ok(list.as_slice()))
}

/// Workers and connections as rates.
pub fn top(bench: &Bench, rig: &Rig) -> Outcome {
    let shown = json(&trefoil(bench, rig, "trefoil top --json", 60)?.stdout)?;
    let workers = list(&shown, "workers")?;
    check_targets(workers)?;
    for row in workers {
        ensure!(row["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0), "no interval: {row}");
        for field in ["cpu_share", "bytes_in_per_s", "messages_per_s", "events_per_poll"] {
            ensure!(row[field].is_number(), "no {field}: {row}");
        }
        let busy = row["busy_share"].as_f64();
        ensure!(busy.is_some_and(|share| (0.0..=1.0).contains(&share)), "not a share: {row}");
    }
    let table = trefoil(bench, rig, "trefoil top osd.0 --seats", 30)?.stdout;
    for words in [
        "busy",
        "osd.0",
        "osd.0-heart",
        "lock wait",
        "contended",
        "marks/s",
        "found taken/s",
        "core-affine",
        "lcam would ",
    ] {
        ensure!(table.contains(words), "`{words}` is not in:\n{table}");
    }
    Ok(())
}

/// The connections that a writer on the mount makes busy.
pub fn connections(bench: &Bench, rig: &Rig) -> Outcome {
    let area = rig.area(bench, "top")?;
    let line = format!(
        "touch going\n\
         while test -e going; do head -c 4000000 /dev/zero > '{0}/busy'; sync '{0}/busy'; done & writer=$!\n\
         trefoil top osd.0 osd.1 osd.2 --watch=1 --json | head -n 5 > shown\n\
         rm going; wait $writer; cat shown",
        area.display()
    );
    let shown = trefoil(bench, rig, &line, 120)?.stdout;
    let intervals = shown.lines().map(json).collect::<Outcome<Vec<Value>>>()?;
    ensure!(intervals.len() == 5, "five intervals were asked for: {shown}");
    let mut busy = 0;
    for interval in &intervals {
        let is_busy = |row: &&Value| {
            let positive = |field: &str| row[field].as_f64().is_some_and(|rate| rate > 0.0);
            positive("messages_per_s") && positive("bytes_in_per_s") && positive("bytes_out_per_s")
        };
        busy += list(interval, "connections")?.iter().filter(is_busy).count();
        connections_of(interval)?;
    }
    ensure!(busy > 0, "no connection carries anything: {shown}");
    Ok(())
}

/// One interval's connections, on daemons in which a connection has one worker, and what other
/// mappings would do.
fn connections_of(shown: &Value) -> Outcome {
    let rows = list(shown, "connections")?;
    for row in rows {
        for field in ["name", "peer", "listener", "mapping"] {
            ensure!(row[field].as_str().is_some_and(|text| !text.is_empty()), "no {field}: {row}");
        }
        let one_worker = row["workers"].as_array().is_some_and(|workers| workers.len() == 1);
        ensure!(row["mapping"] == "core-affine" && one_worker, "not on one worker: {row}");
        ensure!(
            row["lock_wait_share"].as_f64() == Some(0.0),
            "a single worker waits for itself: {row}"
        );
    }
    let outlooks = list(shown, "outlooks")?;
    for row in rows.iter().flat_map(|row| row["seats"].as_array().into_iter().flatten()) {
        for field in ["acquisitions_per_s", "contended_per_s", "marks_per_s"] {
            ensure!(row[field].is_number(), "no {field}: {row}");
        }
    }
    let spreads = list(shown, "spreads")?;
    let known = |mapping: &str| {
        spreads.iter().any(|row| row["mapping"] == mapping && row["max_bytes_per_s"].is_number())
    };
    ensure!(
        ["round-robin", "traffic-aware", "core-affine"].into_iter().all(known),
        "no spreads: {shown}"
    );
    ensure!(
        spreads.iter().any(|row| row["mapping"] == "handoff" && row["unknown"].is_string()),
        "a guess: {shown}"
    );
    for mapping in ["lcam", "traffic-aware"] {
        ensure!(
            outlooks.iter().any(|outlook| outlook["mapping"] == mapping),
            "nothing on {mapping}: {shown}"
        );
    }
    Ok(())
}

/// Flags and targets that do not exist.
pub fn errors(bench: &Bench, rig: &Rig) -> Outcome {
    let lines = "code() { set +e; \"$@\" > said 2>&1; echo $?; set -e; }\n\
         for command in locks top profile; do\n\
         test $(code trefoil $command osd.9) = 4; grep -q 'osd.9' said; grep -q 'monitor, mds, osd.0, osd.1, osd.2' said\n\
         test $(code trefoil $command --watch=0) = 2; grep -q '1..=3600' said\n\
         test $(code trefoil $command --watch=soon) = 2\n\
         done\n\
         test $(code trefoil locks --sort size) = 2; grep -q 'acquisitions' said";
    trefoil(bench, rig, lines, 60).map(drop)
}

/// A daemon's page of metrics.
pub fn metrics(bench: &Bench, rig: &Rig) -> Outcome {
    let addr = http_addr(bench, rig, "osd-0")?;
    let name = "trefoil_worker_bytes_in_total";
    let before = samples(&scrape(addr)?)?;
    load(bench, rig)?;
    // None of these may keep a scrape from its answer.
    let mut slow = TcpStream::connect(addr).doing(|| "cannot connect")?;
    slow.write_all(b"GET /met").doing(|| "cannot send")?;
    let mut garbage = TcpStream::connect(addr).doing(|| "cannot connect")?;
    garbage.write_all(&[0xff; 300]).doing(|| "cannot send")?;
    let after = samples(&scrape(addr)?)?;
    let of = |samples: &BTreeMap<String, f64>| -> f64 {
        samples.iter().filter(|(key, _)| key.starts_with(name)).map(|(_, value)| value).sum()
    };
    let writes = "trefoil_operation_seconds_count{role=\"osd.0\",layer=\"pg\",operation=\"write\"}";
    let of_writes =
        |samples: &BTreeMap<String, f64>| samples.get(writes).copied().unwrap_or_default();
    let (then, now) = (of_writes(&before), of_writes(&after));
    ensure!(now.total_cmp(&then).is_gt(), "{writes}: {then} and then {now}");
    let sessions = |samples: &BTreeMap<String, f64>| {
        samples.keys().any(|key| key.starts_with("trefoil_listener_sessions{"))
    };
    ensure!(sessions(&after), "no sessions are counted");
    ensure!(
        of(&after).total_cmp(&of(&before)).is_gt(),
        "{name}: {} and then {}",
        of(&before),
        of(&after)
    );
    for daemon in ["monitor", "mds"] {
        let page = scrape(http_addr(bench, rig, daemon)?)?;
        ensure!(
            page.contains(&format!("role=\"{daemon}\"")),
            "{daemon} does not tell of itself:\n{page}"
        );
        samples(&page)?;
    }
    drop((slow, garbage));
    Ok(())
}

/// Where a daemon says that it serves metrics.
fn http_addr(bench: &Bench, rig: &Rig, daemon: &str) -> Outcome<SocketAddr> {
    let mut found = None;
    rig.wait_for(bench, "a line `ready: http`", 20, || {
        let output = rig.cluster.daemon(daemon)?.output_since(0);
        found = output
            .lines()
            .rev()
            .find_map(|line| line.strip_prefix("ready: http ")?.trim().parse().ok());
        Ok(found.is_some())
    })?;
    found.map_or_else(|| fail(format!("{daemon} serves no metrics")), Ok)
}

fn scrape(addr: SocketAddr) -> Outcome<String> {
    let mut stream = TcpStream::connect(addr).doing(|| format!("cannot connect to {addr}"))?;
    stream.set_read_timeout(Some(Duration::from_secs(60))).doing(|| "no time-out")?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n").doing(|| "cannot send")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).doing(|| "no answer")?;
    let Some((head, page)) = answer.split_once("\r\n\r\n") else {
        return fail(format!("no head: {answer}"));
    };
    ensure!(
        head.starts_with("HTTP/1.1 200 OK") && head.contains("version=0.0.4"),
        "the answer is: {head}"
    );
    Ok(page.to_owned())
}

/// The samples of a page, all of which stand under HELP and TYPE of a name that Prometheus takes.
fn samples(page: &str) -> Outcome<BTreeMap<String, f64>> {
    let mut samples = BTreeMap::new();
    let mut heads: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            let mut words = rest.splitn(3, ' ');
            let (Some(what), Some(name), Some(_)) = (words.next(), words.next(), words.next())
            else {
                return fail(format!("not a head: {line}"));
            };
            heads.entry(name).or_default().push(what);
            continue;
        }
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        let valid = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b':';
        ensure!(!name.is_empty() && name.bytes().all(valid), "not a name: {line}");
        let base = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|suffix| name.strip_suffix(suffix))
            .unwrap_or(name);
        let head = heads.get(name).or_else(|| heads.get(base));
        ensure!(
            head.is_some_and(|head| head == &["HELP", "TYPE"]),
            "no HELP and TYPE above: {line}"
        );
        let Some((key, value)) = line.rsplit_once(' ') else {
            return fail(format!("no value: {line}"));
        };
        let value: f64 = value.parse().doing(|| format!("not a number: {line}"))?;
        ensure!(samples.insert(key.to_owned(), value).is_none(), "twice: {key}");
    }
    ensure!(samples.len() > 50, "only {} samples", samples.len());
    Ok(samples)
}
