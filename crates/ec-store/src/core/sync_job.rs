//! One sync of a core: its journal, and files beside it, by one thread or by several at once.
//!
//! Contract: `Send`, touches nothing of the core. Several threads give the disk several flushes at
//! a time, which it ends together. Journal and files may become durable in any order (Rule:
//! DirectSync): a record counts as durable when all of this is, and a restart that finds a record
//! without its bytes cuts the journal there. Names are synced last, when the journal of the file
//! system mostly has them already.

use crate::fragment::{self, FragmentError, FragmentFile};
use crate::journal::{JournalError, Lsn, SyncHandle};
use crate::medium::Dir;
use messenger::Worker;
use protocol::PgId;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Files behind the one that is waited for which the disk may have already.
const SYNCS_AHEAD: usize = 32;

/// What a sync must sync beside the journal.
#[derive(Clone, Debug, Default)]
pub(super) struct SyncFiles {
    pub files: Vec<Arc<FragmentFile>>,
    pub dirs: Vec<(PgId, Dir)>,
}

/// Why a sync did not happen.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum SyncFailure {
    /// The disk is full: nothing is lost.
    Full,
    /// What was written may be lost.
    Lost(String),
}

impl From<FragmentError> for SyncFailure {
    fn from(error: FragmentError) -> Self {
        if error.is_full() { Self::Full } else { Self::Lost(error.to_string()) }
    }
}

impl From<JournalError> for SyncFailure {
    fn from(error: JournalError) -> Self {
        Self::Lost(error.to_string())
    }
}

/// What became of a sync: how far the journal is durable; or what it was to sync beside it, some of
/// which may be.
pub(super) type SyncResult = Result<Lsn, (SyncFailure, SyncFiles)>;

/// See the module.
#[derive(Debug)]
pub(super) struct SyncJob {
    journal: SyncHandle,
    beside: SyncFiles,
    /// Journal and files that are dealt with, for whoever watches.
    steps: Arc<AtomicU64>,
    /// What is to be taken up next: the journal, then the files.
    next: AtomicUsize,
    /// Threads that have not ended; the last one syncs the names.
    lanes: AtomicUsize,
    has_failed: AtomicBool,
}

impl SyncJob {
    pub(super) fn new(journal: SyncHandle, beside: SyncFiles, steps: Arc<AtomicU64>) -> Self {
        let (next, lanes, has_failed) = Default::default();
        Self { journal, beside, steps, next, lanes, has_failed }
    }

    /// On this thread; waits for the disk.
    pub(super) fn run(mut self) -> SyncResult {
        *self.lanes.get_mut() = 1;
        self.result(self.lane())
    }

    /// On I/O threads: so many at most, at least one, and no more than there are things to sync. It
    /// starts at once, whether or not the future is polled.
    pub(super) fn run_aside(
        mut self,
        worker: &Worker,
        lanes_max: usize,
    ) -> impl Future<Output = SyncResult> + use<> {
        let lanes = lanes_max.clamp(1, 1 + self.beside.files.len());
        *self.lanes.get_mut() = lanes;
        let job = Arc::new(self);
        let begin = |job: Arc<Self>| worker.blocking(move || job.lane());
        let begun: Vec<_> = (0..lanes).map(|_| begin(Arc::clone(&job))).collect();
        async move {
            let mut result = Ok(());
            for lane in begun {
                let ended =
                    lane.await.unwrap_or_else(|error| Err(SyncFailure::Lost(error.to_string())));
                result = worse(result, ended);
            }
            job.result(result)
        }
    }

    fn result(&self, ended: Result<(), SyncFailure>) -> SyncResult {
        ended.map(|()| self.journal.upto()).map_err(|failure| (failure, self.beside.clone()))
    }

    /// What one thread does.
    fn lane(&self) -> Result<(), SyncFailure> {
        let synced = self.sync_contents();
        if synced.is_err() {
            self.has_failed.store(true, Ordering::Relaxed);
        }
        // Whoever comes last sees what all others have done, and whether they failed.
        let is_last = self.lanes.fetch_sub(1, Ordering::AcqRel) == 1;
        if is_last && !self.has_failed.load(Ordering::Relaxed) {
            let dirs = self.beside.dirs.iter().map(|(_, dir)| dir);
            fragment::sync_names(self.beside.files.iter().map(|file| &**file), dirs)?;
            self.step();
        }
        synced
    }

    /// Takes one thing after the other until nothing is left, or something has failed.
    fn sync_contents(&self) -> Result<(), SyncFailure> {
        while !self.has_failed.load(Ordering::Relaxed) {
            match self.next.fetch_add(1, Ordering::Relaxed) {
                0 => _ = self.journal.run()?,
                taken => {
                    let Some(file) = self.beside.files.get(taken - 1) else { break };
                    self.begin_behind(taken - 1);
                    file.sync_contents()?;
                }
            }
            self.step();
        }
        Ok(())
    }

    /// This file is waited for: the disk then has those behind it already.
    fn begin_behind(&self, at: usize) {
        let first = if at == 0 { 1 } else { at + SYNCS_AHEAD };
        let behind = self.beside.files.iter().take(at + SYNCS_AHEAD + 1).skip(first);
        behind.for_each(|file| file.begin_sync());
    }

    fn step(&self) {
        self.steps.fetch_add(1, Ordering::Relaxed);
    }
}

/// What is lost is worse than a full disk, after which everything is tried again.
pub(super) fn worse(
    one: Result<(), SyncFailure>,
    other: Result<(), SyncFailure>,
) -> Result<(), SyncFailure> {
    match (one, other) {
        (Err(SyncFailure::Full), lost @ Err(SyncFailure::Lost(_))) => lost,
        (Ok(()), other) => other,
        (one, _) => one,
    }
}
