//! The directory of a process's replicas.

use crate::file;
use bytes::{BufMut, Bytes, BytesMut};
use consensus::{
    GroupId, HardState, Index, Persist, Record, Recovered, Replay, ReplicaId, Step, Term,
};
use ec_store::journal::{Journal, JournalConfig, JournalError, OnDamage, RecoveredEntry};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The kind of a checkpoint in the journal; smaller ones are those of [`Record`]. Its data is, for
/// each group, the records of its promises and of its cut: a length (1), a kind (1) and the front.
const CHECKPOINT: u8 = 100;

/// The limits of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogConfig {
    /// Bytes of a segment: the largest entry has to fit.
    pub segment_bytes: u64,
    /// Bytes of all segments. A group whose log grows by a quarter of this needs a snapshot.
    pub bytes_max: u64,
}

impl Default for LogConfig {
    /// 16 MiB and 256 MiB.
    fn default() -> Self {
        Self { segment_bytes: 16 << 20, bytes_max: 256 << 20 }
    }
}

/// Why the log cannot do something. Nothing that it had acknowledged is lost, unless it says so.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A file beside it.
    #[error("{path}: {source}", path = path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file, or a record, is not what was written: the replica has lost promises. Where there are
    /// others, the way out is an empty directory, of a replica to which they tell everything.
    #[error("{path} is damaged: what this replica has promised may be lost", path = path.display())]
    Damaged {
        /// Which file, or the journal.
        path: PathBuf,
    },
    /// There is a replica already.
    #[error("{dir} holds a replica already", dir = dir.display())]
    Exists {
        /// The directory.
        dir: PathBuf,
    },
    /// There is none.
    #[error("{dir} holds no replica", dir = dir.display())]
    Missing {
        /// The directory.
        dir: PathBuf,
    },
}

/// What has to be said again in each segment of one group.
#[derive(Clone, Copy, Debug, Default)]
struct Kept {
    hard: Option<HardState>,
    cut: Option<(Index, Term)>,
}

/// The log and the snapshots of a process.
#[derive(Debug)]
pub struct LogStore {
    dir: PathBuf,
    replica: ReplicaId,
    journal: Journal,
    kept: BTreeMap<GroupId, Kept>,
    /// For each segment, the last entry of each group in it.
    segments: BTreeMap<u64, BTreeMap<GroupId, Index>>,
}

impl LogStore {
    /// Makes the directory that of a replica. `groups`: what each begins with, see
    /// [`Recovered::first`] and [`Recovered::blank`].
    ///
    /// # Errors
    /// `Exists`, also after a creation that was cut short but for its very end; `File`, `Journal`.
    pub fn create(
        dir: &Path,
        replica: ReplicaId,
        groups: &[Recovered],
        config: LogConfig,
    ) -> Result<(), LogError> {
        let failed = |source| LogError::File { path: dir.to_path_buf(), source };
        fs::create_dir_all(dir).map_err(failed)?;
        if file::replica_path(dir).exists() {
            return Err(LogError::Exists { dir: dir.to_path_buf() });
        }
        // what a creation that was cut short has left
        if fs::exists(log_dir(dir)).map_err(failed)? {
            fs::remove_dir_all(log_dir(dir)).map_err(failed)?;
        }
        let mut store = Self::begin(dir, replica, config, |_| Ok(()))?;
        let persists =
            groups.iter().filter(|group| group.snapshot.is_some()).map(|group| Persist {
                number: 0,
                group: group.group,
                snapshot: group.snapshot.clone(),
                restarts: true,
                append: Vec::new(),
                hard: Some(group.hard),
            });
        store.keep(&persists.collect::<Vec<_>>())?;
        // last, so that a directory with it is whole
        file::write_replica(dir, replica)
            .map_err(|source| LogError::File { path: file::replica_path(dir), source })
    }

    /// Which replica a directory is; `None` if it is none yet.
    ///
    /// # Errors
    /// `File`, `Damaged`.
    pub fn replica_in(dir: &Path) -> Result<Option<ReplicaId>, LogError> {
        file::read_replica(dir).map_err(|error| unread(file::replica_path(dir), error))
    }

