//! The one error of these commands: words for the developer, or "you pressed Ctrl-C".

use std::fmt::Display;

/// Why a command ends early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Ctrl-C or SIGTERM: clean up and leave.
    #[error("interrupted; everything that was started has been cleaned up")]
    Interrupted,
    /// What went wrong, and what can be done.
    #[error("{0}")]
    Failed(String),
}

/// What most functions here return.
pub type Outcome<T = ()> = Result<T, Error>;

/// An error with these words.
pub fn fail<T>(message: impl Into<String>) -> Outcome<T> {
    Err(Error::Failed(message.into()))
}

/// Adds what was being done to an error of the system.
pub trait Context<T> {
    /// `doing` is put before the error, with a colon.
    ///
    /// # Errors
    /// The error that was there, with more words.
    fn doing<D: Display>(self, doing: impl FnOnce() -> D) -> Outcome<T>;
}

impl<T, E: Display> Context<T> for Result<T, E> {
    fn doing<D: Display>(self, doing: impl FnOnce() -> D) -> Outcome<T> {
        self.map_err(|e| Error::Failed(format!("{}: {e}", doing())))
    }
}

/// Fails with words unless a condition holds.
macro_rules! ensure {
    ($condition:expr, $($words:tt)+) => {
        if !$condition {
            return $crate::error::fail(format!($($words)+));
        }
    };
}
pub(crate) use ensure;
