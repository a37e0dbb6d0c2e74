//! Talk with the metadata service.
//!
//! Contract: a request is carried out once even when it is sent again after a lost connection or a
//! restart of the service: the pair (session, request number) identifies it, and the answer is kept
//! until the client says that it has it (`answered`). Times are the caller's; names are 1..=255
//! bytes without `/` and NUL; errors are POSIX errnos.

use crate::ids::{Epoch, Gfid, PoolId, SessionId};
use crate::lock::{LockClaim, LockOp, LockOwner, RangeLock};
use serde::{Deserialize, Serialize};

/// Longest name of a directory entry, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest target of a symbolic link, in bytes.
pub const SYMLINK_BYTES_MAX: usize = 4095;
/// Longest value of an extended attribute, in bytes.
pub const XATTR_BYTES_MAX: usize = 65_536;
/// Longest list of the names of a file's extended attributes, in bytes.
pub const XATTR_LIST_BYTES_MAX: usize = 65_536;
/// The attribute that a kernel asks for before every write, to drop it.
pub const SECURITY_CAPABILITY: &[u8] = b"security.capability";
/// The attribute of a POSIX ACL that says who may access a file; its format: `metadata::acl`.
pub const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute of the POSIX ACL that files made in a directory inherit.
pub const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";
/// Takes the place of a pool in [`NamespaceOp::BlobRoot`] for the hidden directory that holds the
/// volumes of all pools. No pool has this number: they count from 1.
pub const VOLUMES: PoolId = PoolId::new(u32::MAX);
/// Most links of a file.
pub const LINK_MAX: u32 = 65_000;

/// What a file is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum FileKind {
    /// Regular file.
    Regular,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Named pipe.
    Fifo,
    /// Unix socket.
    Socket,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
}

/// A time since 1970-01-01 UTC.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Timestamp {
    /// Seconds.
    pub secs: i64,
    /// Nanoseconds, below one thousand million.
    pub nanos: u32,
}

/// Attributes of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Attr {
    /// Which file.
    pub gfid: Gfid,
    /// What it is.
    pub kind: FileKind,
    /// Permission bits with suid, sgid and sticky: 0o7777.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Links; of a directory 2 + subdirectories.
    pub nlink: u32,
    /// Device number of a device file.
    pub rdev: u32,
    /// Length in bytes; of a directory the number of entries, of a link that of its target.
    pub size: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Where a regular file's data lies.
    pub pool: PoolId,
    /// When it was made; not known of files that an older version made.
    pub btime: Option<Timestamp>,
    /// What nobody may do to it.
    pub flags: FileFlags,
    /// It has extended attributes, POSIX ACLs among them. Of one that has none nobody need be asked
    /// for them.
    pub has_xattrs: bool,
    /// How far the size tells what a regular file takes on disk.
    pub footprint: Footprint,
}

/// How far the size of a regular file tells what it takes on disk. What comes later may only be
/// more than what came before, as a writer learns it.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub enum Footprint {
    /// Nobody knows: an older version made the file, or its writer died.
    #[default]
    Unknown,
    /// All of it holds data.
    Dense,
    /// There may be holes, or space that is reserved.
    Sparse,
    /// There may be reserved space behind the end, too.
    Beyond,
}

/// What nobody may do to a file or directory until root takes the flag away (chattr(1)).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FileFlags {
    /// Nothing changes: neither content, names, nor attributes.
    pub immutable: bool,
    /// Content, or names in a directory, may be added, and nothing else.
    pub append_only: bool,
}

impl FileFlags {
    /// Is none of them set?
    pub const fn is_empty(self) -> bool {
        !self.immutable && !self.append_only
    }

    /// May a file be opened so?
    pub const fn may_open(self, write: bool, append: bool) -> bool {
        !write || (!self.immutable && (append || !self.append_only))
    }
}

/// Who asks, for ownership of what is made, and when by its clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Now.
    pub now: Timestamp,
}

