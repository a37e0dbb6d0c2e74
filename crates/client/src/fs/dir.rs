//! Reading directories.
//!
//! Contract: a stream returns every entry that is there from its start to its end exactly once, in name order, after
//! `.` and `..`; of those made or removed meanwhile it may return some. Cursors count entries from 0 (`.`), may be gone
//! back to, and mean something within one stream only.

use super::errno::{ENOENT, ESTALE};
use super::lease::unexpected;
use super::losses::OpenId;
use super::{Backend, FileSystem, LocalFs, Result, Shared};
use crate::error::ClientError;
use crate::session::Term;
use messenger::sync::{ContentionMutex, LockTable};
use protocol::Gfid;
use protocol::namespace::{Attr, Caller, DirEntry, NamespaceOp, Reply};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Entries asked for at a time: some 200 KiB of answer, and one round trip for most directories.
const BATCH: u32 = 1024;
/// `.` and `..` stand before the first name.
const DOTS: u64 = 2;

/// An entry with the cursor that follows it.
#[derive(Clone, Debug)]
pub struct DirItem {
    /// Where reading goes on after it.
    pub next: u64,
    /// Its name.
    pub name: Vec<u8>,
    /// What it names.
    pub attr: Attr,
    /// Another mount is writing it: size and times may be behind, so they must not be cached.
    pub written_elsewhere: bool,
}

/// A part of a directory, empty at its end.
pub type DirPage = Vec<DirItem>;

/// One opened directory.
#[derive(Debug)]
struct Stream {
    gfid: Gfid,
    /// Cursor of the first entry of the batch.
    start: u64,
    batch: Arc<Vec<DirEntry>>,
    /// The stamp from before the batch was read.
    asked: u64,
    /// The directory ends with the batch.
    end: bool,
    /// For every batch ever read in turn: cursor of its first entry, and the name before it.
    marks: Vec<(u64, Vec<u8>)>,
}

/// Where the entries at a cursor are.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// In the batch, from this index on.
    Here(usize),
    /// Nothing follows.
    End,
    /// A batch has to be read: it begins at this cursor, after this name.
    Fetch(u64, Vec<u8>),
}

impl Stream {
    fn new(gfid: Gfid) -> Self {
        Self { gfid, start: DOTS, batch: Arc::default(), asked: 0, end: false, marks: vec![(DOTS, Vec::new())] }
    }

    fn place(&self, cursor: u64) -> Place {
        let cursor = cursor.max(DOTS);
        let after = self.start + self.batch.len() as u64;
        if (self.start..after).contains(&cursor) {
            return Place::Here((cursor - self.start) as usize);
        }
        if cursor == after
            && let Some(last) = self.batch.last()
        {
            return if self.end { Place::End } else { Place::Fetch(after, last.name.clone()) };
        }
        if cursor >= after && self.end {
            return Place::End;
        }
        // Gone back (rewinddir, seekdir): from the nearest batch before it.
        let mark = self.marks.iter().rev().find(|(start, _)| *start <= cursor);
        let (start, name) = mark.cloned().unwrap_or((DOTS, Vec::new()));
        Place::Fetch(start, name)
    }

    /// Takes a batch, with the stamp from before it was read.
    fn fetched(&mut self, start: u64, after: Vec<u8>, (entries, asked): (Vec<DirEntry>, u64), end: bool) {
        if self.marks.last().is_some_and(|(last, _)| *last < start) {
            self.marks.push((start, after));
        }
        self.end = end || entries.is_empty();
        self.start = start;
        self.batch = Arc::new(entries);
        self.asked = asked;
    }
}

/// Opened directories of a mount, by handle.
pub(super) struct Streams {
    locks: LockTable,
    inner: ContentionMutex<Opened>,
}

/// The streams of those that are open.
type Opened = HashMap<OpenId, Arc<ContentionMutex<Stream>>>;

