//! Files without a name (`O_TMPFILE`), and names that hide others (`RENAME_WHITEOUT`).

use super::{Check, noise, refused, same, stored};
use crate::error::{Context, Outcome, ensure};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, XattrFlags, linkat, makedev, openat,
    renameat_with, setxattr,
};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// All of this module.
pub const CHECKS: [Check; 3] = [
    ("file_without_a_name", 60, unnamed),
    ("name_for_a_file_without", 60, linked),
    ("whiteouts", 60, whiteouts),
];

fn open(dir: &Path, flags: OFlags, mode: u32) -> rustix::io::Result<File> {
    openat(CWD, dir, OFlags::TMPFILE | flags, Mode::from_raw_mode(mode)).map(File::from)
}

fn entries(dir: &Path) -> Outcome<usize> {
    Ok(fs::read_dir(dir).doing(|| "opendir")?.count())
}

/// The path by which a descriptor is linked without any right.
fn in_proc(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

fn unnamed(dir: &Path, _: bool) -> Outcome {
    let before = fs::metadata(dir).doing(|| "stat of the directory")?;
    let mut file = open(dir, OFlags::RDWR, 0o640).doing(|| "O_TMPFILE")?;
    let bytes = noise(1, 300_000);
    file.write_all(&bytes).and_then(|()| file.sync_all()).doing(|| "write and fsync")?;
    let meta = file.metadata().doing(|| "fstat")?;
    same(
        "links, mode and size",
        &(meta.nlink(), meta.mode() & 0o7777, meta.len()),
        &(0, 0o640, 300_000),
    )?;
    same("entries", &entries(dir)?, &0)?;
    let after = fs::metadata(dir).doing(|| "stat of the directory")?;
    same(
        "times of the directory",
        &(after.mtime(), after.mtime_nsec()),
        &(before.mtime(), before.mtime_nsec()),
    )?;
    let mut found = Vec::new();
    file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_end(&mut found)).doing(|| "read")?;
    ensure!(found == bytes, "the content has changed");
    file.set_len(10).doing(|| "ftruncate")?;
    file.set_permissions(PermissionsExt::from_mode(0o600)).doing(|| "fchmod")?;
    let again = File::open(in_proc(&file)).doing(|| "open by /proc")?;
    drop(file);
    same("size", &again.metadata().doing(|| "fstat")?.len(), &10)?;
    refused("O_TMPFILE to read", open(dir, OFlags::RDONLY, 0o600), Errno::INVAL)?;
    let path = dir.join("file");
    fs::write(&path, "x").doing(|| "write")?;
    refused("O_TMPFILE in a file", open(&path, OFlags::RDWR, 0o600), Errno::NOTDIR)?;
    refused("O_TMPFILE nowhere", open(&dir.join("no"), OFlags::RDWR, 0o600), Errno::NOENT)
}

