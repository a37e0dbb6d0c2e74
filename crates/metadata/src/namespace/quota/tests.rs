//! Quotas: limits, realms, counting bit by bit; at random, with restarts, against a count anew.

use super::super::tests::{at, create, fresh, made};
use super::*;
use crate::store::MemoryStore;
use proptest::prelude::*;
use protocol::PoolId;
use protocol::namespace::{Caller, LeaseMode, NamespaceOp, RenameMode, SetAttr};

const ROOT: Gfid = Gfid::ROOT;

fn run<S: Store>(ns: &mut Namespace<S>, op: &NamespaceOp) -> Reply {
    let caller = Caller { uid: 0, gid: 0, now: at(1) };
    ns.execute(&caller, &|_| false, op).expect("store works")
}

fn dir<S: Store>(ns: &mut Namespace<S>, parent: Gfid, name: &str) -> Gfid {
    made(ns, &create(parent, name.as_bytes(), FileKind::Directory)).gfid
}

fn file<S: Store>(ns: &mut Namespace<S>, parent: Gfid, name: &str, size: u64) -> Gfid {
    let gfid = made(ns, &create(parent, name.as_bytes(), FileKind::Regular)).gfid;
    assert!(matches!(resize(ns, gfid, size), Reply::Attr(_)));
    gfid
}

fn resize<S: Store>(ns: &mut Namespace<S>, gfid: Gfid, size: u64) -> Reply {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    run(ns, &NamespaceOp::SetAttr { gfid, set, sync: false })
}

fn set<S: Store>(ns: &mut Namespace<S>, gfid: Gfid, bytes: u64, files: u64) -> Reply {
    let change = QuotaChange { max_bytes: Some(bytes), max_files: Some(files) };
    run(ns, &NamespaceOp::SetQuota { gfid, change })
}

fn rename<S: Store>(ns: &mut Namespace<S>, from: (Gfid, &str), to: (Gfid, &str)) -> Reply {
    let (name, new_name) = (from.1.into(), to.1.into());
    let mode = RenameMode::Replace;
    let (parent, new_parent) = (from.0, to.0);
    run(ns, &NamespaceOp::Rename { parent, name, new_parent, new_name, mode })
}

fn quotas<S: Store>(ns: &mut Namespace<S>, gfid: Gfid) -> Vec<Quota> {
    match run(ns, &NamespaceOp::GetQuota { gfid }) {
        Reply::Quotas(quotas) => quotas,
        other => panic!("{other:?}"),
    }
}

/// Bytes and files of the innermost quota.
fn sums<S: Store>(ns: &mut Namespace<S>, gfid: Gfid) -> (u128, u64) {
    let quota = quotas(ns, gfid)[0];
    (quota.bytes, quota.files)
}

fn count<S: Store>(ns: &mut Namespace<S>) {
    while ns.count_quotas(2).expect("store works") {}
    assert_eq!(ns.verify().expect("store works"), Vec::<String>::new());
}

#[test]
fn new_files_are_refused_and_removed_ones_give_back() {
    let mut ns = fresh();
    let top = dir(&mut ns, ROOT, "top");
    assert_eq!(set(&mut ns, top, 0, 3), Reply::Done);
    let sub = dir(&mut ns, top, "sub");
    file(&mut ns, sub, "a", 100);
    assert_eq!(sums(&mut ns, sub), (100, 3));
    for kind in [FileKind::Regular, FileKind::Directory, FileKind::Symlink, FileKind::Fifo] {
        assert_eq!(run(&mut ns, &create(sub, b"b", kind)), Reply::Errno(libc::EDQUOT));
    }
    let unnamed = NamespaceOp::CreateUnnamed {
        parent: sub,
        mode: 0o600,
        umask: 0,
        pool: PoolId::new(1),
        open: LeaseMode::Write,
        linkable: true,
    };
    assert_eq!(run(&mut ns, &unnamed), Reply::Errno(libc::EDQUOT));
    let unlink = NamespaceOp::Unlink { parent: sub, name: b"a".into(), gives: None };
    assert_eq!(run(&mut ns, &unlink), Reply::Done);
    assert_eq!(sums(&mut ns, sub), (0, 2));
    file(&mut ns, sub, "b", 5);
    count(&mut ns);
}

