//! The tree of files: what each operation of [`protocol::namespace`] does, over any [`Store`].
//!
//! Contract: an operation is carried out completely or not at all, and is seen by the next one at
//! once. It is durable when [`Namespace::commit`] has returned; several operations share one
//! commit. Every file has a gfid that is never reused, made of an inode number dealt in turn, below
//! a bound that is on disk: the numbers of files that were lost with the machine's power may be in
//! use by their makers. Permissions are not checked here; leases are not known here.
//!
//! # Records
//!
//! All values are postcard. `gfid` is 16 bytes, numbers 8 (a pool 4), big-endian; names are bytes.
//!
//! | key | value | meaning |
//! |---|---|---|
//! | `d` parent-gfid name | `Entry` | a directory entry. A file with one name has its inode here, so a listing with attributes is one scan; the inodes of directories and of files that have or had more names lie apart |
//! | `i` gfid | `Node` | the inode itself, or the directory and name beside which it lies |
//! | `x` gfid name | bytes | an extended attribute; of ACLs see [`crate::acl`] |
//! | `o` gfid | `()` | an orphan: no link is left, but it was in use when the last one went; or it was made without one |
//! | `p` gfid | `Purge` | nobody can reach the file: its objects are to be deleted |
//! | `w` gfid | session, `u64` | holds the file's write lease, with this fencing token |
//! | `s` gfid | `()` | a writer died: the size is to be recovered from the data |
//! | `b` pool | gfid | hidden root of a pool's named blobs |
//! | `r` session number | `Reply` | an answer kept until the session has it |
//! | `c` session | `()` | the session has spoken to the service |
//! | `mformat` | u32 | format version of all records |
//! | `mstarts` | `u64` | how often the service was started |
//! | `mcommit` | `Commit` | the last commit |
//! | `k` start | `u64` | how many commits are left of a start before this one; never removed |
//! | `mcluster` | `ClusterId` | the cluster that this namespace belongs to |
//! | `midentity` | `u128` | drawn at random: tells this namespace from any other |
//! | `minodes` | u64 | inode numbers below are dealt or reserved |
//! | `mfiles` | u64 | number of files and directories, without roots |
//!
//! A lookup is one get (two for a directory), a create two gets and three puts, a getattr two gets.

mod acls;
mod check;
mod create;
mod gone;
mod inode;
mod keys;
mod overlay;
mod remove;
mod rename;
mod retained;
mod setattr;
#[cfg(test)]
mod tests;

pub use remove::{PurgeEntry, SizeRecovery};
pub use retained::{Retained, Writer};

use crate::acl::AclKind;
use crate::store::{Persist, Store, StoreError};
use inode::{Entry, Found, Inode, Node, Place};
use overlay::{Overlay, corrupt};
use protocol::namespace::{
    Attr, Caller, Commit, DirEntry, FileKind, NAME_BYTES_MAX, NamespaceOp, Reply, Timestamp,
};
use protocol::{ClusterId, Gfid, PoolId};
use std::ops::ControlFlow;

/// Version of the records' format.
pub const FORMAT_VERSION: u32 = 5;
/// Since then an inode may be in doubt of its times, and writers are noted with their tokens.
const FORMAT_VERSION_1: u32 = 1;
/// Since then writers are noted with their tokens.
const FORMAT_VERSION_2: u32 = 2;
/// Since then inodes, and the answers that are kept, tell when files were made and whether they
/// have extended attributes, and there may be ACLs.
const FORMAT_VERSION_3: u32 = 3;
/// Since then inodes, and the answers that are kept, tell how far a size tells what a file takes.
const FORMAT_VERSION_4: u32 = 4;
/// Inode numbers reserved at a time, when half of the last ones are dealt. A restart skips twice as
/// many at most.
const INODES_RESERVED: u64 = 1 << 17;
/// Greatest inode number and number of files that a store may begin with: at a million new files a
/// second it takes 146,000 years to come so far.
const NUMBER_MAX: u64 = u64::MAX / 4;
/// Entries in one answer to a listing, at most.
const LIST_ENTRIES_MAX: u32 = 4096;
/// Bytes of records in one answer to a listing, about: it stays below a frame's limit and the
/// owner's turn short.
const LIST_BYTES_MAX: usize = 256 << 10;

