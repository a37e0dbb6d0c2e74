//! The simulator of the write path: seeds that are always the same, seeds that nobody has seen, and
//! canaries.

use super::report::Report;
use crate::error::Outcome;
use crate::exec::{self, Interrupt};
use crate::sim;
use std::time::Duration;

/// Walks from the first seed on: about half a minute here.
const FIXED_WALKS: &str = "30000";
/// Time for fresh walks.
const FRESH_SECONDS: &str = "20";
/// Building it, and any of the runs.
const DEADLINE: Duration = Duration::from_secs(1800);

/// Runs those that are wanted: a walk keeps one processor busy, so two at once.
///
/// # Errors
/// Only on Ctrl-C.
pub fn run(report: &mut Report, interrupt: &Interrupt) -> Outcome {
    let sim = |args: &[&str]| {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        exec::run_ok(&mut sim::command(&args), DEADLINE, interrupt).map(drop)
    };
    let mut other = report.clone();
    std::thread::scope(|scope| {
        let fixed = scope.spawn(move || {
            let name = "walks that are always the same";
            other.case("sim", name, || sim(&["--seed", "1", "--seeds", FIXED_WALKS]))
        });
        // far from the fixed ones, and printed, so that a failure can be looked at again
        let seed = fastrand::u64(1 << 32..1 << 52).to_string();
        let name = format!("fresh walks (cargo xtask sim --seed {seed})");
        report.case("sim", &name, || sim(&["--seed", &seed, "--seconds", FRESH_SECONDS]))?;
        let name =
            format!("fresh walks of replicated logs (cargo xtask sim --quorum --seed {seed})");
        report.case("sim", &name, || {
            sim(&["--quorum", "--seed", &seed, "--seconds", FRESH_SECONDS])
        })?;
        report.case("sim", "without any one rule an invariant breaks", || sim(&["--canaries"]))?;
        fixed.join().expect("a walk is a process of its own")?;
        report.goes_on();
        Ok(())
    })
}
