//! A cluster for a group of tests, taken away whatever happens.

use super::report::Report;
use super::{Bench, spec_in};
use crate::cluster::Cluster;
use crate::cluster::layout::{Spec, free_ports};
use crate::error::{Context, Error, Outcome, ensure};
use crate::exec::{self, last_lines};
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where this run's rigs are mounted: a short path, for the sockets that are made below have names
/// of at most 107 bytes.
pub fn mount_points() -> PathBuf {
    std::env::temp_dir().join(format!("trefoil-{}", std::process::id()))
}

/// A test on a rig, with its name.
pub type RigTest = (&'static str, fn(&Bench, &Rig) -> Outcome);

/// A running cluster in a scratch directory.
pub struct Rig {
    /// The cluster.
    pub cluster: Cluster,
    dir: PathBuf,
    ports: Range<u16>,
    failures_before: usize,
}

impl Rig {
    /// Starts one, mounted below [`mount_points`]; `change` may want another one. That it starts is
    /// a test: if it does not, there is no rig.
    ///
    /// # Errors
    /// Only on Ctrl-C.
    pub fn start(
        name: &str,
        bench: &Bench,
        report: &mut Report,
        change: impl FnOnce(Spec) -> Spec,
    ) -> Outcome<Option<Rig>> {
        let dir = bench.work.join(name);
        let spec = spec_in(&dir);
        let ports = bench.ports();
        let spec =
            change(Spec { mount: Some(mount_points().join(name)), ports: ports.clone(), ..spec });
        let failures_before = report.failures();
        let begin = Instant::now();
        let made = std::fs::create_dir_all(&dir).doing(|| format!("cannot make {}", dir.display()));
        match made.and_then(|()| Cluster::up(&spec, &bench.binaries, &bench.interrupt)) {
            Ok(cluster) => {
                report.record(
                    "cluster",
                    &format!("{name}: starts and mounts"),
                    Ok(()),
                    begin.elapsed(),
                );
                Ok(Some(Rig { cluster, dir, ports, failures_before }))
            }
            Err(Error::Interrupted) => Err(Error::Interrupted),
            Err(error) => {
                report.record(
                    "cluster",
                    &format!("{name}: starts and mounts"),
                    Err(error),
                    begin.elapsed(),
                );
                Ok(None)
            }
        }
    }

    /// Its mount point.
    pub fn mount(&self) -> &Path {
        self.cluster.mount_point().expect("rigs are mounted")
    }

    /// Consecutive ports that are free now.
    ///
    /// # Errors
    /// When there are none.
    pub fn free_ports(&self, count: usize) -> Outcome<Vec<SocketAddr>> {
        free_ports(count, &self.ports)
    }

    /// A directory outside the mount, made if missing.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn scratch(&self, name: &str) -> Outcome<PathBuf> {
        let path = self.dir.join(name);
        std::fs::create_dir_all(&path).doing(|| format!("cannot make {}", path.display()))?;
        Ok(path)
    }

    /// A fresh directory in the mount.
    ///
    /// # Errors
    /// When it cannot be made within a few seconds.
    pub fn area(&self, bench: &Bench, name: &str) -> Outcome<PathBuf> {
        let path = self.mount().join(name);
        let line = format!("rm -rf '{0}' && mkdir -p '{0}'", path.display());
        bench.shell(&self.dir, &line, 120)?;
        Ok(path)
    }

    /// Stops it, and holds it to a clean end: everything stops, no log tells of a panic.
    ///
    /// # Errors
    /// Only on Ctrl-C.
    pub fn finish(self, bench: &Bench, report: &mut Report) -> Outcome {
        let name = self.dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        report.case("cluster", &format!("{name}: unmounts and stops"), || {
            self.cluster.down(&bench.interrupt)
        })?;
        report.case("cluster", &format!("{name}: no panic in any log"), || self.no_panic())?;
        if report.failures() > self.failures_before {
            println!("        logs: {}", self.dir.join("cluster/log").display());
        } else {
            self.cluster.kill_all();
            let _ = std::fs::remove_dir_all(&self.dir);
        }
        // Only if it is empty, as it is when nothing is mounted.
        let _ = std::fs::remove_dir(self.mount());
        Ok(())
    }

    fn no_panic(&self) -> Outcome {
        for daemon in self.cluster.all() {
            let log = std::fs::read(&daemon.log).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            let panics: Vec<&str> = log.lines().filter(|l| l.contains("panicked at")).collect();
            ensure!(
                panics.is_empty(),
                "{} panicked:\n{}",
                daemon.name,
                last_lines(&panics.join("\n"), 5)
            );
        }
        Ok(())
    }

    /// Unmounts and mounts again, so that no cache of the client is left.
    ///
    /// # Errors
    /// When it does not.
    pub fn remount(&self, bench: &Bench) -> Outcome {
        self.cluster.unmount(&bench.interrupt)?;
        self.cluster.start(crate::cluster::layout::MOUNT, &bench.interrupt)
    }

    /// Waits for a clean cluster.
    ///
    /// # Errors
    /// When it does not become clean in time.
    pub fn wait_clean(&self, bench: &Bench, seconds: u64) -> Outcome {
        self.cluster.wait_clean(Duration::from_secs(seconds), &bench.interrupt, |_| {})
    }

    /// A number of `trefoil status --json`, summed over the storage daemons.
    ///
    /// # Errors
    /// When the monitor cannot be asked.
    pub fn osd_sum(&self, bench: &Bench, field: &str) -> Outcome<u64> {
        let status = self.cluster.status(&bench.interrupt)?;
        let osds = status["osds"].as_array().cloned().unwrap_or_default();
        Ok(osds.iter().filter_map(|o| o[field].as_u64()).sum())
    }

    /// Polls a condition.
    ///
    /// # Errors
    /// When it does not come true in time, with these words.
    pub fn wait_for(
        &self,
        bench: &Bench,
        what: &str,
        seconds: u64,
        mut condition: impl FnMut() -> Outcome<bool>,
    ) -> Outcome {
        let end = Instant::now() + Duration::from_secs(seconds);
        loop {
            if condition()? {
                return Ok(());
            }
            ensure!(Instant::now() < end, "{what}: not within {seconds} s");
            bench.interrupt.sleep(Duration::from_millis(200))?;
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.cluster.kill_all();
        // Logs stay for the one who looks; data does not.
        let _ = std::fs::remove_dir_all(self.dir.join("cluster/data"));
    }
}

/// Starts a program that goes on while the test does something else.
///
/// # Errors
/// When it cannot be started.
pub fn background(command: &mut std::process::Command, output: &Path) -> Outcome<Background> {
    let file =
        std::fs::File::create(output).doing(|| format!("cannot make {}", output.display()))?;
    let other = file.try_clone().doing(|| "cannot share a file")?;
    command.stdin(std::process::Stdio::null()).stdout(file).stderr(other);
    Ok(Background {
        child: exec::spawn(command, "background program")?,
        output: output.to_path_buf(),
    })
}

/// A program in the background, killed with its children when dropped.
pub struct Background {
    child: std::process::Child,
    output: PathBuf,
}

impl Background {
    /// Waits for its end and returns its output.
    ///
    /// # Errors
    /// When it fails or does not end in time.
    pub fn finish(mut self, bench: &Bench, seconds: u64) -> Outcome<String> {
        let status = exec::wait(
            &mut self.child,
            "background program",
            Duration::from_secs(seconds),
            &bench.interrupt,
        )?;
        let output = std::fs::read_to_string(&self.output).unwrap_or_default();
        ensure!(status.success(), "{}: {}", exec::how(status), last_lines(&output, 15));
        Ok(output)
    }

    /// Waits for its end, however it ends.
    ///
    /// # Errors
    /// When it does not end in time.
    pub fn end(mut self, bench: &Bench, seconds: u64) -> Outcome {
        exec::wait(
            &mut self.child,
            "background program",
            Duration::from_secs(seconds),
            &bench.interrupt,
        )
        .map(drop)
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Has it ended by itself?
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// SIGKILL, and no more.
    pub fn kill_unawaited(&mut self) -> Outcome {
        self.child.kill().doing(|| "cannot kill a program")
    }

    /// SIGKILL.
    pub fn kill(mut self) -> String {
        exec::kill_group(&mut self.child);
        std::fs::read_to_string(&self.output).unwrap_or_default()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        exec::kill_group(&mut self.child);
    }
}
