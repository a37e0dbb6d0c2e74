//! Every fuzz target for a while, some at a time, after the planted fault was found.

use super::report::Report;
use crate::error::{Error, Outcome};
use crate::exec::Interrupt;
use crate::fuzz::{Fuzzer, TARGETS};
use std::time::{Duration, Instant};

/// Targets that run at once: two for each core of the smallest machine, so that all are over in
/// time.
const AT_ONCE: usize = 4;

/// Runs those that are wanted, each for so many seconds.
///
/// # Errors
/// Only on Ctrl-C.
pub fn run(seconds: u64, report: &mut Report, interrupt: &Interrupt) -> Outcome {
    let mut fuzzer = None;
    report.case("fuzz", "the planted fault is found", || {
        let built = Fuzzer::build(interrupt)?;
        built.find_canary(interrupt)?;
        fuzzer = Some(built);
        Ok(())
    })?;
    let Some(fuzzer) = fuzzer else { return Ok(()) };
    let wanted: Vec<&str> =
        TARGETS.into_iter().filter(|target| report.wants_test("fuzz", target)).collect();
    for some in wanted.chunks(AT_ONCE) {
        let outcomes: Vec<(Outcome, Duration)> = std::thread::scope(|scope| {
            let begin = Instant::now();
            let fuzzer = &fuzzer;
            let runs: Vec<_> = some
                .iter()
                .map(|target| scope.spawn(move || fuzzer.run(target, seconds, interrupt)))
                .collect();
            let joined =
                runs.into_iter().map(|run| run.join().expect("a run of a target does not panic"));
            joined.map(|outcome| (outcome.map(drop), begin.elapsed())).collect()
        });
        for (target, (outcome, time)) in some.iter().zip(outcomes) {
            if let Err(Error::Interrupted) = outcome {
                return Err(Error::Interrupted);
            }
            report.record("fuzz", target, outcome, time);
        }
    }
    Ok(())
}