impl Streams {
    pub(super) fn new(locks: &LockTable) -> Self {
        let inner = ContentionMutex::new(locks, "fs directories", Opened::default());
        Self { locks: locks.clone(), inner }
    }

    pub(super) fn open(&self, gfid: Gfid, handle: OpenId) {
        let stream = ContentionMutex::new(&self.locks, "fs directory", Stream::new(gfid));
        self.inner.lock().insert(handle, Arc::new(stream));
    }

    fn get(&self, handle: OpenId) -> Option<Arc<ContentionMutex<Stream>>> {
        self.inner.lock().get(&handle).cloned()
    }

    fn close(&self, handle: OpenId) {
        self.inner.lock().remove(&handle);
    }
}

impl FileSystem {
    /// Opens a directory; the handle is for `readdir` and `closedir`. Never blocks.
    pub fn opendir(&self, gfid: Gfid) -> OpenId {
        self.shared.opendir(gfid)
    }

    /// Closes it. Never blocks.
    pub fn closedir(&self, handle: OpenId) {
        self.shared.dirs.close(handle);
    }

    /// What [`LocalFs::readdir`] would give, if nobody has to be asked for it. Never blocks.
    pub fn readdir_known(&self, handle: OpenId, cursor: u64, limit: usize) -> Option<DirPage> {
        self.shared.readdir_known(self.client().term(), handle, cursor, limit)
    }
}

impl Shared {
    pub(super) fn opendir(&self, gfid: Gfid) -> OpenId {
        let handle = self.told.open_id();
        self.dirs.open(gfid, handle);
        handle
    }

    pub(super) fn readdir_known(&self, term: Term, handle: OpenId, cursor: u64, limit: usize) -> Option<DirPage> {
        let stream = self.dirs.get(handle)?;
        let gfid = stream.lock().gfid;
        let mut page = Vec::new();
        if cursor == 0 {
            page.push(dot(b".", 1, self.attr_known(term, gfid)?));
        }
        if cursor <= 1 {
            page.push(dot(b"..", DOTS, self.known.parent(term, gfid)?));
        }
        let asked = self.stamp.load(Relaxed);
        let place = stream.lock().place(cursor);
        if let Place::Fetch(start, after) = place {
            let entries = self.known.entries(term, gfid).filter(|_| after.is_empty())?;
            stream.lock().fetched(start, after, (entries, asked), true);
        }
        self.add_batch(&stream, cursor, limit, &mut page).then_some(page)
    }

    /// Adds what the stream's batch has from a cursor on; false if it has to be read first.
    fn add_batch(&self, stream: &ContentionMutex<Stream>, cursor: u64, limit: usize, page: &mut DirPage) -> bool {
        let (index, start, batch, asked) = {
            let stream = stream.lock();
            match stream.place(cursor) {
                Place::End => return true,
                Place::Fetch(..) => return false,
                Place::Here(index) => (index, stream.start, Arc::clone(&stream.batch), stream.asked),
            }
        };
        let rest = batch.iter().enumerate().skip(index).take(limit);
        page.extend(rest.map(|(at, entry)| DirItem {
            next: start + at as u64 + 1,
            name: entry.name.clone(),
            attr: self.merged(entry.attr, asked),
            written_elsewhere: entry.written_elsewhere,
        }));
        true
    }
}

/// `.` or `..`.
fn dot(name: &[u8], next: u64, attr: Attr) -> DirItem {
    DirItem { next, name: name.to_vec(), attr, written_elsewhere: false }
}

impl<B: Backend> LocalFs<B> {
    /// Entries from a cursor on, at most `limit`, but at least one before the end. A directory that
    /// was removed has none, nor the dots.
    ///
    /// # Errors
    /// EIO for an unknown handle; the service's.
    pub async fn readdir(&self, handle: OpenId, cursor: u64, limit: usize, caller: Caller) -> Result<DirPage> {
        match self.read_entries(handle, cursor, limit, caller).await {
            Err(ClientError::Posix(ENOENT | ESTALE)) => Ok(Vec::new()),
            read => read,
        }
    }

