//! The open fragments of one core, and the directories they are in.
//!
//! Contract: one owner thread. Files handed out as `Arc` stay valid after the store closed or
//! deleted them; the store never opens a second [`FragmentFile`] for a fragment while somebody
//! holds the first.

use super::file::{Common, FragmentFile};
use super::slots::is_slot_size;
use super::spare::Spares;
use super::{FragmentError, FragmentKey, FragmentStat, Mark, ReadMode, ReadOutcome, space_of_data};
use crate::disk::Space;
use crate::medium::{Dir, FileStat, MediumFile, Names, OpenMode};
use messenger::sync::LockTable;
use protocol::ids::{ClusterId, CoreId, Gfid, ObjectId, PgId, PoolId, Profile, ShardIndex};
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The limits of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FragmentConfig {
    /// Open fragment files of one core. More than a sixteenth of the process's limit is cut to
    /// that, with a warning. 1024 keeps the files of 64 GiB of user data open. At the bound the
    /// least recently used that need no sync are closed. Where too few of them are left the store
    /// asks for one ([`FragmentStore::take_wants_sync`]), and has up to twice as many open until
    /// then.
    pub fragment_open_files_max: usize,
    /// Memory of CRC tables of one core, in bytes. 64 MiB holds the checksums of 8 GiB of
    /// fragments. At the bound the tables of the least recently used files are dropped.
    pub fragment_table_bytes_max: usize,
    /// Files of deleted fragments that one core keeps for new ones; each takes an inode and no
    /// data. 16,384 let a source tree be removed and unpacked again.
    pub fragment_spare_files_max: usize,
    /// Writes of whole slots of so many bytes of a fragment go to free places of the fragment's
    /// file at once, and only their place and checksums to the journal. A power of two from 512 to
    /// 1 MiB; 0: they go through the journal as all others. 32 KiB are 64 KiB of a file with k = 2.
    /// A file keeps the size that it was begun with.
    pub fragment_slot_bytes: u32,
}

impl Default for FragmentConfig {
    fn default() -> Self {
        Self {
            fragment_open_files_max: 1024,
            fragment_table_bytes_max: 64 << 20,
            fragment_spare_files_max: 16_384,
            fragment_slot_bytes: 32 << 10,
        }
    }
}

/// The fragments of the PGs of one core.
#[derive(Debug)]
pub struct FragmentStore {
    root: Dir,
    common: Common,
    config: FragmentConfig,
    files: HashMap<FragmentKey, Slot>,
    dirs: HashMap<PgId, Dir>,
    spares: Spares,
    /// Counts look-ups, to know which file was used last.
    clock: u64,
    /// With so many open files some are to be closed.
    close_at: usize,
    wants_sync: bool,
    /// Fragments that got a new header since they were last taken.
    salvaged: Vec<FragmentKey>,
}

#[derive(Debug)]
struct Slot {
    file: Arc<FragmentFile>,
    used: u64,
}

impl FragmentStore {
    /// As [`FragmentStore::open`] of the first core, with default limits and locks that nobody
    /// lists: for tools.
    ///
    /// # Errors
    /// [`FragmentError::Store`].
    pub fn open_alone(data_dir: impl Into<Dir>, cluster: ClusterId) -> Result<Self, FragmentError> {
        Self::open(
            data_dir,
            CoreId::new(0),
            cluster,
            FragmentConfig::default(),
            &LockTable::default(),
        )
    }