/// Tells whether a file without links must be kept, because a session has it open or may still
/// write it.
pub type InUse<'a> = &'a dyn Fn(Gfid) -> bool;

/// Why an operation did not happen.
#[derive(Debug)]
enum OpError {
    /// For the caller.
    Errno(i32),
    /// After the next sync it may.
    NotYet,
    /// The store failed.
    Store(StoreError),
}

impl From<StoreError> for OpError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

type OpResult<T> = Result<T, OpError>;

fn errno<T>(number: i32) -> OpResult<T> {
    Err(OpError::Errno(number))
}

/// EPERM, unless it is so.
fn permitted(it_is: bool) -> OpResult<()> {
    if it_is { Ok(()) } else { errno(libc::EPERM) }
}

/// Who asks, and what else an operation needs to know.
#[derive(Clone, Copy)]
struct Context<'a> {
    caller: Caller,
    in_use: InUse<'a>,
}

impl Context<'_> {
    fn now(&self) -> Timestamp {
        self.caller.now
    }
}

/// Numbers kept in memory and written with the next commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counters {
    inode_next: u64,
    inode_reserved: u64,
    /// The reservation of numbers up to here is on disk.
    inode_durable: u64,
    /// The commit that brings the last reservation.
    reserved_in: Commit,
    files: u64,
    /// Entries in the purge queue; not stored.
    purges: u64,
    /// No purge entry has a smaller gfid; spares the scan of those already deleted. Not stored.
    purge_from: Gfid,
    /// Files whose size is to be recovered; not stored.
    unsized_files: u64,
}

/// The tree of files over a store.
pub struct Namespace<S> {
    overlay: Overlay<S>,
    counters: Counters,
    files_stored: u64,
    last_commit: Commit,
    gone: gone::GoneDirectories,
}

impl<S: Store> Namespace<S> {
    /// Opens the namespace of a store, and counts that, durably; an empty store becomes a tree with
    /// only the root, made `now`. Waits for the disk.
    ///
    /// # Errors
    /// When the store cannot be read or written, is of another format or holds something else.
    pub fn open(store: S, now: Timestamp) -> Result<Self, StoreError> {
        let mut overlay = Overlay::new(store);
        match overlay.store().get(keys::FORMAT)? {
            None => Self::format(&mut overlay, now)?,
            Some(raw) => match postcard::from_bytes::<u32>(&raw) {
                Ok(FORMAT_VERSION) => {}
                Ok(FORMAT_VERSION_1 | FORMAT_VERSION_2) => {
                    Self::note_tokens(&mut overlay)?;
                    Self::forget_old_answers(&mut overlay)?;
                }
                Ok(FORMAT_VERSION_3 | FORMAT_VERSION_4) => Self::forget_old_answers(&mut overlay)?,
                Ok(other) => {
                    return Err(StoreError::Format {
                        found: other.to_string(),
                        expected: FORMAT_VERSION,
                    });
                }
                Err(_) => {
                    return Err(StoreError::Format {
                        found: format!("{raw:02x?}"),
                        expected: FORMAT_VERSION,
                    });
                }
            },
        }
        let number = |key: &[u8]| match overlay.get::<u64>(key)? {
            Some(number) if number <= NUMBER_MAX => Ok(number),
            Some(number) => Err(corrupt(key, format!("{number} is beyond {NUMBER_MAX}"))),
            None => Err(corrupt(key, "missing")),
        };
        let (inode_next, files) = (number(keys::INODES)?, number(keys::FILES)?);
        let purges = overlay.keys(&[keys::PURGE])?;
        let counters = Counters {
            inode_next,
            inode_reserved: inode_next,
            inode_durable: inode_next,
            reserved_in: Commit::default(),
            files,
            purges: purges.len() as u64,
            purge_from: purges
                .first()
                .and_then(|key| keys::gfid_of(key))
                .unwrap_or(Gfid::new(u128::MAX)),
            unsized_files: overlay.keys(&[keys::UNSIZED])?.len() as u64,
        };
        let (last_commit, gone) = (Commit::default(), gone::GoneDirectories::default());
        let mut namespace = Self { overlay, counters, files_stored: files, last_commit, gone };
        namespace.start()?;
        Ok(namespace)
    }

