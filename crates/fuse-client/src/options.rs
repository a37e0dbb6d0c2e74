//! Mount options as fstab writes them: `-o ro,noatime,read_policy=fastest,...`.
//!
//! Contract: pure. What the kernel understands becomes [`KernelOptions`], what the client
//! understands changes [`MountSettings`], what belongs to mount(8), fstab and systemd is passed
//! over, and anything else is an error ([`unknown`]).

mod unknown;

use client::ReadPolicy;
use messenger::{HistoryMode, RuntimeConfig};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Longest request of reads and writes that the kernel sends, in bytes: its own limit of 256 pages.
pub const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Shortest: a page.
pub const REQUEST_BYTES_MIN: u32 = 4096;

/// Most bytes of a file's writes that may be answered before they are acknowledged: what is sent
/// and kept for all files has a bound not far above it.
pub const WRITE_BEHIND_BYTES_MAX: u64 = 64 << 20;

/// When the kernel updates access times.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AtimeMode {
    /// Not said: relatime for a new mount, and as before when it is mounted anew.
    #[default]
    Unsaid,
    /// Now and then.
    Relative,
    /// Never.
    Never,
    /// Always.
    Strict,
}

/// Flags of mount(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KernelOptions {
    /// Read only.
    pub read_only: bool,
    /// No device files.
    pub nodev: bool,
    /// No set-user-id.
    pub nosuid: bool,
    /// No programs.
    pub noexec: bool,
    /// Writes are synchronous.
    pub sync: bool,
    /// Changes of directories are synchronous.
    pub dirsync: bool,
    /// When access times are updated; they never are, so this only shows in /proc/mounts. So do the
    /// two that follow.
    pub atime: AtimeMode,
    /// Access times of directories are not updated.
    pub nodiratime: bool,
    /// Times may reach the disk later.
    pub lazytime: bool,
    /// Symbolic links are not followed.
    pub nosymfollow: bool,
    /// Users other than the one who mounts may use it. On by default for root.
    pub allow_other: Option<bool>,
}

/// Everything about one mount.
#[derive(Clone, PartialEq, Debug)]
pub struct MountSettings {
    /// The monitor, `host` or `host:port`.
    pub address: String,
    /// Where.
    pub dir: PathBuf,
    /// In the background.
    pub daemon: bool,
    /// Threads that read requests from the kernel; default 2, or 1 below four CPUs: more made it
    /// slower.
    pub threads: usize,
    /// Threads that work on requests; the file's first placement group says which. Each has a
    /// connection of its own to every core of every OSD. `None`:
    /// [`client::ClientConfig::workers`]'s default.
    pub workers: Option<usize>,
    /// Buffer pools; `None`: [`client::ClientConfig::buffer_pools`]'s default.
    pub buffer_pools: Option<usize>,
    /// How long workers look for work before they sleep; `None`:
    /// [`client::ClientConfig::busy_poll`]'s default.
    pub busy_poll: Option<Duration>,
    /// Reads and writes of objects under way at once; `None`:
    /// [`client::ClientConfig::objecter_inflight_ops`]'s default.
    pub objecter_inflight_ops: Option<usize>,
    /// Bytes of them; `None`: [`client::ClientConfig::objecter_inflight_op_bytes`]'s default.
    pub objecter_inflight_op_bytes: Option<usize>,
    /// How long the kernel may use attributes without asking while this is the only mount. Default
    /// 1 s, which is also the longest; with another mount it asks every time.
    pub attr_timeout: Duration,
    /// As `attr_timeout`, for names.
    pub entry_timeout: Duration,
    /// Longest read or write, in bytes. Default 1 MiB.
    pub max_request_bytes: u32,
    /// The kernel's read-ahead in KiB. Default 1024; the kernel's own is 128.
    pub read_ahead_kib: u32,
    /// Which shards answer reads.
    pub read_policy: ReadPolicy,
    /// After how long without an answer a read also asks other shards; zero: never. `None`:
    /// [`client::ClientConfig::hedge_delay`]'s default.
    pub hedge_delay: Option<Duration>,
    /// Which requests are remembered for `trefoil history`. Default off.
    pub op_history: HistoryMode,
    /// How long an operation waits for daemons that it needs before it fails with EIO; zero: for
    /// ever. Default 30 s.
    pub timeout: Duration,
    /// For how long a mount tries again while the cluster cannot be reached; [`Duration::MAX`]: for
    /// ever. Default: it does not.
    pub retry: Duration,
    /// Where `/metrics` is served over HTTP; nowhere by default.
    pub http_listen: Option<SocketAddr>,
    /// A sync that always follows the writes of a file begins with them. Default true; see
    /// [`FsOptions::sync_ahead`].
    ///
    /// [`FsOptions::sync_ahead`]: client::fs::FsOptions::sync_ahead
    pub sync_ahead: bool,
    /// Where an fsync always follows writes, their times may reach the metadata service later.
    /// Default true; see [`FsOptions::times_follow`].
    ///
    /// [`FsOptions::times_follow`]: client::fs::FsOptions::times_follow
    pub times_follow: bool,
    /// Bytes of a file's writes that are answered before the shards have acknowledged them; default
    /// 0, at most [`WRITE_BEHIND_BYTES_MAX`]. See [`FsOptions::write_behind_bytes`].
    ///
    /// [`FsOptions::write_behind_bytes`]: client::fs::FsOptions::write_behind_bytes
    pub write_behind_bytes: u64,
    /// Closes, and changes of attributes of files open to write, are answered before they are told.
    /// Default false; see [`FsOptions::flush_behind`].
    ///
    /// [`FsOptions::flush_behind`]: client::fs::FsOptions::flush_behind
    pub flush_behind: bool,
    /// Count locks, operations and times. Default true; off only to measure what it costs.
    pub telemetry: bool,
    /// Where a background mount logs.
    pub log_file: Option<PathBuf>,
    /// Log every operation.
    pub trace: bool,
    /// For the kernel.
    pub kernel: KernelOptions,
}

