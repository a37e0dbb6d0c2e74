//! What this mount knows of a file's attributes beside the metadata service, and telling it.
//!
//! Contract: part of the pure machine. While `dirty`, the times here are the truth, and what a user
//! has changed; the size is while a lease is held.

use super::super::rights::SetIds;
use super::following::Following;
use super::kept::Kept;
use super::{InodeState, SyncKind};
use protocol::namespace::{Attr, LeaseMode, SetAttr, Timestamp};

/// Which of a user's changes the holder of the write lease may tell the service later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep {
    /// The modification time, and what moves ctime alone.
    Times,
    /// Any but of the size.
    All,
}

/// What a flush is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlushKind {
    /// The service is to know all that this mount knows.
    Whole,
    /// An fsync: all of it is to survive.
    Sync {
        /// If times may follow later, it is enough that the service knows that. See
        /// [`FsOptions`](crate::fs::FsOptions).
        times_may_follow: bool,
    },
}

/// Attributes taken for a flush, and which change they include.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flush {
    /// What to send.
    pub set: SetAttr,
    /// It is to be on the service's disk when it is answered.
    pub sync: bool,
    /// It says anew whether times may follow.
    moves_mark: bool,
    /// It tells again what the service has lost.
    reminds: bool,
    /// What of it a user has changed.
    kept: Kept,
    change: u64,
    /// Under which grant.
    token: u64,
}

/// How far a flush came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// The service may not have it.
    No,
    /// The service has it.
    Told,
    /// Its disk has it, and all that it was told before.
    Synced,
}

/// Times of a file, and what the service knows of these and of the size.
#[derive(Debug, Default)]
pub(super) struct Attributes {
    mtime: Timestamp,
    ctime: Timestamp,
    /// The modification time is that of a write of this mount's, and not one that a program has set
    /// or the service told.
    is_time_of_write: bool,
    /// What a user has changed beside, and what of that the last flushes have told.
    kept: Kept,
    kept_told: Kept,
    /// Something is known here that the service does not know; how many changes there were, also at
    /// the last sweep.
    dirty: bool,
    change: u64,
    change_swept: u64,
    /// The footprint is not what the service knows.
    is_spread: bool,
    following: Following,
    /// A task sends them; and the stamp of the last flush that came through.
    flushing: bool,
    flushed_stamp: u64,
    /// The size that the service knows.
    told_size: u64,
    /// How often the service was told something of the file, or told it itself, and how many of
    /// these are on its disk.
    tellings: u64,
    tellings_synced: u64,
    /// The service has lost what it was told: it is to be told again, changed or not.
    forgotten: bool,
}

impl Attributes {
    fn changed(&mut self) {
        self.dirty = true;
        self.change += 1;
    }

    /// The size tells less of the file's space than the service knows.
    pub(super) fn spread(&mut self) {
        self.is_spread = true;
    }

    /// The content changed, or is about to.
    pub(super) fn touched(&mut self, now: Timestamp) {
        (self.mtime, self.ctime) = (now, now);
        self.is_time_of_write = true;
        self.changed();
    }

    /// Are these the times of a change at that moment already?
    pub(super) fn are_of(&self, moment: Timestamp) -> bool {
        (self.mtime, self.ctime) == (moment, moment)
    }

    /// A lease comes with this size. Nobody says whether the service has it on its disk.
    pub(super) fn adopted(&mut self, size: u64) {
        assert!(!self.dirty, "attributes changed without a lease");
        self.told_size = size;
        self.tellings += 1;
    }

    /// The service has recorded this size.
    pub(super) fn size_told(&mut self, size: u64) {
        self.told_size = size;
    }

    /// Nobody has the file open.
    pub(super) fn closed(&mut self) {
        self.following.closed();
    }

    /// The write lease is gone, and whatever was to be told with it.
    pub(super) fn lease_gone(&mut self) {
        (self.dirty, self.is_spread) = (false, false);
        (self.kept, self.kept_told) = (Kept::default(), Kept::default());
        self.forgotten = false;
        self.following.lease_gone();
    }

    /// The service has lost what it was told.
    pub(super) fn service_forgot(&mut self) {
        self.forgotten = true;
        // Any size: that of now is not on its disk.
        self.told_size = 0;
        self.tellings += 1;
    }
}

/// Is it a change that has nothing to do with the data, and that the service would not refuse?
fn is_keepable(set: &SetAttr) -> bool {
    let is_valid = [set.atime, set.mtime].iter().flatten().all(|time| time.nanos < 1_000_000_000);
    is_valid && set.size.is_none() && set.ctime.is_none() && *set != SetAttr::default()
}

