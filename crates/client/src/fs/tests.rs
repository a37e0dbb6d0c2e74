//! Two mounts of one modelled cluster, against a plain byte vector.

mod behind;
mod gather;
mod power;
mod syncing;

use super::expiry::Watch;
use super::inode::FlushKind;
use super::*;
use crate::objecter::{Behind, Ending, Gathered, WriterHint};
use crate::session::Answered;
use bytes::Bytes;
use messenger::sync::{LockTable, block_on};

use metadata::acl::Acl;
use metadata::lease::holder::Moment;
use protocol::lock::{ByteRange, LockOwner, RangeLock};
use protocol::namespace::{
    ACL_ACCESS, Attr, Commit, DirEntry, FileKind, Grant, Held, LeaseMode, NamespaceOp, Reply,
    SetAttr,
};
use protocol::{Epoch, SessionId};
use std::cell::RefCell;
use std::collections::HashMap;
use std::future::poll_fn;
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};

/// One file of the model: what the service and the shards have.
struct Stored {
    attr: Attr,
    data: Vec<u8>,
    holders: Vec<(usize, LeaseMode)>,
    open: Vec<usize>,
    /// Bytes written and not yet synced, by mount.
    unstable: Option<usize>,
    /// The next sync tells that writes were lost with a session.
    lost: bool,
}

/// Of the map by which the model grants.
const MAP: Epoch = Epoch::new(3);

#[derive(Default)]
struct World {
    files: HashMap<Gfid, Stored>,
    names: HashMap<Vec<u8>, Gfid>,
    mounts: Vec<Rc<LocalFs<Model>>>,
    last: u64,
    /// Leases granted.
    tokens: u64,
    /// Waits that the session needs before its leases may be used: for its renewal, and for a map.
    unusable: u32,
    /// The session's time has run out, and it is not renewed.
    expired: bool,
    /// Answers to reads stay on the way.
    reads_wait: bool,
    /// How often it was asked how much a file takes.
    asked: u32,
    /// Nothing answers.
    down: bool,
    /// Calls that were not answered.
    refused: u32,
    /// The session is dead, and there is no other yet.
    dead: bool,
    /// What the service was told of attributes, and whether it was to sync that.
    told: Vec<(SetAttr, bool)>,
    /// Writes after which it began to sync at once.
    syncs_ahead: u32,
    /// There is only one mount.
    alone: bool,
    /// Writes are another worker's, which is slow.
    works_elsewhere: bool,
    elsewhere: Option<Ending>,
    /// It takes leases back, and the answers do not come.
    loses_answers: bool,
    /// How often it was asked to sync alone, and refuses to.
    syncs: u32,
    refuses_to_sync: bool,
    /// The service cannot change its attributes.
    damaged: Option<Gfid>,
    /// The leases that came with the removal of names.
    given: Vec<Option<Gfid>>,
    /// How often it was asked for a directory's names.
    listings: u32,
    /// Syncs of data stay on the way.
    syncs_wait: bool,
    /// Reports of writes stay on the way; and what is to be dropped with them.
    reports_wait: bool,
    behind: Vec<Arc<dyn Behind>>,
    /// Small writes are gathered until a test has them sent.
    gathers: bool,
    gathered: Vec<gather::Collected>,
    /// The service's last commit, the last that is on its disk, and what is left of former starts.
    commit: Commit,
    durable: Commit,
    kept: Vec<Commit>,
    /// What the mounts said to hold after restarts.
    reclaimed: Vec<Held>,
}

fn root() -> Attr {
    Attr { gfid: Gfid::ROOT, kind: FileKind::Directory, ..sparse_attr(0) }
}

/// The backend of one mount. A conflicting open recalls the lease from the other mount before it is
/// answered.
#[derive(Clone)]
struct Model {
    world: Rc<RefCell<World>>,
    mount: usize,
}

impl Model {
    fn with<R>(&self, gfid: Gfid, f: impl FnOnce(&mut Stored) -> R) -> Result<R> {
        self.world.borrow_mut().files.get_mut(&gfid).map(f).ok_or(ClientError::Posix(errno::ENOENT))
    }

    fn writable<R>(&self, file: FileRef, f: impl FnOnce(&mut Stored) -> R) -> Result<R> {
        self.with(file.gfid, |stored| {
            assert!(
                stored.holders.contains(&(self.mount, LeaseMode::Write)),
                "data written without the lease"
            );
            stored.unstable = Some(self.mount);
            f(stored)
        })
    }

    /// Attributes are asked for: another mount that writes the file says what only it knows.
    async fn settle_writer(&self, gfid: Gfid) -> Result<()> {
        let writer = |stored: &mut Stored| {
            let other = |(mount, mode): &&(usize, LeaseMode)| {
                *mount != self.mount && *mode == LeaseMode::Write
            };
            stored.holders.iter().find(other).map(|(mount, _)| *mount)
        };
        if let Some(other) = self.with(gfid, writer)? {
            let fs = Rc::clone(&self.world.borrow().mounts[other]);
            Box::pin(fs.recall(gfid, Some(LeaseMode::Read))).await;
        }
        Ok(())
    }

    /// What a dead session, and a cluster that is down, are told.
    fn dead(&self) -> Result<()> {
        let mut world = self.world.borrow_mut();
        world.refused += u32::from(world.down);
        match (world.dead, world.down) {
            (true, _) => Err(ClientError::Fenced(SessionId::default())),
            (_, true) => Err(ClientError::TimedOut("the model")),
            _ => Ok(()),
        }
    }

    fn token(&self) -> u64 {
        let mut world = self.world.borrow_mut();
        world.tokens += 1;
        world.tokens
    }

    async fn open(&self, gfid: Gfid, lease: LeaseMode) -> Result<Reply> {
        let mount = self.mount;
        let conflicts: Vec<usize> = self.with(gfid, |stored| {
            let writes = lease == LeaseMode::Write;
            let clash = |(other, mode): &&(usize, LeaseMode)| {
                *other != mount && (writes || *mode == LeaseMode::Write)
            };
            stored.holders.iter().filter(clash).map(|(other, _)| *other).collect()
        })?;
        for other in conflicts {
            let keep = (lease == LeaseMode::Read).then_some(LeaseMode::Read);
            let fs = Rc::clone(&self.world.borrow().mounts[other]);
            Box::pin(fs.recall(gfid, keep)).await;
        }
        let token = self.token();
        self.with(gfid, |stored| {
            let held =
                stored.holders.iter().find(|(holder, _)| *holder == mount).map(|(_, mode)| *mode);
            let lease = held.max(Some(lease)).expect("asked for one");
            stored.holders.retain(|(holder, _)| *holder != mount);
            let clash = stored
                .holders
                .iter()
                .any(|(_, mode)| lease == LeaseMode::Write || *mode == LeaseMode::Write);
            assert!(!clash, "a lease was not given back");
            stored.holders.push((mount, lease));
            stored.open.push(mount);
            let grant = Grant { mode: lease, token, epoch: MAP };
            Reply::Opened { attr: stored.attr, grant: Some(grant) }
        })
    }

