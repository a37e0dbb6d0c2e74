//! Changes not yet committed, over the store: reads see them, one commit writes them together.
//!
//! Contract: between [`Overlay::begin`] and the next one, [`Overlay::rollback`] takes back what was
//! put or deleted since.

use crate::store::{Batch, Store, StoreError, Visit, prefix_end};
use serde::{Serialize, de::DeserializeOwned};
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};

/// What `pending` held for a key: nothing, or a value or deletion.
type Before = Option<Option<Vec<u8>>>;

/// The pending changes and what lies below them.
pub(super) struct Overlay<S> {
    store: S,
    pending: Batch,
    /// For each change since `begin`: the key, and what `pending` held for it before.
    undo: Vec<(Vec<u8>, Before)>,
}

impl<S: Store> Overlay<S> {
    pub(super) fn new(store: S) -> Self {
        Self { store, pending: BTreeMap::new(), undo: Vec::new() }
    }

    pub(super) fn store(&self) -> &S {
        &self.store
    }

    pub(super) fn begin(&mut self) {
        self.undo.clear();
    }

    pub(super) fn rollback(&mut self) {
        for (key, before) in std::mem::take(&mut self.undo).into_iter().rev() {
            match before {
                Some(value) => self.pending.insert(key, value),
                None => self.pending.remove(&key),
            };
        }
    }

    /// Number of keys changed and not committed.
    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }

    pub(super) fn commit(&mut self) -> Result<(), StoreError> {
        self.undo.clear();
        if self.pending.is_empty() {
            return Ok(());
        }
        self.store.commit(std::mem::take(&mut self.pending))
    }

    pub(super) fn get<T: DeserializeOwned>(&self, key: &[u8]) -> Result<Option<T>, StoreError> {
        match self.pending.get(key) {
            Some(Some(value)) => decode(key, value).map(Some),
            Some(None) => Ok(None),
            None => self.store.get(key)?.map(|value| decode(key, &value)).transpose(),
        }
    }

    pub(super) fn contains(&self, key: &[u8]) -> Result<bool, StoreError> {
        match self.pending.get(key) {
            Some(value) => Ok(value.is_some()),
            None => Ok(self.store.get(key)?.is_some()),
        }
    }

    pub(super) fn put<T: Serialize>(&mut self, key: Vec<u8>, value: &T) {
        let value = postcard::to_stdvec(value).expect("records contain only encodable types");
        self.change(key, Some(value));
    }

    pub(super) fn delete(&mut self, key: Vec<u8>) {
        self.change(key, None);
    }

    fn change(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) {
        let before = self.pending.insert(key.clone(), value);
        self.undo.push((key, before));
    }

    /// Visits the pairs from `from` on whose keys begin with `prefix`, in order, until the visitor
    /// breaks.
    pub(super) fn scan(
        &self,
        prefix: &[u8],
        from: &[u8],
        visit: Visit<'_>,
    ) -> Result<(), StoreError> {
        let until = prefix_end(prefix);
        if from >= until.as_slice() {
            return Ok(());
        }
        let bounds = (Bound::Included(from), Bound::Excluded(until.as_slice()));
        let mut pending = self.pending.range::<[u8], _>(bounds).peekable();
        let mut stopped = false;
        self.store.scan(from, &until, &mut |key, value| {
            while let Some((k, v)) = pending.next_if(|(k, _)| k.as_slice() < key) {
                if v.as_ref().is_some_and(|v| visit(k, v).is_break()) {
                    stopped = true;
                    return ControlFlow::Break(());
                }
            }
            let flow = match pending.next_if(|(k, _)| k.as_slice() == key) {
                Some((_, Some(newer))) => visit(key, newer),
                Some((_, None)) => ControlFlow::Continue(()),
                None => visit(key, value),
            };
            stopped = flow.is_break();
            flow
        })?;
        if !stopped {
            let _ = pending.try_for_each(|(k, v)| {
                v.as_ref().map_or(ControlFlow::Continue(()), |v| visit(k, v))
            });
        }
        Ok(())
    }

    /// All keys that begin with `prefix`.
    pub(super) fn keys(&self, prefix: &[u8]) -> Result<Vec<Vec<u8>>, StoreError> {
        let mut keys = Vec::new();
        self.scan(prefix, prefix, &mut |key, _| {
            keys.push(key.to_vec());
            ControlFlow::Continue(())
        })?;
        Ok(keys)
    }
}

/// A record from its bytes.
pub(super) fn decode<T: DeserializeOwned>(key: &[u8], value: &[u8]) -> Result<T, StoreError> {
    postcard::from_bytes(value).map_err(|e| corrupt(key, e.to_string()))
}

/// The error of a record that is not as it must be.
pub(super) fn corrupt(key: &[u8], reason: impl Into<String>) -> StoreError {
    StoreError::Corrupt { key: key.to_vec(), reason: reason.into() }
}
