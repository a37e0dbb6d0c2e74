//! Why an operation failed, with the errno that a file system passes on.

use protocol::{OsdId, PgId, PoolId, SessionId};
use std::io;

/// An error of the client. [`ClientError::errno`] is what a system call returns for it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ClientError {
    /// A setting that makes no sense; the text says what to change.
    #[error("{0}")]
    Config(String),
    /// The cluster could not be reached, or does not speak our protocol.
    #[error("cannot reach the cluster at {monitor}: {reason}")]
    Connect {
        /// Where the monitor was sought.
        monitor: String,
        /// What went wrong.
        reason: String,
    },
    /// The metadata service answered with a POSIX errno.
    #[error("{}", io::Error::from_raw_os_error(*.0))]
    Posix(i32),
    /// The monitor refused, and why.
    #[error("refused by the monitor: {0}")]
    Refused(String),
    /// The session was declared dead: its leases are gone, and writes not yet synced may be lost.
    #[error("{0} was declared dead by the cluster: its unsynced writes may be lost")]
    Fenced(SessionId),
    /// Another cluster answers where this one's monitor was: nothing of this one can be reached any
    /// more.
    #[error(
        "the cluster of this session is gone: another one answers at its address; unmount and mount again"
    )]
    ClusterGone,
    /// Daemons that the operation needs did not answer within `timeout`.
    #[error("timed out waiting for {0}")]
    TimedOut(&'static str),
    /// The pool does not exist.
    #[error("{0} does not exist")]
    NoPool(PoolId),
    /// The disks that the write goes to are full.
    #[error("{0} is full")]
    NoSpace(OsdId),
    /// Fewer than k shards of the PG can give the data: their disks fail or their checksums are
    /// wrong.
    #[error("placement group {0} cannot give the data: too few of its shards are readable")]
    Unreadable(PgId),
    /// A shard holds that the request makes no sense: a bug.
    #[error("placement group {0} refused the request as invalid")]
    Invalid(PgId),
    /// Beyond the largest file that a gfid can name: 2^32 objects.
    #[error("file offset beyond the largest file")]
    TooLarge,
    /// Writes acknowledged earlier were lost with the session that made them.
    #[error("earlier writes to the file were lost")]
    Lost,
    /// The peer sent something that is not an answer to what was asked.
    #[error("unexpected answer: {0}")]
    Protocol(String),
    /// The client was closed.
    #[error("the client is closed")]
    Closed,
    /// Reading or writing on this side (a file given to `put` or `get`) failed.
    #[error("{0}")]
    Local(String),
}

impl ClientError {
    /// The POSIX errno for it.
    pub fn errno(&self) -> i32 {
        const EIO: i32 = 5;
        const EINVAL: i32 = 22;
        const EFBIG: i32 = 27;
        const ENOSPC: i32 = 28;
        const ESTALE: i32 = 116;
        match self {
            ClientError::Posix(errno) => *errno,
            ClientError::NoSpace(_) => ENOSPC,
            ClientError::TooLarge => EFBIG,
            ClientError::ClusterGone => ESTALE,
            ClientError::Config(_) => EINVAL,
            _ => EIO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errnos_are_those_posix_names() {
        assert_eq!(ClientError::Posix(2).errno(), 2);
        assert_eq!(ClientError::NoSpace(OsdId::new(1)).errno(), 28);
        assert_eq!(ClientError::TimedOut("the monitor").errno(), 5);
        assert_eq!(ClientError::TooLarge.errno(), 27);
    }
}