impl InodeState {
    /// Puts what only this mount knows into attributes from the service. `asked` is the stamp (see
    /// `flush_done`) from before the service was asked: an answer older than our last flush does
    /// not know what it brought.
    pub fn merge(&mut self, attr: &mut Attr, asked: u64) {
        if self.lease().is_none() {
            self.shown = self.shown.max(attr.size);
            return;
        }
        attr.size = self.size;
        if self.lease() == Some(LeaseMode::Write) {
            attr.footprint = self.footprint;
        }
        if self.attrs.dirty {
            attr.mtime = self.attrs.mtime;
            attr.ctime = attr.ctime.max(self.attrs.ctime);
        } else if self.attrs.flushed_stamp > asked {
            // A writer may have told a time that lies before: nobody else sets one without a
            // recall.
            let is_ours = self.lease() == Some(LeaseMode::Write);
            attr.mtime = if is_ours { self.attrs.mtime } else { attr.mtime.max(self.attrs.mtime) };
            attr.ctime = attr.ctime.max(self.attrs.ctime);
        }
        if self.attrs.flushed_stamp > asked {
            self.attrs.kept_told.put_into(attr);
        }
        self.attrs.kept.put_into(attr);
    }

    /// Takes a change by the user that the holder of the write lease may tell the service later, as
    /// the times of a write: of the modification time, and to what the file has already, which
    /// moves ctime alone; with [`Keep::All`] any but of the size, and but for one that takes a
    /// permission away, after which data may be written that is for fewer eyes. `attr` is what the
    /// service said (`asked`: see [`InodeState::merge`]), and becomes what is so. False: the
    /// service has to be told at once.
    pub fn keep_change(
        &mut self,
        set: &SetAttr,
        (attr, asked): (&mut Attr, u64),
        now: Timestamp,
        keep: Keep,
    ) -> bool {
        // What gives a file somebody's rights is told at once, so that whoever writes next takes it
        // away.
        if !is_keepable(set) || !self.may_keep() || set.mode.is_some_and(|mode| mode & 0o6000 != 0)
        {
            return false;
        }
        // The service knows what the flags of chattr(1) permit.
        if !attr.flags.is_empty() {
            return false;
        }
        // An ACL changes with the mode, and is the service's.
        if set.mode.is_some() && attr.has_xattrs {
            return false;
        }
        let mut shown = *attr;
        self.merge(&mut shown, asked);
        let kept = Kept::new(set, &shown);
        if keep == Keep::Times && !kept.is_empty() || kept.withdraws(&shown) {
            return false;
        }
        self.attrs.kept.change(kept);
        (self.attrs.mtime, self.attrs.ctime) = (set.mtime.unwrap_or(shown.mtime), now);
        self.attrs.is_time_of_write &= set.mtime.is_none();
        self.attrs.changed();
        self.merge(attr, asked);
        true
    }

    /// May changes be told later? Only while the file is open, so that a close tells them at the
    /// latest, and while nobody has it alone, who may be giving the lease back.
    fn may_keep(&self) -> bool {
        self.opens > 0 && !self.exclusive && self.lease() == Some(LeaseMode::Write)
    }

    /// Is something known here that the service does not know, or waits for?
    pub fn has_to_tell(&self) -> bool {
        self.attrs.dirty || self.attrs.forgotten || self.attrs.following.may_be_marked()
    }

    /// A sweep passes: is the service to be told? Times that may follow wait until a sweep finds
    /// nothing new.
    pub fn sweep_passes(&mut self) -> bool {
        let is_changing =
            std::mem::replace(&mut self.attrs.change_swept, self.attrs.change) != self.attrs.change;
        self.has_to_tell() && !(is_changing && self.may_follow())
    }

    /// The content is about to change inside the size, and an fsync to follow. True if the time is
    /// to be told before that is asked for: it may be durable before the data that it tells of.
    pub fn touch_ahead(&mut self, now: Timestamp) -> bool {
        if self.has_grown() || self.lease() != Some(LeaseMode::Write) {
            return false;
        }
        self.attrs.touched(now);
        !self.may_follow()
    }

    /// Would something be missed that only this mount knows?
    pub(super) fn is_untold(&self) -> bool {
        self.attrs.forgotten || self.attrs.dirty && !self.may_follow()
    }

    /// Need an fsync tell nothing of this file?
    fn may_follow(&self) -> bool {
        self.attrs.following.is_marked() && self.is_markable() && !self.attrs.forgotten
    }

    /// If the session dies, is the time at which that is noticed as good as what only this mount
    /// knows?
    fn is_markable(&self) -> bool {
        let is_time_alone =
            self.attrs.is_time_of_write && self.attrs.kept.is_empty() && !self.attrs.is_spread;
        self.lease() == Some(LeaseMode::Write) && !self.has_grown() && is_time_alone
    }

