//! What a run measures: modes and cells.

use std::time::Duration;

use ec_store::cluster_lock::Policy;
use serde::{Deserialize, Serialize};

use crate::machine::size_name;
use crate::scenario::Pattern;

/// How long GlusterFS keeps an eager lock that nobody uses (`disperse.eager-lock-timeout`).
const EAGER_IDLE: Duration = Duration::from_secs(1);
/// Block sizes of the thesis's Figures 4.1 and 4.2, in bytes.
pub(crate) const BLOCKS: [u64; 4] = [4 << 10, 16 << 10, 64 << 10, 256 << 10];
/// Numbers of clients, as Figure 4.3 goes by them.
pub(crate) const CLIENTS: [usize; 4] = [1, 2, 4, 8];
/// Patterns of the thesis.
pub(crate) const PATTERNS: [Pattern; 2] = [Pattern::Randread, Pattern::Randwrite];

/// How operations are kept in order: the setting `--consistency`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Consistency {
    /// GlusterFS: one I/O queue for each server, and a lock on all servers for every operation.
    ClusterLock,
    /// The same with eager locking.
    ClusterLockEager,
    /// The thesis: a gfid-queue table, and a queue for each core; the lock is taken when a file is
    /// opened.
    PerCoreTable,
    /// Trefoil: arithmetic says which core owns a file, and the worker that reads a request carries
    /// it out.
    PerCore,
    /// One I/O queue for each server and no lock but that at open: what the cluster lock is there
    /// to prevent.
    Unordered,
}

/// Who carries out what a server receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Execution {
    /// Threads that all take from one queue.
    SharedQueue,
    /// The core that a table names, over a queue of its own.
    Table,
    /// The core that the client has sent to.
    Arithmetic,
}

impl Consistency {
    /// Those that are measured unless others are asked for; the first is what the others are
    /// compared with.
    pub(crate) const MEASURED: [Consistency; 4] = [
        Consistency::ClusterLock,
        Consistency::ClusterLockEager,
        Consistency::PerCoreTable,
        Consistency::PerCore,
    ];
    /// All, in the order of figures; of all order is checked.
    pub(crate) const ALL: [Consistency; 5] = [
        Consistency::ClusterLock,
        Consistency::ClusterLockEager,
        Consistency::PerCoreTable,
        Consistency::PerCore,
        Consistency::Unordered,
    ];

    /// Its name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Consistency::ClusterLock => "cluster-lock",
            Consistency::ClusterLockEager => "cluster-lock-eager",
            Consistency::PerCoreTable => "per-core-table",
            Consistency::PerCore => "per-core",
            Consistency::Unordered => "unordered",
        }
    }

    /// When clients lock a file.
    pub(crate) fn policy(self) -> Policy {
        match self {
            Consistency::ClusterLock => Policy::EveryOperation,
            Consistency::ClusterLockEager => Policy::Eager { idle: EAGER_IDLE },
            Consistency::PerCoreTable | Consistency::PerCore | Consistency::Unordered => {
                Policy::AtOpen
            }
        }
    }

    /// Who carries operations out.
    pub(crate) fn execution(self) -> Execution {
        match self {
            Consistency::ClusterLock | Consistency::ClusterLockEager | Consistency::Unordered => {
                Execution::SharedQueue
            }
            Consistency::PerCoreTable => Execution::Table,
            Consistency::PerCore => Execution::Arithmetic,
        }
    }
}

/// Where servers keep fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Storage {
    /// In memory.
    Memory,
    /// On the disk of the temporary directory; nothing is synced.
    Disk,
}

/// Which files the clients use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Files {
    /// Two, which all clients share.
    Few,
    /// 64, of which each client has its own share.
    Many,
}

impl Files {
    pub(crate) const ALL: [Files; 2] = [Files::Many, Files::Few];
    /// Files of [`Files::Few`].
    const FEW: usize = 2;
    /// Files of [`Files::Many`], over all clients.
    const MANY: usize = 64;

    /// Numbers of the files that a client uses, of so many clients.
    pub(crate) fn of(self, client: usize, clients: usize) -> std::ops::Range<usize> {
        match self {
            Files::Few => 0..Files::FEW,
            Files::Many => Files::MANY * client / clients..Files::MANY * (client + 1) / clients,
        }
    }

    /// Its name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Files::Few => "few",
            Files::Many => "many",
        }
    }
}

/// How long a server's thread is taken up by a message besides its own work, asleep.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct ServiceTime {
    /// For each message.
    pub(crate) us_per_message: f64,
    /// For each KiB of data.
    pub(crate) us_per_kib: f64,
}

