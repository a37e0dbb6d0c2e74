//! Files of deleted fragments, kept empty for the next ones.
//!
//! Contract: one owner thread, one directory of its own. A file system that has just freed many
//! inodes searches long for one that it may give out again (ext4 without a journal: milliseconds),
//! and making and freeing inodes costs more than giving names on all of them. A deleted fragment's
//! file gets a number for a name here, is emptied, and becomes the next fragment by its name alone.
//! After a crash files here may hold old bytes: each is emptied again before it is used.

use crate::medium::{Dir, MediumFile, OpenMode};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// See the module.
#[derive(Debug)]
pub(super) struct Spares {
    dir: Dir,
    files_max: usize,
    /// Names of the files that are there.
    numbers: Vec<u64>,
    next: u64,
}

impl Spares {
    /// Those that an earlier process left; the directory is made if it is missing.
    ///
    /// # Errors
    /// Those of `mkdir` and `readdir`.
    pub fn open(dir: Dir, files_max: usize) -> io::Result<Self> {
        dir.create()?;
        let mut numbers = Vec::new();
        for name in dir.medium().list(dir.path())? {
            numbers.extend(name?.to_str().and_then(|name| name.parse::<u64>().ok()));
        }
        let next = numbers.iter().max().map_or(0, |last| last + 1);
        Ok(Self { dir, files_max, numbers, next })
    }

    /// Removes the name `path`: its file is kept here if there is room, and emptied. Nobody may
    /// have it open.
    ///
    /// # Errors
    /// `NotFound`, and those of `rename` and `unlink`; the name is then still there.
    pub fn remove(&mut self, path: &Path) -> io::Result<()> {
        if self.numbers.len() >= self.files_max {
            return self.dir.medium().remove(path);
        }
        let number = self.next;
        let spare = self.dir.join(&number.to_string());
        self.dir.medium().rename(path, &spare)?;
        self.next += 1;
        match self.empty(&spare) {
            Ok(_) => self.numbers.push(number),
            Err(error) => {
                tracing::warn!(file = %spare.display(), %error, "cannot be emptied for the next fragment");
                self.dir.medium().remove(&spare)?;
            }
        }
        Ok(())
    }

    /// Gives a file the name `path`, in place of what has that name; `None` if there is no file, or
    /// no such directory. Its contents are durable as those of a new file are, its name after a
    /// sync of that directory.
    ///
    /// # Errors
    /// Those of `open`, `ftruncate` and `rename`.
    pub fn take(&mut self, path: &Path) -> io::Result<Option<Arc<dyn MediumFile>>> {
        let Some(number) = self.numbers.pop() else { return Ok(None) };
        let spare = self.dir.join(&number.to_string());
        let file = self.empty(&spare)?;
        match self.dir.medium().rename(&spare, path) {
            Ok(()) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.numbers.push(number);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn empty(&self, spare: &Path) -> io::Result<Arc<dyn MediumFile>> {
        let file = self.dir.medium().open(spare, OpenMode::Existing)?;
        if file.stat()?.length > 0 {
            file.set_len(0)?;
        }
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::IoSlice;

    fn write(dir: &Dir, name: &str) {
        let file = dir.medium().open(&dir.join(name), OpenMode::OrCreate).unwrap();
        file.write_at(&[IoSlice::new(b"old bytes")], 0).unwrap();
    }

    #[test]
    fn a_removed_file_is_the_next_one_and_empty() {
        let root = tempfile::tempdir().unwrap();
        let (dir, of_spares) = (Dir::from(root.path()), Dir::from(root.path()).dir("spare"));
        let mut spares = Spares::open(of_spares.clone(), 2).unwrap();
        assert_eq!(spares.remove(&dir.join("a")).unwrap_err().kind(), io::ErrorKind::NotFound);
        for name in ["a", "b", "c"] {
            write(&dir, name);
            spares.remove(&dir.join(name)).unwrap();
            assert!(!dir.join(name).exists());
        }
        assert_eq!(spares.numbers.len(), 2, "no more than asked for");
        assert!(spares.take(&dir.dir("missing").join("d")).unwrap().is_none());

        // A crash: what lies there may hold old bytes.
        write(&of_spares, "0");
        let mut spares = Spares::open(of_spares, 2).unwrap();
        for name in ["d", "e"] {
            let file = spares.take(&dir.join(name)).unwrap().expect("one was kept");
            assert_eq!(file.stat().unwrap().length, 0);
            assert!(dir.join(name).exists());
        }
        assert!(spares.take(&dir.join("f")).unwrap().is_none());
    }
}
