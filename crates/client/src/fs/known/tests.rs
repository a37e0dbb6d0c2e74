//! Against a namespace in memory: whatever is known is what the service would say.

use super::*;
use messenger::sync::LockTable;
use proptest::prelude::*;
use protocol::PoolId;
use protocol::namespace::{Commit, LeaseMode, Timestamp};
use std::collections::BTreeMap;

const ALONE: Term = Term { number: 1, holds: true, leased: false };

/// A service: names of two directories, and what they stand for.
#[derive(Default)]
struct World {
    files: HashMap<Gfid, Attr>,
    names: BTreeMap<Place, Gfid>,
    made: u64,
    /// Makes attributes after a change differ from those before.
    ticks: i64,
}

fn attr_of(gfid: Gfid, kind: FileKind) -> Attr {
    let time = Timestamp::default();
    Attr {
        gfid,
        kind,
        mode: 0o644,
        uid: 0,
        gid: 0,
        nlink: 1,
        rdev: 0,
        size: 0,
        atime: time,
        mtime: time,
        ctime: time,
        pool: PoolId::new(1),
        btime: None,
        flags: protocol::namespace::FileFlags::default(),
        has_xattrs: false,
        footprint: protocol::namespace::Footprint::Unknown,
    }
}

fn directory(number: u64) -> Gfid {
    Gfid::of_inode(1 + number)
}

fn missing<T>() -> Result<T> {
    Err(ClientError::Posix(ENOENT))
}

fn answered(reply: Reply, dirs: Vec<Attr>) -> Answered {
    Answered { reply, covered: false, dirs, commit: Commit::default(), durable: Commit::default() }
}

impl World {
    fn new() -> Self {
        let mut world = Self::default();
        for number in 0..2 {
            world.files.insert(directory(number), attr_of(directory(number), FileKind::Directory));
        }
        world
    }

    fn touch(&mut self, gfid: Gfid) -> Attr {
        self.ticks += 1;
        let attr = self.files.get_mut(&gfid).expect("it is there");
        attr.ctime.secs = self.ticks;
        *attr
    }

    fn set_has_xattrs(&mut self, gfid: Gfid, has_xattrs: bool) -> Reply {
        self.files.get_mut(&gfid).expect("it is there").has_xattrs = has_xattrs;
        Reply::Attr(self.touch(gfid))
    }

    fn unlink(&mut self, place: &Place) -> Option<Gfid> {
        let gfid = self.names.remove(place)?;
        self.touch(gfid);
        self.touch(place.0);
        Some(gfid)
    }

    fn carry_out(&mut self, op: &NamespaceOp) -> Result<Answered> {
        let reply = match op.clone() {
            NamespaceOp::Lookup { parent, name } => match self.names.get(&(parent, name)) {
                Some(gfid) => Reply::Attr(self.files[gfid]),
                None => return missing(),
            },
            NamespaceOp::GetAttr { gfid } => match self.files.get(&gfid) {
                Some(attr) => Reply::Attr(*attr),
                None => return missing(),
            },
            NamespaceOp::SetAttr { gfid, .. } if self.files.contains_key(&gfid) => {
                Reply::Attr(self.touch(gfid))
            }
            NamespaceOp::SetXattr { gfid, .. } if self.files.contains_key(&gfid) => {
                self.set_has_xattrs(gfid, true)
            }
            NamespaceOp::RemoveXattr { gfid, .. } if self.files.contains_key(&gfid) => {
                self.set_has_xattrs(gfid, false)
            }
            NamespaceOp::Create { parent, name, kind, .. }
                if !self.names.contains_key(&(parent, name.clone())) =>
            {
                self.made += 1;
                let gfid = Gfid::of_inode(100 + self.made);
                self.files.insert(gfid, attr_of(gfid, kind));
                self.names.insert((parent, name), gfid);
                self.touch(parent);
                Reply::Attr(self.touch(gfid))
            }
            NamespaceOp::Link { gfid, parent, name }
                if self.files.contains_key(&gfid)
                    && !self.names.contains_key(&(parent, name.clone())) =>
            {
                self.names.insert((parent, name), gfid);
                self.touch(parent);
                Reply::Attr(self.touch(gfid))
            }
            NamespaceOp::Unlink { parent, name, .. } => match self.unlink(&(parent, name)) {
                Some(_) => Reply::Done,
                None => return missing(),
            },
            NamespaceOp::Rename { parent, name, new_parent, new_name, .. } => {
                let (from, to) = ((parent, name), (new_parent, new_name));
                let Some(&gfid) = self.names.get(&from) else { return missing() };
                if self.names.get(&to) != Some(&gfid) {
                    self.unlink(&to);
                    self.unlink(&from);
                    self.names.insert(to.clone(), gfid);
                    self.touch(to.0);
                }
                Reply::Done
            }
            NamespaceOp::ReadDir { gfid, .. } => return self.list(gfid),
            NamespaceOp::Parent { .. } => Reply::Attr(self.files[&directory(0)]),
            _ => return Err(ClientError::Posix(super::super::errno::EEXIST)),
        };
        let dirs = op.changed_dirs().map(|dir| self.files[&dir]).collect();
        Ok(answered(reply, dirs))
    }