    /// Counts a start. What comes of it is told to nobody before it is on disk: were it lost with
    /// the machine's power, the next start would give the same fencing tokens, inode numbers and
    /// commits once more.
    fn start(&mut self) -> Result<(), StoreError> {
        self.last_commit.start = self.count_start()?;
        self.reserve();
        self.commit()?;
        self.sync()
    }

    /// Brings what was committed to the disk, and waits for that.
    ///
    /// # Errors
    /// As [`Persist::persist`].
    pub fn sync(&mut self) -> Result<(), StoreError> {
        self.persister().persist()?;
        self.persisted(self.last_commit);
        Ok(())
    }

    fn format(overlay: &mut Overlay<S>, now: Timestamp) -> Result<(), StoreError> {
        let mut empty = true;
        overlay.store().scan(&[], &[u8::MAX], &mut |_, _| {
            empty = false;
            ControlFlow::Break(())
        })?;
        if !empty {
            return Err(StoreError::Format { found: "none".into(), expected: FORMAT_VERSION });
        }
        overlay.put(keys::FORMAT.to_vec(), &FORMAT_VERSION);
        overlay.put(keys::INODES.to_vec(), &(Gfid::ROOT.unique() + 1));
        overlay.put(keys::FILES.to_vec(), &0u64);
        let root = Inode::directory(Gfid::ROOT, 0o755, now);
        overlay.put(keys::of_gfid(keys::NODE, Gfid::ROOT), &Node::Here(root));
        overlay.commit()
    }

