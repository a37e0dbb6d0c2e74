//! Space that is kept for the metadata service on its own disk, in a file that it gives up when the
//! disk has none left: with it the store can be opened, and what frees space can be carried out.
//!
//! Contract: the file holds nothing. It is made while there is space for it, and is no part of the
//! store.

use rustix::fs::FallocateFlags;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

/// Enough for a journal of the store and some tables. A disk that is full to its last byte gives it
/// back by this.
pub(super) const RESERVE_BYTES: u64 = 64 << 20;

fn path(dir: &Path) -> PathBuf {
    dir.join("reserve")
}

/// Makes the reserve, if it is missing.
///
/// # Errors
/// When there is no space for it; nothing of it is left then.
pub(super) fn keep(dir: &Path) -> io::Result<()> {
    let path = path(dir);
    if path.exists() {
        return Ok(());
    }
    let file = OpenOptions::new().create_new(true).write(true).open(&path)?;
    if let Err(error) = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, RESERVE_BYTES) {
        let _ = fs::remove_file(&path);
        return Err(error.into());
    }
    Ok(())
}

/// Gives the reserve up. False if there is none.
pub(crate) fn release(dir: &Path) -> bool {
    fs::remove_file(path(dir)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_space_and_gives_it_back() {
        let dir = tempfile::tempdir().expect("a directory");
        assert!(!release(dir.path()));
        keep(dir.path()).expect("space");
        keep(dir.path()).expect("is there");
        assert_eq!(fs::metadata(path(dir.path())).expect("made").len(), RESERVE_BYTES);
        assert!(release(dir.path()) && !release(dir.path()));
    }
}
