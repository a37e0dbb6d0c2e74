//! Whether what was written before this start, and not synced, is still there.
//!
//! Contract: the page cache outlives a process but not the machine's power. The file `boot` in the
//! data directory names the kernel's boot during which the daemon last ran; another one now means
//! that unsynced writes may be lost, unless the stop before was clean. What the monitor has to hear
//! is kept in the file until it has heard it, so that a second crash in between does not swallow
//! it. A file that is missing or cannot be read counts as lost.
//!
//! The file is text, `key=value` lines, written atomically: `boot_id`, and 0 or 1 for `clean`,
//! `lost`, `blank`.

use std::io;
use std::path::{Path, PathBuf};

/// The kernel's random id of this boot of the machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// What to tell the monitor at the first boot message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Losses {
    /// Unsynced writes may be lost.
    pub lost: bool,
    /// The disk holds nothing.
    pub blank: bool,
}

/// The file, and what it says.
#[derive(Debug)]
pub(super) struct PowerFile {
    path: PathBuf,
    boot_id: String,
    /// What was written lives as long as the process: every start is one with a blank disk.
    is_volatile: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Flags {
    clean: bool,
    lost: bool,
    blank: bool,
}

impl PowerFile {
    /// Compares the last start with this one and notes this one, durably. `created`: the directory
    /// was made just now; `is_volatile`: its data is in memory.
    ///
    /// # Errors
    /// Those of reading the kernel's boot id and of writing the file.
    pub fn begin(dir: &Path, created: bool, is_volatile: bool) -> io::Result<(PowerFile, Losses)> {
        let boot_id = std::fs::read_to_string(BOOT_ID)?.trim().to_owned();
        Self::begin_as(dir, created, is_volatile, boot_id)
    }

    fn begin_as(
        dir: &Path,
        created: bool,
        is_volatile: bool,
        boot_id: String,
    ) -> io::Result<(PowerFile, Losses)> {
        let path = dir.join("boot");
        let losses = if created || is_volatile {
            Losses { lost: false, blank: true }
        } else {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            losses_since(&text, &boot_id)
        };
        let file = PowerFile { path, boot_id, is_volatile };
        file.write(Flags { clean: false, lost: losses.lost, blank: losses.blank })?;
        Ok((file, losses))
    }

    /// The monitor has heard of the losses.
    ///
    /// # Errors
    /// Those of writing the file.
    pub fn told(&self) -> io::Result<()> {
        self.write(Flags::default())
    }

    /// Everything is synced, and nothing more is written. `told`: the monitor has heard of the
    /// losses.
    ///
    /// # Errors
    /// Those of writing the file.
    pub fn clean_stop(&self, untold: Losses) -> io::Result<()> {
        self.write(Flags { clean: true, lost: untold.lost, blank: untold.blank })
    }

    /// A sync has failed: the kernel may have dropped what it could not write, and would not say so
    /// again. Or the journal names bytes that are not on the disk. This start, until the monitor
    /// has heard of it, or else the next one counts as one after a loss of power.
    ///
    /// # Errors
    /// Those of writing the file.
    pub fn note_lost(&self) -> io::Result<()> {
        self.write(Flags { clean: false, lost: true, blank: false })
    }

    fn write(&self, flags: Flags) -> io::Result<()> {
        let Flags { clean, lost, blank } = flags;
        let bit = u8::from;
        let (clean, lost, blank) = (bit(clean), bit(lost), bit(blank || self.is_volatile));
        let text = format!("boot_id={}\nclean={clean}\nlost={lost}\nblank={blank}\n", self.boot_id);
        ec_store::disk::write_atomically(&self.path, text.as_bytes())
    }
}

fn losses_since(text: &str, boot_id: &str) -> Losses {
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    let flag = |key: &str| value(key) == Some("1");
    let same_boot = value("boot_id") == Some(boot_id);
    // a flag that is not there was cut off: the worse is assumed
    let lost = value("lost") != Some("0") || !(same_boot || flag("clean"));
    Losses { lost, blank: flag("blank") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(dir: &Path, created: bool, boot: &str) -> (PowerFile, Losses) {
        PowerFile::begin_as(dir, created, false, boot.into()).expect("written")
    }

    const NOTHING: Losses = Losses { lost: false, blank: false };
    const LOST: Losses = Losses { lost: true, blank: false };

    #[test]
    fn only_the_loss_of_power_loses_writes() {
        let dir = tempfile::tempdir().expect("a directory");
        let (file, losses) = begin(dir.path(), true, "a");
        assert_eq!(losses, Losses { lost: false, blank: true });
        file.told().expect("written");
        assert_eq!(begin(dir.path(), false, "a").1, NOTHING);
        assert_eq!(begin(dir.path(), false, "b").1, LOST);
    }

    #[test]
    fn what_the_monitor_has_not_heard_is_told_again() {
        let dir = tempfile::tempdir().expect("a directory");
        begin(dir.path(), true, "a");
        assert!(begin(dir.path(), false, "a").1.blank);
        let (file, losses) = begin(dir.path(), false, "b");
        assert_eq!(losses, Losses { lost: true, blank: true });
        assert_eq!(begin(dir.path(), false, "b").1, losses);
        file.told().expect("written");
        assert_eq!(begin(dir.path(), false, "b").1, NOTHING);
    }

    #[test]
    fn a_clean_stop_loses_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let (file, _) = begin(dir.path(), true, "a");
        file.clean_stop(Losses::default()).expect("written");
        assert_eq!(begin(dir.path(), false, "b").1, NOTHING);
        // that start was not clean
        assert_eq!(begin(dir.path(), false, "c").1, LOST);
    }

    #[test]
    fn memory_is_blank_at_every_start_and_to_the_disk_that_follows() {
        let dir = tempfile::tempdir().expect("a directory");
        let blank = Losses { lost: false, blank: true };
        for _ in 0..2 {
            let (file, losses) =
                PowerFile::begin_as(dir.path(), false, true, "a".into()).expect("written");
            assert_eq!(losses, blank);
            file.told().expect("written");
            file.clean_stop(Losses::default()).expect("written");
        }
        assert_eq!(begin(dir.path(), false, "b").1, blank);
    }

    #[test]
    fn a_failed_sync_counts_as_a_loss_until_the_monitor_has_heard() {
        let dir = tempfile::tempdir().expect("a directory");
        let (file, _) = begin(dir.path(), true, "a");
        file.told().expect("written");
        file.note_lost().expect("written");
        assert_eq!(begin(dir.path(), false, "a").1, LOST);
        let (file, losses) = begin(dir.path(), false, "a");
        assert_eq!(losses, LOST, "the monitor has not heard");
        file.told().expect("written");
        assert_eq!(begin(dir.path(), false, "a").1, NOTHING);
    }

    #[test]
    fn a_missing_or_damaged_file_counts_as_lost() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(begin(dir.path(), false, "a").1, LOST);
        for text in ["", "boot_id=a", "boot_id=a\nclean=1\nlost=", "nonsense"] {
            assert!(losses_since(text, "a").lost, "{text:?}");
        }
    }
}
