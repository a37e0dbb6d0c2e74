//! Where a run comes from: command, commit, machine, versions; and the directory that its report
//! goes to.

use crate::workspace;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Kept as `run.json`.
#[derive(Clone, Debug, Serialize)]
pub struct Origin {
    /// Name of the run.
    pub name: String,
    /// The command line.
    pub command: String,
    /// The commit, shortened, with a note if files differed from it.
    pub commit: String,
    /// Cores, memory, kernel.
    pub machine: String,
    /// What the data lies on.
    pub disk: String,
    /// Version of fio.
    pub fio: String,
    /// Load average over a minute when the run began.
    pub load_before: f64,
    /// When it began, UTC.
    pub begun: String,
}

impl Origin {
    /// Asks the system; what it does not tell is "unknown".
    pub fn look(name: &str, command: &str, work: &Path) -> Origin {
        let git =
            |words: &[&str]| output(Command::new("git").current_dir(workspace::root()).args(words));
        let changed = git(&["status", "--porcelain", "--untracked-files=no"])
            .is_some_and(|text| !text.is_empty());
        let commit = git(&["rev-parse", "--short=10", "HEAD"]).unwrap_or_else(unknown);
        Origin {
            name: name.to_owned(),
            command: command.to_owned(),
            commit: commit + if changed { " with uncommitted changes" } else { "" },
            machine: machine(),
            disk: output(
                Command::new("findmnt").args(["-no", "FSTYPE,SOURCE", "--target"]).arg(work),
            )
            .map_or_else(unknown, |text| text.split_whitespace().collect::<Vec<_>>().join(" on ")),
            fio: output(Command::new("fio").arg("--version")).unwrap_or_else(unknown),
            load_before: load_average(),
            begun: utc("%Y-%m-%d %H:%M"),
        }
    }
}

/// Load average over a minute; 0 where it is not known.
pub fn load_average() -> f64 {
    read("/proc/loadavg").split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(0.0)
}

/// A directory for a run: `<date>-<name>`, with a number behind it if there is one already.
pub fn free_dir(base: &Path, name: &str) -> PathBuf {
    let stem = format!("{}-{name}", utc("%Y-%m-%d"));
    let numbered = (2..).map(|n| base.join(format!("{stem}-{n}")));
    std::iter::once(base.join(&stem))
        .chain(numbered)
        .find(|dir| !dir.exists())
        .unwrap_or_else(|| base.join(&stem))
}

fn machine() -> String {
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let memory = read("/proc/meminfo");
    let kib = memory
        .lines()
        .find_map(|l| l.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (model, gib) = (model.map_or("unknown", |(_, name)| name), kib.unwrap_or(0) >> 20);
    format!(
        "{cores} cores ({model}), {gib} GiB, kernel {}",
        read("/proc/sys/kernel/osrelease").trim()
    )
}

fn utc(format: &str) -> String {
    output(Command::new("date").args(["-u", &format!("+{format}")])).unwrap_or_else(unknown)
}

fn output(command: &mut Command) -> Option<String> {
    let out = command.output().ok()?;
    out.status.success().then(|| String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn unknown() -> String {
    "unknown".into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_run_of_a_day_gets_a_number() {
        let base = tempfile::tempdir().unwrap();
        let first = free_dir(base.path(), "quick");
        std::fs::create_dir(&first).unwrap();
        let second = free_dir(base.path(), "quick");
        assert_eq!(second.display().to_string(), format!("{}-2", first.display()));
    }
}
