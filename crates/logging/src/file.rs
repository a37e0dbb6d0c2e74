//! A log file that keeps to a bound.
//!
//! Contract: lines are appended. When the file has [`FILE_BYTES_MAX`] it becomes the older one, in
//! the place of the one before, and a new one begins; so there are at most twice that many bytes.
//! What is no regular file (a pipe, a terminal) is only written to. Several processes may share it.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Bytes of a log file at most: some hundred thousand lines.
pub const FILE_BYTES_MAX: u64 = 16 << 20;

/// Where the older lines of a log file are: its name with `.1` behind it.
pub fn older(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".1");
    name.into()
}

/// See the module.
#[derive(Debug)]
pub(crate) struct LogFile {
    path: PathBuf,
    file: File,
    bytes_max: u64,
}

impl LogFile {
    /// Opens it, or makes it.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(path: &Path, bytes_max: u64) -> io::Result<LogFile> {
        Ok(LogFile {
            path: path.to_owned(),
            file: File::options().create(true).append(true).open(path)?,
            bytes_max,
        })
    }

    fn make_room(&mut self) -> io::Result<()> {
        let about = self.file.metadata()?;
        if !about.is_file() || about.len() < self.bytes_max {
            return Ok(());
        }
        // Another process may have done so, or somebody has taken the file away: then only a new
        // one is opened, and the older lines stay.
        let is_ours =
            |there: fs::Metadata| (there.dev(), there.ino()) == (about.dev(), about.ino());
        if fs::metadata(&self.path).is_ok_and(is_ours) {
            fs::rename(&self.path, older(&self.path))?;
        }
        *self = LogFile::open(&self.path, self.bytes_max)?;
        Ok(())
    }
}

impl Write for LogFile {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // A line that is written to too long a file is better than none.
        let _ = self.make_room();
        self.file.write(line)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_at_its_bound_becomes_the_older_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("log");
        let mut log = LogFile::open(&path, 8).expect("a file");
        for line in ["first\n", "2nd\n", "third\n", "4th\n", "fifth\n"] {
            log.write_all(line.as_bytes()).expect("space");
        }
        let text = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        assert_eq!(
            (text(&older(&path)).as_str(), text(&path).as_str()),
            ("third\n4th\n", "fifth\n")
        );
    }

    #[test]
    fn what_another_process_has_made_the_older_one_stays() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("log");
        let open = || LogFile::open(&path, 8).expect("a file");
        let (mut one, mut other) = (open(), open());
        one.write_all(b"12345678\n").expect("space");
        one.write_all(b"one\n").expect("space");
        other.write_all(b"other\n").expect("space");
        let text = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        assert_eq!(
            (text(&older(&path)).as_str(), text(&path).as_str()),
            ("12345678\n", "one\nother\n")
        );
    }

    #[test]
    fn a_pipe_is_written_to() {
        let mut log = LogFile::open(Path::new("/dev/null"), 0).expect("it is there");
        log.write_all(b"gone\n").expect("it takes everything");
    }
}
