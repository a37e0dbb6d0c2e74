//! Where journals and fragment files live: the storage seam, at the level of files.
//!
//! Contract: a [`Medium`] holds named files in directories, a [`MediumFile`] is one of them, open;
//! both are shared and `Send`. [`Disk`] is the real one, on which a sync means what the write
//! protocol builds on; [`Memory`] holds everything in this process and forgets it with it. Journal,
//! fragment store and executor are the same code over both. A [`Dir`] is a directory together with
//! its medium.

mod extents;
mod files;
mod memory;
mod timed;

pub use files::Disk;
pub use memory::Memory;
pub(crate) use timed::{FRAGMENT_CALLS, JOURNAL_CALLS};

use crate::disk::Space;
use messenger::OperationTable;
use std::ffi::OsString;
use std::fmt::Debug;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use timed::{CallNames, Timed};

/// What an opening does to the name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenMode {
    /// It must be there, else `NotFound`.
    Existing,
    /// It is made if it is not there; its directory must be.
    OrCreate,
    /// As `OrCreate`, and what it held is dropped.
    Truncated,
}

/// The names in a directory, one after the other.
pub type Names = Box<dyn Iterator<Item = io::Result<OsString>> + Send>;

/// Named files. Errors are those of the system calls of these names, whatever is below.
pub trait Medium: Debug + Send + Sync {
    /// Opens a file to read and write.
    ///
    /// # Errors
    /// `NotFound`, and those of `open`.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn MediumFile>>;

    /// Removes a file's name; who has it open keeps it.
    ///
    /// # Errors
    /// `NotFound`, and those of `unlink`.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Gives a file another name, in place of what has that name.
    ///
    /// # Errors
    /// Those of `rename`.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Makes a directory and those above it, where they are missing, durably.
    ///
    /// # Errors
    /// Those of `mkdir`.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;

    /// The names in a directory, in no order.
    ///
    /// # Errors
    /// `NotFound`, and those of `readdir`, also as an item.
    fn list(&self, dir: &Path) -> io::Result<Names>;

    /// Makes created, renamed and removed names of a directory durable.
    ///
    /// # Errors
    /// Those of `fsync`.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Space of what holds the directory.
    ///
    /// # Errors
    /// Those of `statvfs`.
    fn space(&self, dir: &Path) -> io::Result<Space>;
}

/// What to do with the space of a range of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    /// Take it, so that writing there cannot meet a full medium; lengthens the file.
    Allocate,
    /// Give it back; it reads as zeros.
    Punch,
}

/// How large a file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileStat {
    /// Its length, in bytes.
    pub length: u64,
    /// The space that it takes, in bytes.
    pub allocated_bytes: u64,
    /// It still has a name.
    pub is_linked: bool,
}

/// An open file, read and written at offsets. Lengths are in bytes.
pub trait MediumFile: Debug + Send + Sync {
    /// Reads what is there, at most the buffer; 0 at or behind the end.
    ///
    /// # Errors
    /// Those of `pread`.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Reads into the whole buffer only if that needs no wait: `false` if any byte would, or lies
    /// behind the end; what the buffer then holds is undefined.
    ///
    /// # Errors
    /// Those of `preadv2`; a file system without `RWF_NOWAIT` counts as one that would wait, unless
    /// it lies in memory.
    fn read_now(&self, buf: &mut [u8], offset: u64) -> io::Result<bool>;

    /// Writes slices one behind the other; gives the bytes written, as a rule all.
    ///
    /// # Errors
    /// Those of `pwritev`; nothing was written.
    fn write_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize>;

    /// Shortens the file, or lengthens it by a hole.
    ///
    /// # Errors
    /// Those of `ftruncate`.
    fn set_len(&self, length: u64) -> io::Result<()>;

    /// Takes or gives back the space of a range; `false` if the medium cannot.
    ///
    /// # Errors
    /// Those of `fallocate`.
    fn extent(&self, what: Extent, offset: u64, length: u64) -> io::Result<bool>;

    /// Bytes of a range for which no space is taken, whether they hold data or not; `None` if the
    /// medium cannot tell, or takes other space whenever something is written.
    ///
    /// # Errors
    /// Those of the `FIEMAP` request.
    fn missing(&self, offset: u64, length: u64) -> io::Result<Option<u64>> {
        let _ = (offset, length);
        Ok(None)
    }

