//! The fragment store against a model, crashes before a sync, a flip of every byte, and disks that
//! are full or fail.

use super::*;
use crate::medium::{Dir, Memory};
use messenger::sync::LockTable;
use proptest::prelude::*;
use protocol::ids::{CoreId, Gfid, PoolId};
use std::cell::RefCell;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

const CORE: CoreId = CoreId::new(0);
const CLUSTER: ClusterId = ClusterId::new(77);
const PG: PgId = PgId { pool: PoolId::new(3), number: 0x1f };
/// Fragments of 1 MiB: two pages of the CRC table.
const SECTORS: u64 = 2048;
/// Bytes of a slot: two sectors.
const SLOT: u64 = 2 * SECTOR_BYTES;
/// Where data begins in a file.
const DATA_START: u64 = 1 << 20;
/// Where the map of slots begins in a file.
const MAP_START: u64 = DATA_START + SECTORS * SECTOR_BYTES;

fn profile() -> Profile {
    Profile::new(2, 1, 512, 2 * SECTORS * SECTOR_BYTES).unwrap()
}

fn key(index: u32) -> FragmentKey {
    let object = ObjectId { gfid: Gfid::from_parts(0xabc, 5), index };
    FragmentKey { pg: PG, object, shard: ShardIndex::new(1) }
}

fn common() -> file::Common {
    file::Common {
        cluster: CLUSTER,
        memory: Arc::default(),
        slot_bytes: SLOT as u32,
        locks: LockTable::default(),
    }
}

fn open(dir: &Path) -> FragmentStore {
    let config = FragmentConfig { fragment_slot_bytes: SLOT as u32, ..FragmentConfig::default() };
    FragmentStore::open(dir, CORE, CLUSTER, config, &LockTable::default()).unwrap()
}

fn mark(seq: u64, logical_end: u64) -> Mark {
    let version =
        FragmentVersion { session: SessionId::new(4), seq: Seq::new(seq), epoch: Epoch::new(2) };
    Mark { version, logical_end }
}

fn sectors(fill: u8, count: u64) -> (Vec<u8>, Vec<u32>) {
    let bytes: Vec<u8> = (0..count * SECTOR_BYTES)
        .map(|i| fill ^ (i / SECTOR_BYTES) as u8 ^ (i % 3) as u8)
        .collect();
    let mut crcs = Vec::new();
    sector_crcs(&bytes, &mut crcs);
    (bytes, crcs)
}

/// Writes `count` sectors from sector `first` on.
fn write(
    store: &mut FragmentStore,
    index: u32,
    first: u64,
    count: u64,
    fill: u8,
) -> Result<(), FragmentError> {
    let (bytes, crcs) = sectors(fill, count);
    store.write(
        key(index),
        profile(),
        first * SECTOR_BYTES,
        &bytes,
        &crcs,
        mark(u64::from(fill), 10),
    )
}

fn read(
    store: &mut FragmentStore,
    index: u32,
    first: u64,
    count: u64,
) -> Result<Vec<u8>, FragmentError> {
    let mut buf = vec![0xee; (count * SECTOR_BYTES) as usize];
    match store.read(key(index), first * SECTOR_BYTES, &mut buf, ReadMode::Blocking)? {
        ReadOutcome::WouldBlock => panic!("a blocking read blocks"),
        ReadOutcome::Read | ReadOutcome::Absent => Ok(buf),
    }
}

/// Bytes that were placed over whole slots.
struct PlacedBytes {
    first: u64,
    slot_bytes: u32,
    places: Box<[u16]>,
    bytes: Vec<u8>,
    crcs: Vec<u32>,
    /// Places that slots have left for them.
    left: RefCell<Vec<u16>>,
}

impl PlacedBytes {
    fn placement(&self) -> Placement<'_> {
        Placement { slot_bytes: self.slot_bytes, places: &self.places }
    }

    fn point(&self, file: &FragmentFile, mark: Mark) {
        let left = file.point(self.first * SLOT, self.placement(), &self.crcs, mark).unwrap();
        self.left.borrow_mut().extend(left);
    }

    /// No record names them any more.
    fn let_go(&self, file: &FragmentFile) {
        file.let_go(&self.places);
        file.let_go(&self.left.borrow());
    }

    fn is_there(&self, file: &FragmentFile) -> bool {
        let mut bytes = vec![0; self.bytes.len()];
        file.read_places(self.placement(), 0, &mut bytes, ReadMode::Blocking).unwrap();
        bytes == self.bytes
    }
}

/// Places bytes for `count` slots from slot `first` on; `None`: there is no room.
fn place(file: &FragmentFile, first: u64, count: u64, fill: u8) -> Option<PlacedBytes> {
    let (bytes, crcs) = sectors(fill, count * SLOT / SECTOR_BYTES);
    let (slot_bytes, places) = file.place(first * SLOT, &bytes).unwrap()?;
    Some(PlacedBytes { first, slot_bytes, places, bytes, crcs, left: RefCell::default() })
}

/// Places bytes and lets them be the slots'; no record names them any more.
fn move_slots(file: &FragmentFile, first: u64, count: u64, fill: u8) {
    let placed = place(file, first, count, fill).unwrap();
    placed.point(file, mark(u64::from(fill), 10));
    placed.let_go(file);
}

