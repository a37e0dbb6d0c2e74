//! What may wait for the disk, apart from the journal's owner.
//!
//! Contract: `Send`, holds the files it needs open, and touches nothing of the journal but its
//! poison.

use super::format::{self, EntryHeader};
use super::{JournalError, Location, Lsn};
use crate::medium::{self, Dir, MediumFile};
use crate::poison::{NotSynced, Poison};
use bytes::Bytes;
use std::sync::Arc;

/// Syncs what was flushed when it was made.
#[derive(Debug)]
pub struct SyncHandle {
    pub(super) files: Vec<Arc<dyn MediumFile>>,
    pub(super) dir: Dir,
    pub(super) has_new_name: bool,
    pub(super) upto: Lsn,
    pub(super) poison: Arc<Poison>,
}

impl SyncHandle {
    /// The last entry that a successful [`SyncHandle::run`] makes durable.
    pub fn upto(&self) -> Lsn {
        self.upto
    }

    /// Files and directories that it has to sync.
    pub fn files(&self) -> usize {
        self.files.len() + usize::from(self.has_new_name)
    }

    /// Waits until everything is on the disk, one after the other if several are run at once;
    /// returns what to tell [`super::Journal::synced`].
    ///
    /// # Errors
    /// `Io`: the journal is poisoned from now on; `Poisoned` if it already was.
    pub fn run(&self) -> Result<Lsn, JournalError> {
        let sync_all = |()| {
            self.files.iter().try_for_each(|file| file.sync_data())?;
            if self.has_new_name { self.dir.sync() } else { Ok(()) }
        };
        self.poison.sync(|| Ok(Some(())), sync_all).map_err(|error| match error {
            // Another handle may have failed on the same pages meanwhile.
            NotSynced::Poisoned => JournalError::Poisoned { dir: self.dir.path().to_path_buf() },
            // The kernel may have dropped the pages: a later sync that succeeds would mean nothing.
            NotSynced::Failed(source) => {
                tracing::error!(journal = %self.dir.path().display(), %source, "sync failed, the journal takes nothing more");
                JournalError::Io { path: self.dir.path().to_path_buf(), source }
            }
        })?;
        Ok(self.upto)
    }
}

/// Reads one entry again.
#[derive(Clone, Debug)]
pub struct EntryReader {
    pub(super) file: Arc<dyn MediumFile>,
    pub(super) dir: Dir,
    pub(super) incarnation: u64,
    pub(super) at: Location,
}

impl EntryReader {
    /// Kind, front and data, checked.
    ///
    /// # Errors
    /// `BadEntry`, `Io`.
    pub fn read(&self) -> Result<(u8, Bytes, Bytes), JournalError> {
        let mut bytes = vec![0; self.at.bytes as usize];
        medium::read_zero_filled(&*self.file, self.at.offset, &mut bytes).map_err(|error| {
            JournalError::io(&format::segment_path(self.dir.path(), self.at.segment), error)
        })?;
        let bad = || JournalError::BadEntry { at: self.at };
        let header = EntryHeader::decode(&bytes, self.incarnation)
            .filter(|header| header.lsn == self.at.lsn);
        let header = header.ok_or_else(bad)?;
        header.payload(&bytes).ok_or_else(bad)?;
        let front_end = format::ENTRY_HEADER_BYTES as usize + header.front_bytes as usize;
        let bytes = Bytes::from(bytes);
        let front = bytes.slice(format::ENTRY_HEADER_BYTES as usize..front_end);
        let data = bytes.slice(front_end..front_end + header.data_bytes as usize);
        Ok((header.kind, front, data))
    }
}
