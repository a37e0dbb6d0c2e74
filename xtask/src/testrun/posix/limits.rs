//! Sizes that break what is sized for the usual: long names, huge directories, many names at once.

use super::{Check, refused, same};
use crate::error::{Context, Outcome, ensure, fail};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::Path;

/// All of this module.
pub const CHECKS: [Check; 4] = [
    ("names_of_255_bytes", 30, long_names),
    ("deep_directories", 60, deep),
    ("directory_of_100000_entries", 900, huge_directory),
    ("readdir_while_removing", 120, readdir_while_removing),
];

fn long_names(dir: &Path, _: bool) -> Outcome {
    let longest = "n".repeat(255);
    for name in [longest.clone(), "\u{e9}".repeat(127), "a\\b\"c*d?e\nf".into(), "-rf".into()] {
        let path = dir.join(&name);
        fs::write(&path, &name).doing(|| format!("create of a name of {} bytes", name.len()))?;
        same("content", &fs::read(&path).doing(|| "read")?, &name.clone().into_bytes())?;
    }
    let entries = fs::read_dir(dir)
        .and_then(|d| d.map(|e| Ok(e?.file_name())).collect::<Result<HashSet<_>, _>>());
    let entries = entries.doing(|| "readdir")?;
    same("entries", &entries.len(), &4)?;
    ensure!(entries.contains(&OsString::from(&longest)), "the long name is not listed");
    fs::rename(dir.join(&longest), dir.join("m".repeat(255)))
        .doing(|| "rename between long names")?;
    refused("create of 256 bytes", File::create(dir.join("n".repeat(256))), Errno::NAMETOOLONG)?;
    refused("mkdir of 256 bytes", fs::create_dir(dir.join("n".repeat(256))), Errno::NAMETOOLONG)
}

fn deep(dir: &Path, _: bool) -> Outcome {
    let mut path = dir.to_path_buf();
    for level in 0..100 {
        path.push(format!("level-{level}"));
    }
    fs::create_dir_all(&path).doing(|| "mkdir of 100 levels")?;
    fs::write(path.join("leaf"), "leaf").doing(|| "write at the bottom")?;
    fs::rename(dir.join("level-0/level-1"), dir.join("moved")).doing(|| "rename of a deep tree")?;
    let moved = path
        .components()
        .skip(dir.components().count() + 2)
        .fold(dir.join("moved"), |p, c| p.join(c));
    same("leaf", &fs::read(moved.join("leaf")).doing(|| "read at the bottom")?, &b"leaf".to_vec())?;
    refused(
        "rename into its own child",
        fs::rename(dir.join("moved"), dir.join("moved/level-2/loop")),
        Errno::INVAL,
    )
}

/// Every entry is listed once, whatever the pages; and is found.
fn huge_directory(dir: &Path, quick: bool) -> Outcome {
    const THREADS: usize = 4;
    let count = if quick { 5_000 } else { 100_000 };
    let name = |i: usize| format!("entry-{i:06}-{}", "x".repeat(i % 40));
    std::thread::scope(|scope| {
        let make = |thread: usize| {
            scope.spawn(move || {
                (thread..count).step_by(THREADS).try_for_each(|i| {
                    let mode = Mode::from_raw_mode(0o644);
                    mknodat(CWD, dir.join(name(i)), FileType::RegularFile, mode, 0)
                })
            })
        };
        let threads: Vec<_> = (0..THREADS).map(make).collect();
        threads.into_iter().try_for_each(|t| match t.join() {
            Ok(result) => result.doing(|| "create"),
            Err(_) => fail("a thread panicked"),
        })
    })?;
    let mut seen = HashSet::new();
    for entry in fs::read_dir(dir).doing(|| "opendir")? {
        let entry = entry.doing(|| "readdir")?;
        ensure!(seen.insert(entry.file_name()), "{:?} is listed twice", entry.file_name());
    }
    same("entries listed", &seen.len(), &count)?;
    if let Some(missing) = (0..count).find(|&i| !seen.contains(&OsString::from(name(i)))) {
        return fail(format!("{} is not listed", name(missing)));
    }
    for i in (0..count).step_by(997) {
        fs::symlink_metadata(dir.join(name(i))).doing(|| format!("stat of {}", name(i)))?;
    }
    refused("removal of a full directory", fs::remove_dir(dir), Errno::NOTEMPTY)
}

/// What is removed while a directory is read must not make other entries disappear from the
/// reading.
fn readdir_while_removing(dir: &Path, quick: bool) -> Outcome {
    let count = if quick { 500 } else { 3_000 };
    for i in 0..count {
        File::create(dir.join(format!("f{i}"))).doing(|| "create")?;
    }
    let mut seen = 0;
    for entry in fs::read_dir(dir).doing(|| "opendir")? {
        let entry = entry.doing(|| "readdir")?;
        fs::remove_file(entry.path()).doing(|| "unlink")?;
        seen += 1;
    }
    same("entries seen and removed", &seen, &count)?;
    same("entries left", &fs::read_dir(dir).doing(|| "opendir")?.count(), &0)
}