    /// Opens a directory, and gives back these groups as they are there; those of which it knows
    /// nothing are blank.
    ///
    /// # Errors
    /// `Missing`, `Damaged`, `File`, `Journal`.
    pub fn open(
        dir: &Path,
        groups: &[GroupId],
        config: LogConfig,
    ) -> Result<(Self, Vec<Recovered>), LogError> {
        let replica =
            Self::replica_in(dir)?.ok_or_else(|| LogError::Missing { dir: dir.to_path_buf() })?;
        let mut replay = Replay::default();
        let store = Self::begin(dir, replica, config, |record| {
            replay.take(record);
            Ok(())
        })?;
        let group = |&group: &GroupId| {
            let path = file::snapshot_path(dir, group.0);
            let snapshot = file::read_snapshot(&path).map_err(|error| unread(path, error))?;
            Ok(replay.group(group, snapshot))
        };
        let recovered = groups.iter().map(group).collect::<Result<_, LogError>>()?;
        Ok((store, recovered))
    }

    /// Opens the journal, and hands over its records.
    fn begin(
        dir: &Path,
        replica: ReplicaId,
        config: LogConfig,
        mut take: impl FnMut(Record) -> Result<(), LogError>,
    ) -> Result<Self, LogError> {
        let journal_config = JournalConfig {
            journal_segment_bytes: config.segment_bytes,
            journal_bytes_max: config.bytes_max,
            on_damage: OnDamage::Refuse,
        };
        let (journal, recovered) = Journal::open(log_dir(dir).as_path(), journal_config)?;
        let (kept, segments) = Default::default();
        let mut store = Self { dir: dir.to_path_buf(), replica, journal, kept, segments };
        for entry in recovered.entries {
            for record in store.records(&entry)? {
                store.note(&record, entry.location.segment);
                take(record)?;
            }
        }
        Ok(store)
    }

    /// Which replica it is.
    pub fn replica(&self) -> ReplicaId {
        self.replica
    }

    /// Bytes in the log. It gets smaller with snapshots.
    pub fn bytes(&self) -> u64 {
        self.journal.bytes()
    }

    /// Did a write or a sync fail? Then the directory has to be opened again.
    pub fn is_poisoned(&self) -> bool {
        self.journal.is_poisoned()
    }

    /// Keeps everything, in this order, and waits until it is on the disk. Rule: HardSync. What
    /// needs no snapshot shares one sync.
    ///
    /// # Errors
    /// `File`, `Journal`: what of it is on the disk is unknown. Unless [`LogStore::is_poisoned`],
    /// all of it may be kept again: a record that is there twice says nothing else.
    pub fn keep(&mut self, persists: &[Persist]) -> Result<(), LogError> {
        let mut synced = true;
        for persist in persists {
            for step in persist.steps(protocol::Rules::default()) {
                let group = persist.group.0;
                let failed =
                    |source| LogError::File { path: file::snapshot_path(&self.dir, group), source };
                match step {
                    Step::WriteSnapshot => {
                        if let Some(snapshot) = &persist.snapshot {
                            file::write_snapshot(&self.dir, group, snapshot).map_err(failed)?;
                        }
                    }
                    Step::RenameSnapshot => {
                        file::rename_snapshot(&self.dir, group).map_err(failed)?
                    }
                    Step::Cut => {
                        Record::of_cut(persist).iter().try_for_each(|record| self.append(record))?
                    }
                    Step::Append => {
                        Record::of_append(persist).try_for_each(|record| self.append(&record))?
                    }
                    Step::Sync => synced = false,
                }
            }
        }
        if !synced {
            self.journal.sync()?;
        }
        self.trim()
    }

