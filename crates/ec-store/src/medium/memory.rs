//! A medium in the memory of this process: `memstore`.
//!
//! Contract: behaves as a disk whose syncs cost nothing and mean nothing: all of it is gone with
//! the last clone. Holds at most the bytes it was made for, counted in whole pages as they are
//! taken or reserved; beyond them writes fail with `StorageFull` and change nothing. Names and
//! empty files are not counted.

use super::{Extent, FileStat, Medium, MediumFile, Names, OpenMode};
use crate::disk::Space;
use messenger::sync::{ContentionMutex, LockTable};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The unit of memory. As large as a page of the kernel's, so that small fragments cost as little
/// here as on a disk.
const PAGE_BYTES: usize = 4096;
/// The longest file: 4 GiB, far beyond a fragment or a journal segment; it bounds the table of a
/// file's pages.
const FILE_BYTES_MAX: u64 = 4 << 30;

type Page = Box<[u8; PAGE_BYTES]>;

/// See the module. Clones are the same medium.
#[derive(Clone, Debug)]
pub struct Memory {
    budget: Arc<Budget>,
    names: Arc<ContentionMutex<BTreeMap<PathBuf, Entry>>>,
}

#[derive(Clone, Debug)]
enum Entry {
    Dir,
    File(Arc<MemoryFile>),
}

/// How much is held, and may be.
#[derive(Debug)]
struct Budget {
    pages_max: u64,
    pages: AtomicU64,
}

impl Budget {
    fn take(&self, pages: u64) -> io::Result<()> {
        let fits = |now: u64| now.checked_add(pages).filter(|&sum| sum <= self.pages_max);
        self.pages
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
            .map_or(Err(io::ErrorKind::StorageFull.into()), |_| Ok(()))
    }

    fn give_back(&self, pages: u64) {
        self.pages.fetch_sub(pages, Ordering::Relaxed);
    }
}

impl Memory {
    /// An empty medium that takes at most so many bytes, in whole pages. Its lock is listed in
    /// `locks`.
    pub fn new(bytes_max: u64, locks: &LockTable) -> Self {
        let budget = Budget { pages_max: bytes_max / PAGE_BYTES as u64, pages: AtomicU64::new(0) };
        let names = ContentionMutex::new(locks, "memstore names", BTreeMap::new());
        Self { budget: Arc::new(budget), names: Arc::new(names) }
    }
}

