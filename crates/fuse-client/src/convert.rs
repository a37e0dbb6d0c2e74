//! FUSE's types from ours and back. Pure.

use client::ClientError;
use client::fs::{AllocateMode, Identity, Writer};
use fuser::{Errno, FileAttr, FileType, INodeNo, RenameFlags, Request, TimeOrNow};
use protocol::Gfid;
use protocol::namespace::{Attr, Caller, FileKind, RenameMode, Timestamp};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What `st_blksize` says: a page, the least that the kernel reads.
const BLOCK_BYTES: u32 = 4096;

/// The file of an inode number.
pub fn gfid(ino: INodeNo) -> Gfid {
    Gfid::of_inode(ino.0)
}

/// Who asks.
pub fn caller(request: &Request) -> Caller {
    Caller { uid: request.uid(), gid: request.gid(), now: client::fs::now() }
}

/// Who changes the content of a file.
pub fn writer(request: &Request) -> Writer {
    Writer { caller: caller(request), process: request.pid() }
}

/// Who a process, or thread, is; `None` if it is gone, or in another PID namespace (0).
pub fn identity_of(process: u32) -> Option<Identity> {
    identity(&std::fs::read_to_string(format!("/proc/{process}/status")).ok()?)
}

/// Who it is of whom `/proc` has this status.
fn identity(status: &str) -> Option<Identity> {
    let ids = |field| {
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        line.unwrap_or_default()
            .split_whitespace()
            .filter_map(|id| id.parse::<u32>().ok())
            .collect::<Vec<_>>()
    };
    // Real, effective, saved, and that which counts for files.
    let for_files = |field| ids(field).get(3).copied();
    Some(Identity { uid: for_files("Uid:")?, gid: for_files("Gid:")?, groups: ids("Groups:") })
}

/// The errno of an error.
pub fn errno(error: &ClientError) -> Errno {
    Errno::from_i32(error.errno())
}

/// A point in time as the standard library has it, from which fuser gets back the same seconds and
/// nanoseconds.
pub fn system_time(time: Timestamp) -> SystemTime {
    let whole = Duration::from_secs(time.secs.unsigned_abs());
    let start =
        if time.secs < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    start
        .and_then(|start| start.checked_add(Duration::from_nanos(time.nanos.into())))
        .unwrap_or(UNIX_EPOCH)
}

/// The time in a request. Not the inverse of [`system_time`]: fuser 0.18 turns `(secs, nanos)`
/// before 1970 into a point `-secs` seconds *and* `nanos` before it, where POSIX counts nanoseconds
/// forwards. Undone here, so that every time goes to the cluster as the caller gave it. Times in
/// replies fuser converts exactly.
fn request_time(time: SystemTime) -> Timestamp {
    let seconds = |duration: Duration| i64::try_from(duration.as_secs());
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => {
            Timestamp { secs: seconds(after).unwrap_or(i64::MAX), nanos: after.subsec_nanos() }
        }
        Err(before) => {
            let before = before.duration();
            Timestamp {
                secs: seconds(before).map_or(i64::MIN, |secs| -secs),
                nanos: before.subsec_nanos(),
            }
        }
    }
}

/// A time of utimensat.
pub fn time_or_now(time: TimeOrNow, now: Timestamp) -> Timestamp {
    match time {
        TimeOrNow::SpecificTime(time) => request_time(time),
        TimeOrNow::Now => now,
    }
}

/// FUSE's name of a kind.
pub fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

/// The kind in the mode of mknod; without one it is a regular file. Directories and links have
/// calls of their own.
pub fn kind_of_mode(mode: u32) -> Option<FileKind> {
    match mode & libc::S_IFMT {
        0 | libc::S_IFREG => Some(FileKind::Regular),
        libc::S_IFIFO => Some(FileKind::Fifo),
        libc::S_IFSOCK => Some(FileKind::Socket),
        libc::S_IFCHR => Some(FileKind::CharDevice),
        libc::S_IFBLK => Some(FileKind::BlockDevice),
        _ => None,
    }
}

/// Attributes for the kernel, of a file that takes `allocated` bytes on disk.
pub fn file_attr(attr: &Attr, allocated: u64) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.gfid.unique()),
        size: attr.size,
        blocks: allocated.div_ceil(512),
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: attr.btime.map_or(UNIX_EPOCH, system_time),
        kind: file_type(attr.kind),
        perm: (attr.mode & 0o7777) as u16,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

