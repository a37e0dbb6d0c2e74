//! Reading directories.
//!
//! Contract: a stream returns every entry that is there from its start to its end exactly once, in
//! name order, after `.` and `..`; of those made or removed meanwhile it may return some. A cursor
//! is a cookie of the entry that it follows (`cookie`): it means the same in every stream, of every
//! mount, for as long as that name is there.

mod cookie;

use super::errno::{EINVAL, ENOENT, ESTALE, posix};
use super::lease::unexpected;
use super::losses::OpenId;
use super::{Backend, FileSystem, LocalFs, Result, Shared};
use crate::error::ClientError;
use crate::session::Term;
use cookie::{AFTER_DOT, AFTER_DOTS, BEGIN, Listed, Recent};
use messenger::sync::{ContentionMutex, LockTable};
use protocol::Gfid;
use protocol::namespace::{Attr, Caller, DirEntry, NamespaceOp, Reply};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Entries asked for at a time: some 200 KiB of answer, and one round trip for most directories.
const BATCH: u32 = 1024;
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
    /// The entries that were read last.
    batch: Arc<Vec<DirEntry>>,
    /// The name before them; empty at the beginning.
    after: Vec<u8>,
    /// Their names and cookies.
    listed: Arc<Listed>,
    /// These entries of the batch were returned last: reading goes on after one of them, as a rule.
    returned: Range<usize>,
    /// The stamp from before the batch was read.
    asked: u64,
    /// The batch was read.
    is_read: bool,
    /// The directory ends with the batch.
    end: bool,
}

/// Where the entries at a cursor are.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// In the batch, from this index on.
    Here(usize),
    /// Nothing follows.
    End,
    /// A batch has to be read, after this name.
    Fetch(Vec<u8>),
    /// In another part of the directory.
    Elsewhere,
}

impl Stream {
    fn new(gfid: Gfid) -> Self {
        let (batch, after, listed) = (Arc::default(), Vec::new(), Arc::default());
        Self { gfid, batch, after, listed, returned: 0..0, asked: 0, is_read: false, end: false }
    }

    /// The beginning is read anew, as `rewinddir` has it.
    fn rewind(&mut self) {
        *self = Self::new(self.gfid);
    }

    fn place(&self, cursor: u64) -> Place {
        if cursor <= AFTER_DOTS {
            let is_first = self.is_read && self.after.is_empty();
            return if is_first { self.at(0) } else { Place::Fetch(Vec::new()) };
        }
        let all = 0..self.batch.len();
        match self
            .listed
            .index(self.returned.clone(), cursor)
            .or_else(|| self.listed.index(all, cursor))
        {
            Some(at) => self.at(at + 1),
            None => Place::Elsewhere,
        }
    }

    /// From this index on.
    fn at(&self, index: usize) -> Place {
        match self.batch.last() {
            _ if index < self.batch.len() => Place::Here(index),
            Some(last) if !self.end => Place::Fetch(last.name.clone()),
            _ => Place::End,
        }
    }

    /// Takes a batch, with the stamp from before it was read.
    fn fetched(&mut self, after: Vec<u8>, (entries, asked): (Vec<DirEntry>, u64), end: bool) {
        self.listed = Arc::new(Listed::new(entries.iter().map(|entry| &entry.name[..])));
        self.end = end || entries.is_empty();
        (self.batch, self.after) = (Arc::new(entries), after);
        (self.asked, self.returned, self.is_read) = (asked, 0..0, true);
    }
}

/// Opened directories of a mount, by handle.
pub(super) struct Streams {
    locks: LockTable,
    inner: ContentionMutex<Opened>,
    /// Which names cookies stand for.
    recent: ContentionMutex<Recent<Gfid>>,
}

/// The streams of those that are open.
type Opened = HashMap<OpenId, Arc<ContentionMutex<Stream>>>;