#[test]
fn only_root_sets_a_quota_and_only_of_a_directory() {
    let mut ns = fresh();
    let plain = file(&mut ns, ROOT, "file", 0);
    assert_eq!(set(&mut ns, plain, 1, 1), Reply::Errno(libc::ENOTDIR));
    let change = QuotaChange { max_bytes: Some(1), max_files: None };
    let op = NamespaceOp::SetQuota { gfid: ROOT, change };
    let user = Caller { uid: 7, gid: 0, now: at(1) };
    let reply = ns.execute(&user, &|_| false, &op).expect("store works");
    assert_eq!(reply, Reply::Errno(libc::EPERM));
    assert_eq!(set(&mut ns, ROOT, 0, 0), Reply::Errno(libc::ENODATA));
    assert_eq!(set(&mut ns, ROOT, u64::MAX, u64::MAX), Reply::Done);
    assert_eq!(set(&mut ns, Gfid::of_inode(999), 1, 1), Reply::Errno(libc::ESTALE));
    count(&mut ns);
}

#[test]
fn what_was_there_is_counted_bit_by_bit_also_over_restarts() {
    let store = MemoryStore::default();
    let mut ns = Namespace::open(store.clone(), at(0)).expect("open");
    let top = dir(&mut ns, ROOT, "top");
    for d in 0..5 {
        let sub = dir(&mut ns, top, &format!("d{d}"));
        for f in 0..7 {
            file(&mut ns, sub, &format!("f{f}"), 10);
        }
    }
    assert_eq!(set(&mut ns, top, 100, 20), Reply::Done);
    ns.commit().expect("store works");
    let mut turns = 0;
    while ns.count_quotas(3).expect("store works") {
        turns += 1;
        assert_eq!(ns.verify().expect("store works"), Vec::<String>::new());
        ns.commit().expect("store works");
        drop(ns);
        ns = Namespace::open(store.clone(), at(0)).expect("open");
    }
    assert!(turns > 10, "{turns}");
    assert_eq!(sums(&mut ns, top), (350, 41), "also beyond the limits");
    assert!(!quotas(&mut ns, top)[0].counting);
    assert_eq!(run(&mut ns, &create(top, b"new", FileKind::Regular)), Reply::Errno(libc::EDQUOT));
    count(&mut ns);
}

#[test]
fn names_do_not_move_between_quotas() {
    let mut ns = fresh();
    let (one, other) = (dir(&mut ns, ROOT, "one"), dir(&mut ns, ROOT, "other"));
    set(&mut ns, one, 1000, 0);
    let plain = file(&mut ns, one, "file", 7);
    let inner = dir(&mut ns, one, "inner");
    let exdev = Reply::Errno(libc::EXDEV);
    assert_eq!(rename(&mut ns, (one, "file"), (other, "file")), exdev);
    assert_eq!(rename(&mut ns, (one, "inner"), (ROOT, "inner")), exdev);
    assert_eq!(rename(&mut ns, (ROOT, "other"), (one, "other")), exdev);
    let link = NamespaceOp::Link { gfid: plain, parent: other, name: b"link".into() };
    assert_eq!(run(&mut ns, &link), exdev);
    assert_eq!(rename(&mut ns, (one, "file"), (inner, "file")), Reply::Done);
    assert_eq!(rename(&mut ns, (ROOT, "one"), (other, "one")), Reply::Done, "the whole of it");
    assert_eq!(sums(&mut ns, inner), (7, 3));
    count(&mut ns);
    assert_eq!(set(&mut ns, one, 0, 0), Reply::Done);
    assert_eq!(quotas(&mut ns, inner), []);
    assert_eq!(rename(&mut ns, (inner, "file"), (ROOT, "file")), Reply::Done);
    count(&mut ns);
}

