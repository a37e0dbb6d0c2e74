//! A naive tree: one map of nodes, every rule written out as POSIX says it, nothing shared with the
//! code under test.

use protocol::Gfid;
use protocol::namespace::{
    Attr, FileKind, Footprint, NamespaceOp, RenameMode, Reply, SetAttr, Timestamp,
};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug)]
pub struct Node {
    pub attr: Attr,
    parent: Option<Gfid>,
    children: BTreeMap<Vec<u8>, Gfid>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    target: Vec<u8>,
    /// It was made without a name, and may get one.
    linkable: bool,
}

/// The tree, and which files are held open.
#[derive(Clone, Debug)]
pub struct Oracle {
    pub nodes: BTreeMap<Gfid, Node>,
    pub open: BTreeSet<Gfid>,
    pub purged: BTreeSet<Gfid>,
    /// Removed directories, which may still be looked at.
    gone: BTreeMap<Gfid, Attr>,
}

impl Oracle {
    pub fn new(root: Attr) -> Self {
        let node = Node {
            attr: root,
            parent: None,
            children: BTreeMap::new(),
            xattrs: BTreeMap::new(),
            target: Vec::new(),
            linkable: false,
        };
        let nodes = BTreeMap::from([(root.gfid, node)]);
        Self { nodes, open: BTreeSet::new(), purged: BTreeSet::new(), gone: BTreeMap::new() }
    }

    /// What is remembered of removed directories is gone with the service.
    pub fn reopened(&mut self) {
        self.gone.clear();
    }

    pub fn close(&mut self, gfid: Gfid) {
        self.open.remove(&gfid);
        if self.nodes.get(&gfid).is_some_and(|n| n.attr.nlink == 0) {
            self.bury(gfid);
        }
    }

    fn bury(&mut self, gfid: Gfid) {
        let node = self.nodes.remove(&gfid).expect("exists");
        match node.attr.kind {
            FileKind::Regular => drop(self.purged.insert(gfid)),
            FileKind::Directory => {
                self.gone.insert(gfid, Attr { has_xattrs: false, ..node.attr });
            }
            _ => {}
        }
    }

    /// What the operation must answer; `got` supplies the gfid of a new file.
    pub fn apply(&mut self, op: &NamespaceOp, now: Timestamp, got: &Reply) -> Reply {
        self.step(op, now, got).unwrap_or_else(Reply::Errno)
    }

    fn node(&self, gfid: Gfid) -> Result<&Node, i32> {
        self.nodes.get(&gfid).ok_or(libc::ESTALE)
    }

    fn dir(&self, gfid: Gfid) -> Result<&Node, i32> {
        if self.gone.contains_key(&gfid) {
            return Err(libc::ENOENT);
        }
        let node = self.node(gfid)?;
        match node.attr {
            Attr { kind: FileKind::Directory, nlink: 0, .. } => Err(libc::ENOENT),
            Attr { kind: FileKind::Directory, .. } => Ok(node),
            _ => Err(libc::ENOTDIR),
        }
    }

    fn child(&self, parent: Gfid, name: &[u8]) -> Result<Gfid, i32> {
        self.dir(parent)?.children.get(name).copied().ok_or(libc::ENOENT)
    }

    fn name(name: &[u8]) -> Result<(), i32> {
        match name {
            n if n.len() > 255 => Err(libc::ENAMETOOLONG),
            b"" | b"." | b".." => Err(libc::EINVAL),
            n if n.iter().any(|b| *b == b'/' || *b == 0) => Err(libc::EINVAL),
            _ => Ok(()),
        }
    }

    fn is_dir(&self, gfid: Gfid) -> bool {
        self.nodes[&gfid].attr.kind == FileKind::Directory
    }

    /// Recomputes what a directory's attributes follow from, and stamps it.
    fn stamp_dir(&mut self, gfid: Gfid, now: Timestamp) {
        let subdirs =
            self.nodes[&gfid].children.values().filter(|c| self.is_dir(**c)).count() as u32;
        let node = self.nodes.get_mut(&gfid).expect("exists");
        node.attr.nlink = 2 + subdirs;
        node.attr.size = node.children.len() as u64;
        node.attr.mtime = now;
        node.attr.ctime = now;
    }