    /// Does a task send attributes?
    pub fn is_flushing(&self) -> bool {
        self.attrs.flushing
    }

    /// Starts to send attributes; one at a time, so that an older size never arrives after a newer
    /// one. `None` while another task sends. An empty one for an fsync says that nothing of the
    /// file has to be told.
    pub fn begin_flush(&mut self, kind: FlushKind) -> Option<Flush> {
        if self.attrs.flushing {
            return None;
        }
        self.attrs.flushing = true;
        let (tells, times_follow) = match kind {
            FlushKind::Whole => (self.has_to_tell(), false),
            FlushKind::Sync { times_may_follow } => self.tells_at_fsync(times_may_follow),
        };
        let moves_mark = tells && (times_follow || self.attrs.following.may_be_marked());
        if moves_mark {
            self.attrs.following.move_begins();
        }
        let kept = if tells { self.attrs.kept } else { Kept::default() };
        let set = SetAttr {
            size: tells.then_some(self.size),
            mtime: tells.then_some(self.attrs.mtime),
            ctime: tells.then_some(self.attrs.ctime),
            footprint: (tells && self.attrs.is_spread).then_some(self.footprint),
            times_follow,
            ..kept.to_set()
        };
        // A mark that is taken back must not come back with older times when the service loses its
        // power.
        let sync = moves_mark || kind != FlushKind::Whole;
        let reminds = tells && self.attrs.forgotten;
        Some(Flush {
            set,
            sync,
            moves_mark,
            reminds,
            kept,
            change: self.attrs.change,
            token: self.token(),
        })
    }

    /// Has an fsync to tell something, and is it to say that times may follow?
    fn tells_at_fsync(&mut self, times_may_follow: bool) -> (bool, bool) {
        if !self.attrs.dirty && !self.attrs.forgotten {
            return (false, false);
        }
        if self.may_follow() {
            self.attrs.following.fsync_saved();
            return (false, false);
        }
        let may = times_may_follow && self.is_markable() && self.habit.has(SyncKind::Full);
        (true, may && self.attrs.following.earns())
    }

    /// The end of `begin_flush`. `stamp` counts flushes of all files.
    pub fn flush_done(&mut self, flush: Flush, sent: Sent, stamp: u64) {
        assert!(self.attrs.flushing, "a flush ended that nobody began");
        self.attrs.flushing = false;
        if sent == Sent::No {
            return;
        }
        self.attrs.tellings += 1;
        if sent == Sent::Synced {
            self.attrs.tellings_synced = self.attrs.tellings;
        }
        self.attrs.told_size = flush.set.size.unwrap_or(self.attrs.told_size);
        self.attrs.forgotten &= !flush.reminds;
        self.attrs.flushed_stamp = stamp;
        self.attrs.dirty &= self.attrs.change != flush.change;
        self.attrs.is_spread &= flush.set.footprint != Some(self.footprint);
        self.attrs.kept.told(flush.kept);
        self.attrs.kept_told.change(flush.kept);
        let is_same_grant = self.lease() == Some(LeaseMode::Write) && self.token() == flush.token;
        if flush.moves_mark && is_same_grant {
            self.attrs.following.moved(flush.set.times_follow);
        }
    }

    /// The service has this owner, group and mode now.
    pub fn rights_learned(&mut self, attr: &Attr) {
        self.set_ids = SetIds::of(attr);
        self.attrs.kept_told.learn(attr);
    }

    /// The service has these attributes now: they are the new truth for what is not dirty.
    pub fn learned(&mut self, attr: &Attr) {
        self.rights_learned(attr);
        if !self.attrs.dirty {
            self.attrs.is_time_of_write &= attr.mtime == self.attrs.mtime;
            (self.attrs.mtime, self.attrs.ctime) = (attr.mtime, attr.ctime);
        }
    }

    /// Is it longer than the service knows?
    pub fn has_grown(&self) -> bool {
        self.size > self.attrs.told_size
    }

    /// Has the service's disk the size, and the file's name, for all that this mount knows?
    pub fn is_size_synced(&self) -> bool {
        self.size == self.attrs.told_size && self.attrs.tellings == self.attrs.tellings_synced
    }

    /// How often the service was told something; hand the number to `tellings_synced` after a sync.
    pub fn tellings(&self) -> u64 {
        self.attrs.tellings
    }

    /// The service has brought to its disk what it was told so often.
    pub fn tellings_synced(&mut self, tellings: u64) {
        self.attrs.tellings_synced = self.attrs.tellings_synced.max(tellings);
    }
}
