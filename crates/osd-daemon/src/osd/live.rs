//! What of a running OSD can change.

use super::shared::Shared;
use super::side::Side;
use crate::admin::LiveRole;
use crate::config::Config;
use std::time::Duration;

impl LiveRole for Shared {
    const LIVE_KEYS: &'static [&'static str] =
        &["ms_mapping", "ms_placement_interval_ms", "ms_lock_threshold", "ms_lcam_rule", "journal_sync_interval_ms"];

    fn apply(&self, key: &str, config: &Config) -> Result<(), String> {
        if key.starts_with("ms_") {
            let listener = self.listener().ok_or("it does not listen")?;
            return listener.set_placement(config.ms_placement).map_err(|error| error.to_string());
        }
        let interval = Duration::from_millis(config.journal_sync_interval_ms);
        for core in 0..usize::from(self.config.osd_op_threads) {
            self.handle.spawn_on(core, move |worker| {
                if let Some(side) = worker.local::<Side>() {
                    side.core.set_journal_sync_interval(interval);
                }
                std::future::ready(())
            });
        }
        Ok(())
    }
}
