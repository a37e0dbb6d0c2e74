//! The command line, in its own form and in that of a mount(8) helper.

use crate::error::MountError;
use crate::options::{AtimeMode, MountSettings};
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand};
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Under this name the program is the helper of `mount -t fuse.trefoil`.
pub const HELPER: &str = "mount.fuse.trefoil";

/// What to do.
#[derive(Clone, PartialEq, Debug)]
pub enum Action {
    /// Mount, in the foreground or not.
    Mount(Box<MountSettings>),
    /// Change the flags of a mount: only those of the kernel.
    Remount(Box<MountSettings>),
    /// Unmount.
    Unmount {
        /// Where.
        dir: PathBuf,
        /// At once, even if it is in use.
        lazy: bool,
    },
    /// Print the page of the documents that lists the options.
    PrintOptions,
    /// Make the link for mount(8).
    InstallHelper {
        /// In which directory.
        dir: PathBuf,
    },
}

/// The flags of `fuse-client mount`, for the page of the documents that lists them.
pub fn mount_command() -> clap::Command {
    MountArgs::augment_args(clap::Command::new("mount"))
}

/// Mounts a Trefoil cluster as a POSIX file system.
#[derive(Parser)]
#[command(name = "fuse-client", version = env!("TREFOIL_VERSION"), about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Mounts a cluster on a directory
    Mount(Box<MountArgs>),
    /// Unmounts a directory, also one whose client has died
    Umount {
        /// Where it is mounted
        dir: PathBuf,
        /// Detach it at once, even if it is in use
        #[arg(short, long)]
        lazy: bool,
    },
    /// Links /sbin/mount.fuse.trefoil to this program, so that fstab and `mount -t fuse.trefoil`
    /// work
    InstallHelper {
        /// Directory of the link
        #[arg(long, default_value = "/sbin")]
        dir: PathBuf,
    },
    /// Prints docs/use/mount-options.md
    #[command(hide = true)]
    MarkdownOptions,
}

