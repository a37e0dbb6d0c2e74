//! Records of inodes and directory entries. Field order is the format: a change is a new format
//! version.
//!
//! What versions 4 and 5 added stands behind the inode, in variants of its own: records of older
//! versions are read as they are, and written as they were while nothing more is known of their
//! files.

use protocol::namespace::{Attr, FileFlags, FileKind, Footprint, Timestamp};
use protocol::{Gfid, PoolId};
use serde::{Deserialize, Serialize};

/// What of an inode may not be so. A bit for each, in the place of what was a flag for the size
/// alone.
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
    /// Of a directory; a root is its own. Of a file that was made without a name and may get one:
    /// where it was made. Otherwise zero.
    pub parent: Gfid,
    /// How many extended attributes there are, so that a file without any needs no scan.
    pub xattrs: u32,
    /// Bytes of their names, each with its NUL.
    pub xattr_list_bytes: u32,
    pub doubt: Doubt,
    /// Of a symbolic link, else empty.
    pub target: Vec<u8>,
    /// When it was made, if that is known. In the record it stands beside the inode.
    #[serde(skip)]
    pub btime: Option<Timestamp>,
    /// What nobody may do to it. In the record it stands beside the inode.
    #[serde(skip)]
    pub flags: FileFlags,
    /// Of a regular file, what its size tells. In the record it stands beside the inode.
    #[serde(skip)]
    pub footprint: Footprint,
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
            btime: self.btime,
            flags: self.flags,
            has_xattrs: self.xattrs > 0,
            footprint: self.footprint,
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
            btime: Some(now),
            flags: FileFlags::default(),
            footprint: Footprint::Unknown,
        }
    }
}

/// Value of a directory entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "StoredEntry", into = "StoredEntry")]
pub(super) enum Entry {
    /// The file's only name, with its inode.
    Inode(Gfid, Inode),
    /// A directory, or a file that has or had further names: the inode lies apart.
    Apart(Gfid),
}

/// Value of a file's own record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "StoredNode", into = "StoredNode")]
pub(super) enum Node {
    /// The inode.
    Here(Inode),
    /// The inode lies beside the entry with this name in this directory.
    At(Gfid, Vec<u8>),
}

/// What belongs to an inode since format version 4.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Addition {
    btime: Option<Timestamp>,
    flags: FileFlags,
}

/// An [`Entry`] as it is stored.
#[derive(Serialize, Deserialize)]
enum StoredEntry {
    /// Of a file that was made before format version 4.
    Inode(Gfid, Inode),
    Apart(Gfid),
    /// Of a file whose footprint is not known.
    Whole(Gfid, Inode, Addition),
    Measured(Gfid, Inode, Addition, Footprint),
}

/// A [`Node`] as it is stored.
#[derive(Serialize, Deserialize)]
enum StoredNode {
    /// Of a file that was made before format version 4.
    Here(Inode),
    At(Gfid, Vec<u8>),
    /// Of a file whose footprint is not known.
    Whole(Inode, Addition),
    Measured(Inode, Addition, Footprint),
}

impl Inode {
    fn addition(&self) -> Option<Addition> {
        let addition = self.since_version_4();
        (addition.btime.is_some() || !addition.flags.is_empty()).then_some(addition)
    }

    fn since_version_4(&self) -> Addition {
        Addition { btime: self.btime, flags: self.flags }
    }

    fn with(self, Addition { btime, flags }: Addition) -> Self {
        Self { btime, flags, ..self }
    }
}

impl From<StoredEntry> for Entry {
    fn from(stored: StoredEntry) -> Self {
        match stored {
            StoredEntry::Inode(gfid, inode) => Self::Inode(gfid, inode),
            StoredEntry::Apart(gfid) => Self::Apart(gfid),
            StoredEntry::Whole(gfid, inode, addition) => Self::Inode(gfid, inode.with(addition)),
            StoredEntry::Measured(gfid, inode, addition, footprint) => {
                Self::Inode(gfid, Inode { footprint, ..inode.with(addition) })
            }
        }
    }
}

