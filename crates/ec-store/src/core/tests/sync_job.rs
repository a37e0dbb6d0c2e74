//! One sync of a journal and of files beside it, by one thread and by several, on disks that are
//! full or fail.

use super::on_worker;
use crate::core::sync_job::{SyncFailure, SyncFiles, SyncJob, worse};
use crate::fragment::{
    FragmentConfig, FragmentFile, FragmentKey, FragmentStore, Mark, SECTOR_BYTES, sector_crcs,
};
use crate::journal::{Journal, JournalConfig};
use crate::medium::{Dir, Medium, Memory, OpenMode};
use messenger::sync::LockTable;
use protocol::{ClusterId, CoreId, Gfid, ObjectId, PgId, PoolId, Profile, ShardIndex};
use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const PG: PgId = PgId { pool: PoolId::new(1), number: 7 };

fn profile() -> Profile {
    Profile::new(2, 1, 512, 2 << 20).expect("a profile")
}

fn key(number: u32) -> FragmentKey {
    let object = ObjectId { gfid: Gfid::from_parts(1, 2), index: number };
    FragmentKey { pg: PG, object, shard: ShardIndex::new(0) }
}

/// A core's journal and fragments, without the core.
struct Parts {
    journal: Journal,
    fragments: FragmentStore,
}

impl Parts {
    fn open(dir: &Dir) -> Self {
        let config = JournalConfig { journal_segment_bytes: 64 << 10, ..JournalConfig::default() };
        let (mut journal, _) = Journal::open(dir.dir("journal"), config).expect("a journal");
        journal.append(1, b"an entry", &[], None).expect("appended");
        journal.flush().expect("flushed");
        let (core, cluster, locks) = (CoreId::new(0), ClusterId::new(3), LockTable::default());
        let config = FragmentConfig::default();
        let fragments =
            FragmentStore::open(dir.clone(), core, cluster, config, &locks).expect("a store");
        Self { journal, fragments }
    }

    fn write(&mut self, number: u32, offset: u64) -> Arc<FragmentFile> {
        let bytes = [number as u8; SECTOR_BYTES as usize];
        let mut crcs = Vec::new();
        sector_crcs(&bytes, &mut crcs);
        self.fragments
            .write(key(number), profile(), offset, &bytes, &crcs, Mark::default())
            .expect("written");
        self.fragments.get(key(number)).expect("readable").expect("there")
    }

    /// Of all that is dirty; how many steps it has made.
    fn job(&self, dirs: Vec<(PgId, Dir)>) -> (SyncJob, Arc<AtomicU64>) {
        let steps = Arc::new(AtomicU64::new(0));
        let beside = SyncFiles { files: self.fragments.dirty_files().cloned().collect(), dirs };
        (SyncJob::new(self.journal.sync_handle(), beside, Arc::clone(&steps)), steps)
    }
}

#[test]
fn everything_is_synced_by_any_number_of_threads() {
    on_worker(|worker| async move {
        for (lanes, files) in [(1, 0), (1, 100), (3, 2), (4, 100), (64, 7)] {
            let dir = tempfile::tempdir().expect("a directory");
            let mut parts = Parts::open(&Dir::from(dir.path()));
            let written: Vec<_> = (0..files).map(|number| parts.write(number, 0)).collect();
            let (job, steps) = parts.job(Vec::new());
            let synced = job.run_aside(&worker, lanes).await.expect("synced");
            assert_eq!(synced, parts.journal.flushed_lsn());
            assert!(written.iter().all(|file| !file.is_dirty()), "{lanes} threads, {files} files");
            assert_eq!(
                steps.load(Ordering::Relaxed),
                2 + u64::from(files),
                "the journal, each file, the names"
            );
        }
    });
}

#[test]
fn a_full_disk_gives_everything_back_to_be_tried_again() {
    on_worker(|worker| async move {
        let memory = Arc::new(Memory::new(2 << 20, &LockTable::default()));
        let dir = Dir::new(memory.clone(), Path::new("/nowhere"));
        let mut parts = Parts::open(&dir);
        // an entry of the table's second page, which is taken when it is written back
        let behind = parts.write(0, 1500 * SECTOR_BYTES);
        parts.write(1, 0);
        parts.write(2, 0);
        let filler =
            memory.open(Path::new("/nowhere/filler"), OpenMode::Truncated).expect("a file");
        let page = [1; 4096];
        let filled =
            (0..).find(|n| filler.write_at(&[IoSlice::new(&page)], n * page.len() as u64).is_err());
        assert!(filled > Some(0), "there was space left to fill");
        for lanes in [1, 4] {
            let (job, _) = parts.job(vec![(PG, dir.dir("pg"))]);
            let (failure, beside) =
                job.run_aside(&worker, lanes).await.expect_err("the disk is full");
            assert_eq!(failure, SyncFailure::Full);
            assert_eq!((beside.files.len(), beside.dirs.len()), (3, 1), "with {lanes} threads");
            assert!(behind.is_dirty() && !behind.has_sync_failed());
            // those that were synced are among what is given back, and are synced once more
            (1..3).for_each(|number| _ = parts.write(number, SECTOR_BYTES));
        }
        filler.set_len(0).expect("space");
        let (job, _) = parts.job(Vec::new());
        assert_eq!(job.run().expect("synced"), parts.journal.flushed_lsn());
        assert_eq!(parts.fragments.dirty_files().count(), 0);
    });
}

#[test]
fn a_directory_that_cannot_be_synced_loses() {
    let dir = tempfile::tempdir().expect("a directory");
    let parts = Parts::open(&Dir::from(dir.path()));
    let (job, _) = parts.job(vec![(PG, Dir::from(dir.path()).dir("absent"))]);
    let (failure, _) = job.run().expect_err("there is no such directory");
    assert!(matches!(&failure, SyncFailure::Lost(why) if why.contains("absent")), "{failure:?}");
}

#[test]
fn what_is_lost_is_never_taken_for_a_full_disk() {
    let (full, lost) =
        (|| Err(SyncFailure::Full), || Err(SyncFailure::Lost("an error".to_owned())));
    assert_eq!([worse(full(), lost()), worse(lost(), full())], [lost(), lost()]);
    assert_eq!([worse(Ok(()), full()), worse(full(), Ok(()))], [full(), full()]);
    assert_eq!([worse(Ok(()), lost()), worse(lost(), Ok(()))], [lost(), lost()]);
    assert_eq!(worse(Ok(()), Ok(())), Ok(()));
}
