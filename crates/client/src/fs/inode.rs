//! What this mount knows of one open or cached regular file: who may do what now, and the
//! attributes that only the holder of the lease knows.
//!
//! Contract: a pure machine, no I/O, no clock, no waiting; the caller keeps it under a lock and
//! waits outside. While a lease is held, `size` is the truth. Rules that it keeps:
//! * an operation is let in only under a lease that allows it ([`Holder`] has the rules of leases),
//!   and a lease is given back only with nobody inside;
//! * bytes at or beyond the size may be garbage of a dead writer until `Tail` says otherwise, and
//!   are zeroed before the size moves past them.

mod following;
mod gathering;
mod habit;
mod kept;
mod mapping;
mod telling;

use super::Result;
use super::creating::Brought;
use super::errno::{EIO, posix};
use super::rights::SetIds;
use crate::objecter::{FileRef, WriterHint};
use gathering::Gathering;
use habit::SyncHabit;
pub use habit::SyncKind;
use mapping::Mapping;
use metadata::lease::holder::{Holder, Moment, Permit, WriteMark};
pub use metadata::lease::holder::{RecallStep, Ticket};
use protocol::namespace::{Attr, Footprint, Grant, Held, LeaseMode, Timestamp};
use protocol::{Epoch, Gfid, PoolId};
use std::ops::Range;
use std::task::Waker;
use telling::Attributes;
pub use telling::{Flush, FlushKind, Keep, Sent};

/// How an operation shares the file with others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// With other shared operations: reads and writes.
    Shared,
    /// Alone: truncation, zeroing, giving the lease back.
    Exclusive,
}

/// What an operation wants before it is let in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Need {
    /// Alone or not.
    pub access: Access,
    /// The least lease.
    pub lease: Option<LeaseMode>,
    /// The service must count the file as open by this session.
    pub open: bool,
}

impl Need {
    /// Shared access under a lease.
    pub const fn shared(lease: LeaseMode) -> Need {
        Need { access: Access::Shared, lease: Some(lease), open: false }
    }

    /// Exclusive access under the write lease.
    pub const fn exclusive() -> Need {
        Need { access: Access::Exclusive, lease: Some(LeaseMode::Write), open: false }
    }
}

/// The machine's answer to a wish to enter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// Inside: call `leave` at the end.
    Entered,
    /// Wait for a change, then ask again.
    Wait,
    /// Ask the service for this lease with `Open`, then call `granted` or `not_granted`, then ask
    /// again.
    Acquire(Ticket, LeaseMode),
}

/// What makes good that the service has lost size and times of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Remedy {
    /// They are told again, with the next flush.
    TellAgain,
    /// The lease under which they were learned has to go: they are not so any more.
    AskAgain,
    /// Nothing here.
    None,
}

/// What is known of the bytes beyond the size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tail {
    /// All zero, counting writes that have begun.
    Clean,
    /// Zero or written by us up to here; unknown beyond.
    Known(u64),
}

/// A write's place and what the data path must know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WritePlan {
    /// Where the data goes; another place than asked only for an append of a kernel that knew an
    /// old size.
    pub offset: u64,
    /// See [`WriterHint`].
    pub hint: WriterHint,
    /// The file is longer after it.
    pub grows: bool,
    /// What is expected next.
    pub follows: SyncKind,
}

/// The machine. See the module.
#[derive(Debug)]
pub struct InodeState {
    gfid: Gfid,
    pool: PoolId,
    holder: Holder,
    opens: u32,
    shared: u32,
    exclusive: bool,
    exclusive_waiting: u32,
    entered: u64,
    /// Bytes of writes that were answered, or may be, before they are reported.
    behind: u64,
    /// Operations inside that are such writes.
    staying: u32,
    gathering: Gathering,
    size: u64,
    base_size: u64,
    write_end: u64,
    /// The largest size that the kernel may believe in.
    shown: u64,
    /// Another client has made the file shorter than that: the kernel appends beyond the end.
    cut_elsewhere: bool,
    tail: Tail,
    /// The tail was clean before the cut under way.
    cutting: bool,
    attrs: Attributes,
    footprint: Footprint,
    habit: SyncHabit,
    kernel_cache: bool,
    /// The write lease is on its way back: what the service is told now may be behind what another
    /// tells.
    returning: bool,
    /// Where the kernel has pages locked, for requests under way.
    locked: Vec<Range<u64>>,
    /// It has no `security.capability`, which the kernel asks for before every write.
    no_capability: bool,
    set_ids: SetIds,
    mapping: Mapping,
    lost: bool,
    /// How often the write lease went with a session while somebody had the file open, or without
    /// one, and for how many of these the objecter was asked whether writes were lost.
    doubts: (u64, u64),
    last_used: u64,
    waiters: Vec<Waker>,
}

