//! How long operations take, by layer and name, and the table in which those of a runtime are
//! listed.
//!
//! Contract: as a `LockTable`, a table belongs to a runtime. An [`Operation`] is one owner's:
//! whoever does a thing on several workers makes one for each, so that they share no cache line;
//! those of one name are added up when somebody asks. They are listed as long as the table lives:
//! one per worker, never one per connection or file.
//!
//! Cost: reading the clock twice (about 50 ns) and two relaxed additions. One that is off reads no
//! clock.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::telemetry::histogram::{Histogram, Times};

/// Where in the stack an operation is, from the program down to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Layer {
    /// Requests of the kernel, from read to reply.
    Fuse,
    /// What a client does for them: data of files, and calls to the metadata service.
    Client,
    /// Messages from read to dispatch, calls from sent to answered.
    Messenger,
    /// What placement groups do: records from received to acknowledged, reads from received to
    /// answered.
    Pg,
    /// System calls on journals and fragment files.
    Disk,
}

impl Layer {
    /// All, from the top.
    pub const ALL: [Layer; 5] =
        [Layer::Fuse, Layer::Client, Layer::Messenger, Layer::Pg, Layer::Disk];

    /// Its name in tables and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Layer::Fuse => "fuse",
            Layer::Client => "client",
            Layer::Messenger => "messenger",
            Layer::Pg => "pg",
            Layer::Disk => "disk",
        }
    }
}

/// How long the operations of one name took since the table was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationStats {
    /// Where.
    pub layer: Layer,
    /// What.
    pub name: Cow<'static, str>,
    /// How long.
    pub times: Times,
}

impl OperationStats {
    /// What happened between an earlier reading and this one.
    pub fn since(&self, earlier: &OperationStats) -> OperationStats {
        OperationStats { times: self.times.since(&earlier.times), ..self.clone() }
    }

    /// Is the other one of the same layer and name?
    pub fn is_same(&self, other: &OperationStats) -> bool {
        self.layer == other.layer && self.name == other.name
    }
}

