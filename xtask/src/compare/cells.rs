//! What is measured: the cells, the sets of them, and how large each set does things. Nothing is
//! run here.

use crate::error::{Outcome, fail};

/// A set of cells; each holds all of the one before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, clap::ValueEnum)]
pub enum Set {
    /// A few cells for a second each, to see that all of this works; its numbers mean nothing
    Smoke,
    /// The cells that decide most, in some minutes for each peer
    Quick,
    /// Everything, in most of an hour
    Full,
}

impl Set {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Set::Smoke => "smoke",
            Set::Quick => "quick",
            Set::Full => "full",
        }
    }

    /// How large it does things.
    pub fn sizes(self) -> Sizes {
        match self {
            Set::Smoke => Sizes {
                seconds: 1,
                runs: 1,
                file_mib: 8,
                client_file_mib: 4,
                dd_mib: 16,
                names: 30,
                tree_files: 20,
                heal_mib: 16,
            },
            Set::Quick => Sizes {
                seconds: 4,
                runs: 3,
                file_mib: 128,
                client_file_mib: 64,
                dd_mib: 256,
                names: 2_000,
                tree_files: 1_500,
                heal_mib: 256,
            },
            Set::Full => Sizes {
                seconds: 10,
                runs: 3,
                file_mib: 256,
                client_file_mib: 64,
                dd_mib: 1024,
                names: 10_000,
                tree_files: 5_000,
                heal_mib: 1024,
            },
        }
    }
}

/// How much of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Seconds that fio runs for each cell.
    pub seconds: u64,
    /// Runs of each cell on each system.
    pub runs: u32,
    /// MiB of each of the files that fio's jobs use.
    pub file_mib: u64,
    /// MiB of each of the files that several clients read.
    pub client_file_mib: u64,
    /// MiB that dd writes and reads.
    pub dd_mib: u64,
    /// Names that are created, looked up, renamed and removed.
    pub names: u64,
    /// Files of the tree, at most.
    pub tree_files: u64,
    /// MiB written while a part is away.
    pub heal_mib: u64,
}

/// A workload of fio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FioJob {
    /// As fio names it: `randread`, `randrw`.
    pub rw: &'static str,
    /// As fio names it: `4k`.
    pub block: &'static str,
    /// Requests in flight of each job.
    pub depth: u32,
    /// Jobs, each with a file of its own.
    pub jobs: u32,
    /// An fsync after every write.
    pub fsync: bool,
}

/// A call on names of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum NameCall {
    /// `open(O_CREAT | O_EXCL)` and `close`
    Create,
    /// `stat`
    Stat,
    /// The whole directory, without looking at what the names are of
    Readdir,
    /// `rename` within the directory
    Rename,
    /// `unlink`
    Unlink,
}

/// What is done with a tree of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeCall {
    /// `tar x`
    Extract,
    /// `ls -lR`
    List,
    /// `rm -rf`
    Remove,
}

/// What a cell does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// fio on the one mount.
    Fio(FioJob),
    /// dd, buffered: the write with an fsync at its end, or the read of what it wrote.
    Dd {
        /// Or read.
        write: bool,
    },
    /// One step over many names.
    Names(NameCall),
    /// One step over a tree.
    Tree(TreeCall),
    /// fio with so many mounts, one job on each.
    Clients(u32),
    /// Resident memory of every process, after all cells without faults.
    Memory,
    /// fio while one brick or OSD is dead.
    Dead(FioJob),
    /// What was written while one brick or OSD was away is made whole.
    Heal,
    /// fio on files that were written while one brick or OSD was away, from its return on.
    Healing(FioJob),
}

/// A cell of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Its name in reports and on the command line.
    pub name: &'static str,
    /// The smallest set that has it.
    pub from: Set,
    /// What it does.
    pub work: Work,
    /// Requests in flight in all, where a sweep over them says so instead of the cell.
    pub in_flight: Option<u32>,
}

const fn fio(rw: &'static str, block: &'static str) -> FioJob {
    FioJob { rw, block, depth: 8, jobs: 4, fsync: false }
}

const fn alone(rw: &'static str) -> FioJob {
    FioJob { rw, block: "4k", depth: 1, jobs: 1, fsync: false }
}

const fn cell(name: &'static str, from: Set, work: Work) -> Cell {
    Cell { name, from, work, in_flight: None }
}

