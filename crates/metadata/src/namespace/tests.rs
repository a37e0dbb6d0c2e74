//! The namespace against a naive tree, with reopening at random; limits; listings under change;
//! crash copies.

mod oracle;

use super::*;
use crate::store::{EmbeddedStore, MemoryStore, StoreConfig};
use oracle::Oracle;
use proptest::prelude::*;
use protocol::SessionId;
use protocol::namespace::{
    FileFlags, FileKind, LINK_MAX, LeaseMode, RenameMode, SetAttr, XATTR_BYTES_MAX,
};
use std::collections::BTreeSet;

const POOL: PoolId = PoolId::new(3);

pub(super) fn at(secs: i64) -> Timestamp {
    Timestamp { secs, nanos: 5 }
}

fn caller(secs: i64) -> Caller {
    Caller { uid: 7, gid: 8, now: at(secs) }
}

pub(super) fn fresh() -> Namespace<MemoryStore> {
    Namespace::open(MemoryStore::default(), at(0)).expect("open")
}

pub(super) fn run<S: Store>(ns: &mut Namespace<S>, op: &NamespaceOp) -> Reply {
    ns.execute(&caller(1), &|_| false, op).expect("store works")
}

pub(super) fn create(parent: Gfid, name: &[u8], kind: FileKind) -> NamespaceOp {
    let target = if kind == FileKind::Symlink { b"where".to_vec() } else { Vec::new() };
    let (name, pool) = (name.to_vec(), POOL);
    NamespaceOp::Create {
        parent,
        name,
        kind,
        mode: 0o640,
        umask: 0,
        rdev: 0,
        target,
        pool,
        open: None,
    }
}

pub(super) fn set_xattr(gfid: Gfid, name: &[u8], value: &[u8]) -> NamespaceOp {
    let (name, value) = (name.to_vec(), value.to_vec());
    NamespaceOp::SetXattr { gfid, name, value, create: None, kill_sgid: false }
}

pub(super) fn made<S: Store>(ns: &mut Namespace<S>, op: &NamespaceOp) -> Attr {
    match run(ns, op) {
        Reply::Attr(attr) => attr,
        other => panic!("{op:?}: {other:?}"),
    }
}

fn list<S: Store>(
    ns: &mut Namespace<S>,
    gfid: Gfid,
    after: &[u8],
    limit: u32,
) -> (Vec<DirEntry>, bool) {
    match run(ns, &NamespaceOp::ReadDir { gfid, after: after.to_vec(), limit }) {
        Reply::Entries { entries, end } => (entries, end),
        other => panic!("{other:?}"),
    }
}

/// A step in terms of what exists: numbers choose among the files made so far.
#[derive(Clone, Debug)]
enum Step {
    Make { parent: u8, name: u8, kind: u8, mode: u32 },
    Link { file: u8, parent: u8, name: u8 },
    Remove { parent: u8, name: u8, dir: bool },
    Rename { parent: u8, name: u8, new_parent: u8, new_name: u8, mode: u8 },
    SetAttr { file: u8, mode: Option<u32>, size: Option<u64>, uid: Option<u32> },
    Look { parent: u8, name: u8 },
    Inspect { file: u8, what: u8 },
    SetXattr { file: u8, name: u8, create: Option<bool> },
    RemoveXattr { file: u8, name: u8 },
    MakeUnnamed { parent: u8, linkable: bool },
    Open { file: u8 },
    Close { file: u8 },
    Commit,
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let (f, n) = (|| 0..24u8, || 0..6u8);
    prop_oneof![
        6 => (f(), n(), 0..9u8, prop_oneof![Just(0o755u32), Just(0o2755u32)])
            .prop_map(|(parent, name, kind, mode)| Step::Make { parent, name, kind, mode }),
        3 => (f(), f(), n()).prop_map(|(file, parent, name)| Step::Link { file, parent, name }),
        4 => (f(), n(), any::<bool>()).prop_map(|(parent, name, dir)| Step::Remove { parent, name, dir }),
        6 => (f(), n(), f(), n(), 0..5u8).prop_map(|(parent, name, new_parent, new_name, mode)|
            Step::Rename { parent, name, new_parent, new_name, mode }),
        2 => (f(), proptest::option::of(0..0o10000u32), proptest::option::of(0..9u64), proptest::option::of(0..9u32))
            .prop_map(|(file, mode, size, uid)| Step::SetAttr { file, mode, size, uid }),
        2 => (f(), n()).prop_map(|(parent, name)| Step::Look { parent, name }),
        2 => (f(), 0..4u8).prop_map(|(file, what)| Step::Inspect { file, what }),
        1 => (f(), n(), any::<Option<bool>>()).prop_map(|(file, name, create)| Step::SetXattr { file, name, create }),
        1 => (f(), n()).prop_map(|(file, name)| Step::RemoveXattr { file, name }),
        2 => (f(), any::<bool>()).prop_map(|(parent, linkable)| Step::MakeUnnamed { parent, linkable }),
        2 => f().prop_map(|file| Step::Open { file }),
        2 => f().prop_map(|file| Step::Close { file }),
        1 => Just(Step::Commit),
        1 => Just(Step::Reopen),
    ]
}