    fn lose_link(&mut self, gfid: Gfid, now: Timestamp) {
        let dir = self.is_dir(gfid);
        let attr = &mut self.nodes.get_mut(&gfid).expect("exists").attr;
        attr.nlink = if dir { 0 } else { attr.nlink - 1 };
        attr.ctime = now;
        if attr.nlink == 0 && !self.open.contains(&gfid) {
            self.bury(gfid);
        }
    }

    fn below(&self, mut gfid: Gfid, top: Gfid) -> bool {
        while gfid != top {
            match self.nodes[&gfid].parent {
                Some(parent) => gfid = parent,
                None => return false,
            }
        }
        true
    }

    fn stamp(&mut self, gfid: Gfid, now: Timestamp) {
        self.nodes.get_mut(&gfid).expect("exists").attr.ctime = now;
    }

    fn step(&mut self, op: &NamespaceOp, now: Timestamp, got: &Reply) -> Result<Reply, i32> {
        match op {
            NamespaceOp::Lookup { parent, name } => {
                Self::name(name)?;
                let child = self.child(*parent, name)?;
                Ok(Reply::Attr(self.nodes[&child].attr))
            }
            NamespaceOp::GetAttr { gfid } => match self.gone.get(gfid) {
                Some(gone) => Ok(Reply::Attr(*gone)),
                None => Ok(Reply::Attr(self.node(*gfid)?.attr)),
            },
            NamespaceOp::SetAttr { gfid, set, .. } => self.set_attr(*gfid, set, now),
            NamespaceOp::Create { parent, name, .. } => {
                Self::name(name)?;
                if self.dir(*parent)?.children.contains_key(name) {
                    return Err(libc::EEXIST);
                }
                self.create(op, now, got)
            }
            NamespaceOp::CreateUnnamed { parent, mode, pool, linkable, .. } => {
                self.dir(*parent)?;
                let dir = self.nodes[parent].attr;
                let Reply::Attr(Attr { gfid, .. }) = got else {
                    panic!("{op:?} must succeed, not {got:?}")
                };
                let attr = Attr {
                    gfid: *gfid,
                    kind: FileKind::Regular,
                    mode: *mode,
                    uid: 7,
                    gid: if dir.mode & 0o2000 != 0 { dir.gid } else { 8 },
                    nlink: 0,
                    rdev: 0,
                    size: 0,
                    atime: now,
                    mtime: now,
                    ctime: now,
                    pool: *pool,
                    btime: Some(now),
                    flags: Default::default(),
                    has_xattrs: false,
                    footprint: Footprint::Dense,
                };
                let (children, xattrs, target) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
                let node =
                    Node { attr, parent: None, children, xattrs, target, linkable: *linkable };
                self.nodes.insert(*gfid, node);
                Ok(Reply::Attr(attr))
            }
            NamespaceOp::Link { gfid, parent, name } => {
                Self::name(name)?;
                self.dir(*parent)?;
                if self.node(*gfid)?.attr.kind == FileKind::Directory {
                    return Err(libc::EPERM);
                }
                if self.dir(*parent)?.children.contains_key(name) {
                    return Err(libc::EEXIST);
                }
                if self.node(*gfid)?.attr.nlink == 0 && !self.node(*gfid)?.linkable {
                    return Err(libc::ENOENT);
                }
                self.nodes.get_mut(gfid).expect("exists").linkable = false;
                let attr = &mut self.nodes.get_mut(gfid).expect("exists").attr;
                attr.nlink += 1;
                attr.ctime = now;
                let attr = *attr;
                self.nodes.get_mut(parent).expect("exists").children.insert(name.clone(), *gfid);
                self.stamp_dir(*parent, now);
                Ok(Reply::Attr(attr))
            }
            NamespaceOp::Unlink { parent, name, .. } | NamespaceOp::Rmdir { parent, name } => {
                Self::name(name)?;
                let child = self.child(*parent, name)?;
                match (op, self.is_dir(child)) {
                    (NamespaceOp::Unlink { .. }, true) => return Err(libc::EISDIR),
                    (NamespaceOp::Rmdir { .. }, false) => return Err(libc::ENOTDIR),
                    (_, true) if !self.nodes[&child].children.is_empty() => {
                        return Err(libc::ENOTEMPTY);
                    }
                    _ => {}
                }
                self.nodes.get_mut(parent).expect("exists").children.remove(name);
                self.lose_link(child, now);
                self.stamp_dir(*parent, now);
                Ok(Reply::Done)
            }
            NamespaceOp::Rename { parent, name, new_parent, new_name, mode } => {
                Self::name(name)?;
                Self::name(new_name)?;
                self.dir(*parent)?;
                self.dir(*new_parent)?;
                self.rename((*parent, name), (*new_parent, new_name), *mode, now)
            }
            NamespaceOp::ReadLink { gfid } => match self.node(*gfid)?.attr.kind {
                FileKind::Symlink => Ok(Reply::Bytes(self.nodes[gfid].target.clone())),
                _ => Err(libc::EINVAL),
            },
            NamespaceOp::Parent { gfid } => match self.node(*gfid)?.attr.kind {
                FileKind::Directory => {
                    let parent = self.nodes[gfid].parent.unwrap_or(*gfid);
                    Ok(Reply::Attr(self.node(parent)?.attr))
                }
                _ => Err(libc::ENOTDIR),
            },
            NamespaceOp::StatFs => Ok(Reply::Count(
                self.nodes.values().filter(|n| n.attr.nlink > 0).count() as u64 - 1,
            )),
            other => self.xattr(other, now),
        }
    }