    /// The cluster that the namespace was bound to, if it was.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn cluster(&self) -> Result<Option<ClusterId>, StoreError> {
        self.overlay.get(keys::CLUSTER)
    }

    /// What tells the namespace from any other, if it was drawn.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn identity(&self) -> Result<Option<u128>, StoreError> {
        self.overlay.get(keys::IDENTITY)
    }

    /// Draws it, with the next commit.
    pub fn set_identity(&mut self, identity: u128) {
        self.overlay.put(keys::IDENTITY.to_vec(), &identity);
    }

    /// Binds the namespace to a cluster, with the next commit.
    pub fn bind_cluster(&mut self, cluster: ClusterId) {
        self.overlay.put(keys::CLUSTER.to_vec(), &cluster);
    }

    /// Carries out an operation; a failure for the caller is [`Reply::Errno`]. `in_use` says which
    /// files must outlive their last link. The lease part of `Create` and the operations on leases
    /// are the service's: here they are EINVAL.
    ///
    /// # Errors
    /// When the store fails. A damaged record is logged and answered with EIO instead.
    pub fn execute(
        &mut self,
        caller: &Caller,
        in_use: InUse<'_>,
        op: &NamespaceOp,
    ) -> Result<Reply, StoreError> {
        let ctx = Context { caller: *caller, in_use };
        self.atomically(|this| this.dispatch(&ctx, op))
    }

    /// Runs a change so that it happens completely or not at all.
    fn atomically(
        &mut self,
        change: impl FnOnce(&mut Self) -> OpResult<Reply>,
    ) -> Result<Reply, StoreError> {
        self.overlay.begin();
        let before = self.counters;
        let failure = match change(self) {
            Ok(reply) => return Ok(reply),
            Err(failure) => failure,
        };
        self.overlay.rollback();
        self.counters = before;
        match failure {
            OpError::Errno(number) => Ok(Reply::Errno(number)),
            OpError::NotYet => Ok(Reply::TryAgain),
            OpError::Store(error @ StoreError::Corrupt { .. }) => {
                tracing::error!(%error, "operation failed");
                Ok(Reply::Errno(libc::EIO))
            }
            OpError::Store(error) => Err(error),
        }
    }

    fn dispatch(&mut self, ctx: &Context<'_>, op: &NamespaceOp) -> OpResult<Reply> {
        match op {
            NamespaceOp::Lookup { parent, name } => self.lookup(*parent, name).map(Reply::Attr),
            NamespaceOp::GetAttr { gfid } => match (self.load(*gfid)?, self.gone.get(*gfid)) {
                (None, Some(gone)) => Ok(Reply::Attr(gone)),
                (Some(found), _) => Ok(Reply::Attr(found.attr())),
                (None, None) => errno(libc::ESTALE),
            },
            NamespaceOp::SetAttr { gfid, set, .. } => {
                self.set_attr_as_user(ctx.now(), *gfid, set).map(Reply::Attr)
            }
            NamespaceOp::Create {
                parent,
                name,
                kind,
                mode,
                umask,
                rdev,
                target,
                pool,
                open: _,
            } => {
                let (kind, mode, umask, rdev, pool) = (*kind, *mode, *umask, *rdev, *pool);
                let new = create::New { kind, mode, umask, rdev, target, pool };
                self.create(ctx, *parent, name, &new).map(Reply::Attr)
            }
            NamespaceOp::CreateUnnamed { parent, mode, umask, pool, open: _, linkable } => {
                let (kind, mode, umask, pool) = (FileKind::Regular, *mode, *umask, *pool);
                let new = create::New { kind, mode, umask, rdev: 0, target: &[], pool };
                self.create_unnamed(ctx, *parent, &new, *linkable).map(Reply::Attr)
            }
            NamespaceOp::Link { gfid, parent, name } => {
                self.link(ctx, *gfid, *parent, name).map(Reply::Attr)
            }
            NamespaceOp::Unlink { parent, name, gives: _ } => self.unlink(ctx, *parent, name),
            NamespaceOp::Rmdir { parent, name } => self.rmdir(ctx, *parent, name),
            NamespaceOp::Rename { parent, name, new_parent, new_name, mode } => {
                self.rename(ctx, (*parent, name), (*new_parent, new_name), *mode)
            }
            NamespaceOp::ReadLink { gfid } => self.read_link(*gfid),
            NamespaceOp::ReadDir { gfid, after, limit } => self.read_dir(*gfid, after, *limit),
            NamespaceOp::Parent { gfid } => self.parent(*gfid),
            NamespaceOp::SetFlags { gfid, flags } => {
                self.set_flags(ctx, *gfid, *flags).map(Reply::Attr)
            }
            NamespaceOp::GetXattr { gfid, name } => self.get_xattr(*gfid, name),
            NamespaceOp::SetXattr { gfid, name, value, create, kill_sgid } => {
                match AclKind::of_name(name) {
                    Some(kind) => self.set_acl(ctx, *gfid, kind, value, *kill_sgid),
                    None => self.set_xattr(ctx, *gfid, name, value, *create),
                }
            }
            NamespaceOp::ListXattr { gfid } => self.list_xattr(*gfid),
            NamespaceOp::RemoveXattr { gfid, name } => self.remove_xattr(ctx, *gfid, name),
            NamespaceOp::StatFs => Ok(Reply::Count(self.counters.files)),
            NamespaceOp::BlobRoot { pool } => self.blob_root(ctx, *pool),
            NamespaceOp::Open { .. }
            | NamespaceOp::Close { .. }
            | NamespaceOp::ReturnLease { .. }
            | NamespaceOp::ReturnNames { .. }
            | NamespaceOp::Reclaim { .. }
            | NamespaceOp::Mount
            | NamespaceOp::Lock { .. }
            | NamespaceOp::Sync => errno(libc::EINVAL),
        }
    }

    /// Makes everything so far survive the death of the process. On disk it is once the persister
    /// has run after this.
    ///
    /// # Errors
    /// When the store fails: what was carried out since the last commit is then unknown.
    pub fn commit(&mut self) -> Result<(), StoreError> {
        if self.counters.files != self.files_stored {
            self.files_stored = self.counters.files;
            self.overlay.put(keys::FILES.to_vec(), &self.files_stored);
        }
        if self.overlay.pending() > 0 {
            self.last_commit = self.next_commit();
            self.overlay.put(keys::COMMIT.to_vec(), &self.last_commit);
        }
        self.overlay.commit()
    }

    /// The last commit that was made, or failed.
    pub fn last_commit(&self) -> Commit {
        self.last_commit
    }

    /// The one that brings what is changed now.
    fn next_commit(&self) -> Commit {
        Commit { number: self.last_commit.number + 1, ..self.last_commit }
    }

    /// Are inode numbers reserved that may be dealt after the next sync only?
    pub fn awaits_sync(&self) -> bool {
        self.counters.inode_durable < self.counters.inode_reserved
    }

    /// Commits up to this one are on disk: the persister began after it, and has run.
    pub fn persisted(&mut self, upto: Commit) {
        let counters = &mut self.counters;
        if counters.reserved_in <= upto {
            counters.inode_durable = counters.inode_reserved;
        }
    }

    /// How many records wait for the next commit.
    pub fn uncommitted(&self) -> usize {
        self.overlay.pending()
    }

    /// What brings commits to disk, for a thread of its own.
    pub fn persister(&self) -> Box<dyn Persist> {
        self.overlay.store().persister()
    }

    /// Attributes of a file, if it exists.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn attr(&self, gfid: Gfid) -> Result<Option<Attr>, StoreError> {
        Ok(self.load(gfid)?.map(|found| found.attr()))
    }

    /// The file that a name stands for, if there is one.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn resolve(&self, parent: Gfid, name: &[u8]) -> Result<Option<Gfid>, StoreError> {
        Ok(match self.overlay.get(&keys::of_name(keys::ENTRY, parent, name))? {
            Some(Entry::Inode(gfid, _) | Entry::Apart(gfid)) => Some(gfid),
            None => None,
        })
    }

    /// Reads an inode.
    fn load(&self, gfid: Gfid) -> Result<Option<Found>, StoreError> {
        let key = keys::of_gfid(keys::NODE, gfid);
        match self.overlay.get(&key)? {
            None => Ok(None),
            Some(Node::Here(inode)) => Ok(Some(Found { gfid, inode, place: Place::Apart })),
            Some(Node::At(parent, name)) => {
                match self.overlay.get(&keys::of_name(keys::ENTRY, parent, &name))? {
                    Some(Entry::Inode(there, inode)) if there == gfid => {
                        Ok(Some(Found { gfid, inode, place: Place::Entry(parent, name) }))
                    }
                    _ => Err(corrupt(&key, "its directory entry does not hold it")),
                }
            }
        }
    }

    /// Reads an inode that the caller believes to exist.
    fn existing(&self, gfid: Gfid) -> OpResult<Found> {
        self.load(gfid)?.map_or_else(|| errno(libc::ESTALE), Ok)
    }

    /// Reads a directory that may get or lose entries.
    fn directory(&self, gfid: Gfid) -> OpResult<Found> {
        let found = match (self.load(gfid)?, self.gone.get(gfid)) {
            (Some(found), _) => found,
            (None, Some(_)) => return errno(libc::ENOENT),
            (None, None) => return errno(libc::ESTALE),
        };
        if !found.inode.is_dir() {
            return errno(libc::ENOTDIR);
        }
        if found.inode.nlink == 0 {
            return errno(libc::ENOENT);
        }
        Ok(found)
    }

    /// Reads what a name stands for.
    fn entry(&self, parent: Gfid, name: &[u8]) -> Result<Option<Found>, StoreError> {
        let key = keys::of_name(keys::ENTRY, parent, name);
        match self.overlay.get(&key)? {
            None => Ok(None),
            Some(Entry::Inode(gfid, inode)) => {
                Ok(Some(Found { gfid, inode, place: Place::Entry(parent, name.to_vec()) }))
            }
            Some(Entry::Apart(gfid)) => self
                .load(gfid)?
                .map(Some)
                .ok_or_else(|| corrupt(&key, format!("names {gfid}, which does not exist"))),
        }
    }

    /// Writes an inode back to where it was read from.
    fn save(&mut self, found: Found) {
        match found.place {
            Place::Apart => {
                self.overlay.put(keys::of_gfid(keys::NODE, found.gfid), &Node::Here(found.inode))
            }
            Place::Entry(parent, name) => {
                let key = keys::of_name(keys::ENTRY, parent, &name);
                self.overlay.put(key, &Entry::Inode(found.gfid, found.inode));
            }
        }
    }

    /// Notes in a directory that entries came or went.
    fn touch_dir(&mut self, mut dir: Found, now: Timestamp, entries: i64, subdirs: i32) {
        let inode = &mut dir.inode;
        inode.size = inode.size.saturating_add_signed(entries);
        inode.nlink = inode.nlink.saturating_add_signed(subdirs);
        inode.mtime = now;
        inode.ctime = now;
        self.save(dir);
    }

    fn lookup(&self, parent: Gfid, name: &[u8]) -> OpResult<Attr> {
        check_name(name)?;
        if let Some(found) = self.entry(parent, name)? {
            return Ok(found.attr());
        }
        self.directory(parent)?;
        errno(libc::ENOENT)
    }

    fn read_link(&self, gfid: Gfid) -> OpResult<Reply> {
        let found = self.existing(gfid)?;
        if found.inode.kind != FileKind::Symlink {
            return errno(libc::EINVAL);
        }
        Ok(Reply::Bytes(found.inode.target))
    }

    fn parent(&self, gfid: Gfid) -> OpResult<Reply> {
        let found = self.existing(gfid)?;
        if !found.inode.is_dir() {
            return errno(libc::ENOTDIR);
        }
        Ok(Reply::Attr(self.existing(found.inode.parent)?.attr()))
    }

    fn read_dir(&self, gfid: Gfid, after: &[u8], limit: u32) -> OpResult<Reply> {
        let dir = self.existing(gfid)?;
        if !dir.inode.is_dir() {
            return errno(libc::ENOTDIR);
        }
        let prefix = keys::of_gfid(keys::ENTRY, gfid);
        let mut from = keys::of_name(keys::ENTRY, gfid, after);
        if !after.is_empty() {
            from.push(0);
        }
        let limit = limit.clamp(1, LIST_ENTRIES_MAX) as usize;
        let (mut listed, mut bytes, mut end) = (Vec::new(), 0, true);
        self.overlay.scan(&prefix, &from, &mut |key, value| {
            if listed.len() == limit || bytes > LIST_BYTES_MAX {
                end = false;
                return ControlFlow::Break(());
            }
            bytes += key.len() + value.len();
            listed.push(
                overlay::decode(key, value)
                    .map(|entry: Entry| (key[keys::NAME_AT..].to_vec(), entry)),
            );
            ControlFlow::Continue(())
        })?;
        let mut entries = Vec::with_capacity(listed.len());
        for pair in listed {
            let (name, entry) = pair?;
            let attr = match entry {
                Entry::Inode(gfid, inode) => inode.attr(gfid),
                Entry::Apart(gfid) => match self.load(gfid)? {
                    Some(found) => found.attr(),
                    None => {
                        return Err(
                            corrupt(&keys::of_gfid(keys::NODE, gfid), "named but missing").into()
                        );
                    }
                },
            };
            entries.push(DirEntry { name, attr, written_elsewhere: false });
        }
        Ok(Reply::Entries { entries, end })
    }

    fn blob_root(&mut self, ctx: &Context<'_>, pool: PoolId) -> OpResult<Reply> {
        let key = keys::blob_root(pool);
        if let Some(gfid) = self.overlay.get::<Gfid>(&key)? {
            return Ok(Reply::Attr(self.existing(gfid)?.attr()));
        }
        let gfid = self.new_gfid()?;
        let inode = Inode::directory(gfid, 0o700, ctx.now());
        let attr = inode.attr(gfid);
        self.overlay.put(keys::of_gfid(keys::NODE, gfid), &Node::Here(inode));
        self.overlay.put(key, &gfid);
        Ok(Reply::Attr(attr))
    }

    /// The next file's id.
    fn new_gfid(&mut self) -> OpResult<Gfid> {
        let Counters { inode_next, inode_reserved, inode_durable, .. } = self.counters;
        if inode_next >= inode_durable {
            return Err(OpError::NotYet);
        }
        if inode_durable == inode_reserved && inode_reserved - inode_next <= INODES_RESERVED / 2 {
            self.reserve();
        }
        self.counters.inode_next += 1;
        Ok(Gfid::of_inode(inode_next))
    }

    /// Reserves more inode numbers, with the next commit.
    fn reserve(&mut self) {
        self.counters.inode_reserved += INODES_RESERVED;
        self.counters.reserved_in = self.next_commit();
        self.overlay.put(keys::INODES.to_vec(), &self.counters.inode_reserved);
    }
}

impl Found {
    /// May a directory get a name?
    fn takes_names(&self) -> OpResult<()> {
        permitted(!self.inode.flags.immutable)
    }

    /// May this name of a directory go, or stand for something else?
    fn gives(&self, child: &Self) -> OpResult<()> {
        permitted(self.inode.flags.is_empty() && child.inode.flags.is_empty())
    }

    fn attr(&self) -> Attr {
        self.inode.attr(self.gfid)
    }
}

/// Checks the name of an entry.
fn check_name(name: &[u8]) -> OpResult<()> {
    if name.len() > NAME_BYTES_MAX {
        return errno(libc::ENAMETOOLONG);
    }
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') || name.contains(&0)
    {
        return errno(libc::EINVAL);
    }
    Ok(())
}