/// The namespace and its oracle side by side.
struct Pair {
    ns: Option<Namespace<MemoryStore>>,
    store: MemoryStore,
    oracle: Oracle,
    files: Vec<Gfid>,
    now: i64,
}

impl Pair {
    fn new() -> Self {
        let store = MemoryStore::default();
        let ns = Namespace::open(store.clone(), at(0)).expect("open");
        let root = ns.attr(Gfid::ROOT).expect("store works").expect("root exists");
        Self { ns: Some(ns), store, oracle: Oracle::new(root), files: vec![Gfid::ROOT], now: 0 }
    }

    fn ns(&mut self) -> &mut Namespace<MemoryStore> {
        self.ns.as_mut().expect("open")
    }

    /// Half of the numbers choose among the oldest files, mostly directories, so that trees become
    /// deep.
    fn file(&self, number: u8) -> Gfid {
        let files = if number.is_multiple_of(2) {
            &self.files[..self.files.len().min(5)]
        } else {
            &self.files
        };
        files[usize::from(number) % files.len()]
    }

    fn name(number: u8) -> Vec<u8> {
        if number == 5 { vec![b'n'; 255] } else { format!("{number}").into_bytes() }
    }

    fn op(&self, step: &Step) -> Option<NamespaceOp> {
        let kinds = [
            FileKind::Regular,
            FileKind::Symlink,
            FileKind::Fifo,
            FileKind::Socket,
            FileKind::Directory,
        ];
        let modes = [RenameMode::NoReplace, RenameMode::Exchange, RenameMode::Replace];
        Some(match *step {
            Step::Make { parent, name, kind, mode } => {
                let kind = kinds[usize::from(kind).min(kinds.len() - 1)];
                match create(self.file(parent), &Self::name(name), kind) {
                    NamespaceOp::Create {
                        parent,
                        name,
                        kind,
                        umask,
                        rdev,
                        target,
                        pool,
                        open,
                        ..
                    } => NamespaceOp::Create {
                        parent,
                        name,
                        kind,
                        mode,
                        umask,
                        rdev,
                        target,
                        pool,
                        open,
                    },
                    other => other,
                }
            }
            Step::Link { file, parent, name } => NamespaceOp::Link {
                gfid: self.file(file),
                parent: self.file(parent),
                name: Self::name(name),
            },
            Step::Remove { parent, name, dir: false } => NamespaceOp::Unlink {
                parent: self.file(parent),
                name: Self::name(name),
                gives: None,
            },
            Step::Remove { parent, name, dir: true } => {
                NamespaceOp::Rmdir { parent: self.file(parent), name: Self::name(name) }
            }
            Step::Rename { parent, name, new_parent, new_name, mode } => NamespaceOp::Rename {
                parent: self.file(parent),
                name: Self::name(name),
                new_parent: self.file(new_parent),
                new_name: Self::name(new_name),
                mode: modes[usize::from(mode).min(2)],
            },
            Step::SetAttr { file, mode, size, uid } => NamespaceOp::SetAttr {
                gfid: self.file(file),
                set: SetAttr { mode, size, uid, ..SetAttr::default() },
                sync: false,
            },
            Step::Look { parent, name } => {
                NamespaceOp::Lookup { parent: self.file(parent), name: Self::name(name) }
            }
            Step::Inspect { file, what } => match what {
                0 => NamespaceOp::GetAttr { gfid: self.file(file) },
                1 => NamespaceOp::ReadLink { gfid: self.file(file) },
                2 => NamespaceOp::Parent { gfid: self.file(file) },
                _ => NamespaceOp::ListXattr { gfid: self.file(file) },
            },
            Step::SetXattr { file, name, create } => {
                let (gfid, value) = (self.file(file), vec![name; 9]);
                NamespaceOp::SetXattr {
                    gfid,
                    name: Self::name(name),
                    value,
                    create,
                    kill_sgid: false,
                }
            }
            Step::RemoveXattr { file, name } => {
                NamespaceOp::RemoveXattr { gfid: self.file(file), name: Self::name(name) }
            }
            Step::MakeUnnamed { parent, linkable } => NamespaceOp::CreateUnnamed {
                parent: self.file(parent),
                mode: 0o600,
                umask: 0,
                pool: POOL,
                open: LeaseMode::Write,
                linkable,
            },
            Step::Open { .. } | Step::Close { .. } | Step::Commit | Step::Reopen => return None,
        })
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        self.now += 1;
        if let Some(op) = self.op(step) {
            return self.operate(&op);
        }
        match *step {
            Step::Open { file } => {
                let gfid = self.file(file);
                if self.oracle.nodes.contains_key(&gfid) {
                    self.oracle.open.insert(gfid);
                }
            }
            Step::Close { file } => {
                let gfid = self.file(file);
                let orphan = self.oracle.nodes.get(&gfid).is_some_and(|n| n.attr.nlink == 0);
                self.oracle.close(gfid);
                let reaped = self.ns().reap(gfid).expect("store works");
                prop_assert_eq!(orphan, reaped);
            }
            Step::Commit => self.ns().commit().expect("store works"),
            _ => {
                self.oracle.reopened();
                self.ns().commit().expect("store works");
                self.ns = None;
                self.ns = Some(Namespace::open(self.store.clone(), at(self.now)).expect("open"));
            }
        }
        Ok(())
    }

