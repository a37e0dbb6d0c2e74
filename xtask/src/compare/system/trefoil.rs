//! Trefoil: monitor, metadata service and three OSDs as separate processes on the disk, 2+1; the
//! defaults, or some of them changed.

use super::{Parts, Slow, Slowed, System, VICTIM, Variant};
use crate::cluster::layout::{MOUNT, Spec, osd_name};
use crate::cluster::{Cluster, Guest};
use crate::compare::cpu::{Group, Process};
use crate::compare::locks::{self, LockUse};
use crate::error::{Error, Outcome};
use crate::exec::{self, Interrupt};
use crate::testrun::Bench;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// `trefoil locks` answers within this time: it waits 10 s for a daemon that is silent.
const LOCKS_MAX: Duration = Duration::from_secs(30);

/// A cluster and its mounts.
pub struct Trefoil {
    name: String,
    area: PathBuf,
    others: Vec<Guest>,
    cluster: Cluster,
    slow: Option<Slow>,
    interrupt: Interrupt,
}

impl Drop for Trefoil {
    fn drop(&mut self) {
        self.others.clear();
        self.cluster.kill_all();
    }
}

/// Takes away what a run that was killed has left in a directory.
pub fn sweep(dir: &Path) {
    if let Ok(cluster) = Cluster::open(&dir.join("cluster")) {
        cluster.kill_all();
    }
}

impl Trefoil {
    /// Starts one.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn up(dir: &Path, variant: &Variant, bench: &Bench) -> Outcome<Trefoil> {
        let area = dir.join("mnt");
        let mut spec = Spec { mount: Some(area.clone()), ..Spec::new(&dir.join("cluster")) };
        spec.settings.extend(variant.lines());
        spec.mount_options = variant.mount_options();
        let cluster = Cluster::up(&spec, &bench.binaries, &bench.interrupt)?;
        let (name, slow) = (variant.name(), variant.slow);
        Ok(Trefoil {
            name,
            area,
            others: Vec::new(),
            cluster,
            slow,
            interrupt: bench.interrupt.clone(),
        })
    }

    /// The same, under another name in reports.
    pub fn named(mut self, name: &str) -> Trefoil {
        name.clone_into(&mut self.name);
        self
    }
}

impl System for Trefoil {
    fn name(&self) -> &str {
        &self.name
    }

    fn area(&self) -> &Path {
        &self.area
    }

    fn describe(&self) -> Vec<String> {
        let layout = self.cluster.layout();
        let processes =
            format!("monitor, metadata service and {} OSDs as processes", layout.osds.len());
        let options = Some(&*layout.mount_options).filter(|options| !options.is_empty());
        let changed: Vec<&str> =
            layout.settings.iter().map(String::as_str).chain(options).collect();
        let changed = changed.join(", ");
        let settings = if changed.is_empty() { "all settings as they come" } else { &changed };
        vec![format!(
            "{processes}, {}+{}, on the disk and one host, FUSE mount, {settings}",
            layout.k, layout.m
        )]
    }

    fn processes(&self) -> Vec<Process> {
        let own = self.cluster.all();
        let guests = self.others.iter().map(Guest::daemon).cloned();
        let process = |daemon: crate::process::Daemon| {
            let group = if daemon.name.starts_with(MOUNT) { Group::Client } else { Group::Daemons };
            Some(Process { pid: daemon.pid()?, group, name: daemon.name })
        };
        own.into_iter().chain(guests).filter_map(process).collect()
    }

    fn locks(&self) -> Outcome<Option<Vec<LockUse>>> {
        let mut command = self.cluster.command("trefoil");
        let run = exec::run_ok(command.args(["locks", "--json"]), LOCKS_MAX, &self.interrupt)?;
        locks::parse(&run.stdout).map(Some)
    }

    fn disturb(&self) -> Option<Slowed> {
        self.slow.and_then(|slow| Some(slow.begin(self.cluster.daemon(&osd_name(VICTIM)).ok()?)))
    }

    fn parts(&mut self) -> Option<&mut dyn Parts> {
        Some(self)
    }
}

impl Parts for Trefoil {
    fn mount_all(&mut self, count: u32) -> Outcome<Vec<PathBuf>> {
        while self.others.len() + 1 < count as usize {
            let name = format!("{MOUNT}-{}", self.others.len() + 2);
            let point = self.area.with_file_name(&name);
            self.others.push(self.cluster.mount_also(&name, &point, &self.interrupt)?);
        }
        let points = self.others.iter().map(|guest| guest.point().to_path_buf());
        Ok(std::iter::once(self.area.clone()).chain(points).take(count as usize).collect())
    }

    fn unmount_others(&mut self) -> Outcome {
        self.others.drain(..).try_for_each(|guest| guest.unmount(&self.cluster, &self.interrupt))
    }

    fn kill_one(&mut self) -> Outcome {
        self.cluster.kill(&osd_name(VICTIM))
    }

    fn return_one(&mut self) -> Outcome {
        self.cluster.start(&osd_name(VICTIM), &self.interrupt)
    }

    fn wait_whole(&mut self, deadline: Duration) -> Outcome<Option<Duration>> {
        let begin = Instant::now();
        match self.cluster.wait_clean(deadline, &self.interrupt, |_| {}) {
            Ok(()) => Ok(Some(begin.elapsed())),
            Err(Error::Failed(_)) => Ok(None),
            Err(interrupted) => Err(interrupted),
        }
    }
}
