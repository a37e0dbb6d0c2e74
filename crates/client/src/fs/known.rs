//! What this mount knows of names and attributes while it is the only one, or has leases on them,
//! so that nobody has to be asked.
//!
//! Contract: no I/O, no clock; the lock is held for state changes only. What is kept is true for
//! one *term* of the metadata service: until another mount arrives, or the service changes
//! something by itself; and, where there are several mounts, until the service asks for the lease
//! on it ([`Known::recalled`]). While there are several, answers teach only what they say that
//! there is a lease on. Every request goes through [`Known::begin`] and [`Question::end`], so that
//! * what a request may change is forgotten before it is sent, and nothing is learned of it while
//!   it is under way;
//! * an answer teaches only what no other request of this mount was changing since it was asked.
//!
//! What is known is therefore what the service would say now, except for sizes, times and changes
//! that only this mount knows ([`super::inode::InodeState::merge`]).

use super::Result;
use super::errno::ENOENT;
use crate::error::ClientError;
use crate::session::{Answered, Term};
use messenger::sync::{ContentionMutex, LockTable};
use protocol::Gfid;
use protocol::namespace::{
    Attr, DirEntry, FileKind, NAME_BYTES_MAX, NamespaceOp, RenameMode, Reply, SetAttr,
};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};

/// Names and attributes kept at most; beyond it all are forgotten. Some 10 MiB with names of usual
/// length.
const KNOWN_MAX: usize = 32_768;
/// Entries of a directory that is listed from here, at most: what one answer of the service brings,
/// so that sorting them stays short.
const LISTED_MAX: usize = 1024;
/// Names and files that may be told apart where requests under way are concerned: well above the
/// requests of a mount.
const SLOTS: usize = 1024;

/// A directory and a name in it.
type Place = (Gfid, Vec<u8>);
/// Places and files that a request may change.
type Slots = SmallVec<[usize; 6]>;

/// See the module.
pub(super) struct Known {
    inner: ContentionMutex<Inner>,
}

/// What is known of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Name {
    /// It stands for this file.
    Is(Gfid),
    /// There is no such name.
    Free,
    /// Nothing.
    Unknown,
}

/// What is known of a directory's names.
#[derive(Debug, Default)]
struct Names {
    known: HashMap<Vec<u8>, Name>,
    /// A name that is not in `known` is free: the directory was made by this mount, or listed from
    /// end to end.
    complete: bool,
    /// The directory that holds this one.
    parent: Option<Gfid>,
}

/// Requests that change something which falls into one slot.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    under_way: u32,
    /// When the last one began or ended.
    changed: u64,
}

#[derive(Debug)]
struct Inner {
    term: u64,
    attrs: HashMap<Gfid, Attr>,
    names: HashMap<Gfid, Names>,
    /// Entries of both, and directories.
    count: usize,
    /// Counts beginnings and ends of requests that change something.
    clock: u64,
    /// The last is for changes of a file that nobody can name.
    slots: Vec<Slot>,
    /// Names that requests under way change, and how many do.
    changing: HashMap<Place, u32>,
    /// Two requests under way change one name, so what they do to which file depends on their
    /// order: nothing is learned before all that change names have ended. Kernels lock a directory,
    /// so that only a request that was given up is met.
    is_muddled: bool,
    /// Nothing that was asked before this is learned.
    learn_from: u64,
}

/// What an answer will tell.
#[derive(Debug)]
enum Topic {
    /// What a name stands for.
    Lookup(Place),
    /// Attributes alone.
    File,
    /// A name was given.
    Made(Place, FileKind),
    /// A name was taken away.
    Removed(Place),
    /// A name was moved; the file is known if it was before.
    Moved { from: Place, to: Place, file: Name, mode: RenameMode },
    /// Names of a directory, perhaps from the first on.
    Entries { dir: Gfid, begins: bool },
    /// Where a directory lies.
    Parent(Gfid),
    /// Nothing of interest.
    Other,
}