/// Writes the first 8 sectors of a fragment, and gives its file.
fn written(dir: &Path) -> std::path::PathBuf {
    let mut store = open(dir);
    write(&mut store, 0, 0, 8, 1).unwrap();
    store.sync(key(0)).unwrap();
    path_of(dir, 0)
}

/// Makes a file's header that of another format.
fn set_format(path: &Path, format: u32) {
    let mut bytes = fs::read(path).unwrap();
    bytes[8..12].copy_from_slice(&format.to_le_bytes());
    if format < 3 {
        bytes[112..116].fill(0);
    }
    let crc = crc32c::crc32c(&bytes[..124]);
    bytes[124..128].copy_from_slice(&crc.to_le_bytes());
    fs::write(path, bytes).unwrap();
}

/// Makes a file what a program of an older format would have written.
fn make_older(path: &Path, format: u32) {
    let mut bytes = fs::read(path).unwrap();
    let first_page = (128 + SECTORS as usize * 4).next_multiple_of(4096);
    bytes.drain(first_page..DATA_START as usize);
    fs::write(path, bytes).unwrap();
    set_format(path, format);
}

fn path_of(dir: &Path, index: u32) -> std::path::PathBuf {
    dir.join(format!("pg/3.1f/{}.1", key(index).object))
}

#[test]
fn a_fragment_that_does_not_exist_is_zeros() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path());
    let mut buf = [1; 1024];
    assert_eq!(store.read(key(0), 0, &mut buf, ReadMode::NoWait).unwrap(), ReadOutcome::Absent);
    assert_eq!(buf, [0; 1024]);
    assert_eq!(store.stat(key(0)).unwrap(), None);
    assert!(store.is_unwritten(key(0), 0, 512).unwrap());
    assert!(!store.delete(key(0)).unwrap());
    assert_eq!(store.list(PG).unwrap().count(), 0);
}

#[test]
fn the_file_is_laid_out_as_documented() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path());
    write(&mut store, 6, 3, 1, 9).unwrap();
    store.sync(key(6)).unwrap();
    let bytes = fs::read(path_of(dir.path(), 6)).unwrap();
    let (data, crcs) = sectors(9, 1);
    assert_eq!(bytes[..8], *b"TREFRAG\0");
    assert_eq!(bytes[12..15], [2, 1, 1]);
    assert_eq!(bytes[72..80], 9u64.to_le_bytes());
    assert_eq!(bytes[128 + 3 * 4..128 + 4 * 4], crcs[0].to_le_bytes());
    assert_eq!(bytes[DATA_START as usize + 3 * 512..], data);
    assert_eq!(
        store.list(PG).unwrap().map(Result::unwrap).collect::<Vec<_>>(),
        [(key(6).object, key(6).shard)]
    );
    assert_eq!(store.list_pgs().unwrap(), [PG]);
}

#[test]
fn ranges_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path());
    let file = store.get_or_create(key(0), profile()).unwrap();
    let end = SECTORS * SECTOR_BYTES;
    let bad =
        |result: Result<(), FragmentError>| matches!(result, Err(FragmentError::BadRange { .. }));
    assert!(bad(file.read(1, &mut [0; 512], ReadMode::Blocking).map(drop)));
    assert!(bad(file.read(0, &mut [0; 511], ReadMode::Blocking).map(drop)));
    assert!(bad(file.read(end, &mut [0; 512], ReadMode::Blocking).map(drop)));
    assert!(bad(file.punch(u64::MAX - 511, 512, mark(1, 0))));
    assert!(bad(file.write(0, &[0; 1024], &[1], mark(1, 0))));
    assert!(bad(file.truncate(end + 512, mark(1, 0))));
    let other = Profile::new(4, 2, 512, 1 << 20).unwrap();
    let error = store.get_or_create(key(0), other).unwrap_err();
    assert!(matches!(error, FragmentError::OtherProfile { .. }), "{error}");
}

#[test]
fn direct_bytes_are_invisible_until_published() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path());
    let file = store.get_or_create(key(0), profile()).unwrap();
    let (bytes, crcs) = sectors(5, 4);
    file.write_data_only(1024, &bytes).unwrap();
    assert!(file.is_dirty());
    assert_eq!(read(&mut store, 0, 0, 8).unwrap(), vec![0; 4096]);
    assert!(store.is_unwritten(key(0), 1024, 2048).unwrap());
    let mut raw = vec![0; 2048];
    file.read_raw(1024, &mut raw, ReadMode::Blocking).unwrap();
    verify(key(0), 1024, &mut raw, &crcs).unwrap();
    assert_eq!(raw, bytes);
    file.publish(1024, &crcs, mark(1, 4096)).unwrap();
    assert_eq!(read(&mut store, 0, 2, 4).unwrap(), bytes);
    let error = file.write_data_only(0, &[0; 1536]).unwrap_err();
    assert!(matches!(error, FragmentError::Written { .. }), "{error}");
    raw[512] ^= 1;
    let error = verify(key(0), 1024, &mut raw, &crcs).unwrap_err();
    assert!(
        matches!(error, FragmentError::Corrupt { ref sectors, .. } if *sectors == [3]),
        "{error}"
    );
}

