//! A GlusterFS dispersed 2+1 volume of its own: three bricks in one network namespace, for what
//! compares with it.
//!
//! Contract: state, bricks, logs of daemons and mounts lie below one directory, and no volume of
//! the machine's is touched; several volumes can run at once. All of it ends when the [`Volume`] is
//! dropped; [`sweep`] takes away what a process that was killed has left. Needs root and the
//! package glusterfs-server.

use crate::error::{Context, Error, Outcome, ensure, fail};
use crate::exec::{self, Interrupt};
use crate::mounts;
use crate::netns::{self, Loopback};
use crate::process;
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// How the names of all its programs begin.
const PROGRAMS: &str = "gluster";
/// Bricks of the volume.
pub const BRICKS: usize = 3;
/// The volume, and its address in its namespace.
const VOLUME: &str = "ec";
const ADDRESS: &str = "10.99.0.1";
/// Where sockets of commands lie. Not below the volume's directory: their names have at most 107
/// bytes.
const SOCKETS: &str = "/run";
/// Bricks are online this soon after they were started.
const ONLINE_MAX: Duration = Duration::from_secs(120);
/// glusterd starts only bricks that it has seen dead, so that it is asked again after this long.
const START_AGAIN_AFTER: Duration = Duration::from_secs(2);
/// Clients and the healer connect to bricks that listen within this time.
const CONNECTED_AFTER: Duration = Duration::from_secs(3);
/// Commands of GlusterFS end within this time.
const COMMAND_MAX: Duration = Duration::from_secs(90);

/// A running volume; everything of it ends when it is dropped.
pub struct Volume {
    dir: PathBuf,
    net: Loopback,
    interrupt: Interrupt,
}

impl Drop for Volume {
    fn drop(&mut self) {
        mounts::clear(&self.dir);
        process::end_all(PROGRAMS, &self.dir);
        let _ = std::fs::remove_file(self.socket());
        self.net.destroy();
    }
}

/// Ends what is left of a volume whose process is gone. Its namespace goes with [`netns::sweep`].
pub fn sweep(dir: &Path) {
    mounts::clear(dir);
    process::end_all(PROGRAMS, dir);
    for entry in std::fs::read_dir(SOCKETS).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".socket") && netns::is_orphan(&name) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

impl Volume {
    /// Starts a volume and mounts it below `dir`; `purpose` tells its namespace from others of this
    /// process.
    ///
    /// # Errors
    /// When GlusterFS is not installed or does not come up; nothing is left running then.
    pub fn up(dir: &Path, purpose: &str, interrupt: &Interrupt) -> Outcome<Volume> {
        ensure!(
            Path::new("/usr/sbin/glusterd").exists(),
            "no /usr/sbin/glusterd: install the package glusterfs-server"
        );
        std::fs::create_dir_all(dir).doing(|| format!("cannot make {}", dir.display()))?;
        let dir = dir.canonicalize().doing(|| format!("no directory {}", dir.display()))?;
        let volume = Volume { dir, net: Loopback::new(purpose), interrupt: interrupt.clone() };
        for part in ["state", "run", "log", "mnt", "b0", "b1", "b2"] {
            std::fs::create_dir_all(volume.dir.join(part)).doing(|| "cannot make a directory")?;
        }
        volume.start_daemon()?;
        let brick = |number: usize| format!("{ADDRESS}:{}", volume.brick_dir(number).display());
        let bricks: Vec<String> = (0..BRICKS).map(brick).collect();
        let mut create = vec!["volume", "create", VOLUME, "disperse", "3", "redundancy", "1"];
        create.extend(bricks.iter().map(String::as_str));
        create.push("force");
        volume.gluster(&create)?;
        volume.gluster(&["volume", "start", VOLUME])?;
        volume.wait_bricks(BRICKS)?;
        volume.mount_at(&volume.mount_point(), &[])?;
        Ok(volume)
    }

    fn start_daemon(&self) -> Outcome {
        self.net.build(ADDRESS)?;
        let original = std::fs::read_to_string("/etc/glusterfs/glusterd.vol")
            .doing(|| "cannot read glusterd.vol")?;
        let options = [
            ("working-directory", self.dir.join("state")),
            ("run-directory", self.dir.join("run")),
            ("logging-directory", self.dir.join("log")),
            ("glusterd-sockfile", self.socket()),
        ];
        let file = self.dir.join("glusterd.vol");
        std::fs::write(&file, with_options(&original, &options))
            .doing(|| "cannot write glusterd.vol")?;
        let mut daemon = self.net.command("glusterd");
        daemon.arg(format!("--volfile={}", file.display())).args(["--log-level", "WARNING"]);
        daemon.arg("-l").arg(self.dir.join("log/glusterd.log"));
        self.run(daemon.arg("-p").arg(self.dir.join("glusterd.pid")))?;
        self.retry(|volume| volume.gluster(&["volume", "list"])).map(drop)
    }

