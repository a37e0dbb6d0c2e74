//! The invariants of the records, checked over the whole store: for tests and for an operator's
//! check.

use super::inode::{Entry, Inode, Node, Purge};
use super::overlay::{corrupt, decode};
use super::{Namespace, keys};
use crate::acl::{Acl, AclKind};
use crate::store::{Store, StoreError};
use protocol::Gfid;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

/// A name of a file: parent, name, and the inode if it lies there.
type Name = (Gfid, Vec<u8>, Option<Inode>);

/// What a scan of all records gathers.
#[derive(Default)]
struct Survey {
    nodes: BTreeMap<Gfid, Node>,
    names: BTreeMap<Gfid, Vec<Name>>,
    entries: BTreeMap<Gfid, u64>,
    xattrs: BTreeMap<Gfid, (u32, u32)>,
    acls: BTreeMap<Gfid, Vec<(AclKind, Acl)>>,
    orphans: BTreeSet<Gfid>,
    purges: BTreeSet<Gfid>,
    unsized_files: BTreeSet<Gfid>,
    roots: BTreeSet<Gfid>,
    /// Subdirectories of each directory, by the parent that they name.
    subdirs: BTreeMap<Gfid, u32>,
    problems: Vec<String>,
}

impl<S: Store> Namespace<S> {
    /// Checks that the records agree with one another: links, parents, counts, orphans, and that
    /// nothing is left over. Reads everything. Returns what is wrong, in words; empty is good.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn verify(&self) -> Result<Vec<String>, StoreError> {
        let mut survey = Survey { roots: BTreeSet::from([Gfid::ROOT]), ..Survey::default() };
        for kind in [
            keys::NODE,
            keys::ENTRY,
            keys::XATTR,
            keys::ORPHAN,
            keys::PURGE,
            keys::UNSIZED,
            keys::BLOB_ROOT,
        ] {
            self.overlay.scan(&[kind], &[kind], &mut |key, value| {
                if let Err(error) = survey.gather(key, value) {
                    survey.problems.push(error.to_string());
                }
                ControlFlow::Continue(())
            })?;
        }
        survey.judge();
        let files = survey.nodes.len() - survey.roots.len() - survey.orphans.len();
        if files as u64 != self.counters.files {
            survey.problems.push(format!("{files} files, counted {}", self.counters.files));
        }
        if survey.purges.len() as u64 != self.counters.purges
            || survey.unsized_files.len() as u64 != self.counters.unsized_files
        {
            survey.problems.push("queue counters are wrong".into());
        }
        Ok(survey.problems)
    }
}

impl Survey {
    fn gather(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        let gfid = keys::gfid_of(key).unwrap_or_default();
        if matches!(key[0], keys::ENTRY | keys::XATTR) && key.len() < keys::NAME_AT {
            return Err(corrupt(key, "its key has no name"));
        }
        match key[0] {
            keys::NODE => drop(self.nodes.insert(gfid, decode(key, value)?)),
            keys::ENTRY => {
                let (child, inode) = match decode(key, value)? {
                    Entry::Inode(child, inode) => (child, Some(inode)),
                    Entry::Apart(child) => (child, None),
                };
                *self.entries.entry(gfid).or_default() += 1;
                self.names.entry(child).or_default().push((
                    gfid,
                    key[keys::NAME_AT..].to_vec(),
                    inode,
                ));
            }
            keys::XATTR => {
                let value: Vec<u8> = decode(key, value)?;
                let (count, bytes) = self.xattrs.entry(gfid).or_default();
                *count += 1;
                *bytes += (key.len() - keys::NAME_AT) as u32 + 1;
                if let Some(kind) = AclKind::of_name(&key[keys::NAME_AT..]) {
                    let acl =
                        Acl::decode(&value).map_err(|error| corrupt(key, error.to_string()))?;
                    self.acls.entry(gfid).or_default().push((kind, acl));
                }
            }
            keys::ORPHAN => drop(self.orphans.insert(gfid)),
            keys::UNSIZED => drop(self.unsized_files.insert(gfid)),
            keys::PURGE => {
                decode::<Purge>(key, value)?;
                self.purges.insert(gfid);
            }
            _ => drop(self.roots.insert(decode(key, value)?)),
        }
        Ok(())
    }