    fn list(&self, dir: Gfid) -> Result<Answered> {
        let of_dir = self.names.iter().filter(|((parent, _), _)| *parent == dir);
        let entry = |((_, name), file): (&Place, &Gfid)| DirEntry {
            name: name.clone(),
            attr: self.files[file],
            written_elsewhere: false,
        };
        let reply = Reply::Entries { entries: of_dir.map(entry).collect(), end: true };
        Ok(answered(reply, Vec::new()))
    }

    /// Everything that is known is true.
    fn check(&self, known: &Known, names: &[Vec<u8>]) {
        for dir in 0..2 {
            for name in names {
                let truth =
                    self.names.get(&(directory(dir), name.clone())).map(|gfid| self.files[gfid]);
                match known.lookup(ALONE, directory(dir), name) {
                    None => {}
                    Some(Ok(attr)) => assert_eq!(Some(attr), truth),
                    Some(Err(_)) => assert_eq!(truth, None),
                }
            }
        }
        for dir in (0..2).map(directory) {
            let Some(entries) = known.entries(ALONE, dir) else { continue };
            let Ok(Answered { reply: Reply::Entries { entries: truth, .. }, .. }) = self.list(dir)
            else {
                panic!("a directory cannot be listed")
            };
            assert_eq!(entries, truth);
        }
        for (gfid, attr) in &self.files {
            assert!(known.attr(ALONE, *gfid).is_none_or(|found| found == *attr));
        }
    }
}

fn create(parent: Gfid, name: &[u8], kind: FileKind) -> NamespaceOp {
    NamespaceOp::Create {
        parent,
        name: name.to_vec(),
        kind,
        mode: 0o644,
        umask: 0,
        rdev: 0,
        target: Vec::new(),
        pool: PoolId::new(1),
        open: (kind == FileKind::Regular).then_some(LeaseMode::Write),
    }
}

fn set_xattr(gfid: Gfid, name: &[u8]) -> NamespaceOp {
    NamespaceOp::SetXattr {
        gfid,
        name: name.to_vec(),
        value: Vec::new(),
        create: None,
        kill_sgid: false,
    }
}

fn any_op() -> impl Strategy<Value = NamespaceOp> {
    let dir = || (0..2u64).prop_map(directory);
    let name = || (0..4u8).prop_map(|n| vec![b'a' + n]);
    let file = || (101..106u64).prop_map(Gfid::of_inode);
    prop_oneof![
        3 => (dir(), name()).prop_map(|(parent, name)| NamespaceOp::Lookup { parent, name }),
        1 => file().prop_map(|gfid| NamespaceOp::GetAttr { gfid }),
        1 => dir().prop_map(|gfid| NamespaceOp::GetAttr { gfid }),
        1 => file().prop_map(|gfid| NamespaceOp::SetAttr { gfid, set: SetAttr::default(), sync: false }),
        1 => file().prop_map(|gfid| set_xattr(gfid, b"user.a")),
        1 => file().prop_map(|gfid| NamespaceOp::RemoveXattr { gfid, name: b"user.a".to_vec() }),
        3 => (dir(), name()).prop_map(|(parent, name)| create(parent, &name, FileKind::Regular)),
        1 => (file(), dir(), name()).prop_map(|(gfid, parent, name)| NamespaceOp::Link { gfid, parent, name }),
        2 => (dir(), name()).prop_map(|(parent, name)| NamespaceOp::Unlink { parent, name, gives: None }),
        2 => (dir(), name(), dir(), name()).prop_map(|(parent, name, new_parent, new_name)| NamespaceOp::Rename {
            parent, name, new_parent, new_name, mode: RenameMode::Replace,
        }),
        1 => dir().prop_map(|gfid| NamespaceOp::ReadDir { gfid, after: Vec::new(), limit: 100 }),
    ]
}