/// Every cell, in the order of measuring. Those that kill something come last.
pub const CELLS: [Cell; 38] = [
    cell("randread-4k", Set::Smoke, Work::Fio(fio("randread", "4k"))),
    cell("randwrite-4k", Set::Smoke, Work::Fio(fio("randwrite", "4k"))),
    cell("randread-16k", Set::Full, Work::Fio(fio("randread", "16k"))),
    cell("randwrite-16k", Set::Full, Work::Fio(fio("randwrite", "16k"))),
    cell("randread-64k", Set::Quick, Work::Fio(fio("randread", "64k"))),
    cell("randwrite-64k", Set::Quick, Work::Fio(fio("randwrite", "64k"))),
    cell("randread-256k", Set::Full, Work::Fio(fio("randread", "256k"))),
    cell("randwrite-256k", Set::Full, Work::Fio(fio("randwrite", "256k"))),
    cell("randread-1m", Set::Quick, Work::Fio(fio("randread", "1m"))),
    cell("randwrite-1m", Set::Quick, Work::Fio(fio("randwrite", "1m"))),
    cell("read-1m", Set::Quick, Work::Fio(fio("read", "1m"))),
    cell("write-1m", Set::Quick, Work::Fio(fio("write", "1m"))),
    cell("mix-64k", Set::Full, Work::Fio(fio("randrw", "64k"))),
    cell("latency-read-4k", Set::Quick, Work::Fio(alone("randread"))),
    cell("latency-write-4k", Set::Quick, Work::Fio(alone("randwrite"))),
    cell("fsync-4k", Set::Smoke, Work::Fio(FioJob { fsync: true, ..alone("randwrite") })),
    cell("dd-write", Set::Full, Work::Dd { write: true }),
    cell("dd-read", Set::Full, Work::Dd { write: false }),
    cell("create", Set::Smoke, Work::Names(NameCall::Create)),
    cell("stat", Set::Smoke, Work::Names(NameCall::Stat)),
    cell("readdir", Set::Full, Work::Names(NameCall::Readdir)),
    cell("rename", Set::Smoke, Work::Names(NameCall::Rename)),
    cell("unlink", Set::Smoke, Work::Names(NameCall::Unlink)),
    cell("tar-x", Set::Smoke, Work::Tree(TreeCall::Extract)),
    cell("ls-lR", Set::Full, Work::Tree(TreeCall::List)),
    cell("rm-rf", Set::Smoke, Work::Tree(TreeCall::Remove)),
    cell("clients-1", Set::Full, Work::Clients(1)),
    cell("clients-2", Set::Full, Work::Clients(2)),
    cell("clients-4", Set::Full, Work::Clients(4)),
    cell("clients-8", Set::Full, Work::Clients(8)),
    cell("memory", Set::Smoke, Work::Memory),
    cell("dead-randread-4k", Set::Full, Work::Dead(fio("randread", "4k"))),
    cell("dead-randwrite-4k", Set::Full, Work::Dead(fio("randwrite", "4k"))),
    cell("dead-randread-64k", Set::Full, Work::Dead(fio("randread", "64k"))),
    cell("dead-randwrite-64k", Set::Full, Work::Dead(fio("randwrite", "64k"))),
    cell("heal", Set::Full, Work::Heal),
    cell("healing-randread-4k", Set::Full, Work::Healing(fio("randread", "4k"))),
    cell("healing-randwrite-4k", Set::Full, Work::Healing(fio("randwrite", "4k"))),
];

/// What `clients-N` cells do on each mount.
pub const CLIENT_JOB: FioJob =
    FioJob { rw: "randread", block: "4k", depth: 8, jobs: 1, fsync: false };
/// Mounts of the cell with the most.
pub const CLIENTS_MAX: u32 = 8;

/// Jobs of a cell with so many requests in flight, at most: those of the other random cells.
const JOBS_MAX: u32 = 4;

impl Cell {
    /// Its name in raw data, where it is measured with several numbers of requests in flight.
    pub fn title(&self) -> String {
        self.in_flight
            .map_or_else(|| self.name.to_owned(), |count| format!("{}@{count}", self.name))
    }

    /// The name of the cell that a title was made of.
    pub fn name_of(title: &str) -> &str {
        title.split('@').next().unwrap_or(title)
    }

    /// This cell with so many requests in flight in all, spread evenly over as many jobs as that
    /// allows; `None` if it is not one of random I/O without fsync.
    pub fn with_in_flight(&self, count: u32) -> Option<Cell> {
        let Work::Fio(job) = self.work else { return None };
        let jobs = (1..=JOBS_MAX).rev().find(|jobs| count.is_multiple_of(*jobs))?;
        let job = FioJob { depth: count / jobs, jobs, ..job };
        let random = job.rw.starts_with("rand") && !job.fsync;
        random.then_some(Cell { work: Work::Fio(job), in_flight: Some(count), ..*self })
    }

