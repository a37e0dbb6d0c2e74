//! Names and attributes: links, renames, special files, extended attributes, times.

use super::{Check, noise, refused, same, stored};
use crate::error::{Context, Outcome, ensure, fail};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, RenameFlags, Timespec, Timestamps, XattrFlags, getxattr,
    listxattr, makedev, mknodat, removexattr, renameat_with, setxattr, utimensat,
};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// File systems take times from a clock that moves by ticks.
const SLACK: Duration = Duration::from_millis(100);

/// All of this module.
pub const CHECKS: [Check; 11] = [
    ("hard_links", 30, hard_links),
    ("symbolic_links", 30, symbolic_links),
    ("unlink_while_open", 60, unlink_while_open),
    ("rename_over_existing", 60, rename_over),
    ("rename_noreplace_and_exchange", 30, rename_flags),
    ("special_files", 30, special_files),
    ("extended_attributes", 60, extended_attributes),
    ("times_in_nanoseconds", 30, times),
    ("time_of_birth", 30, birth),
    ("owner_and_mode", 30, owner_and_mode),
    ("locks_between_processes", 60, locks),
];

fn meta(path: &Path) -> Outcome<fs::Metadata> {
    fs::symlink_metadata(path).doing(|| format!("lstat of {}", path.display()))
}

fn hard_links(dir: &Path, _: bool) -> Outcome {
    let (a, b) = (dir.join("a"), dir.join("b"));
    fs::write(&a, "one").doing(|| "write")?;
    fs::hard_link(&a, &b).doing(|| "link")?;
    same("inode numbers", &meta(&a)?.ino(), &meta(&b)?.ino())?;
    same("link count", &meta(&a)?.nlink(), &2)?;
    OpenOptions::new()
        .append(true)
        .open(&b)
        .and_then(|mut f| f.write_all(b" two"))
        .doing(|| "append by other name")?;
    same("content by the first name", &stored(&a)?, &b"one two".to_vec())?;
    fs::remove_file(&a).doing(|| "unlink")?;
    same("link count after unlink", &meta(&b)?.nlink(), &1)?;
    same("content after unlink", &stored(&b)?, &b"one two".to_vec())?;
    fs::create_dir(dir.join("d")).doing(|| "mkdir")?;
    refused("link to a directory", fs::hard_link(dir.join("d"), dir.join("e")), Errno::PERM)?;
    same("link count of a directory", &meta(&dir.join("d"))?.nlink(), &2)
}

fn symbolic_links(dir: &Path, _: bool) -> Outcome {
    let long = "t".repeat(4_095);
    for (name, target) in
        [("short", "x"), ("long", long.as_str()), ("up", "../.."), ("odd", "a b\nc")]
    {
        let path = dir.join(name);
        symlink(target, &path).doing(|| format!("symlink {name}"))?;
        same(name, &fs::read_link(&path).doing(|| "readlink")?, &target.into())?;
        same("size of a link", &meta(&path)?.len(), &(target.len() as u64))?;
    }
    symlink("loop", dir.join("loop")).doing(|| "symlink")?;
    refused("open of a loop", File::open(dir.join("loop")), Errno::LOOP)
}

/// An open file goes on without a name, and its space is used by nobody else meanwhile.
fn unlink_while_open(dir: &Path, _: bool) -> Outcome {
    let path = dir.join("file");
    let bytes = noise(1, 300_000);
    fs::write(&path, &bytes).doing(|| "write")?;
    let mut file = OpenOptions::new().read(true).write(true).open(&path).doing(|| "open")?;
    fs::remove_file(&path).doing(|| "unlink")?;
    fs::write(&path, "another").doing(|| "write under the same name")?;
    same("link count", &file.metadata().doing(|| "fstat")?.nlink(), &0)?;
    let mut found = Vec::new();
    file.read_to_end(&mut found).doing(|| "read without a name")?;
    ensure!(found == bytes, "the open file has changed");
    file.write_all(b"more").and_then(|()| file.sync_all()).doing(|| "write without a name")?;
    same("size", &file.metadata().doing(|| "fstat")?.len(), &300_004)?;
    same("the other file", &stored(&path)?, &b"another".to_vec())
}

