//! Where the monitor's state is kept.
//!
//! Contract: [`ControlPlane::save`] returns only when the state is durable; the caller publishes a
//! map only after the state that holds it is saved. One monitor at a time uses a control plane.
//!
//! [`Embedded`] is one process with one file, as it was until format 3; the daemons keep the state
//! in a log of changes (`osd-daemon`, `monitor/logged.rs`), which begins with what this reads.
//! Beside them an implementation on etcd could stand: `load` and `save` as transactions under a
//! lease, `publish` as the key that daemons watch.
//!
//! # The file `state`, format 3
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | magic `TRFMONST` |
//! | 8..12 | format version, little-endian |
//! | 12..16 | CRC32C of everything from byte 16 on |
//! | 16..24 | length of the payload, little-endian |
//! | 24.. | payload: [`MonitorState`] in postcard; in format 2 without its last field, which is none then |
//!
//! In format 4 the file ends with the version and twelve zeros: the state is elsewhere
//! ([`Embedded::retire`]).
//!
//! It is written as `state.tmp`, synced, and renamed over `state`, then the directory is synced; so
//! after a crash `state` is the old or the new one, whole. Of the medium is assumed that a synced
//! file keeps its bytes and that rename is atomic. What the checksum does not cover is a loss of
//! the whole file, so `state.prev` (a hard link to the state before) also tells that there was one.
//! An older state is never taken by itself: it may name shards in sync that are not any more.

#[cfg(test)]
mod tests;

use crate::map::ClusterMap;
use crate::state::MonitorState;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// What to do about a log that is not whole.
const RESTORE: &str = "restore the monitor's directory from the disk that had it";

/// How postcard writes that there is none.
const NO_NAMESPACE: u8 = 0;

/// Keeps the monitor's state, and tells the world of maps.
pub trait ControlPlane: Send {
    /// The state as last saved; none if nothing was ever saved.
    ///
    /// # Errors
    /// When it cannot be read, or is damaged.
    fn load(&mut self) -> Result<Option<MonitorState>, ControlError>;

    /// Saves the state durably. After an error it is not known which of the two states a later
    /// `load` gives: the monitor tells nobody of this one before a save of it, or of a later one,
    /// has succeeded.
    ///
    /// # Errors
    /// When it is not certain to be durable.
    fn save(&mut self, state: &MonitorState) -> Result<(), ControlError>;

    /// Tells of a map whose state is saved. By default nothing: the monitor itself pushes maps to
    /// its subscribers.
    ///
    /// # Errors
    /// When it could not be told; it will be asked again with a later map.
    fn publish(&mut self, map: &ClusterMap) -> Result<(), ControlError> {
        let _ = map;
        Ok(())
    }
}

/// Why the control plane failed.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The system said no.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// Doing what.
        what: &'static str,
        /// To which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another monitor uses the directory.
    #[error("{} is in use by another monitor ({holder}): stop that one first", dir.display())]
    InUse {
        /// The directory.
        dir: PathBuf,
        /// Who holds it, as far as known.
        holder: String,
    },
    /// The file is not what was written.
    #[error(
        "the monitor's state {} is damaged ({what}); the version before it may be in state.prev: to go back to it knowing \
         that acknowledged writes may be lost, stop all daemons and copy it over", path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// Written by another version of the program.
    #[error("{} has format {found}, this program reads {}: use the version that wrote it", path.display(), Embedded::FORMAT)]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// The log in which the state is kept.
    #[error("the monitor's log: {0}")]
    Log(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A save ended without a result: a bug.
    #[error("a save of the monitor's state ended without a result: restart the monitor")]
    NoResult,
}

/// The state in one file of a directory that no other monitor uses.
#[derive(Debug)]
pub struct Embedded {
    dir: PathBuf,
    /// Locked for as long as it is open.
    _lock: File,
}

impl Embedded {
    /// The format of the file that this program writes and reads.
    pub const FORMAT: u32 = 3;
    /// The one before, which is read, too: no namespace is known.
    const FORMAT_2: u32 = 2;
    /// The state is elsewhere.
    const RETIRED: u32 = 4;
    const MAGIC: [u8; 8] = *b"TRFMONST";
    const HEADER_BYTES: usize = 24;

