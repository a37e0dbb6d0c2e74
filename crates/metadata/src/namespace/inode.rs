//! Records of inodes and directory entries. Field order is the format: a change is a new format version.

use protocol::namespace::{Attr, FileKind, Timestamp};
use protocol::{Gfid, PoolId};
use serde::{Deserialize, Serialize};

/// What of an inode may not be so. A bit for each, in the place of what was a flag for the size alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Doubt {
    Nothing,
    /// A writer died: there may be data beyond the size.
    Size,
    /// Whoever writes the file may know later times.
    Times,
    /// Both.
    SizeAndTimes,
}

impl Doubt {
    pub fn of_size(self) -> bool {
        matches!(self, Self::Size | Self::SizeAndTimes)
    }

    pub fn of_times(self) -> bool {
        matches!(self, Self::Times | Self::SizeAndTimes)
    }

    /// The same of the times, and this of the size.
    pub fn with_size(self, doubtful: bool) -> Self {
        Self::new(doubtful, self.of_times())
    }

    /// The same of the size, and this of the times.
    pub fn with_times(self, doubtful: bool) -> Self {
        Self::new(self.of_size(), doubtful)
    }

    fn new(size: bool, times: bool) -> Self {
        match (size, times) {
            (false, false) => Self::Nothing,
            (true, false) => Self::Size,
            (false, true) => Self::Times,
            (true, true) => Self::SizeAndTimes,
        }
    }
}

/// What is known of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Inode {
    pub kind: FileKind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub rdev: u32,
    pub size: u64,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub pool: PoolId,
    /// Of a directory; a root is its own. Otherwise zero.
    pub parent: Gfid,
    /// How many extended attributes there are, so that a file without any needs no scan.
    pub xattrs: u32,
    /// Bytes of their names, each with its NUL.
    pub xattr_list_bytes: u32,
    pub doubt: Doubt,
    /// Of a symbolic link, else empty.
    pub target: Vec<u8>,
}

impl Inode {
    pub(super) fn attr(&self, gfid: Gfid) -> Attr {
        Attr {
            gfid,
            kind: self.kind,
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            nlink: self.nlink,
            rdev: self.rdev,
            size: self.size,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            pool: self.pool,
            has_xattrs: self.xattrs > 0,
        }
    }

    pub(super) fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// A directory with only itself in it.
    pub(super) fn directory(parent: Gfid, mode: u32, now: Timestamp) -> Self {
        Self {
            kind: FileKind::Directory,
            mode,
            uid: 0,
            gid: 0,
            nlink: 2,
            rdev: 0,
            size: 0,
            atime: now,
            mtime: now,
            ctime: now,
            pool: PoolId::new(0),
            parent,
            xattrs: 0,
            xattr_list_bytes: 0,
            doubt: Doubt::Nothing,
            target: Vec::new(),
        }
    }
}

/// Value of a directory entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Entry {
    /// The file's only name, with its inode.
    Inode(Gfid, Inode),
    /// A directory, or a file that has or had further names: the inode lies apart.
    Apart(Gfid),
}

/// Value of a file's own record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Node {
    /// The inode.
    Here(Inode),
    /// The inode lies beside the entry with this name in this directory.
    At(Gfid, Vec<u8>),
}

/// Where an inode lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In the file's own record.
    Apart,
    /// Beside its only name.
    Entry(Gfid, Vec<u8>),
}

/// An inode that was read, and where from.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub gfid: Gfid,
    pub inode: Inode,
    pub place: Place,
}

/// Value of a purge record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Purge {
    pub pool: PoolId,
    pub size: u64,
    pub probe: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubts_are_stored_as_the_flag_that_they_replace() {
        for (doubt, byte) in [(Doubt::Nothing, 0), (Doubt::Size, 1), (Doubt::Times, 2), (Doubt::SizeAndTimes, 3)] {
            assert_eq!(postcard::to_stdvec(&doubt).expect("encodes"), [byte]);
        }
        assert_eq!(postcard::to_stdvec(&true).expect("encodes"), [1]);
    }

    #[test]
    fn one_doubt_leaves_the_other() {
        for (size, times) in [(false, false), (false, true), (true, false), (true, true)] {
            let doubt = Doubt::Nothing.with_size(size).with_times(times);
            assert_eq!((doubt.of_size(), doubt.of_times()), (size, times));
            assert_eq!(doubt, Doubt::SizeAndTimes.with_times(times).with_size(size));
        }
    }
}
