//! What programs rely on of ACLs in a tree; and that mode and ACL never part, whatever is done.

use super::super::tests::{at, create, fresh, made, run, set_xattr};
use super::*;
use crate::acl::{Entry, Tag};
use crate::store::MemoryStore;
use proptest::prelude::*;
use protocol::namespace::{ACL_ACCESS, ACL_DEFAULT, Attr, Caller, NamespaceOp, SetAttr};

fn list(entries: &[(Tag, u32)]) -> Acl {
    Acl::new(
        entries
            .iter()
            .map(|(tag, permissions)| Entry { tag: *tag, permissions: *permissions })
            .collect(),
    )
    .expect("well-formed")
}

/// Owner, user 7, group, mask and others.
fn named(own: u32, user: u32, group: u32, mask: u32, other: u32) -> Acl {
    let tags = [Tag::UserObj, Tag::User(7), Tag::GroupObj, Tag::Mask, Tag::Other];
    let permissions = [own, user, group, mask, other];
    list(&tags.into_iter().zip(permissions).collect::<Vec<_>>())
}

fn minimal(own: u32, group: u32, other: u32) -> Acl {
    list(&[(Tag::UserObj, own), (Tag::GroupObj, group), (Tag::Other, other)])
}

fn get(ns: &mut Namespace<MemoryStore>, gfid: Gfid, kind: AclKind) -> Option<Acl> {
    match run(ns, &NamespaceOp::GetXattr { gfid, name: kind.name().to_vec() }) {
        Reply::Bytes(value) => Some(Acl::decode(&value).expect("an ACL")),
        Reply::Errno(libc::ENODATA) => None,
        other => panic!("{other:?}"),
    }
}

fn set(ns: &mut Namespace<MemoryStore>, gfid: Gfid, kind: AclKind, acl: &Acl) -> Attr {
    made(ns, &set_xattr(gfid, kind.name(), &acl.encode()))
}

fn chmod(gfid: Gfid, mode: u32) -> NamespaceOp {
    NamespaceOp::SetAttr {
        gfid,
        set: SetAttr { mode: Some(mode), ..SetAttr::default() },
        sync: false,
    }
}

fn names(ns: &mut Namespace<MemoryStore>, gfid: Gfid) -> Reply {
    run(ns, &NamespaceOp::ListXattr { gfid })
}

fn check(ns: &Namespace<MemoryStore>) {
    assert_eq!(ns.verify().expect("store works"), Vec::<String>::new());
}

#[test]
fn an_access_acl_sets_the_mode_and_chmod_the_acl() {
    let mut ns = fresh();
    let file = made(&mut ns, &create(Gfid::ROOT, b"f", FileKind::Regular)).gfid;
    run(&mut ns, &chmod(file, 0o4640));
    let attr = set(&mut ns, file, AclKind::Access, &named(6, 7, 4, 5, 4));
    assert_eq!((attr.mode, attr.has_xattrs), (0o4654, true));
    assert_eq!(get(&mut ns, file, AclKind::Access), Some(named(6, 7, 4, 5, 4)));
    assert_eq!(names(&mut ns, file), Reply::Bytes([ACL_ACCESS, b"\0"].concat()));
    assert_eq!(made(&mut ns, &chmod(file, 0o711)).mode, 0o711);
    assert_eq!(get(&mut ns, file, AclKind::Access), Some(named(7, 7, 4, 1, 1)));
    let attr = set(&mut ns, file, AclKind::Access, &minimal(6, 2, 1));
    assert_eq!((attr.mode, attr.has_xattrs), (0o621, false), "what a mode says is kept as one");
    assert_eq!(get(&mut ns, file, AclKind::Access), None);
    check(&ns);
}

#[test]
fn set_group_id_goes_if_the_kernel_says_so() {
    let mut ns = fresh();
    let file = made(&mut ns, &create(Gfid::ROOT, b"f", FileKind::Regular)).gfid;
    run(&mut ns, &chmod(file, 0o6755));
    assert_eq!(set(&mut ns, file, AclKind::Access, &named(7, 7, 5, 5, 5)).mode, 0o6755);
    let (name, value) = (ACL_ACCESS.to_vec(), minimal(7, 5, 5).encode());
    let kills = NamespaceOp::SetXattr { gfid: file, name, value, create: None, kill_sgid: true };
    assert_eq!(made(&mut ns, &kills).mode, 0o4755);
    check(&ns);
}

