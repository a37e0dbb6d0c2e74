//! `trefoil object put | get | ls | rm | stat`: named objects, to and from files and pipes.

use crate::error::OperatorError;
use crate::{Cluster, output, table};
use clap::{Args, Subcommand};
use client::{Client, ClientConfig, blob};
use indicatif::{ProgressBar, ProgressStyle};
use protocol::PoolId;
use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

/// What to do with objects.
#[derive(Subcommand)]
pub enum ObjectCommand {
    /// Stores a file, or standard input, under a name; replaces what was there at once when all of it is stored
    Put {
        #[command(flatten)]
        object: ObjectArgs,
        /// The file; `-` or nothing for standard input
        file: Option<PathBuf>,
    },
    /// Writes an object to a file, or to standard output
    Get {
        #[command(flatten)]
        object: ObjectArgs,
        /// The file; `-` or nothing for standard output
        file: Option<PathBuf>,
    },
    /// Lists names, one a line
    Ls {
        #[command(flatten)]
        pool: PoolArgs,
        /// Only names that begin so
        #[arg(default_value = "")]
        prefix: String,
        /// With sizes
        #[arg(short, long)]
        long: bool,
    },
    /// Removes an object
    Rm {
        #[command(flatten)]
        object: ObjectArgs,
    },
    /// Shows name, size and time
    Stat {
        #[command(flatten)]
        object: ObjectArgs,
    },
}

/// Where objects are.
#[derive(Args)]
pub struct PoolArgs {
    /// The pool
    #[arg(long, default_value = "data")]
    pool: String,
}

/// Which object.
#[derive(Args)]
pub struct ObjectArgs {
    #[command(flatten)]
    place: PoolArgs,
    /// Its name
    name: String,
}

/// Does it.
///
/// # Errors
/// No such object, local files, the cluster.
pub fn run(cluster: &Cluster, command: ObjectCommand) -> Result<(), OperatorError> {
    let pool_name = match &command {
        ObjectCommand::Ls { pool, .. } => pool.pool.clone(),
        ObjectCommand::Put { object, .. }
        | ObjectCommand::Get { object, .. }
        | ObjectCommand::Rm { object }
        | ObjectCommand::Stat { object } => object.place.pool.clone(),
    };
    // Before the session: a file that cannot be read needs no cluster, and a cluster that is not there is said at once.
    let source = match &command {
        ObjectCommand::Put { file, .. } => Some(Source::open(file.as_deref())?),
        _ => None,
    };
    cluster.status()?;
    let session = Session::open(cluster, &pool_name)?;
    let done = match command {
        ObjectCommand::Put { object, .. } => {
            let source = source.expect("opened above for every put");
            session.put(&object.name, source)
        }
        ObjectCommand::Get { object, file } => session.get(&object.name, file.as_deref()),
        ObjectCommand::Ls { prefix, long, .. } => session.ls(&prefix, long),
        ObjectCommand::Rm { object } => session.rm(&object.name),
        ObjectCommand::Stat { object } => session.stat(&object.name),
    };
    let closed = session.client.close().map_err(|e| OperatorError::Refused(e.to_string()));
    done.and(closed)
}

/// A session with the cluster, on one pool.
struct Session {
    client: Client,
    pool: PoolId,
}

impl Session {
    fn open(cluster: &Cluster, pool: &str) -> Result<Session, OperatorError> {
        let failed = |e| OperatorError::of_client(e, "");
        let config = ClientConfig { timeout: cluster.timeout, ..ClientConfig::new(&cluster.monitor, "trefoil object") };
        let client = Client::connect(config).map_err(failed)?;
        let map = client.map().map_err(failed)?;
        let Some((pool, _)) = map.pool_named(pool) else {
            let known: Vec<&str> = map.pools.values().map(|p| p.name.as_str()).collect();
            return Err(OperatorError::NoPool { name: pool.to_owned(), known: known.join(", ") });
        };
        Ok(Session { client, pool })
    }

    fn put(&self, name: &str, mut source: Source) -> Result<(), OperatorError> {
        let bar = progress(source.length);
        let stored = blob::put(&self.client, self.pool, name.as_bytes(), &mut source, &mut |n| bar.set_position(n));
        bar.finish_and_clear();
        match (stored, source.failed) {
            (Ok(_), _) => Ok(()),
            (Err(_), Some(error)) => Err(OperatorError::File { path: source.path, source: error }),
            (Err(error), None) => Err(OperatorError::of_client(error, name)),
        }
    }

    fn get(&self, name: &str, file: Option<&Path>) -> Result<(), OperatorError> {
        // Asked first, so that nothing is made for an object that does not exist.
        let stat =
            blob::stat(&self.client, self.pool, name.as_bytes()).map_err(|e| OperatorError::of_client(e, name))?;
        let mut target = Target::open(file)?;
        let bar = progress(Some(stat.size));
        let got = blob::get(&self.client, self.pool, name.as_bytes(), &mut target, &mut |n, _| bar.set_position(n));
        bar.finish_and_clear();
        match (got, target.failed.take()) {
            (Ok(_), _) => target.finish(),
            (Err(_), Some(error)) => Err(target.error(error)),
            (Err(error), None) => Err(OperatorError::of_client(error, name)),
        }
    }