/// What happens next to requests under way.
#[derive(Clone, Debug)]
enum Step {
    Ask(NamespaceOp),
    CarryOut(usize),
    Deliver(usize),
    GiveUp(usize),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => any_op().prop_map(Step::Ask),
        4 => any::<usize>().prop_map(Step::CarryOut),
        4 => any::<usize>().prop_map(Step::Deliver),
        1 => any::<usize>().prop_map(Step::GiveUp),
    ]
}

proptest! {
    #[test]
    fn what_is_known_is_what_the_service_would_say(steps in prop::collection::vec(any_step(), 1..120)) {
        let known = Known::new(&LockTable::default());
        let mut world = World::new();
        let names: Vec<Vec<u8>> = (0..4u8).map(|n| vec![b'a' + n]).collect();
        let mut asked = Vec::new();
        let mut done = Vec::new();
        for step in steps {
            match step {
                Step::Ask(op) => asked.push((known.begin(ALONE, &op), op)),
                Step::CarryOut(n) if !asked.is_empty() => {
                    let (question, op) = asked.remove(n % asked.len());
                    done.push((question, world.carry_out(&op)));
                }
                Step::Deliver(n) if !done.is_empty() => {
                    let (question, answer) = done.remove(n % done.len());
                    question.end(ALONE, &answer);
                }
                // Carried out, and the answer is lost.
                Step::GiveUp(n) if !done.is_empty() => drop(done.remove(n % done.len())),
                _ => {}
            }
            world.check(&known, &names);
        }
        drop((asked, done));
        prop_assert!(known.inner.lock().slots.iter().all(|slot| slot.under_way == 0));
    }
}

/// Carries a request out at once.
fn ask(known: &Known, world: &mut World, op: &NamespaceOp) -> Result<Answered> {
    let question = known.begin(ALONE, op);
    let answer = world.carry_out(op);
    question.end(ALONE, &answer);
    answer
}

#[test]
fn whether_a_file_has_extended_attributes_is_known_and_not_while_that_changes() {
    let (known, mut world) = (Known::new(&LockTable::default()), World::new());
    ask(&known, &mut world, &create(directory(0), b"f", FileKind::Regular)).expect("made");
    let file = known.lookup(ALONE, directory(0), b"f").expect("known").expect("there").gfid;
    let has_xattrs = |known: &Known| known.attr(ALONE, file).map(|attr| attr.has_xattrs);
    assert_eq!(has_xattrs(&known), Some(false));
    let op = set_xattr(file, b"user.a");
    let question = known.begin(ALONE, &op);
    assert_eq!(has_xattrs(&known), None);
    question.end(ALONE, &world.carry_out(&op));
    assert_eq!(has_xattrs(&known), Some(true), "told with the answer");
}

#[test]
fn what_was_made_here_is_known_and_so_is_what_is_not_there() {
    let (known, mut world) = (Known::new(&LockTable::default()), World::new());
    ask(&known, &mut world, &create(directory(0), b"d", FileKind::Directory)).expect("made");
    let made = known.lookup(ALONE, directory(0), b"d").expect("known").expect("there").gfid;
    assert!(matches!(known.lookup(ALONE, made, b"x"), Some(Err(_))), "a new directory is empty");
    assert!(
        known.lookup(ALONE, made, &[b'x'; NAME_BYTES_MAX + 1]).is_none(),
        "the service says ENAMETOOLONG"
    );
    ask(&known, &mut world, &create(made, b"x", FileKind::Regular)).expect("made");
    assert!(matches!(known.lookup(ALONE, made, b"x"), Some(Ok(_))));
    assert_eq!(known.attr(ALONE, made), world.files.get(&made).copied(), "told with the answer");
    assert!(known.lookup(ALONE, directory(0), b"x").is_none(), "nobody has asked");
}

fn names(known: &Known, dir: Gfid) -> Option<Vec<Vec<u8>>> {
    Some(known.entries(ALONE, dir)?.into_iter().map(|entry| entry.name).collect())
}

