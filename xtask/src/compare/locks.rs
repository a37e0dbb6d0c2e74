//! What happened to locks while a cell was measured: the difference of what `trefoil locks --json`
//! says before and after.
//!
//! Contract: pure. Locks of one name are one, those of all OSDs too. Asking takes some locks
//! itself; that is not taken off.

use crate::error::{Context, Outcome};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Locks nobody waited for are kept if they were taken at least once in so many operations: that
/// nobody waited is a finding.
const IDLE_EVERY: f64 = 10.0;
/// Rows of a table for each setting.
const ROWS_MAX: usize = 12;

/// How the locks of one name were used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockUse {
    /// Where they are: `mount`, `osds`, `mds`, `monitor`.
    #[serde(rename = "where")]
    pub place: String,
    /// Their name.
    pub lock: String,
    /// How often they were taken.
    pub taken: u64,
    /// How often they were found taken.
    pub found_taken: u64,
    /// How long threads waited for them.
    pub waited_ns: u64,
}

/// A row of `trefoil locks --json`; see there.
#[derive(Deserialize)]
struct Row {
    target: String,
    lock: String,
    acquisitions: u64,
    contended: u64,
    wait_ns: u64,
}

type Sums = BTreeMap<(String, String), LockUse>;

fn add(sums: &mut Sums, more: LockUse) {
    let key = (more.place.clone(), more.lock.clone());
    let sum = sums.entry(key).or_insert_with(|| LockUse {
        place: more.place.clone(),
        lock: more.lock.clone(),
        ..LockUse::default()
    });
    sum.taken += more.taken;
    sum.found_taken += more.found_taken;
    sum.waited_ns += more.waited_ns;
}

fn place(target: &str) -> &str {
    match target.split('.').next() {
        Some("osd") => "osds",
        Some("client") => "mount",
        _ => target,
    }
}

/// What `trefoil locks --json` printed.
///
/// # Errors
/// When it is not that.
pub fn parse(json: &str) -> Outcome<Vec<LockUse>> {
    let rows: Vec<Row> =
        serde_json::from_str(json).doing(|| "`trefoil locks --json` did not print its array")?;
    let mut sums = Sums::new();
    for row in rows {
        let place = place(&row.target).to_owned();
        let (taken, found_taken, waited_ns) = (row.acquisitions, row.contended, row.wait_ns);
        add(&mut sums, LockUse { place, lock: row.lock, taken, found_taken, waited_ns });
    }
    Ok(sums.into_values().collect())
}

/// What happened between two readings, in so many operations: all locks that were found taken, and
/// of the others those that were taken often.
pub fn between(before: &[LockUse], after: &[LockUse], operations: f64) -> Vec<LockUse> {
    let since = |now: &LockUse| {
        let same = |then: &&LockUse| then.place == now.place && then.lock == now.lock;
        let then = before.iter().find(same).cloned().unwrap_or_default();
        LockUse {
            taken: now.taken.saturating_sub(then.taken),
            found_taken: now.found_taken.saturating_sub(then.found_taken),
            waited_ns: now.waited_ns.saturating_sub(then.waited_ns),
            ..now.clone()
        }
    };
    let counts = |lock: &LockUse| {
        lock.found_taken > 0 || lock.taken > 0 && lock.taken as f64 * IDLE_EVERY >= operations
    };
    in_order(after.iter().map(since).filter(counts).collect())
}

/// What was waited for longest comes first.
fn in_order(mut locks: Vec<LockUse>) -> Vec<LockUse> {
    locks.sort_by_key(|lock| std::cmp::Reverse((lock.waited_ns, lock.found_taken, lock.taken)));
    locks
}

/// Head of the table.
pub fn head(out: &mut String) {
    let _ = writeln!(
        out,
        "| setting | where | lock | taken | found taken | waited, ms | taken per operation | found taken per 1,000 operations \
         | waited per operation, ns |\n|---|---|---|---|---|---|---|---|---|"
    );
}

/// The locks of one setting that were waited for longest, over several runs of so many operations
/// in all.
pub fn rows(
    out: &mut String,
    setting: &str,
    runs: impl IntoIterator<Item = Vec<LockUse>>,
    operations: f64,
) {
    let mut sums = Sums::new();
    runs.into_iter().flatten().for_each(|lock| add(&mut sums, lock));
    let each = |count: u64| count as f64 / operations.max(1.0);
    for lock in in_order(sums.into_values().collect()).into_iter().take(ROWS_MAX) {
        let _ = writeln!(
            out,
            "| `{setting}` | {} | {} | {} | {} | {:.2} | {:.2} | {:.2} | {:.0} |",
            lock.place,
            lock.lock,
            lock.taken,
            lock.found_taken,
            lock.waited_ns as f64 / 1e6,
            each(lock.taken),
            each(lock.found_taken) * 1e3,
            each(lock.waited_ns)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(place: &str, lock: &str, taken: u64, found_taken: u64, waited_ns: u64) -> LockUse {
        LockUse { place: place.into(), lock: lock.into(), taken, found_taken, waited_ns }
    }

    #[test]
    fn osds_are_one_and_clients_are_the_mount() {
        let row = |target: &str, taken: u64| {
            format!(
                r#"{{"target":"{target}","lock":"a","instances":1,"acquisitions":{taken},"contended":1,"wait_ns":5,"held_avg_ns":null}}"#
            )
        };
        let json = format!(
            "[{},{},{},{}]",
            row("osd.0", 3),
            row("osd.1", 4),
            row("client.7", 5),
            row("mds", 6)
        );
        let parsed = parse(&json).unwrap();
        assert_eq!(
            parsed,
            [lock("mds", "a", 6, 1, 5), lock("mount", "a", 5, 1, 5), lock("osds", "a", 7, 2, 10)]
        );
        assert!(parse("no lock matches").is_err());
    }

    #[test]
    fn a_difference_keeps_what_was_waited_for_and_what_was_taken_most() {
        let before = [lock("mount", "a", 10, 1, 100)];
        let mut after = vec![
            lock("mount", "a", 30, 3, 400),
            lock("osds", "b", 5, 1, 900),
            lock("osds", "idle", 0, 0, 0),
        ];
        after.extend([lock("mds", "often", 10, 0, 0), lock("mds", "seldom", 9, 0, 0)]);
        let between = between(&before, &after, 100.0);
        assert_eq!(between[..2], [lock("osds", "b", 5, 1, 900), lock("mount", "a", 20, 2, 300)]);
        assert_eq!(between[2..], [lock("mds", "often", 10, 0, 0)]);
    }

    #[test]
    fn a_table_is_of_all_runs_and_per_operation() {
        let mut out = String::new();
        head(&mut out);
        rows(
            &mut out,
            "x=1",
            [vec![lock("mount", "a", 30, 3, 4_000_000)], vec![lock("mount", "a", 10, 1, 0)]],
            20.0,
        );
        assert!(
            out.ends_with("| `x=1` | mount | a | 40 | 4 | 4.00 | 2.00 | 200.00 | 200000 |\n"),
            "{out}"
        );
    }
}
