//! Space for writes is promised by a disk before one is sent to it.
//!
//! Contract: no I/O, no clock. A session has at most [`SESSION_WINDOW_BYTES`] on its way to a core,
//! in the unit of [`space_taken`], and sends only while the core's last word was that there is
//! space. A core says so only while it has beside that space for a whole window of every session of
//! the map, twice, as a write takes it in the journal and then in its fragment; for all that its
//! disk's cores have taken and not yet put in place; and for the journals themselves. So what a
//! session has sent finds its place, whoever else sent what meanwhile, and however old the word
//! was.
//!
//! Cores of one disk share counters: what one takes is at once no space for the others. Daemons
//! that share a file system do not.

mod usage;

use crate::fullness::FullRatios;
use protocol::monitor::Fullness;
use protocol::shard::SESSION_WINDOW_BYTES;
use std::sync::Arc;
use usage::{CoreUse, Usage};

/// What the cores of one disk do to it.
#[derive(Debug)]
pub struct DiskUse {
    usage: Usage,
}

impl DiskUse {
    /// Of a disk that so many cores share; at least one.
    pub fn new(cores: u16) -> Arc<Self> {
        Arc::new(Self { usage: Usage::new((0..cores.max(1)).map(|_| CoreUse::default())) })
    }
}

/// What a disk had left when it was asked.
#[derive(Clone, Copy, Debug, Default)]
struct LookUp {
    usable: u64,
    free: u64,
    /// [`Usage::written`] before it was asked.
    written: u64,
    /// [`Usage::unplaced`] then.
    unplaced: u64,
}

/// What one core knows of the space on its disk.
#[derive(Debug)]
pub struct DiskSpace {
    disk: Arc<DiskUse>,
    core: usize,
    /// Bytes that each core's journal may still need for itself.
    journal_bytes: u64,
    sessions: u64,
    looked_up: LookUp,
}

impl DiskSpace {
    /// Of the core with this number, which `disk` must have; nothing is free until
    /// [`DiskSpace::look_up`].
    pub fn new(disk: Arc<DiskUse>, core: u16, journal_bytes: u64) -> Self {
        let core = usize::from(core);
        assert!(
            core < disk.usage.cores(),
            "a disk of {} cores has no core {core}",
            disk.usage.cores()
        );
        Self { disk, core, journal_bytes, sessions: 0, looked_up: LookUp::default() }
    }

    /// The map has so many sessions that may have writes on their way.
    pub fn set_sessions(&mut self, sessions: u64) {
        self.sessions = sessions;
    }

    /// Bytes went to the journal of this core, which a fragment will need `placed` more for.
    pub fn journalled(&self, bytes: u64, placed: u64) {
        self.disk.usage.journalled(self.core, bytes, placed);
    }

    /// Bytes went to fragments of this core.
    pub fn wrote(&self, bytes: u64) {
        self.disk.usage.wrote(self.core, bytes);
    }

    /// Bytes that all cores gave the disk since the start.
    pub(crate) fn disk_written(&self) -> u64 {
        self.disk.usage.written()
    }

    /// Asks the disk, by `ask`, for its bytes that can be used and those that are free. `unplaced`:
    /// what records of this core still need in fragments.
    ///
    /// # Errors
    /// Those of `ask`; then nothing has changed.
    pub fn look_up<E>(
        &mut self,
        unplaced: u64,
        ask: impl FnOnce() -> Result<(u64, u64), E>,
    ) -> Result<(), E> {
        let written = self.disk.usage.written();
        let (usable, free) = ask()?;
        self.disk.usage.placed(self.core, unplaced);
        self.looked_up = LookUp { usable, free, written, unplaced: self.disk.usage.unplaced() };
        Ok(())
    }

    /// Bytes that the disk surely takes before it counts as full, whatever was taken since it was
    /// asked. 0: no more writes.
    pub fn free(&self, ratios: FullRatios) -> u64 {
        self.after(self.disk.usage.taken_since(self.looked_up.written), ratios)
    }

    /// Takes so many bytes of the disk, if it has them beside what is promised. Of two cores that
    /// take the last ones at the same time both may be refused, and never both have them.
    pub fn take(&self, bytes: u64, ratios: FullRatios) -> bool {
        let fits = |taken: u64| self.looked_up.free >= self.kept(ratios).saturating_add(taken);
        let before = self.disk.usage.taken_since(self.looked_up.written);
        if !fits(before.saturating_add(bytes)) {
            return false;
        }
        self.wrote(bytes);
        fits(self.disk.usage.taken_since(self.looked_up.written))
    }

    /// The same when it was asked: what people are told, which writes under way do not make waver.
    pub fn left(&self, ratios: FullRatios) -> u64 {
        self.after(self.looked_up.unplaced, ratios)
    }

    fn after(&self, taken: u64, ratios: FullRatios) -> u64 {
        self.looked_up.free.saturating_sub(self.kept(ratios)).saturating_sub(taken)
    }

    /// Bytes that no write may have: those beyond the full ratio, or what is promised.
    fn kept(&self, ratios: FullRatios) -> u64 {
        let kept = (self.looked_up.usable as f64 * (1.0 - ratios.full)) as u64;
        let windows = self.sessions * 2 * SESSION_WINDOW_BYTES;
        let promised = self.disk.usage.cores() as u64 * (self.journal_bytes + windows);
        kept.max(promised)
    }

    /// How full the disk was by these ratios when it was asked.
    pub fn fullness(&self, ratios: FullRatios) -> Fullness {
        ratios.fullness(self.looked_up.usable, self.left(ratios))
    }
}

#[cfg(test)]
mod tests;
