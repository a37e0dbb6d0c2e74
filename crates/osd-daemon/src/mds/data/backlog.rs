//! Files that wait for work on their data, and those whose work cannot go on.
//!
//! Contract: pure. What fails is put aside and tried again after a pause that doubles; only some of
//! the lanes do so, and others go on with what has not failed yet: no file holds up another. How
//! many files are known is bounded; the owner keeps the rest.

use protocol::Gfid;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

/// Files known at a time: some MiB, and enough for a round also where most of them have failed.
const KNOWN_MAX: usize = 1 << 16;
/// Files that have failed, being tried again at a time: fewer than the lanes.
pub(super) const RETRIES_MAX: usize = 16;
/// Pause before the second try; each further one takes twice as long.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// The longest pause: most failures are PGs that wait for an OSD, and go on soon after its return.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(8);
/// Work that fails for so long is stuck, and told to the operator. A storage daemon that is
/// restarted takes less.
const STUCK_AFTER: Duration = Duration::from_secs(20);

/// A piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Job<E> {
    /// What is to be done.
    pub entry: E,
    /// When it first failed, if it has.
    pub failing_since: Option<Instant>,
    tries: u32,
}

/// Work that was put aside.
#[derive(Debug)]
struct Aside<E> {
    job: Job<E>,
    why: String,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Backlog<E> {
    fresh: VecDeque<E>,
    /// By the time of the next try.
    aside: BTreeMap<(Instant, Gfid), Aside<E>>,
    /// All of them, those being worked on as well: the owner names a file again until it is done.
    known: HashSet<Gfid>,
    /// Behind this one the owner is asked next.
    after: Option<Gfid>,
    /// Being tried again.
    retries: usize,
    gfid_of: fn(&E) -> Gfid,
}

impl<E: Copy> Backlog<E> {
    /// An empty one.
    pub fn new(gfid_of: fn(&E) -> Gfid) -> Self {
        let (fresh, aside, known) = (VecDeque::new(), BTreeMap::new(), HashSet::new());
        Self { fresh, aside, known, after: None, retries: 0, gfid_of }
    }

    /// Behind which file the owner is to be asked for more; `None`: not now.
    pub fn wants(&self) -> Option<Option<Gfid>> {
        (self.fresh.is_empty() && self.known.len() < KNOWN_MAX).then_some(self.after)
    }

    /// What the owner named; fewer than `asked`: it has no more behind them.
    pub fn add(&mut self, entries: Vec<E>, asked: usize) {
        self.after = entries.last().map(self.gfid_of).filter(|_| entries.len() >= asked);
        let fresh = entries.into_iter().filter(|entry| self.known.insert((self.gfid_of)(entry)));
        self.fresh.extend(fresh);
    }

    /// How many pieces of work can begin now.
    pub fn ready(&self, now: Instant) -> usize {
        let due = self
            .aside
            .range(..=(now, Gfid::new(u128::MAX)))
            .take(RETRIES_MAX - self.retries)
            .count();
        self.fresh.len() + due
    }

    /// The next piece of work.
    pub fn next(&mut self, now: Instant) -> Option<Job<E>> {
        let due = self.aside.first_key_value().is_some_and(|((at, _), _)| *at <= now);
        if due && self.retries < RETRIES_MAX {
            self.retries += 1;
            return self.aside.pop_first().map(|(_, aside)| aside.job);
        }
        let entry = self.fresh.pop_front()?;
        Some(Job { entry, failing_since: None, tries: 0 })
    }

    /// It is done, and the owner was told.
    pub fn done(&mut self, job: &Job<E>) {
        self.ended(job);
        self.known.remove(&(self.gfid_of)(&job.entry));
    }

    /// It failed. True for the first time.
    pub fn failed(&mut self, job: Job<E>, now: Instant, why: String) -> bool {
        self.ended(&job);
        let pause = RETRY_AFTER.saturating_mul(1 << job.tries.min(8)).min(RETRY_AFTER_MAX);
        let again =
            Job { failing_since: job.failing_since.or(Some(now)), tries: job.tries + 1, ..job };
        self.aside.insert((now + pause, (self.gfid_of)(&job.entry)), Aside { job: again, why });
        job.tries == 0
    }

    fn ended(&mut self, job: &Job<E>) {
        if job.failing_since.is_some() {
            self.retries -= 1;
        }
    }

