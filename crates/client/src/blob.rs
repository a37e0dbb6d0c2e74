//! Named objects ("blobs") on a pool: put, get, list, stat, remove.
//!
//! A blob is a file in a hidden directory of its pool, so it has everything files have: coding,
//! leases, recovery. A put writes under a temporary name, makes the data stable, and replaces the
//! blob by one rename: readers see the old or the new, whole.
//!
//! Contract: for ordinary threads; every function blocks. Names are any bytes; `/`, `%`, NUL and a
//! leading dot are stored as `%` and two digits, and the result must fit into 255 bytes.

use crate::error::ClientError;
use crate::objecter::{FileRef, WriterHint};
use crate::session::Client;
use bytes::Bytes;
use protocol::namespace::{
    Attr, Caller, FileKind, LeaseMode, NAME_BYTES_MAX, NamespaceOp, RenameMode, Reply, SetAttr,
    Timestamp,
};
use protocol::{Gfid, PoolId};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes moved at once.
const CHUNK_BYTES: usize = 4 << 20;
/// Chunks under way at once.
const CHUNKS_AHEAD: usize = 4;
/// Begins temporary names; blobs' names never do.
const TEMPORARY: &[u8] = b".put-";
/// Entries asked for at once.
const LIST_PAGE: u32 = 1024;
const ENOENT: i32 = 2;
const ENAMETOOLONG: i32 = 36;

/// What is known of a blob.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlobStat {
    /// Its name.
    pub name: Vec<u8>,
    /// Its length in bytes.
    pub size: u64,
    /// When it was put.
    pub mtime: Timestamp,
}

/// Stores everything that `reader` gives under `name`, replacing what was there. Returns the length
/// in bytes. `progress` is called with the bytes stored so far.
///
/// # Errors
/// Those of the cluster, and [`ClientError::Local`] when the reader fails; the old blob is then
/// untouched.
pub fn put(
    client: &Client,
    pool: PoolId,
    name: &[u8],
    reader: &mut dyn Read,
    progress: &mut dyn FnMut(u64),
) -> Result<u64, ClientError> {
    let stored = encode_name(name)?;
    let root = root(client, pool)?;
    let temporary = temporary_name(client);
    let op = NamespaceOp::Create {
        parent: root,
        name: temporary.clone(),
        kind: FileKind::Regular,
        mode: 0o644,
        umask: 0,
        rdev: 0,
        target: Vec::new(),
        pool,
        open: Some(LeaseMode::Write),
    };
    let attr = opened(client, call(client, op)?)?;
    let file = FileRef { gfid: attr.gfid, pool: attr.pool };
    let written = fill(client, file, reader, progress).and_then(|size| {
        publish(client, file, root, &temporary, stored, size)?;
        Ok(size)
    });
    if written.is_err() {
        // The error that matters is the first one; what stays behind has a temporary name.
        let _ = release(client, file.gfid, SetAttr::default());
        let _ = call(client, NamespaceOp::Unlink { parent: root, name: temporary, gives: None });
    }
    written
}

/// Copies the reader into the file, several chunks under way at once.
fn fill(
    client: &Client,
    file: FileRef,
    reader: &mut dyn Read,
    progress: &mut dyn FnMut(u64),
) -> Result<u64, ClientError> {
    let mut under_way = VecDeque::new();
    let (mut size, mut done) = (0u64, 0u64);
    loop {
        let chunk = read_chunk(reader)?;
        let length = chunk.len() as u64;
        if length > 0 {
            let (at, hint) =
                (size, WriterHint { zero_from: size, size_after: size + length, grant: None });
            size += length;
            let write = client.run_on(client.worker_of(file, at), move |io| async move {
                io.write(file, at, Bytes::from(chunk), hint).await
            });
            under_way.push_back((length, write));
        }
        while under_way.len() >= CHUNKS_AHEAD || length == 0 && !under_way.is_empty() {
            if let Some((length, write)) = under_way.pop_front() {
                client.block_on(write)?;
                done += length;
                progress(done);
            }
        }
        if length == 0 {
            return Ok(size);
        }
    }
}

/// A whole chunk, or what is left.
fn read_chunk(reader: &mut dyn Read) -> Result<Vec<u8>, ClientError> {
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut length = 0;
    while length < chunk.len() {
        match reader.read(&mut chunk[length..]) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => {
                return Err(ClientError::Local(format!("reading the data to store: {error}")));
            }
        }
    }
    chunk.truncate(length);
    Ok(chunk)
}

