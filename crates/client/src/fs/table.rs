//! All files of which this mount knows something, and how tasks wait for them.
//!
//! Contract: a file has one [`Inode`] at a time, found by any thread; its lock is held for state
//! changes only, never across a wait. Every change that may let someone go on wakes all who wait
//! for that file.

use super::inode::{Access, Entry, InodeState, Need, Ticket};
use crate::objecter::Behind;
use messenger::sync::{ContentionMutex, LockTable};
use protocol::Gfid;
use protocol::namespace::LeaseMode;
use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

/// Parts of the table, so that workers seldom meet on one lock: well above the number of workers.
const PARTS: usize = 64;

/// A file with its state.
pub struct Inode {
    gfid: Gfid,
    state: ContentionMutex<InodeState>,
}

impl Inode {
    fn new(gfid: Gfid, locks: &LockTable) -> Self {
        Self { gfid, state: ContentionMutex::new(locks, "fs inode", InodeState::new(gfid)) }
    }

    /// Which file.
    pub fn gfid(&self) -> Gfid {
        self.gfid
    }

    /// Looks at or changes the state where nobody has to learn of it.
    pub fn with<R>(&self, f: impl FnOnce(&mut InodeState) -> R) -> R {
        f(&mut self.state.lock())
    }

    /// Changes the state and wakes everyone who waits for the file.
    pub fn change<R>(&self, f: impl FnOnce(&mut InodeState) -> R) -> R {
        let (result, waiters) = {
            let mut state = self.state.lock();
            let result = f(&mut state);
            (result, state.take_waiters())
        };
        waiters.into_iter().for_each(std::task::Waker::wake);
        result
    }