    /// Opens the directory, makes it if need be, and locks it.
    ///
    /// # Errors
    /// When it cannot be written, or another monitor uses it.
    pub fn open(dir: &Path) -> Result<Self, ControlError> {
        fs::create_dir_all(dir).map_err(failed("create", dir))?;
        let path = dir.join("lock");
        let open = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let mut lock = open.map_err(failed("open", &path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let known = lock.read_to_string(&mut holder).is_ok() && !holder.is_empty();
                let holder = if known {
                    format!("process {}", holder.trim())
                } else {
                    "unknown process".into()
                };
                return Err(ControlError::InUse { dir: dir.to_owned(), holder });
            }
            Err(TryLockError::Error(error)) => return Err(failed("lock", &path)(error)),
        }
        let named = lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id()));
        named.map_err(failed("write", &path))?;
        Ok(Self { dir: dir.to_owned(), _lock: lock })
    }

    /// Forgets a `state.format3` of an earlier log, which is lost: a new one begins.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn forget_retired(&mut self) -> Result<(), ControlError> {
        let [state, last] = ["state", "state.format3"].map(|name| self.dir.join(name));
        match fs::remove_file(&last) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failed("remove", &last)(error))
            }
            // the other name of the state itself, or an older one
            _ => {
                File::open(&self.dir).and_then(|dir| dir.sync_all()).map_err(failed("sync", &state))
            }
        }
    }

    /// The state is kept elsewhere from now on: `state` becomes a header that every program of this
    /// format refuses, and what it was stays as `state.format3`. Does nothing if that was done.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn retire(&mut self) -> Result<(), ControlError> {
        let [state, last, tmp] =
            ["state", "state.format3", "state.tmp"].map(|name| self.dir.join(name));
        let header = [&Self::MAGIC[..], &Self::RETIRED.to_le_bytes(), &[0; 12]].concat();
        match fs::read(&state) {
            Ok(bytes) if bytes == header => return Ok(()),
            Ok(_) => match fs::hard_link(&state, &last) {
                Ok(()) => {}
                // an earlier attempt ended between the two steps
                Err(error)
                    if error.kind() == io::ErrorKind::AlreadyExists && is_same(&state, &last) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    let what = "was put beside the directory replicas, which holds the newest state: remove it";
                    return Err(ControlError::Log(format!("{} {what}", state.display()).into()));
                }
                Err(error) => return Err(failed("link", &last)(error)),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("read", &state)(error)),
        }
        let written = File::create(&tmp)
            .and_then(|mut file| file.write_all(&header).and_then(|()| file.sync_all()));
        written.map_err(failed("write", &tmp))?;
        fs::rename(&tmp, &state).map_err(failed("rename", &tmp))?;
        File::open(&self.dir).and_then(|dir| dir.sync_all()).map_err(failed("sync", &self.dir))
    }

    fn write_state(&self, bytes: &[u8]) -> Result<(), ControlError> {
        let [state, prev, tmp] =
            ["state", "state.prev", "state.tmp"].map(|name| self.dir.join(name));
        let write = |file: &mut File| file.write_all(bytes).and_then(|()| file.sync_all());
        let mut file = File::create(&tmp).map_err(failed("create", &tmp))?;
        write(&mut file).map_err(failed("write", &tmp))?;
        if state.exists() {
            match fs::remove_file(&prev) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(failed("remove", &prev)(error));
                }
                _ => fs::hard_link(&state, &prev).map_err(failed("link", &prev))?,
            }
        }
        fs::rename(&tmp, &state).map_err(failed("rename", &tmp))?;
        File::open(&self.dir).and_then(|dir| dir.sync_all()).map_err(failed("sync", &self.dir))
    }

    fn parse(path: &Path, bytes: &[u8]) -> Result<MonitorState, ControlError> {
        let damaged = |what: String| ControlError::Damaged { path: path.to_owned(), what };
        let header: &[u8; Self::HEADER_BYTES] = bytes
            .first_chunk()
            .ok_or_else(|| damaged(format!("it has only {} bytes", bytes.len())))?;
        if header[..8] != Self::MAGIC {
            return Err(damaged("it does not begin with the magic of such a file".into()));
        }
        let word = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        if word(8) == Self::RETIRED {
            let path = path.with_file_name("replicas");
            return Err(ControlError::Log(
                format!("{} is missing: {RESTORE}", path.display()).into(),
            ));
        }
        if ![Self::FORMAT_2, Self::FORMAT].contains(&word(8)) {
            return Err(ControlError::Format { path: path.to_owned(), found: word(8) });
        }
        let length = u64::from(word(16)) | u64::from(word(20)) << 32;
        let payload = &bytes[Self::HEADER_BYTES..];
        if length != payload.len() as u64 {
            return Err(damaged(format!("it has {} bytes of {length}", payload.len())));
        }
        if crc32c::crc32c(&bytes[16..]) != word(12) {
            return Err(damaged("its checksum is wrong".into()));
        }
        let mut payload = payload.to_vec();
        if word(8) == Self::FORMAT_2 {
            payload.push(NO_NAMESPACE);
        }
        let (state, rest): (MonitorState, &[u8]) =
            postcard::take_from_bytes(&payload).map_err(|error| damaged(error.to_string()))?;
        if !rest.is_empty() {
            return Err(damaged(format!("there are {} bytes behind the state", rest.len())));
        }
        state.check_invariants().map_err(damaged)?;
        Ok(state)
    }
}

impl ControlPlane for Embedded {
    fn load(&mut self) -> Result<Option<MonitorState>, ControlError> {
        let path = self.dir.join("state");
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if self.dir.join("state.prev").exists() {
                    let what = "it is missing, and there was one".to_owned();
                    return Err(ControlError::Damaged { path, what });
                }
                return Ok(None);
            }
            Err(error) => return Err(failed("read", &path)(error)),
        };
        Self::parse(&path, &bytes).map(Some)
    }

    fn save(&mut self, state: &MonitorState) -> Result<(), ControlError> {
        let payload = postcard::to_stdvec(state).expect("the state contains only encodable types");
        let mut bytes = Vec::with_capacity(Self::HEADER_BYTES + payload.len());
        bytes.extend_from_slice(&Self::MAGIC);
        bytes.extend_from_slice(&Self::FORMAT.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&(payload.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&payload);
        let crc = crc32c::crc32c(&bytes[16..]);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        self.write_state(&bytes)
    }
}

/// One file under two names?
fn is_same(one: &Path, other: &Path) -> bool {
    let inode =
        |path: &Path| fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino())).ok();
    inode(one).is_some() && inode(one) == inode(other)
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ControlError {
    let path = path.to_owned();
    move |source| ControlError::Io { what, path, source }
}