impl InodeState {
    /// A file of which nothing is known yet.
    pub fn new(gfid: Gfid) -> Self {
        Self {
            gfid,
            pool: PoolId::default(),
            holder: Holder::default(),
            opens: 0,
            shared: 0,
            exclusive: false,
            exclusive_waiting: 0,
            entered: 0,
            behind: 0,
            staying: 0,
            gathering: Gathering::default(),
            size: 0,
            base_size: 0,
            write_end: 0,
            shown: 0,
            cut_elsewhere: false,
            tail: Tail::Known(0),
            cutting: false,
            attrs: Attributes::default(),
            footprint: Footprint::Unknown,
            habit: SyncHabit::default(),
            kernel_cache: false,
            returning: false,
            locked: Vec::new(),
            no_capability: false,
            set_ids: SetIds::default(),
            mapping: Mapping::default(),
            lost: false,
            doubts: (0, 0),
            last_used: 0,
            waiters: Vec::new(),
        }
    }

    // ---- entering and leaving

    /// May the operation begin? `first` lets the task that just acquired the lease in before a
    /// waiting recall, so that two clients that want one file both make progress.
    pub fn try_enter(&mut self, need: Need, first: bool) -> Entry {
        if self.exclusive {
            return Entry::Wait;
        }
        if need.lease > self.lease() || need.open && !self.holder.is_open() {
            if self.holder.is_busy() {
                return Entry::Wait;
            }
            let mode = need.lease.max(self.lease()).unwrap_or(LeaseMode::Read);
            return Entry::Acquire(self.holder.ask(), mode);
        }
        match need.access {
            Access::Shared if self.exclusive_waiting > 0 && !first => return Entry::Wait,
            Access::Shared => self.shared += 1,
            Access::Exclusive if self.shared > 0 => return Entry::Wait,
            Access::Exclusive => self.exclusive = true,
        }
        self.entered += 1;
        Entry::Entered
    }

    /// The end of an operation that was let in.
    pub fn leave(&mut self, access: Access) {
        match access {
            Access::Shared => {
                assert!(self.shared > 0, "left a file more often than entered");
                self.shared -= 1;
            }
            Access::Exclusive => {
                assert!(self.exclusive, "left a file that nobody had alone");
                self.exclusive = false;
            }
        }
        self.check_invariants();
    }

    /// A task wants the file alone: later shared operations wait behind it.
    pub fn exclusive_wanted(&mut self) {
        self.exclusive_waiting += 1;
    }

    /// The end of `exclusive_wanted`: the task is in, or gave up.
    pub fn exclusive_settled(&mut self) {
        assert!(self.exclusive_waiting > 0, "more tasks settled than wanted");
        self.exclusive_waiting -= 1;
    }

    /// Takes the file alone if it is idle and nothing entered since `entered` was `seen`.
    pub fn enter_if_quiet(&mut self, seen: u64) -> bool {
        let quiet = self.entered == seen && self.shared == 0 && !self.exclusive;
        self.exclusive |= quiet;
        quiet
    }

    /// Takes the file alone if nobody has it open or is inside, and the service knows all of it but
    /// its data: then the lease may go back as soon as the data is stable.
    pub fn enter_if_idle(&mut self) -> bool {
        let idle =
            self.opens == 0 && self.lease().is_some() && !self.has_to_tell() && self.is_quiet();
        let idle = idle && !self.holder.may_be_open();
        self.exclusive |= idle;
        idle
    }

    /// What a change of its content may take away.
    pub(super) fn set_ids(&self) -> SetIds {
        self.set_ids
    }

    /// How many operations were let in so far.
    pub fn entered(&self) -> u64 {
        self.entered
    }

