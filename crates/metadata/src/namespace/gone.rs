//! Directories that were removed a while ago: whoever stands in one, or has it open, may still look
//! at it.
//!
//! Contract: memory only, and bounded: after a restart of the service, or [`GONE_MAX`] removals,
//! such a directory is ESTALE.

use protocol::Gfid;
use protocol::namespace::Attr;
use std::collections::{HashMap, VecDeque};

/// Directories remembered: some 500 KiB.
const GONE_MAX: usize = 4096;

/// The last of them.
#[derive(Debug, Default)]
pub(super) struct GoneDirectories {
    order: VecDeque<Gfid>,
    attrs: HashMap<Gfid, Attr>,
}

impl GoneDirectories {
    /// A directory was removed; these are its attributes, without a link.
    pub fn add(&mut self, attr: Attr) {
        if self.attrs.insert(attr.gfid, attr).is_none() {
            self.order.push_back(attr.gfid);
        }
        if self.order.len() > GONE_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.attrs.remove(&oldest);
        }
    }

    /// What is known of one.
    pub fn get(&self, gfid: Gfid) -> Option<Attr> {
        self.attrs.get(&gfid).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::PoolId;
    use protocol::namespace::{FileKind, Timestamp};

    #[test]
    fn the_last_ones_are_remembered() {
        let time = Timestamp::default();
        let attr = |number| Attr {
            gfid: Gfid::of_inode(number),
            kind: FileKind::Directory,
            mode: 0o755,
            uid: 0,
            gid: 0,
            nlink: 0,
            rdev: 0,
            size: 0,
            atime: time,
            mtime: time,
            ctime: time,
            pool: PoolId::new(0),
            btime: None,
            flags: protocol::namespace::FileFlags::default(),
            has_xattrs: false,
            footprint: protocol::namespace::Footprint::Unknown,
        };
        let mut gone = GoneDirectories::default();
        (0..=GONE_MAX as u64).for_each(|number| gone.add(attr(number)));
        gone.add(attr(7));
        assert_eq!(gone.get(Gfid::of_inode(0)), None);
        assert_eq!(gone.get(Gfid::of_inode(1)).map(|attr| attr.nlink), Some(0));
        assert_eq!((gone.order.len(), gone.attrs.len()), (GONE_MAX, GONE_MAX));
    }
}