    fn create(&self, name: Vec<u8>, now: Timestamp, pool: PoolId) -> Reply {
        let mut world = self.world.borrow_mut();
        world.last += 1;
        let gfid = Gfid::of_inode(world.last + 1);
        let attr = Attr { gfid, atime: now, mtime: now, ctime: now, pool, ..sparse_attr(0) };
        let holders = vec![(self.mount, LeaseMode::Write)];
        world.files.insert(
            gfid,
            Stored {
                attr,
                data: Vec::new(),
                holders,
                open: vec![self.mount],
                unstable: None,
                lost: false,
            },
        );
        world.names.insert(name, gfid);
        drop(world);
        let grant = Grant { mode: LeaseMode::Write, token: self.token(), epoch: MAP };
        Reply::Opened { attr, grant: Some(grant) }
    }

    fn set(&self, gfid: Gfid, set: SetAttr, now: Timestamp) -> Result<Reply> {
        let mount = self.mount;
        if self.world.borrow().damaged == Some(gfid) {
            return errno::posix(errno::EIO);
        }
        self.with(gfid, |stored| {
            if let Some(size) = set.size {
                assert!(
                    stored.holders.contains(&(mount, LeaseMode::Write)),
                    "size set without the lease"
                );
                stored.attr.size = size;
            }
            stored.attr.mtime = set.mtime.unwrap_or(stored.attr.mtime);
            stored.attr.mode = set.mode.unwrap_or(stored.attr.mode);
            stored.attr.ctime = set.ctime.unwrap_or(now);
            Reply::Attr(stored.attr)
        })
    }

    fn give_back(&self, gfid: Gfid, keep: Option<LeaseMode>) -> Result<Reply> {
        let mount = self.mount;
        self.with(gfid, |stored| {
            assert_ne!(
                stored.unstable,
                Some(mount),
                "a lease given back with writes that are not stable"
            );
            let before =
                stored.holders.iter().find(|(holder, _)| *holder == mount).map(|(_, mode)| *mode);
            stored.holders.retain(|(holder, _)| *holder != mount);
            if let Some(kept) = before.min(keep) {
                stored.holders.push((mount, kept));
            }
            if !stored.holders.is_empty() {
                return Reply::Done;
            }
            // As if a writer had died in the middle of a truncation: what lies beyond the size is
            // anything.
            let size = stored.attr.size as usize;
            stored.data.resize(size, 0);
            stored.data.extend([0xee; 3000]);
            Reply::Done
        })
    }

    fn list(&self) -> Reply {
        let mut world = self.world.borrow_mut();
        world.listings += 1;
        let entry = |(name, gfid): (&Vec<u8>, &Gfid)| DirEntry {
            name: name.clone(),
            attr: world.files[gfid].attr,
            written_elsewhere: false,
        };
        let mut entries: Vec<DirEntry> = world.names.iter().map(entry).collect();
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Reply::Entries { entries, end: true }
    }

    fn reclaim(&self, held: &[Held]) -> Reply {
        let mut world = self.world.borrow_mut();
        world.reclaimed.extend_from_slice(held);
        let last = world.commit;
        let is_gone = |held: &&Held| !world.files.contains_key(&held.gfid);
        let refused = held.iter().filter(is_gone).map(|held| held.gfid).collect();
        Reply::Kept { commits: world.kept.iter().copied().chain([last]).collect(), refused }
    }

    fn sync_names(&self) -> Result<Reply> {
        if self.world.borrow().refuses_to_sync { errno::posix(errno::EIO) } else { Ok(Reply::Done) }
    }

    async fn reply(&self, op: NamespaceOp, caller: Caller) -> Result<Reply> {
        self.dead()?;
        match op {
            NamespaceOp::Open { gfid, lease } => self.open(gfid, lease).await,
            NamespaceOp::Create { name, .. } if self.world.borrow().names.contains_key(&name) => {
                errno::posix(errno::EEXIST)
            }
            NamespaceOp::Create { name, pool, .. } => Ok(self.create(name, caller.now, pool)),
            NamespaceOp::Lookup { name, .. } => {
                let found = self.world.borrow().names.get(&name).copied();
                let gfid = found.ok_or(ClientError::Posix(errno::ENOENT))?;
                self.settle_writer(gfid).await?;
                self.with(gfid, |stored| Reply::Attr(stored.attr))
            }
            NamespaceOp::GetAttr { gfid: Gfid::ROOT } => Ok(Reply::Attr(root())),
            NamespaceOp::GetAttr { gfid } => {
                self.settle_writer(gfid).await?;
                self.with(gfid, |stored| Reply::Attr(stored.attr))
            }
            NamespaceOp::SetAttr { gfid, set, sync } => {
                self.world.borrow_mut().told.push((set, sync));
                if sync {
                    self.sync_names()?;
                }
                self.set(gfid, set, caller.now)
            }
            NamespaceOp::ReturnLease { gfid, keep, .. } => {
                let given = self.give_back(gfid, keep);
                if self.world.borrow().loses_answers {
                    Err(ClientError::TimedOut("the model"))
                } else {
                    given
                }
            }
            NamespaceOp::Unlink { name, gives, .. } => {
                self.world.borrow_mut().given.push(gives);
                gives.map_or(Ok(Reply::Done), |gfid| self.give_back(gfid, None))?;
                self.world
                    .borrow_mut()
                    .names
                    .remove(&name)
                    .ok_or(ClientError::Posix(errno::ENOENT))?;
                Ok(Reply::Done)
            }
            NamespaceOp::Parent { .. } => Ok(Reply::Attr(root())),
            NamespaceOp::ReadDir { .. } => Ok(self.list()),
            NamespaceOp::Close { gfid } => self.with(gfid, |stored| {
                stored.open.retain(|mount| *mount != self.mount);
                Reply::Done
            }),
            NamespaceOp::Sync => {
                self.world.borrow_mut().syncs += 1;
                self.sync_names()
            }
            NamespaceOp::Reclaim { held, .. } => Ok(self.reclaim(&held)),
            NamespaceOp::Lock { .. } => Ok(Reply::Done),
            NamespaceOp::SetXattr { gfid, name, value, .. } => self.with(gfid, |stored| {
                assert_eq!(name, ACL_ACCESS, "no other is in the model");
                let bits = Acl::decode(&value).expect("an ACL").access_bits();
                (stored.attr.mode, stored.attr.has_xattrs) =
                    (stored.attr.mode & !0o777 | bits, true);
                Reply::Attr(stored.attr)
            }),
            NamespaceOp::RemoveXattr { .. } => Err(ClientError::Posix(super::errno::ENODATA)),
            other => panic!("{other:?} is not in the model"),
        }
    }
}

