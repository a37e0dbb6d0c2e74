//! What of a running OSD can change.

use super::shared::Shared;
use super::side::{Side, disk_threads_of_core, rate_of_core, sync_lanes};
use crate::admin::LiveRole;
use crate::config::Config;
use std::time::Duration;

/// The keys that a running OSD can change; the documents mark them, too.
pub(crate) const LIVE_KEYS: &[&str] = &[
    "ms_mapping",
    "ms_placement_interval_ms",
    "ms_lock_threshold",
    "ms_lcam_rule",
    "ms_max_events",
    "ms_class_weights",
    "filestore_op_threads",
    "osd_disk_threads",
    "journal_sync_interval_ms",
    "filestore_queue_max_bytes",
    "filestore_queue_committing_max_bytes",
    "filestore_wbthrottle_bytes_start_flusher",
    "filestore_wbthrottle_ios_start_flusher",
    "filestore_wbthrottle_inodes_start_flusher",
    "osd_recovery_max_active",
    "osd_recovery_max_bytes_per_sec",
    "mon_osd_nearfull_ratio",
    "mon_osd_backfillfull_ratio",
    "mon_osd_full_ratio",
];

impl LiveRole for Shared {
    const LIVE_KEYS: &'static [&'static str] = LIVE_KEYS;

    fn apply(&self, key: &str, config: &Config) -> Result<(), String> {
        if key == "ms_max_events" {
            self.handle.set_max_events(config.ms_max_events);
            return Ok(());
        }
        if key == "ms_class_weights" {
            self.handle.set_class_order(config.ms_class_order);
        } else if key.starts_with("ms_") {
            let listener = self.listener().ok_or("it does not listen")?;
            return listener.set_placement(config.ms_placement).map_err(|error| error.to_string());
        }
        if key == "filestore_op_threads" {
            self.handle.set_blocking_threads_max(usize::from(config.filestore_op_threads));
        }
        let cores = self.config.osd_op_threads;
        let lanes = sync_lanes(config.filestore_op_threads, cores);
        let disk_threads = disk_threads_of_core(config.osd_disk_threads, cores);
        let throttles = config.throttles.of_core(cores);
        let interval = Duration::from_millis(config.journal_sync_interval_ms);
        let slots = u64::from(config.osd_recovery_max_active / cores);
        let rate = rate_of_core(config.osd_recovery_max_bytes_per_sec, cores);
        let (ratios, class_order) = (config.ratios, config.ms_class_order);
        for core in 0..usize::from(cores) {
            let key = key.to_owned();
            self.handle.spawn_on(core, move |worker| {
                if let Some(side) = worker.local::<Side>() {
                    match key.as_str() {
                        "osd_recovery_max_active" => side.slots.set_max(slots),
                        "osd_recovery_max_bytes_per_sec" => {
                            side.core.set_recovery_bytes_per_sec(rate)
                        }
                        "ms_class_weights" => side.core.set_class_order(class_order),
                        "filestore_op_threads" => side.core.set_sync_lanes(lanes),
                        "osd_disk_threads" => side.core.set_disk_threads(disk_threads),
                        key if key.starts_with("filestore_") => side.core.set_throttles(throttles),
                        key if key.starts_with("mon_osd_") => side.core.set_ratios(ratios),
                        _ => side.core.set_journal_sync_interval(interval),
                    }
                }
                std::future::ready(())
            });
        }
        Ok(())
    }
}
