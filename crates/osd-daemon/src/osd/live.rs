//! What of a running OSD can change.

use super::shared::Shared;
use super::side::{Side, rate_of_core};
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
    "journal_sync_interval_ms",
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
        if key.starts_with("ms_") {
            let listener = self.listener().ok_or("it does not listen")?;
            return listener.set_placement(config.ms_placement).map_err(|error| error.to_string());
        }
        let cores = self.config.osd_op_threads;
        let interval = Duration::from_millis(config.journal_sync_interval_ms);
        let slots = u64::from(config.osd_recovery_max_active / cores);
        let rate = rate_of_core(config.osd_recovery_max_bytes_per_sec, cores);
        let ratios = config.ratios;
        for core in 0..usize::from(cores) {
            let key = key.to_owned();
            self.handle.spawn_on(core, move |worker| {
                if let Some(side) = worker.local::<Side>() {
                    match key.as_str() {
                        "osd_recovery_max_active" => side.slots.set_max(slots),
                        "osd_recovery_max_bytes_per_sec" => side.core.set_recovery_bytes_per_sec(rate),
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
