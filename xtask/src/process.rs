//! Daemons that outlive the command that started them: a session of their own, a log, a pid file.
//!
//! Contract: a pid from a file is trusted only when that process's command line names the directory
//! that the file belongs to, so that a pid used again by the system is never signalled.

use crate::error::{Context, Outcome, ensure, fail};
use crate::exec::{Interrupt, last_lines};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What was killed is gone within this time, or stuck in the kernel.
const GONE_MAX: Duration = Duration::from_secs(10);

/// A daemon of a cluster directory, running or not.
#[derive(Clone, Debug)]
pub struct Daemon {
    /// For messages: `osd-1`.
    pub name: String,
    /// Holds its pid while it should run.
    pub pid_file: PathBuf,
    /// Gets stdout and stderr, appended.
    pub log: PathBuf,
    /// A part of its command line that no other process has.
    pub mark: String,
}

impl Daemon {
    /// Its pid, if it runs.
    pub fn pid(&self) -> Option<Pid> {
        let text = std::fs::read_to_string(&self.pid_file).ok()?;
        let raw: i32 = text.trim().parse().ok()?;
        let command_line = std::fs::read(format!("/proc/{raw}/cmdline")).ok()?;
        // A zombie has an empty command line, and so does not count as running.
        String::from_utf8_lossy(&command_line)
            .contains(&self.mark)
            .then(|| Pid::from_raw(raw))
            .flatten()
    }

    /// Does it run? Looks twice: in the middle of an exec a process has no command line for a
    /// moment.
    pub fn is_alive(&self) -> bool {
        self.pid().is_some() || {
            std::thread::sleep(Duration::from_millis(30));
            self.pid().is_some()
        }
    }

    /// Starts it in a session of its own; returns the place in the log where its output begins.
    ///
    /// # Errors
    /// When it runs already or cannot be started.
    pub fn spawn(&self, command: &mut Command) -> Outcome<u64> {
        if let Some(pid) = self.pid() {
            return fail(format!("{} already runs, as process {pid}", self.name));
        }
        let log = OpenOptions::new().create(true).append(true).open(&self.log);
        let log = log.doing(|| format!("cannot open the log {}", self.log.display()))?;
        let begin = log.metadata().doing(|| "cannot stat the log")?.len();
        let other = log.try_clone().doing(|| "cannot share the log")?;
        command.stdin(Stdio::null()).stdout(log).stderr(other);
        // SAFETY: setsid is async-signal-safe and touches no memory of the parent.
        unsafe { command.pre_exec(|| Ok(rustix::process::setsid().map(drop)?)) };
        let mut child = command.spawn().doing(|| format!("cannot start {}", self.name))?;
        std::fs::write(&self.pid_file, format!("{}\n", child.id()))
            .doing(|| format!("cannot write {}", self.pid_file.display()))?;
        // Reaps it if it ends before we do.
        std::thread::spawn(move || child.wait());
        Ok(begin)
    }

