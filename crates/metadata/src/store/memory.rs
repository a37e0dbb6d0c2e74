//! A store in memory, for tests and simulation. Clones share the same contents, so a clone taken before a crash is what
//! a new process would find.

use super::{Batch, Persist, Store, StoreError, Visit};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

/// A store in memory.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    pairs: Arc<Mutex<Pairs>>,
}

impl MemoryStore {
    /// How many keys it holds.
    pub fn len(&self) -> usize {
        self.pairs().len()
    }

    /// Holds it nothing?
    pub fn is_empty(&self) -> bool {
        self.pairs().is_empty()
    }

    fn pairs(&self) -> MutexGuard<'_, Pairs> {
        self.pairs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for MemoryStore {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.pairs().get(key).cloned())
    }

    fn scan(&self, from: &[u8], until: &[u8], visit: Visit<'_>) -> Result<(), StoreError> {
        if from < until {
            let pairs = self.pairs();
            let _ = pairs.range(from.to_vec()..until.to_vec()).try_for_each(|(k, v)| visit(k, v));
        }
        Ok(())
    }

    fn commit(&mut self, batch: Batch) -> Result<(), StoreError> {
        let mut pairs = self.pairs();
        for (key, value) in batch {
            match value {
                Some(value) => pairs.insert(key, value),
                None => pairs.remove(&key),
            };
        }
        Ok(())
    }

    fn persister(&self) -> Box<dyn Persist> {
        Box::new(Nothing)
    }
}

struct Nothing;

impl Persist for Nothing {
    fn persist(&self) -> Result<(), StoreError> {
        Ok(())
    }
}