    async fn read_entries(&self, handle: OpenId, cursor: u64, limit: usize, caller: Caller) -> Result<DirPage> {
        if let Some(page) = self.shared.readdir_known(self.backend.term(), handle, cursor, limit) {
            return Ok(page);
        }
        let stream = self.shared.dirs.get(handle).ok_or_else(|| ClientError::Protocol("unknown directory".into()))?;
        let gfid = stream.lock().gfid;
        let mut page = Vec::new();
        if cursor == 0 {
            page.push(dot(b".", 1, self.getattr(gfid, caller).await?));
        }
        if cursor <= 1 {
            page.push(dot(b"..", DOTS, self.parent(gfid, caller).await?));
        }
        let mut tries = 0;
        while !self.shared.add_batch(&stream, cursor, limit, &mut page) {
            let Place::Fetch(start, after) = stream.lock().place(cursor) else { continue };
            // A cursor beyond what is left now (entries were removed) walks to the end, never in circles.
            tries += 1;
            if tries > 1 && stream.lock().start >= start {
                break;
            }
            let asked = self.stamp();
            let op = NamespaceOp::ReadDir { gfid, after: after.clone(), limit: BATCH };
            match self.ask(op, caller).await? {
                Reply::Entries { entries, end } => stream.lock().fetched(start, after, (entries, asked), end),
                other => return Err(unexpected("readdir", &other)),
            }
        }
        Ok(page)
    }

    /// The directory above a directory.
    ///
    /// # Errors
    /// The service's.
    pub async fn parent(&self, gfid: Gfid, caller: Caller) -> Result<Attr> {
        if let Some(attr) = self.shared.known.parent(self.backend.term(), gfid) {
            return Ok(attr);
        }
        match self.ask(NamespaceOp::Parent { gfid }, caller).await? {
            Reply::Attr(attr) => Ok(attr),
            other => Err(unexpected("parent", &other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::PoolId;
    use protocol::namespace::{FileKind, Timestamp};

    fn entry(name: &str) -> DirEntry {
        let time = Timestamp::default();
        let attr = Attr {
            gfid: Gfid::of_inode(9),
            kind: FileKind::Directory,
            mode: 0o755,
            uid: 0,
            gid: 0,
            nlink: 2,
            rdev: 0,
            size: 0,
            atime: time,
            mtime: time,
            ctime: time,
            pool: PoolId::new(1),
            btime: None,
            flags: protocol::namespace::FileFlags::default(),
            has_xattrs: false,
        };
        DirEntry { name: name.as_bytes().to_vec(), attr, written_elsewhere: false }
    }

    #[test]
    fn a_stream_goes_on_after_the_last_name_and_back_to_marks() {
        let mut stream = Stream::new(Gfid::ROOT);
        assert_eq!(stream.place(0), Place::Fetch(2, vec![]));
        stream.fetched(2, vec![], (vec![entry("a"), entry("b")], 0), false);
        assert_eq!(stream.place(0), Place::Here(0));
        assert_eq!(stream.place(3), Place::Here(1));
        assert_eq!(stream.place(4), Place::Fetch(4, b"b".to_vec()));
        stream.fetched(4, b"b".to_vec(), (vec![entry("c")], 0), true);
        assert_eq!(stream.place(4), Place::Here(0));
        assert_eq!(stream.place(5), Place::End);
        assert_eq!(stream.place(2), Place::Fetch(2, vec![]));
        assert_eq!(stream.place(9), Place::End);
    }

    #[test]
    fn an_empty_directory_ends_at_once() {
        let mut stream = Stream::new(Gfid::ROOT);
        stream.fetched(2, vec![], (vec![], 0), true);
        assert_eq!(stream.place(0), Place::End);
        assert_eq!(stream.place(2), Place::End);
    }
}
