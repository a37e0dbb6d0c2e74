//! Who changes the content of a file takes away what made it run with the rights of others:
//! set-user-ID, set-group-ID and `security.capability`.
//!
//! Contract: the bits go, and are gone at the metadata service, before the content changes. The
//! rules are the kernel's (`setattr_should_drop_suidgid`), with uid 0 for CAP_FSETID. The kernel
//! does this for writes that go by its pages, but for set-group-ID without execution by the group;
//! of the others, and of those, it leaves it to the file system. Whose ids an idmapped mount maps
//! to which is not known here: membership of the file's group is judged by the ids that are stored.

use super::errno::{ENODATA, EPERM, posix};
use super::table::Inode;
use super::{ATTRIBUTES, Backend, LocalFs, Result, own_caller};
use crate::error::ClientError;
use crate::fs::inode::FlushKind;
use protocol::namespace::{Attr, Caller, FileFlags, NamespaceOp, SECURITY_CAPABILITY, SetAttr};

const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
const EXECUTE_BY_GROUP: u32 = 0o010;

/// Who changes the content of a file.
#[derive(Clone, Copy, Debug)]
pub struct Writer {
    /// User and group, [`UNKNOWN_ID`] where the kernel does not tell them, and when.
    pub caller: Caller,
    /// The process, whose identity may matter; 0 if it is not known.
    pub process: u32,
}

/// A user or group that the kernel does not tell: with FUSE_ALLOW_IDMAP it tells those who make a
/// file only, since the ids of all others may have none in this user namespace.
pub const UNKNOWN_ID: u32 = u32::MAX;

/// As whom a process acts on files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its supplementary groups.
    pub groups: Vec<u32>,
}

impl Identity {
    /// One who may nothing that others may not.
    const NOBODY: Identity = Identity { uid: UNKNOWN_ID, gid: UNKNOWN_ID, groups: Vec::new() };

    fn is_member(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

impl From<Caller> for Writer {
    fn from(caller: Caller) -> Writer {
        Writer { caller, process: 0 }
    }
}

/// What of a file's mode matters here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct SetIds {
    mode: u32,
    gid: u32,
    flags: FileFlags,
}

impl SetIds {
    /// As the service has them.
    pub fn of(attr: &Attr) -> SetIds {
        SetIds { mode: attr.mode, gid: attr.gid, flags: attr.flags }
    }

    /// What nobody may do to the file.
    pub fn flags(self) -> FileFlags {
        self.flags
    }

    /// Is there nothing that anybody's change may take away?
    pub fn is_none(self) -> bool {
        self.mode & (SET_USER_ID | SET_GROUP_ID) == 0
    }

    /// The mode that is left when somebody without CAP_FSETID changes the content; `None` if it
    /// stays.
    pub fn dropped(self, is_member: impl FnOnce(u32) -> bool) -> Option<u32> {
        let SetIds { mode, gid, .. } = self;
        let drops_group =
            mode & SET_GROUP_ID != 0 && (mode & EXECUTE_BY_GROUP != 0 || !is_member(gid));
        let left = mode & !SET_USER_ID & if drops_group { !SET_GROUP_ID } else { !0 };
        (left != mode).then_some(left)
    }
}

impl<B: Backend> LocalFs<B> {
    /// The mode that a file is left with when `writer` changes its content; `None` if it stays.
    /// `mode`: that it is about to get.
    pub(super) fn mode_left(
        &self,
        inode: &Inode,
        mode: Option<u32>,
        writer: Writer,
    ) -> Option<u32> {
        let known = inode.with(|state| state.set_ids());
        let set_ids = SetIds { mode: mode.unwrap_or(known.mode), ..known };
        // Who writes is looked up for the few files where it matters.
        if set_ids.is_none() || writer.caller.uid == 0 {
            return None;
        }
        let who = (self.shared.options.identity_of)(writer.process);
        let who = told(writer.caller, who.unwrap_or(Identity::NOBODY));
        if who.uid == 0 { None } else { set_ids.dropped(|gid| who.is_member(gid)) }
    }

    /// Before the content changes, by more at its end (`append`) or otherwise; the caller is inside
    /// the file.
    ///
    /// # Errors
    /// EPERM if the file's flags forbid it.
    pub(super) fn permit(&self, inode: &Inode, append: bool) -> Result<()> {
        let flags = inode.with(|state| state.set_ids()).flags();
        if flags.may_open(true, append) { Ok(()) } else { posix(EPERM) }
    }

    /// Before `writer` changes the content; the caller is inside the file. `pages`: the kernel has
    /// seen to capabilities.
    ///
    /// # Errors
    /// The service's: the content must then stay.
    pub(super) async fn drop_rights(
        &self,
        inode: &Inode,
        writer: Writer,
        pages: bool,
    ) -> Result<()> {
        if let Some(mode) = self.mode_left(inode, None, writer) {
            let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
            self.send_attrs(inode, set, FlushKind::Whole, own_caller()).await?;
            drop(self.shared.kernel.invalidate(inode.gfid(), ATTRIBUTES));
        }
        if pages || inode.with(|state| state.has_no_capability()) {
            return Ok(());
        }
        let op =
            NamespaceOp::RemoveXattr { gfid: inode.gfid(), name: SECURITY_CAPABILITY.to_vec() };
        match self.ask(op, own_caller()).await {
            Ok(_) | Err(ClientError::Posix(ENODATA)) => {
                inode.with(|state| state.set_no_capability(true));
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

/// What the kernel tells of the caller counts; what it does not is as it was looked up.
fn told(caller: Caller, looked_up: Identity) -> Identity {
    let or = |told, looked_up| if told == UNKNOWN_ID { looked_up } else { told };
    Identity {
        uid: or(caller.uid, looked_up.uid),
        gid: or(caller.gid, looked_up.gid),
        groups: looked_up.groups,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_tells_of_a_caller_counts() {
        let looked_up = || Identity { uid: 0, gid: 7, groups: vec![8] };
        let caller = |uid, gid| Caller { uid, gid, ..own_caller() };
        assert_eq!(told(caller(UNKNOWN_ID, UNKNOWN_ID), looked_up()), looked_up());
        assert_eq!(told(caller(5, 6), looked_up()), Identity { uid: 5, gid: 6, groups: vec![8] });
        let nobody = told(caller(UNKNOWN_ID, UNKNOWN_ID), Identity::NOBODY);
        assert!(nobody.uid != 0 && !nobody.is_member(0));
    }

    fn dropped(mode: u32, is_member: bool) -> Option<u32> {
        SetIds { mode, gid: 7, flags: FileFlags::default() }.dropped(|gid| gid == 7 && is_member)
    }

    #[test]
    fn bits_go_as_the_kernel_has_it() {
        for is_member in [false, true] {
            assert_eq!(dropped(0o644, is_member), None);
            assert_eq!(dropped(0o1777, is_member), None);
            assert_eq!(dropped(0o4777, is_member), Some(0o777));
            assert_eq!(dropped(0o2775, is_member), Some(0o775), "the group may execute it");
        }
        assert_eq!(dropped(0o2666, false), Some(0o666));
        assert_eq!(dropped(0o2666, true), None);
        assert_eq!(dropped(0o6666, true), Some(0o2666));
    }
}
