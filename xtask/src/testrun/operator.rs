//! The daemon without arguments, and the command `trefoil`, as an operator uses them.

mod profile;
mod settings;
mod telemetry;

use super::Bench;
use super::report::Report;
use super::rig::{Rig, RigTest};
use crate::cluster::layout::Spec;
use crate::error::{Context, Outcome, ensure};
use crate::exec;
use crate::process::Daemon;

use std::process::Command;
use std::time::Duration;

/// Runs the tests.
///
/// # Errors
/// Only on Ctrl-C.
pub fn run(bench: &Bench, report: &mut Report) -> Outcome {
    report.case("trefoil", "osd-daemon without arguments is a complete cluster", || {
        no_arguments(bench)
    })?;
    let Some(rig) = Rig::start("operator", bench, report, spec)? else { return Ok(()) };
    let tests: [RigTest; 18] = [
        ("status, for people and as JSON", status),
        ("health names a metadata service that is dead, with exit codes", dead_mds),
        ("a mount in the background logs to a file of its own", background_log),
        ("object put, get, ls, stat, rm, from files and pipes", objects),
        ("a pool of another code", pools),
        ("settings of storage daemons and of a mount change while they serve", settings::live),
        ("errors are words and exit codes", errors),
        ("a closed stdout is no panic", closed_stdout),
        ("locks of all daemons, sorted, filtered, as JSON, watched", telemetry::locks),
        ("top: workers of all daemons", telemetry::top),
        ("top: connections under load, and what other mappings would do", telemetry::connections),
        ("profile: every layer counts what a mount was asked", profile::layers),
        ("profile: writes by synchronous handles are synced", profile::synchronous_handles),
        ("profile: tables, shares, filters, one mount", profile::table),
        ("history: the last requests of a mount, and how they ended", profile::history),
        ("a mount that is stopped is named by locks, top and profile", profile::stopped_mount),
        ("errors of locks, top and profile are words and exit codes", telemetry::errors),
        ("metrics: a scrape, beside garbage and slow peers", telemetry::metrics),
    ];
    for (name, test) in tests {
        if report.wants_test("trefoil", name) {
            report.case("trefoil", name, || test(bench, &rig))?;
        }
    }
    rig.finish(bench, report)
}

/// With metrics and a history; and a mount that is stopped keeps its session for long enough to be
/// seen not to answer.
fn spec(mut spec: Spec) -> Spec {
    spec.settings.extend([telemetry::SETTING.into(), "session_ttl_ms = 120000".into()]);
    spec.mount_options = "op_history=lock-free".into();
    spec
}

/// Starts, says how to mount, refuses a second start, stops on SIGTERM, serves the same data again.
fn no_arguments(bench: &Bench) -> Outcome {
    let dir = bench.work.join("no-arguments");
    std::fs::create_dir_all(&dir).doing(|| "cannot make a directory")?;
    let (pid_file, log) = (dir.join("pid"), dir.join("log"));
    let daemon = Daemon { name: "osd-daemon".into(), pid_file, log, mark: "osd-daemon".into() };
    let trefoil = |line: &str| {
        let line =
            format!("unset TREFOIL_MONITOR; '{}' {line}", bench.binaries.join("trefoil").display());
        bench.shell(&dir, &line, 30)
    };
    let test = || {
        for round in ["first", "second"] {
            let begin =
                daemon.spawn(Command::new(bench.binaries.join("osd-daemon")).current_dir(&dir))?;
            let ready =
                |output: &str| output.lines().filter(|l| l.starts_with("ready:")).count() >= 5;
            daemon.wait_ready(begin, Duration::from_secs(40), &bench.interrupt, ready)?;
            if round == "first" {
                std::fs::write(dir.join("in"), "kept over a restart").doing(|| "cannot write")?;
                trefoil("object put kept in")?;
            } else {
                trefoil("object get kept out")?;
                let out = std::fs::read(dir.join("out")).doing(|| "no output")?;
                ensure!(out == b"kept over a restart", "the object changed over a restart");
            }
            let output = daemon.output_since(begin);
            for words in
                ["fuse-client mount 127.0.0.1:7400", "epoch", "127.0.0.1:7401", "127.0.0.1:7412"]
            {
                ensure!(output.contains(words), "`{words}` is not in what it prints:\n{output}");
            }
            let pid = daemon.pid().map(|p| p.to_string()).unwrap_or_default();
            let mut again = Command::new(bench.binaries.join("osd-daemon"));
            let again =
                exec::run(again.current_dir(&dir), Duration::from_secs(20), &bench.interrupt)?;
            ensure!(!again.ok(), "a second start is accepted");
            ensure!(
                again.tail().contains(&pid),
                "a second start does not name process {pid}: {}",
                again.tail()
            );
            daemon.stop(Duration::from_secs(20))?;
        }
        ensure!(dir.join("trefoil-data").is_dir(), "there is no ./trefoil-data");
        Ok(())
    };
    let outcome = test();
    if daemon.pid().is_some() {
        daemon.kill()?;
    }
    outcome
}

