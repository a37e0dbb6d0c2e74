//! A mount in the background.
//!
//! Contract: the parent starts this program again as a process of its own and returns once that one
//! says on a pipe that the mount answers, or why it does not. Nothing is forked after threads
//! exist.

use crate::cli::background_args;
use crate::error::MountError;
use crate::options::MountSettings;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Set in the environment of the background process.
const BACKGROUND: &str = "FUSE_CLIENT_BACKGROUND";
/// What it says when the mount answers.
const READY: &str = "ready";

/// Starts the background process and waits for its word.
///
/// # Errors
/// What the background process met, or that there is none.
pub fn start(settings: &MountSettings) -> Result<(), MountError> {
    let absolute = |path: &PathBuf| std::path::absolute(path).map_err(MountError::Daemon);
    let dir = absolute(&settings.dir)?;
    let log_file = match &settings.log_file {
        Some(path) => Some(absolute(path)?),
        None => usual_log(&dir),
    };
    let settings = MountSettings { dir, log_file, ..settings.clone() };
    let errors = match &settings.log_file {
        None => Stdio::null(),
        Some(path) => {
            let log = File::options().create(true).append(true).open(path);
            Stdio::from(log.map_err(|source| MountError::Log { path: path.clone(), source })?)
        }
    };
    // Under mount(8) the program runs by another name; the background process runs by its own.
    let mut child = Command::new(std::env::current_exe().map_err(MountError::Daemon)?)
        .args(background_args(&settings))
        .env(BACKGROUND, "1")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(errors)
        .spawn()
        .map_err(MountError::Daemon)?;
    let mut word = String::new();
    if let Some(said) = child.stdout.take() {
        BufReader::new(said).read_line(&mut word).map_err(MountError::Daemon)?;
    }
    match word.trim_end() {
        READY => {
            // Scripts, and mount(8) at boot, want to read nothing.
            if let (true, Some(log)) = (io::stdout().is_terminal(), &settings.log_file) {
                println!(
                    "{} is mounted on {}; it logs to {}",
                    settings.address,
                    settings.dir.display(),
                    log.display()
                );
            }
            Ok(())
        }
        "" => {
            let status = child.wait().map_err(MountError::Daemon)?;
            Err(MountError::Child(format!("the background process ended without a word: {status}")))
        }
        error => {
            child.wait().map_err(MountError::Daemon)?;
            Err(MountError::Child(error.to_owned()))
        }
    }
}

/// The log of a mount for which none was chosen: one file for each mount point, as GlusterFS has
/// it, for it needs no service that keeps logs. `None`, and a word on it, where it cannot be made:
/// a mount is worth more than its log.
fn usual_log(dir: &Path) -> Option<PathBuf> {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    let place = match rustix::process::geteuid().is_root() {
        true => Some(PathBuf::from("/var/log")),
        false => std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).or_else(home),
    };
    let place = place?.join("trefoil");
    let path = place.join(log_name(dir));
    let made = std::fs::create_dir_all(&place)
        .and_then(|()| File::options().create(true).append(true).open(&path));
    if let Err(error) = &made {
        eprintln!("fuse-client: no log of this mount: {}: {error}", path.display());
    }
    made.is_ok().then_some(path)
}

/// "mnt-data.log" of "/mnt/data".
fn log_name(dir: &Path) -> OsString {
    let parts: Vec<&OsStr> = dir.iter().skip(1).collect();
    let mut name =
        if parts.is_empty() { OsString::from("root") } else { parts.join(OsStr::new("-")) };
    name.push(".log");
    name
}

fn is_background() -> bool {
    std::env::var_os(BACKGROUND).is_some()
}

/// In the background process: leaves the session of the terminal.
pub fn detach() {
    if is_background()
        && let Err(error) = rustix::process::setsid()
    {
        tracing::debug!(%error, "cannot leave the terminal's session");
    }
}

/// In the background process: tells the parent that the mount answers. In the foreground, tells the
/// user.
pub fn report_ready(settings: &MountSettings) {
    if is_background() {
        say(READY);
    } else {
        println!("{} is mounted on {}", settings.address, settings.dir.display());
    }
}

/// In the background process: tells the parent why there is no mount.
pub fn report_failure(error: &MountError) {
    if is_background() {
        say(&error.to_string().replace('\n', " "));
    }
}

/// A parent that has gone does not matter: it was told already, or was killed.
fn say(word: &str) {
    let mut out = io::stdout().lock();
    drop(writeln!(out, "{word}").and_then(|()| out.flush()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mount_point_has_a_log_of_its_own() {
        for (dir, name) in [("/mnt/data", "mnt-data.log"), ("/mnt", "mnt.log"), ("/", "root.log")] {
            assert_eq!(log_name(Path::new(dir)), OsStr::new(name));
        }
    }
}
