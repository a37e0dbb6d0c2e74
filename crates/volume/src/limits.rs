//! Limits of a volume: bytes and operations in a second, of reads, writes, and both together.
//!
//! Contract: pure. [`Limiter::admit`] gets the time and says how long an operation has to wait; it
//! counts as admitted then. What was not used can be used later, but not more than [`BURST`] of it.
//! An operation larger than that is admitted, and the next ones wait for it.

use crate::VolumeError;
use std::fmt::Write as _;
use std::time::Duration;

/// How much of what was not used can be used at once.
pub const BURST: Duration = Duration::from_millis(100);
/// Longest text of a volume's limits, in bytes.
const TEXT_BYTES_MAX: usize = 1024;

/// A limit: what of it, and of what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rate {
    /// Bytes read in a second.
    ReadBytes,
    /// Bytes written in a second.
    WriteBytes,
    /// Bytes read and written in a second.
    TotalBytes,
    /// Reads in a second.
    ReadOps,
    /// Writes, and other changes, in a second.
    WriteOps,
    /// Operations in a second.
    TotalOps,
}

impl Rate {
    /// Each, with its name in commands and in the store.
    pub const ALL: [(&'static str, Rate); 6] = [
        ("read-bps", Rate::ReadBytes),
        ("write-bps", Rate::WriteBytes),
        ("total-bps", Rate::TotalBytes),
        ("read-iops", Rate::ReadOps),
        ("write-iops", Rate::WriteOps),
        ("total-iops", Rate::TotalOps),
    ];

    /// Does it count operations, not bytes?
    pub const fn counts_operations(self) -> bool {
        matches!(self, Rate::ReadOps | Rate::WriteOps | Rate::TotalOps)
    }

    /// What of an operation it counts.
    fn counted(self, kind: Kind, bytes: u64) -> u64 {
        let is_counted = match self {
            Rate::ReadBytes | Rate::ReadOps => kind == Kind::Read,
            Rate::WriteBytes | Rate::WriteOps => kind == Kind::Write,
            Rate::TotalBytes | Rate::TotalOps => true,
        };
        match (is_counted, self.counts_operations()) {
            (false, _) => 0,
            (true, true) => 1,
            (true, false) => bytes,
        }
    }
}

/// What an operation does, for its limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It reads.
    Read,
    /// It changes something.
    Write,
}

/// The limits of a volume; 0 is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    per_second: [u64; Rate::ALL.len()],
}

impl Limits {
    /// What may be used of it in a second; 0 if it has no limit.
    pub fn get(&self, rate: Rate) -> u64 {
        self.per_second[rate as usize]
    }

    /// The same with another limit.
    pub fn with(mut self, rate: Rate, per_second: u64) -> Limits {
        self.per_second[rate as usize] = per_second;
        self
    }

    /// Is nothing limited?
    pub fn is_empty(&self) -> bool {
        *self == Limits::default()
    }

    /// As it is stored: a line `NAME=NUMBER` for each limit.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for (name, rate) in Rate::ALL.iter().filter(|(_, rate)| self.get(*rate) > 0) {
            writeln!(text, "{name}={}", self.get(*rate)).expect("a string takes everything");
        }
        text
    }

    /// From what is stored.
    ///
    /// # Errors
    /// For what is not known: another version may have stored a limit that cannot be kept here.
    pub fn parse(text: &[u8]) -> Result<Limits, VolumeError> {
        let bad = |what: &str| {
            VolumeError::Invalid(format!("the limits stored with the volume are not known: {what}"))
        };
        if text.len() > TEXT_BYTES_MAX {
            return Err(bad("they are too long"));
        }
        let text = std::str::from_utf8(text).map_err(|_| bad("they are no text"))?;
        text.lines().try_fold(Limits::default(), |limits, line| {
            let (name, number) = line.split_once('=').ok_or_else(|| bad(line))?;
            let (_, rate) =
                Rate::ALL.iter().find(|(known, _)| *known == name).ok_or_else(|| bad(line))?;
            Ok(limits.with(*rate, number.parse().map_err(|_| bad(line))?))
        })
    }
}

/// Holds operations to limits. See the module.
#[derive(Debug, Default)]
pub struct Limiter {
    limits: Limits,
    /// For each limit, when all that was admitted will have been paid for.
    paid_at: [Duration; Rate::ALL.len()],
    generation: u64,
}

impl Limiter {
    /// Another number whenever the limits have changed.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The limits are these from now on; what larger or smaller ones have left to wait for is over.
    pub fn set(&mut self, limits: Limits, now: Duration) {
        if limits != self.limits {
            self.limits = limits;
            self.generation += 1;
            self.paid_at = self.paid_at.map(|at| at.min(now));
        }
    }

