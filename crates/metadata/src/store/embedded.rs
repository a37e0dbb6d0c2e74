//! The embedded store: a log-structured merge tree in the process (`fjall`).
//!
//! Contract: a commit is one `write(2)` to the journal before it returns, so it outlives the
//! process; [`Persist`] is an `fdatasync` of the journal. That sync holds the journal's lock, so
//! commits wait for it: callers batch their syncs. All keys share one tree, so a batch touches one
//! memtable and one run of filters.

use super::{Batch, Persist, Store, StoreError, Visit};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use std::path::Path;

/// Limits of memory of the embedded store.
#[derive(Clone, Copy, Debug)]
pub struct StoreConfig {
    /// Blocks cached, in bytes. 64 MiB holds the attributes of some 500,000 files.
    pub cache_bytes: u64,
    /// Size at which a memtable is written out, in bytes; a few exist at a time.
    pub memtable_bytes: u64,
    /// Size of all journals at which memtables are written out early, in bytes; at least 64 MiB.
    pub journal_bytes_max: u64,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self { cache_bytes: 64 << 20, memtable_bytes: 8 << 20, journal_bytes_max: 128 << 20 }
    }
}

/// Files that the store keeps open at most.
const OPEN_FILES_MAX: usize = 128;

/// File beside the store's own that names the process which has it open.
const HOLDER: &str = "holder";

/// The embedded store.
pub struct EmbeddedStore {
    database: Database,
    keys: Keyspace,
}

impl EmbeddedStore {
    /// Opens the store in a directory, and makes it if there is none.
    ///
    /// # Errors
    /// When another process has it open, or it cannot be read or made.
    pub fn open(dir: &Path, config: StoreConfig) -> Result<Self, StoreError> {
        let failed = |error| match error {
            fjall::Error::Locked => {
                StoreError::Locked { dir: dir.display().to_string(), holder: holder(dir) }
            }
            other => StoreError::Backend(format!("cannot open {}: {other}", dir.display())),
        };
        let database = Database::builder(dir)
            .cache_size(config.cache_bytes)
            .max_journaling_size(config.journal_bytes_max.max(64 << 20))
            .max_cached_files(Some(OPEN_FILES_MAX))
            .worker_threads(1)
            .open()
            .map_err(failed)?;
        let options = || KeyspaceCreateOptions::default().max_memtable_size(config.memtable_bytes);
        let keys = database.keyspace("metadata", options).map_err(failed)?;
        // Only for the words of an error: the store works without it.
        if let Err(error) = std::fs::write(dir.join(HOLDER), std::process::id().to_string()) {
            tracing::warn!(%error, "cannot note in {} who has the store open", dir.display());
        }
        Ok(Self { database, keys })
    }
}

/// Who has the store open, as it noted.
fn holder(dir: &Path) -> String {
    let pid = std::fs::read_to_string(dir.join(HOLDER)).unwrap_or_default();
    if pid.is_empty() { "an unknown process".into() } else { format!("process {pid}") }
}

fn backend(error: fjall::Error) -> StoreError {
    StoreError::Backend(error.to_string())
}

impl Store for EmbeddedStore {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.keys.get(key).map_err(backend)?.map(|value| value.to_vec()))
    }

    fn scan(&self, from: &[u8], until: &[u8], visit: Visit<'_>) -> Result<(), StoreError> {
        if from >= until {
            return Ok(());
        }
        for pair in self.keys.range(from..until) {
            let (key, value) = pair.into_inner().map_err(backend)?;
            if visit(&key, &value).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn commit(&mut self, changes: Batch) -> Result<(), StoreError> {
        let mut batch = self.database.batch();
        for (key, value) in changes {
            match value {
                Some(value) => batch.insert(&self.keys, key, value),
                None => batch.remove(&self.keys, key),
            }
        }
        batch.commit().map_err(backend)
    }

    fn persister(&self) -> Box<dyn Persist> {
        Box::new(Journal(self.database.clone()))
    }
}

struct Journal(Database);

impl Persist for Journal {
    fn persist(&self) -> Result<(), StoreError> {
        self.0.persist(PersistMode::SyncData).map_err(backend)
    }
}
