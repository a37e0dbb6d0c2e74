//! GlusterFS from Debian's packages: a dispersed 2+1 volume in a network namespace of its own.

use super::{Parts, Peer, System, VICTIM};
use crate::compare::cpu::{Group, Process};
use crate::error::{Error, Outcome};
use crate::exec::Interrupt;
use crate::gluster::Volume;
use crate::mounts;
use crate::testrun::{Bench, setup};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// What the talk "GlusterFS in the age of flash" sets for direct and random I/O.
const TUNED: [(&str, &str); 9] = [
    ("performance.strict-o-direct", "on"),
    ("network.remote-dio", "disable"),
    ("performance.client-io-threads", "on"),
    ("performance.read-ahead", "off"),
    ("performance.io-cache", "off"),
    ("performance.write-behind", "off"),
    ("performance.quick-read", "off"),
    ("client.event-threads", "4"),
    ("server.event-threads", "4"),
];
/// And of the mount.
const TUNED_MOUNT: [&str; 1] = ["reader-thread-count=4"];
/// The healer is asked to begin again after this long.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Answers of the healer in a row that count as whole: the first may come before it has begun.
const QUIET: u32 = 2;

/// A volume and its mounts.
pub struct Gluster {
    tuned: bool,
    area: PathBuf,
    others: Vec<PathBuf>,
    volume: Volume,
    interrupt: Interrupt,
}

impl Gluster {
    /// Starts one.
    ///
    /// # Errors
    /// When it cannot be installed or does not come up.
    pub fn up(dir: &Path, tuned: bool, bench: &Bench) -> Outcome<Gluster> {
        setup::install(
            &[("glusterd", "glusterfs-server"), ("mount.glusterfs", "glusterfs-client")],
            &bench.interrupt,
        )?;
        let purpose = if tuned { "compare-tuned" } else { "compare" };
        let volume = Volume::up(dir, purpose, &bench.interrupt)?;
        if tuned {
            volume.set(&TUNED)?;
            volume.remount(&TUNED_MOUNT)?;
        }
        let area = volume.mount_point();
        Ok(Gluster { tuned, area, others: Vec::new(), volume, interrupt: bench.interrupt.clone() })
    }

    fn mount_options(&self) -> &'static [&'static str] {
        if self.tuned { &TUNED_MOUNT } else { &[] }
    }
}

impl System for Gluster {
    fn name(&self) -> &str {
        if self.tuned { Peer::GlusterfsTuned.name() } else { Peer::Glusterfs.name() }
    }

    fn area(&self) -> &Path {
        &self.area
    }

    fn describe(&self) -> Vec<String> {
        let version = Command::new("glusterfs").arg("--version").output();
        let version = version.map(|out| {
            String::from_utf8_lossy(&out.stdout).lines().next().unwrap_or("").to_owned()
        });
        let mut lines = vec![
            version.unwrap_or_default(),
            "`gluster volume create ec disperse 3 redundancy 1`, three bricks on the disk, everything on the loopback of \
             one network namespace, FUSE mount"
                .to_owned(),
        ];
        if self.tuned {
            let options: Vec<String> =
                TUNED.iter().map(|(key, value)| format!("{key}={value}")).collect();
            lines.push(format!(
                "`gluster volume set ec`: {}; mount -o {}",
                options.join(" "),
                TUNED_MOUNT.join(",")
            ));
        }
        lines
    }

    fn processes(&self) -> Vec<Process> {
        let points = std::iter::once(&self.area).chain(&self.others);
        let clients =
            points.flat_map(|point| self.volume.clients(point)).map(|pid| (Group::Client, pid));
        let daemons = self.volume.daemons().into_iter().map(|pid| (Group::Daemons, pid));
        let named = |(group, pid): (Group, rustix::process::Pid)| {
            let raw = pid.as_raw_nonzero();
            let program = std::fs::read_to_string(format!("/proc/{raw}/comm")).unwrap_or_default();
            // The kernel keeps 15 bytes of the name: the healer's is "glusterfs", as the client's.
            let role = if group == Group::Client { " (client)" } else { "" };
            Process { name: format!("{}{role} {raw}", program.trim()), group, pid }
        };
        clients.chain(daemons).map(named).collect()
    }

    fn parts(&mut self) -> Option<&mut dyn Parts> {
        Some(self)
    }
}

impl Parts for Gluster {
    fn mount_all(&mut self, count: u32) -> Outcome<Vec<PathBuf>> {
        while self.others.len() + 1 < count as usize {
            let point = self.area.with_file_name(format!("mnt-{}", self.others.len() + 2));
            self.volume.mount_at(&point, self.mount_options())?;
            self.others.push(point);
        }
        Ok(std::iter::once(&self.area).chain(&self.others).take(count as usize).cloned().collect())
    }

    fn unmount_others(&mut self) -> Outcome {
        self.others.drain(..).for_each(|point| mounts::clear(&point));
        Ok(())
    }

    fn kill_one(&mut self) -> Outcome {
        self.volume.kill_brick(VICTIM)
    }

    fn return_one(&mut self) -> Outcome {
        self.volume.start_bricks()
    }

    fn wait_whole(&mut self, deadline: Duration) -> Outcome<Option<Duration>> {
        let begin = Instant::now();
        let (mut whole_at, mut quiet, mut asked) = (None, 0, None);
        while begin.elapsed() < deadline {
            if self.volume.is_healed()? {
                let whole_at = *whole_at.get_or_insert_with(|| begin.elapsed());
                quiet += 1;
                if quiet == QUIET {
                    return Ok(Some(whole_at));
                }
            } else {
                (whole_at, quiet) = (None, 0);
                // Until it has a connection to the brick it passes by what it finds, and looks
                // again after minutes.
                if asked.is_none_or(|asked: Instant| asked.elapsed() > ASK_AGAIN_AFTER) {
                    match self.volume.ask_heal(false) {
                        Err(Error::Interrupted) => return Err(Error::Interrupted),
                        Ok(()) | Err(Error::Failed(_)) => asked = Some(Instant::now()),
                    }
                }
            }
            self.interrupt.sleep(Duration::from_millis(200))?;
        }
        Ok(None)
    }
}
