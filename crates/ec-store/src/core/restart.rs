//! Reads a core's journal again.
//!
//! Contract: gives what the last whole checkpoint, the deltas and the records say. Rule:
//! DirectCrc - a direct record whose bytes are not there ends its PG's part of the journal,
//! durably; this needs the shard's number and so waits for the PG's first view.

use super::format::{self, Entry};
use super::store::CoreStore;
use super::{CoreConfig, CoreError};
use crate::fragment::{FragmentFile, FragmentKey, FragmentStore, ReadMode, verify};
use crate::journal::{Journal, RecoveredEntry};
use crate::medium::{FRAGMENT_CALLS, JOURNAL_CALLS};
use crate::pg::shard::{Delta, Item, Lsn, Payload, Record, Replay, ShardStore};
use crate::space::DiskSpace;
use crate::superblock::DataDir;
use messenger::Handle;
use protocol::{ObjectId, PgId, ShardIndex};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Segments that a journal may still begin when writers are told that the disk is full: the rest of
/// one that was begun, and what removes files.
const JOURNAL_MARGIN_SEGMENTS: u64 = 2;

/// Opens journal and fragment store.
pub(super) fn open(
    dir: &DataDir,
    config: &CoreConfig,
    runtime: &Handle,
) -> Result<(CoreStore, HashMap<PgId, Replay>), CoreError> {
    let (root, cluster) =
        (dir.root().timed(runtime.operations(), &FRAGMENT_CALLS), dir.superblock().cluster);
    let fragments =
        FragmentStore::open(root, config.core, cluster, config.fragment, runtime.locks())?;
    let journal_dir = dir.journal_dir(config.core).timed(runtime.operations(), &JOURNAL_CALLS);
    let (journal, recovered) = Journal::open(journal_dir, config.journal)?;
    if let Some(torn) = recovered.torn {
        tracing::info!(core = %config.core, ?torn, "the journal ends in the middle of an entry and was cut there");
    }
    let mut segments: VecDeque<(u64, Lsn)> = VecDeque::new();
    for entry in &recovered.entries {
        let at = entry.location;
        if segments.back().is_none_or(|(number, _)| *number != at.segment) {
            segments.push_back((at.segment, Lsn(at.lsn)));
        }
    }
    let replays = replay(recovered.entries)?;
    let journal_bytes = JOURNAL_MARGIN_SEGMENTS * config.journal.journal_segment_bytes;
    let space = DiskSpace::new(Arc::clone(&config.disk), config.core.get(), journal_bytes);
    Ok((CoreStore::new(journal, fragments, segments, space), replays))
}

/// What the entries of a core's journal, oldest first, say of each PG: the last whole checkpoint,
/// and what came after it.
///
/// # Errors
/// [`CoreError::Entry`] for the first that this program does not write.
pub fn replay(recovered: Vec<RecoveredEntry>) -> Result<HashMap<PgId, Replay>, CoreError> {
    let mut entries = Vec::with_capacity(recovered.len());
    for raw in recovered {
        let lsn = raw.location.lsn;
        let entry = format::decode(raw.kind, &raw.front, &raw.data);
        entries.push((Lsn(lsn), entry.ok_or(CoreError::Entry { lsn, kind: raw.kind })?));
    }
    let (begin, number, upto) = last_checkpoint(&entries);
    let mut replays: HashMap<PgId, Replay> = HashMap::new();
    let mut within = None;
    for (at, (lsn, entry)) in entries.into_iter().enumerate() {
        match entry {
            Entry::Record(pg, record) if lsn >= upto => {
                replays.entry(pg).or_insert_with(|| Replay::new(pg)).record(lsn, record);
            }
            Entry::Record(..) => {}
            Entry::Delta(pg, delta) => {
                replays.entry(pg).or_insert_with(|| Replay::new(pg)).delta(&delta)
            }
            Entry::CheckpointBegin(_) => within = (Some(at) == begin).then_some(number),
            Entry::CheckpointPg(pg, state) if within.is_some() => {
                replays.entry(pg).or_insert_with(|| Replay::new(pg)).checkpoint(state);
            }
            Entry::CheckpointPg(..) => {}
            Entry::CheckpointEnd(_) => within = None,
        }
    }
    Ok(replays)
}

