//! A mutex that knows how it is used, and the table in which all such mutexes of a process part are
//! listed.
//!
//! Contract: a [`LockTable`] belongs to a runtime (a role of a daemon, a client); there is no
//! global one. A [`ContentionMutex`] is listed from its making to its drop; what it counted stays
//! in the sum of its name, so that sums never fall.
//!
//! Cost: counters are written by the holder of the lock, with plain loads and stores. No clock is
//! read but for a wait, and for one acquisition in [`SAMPLE_EVERY`], whose time until unlock is
//! measured. The time held is therefore an estimate: the mean of the samples times the number of
//! acquisitions. The period is prime, so that code that takes the lock in turns is not sampled at
//! the same turn for ever; what is held long but very seldom can still be missed.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use slab::Slab;

/// One acquisition in this many is measured until it ends. At 251 the two clock reads (about 50 ns)
/// come to 0.2 ns each.
pub const SAMPLE_EVERY: u64 = 251;

/// How the locks of one name were used since the table was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockStats {
    /// Name given at construction.
    pub name: Cow<'static, str>,
    /// Locks of the name that exist now.
    pub instances: u64,
    /// How often they were taken.
    pub acquisitions: u64,
    /// How often they were found taken, so that the taker had to wait.
    pub contended: u64,
    /// Total time waited, in nanoseconds.
    pub wait_ns: u64,
    /// Longest wait, in nanoseconds.
    pub wait_max_ns: u64,
    /// Acquisitions whose time held was measured: one in [`SAMPLE_EVERY`].
    pub held_samples: u64,
    /// Time held in those, in nanoseconds.
    pub held_sampled_ns: u64,
}

impl LockStats {
    /// Share of acquisitions that found the lock taken, 0 to 1.
    pub fn contended_share(&self) -> f64 {
        ratio(self.contended, self.acquisitions)
    }

    /// Mean wait of those that waited, in nanoseconds; 0 if none did.
    pub fn wait_avg_ns(&self) -> f64 {
        ratio(self.wait_ns, self.contended)
    }

    /// Mean time held, in nanoseconds, by sample; `None` without a sample.
    pub fn held_avg_ns(&self) -> Option<f64> {
        (self.held_samples > 0).then(|| ratio(self.held_sampled_ns, self.held_samples))
    }

    /// Total time held, in nanoseconds: an estimate from the samples; 0 without one.
    pub fn held_ns(&self) -> f64 {
        self.held_avg_ns().unwrap_or(0.0) * self.acquisitions as f64
    }

    /// What happened between an earlier reading and this one. The longest wait stays the longest
    /// since the start.
    pub fn since(&self, earlier: &LockStats) -> LockStats {
        LockStats {
            name: self.name.clone(),
            instances: self.instances,
            acquisitions: self.acquisitions.saturating_sub(earlier.acquisitions),
            contended: self.contended.saturating_sub(earlier.contended),
            wait_ns: self.wait_ns.saturating_sub(earlier.wait_ns),
            wait_max_ns: self.wait_max_ns,
            held_samples: self.held_samples.saturating_sub(earlier.held_samples),
            held_sampled_ns: self.held_sampled_ns.saturating_sub(earlier.held_sampled_ns),
        }
    }

    fn add(&mut self, counters: &Counters) {
        self.acquisitions += counters.acquisitions.load(Relaxed);
        self.contended += counters.contended.load(Relaxed);
        self.wait_ns += counters.wait_ns.load(Relaxed);
        self.wait_max_ns = self.wait_max_ns.max(counters.wait_max_ns.load(Relaxed));
        self.held_samples += counters.held_samples.load(Relaxed);
        self.held_sampled_ns += counters.held_sampled_ns.load(Relaxed);
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// Counters of one lock; only its holder writes them.
#[derive(Debug, Default)]
struct Counters {
    acquisitions: AtomicU64,
    /// The value of `acquisitions` at which the next sample is taken.
    next_sample: AtomicU64,
    contended: AtomicU64,
    wait_ns: AtomicU64,
    wait_max_ns: AtomicU64,
    held_samples: AtomicU64,
    held_sampled_ns: AtomicU64,
}

/// Adds without a locked instruction: callers hold the mutex, so there is one writer at a time.
fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(by), Relaxed);
}

