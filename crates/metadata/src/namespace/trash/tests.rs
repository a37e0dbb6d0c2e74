//! What goes to the trash, what comes back, and what leaves it.

use super::super::tests::{at, create, fresh, made, run, set_xattr};
use super::*;
use crate::store::MemoryStore;
use protocol::namespace::{Attr, Caller, DirEntry, NamespaceOp, RenameMode, Reply};

type Tree = Namespace<MemoryStore>;

/// A tree with a directory `d` whose files are kept for 100 seconds.
fn with_trash() -> (Tree, Attr) {
    let mut ns = fresh();
    let dir = made(&mut ns, &create(Gfid::ROOT, b"d", FileKind::Directory));
    assert!(matches!(run(&mut ns, &set_xattr(dir.gfid, TRASH_KEEP, b"100")), Reply::Attr(_)));
    (ns, dir)
}

fn unlink(parent: Gfid, name: &[u8]) -> NamespaceOp {
    NamespaceOp::Unlink { parent, name: name.to_vec(), gives: None }
}

fn rename(from: (Gfid, &[u8]), to: (Gfid, &[u8]), mode: RenameMode) -> NamespaceOp {
    NamespaceOp::Rename {
        parent: from.0,
        name: from.1.to_vec(),
        new_parent: to.0,
        new_name: to.1.to_vec(),
        mode,
    }
}

fn trash(ns: &mut Tree) -> (Gfid, Vec<DirEntry>) {
    let root = made(ns, &NamespaceOp::BlobRoot { pool: TRASH }).gfid;
    let list = NamespaceOp::ReadDir { gfid: root, after: Vec::new(), limit: 100 };
    let Reply::Entries { entries, .. } = run(ns, &list) else { panic!("no listing") };
    (root, entries)
}

fn origin_of(ns: &mut Tree, gfid: Gfid) -> TrashOrigin {
    let op = NamespaceOp::GetXattr { gfid, name: TRASH_ORIGIN.to_vec() };
    let Reply::Bytes(bytes) = run(ns, &op) else { panic!("no origin") };
    protocol::decode("origin", &bytes).expect("decodes")
}

fn sound(ns: &Tree) {
    assert_eq!(ns.verify().expect("store works"), Vec::<String>::new());
}

#[test]
fn a_removed_file_is_kept_with_its_origin_and_comes_back_as_it_was() {
    let (mut ns, dir) = with_trash();
    let deep = made(&mut ns, &create(dir.gfid, b"deep", FileKind::Directory));
    let file = made(&mut ns, &create(deep.gfid, b"f", FileKind::Regular));
    assert_eq!(run(&mut ns, &unlink(deep.gfid, b"f")), Reply::Done);
    assert_eq!(ns.purge_len(), 0);
    let (root, entries) = trash(&mut ns);
    assert_eq!(entries.len(), 1);
    let entry = TrashEntry { until: 101, gfid: file.gfid };
    assert_eq!((TrashEntry::of_name(&entries[0].name), entries[0].attr.uid), (Some(entry), 7));
    let origin = TrashOrigin { removed: 1, parent: deep.gfid, name: b"f".to_vec() };
    assert_eq!(origin_of(&mut ns, file.gfid), origin);
    sound(&ns);
    let back = rename((root, &entries[0].name), (deep.gfid, b"f"), RenameMode::NoReplace);
    assert_eq!(run(&mut ns, &back), Reply::Done);
    let again = made(&mut ns, &NamespaceOp::GetAttr { gfid: file.gfid });
    assert_eq!(again, Attr { ctime: again.ctime, ..file });
    assert_eq!(trash(&mut ns).1, []);
    sound(&ns);
}

#[test]
fn what_is_renamed_over_goes_to_the_trash_and_a_further_name_does_not() {
    let (mut ns, dir) = with_trash();
    let old = made(&mut ns, &create(dir.gfid, b"f", FileKind::Regular));
    made(&mut ns, &create(dir.gfid, b"new", FileKind::Regular));
    let over = rename((dir.gfid, b"new"), (dir.gfid, b"f"), RenameMode::Replace);
    assert_eq!(run(&mut ns, &over), Reply::Done);
    let (_, entries) = trash(&mut ns);
    assert_eq!(entries.iter().map(|entry| entry.attr.gfid).collect::<Vec<_>>(), [old.gfid]);
    sound(&ns);
    let link = NamespaceOp::Link { gfid: old.gfid, parent: dir.gfid, name: b"two".to_vec() };
    assert!(matches!(run(&mut ns, &link), Reply::Attr(_)), "an open file may get a name again");
    let linked = made(&mut ns, &create(dir.gfid, b"a", FileKind::Regular));
    made(&mut ns, &NamespaceOp::Link { gfid: linked.gfid, parent: dir.gfid, name: b"b".to_vec() });
    assert_eq!(run(&mut ns, &unlink(dir.gfid, b"a")), Reply::Done);
    assert_eq!(trash(&mut ns).1.len(), 1, "it has another name");
    assert_eq!(run(&mut ns, &unlink(dir.gfid, b"b")), Reply::Done);
    assert_eq!(trash(&mut ns).1.len(), 2);
    sound(&ns);
}