    /// Keeps a task's waker until the next `take_waiters`.
    pub fn wait(&mut self, waker: &Waker) {
        if !self.waiters.iter().any(|other| other.will_wake(waker)) {
            self.waiters.push(waker.clone());
        }
    }

    /// Everyone who waits for a change; to be woken outside the lock.
    pub fn take_waiters(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.waiters)
    }

    // ---- leases and opens

    /// May an operation that is inside go on at this moment? See [`Holder::permits`].
    pub fn permits(&self, need: Need, at: Moment) -> Permit {
        self.holder.permits(need.lease, at)
    }

    /// Which grant the lease is of, or was.
    pub fn token(&self) -> u64 {
        self.holder.token()
    }

    /// Of the map that the lease needs.
    pub fn epoch(&self) -> Epoch {
        self.holder.epoch()
    }

    /// The service granted. True if the grant counts; a void one is asked for anew.
    pub fn granted(&mut self, ticket: Ticket, attr: &Attr, grant: Grant) -> bool {
        let held = self.lease();
        if !self.holder.granted(ticket, grant) {
            return false;
        }
        if held.is_none() {
            self.adopt(attr);
        } else {
            self.learned(attr);
        }
        self.check_invariants();
        true
    }

    /// The service refused, did not answer, or its answer is no longer waited for.
    pub fn not_granted(&mut self, ticket: Ticket) {
        self.holder.not_granted(ticket);
    }

    /// This mount has just made the file, and has it open once.
    pub fn created(&mut self, attr: &Attr, brought: Brought) {
        self.opens += 1;
        match brought {
            Brought::Lease(grant) => {
                self.holder.created(Some(grant));
                self.adopt(attr);
                self.tail = Tail::Clean;
                self.no_capability = true;
            }
            Brought::Open => self.holder.created(None),
            Brought::Nothing => {}
        }
    }

    fn adopt(&mut self, attr: &Attr) {
        self.attrs.adopted(attr.size);
        self.footprint = attr.footprint;
        self.cut_elsewhere = attr.size < self.shown.max(self.size);
        self.shown = attr.size;
        self.pool = attr.pool;
        self.size = attr.size;
        self.base_size = attr.size;
        self.write_end = attr.size;
        self.tail = Tail::Known(attr.size);
        self.cutting = false;
        self.learned(attr);
        self.kernel_cache = false;
        self.no_capability = false;
    }

    /// The kernel starts to cache a new file. Nothing of it can be cached yet, so what is, is
    /// right.
    pub fn kernel_cache_begins(&mut self) -> bool {
        self.kernel_cache = true;
        true
    }

    /// One more handle. True if what the kernel has cached of the file is still right.
    pub fn opened(&mut self) -> bool {
        self.opens += 1;
        let is_right = std::mem::replace(&mut self.kernel_cache, true);
        if !is_right {
            self.pages_dropped();
        }
        is_right
    }

    /// The session's time has run out: what the kernel has cached is not right any more. True if it
    /// may have something.
    pub fn expired(&mut self) -> bool {
        self.kernel_cache = false;
        self.lease().is_some()
    }

    /// A request begins for which the kernel has these pages locked.
    pub fn pages_locked(&mut self, pages: Range<u64>) {
        self.locked.push(pages);
    }

    /// The end of `pages_locked`.
    pub fn pages_unlocked(&mut self, pages: &Range<u64>) {
        let place = self.locked.iter().position(|other| other == pages);
        self.locked.swap_remove(place.expect("pages unlocked that were not locked"));
    }

    /// What no request under way has locked, in order; the last part has no end.
    pub fn unlocked_parts(&self) -> Vec<Range<u64>> {
        let mut locked = self.locked.clone();
        locked.sort_unstable_by_key(|pages| pages.start);
        let (mut parts, mut from) = (Vec::new(), 0);
        for pages in locked {
            if from < pages.start {
                parts.push(from..pages.start);
            }
            from = from.max(pages.end);
        }
        parts.push(from..u64::MAX);
        parts
    }

    /// Handles open in this mount.
    pub fn opens(&self) -> u32 {
        self.opens
    }

    /// One handle less. A release that was never opened here (a session that died between) counts
    /// for nothing.
    pub fn closed(&mut self, now: u64) {
        self.opens = self.opens.saturating_sub(1);
        self.last_used = now;
        if self.opens == 0 {
            self.attrs.closed();
        }
    }

    /// Has a close nothing to wait for and nothing to tell? `ends_behind`: what is on its way, and
    /// what is to be told, may end later.
    pub fn closes_at_once(&self, ends_behind: bool) -> bool {
        let has_errors = self.lost || self.is_doubtful();
        !has_errors && (ends_behind || !self.is_behind() && !self.has_to_tell())
    }

    /// May the service be told that the file is closed? If so, opens and other questions wait for
    /// `close_done`.
    pub fn try_close(&mut self) -> Option<Ticket> {
        if self.opens > 0 || self.has_to_tell() || !self.is_quiet() {
            return None;
        }
        self.holder.begin_close()
    }

    /// The service knows (or may not, if `told` is false: then it is told again).
    pub fn close_done(&mut self, ticket: Ticket, told: bool) {
        self.holder.close_done(ticket, told);
    }

    /// The service wants the lease back down to `keep`.
    pub fn recall(&mut self, keep: Option<LeaseMode>) -> RecallStep {
        self.holder.recall(keep)
    }

    /// The lease goes back, after what is to be told now. Ends with `gave_back`, or `recalled`.
    pub fn return_begins(&mut self) {
        assert!(self.exclusive, "a lease given back with operations inside");
        self.returning = true;
    }

    /// The service has lost, with its machine's power, what it was told of the file or told itself.
    pub fn told_lost(&mut self) -> Remedy {
        match self.lease() {
            Some(LeaseMode::Write) if !self.returning => {
                self.attrs.service_forgot();
                Remedy::TellAgain
            }
            Some(LeaseMode::Read) => Remedy::AskAgain,
            _ => Remedy::None,
        }
    }

    /// The service does not know of the lease by the grant with this token, nor of a later one.
    pub fn claim_refused(&mut self, token: u64) {
        if self.returning || self.token() != token {
            return;
        }
        let writes = self.lease() == Some(LeaseMode::Write);
        self.lost |=
            writes && (self.is_untold() || self.opens > 0 && self.shared > 0 || self.behind > 0);
        self.doubts.0 += u64::from(writes);
        self.holder.claim_refused();
        self.attrs.lease_gone();
        self.kernel_cache = false;
    }

    /// The service has taken the lease back down to `keep`; called before anyone else may enter.
    pub fn gave_back(&mut self, keep: Option<LeaseMode>) {
        assert!(self.exclusive, "a lease given back with operations inside");
        self.holder.gave_back(keep);
        self.kernel_cache &= self.lease().is_some();
        if self.lease() != Some(LeaseMode::Write) {
            // Only of a file that is gone: the service had no use for them.
            self.attrs.lease_gone();
        }
    }

    /// The recall that this task began is through: the lease is down to `keep` (`None` if it was
    /// not given back). Returns a recall that came meanwhile and asks for more.
    pub fn recalled(&mut self, kept: Option<Option<LeaseMode>>) -> Option<Option<LeaseMode>> {
        self.returning = false;
        self.holder.recalled(kept)
    }

    /// The session is dead: every lease is gone, and what was not flushed is for the service to
    /// find out.
    pub fn fenced(&mut self) {
        self.doubts.0 += u64::from(self.lease() == Some(LeaseMode::Write) && self.opens > 0);
        self.lost |= self.is_untold()
            || self.lease() == Some(LeaseMode::Write) && self.write_end > self.size;
        self.holder.fenced();
        self.attrs.lease_gone();
        self.kernel_cache = false;
        self.returning = false;
    }

    /// For an operation that is inside and has waited: did the write lease go with its session
    /// meanwhile?
    ///
    /// # Errors
    /// EIO if it did: the file may be another's.
    pub fn still_writes(&mut self) -> Result<()> {
        if self.lease() == Some(LeaseMode::Write) { Ok(()) } else { posix(EIO) }
    }

    /// Data is about to change otherwise than by `begin_write`: a hole, a cut.
    pub fn begin_change(&mut self) {
        self.holder.write_begins();
    }

    /// A sync of the data begins; hand the mark to `synced`.
    pub fn sync_begins(&self) -> WriteMark {
        self.holder.sync_begins()
    }

    /// Somebody asks for this sync.
    pub fn sync_asked(&mut self, sync: SyncKind) {
        self.habit.sync_begins(sync);
    }

    /// See [`Holder::synced`].
    pub fn synced(&mut self, mark: WriteMark) {
        self.holder.synced(mark);
    }

    // ---- data and size

    /// The file's data; valid once a lease was granted.
    pub fn file(&self) -> FileRef {
        FileRef { gfid: self.gfid, pool: self.pool }
    }

    /// Its size in bytes; the truth while a lease is held.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// An upper bound on where data may be, counting writes that have begun.
    pub fn data_end(&self) -> u64 {
        self.write_end.max(self.size)
    }

    /// Unknown bytes that would become visible if the size moved past `to`: zero them alone, then
    /// `zeroed`.
    pub fn gap(&self, to: u64) -> Option<Range<u64>> {
        match self.tail {
            Tail::Clean => None,
            Tail::Known(known) => {
                let from = known.max(self.size);
                (to > from).then_some(from..to)
            }
        }
    }

    /// The gap up to here reads as zeros now.
    pub fn zeroed(&mut self, to: u64) {
        if let Tail::Known(known) = &mut self.tail {
            *known = to.max(*known);
        }
    }

    /// Plans a write of `len` bytes; `None` if a gap must be zeroed first.
    pub fn begin_write(&mut self, offset: u64, len: u64, append: bool) -> Option<WritePlan> {
        // The kernel appends where it believes the end to be. Only a size that another client made
        // can be news to it; our own writes it has seen.
        let beyond = self.cut_elsewhere && offset > self.data_end();
        let stale = append && (offset < self.base_size || beyond);
        let offset = if stale { self.data_end() } else { offset };
        if self.gap(offset).is_some() {
            return None;
        }
        let end = offset + len;
        if stale {
            // The kernel will believe in an end before this one until it asks again.
            self.base_size = self.base_size.max(end);
        }
        if offset > self.data_end() {
            self.spreads(Footprint::Sparse);
        }
        let zero_from = match self.tail {
            Tail::Clean => self.data_end(),
            Tail::Known(_) => u64::MAX,
        };
        self.write_end = self.write_end.max(end);
        self.zeroed(end);
        self.holder.write_begins();
        let hint =
            WriterHint { zero_from, size_after: self.size.max(end), grant: Some(self.token()) };
        Some(WritePlan { offset, hint, grows: end > self.size, follows: self.habit.write_begins() })
    }

    /// What the data path must know for zeroing inside the file.
    pub fn punch_hint(&self) -> WriterHint {
        WriterHint { zero_from: u64::MAX, size_after: self.size, grant: None }
    }

    /// Data up to `end` was written (0: content changed inside the size).
    pub fn wrote(&mut self, end: u64, now: Timestamp) {
        if self.lease() != Some(LeaseMode::Write) {
            // The session died under the write: its end is what the fragments say.
            self.lost = true;
            return;
        }
        let has_grown = end > self.size;
        self.size = self.size.max(end);
        self.write_end = self.write_end.max(self.size);
        if has_grown || !self.attrs.are_of(now) {
            self.attrs.touched(now);
        }
    }

    /// May a write of so many bytes be answered before it is reported? If so, `behind_ended`
    /// follows. One may, however large, and others as long as all are no more bytes than the window
    /// has; with a window of zero none.
    pub fn stay_behind(&mut self, bytes: u64, window: u64) -> bool {
        if window == 0 || self.behind > 0 && self.behind + bytes > window {
            return false;
        }
        self.behind += bytes;
        self.staying += 1;
        true
    }

    /// A write that stayed behind is reported, or lost with its session.
    pub fn behind_ended(&mut self, bytes: u64) {
        assert!(self.behind >= bytes, "more ended than stayed behind");
        self.behind -= bytes;
        self.staying -= 1;
    }

    /// Was something answered that is not reported?
    pub fn is_behind(&self) -> bool {
        self.behind > 0
    }

    /// What the size tells of the file's space.
    pub fn footprint(&self) -> Footprint {
        self.footprint
    }

    /// It tells less from now on, which the service learns with the times of the change that makes
    /// it so. False: that is no news.
    pub fn spreads(&mut self, to: Footprint) -> bool {
        let is_news = to > self.footprint && self.lease() == Some(LeaseMode::Write);
        if is_news {
            self.footprint = to;
            self.attrs.spread();
        }
        is_news
    }

    /// The service has recorded `size`. Bytes beyond it are unknown until `truncated_data`.
    pub fn truncated(&mut self, size: u64) {
        self.cutting = size < self.data_end() && self.tail == Tail::Clean;
        if size < self.data_end() {
            self.tail = Tail::Known(size);
        }
        if size < self.size {
            // Pages that were written are cached whole.
            self.pages_filled(self.size);
        }
        self.base_size = self.base_size.min(size);
        self.attrs.size_told(size);
        self.footprint = self.footprint_at(size);
        self.size = size;
        self.write_end = size;
    }

    /// What a truncation to this size makes of the footprint.
    pub fn footprint_at(&self, size: u64) -> Footprint {
        match size {
            0 => Footprint::Dense,
            size if size > self.size => self.footprint.max(Footprint::Sparse),
            _ => self.footprint,
        }
    }

    /// The data between the size and `old_end`, where it ended before, is gone.
    pub fn truncated_data(&mut self, old_end: u64) {
        if std::mem::take(&mut self.cutting) {
            self.tail = Tail::Clean;
        }
        self.zeroed(old_end.max(self.size));
    }

    // ---- what was lost, and what it does not have

    /// Writes acknowledged earlier are lost; reported once, at the next fsync or close.
    pub fn mark_lost(&mut self) {
        self.lost = true;
    }

    /// Has the objecter to be asked what a dead session lost?
    pub fn is_doubtful(&self) -> bool {
        self.doubts.1 < self.doubts.0
    }

    /// How often there was a doubt; hand the number to `doubts_ended`.
    pub fn doubts(&self) -> u64 {
        self.doubts.0
    }

    /// The objecter was asked, for so many doubts.
    pub fn doubts_ended(&mut self, doubts: u64) {
        self.doubts.1 = self.doubts.1.max(doubts);
    }

    /// Is there something lost that nobody was told?
    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// See `mark_lost`.
    pub fn take_lost(&mut self) -> bool {
        std::mem::take(&mut self.lost)
    }

    /// The file is known to have no `security.capability`.
    pub fn has_no_capability(&self) -> bool {
        self.no_capability && self.lease().is_some()
    }

    /// Whether it has one, as far as is known. Remembered while a lease is held.
    pub fn set_no_capability(&mut self, none: bool) {
        self.no_capability = none && self.lease().is_some();
    }

    // ---- for the sweeper

    /// The lease held.
    pub fn lease(&self) -> Option<LeaseMode> {
        self.holder.mode()
    }

    /// For `NamespaceOp::Reclaim`: what this session holds, if anything.
    pub fn held(&self) -> Option<Held> {
        let lease = self.lease().map(|mode| (mode, self.token()));
        let open = self.holder.may_be_open();
        (lease.is_some() || open).then_some(Held { gfid: self.gfid, lease, open })
    }

    /// Closed, with a lease kept for the next open: when it was closed.
    pub fn cached_since(&self) -> Option<u64> {
        (self.opens == 0 && self.lease().is_some() && self.is_quiet()).then_some(self.last_used)
    }

    /// Nothing is known here that would be missed.
    pub fn is_forgettable(&self) -> bool {
        let tells_nothing = !self.lost && !self.is_doubtful();
        self.opens == 0
            && self.lease().is_none()
            && !self.holder.may_be_open()
            && tells_nothing
            && self.is_quiet()
    }

    fn is_quiet(&self) -> bool {
        self.shared == 0 && !self.exclusive && !self.is_flushing() && !self.holder.is_busy()
    }

    fn check_invariants(&self) {
        assert!(!(self.exclusive && self.shared > 0), "a file held alone and shared at once");
        let writes = self.lease() == Some(LeaseMode::Write);
        assert!(writes || !self.has_to_tell(), "changed without the write lease");
        assert!(self.write_end >= self.size, "size beyond every write");
    }
}

#[cfg(test)]
mod tests;