/// Is it known when a file with these attributes was made?
pub fn has_btime(attr: &FileAttr) -> bool {
    attr.crtime != UNIX_EPOCH
}

/// The flags of renameat2, where we have them.
pub fn rename_mode(flags: RenameFlags) -> Option<RenameMode> {
    const WHITEOUT: RenameFlags = RenameFlags::RENAME_WHITEOUT;
    match flags {
        _ if flags.is_empty() => Some(RenameMode::Replace),
        RenameFlags::RENAME_NOREPLACE => Some(RenameMode::NoReplace),
        RenameFlags::RENAME_EXCHANGE => Some(RenameMode::Exchange),
        WHITEOUT => Some(RenameMode::Whiteout),
        _ if flags == WHITEOUT | RenameFlags::RENAME_NOREPLACE => {
            Some(RenameMode::WhiteoutNoReplace)
        }
        _ => None,
    }
}

/// The mode of fallocate, where we have it.
pub fn allocate_mode(mode: i32) -> Option<AllocateMode> {
    const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
    const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP;
    const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
    const ZERO_KEEP: i32 = ZERO | KEEP;
    match mode {
        0 => Some(AllocateMode::Allocate),
        KEEP => Some(AllocateMode::KeepSize),
        PUNCH => Some(AllocateMode::Punch),
        ZERO => Some(AllocateMode::Zero),
        ZERO_KEEP => Some(AllocateMode::ZeroKeepSize),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ids_that_count_for_files_are_read() {
        let status = "Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t9 10 \n";
        assert_eq!(identity(status), Some(Identity { uid: 4, gid: 8, groups: vec![9, 10] }));
        assert_eq!(identity("Uid:\t1\t2\n"), None);
        let own = identity_of(std::process::id()).expect("this process is there");
        assert_eq!(own.uid, rustix::process::geteuid().as_raw());
        assert_eq!(identity_of(0), None);
    }

    /// As fuser reads a request.
    fn read_by_fuser(secs: i64, nanos: u32) -> SystemTime {
        let distance = Duration::new(secs.unsigned_abs(), nanos);
        if secs >= 0 { UNIX_EPOCH + distance } else { UNIX_EPOCH - distance }
    }

    /// As fuser writes a reply.
    fn written_by_fuser(time: SystemTime) -> (i64, u32) {
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => (after.as_secs() as i64, after.subsec_nanos()),
            Err(before) => match (before.duration().as_secs(), before.duration().subsec_nanos()) {
                (secs, 0) => ((secs as i64).wrapping_neg(), 0),
                (secs, nanos) => (-(secs as i64) - 1, 1_000_000_000 - nanos),
            },
        }
    }

    #[test]
    fn times_go_through_unchanged_both_ways() {
        let seconds = [0, 1, -1, -2, -5, 1 << 40, -(1 << 40), i64::MAX, i64::MIN + 1];
        for secs in seconds {
            for nanos in [0, 1, 7, 500_000_000, 999_999_999] {
                let time = Timestamp { secs, nanos };
                assert_eq!(request_time(read_by_fuser(secs, nanos)), time);
                assert_eq!(written_by_fuser(system_time(time)), (secs, nanos));
            }
        }
        // Any time that a disk may hold has an answer.
        assert_eq!(
            written_by_fuser(system_time(Timestamp { secs: i64::MIN, nanos: 0 })),
            (i64::MIN, 0)
        );
        assert_eq!(
            written_by_fuser(system_time(Timestamp { secs: i64::MIN, nanos: 7 })),
            (i64::MIN, 7)
        );
        system_time(Timestamp { secs: i64::MAX, nanos: u32::MAX });
    }

    #[test]
    fn modes_have_kinds() {
        assert_eq!(kind_of_mode(0o644), Some(FileKind::Regular));
        assert_eq!(kind_of_mode(libc::S_IFIFO | 0o600), Some(FileKind::Fifo));
        assert_eq!(kind_of_mode(libc::S_IFDIR), None);
        assert_eq!(allocate_mode(3), Some(AllocateMode::Punch));
        assert_eq!(allocate_mode(libc::FALLOC_FL_COLLAPSE_RANGE), None);
        let whiteout = RenameFlags::RENAME_WHITEOUT;
        assert_eq!(rename_mode(whiteout), Some(RenameMode::Whiteout));
        assert_eq!(rename_mode(whiteout | RenameFlags::RENAME_EXCHANGE), None);
    }
}
