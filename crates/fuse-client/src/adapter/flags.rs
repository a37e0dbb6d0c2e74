//! Flags of files as chattr(1) and lsattr(1) have them: ioctl(2).
//!
//! The kernel asks as the file system of a local disk is asked, and has looked at who may set which
//! flag. Its numbers are those of `linux/fs.h`.

use super::Adapter;
use super::times::RequestKind;
use crate::convert::caller;
use client::fs::LocalFs;
use fuser::{Errno, ReplyIoctl, Request};
use protocol::Gfid;
use protocol::namespace::{Caller, FileFlags};

const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;
/// Bytes of `struct fsxattr`, of which the first four are the flags.
const FSXATTR_BYTES: usize = 28;
const FS_IMMUTABLE_FL: u32 = 0x10;
const FS_APPEND_FL: u32 = 0x20;
const FS_XFLAG_IMMUTABLE: u32 = 0x08;
const FS_XFLAG_APPEND: u32 = 0x10;

/// Bits by which an ioctl names the flags.
#[derive(Clone, Copy)]
struct Bits {
    immutable: u32,
    append_only: u32,
    /// Bytes of what it hands on.
    bytes: usize,
}

const FLAGS: Bits = Bits { immutable: FS_IMMUTABLE_FL, append_only: FS_APPEND_FL, bytes: 4 };
const XFLAGS: Bits =
    Bits { immutable: FS_XFLAG_IMMUTABLE, append_only: FS_XFLAG_APPEND, bytes: FSXATTR_BYTES };

impl Bits {
    fn encode(self, flags: FileFlags) -> Vec<u8> {
        let immutable = if flags.immutable { self.immutable } else { 0 };
        let append_only = if flags.append_only { self.append_only } else { 0 };
        let mut bytes = vec![0; self.bytes];
        bytes[..4].copy_from_slice(&(immutable | append_only).to_ne_bytes());
        bytes
    }

    /// `None` if there is another flag among them, or anything else.
    fn decode(self, bytes: &[u8]) -> Option<FileFlags> {
        let (bits, rest) = bytes.split_first_chunk::<4>()?;
        let bits = u32::from_ne_bytes(*bits);
        let is_known =
            bits & !(self.immutable | self.append_only) == 0 && rest.iter().all(|byte| *byte == 0);
        let flags = FileFlags {
            immutable: bits & self.immutable != 0,
            append_only: bits & self.append_only != 0,
        };
        is_known.then_some(flags)
    }
}

impl Adapter {
    pub(super) fn do_ioctl(
        &self,
        req: &Request,
        file: Gfid,
        command: u32,
        data: &[u8],
        reply: ReplyIoctl,
    ) {
        let caller = caller(req);
        match command {
            FS_IOC_GETFLAGS => self.tell_flags(req, file, FLAGS, reply, caller),
            FS_IOC_FSGETXATTR => self.tell_flags(req, file, XFLAGS, reply, caller),
            FS_IOC_SETFLAGS => self.set_flags(req, file, FLAGS.decode(data), reply, caller),
            FS_IOC_FSSETXATTR => self.set_flags(req, file, XFLAGS.decode(data), reply, caller),
            _ => reply.error(Errno::ENOTTY),
        }
    }

    fn tell_flags(&self, req: &Request, file: Gfid, bits: Bits, reply: ReplyIoctl, caller: Caller) {
        let ask = move |fs: LocalFs| async move { fs.getattr(file, caller).await };
        self.run(req, RequestKind::Ioctl, (file, 0), reply, ask, move |reply, attr| {
            reply.ioctl(0, &bits.encode(attr.flags));
        });
    }

    fn set_flags(
        &self,
        req: &Request,
        file: Gfid,
        flags: Option<FileFlags>,
        reply: ReplyIoctl,
        caller: Caller,
    ) {
        let Some(flags) = flags else { return reply.error(Errno::EOPNOTSUPP) };
        let set = move |fs: LocalFs| async move { fs.set_flags(file, flags, caller).await };
        self.run(req, RequestKind::Ioctl, (file, 0), reply, set, |reply, _| reply.ioctl(0, &[]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_go_through_both_ioctls() {
        for bits in [FLAGS, XFLAGS] {
            for (immutable, append_only) in
                [(false, false), (true, false), (false, true), (true, true)]
            {
                let flags = FileFlags { immutable, append_only };
                assert_eq!(bits.encode(flags).len(), bits.bytes);
                assert_eq!(bits.decode(&bits.encode(flags)), Some(flags));
            }
            assert_eq!(bits.decode(&[0; 3]), None);
        }
        assert_eq!(FLAGS.decode(&0x1000_0010u32.to_ne_bytes()), None, "a flag that is not ours");
        assert_eq!(
            FLAGS.decode(&0x30u32.to_ne_bytes()).map(|flags| flags.immutable && flags.append_only),
            Some(true)
        );
    }
}
