//! Handles of open files, and who has asked for locks through them.
//!
//! Contract: a handle's number is its own among all that are open, and carries how the kernel
//! treats it (bit 0: it bypasses its pages). With the end of a handle go the locks of owners that
//! asked through it last: a process has closed a descriptor by then, with which its locks went, so
//! those that are left are of the open file description itself (F_OFD_SETLK).

use fuser::FileHandle;
use messenger::sync::{ContentionMutex, LockTable};
use protocol::Gfid;
use protocol::lock::LockOwner;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const BYPASSES_PAGES: u64 = 1;

/// See the module.
pub struct Handles {
    opened: AtomicU64,
    /// By file and owner: the handle through which he last asked.
    owners: ContentionMutex<HashMap<(Gfid, LockOwner), FileHandle>>,
}

impl Handles {
    /// None yet.
    pub fn new(locks: &LockTable) -> Handles {
        Handles { opened: AtomicU64::new(0), owners: ContentionMutex::new(locks, "fuse handles", HashMap::new()) }
    }

    /// A new handle.
    pub fn open(&self, bypasses_pages: bool) -> FileHandle {
        let number = self.opened.fetch_add(1, Relaxed) << 1;
        FileHandle(number | if bypasses_pages { BYPASSES_PAGES } else { 0 })
    }

    /// Somebody asks for a lock.
    pub fn locks(&self, file: Gfid, handle: FileHandle, owner: LockOwner) {
        self.owners.lock().insert((file, owner), handle);
    }

    /// The handle is gone: whose locks go with it.
    pub fn released(&self, file: Gfid, handle: FileHandle) -> Vec<LockOwner> {
        let mut owners = self.owners.lock();
        if owners.is_empty() {
            return Vec::new();
        }
        let gone = owners.extract_if(|(of, _), through| *of == file && *through == handle);
        gone.map(|((_, owner), _)| owner).collect()
    }
}

/// Does the kernel bypass its pages for this handle?
pub fn bypasses_pages(handle: FileHandle) -> bool {
    handle.0 & BYPASSES_PAGES != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_go_with_the_handle_through_which_they_were_asked_for_last() {
        let handles = Handles::new(&LockTable::default());
        let (one, two) = (handles.open(false), handles.open(true));
        assert!(one != two && !bypasses_pages(one) && bypasses_pages(two));
        let (file, other) = (Gfid::of_inode(5), Gfid::of_inode(6));
        handles.locks(file, one, LockOwner(1));
        handles.locks(file, one, LockOwner(2));
        handles.locks(file, two, LockOwner(2));
        handles.locks(other, one, LockOwner(3));
        assert_eq!(handles.released(file, one), [LockOwner(1)]);
        assert_eq!(handles.released(file, two), [LockOwner(2)]);
        assert_eq!(handles.released(file, two), []);
        assert_eq!(handles.released(other, one), [LockOwner(3)]);
    }
}
