//! Where bytes come from and go to on this machine: files, pipes, standard input and output.

use crate::error::OperatorError;
use crate::output;
use indicatif::{ProgressBar, ProgressStyle};
use std::fs::File;
use std::io::{self, IsTerminal, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// A bar on a terminal; elsewhere nothing. Without a length it only counts.
pub(crate) fn progress(length: Option<u64>) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = length.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
    let template = match length {
        Some(_) => "{bar:40} {bytes} of {total_bytes}  {bytes_per_sec}  {eta} left",
        None => "{spinner} {bytes}  {bytes_per_sec}",
    };
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// What is stored. Keeps the error of the system, which says more than "reading failed".
pub(crate) struct Source {
    reader: Reader,
    pub(crate) path: String,
    pub(crate) length: Option<u64>,
    pub(crate) failed: Option<io::Error>,
}

enum Reader {
    Stdin(io::StdinLock<'static>),
    File(File),
}

impl Source {
    pub(crate) fn open(file: Option<&Path>) -> Result<Source, OperatorError> {
        let Some(path) = file.filter(|p| *p != Path::new("-")) else {
            let (reader, path) = (Reader::Stdin(io::stdin().lock()), "standard input".into());
            return Ok(Source { reader, path, length: None, failed: None });
        };
        let name = path.display().to_string();
        let opened = File::open(path).and_then(|file| Ok((file.metadata()?, file)));
        let (meta, file) =
            opened.map_err(|source| OperatorError::File { path: name.clone(), source })?;
        if meta.is_dir() {
            let source = io::Error::from(io::ErrorKind::IsADirectory);
            return Err(OperatorError::File { path: name, source });
        }
        let length = meta.is_file().then_some(meta.len());
        Ok(Source { reader: Reader::File(file), path: name, length, failed: None })
    }
}

impl Read for Source {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = match &mut self.reader {
            Reader::Stdin(stdin) => stdin.read(buffer),
            Reader::File(file) => file.read(buffer),
        };
        keep(&mut self.failed, read)
    }
}

impl volume::copy::Source for Source {
    fn length(&self) -> Option<u64> {
        self.length
    }

    /// Of a regular file what its file system says.
    fn skip_hole(&mut self) -> io::Result<u64> {
        let (Reader::File(file), Some(length)) = (&mut self.reader, self.length) else {
            return Ok(0);
        };
        let here = file.stream_position()?;
        let data = match rustix::fs::seek(&*file, rustix::fs::SeekFrom::Data(here)) {
            Ok(data) => data,
            Err(rustix::io::Errno::NXIO) => length.max(here),
            // It does not tell.
            Err(_) => here,
        };
        file.seek(SeekFrom::Start(data))?;
        Ok(data - here)
    }
}

/// Where something goes: standard output, or a file that appears under its name when it is whole.
pub(crate) struct Target {
    kind: TargetKind,
    pub(crate) failed: Option<io::Error>,
}

enum TargetKind {
    Stdout(io::Stdout),
    /// A device or pipe.
    Special(File, PathBuf),
    /// Beside the file; goes away if it is not finished.
    Regular(tempfile::NamedTempFile, PathBuf),
}

impl Target {
    pub(crate) fn open(file: Option<&Path>) -> Result<Target, OperatorError> {
        let Some(path) = file.filter(|p| *p != Path::new("-")) else {
            return Ok(Target { kind: TargetKind::Stdout(io::stdout()), failed: None });
        };
        let path = path.to_path_buf();
        let opened = match path.metadata() {
            Ok(meta) if !meta.is_file() && !meta.is_dir() => File::options()
                .write(true)
                .open(&path)
                .map(|f| TargetKind::Special(f, path.clone())),
            Ok(meta) if meta.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
            _ => {
                let dir =
                    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
                let made = tempfile::Builder::new()
                    .prefix(".trefoil-")
                    .permissions(permissions(&path))
                    .tempfile_in(dir);
                made.map(|file| TargetKind::Regular(file, path.clone()))
            }
        };
        let kind = opened
            .map_err(|source| OperatorError::File { path: path.display().to_string(), source })?;
        Ok(Target { kind, failed: None })
    }

    /// Everything was written.
    pub(crate) fn finish(self) -> Result<(), OperatorError> {
        match self.kind {
            TargetKind::Stdout(mut out) => out.flush().map_err(output::failed),
            TargetKind::Special(..) => Ok(()),
            TargetKind::Regular(file, path) => {
                let kept = file.persist(&path);
                kept.map(drop).map_err(|e| OperatorError::File {
                    path: path.display().to_string(),
                    source: e.error,
                })
            }
        }
    }

    pub(crate) fn error(&self, source: io::Error) -> OperatorError {
        match &self.kind {
            TargetKind::Stdout(_) => output::failed(source),
            TargetKind::Special(_, path) | TargetKind::Regular(_, path) => {
                OperatorError::File { path: path.display().to_string(), source }
            }
        }
    }
}

/// Those of the file that is replaced, else the usual ones (less what the umask takes).
fn permissions(path: &Path) -> std::fs::Permissions {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().map_or_else(|_| PermissionsExt::from_mode(0o666), |meta| meta.permissions())
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = match &mut self.kind {
            TargetKind::Stdout(out) => out.write(bytes),
            TargetKind::Special(file, _) => file.write(bytes),
            TargetKind::Regular(file, _) => file.write(bytes),
        };
        keep(&mut self.failed, written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl volume::copy::Target for Target {
    fn data(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    /// A hole of a file; elsewhere zeros.
    fn hole(&mut self, len: u64) -> io::Result<()> {
        if let TargetKind::Regular(file, _) = &mut self.kind {
            let extended = file.stream_position().and_then(|here| {
                file.as_file().set_len(here + len)?;
                file.seek(SeekFrom::Start(here + len))
            });
            return keep(&mut self.failed, extended).map(drop);
        }
        io::copy(&mut io::repeat(0).take(len), self).map(drop)
    }
}

/// Passes a result on, and keeps what the system said if it is an error.
fn keep<T>(slot: &mut Option<io::Error>, result: io::Result<T>) -> io::Result<T> {
    result.inspect_err(|error| {
        let copy =
            error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error);
        *slot = Some(copy);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_appears_only_when_it_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        for (finish, there) in [(false, false), (true, true)] {
            let mut target = Target::open(Some(&path)).unwrap();
            target.write_all(b"bytes").unwrap();
            assert!(!path.exists());
            if finish {
                target.finish().unwrap();
            } else {
                drop(target);
            }
            assert_eq!(path.exists(), there);
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "a temporary file is left");
    }

    #[test]
    fn local_errors_name_the_file() {
        let error = Source::open(Some(Path::new("/no/such/file"))).err().unwrap();
        assert!(error.to_string().contains("/no/such/file") && error.exit_code() == 1);
        assert!(Source::open(Some(Path::new("/"))).is_err());
        assert!(Target::open(Some(Path::new("/"))).is_err());
    }
}