#[derive(Args)]
struct MountArgs {
    /// The monitor's host name or IP address, and its port if that is not 7400: HOST[:PORT]
    address: String,
    /// The directory to mount on
    dir: PathBuf,
    /// Return once it is mounted, and go on in the background
    #[arg(short, long)]
    daemon: bool,
    /// Threads that read requests from the kernel [default: 2, or 1 below four CPUs]
    #[arg(long, env = "TREFOIL_FUSE_THREADS")]
    threads: Option<String>,
    /// Threads that work on requests, each with connections of its own [default: 1 below 8 CPUs,
    /// else a quarter of them, 8 at most]
    #[arg(long, env = "TREFOIL_FUSE_WORKERS")]
    workers: Option<String>,
    /// Buffer pools, each with a lock of its own [default: 4]
    #[arg(long, env = "TREFOIL_FUSE_BUFFER_POOLS")]
    buffer_pools: Option<String>,
    /// Microseconds for which a worker without work looks for more before it sleeps, while its
    /// waits are mostly that short; 0: not at all [default: 100]
    #[arg(long, env = "TREFOIL_FUSE_BUSY_POLL_US")]
    busy_poll_us: Option<String>,
    /// Most reads and writes of objects under way at once, 1 to 1000000; further ones wait. Can
    /// change while mounted: `trefoil config set client.N` [default: 1024]
    #[arg(long, env = "TREFOIL_FUSE_OBJECTER_INFLIGHT_OPS")]
    objecter_inflight_ops: Option<String>,
    /// Most bytes of them, 4194304 to 68719476736; can change in the same way [default: 104857600]
    #[arg(long, env = "TREFOIL_FUSE_OBJECTER_INFLIGHT_OP_BYTES")]
    objecter_inflight_op_bytes: Option<String>,
    /// Seconds for which the kernel may use attributes without asking [default: 1]
    #[arg(long, env = "TREFOIL_ATTR_TIMEOUT")]
    attr_timeout: Option<String>,
    /// Seconds for which the kernel may use names without asking [default: 1]
    #[arg(long, env = "TREFOIL_ENTRY_TIMEOUT")]
    entry_timeout: Option<String>,
    /// Longest read or write request in bytes, 4096 to 1048576 [default: 1048576]
    #[arg(long, env = "TREFOIL_MAX_REQUEST_BYTES")]
    max_request_bytes: Option<String>,
    /// The kernel's read-ahead in KiB [default: 1024]
    #[arg(long, env = "TREFOIL_READ_AHEAD_KIB")]
    read_ahead_kib: Option<String>,
    /// Which shards answer reads: systematic, round-robin, hash, fastest [default: systematic]
    #[arg(long, env = "TREFOIL_READ_POLICY")]
    read_policy: Option<String>,
    /// Seconds without an answer after which a read also asks other shards; 0: never [default: 0.5]
    #[arg(long, env = "TREFOIL_HEDGE_DELAY")]
    hedge_delay: Option<String>,
    /// Remember the last requests for `trefoil history`: off, locked (one lock for all threads),
    /// lock-free [default: off]
    #[arg(long, env = "TREFOIL_OP_HISTORY")]
    op_history: Option<String>,
    /// Seconds that an operation waits for daemons before it fails with EIO; 0: for ever [default:
    /// 30]
    #[arg(long, env = "TREFOIL_TIMEOUT")]
    timeout: Option<String>,
    /// Seconds for which to try again while the cluster cannot be reached, or forever: for fstab,
    /// with _netdev [default: 0]
    #[arg(long, env = "TREFOIL_FUSE_RETRY", value_name = "SECONDS")]
    retry: Option<String>,
    /// Where to serve /metrics over HTTP for Prometheus, IP:PORT [default: nowhere]
    #[arg(long, env = "TREFOIL_FUSE_HTTP_LISTEN", value_name = "ADDR")]
    http_listen: Option<String>,
    /// Begin a sync that has always followed so many writes with the last of them [default: true]
    #[arg(long, env = "TREFOIL_FUSE_SYNC_AHEAD", value_name = "BOOL")]
    sync_ahead: Option<String>,
    /// Where an fsync always follows the writes of a file whose size stays, do not wait for the
    /// metadata service to learn their times; if this program dies before it does, mtime and ctime
    /// become the moment at which that is noticed [default: true]
    #[arg(long, env = "TREFOIL_FUSE_TIMES_FOLLOW", value_name = "BOOL")]
    times_follow: Option<String>,
    /// Bytes of a file's writes that are answered as soon as they are queued, before the storage
    /// daemons have acknowledged them. What was neither fsynced nor closed may be lost if this
    /// program dies; fsync and close (see --flush-behind) wait, and tell of errors; 0: none
    /// [default: 0]
    #[arg(long, env = "TREFOIL_FUSE_WRITE_BEHIND_BYTES")]
    write_behind_bytes: Option<String>,
    /// Answer closes, and chmod and chown of files open to write, before the storage daemons and
    /// the metadata service have all of it (not what takes a permission away). What was not fsynced
    /// may be lost if this program dies; other mounts see everything all the same [default: false]
    #[arg(long, env = "TREFOIL_FUSE_FLUSH_BEHIND", value_name = "BOOL")]
    flush_behind: Option<String>,
    /// Count locks, operations and times; false only to measure what it costs [default: true]
    #[arg(long, env = "TREFOIL_FUSE_TELEMETRY", value_name = "BOOL")]
    telemetry: Option<String>,
    /// Where to log: a file, which keeps to 16 MiB and has its older lines in FILE.1 [default:
    /// standard error; with --daemon, /var/log/trefoil/DIR.log, for other users than root
    /// ~/.local/state/trefoil/DIR.log]
    #[arg(long, env = "TREFOIL_FUSE_LOG_FILE", value_name = "FILE")]
    log_file: Option<PathBuf>,
    /// Log every operation (slow)
    #[arg(long)]
    trace: bool,
    /// Options as in fstab: ro, nodev, nosuid, noexec, nosymfollow, noatime, nodiratime,
    /// strictatime, lazytime, sync, dirsync, [no]allow_other (root's default: allow_other), and
    /// every flag above with `_` for `-`, such as read_policy=fastest
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
}