fn nanos_since(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// The locks of one name.
#[derive(Debug)]
struct Family {
    name: &'static str,
    // A bare lock: it guards the table itself, and is taken when locks come and go only.
    members: parking_lot::Mutex<Members>,
}

#[derive(Debug, Default)]
struct Members {
    live: Slab<Arc<Counters>>,
    /// Sums of those that are gone.
    retired: LockStats,
    /// Locks made so far, those gone included.
    made: u64,
}

impl Family {
    fn stats(&self) -> LockStats {
        let members = self.members.lock();
        let mut stats = members.retired.clone();
        stats.name = Cow::Borrowed(self.name);
        stats.instances = members.live.len() as u64;
        members.live.iter().for_each(|(_, counters)| stats.add(counters));
        stats
    }
}

// A bare lock, as that of a family.
type Families = parking_lot::Mutex<BTreeMap<&'static str, Arc<Family>>>;

/// Lists the [`ContentionMutex`]es that were made with it. Clones are the same table.
#[derive(Clone, Debug)]
pub struct LockTable {
    /// `None`: nothing is counted.
    families: Option<Arc<Families>>,
}

impl Default for LockTable {
    fn default() -> LockTable {
        LockTable::new(true)
    }
}

impl LockTable {
    /// An empty table. Locks made with one that is not `enabled` count nothing, and are not listed:
    /// only to measure what counting costs.
    pub fn new(enabled: bool) -> LockTable {
        LockTable { families: enabled.then(Arc::default) }
    }

    /// How the locks of each name were used, in the order of names.
    pub fn stats(&self) -> Vec<LockStats> {
        let Some(families) = &self.families else { return Vec::new() };
        let families: Vec<Arc<Family>> = families.lock().values().cloned().collect();
        families.iter().map(|family| family.stats()).collect()
    }

    fn register(&self, name: &'static str) -> Option<Registration> {
        let mut families = self.families.as_ref()?.lock();
        let make = || Arc::new(Family { name, members: parking_lot::Mutex::default() });
        let family = Arc::clone(families.entry(name).or_insert_with(make));
        drop(families);
        let counters = Arc::new(Counters::default());
        let mut members = family.members.lock();
        // Each lock of a name begins at another place of the period: first acquisitions are not
        // measured more than others.
        counters.next_sample.store(members.made * 97 % SAMPLE_EVERY + 1, Relaxed);
        members.made += 1;
        let slot = members.live.insert(Arc::clone(&counters));
        drop(members);
        Some(Registration { counters, family, slot })
    }
}

/// A lock's place in its table.
#[derive(Debug)]
struct Registration {
    counters: Arc<Counters>,
    family: Arc<Family>,
    slot: usize,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut members = self.family.members.lock();
        members.live.remove(self.slot);
        members.retired.add(&self.counters);
    }
}

/// A named mutex that counts how often it is taken and found taken, times the waits, and by sample
/// the time held.
#[derive(Debug)]
pub struct ContentionMutex<T> {
    inner: parking_lot::Mutex<T>,
    listed: Option<Registration>,
}

impl<T> ContentionMutex<T> {
    /// A mutex that `table` lists under `name`, together with all others of that name.
    pub fn new(table: &LockTable, name: &'static str, value: T) -> ContentionMutex<T> {
        ContentionMutex { inner: parking_lot::Mutex::new(value), listed: table.register(name) }
    }

    /// Takes the lock, waiting if it must.
    pub fn lock(&self) -> ContentionGuard<'_, T> {
        let Some(listed) = &self.listed else {
            return ContentionGuard { guard: self.inner.lock(), sample: None };
        };
        let guard = match self.inner.try_lock() {
            Some(guard) => guard,
            None => self.lock_contended(&listed.counters),
        };
        ContentionGuard { guard, sample: count(&listed.counters) }
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<ContentionGuard<'_, T>> {
        let guard = self.inner.try_lock()?;
        let sample = self.listed.as_ref().and_then(|listed| count(&listed.counters));
        Some(ContentionGuard { guard, sample })
    }

    /// What it protects, without locking: nobody else has it.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }

    /// Gives back what it protected.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }

    /// The counters so far; zero and without a name if its table counts nothing.
    pub fn stats(&self) -> LockStats {
        let Some(listed) = &self.listed else { return LockStats::default() };
        let mut stats = LockStats {
            name: Cow::Borrowed(listed.family.name),
            instances: 1,
            ..LockStats::default()
        };
        stats.add(&listed.counters);
        stats
    }

    #[cold]
    fn lock_contended(&self, counters: &Counters) -> parking_lot::MutexGuard<'_, T> {
        let start = Instant::now();
        let guard = self.inner.lock();
        let waited = nanos_since(start);
        bump(&counters.contended, 1);
        bump(&counters.wait_ns, waited);
        counters.wait_max_ns.store(counters.wait_max_ns.load(Relaxed).max(waited), Relaxed);
        guard
    }
}