    /// Opens the store of a core in an OSD's data directory; `pg/` and `spare/<core>/` are made if
    /// they are missing.
    ///
    /// # Errors
    /// [`FragmentError::Store`].
    pub fn open(
        data_dir: impl Into<Dir>,
        core: CoreId,
        cluster: ClusterId,
        mut config: FragmentConfig,
        locks: &LockTable,
    ) -> Result<Self, FragmentError> {
        let data_dir = data_dir.into();
        let root = data_dir.dir("pg");
        root.create().map_err(|error| store_error(root.path(), error))?;
        let kept = data_dir.dir("spare").dir(&core.get().to_string());
        let spares = Spares::open(kept.clone(), config.fragment_spare_files_max);
        let spares = spares.map_err(|error| store_error(kept.path(), error))?;
        // Sockets, journals and the stores of other cores need descriptors too.
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile)
            .current
            .unwrap_or(u64::MAX)
            / 16;
        if config.fragment_open_files_max as u64 > limit {
            let asked = config.fragment_open_files_max;
            tracing::warn!(
                asked,
                limit,
                "fragment_open_files_max cut to a sixteenth of the open files limit"
            );
            config.fragment_open_files_max = limit as usize;
        }
        config.fragment_open_files_max = config.fragment_open_files_max.max(1);
        let slot_bytes = config.fragment_slot_bytes;
        assert!(
            slot_bytes == 0 || is_slot_size(slot_bytes),
            "slots of {slot_bytes} bytes: a power of two, 512 to 1 MiB"
        );
        let common = Common { cluster, memory: Arc::default(), slot_bytes, locks: locks.clone() };
        Ok(Self {
            root,
            common,
            close_at: config.fragment_open_files_max,
            wants_sync: false,
            config,
            files: HashMap::new(),
            dirs: HashMap::new(),
            spares,
            clock: 0,
            salvaged: Vec::new(),
        })
    }

    /// The fragment, or `None` if it does not exist. Opening one that is not open waits for the
    /// disk.
    ///
    /// # Errors
    /// `BadHeader`, `OtherCluster`, `Io`; those of closing another file to stay within the limit.
    pub fn get(&mut self, key: FragmentKey) -> Result<Option<Arc<FragmentFile>>, FragmentError> {
        if let Some(file) = self.cached(key) {
            return Ok(Some(file));
        }
        let (dir, path) = self.path(key);
        match dir.medium().open(&path, OpenMode::Existing) {
            Ok(file) => match FragmentFile::open(key, &self.common, file, dir)? {
                Some(file) => self.insert(file).map(Some),
                None => Ok(None),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(FragmentError::io(key, error)),
        }
    }

    /// The fragment, made if it does not exist. One with a damaged header gets a new one, so that
    /// it can be written and repaired: until then all of it fails its checksums.
    ///
    /// # Errors
    /// As [`FragmentStore::get`] without `BadHeader`, `OtherProfile`, and `Full`.
    pub fn get_or_create(
        &mut self,
        key: FragmentKey,
        profile: Profile,
    ) -> Result<Arc<FragmentFile>, FragmentError> {
        match self.get(key) {
            Ok(Some(file)) if file.profile() == profile => return Ok(file),
            Ok(Some(file)) => {
                return Err(FragmentError::OtherProfile {
                    key,
                    found: file.profile(),
                    expected: profile,
                });
            }
            Ok(None) => {}
            Err(FragmentError::BadHeader { what, .. }) => return self.salvage(key, profile, what),
            Err(error) => return Err(error),
        }
        let (dir, path) = self.path(key);
        let file = self.new_file(&dir, &path).map_err(|error| FragmentError::io(key, error))?;
        let file = FragmentFile::create(key, &self.common, file, dir, profile)?;
        self.insert(file)
    }

    /// An empty file with this name, which nothing has, or an empty file that a crash left.
    fn new_file(&mut self, dir: &Dir, path: &Path) -> io::Result<Arc<dyn MediumFile>> {
        if let Some(file) = self.spares.take(path)? {
            return Ok(file);
        }
        let open = || dir.medium().open(path, OpenMode::OrCreate);
        match open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                dir.create().and_then(|()| open())
            }
            result => result,
        }
    }

    fn salvage(
        &mut self,
        key: FragmentKey,
        profile: Profile,
        what: &'static str,
    ) -> Result<Arc<FragmentFile>, FragmentError> {
        tracing::warn!(fragment = %key, "the header {what}: all of the fragment is to be repaired from other shards");
        let (dir, path) = self.path(key);
        let file = dir
            .medium()
            .open(&path, OpenMode::Existing)
            .map_err(|error| FragmentError::io(key, error))?;
        let file = FragmentFile::salvage(key, &self.common, file, dir, profile)?;
        self.salvaged.push(key);
        self.insert(file)
    }

    /// Fragments whose damaged header was replaced since this was last called: all of each is to be
    /// repaired.
    pub fn take_salvaged(&mut self) -> Vec<FragmentKey> {
        std::mem::take(&mut self.salvaged)
    }

    /// [`FragmentFile::read`]; zeros and [`ReadOutcome::Absent`] if the fragment does not exist.
    ///
    /// # Errors
    /// Those of [`FragmentStore::get`] and [`FragmentFile::read`].
    pub fn read(
        &mut self,
        key: FragmentKey,
        offset: u64,
        buf: &mut [u8],
        mode: ReadMode,
    ) -> Result<ReadOutcome, FragmentError> {
        match self.get(key)? {
            Some(file) => file.read(offset, buf, mode),
            None => {
                buf.fill(0);
                Ok(ReadOutcome::Absent)
            }
        }
    }

    /// [`FragmentFile::write`]; the fragment is made if it does not exist.
    ///
    /// # Errors
    /// Those of [`FragmentStore::get_or_create`] and [`FragmentFile::write`].
    pub fn write(
        &mut self,
        key: FragmentKey,
        profile: Profile,
        offset: u64,
        bytes: &[u8],
        crcs: &[u32],
        mark: Mark,
    ) -> Result<(), FragmentError> {
        self.get_or_create(key, profile)?.write(offset, bytes, crcs, mark)
    }

    /// [`FragmentFile::is_unwritten`]; true if the fragment does not exist.
    ///
    /// # Errors
    /// Those of [`FragmentStore::get`] and [`FragmentFile::is_unwritten`].
    pub fn is_unwritten(
        &mut self,
        key: FragmentKey,
        offset: u64,
        length: u64,
    ) -> Result<bool, FragmentError> {
        self.get(key)?.map_or(Ok(true), |file| file.is_unwritten(offset, length))
    }

    /// [`FragmentFile::stat`], or `None` if the fragment does not exist.
    ///
    /// # Errors
    /// Those of [`FragmentStore::get`] and [`FragmentFile::stat`].
    pub fn stat(&mut self, key: FragmentKey) -> Result<Option<FragmentStat>, FragmentError> {
        self.get(key)?.map(|file| file.stat()).transpose()
    }

    /// [`FragmentFile::sync`] of an open fragment; one that is not open has nothing to sync.
    ///
    /// # Errors
    /// Those of [`FragmentFile::sync`].
    pub fn sync(&mut self, key: FragmentKey) -> Result<(), FragmentError> {
        self.files.get(&key).map_or(Ok(()), |slot| slot.file.sync())
    }

    /// Deletes the fragment, damaged or not; `false` if it did not exist. Durable after a sync of
    /// [`FragmentStore::pg_dir`], which may run on another thread.
    ///
    /// # Errors
    /// `Io`; the fragment is then still there.
    pub fn delete(&mut self, key: FragmentKey) -> Result<bool, FragmentError> {
        let (dir, path) = self.path(key);
        // Who holds the file still reads the fragment's bytes: then it is not kept for another.
        let is_held = self.files.get(&key).is_some_and(|slot| Arc::strong_count(&slot.file) > 1);
        let removed = if is_held { dir.medium().remove(&path) } else { self.spares.remove(&path) };
        let existed = match removed {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(FragmentError::io(key, error)),
        };
        if let Some(slot) = self.files.remove(&key) {
            slot.file.set_deleted();
        }
        Ok(existed)
    }

    /// Lets go of an open fragment whose name was removed behind our back: its bytes would be gone
    /// at the next start. True: it was so.
    ///
    /// # Errors
    /// `Io`.
    pub fn forget_unlinked(&mut self, key: FragmentKey) -> Result<bool, FragmentError> {
        let Some(slot) = self.files.get(&key) else { return Ok(false) };
        if slot.file.is_linked()? {
            return Ok(false);
        }
        tracing::warn!(fragment = %key, "the file was removed while it was open");
        slot.file.set_deleted();
        self.files.remove(&key);
        Ok(true)
    }

    /// The directory of a PG; it exists once the PG has a fragment.
    pub fn pg_dir(&mut self, pg: PgId) -> Dir {
        self.dirs.entry(pg).or_insert_with(|| self.root.dir(&pg.to_string())).clone()
    }

    /// The open files that wait for a sync, in no order. Syncing them all, and the directories of
    /// deleted fragments, makes everything durable that was applied before.
    pub fn dirty_files(&self) -> impl Iterator<Item = &Arc<FragmentFile>> {
        self.files.values().map(|slot| &slot.file).filter(|file| file.is_dirty())
    }

    /// The fragments of a PG, in no order, as they are found; files with other names are skipped.
    ///
    /// # Errors
    /// [`FragmentError::Store`], also as an item.
    pub fn list(
        &mut self,
        pg: PgId,
    ) -> Result<
        impl Iterator<Item = Result<(ObjectId, ShardIndex), FragmentError>> + use<>,
        FragmentError,
    > {
        let dir = self.pg_dir(pg);
        let names = list(&dir)?;
        Ok(names.into_iter().flatten().filter_map(move |name| match name {
            Ok(name) => parse_name(name.to_str()?).map(Ok),
            Err(error) => Some(Err(store_error(dir.path(), error))),
        }))
    }

    /// What finds out how many bytes each of these fragments takes on the disk; it waits for that,
    /// and opens nothing for longer. 0 for one that is not there or cannot be looked at.
    pub fn sizes(&mut self, keys: &[FragmentKey]) -> impl FnOnce() -> Vec<u64> + Send + use<> {
        let paths: Vec<(Dir, PathBuf)> = keys.iter().map(|key| self.path(*key)).collect();
        move || {
            let size = |(dir, path): &(Dir, PathBuf)| -> io::Result<FileStat> {
                dir.medium().open(path, OpenMode::Existing)?.stat()
            };
            paths.iter().map(|at| size(at).map_or(0, |stat| stat.allocated_bytes)).collect()
        }
    }

    /// What finds out how many bytes a fragment of this PG takes on the disk, as
    /// [`FragmentStore::sizes`] does.
    pub fn sizes_of(&mut self, pg: PgId) -> impl Fn(ObjectId, ShardIndex) -> u64 + Send + use<> {
        let dir = self.pg_dir(pg);
        move |object, shard| {
            let path = dir.join(&file_name(object, shard));
            let stat = dir.medium().open(&path, OpenMode::Existing).and_then(|file| file.stat());
            stat.map_or(0, |stat| space_of_data(stat.allocated_bytes))
        }
    }

    /// What finds out how many bytes all fragments of a PG take on the disk; it waits for that.
    pub fn size_of_pg(&mut self, pg: PgId) -> impl FnOnce() -> io::Result<u64> + Send + use<> {
        let dir = self.pg_dir(pg);
        move || {
            let names = match dir.medium().list(dir.path()) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
                names => names?,
            };
            let mut sum = 0;
            for name in names {
                let path = dir.path().join(name?);
                // One that is gone meanwhile takes nothing.
                let stat =
                    dir.medium().open(&path, OpenMode::Existing).and_then(|file| file.stat());
                sum += stat.map_or(0, |stat| stat.allocated_bytes);
            }
            Ok(sum)
        }
    }

    /// The PGs that have a directory, in no order.
    ///
    /// # Errors
    /// [`FragmentError::Store`].
    pub fn list_pgs(&self) -> Result<Vec<PgId>, FragmentError> {
        let mut pgs = Vec::new();
        for name in list(&self.root)?.into_iter().flatten() {
            let name = name.map_err(|error| store_error(self.root.path(), error))?;
            pgs.extend(name.to_str().and_then(parse_pg));
        }
        Ok(pgs)
    }

    /// Space of the file system below.
    ///
    /// # Errors
    /// [`FragmentError::Store`].
    pub fn space(&self) -> Result<Space, FragmentError> {
        self.root
            .medium()
            .space(self.root.path())
            .map_err(|error| store_error(self.root.path(), error))
    }

    /// Files that may be held until a trim: an eighth of those that may be open, whose tables then
    /// take half of their memory at most.
    pub(crate) fn held_files_max(&self) -> usize {
        (self.config.fragment_open_files_max / 8).max(1)
    }

    /// Open files.
    pub fn open_files(&self) -> usize {
        self.files.len()
    }

    /// Memory of CRC tables, in bytes.
    pub fn table_bytes(&self) -> usize {
        self.common.memory.bytes()
    }

    fn cached(&mut self, key: FragmentKey) -> Option<Arc<FragmentFile>> {
        if self.common.memory.bytes() > self.config.fragment_table_bytes_max {
            self.shrink_tables();
        }
        self.clock += 1;
        let slot = self.files.get_mut(&key)?;
        slot.used = self.clock;
        Some(slot.file.clone())
    }

    fn insert(&mut self, file: FragmentFile) -> Result<Arc<FragmentFile>, FragmentError> {
        if self.files.len() >= self.close_at {
            self.close_some()?;
        }
        let file = Arc::new(file);
        self.files.insert(file.key(), Slot { file: file.clone(), used: self.clock });
        Ok(file)
    }

    /// Keys of files that nobody else holds, least recently used first.
    fn idle_keys(&self) -> Vec<FragmentKey> {
        let is_idle =
            |slot: &Slot| Arc::strong_count(&slot.file) == 1 && !slot.file.has_sync_failed();
        let mut idle: Vec<(u64, FragmentKey)> = self
            .files
            .iter()
            .filter(|(_, slot)| is_idle(slot))
            .map(|(key, slot)| (slot.used, *key))
            .collect();
        idle.sort_unstable();
        idle.into_iter().map(|(_, key)| key).collect()
    }

    /// Closes clean files, the least recently used first, until an eighth of the limit is free, so
    /// that looking for them is paid once in many openings. With twice the limit open, and none of
    /// them clean, the oldest is closed after a sync. Files that others hold stay open, and may
    /// exceed that by as many as there are operations in flight.
    fn close_some(&mut self) -> Result<(), FragmentError> {
        let idle = self.idle_keys();
        let max = self.config.fragment_open_files_max;
        let step = (max / 8).max(1);
        let excess = (self.files.len() + step).saturating_sub(max);
        let clean: Vec<FragmentKey> = idle
            .iter()
            .copied()
            .filter(|key| !self.files[key].file.is_dirty())
            .take(excess)
            .collect();
        for key in &clean {
            self.files.remove(key);
        }
        self.wants_sync |= clean.len() < excess && clean.len() < idle.len();
        if self.files.len() >= 2 * max
            && let Some(key) = idle.iter().find(|key| self.files.contains_key(key))
        {
            self.files[key].file.sync()?;
            self.files.remove(key);
        }
        self.close_at = (self.files.len() + step).clamp(max, 2 * max);
        Ok(())
    }

    /// Are too many files open that wait for a sync? Asked once: then a sync is expected.
    pub fn take_wants_sync(&mut self) -> bool {
        std::mem::take(&mut self.wants_sync)
    }

    /// Drops the tables of the least recently used files until a quarter of the memory is free.
    fn shrink_tables(&mut self) {
        for key in self.idle_keys() {
            if self.common.memory.bytes() <= self.config.fragment_table_bytes_max / 4 * 3 {
                return;
            }
            if let Err(error) = self.files[&key].file.drop_table() {
                tracing::warn!(%error, "a CRC table stays in memory");
            }
        }
    }

    fn path(&mut self, key: FragmentKey) -> (Dir, PathBuf) {
        let dir = self.pg_dir(key.pg);
        let path = dir.join(&file_name(key.object, key.shard));
        (dir, path)
    }
}

