//! What a report must say of the machine, the commit and the time; and CPU times of threads.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// The machine and the code.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Machine {
    /// The commit, shortened.
    pub commit: String,
    /// Whether files of the repository differed from the commit.
    pub modified: bool,
    /// Model of the CPU.
    pub cpu: String,
    /// How many threads can run at once.
    pub cores: usize,
    /// Its release.
    pub kernel: String,
    /// Memory in GiB.
    pub memory_gib: u64,
    /// Load average over a minute when the run began.
    pub load_before: f64,
}

impl Machine {
    /// Asks the system; what it does not say is "unknown" or 0.
    pub fn look() -> Machine {
        let cpuinfo = read("/proc/cpuinfo");
        let model =
            cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let memory = read("/proc/meminfo");
        let kib = memory
            .lines()
            .find_map(|l| l.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse().ok());
        Machine {
            commit: git(&["rev-parse", "--short=10", "HEAD"]).unwrap_or_else(|| "unknown".into()),
            modified: git(&["status", "--porcelain", "--untracked-files=no"])
                .is_some_and(|text| !text.is_empty()),
            cpu: model.map_or("unknown", |(_, name)| name).to_owned(),
            cores: std::thread::available_parallelism().map_or(1, |n| n.get()),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            memory_gib: kib.unwrap_or(0u64) >> 20,
            load_before: load_average(),
        }
    }

    /// In one line.
    pub fn words(&self) -> String {
        format!(
            "{} cores ({}), {} GiB, kernel {}",
            self.cores, self.cpu, self.memory_gib, self.kernel
        )
    }
}

/// The load average over a minute.
pub fn load_average() -> f64 {
    read("/proc/loadavg").split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(0.0)
}

/// Today in UTC, as 2026-11-21.
pub fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (year, month, day) = civil(seconds / 86400);
    format!("{year:04}-{month:02}-{day:02}")
}

/// CPU time in nanoseconds that each worker of a runtime has used, by the names of its threads; 0
/// where it is not known.
pub fn thread_cpu_ns(runtime: &str, workers: usize) -> Vec<u64> {
    let mut used = vec![0; workers];
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return used };
    for thread in threads.flatten() {
        let name = fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
        let index = name
            .trim()
            .strip_prefix(runtime)
            .and_then(|rest| rest.strip_prefix('-')?.parse::<usize>().ok());
        let Some(slot) = index.and_then(|index| used.get_mut(index)) else { continue };
        *slot = used_ns(&thread.path()).unwrap_or(0);
    }
    used
}

/// CPU time in nanoseconds that all threads of a process have used; 0 if it is gone.
pub fn process_cpu_ns(pid: u32) -> u64 {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return 0 };
    threads.flatten().filter_map(|thread| used_ns(&thread.path())).sum()
}

fn used_ns(thread: &Path) -> Option<u64> {
    fs::read_to_string(thread.join("schedstat")).ok()?.split(' ').next()?.parse().ok()
}

/// A directory for a run: `<date>-<name>`, with a number behind it if there is one already.
pub fn free_dir(base: &Path, name: &str) -> PathBuf {
    let stem = format!("{}-{name}", today());
    let numbered = (2..).map(|n| base.join(format!("{stem}-{n}")));
    std::iter::once(base.join(&stem))
        .chain(numbered)
        .find(|dir| !dir.exists())
        .unwrap_or_else(|| base.join(&stem))
}

/// 4096 as "4K".
pub fn size_name(bytes: u64) -> String {
    match bytes {
        0 => "0".into(),
        n if n.is_multiple_of(1 << 20) => format!("{}M", n >> 20),
        n if n.is_multiple_of(1 << 10) => format!("{}K", n >> 10),
        n => n.to_string(),
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_else(|_| "unknown".into())
}

fn git(args: &[&str]) -> Option<String> {
    let out =
        Command::new("git").current_dir(env!("CARGO_MANIFEST_DIR")).args(args).output().ok()?;
    out.status.success().then(|| String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

/// Year, month and day of a number of days since 1970-01-01 (Gregorian calendar, years counted from
/// March so that the leap day comes last).
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let day_of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_have_dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(19_782), (2024, 2, 29));
        assert_eq!(civil(20_819), (2027, 1, 1));
    }

    #[test]
    fn this_machine_is_known() {
        let machine = Machine::look();
        assert!(machine.cores >= 1);
        assert_ne!(machine.kernel, "");
    }

    #[test]
    fn threads_are_found_by_name() {
        let spin = || (0..20_000_000u64).fold(0u64, |sum, i| std::hint::black_box(sum ^ i));
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let (ready, started) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("look-1".into()).spawn(move || {
            ready.send(spin()).expect("the test waits");
            wait.recv().expect("the test says when");
        });
        started.recv().expect("the thread runs");
        // The kernel adds up a thread's time when it stops running, which may be a moment after it
        // has sent.
        let mut used = thread_cpu_ns("look", 2);
        for _ in 0..1000 {
            if used[1] > 0 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
            used = thread_cpu_ns("look", 2);
        }
        done.send(()).expect("the thread waits");
        thread.expect("a thread").join().expect("no panic");
        assert_eq!(used[0], 0);
        assert!(used[1] > 0, "no CPU time was seen for a thread that has worked");
    }
}
