//! A mount in a test of one's own program: a cluster and a mount as processes, in a temporary
//! directory, and gone at the end whatever happens.
//!
//! As root: `cargo build && cargo run -p fuse-client --example mount_in_a_test` (a FUSE mount needs
//! /dev/fuse).

use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A cluster of three OSDs in one process, and a mount of it. Dropping it takes both away.
struct Mounted {
    daemon: Child,
    dir: PathBuf,
    fuse_client: PathBuf,
}

impl Mounted {
    /// Starts both in an empty directory; returns when the mount can be used.
    fn start(programs: &Path, dir: &Path) -> Result<Self, Box<dyn Error>> {
        let (osd_daemon, fuse_client) = (programs.join("osd-daemon"), programs.join("fuse-client"));
        for program in [&osd_daemon, &fuse_client] {
            if !program.exists() {
                return Err(format!(
                    "{} is not built: cargo build -p osd-daemon -p fuse-client",
                    program.display()
                )
                .into());
            }
        }
        fs::create_dir_all(dir.join("mnt"))?;
        let any = "127.0.0.1:0";
        let mut command = Command::new(osd_daemon);
        command.arg("--data-dir").arg(dir.join("data")).args(["--log", "warn"]);
        command.args(["--monitor-addr", any, "--mds-listen", any, "--osd-listen", any]);
        let mut daemon = command.stdout(Stdio::piped()).spawn()?;
        let ready = BufReader::new(daemon.stdout.take().ok_or("its output is piped")?);
        let mut mounted = Self { daemon, dir: dir.to_owned(), fuse_client };
        mounted.mount(ready)?;
        Ok(mounted)
    }

    /// The daemon says "ready: ROLE ADDRESS" for each role, and last "mount it with ...".
    fn mount(&mut self, ready: impl BufRead) -> Result<(), Box<dyn Error>> {
        let mut monitor = None;
        for line in ready.lines() {
            let line = line?;
            match line.strip_prefix("ready: monitor ") {
                Some(address) => monitor = Some(address.to_owned()),
                None if line.starts_with("mount it with") => break,
                None => {}
            }
        }
        let monitor = monitor.ok_or("the daemon ended before its monitor was ready")?;
        // With --daemon it returns when the file system answers, and a process stays in the
        // background.
        let log = self.dir.join("mount.log");
        let mut command = Command::new(&self.fuse_client);
        command.args(["mount", "--daemon", "--log-file"]).arg(log).arg(&monitor).arg(self.path());
        let status = command.status()?;
        if status.success() { Ok(()) } else { Err(format!("mount: {status}").into()) }
    }

    fn path(&self) -> PathBuf {
        self.dir.join("mnt")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Nothing that fails here may hide why the test failed.
        let _ = Command::new(&self.fuse_client).arg("umount").arg(self.path()).status();
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        let _ = fs::remove_dir_all(self.dir.join("data"));
        let _ = fs::remove_file(self.dir.join("mount.log"));
        // Not with all that is in it: if the mount is still there, that would remove its files.
        let _ = fs::remove_dir(self.path());
        let _ = fs::remove_dir(&self.dir);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    // target/debug/examples/mount_in_a_test: the programs lie one directory above.
    let itself = std::env::current_exe()?;
    let programs = itself.ancestors().nth(2).ok_or("an example lies in target/PROFILE/examples")?;
    let dir = std::env::temp_dir().join(format!("trefoil-example-{}", std::process::id()));
    let mounted = Mounted::start(programs, &dir)?;

    // What the test is about.
    let file = mounted.path().join("hello");
    fs::write(&file, "written through the kernel, coded, and on three disks\n")?;
    fs::rename(&file, mounted.path().join("renamed"))?;
    print!("{}", fs::read_to_string(mounted.path().join("renamed"))?);
    Ok(())
}