#[test]
fn files_of_older_formats_are_read_and_written() {
    for format in [1, 2] {
        let dir = tempfile::tempdir().unwrap();
        let path = written(dir.path());
        make_older(&path, format);
        let mut store = open(dir.path());
        assert_eq!(read(&mut store, 0, 0, 8).unwrap(), sectors(1, 8).0);
        move_slots(&store.get(key(0)).unwrap().unwrap(), 1, 2, 0x80);
        store.sync(key(0)).unwrap();
        drop(store);
        assert_eq!(fs::read(&path).unwrap()[8], 3, "an older program would not find what moved");
        let mut store = open(dir.path());
        assert_eq!(read(&mut store, 0, 0, 2).unwrap(), sectors(1, 2).0);
        assert_eq!(read(&mut store, 0, 2, 4).unwrap(), sectors(0x80, 4).0);
        drop(store);
        set_format(&path, 4);
        let error = read(&mut open(dir.path()), 0, 0, 2).unwrap_err();
        assert!(matches!(error, FragmentError::BadHeader { .. }), "{error}");
    }
}

#[test]
fn data_behind_a_lost_header_is_found_in_files_of_any_format() {
    for is_older in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let path = written(dir.path());
        if is_older {
            make_older(&path, 2);
        }
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(&[0; 128], 0).unwrap();
        let mut store = open(dir.path());
        let file = store.get_or_create(key(0), profile()).unwrap();
        let mut bytes = vec![0; 8 * SECTOR_BYTES as usize];
        file.read_raw(0, &mut bytes, ReadMode::Blocking).unwrap();
        assert_eq!(bytes, sectors(1, 8).0, "older: {is_older}");
    }
}

#[test]
fn placed_bytes_are_invisible_until_pointed_at() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path());
    write(&mut store, 0, 0, 8, 1).unwrap();
    let old = read(&mut store, 0, 0, 8).unwrap();
    let file = store.get(key(0)).unwrap().unwrap();
    let placed = place(&file, 1, 2, 0x80).unwrap();
    assert_eq!(read(&mut store, 0, 0, 8).unwrap(), old);
    assert!(placed.is_there(&file));
    placed.point(&file, mark(2, 10));
    assert_eq!(read(&mut store, 0, 2, 4).unwrap(), placed.bytes);
    assert_eq!(read(&mut store, 0, 0, 2).unwrap(), old[..1024]);
    assert_eq!(read(&mut store, 0, 6, 2).unwrap(), old[3072..]);
    let (bytes, _) = sectors(3, 3);
    for (offset, length) in [(512, 1024), (0, 512), (0, 1536), (1536, 512)] {
        assert_eq!(
            file.place(offset, &bytes[..length]).unwrap(),
            None,
            "{offset}+{length} is no whole slots"
        );
    }
    let foreign = Placement { slot_bytes: SLOT as u32, places: &[60_000] };
    let error = file.point(0, foreign, &placed.crcs[..2], mark(3, 10)).unwrap_err();
    assert!(matches!(error, FragmentError::BadRange { .. }), "{error}");
    assert!(!file.keep_found(3, 0, foreign));
}

#[test]
fn a_damaged_map_is_noticed_and_a_later_write_heals_it() {
    // Entries for slots 2 and 3 of a file in which the first 4 of 8 slots were moved to places 1024
    // to 1027.
    let damages: [&[u16]; 8] = [
        &[1026, 1026],
        &[1025, 1028],
        &[1028, 1027],
        &[0, 0],
        &[0xffff, 1028],
        &[1030, 2],
        &[5, 6],
        &[1, 0xfffe],
    ];
    for damage in damages {
        let dir = tempfile::tempdir().unwrap();
        let mut store = open(dir.path());
        write(&mut store, 0, 0, 16, 0x10).unwrap();
        move_slots(&store.get(key(0)).unwrap().unwrap(), 0, 4, 0x80);
        let expected = read(&mut store, 0, 0, 16).unwrap();
        store.sync(key(0)).unwrap();
        drop(store);
        let file = File::options().read(true).write(true).open(path_of(dir.path(), 0)).unwrap();
        let mut map = [0; 8];
        file.read_exact_at(&mut map, MAP_START).unwrap();
        assert_eq!(map, [1, 4, 2, 4, 3, 4, 4, 4], "the map is where and as documented");
        let entries: Vec<u8> = damage.iter().flat_map(|entry| entry.to_le_bytes()).collect();
        file.write_all_at(&entries, MAP_START + 4).unwrap();
        let mut store = open(dir.path());
        let mut lost = 0;
        for sector in 0..16 {
            let at = sector as usize * 512;
            match read(&mut store, 0, sector, 1) {
                Ok(bytes) => assert_eq!(
                    bytes,
                    expected[at..at + 512],
                    "sector {sector} of a file with {damage:?}"
                ),
                Err(FragmentError::Corrupt { .. }) => lost += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(lost > 0, "{damage:?} is no damage");
        let file = store.get(key(0)).unwrap().unwrap();
        move_slots(&file, 0, 8, 0x40);
        assert_eq!(read(&mut store, 0, 0, 16).unwrap(), sectors(0x40, 16).0);
        drop(file);
        store.sync(key(0)).unwrap();
        drop(store);
        assert_eq!(
            read(&mut open(dir.path()), 0, 0, 16).unwrap(),
            sectors(0x40, 16).0,
            "{damage:?}"
        );
    }
}

#[test]
fn given_back_space_is_that_of_bytes_nobody_reads() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path());
    write(&mut store, 0, 0, 1024, 1).unwrap();
    let file = store.get(key(0)).unwrap().unwrap();
    move_slots(&file, 0, 300, 0x80);
    let kept = place(&file, 8, 4, 0x20).unwrap();
    let expected = read(&mut store, 0, 0, SECTORS).unwrap();
    let allocated = |file: &FragmentFile| {
        file.sync().unwrap();
        file.stat().unwrap().allocated_bytes
    };
    let before = allocated(&file);
    file.give_back().unwrap();
    let after = allocated(&file);
    // All but the parts of blocks at both ends of two runs of places.
    assert!(before - after >= 280 * SLOT, "{before} bytes before, {after} after");
    assert_eq!(read(&mut store, 0, 0, SECTORS).unwrap(), expected);
    assert!(kept.is_there(&file), "a record names it");
    drop((file, store));
    let mut store = open(dir.path());
    assert_eq!(read(&mut store, 0, 0, SECTORS).unwrap(), expected);
    // The space can be used again.
    move_slots(&store.get(key(0)).unwrap().unwrap(), 100, 300, 0x40);
    assert_eq!(read(&mut store, 0, 200, 600).unwrap(), sectors(0x40, 600).0);
}

