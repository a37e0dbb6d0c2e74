//! Three monitors: any one of them is killed, stopped or started again, and the cluster goes on;
//! two of them are gone, and it says so; all of them die, and the same cluster comes back.

use super::kills::Writers;
use super::report::Report;
use super::rig::Rig;
use super::{Bench, spec_in};
use crate::cluster::Cluster;
use crate::cluster::layout::{Spec, monitor_name};
use crate::error::{Context, Outcome, ensure, fail};
use crate::exec;
use rustix::process::Signal;
use serde_json::Value;
use std::process::Command;
use std::time::{Duration, Instant};

/// Monitors of the tests.
const MONITORS: u16 = 3;
/// Nothing here takes so long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time for a command that asks one monitor.
const ASK_MAX: Duration = Duration::from_secs(15);

/// Runs them.
///
/// # Errors
/// Only on Ctrl-C.
pub fn run(bench: &Bench, report: &mut Report) -> Outcome {
    let alone = "three monitors alone: the leader dies, two die, all die, a disk is lost";
    if report.wants_test("monitors", alone) {
        report.case("monitors", alone, || {
            let three = Three::start(bench)?;
            let outcome = three.membership();
            three.cluster.kill_all();
            outcome
        })?;
    }
    let mounted = "the leader dies, stops and returns under writers: nothing acknowledged is lost";
    if !report.wants_test("monitors", mounted) {
        return Ok(());
    }
    let several = |spec| Spec { monitors: MONITORS, ..spec };
    let Some(rig) = Rig::start("monitors", bench, report, several)? else { return Ok(()) };
    report.case("monitors", mounted, || under_writers(bench, &rig))?;
    rig.finish(bench, report)
}

/// What one monitor says of the cluster; none if it does not answer, or knows of none.
fn status_of(bench: &Bench, cluster: &Cluster, node: usize) -> Option<Value> {
    let addr = cluster.layout().monitors[node].to_string();
    let mut command = cluster.command("trefoil");
    command.args(["--monitor", &addr, "status", "--json"]);
    let out = exec::run_ok(&mut command, ASK_MAX, &bench.interrupt).ok()?;
    serde_json::from_str(&out.stdout).ok()
}

/// Which one leads, by what it says itself.
fn leader(bench: &Bench, cluster: &Cluster, of: &[usize]) -> Option<usize> {
    of.iter().copied().find(|node| {
        let status = status_of(bench, cluster, *node);
        status.is_some_and(|status| status["quorum"]["leader"].as_u64() == Some(*node as u64))
    })
}

fn wait_for<T>(bench: &Bench, what: &str, mut look: impl FnMut() -> Option<T>) -> Outcome<T> {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        if Instant::now() > end {
            return fail(format!("{what}: not within {} s", PATIENCE.as_secs()));
        }
        bench.interrupt.sleep(Duration::from_millis(100))?;
    }
}

fn wait_leader(bench: &Bench, cluster: &Cluster, of: &[usize]) -> Outcome<usize> {
    wait_for(bench, "a monitor leads", || leader(bench, cluster, of))
}

/// The others.
fn without(node: usize) -> Vec<usize> {
    (0..usize::from(MONITORS)).filter(|other| *other != node).collect()
}

/// Three monitors, and nothing else.
struct Three<'a> {
    bench: &'a Bench,
    cluster: Cluster,
}

impl Three<'_> {
    fn start(bench: &Bench) -> Outcome<Three<'_>> {
        let dir = bench.work.join("monitors-alone");
        std::fs::create_dir_all(&dir).doing(|| format!("cannot make {}", dir.display()))?;
        let spec = Spec { monitors: MONITORS, ports: bench.ports(), ..spec_in(&dir) };
        let cluster = Cluster::prepare(&spec, &bench.binaries)?;
        let three = Three { bench, cluster };
        let started = (0..usize::from(MONITORS)).try_for_each(|node| three.revive(node));
        if let Err(error) = started {
            three.cluster.kill_all();
            return Err(error);
        }
        Ok(three)
    }

    fn revive(&self, node: usize) -> Outcome {
        self.cluster.start(&monitor_name(node), &self.bench.interrupt)
    }

    fn kill(&self, node: usize) -> Outcome {
        self.cluster.kill(&monitor_name(node))
    }

    fn leader(&self, of: &[usize]) -> Outcome<usize> {
        wait_leader(self.bench, &self.cluster, of)
    }

    fn status(&self, node: usize) -> Option<Value> {
        status_of(self.bench, &self.cluster, node)
    }

    /// Makes a pool, as whatever only the leader decides.
    fn make_pool(&self, node: usize, name: &str) -> Outcome {
        let addr = self.cluster.layout().monitors[node].to_string();
        let mut command: Command = self.cluster.command("trefoil");
        command.args(["--monitor", &addr, "pool", "create", name]);
        exec::run_ok(&mut command, ASK_MAX, &self.bench.interrupt).map(drop)
    }

    /// Waits until a monitor knows so many pools, all of them up or not.
    fn has_pools(&self, node: usize, count: usize) -> Outcome<Value> {
        wait_for(self.bench, &format!("monitor.{node} knows {count} pools"), || {
            self.status(node).filter(|s| s["pools"].as_array().is_some_and(|p| p.len() == count))
        })
    }

    fn membership(&self) -> Outcome {
        let first = self.leader(&[0, 1, 2])?;
        let cluster = self.has_pools(first, 1)?["cluster"].clone();
        self.make_pool(first, "second")?;
        for node in without(first) {
            let status = self.has_pools(node, 2)?;
            ensure!(status["cluster"] == cluster, "monitor.{node} is of another cluster");
        }
        // the leader dies
        self.kill(first)?;
        let next = self.leader(&without(first))?;
        self.make_pool(next, "third")?;
        let missed = |status: &Value| status.to_string().contains("MON_DOWN");
        wait_for(self.bench, "MON_DOWN", || self.status(next).filter(missed).map(drop))?;
        // another dies: the last one tells, and decides nothing
        let last = without(first).into_iter().find(|node| *node != next).unwrap_or_default();
        let before = self.has_pools(last, 3)?["epoch"].clone();
        self.kill(next)?;
        let down = wait_for(self.bench, "it says that nobody leads", || {
            let status = self.status(last)?;
            (status["health"] == "down" && status["quorum"]["leader"].is_null()).then_some(status)
        })?;
        ensure!(down["epoch"] == before, "the map has changed: {down}");
        ensure!(self.make_pool(last, "never").is_err(), "one of three made a pool");
        // all die, and return
        self.kill(last)?;
        (0..3).try_for_each(|node| self.revive(node))?;
        let leader = self.leader(&[0, 1, 2])?;
        let after = self.has_pools(leader, 3)?;
        ensure!(after["cluster"] == cluster, "another cluster: {after}");
        ensure!(after["epoch"].as_u64() >= before.as_u64(), "older than before: {after}");
        // a disk is lost: its monitor is told everything, and votes again
        let lost = without(leader)[0];
        self.kill(lost)?;
        let dir = self.cluster.data_dir(&monitor_name(lost));
        std::fs::remove_dir_all(&dir).doing(|| format!("cannot remove {}", dir.display()))?;
        self.revive(lost)?;
        let all_vote = |node: &usize| {
            let status = self.status(*node)?;
            let all = status["quorum"]["monitors"].as_array()?;
            all.iter().all(|m| m["up"] == true && m["votes"] == true).then_some(())
        };
        // also by what it says itself: the others remember for a moment what it was
        wait_for(self.bench, "all vote", || [lost, leader].iter().try_for_each(all_vote))?;
        let other = (0..3).find(|node| ![lost, leader].contains(node)).unwrap_or_default();
        self.kill(other)?;
        let leader = self.leader(&without(other))?;
        self.make_pool(leader, "fourth")?;
        self.has_pools(lost, 4).map(drop)
    }
}