impl MountSettings {
    /// The defaults.
    pub fn new(address: String, dir: PathBuf) -> Self {
        Self {
            address,
            dir,
            daemon: false,
            threads: if std::thread::available_parallelism().map_or(1, usize::from) < 4 {
                1
            } else {
                2
            },
            workers: None,
            buffer_pools: None,
            busy_poll: None,
            objecter_inflight_ops: None,
            objecter_inflight_op_bytes: None,
            attr_timeout: Duration::from_secs(1),
            entry_timeout: Duration::from_secs(1),
            max_request_bytes: REQUEST_BYTES_MAX,
            read_ahead_kib: 1024,
            read_policy: ReadPolicy::default(),
            hedge_delay: None,
            op_history: HistoryMode::default(),
            timeout: Duration::from_secs(30),
            retry: Duration::ZERO,
            http_listen: None,
            sync_ahead: true,
            times_follow: true,
            write_behind_bytes: 0,
            flush_behind: false,
            telemetry: true,
            log_file: None,
            trace: false,
            kernel: KernelOptions::default(),
        }
    }

    /// Applies an fstab-style list of options.
    ///
    /// # Errors
    /// A sentence that names the option and what it may be.
    pub fn apply(&mut self, list: &str) -> Result<(), String> {
        for option in list.split(',').map(str::trim).filter(|option| !option.is_empty()) {
            let (name, value) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (option, None),
            };
            if !is_of_others(name) {
                self.apply_one(name, value)?;
            }
        }
        Ok(())
    }

    fn apply_one(&mut self, name: &str, value: Option<&str>) -> Result<(), String> {
        match (name, value) {
            ("ro", None) => self.kernel.read_only = true,
            ("rw", None) => self.kernel.read_only = false,
            ("nodev", None) => self.kernel.nodev = true,
            ("dev", None) => self.kernel.nodev = false,
            ("nosuid", None) => self.kernel.nosuid = true,
            ("suid", None) => self.kernel.nosuid = false,
            ("noexec", None) => self.kernel.noexec = true,
            ("exec", None) => self.kernel.noexec = false,
            ("sync", None) => self.kernel.sync = true,
            ("async", None) => self.kernel.sync = false,
            ("dirsync", None) => self.kernel.dirsync = true,
            ("noatime", None) => self.kernel.atime = AtimeMode::Never,
            ("relatime", None) => self.kernel.atime = AtimeMode::Relative,
            ("strictatime", None) => self.kernel.atime = AtimeMode::Strict,
            ("atime" | "norelatime" | "nostrictatime", None) => {
                self.kernel.atime = AtimeMode::Unsaid
            }
            ("nodiratime", None) => self.kernel.nodiratime = true,
            ("diratime", None) => self.kernel.nodiratime = false,
            ("lazytime", None) => self.kernel.lazytime = true,
            ("nolazytime", None) => self.kernel.lazytime = false,
            ("nosymfollow", None) => self.kernel.nosymfollow = true,
            ("symfollow", None) => self.kernel.nosymfollow = false,
            // The kernel takes the first from every FUSE mount.
            ("iversion" | "noiversion", None) => {}
            ("nomand" | "user_xattr", None) => {}
            ("allow_other", None) => self.kernel.allow_other = Some(true),
            ("noallow_other", None) => self.kernel.allow_other = Some(false),
            ("default_permissions", None) => {}
            ("trace", None) => self.trace = true,
            ("read_policy", Some(value)) => {
                self.read_policy =
                    value.parse().map_err(|error: client::ClientError| error.to_string())?;
            }
            ("hedge_delay", Some(value)) => self.hedge_delay = Some(seconds(name, value)?),
            ("op_history", Some(value)) => {
                self.op_history =
                    value.parse().map_err(|error| format!("op_history={value}: {error}"))?;
            }
            ("threads", Some(value)) => self.threads = number(name, value, 1, 64)? as usize,
            ("workers", Some(value)) => self.workers = Some(number(name, value, 1, 64)? as usize),
            ("buffer_pools", Some(value)) => {
                self.buffer_pools = Some(number(name, value, 1, 64)? as usize)
            }
            ("busy_poll_us", Some(value)) => {
                let max = RuntimeConfig::BUSY_POLL_MAX.as_micros() as u64;
                self.busy_poll = Some(Duration::from_micros(number(name, value, 0, max)?));
            }
            ("objecter_inflight_ops", Some(value)) => {
                let ops = number(name, value, 1, client::INFLIGHT_OPS_MAX as u64)?;
                self.objecter_inflight_ops = Some(ops as usize);
            }
            ("objecter_inflight_op_bytes", Some(value)) => {
                let (min, max) =
                    (client::INFLIGHT_BYTES_MIN as u64, client::INFLIGHT_BYTES_MAX as u64);
                self.objecter_inflight_op_bytes = Some(number(name, value, min, max)? as usize);
            }
            ("attr_timeout", Some(value)) => self.attr_timeout = seconds(name, value)?,
            ("entry_timeout", Some(value)) => self.entry_timeout = seconds(name, value)?,
            ("timeout", Some(value)) => self.timeout = seconds(name, value)?,
            ("retry", Some("forever")) => self.retry = Duration::MAX,
            ("retry", Some(value)) => self.retry = seconds(name, value)?,
            ("max_request_bytes", Some(value)) => {
                let (min, max) = (REQUEST_BYTES_MIN.into(), REQUEST_BYTES_MAX.into());
                self.max_request_bytes = number(name, value, min, max)? as u32;
            }
            ("read_ahead_kib", Some(value)) => {
                self.read_ahead_kib = number(name, value, 0, 1 << 20)? as u32
            }
            ("http_listen", Some(value)) => {
                let address = value.parse().map_err(|_| {
                    format!("http_listen={value}: not an address, such as 127.0.0.1:9283")
                })?;
                self.http_listen = Some(address);
            }
            ("sync_ahead", Some(value)) => self.sync_ahead = is_true(name, value)?,
            ("times_follow", Some(value)) => self.times_follow = is_true(name, value)?,
            ("write_behind_bytes", Some(value)) => {
                self.write_behind_bytes = number(name, value, 0, WRITE_BEHIND_BYTES_MAX)?;
            }
            ("flush_behind", Some(value)) => self.flush_behind = is_true(name, value)?,
            ("telemetry", Some(value)) => self.telemetry = is_true(name, value)?,
            ("log_file", Some(value)) => self.log_file = Some(PathBuf::from(value)),
            _ => return Err(unknown::message(name, value.is_some())),
        }
        Ok(())
    }
}

