//! Runs the load of a cell on one system, and returns what it measured.
//!
//! Contract: dirty data of what ran before is on the disk before a load starts, and every load ends
//! within a deadline. [`Loads::rest`] after a load keeps what a system puts off out of the next
//! one's.

use super::cells::{FioJob, NameCall, Sizes, TreeCall};
use super::cpu::{Group, Meter, resident_mib};
use super::fio::{self, Files};
use super::locks;
use super::names;
use super::sample::{Measured, Metrics};
use super::system::System;
use crate::error::{Context, Outcome, ensure};
use crate::testrun::Bench;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// What each load of a block may take beyond the time that it is told to run: systems of others do
/// 200 files a second.
const LOAD_SECONDS_MAX: u64 = 600;
/// Writing back what is dirty.
const SYNC_SECONDS_MAX: u64 = 300;
/// A system is at rest when its processes use less than this part of a core, over so long a time.
const REST_PART: f64 = 0.1;
const REST_WINDOW: Duration = Duration::from_millis(300);
/// A system that is not at rest by then is left as it is.
const REST_MAX: Duration = Duration::from_secs(60);
/// Prints how long its arguments ran, in seconds.
const TIMED: &str =
    r#"begin=$EPOCHREALTIME; "$@" >/dev/null || exit; echo "$begin $EPOCHREALTIME""#;

/// What loads need to know.
pub struct Loads<'a> {
    /// Runs programs.
    pub bench: &'a Bench,
    /// How large.
    pub sizes: Sizes,
    /// The tree's archive, and entries in it.
    pub archive: Option<(PathBuf, u64)>,
    /// Ask systems how their locks were used.
    pub locks: bool,
}