    fn append(&mut self, record: &Record) -> Result<(), LogError> {
        let (kind, front, data) = record.encode();
        let at = match record {
            Record::Entry(..) if data.is_empty() => self.journal.append(kind, &front, &[], None)?,
            Record::Entry(..) => self.journal.append(kind, &front, &[data], None)?,
            // also when it is full: without them no snapshot lets anything go
            Record::Hard(..) | Record::Cut(..) | Record::Restart(..) => {
                self.journal.append_exempt(kind, &front, &[])?
            }
        };
        self.note(record, at.segment);
        // behind the record, and so with what it says
        if self.journal.needs_checkpoint() {
            let checkpoint = self.checkpoint();
            self.journal.append_checkpoint(CHECKPOINT, &[], &[checkpoint])?;
        }
        Ok(())
    }

    /// Remembers what a record says for checkpoints and trimming.
    fn note(&mut self, record: &Record, segment: u64) {
        let (Record::Entry(group, _) | Record::Hard(group, _)) = record else {
            let (Record::Cut(group, index, term) | Record::Restart(group, index, term)) = record
            else {
                return;
            };
            self.kept.entry(*group).or_default().cut = Some((*index, *term));
            if let Record::Restart(..) = record {
                for groups in self.segments.values_mut() {
                    groups.remove(group);
                }
            }
            return;
        };
        match record {
            Record::Entry(_, entry) => {
                let last = self.segments.entry(segment).or_default().entry(*group).or_default();
                *last = (*last).max(entry.index);
            }
            Record::Hard(_, hard) => self.kept.entry(*group).or_default().hard = Some(*hard),
            Record::Cut(..) | Record::Restart(..) => {}
        }
    }

    fn checkpoint(&self) -> Bytes {
        let mut out = BytesMut::new();
        for (group, kept) in &self.kept {
            let hard = kept.hard.map(|hard| Record::Hard(*group, hard));
            let cut = kept.cut.map(|(index, term)| Record::Cut(*group, index, term));
            for record in hard.into_iter().chain(cut) {
                let (kind, front, _) = record.encode();
                out.put_u8(front.len() as u8);
                out.put_u8(kind);
                out.put_slice(&front);
            }
        }
        out.freeze()
    }

    /// The records of an entry of the journal: one, or those of a checkpoint.
    fn records(&self, entry: &RecoveredEntry) -> Result<Vec<Record>, LogError> {
        let damaged = || LogError::Damaged { path: log_dir(&self.dir) };
        if entry.kind != CHECKPOINT {
            let record = Record::decode(entry.kind, &entry.front, entry.data.clone());
            return record.map(|record| vec![record]).ok_or_else(damaged);
        }
        let (mut records, mut rest) = (Vec::new(), &entry.data[..]);
        while let [length, kind, more @ ..] = rest {
            let (front, behind) =
                more.split_at_checked(usize::from(*length)).ok_or_else(damaged)?;
            records.push(Record::decode(*kind, front, Bytes::new()).ok_or_else(damaged)?);
            rest = behind;
        }
        if rest.is_empty() { Ok(records) } else { Err(damaged()) }
    }

    /// Lets segments go whose entries are all in snapshots.
    fn trim(&mut self) -> Result<(), LogError> {
        let current = self.journal.current_segment();
        let cut = |group: &GroupId| {
            self.kept.get(group).and_then(|kept| kept.cut).map_or(0, |(index, _)| index)
        };
        let needed = |groups: &BTreeMap<GroupId, Index>| {
            groups.iter().any(|(group, last)| *last > cut(group))
        };
        let first = self
            .segments
            .iter()
            .find(|(_, groups)| needed(groups))
            .map_or(current, |(number, _)| *number);
        if self.journal.segments().next().is_some_and(|oldest| oldest < first.min(current)) {
            self.journal.trim(first.min(current))?;
            self.segments.retain(|number, _| *number >= first.min(current));
        }
        Ok(())
    }
}

fn log_dir(dir: &Path) -> PathBuf {
    dir.join("log")
}

fn unread(path: PathBuf, source: io::Error) -> LogError {
    if source.kind() == io::ErrorKind::InvalidData {
        LogError::Damaged { path }
    } else {
        LogError::File { path, source }
    }
}
