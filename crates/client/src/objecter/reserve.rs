//! Reserving disk space for a range of a file, and whether a range has it.
//!
//! Contract: a write into a range that has space on every shard that it touches is taken though
//! the disks are full: it needs room in journals alone, which cores keep for every session. What a
//! reservation asks for is looked at on all shards first, and refused before anything is done if
//! one has too little; only what others write meanwhile can make it fail later, when a part may
//! stay reserved. Shards that are away, or not in sync, reserve nothing.

use super::local::Local;
use super::pg::PgIo;
use super::stat::ask_shards;
use super::{FileRef, LocalIo, join_all};
use crate::error::ClientError;
use ec_store::layout::{Layout, ObjectPiece};
use messenger::Message;
use protocol::shard::{Op, SpaceReply, Status};
use protocol::{Kind, ObjectId, OsdId, ShardIndex, ShardSet};
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;
use zerocopy::FromBytes;

/// Objects looked at, or reserved, at once.
const OBJECTS_AT_ONCE: usize = 32;

/// What one shard says of a range of a fragment.
#[derive(Clone, Copy, Debug)]
struct Told {
    osd: OsdId,
    missing: u64,
    free: u64,
    /// It can reserve, and tell what is reserved.
    reserves: bool,
    /// It refused a reservation.
    is_full: bool,
}

/// Asks all of these shards the same; `range` in bytes of the fragment.
async fn ask_each(
    local: &Rc<Local>,
    pg: &PgIo,
    kind: Kind,
    object: ObjectId,
    range: &Range<u64>,
    shards_of: impl Fn(&PgIo) -> ShardSet,
) -> Result<Vec<Told>, ClientError> {
    let parse = |message: &Message| {
        let reply = SpaceReply::read_from_prefix(&message.front).ok().map(|(reply, _)| reply);
        reply.filter(|_| message.kind == Kind::SpaceReply.to_u16())
    };
    let status_of = |message: &Message| {
        let reply = parse(message)?;
        // That there is no space is an answer, and no reason to ask again.
        let status = match Status::from_u8(reply.status) {
            Status::NoSpace => Status::Ok,
            status => status,
        };
        Some((status, Some(reply.attach.get())))
    };
    let all = |pg: &PgIo, usable: ShardSet| {
        let shards = shards_of(pg);
        (!shards.is_empty() && shards.minus(usable).is_empty()).then_some(shards)
    };
    let answers = ask_shards(local, pg, kind, object, range, all, status_of).await?;
    let told = |(shard, message): (ShardIndex, Message)| {
        let reply = parse(&message)?;
        Some(Told {
            osd: pg.link(shard)?.key.osd,
            missing: reply.missing.get(),
            free: reply.free.get(),
            reserves: reply.flags & SpaceReply::RESERVES != 0,
            is_full: Status::from_u8(reply.status) == Status::NoSpace,
        })
    };
    Ok(answers.into_iter().filter_map(told).collect())
}

/// Has a range of these shards' fragments all the space that a write of it takes? Not if a shard
/// that writes go to is not in sync.
pub(super) async fn has_space(
    local: &Rc<Local>,
    pg: &PgIo,
    object: ObjectId,
    touch: ShardSet,
    range: &Range<u64>,
) -> Result<bool, ClientError> {
    let concerned = |pg: &PgIo| touch.intersection(pg.view().in_sync);
    if !touch.intersection(pg.view().writers()).minus(pg.view().in_sync).is_empty() {
        return Ok(false);
    }
    let told = ask_each(local, pg, Kind::Space, object, range, concerned).await?;
    Ok(told.iter().all(|told| told.reserves && told.missing == 0 && !told.is_full))
}

/// What of a reservation is in one object.
#[derive(Clone, Debug)]
struct Wanted {
    index: u32,
    /// In bytes of the fragment, whole stripes.
    fragment: Range<u64>,
}

impl LocalIo {
    /// Takes disk space for a range of the file, so that later writes of it need none. Gives
    /// whether all shards can: if not, nothing was reserved. The caller writes the file alone, and
    /// has bounded the range by what may be free.
    ///
    /// # Errors
    /// As [`LocalIo::write`]. [`ClientError::NoSpace`]: as a rule nothing was done, see the module.
    pub async fn reserve(&self, file: FileRef, range: Range<u64>) -> Result<bool, ClientError> {
        let range = self.range_of(file, range.start, range.end.saturating_sub(range.start))?;
        let layout = Layout::new(self.local.profile(file.pool)?);
        let wanted = |piece: ObjectPiece| Wanted {
            index: piece.index,
            fragment: layout.fragment_cover(&piece.range),
        };
        let all: Vec<Wanted> = layout.objects(range).map(wanted).collect();
        let mut missing: Vec<Wanted> = Vec::new();
        // What was cut off or punched before gives its space back first, which a record must be
        // durable for.
        self.sync(file).await?;
        let mut disks: HashMap<OsdId, (u64, u64)> = HashMap::new();
        for batch in all.chunks(OBJECTS_AT_ONCE) {
            let asked = batch.iter().map(|wanted| self.space_of(file, wanted, Kind::Space));
            for (wanted, told) in batch.iter().zip(join_all(asked).await) {
                let told = told?;
                if told.iter().any(|told| !told.reserves) {
                    return Ok(false);
                }
                if told.iter().any(|told| told.missing > 0) {
                    missing.push(wanted.clone());
                }
                for Told { osd, missing, free, .. } in told {
                    let (sum, least) = disks.entry(osd).or_insert((0, u64::MAX));
                    (*sum, *least) = (sum.saturating_add(missing), free.min(*least));
                    if *sum > *least {
                        return Err(ClientError::NoSpace(osd));
                    }
                }
            }
        }
        for batch in missing.chunks(OBJECTS_AT_ONCE) {
            self.reserve_each(file, batch).await?;
        }
        Ok(true)
    }

    /// Makes the objects with records, which shards that are away learn of, and reserves on those
    /// that are there.
    async fn reserve_each(&self, file: FileRef, batch: &[Wanted]) -> Result<(), ClientError> {
        let make = |wanted: &Wanted| self.mutate(file, wanted.index, Op::Punch, 0..0, 0);
        join_all(batch.iter().map(make)).await.into_iter().collect::<Result<(), _>>()?;
        let asked = batch.iter().map(|wanted| self.space_of(file, wanted, Kind::Reserve));
        for told in join_all(asked).await {
            if let Some(full) = told?.iter().find(|told| told.is_full) {
                return Err(ClientError::NoSpace(full.osd));
            }
        }
        Ok(())
    }

    /// Asks all shards of an object that are in sync.
    async fn space_of(
        &self,
        file: FileRef,
        wanted: &Wanted,
        kind: Kind,
    ) -> Result<Vec<Told>, ClientError> {
        let (object, fragment) = (file.object(wanted.index), wanted.fragment.clone());
        self.on_owner(
            file,
            object,
            "storage daemons to reserve space",
            move |local, pg| async move {
                let _permit = local.permit(0).await;
                ask_each(&local, &pg, kind, object, &fragment, |pg| pg.view().in_sync).await
            },
        )
        .await
    }
}