impl Loads<'_> {
    /// Waits until a system has done what it puts off, which must not take CPU from whatever is
    /// measured next: CephFS deletes the data of removed files for seconds.
    ///
    /// # Errors
    /// On Ctrl-C, or when the kernel does not tell.
    pub fn rest(&self, system: &dyn System) -> Outcome {
        let end = Instant::now() + REST_MAX;
        loop {
            let processes = system.processes();
            if processes.is_empty() {
                return Ok(());
            }
            let meter = Meter::start(&processes)?;
            self.bench.interrupt.sleep(REST_WINDOW)?;
            let used = meter.stop(1.0)?;
            let busy = used["cpu_client_us"] + used["cpu_daemons_us"];
            if busy < REST_WINDOW.as_micros() as f64 * REST_PART || Instant::now() > end {
                return Ok(());
            }
        }
    }

    /// Files of the one mount's jobs.
    pub fn files(&self) -> Files {
        Files { prefix: "f", count: 4, mib: self.sizes.file_mib }
    }

    /// Writes files that fio's jobs will use.
    ///
    /// # Errors
    /// When fio cannot.
    pub fn prepare(&self, area: &Path, files: Files) -> Outcome {
        let mut command = Command::new("fio");
        self.bench
            .run(command.args(fio::prepare(&area.display().to_string(), files)), LOAD_SECONDS_MAX)
            .map(drop)
    }

    /// Reads files that fio's jobs will use, so that they are cached wherever the system caches.
    ///
    /// # Errors
    /// When one cannot be read.
    pub fn warm(&self, area: &Path, files: Files) -> Outcome {
        let mut command = Command::new("bash");
        command.args(["-c", "cat \"$@\" > /dev/null", "bash"]).args(files.paths(area));
        self.bench.run(&mut command, LOAD_SECONDS_MAX).map(drop)
    }

    /// fio with each job's directory in turn.
    ///
    /// # Errors
    /// When it fails or does nothing.
    pub fn fio(
        &self,
        system: &dyn System,
        job: &FioJob,
        mounts: &[PathBuf],
        files: Files,
    ) -> Outcome<Measured> {
        let seconds = self.sizes.seconds;
        let mut command = Command::new("fio");
        command.args(fio::arguments(job, mounts, files, seconds));
        self.measured(system, &mut command, seconds, |output| fio::parse(output, job))
    }

    /// dd of a file of the area, written or read.
    ///
    /// # Errors
    /// When it fails.
    pub fn dd(&self, system: &dyn System, write: bool) -> Outcome<Measured> {
        let (file, mib) = (system.area().join("dd"), self.sizes.dd_mib);
        let (from, to) =
            if write { (Path::new("/dev/zero"), &*file) } else { (&*file, Path::new("/dev/null")) };
        let mut words =
            vec![format!("if={}", from.display()), format!("of={}", to.display()), "bs=1M".into()];
        words.push(format!("count={mib}"));
        words.extend(write.then(|| "conv=fsync".to_owned()));
        if !write {
            self.drop_caches()?;
        }
        let mib = mib as f64;
        self.timed(system, "dd", &words, |seconds| {
            let megabytes = mib * 1.048_576;
            (Metrics::from([("mb_per_s".to_owned(), megabytes / seconds)]), megabytes)
        })
    }

    /// A call on each name of a directory.
    ///
    /// # Errors
    /// When a call fails.
    pub fn names(&self, system: &dyn System, dir: &Path, call: NameCall) -> Outcome<Measured> {
        if matches!(call, NameCall::Stat | NameCall::Readdir) {
            self.drop_caches()?;
        }
        let words = names::arguments(call, dir, self.sizes.names);
        let mut command = self.bench.xtask(&words.iter().map(String::as_str).collect::<Vec<_>>());
        let count = self.sizes.names as f64;
        self.measured(system, &mut command, 0, |output| Ok((names::parse(output)?, count)))
    }

    /// A step over the tree in a directory.
    ///
    /// # Errors
    /// When a program fails.
    pub fn tree(&self, system: &dyn System, dir: &Path, call: TreeCall) -> Outcome<Measured> {
        let (archive, entries) =
            self.archive.as_ref().ok_or("no tree was packed").doing(|| "tree")?;
        let (dir, archive, entries) =
            (dir.display().to_string(), archive.display().to_string(), *entries as f64);
        let (program, words) = match call {
            TreeCall::Extract => ("tar", vec!["-xf".into(), archive, "-C".into(), dir]),
            TreeCall::List => ("ls", vec!["-lR".into(), dir]),
            TreeCall::Remove => ("rm", vec!["-rf".into(), dir]),
        };
        if call == TreeCall::List {
            self.drop_caches()?;
        }
        self.timed(system, program, &words, |seconds| {
            (Metrics::from([("ops_per_s".to_owned(), entries / seconds)]), entries)
        })
    }

    /// Resident memory of the system's processes.
    ///
    /// # Errors
    /// When one that should run is gone.
    pub fn memory(&self, system: &dyn System) -> Outcome<Measured> {
        let mut of = [0.0; 2];
        let mut each = Vec::new();
        for process in system.processes() {
            let mib = resident_mib(process.pid)
                .ok_or("it is gone")
                .doing(|| format!("memory of {}", process.name))?;
            of[usize::from(process.group == Group::Daemons)] += mib;
            each.push((process.name, (mib * 10.0).round() / 10.0));
        }
        let [client, daemons] = of;
        let named =
            [("client_mib", client), ("daemons_mib", daemons), ("total_mib", client + daemons)];
        let metrics = named.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Ok(Measured { metrics, processes_mib: each, ..Measured::default() })
    }

    /// Empties the kernel's caches of data, names and attributes.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn drop_caches(&self) -> Outcome {
        self.shell("sync; echo 3 > /proc/sys/vm/drop_caches")
    }

    /// Removes what a cell has left in an area, if anything.
    pub fn clean(&self, paths: &[PathBuf]) {
        let _ = self.bench.run(Command::new("rm").arg("-rf").args(paths), LOAD_SECONDS_MAX);
    }

    fn shell(&self, line: &str) -> Outcome {
        self.bench.run(Command::new("bash").args(["-ec", line]), SYNC_SECONDS_MAX).map(drop)
    }

    /// A program whose time counts; `numbers` makes metrics and a number of operations of the
    /// seconds.
    fn timed(
        &self,
        system: &dyn System,
        program: &str,
        words: &[String],
        numbers: impl Fn(f64) -> (Metrics, f64),
    ) -> Outcome<Measured> {
        let mut command = Command::new("bash");
        command.env("LC_ALL", "C").args(["-c", TIMED, "bash", program]).args(words);
        self.measured(system, &mut command, 0, |output| Ok(numbers(seconds_of(output)?)))
    }

    /// Runs a load; adds the CPU of each group for each of its operations, and how locks were used.
    fn measured(
        &self,
        system: &dyn System,
        command: &mut Command,
        seconds: u64,
        parse: impl FnOnce(&str) -> Outcome<(Metrics, f64)>,
    ) -> Outcome<Measured> {
        self.shell("sync")?;
        let before = self.locks.then(|| system.locks()).transpose()?.flatten();
        let processes = system.processes();
        let disturbed = system.disturb();
        let meter = Meter::start(&processes)?;
        let run = self.bench.run(command, seconds + LOAD_SECONDS_MAX)?;
        let (mut metrics, operations) = parse(&run.stdout)?;
        metrics.extend(meter.stop(operations)?);
        drop(disturbed);
        let Some(before) = before else { return Ok(metrics.into()) };
        let locks = locks::between(&before, &system.locks()?.unwrap_or_default(), operations);
        Ok(Measured { operations, locks, ..metrics.into() })
    }
}

/// What [`TIMED`] printed.
fn seconds_of(output: &str) -> Outcome<f64> {
    let times: Vec<f64> = output.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let seconds = times.get(1).copied().unwrap_or(0.0) - times.first().copied().unwrap_or(0.0);
    ensure!(
        times.len() == 2 && seconds > 0.0,
        "bash did not print two times but: {}",
        output.trim()
    );
    Ok(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_what_lies_between() {
        assert!((seconds_of("1764000000.250000 1764000001.750000\n").unwrap() - 1.5).abs() < 1e-6);
        assert!(seconds_of("1764000000.250000\n").is_err());
        assert!(seconds_of("").is_err());
    }
}
