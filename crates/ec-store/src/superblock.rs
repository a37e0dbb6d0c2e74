//! Whose data directory this is, and who holds it.
//!
//! Contract: [`DataDir::open`] takes the lock, then reads or creates the superblock, and refuses a
//! directory of another cluster, OSD or format. While a `DataDir` lives no other process, and no
//! other `DataDir` of this one, holds it; the kernel drops the lock with its holder, however that
//! ends.
//!
//! The file `superblock`, little-endian, written atomically once:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 8 | magic `TREFOSD\0` |
//! | 8 | 4 | format version |
//! | 12 | 4 | OSD id |
//! | 16 | 16 | cluster id |
//! | 32 | 16 | fsid: drawn at random, tells this directory from any other |
//! | 48 | 8 | created, seconds since 1970 |
//! | 56 | 4 | zero |
//! | 60 | 4 | CRC32C of bytes 0..60 |
//!
//! The file `lock` holds the pid of its holder in decimal; only the `flock` on it counts.

use crate::disk;
use crate::medium::{Dir, Memory};
use protocol::ids::{ClusterId, CoreId, OsdId};
use rustix::fs::FlockOperation;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use zerocopy::little_endian::{U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The version of everything below a data directory: superblock, fragment files and journals. In
/// format 1 no slot of a fragment lies elsewhere than in its own place, and no record is a placed
/// one. In formats 1 and 2 the data of a fragment begins at the first page that is free.
pub const FORMAT_VERSION: u32 = 3;

/// The versions that this program reads. A directory of an older one becomes one of
/// [`FORMAT_VERSION`] as it is opened.
pub(crate) const FORMATS: RangeInclusive<u32> = 1..=FORMAT_VERSION;

const MAGIC: [u8; 8] = *b"TREFOSD\0";

/// What the superblock says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// The cluster the directory belongs to.
    pub cluster: ClusterId,
    /// The OSD whose directory it is.
    pub osd: OsdId,
    /// Drawn at random when the directory was made.
    pub fsid: u128,
    /// When it was made, in seconds since 1970.
    pub created_secs: u64,
}

/// Why a data directory cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// Another process, or another part of this one, holds it.
    #[error(
        "data directory {dir} is held by pid {pid}: stop that process or use another directory"
    )]
    Held {
        /// The directory.
        dir: PathBuf,
        /// Its holder; 0 if the holder has not written it yet.
        pid: u32,
    },
    /// It belongs to another cluster.
    #[error("data directory {dir} belongs to cluster {theirs}, not {ours}: use another directory")]
    OtherCluster {
        /// The directory.
        dir: PathBuf,
        /// The cluster asked for.
        ours: ClusterId,
        /// The cluster in the superblock.
        theirs: ClusterId,
    },
    /// It belongs to another OSD.
    #[error("data directory {dir} belongs to {theirs}, not {ours}: use another directory")]
    OtherOsd {
        /// The directory.
        dir: PathBuf,
        /// The OSD asked for.
        ours: OsdId,
        /// The OSD in the superblock.
        theirs: OsdId,
    },
    /// It was written by another version of this program.
    #[error("data directory {dir} has format {found}, this program reads format {supported}")]
    OtherFormat {
        /// The directory.
        dir: PathBuf,
        /// Format version in the superblock.
        found: u32,
        /// [`FORMAT_VERSION`].
        supported: u32,
    },
    /// The superblock is damaged.
    #[error(
        "superblock of {dir} is damaged: restore it, or rebuild this osd in an empty directory"
    )]
    Damaged {
        /// The directory.
        dir: PathBuf,
    },
    /// There is data but no superblock.
    #[error("{dir} holds {found} but no superblock: use an empty directory")]
    NotBlank {
        /// The directory.
        dir: PathBuf,
        /// A name found in it.
        found: String,
    },
    /// It was to be kept in memory, and there is data on the disk.
    #[error(
        "{dir} holds {found} of a store on disk, which a memstore would hide: use another directory, or osd_objectstore = \"file\""
    )]
    HoldsData {
        /// The directory.
        dir: PathBuf,
        /// A name found in it.
        found: String,
    },
    /// The directory or its file system cannot be written.
    #[error("data directory {dir} is read-only: remount it or give this user the right to write")]
    ReadOnly {
        /// The directory.
        dir: PathBuf,
    },
    /// Any other failure.
    #[error("data directory {dir}: {source}")]
    Io {
        /// The directory.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A data directory, locked.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    /// What journals and fragments lie in.
    root: Dir,
    superblock: Superblock,
    was_created: bool,
    // Its flock is what counts; it goes with the file.
    _lock: File,
}

