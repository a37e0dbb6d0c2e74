//! The errnos that the file system itself answers with.

use crate::error::ClientError;

pub(crate) const EPERM: i32 = 1;
pub(crate) const ENOENT: i32 = 2;
pub(crate) const EIO: i32 = 5;
pub(crate) const EEXIST: i32 = 17;
pub(crate) const EINVAL: i32 = 22;
pub(crate) const EFBIG: i32 = 27;
pub(crate) const ENOSPC: i32 = 28;
pub(crate) const ENXIO: i32 = 6;
pub(crate) const ENODATA: i32 = 61;
pub(crate) const EOPNOTSUPP: i32 = 95;
pub(crate) const ESTALE: i32 = 116;

/// An errno as an error.
pub(crate) fn posix<T>(errno: i32) -> Result<T, ClientError> {
    Err(ClientError::Posix(errno))
}
