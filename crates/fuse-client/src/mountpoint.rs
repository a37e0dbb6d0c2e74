//! Mount points: what is mounted where, whether it still answers, and taking it away.
//!
//! Contract: nothing here touches a mounted directory itself except [`answers`], because a dead one
//! answers ENOTCONN to everything.

use crate::error::MountError;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// An extended attribute of every file that the client answers itself, whether the cluster is up or
/// not. In the `system` space the kernel passes it on without first asking for anything else.
pub const ALIVE: &str = "system.trefoil.client";
/// Another one: the threads whose requests wait for the cluster, as the client's process sees their
/// numbers, with spaces between them.
pub const WAITING: &str = "system.trefoil.waiting";
/// Bytes of that, at most.
const WAITING_BYTES_MAX: usize = 1024;
/// Pause before it is tried again to unmount what somebody waits in.
const BUSY_PAUSE: Duration = Duration::from_millis(200);
/// How long the kernel may take to unmount: it writes back what programs changed through mmap.
const UNMOUNT_WAIT: Duration = Duration::from_secs(10);
/// How much longer it may take when others wait in the mount, too.
const ANSWER_WAIT: Duration = Duration::from_secs(1);
/// How long it may take once its requests are aborted.
const ABORT_WAIT: Duration = Duration::from_secs(5);
/// The type in /proc/mounts.
pub const FS_TYPE: &str = "fuse.trefoil";

/// A line of /proc/self/mountinfo.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mounted {
    /// `major:minor` of the file system.
    pub device: String,
    /// Where.
    pub dir: PathBuf,
    /// Its type.
    pub fs_type: String,
    /// Its source: the monitor's address.
    pub source: String,
}

/// The path without links, not looking at its last part: that may be a dead mount.
///
/// # Errors
/// [`MountError::Unusable`].
pub fn resolved(dir: &Path) -> Result<PathBuf, MountError> {
    let failed = |source| MountError::Unusable { path: dir.to_owned(), source };
    let absolute = std::path::absolute(dir).map_err(failed)?;
    match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize().map_err(failed)?.join(name)),
        // The root, or a path that ends in `..`.
        _ => absolute.canonicalize().map_err(failed),
    }
}

/// Undoes the octal escapes of mountinfo.
fn unescaped(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let code = bytes.get(at + 1..at + 4).and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if bytes[at] == b'\\' => {
                plain.push(byte);
                at += 4;
            }
            _ => {
                plain.push(bytes[at]);
                at += 1;
            }
        }
    }
    plain
}

/// The lines of mountinfo that can be understood.
fn parse_mountinfo(text: &str) -> Vec<Mounted> {
    text.lines()
        .filter_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let mut left = left.split(' ').skip(2);
            let mut right = right.split(' ');
            Some(Mounted {
                device: left.next()?.to_owned(),
                dir: OsString::from_vec(unescaped(left.nth(1)?)).into(),
                fs_type: right.next()?.to_owned(),
                source: String::from_utf8_lossy(&unescaped(right.next()?)).into_owned(),
            })
        })
        .collect()
}

/// What is mounted on a resolved directory, if anything: the topmost.
pub fn mounted_on(dir: &Path) -> io::Result<Option<Mounted>> {
    let all = parse_mountinfo(&std::fs::read_to_string("/proc/self/mountinfo")?);
    Ok(all.into_iter().rev().find(|mounted| mounted.dir == dir))
}

/// Does the process behind a mount still answer, if not its cluster? A dead one leaves ENOTCONN (or
/// ECONNABORTED while it goes).
pub fn answers(dir: &Path) -> bool {
    let dead = [Errno::NOTCONN, Errno::CONNABORTED];
    !rustix::fs::lgetxattr(dir, ALIVE, &mut [0; 16]).is_err_and(|error| dead.contains(&error))
}

/// Who waits in a mount for its cluster, as `number (name)`. The kernel counts them as users of the
/// mount, and no program lists them: they have nothing open.
fn waiting_in(dir: &Path) -> Vec<String> {
    let mut told = [0; WAITING_BYTES_MAX];
    let Ok(length) = rustix::fs::lgetxattr(dir, WAITING, &mut told) else { return Vec::new() };
    let told = String::from_utf8_lossy(&told[..length.min(WAITING_BYTES_MAX)]).into_owned();
    let name =
        |thread: &str| std::fs::read_to_string(format!("/proc/{thread}/comm")).unwrap_or_default();
    told.split_whitespace()
        .map(|thread| format!("{thread} ({})", name(thread).trim_end()))
        .collect()
}

/// Unmounts, and gives those who only wait in it some seconds to go: programs that look at every
/// file system, such as df.
fn unmount_unless_used(dir: &Path, lazy: bool) -> Result<(), MountError> {
    let begin = Instant::now();
    loop {
        let busy = match unmount_now(dir, lazy) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => error,
            other => {
                return other
                    .map_err(|source| MountError::Unmount { path: dir.to_owned(), source });
            }
        };
        let waiting = waiting_in(dir);
        if waiting.is_empty() {
            return Err(MountError::Unmount { path: dir.to_owned(), source: busy });
        }
        if begin.elapsed() >= UNMOUNT_WAIT {
            return Err(MountError::Waiting { path: dir.to_owned(), who: waiting.join(", ") });
        }
        std::thread::sleep(BUSY_PAUSE);
    }
}

