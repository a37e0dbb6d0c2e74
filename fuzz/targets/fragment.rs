//! An edited fragment file gives the bytes that were written, or an error; and its listing and
//! extents never panic. Two exceptions are in the format: a table entry that became zero says that
//! its sector is a hole, and one that became the checksum of the edited bytes vouches for them (the
//! fuzzer sees what is compared, and so learns to forge it). With the header's checksum computed
//! anew the file may be one of another profile: it is refused, or can be used within its bounds.
#![no_main]

use ec_store::fragment::{
    FragmentKey, FragmentStore, FragmentVersion, Mark, ReadMode, ReadOutcome,
};
use ec_store::fragment::{SECTOR_BYTES, sector_crcs};
use fuzz::{Input, Scratch, seal};
use libfuzzer_sys::fuzz_target;
use protocol::{
    ClusterId, Epoch, Gfid, ObjectId, PgId, PoolId, Profile, Seq, SessionId, ShardIndex,
};
use std::cell::OnceCell;
use std::fs;
use std::path::{Path, PathBuf};

const CLUSTER: ClusterId = ClusterId::new(77);
const SECTORS: u64 = 12;
/// Where the CRC table begins, as the format says.
const TABLE_AT: usize = 128;

struct Ground {
    scratch: Scratch,
    path: PathBuf,
    file: Vec<u8>,
    bytes: Vec<u8>,
}

thread_local! {
    static GROUND: OnceCell<Ground> = const { OnceCell::new() };
}

fn key() -> FragmentKey {
    let pg = PgId { pool: PoolId::new(3), number: 0x1f };
    FragmentKey {
        pg,
        object: ObjectId { gfid: Gfid::from_parts(0xabc, 5), index: 2 },
        shard: ShardIndex::new(1),
    }
}

fn open(dir: &Path) -> FragmentStore {
    FragmentStore::open_alone(dir, CLUSTER).expect("a directory of ours")
}

fn ground() -> Ground {
    let scratch = Scratch::new();
    // Fragments of 16 KiB: a table of one page, so that edits meet every part.
    let profile = Profile::new(2, 1, 512, 32 << 10).expect("a valid profile");
    let bytes: Vec<u8> =
        (0..SECTORS * SECTOR_BYTES).map(|i| (i / SECTOR_BYTES) as u8 ^ (i % 7) as u8).collect();
    let mut crcs = Vec::new();
    sector_crcs(&bytes, &mut crcs);
    let version =
        FragmentVersion { session: SessionId::new(4), seq: Seq::new(9), epoch: Epoch::new(2) };
    let mut store = open(scratch.path());
    store
        .write(key(), profile, 0, &bytes, &crcs, Mark { version, logical_end: 10 })
        .expect("there is room");
    store.sync(key()).expect("it syncs");
    let path = scratch.join(&format!("pg/3.1f/{}.1", key().object));
    let file = fs::read(&path).expect("the fragment has this path");
    Ground { scratch, path, file, bytes }
}

/// The table entry of a sector, zero behind the end of the file.
fn entry(file: &[u8], sector: usize) -> u32 {
    let at = TABLE_AT + sector * 4;
    u32::from_le_bytes(std::array::from_fn(|n| file.get(at + n).copied().unwrap_or(0)))
}

/// Was the entry edited so that it is the checksum of these bytes?
fn is_forged(ground: &Ground, edited: &[u8], sector: usize, bytes: &[u8]) -> bool {
    let mut crcs = Vec::new();
    sector_crcs(bytes, &mut crcs);
    entry(edited, sector) != entry(&ground.file, sector) && crcs == [entry(edited, sector)]
}

/// Every byte that is read is one that was written.
fn check_bytes(ground: &Ground, edited: &[u8], store: &mut FragmentStore) {
    for sector in 0..SECTORS as usize {
        let mut buf = [0; SECTOR_BYTES as usize];
        let at = sector * SECTOR_BYTES as usize;
        if let Ok(outcome) = store.read(key(), at as u64, &mut buf, ReadMode::Blocking) {
            assert!(outcome != ReadOutcome::WouldBlock, "a blocking read blocks");
            // A file that shrank to nothing was never made, as far as its store can tell.
            let is_hole = outcome == ReadOutcome::Absent || entry(edited, sector) == 0;
            let right = match is_hole {
                true => buf.iter().all(|&byte| byte == 0),
                false => {
                    buf == ground.bytes[at..at + buf.len()]
                        || is_forged(ground, edited, sector, &buf)
                }
            };
            assert!(right, "bytes that were never written, without an error");
        }
    }
}

/// The fragment takes a sector anywhere, as far as it says that it reaches, and gives it back.
fn check_use(store: &mut FragmentStore, at: u16) {
    let Ok(Some(file)) = store.get(key()) else { return };
    let length = file.profile().fragment_bytes();
    let extents = file.data_extents(0, 64).expect("the table can be read");
    assert!(extents.iter().all(|range| range.start < range.end && range.end <= length));
    let offset = u64::from(at) * SECTOR_BYTES;
    let (bytes, mut read, mut crcs) =
        ([7; SECTOR_BYTES as usize], [0; SECTOR_BYTES as usize], Vec::new());
    sector_crcs(&bytes, &mut crcs);
    let version =
        FragmentVersion { session: SessionId::new(5), seq: Seq::new(1), epoch: Epoch::new(3) };
    let written = file.write(offset, &bytes, &crcs, Mark { version, logical_end: 10 });
    assert_eq!(written.is_ok(), offset + SECTOR_BYTES <= length);
    if written.is_ok() {
        file.read(offset, &mut read, ReadMode::Blocking).expect("what was written can be read");
        assert_eq!(read, bytes);
    }
    file.sync().expect("it syncs");
    assert!(file.recheck().expect("it can be read"), "what was written is sound");
}

fuzz_target!(|bytes: &[u8]| {
    GROUND.with(|cell| {
        let ground = cell.get_or_init(ground);
        let mut edited = ground.file.clone();
        let mut input = Input::new(bytes);
        let (is_sealed, at) = (input.byte() % 2 == 1, input.u16());
        input.edit(&mut edited);
        if is_sealed {
            seal(&mut edited, TABLE_AT - 4);
        }
        ground.scratch.write(&ground.path, &edited);
        let mut store = open(ground.scratch.path());
        if is_sealed {
            check_use(&mut store, at);
        } else {
            check_bytes(ground, &edited, &mut store);
            let _ = store.stat(key());
            if let Ok(Some(file)) = store.get(key()) {
                let _ = file.data_extents(0, 64);
            }
        }
    });
});