fn rename_over(dir: &Path, _: bool) -> Outcome {
    let (a, b) = (dir.join("a"), dir.join("b"));
    fs::write(&a, "new").and_then(|()| fs::write(&b, "old")).doing(|| "write")?;
    let mut open = File::open(&b).doing(|| "open of the target")?;
    fs::rename(&a, &b).doing(|| "rename over a file")?;
    refused("stat of the old name", fs::metadata(&a), Errno::NOENT)?;
    same("content", &stored(&b)?, &b"new".to_vec())?;
    let mut old = String::new();
    open.read_to_string(&mut old).doing(|| "read of the replaced file")?;
    same("content of the replaced file", &old.as_str(), &"old")?;
    for name in ["d", "e", "e/full"] {
        fs::create_dir(dir.join(name)).doing(|| "mkdir")?;
    }
    refused(
        "rename over a full directory",
        fs::rename(dir.join("d"), dir.join("e")),
        Errno::NOTEMPTY,
    )?;
    refused("rename of a file over a directory", fs::rename(&b, dir.join("d")), Errno::ISDIR)?;
    refused("rename of a directory over a file", fs::rename(dir.join("d"), &b), Errno::NOTDIR)?;
    fs::rename(dir.join("e"), dir.join("d")).doing(|| "rename over an empty directory")?;
    ensure!(dir.join("d/full").is_dir(), "the directory lost its entry");
    same("link count of the parent", &meta(dir)?.nlink(), &3)?;
    fs::hard_link(&b, &a).doing(|| "link")?;
    fs::rename(&a, &b).doing(|| "rename between names of one file")?;
    ensure!(a.exists() && b.exists(), "a rename between two names of one file must do nothing");
    Ok(())
}

fn rename_flags(dir: &Path, _: bool) -> Outcome {
    let (a, b, c) = (dir.join("a"), dir.join("b"), dir.join("c"));
    fs::write(&a, "a").and_then(|()| fs::write(&b, "b")).doing(|| "write")?;
    let rename = |from: &Path, to: &Path, flags| renameat_with(CWD, from, CWD, to, flags);
    refused("RENAME_NOREPLACE over a file", rename(&a, &b, RenameFlags::NOREPLACE), Errno::EXIST)?;
    rename(&a, &c, RenameFlags::NOREPLACE).doing(|| "RENAME_NOREPLACE")?;
    rename(&c, &b, RenameFlags::EXCHANGE).doing(|| "RENAME_EXCHANGE")?;
    same("after the exchange", &(stored(&b)?, stored(&c)?), &(b"a".to_vec(), b"b".to_vec()))
}

fn special_files(dir: &Path, _: bool) -> Outcome {
    let mode = Mode::from_raw_mode(0o640);
    let device = makedev(1, 3);
    for (name, kind, device) in [
        ("fifo", FileType::Fifo, 0),
        ("character", FileType::CharacterDevice, device),
        ("block", FileType::BlockDevice, makedev(7, 200)),
    ] {
        let path = dir.join(name);
        mknodat(CWD, &path, kind, mode, device).doing(|| format!("mknod of a {name}"))?;
        let meta = meta(&path)?;
        same(name, &FileType::from_raw_mode(meta.mode()), &kind)?;
        same("device number", &meta.rdev(), &device)?;
    }
    let mut null =
        OpenOptions::new().write(true).open(dir.join("character")).doing(|| "open of a device")?;
    null.write_all(b"gone").doing(|| "write to a device")?;
    let listener = UnixListener::bind(dir.join("socket")).doing(|| "bind of a socket")?;
    ensure!(meta(&dir.join("socket"))?.file_type().is_socket(), "a socket is not one");
    drop(listener);
    let fifo = dir.join("fifo");
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| fs::write(&fifo, "through"));
        let through = fs::read(&fifo).doing(|| "read of a fifo")?;
        writer.join().map_err(|_| "panicked").doing(|| "writer")?.doing(|| "write to a fifo")?;
        same("fifo", &through, &b"through".to_vec())
    })
}