impl Backend for Model {
    async fn namespace(&self, op: NamespaceOp, caller: Caller) -> Result<Answered> {
        self.world.borrow_mut().commit.number += u64::from(!op.is_question());
        let syncs = matches!(op, NamespaceOp::Sync | NamespaceOp::SetAttr { sync: true, .. });
        let reply = self.reply(op, caller).await?;
        if syncs {
            let last = self.world.borrow().commit;
            self.world.borrow_mut().durable = last;
        }
        let (commit, durable) = (self.world.borrow().commit, self.world.borrow().durable);
        Ok(Answered { reply, covered: false, dirs: Vec::new(), commit, durable })
    }

    fn term(&self) -> Term {
        Term { number: 0, holds: self.world.borrow().alone, leased: false }
    }

    async fn space(&self) -> Result<(u64, u64)> {
        Ok((2 << 40, 1 << 40))
    }

    fn pool(&self) -> Result<PoolId> {
        Ok(PoolId::new(1))
    }

    fn moment(&self) -> Moment {
        let world = self.world.borrow();
        let (until, epoch) = match world.unusable {
            _ if world.expired => (0, MAP),
            0 => (1, MAP),
            1 => (1, Epoch::default()),
            _ => (0, MAP),
        };
        Moment { now: Duration::from_millis(500), until: Duration::from_secs(until), epoch }
    }

    async fn usable(&self, epoch: Epoch) -> Result<()> {
        assert!(epoch == MAP || epoch == Epoch::default(), "that of the grant, or any");
        let waits = || self.world.borrow().expired || self.world.borrow().dead;
        poll_fn(|_| if waits() { Poll::Pending } else { Poll::Ready(()) }).await;
        let unusable = self.world.borrow().unusable;
        self.world.borrow_mut().unusable = unusable.saturating_sub(1);
        Ok(())
    }

    async fn sleep(&self, _duration: Duration) {
        std::future::pending::<()>().await;
    }

    /// The model answers at once.
    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let mut task = pin!(task);
        let is_over = task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        assert!(is_over || self.world.borrow().syncs_wait, "the task waits");
    }

    async fn read(&self, file: FileRef, offset: u64, len: usize) -> Result<Bytes> {
        let data = self.with(file.gfid, |stored| {
            assert!(
                stored.holders.iter().any(|(holder, _)| *holder == self.mount),
                "data read without a lease"
            );
            let byte = |at: usize| stored.data.get(at).copied().unwrap_or(0);
            (offset as usize..offset as usize + len).map(byte).collect()
        });
        poll_fn(|_| if self.world.borrow().reads_wait { Poll::Pending } else { Poll::Ready(()) })
            .await;
        self.dead().and(data)
    }

    async fn write(
        &self,
        file: FileRef,
        offset: u64,
        data: Bytes,
        hint: WriterHint,
        ending: Ending,
    ) -> Result<()> {
        if self.world.borrow().works_elsewhere {
            self.world.borrow_mut().elsewhere = Some(ending);
            return std::future::pending().await;
        }
        self.world.borrow_mut().syncs_ahead += u32::from(ending.sync);
        match ending.behind {
            Some(behind) => self.world.borrow_mut().behind.push(behind),
            None => self.reported(file).await?,
        }
        self.writable(file, |stored| {
            let beyond =
                stored.data.iter().skip(usize::try_from(hint.zero_from).unwrap_or(usize::MAX));
            assert!(beyond.copied().all(|byte| byte == 0), "bytes said to be zero are not");
            assert!(hint.size_after >= offset + data.len() as u64);
            let end = offset as usize + data.len();
            stored.data.resize(stored.data.len().max(end), 0);
            stored.data[offset as usize..end].copy_from_slice(&data);
        })
    }

    async fn write_gathered(
        &self,
        file: FileRef,
        range: Range<u64>,
        gathered: Arc<dyn Gathered>,
        behind: Arc<dyn Behind>,
    ) -> Result<()> {
        if self.world.borrow().gathers && gathered.begins() {
            let collected = gather::Collected { file, start: range.start, gathered, behind };
            self.world.borrow_mut().gathered.push(collected);
        }
        Ok(())
    }

    async fn reported(&self, _file: FileRef) -> Result<()> {
        poll_fn(|_| if self.world.borrow().reports_wait { Poll::Pending } else { Poll::Ready(()) })
            .await;
        let behind = std::mem::take(&mut self.world.borrow_mut().behind);
        drop(behind);
        self.dead()
    }

    async fn punch(&self, file: FileRef, range: Range<u64>, _hint: WriterHint) -> Result<()> {
        self.writable(file, |stored| {
            let end = (range.end as usize).min(stored.data.len());
            let start = (range.start as usize).min(end);
            stored.data[start..end].fill(0);
        })
    }

    async fn reserve(&self, _file: FileRef, _range: Range<u64>) -> Result<bool> {
        self.dead().map(|()| true)
    }

    async fn truncate(&self, file: FileRef, new_size: u64, old_size: u64) -> Result<()> {
        self.writable(file, |stored| {
            // Only what the caller says was data is cut.
            let end = (old_size as usize).min(stored.data.len());
            let start = (new_size as usize).min(end);
            stored.data[start..end].fill(0);
        })
    }

    async fn sync(&self, file: FileRef) -> Result<()> {
        self.reported(file).await?;
        poll_fn(|_| if self.world.borrow().syncs_wait { Poll::Pending } else { Poll::Ready(()) })
            .await;
        let lost = self.with(file.gfid, |stored| {
            stored.unstable = stored.unstable.filter(|mount| *mount != self.mount);
            std::mem::take(&mut stored.lost)
        })?;
        if lost { Err(ClientError::Lost) } else { Ok(()) }
    }

    async fn sync_all(&self) -> Result<()> {
        for stored in self.world.borrow_mut().files.values_mut() {
            stored.unstable = stored.unstable.filter(|mount| *mount != self.mount);
        }
        self.dead()
    }

    async fn seek(&self, file: FileRef, range: Range<u64>, sought: Sought) -> Result<Option<u64>> {
        self.with(file.gfid, |stored| {
            let is_data = |at: &u64| stored.data.get(*at as usize).is_some_and(|byte| *byte != 0);
            range.clone().find(|at| is_data(at) == (sought == Sought::Data))
        })
    }

    async fn extents(&self, file: FileRef, range: Range<u64>) -> Result<Vec<Range<u64>>> {
        self.with(file.gfid, |stored| {
            let is_data = |at: &u64| stored.data.get(*at as usize).is_some_and(|byte| *byte != 0);
            range.clone().filter(is_data).map(|at| at..at + 1).collect()
        })
    }

    async fn allocated(&self, file: FileRef, size: u64) -> Result<u64> {
        self.world.borrow_mut().asked += 1;
        self.with(file.gfid, |stored| {
            let data = stored.data.iter().take(size as usize);
            data.filter(|byte| **byte != 0).count() as u64
        })
    }

    fn object_bytes(&self, _pool: PoolId) -> Result<u64> {
        Ok(1000)
    }
}

