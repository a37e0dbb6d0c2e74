//! Small writes that go on where the last one ended, at the end of the file, are answered from here
//! and sent together.
//!
//! Contract: part of the pure machine. While something is gathered nobody is inside the file but
//! writes that were answered, so nobody sees the size that it has moved before the data; whoever
//! enters has it sent first. What was put here counts as written: it is sent, or the file has lost
//! something.

use super::{InodeState, Tail};
use crate::objecter::WriterHint;
use bytes::Bytes;
use protocol::namespace::{LeaseMode, Timestamp};

/// The largest write that is gathered, in bytes: what larger ones save is little beside what they
/// cost.
pub const SMALL_BYTES_MAX: u64 = 4096;

#[derive(Debug, Default, PartialEq, Eq)]
enum Phase {
    /// Nothing is gathered.
    #[default]
    Idle,
    /// Room for it is waited for; nothing is put here yet.
    Starting,
    /// Writes may be put here.
    Open,
    /// It is to be sent.
    Ending,
    /// It is on its way to the shards' queues.
    Sending,
    /// The shards have it, or will: it is in order with everything that comes later.
    Sent,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    phase: Phase,
    /// Where it begins in the file, and how many bytes it may become.
    start: u64,
    bytes_max: usize,
    data: Vec<u8>,
    zero_from: u64,
    /// Where the last small write ended.
    last_end: Option<u64>,
}

impl InodeState {
    /// A write was answered early. True if the next ones shall be gathered: it went on where a
    /// small one before it ended. Then `gathering_begins` or `gathering_over` follows.
    pub fn gathers_after(&mut self, offset: u64, len: u64) -> bool {
        let end = offset + len;
        let is_small = len <= SMALL_BYTES_MAX;
        let goes_on = self.gathering.last_end.replace(end) == Some(offset);
        let starts =
            is_small && goes_on && self.gathering.phase == Phase::Idle && self.ends_at(end);
        if !is_small {
            self.gathering.last_end = None;
        }
        if starts {
            self.gathering.phase = Phase::Starting;
            self.gathering.start = end;
        }
        starts
    }

    /// Does the file end here, with nothing under way that changes that, and zeros behind it?
    fn ends_at(&self, end: u64) -> bool {
        self.size == end && self.write_end == end && !self.cutting && self.gap(end).is_none()
    }

    /// There is room for so many bytes: writes may be put here. False if something came in between.
    pub fn gathering_begins(&mut self, bytes_max: usize) -> bool {
        let start = self.gathering.start;
        let begins =
            self.gathering.phase == Phase::Starting && self.ends_at(start) && self.may_gather();
        if begins {
            let zero_from = if self.tail == Tail::Clean { start } else { u64::MAX };
            let gathering = &mut self.gathering;
            gathering.phase = Phase::Open;
            gathering.bytes_max = bytes_max;
            gathering.zero_from = zero_from;
            gathering.data.clear();
        }
        begins
    }

    /// Is nobody inside, or about to be alone, who must see what is written?
    fn may_gather(&self) -> bool {
        let is_alone =
            !self.exclusive && self.exclusive_waiting == 0 && self.shared == self.staying;
        is_alone && !self.returning && self.lease() == Some(LeaseMode::Write)
    }

    /// Puts a write here, if that is possible; then it is done, and may be answered. `page_bytes`
    /// as for `stale_tail`; `pages`: the kernel has seen to capabilities. The caller has asked
    /// `permits`.
    pub fn gather(
        &mut self,
        offset: u64,
        data: &[u8],
        now: Timestamp,
        page_bytes: u64,
        pages: bool,
    ) -> bool {
        let end = offset + data.len() as u64;
        let gathering = &self.gathering;
        let fits = gathering.phase == Phase::Open
            && offset == gathering.start + gathering.data.len() as u64
            && !data.is_empty()
            && data.len() as u64 <= SMALL_BYTES_MAX
            && gathering.data.len() + data.len() <= gathering.bytes_max;
        let keeps_rights = self.set_ids.is_none() && (pages || self.has_no_capability());
        let is_plain =
            self.stale_tail(offset, page_bytes).is_none() && !self.habit.is_next_followed();
        if !fits || !self.may_gather() || !keeps_rights || !is_plain {
            return false;
        }
        self.habit.write_begins();
        self.holder.write_begins();
        self.gathering.data.extend_from_slice(data);
        self.gathering.last_end = Some(end);
        self.write_end = self.write_end.max(end);
        self.zeroed(end);
        self.wrote(end, now);
        true
    }

    /// Whoever comes later is to find what was gathered with the shards: true once that is so. If
    /// not, it is to be sent, and the caller waits for a change.
    pub fn is_gathered(&mut self) -> bool {
        match self.gathering.phase {
            Phase::Idle | Phase::Starting | Phase::Sent => true,
            Phase::Open => {
                self.gathering.phase = Phase::Ending;
                false
            }
            Phase::Ending | Phase::Sending => false,
        }
    }

    /// Does somebody wait for what was gathered?
    pub fn gathering_ends(&self) -> bool {
        self.gathering.phase != Phase::Open || self.exclusive_waiting > 0
    }

    /// What was gathered, where it begins, and what is known of the file; nothing is put here any
    /// more. `None` if there is nothing.
    pub fn gathering_taken(&mut self) -> Option<(Bytes, WriterHint)> {
        let data = std::mem::take(&mut self.gathering.data);
        self.gathering.phase = if data.is_empty() { Phase::Sent } else { Phase::Sending };
        let hint = WriterHint {
            zero_from: self.gathering.zero_from,
            size_after: self.size,
            grant: Some(self.token()),
        };
        (!data.is_empty()).then(|| (Bytes::from(data), hint))
    }

    /// What was taken is sent.
    pub fn gathering_sent(&mut self) {
        self.gathering.phase = Phase::Sent;
    }

    /// The end, also of one that did not begin. What was gathered and not sent is lost.
    pub fn gathering_over(&mut self) {
        let phase = std::mem::take(&mut self.gathering.phase);
        let data = std::mem::take(&mut self.gathering.data);
        if phase == Phase::Sending || !data.is_empty() {
            self.mark_lost();
        }
    }
}
