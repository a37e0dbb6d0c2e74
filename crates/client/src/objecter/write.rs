//! Writing to an object: whole stripes at once, anything else by read-modify-write.
//!
//! Contract: every record leaves its stripes whole: parity fits the data on all shards it touches.
//! A write that reads old bytes holds its stripes from the read until it is numbered; one that does
//! not, since it needs none or knows them from the write before it, waits for such holders.

use super::Ending;
use super::local::Local;
use super::osd::Hurry;
use super::pg::PgIo;
use super::plan::{WritePlan, plan_write};
use super::range_lock::Mode;
use super::read::read_piece;
use super::reserve::has_space;
use super::stat;
use super::wait::join_all;
use super::window::OnTheWay;
use crate::error::ClientError;
use bytes::Bytes;
use ec_store::layout::Layout;
use ec_store::pg::{NewWrite, Piece, Space, WritePieces};
use protocol::shard::Op;
use protocol::{ObjectId, ShardIndex, ShardSet};
use smallvec::SmallVec;
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How long what was learned of a full disk counts before it is asked again.
const ROOM_AGE: Duration = Duration::from_millis(300);
/// Before a full disk is asked once more: what was just written may be counted twice for a moment.
const ROOM_PAUSE: Duration = Duration::from_millis(40);

/// What the writer knows of an object; see [`WriterHint`](super::WriterHint).
#[derive(Clone, Copy, Debug)]
pub(super) struct ObjectHint {
    /// From here on the object holds zeros, in object bytes.
    pub zero_from: u64,
    /// Where its user data ends when the write is done, in object bytes.
    pub logical_end: u64,
    /// The grant under which nobody else writes.
    pub grant: Option<u64>,
}

/// Writes bytes at an offset of an object. Returns when the write is reported, or sent, if it ends
/// so.
pub(super) async fn write_piece(
    local: &Rc<Local>,
    pg: &Rc<PgIo>,
    object: ObjectId,
    offset: u64,
    data: Bytes,
    hint: ObjectHint,
    ending: Ending,
) -> Result<(), ClientError> {
    let range = offset..offset + data.len() as u64;
    let plan = plan_for(local, pg, object, &range, hint);
    let fragment_bytes = plan.fragment.end - plan.fragment.start;
    local.session_usable(pg).await?;
    local.room_to_keep(fragment_bytes as usize * plan.touch.len() as usize).await;
    let on_the_way = match ending.frees {
        true => {
            let windows = pg.windows(plan.touch);
            OnTheWay::admit(windows, fragment_bytes).await.in_reserved_space()
        }
        false => admit(local, pg, object, plan.touch, &plan.fragment).await?,
    };
    write_planned(local, pg, object, (plan, range, data), hint, ending, on_the_way).await
}

/// Makes a part of a stripe zeros, also where a disk is full: over what holds data, zeros take no
/// space, and a hole needs none.
pub(super) async fn zero_edge(
    local: &Rc<Local>,
    pg: &Rc<PgIo>,
    object: ObjectId,
    range: Range<u64>,
    hint: ObjectHint,
) -> Result<(), ClientError> {
    let zeros = Bytes::from(vec![0; (range.end - range.start) as usize]);
    let write = |ending| write_piece(local, pg, object, range.start, zeros.clone(), hint, ending);
    match write(Ending::default()).await {
        Err(ClientError::NoSpace(_)) => {}
        ended => return ended,
    }
    if stat::extents(local, pg, object, range.clone()).await?.is_empty() {
        return Ok(());
    }
    write(Ending { frees: true, ..Ending::default() }).await
}

/// Writes bytes at an offset of an object for which there is room on its way to all shards already.
pub(super) async fn write_admitted(
    local: &Rc<Local>,
    pg: &Rc<PgIo>,
    object: ObjectId,
    (offset, data): (u64, Bytes),
    hint: ObjectHint,
    ending: Ending,
    on_the_way: OnTheWay,
) -> Result<(), ClientError> {
    local.session_usable(pg).await?;
    let range = offset..offset + data.len() as u64;
    let plan = plan_for(local, pg, object, &range, hint);
    write_planned(local, pg, object, (plan, range, data), hint, ending, on_the_way).await
}