    /// How many files are stuck; of the one that is so for the longest time, how long and why.
    pub fn stuck(&self, now: Instant) -> (u64, Option<(Duration, &str)>) {
        let failing = |aside: &Aside<E>| {
            now.saturating_duration_since(aside.job.failing_since.unwrap_or(now))
        };
        let stuck = || self.aside.values().filter(|aside| failing(aside) >= STUCK_AFTER);
        // Those that are tried at this moment are as stuck as before.
        let oldest = stuck()
            .max_by_key(|aside| failing(aside))
            .map(|aside| (failing(aside), aside.why.as_str()));
        let tried = if oldest.is_some() { self.retries } else { 0 };
        ((stuck().count() + tried) as u64, oldest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(number: u64) -> Gfid {
        Gfid::of_inode(number)
    }

    fn backlog(files: std::ops::Range<u64>) -> Backlog<Gfid> {
        let mut backlog = Backlog::new(|gfid| *gfid);
        let asked = (files.end - files.start) as usize + 1;
        backlog.add(files.map(file).collect(), asked);
        backlog
    }

    #[test]
    fn what_fails_holds_up_nobody_and_is_tried_again() {
        let (mut backlog, begin) = (backlog(0..100), Instant::now());
        for _ in 0..50 {
            let job = backlog.next(begin).expect("fresh");
            assert!(backlog.failed(job, begin, "no OSD".into()), "the first time");
        }
        let later = begin + Duration::from_secs(2);
        let jobs: Vec<_> = std::iter::from_fn(|| backlog.next(later)).collect();
        let retries = jobs.iter().filter(|job| job.failing_since.is_some()).count();
        assert_eq!(
            (jobs.len(), retries),
            (50 + RETRIES_MAX, RETRIES_MAX),
            "all that is fresh, and some again"
        );
        assert_eq!(backlog.ready(later), 0);
        let again = jobs.iter().find(|job| job.failing_since.is_some()).expect("some");
        assert!(!backlog.failed(*again, later, "no OSD".into()));
        assert_eq!(backlog.ready(later), 1, "another one");
    }

    #[test]
    fn pauses_grow_to_a_limit_and_what_is_stuck_is_told() {
        let (mut backlog, begin) = (backlog(1..2), Instant::now());
        let mut now = begin;
        for _ in 0..70 {
            let job = backlog.next(now).expect("due");
            backlog.failed(job, now, "no OSD".into());
            assert_eq!(backlog.stuck(now).0, u64::from(now >= begin + STUCK_AFTER));
            assert!(backlog.next(now + RETRY_AFTER - Duration::from_millis(1)).is_none());
            now += RETRY_AFTER_MAX;
        }
        let (count, oldest) = backlog.stuck(now);
        assert_eq!((count, oldest.map(|(_, why)| why)), (1, Some("no OSD")));
        let job = backlog.next(now).expect("due");
        backlog.done(&job);
        assert_eq!((backlog.stuck(now), backlog.ready(now)), ((0, None), 0));
    }

    #[test]
    fn the_owner_is_asked_behind_what_is_known_and_from_the_beginning_again() {
        let mut backlog = Backlog::new(|gfid: &Gfid| *gfid);
        assert_eq!(backlog.wants(), Some(None));
        backlog.add(vec![file(1), file(2)], 2);
        assert_eq!(backlog.wants(), None, "some wait");
        let now = Instant::now();
        while let Some(job) = backlog.next(now) {
            backlog.failed(job, now, String::new());
        }
        assert_eq!(backlog.wants(), Some(Some(file(2))));
        backlog.add(vec![file(3)], 2);
        let job = backlog.next(now).expect("a new one");
        backlog.done(&job);
        assert_eq!(backlog.wants(), Some(None));
        backlog.add(vec![file(1), file(2)], 2);
        assert_eq!(backlog.ready(now), 0, "those are known");
    }

    #[test]
    fn not_more_than_so_many_are_known() {
        let mut backlog = Backlog::new(|gfid: &Gfid| *gfid);
        let now = Instant::now();
        backlog.add((0..KNOWN_MAX as u64).map(file).collect(), KNOWN_MAX);
        while let Some(job) = backlog.next(now) {
            backlog.failed(job, now, String::new());
        }
        assert_eq!(backlog.wants(), None);
    }
}