impl DataDir {
    /// Opens the data directory of an OSD, and makes it if it is missing or blank.
    ///
    /// # Errors
    /// See [`DataDirError`]. Nothing in a directory that is refused was changed.
    pub fn open(dir: &Path, cluster: ClusterId, osd: OsdId) -> Result<Self, DataDirError> {
        let io = |source: io::Error| refuse(dir, source);
        fs::create_dir_all(dir).map_err(io)?;
        let lock = take_lock(dir)?;
        let path = dir.join("superblock");
        let ((superblock, format), was_created) = match fs::read(&path) {
            Ok(bytes) => (parse(dir, &bytes)?, false),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                ((create(dir, &path, cluster, osd)?, FORMAT_VERSION), true)
            }
            Err(error) => return Err(io(error)),
        };
        let dir = dir.to_path_buf();
        if superblock.cluster != cluster {
            return Err(DataDirError::OtherCluster {
                dir,
                ours: cluster,
                theirs: superblock.cluster,
            });
        }
        if superblock.osd != osd {
            return Err(DataDirError::OtherOsd { dir, ours: osd, theirs: superblock.osd });
        }
        if format < FORMAT_VERSION {
            disk::write_atomically(&path, to_raw(&superblock).as_bytes())
                .map_err(|source| refuse(&dir, source))?;
            tracing::info!(dir = %dir.display(), from = format, to = FORMAT_VERSION, "the format of the data directory was raised");
        }
        let root = Dir::from(dir.as_path());
        Ok(Self { path: dir, root, superblock, was_created, _lock: lock })
    }

    /// Reads the superblock without taking the lock: for tools that only look.
    ///
    /// # Errors
    /// As [`DataDir::open`]; a blank directory is [`DataDirError::Io`] with `NotFound`.
    pub fn peek(dir: &Path) -> Result<Superblock, DataDirError> {
        let bytes = fs::read(dir.join("superblock")).map_err(|source| refuse(dir, source))?;
        parse(dir, &bytes).map(|(superblock, _)| superblock)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What its superblock says.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Was it blank, and made by this `open`?
    pub fn was_created(&self) -> bool {
        self.was_created
    }

    /// Journals and fragments are from now on those in `memory`, not those on the disk: only
    /// superblock and lock are there.
    ///
    /// # Errors
    /// [`DataDirError::HoldsData`] if the directory has journals or fragments on the disk, which
    /// would be out of sight; nothing was changed.
    pub fn in_memory(self, memory: Memory) -> Result<Self, DataDirError> {
        if let Some(found) = ["journal", "pg"].iter().find(|name| self.path.join(name).exists()) {
            return Err(DataDirError::HoldsData { dir: self.path, found: (*found).to_owned() });
        }
        let root = Dir::new(Arc::new(memory), &self.path);
        Ok(Self { root, ..self })
    }

    /// What journals and fragments lie in.
    pub fn root(&self) -> Dir {
        self.root.clone()
    }

    /// The directory of a core's journal.
    pub fn journal_dir(&self, core: CoreId) -> Dir {
        self.root.dir("journal").dir(&core.get().to_string())
    }

    /// Space of what journals and fragments lie in.
    ///
    /// # Errors
    /// Those of `statvfs`.
    pub fn space(&self) -> io::Result<disk::Space> {
        self.root.medium().space(&self.path)
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    format: U32,
    osd: U32,
    cluster: U128,
    fsid: U128,
    created: U64,
    zero: U32,
    crc: U32,
}

const CRC_AT: usize = size_of::<Raw>() - 4;

fn refuse(dir: &Path, source: io::Error) -> DataDirError {
    let dir = dir.to_path_buf();
    match source.kind() {
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
            DataDirError::ReadOnly { dir }
        }
        _ => DataDirError::Io { dir, source },
    }
}