impl Medium for Memory {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn MediumFile>> {
        let mut names = self.names.lock();
        let file = match names.get(path) {
            Some(Entry::File(file)) => Arc::clone(file),
            Some(Entry::Dir) => return Err(io::ErrorKind::IsADirectory.into()),
            None if mode == OpenMode::Existing
                || !path.parent().is_some_and(|dir| names.contains_key(dir)) =>
            {
                return Err(io::ErrorKind::NotFound.into());
            }
            None => {
                let file = Arc::new(MemoryFile {
                    budget: Arc::clone(&self.budget),
                    state: RwLock::default(),
                });
                names.insert(path.to_path_buf(), Entry::File(Arc::clone(&file)));
                file
            }
        };
        drop(names);
        if mode == OpenMode::Truncated {
            file.set_len(0)?;
        }
        Ok(file)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut names = self.names.lock();
        match names.get(path) {
            Some(Entry::File(_)) => {
                let removed = names.remove(path);
                // giving back its pages takes a while
                drop(names);
                drop(removed);
                Ok(())
            }
            Some(Entry::Dir) => Err(io::ErrorKind::IsADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut names = self.names.lock();
        match names.get(from) {
            Some(Entry::File(file)) => {
                let entry = Entry::File(Arc::clone(file));
                names.remove(from);
                names.insert(to.to_path_buf(), entry);
                Ok(())
            }
            Some(Entry::Dir) => Err(io::ErrorKind::IsADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        let mut names = self.names.lock();
        for above in dir.ancestors() {
            if let Entry::File(_) = names.entry(above.to_path_buf()).or_insert(Entry::Dir) {
                return Err(io::ErrorKind::NotADirectory.into());
            }
        }
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Names> {
        let names = self.names.lock();
        if !matches!(names.get(dir), Some(Entry::Dir)) {
            return Err(io::ErrorKind::NotFound.into());
        }
        // whatever lies below the directory follows it in the order of paths
        let below = names
            .range(dir.to_path_buf()..)
            .map(|(path, _)| path)
            .take_while(|path| path.starts_with(dir));
        let children =
            below.filter(|path| path.parent() == Some(dir)).filter_map(|path| path.file_name());
        let children: Vec<io::Result<OsString>> =
            children.map(|name| Ok(name.to_os_string())).collect();
        Ok(Box::new(children.into_iter()))
    }

    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    fn space(&self, _dir: &Path) -> io::Result<Space> {
        let (all, used) = (self.budget.pages_max, self.budget.pages.load(Ordering::Relaxed));
        let bytes = |pages: u64| pages * PAGE_BYTES as u64;
        Ok(Space {
            total_bytes: bytes(all),
            used_bytes: bytes(used),
            free_bytes: bytes(all - used),
        })
    }
}

/// A file in memory; its pages go back when nobody names it or holds it any more.
#[derive(Debug)]
struct MemoryFile {
    budget: Arc<Budget>,
    // A bare lock: there is one for each file, as the kernel has one for each inode, and readers
    // share it.
    state: RwLock<State>,
}

#[derive(Debug, Default)]
struct State {
    length: u64,
    /// Pages by number; `None` and what is behind the last are holes.
    pages: Vec<Option<Page>>,
    /// Pages before this one are counted whether they are there or not.
    reserved: u64,
    /// Pages that are there, from `reserved` on.
    counted: u64,
}

impl State {
    /// Drops pages in a range of numbers; gives how many that were counted for themselves.
    fn drop_pages(&mut self, range: std::ops::Range<usize>) -> u64 {
        let first = range.start;
        let end = range.end.min(self.pages.len());
        let mut freed = 0;
        for (at, page) in self.pages.iter_mut().enumerate().take(end).skip(first) {
            freed += u64::from(page.take().is_some() && at as u64 >= self.reserved);
        }
        self.counted -= freed;
        freed
    }

    /// Which pages of a range are to be counted when they are written.
    fn missing(&self, range: std::ops::Range<usize>) -> u64 {
        let is_missing = |&at: &usize| {
            at as u64 >= self.reserved && self.pages.get(at).is_none_or(Option::is_none)
        };
        range.filter(is_missing).count() as u64
    }

    fn write(&mut self, mut offset: usize, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (at, within) = (offset / PAGE_BYTES, offset % PAGE_BYTES);
            let count = bytes.len().min(PAGE_BYTES - within);
            if self.pages.len() <= at {
                self.pages.resize_with(at + 1, || None);
            }
            if self.pages[at].is_none() {
                self.counted += u64::from(at as u64 >= self.reserved);
            }
            let page = self.pages[at].get_or_insert_with(|| Box::new([0; PAGE_BYTES]));
            page[within..within + count].copy_from_slice(&bytes[..count]);
            (offset, bytes) = (offset + count, &bytes[count..]);
        }
    }
}

/// The pages that a range of bytes touches.
fn pages_of(offset: u64, length: u64) -> std::ops::Range<usize> {
    (offset / PAGE_BYTES as u64) as usize..(offset + length).div_ceil(PAGE_BYTES as u64) as usize
}

fn check_end(offset: u64, length: u64) -> io::Result<u64> {
    let end = offset.checked_add(length).filter(|&end| end <= FILE_BYTES_MAX);
    end.ok_or_else(|| io::ErrorKind::FileTooLarge.into())
}

impl MediumFile for MemoryFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let state = self.state.read();
        let count = state.length.saturating_sub(offset).min(buf.len() as u64) as usize;
        let (mut rest, mut offset) = (&mut buf[..count], offset as usize);
        while !rest.is_empty() {
            let within = offset % PAGE_BYTES;
            let (part, after) = rest.split_at_mut(rest.len().min(PAGE_BYTES - within));
            match state.pages.get(offset / PAGE_BYTES) {
                Some(Some(page)) => part.copy_from_slice(&page[within..within + part.len()]),
                _ => part.fill(0),
            }
            offset += part.len();
            rest = after;
        }
        Ok(count)
    }

    fn read_now(&self, buf: &mut [u8], offset: u64) -> io::Result<bool> {
        Ok(self.read_at(buf, offset)? == buf.len())
    }

    fn write_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let length: usize = slices.iter().map(|slice| slice.len()).sum();
        let end = check_end(offset, length as u64)?;
        if length == 0 {
            return Ok(0);
        }
        let mut state = self.state.write();
        self.budget.take(state.missing(pages_of(offset, length as u64)))?;
        let mut at = offset as usize;
        for slice in slices {
            state.write(at, slice);
            at += slice.len();
        }
        state.length = state.length.max(end);
        Ok(length)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        check_end(0, length)?;
        let mut state = self.state.write();
        if length < state.length {
            let end = length.div_ceil(PAGE_BYTES as u64);
            let mut freed = state.drop_pages(end as usize..usize::MAX);
            state.pages.truncate(end as usize);
            freed += state.reserved.saturating_sub(end);
            state.reserved = state.reserved.min(end);
            self.budget.give_back(freed);
            let within = (length % PAGE_BYTES as u64) as usize;
            if let Some(Some(page)) = state.pages.get_mut((length / PAGE_BYTES as u64) as usize) {
                page[within..].fill(0);
            }
        }
        state.length = length;
        Ok(())
    }