    /// What it does, in words for the report.
    pub fn about(&self) -> String {
        let fio = |job: &FioJob| {
            let mix = if job.rw == "randrw" { " (80% reads)" } else { "" };
            let fsync = if job.fsync {
                ", fsync after each write; latencies are those of the fsyncs"
            } else {
                ""
            };
            format!(
                "fio {}{mix} {}, direct, {} in flight x {} jobs{fsync}",
                job.rw, job.block, job.depth, job.jobs
            )
        };
        match &self.work {
            Work::Fio(job) => fio(job),
            Work::Dead(job) => format!("{}; one brick or OSD dead", fio(job)),
            Work::Clients(count) => format!("{}, on each of {count} mounts", fio(&CLIENT_JOB)),
            Work::Dd { write: true } => "dd bs=1M conv=fsync, buffered".into(),
            Work::Dd { write: false } => "dd bs=1M of what was written, buffered, **cold**".into(),
            Work::Names(NameCall::Create) => {
                "open(O_CREAT, O_EXCL) and close, one thread, one directory".into()
            }
            Work::Names(NameCall::Stat) => "stat of each name, **cold**".into(),
            Work::Names(NameCall::Readdir) => "names of the directory listed, **cold**".into(),
            Work::Names(NameCall::Rename) => "rename of each name in its directory".into(),
            Work::Names(NameCall::Unlink) => "unlink of each name".into(),
            Work::Tree(TreeCall::Extract) => "tar x of a source tree; entries".into(),
            Work::Tree(TreeCall::List) => "ls -lR of it, **cold**; entries".into(),
            Work::Tree(TreeCall::Remove) => "rm -rf of it; entries".into(),
            Work::Memory => "resident memory (VmRSS) after all cells without faults".into(),
            Work::Healing(job) => format!(
                "{}; from the return of a brick or OSD on that missed these files",
                fio(job)
            ),
            Work::Heal => {
                "written while a brick or OSD was away, from its start until clean".into()
            }
        }
    }
}

/// The cells of a set, or those of all that are named, in the order of measuring.
///
/// # Errors
/// When there is no cell of a name: with all that there are.
pub fn choose(set: Set, only: &[String]) -> Outcome<Vec<Cell>> {
    if let Some(unknown) = only.iter().find(|name| !CELLS.iter().any(|cell| cell.name == **name)) {
        let names: Vec<&str> = CELLS.iter().map(|cell| cell.name).collect();
        return fail(format!("no cell `{unknown}`; there are: {}", names.join(", ")));
    }
    let wanted = |cell: &Cell| {
        if only.is_empty() { cell.from <= set } else { only.iter().any(|n| n == cell.name) }
    };
    Ok(CELLS.into_iter().filter(wanted).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_differ_and_faults_come_last() {
        let names: BTreeSet<&str> = CELLS.iter().map(|cell| cell.name).collect();
        assert_eq!(names.len(), CELLS.len());
        let faulty =
            |cell: &Cell| matches!(cell.work, Work::Dead(_) | Work::Heal | Work::Healing(_));
        let first = CELLS.iter().position(faulty).unwrap();
        assert!(CELLS[first..].iter().all(faulty));
        assert_eq!(CELLS[first - 1].work, Work::Memory);
    }

    #[test]
    fn sets_grow_and_names_choose() {
        let count = |set| choose(set, &[]).unwrap().len();
        assert!(0 < count(Set::Smoke) && count(Set::Smoke) < count(Set::Quick));
        assert_eq!(count(Set::Full), CELLS.len());
        let two = choose(Set::Smoke, &["heal".into(), "randread-1m".into()]).unwrap();
        assert_eq!(two.iter().map(|cell| cell.name).collect::<Vec<_>>(), ["randread-1m", "heal"]);
    }

    #[test]
    fn what_is_in_flight_is_spread_over_jobs() {
        let cell = |name: &str| choose(Set::Full, &[name.to_owned()]).unwrap()[0];
        for (count, depth, jobs) in
            [(1, 1, 1), (2, 1, 2), (3, 1, 3), (4, 1, 4), (5, 5, 1), (6, 2, 3), (64, 16, 4)]
        {
            let some = cell("randread-4k").with_in_flight(count).unwrap();
            let Work::Fio(job) = some.work else { panic!("no fio") };
            assert_eq!(
                (job.depth, job.jobs, some.title()),
                (depth, jobs, format!("randread-4k@{count}"))
            );
            assert_eq!(Cell::name_of(&some.title()), "randread-4k");
        }
        for other in ["fsync-4k", "read-1m", "create", "dead-randread-4k"] {
            assert!(cell(other).with_in_flight(4).is_none(), "{other}");
        }
    }

    #[test]
    fn an_unknown_cell_is_told_all_names() {
        let error = choose(Set::Full, &["randread-3k".into()]).unwrap_err().to_string();
        assert!(
            error.contains("`randread-3k`")
                && error.contains("randread-4k")
                && error.contains("heal"),
            "{error}"
        );
    }
}