/// Options that mount(8), fstab or systemd keep for themselves.
fn is_of_others(name: &str) -> bool {
    const NAMES: [&str; 20] = [
        "defaults", "auto", "noauto", "user", "nouser", "users", "nousers", "owner", "noowner",
        "group", "nogroup", "nofail", "fail", "_netdev", "_rnetdev", "comment", "silent", "loud",
        "uhelper", "helper",
    ];
    NAMES.contains(&name) || name.starts_with("x-") || name.starts_with("X-")
}

fn is_true(name: &str, value: &str) -> Result<bool, String> {
    value.parse().map_err(|_| format!("{name}={value}: neither true nor false"))
}

fn number(name: &str, value: &str, min: u64, max: u64) -> Result<u64, String> {
    match value.parse() {
        Ok(number) if (min..=max).contains(&number) => Ok(number),
        _ => Err(format!("{name}={value}: must be a whole number from {min} to {max}")),
    }
}

/// Seconds, with a fraction if need be; at most a year.
pub fn seconds(name: &str, value: &str) -> Result<Duration, String> {
    match value.parse::<f64>() {
        Ok(seconds) if (0.0..=31_536_000.0).contains(&seconds) => {
            Ok(Duration::from_secs_f64(seconds))
        }
        _ => Err(format!("{name}={value}: must be seconds from 0 to 31536000, such as 1 or 0.5")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(list: &str) -> Result<MountSettings, String> {
        let mut settings = MountSettings::new("host:1".into(), "/mnt".into());
        settings.apply(list).map(|()| settings)
    }

    #[test]
    fn fstab_lines_are_understood() {
        let settings =
            applied("rw,noauto,_netdev,nodev,x-systemd.automount,x-a=b,read_policy=fastest,timeout=2.5,noatime")
                .expect("all known");
        assert!(
            settings.kernel.nodev
                && settings.kernel.atime == AtimeMode::Never
                && !settings.kernel.read_only
        );
        assert_eq!(settings.read_policy, ReadPolicy::Fastest);
        assert_eq!(settings.timeout, Duration::from_millis(2500));
        assert!(applied("defaults").expect("nothing to do").kernel == KernelOptions::default());
        assert!(applied("ro,").expect("a trailing comma").kernel.read_only);
    }

    /// U to X of table 5.2 of "Impact of Single Parameter Changes on Ceph Cloud Storage
    /// Performance".
    #[test]
    fn the_values_of_the_paper_can_be_set() {
        for ops in ["8192", "128"] {
            let settings = applied(&format!("objecter_inflight_ops={ops}")).expect("in range");
            assert_eq!(settings.objecter_inflight_ops, ops.parse().ok());
        }
        for bytes in ["1048576000", "10485760"] {
            let settings =
                applied(&format!("objecter_inflight_op_bytes={bytes}")).expect("in range");
            assert_eq!(settings.objecter_inflight_op_bytes, bytes.parse().ok());
        }
    }

    #[test]
    fn the_last_word_on_access_times_counts() {
        let kernel = |list: &str| applied(list).expect("all known").kernel;
        assert_eq!(kernel("noatime,relatime").atime, AtimeMode::Relative);
        assert_eq!(kernel("noatime,strictatime").atime, AtimeMode::Strict);
        assert_eq!(kernel("strictatime,noatime,nodiratime").atime, AtimeMode::Never);
        assert_eq!(kernel("noatime,atime"), KernelOptions::default());
        assert_eq!(
            kernel("lazytime,nosymfollow,nolazytime,symfollow,iversion"),
            KernelOptions::default()
        );
    }

    #[test]
    fn unknown_options_and_values_are_named() {
        let misspelt = applied("readpolicy=fastest").expect_err("misspelt");
        assert!(
            misspelt.contains("readpolicy") && misspelt.contains("did you mean `read_policy`?"),
            "{misspelt}"
        );
        assert!(applied("colour=blue").expect_err("nothing like it").contains("--help"));
        assert!(applied("timeout").expect_err("no value").contains("needs a value"));
        assert!(applied("objecter_inflight_ops=0").expect_err("too few").contains("1 to 1000000"));
        assert!(
            applied("objecter_inflight_op_bytes=1M").expect_err("a unit").contains("from 4194304")
        );
        assert!(applied("threads=0").expect_err("too few").contains("1 to 64"));
        assert!(applied("max_request_bytes=10").expect_err("too small").contains("4096"));
        assert!(applied("write_behind_bytes=67108865").expect_err("too much").contains("67108864"));
        assert!(applied("timeout=soon").expect_err("no number").contains("seconds"));
        assert!(applied("ro=1").expect_err("takes no value").contains("takes no value"));
        assert!(applied("op_history=on").expect_err("unknown").contains("lock-free"));
        assert!(applied("read_policy=quick").expect_err("unknown").contains("systematic"));
    }
}
