//! A Ceph cluster with a file system, of its own: a monitor, a manager, a metadata service and
//! three OSDs in one network namespace.
//!
//! Contract: configuration, data and logs lie below one directory, and no cluster of the machine's
//! is touched. All of it ends when the [`Cluster`] is dropped; [`sweep`] takes away what a process
//! that was killed has left. Needs root.

use super::text::{self, ADDRESS, OSDS, Status};
use crate::error::{Context, Error, Outcome, ensure};
use crate::exec::{self, Interrupt, last_lines};
use crate::mounts;
use crate::netns::Loopback;
use crate::process::{self, Daemon};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// How the names of all its programs begin.
const PROGRAMS: &str = "ceph";
/// Tells its namespace from others of this process.
const PURPOSE: &str = "compare-ceph";
/// Pools of names, of what the file system itself notes of files, and of data.
const META: &str = "meta";
const PLAIN: &str = "plain";
const DATA: &str = "data";
/// Placement groups of the pool of data, Ceph's default, and of the other two.
pub const DATA_PGS: &str = "32";
const OTHER_PGS: &str = "16";
/// The profile of the code.
const PROFILE: &str = "ec";
/// What a mounted file system is called by the kernel.
const FUSE: &str = "fuse.ceph-fuse";
/// A daemon answers, a mount is there, or everything is clean this soon after it was started.
const UP_MAX: Duration = Duration::from_secs(120);
/// Commands of Ceph end within this time.
const COMMAND_MAX: Duration = Duration::from_secs(90);
/// For a monitor, seconds: then the command gives up.
const CONNECT_SECONDS: &str = "20";
/// A cluster is whole once it has said so twice, so long apart: what it says first may be older
/// than what was done to it.
const SAYS_AGAIN_AFTER: Duration = Duration::from_secs(5);
/// A client ends this soon after its mount was taken away.
const CLIENT_ENDS_MAX: Duration = Duration::from_secs(10);

/// A running cluster; everything of it ends when it is dropped.
pub struct Cluster {
    dir: PathBuf,
    net: Loopback,
    interrupt: Interrupt,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        sweep(&self.dir);
        self.net.destroy();
    }
}

/// Ends what is left of a cluster whose process is gone. Its namespace goes with
/// [`crate::netns::sweep`].
pub fn sweep(dir: &Path) {
    mounts::clear(dir);
    process::end_all(PROGRAMS, dir);
}

/// The name of an OSD's process.
pub fn osd_name(number: usize) -> String {
    format!("osd.{number}")
}

impl Cluster {
    /// Starts a cluster with an empty file system below `dir`, not mounted.
    ///
    /// # Errors
    /// When it does not come up; nothing is left running then.
    pub fn up(dir: &Path, interrupt: &Interrupt) -> Outcome<Cluster> {
        std::fs::create_dir_all(dir).doing(|| format!("cannot make {}", dir.display()))?;
        let dir = dir.canonicalize().doing(|| format!("no directory {}", dir.display()))?;
        let cluster = Cluster { dir, net: Loopback::new(PURPOSE), interrupt: interrupt.clone() };
        for part in ["run", "log", "crash", "mon.a", "mgr.a", "mds.a"] {
            cluster.make_dir(part)?;
        }
        std::fs::write(cluster.conf(), text::configuration(&cluster.dir, &uuid()?))
            .doing(|| "cannot write ceph.conf")?;
        cluster.net.build(ADDRESS)?;
        cluster.start_monitor()?;
        cluster.start("mgr.a")?;
        for number in 0..OSDS {
            cluster.add_osd(number)?;
        }
        cluster.make_pools()?;
        cluster.start("mds.a")?;
        cluster.wait_up()?;
        Ok(cluster)
    }