    fn ls(&self, prefix: &str, long: bool) -> Result<(), OperatorError> {
        let found = blob::list(&self.client, self.pool, prefix.as_bytes());
        let mut out = Vec::new();
        for blob in found.map_err(|e| OperatorError::of_client(e, prefix))? {
            if long {
                out.extend_from_slice(format!("{:>10}  ", table::bytes(blob.size)).as_bytes());
            }
            out.extend_from_slice(&blob.name);
            out.push(b'\n');
        }
        output::bytes(&out)
    }

    fn rm(&self, name: &str) -> Result<(), OperatorError> {
        blob::remove(&self.client, self.pool, name.as_bytes()).map_err(|e| OperatorError::of_client(e, name))
    }

    fn stat(&self, name: &str) -> Result<(), OperatorError> {
        let stat =
            blob::stat(&self.client, self.pool, name.as_bytes()).map_err(|e| OperatorError::of_client(e, name))?;
        let (size, units) = (stat.size, table::bytes(stat.size));
        let modified = table::time(stat.mtime.secs, stat.mtime.nanos);
        output::line(&format!("name      {name}\nsize      {size} bytes ({units})\nmodified  {modified}"))
    }
}

/// A bar on a terminal; elsewhere nothing. Without a length it only counts.
fn progress(length: Option<u64>) -> ProgressBar {
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
struct Source {
    reader: Box<dyn Read>,
    path: String,
    length: Option<u64>,
    failed: Option<io::Error>,
}

impl Source {
    fn open(file: Option<&Path>) -> Result<Source, OperatorError> {
        let Some(path) = file.filter(|p| *p != Path::new("-")) else {
            let (reader, path) = (Box::new(io::stdin().lock()), "standard input".into());
            return Ok(Source { reader, path, length: None, failed: None });
        };
        let name = path.display().to_string();
        let opened = File::open(path).and_then(|file| Ok((file.metadata()?, file)));
        let (meta, file) = opened.map_err(|source| OperatorError::File { path: name.clone(), source })?;
        if meta.is_dir() {
            let source = io::Error::from(io::ErrorKind::IsADirectory);
            return Err(OperatorError::File { path: name, source });
        }
        let length = meta.is_file().then_some(meta.len());
        Ok(Source { reader: Box::new(file), path: name, length, failed: None })
    }
}

impl Read for Source {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        keep(&mut self.failed, self.reader.read(buffer))
    }
}

/// Where an object goes: standard output, or a file that appears under its name when it is whole.
struct Target {
    kind: TargetKind,
    failed: Option<io::Error>,
}

enum TargetKind {
    Stdout(io::Stdout),
    /// A device or pipe.
    Special(File, PathBuf),
    /// Beside the file; goes away if it is not finished.
    Regular(tempfile::NamedTempFile, PathBuf),
}

impl Target {
    fn open(file: Option<&Path>) -> Result<Target, OperatorError> {
        let Some(path) = file.filter(|p| *p != Path::new("-")) else {
            return Ok(Target { kind: TargetKind::Stdout(io::stdout()), failed: None });
        };
        let path = path.to_path_buf();
        let opened = match path.metadata() {
            Ok(meta) if !meta.is_file() && !meta.is_dir() => {
                File::options().write(true).open(&path).map(|f| TargetKind::Special(f, path.clone()))
            }
            Ok(meta) if meta.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
            _ => {
                let dir = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
                let made =
                    tempfile::Builder::new().prefix(".trefoil-").permissions(permissions(&path)).tempfile_in(dir);
                made.map(|file| TargetKind::Regular(file, path.clone()))
            }
        };
        let kind = opened.map_err(|source| OperatorError::File { path: path.display().to_string(), source })?;
        Ok(Target { kind, failed: None })
    }

    /// Everything was written.
    fn finish(self) -> Result<(), OperatorError> {
        match self.kind {
            TargetKind::Stdout(mut out) => out.flush().map_err(output::failed),
            TargetKind::Special(..) => Ok(()),
            TargetKind::Regular(file, path) => {
                let kept = file.persist(&path);
                kept.map(drop).map_err(|e| OperatorError::File { path: path.display().to_string(), source: e.error })
            }
        }
    }

    fn error(&self, source: io::Error) -> OperatorError {
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

/// Passes a result on, and keeps what the system said if it is an error.
fn keep<T>(slot: &mut Option<io::Error>, result: io::Result<T>) -> io::Result<T> {
    result.inspect_err(|error| {
        let copy = error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error);
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
