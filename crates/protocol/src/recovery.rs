//! What a returning, repairing or scrubbing shard asks of in-sync shards (model: `List`, `Snap`,
//! `Report`).
//!
//! Contract: every request names the PG's epoch; a member of another epoch answers
//! [`RecoveryReply::Refused`].

use crate::ids::{Epoch, ObjectId, PgId, Seq, SessionId, ShardIndex, ShardSet};
use crate::shard::Status;
use serde::{Deserialize, Serialize};

/// A question of shard `from` to an in-sync shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryRequest {
    /// The PG.
    pub pg: PgId,
    /// Its epoch as the asking shard knows it.
    pub epoch: Epoch,
    /// The asking shard.
    pub from: ShardIndex,
    /// What it wants.
    pub body: RecoveryBody,
}

/// The kinds of questions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecoveryBody {
    /// What did I miss, and which sessions stand where? `blank`: I hold nothing, so list every
    /// object. Answered in pages: objects after `after`.
    List {
        /// The last object of the page before.
        after: Option<ObjectId>,
        /// List every object, not only the dirty ones.
        blank: bool,
        /// Sessions attached to the asking shard, with the stable mark of their first attach
        /// (model: `start`).
        attached: Vec<(SessionId, Seq)>,
    },
    /// Your piece of this range of an object, with the marks of its cut.
    Snap {
        /// The object.
        object: ObjectId,
        /// In the fragment, in bytes.
        offset: u64,
        /// In bytes.
        length: u32,
        /// Marks that the asking shard knows (per session): the member learns them, so that cuts
        /// meet.
        known: Vec<(SessionId, Seq)>,
        /// What the asker must have been told at least (model: `start` or `mark`), per session.
        floor: Vec<(SessionId, Seq)>,
    },
    /// These objects are rebuilt here for good: clear their dirty marks unless they changed since
    /// my `Snap`.
    Report {
        /// The objects.
        objects: Vec<ObjectId>,
    },
    /// What you listed is noted here, durably. Asked only if the list was of everything.
    Noted,
    /// Which objects have a fragment at your place? Answered in pages: objects after `after`.
    Objects {
        /// The last object of the page before.
        after: Option<ObjectId>,
    },
    /// Check this range of a fragment on your disk, and tell the linear sums of its units.
    Sum {
        /// The object.
        object: ObjectId,
        /// In the fragment, in bytes.
        offset: u64,
        /// In bytes.
        length: u32,
        /// Which sums (`ec_store::codec::LinearSum`); none are wanted without.
        seed: Option<u64>,
        /// Read from the disk, not from memory, and check header and checksums, too.
        scrub: bool,
        /// As in `Snap`.
        known: Vec<(SessionId, Seq)>,
        /// As in `Snap`.
        floor: Vec<(SessionId, Seq)>,
    },
    /// Rebuild this range of your fragment from shards other than `avoid`: the evidence, or the
    /// operator, is against it.
    Mend {
        /// The object.
        object: ObjectId,
        /// In the fragment, in bytes.
        offset: u64,
        /// In bytes.
        length: u64,
        /// Shards not to take pieces from.
        avoid: ShardSet,
    },
}

/// A session's marks at a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionMark {
    /// Whose.
    pub session: SessionId,
    /// Everything up to here is known to be decided (model: `settled`).
    pub settled: Seq,
    /// The cut, if the session is resolved; `u64::MAX` if it ended with everything stable, so that
    /// all of it is kept.
    pub closed: Option<Seq>,
    /// Last record applied to the object in question (model: `Snap::lo`); only in pieces.
    pub last_applied: Seq,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecoveryReply {
    /// To `List`.
    Listed {
        /// Objects to rebuild, in ascending order.
        objects: Vec<ObjectId>,
        /// Bytes that each of them takes on the member's disk, in the same order; 0 where it is not
        /// known. For progress only, so it may be missing.
        bytes: Vec<u64>,
        /// Sessions known to the member.
        marks: Vec<SessionMark>,
        /// There are more objects.
        more: bool,
        /// The member does not know any more what was missed, and lists all objects: what it does
        /// not name, and the asker has, is to be looked at, too.
        everything: bool,
    },
    /// To `Snap`; the data segment holds the bytes from `offset` on, its missing end being hole.
    Piece {
        /// Does the object exist here?
        exists: bool,
        /// Where the object's user data ends.
        logical_end: u64,
        /// Length of the whole fragment: data ends here, in bytes.
        fragment_end: u64,
        /// Parts of the range that are data, (offset, length), so that holes stay holes.
        data: Vec<(u64, u64)>,
        /// Marks of every session with records in this PG.
        marks: Vec<SessionMark>,
    },
    /// To `Report` and `Noted`: those whose marks were cleared.
    Cleared {
        /// The objects.
        objects: Vec<ObjectId>,
    },
    /// To `Objects`.
    Objects {
        /// In ascending order.
        objects: Vec<ObjectId>,
        /// There are more.
        more: bool,
    },
    /// To `Sum`; the data segment holds the sums of the range's units, nothing if none were wanted
    /// or bytes are bad.
    Summed {
        /// Does the object exist here?
        exists: bool,
        /// Where the object's user data ends.
        logical_end: u64,
        /// Length of the whole fragment: data ends here, in bytes.
        fragment_end: u64,
        /// Parts of the range that fail their checksums, (offset, length); they are being repaired.
        corrupt: Vec<(u64, u64)>,
        /// Marks of every session with records in this PG.
        marks: Vec<SessionMark>,
    },
    /// To `Mend`: it is noted, and tried until it succeeds.
    Mending,
    /// Not now: ask again shortly.
    NotYet,
    /// Not like this.
    Refused(Status),
}
