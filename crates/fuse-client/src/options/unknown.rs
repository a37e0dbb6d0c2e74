//! What to say of an option that is not known: why others have it, what to write instead, or which
//! one may have been meant. Pure.

/// Every option that [`super::MountSettings::apply`] knows, for suggestions.
const KNOWN: [&str; 55] = [
    "ro",
    "rw",
    "dev",
    "nodev",
    "suid",
    "nosuid",
    "exec",
    "noexec",
    "sync",
    "async",
    "dirsync",
    "atime",
    "noatime",
    "diratime",
    "nodiratime",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
    "lazytime",
    "nolazytime",
    "symfollow",
    "nosymfollow",
    "iversion",
    "noiversion",
    "nomand",
    "user_xattr",
    "allow_other",
    "noallow_other",
    "default_permissions",
    "trace",
    "read_policy",
    "hedge_delay",
    "op_history",
    "threads",
    "workers",
    "buffer_pools",
    "busy_poll_us",
    "objecter_inflight_ops",
    "objecter_inflight_op_bytes",
    "attr_timeout",
    "entry_timeout",
    "timeout",
    "retry",
    "max_request_bytes",
    "read_ahead_kib",
    "http_listen",
    "sync_ahead",
    "times_follow",
    "write_behind_bytes",
    "flush_behind",
    "telemetry",
    "log_file",
    "_netdev",
    "nofail",
];
/// Changes of one character that a misspelling may have.
const TYPOS_MAX: usize = 2;

/// The message for an option that is not known, with or without a value.
pub fn message(name: &str, has_value: bool) -> String {
    let value = if has_value { " with a value" } else { "" };
    let help = "`fuse-client mount --help` lists them";
    if let Some(advice) = advice(name) {
        return format!("mount option {name:?}: {advice}");
    }
    match nearest(name) {
        Some(known) if known == name && has_value => {
            format!("mount option {name:?} takes no value; {help}")
        }
        Some(known) if known == name => {
            format!("mount option {name:?} needs a value ({name}=...); {help}")
        }
        Some(known) => {
            format!("unknown mount option {name:?}{value}: did you mean `{known}`? {help}")
        }
        None => format!("unknown mount option {name:?}{value}; {help}"),
    }
}

/// What to do about an option of other file systems, or of libfuse.
fn advice(name: &str) -> Option<&'static str> {
    Some(match name {
        "mand" => "Linux has no mandatory locks any more; leave it out",
        "nouser_xattr" => "extended attributes are always on; leave it out",
        "uid" | "gid" | "umask" | "fmask" | "dmask" => {
            "files have owners and modes of their own; use chown and chmod"
        }
        "quota" | "usrquota" | "grpquota" | "prjquota" => "there are no quotas; leave it out",
        "discard" | "barrier" | "nobarrier" | "data" | "errors" | "commit" | "journal_checksum"
        | "discard_max" => "an option of file systems on a disk; leave it out",
        "soft" | "timeo" | "retrans" | "softerr" => {
            "write timeout=SECONDS: how long calls wait for the cluster"
        }
        "hard" => "write timeout=0: calls wait for the cluster for ever",
        "bg" | "fg" => {
            "write retry=forever (or retry=SECONDS) to wait for servers that are not up yet"
        }
        "rsize" | "wsize" | "max_read" | "max_write" | "blksize" => "write max_request_bytes=BYTES",
        "noac" => "write attr_timeout=0,entry_timeout=0",
        "ac" | "actimeo" | "acregmin" | "acregmax" | "acdirmin" | "acdirmax"
        | "attribute-timeout" => "write attr_timeout=SECONDS",
        "entry-timeout" => "write entry_timeout=SECONDS",
        "allow_root" => {
            "root and everybody else may use it with allow_other; there is none for root alone"
        }
        "nonempty" => "a directory that is not empty may be mounted on; leave it out",
        "auto_unmount" => {
            "`fuse-client umount` takes away what a client that died has left; leave it out"
        }
        "fsname" | "subtype" | "fd" | "rootmode" | "user_id" | "group_id" => {
            "the client sets it itself; leave it out"
        }
        "remount" => {
            "by mount(8), once `fuse-client install-helper` was run: mount -o remount,ro DIR"
        }
        "bind" | "rbind" | "move" => {
            "by mount(8), of a directory that is mounted: mount --bind DIR OTHER"
        }
        _ => return None,
    })
}

/// The known option that is the most like this one, if one is.
fn nearest(name: &str) -> Option<&'static str> {
    let plain = |text: &str| text.replace(['-', '_'], "").to_lowercase();
    let wanted = plain(name);
    let all = KNOWN.iter().map(|known| (strsim::levenshtein(&wanted, &plain(known)), *known));
    let typos_max = TYPOS_MAX.min(wanted.len() / 3);
    all.filter(|(typos, _)| *typos <= typos_max)
        .min_by_key(|(typos, _)| *typos)
        .map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::super::MountSettings;
    use super::*;

    #[test]
    fn what_is_suggested_is_known() {
        for name in KNOWN {
            let mut settings = MountSettings::new("h:1".into(), "/mnt".into());
            for option in [name.to_owned(), format!("{name}=no-such-value")] {
                let said = settings.apply(&option).err().unwrap_or_default();
                assert!(!said.contains("unknown mount option"), "{option}: {said}");
            }
        }
    }

    #[test]
    fn the_option_that_was_meant_is_named() {
        for (wrong, right) in [
            ("readpolicy", "read_policy"),
            ("read-policy", "read_policy"),
            ("noatme", "noatime"),
            ("no_atime", "noatime"),
            ("timout", "timeout"),
            ("write_behind_byte", "write_behind_bytes"),
        ] {
            assert!(
                message(wrong, false).contains(&format!("did you mean `{right}`")),
                "{}",
                message(wrong, false)
            );
        }
        assert!(!message("xyzzy", false).contains("did you mean"));
        assert!(!message("su", false).contains("did you mean"));
        assert!(message("ro", true).contains("takes no value"));
        assert!(message("timeout", false).contains("needs a value"));
        assert!(message("rsize", true).contains("max_request_bytes"));
        assert!(message("mand", false).contains("mandatory"));
    }
}
