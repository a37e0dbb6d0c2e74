//! Quotas of directories: what counts for which, and how what was there before is counted.
//!
//! Contract: a directory with a quota is the root of a *realm*. Each inode carries the number of
//! the realm that it counts for, 0 for none, and so it does for those around it: the sums of a
//! realm are those of all inodes that carry its number or that of one inside it, after every
//! operation and every restart ([`Namespace::verify`] counts them again). A regular file counts
//! with its length, whatever of it is stored; everything else with none. All count as one file,
//! also while they have no name. New inodes count for the realm of their directory; a name does not
//! move between realms (EXDEV). What counts already never is refused: only what is new.
//!
//! A realm that ends stays as another name of the one around it, until no inode carries its number.
//!
//! What was below a directory before it had a quota is counted bit by bit
//! ([`Namespace::count_quotas`]): a queue in the store has the directories to be looked through,
//! and how far that has come. Meanwhile an inode may still carry a number from around the realm;
//! one that a rename or a link concerns is counted first. The limits hold for what is counted so
//! far.

use super::inode::{Entry, Found, Inode, Node, Place};
use super::overlay::{corrupt, decode};
use super::{Context, Namespace, OpError, OpResult, errno, keys, permitted};
use crate::store::{Store, StoreError};
use protocol::Gfid;
use protocol::namespace::{FileKind, QUOTAS_LISTED_MAX, Quota, QuotaChange, Reply};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

/// Realms that a store may have, with those that ended and whose number inodes carry: some 10 MB.
const REALMS_MAX: usize = 1 << 16;
/// Realms around each other, at most: each is charged with what is in it.
const NESTING_MAX: usize = 16;

/// A realm. Its number is its key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Realm {
    pub root: Gfid,
    /// The realm around it, which has not ended; 0: none.
    pub outer: u32,
    /// It has ended.
    pub ended: bool,
    /// Directories of it are in the queue.
    pub counting: bool,
    /// Limit in bytes; 0: none.
    pub max_bytes: u64,
    /// Limit of files; 0: none.
    pub max_files: u64,
    pub bytes: u128,
    pub files: u64,
    /// Inodes that carry its number.
    pub carried_by: u64,
    /// Bytes promised to writers.
    #[serde(skip)]
    pub promised: u128,
}

/// What counts for a realm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub bytes: u128,
    pub files: u64,
    promised: u128,
}

impl Usage {
    /// Of one inode.
    pub fn of(inode: &Inode) -> Self {
        let bytes = if inode.kind == FileKind::Regular { inode.size } else { 0 };
        Self { bytes: bytes.into(), files: 1, promised: 0 }
    }
}

/// All realms, and what of them is to be stored.
#[derive(Debug, Default)]
pub(super) struct Quotas {
    realms: BTreeMap<u32, Realm>,
    /// The greatest number that was dealt.
    last: u32,
    counting: BTreeSet<u32>,
    changed: BTreeSet<u32>,
    /// What was there before each change since `begin`.
    undo: Vec<(u32, Option<Realm>)>,
    /// Regular files that began to count for a realm: who writes them has to know.
    adopted: Vec<Gfid>,
}

impl Quotas {
    pub fn begin(&mut self) {
        self.undo.clear();
    }

    pub fn rollback(&mut self) {
        for (number, before) in std::mem::take(&mut self.undo).into_iter().rev() {
            self.note_counting(number, before.as_ref().is_some_and(|realm| realm.counting));
            match before {
                Some(realm) => self.realms.insert(number, realm),
                None => self.realms.remove(&number),
            };
        }
    }

