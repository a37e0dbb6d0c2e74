//! libfuse's `passthrough_hp` over a directory of the disk: what FUSE costs when nothing is behind
//! it.
//!
//! Debian's libfuse3-dev has other examples, but not this one, so it is built from Debian's source
//! package of libfuse. Its list of sources is fetched into a directory of ours: apt's own settings
//! and lists stay as they are.
//!
//! One thing is changed in it: files below are opened without O_DIRECT, for its buffers are not
//! aligned as the disk needs them, and every direct write would fail. What is direct ends in the
//! page cache then, as it does below the daemons.

use super::plain::kind_of;
use super::{Parts, Peer, System};
use crate::compare::cpu::{Group, Process};
use crate::error::{Context, Outcome, ensure, fail};
use crate::exec::{self, Interrupt};
use crate::mounts;
use crate::process::Daemon;
use crate::testrun::{Bench, setup};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Downloads and the compiler are done within this time.
const BUILD_STEP_MAX: Duration = Duration::from_secs(300);
/// It is mounted within this time.
const MOUNT_MAX: Duration = Duration::from_secs(20);
/// What building needs beside a C++ compiler.
const NEEDS: [(&str, &str); 4] = [
    ("/usr/include/fuse3/fuse.h", "libfuse3-dev"),
    ("pkg-config", "pkg-config"),
    ("g++", "g++"),
    ("xz", "xz-utils"),
];
/// What libfuse's own build finds on Debian.
const DEFINES: [&str; 3] = ["-DHAVE_UTIMENSAT", "-DHAVE_POSIX_FALLOCATE", "-DHAVE_SETXATTR"];
/// Flags that it takes from those of the caller's files, and those that it takes here; so often.
const FLAGS: (&str, &str, usize) = ("& ~O_NOFOLLOW", "& ~(O_NOFOLLOW | O_DIRECT)", 2);
/// The program.
const PROGRAM: &str = "passthrough_hp";

/// A mount of it.
pub struct Passthrough {
    area: PathBuf,
    daemon: Daemon,
    version: String,
}

impl Drop for Passthrough {
    fn drop(&mut self) {
        mounts::clear(&self.area);
        if self.daemon.pid().is_some() {
            let _ = self.daemon.kill();
        }
    }
}

impl Passthrough {
    /// Builds and mounts it.
    ///
    /// # Errors
    /// When it cannot be built, with what to do, or not be mounted.
    pub fn up(dir: &Path, bench: &Bench) -> Outcome<Passthrough> {
        setup::install(&NEEDS, &bench.interrupt)?;
        let version = libfuse_version(&bench.interrupt)?;
        let program = build(&version, bench)?;
        let (source, area) = (dir.join("source"), dir.join("mnt"));
        for path in [&source, &area] {
            std::fs::create_dir_all(path).doing(|| format!("cannot make {}", path.display()))?;
        }
        let daemon = Daemon {
            name: PROGRAM.into(),
            pid_file: dir.join("pid"),
            log: dir.join("log"),
            mark: area.display().to_string(),
        };
        let passthrough = Passthrough { area, daemon, version };
        let mut command = Command::new(program);
        command.arg("--foreground").arg(&source).arg(&passthrough.area);
        passthrough.daemon.spawn(&mut command)?;
        passthrough.wait_mounted(&bench.interrupt)?;
        Ok(passthrough)
    }

    fn wait_mounted(&self, interrupt: &Interrupt) -> Outcome {
        let end = Instant::now() + MOUNT_MAX;
        while mounts::kind_at(&self.area).is_none() {
            ensure!(
                Instant::now() < end,
                "{PROGRAM} did not mount: {}",
                self.daemon.output_since(0).trim()
            );
            interrupt.sleep(Duration::from_millis(20))?;
        }
        Ok(())
    }
}

impl System for Passthrough {
    fn name(&self) -> &str {
        Peer::FusePassthrough.name()
    }

    fn area(&self) -> &Path {
        &self.area
    }

    fn describe(&self) -> Vec<String> {
        vec![format!(
            "{PROGRAM} of libfuse {}, built with -O2 from Debian's source package, files below opened without O_DIRECT, over a directory of the disk ({})",
            self.version,
            kind_of(self.area.with_file_name("source").as_path())
        )]
    }

