//! How long a core takes for what sessions ask of it.

use messenger::{Began, Layer, Operation, OperationTable};
use std::collections::VecDeque;

/// The operations of one core.
#[derive(Debug)]
pub(super) struct CoreTimes {
    /// From a record's arrival to the acknowledgement of the turn that took it.
    pub write: Operation,
    /// From a question's arrival to its answer.
    pub read: Operation,
    /// From when a session asks until what it wrote is durable.
    pub sync: Operation,
}

/// What was taken and is not answered yet. Bounded by the turn, and by what sessions may have
/// unstable.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// Records taken in this turn.
    pub writes: Vec<Began>,
    /// Wishes for a sync, with the number of the first that fulfils them.
    pub syncs: VecDeque<(u64, Began)>,
}

impl CoreTimes {
    pub(super) fn new(table: &OperationTable) -> Self {
        let operation = |name| table.operation(Layer::Pg, name);
        Self { write: operation("write"), read: operation("read"), sync: operation("sync") }
    }

    /// The turn's acknowledgements have left.
    pub(super) fn answered(&self, waiting: &mut Waiting) {
        self.write.end_all(waiting.writes.drain(..));
    }

    /// This sync has ended.
    pub(super) fn synced(&self, waiting: &mut Waiting, number: u64) {
        let done = waiting.syncs.partition_point(|(wanted, _)| *wanted <= number);
        self.sync.end_all(waiting.syncs.drain(..done).map(|(_, began)| began));
    }
}
