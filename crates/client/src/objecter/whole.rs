//! Operations over whole files and wide ranges: punch, truncate, delete, seek, measure.
//!
//! Contract: they cost what the file stores, not what its size says: a range of more than
//! [`FEW_OBJECTS`] objects is worked on by the objects that the PGs list ([`stat::objects`]). The
//! number of PGs bounds the questions, the objects that exist bound the memory (4 bytes each). Any
//! k shards of a PG know of every object in it, so an OSD that is away hides none.

use super::write;
use super::{FileRef, LocalIo, OBJECTS_MAX, ObjectHint, WriterHint, join_all, stat};
use crate::error::ClientError;
use ec_store::layout::Layout;
use protocol::shard::Op;
use protocol::{ObjectId, PgId};
use std::ops::Range;

/// Objects, or PGs, of one file worked on at once by operations over a whole file.
const OBJECTS_AT_ONCE: usize = 16;
/// Ranges of so many objects are worked on object by object, without asking which exist. With
/// objects of 64 MiB, 4 GiB.
const FEW_OBJECTS: u64 = 64;

/// Files of so many objects are measured object by object.
const MEASURED_OBJECTS_MAX: u64 = 16;

/// What [`LocalIo::seek`] looks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sought {
    /// The first byte of data.
    Data,
    /// The first byte of a hole.
    Hole,
}

impl LocalIo {
    /// Makes a range read as zeros, and frees whole stripes of it (FALLOC_FL_PUNCH_HOLE and
    /// FALLOC_FL_ZERO_RANGE). `hint.size_after` is the file's size, which the range may exceed.
    ///
    /// # Errors
    /// As [`LocalIo::write`].
    pub async fn punch(
        &self,
        file: FileRef,
        range: Range<u64>,
        hint: WriterHint,
    ) -> Result<(), ClientError> {
        let _timed = self.local.times.change.stopwatch();
        let layout = Layout::new(self.local.profile(file.pool)?);
        let (size, stripe) = (layout.profile().object_bytes(), layout.profile().stripe_bytes());
        let range = range.start..range.end.min(hint.zero_from);
        for indexes in self.existing_in(file, &range).await?.chunks(OBJECTS_AT_ONCE) {
            let mut jobs = Vec::new();
            for index in indexes {
                let base = u64::from(*index) * size;
                let (object, hint) = (file.object(*index), hint.of_object(base, size));
                let part = range.start.max(base) - base..range.end.min(base + size) - base;
                let (head, tail) =
                    (part.start.next_multiple_of(stripe), part.end / stripe * stripe);
                if head < tail {
                    jobs.push((object, hint, head..tail, true));
                }
                let edges = [part.start..head.min(part.end), tail.max(head)..part.end];
                let partial = edges.into_iter().filter(|edge| edge.start < edge.end);
                jobs.extend(partial.map(|edge| (object, hint, edge, false)));
            }
            let run = |(object, hint, range, whole): (ObjectId, ObjectHint, Range<u64>, bool)| {
                self.on_owner(
                    file,
                    object,
                    "storage daemons to write to",
                    move |local, pg| async move {
                        let _permit = local.permit(0).await;
                        if whole {
                            return write::mutate(
                                &local,
                                &pg,
                                object,
                                Op::Punch,
                                range,
                                hint.logical_end,
                            )
                            .await;
                        }
                        write::zero_edge(&local, &pg, object, range, hint).await
                    },
                )
            };
            join_all(jobs.into_iter().map(run)).await.into_iter().collect::<Result<(), _>>()?;
        }
        Ok(())
    }

    /// Cuts or extends the data to `new_size`; `old_size` is the size before, at least. No write of
    /// the file may be under way.
    ///
    /// # Errors
    /// As [`LocalIo::write`].
    pub async fn truncate(
        &self,
        file: FileRef,
        new_size: u64,
        old_size: u64,
    ) -> Result<(), ClientError> {
        let profile = self.local.profile(file.pool)?;
        let (size, stripe) = (profile.object_bytes(), profile.stripe_bytes());
        self.range_of(file, new_size, 0)?;
        // The rest of the stripe that holds the new end is written with zeros, so that what comes
        // later finds them.
        let edge = new_size.next_multiple_of(stripe).min(old_size.max(new_size));
        let hint = WriterHint { zero_from: old_size, size_after: new_size, grant: None };
        self.punch(file, new_size..edge, hint).await?;
        let last = (new_size.max(1) - 1) / size;
        let (cut, base) = (new_size.next_multiple_of(stripe) - last * size, last * size);
        self.mutate(file, last as u32, Op::Truncate, cut..cut, new_size - base).await?;
        self.delete_objects(file, last + 1..old_size.div_ceil(size)).await
    }

