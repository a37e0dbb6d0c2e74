//! Asking before what cannot be taken back.

use crate::error::OperatorError;
use std::io::{self, BufRead, IsTerminal, Write};

/// Says what is at stake, and asks on a terminal whether to go on. Elsewhere nobody can answer:
/// there `--yes` is needed.
///
/// # Errors
/// [`OperatorError::Unconfirmed`].
pub fn ask(stake: &str) -> Result<(), OperatorError> {
    let (stdin, mut stderr) = (io::stdin(), io::stderr());
    if !stdin.is_terminal() || !stderr.is_terminal() {
        return Err(OperatorError::Unconfirmed(format!("{stake}\nto do it, say --yes")));
    }
    let no = |_: io::Error| OperatorError::Unconfirmed("nothing was changed".to_owned());
    write!(stderr, "{stake}\nGo on? [y/N] ").and_then(|()| stderr.flush()).map_err(no)?;
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer).map_err(no)?;
    match answer.trim().to_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(OperatorError::Unconfirmed("nothing was changed".to_owned())),
    }
}