fn mounts(count: usize) -> Vec<Rc<LocalFs<Model>>> {
    mounts_with(&options(), &no_kernel(), count)
}

fn options() -> FsOptions {
    FsOptions { leases_cached_max: 1, ..FsOptions::default() }
}

fn no_kernel() -> Arc<dyn KernelCache> {
    Arc::new(NoKernelCache)
}

fn mounts_with(
    options: &FsOptions,
    kernel: &Arc<dyn KernelCache>,
    count: usize,
) -> Vec<Rc<LocalFs<Model>>> {
    let world = Rc::new(RefCell::new(World::default()));
    let make = |mount| {
        let shared =
            Arc::new(Shared::new(options.clone(), Arc::clone(kernel), &LockTable::default()));
        let backend = Model { world: Rc::clone(&world), mount };
        Rc::new(LocalFs { shared, backend })
    };
    let mounts: Vec<_> = (0..count).map(make).collect();
    world.borrow_mut().mounts.clone_from(&mounts);
    mounts
}

fn at(secs: i64) -> Caller {
    Caller { uid: 0, gid: 0, now: Timestamp { secs, nanos: 0 } }
}

const PLACED: WriteMode =
    WriteMode { append: false, sync: SyncKind::None, by: WrittenBy::Pages, open: OPEN };
/// Who has a file open, where that is one.
const OPEN: OpenId = OpenId(0);
const APPEND: WriteMode = WriteMode { append: true, ..PLACED };
const NEW: CreateMode = CreateMode { exclusive: true, truncate: false, write: true, append: false };

fn create(fs: &LocalFs<Model>, name: &str) -> Gfid {
    let made = block_on(fs.create(Gfid::ROOT, name.as_bytes().to_vec(), PLAIN, NEW, at(1)));
    made.expect("a new name").0.gfid
}

const PLAIN: Permissions = Permissions { mode: 0o644, umask: 0 };

fn truncate(size: u64) -> SetAttr {
    SetAttr { size: Some(size), ..SetAttr::default() }
}

/// A file of that size.
pub(super) fn sparse_attr(size: u64) -> Attr {
    let time = Timestamp::default();
    Attr {
        gfid: Gfid::of_inode(2),
        kind: FileKind::Regular,
        mode: 0o644,
        uid: 0,
        gid: 0,
        nlink: 1,
        rdev: 0,
        size,
        atime: time,
        mtime: time,
        ctime: time,
        pool: PoolId::new(1),
        btime: None,
        flags: protocol::namespace::FileFlags::default(),
        has_xattrs: false,
        footprint: protocol::namespace::Footprint::Unknown,
    }
}

/// One random operation on the file and on the oracle.
async fn step(
    fs: &LocalFs<Model>,
    gfid: Gfid,
    oracle: &mut Vec<u8>,
    seen: &mut u64,
    rng: &mut fastrand::Rng,
    now: i64,
) {
    let (offset, len) = (rng.usize(0..5000), rng.usize(1..1500));
    let end = offset + len;
    match rng.u8(0..10) {
        0..=2 => {
            let data = vec![rng.u8(1..0xee); len];
            fs.write(gfid, offset as u64, Bytes::from(data.clone()), PLACED, at(now))
                .await
                .expect("write");
            oracle.resize(oracle.len().max(end), 0);
            oracle[offset..end].copy_from_slice(&data);
        }
        3 => {
            // As a kernel that has seen its own writes since it last asked for the size.
            let known = (*seen).min(oracle.len() as u64);
            fs.write(gfid, known, Bytes::from(vec![9; len]), APPEND, at(now))
                .await
                .expect("append");
            oracle.extend(std::iter::repeat_n(9, len));
            *seen = known + len as u64;
            if rng.bool() {
                return;
            }
        }
        4 => {
            let attr = fs.setattr(gfid, truncate(offset as u64), at(now)).await.expect("truncate");
            oracle.resize(offset, 0);
            assert_eq!((attr.size, attr.mtime.secs), (offset as u64, now));
        }
        5 => {
            let modes = [
                AllocateMode::Allocate,
                AllocateMode::Punch,
                AllocateMode::Zero,
                AllocateMode::ZeroKeepSize,
            ];
            let mode = modes[rng.usize(0..modes.len())];
            fs.allocate(gfid, offset as u64, len as u64, mode, at(now)).await.expect("allocate");
            if matches!(mode, AllocateMode::Allocate | AllocateMode::Zero) {
                oracle.resize(oracle.len().max(end), 0);
            }
            let inside = offset.min(oracle.len())..end.min(oracle.len());
            if mode != AllocateMode::Allocate {
                oracle[inside].fill(0);
            }
        }
        6 => fs.fsync(gfid, OPEN, rng.bool(), at(now)).await.expect("fsync"),
        7 => {
            fs.release(gfid).await.expect("release");
            fs.sweep().await;
            fs.open(gfid, rng.bool(), at(now)).await.expect("open");
        }
        8 => {
            let found = fs.seek(gfid, offset as u64, Sought::Data, at(now)).await.ok();
            let expected = oracle
                .iter()
                .skip(offset)
                .position(|byte| *byte != 0)
                .map(|at| (at + offset) as u64);
            assert_eq!(found, expected);
        }
        _ => fs.sweep().await,
    }
    let attr = fs.getattr(gfid, at(now)).await.expect("getattr");
    assert_eq!(attr.size, oracle.len() as u64);
    *seen = attr.size;
    let read = fs.read(gfid, 0, 1 << 16, at(now)).await.expect("read");
    assert!(read == oracle[..], "content differs from the oracle");
}