    /// Its output since `begin`.
    pub fn output_since(&self, begin: u64) -> String {
        let mut bytes = Vec::new();
        if let Ok(mut file) = File::open(&self.log) {
            let _ = file.seek(SeekFrom::Start(begin)).and_then(|_| file.read_to_end(&mut bytes));
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits until its output since `begin` satisfies `ready`.
    ///
    /// # Errors
    /// When it dies first (with the end of its log), the deadline passes, or a signal arrives.
    pub fn wait_ready(
        &self,
        begin: u64,
        deadline: Duration,
        interrupt: &Interrupt,
        ready: impl Fn(&str) -> bool,
    ) -> Outcome {
        let end = Instant::now() + deadline;
        loop {
            // In this order: a daemon that gets ready and dies at once still counts as seen.
            let alive = self.is_alive();
            let output = self.output_since(begin);
            if ready(&output) {
                return Ok(());
            }
            ensure!(
                alive,
                "{} ended before it was ready; the end of {}:\n{}",
                self.name,
                self.log.display(),
                last_lines(&output, 20)
            );
            ensure!(
                Instant::now() < end,
                "{} was not ready after {} s; the end of {}:\n{}",
                self.name,
                deadline.as_secs(),
                self.log.display(),
                last_lines(&output, 20)
            );
            interrupt.sleep(Duration::from_millis(10))?;
        }
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// When it does not run.
    pub fn signal(&self, signal: Signal) -> Outcome {
        let Some(pid) = self.pid() else { return fail(format!("{} does not run", self.name)) };
        kill_process(pid, signal).doing(|| format!("cannot signal {}", self.name))
    }

    /// Waits until it is gone.
    pub fn wait_gone(&self, deadline: Duration) -> bool {
        self.wait_end(self.pid(), deadline)
    }

    /// Waits until it is gone, and the process that it was has let go of its files.
    fn wait_end(&self, pid: Option<Pid>, deadline: Duration) -> bool {
        let end = Instant::now() + deadline;
        while self.pid().is_some() || pid.is_some_and(holds_files) {
            if Instant::now() > end {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = std::fs::remove_file(&self.pid_file);
        true
    }

    /// SIGKILL, and waits until it is gone.
    ///
    /// # Errors
    /// When it does not run or does not go.
    pub fn kill(&self) -> Outcome {
        let pid = self.pid();
        self.signal(Signal::KILL)?;
        ensure!(
            self.wait_end(pid, GONE_MAX),
            "{} is stuck in the kernel and cannot be killed",
            self.name
        );
        Ok(())
    }

    /// SIGTERM, and waits for a clean end.
    ///
    /// # Errors
    /// When it does not run, or does not stop in time; it is left running then.
    pub fn stop(&self, deadline: Duration) -> Outcome {
        let pid = self.pid();
        self.signal(Signal::TERM)?;
        ensure!(
            self.wait_end(pid, deadline),
            "{} did not stop within {} s of SIGTERM; see {}",
            self.name,
            deadline.as_secs(),
            self.log.display()
        );
        Ok(())
    }
}

/// The most that a daemon has held resident since it started, in bytes.
///
/// # Errors
/// When it does not run any more.
pub fn most_resident(daemon: &Daemon) -> Outcome<u64> {
    let Some(pid) = daemon.pid() else { return fail(format!("{} has ended", daemon.name)) };
    let path = format!("/proc/{}/status", pid.as_raw_nonzero());
    let status = std::fs::read_to_string(&path).doing(|| format!("cannot read {path}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line
        .and_then(|text| text.trim().strip_suffix(" kB"))
        .and_then(|text| text.parse::<u64>().ok());
    kib.map_or_else(|| fail(format!("{path} has no VmHWM")), |kib| Ok(kib << 10))
}

/// Processes whose program's name begins so, and whose command line has all of these marks.
pub fn find(program: &str, marks: &[&str]) -> Vec<Pid> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let number = |entry: std::fs::DirEntry| entry.file_name().to_string_lossy().parse::<i32>().ok();
    let is_wanted = |raw: &i32| {
        let name = std::fs::read_to_string(format!("/proc/{raw}/comm")).unwrap_or_default();
        let line = std::fs::read(format!("/proc/{raw}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        name.starts_with(program) && marks.iter().all(|mark| line.contains(mark))
    };
    processes.filter_map(number).filter(is_wanted).filter_map(Pid::from_raw).collect()
}

/// SIGKILL to everything whose program's name begins so and whose command line has something below
/// this directory. Waits until it is gone: what still runs may put files into a directory that is
/// removed.
pub fn end_all(program: &str, dir: &Path) {
    let end = Instant::now() + GONE_MAX;
    loop {
        let left = find(program, &[&below(dir)]);
        if left.is_empty() || Instant::now() > end {
            return;
        }
        for pid in left {
            let _ = kill_process(pid, Signal::KILL);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What stands in the command line of every process that works below this directory, and of no
/// other.
pub fn below(dir: &Path) -> String {
    format!("{}/", dir.display())
}

/// Does a process that is dying still have threads that may hold its files and locks? Its command
/// line goes before them.
fn holds_files(pid: Pid) -> bool {
    let proc = Path::new("/proc").join(pid.as_raw_nonzero().to_string());
    let threads = std::fs::read_dir(proc.join("task")).map_or(0, Iterator::count);
    let stat = std::fs::read_to_string(proc.join("stat")).unwrap_or_default();
    // The state stands behind the name, which is in parentheses and may hold anything.
    let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
    threads > 1 || state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}