fn plan_for(
    local: &Local,
    pg: &PgIo,
    object: ObjectId,
    range: &Range<u64>,
    hint: ObjectHint,
) -> WritePlan {
    let mut plan = plan_write(pg.layout, range, hint.zero_from);
    if knows_gaps(local, object, hint.grant, &plan) {
        plan.assume(pg.layout);
    }
    plan
}

async fn write_planned(
    local: &Rc<Local>,
    pg: &Rc<PgIo>,
    object: ObjectId,
    (plan, range, data): (WritePlan, Range<u64>, Bytes),
    hint: ObjectHint,
    ending: Ending,
    on_the_way: OnTheWay,
) -> Result<(), ClientError> {
    let may_assume = plan.touch == pg.all_shards();
    let known = || if may_assume { known_gaps(local, object, hint.grant, &plan) } else { None };
    let (guard, old) = match local.locks.is_idle(object).then(known).flatten() {
        Some(old) => (None, old),
        None => {
            let guard = local.locks.lock(object, plan.cover.clone(), Mode::Exclusive).await;
            let old = match known() {
                Some(old) => old,
                None => read_gaps(local, pg, object, &plan).await?,
            };
            (Some(guard), old)
        }
    };
    let patch = Patch { plan: &plan, range: &range, data: &data, old: &old };
    let pieces = encode(local, pg, &patch);
    let write = NewWrite { object, op: Op::Write, logical_end: hint.logical_end, pieces };
    let is_waited_for = ending.behind.is_none();
    let seq = pg.write(
        local,
        Instant::now(),
        write,
        if is_waited_for { Hurry::Now } else { Hurry::Delayed },
        on_the_way.space(),
    )?;
    remember_tail(local, pg.layout, object, hint.grant, &patch);
    drop(guard);
    pg.hold_until_reported(seq, on_the_way, ending.behind);
    if ending.sync {
        pg.want_stable(local, Instant::now(), Some(seq));
    }
    if is_waited_for {
        return pg.reported(local, seq).await;
    }
    local.delayed(data.len());
    Ok(())
}

/// A write and the old bytes beside it, which together are whole stripes.
#[derive(Clone, Copy)]
struct Patch<'a> {
    plan: &'a WritePlan,
    range: &'a Range<u64>,
    data: &'a Bytes,
    old: &'a [Bytes],
}

impl Patch<'_> {
    /// Copies what a range of those stripes holds after the write into `out`, which holds zeros.
    fn fill(&self, wanted: &Range<u64>, out: &mut [u8]) {
        let new = std::iter::once((self.range, self.data));
        for (range, bytes) in self.plan.reads.iter().zip(self.old).chain(new) {
            let both = range.start.max(wanted.start)..range.end.min(wanted.end);
            if !both.is_empty() {
                let part = |of: &Range<u64>| {
                    (both.start - of.start) as usize..(both.end - of.start) as usize
                };
                out[part(wanted)].copy_from_slice(&bytes[part(range)]);
            }
        }
    }
}

/// Old bytes that a write needs, in the order of [`WritePlan::reads`].
type Gaps = SmallVec<[Bytes; 2]>;

/// Has the last write of the object left all old bytes in memory that this one needs?
fn knows_gaps(local: &Local, object: ObjectId, grant: Option<u64>, plan: &WritePlan) -> bool {
    let tails = local.tails.borrow();
    plan.reads.iter().all(|gap| tails.get(object, grant, gap).is_some())
}

/// The old bytes, if the last write of the object has left all of them in memory.
fn known_gaps(
    local: &Local,
    object: ObjectId,
    grant: Option<u64>,
    plan: &WritePlan,
) -> Option<Gaps> {
    let tails = local.tails.borrow();
    let copy = |gap| tails.get(object, grant, gap).map(Bytes::copy_from_slice);
    plan.reads.iter().map(copy).collect()
}