    /// Where the next bytes lie at or behind an offset that may be other than 0; `None`: from there
    /// on the file is one hole. May name a byte of a hole, but must know of bytes just written:
    /// checksums that it passes over count as never written.
    ///
    /// # Errors
    /// Those of `lseek`.
    fn next_data(&self, offset: u64) -> io::Result<Option<u64>>;

    /// Begins to write what [`MediumFile::sync_data`] would wait for. A wish, whose errors the sync
    /// tells.
    fn begin_sync(&self) {}

    /// Waits until everything written is durable, as far as the medium knows the word.
    ///
    /// # Errors
    /// Those of `fdatasync`: the pages may be lost, and a second sync means nothing.
    fn sync_data(&self) -> io::Result<()>;

    /// How large it is.
    ///
    /// # Errors
    /// Those of `fstat`.
    fn stat(&self) -> io::Result<FileStat>;

    /// Forgets what is held of the range in memory and durable too, so that what is read next comes
    /// from below. A wish.
    fn uncache(&self, offset: u64, length: u64) {
        let _ = (offset, length);
    }
}

/// A directory of a medium.
#[derive(Clone, Debug)]
pub struct Dir {
    medium: Arc<dyn Medium>,
    path: Arc<Path>,
}

impl Dir {
    /// The directory `path` of `medium`; it need not be there.
    pub fn new(medium: Arc<dyn Medium>, path: &Path) -> Self {
        Self { medium, path: path.into() }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A directory in it.
    pub fn dir(&self, name: &str) -> Self {
        Self { medium: Arc::clone(&self.medium), path: self.path.join(name).into() }
    }

    /// The same, with the calls on its files timed under these names.
    pub(crate) fn timed(self, table: &OperationTable, names: &CallNames) -> Self {
        if !table.is_enabled() {
            return self;
        }
        Self { medium: Arc::new(Timed::new(self.medium, table, names)), ..self }
    }

    /// The path of a name in it.
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub(crate) fn medium(&self) -> &dyn Medium {
        &*self.medium
    }

    /// Makes it, and those above it.
    pub(crate) fn create(&self) -> io::Result<()> {
        self.medium.create_dir(&self.path)
    }

    /// Makes its names durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.medium.sync_dir(&self.path)
    }
}

/// On the real disk.
impl From<&Path> for Dir {
    fn from(path: &Path) -> Self {
        Self::new(Arc::new(Disk), path)
    }
}

/// Reads into the whole buffer; what lies behind the end of the file reads as zeros.
///
/// # Errors
/// Those of [`MediumFile::read_at`].
pub(crate) fn read_zero_filled(
    file: &dyn MediumFile,
    mut offset: u64,
    mut buf: &mut [u8],
) -> io::Result<()> {
    while !buf.is_empty() {
        match file.read_at(buf, offset) {
            Ok(0) => {
                buf.fill(0);
                return Ok(());
            }
            Ok(read) => {
                offset += read as u64;
                buf = &mut buf[read..];
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads a whole file.
///
/// # Errors
/// Those of [`MediumFile::read_at`].
pub(crate) fn read_all(file: &dyn MediumFile) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; file.stat()?.length as usize];
    read_zero_filled(file, 0, &mut bytes)?;
    Ok(bytes)
}

/// Writes all bytes; on an error also says how many were written.
pub(crate) fn write_counted(
    file: &dyn MediumFile,
    offset: u64,
    bytes: &[u8],
) -> Result<(), (usize, io::Error)> {
    let mut done = 0;
    while done < bytes.len() {
        match file.write_at(&[IoSlice::new(&bytes[done..])], offset + done as u64) {
            Ok(0) => return Err((done, io::ErrorKind::WriteZero.into())),
            Ok(written) => done += written,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err((done, error)),
        }
    }
    Ok(())
}

/// Slices one call takes at most: the kernel's `IOV_MAX`.
const SLICES_MAX: usize = 1024;

/// Writes all slices one behind the other from `offset`.
///
/// # Errors
/// Those of [`MediumFile::write_at`]; any part may have been written.
pub(crate) fn write_vectored(
    file: &dyn MediumFile,
    mut offset: u64,
    mut slices: &mut [IoSlice<'_>],
) -> io::Result<()> {
    while !slices.is_empty() {
        let batch = &slices[..slices.len().min(SLICES_MAX)];
        match file.write_at(batch, offset) {
            Ok(0) if batch.iter().any(|slice| !slice.is_empty()) => {
                return Err(io::ErrorKind::WriteZero.into());
            }
            Ok(0) => return Ok(()),
            Ok(written) => {
                offset += written as u64;
                IoSlice::advance_slices(&mut slices, written);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
