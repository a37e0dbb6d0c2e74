//! Three hosts, each with a storage daemon and the servers of its volumes, as network namespaces of
//! this machine; and fio as the programs in the virtual machines.

use super::Scale;
use super::table::{Cell, Config, Side, Unit};
use crate::cluster::Cluster;
use crate::cluster::layout::{Spec, osd_name};
use crate::error::{Context, Outcome, ensure};
use crate::exec::{self, Interrupt};
use crate::netns;
use crate::testrun::Bench;
use crate::testrun::rig::{Background, background};
use serde_json::Value;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Hosts, each with one storage daemon.
const HOSTS: usize = 3;
/// A server serves, and a command of the cluster ends, within this time.
const READY_MAX: Duration = Duration::from_secs(60);
/// fio may take this much longer than it was told to run, to write the volumes once among others.
const FILL_MAX: Duration = Duration::from_secs(6 * 3600);

/// A cluster of one configuration, with its volumes served.
pub(super) struct Hosts {
    /// Before the cluster, so that they end first.
    servers: Vec<Background>,
    cluster: Cluster,
    sockets: PathBuf,
    scale: Scale,
    interrupt: Interrupt,
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.servers.clear();
        self.cluster.kill_all();
        let _ = std::fs::remove_dir_all(&self.sockets);
        let _ = std::fs::remove_dir_all(self.cluster.dir());
    }
}

impl Hosts {
    /// Starts the cluster in a directory, makes the volumes, serves them and writes each once.
    ///
    /// # Errors
    /// When a part does not come up.
    pub fn up(dir: &Path, config: &Config, scale: Scale, bench: &Bench) -> Outcome<Hosts> {
        let prefix = netns::prefix_of_this_process("study");
        // Two copies, as the study's pools.
        let mut spec = Spec { k: 1, m: 1, net: Some(prefix), ..Spec::new(dir) };
        let line = |(key, value): (&str, u64)| format!("{key} = {value}");
        spec.settings.extend(config.values(Side::Daemon).into_iter().map(line));
        let cluster = Cluster::up(&spec, &bench.binaries, &bench.interrupt)?;
        // A short path: names of sockets have 107 bytes at most.
        let sockets = std::env::temp_dir().join(format!("trefoil-study-{}", std::process::id()));
        std::fs::create_dir_all(&sockets).doing(|| format!("no {}", sockets.display()))?;
        let interrupt = bench.interrupt.clone();
        let mut hosts = Hosts { servers: Vec::new(), cluster, sockets, scale, interrupt };
        for volume in 0..scale.volumes {
            hosts.serve(volume, config)?;
        }
        hosts.fill()?;
        Ok(hosts)
    }

    /// A command on the host of a volume.
    fn trefoil(&self, volume: u32) -> Command {
        let program = self.cluster.layout().binaries.join("trefoil");
        let host = osd_name(volume as usize % HOSTS);
        let mut command = match self.cluster.layout().net() {
            Some(net) => net.command(&host, &program),
            None => Command::new(program),
        };
        command.env("TREFOIL_MONITOR", self.cluster.layout().monitor.to_string());
        command
    }

    fn serve(&mut self, volume: u32, config: &Config) -> Outcome {
        let name = format!("volume-{volume}");
        let size = format!("{}MiB", self.scale.size_mib.max(1));
        let mut create = self.trefoil(volume);
        create.args(["volume", "create", &name, "--size", &size]);
        exec::run_ok(&mut create, READY_MAX, &self.interrupt)?;
        let mut serve = self.trefoil(volume);
        serve.args(["nbd", "serve", &name, "--socket"]).arg(self.socket(volume));
        for (key, value) in config.values(Side::Volume) {
            serve.arg(format!("--{}", key.replace('_', "-"))).arg(value.to_string());
        }
        let output = self.cluster.dir().join("log").join(format!("{name}.log"));
        self.servers.push(background(&mut serve, &output)?);
        let end = Instant::now() + READY_MAX;
        loop {
            let said = std::fs::read_to_string(&output).unwrap_or_default();
            if said.contains("ready:") {
                return Ok(());
            }
            let has_ended = self.servers.last_mut().is_some_and(Background::has_ended);
            let last = exec::last_lines(&said, 5);
            ensure!(!has_ended && Instant::now() < end, "{name} is not served: {last}");
            self.interrupt.sleep(Duration::from_millis(20))?;
        }
    }