    /// Removes all data of a file: the objects that `size_hint` implies and, with `probe`, any
    /// beyond.
    ///
    /// # Errors
    /// As [`LocalIo::write`].
    pub async fn delete(
        &self,
        file: FileRef,
        size_hint: u64,
        probe: bool,
    ) -> Result<(), ClientError> {
        let size = self.local.profile(file.pool)?.object_bytes();
        let end = if probe { OBJECTS_MAX } else { size_hint.div_ceil(size) };
        self.delete_objects(file, 0..end).await
    }

    async fn delete_objects(&self, file: FileRef, indexes: Range<u64>) -> Result<(), ClientError> {
        for batch in self.existing(file, indexes).await?.chunks(OBJECTS_AT_ONCE) {
            let delete = |index: &u32| self.mutate(file, *index, Op::Delete, 0..0, 0);
            join_all(batch.iter().map(delete)).await.into_iter().collect::<Result<(), _>>()?;
        }
        Ok(())
    }

    /// Where the range holds data, in order, in file bytes, at the granularity of stripes; the rest
    /// is hole.
    ///
    /// # Errors
    /// As [`LocalIo::read`].
    pub async fn extents(
        &self,
        file: FileRef,
        range: Range<u64>,
    ) -> Result<Vec<Range<u64>>, ClientError> {
        self.range_of(file, range.end, 0)?;
        let mut found = Vec::new();
        for batch in self.existing_in(file, &range).await?.chunks(OBJECTS_AT_ONCE) {
            found.extend(self.extents_of(file, batch, &range).await?);
        }
        Ok(stat::merge(found))
    }

