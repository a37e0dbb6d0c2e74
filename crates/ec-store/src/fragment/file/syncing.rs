//! How what was done to a fragment file becomes durable.

use super::super::FragmentError;
use super::super::changes::Upto;
use super::{FragmentFile, State};
use crate::medium::{self, Dir};
use crate::poison::NotSynced;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;

/// A file with more unsynced bytes keeps a disk busy by itself.
const BEGIN_BYTES_MAX: u64 = 256 << 10;

impl FragmentFile {
    /// Writes checksums and header to the page cache, so that what was done survives the death of
    /// the process. Needed after changes that no journal record repeats after a restart: those of a
    /// rebuild.
    ///
    /// # Errors
    /// `Full`, `Io`: nothing is lost, try again.
    pub fn flush(&self) -> Result<(), FragmentError> {
        self.write_back(&mut self.state.lock())
    }

    /// Makes everything durable that was done before the call: checksums, header, data, and the
    /// name of a new file. Waits for the disk; meant for an I/O thread. Does nothing if nothing
    /// changed, or if the fragment was deleted.
    ///
    /// # Errors
    /// `Full`: nothing is lost, try again. `Io` of a failed sync, and `SyncFailed` ever after.
    pub fn sync(&self) -> Result<(), FragmentError> {
        self.sync_contents()?;
        sync_names([self], [])
    }

    /// Begins to write what a sync would wait for, if it is little. Errors are for the sync to
    /// tell.
    pub fn begin_sync(&self) {
        if !self.is_dirty() || self.has_sync_failed() || self.unsynced_bytes() > BEGIN_BYTES_MAX {
            return;
        }
        let mut state = self.state.lock();
        if !state.is_deleted && self.write_back(&mut state).is_ok() {
            drop(state);
            self.file.begin_sync();
        }
    }

    /// Begins to bring its data to the disk, however much it is; checksums and header stay for the
    /// sync, as do errors.
    pub fn begin_write_back(&self) {
        if self.is_dirty() && !self.has_sync_failed() {
            self.file.begin_sync();
        }
    }

    /// As [`FragmentFile::sync`], but for the name, which is for [`sync_names`].
    ///
    /// # Errors
    /// Those of [`FragmentFile::sync`].
    pub(crate) fn sync_contents(&self) -> Result<(), FragmentError> {
        let begin = || if self.is_dirty() { self.write_back_to_sync() } else { Ok(None) };
        let wait = |upto| {
            self.file.sync_data().map_err(|source| self.sync_failed(source))?;
            self.changes.synced(upto);
            Ok(())
        };
        self.poison.sync(begin, wait).map_err(|error| match error {
            NotSynced::Poisoned => FragmentError::SyncFailed { key: self.key },
            NotSynced::Failed(error) => error,
        })
    }

    /// Writes what only a sync has to wait for; `None` if there is nothing to sync any more.
    fn write_back_to_sync(&self) -> Result<Option<Upto>, FragmentError> {
        let mut state = self.state.lock();
        if state.is_deleted {
            return Ok(None);
        }
        self.write_back(&mut state)?;
        Ok(Some(self.changes.upto()))
    }

    fn sync_failed(&self, source: io::Error) -> FragmentError {
        self.poison.set();
        tracing::error!(fragment = %self.key, %source, "sync failed");
        FragmentError::Io { key: self.key, source }
    }

    pub(super) fn write_back(&self, state: &mut State) -> Result<(), FragmentError> {
        state.table.write_back(&*self.file).map_err(|error| self.io(error))?;
        if state.slots.take_dirty() {
            let map = state.slots.encode();
            if let Err((_, error)) = medium::write_counted(&*self.file, self.map_start(), &map) {
                state.slots.set_dirty();
                return Err(self.io(error));
            }
            state.is_header_dirty = true;
        }
        let places = state.slots.layout();
        state.is_header_dirty |= places != state.header.places;
        state.header.places = places;
        if state.is_header_dirty {
            let bytes = state.header.encode(self.key, self.cluster);
            medium::write_counted(&*self.file, 0, &bytes).map_err(|(_, error)| self.io(error))?;
            state.is_header_dirty = false;
        }
        Ok(())
    }
}

/// Syncs the names of those that are new, and those in some more directories; each directory is
/// synced once, however many of its fragments are new.
///
/// # Errors
/// `Io` of a failed sync, which is the last of a file whose name it was to sync; `Store` for one of
/// `dirs`.
pub(crate) fn sync_names<'a>(
    files: impl IntoIterator<Item = &'a FragmentFile>,
    dirs: impl IntoIterator<Item = &'a Dir>,
) -> Result<(), FragmentError> {
    let mut new_in: BTreeMap<&Path, (&Dir, Vec<&FragmentFile>)> =
        dirs.into_iter().map(|dir| (dir.path(), (dir, Vec::new()))).collect();
    for file in files {
        if file.is_dir_dirty.load(Ordering::Acquire) && !file.is_deleted() {
            new_in.entry(file.dir.path()).or_insert_with(|| (&file.dir, Vec::new())).1.push(file);
        }
    }
    for (dir, files) in new_in.into_values() {
        match (dir.sync(), files.first()) {
            (Ok(()), _) => {
                files.iter().for_each(|file| file.is_dir_dirty.store(false, Ordering::Release))
            }
            (Err(source), Some(file)) => return Err(file.sync_failed(source)),
            (Err(source), None) => {
                return Err(FragmentError::Store { path: dir.path().to_path_buf(), source });
            }
        }
    }
    Ok(())
}