/// Understands the command line.
///
/// # Errors
/// Help, version, or what is wrong, to be printed with `exit`.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Action, clap::Error> {
    let args: Vec<OsString> = args.into_iter().collect();
    let name = args.first().map(Path::new).and_then(Path::file_name);
    if name == Some(OsStr::new(HELPER)) {
        return parse_helper(&args[1..]).map_err(|text| {
            let mut usage = clap::Command::new(HELPER)
                .override_usage("mount -t fuse.trefoil [-o OPTIONS] ADDRESS DIR");
            usage.error(ErrorKind::InvalidValue, text)
        });
    }
    match Cli::try_parse_from(args)?.command {
        Command::Mount(args) => {
            let action = settings(*args).map_err(wrong_mount)?;
            Ok(Action::Mount(Box::new(action)))
        }
        Command::Umount { dir, lazy } => Ok(Action::Unmount { dir, lazy }),
        Command::InstallHelper { dir } => Ok(Action::InstallHelper { dir }),
        Command::MarkdownOptions => Ok(Action::PrintOptions),
    }
}

/// With the usage of `mount`.
fn wrong_mount(text: String) -> clap::Error {
    let mut root = Cli::command();
    root.build();
    match root.find_subcommand_mut("mount") {
        Some(mount) => mount.error(ErrorKind::InvalidValue, text),
        None => root.error(ErrorKind::InvalidValue, text),
    }
}

fn settings(args: MountArgs) -> Result<MountSettings, String> {
    let mut settings = MountSettings::new(args.address, args.dir);
    for list in &args.options {
        settings.apply(list)?;
    }
    // Flags are applied after -o: they are typed by hand, and what is typed last counts.
    let flags = [
        ("threads", args.threads),
        ("workers", args.workers),
        ("buffer_pools", args.buffer_pools),
        ("busy_poll_us", args.busy_poll_us),
        ("objecter_inflight_ops", args.objecter_inflight_ops),
        ("objecter_inflight_op_bytes", args.objecter_inflight_op_bytes),
        ("attr_timeout", args.attr_timeout),
        ("entry_timeout", args.entry_timeout),
        ("max_request_bytes", args.max_request_bytes),
        ("read_ahead_kib", args.read_ahead_kib),
        ("read_policy", args.read_policy),
        ("hedge_delay", args.hedge_delay),
        ("op_history", args.op_history),
        ("timeout", args.timeout),
        ("retry", args.retry),
        ("http_listen", args.http_listen),
        ("sync_ahead", args.sync_ahead),
        ("times_follow", args.times_follow),
        ("write_behind_bytes", args.write_behind_bytes),
        ("flush_behind", args.flush_behind),
        ("telemetry", args.telemetry),
    ];
    for (name, value) in flags {
        if let Some(value) = value {
            settings.apply(&format!("{name}={value}"))?;
        }
    }
    settings.daemon = args.daemon;
    settings.log_file = args.log_file.or(settings.log_file);
    settings.trace |= args.trace;
    Ok(settings)
}