    fn set_attr(&mut self, gfid: Gfid, set: &SetAttr, now: Timestamp) -> Result<Reply, i32> {
        let attr = &mut self.nodes.get_mut(&gfid).ok_or(libc::ESTALE)?.attr;
        if let Some(size) = set.size {
            match attr.kind {
                FileKind::Regular => {}
                FileKind::Directory => return Err(libc::EISDIR),
                _ => return Err(libc::EINVAL),
            }
            attr.size = size;
            attr.mtime = now;
        }
        attr.mode = set.mode.unwrap_or(attr.mode);
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        attr.mtime = set.mtime.unwrap_or(attr.mtime);
        attr.ctime = now;
        Ok(Reply::Attr(*attr))
    }

    fn create(&mut self, op: &NamespaceOp, now: Timestamp, got: &Reply) -> Result<Reply, i32> {
        let NamespaceOp::Create { parent, name, kind, mode, target, pool, .. } = op else {
            unreachable!()
        };
        let dir = self.nodes[parent].attr;
        let is_dir = *kind == FileKind::Directory;
        let inherits = dir.mode & 0o2000 != 0;
        let Reply::Attr(Attr { gfid, .. }) = got else {
            panic!("{op:?} must succeed, not {got:?}")
        };
        assert!(
            !self.nodes.contains_key(gfid) && !self.purged.contains(gfid),
            "{gfid} was used before"
        );
        let symlink = *kind == FileKind::Symlink;
        let attr = Attr {
            gfid: *gfid,
            kind: *kind,
            mode: if symlink { 0o777 } else { mode | if is_dir && inherits { 0o2000 } else { 0 } },
            uid: 7,
            gid: if inherits { dir.gid } else { 8 },
            nlink: if is_dir { 2 } else { 1 },
            rdev: 0,
            size: target.len() as u64,
            atime: now,
            mtime: now,
            ctime: now,
            pool: if *kind == FileKind::Regular { *pool } else { Default::default() },
            btime: Some(now),
            flags: Default::default(),
            has_xattrs: false,
            footprint: match *kind {
                FileKind::Regular => Footprint::Dense,
                _ => Footprint::Unknown,
            },
        };
        let node = Node {
            attr,
            parent: is_dir.then_some(*parent),
            children: BTreeMap::new(),
            xattrs: BTreeMap::new(),
            target: target.clone(),
            linkable: false,
        };
        self.nodes.insert(*gfid, node);
        self.nodes.get_mut(parent).expect("exists").children.insert(name.clone(), *gfid);
        self.stamp_dir(*parent, now);
        Ok(Reply::Attr(attr))
    }