/// What happens to a leader.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Killed,
    Stopped,
    Restarted,
}

/// Waits until all monitors say that they are three, every OSD is up and all groups are served.
fn wait_served(bench: &Bench, cluster: &Cluster) -> Outcome {
    let all =
        |list: &Value| list.as_array().is_some_and(|list| list.iter().all(|one| one["up"] == true));
    let is_served = |status: &Value| {
        let waits = ["down", "peering"].iter().any(|state| status["pgs"][state] != 0);
        all(&status["osds"]) && all(&status["quorum"]["monitors"]) && !waits
    };
    wait_for(bench, "all is served", || {
        let mut told = (0..usize::from(MONITORS)).map(|node| status_of(bench, cluster, node));
        told.all(|status| status.as_ref().is_some_and(is_served)).then_some(())
    })
}

fn under_writers(bench: &Bench, rig: &Rig) -> Outcome {
    let cluster = &rig.cluster;
    let mut writers = Writers::start(bench, rig, "monitors")?;
    let mut told = Vec::new();
    for round in 0..bench.size(9, 3) {
        let fault = [Fault::Killed, Fault::Stopped, Fault::Restarted][round % 3];
        let first = wait_leader(bench, cluster, &[0, 1, 2])?;
        told.push(format!("monitor.{first} {fault:?}"));
        let context = || format!("after {}", told.join(", "));
        let name = monitor_name(first);
        match fault {
            Fault::Killed => cluster.kill(&name)?,
            Fault::Stopped => cluster.daemon(&name)?.signal(Signal::STOP)?,
            Fault::Restarted => cluster.stop(&name, &bench.interrupt)?,
        }
        wait_leader(bench, cluster, &without(first)).doing(context)?;
        // files are made and found without it, and an OSD that dies is marked down
        let line = format!("echo {round} > made-{round}; sync made-{round}; cat made-{round}");
        bench.shell(rig.mount(), &line, 60).doing(context)?;
        if round % 3 == 0 {
            cluster.kill("osd-1")?;
            wait_for(bench, "osd.1 is down", || {
                let mut told =
                    without(first).into_iter().filter_map(|n| status_of(bench, cluster, n));
                told.all(|status| status["osds"][1]["up"] == false).then_some(())
            })
            .doing(context)?;
            cluster.start("osd-1", &bench.interrupt).doing(context)?;
        }
        match fault {
            Fault::Stopped => cluster.daemon(&name)?.signal(Signal::CONT)?,
            Fault::Killed | Fault::Restarted => cluster.start(&name, &bench.interrupt)?,
        }
        // not clean: an object that is written all the time may not become whole before the end
        wait_served(bench, cluster).doing(context)?;
        writers.check().doing(context)?;
    }
    // all at once
    for node in 0..usize::from(MONITORS) {
        cluster.kill(&monitor_name(node))?;
    }
    for node in 0..usize::from(MONITORS) {
        cluster.start(&monitor_name(node), &bench.interrupt)?;
    }
    let context = || format!("after {}, and all at once", told.join(", "));
    wait_leader(bench, cluster, &[0, 1, 2]).doing(context)?;
    wait_served(bench, cluster).doing(context)?;
    writers.check().doing(context)?;
    writers.stop(bench).doing(context)?;
    rig.wait_clean(bench, 120).doing(context)?;
    rig.remount(bench)?;
    writers.verify(bench, 5).doing(context)
}
