//! A cluster of separate processes on this machine, in one directory that says all about it.
//!
//! Contract: every function that starts something returns when it serves. What a function starts it
//! takes away again if it fails. Nothing but the directory is remembered, so every command can come
//! from another process.

pub mod cli;
mod guest;
pub mod layout;

pub use guest::Guest;

use crate::error::{Context, Error, Outcome, ensure, fail};
use crate::exec::{self, Interrupt};
use crate::mounts;
use crate::process::Daemon;
use layout::{ALL, Layout, MOUNT, Spec};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A daemon serves within this time of its start, or something is wrong.
const READY_MAX: Duration = Duration::from_secs(40);
/// A daemon stops within this time of SIGTERM, journals synced.
const STOP_MAX: Duration = Duration::from_secs(30);
/// `trefoil status` answers within this time.
const STATUS_MAX: Duration = Duration::from_secs(15);

/// A storage daemon that ended counts as down within this time: some graces of its heartbeats.
const DOWN_MAX: Duration = Duration::from_secs(30);

/// A cluster in a directory, running or not.
#[derive(Clone, Debug)]
pub struct Cluster {
    dir: PathBuf,
    layout: Layout,
}

impl Cluster {
    /// Starts a cluster: a new one, or the one that the directory holds, with its data.
    ///
    /// # Errors
    /// When it runs already, or a part does not come up; then nothing is left running.
    pub fn up(spec: &Spec, binaries: &Path, interrupt: &Interrupt) -> Outcome<Cluster> {
        let cluster = Cluster::prepare(spec, binaries)?;
        let started = cluster.start_all(interrupt);
        if let Err(error) = started {
            cluster.kill_all();
            return Err(error);
        }
        Ok(cluster)
    }

    /// Directories and layout of [`Self::up`], with nothing started.
    ///
    /// # Errors
    /// When it runs already or the directory cannot be written.
    pub fn prepare(spec: &Spec, binaries: &Path) -> Outcome<Cluster> {
        for part in ["conf", "data", "log", "pid"] {
            let path = spec.dir.join(part);
            std::fs::create_dir_all(&path).doing(|| format!("cannot make {}", path.display()))?;
        }
        let dir = std::fs::canonicalize(&spec.dir)
            .doing(|| format!("no directory {}", spec.dir.display()))?;
        let layout = match Layout::load(&dir)? {
            Some(old) => Layout {
                binaries: binaries.into(),
                mount: spec.mount.clone().or(old.mount.clone()),
                ..old
            },
            None => Layout::new(spec, binaries)?,
        };
        let mount = layout.mount.as_ref().map(|m| absolute_dir(m)).transpose()?;
        let cluster = Cluster { dir, layout: Layout { mount, ..layout } };
        if let Some(running) = cluster.all().iter().find(|d| d.pid().is_some()) {
            let dir = cluster.dir.display();
            return fail(format!(
                "{} already runs in {dir}; `cargo xtask cluster down --dir {dir}` stops it",
                running.name
            ));
        }
        cluster.layout.save(&cluster.dir)?;
        if let Some(net) = cluster.layout.net() {
            ensure!(
                !cluster.layout.one_process,
                "a network for each process needs more than one process"
            );
            net.build(&cluster.layout.endpoints())?;
        }
        Ok(cluster)
    }

