//! CephFS from Debian's packages: data in an erasure-coded 2+1 pool, in a network namespace of its
//! own, mounted with ceph-fuse.

mod cluster;
mod text;

pub use cluster::sweep;

use super::{Parts, Peer, System, VICTIM};
use crate::compare::cpu::{Group, Process};
use crate::error::Outcome;
use crate::process::Daemon;
use crate::testrun::{Bench, setup};
use cluster::{Cluster, DATA_PGS, osd_name};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use text::{OSD_BYTES_MAX, OSD_MEMORY_TARGET, OSDS};

/// Its programs, and the packages that bring them.
const PROGRAMS: [(&str, &str); 7] = [
    ("ceph-mon", "ceph-mon"),
    ("ceph-mgr", "ceph-mgr"),
    ("ceph-mds", "ceph-mds"),
    ("ceph-osd", "ceph-osd"),
    ("ceph-fuse", "ceph-fuse"),
    ("ceph", "ceph-common"),
    ("setfattr", "attr"),
];

/// A mount, and its client.
struct Mount {
    point: PathBuf,
    client: Daemon,
}

/// A cluster and its mounts.
pub struct Ceph {
    first: Mount,
    others: Vec<Mount>,
    /// What its OSDs take the disk for.
    disk_kind: String,
    /// Epoch of the map before an OSD was started again.
    returned_after: u64,
    cluster: Cluster,
}

impl Ceph {
    /// Starts one.
    ///
    /// # Errors
    /// When it cannot be installed or does not come up.
    pub fn up(dir: &Path, bench: &Bench) -> Outcome<Ceph> {
        setup::install(&PROGRAMS, &bench.interrupt)?;
        let cluster = Cluster::up(dir, &bench.interrupt)?;
        let first = Mount::new(&cluster, cluster.dir().join("mnt"))?;
        cluster.use_data_pool(&first.point)?;
        let disk_kind = cluster.disk_kind()?;
        Ok(Ceph { first, others: Vec::new(), disk_kind, returned_after: 0, cluster })
    }

    fn mounts(&self) -> impl Iterator<Item = &Mount> {
        std::iter::once(&self.first).chain(&self.others)
    }
}

impl Mount {
    fn new(cluster: &Cluster, point: PathBuf) -> Outcome<Mount> {
        let client = cluster.mount_at(&point)?;
        Ok(Mount { point, client })
    }
}

impl System for Ceph {
    fn name(&self) -> &str {
        Peer::Cephfs.name()
    }

    fn area(&self) -> &Path {
        &self.first.point
    }

    fn describe(&self) -> Vec<String> {
        let version = Command::new("ceph").arg("--version").output();
        let version = version
            .map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned())
            .unwrap_or_default();
        let (file, memory, kind) = (OSD_BYTES_MAX >> 30, OSD_MEMORY_TARGET >> 30, &self.disk_kind);
        vec![
            version,
            format!(
                "a monitor, a manager, a metadata service and {OSDS} OSDs (BlueStore, each over a sparse file of {file} GiB on the \
                 disk, which they take for `{kind}`), everything on the loopback of one network namespace, mounted with ceph-fuse"
            ),
            format!(
                "data in an erasure-coded pool with k=2 m=1 and {DATA_PGS} placement groups, `min_size` 2 so that it goes on with an \
                 OSD dead (by default 3); names, and the way back to them, in pools of three copies"
            ),
            format!(
                "no authentication (`none`), `osd_memory_target` {memory} GiB (by default 4), `osd_recovery_sleep` 0 (by default 0.1 \
                 s for `hdd`), `mgr_stats_period` 1 s (by default 5), no autoscaling of pools; all other settings as they come"
            ),
        ]
    }

    fn processes(&self) -> Vec<Process> {
        let clients = self.mounts().map(|mount| (Group::Client, mount.client.clone()));
        let daemons = self.cluster.daemons().into_iter().map(|daemon| (Group::Daemons, daemon));
        let process = |(group, daemon): (Group, Daemon)| {
            Some(Process { pid: daemon.pid()?, group, name: daemon.name })
        };
        clients.chain(daemons).filter_map(process).collect()
    }

    fn parts(&mut self) -> Option<&mut dyn Parts> {
        Some(self)
    }
}

impl Parts for Ceph {
    fn mount_all(&mut self, count: u32) -> Outcome<Vec<PathBuf>> {
        while self.others.len() + 1 < count as usize {
            let point = self.first.point.with_file_name(format!("mnt-{}", self.others.len() + 2));
            self.others.push(Mount::new(&self.cluster, point)?);
        }
        Ok(self.mounts().map(|mount| mount.point.clone()).take(count as usize).collect())
    }

    fn unmount_others(&mut self) -> Outcome {
        self.others
            .drain(..)
            .try_for_each(|mount| self.cluster.unmount(&mount.point, &mount.client))
    }

    fn kill_one(&mut self) -> Outcome {
        self.cluster.daemon(&osd_name(VICTIM)).kill()
    }

    fn return_one(&mut self) -> Outcome {
        self.returned_after = self.cluster.status()?.epoch();
        self.cluster.start(&osd_name(VICTIM))
    }

    fn wait_whole(&mut self, deadline: Duration) -> Outcome<Option<Duration>> {
        let begin = Instant::now();
        let whole_at = self.cluster.wait_whole(self.returned_after, deadline)?;
        Ok(whole_at.map(|whole_at| whole_at - begin))
    }
}