/// Makes the data stable, gives the lease back with the size, and puts the blob in its place.
fn publish(
    client: &Client,
    file: FileRef,
    root: Gfid,
    temporary: &[u8],
    stored: Vec<u8>,
    size: u64,
) -> Result<(), ClientError> {
    client.block_on(
        client.run_on(client.worker_of(file, 0), move |io| async move { io.sync(file).await }),
    )?;
    let set = SetAttr { size: Some(size), mtime: Some(caller().now), ..SetAttr::default() };
    release(client, file.gfid, set)?;
    let op = NamespaceOp::Rename {
        parent: root,
        name: temporary.to_vec(),
        new_parent: root,
        new_name: stored,
        mode: RenameMode::Replace,
    };
    call(client, op)?;
    call(client, NamespaceOp::Sync)?;
    Ok(())
}

/// Gives a lease back and closes the file.
fn release(client: &Client, gfid: Gfid, set: SetAttr) -> Result<(), ClientError> {
    call(client, NamespaceOp::ReturnLease { gfid, keep: None, set })?;
    call(client, NamespaceOp::Close { gfid })?;
    Ok(())
}

/// Writes a blob's bytes to `writer`. Returns the length in bytes. `progress` is called with the
/// bytes written so far and the length.
///
/// # Errors
/// `ENOENT` when there is no such blob; those of the cluster; [`ClientError::Local`] when the
/// writer fails.
pub fn get(
    client: &Client,
    pool: PoolId,
    name: &[u8],
    writer: &mut dyn Write,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<u64, ClientError> {
    let found = lookup(client, pool, name)?;
    let attr = opened(
        client,
        call(client, NamespaceOp::Open { gfid: found.gfid, lease: LeaseMode::Read })?,
    )?;
    let file = FileRef { gfid: attr.gfid, pool: attr.pool };
    let copied = drain(client, file, attr.size, writer, progress);
    let released = release(client, file.gfid, SetAttr::default());
    copied?;
    released?;
    Ok(attr.size)
}

fn drain(
    client: &Client,
    file: FileRef,
    size: u64,
    writer: &mut dyn Write,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), ClientError> {
    let mut under_way = VecDeque::new();
    let (mut asked, mut done) = (0u64, 0u64);
    while done < size {
        while asked < size && under_way.len() < CHUNKS_AHEAD {
            let (at, length) = (asked, (size - asked).min(CHUNK_BYTES as u64));
            asked += length;
            let read =
                move |io: crate::LocalIo| async move { io.read(file, at, length as usize).await };
            under_way.push_back(client.run_on(client.worker_of(file, at), read));
        }
        let Some(read) = under_way.pop_front() else { break };
        let bytes = client.block_on(read)?;
        writer
            .write_all(&bytes)
            .map_err(|error| ClientError::Local(format!("writing what was read: {error}")))?;
        done += bytes.len() as u64;
        progress(done, size);
    }
    writer.flush().map_err(|error| ClientError::Local(format!("writing what was read: {error}")))
}

/// Every blob whose name begins with `prefix`, in the order of the stored names.
///
/// # Errors
/// Those of the cluster.
pub fn list(client: &Client, pool: PoolId, prefix: &[u8]) -> Result<Vec<BlobStat>, ClientError> {
    let gfid = root(client, pool)?;
    let (mut found, mut after) = (Vec::new(), Vec::new());
    loop {
        let reply =
            call(client, NamespaceOp::ReadDir { gfid, after: after.clone(), limit: LIST_PAGE })?;
        let Reply::Entries { entries, end } = reply else { return Err(unexpected(&reply)) };
        let Some(last) = entries.last() else { return Ok(found) };
        after = last.name.clone();
        for entry in entries.iter().filter(|entry| !entry.name.starts_with(TEMPORARY)) {
            let name = decode_name(&entry.name);
            if name.starts_with(prefix) {
                found.push(BlobStat { name, size: entry.attr.size, mtime: entry.attr.mtime });
            }
        }
        if end {
            return Ok(found);
        }
    }
}

/// What is known of one blob.
///
/// # Errors
/// `ENOENT` when there is no such blob; those of the cluster.
pub fn stat(client: &Client, pool: PoolId, name: &[u8]) -> Result<BlobStat, ClientError> {
    let attr = lookup(client, pool, name)?;
    Ok(BlobStat { name: name.to_vec(), size: attr.size, mtime: attr.mtime })
}

/// Removes a blob, durably.
///
/// # Errors
/// `ENOENT` when there is no such blob; those of the cluster.
pub fn remove(client: &Client, pool: PoolId, name: &[u8]) -> Result<(), ClientError> {
    let (parent, name) = (root(client, pool)?, encode_name(name)?);
    call(client, NamespaceOp::Unlink { parent, name, gives: None })?;
    call(client, NamespaceOp::Sync)?;
    Ok(())
}

fn lookup(client: &Client, pool: PoolId, name: &[u8]) -> Result<Attr, ClientError> {
    let (parent, name) = (root(client, pool)?, encode_name(name)?);
    attr(call(client, NamespaceOp::Lookup { parent, name })?)
}

fn root(client: &Client, pool: PoolId) -> Result<Gfid, ClientError> {
    attr(call(client, NamespaceOp::BlobRoot { pool })?).map(|attr| attr.gfid)
}

fn attr(reply: Reply) -> Result<Attr, ClientError> {
    match reply {
        Reply::Attr(attr) => Ok(attr),
        other => Err(unexpected(&other)),
    }
}

/// Attributes of a file whose lease may be used now (rule GrantEpoch).
fn opened(client: &Client, reply: Reply) -> Result<Attr, ClientError> {
    match reply {
        Reply::Opened { attr, grant: Some(grant) } => {
            client.block_on(client.usable(grant.epoch))?;
            Ok(attr)
        }
        other => Err(unexpected(&other)),
    }
}

fn unexpected(reply: &Reply) -> ClientError {
    ClientError::Protocol(format!("{reply:?} from the metadata service"))
}

fn call(client: &Client, op: NamespaceOp) -> Result<Reply, ClientError> {
    client.block_on(client.namespace(op, caller()))
}

/// Blobs belong to root; who may reach the cluster may use them.
fn caller() -> Caller {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = Timestamp {
        secs: i64::try_from(now.as_secs()).unwrap_or(i64::MAX),
        nanos: now.subsec_nanos(),
    };
    Caller { uid: 0, gid: 0, now }
}

fn temporary_name(client: &Client) -> Vec<u8> {
    let unique = format!("{}-{:016x}", client.session_id().get(), fastrand::u64(..));
    [TEMPORARY, unique.as_bytes()].concat()
}

/// The name of the file that holds a blob.
fn encode_name(name: &[u8]) -> Result<Vec<u8>, ClientError> {
    let mut stored = Vec::with_capacity(name.len());
    for (at, byte) in name.iter().enumerate() {
        match byte {
            b'/' | b'%' | 0 => stored.extend_from_slice(format!("%{byte:02x}").as_bytes()),
            b'.' if at == 0 => stored.extend_from_slice(b"%2e"),
            _ => stored.push(*byte),
        }
    }
    match stored.len() {
        0 => Err(ClientError::Posix(ENOENT)),
        length if length > NAME_BYTES_MAX => Err(ClientError::Posix(ENAMETOOLONG)),
        _ => Ok(stored),
    }
}

/// The blob's name of a file; what was not encoded stays as it is.
fn decode_name(stored: &[u8]) -> Vec<u8> {
    let mut name = Vec::with_capacity(stored.len());
    let mut rest = stored;
    while let Some((first, tail)) = rest.split_first() {
        let digits = tail.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits
            .filter(|_| *first == b'%')
            .and_then(|digits| u8::from_str_radix(digits, 16).ok())
        {
            Some(byte) => {
                name.push(byte);
                rest = &tail[2..];
            }
            None => {
                name.push(*first);
                rest = tail;
            }
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_keep_their_slashes() {
        assert_eq!(encode_name(b"a/b%").expect("short"), b"a%2fb%25");
        assert_eq!(encode_name(b"..").expect("short"), b"%2e.");
        assert!(encode_name(b"").is_err());
        assert!(encode_name(&[b'x'; 256]).is_err());
    }

    proptest! {
        #[test]
        fn names_round_trip(name in proptest::collection::vec(any::<u8>(), 1..80)) {
            let stored = encode_name(&name).expect("short");
            prop_assert!(!stored.contains(&b'/') && !stored.contains(&0) && !stored.starts_with(b"."));
            prop_assert_eq!(decode_name(&stored), name);
        }

        /// Somebody else may have made a file there.
        #[test]
        fn any_file_has_a_name(stored in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(decode_name(&stored).len() <= stored.len());
        }
    }
}