/// A lease: the right to cache (`Read`) or to write (`Write`) a file's data, size and mtime.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum LeaseMode {
    /// Many sessions at once.
    Read,
    /// One session only.
    Write,
}

/// A lease as it was granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Grant {
    /// What the session holds now.
    pub mode: LeaseMode,
    /// Greater than that of every grant before it, over restarts of the service too.
    pub token: u64,
    /// Of the newest map that the service or any session which spoke to it has: the lease is used
    /// only with one at least as new, for an older one may lead to shards that missed the last
    /// holder's writes.
    pub epoch: Epoch,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Whose.
    pub session: SessionId,
    /// The session's number for it: 1, 2, 3 ...
    pub number: u64,
    /// Answers to all requests up to here have arrived; their memory may go.
    pub answered: u64,
    /// Of the newest map by which the session may have sent anything to a shard.
    pub epoch: Epoch,
    /// Who asks.
    pub caller: Caller,
    /// What.
    pub op: NamespaceOp,
}

/// Changes of attributes; `None` leaves one as it is. ctime becomes the caller's now unless given.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SetAttr {
    /// New permission bits.
    pub mode: Option<u32>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New length: by the holder of the write lease only.
    pub size: Option<u64>,
    /// New access time.
    pub atime: Option<Timestamp>,
    /// New modification time.
    pub mtime: Option<Timestamp>,
    /// New change time.
    pub ctime: Option<Timestamp>,
    /// What the holder of the write lease knows of the file's space.
    pub footprint: Option<Footprint>,
    /// Beside a size or a modification time: later times may follow, as long as the session is
    /// alive. If it dies first, mtime and ctime become the moment at which that is noticed, unless
    /// they are later. Holds until a size or a modification time comes without it.
    pub times_follow: bool,
}

/// How a rename treats an existing target (`renameat2`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum RenameMode {
    /// Replace it.
    #[default]
    Replace,
    /// Fail with EEXIST.
    NoReplace,
    /// Swap the two.
    Exchange,
    /// Replace it, and leave a whiteout at the old name: a character device 0:0, by which overlayfs
    /// hides a name of the layer below.
    Whiteout,
    /// Fail with EEXIST, else leave a whiteout.
    WhiteoutNoReplace,
}

impl RenameMode {
    /// Does it leave a whiteout?
    pub const fn leaves_whiteout(self) -> bool {
        matches!(self, Self::Whiteout | Self::WhiteoutNoReplace)
    }
}

