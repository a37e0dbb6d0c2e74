//! One line per test, and the summary. Knows which failures are known.
//!
//! Contract: a known failure counts as neither passed nor failed while it fails; it fails the run
//! as soon as it passes, or when no test of its name was met in a complete run: the list can only
//! shrink.

use crate::error::{Context, Error, Outcome, fail};
use serde::Deserialize;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// A failure that is known, with its reason.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Known {
    program: String,
    test: String,
    reason: String,
    #[serde(skip)]
    met: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KnownFile {
    #[serde(default)]
    failure: Vec<Known>,
}

/// What has happened so far. Clones write into the same report, each with a phase and a clock of
/// its own: for tests that run side by side.
#[derive(Clone)]
pub struct Report {
    filter: Option<String>,
    phase: String,
    /// Those of this clone, and of the one it was made of before that.
    failures: usize,
    /// When the last test of this clone ended.
    last_end: Instant,
    results: Arc<Mutex<Results>>,
}

struct Results {
    known: Vec<Known>,
    passed: u64,
    failed: Vec<String>,
    /// By group, in the order of their first tests: from the end of the test before to that of each
    /// of its own, so with what was built and started for it. Tests that run side by side count
    /// each.
    spent: Vec<(String, Duration)>,
}

impl Report {
    /// Nothing has happened; the known failures come from a file.
    ///
    /// # Errors
    /// When that file cannot be read or understood.
    pub fn new(filter: Option<String>, known: &Path) -> Outcome<Report> {
        let text =
            std::fs::read_to_string(known).doing(|| format!("cannot read {}", known.display()))?;
        let file: KnownFile = toml::from_str(&text).doing(|| format!("in {}", known.display()))?;
        if let Some(bare) = file.failure.iter().find(|k| k.reason.trim().is_empty()) {
            return fail(format!(
                "{}: {} {} has no reason",
                known.display(),
                bare.program,
                bare.test
            ));
        }
        let results =
            Results { known: file.failure, passed: 0, failed: Vec::new(), spent: Vec::new() };
        let (phase, failures, last_end) = (String::new(), 0, Instant::now());
        Ok(Report { filter, phase, failures, last_end, results: Arc::new(Mutex::new(results)) })
    }

    /// Is any test of this group wanted?
    pub fn wants(&self, group: &str) -> bool {
        self.is_any_filter(|of, _| group.contains(of))
    }

    /// Is this test wanted?
    pub fn wants_test(&self, group: &str, name: &str) -> bool {
        self.is_any_filter(|of, part| {
            group.contains(of) && part.is_none_or(|part| name.contains(part))
        })
    }

    /// Does any filter pass, by its group and its part of a name?
    fn is_any_filter(&self, passes: impl Fn(&str, Option<&str>) -> bool) -> bool {
        let split = |filter: &str| {
            filter.split_once('/').map_or(passes(filter, None), |(of, part)| passes(of, Some(part)))
        };
        self.filter
            .as_deref()
            .is_none_or(|filters| filters.split(',').filter(|filter| !filter.is_empty()).any(split))
    }

    /// The state of the cluster from now on, shown after names.
    pub fn phase(&mut self, phase: &str) {
        self.phase = phase.into();
    }

    /// Number of failures so far, without those of other clones.
    pub fn failures(&self) -> usize {
        self.failures
    }

    /// Other clones have run tests meanwhile: what comes next is timed from now on.
    pub fn goes_on(&mut self) {
        self.last_end = Instant::now();
    }

