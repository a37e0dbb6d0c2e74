//! Formatting, lints, cargo's own tests (unit, property, integration), each of those on a line of
//! its own, and the examples.

use super::report::Report;
use crate::error::{Context, Outcome, fail};
use crate::exec::{self, Interrupt};
use crate::workspace;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Building everything and running all of cargo's tests.
const CARGO_TEST_MAX: Duration = Duration::from_secs(2400);

/// One example; the programs that it may need are built.
const EXAMPLE_MAX: Duration = Duration::from_secs(120);

/// The examples: package and name.
const EXAMPLES: [(&str, &str); 3] =
    [("messenger", "echo"), ("osd-daemon", "objects"), ("fuse-client", "mount_in_a_test")];

/// Runs those that are wanted.
///
/// # Errors
/// Only on Ctrl-C.
pub fn run(report: &mut Report, interrupt: &Interrupt) -> Outcome {
    let cargo = |args: &[&str]| {
        let mut command = Command::new(workspace::cargo());
        command.current_dir(workspace::root()).args(args);
        exec::run_ok(&mut command, CARGO_TEST_MAX, interrupt).map(drop)
    };
    if report.wants("fmt") {
        report.case("fmt", "cargo fmt --check", || cargo(&["fmt", "--all", "--check"]))?;
    }
    if report.wants("clippy") {
        let args = ["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"];
        report.case("clippy", "cargo clippy, warnings denied", || cargo(&args))?;
    }
    if report.wants("cargo") {
        cargo_test(report, interrupt)?;
    }
    if report.wants("examples") {
        examples(report, interrupt)?;
    }
    Ok(())
}

/// Each example as a reader would run it.
fn examples(report: &mut Report, interrupt: &Interrupt) -> Outcome {
    let binaries = workspace::build(workspace::Profile::Dev, interrupt)?;
    for (package, name) in EXAMPLES {
        report.case("examples", &format!("{package}: {name}"), || {
            let mut build = Command::new(workspace::cargo());
            build.current_dir(workspace::root()).args([
                "build",
                "--quiet",
                "-p",
                package,
                "--example",
                name,
            ]);
            exec::run_ok(&mut build, CARGO_TEST_MAX, interrupt)?;
            exec::run_ok(
                &mut Command::new(binaries.join("examples").join(name)),
                EXAMPLE_MAX,
                interrupt,
            )
            .map(drop)
        })?;
    }
    Ok(())
}

/// `cargo test --workspace`, read line by line.
fn cargo_test(report: &mut Report, interrupt: &Interrupt) -> Outcome {
    let begin = Instant::now();
    let mut command = Command::new(workspace::cargo());
    command.current_dir(workspace::root()).args(["test", "--workspace", "--no-fail-fast"]);
    // One stream in the order of writing: the names of test programs come on stderr, results on
    // stdout.
    let (reader, writer) = std::io::pipe().doing(|| "cannot make a pipe")?;
    let other = writer.try_clone().doing(|| "cannot share a pipe")?;
    command.stdin(Stdio::null()).stdout(writer).stderr(other);
    let mut child = exec::spawn(&mut command, "cargo test")?;
    drop(command);
    let (lines, received) = mpsc::channel();
    std::thread::spawn(move || {
        BufReader::new(reader).lines().map_while(Result::ok).try_for_each(|line| lines.send(line))
    });
    let mut results = Results::default();
    loop {
        match received.recv_timeout(Duration::from_millis(100)) {
            Ok(line) => results.line(&line, report),
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
        if interrupt.check().is_err() || begin.elapsed() > CARGO_TEST_MAX {
            exec::kill_group(&mut child);
            interrupt.check()?;
        }
    }
    let status = exec::wait(&mut child, "cargo test", Duration::from_secs(60), interrupt)?;
    for (name, output) in results.finish() {
        report.record("cargo", &name, fail(output), Duration::ZERO);
    }
    if !status.success() && results.failed == 0 {
        let words = format!("cargo test: {}\n{}", exec::how(status), results.last.join("\n"));
        report.record("cargo", "cargo test --workspace", fail(words), begin.elapsed());
    }
    Ok(())
}

/// What libtest has said so far.
#[derive(Default)]
struct Results {
    program: String,
    /// Tests that failed, whose output comes later.
    pending: BTreeMap<String, String>,
    /// The test whose output is being printed.
    section: Option<String>,
    failed: usize,
    last: Vec<String>,
}

impl Results {
    fn line(&mut self, line: &str, report: &mut Report) {
        let trimmed = line.trim();
        self.last.push(line.to_owned());
        if self.last.len() > 60 {
            self.last.remove(0);
        }
        if let Some(program) = program_of(trimmed) {
            self.program = program;
            self.section = None;
        } else if let Some((name, verdict)) = verdict_of(line) {
            let name = format!("{} {name}", self.program);
            match verdict {
                "ok" => report.record("cargo", &name, Ok(()), Duration::ZERO),
                "FAILED" => {
                    self.failed += 1;
                    self.pending.insert(name, String::new());
                }
                other => println!("{other:7} cargo: {name}"),
            }
        } else if let Some(name) =
            trimmed.strip_prefix("---- ").and_then(|l| l.strip_suffix(" stdout ----"))
        {
            self.section = Some(format!("{} {name}", self.program));
        } else if trimmed == "failures:" {
            self.section = None;
        } else if let Some(output) =
            self.section.as_ref().and_then(|name| self.pending.get_mut(name))
        {
            output.push_str(line);
            output.push('\n');
        }
    }

    /// The failed tests with their output.
    fn finish(&mut self) -> BTreeMap<String, String> {
        std::mem::take(&mut self.pending)
    }
}

/// "Running unittests src/lib.rs (target/debug/deps/placement-0123)" or "Doc-tests placement".
fn program_of(line: &str) -> Option<String> {
    if let Some(name) = line.strip_prefix("Doc-tests ") {
        return Some(format!("{name} (documentation)"));
    }
    let (_, path) = line.strip_prefix("Running ")?.rsplit_once('(')?;
    let file = path.trim_end_matches(')').rsplit('/').next()?;
    Some(file.rsplit_once('-').map_or(file, |(name, _)| name).to_owned())
}

/// "test a::b ... ok", also when the test was noted as slow in between.
fn verdict_of(line: &str) -> Option<(&str, &str)> {
    let (name, verdict) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let word = verdict.split([',', ' ']).next()?;
    matches!(word, "ok" | "FAILED" | "ignored")
        .then_some((name.trim_end_matches(" - should panic"), word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_libtest_are_understood() {
        let running = "Running unittests src/lib.rs (target/debug/deps/ec_store-0a1b)";
        assert_eq!(program_of(running), Some("ec_store".into()));
        assert_eq!(program_of("Doc-tests messenger"), Some("messenger (documentation)".into()));
        assert_eq!(verdict_of("test a::b ... ok"), Some(("a::b", "ok")));
        assert_eq!(verdict_of("test a::b ... ignored, too slow"), Some(("a::b", "ignored")));
        assert_eq!(verdict_of("test result: ok. 3 passed"), None);
    }
}
