//! Runs other programs: each with a deadline, each killed with all its children when that passes or
//! on Ctrl-C.

use crate::error::{Context, Error, Outcome, fail};
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// For builds, whose time depends on the machine.
pub const NO_DEADLINE: Duration = Duration::from_secs(24 * 3600);

/// Whether Ctrl-C or SIGTERM has arrived.
#[derive(Clone)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Catches SIGINT, SIGTERM and SIGHUP from now on.
    ///
    /// # Errors
    /// When the system refuses handlers.
    pub fn install() -> Outcome<Interrupt> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in
            [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP]
        {
            signal_hook::flag::register(signal, flag.clone()).doing(|| "cannot catch signals")?;
        }
        Ok(Interrupt(flag))
    }

    /// One that no signal sets: for cleaning up.
    pub fn never() -> Interrupt {
        Interrupt(Arc::new(AtomicBool::new(false)))
    }

    /// # Errors
    /// [`Error::Interrupted`] once a signal has arrived.
    pub fn check(&self) -> Outcome {
        if self.0.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Sleeps, unless a signal arrives.
    ///
    /// # Errors
    /// [`Error::Interrupted`] once a signal has arrived.
    pub fn sleep(&self, time: Duration) -> Outcome {
        let end = Instant::now() + time;
        loop {
            self.check()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
    }
}

/// How a program ended.
pub struct Run {
    /// Its exit status.
    pub status: ExitStatus,
    /// What it wrote to stdout.
    pub stdout: String,
    /// What it wrote to stderr.
    pub stderr: String,
}

impl Run {
    /// Exit status 0.
    pub fn ok(&self) -> bool {
        self.status.success()
    }

    /// The last lines of both outputs, for an error message.
    pub fn tail(&self) -> String {
        let both = format!("{}\n{}", self.stdout.trim_end(), self.stderr.trim_end());
        last_lines(&both, 15)
    }
}

/// The last `n` lines that are not empty.
pub fn last_lines(text: &str, n: usize) -> String {
    let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(n)..].join("\n")
}

/// Runs a program to its end and keeps its output. Its exit status is the caller's to judge.
///
/// # Errors
/// When it cannot be started, passes the deadline, or a signal arrives.
pub fn run(command: &mut Command, deadline: Duration, interrupt: &Interrupt) -> Outcome<Run> {
    let name = describe(command);
    // Files, not pipes: a daemon left behind by the program must not keep us reading.
    let temporary = || tempfile::tempfile().doing(|| "cannot make a temporary file");
    let (mut out, mut err) = (temporary()?, temporary()?);
    let handle = |f: &File| f.try_clone().doing(|| "cannot share a temporary file");
    command.stdin(Stdio::null()).stdout(handle(&out)?).stderr(handle(&err)?);
    let mut child = spawn(command, &name)?;
    let status = wait(&mut child, &name, deadline, interrupt);
    let (stdout, stderr) = (contents(&mut out), contents(&mut err));
    match status {
        Ok(status) => Ok(Run { status, stdout, stderr }),
        Err(Error::Failed(message)) => fail(
            format!("{message}\n{}", last_lines(&format!("{stdout}\n{stderr}"), 15)).trim_end(),
        ),
        Err(interrupted) => Err(interrupted),
    }
}

/// As [`run`], and a non-zero exit status is an error that shows the end of the output.
///
/// # Errors
/// Those of [`run`], and a non-zero exit status.
pub fn run_ok(command: &mut Command, deadline: Duration, interrupt: &Interrupt) -> Outcome<Run> {
    let name = describe(command);
    let run = run(command, deadline, interrupt)?;
    if run.ok() { Ok(run) } else { fail(format!("`{name}`: {}\n{}", how(run.status), run.tail())) }
}

/// Runs a program whose output belongs on the terminal.
///
/// # Errors
/// When it cannot be started, fails, passes the deadline, or a signal arrives.
pub fn run_visible(command: &mut Command, deadline: Duration, interrupt: &Interrupt) -> Outcome {
    let name = describe(command);
    command.stdin(Stdio::null());
    let mut child = spawn(command, &name)?;
    let status = wait(&mut child, &name, deadline, interrupt)?;
    if status.success() { Ok(()) } else { fail(format!("`{name}`: {}", how(status))) }
}

/// Starts a program as the head of a process group, so that it can be killed with its children.
///
/// # Errors
/// When it cannot be started.
pub fn spawn(command: &mut Command, name: &str) -> Outcome<Child> {
    command.process_group(0).spawn().doing(|| format!("cannot run `{name}`"))
}

/// Waits for the end of a program, at most until the deadline.
///
/// # Errors
/// When the deadline passes or a signal arrives; the program is dead then.
pub fn wait(
    child: &mut Child,
    name: &str,
    deadline: Duration,
    interrupt: &Interrupt,
) -> Outcome<ExitStatus> {
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait().doing(|| format!("cannot wait for `{name}`"))? {
            return Ok(status);
        }
        let verdict = match interrupt.check() {
            Ok(()) if start.elapsed() < deadline => None,
            Ok(()) => Some(fail(format!(
                "`{name}` was still running after {} s and was killed",
                deadline.as_secs()
            ))),
            Err(interrupted) => Some(Err(interrupted)),
        };
        if let Some(verdict) = verdict {
            kill_group(child);
            return verdict;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// SIGKILL to a program and its children, and waits for it a moment: one stuck in the kernel is
/// left alone.
pub fn kill_group(child: &mut Child) {
    if matches!(child.try_wait(), Ok(Some(_))) {
        return;
    }
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    let end = Instant::now() + Duration::from_secs(3);
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// An exit status in words.
pub fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => "ended".into(),
    }
}

fn contents(file: &mut File) -> String {
    let mut bytes = Vec::new();
    let _ = file.rewind().and_then(|()| file.read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Program and arguments, shortened.
fn describe(command: &Command) -> String {
    let program = command.get_program().to_string_lossy();
    let mut words = vec![program.rsplit('/').next().unwrap_or(&program).to_owned()];
    words.extend(command.get_args().map(|a| a.to_string_lossy().into_owned()));
    let text = words.join(" ");
    let line = text.lines().next().unwrap_or_default();
    if line.len() < text.len() || text.chars().count() > 160 {
        format!("{}...", line.chars().take(157).collect::<String>())
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_and_status_are_kept() {
        let run = run(
            Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"]),
            NO_DEADLINE,
            &Interrupt::never(),
        );
        let run = run.unwrap();
        assert_eq!(
            (run.stdout.as_str(), run.stderr.as_str(), run.status.code()),
            ("out\n", "err\n", Some(3))
        );
    }

    #[test]
    fn deadline_kills_the_children_too() {
        let error = run_ok(
            Command::new("sh").args(["-c", "sleep 1000 & sleep 1000"]),
            Duration::from_millis(100),
            &Interrupt::never(),
        );
        assert!(error.err().unwrap().to_string().contains("was still running"));
    }

    #[test]
    fn a_signal_ends_the_wait() {
        let flag = Interrupt::never();
        flag.0.store(true, Ordering::Relaxed);
        let error = run(Command::new("sleep").arg("1000"), NO_DEADLINE, &flag);
        assert!(matches!(error, Err(Error::Interrupted)));
    }
}