fn extended_attributes(dir: &Path, _: bool) -> Outcome {
    let path = dir.join("file");
    File::create(&path).doing(|| "create")?;
    let big = noise(2, 3_000);
    let get = |name: &str| -> rustix::io::Result<Vec<u8>> {
        let mut space = vec![0; 65_536];
        let n = getxattr(&path, name, &mut space[..])?;
        space.truncate(n);
        Ok(space)
    };
    for (name, value) in [("user.a", &b"one"[..]), ("user.empty", b""), ("user.big", &big)] {
        setxattr(&path, name, value, XattrFlags::empty()).doing(|| format!("setxattr {name}"))?;
        same(name, &get(name).doing(|| "getxattr")?, &value.to_vec())?;
    }
    refused(
        "XATTR_CREATE of one that is there",
        setxattr(&path, "user.a", b"x", XattrFlags::CREATE),
        Errno::EXIST,
    )?;
    refused(
        "XATTR_REPLACE of none",
        setxattr(&path, "user.no", b"x", XattrFlags::REPLACE),
        Errno::NODATA,
    )?;
    setxattr(&path, "user.a", b"two", XattrFlags::REPLACE).doing(|| "XATTR_REPLACE")?;
    same("replaced", &get("user.a").doing(|| "getxattr")?, &b"two".to_vec())?;
    let mut space = vec![0u8; 4_096];
    let n = listxattr(&path, &mut space[..]).doing(|| "listxattr")?;
    let mut names: Vec<&[u8]> =
        space[..n].split(|&b| b == 0).filter(|s| s.starts_with(b"user.")).collect();
    names.sort();
    same("names", &names, &vec![&b"user.a"[..], b"user.big", b"user.empty"])?;
    refused(
        "getxattr into too little",
        getxattr(&path, "user.big", &mut [0u8; 10][..]),
        Errno::RANGE,
    )?;
    removexattr(&path, "user.a").doing(|| "removexattr")?;
    refused("getxattr after removal", get("user.a"), Errno::NODATA)?;
    refused("second removal", removexattr(&path, "user.a"), Errno::NODATA)?;
    fs::rename(&path, dir.join("moved")).doing(|| "rename")?;
    let moved = dir.join("moved");
    let n = getxattr(&moved, "user.big", &mut space[..]).doing(|| "getxattr after rename")?;
    ensure!(space[..n] == big, "the attribute changed with the rename");
    Ok(())
}

fn times(dir: &Path, _: bool) -> Outcome {
    let path = dir.join("file");
    fs::write(&path, "x").doing(|| "write")?;
    let at = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    for (access, modification) in
        [(at(1_000_000_001, 1), at(1_234_567_890, 123_456_789)), (at(0, 0), at(-5, 7))]
    {
        let wanted = Timestamps { last_access: access, last_modification: modification };
        utimensat(CWD, &path, &wanted, AtFlags::empty()).doing(|| "utimensat")?;
        let meta = meta(&path)?;
        same(
            "mtime",
            &(meta.mtime(), meta.mtime_nsec()),
            &(modification.tv_sec, modification.tv_nsec),
        )?;
        same("atime", &(meta.atime(), meta.atime_nsec()), &(access.tv_sec, access.tv_nsec))?;
    }
    let before = meta(&path)?;
    std::thread::sleep(Duration::from_millis(20));
    fs::write(&path, "later").doing(|| "write")?;
    let after = meta(&path)?;
    let time = |m: &fs::Metadata| (m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec());
    ensure!(
        after.mtime() > before.mtime() && time(&after) != time(&before),
        "a write does not change the times"
    );
    let parent = meta(dir)?;
    std::thread::sleep(Duration::from_millis(20));
    fs::write(dir.join("new"), "").doing(|| "create")?;
    ensure!(time(&meta(dir)?) > time(&parent), "a new name does not change its directory's time");
    Ok(())
}