/// linkat gives it a name, once, unless `O_EXCL` says that it shall have none.
fn linked(dir: &Path, _: bool) -> Outcome {
    let mut file = open(dir, OFlags::RDWR, 0o644).doing(|| "O_TMPFILE")?;
    file.write_all(b"content").doing(|| "write")?;
    setxattr(in_proc(&file), "user.a", b"value", XattrFlags::empty()).doing(|| "setxattr")?;
    let (first, second) = (dir.join("first"), dir.join("second"));
    let by_proc =
        |file: &File, to: &Path| linkat(CWD, in_proc(file), CWD, to, AtFlags::SYMLINK_FOLLOW);
    fs::write(&second, "taken").doing(|| "write")?;
    refused("linkat over a name", by_proc(&file, &second), Errno::EXIST)?;
    by_proc(&file, &first).doing(|| "linkat by /proc")?;
    let meta = fs::metadata(&first).doing(|| "stat")?;
    same(
        "links and inode",
        &(meta.nlink(), meta.ino()),
        &(1, file.metadata().doing(|| "fstat")?.ino()),
    )?;
    same("content", &stored(&first)?, &b"content".to_vec())?;
    file.write_all(b" and more")
        .and_then(|()| file.sync_all())
        .doing(|| "write through the handle")?;
    same("content", &stored(&first)?, &b"content and more".to_vec())?;
    fs::hard_link(&first, dir.join("third")).doing(|| "link")?;
    fs::remove_file(&first).and_then(|()| fs::remove_file(dir.join("third"))).doing(|| "unlink")?;
    refused("linkat when the last name is gone", by_proc(&file, &first), Errno::NOENT)?;
    let exclusive =
        open(dir, OFlags::RDWR | OFlags::EXCL, 0o644).doing(|| "O_TMPFILE with O_EXCL")?;
    refused("linkat with O_EXCL", by_proc(&exclusive, &first), Errno::NOENT)?;
    if rustix::process::geteuid().is_root() {
        let mut other = open(dir, OFlags::WRONLY, 0o600).doing(|| "O_TMPFILE to write")?;
        other.write_all(b"other").doing(|| "write")?;
        linkat(&other, "", CWD, &first, AtFlags::EMPTY_PATH)
            .doing(|| "linkat with AT_EMPTY_PATH")?;
        drop(other);
        same("content", &stored(&first)?, &b"other".to_vec())?;
    }
    // Many at once, each with a name of its own in the end.
    std::thread::scope(|scope| {
        let make = |thread: usize| {
            scope.spawn(move || {
                (0..20).try_for_each(|number| {
                    let mut file = open(dir, OFlags::WRONLY, 0o600).doing(|| "O_TMPFILE")?;
                    let name = format!("{thread}-{number}");
                    file.write_all(name.as_bytes()).doing(|| "write")?;
                    by_proc(&file, &dir.join(&name)).doing(|| "linkat")?;
                    same("content", &stored(&dir.join(&name))?, &name.into_bytes())
                })
            })
        };
        let threads: Vec<_> = (0..4).map(make).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| "panicked").doing(|| "a thread")?)
    })
}

fn whiteouts(dir: &Path, _: bool) -> Outcome {
    let sub = dir.join("sub");
    fs::create_dir(&sub).doing(|| "mkdir")?;
    let rename = |from: &Path, to: &Path, flags| {
        renameat_with(CWD, from, CWD, to, RenameFlags::WHITEOUT | flags)
    };
    let is_whiteout = |path: &Path| -> Outcome {
        let meta = fs::symlink_metadata(path).doing(|| format!("lstat of {}", path.display()))?;
        let found = (FileType::from_raw_mode(meta.mode()), meta.rdev(), meta.mode() & 0o7777);
        same("whiteout", &found, &(FileType::CharacterDevice, makedev(0, 0), 0))
    };
    let (a, b, in_sub) = (dir.join("a"), dir.join("b"), sub.join("a"));
    fs::write(&a, "a").doing(|| "write")?;
    rename(&a, &b, RenameFlags::empty()).doing(|| "RENAME_WHITEOUT")?;
    is_whiteout(&a)?;
    same("moved", &stored(&b)?, &b"a".to_vec())?;
    rename(&b, &in_sub, RenameFlags::empty()).doing(|| "RENAME_WHITEOUT to another directory")?;
    is_whiteout(&b)?;
    refused(
        "over a name, with NOREPLACE",
        rename(&in_sub, &a, RenameFlags::NOREPLACE),
        Errno::EXIST,
    )?;
    rename(&in_sub, &a, RenameFlags::empty()).doing(|| "RENAME_WHITEOUT over a whiteout")?;
    is_whiteout(&in_sub)?;
    same("moved back", &stored(&a)?, &b"a".to_vec())?;
    refused("with EXCHANGE", rename(&a, &b, RenameFlags::EXCHANGE), Errno::INVAL)?;
    fs::remove_file(&in_sub).doing(|| "unlink of a whiteout")?;
    rename(&sub, &dir.join("moved"), RenameFlags::empty())
        .doing(|| "RENAME_WHITEOUT of a directory")?;
    is_whiteout(&sub)?;
    same("links of the parent", &fs::metadata(dir).doing(|| "stat")?.nlink(), &3)?;
    same("entries", &entries(dir)?, &4)
}
