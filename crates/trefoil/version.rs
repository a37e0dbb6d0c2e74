//! Build script of the programs: what `--version` says, with the commit, as `TREFOIL_VERSION`.
//!
//! The commit is git's or, where the sources are in no repository of their own (a package's build),
//! that in the environment variable `TREFOIL_COMMIT`, if there is one.

use std::path::Path;
use std::process::Command;

/// What git says, if it is there and knows.
fn git(args: &[&str]) -> Option<String> {
    let said = Command::new("git").args(args).output().ok().filter(|said| said.status.success())?;
    String::from_utf8(said.stdout).ok().map(|text| text.trim().to_owned())
}

/// The commit and its day, of the repository that has these sources.
fn commit() -> Option<String> {
    git(&["ls-files", "--error-unmatch", "Cargo.toml"])?;
    for changed_by_commits in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--git-path", changed_by_commits])?;
        if Path::new(&path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    git(&["show", "--no-patch", "--format=%h %cs", "HEAD"])
}

fn main() {
    println!("cargo::rerun-if-changed=../trefoil/version.rs");
    println!("cargo::rerun-if-env-changed=TREFOIL_COMMIT");
    let version = env!("CARGO_PKG_VERSION");
    match std::env::var("TREFOIL_COMMIT").ok().or_else(commit) {
        Some(commit) => println!("cargo::rustc-env=TREFOIL_VERSION={version} ({commit})"),
        None => println!("cargo::rustc-env=TREFOIL_VERSION={version} (no commit known)"),
    }
}