fn take_lock(dir: &Path) -> Result<File, DataDirError> {
    let io = |source: io::Error| refuse(dir, source);
    let mut options = File::options();
    let mut lock = options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(dir.join("lock"))
        .map_err(io)?;
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut text = String::new();
            lock.read_to_string(&mut text).map_err(io)?;
            return Err(DataDirError::Held {
                dir: dir.to_path_buf(),
                pid: text.trim().parse().unwrap_or(0),
            });
        }
        Err(error) => return Err(io(error.into())),
    }
    // A pid shorter than the last holder's would leave its digits behind.
    lock.set_len(0).map_err(io)?;
    lock.rewind().map_err(io)?;
    writeln!(lock, "{}", std::process::id()).map_err(io)?;
    Ok(lock)
}

/// What a superblock says, and the version that it is of.
fn parse(dir: &Path, bytes: &[u8]) -> Result<(Superblock, u32), DataDirError> {
    let damaged = || DataDirError::Damaged { dir: dir.to_path_buf() };
    let (raw, _) = Raw::read_from_prefix(bytes).map_err(|_| damaged())?;
    if raw.magic != MAGIC {
        return Err(damaged());
    }
    // Another format may keep its checksum elsewhere, so the version is looked at first.
    if !FORMATS.contains(&raw.format.get()) {
        let found = raw.format.get();
        return Err(DataDirError::OtherFormat {
            dir: dir.to_path_buf(),
            found,
            supported: FORMAT_VERSION,
        });
    }
    if bytes.len() != size_of::<Raw>() || raw.crc.get() != crc32c::crc32c(&bytes[..CRC_AT]) {
        return Err(damaged());
    }
    let superblock = Superblock {
        cluster: ClusterId::new(raw.cluster.get()),
        osd: OsdId::new(raw.osd.get()),
        fsid: raw.fsid.get(),
        created_secs: raw.created.get(),
    };
    Ok((superblock, raw.format.get()))
}

fn create(
    dir: &Path,
    path: &Path,
    cluster: ClusterId,
    osd: OsdId,
) -> Result<Superblock, DataDirError> {
    let io = |source: io::Error| refuse(dir, source);
    for entry in fs::read_dir(dir).map_err(io)? {
        let name = entry.map_err(io)?.file_name();
        // A crash between creating and renaming leaves the temporary file.
        if !["lock", "lost+found", "superblock.tmp"].iter().any(|known| name == *known) {
            let found = name.to_string_lossy().into_owned();
            return Err(DataDirError::NotBlank { dir: dir.to_path_buf(), found });
        }
    }
    let created_secs =
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let superblock =
        Superblock { cluster, osd, fsid: disk::random_u128().map_err(io)?, created_secs };
    disk::write_atomically(path, to_raw(&superblock).as_bytes()).map_err(io)?;
    Ok(superblock)
}