    /// The cluster in a directory.
    ///
    /// # Errors
    /// When there is none.
    pub fn open(dir: &Path) -> Outcome<Cluster> {
        let dir = std::fs::canonicalize(dir).doing(|| format!("no directory {}", dir.display()))?;
        match Layout::load(&dir)? {
            Some(layout) => Ok(Cluster { dir, layout }),
            None => fail(format!(
                "no cluster in {0}; `cargo xtask cluster up --dir {0}` starts one",
                dir.display()
            )),
        }
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Ports and code.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Where it is mounted, or would be.
    pub fn mount_point(&self) -> Option<&Path> {
        self.layout.mount.as_deref()
    }

    /// A command of one of its binaries, told where the monitor is.
    pub fn command(&self, binary: &str) -> Command {
        let program = self.layout.binaries.join(binary);
        let mut command = match self.layout.net() {
            Some(net) => net.hub_command(&program),
            None => Command::new(program),
        };
        command.env("TREFOIL_MONITOR", self.layout.monitor.to_string());
        command
    }

    /// The client, for a mount in the background: it logs beside the others, and not where this
    /// machine's mounts do.
    pub fn background_client(&self) -> Command {
        let mut command = self.command("fuse-client");
        command.env("TREFOIL_FUSE_LOG_FILE", self.dir().join("log/background.log"));
        command
    }

    /// A binary as the process of this name runs it: in that process's network.
    fn program_of(&self, name: &str, binary: &str) -> Command {
        let program = self.layout.binaries.join(binary);
        match self.layout.net() {
            Some(net) => net.command(name, &program),
            None => Command::new(program),
        }
    }

    /// A process of the cluster by name.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn daemon(&self, name: &str) -> Outcome<Daemon> {
        let found = self.all().into_iter().find(|d| d.name == name);
        let names = || self.all().iter().map(|d| d.name.clone()).collect::<Vec<_>>().join(", ");
        found.map_or_else(|| fail(format!("no process `{name}` here; there are: {}", names())), Ok)
    }

    /// All its processes, running or not, in the order of starting.
    pub fn all(&self) -> Vec<Daemon> {
        let mount =
            self.layout.mount.iter().map(|point| (MOUNT.to_owned(), point.display().to_string()));
        let daemons = self.layout.daemons().into_iter().map(|name| {
            let mark = self.config_path(&name).display().to_string();
            (name, mark)
        });
        let with_paths = |(name, mark): (String, String)| Daemon {
            pid_file: self.dir.join("pid").join(&name),
            log: self.dir.join("log").join(format!("{name}.log")),
            name,
            mark,
        };
        daemons.chain(mount).map(with_paths).collect()
    }

    /// Starts one process and waits until it serves.
    ///
    /// # Errors
    /// When it runs already or does not come up.
    pub fn start(&self, name: &str, interrupt: &Interrupt) -> Outcome {
        if name == MOUNT { self.mount(interrupt) } else { self.start_with(name, |_| (), interrupt) }
    }

    /// Starts one daemon, with a change of its command such as another environment, and waits until
    /// it serves.
    ///
    /// # Errors
    /// When it runs already or does not come up.
    pub fn start_with(
        &self,
        name: &str,
        change: impl FnOnce(&mut Command),
        interrupt: &Interrupt,
    ) -> Outcome {
        let begin = self.launch(name, change)?;
        // Roles announce themselves one by one.
        let wanted = if name == ALL { self.layout.osds.len() + 2 } else { 1 };
        let ready =
            |output: &str| output.lines().filter(|l| l.starts_with("ready:")).count() >= wanted;
        self.daemon(name)?.wait_ready(begin, READY_MAX, interrupt, ready)
    }

    /// Starts one daemon and does not wait; returns where its output begins.
    fn launch(&self, name: &str, change: impl FnOnce(&mut Command)) -> Outcome<u64> {
        let config = self.config_path(name);
        std::fs::write(&config, self.layout.config(name, &self.dir)?)
            .doing(|| format!("cannot write {}", config.display()))?;
        // What the developer set for a daemon of his own must not reach these.
        let mut command = self.program_of(name, "osd-daemon");
        let foreign = std::env::vars_os()
            .map(|(key, _)| key)
            .filter(|k| k.to_string_lossy().starts_with("TREFOIL_"));
        for key in foreign {
            command.env_remove(key);
        }
        change(command.arg("--config").arg(&config).current_dir(&self.dir));
        self.daemon(name)?.spawn(&mut command)
    }