/// The operations of the namespace. `name` fields are bytes as POSIX has them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NamespaceOp {
    /// The entry of a name. Answer: `Attr`.
    Lookup {
        /// Directory.
        parent: Gfid,
        /// Name.
        name: Vec<u8>,
    },
    /// A file's attributes. Answer: `Attr`.
    GetAttr {
        /// Which.
        gfid: Gfid,
    },
    /// Changes attributes. Answer: `Attr`.
    SetAttr {
        /// Which.
        gfid: Gfid,
        /// How.
        set: SetAttr,
        /// The answer comes when the change, and all that was answered before, is on disk, as after
        /// `Sync`.
        sync: bool,
    },
    /// Makes a file of any kind but a link. Answer: `Attr`; with `open` it is open as after `Open`,
    /// answer: `Opened`. An existing name is EEXIST. A setgid directory hands down its group, and
    /// to directories the bit; one with a default ACL hands that down.
    Create {
        /// Directory.
        parent: Gfid,
        /// Name.
        name: Vec<u8>,
        /// What.
        kind: FileKind,
        /// Permission bits before the umask.
        mode: u32,
        /// What of them the maker's umask takes away, unless the directory has a default ACL.
        umask: u32,
        /// Of a device.
        rdev: u32,
        /// Target of a symbolic link, else empty.
        target: Vec<u8>,
        /// Where a regular file's data goes.
        pool: PoolId,
        /// Grant this lease and count the file as open by the session.
        open: Option<LeaseMode>,
    },
    /// Makes a regular file that has no name (`O_TMPFILE`), open as after `Open`. It goes when no
    /// session has it open any more, unless `Link` gives it a name before. Answer: `Opened`.
    CreateUnnamed {
        /// The directory whose group, and default ACL, it may inherit.
        parent: Gfid,
        /// Permission bits.
        mode: u32,
        /// Bits that are cleared of them, unless the directory has a default ACL.
        umask: u32,
        /// Where its data goes.
        pool: PoolId,
        /// The lease to be granted.
        open: LeaseMode,
        /// It may get a name (no `O_EXCL`).
        linkable: bool,
    },
    /// A further name for a file, or the first of one that was made without. Answer: `Attr`.
    Link {
        /// Which file; not a directory.
        gfid: Gfid,
        /// Directory.
        parent: Gfid,
        /// Name.
        name: Vec<u8>,
    },
    /// Removes a name that is not a directory. The file goes when no link and no opener is left.
    /// Answer: `Done`.
    Unlink {
        /// Directory.
        parent: Gfid,
        /// Name.
        name: Vec<u8>,
        /// If the name is removed, the session gives its lease on this file back, as with
        /// `ReturnLease`: so nobody has to ask for it when the file goes.
        gives: Option<Gfid>,
    },
    /// Removes an empty directory. Answer: `Done`.
    Rmdir {
        /// Directory that holds it.
        parent: Gfid,
        /// Name.
        name: Vec<u8>,
    },
    /// Moves a name, as one transaction. Answer: `Done`.
    Rename {
        /// From which directory.
        parent: Gfid,
        /// From which name.
        name: Vec<u8>,
        /// To which directory.
        new_parent: Gfid,
        /// To which name.
        new_name: Vec<u8>,
        /// What of an existing target.
        mode: RenameMode,
    },
    /// Target of a symbolic link. Answer: `Bytes`.
    ReadLink {
        /// Which.
        gfid: Gfid,
    },
    /// Entries in name order with their attributes, without `.` and `..`. Answer: `Entries`.
    ReadDir {
        /// Which directory.
        gfid: Gfid,
        /// The last name already seen; empty at the start.
        after: Vec<u8>,
        /// How many entries at most, 1..=4096.
        limit: u32,
    },
    /// The parent of a directory, for `..`. Answer: `Attr`.
    Parent {
        /// Which directory.
        gfid: Gfid,
    },
    /// The session opens the file, and wants a lease on it. Waits for its recall from others.
    /// Answer: `Opened`.
    Open {
        /// Which.
        gfid: Gfid,
        /// The lease wanted; a session's lease is the strongest that it asked for and did not
        /// return.
        lease: LeaseMode,
    },
    /// The session has closed the file (its last handle). Its lease stays until it returns it.
    /// Answer: `Done`.
    Close {
        /// Which.
        gfid: Gfid,
    },
    /// Gives a lease back or down to `keep`, with the size and times that only its holder knew.
    /// Answer: `Done`.
    ReturnLease {
        /// Which.
        gfid: Gfid,
        /// What the session keeps.
        keep: Option<LeaseMode>,
        /// The last changes of attributes.
        set: SetAttr,
    },
    /// After a restart of the service: the session holds these leases and has these files open.
    /// Answer: `Kept`.
    Reclaim {
        /// What it holds.
        held: Vec<Held>,
        /// Byte-range locks.
        locks: Vec<LockClaim>,
        /// The session is a mount, as after `Mount`.
        mount: bool,
        /// It wants to know what became of the commits of this start and those after it.
        since: u64,
        /// The start that answered the first request; 0 in the first. Another one takes none for
        /// the last.
        begun: u64,
        /// Nothing follows in a further request.
        last: bool,
    },
    /// The session is a mount: its kernel caches names and attributes. Before it is answered,
    /// nobody else may count on being the only one. Answer: `Done`.
    Mount,
    /// About byte-range locks. Answer: see [`LockOp`].
    Lock {
        /// Which file.
        gfid: Gfid,
        /// Whose.
        owner: LockOwner,
        /// What.
        op: LockOp,
    },
    /// Sets the flags of a file or directory; who may is for the client's kernel to decide. Answer:
    /// `Attr`.
    SetFlags {
        /// Which.
        gfid: Gfid,
        /// The new flags.
        flags: FileFlags,
    },
    /// Value of an extended attribute. Answer: `Bytes`; ENODATA.
    GetXattr {
        /// Which.
        gfid: Gfid,
        /// Name.
        name: Vec<u8>,
    },
    /// Sets one. Answer: `Attr`; EEXIST or ENODATA by mode. [`ACL_ACCESS`] changes the permission
    /// bits, and is no attribute if it says no more than they do; EINVAL if it is not well formed.
    /// So is [`ACL_DEFAULT`], which only directories have (EACCES).
    SetXattr {
        /// Which.
        gfid: Gfid,
        /// Name.
        name: Vec<u8>,
        /// Value.
        value: Vec<u8>,
        /// Some(true): must be new (XATTR_CREATE); Some(false): must exist (XATTR_REPLACE). Of ACLs
        /// without effect, as in Linux.
        create: Option<bool>,
        /// [`ACL_ACCESS`] takes set-group-ID away: who sets it is not of the file's group.
        kill_sgid: bool,
    },
    /// Names, each ended by NUL. Answer: `Bytes`.
    ListXattr {
        /// Which.
        gfid: Gfid,
    },
    /// Removes one. Answer: `Attr`; ENODATA, but not of ACLs.
    RemoveXattr {
        /// Which.
        gfid: Gfid,
        /// Name.
        name: Vec<u8>,
    },
    /// Everything answered before is on disk when this is answered (fsync). Answer: `Done`.
    Sync,
    /// Number of files. Answer: `Count`.
    StatFs,
    /// The hidden directory that holds a pool's named blobs, or the volumes, made if missing.
    /// Answer: `Attr`.
    BlobRoot {
        /// Which pool, or [`VOLUMES`].
        pool: PoolId,
    },
    /// What a recall of leases on names asked for is forgotten. Answer: `Done`.
    ReturnNames {
        /// The recall.
        recall: NamesRecall,
    },
}