fn to_raw(superblock: &Superblock) -> Raw {
    let mut raw = Raw {
        magic: MAGIC,
        format: FORMAT_VERSION.into(),
        osd: superblock.osd.get().into(),
        cluster: superblock.cluster.get().into(),
        fsid: superblock.fsid.into(),
        created: superblock.created_secs.into(),
        zero: 0.into(),
        crc: 0.into(),
    };
    raw.crc = crc32c::crc32c(&raw.as_bytes()[..CRC_AT]).into();
    raw
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: ClusterId = ClusterId::new(0xabc);

    fn open(dir: &Path) -> Result<DataDir, DataDirError> {
        DataDir::open(dir, OURS, OsdId::new(7))
    }

    #[test]
    fn a_blank_directory_becomes_ours_and_stays_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/osd");
        let first = open(&path).unwrap();
        assert!(first.was_created());
        let superblock = *first.superblock();
        drop(first);
        let second = open(&path).unwrap();
        assert!(!second.was_created());
        assert_eq!(*second.superblock(), superblock);
        assert_eq!(DataDir::peek(&path).unwrap(), superblock);
    }

    #[test]
    fn a_second_holder_is_told_who_the_first_is() {
        let dir = tempfile::tempdir().unwrap();
        let first = open(dir.path()).unwrap();
        let error = open(dir.path()).unwrap_err();
        assert!(
            matches!(error, DataDirError::Held { pid, .. } if pid == std::process::id()),
            "{error}"
        );
        drop(first);
        open(dir.path()).unwrap();
    }

    #[test]
    fn a_strange_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        drop(open(dir.path()).unwrap());
        let theirs = ClusterId::new(1);
        let error = DataDir::open(dir.path(), theirs, OsdId::new(7)).unwrap_err();
        assert!(matches!(error, DataDirError::OtherCluster { .. }), "{error}");
        let error = DataDir::open(dir.path(), OURS, OsdId::new(8)).unwrap_err();
        assert!(matches!(error, DataDirError::OtherOsd { .. }), "{error}");
    }

    /// Makes a superblock one of another format.
    fn set_format(path: &Path, format: u32) {
        let mut bytes = fs::read(path).unwrap();
        bytes[8..12].copy_from_slice(&format.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..CRC_AT]);
        bytes[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        fs::write(path, bytes).unwrap();
    }

    #[test]
    fn a_directory_of_an_older_format_becomes_one_of_ours_and_keeps_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let superblock = *open(dir.path()).unwrap().superblock();
        let path = dir.path().join("superblock");
        let ours = fs::read(&path).unwrap();
        assert_eq!(ours[8..12], 3u32.to_le_bytes());
        for format in [1, 2] {
            set_format(&path, format);
            let older = fs::read(&path).unwrap();
            assert_eq!(DataDir::peek(dir.path()).unwrap(), superblock);
            // Whom it does not belong to changes nothing.
            DataDir::open(dir.path(), ClusterId::new(1), OsdId::new(7)).unwrap_err();
            assert_eq!(fs::read(&path).unwrap(), older);
            let opened = open(dir.path()).unwrap();
            assert!(!opened.was_created());
            assert_eq!(*opened.superblock(), superblock);
            assert_eq!(fs::read(&path).unwrap(), ours);
        }
    }

    #[test]
    fn a_directory_of_a_newer_format_or_of_none_is_refused_and_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        drop(open(dir.path()).unwrap());
        let path = dir.path().join("superblock");
        for format in [0, 4] {
            set_format(&path, format);
            let before = fs::read(&path).unwrap();
            let error = open(dir.path()).unwrap_err();
            let found = |error: &DataDirError| match error {
                DataDirError::OtherFormat { found, supported: 3, .. } => Some(*found),
                _ => None,
            };
            assert_eq!(found(&error), Some(format), "{error}");
            assert_eq!(fs::read(&path).unwrap(), before);
        }
    }

    #[test]
    fn data_without_a_superblock_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("pg")).unwrap();
        let error = open(dir.path()).unwrap_err();
        assert!(
            matches!(error, DataDirError::NotBlank { ref found, .. } if found == "pg"),
            "{error}"
        );
    }

    #[test]
    fn every_flipped_byte_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        drop(open(dir.path()).unwrap());
        let path = dir.path().join("superblock");
        let good = fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x40;
            fs::write(&path, &bad).unwrap();
            let error = open(dir.path()).unwrap_err();
            let is_version = (8..12).contains(&at);
            assert_eq!(
                matches!(error, DataDirError::OtherFormat { supported: FORMAT_VERSION, .. }),
                is_version
            );
            assert_eq!(matches!(error, DataDirError::Damaged { .. }), !is_version);
        }
        for length in 0..good.len() {
            fs::write(&path, &good[..length]).unwrap();
            assert!(matches!(open(dir.path()).unwrap_err(), DataDirError::Damaged { .. }));
        }
    }
}