/// It is told, and nothing moves it.
fn birth(dir: &Path, _: bool) -> Outcome {
    let before = SystemTime::now() - SLACK;
    let born = |path: &Path| meta(path)?.created().doing(|| format!("birth of {}", path.display()));
    let path = dir.join("file");
    fs::write(&path, "x").doing(|| "write")?;
    fs::create_dir(dir.join("d"))
        .and_then(|()| symlink("x", dir.join("l")))
        .doing(|| "mkdir, symlink")?;
    for name in ["file", "d", "l"] {
        let time = born(&dir.join(name))?;
        ensure!(
            time >= before && time <= SystemTime::now() + SLACK,
            "{name} was made now, not at {time:?}"
        );
    }
    let first = born(&path)?;
    std::thread::sleep(Duration::from_millis(20));
    let old = Timespec { tv_sec: 1_000, tv_nsec: 0 };
    let wanted = Timestamps { last_access: old, last_modification: old };
    utimensat(CWD, &path, &wanted, AtFlags::empty()).doing(|| "utimensat")?;
    fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).doing(|| "chmod")?;
    OpenOptions::new()
        .append(true)
        .open(&path)
        .and_then(|mut file| file.write_all(b"more"))
        .doing(|| "append")?;
    let moved = dir.join("d/moved");
    fs::hard_link(&path, dir.join("other"))
        .and_then(|()| fs::rename(&path, &moved))
        .doing(|| "link and rename")?;
    same("birth", &(born(&moved)?, born(&dir.join("other"))?), &(first, first))?;
    same("size that came with it", &meta(&moved)?.len(), &5)?;
    fs::remove_file(&moved).and_then(|()| fs::write(&moved, "")).doing(|| "a file made anew")?;
    ensure!(born(&moved)? > first, "a file made anew was born with the old one");
    Ok(())
}

fn owner_and_mode(dir: &Path, _: bool) -> Outcome {
    let path = dir.join("file");
    fs::write(&path, "x").doing(|| "write")?;
    for mode in [0o000, 0o4755, 0o2644, 0o1777, 0o640] {
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).doing(|| "chmod")?;
        same("mode", &(meta(&path)?.mode() & 0o7777), &mode)?;
    }
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    std::os::unix::fs::chown(&path, Some(12_345), Some(4_000_000_000)).doing(|| "chown")?;
    same("owner", &(meta(&path)?.uid(), meta(&path)?.gid()), &(12_345, 4_000_000_000))?;
    fs::set_permissions(&path, PermissionsExt::from_mode(0o6755)).doing(|| "chmod")?;
    std::os::unix::fs::chown(&path, Some(1), None).doing(|| "chown")?;
    same("mode after chown: no set-id bits", &(meta(&path)?.mode() & 0o7777), &0o755)?;
    // A set-group-id directory hands its group on.
    fs::create_dir(dir.join("shared")).doing(|| "mkdir")?;
    std::os::unix::fs::chown(dir.join("shared"), None, Some(777)).doing(|| "chown")?;
    fs::set_permissions(dir.join("shared"), PermissionsExt::from_mode(0o2775)).doing(|| "chmod")?;
    fs::write(dir.join("shared/child"), "").doing(|| "create")?;
    same("group of the child", &meta(&dir.join("shared/child"))?.gid(), &777)
}

/// flock between two processes.
fn locks(dir: &Path, _: bool) -> Outcome {
    let path = dir.join("lock");
    let file = File::create(&path).doing(|| "create")?;
    file.lock().doing(|| "flock")?;
    let tries = || {
        let status = std::process::Command::new("flock").arg("-n").arg(&path).arg("true").status();
        Ok(status.doing(|| "cannot run flock")?.success())
    };
    if tries()? {
        return fail("another process got a lock that is held");
    }
    file.unlock().doing(|| "unlock")?;
    ensure!(tries()?, "a lock that was given back cannot be taken");
    Ok(())
}