/// A request under way. Dropped without an end, it leaves what it may have changed unknown.
pub(super) struct Question<'a> {
    known: &'a Known,
    topic: Topic,
    term: u64,
    asked: u64,
    changes: Slots,
}

impl Topic {
    fn changed_names(&self) -> impl Iterator<Item = &Place> {
        let (first, second) = match self {
            Self::Made(place, _) | Self::Removed(place) => (Some(place), None),
            Self::Moved { from, to, .. } => (Some(from), Some(to)),
            Self::Lookup(_) | Self::File | Self::Entries { .. } | Self::Parent(_) | Self::Other => {
                (None, None)
            }
        };
        first.into_iter().chain(second)
    }
}

impl Known {
    pub(super) fn new(locks: &LockTable) -> Self {
        let inner = Inner {
            term: 0,
            attrs: HashMap::new(),
            names: HashMap::new(),
            count: 0,
            clock: 0,
            slots: vec![Slot::default(); SLOTS + 1],
            changing: HashMap::new(),
            is_muddled: false,
            learn_from: 0,
        };
        Self { inner: ContentionMutex::new(locks, "fs known names", inner) }
    }

    /// The file of a name: its attributes as the service has them, or ENOENT. `None` if the service
    /// has to be asked.
    pub(super) fn lookup(&self, term: Term, parent: Gfid, name: &[u8]) -> Option<Result<Attr>> {
        let inner = self.inner.lock();
        if !inner.is_true_in(term) {
            return None;
        }
        match inner.name(parent, name) {
            Name::Is(gfid) => inner.attrs.get(&gfid).map(|attr| Ok(*attr)),
            Name::Free => Some(Err(ClientError::Posix(ENOENT))),
            Name::Unknown => None,
        }
    }

    /// A file's attributes as the service has them. `None` if it has to be asked.
    pub(super) fn attr(&self, term: Term, gfid: Gfid) -> Option<Attr> {
        let inner = self.inner.lock();
        inner.attrs.get(&gfid).filter(|_| inner.is_true_in(term)).copied()
    }

    /// All entries of a directory in name order, as the service has them. `None` if it has to be
    /// asked.
    pub(super) fn entries(&self, term: Term, directory: Gfid) -> Option<Vec<DirEntry>> {
        let inner = self.inner.lock();
        if !inner.is_true_in(term) {
            return None;
        }
        let names = inner
            .names
            .get(&directory)
            .filter(|names| names.complete && names.known.len() <= LISTED_MAX)?;
        let mut entries = Vec::with_capacity(names.known.len());
        for (name, is) in &names.known {
            match is {
                Name::Is(gfid) => {
                    let attr = *inner.attrs.get(gfid)?;
                    entries.push(DirEntry { name: name.clone(), attr, written_elsewhere: false });
                }
                Name::Free => {}
                Name::Unknown => return None,
            }
        }
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Some(entries)
    }

    /// The directory that holds this one. `None` if the service has to be asked.
    pub(super) fn parent(&self, term: Term, directory: Gfid) -> Option<Attr> {
        let inner = self.inner.lock();
        let parent = inner.names.get(&directory).filter(|_| inner.is_true_in(term))?.parent?;
        inner.attrs.get(&parent).copied()
    }

    /// A request is about to be sent.
    pub(super) fn begin(&self, term: Term, op: &NamespaceOp) -> Question<'_> {
        let mut inner = self.inner.lock();
        if inner.term != term.number {
            inner.forget_all();
            inner.term = term.number;
        }
        let (topic, changes) = inner.begin(op);
        Question { known: self, topic, term: term.number, asked: inner.clock, changes }
    }

    /// The lease on a file or directory and its names, or on all, is asked for, or gone: what is
    /// known of it is forgotten, and of what was asked before nothing is learned.
    pub(super) fn recalled(&self, gfid: Option<Gfid>) {
        let mut inner = self.inner.lock();
        inner.clock += 1;
        // Rule: NamesAsked - the answer to what was asked before may have been given before.
        inner.learn_from = inner.clock;
        match gfid {
            Some(gfid) => {
                inner.count -= usize::from(inner.attrs.remove(&gfid).is_some());
                inner.forget_names(gfid);
            }
            None => inner.forget_all(),
        }
    }
}