    /// Its directory, with no link in its path.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn start_monitor(&self) -> Outcome {
        let name = "mon.a";
        self.run(self.program("ceph-mon", name).arg("--mkfs"))?;
        self.start(name)?;
        self.wait(&self.daemon(name), || match self.status() {
            Ok(_) => Ok(None),
            Err(Error::Failed(why)) => Ok(Some(why)),
            Err(interrupted) => Err(interrupted),
        })
    }

    fn add_osd(&self, number: usize) -> Outcome {
        let (name, id) = (osd_name(number), uuid()?);
        self.make_dir(&name)?;
        self.ceph(&["osd", "new", &id, &number.to_string()])?;
        self.run(self.program("ceph-osd", &name).args(["--mkfs", "--osd-uuid", &id]))?;
        self.start(&name)
    }

    /// Names in a pool of three copies, data in one of 2+1. The file system's first pool of data
    /// holds the way back from every file to its name: Ceph's documentation wants copies for that,
    /// too.
    fn make_pools(&self) -> Outcome {
        let profile = ["osd", "erasure-code-profile", "set", PROFILE];
        self.ceph(&[&profile[..], &["k=2", "m=1", "crush-failure-domain=osd"]].concat())?;
        self.ceph(&["osd", "pool", "create", META, OTHER_PGS])?;
        self.ceph(&["osd", "pool", "create", PLAIN, OTHER_PGS])?;
        self.ceph(&["osd", "pool", "create", DATA, DATA_PGS, DATA_PGS, "erasure", PROFILE])?;
        self.ceph(&["osd", "pool", "set", DATA, "allow_ec_overwrites", "true"])?;
        // By default it stops as soon as one OSD is dead.
        self.ceph(&["osd", "pool", "set", DATA, "min_size", "2"])?;
        self.ceph(&["fs", "new", "cephfs", META, PLAIN])?;
        self.ceph(&["fs", "add_data_pool", "cephfs", DATA]).map(drop)
    }

    /// Until all OSDs and the metadata service serve.
    fn wait_up(&self) -> Outcome {
        self.wait(&self.daemon("mds.a"), || {
            let status = self.status()?;
            Ok((!status.is_whole() || !status.has_metadata()).then(|| status.words()))
        })
    }

    /// Mounts it at a place below its directory, by a client of its own.
    ///
    /// # Errors
    /// When it cannot be mounted.
    pub fn mount_at(&self, point: &Path) -> Outcome<Daemon> {
        std::fs::create_dir_all(point).doing(|| format!("cannot make {}", point.display()))?;
        let name = point.file_name().unwrap_or_default().to_string_lossy();
        let client = self.daemon(&format!("client.{name}"));
        client.spawn(self.program("ceph-fuse", &client.name).arg("-f").arg(point))?;
        self.wait(&client, || {
            Ok((mounts::kind_at(point).as_deref() != Some(FUSE)).then(|| "not mounted".to_owned()))
        })?;
        Ok(client)
    }

    /// What is made below a directory of a mount from now on lies in the pool of data.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn use_data_pool(&self, dir: &Path) -> Outcome {
        let layout = ["-n", "ceph.dir.layout.pool", "-v", DATA];
        self.run(Command::new("setfattr").args(layout).arg(dir)).map(drop)
    }

    /// Takes a mount away, and waits until its client has ended.
    ///
    /// # Errors
    /// When it does not end.
    pub fn unmount(&self, point: &Path, client: &Daemon) -> Outcome {
        mounts::clear(point);
        if client.wait_gone(CLIENT_ENDS_MAX) { Ok(()) } else { client.kill() }
    }

    /// One of its processes.
    pub fn daemon(&self, name: &str) -> Daemon {
        Daemon {
            name: name.to_owned(),
            pid_file: self.dir.join("run").join(format!("{name}.pid")),
            // Its own log: what it prints before it has opened that is there, too.
            log: self.log(name),
            mark: format!("-n\0{name}\0-c\0{}\0", self.conf().display()),
        }
    }

    /// Everything of it but clients, running or not.
    pub fn daemons(&self) -> Vec<Daemon> {
        let singles = ["mon.a", "mgr.a", "mds.a"].map(str::to_owned);
        singles.into_iter().chain((0..OSDS).map(osd_name)).map(|name| self.daemon(&name)).collect()
    }

    /// Starts one of its daemons.
    ///
    /// # Errors
    /// When it runs already, or cannot be started.
    pub fn start(&self, name: &str) -> Outcome {
        let kind = name.split('.').next().unwrap_or_default();
        self.daemon(name).spawn(self.program(&format!("ceph-{kind}"), name).arg("-f")).map(drop)
    }

    /// How it is.
    ///
    /// # Errors
    /// When no monitor answers.
    pub fn status(&self) -> Outcome<Status> {
        Status::parse(&self.ceph(&["status", "--format", "json"])?.stdout)
    }

    /// Waits until it says twice that nothing is missing, by a map newer than this one; when it
    /// said so first. `None` if it did not in time.
    ///
    /// # Errors
    /// When it does not tell.
    pub fn wait_whole(&self, newer_than: u64, deadline: Duration) -> Outcome<Option<Instant>> {
        let end = Instant::now() + deadline;
        let mut whole_at: Option<Instant> = None;
        while Instant::now() < end {
            let status = self.status()?;
            if status.epoch() <= newer_than || !status.is_whole() {
                whole_at = None;
            } else if whole_at.get_or_insert_with(Instant::now).elapsed() >= SAYS_AGAIN_AFTER {
                return Ok(whole_at);
            }
            self.interrupt.sleep(Duration::from_millis(200))?;
        }
        Ok(None)
    }

    /// What an OSD takes its disk for: `hdd` or `ssd`.
    ///
    /// # Errors
    /// When it does not tell.
    pub fn disk_kind(&self) -> Outcome<String> {
        let words = ["osd", "metadata", "0", "--format", "json"];
        let metadata: serde_json::Value = serde_json::from_str(&self.ceph(&words)?.stdout)
            .doing(|| "what `ceph osd metadata` says is not understood")?;
        Ok(metadata["bluestore_bdev_type"].as_str().unwrap_or("unknown").to_owned())
    }

    /// A program of Ceph's that acts under a name. Where its configuration stands, its mark does.
    fn program(&self, program: &str, name: &str) -> Command {
        let mut command = self.net.command(program);
        command.env_remove("CEPH_ARGS").args(["-n", name, "-c"]).arg(self.conf());
        command
    }

    /// The command `ceph`.
    fn ceph(&self, words: &[&str]) -> Outcome<exec::Run> {
        let mut command = self.program("ceph", "client.admin");
        let ran = self.run(command.args(["--connect-timeout", CONNECT_SECONDS]).args(words));
        ran.map_err(|error| match error {
            Error::Failed(why) => Error::Failed(format!(
                "{why}\nthe monitor's log is {}",
                self.log("mon.a").display()
            )),
            interrupted @ Error::Interrupted => interrupted,
        })
    }

    fn run(&self, command: &mut Command) -> Outcome<exec::Run> {
        exec::run_ok(command, COMMAND_MAX, &self.interrupt)
    }

    /// Waits for what a daemon was started for; `ready` says what is missing.
    fn wait(&self, daemon: &Daemon, ready: impl Fn() -> Outcome<Option<String>>) -> Outcome {
        let end = Instant::now() + UP_MAX;
        loop {
            // In this order: a daemon that gets ready and dies at once still counts as seen.
            let alive = daemon.is_alive();
            let Some(missing) = ready()? else { return Ok(()) };
            let (name, log) = (&daemon.name, daemon.log.display());
            let tail = || last_lines(&daemon.output_since(0), 15);
            ensure!(
                alive,
                "{name} ended before it was ready: {missing}; the end of {log}:\n{}",
                tail()
            );
            ensure!(
                Instant::now() < end,
                "{name} was not ready after {} s: {missing}; other logs are beside its own; the end of {log}:\n{}",
                UP_MAX.as_secs(),
                tail()
            );
            self.interrupt.sleep(Duration::from_millis(100))?;
        }
    }

    fn make_dir(&self, part: &str) -> Outcome {
        std::fs::create_dir_all(self.dir.join(part)).doing(|| format!("cannot make {part}"))
    }

    fn conf(&self) -> PathBuf {
        self.dir.join("ceph.conf")
    }

    fn log(&self, name: &str) -> PathBuf {
        self.dir.join("log").join(format!("{name}.log"))
    }
}

/// A random one, from the kernel.
fn uuid() -> Outcome<String> {
    let text =
        std::fs::read_to_string("/proc/sys/kernel/random/uuid").doing(|| "cannot make a uuid")?;
    Ok(text.trim().to_owned())
}
