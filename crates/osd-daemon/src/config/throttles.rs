//! The throttles of Ceph's FileStore among the settings, and their names.
//!
//! Contract: pure. Ceph has the settings of write-back once for each file system below it,
//! `filestore_wbthrottle_xfs_*` and `filestore_wbthrottle_btrfs_*`; here both are other spellings
//! of `filestore_wbthrottle_*`.

use super::{ConfigError, Settings, in_range};
use ec_store::throttle::{Throttles, WriteBackStart};

/// Least and greatest of the bounds on queues, in bytes: below it every write would wait for the
/// one before.
const QUEUE_BYTES: (u64, u64) = (1 << 20, 1 << 40);
/// Of the bytes at which write-back begins.
const WRITE_BACK_BYTES: (u64, u64) = (64 << 10, 1 << 40);
/// Of changes at which it begins.
const WRITE_BACK_CHANGES: (u64, u64) = (1, 10_000_000);
/// Of files at which it begins: they are remembered one by one.
const WRITE_BACK_FILES: (u64, u64) = (1, 100_000);

/// What was set, or the defaults.
pub(super) fn of(s: &Settings) -> Result<Throttles, ConfigError> {
    let default = Throttles::default();
    let one = |key, set: Option<u64>, default, (min, max)| {
        in_range(key, set.unwrap_or(default), min, max)
    };
    let start = default.write_back;
    let (bytes, ios, inodes) = (
        s.filestore_wbthrottle_bytes_start_flusher,
        s.filestore_wbthrottle_ios_start_flusher,
        s.filestore_wbthrottle_inodes_start_flusher,
    );
    let committing = s.filestore_queue_committing_max_bytes;
    Ok(Throttles {
        queue_bytes_max: one(
            "filestore_queue_max_bytes",
            s.filestore_queue_max_bytes,
            default.queue_bytes_max,
            QUEUE_BYTES,
        )?,
        committing_bytes_max: one(
            "filestore_queue_committing_max_bytes",
            committing,
            default.committing_bytes_max,
            QUEUE_BYTES,
        )?,
        write_back: WriteBackStart {
            bytes: one(
                "filestore_wbthrottle_bytes_start_flusher",
                bytes,
                start.bytes,
                WRITE_BACK_BYTES,
            )?,
            ios: one("filestore_wbthrottle_ios_start_flusher", ios, start.ios, WRITE_BACK_CHANGES)?,
            inodes: one(
                "filestore_wbthrottle_inodes_start_flusher",
                inodes,
                start.inodes,
                WRITE_BACK_FILES,
            )?,
        },
    })
}

/// The key without the name of a file system, if it has one.
pub(super) fn plain_name(key: &str) -> Option<String> {
    let rest = key.strip_prefix("filestore_wbthrottle_")?;
    let name = rest.strip_prefix("xfs_").or_else(|| rest.strip_prefix("btrfs_"))?;
    Some(format!("filestore_wbthrottle_{name}"))
}

/// All keys by their plain names.
pub(super) fn with_plain_names(table: toml::Table) -> Result<toml::Table, String> {
    let mut plain = toml::Table::new();
    for (key, value) in table {
        let name = plain_name(&key).unwrap_or(key);
        if plain.insert(name.clone(), value).is_some() {
            return Err(format!("{name} is set twice, by two of its spellings"));
        }
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    fn config(text: &str) -> Result<Config, String> {
        Config::new(Settings::from_toml(text)?).map_err(|error| error.to_string())
    }

    /// Table 5.2 of "Impact of Single Parameter Changes on Ceph Cloud Storage Performance", B to T;
    /// U to X are of the client.
    #[test]
    fn every_value_of_the_paper_can_be_set() {
        for (key, values) in [
            ("osd_op_threads", &[1, 4, 8][..]),
            ("osd_disk_threads", &[2, 4, 8]),
            ("filestore_op_threads", &[1, 4, 8]),
            ("filestore_wbthrottle_xfs_bytes_start_flusher", &[4_194_304, 419_430_400]),
            ("filestore_wbthrottle_xfs_ios_start_flusher", &[5000, 50]),
            ("filestore_wbthrottle_xfs_inodes_start_flusher", &[5000, 50]),
            ("filestore_queue_max_bytes", &[1_048_576_000, 10_485_760]),
            ("filestore_queue_committing_max_bytes", &[1_048_576_000, 10_485_760]),
        ] {
            for value in values {
                config(&format!("{key} = {value}")).expect("in range");
                let words =
                    Settings::from_words(key, &value.to_string()).expect("in range").words();
                assert_eq!(words, [(plain_name(key).unwrap_or(key.into()), value.to_string())]);
            }
        }
    }

    #[test]
    fn both_spellings_are_one_setting_with_one_value() {
        let set = |text: &str| config(text).map(|config| config.throttles.write_back.ios);
        assert_eq!(set("filestore_wbthrottle_ios_start_flusher = 50"), Ok(50));
        assert_eq!(set("filestore_wbthrottle_xfs_ios_start_flusher = 50"), Ok(50));
        assert_eq!(set("filestore_wbthrottle_btrfs_ios_start_flusher = 50"), Ok(50));
        let twice = "filestore_wbthrottle_ios_start_flusher = 5\nfilestore_wbthrottle_xfs_ios_start_flusher = 6";
        assert!(set(twice).expect_err("which?").contains("set twice"));
        assert!(
            set("filestore_wbthrottle_zfs_ios_start_flusher = 5")
                .expect_err("unknown")
                .contains("did you mean")
        );
    }

    #[test]
    fn bounds_out_of_range_say_what_is_allowed() {
        for (text, part) in [
            ("filestore_queue_max_bytes = 1000", "from 1048576"),
            ("filestore_queue_committing_max_bytes = 0", "from 1048576"),
            ("filestore_wbthrottle_ios_start_flusher = 0", "from 1 to 10000000"),
            ("filestore_wbthrottle_bytes_start_flusher = 1", "from 65536"),
            ("filestore_queue_max_bytes = \"100M\"", "expected u64"),
            ("osd_disk_threads = 0", "from 1 to 64"),
            ("filestore_op_threads = 65", "from 1 to 64"),
        ] {
            let error = config(text).map(drop).expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn a_file_that_set_the_io_threads_by_their_old_name_is_told() {
        let warnings = |text: &str| config(text).expect("good").warnings();
        assert!(warnings("osd_disk_threads = 32")[0].contains("filestore_op_threads"));
        assert!(warnings("osd_disk_threads = 2\nfilestore_op_threads = 32").is_empty());
        assert!(warnings("osd_disk_threads = 2\nroles = [\"mds\"]").is_empty());
        assert!(warnings("").is_empty());
    }
}
