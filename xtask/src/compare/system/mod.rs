//! The systems under test: each is set up below a directory of its own, and everything of it goes
//! when it is dropped.
//!
//! * [`gluster`]: GlusterFS, as it comes and tuned. * [`ceph`]: CephFS. * [`plain`]: a directory of
//!   the disk.
//! * [`passthrough`]: libfuse's `passthrough_hp` over it. * [`trefoil`]: ours, separate
//!   processes. * [`slow`]: one of them slowed.

mod ceph;
mod gluster;
mod passthrough;
mod plain;
mod slow;
mod trefoil;

pub use slow::{Slow, Slowed};

use super::cpu::Process;
use super::locks::LockUse;
use super::sample::TREFOIL;
use crate::error::{Outcome, fail};
use crate::testrun::Bench;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The part that dies in cells with faults: the second of three.
const VICTIM: usize = 1;

/// Systems to compare with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Peer {
    /// GlusterFS, a dispersed 2+1 volume as it comes
    Glusterfs,
    /// The same with the settings of "GlusterFS in the age of flash"
    GlusterfsTuned,
    /// A directory of the disk: no FUSE, no redundancy
    Ext4,
    /// libfuse's passthrough_hp over a directory of the disk: FUSE and nothing else
    FusePassthrough,
    /// CephFS over an erasure-coded 2+1 pool, mounted with ceph-fuse
    Cephfs,
    /// Trefoil over TCP, as between hosts, instead of Unix sockets
    TrefoilTcp,
}

impl Peer {
    /// Its name in reports and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Peer::Glusterfs => "glusterfs",
            Peer::GlusterfsTuned => "glusterfs-tuned",
            Peer::Ext4 => "ext4",
            Peer::FusePassthrough => "fuse-passthrough",
            Peer::Cephfs => "cephfs",
            Peer::TrefoilTcp => "trefoil-tcp",
        }
    }

    /// Installs what it needs, and starts it below a directory; with these settings if it is a
    /// Trefoil.
    ///
    /// # Errors
    /// When it cannot be set up; nothing of it is left running then.
    pub fn set_up(self, dir: &Path, with: &[Setting], bench: &Bench) -> Outcome<Box<dyn System>> {
        Ok(match self {
            Peer::Glusterfs => Box::new(gluster::Gluster::up(dir, false, bench)?),
            Peer::GlusterfsTuned => Box::new(gluster::Gluster::up(dir, true, bench)?),
            Peer::Ext4 => Box::new(plain::Plain::up(dir)?),
            Peer::FusePassthrough => Box::new(passthrough::Passthrough::up(dir, bench)?),
            Peer::Cephfs => Box::new(ceph::Ceph::up(dir, bench)?),
            Peer::TrefoilTcp => {
                let tcp = Setting { key: "ms_local_sockets".to_owned(), value: false.to_string() };
                let with = with.iter().cloned().chain([tcp]).collect();
                let variant = Variant { with, ..Variant::default() };
                Box::new(trefoil::Trefoil::up(dir, &variant, bench)?.named(self.name()))
            }
        })
    }
}

/// A key of `osd-daemon`, or `mount.` and an option of the mount, and its value as on a command
/// line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setting {
    /// The key.
    pub key: String,
    /// The value.
    pub value: String,
}

impl Setting {
    /// Key and values of a text, if it has both.
    pub fn split(text: &str) -> Option<(&str, &str)> {
        text.split_once('=').filter(|(key, value)| !key.is_empty() && !value.is_empty())
    }

    /// Those that `--with` names.
    ///
    /// # Errors
    /// When one is not KEY=VALUE. Whether there is such a key, and may be so, is found out when
    /// something is started with it.
    pub fn parse_all(texts: &[String]) -> Outcome<Vec<Setting>> {
        let parse = |text: &String| match Setting::split(text) {
            Some((key, value)) => Ok(Setting { key: key.to_owned(), value: value.to_owned() }),
            None => fail(format!("--with {text}: not KEY=VALUE, such as mount.hedge_delay=0.01")),
        };
        texts.iter().map(parse).collect()
    }

    /// Both, as on a command line.
    pub fn text(&self) -> String {
        format!("{}={}", self.key, self.value)
    }

    /// The option of the mount that it sets.
    fn mount_option(&self) -> Option<String> {
        self.key.strip_prefix("mount.").map(|option| format!("{option}={}", self.value))
    }