#[test]
fn a_truncation_of_moved_slots_loses_what_lies_behind_it_and_nothing_else() {
    for (first, is_synced) in [(5, true), (5, false), (6, false), (15, true), (40, true)] {
        let dir = tempfile::tempdir().unwrap();
        let mut store = open(dir.path());
        write(&mut store, 0, 0, 32, 1).unwrap();
        let file = store.get(key(0)).unwrap().unwrap();
        // Not in order: what is behind the end lies before what is not.
        move_slots(&file, 6, 4, 0x80);
        move_slots(&file, 0, 4, 0x40);
        let mut expected = read(&mut store, 0, 0, 64).unwrap();
        expected[(first * SECTOR_BYTES) as usize..].fill(0);
        file.sync().unwrap();
        file.truncate(first * SECTOR_BYTES, mark(9, 5)).unwrap();
        assert_eq!(read(&mut store, 0, 0, 64).unwrap(), expected, "cut at sector {first}");
        let written = if is_synced { file.sync() } else { file.flush() };
        written.unwrap();
        drop((file, store));
        let mut store = open(dir.path());
        assert_eq!(read(&mut store, 0, 0, 64).unwrap(), expected, "cut at sector {first}");
        assert_eq!(store.stat(key(0)).unwrap().unwrap().logical_end, 5);
        assert!(
            store
                .is_unwritten(key(0), first * SECTOR_BYTES, (SECTORS - first) * SECTOR_BYTES)
                .unwrap()
        );
        write(&mut store, 0, first, 4, 0x20).unwrap();
        assert_eq!(read(&mut store, 0, first, 4).unwrap(), sectors(0x20, 4).0);
        assert_eq!(
            read(&mut store, 0, 0, first).unwrap(),
            expected[..(first * SECTOR_BYTES) as usize]
        );
    }
}

#[test]
fn an_older_record_done_again_spares_what_a_later_one_placed() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path());
    write(&mut store, 0, 0, 8, 1).unwrap();
    let file = store.get(key(0)).unwrap().unwrap();
    let placed = place(&file, 1, 1, 0x80).unwrap();
    placed.point(&file, mark(2, 10));
    let expected = read(&mut store, 0, 0, 8).unwrap();
    file.sync().unwrap();
    drop((file, store));
    let mut store = open(dir.path());
    let file = store.get(key(0)).unwrap().unwrap();
    assert!(file.keep_found(7, SLOT, placed.placement()));
    let (bytes, crcs) = sectors(0x20, 4);
    file.write_at(6, SECTOR_BYTES, &bytes, &crcs, mark(1, 10)).unwrap();
    let found = read(&mut store, 0, 0, 8).unwrap();
    assert_eq!(found[1024..2048], expected[1024..2048]);
    assert_eq!((&found[512..1024], &found[2048..2560]), (&bytes[..512], &bytes[1536..]));
    placed.point(&file, mark(2, 10));
    file.write_at(8, SECTOR_BYTES, &bytes, &crcs, mark(3, 10)).unwrap();
    assert_eq!(read(&mut store, 0, 1, 4).unwrap(), bytes);
}

