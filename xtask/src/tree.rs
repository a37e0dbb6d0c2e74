//! A real tree of files: found on this machine, bounded, copied, and compared byte by byte with all
//! metadata.

use crate::error::{Context, Outcome, ensure, fail};
use crate::exec::{self, Interrupt};
use rustix::fs::{Advice, fadvise};
use std::collections::BTreeSet;
use std::fs::{self, File, FileTimes, Metadata};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

/// A tree, or the part of it that fits the bounds: paths below the root, a directory before what it
/// holds.
#[derive(Clone, Debug)]
pub struct Tree {
    /// Where it lies.
    pub root: PathBuf,
    /// What belongs to it, relative.
    pub paths: Vec<PathBuf>,
    /// Number of regular files.
    pub files: u64,
    /// Bytes in them.
    pub bytes: u64,
}

/// The toolchain's library sources if they are installed, else the sources of crates in cargo's
/// registry.
///
/// # Errors
/// When neither is there, with the command that brings one.
pub fn real(interrupt: &Interrupt) -> Outcome<PathBuf> {
    let sysroot = exec::run_ok(
        Command::new("rustc").args(["--print", "sysroot"]),
        Duration::from_secs(30),
        interrupt,
    )?;
    let library = Path::new(sysroot.stdout.trim()).join("lib/rustlib/src/rust/library");
    let cargo_home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(|h| Path::new(&h).join(".cargo"));
    let registry = cargo_home.or(home).map(|h| h.join("registry/src")).filter(|r| r.is_dir());
    match (library.is_dir(), registry) {
        (true, _) => Ok(library),
        (false, Some(registry)) => Ok(registry),
        (false, None) => fail("no real tree to copy; `rustup component add rust-src` installs one"),
    }
}

impl Tree {
    /// Lists what lies below `root`, in a fixed order, up to about these bounds.
    ///
    /// # Errors
    /// When a directory cannot be read.
    pub fn list(root: &Path, files_max: u64, bytes_max: u64) -> Outcome<Tree> {
        let mut tree = Tree { root: root.to_path_buf(), paths: Vec::new(), files: 0, bytes: 0 };
        tree.visit(Path::new(""), files_max, bytes_max)?;
        Ok(tree)
    }

    fn visit(&mut self, dir: &Path, files_max: u64, bytes_max: u64) -> Outcome {
        for name in names(&self.root.join(dir))? {
            if self.files >= files_max || self.bytes >= bytes_max {
                return Ok(());
            }
            let path = dir.join(name);
            let meta = metadata(&self.root.join(&path))?;
            if !(meta.is_file() || meta.is_dir() || meta.is_symlink()) {
                continue;
            }
            self.paths.push(path.clone());
            if meta.is_file() {
                self.files += 1;
                self.bytes += meta.len();
            } else if meta.is_dir() {
                self.visit(&path, files_max, bytes_max)?;
            }
        }
        Ok(())
    }

    /// Copies it with modes and modification times. `tick` is asked before every file.
    ///
    /// # Errors
    /// Those of the system, and what `tick` says.
    pub fn copy(&self, to: &Path, mut tick: impl FnMut() -> Outcome) -> Outcome {
        fs::create_dir_all(to).doing(|| format!("cannot make {}", to.display()))?;
        for path in &self.paths {
            tick()?;
            let (from, to) = (self.root.join(path), to.join(path));
            copy_one(&from, &to).doing(|| format!("cannot copy to {}", to.display()))?;
        }
        // Backwards, so that nothing changes a directory's time after it was set.
        for path in self.paths.iter().rev() {
            let meta = metadata(&self.root.join(path))?;
            if meta.is_dir() {
                let to = to.join(path);
                adopt(&to, &meta).doing(|| format!("cannot set the times of {}", to.display()))?;
            }
        }
        Ok(())
    }

    /// Compares a copy with it: kinds, names, bytes, sizes, modes, modification times, link
    /// targets.
    ///
    /// # Errors
    /// With the first five differences.
    pub fn compare(&self, copy: &Path, mut tick: impl FnMut() -> Outcome) -> Outcome {
        let mut differences = Vec::new();
        for path in &self.paths {
            tick()?;
            differences.extend(compare_one(&self.root.join(path), &copy.join(path)));
            if differences.len() >= 5 {
                break;
            }
        }
        differences.extend(self.strangers(copy)?);
        ensure!(differences.is_empty(), "the copy differs:\n  {}", differences.join("\n  "));
        Ok(())
    }

    /// Names in the copy that the tree does not have.
    fn strangers(&self, copy: &Path) -> Outcome<Vec<String>> {
        let ours: BTreeSet<&Path> = self.paths.iter().map(PathBuf::as_path).collect();
        let dirs = self.paths.iter().filter(|p| self.root.join(p).is_dir()).map(PathBuf::as_path);
        let mut found = Vec::new();
        for dir in std::iter::once(Path::new("")).chain(dirs) {
            for name in names(&copy.join(dir))? {
                let path = dir.join(name);
                if !ours.contains(path.as_path()) {
                    found.push(format!("{}: only in the copy", path.display()));
                }
            }
        }
        found.truncate(5);
        Ok(found)
    }
}

