//! A medium that times what another one does, for `trefoil profile`.
//!
//! Contract: changes nothing but the time that it takes. Calls that fail are timed as well; an
//! attempt to read without waiting counts only if it gave the bytes, for otherwise the read that
//! waits follows.

use super::{Extent, FileStat, Medium, MediumFile, Names, OpenMode};
use crate::disk::Space;
use messenger::{Layer, Operation, OperationTable};
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;

/// What the calls on some files are called.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallNames {
    open: &'static str,
    remove: &'static str,
    read: &'static str,
    write: &'static str,
    extent: &'static str,
    sync: &'static str,
}

/// Calls on a journal's segments.
pub(crate) const JOURNAL_CALLS: CallNames = CallNames {
    open: "journal open",
    remove: "journal remove",
    read: "journal read",
    write: "journal append",
    extent: "journal allocate",
    sync: "journal sync",
};

/// Calls on fragment files.
pub(crate) const FRAGMENT_CALLS: CallNames = CallNames {
    open: "fragment open",
    remove: "fragment remove",
    read: "fragment read",
    write: "fragment write",
    extent: "fragment allocate",
    sync: "fragment sync",
};

#[derive(Debug)]
struct CallTimes {
    open: Operation,
    remove: Operation,
    read: Operation,
    write: Operation,
    extent: Operation,
    sync: Operation,
}

fn timed<R>(operation: &Operation, call: impl FnOnce() -> R) -> R {
    let began = operation.begin();
    let result = call();
    operation.end(began);
    result
}

/// See the module.
#[derive(Debug)]
pub(super) struct Timed {
    below: Arc<dyn Medium>,
    times: Arc<CallTimes>,
}

impl Timed {
    pub(super) fn new(below: Arc<dyn Medium>, table: &OperationTable, names: &CallNames) -> Self {
        let operation = |name| table.operation(Layer::Disk, name);
        let times = CallTimes {
            open: operation(names.open),
            remove: operation(names.remove),
            read: operation(names.read),
            write: operation(names.write),
            extent: operation(names.extent),
            sync: operation(names.sync),
        };
        Self { below, times: Arc::new(times) }
    }
}

impl Medium for Timed {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn MediumFile>> {
        let below = timed(&self.times.open, || self.below.open(path, mode))?;
        Ok(Arc::new(TimedFile { below, times: Arc::clone(&self.times) }))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        timed(&self.times.remove, || self.below.remove(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.below.rename(from, to)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.below.create_dir(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Names> {
        self.below.list(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        timed(&self.times.sync, || self.below.sync_dir(dir))
    }

    fn space(&self, dir: &Path) -> io::Result<Space> {
        self.below.space(dir)
    }
}

#[derive(Debug)]
struct TimedFile {
    below: Arc<dyn MediumFile>,
    times: Arc<CallTimes>,
}

impl MediumFile for TimedFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        timed(&self.times.read, || self.below.read_at(buf, offset))
    }

    fn read_now(&self, buf: &mut [u8], offset: u64) -> io::Result<bool> {
        let began = self.times.read.begin();
        let result = self.below.read_now(buf, offset);
        if !matches!(result, Ok(false)) {
            self.times.read.end(began);
        }
        result
    }

    fn write_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        timed(&self.times.write, || self.below.write_at(slices, offset))
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.below.set_len(length)
    }

    fn extent(&self, what: Extent, offset: u64, length: u64) -> io::Result<bool> {
        timed(&self.times.extent, || self.below.extent(what, offset, length))
    }

    fn missing(&self, offset: u64, length: u64) -> io::Result<Option<u64>> {
        timed(&self.times.extent, || self.below.missing(offset, length))
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        timed(&self.times.read, || self.below.next_data(offset))
    }

    fn begin_sync(&self) {
        self.below.begin_sync();
    }

    fn sync_data(&self) -> io::Result<()> {
        timed(&self.times.sync, || self.below.sync_data())
    }

    fn stat(&self) -> io::Result<FileStat> {
        self.below.stat()
    }

    fn uncache(&self, offset: u64, length: u64) {
        self.below.uncache(offset, length);
    }
}