    fn operate(&mut self, op: &NamespaceOp) -> Result<(), TestCaseError> {
        let (now, open) = (at(self.now), self.oracle.open.clone());
        let caller = caller(self.now);
        let got =
            self.ns().execute(&caller, &|gfid| open.contains(&gfid), op).expect("store works");
        let makes = matches!(op, NamespaceOp::Create { .. } | NamespaceOp::CreateUnnamed { .. });
        if let (true, Reply::Attr(attr)) = (makes, &got) {
            self.files.push(attr.gfid);
        }
        let want = self.oracle.apply(op, now, &got);
        prop_assert_eq!(&got, &want, "{:?}", op);
        Ok(())
    }

    fn compare(&mut self) -> Result<(), TestCaseError> {
        let ns = self.ns.as_mut().expect("open");
        prop_assert_eq!(ns.verify().expect("store works"), Vec::<String>::new());
        for (gfid, node) in &self.oracle.nodes {
            prop_assert_eq!(ns.attr(*gfid).expect("store works"), Some(node.attr));
            if node.attr.kind == FileKind::Directory {
                let (entries, end) = list(ns, *gfid, b"", 4096);
                let entries: Vec<_> = entries.into_iter().map(|e| (e.name, e.attr)).collect();
                prop_assert!(end);
                prop_assert_eq!(entries, self.oracle.listing(*gfid));
            }
        }
        let purges: BTreeSet<Gfid> =
            ns.purge_next(None, usize::MAX).expect("store works").iter().map(|p| p.gfid).collect();
        prop_assert_eq!(&purges, &self.oracle.purged);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_a_naive_tree(steps in proptest::collection::vec(step(), 1..120)) {
        let mut pair = Pair::new();
        for step in &steps {
            pair.step(step)?;
        }
        pair.compare()?;
        pair.step(&Step::Reopen)?;
        pair.compare()?;
    }
}

#[test]
fn names_and_limits() {
    let mut ns = fresh();
    let root = Gfid::ROOT;
    for (name, want) in [
        (vec![b'a'; 256], libc::ENAMETOOLONG),
        (b"a/b".to_vec(), libc::EINVAL),
        (vec![], libc::EINVAL),
    ] {
        assert_eq!(run(&mut ns, &create(root, &name, FileKind::Regular)), Reply::Errno(want));
    }
    let long = NamespaceOp::Create {
        parent: root,
        name: b"l".to_vec(),
        kind: FileKind::Symlink,
        mode: 0,
        umask: 0,
        rdev: 0,
        target: vec![b'x'; 4096],
        pool: POOL,
        open: None,
    };
    assert_eq!(run(&mut ns, &long), Reply::Errno(libc::ENAMETOOLONG));
    let gfid = made(&mut ns, &create(root, b"f", FileKind::Regular)).gfid;
    let set = |name: &[u8], bytes| set_xattr(gfid, name, &vec![1; bytes]);
    assert!(made(&mut ns, &set(b"user.a", XATTR_BYTES_MAX)).has_xattrs);
    assert_eq!(run(&mut ns, &set(b"user.a", XATTR_BYTES_MAX + 1)), Reply::Errno(libc::E2BIG));
    assert_eq!(run(&mut ns, &set(&[b'n'; 256], 1)), Reply::Errno(libc::ERANGE));
    let size = SetAttr { size: Some(u64::MAX), ..SetAttr::default() };
    assert_eq!(
        run(&mut ns, &NamespaceOp::SetAttr { gfid, set: size, sync: false }),
        Reply::Errno(libc::EFBIG)
    );
    assert_eq!(
        run(&mut ns, &NamespaceOp::GetAttr { gfid: Gfid::of_inode(999) }),
        Reply::Errno(libc::ESTALE)
    );
}

#[test]
fn links_end_at_the_limit() {
    let mut ns = fresh();
    let gfid = made(&mut ns, &create(Gfid::ROOT, b"f", FileKind::Regular)).gfid;
    let link =
        |i: u32| NamespaceOp::Link { gfid, parent: Gfid::ROOT, name: i.to_string().into_bytes() };
    for i in 1..LINK_MAX {
        assert!(matches!(run(&mut ns, &link(i)), Reply::Attr(attr) if attr.nlink == i + 1));
    }
    assert_eq!(run(&mut ns, &link(LINK_MAX)), Reply::Errno(libc::EMLINK));
}

#[test]
fn blob_roots_are_hidden_and_made_once() {
    let mut ns = fresh();
    let root = made(&mut ns, &NamespaceOp::BlobRoot { pool: POOL });
    assert_eq!(made(&mut ns, &NamespaceOp::BlobRoot { pool: POOL }), root);
    assert_ne!(made(&mut ns, &NamespaceOp::BlobRoot { pool: PoolId::new(4) }).gfid, root.gfid);
    made(&mut ns, &create(root.gfid, b"blob", FileKind::Regular));
    assert_eq!(list(&mut ns, Gfid::ROOT, b"", 10), (vec![], true));
    assert_eq!(ns.verify().expect("store works"), Vec::<String>::new());
}

#[test]
fn large_directory_lists_every_entry_that_stays_exactly_once() {
    let mut ns = fresh();
    let dir = made(&mut ns, &create(Gfid::ROOT, b"d", FileKind::Directory)).gfid;
    let name = |i: u32| format!("{i:06}").into_bytes();
    for i in 0..100_000u32 {
        let kind = if i.is_multiple_of(1000) { FileKind::Directory } else { FileKind::Regular };
        made(&mut ns, &create(dir, &name(i), kind));
        if i.is_multiple_of(10_000) {
            ns.commit().expect("store works");
        }
    }
    let (mut seen, mut after, mut turn) = (Vec::new(), Vec::new(), 0);
    loop {
        let (entries, end) = list(&mut ns, dir, &after, 1000);
        seen.extend(entries.into_iter().map(|e| e.name));
        if end {
            break;
        }
        after = seen.last().expect("a page is never empty").clone();
        // entries come and go on both sides of the cursor; multiples of 7 plus 1 stay out of it
        turn += 1;
        let victim = name(turn * 701 % 100_000);
        if !(turn * 701).is_multiple_of(7) && !(turn * 701).is_multiple_of(1000) {
            run(&mut ns, &NamespaceOp::Unlink { parent: dir, name: victim, gives: None });
        }
        run(
            &mut ns,
            &create(dir, &[name(turn * 613), b"new".to_vec()].concat(), FileKind::Regular),
        );
        ns.commit().expect("store works");
    }
    assert!(seen.is_sorted_by(|a, b| a < b), "an entry came twice or out of order");
    let seen: BTreeSet<Vec<u8>> = seen.into_iter().collect();
    let stayed = (0..100_000).filter(|i| i % 7 == 0);
    assert!(
        stayed.map(name).all(|name| seen.contains(&name)),
        "an entry that stayed was not listed"
    );
    assert_eq!(ns.verify().expect("store works"), Vec::<String>::new());
}

#[test]
fn the_format_before_is_raised() {
    let mut store = MemoryStore::default();
    let mut ns = Namespace::open(store.clone(), at(0)).expect("open");
    ns.commit().expect("store works");
    let version = |number: u32| postcard::to_stdvec(&number).expect("encodes");
    let (gfid, session) = (Gfid::of_inode(9), SessionId::new(4));
    let note = postcard::to_stdvec(&session).expect("encodes");
    let note_3 = postcard::to_stdvec(&(session, 0u64)).expect("encodes");
    for (before, note) in [(1, &note), (2, &note), (3, &note_3), (4, &note_3)] {
        let writer = (keys::of_gfid(keys::WRITER, gfid), Some(note.clone()));
        let done = (keys::answer(session, 5), Some(vec![6]));
        let format = (keys::FORMAT.to_vec(), Some(version(before)));
        store.commit([format, writer, done].into()).expect("commit");
        let ns = Namespace::open(store.clone(), at(1)).expect("it is raised");
        let retained = ns.retained().expect("store works");
        assert_eq!(retained.writers, [(gfid, (session, 0))]);
        assert_eq!(
            retained.answers,
            [],
            "its session speaks an older protocol, and does not come back"
        );
        assert_eq!(store.get(keys::FORMAT).expect("store works"), Some(version(FORMAT_VERSION)));
    }
}

#[test]
fn another_format_is_refused() {
    let mut store = MemoryStore::default();
    let version = postcard::to_stdvec(&(FORMAT_VERSION + 1)).expect("encodes");
    store.commit([(keys::FORMAT.to_vec(), Some(version))].into()).expect("commit");
    assert!(matches!(Namespace::open(store, at(0)), Err(StoreError::Format { .. })));
    let mut foreign = MemoryStore::default();
    foreign.commit([(b"hello".to_vec(), Some(vec![]))].into()).expect("commit");
    assert!(matches!(Namespace::open(foreign, at(0)), Err(StoreError::Format { .. })));
}

#[test]
fn tokens_grow_with_every_start_until_their_number_is_damaged() {
    let mut store = MemoryStore::default();
    let start =
        |store: &MemoryStore| Namespace::open(store.clone(), at(0)).map(|ns| ns.first_token());
    let first = start(&store).expect("a first start");
    assert!(start(&store).expect("a second start") > first);
    for starts in [1u64 << 22, u64::MAX] {
        let damaged = postcard::to_stdvec(&starts).expect("encodes");
        store.commit([(keys::STARTS.to_vec(), Some(damaged))].into()).expect("commit");
        assert!(matches!(start(&store), Err(StoreError::Corrupt { .. })), "{starts}");
    }
}

#[test]
fn a_start_that_was_lost_repeats_nothing() {
    let store = MemoryStore::default();
    let mut ns = Namespace::open(store.clone(), at(0)).expect("open");
    let (token, number) = (ns.first_token(), ns.last_commit());
    let made = made(&mut ns, &create(Gfid::ROOT, b"lost", FileKind::Regular)).gfid;
    ns.commit().expect("commit");
    let lost = ns.last_commit();
    assert!(lost > number);
    store.lose_power();
    let mut ns = Namespace::open(store.clone(), at(1)).expect("open");
    assert_eq!(ns.resolve(Gfid::ROOT, b"lost").expect("store works"), None);
    assert!(ns.first_token() > token);
    let new = create(Gfid::ROOT, b"new", FileKind::Regular);
    assert!(
        matches!(run(&mut ns, &new), Reply::Attr(attr) if attr.gfid > made),
        "its maker may still use the number"
    );
    let kept = ns.kept(lost.start).expect("store works");
    assert_eq!(kept, [number, ns.last_commit()], "what came behind is lost");
    ns.commit().expect("commit");
    ns.persister().persist().expect("persist");
    let last = ns.last_commit();
    let ns = Namespace::open(store, at(2)).expect("open");
    assert_eq!(ns.kept(lost.start).expect("store works"), [number, last, ns.last_commit()]);
    assert_eq!(ns.kept(last.start).expect("store works"), [last, ns.last_commit()]);
    assert_eq!(ns.kept(u64::MAX).expect("store works"), [ns.last_commit()]);
}

#[test]
fn inode_numbers_are_dealt_only_if_their_reservation_is_on_disk() {
    let mut ns = fresh();
    let new = NamespaceOp::BlobRoot { pool: PoolId::new(1) };
    let all = INODES_RESERVED;
    for pool in 0..all {
        let op = NamespaceOp::BlobRoot { pool: PoolId::new(pool as u32 + 2) };
        assert!(matches!(run(&mut ns, &op), Reply::Attr(_)), "{pool}");
    }
    assert_eq!(run(&mut ns, &new), Reply::TryAgain);
    ns.commit().expect("commit");
    assert_eq!(run(&mut ns, &new), Reply::TryAgain, "committed is not on disk");
    ns.persisted(ns.last_commit());
    assert!(matches!(run(&mut ns, &new), Reply::Attr(_)));
}

#[test]
fn damaged_counters_are_refused() {
    for key in [keys::INODES, keys::FILES] {
        let mut store = MemoryStore::default();
        drop(Namespace::open(store.clone(), at(0)).expect("open"));
        let most = postcard::to_stdvec(&u64::MAX).expect("encodes");
        store.commit([(key.to_vec(), Some(most))].into()).expect("commit");
        assert!(matches!(Namespace::open(store, at(0)), Err(StoreError::Corrupt { .. })));
    }
}

#[test]
fn an_orphan_that_has_a_link_is_damage() {
    let mut store = MemoryStore::default();
    let mut ns = Namespace::open(store.clone(), at(0)).expect("open");
    let file = made(&mut ns, &create(Gfid::ROOT, b"file", FileKind::Regular)).gfid;
    ns.commit().expect("store works");
    assert!(!ns.reap(file).expect("store works"), "no orphan");
    store.commit([(keys::of_gfid(keys::ORPHAN, file), Some(Vec::new()))].into()).expect("commit");
    assert!(matches!(ns.reap(file), Err(StoreError::Corrupt { .. })));
}

#[test]
fn damaged_lengths_of_attribute_lists_take_no_memory() {
    let mut ns = fresh();
    let set = set_xattr(Gfid::ROOT, b"user.a", b"");
    assert!(made(&mut ns, &set).has_xattrs);
    for bytes in [0, u32::MAX] {
        let mut root = ns.existing(Gfid::ROOT).expect("it is there");
        root.inode.xattr_list_bytes = bytes;
        ns.save(root);
        assert_eq!(
            run(&mut ns, &NamespaceOp::ListXattr { gfid: Gfid::ROOT }),
            Reply::Bytes(b"user.a\0".to_vec())
        );
        let remove = NamespaceOp::RemoveXattr { gfid: Gfid::ROOT, name: b"user.a".to_vec() };
        assert!(!made(&mut ns, &remove).has_xattrs);
        let again = run(&mut ns, &set);
        assert!(if bytes == 0 {
            matches!(again, Reply::Attr(_))
        } else {
            again == Reply::Errno(libc::ENOSPC)
        });
    }
}

#[test]
fn damaged_record_is_eio_and_the_rest_works() {
    let mut store = MemoryStore::default();
    let mut ns = Namespace::open(store.clone(), at(0)).expect("open");
    let bad = made(&mut ns, &create(Gfid::ROOT, b"bad", FileKind::Regular)).gfid;
    let good = made(&mut ns, &create(Gfid::ROOT, b"good", FileKind::Regular)).gfid;
    ns.commit().expect("store works");
    store.commit([(keys::of_gfid(keys::NODE, bad), Some(vec![0xff; 3]))].into()).expect("commit");
    assert_eq!(run(&mut ns, &NamespaceOp::GetAttr { gfid: bad }), Reply::Errno(libc::EIO));
    assert!(matches!(run(&mut ns, &NamespaceOp::GetAttr { gfid: good }), Reply::Attr(_)));
}

/// Copies the directory of a running store: what a process killed at this moment would leave
/// behind.
fn copy_dir(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).expect("mkdir");
    for entry in std::fs::read_dir(from).expect("read_dir") {
        let entry = entry.expect("entry");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("type").is_dir() {
            copy_dir(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("copy");
        }
    }
}

#[test]
fn what_was_committed_survives_a_kill() {
    let dir = tempfile::tempdir().expect("tempdir");
    let live = dir.path().join("live");
    let store = EmbeddedStore::open(&live, StoreConfig::default()).expect("open");
    let mut ns = Namespace::open(store, at(0)).expect("open");
    let mut gfids = BTreeSet::new();
    for turn in 0..5 {
        for i in 0..200 {
            gfids.insert(
                made(
                    &mut ns,
                    &create(Gfid::ROOT, format!("{turn}-{i}").as_bytes(), FileKind::Regular),
                )
                .gfid,
            );
        }
        ns.commit().expect("store works");
        let copy = dir.path().join(format!("copy-{turn}"));
        copy_dir(&live, &copy);
        let store = EmbeddedStore::open(&copy, StoreConfig::default()).expect("open the copy");
        let mut killed = Namespace::open(store, at(9)).expect("open the copy");
        assert_eq!(run(&mut killed, &NamespaceOp::StatFs), Reply::Count(gfids.len() as u64));
        assert_eq!(killed.verify().expect("store works"), Vec::<String>::new());
        let next = made(&mut killed, &create(Gfid::ROOT, b"next", FileKind::Regular)).gfid;
        assert!(!gfids.contains(&next), "a gfid was dealt twice");
    }
}

#[test]
fn a_rename_leaves_a_whiteout() {
    let mut ns = fresh();
    let dir = made(&mut ns, &create(Gfid::ROOT, b"d", FileKind::Directory)).gfid;
    let rename = |(parent, name): (Gfid, &[u8]), (new_parent, new_name): (Gfid, &[u8]), mode| {
        let (name, new_name) = (name.to_vec(), new_name.to_vec());
        NamespaceOp::Rename { parent, name, new_parent, new_name, mode }
    };
    let lookup = |parent: Gfid, name: &[u8]| NamespaceOp::Lookup { parent, name: name.to_vec() };
    let is_whiteout =
        |attr: Attr| (attr.kind, attr.rdev, attr.mode) == (FileKind::CharDevice, 0, 0);
    for (name, kind) in
        [(&b"f"[..], FileKind::Regular), (b"sub", FileKind::Directory), (b"l", FileKind::Symlink)]
    {
        let file = made(&mut ns, &create(Gfid::ROOT, name, kind)).gfid;
        for to in [(Gfid::ROOT, &[name, b"2"].concat()[..]), (dir, name)] {
            let source = if to.0 == dir { [name, b"2"].concat() } else { name.to_vec() };
            assert_eq!(
                run(&mut ns, &rename((Gfid::ROOT, &source), to, RenameMode::Whiteout)),
                Reply::Done
            );
            assert_eq!(made(&mut ns, &lookup(to.0, to.1)).gfid, file);
            assert!(is_whiteout(made(&mut ns, &lookup(Gfid::ROOT, &source))));
            assert_eq!(ns.verify().expect("store works"), Vec::<String>::new());
        }
    }
    let taken = rename((dir, b"f"), (Gfid::ROOT, b"f"), RenameMode::WhiteoutNoReplace);
    assert_eq!(run(&mut ns, &taken), Reply::Errno(libc::EEXIST));
    // Back over its own whiteout.
    assert_eq!(
        run(&mut ns, &rename((dir, b"f"), (Gfid::ROOT, b"f"), RenameMode::Whiteout)),
        Reply::Done
    );
    assert!(is_whiteout(made(&mut ns, &lookup(dir, b"f"))));
    assert_eq!(made(&mut ns, &lookup(Gfid::ROOT, b"f")).kind, FileKind::Regular);
    assert_eq!(ns.verify().expect("store works"), Vec::<String>::new());
}

#[test]
fn flags_hold_on_every_path() {
    let mut ns = fresh();
    let root = Gfid::ROOT;
    let eperm = Reply::Errno(libc::EPERM);
    let by = |ns: &mut Namespace<MemoryStore>, uid: u32, op: &NamespaceOp| {
        ns.execute(&Caller { uid, ..caller(1) }, &|_| false, op).expect("store works")
    };
    let rename = |(parent, name): (Gfid, &[u8]), (new_parent, new_name): (Gfid, &[u8]), mode| {
        let (name, new_name) = (name.to_vec(), new_name.to_vec());
        NamespaceOp::Rename { parent, name, new_parent, new_name, mode }
    };
    let unlink =
        |name: &[u8]| NamespaceOp::Unlink { parent: root, name: name.to_vec(), gives: None };
    let file = made(&mut ns, &create(root, b"f", FileKind::Regular)).gfid;
    made(&mut ns, &create(root, b"other", FileKind::Regular));
    let dir = made(&mut ns, &create(root, b"d", FileKind::Directory)).gfid;
    made(&mut ns, &create(dir, b"in", FileKind::Regular));
    let set = |gfid, set: SetAttr| NamespaceOp::SetAttr { gfid, set, sync: false };
    let touch =
        |time| SetAttr { mtime: Some(at(time)), atime: Some(at(time)), ..SetAttr::default() };
    let told =
        SetAttr { size: Some(9), mtime: Some(at(7)), ctime: Some(at(7)), ..SetAttr::default() };
    for append_only in [false, true] {
        let flags = FileFlags { immutable: !append_only, append_only };
        for gfid in [file, dir] {
            let flag = NamespaceOp::SetFlags { gfid, flags };
            assert!(matches!(by(&mut ns, 7, &flag), Reply::Attr(attr) if attr.flags == flags));
        }
        let user = |name: &[u8]| NamespaceOp::SetXattr {
            gfid: file,
            name: name.to_vec(),
            value: vec![],
            create: None,
            kill_sgid: false,
        };
        for op in [
            unlink(b"f"),
            NamespaceOp::Link { gfid: file, parent: root, name: b"g".to_vec() },
            rename((root, b"f"), (root, b"g"), RenameMode::Replace),
            rename((root, b"other"), (root, b"f"), RenameMode::Replace),
            rename((root, b"other"), (root, b"f"), RenameMode::Exchange),
            rename((dir, b"in"), (root, b"g"), RenameMode::Replace),
            rename((root, b"d"), (root, b"e"), RenameMode::Whiteout),
            NamespaceOp::Unlink { parent: dir, name: b"in".to_vec(), gives: None },
            NamespaceOp::Rmdir { parent: root, name: b"d".to_vec() },
            set(file, SetAttr { mode: Some(0o600), ..SetAttr::default() }),
            set(file, SetAttr { uid: Some(5), ..SetAttr::default() }),
            set(
                file,
                SetAttr { size: Some(if append_only { 8 } else { 0 }), ..SetAttr::default() },
            ),
            set(dir, touch(3)),
            user(b"user.a"),
            NamespaceOp::RemoveXattr { gfid: file, name: b"user.a".to_vec() },
        ] {
            assert_eq!(by(&mut ns, 0, &op), eperm, "{op:?} of {flags:?}");
        }
        let may_add = |reply: Reply| {
            if append_only { matches!(reply, Reply::Attr(_)) } else { reply == eperm }
        };
        assert!(may_add(by(&mut ns, 0, &create(dir, b"new", FileKind::Regular))));
        assert!(may_add(by(&mut ns, 0, &set(file, touch(1)))), "touch");
        assert!(
            matches!(by(&mut ns, 0, &set(file, told)), Reply::Attr(_)),
            "what a writer was permitted before"
        );
    }
    for gfid in [file, dir] {
        let flag = NamespaceOp::SetFlags { gfid, flags: FileFlags::default() };
        assert!(matches!(by(&mut ns, 0, &flag), Reply::Attr(_)));
    }
    assert_eq!(by(&mut ns, 0, &unlink(b"f")), Reply::Done);
    assert_eq!(ns.verify().expect("store works"), Vec::<String>::new());
}
