//! Whether times of a file may reach the metadata service after an fsync: what its disk says of
//! that, and when that is worth saying.
//!
//! Contract: pure. The service's *mark* that times may follow is set by a synced request, which an
//! fsync makes anyway, and costs one more when it is taken back. So it has to be earned by fsyncs
//! that tell times, and by more of them after one that did not pay.

/// fsyncs that tell times before the first mark, and at most.
const FSYNCS_MIN: u32 = 2;
const FSYNCS_MAX: u32 = 64;
/// A mark that saved no more fsyncs than that did not pay.
const UNPAID_MAX: u32 = 2;

/// Does the service's disk have the mark?
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Mark {
    #[default]
    No,
    /// Perhaps: a request that moves it is under way, or was not answered.
    Perhaps,
    Yes,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Following {
    mark: Mark,
    /// fsyncs that told times since the mark was taken back or the file closed, and how many it
    /// takes.
    told: u32,
    needed: u32,
    /// fsyncs that had nothing to tell thanks to the mark.
    saved: u32,
}

impl Default for Following {
    fn default() -> Self {
        Self { mark: Mark::No, told: 0, needed: FSYNCS_MIN, saved: 0 }
    }
}

impl Following {
    /// Has the mark to be taken back at some time?
    pub(super) fn may_be_marked(&self) -> bool {
        self.mark != Mark::No
    }

    /// Is the mark on the service's disk?
    pub(super) fn is_marked(&self) -> bool {
        self.mark == Mark::Yes
    }

    /// An fsync is to tell times, and counts. True if it is to set the mark.
    pub(super) fn earns(&mut self) -> bool {
        self.told = self.told.saturating_add(1);
        self.told > self.needed
    }

    /// An fsync has nothing to tell thanks to the mark.
    pub(super) fn fsync_saved(&mut self) {
        self.saved = self.saved.saturating_add(1);
    }

    /// A request begins that sets the mark or takes it back.
    pub(super) fn move_begins(&mut self) {
        self.mark = Mark::Perhaps;
    }

    /// The service's disk has that.
    pub(super) fn moved(&mut self, is_marked: bool) {
        self.mark = if is_marked { Mark::Yes } else { Mark::No };
        if !is_marked {
            self.needed = if self.saved > UNPAID_MAX { self.needed / 2 } else { self.needed * 2 };
            self.needed = self.needed.clamp(FSYNCS_MIN, FSYNCS_MAX);
        }
        (self.told, self.saved) = (0, 0);
    }

    /// Nobody has the file open.
    pub(super) fn closed(&mut self) {
        self.told = 0;
    }

    /// The write lease is gone, and with it whatever was to follow.
    pub(super) fn lease_gone(&mut self) {
        self.mark = Mark::No;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many fsyncs told times until one set the mark.
    fn earned(following: &mut Following) -> u32 {
        let told = (0..).find(|_| following.earns()).expect("it ends");
        following.move_begins();
        assert!(following.may_be_marked() && !following.is_marked());
        following.moved(true);
        assert!(following.is_marked());
        told
    }

    fn taken_back(following: &mut Following, saved: u32) {
        (0..saved).for_each(|_| following.fsync_saved());
        following.move_begins();
        following.moved(false);
        assert!(!following.may_be_marked());
    }

    #[test]
    fn a_mark_that_did_not_pay_takes_longer_to_earn() {
        let mut following = Following::default();
        for needed in [2, 4, 8, 16, 32, 64, 64] {
            assert_eq!(earned(&mut following), needed);
            taken_back(&mut following, UNPAID_MAX);
        }
        for needed in [64, 32, 16, 8, 4, 2, 2] {
            assert_eq!(earned(&mut following), needed);
            taken_back(&mut following, UNPAID_MAX + 1);
        }
    }

    #[test]
    fn a_file_that_is_closed_in_between_earns_none() {
        let mut following = Following::default();
        for _ in 0..9 {
            assert!(!following.earns() && !following.earns());
            following.closed();
        }
    }
}
