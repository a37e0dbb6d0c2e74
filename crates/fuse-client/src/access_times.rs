//! Which reads move access times: the mount options that the kernel shows, since it passes none of
//! them on and leaves access times to the file system.
//!
//! Contract: what counts first is what the mount was asked for; once somebody mounts it anew with
//! other options (`mount -o remount`), those that /proc/self/mountinfo tells, from within moments.
//! Of bind mounts the kernel does not tell which one a read came by: the options of the mount point
//! itself count for all.

use crate::mountpoint::{self, Mounted};
use crate::options::{AtimeMode, KernelOptions};
use client::fs::{AtimeRule, AtimeRules};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::path::Path;
use std::thread;

/// By the options of a mount command.
pub fn rules_of(kernel: KernelOptions) -> AtimeRules {
    let files = match kernel.atime {
        _ if kernel.read_only => AtimeRule::Never,
        AtimeMode::Never => AtimeRule::Never,
        AtimeMode::Unsaid | AtimeMode::Relative => AtimeRule::Relative,
        AtimeMode::Strict => AtimeRule::Strict,
    };
    with_directories(files, kernel.nodiratime)
}

/// By the options in mountinfo, where `strictatime` is the absence of the others.
fn rules_shown(options: &str) -> AtimeRules {
    let has = |name: &str| options.split(',').any(|option| option == name);
    let files = match () {
        () if has("ro") || has("noatime") => AtimeRule::Never,
        () if has("relatime") => AtimeRule::Relative,
        () => AtimeRule::Strict,
    };
    with_directories(files, has("nodiratime"))
}

fn with_directories(files: AtimeRule, nodiratime: bool) -> AtimeRules {
    let directories = if nodiratime { AtimeRule::Never } else { files };
    AtimeRules { files, directories }
}

/// Follows changes of a mount's options in a thread of its own, until the mount is gone.
///
/// # Errors
/// Those of opening /proc/self/mountinfo, and of starting a thread.
pub fn follow(
    dir: &Path,
    mounted: &Mounted,
    changed: impl Fn(AtimeRules) + Send + 'static,
) -> io::Result<()> {
    let table = File::open("/proc/self/mountinfo")?;
    let (dir, mut last) = (dir.to_owned(), mounted.clone());
    let watch = move || {
        loop {
            match poll(&mut [PollFd::new(&table, PollFlags::PRI)], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return tracing::warn!(%error, "cannot follow mount options"),
            }
            let now = mountpoint::mounted_on(&dir).ok().flatten();
            let Some(now) = now.filter(|now| now.device == last.device) else { return };
            if now.options != last.options {
                changed(rules_shown(&now.options));
                last = now;
            }
        }
    };
    thread::Builder::new().name("mount-options".into()).spawn(watch)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_say_which_reads_count() {
        let relative = AtimeRules::all(AtimeRule::Relative);
        assert_eq!(rules_of(KernelOptions::default()), relative);
        let kernel =
            KernelOptions { atime: AtimeMode::Strict, nodiratime: true, ..Default::default() };
        let only_files = AtimeRules { files: AtimeRule::Strict, directories: AtimeRule::Never };
        assert_eq!(rules_of(kernel), only_files);
        assert_eq!(rules_of(KernelOptions { read_only: true, ..kernel }), AtimeRules::default());
        for (shown, rules) in [
            ("rw,relatime,rw,user_id=0", relative),
            ("rw,noatime,rw", AtimeRules::default()),
            ("rw,relatime,ro,user_id=0", AtimeRules::default()),
            ("ro,relatime,rw", AtimeRules::default()),
            ("rw,nosuid,rw", AtimeRules::all(AtimeRule::Strict)),
            ("rw,nodiratime,rw", only_files),
        ] {
            assert_eq!(rules_shown(shown), rules, "{shown}");
        }
    }
}