/// The old bytes, as the shards have them.
async fn read_gaps(
    local: &Rc<Local>,
    pg: &Rc<PgIo>,
    object: ObjectId,
    plan: &WritePlan,
) -> Result<Gaps, ClientError> {
    let reads = plan.reads.iter().map(|gap| read_piece(local, pg, object, gap.clone(), true));
    join_all(reads).await.into_iter().collect()
}

/// Keeps the stripe that a write ends in, for one that goes on there: after a write at the end of
/// the data, or one that went on itself.
fn remember_tail(
    local: &Local,
    layout: Layout,
    object: ObjectId,
    grant: Option<u64>,
    patch: &Patch<'_>,
) {
    let mut tails = local.tails.borrow_mut();
    let Patch { plan, range, .. } = patch;
    let stripe = plan.cover.end - layout.profile().stripe_bytes()..plan.cover.end;
    let is_partial = range.end < plan.cover.end;
    let goes_on = is_partial && (plan.zeros || tails.is_next(object, grant, range.start));
    tails.wrote(
        object,
        grant,
        range.end,
        stripe.clone(),
        goes_on.then_some(|out: &mut [u8]| patch.fill(&stripe, out)),
    );
}

/// The fragments of a write, with their checksums: one buffer holds them all.
fn encode(local: &Local, pg: &PgIo, patch: &Patch<'_>) -> WritePieces {
    let Patch { plan, range, data, old } = *patch;
    let profile = pg.layout.profile();
    let (k, shards) = (usize::from(profile.k()), usize::from(profile.shards()));
    let length = (plan.fragment.end - plan.fragment.start) as usize;
    let piece = |data: Bytes, data_crc| Piece {
        offset: plan.fragment.start,
        length: length as u32,
        data,
        data_crc: Some(data_crc),
    };
    if k == 1 && *range == plan.cover {
        // A replicated pool: every shard's fragment is the data itself.
        let data_crc = crc32c::crc32c(data);
        return plan.touch.iter().map(|shard| (shard, piece(data.clone(), data_crc))).collect();
    }
    // All shards of a replicated pool hold the same bytes.
    let made = if k == 1 { 1 } else { shards };
    let mut buffer = local.worker.pool().take(length * made);
    let bytes = buffer.as_mut();
    if plan.zeros {
        bytes[..length * k].fill(0);
    }
    let mut fragments: SmallVec<[&mut [u8]; 16]> = bytes.chunks_exact_mut(length).collect();
    for (gap, old) in plan.reads.iter().zip(old) {
        pg.layout.scatter(gap.start, old, plan.fragment.start, &mut fragments[..k]);
    }
    let is_sent = |at: usize| k == 1 || plan.touch.contains(ShardIndex::new(at as u8));
    let mut sums: SmallVec<[u32; 16]> = SmallVec::from_elem(0, made);
    for tile in tiles(profile.chunk_bytes() as usize, length) {
        let at = plan.fragment.start + tile.start as u64;
        let cover = pg.layout.object_cover(&(at..plan.fragment.start + tile.end as u64));
        let part =
            cover.start.clamp(range.start, range.end)..cover.end.clamp(range.start, range.end);
        let part_data =
            &data[(part.start - range.start) as usize..(part.end - range.start) as usize];
        let mut parts: SmallVec<[&mut [u8]; 16]> =
            fragments.iter_mut().map(|all| &mut all[tile.clone()]).collect();
        let (data_parts, parity) = parts.split_at_mut(k);
        pg.layout.scatter(part.start, part_data, at, data_parts);
        if k > 1 {
            let inputs: SmallVec<[&[u8]; 16]> = data_parts.iter().map(|part| &**part).collect();
            pg.codec.encode(&inputs, parity);
        }
        for (_, (sum, part)) in
            sums.iter_mut().zip(&parts).enumerate().filter(|(shard, _)| is_sent(*shard))
        {
            *sum = crc32c::crc32c_append(*sum, part);
        }
    }
    drop(fragments);
    let all = buffer.freeze();
    let slice = |shard: ShardIndex| {
        let at = if k == 1 { 0 } else { usize::from(shard.get()) };
        piece(all.slice(at * length..(at + 1) * length), sums[at])
    };
    plan.touch.iter().map(|shard| (shard, slice(shard))).collect()
}