/// Counts an acquisition; begins a sample if it is one's turn. The caller holds the lock.
#[inline]
fn count(counters: &Counters) -> Option<Sample<'_>> {
    let acquisitions = counters.acquisitions.load(Relaxed).wrapping_add(1);
    counters.acquisitions.store(acquisitions, Relaxed);
    (acquisitions == counters.next_sample.load(Relaxed))
        .then(|| Sample::begin(counters, acquisitions))
}

/// An acquisition whose time held is measured.
#[derive(Debug)]
struct Sample<'a> {
    counters: &'a Counters,
    since: Instant,
}

impl Sample<'_> {
    #[cold]
    fn begin(counters: &Counters, acquisitions: u64) -> Sample<'_> {
        counters.next_sample.store(acquisitions.wrapping_add(SAMPLE_EVERY), Relaxed);
        Sample { counters, since: Instant::now() }
    }

    #[cold]
    fn end(&self) {
        bump(&self.counters.held_samples, 1);
        bump(&self.counters.held_sampled_ns, nanos_since(self.since));
    }
}

/// Access to what a [`ContentionMutex`] protects.
#[derive(Debug)]
pub struct ContentionGuard<'a, T> {
    guard: parking_lot::MutexGuard<'a, T>,
    sample: Option<Sample<'a>>,
}

impl<T> ContentionGuard<'_, T> {
    /// Lets go of the lock until `condition` is notified; false if the time came first. Others may
    /// have had the lock in either case. The time waited counts neither as held nor as contended.
    pub(crate) fn wait_until(&mut self, condition: &parking_lot::Condvar, until: Instant) -> bool {
        if let Some(sample) = self.sample.take() {
            sample.end();
        }
        !condition.wait_until(&mut self.guard, until).timed_out()
    }
}

impl<T> Drop for ContentionGuard<'_, T> {
    fn drop(&mut self) {
        // Before the lock itself is given back: counters are the holder's to write.
        if let Some(sample) = &self.sample {
            sample.end();
        }
    }
}