#[test]
fn acls_that_make_no_sense_are_refused() {
    let mut ns = fresh();
    let file = made(&mut ns, &create(Gfid::ROOT, b"f", FileKind::Regular)).gfid;
    let link = made(&mut ns, &create(Gfid::ROOT, b"l", FileKind::Symlink)).gfid;
    let value = named(7, 7, 7, 7, 7).encode();
    let cases: [(Gfid, &[u8], &[u8], i32); 5] = [
        (file, ACL_ACCESS, b"", libc::EINVAL),
        (file, ACL_ACCESS, &value[1..], libc::EINVAL),
        (file, ACL_ACCESS, &[0; 5000], libc::E2BIG),
        (file, ACL_DEFAULT, &value, libc::EACCES),
        (link, ACL_ACCESS, &value, libc::EOPNOTSUPP),
    ];
    for (gfid, name, value, want) in cases {
        assert_eq!(run(&mut ns, &set_xattr(gfid, name, value)), Reply::Errno(want));
    }
    check(&ns);
}

#[test]
fn an_acl_is_removed_whether_it_is_there_or_not() {
    let mut ns = fresh();
    let file = made(&mut ns, &create(Gfid::ROOT, b"f", FileKind::Regular)).gfid;
    set(&mut ns, file, AclKind::Access, &named(7, 7, 1, 3, 0));
    for _ in 0..2 {
        let attr =
            made(&mut ns, &NamespaceOp::RemoveXattr { gfid: file, name: ACL_ACCESS.to_vec() });
        assert_eq!((attr.mode, attr.has_xattrs), (0o730, false), "the mode stays");
    }
    check(&ns);
}

#[test]
fn new_files_inherit_the_default_acl_and_directories_keep_it() {
    let mut ns = fresh();
    let dir = made(&mut ns, &create(Gfid::ROOT, b"d", FileKind::Directory)).gfid;
    let with = |op: NamespaceOp, mode, umask| match op {
        NamespaceOp::Create { parent, name, kind, rdev, target, pool, open, .. } => {
            NamespaceOp::Create { parent, name, kind, mode, umask, rdev, target, pool, open }
        }
        other => other,
    };
    let plain = made(&mut ns, &with(create(dir, b"before", FileKind::Regular), 0o666, 0o027));
    assert_eq!(
        (plain.mode, plain.has_xattrs),
        (0o640, false),
        "without a default ACL the umask counts"
    );
    let default = named(7, 7, 5, 7, 0);
    assert_eq!(
        set(&mut ns, dir, AclKind::Default, &default).mode,
        0o640,
        "it says nothing of the directory"
    );
    let file = made(&mut ns, &with(create(dir, b"f", FileKind::Regular), 0o666, 0o777));
    assert_eq!((file.mode, file.has_xattrs), (0o660, true));
    assert_eq!(get(&mut ns, file.gfid, AclKind::Access), Some(named(6, 7, 5, 6, 0)));
    assert_eq!(get(&mut ns, file.gfid, AclKind::Default), None);
    let sub = made(&mut ns, &with(create(dir, b"s", FileKind::Directory), 0o755, 0o777));
    assert_eq!(sub.mode, 0o750);
    assert_eq!(get(&mut ns, sub.gfid, AclKind::Access), Some(named(7, 7, 5, 5, 0)));
    assert_eq!(get(&mut ns, sub.gfid, AclKind::Default), Some(default));
    assert_eq!(
        names(&mut ns, sub.gfid),
        Reply::Bytes([ACL_ACCESS, b"\0", ACL_DEFAULT, b"\0"].concat())
    );
    let link = made(&mut ns, &with(create(dir, b"l", FileKind::Symlink), 0o777, 0));
    assert_eq!((link.mode, link.has_xattrs), (0o777, false));
    set(&mut ns, dir, AclKind::Default, &minimal(6, 4, 0));
    let file = made(&mut ns, &with(create(dir, b"g", FileKind::Fifo), 0o666, 0o777));
    assert_eq!((file.mode, file.has_xattrs), (0o640, false), "what a mode says needs no ACL");
    check(&ns);
    let moved = NamespaceOp::Unlink { parent: dir, name: b"f".to_vec(), gives: None };
    assert_eq!(run(&mut ns, &moved), Reply::Done);
    check(&ns);
}

