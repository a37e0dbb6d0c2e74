//! Space: allocation, holes, sparse files.

use super::{Check, noise, refused, same, stored};
use crate::error::{Context, Outcome, ensure};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// All of this module.
pub const CHECKS: [Check; 7] = [
    ("fallocate_allocates", 60, allocate),
    ("fallocate_punches_holes", 60, punch),
    ("fallocate_zeroes_ranges", 60, zero),
    ("seek_data_and_hole", 60, seek_holes),
    ("sparse_beyond_4_gib", 60, sparse),
    ("removing_frees_space", 120, freed),
    ("blocks_are_those_stored", 60, blocks),
];

fn filled(path: &Path, seed: u64, length: usize) -> Outcome<(File, Vec<u8>)> {
    let file = OpenOptions::new().create(true).truncate(true).read(true).write(true).open(path);
    let file = file.doing(|| format!("creating {}", path.display()))?;
    let bytes = noise(seed, length);
    file.write_all_at(&bytes, 0).doing(|| "write")?;
    Ok((file, bytes))
}

fn size(file: &File) -> Outcome<u64> {
    Ok(file.metadata().doing(|| "fstat")?.len())
}

fn allocate(dir: &Path, _: bool) -> Outcome {
    let path = dir.join("file");
    let (file, mut bytes) = filled(&path, 1, 5_000)?;
    fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 100_000)
        .doing(|| "fallocate, keeping the size")?;
    same("size after FALLOC_FL_KEEP_SIZE", &size(&file)?, &5_000)?;
    fallocate(&file, FallocateFlags::empty(), 2_000, 98_000).doing(|| "fallocate")?;
    same("size after fallocate", &size(&file)?, &100_000)?;
    bytes.resize(100_000, 0);
    ensure!(stored(&path)? == bytes, "fallocate changed data, or the new space is not zero");
    refused("fallocate of no bytes", fallocate(&file, FallocateFlags::empty(), 0, 0), Errno::INVAL)
}

fn punch(dir: &Path, _: bool) -> Outcome {
    let path = dir.join("file");
    let (file, mut bytes) = filled(&path, 2, 1 << 20)?;
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for (at, length) in [(4_096, 65_536), (100_001, 333), (200_000, 100_000), (1_000_000, 1 << 20)]
    {
        fallocate(&file, mode, at, length).doing(|| format!("punching {length} at {at}"))?;
        let end = bytes.len().min((at + length) as usize);
        bytes[at as usize..end].fill(0);
        ensure!(stored(&path)? == bytes, "after punching {length} at {at} the file differs");
    }
    same("size after punching past the end", &size(&file)?, &(1 << 20))
}

fn zero(dir: &Path, _: bool) -> Outcome {
    let path = dir.join("file");
    let (file, mut bytes) = filled(&path, 3, 200_000)?;
    let keep = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, keep, 10_001, 50_000).doing(|| "zeroing, keeping the size")?;
    bytes[10_001..60_001].fill(0);
    fallocate(&file, FallocateFlags::ZERO_RANGE, 190_000, 50_000)
        .doing(|| "zeroing past the end")?;
    bytes[190_000..].fill(0);
    bytes.resize(240_000, 0);
    ensure!(stored(&path)? == bytes, "after zeroing the file differs");
    Ok(())
}

/// Data and holes as SEEK_DATA and SEEK_HOLE show them: no data may be called a hole; a large hole
/// must be found.
fn seek_holes(dir: &Path, _: bool) -> Outcome {
    const MIB: u64 = 1 << 20;
    let path = dir.join("holes");
    let file = File::create(&path).doing(|| "create")?;
    let bytes = noise(4, 64 << 10);
    for at in [8 * MIB, 200 * MIB] {
        file.write_all_at(&bytes, at).doing(|| "write")?;
    }
    file.set_len(300 * MIB).and_then(|()| file.sync_all()).doing(|| "ftruncate and fsync")?;
    let file = File::open(&path).doing(|| "open")?;
    let data = |from: u64| seek(&file, SeekFrom::Data(from));
    let hole = |from: u64| seek(&file, SeekFrom::Hole(from));
    let near = |what: &str, found: rustix::io::Result<u64>, least: u64, most: u64| {
        let found = found.doing(|| what.to_owned())?;
        ensure!((least..=most).contains(&found), "{what}: {found}, expected {least} to {most}");
        Ok(())
    };
    let end = 8 * MIB + bytes.len() as u64;
    near("first data", data(0), 7 * MIB, 8 * MIB)?;
    near("hole at the start", hole(0), 0, 0)?;
    near("data in data", data(8 * MIB + 5), 8 * MIB + 5, 8 * MIB + 5)?;
    near("hole after the first data", hole(8 * MIB), end, end + MIB)?;
    near("second data", data(end + MIB), 199 * MIB, 200 * MIB)?;
    near("hole after the second data", hole(200 * MIB), 200 * MIB + bytes.len() as u64, 201 * MIB)?;
    refused("data after the last", data(250 * MIB), Errno::NXIO)?;
    refused("data past the end", data(301 * MIB), Errno::NXIO)
}