impl<T> Deref for ContentionGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for ContentionGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_waits_count_as_contended() {
        let table = LockTable::default();
        let mutex = ContentionMutex::new(&table, "test", 1);
        *mutex.lock() += 1;
        let stats = mutex.stats();
        assert_eq!(
            (&*stats.name, stats.acquisitions, stats.contended, stats.wait_ns),
            ("test", 1, 0, 0)
        );
        assert!(mutex.try_lock().is_some());
        std::thread::scope(|scope| {
            let guard = mutex.lock();
            assert!(mutex.try_lock().is_none());
            let waiter = scope.spawn(|| *mutex.lock());
            drop(guard);
            assert_eq!(waiter.join().expect("no panic"), 2);
        });
        let stats = mutex.stats();
        assert_eq!(stats.acquisitions, 4, "a try_lock that failed took nothing");
        assert!(stats.contended <= 1, "{stats:?}");
    }

    #[test]
    fn a_wait_is_counted_and_timed() {
        let table = LockTable::default();
        let mutex = ContentionMutex::new(&table, "test", ());
        // Nobody can see that a thread waits; so it is tried until one has.
        while mutex.stats().contended == 0 {
            std::thread::scope(|scope| {
                let guard = mutex.lock();
                let waiter = scope.spawn(|| drop(mutex.lock()));
                std::thread::sleep(std::time::Duration::from_millis(1));
                drop(guard);
                waiter.join().expect("no panic");
            });
        }
        let stats = mutex.stats();
        assert!(stats.wait_ns > 0 && stats.wait_max_ns > 0 && stats.wait_max_ns <= stats.wait_ns);
        assert!(stats.contended_share() > 0.0 && stats.wait_avg_ns() > 0.0);
    }

    #[test]
    fn one_in_the_period_is_measured() {
        let table = LockTable::default();
        let mutex = ContentionMutex::new(&table, "test", ());
        assert_eq!(mutex.stats().held_avg_ns(), None);
        for _ in 0..10 * SAMPLE_EVERY {
            drop(mutex.lock());
        }
        let stats = mutex.stats();
        assert_eq!((stats.acquisitions, stats.held_samples), (10 * SAMPLE_EVERY, 10));
        assert!(stats.held_avg_ns().is_some_and(|ns| ns > 0.0) && stats.held_ns() > 0.0);
    }

    #[test]
    fn waiting_for_a_condition_is_neither_held_nor_contended() {
        let table = LockTable::default();
        let (mutex, came) =
            (ContentionMutex::new(&table, "test", false), parking_lot::Condvar::new());
        (1..SAMPLE_EVERY).for_each(|_| drop(mutex.lock())); // the next one is measured
        let short = std::time::Duration::from_millis(50);
        let begin = Instant::now();
        assert!(!mutex.lock().wait_until(&came, begin + short), "nobody notifies");
        assert!(begin.elapsed() >= short);
        let stats = mutex.stats();
        assert_eq!((stats.contended, stats.held_samples), (0, 1));
        assert!(stats.held_sampled_ns + short.as_nanos() as u64 <= nanos_since(begin), "{stats:?}");
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let mut guard = mutex.lock();
                while !*guard {
                    let until = Instant::now() + std::time::Duration::from_secs(60);
                    assert!(guard.wait_until(&came, until), "not woken");
                }
            });
            *mutex.lock() = true;
            came.notify_one();
            waiter.join().expect("no panic");
        });
    }

    #[test]
    fn locks_of_a_name_are_summed_and_sums_survive_them() {
        let table = LockTable::default();
        let first = ContentionMutex::new(&table, "b", ());
        let second = ContentionMutex::new(&table, "b", ());
        let other = ContentionMutex::new(&table, "a", ());
        drop((first.lock(), second.lock(), other.lock()));
        let row = |stats: &LockStats| (stats.name.to_string(), stats.instances, stats.acquisitions);
        let rows: Vec<_> = table.stats().iter().map(row).collect();
        assert_eq!(rows, [("a".to_owned(), 1, 1), ("b".to_owned(), 2, 2)]);
        drop(second);
        assert_eq!(row(&table.stats()[1]), ("b".to_owned(), 1, 2));
        let third = ContentionMutex::new(&table, "b", ());
        drop(third.lock());
        drop((first, third));
        assert_eq!(row(&table.stats()[1]), ("b".to_owned(), 0, 3));
    }

    #[test]
    fn tables_know_nothing_of_each_other() {
        let (one, two) = (LockTable::default(), LockTable::default());
        let _mutex = ContentionMutex::new(&one, "test", ());
        assert!(two.stats().is_empty());
    }

    #[test]
    fn a_table_that_is_off_lists_nothing() {
        let table = LockTable::new(false);
        let mutex = ContentionMutex::new(&table, "test", 7);
        assert_eq!(*mutex.lock(), 7);
        assert!(mutex.try_lock().is_some());
        assert!(table.stats().is_empty());
        assert_eq!(mutex.stats(), LockStats::default());
    }

    #[test]
    fn counts_are_exact_while_locks_come_and_go() {
        let table = LockTable::default();
        let shared = ContentionMutex::new(&table, "test", 0u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        *shared.lock() += 1;
                        drop(ContentionMutex::new(&table, "test", ()).lock());
                    }
                });
            }
            let mut before = 0;
            for _ in 0..50 {
                let now = table.stats().first().map_or(0, |stats| stats.acquisitions);
                assert!(now >= before, "a sum never falls: {before}, then {now}");
                before = now;
            }
        });
        assert_eq!(*shared.lock(), 2000);
        assert_eq!((table.stats()[0].acquisitions, table.stats()[0].instances), (4001, 1));
    }
}
