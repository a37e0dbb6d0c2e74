//! The few file operations that std lacks, and how their errors are told apart.
//!
//! Contract: thin wrappers over system calls on one file, directory or file system; no state. What is assumed of the
//! medium: a 512-byte sector is written whole or not at all, `fdatasync` makes what was written before it durable, and a
//! rename is durable once its directory is synced.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::io::{Errno, ReadWriteFlags};

/// Space of a file system, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Space {
    /// All of it.
    pub total_bytes: u64,
    /// In use, by whomever.
    pub used_bytes: u64,
    /// What this process can still write.
    pub free_bytes: u64,
}

impl Space {
    /// The share that is used of what can be used, 0.0 to 1.0: what full and near-full ratios are compared with.
    pub fn used_ratio(&self) -> f64 {
        let usable = self.used_bytes + self.free_bytes;
        if usable == 0 { 1.0 } else { self.used_bytes as f64 / usable as f64 }
    }
}

/// Space of the file system that holds `path`.
///
/// # Errors
/// Those of `statvfs`.
pub fn space(path: &Path) -> io::Result<Space> {
    let stat = rustix::fs::statvfs(path)?;
    Ok(Space {
        total_bytes: stat.f_blocks * stat.f_frsize,
        used_bytes: stat.f_blocks.saturating_sub(stat.f_bfree) * stat.f_frsize,
        free_bytes: stat.f_bavail * stat.f_frsize,
    })
}

/// Is the file system or the quota full, or the file at its size limit?
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge)
}

/// Makes created, renamed and removed names of a directory durable.
///
/// # Errors
/// Those of opening and syncing the directory.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Writes a small file so that after any crash it holds the old or the new contents, durably.
///
/// # Errors
/// Those of writing, syncing and renaming; the old file is then untouched.
pub fn write_atomically(path: &Path, contents: &[u8]) -> io::Result<()> {
    let dir = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let temporary = path.with_extension("tmp");
    let mut file = File::create(&temporary)?;
    file.write_all(contents)?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)?;
    sync_dir(dir)
}

/// Reads into the whole buffer only if that needs no wait: `false` if any byte is not in the page cache (or lies behind
/// the end of the file), and what the buffer then holds is undefined.
///
/// # Errors
/// Those of `preadv2`; a file system without `RWF_NOWAIT` counts as one that would wait.
pub(crate) fn read_now(file: &File, offset: u64, buf: &mut [u8]) -> io::Result<bool> {
    let length = buf.len();
    match rustix::io::preadv2(file.as_fd(), &mut [IoSliceMut::new(buf)], offset, ReadWriteFlags::NOWAIT) {
        Ok(read) => Ok(read == length),
        Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Reads into the whole buffer; what lies behind the end of the file reads as zeros.
///
/// # Errors
/// Those of `pread`.
pub(crate) fn read_zero_filled(file: &File, mut offset: u64, mut buf: &mut [u8]) -> io::Result<()> {
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

/// Writes all bytes; on an error also says how many were written.
pub(crate) fn write_counted(file: &File, offset: u64, bytes: &[u8]) -> Result<(), (usize, io::Error)> {
    let mut done = 0;
    while done < bytes.len() {
        match file.write_at(&bytes[done..], offset + done as u64) {
            Ok(0) => return Err((done, io::ErrorKind::WriteZero.into())),
            Ok(written) => done += written,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err((done, error)),
        }
    }
    Ok(())
}

/// Slices one `pwritev` takes at most: the kernel's `IOV_MAX`.
const SLICES_MAX: usize = 1024;

/// Writes all slices one behind the other from `offset`.
///
/// # Errors
/// Those of `pwritev`; any part may have been written.
pub(crate) fn write_vectored(file: &File, mut offset: u64, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
    while !slices.is_empty() {
        let batch = &slices[..slices.len().min(SLICES_MAX)];
        match rustix::io::pwritev(file.as_fd(), batch, offset) {
            Ok(0) if batch.iter().any(|slice| !slice.is_empty()) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(0) => return Ok(()),
            Ok(written) => {
                offset += written as u64;
                IoSlice::advance_slices(&mut slices, written);
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// 128 bits from the kernel's random number generator.
///
/// # Errors
/// Those of reading `/dev/urandom`.
pub(crate) fn random_u128() -> io::Result<u128> {
    let mut bytes = [0; 16];
    io::Read::read_exact(&mut File::open("/dev/urandom")?, &mut bytes)?;
    Ok(u128::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn atomic_write_replaces_the_contents() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        write_atomically(&path, b"old").unwrap();
        write_atomically(&path, b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn many_slices_are_written_in_order() {
        let file = tempfile::tempfile().unwrap();
        let parts: Vec<[u8; 3]> = (0..3000u16).map(|i| [i as u8, (i >> 8) as u8, 7]).collect();
        let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        write_vectored(&file, 5, &mut slices).unwrap();
        let mut back = vec![0xff; 9010];
        read_zero_filled(&file, 5, &mut back).unwrap();
        assert_eq!(back[..9000], *parts.as_flattened());
        assert!(back[9000..].iter().all(|&byte| byte == 0), "behind the end there are zeros");
    }

    #[test]
    fn a_read_that_does_not_wait_takes_all_or_nothing() {
        let file = tempfile::tempfile().unwrap();
        write_counted(&file, 0, &[9; 100]).unwrap();
        assert!(!read_now(&file, 50, &mut [0; 51]).unwrap());
    }

    #[test]
    fn space_adds_up() {
        let space = space(Path::new("/")).unwrap();
        assert!(space.used_bytes + space.free_bytes <= space.total_bytes);
        assert!((0.0..=1.0).contains(&space.used_ratio()));
    }
}