    /// The line of configuration of the daemons that it sets. What TOML would not read as it stands
    /// is text.
    fn line(&self) -> Option<String> {
        let is_plain = self.value.parse::<f64>().is_ok() || self.value.parse::<bool>().is_ok();
        let value = if is_plain { self.value.clone() } else { format!("{:?}", self.value) };
        self.mount_option().is_none().then(|| format!("{} = {value}", self.key))
    }
}

/// Trefoil with a setting that is not the default.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Variant {
    /// What makes it differ from the others; `None`: nothing.
    pub changed: Option<Setting>,
    /// What differs from the defaults in all of them.
    pub with: Vec<Setting>,
    /// How one of its OSDs is slowed.
    pub slow: Option<Slow>,
}

impl Variant {
    /// Its name in reports.
    pub fn name(&self) -> String {
        self.changed.as_ref().map_or_else(|| TREFOIL.to_owned(), Setting::text)
    }

    /// Starts it below a directory.
    ///
    /// # Errors
    /// When it does not come up: also of a setting that there is not, or that cannot be so.
    pub fn set_up(&self, dir: &Path, bench: &Bench) -> Outcome<Box<dyn System>> {
        Ok(Box::new(trefoil::Trefoil::up(dir, self, bench)?))
    }

    fn settings(&self) -> impl Iterator<Item = &Setting> {
        self.with.iter().chain(&self.changed)
    }

    /// Options of the mount, as of `mount -o`.
    fn mount_options(&self) -> String {
        self.settings().filter_map(Setting::mount_option).collect::<Vec<_>>().join(",")
    }

    /// Lines of configuration of the daemons.
    fn lines(&self) -> Vec<String> {
        self.settings().filter_map(Setting::line).collect()
    }
}

/// Takes away what a run that was killed has left below a directory of systems.
pub fn sweep(run: &Path) {
    for entry in std::fs::read_dir(run).into_iter().flatten().flatten() {
        let dir = entry.path();
        trefoil::sweep(&dir);
        crate::gluster::sweep(&dir);
        ceph::sweep(&dir);
    }
}

/// A system that runs.
pub trait System {
    /// Its column in the report.
    fn name(&self) -> &str;

    /// The directory that is measured in.
    fn area(&self) -> &Path;

    /// Version, and how it was set up, for the report.
    fn describe(&self) -> Vec<String>;

    /// Its processes now.
    fn processes(&self) -> Vec<Process>;

    /// How its locks were used since it started; `None` where it does not tell.
    ///
    /// # Errors
    /// When it should tell and does not.
    fn locks(&self) -> Outcome<Option<Vec<LockUse>>> {
        Ok(None)
    }

    /// What makes its life harder while it is measured, until that is dropped; `None`: nothing.
    fn disturb(&self) -> Option<Slowed> {
        None
    }

    /// What only a system of several parts can do; `None` for one of a single part.
    fn parts(&mut self) -> Option<&mut dyn Parts>;
}

/// What only a system of several parts can do.
pub trait Parts {
    /// Mounts it so often in all, and says where.
    ///
    /// # Errors
    /// When one cannot be mounted.
    fn mount_all(&mut self, count: u32) -> Outcome<Vec<PathBuf>>;

    /// Takes all mounts away but the first.
    ///
    /// # Errors
    /// When one does not go.
    fn unmount_others(&mut self) -> Outcome;

    /// SIGKILL to one brick or OSD.
    ///
    /// # Errors
    /// When it does not run.
    fn kill_one(&mut self) -> Outcome;

    /// Starts it again, so that it begins to heal.
    ///
    /// # Errors
    /// When it cannot be started.
    fn return_one(&mut self) -> Outcome;

    /// Waits until the system says that it is whole; `None` if it was not in time, otherwise how
    /// long that took.
    ///
    /// # Errors
    /// When the system does not tell.
    fn wait_whole(&mut self, deadline: Duration) -> Outcome<Option<Duration>>;

    /// Both; how long they took.
    ///
    /// # Errors
    /// Theirs.
    fn heal(&mut self, deadline: Duration) -> Outcome<Option<Duration>> {
        let begin = Instant::now();
        self.return_one()?;
        let returned = begin.elapsed();
        Ok(self.wait_whole(deadline.saturating_sub(returned))?.map(|took| returned + took))
    }
}