impl Streams {
    pub(super) fn new(locks: &LockTable) -> Self {
        let inner = ContentionMutex::new(locks, "fs directories", Opened::default());
        let recent = ContentionMutex::new(locks, "fs directories listed", Recent::default());
        Self { locks: locks.clone(), inner, recent }
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

    /// A stream takes what was read of its directory.
    fn fetched(
        &self,
        stream: &ContentionMutex<Stream>,
        after: Vec<u8>,
        read: (Vec<DirEntry>, u64),
        end: bool,
    ) {
        let (gfid, listed) = {
            let mut stream = stream.lock();
            stream.fetched(after.clone(), read, end);
            (stream.gfid, Arc::clone(&stream.listed))
        };
        self.recent.lock().add(gfid, &after, listed);
    }

    /// The name that a cursor stands for, if it was listed of late.
    fn name(&self, gfid: Gfid, cursor: u64) -> Option<Vec<u8>> {
        self.recent.lock().name(gfid, cursor)
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

    pub(super) fn readdir_known(
        &self,
        term: Term,
        handle: OpenId,
        cursor: u64,
        limit: usize,
    ) -> Option<DirPage> {
        let stream = self.dirs.get(handle)?;
        let gfid = stream.lock().gfid;
        let mut page = Vec::new();
        if cursor == BEGIN {
            page.push(dot(b".", AFTER_DOT, self.attr_known(term, gfid)?));
            stream.lock().rewind();
        }
        if cursor <= AFTER_DOT {
            page.push(dot(b"..", AFTER_DOTS, self.known.parent(term, gfid)?));
        }
        let asked = self.stamp.load(Relaxed);
        let place = stream.lock().place(cursor);
        match place {
            Place::End => return Some(page),
            Place::Here(index) => {
                self.add_from(&stream, index, limit, &mut page);
                return Some(page);
            }
            Place::Fetch(after) if !after.is_empty() => return None,
            // All names would stand in one batch.
            Place::Elsewhere if stream.lock().is_read => return None,
            Place::Fetch(_) | Place::Elsewhere => {}
        }
        let entries = self.known.entries(term, gfid)?;
        // Of a name that is gone since.
        let name = self.dirs.name(gfid, cursor);
        self.dirs.fetched(&stream, Vec::new(), (entries, asked), true);
        let index = {
            let stream = stream.lock();
            match stream.place(cursor) {
                Place::Here(index) => index,
                Place::End => return Some(page),
                Place::Fetch(_) => return None,
                Place::Elsewhere => {
                    let name = name?;
                    stream.batch.partition_point(|entry| entry.name <= name)
                }
            }
        };
        self.add_from(&stream, index, limit, &mut page);
        Some(page)
    }

    /// Adds what the stream's batch has from an index on.
    fn add_from(
        &self,
        stream: &ContentionMutex<Stream>,
        index: usize,
        limit: usize,
        page: &mut DirPage,
    ) {
        let (batch, listed, asked) = {
            let mut stream = stream.lock();
            stream.returned = index..index.saturating_add(limit).min(stream.batch.len());
            (Arc::clone(&stream.batch), Arc::clone(&stream.listed), stream.asked)
        };
        let rest = batch.iter().enumerate().skip(index).take(limit);
        let rest = rest.filter_map(|(at, entry)| Some((entry, listed.cookie(at)?)));
        page.extend(rest.map(|(entry, cookie)| DirItem {
            next: cookie,
            name: entry.name.clone(),
            attr: self.merged(entry.attr, asked),
            written_elsewhere: entry.written_elsewhere,
        }));
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
    /// EIO for an unknown handle; EINVAL for a cursor of no name in the directory, nor of one that
    /// was listed of late; the service's.
    pub async fn readdir(
        &self,
        handle: OpenId,
        cursor: u64,
        limit: usize,
        caller: Caller,
    ) -> Result<DirPage> {
        match self.read_entries(handle, cursor, limit, caller).await {
            Err(ClientError::Posix(ENOENT | ESTALE)) => Ok(Vec::new()),
            read => read,
        }
    }

    async fn read_entries(
        &self,
        handle: OpenId,
        cursor: u64,
        limit: usize,
        caller: Caller,
    ) -> Result<DirPage> {
        if let Some(page) = self.shared.readdir_known(self.backend.term(), handle, cursor, limit) {
            return Ok(page);
        }
        let stream = self
            .shared
            .dirs
            .get(handle)
            .ok_or_else(|| ClientError::Protocol("unknown directory".into()))?;
        let gfid = stream.lock().gfid;
        let mut page = Vec::new();
        if cursor == BEGIN {
            page.push(dot(b".", AFTER_DOT, self.getattr(gfid, caller).await?));
            stream.lock().rewind();
        }
        if cursor <= AFTER_DOT {
            page.push(dot(b"..", AFTER_DOTS, self.parent(gfid, caller).await?));
        }
        let place = stream.lock().place(cursor);
        let after = match place {
            Place::End => return Ok(page),
            Place::Here(index) => {
                self.shared.add_from(&stream, index, limit, &mut page);
                return Ok(page);
            }
            Place::Fetch(after) => after,
            Place::Elsewhere => match self.shared.dirs.name(gfid, cursor) {
                Some(name) => name,
                None => self.find(&stream, gfid, cursor, caller).await?,
            },
        };
        self.fetch(&stream, gfid, after, caller).await?;
        self.shared.add_from(&stream, 0, limit, &mut page);
        Ok(page)
    }

    /// Reads the directory from its beginning until the name comes that a cursor stands for.
    async fn find(
        &self,
        stream: &ContentionMutex<Stream>,
        gfid: Gfid,
        cursor: u64,
        caller: Caller,
    ) -> Result<Vec<u8>> {
        let mut after = Vec::new();
        loop {
            self.fetch(stream, gfid, after, caller).await?;
            let stream = stream.lock();
            if let Some(found) = stream
                .listed
                .index(0..stream.batch.len(), cursor)
                .and_then(|at| stream.batch.get(at))
            {
                return Ok(found.name.clone());
            }
            match stream.batch.last() {
                Some(last) if !stream.end => after = last.name.clone(),
                _ => return posix(EINVAL),
            }
        }
    }

    /// Reads the part of the directory after a name.
    async fn fetch(
        &self,
        stream: &ContentionMutex<Stream>,
        gfid: Gfid,
        after: Vec<u8>,
        caller: Caller,
    ) -> Result<()> {
        let asked = self.stamp();
        let op = NamespaceOp::ReadDir { gfid, after: after.clone(), limit: BATCH };
        match self.ask(op, caller).await? {
            Reply::Entries { entries, end } => {
                self.shared.dirs.fetched(stream, after, (entries, asked), end);
                Ok(())
            }
            other => Err(unexpected("readdir", &other)),
        }
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
            footprint: protocol::namespace::Footprint::Unknown,
        };
        DirEntry { name: name.as_bytes().to_vec(), attr, written_elsewhere: false }
    }

    fn cookie(name: &str) -> u64 {
        cookie::of_name(name.as_bytes())
    }

    #[test]
    fn a_stream_goes_on_after_any_of_its_names() {
        let mut stream = Stream::new(Gfid::ROOT);
        assert_eq!(stream.place(BEGIN), Place::Fetch(vec![]));
        stream.fetched(vec![], (vec![entry("a"), entry("b")], 0), false);
        assert_eq!(
            (stream.place(BEGIN), stream.place(AFTER_DOTS)),
            (Place::Here(0), Place::Here(0))
        );
        assert_eq!(stream.place(cookie("a")), Place::Here(1));
        assert_eq!(stream.place(cookie("b")), Place::Fetch(b"b".to_vec()));
        assert_eq!(stream.place(cookie("c")), Place::Elsewhere);
        stream.fetched(b"b".to_vec(), (vec![entry("c")], 0), true);
        assert_eq!(stream.place(cookie("b")), Place::Elsewhere, "the page before has it");
        assert_eq!(stream.place(cookie("c")), Place::End);
        assert_eq!(stream.place(AFTER_DOTS), Place::Fetch(vec![]));
        stream.rewind();
        assert_eq!(stream.place(BEGIN), Place::Fetch(vec![]), "the beginning is read anew");
    }

    #[test]
    fn an_empty_directory_ends_at_once() {
        let mut stream = Stream::new(Gfid::ROOT);
        stream.fetched(vec![], (vec![], 0), true);
        assert_eq!((stream.place(BEGIN), stream.place(AFTER_DOTS)), (Place::End, Place::End));
    }
}