/// `mount.fuse.trefoil SOURCE DIR [-sfnv] [-N namespace] [-o options] [-t type]`, as mount(8) calls
/// it.
fn parse_helper(args: &[OsString]) -> Result<Action, String> {
    let mut places: Vec<&OsString> = Vec::new();
    let mut lists: Vec<String> = Vec::new();
    let (mut fake, mut sloppy) = (false, false);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("-o") => {
                let list = args.next().ok_or("-o needs a list of options")?;
                lists.push(list.to_str().ok_or("mount options must be UTF-8")?.to_owned());
            }
            Some("-t" | "-N") => {
                args.next();
            }
            Some(flags) if flags.len() > 1 && flags.starts_with('-') => {
                if let Some(unknown) = flags[1..].chars().find(|flag| !"sfnvrw".contains(*flag)) {
                    return Err(format!(
                        "unknown flag -{unknown}: this is the helper of `mount -t fuse.trefoil`"
                    ));
                }
                fake |= flags.contains('f');
                sloppy |= flags.contains('s');
                if flags.contains('r') {
                    lists.push("ro".to_owned());
                }
            }
            _ => places.push(arg),
        }
    }
    let [address, dir] = places[..] else {
        return Err(format!("usage: {HELPER} ADDRESS DIR [-sfnv] [-o OPTIONS]"));
    };
    if fake {
        return Err("-f only pretends to mount, which mount(8) does without its helper".to_owned());
    }
    let address = address.to_str().ok_or("the address must be UTF-8")?;
    let mut settings = MountSettings::new(address.to_owned(), PathBuf::from(dir));
    settings.daemon = true;
    let options = || lists.iter().flat_map(|list| list.split(','));
    let is_remount = options().any(|option| option == "remount");
    for option in options().filter(|option| !(is_remount && is_left_by_a_remount(option))) {
        match settings.apply(option) {
            Err(message) if sloppy => eprintln!("fuse-client: passed over: {message}"),
            applied => applied?,
        }
    }
    if is_remount {
        say_what_stays(&settings);
        return Ok(Action::Remount(Box::new(settings)));
    }
    let log_file = || std::env::var_os("TREFOIL_FUSE_LOG_FILE").map(PathBuf::from);
    settings.log_file = settings.log_file.or_else(log_file);
    Ok(Action::Mount(Box::new(settings)))
}

/// What mount(8) hands on beside the flags when it remounts: it has them from /proc/self/mountinfo.
fn is_left_by_a_remount(option: &str) -> bool {
    let name = option.split('=').next().unwrap_or_default();
    matches!(name, "remount" | "user_id" | "group_id" | "max_read" | "allow_other")
}

/// Options of the client, from fstab or not, are those of its start.
fn say_what_stays(settings: &MountSettings) {
    let plain = MountSettings::new(settings.address.clone(), settings.dir.clone());
    let now = MountSettings { daemon: false, kernel: plain.kernel, ..settings.clone() };
    if now != plain {
        eprintln!(
            "fuse-client: options of the client stay as they were mounted; unmount and mount to change them"
        );
    }
}

