//! Reading and writing the data of files: a worker's share of the client.
//!
//! Contract: a [`LocalIo`] lives on one worker and is not `Send`. Its futures run there; a part of a file whose PG
//! another worker owns is handed to that worker, so any worker serves any file.

use crate::error::ClientError;
use bytes::Bytes;
use protocol::{Gfid, PoolId};
use std::ops::Range;
use std::rc::Rc;

/// A regular file's data: which and where.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FileRef {
    /// The file.
    pub gfid: Gfid,
    /// The pool that holds its data (`Attr::pool`).
    pub pool: PoolId,
}

/// What the holder of the write lease knows of the file's size. It saves reads before partial writes at the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SizeHint {
    /// Every byte from here on is zero, counting all writes already begun: raise the size in core *before* calling
    /// write, and pass the size from before the raise. `u64::MAX` if not known: costs a read at most.
    pub zero_from: u64,
    /// The file's size when this write is done, at least: what a crash of this client leaves behind for the size.
    pub size_after: u64,
}

/// A worker's data I/O. See the module.
#[derive(Clone)]
pub struct LocalIo {
    _local: Rc<()>,
}

impl LocalIo {
    /// Reads `len` bytes at `offset`. What was never written is zeros; the caller clips at the end of the file.
    ///
    /// # Errors
    /// [`ClientError::TimedOut`], [`ClientError::Unreadable`], [`ClientError::Fenced`], [`ClientError::NoPool`].
    pub async fn read(&self, _file: FileRef, _offset: u64, _len: usize) -> Result<Bytes, ClientError> {
        Err(ClientError::Closed)
    }

    /// Writes `data` at `offset`. Done means acknowledged by every shard that must have it: it survives the death of
    /// any processes. [`LocalIo::sync`] makes it survive power.
    ///
    /// # Errors
    /// As [`LocalIo::read`], and [`ClientError::NoSpace`] (nothing or only some objects' parts were written). After
    /// [`ClientError::TimedOut`] the write may still happen.
    pub async fn write(&self, _file: FileRef, _offset: u64, _data: Bytes, _hint: SizeHint) -> Result<(), ClientError> {
        Err(ClientError::Closed)
    }

    /// Makes a range read as zeros, and frees whole stripes of it (FALLOC_FL_PUNCH_HOLE and FALLOC_FL_ZERO_RANGE).
    ///
    /// # Errors
    /// As [`LocalIo::write`].
    pub async fn punch(&self, _file: FileRef, _range: Range<u64>, _hint: SizeHint) -> Result<(), ClientError> {
        Err(ClientError::Closed)
    }

    /// Cuts or extends the data to `new_size`; `old_size` is the size before, at least.
    ///
    /// # Errors
    /// As [`LocalIo::write`].
    pub async fn truncate(&self, _file: FileRef, _new_size: u64, _old_size: u64) -> Result<(), ClientError> {
        Err(ClientError::Closed)
    }

    /// Removes all data of a file: objects up to `size_hint` and further until none is found.
    ///
    /// # Errors
    /// As [`LocalIo::write`].
    pub async fn delete(&self, _file: FileRef, _size_hint: u64) -> Result<(), ClientError> {
        Err(ClientError::Closed)
    }

    /// fsync: returns when every write of the file reported so far is durable on all its shards.
    ///
    /// # Errors
    /// As [`LocalIo::read`], and [`ClientError::Lost`] once if a session died with writes of this file.
    pub async fn sync(&self, _file: FileRef) -> Result<(), ClientError> {
        Err(ClientError::Closed)
    }

    /// As [`LocalIo::sync`], for all files.
    ///
    /// # Errors
    /// As [`LocalIo::sync`].
    pub async fn sync_all(&self) -> Result<(), ClientError> {
        Err(ClientError::Closed)
    }

    /// Where the range holds data, in order, in file bytes, at the granularity of stripes; the rest is hole.
    ///
    /// # Errors
    /// As [`LocalIo::read`].
    pub async fn extents(&self, _file: FileRef, _range: Range<u64>) -> Result<Vec<Range<u64>>, ClientError> {
        Err(ClientError::Closed)
    }

    /// Where the file's data ends, in bytes, found from its fragments (for a file whose writer died). Objects beyond
    /// `hint` are looked for until none is found.
    ///
    /// # Errors
    /// As [`LocalIo::read`].
    pub async fn probe_size(&self, _file: FileRef, _hint: u64) -> Result<u64, ClientError> {
        Err(ClientError::Closed)
    }

    /// Bytes that the file's data takes on disk, without parity (for `st_blocks`); `size` is the file's size.
    ///
    /// # Errors
    /// As [`LocalIo::read`].
    pub async fn allocated(&self, _file: FileRef, _size: u64) -> Result<u64, ClientError> {
        Err(ClientError::Closed)
    }
}
