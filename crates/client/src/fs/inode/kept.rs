//! Changes by a user of what writes leave alone, which the service is told later.

use protocol::namespace::{Attr, SetAttr, Timestamp};

/// Permission bits, as the service keeps them.
const MODE_BITS: u32 = 0o7777;

/// Owner, group, permission bits and access time, each if it was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Kept {
    mode: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
    atime: Option<Timestamp>,
}

impl Kept {
    /// What of `set` is not so already.
    pub fn new(set: &SetAttr, attr: &Attr) -> Self {
        Self {
            mode: set.mode.map(|mode| mode & MODE_BITS).filter(|mode| *mode != attr.mode),
            uid: set.uid.filter(|uid| *uid != attr.uid),
            gid: set.gid.filter(|gid| *gid != attr.gid),
            atime: set.atime.filter(|atime| *atime != attr.atime),
        }
    }

    /// Nothing was changed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Is there somebody who could read or write the file before, and not after these?
    pub fn withdraws(&self, attr: &Attr) -> bool {
        const OF_GROUP: u32 = 0o070;
        let drops_bits = self.mode.is_some_and(|mode| attr.mode & !mode != 0);
        drops_bits || self.gid.is_some() && attr.mode & OF_GROUP != 0
    }

    /// Changes that came later.
    pub fn change(&mut self, later: Self) {
        *self = Self {
            mode: later.mode.or(self.mode),
            uid: later.uid.or(self.uid),
            gid: later.gid.or(self.gid),
            atime: later.atime.or(self.atime),
        };
    }

    /// The service was told these: what was changed again since is still to be told.
    pub fn told(&mut self, told: Self) {
        fn unless_told<T: PartialEq>(kept: &mut Option<T>, told: Option<T>) {
            if *kept == told {
                *kept = None;
            }
        }
        unless_told(&mut self.mode, told.mode);
        unless_told(&mut self.uid, told.uid);
        unless_told(&mut self.gid, told.gid);
        unless_told(&mut self.atime, told.atime);
    }

    /// The service says what is so now.
    pub fn learn(&mut self, attr: &Attr) {
        *self = Self {
            mode: self.mode.map(|_| attr.mode),
            uid: self.uid.map(|_| attr.uid),
            gid: self.gid.map(|_| attr.gid),
            atime: self.atime.map(|_| attr.atime),
        };
    }

    /// Puts them into attributes that do not know of them.
    pub fn put_into(&self, attr: &mut Attr) {
        attr.mode = self.mode.unwrap_or(attr.mode);
        attr.uid = self.uid.unwrap_or(attr.uid);
        attr.gid = self.gid.unwrap_or(attr.gid);
        attr.atime = self.atime.unwrap_or(attr.atime);
    }

    /// As the service is told.
    pub fn to_set(self) -> SetAttr {
        let Self { mode, uid, gid, atime } = self;
        SetAttr { mode, uid, gid, atime, ..SetAttr::default() }
    }
}