/// The arguments with which the background process is started.
pub fn background_args(settings: &MountSettings) -> Vec<OsString> {
    let mut args: Vec<OsString> = vec!["mount".into()];
    let kernel = settings.kernel;
    let flags = [
        (kernel.read_only, "ro"),
        (kernel.nodev, "nodev"),
        (kernel.nosuid, "nosuid"),
        (kernel.noexec, "noexec"),
        (kernel.sync, "sync"),
        (kernel.dirsync, "dirsync"),
        (kernel.atime == AtimeMode::Relative, "relatime"),
        (kernel.atime == AtimeMode::Never, "noatime"),
        (kernel.atime == AtimeMode::Strict, "strictatime"),
        (kernel.nodiratime, "nodiratime"),
        (kernel.lazytime, "lazytime"),
        (kernel.nosymfollow, "nosymfollow"),
        (kernel.allow_other == Some(true), "allow_other"),
        (kernel.allow_other == Some(false), "noallow_other"),
        (settings.trace, "trace"),
    ];
    let mut list: Vec<String> =
        flags.iter().filter(|(on, _)| *on).map(|(_, name)| (*name).to_owned()).collect();
    list.push(format!("threads={}", settings.threads));
    list.push(format!("attr_timeout={}", settings.attr_timeout.as_secs_f64()));
    list.push(format!("entry_timeout={}", settings.entry_timeout.as_secs_f64()));
    list.push(format!("max_request_bytes={}", settings.max_request_bytes));
    list.push(format!("read_ahead_kib={}", settings.read_ahead_kib));
    list.push(format!("read_policy={}", settings.read_policy));
    list.push(format!("op_history={}", settings.op_history));
    list.extend(settings.hedge_delay.map(|delay| format!("hedge_delay={}", delay.as_secs_f64())));
    list.push(format!("timeout={}", settings.timeout.as_secs_f64()));
    list.push(match settings.retry {
        Duration::MAX => "retry=forever".to_owned(),
        retry => format!("retry={}", retry.as_secs_f64()),
    });
    list.push(format!("sync_ahead={}", settings.sync_ahead));
    list.push(format!("times_follow={}", settings.times_follow));
    list.push(format!("write_behind_bytes={}", settings.write_behind_bytes));
    list.push(format!("flush_behind={}", settings.flush_behind));
    list.push(format!("telemetry={}", settings.telemetry));
    list.extend(settings.workers.map(|count| format!("workers={count}")));
    list.extend(settings.buffer_pools.map(|count| format!("buffer_pools={count}")));
    list.extend(settings.busy_poll.map(|time| format!("busy_poll_us={}", time.as_micros())));
    list.extend(settings.objecter_inflight_ops.map(|ops| format!("objecter_inflight_ops={ops}")));
    list.extend(
        settings
            .objecter_inflight_op_bytes
            .map(|bytes| format!("objecter_inflight_op_bytes={bytes}")),
    );
    list.extend(settings.http_listen.map(|address| format!("http_listen={address}")));
    args.extend(["-o".into(), list.join(",").into()]);
    if let Some(log) = &settings.log_file {
        args.extend(["--log-file".into(), log.into()]);
    }
    args.extend(["--".into(), (&settings.address).into(), (&settings.dir).into()]);
    args
}

