//! Mounting: /dev/fuse, mount(2), and libfuse's setuid program for users who are not root.
//!
//! Contract: a file descriptor returned here is connected to a mount in the kernel whose first
//! request waits to be read. We mount ourselves, because a mount made by the `fuser` crate is
//! unmounted by it at times of its own choosing.

use crate::error::MountError;
use crate::mountpoint::{self, FS_TYPE};
use crate::options::{AtimeMode, KernelOptions, MountSettings};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::mount::MountFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::ffi::CString;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

/// The kernel's FUSE device.
const DEVICE: &str = "/dev/fuse";
/// Tells fusermount3 on which socket it returns the device.
const FUSERMOUNT_FD: &str = "_FUSE_COMMFD";

/// Opens the FUSE device.
///
/// # Errors
/// [`MountError::Device`].
pub fn open() -> Result<OwnedFd, MountError> {
    File::options()
        .read(true)
        .write(true)
        .open(DEVICE)
        .map(OwnedFd::from)
        .map_err(MountError::Device)
}

/// Mounts on a directory that was prepared.
///
/// # Errors
/// [`MountError::Device`], [`MountError::Mount`].
pub fn mount(settings: &MountSettings, dir: &Path) -> Result<OwnedFd, MountError> {
    let result = if rustix::process::geteuid().is_root() {
        mount_directly(settings, dir, open()?)
    } else {
        mount_by_fusermount(settings, dir)
    };
    result.map_err(|source| MountError::Mount { path: dir.to_owned(), source })
}

fn mount_directly(settings: &MountSettings, dir: &Path, device: OwnedFd) -> io::Result<OwnedFd> {
    // Like every network file system, a mount by root is for all users unless it says otherwise.
    let allow_other = if settings.kernel.allow_other.unwrap_or(true) { ",allow_other" } else { "" };
    let data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions{allow_other}",
        device.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    let data = CString::new(data)?;
    rustix::mount::mount(
        &*settings.address,
        dir,
        FS_TYPE,
        flags(settings.kernel),
        data.as_c_str(),
    )?;
    Ok(device)
}

fn flags(kernel: KernelOptions) -> MountFlags {
    let all = [
        (kernel.read_only, MountFlags::RDONLY),
        (kernel.nodev, MountFlags::NODEV),
        (kernel.nosuid, MountFlags::NOSUID),
        (kernel.noexec, MountFlags::NOEXEC),
        (kernel.sync, MountFlags::SYNCHRONOUS),
        (kernel.dirsync, MountFlags::DIRSYNC),
        (kernel.atime == AtimeMode::Relative, MountFlags::RELATIME),
        (kernel.atime == AtimeMode::Never, MountFlags::NOATIME),
        (kernel.atime == AtimeMode::Strict, MountFlags::STRICTATIME),
        (kernel.nodiratime, MountFlags::NODIRATIME),
        (kernel.lazytime, MountFlags::LAZYTIME),
        (kernel.nosymfollow, MountFlags::NOSYMFOLLOW),
    ];
    all.into_iter().filter(|(on, _)| *on).fold(MountFlags::empty(), |flags, (_, flag)| flags | flag)
}

/// Changes the flags of a mount to these, as `mount -o remount` does. Options of the client stay.
///
/// # Errors
/// [`MountError::NotMounted`], [`MountError::Remount`].
pub fn remount(settings: &MountSettings) -> Result<(), MountError> {
    let dir = mountpoint::mounted(&settings.dir)?;
    rustix::mount::mount_remount(&dir, flags(settings.kernel), c"")
        .map_err(|error| MountError::Remount { path: dir, source: error.into() })
}

/// The options in fusermount3's words. It adds nodev and nosuid itself.
fn fusermount_options(settings: &MountSettings) -> String {
    let kernel = settings.kernel;
    let mut list = vec!["subtype=trefoil".to_owned(), format!("fsname={}", settings.address)];
    let flags = [
        (true, "default_permissions"),
        (kernel.read_only, "ro"),
        (kernel.noexec, "noexec"),
        (kernel.sync, "sync"),
        (kernel.dirsync, "dirsync"),
        (kernel.atime == AtimeMode::Never, "noatime"),
        (kernel.nodiratime, "nodiratime"),
        (kernel.nosymfollow, "nosymfollow"),
        (kernel.allow_other == Some(true), "allow_other"),
    ];
    list.extend(flags.iter().filter(|(on, _)| *on).map(|(_, name)| (*name).to_owned()));
    list.join(",")
}

fn mount_by_fusermount(settings: &MountSettings, dir: &Path) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    fcntl_setfd(&theirs, FdFlags::empty())?;
    let output = Command::new("fusermount3")
        .args(["-o", &fusermount_options(settings), "--"])
        .arg(dir)
        .env(FUSERMOUNT_FD, theirs.as_raw_fd().to_string())
        .output()?;
    drop(theirs);
    if !output.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    received_fd(&ours)
}

/// The file descriptor that came over a socket.
fn received_fd(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    fd.ok_or_else(|| io::Error::other("fusermount3 returned no file descriptor"))
}

/// Lets the kernel read ahead further than the 128 KiB to which it clamps the session's wish. Root
/// only; without it sequential reads are slower and everything else is the same.
pub fn set_read_ahead(device: &str, kib: u32) {
    let path = format!("/sys/class/bdi/{device}/read_ahead_kb");
    if let Err(error) = std::fs::write(&path, kib.to_string()) {
        tracing::debug!(%path, %error, "cannot set the read-ahead");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_reach_both_ways_of_mounting() {
        let mut settings = MountSettings::new("h:1".into(), "/mnt".into());
        settings.apply("ro,noexec,allow_other,nodev").expect("known");
        assert_eq!(
            flags(settings.kernel),
            MountFlags::RDONLY | MountFlags::NOEXEC | MountFlags::NODEV
        );
        let text = fusermount_options(&settings);
        assert_eq!(text, "subtype=trefoil,fsname=h:1,default_permissions,ro,noexec,allow_other");
    }
}