#[test]
fn two_mounts_see_one_file() {
    for seed in 0..100 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mounts = mounts(2);
        let gfid = create(&mounts[0], "file");
        let (mut oracle, mut seen) = (Vec::new(), [0; 2]);
        block_on(async {
            mounts[1].open(gfid, false, at(1)).await.expect("open");
            for now in 2..60 {
                let mount = rng.usize(0..2);
                step(&mounts[mount], gfid, &mut oracle, &mut seen[mount], &mut rng, now).await;
            }
            for fs in &mounts {
                fs.sync_everything().await.expect("sync");
            }
        });
        let world = Rc::clone(&mounts[0].backend.world);
        let world = world.borrow();
        let stored = &world.files[&gfid];
        assert_eq!(
            stored.attr.size,
            oracle.len() as u64,
            "seed {seed}: the service knows the size"
        );
        assert_eq!(stored.unstable, None, "seed {seed}: everything is stable");
    }
}

#[test]
fn nothing_begins_when_the_sessions_time_ran_out_or_without_the_map_of_the_grant() {
    let mounts = mounts(1);
    let (fs, world) = (&mounts[0], Rc::clone(&mounts[0].backend.world));
    let gfid = create(fs, "file");
    block_on(async {
        world.borrow_mut().unusable = 2;
        fs.write(gfid, 0, Bytes::from_static(b"late"), PLACED, at(2)).await.expect("write");
        assert_eq!(world.borrow().unusable, 0, "waited for the renewal and for the map");
        world.borrow_mut().unusable = 2;
        assert_eq!(
            fs.read(gfid, 9, 4, at(3)).await.expect("read"),
            "",
            "beyond the end, with no data to fetch"
        );
        assert_eq!(world.borrow().unusable, 0, "the size is the lease's, too");
    });
}

#[test]
fn a_close_tells_the_service_and_keeps_the_lease() {
    let mounts = mounts(1);
    let (fs, world) = (&mounts[0], Rc::clone(&mounts[0].backend.world));
    let gfid = create(fs, "file");
    block_on(async {
        fs.write(gfid, 0, Bytes::from_static(b"hello"), PLACED, at(5)).await.expect("write");
        assert_eq!(world.borrow().files[&gfid].attr.size, 0, "not yet");
        fs.flush(gfid, OPEN, LockOwner(1)).await.expect("flush");
        assert_eq!(world.borrow().files[&gfid].attr.size, 5);
        assert_eq!(world.borrow().files[&gfid].attr.mtime.secs, 5);
        fs.release(gfid).await.expect("release");
    });
    let held =
        (world.borrow().files[&gfid].holders.clone(), world.borrow().files[&gfid].open.clone());
    assert_eq!(held, (vec![(0, LeaseMode::Write)], vec![]));
    let cached = block_on(fs.open(gfid, false, at(6))).expect("open");
    assert!(cached, "the lease was held throughout, so the kernel's pages are right");
}

