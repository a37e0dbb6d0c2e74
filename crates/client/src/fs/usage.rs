//! What a file takes on disk, for `st_blocks`.
//!
//! Contract: what counts is the space of users' data, as `k` shards hold it: neither parity, nor
//! headers. A file that has no holes ([`Footprint::Dense`]) takes its size, and nobody is asked;
//! one of an older version, or whose writer died, is taken for such if it has one object. For
//! others [`LocalFs::allocated`] asks the shards, at most once in [`AGE_MAX`] for a file that this
//! mount does not write, and [`FileSystem::allocated_known`] never does. Other mounts may write
//! meanwhile; an answer is never 0 for a file with a size, for archivers take that for a file
//! without data.

use super::table::Inode;
use super::{Backend, FileSystem, LocalFs, Shared};
use messenger::sync::{ContentionMutex, LockTable};
use protocol::Gfid;
use protocol::namespace::{Attr, FileKind, Footprint, LeaseMode};
use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

/// How long an answer is used again: as long as the kernel by default keeps attributes.
const AGE_MAX: Duration = Duration::from_secs(1);
/// How long `stat` waits for shards before it takes the size instead: dead daemons must not make
/// `ls` hang.
const ASK_WAIT: Duration = Duration::from_secs(2);
/// Unit of `st_blocks` in bytes.
const BLOCK_BYTES: u64 = 512;

/// Answers of the shards, by file.
pub(super) struct Usage {
    known: ContentionMutex<HashMap<Gfid, (Instant, u64)>>,
}

impl Usage {
    pub(super) fn new(locks: &LockTable) -> Self {
        Self { known: ContentionMutex::new(locks, "fs usage", HashMap::new()) }
    }

    fn get(&self, gfid: Gfid, now: Instant) -> Option<u64> {
        let known = self.known.lock();
        known
            .get(&gfid)
            .filter(|(at, _)| now.saturating_duration_since(*at) < AGE_MAX)
            .map(|(_, bytes)| *bytes)
    }

    /// Something that changes it a lot has happened: the next question is asked anew.
    pub(super) fn forget(&self, gfid: Gfid) {
        self.known.lock().remove(&gfid);
    }

    /// Drops what is too old to be used.
    pub(super) fn sweep(&self, now: Instant) {
        self.known.lock().retain(|_, (at, _)| now.saturating_duration_since(*at) < AGE_MAX);
    }
}

/// As if it had no holes.
fn full(attr: &Attr) -> u64 {
    match attr.kind {
        FileKind::Regular => attr.size.div_ceil(BLOCK_BYTES).saturating_mul(BLOCK_BYTES),
        _ => 0,
    }
}

/// Do its shards have to be asked?
fn is_asked_for(attr: &Attr, object_bytes: u64) -> bool {
    let is_torn = match attr.footprint {
        Footprint::Dense => false,
        Footprint::Unknown => attr.size > object_bytes,
        Footprint::Sparse | Footprint::Beyond => true,
    };
    attr.kind == FileKind::Regular && is_torn
}

fn known(shared: &Shared, attr: &Attr, object_bytes: u64) -> Option<u64> {
    if !is_asked_for(attr, object_bytes) {
        return Some(full(attr));
    }
    // What this mount writes changes from one question to the next.
    let is_written =
        |inode: Arc<Inode>| inode.with(|state| state.lease()) == Some(LeaseMode::Write);
    if shared.table.get(attr.gfid).is_some_and(is_written) {
        return None;
    }
    shared.usage.get(attr.gfid, Instant::now())
}

impl FileSystem {
    /// Bytes that a file takes on disk, without parity, if no shard has to be asked for them; else
    /// its size, and true.
    pub fn allocated_known(&self, attr: &Attr) -> (u64, bool) {
        let Ok(object_bytes) = super::backend::object_bytes(&self.client, attr.pool) else {
            return (full(attr), false);
        };
        match known(&self.shared, attr, object_bytes) {
            Some(bytes) => (bytes, false),
            None => (full(attr), true),
        }
    }
}

impl<B: Backend> LocalFs<B> {
    /// Bytes that a file takes on disk, without parity; of a file whose shards do not answer within
    /// 2 s, its size.
    pub async fn allocated(&self, attr: &Attr) -> u64 {
        let Ok(object_bytes) = self.backend.object_bytes(attr.pool) else { return full(attr) };
        if let Some(bytes) = known(&self.shared, attr, object_bytes) {
            return bytes;
        }
        let file = crate::objecter::FileRef { gfid: attr.gfid, pool: attr.pool };
        let upto = if attr.footprint == Footprint::Beyond { u64::MAX } else { attr.size };
        let mut asked = pin!(self.backend.allocated(file, upto));
        let mut late = pin!(self.backend.sleep(ASK_WAIT));
        let answer = poll_fn(|cx| match asked.as_mut().poll(cx) {
            Poll::Ready(answer) => Poll::Ready(answer.ok()),
            Poll::Pending => late.as_mut().poll(cx).map(|()| None),
        });
        // Also a failure is remembered, or each `stat` would wait anew.
        let least = if attr.size > 0 { BLOCK_BYTES } else { 0 };
        let bytes = answer.await.unwrap_or_else(|| full(attr)).max(least);
        self.shared.usage.known.lock().insert(attr.gfid, (Instant::now(), bytes));
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::sparse_attr;
    use super::*;

    #[test]
    fn only_files_that_may_have_holes_are_asked_for() {
        let attr = |footprint, size| Attr { footprint, ..sparse_attr(size) };
        assert!(!is_asked_for(&attr(Footprint::Dense, u64::MAX), 100));
        assert!(is_asked_for(&attr(Footprint::Sparse, 1), 100));
        assert!(is_asked_for(&attr(Footprint::Beyond, 0), 100));
        let asked = |size| is_asked_for(&sparse_attr(size), 100);
        assert!(!asked(0) && !asked(100));
        assert!(asked(101) && asked(u64::MAX));
        assert!(!is_asked_for(&Attr { kind: FileKind::Directory, ..sparse_attr(1000) }, 100));
        assert_eq!((full(&sparse_attr(1)), full(&sparse_attr(1024))), (512, 1024));
    }

    #[test]
    fn answers_age() {
        let (usage, gfid, now) =
            (Usage::new(&LockTable::default()), Gfid::of_inode(5), Instant::now());
        usage.known.lock().insert(gfid, (now, 7));
        assert_eq!(usage.get(gfid, now), Some(7));
        assert_eq!(usage.get(gfid, now + AGE_MAX), None);
        usage.sweep(now);
        assert_eq!(usage.get(gfid, now), Some(7));
        usage.sweep(now + AGE_MAX);
        assert_eq!(usage.get(gfid, now), None);
        usage.known.lock().insert(gfid, (now, 7));
        usage.forget(gfid);
        assert_eq!(usage.get(gfid, now), None);
    }
}