#[test]
fn quotas_inside_quotas_charge_all() {
    let mut ns = fresh();
    let a = dir(&mut ns, ROOT, "a");
    let b = dir(&mut ns, a, "b");
    let c = dir(&mut ns, b, "c");
    file(&mut ns, c, "x", 10);
    // From the inside, then around it, then in between.
    set(&mut ns, c, 100, 0);
    count(&mut ns);
    set(&mut ns, a, 1000, 0);
    count(&mut ns);
    set(&mut ns, b, 0, 5);
    count(&mut ns);
    let roots: Vec<Gfid> = quotas(&mut ns, c).iter().map(|quota| quota.root).collect();
    assert_eq!(roots, [c, b, a]);
    let all: Vec<_> = quotas(&mut ns, c).iter().map(|quota| (quota.bytes, quota.files)).collect();
    assert_eq!(all, [(10, 2), (10, 3), (10, 4)]);
    let number = quotas(&mut ns, c)[0].number;
    assert_eq!(ns.room(number), Some(90));
    for name in ["y", "z"] {
        file(&mut ns, c, name, 1);
    }
    assert_eq!(
        run(&mut ns, &create(c, b"w", FileKind::Regular)),
        Reply::Errno(libc::EDQUOT),
        "of the one in between"
    );
    assert_eq!(set(&mut ns, b, 0, 0), Reply::Done);
    file(&mut ns, c, "w", 1);
    count(&mut ns);
    assert_eq!(sums(&mut ns, a), (13, 7));
}

#[test]
fn a_quota_ends_with_its_directory() {
    let mut ns = fresh();
    let a = dir(&mut ns, ROOT, "a");
    set(&mut ns, a, 1, 1);
    let rmdir = NamespaceOp::Rmdir { parent: ROOT, name: b"a".into() };
    assert_eq!(run(&mut ns, &rmdir), Reply::Done);
    assert_eq!(run(&mut ns, &NamespaceOp::ListQuotas { after: 0 }), Reply::Quotas(Vec::new()));
    count(&mut ns);
    ns.commit().expect("store works");
    ns.load_quotas().expect("store works");
    assert!(ns.has_no_quotas(), "nothing carries its number");
}

#[test]
fn quotas_nest_only_so_deep() {
    let mut ns = fresh();
    let mut parent = ROOT;
    for _ in 0..NESTING_MAX {
        parent = dir(&mut ns, parent, "d");
        assert_eq!(set(&mut ns, parent, 0, 1000), Reply::Done);
    }
    parent = dir(&mut ns, parent, "d");
    assert_eq!(set(&mut ns, parent, 0, 1000), Reply::Errno(libc::ELOOP));
    assert_eq!(set(&mut ns, ROOT, 0, 1000), Reply::Errno(libc::ELOOP));
    count(&mut ns);
}

#[derive(Clone, Debug)]
enum Step {
    Dir { parent: usize, name: u8 },
    File { parent: usize, name: u8 },
    Size { file: usize, size: u64 },
    Link { file: usize, parent: usize, name: u8 },
    Remove { parent: usize, name: u8 },
    Rename { from: (usize, u8), to: (usize, u8), mode: RenameMode },
    Set { dir: usize, bytes: u64, files: u64 },
    Count(usize),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let (f, n) = (|| 0..20usize, || 0..5u8);
    let mode = || {
        prop_oneof![
            3 => Just(RenameMode::Replace),
            1 => Just(RenameMode::Exchange),
            1 => Just(RenameMode::Whiteout),
        ]
    };
    prop_oneof![
        5 => (f(), n()).prop_map(|(parent, name)| Step::Dir { parent, name }),
        4 => (f(), n()).prop_map(|(parent, name)| Step::File { parent, name }),
        4 => (f(), 0..100u64).prop_map(|(file, size)| Step::Size { file, size }),
        3 => (f(), f(), n()).prop_map(|(file, parent, name)| Step::Link { file, parent, name }),
        2 => (f(), n()).prop_map(|(parent, name)| Step::Remove { parent, name }),
        5 => (f(), n(), f(), n(), mode())
            .prop_map(|(a, b, c, d, mode)| Step::Rename { from: (a, b), to: (c, d), mode }),
        4 => (f(), 0..200u64, 0..20u64)
            .prop_map(|(dir, bytes, files)| Step::Set { dir, bytes, files }),
        1 => f().prop_map(|dir| Step::Set { dir, bytes: 0, files: 0 }),
        3 => (1..4usize).prop_map(Step::Count),
        1 => Just(Step::Restart),
    ]
}