fn sparse(dir: &Path, _: bool) -> Outcome {
    const AT: u64 = 5 << 30;
    let path = dir.join("sparse");
    let file = OpenOptions::new()
        .create_new(true)
        .read(true)
        .write(true)
        .open(&path)
        .doing(|| "create")?;
    let bytes = noise(5, 100_000);
    for at in [0, AT, AT * 3 + 12_345] {
        file.write_all_at(&bytes, at).doing(|| format!("write at {at}"))?;
    }
    file.sync_all().doing(|| "fsync")?;
    let meta = file.metadata().doing(|| "fstat")?;
    same("size", &meta.len(), &(AT * 3 + 12_345 + 100_000))?;
    ensure!(meta.blocks() * 512 < 100 << 20, "a sparse file takes {} bytes", meta.blocks() * 512);
    drop(file);
    let file = File::open(&path).doing(|| "open")?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).doing(|| "fadvise")?;
    let mut found = vec![1; 100_000];
    for (at, expected) in
        [(0, &bytes), (AT, &bytes), (AT * 3 + 12_345, &bytes), (AT * 2, &vec![0; 100_000])]
    {
        file.read_exact_at(&mut found, at).doing(|| format!("read at {at}"))?;
        ensure!(found == *expected, "bytes at {at} differ");
    }
    Ok(())
}

/// `st_blocks` is what is stored, at once, in files of every size.
fn blocks(dir: &Path, _: bool) -> Outcome {
    const MIB: u64 = 1 << 20;
    let taken = |file: &File, what: &str, least: u64, most: u64| {
        let bytes = file.metadata().doing(|| "fstat")?.blocks() * 512;
        ensure!((least..=most).contains(&bytes), "{what} takes {bytes}, not {least} to {most}");
        Ok(())
    };
    let (dense, _) = filled(&dir.join("dense"), 8, MIB as usize)?;
    taken(&dense, "a file without holes", MIB, MIB + MIB / 8)?;
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&dense, mode, 65_536, MIB - 65_536).doing(|| "fallocate")?;
    dense.sync_all().doing(|| "fsync")?;
    taken(&dense, "what is left of it", 65_536, MIB / 4)?;
    for size in [MIB, 60 * MIB, 130 * MIB, 1 << 43] {
        let path = dir.join(format!("holes-{size}"));
        let file = OpenOptions::new().create(true).truncate(true).write(true).open(path);
        let file = file.doing(|| "create")?;
        file.set_len(size).doing(|| "ftruncate")?;
        taken(&file, "a hole", 0, 512)?;
        for (written, at) in [0, size / 2, size - 50_000].into_iter().enumerate() {
            file.write_all_at(&noise(9, 50_000), at).doing(|| "write")?;
            let data = (written as u64 + 1) * 50_000;
            taken(&file, &format!("{data} bytes in {size}"), data, 3 * data)?;
        }
        file.sync_all().doing(|| "fsync")?;
        taken(&file, &format!("synced, of {size}"), 150_000, 450_000)?;
        file.set_len(size / 2).doing(|| "ftruncate")?;
        taken(&file, "what is left of it", 50_000, 200_000)?;
    }
    let (file, _) = filled(&dir.join("reserved"), 10, 100)?;
    fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 80 * MIB).doing(|| "fallocate")?;
    taken(&file, "what is reserved", 80 * MIB, 90 * MIB)?;
    file.set_len(50).doing(|| "ftruncate")?;
    // The space of checksums stays until the file is cut to nothing.
    taken(&file, "a file that was cut", 1, MIB)?;
    file.set_len(0).doing(|| "ftruncate")?;
    taken(&file, "an empty file", 0, 0)
}

/// Space of a removed file comes back, if not at once.
fn freed(dir: &Path, quick: bool) -> Outcome {
    // Much more than the journals' segments, which come and go by 32 MiB for each storage daemon
    // meanwhile.
    let length: usize = if quick { 8 << 20 } else { 512 << 20 };
    let used = || {
        let space = rustix::fs::statvfs(dir).doing(|| "statvfs")?;
        Ok((space.f_blocks - space.f_bfree) * space.f_frsize)
    };
    let path = dir.join("large");
    let empty: u64 = used()?;
    let (file, _) = filled(&path, 6, length)?;
    file.sync_all().doing(|| "fsync")?;
    same("size", &size(&file)?, &(length as u64))?;
    drop(file);
    if quick {
        return std::fs::remove_file(&path).doing(|| "unlink");
    }
    // Space is told with the daemons' heartbeats, so it is seen a little later.
    let within = |seconds: u32, seen: &dyn Fn(u64) -> bool| -> Outcome<bool> {
        for _ in 0..seconds * 10 {
            if seen(used()?) {
                return Ok(true);
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        Ok(false)
    };
    let half = length as u64 / 2;
    ensure!(
        within(10, &|now| now >= empty + half)?,
        "{length} bytes were written; used: {}, before {empty}",
        used()?
    );
    let with = used()?;
    std::fs::remove_file(&path).doing(|| "unlink")?;
    ensure!(
        within(30, &|now| now + half < with)?,
        "{length} bytes were removed; used: {}, before {with}",
        used()?
    );
    Ok(())
}