    /// Where the range first holds data, or a hole, as [`LocalIo::extents`] has them; `None` if
    /// nowhere.
    ///
    /// # Errors
    /// As [`LocalIo::read`].
    pub async fn seek(
        &self,
        file: FileRef,
        range: Range<u64>,
        sought: Sought,
    ) -> Result<Option<u64>, ClientError> {
        let size = self.local.profile(file.pool)?.object_bytes();
        // What is near costs no question to every PG.
        let near =
            range.end.min((range.start / size).saturating_add(FEW_OBJECTS).saturating_mul(size));
        for part in [range.start..near, near..range.end] {
            if let Some(found) = self.seek_in(file, part, sought).await? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    async fn seek_in(
        &self,
        file: FileRef,
        range: Range<u64>,
        sought: Sought,
    ) -> Result<Option<u64>, ClientError> {
        let mut at = range.start;
        for batch in self.existing_in(file, &range).await?.chunks(OBJECTS_AT_ONCE) {
            for extent in stat::merge(self.extents_of(file, batch, &range).await?) {
                match sought {
                    Sought::Data => return Ok(Some(extent.start)),
                    Sought::Hole if extent.start > at => return Ok(Some(at)),
                    Sought::Hole => at = extent.end,
                }
            }
        }
        Ok((sought == Sought::Hole && at < range.end).then_some(at))
    }

    /// The data of some objects within a range of the file, in order.
    async fn extents_of(
        &self,
        file: FileRef,
        indexes: &[u32],
        range: &Range<u64>,
    ) -> Result<Vec<Range<u64>>, ClientError> {
        let size = self.local.profile(file.pool)?.object_bytes();
        let ask = |index: &u32| {
            let (object, base) = (file.object(*index), u64::from(*index) * size);
            let part = range.start.max(base) - base..range.end.min(base + size) - base;
            self.on_owner(
                file,
                object,
                "storage daemons to read from",
                move |local, pg| async move {
                    let found = stat::extents(&local, &pg, object, part).await?;
                    Ok(found
                        .into_iter()
                        .map(|part| part.start + base..part.end + base)
                        .collect::<Vec<_>>())
                },
            )
        };
        let answers = join_all(indexes.iter().map(ask)).await;
        Ok(answers.into_iter().collect::<Result<Vec<_>, _>>()?.concat())
    }

    /// Where the file's data ends, in bytes, found from its fragments (for a file whose writer
    /// died); 0 if there is none.
    ///
    /// # Errors
    /// As [`LocalIo::read`].
    pub async fn probe_size(&self, file: FileRef) -> Result<u64, ClientError> {
        let size = self.local.profile(file.pool)?.object_bytes();
        for index in self.existing(file, 0..OBJECTS_MAX).await?.into_iter().rev() {
            let stat = self.stat(file, index).await?;
            // An object of which space is reserved holds nothing that the file could end with.
            if stat.exists && (stat.logical_end > 0 || index == 0) {
                return Ok(u64::from(index) * size + stat.logical_end);
            }
        }
        Ok(0)
    }

    /// Bytes that the file's data takes on disk, without parity (for `st_blocks`), with what is
    /// reserved for it; up to a size. Of what holds data in few objects each is asked for, beyond
    /// that each PG for all that it holds.
    ///
    /// # Errors
    /// As [`LocalIo::read`].
    pub async fn allocated(&self, file: FileRef, size: u64) -> Result<u64, ClientError> {
        let object_bytes = self.local.profile(file.pool)?.object_bytes();
        let objects = size.div_ceil(object_bytes).min(OBJECTS_MAX);
        if objects <= MEASURED_OBJECTS_MAX {
            let asked = (0..objects).map(|index| self.stat(file, index as u32));
            let stats = join_all(asked).await.into_iter();
            return stats.map(|stat| Ok(stat?.allocated)).sum();
        }
        let first = file.object(0);
        let mut sum = 0;
        for batch in self.local.pg_ids(file.pool)?.chunks(OBJECTS_AT_ONCE) {
            let ask = |pg: &PgId| {
                self.on_owner_of(*pg, "storage daemons to read from", move |local, pg| async move {
                    stat::allocated(&local, &pg, first, objects).await
                })
            };
            for bytes in join_all(batch.iter().map(ask)).await {
                sum += bytes?;
            }
        }
        Ok(sum)
    }

    async fn stat(&self, file: FileRef, index: u32) -> Result<stat::ObjectStat, ClientError> {
        let object = file.object(index);
        self.on_owner(file, object, "storage daemons to read from", move |local, pg| async move {
            stat::stat(&local, &pg, object).await
        })
        .await
    }

    /// Indexes of the objects in a range of the file that may exist, ascending.
    async fn existing_in(
        &self,
        file: FileRef,
        range: &Range<u64>,
    ) -> Result<Vec<u32>, ClientError> {
        let size = self.local.profile(file.pool)?.object_bytes();
        if range.start >= range.end {
            return Ok(Vec::new());
        }
        self.existing(file, range.start / size..range.end.div_ceil(size)).await
    }

    /// Those of these objects that may exist, ascending: all of them if they are few.
    async fn existing(&self, file: FileRef, indexes: Range<u64>) -> Result<Vec<u32>, ClientError> {
        let indexes = indexes.start.min(OBJECTS_MAX)..indexes.end.min(OBJECTS_MAX);
        if indexes.end.saturating_sub(indexes.start) <= FEW_OBJECTS {
            return Ok(indexes.map(|index| index as u32).collect());
        }
        let (first, end) = (file.object(indexes.start as u32), indexes.end);
        let pgs: Vec<PgId> = self.local.pg_ids(file.pool)?;
        let mut found = Vec::new();
        for batch in pgs.chunks(OBJECTS_AT_ONCE) {
            let ask = |pg: &PgId| {
                self.on_owner_of(*pg, "storage daemons to read from", move |local, pg| async move {
                    stat::objects(&local, &pg, first, end).await
                })
            };
            for indexes in join_all(batch.iter().map(ask)).await {
                found.extend(indexes?);
            }
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }
}