#[test]
fn a_crash_before_the_sync_leaves_old_bytes_or_a_known_erasure() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path());
    write(&mut store, 0, 0, 8, 1).unwrap();
    store.sync(key(0)).unwrap();
    let old = read(&mut store, 0, 0, 8).unwrap();
    // Data is in the file, the table is lost with the process.
    write(&mut store, 0, 2, 2, 200).unwrap();
    drop(store);
    let mut store = open(dir.path());
    let error = read(&mut store, 0, 0, 8).unwrap_err();
    assert!(
        matches!(error, FragmentError::Corrupt { ref sectors, .. } if *sectors == [2, 3]),
        "{error}"
    );
    assert!(error.is_erasure());
    assert_eq!(read(&mut store, 0, 0, 2).unwrap(), old[..1024]);
    assert_eq!(store.stat(key(0)).unwrap().unwrap().version.seq, Seq::new(1));
    // What the journal holds is applied again.
    write(&mut store, 0, 2, 2, 200).unwrap();
    assert_eq!(read(&mut store, 0, 2, 2).unwrap(), sectors(200, 2).0);
    // A punch or a truncation that crashed is an erasure too, never something else.
    store.sync(key(0)).unwrap();
    store.get(key(0)).unwrap().unwrap().punch(0, 4096, mark(3, 0)).unwrap();
    drop(store);
    let mut store = open(dir.path());
    for sector in 0..8 {
        let bytes = read(&mut store, 0, sector, 1);
        assert!(
            matches!(bytes, Err(FragmentError::Corrupt { .. })) || bytes.unwrap() == vec![0; 512]
        );
    }
}

#[test]
fn what_was_flushed_survives_the_death_of_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path());
    write(&mut store, 0, 0, 8, 1).unwrap();
    store.sync(key(0)).unwrap();
    write(&mut store, 0, 2, 2, 200).unwrap();
    write(&mut store, 0, 1023, 2, 201).unwrap();
    let file = store.get(key(0)).unwrap().unwrap();
    assert!(file.is_unwritten_now(10 * SECTOR_BYTES, 512) && !file.is_unwritten_now(0, 8192));
    file.flush().unwrap();
    assert!(file.is_dirty(), "flushed is not synced");
    drop((file, store));
    let mut store = open(dir.path());
    assert_eq!(read(&mut store, 0, 2, 2).unwrap(), sectors(200, 2).0);
    assert_eq!(read(&mut store, 0, 1023, 2).unwrap(), sectors(201, 2).0);
    assert_eq!(store.stat(key(0)).unwrap().unwrap().version.seq, Seq::new(201));
}

#[test]
fn a_flip_of_any_byte_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path());
    write(&mut store, 0, 0, 2, 1).unwrap();
    store.sync(key(0)).unwrap();
    drop(store);
    let path = path_of(dir.path(), 0);
    let file = File::options().read(true).write(true).open(&path).unwrap();
    for at in (0..136).chain(DATA_START..DATA_START + 1024) {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1 << (at % 8)], at).unwrap();
        let error = read(&mut open(dir.path()), 0, 0, 2).unwrap_err();
        match at {
            0..128 => {
                assert!(matches!(error, FragmentError::BadHeader { .. }), "byte {at}: {error}")
            }
            _ => assert!(
                matches!(error, FragmentError::Corrupt { ref sectors, .. } if sectors.len() == 1),
                "{error}"
            ),
        }
        file.write_all_at(&byte, at).unwrap();
    }
    read(&mut open(dir.path()), 0, 0, 2).unwrap();
    let mut other = FragmentStore::open(
        dir.path(),
        CORE,
        ClusterId::new(1),
        FragmentConfig::default(),
        &LockTable::default(),
    )
    .unwrap();
    let error = other.get(key(0)).unwrap_err();
    assert!(matches!(error, FragmentError::OtherCluster { found: CLUSTER, .. }), "{error}");
    // A damaged fragment can be deleted, and one cut short before its header counts as none.
    file.set_len(100).unwrap();
    let mut store = open(dir.path());
    assert!(matches!(store.get(key(0)), Err(FragmentError::BadHeader { .. })));
    assert!(store.delete(key(0)).unwrap());
    File::create(&path).unwrap();
    assert!(store.get(key(0)).unwrap().is_none());
    write(&mut store, 0, 0, 1, 1).unwrap();
}

#[test]
fn open_files_and_table_memory_stay_within_their_limits() {
    let dir = tempfile::tempdir().unwrap();
    let config = FragmentConfig {
        fragment_open_files_max: 4,
        fragment_table_bytes_max: 2 * 4096,
        ..FragmentConfig::default()
    };
    let mut store =
        FragmentStore::open(dir.path(), CORE, CLUSTER, config, &LockTable::default()).unwrap();
    write(&mut store, 0, 0, 1, 100).unwrap();
    let held = store.get(key(0)).unwrap().unwrap();
    let sync_all = |store: &FragmentStore| {
        let dirty: Vec<_> = store.dirty_files().cloned().collect();
        dirty.iter().for_each(|file| file.sync().unwrap());
    };
    for index in 1..40 {
        write(&mut store, index, 0, 1, index as u8).unwrap();
        // only in the second half somebody syncs when asked to
        if store.take_wants_sync() && index >= 20 {
            sync_all(&store);
        }
        let most = if index < 22 { 8 } else { 5 };
        assert!(
            store.open_files() <= most && store.table_bytes() <= 3 * 4096,
            "{} open",
            store.open_files()
        );
        assert!(
            Arc::ptr_eq(&held, &store.get(key(0)).unwrap().unwrap()),
            "a file in use has one handle"
        );
    }
    for index in 1..40 {
        assert_eq!(read(&mut store, index, 0, 1).unwrap(), sectors(index as u8, 1).0);
    }
    sync_all(&store);
    assert_eq!(store.dirty_files().count(), 0);
}

