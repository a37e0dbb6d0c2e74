//! The small files beside the log.
//!
//! Contract: a file is written under another name, synced, renamed, and its directory synced. What
//! is read was checked against its length and checksum.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic: `TRFLRPL1` of `replica`, `TRFLSNP1` of a snapshot |
//! | 8 | 4 | CRC32C of what follows |
//! | 12 | | `replica`: the replica (8) |
//! | 12 | | snapshot: index (8), term (8), sets of replicas (as in a frame), the rest: data |

use bytes::{Buf, BufMut, Bytes, BytesMut};
use consensus::frame::{get_voters, put_voters};
use consensus::{INDEX_MAX, ReplicaId, SNAPSHOT_BYTES_MAX, Snapshot, TERM_MAX};
use ec_store::disk;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const REPLICA_MAGIC: &[u8; 8] = b"TRFLRPL1";
const SNAPSHOT_MAGIC: &[u8; 8] = b"TRFLSNP1";
const HEADER_BYTES: usize = 12;
/// A snapshot file has its data and less than this beside it.
const BESIDE_DATA_BYTES_MAX: u64 = 4096;

fn seal(magic: &[u8; 8], body: &[u8]) -> Vec<u8> {
    let crc = crc32c::crc32c(body).to_le_bytes();
    [&magic[..], &crc, body].concat()
}

/// `None`: no such file; an error of the kind `InvalidData`: not what was written.
fn read(path: &Path, magic: &[u8; 8], bytes_max: u64) -> io::Result<Option<Bytes>> {
    let bytes = match fs::metadata(path) {
        Ok(metadata) if metadata.len() <= bytes_max => Bytes::from(fs::read(path)?),
        Ok(_) => return Err(io::ErrorKind::InvalidData.into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let sealed = bytes.len() >= HEADER_BYTES && bytes.starts_with(magic);
    let body = if sealed { bytes.slice(HEADER_BYTES..) } else { Bytes::new() };
    if sealed && bytes[8..HEADER_BYTES] == crc32c::crc32c(&body).to_le_bytes() {
        Ok(Some(body))
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
}

/// Where it says which replica a directory is.
pub fn replica_path(dir: &Path) -> PathBuf {
    dir.join("replica")
}

/// Writes which replica a directory is.
pub fn write_replica(dir: &Path, id: ReplicaId) -> io::Result<()> {
    disk::write_atomically(&replica_path(dir), &seal(REPLICA_MAGIC, &id.raw().to_le_bytes()))
}

/// Which replica it is. `None`: none yet.
pub fn read_replica(dir: &Path) -> io::Result<Option<ReplicaId>> {
    let Some(body) = read(&replica_path(dir), REPLICA_MAGIC, 64)? else { return Ok(None) };
    let raw = <[u8; 8]>::try_from(&body[..]).map_err(|_| io::ErrorKind::InvalidData)?;
    ReplicaId::from_raw(u64::from_le_bytes(raw)).map(Some).ok_or(io::ErrorKind::InvalidData.into())
}

/// Where a group's snapshot is.
pub fn snapshot_path(dir: &Path, group: u16) -> PathBuf {
    dir.join(format!("snapshot.{group}"))
}

fn new_snapshot_path(dir: &Path, group: u16) -> PathBuf {
    dir.join(format!("snapshot.{group}.new"))
}

/// [`consensus::Step::WriteSnapshot`].
pub fn write_snapshot(dir: &Path, group: u16, snapshot: &Snapshot) -> io::Result<()> {
    let mut body = BytesMut::new();
    body.put_u64_le(snapshot.index);
    body.put_u64_le(snapshot.term);
    put_voters(&mut body, &snapshot.voters);
    let crc = crc32c::crc32c_append(crc32c::crc32c(&body), &snapshot.data);
    let mut file = File::create(new_snapshot_path(dir, group))?;
    file.write_all(SNAPSHOT_MAGIC)?;
    file.write_all(&crc.to_le_bytes())?;
    file.write_all(&body)?;
    file.write_all(&snapshot.data)?;
    file.sync_all()
}

/// [`consensus::Step::RenameSnapshot`].
pub fn rename_snapshot(dir: &Path, group: u16) -> io::Result<()> {
    fs::rename(new_snapshot_path(dir, group), snapshot_path(dir, group))?;
    disk::sync_dir(dir)
}

/// A group's snapshot. `None`: it has none.
pub fn read_snapshot(path: &Path) -> io::Result<Option<Snapshot>> {
    let bytes_max = SNAPSHOT_BYTES_MAX as u64 + BESIDE_DATA_BYTES_MAX;
    let Some(mut body) = read(path, SNAPSHOT_MAGIC, bytes_max)? else { return Ok(None) };
    let mut number = |max: u64| body.try_get_u64_le().ok().filter(|number| *number <= max);
    let (index, term) = (number(INDEX_MAX), number(TERM_MAX));
    let voters = get_voters(&mut body).ok();
    let (Some(index), Some(term), Some(voters)) = (index, term, voters) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    Ok(Some(Snapshot { index, term, voters, data: body }))
}