    fn socket(&self, volume: u32) -> PathBuf {
        self.sockets.join(volume.to_string())
    }

    fn fill(&self) -> Outcome {
        let job = format!("rw=write\nbs=1m\niodepth=4\nsize={}m\n", self.scale.size_mib);
        self.fio(&job, FILL_MAX).map(drop)
    }

    /// Runs a cell on all volumes at once; what each did, in the cell's unit.
    ///
    /// # Errors
    /// When fio fails, or a volume did nothing.
    pub fn measure(&self, cell: &Cell) -> Outcome<Vec<f64>> {
        let Scale { size_mib, seconds, ramp, .. } = self.scale;
        let job = format!(
            "rw={}\nbs={}\niodepth=1\nsize={size_mib}m\ntime_based=1\nruntime={seconds}\n\
             ramp_time={ramp}\nrandrepeat=0\nnorandommap=1\n",
            cell.rw, cell.block
        );
        // requests that are under way end after the time, the largest on a slow disk late
        let limit = Duration::from_secs(2 * (seconds + ramp) + 120);
        let report = self.fio(&job, limit)?;
        let jobs = report["jobs"].as_array().map_or(&[][..], Vec::as_slice);
        ensure!(jobs.len() == self.scale.volumes as usize, "fio tells of {} jobs", jobs.len());
        jobs.iter().map(|job| value(job, cell)).collect()
    }

    /// Runs a job on each volume; fio's report.
    fn fio(&self, job: &str, limit: Duration) -> Outcome<Value> {
        let mut file = format!("[global]\nioengine=nbd\nthread=1\n{job}\n");
        for volume in 0..self.scale.volumes {
            let socket = self.socket(volume);
            let uri = format!("nbd+unix:///volume-{volume}?socket={}", socket.display());
            let _ = writeln!(file, "[volume-{volume}]\nuri={uri}");
        }
        let path = self.sockets.join("job.fio");
        std::fs::write(&path, file).doing(|| format!("cannot write {}", path.display()))?;
        let mut fio = Command::new("fio");
        fio.arg("--output-format=json").arg(&path).current_dir(&self.sockets);
        let run = exec::run_ok(&mut fio, limit, &self.interrupt)?;
        // It may print notes before the JSON.
        let json = run.stdout.find('{').map_or("", |at| &run.stdout[at..]);
        serde_json::from_str(json).doing(|| "fio did not print JSON")
    }
}

/// What a job did.
fn value(job: &Value, cell: &Cell) -> Outcome<f64> {
    ensure!(job["error"].as_i64() == Some(0), "fio says error {}", job["error"]);
    let part = &job[if cell.rw.contains("read") { "read" } else { "write" }];
    let value = match cell.unit {
        Unit::Iops => part["iops"].as_f64(),
        Unit::MegabytesPerSecond => part["bw_bytes"].as_f64().map(|bytes| bytes / 1e6),
    };
    let value = value.filter(|value| value.is_finite() && *value > 0.0);
    value.map_or_else(|| crate::error::fail("a volume did nothing in its time"), Ok)
}

#[cfg(test)]
mod tests {
    use super::super::table::CELLS;
    use super::*;

    #[test]
    fn a_job_is_read_in_the_unit_of_its_cell() {
        let job: Value = serde_json::from_str(
            r#"{"error":0,"read":{"iops":100.0,"bw_bytes":3000000},"write":{"iops":0,"bw_bytes":0}}"#,
        )
        .unwrap();
        let named = |name: &str| CELLS.iter().find(|cell| cell.name == name).unwrap();
        assert_eq!(value(&job, named("randread-4k")).unwrap(), 100.0);
        assert_eq!(value(&job, named("read-32m")).unwrap(), 3.0);
        assert!(value(&job, named("write-1m")).is_err());
    }
}
