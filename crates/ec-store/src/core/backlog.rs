//! What the return of a shard still has to do, in bytes: for the operator's eye, decides nothing.
//!
//! Contract: pure. An object's size is what its fragment takes on a member's disk, the greatest
//! told. Work counts once as done, however often an object is begun; so what is left never grows
//! but by new objects, and what is done plus what is left is what was told.

use protocol::ObjectId;
use std::collections::HashMap;

/// The objects that one shard misses.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    objects: HashMap<ObjectId, Work>,
    left_bytes: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Work {
    bytes: u64,
    done_bytes: u64,
}

impl Backlog {
    /// A member says that the object is missed, and how large it is.
    pub fn add(&mut self, object: ObjectId, bytes: u64) {
        let work = self.objects.entry(object).or_default();
        let more = bytes.saturating_sub(work.bytes);
        work.bytes += more;
        self.left_bytes += more;
    }

    /// So many bytes of the object's fragment are dealt with. Gives by how much that is more than
    /// before.
    pub fn reached(&mut self, object: ObjectId, bytes: u64) -> u64 {
        let Some(work) = self.objects.get_mut(&object) else { return 0 };
        let more = bytes.min(work.bytes).saturating_sub(work.done_bytes);
        work.done_bytes += more;
        self.left_bytes -= more;
        more
    }

    /// All of the object is dealt with. Gives as [`Backlog::reached`].
    pub fn finished(&mut self, object: ObjectId) -> u64 {
        self.reached(object, u64::MAX)
    }

    /// Bytes still to be dealt with.
    pub fn left_bytes(&self) -> u64 {
        self.left_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::Gfid;

    fn object(n: u64) -> ObjectId {
        ObjectId { gfid: Gfid::of_inode(n), index: 0 }
    }

    #[test]
    fn done_and_left_are_what_was_told() {
        let mut backlog = Backlog::default();
        // two members of three tell of the same objects, one of them a larger size
        backlog.add(object(1), 100);
        backlog.add(object(1), 120);
        backlog.add(object(1), 90);
        backlog.add(object(2), 50);
        assert_eq!(backlog.left_bytes(), 170);
        assert_eq!(backlog.reached(object(1), 70), 70);
        // given up, begun anew
        assert_eq!((backlog.reached(object(1), 40), backlog.left_bytes()), (0, 100));
        assert_eq!(backlog.reached(object(1), 1000), 50);
        assert_eq!(backlog.finished(object(1)), 0);
        assert_eq!((backlog.finished(object(2)), backlog.left_bytes()), (50, 0));
        assert_eq!(backlog.finished(object(3)), 0, "nobody told of it");
    }
}