    fn processes(&self) -> Vec<Process> {
        let process = |pid| Process { name: PROGRAM.into(), group: Group::Client, pid };
        self.daemon.pid().map(process).into_iter().collect()
    }

    fn parts(&mut self) -> Option<&mut dyn Parts> {
        None
    }
}

fn libfuse_version(interrupt: &Interrupt) -> Outcome<String> {
    let out = exec::run_ok(
        Command::new("pkg-config").args(["--modversion", "fuse3"]),
        BUILD_STEP_MAX,
        interrupt,
    )?;
    Ok(out.stdout.trim().to_owned())
}

/// The program, built once for each version of the library.
fn build(version: &str, bench: &Bench) -> Outcome<PathBuf> {
    let dir = bench.work.with_file_name("tools").join(format!("libfuse-{version}"));
    let program = dir.join(PROGRAM);
    if program.exists() {
        return Ok(program);
    }
    println!("building {PROGRAM} from Debian's source package fuse3 {version}");
    std::fs::create_dir_all(dir.join("lists/partial"))
        .doing(|| format!("cannot make {}", dir.display()))?;
    let step = |command: &mut Command| {
        exec::run_ok(command.current_dir(&dir), BUILD_STEP_MAX, &bench.interrupt)
    };
    fetch(&dir, &step)?;
    let Some(archive) =
        file_with(&dir, |name| name.contains(".orig.tar.") && !name.ends_with(".asc"))
    else {
        return fail("Debian's source package fuse3 has no archive of the original sources");
    };
    step(Command::new("tar").arg("--strip-components=1").arg("-xf").arg(archive))?;
    change(&dir.join("example/passthrough_hp.cc"), &dir.join("changed.cc"))?;
    let flags = step(Command::new("pkg-config").args(["--cflags", "--libs", "fuse3"]))?.stdout;
    let mut compiler = Command::new("g++");
    compiler
        .args(["-O2", "-std=c++17", "-Iexample", "changed.cc", "-o", "built", "-lpthread"])
        .args(DEFINES);
    step(compiler.args(flags.split_whitespace()))?;
    // In place only when it is whole.
    std::fs::rename(dir.join("built"), &program)
        .doing(|| format!("cannot place {}", program.display()))?;
    Ok(program)
}

/// See the module.
fn change(from: &Path, to: &Path) -> Outcome {
    let (old, new, times) = FLAGS;
    let source =
        std::fs::read_to_string(from).doing(|| format!("cannot read {}", from.display()))?;
    let found = source.matches(old).count();
    ensure!(
        found == times,
        "this version of {PROGRAM} opens files in {found} places instead of {times}"
    );
    std::fs::write(to, source.replace(old, new)).doing(|| format!("cannot write {}", to.display()))
}

/// Fetches the source package, by the sources of the release that runs here.
fn fetch(dir: &Path, step: &dyn Fn(&mut Command) -> Outcome<exec::Run>) -> Outcome {
    let release =
        std::fs::read_to_string("/etc/os-release").doing(|| "cannot read /etc/os-release")?;
    let Some(codename) = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="))
    else {
        return fail(
            "--peer fuse-passthrough needs Debian: /etc/os-release names no VERSION_CODENAME",
        );
    };
    let list = dir.join("sources.list");
    std::fs::write(&list, format!("deb-src http://deb.debian.org/debian {codename} main\n"))
        .doing(|| format!("cannot write {}", list.display()))?;
    let apt = |words: &[&str]| {
        let mut command = Command::new("apt-get");
        command.args([
            "-q",
            "-o",
            "APT::Sandbox::User=root",
            "-o",
            "Dir::Etc::sourceparts=/dev/null",
        ]);
        command.arg("-o").arg(format!("Dir::Etc::sourcelist={}", list.display()));
        command.arg("-o").arg(format!("Dir::State::lists={}", dir.join("lists").display()));
        step(command.args(words))
            .doing(|| "--peer fuse-passthrough is built from Debian's source package fuse3")
    };
    apt(&["update"])?;
    apt(&["source", "--download-only", "fuse3"]).map(drop)
}

fn file_with(dir: &Path, wanted: impl Fn(&str) -> bool) -> Option<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .find(|path| path.file_name().is_some_and(|name| wanted(&name.to_string_lossy())))
}