    fn results(&self) -> MutexGuard<'_, Results> {
        self.results.lock().expect("nobody panics while it notes a result")
    }

    /// Runs a test if it is wanted; a step that later ones need must not be a test of a group that
    /// can be left out.
    ///
    /// # Errors
    /// Only [`Error::Interrupted`]: failures are recorded.
    pub fn case(&mut self, group: &str, name: &str, test: impl FnOnce() -> Outcome) -> Outcome {
        // Steps between phases run always: the filter is asked by those who call for groups.
        let begin = Instant::now();
        match test() {
            Err(Error::Interrupted) => Err(Error::Interrupted),
            outcome => {
                self.record(group, name, outcome, begin.elapsed());
                Ok(())
            }
        }
    }

    /// Notes how a test ended, and prints its line.
    pub fn record(&mut self, group: &str, name: &str, outcome: Outcome, took: Duration) {
        let phase =
            if self.phase.is_empty() { String::new() } else { format!(" [{}]", self.phase) };
        let now = Instant::now();
        let spent = now - std::mem::replace(&mut self.last_end, now);
        let mut results = self.results();
        results.spend(group, spent);
        let passed = results.record(group, name, &phase, outcome, took);
        drop(results);
        self.failures += usize::from(!passed);
    }

    /// Prints the summary.
    ///
    /// # Errors
    /// When something failed.
    pub fn finish(self) -> Outcome {
        let mut results = self.results();
        let spent: Vec<String> = results
            .spent
            .iter()
            .map(|(group, time)| format!("{group} {:.0}", time.as_secs_f64()))
            .collect();
        println!("seconds by group: {}", spent.join(", "));
        if self.filter.is_none() && results.failed.iter().all(|f| !f.starts_with("xtask:")) {
            for known in results.known.clone().iter().filter(|k| !k.met) {
                let gone = fail(
                    "listed in xtask/known-failures.toml, but no test of that name was run: take it out",
                );
                results.known.retain(|k| !(k.program == known.program && k.test == known.test));
                results.record(&known.program, &known.test, "", gone, Duration::ZERO);
            }
        }
        for line in &results.failed {
            println!("FAILED  {line}");
        }
        println!("{} passed, {} failed", results.passed, results.failed.len());
        if results.failed.is_empty() && results.passed > 0 {
            Ok(())
        } else if results.failed.is_empty() {
            fail("no test has that name; `cargo xtask test --help` lists the groups")
        } else {
            fail(format!("{} tests failed", results.failed.len()))
        }
    }
}

impl Results {
    /// False: it counts as failed.
    fn record(
        &mut self,
        group: &str,
        name: &str,
        phase: &str,
        outcome: Outcome,
        took: Duration,
    ) -> bool {
        let failed_before = self.failed.len();
        let known = self.known.iter_mut().find(|k| k.program == group && k.test == name);
        let line = format!("{group}: {name}{phase}");
        match (outcome, known) {
            (Ok(()), None) => {
                self.passed += 1;
                println!("ok      {line} ({:.1} s)", took.as_secs_f64());
            }
            (Ok(()), Some(known)) => {
                known.met = true;
                println!(
                    "FAILED  {line}\n    it passes now: take it out of xtask/known-failures.toml"
                );
                self.failed.push(line);
            }
            (Err(_), Some(known)) => {
                known.met = true;
                println!("known   {line}: {}", known.reason);
            }
            (Err(error), None) => {
                println!("FAILED  {line} ({:.1} s)", took.as_secs_f64());
                for words in error.to_string().lines().take(40) {
                    println!("    {words}");
                }
                self.failed.push(line);
            }
        }
        self.failed.len() == failed_before
    }

    fn spend(&mut self, group: &str, time: Duration) {
        match self.spent.iter_mut().find(|(name, _)| name == group) {
            Some((_, sum)) => *sum += time,
            None => self.spent.push((group.to_owned(), time)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(filter: Option<&str>, known: &str) -> Outcome<Report> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("known.toml");
        std::fs::write(&path, known).unwrap();
        Report::new(filter.map(Into::into), &path)
    }

    const ONE: &str = "[[failure]]\nprogram = \"p\"\ntest = \"t\"\nreason = \"because\"\n";

    #[test]
    fn a_known_failure_is_no_failure_but_its_passing_is() {
        let mut failing = report(None, ONE).unwrap();
        failing.record("p", "t", fail("x"), Duration::ZERO);
        failing.record("p", "other", Ok(()), Duration::ZERO);
        assert!(failing.finish().is_ok());
        let mut passing = report(None, ONE).unwrap();
        passing.record("p", "t", Ok(()), Duration::ZERO);
        assert!(passing.finish().is_err());
    }

    #[test]
    fn a_listed_test_that_is_gone_fails_a_complete_run_only() {
        for (filter, ok) in [(None, false), (Some("p"), true)] {
            let mut report = report(filter, ONE).unwrap();
            report.record("p", "other", Ok(()), Duration::ZERO);
            assert_eq!(report.finish().is_ok(), ok);
        }
    }

    #[test]
    fn a_reason_is_required() {
        assert!(report(None, &ONE.replace("because", " ")).is_err());
        assert!(report(None, "[[failure]]\nprogram = \"p\"\n").is_err());
    }

    #[test]
    fn filters_choose_groups_and_names() {
        let report = report(Some("fio/rand"), "").unwrap();
        assert!(report.wants("fio") && !report.wants("git"));
        assert!(report.wants_test("fio", "randwrite") && !report.wants_test("fio", "write"));
        let report = self::report(Some("kill,,fio/rand,"), "").unwrap();
        assert!(report.wants("kill") && report.wants("fio") && !report.wants("git"));
        assert!(
            report.wants_test("kill", "any")
                && report.wants_test("fio", "rand")
                && !report.wants_test("fio", "any")
        );
    }
}