    /// Sets options of the volume.
    ///
    /// # Errors
    /// When GlusterFS refuses one.
    pub fn set(&self, options: &[(&str, &str)]) -> Outcome {
        options.iter().try_for_each(|(key, value)| {
            self.gluster(&["volume", "set", VOLUME, key, value]).map(drop)
        })
    }

    /// Where it is mounted.
    pub fn mount_point(&self) -> PathBuf {
        self.dir.join("mnt")
    }

    /// Mounts it at one more place below its directory, by a client of its own.
    ///
    /// # Errors
    /// When it cannot be mounted.
    pub fn mount_at(&self, point: &Path, options: &[&str]) -> Outcome {
        std::fs::create_dir_all(point).doing(|| format!("cannot make {}", point.display()))?;
        let mut mount = self.net.command("mount");
        mount.args(["-t", "glusterfs"]);
        for option in options {
            mount.args(["-o", option]);
        }
        self.run(mount.arg(format!("{ADDRESS}:/{VOLUME}")).arg(point)).map(drop)
    }

    /// A new client at its mount point, with no cache of the last one.
    ///
    /// # Errors
    /// When it cannot be mounted.
    pub fn remount(&self, options: &[&str]) -> Outcome {
        mounts::clear(&self.mount_point());
        self.mount_at(&self.mount_point(), options)
    }

    /// SIGKILL to the process of a brick.
    ///
    /// # Errors
    /// When it does not run.
    pub fn kill_brick(&self, number: usize) -> Outcome {
        let brick = format!("--brick-name\0{}\0", self.brick_dir(number).display());
        let found = pids(&["glusterfsd", &brick]);
        let Some(brick) = found.first() else {
            return fail(format!("brick {number} does not run"));
        };
        kill_process(*brick, Signal::KILL).doing(|| "cannot kill a brick")
    }

    /// SIGKILL to the client at its mount point.
    ///
    /// # Errors
    /// When it does not run.
    pub fn kill_client(&self) -> Outcome {
        let found = self.clients(&self.mount_point());
        let Some(client) = found.first() else { return fail("no client to kill") };
        kill_process(*client, Signal::KILL).doing(|| "cannot kill the client")
    }

    /// Starts bricks that are dead, and waits until all have listened long enough for everybody to
    /// connect.
    ///
    /// # Errors
    /// When one does not come up.
    pub fn revive(&self) -> Outcome {
        self.start_bricks()?;
        self.interrupt.sleep(CONNECTED_AFTER)
    }

    /// Starts bricks that are dead, and waits until all listen.
    ///
    /// # Errors
    /// When one does not come up.
    pub fn start_bricks(&self) -> Outcome {
        let end = Instant::now() + ONLINE_MAX;
        loop {
            self.gluster(&["volume", "start", VOLUME, "force"])?;
            match self.wait_online(BRICKS, START_AGAIN_AFTER) {
                Err(Error::Failed(_)) if Instant::now() < end => {}
                online => return online,
            }
        }
    }

    fn wait_bricks(&self, wanted: usize) -> Outcome {
        self.wait_online(wanted, ONLINE_MAX)?;
        self.interrupt.sleep(CONNECTED_AFTER)
    }

    fn wait_online(&self, wanted: usize, deadline: Duration) -> Outcome {
        let end = Instant::now() + deadline;
        loop {
            let status = self.gluster(&["volume", "status", VOLUME, "--xml"])?.stdout;
            let bricks = status.split("<node>").filter(|node| node.contains("<path>/"));
            let online = bricks.filter(|node| node.contains("<status>1</status>")).count();
            if online >= wanted {
                return Ok(());
            }
            ensure!(Instant::now() < end, "only {online} of {wanted} bricks are online");
            self.interrupt.sleep(Duration::from_millis(100))?;
        }
    }

    /// Asks the healer to begin with what is known to need it, or to look at everything if `full`.
    ///
    /// # Errors
    /// When it does not take the request for as long as a command may take.
    pub fn start_heal(&self, full: bool) -> Outcome {
        self.retry(|volume| volume.ask_heal(full))
    }

    /// The same, asked once.
    ///
    /// # Errors
    /// When it does not take the request: it does not while it is busy or a brick is away.
    pub fn ask_heal(&self, full: bool) -> Outcome {
        let mut words = vec!["volume", "heal", VOLUME];
        words.extend(full.then_some("full"));
        self.gluster(&words).map(drop)
    }

