//! Which syncs of a core were asked for, have run, and how long they took.
//!
//! Contract: no I/O and no clock. Whoever runs a sync says when it begins and ends.

use messenger::InlinePredictor;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A sync of a core, as it was or is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SyncSeen {
    /// When it began.
    pub began: Instant,
    /// `None`: it runs.
    pub ended: Option<Instant>,
    /// Files and directories that it had to deal with, the journal as one.
    pub files: usize,
    /// What all cores gave the disk between the beginning of the sync before it and its own.
    pub bytes: u64,
}

impl SyncSeen {
    /// How long it took, or has taken.
    pub fn took(&self, now: Instant) -> Duration {
        self.ended.unwrap_or(now).saturating_duration_since(self.began)
    }
}

/// What a sync has to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SyncWork {
    /// Files and directories, the journal as one.
    pub files: usize,
    /// It is the journal, and one file of it alone.
    pub is_journal_alone: bool,
    /// Bytes that the disk was given in all, by all cores.
    pub written: u64,
    /// Bytes that the journal was given in all.
    pub journalled: u64,
}

/// A sync of the journal alone that has no more to bring to the disk takes as long as the disk's
/// own delay, or nearly,
const SMALL_BYTES_MAX: u64 = 256 << 10;
/// if the disk was given no more than this meanwhile, by all cores.
const CALM_BYTES_MAX: u64 = 4 << 20;

/// By number.
#[derive(Debug, Default)]
pub(super) struct SyncState {
    /// One is to begin at the end of the turn.
    pub wanted: bool,
    /// It is to sync all changed files, too.
    pub all: bool,
    running: bool,
    begun: u64,
    done: u64,
    /// Files and journals that syncs have dealt with, counted by whoever runs them.
    steps: Arc<AtomicU64>,
    /// How many there were when it was looked last, and since when.
    looked: Option<(u64, Instant)>,
    /// The last two.
    seen: [Option<SyncSeen>; 2],
    /// What the disk had been given when the last one began.
    written: u64,
    /// What the journal had been given when the last one began.
    journalled: u64,
    /// The last one is, or was, small.
    was_small: bool,
    /// Of small ones.
    predictor: InlinePredictor,
}

impl SyncState {
    /// The number of the first sync that covers what has been taken until now.
    pub fn next(&self) -> u64 {
        self.begun + 1
    }

    pub fn is_running(&self) -> bool {
        self.running
    }

    /// Has the sync of this number ended?
    pub fn is_done(&self, number: u64) -> bool {
        self.done >= number
    }

    /// Is the next one to run on the core's own thread? A small one on a calm disk that was quick
    /// with the last ones.
    pub fn is_brief(&self, work: SyncWork) -> bool {
        self.is_small(work) && self.predictor.is_expected()
    }

    fn is_small(&self, work: SyncWork) -> bool {
        let is_little = work.journalled.saturating_sub(self.journalled) <= SMALL_BYTES_MAX;
        work.is_journal_alone
            && is_little
            && work.written.saturating_sub(self.written) <= CALM_BYTES_MAX
    }

    /// One begins; gives its number, and where its steps are counted.
    pub fn begin(&mut self, now: Instant, work: SyncWork) -> (u64, Arc<AtomicU64>) {
        assert!(!self.running, "two syncs of a core at once");
        (self.wanted, self.running) = (false, true);
        self.begun += 1;
        self.was_small = self.is_small(work);
        let bytes = work.written.saturating_sub(self.written);
        (self.written, self.journalled) = (work.written, work.journalled);
        self.seen =
            [self.seen[1], Some(SyncSeen { began: now, ended: None, files: work.files, bytes })];
        self.steps.fetch_add(1, Ordering::Relaxed);
        (self.begun, Arc::clone(&self.steps))
    }

    /// It has ended well.
    pub fn end(&mut self, now: Instant, number: u64) {
        self.done = number;
        self.stop(now);
        if let Some(last) = self.seen[1].filter(|_| self.was_small) {
            self.predictor.took(last.took(now));
        }
    }

    /// It met a full disk and is to be tried again. Those who wait for it wait for the next.
    pub fn end_full(&mut self, now: Instant, all: bool) {
        self.stop(now);
        (self.wanted, self.all) = (true, self.all | all);
        self.begun -= 1;
    }