impl NamespaceOp {
    /// May a session ask this after another one that died with it unanswered? True for what changes
    /// nothing.
    pub const fn is_question(&self) -> bool {
        matches!(
            self,
            Self::Lookup { .. }
                | Self::GetAttr { .. }
                | Self::Parent { .. }
                | Self::ReadLink { .. }
                | Self::ReadDir { .. }
                | Self::Lock { op: LockOp::Test(_) | LockOp::Who(_), .. }
                | Self::GetXattr { .. }
                | Self::ListXattr { .. }
                | Self::StatFs
        )
    }

    /// The directories in which the operation gives or takes names.
    pub fn changed_dirs(&self) -> impl Iterator<Item = Gfid> + use<> {
        let (first, second) = match self {
            Self::Create { parent, .. }
            | Self::Link { parent, .. }
            | Self::Unlink { parent, .. }
            | Self::Rmdir { parent, .. } => (Some(*parent), None),
            Self::Rename { parent, new_parent, .. } => (Some(*parent), Some(*new_parent)),
            _ => (None, None),
        };
        first.into_iter().chain(second.filter(|_| first != second))
    }
}

/// A directory entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirEntry {
    /// Name.
    pub name: Vec<u8>,
    /// Attributes of what it names.
    pub attr: Attr,
    /// Another session holds its write lease: size and times may lag, so they must not be cached.
    pub written_elsewhere: bool,
}