    /// Waits until `f` gives a value; it is asked again after every change.
    pub async fn until<R>(&self, mut f: impl FnMut(&mut InodeState) -> Option<R>) -> R {
        poll_fn(|cx| {
            let mut state = self.state.lock();
            match f(&mut state) {
                Some(value) => Poll::Ready(value),
                None => {
                    state.wait(cx.waker());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Waits for a lasting answer to the wish to enter.
    pub async fn enter(self: &Arc<Self>, need: Need, first: bool) -> Entered {
        let wanted = (need.access == Access::Exclusive).then(|| Wanted::new(self));
        let entry = self
            .until(|state| match state.try_enter(need, first) {
                Entry::Wait => None,
                other => Some(other),
            })
            .await;
        drop(wanted);
        match entry {
            Entry::Entered => Entered::Inside(Op { inode: Arc::clone(self), access: need.access }),
            Entry::Acquire(ticket, mode) => Entered::Acquire(Asking::new(self, ticket), mode),
            Entry::Wait => unreachable!("waited out above"),
        }
    }

    /// Takes the file alone if nothing entered since `seen`.
    pub fn enter_if_quiet(self: &Arc<Self>, seen: u64) -> Option<Op> {
        let quiet = self.with(|state| state.enter_if_quiet(seen));
        quiet.then(|| Op { inode: Arc::clone(self), access: Access::Exclusive })
    }

    /// Takes the file alone if its lease could go back; see [`InodeState::enter_if_idle`].
    pub fn enter_if_idle(self: &Arc<Self>) -> Option<Op> {
        let idle = self.with(InodeState::enter_if_idle);
        idle.then(|| Op { inode: Arc::clone(self), access: Access::Exclusive })
    }
}

/// The lasting answers to a wish to enter.
pub enum Entered {
    /// The operation is inside.
    Inside(Op),
    /// This task has to ask the service for a lease.
    Acquire(Asking, LeaseMode),
}

/// An operation inside a file; leaves when dropped, also when its deadline drops the task, unless
/// it stays behind.
pub struct Op {
    inode: Arc<Inode>,
    access: Access,
}

impl Op {
    /// The file.
    pub fn inode(&self) -> &Arc<Inode> {
        &self.inode
    }

    /// Lets it stay inside until its write of so many bytes is reported, if the file's window has
    /// room for that.
    ///
    /// # Errors
    /// The operation itself, if not.
    pub fn stay_behind(self, bytes: u64, window: u64) -> Result<Arc<Staying>, Op> {
        let stays = self.inode.with(|state| state.stay_behind(bytes, window));
        if stays { Ok(Arc::new(Staying { op: self, bytes })) } else { Err(self) }
    }
}

/// A write that is inside a file until it is reported, answered or not; leaves when dropped.
pub struct Staying {
    op: Op,
    bytes: u64,
}

impl Behind for Staying {
    fn lost(&self) {
        self.op.inode.with(InodeState::mark_lost);
    }
}

impl Drop for Staying {
    fn drop(&mut self) {
        self.op.inode.with(|state| state.behind_ended(self.bytes));
    }
}

impl Drop for Op {
    fn drop(&mut self) {
        self.inode.change(|state| state.leave(self.access));
    }
}

/// Tells shared operations that someone waits to be alone.
struct Wanted<'a>(&'a Inode);

impl<'a> Wanted<'a> {
    fn new(inode: &'a Inode) -> Self {
        // Whoever gathers writes is inside, and ends then.
        inode.change(InodeState::exclusive_wanted);
        Self(inode)
    }
}

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        self.0.change(InodeState::exclusive_settled);
    }
}

/// A question to the service under way; taken back when dropped without an answer.
pub struct Asking {
    inode: Arc<Inode>,
    ticket: Ticket,
}

impl Asking {
    /// For a ticket that the state gave out.
    pub fn new(inode: &Arc<Inode>, ticket: Ticket) -> Self {
        Self { inode: Arc::clone(inode), ticket }
    }

    /// Which question.
    pub fn ticket(&self) -> Ticket {
        self.ticket
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.inode.change(|state| state.not_granted(self.ticket));
    }
}

/// The table. See the module.
pub struct Table {
    locks: LockTable,
    parts: Vec<ContentionMutex<HashMap<Gfid, Arc<Inode>>>>,
}

impl Table {
    /// An empty table; `locks` lists its locks and those of its files.
    pub fn new(locks: &LockTable) -> Self {
        let part = |_| ContentionMutex::new(locks, "fs inode table", HashMap::new());
        Self { locks: locks.clone(), parts: (0..PARTS).map(part).collect() }
    }

    fn part(&self, gfid: Gfid) -> &ContentionMutex<HashMap<Gfid, Arc<Inode>>> {
        &self.parts[gfid.unique() as usize % PARTS]
    }

    /// The file, if something is known of it.
    pub fn get(&self, gfid: Gfid) -> Option<Arc<Inode>> {
        self.part(gfid).lock().get(&gfid).cloned()
    }

    /// The file, known from now on.
    pub fn get_or_insert(&self, gfid: Gfid) -> Arc<Inode> {
        let make = || Arc::new(Inode::new(gfid, &self.locks));
        Arc::clone(self.part(gfid).lock().entry(gfid).or_insert_with(make))
    }

    /// The file, known from now on; whoever finds it finds it changed by `f`.
    pub fn insert(&self, gfid: Gfid, f: impl FnOnce(&mut InodeState)) -> Arc<Inode> {
        let mut part = self.part(gfid).lock();
        let make = || Arc::new(Inode::new(gfid, &self.locks));
        let inode = Arc::clone(part.entry(gfid).or_insert_with(make));
        inode.change(f);
        inode
    }

    /// Every file known now.
    pub fn all(&self) -> Vec<Arc<Inode>> {
        let mut all = Vec::new();
        for part in &self.parts {
            all.extend(part.lock().values().cloned());
        }
        all
    }

    /// Forgets the files that nobody would miss.
    pub fn sweep(&self) {
        for part in &self.parts {
            // A count of one under the table's lock means that no task has the file or can get it.
            part.lock().retain(|_, inode| {
                Arc::strong_count(inode) > 1 || !inode.with(|state| state.is_forgettable())
            });
        }
    }
}
