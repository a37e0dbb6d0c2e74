//! The first start of one of several monitors.
//!
//! Contract: [`Founding`] is pure. A directory without a log has a random number, kept in the file
//! `quorum`. When every monitor of the list has told such a number, the cluster begins: they all
//! make the same log, whose voters they are, and the cluster's id is made of the numbers. A monitor
//! that was away meanwhile still begins if the others know its number, because then its directory
//! has never promised anything.
//!
//! Rule: NewIdentity - a directory whose number the others do not know has lost what its monitor
//! promised, or never was one of theirs. It does not take part as that one: it asks to be taken in
//! as a new replica, which is told everything.
//!
//! | `quorum` says | meaning |
//! |---|---|
//! | 32 hexadecimal digits | the number; the directory never held a log |
//! | `begun` | it holds one, or did |

use crate::random::random_u128;
use cluster::ControlError;
use ec_store::disk;
use protocol::quorum::MonitorHello;
use std::io;
use std::path::{Path, PathBuf};

const BEGUN: &str = "begun";

/// Where a directory says that it belongs to several monitors.
pub(super) fn marker(dir: &Path) -> PathBuf {
    dir.join("quorum")
}

/// The number of a directory without a log, drawn if need be; `None` if it had a log.
///
/// # Errors
/// When the file cannot be read or written, or is damaged.
pub(super) fn nonce(dir: &Path) -> Result<Option<u128>, ControlError> {
    let path = marker(dir);
    let failed = |what, source| ControlError::Io { what, path: path.clone(), source };
    match std::fs::read_to_string(&path) {
        Ok(text) if text.trim_end() == BEGUN => Ok(None),
        Ok(text) => u128::from_str_radix(text.trim_end(), 16).map(Some).map_err(|_| {
            ControlError::Damaged { path: path.clone(), what: "it is not a number".into() }
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let nonce = random_u128().max(1);
            let text = format!("{nonce:032x}\n");
            disk::write_atomically(&path, text.as_bytes())
                .map_err(|source| failed("write", source))?;
            Ok(Some(nonce))
        }
        Err(source) => Err(failed("read", source)),
    }
}

/// There is a log from now on.
///
/// # Errors
/// When it cannot be written.
pub(super) fn mark_begun(dir: &Path) -> Result<(), ControlError> {
    let path = marker(dir);
    disk::write_atomically(&path, format!("{BEGUN}\n").as_bytes())
        .map_err(|source| ControlError::Io { what: "write", path, source })
}

/// What a monitor without a log knows of the others.
#[derive(Debug)]
pub(super) struct Founding {
    node: u16,
    nonces: Vec<Option<u128>>,
}

/// What follows from what was heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing yet.
    Wait,
    /// The cluster begins, or has begun, with this directory.
    Begin(Vec<u128>),
    /// It has begun with another one.
    Lost(Vec<u128>),
}

impl Founding {
    /// The monitor at this place of so many. `nonce`: of its directory, if that never held a log.
    pub fn new(node: u16, count: u16, nonce: Option<u128>) -> Self {
        let mut nonces = vec![None; usize::from(count)];
        nonces[usize::from(node)] = nonce;
        Self { node, nonces }
    }

    /// The number of this directory.
    pub fn nonce(&self) -> Option<u128> {
        self.nonces[usize::from(self.node)]
    }

    /// Those not heard of yet.
    pub fn missing(&self) -> impl Iterator<Item = u16> + '_ {
        (0..).zip(&self.nonces).filter(|(_, nonce)| nonce.is_none()).map(|(node, _)| node)
    }

    /// Another monitor has said this of itself.
    pub fn hears(&mut self, hello: &MonitorHello) -> Verdict {
        if hello.birth.len() == self.nonces.len() {
            let own = hello.birth[usize::from(self.node)];
            let birth = hello.birth.clone();
            let is_own = self.nonce() == Some(own);
            return if is_own { Verdict::Begin(birth) } else { Verdict::Lost(birth) };
        }
        if hello.node == self.node || self.nonce().is_none() {
            return Verdict::Wait;
        }
        if let Some(slot) = self.nonces.get_mut(usize::from(hello.node)) {
            // none: it had a log, and does not know in which cluster
            *slot = hello.nonce;
        }
        self.nonces
            .iter()
            .copied()
            .collect::<Option<Vec<_>>>()
            .map_or(Verdict::Wait, Verdict::Begin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(node: u16, nonce: Option<u128>, birth: &[u128]) -> MonitorHello {
        MonitorHello { node, count: 3, bulk: false, nonce, birth: birth.to_vec() }
    }

    #[test]
    fn a_cluster_begins_when_all_are_there() {
        let mut first = Founding::new(0, 3, Some(10));
        assert_eq!(first.hears(&hello(1, Some(11), &[])), Verdict::Wait);
        // its directory was emptied meanwhile
        assert_eq!(first.hears(&hello(1, Some(21), &[])), Verdict::Wait);
        assert_eq!(first.missing().collect::<Vec<_>>(), [2]);
        let birth = vec![10, 21, 12];
        assert_eq!(first.hears(&hello(2, Some(12), &[])), Verdict::Begin(birth.clone()));
        // one that was away hears of it later
        let mut last = Founding::new(2, 3, Some(12));
        assert_eq!(last.hears(&hello(0, None, &birth)), Verdict::Begin(birth.clone()));
        // and one whose directory is not the one that was there
        let mut lost = Founding::new(2, 3, Some(99));
        assert_eq!(lost.hears(&hello(0, None, &birth)), Verdict::Lost(birth.clone()));
        let mut gone = Founding::new(1, 3, None);
        assert_eq!(gone.hears(&hello(0, Some(10), &[])), Verdict::Wait, "never begins anew");
        assert_eq!(gone.hears(&hello(2, Some(12), &[])), Verdict::Wait);
        assert_eq!(gone.hears(&hello(0, None, &birth)), Verdict::Lost(birth));
    }

    #[test]
    fn a_directory_keeps_its_number_until_it_has_a_log() {
        let dir = tempfile::tempdir().expect("a directory");
        let drawn = nonce(dir.path()).expect("it can be written");
        assert!(drawn.is_some());
        assert_eq!(nonce(dir.path()).expect("it can be read"), drawn);
        mark_begun(dir.path()).expect("written");
        assert_eq!(nonce(dir.path()).expect("it can be read"), None);
        std::fs::write(marker(dir.path()), "x").expect("written");
        assert!(matches!(nonce(dir.path()), Err(ControlError::Damaged { .. })));
    }
}
