//! A segment's space in reserve, so that a full disk cannot keep a journal from being trimmed.
//!
//! Contract: the file `.spare` has its space taken and holds zeros, or is not there. It becomes a
//! segment by its name alone, which takes no space. A crash at any point leaves a file that counts,
//! one of another length, which is made anew, or none.

use crate::disk;
use crate::medium::{Dir, Extent, MediumFile, OpenMode};
use std::io;
use std::path::Path;
use std::sync::Arc;

const NAME: &str = ".spare";

/// Makes an empty file with `bytes` of space taken, so that writing to it cannot meet a full disk.
/// What an earlier attempt left behind is of no use.
///
/// # Errors
/// What the system says; the file may be there.
pub(super) fn allocate(dir: &Dir, path: &Path, bytes: u64) -> io::Result<Arc<dyn MediumFile>> {
    let file = dir.medium().open(path, OpenMode::Truncated)?;
    file.extent(Extent::Allocate, 0, bytes)?;
    Ok(file)
}

/// Is there one, of this size?
fn is_there(dir: &Dir, bytes: u64) -> bool {
    let stat = dir.medium().open(&dir.join(NAME), OpenMode::Existing).and_then(|file| file.stat());
    stat.is_ok_and(|stat| stat.length == bytes)
}

/// Makes the spare file the one at `path`, in place of what is there; `None` if there is no spare.
///
/// # Errors
/// What the system says.
pub(super) fn take(dir: &Dir, path: &Path, bytes: u64) -> io::Result<Option<Arc<dyn MediumFile>>> {
    if !is_there(dir, bytes) {
        return Ok(None);
    }
    dir.medium().rename(&dir.join(NAME), path)?;
    tracing::warn!(segment = %path.display(), "the disk is full: the journal goes on in the segment kept in reserve");
    dir.medium().open(path, OpenMode::Existing).map(Some)
}

/// Makes the spare file if it is not there. On a full disk that is left for later.
///
/// # Errors
/// What the system says.
pub(super) fn refill(dir: &Dir, bytes: u64) -> io::Result<()> {
    if is_there(dir, bytes) {
        return Ok(());
    }
    let spare = dir.join(NAME);
    match allocate(dir, &spare, bytes) {
        Ok(_) => Ok(()),
        Err(error) => {
            dir.medium().remove(&spare)?;
            if disk::is_full(&error) { Ok(()) } else { Err(error) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn one_file_is_kept_and_taken_once() {
        let temporary = tempfile::tempdir().expect("a directory");
        let (dir, segment) = (Dir::from(temporary.path()), temporary.path().join("segment"));
        assert!(take(&dir, &segment, 4096).expect("nothing there").is_none());
        // cut short by a crash
        fs::write(dir.join(NAME), [7; 100]).expect("written");
        assert!(take(&dir, &segment, 4096).expect("of no use").is_none());
        for _ in 0..2 {
            refill(&dir, 4096).expect("made");
        }
        // half a segment that found no room
        fs::write(&segment, [7; 100]).expect("written");
        assert!(take(&dir, &segment, 4096).expect("taken").is_some());
        assert_eq!(fs::read(&segment).expect("there"), [0; 4096]);
        assert!(!dir.join(NAME).exists());
    }
}