// A bare lock: it is taken when operations are made and read only.
type Families = parking_lot::Mutex<BTreeMap<(Layer, &'static str), Vec<Arc<Histogram>>>>;

/// Lists [`Operation`]s. Clones are the same table.
#[derive(Clone, Debug)]
pub struct OperationTable {
    /// `None`: nothing is timed.
    families: Option<Arc<Families>>,
}

impl Default for OperationTable {
    fn default() -> OperationTable {
        OperationTable::new(true)
    }
}

impl OperationTable {
    /// An empty table. Operations made with one that is not `enabled` are not timed, nor listed.
    pub fn new(enabled: bool) -> OperationTable {
        OperationTable { families: enabled.then(Arc::default) }
    }

    /// Are operations timed?
    pub fn is_enabled(&self) -> bool {
        self.families.is_some()
    }

    /// An operation for one owner, listed together with all others of that name.
    pub fn operation(&self, layer: Layer, name: &'static str) -> Operation {
        let times = self.families.as_ref().map(|families| {
            let times = Arc::<Histogram>::default();
            families.lock().entry((layer, name)).or_default().push(Arc::clone(&times));
            times
        });
        Operation { times }
    }

    /// How long the operations of each name took, by layer and name; those that never happened too.
    pub fn stats(&self) -> Vec<OperationStats> {
        let Some(families) = &self.families else { return Vec::new() };
        let families = families.lock().clone();
        let sum = |((layer, name), owned): ((Layer, &'static str), Vec<Arc<Histogram>>)| {
            let mut times = Times::default();
            owned.iter().for_each(|histogram| times.merge(&histogram.times()));
            OperationStats { layer, name: Cow::Borrowed(name), times }
        };
        families.into_iter().map(sum).collect()
    }
}

/// When an operation began; nothing if it is not timed.
#[derive(Clone, Copy, Debug, Default)]
#[must_use = "it is to be given to Operation::end"]
pub struct Began(Option<Instant>);

/// Times one owner's operations of one name. Clones are the same owner's.
#[derive(Clone, Debug)]
pub struct Operation {
    times: Option<Arc<Histogram>>,
}

impl Operation {
    /// One begins.
    #[inline]
    pub fn begin(&self) -> Began {
        Began(self.times.as_ref().map(|_| Instant::now()))
    }

    /// It has ended.
    #[inline]
    pub fn end(&self, began: Began) {
        if let (Some(times), Began(Some(began))) = (&self.times, began) {
            times.record(nanos_between(began, Instant::now()));
        }
    }

    /// Several have ended at once.
    pub fn end_all(&self, all: impl IntoIterator<Item = Began>) {
        let Some(times) = &self.times else { return };
        let mut now = None;
        for began in all.into_iter().filter_map(|began| began.0) {
            times.record(nanos_between(began, *now.get_or_insert_with(Instant::now)));
        }
    }

    /// One took from `began` to `now`, of which both were read for other reasons too.
    #[inline]
    pub fn record(&self, began: Instant, now: Instant) {
        if let Some(times) = &self.times {
            times.record(nanos_between(began, now));
        }
    }

    /// One begins, and ends when what this gives is dropped.
    pub fn stopwatch(&self) -> Stopwatch {
        Stopwatch { operation: self.clone(), began: self.begin() }
    }

    /// Is it timed?
    pub fn is_timed(&self) -> bool {
        self.times.is_some()
    }
}

fn nanos_between(began: Instant, now: Instant) -> u64 {
    u64::try_from(now.saturating_duration_since(began).as_nanos()).unwrap_or(u64::MAX)
}

/// An operation under way; it ends with this, whatever becomes of it.
#[derive(Debug)]
#[must_use = "dropping it ends the operation"]
pub struct Stopwatch {
    operation: Operation,
    began: Began,
}

impl Drop for Stopwatch {
    fn drop(&mut self) {
        self.operation.end(self.began);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn operations_of_a_name_are_summed() {
        let table = OperationTable::default();
        let [one, other] = [(); 2].map(|()| table.operation(Layer::Disk, "write"));
        let above = table.operation(Layer::Pg, "write");
        let t0 = Instant::now();
        one.record(t0, t0 + Duration::from_micros(3));
        other.record(t0, t0 + Duration::from_micros(5));
        drop(above.stopwatch());
        drop((one, other));
        let stats = table.stats();
        let rows: Vec<_> = stats.iter().map(|s| (s.layer, &*s.name, s.times.calls())).collect();
        assert_eq!(
            rows,
            [(Layer::Pg, "write", 1), (Layer::Disk, "write", 2)],
            "from the top, owners that went included"
        );
        assert_eq!(stats[1].times.sum_ns(), 8000);
    }

    #[test]
    fn those_that_end_together_are_all_counted() {
        let table = OperationTable::default();
        let operation = table.operation(Layer::Pg, "write");
        operation.end_all([operation.begin(), operation.begin(), Began::default()]);
        operation.end(operation.begin());
        assert_eq!(table.stats()[0].times.calls(), 3);
    }

    #[test]
    fn a_clock_that_was_read_too_early_is_no_long_time() {
        let table = OperationTable::default();
        let t0 = Instant::now();
        table.operation(Layer::Messenger, "call").record(t0 + Duration::from_secs(1), t0);
        assert_eq!(table.stats()[0].times.max_ns(), 0);
    }

    #[test]
    fn a_table_that_is_off_lists_nothing_and_reads_no_clock() {
        let table = OperationTable::new(false);
        let operation = table.operation(Layer::Fuse, "read");
        assert!(operation.begin().0.is_none() && !operation.is_timed() && !table.is_enabled());
        operation.end(Began(Some(Instant::now())));
        drop(operation.stopwatch());
        assert!(table.stats().is_empty());
    }
}
