//! The stripes that the last writes of objects ended in: the next write of whoever appends, or goes
//! on where it stopped, begins in such a stripe and need not read it first.
//!
//! Contract: pure; belongs to one worker and one session. Whoever numbers a write or another change
//! of an object says so here in the same step, so that what is known is what the last one left.
//! That holds under one grant of the write lease: under the next one somebody else may have written
//! in between.

use protocol::ObjectId;
use std::collections::VecDeque;
use std::ops::Range;

/// How many objects' tails are known at most: those written last.
const TAILS_MAX: usize = 64;
/// Larger stripes are not kept: all together take some MiB at most.
const STRIPE_BYTES_MAX: u64 = 64 << 10;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Tails {
    /// The last one written in front.
    known: VecDeque<Tail>,
}

/// The last write of an object.
#[derive(Debug)]
struct Tail {
    object: ObjectId,
    grant: u64,
    /// Where it ended, in object bytes.
    end: u64,
    /// Where the stripe begins that it ended in.
    start: u64,
    /// That stripe, or nothing if that was not worth it.
    stripe: Vec<u8>,
}

impl Tails {
    fn find(&self, object: ObjectId, grant: Option<u64>) -> Option<&Tail> {
        self.known.iter().find(|tail| tail.object == object && Some(tail.grant) == grant)
    }

    /// Does a write at this offset go on where the last one ended?
    pub fn is_next(&self, object: ObjectId, grant: Option<u64>, offset: u64) -> bool {
        self.find(object, grant).is_some_and(|tail| tail.end == offset)
    }

    /// A range of the object, if it lies in the stripe that is known.
    pub fn get(&self, object: ObjectId, grant: Option<u64>, range: &Range<u64>) -> Option<&[u8]> {
        let tail = self.find(object, grant)?;
        let from = usize::try_from(range.start.checked_sub(tail.start)?).ok()?;
        let to = usize::try_from(range.end.checked_sub(tail.start)?).ok()?;
        tail.stripe.get(from..to)
    }

    /// A write of the object that ends at `end` was numbered; `stripe` is the one that it ended in,
    /// whose bytes `fill` gives. Without those, only where it ended is remembered.
    pub fn wrote(
        &mut self,
        object: ObjectId,
        grant: Option<u64>,
        end: u64,
        stripe: Range<u64>,
        fill: Option<impl FnOnce(&mut [u8])>,
    ) {
        let old = self.take(object);
        let Some(grant) = grant else { return };
        let mut bytes = old.or_else(|| self.evict()).map(|tail| tail.stripe).unwrap_or_default();
        bytes.clear();
        let length = stripe.end - stripe.start;
        if let Some(fill) = fill.filter(|_| length <= STRIPE_BYTES_MAX) {
            bytes.resize(length as usize, 0);
            fill(&mut bytes);
        }
        self.known.push_front(Tail { object, grant, end, start: stripe.start, stripe: bytes });
    }

    /// The object was changed otherwise.
    pub fn forget(&mut self, object: ObjectId) {
        self.take(object);
    }

    /// The session is over.
    pub fn clear(&mut self) {
        self.known.clear();
    }

    /// The one written the longest time ago, if there are as many as may be.
    fn evict(&mut self) -> Option<Tail> {
        if self.known.len() < TAILS_MAX { None } else { self.known.pop_back() }
    }

    fn take(&mut self, object: ObjectId) -> Option<Tail> {
        let at = self.known.iter().position(|tail| tail.object == object)?;
        self.known.remove(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::Gfid;

    fn object(n: u64) -> ObjectId {
        ObjectId { gfid: Gfid::of_inode(n), index: 0 }
    }

    fn write(tails: &mut Tails, n: u64, grant: u64, end: u64, value: u8) {
        tails.wrote(
            object(n),
            Some(grant),
            end,
            end / 8 * 8..end / 8 * 8 + 8,
            Some(|stripe: &mut [u8]| stripe.fill(value)),
        );
    }

    #[test]
    fn the_last_stripe_is_known_under_its_grant() {
        let mut tails = Tails::default();
        write(&mut tails, 1, 5, 11, 7);
        assert_eq!(tails.get(object(1), Some(5), &(9..11)), Some(&[7, 7][..]));
        assert!(tails.is_next(object(1), Some(5), 11) && !tails.is_next(object(1), Some(5), 12));
        for (n, grant, range) in [
            (1, Some(6), 9..11),
            (1, None, 9..11),
            (2, Some(5), 9..11),
            (1, Some(5), 7..11),
            (1, Some(5), 9..17),
        ] {
            assert_eq!(tails.get(object(n), grant, &range), None, "{n} {grant:?} {range:?}");
        }
        write(&mut tails, 1, 5, 20, 8);
        assert_eq!(tails.get(object(1), Some(5), &(9..11)), None, "another stripe is the last one");
        tails.forget(object(1));
        assert_eq!(tails.get(object(1), Some(5), &(16..20)), None);
    }

    #[test]
    fn without_bytes_or_a_grant_nothing_is_known_of_the_stripe() {
        let mut tails = Tails::default();
        write(&mut tails, 1, 5, 11, 7);
        tails.wrote(object(1), Some(5), 12, 8..16, None::<fn(&mut [u8])>);
        assert_eq!(tails.get(object(1), Some(5), &(9..11)), None);
        assert!(tails.is_next(object(1), Some(5), 12));
        tails.wrote(object(1), None, 13, 8..16, Some(|_: &mut [u8]| ()));
        assert!(!tails.is_next(object(1), Some(5), 12) && !tails.is_next(object(1), None, 13));
    }

    #[test]
    fn those_written_last_are_kept() {
        let mut tails = Tails::default();
        let many = TAILS_MAX as u64;
        (0..many).for_each(|n| write(&mut tails, n, 1, 3, n as u8));
        write(&mut tails, 0, 1, 4, 0);
        write(&mut tails, many, 1, 3, 1);
        let is_known = |n| tails.get(object(n), Some(1), &(0..3)).is_some();
        assert!(is_known(0) && !is_known(1) && is_known(2) && is_known(many));
        tails.wrote(
            object(9),
            Some(1),
            3,
            0..STRIPE_BYTES_MAX + 1,
            Some(|_: &mut [u8]| panic!("too large to keep")),
        );
        tails.clear();
        assert!(!tails.is_next(object(9), Some(1), 3));
    }
}