fn copy_one(from: &Path, to: &Path) -> std::io::Result<()> {
    let meta = fs::symlink_metadata(from)?;
    if meta.is_dir() {
        return fs::create_dir(to);
    }
    if meta.is_symlink() {
        return symlink(fs::read_link(from)?, to);
    }
    File::create_new(to)?.write_all(&fs::read(from)?)?;
    adopt(to, &meta)
}

/// Takes over mode and modification time.
fn adopt(path: &Path, meta: &Metadata) -> std::io::Result<()> {
    fs::set_permissions(path, meta.permissions())?;
    let times = FileTimes::new().set_modified(meta.modified()?).set_accessed(SystemTime::now());
    File::open(path)?.set_times(times)
}

fn compare_one(a: &Path, b: &Path) -> Option<String> {
    let (ma, mb) = match (fs::symlink_metadata(a), fs::symlink_metadata(b)) {
        (Ok(ma), Ok(mb)) => (ma, mb),
        (Err(e), _) => return Some(format!("{}: {e}", a.display())),
        (_, Err(e)) => return Some(format!("{}: {e}", b.display())),
    };
    let differs = |what: String| Some(format!("{}: {what}", b.display()));
    if ma.file_type() != mb.file_type() {
        return differs(format!("{:?} instead of {:?}", mb.file_type(), ma.file_type()));
    }
    if ma.is_symlink() {
        let (ta, tb) = (fs::read_link(a).ok(), fs::read_link(b).ok());
        return if ta == tb {
            None
        } else {
            differs(format!("points to {tb:?} instead of {ta:?}"))
        };
    }
    let mode = |m: &Metadata| m.permissions().mode() & 0o7777;
    if mode(&ma) != mode(&mb) {
        return differs(format!("mode {:o} instead of {:o}", mode(&mb), mode(&ma)));
    }
    let time = |m: &Metadata| (m.mtime(), m.mtime_nsec());
    if time(&ma) != time(&mb) {
        return differs(format!("modified at {:?} instead of {:?}", time(&mb), time(&ma)));
    }
    if !ma.is_file() {
        return None;
    }
    match (fs::read(a), read_uncached(b)) {
        (Ok(bytes), Ok(copy)) => first_difference(&bytes, &copy).and_then(differs),
        (Err(e), _) | (_, Err(e)) => differs(e.to_string()),
    }
}

/// Where two contents first differ, in words.
pub fn first_difference(expected: &[u8], found: &[u8]) -> Option<String> {
    if expected.len() != found.len() {
        return Some(format!("{} bytes instead of {}", found.len(), expected.len()));
    }
    let at = expected.iter().zip(found).position(|(x, y)| x != y)?;
    Some(format!("byte {at} is {:#04x} instead of {:#04x}", found[at], expected[at]))
}

/// Reads a file after dropping the kernel's clean pages of it, so that the file system is really
/// asked.
///
/// # Errors
/// Those of the system.
pub fn read_uncached(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    fadvise(&file, 0, None, Advice::DontNeed)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn names(dir: &Path) -> Outcome<Vec<std::ffi::OsString>> {
    let list = fs::read_dir(dir).and_then(|entries| entries.map(|e| Ok(e?.file_name())).collect());
    let mut list: Vec<_> = list.doing(|| format!("cannot list {}", dir.display()))?;
    list.sort();
    Ok(list)
}

fn metadata(path: &Path) -> Outcome<Metadata> {
    fs::symlink_metadata(path).doing(|| format!("cannot stat {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(dir: &Path) -> Tree {
        let root = dir.join("a");
        fs::create_dir_all(root.join("sub")).unwrap();
        fs::write(root.join("sub/file"), b"0123456789").unwrap();
        fs::write(root.join("other"), b"").unwrap();
        symlink("other", root.join("link")).unwrap();
        Tree::list(&root, 100, 1 << 20).unwrap()
    }

    #[test]
    fn a_copy_equals_its_source() {
        let dir = tempfile::tempdir().unwrap();
        let tree = sample(dir.path());
        assert_eq!((tree.files, tree.bytes, tree.paths.len()), (2, 10, 4));
        let copy = dir.path().join("b");
        tree.copy(&copy, || Ok(())).unwrap();
        tree.compare(&copy, || Ok(())).unwrap();
    }

    #[test]
    fn every_kind_of_difference_is_found() {
        let spoilers: [fn(&Path); 5] = [
            |copy| fs::write(copy.join("sub/file"), b"0123456780").unwrap(),
            |copy| fs::write(copy.join("stranger"), b"").unwrap(),
            |copy| fs::remove_file(copy.join("link")).unwrap(),
            |copy| {
                fs::set_permissions(copy.join("other"), PermissionsExt::from_mode(0o600)).unwrap()
            },
            |copy| {
                File::open(copy.join("sub")).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap()
            },
        ];
        for spoil in spoilers {
            let dir = tempfile::tempdir().unwrap();
            let tree = sample(dir.path());
            let copy = dir.path().join("b");
            tree.copy(&copy, || Ok(())).unwrap();
            spoil(&copy);
            assert!(tree.compare(&copy, || Ok(())).is_err());
        }
    }
}
