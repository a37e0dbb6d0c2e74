//! What can go wrong, in the operator's words, and the exit code for it.

use client::ClientError;
use protocol::monitor::{Health, MonitorReply};
use std::fmt::Debug;
use std::io;
use volume::VolumeError;

/// Shown by `--help`.
pub const EXIT_CODES: &str = "Exit codes: 0 done; 1 a local file cannot be read or written; 2 wrong usage, or not \
confirmed; 3 the cluster cannot be reached; 4 no such object, volume, pool or target; 5 the cluster refused or failed. `health` \
answers as checks for Nagios do: 0 ok, 1 degraded, 2 down, 3 not known.";

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// A file on this side.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// Nobody reads our standard output any more.
    #[error("standard output was closed")]
    ClosedPipe,
    /// No answer from the monitor.
    #[error(
        "cannot reach the monitor at {monitor}: {reason}; is osd-daemon running? (--monitor and TREFOIL_MONITOR say where)"
    )]
    Unreachable {
        /// Where it was sought.
        monitor: String,
        /// What happened.
        reason: String,
    },
    /// There is no such daemon.
    #[error("no target `{name}`; there are: {known}")]
    NoTarget {
        /// The name asked for.
        name: String,
        /// Names that exist.
        known: String,
    },
    /// A daemon does not answer.
    #[error("no answer from {name}: {reason}")]
    Silent {
        /// Which.
        name: String,
        /// Why.
        reason: String,
    },
    /// There is no such pool.
    #[error("no pool `{name}`; there are: {known}")]
    NoPool {
        /// The name asked for.
        name: String,
        /// Names that exist.
        known: String,
    },
    /// There is no such object.
    #[error("no object `{0}`")]
    NoObject(String),
    /// The cluster is not well: what `trefoil health` answers.
    #[error("the cluster is {}", crate::status::health(*.0))]
    Unhealthy(Health),
    /// The operator did not say that it shall be done.
    #[error("{0}")]
    Unconfirmed(String),
    /// Something with a volume.
    #[error("{0}")]
    Volume(VolumeError),
    /// The cluster said no, and why.
    #[error("{0}")]
    Refused(String),
}

impl OperatorError {
    /// See [`EXIT_CODES`].
    pub fn exit_code(&self) -> u8 {
        match self {
            OperatorError::ClosedPipe => 0,
            OperatorError::File { .. } => 1,
            OperatorError::Unconfirmed(_) => 2,
            OperatorError::Unreachable { .. } | OperatorError::Silent { .. } => 3,
            OperatorError::NoPool { .. }
            | OperatorError::NoObject(_)
            | OperatorError::NoTarget { .. } => 4,
            OperatorError::Volume(VolumeError::Local { .. }) => 1,
            OperatorError::Volume(VolumeError::BadName(..) | VolumeError::Invalid(_)) => 2,
            OperatorError::Volume(VolumeError::NoVolume(_) | VolumeError::NoPool { .. }) => 4,
            OperatorError::Volume(_) | OperatorError::Refused(_) => 5,
            OperatorError::Unhealthy(Health::Down) => 2,
            OperatorError::Unhealthy(_) => 1,
        }
    }

    /// An answer that is none to what was asked.
    pub fn unexpected(reply: &MonitorReply) -> OperatorError {
        match reply {
            MonitorReply::Refused(why) => OperatorError::Refused(why.clone()),
            other => {
                OperatorError::Refused(format!("the monitor gave an unexpected answer: {other:?}"))
            }
        }
    }

    /// An error of the client library, about an object.
    pub fn of_client(error: ClientError, object: &str) -> OperatorError {
        const ENOENT: i32 = 2;
        match error {
            ClientError::Posix(ENOENT) => OperatorError::NoObject(object.to_owned()),
            ClientError::Connect { monitor, reason } => {
                OperatorError::Unreachable { monitor, reason }
            }
            other => OperatorError::Refused(other.to_string()),
        }
    }
}

impl From<VolumeError> for OperatorError {
    fn from(error: VolumeError) -> Self {
        match error {
            VolumeError::Client(error) => OperatorError::of_client(error, ""),
            other => OperatorError::Volume(other),
        }
    }
}
