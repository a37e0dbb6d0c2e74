//! What the shards know of an object: its end, its space, where it holds data.
//!
//! Contract: asks shards that may be read, as reads do, and starts over as they do. Every write touches the parity
//! shards and a data shard at least, so any k shards of a PG know of every write.

use super::local::Local;
use super::pg::PgIo;
use super::read::{Ask, Failure, Failures, ask, gather};
use crate::error::ClientError;
use messenger::Message;
use protocol::shard::{ExtentsReply, StatReply, Status};
use protocol::{Kind, ObjectId, ShardSet};
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
async fn ask_shards(
    local: &Rc<Local>,
    pg: &PgIo,
    kind: Kind,
    object: ObjectId,
    range: &Range<u64>,
    status_of: impl Fn(&Message) -> Option<(Status, Option<u64>)>,
) -> Result<Vec<Message>, ClientError> {
    let k = u32::from(pg.layout.profile().k());
    let mut failures = Failures::default();
    loop {
        local.session_usable(pg).await?;
        let seen = pg.changed().version();
        let usable = pg.usable(local).minus(failures.excluded());
        if usable.len() < k {
            failures.wait(local, pg, seen, |set| set.len() >= k).await?;
            continue;
        }
        match attempt(local, pg, kind, object, range, usable, &status_of).await {
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
    usable: ShardSet,
    status_of: impl Fn(&Message) -> Option<(Status, Option<u64>)>,
) -> Result<Vec<Message>, Failure> {
    let mut asks: SmallVec<[Ask; 4]> = SmallVec::new();
    for shard in usable.iter() {
        asks.push(ask(local, pg, kind, object, shard, range)?);
    }
    gather(local, pg, &mut asks, &Cell::default(), status_of).await?;
    Ok(asks.into_iter().filter_map(Ask::into_answer).map(|(_, message)| message).collect())
}

/// What the shards know of an object.
pub(super) async fn stat(local: &Rc<Local>, pg: &PgIo, object: ObjectId) -> Result<ObjectStat, ClientError> {
    let parse = |message: &Message| StatReply::read_from_prefix(&message.front).ok().map(|(reply, _)| reply);
    let status_of = |message: &Message| {
        let reply = parse(message).filter(|_| message.kind == Kind::StatReply.to_u16())?;
        Some((Status::from_u8(reply.status), Some(reply.attach.get())))
    };
    let answers = ask_shards(local, pg, Kind::Stat, object, &(0..0), status_of).await?;
    let replies: Vec<StatReply> = answers.iter().filter_map(parse).collect();
    let logical_end = replies.iter().map(|reply| reply.logical_end.get()).max().unwrap_or(0);
    let sum: u64 = replies.iter().map(|reply| reply.allocated.get()).sum();
    Ok(ObjectStat {
        exists: replies.iter().any(|reply| reply.flags & 1 == 1),
        // what a writer said of it: no more than an object holds
        logical_end: logical_end.min(pg.layout.profile().object_bytes()),
        allocated: sum * u64::from(pg.layout.profile().k()) / (replies.len() as u64).max(1),
    })
}

/// Where a range of an object holds data, in object bytes and whole stripes, in order and merged.
pub(super) async fn extents(
    local: &Rc<Local>,
    pg: &PgIo,
    object: ObjectId,
    range: Range<u64>,
) -> Result<Vec<Range<u64>>, ClientError> {
    let parse = |message: &Message| protocol::decode::<ExtentsReply>("extents", &message.front).ok();
    let status_of = |message: &Message| {
        let reply = parse(message).filter(|_| message.kind == Kind::ExtentsReply.to_u16())?;
        Some((reply.status, None))
    };
    let whole = pg.layout.fragment_cover(&range);
    let mut found: Vec<Range<u64>> = Vec::new();
    let mut from = whole.start;
    while from < whole.end {
        let answers = ask_shards(local, pg, Kind::Extents, object, &(from..whole.end), status_of).await?;
        let replies: Vec<ExtentsReply> = answers.iter().filter_map(parse).collect();
        // Beyond the end of a cut answer its shard may hold more: the next question begins there.
        let ends = replies.iter().filter(|reply| reply.more);
        let known = ends.filter_map(|reply| reply.data.last()).map(|(at, len)| at + len).min().unwrap_or(whole.end);
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
    fn touching_ranges_merge() {
        assert_eq!(merge(vec![10..20, 0..5, 20..30, 4..6, 40..41]), [0..6, 10..30, 40..41]);
        assert_eq!(merge(Vec::new()), Vec::<Range<u64>>::new());
    }
}
