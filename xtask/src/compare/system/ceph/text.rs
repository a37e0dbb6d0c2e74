//! What Ceph reads and what it says: its configuration, and its status. Nothing is run or written
//! here.

use crate::error::{Context, Outcome};
use serde::Deserialize;
use std::path::Path;

/// OSDs of the cluster.
pub const OSDS: usize = 3;
/// Address of everything in its namespace.
pub const ADDRESS: &str = "10.99.0.1";
/// Size of the sparse file that an OSD keeps everything in: a full matrix fills a quarter of it.
pub const OSD_BYTES_MAX: u64 = 10 << 30;
/// What an OSD may use of memory: the least that Ceph's documentation recommends. Its default of 4
/// GiB for each of three is more than many machines have.
pub const OSD_MEMORY_TARGET: u64 = 2 << 30;
/// How a placement group is in which nothing is missing; `active+clean+scrubbing+deep` is no worse.
const WHOLE: [&str; 2] = ["active+clean", "active+clean+scrubbing"];

/// `ceph.conf` of a cluster in a directory.
pub fn configuration(dir: &Path, fsid: &str) -> String {
    let dir = dir.display();
    let settings = [
        ("fsid", fsid.to_owned()),
        ("mon_host", ADDRESS.to_owned()),
        ("public_addr", ADDRESS.to_owned()),
        ("cluster_addr", ADDRESS.to_owned()),
        ("auth_cluster_required", "none".to_owned()),
        ("auth_service_required", "none".to_owned()),
        ("auth_client_required", "none".to_owned()),
        // Names of sockets have at most 107 bytes, and nobody asks here.
        ("admin_socket", String::new()),
        ("run_dir", format!("{dir}/run")),
        ("keyring", format!("{dir}/keyring")),
        ("crash_dir", format!("{dir}/crash")),
        ("log_file", format!("{dir}/log/$name.log")),
        ("mon_cluster_log_file", format!("{dir}/log/cluster.log")),
        ("mon_data", format!("{dir}/mon.a")),
        ("mgr_data", format!("{dir}/mgr.a")),
        ("mds_data", format!("{dir}/mds.a")),
        ("osd_data", format!("{dir}/osd.$id")),
        ("osd_objectstore", "bluestore".to_owned()),
        ("bluestore_block_size", OSD_BYTES_MAX.to_string()),
        ("osd_memory_target", OSD_MEMORY_TARGET.to_string()),
        // All OSDs are on one host: each is a place of its own, and two of them may report the
        // third.
        ("osd_crush_chooseleaf_type", "0".to_owned()),
        ("mon_osd_reporter_subtree_level", "osd".to_owned()),
        // It would move data while cells are measured.
        ("osd_pool_default_pg_autoscale_mode", "off".to_owned()),
        // By default recovery sleeps 0.1 s for each object where the kernel calls a disk
        // rotational, as it does most virtual ones.
        ("osd_recovery_sleep", "0".to_owned()),
        // So that `ceph status` is not older than a second or two: by default it is 5 s behind.
        ("mgr_stats_period", "1".to_owned()),
        ("mgr_tick_period", "1".to_owned()),
        // By default monitors stop on a disk that is filled to 95%, whatever is left of it.
        ("mon_data_avail_crit", "1".to_owned()),
    ];
    let lines: String = settings.iter().map(|(key, value)| format!("{key} = {value}\n")).collect();
    format!("[global]\n{lines}")
}

/// What `ceph status --format json` says, as far as it matters here.
#[derive(Deserialize, Debug)]
pub struct Status {
    osdmap: OsdMap,
    pgmap: PgMap,
    fsmap: FsMap,
}

#[derive(Deserialize, Debug)]
struct OsdMap {
    epoch: u64,
    num_up_osds: usize,
}

#[derive(Deserialize, Debug)]
struct PgMap {
    #[serde(default)]
    pgs_by_state: Vec<Pgs>,
    num_pgs: u64,
}

#[derive(Deserialize, Debug)]
struct Pgs {
    state_name: String,
    count: u64,
}

#[derive(Deserialize, Debug)]
struct FsMap {
    #[serde(default)]
    by_rank: Vec<Rank>,
}

#[derive(Deserialize, Debug)]
struct Rank {
    status: String,
}

impl Status {
    /// Reads it.
    ///
    /// # Errors
    /// When it is not what Ceph 16 says.
    pub fn parse(text: &str) -> Outcome<Status> {
        serde_json::from_str(text).doing(|| "what `ceph status` says is not understood")
    }

    /// The number of the map of OSDs: it grows when one is found dead, and when one comes back.
    pub fn epoch(&self) -> u64 {
        self.osdmap.epoch
    }