    fn judge(&mut self) {
        let nodes = std::mem::take(&mut self.nodes);
        for (gfid, node) in &nodes {
            if let Node::Here(child) = node
                && child.is_dir()
                && child.nlink > 0
                && child.parent != *gfid
            {
                *self.subdirs.entry(child.parent).or_default() += 1;
            }
        }
        for (&gfid, node) in &nodes {
            let names = self.names.remove(&gfid).unwrap_or_default();
            let inode = match node {
                Node::Here(inode) if names.iter().all(|(_, _, inode)| inode.is_none()) => inode,
                Node::At(parent, name) => match names.as_slice() {
                    [(p, n, Some(inode))] if p == parent && n == name => inode,
                    _ => {
                        self.problems.push(format!("{gfid}: its entry does not hold it"));
                        continue;
                    }
                },
                Node::Here(_) => {
                    self.problems.push(format!("{gfid}: two inodes"));
                    continue;
                }
            };
            self.judge_links(gfid, inode, &names);
            let entries = self.entries.remove(&gfid).unwrap_or_default();
            if (inode.is_dir() && inode.size != entries) || (!inode.is_dir() && entries > 0) {
                self.problems.push(format!("{gfid}: {entries} entries, size {}", inode.size));
            }
            let xattrs = self.xattrs.remove(&gfid).unwrap_or_default();
            if xattrs != (inode.xattrs, inode.xattr_list_bytes) {
                self.problems.push(format!("{gfid}: counts of extended attributes are wrong"));
            }
            self.judge_acls(gfid, inode);
            if self.purges.contains(&gfid) {
                self.problems.push(format!("{gfid}: to be purged, but alive"));
            }
            if self.unsized_files.contains(&gfid) && !inode.doubt.of_size() {
                self.problems.push(format!("{gfid}: size to be recovered, but certain"));
            }
        }
        let lost = self.names.keys().chain(self.entries.keys()).chain(self.xattrs.keys());
        let lost = lost.chain(
            self.orphans.iter().chain(&self.unsized_files).filter(|gfid| !nodes.contains_key(gfid)),
        );
        let lost: Vec<_> =
            lost.map(|gfid| format!("{gfid}: records of a file that does not exist")).collect();
        self.problems.extend(lost);
        self.nodes = nodes;
    }

    fn judge_acls(&mut self, gfid: Gfid, inode: &Inode) {
        for (kind, acl) in self.acls.remove(&gfid).unwrap_or_default() {
            let ok = match kind {
                AclKind::Access => acl.access_bits() == inode.mode & 0o777 && !acl.is_mode_alone(),
                AclKind::Default => inode.is_dir(),
            };
            if !ok {
                self.problems.push(format!("{gfid}: mode {:o} with {kind:?} {acl:?}", inode.mode));
            }
        }
    }

    fn judge_links(&mut self, gfid: Gfid, inode: &Inode, names: &[Name]) {
        let orphan = self.orphans.contains(&gfid);
        if orphan != (inode.nlink == 0) {
            self.problems.push(format!("{gfid}: nlink {} and orphan {orphan}", inode.nlink));
        }
        if !inode.is_dir() {
            if names.len() != inode.nlink as usize {
                self.problems.push(format!("{gfid}: {} names, nlink {}", names.len(), inode.nlink));
            }
            return;
        }
        let subdirs = self.subdirs.get(&gfid).copied().unwrap_or_default();
        if !orphan && inode.nlink != 2 + subdirs {
            self.problems.push(format!("{gfid}: {subdirs} subdirectories, nlink {}", inode.nlink));
        }
        let ok = match names {
            [] => orphan || (self.roots.contains(&gfid) && inode.parent == gfid),
            [(parent, _, _)] => !orphan && inode.parent == *parent,
            _ => false,
        };
        if !ok {
            self.problems.push(format!(
                "{gfid}: names {names:?} of a directory with parent {}",
                inode.parent
            ));
        }
    }
}