    fn rename(
        &mut self,
        (parent, name): (Gfid, &[u8]),
        (new_parent, new_name): (Gfid, &[u8]),
        mode: RenameMode,
        now: Timestamp,
    ) -> Result<Reply, i32> {
        let source = self.child(parent, name)?;
        let target = self.nodes[&new_parent].children.get(new_name).copied();
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(libc::EEXIST),
            (RenameMode::Exchange, None) => return Err(libc::ENOENT),
            (_, Some(target)) if target == source => return Ok(Reply::Done),
            _ => {}
        }
        if self.is_dir(source) && self.below(new_parent, source) {
            return Err(libc::EINVAL);
        }
        if mode == RenameMode::Exchange {
            let target = target.expect("checked");
            if self.is_dir(target) && self.below(parent, target) {
                return Err(libc::EINVAL);
            }
            self.attach(target, parent, name, now);
        } else {
            if let Some(target) = target {
                match (self.is_dir(source), self.is_dir(target)) {
                    (true, false) => return Err(libc::ENOTDIR),
                    (false, true) => return Err(libc::EISDIR),
                    (true, true) if !self.nodes[&target].children.is_empty() => {
                        return Err(libc::ENOTEMPTY);
                    }
                    _ => {}
                }
                self.lose_link(target, now);
            }
            self.nodes.get_mut(&parent).expect("exists").children.remove(name);
        }
        self.attach(source, new_parent, new_name, now);
        self.stamp_dir(parent, now);
        self.stamp_dir(new_parent, now);
        Ok(Reply::Done)
    }

    fn attach(&mut self, gfid: Gfid, parent: Gfid, name: &[u8], now: Timestamp) {
        self.nodes.get_mut(&parent).expect("exists").children.insert(name.to_vec(), gfid);
        self.stamp(gfid, now);
        if self.is_dir(gfid) {
            self.nodes.get_mut(&gfid).expect("exists").parent = Some(parent);
        }
    }

    fn xattr(&mut self, op: &NamespaceOp, now: Timestamp) -> Result<Reply, i32> {
        let (NamespaceOp::GetXattr { gfid, .. }
        | NamespaceOp::SetXattr { gfid, .. }
        | NamespaceOp::ListXattr { gfid }
        | NamespaceOp::RemoveXattr { gfid, .. }) = op
        else {
            panic!("not for the oracle: {op:?}")
        };
        if self.gone.contains_key(gfid) {
            match op {
                NamespaceOp::GetXattr { .. } => return Err(libc::ENODATA),
                NamespaceOp::ListXattr { .. } => return Ok(Reply::Bytes(Vec::new())),
                _ => {}
            }
        }
        let node = self.nodes.get_mut(gfid).ok_or(libc::ESTALE)?;
        match op {
            NamespaceOp::GetXattr { name, .. } => {
                node.xattrs.get(name).cloned().map(Reply::Bytes).ok_or(libc::ENODATA)
            }
            NamespaceOp::SetXattr { name, value, create, .. } => {
                match (create, node.xattrs.contains_key(name)) {
                    (Some(true), true) => return Err(libc::EEXIST),
                    (Some(false), false) => return Err(libc::ENODATA),
                    _ => {}
                }
                node.xattrs.insert(name.clone(), value.clone());
                (node.attr.ctime, node.attr.has_xattrs) = (now, true);
                Ok(Reply::Attr(node.attr))
            }
            NamespaceOp::RemoveXattr { name, .. } => {
                node.xattrs.remove(name).ok_or(libc::ENODATA)?;
                (node.attr.ctime, node.attr.has_xattrs) = (now, !node.xattrs.is_empty());
                Ok(Reply::Attr(node.attr))
            }
            _ => Ok(Reply::Bytes(
                node.xattrs.keys().flat_map(|n| [n.as_slice(), &[0]].concat()).collect(),
            )),
        }
    }

    /// What a full listing of a directory must show.
    pub fn listing(&self, gfid: Gfid) -> Vec<(Vec<u8>, Attr)> {
        self.nodes[&gfid]
            .children
            .iter()
            .map(|(name, child)| (name.clone(), self.nodes[child].attr))
            .collect()
    }
}