#[test]
fn a_write_that_another_worker_is_at_stays_inside_when_its_task_is_dropped() {
    let fs = mounts(1).remove(0);
    let world = Rc::clone(&fs.backend.world);
    let gfid = create(&fs, "f");
    world.borrow_mut().works_elsewhere = true;
    let mut write = Box::pin(fs.write(gfid, 0, Bytes::from_static(b"late"), PLACED, at(2)));
    assert!(write.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(write);
    let inode = fs.shared.table.get(gfid).expect("it is open");
    let can_be_had_alone = || inode.enter_if_quiet(inode.with(|state| state.entered())).is_some();
    assert!(!can_be_had_alone(), "its lease could go while it writes");
    world.borrow_mut().elsewhere = None;
    assert!(can_be_had_alone());
}

#[test]
fn a_lease_whose_return_was_not_answered_is_gone() {
    let fs = mounts(1).remove(0);
    let world = Rc::clone(&fs.backend.world);
    for (name, keep) in [("downgraded", Some(LeaseMode::Read)), ("returned", None)] {
        let gfid = create(&fs, name);
        block_on(fs.write(gfid, 0, Bytes::from_static(b"bytes"), PLACED, at(2))).expect("written");
        world.borrow_mut().loses_answers = true;
        block_on(fs.recall(gfid, keep));
        let lease =
            || fs.shared.table.get(gfid).and_then(|inode| inode.with(|state| state.lease()));
        assert_eq!(lease(), keep, "somebody else may have the rest");
        world.borrow_mut().loses_answers = false;
        block_on(fs.write(gfid, 0, Bytes::from_static(b"again"), PLACED, at(3))).expect("written");
        assert_eq!(lease(), Some(LeaseMode::Write), "asked for anew");
    }
}

#[test]
fn a_lease_goes_back_with_the_last_name_if_nothing_has_to_be_waited_for() {
    let fs = mounts(1).remove(0);
    let world = Rc::clone(&fs.backend.world);
    world.borrow_mut().alone = true;
    let made = |name: &str, closed: bool| {
        let gfid = create(&fs, name);
        block_on(fs.write(gfid, 0, Bytes::from_static(b"bytes"), PLACED, at(2))).expect("written");
        if closed {
            block_on(fs.release(gfid)).expect("closed");
        }
        let look = NamespaceOp::Lookup { parent: Gfid::ROOT, name: name.into() };
        block_on(fs.ask(look, at(3))).expect("there");
        gfid
    };
    let unlink = |name: &str| {
        block_on(fs.unlink(Gfid::ROOT, name.into(), at(4))).expect("removed");
        world.borrow_mut().given.pop().expect("asked")
    };
    let gfid = made("idle", true);
    assert_eq!(unlink("idle"), Some(gfid));
    let inode = fs.shared.table.get(gfid).expect("not swept yet");
    assert!(inode.with(|state| state.lease().is_none() && state.is_forgettable()));
    made("open", false);
    assert_eq!(unlink("open"), None);
    let gfid = made("unstable", true);
    world.borrow_mut().syncs_wait = true;
    assert_eq!(unlink("unstable"), None);
    let inode = fs.shared.table.get(gfid).expect("it has a lease");
    assert_eq!(
        inode.with(|state| (state.lease(), state.cached_since().is_some())),
        (Some(LeaseMode::Write), true)
    );
}

#[test]
fn a_lease_stays_where_its_file_was_not_removed() {
    let fs = mounts(1).remove(0);
    fs.backend.world.borrow_mut().alone = true;
    let gfid = create(&fs, "f");
    block_on(fs.release(gfid)).expect("closed");
    block_on(fs.lookup(Gfid::ROOT, b"f".to_vec(), at(2))).expect("there");
    fs.backend.world.borrow_mut().down = true;
    block_on(fs.unlink(Gfid::ROOT, b"f".to_vec(), at(3))).expect_err("nothing answers");
    let inode = fs.shared.table.get(gfid).expect("it has a lease");
    assert_eq!(
        inode.with(|state| (state.lease(), state.cached_since().is_some())),
        (Some(LeaseMode::Write), true)
    );
}

#[test]
fn the_only_mount_asks_once_for_a_directorys_names() {
    let fs = mounts(1).remove(0);
    let world = Rc::clone(&fs.backend.world);
    world.borrow_mut().alone = true;
    for name in ["b", "a"] {
        let gfid = create(&fs, name);
        block_on(fs.release(gfid)).expect("closed");
    }
    let handle = fs.shared.opendir(Gfid::ROOT);
    let read = |cursor, limit| {
        let page = block_on(fs.readdir(handle, cursor, limit, at(3))).expect("read");
        page.into_iter()
            .map(|item| (item.next, String::from_utf8(item.name).expect("a name")))
            .collect::<Vec<_>>()
    };
    let all = read(0, 9);
    let names: Vec<&str> = all.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!((names, read(all[3].0, 9)), (vec![".", "..", "a", "b"], vec![]));
    assert_eq!(world.borrow().listings, 1);
    let term = fs.backend.term();
    let handle = fs.shared.opendir(Gfid::ROOT);
    let known = |cursor, limit| {
        let page = fs.shared.readdir_known(term, handle, cursor, limit)?;
        Some(
            page.into_iter()
                .map(|item| (item.next, String::from_utf8(item.name).expect("a name")))
                .collect(),
        )
    };
    assert_eq!(known(0, 1), Some(all[..3].to_vec()));
    assert_eq!((known(all[2].0, 1), known(all[3].0, 1)), (Some(all[3..].to_vec()), Some(vec![])));
    world.borrow_mut().alone = false;
    let term = fs.backend.term();
    let handle = fs.shared.opendir(Gfid::ROOT);
    assert!(fs.shared.readdir_known(term, handle, 0, 1).is_none());
}

#[test]
fn cached_leases_are_bounded() {
    let mounts = mounts(1);
    let fs = &mounts[0];
    let files: Vec<Gfid> = (0..5).map(|number| create(fs, &number.to_string())).collect();
    block_on(async {
        for gfid in &files {
            fs.release(*gfid).await.expect("release");
        }
        fs.sweep().await;
    });
    let world = fs.backend.world.borrow();
    let held: Vec<bool> = files.iter().map(|gfid| !world.files[gfid].holders.is_empty()).collect();
    assert_eq!(held, [false, false, false, false, true], "the last one closed stays");
}

#[test]
fn a_sweep_goes_on_past_a_file_that_the_service_refuses() {
    for refused in 0..2 {
        let mounts = mounts(1);
        let (fs, world) = (&mounts[0], Rc::clone(&mounts[0].backend.world));
        let [written, closed, last] = ["written", "closed", "last"].map(|name| create(fs, name));
        world.borrow_mut().damaged = Some([written, closed][refused]);
        block_on(async {
            for gfid in [written, closed, last] {
                fs.write(gfid, 0, Bytes::from_static(b"x"), PLACED, at(2)).await.expect("write");
            }
            for gfid in [closed, last] {
                fs.release(gfid).await.ok();
            }
            fs.sweep().await;
        });
        assert_eq!(world.borrow().files[&last].attr.size, 1);
        assert!(
            world.borrow().files[&last].open.is_empty(),
            "and the service knows that it is closed"
        );
        world.borrow_mut().damaged = None;
        block_on(fs.sweep());
        assert!(
            [written, closed].iter().all(|gfid| world.borrow().files[gfid].attr.size == 1),
            "told again"
        );
    }
}

#[test]
fn a_name_made_elsewhere_meanwhile_is_opened() {
    let mounts = mounts(2);
    let gfid = create(&mounts[0], "file");
    block_on(async {
        mounts[0].write(gfid, 0, Bytes::from_static(b"data"), PLACED, at(2)).await.expect("write");
        let mode = CreateMode { exclusive: false, truncate: true, write: true, append: false };
        let (attr, cached) = mounts[1]
            .create(Gfid::ROOT, b"file".to_vec(), PLAIN, mode, at(3))
            .await
            .expect("opened");
        assert_eq!((attr.gfid, attr.size, cached), (gfid, 0, false));
        let exclusive = CreateMode { exclusive: true, ..mode };
        let refused = mounts[1].create(Gfid::ROOT, b"file".to_vec(), PLAIN, exclusive, at(3)).await;
        assert_eq!(refused.expect_err("exists").errno(), errno::EEXIST);
    });
}

#[test]
fn times_set_by_the_user_stay_until_the_next_write() {
    let mounts = mounts(1);
    let fs = &mounts[0];
    let gfid = create(fs, "file");
    block_on(async {
        fs.write(gfid, 0, Bytes::from_static(b"x"), PLACED, at(50)).await.expect("write");
        let set = SetAttr { mtime: Some(Timestamp { secs: 3, nanos: 7 }), ..SetAttr::default() };
        let attr = fs.setattr(gfid, set, at(51)).await.expect("utimes");
        assert_eq!((attr.mtime.secs, attr.ctime.secs, attr.size), (3, 51, 1));
        fs.sweep().await;
        assert_eq!(fs.getattr(gfid, at(52)).await.expect("getattr").mtime.secs, 3);
        fs.write(gfid, 0, Bytes::from_static(b"y"), PLACED, at(60)).await.expect("write");
        assert_eq!(fs.getattr(gfid, at(61)).await.expect("getattr").mtime.secs, 60);
    });
}

#[test]
fn times_set_on_an_open_file_are_told_to_whoever_asks_and_at_the_latest_with_the_close() {
    let mounts = mounts(2);
    let (fs, world) = (&mounts[0], Rc::clone(&mounts[0].backend.world));
    world.borrow_mut().alone = true;
    let gfid = create(fs, "file");
    let utimes = |secs| SetAttr { mtime: Some(Timestamp { secs, nanos: 0 }), ..SetAttr::default() };
    let told = || world.borrow().told.len();
    block_on(async {
        fs.write(gfid, 0, Bytes::from_static(b"x"), PLACED, at(50)).await.expect("write");
        let before = told();
        let attr = fs.setattr(gfid, utimes(3), at(51)).await.expect("utimes");
        assert_eq!((attr.mtime.secs, attr.ctime.secs, told()), (3, 51, before), "nobody is asked");
        assert_eq!(fs.getattr(gfid, at(51)).await.expect("getattr").mtime.secs, 3);
        world.borrow_mut().alone = false;
        let seen = mounts[1].getattr(gfid, at(52)).await.expect("of another mount");
        assert_eq!((seen.mtime.secs, seen.ctime.secs, seen.size), (3, 51, 1));
        world.borrow_mut().alone = true;
        fs.write(gfid, 0, Bytes::from_static(b"y"), PLACED, at(60)).await.expect("write");
        fs.setattr(gfid, utimes(4), at(61)).await.expect("utimes");
        fs.release(gfid).await.expect("the last close");
    });
    assert_eq!(world.borrow().files[&gfid].attr.mtime.secs, 4);
}

#[test]
fn a_dead_session_is_reported_once_and_files_go_on() {
    let mounts = mounts(1);
    let fs = &mounts[0];
    let gfid = create(fs, "file");
    block_on(async {
        fs.write(gfid, 0, Bytes::from_static(b"x"), PLACED, at(2)).await.expect("write");
        fs.fenced().await;
        fs.backend.with(gfid, |stored| stored.holders.clear()).expect("there");
        assert_eq!(fs.fsync(gfid, OPEN, false, at(3)).await.expect_err("lost").errno(), errno::EIO);
        fs.fsync(gfid, OPEN, false, at(3)).await.expect("said once");
        fs.write(gfid, 0, Bytes::from_static(b"y"), PLACED, at(4)).await.expect("a new lease");
        assert_eq!(fs.getattr(gfid, at(5)).await.expect("getattr").size, 1);
    });
}

/// The session dies, and another takes its place.
async fn next_session(fs: &LocalFs<Model>) {
    fs.fenced().await;
    fs.backend.world.borrow_mut().files.values_mut().for_each(|stored| stored.holders.clear());
}

#[test]
fn writes_lost_inside_a_file_are_told_once() {
    let mounts = mounts(1);
    let fs = &mounts[0];
    let gfid = create(fs, "file");
    let owner = LockOwner(1);
    block_on(async {
        fs.write(gfid, 0, Bytes::from_static(b"before"), PLACED, at(2)).await.expect("write");
        fs.fsync(gfid, OPEN, false, at(2)).await.expect("fsync");
        for closes in [false, true] {
            fs.write(gfid, 0, Bytes::from_static(b"after!"), PLACED, at(3)).await.expect("write");
            fs.flush_attrs(&fs.shared.table.get(gfid).expect("known")).await.expect("flush");
            fs.backend.with(gfid, |stored| stored.lost = true).expect("there");
            next_session(fs).await;
            if closes {
                let told = fs.flush(gfid, OPEN, owner).await;
                assert_eq!(told.expect_err("lost").errno(), errno::EIO);
            }
            let told = fs.fsync(gfid, OPEN, false, at(4)).await;
            assert_eq!(
                told.expect_err("lost, and a close takes it from nobody").errno(),
                errno::EIO
            );
            fs.fsync(gfid, OPEN, false, at(5)).await.expect("told once");
            fs.flush(gfid, OPEN, owner).await.expect("told once");
        }
    });
}

#[test]
fn who_lost_a_lock_with_the_session_does_not_go_on() {
    let mounts = mounts(1);
    let fs = &mounts[0];
    let (gfid, other) = (create(fs, "file"), create(fs, "other"));
    let (owner, lock) =
        (LockOwner(1), RangeLock { range: ByteRange::ALL, mode: LeaseMode::Write, pid: 1 });
    let write = |gfid| fs.write(gfid, 0, Bytes::from_static(b"x"), PLACED, at(2));
    block_on(async {
        fs.set_lock(gfid, owner, lock, at(2)).await.expect("lock");
        write(gfid).await.expect("write");
        fs.fsync(gfid, OPEN, false, at(2)).await.expect("fsync");
        next_session(fs).await;
        assert_eq!(write(gfid).await.expect_err("the lock may be another's").errno(), errno::EIO);
        assert_eq!(fs.read(gfid, 0, 1, at(3)).await.expect_err("the same").errno(), errno::EIO);
        write(other).await.expect("no lock was held on it");
        fs.flush(gfid, OPEN, LockOwner(2)).await.expect("somebody else closes it");
        assert!(write(gfid).await.is_err());
        fs.flush(gfid, OPEN, owner).await.expect("close");
        write(gfid).await.expect("who held it has closed the file");
    });
}

#[test]
fn a_sparse_file_takes_what_is_written() {
    let mounts = mounts(2);
    let (fs, other, world) = (&mounts[0], &mounts[1], Rc::clone(&mounts[0].backend.world));
    let gfid = create(fs, "file");
    block_on(async {
        fs.write(gfid, 0, Bytes::from_static(b"small"), PLACED, at(2)).await.expect("write");
        let attr = fs.getattr(gfid, at(2)).await.expect("getattr");
        assert_eq!(
            (fs.allocated(&attr).await, world.borrow().asked),
            (512, 0),
            "nobody is asked for a small file"
        );
        fs.write(gfid, 50_000, Bytes::from_static(b"far"), PLACED, at(2)).await.expect("write");
        let attr = fs.getattr(gfid, at(2)).await.expect("getattr");
        assert_eq!((fs.allocated(&attr).await, world.borrow().asked), (512, 1), "never nothing");
        assert_eq!(
            (fs.allocated(&attr).await, world.borrow().asked),
            (512, 2),
            "the writer asks each time"
        );
        assert_eq!((other.allocated(&attr).await, world.borrow().asked), (512, 3));
        assert_eq!(
            (other.allocated(&attr).await, world.borrow().asked),
            (512, 3),
            "others use the answer again"
        );
    });
}

#[test]
fn a_dead_cluster_is_not_asked_for_every_file() {
    let mounts = mounts(1);
    let (fs, world) = (&mounts[0], Rc::clone(&mounts[0].backend.world));
    let files: Vec<Gfid> = (0..300).map(|number| create(fs, &number.to_string())).collect();
    block_on(async {
        for gfid in &files {
            fs.write(*gfid, 0, Bytes::from_static(b"x"), PLACED, at(2)).await.expect("write");
        }
        world.borrow_mut().down = true;
        assert!(matches!(fs.sync_everything().await, Err(ClientError::TimedOut(_))));
        assert_eq!(world.borrow().refused, 1 + 64, "the data, and one batch of attributes");
        world.borrow_mut().down = false;
        fs.sync_everything().await.expect("sync");
    });
    assert!(files.iter().all(|gfid| world.borrow().files[gfid].attr.size == 1));
}

/// Bytes of a page of the modelled kernel.
const PAGE: u64 = 4;

/// A kernel's pages: `None` while they are locked.
#[derive(Default)]
struct Kernel {
    pages: Mutex<HashMap<(Gfid, u64), Option<Bytes>>>,
}

impl Kernel {
    fn pages(&self) -> std::sync::MutexGuard<'_, HashMap<(Gfid, u64), Option<Bytes>>> {
        self.pages.lock().expect("no test panicked with it")
    }

    async fn read(&self, fs: &LocalFs<Model>, gfid: Gfid, page: u64) -> Result<Bytes> {
        let key = (gfid, page);
        if let Some(Some(cached)) = self.pages().get(&key) {
            return Ok(cached.clone());
        }
        self.pages().insert(key, None);
        let locked = fs.pages_locked(gfid, page * PAGE..(page + 1) * PAGE);
        let read = fs.read(gfid, page * PAGE, PAGE as usize, at(9)).await;
        drop(locked);
        self.pages().remove(&key);
        if let Ok(data) = &read {
            self.pages().insert(key, Some(data.clone()));
        }
        read
    }

    fn cached(&self) -> usize {
        self.pages().values().flatten().count()
    }
}