    /// It has ended, somehow.
    pub fn stop(&mut self, now: Instant) {
        self.running = false;
        if let Some(last) = &mut self.seen[1] {
            last.ended = Some(now);
        }
    }

    /// The last two, the older one first.
    pub fn seen(&self) -> [Option<SyncSeen>; 2] {
        self.seen
    }

    /// For how long the sync that runs has not got further, as far as these looks can tell.
    pub fn stall(&mut self, now: Instant) -> Duration {
        if !self.running {
            self.looked = None;
            return Duration::ZERO;
        }
        let steps = self.steps.load(Ordering::Relaxed);
        match self.looked {
            Some((looked, since)) if looked == steps => now.duration_since(since),
            _ => {
                self.looked = Some((steps, now));
                Duration::ZERO
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(files: usize, written: u64) -> SyncWork {
        SyncWork { files, is_journal_alone: files == 1, written, journalled: written }
    }

    fn times() -> impl Fn(u64) -> Instant {
        let begin = Instant::now();
        move |seconds| begin + Duration::from_secs(seconds)
    }

    #[test]
    fn a_sync_stalls_while_it_ends_with_no_file() {
        let (mut sync, at) = (SyncState::default(), times());
        assert_eq!(sync.stall(at(0)), Duration::ZERO, "none runs");
        let (_, steps) = sync.begin(at(0), work(1, 0));
        assert_eq!(
            [sync.stall(at(1)), sync.stall(at(4))],
            [Duration::ZERO, Duration::from_secs(3)]
        );
        steps.fetch_add(1, Ordering::Relaxed);
        assert_eq!(
            [sync.stall(at(5)), sync.stall(at(7))],
            [Duration::ZERO, Duration::from_secs(2)]
        );
        sync.stop(at(8));
        assert_eq!(sync.stall(at(8)), Duration::ZERO);
        sync.begin(at(8), work(1, 0));
        assert_eq!(sync.stall(at(9)), Duration::ZERO, "another one");
    }

    #[test]
    fn the_last_two_are_remembered_with_what_they_had_to_do() {
        let (mut sync, at) = (SyncState::default(), times());
        assert_eq!(sync.seen(), [None; 2]);
        let (number, _) = sync.begin(at(0), work(1, 100));
        sync.end(at(1), number);
        assert!(sync.is_done(number) && !sync.is_done(number + 1));
        let (number, _) = sync.begin(at(2), work(7, 150));
        let [first, second] = sync.seen().map(|seen| seen.unwrap());
        assert_eq!(first, SyncSeen { began: at(0), ended: Some(at(1)), files: 1, bytes: 100 });
        assert_eq!(second, SyncSeen { began: at(2), ended: None, files: 7, bytes: 50 });
        assert_eq!([first.took(at(9)), second.took(at(9))], [1, 7].map(Duration::from_secs));
        sync.end_full(at(5), true);
        assert!(sync.wanted && sync.all && !sync.is_running());
        assert_eq!(sync.next(), number, "who waited for it waits for the next");
        assert_eq!(sync.seen()[1].unwrap().ended, Some(at(5)));
    }

    #[test]
    fn a_small_sync_is_brief_where_the_last_ones_were() {
        let (mut sync, begin) = (SyncState::default(), Instant::now());
        let mut run = |work: SyncWork, took: Duration| {
            let expected = sync.is_brief(work);
            let (number, _) = sync.begin(begin, work);
            sync.end(begin + took, number);
            expected
        };
        let (quick, slow) = (Duration::from_micros(90), Duration::from_millis(8));
        for n in 0..u64::from(InlinePredictor::ROW) {
            assert!(!run(work(1, n), quick), "too little is known of the disk");
        }
        assert!(run(work(1, 8192), quick));
        let large = 8192 + SMALL_BYTES_MAX + 1;
        assert!(!run(work(1, large), slow), "too much to bring to the disk");
        assert!(!run(work(3, large), slow), "files beside the journal");
        let others = SyncWork { journalled: large, ..work(1, large + CALM_BYTES_MAX + 1) };
        assert!(!run(others, slow), "others gave the disk much");
        let next = |n: u64| SyncWork { journalled: large, ..work(1, large + CALM_BYTES_MAX + n) };
        assert!(run(next(2), slow), "those said nothing of a small one on a calm disk");
        assert!(!run(next(3), quick), "the last one was slow");
    }
}
