//! What the shards know of an object: its end, its space, where it holds data.
//!
//! Contract: asks shards that may be read, as reads do, and starts over as they do. Every write
//! touches the parity shards and a data shard at least, so any k shards of a PG know of every
//! write.

use super::local::Local;
use super::pg::PgIo;
use super::read::{Ask, Failure, Failures, ask, gather};
use crate::error::ClientError;
use messenger::Message;
use protocol::shard::{ExtentsReply, ObjectsReply, StatReply, Status};
use protocol::{Kind, ObjectId, ShardIndex, ShardSet};
use smallvec::SmallVec;
use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use zerocopy::FromBytes;

/// What is known of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct ObjectStat {
    /// It exists.
    pub exists: bool,
    /// Where its user data ends, in object bytes.
    pub logical_end: u64,
    /// Bytes that its data takes on disk, without parity.
    pub allocated: u64,
}

/// Asks every usable shard, at least k, the same; returns the answers.
async fn ask_usable(
    local: &Rc<Local>,
    pg: &PgIo,
    kind: Kind,
    object: ObjectId,
    range: &Range<u64>,
    status_of: impl Fn(&Message) -> Option<(Status, Option<u64>)>,
) -> Result<Vec<Message>, ClientError> {
    let k = u32::from(pg.layout.profile().k());
    let at_least_k = |_: &PgIo, usable: ShardSet| (usable.len() >= k).then_some(usable);
    let answers = ask_shards(local, pg, kind, object, range, at_least_k, status_of).await?;
    Ok(answers.into_iter().map(|(_, message)| message).collect())
}

/// Asks shards the same; returns all their answers. `shards_of`: which of those that are usable;
/// `None`: they are not enough, and others are waited for.
pub(super) async fn ask_shards(
    local: &Rc<Local>,
    pg: &PgIo,
    kind: Kind,
    object: ObjectId,
    range: &Range<u64>,
    shards_of: impl Fn(&PgIo, ShardSet) -> Option<ShardSet>,
    status_of: impl Fn(&Message) -> Option<(Status, Option<u64>)>,
) -> Result<Vec<(ShardIndex, Message)>, ClientError> {
    let mut failures = Failures::default();
    loop {
        local.session_usable(pg).await?;
        let seen = pg.changed().version();
        let Some(shards) = shards_of(pg, pg.usable(local).minus(failures.excluded())) else {
            failures.wait(local, pg, seen, |set| shards_of(pg, set).is_some()).await?;
            continue;
        };
        match attempt(local, pg, kind, object, range, shards, &status_of).await {
            Ok(answers) => return Ok(answers),
            Err(failure) => failures.add(local, pg, failure)?,
        }
    }
}

async fn attempt(
    local: &Rc<Local>,
    pg: &PgIo,
    kind: Kind,
    object: ObjectId,
    range: &Range<u64>,
    shards: ShardSet,
    status_of: impl Fn(&Message) -> Option<(Status, Option<u64>)>,
) -> Result<Vec<(ShardIndex, Message)>, Failure> {
    let mut asks: SmallVec<[Ask; 4]> = SmallVec::new();
    for shard in shards.iter() {
        asks.push(ask(local, pg, kind, object, shard, range)?);
    }
    gather(local, pg, &mut asks, &Cell::default(), status_of).await?;
    Ok(asks.into_iter().filter_map(Ask::into_answer).collect())
}

