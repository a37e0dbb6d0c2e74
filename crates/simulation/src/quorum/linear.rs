//! Is a history of a register what one register could have answered, one call after the other?
//!
//! Contract: exact for histories in which no value is written twice, and fast: all calls that have
//! to do with one value must stand together, so pairs of values say everything (Gibbons and Korach,
//! "Testing shared memories", 1997). A test compares it with the search of Wing and Gong.

use std::collections::BTreeMap;

/// A call of a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    /// When it began.
    pub from: u64,
    /// When it was answered. `None`: never; a write may then have happened, or happen at any time.
    pub until: Option<u64>,
    /// What.
    pub what: What,
}

/// What a call does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// Sets it.
    Write(u64),
    /// Found this.
    Read(u64),
}

/// When a value can be in the register: the first answer to a call about it, and the last beginning
/// of one.
#[derive(Clone, Copy)]
struct Zone {
    write: Option<u64>,
    first_end: u64,
    last_begin: u64,
}

/// Is there an order of these calls in which each read finds the last write, and none stands before
/// another that had ended before it began? `first` is there at the beginning. A read has an answer.
pub fn is_linearizable(first: u64, calls: &[Call]) -> bool {
    let mut zones: BTreeMap<u64, Zone> = BTreeMap::new();
    let none = Zone { write: None, first_end: u64::MAX, last_begin: 0 };
    zones.insert(first, Zone { write: Some(0), first_end: 0, last_begin: 0 });
    for call in calls {
        let (What::Write(value) | What::Read(value)) = call.what;
        let zone = zones.entry(value).or_insert(none);
        if let What::Write(_) = call.what {
            assert!(zone.write.is_none(), "{value} is written twice");
            zone.write = Some(call.from);
        }
        zone.first_end = zone.first_end.min(call.until.unwrap_or(u64::MAX));
        zone.last_begin = zone.last_begin.max(call.from);
    }
    let follows_its_write = |call: &Call| match call.what {
        What::Read(value) => {
            zones[&value].write.is_some_and(|write| call.until.is_none_or(|until| until >= write))
        }
        What::Write(_) => true,
    };
    // one of two values is the earlier: nothing about the later one ended before something about it
    // began
    let zones_of: Vec<_> = zones.values().collect();
    let fit = |a: &Zone, b: &Zone| a.first_end >= b.last_begin || b.first_end >= a.last_begin;
    calls.iter().all(follows_its_write)
        && zones_of.iter().enumerate().all(|(i, a)| zones_of[..i].iter().all(|b| fit(a, b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The search of Wing and Gong.
    fn search(value: u64, done: u64, calls: &[Call]) -> bool {
        let left = || calls.iter().enumerate().filter(|(i, _)| done >> i & 1 == 0);
        let first_end = left().filter_map(|(_, call)| call.until).min();
        first_end.is_none()
            || left().filter(|(_, call)| call.from <= first_end.unwrap_or(u64::MAX)).any(
                |(i, call)| match call.what {
                    What::Write(new) => search(new, done | 1 << i, calls),
                    What::Read(found) => found == value && search(value, done | 1 << i, calls),
                },
            )
    }

    #[test]
    fn it_finds_what_a_search_finds() {
        let (mut good, mut random) = (0, fastrand::Rng::with_seed(1));
        for _ in 0..20_000 {
            let writes = random.u64(1..4);
            let mut calls: Vec<_> =
                (1..=writes).map(|value| (What::Write(value), random.u8(0..5) > 0)).collect();
            calls.extend((0..random.u8(1..4)).map(|_| (What::Read(random.u64(0..=writes)), true)));
            let calls: Vec<_> = calls
                .into_iter()
                .map(|(what, ends)| {
                    let from = random.u64(1..12);
                    Call { from, until: ends.then(|| from + random.u64(0..5)), what }
                })
                .collect();
            let expected = search(0, 0, &calls);
            good += u32::from(expected);
            assert_eq!(is_linearizable(0, &calls), expected, "{calls:?}");
        }
        assert!((2_000..18_000).contains(&good), "{good} of 20,000 are linearizable");
    }

    fn call(from: u64, until: u64, what: What) -> Call {
        Call { from, until: Some(until).filter(|until| *until > 0), what }
    }

    #[test]
    fn reads_find_the_last_write() {
        use What::{Read, Write};
        assert!(is_linearizable(0, &[call(1, 2, Write(7)), call(3, 4, Read(7))]));
        assert!(!is_linearizable(0, &[call(1, 2, Write(7)), call(3, 4, Read(0))]));
        // while a write is under way a read may find either
        assert!(is_linearizable(
            0,
            &[call(1, 9, Write(7)), call(3, 4, Read(0)), call(5, 6, Read(7))]
        ));
        assert!(!is_linearizable(
            0,
            &[call(1, 9, Write(7)), call(3, 4, Read(7)), call(5, 6, Read(0))]
        ));
        // nobody knows what became of this one; once it was seen it stays
        assert!(is_linearizable(
            0,
            &[call(1, 0, Write(7)), call(3, 4, Read(0)), call(5, 6, Read(7))]
        ));
        assert!(is_linearizable(0, &[call(1, 0, Write(7)), call(3, 4, Read(0))]));
        assert!(!is_linearizable(
            0,
            &[call(1, 0, Write(7)), call(3, 4, Read(7)), call(5, 6, Read(0))]
        ));
    }
}