#[test]
fn a_deleted_fragment_begins_anew() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path());
    write(&mut store, 0, 0, 4, 1).unwrap();
    let old = store.get(key(0)).unwrap().unwrap();
    assert!(store.delete(key(0)).unwrap());
    store.pg_dir(PG).sync().unwrap();
    write(&mut store, 0, 1, 1, 2).unwrap();
    old.sync().unwrap();
    store.sync(key(0)).unwrap();
    drop(store);
    let mut store = open(dir.path());
    assert_eq!(read(&mut store, 0, 0, 1).unwrap(), vec![0; 512]);
    assert_eq!(read(&mut store, 0, 1, 1).unwrap(), sectors(2, 1).0);
}

#[test]
fn a_read_beside_a_write_gives_old_or_new_sectors() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path());
    write(&mut store, 0, 0, 64, 0).unwrap();
    let file = store.get(key(0)).unwrap().unwrap();
    let reader = std::thread::spawn(move || {
        for _ in 0..300 {
            let mut buf = vec![0; 64 * 512];
            assert_eq!(file.read(0, &mut buf, ReadMode::Blocking).unwrap(), ReadOutcome::Read);
            file.read(0, &mut buf, ReadMode::NoWait).unwrap();
        }
    });
    let mut fill = 0u8;
    while !reader.is_finished() {
        fill = fill.wrapping_add(1);
        write(&mut store, 0, 0, 64, fill).unwrap();
    }
    reader.join().unwrap();
}

#[test]
fn a_fragment_in_memory_is_as_one_on_disk_until_the_memory_goes() {
    let dir = Dir::new(
        Arc::new(Memory::new(200 << 10, &messenger::sync::LockTable::default())),
        Path::new("/nowhere"),
    );
    let open = || {
        FragmentStore::open(
            dir.clone(),
            CORE,
            CLUSTER,
            FragmentConfig::default(),
            &LockTable::default(),
        )
        .unwrap()
    };
    let mut store = open();
    write(&mut store, 0, 3, 200, 1).unwrap();
    let error = write(&mut store, 1, 0, 200, 2).unwrap_err();
    assert!(error.is_full(), "{error}");
    let written = read(&mut store, 0, 0, 300).unwrap();
    store.sync(key(0)).unwrap();
    drop(store);
    let mut store = open();
    assert_eq!(read(&mut store, 0, 0, 300).unwrap(), written);
    assert_eq!(
        written[3 * SECTOR_BYTES as usize..][..200 * SECTOR_BYTES as usize],
        sectors(1, 200).0
    );
    assert_eq!(store.list_pgs().unwrap(), [PG]);
    // both fragments are gone: the space is there again
    assert!(store.delete(key(0)).unwrap() && store.delete(key(1)).unwrap());
    assert_eq!(store.space().unwrap().used_bytes, 0);
    write(&mut store, 1, 0, 200, 2).unwrap();
}

#[test]
fn a_failed_sync_is_remembered() {
    let dir = Dir::from(Path::new("/dev"));
    // Takes writes and cannot be synced.
    let null = File::options().read(true).write(true).open("/dev/null").unwrap();
    let file =
        FragmentFile::create(key(0), &common(), Arc::new(null), dir.clone(), profile()).unwrap();
    assert!(matches!(file.sync().unwrap_err(), FragmentError::Io { .. }));
    assert!(matches!(file.sync().unwrap_err(), FragmentError::SyncFailed { .. }));
    assert!(file.is_dirty() && file.has_sync_failed());
    let full = File::options().read(true).write(true).open("/dev/full").unwrap();
    let error =
        FragmentFile::create(key(0), &common(), Arc::new(full), dir, profile()).unwrap_err();
    assert!(error.is_full(), "{error}");
}

/// A file system of a given size in memory, gone with the value.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new(bytes: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = std::ffi::CString::new(format!("size={bytes}")).unwrap();
        rustix::mount::mount(
            "none",
            dir.path(),
            "tmpfs",
            rustix::mount::MountFlags::empty(),
            options.as_c_str(),
        )
        .expect("this test mounts a tmpfs: run it as root");
        Self(dir)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0.path(), rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn a_full_disk_is_typed_and_everything_old_stays_readable() {
    let disk = SmallDisk::new(1 << 20);
    let mut store = open(disk.0.path());
    write(&mut store, 0, 0, 64, 1).unwrap();
    write(&mut store, 1, 0, 64, 7).unwrap();
    store.sync(key(0)).unwrap();
    // Half over old sectors, far beyond what is free.
    let error = write(&mut store, 0, 32, 2016, 9).unwrap_err();
    assert!(error.is_full() && !error.is_erasure(), "{error}");
    let (old, new) = (sectors(1, 64).0, sectors(9, 2016).0);
    for sector in 0..SECTORS {
        let bytes = read(&mut store, 0, sector, 1).unwrap();
        let at = sector as usize * 512;
        let is_old = if sector < 64 { bytes == old[at..at + 512] } else { bytes == [0; 512] };
        assert!(is_old || bytes == new[at - 32 * 512..][..512], "sector {sector}");
    }
    assert_eq!(
        store.stat(key(0)).unwrap().unwrap().version.seq,
        Seq::new(1),
        "the mark is not set"
    );
    assert!(store.space().unwrap().used_ratio() > 0.9);
    assert!(store.delete(key(0)).unwrap());
    write(&mut store, 1, 64, 64, 9).unwrap();
    assert_eq!(read(&mut store, 1, 0, 64).unwrap(), sectors(7, 64).0);
}