impl Question<'_> {
    /// It was answered, and this is the term now.
    pub(super) fn end(mut self, term: Term, answer: &Result<Answered>) {
        let mut inner = self.known.inner.lock();
        let changes = std::mem::take(&mut self.changes);
        inner.release(&changes, &self.topic);
        let is_covered = term.holds || answer.as_ref().is_ok_and(|answered| answered.covered);
        if term.number == self.term && inner.is_true_in(term) && is_covered {
            inner.learn(&self.topic, self.asked, answer);
        }
        inner.mark(&changes);
    }
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        if !self.changes.is_empty() {
            let mut inner = self.known.inner.lock();
            inner.release(&self.changes, &self.topic);
            inner.mark(&self.changes);
        }
    }
}

impl Inner {
    fn is_true_in(&self, term: Term) -> bool {
        (term.holds || term.leased) && term.number == self.term
    }

    fn acquire(&mut self, slots: &Slots, topic: &Topic) {
        for &slot in slots {
            self.slots[slot].under_way += 1;
        }
        self.is_muddled |= topic.changed_names().any(|place| self.changing.contains_key(place));
        for place in topic.changed_names() {
            *self.changing.entry(place.clone()).or_default() += 1;
        }
        if self.is_muddled {
            self.forget_all();
        }
    }