    /// Does `gluster volume heal info` count nothing on every brick? It runs this program, which
    /// the command cannot tell of a socket that is not the default one.
    ///
    /// # Errors
    /// When it cannot be asked for as long as a command may take.
    pub fn is_healed(&self) -> Outcome<bool> {
        let program = heal_program()?;
        let ask = |volume: &Volume| {
            let mut command = volume.net.command(&program.display().to_string());
            volume.run(command.args([VOLUME, "info-summary", "glusterd-sock"]).arg(volume.socket()))
        };
        Ok(counts_nothing(&self.retry(ask)?.stdout))
    }

    /// Processes of the client at a mount point.
    pub fn clients(&self, point: &Path) -> Vec<Pid> {
        pids(&["--process-name\0fuse\0", &format!("\0{}\0", point.display())])
    }

    /// Everything of it but clients: glusterd, bricks, healer.
    pub fn daemons(&self) -> Vec<Pid> {
        let all = pids(&[&process::below(&self.dir)]);
        let clients = pids(&["--process-name\0fuse\0"]);
        all.into_iter().filter(|pid| !clients.contains(pid)).collect()
    }

    fn gluster_command(&self, words: &[&str]) -> Command {
        let mut command = self.net.command("gluster");
        command
            .arg("--mode=script")
            .arg(format!("--glusterd-sock={}", self.socket().display()))
            .args(words);
        command
    }

    fn gluster(&self, words: &[&str]) -> Outcome<exec::Run> {
        self.run(&mut self.gluster_command(words))
    }

    fn run(&self, command: &mut Command) -> Outcome<exec::Run> {
        exec::run_ok(command, COMMAND_MAX, &self.interrupt)
    }

    /// Until it succeeds, for as long as a command may take.
    fn retry<T>(&self, attempt: impl Fn(&Volume) -> Outcome<T>) -> Outcome<T> {
        let end = Instant::now() + COMMAND_MAX;
        loop {
            match attempt(self) {
                Err(error) if Instant::now() > end => return Err(error),
                Err(_) => self.interrupt.sleep(Duration::from_millis(500))?,
                done => return done,
            }
        }
    }

    fn brick_dir(&self, number: usize) -> PathBuf {
        self.dir.join(format!("b{number}"))
    }

    fn socket(&self) -> PathBuf {
        Path::new(SOCKETS).join(format!("{}.socket", self.net.name()))
    }
}

/// A configuration of glusterd with these options in place of its own.
fn with_options(original: &str, options: &[(&str, PathBuf)]) -> String {
    let is_ours = |line: &&str| {
        options.iter().any(|(key, _)| line.trim().starts_with(&format!("option {key} ")))
    };
    let mut text = String::new();
    for line in original.lines().filter(|line| !is_ours(line)) {
        if line.trim() == "end-volume" {
            for (key, value) in options {
                text.push_str(&format!("    option {key} {}\n", value.display()));
            }
        }
        text.push_str(line);
        text.push('\n');
    }
    text
}

/// Does the summary name every brick as connected, with nothing to heal?
fn counts_nothing(summary: &str) -> bool {
    let count = |wanted: &str| summary.lines().filter(|line| line.trim() == wanted).count();
    count("Status: Connected") == BRICKS && count("Total Number of entries: 0") == BRICKS
}

fn heal_program() -> Outcome<PathBuf> {
    let multiarch =
        std::fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    let places =
        multiarch.map(|lib| lib.join("glusterfs")).chain(["/usr/libexec/glusterfs".into()]);
    let found = places.map(|place| place.join("glfsheal")).find(|program| program.exists());
    found.map_or_else(
        || fail("no glfsheal below /usr/lib or /usr/libexec: install the package glusterfs-server"),
        Ok,
    )
}

/// Processes of GlusterFS whose command line has all of these.
fn pids(marks: &[&str]) -> Vec<Pid> {
    process::find(PROGRAMS, marks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_stand_once_and_inside_the_volume() {
        let original = "volume management\n    option working-directory /var\n    option max-port 60999\nend-volume\n";
        let text = with_options(
            original,
            &[("working-directory", "/a".into()), ("run-directory", "/b".into())],
        );
        let expected = "volume management\n    option max-port 60999\n    option working-directory /a\n    option \
            run-directory /b\nend-volume\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn healed_means_every_brick_connected_and_counted() {
        let brick = |state: &str, count: &str| {
            format!("Brick x\nStatus: {state}\nTotal Number of entries: {count}\n")
        };
        let healed = brick("Connected", "0").repeat(3);
        assert!(counts_nothing(&healed));
        assert!(!counts_nothing(&brick("Connected", "0").repeat(2)));
        let away =
            brick("Connected", "0").repeat(2) + &brick("Transport endpoint is not connected", "-");
        assert!(!counts_nothing(&away));
        assert!(!counts_nothing(&(brick("Connected", "0").repeat(2) + &brick("Connected", "10"))));
    }
}