impl ServiceTime {
    /// An assumption, not a measurement: a message takes as long as 25 KiB of data. As long as it
    /// can be slept.
    pub(crate) const BLOCKING: ServiceTime =
        ServiceTime { us_per_message: 1000.0, us_per_kib: 40.0 };

    /// In nanoseconds, for so many bytes.
    pub(crate) fn ns(self, bytes: u64) -> i64 {
        ((self.us_per_message + self.us_per_kib * bytes as f64 / 1024.0) * 1e3) as i64
    }
}

/// One thing to measure, in every mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cell {
    /// Do the servers' threads sleep for [`ServiceTime::BLOCKING`] besides their own work?
    pub(crate) is_blocking: bool,
    pub(crate) storage: Storage,
    pub(crate) files: Files,
    pub(crate) pattern: Pattern,
    pub(crate) block_bytes: u64,
    pub(crate) clients: usize,
}

impl Cell {
    /// Its name, block size and number of clients aside.
    pub(crate) fn group(&self) -> String {
        let service = if self.is_blocking { "blocking" } else { "cpu" };
        let storage = match self.storage {
            Storage::Memory => "memory",
            Storage::Disk => "disk",
        };
        format!("{service}/{storage}/{}/{}", self.files.name(), self.pattern.name())
    }

    /// Its name, block size aside.
    pub(crate) fn scenario(&self) -> String {
        format!("{}/{}-clients", self.group(), self.clients)
    }

    /// Its whole name.
    pub(crate) fn words(&self) -> String {
        format!("{} {}", self.scenario(), size_name(self.block_bytes))
    }
}

/// What is measured, for how long, how often.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) cells: Vec<Cell>,
    pub(crate) rounds: usize,
    pub(crate) warm_up: Duration,
    pub(crate) measure: Duration,
    /// How often the check of order looks.
    pub(crate) looks: usize,
}

impl Plan {
    /// Everything.
    pub(crate) fn whole() -> Plan {
        let mut cells = Vec::new();
        for clients in CLIENTS {
            let is_swept = clients == 1 || clients == 4;
            let blocks: &[u64] = if is_swept { &BLOCKS } else { &[BLOCKS[0], BLOCKS[2]] };
            cells.extend(grid(false, Storage::Memory, &Files::ALL, blocks, &[clients]));
        }
        cells.extend(grid(false, Storage::Disk, &[Files::Many], &[BLOCKS[0], BLOCKS[2]], &[4]));
        cells.extend(grid(true, Storage::Memory, &Files::ALL, &[BLOCKS[2]], &CLIENTS));
        let (warm_up, measure) = (Duration::from_millis(100), Duration::from_millis(300));
        Plan { cells, rounds: 3, warm_up, measure, looks: 1000 }
    }

    /// A few seconds, complete outputs, numbers without meaning.
    pub(crate) fn quick() -> Plan {
        let mut cells = grid(false, Storage::Memory, &Files::ALL, &[BLOCKS[0], BLOCKS[2]], &[1, 2]);
        cells.extend(grid(false, Storage::Disk, &[Files::Many], &[BLOCKS[0]], &[1]));
        cells.extend(grid(true, Storage::Memory, &[Files::Few], &[BLOCKS[0]], &[2]));
        let (warm_up, measure) = (Duration::from_millis(10), Duration::from_millis(30));
        Plan { cells, rounds: 1, warm_up, measure, looks: 50 }
    }
}

/// All cells over these.
fn grid(
    is_blocking: bool,
    storage: Storage,
    files: &[Files],
    blocks: &[u64],
    clients: &[usize],
) -> Vec<Cell> {
    let mut cells = Vec::new();
    for &files in files {
        for pattern in PATTERNS {
            for &clients in clients {
                let cell = |&block_bytes| Cell {
                    is_blocking,
                    storage,
                    files,
                    pattern,
                    block_bytes,
                    clients,
                };
                cells.extend(blocks.iter().map(cell));
            }
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_have_names_of_their_own() {
        for plan in [Plan::whole(), Plan::quick()] {
            let mut names: Vec<String> = plan.cells.iter().map(Cell::words).collect();
            let count = names.len();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), count);
        }
    }

    #[test]
    fn every_file_of_many_has_one_client_and_few_are_shared() {
        for clients in CLIENTS {
            let all: Vec<usize> =
                (0..clients).flat_map(|client| Files::Many.of(client, clients)).collect();
            assert_eq!(all, (0..Files::MANY).collect::<Vec<_>>());
            assert!((0..clients).all(|client| Files::Few.of(client, clients) == (0..2)));
        }
    }
}