impl From<Entry> for StoredEntry {
    fn from(entry: Entry) -> Self {
        match entry {
            Entry::Apart(gfid) => Self::Apart(gfid),
            Entry::Inode(gfid, inode) if inode.footprint != Footprint::Unknown => {
                let (addition, footprint) = (inode.since_version_4(), inode.footprint);
                Self::Measured(gfid, inode, addition, footprint)
            }
            Entry::Inode(gfid, inode) => match inode.addition() {
                Some(addition) => Self::Whole(gfid, inode, addition),
                None => Self::Inode(gfid, inode),
            },
        }
    }
}

impl From<StoredNode> for Node {
    fn from(stored: StoredNode) -> Self {
        match stored {
            StoredNode::Here(inode) => Self::Here(inode),
            StoredNode::At(parent, name) => Self::At(parent, name),
            StoredNode::Whole(inode, addition) => Self::Here(inode.with(addition)),
            StoredNode::Measured(inode, addition, footprint) => {
                Self::Here(Inode { footprint, ..inode.with(addition) })
            }
        }
    }
}

impl From<Node> for StoredNode {
    fn from(node: Node) -> Self {
        match node {
            Node::At(parent, name) => Self::At(parent, name),
            Node::Here(inode) if inode.footprint != Footprint::Unknown => {
                let (addition, footprint) = (inode.since_version_4(), inode.footprint);
                Self::Measured(inode, addition, footprint)
            }
            Node::Here(inode) => match inode.addition() {
                Some(addition) => Self::Whole(inode, addition),
                None => Self::Here(inode),
            },
        }
    }
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
        for (doubt, byte) in
            [(Doubt::Nothing, 0), (Doubt::Size, 1), (Doubt::Times, 2), (Doubt::SizeAndTimes, 3)]
        {
            assert_eq!(postcard::to_stdvec(&doubt).expect("encodes"), [byte]);
        }
        assert_eq!(postcard::to_stdvec(&true).expect("encodes"), [1]);
    }

    #[test]
    fn records_of_older_versions_are_read_and_kept() {
        let (gfid, now) = (Gfid::of_inode(7), Timestamp { secs: 5, nanos: 6 });
        let young = Inode::directory(Gfid::ROOT, 0o755, now);
        let old = Inode { btime: None, ..young.clone() };
        let encode = |variant: u8, fields: &[u8]| [&[variant], fields].concat();
        let (old_entry, old_node) = (postcard::to_stdvec(&(gfid, &old)), postcard::to_stdvec(&old));
        let old_entry = encode(0, &old_entry.expect("encodes"));
        let old_node = encode(0, &old_node.expect("encodes"));
        assert_eq!(
            postcard::to_stdvec(&Entry::Inode(gfid, old.clone())).expect("encodes"),
            old_entry
        );
        assert_eq!(
            postcard::from_bytes::<Entry>(&old_entry).expect("decodes"),
            Entry::Inode(gfid, old.clone())
        );
        assert_eq!(postcard::from_bytes::<Node>(&old_node).expect("decodes"), Node::Here(old));
        let dense = Inode { footprint: Footprint::Dense, ..young.clone() };
        for entry in
            [Entry::Inode(gfid, young.clone()), Entry::Inode(gfid, dense), Entry::Apart(gfid)]
        {
            let stored = postcard::to_stdvec(&entry).expect("encodes");
            assert_eq!(postcard::from_bytes::<Entry>(&stored).expect("decodes"), entry);
        }
        let flags = FileFlags { immutable: true, append_only: false };
        for node in [
            Node::Here(Inode { flags, btime: None, ..young.clone() }),
            Node::Here(Inode { footprint: Footprint::Beyond, ..young.clone() }),
            Node::Here(young),
            Node::At(gfid, b"name".to_vec()),
        ] {
            let stored = postcard::to_stdvec(&node).expect("encodes");
            assert_eq!(postcard::from_bytes::<Node>(&stored).expect("decodes"), node);
        }
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
