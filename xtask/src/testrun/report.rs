//! One line per test, and the summary. Knows which failures are known.
//!
//! Contract: a known failure counts as neither passed nor failed while it fails; it fails the run as soon as it passes,
//! or when no test of its name was met in a complete run: the list can only shrink.

use crate::error::{Context, Error, Outcome, fail};
use serde::Deserialize;
use std::path::Path;
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

/// What has happened so far.
pub struct Report {
    filter: Option<String>,
    known: Vec<Known>,
    phase: String,
    passed: u64,
    failed: Vec<String>,
}

impl Report {
    /// Nothing has happened; the known failures come from a file.
    ///
    /// # Errors
    /// When that file cannot be read or understood.
    pub fn new(filter: Option<String>, known: &Path) -> Outcome<Report> {
        let text = std::fs::read_to_string(known).doing(|| format!("cannot read {}", known.display()))?;
        let file: KnownFile = toml::from_str(&text).doing(|| format!("in {}", known.display()))?;
        if let Some(bare) = file.failure.iter().find(|k| k.reason.trim().is_empty()) {
            return fail(format!("{}: {} {} has no reason", known.display(), bare.program, bare.test));
        }
        Ok(Report { filter, known: file.failure, phase: String::new(), passed: 0, failed: Vec::new() })
    }

    /// Is any test of this group wanted?
    pub fn wants(&self, group: &str) -> bool {
        let part = self.filter.as_deref().map(|f| f.split('/').next().unwrap_or(f));
        part.is_none_or(|p| group.contains(p))
    }

    /// Is this test wanted?
    pub fn wants_test(&self, group: &str, name: &str) -> bool {
        let part = self.filter.as_deref().and_then(|f| f.split_once('/')).map(|(_, n)| n);
        self.wants(group) && part.is_none_or(|p| name.contains(p))
    }

    /// The state of the cluster from now on, shown after names.
    pub fn phase(&mut self, phase: &str) {
        self.phase = phase.into();
    }

    /// Number of failures so far.
    pub fn failures(&self) -> usize {
        self.failed.len()
    }

    /// Runs a test if it is wanted; a step that later ones need must not be a test of a group that can be left out.
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
        let known = self.known.iter_mut().find(|k| k.program == group && k.test == name);
        let phase = if self.phase.is_empty() { String::new() } else { format!(" [{}]", self.phase) };
        let line = format!("{group}: {name}{phase}");
        match (outcome, known) {
            (Ok(()), None) => {
                self.passed += 1;
                println!("ok      {line} ({:.1} s)", took.as_secs_f64());
            }
            (Ok(()), Some(known)) => {
                known.met = true;
                println!("FAILED  {line}\n    it passes now: take it out of xtask/known-failures.toml");
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
    }

    /// Prints the summary.
    ///
    /// # Errors
    /// When something failed.
    pub fn finish(mut self) -> Outcome {
        self.phase.clear();
        if self.filter.is_none() && self.failed.iter().all(|f| !f.starts_with("xtask:")) {
            for known in self.known.clone().iter().filter(|k| !k.met) {
                let gone = fail("listed in xtask/known-failures.toml, but no test of that name was run: take it out");
                self.known.retain(|k| !(k.program == known.program && k.test == known.test));
                self.record(&known.program, &known.test, gone, Duration::ZERO);
            }
        }
        for line in &self.failed {
            println!("FAILED  {line}");
        }
        println!("{} passed, {} failed", self.passed, self.failed.len());
        if self.failed.is_empty() && self.passed > 0 {
            Ok(())
        } else if self.failed.is_empty() {
            fail("no test has that name; `cargo xtask test --help` lists the groups")
        } else {
            fail(format!("{} tests failed", self.failed.len()))
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
    }
}