/// What the shards know of an object.
pub(super) async fn stat(
    local: &Rc<Local>,
    pg: &PgIo,
    object: ObjectId,
) -> Result<ObjectStat, ClientError> {
    let parse = |message: &Message| {
        StatReply::read_from_prefix(&message.front).ok().map(|(reply, _)| reply)
    };
    let status_of = |message: &Message| {
        let reply = parse(message).filter(|_| message.kind == Kind::StatReply.to_u16())?;
        Some((Status::from_u8(reply.status), Some(reply.attach.get())))
    };
    let answers = ask_usable(local, pg, Kind::Stat, object, &(0..0), status_of).await?;
    let replies: Vec<StatReply> = answers.iter().filter_map(parse).collect();
    let logical_end = replies.iter().map(|reply| reply.logical_end.get()).max().unwrap_or(0);
    let told = replies.iter().map(|reply| reply.allocated.get());
    let sum = told.fold(0u64, u64::saturating_add);
    Ok(ObjectStat {
        exists: replies.iter().any(|reply| reply.flags & 1 == 1),
        // what a writer said of it: no more than an object holds
        logical_end: logical_end.min(pg.layout.profile().object_bytes()),
        allocated: sum.saturating_mul(pg.layout.profile().k().into())
            / (replies.len() as u64).max(1),
    })
}

/// Where a range of an object holds data, in object bytes and whole stripes, in order and merged.
pub(super) async fn extents(
    local: &Rc<Local>,
    pg: &PgIo,
    object: ObjectId,
    range: Range<u64>,
) -> Result<Vec<Range<u64>>, ClientError> {
    let parse =
        |message: &Message| protocol::decode::<ExtentsReply>("extents", &message.front).ok();
    let status_of = |message: &Message| {
        let reply = parse(message).filter(|_| message.kind == Kind::ExtentsReply.to_u16())?;
        Some((reply.status, None))
    };
    let whole = pg.layout.fragment_cover(&range);
    let mut found: Vec<Range<u64>> = Vec::new();
    let mut from = whole.start;
    while from < whole.end {
        let answers =
            ask_usable(local, pg, Kind::Extents, object, &(from..whole.end), status_of).await?;
        let replies: Vec<ExtentsReply> = answers.iter().filter_map(parse).collect();
        // Beyond the end of a cut answer its shard may hold more: the next question begins there.
        let ends = replies.iter().filter(|reply| reply.more);
        let known = ends
            .filter_map(|reply| reply.data.last())
            .map(|(at, len)| at + len)
            .min()
            .unwrap_or(whole.end);
        let known = known.min(whole.end);
        found.extend(replies.iter().flat_map(|reply| &reply.data).filter_map(|(at, length)| {
            let (start, end) = ((*at).max(from), at.saturating_add(*length).min(known));
            (start < end).then_some(start..end)
        }));
        if known <= from {
            break;
        }
        from = known;
    }
    let covers = found.iter().map(|part| pg.layout.object_cover(part));
    let clipped = covers.map(|part| part.start.max(range.start)..part.end.min(range.end));
    Ok(merge(clipped.filter(|part| !part.is_empty()).collect()))
}

/// Which objects of a file the PG holds, from `first` on and below index `end`, ascending.
pub(super) async fn objects(
    local: &Rc<Local>,
    pg: &PgIo,
    first: ObjectId,
    end: u64,
) -> Result<Vec<u32>, ClientError> {
    Ok(objects_asked(local, pg, first, end, false).await?.0)
}

/// Bytes that the data of those objects takes on disk, without parity.
pub(super) async fn allocated(
    local: &Rc<Local>,
    pg: &PgIo,
    first: ObjectId,
    end: u64,
) -> Result<u64, ClientError> {
    Ok(objects_asked(local, pg, first, end, true).await?.1)
}

/// Both; the bytes are 0 unless they are asked for.
async fn objects_asked(
    local: &Rc<Local>,
    pg: &PgIo,
    first: ObjectId,
    end: u64,
    measures: bool,
) -> Result<(Vec<u32>, u64), ClientError> {
    let parse =
        |message: &Message| protocol::decode::<ObjectsReply>("objects", &message.front).ok();
    let status_of = |message: &Message| {
        let reply = parse(message).filter(|_| message.kind == Kind::ObjectsReply.to_u16())?;
        Some((reply.status, None))
    };
    let (mut found, mut bytes) = (Vec::new(), 0);
    let (mut from, asked) = (first, 0..u64::from(measures));
    loop {
        let answers = ask_usable(local, pg, Kind::Objects, from, &asked, status_of).await?;
        let replies: Vec<ObjectsReply> = answers.iter().filter_map(parse).collect();
        let page = page_of(&replies, from.index, end);
        let taken = taken_of(&replies, &page.indexes);
        let user = taken.saturating_mul(pg.layout.profile().k().into());
        bytes = u64::saturating_add(bytes, user / (replies.len() as u64).max(1));
        found.extend(page.indexes);
        match page.next {
            Some(index) => from.index = index,
            None => return Ok((found, bytes)),
        }
    }
}

