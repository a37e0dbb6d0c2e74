//! Writing to an object: whole stripes at once, anything else by read-modify-write.
//!
//! Contract: every record leaves its stripes whole: parity fits the data on all shards it touches. A write that needs
//! old bytes holds its stripes from the read until it is numbered; one that does not waits for such holders.

use super::local::Local;
use super::osd::OsdLink;
use super::pg::PgIo;
use super::plan::{WritePlan, plan_write};
use super::range_lock::Mode;
use super::read::read_piece;
use super::wait::join_all;
use crate::error::ClientError;
use bytes::Bytes;
use ec_store::pg::{NewWrite, Piece, WritePieces};
use protocol::shard::Op;
use protocol::{ObjectId, PoolId, ShardSet};
use smallvec::SmallVec;
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How long what was learned of a full disk counts before it is asked again.
const ROOM_AGE: Duration = Duration::from_millis(300);

/// Where an object's data ends, in object bytes, as the writer knows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObjectEnds {
    /// From here on the object holds zeros.
    pub zero_from: u64,
    /// Where its user data ends when the write is done.
    pub logical_end: u64,
}

/// Fragment bytes on their way to some OSDs; counted until dropped.
struct InFlight {
    links: SmallVec<[Rc<OsdLink>; 4]>,
    bytes: u64,
}

impl InFlight {
    fn new(pg: &PgIo, touch: ShardSet, bytes: u64) -> Self {
        let links: SmallVec<[Rc<OsdLink>; 4]> = touch.iter().filter_map(|shard| pg.link(shard)).collect();
        links.iter().for_each(|link| link.add_in_flight(bytes));
        Self { links, bytes }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.links.iter().for_each(|link| link.sub_in_flight(self.bytes));
    }
}

/// Writes bytes at an offset of an object. Returns when the write is reported.
pub(super) async fn write_piece(
    local: &Rc<Local>,
    pool: PoolId,
    object: ObjectId,
    offset: u64,
    data: Bytes,
    ends: ObjectEnds,
) -> Result<(), ClientError> {
    let pg = local.pg_of(pool, object)?;
    let range = offset..offset + data.len() as u64;
    let plan = plan_write(pg.layout, &range, ends.zero_from);
    let fragment_bytes = plan.fragment.end - plan.fragment.start;
    local.session_usable().await?;
    local.room_to_keep(fragment_bytes as usize * plan.touch.len() as usize).await;
    ensure_room(local, &pg, object, fragment_bytes).await?;
    let lock = || local.locks.lock(object, plan.cover.clone(), Mode::Exclusive);
    let guard = if plan.reads.is_empty() && local.locks.is_idle(object) { None } else { Some(lock().await) };
    let reads = plan.reads.iter().map(|gap| read_piece(local, pool, object, gap.clone(), true));
    let old = match plan.reads.len() {
        0 => Vec::new(),
        _ => join_all(reads).await.into_iter().collect::<Result<Vec<_>, _>>()?,
    };
    let pieces = encode(local, &pg, &plan, &range, &data, &old);
    let write = NewWrite { object, op: Op::Write, logical_end: ends.logical_end, pieces };
    let seq = pg.write(local, Instant::now(), write)?;
    drop(guard);
    let _in_flight = InFlight::new(&pg, plan.touch, fragment_bytes);
    pg.reported(local, seq).await
}

/// The fragments of a write: one buffer holds them all.
fn encode(local: &Local, pg: &PgIo, plan: &WritePlan, range: &Range<u64>, data: &Bytes, old: &[Bytes]) -> WritePieces {
    let profile = pg.layout.profile();
    let (k, shards) = (usize::from(profile.k()), usize::from(profile.shards()));
    let length = (plan.fragment.end - plan.fragment.start) as usize;
    let piece = |data: Bytes| Piece { offset: plan.fragment.start, length: length as u32, data };
    if k == 1 && *range == plan.cover {
        // A replicated pool: every shard's fragment is the data itself.
        return plan.touch.iter().map(|shard| (shard, piece(data.clone()))).collect();
    }
    // All shards of a replicated pool hold the same bytes.
    let made = if k == 1 { 1 } else { shards };
    let mut buffer = local.worker.pool().take(length * made);
    let bytes = buffer.as_mut();
    if plan.zeros {
        bytes[..length * k].fill(0);
    }
    let mut fragments: SmallVec<[&mut [u8]; 16]> = bytes.chunks_exact_mut(length).collect();
    let (data_fragments, parity) = fragments.split_at_mut(k);
    for (gap, old) in plan.reads.iter().zip(old) {
        pg.layout.scatter(gap.start, old, plan.fragment.start, data_fragments);
    }
    pg.layout.scatter(range.start, data, plan.fragment.start, data_fragments);
    if k > 1 {
        let inputs: SmallVec<[&[u8]; 16]> = data_fragments.iter().map(|fragment| &**fragment).collect();
        pg.codec.encode(&inputs, parity);
    }
    drop(fragments);
    let all = buffer.freeze();
    let slice = |shard: u8| {
        let at = if k == 1 { 0 } else { usize::from(shard) * length };
        all.slice(at..at + length)
    };
    plan.touch.iter().map(|shard| (shard, piece(slice(shard.get())))).collect()
}

/// An operation without data on a range of every fragment: `range` in object bytes, whole stripes.
pub(super) async fn mutate(
    local: &Rc<Local>,
    pool: PoolId,
    object: ObjectId,
    op: Op,
    range: Range<u64>,
    logical_end: u64,
) -> Result<(), ClientError> {
    let pg = local.pg_of(pool, object)?;
    local.session_usable().await?;
    let guard = match local.locks.is_idle(object) {
        true => None,
        // Truncate and delete concern everything behind.
        false if op != Op::Punch => Some(local.locks.lock(object, range.start..u64::MAX, Mode::Exclusive).await),
        false => Some(local.locks.lock(object, range.clone(), Mode::Exclusive).await),
    };
    let fragment = pg.layout.fragment_cover(&range);
    let write = bare(&pg, object, op, fragment.start, (fragment.end - fragment.start) as u32, logical_end);
    let seq = pg.write(local, Instant::now(), write)?;
    drop(guard);
    pg.reported(local, seq).await
}

fn bare(pg: &PgIo, object: ObjectId, op: Op, offset: u64, length: u32, logical_end: u64) -> NewWrite {
    let piece = Piece { offset, length, data: Bytes::new() };
    NewWrite { object, op, logical_end, pieces: pg.all_shards().iter().map(|shard| (shard, piece.clone())).collect() }
}

/// Refuses a write for which a disk has no room, before it is numbered. What is known of the room comes with
/// acknowledgements and may be old: an empty record asks for news.
async fn ensure_room(
    local: &Rc<Local>,
    pg: &Rc<PgIo>,
    object: ObjectId,
    fragment_bytes: u64,
) -> Result<(), ClientError> {
    let fits = || pg.room().is_none_or(|room| room >= fragment_bytes);
    if fits() {
        return Ok(());
    }
    if pg.probed.get().is_none_or(|at| at.elapsed() >= ROOM_AGE) {
        let seq = pg.write(local, Instant::now(), bare(pg, object, Op::Nothing, 0, 0, 0))?;
        pg.reported(local, seq).await?;
        pg.probed.set(Some(Instant::now()));
    }
    if fits() { Ok(()) } else { Err(pg.no_space()) }
}