/// Checks a directory before it is mounted on, and takes away what a dead client left there.
/// Returns its resolved path.
///
/// # Errors
/// [`MountError::Missing`], [`MountError::NotADirectory`], [`MountError::Busy`],
/// [`MountError::Unusable`].
pub fn prepare(dir: &Path) -> Result<PathBuf, MountError> {
    if dir.parent().is_some_and(|parent| !parent.as_os_str().is_empty() && !parent.exists()) {
        return Err(MountError::Missing(dir.to_owned()));
    }
    let dir = resolved(dir)?;
    let failed = |source| MountError::Unusable { path: dir.clone(), source };
    while let Some(mounted) =
        mounted_on(&dir).map_err(failed)?.filter(|mounted| mounted.fs_type == FS_TYPE)
    {
        if answers(&dir) {
            return Err(MountError::Busy(dir.clone(), mounted.source));
        }
        eprintln!(
            "fuse-client: {} is left over from a client that died (source {}): unmounting it",
            dir.display(),
            mounted.source
        );
        unmount_now(&dir, true)
            .map_err(|source| MountError::Unmount { path: dir.clone(), source })?;
    }
    match std::fs::metadata(&dir) {
        Ok(found) if found.is_dir() => Ok(dir),
        Ok(_) => Err(MountError::NotADirectory(dir)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(MountError::Missing(dir)),
        Err(source) => Err(MountError::Unusable { path: dir, source }),
    }
}

/// The resolved path of a mount of ours.
///
/// # Errors
/// [`MountError::NotMounted`], [`MountError::Unusable`].
pub fn mounted(dir: &Path) -> Result<PathBuf, MountError> {
    let dir = resolved(dir)?;
    match mounted_on(&dir) {
        Ok(Some(mounted)) if mounted.fs_type == FS_TYPE => Ok(dir),
        Ok(_) => Err(MountError::NotMounted(dir)),
        Err(source) => Err(MountError::Unusable { path: dir, source }),
    }
}

/// Unmounts a directory.
///
/// # Errors
/// [`MountError::NotMounted`], [`MountError::Unmount`]; [`MountError::Forced`] if it is unmounted
/// at a price.
pub fn unmount(dir: &Path, lazy: bool) -> Result<(), MountError> {
    let dir = resolved(dir)?;
    let failed = |source| MountError::Unusable { path: dir.clone(), source };
    let Some(mounted) = mounted_on(&dir).map_err(failed)? else {
        return Err(MountError::NotMounted(dir));
    };
    if mounted.fs_type != FS_TYPE {
        return Err(MountError::NotMounted(dir));
    }
    let dead = !answers(&dir);
    if dead {
        eprintln!(
            "fuse-client: the client of {} had died; its mount point is taken away",
            dir.display()
        );
    }
    unmount_bounded(&dir, &mounted.device, lazy || dead)
}

/// Unmounts without questions. If the kernel waits too long for the cluster, its requests are
/// aborted.
///
/// # Errors
/// [`MountError::Unmount`]; [`MountError::Forced`] if requests had to be aborted.
pub fn unmount_bounded(dir: &Path, device: &str, lazy: bool) -> Result<(), MountError> {
    let (sender, done) = channel();
    let path = dir.to_owned();
    let failed = |source| MountError::Unmount { path: dir.to_owned(), source };
    let unmount = move || drop(sender.send(unmount_unless_used(&path, lazy)));
    std::thread::Builder::new().name("unmount".into()).spawn(unmount).map_err(failed)?;
    let late = |_: RecvTimeoutError| Err(failed(io::ErrorKind::TimedOut.into()));
    match done.recv_timeout(UNMOUNT_WAIT + ANSWER_WAIT) {
        Ok(result) => return result,
        Err(RecvTimeoutError::Disconnected) => {
            return Err(failed(io::ErrorKind::BrokenPipe.into()));
        }
        Err(RecvTimeoutError::Timeout) => abort(device).map_err(failed)?,
    }
    done.recv_timeout(ABORT_WAIT).unwrap_or_else(late)?;
    let seconds = (UNMOUNT_WAIT + ANSWER_WAIT).as_secs();
    Err(MountError::Forced { path: dir.to_owned(), seconds })
}

/// Ends the connection of a mount: every request in the kernel fails.
fn abort(device: &str) -> io::Result<()> {
    let minor = device.rsplit(':').next().unwrap_or_default();
    std::fs::write(format!("/sys/fs/fuse/connections/{minor}/abort"), "1")
}

/// Unmounts without questions.
///
/// # Errors
/// EBUSY and others.
pub fn unmount_now(dir: &Path, lazy: bool) -> io::Result<()> {
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(dir, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => fusermount_unmount(dir, lazy),
        Err(error) => Err(error.into()),
    }
}

/// Unmounting by a user who is not root, through the setuid program of libfuse.
fn fusermount_unmount(dir: &Path, lazy: bool) -> io::Result<()> {
    let mut command = Command::new("fusermount3");
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(dir);
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_is_understood() {
        let text = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
                    99 22 0:51 / /mnt/a\\040b rw,nosuid shared:3 master:2 - fuse.trefoil 127.0.0.1:7000 rw,user_id=0\n\
                    nonsense\n";
        let all = parse_mountinfo(text);
        assert_eq!(all.len(), 2);
        assert_eq!(all[1].dir, Path::new("/mnt/a b"));
        assert_eq!((all[1].device.as_str(), all[1].fs_type.as_str()), ("0:51", FS_TYPE));
        assert_eq!(all[1].source, "127.0.0.1:7000");
    }

    #[test]
    fn the_wrong_mount_points_are_named() {
        assert!(matches!(prepare(Path::new("/no/such/dir")), Err(MountError::Missing(_))));
        assert!(matches!(
            prepare(Path::new("/proc/self/status")),
            Err(MountError::NotADirectory(_))
        ));
        assert!(matches!(unmount(Path::new("/"), false), Err(MountError::NotMounted(_))));
    }

    #[test]
    fn escapes_that_are_none_stay() {
        assert_eq!(unescaped("a\\134b"), b"a\\b");
        assert_eq!(unescaped("a\\9"), b"a\\9");
    }
}
