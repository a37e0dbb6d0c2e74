//! Memory that processes share: a file without a name, mapped by each of them.
//!
//! Contract: its size never changes, so that no access to a mapping of it is outside of the file;
//! one whose maker could still shrink it, or that is made of huge pages, of which there may be
//! none, is not taken. (A system without memory for a page kills whoever touches it, as ever.) The
//! other process may write at any time: what is read twice may differ.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::AtomicU32;

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::fs::{fallocate, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};

use crate::io::buffer::PAGE_BYTES;

/// Bytes of a word.
pub(super) const WORD_BYTES: usize = size_of::<AtomicU32>();

/// What names a file while it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileId {
    device: u64,
    inode: u64,
}

/// A mapping.
#[derive(Debug)]
pub(super) struct SharedMemory {
    mapping: MmapRaw,
}

impl SharedMemory {
    /// Makes `bytes` zeros, and the file that others map. They take memory where they were written.
    ///
    /// # Errors
    /// What the kernel says: no descriptors, no address space.
    pub(super) fn create(name: &str, bytes: usize) -> io::Result<(SharedMemory, OwnedFd)> {
        let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, bytes as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let mapping = MmapOptions::new().len(bytes).map_raw(&file)?;
        Ok((SharedMemory { mapping }, file))
    }

    /// Maps what another process made, of this size, to read it, or also to write.
    ///
    /// # Errors
    /// `InvalidData` if it has another size or may still get one; what the kernel says.
    pub(super) fn import(
        file: &OwnedFd,
        bytes: usize,
        is_written: bool,
    ) -> io::Result<SharedMemory> {
        let invalid = |what: &'static str| io::Error::new(io::ErrorKind::InvalidData, what);
        if !fcntl_get_seals(file)?.contains(SealFlags::SHRINK) {
            return Err(invalid("shared memory that could shrink"));
        }
        let stat = fstat(file)?;
        if stat.st_size != bytes as i64 || stat.st_blksize as usize != PAGE_BYTES {
            return Err(invalid("shared memory of an unknown size"));
        }
        let mut options = MmapOptions::new();
        let options = options.len(bytes);
        let mapping =
            if is_written { options.map_raw(file) } else { options.map_raw_read_only(file) }?;
        Ok(SharedMemory { mapping })
    }

    /// Its bytes from `at`.
    ///
    /// # Panics
    /// If they are not all inside.
    pub(super) fn bytes(&self, at: usize, len: usize) -> &[u8] {
        self.check(at, len);
        // SAFETY: inside of the mapping, whose file cannot shrink. Whoever is lent bytes is so
        // while nobody writes them; a process that breaks this is as one that damages what it
        // sends, and `u8` has no invalid values.
        unsafe { std::slice::from_raw_parts(self.mapping.as_ptr().add(at), len) }
    }

    /// Its bytes from `at`, to be written.
    ///
    /// # Safety
    /// Nothing else in this process refers to them meanwhile, and the mapping is one to write.
    ///
    /// # Panics
    /// If they are not all inside.
    #[expect(clippy::mut_from_ref, reason = "disjoint parts belong to different owners")]
    pub(super) unsafe fn bytes_mut(&self, at: usize, len: usize) -> &mut [u8] {
        self.check(at, len);
        // SAFETY: as for `bytes`; the caller says that it is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.as_mut_ptr().add(at), len) }
    }

    /// Its word of this number.
    ///
    /// # Panics
    /// If it is not inside.
    pub(super) fn word(&self, number: usize) -> &AtomicU32 {
        self.check(number * WORD_BYTES, WORD_BYTES);
        // SAFETY: inside, aligned as the mapping is to pages, and only ever used as an atomic.
        unsafe { AtomicU32::from_ptr(self.mapping.as_mut_ptr().cast::<u32>().add(number)) }
    }

    /// Where these bytes are in it, if they are.
    pub(super) fn place_of(&self, bytes: &[u8]) -> Option<usize> {
        let at = bytes.as_ptr().addr().checked_sub(self.mapping.as_ptr().addr())?;
        (at < self.mapping.len() && bytes.len() <= self.mapping.len() - at).then_some(at)
    }

    fn check(&self, at: usize, len: usize) {
        let end = at.checked_add(len).filter(|end| *end <= self.mapping.len());
        assert!(end.is_some(), "{len} bytes at {at} of {} of shared memory", self.mapping.len());
    }
}

/// Gives the memory of a part of such a file back to the system: zeros are read there.
///
/// # Errors
/// What the kernel says; the part is as it was.
pub(super) fn discard(file: &OwnedFd, at: usize, len: usize) -> io::Result<()> {
    Ok(fallocate(
        file,
        FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        at as u64,
        len as u64,
    )?)
}

/// The same file, for others to read only.
///
/// # Errors
/// What the kernel says; where `/proc` is missing, that it is.
pub(super) fn read_only(file: &OwnedFd) -> io::Result<OwnedFd> {
    Ok(File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?.into())
}

/// # Errors
/// What the kernel says.
pub(super) fn id_of(file: &OwnedFd) -> io::Result<FileId> {
    let stat = fstat(file)?;
    Ok(FileId { device: stat.st_dev, inode: stat.st_ino })
}
