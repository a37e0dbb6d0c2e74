//! Why a mount or unmount failed, in words that say what to do.

use std::io;
use std::path::PathBuf;

/// An error of the program; each ends it with exit status 1.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The cluster cannot be used.
    #[error("{0}; is the cluster running, and is the address its monitor's?")]
    Cluster(client::ClientError),
    /// There is no FUSE in this kernel or container.
    #[error(
        "cannot open /dev/fuse: {0}; load the module (`modprobe fuse`), or give the container the device"
    )]
    Device(io::Error),
    /// The directory to mount on is missing.
    #[error("mount point {0} does not exist; make it first (`mkdir -p {0}`)")]
    Missing(PathBuf),
    /// It is no directory.
    #[error("mount point {0} is not a directory")]
    NotADirectory(PathBuf),
    /// A file system of ours is mounted there and answers.
    #[error("{0} is mounted already, from {1}; unmount it first (`fuse-client umount {0}`)")]
    Busy(PathBuf, String),
    /// The mount point cannot be looked at.
    #[error("cannot use mount point {path}: {source}")]
    Unusable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The kernel refused.
    #[error(
        "cannot mount on {path}: {source}; mounting needs root, or fusermount3 (package fuse3) for other users"
    )]
    Mount {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The kernel refused to change the flags of a mount.
    #[error(
        "cannot remount {path}: {source}; it needs root, and no file open for writing if it shall be read only"
    )]
    Remount {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Nothing of ours is mounted there.
    #[error(
        "{0} is not a mounted trefoil file system; `findmnt -t fuse.trefoil` lists those that are"
    )]
    NotMounted(PathBuf),
    /// The kernel refused to unmount.
    #[error(
        "cannot unmount {path}: {source}; `fuser -vm {path}` lists who uses it, `umount --lazy` detaches it at once"
    )]
    Unmount {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Somebody waits in the mount for its cluster.
    #[error(
        "cannot unmount {path}: it is in use by processes that wait for its cluster: {who}; kill them, or wait: each gets \
         an error after the mount's timeout. `umount --lazy` detaches it at once"
    )]
    Waiting {
        /// Where.
        path: PathBuf,
        /// Their numbers and names.
        who: String,
    },
    /// The page of metrics cannot be served.
    #[error(transparent)]
    Http(#[from] messenger::http::HttpError),
    /// The FUSE session broke.
    #[error("the FUSE session ended: {0}")]
    Session(io::Error),
    /// The background process could not be started.
    #[error("cannot start the background process: {0}")]
    Daemon(io::Error),
    /// The background process failed; it said why.
    #[error("{0}")]
    Child(String),
    /// The log file cannot be written.
    #[error("cannot write the log file {path}: {source}")]
    Log {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The helper could not be installed.
    #[error("cannot install {path}: {source}; installing needs root")]
    Install {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Taking the mount away needed the end of its connection: what waited in the kernel is lost.
    #[error(
        "unmounted {path} by force: its cluster did not answer for {seconds} s, and what programs wrote there through \
         mmap and did not sync may be lost"
    )]
    Forced {
        /// Where.
        path: PathBuf,
        /// How long it was waited.
        seconds: u64,
    },
    /// Written data could not be made safe at the end.
    #[error("unmounted, but not everything written could be made durable: {0}")]
    Unsynced(client::ClientError),
}