struct World {
    store: MemoryStore,
    ns: Option<Namespace<MemoryStore>>,
    files: Vec<Gfid>,
}

impl World {
    fn gfid(&self, number: usize) -> Gfid {
        self.files[number % self.files.len()]
    }

    fn step(&mut self, step: &Step) {
        let name = |number: &u8| format!("{number}").into_bytes();
        let op = match step {
            Step::Dir { parent, name: n } => {
                create(self.gfid(*parent), &name(n), FileKind::Directory)
            }
            Step::File { parent, name: n } => {
                create(self.gfid(*parent), &name(n), FileKind::Regular)
            }
            Step::Size { file, size } => NamespaceOp::SetAttr {
                gfid: self.gfid(*file),
                set: SetAttr { size: Some(*size), ..SetAttr::default() },
                sync: false,
            },
            Step::Link { file, parent, name: n } => NamespaceOp::Link {
                gfid: self.gfid(*file),
                parent: self.gfid(*parent),
                name: name(n),
            },
            Step::Remove { parent, name: n } => {
                let (parent, name) = (self.gfid(*parent), name(n));
                let ns = self.ns.as_mut().expect("open");
                let unlink = NamespaceOp::Unlink { parent, name: name.clone(), gives: None };
                match run(ns, &unlink) {
                    Reply::Errno(libc::EISDIR) => NamespaceOp::Rmdir { parent, name },
                    _ => return,
                }
            }
            Step::Rename { from, to, mode } => NamespaceOp::Rename {
                parent: self.gfid(from.0),
                name: name(&from.1),
                new_parent: self.gfid(to.0),
                new_name: name(&to.1),
                mode: *mode,
            },
            Step::Set { dir, bytes, files } => {
                let (gfid, ns) = (self.gfid(*dir), self.ns.as_mut().expect("open"));
                drop(set(ns, gfid, *bytes, *files));
                return;
            }
            Step::Count(entries) => {
                self.ns.as_mut().expect("open").count_quotas(*entries).expect("store works");
                return;
            }
            Step::Restart => {
                self.ns.as_mut().expect("open").commit().expect("store works");
                self.ns = None;
                self.ns = Some(Namespace::open(self.store.clone(), at(0)).expect("open"));
                return;
            }
        };
        let reply = run(self.ns.as_mut().expect("open"), &op);
        if let (NamespaceOp::Create { .. }, Reply::Attr(attr)) = (&op, reply) {
            self.files.push(attr.gfid);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn sums_are_those_of_a_count_anew(steps in proptest::collection::vec(step(), 1..100)) {
        let store = MemoryStore::default();
        let ns = Some(Namespace::open(store.clone(), at(0)).expect("open"));
        let mut world = World { store, ns, files: vec![ROOT] };
        for step in &steps {
            world.step(step);
            let problems = world.ns.as_ref().expect("open").verify().expect("store works");
            prop_assert_eq!(problems, Vec::<String>::new(), "after {:?}", step);
        }
        let ns = world.ns.as_mut().expect("open");
        while ns.count_quotas(3).expect("store works") {}
        prop_assert_eq!(ns.verify().expect("store works"), Vec::<String>::new());
    }
}
