//! One daemon slowed: stopped most of the time, and running in between, so that what it is asked
//! waits for its next turn.
//!
//! Contract: works on every Linux, with no privilege but that over one's own processes; the daemon
//! runs again once the [`Slowed`] is gone. It never stands still for as long as the grace after
//! which the others count a daemon as dead.

use crate::process::Daemon;
use rustix::process::Signal;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Of the time that it is stopped, this part it runs in between.
const RUNS_PART: u32 = 4;

/// How much a daemon is slowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slow {
    /// How long it stands still at a time.
    pub stopped: Duration,
}

impl Slow {
    /// How long it runs in between.
    fn runs(self) -> Duration {
        (self.stopped / RUNS_PART).max(Duration::from_millis(1))
    }

    /// In words, for the report.
    pub fn words(self) -> String {
        let (stopped, runs) = (self.stopped.as_millis(), self.runs().as_millis());
        format!(
            "osd-{} of each cluster was slowed while a cell ran on it: stopped (SIGSTOP) for {stopped} ms, running for {runs} ms, in turns",
            super::VICTIM
        )
    }

    /// Begins to slow a daemon.
    pub fn begin(self, daemon: Daemon) -> Slowed {
        let (end, ended) = channel();
        let thread = std::thread::spawn(move || take_turns(self, &daemon, &ended));
        Slowed { end: Some(end), thread: Some(thread) }
    }
}

/// A daemon that is slowed until this is dropped.
#[derive(Debug)]
pub struct Slowed {
    /// Nothing is ever sent: that it is gone is the message.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Slowed {
    fn drop(&mut self) {
        self.end.take();
        // It only signals and sleeps: there is nothing that could panic.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A daemon that has died needs no signal.
fn take_turns(slow: Slow, daemon: &Daemon, ended: &Receiver<()>) {
    let goes_on = |time| matches!(ended.recv_timeout(time), Err(RecvTimeoutError::Timeout));
    loop {
        let _ = daemon.signal(Signal::STOP);
        let more = goes_on(slow.stopped);
        let _ = daemon.signal(Signal::CONT);
        if !more || !goes_on(slow.runs()) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::Instant;

    /// The state letter of a process.
    fn state(pid: u32) -> char {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit(") ").next().unwrap().chars().next().unwrap()
    }

    #[test]
    fn a_slowed_process_stands_still_at_times_and_runs_in_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let daemon = Daemon {
            name: "sleeper".into(),
            pid_file: dir.path().join("pid"),
            log: dir.path().join("log"),
            mark: "98765.4321".into(),
        };
        daemon.spawn(Command::new("sleep").arg("98765.4321")).unwrap();
        let end = Instant::now() + Duration::from_secs(10);
        while daemon.pid().is_none() {
            assert!(Instant::now() < end, "it does not run");
        }
        let pid = daemon.pid().unwrap().as_raw_nonzero().get().unsigned_abs();
        let slowed = Slow { stopped: Duration::from_millis(4) }.begin(daemon.clone());
        let mut seen = [false; 2];
        while seen != [true; 2] {
            seen[usize::from(state(pid) == 'T')] = true;
            assert!(Instant::now() < end, "stopped or running was never seen: {seen:?}");
        }
        drop(slowed);
        assert_ne!(state(pid), 'T');
        daemon.kill().unwrap();
    }
}