    fn extent(&self, what: Extent, offset: u64, length: u64) -> io::Result<bool> {
        let end = check_end(offset, length)?;
        let mut state = self.state.write();
        match what {
            Extent::Allocate => {
                let pages = pages_of(0, end).end as u64;
                let first = state.reserved;
                if pages > first {
                    self.budget.take(state.missing(first as usize..pages as usize))?;
                    let there = state
                        .pages
                        .iter()
                        .take(pages as usize)
                        .skip(first as usize)
                        .flatten()
                        .count();
                    state.counted -= there as u64;
                    state.reserved = pages;
                }
                state.length = state.length.max(end);
            }
            Extent::Punch => {
                let range = pages_of(offset, end.min(state.length).saturating_sub(offset));
                for at in range {
                    let start = (at * PAGE_BYTES) as u64;
                    let (from, to) =
                        (offset.max(start) - start, end.min(start + PAGE_BYTES as u64) - start);
                    if to - from < PAGE_BYTES as u64
                        && let Some(Some(page)) = state.pages.get_mut(at)
                    {
                        page[from as usize..to as usize].fill(0);
                    }
                }
                let whole = offset.next_multiple_of(PAGE_BYTES as u64) as usize / PAGE_BYTES
                    ..end as usize / PAGE_BYTES;
                let freed = state.drop_pages(whole);
                self.budget.give_back(freed);
            }
        }
        Ok(true)
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        let state = self.state.read();
        let first = (offset / PAGE_BYTES as u64) as usize;
        let mut pages = state.pages.iter().enumerate().skip(first);
        let at = pages.find_map(|(at, page)| page.as_ref().map(|_| (at * PAGE_BYTES) as u64));
        Ok(at.map(|at| at.max(offset)).filter(|at| *at < state.length))
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn stat(&self) -> io::Result<FileStat> {
        let state = self.state.read();
        let allocated_bytes = (state.reserved + state.counted) * PAGE_BYTES as u64;
        // nobody but this process removes names
        Ok(FileStat { length: state.length, allocated_bytes, is_linked: true })
    }
}

impl Drop for MemoryFile {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        self.budget.give_back(state.reserved + state.counted);
    }
}