fn trefoil(bench: &Bench, rig: &Rig, line: &str, seconds: u64) -> Outcome<exec::Run> {
    let mut command = rig.cluster.command("bash");
    let whole = format!("PATH='{}':$PATH; set -o pipefail; {line}", bench.binaries.display());
    let mut bash = Command::new("bash");
    bash.args(["-exc", &whole]).current_dir(rig.scratch("operator")?);
    for (key, value) in command.env("LANG", "C").get_envs() {
        bash.env(key, value.unwrap_or_default());
    }
    bench.run(&mut bash, seconds)
}

fn status(bench: &Bench, rig: &Rig) -> Outcome {
    let shown = trefoil(bench, rig, "trefoil status", 15)?.stdout;
    for words in ["health", "ok", "osd.0", "osd.1", "osd.2", "clean", "client"] {
        ensure!(shown.contains(words), "`{words}` is not in:\n{shown}");
    }
    let json = rig.cluster.status(&bench.interrupt)?;
    ensure!(json["health"] == "ok", "health: {}", json["health"]);
    for field in [
        "cluster",
        "epoch",
        "messages",
        "osds",
        "pools",
        "pgs",
        "clients",
        "mds",
        "total_bytes",
        "free_bytes",
    ] {
        ensure!(json.get(field).is_some(), "`{field}` is not in {json}");
    }
    rig.cluster.kill("osd-2")?;
    let seen = rig.wait_for(bench, "osd.2 down and health degraded", 30, || {
        let json = rig.cluster.status(&bench.interrupt)?;
        Ok(json["health"] == "degraded" && json["osds"][2]["up"] == false)
    });
    rig.cluster.start("osd-2", &bench.interrupt)?;
    seen?;
    rig.wait_clean(bench, 60)?;
    let tells = |words: &str| Ok(trefoil(bench, rig, "trefoil events", 15)?.stdout.contains(words));
    for words in
        ["osd.2 sends no heartbeats", "osd.2 started on", "OSD_DOWN: osd.2", "opened: fuse-client"]
    {
        ensure!(
            tells(words)?,
            "`{words}` is not in:\n{}",
            trefoil(bench, rig, "trefoil events", 15)?.stdout
        );
    }
    // What is amiss is looked at once in a second.
    rig.wait_for(bench, "the end of OSD_DOWN to be told", 30, || tells("OSD_DOWN is over"))
}

fn dead_mds(bench: &Bench, rig: &Rig) -> Outcome {
    let health = |line: &str| {
        let mut command = rig.cluster.command("trefoil");
        exec::run(command.args(line.split(' ')), Duration::from_secs(20), &bench.interrupt)
    };
    let well = health("health")?;
    ensure!(well.ok() && well.stdout.starts_with("ok"), "before: {}{}", well.stdout, well.stderr);
    rig.cluster.kill("mds")?;
    let seen = rig.wait_for(bench, "health is down", 60, || {
        Ok(health("health --quiet")?.status.code() == Some(2))
    });
    let told = health("health")?;
    let detail = health("health detail")?;
    let json = health("health --json")?;
    rig.cluster.start("mds", &bench.interrupt)?;
    seen?;
    let address = rig.cluster.layout().mds.to_string();
    ensure!(
        told.stdout.contains(&address) && told.stdout.contains("is silent for"),
        "it says: {}",
        told.stdout
    );
    ensure!(told.stdout.contains("MDS_ALL_DOWN: "), "it says: {}", told.stdout);
    for words in ["MDS_ALL_DOWN (down, for ", "To do: "] {
        ensure!(detail.stdout.contains(words), "no {words:?} in: {}", detail.stdout);
    }
    let json: serde_json::Value =
        serde_json::from_str(&json.stdout).doing(|| "health --json is no JSON")?;
    ensure!(
        json["health"] == "down" && json["checks"][0]["code"] == "MDS_ALL_DOWN",
        "it says: {json}"
    );
    rig.wait_for(bench, "health is ok again", 60, || Ok(health("health")?.ok()))
}