    fn note_counting(&mut self, number: u32, counting: bool) {
        if counting {
            self.counting.insert(number);
        } else {
            self.counting.remove(&number);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.realms.is_empty()
    }

    pub fn is_counting(&self) -> bool {
        !self.counting.is_empty()
    }

    pub fn realms(&self) -> &BTreeMap<u32, Realm> {
        &self.realms
    }

    /// The realm of this number that has not ended.
    fn get(&self, number: u32) -> Option<&Realm> {
        self.realms.get(&number).filter(|realm| !realm.ended)
    }

    /// The realm that this number stands for now; 0: none.
    pub fn live(&self, number: u32) -> u32 {
        match self.realms.get(&number) {
            Some(realm) if realm.ended => realm.outer,
            Some(_) => number,
            None => 0,
        }
    }

    /// The realm and those around it, from the inside.
    pub fn chain(&self, number: u32) -> impl Iterator<Item = (u32, &Realm)> {
        let at = |number| Some((number, self.realms.get(&number)?));
        std::iter::successors(at(self.live(number)), move |(_, realm)| at(realm.outer))
    }

    /// Is `outer` around the realm, or nothing at all?
    fn is_around(&self, outer: u32, number: u32) -> bool {
        outer == 0 || self.chain(number).skip(1).any(|(around, _)| around == outer)
    }

    fn change(&mut self, number: u32, change: impl FnOnce(&mut Realm)) {
        let Some(realm) = self.realms.get_mut(&number) else { return };
        self.undo.push((number, Some(realm.clone())));
        change(realm);
        let counting = realm.counting;
        self.changed.insert(number);
        self.note_counting(number, counting);
    }

    fn change_chain(&mut self, number: u32, change: impl Fn(&mut Realm)) {
        let mut next = self.live(number);
        while let Some(outer) = self.realms.get(&next).map(|realm| realm.outer) {
            self.change(next, &change);
            next = outer;
        }
    }

    fn charge(&mut self, number: u32, usage: Usage) {
        self.change_chain(number, |realm| {
            realm.bytes = realm.bytes.saturating_add(usage.bytes);
            realm.files = realm.files.saturating_add(usage.files);
            realm.promised = realm.promised.saturating_add(usage.promised);
        });
    }

    fn release(&mut self, number: u32, usage: Usage) {
        self.change_chain(number, |realm| {
            realm.bytes = realm.bytes.saturating_sub(usage.bytes);
            realm.files = realm.files.saturating_sub(usage.files);
            realm.promised = realm.promised.saturating_sub(usage.promised);
        });
    }

    /// An inode counts from now on for this realm, whose number it carries.
    fn enter(&mut self, inode: &mut Inode, number: u32) {
        inode.realm = number;
        self.charge(number, Usage::of(inode));
        self.change(number, |realm| realm.carried_by += 1);
    }

    /// It counts no more.
    fn leave(&mut self, inode: &Inode) {
        if inode.realm != 0 {
            self.release(inode.realm, Usage::of(inode));
            self.change(inode.realm, |realm| {
                realm.carried_by = realm.carried_by.saturating_sub(1);
            });
        }
    }

    /// A regular file has another length.
    pub fn resized(&mut self, number: u32, from: u64, to: u64) {
        let usage = |bytes: u64| Usage { bytes: bytes.into(), ..Usage::default() };
        match to.checked_sub(from) {
            _ if number == 0 || to == from => {}
            Some(more) => self.charge(number, usage(more)),
            None => self.release(number, usage(from - to)),
        }
    }

    /// May one file more count for the realm?
    fn takes_file(&self, number: u32) -> bool {
        self.chain(number).all(|(_, realm)| realm.max_files == 0 || realm.files < realm.max_files)
    }

    /// Bytes that may still count for the realm, beside those promised; `None`: any number.
    fn room(&self, number: u32) -> Option<u128> {
        let limited = self.chain(number).filter(|(_, realm)| realm.max_bytes > 0);
        let room = |realm: &Realm| {
            let taken = realm.bytes.saturating_add(realm.promised);
            u128::from(realm.max_bytes).saturating_sub(taken)
        };
        limited.map(|(_, realm)| room(realm)).min()
    }

    /// The realm ends: what counted for it counts for the one around it alone.
    fn end(&mut self, number: u32) {
        let Some(outer) = self.get(number).map(|realm| realm.outer) else { return };
        self.change(number, |realm| realm.ended = true);
        let inner: Vec<u32> = self
            .realms
            .iter()
            .filter(|(_, realm)| realm.outer == number)
            .map(|(inner, _)| *inner)
            .collect();
        for inner in inner {
            self.change(inner, |realm| realm.outer = outer);
        }
    }

    fn shown(&self, number: u32, realm: &Realm) -> Quota {
        let &Realm { root, max_bytes, max_files, bytes, files, promised, .. } = realm;
        let counting = realm.counting;
        Quota { number, root, max_bytes, max_files, bytes, files, promised, counting }
    }
}

impl<S: Store> Namespace<S> {
    /// Reads the realms, and forgets those that ended and whose number no inode carries.
    pub(super) fn load_quotas(&mut self) -> Result<(), StoreError> {
        let mut quotas =
            Quotas { last: self.overlay.get(keys::REALMS)?.unwrap_or(0), ..Quotas::default() };
        let mut read = Ok(());
        let mut unused = Vec::new();
        self.overlay.scan(&[keys::REALM], &[keys::REALM], &mut |key, value| {
            match (keys::realm_of(key), decode::<Realm>(key, value)) {
                (Some(_), Ok(realm)) if realm.ended && realm.carried_by == 0 && !realm.counting => {
                    unused.push(key.to_vec());
                }
                (Some(number), Ok(realm)) => {
                    quotas.note_counting(number, realm.counting);
                    quotas.realms.insert(number, realm);
                }
                (None, _) => read = Err(corrupt(key, "its key has no number")),
                (_, Err(error)) => read = Err(error),
            }
            if read.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        read?;
        for (&number, realm) in &quotas.realms {
            let is_known = realm.outer == 0 || quotas.get(realm.outer).is_some();
            let most = quotas.realms.len();
            let depth = quotas.chain(number).take(most + 1).count();
            if number == 0 || number > quotas.last || !is_known || depth > most {
                return Err(corrupt(&keys::realm(number), "it is around itself, or in nothing"));
            }
        }
        unused.into_iter().for_each(|key| self.overlay.delete(key));
        self.quotas = quotas;
        Ok(())
    }

    /// Puts what changed of the realms beside the other changes, for a commit.
    pub(super) fn store_quotas(&mut self) {
        for number in std::mem::take(&mut self.quotas.changed) {
            if let Some(realm) = self.quotas.realms.get(&number) {
                self.overlay.put(keys::realm(number), realm);
            }
        }
    }

    /// Has no directory a quota?
    pub fn has_no_quotas(&self) -> bool {
        self.quotas.is_empty()
    }

    /// Regular files that began to count for a quota since the last call.
    pub fn take_adopted(&mut self) -> Vec<Gfid> {
        std::mem::take(&mut self.quotas.adopted)
    }

    /// Bytes by which files may still grow that count for a realm; `None`: any number.
    pub fn room(&self, realm: u32) -> Option<u128> {
        self.quotas.room(realm)
    }

    /// Is there a realm for which both count?
    pub fn share_a_quota(&self, one: u32, other: u32) -> bool {
        self.quotas.chain(one).any(|(a, _)| self.quotas.chain(other).any(|(b, _)| a == b))
    }

    /// So many bytes are promised to a writer in a realm, or not any more. In memory only.
    pub fn promise(&mut self, realm: u32, bytes: u64, made: bool) {
        let mut next = self.quotas.live(realm);
        while let Some(realm) = self.quotas.realms.get_mut(&next) {
            let (promised, bytes) = (realm.promised, u128::from(bytes));
            realm.promised =
                if made { promised.saturating_add(bytes) } else { promised.saturating_sub(bytes) };
            next = realm.outer;
        }
    }

    /// The quota of a realm's number, 0 if there is none.
    pub fn quota_number(&self, realm: u32) -> u32 {
        self.quotas.live(realm)
    }

    /// A new inode comes into a directory, and counts for its realm.
    pub(super) fn admit(&mut self, dir: &Found, inode: &mut Inode) -> OpResult<()> {
        let realm = self.quotas.live(dir.inode.realm);
        if realm == 0 {
            return Ok(());
        }
        if !self.quotas.takes_file(realm) {
            return errno(libc::EDQUOT);
        }
        self.quotas.enter(inode, realm);
        Ok(())
    }

    /// An inode goes for good.
    pub(super) fn discharge(&mut self, gfid: Gfid, inode: &Inode) {
        if self.quotas.get(inode.realm).is_some_and(|realm| realm.root == gfid) {
            self.quotas.end(inode.realm);
        }
        self.quotas.leave(inode);
    }

    /// EXDEV, if a file of the first realm may have no name in a directory of the second.
    pub(super) fn same_realm(&self, one: u32, other: u32) -> OpResult<()> {
        if one == other || self.quotas.live(one) == self.quotas.live(other) {
            return Ok(());
        }
        errno(libc::EXDEV)
    }

    pub(super) fn set_quota(
        &mut self,
        ctx: &Context<'_>,
        gfid: Gfid,
        change: &QuotaChange,
    ) -> OpResult<Reply> {
        permitted(ctx.caller.uid == 0)?;
        let mut dir = self.directory(gfid)?;
        let carried = dir.inode.realm;
        if let Some(own) = self.quotas.get(carried).filter(|realm| realm.root == gfid) {
            let max_bytes = change.max_bytes.unwrap_or(own.max_bytes);
            let max_files = change.max_files.unwrap_or(own.max_files);
            if (max_bytes, max_files) == (0, 0) {
                self.quotas.end(carried);
            } else {
                self.quotas.change(carried, |realm| {
                    (realm.max_bytes, realm.max_files) = (max_bytes, max_files);
                });
            }
            return Ok(Reply::Done);
        }
        let (max_bytes, max_files) = (change.max_bytes.unwrap_or(0), change.max_files.unwrap_or(0));
        if (max_bytes, max_files) == (0, 0) {
            return errno(libc::ENODATA);
        }
        let outer = self.quotas.live(carried);
        let number = self.new_realm(outer)?;
        let counting = dir.inode.size > 0;
        let realm = Realm {
            root: gfid,
            outer,
            ended: false,
            counting,
            max_bytes,
            max_files,
            bytes: 0,
            files: 0,
            carried_by: 0,
            promised: 0,
        };
        self.quotas.undo.push((number, None));
        self.quotas.realms.insert(number, realm);
        self.quotas.note_counting(number, counting);
        self.carry(&mut dir, number);
        self.save(dir);
        Ok(Reply::Done)
    }

    /// The number of a new realm inside this one.
    fn new_realm(&mut self, outer: u32) -> OpResult<u32> {
        let depth = |number| self.quotas.chain(number).count();
        let inside = |number: &&u32| {
            outer == 0 || self.quotas.chain(**number).any(|(around, _)| around == outer)
        };
        // Which of those inside the one around it are below the directory is seen when it is
        // counted.
        let deepest = self.quotas.realms.keys().filter(inside).map(|number| depth(*number));
        if deepest.max().unwrap_or(0).max(depth(outer)) >= NESTING_MAX {
            return errno(libc::ELOOP);
        }
        let Some(number) = self.quotas.last.checked_add(1) else { return errno(libc::ENOSPC) };
        if self.quotas.realms.len() >= REALMS_MAX {
            return errno(libc::ENOSPC);
        }
        self.quotas.last = number;
        self.overlay.put(keys::REALMS.to_vec(), &number);
        Ok(number)
    }

    /// The quotas that a file counts for.
    pub(super) fn get_quota(&self, gfid: Gfid) -> OpResult<Reply> {
        let found = self.existing(gfid)?;
        let chain = self.quotas.chain(found.inode.realm);
        Ok(Reply::Quotas(chain.map(|(number, realm)| self.quotas.shown(number, realm)).collect()))
    }

    pub(super) fn list_quotas(&self, after: u32) -> Reply {
        let behind = (std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded);
        let realms = self.quotas.realms.range(behind).filter(|(_, realm)| !realm.ended);
        let shown = realms.take(QUOTAS_LISTED_MAX);
        Reply::Quotas(shown.map(|(number, realm)| self.quotas.shown(*number, realm)).collect())
    }

    /// An inode, which is to be saved, counts for another realm from now on; of a directory, what
    /// is in it is still to be looked at.
    fn carry(&mut self, found: &mut Found, number: u32) {
        self.quotas.leave(&found.inode);
        self.quotas.enter(&mut found.inode, number);
        if found.inode.is_dir() && found.inode.size > 0 {
            self.overlay.put(keys::counting(number, found.gfid), &Vec::<u8>::new());
            self.quotas.change(number, |realm| realm.counting = true);
        }
        if found.inode.kind == FileKind::Regular {
            self.quotas.adopted.push(found.gfid);
        }
    }

    /// A file comes back from the trash into a directory, and is to be saved: it counts for the
    /// realm of that from now on, whatever it counted for. EDQUOT if it does not fit.
    pub(super) fn readmit(&mut self, dir: &Found, found: &mut Found) -> OpResult<()> {
        let realm = self.quotas.live(dir.inode.realm);
        if self.quotas.live(found.inode.realm) == realm {
            return Ok(());
        }
        if realm == 0 {
            self.quotas.leave(&found.inode);
            found.inode.realm = 0;
            return Ok(());
        }
        let fits = self.quotas.room(realm).is_none_or(|room| u128::from(found.inode.size) <= room);
        if !fits || !self.quotas.takes_file(realm) {
            return errno(libc::EDQUOT);
        }
        self.carry(found, realm);
        Ok(())
    }

    /// What is in a directory of this realm counts for it, if it still counts for what is around.
    /// Saves it if so.
    pub(super) fn adopt(&mut self, number: u32, found: &mut Found) {
        let carried = found.inode.realm;
        if number == 0 || carried == number {
            return;
        }
        if let Some(inner) = self.quotas.get(carried).filter(|realm| realm.root == found.gfid) {
            let (around, &Realm { bytes, files, promised, .. }) = (inner.outer, inner);
            if around != number && self.quotas.is_around(around, number) {
                let usage = Usage { bytes, files, promised };
                self.quotas.release(around, usage);
                self.quotas.change(carried, |realm| realm.outer = number);
                self.quotas.charge(number, usage);
            }
            return;
        }
        // Another's, by a further name.
        if self.quotas.is_around(self.quotas.live(carried), number) {
            self.carry(found, number);
            self.save(found.clone());
        }
    }

    /// While something is counted: a directory, which is about to get or lose names, counts for the
    /// realm that it is in.
    pub(super) fn adopt_dir(&mut self, gfid: Gfid) -> OpResult<()> {
        if !self.quotas.is_counting() {
            return Ok(());
        }
        let Some(mut dir) = self.load(gfid)? else { return Ok(()) };
        if !dir.inode.is_dir() || dir.inode.nlink == 0 {
            return Ok(());
        }
        let (mut at, mut carried, mut parent) = (gfid, dir.inode.realm, dir.inode.parent);
        let realm = loop {
            if self.quotas.get(carried).is_some_and(|realm| realm.root == at) {
                break carried;
            }
            if parent == at {
                break 0;
            }
            let above = self.load(parent)?.ok_or(OpError::Errno(libc::EIO))?;
            (at, carried, parent) = (parent, above.inode.realm, above.inode.parent);
        };
        self.adopt(realm, &mut dir);
        Ok(())
    }

    /// While something is counted: a name of a directory that counts for the realm of that.
    pub(super) fn adopt_child(&mut self, dir: &Found, child: &mut Found) {
        if self.quotas.is_counting() {
            self.adopt(self.quotas.live(dir.inode.realm), child);
        }
    }

    /// Counts so many entries, about, of what was there before a quota. True if there is more.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn count_quotas(&mut self, entries_max: usize) -> Result<bool, StoreError> {
        self.overlay.begin();
        self.quotas.begin();
        let mut left = entries_max;
        while left > 0
            && let Some(&number) = self.quotas.counting.first()
        {
            match self.count_some(number, left) {
                Ok(counted) => left = left.saturating_sub(counted.max(1)),
                Err(error) => {
                    self.overlay.rollback();
                    self.quotas.rollback();
                    return Err(error);
                }
            }
        }
        Ok(self.quotas.is_counting())
    }

    /// Is something of a quota still to be counted?
    pub fn is_counting_quotas(&self) -> bool {
        self.quotas.is_counting()
    }

    fn count_some(&mut self, number: u32, entries_max: usize) -> Result<usize, StoreError> {
        let prefix = keys::counting_prefix(number);
        let mut first = None;
        self.overlay.scan(&prefix, &prefix, &mut |key, value| {
            first = Some((key.to_vec(), value.to_vec()));
            ControlFlow::Break(())
        })?;
        let Some((key, value)) = first else {
            self.quotas.change(number, |realm| realm.counting = false);
            return Ok(0);
        };
        let Some(dir) = keys::counting_dir(&key) else { return Err(corrupt(&key, "no directory")) };
        let live = self.quotas.live(number);
        if live != number {
            // It has ended: what it did not come to counts for the one around it.
            self.overlay.delete(key);
            if live != 0 {
                self.overlay.put(keys::counting(live, dir), &Vec::<u8>::new());
                self.quotas.change(live, |realm| realm.counting = true);
            }
            return Ok(0);
        }
        let after: Vec<u8> = decode(&key, &value)?;
        let entries = self.entries_behind(dir, &after, entries_max)?;
        let counted = entries.len();
        let last = entries.last().map(|(name, _)| name.clone());
        for (name, entry) in entries {
            let found = match entry {
                Entry::Inode(gfid, inode) => {
                    Some(Found { gfid, inode, place: Place::Entry(dir, name) })
                }
                Entry::Apart(gfid) => self.load(gfid)?,
            };
            if let Some(mut found) = found {
                self.adopt(number, &mut found);
            }
        }
        match last {
            Some(last) if counted == entries_max => self.overlay.put(key, &last),
            _ => self.overlay.delete(key),
        }
        Ok(counted)
    }

    /// Entries of a directory behind a name.
    fn entries_behind(
        &self,
        dir: Gfid,
        after: &[u8],
        entries_max: usize,
    ) -> Result<Vec<(Vec<u8>, Entry)>, StoreError> {
        let mut from = keys::of_name(keys::ENTRY, dir, after);
        if !after.is_empty() {
            from.push(0);
        }
        let mut entries = Vec::new();
        self.overlay.scan(&keys::of_gfid(keys::ENTRY, dir), &from, &mut |key, value| {
            entries.push(decode(key, value).map(|entry| (key[keys::NAME_AT..].to_vec(), entry)));
            if entries.len() < entries_max {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })?;
        entries.into_iter().collect()
    }

    /// What the records of inodes say of each realm, beside what is counted.
    pub(super) fn verify_quotas(&self) -> Result<Vec<String>, StoreError> {
        let mut inodes = Vec::new();
        let mut read = Ok(());
        self.overlay.scan(&[keys::NODE], &[keys::NODE], &mut |key, value| {
            match (keys::gfid_of(key), decode::<Node>(key, value)) {
                (Some(gfid), Ok(_)) => inodes.push(gfid),
                (None, _) => {}
                (_, Err(error)) => read = Err(error),
            }
            if read.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        read?;
        let mut counted: BTreeMap<u32, (Usage, u64)> = BTreeMap::new();
        let mut problems = Vec::new();
        for gfid in inodes {
            let Some(found) = self.load(gfid)? else { continue };
            let (realm, usage) = (found.inode.realm, Usage::of(&found.inode));
            if realm != 0 {
                counted.entry(realm).or_default().1 += 1;
            }
            for (number, _) in self.quotas.chain(realm) {
                let sums = &mut counted.entry(number).or_default().0;
                sums.bytes += usage.bytes;
                sums.files += usage.files;
            }
            if let Some(problem) = self.misplaced(&found)? {
                problems.push(problem);
            }
        }
        for (number, realm) in self.quotas.realms() {
            let (sums, carried_by) = counted.remove(number).unwrap_or_default();
            let stored = (realm.bytes, realm.files, realm.carried_by);
            let is_right = (sums.bytes, sums.files) == (realm.bytes, realm.files) || realm.ended;
            if !is_right || carried_by != realm.carried_by {
                let counted = (sums.bytes, sums.files, carried_by);
                problems.push(format!("quota {number}: {stored:?}, counted {counted:?}"));
            }
        }
        problems.extend(counted.keys().map(|number| format!("quota {number} does not exist")));
        Ok(problems)
    }

    /// Says so if an inode does not count for what it is in. A file that had several names may
    /// count for the place of another one.
    fn misplaced(&self, found: &Found) -> Result<Option<String>, StoreError> {
        let parent = match &found.place {
            Place::Entry(parent, _) => *parent,
            Place::Apart if found.inode.is_dir() && found.inode.nlink > 0 => found.inode.parent,
            Place::Apart => return Ok(None),
        };
        if self.quotas.is_counting() || parent == found.gfid {
            return Ok(None);
        }
        let carried = found.inode.realm;
        let own = self.quotas.get(carried).filter(|realm| realm.root == found.gfid);
        let counts_for = own.map_or(self.quotas.live(carried), |realm| realm.outer);
        let around = self.load(parent)?.map_or(0, |dir| self.quotas.live(dir.inode.realm));
        Ok((counts_for != around)
            .then(|| format!("{}: counts for quota {counts_for}, and is in {around}", found.gfid)))
    }
}

#[cfg(test)]
mod tests;
