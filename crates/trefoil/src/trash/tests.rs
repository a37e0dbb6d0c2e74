//! What is chosen, and who may.

use super::*;
use protocol::PoolId;
use protocol::namespace::{FileFlags, Footprint, Timestamp};

fn attr(kind: FileKind, mode: u32, uid: u32, gid: u32) -> Attr {
    let time = Timestamp::default();
    Attr {
        gfid: Gfid::of_inode(9),
        kind,
        mode,
        uid,
        gid,
        nlink: 1,
        rdev: 0,
        size: 5,
        atime: time,
        mtime: time,
        ctime: time,
        pool: PoolId::new(1),
        btime: None,
        flags: FileFlags::default(),
        has_xattrs: true,
        footprint: Footprint::Unknown,
    }
}

fn removed(path: &str, at: i64) -> Removed {
    let entry = TrashEntry { until: at + 100, gfid: Gfid::of_inode(at as u64) };
    let attr = attr(FileKind::Regular, 0o600, 7, 7);
    Removed { name: entry.name(), entry, attr, removed: at, path: path.into() }
}

#[test]
fn times_to_keep_have_units() {
    let good = [("7d", 604_800), ("12h", 43_200), ("30m", 1800), ("90s", 90), ("0", 0)];
    for (text, seconds) in good {
        assert_eq!(parse_keep(text), Ok(seconds), "{text}");
    }
    for bad in ["7", "-1d", "", "d", "1.5d", "99999d", "7w", "99999999999999999999d"] {
        assert!(parse_keep(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_directory_comes_back_with_the_last_of_each_name() {
    let all = [removed("/a/d/f", 1), removed("/a/d/f", 3), removed("/a/d/x/g", 2)];
    let other = [removed("/a/dd/f", 4)];
    let all: Vec<Removed> = all.into_iter().chain(other).collect();
    let chosen = |to: Option<&str>| -> Vec<(i64, String)> {
        below(&all, Path::new("/a/d"), to.map(Path::new))
            .into_iter()
            .map(|(removed, path)| (removed.removed, path.display().to_string()))
            .collect()
    };
    assert_eq!(chosen(None), [(3, "/a/d/f".into()), (2, "/a/d/x/g".into())]);
    assert_eq!(chosen(Some("/b")), [(3, "/b/f".into()), (2, "/b/x/g".into())]);
}

#[test]
fn who_is_not_root_has_his_own_files_and_directories_that_he_may_write() {
    let user = User { uid: 7, groups: vec![70] };
    let root = User { uid: 0, groups: vec![0] };
    let file = |uid| attr(FileKind::Regular, 0o666, uid, 70);
    assert!(user.may_have(&file(7)) && !user.may_have(&file(8)) && root.may_have(&file(8)));
    let directory = |mode, uid, gid| user.may_write(&attr(FileKind::Directory, mode, uid, gid));
    assert!(directory(0o700, 7, 1) && directory(0o770, 1, 70) && directory(0o777, 1, 1));
    assert!(!directory(0o077, 7, 70) && !directory(0o707, 1, 70) && !directory(0o775, 1, 1));
    assert!(root.may_write(&attr(FileKind::Directory, 0, 8, 8)));
    assert!(user.must_be_root().is_err() && root.must_be_root().is_ok());
}

#[test]
fn paths_begin_at_the_root() {
    assert_eq!(names(Path::new("/a/b")).expect("a path"), [b"a".to_vec(), b"b".to_vec()]);
    for bad in ["a/b", "/a/../b", "(removed)/a", ""] {
        assert!(names(Path::new(bad)).is_err(), "{bad}");
    }
}

#[test]
fn a_row_says_what_when_and_how_long() {
    let [id, removed, left, owner, size, path] = removed("/a/f", 60).row(100);
    assert_eq!((id.len(), &id[14..]), (ID_DIGITS, "3c"));
    assert_eq!((removed.as_str(), left.as_str()), ("1970-01-01 00:01:00 UTC", "60 s"));
    assert_eq!((owner.as_str(), size.as_str(), path.as_str()), ("7", "5 B", "/a/f"));
}