    fn mount(&self, interrupt: &Interrupt) -> Outcome {
        let Some(point) = self.mount_point() else {
            return fail("this cluster has no mount point; give `cluster up` a --mount DIR");
        };
        // The mount of a client that was killed cannot be looked at; the new client has to deal
        // with it.
        if mounts::kind_at(point).is_none() {
            std::fs::create_dir_all(point)
                .doing(|| format!("cannot make the mount point {}", point.display()))?;
        }
        let daemon = self.daemon(MOUNT)?;
        let mut command = self.program_of(MOUNT, "fuse-client");
        self.mount_command(command.current_dir(&self.dir), point);
        let begin = daemon.spawn(&mut command)?;
        // It says so itself; the table of mounts alone may still show a dead one.
        let mounted = |output: &str| {
            output.contains("is mounted on")
                && mounts::kind_at(point).is_some_and(|kind| kind.starts_with("fuse"))
        };
        daemon.wait_ready(begin, READY_MAX, interrupt, mounted)?;
        exec::run_ok(Command::new("stat").arg("-f").arg(point), READY_MAX, interrupt).map(drop)
    }

    fn mount_command(&self, command: &mut Command, point: &Path) {
        command.arg("mount").arg(self.layout.monitor.to_string()).arg(point);
        if !self.layout.mount_options.is_empty() {
            command.args(["-o", &self.layout.mount_options]);
        }
    }

    /// Unmounts and waits for the client's end.
    ///
    /// # Errors
    /// When it is busy or the client does not end.
    pub fn unmount(&self, interrupt: &Interrupt) -> Outcome {
        let Some(point) = self.mount_point() else { return Ok(()) };
        let daemon = self.daemon(MOUNT)?;
        if mounts::kind_at(point).is_some() {
            exec::run_ok(
                self.command("fuse-client").arg("umount").arg(point),
                STOP_MAX,
                interrupt,
            )?;
        }
        ensure!(
            daemon.wait_gone(STOP_MAX),
            "fuse-client still runs after umount; see {}",
            daemon.log.display()
        );
        Ok(())
    }

    /// Stops one process cleanly.
    ///
    /// # Errors
    /// When it does not run or does not stop.
    pub fn stop(&self, name: &str, interrupt: &Interrupt) -> Outcome {
        if name == MOUNT { self.unmount(interrupt) } else { self.daemon(name)?.stop(STOP_MAX) }
    }

    /// SIGKILL to one process.
    ///
    /// # Errors
    /// When it does not run.
    pub fn kill(&self, name: &str) -> Outcome {
        let daemon = self.daemon(name)?;
        daemon.kill()?;
        if let (true, Some(point)) = (name == MOUNT, self.mount_point()) {
            mounts::clear(point);
        }
        Ok(())
    }

    /// Lets a storage daemon that does not run start on an empty disk: `trefoil osd replace`, once
    /// it is known to be down.
    ///
    /// # Errors
    /// When the monitor refuses, and goes on refusing.
    pub fn replace(&self, osd: usize, interrupt: &Interrupt) -> Outcome {
        let end = Instant::now() + DOWN_MAX;
        loop {
            let mut command = self.command("trefoil");
            command.args(["osd", "replace", "--yes", &format!("osd.{osd}")]);
            match exec::run_ok(&mut command, STATUS_MAX, interrupt) {
                Err(Error::Failed(why)) if why.contains("is up") && Instant::now() < end => {}
                outcome => return outcome.map(drop),
            }
            interrupt.sleep(Duration::from_millis(200))?;
        }
    }

    /// Starts every process, and waits until all is served.
    ///
    /// # Errors
    /// When a part does not come up.
    pub fn start_all(&self, interrupt: &Interrupt) -> Outcome {
        for name in self.layout.daemons() {
            self.start(&name, interrupt)?;
        }
        self.wait_clean(READY_MAX, interrupt, |_| {})?;
        if self.layout.mount.is_some() { self.mount(interrupt) } else { Ok(()) }
    }

    /// Unmounts and stops every process cleanly, the monitor last.
    ///
    /// # Errors
    /// When one does not stop; the others are stopped all the same.
    pub fn down(&self, interrupt: &Interrupt) -> Outcome {
        let mut first = self.unmount(interrupt);
        for daemon in self.all().iter().rev().filter(|d| d.name != MOUNT && d.pid().is_some()) {
            first = first.and(daemon.stop(STOP_MAX));
        }
        first
    }