#[derive(Clone, Debug)]
enum Step {
    Write {
        first: u64,
        count: u64,
        fill: u8,
        is_direct: bool,
    },
    /// Whole slots, at once.
    Move {
        slot: u64,
        count: u64,
        fill: u8,
    },
    /// Whole slots, by a record that stays in the journal for some steps.
    Place {
        slot: u64,
        count: u64,
        fill: u8,
    },
    /// The oldest such record is applied,
    Point,
    /// and leaves the journal.
    LetGo,
    GiveBack,
    Punch {
        first: u64,
        count: u64,
    },
    Truncate {
        first: u64,
    },
    Sync,
    /// The process dies, after a flush or after a sync.
    Restart {
        is_synced: bool,
    },
    ForgetTable,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Around the ends and around the boundary between the two pages of the table.
    let first = prop_oneof![0u64..12, 1018u64..1030, 2030u64..SECTORS];
    let slot = prop_oneof![0u64..6, 508u64..515, 1015u64..SECTORS / 2];
    let slots = (slot, prop_oneof![8 => 1u64..10, 1 => 200u64..600], any::<u8>());
    let step = prop_oneof![
        4 => slots.clone().prop_map(|(slot, count, fill)| Step::Move { slot, count, fill }),
        3 => slots.prop_map(|(slot, count, fill)| Step::Place { slot, count, fill }),
        2 => Just(Step::Point),
        2 => Just(Step::LetGo),
        1 => Just(Step::GiveBack),
        6 => (first.clone(), 1u64..20, any::<u8>(), any::<bool>())
            .prop_map(|(first, count, fill, is_direct)| Step::Write { first, count, fill, is_direct }),
        2 => (first.clone(), prop_oneof![0u64..20, 900u64..1100]).prop_map(|(first, count)| Step::Punch { first, count }),
        1 => prop_oneof![Just(0), first, Just(SECTORS)].prop_map(|first| Step::Truncate { first }),
        1 => Just(Step::Sync),
        1 => any::<bool>().prop_map(|is_synced| Step::Restart { is_synced }),
        1 => Just(Step::ForgetTable),
    ];
    proptest::collection::vec(step, 1..40)
}

/// One fragment as it should be.
struct Model {
    sectors: Vec<Option<Vec<u8>>>,
    mark: Mark,
    /// Records in the journal, the oldest first, and whether they are applied.
    named: Vec<(PlacedBytes, bool)>,
}

impl Model {
    fn set(&mut self, first: u64, bytes: &[u8]) {
        for (sector, bytes) in (first..).zip(bytes.chunks_exact(512)) {
            self.sectors[sector as usize] = Some(bytes.to_vec());
        }
    }

    /// The oldest record that waits for it is applied.
    fn point(&mut self, file: &FragmentFile, mark: Mark) -> bool {
        let Some(at) = self.named.iter().position(|(_, is_applied)| !is_applied) else {
            return false;
        };
        self.named[at].0.point(file, mark);
        self.named[at].1 = true;
        let (first, bytes) = (self.named[at].0.first * 2, self.named[at].0.bytes.clone());
        self.set(first, &bytes);
        true
    }

    /// All records leave the journal, applied or not.
    fn let_all_go(&mut self, file: &FragmentFile) {
        self.named.drain(..).for_each(|(named, _)| named.let_go(file));
    }

    /// The file was opened again, and the journal read.
    fn keep_found(&self, store: &mut FragmentStore) {
        for (lsn, (named, _)) in (1..).zip(&self.named) {
            let file = store.get(key(0)).unwrap().unwrap();
            named.left.borrow_mut().clear();
            assert!(file.keep_found(lsn, named.first * SLOT, named.placement()));
        }
    }

    fn check_named(&self, store: &mut FragmentStore) {
        for (named, _) in self.named.iter().filter(|(_, is_applied)| !is_applied) {
            assert!(
                named.is_there(&store.get(key(0)).unwrap().unwrap()),
                "a record lost its bytes"
            );
        }
    }