    /// How long an operation that comes now has to wait.
    pub fn admit(&mut self, now: Duration, kind: Kind, bytes: u64) -> Duration {
        let mut wait = Duration::ZERO;
        for ((_, rate), paid_at) in Rate::ALL.iter().zip(&mut self.paid_at) {
            let (per_second, amount) = (self.limits.get(*rate), rate.counted(kind, bytes));
            if per_second == 0 || amount == 0 {
                continue;
            }
            let begin = (*paid_at).max(now.saturating_sub(BURST));
            wait = wait.max(begin.saturating_sub(now));
            let nanos = u128::from(amount) * 1_000_000_000 / u128::from(per_second);
            *paid_at = begin
                .saturating_add(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)));
        }
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// When each of `count` operations that come at once is admitted.
    fn admitted(limits: Limits, kind: Kind, bytes: u64, count: usize) -> Vec<Duration> {
        let mut limiter = Limiter::default();
        limiter.set(limits, Duration::ZERO);
        (0..count).map(|_| limiter.admit(10 * SECOND, kind, bytes)).collect()
    }

    #[test]
    fn without_limits_nothing_waits() {
        assert_eq!(admitted(Limits::default(), Kind::Write, 1 << 30, 100), [Duration::ZERO; 100]);
    }

    #[test]
    fn operations_are_admitted_at_their_rate_after_a_burst() {
        let limits = Limits::default().with(Rate::WriteOps, 100);
        let waits = admitted(limits, Kind::Write, 4096, 111);
        assert_eq!(waits[10], Duration::ZERO, "the burst");
        assert_eq!(waits[110], SECOND);
        assert_eq!(
            admitted(limits, Kind::Read, 4096, 111),
            [Duration::ZERO; 111],
            "reads are not limited"
        );
        let both = Limits::default().with(Rate::TotalOps, 100);
        assert_eq!(admitted(both, Kind::Read, 0, 111)[110], SECOND);
    }

    #[test]
    fn bytes_are_paid_for_after_they_were_admitted() {
        let limits =
            Limits::default().with(Rate::ReadBytes, 1 << 20).with(Rate::ReadOps, 1_000_000);
        let waits = admitted(limits, Kind::Read, 32 << 20, 2);
        assert_eq!(
            waits,
            [Duration::ZERO, 32 * SECOND - BURST],
            "one larger than the burst is not refused"
        );
    }

    #[test]
    fn what_was_not_used_does_not_add_up() {
        let mut limiter = Limiter::default();
        limiter.set(Limits::default().with(Rate::TotalOps, 10), Duration::ZERO);
        let at = 1000 * SECOND;
        assert_eq!(limiter.admit(at, Kind::Read, 1), Duration::ZERO);
        assert_eq!(limiter.admit(at, Kind::Read, 1), Duration::ZERO);
        assert_eq!(limiter.admit(at, Kind::Read, 1), BURST);
    }

    #[test]
    fn other_limits_count_at_once() {
        let mut limiter = Limiter::default();
        limiter.set(Limits::default().with(Rate::WriteBytes, 1), Duration::ZERO);
        limiter.admit(SECOND, Kind::Write, 1 << 20);
        assert!(limiter.admit(SECOND, Kind::Write, 1) > 1000 * SECOND);
        limiter.set(Limits::default().with(Rate::WriteBytes, 1 << 20), SECOND);
        assert_eq!(limiter.admit(SECOND, Kind::Write, 1), Duration::ZERO);
        limiter.set(Limits::default(), SECOND);
        assert_eq!(limiter.admit(SECOND, Kind::Write, 1 << 30), Duration::ZERO);
    }

    #[test]
    fn what_is_stored_is_read_again_and_what_is_not_known_is_refused() {
        let limits = Limits::default().with(Rate::TotalBytes, u64::MAX).with(Rate::ReadOps, 1);
        assert_eq!(Limits::parse(limits.to_text().as_bytes()).expect("ours"), limits);
        assert!(Limits::parse(b"").expect("none").is_empty());
        for bad in ["burst-iops=7", "read-iops", "read-iops=x", "read-iops=-1"] {
            assert!(Limits::parse(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(
            Limits::parse(&[0xff]).is_err() && Limits::parse(&[b'a'; TEXT_BYTES_MAX + 1]).is_err()
        );
    }

    proptest! {
        #[test]
        fn no_rate_is_exceeded(rate in 1..1_000_000u64, sizes in proptest::collection::vec(0..1_000_000u64, 1..50)) {
            let mut limiter = Limiter::default();
            limiter.set(Limits::default().with(Rate::WriteBytes, rate), Duration::ZERO);
            let (mut now, mut before) = (10 * SECOND, 0);
            for bytes in sizes {
                now += limiter.admit(now, Kind::Write, bytes);
                let allowed = (now - 10 * SECOND + BURST).as_secs_f64() * rate as f64 + 1.0;
                prop_assert!(before as f64 <= allowed + 1.0, "{before} bytes before {now:?}, {allowed} allowed");
                before += bytes;
            }
        }

        #[test]
        fn no_text_panics(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Limits::parse(&text);
        }
    }
}
