//! Where things are: the workspace, cargo, the built binaries.

use crate::error::{Context, Outcome};
use crate::exec::{self, Interrupt};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The binaries that make up the product.
pub const BINARIES: [&str; 3] = ["osd-daemon", "fuse-client", "trefoil"];

/// The root of the workspace.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask stands in the workspace")
}

/// The cargo that runs us.
pub fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Cargo's target directory, as cargo itself says.
///
/// # Errors
/// When cargo cannot say it.
pub fn target_dir(interrupt: &Interrupt) -> Outcome<PathBuf> {
    let mut command = Command::new(cargo());
    command.current_dir(root()).args(["metadata", "--no-deps", "--format-version", "1"]);
    let out = exec::run_ok(&mut command, Duration::from_secs(300), interrupt)?;
    let json: serde_json::Value =
        serde_json::from_str(&out.stdout).doing(|| "cannot read the output of `cargo metadata`")?;
    Ok(PathBuf::from(json["target_directory"].as_str().unwrap_or("target")))
}

/// How much the compiler optimises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// What is measured and shipped.
    Release,
    /// What is there sooner after a change.
    Dev,
}

/// Builds the release binaries and says where they are.
///
/// # Errors
/// When the build fails; the compiler has said why.
pub fn build_release(interrupt: &Interrupt) -> Outcome<PathBuf> {
    build(Profile::Release, interrupt)
}

/// Builds the binaries and says where they are.
///
/// # Errors
/// When the build fails; the compiler has said why.
pub fn build(profile: Profile, interrupt: &Interrupt) -> Outcome<PathBuf> {
    let mut command = Command::new(cargo());
    command.current_dir(root()).arg("build");
    let dir = match profile {
        Profile::Release => {
            command.arg("--release");
            "release"
        }
        Profile::Dev => "debug",
    };
    for package in BINARIES {
        command.args(["-p", package]);
    }
    exec::run_visible(&mut command, exec::NO_DEADLINE, interrupt)?;
    Ok(target_dir(interrupt)?.join(dir))
}