/// Bytes of each fragment that are scattered, coded and summed before the next: with k + m of a
/// few, what one step leaves is in the cache of the core for the next one. A multiple of what the
/// checksum works on side by side.
const TILE_BYTES: usize = 24 << 10;

/// Cuts a range of fragments of this length into tiles of whole chunks.
fn tiles(chunk_bytes: usize, length: usize) -> impl Iterator<Item = Range<usize>> {
    let step = (TILE_BYTES / chunk_bytes).max(1) * chunk_bytes;
    (0..length).step_by(step).map(move |at| at..length.min(at + step))
}

/// An operation without data on a range of every fragment: `range` in object bytes, whole stripes.
pub(super) async fn mutate(
    local: &Rc<Local>,
    pg: &Rc<PgIo>,
    object: ObjectId,
    op: Op,
    range: Range<u64>,
    logical_end: u64,
) -> Result<(), ClientError> {
    local.session_usable(pg).await?;
    pg.attach(local);
    let on_the_way = OnTheWay::admit(pg.windows(pg.all_shards()), 0).await;
    let guard = match local.locks.is_idle(object) {
        true => None,
        // Truncate and delete concern everything behind.
        false if op != Op::Punch => {
            Some(local.locks.lock(object, range.start..u64::MAX, Mode::Exclusive).await)
        }
        false => Some(local.locks.lock(object, range.clone(), Mode::Exclusive).await),
    };
    let fragment = pg.layout.fragment_cover(&range);
    let write =
        bare(pg, object, op, fragment.start, (fragment.end - fragment.start) as u32, logical_end);
    let seq = pg.write(local, Instant::now(), write, Hurry::Now, Space::OfDisk)?;
    local.tails.borrow_mut().forget(object);
    drop(guard);
    pg.hold_until_reported(seq, on_the_way, None);
    pg.reported(local, seq).await
}

fn bare(
    pg: &PgIo,
    object: ObjectId,
    op: Op,
    offset: u64,
    length: u32,
    logical_end: u64,
) -> NewWrite {
    let piece = Piece { offset, length, data: Bytes::new(), data_crc: None };
    NewWrite {
        object,
        op,
        logical_end,
        pieces: pg.all_shards().iter().map(|shard| (shard, piece.clone())).collect(),
    }
}

/// Lets a write begin once all shards have space for it: they were asked, and no more is on its way
/// than they keep space for. Refuses it, before it is numbered, if a disk is full and the range has
/// no space of its own.
pub(super) async fn admit(
    local: &Rc<Local>,
    pg: &Rc<PgIo>,
    object: ObjectId,
    touch: ShardSet,
    fragment: &Range<u64>,
) -> Result<OnTheWay, ClientError> {
    let fragment_bytes = fragment.end - fragment.start;
    pg.room_known(local).await?;
    let on_the_way = OnTheWay::admit(pg.windows(touch), fragment_bytes).await;
    let fits = || pg.room().is_none_or(|room| room >= fragment_bytes);
    if fits() {
        return Ok(on_the_way);
    }
    if pg.probed.get().is_none_or(|at| at.elapsed() >= ROOM_AGE) {
        ask_room(local, pg, object).await?;
        if !fits() {
            local.worker.sleep(ROOM_PAUSE).await;
            ask_room(local, pg, object).await?;
        }
        pg.probed.set(Some(Instant::now()));
    }
    if fits() {
        return Ok(on_the_way);
    }
    match has_space(local, pg, object, touch, fragment).await? {
        true => Ok(on_the_way.in_reserved_space()),
        false => Err(pg.no_space()),
    }
}

/// Asks all shards how much they still take: that comes with acknowledgements, so with that of an
/// empty record.
async fn ask_room(local: &Rc<Local>, pg: &Rc<PgIo>, object: ObjectId) -> Result<(), ClientError> {
    let seq = pg.write(
        local,
        Instant::now(),
        bare(pg, object, Op::Nothing, 0, 0, 0),
        Hurry::Now,
        Space::OfDisk,
    )?;
    pg.reported(local, seq).await
}