/// Makes `DIR/mount.fuse.trefoil` a link to this program, replacing an older link.
///
/// # Errors
/// [`MountError::Install`].
pub fn install_helper(dir: &Path) -> Result<(), MountError> {
    let path = dir.join(HELPER);
    let failed = |source| MountError::Install { path: path.clone(), source };
    let program = std::env::current_exe().and_then(|exe| exe.canonicalize()).map_err(failed)?;
    if path.symlink_metadata().is_ok_and(|found| found.file_type().is_symlink()) {
        std::fs::remove_file(&path).map_err(failed)?;
    }
    symlink(&program, &path).map_err(failed)?;
    println!("{} -> {}", path.display(), program.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::KernelOptions;
    use client::ReadPolicy;
    use messenger::HistoryMode;

    fn mounted(args: &[&str]) -> MountSettings {
        match parse(args.iter().map(OsString::from)) {
            Ok(Action::Mount(settings)) => *settings,
            other => panic!("{other:?} is no mount"),
        }
    }

    #[test]
    fn the_helper_understands_what_mount_passes() {
        let args = [
            "/sbin/mount.fuse.trefoil",
            "host:6789",
            "/mnt",
            "-v",
            "-o",
            "rw,_netdev,nodev",
            "-t",
            "fuse.trefoil",
        ];
        let settings = mounted(&args);
        assert_eq!(
            (settings.address.as_str(), settings.dir.as_path()),
            ("host:6789", Path::new("/mnt"))
        );
        assert!(settings.daemon && settings.kernel.nodev);
        assert!(parse(["mount.fuse.trefoil", "host"].map(OsString::from)).is_err());
        assert!(parse(["mount.fuse.trefoil", "a", "b", "-z"].map(OsString::from)).is_err());
    }

    #[test]
    fn errors_show_the_usage_of_what_was_tried() {
        let said = |args: &[&str]| match parse(args.iter().map(OsString::from)) {
            Err(error) => error.to_string(),
            Ok(action) => panic!("{action:?}"),
        };
        let mount = said(&["fuse-client", "mount", "h", "/mnt", "-o", "tiemout=3"]);
        assert!(
            mount.contains("did you mean `timeout`?") && mount.contains("fuse-client mount "),
            "{mount}"
        );
        let helper = said(&["/sbin/mount.fuse.trefoil", "h", "/mnt", "-o", "tiemout=3"]);
        assert!(helper.contains("mount -t fuse.trefoil"), "{helper}");
    }

    #[test]
    fn the_helper_remounts() {
        let list = "ro,relatime,remount,user_id=0,group_id=0,default_permissions,allow_other,max_read=1048576";
        let args = ["mount.fuse.trefoil", "h:1", "/mnt", "-o", list];
        let Ok(Action::Remount(settings)) = parse(args.map(OsString::from)) else {
            panic!("no remount")
        };
        assert!(settings.kernel.read_only && settings.kernel.atime == AtimeMode::Relative);
        let list = "rw,remount,blksize=1";
        assert!(
            parse(["mount.fuse.trefoil", "h:1", "/mnt", "-o", list].map(OsString::from)).is_err()
        );
        let error =
            parse(["fuse-client", "mount", "h:1", "/mnt", "-o", "remount,ro"].map(OsString::from));
        assert!(error.expect_err("not by hand").to_string().contains("mount -o remount,ro"));
    }

    #[test]
    fn the_helper_passes_over_what_it_shall() {
        let settings =
            mounted(&["mount.fuse.trefoil", "h:1", "/mnt", "-s", "-o", "ro,data=ordered,nodev"]);
        assert!(settings.kernel.read_only && settings.kernel.nodev);
        assert!(
            parse(["mount.fuse.trefoil", "h:1", "/mnt", "-o", "data=ordered"].map(OsString::from))
                .is_err()
        );
    }

    #[test]
    fn flags_win_over_options() {
        let settings = mounted(&[
            "fuse-client",
            "mount",
            "h:1",
            "/mnt",
            "--timeout",
            "3",
            "-o",
            "timeout=9,ro",
        ]);
        assert_eq!(settings.timeout.as_secs(), 3);
        assert!(settings.kernel.read_only && !settings.daemon);
        assert!(
            parse(["fuse-client", "mount", "h:1", "/mnt", "--threads", "no"].map(OsString::from))
                .is_err()
        );
    }

    #[test]
    fn the_background_process_gets_the_same_settings() {
        // Every field, so that one cannot be forgotten.
        let settings = MountSettings {
            address: "h:1".to_owned(),
            dir: PathBuf::from("/mnt"),
            daemon: true,
            threads: 7,
            workers: Some(5),
            buffer_pools: Some(3),
            busy_poll: Some(Duration::from_micros(60)),
            objecter_inflight_ops: Some(128),
            objecter_inflight_op_bytes: Some(10_485_760),
            attr_timeout: Duration::from_millis(250),
            entry_timeout: Duration::from_millis(500),
            max_request_bytes: 65536,
            read_ahead_kib: 128,
            read_policy: ReadPolicy::Hash,
            hedge_delay: Some(Duration::from_millis(20)),
            op_history: HistoryMode::LockFree,
            timeout: Duration::from_secs(7),
            retry: Duration::MAX,
            http_listen: Some(([127, 0, 0, 1], 9283).into()),
            sync_ahead: false,
            times_follow: false,
            write_behind_bytes: 4096,
            flush_behind: true,
            telemetry: false,
            log_file: Some(PathBuf::from("/tmp/log")),
            trace: true,
            kernel: KernelOptions {
                read_only: true,
                nodev: true,
                nosuid: true,
                noexec: true,
                sync: true,
                dirsync: true,
                atime: AtimeMode::Strict,
                nodiratime: true,
                lazytime: true,
                nosymfollow: true,
                allow_other: Some(false),
            },
        };
        let args = [vec![OsString::from("fuse-client")], background_args(&settings)].concat();
        let Ok(Action::Mount(again)) = parse(args) else { panic!("no mount") };
        assert_eq!(*again, MountSettings { daemon: false, ..settings });
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
