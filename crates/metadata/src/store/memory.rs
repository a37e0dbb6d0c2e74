//! A store in memory, for tests and simulation. Clones share the same contents, so a clone taken
//! before a crash is what a new process would find. After a loss of power it holds what was there
//! when it was last persisted.

use super::{Batch, Persist, Store, StoreError, Visit};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

/// A store in memory.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    contents: Arc<Mutex<Contents>>,
}

#[derive(Debug, Default)]
struct Contents {
    pairs: Pairs,
    /// What was changed since it was persisted, and what was there before.
    undo: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

impl MemoryStore {
    /// How many keys it holds.
    pub fn len(&self) -> usize {
        self.contents().pairs.len()
    }

    /// Holds it nothing?
    pub fn is_empty(&self) -> bool {
        self.contents().pairs.is_empty()
    }

    /// What was committed and not persisted is gone.
    pub fn lose_power(&self) {
        let mut contents = self.contents();
        let undo = std::mem::take(&mut contents.undo);
        undo.into_iter().for_each(|(key, before)| _ = contents.set(key, before));
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Contents {
    /// Gives what was there before.
    fn set(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) -> Option<Vec<u8>> {
        match value {
            Some(value) => self.pairs.insert(key, value),
            None => self.pairs.remove(&key),
        }
    }
}

impl Store for MemoryStore {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.contents().pairs.get(key).cloned())
    }

    fn scan(&self, from: &[u8], until: &[u8], visit: Visit<'_>) -> Result<(), StoreError> {
        if from < until {
            let contents = self.contents();
            let _ = contents
                .pairs
                .range(from.to_vec()..until.to_vec())
                .try_for_each(|(k, v)| visit(k, v));
        }
        Ok(())
    }

    fn commit(&mut self, batch: Batch) -> Result<(), StoreError> {
        let mut contents = self.contents();
        for (key, value) in batch {
            let before = contents.set(key.clone(), value);
            contents.undo.entry(key).or_insert(before);
        }
        Ok(())
    }

    fn persister(&self) -> Box<dyn Persist> {
        Box::new(self.clone())
    }
}

impl Persist for MemoryStore {
    fn persist(&self) -> Result<(), StoreError> {
        self.contents().undo.clear();
        Ok(())
    }
}