impl KernelCache for Kernel {
    fn clear(&self, _gfid: Gfid, _part: Range<u64>) -> Dropping {
        Box::pin(std::future::ready(()))
    }

    fn invalidate(&self, gfid: Gfid, part: Range<u64>) -> Dropping {
        let within = |key: &(Gfid, u64)| key.0 == gfid && part.contains(&(key.1 * PAGE));
        if self.pages().iter().any(|(key, page)| within(key) && page.is_none()) {
            return Box::pin(std::future::pending());
        }
        self.pages().retain(|key, _| !within(key));
        Box::pin(std::future::ready(()))
    }
}

/// A look at a future that nobody wakes.
macro_rules! look {
    ($future:expr) => {
        $future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    };
}

#[test]
fn pages_do_not_outlive_the_sessions_time() {
    let kernel = Arc::new(Kernel::default());
    let mounts = mounts_with(&options(), &(Arc::clone(&kernel) as Arc<dyn KernelCache>), 1);
    let (fs, world) = (&mounts[0], Rc::clone(&mounts[0].backend.world));
    let gfid = create(fs, "file");
    let mut watch = Watch::default();
    block_on(async {
        fs.write(gfid, 0, Bytes::from_static(b"0000111122223333"), PLACED, at(2))
            .await
            .expect("write");
        assert_eq!(
            fs.look_at_clock(&mut watch).await,
            Duration::from_millis(500),
            "what is left of its time"
        );
        for page in [0, 2, 3] {
            kernel.read(fs, gfid, page).await.expect("read");
        }
    });
    assert_eq!(kernel.cached(), 3);
    world.borrow_mut().reads_wait = true;
    let mut under_way = pin!(kernel.read(fs, gfid, 1));
    assert!(look!(under_way).is_pending());
    world.borrow_mut().expired = true;
    block_on(fs.look_at_clock(&mut watch));
    assert_eq!(kernel.cached(), 0, "before and behind the page that is locked");
    world.borrow_mut().reads_wait = false;
    assert!(look!(under_way).is_pending(), "data that comes now is not shown");
    let mut late = pin!(kernel.read(fs, gfid, 2));
    assert!(look!(late).is_pending(), "nothing begins");
    block_on(fs.look_at_clock(&mut watch));
    assert_eq!(kernel.cached(), 0, "nothing was put back");
    world.borrow_mut().expired = false;
    assert!(
        matches!(look!(under_way), Poll::Ready(Ok(data)) if data == "1111"),
        "goes on after the renewal"
    );
    assert!(matches!(look!(late), Poll::Ready(Ok(data)) if data == "2222"));
    assert_eq!(kernel.cached(), 2);
    block_on(async {
        assert!(!fs.open(gfid, false, at(3)).await.expect("open"), "pages are dropped once more");
        assert!(fs.open(gfid, false, at(3)).await.expect("open"), "and kept again");
    });
}

