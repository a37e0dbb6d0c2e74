//! The few file operations that std lacks, and how their errors are told apart.
//!
//! Contract: thin wrappers over system calls on one file, directory or file system; no state. What
//! is assumed of the medium: a 512-byte sector is written whole or not at all, `fdatasync` makes
//! what was written before it durable, and a rename is durable once its directory is synced.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

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
    /// The share that is used of what can be used, 0.0 to 1.0: what full and near-full ratios are
    /// compared with.
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
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
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
    fn space_adds_up() {
        let space = space(Path::new("/")).unwrap();
        assert!(space.used_bytes + space.free_bytes <= space.total_bytes);
        assert!((0.0..=1.0).contains(&space.used_ratio()));
    }
}