    fn release(&mut self, slots: &Slots, topic: &Topic) {
        for &slot in slots {
            assert!(self.slots[slot].under_way > 0, "a request ended that had not begun");
            self.slots[slot].under_way -= 1;
        }
        for place in topic.changed_names() {
            if let Entry::Occupied(mut count) = self.changing.entry(place.clone()) {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                }
            }
        }
        if self.is_muddled && self.changing.is_empty() {
            self.is_muddled = false;
            self.clock += 1;
            self.learn_from = self.clock;
        }
    }

    fn mark(&mut self, slots: &Slots) {
        self.clock += 1;
        for &slot in slots {
            self.slots[slot].changed = self.clock;
        }
    }

    /// Has no request that was under way since `asked` changed what falls into the slot?
    fn is_settled(&self, slot: usize, asked: u64) -> bool {
        self.slots[slot].under_way == 0 && self.slots[slot].changed <= asked
    }

    fn forget_all(&mut self) {
        self.attrs = HashMap::new();
        self.names = HashMap::new();
        self.count = 0;
    }

    fn name(&self, parent: Gfid, name: &[u8]) -> Name {
        match self.names.get(&parent) {
            None => Name::Unknown,
            // No entries: NFS servers ask for them.
            Some(_) if name == b"." || name == b".." => Name::Unknown,
            Some(names) => {
                // Of a name that no file can have the service says more than that it is free.
                let absent = if names.complete && name.len() <= NAME_BYTES_MAX {
                    Name::Free
                } else {
                    Name::Unknown
                };
                names.known.get(name).copied().unwrap_or(absent)
            }
        }
    }

    // ---- before a request

    /// What the request is about, and what it changes; that is unknown from now on.
    fn begin(&mut self, op: &NamespaceOp) -> (Topic, Slots) {
        let place = |parent: &Gfid, name: &[u8]| (*parent, name.to_vec());
        let mut changes = Slots::new();
        let topic = match op {
            NamespaceOp::Lookup { parent, name } => Topic::Lookup(place(parent, name)),
            NamespaceOp::GetAttr { .. }
            | NamespaceOp::Open { .. }
            | NamespaceOp::CreateUnnamed { .. } => Topic::File,
            NamespaceOp::Parent { gfid } => Topic::Parent(*gfid),
            NamespaceOp::SetAttr { gfid, .. } | NamespaceOp::SetFlags { gfid, .. } => {
                self.change_file(&mut changes, *gfid);
                Topic::File
            }
            NamespaceOp::ReturnLease { gfid, set, .. } => {
                if *set != SetAttr::default() {
                    self.change_file(&mut changes, *gfid);
                }
                Topic::Other
            }
            NamespaceOp::SetXattr { gfid, .. } | NamespaceOp::RemoveXattr { gfid, .. } => {
                self.change_file(&mut changes, *gfid);
                Topic::File
            }
            NamespaceOp::Create { parent, name, kind, .. } => {
                self.change_name(&mut changes, *parent, name);
                Topic::Made(place(parent, name), *kind)
            }
            NamespaceOp::Link { gfid, parent, name } => {
                self.change_name(&mut changes, *parent, name);
                self.change_file(&mut changes, *gfid);
                Topic::Made(place(parent, name), FileKind::Regular)
            }
            NamespaceOp::Unlink { parent, name, .. } | NamespaceOp::Rmdir { parent, name } => {
                self.change_name_and_file(&mut changes, *parent, name);
                Topic::Removed(place(parent, name))
            }
            NamespaceOp::Rename { parent, name, new_parent, new_name, mode } => {
                let file = self.change_name_and_file(&mut changes, *parent, name);
                let target = self.change_name_and_file(&mut changes, *new_parent, new_name);
                // Two names of one file: a rename leaves both. A target of which nothing is known
                // may be one.
                let file =
                    if target == file || target == Name::Unknown { Name::Unknown } else { file };
                Topic::Moved {
                    from: place(parent, name),
                    to: place(new_parent, new_name),
                    file,
                    mode: *mode,
                }
            }
            NamespaceOp::ReadDir { gfid, after, .. } => {
                Topic::Entries { dir: *gfid, begins: after.is_empty() }
            }
            NamespaceOp::Close { .. }
            | NamespaceOp::ReturnNames { .. }
            | NamespaceOp::Reclaim { .. }
            | NamespaceOp::Mount
            | NamespaceOp::Lock { .. }
            | NamespaceOp::ReadLink { .. }
            | NamespaceOp::GetXattr { .. }
            | NamespaceOp::ListXattr { .. }
            | NamespaceOp::Sync
            | NamespaceOp::StatFs
            | NamespaceOp::BlobRoot { .. } => Topic::Other,
        };
        self.acquire(&changes, &topic);
        if !changes.is_empty() {
            self.mark(&changes);
        }
        (topic, changes)
    }

    fn change_file(&mut self, changes: &mut Slots, gfid: Gfid) {
        changes.push(slot_of(gfid));
        self.count -= usize::from(self.attrs.remove(&gfid).is_some());
    }

    fn change_name(&mut self, changes: &mut Slots, parent: Gfid, name: &[u8]) {
        changes.push(slot_of((parent, name)));
        self.change_file(changes, parent);
        self.set_name(parent, name, Name::Unknown);
    }

    /// The name, and whatever it stands for; gives what it stood for.
    fn change_name_and_file(&mut self, changes: &mut Slots, parent: Gfid, name: &[u8]) -> Name {
        let before = self.name(parent, name);
        self.change_name(changes, parent, name);
        match before {
            Name::Is(gfid) => {
                self.change_file(changes, gfid);
                self.forget_names(gfid);
            }
            Name::Free => {}
            Name::Unknown => {
                changes.push(SLOTS);
                self.forget_all();
            }
        }
        before
    }

    fn forget_names(&mut self, directory: Gfid) {
        if let Some(names) = self.names.remove(&directory) {
            self.count -= names.known.len() + 1;
        }
    }

    // ---- after an answer

    fn learn(&mut self, topic: &Topic, asked: u64, answer: &Result<Answered>) {
        if self.is_muddled || asked < self.learn_from {
            return;
        }
        let answered = match (answer, topic) {
            (Ok(answered), _) => answered,
            (Err(ClientError::Posix(ENOENT)), Topic::Lookup(place)) => {
                return self.learn_name(place, Name::Free, asked);
            }
            (Err(_), _) => return,
        };
        for dir in &answered.dirs {
            self.learn_attr(dir, asked);
        }
        match (&answered.reply, topic) {
            (Reply::Attr(attr), Topic::Lookup(place)) => {
                self.learn_attr(attr, asked);
                self.learn_name(place, Name::Is(attr.gfid), asked);
            }
            (Reply::Attr(attr) | Reply::Opened { attr, .. }, Topic::Made(place, kind)) => {
                self.learn_attr(attr, asked);
                self.learn_name(place, Name::Is(attr.gfid), asked);
                if *kind == FileKind::Directory {
                    self.forget_names(attr.gfid);
                    let parent = self.is_settled(SLOTS, asked).then_some(place.0);
                    self.names
                        .insert(attr.gfid, Names { complete: true, parent, ..Names::default() });
                    self.count += 1;
                }
            }
            (Reply::Attr(attr) | Reply::Opened { attr, .. }, Topic::File) => {
                self.learn_attr(attr, asked)
            }
            (Reply::Done, Topic::Removed(place)) => self.learn_name(place, Name::Free, asked),
            (Reply::Done, Topic::Moved { from, to, file: file @ Name::Is(_), mode })
                if *mode != RenameMode::Exchange =>
            {
                if !mode.leaves_whiteout() {
                    self.learn_name(from, Name::Free, asked);
                }
                self.learn_name(to, *file, asked);
            }
            (Reply::Attr(attr), Topic::Parent(dir)) => {
                self.learn_attr(attr, asked);
                if self.is_settled(slot_of(*dir), asked) && self.is_settled(SLOTS, asked) {
                    self.names_of(*dir).parent = Some(attr.gfid);
                }
            }
            (Reply::Entries { entries, end }, Topic::Entries { dir, begins }) => {
                self.learn_entries(*dir, entries, *begins && *end, asked);
            }
            _ => {}
        }
        if self.count > KNOWN_MAX {
            self.forget_all();
        }
    }

    /// Some entries of a directory, or all.
    fn learn_entries(&mut self, dir: Gfid, entries: &[DirEntry], all: bool, asked: u64) {
        // Whatever changes a name in a directory changes the directory, so if that is settled all
        // its names are.
        let settled = self.is_settled(slot_of(dir), asked) && self.is_settled(SLOTS, asked);
        if all && settled && !entries.iter().any(|entry| entry.written_elsewhere) {
            let parent = self.names_of(dir).parent;
            self.forget_names(dir);
            let known = entries
                .iter()
                .map(|entry| (entry.name.clone(), Name::Is(entry.attr.gfid)))
                .collect();
            self.names.insert(dir, Names { known, complete: true, parent });
            self.count += entries.len() + 1;
        }
        for entry in entries.iter().filter(|entry| !entry.written_elsewhere) {
            self.learn_attr(&entry.attr, asked);
            self.learn_name(&(dir, entry.name.clone()), Name::Is(entry.attr.gfid), asked);
        }
    }

    fn learn_attr(&mut self, attr: &Attr, asked: u64) {
        let settled = self.is_settled(slot_of(attr.gfid), asked) && self.is_settled(SLOTS, asked);
        if settled && self.attrs.insert(attr.gfid, *attr).is_none() {
            self.count += 1;
        }
    }

    fn learn_name(&mut self, (parent, name): &Place, is: Name, asked: u64) {
        if self.is_settled(slot_of((*parent, name.as_slice())), asked) {
            self.set_name(*parent, name, is);
        }
    }

    fn set_name(&mut self, parent: Gfid, name: &[u8], is: Name) {
        let names = self.names_of(parent);
        if is == Name::Free && names.complete && name.len() <= NAME_BYTES_MAX {
            self.count -= usize::from(names.known.remove(name).is_some());
        } else if names.known.insert(name.to_vec(), is).is_none() {
            self.count += 1;
        }
    }

    /// What is known of a directory's names, from now on.
    fn names_of(&mut self, directory: Gfid) -> &mut Names {
        self.names.entry(directory).or_insert_with(|| {
            self.count += 1;
            Names::default()
        })
    }
}

/// Where changes of a file, or of a name in a directory, are counted.
fn slot_of(what: impl Hash) -> usize {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(what) as usize % SLOTS
}

#[cfg(test)]
mod tests;
