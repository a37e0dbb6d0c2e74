//! The seam to an ordered, transactional key-value store.
//!
//! Contract: [`Store::commit`] is atomic, and once it has returned, the batch survives the death of
//! the process. It survives a power loss once a [`Persist::persist`] that began later has returned.
//! One owner writes; a get or scan sees every batch committed before it. After an error of `commit`
//! or `persist` the store may refuse everything until it is opened again: nobody may pretend that
//! the write happened or did not.

mod embedded;
mod memory;

pub use embedded::{EmbeddedStore, StoreConfig};
pub use memory::MemoryStore;

use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// Changes that are committed together: a new value, or `None` to delete the key.
pub type Batch = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// Visits a key and its value; breaks when it has seen enough.
pub type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>;

/// An ordered transactional key-value store. Keys are compared as bytes.
pub trait Store {
    /// The value of a key.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;

    /// Visits the pairs with `from <= key < until` in order, until the visitor breaks.
    ///
    /// # Errors
    /// When the store cannot be read; pairs before the failure were visited.
    fn scan(&self, from: &[u8], until: &[u8], visit: Visit<'_>) -> Result<(), StoreError>;

    /// Applies the batch, all of it or nothing.
    ///
    /// # Errors
    /// When it cannot be written; see the module's contract.
    fn commit(&mut self, batch: Batch) -> Result<(), StoreError>;

    /// A handle that another thread uses to bring what was committed to disk.
    fn persister(&self) -> Box<dyn Persist>;
}

/// Brings what was committed to disk. Blocks, so it has a thread of its own.
pub trait Persist: Send {
    /// Returns when everything committed before the call is on disk.
    ///
    /// # Errors
    /// When that failed; the store is then unusable until opened again.
    fn persist(&self) -> Result<(), StoreError>;
}

/// Why the store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The backend failed; after this only opening it again helps.
    #[error("metadata store: {0}")]
    Backend(String),
    /// Another process has the directory open.
    #[error(
        "metadata store {dir} is in use by another metadata service ({holder}): stop that one first"
    )]
    Locked {
        /// The directory.
        dir: String,
        /// Who, as far as known.
        holder: String,
    },
    /// A record does not have the form that this version writes.
    #[error("metadata record {key:02x?} is damaged: {reason}")]
    Corrupt {
        /// Its key.
        key: Vec<u8>,
        /// What is wrong with it.
        reason: String,
    },
    /// The records are of another format version.
    #[error(
        "metadata has format {found}, this version reads format {expected}: use a matching version of the program"
    )]
    Format {
        /// On disk.
        found: String,
        /// Known here.
        expected: u32,
    },
}

/// The least key above every key that begins with `prefix`.
pub(crate) fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    unreachable!("prefixes begin with a letter, which is below 0xff")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exercise(store: &mut dyn Store) {
        let batch = |pairs: &[(&str, Option<&str>)]| -> Batch {
            pairs
                .iter()
                .map(|(k, v)| (k.as_bytes().to_vec(), v.map(|v| v.as_bytes().to_vec())))
                .collect()
        };
        store
            .commit(batch(&[("a", Some("1")), ("b", Some("2")), ("c", Some("3"))]))
            .expect("commit");
        store.commit(batch(&[("b", None), ("d", Some("4")), ("a", Some("5"))])).expect("commit");
        assert_eq!(store.get(b"a").expect("get"), Some(b"5".to_vec()));
        assert_eq!(store.get(b"b").expect("get"), None);
        let mut seen = Vec::new();
        let visit = &mut |k: &[u8], v: &[u8]| {
            seen.push((k.to_vec(), v.to_vec()));
            if seen.len() == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        store.scan(b"a", b"zz", visit).expect("scan");
        assert_eq!(seen, [(b"a".to_vec(), b"5".to_vec()), (b"c".to_vec(), b"3".to_vec())]);
        store.persister().persist().expect("persist");
    }

    #[test]
    fn backends_agree() {
        exercise(&mut MemoryStore::default());
        let dir = tempfile::tempdir().expect("tempdir");
        exercise(&mut EmbeddedStore::open(dir.path(), StoreConfig::default()).expect("open"));
    }

    #[test]
    fn second_open_is_told_who_is_in_the_way() {
        let dir = tempfile::tempdir().expect("tempdir");
        let first = EmbeddedStore::open(dir.path(), StoreConfig::default()).expect("open");
        let second = EmbeddedStore::open(dir.path(), StoreConfig::default());
        let holder = format!("process {}", std::process::id());
        assert!(
            matches!(&second, Err(StoreError::Locked { holder: h, .. }) if *h == holder),
            "{:?}",
            second.err()
        );
        drop(first);
    }

    #[test]
    fn prefix_ends() {
        assert_eq!(prefix_end(b"ab"), b"ac");
        assert_eq!(prefix_end(&[b'd', 0xff, 0xff]), [b'e']);
    }
}
