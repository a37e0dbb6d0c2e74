//! The real medium: files of the operating system.

use super::{Extent, FileStat, Medium, MediumFile, Names, OpenMode, extents};
use crate::disk::{self, Space};
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags};
use std::fs::{self, File};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

/// The file systems of this machine.
#[derive(Clone, Copy, Debug)]
pub struct Disk;

impl Medium for Disk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn MediumFile>> {
        let mut options = File::options();
        options
            .read(true)
            .write(true)
            .create(mode != OpenMode::Existing)
            .truncate(mode == OpenMode::Truncated);
        Ok(Arc::new(options.open(path)?))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        let missing: Vec<&Path> = dir.ancestors().take_while(|dir| !dir.is_dir()).collect();
        fs::create_dir_all(dir)?;
        missing
            .iter()
            .filter_map(|made| made.parent())
            .filter(|above| above.is_dir())
            .try_for_each(disk::sync_dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Names> {
        Ok(Box::new(fs::read_dir(dir)?.map(|entry| entry.map(|entry| entry.file_name()))))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        disk::sync_dir(dir)
    }

    fn space(&self, dir: &Path) -> io::Result<Space> {
        disk::space(dir)
    }
}

/// Is it a file of `tmpfs`, which has no `RWF_NOWAIT` as there is nothing to wait for, unless the
/// machine swaps?
fn is_in_memory(file: &File) -> io::Result<bool> {
    Ok(rustix::fs::fstatfs(file)?.f_type == libc::TMPFS_MAGIC)
}

impl MediumFile for File {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, buf, offset)
    }

    fn read_now(&self, buf: &mut [u8], offset: u64) -> io::Result<bool> {
        let length = buf.len();
        match rustix::io::preadv2(self, &mut [IoSliceMut::new(buf)], offset, ReadWriteFlags::NOWAIT)
        {
            Ok(read) => Ok(read == length),
            Err(Errno::OPNOTSUPP) if is_in_memory(self)? => {
                Ok(FileExt::read_at(self, buf, offset)? == length)
            }
            Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn write_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        match slices {
            [one] => FileExt::write_at(self, one, offset),
            many => Ok(rustix::io::pwritev(self, many, offset)?),
        }
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        File::set_len(self, length)
    }

    fn extent(&self, what: Extent, offset: u64, length: u64) -> io::Result<bool> {
        let flags = match what {
            Extent::Allocate => FallocateFlags::empty(),
            Extent::Punch => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        };
        match rustix::fs::fallocate(self, flags, offset, length) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn missing(&self, offset: u64, length: u64) -> io::Result<Option<u64>> {
        extents::missing(self, offset, length)
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        match rustix::fs::seek(self, SeekFrom::Data(offset)) {
            Ok(at) => Ok(Some(at)),
            Err(Errno::NXIO) => Ok(None),
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(Some(offset)),
            Err(error) => Err(error.into()),
        }
    }

    #[expect(unsafe_code, reason = "no crate at hand wraps this system call")]
    fn begin_sync(&self) {
        // SAFETY: a system call on a descriptor that is open while `self` is; no memory is passed.
        unsafe { libc::sync_file_range(self.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
    }

    fn sync_data(&self) -> io::Result<()> {
        File::sync_data(self)
    }

    fn stat(&self) -> io::Result<FileStat> {
        let metadata = self.metadata()?;
        let is_linked = metadata.nlink() > 0;
        Ok(FileStat { length: metadata.len(), allocated_bytes: metadata.blocks() * 512, is_linked })
    }

    fn uncache(&self, offset: u64, length: u64) {
        let Some(length) = std::num::NonZeroU64::new(length) else { return };
        if let Err(error) =
            rustix::fs::fadvise(self, offset, Some(length), rustix::fs::Advice::DontNeed)
        {
            tracing::debug!(%error, "the page cache keeps its pages");
        }
    }
}