#[test]
fn a_directory_that_was_made_here_or_listed_is_listed_from_here() {
    let (known, mut world) = (Known::new(&LockTable::default()), World::new());
    let list = |dir| NamespaceOp::ReadDir { gfid: dir, after: Vec::new(), limit: 100 };
    ask(&known, &mut world, &create(directory(0), b"d", FileKind::Directory)).expect("made");
    assert_eq!(names(&known, directory(0)), None, "it may hold more");
    let made = known.lookup(ALONE, directory(0), b"d").expect("known").expect("there").gfid;
    assert_eq!(names(&known, made), Some(vec![]));
    for name in [b"y", b"x"] {
        ask(&known, &mut world, &create(made, name, FileKind::Regular)).expect("made");
    }
    assert_eq!(names(&known, made), Some(vec![b"x".to_vec(), b"y".to_vec()]));
    let unlink = NamespaceOp::Unlink { parent: made, name: b"x".to_vec(), gives: None };
    let question = known.begin(ALONE, &unlink);
    assert_eq!(names(&known, made), None, "it is changing");
    question.end(ALONE, &world.carry_out(&unlink));
    assert_eq!(names(&known, made), Some(vec![b"y".to_vec()]));

    ask(&known, &mut world, &list(directory(0))).expect("listed");
    assert_eq!(names(&known, directory(0)), Some(vec![b"d".to_vec()]));
    assert!(
        matches!(known.lookup(ALONE, directory(0), b"e"), Some(Err(_))),
        "there is nothing else"
    );
    assert!(known.entries(Term { holds: false, ..ALONE }, directory(0)).is_none());
}

#[test]
fn a_listing_is_of_no_use_if_names_changed_meanwhile_or_others_write() {
    let (known, mut world) = (Known::new(&LockTable::default()), World::new());
    let dir = directory(0);
    let list = |after: &[u8]| NamespaceOp::ReadDir { gfid: dir, after: after.to_vec(), limit: 100 };
    let question = known.begin(ALONE, &list(b""));
    let listed = world.carry_out(&list(b""));
    ask(&known, &mut world, &create(dir, b"a", FileKind::Regular)).expect("made");
    question.end(ALONE, &listed);
    assert_eq!(names(&known, dir), None);
    ask(&known, &mut world, &list(b"0")).expect("listed");
    assert_eq!(names(&known, dir), None, "something may be before");
    let question = known.begin(ALONE, &list(b""));
    let mut listed = world.carry_out(&list(b"")).expect("listed");
    let Reply::Entries { entries, .. } = &mut listed.reply else { panic!("no entries") };
    entries[0].written_elsewhere = true;
    question.end(ALONE, &Ok(listed));
    assert_eq!(names(&known, dir), None);
    ask(&known, &mut world, &list(b"")).expect("listed");
    assert_eq!(names(&known, dir), Some(vec![b"a".to_vec()]));
}

#[test]
fn the_parent_is_known_until_the_directory_moves() {
    let (known, mut world) = (Known::new(&LockTable::default()), World::new());
    ask(&known, &mut world, &NamespaceOp::GetAttr { gfid: directory(0) }).expect("there");
    ask(&known, &mut world, &create(directory(0), b"d", FileKind::Directory)).expect("made");
    let made = known.lookup(ALONE, directory(0), b"d").expect("known").expect("there").gfid;
    let parent = |dir| known.parent(ALONE, dir).map(|attr| attr.gfid);
    assert_eq!(parent(made), Some(directory(0)));
    assert_eq!(parent(directory(1)), None);
    ask(&known, &mut world, &NamespaceOp::Parent { gfid: directory(1) }).expect("there");
    assert_eq!(parent(directory(1)), Some(directory(0)));
    let (from, to) = ((directory(0), b"d".to_vec()), (directory(1), b"d".to_vec()));
    let mode = RenameMode::Replace;
    let rename = NamespaceOp::Rename {
        parent: from.0,
        name: from.1,
        new_parent: to.0,
        new_name: to.1,
        mode,
    };
    ask(&known, &mut world, &rename).expect("moved");
    assert_eq!(parent(made), None);
}

