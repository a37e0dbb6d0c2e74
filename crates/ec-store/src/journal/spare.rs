//! A segment's space in reserve, so that a full disk cannot keep a journal from being trimmed.
//!
//! Contract: the file `.spare` has its space taken and holds zeros, or is not there. It becomes a segment by its name
//! alone, which takes no space. A crash at any point leaves a file that counts, one of another length, which is made
//! anew, or none.

use crate::disk;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

fn path_in(dir: &Path) -> PathBuf {
    dir.join(".spare")
}

/// Makes an empty file with `bytes` of space taken, so that writing to it cannot meet a full disk. What an earlier
/// attempt left behind is of no use.
///
/// # Errors
/// What the system says; the file may be there.
pub(super) fn allocate(path: &Path, bytes: u64) -> io::Result<File> {
    let file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
    match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(file),
        Err(error) => Err(error.into()),
    }
}

/// Is there one, of this size?
fn is_there(path: &Path, bytes: u64) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.len() == bytes)
}

/// Makes the spare file the one at `path`, in place of what is there; `None` if there is no spare.
///
/// # Errors
/// What the system says.
pub(super) fn take(dir: &Path, path: &Path, bytes: u64) -> io::Result<Option<File>> {
    let spare = path_in(dir);
    if !is_there(&spare, bytes) {
        return Ok(None);
    }
    fs::rename(&spare, path)?;
    tracing::warn!(segment = %path.display(), "the disk is full: the journal goes on in the segment kept in reserve");
    File::options().read(true).write(true).open(path).map(Some)
}

/// Makes the spare file if it is not there. On a full disk that is left for later.
///
/// # Errors
/// What the system says.
pub(super) fn refill(dir: &Path, bytes: u64) -> io::Result<()> {
    let spare = path_in(dir);
    if is_there(&spare, bytes) {
        return Ok(());
    }
    match allocate(&spare, bytes) {
        Ok(_) => Ok(()),
        Err(error) => {
            fs::remove_file(&spare)?;
            if disk::is_full(&error) { Ok(()) } else { Err(error) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_is_kept_and_taken_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let segment = dir.path().join("segment");
        assert!(take(dir.path(), &segment, 4096).expect("nothing there").is_none());
        // cut short by a crash
        fs::write(path_in(dir.path()), [7; 100]).expect("written");
        assert!(take(dir.path(), &segment, 4096).expect("of no use").is_none());
        for _ in 0..2 {
            refill(dir.path(), 4096).expect("made");
        }
        // half a segment that found no room
        fs::write(&segment, [7; 100]).expect("written");
        assert!(take(dir.path(), &segment, 4096).expect("taken").is_some());
        assert_eq!(fs::read(&segment).expect("there"), [0; 4096]);
        assert!(!path_in(dir.path()).exists());
    }
}
