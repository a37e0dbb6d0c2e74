//! One more mount of a cluster, by a client of its own, as another host has it.

use super::{Cluster, READY_MAX, STOP_MAX};
use crate::error::{Context, Outcome, ensure};
use crate::exec::{self, Interrupt};
use crate::mounts;
use crate::process::Daemon;
use std::path::{Path, PathBuf};

/// The mount; it is taken away when this is dropped.
#[derive(Debug)]
pub struct Guest {
    daemon: Daemon,
    point: PathBuf,
}

impl Drop for Guest {
    fn drop(&mut self) {
        if self.daemon.pid().is_some() {
            let _ = self.daemon.kill();
        }
        mounts::clear(&self.point);
        let _ = std::fs::remove_dir(&self.point);
    }
}

impl Guest {
    /// Its client.
    pub fn daemon(&self) -> &Daemon {
        &self.daemon
    }

    /// Where it is mounted.
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// Unmounts and waits for the client's end.
    ///
    /// # Errors
    /// When it is busy or the client does not end.
    pub fn unmount(self, cluster: &Cluster, interrupt: &Interrupt) -> Outcome {
        exec::run_ok(
            cluster.command("fuse-client").arg("umount").arg(&self.point),
            STOP_MAX,
            interrupt,
        )?;
        ensure!(
            self.daemon.wait_gone(STOP_MAX),
            "the client of {} still runs after umount",
            self.point.display()
        );
        Ok(())
    }
}

impl Cluster {
    /// Mounts it at one more place, with the options of the first. The client's log and pid stand
    /// with the cluster's under this name.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn mount_also(&self, name: &str, point: &Path, interrupt: &Interrupt) -> Outcome<Guest> {
        std::fs::create_dir_all(point).doing(|| format!("cannot make {}", point.display()))?;
        let daemon = Daemon {
            name: name.to_owned(),
            pid_file: self.dir.join("pid").join(name),
            log: self.dir.join("log").join(format!("{name}.log")),
            mark: point.display().to_string(),
        };
        let guest = Guest { daemon, point: point.to_path_buf() };
        let mut command = self.command("fuse-client");
        self.mount_command(&mut command, point);
        let begin = guest.daemon.spawn(&mut command)?;
        guest
            .daemon
            .wait_ready(begin, READY_MAX, interrupt, |output| output.contains("is mounted on"))?;
        Ok(guest)
    }
}