#[test]
fn a_removed_directory_is_remembered_for_the_paths_of_its_files() {
    let (mut ns, dir) = with_trash();
    let deep = made(&mut ns, &create(dir.gfid, b"deep", FileKind::Directory));
    made(&mut ns, &create(deep.gfid, b"f", FileKind::Regular));
    run(&mut ns, &unlink(deep.gfid, b"f"));
    let gone = NamespaceOp::Rmdir { parent: dir.gfid, name: b"deep".to_vec() };
    assert_eq!(run(&mut ns, &gone), Reply::Done);
    let (_, entries) = trash(&mut ns);
    let link = entries.iter().find(|entry| entry.attr.kind == FileKind::Symlink).expect("one");
    let entry = TrashEntry::of_name(&link.name).expect("a name of the trash");
    assert_eq!(entry.gfid, deep.gfid);
    let Reply::Bytes(target) = run(&mut ns, &NamespaceOp::ReadLink { gfid: link.attr.gfid }) else {
        panic!("no target")
    };
    let origin: TrashOrigin = protocol::decode("origin", &target).expect("decodes");
    assert_eq!((origin.parent, origin.name), (dir.gfid, b"deep".to_vec()));
    sound(&ns);
}

#[test]
fn outside_the_tree_and_where_it_is_off_nothing_is_kept() {
    let (mut ns, dir) = with_trash();
    let off = made(&mut ns, &create(dir.gfid, b"off", FileKind::Directory));
    run(&mut ns, &set_xattr(off.gfid, TRASH_KEEP, b"0"));
    for parent in [Gfid::ROOT, off.gfid] {
        made(&mut ns, &create(parent, b"f", FileKind::Regular));
        assert_eq!(run(&mut ns, &unlink(parent, b"f")), Reply::Done);
    }
    assert_eq!((ns.purge_len(), trash(&mut ns).1.len()), (2, 0));
    let wrong = [(dir.gfid, &b"7d"[..]), (dir.gfid, b""), (Gfid::ROOT, b"-1")];
    for (gfid, value) in wrong {
        assert_eq!(run(&mut ns, &set_xattr(gfid, TRASH_KEEP, value)), Reply::Errno(libc::EINVAL));
    }
    let file = made(&mut ns, &create(dir.gfid, b"g", FileKind::Regular));
    let on_file = set_xattr(file.gfid, TRASH_KEEP, b"5");
    assert_eq!(run(&mut ns, &on_file), Reply::Errno(libc::EINVAL));
    let off = NamespaceOp::RemoveXattr { gfid: dir.gfid, name: TRASH_KEEP.to_vec() };
    run(&mut ns, &off);
    run(&mut ns, &unlink(dir.gfid, b"g"));
    assert_eq!(trash(&mut ns).1.len(), 0);
    sound(&ns);
}

#[test]
fn the_first_to_go_go_first_and_for_good() {
    let (mut ns, dir) = with_trash();
    for (secs, name) in [(10, b"a"), (30, b"b"), (20, b"c")] {
        made(&mut ns, &create(dir.gfid, name, FileKind::Regular));
        let caller = Caller { uid: 7, gid: 8, now: at(secs) };
        let gone = ns.execute(&caller, &|_| false, &unlink(dir.gfid, name));
        assert_eq!(gone.expect("store works"), Reply::Done);
    }
    let due = |ns: &Tree, now, limit, pressed| {
        ns.trash_due(now, limit, pressed).expect("store works").map_or(0, |(_, due)| due.len())
    };
    assert_eq!([109, 110, 120, 200].map(|now| due(&ns, now, 9, false)), [0, 1, 2, 3]);
    assert_eq!((due(&ns, 200, 2, false), due(&ns, 0, 2, true)), (2, 2));
    let (root, names) = ns.trash_due(120, 9, false).expect("store works").expect("two");
    for name in names {
        assert_eq!(run(&mut ns, &unlink(root, &name)), Reply::Done);
    }
    assert_eq!((ns.purge_len(), trash(&mut ns).1.len()), (2, 1));
    sound(&ns);
}

#[test]
fn no_name_is_moved_into_the_trash() {
    let (mut ns, dir) = with_trash();
    made(&mut ns, &create(dir.gfid, b"f", FileKind::Regular));
    let root = trash(&mut ns).0;
    for mode in [RenameMode::Replace, RenameMode::Exchange] {
        let op = rename((dir.gfid, b"f"), (root, b"x"), mode);
        assert_eq!(run(&mut ns, &op), Reply::Errno(libc::EPERM));
    }
}

#[test]
fn a_restart_finds_the_trash_again() {
    let (mut ns, dir) = with_trash();
    ns.commit().expect("commits");
    let store = ns.overlay.store().clone();
    let mut ns = Namespace::open(store, at(5)).expect("opens");
    made(&mut ns, &create(dir.gfid, b"f", FileKind::Regular));
    assert_eq!(run(&mut ns, &unlink(dir.gfid, b"f")), Reply::Done);
    assert_eq!((ns.purge_len(), trash(&mut ns).1.len()), (0, 1));
}
