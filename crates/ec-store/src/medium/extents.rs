//! Which blocks of a file the file system has, by the `FIEMAP` request of Linux.
//!
//! Contract: only of file systems that write again where they have written: there a block that is
//! taken needs no other, whatever is written to it. ext4 and XFS do so, as long as nothing shares
//! a file's blocks; files of an OSD are shared by nobody.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `XFS_SUPER_MAGIC`, which `libc` lacks.
const XFS_MAGIC: libc::c_long = 0x5846_5342;
/// `FS_IOC_FIEMAP`: `_IOWR('f', 11, struct fiemap)`.
const REQUEST: libc::c_ulong = 0xc020_660b;
/// `FIEMAP_EXTENT_LAST`.
const LAST: u32 = 1;
/// Extents of one request: 3.5 KiB of the stack.
const EXTENTS: usize = 64;

/// `struct fiemap_extent`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct MappedExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_too: [u32; 3],
}

/// `struct fiemap` with room for extents.
#[repr(C)]
struct Map {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    room: u32,
    reserved: u32,
    extents: [MappedExtent; EXTENTS],
}

/// See [`super::MediumFile::missing`].
pub(super) fn missing(file: &File, offset: u64, length: u64) -> io::Result<Option<u64>> {
    let kind = rustix::fs::fstatfs(file)?.f_type;
    if kind != libc::EXT4_SUPER_MAGIC && kind != XFS_MAGIC {
        return Ok(None);
    }
    let (mut at, end) = (offset, offset + length);
    let mut missing = 0;
    while at < end {
        let map = match request(file, at, end - at) {
            Ok(map) => map,
            Err(error) if error.kind() == io::ErrorKind::Unsupported => return Ok(None),
            Err(error) => return Err(error),
        };
        let mapped = &map.extents[..(map.mapped as usize).min(EXTENTS)];
        for extent in mapped {
            let start = extent.logical.clamp(at, end);
            missing += start - at;
            at = extent.logical.saturating_add(extent.length).clamp(start, end);
        }
        if mapped.last().is_none_or(|last| last.flags & LAST != 0) {
            break;
        }
    }
    Ok(Some(missing + (end - at)))
}

#[expect(unsafe_code, reason = "no crate at hand wraps this request")]
fn request(file: &File, start: u64, length: u64) -> io::Result<Map> {
    let mut map = Map {
        start,
        length,
        flags: 0,
        mapped: 0,
        room: EXTENTS as u32,
        reserved: 0,
        extents: [MappedExtent::default(); EXTENTS],
    };
    // SAFETY: the descriptor is open while `file` is; the kernel writes `room` extents at most
    // behind the 32 bytes of the head, and `map` has the layout that it asks for.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), REQUEST as _, &raw mut map) };
    if result == 0 { Ok(map) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::super::{Extent, MediumFile};
    use std::os::unix::fs::FileExt;

    /// Of the file system that has the temporary directory; elsewhere nothing is told.
    #[test]
    fn blocks_are_missing_until_they_are_written_or_reserved() {
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let missing = || MediumFile::missing(&file, 4096, 1 << 20).unwrap();
        let Some(all) = missing() else { return };
        assert_eq!(all, 1 << 20);
        file.write_all_at(&[1; 8192], 65_536).unwrap();
        assert_eq!(missing(), Some((1 << 20) - 8192));
        for block in (0..180).step_by(2) {
            file.write_all_at(&[1; 4096], 262_144 + block * 4096).unwrap();
        }
        file.sync_all().unwrap();
        assert_eq!(missing(), Some((1 << 20) - 92 * 4096), "more extents than one request gives");
        assert!(file.extent(Extent::Allocate, 4096, 1 << 20).unwrap());
        assert_eq!(missing(), Some(0));
        assert!(file.extent(Extent::Punch, 8192, 4096).unwrap());
        assert_eq!(missing(), Some(4096));
    }
}