#[test]
fn nothing_is_known_of_another_term_or_while_the_mount_may_not_be_alone() {
    let (known, mut world) = (Known::new(&LockTable::default()), World::new());
    ask(&known, &mut world, &create(directory(0), b"a", FileKind::Regular)).expect("made");
    let is_known = |term| known.lookup(term, directory(0), b"a").is_some();
    assert!(is_known(ALONE));
    assert!(!is_known(Term { holds: false, ..ALONE }) && !is_known(Term { number: 2, ..ALONE }));
    let lookup = NamespaceOp::Lookup { parent: directory(0), name: b"b".to_vec() };
    let question = known.begin(ALONE, &lookup);
    drop(known.begin(Term { number: 2, ..ALONE }, &lookup));
    question.end(ALONE, &world.carry_out(&lookup));
    assert!(
        !is_known(ALONE) && known.lookup(ALONE, directory(0), b"b").is_none(),
        "the term is over"
    );
}

#[test]
fn what_is_kept_is_bounded() {
    let (known, mut world) = (Known::new(&LockTable::default()), World::new());
    for file in 0..KNOWN_MAX {
        ask(
            &known,
            &mut world,
            &create(directory(0), format!("{file}").as_bytes(), FileKind::Regular),
        )
        .expect("made");
        let inner = known.inner.lock();
        let count = inner.attrs.len()
            + inner.names.values().map(|names| names.known.len() + 1).sum::<usize>();
        assert!(inner.count == count && count <= KNOWN_MAX + 4);
    }
}

#[test]
fn a_rename_onto_a_name_of_which_nothing_is_known_may_leave_both() {
    let (known, mut world) = (Known::new(&LockTable::default()), World::new());
    let dir = directory(0);
    ask(&known, &mut world, &create(dir, b"a", FileKind::Regular)).expect("made");
    let gfid = known.lookup(ALONE, dir, b"a").expect("known").expect("there").gfid;
    let (from, to) = (b"a".to_vec(), b"b".to_vec());
    ask(&known, &mut world, &NamespaceOp::Link { gfid, parent: dir, name: to.clone() })
        .expect("linked");
    known.recalled(None);
    ask(&known, &mut world, &NamespaceOp::Lookup { parent: dir, name: from.clone() })
        .expect("found");
    let mode = RenameMode::Replace;
    let rename =
        NamespaceOp::Rename { parent: dir, name: from, new_parent: dir, new_name: to, mode };
    ask(&known, &mut world, &rename).expect("two names of one file");
    world.check(&known, &[b"a".to_vec(), b"b".to_vec()]);
}

#[test]
fn one_of_several_mounts_knows_what_it_has_leases_on_until_they_are_asked_for() {
    const LEASED: Term = Term { number: 1, holds: false, leased: true };
    let (known, mut world) = (Known::new(&LockTable::default()), World::new());
    let dir = directory(0);
    let made = create(dir, b"a", FileKind::Regular);
    known.begin(LEASED, &made).end(LEASED, &world.carry_out(&made));
    let list = NamespaceOp::ReadDir { gfid: dir, after: Vec::new(), limit: 100 };
    let read = |known: &Known, world: &mut World, covered, recalled: Option<Gfid>| {
        let question = known.begin(LEASED, &list);
        let answer = world.carry_out(&list).map(|answered| Answered { covered, ..answered });
        if recalled.is_some() {
            known.recalled(recalled);
        }
        question.end(LEASED, &answer);
    };
    let is_known = |known: &Known, name: &[u8]| known.lookup(LEASED, dir, name).is_some();
    read(&known, &mut world, false, None);
    assert!(!is_known(&known, b"a"), "without a lease");
    read(&known, &mut world, true, Some(dir));
    assert!(!is_known(&known, b"a"), "the lease was asked for meanwhile");
    read(&known, &mut world, true, None);
    assert!(is_known(&known, b"a") && is_known(&known, b"none"));
    assert!(!is_known(&known, b".") && !is_known(&known, b".."), "they are there, if not listed");
    let file = known.lookup(LEASED, dir, b"a").expect("known").expect("there").gfid;
    known.recalled(Some(file));
    assert!(!is_known(&known, b"a") && is_known(&known, b"none"), "only the file is asked for");
    read(&known, &mut world, true, None);
    known.recalled(Some(dir));
    assert!(!is_known(&known, b"a") && !is_known(&known, b"none"));
    read(&known, &mut world, true, None);
    let over = Term { leased: false, ..LEASED };
    assert!(known.lookup(over, dir, b"a").is_none(), "the promise is over");
}