#[test]
fn what_a_dead_session_read_is_not_shown_by_the_next() {
    let mounts = mounts(2);
    let (fs, world) = (&mounts[0], Rc::clone(&mounts[0].backend.world));
    let gfid = create(fs, "file");
    block_on(fs.write(gfid, 0, Bytes::from_static(b"before"), PLACED, at(2))).expect("write");
    world.borrow_mut().reads_wait = true;
    let mut under_way = pin!(fs.read(gfid, 0, 6, at(3)));
    assert!(look!(under_way).is_pending());
    block_on(async {
        fs.flush_attrs(&fs.shared.table.get(gfid).expect("known")).await.expect("flush");
        fs.fenced().await;
        fs.backend.with(gfid, |stored| stored.holders.clear()).expect("there");
        mounts[1]
            .write(gfid, 0, Bytes::from_static(b"after!"), PLACED, at(4))
            .await
            .expect("write");
    });
    world.borrow_mut().reads_wait = false;
    assert!(matches!(look!(under_way), Poll::Ready(Ok(data)) if data == "after!"));
}

#[test]
fn what_only_asks_goes_on_in_the_next_session() {
    let mounts = mounts(1);
    let (fs, world) = (&mounts[0], Rc::clone(&mounts[0].backend.world));
    let gfid = create(fs, "file");
    block_on(fs.write(gfid, 0, Bytes::from_static(b"data"), PLACED, at(2))).expect("write");
    block_on(fs.fsync(gfid, OPEN, false, at(2))).expect("fsync");
    world.borrow_mut().reads_wait = true;
    let mut read = pin!(fs.read(gfid, 0, 4, at(3)));
    assert!(look!(read).is_pending());
    world.borrow_mut().dead = true;
    block_on(next_session(fs));
    world.borrow_mut().reads_wait = false;
    let mut asked = pin!(fs.getattr(gfid, at(3)));
    assert!(look!(read).is_pending() && look!(asked).is_pending());
    let made = fs.create(Gfid::ROOT, b"new".to_vec(), PLAIN, NEW, at(3));
    assert_eq!(block_on(made).expect_err("nobody knows what came of it").errno(), errno::EIO);
    world.borrow_mut().dead = false;
    assert!(matches!(look!(read), Poll::Ready(Ok(data)) if data == "data"));
    assert!(matches!(look!(asked), Poll::Ready(Ok(attr)) if attr.size == 4));
}

#[test]
fn a_truncation_that_waited_does_not_go_on_in_the_next_session() {
    let mounts = mounts(1);
    let fs = &mounts[0];
    let gfid = create(fs, "file");
    block_on(fs.write(gfid, 0, Bytes::from_static(b"data"), PLACED, at(2))).expect("write");
    block_on(fs.fsync(gfid, OPEN, false, at(2))).expect("fsync");
    let inode = fs.shared.table.get(gfid).expect("known");
    let flush = inode.with(|state| state.begin_flush(FlushKind::Whole)).expect("none is under way");
    let mut cut = pin!(fs.setattr(gfid, truncate(1), at(3)));
    assert!(look!(cut).is_pending());
    block_on(next_session(fs));
    inode.change(|state| state.flush_done(flush, super::inode::Sent::No, 0));
    assert!(matches!(look!(cut), Poll::Ready(Err(error)) if error.errno() == errno::EIO));
    assert_eq!(fs.backend.with(gfid, |stored| stored.data.clone()).expect("there"), b"data");
}
