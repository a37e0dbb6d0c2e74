//! What was lost of a file or directory, and who was told so.
//!
//! Every open file description that was open at a loss learns of it once, from an fsync; so does
//! the first that is opened after a loss of which nobody was told. That is Linux's rule
//! (`errseq_t`). A close tells of it, too, where the file was open at the loss, but takes it from
//! nobody: a child that was forked, and runs another program, closes its copies of all descriptors,
//! and its parent must still learn.
//!
//! Contract: no I/O, no clock.

use protocol::Gfid;
use std::collections::{HashMap, HashSet};

/// An open file description of this mount; a later one has a larger number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct OpenId(pub u64);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Losses {
    of: HashMap<Gfid, Loss>,
}

/// The last loss of one file or directory.
#[derive(Debug, Default)]
struct Loss {
    /// Who opened it from this one on did so after the loss.
    after: OpenId,
    /// Somebody was told: who opened it from this one on need not be.
    ends: Option<OpenId>,
    /// Those before it whose fsync has failed.
    told: HashSet<OpenId>,
}

impl Losses {
    /// Something of it is lost: everybody is to be told, also who was told of an earlier loss.
    /// `next`: the next that will be opened.
    pub(super) fn mark(&mut self, gfid: Gfid, next: OpenId) {
        self.of.insert(gfid, Loss { after: next, ..Loss::default() });
    }

    /// Is a loss of it remembered, for whomever?
    pub(super) fn contains(&self, gfid: Gfid) -> bool {
        self.of.contains_key(&gfid)
    }

    /// Is there a loss of which nobody was told?
    pub(super) fn any_untold(&self) -> bool {
        self.of.values().any(|loss| loss.ends.is_none())
    }

    /// Has an fsync by this description to fail? Once. `next`: the next that will be opened.
    pub(super) fn tell_sync(&mut self, gfid: Gfid, open: OpenId, next: OpenId) -> bool {
        let Some(loss) = self.of.get_mut(&gfid) else { return false };
        open < *loss.ends.get_or_insert(next) && loss.told.insert(open)
    }

    /// Has a close of a descriptor of this description to fail? As long as no fsync by it did.
    pub(super) fn tell_close(&self, gfid: Gfid, open: OpenId) -> bool {
        self.of.get(&gfid).is_some_and(|loss| open < loss.after && !loss.told.contains(&open))
    }

    /// Nobody has the file open any more: a loss of which somebody was told is over.
    pub(super) fn closed(&mut self, gfid: Gfid) {
        if self.of.get(&gfid).is_some_and(|loss| loss.ends.is_some()) {
            self.of.remove(&gfid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Gfid = Gfid::of_inode(7);
    const OTHER: Gfid = Gfid::of_inode(8);
    const ONE: OpenId = OpenId(1);
    const TWO: OpenId = OpenId(2);
    const NEXT: OpenId = OpenId(3);

    fn lost() -> Losses {
        let mut losses = Losses::default();
        losses.mark(FILE, NEXT);
        losses
    }

    #[test]
    fn each_description_learns_once() {
        let mut losses = lost();
        assert!(!losses.tell_sync(OTHER, ONE, NEXT));
        assert!(losses.tell_sync(FILE, ONE, NEXT) && !losses.tell_sync(FILE, ONE, NEXT));
        assert!(losses.tell_sync(FILE, TWO, NEXT), "another's answer is not this one's");
        assert!(!losses.tell_sync(FILE, NEXT, OpenId(4)), "somebody knew when it was opened");
    }

    #[test]
    fn who_opens_it_before_anybody_was_told_learns_too() {
        assert!(lost().tell_sync(FILE, NEXT, OpenId(4)));
    }

    #[test]
    fn a_close_takes_it_from_nobody() {
        let mut losses = lost();
        assert!(losses.tell_close(FILE, ONE), "a forked child closes its copy");
        assert!(losses.tell_close(FILE, ONE));
        assert!(losses.tell_sync(FILE, ONE, NEXT));
        assert!(!losses.tell_close(FILE, ONE), "the fsync has said so");
    }

    #[test]
    fn the_next_loss_is_told_to_everybody_again() {
        let mut losses = lost();
        assert!(losses.tell_sync(FILE, ONE, NEXT));
        losses.mark(FILE, NEXT);
        assert!(losses.any_untold());
        assert!(losses.tell_sync(FILE, ONE, NEXT) && !losses.any_untold());
    }

    #[test]
    fn what_somebody_was_told_is_over_with_the_last_close() {
        let mut losses = lost();
        losses.closed(FILE);
        assert!(losses.contains(FILE), "nobody was told");
        assert!(losses.tell_close(FILE, ONE));
        losses.closed(FILE);
        assert!(!losses.tell_close(FILE, NEXT), "it was opened later");
        assert!(losses.tell_sync(FILE, NEXT, OpenId(4)), "a close that nobody looked at is none");
        losses.closed(FILE);
        assert!(!losses.contains(FILE));
    }
}
