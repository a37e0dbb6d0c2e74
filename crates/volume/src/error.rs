//! What can go wrong with a volume, in the operator's words.

use client::ClientError;
use std::io;

/// Why an operation on a volume failed.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// There is none of this name.
    #[error("no volume `{0}`")]
    NoVolume(String),
    /// There is one already.
    #[error("there is a volume `{0}` already")]
    Exists(String),
    /// It cannot be a volume's name.
    #[error("{0:?} cannot be the name of a volume: {1}")]
    BadName(String, &'static str),
    /// There is no such pool.
    #[error("no pool `{name}`; there are: {known}")]
    NoPool {
        /// The name asked for.
        name: String,
        /// Names that exist.
        known: String,
    },
    /// A size, or a limit, that makes no sense; the text says why.
    #[error("{0}")]
    Invalid(String),
    /// Another process has it open.
    #[error(
        "volume `{name}` is open elsewhere, by {holder}: stop that, or take the volume away from it with --steal where \
         the command has it"
    )]
    InUse {
        /// Which volume.
        name: String,
        /// Whose session, in words.
        holder: String,
    },
    /// The lock is not one of a volume's opener, so it is not taken away.
    #[error(
        "volume `{name}` is locked through {holder}, which is no server of volumes: end that first"
    )]
    Foreign {
        /// Which volume.
        name: String,
        /// Whose session, in words.
        holder: String,
    },
    /// This process had it open, and has it no more.
    #[error("volume `{0}` is not this process's any more: the cluster declared its session dead")]
    Taken(String),
    /// The cluster, or the client.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Something on this machine: a socket, a file.
    #[error("{what}: {source}")]
    Local {
        /// What was tried, or with what.
        what: String,
        /// What the system said.
        source: io::Error,
    },
}

impl VolumeError {
    /// The POSIX errno for it, as NBD passes it on.
    pub fn errno(&self) -> i32 {
        const EIO: i32 = 5;
        match self {
            VolumeError::Client(error) => error.errno(),
            _ => EIO,
        }
    }

    /// Of the system, with what was tried.
    pub fn local(what: impl Into<String>) -> impl FnOnce(io::Error) -> VolumeError {
        let what = what.into();
        move |source| VolumeError::Local { what, source }
    }
}
