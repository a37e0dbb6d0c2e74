//! Keys of the records, as tabled in [`super`]. Numbers are big-endian, so that byte order is
//! number order.

use protocol::{Gfid, PoolId, SessionId};

/// Records of directory entries begin with this.
pub(super) const ENTRY: u8 = b'd';
/// Inodes, or where they lie.
pub(super) const NODE: u8 = b'i';
/// Extended attributes.
pub(super) const XATTR: u8 = b'x';
/// Files that nobody can reach, whose objects are to be deleted.
pub(super) const PURGE: u8 = b'p';
/// Files without a link that are still in use.
pub(super) const ORPHAN: u8 = b'o';
/// Holders of write leases.
pub(super) const WRITER: u8 = b'w';
/// Files whose size is to be recovered.
pub(super) const UNSIZED: u8 = b's';
/// Roots of pools' named blobs.
pub(super) const BLOB_ROOT: u8 = b'b';
/// Answers kept for sessions.
pub(super) const ANSWER: u8 = b'r';
/// Sessions that have spoken to the service.
pub(super) const SESSION: u8 = b'c';
/// Format version.
pub(super) const FORMAT: &[u8] = b"mformat";
/// First inode number that is not reserved yet.
pub(super) const INODES: &[u8] = b"minodes";
/// Number of files.
pub(super) const FILES: &[u8] = b"mfiles";
/// Cluster that the records belong to.
pub(super) const CLUSTER: &[u8] = b"mcluster";
/// What tells this namespace from any other.
pub(super) const IDENTITY: &[u8] = b"midentity";

/// How often the service was started.
pub(super) const STARTS: &[u8] = b"mstarts";
/// The last commit.
pub(super) const COMMIT: &[u8] = b"mcommit";
/// How many commits are left of starts before this one.
pub(super) const KEPT: u8 = b'k';

/// Bytes before the name in the key of an entry or attribute.
pub(super) const NAME_AT: usize = 17;

/// A key of a kind and a file.
pub(super) fn of_gfid(kind: u8, gfid: Gfid) -> Vec<u8> {
    let mut key = Vec::with_capacity(NAME_AT);
    key.push(kind);
    key.extend_from_slice(&gfid.get().to_be_bytes());
    key
}

/// A key of a kind, a file and a name: of an entry or an extended attribute.
pub(super) fn of_name(kind: u8, gfid: Gfid, name: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(NAME_AT + name.len() + 1);
    key.push(kind);
    key.extend_from_slice(&gfid.get().to_be_bytes());
    key.extend_from_slice(name);
    key
}

/// The file of a key made by [`of_gfid`] or [`of_name`].
pub(super) fn gfid_of(key: &[u8]) -> Option<Gfid> {
    let raw = key.get(1..NAME_AT)?.try_into().ok()?;
    Some(Gfid::new(u128::from_be_bytes(raw)))
}

/// Key of what is left of a start.
pub(super) fn kept(start: u64) -> Vec<u8> {
    [&[KEPT], &start.to_be_bytes()[..]].concat()
}

/// Start of a key made by [`kept`].
pub(super) fn start_of(key: &[u8]) -> Option<u64> {
    key.get(1..)?.try_into().ok().map(u64::from_be_bytes)
}

/// Key of a pool's blob root.
pub(super) fn blob_root(pool: PoolId) -> Vec<u8> {
    [&[BLOB_ROOT], &pool.get().to_be_bytes()[..]].concat()
}

/// Key of a session.
pub(super) fn session(session: SessionId) -> Vec<u8> {
    [&[SESSION], &session.get().to_be_bytes()[..]].concat()
}

/// Key of an answer.
pub(super) fn answer(session: SessionId, number: u64) -> Vec<u8> {
    [&[ANSWER], &session.get().to_be_bytes()[..], &number.to_be_bytes()[..]].concat()
}

/// Session of a key made by [`session`], or session and number of one made by [`answer`].
pub(super) fn session_of(key: &[u8]) -> Option<(SessionId, u64)> {
    let session = u64::from_be_bytes(key.get(1..9)?.try_into().ok()?);
    let number = key.get(9..17).and_then(|raw| raw.try_into().ok()).map_or(0, u64::from_be_bytes);
    Some((SessionId::new(session), number))
}
