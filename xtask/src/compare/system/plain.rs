//! A directory of the disk that the others have their data on: the floor.

use super::{Parts, System};
use crate::compare::cpu::Process;
use crate::error::{Context, Outcome};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The directory.
pub struct Plain {
    area: PathBuf,
}

impl Plain {
    /// Makes it.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn up(dir: &Path) -> Outcome<Plain> {
        let area = dir.join("area");
        std::fs::create_dir_all(&area).doing(|| format!("cannot make {}", area.display()))?;
        Ok(Plain { area })
    }
}

/// Type and source of the file system at a path, from findmnt; "unknown" where it does not tell.
pub fn kind_of(path: &Path) -> String {
    let out = Command::new("findmnt")
        .args(["-no", "FSTYPE,SOURCE,OPTIONS", "--target"])
        .arg(path)
        .output();
    let words = out.map(|out| {
        String::from_utf8_lossy(&out.stdout).split_whitespace().collect::<Vec<_>>().join(" ")
    });
    words.ok().filter(|words| !words.is_empty()).unwrap_or_else(|| "unknown".into())
}

impl System for Plain {
    fn name(&self) -> &str {
        super::Peer::Ext4.name()
    }

    fn area(&self) -> &Path {
        &self.area
    }

    fn describe(&self) -> Vec<String> {
        vec![format!("a directory of the disk: {}", kind_of(&self.area))]
    }

    fn processes(&self) -> Vec<Process> {
        Vec::new()
    }

    fn parts(&mut self) -> Option<&mut dyn Parts> {
        None
    }
}
