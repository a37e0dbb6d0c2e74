//! Installs what the tests need and the machine lacks, saying so.

use crate::error::{Context, Outcome, ensure, fail};
use crate::exec::{self, Interrupt};
use crate::workspace;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// A program and the Debian package that brings it.
const PROGRAMS: [(&str, &str); 21] = [
    ("python3", "python3"),
    ("fio", "fio"),
    ("fusermount3", "fuse3"),
    ("sqlite3", "sqlite3"),
    ("git", "git"),
    ("setfattr", "attr"),
    ("setfacl", "acl"),
    ("tar", "tar"),
    ("gcc", "gcc"),
    ("g++", "g++"),
    ("mount", "mount"),
    ("setpriv", "util-linux"),
    ("find", "findutils"),
    ("cmp", "diffutils"),
    ("ps", "procps"),
    ("ip", "iproute2"),
    ("tc", "iproute2"),
    ("nft", "nftables"),
    ("nsenter", "util-linux"),
    ("fsfreeze", "util-linux"),
    ("mkfs.ext4", "e2fsprogs"),
];
/// Programs of crates.io, with their versions.
const CRATES: [(&str, &str); 2] = [("pjdfstest", "0.2.2"), ("fsx", "0.3.2")];
/// Makes a book of the documents; of crates.io, too.
const MDBOOK: (&str, &str) = ("mdbook", "0.5.4");

/// Installs missing packages with apt, and checks what cannot be installed.
///
/// # Errors
/// With what to do by hand.
pub fn packages(interrupt: &Interrupt) -> Outcome {
    ensure!(
        Path::new("/dev/fuse").exists(),
        "no /dev/fuse: load the module (`modprobe fuse`), or give the container it"
    );
    ensure!(
        rustix::process::geteuid().is_root(),
        "the mounted tests change owners and mount: run them as root"
    );
    install(&PROGRAMS, interrupt)
}

/// Installs with apt what is missing of these programs (or files, by their paths), each with its
/// Debian package, saying so.
///
/// # Errors
/// With what to do by hand.
pub fn install(programs: &[(&str, &str)], interrupt: &Interrupt) -> Outcome {
    let missing: Vec<&str> =
        programs.iter().filter(|(p, _)| !is_there(p)).map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    println!("installing with apt: {}", missing.join(" "));
    if !is_there("apt-get") {
        return fail(format!("please install: {} (there is no apt-get here)", missing.join(" ")));
    }
    let limit = Duration::from_secs(300);
    let apt = |args: &[&str]| {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive").args(args);
        exec::run_ok(&mut command, limit, interrupt)
    };
    apt(&["update", "-q"])?;
    let mut install = vec!["install", "-q", "-y", "--no-install-recommends"];
    install.extend(&missing);
    apt(&install).map(drop)
}

/// Builds pjdfstest and fsx once, in `root`.
///
/// # Errors
/// When cargo cannot.
pub fn crates(root: &Path, interrupt: &Interrupt) -> Outcome {
    CRATES.into_iter().try_for_each(|program| from_crates_io(program, root, interrupt))
}

/// Builds mdBook once, in `root`, without its server and its search.
///
/// # Errors
/// When cargo cannot.
pub fn mdbook(root: &Path, interrupt: &Interrupt) -> Outcome {
    from_crates_io(MDBOOK, root, interrupt)
}

fn from_crates_io((name, version): (&str, &str), root: &Path, interrupt: &Interrupt) -> Outcome {
    let stamp = root.join(format!("{name}-{version}"));
    if stamp.exists() && root.join("bin").join(name).exists() {
        return Ok(());
    }
    println!("installing from crates.io: {name} {version}");
    let mut command = Command::new(workspace::cargo());
    command
        .args(["install", "--quiet", "--locked", "--force", "--version", version, name, "--root"])
        .arg(root);
    if name == MDBOOK.0 {
        command.arg("--no-default-features");
    }
    // Its build belongs to the cache too, and must not wait for ours.
    command.env("CARGO_TARGET_DIR", root.join("build"));
    // Their own work is nothing beside the calls that they make: to build them faster is to be over
    // sooner.
    command.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0");
    exec::run_visible(&mut command, Duration::from_secs(900), interrupt)?;
    std::fs::write(&stamp, "").doing(|| "cannot note the version")
}

fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/sbin", "/usr/sbin"].map(Into::into);
    std::env::split_paths(&path).chain(more).any(|dir| dir.join(program).exists())
}
