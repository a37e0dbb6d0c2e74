//! Settings that change while storage daemons and mounts serve: `trefoil config set`.

use super::profile::{everybody, mount_name};
use super::{Bench, Rig, trefoil};
use crate::error::Outcome;

/// Parameters of table 5.2 of "Impact of Single Parameter Changes on Ceph Cloud Storage
/// Performance", at their tightest, under writers.
pub fn live(bench: &Bench, rig: &Rig) -> Outcome {
    let (client, area) =
        (mount_name(rig, &everybody(bench, rig)?)?, rig.area(bench, "live-settings")?);
    let lines = format!(
        "file='{area}/file'; all() {{ for osd in 0 1 2; do trefoil config set osd.$osd $1 $2; done; }}\n\
         head -c 20000000 /dev/urandom > random; cp random \"$file\"; sync \"$file\"\n\
         all filestore_queue_max_bytes 1048576; all filestore_queue_committing_max_bytes 1048576\n\
         all filestore_wbthrottle_xfs_bytes_start_flusher 4194304; all osd_disk_threads 8\n\
         all filestore_wbthrottle_xfs_ios_start_flusher 50; all filestore_op_threads 1\n\
         all filestore_wbthrottle_xfs_inodes_start_flusher 50\n\
         trefoil config set {client} objecter_inflight_ops 1\n\
         test $(trefoil config get {client} objecter_inflight_ops) = 1\n\
         dd if=random of=\"$file\" bs=3000 conv=notrunc; cmp \"$file\" random\n\
         trefoil config set {client} objecter_inflight_op_bytes 10485760; all filestore_op_threads 16\n\
         dd if=random of=\"$file\" bs=1M conv=notrunc,fsync; cmp \"$file\" random\n\
         ! trefoil config set {client} objecter_inflight_ops 0 2> said; grep -q 'from 1 to 1000000' said\n\
         ! trefoil config set {client} read_policy hash 2> said; grep -q 'mount options' said\n\
         ! trefoil config set osd.0 osd_op_threads 4 2> said; grep -q 'needs a restart' said\n\
         trefoil config set {client} objecter_inflight_ops 1024; trefoil config show {client} | grep -q op_bytes",
        area = area.display()
    );
    trefoil(bench, rig, &lines, 300).map(drop)
}