fn file_name(object: ObjectId, shard: ShardIndex) -> String {
    format!("{object}.{}", shard.get())
}

/// The names in a directory; `None` if it does not exist.
fn list(dir: &Dir) -> Result<Option<Names>, FragmentError> {
    match dir.medium().list(dir.path()) {
        Ok(names) => Ok(Some(names)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(store_error(dir.path(), error)),
    }
}

fn store_error(path: &Path, source: io::Error) -> FragmentError {
    FragmentError::Store { path: path.to_path_buf(), source }
}

/// The inverse of [`PgId`]'s display.
fn parse_pg(name: &str) -> Option<PgId> {
    let (pool, number) = name.split_once('.')?;
    let pg = PgId {
        pool: PoolId::new(pool.parse().ok()?),
        number: u32::from_str_radix(number, 16).ok()?,
    };
    (pg.to_string() == name).then_some(pg)
}

/// The inverse of a fragment's file name.
fn parse_name(name: &str) -> Option<(ObjectId, ShardIndex)> {
    let mut parts = name.split('.');
    let gfid = Gfid::new(u128::from_str_radix(parts.next()?, 16).ok()?);
    let index = parts.next()?.parse().ok()?;
    let shard: u8 = parts.next()?.parse().ok()?;
    let object = ObjectId { gfid, index };
    (format!("{object}.{shard}") == name).then_some((object, ShardIndex::new(shard)))
}
