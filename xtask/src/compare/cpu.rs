//! CPU time and resident memory by groups of processes, and CPU time of the whole machine.
//!
//! Contract: what the load generator used is what the children of this process used that have ended
//! and been waited for, theirs included; all loads are such children. Ticks are 10 ms: short steps
//! show steps of that size.

use super::sample::Metrics;
use crate::error::{Context, Outcome, fail};
use rustix::process::Pid;

/// Who works for whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Group {
    /// What the kernel's requests go to.
    Client,
    /// Everything behind it.
    Daemons,
}

/// A process of a system under test.
#[derive(Clone, Debug)]
pub struct Process {
    /// In the report: `osd-1`, `glusterfsd 123`.
    pub name: String,
    /// To whom its CPU counts.
    pub group: Group,
    /// Its id.
    pub pid: Pid,
}

/// CPU seconds used so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Used {
    machine: f64,
    client: f64,
    daemons: f64,
    load: f64,
}

/// CPU used since a moment by these processes.
pub struct Meter<'a> {
    processes: &'a [Process],
    before: Used,
}

impl<'a> Meter<'a> {
    /// From now on.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn start(processes: &'a [Process]) -> Outcome<Meter<'a>> {
        Ok(Meter { processes, before: used(processes)? })
    }

    /// Microseconds of CPU for each of so many operations since the start.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn stop(self, operations: f64) -> Outcome<Metrics> {
        let after = used(self.processes)?;
        let each = |of: fn(&Used) -> f64| {
            (of(&after) - of(&self.before)).max(0.0) * 1e6 / operations.max(1.0)
        };
        let names = [
            ("cpu_machine_us", each(|u| u.machine)),
            ("cpu_client_us", each(|u| u.client)),
            ("cpu_daemons_us", each(|u| u.daemons)),
            ("cpu_load_us", each(|u| u.load)),
        ];
        Ok(names.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }
}

fn used(processes: &[Process]) -> Outcome<Used> {
    let tick = 1.0 / rustix::param::clock_ticks_per_second() as f64;
    let read = |path: &str| std::fs::read_to_string(path).doing(|| format!("cannot read {path}"));
    let Some(machine) = machine_ticks(&read("/proc/stat")?) else {
        return fail("/proc/stat looks strange");
    };
    let Some([_, load]) = process_ticks(&read("/proc/self/stat")?) else {
        return fail("/proc/self/stat looks strange");
    };
    let mut used = Used { machine: machine * tick, load: load * tick, ..Used::default() };
    for process in processes {
        // One that has died has no part in what is measured now.
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid.as_raw_nonzero()))
            .unwrap_or_default();
        let [own, children] = process_ticks(&stat).unwrap_or_default();
        let group = match process.group {
            Group::Client => &mut used.client,
            Group::Daemons => &mut used.daemons,
        };
        *group += (own + children) * tick;
    }
    Ok(used)
}

/// Ticks that all CPUs were busy, from /proc/stat: all but idle, waiting for disks, and stolen.
fn machine_ticks(stat: &str) -> Option<f64> {
    let mut fields = stat.lines().next()?.split_whitespace();
    (fields.next()? == "cpu").then_some(())?;
    let fields: Vec<f64> = fields.map_while(|field| field.parse().ok()).collect();
    let [user, nice, system, _idle, _waiting, irq, softirq, ..] = fields[..] else { return None };
    Some(user + nice + system + irq + softirq)
}

/// Ticks of a process, and of its children that it has waited for, from /proc/PID/stat.
fn process_ticks(stat: &str) -> Option<[f64; 2]> {
    // The name before may hold anything, parentheses included.
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    // utime, stime, cutime and cstime are fields 14 to 17, and the state behind the name is
    // field 3.
    let ticks: Vec<f64> =
        fields.get(11..15)?.iter().map_while(|field| field.parse().ok()).collect();
    let [user, system, children_user, children_system] = ticks[..] else { return None };
    Some([user + system, children_user + children_system])
}

/// Resident memory of a process in MiB; `None` if it is gone.
pub fn resident_mib(pid: Pid) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).ok()?;
    resident_kib(&status).map(|kib| kib / 1024.0)
}

fn resident_kib(status: &str) -> Option<f64> {
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?
        .trim()
        .strip_suffix(" kB")?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_busy_but_for_idle_waiting_and_stolen_time() {
        assert_eq!(machine_ticks("cpu  10 20 30 1000 2000 4 5 6 0 0\ncpu0 1 2 3\n"), Some(69.0));
        assert_eq!(machine_ticks("intr 1 2 3"), None);
    }

    #[test]
    fn a_process_may_have_any_name() {
        let stat = "12 (a) b) (c) S 1 12 12 0 -1 4194560 100 0 0 0 7 8 20 30 20 0 1 0 5 6 7";
        assert_eq!(process_ticks(stat), Some([15.0, 50.0]));
        assert_eq!(process_ticks(""), None);
    }

    #[test]
    fn resident_memory_is_read() {
        assert_eq!(resident_kib("Name:\tx\nVmRSS:\t  2048 kB\nThreads:\t1\n"), Some(2048.0));
        assert_eq!(resident_kib("Name:\tkthread\n"), None);
    }

    #[test]
    fn the_load_is_counted_to_the_load() {
        let meter = Meter::start(&[]).unwrap();
        let spin = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        assert!(std::process::Command::new("sh").args(["-c", spin]).status().unwrap().success());
        let metrics = meter.stop(1.0).unwrap();
        assert!(metrics["cpu_load_us"] > 0.0);
        assert_eq!(metrics["cpu_client_us"], 0.0);
    }
}
