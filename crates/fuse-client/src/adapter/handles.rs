//! Handles of open files, and who has asked for locks through them.
//!
//! Contract: a handle's number is its own among all that are open, and carries how the kernel
//! treats it (bit 0: it bypasses its pages; the rest is the [`OpenId`]). With the end of a handle
//! go the locks of owners that asked through it last: a process has closed a descriptor by then,
//! with which its locks went, so those that are left are of the open file description itself
//! (F_OFD_SETLK).

use client::fs::OpenId;
use fuser::FileHandle;
use messenger::sync::{ContentionMutex, LockTable};
use protocol::Gfid;
use protocol::lock::LockOwner;
use std::collections::HashMap;

const BYPASSES_PAGES: u64 = 1;

/// See the module.
pub struct Handles {
    /// By file and owner: the handle through which he last asked.
    owners: ContentionMutex<HashMap<(Gfid, LockOwner), FileHandle>>,
}

impl Handles {
    /// None yet.
    pub fn new(locks: &LockTable) -> Handles {
        Handles { owners: ContentionMutex::new(locks, "fuse handles", HashMap::new()) }
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

/// The handle of a file that is opened.
pub fn file_handle(open: OpenId, bypasses_pages: bool) -> FileHandle {
    FileHandle(open.0 << 1 | if bypasses_pages { BYPASSES_PAGES } else { 0 })
}

/// The file that was opened so.
pub fn open_id(handle: FileHandle) -> OpenId {
    OpenId(handle.0 >> 1)
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
        let (one, two) = (file_handle(OpenId(1), false), file_handle(OpenId(2), true));
        assert_eq!((open_id(one), open_id(two)), (OpenId(1), OpenId(2)));
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