    fn check(&self, store: &mut FragmentStore) {
        let exists = store.stat(key(0)).unwrap();
        for window in [0..30, 1010..1040, 2020..SECTORS, 1023..1025] {
            let expected: Vec<u8> = window
                .clone()
                .flat_map(|sector| self.sectors[sector as usize].clone().unwrap_or(vec![0; 512]))
                .collect();
            assert_eq!(read(store, 0, window.start, window.end - window.start).unwrap(), expected);
            let unwritten = window.clone().all(|sector| self.sectors[sector as usize].is_none());
            let (offset, length) =
                (window.start * SECTOR_BYTES, (window.end - window.start) * SECTOR_BYTES);
            assert_eq!(store.is_unwritten(key(0), offset, length).unwrap(), unwritten);
        }
        let Some(stat) = exists else {
            assert!(self.sectors.iter().all(Option::is_none));
            return;
        };
        assert_eq!((stat.version, stat.logical_end), (self.mark.version, self.mark.logical_end));
        let file = store.get(key(0)).unwrap().unwrap();
        let mut extents = Vec::new();
        let mut from = 0;
        loop {
            let some = file.data_extents(from, 2).unwrap();
            let Some(last) = some.last() else { break };
            from = last.end;
            extents.extend(some);
        }
        let data: Vec<u64> = extents
            .into_iter()
            .flat_map(|e| e.start / SECTOR_BYTES..e.end / SECTOR_BYTES)
            .collect();
        let expected: Vec<u64> =
            (0..SECTORS).filter(|&sector| self.sectors[sector as usize].is_some()).collect();
        assert_eq!(data, expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_fragment_is_what_was_done_to_it(steps in steps()) {
        let dir = tempfile::tempdir().unwrap();
        let mut store = open(dir.path());
        let mut model = Model { sectors: vec![None; SECTORS as usize], mark: Mark::default(), named: Vec::new() };
        for (seq, step) in (1u64..).zip(steps) {
            let new = mark(seq, (seq * 37) % 100);
            let mut file = || store.get_or_create(key(0), profile()).unwrap();
            let is_marked = match step {
                Step::Write { first, count, fill, is_direct } => {
                    let count = count.min(SECTORS - first);
                    let (bytes, crcs) = sectors(fill, count);
                    let offset = first * SECTOR_BYTES;
                    let file = file();
                    if is_direct && file.is_unwritten(offset, count * SECTOR_BYTES).unwrap() {
                        file.write_data_only(offset, &bytes).unwrap();
                        file.publish(offset, &crcs, new).unwrap();
                    } else {
                        file.write(offset, &bytes, &crcs, new).unwrap();
                    }
                    model.set(first, &bytes);
                    true
                }
                Step::Move { slot, count, fill } => {
                    let file = file();
                    let placed = place(&file, slot, count.min(SECTORS / 2 - slot), fill);
                    model.check(&mut store);
                    if let Some(placed) = &placed {
                        placed.point(&file, new);
                        placed.let_go(&file);
                        model.set(slot * 2, &placed.bytes);
                    }
                    placed.is_some()
                }
                Step::Place { slot, count, fill } => {
                    let placed = place(&file(), slot, count.min(SECTORS / 2 - slot), fill);
                    model.named.extend(placed.map(|placed| (placed, false)));
                    false
                }
                Step::Point => match store.get(key(0)).unwrap() {
                    Some(file) => model.point(&file, new),
                    None => false,
                },
                Step::LetGo => {
                    if model.named.first().is_some_and(|(_, is_applied)| *is_applied) {
                        let (named, _) = model.named.remove(0);
                        named.let_go(&file());
                    }
                    false
                }
                Step::GiveBack => {
                    if let Some(file) = store.get(key(0)).unwrap() {
                        file.sync().unwrap();
                        file.give_back().unwrap();
                    }
                    false
                }
                Step::Punch { first, count } => {
                    let end = SECTORS.min(first + count);
                    file().punch(first * SECTOR_BYTES, (end - first) * SECTOR_BYTES, new).unwrap();
                    model.sectors[first as usize..end as usize].fill(None);
                    true
                }
                Step::Truncate { first } => {
                    let file = file();
                    if first == 0 {
                        // A removal waits until what was placed before it is out of the journal.
                        model.let_all_go(&file);
                    }
                    file.truncate(first * SECTOR_BYTES, new).unwrap();
                    model.sectors[first as usize..].fill(None);
                    model.mark.logical_end = 0;
                    true
                }
                Step::Sync => {
                    store.sync(key(0)).unwrap();
                    prop_assert_eq!(store.dirty_files().count(), 0);
                    false
                }
                Step::Restart { is_synced } => {
                    match store.get(key(0)).unwrap() {
                        Some(file) if is_synced => file.sync().unwrap(),
                        Some(file) => file.flush().unwrap(),
                        None => {}
                    }
                    store = open(dir.path());
                    model.keep_found(&mut store);
                    false
                }
                Step::ForgetTable => {
                    if let Some(file) = store.get(key(0)).unwrap() {
                        file.drop_table().unwrap();
                    }
                    prop_assert_eq!(store.table_bytes(), 0);
                    false
                }
            };
            if is_marked {
                let logical_end = new.logical_end.max(model.mark.logical_end);
                model.mark = Mark { version: new.version, logical_end };
            }
            model.check(&mut store);
            model.check_named(&mut store);
        }
    }
}