/// What the answers of all shards to one question tell together.
#[derive(PartialEq, Eq, Debug)]
struct Page {
    indexes: Vec<u32>,
    /// Where the next question begins.
    next: Option<u32>,
}

/// What all shards together have of these objects.
fn taken_of(replies: &[ObjectsReply], indexes: &[u32]) -> u64 {
    let is_told = |index: &u32| indexes.binary_search(index).is_ok();
    let told = replies.iter().flat_map(|reply| reply.indexes.iter().zip(&reply.taken));
    told.filter(|(index, _)| is_told(index)).fold(0, |sum, (_, taken)| sum.saturating_add(*taken))
}

fn page_of(replies: &[ObjectsReply], from: u32, end: u64) -> Page {
    // Beyond the end of a cut answer its shard may hold more: the next question begins there. One
    // that ends before it began would let us ask for ever.
    let cuts =
        replies.iter().filter(|reply| reply.more).filter_map(|reply| reply.indexes.last().copied());
    let last = cuts.filter(|last| *last >= from).min();
    let is_told = |index: &u32| {
        *index >= from && u64::from(*index) < end && last.is_none_or(|last| *index <= last)
    };
    let mut indexes: Vec<u32> =
        replies.iter().flat_map(|reply| &reply.indexes).copied().filter(is_told).collect();
    indexes.sort_unstable();
    indexes.dedup();
    let next = last.and_then(|last| last.checked_add(1)).filter(|next| u64::from(*next) < end);
    Page { indexes, next }
}

/// Ranges in order, those that touch made one.
pub(super) fn merge(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_ends_where_the_first_cut_answer_does() {
        let reply = |indexes: &[u32], more| ObjectsReply {
            status: Status::Ok,
            indexes: indexes.to_vec(),
            taken: vec![10; indexes.len()],
            more,
        };
        let page = |replies: &[ObjectsReply], from, end| {
            let page = page_of(replies, from, end);
            (page.indexes, page.next)
        };
        let end = 1 << 32;
        assert_eq!(
            page(&[reply(&[1, 5], false), reply(&[5, 9], false)], 0, end),
            (vec![1, 5, 9], None)
        );
        assert_eq!(
            page(&[reply(&[1, 5], true), reply(&[2, 9], false)], 0, end),
            (vec![1, 2, 5], Some(6))
        );
        assert_eq!(
            page(&[reply(&[1, 5], true)], 0, 6),
            (vec![1, 5], None),
            "nothing more is asked for"
        );
        assert_eq!(page(&[reply(&[u32::MAX], true)], 7, end), (vec![u32::MAX], None));
        assert_eq!(
            page(&[reply(&[1, 2], true)], 3, end),
            (vec![], None),
            "an answer that does not fit the question"
        );
        assert_eq!(page(&[reply(&[], true)], 0, end), (vec![], None));
        let replies = [reply(&[1, 5], true), reply(&[2, 9], false)];
        assert_eq!(taken_of(&replies, &[1, 2, 5]), 30, "the next page tells of 9 once more");
    }

    #[test]
    fn touching_ranges_merge() {
        assert_eq!(merge(vec![10..20, 0..5, 20..30, 4..6, 40..41]), [0..6, 10..30, 40..41]);
        assert_eq!(merge(Vec::new()), Vec::<Range<u64>>::new());
    }
}