#[test]
fn a_damaged_acl_is_eio_and_told_by_the_check() {
    let mut ns = fresh();
    let dir = made(&mut ns, &create(Gfid::ROOT, b"d", FileKind::Directory)).gfid;
    set(&mut ns, dir, AclKind::Default, &minimal(7, 7, 7));
    ns.overlay.put(keys::of_name(keys::XATTR, dir, ACL_DEFAULT), &vec![2u8, 0, 0, 0, 9]);
    assert_eq!(run(&mut ns, &create(dir, b"f", FileKind::Regular)), Reply::Errno(libc::EIO));
    assert_eq!(ns.verify().expect("store works").len(), 1);
}

#[derive(Clone, Debug)]
enum Step {
    Access(u8, Acl),
    Default(u8, Acl),
    Remove(u8, bool),
    Chmod(u8, u32),
    Make(u8, bool, u32, u32),
}

fn any_list() -> impl Strategy<Value = Acl> {
    let bits = || 0..8u32;
    prop_oneof![
        (bits(), bits(), bits()).prop_map(|(own, group, other)| minimal(own, group, other)),
        [bits(), bits(), bits(), bits(), bits()].prop_map(|[a, b, c, d, e]| named(a, b, c, d, e)),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (any::<u8>(), any_list()).prop_map(|(file, acl)| Step::Access(file, acl)),
        (any::<u8>(), any_list()).prop_map(|(file, acl)| Step::Default(file, acl)),
        (any::<u8>(), any::<bool>()).prop_map(|(file, access)| Step::Remove(file, access)),
        (any::<u8>(), 0..0o10000u32).prop_map(|(file, mode)| Step::Chmod(file, mode)),
        (any::<u8>(), any::<bool>(), 0..0o10000u32, 0..0o1000u32)
            .prop_map(|(dir, is_dir, mode, umask)| Step::Make(dir, is_dir, mode, umask)),
    ]
}

proptest! {
    #[test]
    fn mode_and_acl_never_part(steps in proptest::collection::vec(step(), 1..60)) {
        let mut ns = fresh();
        let mut files = vec![Gfid::ROOT];
        for (turn, step) in steps.into_iter().enumerate() {
            let pick = |number: u8| files[usize::from(number) % files.len()];
            let op = match step {
                Step::Access(file, acl) => set_xattr(pick(file), ACL_ACCESS, &acl.encode()),
                Step::Default(file, acl) => set_xattr(pick(file), ACL_DEFAULT, &acl.encode()),
                Step::Remove(file, access) => {
                    let name = if access { ACL_ACCESS } else { ACL_DEFAULT };
                    NamespaceOp::RemoveXattr { gfid: pick(file), name: name.to_vec() }
                }
                Step::Chmod(file, mode) => chmod(pick(file), mode),
                Step::Make(dir, is_dir, mode, umask) => {
                    let kind = if is_dir { FileKind::Directory } else { FileKind::Regular };
                    let (name, pool) = (turn.to_string().into_bytes(), Default::default());
                    NamespaceOp::Create { parent: pick(dir), name, kind, mode, umask, rdev: 0, target: vec![], pool, open: None }
                }
            };
            let caller = Caller { uid: 1, gid: 1, now: at(turn as i64) };
            let reply = ns.execute(&caller, &|_| false, &op).expect("store works");
            if let (NamespaceOp::Create { .. }, Reply::Attr(attr)) = (&op, &reply) {
                files.push(attr.gfid);
            }
            prop_assert_eq!(ns.verify().expect("store works"), Vec::<String>::new(), "{:?}: {:?}", op, reply);
        }
    }
}
