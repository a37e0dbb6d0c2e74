//! What queues of traffic classes did, by queue and class, and the table in which those of a
//! runtime are listed.
//!
//! Contract: a [`ClassMeter`] is one owner's, written by any of its threads with relaxed additions;
//! those of one queue's name are added up when somebody asks. Meters are listed as long as the
//! table lives: one per runtime or worker, never one per connection. How long entries waited is an
//! [`Operation`] of the class.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

use crate::executor::class_queue::CLASSES;
use crate::sync::contention_mutex::{ContentionMutex, LockTable};
use crate::telemetry::operation::{Began, Layer, Operation, OperationTable};
use crate::telemetry::{Rule, Unit};
use crate::wire::frame::TrafficClass;

/// What one class of one queue has, and got.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassStats {
    /// The queue: "io", the jobs of the I/O threads; "core", the messages of a core.
    pub queue: Cow<'static, str>,
    /// I, II or III.
    pub class: Cow<'static, str>,
    /// Entries that wait now.
    pub queued: u64,
    /// Entries served since the start, those that did not wait included.
    pub served: u64,
    /// Bytes that they moved, as far as known before they were served.
    pub served_bytes: u64,
}

/// A figure of a class of a queue.
#[derive(Clone, Copy, Debug)]
pub struct ClassFigure {
    /// Name in reports; metrics derive theirs from it.
    pub name: &'static str,
    /// What the number counts.
    pub unit: Unit,
    /// How it behaves.
    pub rule: Rule,
    /// What it is, in words.
    pub help: &'static str,
    /// The figure.
    pub get: fn(&ClassStats) -> u64,
}

/// Every figure of a class of a queue.
pub const CLASS_FIGURES: [ClassFigure; 3] = [
    ClassFigure {
        name: "queued",
        unit: Unit::Count,
        rule: Rule::Gauge,
        help: "Entries of a traffic class that wait in a queue now.",
        get: |stats| stats.queued,
    },
    ClassFigure {
        name: "served",
        unit: Unit::Count,
        rule: Rule::Counter,
        help: "Entries of a traffic class that a queue has served.",
        get: |stats| stats.served,
    },
    ClassFigure {
        name: "served_bytes",
        unit: Unit::Bytes,
        rule: Rule::Counter,
        help: "Bytes that they moved, as far as known before they were served.",
        get: |stats| stats.served_bytes,
    },
];

impl ClassStats {
    /// What happened between an earlier reading and this one; what waits is as it is now.
    pub fn since(&self, earlier: &ClassStats) -> ClassStats {
        ClassStats {
            served: self.served.saturating_sub(earlier.served),
            served_bytes: self.served_bytes.saturating_sub(earlier.served_bytes),
            ..self.clone()
        }
    }

    /// Is the other one of the same queue and class?
    pub fn is_same(&self, other: &ClassStats) -> bool {
        self.queue == other.queue && self.class == other.class
    }
}

#[derive(Debug, Default)]
struct ClassCounts {
    queued: AtomicU64,
    served: AtomicU64,
    bytes: AtomicU64,
}

#[derive(Debug)]
struct Counts {
    queue: &'static str,
    classes: [ClassCounts; CLASSES],
}

/// Lists [`ClassMeter`]s. Clones are the same table.
#[derive(Clone, Debug)]
pub struct ClassTable {
    meters: Arc<ContentionMutex<Vec<Arc<Counts>>>>,
    operations: OperationTable,
}

/// Counts for one owner of a queue. Clones are the same owner's.
#[derive(Clone, Debug)]
pub struct ClassMeter {
    counts: Arc<Counts>,
    waits: [Operation; CLASSES],
}

impl ClassTable {
    pub(crate) fn new(locks: &LockTable, operations: &OperationTable) -> ClassTable {
        let meters = Arc::new(ContentionMutex::new(locks, "class meters", Vec::new()));
        ClassTable { meters, operations: operations.clone() }
    }

    /// A meter for one owner of the queue, listed with all others of that name. `waits`: names of
    /// the operations that time how long entries of the classes I, II and III wait.
    pub fn meter(&self, queue: &'static str, waits: [&'static str; CLASSES]) -> ClassMeter {
        let counts = Arc::new(Counts { queue, classes: Default::default() });
        self.meters.lock().push(Arc::clone(&counts));
        let waits = waits.map(|name| self.operations.operation(Layer::Messenger, name));
        ClassMeter { counts, waits }
    }

    /// What all did so far, by queue and class.
    pub(crate) fn stats(&self) -> Vec<ClassStats> {
        let mut all: Vec<ClassStats> = Vec::new();
        for counts in self.meters.lock().iter() {
            for (class, counted) in TrafficClass::ALL.iter().zip(&counts.classes) {
                let one = ClassStats {
                    queue: Cow::Borrowed(counts.queue),
                    class: Cow::Borrowed(class.numeral()),
                    queued: counted.queued.load(Relaxed),
                    served: counted.served.load(Relaxed),
                    served_bytes: counted.bytes.load(Relaxed),
                };
                match all.iter_mut().find(|known| known.is_same(&one)) {
                    Some(known) => {
                        known.queued = known.queued.saturating_add(one.queued);
                        known.served = known.served.saturating_add(one.served);
                        known.served_bytes = known.served_bytes.saturating_add(one.served_bytes);
                    }
                    None => all.push(one),
                }
            }
        }
        all
    }
}

impl ClassMeter {
    /// An entry begins to wait; give what this returns to [`ClassMeter::served`].
    pub fn queued(&self, class: TrafficClass) -> Began {
        self.counts.classes[class.index()].queued.fetch_add(1, Relaxed);
        self.waits[class.index()].begin()
    }

    /// An entry that waited is served.
    pub fn served(&self, class: TrafficClass, bytes: usize, began: Began) {
        self.waits[class.index()].end(began);
        self.dropped(class);
        self.passed(class, bytes);
    }

    /// An entry is served that did not have to wait.
    pub fn passed(&self, class: TrafficClass, bytes: usize) {
        let counted = &self.counts.classes[class.index()];
        counted.served.fetch_add(1, Relaxed);
        counted.bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// An entry that waited will not be served.
    pub fn dropped(&self, class: TrafficClass) {
        self.counts.classes[class.index()].queued.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_of_one_queue_are_added_up() {
        let table = ClassTable::new(&LockTable::default(), &OperationTable::default());
        let names = ["a-I", "a-II", "a-III"];
        let [one, other] = [(); 2].map(|()| table.meter("a", names));
        let began = one.queued(TrafficClass::Background);
        one.served(TrafficClass::Background, 10, began);
        other.passed(TrafficClass::Background, 5);
        let _waits = other.queued(TrafficClass::Client);
        let stats = table.stats();
        let rows: Vec<_> = stats
            .iter()
            .map(|s| (&*s.queue, &*s.class, s.queued, s.served, s.served_bytes))
            .collect();
        assert_eq!(rows, [("a", "I", 0, 0, 0), ("a", "II", 1, 0, 0), ("a", "III", 0, 2, 15)]);
        let later = ClassStats { served: 7, queued: 3, ..stats[2].clone() };
        assert_eq!(later.since(&stats[2]), ClassStats { served: 5, served_bytes: 0, ..later });
        let waits = table.operations.stats();
        assert_eq!(waits[2].times.calls(), 1, "what did not wait is not timed: {waits:?}");
    }
}
