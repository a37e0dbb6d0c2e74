//! What a worker's thread does with its time: waits in its reactor, or works.
//!
//! Contract: the worker writes, anyone reads. No clock is read in a turn that does not wait, except
//! in every [`TURNS_UNREAD_MAX`]th; a turn that waits reads it twice, of which the first is the one
//! that its timers need anyhow.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Time between readings of the thread's CPU clock: a system call, 0.3 us, so a hundred thousandth
/// of a CPU.
const CPU_EVERY: Duration = Duration::from_millis(20);
/// Turns without a wait after which the clock is read all the same, so that a worker that never
/// waits is seen to work.
const TURNS_UNREAD_MAX: u32 = 256;
/// Marks a worker that waits, in [`WorkerTime::state`].
const WAITING: u64 = 1;

/// Time of one worker.
#[derive(Debug)]
pub(crate) struct WorkerTime {
    began: Instant,
    /// While it works: nanoseconds waited so far, doubled. While it waits: nanoseconds worked so
    /// far, doubled, plus [`WAITING`]. So one load tells a reader all, also in the middle of a long
    /// wait.
    state: AtomicU64,
    cpu_ns: AtomicU64,
}

/// A reading of [`WorkerTime`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TimeSpent {
    /// Since the worker was made, in nanoseconds.
    pub elapsed_ns: u64,
    /// Of these not spent waiting in the reactor.
    pub busy_ns: u64,
    /// On a CPU, as of the last sample.
    pub cpu_ns: u64,
}

impl WorkerTime {
    /// Of a worker that has not worked yet.
    pub(crate) fn new(began: Instant) -> WorkerTime {
        WorkerTime { began, state: AtomicU64::new(WAITING), cpu_ns: AtomicU64::new(0) }
    }

    fn nanos(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.began).as_nanos()).unwrap_or(u64::MAX)
    }

    /// How the time until `now` was spent.
    pub(crate) fn read(&self, now: Instant) -> TimeSpent {
        let (elapsed_ns, state) = (self.nanos(now), self.state.load(Relaxed));
        let (waits, ns) = (state & WAITING != 0, state >> 1);
        let busy_ns = if waits { ns } else { elapsed_ns.saturating_sub(ns) };
        // A worker that began to wait after `now` was read has worked for longer than it had then.
        TimeSpent {
            elapsed_ns,
            busy_ns: busy_ns.min(elapsed_ns),
            cpu_ns: self.cpu_ns.load(Relaxed),
        }
    }
}

/// The worker's own side.
#[derive(Debug)]
pub(crate) struct Meter {
    enabled: bool,
    waited_ns: Cell<u64>,
    cpu_read_at: Cell<Instant>,
    turns_unread: Cell<u32>,
}

impl Meter {
    /// The worker begins to work. One that is not `enabled` reads no clock, and the worker is never
    /// seen to work.
    pub(crate) fn new(enabled: bool, time: &WorkerTime, now: Instant) -> Meter {
        if enabled {
            time.state.store(0, Relaxed);
        }
        Meter {
            enabled,
            waited_ns: Cell::new(0),
            cpu_read_at: Cell::new(now),
            turns_unread: Cell::new(0),
        }
    }

    /// A turn ends without a wait.
    pub(crate) fn no_wait(&self, time: &WorkerTime) {
        let turns = self.turns_unread.get() + 1;
        self.turns_unread.set(turns);
        if turns >= TURNS_UNREAD_MAX && self.enabled {
            self.turns_unread.set(0);
            self.sample_cpu(time, Instant::now());
        }
    }

    /// A wait begins; it ends with the meter that this gives.
    pub(crate) fn begin_wait(&self, time: &WorkerTime, now: Instant) -> Option<Waiting<'_>> {
        if !self.enabled {
            return None;
        }
        self.turns_unread.set(0);
        self.sample_cpu(time, now);
        let busy_ns = time.nanos(now).saturating_sub(self.waited_ns.get());
        time.state.store(busy_ns << 1 | WAITING, Relaxed);
        Some(Waiting { meter: self, busy_ns })
    }

    fn sample_cpu(&self, time: &WorkerTime, now: Instant) {
        if now.saturating_duration_since(self.cpu_read_at.get()) < CPU_EVERY {
            return;
        }
        self.cpu_read_at.set(now);
        let spent = clock_gettime(ClockId::ThreadCPUTime);
        // CPU time is never negative.
        let (seconds, nanos) = (u64::try_from(spent.tv_sec), u64::try_from(spent.tv_nsec));
        if let (Ok(seconds), Ok(nanos)) = (seconds, nanos) {
            time.cpu_ns.store(seconds * 1_000_000_000 + nanos, Relaxed);
        }
    }
}

/// A wait under way.
#[derive(Debug)]
pub(crate) struct Waiting<'a> {
    meter: &'a Meter,
    busy_ns: u64,
}

impl Waiting<'_> {
    /// It is over.
    pub(crate) fn end(self, time: &WorkerTime, now: Instant) {
        let waited_ns = time.nanos(now).saturating_sub(self.busy_ns);
        self.meter.waited_ns.set(waited_ns);
        time.state.store(waited_ns << 1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn waits_are_not_work() {
        let t0 = Instant::now();
        let time = WorkerTime::new(t0);
        let meter = Meter::new(true, &time, t0);
        let busy = |at: u64| time.read(t0 + ms(at)).busy_ns / 1_000_000;
        assert_eq!(busy(3), 3, "works from the start");
        let wait = meter.begin_wait(&time, t0 + ms(5)).expect("enabled");
        assert_eq!((busy(5), busy(1000)), (5, 5), "a long wait counts while it lasts");
        wait.end(&time, t0 + ms(1005));
        assert_eq!((busy(1005), busy(1007)), (5, 7));
        meter.begin_wait(&time, t0 + ms(1010)).expect("enabled").end(&time, t0 + ms(1020));
        assert_eq!(busy(1021), 11);
        assert_eq!(time.read(t0 + ms(1021)).elapsed_ns, 1_021_000_000);
    }

    #[test]
    fn a_reader_with_an_old_clock_sees_no_more_than_all() {
        let t0 = Instant::now();
        let time = WorkerTime::new(t0);
        let meter = Meter::new(true, &time, t0);
        let _wait = meter.begin_wait(&time, t0 + ms(5));
        let spent = time.read(t0 + ms(4));
        assert_eq!(spent.busy_ns, spent.elapsed_ns);
    }

    #[test]
    fn cpu_time_is_sampled_without_waits_too() {
        let t0 = Instant::now();
        let time = WorkerTime::new(t0);
        let meter = Meter::new(true, &time, t0);
        while time.read(Instant::now()).cpu_ns == 0 {
            meter.no_wait(&time);
        }
        let first = time.read(Instant::now()).cpu_ns;
        let _wait = meter.begin_wait(&time, Instant::now() + CPU_EVERY * 2);
        assert!(time.read(Instant::now()).cpu_ns >= first);
    }

    #[test]
    fn off_means_nothing() {
        let t0 = Instant::now();
        let time = WorkerTime::new(t0);
        let meter = Meter::new(false, &time, t0);
        assert!(meter.begin_wait(&time, t0 + ms(500)).is_none());
        let spent = time.read(t0 + ms(600));
        assert_eq!((spent.busy_ns, spent.cpu_ns), (0, 0));
    }
}
