//! Why a comparison ended.

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// A process, socket or file.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// Between our processes.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// The messenger's runtime did not start.
    #[error(transparent)]
    Runtime(#[from] messenger::RuntimeError),
    /// The messenger did not listen.
    #[error(transparent)]
    Listen(#[from] messenger::ListenError),
    /// A call of the messenger failed.
    #[error(transparent)]
    Call(#[from] messenger::CallError),
    /// gRPC could not connect.
    #[error(transparent)]
    Transport(#[from] tonic::transport::Error),
    /// A call of gRPC failed.
    #[error("{0}")]
    Status(String),
    /// A child process or a thread of ours.
    #[error("{0}")]
    Child(&'static str),
}