/// In a mount namespace with a /var/log of its own.
fn background_log(bench: &Bench, rig: &Rig) -> Outcome {
    let point = rig.scratch("background")?;
    let line = "mount -t tmpfs none /var/log; unset TREFOIL_FUSE_LOG_FILE\n\
                fuse-client mount $TREFOIL_MONITOR \"$1\" --daemon; ls \"$1\" > /dev/null; fuse-client umount \"$1\"\n\
                grep -q ' mounted ' /var/log/trefoil/*-background.log";
    let mut command = rig.cluster.command("unshare");
    let path =
        format!("{}:{}", bench.binaries.display(), std::env::var("PATH").unwrap_or_default());
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "bash", "-exc", line, "bash"]).arg(&point).env("PATH", path);
    for (key, value) in command.env("LANG", "C").get_envs() {
        unshare.env(key, value.unwrap_or_default());
    }
    bench.run(&mut unshare, 60).map(drop)
}

fn objects(bench: &Bench, rig: &Rig) -> Outcome {
    let lines = "head -c 5000000 /dev/urandom > in; : > empty\n\
         trefoil object put a in; trefoil object get a out; cmp in out\n\
         trefoil object put b - < in; trefoil object get b - | cmp - in\n\
         cat in in | trefoil object put 'name with / and space'; trefoil object get 'name with / and space' | cmp - <(cat in in)\n\
         trefoil object put empty empty; test $(trefoil object get empty | wc -c) = 0\n\
         head -c 1000 in | trefoil object put a; test $(trefoil object get a | wc -c) = 1000\n\
         trefoil object stat a | grep -q 1000\n\
         trefoil object ls | grep -qx a; trefoil object ls | grep -qx 'name with / and space'\n\
         trefoil object rm a; ! trefoil object get a gone; test ! -s gone; ! trefoil object ls | grep -qx a";
    trefoil(bench, rig, lines, 90).map(drop)
}

fn pools(bench: &Bench, rig: &Rig) -> Outcome {
    let lines = "trefoil pool create copies --k 1 --m 2 --pg-num 8\n\
         trefoil pool ls | grep -q copies; trefoil osd ls | grep -q osd.1\n\
         head -c 3000000 /dev/urandom > in\n\
         for i in $(seq 50); do trefoil object put --pool copies x in 2> err && break; sleep 0.2; done\n\
         trefoil object get --pool copies x | cmp - in; ! trefoil object ls | grep -qx x\n\
         test $(trefoil pool get copies size) = 3; test $(trefoil pool get copies pg_num) = 8\n\
         trefoil pool rename copies mirror; ! trefoil pool ls | grep -q copies\n\
         trefoil object get --pool mirror x | cmp - in; ! trefoil pool rename copies other 2> err; grep -q mirror err\n\
         ! trefoil pool get mirror sise 2> err; grep -q min_size err; trefoil pool rename mirror copies";
    trefoil(bench, rig, lines, 90).map(drop)
}

fn errors(bench: &Bench, rig: &Rig) -> Outcome {
    let nobody = rig.free_ports(1)?[0];
    let lines = format!(
        "code() {{ set +e; \"$@\" > said 2>&1; echo $?; set -e; }}\n\
         test $(code trefoil --monitor {nobody} status) = 3; grep -q '{nobody}' said; grep -q 'osd-daemon' said\n\
         test $(code trefoil object get no-such-object x) = 4; grep -q no-such-object said; test ! -e x\n\
         test $(code trefoil object ls --pool no-such-pool) != 0; grep -q no-such-pool said\n\
         test $(code trefoil object put x /no/such/file) = 1; grep -q /no/such/file said\n\
         test $(code trefoil --no-such-flag) = 2"
    );
    trefoil(bench, rig, &lines, 90).map(drop)
}

fn closed_stdout(bench: &Bench, rig: &Rig) -> Outcome {
    let lines = "head -c 5000000 /dev/zero | trefoil object put zeros\n\
         set +o pipefail; set +e\n\
         trefoil object get zeros 2> err | head -c 10 > /dev/null; trefoil status 2>> err | true; trefoil object ls 2>> err | true\n\
         ! grep -q panicked err";
    trefoil(bench, rig, lines, 60).map(drop)
}