/// What a session holds of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Which file.
    pub gfid: Gfid,
    /// The lease, and the fencing token of its grant.
    pub lease: Option<(LeaseMode, u64)>,
    /// The service counts it as open by the session.
    pub open: bool,
}

/// A commit of the service's store. What is carried out by one is in the store as a whole or not at
/// all, and not without all before it.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Commit {
    /// How often the service had been started; never the same for two starts, whatever was lost
    /// between them.
    pub start: u64,
    /// How many commits there were since.
    pub number: u64,
}

/// The answer to a request. The service keeps some in its store: variants are added at the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Attributes.
    Attr(Attr),
    /// Entries, and whether the directory ends with them.
    Entries {
        /// In name order.
        entries: Vec<DirEntry>,
        /// None follows.
        end: bool,
    },
    /// Bytes.
    Bytes(Vec<u8>),
    /// A number.
    Count(u64),
    /// The file is open.
    Opened {
        /// Its attributes, with the size as the last holder returned it.
        attr: Attr,
        /// The lease granted; `None` for a file of a kind that has none.
        grant: Option<Grant>,
    },
    /// The lock in the way, if there is one.
    Lock(Option<RangeLock>),
    /// Done.
    Done,
    /// A POSIX errno.
    Errno(i32),
    /// The session is dead: open a new one.
    Fenced,
    /// The service has just started and waits for leases to be reclaimed, or a recall takes long:
    /// ask again shortly, with the same number.
    TryAgain,
    /// To `Reclaim`.
    Kept {
        /// The last commit that is left of each start in question, this one's last. Those that came
        /// later, and whole starts that are not named, were lost with the power of the service's
        /// machine.
        commits: Vec<Commit>,
        /// Files of which the session has no lease any more, or which are gone.
        refused: Vec<Gfid>,
    },
    /// The session whose lock is in the way, if there is one.
    Holder(Option<SessionId>),
}

/// A reply as it travels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The reply.
    pub reply: Reply,
    /// For this time, counted from when it asked, the session is the only mount: names and
    /// attributes may be cached without asking. Milliseconds; 0: ask every time.
    pub alone_ms: u32,
    /// The term in which it is. Names and attributes learned in one are not true in another:
    /// another mount was there in between, or the service has changed something by itself. Terms
    /// grow, also over restarts of the service.
    pub alone_term: u64,
    /// One of several mounts may count for this time, counted from when it asked, on its leases on
    /// names and attributes. Milliseconds; 0: no longer than it was told before.
    pub names_ms: u32,
    /// The session has a lease on everything that the reply tells, but for entries that are
    /// `written_elsewhere`.
    pub covered: bool,
    /// For the only mount: the attributes of the directories that the operation changed, as they
    /// are now.
    pub dirs: Vec<Attr>,
    /// The last commit: what the answer tells is in it, or in one before it.
    pub commit: Commit,
    /// The last commit that survives a loss of power.
    pub durable: Commit,
}

impl Answer {
    /// A reply that says nothing of the service.
    pub fn bare(reply: Reply) -> Self {
        let (commit, durable) = Default::default();
        let (alone_ms, alone_term, names_ms, covered) = Default::default();
        let dirs = Vec::new();
        Self { reply, alone_ms, alone_term, names_ms, covered, dirs, commit, durable }
    }
}

/// The service asks a session to give a lease back, down to `keep`; the session answers with
/// `ReturnLease` when its writes on the file are stable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recall {
    /// Which file.
    pub gfid: Gfid,
    /// What the session may keep.
    pub keep: Option<LeaseMode>,
}

/// The service asks a session to forget what it knows of a file, or of a directory and its names:
/// it is about to change. The session answers with [`NamespaceOp::ReturnNames`] at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamesRecall {
    /// Of which file or directory; `None`: of all.
    pub gfid: Option<Gfid>,
    /// Tells recalls apart.
    pub token: u64,
}