    /// Are all OSDs up, and is nothing missing in any placement group?
    pub fn is_whole(&self) -> bool {
        let is_clean =
            |pgs: &&Pgs| pgs.state_name == WHOLE[0] || pgs.state_name.starts_with(WHOLE[1]);
        let clean = self.pgmap.pgs_by_state.iter().filter(is_clean).map(|pgs| pgs.count);
        self.osdmap.num_up_osds == OSDS
            && self.pgmap.num_pgs > 0
            && clean.sum::<u64>() == self.pgmap.num_pgs
    }

    /// Does a metadata service serve?
    pub fn has_metadata(&self) -> bool {
        self.fsmap.by_rank.iter().any(|rank| rank.status == "up:active")
    }

    /// In words, for errors.
    pub fn words(&self) -> String {
        let states: Vec<String> = self
            .pgmap
            .pgs_by_state
            .iter()
            .map(|pgs| format!("{} {}", pgs.count, pgs.state_name))
            .collect();
        let ranks: Vec<&str> = self.fsmap.by_rank.iter().map(|rank| rank.status.as_str()).collect();
        format!(
            "{} of {OSDS} OSDs up; of {} placement groups: {}; metadata services: {}",
            self.osdmap.num_up_osds,
            self.pgmap.num_pgs,
            states.join(", "),
            ranks.join(", ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Ceph 16.2.15 says it, without what is not read.
    fn status(up: usize, states: &[(&str, u64)], pgs: u64, metadata: &str) -> Status {
        let state =
            |(name, count): &(&str, u64)| format!(r#"{{"state_name":"{name}","count":{count}}}"#);
        let states = states.iter().map(state).collect::<Vec<_>>().join(",");
        let text = format!(
            r#"{{"fsid":"f","health":{{"status":"HEALTH_WARN"}},"osdmap":{{"epoch":21,"num_osds":3,"num_up_osds":{up},"num_in_osds":3}},
            "pgmap":{{"pgs_by_state":[{states}],"num_pgs":{pgs},"num_pools":4}},"fsmap":{{"epoch":4,"by_rank":[{metadata}],"up:standby":0}}}}"#
        );
        Status::parse(&text).unwrap()
    }

    #[test]
    fn whole_means_all_osds_and_all_groups() {
        assert!(status(3, &[("active+clean", 65)], 65, "").is_whole());
        assert!(!status(2, &[("active+clean", 65)], 65, "").is_whole());
        let recovering = [
            ("active+clean", 57),
            ("active+recovery_wait+degraded", 7),
            ("active+recovering+degraded", 1),
        ];
        assert!(!status(3, &recovering, 65, "").is_whole());
        // Groups of a pool that was just made have no state yet.
        assert!(!status(3, &[("active+clean", 33)], 65, "").is_whole());
        assert!(!status(3, &[], 0, "").is_whole());
        // They are looked through by themselves at times; nothing is missing then.
        assert!(
            status(3, &[("active+clean", 64), ("active+clean+scrubbing", 1)], 65, "").is_whole()
        );
    }

    #[test]
    fn a_metadata_service_serves_once_it_is_active() {
        let rank = |status: &str| {
            format!(r#"{{"filesystem_id":1,"rank":0,"name":"a","status":"{status}","gid":4127}}"#)
        };
        assert!(status(3, &[], 0, &rank("up:active")).has_metadata());
        assert!(!status(3, &[], 0, &rank("up:creating")).has_metadata());
        assert!(!status(3, &[], 0, "").has_metadata());
    }

    #[test]
    fn status_before_any_manager_is_read() {
        let text = r#"{"osdmap":{"epoch":1,"num_osds":0,"num_up_osds":0},"pgmap":{"pgs_by_state":[],"num_pgs":0},"fsmap":{"by_rank":[]}}"#;
        let status = Status::parse(text).unwrap();
        assert_eq!(status.epoch(), 1);
        assert!(status.words().starts_with("0 of 3 OSDs up"));
        assert!(Status::parse("Error connecting to cluster").is_err());
    }

    #[test]
    fn everything_stands_below_the_directory() {
        let text = configuration(Path::new("/a b/ceph"), "5d0ba1c3-86a3-4aa1-9b9e-9f1f0d2c1a77");
        assert!(text.starts_with("[global]\nfsid = 5d0ba1c3-86a3-4aa1-9b9e-9f1f0d2c1a77\n"));
        let value = |key: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(&format!("{key} = ")))
                .unwrap_or_else(|| panic!("no {key}"))
        };
        let places = [
            "run_dir",
            "keyring",
            "crash_dir",
            "log_file",
            "mon_cluster_log_file",
            "mon_data",
            "mgr_data",
            "mds_data",
            "osd_data",
        ];
        for key in places {
            assert!(value(key).starts_with("/a b/ceph/"), "{key} = {}", value(key));
        }
        assert_eq!((value("admin_socket"), value("bluestore_block_size")), ("", "10737418240"));
        let keys: Vec<&str> =
            text.lines().skip(1).map(|line| line.split(" = ").next().unwrap()).collect();
        assert!(keys.iter().all(|key| keys.iter().filter(|other| *other == key).count() == 1));
    }
}
