//! Why a run ended without a report, and how it ends.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use client::ClientError;
use ec_store::cluster_lock::Unexpected;
use ec_store::fragment::FragmentError;
use messenger::{CallError, ListenError, RuntimeError};

/// Says where the report of a bench is, or why there is none.
pub(crate) fn exit_code(result: Result<PathBuf, BenchError>) -> ExitCode {
    match result {
        Ok(dir) => {
            println!("report: {}", dir.join("report.md").display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The scenario is not TOML of the right shape.
    #[error("{}: {source}", path.display())]
    Toml {
        /// Which.
        path: PathBuf,
        /// What the parser said.
        source: Box<toml::de::Error>,
    },
    /// The scenario asks for something that does not exist.
    #[error("scenario: {0}")]
    Scenario(String),
    /// The runtime did not start.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// The listener did not start.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A call failed in a run where none may.
    #[error("a call failed: {0}")]
    Call(#[from] CallError),
    /// A bench starts a daemon whose program is not there.
    #[error("{} is not there: build it with `cargo build --release -p osd-daemon`, or start the bench with `cargo xtask bench`", .0.display())]
    NotBuilt(PathBuf),
    /// The client of the whole system failed.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The system gave no thread.
    #[error("cannot start a thread: {0}")]
    Threads(std::io::Error),
    /// A server's fragments cannot be opened.
    #[error(transparent)]
    Fragment(#[from] FragmentError),
    /// A server could not read or write; it has said why.
    #[error("a server could not carry out an operation")]
    Refused,
    /// A server gave an answer to a lock that it must not give.
    #[error(transparent)]
    Lock(#[from] Unexpected),
    /// The load generator ended before it was told to.
    #[error("the load generator is gone")]
    Gone,
    /// The daemon did not begin to serve; its log.
    #[error("the daemon did not start: {0}")]
    NotUp(String),
    /// The daemon did not tell its metrics.
    #[error("the daemon's metrics: {0}")]
    Metrics(std::io::Error),
    /// The daemon answered nothing.
    #[error("the daemon answered nothing for {0:?}")]
    Stalled(std::time::Duration),
    /// Operations were answered that the daemon cannot have seen, by its CPU time: a fault of the
    /// system.
    #[error("in {runs} runs operations were answered that the daemon cannot have seen; see {}", report.display())]
    Unseen {
        /// How many.
        runs: usize,
        /// Where they are named.
        report: PathBuf,
    },
    /// Results could not be turned into JSON.
    #[error("results: {0}")]
    Json(#[from] serde_json::Error),
}

impl BenchError {
    /// For `map_err`: an error of this file.
    pub(crate) fn file(path: &Path) -> impl FnOnce(std::io::Error) -> BenchError + '_ {
        move |source| BenchError::File { path: path.to_owned(), source }
    }
}