/// Place, number and reach of the last checkpoint that is whole.
fn last_checkpoint(entries: &[(Lsn, Entry)]) -> (Option<usize>, u64, Lsn) {
    let mut last = (None, 0, Lsn(0));
    let mut open = None;
    for (at, (_, entry)) in entries.iter().enumerate() {
        match entry {
            Entry::CheckpointBegin(begin) => open = Some((at, *begin)),
            Entry::CheckpointEnd(number) => {
                if let Some((at, begin)) = open.take().filter(|(_, begin)| begin.number == *number)
                {
                    last = (Some(at), begin.number, begin.upto);
                }
            }
            _ => {}
        }
    }
    last
}

/// Checks the bytes of a PG's direct records, and cuts at the first that lacks them.
pub(super) fn check_direct(
    store: &mut CoreStore,
    shard: ShardIndex,
    mut replay: Replay,
) -> Result<Replay, CoreError> {
    let pg = replay.pg();
    let DirectBytes { files, lacking } = look_at_direct(store, shard, &replay)?;
    for (lsn, record) in replay.placed() {
        let key = FragmentKey { pg, object: record.object, shard };
        if let Some(file) = store.open_damaged_too(key)? {
            store.keep_found(lsn, &file, record);
        }
    }
    // Rule: RestartSync - the bytes may be in the page cache only.
    store.put_back(super::sync_job::SyncFiles { files, dirs: Vec::new() });
    if let Some((lsn, object)) = lacking {
        tracing::warn!(%pg, %object, ?lsn, "the bytes of a direct record are not on the disk: the journal is cut there");
        let delta = Delta::CutFrom(lsn);
        store.append(pg, Item::Delta(&delta))?;
        replay.delta(&delta);
    }
    Ok(replay)
}

/// Does a direct record lack its bytes?
pub(super) fn lacks_direct(
    store: &mut CoreStore,
    shard: ShardIndex,
    replay: &Replay,
) -> Result<bool, CoreError> {
    Ok(look_at_direct(store, shard, replay)?.lacking.is_some())
}

/// What was found of the bytes of a PG's direct records.
struct DirectBytes {
    /// Those of records up to the first that lacks them.
    files: Vec<Arc<FragmentFile>>,
    /// That one.
    lacking: Option<(Lsn, ObjectId)>,
}

fn look_at_direct(
    store: &mut CoreStore,
    shard: ShardIndex,
    replay: &Replay,
) -> Result<DirectBytes, CoreError> {
    let mut files = Vec::new();
    for (lsn, record) in replay.direct() {
        let key = FragmentKey { pg: replay.pg(), object: record.object, shard };
        let file = store.open_damaged_too(key)?;
        if !file.as_ref().is_some_and(|file| has_bytes(file, key, record)) {
            return Ok(DirectBytes { files, lacking: Some((lsn, record.object)) });
        }
        files.extend(file);
    }
    Ok(DirectBytes { files, lacking: None })
}

fn has_bytes(file: &FragmentFile, key: FragmentKey, record: &Record) -> bool {
    let mut bytes = vec![0; record.length as usize];
    let (read, crcs) = match &record.payload {
        Payload::Direct(crcs) => {
            (file.read_raw(record.offset, &mut bytes, ReadMode::Blocking), crcs)
        }
        Payload::Placed(placed) => {
            (file.read_places(placed.placement(), 0, &mut bytes, ReadMode::Blocking), &placed.crcs)
        }
        Payload::Journalled(_) | Payload::Nothing => return true,
    };
    read.is_ok() && verify(key, record.offset, &mut bytes, crcs).is_ok()
}
