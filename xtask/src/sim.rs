//! The simulator of the write path, built with the switches of the protocol's rules, which no
//! program has.

use crate::error::Outcome;
use crate::exec::{self, Interrupt};
use crate::workspace;
use std::process::Command;

/// The simulator with these arguments.
pub fn command(args: &[String]) -> Command {
    let mut command = Command::new(workspace::cargo());
    command.current_dir(workspace::root());
    command
        .args([
            "run",
            "--quiet",
            "--release",
            "--package",
            "simulation",
            "--features",
            "switches",
            "--",
        ])
        .args(args);
    command
}

/// Runs it.
///
/// # Errors
/// When it finds something, or cannot be built.
pub fn run(args: &[String], interrupt: &Interrupt) -> Outcome {
    exec::run_visible(&mut command(args), exec::NO_DEADLINE, interrupt)
}
