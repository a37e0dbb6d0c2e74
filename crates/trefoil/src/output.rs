//! Standard output, which may be closed at any time without that being a fault.

use crate::error::OperatorError;
use std::io::{self, Write};

/// Prints a line.
///
/// # Errors
/// [`OperatorError::ClosedPipe`], and others when the output cannot be written.
pub fn line(text: &str) -> Result<(), OperatorError> {
    self::text(&format!("{text}\n"))
}

/// Prints text that ends its lines itself.
///
/// # Errors
/// As [`line`].
pub fn text(text: &str) -> Result<(), OperatorError> {
    bytes(text.as_bytes())
}

/// Prints bytes.
///
/// # Errors
/// As [`line`].
pub fn bytes(bytes: &[u8]) -> Result<(), OperatorError> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(failed)
}

/// What an error of standard output means.
pub fn failed(source: io::Error) -> OperatorError {
    match source.kind() {
        io::ErrorKind::BrokenPipe => OperatorError::ClosedPipe,
        _ => OperatorError::File { path: "standard output".into(), source },
    }
}
