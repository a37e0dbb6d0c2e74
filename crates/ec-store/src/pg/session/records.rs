//! The writes that a session keeps until they are stable, numbered without gaps.

use super::Request;
use bytes::Bytes;
use protocol::shard::{Op, ShardHead, WriteRequest};
use protocol::{ObjectId, Seq, ShardIndex, ShardSet};
use smallvec::SmallVec;
use std::collections::VecDeque;

/// What one shard gets of a write. All in bytes of the fragment, multiples of a sector.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Where in the fragment.
    pub offset: u64,
    /// How much of the fragment is concerned; for [`Op::Write`] the length of `data`.
    pub length: u32,
    /// The bytes; empty unless [`Op::Write`].
    pub data: Bytes,
    /// CRC32C of `data`, if it is known; else each sending computes it.
    pub data_crc: Option<u32>,
}

/// The pieces of a write, one for each shard that it touches; three fit without an allocation.
pub type WritePieces = SmallVec<[(ShardIndex, Piece); 3]>;

/// A write to one object, already coded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewWrite {
    /// The object.
    pub object: ObjectId,
    /// What is done to it.
    pub op: Op,
    /// Where the object's user data ends, in user bytes: for [`Op::Truncate`] exactly, for others
    /// at least.
    pub logical_end: u64,
    /// For each shard that it touches: all that must change for the stripes to stay whole, down
    /// shards too.
    pub pieces: WritePieces,
}

/// A numbered write.
#[derive(Debug)]
pub(super) struct Kept {
    pub write: NewWrite,
    pub touch: ShardSet,
    /// The session's record before it on each shard, beside `write.pieces`.
    preds: SmallVec<[Seq; 3]>,
}

impl Kept {
    fn position(&self, shard: ShardIndex) -> Option<usize> {
        self.write.pieces.iter().position(|(s, _)| *s == shard)
    }

    /// The record before it on `shard`, if the write touches it.
    pub fn pred(&self, shard: ShardIndex) -> Option<Seq> {
        self.position(shard).map(|at| self.preds[at])
    }

    /// The message for `shard`, if the write touches it.
    pub fn message(&self, seq: Seq, shard: ShardIndex, head: ShardHead) -> Option<Request> {
        let at = self.position(shard)?;
        let piece = &self.write.pieces[at].1;
        let request = WriteRequest {
            head,
            seq: seq.get().into(),
            pred: self.preds[at].get().into(),
            object: self.write.object.into(),
            op: self.write.op as u8,
            flags: 0,
            touch: self.touch.bits().into(),
            offset: piece.offset.into(),
            length: piece.length.into(),
            logical_end: self.write.logical_end.into(),
        };
        Some(Request::Write(request, piece.data.clone(), piece.data_crc))
    }

    fn bytes(&self) -> usize {
        self.write.pieces.iter().map(|(_, p)| p.data.len()).sum::<usize>() + size_of::<Kept>()
    }
}

/// Writes `first..=last`, with the bytes they hold.
#[derive(Debug, Default)]
pub(super) struct Records {
    kept: VecDeque<Kept>,
    /// All up to here were stable and are forgotten.
    stable: u64,
    bytes: usize,
    /// The last record that touches each shard.
    last_on: [u64; 16],
}

impl Records {
    pub fn push(&mut self, write: NewWrite) -> Seq {
        let touch = write.pieces.iter().fold(ShardSet::EMPTY, |set, (s, _)| set.with(*s));
        let seq = self.last().get() + 1;
        let mut preds = SmallVec::new();
        for (shard, _) in &write.pieces {
            preds.push(Seq::new(std::mem::replace(
                &mut self.last_on[usize::from(shard.get())],
                seq,
            )));
        }
        let kept = Kept { write, touch, preds };
        self.bytes += kept.bytes();
        self.kept.push_back(kept);
        Seq::new(seq)
    }

    /// The last write.
    pub fn last(&self) -> Seq {
        Seq::new(self.stable + self.kept.len() as u64)
    }

    /// The last write known to be stable.
    pub fn stable(&self) -> Seq {
        Seq::new(self.stable)
    }

    /// The last write that touches `shard`.
    pub fn last_on(&self, shard: ShardIndex) -> Seq {
        Seq::new(self.last_on[usize::from(shard.get())])
    }

    /// Data bytes and overhead of everything kept.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The write with this number, unless it is stable.
    pub fn get(&self, seq: Seq) -> Option<&Kept> {
        self.kept.get(usize::try_from(seq.get().checked_sub(self.stable + 1)?).ok()?)
    }

    /// Forgets everything up to `seq`.
    pub fn release(&mut self, seq: Seq) {
        // Rule: KeepUntilStable - nothing is forgotten before.
        while self.stable < seq.get() {
            let Some(kept) = self.kept.pop_front() else { break };
            self.bytes -= kept.bytes();
            self.stable += 1;
        }
    }

    /// Numbers of the writes after `tail` that are kept and touch `shard`.
    pub fn after(&self, tail: Seq, shard: ShardIndex) -> impl Iterator<Item = (Seq, &Kept)> {
        let skip = usize::try_from(tail.get().saturating_sub(self.stable))
            .unwrap_or(usize::MAX)
            .min(self.kept.len());
        let first = self.stable + skip as u64 + 1;
        let numbered = (first..).map(Seq::new).zip(self.kept.range(skip..));
        numbered.filter(move |(_, kept)| kept.touch.contains(shard))
    }
}