    /// Whatever its state: no process and no mount is left.
    pub fn kill_all(&self) {
        // The client first: its death ends every call that hangs in the mount.
        for daemon in self.all().iter().rev().filter(|d| d.pid().is_some()) {
            if let Err(error) = daemon.kill() {
                eprintln!("warning: {error}");
            }
        }
        if let Some(point) = self.mount_point() {
            mounts::clear(point);
        }
        mounts::clear(&self.dir);
        if let Some(net) = self.layout.net() {
            net.destroy();
        }
    }

    /// What `trefoil status --json` says.
    ///
    /// # Errors
    /// When the monitor cannot be asked.
    pub fn status(&self, interrupt: &Interrupt) -> Outcome<serde_json::Value> {
        let out = exec::run_ok(
            self.command("trefoil").args(["status", "--json"]),
            STATUS_MAX,
            interrupt,
        )?;
        serde_json::from_str(&out.stdout).doing(|| "`trefoil status --json` did not print JSON")
    }

    /// Waits until every PG is clean and every storage daemon up; `progress` gets each new status.
    ///
    /// # Errors
    /// When that does not come within the deadline: with the last status.
    pub fn wait_clean(
        &self,
        deadline: Duration,
        interrupt: &Interrupt,
        mut progress: impl FnMut(&serde_json::Value),
    ) -> Outcome {
        let end = Instant::now() + deadline;
        loop {
            let status = self.status(interrupt);
            if let Ok(status) = &status {
                progress(status);
                if is_clean(status)
                    && status["osds"].as_array().is_some_and(|o| o.len() == self.layout.osds.len())
                {
                    return Ok(());
                }
            }
            if Instant::now() > end {
                let last = status.map_or_else(|e| e.to_string(), |s| s.to_string());
                return fail(format!(
                    "not clean after {} s; the last status: {last}",
                    deadline.as_secs()
                ));
            }
            interrupt.sleep(Duration::from_millis(100))?;
        }
    }

    /// The configuration file of a daemon.
    pub fn config_path(&self, name: &str) -> PathBuf {
        self.dir.join("conf").join(format!("{name}.toml"))
    }

    /// The data directory of a daemon.
    pub fn data_dir(&self, name: &str) -> PathBuf {
        self.dir.join("data").join(name)
    }
}

/// Does this status say that all daemons are up and all PGs clean?
pub fn is_clean(status: &serde_json::Value) -> bool {
    let up = status["osds"].as_array().is_some_and(|osds| osds.iter().all(|o| o["up"] == true));
    let Some(pgs) = status["pgs"].as_object() else { return false };
    let count = |name: &str| pgs.get(name).and_then(serde_json::Value::as_u64).unwrap_or(0);
    let all: u64 = pgs.values().filter_map(serde_json::Value::as_u64).sum();
    up && all > 0
        && count("clean") == all
        && status["objects_to_rebuild"].as_u64().unwrap_or(0) == 0
}

/// An absolute path for a directory that may be missing. A dead mount cannot be resolved, so
/// nothing is looked up below its parent.
fn absolute_dir(path: &Path) -> Outcome<PathBuf> {
    let absolute =
        std::path::absolute(path).doing(|| format!("cannot resolve {}", path.display()))?;
    let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        return fail(format!("{} cannot be a mount point", absolute.display()));
    };
    std::fs::create_dir_all(parent).doing(|| format!("cannot make {}", parent.display()))?;
    let parent = parent.canonicalize().doing(|| format!("cannot resolve {}", parent.display()))?;
    Ok(parent.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn clean_means_every_pg_and_every_daemon() {
        let clean = json!({"osds": [{"up": true}], "pgs": {"clean": 8, "down": 0}, "objects_to_rebuild": 0});
        assert!(is_clean(&clean));
        let degraded = json!({"osds": [{"up": true}], "pgs": {"clean": 7, "degraded": 1}, "objects_to_rebuild": 0});
        assert!(!is_clean(&degraded));
        let down = json!({"osds": [{"up": false}], "pgs": {"clean": 8}, "objects_to_rebuild": 0});
        assert!(!is_clean(&down));
        assert!(!is_clean(&json!({})));
    }
}
