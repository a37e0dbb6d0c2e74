//! Showing telemetry once, or again and again with what happened in between.

use crate::Cluster;
use crate::error::OperatorError;
use crate::telemetry::{self, Answers};
use std::time::Duration;

/// Asks, and shows what all counted since they started; with `every` (in seconds) goes on for ever
/// with what they counted since the last time.
///
/// # Errors
/// Those of [`telemetry::ask`] and of `show`, which ends it with a closed pipe.
pub fn run(
    cluster: &Cluster,
    names: &[String],
    every: Option<u64>,
    mut show: impl FnMut(&Answers) -> Result<(), OperatorError>,
) -> Result<(), OperatorError> {
    let mut last = telemetry::ask(cluster, names)?;
    show(&last)?;
    let Some(every) = every else { return Ok(()) };
    loop {
        std::thread::sleep(Duration::from_secs(every));
        let now = telemetry::ask(cluster, names)?;
        show(&between(&last, &now))?;
        last = now;
    }
}

/// Shows rates: of one interval, or for ever of one after the other.
///
/// # Errors
/// As [`run`].
pub fn rates(
    cluster: &Cluster,
    names: &[String],
    interval: Duration,
    forever: bool,
    mut show: impl FnMut(&Answers) -> Result<(), OperatorError>,
) -> Result<(), OperatorError> {
    let mut last = telemetry::ask(cluster, names)?;
    loop {
        std::thread::sleep(interval);
        let now = telemetry::ask(cluster, names)?;
        show(&between(&last, &now))?;
        last = now;
        if !forever {
            return Ok(());
        }
    }
}

/// What was counted between two answers.
fn between(last: &Answers, now: &Answers) -> Answers {
    let since = |report: &messenger::TelemetryReport| {
        let earlier = last.reports.iter().find(|earlier| earlier.name == report.name);
        earlier.map_or_else(|| report.clone(), |earlier| report.since(earlier))
    };
    Answers { reports: now.reports.iter().map(since).collect(), ..now.clone() }
}

/// Lines about who the clients are that answered, and about those who did not.
pub fn notes(answers: &Answers) -> String {
    let clients = answers.clients.iter().map(|(name, title)| format!("{name} is {title}\n"));
    clients.chain(silent(answers)).collect()
}

/// Says on standard error who did not answer, where standard output is for programs.
pub fn warn_of_silent(answers: &Answers) {
    silent(answers).for_each(|line| eprint!("trefoil: {line}"));
}

/// Lines about those who did not answer.
fn silent(answers: &Answers) -> impl Iterator<Item = String> {
    answers.silent.iter().map(|(name, reason)| format!("no answer from {name}: {reason}\n"))
}
