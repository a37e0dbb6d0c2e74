//! The entries of a core's journal, as a restart reads them: any kind with any bytes, and records
//! with small and with extreme numbers. They are refused, or give placement groups that a shard can
//! begin with.
#![no_main]

use ec_store::core::replay;
use ec_store::journal::{Location, RecoveredEntry};
use ec_store::pg::shard::{
    Change, Item, Lsn, PgShard, Placed, Replay, ShardStore, StoreError, Summed,
};
use ec_store::pg::{PgView, SessionTable, ShardView};
use fuzz::Input;
use libfuzzer_sys::fuzz_target;
use protocol::{Epoch, ObjectId, PgId, Profile, SessionId, ShardIndex, ShardSet};
use std::ops::Range;
use std::sync::Arc;

const ENTRIES_MAX: u64 = 64;
/// Kinds of entries, as the format says.
const RECORD: u8 = 1;
const DIRECT: u8 = 2;
const PLACED: u8 = 7;

/// Takes every change, and keeps none.
struct Nowhere(Lsn);

impl ShardStore for Nowhere {
    fn append(&mut self, _: PgId, _: Item<'_>) -> Result<Lsn, StoreError> {
        self.0.0 += 1;
        Ok(self.0)
    }

    fn is_unwritten(&mut self, _: PgId, _: ObjectId, _: Range<u64>) -> bool {
        false
    }

    fn write_direct(
        &mut self,
        _: PgId,
        _: ObjectId,
        _: u64,
        _: &Summed,
    ) -> Result<Box<[u32]>, StoreError> {
        Err(StoreError::NoSpace)
    }

    fn place(
        &mut self,
        _: PgId,
        _: ObjectId,
        _: u64,
        _: &Summed,
    ) -> Result<Option<Placed>, StoreError> {
        Ok(None)
    }

    fn apply(
        &mut self,
        _: PgId,
        _: &Profile,
        _: ObjectId,
        _: &[Change<'_>],
    ) -> Result<(), StoreError> {
        Ok(())
    }

    fn objects(&mut self, _: PgId) -> Result<Vec<ObjectId>, StoreError> {
        Ok(Vec::new())
    }
}

/// A number of sectors in bytes, or any number.
fn number(input: &mut Input<'_>) -> u64 {
    match input.byte() {
        u8::MAX => input.u64(),
        sectors => u64::from(sectors) * u64::from(Profile::SECTOR_BYTES),
    }
}

/// Front and data of a record of the length that it says, as the format says.
fn record(kind: u8, input: &mut Input<'_>) -> (Vec<u8>, Vec<u8>) {
    let [pg, session, seq, object] = std::array::from_fn(|_| u64::from(input.byte() % 4));
    let (op, touch, sectors) = (input.byte() % 8, input.byte(), usize::from(input.byte() % 4));
    let mut front = Vec::new();
    front.extend([pg, session, seq, object, 0].map(u64::to_le_bytes).as_flattened());
    front.extend([0, 0, 0, 0, op, 0, touch, 0]);
    front.extend(number(input).to_le_bytes());
    let length = sectors * Profile::SECTOR_BYTES as usize;
    front.extend((length as u32).to_le_bytes());
    front.extend(number(input).to_le_bytes());
    // Of a placed record each sector is a slot.
    let data = match kind {
        DIRECT => sectors * size_of::<u32>(),
        PLACED => sectors * (size_of::<u16>() + size_of::<u32>()),
        _ => length,
    };
    (front, vec![0; data])
}

fn entry(lsn: u64, input: &mut Input<'_>) -> RecoveredEntry {
    let chosen = input.byte();
    let kind = chosen % 8;
    let (front, data) = if chosen >= 128 && [RECORD, DIRECT, PLACED].contains(&kind) {
        record(kind, input)
    } else {
        let [front, data] = std::array::from_fn(|_| usize::from(input.byte()));
        (input.bytes(front).to_vec(), input.bytes(data).to_vec())
    };
    let location = Location { segment: 1, offset: lsn * 64, bytes: 64, lsn };
    RecoveredEntry { location, kind, front: front.into(), data: data.into() }
}

fn view(pg: PgId, epoch: u64) -> ShardView {
    let profile = Profile::new(2, 1, 512, 64 << 20).expect("a valid profile");
    let (in_sync, joining) = (ShardSet::first(2), ShardSet::EMPTY);
    let pg = PgView { pg, epoch: Epoch::new(epoch), profile, in_sync, joining, active: true };
    let live = [SessionId::new(1)].into();
    let sessions = SessionTable { live, last: SessionId::new(3), ..SessionTable::default() };
    ShardView { pg, me: ShardIndex::new(0), sessions: Arc::new(sessions) }
}

fn begin(replay: Replay, last: Lsn) {
    let pg = replay.pg();
    assert!(replay.placed().all(|(lsn, record)| lsn <= last && record.slots().count() > 0));
    assert!(replay.direct().all(|(lsn, record)| lsn <= last && record.is_direct()));
    let mut store = Nowhere(last);
    let mut shard = PgShard::restart(view(pg, 1), replay);
    shard.note_whole(&mut store).expect("the store takes everything");
    shard.learn(view(pg, 2));
    shard.begin_sync();
    shard.end_sync();
    shard
        .apply_some(&mut store, 16 * PgShard::APPLY_BYTES_MIN)
        .expect("the store takes everything");
    let _ = (shard.state(), shard.unapplied_space(), shard.trim_step(), shard.records().count());
    let object = ObjectId::default();
    let plan = shard.plan(object, 0..4 << 20);
    assert!(plan.range.end <= 4 << 20);
    shard.unpin(object);
}

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input::new(bytes);
    let mut entries = Vec::new();
    for lsn in 1..=ENTRIES_MAX {
        if input.is_empty() {
            break;
        }
        entries.push(entry(lsn, &mut input));
    }
    let last = Lsn(entries.len() as u64);
    if let Ok(replays) = replay(entries) {
        replays.into_values().for_each(|replay| begin(replay, last));
    }
});
