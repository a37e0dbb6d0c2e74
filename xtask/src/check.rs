//! `cargo xtask check`: what is soon known of a change: formatting, lints, the tests of the
//! packages that changed.
//!
//! Contract: works in the work tree as it is, installs nothing, mounts nothing. A package has
//! changed if a file of it differs from the revision, is new, or if what all packages depend on
//! differs. Tests of other packages, and all that needs a mount, are `cargo xtask test`'s.

use crate::error::{Context, Outcome};
use crate::exec::{self, Interrupt};
use crate::workspace;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A change of one of these is a change of every package.
const SHARED: [&str; 3] = ["Cargo.toml", "Cargo.lock", "vendor"];
/// The package whose tests hold the documents and the edges between crates; they take seconds.
const TIDY: &str = "xtask";
/// What git answers within.
const GIT_MAX: Duration = Duration::from_secs(60);

/// What to check.
#[derive(clap::Args)]
pub struct CheckArgs {
    /// The revision that the work tree is compared with; by default the branch's upstream, or
    /// `main` without one
    #[arg(long, value_name = "REVISION")]
    since: Option<String>,
}

/// Runs the checks; the first that fails ends them.
///
/// # Errors
/// With the output of the check that failed; when git or cargo cannot be asked; on Ctrl-C.
pub fn run(args: &CheckArgs, interrupt: &Interrupt) -> Outcome {
    let packages = packages(interrupt)?;
    let changed = changed(&packages, &changed_files(&base(args, interrupt)?, interrupt)?);
    step("formatting", &["fmt", "--all", "--check"], interrupt)?;
    let lints = ["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"];
    step("lints", &lints, interrupt)?;
    step("documents and edges", &["test", "--quiet", "-p", TIDY, "--tests"], interrupt)?;
    let names: Vec<&str> =
        changed.iter().map(String::as_str).filter(|name| *name != TIDY).collect();
    if names.is_empty() {
        println!("no other package has changed");
        return Ok(());
    }
    let tests = names.iter().flat_map(|name| ["-p", name]);
    let tests: Vec<&str> = ["test", "--quiet"].into_iter().chain(tests).collect();
    step(&format!("tests of {}", names.join(", ")), &tests, interrupt)
}

/// Runs cargo, and says how long that took.
fn step(name: &str, args: &[&str], interrupt: &Interrupt) -> Outcome {
    let begin = Instant::now();
    let mut command = Command::new(workspace::cargo());
    command.current_dir(workspace::root()).args(args);
    exec::run_visible(&mut command, exec::NO_DEADLINE, interrupt)?;
    println!("ok {name} ({} s)", begin.elapsed().as_secs());
    Ok(())
}

fn git(args: &[&str], interrupt: &Interrupt) -> Outcome<String> {
    let mut command = Command::new("git");
    command.current_dir(workspace::root()).args(args);
    exec::run_ok(&mut command, GIT_MAX, interrupt).map(|run| run.stdout)
}

/// The commit at which the work tree left the revision.
fn base(args: &CheckArgs, interrupt: &Interrupt) -> Outcome<String> {
    let merge_base = |revision: &str| git(&["merge-base", "HEAD", revision], interrupt);
    let commit = match &args.since {
        Some(revision) => merge_base(revision)?,
        None => merge_base("@{upstream}").or_else(|_| merge_base("main"))?,
    };
    Ok(commit.trim().to_owned())
}

/// Files that differ from a commit, and those that git does not know yet.
fn changed_files(commit: &str, interrupt: &Interrupt) -> Outcome<Vec<PathBuf>> {
    let differing = git(&["diff", "--name-only", "-z", "--no-renames", commit], interrupt)?;
    let unknown = git(&["ls-files", "--others", "--exclude-standard", "-z"], interrupt)?;
    Ok([differing, unknown].concat().split_terminator('\0').map(PathBuf::from).collect())
}

/// Packages of the workspace, each by its directory below the root.
fn packages(interrupt: &Interrupt) -> Outcome<BTreeMap<PathBuf, String>> {
    let mut command = Command::new(workspace::cargo());
    command.current_dir(workspace::root()).args(["metadata", "--no-deps", "--format-version", "1"]);
    let out = exec::run_ok(&mut command, Duration::from_secs(300), interrupt)?;
    let json: serde_json::Value =
        serde_json::from_str(&out.stdout).doing(|| "cannot read the output of `cargo metadata`")?;
    let of = |package: &serde_json::Value| {
        let dir = Path::new(package["manifest_path"].as_str()?).parent()?;
        let dir = dir.strip_prefix(workspace::root()).ok()?;
        Some((dir.to_owned(), package["name"].as_str()?.to_owned()))
    };
    Ok(json["packages"].as_array().into_iter().flatten().filter_map(of).collect())
}

/// Names of the packages that these files belong to.
fn changed(packages: &BTreeMap<PathBuf, String>, files: &[PathBuf]) -> BTreeSet<String> {
    if files.iter().any(|file| SHARED.iter().any(|shared| file.starts_with(shared))) {
        return packages.values().cloned().collect();
    }
    files
        .iter()
        .filter_map(|file| file.ancestors().find_map(|dir| packages.get(dir)))
        .cloned()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[&str]) -> Vec<String> {
        let packages =
            [("crates/client", "client"), ("crates/cluster", "cluster"), ("xtask", "xtask")];
        let packages = packages.map(|(dir, name)| (dir.into(), name.into())).into();
        let files: Vec<PathBuf> = files.iter().map(PathBuf::from).collect();
        changed(&packages, &files).into_iter().collect()
    }

    #[test]
    fn a_file_belongs_to_the_package_around_it() {
        assert_eq!(of(&["crates/client/src/fs/mod.rs", "crates/client/Cargo.toml"]), ["client"]);
        assert_eq!(of(&["docs/use/limits.md", "crates/clients/src/lib.rs"]), [""; 0]);
    }

    #[test]
    fn what_all_depend_on_changes_all() {
        let all = ["client", "cluster", "xtask"];
        for shared in ["Cargo.lock", "Cargo.toml", "vendor/fuser/src/lib.rs"] {
            assert_eq!(of(&[shared]), all, "{shared}");
        }
    }
}
